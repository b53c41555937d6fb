"""The rule that makes a verdict of an estimate, for all rows of a comparison together.

On the log ratio d = log(new / base) and the threshold t = log(1 + threshold_frac), both signs alike:

- worse (better): "no change" is rejected by Holm's procedure over all judged rows of the comparison (`FAMILY_ERROR`),
  and |d| > t, in the direction that costs (saves) time;
- same: the row's own interval lies inside [-t, t]. No correction is due: "all the same" needs every row of them;
- cannot_tell: neither. A loss beyond the threshold may still be excluded (``is_loss_excluded``): the interval's costly
  end is within it. That is what a gate needs.

Logs make new against base the mirror of base against new. Inputs with the same hash, or the same numbers, are the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
from scipy.special import stdtr

from helpers.compare.needed import POWER, critical, margin, needed, runs_needed
from helpers.compare.sides import Run

CONFIDENCE = 0.95
"""Of a row's own interval."""

FAMILY_ERROR = 0.03
"""Probability at most that any row of a comparison without change is called worse or better. Not 0.05: in 400 pairs
without change the share found must itself stay below 5 %, which at 0.05 it would miss in every third study."""

COLUMNS = (
    "kind", "running_req", "base", "new", "unit", "effect_frac", "lo_frac", "hi_frac", "row_lo_frac", "row_hi_frac",
    "p_holm", "is_judged", "verdict", "is_loss_excluded", "mdc_frac", "runs_needed", "needed", "log_ratio", "se", "dof",
)  # fmt: skip

GROWS_WELL = ("accept_len", "asymptote")
"""Kinds of rows of which more is better; of all others less is."""


def holm(p: np.ndarray) -> np.ndarray:
    """Return p-values adjusted by Holm's step-down procedure (Holm 1979, Scandinavian Journal of Statistics 6, 65)."""
    order = np.argsort(p, kind="stable")
    stepped = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    adjusted = np.empty_like(stepped)
    adjusted[order] = np.minimum(stepped, 1.0)
    return adjusted


def two_sided(log_ratio: np.ndarray, se: np.ndarray, dof: np.ndarray) -> np.ndarray:
    """Return the p-value of "no change"; 1 where there is no scatter at all, as between identical sides."""
    p = np.ones_like(log_ratio)
    known = se > 0
    p[known] = 2 * stdtr(dof[known], -np.abs(log_ratio[known]) / se[known])
    return p


def judge(
    rows: pd.DataFrame, threshold_frac: float, confidence: float, is_identical: bool,
    sides: tuple[Sequence[Run], Sequence[Run]],
) -> pd.DataFrame:  # fmt: skip
    """Give every row its intervals, its verdict, and what would be needed.

    Parameters
    ----------
    rows : DataFrame
        kind, running_req, base, new, unit, log_ratio, se, dof, common_frac, is_judged.
    threshold_frac, confidence : float
        As `compare_levels` has them [1].
    is_identical : bool
        Both sides are one input: no row differs.
    sides : pair of sequences of Run
        Base and new.

    Returns
    -------
    DataFrame
        Columns `COLUMNS`.
    """
    d, se, dof = (rows[name].to_numpy(float) for name in ("log_ratio", "se", "dof"))
    judged = rows["is_judged"].to_numpy(bool)
    if is_identical:
        d, se = np.zeros_like(d), np.zeros_like(se)
    t, alpha_row = math.log1p(threshold_frac), FAMILY_ERROR / judged.sum()
    of_row, own = critical(alpha_row, dof), critical(1 - confidence, dof)
    p_holm = np.full_like(d, math.nan)
    p_holm[judged] = holm(two_sided(d, se, dof)[judged])
    costs = np.where(rows["kind"].isin(GROWS_WELL), -d, d)
    moved = (p_holm < FAMILY_ERROR) & (np.abs(d) > t)
    same = np.abs(d) + own * se <= t
    verdict = np.where(moved, np.where(costs > 0, "worse", "better"), np.where(same, "same", "cannot_tell"))
    verdict = np.where(judged, verdict, "described")
    kinds = rows["kind"].to_numpy()
    # the reciprocal of the slope: its test is that of the slope
    verdict[kinds == "asymptote"] = verdict[kinds == "per_request"]
    mdc = np.maximum(of_row * se, t) + margin(POWER, dof) * se
    runs = np.full_like(d, math.nan)
    words = np.full(len(d), "", object)
    if not is_identical:
        common_frac, level = rows["common_frac"].to_numpy(float), rows["running_req"].to_numpy(float)
        for i in np.flatnonzero(judged):
            runs[i] = runs_needed(se[i], dof[i], common_frac[i], sides, alpha_row, t)
            words[i] = needed(kinds[i], level[i], se[i], runs[i], sides, alpha_row, t)
    found = {
        "effect_frac": np.expm1(d), "lo_frac": np.expm1(d - of_row * se), "hi_frac": np.expm1(d + of_row * se),
        "row_lo_frac": np.expm1(d - own * se), "row_hi_frac": np.expm1(d + own * se), "p_holm": p_holm,
        "verdict": verdict, "is_loss_excluded": costs + own * se <= t,
        "mdc_frac": np.where(judged, np.expm1(mdc), math.nan), "runs_needed": runs, "needed": words, "log_ratio": d,
        "se": se,
    }  # fmt: skip
    return pd.DataFrame({name: found[name] if name in found else rows[name] for name in COLUMNS})
