"""How much more must be measured until a change of the threshold's size is told from none."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence

import numpy as np
from scipy.special import chdtri, ndtri, stdtrit

from helpers.compare.scatter import POOLED_DOF, RUN_TO_RUN_FRAC, STATED_DOF, stated_common_dof
from helpers.compare.sides import Run, values
from helpers.compare.words import percent

POWER = 0.9
"""Probability with which a true change of the printed minimum is called worse or better. Not the usual 0.8: a change
above the printed minimum shall be found in nine of ten comparisons."""

SURE = 0.95
"""Probability with which the true standard error is below the one that the printed minimum allows for. An estimated one
that happens to be small would otherwise print a minimum that is not kept."""

MAX_REPEATS = 200
"""Beyond this many runs a side the answer is that repeats will not do."""


def critical(alpha: float, dof: np.ndarray | float) -> np.ndarray:
    """Return the two-sided critical value of t."""
    return np.asarray(stdtrit(dof, 1 - alpha / 2))


def margin(power: float, dof: np.ndarray | float) -> np.ndarray:
    """Return how many standard errors above a critical value an effect is called with a probability of ``power``."""
    dof = np.asarray(dof, float)
    finite = np.where(np.isfinite(dof), dof, 1.0)
    grow = np.where(np.isfinite(dof), np.sqrt(finite / chdtri(finite, SURE)), 1.0)
    return np.asarray(ndtri(power) * grow)


def runs_needed(
    se: float, dof: float, common_frac: float, sides: tuple[Sequence[Run], Sequence[Run]], alpha_row: float,
    threshold: float,
) -> float:  # fmt: skip
    """Return the runs on either side that tell a change of the threshold from none, at `POWER`.

    Parameters
    ----------
    se, dof, common_frac : float
        Of the row's estimate.
    sides : pair of sequences of Run
        Base and new.
    alpha_row : float
        Two-sided error of one row.
    threshold : float
        log(1 + threshold_frac).

    Returns
    -------
    float
        NaN where what was measured is enough, infinite beyond `MAX_REPEATS`. The same number shows "same" where nothing
        changed: that needs a narrower interval, but no correction for the number of rows.
    """
    if (critical(alpha_row, dof) + margin(POWER, dof)) * se <= threshold:
        return math.nan
    counts = [max(1, len(runs)) for runs in sides]
    # what one run on either side contributes: se^2 = v (1/n0 + 1/n1)
    of_run = se**2 / sum(1 / n for n in counts)
    n_levels = len(set.intersection(*(set(run.step_s) for runs in sides for run in runs)))

    def is_enough(n: int) -> bool:
        dof = _expected_dof(n, n_levels, common_frac)
        return float(critical(alpha_row, dof) + margin(POWER, dof)) * math.sqrt(2 * of_run / n) <= threshold

    enough = bisect_left(range(2, MAX_REPEATS + 1), True, key=is_enough) + 2
    return float(max(enough, min(counts) + 1)) if enough <= MAX_REPEATS else math.inf


def _expected_dof(n: int, n_levels: int, common_frac: float) -> float:
    """Return the degrees of freedom to expect of n runs on either side (the sum in `Pair.contrast`)."""
    dof, direct = n - 1.0, (n - 1) / (n - 1 + POOLED_DOF)
    within = ((1 - direct) * (1 - common_frac)) ** 2 / (STATED_DOF + dof * max(n_levels - 1, 0))
    common = ((1 - direct) * common_frac) ** 2 / (stated_common_dof(n_levels) + dof)
    # two sides alike have twice the degrees of freedom of one
    return 2 / (within + common + direct**2 / dof)


def needed(
    kind: str, running_req: float, se: float, runs: float, sides: tuple[Sequence[Run], Sequence[Run]],
    alpha_row: float, threshold: float,
) -> str:  # fmt: skip
    """Say how many clean intervals or runs tell a change of the threshold from none.

    Parameters
    ----------
    kind, running_req, se
        Of the row.
    runs : float
        From `runs_needed`; the other parameters as there.

    Returns
    -------
    str
        "" where what was measured is enough.

    Notes
    -----
    Intervals shorten only a level's own standard error (as one over the square root of their number); the scatter
    between runs stays, so where it alone is too much, only repeats help.
    """
    if math.isnan(runs):
        return ""
    is_single = all(len(side) == 1 for side in sides)
    if is_single and kind == "step":
        own = [float(np.nan_to_num(values(side, "own_frac", [running_req]))[0, 0]) for side in sides]
        have = own[0] ** 2 + own[1] ** 2
        left = (threshold / float(ndtri(1 - alpha_row / 2) + ndtri(POWER))) ** 2 - 2 * RUN_TO_RUN_FRAC**2
        n_clean = max(int(side[0].n_clean.get(running_req, 0)) for side in sides)
        if left > 0 and n_clean:
            return f"{max(1, math.ceil(n_clean * (have / left - 1)))} more clean intervals at this level on either side"
    if math.isinf(runs):
        return f"more than {MAX_REPEATS} runs on either side: choose a larger threshold"
    text = f"{runs:.0f} runs on either side"
    if not is_single:
        return text
    text += (f": single runs differ by {percent(RUN_TO_RUN_FRAC)} and can show neither a change of "
             f"{percent(math.expm1(threshold))} nor that there is none")
    if kind != "step":
        return text
    return text + ("; more clean intervals alone are not enough" if se**2 > 4 * RUN_TO_RUN_FRAC**2 else
                   "; more clean intervals do not help")
