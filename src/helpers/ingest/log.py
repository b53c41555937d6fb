"""`read_log`: from whatever holds a server log to SAMPLES, EVENTS, facts and the accounting of every line."""

from __future__ import annotations

import functools
import json
import os
from collections import Counter
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import polars as pl

from helpers.ingest import facts as facts_of
from helpers.ingest import stamps
from helpers.ingest.accounting import CLASSES, MAX_EXAMPLES, Accounting
from helpers.ingest.events import INTERNAL_KINDS, Event, number_lives, settle
from helpers.ingest.scan import FileScan, scan_file
from helpers.ingest.sources import Source, SourceLike, find_inputs, stem_of
from helpers.ingest.speculation import join_speculation
from helpers.ingest.table import is_table
from helpers.schema import EVENTS, SAMPLES, LogFormatError, check, conform

_TELLING_KINDS = ["prefill", "decode", "stats", "iteration"]
"""Kinds that make a file a server log; a lone spec line is what a client's note quotes."""

_MAX_BACK_US = 60 * 10**6
"""Ranks and processes interleave by seconds; a larger step back is a clock that was set or logs put together."""

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Log:
    """What a log says.

    Attributes
    ----------
    samples : DataFrame, schema SAMPLES
    events : DataFrame, schema EVENTS
    accounting : Accounting
        Where every line went.
    facts : tuple of dict
        One per server life, indexed by ``server_life``; only what the start-up lines say.
    engine : str
        sglang or vllm: the one with most records.
    engine_version : str or None
        As printed at start-up; SGLang prints none.
    sources : tuple of Source
    """

    samples: pd.DataFrame
    events: pd.DataFrame
    accounting: Accounting
    facts: tuple[dict[str, Any], ...]
    engine: str
    engine_version: str | None
    sources: tuple[Source, ...]


@dataclass
class _Part:
    """One file, ready to be put on the common clock and among the lives of the input."""

    scan: FileScan
    samples: pl.DataFrame
    events: pl.DataFrame
    engine: str | None
    notes: list[str]

    @property
    def span_us(self) -> tuple[int, int] | None:
        """First and last stamp."""
        stamped = pl.concat([self.samples["us"], self.events["us"]]).drop_nulls()
        return (int(stamped.min()), int(stamped.max())) if len(stamped) else None  # type: ignore[arg-type]


def read_log(source: SourceLike | Sequence[SourceLike], *, progress: Progress | None = None) -> Log:
    """Read one or several server logs of SGLang or vLLM.

    Parameters
    ----------
    source : str, path or sequence of them
        File (plain, .gz, .zst), folder (searched recursively), glob, or '-' for standard input.
    progress : callable, optional
        Called with (bytes read, bytes in all; 0 if unknown) as reading goes on.

    Returns
    -------
    Log

    Raises
    ------
    LogFormatError
        An input is missing, empty, binary or damaged, or no line of it is a statistic.

    Notes
    -----
    Memory is bounded by a chunk of text plus the records read. ``t_s`` counts from the first stamp of the whole
    input. A file continues the server life of the file before it only if it is a rotated part of the same log
    (same name but for numbers, no start-up line before its first statistic, beginning where the other ends); every
    other file begins a new life, so logs of the ranks of one server should be concatenated to be read as one.
    A wrapper's time stamp is used only in files whose statistic lines carry none of their own.
    """
    inputs = find_inputs(source)
    sizes = [os.path.getsize(path) if path != "-" else 0 for path in inputs.paths]
    parts, notes = [], list(inputs.notes)
    for index, path in enumerate(inputs.paths):
        report = functools.partial(_report, progress, sum(sizes[:index]), sum(sizes)) if progress else None
        scan = scan_file(path, report)
        has_statistics = any(frame["kind"].is_in(_TELLING_KINDS).any() for frame in scan.samples)
        if not has_statistics and (inputs.is_searched or len(inputs.paths) > 1) and not scan.lines["malformed"]:
            notes.append(f"skipped {path}: no statistic line among {scan.n_lines} lines ({_nearest(scan)})")
            continue
        if not has_statistics and is_table(path):
            raise LogFormatError(f"{path}: expected a server log, found a table of levels; give it to `rooflog fit`")
        if not has_statistics:
            raise LogFormatError(_no_statistics(scan))
        parts.append(_prepare(scan))
    if not parts:
        raise LogFormatError(
            f"{', '.join(inputs.paths)}: expected statistic lines of SGLang or vLLM, found none; {notes[-1]}"
        )
    return _combine(_in_time_order(parts) if inputs.is_searched else parts, notes)


def _report(progress: Progress, done_before: int, total: int, done: int) -> None:
    """Pass on how much of all inputs has been read."""
    progress(done_before + done, total)


def _prepare(scan: FileScan) -> _Part:
    """Put one file's records into one table and on one clock."""
    samples = pl.concat(scan.samples).with_columns(pl.col("stamp").cast(pl.Int64).alias("us"))
    samples = join_speculation(samples)
    engine = samples["engine"].value_counts(sort=True)["engine"][0]
    events = _event_stamps(scan.events)
    has_own = bool(samples["stamp_kind"].is_in([stamps.FULL, stamps.NO_YEAR, stamps.NO_DATE]).any())
    if has_own:
        samples, events = (_without_wrapper_stamps(table) for table in (samples, events))
    samples, events = _unroll(samples, events)
    return _Part(scan, samples, events, engine, _doubts(scan.path, samples))


def _doubts(path: str, samples: pl.DataFrame) -> list[str]:
    """Say where the clock of the log was set back."""
    stamped = samples.filter(pl.col("us").is_not_null()).with_columns(step=pl.col("us").diff().over("stamp_kind"))
    back = stamped.filter(pl.col("step") < -_MAX_BACK_US)
    if back.is_empty():
        return []
    line_no, step = back.select("line_no", "step").row(0)
    return [f"{path}: time stamps jump back {len(back)} times, first by {-step / 1e6:g} s at line {line_no}"]


def _event_stamps(events: list[Event]) -> pl.DataFrame:
    """Read stamp and rank of the events."""
    columns = {"line_no": pl.Int64, "text": pl.String, "prefix": pl.String}
    rows = [(event.line_no, event.text, event.text[: event.start]) for event in events]
    table = stamps.read_prefixes(pl.DataFrame(rows, schema=columns, orient="row"))
    return table.select("line_no", "stamp", "stamp_kind", "rank").with_columns(us=pl.col("stamp").cast(pl.Int64))


def _without_wrapper_stamps(table: pl.DataFrame) -> pl.DataFrame:
    is_wrapper = pl.col("stamp_kind") == stamps.WRAPPER
    return table.with_columns(
        us=pl.when(~is_wrapper).then("us"), stamp_kind=pl.when(is_wrapper).then(0).otherwise("stamp_kind")
    )


def _unroll(samples: pl.DataFrame, events: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Carry midnight and New Year over records and events together, in the order of the lines."""
    both = pl.concat([
        samples.select("line_no", "us", "stamp_kind", is_event=pl.lit(False)).with_row_index("row"),
        events.select("line_no", "us", "stamp_kind", is_event=pl.lit(True)).with_row_index("row"),
    ]).sort("line_no", maintain_order=True)
    stamped = both.filter(pl.col("us").is_not_null())
    shown, clock = stamps.unroll(stamped["us"].to_numpy(), stamped["stamp_kind"].to_numpy())
    stamped = stamped.with_columns(us=pl.Series(clock, dtype=pl.Int64), shown=pl.Series(shown, dtype=pl.Int64))
    tables = []
    for table, is_event in ((samples, False), (events, True)):
        mine = stamped.filter(pl.col("is_event") == is_event).select("row", "us", "shown")
        tables.append(table.with_row_index("row").drop("us").join(mine, on="row", how="left").sort("row").drop("row"))
    return tables[0], tables[1]


def _in_time_order(parts: list[_Part]) -> list[_Part]:
    """Order files that were found, not named, by their first stamp; files without one keep their place at the end."""
    return sorted(parts, key=lambda part: (part.span_us is None, part.span_us or (0, 0)))


def _combine(parts: list[_Part], notes: list[str]) -> Log:
    """Count the lives over all files, set the origin of the clock and build the tables."""
    all_events: list[Event] = []
    samples, events, engines = [], [], Counter[str]()
    life = -1
    before: _Part | None = None
    for part in parts:
        first_life = life if before is not None and _continues(part, before) else life + 1
        begins = number_lives(part.scan.events, part.samples["line_no"].to_list(), first_life)
        life = begins[-1][1]
        starts = np.array([line_no for line_no, _ in begins])
        numbers = np.searchsorted(starts, part.samples["line_no"].to_numpy(), side="right") - 1 + first_life
        path = pl.lit(part.scan.path)
        samples.append(part.samples.with_columns(server_life=pl.Series(numbers), file=path))
        events.append(part.events.with_columns(file=path))
        all_events += part.scan.events
        engines.update(dict(part.samples["engine"].value_counts().iter_rows()))
        notes += part.notes
        before = part
    engine = engines.most_common(1)[0][0]
    if len(engines) > 1:
        notes.append(f"records of more than one engine: {dict(engines)}")
    table, stamped = pl.concat(samples), pl.concat(events)
    table, stamped = _count_seconds(table, stamped, notes)
    kept = _settled(parts)
    facts = _facts(all_events, parts, life + 1)
    version = next((fact["engine_version"] for fact in facts if "engine_version" in fact), None)
    return Log(
        samples=_to_samples(table),
        events=_to_events(kept, stamped),
        accounting=_account(parts, table, notes),
        facts=facts,
        engine=engine,
        engine_version=version,
        sources=tuple(Source(p.scan.path, p.scan.sha256, p.scan.n_bytes) for p in parts),
    )


def _continues(part: _Part, before: _Part) -> bool:
    """Tell whether a file is the next rotated part of the log before it."""
    first_record = part.samples["line_no"][0]
    starts_up = any(event.kind in ("args", "banner") and event.line_no < first_record for event in part.scan.events)
    names = [stem_of(os.path.realpath(p.scan.path)) for p in (before, part)]
    spans = before.span_us, part.span_us
    follows = spans[0] is None or spans[1] is None or spans[1][0] >= spans[0][1]
    return names[0] == names[1] and not starts_up and follows


def _count_seconds(samples: pl.DataFrame, events: pl.DataFrame, notes: list[str]) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Add ``t_s``: seconds since the first stamp of the input, per kind of stamp, never anything else."""
    origin = (
        pl.concat([samples.select("stamp_kind", "us"), events.select("stamp_kind", "us")])
        .drop_nulls().group_by("stamp_kind").agg(origin=pl.col("us").min())
    )
    if len(origin) > 1:
        notes.append("time stamps of different kinds (with and without date or year): t_s counts per kind")
    n_unstamped = samples["us"].null_count()
    if n_unstamped:
        notes.append(f"{n_unstamped} of {len(samples)} records carry no time stamp: t_s is missing there")
    return tuple(  # type: ignore[return-value]
        table.join(origin, on="stamp_kind", how="left", maintain_order="left").with_columns(
            t_s=(pl.col("us") - pl.col("origin")) / 1e6, ts=pl.col("shown").cast(pl.Datetime("us"))
        )
        for table in (samples, events)
    )


def _settled(parts: list[_Part]) -> list[tuple[int, Event]]:
    """Return the events of all files with their row in the table of stamps."""
    kept, offset = [], 0
    for part in parts:
        rows = {id(event): offset + index for index, event in enumerate(part.scan.events)}
        settled = [event for event in settle(part.scan.events, part.engine) if event.kind not in INTERNAL_KINDS]
        kept += [(rows.pop(id(event)), event) for event in settled]
        n_dropped = sum(event.is_counted for event in part.scan.events if id(event) in rows)
        part.scan.lines.update(event=-n_dropped, other_known=n_dropped)
        offset += len(part.scan.events)
    return kept


def _facts(events: list[Event], parts: list[_Part], n_lives: int) -> tuple[dict[str, Any], ...]:
    """Collect the facts of every life."""
    engine_of = {id(event): part.engine for part in parts for event in part.scan.events}
    lives: list[list[Event]] = [[] for _ in range(n_lives)]
    for event in events:
        lives[event.life].append(event)
    return tuple(
        facts_of.collect_facts(life, engine_of[id(life[0])]) if life else {} for life in lives
    )


def _to_samples(table: pl.DataFrame) -> pd.DataFrame:
    """Return SAMPLES in the order of files and lines."""
    ordered = table.select(column.name for column in SAMPLES.columns)
    return check(_to_pandas(ordered, nullable={c.name for c in SAMPLES.columns if c.dtype == "Int64"}), SAMPLES)


def _to_pandas(table: pl.DataFrame, nullable: Container[str] = ()) -> pd.DataFrame:
    """Convert without passing whole numbers through floats and without copying twice."""
    columns: dict[str, Any] = {}
    for column in table.iter_columns():
        if column.name in nullable:
            numbers = column.fill_null(0).cast(pl.Int64).to_numpy(writable=True)
            columns[column.name] = pd.arrays.IntegerArray(numbers, column.is_null().to_numpy(writable=True))
        elif column.dtype == pl.Boolean:
            flags = column.fill_null(False).to_numpy(writable=True)
            columns[column.name] = pd.arrays.BooleanArray(flags, column.is_null().to_numpy(writable=True))
        elif column.dtype == pl.String:
            columns[column.name] = pd.Series(column.to_arrow(), dtype="str")
        else:
            columns[column.name] = column.to_pandas()
    return pd.DataFrame(columns, copy=False)


def _to_events(kept: list[tuple[int, Event]], stamped: pl.DataFrame) -> pd.DataFrame:
    """Return EVENTS in the order of files and lines."""
    rows = [row for row, _ in kept]
    where = _to_pandas(stamped[rows].select("file", "line_no", "ts", "t_s", "rank"))
    found = pd.DataFrame({
        "engine": pd.Series([event.engine for _, event in kept], dtype="str"),
        "server_life": pd.Series([event.life for _, event in kept], dtype="int64"),
        "kind": pd.Series([event.kind for _, event in kept], dtype="str"),
        "size_bytes": pd.Series([event.detail.get("size_bytes", np.nan) for _, event in kept], dtype="float64"),
        "detail": pd.Series([_detail(event) for _, event in kept], dtype="str"),
        "text": pd.Series([event.text for _, event in kept], dtype="str"),
    })
    return conform(pd.concat([where, found], axis="columns"), EVENTS)


def _detail(event: Event) -> str | None:
    """Return the values read from an event as JSON; of a dump only that it is one (its values are in the facts)."""
    detail = {name: value for name, value in event.detail.items() if name != "size_bytes"}
    if event.kind == "args":
        detail["n_arguments"] = len(event.args)
    return json.dumps(detail) if detail else None


def _account(parts: list[_Part], table: pl.DataFrame, notes: list[str]) -> Accounting:
    """Add up the lines of all files."""
    lines, oddities, known = Counter[str](), Counter[str](), Counter[str]()
    for part in parts:
        lines.update(part.scan.lines)
        known.update(part.scan.known)
        oddities.update(part.scan.oddities)
    return Accounting(
        lines_total=sum(part.scan.n_lines for part in parts),
        lines={name: lines[name] for name in CLASSES},
        by_kind=dict(sorted(table["kind"].value_counts().iter_rows())),
        per_file={part.scan.path: {name: part.scan.lines[name] for name in CLASSES} for part in parts},
        known=dict(known.most_common()),
        malformed=tuple(line for part in parts for line in part.scan.malformed)[:MAX_EXAMPLES],
        oddities={name: count for name, count in sorted(oddities.items()) if count},
        notes=tuple(notes),
    )


def _nearest(scan: FileScan) -> str:
    """Say what a file without statistics holds instead."""
    foreign = [(count, name) for name, count in scan.known.items() if name.endswith("statistic")]
    if foreign:
        count, name = max(foreign)
        return f"nearest: {count} lines of {name}, an engine not read here"
    kinds = Counter(event.kind for event in scan.events if event.kind not in INTERNAL_KINDS)
    if kinds:
        return "nearest: server events " + ", ".join(f"{kind} x{count}" for kind, count in kinds.most_common(5))
    if scan.known:
        name, count = scan.known.most_common(1)[0]
        return f"nearest: {count} lines of kind {name}"
    return "nothing of a server log in it"


def _no_statistics(scan: FileScan) -> str:
    """Word the error of a log without statistics."""
    message = (
        f"{scan.path}: expected statistic lines ('Decode batch' of SGLang, 'Avg prompt throughput' of vLLM), "
        f"found none in {scan.n_lines} lines; {_nearest(scan)}"
    )
    if scan.malformed:
        first = scan.malformed[0]
        message += f"; {scan.lines['malformed']} malformed, the first in line {first.line_no}: {first.reason}"
    elif scan.unplaced:
        message += "; first unread lines: " + " | ".join(scan.unplaced)
    return message + (
        ". Check that it is the server's log, that it was not started with --disable-log-stats or a log level above "
        "info, and that requests were served"
    )
