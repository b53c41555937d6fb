"""A table of levels, read into LEVELS: typed by hand as CSV, or what a benchmark of fixed batches printed."""

from __future__ import annotations

import csv
import io
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from helpers import remote
from helpers.ingest.benches import is_bench, read_bench
from helpers.ingest.lines import FileReader
from helpers.ingest.sources import SourceLike
from helpers.schema import LEVELS, LogFormatError, conform

REQUIRED = ("running_req", "decode_tok_per_s")
OPTIONAL = ("accept_len", "context_tok")

LIMITS = {"decode_tok_per_s": (1e-6, 1e12), "running_req": (1e-3, 1e9), "accept_len": (1.0, 1e3),
          "context_tok": (1e-6, 1e9)}
"""Column -> least and largest number that can be meant; beyond them a cell is a slip of the keyboard."""

STEP_LIMITS_S = (1e-6, 1e5)
"""Shortest and longest step time that a row can mean [s]."""


def is_table(path: SourceLike) -> bool:
    """Tell whether a path is a table of levels: by its first line, its name, or the words of a benchmark."""
    is_url = remote.is_url(str(path))
    if str(path) == "-" or not is_url and not Path(path).is_file():
        return False
    with io.BytesIO(remote.read_start(str(path), 65536)) if is_url else Path(path).open("rb") as file:
        head = file.read(65536).decode("utf-8", errors="replace").removeprefix("\ufeff")
    lines = (line for line in head.splitlines() if line.strip() and not line.lstrip().startswith("#"))
    header = {name.strip() for name in next(lines, "").split(",")}
    return set(REQUIRED) <= header or str(path).lower().endswith(".csv") or is_bench(head)


def read_table(path: SourceLike) -> pd.DataFrame:
    """Read a CSV table, or the output of a benchmark (see `benches.read_bench`), into LEVELS.

    Parameters
    ----------
    path : str or path
        First line: ``running_req,decode_tok_per_s`` and optionally ``accept_len``, ``context_tok``, others are
        ignored. Lines that begin with ``#`` are comments.

    Returns
    -------
    DataFrame, schema LEVELS
        One row per line, ordered by running_req. step_s = running_req x accept_len / decode_tok_per_s;
        its interval is what rounding of the rate explains: half a unit of the last digit typed.

    Raises
    ------
    LogFormatError
        Missing file or column, text or an impossible value where a number is expected: row and column are named.
    """
    name = str(path)
    text = b"".join(chunk.text for chunk in FileReader(name).chunks()).decode().removeprefix("\ufeff")
    if is_bench(text):
        return read_bench(name, text)
    numbered = [(number, line) for number, line in enumerate(text.splitlines(), 1)
                if line.strip() and not line.lstrip().startswith("#")]
    if not numbered:
        raise LogFormatError(f"{name}: expected the columns {', '.join(REQUIRED)}, found only comments")
    header = [column.strip() for column in next(csv.reader([numbered[0][1]]))]
    missing = [column for column in REQUIRED if column not in header]
    if missing:
        raise LogFormatError(f"{name}: expected the columns {', '.join(REQUIRED)}, found {', '.join(header)}")
    rows = [_read_row(name, number, header, line) for number, line in numbered[1:]]
    if not rows:
        raise LogFormatError(f"{name}: expected at least one row of numbers below the column names, found none")
    table = pd.DataFrame(rows).sort_values("running_req", kind="stable")
    lengths = table.get("accept_len", pd.Series(np.nan, index=table.index))
    repeated = table[pd.concat([table["running_req"], lengths], axis=1).duplicated()]["running_req"]
    if len(repeated):
        raise LogFormatError(
            f"{name}: expected one row per running_req, found {repeated.iloc[0]:g} twice; keep one (only rows with "
            "another accept_len may repeat it)"
        )
    # Rows of one running_req at several accept lengths are never averaged: the first is the level, the rest stand by.
    table["population"] = table.groupby("running_req").cumcount()
    table["is_fitted"] = table["population"].eq(0)
    return conform(table, LEVELS)


def _read_row(name: str, number: int, header: list[str], line: str) -> dict[str, Any]:
    """Read one line into one level."""
    cells = [cell.strip() for cell in next(csv.reader(io.StringIO(line)))]
    if len(cells) != len(header):
        raise LogFormatError(
            f"{name}, line {number}: expected {len(header)} values, found {len(cells)}: {line.strip()!r}"
        )
    typed = dict(zip(header, cells, strict=True))
    values = {column: _read_number(name, number, column, typed[column]) for column in REQUIRED}
    for column in OPTIONAL:
        if typed.get(column):
            values[column] = _read_number(name, number, column, typed[column])
    rate = values["decode_tok_per_s"]
    tokens = values["running_req"] * values.get("accept_len", 1.0)
    shortest_s, longest_s = STEP_LIMITS_S
    if not shortest_s <= tokens / rate <= longest_s:
        raise LogFormatError(
            f"{name}, line {number}, column decode_tok_per_s: expected a rate that means a step of {shortest_s:g} to "
            f"{longest_s:g} s, found {typed['decode_tok_per_s']!r} at running_req {values['running_req']:g}, a step of "
            f"{tokens / rate:.3g} s; correct the cell"
        )
    half_digit = half_last_digit(typed["decode_tok_per_s"])
    return {
        "server_life": 0, "rank_group": "all", "population": 0, **values,
        "running_req_total": values["running_req"], "n_clean": 1, "step_s": tokens / rate,
        "step_s_lo": tokens / (rate + half_digit), "step_s_hi": tokens / max(rate - half_digit, rate * 1e-3),
        "method": "table", "is_fitted": True, "n_rejected": "{}", "note": None,
    }


def _read_number(name: str, number: int, column: str, text: str) -> float:
    """Return a positive number that can be meant, or say where there is none."""
    try:
        value = float(text)
    except ValueError as error:
        raise LogFormatError(
            f"{name}, line {number}, column {column}: expected a number, found {text!r}; correct the cell"
        ) from error
    if not math.isfinite(value) or value <= 0:
        raise LogFormatError(
            f"{name}, line {number}, column {column}: expected a number above 0, found {text!r}; correct the cell"
        )
    least, largest = LIMITS[column]
    if not least <= value <= largest:
        raise LogFormatError(
            f"{name}, line {number}, column {column}: expected a number from {least:g} to {largest:g}, found {text!r}; "
            "correct the cell"
        )
    return value


def half_last_digit(text: str) -> float:
    """Return half a unit of the last digit of a number as typed: 33.0 -> 0.05, 412 -> 0.5, 1.2e3 -> 50."""
    mantissa, _, exponent = text.lower().partition("e")
    decimals = len(mantissa.partition(".")[2])
    return 0.5 * 10.0 ** (int(exponent or 0) - decimals)
