"""What levers start from: a measured level, and the measured law of step over load."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from helpers.schema import RooflogError

UNKNOWN = float("nan")


@dataclass(frozen=True)
class MeasuredLevel:
    """The level that levers start from.

    Attributes
    ----------
    running_req : float
        [req].
    step_s, step_s_lo, step_s_hi : float
        Measured step, or round under speculation, with its interval [s]; NaN ends = no interval.
    """

    running_req: float
    step_s: float
    step_s_lo: float = UNKNOWN
    step_s_hi: float = UNKNOWN

    def __post_init__(self) -> None:
        """Refuse what cannot be a level."""
        if not (self.running_req > 0 and self.step_s > 0):
            raise RooflogError("levers: expected a level with running_req and step_s above 0, found "
                               f"{self.running_req} req and {self.step_s} s")

    @property
    def has_interval(self) -> bool:
        """Tell whether the step has one."""
        return bool(np.isfinite(self.step_s_lo) and np.isfinite(self.step_s_hi))

    @property
    def span_s(self) -> tuple[float, float]:
        """Ends of the step [s]: the step itself without an interval."""
        return (self.step_s_lo, self.step_s_hi) if self.has_interval else (self.step_s, self.step_s)


@dataclass(frozen=True)
class Law:
    """The measured law of step over load.

    Attributes
    ----------
    step_s : callable
        running_req [req] -> step [s].
    range_req : (float, float)
        Where it was measured [req].
    band_s : callable, optional
        running_req [req] -> lower and upper end of the step [s].
    """

    step_s: Callable[[np.ndarray], np.ndarray]
    range_req: tuple[float, float]
    band_s: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]] | None = None

    @property
    def range_text(self) -> str:
        """Its range in words."""
        return f"{self.range_req[0]:g} to {self.range_req[1]:g} req"

    def covers(self, running_req: float) -> bool:
        """Tell whether it was measured there."""
        return self.range_req[0] <= running_req <= self.range_req[1]
