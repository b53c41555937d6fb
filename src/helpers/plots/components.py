"""Figures of what a step is made of and of what would change it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from helpers.answer import PART_WORDS, UNEXPLAINED, components_finding, show_share
from helpers.display import level_key, show
from helpers.plots import style

PART_MARKS: dict[str, tuple[str, str]] = {
    "weights": ("#0072B2", ""), "experts": ("#56B4E9", ""), "head": ("#0072B2", "/"), "draft": ("#56B4E9", "\\"),
    "kv": ("#E69F00", ""), "index": ("#E69F00", "/"), "state": ("#F0E442", ""), "compute": ("#D55E00", ""),
    "peak": ("#0072B2", ""), "efficiency": ("#D55E00", ""), "all_reduce": ("#CC79A7", ""), "floor": ("#009E73", "."),
    UNEXPLAINED: ("#999999", "x"),
}
"""Part of a step -> (colour, hatch), the same in every figure: matrices blue, what requests bring orange and yellow."""

OTHER_MARK = ("#000000", "|")
OVERSHOOT = "parts beyond the step"
DARK = ("#0072B2", "#D55E00", "#000000")
"""Colours that need a white label."""

LABEL_ROOM = 1.3
"""Length of the axis over the longest bar: room for what is said behind it [1]."""

PLOT_WIDTH_PX, CHARACTER_PX = 700, 6.8
"""Width between the margins; width of a character of a label."""

MAX_REFUSED, REFUSAL_CHARS = 4, 140
"""Refused levers named in the note, and characters of each reason; the table has all."""


def component_bars(table: pd.DataFrame, *, in_seconds: bool = False, title: str = "", subtitle: str = "") -> go.Figure:
    """Draw the parts of the measured step, one stacked bar per level.

    Parameters
    ----------
    table : DataFrame
        ``components.component_table`` or ``gap_table``: running_req, name, time_s, lo, hi; rows of a level add up to
        its measured step. A negative ``unexplained`` is drawn as the length by which the parts overshoot the step.
        Levels with an unknown part are left out; of two engines at one level the first is drawn.
    in_seconds : bool
        Lengths in seconds; else in shares of the measured step.
    title, subtitle : str
        Finding and run; the title is computed if empty.
    """
    levels = _levels(table, in_seconds)
    if not levels:
        reason = "There is no level at which the measured step and every part of it are known."
        return style.nothing_to_draw(title or "No part of a step is known", reason, subtitle)
    figure = go.Figure([_part_trace(name, levels) for name in _order(levels)])
    overshoot = [level for level in levels if level.left_s < 0]
    if overshoot:
        figure.add_trace(_overshoot_trace(overshoot))
    for level in levels:
        figure.add_annotation(x=level.end_s / level.scale_s, y=level.key, text=level.left_text(), showarrow=False,
                              xanchor="left", xshift=6, font={"size": 12})
    _bar_axes(figure, levels, in_seconds)
    notes = ["in brackets: interval of the unexplained share"]
    if overshoot:
        notes.append("hatched red: the parts add up to more than was measured, so at least one of them is too long")
    rows = [row for level in levels for row in level.rows.values()]
    return _at_the_edge(style.finish(figure, title or components_finding(rows), subtitle, notes))


@dataclass(frozen=True)
class _Level:
    """One level of a component table: its rows by name, in drawing order, and what lengths are divided by [s]."""

    running_req: float
    rows: Mapping[str, Mapping[str, Any]]
    step_s: float
    scale_s: float

    @property
    def key(self) -> str:
        return f"N={level_key(self.running_req)} · {show(self.step_s, 's')}"

    @property
    def left_s(self) -> float:
        """What the parts leave of the step [s]; negative where they overshoot it."""
        return float(self.rows[UNEXPLAINED]["time_s"]) if UNEXPLAINED in self.rows else 0.0

    @property
    def end_s(self) -> float:
        """Where the drawn bars end [s]."""
        return max(self.step_s, self.step_s - self.left_s)

    def begin_s(self, name: str) -> float:
        """Where a part begins: the sum of those before it [s]."""
        names = list(self.rows)
        return float(sum(self.rows[before]["time_s"] for before in names[: names.index(name)]))

    def left_text(self) -> str:
        """Say what is left, in few words."""
        if UNEXPLAINED not in self.rows:
            return ""
        lo, hi = (self.rows[UNEXPLAINED][end] / self.step_s for end in ("lo", "hi"))
        if self.left_s < 0:
            return f"{show_share(-self.left_s / self.step_s, -hi, -lo)} too long"
        return f"{show_share(self.left_s / self.step_s, lo, hi)} unexplained"


def _levels(table: pd.DataFrame, in_seconds: bool) -> list[_Level]:
    """Return the levels at which everything is known, lowest first, their parts in drawing order."""
    order = [*PART_MARKS, *sorted(set(table["name"]) - set(PART_MARKS))]
    order = [*(name for name in order if name != UNEXPLAINED), UNEXPLAINED]
    by_level: dict[float, dict[str, dict[str, Any]]] = {}
    for row in sorted(table.to_dict("records"), key=lambda row: (row["running_req"], order.index(row["name"]))):
        by_level.setdefault(row["running_req"], {}).setdefault(row["name"], {str(key): row[key] for key in row})
    levels = []
    for running_req, rows in by_level.items():
        step_s = float(sum(row["time_s"] for row in rows.values()))
        if step_s > 0:
            levels.append(_Level(running_req, rows, step_s, 1.0 if in_seconds else step_s))
    return levels


def _order(levels: list[_Level]) -> list[str]:
    """Return the parts that have a length at some level, in drawing order; the longest list of names leads."""
    names = [*PART_MARKS, *sorted({name for level in levels for name in level.rows} - set(PART_MARKS))]
    return [name for name in names if any(level.rows.get(name, {}).get("time_s", 0) > 0 for level in levels)]


def _part_trace(name: str, levels: list[_Level]) -> go.Bar:
    """Return one part at all levels, each bar from where the part before ends."""
    colour, hatch = PART_MARKS.get(name, OTHER_MARK)
    word = style.safe(PART_WORDS.get(name, name))
    has = [(level, level.rows[name]) for level in levels if name in level.rows and level.rows[name]["time_s"] > 0]
    return go.Bar(
        name=word, orientation="h", y=[level.key for level, _ in has],
        x=[row["time_s"] / level.scale_s for level, row in has],
        base=[level.begin_s(name) / level.scale_s for level, _ in has],
        marker={"color": colour, "line": {"color": "white", "width": 1},
                "pattern": {"shape": hatch, "fgcolor": "rgba(255,255,255,0.6)", "size": 7, "solidity": 0.25}},
        text=[_bar_text(word, row["time_s"] / level.step_s, level, levels) if name != UNEXPLAINED else ""
              for level, row in has],
        textposition="inside", insidetextanchor="middle", textangle=0, constraintext="none",
        textfont={"color": "white" if colour in DARK else "black", "size": 12},
        customdata=[_hover(row, level.step_s) for level, row in has],
        hovertemplate="%{customdata}<extra>" + word + "</extra>",
    )


def _overshoot_trace(levels: list[_Level]) -> go.Bar:
    """Return the lengths by which parts reach beyond the measured step, hatched over them."""
    return go.Bar(
        name=OVERSHOOT, orientation="h", y=[level.key for level in levels],
        x=[-level.left_s / level.scale_s for level in levels], base=[level.step_s / level.scale_s for level in levels],
        marker={"color": "rgba(255,255,255,0)", "line": {"color": style.REGRESSION, "width": 2},
                "pattern": {"shape": "x", "fgcolor": style.REGRESSION, "fgopacity": 0.9, "size": 8, "solidity": 0.2}},
        customdata=[_hover(level.rows[UNEXPLAINED], level.step_s) for level in levels],
        hovertemplate="unexplained: %{customdata}<extra>" + OVERSHOOT + "</extra>",
    )


def _bar_axes(figure: go.Figure, levels: list[_Level], in_seconds: bool) -> None:
    longest = _longest(levels)
    if in_seconds:
        figure.update_xaxes(**style.seconds_axis("time of a step"))
    else:
        ticks = np.arange(0, longest + 0.01, 0.2)
        figure.update_xaxes(title={"text": "share of the measured step [%]"}, tickvals=ticks,
                            ticktext=[f"{100 * tick:.0f}" for tick in ticks])
        figure.add_vline(x=1, line={"color": style.BOUND, "width": 1}, opacity=1)
    figure.update_xaxes(range=[0, LABEL_ROOM * longest])
    figure.update_yaxes(title={"text": "running requests [req]"}, type="category", autorange="reversed",
                        categoryorder="array", categoryarray=[level.key for level in levels])
    figure.update_layout(barmode="overlay", bargap=0.3, height=max(style.HEIGHT_PX, 160 + 46 * len(levels)),
                         margin={"l": 150}, legend={"traceorder": "normal"})


def _longest(levels: list[_Level]) -> float:
    return max(level.end_s / level.scale_s for level in levels)


def _bar_text(word: str, share: float, level: _Level, levels: list[_Level]) -> str:
    """Label a part by name and share, by its share, or not at all, as its bar has room."""
    drawn_px = share * level.step_s / level.scale_s / (LABEL_ROOM * _longest(levels)) * PLOT_WIDTH_PX
    texts = (f"{word} {show_share(share)}", show_share(share), "")
    return next(text for text in texts if CHARACTER_PX * (len(text) + 1) <= drawn_px or not text)


def _hover(row: Mapping[str, Any], step_s: float) -> str:
    source = row.get("source")
    text = f"{show(row['time_s'], 's', row['lo'], row['hi'])}, {row['time_s'] / step_s:.1%} of {show(step_s, 's')}"
    return f"{text}<br>{style.wrap(style.safe(source, 300), 70)}" if isinstance(source, str) and source else text


def lever_bars(
    levers: Sequence[Any], measured_tok_per_s: float, *, title: str = "", subtitle: str = ""
) -> go.Figure:
    """Draw the rate that each lever would bring with its interval, against the measured rate.

    Parameters
    ----------
    levers : sequence of Lever or of mapping
        From ``levers.levers`` or the scorecard; refused ones are named in the note.
    measured_tok_per_s : float
        Decode rate at the level that the levers start from [tok/s].
    title, subtitle : str
        Finding and run; the title is computed if empty.
    """
    rows = [lever if isinstance(lever, Mapping) else vars(lever) for lever in levers]
    told = sorted((row for row in rows if not row["refused"]), key=lambda row: row["tok_per_s"])
    refused = [f"refused: {row['lever']} ({_short(row['refused'])})" for row in rows if row["refused"]]
    if len(refused) > MAX_REFUSED:
        refused = [*refused[:MAX_REFUSED], f"{len(refused) - MAX_REFUSED} more refused"]
    if not told:
        reason = "; ".join(refused) or "Levers need hardware, model and a measured step."
        return style.nothing_to_draw(title or "No lever can be computed", reason, subtitle)
    figure = go.Figure(_lever_trace(told, measured_tok_per_s))
    highest = max(measured_tok_per_s, *(_end(row) for row in told))
    for row in told:
        change = row["tok_per_s"] / measured_tok_per_s
        figure.add_annotation(x=_end(row), y=_lever_key(row), text=f"{show(row['tok_per_s'])} ({change:.2f}x)",
                              showarrow=False, xanchor="left", xshift=8, font={"size": 12},
                              bgcolor="rgba(255,255,255,0.8)")
    figure.add_vline(x=measured_tok_per_s, line={"color": style.STEADY, "width": 2}, opacity=1)
    figure.add_annotation(x=measured_tok_per_s, y=1, yref="paper", yanchor="bottom", showarrow=False,
                          text=f"measured {show(measured_tok_per_s)}", font={"color": style.STEADY, "size": 12})
    figure.update_xaxes(**style.rate_axis("decode throughput"), range=[0, 1.18 * highest])
    figure.update_yaxes(type="category", automargin=True)
    figure.update_layout(height=max(style.HEIGHT_PX, 170 + 34 * len(told)))
    notes = ["whiskers: interval of the measurement and of what kernels reach", *refused]
    return _at_the_edge(style.finish(figure, title or _lever_finding(told, measured_tok_per_s), subtitle, notes))


def _at_the_edge(figure: go.Figure) -> go.Figure:
    """Begin the title at the edge of the figure: beside a wide axis its lines would not fit."""
    return figure.update_layout(title={"xref": "container", "x": 0.02})


def _lever_trace(told: list[Mapping[str, Any]], measured_tok_per_s: float) -> go.Bar:
    rate = np.array([row["tok_per_s"] for row in told], dtype="float64")
    lo, hi = np.array([_ends(row) for row in told], dtype="float64").T
    hover = [f"{show(row['tok_per_s'], 'tok/s', *_ends(row))}, step {show(row['step_s'], 's')}<br>"
             + style.wrap(style.safe("; ".join(row["assumes"]), 400), 70) for row in told]
    wins = rate > measured_tok_per_s
    return go.Bar(
        name="with the lever", orientation="h", y=[_lever_key(row) for row in told], x=rate, showlegend=False,
        marker={"color": np.where(wins, style.rgba(style.WARMUP, 0.55), style.rgba(style.BASELINE, 0.55)),
                "pattern": {"shape": np.where(wins, "", "/"), "fgcolor": "white"}},
        error_x=style.whiskers(rate, lo, hi, style.BOUND), customdata=hover,
        hovertemplate="%{y}<br>%{customdata}<extra></extra>",
    )


def _ends(row: Mapping[str, Any]) -> tuple[float, float]:
    """Return both ends of a rate [tok/s]; NaN where they are unknown or the same: that is no interval."""
    lo, hi = row["lo"], row["hi"]
    return (np.nan, np.nan) if lo is None or hi is None or not lo < hi else (lo, hi)


def _end(row: Mapping[str, Any]) -> float:
    """Return where a lever's bar and whisker end [tok/s]; an unknown upper end adds nothing."""
    hi = _ends(row)[1]
    return float(hi if hi > row["tok_per_s"] else row["tok_per_s"])


def _lever_key(row: Mapping[str, Any]) -> str:
    return style.wrap(style.safe(row["lever"], 80), 30)


def _short(reason: str) -> str:
    return reason if len(reason) <= REFUSAL_CHARS else reason[: REFUSAL_CHARS - 1] + "…"


def _lever_finding(told: list[Mapping[str, Any]], measured_tok_per_s: float) -> str:
    best = told[-1]
    own = f"the measured {show(measured_tok_per_s, 'tok/s')}"
    if not best["tok_per_s"] > measured_tok_per_s:
        return f"No lever brings more than {own}"
    is_sure = best["lo"] is not None and best["lo"] > measured_tok_per_s
    start = "The lever that wins most" if is_sure else "The lever that may win most, or nothing"
    return f"{start}: {best['lever']}, {show(best['tok_per_s'], 'tok/s', *_ends(best))} against {own}"
