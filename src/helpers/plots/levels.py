"""Figures of levels: throughput over running requests, what rates printed line by line would claim, and scatter."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from helpers import schema
from helpers.display import level_key, requests, show
from helpers.plots import style

TOLERANCE_FRAC = 0.03
"""Band of the residual figure: what levels deviate from a good law through padding and routing (1 to 4 %)."""


def throughput_vs_running_req(
    intervals: pd.DataFrame, levels: pd.DataFrame, *, title: str = "", subtitle: str = ""
) -> go.Figure:
    """Draw the printed rate of every interval over running requests, and the estimate of each level.

    Parameters
    ----------
    intervals : DataFrame, schema INTERVALS
        Clean ones are drawn filled, rejected ones hollow and light.
    levels : DataFrame, schema LEVELS
        Whiskers are the interval of the level's step time, turned into throughput.
    title, subtitle : str
        Finding and run; the title is computed if empty.

    Returns
    -------
    Figure
        Rates are those of one rank's line; under lockstep ranks the level is one rank's share, too.
    """
    schema.check(intervals, schema.INTERVALS)
    schema.check(levels, schema.LEVELS)
    figure = go.Figure()
    notes = []
    own_req = intervals["step_s"] * intervals["decode_tok_per_s"] / intervals["accept_len"].fillna(1.0)
    table = intervals.assign(own_req=own_req.fillna(intervals["running_req_printed"].astype(float)))
    for is_clean, part in table.groupby("clean"):
        drawn, note = style.thin(part)
        notes += [note] if note else []
        figure.add_trace(
            go.Scattergl(
                x=drawn["own_req"], y=drawn["decode_tok_per_s"], mode="markers",
                name="clean interval" if is_clean else "rejected interval",
                marker={"color": style.STEADY, "size": 6, "opacity": 0.5} if is_clean
                else {"color": style.PREFILL, "symbol": "circle-open", "size": 6, "opacity": 0.6},
                customdata=np.column_stack([drawn["why"].map(style.safe), drawn["line_no"]]).astype(object),
                hovertemplate="%{x:.4g} req<br>%{y:.4g} tok/s<br>%{customdata[0]}<br>line %{customdata[1]}"
                              "<extra>%{fullData.name}</extra>",
            )
        )
    used = levels[levels["population"].eq(0) & levels["step_s"].notna()].sort_values("running_req")
    req, step_s = used["running_req"].to_numpy(float), used["step_s"].to_numpy(float)
    tokens = req * used["accept_len"].fillna(1.0).to_numpy(float)
    lo, hi = tokens / used["step_s_hi"].to_numpy(float), tokens / used["step_s_lo"].to_numpy(float)
    figure.add_trace(
        go.Scatter(
            x=req, y=tokens / step_s, mode="markers", name="level: tokens / time",
            marker={"color": "#000000", "symbol": "diamond", "size": 10, "line": {"color": "#FFFFFF", "width": 1}},
            error_y=style.whiskers(tokens / step_s, lo, hi, "#000000"), customdata=level_facts(used),
            hovertemplate="%{x:.4g} req<br>%{y:.4g} tok/s<br>%{customdata[1]} clean intervals"
                          "<br>%{customdata[2]}<extra>level</extra>",
        )
    )
    n_clean = int(intervals["clean"].sum())
    notes.insert(0, f"{len(intervals) - n_clean} of {len(intervals)} intervals rejected (hollow)")
    per_rank = " per rank" if intervals["rank"].nunique() > 1 else ""
    figure.update_xaxes(style.request_axis(f"running requests{per_rank}"))
    figure.update_yaxes(style.rate_axis(f"decode throughput{per_rank}"))
    return style.finish(figure, title or _throughput_finding(used), subtitle, notes)


def level_facts(levels: pd.DataFrame) -> np.ndarray:
    """Return what a hover box says of each level: name, clean intervals, what was odd."""
    n_clean = levels["n_clean"].where(levels["method"].ne("table"), 1)
    return np.column_stack(
        [levels["running_req"].map(level_key), n_clean, levels["note"].fillna("").map(style.safe)]
    ).astype(object)


def _throughput_finding(levels: pd.DataFrame) -> str:
    if levels.empty:
        return "No level has clean decode"
    first, last = levels.iloc[0], levels.iloc[-1]
    if len(levels) == 1:
        rate = show(last["decode_tok_per_s"], "tok/s")
        return f"At {requests(last['running_req'])} the server decodes {rate}"
    more_req = last["running_req"] / first["running_req"]
    more_tok = last["decode_tok_per_s"] / first["decode_tok_per_s"]
    return (
        f"{show(more_req)} times the running requests bring {show(more_tok)} times the decode throughput "
        f"({show(last['decode_tok_per_s'], 'tok/s')} at {level_key(last['running_req'])})"
    )


def level_blocks(intervals: pd.DataFrame, levels: pd.DataFrame, *, title: str = "", subtitle: str = "") -> go.Figure:
    """Draw every clean interval's step against its level's estimate: scatter, drift and second populations show."""
    schema.check(intervals, schema.INTERVALS)
    schema.check(levels, schema.LEVELS)
    used = levels[levels["population"].eq(0) & levels["step_s"].notna()]
    clean = intervals[intervals["clean"] & intervals["step_s"].notna()]
    keys = ["server_life", "rank_group", "running_req"]
    estimates = used.assign(running_req=used["running_req"].round(6), level_step_s=used["step_s"])
    table = clean.assign(running_req=clean["running_req"].round(6)).merge(estimates[[*keys, "level_step_s"]], on=keys)
    if table.empty:
        return style.nothing_to_draw(title or "No level with clean intervals", "Nothing to compare.", subtitle)
    deviation = table["step_s"] / table["level_step_s"] - 1
    drawn, note = style.thin(table.assign(deviation=deviation))
    figure = go.Figure(
        go.Scattergl(
            x=drawn["running_req"].map(level_key), y=drawn["deviation"], mode="markers", name="clean interval",
            marker={"color": drawn["t_s"], "colorscale": [[0, "#CFE3F1"], [1, style.STEADY]], "size": 7,
                    "colorbar": {"title": {"text": "time [s]"}, "thickness": 12}},
            customdata=np.column_stack([drawn["step_s"] * 1e3, drawn["line_no"]]),
            hovertemplate="%{x} req<br>step %{customdata[0]:.4g} ms (%{y:+.1%})<br>line %{customdata[1]:.0f}"
                          "<extra></extra>",
        )
    )
    figure.add_hline(y=0, line={"color": style.BOUND, "width": 1})
    figure.update_xaxes(title={"text": "running requests [req]"}, type="category")
    figure.update_yaxes(style.percent_axis("step over its level's estimate"))
    by_level = table.assign(deviation=deviation).groupby("running_req")["deviation"].agg(lambda d: d.abs().median())
    worst = float(str(by_level.idxmax()))
    finding = (
        f"Clean intervals scatter most at {requests(worst)}: "
        f"half of them within ±{100 * by_level.max():.2g} % of the level"
    )
    return style.finish(figure, title or finding, subtitle, [note] if note else [])


def naive_over_level(rates: pd.DataFrame, *, title: str = "", subtitle: str = "") -> go.Figure:
    """Draw the mean of the printed rates of each level over the level's tokens per time.

    Parameters
    ----------
    rates : DataFrame
        From ``readings.naive_rates``.
    title, subtitle : str
        Finding and run; the title is computed if empty.
    """
    if rates.empty:
        reason = "No level has both a mean and an estimate."
        return style.nothing_to_draw(title or "No level to compare", reason, subtitle)
    keys = [level_key(value) for value in rates["running_req"]]
    off = rates["naive_over_level"].to_numpy(float) - 1
    figure = go.Figure(
        go.Bar(
            x=keys, y=off, name="mean of printed rates over level", marker={"color": style.PREFILL},
            text=[f"{100 * value:+.2g} %" for value in off], textposition="outside", cliponaxis=False,
            customdata=rates[["naive_tok_per_s", "decode_tok_per_s", "n_lines"]].to_numpy(float),
            hovertemplate="%{x} req<br>mean of %{customdata[2]:.0f} lines %{customdata[0]:.4g} tok/s"
                          "<br>tokens over time %{customdata[1]:.4g} tok/s<extra></extra>",
        )
    )
    figure.add_hrect(y0=-TOLERANCE_FRAC, y1=TOLERANCE_FRAC, fillcolor=style.BASELINE, opacity=0.15, line={"width": 0},
                     layer="below")
    figure.add_hline(y=0, line={"color": style.BOUND, "width": 1})
    figure.update_xaxes(title={"text": "running requests [req]"}, type="category")
    figure.update_yaxes(style.percent_axis("mean of printed rates over level"))
    worst = int(np.argmax(np.abs(off)))
    where = requests(rates["running_req"].iloc[worst])
    finding = f"The mean of the printed rates is off by up to {100 * off[worst]:+.2g} % (at {where})"
    return style.finish(figure, title or finding, subtitle, [f"grey band: ±{100 * TOLERANCE_FRAC:g} %"])
