"""Tables that a reader can sort: which columns are numbers, in one unit, and what stands in no order."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass

SENTENCE_CHARS = 40
"""Length from which a cell of a table is a sentence and not a number."""

KEY_CHARS = 24
"""Longest first cell of a row that stays in sight while the rest is scrolled."""

MAX_ROWS = 200
"""Rows shown at once; a button shows the rest."""

NOT_KNOWN = ("", "unknown", "none", "not stated", "...", "an unknown share")
"""What stands in place of a number."""

SCALES = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "kB": 1e3, "MB": 1e6, "GB": 1e9,
          "TB": 1e12, "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30, "TiB": 2.0**40}
"""Unit -> what a number in it is multiplied with, so that "90 s" stands before "2 min"."""

MAX_UNIT_CHARS = 12


@dataclass
class Cell:
    """A cell: its markup, already safe, and its text."""

    markup: str = ""
    text: str = ""
    is_head: bool = False
    attributes: str = ""

    @property
    def tag(self) -> str:
        """Name of its element."""
        return "th" if self.is_head else "td"


def text_cell(text: object) -> Cell:
    """Return a cell that holds text."""
    return Cell(html.escape(str(text)), str(text))


def number_of(text: str) -> float | None:
    """Return what a cell is sorted by, in base units; None if it is no number, NaN if it stands for an unknown one.

    Parameters
    ----------
    text : str
        As a person reads it: a number, then maybe a unit, an interval or "to" and a second number, then maybe their
        unit.

    Examples
    --------
    >>> number_of("51.9 ms [36.2, 67.6]"), number_of("2.00 min"), number_of("20.0 to 25.0 ms"), number_of("7 of 9 left")
    (0.0519, 120.0, 0.02, None)
    """
    text = text.strip()
    if text in NOT_KNOWN:
        return math.nan
    first, *rest = text.split()
    if first in NOT_KNOWN and rest[0] == "to":
        return math.nan
    value = _float(first.removesuffix("%").removesuffix("x"))
    if value is None:
        return None
    unit = rest.pop(0) if rest and not rest[0].startswith("[") and rest[0] != "to" else ""
    is_interval = bool(rest) and rest[0].startswith("[") and rest[-1].endswith("]")
    is_range = len(rest) in (2, 3) and rest[0] == "to" and (rest[1] in NOT_KNOWN or _float(rest[1]) is not None)
    if is_range and len(rest) == 3:
        unit = unit or rest[2]
    if len(unit) > MAX_UNIT_CHARS or (rest and not is_interval and not is_range):
        return None
    return value * SCALES.get(unit.partition("/")[0], 1.0)


def _float(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def render_table(head: Sequence[Cell], rows: Sequence[Sequence[Cell]], label: str, *, name: str = "") -> str:
    """Return a table in a box that scrolls by itself.

    Parameters
    ----------
    head : sequence of Cell
        One per column.
    rows : sequence of sequence of Cell
    label : str
        What a screen reader calls it.
    name : str
        A further class of the table.

    Returns
    -------
    str
        HTML for sortable.js: a column of numbers is marked, a value in another unit than its text is beside it. A
        first column that only counts the rows is left out, and so is one that is empty in every row.
    """
    if len(head) > 1 and not head[0].text.strip() and all(
            row[0].text.strip() in (str(i), "...") for i, row in enumerate(rows)):
        head, rows = head[1:], [row[1:] for row in rows]
    said = [i for i in range(len(head)) if not rows or any(row[i].markup.strip() for row in rows)]
    head, rows = [head[i] for i in said], [[row[i] for i in said] for row in rows]
    columns = [[number_of(row[i].text) for row in rows] for i in range(len(head))]
    is_number = [None not in values and not all(math.isnan(v) for v in values if v is not None) for values in columns]
    heads = "".join(f'<th scope="col"{" data-type=" + chr(34) + "number" + chr(34) if of_numbers else ""}>'
                    f"{cell.markup.strip() or '<span class=hidden>row</span>'}</th>"
                    for cell, of_numbers in zip(head, is_number, strict=True))
    has_key = bool(rows) and len(head) > 2 and all(len(row[0].text) <= KEY_CHARS for row in rows)
    body = "".join(
        "<tr>" + "".join(_cell(cell, columns[i][j] if is_number[i] else None, is_key=has_key and i == 0)
                         for i, cell in enumerate(row)) + "</tr>" for j, row in enumerate(rows))
    limit = f' data-limit="{MAX_ROWS}"' if len(rows) > MAX_ROWS else ""
    classes = " ".join(filter(None, ("sortable", name)))
    return (f'<div class="box" tabindex="0" role="region" aria-label="{html.escape(label)}"><table class="{classes}"'
            f"{limit}><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>")


def _cell(cell: Cell, value: float | None, *, is_key: bool) -> str:
    classes = ["n"] if value is not None else ["said"] if len(cell.text) >= SENTENCE_CHARS else []
    shown = f' class="{classes[0]}"' if classes else ""
    if value is not None and not math.isnan(value) and value != _float(cell.text.split()[0].rstrip("%x")):
        shown += f' data-v="{value:.9g}"'
    elif cell.text.strip() in NOT_KNOWN and cell.text.strip():
        shown += ' data-v=""'
    tag, scope = ("th", ' scope="row"') if is_key else ("td", "")
    return f"<{tag}{scope}{shown}>{cell.markup}</{tag}>"
