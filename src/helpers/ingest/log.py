"""`read_log`: from whatever holds a server log to SAMPLES, EVENTS, facts and the accounting of every line.

A file is a log of text lines (`scan`) or an export of another format (`exports`); both end in the same tables.
"""

from __future__ import annotations

import functools
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import polars as pl

from helpers import remote
from helpers.errors import RooflogError
from helpers.ingest import facts as facts_of
from helpers.ingest import lives
from helpers.ingest.accounting import Accounting, add_up
from helpers.ingest.cache import read_through
from helpers.ingest.distinct import count_values, distinct
from helpers.ingest.engines import DIALECTS
from helpers.ingest.events import INTERNAL_KINDS, Event, number_lives, settle
from helpers.ingest.export_scan import ExportScan
from helpers.ingest.exports import find_export
from helpers.ingest.log_tables import to_events, to_moments, to_samples
from helpers.ingest.nearest import NOTHING, describe_contents, describe_unread, expected_lines
from helpers.ingest.parts import Part, prepare
from helpers.ingest.scan import FileScan, scan_file
from helpers.ingest.sources import Inputs, Source, SourceLike, find_inputs, stem_of
from helpers.ingest.table import is_table
from helpers.ingest.urls import scan_copy, stored_bytes
from helpers.schema import MOMENTS, LogFormatError

LAW_KINDS = ("iteration", "counters", "decode", "stats", "request")
"""Kinds of records that a law can rest on, best first: single steps, counted steps, averages over steps, over windows,
over a whole request."""

_TELLING_KINDS = {*LAW_KINDS, "prefill"}
"""Kinds that make a file a server log; a lone spec line is what a client's note quotes."""

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
        The one with most records.
    engine_version : str or None
        As printed at start-up; SGLang prints none.
    sources : tuple of Source
    moments : DataFrame, schema MOMENTS
        Cumulative sums over decode steps, where a source holds them; else empty.
    source_kinds : tuple of str
        Kinds of records that a law can rest on, best first. `segment` uses the best one of each server life.
    """

    samples: pd.DataFrame
    events: pd.DataFrame
    accounting: Accounting
    facts: tuple[dict[str, Any], ...]
    engine: str
    engine_version: str | None
    sources: tuple[Source, ...]
    moments: pd.DataFrame = field(default_factory=MOMENTS.empty)
    source_kinds: tuple[str, ...] = ()


def read_log(
    source: SourceLike | Sequence[SourceLike], *, progress: Progress | None = None, cache: bool = True
) -> Log:
    """Read one or several server logs, or exports of the same servers (scrapes, snapshots, records of steps).

    Parameters
    ----------
    source : str, path or sequence of them
        File (plain, .gz, .zst), folder (searched recursively), glob, or '-' for standard input; URLs of these too.
    progress : callable, optional
        Called with (bytes read, bytes in all; 0 if unknown) as reading goes on.
    cache : bool
        Take what a file holds from the user's cache folder if it was read before, and keep it there (`cache`); the
        result is the same. The environment variable ROOFLOG_NO_CACHE=1 turns it off too.

    Returns
    -------
    Log

    Raises
    ------
    LogFormatError
        An input is missing, empty, binary or damaged, or no line of it is a statistic.
    RemoteError
        A URL cannot be reached or read, or holds credentials.
    RooflogError
        This process was forked from one that had read a log: the threads of polars are gone in it.

    Notes
    -----
    Memory is bounded by a chunk of text plus the records read. ``t_s`` counts from the first stamp of the whole
    input. A file continues the server life of the file before it only if it is a rotated part of the same log
    (same name but for numbers, no start-up line before its first statistic, beginning where the other ends); every
    other file begins a new life, so logs of the ranks of one server should be concatenated to be read as one.
    A wrapper's time stamp is used only in files whose statistic lines carry none of their own. An export belongs to
    the server life of a log of the same engine whose time it lies in, else to one of its own.
    """
    _refuse_forked()
    inputs = find_inputs(source, takes_urls=True)
    sizes = [stored_bytes(path) if progress else 0 for path in inputs.paths]
    parts, notes = [], list(inputs.notes)
    for index, path in enumerate(inputs.paths):
        report = functools.partial(_report, progress, sum(sizes[:index]), sum(sizes)) if progress else None
        part = _read_part(path, report, inputs, notes, cache=cache)
        if part is not None:
            parts.append(part)
    if not parts:
        raise LogFormatError(
            f"{', '.join(inputs.paths)}: expected statistic lines ({expected_lines()}), found none; {notes[-1]}"
        )
    return _combine(_in_time_order(parts) if inputs.is_searched else parts, notes)


_forks = {"has_read": False, "is_child": False}


def _after_fork() -> None:
    _forks["is_child"] = _forks["has_read"]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _refuse_forked() -> None:
    """Raise where polars would wait for ever for threads that its process never had."""
    if _forks["is_child"]:
        raise RooflogError(
            "this process was forked from one that had read a log, and the threads of polars do not come along; start "
            'it another way: multiprocessing.get_context("spawn")'
        )
    _forks["has_read"] = True


def _read_part(
    path: str, report: Callable[[int], None] | None, inputs: Inputs, notes: list[str], *, cache: bool
) -> Part | None:
    """Read one of the inputs; None if it is one to be skipped, with a note why."""
    is_alone = not inputs.is_searched and len(inputs.paths) == 1
    try:
        scan = _scan(path, report, cache=cache)
    except LogFormatError as error:
        if not inputs.is_searched or find_export(path) is None:
            raise
        notes.append(f"skipped {error}")
        return None
    if any(not _TELLING_KINDS.isdisjoint(distinct(frame, "kind")) for frame in scan.samples):
        return prepare(scan)
    if not is_alone and not scan.lines["malformed"]:
        notes.append(f"skipped {path}: no statistic line among {scan.n_lines} lines ({_nearest(scan)})")
        return None
    if is_table(path):
        raise LogFormatError(f"{path}: expected a server log, found a table of levels; give it to `rooflog fit`")
    raise LogFormatError(_no_statistics(scan))


def _scan(path: str, report: Callable[[int], None] | None, *, cache: bool = False) -> FileScan:
    """Read a file by the reader that its first bytes ask for, or take what it held when it was read before."""
    if remote.is_url(path):
        return scan_copy(path, _scan, report)  # the copy has another name each time: no entry would be found again
    if cache:
        scan = read_through(path, lambda local: _scan(local, report))
    elif (export := find_export(path)) is None:
        return scan_file(path, report)
    else:
        scan = export.read(path)
    if report is not None:
        report(scan.n_bytes)
    return scan


def _report(progress: Progress, done_before: int, total: int, done: int) -> None:
    """Pass on how much of all inputs has been read."""
    progress(done_before + done, total)


def _in_time_order(parts: list[Part]) -> list[Part]:
    """Order files that were found, not named, by their first stamp; files without one keep their place at the end."""
    return sorted(parts, key=lambda part: (part.span_us is None, part.span_us or (0, 0)))


def _combine(parts: list[Part], notes: list[str]) -> Log:
    """Count the lives over all files, set the origin of the clock and build the tables."""
    logs = [part for part in parts if not isinstance(part.scan, ExportScan)]
    n_lives = _number_logs(logs, notes)
    parts = [*logs, *(part for part in parts if isinstance(part.scan, ExportScan))]
    n_lives = _place_exports(parts, len(logs), n_lives, notes)
    engines = Counter[str]()
    for part in parts:
        engines.update(part.n_of_engine)
    engine = engines.most_common(1)[0][0]
    if len(engines) > 1:
        counts = ", ".join(f"{name} {count}" for name, count in engines.most_common())
        notes.append(f"records of more than one engine ({counts}): no law holds for both, read them one by one")
    samples = [part.samples for part in parts]
    tables = [
        samples[0] if len(samples) == 1 else pl.concat(samples, how="diagonal"),
        pl.concat([part.events for part in parts]),
    ]
    moments = [part.moments for part in parts if part.moments is not None]
    table, stamped, *sums = _count_seconds([*tables, *([pl.concat(moments)] if moments else [])], notes)
    kept = _settled(parts)
    facts = _facts(parts, n_lives)
    accounting = add_up([part.scan for part in parts], count_values(table, "kind"), notes)
    del tables, samples
    for part in parts:
        part.samples = part.samples.clear()
    return Log(
        samples=to_samples(table),
        events=to_events(kept, stamped),
        accounting=accounting,
        facts=facts,
        engine=engine,
        engine_version=next((fact["engine_version"] for fact in facts if "engine_version" in fact), None),
        sources=tuple(Source(p.scan.path, p.scan.digest(), p.scan.n_bytes) for p in parts),
        moments=to_moments(sums[0]) if sums else MOMENTS.empty(),
        source_kinds=tuple(kind for kind in LAW_KINDS if kind in accounting.by_kind),
    )


def _number_logs(parts: list[Part], notes: list[str]) -> int:
    """Count the lives of the logs and mark them; return how many there are."""
    life = -1
    before: Part | None = None
    for part in parts:
        first_life = life if before is not None and _continues(part, before) else life + 1
        restarts = [
            line for dialect in DIALECTS if dialect.restarts and dialect.engine in part.n_of_engine
            for line in dialect.restarts(part.samples)
        ]
        begins = number_lives(part.scan.events, part.samples["line_no"], first_life, restarts)
        life = begins[-1][1]
        starts = np.array([line_no for line_no, _ in begins])
        part.samples, part.events = (
            _with_lives(table, part.scan.path, starts, first_life) for table in (part.samples, part.events)
        )
        notes += part.notes
        before = part
    return life + 1


def _with_lives(table: pl.DataFrame, path: str, starts: np.ndarray, first_life: int) -> pl.DataFrame:
    """Add the file and, by the lines with which each begins, the server life."""
    life = pl.lit(first_life, pl.Int64)
    if len(starts) > 1:
        lives_before = np.searchsorted(starts, table["line_no"].to_numpy(), side="right") - 1
        life = pl.lit(pl.Series(lives_before + first_life, dtype=pl.Int64))
    return table.with_columns(file=pl.lit(path), server_life=life)


def _place_exports(parts: list[Part], n_logs: int, n_lives: int, notes: list[str]) -> int:
    """Give every export the life of a log of its engine whose time it lies in, else one of its own."""
    for part in parts[n_logs:]:
        notes += part.notes
        logs = [log for log in parts[:n_logs] if log.engine == part.engine]
        placing = lives.place(part.scan.path, part.span_us, [(log.samples, log.events) for log in logs], notes)
        restarts = part.scan.restarts if isinstance(part.scan, ExportScan) else []
        part.samples, part.events = (placing.apply(table, restarts, n_lives) for table in (part.samples, part.events))
        if part.moments is not None:
            part.moments = placing.apply(part.moments, restarts, n_lives)
        n_lives += 0 if placing.span is not None else len(restarts) + 1
    return n_lives


def _continues(part: Part, before: Part) -> bool:
    """Tell whether a file is the next rotated part of the log before it."""
    first_record = part.samples["line_no"][0]
    starts_up = any(event.kind in ("args", "banner") and event.line_no < first_record for event in part.scan.events)
    names = [stem_of(os.path.realpath(p.scan.path)) for p in (before, part)]
    spans = before.span_us, part.span_us
    follows = spans[0] is None or spans[1] is None or spans[1][0] >= spans[0][1]
    return names[0] == names[1] and not starts_up and follows


def _count_seconds(tables: list[pl.DataFrame], notes: list[str]) -> list[pl.DataFrame]:
    """Add ``t_s``: seconds since the first stamp of the input, per kind of stamp, never anything else."""
    origins = _first_stamps(tables)
    if len(origins) > 1:
        notes.append("time stamps of different kinds (with and without date or year): t_s counts per kind")
    samples = tables[0]
    n_unstamped = samples["us"].null_count()
    if n_unstamped:
        notes.append(f"{n_unstamped} of {len(samples)} records carry no time stamp: t_s is missing there")
    origin = pl.lit(next(iter(origins.values()), 0), pl.Int64)
    if len(origins) > 1:
        origin = pl.col("stamp_kind").replace_strict(origins, default=None, return_dtype=pl.Int64)
    clock = {"t_s": (pl.col("us") - origin) / 1e6, "ts": pl.col("shown").cast(pl.Datetime("us"))}
    return [table.hstack(table[["us", "shown", "stamp_kind"]].select(**clock)) for table in tables]


def _first_stamps(tables: list[pl.DataFrame]) -> dict[int, int]:
    """Return the first stamp of each kind [us]."""
    first: dict[int, int] = {}
    for table in tables:
        kinds = distinct(table, "stamp_kind")
        for kind in kinds:
            # brackets, as select would give every column that is missing in all rows its memory
            mine = table[["stamp_kind", "us"]].filter(pl.col("stamp_kind") == kind) if len(kinds) > 1 else table
            least = mine["us"].min()
            if least is not None and kind is not None:
                first[kind] = min(first.get(kind, int(least)), int(least))  # type: ignore[arg-type]
    return first


def _settled(parts: list[Part]) -> list[tuple[int, Event]]:
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


def _facts(parts: list[Part], n_lives: int) -> tuple[dict[str, Any], ...]:
    """Collect the facts of every life; what an export says stands where the log is silent."""
    engine_of = {id(event): part.engine for part in parts for event in part.scan.events}
    events: list[list[Event]] = [[] for _ in range(n_lives)]
    for event in (event for part in parts for event in part.scan.events):
        events[event.life].append(event)
    facts = [facts_of.collect_facts(life, engine_of[id(life[0])]) if life else {} for life in events]
    for part in parts:
        if isinstance(part.scan, ExportScan):
            for life in part.samples["server_life"].unique():
                facts[life] = {**part.scan.facts, **facts[life]}
    return tuple(facts)


def _nearest(scan: FileScan) -> str:
    """Say what a file without statistics holds instead."""
    kinds = Counter(event.kind for event in scan.events if event.kind not in INTERNAL_KINDS)
    return describe_contents(scan.known, kinds, scan.unplaced)


def describes_nothing(scan: FileScan) -> bool:
    """Tell whether nothing in a file is of a server, not even a statistic that cannot be read."""
    has_any = any(len(frame) for frame in scan.samples) or scan.malformed or scan.events
    return not has_any and _nearest(scan) == NOTHING


def _no_statistics(scan: FileScan) -> str:
    """Word the error of a log without statistics."""
    if isinstance(scan, ExportScan):
        bad = f"; malformed: {scan.malformed[0].reason}" if scan.malformed else ""
        why = f"; {scan.notes[-1]}" if scan.notes else ""
        return f"{scan.path}: expected records of {scan.export}, found none among {scan.n_lines}{bad}{why}"
    first = [(line.line_no, line.reason) for line in scan.malformed[:1]]
    return describe_unread(
        scan.path, scan.n_lines, _nearest(scan), scan.unplaced, first, scan.lines["malformed"]
    )
