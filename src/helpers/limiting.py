"""What limits decode, in sentences and as a table, from a scorecard alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from helpers.diagnose.causes import CAUSES, UNKNOWN
from helpers.display import show

Card = Mapping[str, Any]

STANDING = ("supported", "compatible")
"""Statuses of causes that may be the answer."""

MAX_FACTS = 2
"""Facts for a cause that a reader gets at once."""

MAX_OTHERS = 4
MAX_PREDICTIONS = 3
MAX_NAMED = 3
"""Causes with one predicted outcome that are named."""


def limits(card: Card) -> list[str]:
    """Say what limits decode, what speaks for it and against it, what else may be, and which experiment decides.

    Parameters
    ----------
    card : mapping
        A scorecard; empty without a diagnosis.
    """
    rows = card.get("diagnosis") or []
    if not rows:
        return []
    top = rows[0]
    lines = [_top(top), *_others(rows, top), *_experiment(card.get("next_experiment"), top)]
    return lines


def _top(top: Mapping[str, Any]) -> str:
    if top["cause"] == UNKNOWN:
        missing = [text.removeprefix("not known: ") for text in top["evidence_for"] if text.startswith("not known: ")]
        needs = f" Not known: {'; '.join(missing)}." if missing else ""
        return f"What limits decode: this does not tell.{needs}"
    facts = "; ".join(top["evidence_for"][:MAX_FACTS])
    against = f" Against it: {top['evidence_against'][0]}." if top["evidence_against"] else ""
    sure = {"supported": "supported", "compatible": "compatible, not proven"}.get(top["status"], top["status"])
    return f"What limits decode: {CAUSES[top['cause']]} ({top['cause']}, {sure}): {facts}.{against}"


def _others(rows: Sequence[Mapping[str, Any]], top: Mapping[str, Any]) -> list[str]:
    """Name the other causes that stand, those that contradict themselves, and those that are refuted."""
    others = [row for row in rows if row is not top and row["status"] in STANDING and row["score"] > 0]
    lines = []
    if others:
        named = ", ".join(f"{row['cause']} ({row['status']})" for row in others[:MAX_OTHERS])
        lines.append(f"Also: {named}.")
    lines += [f"Contradiction about {row['cause']}: {row['contradiction']}."
              for row in rows if row.get("contradiction")]
    refuted = [row["cause"] for row in rows if row["status"] == "refuted"]
    if refuted:
        lines.append(f"Refuted: {', '.join(refuted)}.")
    return lines


def _experiment(plan: Mapping[str, Any] | None, top: Mapping[str, Any]) -> list[str]:
    """Say which experiment tells most per minute, and what it would show."""
    if not plan:
        return []
    said = "; ".join(predictions(plan["predicts"], str(top["cause"]))[:MAX_PREDICTIONS])
    return [f"Next experiment, {show(plan['duration_s'], 'duration')}: {plan['what']}. It shows: {said}."]


def predictions(predicts: Mapping[str, str], first: str = "") -> list[str]:
    """Say what an experiment shows under each cause, causes with one outcome together.

    Parameters
    ----------
    predicts : mapping
        Cause -> outcome, as "what is seen: why".
    first : str
        The cause to begin with.
    """
    causes: dict[str, list[str]] = {}
    for cause in sorted(predicts, key=lambda cause: cause != first):
        causes.setdefault(predicts[cause].partition(":")[0], []).append(cause)
    return [f"if {_named(names)}: {predicts[names[0]]}" for names in causes.values()]


def _named(names: Sequence[str]) -> str:
    """Join causes as alternatives, the first ones by name."""
    shown = list(names[:MAX_NAMED])
    rest = len(names) - len(shown)
    return ", ".join(shown) + (f" or {rest} more" if rest else "")


def causes_rows(card: Card) -> list[dict[str, str]]:
    """Return the table of causes that are not refuted: what speaks for each, what against it, what decides.

    Parameters
    ----------
    card : mapping
        A scorecard.

    Returns
    -------
    list of dict
        Best first; causes about which nothing was seen are left out (`silent`).
    """
    return [
        {"cause": f"{row['cause']}: {CAUSES[row['cause']]}", "status": row["status"],
         "for": "; ".join(row["evidence_for"][:MAX_FACTS]) or "nothing",
         "against": row.get("contradiction") or next(iter(row["evidence_against"]), "nothing"),
         "decided by": row["next_experiment"] or ""}
        for row in card.get("diagnosis") or []
        if row["status"] != "refuted" and (row["evidence_for"] or row["evidence_against"])
    ]


def refuted_rows(card: Card) -> list[dict[str, str]]:
    """Return the refuted causes, each with the fact that decided."""
    return [{"cause": f"{row['cause']}: {CAUSES[row['cause']]}", "refuted by": row["refuted_by"] or ""}
            for row in card.get("diagnosis") or [] if row["status"] == "refuted"]


def silent(card: Card) -> list[str]:
    """Return the causes about which nothing was seen, for or against."""
    return [row["cause"] for row in card.get("diagnosis") or []
            if row["status"] == "weak" and not row["evidence_for"] and not row["evidence_against"]]
