"""How a move of the law's two parameters shows at each level: shares of the fixed and the per-request cost.

With step = a + b N, small or equal moves of log a and log b move log step by ``s da + (1 - s) db``, where s is the
share of a in the step. Regression of the log ratios on these shares leaves out whatever both sides have in common: the
bend of a law that is no straight line among it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from helpers.compare.scatter import RUN_TO_RUN_FRAC
from helpers.compare.sides import Run, common_levels, values

MIN_LEVELS = 3
"""Two parameters need three levels: with two nothing is left to contradict them."""


@dataclass(frozen=True)
class Shares:
    """The levels all runs have, with the design of the regression.

    Attributes
    ----------
    levels : tuple of float
        [req].
    design : ndarray, shape (levels, 2)
        Share of the fixed and of the per-request cost in the step, mean of both sides [1].
    variance : ndarray, shape (levels,)
        Stated variance of a log ratio; only its relative size matters, as weights.
    lines : pair of (intercept_s, slope_s_per_req)
        Of base and new: relative-weighted straight lines through these levels [s], [s/req].
    """

    levels: tuple[float, ...]
    design: np.ndarray
    variance: np.ndarray
    lines: tuple[tuple[float, float], tuple[float, float]]

    def weights(self, beside: int | None = None) -> np.ndarray:
        """Return the weights over levels that give the parameters by weighted least squares, shape (2 or 3, levels).

        With ``beside`` that level gets a move of its own, the third row: the first two are then those of the other
        levels alone.
        """
        design = self.design if beside is None else np.column_stack([self.design, np.eye(len(self.levels))[beside]])
        scaled = design / self.variance[:, None]
        return np.linalg.solve(design.T @ scaled, scaled.T)


def shares_of(base: Sequence[Run], new: Sequence[Run]) -> Shares | str:
    """Return the shares, or in words why the levels do not tell the two parameters apart."""
    at = common_levels(base, new, in_all=True)
    if len(at) < MIN_LEVELS:
        return f"{len(at)} levels in all runs: the parameters need {MIN_LEVELS}"
    both, lines = [], []
    for runs in (base, new):
        step_s = np.exp(np.log(values(runs, "step_s", at)).mean(axis=0))
        rows = np.column_stack([np.ones(len(at)), at]) / step_s[:, None]
        a, b = np.linalg.lstsq(rows, np.ones(len(at)), rcond=None)[0]
        if not (a > 0 and b > 0):
            return "a straight line through the levels has no positive fixed cost and slope"
        both.append(a / (a + b * np.array(at)))
        lines.append((float(a), float(b)))
    share = (both[0] + both[1]) / 2
    own = [np.nan_to_num(values(runs, "own_frac", at) ** 2).mean(axis=0) for runs in (base, new)]
    variance = 2 * RUN_TO_RUN_FRAC**2 + (own[0] + own[1])
    return Shares(tuple(at), np.column_stack([share, 1 - share]), variance, (lines[0], lines[1]))
