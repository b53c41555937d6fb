"""The history of runs: each quantity over time, with its intervals and the steps that were found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from helpers.compare import words
from helpers.display import show
from helpers.plots import style

PANEL_PX, MARGINS_PX, GAP_PX = 170, 190, 46


def history_panels(
    series: Sequence[Mapping[str, Any]], names: Sequence[str], *, threshold_frac: float, title: str, subtitle: str = ""
) -> go.Figure:
    """Draw every series of one configuration in a panel of its own, as change against its first segment.

    Parameters
    ----------
    series : sequence of mapping
        Entries of ``history_card(...)["series"]``: points (when, run, value, lo, hi, engine_version), changes, unit.
    names : sequence of str
        What a reader calls each.
    threshold_frac : float
        Half width of the grey band about each segment before the newest [1].
    title, subtitle : str
        Finding and configuration.

    Returns
    -------
    Figure
        Per series the runs with whiskers, a line per segment, and a dashed line with the effect at each step; hovering
        shows run folder, value and engine version.
    """
    drawn = [(entry, name) for entry, name in zip(series, names, strict=True) if entry["points"]]
    if not drawn:
        return style.nothing_to_draw(title, "There is no run to draw.", subtitle)
    height = MARGINS_PX + len(drawn) * PANEL_PX
    figure = make_subplots(rows=len(drawn), cols=1, shared_xaxes=True, vertical_spacing=GAP_PX / height,
                           subplot_titles=[style.safe(name) for _, name in drawn])
    figure.update_layout(height=height, showlegend=False)
    for row, (entry, name) in enumerate(drawn, start=1):
        _panel(figure, row, entry, name, threshold_frac)
    figure.update_xaxes(title={"text": "time of the run"}, row=len(drawn))
    return style.finish(figure, title, subtitle, [
        "each against its first segment", f"grey band: ±{words.percent(threshold_frac)} about the segment before",
        "whiskers: 95 % interval of the run itself"])


def _panel(figure: go.Figure, row: int, entry: Mapping[str, Any], name: str, threshold_frac: float) -> None:
    points = pd.DataFrame(entry["points"]).astype({"value": float, "lo": float, "hi": float})
    when = pd.to_datetime(points["when"], format="ISO8601")
    value, lo, hi = (points[column].to_numpy(float) for column in ("value", "lo", "hi"))
    starts = [0, *(change["index"] for change in entry["changes"]), len(points)]
    levels = [change["after"] for change in entry["changes"]]
    levels.insert(0, entry["changes"][0]["before"] if levels else float(np.exp(np.log(value).mean())))
    first = levels[0]
    figure.add_trace(go.Scatter(
        x=when, y=value / first - 1, mode="markers", name=name, marker={"color": style.STEADY, "size": 7},
        error_y=style.whiskers(value / first, lo / first, hi / first, style.STEADY),
        customdata=np.column_stack([
            points["run"].map(lambda run: style.safe(Path(run).name)), points["engine_version"].map(style.safe),
            [show(v, entry["unit"], a, b) for v, a, b in zip(value, lo, hi, strict=True)]]).astype(object),
        hovertemplate="%{x}<br>%{customdata[2]}<br>%{customdata[0]}<br>engine %{customdata[1]}<extra>%{fullData.name}"
                      "</extra>",
    ), row=row, col=1)
    for i, level in enumerate(levels):
        ends = when.iloc[starts[i]], when.iloc[starts[i + 1] - 1]
        colour = style.BOUND if i == 0 or not entry["changes"][i - 1]["is_worse"] else style.REGRESSION
        figure.add_trace(go.Scatter(
            x=list(ends), y=[level / first - 1] * 2, mode="lines", name="segment", hoverinfo="skip",
            line={"color": colour, "width": 2}), row=row, col=1)
    newest_before = levels[-2] if len(levels) > 1 else first
    middle, half = newest_before / first - 1, threshold_frac * newest_before / first
    figure.add_hrect(y0=middle - half, y1=middle + half, fillcolor=style.BASELINE, opacity=0.15, line={"width": 0},
                     layer="below", row=row, col=1)
    middle_time = when.iloc[0] + (when.iloc[-1] - when.iloc[0]) / 2
    for change in entry["changes"]:
        at = pd.Timestamp(change["when"])
        side = {"xanchor": "right", "xshift": -4} if at > middle_time else {"xanchor": "left", "xshift": 4}
        figure.add_vline(x=at, line={"color": style.REGRESSION if change["is_worse"] else style.WARMUP, "dash": "dash",
                                     "width": 1.5}, row=row, col=1)
        figure.add_annotation(
            x=at, y=1, yref="y domain" if row == 1 else f"y{row} domain", xref="x" if row == 1 else f"x{row}",
            text=_effect(change), showarrow=False, yanchor="top", **side,
            font={"size": 12, "color": style.REGRESSION if change["is_worse"] else style.WARMUP})
    known = np.concatenate([value, lo[np.isfinite(lo)], hi[np.isfinite(hi)]]) / first - 1
    reach = max(1.5 * threshold_frac, float(np.abs(known).max()) * 1.1) if len(known) else threshold_frac
    # above the points there is room for the words at a step
    figure.update_yaxes(style.percent_axis("change"), range=[-reach, 1.6 * reach], row=row, col=1)


def _effect(change: Mapping[str, Any]) -> str:
    said = words.change(change["effect_frac"], change["lo_frac"], change["hi_frac"])
    return f"{'worse' if change['is_worse'] else 'better'} {said}"
