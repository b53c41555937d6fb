"""From a table of levels to every law that was tried, the one the levels support, and what it cannot claim."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import t as student_t

from helpers.laws import gates
from helpers.laws.candidates import Law, known_laws
from helpers.laws.covariate import fit_with_context
from helpers.laws.line import crosscheck_lines, fit_line, half_load_interval, reciprocal_interval, rounding_envelope
from helpers.laws.selection import (
    Choice,
    Trial,
    choose_named,
    choose_predictor,
    is_tried,
    predictor_errors_frac,
    try_laws,
)
from helpers.schema import LEVELS, Fits, LawFit, Parameter, SchemaError, check

MISFIT_FRAC = 0.10
"""A level further off the selected law than this is named [1]; levels usually deviate by 1 to 4 % (physics.md 6.1)."""

FAR_EXTRAPOLATION_FRAC = 0.5
"""Share of the asymptote that the top level must reach for the asymptote not to be called far off."""


def fit_laws(
    levels: pd.DataFrame,
    *,
    confidence: float = 0.95,
    experts: tuple[int, int] | None = None,
    roofline_step_s: Callable[[np.ndarray], np.ndarray] | None = None,
    intervals: pd.DataFrame | None = None,
    captured_batch_sizes: Sequence[int] | None = None,
) -> Fits:
    """Fit step time over running requests: the straight line, its rivals, and which one the levels support.

    Parameters
    ----------
    levels : DataFrame, schema LEVELS
        Rows with ``is_fitted`` are used; rows of one ``running_req`` are replicates and count as one level. Row order
        does not matter.
    confidence : float in (0, 1)
        Of every ``_lo``/``_hi`` pair and every test.
    experts : (E, k), optional
        Routed experts and experts per token of a mixture-of-experts model; adds the expert-coverage law.
    roofline_step_s : callable running_req [req] -> step [s], optional
        The roofline of this deployment; adds it as a law with one free scale.
    intervals : DataFrame, schema INTERVALS, optional
        Adds the joint fit with context and the naive line through every printed tick.
    captured_batch_sizes : sequence of int, optional
        Graph sizes of the server, to warn of padded levels.

    Returns
    -------
    Fits
        Where the levels allow no law, ``linear`` and ``selected`` carry the reason in ``refused`` and no parameters;
        that is an answer, not an error.

    Raises
    ------
    SchemaError
        ``levels`` breaks LEVELS, or a fitted row has a running_req or step_s that is not positive.

    Notes
    -----
    Line: weights 1/step^2 on level values, t with (levels - 2) degrees of freedom. Between-level deviations of a few
    per cent dominate the error and no number of ticks reduces them, so intervals come from the levels' scatter, never
    from the ticks'. Rivals are fitted in log space with non-negative coefficients. The left-out errors of a candidate
    refit that law; those of ``prediction`` choose the law again as well.

    Examples
    --------
    >>> import pandas as pd
    >>> from helpers import laws, schema
    >>> levels = schema.conform(pd.DataFrame({
    ...     "server_life": 0, "rank_group": "all", "population": 0, "running_req": [1.0, 4.0, 16.0],
    ...     "n_clean": 9, "step_s": [0.08, 0.17, 0.53], "decode_tok_per_s": [12.5, 23.5, 30.2],
    ...     "method": "ratio_of_sums", "is_fitted": True, "n_rejected": "{}"}), schema.LEVELS)
    >>> round(laws.fit_laws(levels).linear["slope_s_per_req"].value, 6)
    0.03
    """
    if not 0 < confidence < 1:
        raise SchemaError(f"confidence: expected a number between 0 and 1, found {confidence}")
    check(levels, LEVELS)
    used = levels[levels["is_fitted"]]
    points = gates.distinct_levels(used)
    running_req, step_s = points["running_req"].to_numpy(float), points["step_s"].to_numpy(float)
    reason = gates.refusal(used)
    common: dict[str, Any] = {
        "n_levels": len(points),
        "running_req_min": float(running_req.min()) if len(points) else np.nan,
        "running_req_max": float(running_req.max()) if len(points) else np.nan,
        "confidence": confidence,
        "warnings": tuple(gates.doubts(used, captured_batch_sizes)) if len(points) else (),
    }
    if reason is not None:
        refused = LawFit("linear", refused=reason, dof=max(len(points) - 2, 0), **common)
        return Fits(refused, refused, (refused,), f"none: {reason}")
    tokens, no_asymptote = gates.tokens_per_request_step(used)
    if no_asymptote is not None:
        common["warnings"] = (*common["warnings"], no_asymptote)

    laws = [law for law in known_laws(experts, roofline_step_s).values() if is_tried(law, len(points))]
    trials = try_laws(laws, running_req, step_s)
    linear = _linear_fit(trials["linear"], running_req, step_s, confidence, tokens, common)
    candidates = tuple(
        linear if name == "linear" else _candidate_fit(trial, running_req, step_s, confidence, tokens, common)
        for name, trial in trials.items()
    )
    by_name = {fit.law: fit for fit in candidates}
    choice = choose_named(trials, confidence, is_line_refused=linear.refused is not None)
    choice = _drop_empty_term(choice, by_name)
    selected, rule = by_name[choice.law], choice.rule
    selected = _refuse_what_says_nothing(_warn_of_misfit(selected, running_req, step_s))
    if not choice.is_named and len(points) >= gates.MIN_LEVELS + 1:
        selected = replace(selected, warnings=(*selected.warnings, f"no law is named: {rule}"))
    inner, top = predictor_errors_frac(laws, running_req, step_s)
    prediction = replace(by_name[choose_predictor(trials)], loo_error_frac=inner, loo_error_top_frac=top)
    is_table = bool((used["method"] == "table").all()) and used[["step_s_lo", "step_s_hi"]].notna().all(axis=None)
    return Fits(
        linear,
        selected,
        candidates,
        rule,
        choice.is_named,
        crosschecks=crosscheck_lines(running_req, step_s, intervals),
        context=fit_with_context(used, intervals, confidence=confidence),
        prediction=prediction,
        rounding_envelope=rounding_envelope(used, confidence=confidence) if is_table else {},
    )


def _drop_empty_term(choice: Choice, by_name: dict[str, LawFit]) -> Choice:
    """Fall back to the line, unnamed, where the term that makes the chosen law special could be nothing."""
    term = {"sqrt": "sqrt_s_per_sqrt_req", "quadratic": "quadratic_s_per_req2", "moe": "experts_s"}.get(choice.law)
    law, line = by_name[choice.law], by_name["linear"]
    if term is None or line.refused is not None or law[term].lo > 0:
        return choice
    return Choice("linear", False, f"{choice.rule}; its special term could be nothing: the straight line is used")


def _warn_of_misfit(law: LawFit, running_req: np.ndarray, step_s: np.ndarray) -> LawFit:
    """Say which level lies furthest off the law, where it is more than levels usually do."""
    if law.refused is not None or law.predict_step_s is None:
        return law
    off = step_s / law.predict_step_s(running_req) - 1
    worst = int(np.argmax(np.abs(off)))
    if abs(off[worst]) <= MISFIT_FRAC:
        return law
    text = f"level {running_req[worst]:g} lies {100 * off[worst]:+.0f} % off the law: it says little there"
    return replace(law, warnings=(*law.warnings, text))


def _refuse_what_says_nothing(law: LawFit) -> LawFit:
    """Refuse a line of which neither the intercept nor the slope can be told from nothing."""
    if law.law != "linear" or law.refused is not None or law["intercept_s"].lo > 0 or law["slope_s_per_req"].lo > 0:
        return law
    a, b = law["intercept_s"], law["slope_s_per_req"]
    return replace(law, parameters=(), refused=(
        f"the levels do not fix a line: intercept {1e3 * a.lo:.3g} to {1e3 * a.hi:.3g} ms and slope "
        f"{1e3 * b.lo:.3g} to {1e3 * b.hi:.3g} ms/req both hold 0; more levels, or longer ones"
    ))


def _linear_fit(
    trial: Trial, running_req: np.ndarray, step_s: np.ndarray, confidence: float, tokens: float, common: dict[str, Any]
) -> LawFit:
    """Fit the relative-weighted line with its intervals, asymptote, half load and the doubts special to it."""
    line = fit_line(running_req, step_s, confidence=confidence)
    a, b = line.intercept_s, line.slope_s_per_req
    a_lo, a_hi = line.intercept_interval()
    b_lo, b_hi = line.slope_interval()
    inner, top = trial.left_out_errors_frac
    warnings = list(common["warnings"])
    settled = {**common, "dof": line.dof, "loo_error_frac": inner, "loo_error_top_frac": top}
    settled["rms_error_frac"] = float(np.sqrt(np.mean(((a + b * running_req) / step_s - 1) ** 2)))
    if line.dof == 1:
        warnings.append(f"1 degree of freedom (t = {line.quantile:.1f}): intervals are wide, a level more narrows them")
    if a_hi < 0:
        return LawFit("linear", refused=(
            f"negative intercept ({1e3 * a_lo:.3g} to {1e3 * a_hi:.3g} ms): no straight line; the levels bend upwards "
            "like a hinge, max(plateau, slope x N): look at the hinge law and at levels near the knee"
        ), **{**settled, "warnings": tuple(warnings)})
    if a < 0:
        warnings.append(f"the intercept is negative ({1e3 * a:.3g} ms) within its interval")
    asymptote, half_load, half_lo, half_hi = np.nan, np.nan, np.nan, np.nan
    lo, hi = reciprocal_interval(b_lo, b_hi, tokens)
    if b_lo > 0:
        asymptote, half_load = tokens / b, a / b
        half_lo, half_hi = half_load_interval(line)
        reached = running_req[-1] / (running_req[-1] + max(half_load, 0.0))
        if np.isfinite(asymptote) and reached < FAR_EXTRAPOLATION_FRAC:
            warnings.append(
                f"the asymptote is far off: the top level reaches {100 * reached:.0f} % of it; "
                "it holds only if the line goes on"
            )
    else:
        warnings.append("the slope's interval holds 0: no asymptote and no half load are claimed (unbounded)")
    return LawFit(
        "linear",
        (Parameter("intercept_s", a, a_lo, a_hi, "s"), Parameter("slope_s_per_req", b, b_lo, b_hi, "s/req")),
        asymptote_tok_per_s=asymptote, asymptote_tok_per_s_lo=lo, asymptote_tok_per_s_hi=hi,
        half_load_req=half_load, half_load_req_lo=half_lo, half_load_req_hi=half_hi,
        predict_step_s=lambda n: a + b * np.asarray(n, float),
        **{**settled, "warnings": tuple(warnings)},
    )


def _candidate_fit(
    trial: Trial, running_req: np.ndarray, step_s: np.ndarray, confidence: float, tokens: float, common: dict[str, Any]
) -> LawFit:
    """Describe one rival of the line, fitted in log space; parameters at the edge of their range have no interval."""
    law, theta = trial.law, trial.theta
    lo, hi = _delta_intervals(law, theta, running_req, step_s, confidence)
    parameters = tuple(
        Parameter(name, float(value), float(low), float(high), unit)
        for (name, unit), value, low, high in zip(law.parameters, theta, lo, hi, strict=True)
    )
    inner, top = trial.left_out_errors_frac
    slope = next((p for p in parameters if p.name == law.slope), None)
    asymptote_lo, asymptote_hi = reciprocal_interval(slope.lo, slope.hi, tokens) if slope else (np.nan, np.nan)
    return LawFit(
        law.name,
        parameters,
        dof=len(step_s) - law.n_parameters,
        loo_error_frac=inner,
        loo_error_top_frac=top,
        rms_error_frac=float(np.sqrt(np.mean(np.expm1(trial.residual_log) ** 2))),
        asymptote_tok_per_s=tokens / slope.value if slope and np.isfinite(asymptote_hi) else np.nan,
        asymptote_tok_per_s_lo=asymptote_lo,
        asymptote_tok_per_s_hi=asymptote_hi,
        predict_step_s=lambda n: law.predict(theta[None, :], np.atleast_1d(np.asarray(n, float)))[0],
        **common,
    )


def _delta_intervals(
    law: Law, theta: np.ndarray, running_req: np.ndarray, step_s: np.ndarray, confidence: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return lo and hi of each parameter by linearising the law; NaN for one at 0 or without degrees of freedom."""
    lo, hi = np.full(len(theta), np.nan), np.full(len(theta), np.nan)
    free = np.flatnonzero(theta > 0)
    dof = len(step_s) - len(theta)
    if dof < 1 or len(free) == 0:
        return lo, hi
    # A relative step per parameter: the Jacobian of log(step) is then per relative change, well scaled.
    change = 1e-5
    shifted = theta * (1 + change * np.eye(len(theta))[free])
    base = np.log(law.predict(theta[None, :], running_req)[0])
    jacobian = (np.log(law.predict(shifted, running_req)) - base).T / change
    variance = float(np.sum((base - np.log(step_s)) ** 2)) / dof
    covariance = variance * np.linalg.pinv(jacobian.T @ jacobian)
    half = float(student_t.ppf((1 + confidence) / 2, dof)) * np.sqrt(np.diag(covariance))
    lo[free], hi[free] = theta[free] * (1 - half), theta[free] * (1 + half)
    return lo, hi
