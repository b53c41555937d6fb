"""The lines of a log behind a point of a figure."""

from __future__ import annotations

import html

from helpers import remote
from helpers.ingest import Log
from helpers.ingest.lines import FileReader, split_lines
from helpers.schema import LogFormatError

AROUND = 3
"""Lines shown before and after the one that is asked for."""

MAX_CHARS = 600
"""Characters shown of a line; argument dumps have tens of thousands."""


def require_log(log: Log | None, path: str) -> None:
    """Raise LogFormatError where the input is a table of rates: it has no intervals to choose from, and no lines."""
    if log is None:
        raise LogFormatError(f"{path}: a table of rates has no intervals to choose from; use notebook 04")


def log_lines(path: str, line_no: int, *, around: int = AROUND) -> list[tuple[int, str]]:
    """Read a line of a log with its neighbours.

    Parameters
    ----------
    path : str
        As in the column ``file``: plain, .gz or .zst, or a URL.
    line_no : int
        Physical line, from 1.
    around : int
        Neighbours on either side.

    Returns
    -------
    list of (int, str)
        Number and text of each.

    Raises
    ------
    LogFormatError
        The file is gone or cannot be read again, or is shorter than it was.
    """
    if path == "-":
        raise LogFormatError("standard input cannot be read again: save it to a file to see its lines")
    first, last = line_no - around, line_no + around
    found: list[tuple[int, str]] = []
    with remote.local_copy(path) as local:
        for chunk in FileReader(local).chunks():
            if chunk.first_line_no > last:
                break
            if chunk.last_line_no >= first:
                table = split_lines(chunk)
                rows = table.filter(table["line_no"].is_between(first, last)).rows()
                found += [(number, text.rstrip("\r\n")) for number, text in rows]
    if line_no not in dict(found):
        raise LogFormatError(f"{path}: expected a line {line_no}, found fewer: the file changed since it was read")
    return found


def lines_html(path: str, line_no: int) -> str:
    """Return the lines as HTML, everything from the log escaped, the one that is asked for marked.

    Raises
    ------
    LogFormatError
        As `log_lines`.
    """
    rows = []
    for number, text in log_lines(path, line_no):
        shown = html.escape(text if len(text) <= MAX_CHARS else text[: MAX_CHARS - 1] + "…")
        row = f"{number:>8}  {shown}"
        rows.append(f"<b style='background:#FFF3C4'>{row}</b>" if number == line_no else row)
    style = "white-space:pre-wrap;overflow-wrap:anywhere;margin:0;line-height:1.35"
    return f"<div>{html.escape(path)}, line {line_no}</div><pre style='{style}'>{'<br>'.join(rows)}</pre>"
