"""The work on one dump: look whether it is done, run it, and say what came of it. The same in every kind of batch."""

from __future__ import annotations

import errno
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from helpers import remote
from helpers.batch.dumps import Dump
from helpers.batch.keys import Notebook, Settings, hash_logs, key_of, read_notebook, run_name
from helpers.batch.store import NOTEBOOK_FAILED, Store, has_passed, open_store
from helpers.facts import read_context
from helpers.run import run
from helpers.schema import RooflogError

DONE, SKIPPED, FAILED = "done", "skipped", "failed"
FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True)
class Outcome:
    """What came of one dump.

    Attributes
    ----------
    dump : str
        Path or URL.
    name : str
        Of the run folder, or that it would have had.
    key : str
        64 hexadecimal digits; of a dump that could not be read, a hash of its path.
    state : str
        "done", "skipped" (an earlier batch did it, or recorded that it cannot be done) or "failed".
    exit_code : int
        0 good, 1 a check failed, 2 cannot tell, 3 could not run.
    message : str
        Why not, in one line.
    has_folder : bool
        A run folder of that name is there.
    is_final : bool
        The next batch need not try again: the same contents give the same.
    wall_s : float
        Time that it took [s].
    """

    dump: str
    name: str
    key: str
    state: str
    exit_code: int
    message: str = ""
    has_folder: bool = False
    is_final: bool = True
    wall_s: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        """Return the fields."""
        return asdict(self)


@dataclass(frozen=True)
class Job:
    """A dump that must be run: its key is known, its inputs lie here."""

    dump: Dump
    name: str
    key: str
    hashes: tuple[str, ...]
    context: Mapping[str, Any]


def failed(dump: Dump, message: str, *, key: str = "", is_final: bool = False, wall_s: float = 0.0) -> Outcome:
    """Return the outcome of a dump that could not be run."""
    key = key or sha256(dump.path.encode()).hexdigest()
    text = " ".join(message.split())
    return Outcome(dump.path, run_name(dump.name, key), key, FAILED, NOTEBOOK_FAILED, text, is_final=is_final,
                   wall_s=wall_s)


def prepare(dump: Dump, settings: Settings, notebook: Notebook, hashes: Sequence[str] = ()) -> Job:
    """Compute the key of a dump whose inputs are on this machine; its contents are hashed unless that is done.

    Raises
    ------
    RooflogError, OSError
        An input cannot be read.
    """
    hashes = hashes or hash_logs(dump.logs)
    context = _context_of(dump, settings)
    key = key_of(hashes, notebook, context)
    return Job(dump, run_name(dump.name, key), key, tuple(hashes), context)


def known(job: Job, settings: Settings, store: Store) -> Outcome | None:
    """Return what an earlier batch left of a job; None if there is work to do."""
    record = store.whole_record(job.name, job.key)
    if record is not None and not (settings.retry_failed and record["exit_code"] == NOTEBOOK_FAILED):
        return _skipped(job, record["exit_code"], record, has_folder=True)
    failure = store.failure(job.name, job.key)
    if failure is not None and failure.get("is_final") and not settings.retry_failed:
        return _skipped(job, NOTEBOOK_FAILED, failure, has_folder=False)
    return None


def _skipped(job: Job, exit_code: int, record: Mapping[str, Any], has_folder: bool) -> Outcome:
    return Outcome(job.dump.path, job.name, job.key, SKIPPED, exit_code, str(record.get("message") or ""), has_folder)


def _context_of(dump: Dump, settings: Settings) -> dict[str, Any]:
    """Lay the facts of the batch over those of the dump; the later key of an object wins where two mean the same."""
    own = read_context(dump.facts, "facts") if dump.facts else {}
    config = own.get("model_config")
    if isinstance(config, str) and (beside := Path(dump.facts).parent / config).is_file():
        own["model_config"] = str(beside)
    return {name: value for name, value in own.items() if name not in settings.context} | dict(settings.context)


def do(dump: Dump, settings: Settings, hashes: Sequence[str] = ()) -> Outcome:
    """Look, and run what is not done: every way in which a dump can fail ends in an outcome.

    Parameters
    ----------
    dump : Dump
        Inputs behind URLs are fetched into a folder that goes at the end.
    settings : Settings
    hashes : sequence of str
        Of its files, where they are known already; files that changed since are found by what the run read.

    Returns
    -------
    Outcome
        Of errors only those are final that the dump's contents caused.
    """
    started_s = time.monotonic()
    key, urls = "", dict[str, str]()
    try:
        store = open_store(settings.out)
        with _fetched(dump, urls) as here:
            job = prepare(here, settings, read_notebook(settings.notebook, settings.parameters), hashes)
            key = job.key
            outcome = known(job, settings, store) or _run(job, settings, store)
    except Exception as error:
        outcome = failed(dump, describe(error), key=key)
    message = outcome.message
    for copy, url in urls.items():
        message = message.replace(copy, url)
    return replace(outcome, dump=dump.path, message=message, wall_s=time.monotonic() - started_s)


def describe(error: Exception) -> str:
    """Say in one line what went wrong, and whose fault it is where it is not the input's."""
    if isinstance(error, RooflogError):
        return str(error)
    if not isinstance(error, OSError):
        return f"{type(error).__name__}: {error} (a fault of rooflog)"
    where = f"{error.filename}: " if error.filename else ""
    if error.errno in FULL:
        return f"{where}the disk is full ({error.strerror}); make room and run the batch again"
    return f"{where}{error.strerror or error}"


@contextmanager
def _fetched(dump: Dump, urls: dict[str, str]) -> Iterator[Dump]:
    """Give the dump with its inputs on this machine; `urls` gets the path of every copy -> its URL, for messages."""
    if not any(remote.is_url(path) for path in (*dump.logs, dump.facts)):
        yield dump
        return
    with TemporaryDirectory(prefix="rooflog-") as folder:
        logs = Path(folder) / "logs"
        logs.mkdir()
        files = [str(remote.fetch(log, logs)) for log in dump.logs]
        facts = str(remote.fetch(dump.facts, Path(folder))) if dump.facts else ""
        urls |= zip((*files, facts), (*dump.logs, dump.facts), strict=True)
        yield replace(dump, logs=tuple(files) if len(files) == 1 else (str(logs),), facts=facts)


def _run(job: Job, settings: Settings, store: Store) -> Outcome:
    """Execute the notebook; what ended for a passing reason leaves no folder."""
    store.discard(job.name)
    record = {"key": job.key, "dump": job.dump.path, "dump_sha256": list(job.hashes)}
    with store.place(job.name) as out:
        try:
            result = run(job.dump.logs, settings.notebook, settings.parameters, out, job.context,
                         command=settings.command, name=job.name, record=record, warm=True)
        except RooflogError as error:
            other = known(job, settings, store)  # another batch took the name meanwhile
            return other or failed(job.dump, str(error), key=job.key, is_final=not isinstance(error.__cause__, OSError))
    if store.whole_record(job.name, job.key) is None:
        store.discard(job.name)
        message = result.message if has_passed(result.exit_code, result.message) else \
            f"{job.dump.path}: changed while it was read, or its run folder did; run the batch again"
        return failed(job.dump, message, key=job.key)
    return Outcome(job.dump.path, job.name, job.key, DONE, result.exit_code, result.message, has_folder=True)
