"""The interval of any linear combination of levels between two sides."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from helpers.compare.scatter import POOLED_DOF, STATED, Scatter, joined, scatter_of
from helpers.compare.sides import Run, common_levels, values

OWN = {"step_s": "own_frac", "accept_len": "accept_own_frac"}
"""Quantity -> standard error of its log by the level's own interval."""


@dataclass(frozen=True)
class Estimate:
    """A log ratio new / base with its standard error; dof is infinite where the scatter is stated, not estimated.

    ``common_frac`` is the share in the variance of what a run has in common at all levels [1].
    """

    log_ratio: float
    se: float
    dof: float
    common_frac: float


@dataclass(frozen=True)
class Pair:
    """One quantity of both sides.

    Attributes
    ----------
    levels : tuple of float
        That some run of either side has [req].
    sides : pair of (log values, own variances), each of shape (runs, levels)
        Base and new; NaN where a run lacks a level.
    scatters : pair of Scatter or None
        Between the runs of each side; None where it has no repeats.
    """

    levels: tuple[float, ...]
    sides: tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]
    scatters: tuple[Scatter | None, Scatter | None]

    def contrast(self, at: Sequence[float], weights: np.ndarray) -> Estimate:
        """Estimate ``sum(weights * log(new / base))`` over levels.

        A side without repeats takes `RUN_TO_RUN_FRAC` per level, or what the other side's repeats show where that is
        more. The sides join as Welch has it (doi:10.1093/biomet/34.1-2.28); exchanged, they give the same with the
        other sign, to the last bit.

        Parameters
        ----------
        at : sequence of float, weights : array
            Levels [req] and their weights, one each. Only runs that have all the levels are used; at least one a side
            must.
        """
        columns = [self.levels.index(level) for level in at]
        means: list[float] = []
        of_side: list[list[tuple[float, float]]] = []
        for (logs, own), scatter, other in zip(self.sides, self.scatters, reversed(self.scatters), strict=True):
            whole = ~np.isnan(logs[:, columns]).any(axis=1)
            scores = logs[np.ix_(whole, columns)] @ weights
            own_variance = float(np.mean(own[np.ix_(whole, columns)] @ weights**2))
            known = scatter or max((STATED, other or STATED), key=lambda s: sum(s.parts(weights, own_variance)))
            of_side.append(_variance(scores, own_variance, known, weights))
            means.append(float(scores.mean()))
        variance, dof = joined([part for side in of_side for part in side])
        return Estimate(means[1] - means[0], math.sqrt(variance), dof, self._common_frac(weights, of_side))

    def _common_frac(self, weights: np.ndarray, of_side: Sequence[Sequence[tuple[float, float]]]) -> float:
        if any(self.scatters):
            common = of_side[0][1][0] + of_side[1][1][0]
            return common / (common + (of_side[0][0][0] + of_side[1][0][0]))
        # of single runs what repeats will show if levels scatter on their own
        return min(1.0, float(weights.sum()) ** 2 / len(self.levels) / float(weights @ weights))


def _variance(
    scores: np.ndarray, own_variance: float, scatter: Scatter, weights: np.ndarray
) -> list[tuple[float, float]]:
    """Return the (variance, dof) of one side's mean score: by the levels, by the runs as a whole, by the scores."""
    n = len(scores)
    direct_frac = (n - 1) / (n - 1 + POOLED_DOF)
    within, common = ((1 - direct_frac) * part / n for part in scatter.parts(weights, own_variance))
    direct = direct_frac * max(float(scores.var(ddof=1)), own_variance) / n if n > 1 else 0.0
    return [(within, scatter.within_dof), (common, scatter.common_dof), (direct, max(n - 1.0, 1.0))]


def pair_of(base: Sequence[Run], new: Sequence[Run], name: str) -> Pair:
    """Return one quantity (step_s or accept_len) of two sides."""
    levels = common_levels(base, new, name)
    found = [(np.log(values(runs, name, levels)), np.nan_to_num(values(runs, OWN[name], levels)) ** 2)
             for runs in (base, new)]
    return Pair(tuple(levels), (found[0], found[1]), (scatter_of(*found[0]), scatter_of(*found[1])))
