"""One verdict for a comparison, taken from its worst row and never from a mean of them."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from helpers.compare.effects import VERDICTS, Effects
from helpers.compare.validity import Validity
from helpers.display import level_key


@dataclass(frozen=True)
class Overall:
    """The verdict (worse, cannot_tell, better or same), whether rows point both ways, and a sentence with the rows."""

    verdict: str
    is_mixed: bool
    sentence: str


def overall(effects: Effects, validity: Validity | None = None) -> Overall:
    """Join the rows: worse if any is worse, else cannot_tell if any is, else better if any is, else same.

    Parameters
    ----------
    effects : Effects
        From `compare_levels`.
    validity : Validity, optional
        Sides that are not comparable get cannot_tell, whatever the rows say; the rows stay.
    """
    judged = effects.rows[effects.rows["is_judged"]]
    found = set(judged["verdict"])
    verdict = next(v for v in VERDICTS if v in found)
    is_mixed = {"worse", "better"} <= found
    parts = [f"{v.replace('_', ' ')}: {_names(judged[judged['verdict'] == v])}" for v in VERDICTS if v in found]
    sentence = ("Some rows are worse and some better. " if is_mixed else "") + "; ".join(parts) + "."
    if validity is not None and validity.verdict == "not_comparable":
        return Overall("cannot_tell", is_mixed, f"{validity.sentence} The rows, for what they are: {sentence}")
    return Overall(verdict, is_mixed, sentence[0].upper() + sentence[1:])


def _names(rows: pd.DataFrame) -> str:
    said = []
    for kind, of_kind in rows.groupby("kind", sort=False):
        name = str(kind).replace("_", " ")
        levels = ", ".join(level_key(level) for level in of_kind["running_req"].dropna())
        said.append(f"{name} at {levels}" if levels else name)
    return ", ".join(said)
