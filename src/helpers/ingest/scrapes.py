"""Counter scrapes in time: Prometheus or OpenMetrics pages one after another, or a Prometheus range query.

Only the series that a caller wants are kept, so that a day of scrapes each second fits into memory.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl

from helpers.ingest.export_scan import EPOCH, MAX_UNIX_S, ExportScan, whole_text
from helpers.ingest.lines import FileReader, split_lines
from helpers.ingest.stamps import FULL
from helpers.schema import LogFormatError

_SAMPLE = (
    r"^([a-zA-Z_:][a-zA-Z0-9_:]*)(\{.*\})?[ \t]+([+-]?(?:[0-9.]+(?:[eE][+-]?[0-9]+)?|Inf|inf|NaN|nan))"
    r"(?:[ \t]+([0-9.]+(?:[eE][+]?[0-9]+)?))?[ \t]*(?:# .*)?\s*$"
)
"""A sample line: name, labels, value, optional time (OpenMetrics may append an exemplar)."""

_META = r"^# (?:HELP|TYPE|UNIT)\b"
_EOF = r"^# EOF\b"
_EPOCH = r"(?:^|[^0-9.])(1[0-9]{9}(?:\.[0-9]+)?|1[0-9]{12}|1[0-9]{15}|1[0-9]{18})(?:[^0-9.]|\.?$)"
_ISO = r"([0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}:[0-9]{2}(?:[.,][0-9]+)?(?:Z|[+-][0-9]{2}:?[0-9]{2})?)"
_DATE = re.compile(r"[A-Z][a-z]{2} ([A-Z][a-z]{2} +\d{1,2} \d{2}:\d{2}:\d{2}) (?:UTC|GMT) (\d{4})")
"""What `date` prints where the clock is UTC."""

_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')
_WHITE = r"^\s*$"

_LONG = {"line_no": pl.Int64, "scrape": pl.Int64, "key": pl.String, "value": pl.Float64, "time_s": pl.Float64}


@dataclass
class Scrapes:
    """Wanted samples of a file.

    Attributes
    ----------
    values : DataFrame
        line_no, scrape (counted from 0 in the order of the file), key (name and labels as printed), value.
    times : DataFrame
        scrape, line_no (where it begins), time_s (since 1970; of a clock without zone: as if it were UTC).
    stamp_kind : int
        EPOCH, or FULL where the times are local.
    n_untimed : int
        Pages with wanted samples but without a time.
    """

    values: pl.DataFrame
    times: pl.DataFrame
    stamp_kind: int = EPOCH
    n_untimed: int = 0


@dataclass
class _Reading:
    """State carried from chunk to chunk."""

    n_marks: int = 0
    is_local: bool = False
    values: list[pl.DataFrame] = field(default_factory=list)
    marks: list[tuple[int, float]] = field(default_factory=list)


def read_labels(key: str) -> tuple[str, dict[str, str]]:
    """Split a printed series into name and labels: ``a{b="1"}`` -> ("a", {"b": "1"})."""
    name, _, labels = key.partition("{")
    return name, {match[1]: match[2].replace(r"\"", '"').replace(r"\\", "\\") for match in _LABEL.finditer(labels)}


def read_pages(scan: ExportScan, wanted: Collection[str]) -> Scrapes:
    """Read scrape pages; every line of the file is counted into ``scan``.

    Parameters
    ----------
    scan : ExportScan
        Of the file; its size, hash, lines and oddities are filled in.
    wanted : collection of str
        Metric names to keep.

    Notes
    -----
    A page begins at a line that tells a time and is no sample (a comment, a bare number, what `date` prints).
    Without such lines a page is what carries the same time behind its values.
    """
    reader = FileReader(scan.path)
    state = _Reading()
    for chunk in reader.chunks():
        _read_lines(scan, state, split_lines(chunk), list(wanted), last=chunk.last_line_no if chunk.ends_open else None)
    scan.oddities.update(reader.oddities)
    scan.n_lines, scan.n_bytes, scan.digest = reader.n_lines, reader.n_bytes, reader.digest
    values = pl.concat([pl.DataFrame(schema=_LONG), *state.values])
    if state.marks:
        marks = pl.DataFrame(state.marks, schema={"line_no": pl.Int64, "time_s": pl.Float64}, orient="row")
        times = marks.with_row_index("scrape").with_columns(pl.col("scrape").cast(pl.Int64))
        n_untimed = int(values["scrape"].eq(-1).sum() > 0)
        values = values.filter(pl.col("scrape") >= 0)
    else:
        n_untimed = int(values["time_s"].is_null().any())
        values, times = _by_printed_time(values.filter(pl.col("time_s").is_not_null()))
    return Scrapes(values.drop("time_s"), times, FULL if state.is_local else EPOCH, n_untimed)


def _read_lines(
    scan: ExportScan, state: _Reading, lines: pl.DataFrame, wanted: list[str], last: int | None
) -> None:
    """Place the lines of one chunk: samples wanted and unwanted, what describes them, times, and all others."""
    text = pl.col("text")
    # a series without a space in its labels, by far the most, needs no look at the whole line
    name = text.str.extract(r"^([a-zA-Z_:][a-zA-Z0-9_:]*)[ {\t]")
    lines = lines.with_columns(name=name)
    is_wanted = lines["name"].is_in(wanted)
    is_sample = lines["name"].is_not_null() & ~is_wanted
    other = lines.filter(lines["name"].is_null())
    plain = lines.filter(is_sample)
    looks = plain["text"].str.contains(r"[0-9fN]\s*$") if len(plain) else pl.Series([], dtype=pl.Boolean)
    odd = plain.filter(~looks)
    scan.know("other metric", int(looks.sum()))
    _keep_marks(scan, state, pl.concat([other, odd]).sort("line_no").select("line_no", "text"))
    mine = lines.filter(is_wanted).with_columns(found=text.str.extract_groups(_SAMPLE))
    group = pl.col("found").struct
    mine = mine.select(
        "line_no", "text", key=pl.col("name") + group.field("2").fill_null(""),
        value=group.field("3").cast(pl.Float64, strict=False), time_s=group.field("4").cast(pl.Float64, strict=False),
    )
    scan.know("metric without a value (NaN)", int(mine["value"].is_nan().sum()))
    mine = mine.filter(pl.col("value").is_nan().fill_null(False).not_())
    bad = mine.filter(pl.col("value").is_finite().not_().fill_null(True) | (pl.col("line_no") == (last or -1)))
    for line_no, line in bad.select("line_no", "text").iter_rows():
        reason = "the last line has no line feed and may be cut" if line_no == last else "its value is no finite number"
        scan.malform(line_no, line, reason)
    good = mine.join(bad.select("line_no"), on="line_no", how="anti") if len(bad) else mine
    scan.lines["statistic"] += len(good)
    starts = pl.Series([line_no for line_no, _ in state.marks], dtype=pl.Int64)
    index = np.searchsorted(starts.to_numpy(), good["line_no"].to_numpy(), side="right") - 1
    state.values.append(good.with_columns(scrape=pl.Series(index, dtype=pl.Int64)).select(list(_LONG)))


def _keep_marks(scan: ExportScan, state: _Reading, lines: pl.DataFrame) -> None:
    """Place the lines that are no samples; those that tell a time begin a page."""
    text = lines["text"]
    is_meta = text.str.contains(_META)
    is_end = text.str.contains(_EOF) | text.str.contains(_WHITE)
    scan.know("description of a metric", int(is_meta.sum()))
    scan.know("end of a page or empty line", int(is_end.sum()))
    for line_no, line in lines.filter(~is_meta & ~is_end).iter_rows():
        time_s, is_local = read_mark(line)
        if time_s is None:
            scan.lines["other"] += 1
            if len(scan.unplaced) < 3:
                scan.unplaced.append(line[:120])
            continue
        scan.know("time of a scrape")
        state.is_local = state.is_local or is_local
        state.marks.append((line_no, time_s))


_EPOCH_PATTERN = re.compile(_EPOCH)
_ISO_PATTERN = re.compile(_ISO)


def read_mark(line: str) -> tuple[float | None, bool]:
    """Return the time that a line between two pages tells, and whether it is local (no zone).

    Parameters
    ----------
    line : str
        ``# scrape_unix_time 1795961563.58``, ``1795961563``, ``2026-11-29T14:12:43Z``, or as `date` prints it.
    """
    line = line[:500]
    if match := _EPOCH_PATTERN.search(line):
        number = match[1]
        digits = len(number.partition(".")[0])
        return float(number) / {10: 1.0, 13: 1e3, 16: 1e6, 19: 1e9}[digits], False
    if match := _ISO_PATTERN.search(line):
        try:
            parsed = datetime.datetime.fromisoformat(match[1].replace(",", "."))
        except ValueError:
            return None, False
        is_local = parsed.tzinfo is None
        return parsed.replace(tzinfo=parsed.tzinfo or datetime.UTC).timestamp(), is_local
    if match := _DATE.search(line):
        try:
            parsed = datetime.datetime.strptime(f"{match[1]} {match[2]}", "%b %d %H:%M:%S %Y")
        except ValueError:
            return None, False
        return parsed.replace(tzinfo=datetime.UTC).timestamp(), False
    return None, False


def _by_printed_time(values: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Count pages by the time behind their values: milliseconds in Prometheus's text, seconds in OpenMetrics."""
    values = values.filter(pl.col("time_s").is_finite() & pl.col("value").is_finite())
    scaled = values.with_columns(
        time_s=pl.when(pl.col("time_s") > MAX_UNIX_S).then(pl.col("time_s") / 1e3).otherwise(pl.col("time_s"))
    ).filter(pl.col("time_s").is_between(0, MAX_UNIX_S))
    times = scaled.group_by("time_s").agg(line_no=pl.col("line_no").min()).sort("time_s")
    times = times.with_row_index("scrape").with_columns(pl.col("scrape").cast(pl.Int64))
    numbered = scaled.drop("scrape").join(times.select("scrape", "time_s"), on="time_s", maintain_order="left")
    return numbered.select(list(_LONG)), times.select("scrape", "line_no", "time_s")


def read_range_query(scan: ExportScan, wanted: Collection[str]) -> Scrapes:
    """Read the answer of Prometheus's ``/api/v1/query_range`` (one JSON object; each series is counted as a line).

    Raises
    ------
    LogFormatError
        The file is no whole answer, or an error's.
    """
    text = whole_text(scan, "a range query's answer", "query a shorter range")
    try:
        answer: Any = json.loads(text)
        series = answer["data"]["result"]
        is_matrix = isinstance(series, list) and all(isinstance(s, dict) for s in series)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise LogFormatError(
            f"{scan.path}: expected the whole answer of a Prometheus range query, found none ({type(error).__name__}); "
            "save the answer of /api/v1/query_range again"
        ) from error
    if not is_matrix:
        raise LogFormatError(f"{scan.path}: expected a list of series under data.result, found none; query a range")
    scan.n_lines = len(series)
    scan.notes.append(f"{scan.path}: one JSON answer; its {len(series)} series are counted in place of lines")
    rows = [row for number, one in enumerate(series, 1) for row in _series_rows(scan, number, one, wanted)]
    columns = {"line_no": pl.Int64, "key": pl.String, "time_s": pl.Float64, "value": pl.Float64}
    values = pl.DataFrame(rows, schema=columns, orient="row").with_columns(scrape=pl.lit(0, pl.Int64))
    numbered, times = _by_printed_time(values.select(list(_LONG)))
    return Scrapes(numbered.drop("time_s"), times)


def _series_rows(
    scan: ExportScan, number: int, one: dict[str, Any], wanted: Collection[str]
) -> list[tuple[int, str, float, float]]:
    """Return the values of one series of a range query, if it is wanted."""
    metric = one.get("metric")
    name = metric.get("__name__") if isinstance(metric, dict) else None
    if name not in wanted or not isinstance(metric, dict):
        scan.know("other metric")
        return []
    labels = ",".join(f'{key}="{value}"' for key, value in sorted(metric.items()) if key != "__name__")
    key = f"{name}{{{labels}}}" if labels else str(name)
    try:
        rows = [(number, key, float(time_s), float(value)) for time_s, value in one["values"]]
    except (KeyError, TypeError, ValueError) as error:
        scan.malform(number, str(one)[:200], f"its values are no [time, number] pairs ({type(error).__name__})")
        return []
    scan.lines["statistic"] += 1
    return rows

