"""How much the runs of one server scatter: learned from repeats, with the stated 2 % as what is known beforehand.

A run differs from another at each level on its own (kernel choice, routing, placement) and as a whole (clocks, another
machine). Both are variances of the log of what was measured; a linear combination of levels with weights w that sum to
k has the variance ``within (w.w - k^2 / L) + k^2 common`` in one run of L levels.

With a few runs a side, each level's own variance has one or two degrees of freedom and is worth nearly nothing, so it
is moderated (Smyth 2004, doi:10.2202/1544-6115.1027): all levels of the side are pooled, and what was stated counts as
so many degrees of freedom. The combination's own scores over the runs come in as they grow in number, because levels
may scatter unlike. Sides are kept apart: one may be noisier than the other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

RUN_TO_RUN_FRAC = 0.02
"""Scatter of one level between two runs of the same server [1], as known before any repeat. Levels of one run scatter
by 1 to 4 % about their law, which their own intervals do not show (physics.md 6.1); a single run cannot tell its own
value, so there it is stated, the same for every comparison."""

STATED_DOF = 2.0
"""Degrees of freedom that `RUN_TO_RUN_FRAC` counts as beside the repeats of a side. With fewer, two runs a side at two
or three levels saw no smaller change than single runs, for which 2 % is taken as certain; with more, a true scatter of
4 % is hidden: of 6,000 pairs of two runs a side without change 4.8 % were called moved with 2, 7.5 % with 4."""

COMMON_DOF = 0.5
"""Degrees of freedom of "a run as a whole scatters no more than its levels do" beside the repeats of a side. Fewer than
`STATED_DOF`, because nothing published supports it, and runs on another machine or clock contradict it."""

POOLED_DOF = 4.0
"""Degrees of freedom that the pooled variance counts as beside that of a combination's own scores: at five runs a side
both weigh alike. With 8, three runs a side of which one level scatters three times as much as the others called 6 % of
8,000 pairs without change moved, with 4 they called 3.8 %."""


@dataclass(frozen=True)
class Scatter:
    """Variances between the runs of one side, of log values.

    Attributes
    ----------
    within, within_dof : float
        Variance of a level about its run [1], own errors of the levels included, and its degrees of freedom.
    common, common_dof : float
        Variance of a run's mean over the levels.
    n_levels : float
        L, levels behind both; infinite where the scatter is stated, so that levels scatter on their own.
    own_variance : float
        Mean squared standard error of these levels by their own intervals, a part of ``within``.
    """

    within: float
    within_dof: float
    common: float
    common_dof: float
    n_levels: float
    own_variance: float

    def parts(self, weights: np.ndarray, own_variance: float) -> tuple[float, float]:
        """Return what ``within`` and ``common`` give to the variance of one run's ``sum(weights * log value)``.

        ``own_variance`` is that of the sum by the levels' own intervals. It replaces the mean one, as a level with few
        intervals is known to be worse than another, and the parts never sum to less.
        """
        sum_squared = float(weights.sum()) ** 2
        excess = max(self.within - self.own_variance, 0.0)
        within = excess * float(weights @ weights) + own_variance - self.within * sum_squared / self.n_levels
        within, common = max(within, 0.0), self.common * sum_squared
        grow = max(1.0, own_variance / (within + common))
        return within * grow, common * grow


STATED = Scatter(RUN_TO_RUN_FRAC**2, math.inf, 0.0, math.inf, math.inf, 0.0)
"""Of single runs: `RUN_TO_RUN_FRAC` per level, taken as certain."""


def scatter_of(logs: np.ndarray, own_variance: np.ndarray) -> Scatter | None:
    """Pool the scatter between the runs of one side over its levels.

    Parameters
    ----------
    logs, own_variance : ndarray, shape (runs, levels)
        Log values, NaN where a run lacks a level, and squared standard errors. Levels that not all runs have are left
        out.

    Returns
    -------
    Scatter or None
        None without repeats, or if no level is in all runs.
    """
    known = np.isfinite(logs).all(axis=0)
    n_levels, dof = int(known.sum()), len(logs) - 1
    if dof < 1 or not n_levels:
        return None
    own = float(own_variance[:, known].mean())
    off = logs[:, known] - logs[:, known].mean(axis=0)
    shift = off.mean(axis=1)
    within_dof = STATED_DOF + dof * (n_levels - 1)
    within = (STATED_DOF * (RUN_TO_RUN_FRAC**2 + own) + float(((off - shift[:, None]) ** 2).sum())) / within_dof
    stated_dof = stated_common_dof(n_levels)
    common_dof = stated_dof + dof
    common = (stated_dof * within / n_levels + float(shift @ shift)) / common_dof
    return Scatter(within, within_dof, common, common_dof, n_levels, own)


def stated_common_dof(n_levels: int) -> float:
    """Return the degrees of freedom stated for the common variance; with one level all that is stated is about it."""
    return COMMON_DOF + (STATED_DOF if n_levels == 1 else 0.0)


def joined(parts: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return the sum of (variance, dof) and its degrees of freedom, after Satterthwaite (doi:10.2307/3002019).

    Exactly rounded sums, so that the order of the sides makes no difference.
    """
    variance, spread = math.fsum(v for v, _ in parts), math.fsum(v * v / dof for v, dof in parts)
    return variance, variance**2 / spread if spread > 0 else math.inf
