"""A law as a few points and a sparkline of it: what one row of the index shows of a scorecard."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from helpers.display import MS_PER_S, level_key, requests, show
from helpers.laws.candidates import known_laws
from helpers.schema import printable

Card = Mapping[str, Any]
Point = tuple[float, float]

CURVE_POINTS = 13
"""Points of a law that bends: at 120 pixels the eye sees no corner."""

MAX_DRAWN = 24
"""Levels drawn in a sparkline; of more, so many evenly spaced ones with the first and the last."""

WIDTH, HEIGHT, MARGIN = 120, 36, 3
"""Of a sparkline [CSS px]."""

HEADROOM_FRAC = 1.25
"""A longer interval than this share of the highest point is cut off at the edge, or one doubtful level would flatten
all others [1]."""


def law_curve(card: Card) -> list[Point]:
    """Evaluate the selected law between the lowest and the highest level of its data.

    Parameters
    ----------
    card : mapping
        A scorecard.

    Returns
    -------
    list of (running_req [req], step_s [s])
        Empty where the law is refused, or where the scorecard does not hold what its formula needs.
    """
    fit = card["fit"]
    selected = fit["selected"]
    law, lo, hi = selected["law"], selected["running_req_min"], selected["running_req_max"]
    if fit["refused"] or lo is None or hi is None:
        return []
    values = {name: parameter["value"] for name, parameter in selected["parameters"].items()}
    if law == "roofline":
        return _scaled(card["roofline"] or {}, values.get("scale"), lo, hi)
    facts = card["run"]["facts"]
    experts = facts.get("n_experts"), facts.get("n_experts_active")
    formula = known_laws(experts=experts if all(experts) else None).get(law)
    if formula is None or any(values.get(name) is None for name, _ in formula.parameters):
        return []
    running_req = np.array([lo, hi]) if law in ("linear", "constant") else np.linspace(lo, hi, CURVE_POINTS)
    theta = np.array([[values[name] for name, _ in formula.parameters]], dtype=float)
    return list(zip(running_req.tolist(), formula.predict(theta, running_req)[0].tolist(), strict=True))


def _scaled(roofline: Mapping[str, Any], scale: float | None, lo: float, hi: float) -> list[Point]:
    """Return the law that is the roofline times a scale; the scorecard holds the roofline at the levels only."""
    line = roofline.get("expected") or roofline.get("strict")
    if line is None or scale is None:
        return []
    points = [(float(key), scale * step_s) for key, step_s in line["step_s"].items() if step_s is not None]
    return sorted(point for point in points if lo <= point[0] <= hi)


def sparkline(levels: Sequence[Mapping[str, Any]], curve: Sequence[Point], words: str) -> str:
    """Draw measured levels with their intervals and the law, step time over running requests, both from zero.

    Parameters
    ----------
    levels : sequence of mapping
        ``running_req`` [req], ``step_s``, ``step_s_lo``, ``step_s_hi`` [s]; without a step they are left out.
    curve : sequence of (running_req, step_s)
        From `law_curve`; empty = no line.
    words : str
        What it shows, for those who do not see it and as its tooltip.

    Returns
    -------
    str
        An ``svg`` element; empty where no level has a step. Its parts are of class ``i`` (intervals), ``l`` (law) and
        ``p`` (levels); the page's style gives it `WIDTH` and `HEIGHT`.
    """
    points = [level for level in levels if _is_known(level["step_s"]) and _is_known(level["running_req"])]
    if not points:
        return ""
    if len(points) > MAX_DRAWN:
        points = [points[i] for i in np.linspace(0, len(points) - 1, MAX_DRAWN).round().astype(int)]
    right = max([level["running_req"] for level in points] + [n for n, _ in curve])
    highest = max([level["step_s"] for level in points] + [step_s for _, step_s in curve])
    ends = [level["step_s_hi"] for level in points if _is_known(level["step_s_hi"])]
    top = min(max([highest, *ends]), HEADROOM_FRAC * highest)
    inner_width, inner_height = WIDTH - 2 * MARGIN, HEIGHT - 2 * MARGIN

    def height(step_s: float) -> str:
        return f"{MARGIN + inner_height * (1 - min(max(step_s / (top or 1.0), 0.0), 1.0)):.1f}"

    def at(running_req: float, step_s: float) -> str:
        return f"{MARGIN + inner_width * running_req / (right or 1.0):.0f} {height(step_s)}"

    intervals = "".join(
        f"M{at(level['running_req'], level['step_s_lo'])}V{height(level['step_s_hi'])}"
        for level in points if _is_known(level["step_s_lo"]) and _is_known(level["step_s_hi"]))
    dots = "".join(f"M{at(level['running_req'], level['step_s'])}h0" for level in points)
    line = "M" + "L".join(at(*point) for point in curve) if curve else ""
    paths = "".join(f'<path class="{name}" d="{d}"/>' for name, d in (("i", intervals), ("l", line), ("p", dots)) if d)
    return f'<svg role="img"><title>{html.escape(printable(words))}</title>{paths}</svg>'


def curve_words(levels: Sequence[Mapping[str, Any]], curve: Sequence[Point], row: Mapping[str, Any]) -> str:
    """Say what the sparkline of a row shows: the levels, their steps, and the law or that there is none."""
    points = [level for level in levels if _is_known(level["step_s"])]
    if not points:
        return "no level has a step time"
    low, high = points[0], points[-1]
    text = f"{show(low['step_s'], 's')} a step at {requests(low['running_req'])}"
    if len(points) > 1:
        text += f", {show(high['step_s'], 's')} at {level_key(high['running_req'])} ({len(points)} levels)"
    if row["refused"]:
        return f"{text}; no law: {row['refused']}"
    if row["law"] == "linear":
        return (f"{text}; law: {show(row['intercept_s'], 's')} + N x {show(row['slope_s_per_req'], 's/req')}")
    return f"{text}; law: {row['law']}" + ("" if curve else ", not drawn: its formula needs more than the scorecard")


def milliseconds(value_s: float | None) -> float | None:
    """Scale a time [s] to ms for a column whose header says so."""
    return None if value_s is None else value_s * MS_PER_S


def _is_known(value: float | None) -> bool:
    return value is not None and math.isfinite(value)
