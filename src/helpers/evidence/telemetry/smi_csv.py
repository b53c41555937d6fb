"""Telemetry as separated values with a header: nvidia-smi --query-gpu, amd-smi, rocm-smi, and scripts' own files."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Sequence
from itertools import chain, islice
from pathlib import Path

from helpers.errors import LogFormatError
from helpers.evidence.reading import Tally, lines, pieces
from helpers.evidence.telemetry.names import Meaning, is_missing, key_of, meanings, split_unit
from helpers.evidence.telemetry.rows import DEVICE_KEYS, Layout, Sheet, layout
from helpers.evidence.telemetry.times import ELAPSED_KEYS, STAMP_KEYS

_NUMBER = re.compile(r"^[-+(]?\d|^\[|^\"?\['")
_CARD = re.compile(r"^card\d+$")
MOST_COLUMNS = 500
"""nvidia-smi knows about 200 fields; a line of more values is no row of telemetry."""

_HEAD_LINES = 200
"""Lines looked at for the header, and rows for their usual number of values."""

_AMD_KEYS = frozenset(("gfx_activity", "umc_activity", "socket_power", "hotspot_temperature", "gfx_clock", "vram_used"))
_AMD_METRIC = {"mem": Meaning("mem_temperature_c", "C")}
"""In `amd-smi metric` a bare mem stands behind edge and hotspot: a temperature. In `amd-smi monitor` it is a share."""

_NVIDIA = re.compile(r"^(?:power\.draw|utilization\.|clocks[._]|temperature\.gpu|memory\.(?:used|total)|pcie\.)")
_ROCM = re.compile(r"\((?:Sensor|Socket|W|VRAM%)\b|^GPU use|^device$")


def read_csv(path: str | Path, tally: Tally, columns: Sequence[str] = ()) -> tuple[Sheet, str]:
    """Read separated values with a header, or without one under the names given.

    Parameters
    ----------
    path : path
        The file.
    tally : Tally
        Every line is counted into it.
    columns : sequence of str
        Names of the columns of a file without a header; ignored, with a note, where the file has one.

    Returns
    -------
    Sheet
        All rows.
    str
        Tool that wrote the file: nvidia-smi, amd-smi, rocm-smi or csv.

    Raises
    ------
    LogFormatError
        No header of telemetry is found, or none at all and no names are given.
    """
    source = lines(path)
    head = list(islice(source, _HEAD_LINES))
    delimiter = _delimiter(head)
    sheet = Sheet(tally)
    tool, width, line_no = "", 0, 0
    header: list[str] = []
    before: list[str] = []
    if columns and not any(_is_header(split_cells(text, delimiter)) for _, text in head):
        header = [name.strip() for name in columns]
        tool, width = _begin(sheet, header, path), len(header)
    for line_no, text in chain(head, source):
        cells = split_cells(text, delimiter)
        if not any(cells):
            tally.count("other")
        elif cells == header and tally.lines["header"]:
            tally.count("header")
        elif not cells[0][:1].isdigit() and _is_header(cells):
            tally.count("header")
            header, found = cells, _begin(sheet, cells, path)
            tool = tool or found
            width = _usual_width(head, line_no, header, delimiter, tally)
        elif not header:
            _refuse_without_header(path, line_no, cells, before)
            before = cells
            tally.count("other")
        else:
            _add(sheet, tally, line_no, text, cells, width, len(header))
    if not header:
        raise LogFormatError(
            f"{path}: expected telemetry (a header with names such as timestamp, index, power.draw), found none in "
            f"{tally.lines_total} lines; record with nvidia-smi --query-gpu=... --format=csv, dmon, dcgmi, amd-smi or "
            "a CSV with such names"
        )
    if columns and tally.lines["header"]:
        tally.notes.append("the file has a header: the column names given are not used")
    doubt_last_cell(path, sheet, line_no)
    row = sheet.last_row()
    if tool == "csv" and row and sheet.layout and sheet.layout.device is not None and _CARD.match(
            row[1][sheet.layout.device]):
        tool = "rocm-smi"
    return sheet, tool


def how_to_name(n_columns: int, example: str = "timestamp,index,power.draw") -> str:
    """Say how to name the columns of a file without a header: as a parameter of a run, and in Python."""
    return (f"give the names of its {n_columns} columns in their order, as they were asked for: -p telemetry_columns "
            f"\"{example}\" (in Python: columns=)")


def split_cells(text: str, delimiter: str) -> list[str]:
    """Split one line; amd-smi quotes lists that hold commas."""
    if '"' in text:
        try:
            cells = next(csv.reader([text], delimiter=delimiter, skipinitialspace=True))
        except csv.Error:
            cells = text.split(delimiter)
    else:
        cells = text.split(delimiter)
    return [cell.strip() for cell in cells]


def _delimiter(head: list[tuple[int, str]]) -> str:
    counts: Counter[str] = Counter()
    for _, text in head[:20]:
        counts.update({one: text.count(one) for one in ",;\t"})
    return counts.most_common(1)[0][0] if counts else ","


def _is_header(cells: list[str]) -> bool:
    """Tell whether cells are names of columns, at least one of them known."""
    names = [cell for cell in cells if cell]
    if len(names) < 2 or any(_NUMBER.match(name) or is_missing(name) for name in names):
        return False
    return any(_is_known(name) for name in names)


def _is_known(name: str) -> bool:
    key = key_of(split_unit(name)[0])
    return key in STAMP_KEYS or key in ELAPSED_KEYS or key in DEVICE_KEYS or bool(meanings(*split_unit(name)))


def _begin(sheet: Sheet, header: list[str], path: str | Path) -> str:
    """Start rows under a header; return the tool that prints such ones."""
    names, units = zip(*(split_unit(name) for name in header), strict=True)
    keys = {key_of(name) for name in names}
    tool = "csv"
    if any(_NVIDIA.match(name.lower()) for name in names):
        tool = "nvidia-smi"
    elif len(keys & _AMD_KEYS) >= 2:
        tool = "amd-smi"
    elif any(_ROCM.search(name) for name in header if name != "device"):
        tool = "rocm-smi"
    is_metric = tool == "amd-smi" and {"hotspot", "edge"} & keys
    made = layout(names, units, _AMD_METRIC if is_metric else None)
    if not made.is_known:
        _check_unknown(sheet, made, path)
    sheet.begin(made)
    return tool


def _check_unknown(sheet: Sheet, made: Layout, path: str | Path) -> None:
    """Refuse a table without one known quantity, unless it is at least a series in time."""
    if not made.time:
        raise LogFormatError(_unknown(path, made.names))
    sheet.tally.notes.append("no column but the time is known: all values are in `extra` as printed")


def _unknown(path: str | Path, names: list[str]) -> str:
    return (
        f"{path}: expected telemetry, found the columns {', '.join(names)[:200]}: neither a time nor a known quantity "
        "is among them; name them as the tools do (timestamp, index, power.draw, utilization.gpu, ...)"
    )


def _usual_width(head: list[tuple[int, str]], line_no: int, header: list[str], delimiter: str, tally: Tally) -> int:
    """Return how many values the rows under a header have: some tools name more columns than they print."""
    rows = [split_cells(text, delimiter) for at, text in head if at > line_no]
    counts = Counter(len(cells) for cells in rows if sum(map(bool, cells)) > 1)
    width, n_rows = counts.most_common(1)[0] if counts else (len(header), 0)
    if width < len(header) and n_rows > 1:
        tally.notes.append(f"rows have {width} values under {len(header)} names: {', '.join(header[width:])} missing")
        return width
    return len(header)


def _add(
    sheet: Sheet, tally: Tally, line_no: int, text: str, cells: list[str], width: int, n_names: int
) -> None:
    """Take one row, or count it as what it is."""
    while len(cells) > n_names and not cells[-1]:
        cells.pop()
    made = sheet.layout
    if made is not None and not cells[-1] and not any(cell for at, cell in enumerate(cells) if at not in made.time):
        # a stamp and nothing else closes each sample in some scripts' files
        tally.count("other")
    elif len(cells) in (width, n_names):
        sheet.add(line_no, cells)
    elif cells[0][:1].isdigit() or _CARD.match(cells[0]):
        tally.reject(line_no, text, f"expected {width} values, found {len(cells)}")
    else:
        tally.count("other")


def _refuse_without_header(path: str | Path, line_no: int, cells: list[str], before: list[str]) -> None:
    """Refuse a file whose first rows are values: what they are must be said, or is nothing known."""
    n_values = sum(_NUMBER.match(cell) is not None or is_missing(cell) for cell in cells)
    if len(cells) < 2 or n_values <= len(cells) / 2:
        return
    if len(before) == len(cells):
        raise LogFormatError(_unknown(path, before))
    if len(cells) > MOST_COLUMNS:
        raise LogFormatError(f"{path}: line {line_no}: expected telemetry, found a line of {len(cells)} values: no "
                             "tool prints so many columns")
    raise LogFormatError(f"{path}: line {line_no}: expected a header, found values; {how_to_name(len(cells))}")


def doubt_last_cell(path: str | Path, sheet: Sheet, last_line_no: int) -> None:
    """Leave out the last value of a file without a last line feed, unless its unit shows that it is whole."""
    last = b""
    for piece, _ in pieces(path):
        last = piece or last
    row = sheet.last_row()
    # in UTF-16 a zero byte stands behind or before the line feed
    if last.rstrip(b"\0").endswith(b"\n") or row is None or row[0] != last_line_no:
        return
    if row[1][-1][-1:].isdigit():
        sheet.drop_last_cell()
        sheet.tally.notes.append(f"line {row[0]} has no line feed: its last value may be cut and is left out")
