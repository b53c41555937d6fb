"""Which server life an export belongs to: that of the log beside it, if their times say so, or one of its own.

A log prints local time, often without year; an export has seconds since 1970. They are of one server if the export's
time, shifted by whole quarter hours (a time zone), lies inside the log's; a shift other than zero must be the only one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from helpers.ingest import stamps

_QUARTER_US = 900 * 10**6
"""Time zones differ by whole quarter hours."""

_MAX_ZONE = 56
"""Quarter hours between UTC and the farthest zone (14 h)."""

_MIN_OVERLAP_FRAC = 0.5
_MIN_OVERLAP_SHIFTED_FRAC = 0.9
"""Share of an export's time that must lie inside the log's; more of it if a zone has to be guessed."""

_NEAR_US = 300 * 10**6
"""Begin and end this near to the log's pick the zone where a long log leaves several."""

_MARGIN_US = 60 * 10**6
"""Scrapes may begin before the first line of the log and end after its last."""

_DAY_US = 86_400 * 10**6
_LEAP_DAY_US = int(np.datetime64("1904-02-29", "us").astype(np.int64))
_SPAN_COLUMNS = ("us", "shown", "stamp_kind", "server_life")


@dataclass(frozen=True)
class LogSpan:
    """The clock of the logs: kind of stamp, first and last stamp, and where each server life begins."""

    kind: int
    first_us: int
    last_us: int
    life_begins: tuple[tuple[int, int], ...]
    """(first stamp, life) of every life, in time order."""
    skips_leap_day: bool = False
    """Whether the clock leaves 29 February out: stamps without year, none of them on that day."""


def spans_of(samples: pl.DataFrame, events: pl.DataFrame) -> LogSpan | None:
    """Return the clock that most records of the logs are on; None if none of them has a stamp.

    Parameters
    ----------
    samples, events : DataFrame
        With us, shown, stamp_kind and server_life.
    """
    stamped = pl.concat([table.select(_SPAN_COLUMNS) for table in (samples, events)]).drop_nulls()
    stamped = stamped.filter(pl.col("stamp_kind").is_in([stamps.FULL, stamps.NO_YEAR, stamps.NO_DATE, stamps.WRAPPER]))
    if stamped.is_empty():
        return None
    kind = int(stamped["stamp_kind"].value_counts(sort=True)["stamp_kind"][0])
    mine = stamped.filter(pl.col("stamp_kind") == kind)
    begins = mine.group_by("server_life").agg(pl.col("us").min()).sort("us")
    return LogSpan(
        kind, int(mine["us"].min()), int(mine["us"].max()),  # type: ignore[arg-type]
        tuple((int(us), int(life)) for life, us in begins.iter_rows()),
        kind == stamps.NO_YEAR and not mine["shown"].is_between(_LEAP_DAY_US, _LEAP_DAY_US + _DAY_US, "left").any(),
    )


def find_shift_us(span: LogSpan, first_us: int, last_us: int) -> int | None:
    """Return what to add to an export's stamps to put them on the log's clock; None if the times do not say.

    Parameters
    ----------
    span : LogSpan
        Of the log.
    first_us, last_us : int
        First and last stamp of the export [us since 1970].
    """
    bases = _bases(span.kind, first_us)
    for base in bases:
        if _overlap_frac(span, first_us + base, last_us + base) >= _MIN_OVERLAP_FRAC:
            return base
    shifts = sorted({base + zone * _QUARTER_US for base in bases for zone in range(-_MAX_ZONE, _MAX_ZONE + 1)})
    inside = [s for s in shifts if _overlap_frac(span, first_us + s, last_us + s) >= _MIN_OVERLAP_SHIFTED_FRAC]
    near = [
        s for s in inside
        if abs(first_us + s - span.first_us) < _NEAR_US and abs(last_us + s - span.last_us) < _NEAR_US
    ]
    return inside[0] if len(inside) == 1 else near[0] if len(near) == 1 else None


def _bases(kind: int, first_us: int) -> list[int]:
    """Return what carries UTC into the years and days that the log's stamps were given."""
    if kind in (stamps.FULL, stamps.WRAPPER):
        return [0]
    if kind == stamps.NO_DATE:
        day_us = int(np.datetime64("1904-01-01", "us").astype(np.int64))
        return [day_us - first_us // _DAY_US * _DAY_US]
    stamp = np.datetime64(first_us, "us")
    year = stamp.astype("datetime64[Y]")
    months = np.datetime64("1904-01", "M") + (stamp.astype("datetime64[M]") - year.astype("datetime64[M]"))
    in_1904 = months.astype("datetime64[us]") + (stamp - stamp.astype("datetime64[M]").astype("datetime64[us]"))
    shift = int((in_1904 - stamp).astype(np.int64))
    return [shift, shift - _DAY_US]  # the log's clock leaves 29 February out in years that have none


def _overlap_frac(span: LogSpan, first_us: int, last_us: int) -> float:
    inside_us = min(last_us, span.last_us + _MARGIN_US) - max(first_us, span.first_us - _MARGIN_US)
    return inside_us / max(last_us - first_us, 1)


@dataclass(frozen=True)
class Placing:
    """How an export is put among the lives: on the clock of the logs (``span``), or alone (None)."""

    path: str
    span: LogSpan | None
    shift_us: int = 0

    def apply(self, table: pl.DataFrame, restarts: Sequence[int], first_own_life: int) -> pl.DataFrame:
        """Return a table with file, server_life and, on the clock of a log, shifted stamps.

        Parameters
        ----------
        table : DataFrame
            With line_no, us, shown and stamp_kind.
        restarts : sequence of int
            Lines with which the export itself says that a new life begins.
        first_own_life : int
            Number of the first life if it stands alone.
        """
        path = pl.lit(self.path)
        if self.span is None:
            starts = np.array(sorted(restarts), dtype=np.int64)
            lives = first_own_life + np.searchsorted(starts, table["line_no"].to_numpy(), side="right")
            return table.with_columns(file=path, server_life=pl.Series(lives, dtype=pl.Int64))
        us = pl.col("us") + self.shift_us
        is_later = (us >= _LEAP_DAY_US) & self.span.skips_leap_day
        shown = us + pl.when(is_later).then(_DAY_US).otherwise(0)
        table = table.with_columns(us=us, shown=shown, file=path, stamp_kind=pl.lit(self.span.kind, pl.Int32))
        return table.with_columns(server_life=pl.Series(_lives_at(self.span, table["us"]), dtype=pl.Int64))


def place(
    path: str, span_us: tuple[int, int] | None, logs: Sequence[tuple[pl.DataFrame, pl.DataFrame]], notes: list[str]
) -> Placing:
    """Say whether an export is of the server of a log.

    Parameters
    ----------
    path : str
        Of the export.
    span_us : (int, int) or None
        Its first and last stamp.
    logs : sequence of (samples, events)
        Of the same engine.
    notes : list of str
        What was decided is appended.
    """
    if not logs:
        return Placing(path, None)
    span = spans_of(*(pl.concat([log[i] for log in logs], how="diagonal") for i in (0, 1)))
    shift_us = find_shift_us(span, *span_us) if span is not None and span_us is not None else None
    if span is None or span_us is None or shift_us is None:
        notes.append(f"{path}: its times lie in no log's of its engine: read as of a server of its own")
        return Placing(path, None)
    offset_us = min((shift_us - base for base in _bases(span.kind, span_us[0])), key=abs)
    zone = f"UTC{offset_us / 3.6e9:+g} h" if offset_us else "UTC"
    notes.append(f"{path}: its times lie inside the log's (whose clock is then {zone}): read as of the same server")
    return Placing(path, span, shift_us)


def _lives_at(span: LogSpan, us: pl.Series) -> np.ndarray:
    """Return the server life that each stamp falls into; before the first, the first."""
    starts = np.array([start for start, _ in span.life_begins])
    numbers = np.array([life for _, life in span.life_begins])
    at = np.searchsorted(starts, us.fill_null(int(starts[0])).to_numpy(), side="right") - 1
    return numbers[np.maximum(at, 0)]
