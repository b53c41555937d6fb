"""Figures of the roofline: the measured step beside what the hardware allows at the same levels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from helpers.answer import KNEE_WORDS, regimes_finding, show_share
from helpers.display import MS_PER_S, level_key, requests, show
from helpers.plots import style

FAR_RATIO = 20.0
"""Ratio above which the distance is drawn on a logarithmic axis [1]."""

NEAR_RATIO = 2.0
"""A knee within this factor of the levels is marked [1]."""

LABEL_GAP_PX = 16
"""Least distance between the names of two lines."""

VEIL = "rgba(255,255,255,0.8)"
"""Behind a name, so that a line through it does not hide it."""

PLOT_HEIGHT_PX = 300
"""Height between the axes of a figure with two lines of title."""

EXPECTED = "#666666"
LINE_MARKS = {
    "strict": (style.BOUND, "dash", "square-open"),
    "expected": (EXPECTED, "dashdot", "diamond-open"),
    "target": (style.BOUND_SOFT, "dot", "x"),
}
"""Line of the roofline -> (colour, dash, symbol)."""


RATES = ("bf16", "fp16", "fp8", "int8", "fp4", "fp32")
DEFAULT_RATES = ("bf16", "fp16")
"""Rates of which the first that the hardware has is the compute roof."""


class _Hardware(Protocol):
    """What is drawn of physics.hardware.Hardware, and its ``<rate>_flop_per_s`` [FLOP/s]."""

    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def mem_bw_bytes_per_s(self) -> float: ...  # noqa: D102


class _Roofline(Protocol):
    """What is drawn of physics.bound.Roofline."""

    @property
    def refused(self) -> str | None: ...  # noqa: D102
    @property
    def achievable_frac(self) -> float: ...  # noqa: D102
    @property
    def running_req(self) -> Sequence[float]: ...  # noqa: D102
    @property
    def regimes(self) -> Sequence[str]: ...  # noqa: D102
    @property
    def knees_req(self) -> Mapping[str, float]: ...  # noqa: D102
    @property
    def expected_refused(self) -> str | None: ...  # noqa: D102
    def to_frame(self) -> pd.DataFrame: ...  # noqa: D102


def roofline_steps(
    roofline: _Roofline, levels: pd.DataFrame | None = None, *, title: str = "", subtitle: str = ""
) -> go.Figure:
    """Draw measured, strict, expected and target step time over running requests, both axes logarithmic.

    Parameters
    ----------
    roofline : physics.bound.Roofline
        With the measured steps inside; a line that it lacks is not drawn.
    levels : DataFrame, schema LEVELS, optional
        Gives the whiskers of the measured steps; the rows at the roofline's levels are used.
    title, subtitle : str
        Finding and run; the title is computed if empty.
    """
    if roofline.refused:
        return style.nothing_to_draw(title or "No roofline can be drawn", roofline.refused, subtitle)
    table = roofline.to_frame().sort_values("running_req")
    figure = go.Figure()
    line_ends = [_draw_line(figure, table, name) for name in LINE_MARKS if table[f"{name}_step_s"].notna().any()]
    measured = table[table["step_s"].notna()]
    if len(measured):
        _draw_measured(figure, measured, levels)
        line_ends.append(("measured", measured["running_req"].iloc[-1], measured["step_s"].iloc[-1], style.STEADY))
    drawn = [table[["step_s", *(f"{name}_step_s" for name in LINE_MARKS)]].to_numpy(float), *_ends(measured, levels)]
    steps = np.concatenate([np.ravel(values) for values in drawn])
    ticks = [float(value) for value in table["running_req"]]
    knees_req = _near(roofline.knees_req, ticks)
    low, high = np.nanmin(steps) / 1.15, np.nanmax(steps) * 1.15
    high *= (high / low) ** (len(knees_req) * LABEL_GAP_PX / PLOT_HEIGHT_PX)  # room for the names of the knees
    _name_lines(figure, line_ends, px_per_decade=PLOT_HEIGHT_PX / np.log10(high / low))
    named = np.array(ticks)[_apart(ticks, 0.04)]
    figure.update_xaxes(type="log", title={"text": "running requests [req]"}, tickvals=named,
                        ticktext=[level_key(value) for value in named])
    seconds = _ticks(low, high)
    figure.update_yaxes(type="log", title={"text": "step time [s]"}, tickvals=seconds,
                        range=[np.log10(low), np.log10(high)],
                        ticktext=[f"{value:g} s" if value >= 1 else f"{value * MS_PER_S:.3g} ms" for value in seconds])
    figure.update_layout(margin={"r": 90})
    _mark_knees(figure, knees_req, ticks)
    return style.finish(figure, title or ratio_finding(roofline), subtitle, _notes(roofline, ticks))


def _draw_line(figure: go.Figure, table: pd.DataFrame, name: str) -> tuple[str, float, float, str]:
    """Draw one line; return its name, the place of its end, and its colour."""
    colour, dash, symbol = LINE_MARKS[name]
    part = table[table[f"{name}_step_s"].notna()]
    figure.add_trace(
        go.Scatter(
            x=part["running_req"], y=part[f"{name}_step_s"], mode="lines+markers", name=name, showlegend=False,
            line={"color": colour, "dash": dash, "width": 2}, marker={"symbol": symbol, "size": 7},
            hovertemplate="%{x:.4g} req<br>%{y:.4s}s<extra>" + name + "</extra>",
        )
    )
    return name, part["running_req"].iloc[-1], part[f"{name}_step_s"].iloc[-1], colour


def _draw_measured(figure: go.Figure, measured: pd.DataFrame, levels: pd.DataFrame | None) -> None:
    lo, hi = _ends(measured, levels)
    step_s = measured["step_s"].to_numpy(float)
    lines = [name for name in LINE_MARKS if measured[f"step_over_{name}"].notna().any()]
    ratios = ", ".join(f"%{{customdata[{i}]:.3g}}x {name}" for i, name in enumerate(lines))
    figure.add_trace(
        go.Scatter(
            x=measured["running_req"], y=step_s, mode="markers", name="measured", showlegend=False,
            marker={"color": style.STEADY, "size": 10}, error_y=style.whiskers(step_s, lo, hi, style.STEADY),
            customdata=measured[[f"step_over_{name}" for name in lines]].to_numpy(float),
            hovertemplate="%{x:.4g} req<br>%{y:.4s}s<br>" + ratios + "<extra>measured</extra>",
        )
    )


def _name_lines(figure: go.Figure, line_ends: list[tuple[str, float, float, str]], px_per_decade: float) -> None:
    """Name each line at its end, names that would cover each other pushed apart around their middle."""
    ordered = sorted(line_ends, key=lambda end: end[2])
    wanted = np.array([px_per_decade * np.log10(step_s) for _, _, step_s, _ in ordered])
    placed = wanted.copy()
    for _ in range(len(placed)):
        for i in np.flatnonzero(np.diff(placed) < LABEL_GAP_PX - 1e-6):
            middle = (placed[i] + placed[i + 1]) / 2
            placed[i], placed[i + 1] = middle - LABEL_GAP_PX / 2, middle + LABEL_GAP_PX / 2
    for (name, running_req, step_s, colour), shift in zip(ordered, placed - wanted, strict=True):
        style.end_label(figure, np.log10(running_req), np.log10(step_s), name, colour, yshift=round(float(shift)),
                        bgcolor=VEIL)


def _apart(values: Sequence[float] | np.ndarray, least_frac: float) -> np.ndarray:
    """Tell which names fit beside each other on a logarithmic axis, the last one first; apart: share of the span."""
    places = np.log10(np.asarray(values, dtype="float64"))
    least = least_frac * (places.max() - places.min())
    kept: list[int] = []
    for i in reversed(range(len(places))):
        if not kept or np.abs(places[kept] - places[i]).min() >= least > 0:
            kept.append(i)
    return np.isin(np.arange(len(places)), kept)


TICK_STEPS = ((1, 2, 5), (1, 1.5, 2, 3, 4, 5, 6, 8))
"""Ticks of a decade, coarse and fine."""


def _ticks(low: float, high: float) -> list[float]:
    """Return the ticks of every decade between two ends; five even ones where fewer than three fit."""
    decades = range(int(np.floor(np.log10(low))), int(np.ceil(np.log10(high))) + 1)
    for steps in TICK_STEPS:
        inside = [value for decade in decades for step in steps if low <= (value := step * 10.0**decade) <= high]
        if len(inside) > 2:
            return inside
    return [float(f"{value:.3g}") for value in np.linspace(low, high, 7)[1:-1]]


def _ends(measured: pd.DataFrame, levels: pd.DataFrame | None) -> tuple[np.ndarray, np.ndarray]:
    if levels is None:
        missing = np.full(len(measured), np.nan)
        return missing, missing
    used = levels[levels["population"].eq(0)].drop_duplicates("running_req").set_index("running_req")
    ends = used.reindex(measured["running_req"])
    return ends["step_s_lo"].to_numpy(float), ends["step_s_hi"].to_numpy(float)


def _near(knees_req: Mapping[str, float], levels: Sequence[float]) -> dict[str, float]:
    low, high = min(levels) / NEAR_RATIO, max(levels) * NEAR_RATIO
    return {name: at for name, at in sorted(knees_req.items(), key=lambda item: item[1]) if low <= at <= high}


def _mark_knees(figure: go.Figure, knees_req: Mapping[str, float], levels: Sequence[float]) -> None:
    """Mark the knees near the levels, each name on a line of its own; the axis grows to hold them."""
    at_all = [*knees_req.values(), *levels]
    low, high = np.log10([min(at_all), max(at_all)])
    margin = 0.04 * (high - low) if high > low else 0.3
    figure.update_xaxes(range=[low - margin, high + margin])
    for i, (name, at) in enumerate(knees_req.items()):
        is_right = np.log10(at) > (low + high) / 2
        figure.add_vline(x=at, line={"color": style.BASELINE, "width": 1, "dash": "dot"}, opacity=1)
        figure.add_annotation(x=np.log10(at), y=1, yref="paper", text=f"{name}: N = {show(at)}", showarrow=False,
                              xanchor="right" if is_right else "left", xshift=-4 if is_right else 4, yanchor="top",
                              yshift=-i * LABEL_GAP_PX, font={"size": 12}, bgcolor=VEIL)


def _notes(roofline: _Roofline, levels: Sequence[float]) -> list[str]:
    """Say the share of the target line, the regime, the knees near the data, and why a line is missing."""
    notes = [f"target: {100 * roofline.achievable_frac:.0f} % of the peak bandwidth"]
    if roofline.regimes:
        line = "strict" if roofline.expected_refused else "expected"
        notes.append(f"{line}: mostly {regimes_finding(roofline.running_req, roofline.regimes)}")
    notes += [f"above N = {show(at)} {KNEE_WORDS.get(name, name)}"
              for name, at in _near(roofline.knees_req, levels).items()]
    return notes


def ratio_to_bound(roofline: _Roofline, *, title: str = "", subtitle: str = "") -> go.Figure:
    """Draw how many times longer the measured step is than each line of the roofline, at each level."""
    if roofline.refused:
        return style.nothing_to_draw(title or "No distance can be stated", roofline.refused, subtitle)
    table = roofline.to_frame().sort_values("running_req")
    if not np.isfinite(table["step_over_strict"].to_numpy(float)).any():
        reason = "No measured step at these levels."
        return style.nothing_to_draw(title or "No distance can be stated", reason, subtitle)
    keys = [level_key(value) for value in table["running_req"]]
    figure = go.Figure()
    for name, side in (("strict", "top center"), ("expected", None), ("target", "bottom center")):
        if table[f"step_over_{name}"].notna().any():
            figure.add_trace(_ratio_trace(keys, table[f"step_over_{name}"], name, side))
    figure.add_hline(y=1, line={"color": style.BOUND, "width": 1})
    top = float(table["step_over_strict"].max())
    is_far = top > FAR_RATIO
    figure.update_yaxes(type="log" if is_far else "linear", range=None if is_far else [0, 1.18 * top])
    figure.add_annotation(text="1 = at the<br>bound", x=1, xref="paper", xanchor="left", y=0 if is_far else 1, xshift=4,
                          showarrow=False, align="left")
    figure.update_layout(margin={"r": 90})
    figure.update_xaxes(title={"text": "running requests [req]"}, type="category")
    figure.update_yaxes(title={"text": "measured step over bound [1]"})
    return style.finish(figure, title or ratio_finding(roofline), subtitle)


def _ratio_trace(keys: list[str], times: pd.Series, name: str, side: str | None) -> go.Scatter:
    """Return the ratios to one line, each with its number; those between two others are numbers in the hover only."""
    colour, dash, symbol = LINE_MARKS[name]
    text: dict[str, Any] = {} if side is None else {"textposition": side, "text": [f"{value:.3g}x" for value in times]}
    return go.Scatter(
        x=keys, y=times, mode="lines+markers" if side is None else "lines+markers+text", name=f"over {name}", **text,
        marker={"color": colour, "symbol": symbol, "size": 9}, line={"color": colour, "dash": dash, "width": 1},
        textfont={"color": colour}, hovertemplate="%{x} req<br>%{y:.3g}x<extra>over " + name + "</extra>",
    )


def ratio_finding(roofline: _Roofline) -> str:
    """Say the distance at the lowest and the highest level, with the line and the level named."""
    table = roofline.to_frame().sort_values("running_req")
    known = table[table["step_over_target"].notna()]
    if known.empty:
        return "The hardware's bounds at these levels; no step was measured"
    words = [
        f"{show(row['step_over_target'])} times the target at {requests(row['running_req'])}"
        for _, row in known.iloc[[0, -1]].drop_duplicates("running_req").iterrows()
    ]
    return f"A step takes {' and '.join(words)}"


def roofline_intensity(
    points: pd.DataFrame, hardware: _Hardware, *, rates: Sequence[str] = (), title: str = "", subtitle: str = ""
) -> go.Figure:
    """Draw achieved FLOP/s over arithmetic intensity under the memory slope and the compute roof, both logarithmic.

    Parameters
    ----------
    points : DataFrame
        ``components.achieved``: running_req, flop and read_bytes of one step and rank, flop_per_s and mbu_frac with
        ``_lo`` and ``_hi``; levels where FLOPs or bytes are unknown are left out.
    hardware : Hardware
        One rank's accelerator.
    rates : sequence of str
        Formats whose rates are drawn as roofs (bf16, fp8, ...); by default that of 16 bit.
    title, subtitle : str
        Finding and run; the title is computed if empty.
    """
    used = points[points[["read_bytes", "flop", "flop_per_s"]].gt(0).all(axis=1)].sort_values("running_req")
    if used.empty:
        return style.nothing_to_draw(title or "No level can be placed under the roofline",
                                     "FLOPs and bytes of a step, or its measured time, are not known.", subtitle)
    intensity = (used["flop"] / used["read_bytes"]).to_numpy(float)
    roofs = _roofs(hardware, rates)
    bandwidth = hardware.mem_bw_bytes_per_s
    ridges = [rate / bandwidth for rate in roofs.values()]
    low, high = intensity.min() / 3, max(intensity.max(), *ridges, 0.0) * 8
    figure = go.Figure()
    top = max(roofs.values(), default=bandwidth * high)
    _draw_memory(figure, low, top / bandwidth, bandwidth)
    for name, rate in roofs.items():
        _draw_roof(figure, name, rate, bandwidth, high)
    _draw_points(figure, used, intensity, bandwidth, min(roofs.values(), default=high * bandwidth))
    bottom = min(float(used["flop_per_s"].min()), low * bandwidth) / 2
    figure.update_xaxes(type="log", title={"text": "arithmetic intensity [FLOP/byte]"}, dtick=1,
                        range=[np.log10(low), np.log10(high)])
    figure.update_yaxes(type="log", title={"text": "achieved per rank [FLOP/s]"}, tickformat="~s", dtick=1,
                        range=[np.log10(bottom), np.log10(3 * top)])
    figure.update_layout(margin={"r": 150})
    notes = [f"{hardware.name}: roofs are the peaks of one rank"]
    if not roofs:
        notes.append("no rate of the hardware is known: there is no compute roof")
    found = _intensity_finding(used.iloc[-1], intensity[-1], bandwidth, roofs)
    return style.finish(figure, title or found, subtitle, notes)


def _roofs(hardware: _Hardware, rates: Sequence[str]) -> dict[str, float]:
    known = {name: rate for name in RATES if (rate := getattr(hardware, f"{name}_flop_per_s", None))}
    if rates:
        return {name: known[name] for name in rates if name in known}
    return dict([(name, known[name]) for name in DEFAULT_RATES if name in known][:1])


def _draw_memory(figure: go.Figure, low: float, ridge: float, bandwidth: float) -> None:
    figure.add_trace(go.Scatter(
        x=[low, ridge], y=[low * bandwidth, ridge * bandwidth], mode="lines", name="memory", showlegend=False,
        line={"color": style.BOUND, "dash": "dash", "width": 2},
        hovertemplate="%{x:.3~s} FLOP/byte<br>%{y:.3~s}FLOP/s<extra>memory</extra>",
    ))
    # The slope of a log-log line is one decade per decade: its name says the factor, bytes per second.
    middle = low ** 0.6 * ridge ** 0.4
    figure.add_annotation(x=np.log10(middle), y=np.log10(middle * bandwidth), xanchor="right", yanchor="bottom",
                          text=f"memory: {bandwidth / 1e9:.4g} GB/s", showarrow=False, xshift=-6,
                          font={"color": style.BOUND, "size": 12})


def _draw_roof(figure: go.Figure, name: str, rate: float, bandwidth: float, high: float) -> None:
    ridge = rate / bandwidth
    figure.add_trace(go.Scatter(
        x=[ridge, high], y=[rate, rate], mode="lines", name=f"compute ({name})", showlegend=False,
        line={"color": style.BOUND, "dash": "dash", "width": 2},
        hovertemplate="%{y:.3~s}FLOP/s<extra>compute (" + name + ")</extra>",
    ))
    figure.add_trace(go.Scatter(
        x=[ridge], y=[rate], mode="markers", name=f"ridge ({name})", showlegend=False,
        marker={"color": style.BOUND, "symbol": "diamond", "size": 10},
        hovertemplate="ridge: %{x:.4g} FLOP/byte<extra>" + name + "</extra>",
    ))
    style.end_label(figure, np.log10(high), np.log10(rate), f"{name}: {rate / 1e12:.4g} TFLOP/s", style.BOUND)
    figure.add_annotation(x=np.log10(ridge), y=np.log10(rate), xanchor="left", yanchor="top", xshift=6, yshift=-2,
                          text=f"ridge: {show(ridge)} FLOP/byte", showarrow=False,
                          font={"color": style.BOUND, "size": 12})


def _draw_points(figure: go.Figure, used: pd.DataFrame, intensity: np.ndarray, bandwidth: float, roof: float) -> None:
    achieved = used["flop_per_s"].to_numpy(float)
    allowed = np.minimum(intensity * bandwidth, roof)
    lo, hi = (used[f"flop_per_s_{end}"].to_numpy(float) for end in ("lo", "hi"))
    names = [f"N={level_key(value)}" for value in used["running_req"]]
    span_frac = 0.07 * np.log10(roof / bandwidth / intensity.min()) / max(np.ptp(np.log10(intensity)), 1e-9)
    named = np.where(_apart(intensity, max(span_frac, 0.07)), names, "")
    figure.add_trace(go.Scatter(
        x=intensity, y=achieved, mode="markers+text", name="measured", showlegend=False, text=named,
        textposition="bottom center", textfont={"color": style.STEADY, "size": 12},
        marker={"color": style.STEADY, "size": 9}, error_y=style.whiskers(achieved, lo, hi, style.STEADY),
        customdata=np.column_stack([used["running_req"], achieved / allowed]),
        hovertemplate="N=%{customdata[0]:.4g} req<br>%{x:.3~s} FLOP/byte<br>%{y:.3~s}FLOP/s"
                      "<br>%{customdata[1]:.0%} of the roof there<extra>measured</extra>",
    ))


def _intensity_finding(row: pd.Series, intensity: float, bandwidth: float, roofs: Mapping[str, float]) -> str:
    at = f"At N={level_key(row['running_req'])} a step does {show(intensity)} FLOP per byte"
    if not roofs:
        return at
    name, rate = next(iter(roofs.items()))
    ridge = rate / bandwidth
    if intensity < ridge:
        reached = show_share(row["mbu_frac"], row["mbu_frac_lo"], row["mbu_frac_hi"])
        return f"{at}, left of the ridge at {show(ridge)}: it reaches {reached} of what memory allows"
    reached = show_share(*(row[f"flop_per_s{end}"] / rate for end in ("", "_lo", "_hi")))
    return f"{at}, right of the ridge at {show(ridge)}: it reaches {reached} of what compute in {name} allows"
