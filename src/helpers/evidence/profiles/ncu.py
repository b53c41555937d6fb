"""Read what ``ncu --csv`` prints: metrics of single launches, long (one line each) or wide (``--page raw``)."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd

from helpers.evidence.profiles.kernel_roles import role_of
from helpers.evidence.profiles.nsys import fields
from helpers.evidence.profiles.recording import Recording
from helpers.evidence.profiles.timeline import MAX_NAME_CHARS
from helpers.evidence.reading import Tally, lines
from helpers.schema import KERNELS, LogFormatError, conform

TOOL = "ncu"

# Ours -> names of the metric as ncu prints them: the counter, or its title in a section.
METRICS = {
    "time_s": ("gpu__time_duration.sum", "gpu__time_duration.avg", "Duration"),
    "dram_bytes_per_s": ("dram__bytes.sum.per_second",),
    "memory_bytes_per_s": ("Memory Throughput",),
    "dram_read_bytes_per_s": ("dram__bytes_read.sum.per_second",),
    "dram_write_bytes_per_s": ("dram__bytes_write.sum.per_second",),
    "dram_bytes": ("dram__bytes.sum",),
    "dram_read_bytes": ("dram__bytes_read.sum",),
    "dram_write_bytes": ("dram__bytes_write.sum",),
    "sm_busy_frac": ("sm__cycles_active.avg.pct_of_peak_sustained_elapsed",),
    "sm_active_cycles": ("sm__cycles_active.avg", "SM Active Cycles"),
    "elapsed_cycles": ("sm__cycles_elapsed.max", "sm__cycles_elapsed.avg", "gpc__cycles_elapsed.max", "Elapsed Cycles"),
    "n_sms": ("# SMs", "launch__sm_count"),
}
_OURS = {name: ours for ours, names in METRICS.items() for name in names}

_PREFIX = {"": 1.0, "n": 1e-9, "u": 1e-6, "µ": 1e-6, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_BYTES = re.compile(r"([kKMGT]?)(?:byte|bytes|B)(?:/(?:second|sec|s))?")
_TIME = re.compile(r"([numµ]?)(?:second|seconds|sec|s)")

_GROUPED = {"point": re.compile(r"-?\d{1,3}(,\d{3})+(\.\d+)?"), "comma": re.compile(r"-?\d{1,3}(\.\d{3})+(,\d+)?")}


def unit_scale(unit: str) -> float:
    """Return what one of ncu's units is in base units (s, bytes, bytes/s, 1); NaN for a unit that is none of these.

    Prefixes are decimal, and differ from launch to launch unless ncu ran with ``--print-units base``.
    """
    unit = unit.strip()
    if unit in ("%", "percent"):
        return 0.01
    if unit in ("", "cycle", "SM", "1", "block"):
        return 1.0
    if found := _BYTES.fullmatch(unit):
        return _PREFIX["k" if found[1] == "K" else found[1]]
    if found := _TIME.fullmatch(unit):
        return _PREFIX[found[1]]
    return math.nan


def decimal_mark(texts: list[str]) -> tuple[str, bool]:
    """Return which locale wrote numbers, "point" or "comma", and whether any of them proves it.

    "9,00" and "1.234,5" prove a decimal comma; "1,234,567" or "0.5" prove a point; "1,234" is one or the other.
    """
    for text in texts:
        has_point, has_comma = "." in text, "," in text
        if has_point and has_comma:
            return ("point" if text.rfind(".") > text.rfind(",") else "comma"), True
        if text.count(",") > 1 or (has_point and text.count(".") == 1 and not _GROUPED["comma"].fullmatch(text)):
            return "point", True
        if text.count(".") > 1 or (has_comma and not _GROUPED["point"].fullmatch(text)):
            return "comma", True
    return "point", not any("," in text or "." in text for text in texts)


def number(text: str, mark: str) -> float:
    """Read a number as that locale prints it; NaN for "n/a" and the like."""
    drop, keep = (",", ".") if mark == "point" else (".", ",")
    try:
        return float(text.replace("\xa0", "").replace("\u202f", "").replace(drop, "").replace(keep, "."))
    except ValueError:
        return math.nan


@dataclass
class _Launch:
    name: str
    device: str
    grid: str
    values: dict[str, tuple[str, str]] = field(default_factory=dict)


def read_ncu(path: str | Path) -> Recording:
    """Read the CSV of Nsight Compute, in either form.

    Parameters
    ----------
    path : path
        Output of ``ncu --csv`` (one metric a line) or ``ncu --csv --page raw`` (one launch a line, a line of units).

    Returns
    -------
    Recording
        With a table: one row per kernel, grid and device. The time of a launch is missing where no duration was
        collected; the launch is counted all the same, with a time of NaN.

    Raises
    ------
    LogFormatError
        The heading is not in the file.
    """
    tally = Tally(str(path))
    launches: dict[tuple[str, str], _Launch] = {}
    heading: dict[str, int] = {}
    units: list[str] = []
    n_columns, is_long = 0, True
    for at, line in lines(path):
        row = fields(line)
        if "Kernel Name" in row and "ID" in row:
            heading = {name: column for column, name in reversed(list(enumerate(row)))}
            n_columns, is_long, units = len(row), "Metric Name" in row, []
            tally.count("header")
        elif not heading or len(row) < 2:
            tally.count("other")
        elif len(row) != n_columns:
            tally.reject(at, line, f"{len(row)} fields where the heading has {n_columns}")
        elif not row[heading["ID"]].strip():
            units = row
            tally.count("header")
        else:
            key = (row[heading["ID"]], row[heading["Process ID"]] if "Process ID" in heading else "")
            launch = launches.setdefault(key, _Launch(row[heading["Kernel Name"]], _cell(row, heading, "Device"),
                                                      _cell(row, heading, "Grid Size")))
            metrics = _long(row, heading) if is_long else _wide(row, heading, units)
            taken = [launch.values.setdefault(f"{ours}|{unit}" if ours.startswith("memory") else ours, (value, unit))
                     for ours, unit, value in metrics]
            tally.count("row" if taken or not is_long else "other")
    if not heading:
        raise LogFormatError(f"{path}: expected a CSV of ncu with the columns ID and Kernel Name, found none; write "
                             "one with: ncu --csv --page raw --import FILE.ncu-rep")
    return _recording(str(path), tally, list(launches.values()))


def _cell(row: list[str], heading: dict[str, int], column: str) -> str:
    return row[heading[column]].strip() if column in heading else ""


def _long(row: list[str], heading: dict[str, int]) -> Iterator[tuple[str, str, str]]:
    """Yield (ours, unit, value) of a line of one metric, if it is of use."""
    if ours := _OURS.get(_cell(row, heading, "Metric Name")):
        yield ours, _cell(row, heading, "Metric Unit"), _cell(row, heading, "Metric Value")


def _wide(row: list[str], heading: dict[str, int], units: list[str]) -> Iterator[tuple[str, str, str]]:
    """Yield (ours, unit, value) of every metric of use of a launch."""
    for column, at in heading.items():
        if ours := _OURS.get(column):
            yield ours, units[at].strip() if units else "", row[at].strip()


def _recording(file: str, tally: Tally, launches: list[_Launch]) -> Recording:
    mark, is_proven = decimal_mark([value for launch in launches for value, _ in launch.values.values()])
    notes = ["ncu runs each launch alone, with clocks locked and caches flushed unless told otherwise: compare shares "
             "and bandwidths, not times with a serving step"]
    if not is_proven:
        notes.append("no number proves which mark is decimal: a point is assumed, 1,234 is read as 1234")
    rows: list[dict[str, object]] = []
    n_sms, unknown = [], set()
    for launch in launches:
        found: dict[str, float] = {}
        for ours, (value, unit) in launch.values.items():
            scale = unit_scale(unit)
            if math.isnan(scale):
                unknown.add(unit)
            # "Memory Throughput" is a share of the peak in one section, bytes/s in another.
            if ours.startswith("memory"):
                if unit != "%":
                    found.setdefault("dram_bytes_per_s", number(value, mark) * scale)
                continue
            found[ours] = number(value, mark) * scale
        n_sms.append(found.get("n_sms", math.nan))
        sizes = [float(size) for size in re.findall(r"\d+", launch.grid)]
        rows.append({"device": launch.device or None, "name": launch.name, "n_blocks": math.prod(sizes) if sizes else
                     math.nan, "time_s": found.get("time_s", math.nan), "dram_bytes_per_s": _dram(found),
                     "sm_busy_frac": _busy(found)})
    if unknown:
        notes.append(f"units not known, their values are left out: {', '.join(sorted(unknown))}")
    counts = {n for n in n_sms if math.isfinite(n)}
    return Recording(TOOL, tally, table=_summed(file, rows), notes=notes,
                     n_sms=counts.pop() if len(counts) == 1 else math.nan)


def _dram(found: dict[str, float]) -> float:
    """Return DRAM bytes/s from whichever counters were collected."""
    time_s = found.get("time_s", math.nan)
    for total in ("dram_bytes_per_s", "dram_bytes"):
        stem, divisor = (total.removesuffix("_bytes_per_s").removesuffix("_bytes"), time_s if total == "dram_bytes"
                         else 1.0)
        suffix = total.removeprefix("dram")
        if total in found:
            return found[total] / divisor
        if f"{stem}_read{suffix}" in found and f"{stem}_write{suffix}" in found:
            return (found[f"{stem}_read{suffix}"] + found[f"{stem}_write{suffix}"]) / divisor
    return math.nan


def _busy(found: dict[str, float]) -> float:
    if "sm_busy_frac" in found:
        return found["sm_busy_frac"]
    return found.get("sm_active_cycles", math.nan) / found.get("elapsed_cycles", math.nan)


def _summed(file: str, rows: list[dict[str, object]]) -> pd.DataFrame:
    """Sum launches up by name, device and grid; rates are means over time where times are known."""
    if not rows:
        return KERNELS.empty()
    out = []
    launches = pd.DataFrame(rows)
    for (name, device, n_blocks), some in launches.groupby(["name", "device", "n_blocks"], dropna=False, sort=False):
        time_s = some["time_s"].astype(float)
        weight = time_s if time_s.notna().all() else pd.Series(1.0, index=some.index)
        rates = {}
        for rate in ("dram_bytes_per_s", "sm_busy_frac"):
            known = some[rate].notna()
            rates[rate] = np.average(some[rate][known], weights=weight[known]) if known.any() else math.nan
        out.append({"file": file, "device": device, "name": str(name)[:MAX_NAME_CHARS], "role": role_of(str(name)),
                    "n_calls": len(some), "total_s": time_s.sum(min_count=len(some)), "mean_s": time_s.mean(),
                    "min_s": time_s.min(), "max_s": time_s.max(), "n_blocks": n_blocks, **rates})
    return conform(pd.DataFrame(out).sort_values("total_s", ascending=False, kind="stable"), KERNELS)
