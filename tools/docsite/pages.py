"""Pages of the documentation as HTML: title, list of all pages, text, what was printed, and no link to nowhere."""

from __future__ import annotations

import html
import posixpath
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from nbformat import NotebookNode

from docsite.commands import Workplace, split
from helpers import __version__
from helpers.report.cells import Cells
from helpers.report.markup import rewrite
from helpers.report.page import document

HOLDER = "https://docs.invalid/"
"""Stands for the folder of the pages while markup is rewritten, which keeps links to elsewhere only (RFC 2606)."""

CONTENTS = "README.md"
EXECUTED = ("how-to.md",)
"""Pages of Markdown whose blocks are executed."""

CSS = """
nav.pages ul { border-top: 0; margin: 0 0 .4rem; }
nav [aria-current] { font-weight: 600; color: var(--fg); text-decoration: none; }
h1 { font-size: 1.6rem; line-height: 1.2; margin: .6rem 0; flex-basis: 100%; } h3 { margin: 1.4rem 0 .4rem; }
main p, main li { max-width: 48rem; }
details.output { margin: 0 0 1rem; } details.output > summary { font-size: .75rem; }
code { background: var(--soft); padding: 0 .2em; } pre code { padding: 0; }
details.output > pre { white-space: pre; border-left: 3px solid var(--line); }
@media (max-width: 30rem) { h1 { font-size: 1.3rem; } }
"""

_LINK = re.compile(r'(<a href=")([^"]*)(")')
_TITLE = re.compile(r"^# (.+)\n", re.MULTILINE)


@dataclass(frozen=True)
class Site:
    """The pages: file name of the source -> name of the page, in the order of the list of contents.

    Attributes
    ----------
    names : mapping
        Source, relative to docs/ -> what it is called in the list of pages.
    """

    names: dict[str, str]

    @classmethod
    def of(cls, docs: Path) -> Site:
        """Read the list of contents: the links of docs/README.md to pages, each with its words."""
        found = re.findall(r"\[([^\]]+)\]\(([^)#]+\.(?:md|ipynb))\)", (docs / CONTENTS).read_text(encoding="utf-8"))
        return cls({CONTENTS: "Contents"} | {link: words for words, link in found})

    def target(self, source: str) -> str:
        """Return the file name of a page."""
        if source == CONTENTS:
            return "index.html"
        stem = posixpath.splitext(posixpath.basename(source))[0]
        return f"{posixpath.basename(posixpath.dirname(source))}.html" if stem == "README" else f"{stem}.html"

    def href(self, link: str, source: str) -> str:
        """Return where a link of a page leads: another page, the same page, elsewhere as it is."""
        path, _, fragment = link.partition("#")
        if "://" in link or (not path and not fragment):
            return link
        asked = (posixpath.relpath(posixpath.join("docs", posixpath.dirname(source), path), "docs") if path else source)
        if asked not in self.names:
            return link
        return HOLDER + self.target(asked) + (f"#{fragment}" if fragment else "")


@dataclass
class _Text:
    """Markdown of one page, with the headings that it has so far."""

    site: Site
    source: str
    headings: list[tuple[str, str]] = field(default_factory=list)
    slugs: set[str] = field(default_factory=set)

    def on_heading(self, tag: str, text: str) -> str:
        slug = base = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
        number = 0
        while slug in self.slugs:
            number += 1
            slug = f"{base}-{number}"
        self.slugs.add(slug)
        if tag == "h2":
            self.headings.append((slug, text))
        return slug

    def html(self, text: str) -> str:
        renderer = IPythonRenderer(escape=True, allow_harmful_protocols=False, exclude_anchor_links=True)
        rendered = str(MarkdownWithMath(renderer=renderer).render(text))
        linked = _LINK.sub(self._linked, rendered)
        return rewrite(linked, on_heading=self.on_heading).replace(f'href="{HOLDER}', 'href="')

    def _linked(self, found: re.Match[str]) -> str:
        return found[1] + html.escape(self.site.href(html.unescape(found[2]), self.source)) + found[3]


def of_markdown(text: str, source: str, site: Site) -> bytes:
    """Return the page of a Markdown file; the commands of `EXECUTED` pages are executed, and what they print is shown.

    Raises
    ------
    CommandFailed
        A command ended with another exit code than the page says.
    """
    title, text = _without_title(re.sub(r"<!--.*?-->\n?", "", text))
    writer, body = _Text(site, source), []
    if source in EXECUTED:
        with Workplace() as workplace:
            for piece, commands in split(text):
                body.append(writer.html(piece))
                if commands:
                    body.append(_printed(workplace.run(commands).text))
    else:
        body.append(writer.html(text))
    return _page(title, body, writer, ())


def of_notebook(notebook: NotebookNode, source: str, site: Site) -> bytes:
    """Return the page of an executed notebook."""
    writer, cells, body, title = _Text(site, source), Cells(), [], ""
    for cell in notebook.cells:
        if "injected-parameters" in cell.metadata.get("tags", []):
            continue
        if cell.cell_type == "markdown":
            text = cell.source
            if not title:
                title, text = _without_title(text)
            body.append(writer.html(text))
            cells.headings = list(writer.headings)  # tables and figures are called by them
        else:
            body.append(cells.render(cell))
    return _page(title, body, writer, cells.figures)


def _without_title(text: str) -> tuple[str, str]:
    found = _TITLE.search(text)
    if found is None:
        return "rooflog", text
    return found[1].strip(), (text[:found.start()] + text[found.end():]).strip() + "\n"


def _printed(text: str) -> str:
    return ('<details class="output" open><summary>prints</summary>'
            f'<pre tabindex="0">{html.escape(text)}</pre></details>') if text.strip() else ""


def _page(title: str, body: Sequence[str], writer: _Text, figures: Sequence[str]) -> bytes:
    pages = "".join(
        f'<li><a href="{html.escape(writer.site.target(source))}"'
        f"{' aria-current=page' if source == writer.source else ''}>{html.escape(words)}</a></li>"
        for source, words in writer.site.names.items())
    links = "".join(f'<li><a href="#{slug}">{html.escape(text)}</a></li>' for slug, text in writer.headings)
    sections = f'<nav aria-label="Sections"><ul>{links}</ul></nav>' if len(writer.headings) > 2 else ""
    plain = re.sub(r"`", "", title)
    return b"".join(document(plain, [
        '<a class="skip" href="#text">Skip to the text</a>',
        f'<header><p class="kicker">rooflog {html.escape(__version__)} · documentation</p></header>',
        f'<nav class="pages" aria-label="Pages"><ul>{pages}</ul></nav>',
        f'<main id="text" tabindex="-1"><h1>{html.escape(plain)}</h1>', sections, *body, "</main>",
    ], figures, CSS))
