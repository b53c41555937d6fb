"""The table of the index: its columns, and one row of HTML per run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

from helpers.batch.curve import curve_words, milliseconds, sparkline
from helpers.diagnose.causes import UNKNOWN
from helpers.display import level_key, show
from helpers.schema import printable

Row = Mapping[str, Any]

STATUS_WORDS = {"good": "good", "cannot_tell": "cannot tell", "check_failed": "check failed", "failed": "failed"}
"""Status of run.json -> what a reader sees, in the order in which they are counted."""

BAD = ("failed", "check_failed")

MAX_SHOWN = 200
"""Rows shown until a reader asks for all: a browser sorts and filters them without a pause, however many there are."""

HEADS = (
    ("Dump", "", ""),
    ("Status", "", ""),
    ("What limits", "", "First cause of the diagnosis, and how sure it is"),
    ("Model", "", ""),
    ("Step over requests", "", "Levels with their intervals, and the law; both axes begin at zero"),
    ("Fixed cost [ms]", "number", "Step time at zero requests by the straight line"),
    ("Per request [ms/req]", "number", "Step time that one more request adds, by the straight line"),
    ("Asymptote [tok/s]", "number", "Rate that the law cannot exceed"),
    ("Half load [req]", "number", "Running requests at half of the asymptote"),
    ("Error [%]", "number", "Median error at an inner level that the law was not shown"),
    ("Levels [req] (count)", "number", "Running requests of the lowest and the highest level"),
    ("Top step [ms]", "number", "Step time at the highest level"),
    ("Top rate [tok/s]", "number", "Decode rate at the highest level"),
    ("Step / target [1]", "number", "Step time at the highest level over the target of the roofline"),
    ("Engine", "", ""),
    ("Hardware", "", ""),
    ("Took [s]", "number", "Time of the run"),
)
"""Title with unit, "number" or "", meaning, of each column."""

FILTERS = {"Status": 1, "Model": 3, "Engine": 14}
"""Label -> column."""


def safe_text(value: object) -> str:
    """Escape a text of unknown origin, control codes and changes of the writing direction included."""
    return escape(printable(str(value)))


def links(row: Row) -> dict[str, str]:
    """Return word -> file of a run, relative to the page."""
    words = {".html": "report", ".ipynb": "notebook", ".json": "scorecard"}
    return {words[Path(name).suffix]: f"{row['folder']}/{name}" for name in row["files"]}


def anchors(files: Mapping[str, str]) -> str:
    """Return links to files, each under its word."""
    return " ".join(f'<a href="{escape(quote(file))}">{word}</a>' for word, file in files.items())


def table(rows: Sequence[Row]) -> str:
    """Return the table with its filters, which sortable.js brings to life.

    Parameters
    ----------
    rows : sequence of mapping
        From `table.read_rows`.

    Returns
    -------
    str
        HTML; without the script still a whole table.
    """
    heads = "".join(f'<th scope="col"{_attribute("data-type", kind)}{_attribute("title", words)}>{escape(title)}</th>'
                    for title, kind, words in HEADS)
    body = "\n".join(f"<tr>{''.join(_cells(row))}</tr>" for row in rows)
    selects = "".join(f'<label>{label}<select data-column="{column}"><option value="">all</option></select></label>'
                      for label, column in FILTERS.items())
    return (f'<h2 id="runs">Runs: {len(rows):,}</h2><form class="filters" id="filters" hidden>'
            f'<label>Search<input type="search" data-search></label>{selects}<button type="reset">Clear</button>'
            f"<output></output></form>"
            f'<div class="box" tabindex="0" role="region" aria-labelledby="runs">'
            f'<table class="sortable" data-filters="filters" data-limit="{MAX_SHOWN}">'
            f"<thead><tr>{heads}</tr></thead><tbody>\n{body}\n</tbody></table></div>"
            "<p>In brackets: intervals, of 95 % unless the run was told otherwise. An empty cell is not known.</p>")


def _attribute(name: str, value: str) -> str:
    return f' {name}="{escape(value)}"' if value else ""


def _small(text: str) -> str:
    return f" <small>{text}</small>" if text else ""


def _number(value: float | None, lo: float | None = None, hi: float | None = None) -> str:
    """Return a cell of a number that is sorted by its exact value; its unit is in the column's head."""
    if value is None:
        return '<td class="n"></td>'
    shown, _, interval = show(value, "", lo, hi).partition(" ")
    return f'<td class="n" data-v="{value:.6g}">{shown}{_small(interval)}</td>'


def _cells(row: Row) -> Iterable[str]:
    """Yield the cells of a row, in the order of `HEADS`."""
    files = links(row)
    report = files.pop("report")
    name = safe_text(row["dump"]).replace("/", "/<wbr>")
    yield (f'<th scope="row"><a href="{escape(quote(report))}">{name}</a>'
           f"<small>{anchors(files)}</small></th>")
    kind = " bad" if row["status"] in BAD else " good" if row["status"] == "good" else ""
    word = STATUS_WORDS.get(row["status"], row["status"])
    yield f'<td><span class="status{kind}">{safe_text(word)}</span></td>'
    cause = (row["cause"] or "").replace("_", " ")
    how_sure = safe_text(row["cause_status"]) if cause and cause != UNKNOWN else ""
    yield f'<td class="said">{safe_text(cause)}{_small(how_sure)}</td>'
    model = row["model"] or ""
    short = model.rstrip("/").rpartition("/")[2]
    yield f"<td{_attribute('title', printable(model) if short != model else '')}>{safe_text(short)}</td>"
    yield _law(row)
    claimed: Row = row if row["law"] else {}
    for column in ("intercept_s", "slope_s_per_req"):
        yield _number(*(milliseconds(claimed.get(name)) for name in (column, f"{column}_lo", f"{column}_hi")))
    yield _number(*(claimed.get(f"asymptote_tok_per_s{end}") for end in ("", "_lo", "_hi")))
    yield _number(claimed.get("half_load_req"))
    error_frac = claimed.get("loo_error_frac")
    yield _number(None if error_frac is None else 100 * error_frac)
    yield _levels(row)
    yield _number(*(milliseconds(row[f"top_step_s{end}"]) for end in ("", "_lo", "_hi")))
    yield _number(row["top_decode_tok_per_s"])
    yield _number(row["top_step_over_target"])
    yield f"<td>{safe_text(' '.join(filter(None, (row['engine'], row['engine_version']))))}</td>"
    sizes = " ".join(f"{size} {row[size]}" for size in ("tp", "dp", "pp", "ep") if (row[size] or 1) > 1)
    yield f'<td class="said">{safe_text(row["hardware"] or "")}{_small(sizes)}</td>'
    yield _number(row["wall_s"])


def _levels(row: Row) -> str:
    found = [level["running_req"] for level in row["law_levels"]]
    if not found:
        return '<td class="n"></td>'
    span = level_key(found[0]) if found[0] == found[-1] else f"{level_key(found[0])} to {level_key(found[-1])}"
    return f'<td class="n" data-v="{found[-1]:.6g}">{span} <small>({row["n_levels"]})</small></td>'


def _law(row: Row) -> str:
    """Return the cell of the sparkline, sorted by the name of the law."""
    law, drawn = row["law"] or "", sparkline(
        row["law_levels"], row["curve"], curve_words(row["law_levels"], row["curve"], row))
    return f'<td data-v="{safe_text(law)}">{drawn}{_small(safe_text(law or ("none" if drawn else "")))}</td>'
