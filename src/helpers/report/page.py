"""The page: one file that loads nothing and runs no script but its own, which its policy names by hash."""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Mapping, Sequence
from functools import cache
from hashlib import sha256
from typing import Any

from nbformat import NotebookNode
from plotly.offline import get_plotlyjs

from helpers import paths
from helpers.report.cells import Cells
from helpers.report.first_screen import first_screen
from helpers.report.words import answer_of, source_line

HERE = paths.PACKAGE / "report"


@cache
def style() -> str:
    """Return the style of the page; the same text at every call."""
    return "".join((folder / name).read_text(encoding="utf-8")
                   for folder, name in ((HERE, "report.css"), (paths.PACKAGE, "sortable.css"), (HERE, "print.css")))


@cache
def plotly_js() -> tuple[bytes, str]:
    """Return the script element of plotly.js as it is written, and its name in the policy: 4.7 MB, read once."""
    content = get_plotlyjs().encode()
    return b"<script>" + content + b"</script>", name_in_policy(content)


@cache
def scripts() -> tuple[str, str]:
    """Return the page's own scripts as they are written, and their names in the policy."""
    texts = [path.read_text(encoding="utf-8") for path in (paths.PACKAGE / "sortable.js", HERE / "report.js")]
    return ("".join(f"<script>{text}</script>" for text in texts),
            " ".join(name_in_policy(text.encode()) for text in texts))


def name_in_policy(content: bytes) -> str:
    """Return the name by which a content security policy allows an inline script or style."""
    return f"'sha256-{base64.b64encode(sha256(content).digest()).decode()}'"


def policy(*, with_figures: bool) -> str:
    """Return the content security policy.

    Nothing may be loaded, and no script runs but those named. Styles may be inline: plotly.js sets them, and they can
    reach nothing outside the page. A picture of a figure to save is a blob.
    """
    allowed = scripts()[1] + (f" {plotly_js()[1]}" if with_figures else "")
    return (f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; "
            "base-uri 'none'; form-action 'none'")


def head(title: str, rules: str, css: str) -> str:
    """Return the beginning of a page that is one file, up to its body.

    Parameters
    ----------
    title : str
        As text.
    rules : str
        Content security policy.
    css : str
    """
    return "\n".join([
        "<!DOCTYPE html>", '<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{rules}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{html.escape(title)}</title><style>{css}</style></head><body>",
    ])


def document(title: str, body: Sequence[str], figures: Sequence[str] = (), css: str = "") -> list[bytes]:
    """Return a page in the look of a report in the pieces to be written.

    Parameters
    ----------
    title : str
        As text.
    body : sequence of str
        HTML.
    figures : sequence of str
        Data of the figures, as `figures.place` leaves them.
    css : str
        Further style.
    """
    before = "\n".join([head(title, policy(with_figures=bool(figures)), style() + css), *body, *figures, ""])
    library = [plotly_js()[0]] if figures else []
    return [before.encode("utf-8", "backslashreplace"), *library, f"{scripts()[0]}</body></html>\n".encode()]


def pieces(
    notebook: NotebookNode, card: Mapping[str, Any] | None = None, run: Mapping[str, Any] | None = None
) -> list[bytes]:
    """Return the page of an executed notebook in the pieces to be written.

    Parameters
    ----------
    notebook : NotebookNode
        Executed.
    card : mapping, optional
        Its scorecard or comparison; the page then starts with the answer.
    run : mapping, optional
        run.json; for what went wrong and for the versions.
    """
    parameters = (run or {}).get("parameters") or {}
    made = Cells(has_own_log=bool(parameters.get("log_path") or parameters.get("base_paths")),
                 answered=answer_of(card).text if card else "")
    shown = [cell.copy() for cell in notebook.cells if "nbval-skip" not in cell.metadata.get("tags", [])]
    for cell in shown:
        if cell.cell_type == "code":
            cell.outputs = list(cell.outputs)
    title = _take_title(shown)
    figure, is_wide = next((made.headline_figure(cell) for cell in shown
                            if card and "headline" in cell.metadata.get("tags", [])), ("", False))
    top = first_screen(card, run, figure, is_wide=is_wide)
    body = [made.render(cell) for cell in shown]
    links = "".join(f'<li><a href="#{name}">{html.escape(text)}</a></li>' for name, text in made.headings)
    sections = f'<nav aria-label="Sections"><ul>{links}</ul></nav>' if links else ""
    kicker = html.escape(" · ".join(filter(None, ("rooflog", source_line(card) if card else ""))))
    return document(title, [
        '<a class="skip" href="#sections">Skip to the sections</a>',
        f'<header><p class="kicker">{kicker}</p><h1>{html.escape(title)}</h1></header>',
        f'<main><div id="top">{top}</div>', sections, '<div id="sections" tabindex="-1">', *body, "</div></main>",
        _foot(run),
    ], made.figures)


def render(notebook: NotebookNode, card: Mapping[str, Any] | None = None, run: Mapping[str, Any] | None = None) -> str:
    """Return the page of an executed notebook as text, see `pieces`."""
    return b"".join(pieces(notebook, card, run)).decode()


def _take_title(cells: list[NotebookNode]) -> str:
    """Take the first heading out of the cells: it stands above all."""
    for cell in cells:
        if cell.cell_type != "markdown":
            continue
        lines = cell.source.splitlines()
        for i, line in enumerate(lines):
            if line.startswith("# "):
                cell.source = "\n".join(lines[:i] + lines[i + 1:]).strip()
                return line.lstrip("# ").strip()
    return "rooflog"


def _foot(run: Mapping[str, Any] | None) -> str:
    """Say what made the page: command, inputs, versions."""
    if not run:
        return ""
    shown = {"command": run.get("command"), "notebook": run.get("notebook"), "started (UTC)": run.get("started_utc"),
             "parameters": json.dumps(run.get("parameters"), ensure_ascii=False),
             "log sha256": ", ".join(run.get("log_sha256") or []),
             "versions": ", ".join(f"{name} {number}" for name, number in (run.get("versions") or {}).items())}
    rows = "".join(f"<dt>{key}</dt><dd>{html.escape(str(value))}</dd>" for key, value in shown.items() if value)
    return f"<footer><dl>{rows}</dl></footer>"
