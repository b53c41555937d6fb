"""The folder that gets the runs, here or behind a URL: what is there whole, what failed, and what must go."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

from helpers import remote, scorecard
from helpers.run.folder import make_workspace, remove_stale
from helpers.schema import RooflogError

FAILURES = "failures"
"""Folder beside the run folders: one JSON file for each dump that could not be run."""

RECORD = "run.json"
NOTEBOOK_FAILED = 3
"""Exit code of a run whose notebook raised: it has no scorecard."""

PASSING_ERRORS = ("DeadKernelError", "CellTimeoutError", "OSError", "MemoryError", "ConnectionError", "TimeoutError")
"""Errors of a notebook that say more about the machine than about the dump: the next batch tries again."""


class Store(Protocol):
    """Where a batch leaves its runs."""

    def make_ready(self) -> None:
        """Remove what killed runs left; RooflogError if nothing can be written."""
        ...

    def close(self) -> None:
        """Let go of what the store keeps on this machine."""
        ...

    def whole_record(self, name: str, key: str) -> dict[str, Any] | None:
        """Return run.json of a run that is there whole and has this key; None otherwise."""
        ...

    def failure(self, name: str, key: str) -> dict[str, Any] | None:
        """Return what was recorded of a failure with this key; None if nothing was."""
        ...

    def write_failure(self, record: Mapping[str, Any]) -> None:
        """Keep a failure: name, key, dump, notebook, message, is_final."""
        ...

    def forget_failures(self, dumps: Mapping[str, str], notebook: str) -> None:
        """Remove records of dumps (path -> key that failed now, or empty) that are out of date for a notebook."""
        ...

    def place(self, name: str) -> Any:
        """Give a local folder for a run, and take what was left in it to its place at the end."""
        ...

    def discard(self, name: str) -> None:
        """Remove a run folder that is not whole."""
        ...

    def mirror(self) -> Any:
        """Give a local folder with what the table and the index need, and take these two to their place."""
        ...


def open_store(out: str) -> Store:
    """Return the store behind a path or a URL."""
    return RemoteStore(out) if remote.is_url(out) else LocalStore(Path(out))


def has_passed(exit_code: int, message: str) -> bool:
    """Tell whether a notebook failed for a reason that passes; its message is ``notebook: Error: text``."""
    return exit_code == NOTEBOOK_FAILED and message.partition(": ")[2].partition(":")[0] in PASSING_ERRORS


def _is_whole(record: Mapping[str, Any], key: str) -> bool:
    """Tell whether run.json is that of a key, and whether the run read the contents that the key stands for."""
    return (record.get("key") == key and isinstance(record.get("exit_code"), int)
            and not has_passed(record["exit_code"], str(record.get("message")))
            and set(record.get("log_sha256") or []) <= set(record.get("dump_sha256") or []))


def _needed(record: Mapping[str, Any]) -> list[str]:
    """Name the files that a run folder holds."""
    names = [f"{record.get('notebook')}.ipynb", "report.html"]
    return names + ([scorecard.FILE_NAME] if record["exit_code"] != NOTEBOOK_FAILED else [])


def _parsed(text: str) -> dict[str, Any] | None:
    """Return the object that a text holds; None if it holds none."""
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _read(file: Path) -> dict[str, Any] | None:
    try:
        return _parsed(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        return None


def write_whole(file: Path, text: str) -> None:
    """Write a file beside its place and rename it."""
    partial = file.with_name(f".{uuid.uuid4().hex[:12]}.tmp")
    try:
        partial.write_text(text, encoding="utf-8")
        os.replace(partial, file)
    finally:
        partial.unlink(missing_ok=True)


def _is_outdated(record: Mapping[str, Any], dumps: Mapping[str, str], notebook: str) -> bool:
    """Tell whether a record of a failure was overtaken: the dump ran since, or failed otherwise."""
    dump = str(record.get("dump"))
    return record.get("notebook") == notebook and dump in dumps and dumps[dump] != record.get("key")


class LocalStore:
    """Run folders in a folder of this machine, or of one that is mounted here."""

    def __init__(self, folder: Path) -> None:
        """Take an absolute path; the folder is made when it is needed."""
        self.folder = folder

    def make_ready(self) -> None:
        """See `Store`."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            trial = self.folder / f".{uuid.uuid4().hex[:12]}.tmp"
            trial.touch()
            trial.unlink()
            remove_stale(self.folder)
        except OSError as error:
            raise RooflogError(
                f"{self.folder}: expected a folder to write in, found: {error.strerror}; choose another with --out"
            ) from error

    def close(self) -> None:
        """See `Store`."""

    def whole_record(self, name: str, key: str) -> dict[str, Any] | None:
        """See `Store`."""
        record = _read(self.folder / name / RECORD)
        if record is None or not _is_whole(record, key):
            return None
        files = [self.folder / name / needed for needed in _needed(record)]
        if not all(file.is_file() and file.stat().st_size for file in files):
            return None
        return None if files[-1].name == scorecard.FILE_NAME and _read(files[-1]) is None else record

    def failure(self, name: str, key: str) -> dict[str, Any] | None:
        """See `Store`."""
        record = _read(self.folder / FAILURES / f"{name}.json")
        return record if record is not None and record.get("key") == key else None

    def write_failure(self, record: Mapping[str, Any]) -> None:
        """See `Store`."""
        folder = self.folder / FAILURES
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / f"{record['name']}.json", json.dumps(record, indent=1) + "\n")

    def forget_failures(self, dumps: Mapping[str, str], notebook: str) -> None:
        """See `Store`."""
        for file in self.folder.glob(f"{FAILURES}/*.json"):
            record = _read(file)
            if record is not None and _is_outdated(record, dumps, notebook):
                file.unlink(missing_ok=True)

    @contextmanager
    def place(self, name: str) -> Iterator[Path]:
        """See `Store`: the run publishes itself by a rename."""
        yield self.folder

    def discard(self, name: str) -> None:
        """See `Store`."""
        if not (self.folder / name).exists():
            return
        with make_workspace(self.folder) as bin_:  # hidden first: half a removed folder would look like a run
            try:
                os.rename(self.folder / name, bin_ / name)
            except FileNotFoundError:  # another batch was faster
                return

    @contextmanager
    def mirror(self) -> Iterator[Path]:
        """See `Store`: the folder itself."""
        yield self.folder


class RemoteStore:
    """Run folders behind a URL: made here, sent with run.json last."""

    def __init__(self, url: str) -> None:
        """Take the URL of the folder."""
        self.url = url.rstrip("/")
        self._mirror: TemporaryDirectory[str] | None = None

    def make_ready(self) -> None:
        """See `Store`: credentials in a URL are refused, and a web page; the rest shows with the first run."""
        remote.refuse_web_page(self.url)
        remote.exists(self.url)

    def close(self) -> None:
        """See `Store`."""
        if self._mirror is not None:
            self._mirror.cleanup()
            self._mirror = None

    def _read(self, *parts: str) -> dict[str, Any] | None:
        url = "/".join([self.url, *parts])
        return _parsed(remote.read_text(url)) if remote.exists(url) else None

    def whole_record(self, name: str, key: str) -> dict[str, Any] | None:
        """See `Store`."""
        record = self._read(name, RECORD)
        if record is None or not _is_whole(record, key):
            return None
        return record if all(remote.exists(f"{self.url}/{name}/{needed}") for needed in _needed(record)) else None

    def failure(self, name: str, key: str) -> dict[str, Any] | None:
        """See `Store`."""
        record = self._read(FAILURES, f"{name}.json")
        return record if record is not None and record.get("key") == key else None

    def write_failure(self, record: Mapping[str, Any]) -> None:
        """See `Store`."""
        with TemporaryDirectory() as folder:
            file = f"{record['name']}.json"
            write_whole(Path(folder) / file, json.dumps(record, indent=1) + "\n")
            remote.put_folder(Path(folder), f"{self.url}/{FAILURES}", last=file)

    def forget_failures(self, dumps: Mapping[str, str], notebook: str) -> None:
        """See `Store`: an object store keeps the record, marked as overtaken."""
        for url in self._listed(FAILURES):
            record = _parsed(remote.read_text(url))
            if record is not None and _is_outdated(record, dumps, notebook):
                self.write_failure({**record, "key": "", "message": "", "is_overtaken": True})

    def _listed(self, part: str = "") -> list[str]:
        url = f"{self.url}/{part}" if part else self.url
        return remote.list_files(url) if remote.exists(url) else []

    @contextmanager
    def place(self, name: str) -> Iterator[Path]:
        """See `Store`."""
        with TemporaryDirectory(prefix="rooflog-") as folder:
            yield Path(folder)
            record = _read(Path(folder) / name / RECORD)
            if record is not None and not has_passed(record["exit_code"], record["message"]):
                remote.put_folder(Path(folder) / name, f"{self.url}/{name}", last=RECORD)

    def discard(self, name: str) -> None:
        """See `Store`: nothing needs to go, the next run writes over it."""

    @contextmanager
    def mirror(self) -> Iterator[Path]:
        """See `Store`: small files of every run are fetched once."""
        if self._mirror is None:
            self._mirror = TemporaryDirectory(prefix="rooflog-")
        folder = Path(self._mirror.name)
        for url in self._listed():
            name, _, file = url.removeprefix(self.url + "/").rpartition("/")
            if file not in (RECORD, scorecard.FILE_NAME) and name != FAILURES:
                continue
            if name == FAILURES or not (folder / name / file).is_file():
                (folder / name).mkdir(parents=True, exist_ok=True)
                copy = remote.fetch(url, folder / name)
                if name == FAILURES and (_read(copy) or {}).get("is_overtaken"):
                    copy.unlink()
        yield folder
        with TemporaryDirectory() as made:
            for file in ("scorecards.parquet", "scorecards.csv", "levels.parquet", "index.html"):
                if (folder / file).is_file():
                    os.link(folder / file, Path(made) / file)
            if (Path(made) / "index.html").is_file():
                remote.put_folder(Path(made), self.url, last="index.html")
