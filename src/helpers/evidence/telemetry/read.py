"""GPU and engine telemetry of any tool as one table: the reader that recognises the file, and what all formats share.

Bytes, Hz, W and shares of one in the table, whatever the tool prints; a value that the tool did not give is missing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from helpers.errors import LogFormatError
from helpers.evidence.reading import Tally, binary_kind, head, is_json, json_keys
from helpers.evidence.telemetry import gauges
from helpers.evidence.telemetry.dmon import is_amd_header, read_amd_monitor, read_dmon
from helpers.evidence.telemetry.rows import Sheet
from helpers.evidence.telemetry.smi_csv import read_csv
from helpers.evidence.telemetry.times import localise
from helpers.evidence.telemetry.windows import summarise, window
from helpers.schema import TELEMETRY, conform

__all__ = ["Telemetry", "read_telemetry", "summarise", "window"]

_PAGE = re.compile(r"^(?:# (?:HELP|TYPE) )?(?:DCGM_FI_|sglang:|vllm:|llamacpp:|tgi_)[a-zA-Z0-9_:]*[ {]", re.MULTILINE)
_QUERY = re.compile(r'^\s*\{\s*"status"\s*:\s*"success"\s*,\s*"data"\s*:')
_DMON = re.compile(r"^\s*#\s*(?:Entity\b|(?:[A-Za-z]+[ \t,]+){0,2}gpu\b)", re.MULTILINE)
_BLANKS_ONLY = re.compile(r"^\s*(?:\S+[ \t]+)+\S+\s*$")

RECORD = ("record with nvidia-smi --query-gpu=... --format=csv, dmon, dcgmi or amd-smi, or save the server's /metrics "
          "as text")

_OTHERS = (
    ('"traceEvents"', "a profiler trace", "profile"),
    ('"output_throughput"', "the result of a benchmark client", "client"),
    ('"request_throughput"', "the result of a benchmark client", "client"),
    ('"benchmarks"', "the result of a benchmark client", "client"),
)
"""Mark in a JSON file -> what it is, and the parameter it belongs to."""

_NUMBERS_ONLY = re.compile(r"^[\s\d.\-]+$")

_LARGEST_GROUP = 16
"""Most devices looked for where no column names them: no machine of one board maker holds more."""

_GROUP_RATIO = 3.0
"""Rows of one sample lie this much closer together than samples do, at least."""

_WHOLE = {"link_gen", "link_gen_max", "link_width", "link_width_max"}

_BACK_S = 1.0
"""A step back by less is rows of one sample out of order, no set clock."""


@dataclass(frozen=True)
class Telemetry:
    """Telemetry of one file.

    Attributes
    ----------
    table : DataFrame, schema TELEMETRY
        A row per sample of a device or an engine rank, in the order of the file.
    tally : Tally
        Where every line went.
    tool : str
        nvidia-smi, nvidia-smi dmon, dcgmi dmon, dcgm-exporter, engine metrics, amd-smi, rocm-smi, or csv.
    clock : str
        epoch: ``ts`` is UTC. local: ``ts`` has no zone (the machine's own). elapsed: only ``t_s`` is known.
        none: no time at all; ``t_s`` counts samples times ``period_s`` where that was given.
    notes : tuple of str
        What was assumed or is doubtful.
    """

    table: pd.DataFrame
    tally: Tally
    tool: str
    clock: str
    notes: tuple[str, ...]


def read_telemetry(
    path: str | Path, *, columns: Sequence[str] = (), file_zone: str = "", period_s: float | None = None
) -> Telemetry:
    """Read a file of telemetry, whichever tool wrote it.

    Parameters
    ----------
    path : path
        Plain, .gz or .zst.
    columns : sequence of str
        Names of the columns of a file without a header, as in the query ("timestamp", "index", "power.draw"); one
        text with commas is taken apart.
    file_zone : str
        Zone of stamps that print none: IANA name ("Europe/Berlin") or offset ("+02:00"). The clock is then epoch.
    period_s : float, optional
        Seconds between two samples of a device, for files without times.

    Returns
    -------
    Telemetry
        ``t_s`` counts from the file's first stamp, or is the elapsed time as printed.

    Raises
    ------
    LogFormatError
        The file is no telemetry, has no header and no ``columns`` are given, holds no sample, or the zone is unknown.
    """
    if isinstance(columns, str):
        columns = columns.split(",")
    if kind := binary_kind(path):
        raise LogFormatError(f"{path}: expected telemetry, found {kind}; {RECORD}")
    tally = Tally(str(path))
    start = head(path)
    if _QUERY.match(start):
        frame, tool, clock = gauges.read_range_query(path, tally)
    elif _PAGE.search(start):
        frame, tool, clock = gauges.read_pages(path, tally)
    elif is_json(start):
        raise LogFormatError(f"{path}: expected telemetry, found {_foreign(start)}; {RECORD}")
    else:
        sheet, tool = _read_sheet(path, tally, start, columns)
        frame, clock = sheet.finish(), _one_clock(sheet, tally)
    if frame.empty:
        raise LogFormatError(
            f"{path}: expected samples, found a header and none ({tally.lines['malformed']} malformed lines); "
            "let the monitor run for at least one sample"
        )
    if clock == "local" and file_zone:
        try:
            frame["ts"], clock = localise(frame["ts"], file_zone), "epoch"
        except (ValueError, KeyError, LookupError, OSError) as error:
            raise LogFormatError(
                f"{path}: expected a time zone such as Europe/Berlin or +02:00, found '{file_zone}' "
                f"({type(error).__name__})"
            ) from error
    frame = _with_elapsed(frame, clock, period_s, tally)
    if "device" not in frame.columns and "rank" not in frame.columns:
        frame = _with_devices(frame, tally)
    for name in _WHOLE & set(frame.columns):
        frame[name] = frame[name].round()
    frame["file"] = str(path)
    table = conform(frame[[name for name in TELEMETRY.names if name in frame.columns]], TELEMETRY)
    return Telemetry(table, tally, tool, clock, tuple(tally.notes))


def _foreign(start: str) -> str:
    """Say what a JSON file is that holds no telemetry, and what it may be given as."""
    what = next((f"{name}: give it as -p {parameter}" for mark, name, parameter in _OTHERS if mark in start), "")
    keys = json_keys(start)
    return what or f"JSON of no known tool ({'keys ' + ', '.join(keys) if keys else 'without keys'})"


def _read_sheet(path: str | Path, tally: Tally, start: str, columns: Sequence[str]) -> tuple[Sheet, str]:
    """Read a file of rows by the reader of its format."""
    if _DMON.search(start):
        return read_dmon(path, tally, columns)
    begin = start.splitlines()[:200]
    if any(is_amd_header(line) for line in begin if line.strip()):
        return read_amd_monitor(path, tally)
    full = [line for line in begin if line.strip()]
    is_spaced = bool(full) and all("," not in line and _BLANKS_ONLY.match(line) for line in full)
    if is_spaced and (columns or all(_NUMBERS_ONLY.match(line) for line in full)):
        return read_dmon(path, tally, columns)
    return read_csv(path, tally, columns)


def _one_clock(sheet: Sheet, tally: Tally) -> str:
    """Return the clock of the rows; two in one file are a doubt, and the first is taken."""
    clocks = sheet.times.clocks
    if len(clocks) > 1:
        tally.notes.append(f"times of several kinds: {', '.join(clocks)}; they are not on one clock")
    return clocks[0] if clocks else "none"


def _with_elapsed(frame: pd.DataFrame, clock: str, period_s: float | None, tally: Tally) -> pd.DataFrame:
    """Add t_s."""
    if clock in ("epoch", "local") and "ts" in frame.columns:
        since = (frame["ts"] - frame["ts"].dropna().iloc[0]).dt.total_seconds()
        elapsed = frame["t_s"] if "t_s" in frame.columns else np.nan
        frame["t_s"] = since.where(frame["ts"].notna(), elapsed)
        who = [name for name in ("device", "rank") if name in frame.columns]
        steps = frame.groupby(who, dropna=False)["t_s"].diff() if who else frame["t_s"].diff()
        n_back = int((steps < -_BACK_S).sum())
        if n_back:
            tally.notes.append(
                f"time goes back {n_back} times, by up to {-steps.min():.0f} s: another run, or a set clock"
            )
    elif clock == "none":
        who = [name for name in ("device", "rank") if name in frame.columns]
        number = frame.groupby([*who, "_layout"], dropna=False).cumcount()
        if period_s is not None:
            frame["t_s"] = number * period_s
        elif len(frame) > 1:
            tally.notes.append("no times are printed: give period_s, or compare whole files only")
    return frame


def _with_devices(frame: pd.DataFrame, tally: Tally) -> pd.DataFrame:
    """Name devices by their place in the sample, where rows come in groups of constant size and no column does."""
    if "t_s" not in frame.columns or len(frame) < 4:
        return frame
    t_s = frame["t_s"].to_numpy(dtype=float)
    for size in range(2, _LARGEST_GROUP + 1):
        n_groups = len(t_s) // size
        if n_groups < 2:
            break
        groups = t_s[: n_groups * size].reshape(n_groups, size)
        inside = (groups[:, -1] - groups[:, 0]).max()
        between = (groups[1:, 0] - groups[:-1, -1]).min()
        if between > 0 and inside * _GROUP_RATIO < between:
            frame["device"] = (np.arange(len(frame)) % size).astype(str)
            tally.notes.append(
                f"no column names the device: rows come {size} at a time, taken as devices 0 to {size - 1}"
            )
            break
    return frame
