"""Figures of speculation: rate over accept length, the parts of a round, rates with and without it."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from helpers.display import level_key, requests, show
from helpers.physics.speculative.break_even import BreakEven
from helpers.physics.speculative.payoff import RoundParts
from helpers.physics.speculative.speculation import AcceptanceLine
from helpers.plots import style

PART_MARKS = {"draft": (style.WARMUP, ""), "verify": (style.STEADY, "/"), "other": (style.BOUND_SOFT, "x")}
"""Part of a round -> (colour, pattern)."""


def rate_vs_accept_len(line: AcceptanceLine, *, title: str = "", subtitle: str = "") -> go.Figure:
    """Draw the rate over the accept length at one level: points, the line through the origin, the free line.

    Parameters
    ----------
    line : AcceptanceLine
        A refused one draws its points alone, or says that there are none.
    title, subtitle : str
        Finding and run; the title is computed if empty.
    """
    if not line.accept_len:
        return style.nothing_to_draw(title or "No round was measured", line.refused or "", subtitle)
    points, note = style.thin(pd.DataFrame({"accept_len": line.accept_len, "rate": line.decode_tok_per_s}))
    figure = go.Figure()
    if line.refused is None:
        _add_lines(figure, line)
    rounds_s = line.running_req * points["accept_len"] / points["rate"]
    figure.add_trace(
        go.Scatter(
            x=points["accept_len"], y=points["rate"], mode="markers", name="measured", showlegend=False,
            marker={"color": style.STEADY, "symbol": "circle", "size": 9 if len(points) <= 40 else 6,
                    "opacity": 1.0 if len(points) <= 40 else 0.5},
            customdata=[show(round_s, "s") for round_s in rounds_s],
            hovertemplate="%{x:.3g} tok per round<br>%{y:.4g} tok/s<br>round %{customdata}<extra></extra>",
        )
    )
    figure.update_xaxes(title={"text": "accept length [tok per request and round]"},
                        rangemode="tozero" if line.refused else "normal")
    figure.update_yaxes(style.rate_axis("decode throughput"))
    figure.update_layout(margin={"r": 170})
    intervals = f"{100 * line.confidence:g} % intervals: band of the round, whisker of the free line"
    notes = [] if line.refused else [intervals]
    return style.finish(figure, title or acceptance_finding(line), subtitle, [*notes, *filter(None, [note])])


def _add_lines(figure: go.Figure, line: AcceptanceLine) -> None:
    """Add the line through the origin with its band, and the free line: dotted where there are no data."""
    least, most = min(line.accept_len), max(line.accept_len)
    slope, free, intercept = line.through_origin, line.free_slope.value, line.free_intercept.value
    figure.add_trace(
        go.Scatter(
            x=[0.0, most, most, 0.0], y=[0.0, slope.lo * most, slope.hi * most, 0.0], mode="lines", fill="toself",
            fillcolor=style.rgba(style.STEADY, style.BAND_OPACITY), line={"width": 0}, hoverinfo="skip",
            showlegend=False, name="band",
        )
    )
    for name, at, value, colour, inside, outside in (
        ("through the origin", slope.value, 0.0, style.STEADY, "solid", "dot"),
        ("free line", free, intercept, style.REGRESSION, "dash", "dot"),
    ):
        for ends, dash in (((least, most), inside), ((0.0, least), outside)):
            x = np.array(ends)
            figure.add_trace(
                go.Scatter(
                    x=x, y=value + at * x, mode="lines", name=name if dash == inside else f"{name}, extrapolated",
                    line={"color": colour, "width": 2, "dash": dash}, showlegend=False,
                    hovertemplate="%{x:.3g} tok<br>%{y:.4g} tok/s<extra>" + name + "</extra>",
                )
            )
    start, lo, hi = (np.array([getattr(line.free_intercept, end)]) for end in ("value", "lo", "hi"))
    figure.add_trace(
        go.Scatter(
            x=[0.0], y=start, mode="markers", name="free line at 0", showlegend=False,
            marker={"color": style.REGRESSION, "symbol": "diamond", "size": 8},
            error_y=style.whiskers(start, lo, hi, style.REGRESSION), customdata=[show(start[0], "tok/s", lo[0], hi[0])],
            hovertemplate="%{customdata}<extra>free line at 0</extra>",
        )
    )
    over = free * most + intercept >= slope.value * most
    style.end_label(figure, most, slope.value * most, f"round of {show(line.round.value, 's')}", style.STEADY,
                    yshift=-8 if over else 8)
    style.end_label(figure, most, free * most + intercept, f"free: {show(intercept)} at 0", style.REGRESSION,
                    yshift=8 if over else -8)


def acceptance_finding(line: AcceptanceLine) -> str:
    """Say whether the round stays the same when the accept length changes."""
    at = f"at {requests(line.running_req)}"
    if line.refused:
        return f"A round takes {show(line.mean_round.value, 's')} {at}; no line can be drawn"
    if line.is_round_constant is None:
        return f"A round takes {show(line.round.value, 's')} {at}"
    if line.is_round_constant and line.is_vague:
        return f"A round takes {show(line.round.value, 's')} {at}; whether acceptance changes it is hardly tested"
    if line.is_round_constant:
        return f"One round of {show(line.round.value, 's')} explains every accept length {at}"
    return f"The round changes with the accept length {at}: the free line misses the origin"


def round_parts_bar(parts: RoundParts, *, title: str = "", subtitle: str = "") -> go.Figure:
    """Draw a measured round as one bar: draft and verify as modelled, and the rest.

    Parameters
    ----------
    parts : RoundParts
        A negative rest is drawn below zero: then an input is wrong.
    title, subtitle : str
        Finding and run; the title is computed if empty.
    """
    figure = go.Figure()
    for name, part in (("draft", parts.draft), ("verify", parts.verify), ("other", parts.other)):
        colour, pattern = PART_MARKS[name]
        share = part.value / parts.measured.value
        figure.add_trace(
            go.Bar(
                x=[part.value], y=[0.0], orientation="h", name=name, width=0.8,
                marker={"color": colour, "pattern": {"shape": pattern, "fgcolor": "#FFFFFF", "solidity": 0.12}},
                text=f"{name}<br>{show(part.value, 's')}<br>{100 * share:.0f} %", textposition="inside",
                insidetextanchor="middle", insidetextfont={"color": "#FFFFFF"},
                customdata=[show(part.value, "s", part.lo, part.hi)],
                hovertemplate="%{customdata}<extra>" + name + "</extra>",
            )
        )
    both, lo, hi = (np.array([getattr(parts.draft, end) + getattr(parts.verify, end)]) for end in ("value", "lo", "hi"))
    figure.add_trace(
        go.Scatter(
            x=both, y=[-0.32], mode="markers", name="draft and verify", showlegend=False,
            error_x=style.whiskers(both, lo, hi, "#000000"),
            marker={"color": "#000000", "symbol": "line-ns-open", "size": 10},
            customdata=[show(both[0], "s", lo[0], hi[0])],
            hovertemplate="%{customdata}<extra>draft and verify</extra>",
        )
    )
    figure.add_vline(x=parts.measured.value, line={"color": style.BOUND, "dash": "dash", "width": 1})
    figure.update_layout(barmode="relative", height=300, uniformtext={"minsize": 9, "mode": "hide"})
    figure.update_xaxes(style.seconds_axis("time of a round"))
    figure.update_yaxes(visible=False)
    notes = ["draft and verify: as modelled, whisker: interval of both", "dashed: measured"]
    return style.finish(figure, title or parts_finding(parts), subtitle, notes)


def parts_finding(parts: RoundParts) -> str:
    """Say what share of the round the model explains."""
    if parts.warnings:
        return "Draft and verify as modelled take longer than the measured round: an input is wrong"
    draft, verify, other = (f"{100 * part.value / parts.measured.value:.0f} %"
                            for part in (parts.draft, parts.verify, parts.other))
    return (f"Of a round of {show(parts.measured.value, 's')}, the model gives {draft} to drafting and {verify} to "
            f"verifying; {other} is neither")


def rates_with_and_without(found: BreakEven, *, title: str = "", subtitle: str = "") -> go.Figure:
    """Draw the rate with and without speculation over running requests, and where they meet.

    Parameters
    ----------
    found : BreakEven
    title, subtitle : str
        Finding and run; the title is computed if empty.
    """
    table, figure = found.levels, go.Figure()
    if table.empty:
        return style.nothing_to_draw(title or "No break-even can be stated", found.reason, subtitle)
    without = "without, measured" if found.is_measured else "without, modelled"
    for name, column, colour, symbol, dash in (
        ("with speculation", "with_tok_per_s", style.STEADY, "circle", "solid"),
        (without, "without_tok_per_s", style.BASELINE if found.is_measured else style.BOUND, "x", "dash"),
    ):
        figure.add_trace(
            go.Scatter(
                x=table["running_req"], y=table[column], mode="lines+markers", name=name, showlegend=False,
                marker={"color": colour, "symbol": symbol, "size": 9}, line={"color": colour, "dash": dash},
                customdata=table["gain"],
                hovertemplate="%{x:.4g} req<br>%{y:.4g} tok/s<br>gain %{customdata:.3g}<extra>" + name + "</extra>",
            )
        )
        style.end_label(figure, table["running_req"].iloc[-1], table[column].iloc[-1], name, colour)
    lo, hi = found.running_req_lo, found.running_req_hi
    if found.running_req is not None:
        if lo is not None and hi is not None:
            figure.add_vrect(x0=lo, x1=hi, fillcolor=style.BASELINE, opacity=style.BAND_OPACITY, line_width=0)
        figure.add_vline(x=found.running_req, line={"color": style.BOUND, "dash": "dot"})
        figure.add_annotation(x=found.running_req, y=1, yref="paper", showarrow=False, xanchor="left", xshift=4,
                              text=f"N = {show(found.running_req)}")
    figure.update_xaxes(style.request_axis())
    figure.update_yaxes(style.rate_axis("decode throughput"))
    figure.update_layout(margin={"r": 170})
    return style.finish(figure, title or break_even_finding(found), subtitle)


def break_even_finding(found: BreakEven) -> str:
    """Say up to which load speculation pays."""
    least, most = (level_key(value) for value in found.levels["running_req"].iloc[[0, -1]])
    gain = found.levels["gain"]
    if found.running_req is None:
        word = "every" if gain.iloc[0] > 1 else "no"
        return f"Speculation pays at {word} load from {least} to {most} running requests"
    word = "up to" if gain.iloc[0] > 1 else "from"
    return f"Speculation pays {word} {show(found.running_req)} running requests"
