"""Figures of a comparison: the change of each level and parameter with its interval, and both laws on one figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from helpers.compare.words import effect, percent, quantity
from helpers.display import level_key, show
from helpers.plots import style

VERDICT_MARKS: dict[str, tuple[str, str]] = {
    "worse": (style.REGRESSION, "triangle-up"),
    "better": (style.WARMUP, "triangle-down"),
    "same": (style.STEADY, "circle"),
    "cannot_tell": (style.BASELINE, "circle-open"),
}
"""Verdict of a row -> (colour, symbol)."""

LINE_POINTS = 60


def effects_by_row(rows: pd.DataFrame, *, threshold_frac: float, title: str = "", subtitle: str = "") -> go.Figure:
    """Draw the change of every judged row with the interval of the row alone, over the band that does not matter.

    Parameters
    ----------
    rows : DataFrame
        Columns of ``compare.Effects.rows``; rows that are described only are left out.
    threshold_frac : float
        Half the band [1]: what lies wholly in it is the same.
    title, subtitle : str
        Finding and run; the title is computed if empty.
    """
    judged = rows[rows["is_judged"].astype(bool)] if len(rows) else rows
    if judged.empty:
        return style.nothing_to_draw(title or "Nothing was compared", "No level was seen on both sides.", subtitle)
    judged = judged.assign(name=[_name(kind, level) for kind, level in zip(
        judged["kind"], judged["running_req"], strict=True)])
    figure = go.Figure()
    figure.add_hrect(y0=1 / (1 + threshold_frac) - 1, y1=threshold_frac, fillcolor=style.BASELINE, opacity=0.2,
                     line={"width": 0}, layer="below")
    figure.add_hline(y=0, line={"color": style.BOUND, "width": 1})
    for verdict, (colour, symbol) in VERDICT_MARKS.items():
        part = judged[judged["verdict"] == verdict]
        if part.empty:
            continue
        middle, lo, hi = (part[name].to_numpy(float) for name in ("effect_frac", "row_lo_frac", "row_hi_frac"))
        figure.add_trace(
            go.Scatter(
                x=part["name"], y=middle, mode="markers", name=verdict.replace("_", " "),
                marker={"color": colour, "symbol": symbol, "size": 11, "line": {"width": 2, "color": colour}},
                error_y=style.whiskers(middle, lo, hi, colour),
                customdata=np.column_stack([
                    [show(v, u) for v, u in zip(part["base"], part["unit"], strict=True)],
                    [show(v, u) for v, u in zip(part["new"], part["unit"], strict=True)],
                    [effect(row) for row in part.to_dict("records")],
                    [percent(v) for v in part["mdc_frac"].to_numpy(float)],
                ]),
                hovertemplate="%{x}<br>%{customdata[0]} to %{customdata[1]}: %{customdata[2]}<br>least change that "
                              "would be seen %{customdata[3]}<extra>%{fullData.name}</extra>",
            )
        )
    figure.update_xaxes(title={"text": "level [req], parameter"}, type="category", categoryorder="array",
                        categoryarray=list(judged["name"]))
    figure.update_yaxes(style.percent_axis("new over base"))
    notes = ["whiskers: interval of each row", f"grey band: changes within {percent(threshold_frac)}"]
    return style.finish(figure, title or _finding(judged), subtitle, notes)


def both_laws(
    rows: pd.DataFrame, runs: Mapping[str, Sequence[Mapping[float, float]]], *, title: str = "", subtitle: str = ""
) -> go.Figure:
    """Draw the step time of every run at every level, and the straight line of either side.

    Parameters
    ----------
    rows : DataFrame
        Columns of ``compare.Effects.rows``: the lines are those of its fixed_cost and per_request.
    runs : mapping
        "base" and "new" -> level [req] -> step time [s] of each run.
    title, subtitle : str
        Finding and run; the title is computed if empty.
    """
    looks = {"base": (style.BASELINE, "circle-open", "dash"), "new": (style.STEADY, "circle", "solid")}
    if not any(run for side in runs.values() for run in side):
        return style.nothing_to_draw(title or "No step time was measured", "No run has a fitted level.", subtitle)
    figure = go.Figure()
    for side, (colour, symbol, dash) in looks.items():
        points = [(level, step_s) for run in runs[side] for level, step_s in sorted(run.items())]
        if not points:
            continue
        req, step_s = (np.array(values, float) for values in zip(*points, strict=True))
        figure.add_trace(
            go.Scatter(
                x=req, y=step_s, mode="markers", name=f"{side}, measured",
                marker={"color": colour, "symbol": symbol, "size": 9},
                customdata=[show(value, "s") for value in step_s],
                hovertemplate="%{x:.4g} req<br>step %{customdata}<extra>" + side + "</extra>",
            )
        )
        line = _line(rows, side)
        if line is None:
            continue
        inside = np.linspace(req.min(), req.max(), LINE_POINTS)
        figure.add_trace(
            go.Scatter(
                x=inside, y=line[0] + line[1] * inside, mode="lines", name=f"{side}, law",
                line={"color": colour, "width": 2, "dash": dash}, showlegend=False,
                hovertemplate="%{x:.4g} req<br>%{y:.4s}s<extra>" + side + ", law</extra>",
            )
        )
        style.end_label(figure, float(inside[-1]), line[0] + line[1] * float(inside[-1]), side, colour)
    figure.update_xaxes(style.request_axis())
    figure.update_yaxes(style.seconds_axis("step time"))
    notes = ["points: each run", *(["lines: relative-weighted straight lines"] if _line(rows, "base") else [])]
    return style.finish(figure, title or _laws_finding(rows), subtitle, notes)


def _name(kind: str, level: float) -> str:
    return level_key(level) if kind == "step" else quantity(kind, level)


def _finding(judged: pd.DataFrame) -> str:
    counts = judged["verdict"].value_counts()
    said = [f"{counts[verdict]} {verdict.replace('_', ' ')}" for verdict in VERDICT_MARKS if verdict in counts]
    return f"Of {len(judged)} levels and parameters: {', '.join(said)}"


def _line(rows: pd.DataFrame, side: str) -> tuple[float, float] | None:
    """Return intercept [s] and slope [s/req] of a side, None where they are not compared."""
    found = [rows.loc[rows["kind"] == kind, side] for kind in ("fixed_cost", "per_request")] if len(rows) else []
    if not found or any(part.empty for part in found):
        return None
    return float(found[0].iloc[0]), float(found[1].iloc[0])


def _laws_finding(rows: pd.DataFrame) -> str:
    lines = [_line(rows, side) for side in ("base", "new")]
    if lines[0] is None or lines[1] is None:
        return "The step time of both sides"
    said = [f"{show(a, 's')} and {show(b, 's')} more per request" for a, b in (lines[0], lines[1])]
    return f"A step took {said[0]}, and takes {said[1]}"
