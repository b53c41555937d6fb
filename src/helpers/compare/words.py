"""Rows, changes and shares of a comparison in words: the same in sentences, tables and figures."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from helpers.display import level_key

QUANTITIES = {"step": "step", "accept_len": "accepted tokens per round", "fixed_cost": "fixed cost",
              "per_request": "cost per request", "asymptote": "asymptote", "ratio_to_target": "step over target"}
"""Kind of a row -> what a reader calls it."""


def percent(frac: float, *, sign: bool = False) -> str:
    """Write a share in percent: to three figures, "3 %", or as a change to one decimal, "+5.1 %"."""
    value = 100 * frac
    if sign:
        text = f"{value:+.1f}"
        return f"{text if float(text) else '0.0'} %"
    return f"{value:.0f} %" if abs(value) >= 100 else f"{value:.3g} %"


def change(effect_frac: float | None, lo_frac: float | None, hi_frac: float | None) -> str:
    """Write a change with its interval, "+5.1 % [+2.0, +8.3]"; None and NaN are unknown."""
    effect, *ends = ("" if frac is None or math.isnan(frac) else percent(frac, sign=True)
                     for frac in (effect_frac, lo_frac, hi_frac))
    if not effect:
        return "unknown"
    return f"{effect} [{', '.join(end.removesuffix(' %') for end in ends)}]" if all(ends) else effect


def effect(row: Mapping[Any, Any]) -> str:
    """Write new against base with the interval of the row alone."""
    return change(row["effect_frac"], row["row_lo_frac"], row["row_hi_frac"])


def quantity(kind: str, *running_req: float | None) -> str:
    """Name rows of one kind: "step at N=16", "step at N=32, 64", "cost per request"."""
    at = [level_key(level) for level in running_req if level is not None and not math.isnan(level)]
    return QUANTITIES.get(kind, kind.replace("_", " ")) + (f" at N={', '.join(at)}" if at else "")
