"""What each cause predicts for an experiment, as formulas of known quantities."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from helpers.display import level_key, show
from helpers.plan.known import Known

SAME_FRAC = 0.05
"""A step that changes by less than this is "unchanged": blocks of 40 steps repeat within 1 to 3 % (physics.md 6.3)."""


@dataclass(frozen=True)
class Outcome:
    """What one cause predicts.

    Attributes
    ----------
    text : str
        The prediction as a sentence, numbers with units.
    ratio : float or None
        What is measured after the change over before, where the prediction is a number.
    label : str
        What is seen, where it is not: outcomes of one label cannot be told apart.
    """

    text: str
    ratio: float | None = None
    label: str = ""


Predict = Callable[[Known, int], Outcome | None]
"""(known, level [req]) -> what the cause predicts at that level; None where the experiment tells nothing about it."""


def step_to(known: Known, running_req: int, ratio: float, why: str, *, or_less: bool = False) -> Outcome:
    """Predict the step at a level as a multiple of what it is."""
    before_s = known.step_s(running_req)
    where = f"step at N={level_key(running_req)}"
    if abs(ratio - 1) < SAME_FRAC:
        kept = f"stays at {show(before_s, 's')}" if before_s is not None else "stays what it is"
        return Outcome(f"{where} {kept} within {100 * SAME_FRAC:.0f} %: {why}", ratio)
    verb = "falls" if ratio < 1 else "rises"
    tail = " or less" if or_less else ""
    if before_s is None:
        return Outcome(f"{where} {verb} to {show(ratio)} of what it is{tail}: {why}", ratio)
    return Outcome(f"{where} {verb} from {show(before_s, 's')} to {show(before_s * ratio, 's')}{tail}: {why}", ratio)


def unchanged(why: str) -> Predict:
    """Predict that nothing happens."""
    return lambda known, n: step_to(known, n, 1.0, why)


def slope_times(factor: Callable[[Known], float], why: str, at_least: float = 0.5) -> Predict:
    """Scale the part of the step that grows with N; without a line it is taken as ``at_least`` of the step."""
    def predict(known: Known, n: int) -> Outcome:
        share = known.slope_frac(n)
        share = at_least if share is None else share
        return step_to(known, n, 1 + share * (factor(known) - 1), why)
    return predict


def intercept_times(factor: Callable[[Known], float], why: str, at_least: float = 0.5) -> Predict:
    """Scale the part of the step that is there at any N."""
    def predict(known: Known, n: int) -> Outcome:
        share = known.slope_frac(n)
        share = at_least if share is None else 1 - share
        return step_to(known, n, 1 + share * (factor(known) - 1), why)
    return predict


def whole_times(factor: Callable[[Known], float], why: str) -> Predict:
    """Scale the whole step."""
    return lambda known, n: step_to(known, n, factor(known), why)


def excess_times(factor: Callable[[Known], float], why: str, at_least: float) -> Predict:
    """Scale what the step has above the roofline's target; ``at_least`` of the step where that is not known."""
    def predict(known: Known, n: int) -> Outcome:
        share = known.excess_frac(n)
        share = at_least if share is None else max(share, at_least)
        return step_to(known, n, 1 + share * (factor(known) - 1), why)
    return predict


def split_at_target(
    of_target: Callable[[Known], float], of_excess: Callable[[Known], float], why: str, otherwise: Predict
) -> Predict:
    """Scale what the roofline explains and what is above it by themselves; ``otherwise`` without a roofline."""
    def predict(known: Known, n: int) -> Outcome | None:
        excess = known.excess_frac(n)
        if excess is None:
            return otherwise(known, n)
        return step_to(known, n, (1 - excess) * of_target(known) + excess * of_excess(known), why)
    return predict


def seen(label: str, text: str) -> Predict:
    """Predict something that is seen, not a number."""
    return lambda known, n: Outcome(text, None, label)


def silent(known: Known, n: int) -> Outcome | None:
    """Tell nothing about the cause."""
    return None


def constant(value: float) -> Callable[[Known], float]:
    """Return a factor that depends on nothing."""
    return lambda known: value
