"""Time stamps and rank tags: found in the prefix of a record, put on one clock afterwards.

A record's own stamp wins over the stamps that wrappers (container runtimes, journald, CI) put in front: those may
be UTC, buffered or hours off, and serve only where no record of the file has a stamp of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from helpers.ingest.distinct import distinct
from helpers.ingest.workers import add_labels

FULL, NO_YEAR, NO_DATE, WRAPPER = 1, 2, 3, 4
"""What a stamp tells: date and time, no year, time only; WRAPPER is a full one that the engine did not print."""

_TIME = r"[0-9]{2}:[0-9]{2}:[0-9]{2}(?:[.,][0-9]{1,9})?"
_DATE = r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
_DAY = r"[0-9]{2}-[0-9]{2}"
_TAGS = r"((?: [A-Z][A-Z_]*[0-9]+)*)\]"
_LEVEL = r"(?:INFO|WARNING|ERROR|DEBUG|CRITICAL)"

_PATTERNS = (
    # the prefix of nearly every record, right before it
    (FULL, rf"({_DATE} {_TIME}){_TAGS} *$"),
    (NO_YEAR, rf"{_LEVEL} ({_DAY} {_TIME}) \S+ *(?:Engine [0-9]+: *)?$"),
    # anything else: the last stamp before the record
    (NO_YEAR, rf"^.*{_LEVEL} ({_DAY} {_TIME}) "),
    (FULL, rf"^.*({_DATE} {_TIME}){_TAGS}"),
    (FULL, rf"({_DATE} {_TIME}) Engine [0-9]+\] *$"),
    (FULL, rf"^.*\[([0-9]{{2}}/[0-9]{{2}}/[0-9]{{4}}-{_TIME})\]"),  # TensorRT-LLM, month first
    (NO_DATE, rf"^.*\[({_TIME}){_TAGS}"),
    (WRAPPER, rf"({_DATE}[T ]{_TIME})"),
    (WRAPPER, rf"([A-Z][a-z]{{2}} +[0-9]{{1,2}} {_TIME})"),
)
"""Tried in this order on the lines that none before matched: kind, stamp (group 1), tags (group 2)."""

_N_COMMON = 2
"""Patterns tried before a line is asked whether it holds a time at all, which all of them want."""

_YEAR_BEFORE = {FULL: "", NO_YEAR: "1904-", NO_DATE: "1904-01-01 ", WRAPPER: ""}
"""What is put before a stamp to make it whole; 1904 is a leap year."""

_ENGINE = r"Engine ([0-9]+)[:\]] *$"
_ENGINE_PROCESS = r"\(EngineCore_DP([0-9]+) "
_GPU = r"\[gpu_id=([0-9]+)\] *$"

_DAY_US = 86_400 * 10**6
_LEAP_DAY_US = int(np.datetime64("1904-02-29", "us").astype(np.int64))
# A stamp that jumps back by more than half its period has wrapped; less is ranks or processes interleaving.
_HALF = 0.5


def read_prefixes(frame: pl.DataFrame) -> pl.DataFrame:
    """Add stamp, stamp_kind and rank to records.

    Parameters
    ----------
    frame : DataFrame
        With ``prefix`` (the line up to the record) and ``text`` (the whole line).

    Returns
    -------
    DataFrame
        With ``stamp`` (datetime, missing if none), ``stamp_kind``, ``rank`` and ``label`` (the process that a wrapper
        names) added, in the order given. Years that were not printed are 1904, days that were not printed its first.
    """
    found: list[pl.DataFrame] = []
    left = frame.with_row_index("_row")
    timeless = left.clear()
    for number, (kind, pattern) in enumerate(_PATTERNS):
        if number == _N_COMMON and len(left):
            has_time = left.select(pl.any_horizontal(pl.col("prefix", "text").str.contains(_TIME))).to_series()
            if not has_time.all():
                timeless, left = left.filter(~has_time), left.filter(has_time)
        # JSON wrappers put their stamp behind the record
        for column in ("prefix", "text") if kind == WRAPPER else ("prefix",):
            if len(left):
                left = _take_matched(left, column, kind, pattern, found)
    found += [_without_stamp(rows) for rows in (timeless, left) if len(rows) or not found]
    whole = pl.concat(found).sort("_row") if len(found) > 1 else found[0]
    frame = add_labels(whole[[name for name in whole.columns if name != "_row"]])
    if not frame["rank"].has_nulls():
        return frame
    prefix = pl.col("prefix")
    return frame.with_columns(rank=pl.coalesce(
        pl.col("rank"),
        _tagged("DP", prefix.str.extract(_ENGINE)),
        _tagged("DP", prefix.str.extract(_ENGINE_PROCESS)),
        _tagged("GPU", prefix.str.extract(_GPU)),
    ))


def _take_matched(
    rows: pl.DataFrame, column: str, kind: int, pattern: str, found: list[pl.DataFrame]
) -> pl.DataFrame:
    """Read the stamps of the rows that match one pattern into ``found``; return the other rows."""
    groups = rows[column].str.extract_groups(pattern).struct.unnest()
    n_others = groups["1"].null_count()
    if n_others == len(rows):
        return rows
    others, matched = rows.clear(), rows.hstack(groups)
    if n_others:
        is_match = groups["1"].is_not_null()
        others, matched = rows.filter(~is_match), matched.filter(is_match)
    found.append(_read_matched(matched, kind))
    return others


def _read_matched(matched: pl.DataFrame, kind: int) -> pl.DataFrame:
    """Parse the stamps of one pattern, column "1", and keep its rank tags, column "2" if there are any."""
    tags = pl.col("2").str.strip_chars().replace("", None) if "2" in matched.columns else pl.lit(None, pl.String)
    text = pl.lit(_YEAR_BEFORE[kind]) + pl.col("1").str.replace("T", " ", literal=True)
    parsed = text.str.to_datetime("%Y-%m-%d %H:%M:%S", strict=False, time_unit="us")
    added = {"stamp": parsed, "stamp_kind": pl.lit(kind, pl.Int32), "rank": tags}
    read = matched.select(pl.exclude(*added, "1", "2"), **added)
    if read["stamp"].has_nulls():
        seconds = text.str.replace(",", ".", literal=True)
        fractional = seconds.str.to_datetime("%Y-%m-%d %H:%M:%S%.f", strict=False, time_unit="us")
        month_first = text.str.to_datetime("%m/%d/%Y-%H:%M:%S", strict=False, time_unit="us")
        named_month = (pl.lit("1904 ") + text).str.to_datetime("%Y %b %e %H:%M:%S", strict=False, time_unit="us")
        stamps = matched.select(pl.coalesce(fractional, month_first, named_month))
        read = read.with_columns(stamp=stamps.to_series())
    return read


def _without_stamp(frame: pl.DataFrame) -> pl.DataFrame:
    """Return rows without any stamp in the same columns."""
    return frame.with_columns(
        stamp=pl.lit(None, pl.Datetime("us")), stamp_kind=pl.lit(0, pl.Int32), rank=pl.lit(None, pl.String)
    )


def _tagged(tag: str, number: pl.Expr) -> pl.Expr:
    """``001`` -> ``DP1``."""
    return pl.lit(tag) + number.cast(pl.Int64, strict=False).cast(pl.String)


_WRAPPED_AT = r"([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2})"
"""A wrapper's stamp in front of a record that has its own; engines print no T."""


def wrapper_gaps_s(records: pl.DataFrame) -> list[float]:
    """Return by how many seconds a wrapper's stamp differs from the record's own, of the first and the last with both.

    Parameters
    ----------
    records : DataFrame
        As `read_prefixes` returns them.
    """
    has_own = pl.col("stamp_kind").is_in([FULL, NO_YEAR]) & pl.col("stamp").is_not_null()
    both = records.filter(has_own & pl.col("prefix").str.contains(_WRAPPED_AT))
    some = pl.concat([both.head(1), both.tail(1)])
    wrapper = some["prefix"].str.extract(_WRAPPED_AT).str.to_datetime("%Y-%m-%dT%H:%M:%S", strict=False, time_unit="us")
    is_yearless = some["stamp"].dt.year() == 1904
    same_year = wrapper.dt.replace(year=1904).zip_with(is_yearless, wrapper)
    return ((same_year - some["stamp"]).dt.total_microseconds() / 1e6).drop_nulls().to_list()


_PERIODS_US = {NO_DATE: _DAY_US, NO_YEAR: 366 * _DAY_US}
"""After these a stamp without date, or without year, begins anew."""


def clock_without_wraps(tables: Sequence[pl.DataFrame]) -> pl.Expr | None:
    """Return what `unroll` makes of ``us`` where no stamp can have wrapped; None where one may have.

    Parameters
    ----------
    tables : sequence of DataFrame
        ``us`` and ``stamp_kind`` of all that is on one clock. Shown are the stamps as they are.
    """
    has_leap_day = False
    tables = [table[["us", "stamp_kind"]] for table in tables]
    kinds = {kind for table in tables for kind in distinct(table, "stamp_kind")}
    if kinds.isdisjoint(_PERIODS_US):
        return pl.col("us")
    for kind, period_us in ((kind, _PERIODS_US[kind]) for kind in kinds & _PERIODS_US.keys()):
        is_alone = len(kinds) == 1
        stamps = [(table if is_alone else table.filter(pl.col("stamp_kind") == kind))["us"] for table in tables]
        ends = [end for us in stamps for end in (us.min(), us.max()) if end is not None]
        if ends and max(ends) - min(ends) > _HALF * period_us:  # type: ignore[operator]
            return None
        if kind == NO_YEAR:
            has_leap_day = any(us.is_between(_LEAP_DAY_US, _LEAP_DAY_US + _DAY_US, "left").any() for us in stamps)
    if has_leap_day:
        return pl.col("us")
    is_later = (pl.col("stamp_kind") == NO_YEAR) & (pl.col("us") > _LEAP_DAY_US)
    return pl.when(is_later).then(pl.col("us") - _DAY_US).otherwise("us")


def unroll(stamp_us: np.ndarray, kind: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Carry stamps without date over midnight and stamps without year over New Year.

    Parameters
    ----------
    stamp_us : array of int
        Microseconds since 1970 of the stamps as `read_prefixes` completes them, in the order of the lines.
    kind : array of int
        NO_DATE, NO_YEAR, FULL or WRAPPER per stamp.

    Returns
    -------
    shown_us, clock_us : arrays of int
        The stamps with whole days or years added after each wrap, and the same as a clock whose differences are
        seconds: years that were not printed are no leap years unless a stamp falls on 29 February.
    """
    shown, clock = stamp_us.copy(), stamp_us.copy()
    is_dated = kind == NO_YEAR
    has_leap_day = bool(np.any(is_dated & (stamp_us >= _LEAP_DAY_US) & (stamp_us < _LEAP_DAY_US + _DAY_US)))
    if not has_leap_day:
        clock[is_dated & (stamp_us > _LEAP_DAY_US)] -= _DAY_US
    year_us = (366 if has_leap_day else 365) * _DAY_US
    for which, clock_period in ((NO_DATE, _DAY_US), (NO_YEAR, year_us)):
        shown_period = _PERIODS_US[which]
        rows = np.flatnonzero(kind == which)
        steps = np.diff(stamp_us[rows], prepend=stamp_us[rows[:1]])
        falls, rises = steps < -_HALF * shown_period, steps > _HALF * shown_period
        if falls.any() or rises.any():
            wraps: np.ndarray = np.cumsum(falls) - np.cumsum(rises)
            shown[rows] += np.maximum(wraps, 0) * shown_period
            clock[rows] += np.maximum(wraps, 0) * clock_period
    return shown, clock
