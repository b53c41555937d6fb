"""Markup that came out of a notebook, written anew: known tags only, every table in a box and sortable.

Nothing is copied through: tags are written from a list of harmless ones, text is escaped, what is left open is closed.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable
from html.parser import HTMLParser

from helpers.report.tables import Cell, render_table

SAFE_TAGS = frozenset(
    "a b blockquote br caption code col colgroup dd details div dl dt em h1 h2 h3 h4 h5 h6 hr i li ol p pre small span "
    "strong style sub summary sup table tbody td tfoot th thead tr u ul".split()
)
SAFE_ATTRIBUTES = frozenset("align border class colspan id rowspan scope scoped style title valign".split())

VOID_TAGS = frozenset(("br", "col", "hr"))
TABLE_TAGS = frozenset(("caption", "col", "colgroup", "table", "tbody", "td", "tfoot", "th", "thead", "tr"))
KEPT_ATTRIBUTES = {"td": ("colspan", "rowspan"), "th": ("colspan", "rowspan", "scope"), "ol": ("start",)}
HEADINGS = ("h1", "h2", "h3", "h4", "h5", "h6")
LINKS_OUT = ("http://", "https://")
"""Links that may stay: they leave the page only when clicked. Others lead to files that lie elsewhere."""


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
    """Tell whether an HTML output holds nothing but plain markup; else its text is shown instead."""
    inspector = _Inspector()
    inspector.feed(fragment)
    return inspector.is_safe and "<" not in inspector.rawdata  # rawdata: the tail that is no whole tag


def inline(text: str) -> str:
    """Show a sentence as text, what stands between backticks as code."""
    pieces = text.split("`")
    if len(pieces) % 2 == 0:
        return html.escape(text)
    return "".join(f"<code>{html.escape(piece)}</code>" if i % 2 else html.escape(piece)
                   for i, piece in enumerate(pieces))


def rewrite(fragment: str, label: str = "", on_heading: Callable[[str, str], str] | None = None) -> str:
    """Write markup anew.

    Parameters
    ----------
    fragment : str
        HTML: an output that is plain markup, or rendered Markdown.
    label : str
        What a table is called by a screen reader, if no heading precedes it in the fragment.
    on_heading : callable, optional
        Gets tag and text of a heading, returns its id; "" for none.

    Returns
    -------
    str
        Balanced HTML of known tags, without classes, styles or scripts.
    """
    writer = _Writer(label, on_heading)
    writer.feed(fragment)
    writer.close()
    return writer.result()


class _Writer(HTMLParser):
    """Write what is read again; rows of a table are held back until it ends."""

    def __init__(self, label: str, on_heading: Callable[[str, str], str] | None) -> None:
        super().__init__()
        self.label, self.on_heading = label, on_heading
        self.out: list[str] = []
        self.open: list[str] = []
        self.table: _Rows | None = None
        self.heading: tuple[int, str] | None = None  # where it began in `out`, and its text
        self.in_style = False
        self.n_open = 0  # elements that were open when the table began

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "style":
            self.in_style = True
        elif tag == "table" and self.table is None:
            self.table, self.n_open = _Rows(), len(self.open)
        elif self.table is not None and tag in TABLE_TAGS:
            self._end_cell()
            self.table.start(tag, self._attributes(tag, attrs))
        elif tag in SAFE_TAGS and tag not in TABLE_TAGS:
            self._open(tag, attrs)

    def _open(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a" and not (dict(attrs).get("href") or "").lower().startswith(LINKS_OUT):
            return
        if tag in HEADINGS:
            self.heading = (len(self.out), "")
        self._write(f"<{tag}{self._attributes(tag, attrs)}>")
        if tag not in VOID_TAGS:
            self.open.append(tag)

    def _attributes(self, tag: str, attrs: list[tuple[str, str | None]]) -> str:
        kept = [(name, value or "") for name, value in attrs if name in KEPT_ATTRIBUTES.get(tag, ())]
        if tag == "a":
            kept = [("href", dict(attrs)["href"] or ""), ("rel", "noreferrer")]
        return "".join(f' {name}="{html.escape(value)}"' for name, value in kept)

    def handle_endtag(self, tag: str) -> None:
        if tag == "style":
            self.in_style = False
        elif self.table is not None and tag in TABLE_TAGS:
            self._end_cell()
            if tag == "table":
                self._end_table()
            elif tag == "thead":
                self.table.in_head = False
        elif tag in self.open[self.n_open if self.table is not None else 0:]:
            self._close_to(tag)

    def _end_cell(self) -> None:
        """Close what a cell has left open: it must not reach beyond the cell."""
        self._close_to("", self.n_open)
        if self.table is not None:
            self.table.cell = None

    def _close_to(self, tag: str, n_kept: int = 0) -> None:
        while len(self.open) > n_kept:
            last = self.open.pop()
            self._write(f"</{last}>")
            if last in HEADINGS and self.heading is not None:
                self._name_heading(last)
            if last == tag:
                return

    def _name_heading(self, tag: str) -> None:
        at, text = self.heading or (0, "")
        self.heading = None
        self.label = text.strip() or self.label
        anchor = self.on_heading(tag, text.strip()) if self.on_heading else ""
        if anchor and self.table is None:
            self.out[at] = f'<{tag} id="{html.escape(anchor)}">'

    def _end_table(self) -> None:
        table, self.table = self.table, None
        if table is not None:
            self.out.append(table.render(self.label or "table"))

    def handle_data(self, data: str) -> None:
        if self.in_style:
            return
        if self.heading is not None:
            self.heading = (self.heading[0], self.heading[1] + data)
        self._write(html.escape(data), data)

    def _write(self, markup: str, text: str = "") -> None:
        if self.table is None:
            self.out.append(markup)
        else:
            self.table.add(markup, text)

    def result(self) -> str:
        """Return all of it, with what was left open closed."""
        if self.table is not None:
            self._end_cell()
            self._end_table()
        self._close_to("")
        return "".join(self.out)


class _Rows:
    """The rows of one table as they come."""

    def __init__(self) -> None:
        self.head: list[list[Cell]] = []
        self.body: list[list[Cell]] = []
        self.rest: list[str] = []  # a caption, or text between the rows
        self.in_head = False
        self.cell: Cell | None = None
        self.is_regular = True

    def start(self, tag: str, attributes: str) -> None:
        """Take the start of a tag of tables."""
        self.cell = None
        if tag in ("thead", "tbody", "tfoot"):
            self.in_head = tag == "thead"
        elif tag == "tr":
            (self.head if self.in_head else self.body).append([])
        elif tag in ("td", "th"):
            rows = self.head if self.in_head else self.body
            if not rows:
                rows.append([])
            self.cell = Cell(is_head=tag == "th", attributes=attributes)
            self.is_regular &= "span=" not in attributes
            rows[-1].append(self.cell)

    def add(self, markup: str, text: str) -> None:
        """Take content."""
        if self.cell is not None:
            self.cell.markup += markup
            self.cell.text += text
        elif text.strip():
            self.rest.append(markup)

    def render(self, label: str) -> str:
        """Return the table in its box; as it was where cells span others."""
        head, body = ([row for row in rows if row] for rows in (self.head, self.body))
        widths = {len(row) for row in (*head, *body)}
        rest = "".join(f"<p>{text}</p>" for text in self.rest)
        if self.is_regular and len(head) == 1 and len(widths) == 1:
            return render_table(head[0], body, label) + rest
        return _as_it_was(head, body, label) + rest


def _as_it_was(head: Iterable[list[Cell]], body: Iterable[list[Cell]], label: str) -> str:
    def rows(of: Iterable[list[Cell]]) -> str:
        return "".join("<tr>" + "".join(
            f"<{cell.tag}{cell.attributes}>{cell.markup}</{cell.tag}>" for cell in row) + "</tr>" for row in of)

    return (f'<div class="box" tabindex="0" role="region" aria-label="{html.escape(label)}"><table class="plain">'
            f"<thead>{rows(head)}</thead><tbody>{rows(body)}</tbody></table></div>")
