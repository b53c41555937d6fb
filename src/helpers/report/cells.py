"""Cells of an executed notebook as HTML: text, outputs, and code that is folded."""

from __future__ import annotations

import html
from collections.abc import Callable
from dataclasses import dataclass, field

from nbconvert.filters import strip_ansi
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from nbformat import NotebookNode

from helpers.report import figures
from helpers.report.markup import inline, is_plain_markup, rewrite

SAMPLE_PARAGRAPH = "Sample data:"
"""Begins a paragraph about the default log of a notebook: not true of a run on another one."""

IMAGE_MIMES = ("image/png", "image/jpeg")

HEADLINE_PX = 345
"""Height of the first figure: with the words beside it, it fits a screen of 1100 x 900."""

MAX_PROSE_LINES = 200

PAPERMILL_TAG = "papermill-error-cell-tag"
"""Of cells that papermill adds around an error, in its own markup; the page says it in its own words."""

ERROR_ID = "error"
"""Of the cell that ended the notebook."""


@dataclass
class Cells:
    """What the cells of a notebook become, and what they leave for the rest of the page.

    Attributes
    ----------
    has_own_log : bool
        The run is on a log of its own, not on the notebook's default.
    answered : str
        Text that the page has begun with; the headline does not repeat it.
    figures : list of str
        Data of the figures so far.
    headings : list of (str, str)
        Id and text of the sections.
    """

    has_own_log: bool = False
    answered: str = ""
    figures: list[str] = field(default_factory=list)
    headings: list[tuple[str, str]] = field(default_factory=list)

    def _on_heading(self, tag: str, text: str) -> str:
        if tag != "h2":
            return ""
        self.headings.append((f"section-{len(self.headings)}", text))
        return self.headings[-1][0]

    def headline_figure(self, cell: NotebookNode) -> tuple[str, bool]:
        """Return the first figure of the headline and whether it takes the whole width; it is not shown twice."""
        for i, output in enumerate(cell.get("outputs", [])):
            if figures.PLOTLY_MIME in output.get("data", {}):
                del cell.outputs[i]
                figure = output.data[figures.PLOTLY_MIME]
                is_wide = figures.is_tall(figure)
                return figures.place(figure, self.figures, height_px=None if is_wide else HEADLINE_PX), is_wide
        return "", False

    def render(self, cell: NotebookNode) -> str:
        """Return one cell."""
        if PAPERMILL_TAG in cell.metadata.get("tags", []):
            return ""
        if cell.cell_type == "markdown":
            shown = [p for p in cell.source.split("\n\n")
                     if not (self.has_own_log and p.startswith(SAMPLE_PARAGRAPH))]
            return markdown("\n\n".join(shown), self._on_heading)
        if cell.cell_type != "code":
            return f"<pre>{html.escape(cell.source)}</pre>"
        name = next(iter(cell.metadata.get("tags", [])), "")
        code = (f'<details class="code"><summary>code{": " + html.escape(name) if name else ""}</summary>'
                f"<pre>{html.escape(cell.source)}</pre></details>")
        return "\n".join([*(self._output(output, name) for output in cell.outputs), code])

    def _label(self, name: str) -> str:
        return self.headings[-1][1] if self.headings else name or "table"

    def _output(self, output: NotebookNode, name: str) -> str:
        if output.output_type == "stream":
            text = strip_ansi(output.text)
            if name == "headline" and self.answered and text.split() == self.answered.split():
                return ""
            return f"<pre>{html.escape(text)}</pre>" if name == "scorecard" else prose(text)
        if output.output_type == "error":
            trace = strip_ansi("\n".join(output.traceback))
            return (f'<div class="error" id="{ERROR_ID}"><strong>{html.escape(output.ename)}</strong>: '
                    f"{html.escape(output.evalue)}"
                    f"<details><summary>traceback</summary><pre>{html.escape(trace)}</pre></details></div>")
        data = output.data
        if figures.PLOTLY_MIME in data:
            return figures.place(data[figures.PLOTLY_MIME], self.figures)
        if "text/html" in data and is_plain_markup(data["text/html"]):
            return rewrite(data["text/html"], self._label(name))
        for mime in IMAGE_MIMES:
            if mime in data:
                return f'<img alt="output" src="data:{mime};base64,{html.escape("".join(data[mime].split()))}">'
        if "text/markdown" in data:
            return markdown(data["text/markdown"])
        return f"<pre>{html.escape(strip_ansi(str(data.get('text/plain', ''))))}</pre>"


def markdown(text: str, on_heading: Callable[[str, str], str] | None = None) -> str:
    """Render Markdown; raw HTML in it becomes text, links leave the page only when clicked."""
    renderer = IPythonRenderer(escape=True, allow_harmful_protocols=False, exclude_anchor_links=True)
    return rewrite(str(MarkdownWithMath(renderer=renderer).render(text)), on_heading=on_heading)


def prose(text: str) -> str:
    """Show printed sentences as paragraphs that fit any page; what stands in columns keeps its form.

    `readings.text.say` wraps a sentence to the page of a notebook and indents the lines that go on.
    """
    lines = text.splitlines()
    if len(lines) > MAX_PROSE_LINES or any(
            "\t" in line or "  " in line.strip() or line.startswith("   ") for line in lines):
        return f"<pre>{html.escape(text)}</pre>"
    sentences: list[str] = []
    for line in filter(str.strip, lines):
        if line.startswith("  ") and sentences:
            sentences[-1] += " " + line.strip()
        else:
            sentences.append(line)
    return "\n".join(f'<p class="printed">{inline(line)}</p>' for line in sentences)
