"""How much more must be measured until a change of the threshold's size is told from none."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from scipy.stats import norm
from scipy.stats import t as student_t

from helpers.compare.sides import RUN_TO_RUN_FRAC, Run, values

POWER = 0.9
"""Probability with which a true change of the printed minimum is called worse or better. Not the usual 0.8: a change
above the printed minimum shall be found in nine of ten comparisons."""

MAX_REPEATS = 200
"""Beyond this many runs a side the answer is that repeats will not do."""


def needed(
    row: Mapping[Any, Any], sides: tuple[Sequence[Run], Sequence[Run]], alpha_row: float, threshold_frac: float
) -> str:
    """Say how many clean intervals or repeats tell a change of ``threshold_frac`` from none, at `POWER`.

    Parameters
    ----------
    row : mapping
        A row of ``Effects.rows`` with se, dof, kind and running_req.
    sides : pair of sequences of Run
        Base and new.
    alpha_row : float
        Two-sided error of one row.
    threshold_frac : float
        [1].

    Returns
    -------
    str
        "" where what was measured is enough.

    Notes
    -----
    Intervals shorten only a level's own standard error (as one over the square root of their number); the scatter
    between runs stays, so where it alone is too much, only repeats help.
    """
    t = math.log1p(threshold_frac)
    if (student_t.ppf(1 - alpha_row / 2, row["dof"]) + student_t.ppf(POWER, row["dof"])) * row["se"] <= t:
        return ""
    counts = [max(1, len(runs)) for runs in sides]
    if counts == [1, 1] and row["kind"] == "step":
        own = [float(np.nan_to_num(values(runs, "own_frac", [row["running_req"]]))[0, 0]) for runs in sides]
        have = own[0] ** 2 + own[1] ** 2
        left = (t / float(norm.ppf(1 - alpha_row / 2) + norm.ppf(POWER))) ** 2 - 2 * RUN_TO_RUN_FRAC**2
        n_clean = max(int(runs[0].n_clean.get(row["running_req"], 0)) for runs in sides)
        if left > 0 and n_clean:
            return f"{max(1, math.ceil(n_clean * (have / left - 1)))} more clean intervals at this level on either side"
    # what one run on either side contributes: se^2 = v (1/n0 + 1/n1)
    of_run = row["se"] ** 2 / sum(1 / n for n in counts)
    n = np.arange(2, MAX_REPEATS + 1)
    enough = n[_quantiles(alpha_row) * np.sqrt(2 * of_run / n) <= t]
    if len(enough):
        text = f"{max(int(enough[0]), min(counts) + 1)} runs on either side"
        if counts != [1, 1] or row["kind"] != "step":
            return text
        own_dominates = of_run > 2 * RUN_TO_RUN_FRAC**2
        return text + ("; more clean intervals alone are not enough, as two runs differ by more" if own_dominates else
                       "; more clean intervals do not help, two runs differ by more")
    return f"more than {MAX_REPEATS} runs on either side: choose a larger threshold"


@lru_cache(maxsize=64)
def _quantiles(alpha_row: float) -> np.ndarray:
    """Return critical value plus power quantile for 2, 3, .. runs on either side."""
    dof = 2.0 * np.arange(2, MAX_REPEATS + 1) - 2
    return np.asarray(student_t.ppf(1 - alpha_row / 2, dof)) + np.asarray(student_t.ppf(POWER, dof))
