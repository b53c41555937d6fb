"""The figure of what a machine recorded while the log was written: phases, power, busy shares and clocks, one axis."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from helpers import schema
from helpers.evidence.clocks.windows import clip
from helpers.plots import style
from helpers.plots.stretches import Stretches, cover, find_stretches, phase_spans
from helpers.plots.telemetry_words import finding, members, notes

LABEL_HATCHES = {"steady": "", "ramp": "/", "mixed": "x", "drain": "\\", "warmup": ".", "idle": "-"}
"""Interval label -> hatch of its band: what tells labels apart without colour."""

HELD_LABELS = ("steady", "mixed", "drain")
"""Labels of intervals that begin with the count they end with, or nearly so."""

MAX_MEMBERS = 8
"""Devices or ranks drawn by name."""

SYMBOLS = ("circle", "square", "diamond", "triangle-up", "triangle-down", "cross", "star", "hexagon")

MIN_POINTS = 200
"""Samples drawn of every device at least, however many there are."""

PAUSE_RATIO = 5.0
"""A line breaks where no sample came for this many sampling periods: nothing was recorded there."""

ROOM = 1.1
"""Height of an axis over its highest value."""

LEGEND_PX = 165
"""Right margin: legends stand beside their row."""

ROW_PX, LEGEND_ENTRY_PX, MAX_FIRST_ENTRIES = 145, 19, 8
"""Height of a row and of an entry of its legend; entries beside the phases: six labels and two lines."""

TICKS = 9
"""Ticks of the time axis over all stretches together."""

TIME_TITLE = "time on the log's clock [s]"


@dataclass(frozen=True)
class _Series:
    """One trace: a column of some devices or ranks."""

    column: str
    name: str
    colour: str
    symbol: str
    dash: str = "solid"
    owner: str | None = None


@dataclass(frozen=True)
class _Panel:
    """One row of the figure below the phases; its legend is left out where a row above names the same devices."""

    title: str
    series: tuple[_Series, ...]
    limit: str | None = None
    axis: tuple[tuple[str, str], ...] = ()
    top: float | None = None
    has_legend: bool = True


SHARES = (
    ("busy_frac", "busy (any kernel)", style.STEADY, "circle", "solid"),
    ("sm_active_frac", "SMs active", style.DRAIN, "square", "dash"),
    ("tensor_active_frac", "tensor pipes active", style.MIXED, "diamond", "dot"),
    ("dram_active_frac", "DRAM active", style.REGRESSION, "triangle-up", "dash"),
    ("mem_busy_frac", "memory controller", style.PREFILL, "triangle-down", "dot"),
    ("kv_used_frac", "KV pool in use", style.WARMUP, "cross", "dashdot"),
)
"""Column, name, colour, symbol and dash of every share."""


def telemetry_over_phases(
    intervals: pd.DataFrame, table: pd.DataFrame, windows: Sequence[tuple[float, float]], *, margin_s: float = 0.0,
    title: str = "", subtitle: str = "",
) -> go.Figure:
    """Draw the phases of the log and what was recorded beside it, over one time axis.

    Parameters
    ----------
    intervals : DataFrame, schema INTERVALS
        Bands of their labels, running and waiting requests; where ranks differ, the label of most of them.
    table : DataFrame, schema TELEMETRY
        On the log's clock; rows of devices, of ranks, or of both.
    windows : sequence of (start_s, end_s)
        Loaded windows on the log's clock [s], whose samples are compared.
    margin_s : float
        What was taken off both ends of every window [s]: the uncertainty of the clock.
    title, subtitle : str
        Finding and run; the title is computed if empty.

    Returns
    -------
    Figure
        A row for each of requests, power, shares, SM clock and requests per rank that has data. Samples outside the
        windows are hollow. Long times in which nothing ran are cut out: the figure then has several columns.
    """
    schema.check(intervals, schema.INTERVALS)
    schema.check(table, schema.TELEMETRY)
    timed = table[table["t_s"].notna()].sort_values("t_s", kind="stable")
    if timed.empty:
        reason = "No sample has a time on the log's clock: the clocks could not be aligned, or no file was given."
        return style.nothing_to_draw(title or "No telemetry to hold against the log", reason, subtitle)
    timed = timed.assign(member=members(timed))
    inside = [(start + margin_s, end - margin_s) for start, end in windows if end - start > 2 * margin_s]
    timed["is_inside"] = timed.index.isin(clip(timed, inside).index)
    phases = phase_spans(intervals)
    load = _load(intervals)
    panels = list(_panels(timed))
    stretches = find_stretches(phases, timed["t_s"].to_numpy(float), inside)
    figure = make_subplots(
        rows=1 + len(panels), cols=len(stretches.spans), shared_xaxes=True, shared_yaxes=True, vertical_spacing=0.035,
        horizontal_spacing=0.03, column_widths=[end - start for start, end in stretches.spans],
        row_heights=_row_heights_px(panels),
    )
    for column, span in enumerate(stretches.spans, start=1):
        _draw_phases(figure, column, span, phases, load)
        for row, panel in enumerate(panels, start=2):
            _draw_panel(figure, (row, column), span, panel, timed, inside)
    _axes(figure, panels, load, timed, stretches)
    said = finding(timed, inside)
    cap = [f"{MAX_MEMBERS} of {timed['member'].nunique()} devices or ranks drawn by name"]
    extra = cap if timed["member"].nunique() > MAX_MEMBERS else []
    figure = style.finish(figure, title or said, subtitle,
                          [*notes(table, timed, inside, margin_s), *extra, *_thinned(panels, timed, stretches.spans),
                           *stretches.notes])
    # From the edge of the figure: beside the axis the lines of the title would not fit.
    return figure.update_layout(title={"xref": "container", "x": 0.02})


def _load(intervals: pd.DataFrame) -> pd.DataFrame:
    """Return t_s, server_life, running and queue: all ranks together where the log tells, the fullest queue."""
    timed = intervals[intervals["t_s"].notna()]
    total = timed["running_req_total"].fillna(timed["running_req_printed"].astype(float))
    table = timed.assign(running=total, queue=timed["queue_req"].astype(float))
    # A count is that of the end of its interval; it held from the start where the interval is no change of load.
    first = table.sort_values("t_s", kind="stable").groupby("server_life").head(1)
    first = first[first["label"].isin(HELD_LABELS)]
    first = first.assign(t_s=first["t_s"] - (first["interval_s"] - first["idle_s"]).fillna(0.0))
    table = pd.concat([first, table])
    return table.groupby(["server_life", "t_s"], as_index=False)[["running", "queue"]].max().sort_values("t_s")


def _panels(timed: pd.DataFrame) -> Iterator[_Panel]:
    """Yield the rows that have data."""
    has = {name for name in timed.columns if timed[name].notna().any()}
    if "power_w" in has:
        yield _Panel("board power [W]", tuple(_per_member(timed, "power_w")), "power_limit_w")
    shares = tuple(_Series(*mark) for mark in SHARES if mark[0] in has)
    if shares:
        yield _Panel("share [%]", shares, axis=(("tickformat", ".0%"),), top=1.0)
    if "sm_clock_hz" in has:
        hertz = (("tickformat", "~s"), ("ticksuffix", "Hz"))
        yield _Panel("SM clock [Hz]", tuple(_per_member(timed, "sm_clock_hz")), axis=hertz,
                     has_legend="power_w" not in has)
    for column, words in (("running_req", "running"), ("queue_req", "waiting")):
        if column in has:
            yield _Panel(f"{words} [req/rank]", tuple(_per_member(timed, column)),
                         has_legend=column == "running_req" or "running_req" not in has)


def _per_member(timed: pd.DataFrame, column: str) -> Iterator[_Series]:
    """Yield one series per device or rank that has the column; of many, those with the highest median."""
    medians = timed[timed[column].notna()].groupby("member")[column].median()
    names = medians.sort_values(ascending=False, kind="stable").index[:MAX_MEMBERS]
    colours = (style.STEADY, style.PREFILL, style.WARMUP, style.MIXED, style.DRAIN, style.REGRESSION, "#000000",
               style.BASELINE)
    for index, name in enumerate(sorted(names, key=lambda text: (len(text), text))):
        dash = ("solid", "dash", "dot", "dashdot")[index % 4]
        yield _Series(column, style.safe(name, 24), colours[index], SYMBOLS[index], dash, name)


def _draw_phases(
    figure: go.Figure, column: int, span: tuple[float, float], phases: pd.DataFrame, load: pd.DataFrame
) -> None:
    """Draw the first row of one stretch: bands of phases, then running and waiting requests."""
    top = _load_top(load)
    is_first = column == 1
    for label, (colour, _) in style.LABEL_MARKS.items():
        of_label = phases[phases["label"].eq(label)]
        spans = cover(of_label[["start_s", "end_s"]].to_numpy(float), span)
        if not len(spans) and not (is_first and len(of_label)):
            continue
        _band(figure, (1, column), spans, top, f"phase: {label}", colour, LABEL_HATCHES[label], is_shown=is_first)
    inside = load[load["t_s"].between(*span)]
    for name, key, dash, colour in (("running requests", "running", "solid", "#000000"),
                                    ("waiting requests", "queue", "dot", style.REGRESSION)):
        if load[key].isna().all():
            continue
        drawn, _ = style.thin(inside)
        # A line must not join two server lives.
        parts = [[*part[["t_s", key]].itertuples(index=False, name=None), (None, None)]
                 for _, part in drawn.groupby("server_life", sort=False)]
        points = [point for part in parts for point in part]
        figure.add_trace(go.Scatter(
            x=[x for x, _ in points], y=[y for _, y in points], mode="lines", name=name, legendgroup=name,
            legend="legend2", showlegend=is_first, line={"color": colour, "width": 1.5, "dash": dash, "shape": "vh"},
            hovertemplate="t = %{x:.1f} s<br>%{y} req<extra>" + name + "</extra>",
        ), row=1, col=column)


def _band(
    figure: go.Figure, at: tuple[int, int], spans: np.ndarray, top: float, name: str, colour: str, hatch: str, *,
    is_shown: bool,
) -> None:
    """Fill spans of time from the bottom of a row to its top, as one trace."""
    x = [value for start, end in spans for value in (start, start, end, end, None)]
    y = [value for _ in spans for value in (0.0, top, top, 0.0, None)]
    faint = style.rgba(colour, style.BAND_OPACITY)
    fill = {"fillpattern": {"shape": hatch, "fgcolor": style.rgba(colour, style.FAINT_OPACITY), "bgcolor": faint,
                            "size": 8, "solidity": 0.25}} if hatch else {"fillcolor": faint}
    figure.add_trace(go.Scatter(
        x=x or [None], y=y or [None], mode="lines", fill="toself", name=name, legendgroup=name, hoveron="fills",
        legend=f"legend{1 + at[0]}", showlegend=is_shown, line={"width": 0, "color": style.rgba(colour, 0.6)},
        hoverinfo="name", **fill,
    ), row=at[0], col=at[1])


def _draw_panel(
    figure: go.Figure, at: tuple[int, int], span: tuple[float, float], panel: _Panel, timed: pd.DataFrame,
    inside: Sequence[tuple[float, float]],
) -> None:
    """Draw one row of telemetry in one stretch."""
    legend, is_first = f"legend{1 + at[0]}", at[1] == 1
    spans = cover(np.array(inside, dtype=float).reshape(-1, 2), span)
    if inside:
        _band(figure, at, spans, _panel_top(panel, timed), "loaded windows", style.BASELINE, "",
              is_shown=is_first and at[0] == 2)
    here = timed[timed["t_s"].between(*span)]
    limit = _limit(panel)
    for series in panel.series:
        of_series = here[here[series.column].notna()]
        if series.owner is not None:
            of_series = of_series[of_series["member"].eq(series.owner)]
        drawn = _with_pauses(_thin(of_series, limit)[0], series.column)
        is_inside = drawn["is_inside"].eq(True)
        unit = panel.title[panel.title.index("[") + 1 : -1]
        value = "%{y:.1%}" if unit == "%" else f"%{{y:.4s}}{unit}" if unit == "Hz" else f"%{{y:.4g}} {unit}"
        where = np.where(is_inside, "inside a loaded window", "outside the loaded windows")
        figure.add_trace(go.Scatter(
            x=drawn["t_s"], y=drawn[series.column], mode="lines+markers", name=series.name, legend=legend,
            legendgroup=series.name, showlegend=is_first and panel.has_legend, connectgaps=False,
            line={"color": style.rgba(series.colour, style.FAINT_OPACITY), "width": 1, "dash": series.dash},
            marker={"color": series.colour, "size": np.where(is_inside, 6, 5), "line": {"width": 1},
                    "symbol": np.where(is_inside, series.symbol, f"{series.symbol}-open"),
                    "opacity": np.where(is_inside, 0.9, style.FAINT_OPACITY)},
            customdata=np.column_stack([where, drawn["member"].map(style.safe)]).astype(object),
            hovertemplate=f"t = %{{x:.1f}} s<br>{value}<br>%{{customdata[1]}}, %{{customdata[0]}}"
                          f"<extra>{series.name}</extra>",
        ), row=at[0], col=at[1])
    if panel.limit and timed[panel.limit].notna().any():
        _draw_limit(figure, at, here, panel.limit, legend, is_shown=is_first)


def _limit(panel: _Panel) -> int:
    """Return how many samples each series of a row may have: those of one device share the row's."""
    is_pooled = panel.series[0].owner is None
    return style.MAX_POINTS if is_pooled else max(style.MAX_POINTS // len(panel.series), MIN_POINTS)


def _thin(part: pd.DataFrame, limit: int) -> tuple[pd.DataFrame, str]:
    """Return every k-th sample of each device and the note that says so; k over all rows would drop whole devices."""
    stride = max(-(-len(part) // limit), 1)
    note = f"every {stride}th of {len(part)} points drawn" if stride > 1 else ""
    return part[part.groupby("member").cumcount() % stride == 0], note


def _thinned(panels: Sequence[_Panel], timed: pd.DataFrame, spans: Sequence[tuple[float, float]]) -> list[str]:
    """Say that not all samples are drawn, for the series that leaves out most; medians are of all samples."""
    drawn = [timed[timed["t_s"].between(*span)] for span in spans]
    said = ""
    most = 0
    for panel in panels:
        for series in panel.series:
            for part in drawn:
                is_own = part[series.column].notna() & (part["member"].eq(series.owner) if series.owner else True)
                n_own = int(is_own.sum())
                note = _thin(part[is_own], _limit(panel))[1]
                if note and n_own > most:
                    most, said = n_own, f"{series.name}: {note}; medians are of all"
    return [said] if said else []


def _draw_limit(
    figure: go.Figure, at: tuple[int, int], here: pd.DataFrame, column: str, legend: str, *, is_shown: bool
) -> None:
    """Draw the limit in force as dashed steps, once for all devices that have the same."""
    drawn: dict[tuple[float, ...], pd.DataFrame] = {}
    for _, part in here[here[column].notna()].groupby("member", sort=True):
        # Only where it changes, and the last: a constant limit is two points.
        changes = part[part[column].diff().ne(0) | part["t_s"].eq(part["t_s"].max())]
        drawn.setdefault(tuple(changes[column]), changes)
    x = [value for part in drawn.values() for value in (*part["t_s"], None)]
    y = [value for part in drawn.values() for value in (*part[column], None)]
    figure.add_trace(go.Scatter(
        x=x or [None], y=y or [None], mode="lines", name="power limit", legendgroup="power limit", legend=legend,
        showlegend=is_shown, line={"color": style.BOUND, "width": 2, "dash": "dash", "shape": "hv"},
        hovertemplate="%{y:.4g} W<extra>power limit</extra>",
    ), row=at[0], col=at[1])


def _with_pauses(part: pd.DataFrame, column: str) -> pd.DataFrame:
    """Order samples by device and time, with an empty row where a line must break."""
    ordered = part.sort_values(["member", "t_s"], kind="stable").reset_index(drop=True)
    step_s = ordered.groupby("member")["t_s"].diff()
    period_s = step_s[step_s > 0].median()
    breaks = step_s.isna() | (step_s > PAUSE_RATIO * period_s)
    breaks.iloc[:1] = False
    empty = ordered[breaks].assign(**{column: np.nan})
    empty.index = empty.index - 0.5
    return pd.concat([ordered, empty]).sort_index() if len(empty) else ordered


def _load_top(load: pd.DataFrame) -> float:
    """Return the height of the first row [req]."""
    highest = load[["running", "queue"]].max().max() if len(load) else np.nan
    return ROOM * float(highest) if highest > 0 else 1.0


def _panel_top(panel: _Panel, timed: pd.DataFrame) -> float:
    """Return the height of a row, in its own unit."""
    columns = [*(series.column for series in panel.series), *([panel.limit] if panel.limit else [])]
    highest = panel.top or timed[columns].max().max()
    return ROOM * float(highest) if highest > 0 else 1.0


def _row_heights_px(panels: Sequence[_Panel]) -> list[float]:
    """Return heights that hold the legend of each row; with its devices, a row names the windows and a limit."""
    entries = [MAX_FIRST_ENTRIES, *(len(panel.series) + 2 if panel.has_legend else 0 for panel in panels)]
    return [float(max(ROW_PX, LEGEND_ENTRY_PX * (n + 1))) for n in entries]


def _axes(
    figure: go.Figure, panels: Sequence[_Panel], load: pd.DataFrame, timed: pd.DataFrame, stretches: Stretches
) -> None:
    """Give every axis its unit and range, every row its legend, every cut its mark."""
    n_rows = 1 + len(panels)
    figure.update_yaxes({"range": [0, _load_top(load)]}, row=1)
    figure.update_yaxes({"title": {"text": "requests [req]"}}, row=1, col=1)
    for row, panel in enumerate(panels, start=2):
        figure.update_yaxes({"range": [0, _panel_top(panel, timed)], **dict(panel.axis)}, row=row)
        figure.update_yaxes({"title": {"text": panel.title}}, row=row, col=1)
    longest = max(end - start for start, end in stretches.spans)
    total = sum(end - start for start, end in stretches.spans)
    for column, (start, end) in enumerate(stretches.spans, start=1):
        ticks = max(2, round(TICKS * (end - start) / total))
        figure.update_xaxes({"range": [start, end], "tickformat": ",.9~g", "nticks": ticks, "tickangle": 0}, col=column)
        if end - start == longest:
            figure.update_xaxes({"title": {"text": TIME_TITLE if len(stretches.spans) < 3 else "time [s]"}},
                                row=n_rows, col=column)
            longest = np.inf
    legends = {}
    for row in range(1, n_rows + 1):
        top = figure.get_subplot(row, 1).yaxis.domain[1]
        legends[f"legend{1 + row}"] = {"orientation": "v", "x": 1.01, "xanchor": "left", "y": top, "yanchor": "top",
                                       "font": {"size": 11}, "tracegroupgap": 0, "borderwidth": 0}
    figure.update_layout(height=160 + sum(_row_heights_px(panels)), margin={"r": LEGEND_PX}, **legends)
    for column in range(1, len(stretches.spans)):
        left, right = (figure.get_subplot(n_rows, column + side).xaxis.domain for side in (0, 1))
        figure.add_annotation(text="//", x=(left[1] + right[0]) / 2, y=0, xref="paper", yref="paper", showarrow=False,
                              yanchor="middle", font={"size": 16, "color": style.BOUND})
