"""How numbers are shown to a person: the one place that rounds and scales."""

from __future__ import annotations

import math
from numbers import Integral
from typing import TypeGuard

MS_PER_S = 1e3


def level_key(running_req: float) -> str:
    """Return the key of a level in the scorecard's ``{level: value}`` objects: "16", or "15.5"."""
    return f"{running_req:g}"


def requests(running_req: float) -> str:
    """Write a level as a person says it: "1 running request", "16 running requests"."""
    return f"{level_key(running_req)} running request{'' if running_req == 1 else 's'}"


def show(value: float | None, unit: str = "", lo: float | None = None, hi: float | None = None) -> str:
    """Write a number as a person reads it: three figures, seconds of a step as ms, its interval behind it.

    Parameters
    ----------
    value, lo, hi : float or None
        Base units; None and NaN are unknown.
    unit : str
        "s" and "s/..." are shown as ms; "duration" as s or min; others as they are.

    Returns
    -------
    str

    Examples
    --------
    >>> show(0.0519, "s", 0.0362, 0.0676)
    '51.9 ms [36.2, 67.6]'
    >>> show(1.951, "s"), show(33.0, "tok/s"), show(None)
    ('1951 ms', '33.0 tok/s', 'unknown')
    """
    if not _is_known(value):
        return "unknown"
    if isinstance(value, Integral) and unit in ("", "1"):
        return str(value)  # a count
    scale = 1.0
    if unit == "duration":
        unit, scale = ("min", 1 / 60) if abs(value) >= 120 else ("s", 1.0)
    elif unit == "s" or unit.startswith("s/"):
        unit, scale = "m" + unit, MS_PER_S
    text = _figures(value * scale) + (f" {unit}" if unit not in ("", "1") else "")
    if _is_known(lo) and _is_known(hi):
        text += f" [{_figures(lo * scale)}, {_figures(hi * scale)}]"
    return text


def _is_known(value: float | None) -> TypeGuard[float]:
    return value is not None and math.isfinite(value)


def _figures(value: float) -> str:
    """Three significant figures without an exponent; whole numbers stay whole; huge or tiny ones get one."""
    if value == 0 or (float(value).is_integer() and abs(value) < 1e6 and abs(value) >= 100):
        return f"{value:.0f}"
    if abs(value) < 1e3:
        value = float(f"{value:.3g}")  # before the magnitude is taken: 0.9998 is 1.00
    magnitude = math.floor(math.log10(abs(value)))
    return f"{value:.2e}" if magnitude >= 7 or magnitude < -4 else f"{value:.{max(0, 2 - magnitude)}f}"
