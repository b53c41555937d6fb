"""The straight line of step time over running requests, its intervals, and the same line fitted in other ways.

Step time, not throughput, is fitted, and the weights are relative (1/step^2): a level is wrong by a few per cent of its
own step (padding, wave quantisation, routing), whether the step is 50 ms or 2 s. Simulations behind both choices:
physics.md 6.3; the coverage is measured again in tests/test_laws.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

import numpy as np
import pandas as pd
from scipy.optimize import least_squares
from scipy.stats import t as student_t

HUBER_LEVEL_FRAC = 0.03
"""Relative residual beyond which the Huber line stops trusting a level; level noise is 1-4 % (physics.md 6.1)."""

ROUNDING_DRAWS = 20_000
"""Monte-Carlo draws of the rounding envelope: its ends move by less than 0.3 % of their width between seeds."""


@dataclass(frozen=True)
class Line:
    """A weighted least-squares line ``intercept_s + slope_s_per_req * running_req`` with its joint uncertainty.

    ``covariance`` is of (intercept, slope), already scaled by the residual variance; it is NaN without a degree of
    freedom. ``quantile`` is Student's t at the asked confidence, infinite without a degree of freedom.
    """

    intercept_s: float
    slope_s_per_req: float
    covariance: np.ndarray
    dof: int
    quantile: float

    def intercept_interval(self) -> tuple[float, float]:
        """Return the interval of the intercept [s]."""
        return self._interval(self.intercept_s, self.covariance[0, 0])

    def slope_interval(self) -> tuple[float, float]:
        """Return the interval of the slope [s/req]."""
        return self._interval(self.slope_s_per_req, self.covariance[1, 1])

    def _interval(self, value: float, variance: float) -> tuple[float, float]:
        if self.dof < 1:
            return np.nan, np.nan
        half = self.quantile * float(np.sqrt(variance))
        return value - half, value + half


def fit_line(
    running_req: np.ndarray, step_s: np.ndarray, *, relative: bool = True, confidence: float = 0.95
) -> Line:
    """Fit a least-squares line through level values, relative weights by default.

    Parameters
    ----------
    running_req, step_s : array
        One value per level; at least two distinct levels [req], [s].
    relative : bool
        True: weights 1/step^2 (relative errors alike). False: ordinary least squares (absolute errors alike).
    confidence : float in (0, 1)
        Of the intervals.

    Returns
    -------
    Line
        Intervals use t with (levels - 2) degrees of freedom.
    """
    scale = step_s if relative else np.ones_like(step_s)
    design = np.column_stack([np.ones_like(running_req), running_req]) / scale[:, None]
    inverse = np.linalg.inv(design.T @ design)
    theta = np.linalg.lstsq(design, step_s / scale, rcond=None)[0]
    residual = step_s / scale - design @ theta
    dof = len(step_s) - 2
    variance = float(residual @ residual) / dof if dof > 0 else np.nan
    quantile = float(student_t.ppf((1 + confidence) / 2, dof)) if dof > 0 else np.inf
    return Line(float(theta[0]), float(theta[1]), variance * inverse, dof, quantile)


def reciprocal_interval(lo: float, hi: float, numerator: float = 1.0) -> tuple[float, float]:
    """Turn an interval of a slope into one of numerator / slope; NaN unless the slope's interval is above 0."""
    if not lo > 0:
        return np.nan, np.nan
    return numerator / hi, numerator / lo


def half_load_interval(line: Line) -> tuple[float, float]:
    """Return Fieller's interval of intercept / slope [req]; NaN where it is unbounded.

    Fieller (1954): all ratios r for which intercept - r * slope is compatible with 0. It is bounded only if the slope
    differs from 0 at that confidence.
    """
    if line.dof < 1:
        return np.nan, np.nan
    a, b, q2 = line.intercept_s, line.slope_s_per_req, line.quantile**2
    (var_a, cov), (_, var_b) = line.covariance
    square, half, constant = b * b - q2 * var_b, a * b - q2 * cov, a * a - q2 * var_a
    if square <= 0:
        return np.nan, np.nan
    # A bounded Fieller set is never empty: the estimate itself belongs to it, so only rounding can push this below 0.
    root = float(np.sqrt(max(half * half - square * constant, 0.0)))
    return float((half - root) / square), float((half + root) / square)


def crosscheck_lines(
    running_req: np.ndarray, step_s: np.ndarray, intervals: pd.DataFrame | None = None
) -> dict[str, tuple[float, float]]:
    """Fit the same line in other ways, to show how much the answer leans on the method.

    Parameters
    ----------
    running_req, step_s : array
        One value per level [req], [s].
    intervals : DataFrame, schema INTERVALS, optional
        Adds ``naive_ticks``: ordinary least squares through every printed line, rejected ones included.

    Returns
    -------
    dict
        Name -> (intercept_s, slope_s_per_req) for ols, throughput_space, theil_sen, huber_log and, with intervals
        at two or more values of running_req, naive_ticks.
    """
    ordinary = fit_line(running_req, step_s, relative=False)
    start = fit_line(running_req, step_s)
    lines = {
        "ols": (ordinary.intercept_s, ordinary.slope_s_per_req),
        "throughput_space": _throughput_space(running_req, step_s, start),
        "theil_sen": _theil_sen(running_req, step_s),
        "huber_log": _huber_log(running_req, step_s, start),
    }
    if intervals is not None:
        rate = intervals["decode_tok_per_s"].to_numpy(float)
        printed_req = intervals["running_req_printed"].to_numpy(float)
        tokens_per_round = intervals["accept_len"].fillna(1.0).to_numpy(float)
        usable = (rate > 0) & (printed_req > 0)
        if len(np.unique(printed_req[usable])) > 1:
            ticks_s = printed_req[usable] * tokens_per_round[usable] / rate[usable]
            naive = fit_line(printed_req[usable], ticks_s, relative=False)
            lines["naive_ticks"] = (naive.intercept_s, naive.slope_s_per_req)
    return lines


def _minimise(
    residual: Callable[[np.ndarray], np.ndarray],
    start: Line,
    scale_s: float,
    loss: Literal["linear", "huber"] = "linear",
) -> tuple[float, float]:
    """Minimise over (intercept, slope) in units of scale_s, so that the optimiser sees numbers near 1."""
    theta0 = np.array([start.intercept_s, start.slope_s_per_req]) / scale_s

    def scaled(theta: np.ndarray) -> np.ndarray:
        return residual(theta * scale_s)

    solution = least_squares(scaled, theta0, loss=loss, f_scale=HUBER_LEVEL_FRAC, xtol=1e-12, ftol=1e-12, gtol=1e-12)
    a, b = solution.x * scale_s
    return float(a), float(b)


def _throughput_space(running_req: np.ndarray, step_s: np.ndarray, start: Line) -> tuple[float, float]:
    """Least squares on N / (a + b N) against the throughput, unweighted (close to weights 1/N^2)."""
    rate = running_req / step_s

    def residual(theta: np.ndarray) -> np.ndarray:
        return running_req / (theta[0] + theta[1] * running_req) / rate.mean() - rate / rate.mean()

    return _minimise(residual, start, float(np.median(step_s / running_req)))


def _huber_log(running_req: np.ndarray, step_s: np.ndarray, start: Line) -> tuple[float, float]:
    """Huber loss on log step: one level that is off by much cannot drag the line."""
    tiny_s = 1e-6 * float(step_s.min())

    def residual(theta: np.ndarray) -> np.ndarray:
        return np.log(np.maximum(theta[0] + theta[1] * running_req, tiny_s) / step_s)

    return _minimise(residual, start, float(np.median(step_s / running_req)), loss="huber")


def _theil_sen(running_req: np.ndarray, step_s: np.ndarray) -> tuple[float, float]:
    """Median of the slopes between all pairs of levels (Sen 1968, doi:10.1080/01621459.1968.10480934)."""
    pairs = list(combinations(range(len(step_s)), 2))
    slope = float(np.median([(step_s[j] - step_s[i]) / (running_req[j] - running_req[i]) for i, j in pairs]))
    return float(np.median(step_s - slope * running_req)), slope


def rounding_envelope(
    levels: pd.DataFrame, *, relative: bool = True, confidence: float = 0.95, draws: int = ROUNDING_DRAWS, seed: int = 0
) -> Mapping[str, tuple[float, float]]:
    """Tell how far the line could move through the rounding of a hand-typed table alone.

    Parameters
    ----------
    levels : DataFrame, schema LEVELS
        Rows of method ``table``, whose ``step_s_lo`` and ``step_s_hi`` are half a unit of the last printed digit away.
    relative : bool
        True: the relative-weighted line. False: ordinary least squares.
    confidence : float in (0, 1)
        Central share of the draws that the envelope holds.
    draws, seed : int
        Of the Monte-Carlo; the result is a function of its arguments.

    Returns
    -------
    mapping
        ``intercept_s`` and ``slope_s_per_req`` -> (lo, hi). This is no confidence interval: it knows nothing of
        measurement noise.

    Notes
    -----
    What was printed is a rate, so the rate, not the step, is uniform within its last digit.
    """
    running_req = levels["running_req"].to_numpy(float)
    slowest, fastest = 1 / levels["step_s_hi"].to_numpy(float), 1 / levels["step_s_lo"].to_numpy(float)
    step_s = 1 / np.random.default_rng(seed).uniform(slowest, fastest, size=(draws, len(running_req)))
    weight = 1 / step_s**2 if relative else np.ones_like(step_s)
    total = weight.sum(axis=1)
    mean_req = (weight @ running_req) / total
    mean_s = (weight * step_s).sum(axis=1) / total
    off_req = running_req - mean_req[:, None]
    slope = (weight * off_req * (step_s - mean_s[:, None])).sum(axis=1) / (weight * off_req**2).sum(axis=1)
    tails = [(1 - confidence) / 2, (1 + confidence) / 2]

    def ends(values: np.ndarray) -> tuple[float, float]:
        lo, hi = np.quantile(values, tails)
        return float(lo), float(hi)

    return {"intercept_s": ends(mean_s - slope * mean_req), "slope_s_per_req": ends(slope)}
