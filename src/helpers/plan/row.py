"""What a row of the table of experiments holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from helpers.plan.changes import Changes
from helpers.plan.duration import Load
from helpers.plan.known import Known
from helpers.plan.outcomes import Predict

RESTART_ERROR = 0.05
"""Probability that a step measured before and after a restart misleads: other traffic, another build."""

LABEL_ERROR = 0.2
"""Probability that a pattern of levels or counters misleads (physics.md 4.2 gives telemetry weight 1 at most)."""

PROFILE_ERROR = 1 / 3
"""Probability that kernel names mislead: in field case A the indexer hid in "69 % glue", collectives wait."""


@dataclass(frozen=True)
class Experiment:
    """One row of the table.

    Attributes
    ----------
    name : str
        Short and stable.
    what : callable
        Known -> one sentence of what is done.
    predicts : mapping
        Cause -> formula of what it predicts.
    otherwise : callable
        Formula for every other cause.
    loads : callable
        Known -> loads, those of phase 2 last.
    changes : callable
        Known -> changes of the server's flags and environment.
    blocked : callable
        Known -> why it cannot be done here, empty if it can.
    error_prob : float
        Probability that the outcome misleads.
    extra : frozenset of str
        profile, telemetry, lock_clock, power_limit: what is captured or changed beside the load.
    deciding : str
        profile or telemetry, where the outcome is read from that and not from the log.
    """

    name: str
    what: Callable[[Known], str]
    predicts: Mapping[str, Predict]
    otherwise: Predict
    loads: Callable[[Known], tuple[Load, ...]]
    changes: Callable[[Known], Changes] = lambda known: Changes()
    blocked: Callable[[Known], str] = lambda known: ""
    error_prob: float = RESTART_ERROR
    extra: frozenset[str] = field(default_factory=frozenset)
    deciding: str = ""
