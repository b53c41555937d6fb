"""Figures of the log itself: what happened when, which intervals were left out, what each rank did."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from helpers import schema
from helpers.display import show
from helpers.plots import style

MAX_EVENT_LINES = 60
"""Event lines drawn; a log with thousands of retractions would be a wall."""

MAX_REASONS = 12
MAX_RANKS = 8

SYMBOL_SIZE = 7


Thin = Callable[[pd.DataFrame], tuple[pd.DataFrame, str]]
"""Rows of one trace -> those that are drawn, and a note where it is not all of them."""


def timeline(
    intervals: pd.DataFrame,
    events: pd.DataFrame | None = None,
    *,
    title: str = "",
    subtitle: str = "",
    thin: Thin = style.thin,
) -> go.Figure:
    """Draw decode rate and running requests over time, coloured by label; rejected intervals are hollow.

    Parameters
    ----------
    intervals : DataFrame, schema INTERVALS
    events : DataFrame, schema EVENTS, optional
        Server events, as thin vertical lines.
    title, subtitle : str
        Finding and run; the title is computed if empty.
    thin : callable, optional
        Chooses the rows that a trace draws; by default at most `style.MAX_POINTS`.

    Returns
    -------
    Figure
        Two stacked axes over one time axis.
    """
    schema.check(intervals, schema.INTERVALS)
    if intervals.empty:
        reason = "No line states a decode rate."
        return style.nothing_to_draw(title or "The log holds no decode interval", reason, subtitle)
    figure = make_subplots(rows=2, cols=1, shared_xaxes=True, vertical_spacing=0.08, row_heights=[0.6, 0.4])
    notes = []
    for label, (colour, symbol) in style.LABEL_MARKS.items():
        of_label = intervals[intervals["label"].eq(label)]
        for is_clean, part in sorted(of_label.groupby("clean"), key=lambda group: not group[0]):
            drawn, note = thin(part)
            notes += [f"{label}: {note}"] if note else []
            name = f"{label}{'' if is_clean else ' (not clean)'}"
            for row, column in ((1, "decode_tok_per_s"), (2, "running_req_printed")):
                figure.add_trace(
                    go.Scattergl(
                        x=drawn["t_s"], y=drawn[column], mode="markers", name=name, legendgroup=name,
                        showlegend=row == 1, marker=_marker(colour, symbol, bool(is_clean)),
                        customdata=_where(drawn), hovertemplate=_INTERVAL_HOVER,
                    ),
                    row=row, col=1,
                )
    if events is not None and len(events):
        notes += _event_lines(figure, events, intervals)
    n_clean = int(intervals["clean"].sum())
    notes.insert(0, f"{len(intervals) - n_clean} of {len(intervals)} intervals not clean (hollow)")
    per_rank = " per rank" if intervals["rank"].nunique() > 1 else ""
    figure.update_xaxes(title={"text": "time since the first line [s]"}, row=2, col=1)
    figure.update_yaxes(style.rate_axis(f"decode rate{per_rank}"), row=1, col=1)
    figure.update_yaxes(style.request_axis(f"running req.{per_rank}"), row=2, col=1)
    figure.update_layout(height=600)
    return style.finish(figure, title or _timeline_finding(intervals), subtitle, notes)


_INTERVAL_HOVER = (
    "t = %{x:.1f} s<br>decode rate %{customdata[0]:.4g} tok/s<br>running requests %{customdata[1]} req"
    "<br>%{customdata[2]}<br>line %{customdata[3]}<extra>%{fullData.name}</extra>"
)


def _where(part: pd.DataFrame) -> np.ndarray:
    return np.column_stack(
        [part["decode_tok_per_s"], part["running_req_printed"], part["why"].map(style.safe), part["line_no"]]
    ).astype(object)


def _marker(colour: str, symbol: str, is_clean: bool) -> dict[str, object]:
    if symbol.endswith("-thin"):
        return {"color": colour, "symbol": symbol, "size": SYMBOL_SIZE, "line": {"color": colour, "width": 1}}
    if is_clean:
        return {"color": colour, "symbol": symbol, "size": SYMBOL_SIZE}
    return {"color": colour, "symbol": f"{symbol}-open", "size": SYMBOL_SIZE, "opacity": 0.75}


def _event_lines(figure: go.Figure, events: pd.DataFrame, intervals: pd.DataFrame) -> list[str]:
    """Add one trace of thin vertical lines per axis; return the note about lines left out."""
    timed = events[events["t_s"].notna() & ~events["kind"].eq("args")]
    drawn, note = style.thin(timed, MAX_EVENT_LINES)
    for row, column in ((1, "decode_tok_per_s"), (2, "running_req_printed")):
        top = float(intervals[column].max()) or 1.0
        x: list[float | None] = []
        y: list[float | None] = []
        words: list[str] = []
        for kind, t_s, line_no, text in zip(drawn["kind"], drawn["t_s"], drawn["line_no"], drawn["text"], strict=True):
            x += [t_s, t_s, None]
            y += [0.0, top, None]
            words += [f"{style.safe(kind)}, line {line_no}: {style.safe(text, 80)}"] * 3
        figure.add_trace(
            go.Scatter(
                x=x, y=y, mode="lines", name="server event", legendgroup="server event", showlegend=row == 1,
                line={"color": style.BOUND, "width": 1, "dash": "dot"}, text=words,
                hovertemplate="t = %{x:.1f} s<br>%{text}<extra>server event</extra>",
            ),
            row=row, col=1,
        )
    return [f"events: {note}".replace("points", "lines")] if note else []


def _timeline_finding(intervals: pd.DataFrame) -> str:
    clean = intervals[intervals["clean"]]
    if clean.empty:
        return f"None of the {len(intervals)} intervals is nothing but decode of a constant batch"
    return (
        f"{len(clean)} of {len(intervals)} intervals are steady decode, at running requests of "
        f"{clean['running_req'].min():g} to {clean['running_req'].max():g}"
    )


def rejected_reasons(intervals: pd.DataFrame, *, title: str = "", subtitle: str = "") -> go.Figure:
    """Draw how many intervals each rule left out, and how much time they hold."""
    schema.check(intervals, schema.INTERVALS)
    rejected = intervals[~intervals["clean"]]
    if rejected.empty:
        return style.nothing_to_draw(title or "No interval was left out", "Every interval is clean.", subtitle)
    reasons = rejected.groupby("why").agg(n=("why", "size"), time_s=("interval_s", "sum"))
    reasons = reasons.sort_values("n", ascending=False, kind="stable").head(MAX_REASONS)[::-1]
    words = [f"{n} ({show(time_s, 'duration')})" for n, time_s in zip(reasons["n"], reasons["time_s"], strict=True)]
    figure = go.Figure(
        go.Bar(
            x=reasons["n"], y=[style.safe(why) for why in reasons.index], orientation="h", text=words,
            textposition="outside", cliponaxis=False, marker={"color": style.PREFILL, "pattern": {"shape": "/"}},
            name="left out", hovertemplate="%{y}<br>%{x} intervals<extra>left out</extra>",
        )
    )
    figure.update_xaxes(title={"text": "intervals left out [count]"}, range=[0, 1.2 * float(reasons["n"].max())])
    figure.update_yaxes(automargin=True)
    figure.update_layout(height=max(300, 130 + 32 * len(reasons)))
    most = style.safe(reasons.index[-1])
    finding = f"{len(rejected)} of {len(intervals)} intervals are left out, most often: {most}"
    return style.finish(figure, title or finding, subtitle)


def phase_bar(phases: dict[str, float], *, title: str = "", subtitle: str = "") -> go.Figure:
    """Draw the seconds of each phase as one bar that adds up to the logged time.

    Parameters
    ----------
    phases : dict
        warmup_s, ramp_s, steady_s, mixed_s, drain_s, idle_s [s].
    title, subtitle : str
        Finding and run; the title is computed if empty.
    """
    total_s = sum(phases.values())
    if not total_s > 0:
        reason = "The log holds no interval with a duration."
        return style.nothing_to_draw(title or "No time was logged", reason, subtitle)
    figure = go.Figure()
    patterns = {"steady": "", "ramp": "/", "mixed": "x", "drain": "\\", "warmup": ".", "idle": "-"}
    for label, (colour, _) in style.LABEL_MARKS.items():
        seconds = phases.get(f"{label}_s", 0.0)
        if seconds <= 0:
            continue
        wide = seconds > 0.07 * total_s
        pattern = {"shape": patterns[label], "fgcolor": "#FFFFFF", "fgopacity": 0.35}
        figure.add_trace(
            go.Bar(
                x=[seconds], y=[""], orientation="h", name=f"{label} {show(seconds, 'duration')}",
                text=[f"{label}<br>{100 * seconds / total_s:.0f} %"] if wide else [""], textposition="inside",
                insidetextanchor="middle", textangle=0,
                marker={"color": colour, "pattern": pattern},
                hovertemplate=f"{label}: %{{x:.1f}} s<extra></extra>",
            )
        )
    figure.update_layout(barmode="stack", height=280, legend={"traceorder": "normal"})
    figure.update_xaxes(title={"text": "wall time of one rank [s]"}, rangemode="tozero")
    steady_s = phases.get("steady_s", 0.0)
    finding = f"{100 * steady_s / total_s:.0f} % of {show(total_s, 'duration')} is steady decode"
    return style.finish(figure, title or finding, subtitle)


def episode_rates(episodes: pd.DataFrame, *, title: str = "", subtitle: str = "") -> go.Figure:
    """Draw for each load episode the average a client sees and the steady rate, joined by a line.

    Parameters
    ----------
    episodes : DataFrame
        From ``segment.find_episodes``.
    title, subtitle : str
        Finding and run; the title is computed if empty.
    """
    known = episodes[episodes["average_tok_per_s"].notna()] if len(episodes) else episodes
    if known.empty:
        return style.nothing_to_draw(title or "No load episode", "The log holds no episode with a duration.", subtitle)
    known, note = style.thin(known, 40)
    names = [
        style.safe(f"{'' if len(known) == 1 else f'#{index} '}peak {peak:g} req{_group(group, known)}")
        for index, (peak, group) in enumerate(zip(known["peak_req"], known["rank_group"], strict=True))
    ]
    average, steady = known["average_tok_per_s"].to_numpy(float), known["steady_tok_per_s"].to_numpy(float)
    figure = go.Figure()
    figure.add_trace(
        go.Scatter(
            x=np.column_stack([average, steady, np.full(len(known), np.nan)]).ravel(),
            y=np.repeat(names, 3), mode="lines", line={"color": style.BASELINE, "width": 2}, showlegend=False,
            hoverinfo="skip", name="gap",
        )
    )
    marks = (
        ("average over the whole episode", average, style.PREFILL, "triangle-up"),
        ("steady decode at the peak", steady, style.STEADY, "circle"),
    )
    for name, values, colour, symbol in marks:
        figure.add_trace(
            go.Scatter(
                x=values, y=names, mode="markers", name=name, marker={"color": colour, "symbol": symbol, "size": 11},
                hovertemplate="%{y}<br>%{x:.4g} tok/s<extra>" + name + "</extra>",
            )
        )
    for name, ratio, right in zip(names, known["steady_over_average"], np.fmax(average, steady), strict=True):
        words = f"{ratio:.2f}x" if np.isfinite(ratio) else "no clean interval at the peak"
        figure.add_annotation(x=right, y=name, text=words, showarrow=False, xanchor="left", xshift=10)
    figure.update_xaxes(style.rate_axis("decode throughput"))
    figure.update_yaxes(automargin=True, autorange="reversed", type="category")
    figure.update_layout(height=max(300, 180 + 30 * len(names)))
    notes = [note.replace("points", "episodes")] if note else []
    return style.finish(figure, title or _episode_finding(known), subtitle, notes)


def _group(group: object, known: pd.DataFrame) -> str:
    return f", {group}" if known["rank_group"].nunique() > 1 else ""


def _episode_finding(episodes: pd.DataFrame) -> str:
    ratio = episodes["steady_over_average"].dropna()
    if ratio.empty:
        return "No episode holds clean decode at its peak: only averages are known"
    below = 1 - 1 / ratio
    if below.max() <= 0:
        return "No average over a load lies below its steady rate"
    span = f"{100 * below.max():.2g} %"
    if len(below) > 1:
        span = f"up to {span}" if below.min() <= 0 else f"{100 * below.min():.2g} to {span}"
    return f"The average over a load lies {span} below its steady rate"


def per_rank(intervals: pd.DataFrame, *, title: str = "", subtitle: str = "") -> go.Figure:
    """Draw the running requests of each rank over time."""
    schema.check(intervals, schema.INTERVALS)
    names: Sequence[str] = sorted(intervals["rank"].dropna().unique())
    if len(names) < 2:
        return style.nothing_to_draw(title or "The log holds one rank", "Nothing to compare between ranks.", subtitle)
    figure = go.Figure()
    notes = [f"{MAX_RANKS} of {len(names)} ranks drawn"] if len(names) > MAX_RANKS else []
    dashes = ("solid", "dash", "dot", "dashdot")
    for index, rank in enumerate(names[:MAX_RANKS]):
        drawn, note = style.thin(intervals[intervals["rank"].eq(rank)])
        notes += [f"{style.safe(rank)}: {note}"] if note else []
        figure.add_trace(
            go.Scatter(
                x=drawn["t_s"], y=drawn["running_req_printed"], mode="lines", name=style.safe(rank),
                line={"shape": "hv", "dash": dashes[index // 4]},
                hovertemplate="t = %{x:.1f} s<br>%{y} req<extra>%{fullData.name}</extra>",
            )
        )
    figure.update_xaxes(title={"text": "time since the first line [s]"})
    figure.update_yaxes(style.request_axis("running requests per rank"))
    mean = intervals.groupby("rank")["running_req_printed"].mean()
    finding = f"{len(names)} ranks hold {mean.min():.3g} to {mean.max():.3g} running requests on average"
    return style.finish(figure, title or finding, subtitle, notes)
