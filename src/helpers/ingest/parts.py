"""One file, ready to be put on the common clock and among the lives of the input."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import polars as pl
import pyarrow as pa

from helpers.ingest import stamps
from helpers.ingest.chunk_scan import whole_table
from helpers.ingest.distinct import count_values, distinct, n_distinct
from helpers.ingest.engines import DIALECTS
from helpers.ingest.events import Event
from helpers.ingest.export_scan import ExportScan
from helpers.ingest.scan import MAX_RANKS, FileScan
from helpers.ingest.speculation import join_speculation
from helpers.ingest.workers import tell_apart

_MAX_BACK_US = 60 * 10**6
"""Ranks and processes interleave by seconds; a larger step back is a clock that was set or logs put together."""


@dataclass
class Part:
    """One file, ready to be put on the common clock and among the lives of the input."""

    scan: FileScan
    samples: pl.DataFrame
    events: pl.DataFrame
    engine: str | None
    notes: list[str]
    n_of_engine: dict[str, int]
    """Records of each engine, the most frequent first."""
    moments: pl.DataFrame | None = None

    @property
    def span_us(self) -> tuple[int, int] | None:
        """First and last stamp."""
        stamped = pl.concat([self.samples["us"], self.events["us"]]).drop_nulls()
        return (int(stamped.min()), int(stamped.max())) if len(stamped) else None  # type: ignore[arg-type]


def prepare(scan: FileScan) -> Part:
    """Put one file's records into one table and on one clock."""
    samples = whole_table(scan.samples).with_columns(pl.col("stamp").cast(pl.Int64).alias("us"))
    told: list[str] = []
    if not isinstance(scan, ExportScan):
        samples, told = tell_apart(samples)
        samples = join_speculation(samples)
        engines = distinct(samples, "engine")
        for finish in (dialect.finish for dialect in DIALECTS if dialect.engine in engines):
            samples = finish(samples) if finish is not None else samples
    n_of_engine = dict(sorted(count_values(samples, "engine").items(), key=lambda item: (-item[1], item[0])))
    engine = next(iter(n_of_engine))
    events = _event_stamps(scan.events)
    kinds = set(distinct(samples, "stamp_kind"))
    has_own = not kinds.isdisjoint([stamps.FULL, stamps.NO_YEAR, stamps.NO_DATE])
    if has_own and (stamps.WRAPPER in kinds or stamps.WRAPPER in distinct(events, "stamp_kind")):
        samples, events = (_without_wrapper_stamps(table) for table in (samples, events))
    samples, events = _unroll(samples, events)
    samples = samples[[name for name in samples.columns if name not in ("stamp", "part", "label")]]
    scan = replace(scan, samples=[])  # what a part holds is in its tables
    if isinstance(scan, ExportScan):
        moments = pl.concat(scan.moments) if scan.moments else None
        if moments is not None:
            moments = moments.with_columns(us=pl.col("stamp").cast(pl.Int64), shown=pl.col("stamp").cast(pl.Int64))
        return Part(scan, samples, events, engine, list(scan.notes), n_of_engine, moments)
    return Part(scan, samples, events, engine, [*scan.notes, *told, *_doubts(scan.path, samples)], n_of_engine)


def _doubts(path: str, samples: pl.DataFrame) -> list[str]:
    """Say where the clock of the log was set back, and where there are more rank tags than a server has."""
    n_ranks = n_distinct(samples, "rank")
    doubts = [] if n_ranks <= MAX_RANKS else [
        f"{path}: {n_ranks} different rank tags, more than the {MAX_RANKS} that any server has: something else wrote "
        "them"
    ]
    steps = _steps_back(samples)
    if not steps:
        return doubts
    line_no, step = steps[0]
    return [*doubts, f"{path}: time stamps jump back {len(steps)} times, first by {-step / 1e6:g} s at line {line_no}"]


def _steps_back(samples: pl.DataFrame) -> list[tuple[int, int]]:
    """Return line number and size [us] of each large step back of the clock, per kind of stamp."""
    found: list[tuple[int, int]] = []
    stamped = samples[["line_no", "us", "stamp_kind"]]
    if stamped["us"].has_nulls():
        stamped = stamped.filter(pl.col("us").is_not_null())
    elif stamped["us"].is_sorted():
        return found
    kinds = distinct(stamped, "stamp_kind")
    for kind in kinds:
        mine = stamped if len(kinds) == 1 else stamped.filter(pl.col("stamp_kind") == kind)
        steps = mine["us"].diff()
        back = (steps < -_MAX_BACK_US).arg_true()
        found += zip(mine["line_no"].gather(back), steps.gather(back), strict=True)
    return sorted(found)


def _event_stamps(events: list[Event]) -> pl.DataFrame:
    """Read stamp and rank of the events."""
    columns = {"line_no": pl.Int64, "text": pl.String, "prefix": pl.String}
    rows = [(event.line_no, event.text, event.text[: event.start]) for event in events]
    table = stamps.read_prefixes(pl.DataFrame(rows, schema=columns, orient="row"))
    return table.select("line_no", "stamp", "stamp_kind", "rank", us=pl.col("stamp").cast(pl.Int64))


def _without_wrapper_stamps(table: pl.DataFrame) -> pl.DataFrame:
    is_wrapper = pl.col("stamp_kind") == stamps.WRAPPER
    return table.with_columns(
        us=pl.when(~is_wrapper).then("us"), stamp_kind=pl.when(is_wrapper).then(0).otherwise("stamp_kind")
    )


def _unroll(samples: pl.DataFrame, events: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Carry midnight and New Year over records and events together, in the order of the lines."""
    clock = stamps.clock_without_wraps([samples, events])
    if clock is not None:
        return samples.with_columns(shown="us", us=clock), events.with_columns(shown="us", us=clock)
    us = np.concatenate([table["us"].fill_null(0).to_numpy() for table in (samples, events)])
    is_missing = np.concatenate([table["us"].is_null().to_numpy() for table in (samples, events)])
    kind = np.concatenate([table["stamp_kind"].to_numpy() for table in (samples, events)])
    line_no = np.concatenate([table["line_no"].to_numpy() for table in (samples, events)])
    stamped = np.argsort(line_no, kind="stable")
    del line_no
    stamped = stamped[~is_missing[stamped]]
    clock_us = us.copy()
    us[stamped], clock_us[stamped] = stamps.unroll(us[stamped], kind[stamped])
    columns = [pl.Series(name, pa.array(values, mask=is_missing)) for name, values in (("us", clock_us), ("shown", us))]
    n = len(samples)
    return samples.with_columns(each[:n] for each in columns), events.with_columns(each[n:] for each in columns)
