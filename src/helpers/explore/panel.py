"""Controls, the figure that they change, and the words for a choice that cannot be computed."""

from __future__ import annotations

import html
import json
from collections.abc import Callable, Mapping
from typing import Any

import ipywidgets as widgets

from helpers.plots import Figure
from helpers.schema import RooflogError

PLOTLY_MIME = "application/vnd.plotly.v1+json"
LABEL_PX = 130


def figure_output(figure: Figure) -> tuple[dict[str, Any], ...]:
    """Return what `widgets.Output` shows of a figure.

    It is set as a value. Capturing what a function displays (``interactive_output``) makes a headless client wait for
    ever now and then: under load it misses that the cell has ended.
    """
    data = {PLOTLY_MIME: json.loads(figure.to_json())}
    return ({"output_type": "display_data", "data": data, "metadata": {}},)


def shown_output(shown: Figure | str) -> tuple[dict[str, Any], ...]:
    """Return what `widgets.Output` shows of a figure, or of HTML that holds nothing unescaped."""
    if isinstance(shown, Figure):
        return figure_output(shown)
    return ({"output_type": "display_data", "data": {"text/html": shown}, "metadata": {}},)


def labelled(control: widgets.Widget) -> widgets.Widget:
    """Give every control's label the same room."""
    control.style.description_width = f"{LABEL_PX}px"
    return control


def complaint(text: str) -> str:
    """Return one line that says why nothing changed, as HTML."""
    line = " ".join(text.split())
    return f"<span style='color:#A33A00'><b>Not computed:</b> {html.escape(line)}</span>" if line else ""


def command_html(line: str) -> str:
    """Return a command that can be selected and copied, as HTML."""
    return ("<div>The same without a notebook server:</div><pre style='white-space:pre-wrap;overflow-wrap:anywhere;"
            f"margin:0;padding:4px 8px;background:#F4F4F4;user-select:all'>{html.escape(line)}</pre>")


def panel(
    controls: Mapping[str, widgets.Widget],
    figure: Callable[..., Figure | str],
    line: Callable[..., str] | None = None,
) -> widgets.VBox:
    """Join controls and the figure that they change.

    Parameters
    ----------
    controls : mapping
        Argument of `figure` -> its control, starting at a value that works.
    figure : callable
        Called with the value of every control; returns a figure, or HTML.
    line : callable, optional
        Called likewise; returns the command that repeats what is shown.

    Returns
    -------
    VBox
        The controls, and last a box of figure, message and command. A choice that cannot be computed is answered in
        one line; the last figure stays.
    """
    shown, said, repeat = widgets.Output(), widgets.HTML(), widgets.HTML()

    def draw(_: object = None) -> None:
        chosen = {name: control.value for name, control in controls.items()}
        try:
            shown.outputs = shown_output(figure(**chosen))
            said.value = ""
            repeat.value = command_html(line(**chosen)) if line is not None else ""
        except RooflogError as error:
            said.value = complaint(str(error))

    for control in controls.values():
        labelled(control).observe(draw, names="value")
    draw()
    return widgets.VBox([*controls.values(), widgets.VBox([said, shown, repeat])])
