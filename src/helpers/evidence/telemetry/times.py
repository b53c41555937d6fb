"""When a sample was taken: printed stamps, epoch numbers in any unit, elapsed seconds, times of day without a date."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from helpers.evidence.telemetry.names import UNITS

STAMP_KEYS = frozenset((
    "timestamp", "time", "ts", "datetime", "date_time", "date", "unix_time", "epoch", "epoch_s", "utc_epoch_s",
    "unix_timestamp", "timestamp_unix", "timestamp_s", "time_unix", "wall_time", "sampled_at", "timestamp_ms",
    "epoch_ms", "time_utc", "timestamp_utc", "unix_s", "unix",
))
"""Names of columns that tell when; a number in them is read by its size."""

ELAPSED_KEYS = {
    "t_s": "s", "elapsed_s": "s", "elapsed": "s", "t": "s", "seconds": "s", "elapsed_seconds": "s", "elapsed_sec": "s",
    "time_s": "s", "rel_s": "s", "relative_s": "s", "uptime_s": "s", "elapsed_ms": "ms", "t_ms": "ms",
}
"""Names of columns of elapsed time -> its unit."""

_EPOCH_FROM = ((1e17, 1e-9), (1e14, 1e-6), (1e11, 1e-3), (1e8, 1.0))
"""Numbers from here on count from 1970 in units of this many seconds: 1e8 s is 1973, 1e11 ms likewise."""

_ZONE = re.compile(r"(?:Z|UTC|GMT|[+-]\d{2}:?\d{2})$")
_TIME_OF_DAY = re.compile(r"^\d{1,2}:\d{2}:\d{2}(?:[.,]\d+)?$")
_BASIC_DATE = re.compile(r"^\d{8}$")

_LAST_S = 4.1e9
"""2099: a later stamp is no time."""

NO_DATE = pd.Timestamp("1904-01-01")
"""Day of stamps that print none, as in SAMPLES."""

_HALF_DAY_S = 43_200
_DAY_S = 86_400


@dataclass
class Times:
    """What the times of a file were found to be, carried from block to block.

    Attributes
    ----------
    clocks : list of str
        Kinds found, in the order found: "epoch", "local", "elapsed".
    """

    clocks: list[str] = field(default_factory=list)
    day: int = 0
    last_s: float | None = None

    def add(self, clock: str) -> None:
        """Note a kind of time."""
        if clock not in self.clocks:
            self.clocks.append(clock)


def read_times(cells: list[tuple[str, ...]], unit: str, times: Times) -> tuple[dict[str, object], np.ndarray]:
    """Read the times of a block of rows.

    Parameters
    ----------
    cells : list of one or two columns of text
        The stamp, or date and time of day.
    unit : str
        Unit of elapsed numbers, "" for seconds.
    times : Times
        What was found so far; what is found here is added.

    Returns
    -------
    dict
        ``ts`` (without zone; UTC of epoch and zoned stamps), or ``t_s`` of elapsed time.
    array of bool
        Rows whose time could be read.
    """
    if len(cells) == 2:
        text = [f"{_date(day.strip())} {time.strip()}" for day, time in zip(*cells, strict=True)]
    else:
        text = [cell.strip() for cell in cells[0]]
    numbers = pd.to_numeric(pd.Series(text, dtype=object), errors="coerce").to_numpy(dtype=float)
    if np.isfinite(numbers).mean() >= 0.5:
        return _read_numbers(numbers, unit, times)
    if sum(_TIME_OF_DAY.match(one) is not None for one in text[:20]) > len(text[:20]) / 2:
        times.add("local")
        return _read_times_of_day(text, times)
    is_zoned = next((_ZONE.search(one) is not None for one in text if one), False)
    found = _read_stamps(text, is_zoned)
    if found.notna().any():
        times.add("epoch" if is_zoned else "local")
    return {"ts": found}, found.notna().to_numpy()


def _date(day: str) -> str:
    return f"{day[:4]}-{day[4:6]}-{day[6:]}" if _BASIC_DATE.match(day) else day


def _read_numbers(numbers: np.ndarray, unit: str, times: Times) -> tuple[dict[str, object], np.ndarray]:
    size = np.nanmedian(np.abs(numbers[np.isfinite(numbers)]))
    scale = next((one for least, one in _EPOCH_FROM if size >= least), None)
    keep = np.isfinite(numbers)
    if scale is None:
        times.add("elapsed")
        kind, factor = UNITS.get(unit.lower(), ("time", 1.0))
        return {"t_s": numbers * (factor if kind == "time" else 1.0)}, keep
    times.add("epoch")
    keep &= (numbers >= 0) & (numbers * scale <= _LAST_S)
    whole_us = np.where(keep, np.round(np.where(keep, numbers, 0.0) * scale * 1e6), 0).astype("int64")
    stamps = pd.Series(whole_us.astype("datetime64[us]")).where(keep)
    return {"ts": stamps}, keep


def _read_times_of_day(text: list[str], times: Times) -> tuple[dict[str, object], np.ndarray]:
    """Put times of day after one another: a step back by more than half a day is midnight."""
    clock_s = pd.to_timedelta(pd.Series(text).str.replace(",", "."), errors="coerce").dt.total_seconds().to_numpy()
    keep = np.isfinite(clock_s)
    known = clock_s[keep]
    if not len(known):
        return {"ts": pd.Series(pd.NaT, index=range(len(text)), dtype="datetime64[us]")}, keep
    before = np.concatenate([[times.last_s if times.last_s is not None else known[0]], known[:-1]])
    days = times.day + np.cumsum(known - before < -_HALF_DAY_S) - np.cumsum(known - before > _HALF_DAY_S)
    times.day, times.last_s = int(days[-1]), float(known[-1])
    stamps = pd.Series(pd.NaT, index=range(len(text)), dtype="datetime64[us]")
    stamps[keep] = (NO_DATE + pd.to_timedelta(known + days * _DAY_S, unit="s")).as_unit("us")
    return {"ts": stamps}, keep


def _read_stamps(text: Sequence[str], is_zoned: bool) -> pd.Series:
    """Read written stamps, without zone in the result; year first, with any separators."""
    series = pd.Series(text, dtype=object).str.replace("/", "-", regex=False).str.replace(",", ".", regex=False)
    if is_zoned:
        series = series.str.replace(r"\s*(?:UTC|GMT)$", "Z", regex=True)
    found = pd.to_datetime(series, format="ISO8601", errors="coerce", utc=is_zoned)
    if is_zoned:
        found = found.dt.tz_convert(None)
    return found.astype("datetime64[us]")


def localise(stamps: pd.Series, zone: str) -> pd.Series:
    """Turn stamps of a zone into UTC, without zone in the result.

    Parameters
    ----------
    stamps : Series of datetime64
        Local time.
    zone : str
        IANA name ("Europe/Berlin") or offset ("+02:00").
    """
    # in the hour that occurs twice the second one (standard time) is assumed
    is_summer = np.zeros(len(stamps), dtype=bool)
    zoned = stamps.dt.tz_localize(zone, ambiguous=is_summer, nonexistent="shift_forward")
    return zoned.dt.tz_convert(None).astype("datetime64[us]")
