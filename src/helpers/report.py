"""One offline HTML page from a run folder: the answer first, then the executed notebook with its code folded.

Whatever comes from a log is shown as text, never run: HTML outputs pass only if they hold nothing but tables and
plain markup, and the page forbids itself the network.
"""

from __future__ import annotations

import html
import json
import os
from collections.abc import Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import nbformat
from nbconvert.filters import strip_ansi
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from nbformat import NotebookNode
from plotly.offline import get_plotlyjs

from helpers import scorecard
from helpers.schema import LogFormatError

FILE_NAME = "report.html"
SAMPLE_PARAGRAPH = "Sample data:"
"""Begins a paragraph about the default log of a notebook: not true of a run on another one."""

PLOTLY_MIME = "application/vnd.plotly.v1+json"
IMAGE_MIMES = ("image/png", "image/jpeg")

SAFE_TAGS = frozenset(
    "a b blockquote br caption code col colgroup dd details div dl dt em h1 h2 h3 h4 h5 h6 hr i li ol p pre small span "
    "strong style sub summary sup table tbody td tfoot th thead tr u ul".split()
)
SAFE_ATTRIBUTES = frozenset("align border class colspan id rowspan scope scoped style title valign".split())

SENTENCE_CHARS = 40
"""Length from which a cell of a table is a sentence and not a number."""

POLICY = ("default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; "
          "img-src data: blob:; font-src data:; worker-src blob:")
"""Nothing may be loaded; plotly.js compiles some of its traces (unsafe-eval)."""

STYLE = """
:root { color-scheme: light dark; --fg: #1b1f24; --bg: #ffffff; --soft: #f3f5f7; --line: #d5dae0; --accent: #0072b2;
 --bad: #b03a00; }
@media (prefers-color-scheme: dark) { :root { --fg: #e4e8ec; --bg: #14181c; --soft: #1e242a; --line: #3a434c;
 --accent: #6db9ea; --bad: #ff8f5c; } }
body { margin: 0 auto; padding: 1rem; max-width: 62rem; font: 16px/1.5 system-ui, sans-serif; color: var(--fg);
 background: var(--bg); overflow-wrap: anywhere; }
a { color: var(--accent); }
.answer { border-left: 4px solid var(--accent); background: var(--soft); padding: .5rem 1rem; }
.answer.bad, .error { border-left: 4px solid var(--bad); background: var(--soft); padding: .5rem 1rem; }
pre { background: var(--soft); padding: .6rem; overflow-x: auto; font-size: .85rem; white-space: pre-wrap; }
details > pre { white-space: pre; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-size: .85rem; border: 0; }
th, td { border-bottom: 1px solid var(--line); padding: .2rem .5rem; text-align: right; white-space: nowrap; }
td.said { white-space: normal; text-align: left; min-width: 9rem; }
details > summary { color: var(--accent); cursor: pointer; font-size: .8rem; }
.figure { background: #ffffff; border-radius: 4px; margin: .5rem 0; min-height: 20rem; } img { max-width: 100%; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .1rem 1rem; font-size: .85rem; } dd { margin: 0; }
@media (max-width: 30rem) { body { padding: .5rem; } dl { grid-template-columns: 1fr; } dd { margin: 0 0 .4rem; } }
"""


class _Inspector(HTMLParser):
    """Find out whether a piece of HTML holds nothing but plain markup."""

    def __init__(self) -> None:
        super().__init__()
        self.is_safe = True

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = " ".join(value or "" for _, value in attrs).lower()
        known = tag in SAFE_TAGS and all(name in SAFE_ATTRIBUTES for name, _ in attrs)
        self.is_safe &= known and "url(" not in values

    def handle_data(self, data: str) -> None:
        self.is_safe &= "@import" not in data or self.lasttag != "style"

    def handle_comment(self, data: str) -> None:
        self.is_safe = False

    def handle_decl(self, decl: str) -> None:
        self.is_safe = False

    def unknown_decl(self, data: str) -> None:
        self.is_safe = False

    def handle_pi(self, data: str) -> None:
        self.is_safe = False


def is_plain_markup(fragment: str) -> bool:
    """Tell whether an HTML output may be put into the page as it is."""
    inspector = _Inspector()
    inspector.feed(fragment)
    return inspector.is_safe and "<" not in inspector.rawdata  # rawdata: the tail that is no whole tag


def render(notebook: NotebookNode, card: Mapping[str, Any] | None = None, run: Mapping[str, Any] | None = None) -> str:
    """Return the page of an executed notebook.

    Parameters
    ----------
    notebook : NotebookNode
        Executed.
    card : mapping, optional
        Its scorecard; the page then starts with the answer.
    run : mapping, optional
        run.json; for what went wrong and for the versions.

    Returns
    -------
    str
        HTML without any reference to the network.
    """
    figures: list[str] = []
    cells = [cell for cell in notebook.cells if "nbval-skip" not in cell.metadata.get("tags", [])]
    first = [output for cell in cells if card and "headline" in cell.metadata.get("tags", [])
             for output in cell.outputs if output.output_type != "stream"]
    top = [_output(output, figures) for output in first]
    has_own_log = bool(((run or {}).get("parameters") or {}).get("log_path"))
    body = [_cell(cell, figures, is_answered=card is not None, has_own_log=has_own_log) for cell in cells]
    title = next((line.lstrip("# ") for cell in notebook.cells for line in cell.source.splitlines()
                  if cell.cell_type == "markdown" and line.startswith("# ")), "rooflog")
    script = f"<script>{get_plotlyjs()}</script>" if figures else ""
    return "\n".join([
        "<!DOCTYPE html>", '<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{html.escape(title)}</title><style>{STYLE}</style>{script}</head><body>",
        _head(card, run), *top, *body, *figures, _foot(run), "</body></html>", "",
    ])


def _head(card: Mapping[str, Any] | None, run: Mapping[str, Any] | None) -> str:
    """Put the answer first, or what went wrong."""
    message = (run or {}).get("message") or ""
    parts = []
    if message:
        parts.append(f'<div class="answer bad"><p><strong>{html.escape((run or {})["status"].replace("_", " "))}'
                     f"</strong>: {html.escape(message)}</p></div>")
    if card:
        lines = "".join(f"<p>{html.escape(line)}</p>" for line in scorecard.answer(card).splitlines())
        parts.append(f'<div class="answer">{lines}</div>')
    return "\n".join(parts)


def _foot(run: Mapping[str, Any] | None) -> str:
    """Say how the page came about."""
    if not run:
        return ""
    shown = {"command": run.get("command"), "notebook": run.get("notebook"), "started (UTC)": run.get("started_utc"),
             "parameters": json.dumps(run.get("parameters"), ensure_ascii=False),
             "log sha256": ", ".join(run.get("log_sha256") or []),
             "versions": ", ".join(f"{name} {number}" for name, number in (run.get("versions") or {}).items())}
    rows = "".join(f"<dt>{key}</dt><dd>{html.escape(str(value))}</dd>" for key, value in shown.items() if value)
    return f"<hr><dl>{rows}</dl>"


def _markdown(text: str) -> str:
    """Render Markdown; raw HTML in it becomes text, links leave the page only when clicked."""
    renderer = IPythonRenderer(escape=True, allow_harmful_protocols=False, exclude_anchor_links=True)
    return f'<div class="wide">{MarkdownWithMath(renderer=renderer).render(text)}</div>'


def _cell(
    cell: NotebookNode, figures: list[str], *, is_answered: bool = False, has_own_log: bool = False
) -> str:
    """Render one cell; of the headline only its code where the page has begun with its words and figure."""
    if cell.cell_type == "markdown":
        paragraphs = cell.source.split("\n\n")
        return _markdown("\n\n".join(p for p in paragraphs if not (has_own_log and p.startswith(SAMPLE_PARAGRAPH))))
    if cell.cell_type != "code":
        return f"<pre>{html.escape(cell.source)}</pre>"
    name = next(iter(cell.metadata.get("tags", [])), "")
    code = (f"<details><summary>code{': ' + html.escape(name) if name else ''}</summary>"
            f"<pre>{html.escape(cell.source)}</pre></details>")
    outputs = [] if is_answered and name == "headline" else cell.outputs
    return "\n".join([code, *(_output(output, figures) for output in outputs)])


def _output(output: NotebookNode, figures: list[str]) -> str:
    if output.output_type == "stream":
        return f"<pre>{html.escape(strip_ansi(output.text))}</pre>"
    if output.output_type == "error":
        trace = strip_ansi("\n".join(output.traceback))
        return (f'<div class="error"><strong>{html.escape(output.ename)}</strong>: {html.escape(output.evalue)}'
                f"<details><summary>traceback</summary><pre>{html.escape(trace)}</pre></details></div>")
    data = output.data
    if PLOTLY_MIME in data:
        return _figure(data[PLOTLY_MIME], figures)
    if "text/html" in data and is_plain_markup(data["text/html"]):
        return f'<div class="wide">{_wrap_sentences(data["text/html"])}</div>'
    for mime in IMAGE_MIMES:
        if mime in data:
            return f'<img alt="output" src="data:{mime};base64,{html.escape("".join(data[mime].split()))}">'
    if "text/markdown" in data:
        return _markdown(data["text/markdown"])
    return f"<pre>{html.escape(strip_ansi(str(data.get('text/plain', ''))))}</pre>"


def _wrap_sentences(fragment: str) -> str:
    """Let the cells of a table that hold sentences break into lines; numbers with their intervals stay on one."""
    first, *cells = fragment.split("<td>")
    return first + "".join(("<td>" if len(cell.partition("</td>")[0]) < SENTENCE_CHARS else '<td class="said">') + cell
                           for cell in cells)


def _figure(figure: Mapping[str, Any], figures: list[str]) -> str:
    """Leave a place for a figure; its script follows the text, so that the answer is there at once."""
    name = f"figure-{len(figures)}"
    layout = {**figure.get("layout", {}), "autosize": True}
    layout.pop("width", None)
    config = {"responsive": True, "displaylogo": False}
    arguments = ", ".join(_inline_json(part) for part in (figure.get("data", []), layout, config))
    figures.append(f'<script>Plotly.newPlot("{name}", {arguments});</script>')
    return f'<div class="figure" id="{name}"></div>'


def _inline_json(value: Any) -> str:
    """Return JSON that cannot end its script element."""
    return json.dumps(value).replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def write_report(folder: str | Path) -> Path:
    """Build report.html of a run folder again.

    Parameters
    ----------
    folder : path
        A run folder: the executed notebook, run.json, and scorecard.json unless the notebook failed.

    Returns
    -------
    Path
        The page.

    Raises
    ------
    LogFormatError
        The folder holds no executed notebook, or several.
    """
    where = Path(folder)
    notebooks = sorted(where.glob("*.ipynb"))
    if len(notebooks) != 1:
        raise LogFormatError(f"{where}: expected a run folder with one executed notebook, found {len(notebooks)}")
    try:
        notebook = nbformat.read(notebooks[0], as_version=4)
        run_file = where / "run.json"
        run = json.loads(run_file.read_text(encoding="utf-8")) if run_file.is_file() else None
    except ValueError as error:
        raise LogFormatError(f"{where}: expected a run folder, found a file that cannot be read: {error}") from error
    card = scorecard.read(where) if (where / scorecard.FILE_NAME).is_file() else None
    page = where / FILE_NAME
    partial = where / f".{FILE_NAME}.{os.getpid()}"
    partial.write_text(render(notebook, card, run), encoding="utf-8")
    os.replace(partial, page)
    return page
