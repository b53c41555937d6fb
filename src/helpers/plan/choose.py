"""Choose the next experiment: the expected discrimination between the causes still standing, per minute."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from helpers.display import show
from helpers.plan.changes import ENGINES, Changes
from helpers.plan.duration import Load, sweep_duration
from helpers.plan.experiments import TABLE, Experiment
from helpers.plan.known import Known, finite
from helpers.plan.outcomes import SAME_FRAC, Outcome

CAUSES = ("weight_bandwidth", "kv_bandwidth", "state_bandwidth", "tensor_compute", "latency_or_occupancy",
          "max_context_work", "serialised_requests", "communication", "host_or_scheduler", "graph_fallback",
          "graph_padding", "prefill_interference", "kv_capacity", "admission_limit", "rank_imbalance",
          "power_or_thermal", "low_acceptance", "context_growth", "measurement_artifact")
"""Causes that an experiment can test; "healthy" and "unknown" predict nothing."""

SCORE_PER_DECADE = 3.0
"""Score that stands for a likelihood ratio of ten (physics.md 4.2: +3 is LR >= 10)."""

MAX_SCORE = 6.0
"""Scores count up to this, a hundred to one: no cause is so sure that nothing else is worth a test."""

STATUS_SCORE = {"supported": 3.0, "compatible": 1.0, "weak": 0.0}
"""Score where only a status is given."""

ASSUMED_STARTUP_S = 180.0
"""Start-up of a server where its log does not say [s]: large models take one to ten minutes."""

PROFILE_S = 60.0
"""Seconds to capture and write a trace of a few steps."""

MIN_BITS = 0.02
"""An experiment that is expected to tell less than this [bit] is none."""


@dataclass(frozen=True)
class Plan:
    """An experiment made for one server.

    Attributes
    ----------
    name, what, why : str
        Row of the table; what is done; between which causes it decides.
    predicts : mapping
        Cause still standing -> what it predicts.
    loads : tuple of Load
        What the client sends.
    changes : Changes
        Flags and environment that differ from the server of the log.
    extra : frozenset of str
        profile, telemetry, lock_clock, power_limit.
    deciding : str
        profile or telemetry, where the outcome is read from that.
    n_starts : int
        Starts of a server.
    duration_s : float
        Starts, loads and captures [s].
    bits, bits_per_min : float
        Expected fall of the entropy over the causes [bit], and per minute.
    assumptions : tuple of str
        What was not known.
    """

    name: str
    what: str
    why: str
    predicts: Mapping[str, Outcome]
    loads: tuple[Load, ...]
    changes: Changes
    extra: frozenset[str]
    deciding: str
    n_starts: int
    duration_s: float
    bits: float
    bits_per_min: float
    assumptions: tuple[str, ...]

    def as_next_experiment(self, run_dir: str = "RUN_DIR") -> dict[str, Any]:
        """Return the entry of the scorecard: what, command, duration_s, predicts."""
        return {"what": self.what, "command": f"rooflog plan {run_dir} --experiment {self.name}",
                "duration_s": self.duration_s, "predicts": {cause: o.text for cause, o in self.predicts.items()}}


def weights(status: Mapping[str, Any]) -> dict[str, float]:
    """Return the prior of every cause that can be tested and is not refuted; they add up to 1.

    The weight of a cause is 10^(score / 3), scores held to +-6; without any status all causes weigh the same.

    Parameters
    ----------
    status : mapping
        Cause -> (status, score); the score may be missing.
    """
    if not status:
        return {cause: 1 / len(CAUSES) for cause in CAUSES}
    found = {}
    for cause, entry in status.items():
        word, score = entry if isinstance(entry, Sequence) and not isinstance(entry, str) and len(entry) == 2 else (
            entry, None)
        if cause in CAUSES and word in STATUS_SCORE:
            number = finite(score)
            number = STATUS_SCORE[word] if number is None else number
            found[cause] = 10 ** (min(max(number, -MAX_SCORE), MAX_SCORE) / SCORE_PER_DECADE)
    total = sum(found.values())
    return {cause: weight / total for cause, weight in found.items()}


def choose(status: Mapping[str, Any], known: Mapping[str, Any]) -> list[Plan]:
    """Rank the experiments by what they are expected to tell per minute.

    Parameters
    ----------
    status : mapping
        Cause -> (status, score) of a diagnosis; refuted causes are left out of the question.
    known : mapping
        See `known.Known`; any fact may be missing.

    Returns
    -------
    list of Plan
        Best first. Empty where fewer than two causes stand, or no experiment tells them apart.

    Notes
    -----
    Discrimination is the mutual information between cause and outcome: each cause gives its own outcome with
    probability 1 - e and any other with the rest, e being the row's ``error_prob``. Numeric predictions closer than
    10 % are one outcome; a cause about which an experiment is silent may give any.
    """
    prior = weights(status)
    if len(prior) < 2:
        return []
    facts = Known(known)
    plans = [plan for row in TABLE if (plan := _plan(row, prior, facts)) is not None]
    return sorted(plans, key=lambda plan: (-plan.bits_per_min, plan.duration_s, plan.name))


def _plan(row: Experiment, prior: Mapping[str, float], known: Known) -> Plan | None:
    """Make one row for one server; None where it cannot be done or tells nothing."""
    if row.blocked(known):
        return None
    changes = row.changes(known)
    if changes and known.engine in ENGINES and not changes.shown(known.engine, known.args):
        return None  # the engine has no such flag
    loads = row.loads(known)
    at_req = max(load.running_req for load in loads)
    outcomes = {cause: row.predicts.get(cause, row.otherwise)(known, at_req) for cause in prior}
    bits = information({cause: (prior[cause], outcome) for cause, outcome in outcomes.items()}, row.error_prob)
    if bits < MIN_BITS:
        return None
    duration = sweep_duration(loads, known.step_s, accept_len=known.number("accept_len"),
                              prefill_tok_per_s=known.number("prefill_tok_per_s"))
    startup_s = known.number("startup_s")
    n_starts = 0 if known.flag("server_is_running") and not changes else 1
    total_s = duration.total_s + n_starts * (startup_s or ASSUMED_STARTUP_S)
    total_s += PROFILE_S * len(loads) * ("profile" in row.extra)
    notes = list(duration.assumptions)
    if n_starts and startup_s is None:
        notes.append(f"start-up of the server takes {show(ASSUMED_STARTUP_S, 'duration')} (not known from the log)")
    if known.line is None:
        notes.append("no law of the step is known: half of the step is taken to grow with N")
    if known.number("prompt_tokens") is None:
        notes.append(f"prompts of {loads[0].prompt_tok} tokens (those of the log are not known)")
    if changes and "tp" in changes.settings:
        n_devices = changes.settings["tp"]
        notes.append(f"the weights fit on {n_devices} device{'' if n_devices == 1 else 's'}")
    told = {cause: outcome for cause, outcome in outcomes.items() if outcome is not None}
    ranked = dict(sorted(told.items(), key=lambda item: -prior[item[0]]))
    return Plan(row.name, row.what(known), _why(ranked), ranked, loads, changes, row.extra, row.deciding, n_starts,
                total_s, bits, bits / max(total_s / 60, 1.0), tuple(notes))


def information(outcomes: Mapping[str, tuple[float, Outcome | None]], error_prob: float) -> float:
    """Return the mutual information between cause and outcome [bit].

    Parameters
    ----------
    outcomes : mapping
        Cause -> (prior, what it predicts or None); the priors add up to 1.
    error_prob : float
        Probability that a cause does not give its own outcome.
    """
    classes = classify([outcome for _, outcome in outcomes.values()])
    n_classes = len({item for item in classes if item is not None})
    if n_classes < 2:
        return 0.0
    mixed = [0.0] * n_classes
    within = 0.0
    for (prior, _), own in zip(outcomes.values(), classes, strict=True):
        row = [1 / n_classes] * n_classes
        if own is not None:
            row = [error_prob / (n_classes - 1)] * n_classes
            row[own] = 1 - error_prob
        within += prior * _entropy(row)
        mixed = [total + prior * p for total, p in zip(mixed, row, strict=True)]
    return max(0.0, _entropy(mixed) - within)


def classify(outcomes: Sequence[Outcome | None]) -> list[int | None]:
    """Return a number for each outcome, the same for those that cannot be told apart; None stays None."""
    names: dict[Any, int] = {}
    numbers = sorted({o.ratio for o in outcomes if o is not None and o.ratio is not None})
    bins: dict[float, float] = {}
    start = -math.inf
    for ratio in numbers:
        if ratio > start * (1 + 2 * SAME_FRAC) or start <= 0:
            start = ratio
        bins[ratio] = start
    keys = [None if o is None else (bins[o.ratio] if o.ratio is not None else o.label) for o in outcomes]
    return [None if key is None else names.setdefault(key, len(names)) for key in keys]


def _entropy(probabilities: Sequence[float]) -> float:
    return -sum(p * math.log2(p) for p in probabilities if p > 0)


def _why(outcomes: Mapping[str, Outcome]) -> str:
    """Say which causes the outcome separates, most likely first."""
    groups: dict[int | None, list[str]] = {}
    for cause, number in zip(outcomes, classify(list(outcomes.values())), strict=True):
        groups.setdefault(number, []).append(cause)
    parts = [" and ".join(causes) if len(causes) <= 2 else f"{causes[0]} and {len(causes) - 1} others"
             for causes in groups.values()]
    return "it tells " + " from ".join(parts)
