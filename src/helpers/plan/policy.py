"""Which experiment a diagnosis asks for: `choose` on its ranked causes, with what follows from their standing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from helpers.errors import LogFormatError
from helpers.plan.choose import Plan, choose

NOTHING_SEEN_SCORE = -2.0
"""Score of a cause about which nothing was seen, for the choice of an experiment: it stands, far behind the others."""

GATHERING = ("sweep", "add_telemetry", "profile_two_levels")
"""Experiments that collect what is missing: they come first where nothing can be told yet."""

GOOD = ("healthy", "weight_bandwidth", "kv_bandwidth", "state_bandwidth", "tensor_compute")
"""Causes that describe a good step (`diagnose.judge.OF_HARDWARE`)."""

UNKNOWN = "unknown"


def choose_for(diagnosis: Sequence[Any], known: Mapping[str, Any]) -> list[Plan]:
    """Rank the experiments for a diagnosis.

    Parameters
    ----------
    diagnosis : sequence of mapping
        Ranked causes as in a scorecard: cause, status, score, evidence_for, evidence_against.
    known : mapping
        See `known.Known`.

    Returns
    -------
    list of Plan
        Best first; those that collect what is missing before the others where nothing can be told yet. Empty where the
        step is good and nothing else stands, and where `choose` finds none.

    Raises
    ------
    LogFormatError
        An entry is no cause.
    """
    plans = [] if is_good(diagnosis) else choose(standing(diagnosis), known)
    if diagnosis and diagnosis[0].get("cause") == UNKNOWN:
        plans = sorted(plans, key=lambda plan: plan.name not in GATHERING)
    return plans


def standing(diagnosis: Sequence[Any]) -> dict[str, tuple[str, float | None]]:
    """Return cause -> (status, score) as `choose` takes them."""
    return {entry["cause"]: (str(entry.get("status")), _score(entry)) for entry in _checked(diagnosis)}


def is_good(diagnosis: Sequence[Any]) -> bool:
    """Tell whether a cause that describes a good step is supported first, and nothing else stands."""
    entries = _checked(diagnosis)
    if not entries or entries[0]["cause"] not in GOOD or entries[0].get("status") != "supported":
        return False
    return all(entry["cause"] in GOOD for entry in entries
               if entry.get("status") in ("supported", "compatible") and (entry.get("score") or 0.0) > 0)


def _score(entry: Mapping[str, Any]) -> float | None:
    """Return the score of a cause; where its evidence is listed and empty, that of nothing seen."""
    evidence = [entry.get("evidence_for"), entry.get("evidence_against")]
    is_unseen = all(isinstance(items, list | tuple) and not items for items in evidence)
    return NOTHING_SEEN_SCORE if is_unseen else entry.get("score")


def _checked(diagnosis: Sequence[Any]) -> Sequence[Mapping[str, Any]]:
    """Refuse what is no list of causes."""
    for entry in diagnosis:
        if not isinstance(entry, Mapping) or not isinstance(entry.get("cause"), str):
            raise LogFormatError(f"expected diagnosis entries with a cause, found {entry!r}; run it again")
    return diagnosis
