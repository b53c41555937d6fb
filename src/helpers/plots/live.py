"""Figures that a person zooms, brushes and clicks: a plotly widget, and which points it draws of very many."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from tsdownsample import MinMaxLTTBDownsampler

from helpers.plots.logs import timeline

DRAWN_POINTS = 1000
"""Points of one trace of a live timeline; a screen has fewer columns than that."""

AROUND_FRAC = 0.1
"""What is drawn on either side of the view, as a share of it: dragging shows no empty margin."""

TOP_PX, BELOW_PX = 12, 84
"""Margins of a live figure: its title is said beside it."""


def keep_extremes(
    part: pd.DataFrame, *, within_s: tuple[float, float] | None = None, limit: int = DRAWN_POINTS
) -> tuple[pd.DataFrame, str]:
    """Choose the rows to draw so that no peak and no dip is lost.

    Parameters
    ----------
    part : DataFrame, schema INTERVALS
    within_s : (start_s, end_s), optional
        The view [s]; what lies far from it is not drawn.
    limit : int
        Rows at most.

    Returns
    -------
    (DataFrame, str)
        Rows rising in time, and the note that says how many of how many they are (empty if all). Rows without a stamp
        cannot be drawn.
    """
    timed = part[part["t_s"].notna()].sort_values("t_s", kind="stable")
    if within_s is not None:
        around_s = AROUND_FRAC * (within_s[1] - within_s[0])
        timed = timed[timed["t_s"].between(within_s[0] - around_s, within_s[1] + around_s)]
    if len(timed) <= limit:
        return timed, ""
    columns = ("decode_tok_per_s", "running_req_printed")
    x = timed["t_s"].to_numpy(float)
    chosen = [MinMaxLTTBDownsampler().downsample(x, np.nan_to_num(timed[name].to_numpy(float)), n_out=limit // 2)
              for name in columns]
    rows = np.unique(np.concatenate(chosen))
    return timed.iloc[rows], f"{len(rows)} of {len(timed)} points drawn, extremes kept; zoom in for more"


def live_timeline(
    intervals: pd.DataFrame, events: pd.DataFrame | None = None, *, within_s: tuple[float, float] | None = None,
    width_px: int, height_px: int,
) -> go.Figure:
    """Draw the timeline without its title, of the size of a panel; parameters as of `timeline` and `keep_extremes`."""
    figure = timeline(intervals, events, thin=lambda part: keep_extremes(part, within_s=within_s))
    return compact(figure, width_px, height_px).update_layout(dragmode="select", selectdirection="h").update_yaxes(
        fixedrange=True)


def compact(figure: go.Figure, width_px: int, height_px: int) -> go.Figure:
    """Return a figure without title, of a size in pixels; the legend below stays in sight."""
    plot_px = height_px - TOP_PX - BELOW_PX
    legend = {"y": -50 / max(plot_px, 60), "font": {"size": 11}}
    for update in (figure.update_xaxes, figure.update_yaxes):
        update(title={"font": {"size": 12}}, tickfont={"size": 11})
    return figure.update_layout(width=width_px, height=height_px, title={"text": ""}, legend=legend, autosize=False,
                                margin={"l": 70, "r": 56, "t": TOP_PX, "b": BELOW_PX})


@cache
def _live_class() -> Any:
    """Return the class of `live_figure`; that of plotly takes a second to import, which a run without it saves."""

    class LiveFigure(go.FigureWidget):
        told_of_brush: Callable[[float, float], None] | None = None

        def plotly_relayout(self, relayout_data: dict[str, Any], **kwargs: Any) -> None:
            """Take what the browser says of the layout.

            A drawn box does not reach the layout of plotly 7.1 (it has properties that are not set), and the event of
            the points in it is not always sent: so it is read here.
            """
            boxes = relayout_data.get("selections")
            rest = {name: value for name, value in relayout_data.items() if not name.startswith("selections")}
            if rest:
                super().plotly_relayout(rest, **kwargs)
            if boxes:
                ends = sorted((float(boxes[-1]["x0"]), float(boxes[-1]["x1"])))
                # Only a box that Python knows of can be taken away in the browser.
                self.layout.selections = [{"type": "rect", "x0": ends[0], "x1": ends[1], "y0": 0, "y1": 0}]
                self.layout.selections = []
                if self.told_of_brush is not None:
                    self.told_of_brush(*ends)

    return LiveFigure


def live_figure(figure: go.Figure) -> Any:
    """Return a figure as a FigureWidget whose data can be replaced in place."""
    return _live_class()(figure)


def on_brush(widget: Any, call: Callable[[float, float], None]) -> None:
    """Call with start and end on the time axis [s] of every box that is drawn over a live figure; it then goes away."""
    widget.told_of_brush = call


def _key(trace: Any) -> tuple[str, str]:
    return str(trace.name), str(trace.yaxis or "y")


DATA = ("x", "y", "customdata", "text")
"""What differs between two states of one trace."""


def refresh(widget: Any, figure: go.Figure, attach: Callable[[Any], None] | None = None) -> None:
    """Put the data of a figure into a widget; view and selection mode stay.

    Parameters
    ----------
    widget : FigureWidget
        From `live_figure`.
    figure : Figure
        Traces are matched by name and axis; one that is missing is emptied.
    attach : callable, optional
        Called with every trace that is new.
    """
    new = {_key(trace): trace for trace in figure.data}
    with widget.batch_update():
        for trace in widget.data:
            source = new.pop(_key(trace), None)
            state = {name: None if source is None else source[name] for name in DATA if name in trace}
            trace.update(state | {"selectedpoints": None}, overwrite=True)
            trace.visible = source is not None
    for trace in new.values():
        widget.add_trace(trace)
        if attach is not None:
            attach(widget.data[-1])


def on_zoom(widget: Any, call: Callable[[tuple[float, float] | None], None]) -> None:
    """Call with the times in view [s] whenever they change, None where all is in view."""

    def changed(_: Any, x_range: Any, is_auto: Any) -> None:
        whole = x_range is None or is_auto
        call(None if whole else (float(x_range[0]), float(x_range[1])))

    widget.layout.on_change(changed, "xaxis.range", "xaxis.autorange")


def on_point(trace: Any, call: Callable[[float, int], None]) -> None:
    """Call with time [s] and line number of an interval that is clicked."""

    def clicked(of: Any, points: Any, _: Any) -> None:
        if points.point_inds and of.customdata is not None:
            index = points.point_inds[0]
            call(float(of.x[index]), int(of.customdata[index][3]))

    trace.on_click(clicked)
