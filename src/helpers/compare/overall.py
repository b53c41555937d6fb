"""One verdict for a comparison, taken from its rows and never from a mean of them, and what a gate makes of it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pandas as pd

from helpers.compare.effects import Effects
from helpers.compare.scatter import RUN_TO_RUN_FRAC
from helpers.compare.validity import Validity
from helpers.compare.words import percent, quantity
from helpers.display import level_key

SAID = ("worse", "better", "cannot_tell", "same")
"""Verdicts of rows in the order in which the sentence names them."""

LEVEL_KINDS = ("step", "accept_len")
"""Rows of what was measured; the others are computed of them."""

PASS, REGRESSED, CANNOT_TELL = 0, 1, 2
"""Exit codes of the command line."""


@dataclass(frozen=True)
class Overall:
    """The comparison in short.

    Attributes
    ----------
    verdict : str
        worse, better, mixed (rows of both), cannot_tell or same. Sides exchanged give the mirror: worse for better, the
        others as they are.
    is_mixed : bool
        Some rows are worse and some better.
    sentence : str
        What must be known of the inputs, and the rows of each verdict.
    n_unknown : int
        Judged rows that are cannot_tell.
    exit_code : int
        What a gate does: 1 where any row is worse; 0 where every level excludes a loss beyond the threshold, and none
        of the base is lost (``Effects.lost``); else 2. The gate alone treats gains and losses unlike.
    needed : str
        How many runs would tell the rows that cannot; "" where that is not known or nothing is open.
    """

    verdict: str
    is_mixed: bool
    sentence: str
    n_unknown: int = 0
    exit_code: int = CANNOT_TELL
    needed: str = ""


def overall(effects: Effects, validity: Validity | None = None) -> Overall:
    """Join the rows.

    Parameters
    ----------
    effects : Effects
        From `compare_levels`.
    validity : Validity, optional
        Sides that are not comparable get cannot_tell, whatever the rows say; the rows stay.

    Notes
    -----
    A row that moved decides over rows that cannot tell, in either direction: these are counted and named, and a level
    that could still hide a loss keeps the gate from passing. A parameter that cannot be told does not: it is a
    combination of these levels, and a slope too small to be seen in any of them would keep every gate shut.
    """
    judged = effects.rows[effects.rows["is_judged"]]
    found = set(judged["verdict"])
    unknown = judged[judged["verdict"] == "cannot_tell"]
    is_mixed = {"worse", "better"} <= found
    verdict = "mixed" if is_mixed else next(v for v in SAID if v in found)
    parts = [f"{v.replace('_', ' ').capitalize()}: {_names(judged[judged['verdict'] == v])}." for v in SAID
             if v in found]
    sentence = _inputs(effects) + ("Some rows are worse and some better. " if is_mixed else "") + " ".join(parts)
    to_tell = _to_tell(unknown, effects)
    if validity is not None and validity.verdict == "not_comparable":
        sentence = f"{validity.sentence} The rows, for what they are: {sentence[0].lower()}{sentence[1:]}"
        return Overall("cannot_tell", is_mixed, sentence, len(unknown), CANNOT_TELL, to_tell)
    excluded = judged.loc[judged["kind"].isin(LEVEL_KINDS), "is_loss_excluded"]
    code = REGRESSED if "worse" in found else PASS if excluded.all() and not effects.lost else CANNOT_TELL
    return Overall(verdict, is_mixed, sentence, len(unknown), code, to_tell)


def _inputs(effects: Effects) -> str:
    """Say what a reader must know of the inputs before any verdict."""
    said = "Both sides hold the same input. " if effects.is_identical else (
        f"Of the new runs {effects.n_shared} stand on the base side too. " if effects.n_shared else "")
    if effects.lost:
        levels = ", ".join(level_key(level) for level in effects.lost)
        said += f"The new side has no step time at N={levels}, which the base has: nothing is known of them. "
    return said


def _to_tell(unknown: pd.DataFrame, effects: Effects) -> str:
    """Say how many runs would tell the rows that cannot, and which no number would."""
    known = unknown[unknown["runs_needed"].notna()]
    if known.empty:
        return ""
    never = known[known["runs_needed"] == math.inf]
    holding = known[known["kind"].isin(LEVEL_KINDS) & (known["runs_needed"] < math.inf)]  # what keeps the gate shut
    runs = holding["runs_needed"].max()
    is_single = len(effects.base) == len(effects.new) == 1
    scatter = percent(RUN_TO_RUN_FRAC)
    why = f" where two runs differ by {scatter}, fewer where by less (start with 3)" if is_single else ""
    said = [] if math.isnan(runs) else [f"{runs:.0f} runs on either side are needed{why}"]
    said += [f"for {_names(never)} no sensible number of runs would do"] if len(never) else []
    change = percent(effects.threshold_frac)
    start = (f"Single runs cannot be shown to be the same within {change}" if is_single
             else f"To tell a change of {change} from none at every level")
    return f"{start}: {'; '.join(said)}." if said else ""


def _names(rows: pd.DataFrame) -> str:
    return "; ".join(quantity(str(kind), *of_kind["running_req"]) for kind, of_kind in rows.groupby("kind", sort=False))
