"""Lines with a second cause of time: prompt tokens computed in between, or the context that requests hold.

Both fits split the question. How much a prompt token or a held token costs is read *within* levels, where running_req
stands still and the covariate moves; the line itself is read *between* levels from the adjusted level means, with
Student's t for the number of levels. So thousands of ticks of one level cannot pretend to be thousands of levels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import t as student_t

from helpers.laws import gates
from helpers.laws.candidates import known_laws
from helpers.laws.line import reciprocal_interval
from helpers.laws.selection import Trial
from helpers.schema import INTERVALS, LawFit, Parameter, check, is_window

LEVEL_RATIO = 1.1
"""Values of running_req within this ratio are one level when ticks are grouped; the line still uses their mean."""

BLOCK_TICKS = 8
"""Consecutive ticks that count as one observation of the covariate's cost: noise is autocorrelated (0.5-0.8 from tick
to tick, physics.md 6.1), 0.8^8 = 0.17."""

MAX_MOVE_FRAC = 0.05
"""Change of running_req within an interval above which its mean is not known well enough (physics.md 6.1)."""

HUBER_ROUNDS = 50
HUBER_SETTLED = 1e-5
"""Rounds of reweighting at most, and the change of weights at which they stop."""

LEVEL_DEVIATION_FRAC = 0.025
"""A level's own deviation (1-4 %, physics.md 6.1) scales the cost seen in it and shows in no tick of that level."""

SAME_REQ = 1e-6
"""Means of running_req closer than this are one number [req]."""

MIN_COST_DOF = 2.0
"""Least effective number of independent blocks, minus one, that may tell a covariate's cost."""

HUBER_SIGMAS = 1.345
"""Residuals beyond this many robust standard deviations lose weight (95 % efficient on Gaussian noise)."""

WARN_PREFILL_FRAC = 0.20
REFUSE_PREFILL_FRAC = 0.50
"""Share of time spent in prefill above which the fallback warns, and refuses (physics.md 6.2)."""

BIAS_PER_PREFILL_FRAC = 0.2
"""Relative bias of the slope per share of prefill time: +11 % at 55 %, +0.3 % at 8 % in the simulations of physics.md
6.2. Intervals of the fallback are widened by it."""

MIN_CONTEXT_VARIATION = 0.05
"""Least robust spread of context within a level, relative to its mean, that can tell its cost."""

MAX_COLLINEARITY = 0.9
"""Share of the variation of held tokens between levels that running_req may explain (variance inflation 10)."""


@dataclass(frozen=True)
class _CovariateLine:
    """intercept, slope and cost per unit of the covariate, with intervals; the levels' adjusted means."""

    theta: np.ndarray
    half: np.ndarray
    dof: int
    level_req: np.ndarray
    level_s: np.ndarray
    prediction_rms_frac: float


NOT_READ = ("file", "line_no", "ts", "why", "queue_req", "used_tok")
"""Columns of INTERVALS that no fit here reads: every cut would copy them."""


def fit_with_prefill(intervals: pd.DataFrame, *, confidence: float = 0.95) -> LawFit:
    """Fit the line from intervals that hold prefill: step = a + b N + c x (prompt tokens per step).

    The fallback where levels have fewer than three clean intervals, as in most closed-loop vLLM logs.

    Parameters
    ----------
    intervals : DataFrame, schema INTERVALS
        In time order. Rows labelled steady or mixed are used if running_req stood still, clean or not. Where
        ``n_steps`` is missing, steps are generated tokens over running_req and accept_len.
    confidence : float in (0, 1)
        Of the intervals.

    Returns
    -------
    LawFit
        ``intercept_s``, ``slope_s_per_req``, ``prefill_s_per_tok``. Warned of above 20 % and refused above 50 % of the
        time in prefill.

    Notes
    -----
    Huber weights on relative residuals, block-robust variance of c within levels, random level effects and t with
    (levels - 2) degrees of freedom for a and b; their intervals are widened by the bias per prefill share that
    physics.md 6.2 measured.
    """
    check(intervals, INTERVALS)
    before = intervals.groupby(["server_life", intervals["rank"].fillna("")])["running_req_printed"].shift()
    moved_frac = (intervals["running_req_printed"] / before.fillna(intervals["running_req_printed"]) - 1).abs()
    intervals = intervals[[name for name in intervals if name not in NOT_READ]]
    rows = intervals[intervals["label"].isin(("steady", "mixed")) & (moved_frac <= MAX_MOVE_FRAC)]
    rows = rows[(rows["decode_tok_per_s"] > 0) & (rows["running_req"] > 0) & (rows["step_s"] > 0)]
    rows = rows[rows["idle_s"] == 0]
    accept = rows["accept_len"].fillna(1.0)
    steps = rows["n_steps"].fillna(rows["decode_tok_per_s"] * rows["interval_s"] / (rows["running_req"] * accept))
    rows, steps = rows[steps > 0], steps[steps > 0]
    rows = rows.assign(per_step=rows["prefill_tok"] / steps, steps=steps, accept_len=accept)
    rows = rows.sort_values(["server_life", "rank_group", "t_s"])
    running_req, step_s, per_step = (rows[name].to_numpy(float) for name in ("running_req", "step_s", "per_step"))
    group = _level_ids(running_req)
    common: dict[str, Any] = {
        "n_levels": len(np.unique(group)), "confidence": confidence,
        "running_req_min": float(running_req.min()) if len(rows) else np.nan,
        "running_req_max": float(running_req.max()) if len(rows) else np.nan,
    }
    if common["n_levels"] < gates.MIN_LEVELS or common["running_req_max"] / common["running_req_min"] < gates.MIN_RANGE:
        return LawFit("linear", refused=(
            f"with prefill: expected {gates.MIN_LEVELS} or more levels over a ratio of {gates.MIN_RANGE:g}, found "
            f"{common['n_levels']} in {len(rows)} usable intervals: {gates.ADVICE}"
        ), **common)
    if not (per_step > 0).any():
        reason = "with prefill: no usable interval holds prompt tokens; fit the levels instead"
        return LawFit("linear", refused=reason, **common)
    # A window of fixed time holds fewer steps when they are slow, so prompt tokens per step are high because the step
    # is; prompt tokens per second are not, and stand in as the instrument.
    windowed = np.full(len(rows), is_window(rows))
    per_second = rows["prefill_tok"].to_numpy(float) / np.where(windowed, rows["interval_s"], 1.0)
    fit = _between_within(running_req, step_s, per_step, group, confidence, np.where(windowed, per_second, np.nan))
    if fit is None:
        return LawFit("linear", refused=(
            "with prefill: prompt tokens per step hardly vary within levels, their cost cannot be told: "
            "repeat the sweep with outputs of 512 tokens or more"
        ), **common)
    (a, b, c), half = fit.theta, fit.half.copy()
    seconds = step_s * rows["steps"].to_numpy(float)
    share = max(c, 0.0) * float(rows["prefill_tok"].sum()) / float(seconds.sum())
    common["dof"] = fit.dof
    if share > REFUSE_PREFILL_FRAC:
        return LawFit("linear", refused=(
            f"prefill takes {100 * share:.0f} % of the time, more than {100 * REFUSE_PREFILL_FRAC:.0f} %: "
            "decode cannot be told from it; longer outputs or fewer new prompts"
        ), **common)
    warnings = [
        f"not from clean intervals: fitted through prefill ({100 * share:.1f} % of the time) with a cost per token"
    ]
    if share > WARN_PREFILL_FRAC:
        limit = f"{100 * WARN_PREFILL_FRAC:.0f} %"
        warnings.append(f"prefill takes more than {limit} of the time: expect a bias of the slope")
    if c <= 0:
        warnings.append("the cost per prompt token came out negative: prompts may be credited to other intervals")
    half[:2] += BIAS_PER_PREFILL_FRAC * share * np.abs(fit.theta[:2])
    if fit.dof == 1:
        warnings.append("1 degree of freedom: intervals are wide; one more level would halve them")
    per_req = (rows["running_req_total"] / rows["running_req"]).fillna(1.0)
    tokens = float(rows["accept_len"].mean()) * float(per_req.mean())
    lo, hi = reciprocal_interval(b - half[1], b + half[1], tokens)
    inner, top = Trial(known_laws()["linear"], fit.level_req, fit.level_s).left_out_errors_frac
    names = (("intercept_s", "s"), ("slope_s_per_req", "s/req"), ("prefill_s_per_tok", "s/tok"))
    return LawFit(
        "linear", _parameters(names, fit.theta, half),
        loo_error_frac=inner, loo_error_top_frac=top, rms_error_frac=fit.prediction_rms_frac,
        asymptote_tok_per_s=tokens / b if np.isfinite(lo) else np.nan,
        asymptote_tok_per_s_lo=lo, asymptote_tok_per_s_hi=hi,
        half_load_req=a / b if np.isfinite(lo) else np.nan,
        warnings=tuple(warnings), predict_step_s=lambda n: a + b * np.asarray(n, float), **common,
    )


def fit_with_context(
    levels: pd.DataFrame, intervals: pd.DataFrame | None = None, *, confidence: float = 0.95
) -> LawFit:
    """Fit step = a + b N + c N context where context moves independently of running_req, or say why it cannot.

    Parameters
    ----------
    levels : DataFrame, schema LEVELS
        Fitted rows; used when context varies between rows but not within levels.
    intervals : DataFrame, schema INTERVALS, optional
        Clean rows tell the cost of context within levels, the better source.
    confidence : float in (0, 1)
        Of the intervals.

    Returns
    -------
    LawFit
        Law ``context``: ``intercept_s``, ``slope_s_per_req`` (at context 0), ``context_s_per_tok`` (per held token).
    """
    names = (("intercept_s", "s"), ("slope_s_per_req", "s/req"), ("context_s_per_tok", "s/tok"))
    common: dict[str, Any] = {
        "confidence": confidence, "n_levels": levels["running_req"].nunique(),
        "running_req_min": float(levels["running_req"].min()), "running_req_max": float(levels["running_req"].max()),
    }
    fit, why = _context_within(intervals, confidence) if intervals is not None else (None, "no intervals given")
    if fit is None:
        fit, why_not = _context_between(levels, confidence)
        if fit is None:
            reason = f"context cannot be separated from running_req: {why}; {why_not}"
            return LawFit("context", refused=reason, **common)
    c, half_c = fit.theta[2], fit.half[2]
    if c + half_c < 0:
        return LawFit("context", refused=(
            f"steps get shorter with context ({1e9 * c:.3g} ns per held token): something else changed with time"
        ), **common)
    warnings = () if abs(c) > half_c else ("the cost of context is compatible with 0 at the contexts seen",)
    return LawFit(
        "context", _parameters(names, fit.theta, fit.half), dof=fit.dof, rms_error_frac=fit.prediction_rms_frac,
        warnings=warnings, **common,
    )


def _parameters(names: tuple[tuple[str, str], ...], theta: np.ndarray, half: np.ndarray) -> tuple[Parameter, ...]:
    return tuple(
        Parameter(name, float(value), float(value - h), float(value + h), unit)
        for (name, unit), value, h in zip(names, theta, half, strict=True)
    )


def _level_ids(running_req: np.ndarray) -> np.ndarray:
    """Return the level of each tick, numbered from 0: values of running_req within LEVEL_RATIO of each other."""
    return np.unique(np.round(np.log(running_req) / np.log(LEVEL_RATIO)), return_inverse=True)[1]


def _context_within(intervals: pd.DataFrame, confidence: float) -> tuple[_CovariateLine | None, str]:
    check(intervals, INTERVALS)
    is_usable = intervals["clean"] & (intervals["context_tok"] > 0) & (intervals["step_s"] > 0)
    read = ["server_life", "rank_group", "t_s", "running_req", "step_s", "context_tok"]
    clean = intervals.loc[is_usable, read].sort_values(read[:3])
    if clean.empty:
        return None, "the log does not tell the context"
    running_req, step_s, context = (clean[name].to_numpy(float) for name in ("running_req", "step_s", "context_tok"))
    group = _level_ids(running_req)
    if group.max() + 1 < gates.MIN_LEVELS:
        return None, f"fewer than {gates.MIN_LEVELS} levels with context"
    by_level = clean["context_tok"].groupby(group)
    moving = int((by_level.quantile(0.9) / by_level.quantile(0.1) - 1 > MIN_CONTEXT_VARIATION).sum())
    if moving < 2:
        limit = f"{100 * MIN_CONTEXT_VARIATION:.0f} %"
        return None, f"within levels it varies by more than {limit} at {moving} level(s), expected 2"
    del clean, by_level  # the fit holds a score of columns as it is
    fit = _between_within(running_req, step_s, running_req * context, group, confidence)
    return fit, "too few ticks within levels"


def _context_between(levels: pd.DataFrame, confidence: float) -> tuple[_CovariateLine | None, str]:
    rows = levels.dropna(subset="context_tok")
    dof = len(rows) - 3
    if dof < 1:
        return None, f"{len(rows)} levels with a context, expected 4 or more"
    running_req, step_s, context = (rows[name].to_numpy(float) for name in ("running_req", "step_s", "context_tok"))
    held = running_req * context
    design = np.column_stack([np.ones_like(held), running_req, held]) / step_s[:, None]
    left_over = held / step_s - design[:, :2] @ np.linalg.lstsq(design[:, :2], held / step_s, rcond=None)[0]
    centred = held / step_s - design[:, 0] * (design[:, 0] @ (held / step_s)) / (design[:, 0] @ design[:, 0])
    explained = 1 - float(left_over @ left_over) / float(centred @ centred)
    if explained > MAX_COLLINEARITY:
        return None, (
            f"between levels running_req explains {100 * explained:.0f} % of the variation of held tokens: "
            "repeat two levels with another prompt length"
        )
    theta = np.linalg.lstsq(design, np.ones_like(held), rcond=None)[0]
    residual = design @ theta - 1
    covariance = float(residual @ residual) / dof * np.linalg.inv(design.T @ design)
    half = float(student_t.ppf((1 + confidence) / 2, dof)) * np.sqrt(np.diag(covariance))
    return _CovariateLine(theta, half, dof, running_req, step_s, float(np.sqrt(np.mean(residual**2)))), ""


def _between_within(
    running_req: np.ndarray,
    step_s: np.ndarray,
    covariate: np.ndarray,
    group: np.ndarray,
    confidence: float,
    per_second: np.ndarray | None = None,
) -> _CovariateLine | None:
    """Fit a + b N + c covariate; rows in time order within a level. None if c cannot be told within levels.

    per_second, where finite, is the covariate per second instead of per step and serves as its instrument.
    """
    within = _cost_within_levels(running_req, step_s, covariate, group, per_second)
    if within is None:
        return None
    cost, variance_cost, dof_cost, weight, tick_variance = within
    level_req, level_cov = _level_mean(running_req, weight, group), _level_mean(covariate, weight, group)
    level_s = _level_mean(step_s - cost * covariate, weight, group)
    if not (level_s > 0).all():
        return None
    # Ticks of a block are one observation: their noise is autocorrelated.
    blocks = np.maximum(np.bincount(group) / BLOCK_TICKS, 1.0)
    theta, inverse, pull, residual, scale = _random_effects_line(level_req, level_s, level_cov, tick_variance / blocks)
    covariance = inverse * scale + variance_cost * np.outer(pull, pull)
    dof = len(level_s) - 2
    tail = (1 + confidence) / 2
    half = np.append(
        float(student_t.ppf(tail, dof)) * np.sqrt(np.diag(covariance)),
        float(student_t.ppf(tail, dof_cost)) * np.sqrt(variance_cost),
    )
    return _CovariateLine(np.append(theta, cost), half, dof, level_req, level_s, float(np.sqrt(np.mean(residual**2))))


def _level_mean(values: np.ndarray, weight: np.ndarray, group: np.ndarray) -> np.ndarray:
    return np.bincount(group, weight * values) / np.bincount(group, weight)


def _cost_within_levels(
    running_req: np.ndarray,
    step_s: np.ndarray,
    covariate: np.ndarray,
    group: np.ndarray,
    per_second: np.ndarray | None,
) -> tuple[float, float, float, np.ndarray, float] | None:
    """Return cost per unit of covariate, its variance and degrees of freedom, tick weights, relative tick variance."""
    expected_s = np.array([np.median(step_s[group == level]) for level in range(group.max() + 1)])[group]
    level_s = expected_s
    robust = np.ones_like(step_s)
    for _ in range(HUBER_ROUNDS):
        weight = robust / expected_s**2
        instrument = covariate
        if per_second is not None:
            instrument = np.where(np.isfinite(per_second), per_second * level_s, covariate)
        of_level = np.bincount(group, weight)
        off_s, off_req, off_cov = (
            v - (np.bincount(group, weight * v) / of_level)[group] for v in (step_s, running_req, covariate))
        off_instrument = off_cov if instrument is covariate else (
            instrument - _level_mean(instrument, weight, group)[group])
        if not (weight * off_cov**2).sum() > 1e-9 * (weight * covariate**2).sum():
            return None
        # Columns of unit length: a held token costs nanoseconds, a request milliseconds.
        unit, norm = _unit_columns(off_cov, off_req, weight)
        instruments = unit if instrument is covariate else _unit_columns(off_instrument, off_req, weight)[0]
        bread = np.linalg.pinv(instruments.T @ (weight[:, None] * unit))
        scaled = bread @ (instruments.T @ (weight * off_s))
        miss_s = off_s - unit @ scaled
        cost = float(scaled[0] / norm)
        relative = np.abs(miss_s / expected_s)
        sigma = 1.4826 * float(np.median(relative))
        following = np.where(relative > HUBER_SIGMAS * sigma, HUBER_SIGMAS * sigma / np.maximum(relative, 1e-300), 1.0)
        if sigma == 0 or np.abs(following - robust).max() < HUBER_SETTLED:
            break
        robust = following
        level_s = _level_mean(step_s - cost * covariate, weight, group)[group]
        expected_s = np.maximum(level_s + cost * covariate, 0.1 * expected_s)
    # Sandwich over blocks of consecutive ticks of one level.
    order = np.argsort(group, kind="stable")
    start = np.concatenate([[0], np.cumsum(np.bincount(group))])[group[order]]
    place = (np.arange(len(order)) - start) // BLOCK_TICKS
    block = np.unique(group[order] * len(order) + place, return_inverse=True)[1]
    score = np.stack([np.bincount(block, (weight * miss_s * column)[order]) for column in instruments.T], axis=-1)
    information = np.bincount(block, (weight * instruments[:, 0] ** 2)[order])
    dof_cost = float(information.sum() ** 2 / (information**2).sum()) - 1
    if dof_cost < MIN_COST_DOF:
        return None
    variance = (bread @ score.T @ score @ bread.T)[0, 0] * (dof_cost + 1) / dof_cost / norm**2
    variance += (LEVEL_DEVIATION_FRAC * cost) ** 2
    tick_variance = float((robust * (miss_s / expected_s) ** 2).sum() / robust.sum())
    return cost, float(variance), dof_cost, weight, tick_variance


def _unit_columns(first: np.ndarray, second: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, float]:
    """Return both columns scaled to unit weighted length, the second only if it varies, and the first one's length."""
    lengths = [float(np.sqrt((weight * column**2).sum())) for column in (first, second)]
    if np.abs(second).max() < SAME_REQ:
        return (first / lengths[0])[:, None], lengths[0]
    return np.column_stack([first, second]) / lengths, lengths[0]


def _random_effects_line(
    level_req: np.ndarray, level_s: np.ndarray, level_cov: np.ndarray, variance: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, float]:
    """Fit a relative line through level means that scatter by more than their own variance.

    The level variance is the moment estimate of DerSimonian and Laird (1986) on top of each mean's relative
    ``variance``; the covariance is scaled by the residuals (Hartung and Knapp 2001), which t with (levels - 2) needs.

    Returns
    -------
    tuple
        (intercept, slope), inverse of the information, change of both per unit of the covariate's cost, relative
        residuals, scale of the inverse.
    """
    design = np.column_stack([np.ones_like(level_req), level_req]) / level_s[:, None]
    dof = len(level_s) - 2
    weight = 1 / np.maximum(variance, 1e-12)
    for estimate_level in (True, False):
        inverse = np.linalg.inv(design.T @ (weight[:, None] * design))
        theta = inverse @ (design.T @ weight)
        residual = design @ theta - 1
        excess = float(weight @ residual**2)
        if estimate_level:
            spare = weight.sum() - np.trace(inverse @ (design.T @ (weight[:, None] ** 2 * design)))
            weight = 1 / (np.maximum(variance, 1e-12) + max(excess - dof, 0.0) / spare)
    pull = -inverse @ (design.T @ (weight * level_cov / level_s))
    return theta, inverse, pull, residual, excess / dof
