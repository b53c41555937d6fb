"""The index of a batch: one offline HTML page, failures first, then one table of all runs to sort and filter."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import takewhile
from pathlib import Path
from typing import Any

from helpers import __version__, paths
from helpers.batch.cells import BAD, STATUS_WORDS, anchors, links, safe_text, table
from helpers.report.page import head, name_in_policy
from helpers.run.folder import make_workspace
from helpers.schema import METHOD_VERSION, RooflogError

FILE_NAME = "index.html"

Row = Mapping[str, Any]

MAX_OPEN = 20
"""Failures that stand open above the table; the others are folded, so that the table stays in reach."""

MAX_MESSAGE_CHARS = 600

OPEN_CLAUSES = 2
"""Of a failure's message: what was expected, and what was found; what to do about it is folded."""

STYLE = """
:root { color-scheme: light dark; --fg: #1b1f24; --bg: #ffffff; --soft: #f3f5f7; --line: #d5dae0; --dim: #59636e;
 --accent: #0072b2; --bad: #b03a00; --good: #1a7f4b; --mark: #c05a00; }
@media (prefers-color-scheme: dark) { :root { --fg: #e4e8ec; --bg: #14181c; --soft: #1e242a; --line: #3a434c;
 --dim: #a0abb6; --accent: #6db9ea; --bad: #ff8f5c; --good: #63cf98; --mark: #f0a35e; } }
body { margin: 0 auto; padding: 1rem; font: 16px/1.5 system-ui, sans-serif; color: var(--fg); background: var(--bg); }
h1 { font-size: 1.4rem; margin: 0 0 .5rem; } h2 { font-size: 1.1rem; margin: 1.5rem 0 .5rem; }
a { color: var(--accent); }
p, li { max-width: 62rem; overflow-wrap: anywhere; }
.answer { border-left: 4px solid var(--accent); background: var(--soft); padding: .5rem 1rem; }
.answer.bad { border-color: var(--bad); }
.failures { padding-left: 1.2rem; } .failures li { margin: .3rem 0; }
summary { cursor: pointer; color: var(--accent); }
.status { font-weight: 600; } .status.good { color: var(--good); } .status.bad { color: var(--bad); }
.sortable tbody th { font-weight: 600; max-width: 16rem; min-width: 12rem; white-space: normal; }
.sortable td.said, .sortable tbody th { overflow-wrap: anywhere; }
.sortable tbody th small { display: block; font-weight: 400; }
.sortable td.said { white-space: normal; min-width: 8rem; max-width: 16rem; }
svg { width: 120px; height: 36px; vertical-align: top; } svg path { fill: none; }
svg .l { stroke: var(--accent); stroke-width: 1.5; }
svg .i { stroke: var(--dim); stroke-width: 1; }
svg .p { stroke: var(--mark); stroke-width: 4; stroke-linecap: round; }
@media (min-width: 45rem) { .sortable tbody th { position: sticky; left: 0; background: var(--bg); } }
@media (max-width: 30rem) { body { padding: .5rem; } .filters label { flex: 1 1 9rem; }
 .filters input, .filters select { max-width: none; width: 100%; box-sizing: border-box; } }
"""


def write_index(
    rows: Sequence[Row], failures: Sequence[Row], out: str | Path, *, notes: Sequence[str] = (),
    written: datetime | None = None,
) -> Path:
    """Write ``index.html``, whole or not at all.

    Parameters
    ----------
    rows, failures : sequence of mapping
        From `table.read_rows`.
    out : path
        The folder that holds the run folders; links are relative to it.
    notes : sequence of str
        What was passed over and why, of the last batch.
    written : datetime, optional
        When, for the first sentence; now by default.

    Returns
    -------
    Path
        The page.

    Raises
    ------
    RooflogError
        The folder cannot be written.
    """
    target = Path(out) / FILE_NAME
    with make_workspace(Path(out)) as workspace:
        try:
            page = render(rows, failures, written or datetime.now(UTC), notes)
            (workspace / FILE_NAME).write_text(page, encoding="utf-8", errors="backslashreplace")
            os.replace(workspace / FILE_NAME, target)
        except OSError as error:
            raise RooflogError(f"{target}: cannot be written: {error.strerror or error}") from error
    return target


def render(rows: Sequence[Row], failures: Sequence[Row], written: datetime, notes: Sequence[str] = ()) -> str:
    """Return the page: HTML that loads nothing and runs no script but its own, which its policy names by hash."""
    script = (paths.PACKAGE / "sortable.js").read_text(encoding="utf-8")
    style = STYLE + (paths.PACKAGE / "sortable.css").read_text(encoding="utf-8")
    policy = (f"default-src 'none'; script-src {name_in_policy(script.encode())}; "
              f"style-src {name_in_policy(style.encode())}; base-uri 'none'; form-action 'none'")
    n_dumps = len(rows) + len(failures)
    folder = common_folder([row["dump"] for row in (*rows, *failures)])
    rows, failures = ([_told_once(row, folder) for row in part] for part in (rows, failures))
    return "\n".join([
        head(f"rooflog: {_count(n_dumps, 'dump')}", policy, style),
        "<h1>What limits decode, dump by dump</h1>", _summary(rows, failures, folder, written),
        _failures(rows, failures), _notes(notes), table(rows) if rows else "",
        f"<script>{script}</script></body></html>", "",
    ])


def _told_once(row: Row, folder: str) -> Row:
    """Leave out what stands elsewhere: the folder of all, and the dump's path where the message begins with it."""
    dump = row["dump"]
    return {**row, "dump": dump.removeprefix(folder), "message": (row["message"] or "").removeprefix(f"{dump}: ")}


def _count(n: int, noun: str) -> str:
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def common_folder(dumps: Sequence[str]) -> str:
    """Return the folder that all paths and URLs among the dumps share, with its "/"; "" if there is none.

    Examples
    --------
    >>> common_folder(["/data/a/server.log", "/data/b/server.log", "no path"])
    '/data/'
    """
    folders = [dump.split("/")[:-1] for dump in dumps if "/" in dump]
    shared = [parts[0] for parts in takewhile(lambda parts: len(set(parts)) == 1, zip(*folders, strict=False))]
    return "/".join([*shared, ""]) if any(shared) else ""


def _summary(rows: Sequence[Row], failures: Sequence[Row], folder: str, written: datetime) -> str:
    counts = Counter(row["status"] for row in rows) + Counter({"failed": len(failures)})
    meaning = {"cannot_tell": " (no law is claimed)"}
    parts = ", ".join(f"{counts[status]:,} {words}{meaning.get(status, '') if counts[status] else ''}"
                      for status, words in STATUS_WORDS.items())
    others = sorted({row["rooflog_version"] for row in rows if row["rooflog_version"]} - {__version__})
    by = f"rooflog {__version__}, method {METHOD_VERSION}" + (
        f"; some runs are of rooflog {', '.join(others)}" if others else "")
    is_bad = any(counts[status] for status in BAD)
    files = ('All numbers: <a href="scorecards.csv">scorecards.csv</a>, <a href="scorecards.parquet">scorecards.parquet'
             '</a>, level by level in <a href="levels.parquet">levels.parquet</a>.')
    n_dumps = _count(len(rows) + len(failures), "dump") + (f" under {safe_text(folder)}" if folder else "")
    return (f'<div class="answer{" bad" if is_bad else ""}"><p>{n_dumps}: {parts}. '
            f"Written {written.astimezone(UTC):%Y-%m-%d %H:%M} UTC by {safe_text(by)}.</p><p>{files}</p></div>")


def _failures(rows: Sequence[Row], failures: Sequence[Row]) -> str:
    """List what failed: dumps that could not be run, notebooks that raised, checks that did not hold."""
    items = [_failure(failure["dump"], "failed", failure["message"],
                      {"record": failure["file"]} if failure["file"] else {}) for failure in failures]
    items += [_failure(row["dump"], STATUS_WORDS[row["status"]], row["message"] or "see its report", links(row))
              for status in BAD for row in rows if row["status"] == status]
    if not items:
        return ""
    rest = items[MAX_OPEN:]
    folded = (f'<details><summary>{len(rest):,} more</summary><ul class="failures">{"".join(rest)}</ul></details>'
              if rest else "")
    return (f'<h2>Failures: {len(items):,}</h2><ul class="failures">{"".join(items[:MAX_OPEN])}</ul>{folded}')


def _notes(notes: Sequence[str]) -> str:
    if not notes:
        return ""
    items = "".join(f"<li>{safe_text(note)}</li>" for note in notes)
    return f"<details><summary>Passed over: {_count(len(notes), 'note')}</summary><ul>{items}</ul></details>"


def _failure(dump: str, word: str, message: str, links: Mapping[str, str]) -> str:
    said = " ".join(message.split())
    said = said if len(said) <= MAX_MESSAGE_CHARS else said[:MAX_MESSAGE_CHARS] + " ..."
    clauses = said.split("; ")
    lead, rest = "; ".join(clauses[:OPEN_CLAUSES]), "; ".join(clauses[OPEN_CLAUSES:])
    more = f"<details><summary>more</summary>{safe_text(rest)}</details>" if rest else ""
    return (f'<li><strong>{safe_text(dump)}</strong> <span class="status bad">{word}</span>: {safe_text(lead)} '
            f"{anchors(links)}{more}</li>")
