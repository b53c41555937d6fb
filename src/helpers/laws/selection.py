"""Choose the law that the levels support and the one that predicts, and tell how far off they would have been.

Two questions, two answers. *Naming* a law is a claim about the server and follows physics.md 6.4: no choice at three
levels, a nested F test at four, leave-one-level-out at five and six, AICc and leave-one-level-out in agreement from
seven on. *Predicting* needs no name: from four levels on, the non-negative ``a + b N + c sqrt(N)``, which contains the
constant and the straight line, predicts unless another law is clearly better on levels it has not seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from scipy.stats import f as fisher_f

from helpers.laws.candidates import Law

PARSIMONY = 1.25
"""A law with fewer parameters is kept unless another's left-out error is lower by more than this factor. In our
simulations (tests/test_laws.py) it lifts the rate at which a true line is called linear from 30-90 % to above 90 % and
costs a true MoE law at most a few per cent."""

CLEARLY_BETTER = 0.5
"""Another law replaces the general concave one for prediction if its left-out error is below this share of it. Set
before the public sweeps were scored."""

RESOLUTION_FRAC = 1e-3
"""Relative differences below this are rounding of printed rates, never evidence for or against a law."""

DELTA_AICC = 4.0
"""AICc lead that a named law needs over every rival that is not merely itself with a term more (physics.md 6.4)."""

NAMING_BY_LOLO = ("constant", "linear", "hinge", "sqrt", "moe", "roofline")
"""Laws that compete by leave-one-level-out at five and six levels; sqrt only where experts are unknown."""

PREDICTORS = ("linear", "hinge", "sqrt", "hinge3", "moe", "roofline")
"""Laws that may predict; sqrt unless another is clearly better."""

MIN_INNER_LEVELS = 4
"""Below, a level left out leaves two: the error at inner levels says nothing."""

RESELECT_MAX_LEVELS = 12
"""Up to this many levels the predicting law is chosen anew without each inner level; above, once without the top."""


@dataclass(frozen=True)
class Choice:
    """A law by name, whether the levels support naming it, and the rule that chose in words."""

    law: str
    is_named: bool
    rule: str


class Trial:
    """A law on one set of distinct levels, rising: fitted to all of them and to all but one, each once."""

    def __init__(self, law: Law, running_req: np.ndarray, step_s: np.ndarray) -> None:
        n = len(step_s)
        can_leave_out = n - 1 >= law.n_parameters
        masks = np.vstack([np.ones((1, n)), 1 - np.eye(n)]) if can_leave_out else np.ones((1, n))
        thetas = law.fit(running_req, step_s, masks)
        # A law can predict 0 s at a left-out level: an error of a factor 1e6 instead of infinity.
        log_error = np.log(np.maximum(law.predict(thetas, running_req) / step_s, 1e-6))
        self.law = law
        self.theta = thetas[0]
        self.residual_log = log_error[0]
        self.left_out_log = log_error[1:].diagonal() if can_leave_out else np.full(n, np.nan)

    @property
    def score(self) -> float:
        """Root mean square left-out log error over all levels but the lowest; infinite if none can be left out."""
        errors = self.left_out_log[1:]
        return max(float(np.sqrt(np.mean(errors**2))), RESOLUTION_FRAC) if np.isfinite(errors).all() else np.inf

    @property
    def left_out_errors_frac(self) -> tuple[float, float]:
        """Median relative error at inner levels and the one at the top level, each predicted from all the others."""
        errors = np.abs(np.expm1(self.left_out_log))
        return (float(np.median(errors[1:-1])) if len(errors) >= MIN_INNER_LEVELS else np.nan), float(errors[-1])

    @property
    def aicc(self) -> float:
        """Corrected Akaike criterion in log space; infinite below parameters + 3 levels.

        The variance counts as a parameter. Below that number the correction is undefined, and a formula that ignores
        it 'selects' the constant every time.
        """
        n, k = len(self.residual_log), self.law.n_parameters + 1
        if n < self.law.n_parameters + 3:
            return np.inf
        mean_square = max(float(np.mean(self.residual_log**2)), RESOLUTION_FRAC**2)
        return n * float(np.log(mean_square)) + 2 * k + 2 * k * (k + 1) / (n - k - 1)

    def is_rejected_for(self, richer: Trial, confidence: float) -> bool:
        """Tell whether an F test rejects this law in favour of a richer one."""
        n, extra = len(self.residual_log), richer.law.n_parameters - self.law.n_parameters
        dof = n - richer.law.n_parameters
        floor = n * RESOLUTION_FRAC**2
        own = max(float(np.sum(self.residual_log**2)), floor)
        other = max(float(np.sum(richer.residual_log**2)), floor)
        return (own - other) / extra / (other / dof) > float(fisher_f.ppf(confidence, extra, dof))


def try_laws(laws: Iterable[Law], running_req: np.ndarray, step_s: np.ndarray) -> dict[str, Trial]:
    """Fit every law to distinct levels in rising order of running_req; return the trials by name."""
    return {law.name: Trial(law, running_req, step_s) for law in laws}


def choose_named(trials: Mapping[str, Trial], confidence: float, *, is_line_refused: bool = False) -> Choice:
    """Choose the law the levels support by the rule that their number allows (physics.md 6.4).

    Parameters
    ----------
    trials : mapping name -> Trial
        From `try_laws`; ``linear`` and, from four levels on, ``constant`` among them.
    confidence : float
        Of the F tests.
    is_line_refused : bool
        The line has a negative intercept: it cannot be chosen, and the plateau with a line after it may be.

    Returns
    -------
    Choice
        ``is_named`` is False where the law is only used, not claimed.
    """
    n = len(trials["linear"].residual_log)
    if n <= 3:
        return Choice("linear", False, f"{n} levels: a straight line is fitted, nothing can be selected")
    if n == 4 and is_line_refused:
        return Choice("linear", False, "4 levels: the line is refused, and 4 levels only tell it from the constant")
    if n == 4:
        if trials["constant"].is_rejected_for(trials["linear"], confidence):
            return Choice("linear", True, "4 levels: constant rejected for linear by a nested F test (weak)")
        return Choice("constant", True, "4 levels: constant not rejected for linear by a nested F test (weak)")
    names = [name for name in trials if not (name == "sqrt" and "moe" in trials)]
    if n <= 6:
        names = [name for name in names if name in NAMING_BY_LOLO or (name == "hinge3" and is_line_refused)]
    if is_line_refused:
        names.remove("linear")
    if n <= 6:
        chosen = _parsimonious(trials, names, confidence)
        return Choice(chosen, True, f"{n} levels: least leave-one-level-out error among {', '.join(names)}")
    by_lolo = _parsimonious(trials, names, confidence)
    least = min(names, key=lambda name: trials[name].aicc)
    within = [name for name in names if trials[name].aicc - trials[least].aicc < DELTA_AICC]
    # A law that merely adds a term to one within reach does not displace it.
    by_aicc = min(
        (name for name in within if name == least or name in trials[least].law.contains),
        key=lambda name: (trials[name].law.n_parameters, trials[name].aicc),
    )
    contested = [name for name in within if name != by_aicc and by_aicc not in trials[name].law.contains]
    if by_aicc == by_lolo and not contested:
        lead = f"by AICc (lead above {DELTA_AICC:g}) and by leave-one-level-out"
        return Choice(by_aicc, True, f"{n} levels: {by_aicc} {lead}")
    reason = f"AICc says {by_aicc}" + (f" with {', '.join(contested)} within {DELTA_AICC:g}" if contested else "")
    used = min(by_lolo, by_aicc, key=lambda name: trials[name].law.n_parameters)
    verdict = f"undetermined ({reason}; leave-one-level-out says {by_lolo}); {used} is used, not claimed"
    return Choice(used, False, f"{n} levels: {verdict}")


def choose_predictor(trials: Mapping[str, Trial]) -> str:
    """Choose the law to predict with: sqrt from four levels on unless another is clearly better; linear below."""
    if "sqrt" not in trials:
        return "linear"
    scores = {name: trials[name].score for name in PREDICTORS if name in trials}
    best = min(scores, key=lambda name: scores[name])
    return best if scores[best] < CLEARLY_BETTER * scores["sqrt"] else "sqrt"


def predictor_errors_frac(laws: Iterable[Law], running_req: np.ndarray, step_s: np.ndarray) -> tuple[float, float]:
    """Return inner and top left-out errors of the whole prediction rule: the law, too, is chosen without the level."""
    laws = [law for law in laws if law.name in PREDICTORS]
    n = len(step_s)

    def chosen_without(level: int) -> Law:
        kept = np.arange(n) != level
        able = [law for law in laws if is_tried(law, n - 1)]
        trials = try_laws(able, running_req[kept], step_s[kept])
        return trials[choose_predictor(trials)].law

    below_top = chosen_without(n - 1)
    errors = []
    for level in range(1, n):
        law = below_top if level == n - 1 or n > RESELECT_MAX_LEVELS else chosen_without(level)
        theta = law.fit(running_req, step_s, (np.arange(n) != level)[None, :].astype(float))
        errors.append(abs(float(law.predict(theta, running_req[level : level + 1])[0, 0]) / step_s[level] - 1))
    return (float(np.median(errors[:-1])) if n >= MIN_INNER_LEVELS else np.nan), errors[-1]


def is_tried(law: Law, n_levels: int) -> bool:
    """Tell whether a law is tried: line and scaled roofline up to three levels, above if one level can be left out."""
    return law.name in ("linear", "roofline") if n_levels <= 3 else law.n_parameters <= n_levels - 1


def _parsimonious(trials: Mapping[str, Trial], names: list[str], confidence: float) -> str:
    """Return the law of least left-out error, or the simplest one that the levels cannot tell from it."""
    best = trials[min(names, key=lambda name: trials[name].score)]
    as_good = [
        name for name in names
        if trials[name].law.n_parameters < best.law.n_parameters
        and trials[name].score <= PARSIMONY * best.score
        and not trials[name].is_rejected_for(best, confidence)
    ]
    return min(as_good, key=lambda name: (trials[name].law.n_parameters, trials[name].score), default=best.law.name)
