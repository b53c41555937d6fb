"""The runs of a folder: when each was measured, and which of them are of one configuration."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd

from helpers import compare, ingest, scorecard
from helpers.compare.validity import flatten
from helpers.ingest.lines import FileReader
from helpers.regression.inputs import COMPARISON_FILE, RUN_FILE, at_hand, read_json
from helpers.regression.settings import comparable, settings_of
from helpers.schema import METHOD_VERSION, SCHEMA_VERSION, LogFormatError, RooflogError

HEAD_BYTES = 2**20
"""Of a log that are read for its first stamp."""

NO_YEAR = 1904
"""Stands in for the year of stamps that have none (`ingest`)."""

MAX_DIFFERENCES = 5
"""Between two configurations that are listed."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class PastRun:
    """One analysis of a log.

    Attributes
    ----------
    folder : str
        Run folder.
    analysed_at : datetime
        UTC, without zone.
    when, clock : datetime, str
        First stamp of the log as it stands (clock "log"), or when it was analysed ("run").
    facts : mapping
        Settings of the server and its load (`settings.settings_of`).
    card : mapping
        Scorecard.
    """

    folder: str
    analysed_at: datetime
    when: datetime
    clock: str
    facts: Mapping[str, Any]
    card: Mapping[str, Any]


def read_runs(where: Path, say: Say, left_out: list[tuple[str, str]]) -> list[PastRun]:
    """Read the run folders in a folder and its subfolders, each log once, oldest first.

    Parameters
    ----------
    where : Path
    say : callable
        Called with the name of each.
    left_out : list of (run folder, why)
        Gets the runs that cannot be points of a series: of another version of schema or method, without scorecard, with
        a failed check, or analysed again later.
    """
    runs: list[PastRun] = []
    for path in _run_folders(where):
        say(path.name)
        try:
            runs.append(_read(path))
        except (RooflogError, KeyError, TypeError, AttributeError, ValueError) as error:
            found = str(error) if isinstance(error, RooflogError) else f"its scorecard is not whole ({error})"
            left_out.append((str(path), found.removeprefix(f"{path}: ")))
    return _once(runs, left_out)


def _run_folders(where: Path) -> Iterator[Path]:
    for at, names, files in os.walk(where):
        names[:] = sorted(name for name in names if not name.startswith("."))  # hidden: unfinished runs
        if (RUN_FILE in files or scorecard.FILE_NAME in files) and COMPARISON_FILE not in files:
            names.clear()
            yield Path(at)


def _read(folder: Path) -> PastRun:
    """Read one run folder; the error says why it is no point of a series."""
    record = read_json(folder / RUN_FILE) if (folder / RUN_FILE).is_file() else {}
    if not (folder / scorecard.FILE_NAME).is_file():
        raise LogFormatError(f"{folder}: the run left no scorecard ({record.get('status') or 'no status'})")
    card = read_json(folder / scorecard.FILE_NAME)
    found = card.get("schema_version"), card.get("method_version")
    if found != (SCHEMA_VERSION, METHOD_VERSION):
        raise LogFormatError(f"{folder}: made with schema_version {found[0]} and method_version {found[1]}, not "
                             f"{SCHEMA_VERSION} and {METHOD_VERSION}; run its log again")
    failed = [check["name"] for check in card["checks"] if check["pass"] is False]
    if failed:
        raise LogFormatError(f"{folder}: a check failed ({failed[0]})")
    started = str(record.get("started_utc") or "")
    if not started:
        raise LogFormatError(f"{folder}: no time is known, as it has no {RUN_FILE} with started_utc")
    run_at = datetime.fromisoformat(started).astimezone(UTC).replace(tzinfo=None)
    log_at = _log_time(folder, record, card["run"]["log_sha256"], run_at)
    facts = settings_of(card["run"]["facts"])
    return PastRun(str(folder), run_at, log_at or run_at, "log" if log_at else "run", facts, card)


def _log_time(folder: Path, record: Mapping[str, Any], hashes: Sequence[str], run_at: datetime) -> datetime | None:
    """Return the first stamp of a run's log, if the log is at hand as it was and tells a date.

    A stamp without year is of the last such day before the analysis.
    """
    name = (record.get("parameters") or {}).get("log_path")
    path = at_hand(str(name), folder, hashes) if name and hashes else None
    stamp = _first_stamp(path) if path and Path(path).is_file() else None
    if stamp is None or stamp.year != NO_YEAR:
        return stamp
    if (stamp.month, stamp.day) == (1, 1):  # a time of day without a date stands on the first day, too
        return None
    try:
        stamp = stamp.replace(year=run_at.year)
        # the log's clock may be ahead of UTC by 14 h
        return stamp if stamp <= run_at + timedelta(days=1) else stamp.replace(year=run_at.year - 1)
    except ValueError:  # 29 February in another year
        return None


def _first_stamp(path: str) -> datetime | None:
    """Read a log's first stamp off its first lines."""
    try:
        with TemporaryDirectory() as folder:
            head = Path(folder) / "head.log"
            head.write_bytes(next(FileReader(path, chunk_bytes=HEAD_BYTES).chunks()).text)
            log = ingest.read_log(head, cache=False)  # it has another name each time
    except (LogFormatError, StopIteration):  # no statistic in it: the time of the analysis stands in
        return None
    stamps = pd.concat([log.samples["ts"], log.events["ts"]]).dropna()
    return None if stamps.empty else stamps.min().to_pydatetime()


def _once(runs: Sequence[PastRun], left_out: list[tuple[str, str]]) -> list[PastRun]:
    """Keep the latest analysis of each log, in order of time."""
    latest: dict[object, PastRun] = {}
    for run in sorted(runs, key=lambda run: (run.analysed_at, run.folder)):
        key = tuple(sorted(run.card["run"]["log_sha256"])) or run.folder
        if key in latest:
            left_out.append((latest[key].folder, f"the same log as {run.folder}"))
        latest[key] = run
    return sorted(latest.values(), key=lambda run: (run.when, run.folder))


def group(runs: Sequence[PastRun], left_out: list[tuple[str, str]]) -> list[list[PastRun]]:
    """Put runs of one configuration together; another version of the engine is what a history is to show.

    Those that state most come first: a run that leaves out what tells two configurations apart is of neither.

    Parameters
    ----------
    runs : sequence of PastRun
    left_out : list of (run folder, why)
        Gets the runs that are of no configuration.

    Returns
    -------
    list of list of PastRun
        Each oldest first, in order of their first run.
    """
    groups: list[tuple[dict[str, Any], list[PastRun]]] = []
    for run in sorted(runs, key=lambda run: -len(flatten(run.facts))):
        fitting = [known for known in groups if _is_same(known[0], run.facts)]
        if len(fitting) > 1:
            left_out.append((run.folder, "its configuration is not stated enough: it may be one of "
                                         f"{len(fitting)} that differ"))
        elif fitting:
            fitting[0][1].append(run)
            fitting[0][0].update({k: v for k, v in run.facts.items() if fitting[0][0].get(k) is None})
        else:
            groups.append((dict(run.facts), [run]))
    ordered = [sorted(of_one, key=lambda run: (run.when, run.folder)) for _, of_one in groups]
    return sorted(ordered, key=lambda of_one: (of_one[0].when, of_one[0].folder))


def _is_same(base: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    found = compare.judge_validity(*comparable(base, new)).differences
    is_version = (found["kind"] == "version") & (found["key"] != "engine")
    return not ((found["status"] == "differs") & ~is_version).any()


def describe(groups: Sequence[Sequence[PastRun]]) -> Iterator[str]:
    """Say what each configuration is: model and hardware, and in what it differs from the first that shares both."""
    first: dict[tuple[str, str], Mapping[str, Any]] = {}
    for of_one in groups:
        facts = of_one[0].facts
        name = str(facts.get("model") or "unknown model"), str(facts.get("hardware") or "unknown hardware")
        like = first.setdefault(name, facts)
        found = compare.judge_validity(*comparable(like, facts)).differences
        found = found[(found["status"] == "differs") & (found["kind"] != "version")]
        words = [f"{row['key']} {row['new']} (not {row['base']})" for row in found.to_dict("records")]
        more = [f"{len(words) - MAX_DIFFERENCES} more differ"] if len(words) > MAX_DIFFERENCES else []
        yield ", ".join([*name, *words[:MAX_DIFFERENCES], *more])
