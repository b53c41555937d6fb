"""The answer of a run, sorted into what a reader looks for: the sentence, law, roofline, causes, next experiment.

Page and summary say the same: both take their words and numbers from here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from helpers import scorecard
from helpers.display import level_key, show
from helpers.limiting import causes_rows

Card = Mapping[str, Any]

COMPARISON = "comparison"
"""``kind`` of a card that holds two sides against each other; it brings its own words."""

BEGINNINGS = (
    ("What limits decode:", "limits"), ("Also:", "others"), ("Contradiction about ", "others"), ("Refuted:", "others"),
    ("Next experiment", "next"), ("Measured:", "measured"), ("Step time at ", "law"), ("Round time at ", "law"),
    ("Law:", "law"), ("No law of ", "law"), ("Distance from the roofline:", "roofline"),
    ("The client's average ", "client"), ("A client's average ", "client"), ("Doubt:", "doubt"),
    ("CHECK FAILED:", "check"),
)
"""Words that begin a part of the answer -> the part; a line that begins with none belongs to the part before it."""

MAX_CAUSES = 4
"""Causes in sight at first; the section about causes has all."""

MALFORMED_FRAC = 0.01
"""Share of statistics that may be malformed (a line cut off by a crash) without a word on the first screen."""

CAUSES_HEAD = ("status", "cause", "for", "against")


@dataclass
class Answer:
    """What a run says, by part.

    Attributes
    ----------
    lead : list of str
        The sentence that answers.
    parts : dict
        Name of a part ("law", "roofline", ...) -> its lines.
    text : str
        All of it, in the order in which a terminal prints it.
    """

    lead: list[str]
    parts: dict[str, list[str]] = field(default_factory=dict)
    text: str = ""

    def part(self, *names: str) -> list[str]:
        """Return the lines of parts, in that order."""
        return [line for name in names for line in self.parts.get(name, ())]


def is_comparison(card: Card | None) -> bool:
    """Tell whether a card compares two sides."""
    return (card or {}).get("kind") == COMPARISON


def answer_of(card: Card) -> Answer:
    """Return the answer of a scorecard or comparison by part; no line is lost.

    Parameters
    ----------
    card : mapping
        From scorecard.json or comparison.json.
    """
    if is_comparison(card):
        lines = str(card["answer"]).splitlines()
        return Answer(lines[:1], {"more": lines[1:]}, "\n".join(lines))
    text = scorecard.answer(card)
    parts: dict[str, list[str]] = {}
    part = "more"
    for line in text.splitlines():
        part = next((name for beginning, name in BEGINNINGS if line.startswith(beginning)), part)
        parts.setdefault(part, []).append(line)
    parts.setdefault("doubt", [])[:0] = _unread(card)
    lead = next((name for name in ("limits", "law", "measured", "more") if name in parts), "more")
    return Answer(parts.pop(lead, []), parts, text)


def _unread(card: Card) -> list[str]:
    """Say that many statistics could not be read; few are no doubt about the others."""
    lines = (card.get("ingest") or {}).get("lines") or {}
    malformed, read = lines.get("malformed") or 0, lines.get("statistic") or 0
    if malformed <= MALFORMED_FRAC * (malformed + read):
        return []
    return [f"Doubt: {malformed} of {malformed + read} lines with statistics are malformed and were not used."]


def causes(card: Card) -> list[dict[str, str]]:
    """Return the causes that lead: status, cause, the facts for and against."""
    return [{name: row[name] for name in CAUSES_HEAD} for row in causes_rows(card)[:MAX_CAUSES]]


def effects(card: Card) -> list[dict[str, str]]:
    """Return the rows of a comparison: both sides with units, the change with its interval, the verdict."""
    from helpers.compare.words import effect, percent, quantity  # with scipy.stats: only for reports that need it

    change = f"change [{percent(card['confidence'])} interval]"
    return [{"quantity": quantity(row["kind"], row["running_req"]), "verdict": str(row["verdict"]).replace("_", " "),
             change: effect(row), "base to new": _sides(row)} for row in card.get("rows") or []]


def _sides(row: Mapping[str, Any]) -> str:
    """Write both sides with one unit: "20.0 to 25.0 ms"."""
    base, new = (show(row[side], row["unit"]) for side in ("base", "new"))
    number, _, unit = base.partition(" ")
    return f"{number if unit and new.endswith(f' {unit}') else base} to {new}"


def level_rows(card: Card) -> list[dict[str, str]]:
    """Return the levels as a reader wants them: step with interval, rate, counts; empty columns are left out.

    Parameters
    ----------
    card : mapping
        A scorecard.
    """
    levels: Sequence[Mapping[str, Any]] = card.get("levels") or []
    rows = [
        {"server life": str(level.get("server_life", "")), "ranks": str(level.get("rank_group", "")),
         "running requests [req]": level_key(level["running_req"]),
         "step": show(level["step_s"], "s", level["step_s_lo"], level["step_s_hi"]),
         "decode": show(level["decode_tok_per_s"], "tok/s"),
         "tokens per round": "" if level.get("accept_len") is None else show(level["accept_len"]),
         "clean intervals": "" if level.get("n_clean") is None else str(level["n_clean"]),
         "in the law": "yes" if level["is_fitted"] else "no", "note": str(level.get("note") or "")}
        for level in levels
    ]
    same = [name for name in ("server life", "ranks") if len({row[name] for row in rows}) <= 1]
    empty = [name for name in ("tokens per round", "note") if not any(row[name] for row in rows)]
    return [{name: text for name, text in row.items() if name not in (*same, *empty)} for row in rows]


def source_line(card: Card) -> str:
    """Say in one line what was measured: model, accelerator, parallelism, engine."""
    run = card.get("run") or {}
    if is_comparison(card):
        facts = (card.get("new") or {}).get("facts") or {}
        run = {**facts, "parallel": {}}
    model = str(run.get("model") or "").rstrip("/").rsplit("/", 1)[-1] or "model not in the log"
    parallel = " ".join(f"{name.upper()}{n}" for name, n in (run.get("parallel") or {}).items() if n and n > 1)
    engine = " ".join(str(part) for part in (run.get("engine"), run.get("engine_version")) if part)
    return " · ".join(str(part) for part in (model, run.get("hardware"), parallel, engine) if part)


def failure_of(run: Mapping[str, Any] | None) -> str:
    """Say what went wrong with a run; empty if nothing did."""
    message = str((run or {}).get("message") or "")
    return f"{str((run or {}).get('status') or 'failed').replace('_', ' ')}: {message}" if message else ""
