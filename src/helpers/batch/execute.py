"""A batch: find the dumps, do what is not done, and leave a table and an index page."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from helpers import paths
from helpers.batch.cluster import SchedulerLost, run_on
from helpers.batch.dumps import find_dumps
from helpers.batch.keys import Notebook, Settings, read_notebook
from helpers.batch.local import run_here
from helpers.batch.store import NOTEBOOK_FAILED, Store, open_store
from helpers.batch.work import FAILED, SKIPPED, Outcome
from helpers.display import show
from helpers.facts import read_context
from helpers.parameters import absolute
from helpers.run.execute import with_absolute_files
from helpers.run.kernel import Say
from helpers.schema import RooflogError

DEFAULT_OUT = "runs/batch"
EVERY_S = 30.0
"""Between two writings of the table and the index while a batch runs [s]."""

WRITING_SHARE = 0.02
"""Of the time may go into these: a folder of many thousands of runs takes seconds to read."""

EXIT_CODES_BY_WEIGHT = (3, 1, 2, 0)
"""The code of a batch is the first of these that a dump has."""


@dataclass
class BatchResult:
    """What a batch did.

    Attributes
    ----------
    out : str
        Folder or URL of the run folders.
    outcomes : list of Outcome
        Of every dump that came to an end, in that order.
    not_done : list of str
        Paths of dumps that did not, because the scheduler was lost.
    notes : list of str
        What was passed over, and what could not be written.
    n_dumps : int
        All of them.
    wall_s : float
        Time that it took [s].
    """

    out: str
    n_dumps: int
    outcomes: list[Outcome] = field(default_factory=list)
    not_done: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    wall_s: float = 0.0

    @property
    def index(self) -> str:
        """Path or URL of the index page."""
        return self.out.rstrip("/") + "/index.html"

    @property
    def exit_code(self) -> int:
        """3 if a dump could not be run, else 1 if a check failed somewhere, else 2 if one cannot tell, else 0."""
        codes = {outcome.exit_code for outcome in self.outcomes} | ({NOTEBOOK_FAILED} if self.not_done else set())
        return next((code for code in EXIT_CODES_BY_WEIGHT if code in codes), 0)

    def counts(self) -> dict[str, int]:
        """Count the dumps: good, cannot_tell, check_failed, failed, not_done; and, of all these, skipped."""
        by_code = Counter(outcome.exit_code for outcome in self.outcomes)
        return {"good": by_code[0], "cannot_tell": by_code[2], "check_failed": by_code[1], "failed": by_code[3],
                "not_done": len(self.not_done),
                "skipped": sum(outcome.state == SKIPPED for outcome in self.outcomes)}

    def as_dict(self) -> dict[str, Any]:
        """Return all of it as JSON can hold it."""
        return {"out": self.out, "index": self.index, "exit_code": self.exit_code, "n_dumps": self.n_dumps,
                **{f"n_{name}": n for name, n in self.counts().items()}, "wall_s": self.wall_s, "notes": self.notes,
                "not_done": self.not_done, "dumps": [outcome.as_dict() for outcome in self.outcomes]}


class BatchEnded(BaseException):
    """Ctrl-C, or a signal that means the same, ended the batch; ``result`` says how far it was."""

    def __init__(self, result: BatchResult) -> None:
        super().__init__()
        self.result = result


def batch(
    given: str | Path | Sequence[str | Path],
    out: str | Path = DEFAULT_OUT,
    notebook: str = "00",
    parameters: Mapping[str, Any] | Iterable[tuple[str, Any]] = (),
    context: str | Path | Mapping[str, Any] | None = None,
    *,
    group: str = "file",
    n_workers: int | None = None,
    scheduler: str = "",
    retry_failed: bool = False,
    limit_s: float | None = None,
    command: str = "",
    progress: Say | None = None,
) -> BatchResult:
    """Execute a notebook on many dumps, each into a run folder of its own, and write a table and an index of all.

    Parameters
    ----------
    given : path or sequence of paths
        Files, folders, globs, URLs; see `dumps.find_dumps`.
    out : path or URL
        Folder of the run folders. A dump whose run is there whole is skipped.
    notebook, parameters, context
        As for `helpers.run.run`; facts that lie beside a dump are its own, and `context` wins over them.
    group : str
        "file" or "folder": what is one dump.
    n_workers : int, optional
        Processes at once; as many as cores by default. Not for a scheduler, which has its own.
    scheduler : str
        Address of a dask scheduler; empty: this machine.
    retry_failed : bool
        Also run again what the same contents made fail before.
    limit_s : float, optional
        Longest time for one dump [s].
    command : str
        Command line to record.
    progress : callable, optional
        Called with a line of text.

    Returns
    -------
    BatchResult

    Raises
    ------
    RooflogError
        What was asked for cannot be done at all: no dump, a wrong parameter, a folder that cannot be written, no
        scheduler.
    BatchEnded
        On KeyboardInterrupt: workers are ended, and no folder is left half-written.
    """
    started_s = time.monotonic()
    place = absolute(str(out))
    names = [given] if isinstance(given, str | os.PathLike) else list(given)
    if limit_s is not None and not limit_s > 0:
        raise RooflogError(f"--limit-time {limit_s:g}: expected a number of seconds above zero")
    if n_workers is not None and n_workers < 1:
        raise RooflogError(f"--workers {n_workers}: expected at least one process")
    pairs = tuple(parameters.items() if isinstance(parameters, Mapping) else parameters)
    checked = read_notebook(notebook, pairs)
    own = checked.path.parent == paths.notebooks_dir()
    settings = Settings(place, checked.path.stem if own else str(checked.path), _with_absolute_paths(pairs, checked),
                        with_absolute_files(read_context(context)), retry_failed, limit_s, command)
    dumps, notes = find_dumps(names, group=group, out=place)
    store = open_store(place)
    store.make_ready()
    result = BatchResult(place, len(dumps), notes=notes)
    watch = _Watch(result, store, checked.path.stem, progress or (lambda text: None))
    try:
        try:
            if scheduler:
                run_on(scheduler, dumps, settings, watch)
            else:
                run_here(dumps, settings, watch, n_workers)
        except SchedulerLost as error:
            ended = {outcome.dump for outcome in result.outcomes}
            result.not_done += [dump.path for dump in dumps if dump.path not in ended]
            result.notes.append(f"{error}: {len(result.not_done)} of {len(dumps)} dumps are not done; what was "
                                "finished is kept, run the batch again for the rest")
        watch.write()
    except KeyboardInterrupt:
        raise BatchEnded(result) from None
    finally:
        store.close()
        result.wall_s = time.monotonic() - started_s
    return result


def _with_absolute_paths(pairs: Sequence[tuple[str, Any]], checked: Notebook) -> tuple[tuple[str, Any], ...]:
    """Take relative paths from the caller's folder: workers may have another."""
    return tuple((name, checked.values[name] if checked.declared[name].is_path else value) for name, value in pairs)


class _Watch:
    """Takes outcomes: records failures, tells the progress, keeps table and index up to date."""

    def __init__(self, result: BatchResult, store: Store, notebook: str, say: Say) -> None:
        self._result, self._store, self._notebook, self._say = result, store, notebook, say
        self._unrecorded: dict[str, dict[str, Any]] = {}
        self._begun_s = self._written_s = time.monotonic()
        self._pause_s = EVERY_S

    def __call__(self, outcome: Outcome | None) -> None:
        """Take an outcome, or None when none came."""
        if outcome is not None:
            self._result.outcomes.append(outcome)
            if outcome.state == FAILED:
                self._record(outcome)
        self._say(self._text())
        if time.monotonic() - self._written_s > self._pause_s:
            self.write()

    def _record(self, outcome: Outcome) -> None:
        record = {"name": outcome.name, "key": outcome.key, "dump": outcome.dump, "notebook": self._notebook,
                  "message": outcome.message, "is_final": outcome.is_final}
        try:
            self._store.write_failure(record)
        except (OSError, RooflogError):  # a full disk: the page may still find room, and the report does
            self._unrecorded[outcome.name] = {"dump": outcome.dump, "message": outcome.message, "key": outcome.key,
                                              "file": ""}

    def _text(self) -> str:
        outcomes, n_all = self._result.outcomes, self._result.n_dumps
        counts = self._result.counts()
        n_worked = len(outcomes) - counts["skipped"]
        elapsed_s = time.monotonic() - self._begun_s
        text = f"{len(outcomes)}/{n_all} dumps"
        text += "".join(f", {counts[name]} {name}" for name in ("failed", "skipped") if counts[name])
        if n_worked and elapsed_s > 0:
            left_s = (n_all - len(outcomes)) * elapsed_s / n_worked
            text += f", {60 * n_worked / elapsed_s:.3g} dumps/min, {show(left_s, 'duration')} left"
        return text

    def write(self) -> None:
        """Write table and index from what is there; a folder that cannot be written costs no run."""
        from helpers.batch.page import write_index  # 1 s of imports that worker processes have no use for
        from helpers.batch.table import read_rows, write_table

        started_s = time.monotonic()
        try:
            with self._store.mirror() as folder:
                ended = {o.dump: o.key if o.exit_code == NOTEBOOK_FAILED else "" for o in self._result.outcomes}
                self._store.forget_failures(ended, self._notebook)
                rows, failures = read_rows(folder)
                write_table(rows, folder)
                write_index(rows, [*failures, *self._unrecorded.values()], folder, notes=self._result.notes)
        except (OSError, RooflogError) as error:
            note = f"table and index could not be written: {error}"
            if note not in self._result.notes:
                self._result.notes.append(note)
        self._written_s = time.monotonic()
        self._pause_s = max(EVERY_S, (self._written_s - started_s) / WRITING_SHARE)
