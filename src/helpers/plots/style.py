"""The one look of every figure: template, colours with a meaning, axes with units, text that is safe to render.

Colours are Okabe-Ito (distinguishable with the common colour-vision deficiencies) and never the only mark: each
meaning has a symbol or a dash of its own.
"""

from __future__ import annotations

import html
from collections.abc import Sequence

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import plotly.io as pio

TEMPLATE = "rooflog"
WIDTH_PX, HEIGHT_PX = 900, 480
MAX_POINTS = 2000
"""Points drawn per trace; more are thinned, and the figure says so."""

STEADY = "#0072B2"
PREFILL = "#E69F00"
BOUND = "#4D4D4D"
BASELINE = "#999999"
REGRESSION = "#D55E00"
WARMUP = "#009E73"
MIXED = "#CC79A7"
DRAIN = "#56B4E9"
BOUND_SOFT = "#7F7F7F"
BAND_OPACITY = 0.18
FAINT_OPACITY = 0.45

LABEL_MARKS: dict[str, tuple[str, str]] = {
    "steady": (STEADY, "circle"),
    "ramp": (PREFILL, "triangle-up"),
    "mixed": (MIXED, "diamond"),
    "drain": (DRAIN, "triangle-down"),
    "warmup": (WARMUP, "square"),
    "idle": (BASELINE, "x-thin"),
}
"""Interval label -> (colour, symbol)."""

MAX_TEXT = 160
"""Characters of a log line shown in a hover box."""


def use_template() -> None:
    """Register the template and make it the default of this session."""
    _register()
    pio.templates.default = TEMPLATE


def _register() -> None:
    if TEMPLATE in pio.templates:
        return
    template = go.layout.Template(pio.templates["simple_white"])
    template.layout.update(
        width=WIDTH_PX,
        height=HEIGHT_PX,
        font={"family": "Helvetica, Arial, sans-serif", "size": 13},
        title={"x": 0.0, "xref": "paper", "xanchor": "left", "y": 0.965, "yanchor": "top", "font": {"size": 17}},
        margin={"l": 80, "r": 40, "t": 100, "b": 60},
        hovermode="closest",
        modebar={"orientation": "v"},
        legend={"orientation": "h", "x": 0.0, "xanchor": "left", "yanchor": "top"},
        colorway=[STEADY, PREFILL, WARMUP, MIXED, DRAIN, REGRESSION, BASELINE],
    )
    for axis in (template.layout.xaxis, template.layout.yaxis):
        axis.update(showgrid=True, gridcolor="#EEEEEE", zeroline=False, title={"standoff": 8})
    pio.templates[TEMPLATE] = template


def safe(text: object, limit: int = MAX_TEXT) -> str:
    """Make text from a log or a file name safe for plotly, which renders some HTML tags, and short."""
    flat = " ".join(str(text).split())
    return html.escape(flat if len(flat) <= limit else flat[: limit - 1] + "…", quote=False)


def wrap(text: str, width: int) -> str:
    """Break escaped text into lines of at most `width` characters."""
    lines, line = [], ""
    for word in text.split():
        if line and len(line) + 1 + len(word) > width:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}".strip()
    return "<br>".join([*lines, line])


TITLE_WIDTH, SUBTITLE_WIDTH = 105, 145
"""Characters per line that fit a figure of 900 px."""


LEGEND_BELOW_PX = 58
"""Distance from the axis to the legend: tick labels and axis title lie between."""


def finish(figure: go.Figure, title: str, subtitle: str, notes: Sequence[str] = ()) -> go.Figure:
    """Put on the template, the finding as title and the run below it; the top margin grows with their lines."""
    _register()
    small = wrap(" · ".join([*filter(None, [safe(subtitle, 400)]), *(safe(n, 300) for n in notes)]), SUBTITLE_WIDTH)
    big = wrap(safe(title, 400), TITLE_WIDTH)
    text = big + (f"<br><span style='font-size:12px;color:{BOUND}'>{small}</span>" if small else "")
    top = 42 + 21 * (big.count("<br>") + 1) + 16 * (small.count("<br>") + 1 if small else 0)
    height = (figure.layout.height or HEIGHT_PX) + max(0, top - 100)
    # The legend hangs below the axis title, whatever the height of the figure.
    legend = {"y": -LEGEND_BELOW_PX / max(height - top - 60, 60)}
    title_at = {"text": text, "y": 1 - 16 / height}
    figure.update_layout(template=TEMPLATE, title=title_at, height=height, margin={"t": top}, legend=legend)
    return figure


def thin(table: pd.DataFrame, limit: int = MAX_POINTS) -> tuple[pd.DataFrame, str]:
    """Return at most `limit` rows, every k-th, and the note that says so (empty if all are drawn)."""
    if len(table) <= limit:
        return table, ""
    stride = -(-len(table) // limit)
    return table.iloc[::stride], f"every {stride}th of {len(table)} points drawn"


def rgba(colour: str, opacity: float) -> str:
    """Return a hex colour with an opacity."""
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity})"


def seconds_axis(title: str, **more: object) -> dict[str, object]:
    """Axis of a short time: SI prefixes by tick format, from zero."""
    return {"title": {"text": f"{title} [s]"}, "tickformat": "~s", "ticksuffix": "s", "rangemode": "tozero", **more}


def rate_axis(title: str, **more: object) -> dict[str, object]:
    """Axis of a throughput, from zero."""
    return {"title": {"text": f"{title} [tok/s]"}, "tickformat": "~s", "rangemode": "tozero", **more}


def request_axis(title: str = "running requests", **more: object) -> dict[str, object]:
    """Axis of running requests, from zero."""
    return {"title": {"text": f"{title} [req]"}, "rangemode": "tozero", **more}


def percent_axis(title: str, **more: object) -> dict[str, object]:
    """Axis of a fraction shown in percent."""
    return {"title": {"text": f"{title} [%]"}, "tickformat": ".3~%", **more}


def whiskers(value: np.ndarray, lo: np.ndarray, hi: np.ndarray, colour: str) -> dict[str, object]:
    """Asymmetric error bars; a missing end draws none."""
    up, down = np.nan_to_num(hi - value), np.nan_to_num(value - lo)
    return {"type": "data", "symmetric": False, "array": np.clip(up, 0, None), "arrayminus": np.clip(down, 0, None),
            "color": colour, "thickness": 1.5, "width": 5}


def end_label(figure: go.Figure, x: float, y: float, text: str, colour: str, **more: object) -> None:
    """Name a line at its end instead of in a legend."""
    figure.add_annotation(
        x=x, y=y, text=safe(text), showarrow=False, xanchor="left", xshift=6, font={"color": colour, "size": 12}, **more
    )


def nothing_to_draw(title: str, reason: str, subtitle: str = "") -> go.Figure:
    """Return an empty figure that says why it is empty: a refusal in words, not a crash or a blank."""
    figure = go.Figure()
    figure.add_annotation(text=wrap(safe(reason, 400), 80), showarrow=False, x=0.5, y=0.5, xref="paper", yref="paper")
    figure.update_xaxes(visible=False)
    figure.update_yaxes(visible=False)
    figure.update_layout(height=200)
    return finish(figure, title, subtitle)
