"""Figures of the roofline: the measured step beside what the hardware allows at the same levels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from helpers.display import MS_PER_S, level_key, requests, show
from helpers.plots import style

FAR_RATIO = 20.0
"""Ratio above which the distance is drawn on a logarithmic axis [1]."""


class _Line(Protocol):
    """One line of the roofline (physics.step.Line)."""

    @property
    def intercept_s(self) -> float: ...  # noqa: D102
    @property
    def slope_s_per_req(self) -> float: ...  # noqa: D102


class _Roofline(Protocol):
    """What is drawn of physics.step.Roofline."""

    @property
    def refused(self) -> str | None: ...  # noqa: D102
    @property
    def achievable_frac(self) -> float: ...  # noqa: D102
    @property
    def strict(self) -> _Line | None: ...  # noqa: D102
    @property
    def assumptions(self) -> Sequence[str]: ...  # noqa: D102
    def to_frame(self) -> pd.DataFrame: ...  # noqa: D102


def roofline_steps(
    roofline: _Roofline, levels: pd.DataFrame | None = None, *, title: str = "", subtitle: str = ""
) -> go.Figure:
    """Draw measured, strict and target step time over running requests, both axes logarithmic.

    Parameters
    ----------
    roofline : physics.step.Roofline
        With the measured steps inside.
    levels : DataFrame, schema LEVELS, optional
        Gives the whiskers of the measured steps; the rows at the roofline's levels are used.
    title, subtitle : str
        Finding and run; the title is computed if empty.
    """
    if roofline.refused:
        return style.nothing_to_draw(title or "No roofline can be drawn", roofline.refused, subtitle)
    table = roofline.to_frame().sort_values("running_req")
    figure = go.Figure()
    lines = (
        ("strict", "strict_step_s", style.BOUND, "dash", "square-open", -8),
        ("target", "target_step_s", style.BOUND_SOFT, "dot", "x", 8),
    )
    for name, column, colour, dash, symbol, shift in lines:
        part = table[table[column].notna()]
        figure.add_trace(
            go.Scatter(
                x=part["running_req"], y=part[column], mode="lines+markers", name=name, showlegend=False,
                line={"color": colour, "dash": dash, "width": 2}, marker={"symbol": symbol, "size": 7},
                hovertemplate="%{x:.4g} req<br>%{y:.4s}s<extra>" + name + "</extra>",
            )
        )
        if len(part):
            last = part.iloc[-1]
            style.end_label(figure, np.log10(last["running_req"]), np.log10(last[column]), name, colour, yshift=shift)
    measured = table[table["step_s"].notna()]
    if len(measured):
        lo, hi = _ends(measured, levels)
        step_s = measured["step_s"].to_numpy(float)
        figure.add_trace(
            go.Scatter(
                x=measured["running_req"], y=step_s, mode="markers", name="measured", showlegend=False,
                marker={"color": style.STEADY, "size": 10}, error_y=style.whiskers(step_s, lo, hi, style.STEADY),
                customdata=measured[["step_over_strict", "step_over_target"]].to_numpy(float),
                hovertemplate="%{x:.4g} req<br>%{y:.4s}s<br>%{customdata[0]:.3g}x strict, %{customdata[1]:.3g}x target"
                              "<extra>measured</extra>",
            )
        )
        top_req = float(measured["running_req"].iloc[-1])
        style.end_label(figure, np.log10(top_req), np.log10(step_s[-1]), "measured", style.STEADY)
    ticks = [float(value) for value in table["running_req"]]
    figure.update_xaxes(type="log", title={"text": "running requests [req]"}, tickvals=ticks,
                        ticktext=[level_key(value) for value in ticks])
    seconds = _ticks(table[["step_s", "strict_step_s", "target_step_s"]].to_numpy(float))
    figure.update_yaxes(type="log", title={"text": "step time [s]"}, tickvals=seconds,
                        ticktext=[f"{value * MS_PER_S:g} ms" for value in seconds])
    figure.update_layout(margin={"r": 90})
    notes = [f"target: {100 * roofline.achievable_frac:.0f} % of the peak bandwidth", *_knee(roofline, figure, ticks)]
    return style.finish(figure, title or ratio_finding(roofline), subtitle, notes)


def _ticks(values: np.ndarray) -> list[float]:
    """Return ticks at 1, 2 and 5 of every decade that the values span."""
    known = values[np.isfinite(values)]
    decades = range(int(np.floor(np.log10(known.min()))), int(np.ceil(np.log10(known.max()))) + 1)
    every = [step * 10.0**decade for decade in decades for step in (1, 2, 5)]
    return [value for value in every if 0.5 * known.min() <= value <= 2 * known.max()]


def _ends(measured: pd.DataFrame, levels: pd.DataFrame | None) -> tuple[np.ndarray, np.ndarray]:
    if levels is None:
        missing = np.full(len(measured), np.nan)
        return missing, missing
    used = levels[levels["population"].eq(0)].drop_duplicates("running_req").set_index("running_req")
    ends = used.reindex(measured["running_req"])
    return ends["step_s_lo"].to_numpy(float), ends["step_s_hi"].to_numpy(float)


def _knee(roofline: _Roofline, figure: go.Figure, levels: Sequence[float]) -> list[str]:
    """Mark where the bytes per request pass the weights, if that is near the data; return the note."""
    strict = roofline.strict
    if strict is None or not strict.slope_s_per_req > 0:
        return []
    knee_req = strict.intercept_s / strict.slope_s_per_req
    note = f"strict: weights below, context above N = {show(knee_req)}"
    if min(levels) <= knee_req <= max(levels):
        figure.add_vline(x=knee_req, line={"color": style.BOUND, "width": 1, "dash": "dot"})
        figure.add_annotation(x=np.log10(knee_req), y=1, yref="paper", text=f"N = {show(knee_req)}", showarrow=False,
                              xanchor="left", xshift=4)
    return [note]


def ratio_to_bound(roofline: _Roofline, *, title: str = "", subtitle: str = "") -> go.Figure:
    """Draw how many times longer the measured step is than the strict and the target one, at each level."""
    if roofline.refused:
        return style.nothing_to_draw(title or "No distance can be stated", roofline.refused, subtitle)
    table = roofline.to_frame().sort_values("running_req")
    if not np.isfinite(table["step_over_strict"].to_numpy(float)).any():
        reason = "No measured step at these levels."
        return style.nothing_to_draw(title or "No distance can be stated", reason, subtitle)
    keys = [level_key(value) for value in table["running_req"]]
    figure = go.Figure()
    for name, column, colour, symbol, side in (
        ("over strict", "step_over_strict", style.BOUND, "circle", "top center"),
        ("over target", "step_over_target", style.BOUND_SOFT, "x", "bottom center"),
    ):
        figure.add_trace(
            go.Scatter(
                x=keys, y=table[column], mode="lines+markers+text", name=name, textposition=side,
                text=[f"{value:.3g}x" for value in table[column]],
                marker={"color": colour, "symbol": symbol, "size": 9},
                line={"color": colour, "dash": "dash", "width": 1}, textfont={"color": colour},
                hovertemplate="%{x} req<br>%{y:.3g}x<extra>" + name + "</extra>",
            )
        )
    figure.add_hline(y=1, line={"color": style.BOUND, "width": 1})
    top = float(table["step_over_strict"].max())
    is_far = top > FAR_RATIO
    figure.update_yaxes(type="log" if is_far else "linear", range=None if is_far else [0, 1.18 * top])
    figure.add_annotation(text="1 = at the bound", x=1, xref="paper", xanchor="right", y=0 if is_far else 1, yshift=8,
                          showarrow=False)
    figure.update_xaxes(title={"text": "running requests [req]"}, type="category")
    figure.update_yaxes(title={"text": "measured step over bound [1]"})
    return style.finish(figure, title or ratio_finding(roofline), subtitle)


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
