"""Figures of a notebook as the page holds them: a caption of text, a place, and data that report.js draws."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping
from html.parser import HTMLParser
from typing import Any

PLOTLY_MIME = "application/vnd.plotly.v1+json"

TOP_PX = 28
"""Space above the axes once the title stands in the caption: names of subplots need it."""

HEIGHT_PX = 480
"""Of a figure that does not say its own, as plots.style has it."""

MIN_PX = 120


class _Title(HTMLParser):
    """Tell the finding from the smaller line below it, which is a span."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = ["", ""]
        self.n_spans = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.n_spans += tag == "span"
        if tag == "br":
            self.handle_data(" ")

    def handle_data(self, data: str) -> None:
        self.parts[min(self.n_spans, 1)] += data


def title_of(layout: Mapping[str, Any]) -> tuple[str, str]:
    """Return the title of a figure and the line below it, as text."""
    title = layout.get("title") or ""
    text = str(title.get("text") or "") if isinstance(title, Mapping) else str(title)
    reader = _Title()
    reader.feed(text)
    reader.close()
    finding, below = (" ".join(part.split()) for part in reader.parts)
    return finding, below


def place(figure: Mapping[str, Any], figures: list[str], *, height_px: float | None = None) -> str:
    """Return the place of a figure and add its data to those that follow the text.

    Parameters
    ----------
    figure : mapping
        Plotly's JSON.
    figures : list of str
        Script elements that hold data, one per figure; one is added.
    height_px : float, optional
        Height to draw it in; its own by default.

    Returns
    -------
    str
        HTML: the answer is there before anything is drawn.
    """
    number = len(figures)
    finding, below = title_of(figure.get("layout") or {})
    layout = _untitled(figure.get("layout") or {}, height_px)
    traces = [_as_vectors(trace) for trace in figure.get("data") or []]
    content = _inline_json({"data": traces, "layout": layout})
    figures.append(f'<script type="application/json" id="figure-{number}-data">{content}</script>')
    small = f"<small>{html.escape(below)}</small>" if below else ""
    caption = f"<figcaption><strong>{html.escape(finding)}</strong> {small}</figcaption>" if finding or below else ""
    return (f'<figure class="plot" aria-label="{html.escape(finding or "figure")}">{caption}'
            f'<div class="canvas" id="figure-{number}"></div></figure>')


def is_tall(figure: Mapping[str, Any]) -> bool:
    """Tell whether a figure needs more height than the default: many rows, which also need width."""
    layout = figure.get("layout") or {}
    top = float((layout.get("margin") or {}).get("t", 100))
    return float(layout.get("height") or HEIGHT_PX) - max(top, 100) > HEIGHT_PX - 80


def _untitled(layout: Mapping[str, Any], height_px: float | None) -> dict[str, Any]:
    """Drop title and width; what hangs below the axes by a share of their height keeps its distance."""
    new = {**layout, "autosize": True}
    new.pop("width", None)
    new.pop("title", None)
    of_template = ((layout.get("template") or {}).get("layout") or {})
    margin = {**(of_template.get("margin") or {}), **(layout.get("margin") or {})}
    top, bottom = float(margin.get("t", 100)), float(margin.get("b", 60))
    height = float(layout.get("height") or of_template.get("height") or HEIGHT_PX)
    wanted = height_px or height - max(top - TOP_PX, 0)
    inner, new_inner = (max(px, MIN_PX) for px in (height - top - bottom, wanted - TOP_PX - bottom))
    new |= {"height": wanted, "margin": {**(layout.get("margin") or {}), "t": TOP_PX}}
    legend = layout.get("legend")
    if isinstance(legend, Mapping) and isinstance(legend.get("y"), int | float):
        new["legend"] = {**legend, "y": legend["y"] * inner / new_inner}
    return new


def _as_vectors(trace: Mapping[str, Any]) -> dict[str, Any]:
    """Draw as vectors what a notebook draws with WebGL: that needs eval, which the page forbids, and prints as dots."""
    kind = str(trace.get("type") or "scatter")
    return {**trace, "type": kind.removesuffix("gl")}


def _inline_json(value: Any) -> str:
    """Return JSON that cannot end its script element."""
    text = json.dumps(value, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
