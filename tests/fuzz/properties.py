"""What must hold for any input whatever: checked on one file, by means that share nothing with the reader."""

from __future__ import annotations

import functools
import math
import re
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from helpers import ingest
from helpers.ingest import log as log_module
from helpers.ingest.extract import MEASURES
from helpers.schema import RooflogError

START_CPU_S, LINE_CPU_S = 4.0, 0.02
"""CPU time a file may take: to begin with, and per line. A line with a layout of its own costs about a millisecond."""

LONG_LINE_BYTES = 2_000
"""Lines above count as several."""

MAX_RSS_BYTES = 2 * 2**30
"""Resident memory of a process that reads small files one after the other."""

_NUMBER = re.compile(r"-?(?:\d+\.?\d*(?:[eE][+-]?\d+)?|nan|inf)")
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b[()][A-Z0-9]|\x1b[=>]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")
_PART = re.compile(r"^\S+ (?:stdout|stderr) [FP] ?")
_MAX_PARTS = 12
"""Lines over which a record may go on."""

_LOST_ESCAPES = re.compile(r"\[[0-9]{1,3}(?:;[0-9]{1,3})*m")
_DERIVED = {"n_steps", "out_tok"}
"""Measures that some records imply instead of printing: one step per iteration line, one token per step."""

_PRINT_ALL = ("sglang", "vllm")
"""Engines whose records print every value; the others' are computed, at times from several lines."""

_PRINTED_PER_UNIT = (1.0, 100.0, 1e3, 1e6, 1e9)
"""Fractions may be printed as percent; seconds as ms, us or ns."""


class Broken(AssertionError):
    """A property does not hold; the message names it."""


@dataclass(frozen=True)
class Outcome:
    """One file read: how many lines, records and malformed lines; was it refused; CPU time."""

    n_lines: int
    n_records: int
    n_malformed: int
    is_refused: bool
    cpu_s: float


def check_file(path: Path, content: bytes) -> Outcome:
    """Read a file and check every property; raise Broken with what does not hold."""
    path.write_bytes(content)
    scans: list[Any] = []
    began_s = time.process_time()
    with pytest.MonkeyPatch.context() as patch:
        if hasattr(log_module, "scan_file"):
            patch.setattr(log_module, "scan_file", functools.partial(_scan_and_keep, log_module.scan_file, scans))
        log = _read(path)
    cpu_s = time.process_time() - began_s
    texts = content.split(b"\n")
    n_lines = len(texts) - (texts[-1] == b"")
    n_costly = n_lines + len(content) / LONG_LINE_BYTES
    _require(cpu_s <= START_CPU_S + LINE_CPU_S * n_costly, f"time is bounded: {cpu_s:.1f} s for {n_lines} lines")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    _require(peak < MAX_RSS_BYTES, f"memory is bounded: {peak / 2**20:.0f} MiB")
    for scan in scans:
        _check_scan(scan, n_lines)
    if log is not None:
        _check_log(log, n_lines, texts)
    n_malformed = sum(scan.lines["malformed"] for scan in scans)
    return Outcome(n_lines, 0 if log is None else len(log.samples), n_malformed, log is None, cpu_s)


def _scan_and_keep(scan_file: Callable[..., Any], kept: list[Any], *args: Any, **options: Any) -> Any:
    kept.append(scan_file(*args, **options))
    return kept[-1]


def _read(path: Path) -> ingest.Log | None:
    """Return the log, None where the file is refused in one line."""
    try:
        return ingest.read_log(path)
    except RooflogError as error:
        _require("\n" not in str(error) and len(str(error)) < 3000, f"an error is one line: {str(error)[:300]!r}")
        return None


def _require(condition: bool, what: str) -> None:
    if not condition:
        raise Broken(what)


def _check_scan(scan: Any, n_lines: int) -> None:
    """Every line is in one class, also in a file that is refused afterwards."""
    _require(scan.n_lines == n_lines, f"lines are counted: {scan.n_lines} of {n_lines}")
    _require(sum(scan.lines.values()) == n_lines, f"classes add up: {dict(scan.lines)} of {n_lines}")
    _require(min(scan.lines.values(), default=0) >= 0, f"no class is negative: {dict(scan.lines)}")
    numbers = {number for frame in scan.samples for number in frame["line_no"]}
    _require(scan.lines["statistic"] <= len(numbers), "a statistic line gives a record")


def _check_log(log: ingest.Log, n_lines: int, texts: list[bytes]) -> None:
    """The accounting of the whole adds up, and every value is one that its line prints."""
    account = log.accounting
    has_lines = not any("elements are counted in place of lines" in note for note in account.notes)
    n_lines = n_lines if has_lines else account.lines_total  # a list in JSON has none
    _require(account.lines_total == n_lines == sum(account.lines.values()), f"accounting adds up: {account.lines}")
    _require(min(account.lines.values()) >= 0, f"no class is negative: {account.lines}")
    _require(sum(account.by_kind.values()) == len(log.samples), f"records are counted: {account.by_kind}")
    _require(account.as_dict() is not None, "the accounting is JSON")
    numbers = log.samples["line_no"]
    _require(bool(numbers.between(1, n_lines).all()), "line numbers are lines of the file")
    if not has_lines:
        return
    columns = [name for name in MEASURES if name not in _DERIVED]
    for row in log.samples[["line_no", "kind", "engine", *columns]].itertuples(index=False):
        printed, words = _printed(texts, row.line_no)
        for name in columns:
            value = getattr(row, name)
            if pd.isna(value):
                continue
            if row.engine not in _PRINT_ALL or name == "accept_len" and row.engine == "vllm":
                continue
            is_held = str(value) in words if name == "graph" else _holds(printed, value)
            is_held = is_held or name != "graph" and _holds(_printed_to_any_row(texts, row.line_no), value)
            _require(is_held, f"line {row.line_no} prints {name} = {value!r}")


@functools.lru_cache(maxsize=64)
def _clean(text: bytes) -> str:
    plain = text.replace(b"\0", b"").decode(errors="replace")
    return _LOST_ESCAPES.sub("", _ESCAPES.sub("", plain))


def _printed(texts: list[bytes], line_no: int) -> tuple[set[float], str]:
    """Return all numbers of a line, and its text; with the lines after it, over which a record may go on."""
    found: set[float] = set()
    rows = [_clean(part) for part in texts[line_no - 1: line_no + _MAX_PARTS]]
    text = rows[0] + "".join(_PART.sub("", row) for row in rows[1:])
    for where in (*rows, text):
        found.update(float(number) for number in _NUMBER.findall(where))
    return found, text


def _printed_to_any_row(texts: list[bytes], line_no: int) -> set[float]:
    """Return the last numbers of the first rows joined, however many: the row after the last may begin with a digit."""
    text, found = "", set()
    for part in texts[line_no - 1: line_no + _MAX_PARTS]:
        text += _PART.sub("", _clean(part).rstrip("\r")) if text else _clean(part).rstrip("\r")
        found.update(float(number) for number in _NUMBER.findall(text[-400:])[-1:])
    return found


def _holds(printed: set[float], value: Any) -> bool:
    number = float(value)
    if number == 0 and any(0 < abs(other) < 1e-300 for other in printed):
        return True  # too small for a float once it is divided
    if any(number * scale in printed for scale in _PRINTED_PER_UNIT):
        return True
    return any(math.isclose(number * scale, other, rel_tol=1e-12) for scale in _PRINTED_PER_UNIT for other in printed)
