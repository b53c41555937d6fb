"""Read what ``nsys stats --format csv`` prints: sums per kernel, and the trace of every launch."""

from __future__ import annotations

import csv
import math
import re
from pathlib import Path

import numpy as np
import pandas as pd

from helpers.evidence.profiles.kernel_roles import role_of
from helpers.evidence.profiles.recording import Recording
from helpers.evidence.profiles.timeline import MAX_NAME_CHARS, NO_NUMBER, Timeline
from helpers.evidence.reading import Tally, lines
from helpers.schema import KERNELS, LogFormatError, conform

TOOL = "nsys"

UNIT_S = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "usec": 1e-6, "ms": 1e-3, "msec": 1e-3, "nsec": 1e-9, "s": 1.0,
          "sec": 1.0}
"""Units that ``--timeunit`` can put into a heading."""

_UNIT = re.compile(r"\s*\(([^)]*)\)\s*$")
_SUMS = ({"name", "instances", "total time"}, {"operation", "count", "total time"}, {"name", "total time", "num calls"})
_TRACE = {"start", "duration", "name", "corrid"}

# Old and new spellings of a column -> ours. The first releases print no unit: nanoseconds.
_SPELLINGS = {"avg": "average", "min": "minimum", "max": "maximum", "count": "instances", "operations": "instances",
              "operation": "name", "total": "total time", "gridxyz": "gridxyz", "kernel name": "name",
              "pid": "pid", "devid": "device"}


class _Table:
    """One heading of the file, and what its rows mean."""

    def __init__(self, heading: list[str]) -> None:
        bare = [_UNIT.sub("", column).strip().lower() for column in heading]
        self.kind = "trace" if set(bare) >= _TRACE else "sums" if any(set(bare) >= one for one in _SUMS) else ""
        self.is_memory = "operation" in bare
        self.is_api = "num calls" in bare
        self.columns = {_SPELLINGS.get(name, name): at for at, name in reversed(list(enumerate(bare)))}
        self.n_columns = len(heading)
        self._unit_s = {}
        for column, at in self.columns.items():
            unit = _UNIT.search(heading[at])
            self._unit_s[column] = UNIT_S.get(unit[1].strip().lower(), math.nan) if unit else 1e-9

    def text(self, row: list[str], column: str) -> str:
        return row[self.columns[column]].strip() if column in self.columns else ""

    def number(self, row: list[str], column: str) -> float:
        found = self.text(row, column)
        try:
            return float(found.replace(",", "")) if found else math.nan
        except ValueError:
            return math.nan

    def time_s(self, row: list[str], column: str) -> float:
        return self.number(row, column) * self._unit_s[column] if column in self.columns else math.nan


def read_nsys(path: str | Path) -> Recording:
    """Read one or several reports of ``nsys stats`` in CSV.

    Parameters
    ----------
    path : path
        Output of cuda_gpu_kern_sum (also gpukernsum, cuda_gpu_sum, cuda_gpu_kern_gb_sum, cuda_gpu_mem_time_sum) or
        of cuda_gpu_trace, with whatever nsys prints before them. Reports of host calls are passed over.

    Returns
    -------
    Recording
        With a timeline from cuda_gpu_trace, else with a table of sums. A file with both counts the trace only.

    Raises
    ------
    LogFormatError
        No heading of such a report is in the file.
    """
    tally, timeline = Tally(str(path)), Timeline()
    sums: list[dict[str, object]] = []
    table: _Table | None = None
    n_passed_over, headings = 0, 0
    for number, line in lines(path):
        row = fields(line)
        found = _Table(row) if len(row) > 2 else None
        if found is not None and (found.kind or found.is_api):
            table, headings = found, headings + bool(found.kind and not found.is_api)
            tally.count("header")
        elif table is None or len(row) < 2:
            # A blank line or a message ends a report.
            table = None if not line.strip() else table
            tally.count("other")
        elif table.is_api:
            n_passed_over += 1
            tally.count("other")
        elif len(row) != table.n_columns:
            tally.reject(number, line, f"{len(row)} fields where the heading has {table.n_columns}")
        else:
            _take(table, row, tally, number, line, timeline, sums)
    if not headings:
        raise LogFormatError(
            f"{path}: expected a report of nsys stats in CSV (cuda_gpu_kern_sum or cuda_gpu_trace), found no such "
            "heading; write one with: nsys stats --report cuda_gpu_kern_sum --format csv FILE.nsys-rep")
    notes = ["kernels inside CUDA graphs are missing unless nsys ran with --cuda-graph-trace=node"]
    if n_passed_over:
        notes.append(f"{n_passed_over} lines of reports of host calls are passed over")
    if len(timeline) and sums:
        notes.append(f"{len(sums)} rows of sums are left out: the trace in the same file holds the same launches")
    if len(timeline):
        return Recording(TOOL, tally, timeline, launched_s=np.full(len(timeline), np.nan),
                         is_draft=np.zeros(len(timeline), dtype=bool), notes=notes)
    rows = pd.DataFrame([row | {"file": str(path)} for row in sums])
    return Recording(TOOL, tally, table=conform(rows, KERNELS) if sums else KERNELS.empty(), notes=notes)


def fields(line: str) -> list[str]:
    """Split a line of CSV; one that is none is a single field."""
    try:
        return next(csv.reader([line]), [])
    except csv.Error:
        return [line]


def is_copy(name: str) -> bool:
    """Say whether a name is one that nsys gives to a copy or a fill: ``[CUDA memcpy HtoD]``."""
    return name.lower().startswith(("[cuda memcpy", "[cuda memset", "[cuda mem"))


def _take(table: _Table, row: list[str], tally: Tally, number: int, line: str, timeline: Timeline,
          sums: list[dict[str, object]]) -> None:
    name = table.text(row, "name")
    if table.kind == "trace":
        start_s, duration_s = table.time_s(row, "start"), table.time_s(row, "duration")
        if not (name and math.isfinite(start_s) and duration_s >= 0):
            tally.reject(number, line, "start, duration or name is missing or no number")
            return
        grid = [table.number(row, f"grd{axis}") for axis in "xyz"]
        correlation = table.number(row, "corrid")
        timeline.add(name, table.text(row, "device"), _blocks(grid), is_copy(name), start_s, duration_s,
                     int(correlation) if math.isfinite(correlation) else NO_NUMBER)
    else:
        total_s, n_calls = table.time_s(row, "total time"), table.number(row, "instances")
        if not (name and total_s >= 0 and n_calls >= 1):
            tally.reject(number, line, "total time, instances or name is missing or no number")
            return
        grid = [float(size) for size in re.findall(r"\d+", table.text(row, "gridxyz"))]
        n_blocks = _blocks(grid)
        sums.append({
            "device": table.text(row, "device") or None, "name": name[:MAX_NAME_CHARS],
            "role": "memory_copy" if table.is_memory or is_copy(name) else role_of(name),
            "n_calls": int(n_calls), "total_s": total_s, "mean_s": total_s / n_calls,
            "min_s": table.time_s(row, "minimum"), "max_s": table.time_s(row, "maximum"),
            "n_blocks": math.nan if n_blocks == NO_NUMBER else n_blocks,
        })
    tally.count("row")


def _blocks(grid: list[float]) -> int:
    n = math.prod(grid) if grid else math.nan
    return int(n) if math.isfinite(n) and n > 0 else NO_NUMBER
