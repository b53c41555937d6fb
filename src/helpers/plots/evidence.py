"""Figures of what the evidence says: causes by score, where a client's time went, what kernels do."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from helpers.diagnose.causes import CAUSES
from helpers.diagnose.judge import STRONG
from helpers.display import show
from helpers.plots import style
from helpers.plots.telemetry import LABEL_HATCHES

STATUS_MARKS: dict[str, tuple[str, str, str]] = {
    "supported": (style.STEADY, "circle", ""),
    "compatible": (style.DRAIN, "diamond", "/"),
    "weak": (style.BASELINE, "triangle-down", "."),
    "refuted": (style.REGRESSION, "x", "x"),
}
"""Status of a cause -> (colour, symbol, hatch)."""

TEXT_CHARS, TEXT_LINES, ALL_CHARS = 62, 2, 100
"""Characters of a line beside a bar, and lines; characters of a line that begins at the axis."""

MAX_FACTS = 3
"""Facts for and against a cause in a hover box."""

TEXT_ROOM = 1.9
"""Width of the text beside the bars over the length of the longest bar [1]."""

SCORE_NOTE = (
    f"score: weights of what was seen, for minus against, each independent kind of measurement counting at most "
    f"{STRONG}; {STRONG} is evidence about ten times likelier with the cause than without; no probability"
)

NOT_COVERED = "not covered"
NOT_COVERED_MARK = ("#FFFFFF", "/")
"""Colour and hatch of time that no interval of the log covers."""

ROLE_MARKS: dict[str, tuple[str, str]] = {
    "attention": ("#E69F00", ""), "moe": ("#56B4E9", ""), "dense_gemm": ("#0072B2", ""),
    "communication": ("#CC79A7", ""), "sampling": ("#009E73", ""), "norm_rope_quant": ("#009E73", "/"),
    "state": ("#F0E442", ""), "elementwise_copy_reduce": ("#009E73", "."), "draft": ("#56B4E9", "\\"),
    "memory_copy": ("#CC79A7", "/"), "unclassified": ("#999999", "x"),
}
"""Role of kernels -> (colour, hatch), as in the figure of the parts of a step: matrices blue, requests' own orange."""

UNCLASSIFIED = "unclassified"


def causes_bars(rows: Sequence[Mapping[str, Any]], *, title: str = "", subtitle: str = "") -> go.Figure:
    """Draw the score of every cause in the order of the diagnosis, with its strongest fact.

    Parameters
    ----------
    rows : sequence of mapping
        ``scorecard["diagnosis"]``: cause, status, score, evidence_for, evidence_against, refuted_by, contradiction.
    title, subtitle : str
        Finding and run; the title is computed if empty.

    Returns
    -------
    Figure
        Refuted causes share the last row, causes on which nothing was seen the one before; hover boxes and the table
        have their reasons.
    """
    if not rows:
        return style.nothing_to_draw(title or "No cause was judged", "The diagnosis is empty.", subtitle)
    refuted = [row for row in rows if row["status"] == "refuted"]
    silent = [row for row in rows if row["status"] == "weak" and not row["score"] and not row["evidence_for"]
              and not row["evidence_against"]]
    told = [row for row in rows if row not in refuted and row not in silent]
    scores = [float(row["score"]) for row in told]
    highest, lowest = max([STRONG, *scores]), min([0.0, *scores])
    figure = go.Figure()
    for status, mark in STATUS_MARKS.items():
        of_status = [row for row in told if row["status"] == status]
        if of_status:
            _bars(figure, status, mark, of_status)
    for row in told:
        _beside(figure, max(float(row["score"]), 0.0), row["cause"], _told(row))
    keys = [row["cause"] for row in told]
    for status, name, group in (("weak", "nothing seen", silent), ("refuted", "refuted", refuted)):
        if group:
            key = f"{name} ({len(group)})"
            keys.append(key)
            _together(figure, status, key, group)
    figure.add_vline(x=STRONG, line={"color": style.BOUND, "width": 1.5, "dash": "dash"}, opacity=1, layer="below")
    figure.add_annotation(x=STRONG, y=1, yref="paper", yanchor="bottom", showarrow=False, font={"size": 12},
                          text=f"least for support: {STRONG}")
    figure.update_xaxes(title={"text": "score [1]"}, range=[lowest - 0.15 * highest, (1 + TEXT_ROOM) * highest],
                        tickvals=list(range(math.floor(lowest), math.ceil(highest) + 1)))
    figure.update_yaxes(type="category", autorange="reversed", automargin=True, categoryorder="array",
                        categoryarray=keys, showgrid=False)
    figure.update_layout(height=max(300, 170 + 46 * len(keys)), barmode="overlay", bargap=0.45,
                         legend={"traceorder": "normal"})
    figure = style.finish(figure, title or _causes_finding(rows), subtitle, [SCORE_NOTE])
    return figure.update_layout(title={"xref": "container", "x": 0.02})


def _bars(figure: go.Figure, status: str, mark: tuple[str, str, str], rows: Sequence[Mapping[str, Any]]) -> None:
    """Draw bars of one status, each with a symbol at its end: a score of zero has no length."""
    colour, symbol, hatch = mark
    x, y = [float(row["score"]) for row in rows], [row["cause"] for row in rows]
    hover = {"customdata": [_facts(row) for row in rows], "hovertemplate": "%{customdata}<extra></extra>"}
    figure.add_trace(go.Bar(
        x=x, y=y, orientation="h", name=f"{status} (bar)", legendgroup=status, showlegend=False, **hover,
        marker={"color": style.rgba(colour, 0.6), "pattern": {"shape": hatch, "fgcolor": "white", "solidity": 0.3}}))
    figure.add_trace(go.Scatter(
        x=x, y=y, mode="markers", name=status, legendgroup=status, **hover,
        marker={"color": colour, "symbol": symbol, "size": 11, "line": {"color": "white", "width": 1}}))


def _together(figure: go.Figure, status: str, key: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Draw several causes as one row of names."""
    colour, symbol, _ = STATUS_MARKS[status]
    facts = "<br>".join(
        f"<b>{style.safe(row['cause'])}</b>" + (f": {style.safe(row['refuted_by'], 100)}" if row["refuted_by"] else "")
        for row in rows)
    figure.add_trace(go.Scatter(
        x=[0.0], y=[key], mode="markers", name=key, showlegend=False, customdata=[facts],
        marker={"color": colour, "symbol": f"{symbol}-open", "size": 10}, hovertemplate="%{customdata}<extra></extra>"))
    _beside(figure, 0.0, key, style.wrap(style.safe(", ".join(row["cause"] for row in rows), 2000), ALL_CHARS))


def _beside(figure: go.Figure, x: float, y: str, text: str) -> None:
    figure.add_annotation(x=x, y=y, text=text, showarrow=False, xanchor="left", xshift=12, align="left",
                          font={"size": 11, "color": "#000000"}, bgcolor="rgba(255,255,255,0.75)")


def _told(row: Mapping[str, Any]) -> str:
    """Say the status and the strongest fact of a cause, in few lines."""
    if row["contradiction"]:
        fact = f"contradiction: {row['contradiction']}"
    elif row["evidence_for"] and (float(row["score"]) > 0 or not row["evidence_against"]):
        fact = row["evidence_for"][0]
    else:
        fact = f"against: {row['evidence_against'][0]}" if row["evidence_against"] else ""
    # Lines end at words, so the last holds less than TEXT_CHARS.
    short = style.safe(fact, TEXT_CHARS * TEXT_LINES - len(row["status"]) - 16)
    return style.wrap(f"{row['status']}: {short}" if short else row["status"], TEXT_CHARS)


def _facts(row: Mapping[str, Any]) -> str:
    """List the strongest facts on both sides of a cause for a hover box."""
    lines = [f"<b>{style.safe(row['cause'])}</b>, {row['status']}, score {float(row['score']):g}",
             style.safe(CAUSES.get(row["cause"], ""))]
    for word, facts in (("for", row["evidence_for"]), ("against", row["evidence_against"])):
        lines += [f"{word}: {style.wrap(style.safe(fact, 240), 80)}" for fact in facts[:MAX_FACTS]]
        lines += [f"{word}: {len(facts) - MAX_FACTS} more"] if len(facts) > MAX_FACTS else []
    lines += [f"contradiction: {style.wrap(style.safe(row['contradiction'], 300), 80)}"] if row["contradiction"] else []
    return "<br>".join(filter(None, lines))


def _causes_finding(rows: Sequence[Mapping[str, Any]]) -> str:
    """Say which cause stands first, and how firmly."""
    first = rows[0]
    means = CAUSES.get(first["cause"], "")
    supported = [row for row in rows if row["status"] == "supported"]
    if first["status"] == "supported":
        start = f"{first['cause']} is supported" if len(supported) == 1 else (
            f"{len(supported)} causes are supported, first {first['cause']}")
        return f"{start}: {means}"
    if first["status"] == "compatible" and first["cause"] != "unknown":
        return f"No cause is supported; {first['cause']} fits best: {means}"
    return f"No cause is supported: {CAUSES['unknown']}"


def client_time_bar(
    parts: Mapping[str, float], duration_s: float, *, title: str = "", subtitle: str = ""
) -> go.Figure:
    """Draw where a client's duration went, as one bar that adds up to it.

    Parameters
    ----------
    parts : mapping
        Label of an interval, or "not covered", -> seconds. What is missing to the duration is "not covered".
    duration_s : float
        First request to last answer, as the client counts [s].
    title, subtitle : str
        Finding and run; the title is computed if empty.
    """
    known = {name: float(value) for name, value in parts.items() if value is not None and value > 0}
    if not duration_s > 0:
        reason = "The client tells no duration."
        return style.nothing_to_draw(title or "No client time to divide", reason, subtitle)
    rest_s = duration_s - sum(known.values())
    notes = []
    if rest_s > SUM_TOLERANCE * duration_s:
        known[NOT_COVERED] = known.get(NOT_COVERED, 0.0) + rest_s
    elif rest_s < -SUM_TOLERANCE * duration_s:
        notes.append(f"the parts are {show(-rest_s, 'duration')} longer than the client's duration: the clocks differ")
    order = [*style.LABEL_MARKS, *sorted(set(known) - {*style.LABEL_MARKS, NOT_COVERED}), NOT_COVERED]
    figure = go.Figure()
    for name in order:
        if name not in known:
            continue
        colour = NOT_COVERED_MARK[0] if name == NOT_COVERED else style.LABEL_MARKS.get(name, ("#000000", ""))[0]
        hatch = NOT_COVERED_MARK[1] if name == NOT_COVERED else LABEL_HATCHES.get(name, "|")
        is_white = name == NOT_COVERED
        share = known[name] / duration_s
        word = style.safe(name)
        figure.add_trace(go.Bar(
            x=[known[name]], y=[""], orientation="h", name=f"{word} {show(known[name], 'duration')}",
            text=[f"{word}<br>{100 * share:.0f} %" if share > WIDE_FRAC else ""], textposition="inside",
            insidetextanchor="middle", textangle=0, textfont={"color": "black" if is_white else None},
            marker={"color": colour, "line": {"color": style.BOUND, "width": 1 if is_white else 0},
                    "pattern": {"shape": hatch, "fgcolor": style.BASELINE if is_white else "#FFFFFF",
                                "fgopacity": 0.35}},
            hovertemplate=f"{word}: %{{x:.1f}} s, {100 * share:.1f} %<extra></extra>",
        ))
    figure.add_vline(x=duration_s, line={"color": style.BOUND, "width": 2, "dash": "dash"}, opacity=1)
    figure.add_annotation(x=duration_s, y=1, yref="paper", yanchor="bottom", xanchor="right", showarrow=False,
                          text=f"client's duration {show(duration_s, 'duration')}", font={"size": 12})
    figure.update_layout(barmode="stack", height=280, legend={"traceorder": "normal"})
    figure.update_xaxes(title={"text": "time of the client [s]"}, rangemode="tozero")
    steady = f"{100 * known.get('steady', 0.0) / duration_s:.0f} %"
    said = f"{steady} of the client's {show(duration_s, 'duration')} is steady decode"
    if known.get(NOT_COVERED):
        said += f"; the log covers all but {100 * known[NOT_COVERED] / duration_s:.2g} %"
    return style.finish(figure, title or said, subtitle, notes)


SUM_TOLERANCE = 1e-6
"""Rounding of a sum of seconds, as a share of it."""

WIDE_FRAC = 0.09
"""Share of a bar that has room for its name."""


def role_bars(shares: pd.DataFrame, *, title: str = "", subtitle: str = "") -> go.Figure:
    """Draw the share of kernel time of every role, largest first; unclassified kernels always have a row, the last.

    Parameters
    ----------
    shares : DataFrame
        ``evidence.profiles.role_shares``: role, total_s, share_frac, n_calls, and per_step_s, calls_per_step where
        steps are known.
    title, subtitle : str
        Finding and run; the title is computed if empty.
    """
    if shares.empty or not shares["total_s"].sum() > 0:
        reason = "The profile holds no kernel with a time."
        return style.nothing_to_draw(title or "No kernel time to divide", reason, subtitle)
    rows = shares.sort_values("share_frac", ascending=False, kind="stable")
    is_last = rows["role"].eq(UNCLASSIFIED)
    if not is_last.any():
        empty = pd.DataFrame({"role": [UNCLASSIFIED], "total_s": [0.0], "share_frac": [0.0], "n_calls": [0]})
        rows = pd.concat([rows, empty], ignore_index=True)
        is_last = rows["role"].eq(UNCLASSIFIED)
    rows = pd.concat([rows[~is_last], rows[is_last]])
    told = rows.to_dict("records")
    marks = [ROLE_MARKS.get(row["role"], ("#000000", "|")) for row in told]
    hover = [f"{show(row['total_s'], 's')} in {row['n_calls']} launches" for row in told]
    figure = go.Figure(go.Bar(
        x=rows["share_frac"], y=rows["role"].map(style.safe), orientation="h", name="share of kernel time",
        text=[_role_text({str(key): value for key, value in row.items()}) for row in told], textposition="outside",
        cliponaxis=False, customdata=hover, hovertemplate="%{y}<br>%{x:.2%}<br>%{customdata}<extra></extra>",
        marker={"color": [colour for colour, _ in marks],
                "pattern": {"shape": [hatch for _, hatch in marks], "fgcolor": "white", "solidity": 0.3}},
    ))
    longest = float(rows["share_frac"].max())
    figure.update_xaxes(title={"text": "share of the time of all kernels and copies [%]"}, tickformat=".0%",
                        range=[0, ROLE_ROOM * longest])
    figure.update_yaxes(type="category", autorange="reversed", automargin=True)
    figure.update_layout(height=max(300, 150 + 34 * len(rows)), showlegend=False)
    first, unknown = told[0], float(told[-1]["share_frac"])
    said = f"{style.safe(first['role'])} takes {_percent(float(first['share_frac']))} of the kernel time"
    if first["role"] == UNCLASSIFIED:
        said = f"No kernel has a known role: {_percent(unknown)} of the time is unclassified"
    else:
        said += f"; {_percent(unknown)} has no known role" if unknown > 0 else "; every kernel has a known role"
    notes = ["streams overlap, so times of kernels may add up to more than the step"]
    # Beside a wide axis the lines of the title would not fit.
    return style.finish(figure, title or said, subtitle, notes).update_layout(title={"xref": "container", "x": 0.02})


ROLE_ROOM = 1.75
"""Length of the axis over the longest bar: room for what is said behind it [1]."""


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def _role_text(row: Mapping[str, Any]) -> str:
    """Say share, time per step and launches of a role, as far as known."""
    share = _percent(float(row["share_frac"]))
    if not row["n_calls"]:
        return share
    per_step_s, calls = (float(row.get(name, math.nan)) for name in ("per_step_s", "calls_per_step"))
    if math.isfinite(per_step_s) and math.isfinite(calls):
        return f"{share} · {show(per_step_s, 's')} and {_launches(calls)} per step"
    return f"{share} · {_launches(row['n_calls'])}"


def _launches(number: float) -> str:
    return f"{number:.6g} launch{'' if number == 1 else 'es'}"
