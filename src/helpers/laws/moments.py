"""The straight line from a server's own least-squares sums (SGLang ``decode_moments``).

The sums n, B, T, B^2, B T over all decode steps between two snapshots are all that ordinary least squares of
T = a + b B needs, so the line is exact: every step counts, none is sampled. The sum of T^2 is not kept, so there is no
residual and no interval. It is shown beside the fitted law, as a cross-check that rests on other data than the lines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from helpers.schema import MOMENTS, Fits, LawFit, Parameter, check

SUMS = ("n", "sum_b", "sum_t_s", "sum_bb", "sum_bt_s", "sum_g")

MIN_STEPS = 1000
"""Decode steps below which the line is refused: with no residual to judge by, noise of steps must be small."""

MIN_SPREAD_FRAC = 0.1
"""Least standard deviation of B over its mean at which a slope can be told from sums of so many steps [1]."""

NO_INTERVAL = "no interval can be given: the sums hold no sum of squared step times"


@dataclass(frozen=True)
class Difference:
    """Sums over the steps between the first and the last snapshot of ranks of one server life, and their spread."""

    sums: dict[str, float]
    smallest_req: float
    largest_req: float

    @property
    def spread_req(self) -> float:
        """Standard deviation of running requests over the steps [req]."""
        return float(np.sqrt(max(self.sums["sum_bb"] / self.sums["n"] - self.mean_req**2, 0.0)))

    @property
    def mean_req(self) -> float:
        """Mean running requests over the steps [req]."""
        return self.sums["sum_b"] / self.sums["n"]


def fit_moments(
    moments: pd.DataFrame, *, server_lives: Sequence[int] | None = None, rank: str | None = None
) -> LawFit:
    """Solve the line from differences of snapshots, pooled over ranks or for one of them.

    Parameters
    ----------
    moments : DataFrame, schema MOMENTS
        Cumulative sums; the last snapshot of each rank and life minus its first is used.
    server_lives : sequence of int, optional
        Lives to use; all without it.
    rank : str, optional
        Only this rank (`moment_ranks` lists them); pooled over all without it.

    Returns
    -------
    LawFit
        law ``linear`` with ``intercept_s`` and ``slope_s_per_req``, lo and hi missing, n_levels 0 (no levels are
        used); or ``refused``: too few steps, a batch that hardly varied, or sums that went back.
    """
    check(moments, MOMENTS)
    rows = moments if server_lives is None else moments[moments["server_life"].isin(server_lives)]
    if rank is not None:
        rows = rows[rows["rank"].fillna("").eq(rank)]
    difference, refused = _difference(rows)
    if difference is None:
        return LawFit("linear", refused=f"moments: {refused}")
    common: dict[str, Any] = {"running_req_min": difference.smallest_req, "running_req_max": difference.largest_req}
    steps = difference.sums["n"]
    if steps < MIN_STEPS:
        return LawFit("linear", refused=f"moments: expected {MIN_STEPS} decode steps or more between the first and the "
                      f"last snapshot, found {steps:.0f}; take them further apart", **common)
    if difference.spread_req < MIN_SPREAD_FRAC * difference.mean_req:
        return LawFit("linear", refused=f"moments: running requests hardly varied ({difference.mean_req:.3g} +- "
                      f"{difference.spread_req:.2g}), no slope can be told; sweep the concurrency", **common)
    intercept_s, slope_s = _solve(difference.sums)
    warnings = [NO_INTERVAL]
    if slope_s <= 0:
        warnings.append("the step does not grow with running requests: no asymptote")
    if rank is None and rows["rank"].fillna("").nunique() > 1:
        warnings.append("pooled over ranks, each with its own count: under DP attention the largest count sets "
                        "the step of all, so the slope is a lower bound")
    asymptote, half_req = (1 / slope_s, intercept_s / slope_s) if slope_s > 0 else (np.nan, np.nan)
    parameters = (Parameter("intercept_s", intercept_s, np.nan, np.nan, "s"),
                  Parameter("slope_s_per_req", slope_s, np.nan, np.nan, "s/req"))
    return LawFit("linear", parameters, asymptote_tok_per_s=asymptote, half_load_req=half_req,
                  warnings=tuple(warnings), **common)


def moment_ranks(moments: pd.DataFrame) -> list[str]:
    """Return the ranks that have sums, "" where the server names none."""
    return sorted(moments["rank"].fillna("").unique())


def crosscheck_moments(fits: Fits, moments: pd.DataFrame) -> dict[str, tuple[float, float]]:
    """Return the fitted lines' cross-checks with the one from the sums added, where it can be told.

    Parameters
    ----------
    fits : Fits
        Whose ``crosschecks`` are extended.
    moments : DataFrame, schema MOMENTS
        Empty without snapshots.

    Returns
    -------
    dict
        Name -> (intercept_s, slope_s_per_req); ``decode_moments`` is the new one.
    """
    found = dict(fits.crosschecks)
    exact = fit_moments(moments) if len(moments) else None
    if exact is not None and exact.refused is None:
        found["decode_moments"] = (exact["intercept_s"].value, exact["slope_s_per_req"].value)
    return found


def _difference(rows: pd.DataFrame) -> tuple[Difference | None, str]:
    """Add up last minus first over ranks and lives; None and the reason where nothing can be said."""
    columns = list(SUMS)
    own = rows.groupby(["server_life", rows["rank"].fillna("")], sort=False)
    steps = own[columns].diff()
    if not steps["n"].gt(0).any():
        return None, "expected two snapshots of a rank with decode steps between them, found none"
    # Sums that fall are another server life; pairs around the fall would mix the two.
    fell = steps.lt(0).any(axis="columns")
    used = steps[steps["n"].gt(0) & ~fell]
    if used.empty:
        return None, "every snapshot holds smaller sums than the one before it: the snapshots are out of order"
    mean_req = used["sum_b"] / used["n"]
    sums = {name: float(used[name].sum()) for name in columns}
    return Difference(sums, float(mean_req.min()), float(mean_req.max())), ""


def _solve(sums: dict[str, float]) -> tuple[float, float]:
    """Return intercept [s] and slope [s/req] of ordinary least squares, about the mean so that no digit is lost."""
    mean_b, mean_t_s = sums["sum_b"] / sums["n"], sums["sum_t_s"] / sums["n"]
    slope_s = (sums["sum_bt_s"] - mean_b * sums["sum_t_s"]) / (sums["sum_bb"] - mean_b * sums["sum_b"])
    return mean_t_s - slope_s * mean_b, slope_s
