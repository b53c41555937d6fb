"""What a batch works on: one dump per log, or per folder of logs, each with the facts that lie beside it."""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from helpers import remote
from helpers.ingest.exports import find_export
from helpers.ingest.foreign import is_foreign
from helpers.ingest.sources import EXPORT_SUFFIXES, LOG_SUFFIXES, log_suffix, natural_key
from helpers.schema import LogFormatError

GROUPS = ("file", "folder")
FACTS_NAMES = ("facts.yaml", "facts.yml", "facts.json")

_MAX_NAMED = 10
"""Texts that are left out and named; of more their number is told."""

_LONGEST_NAME = 80
"""Of a dump's part of a run folder's name [characters]: file systems allow 255 bytes, the key takes 13."""


@dataclass(frozen=True)
class Dump:
    """One thing to run a notebook on.

    Attributes
    ----------
    name : str
        Start of the run folder's name: letters, digits and ``._-+`` only.
    path : str
        File, folder or URL as it is reported; absolute where it is local.
    logs : tuple of str
        What the notebook gets: the file, the folder, or the files of a folder.
    facts : str
        Path or URL of the dump's own facts; empty if there are none.
    """

    name: str
    path: str
    logs: tuple[str, ...]
    facts: str = ""


@dataclass
class _Found:
    """Dumps in order, each once, and what was passed over."""

    group: str
    out: str
    dumps: list[Dump] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    seen: set[str] = field(default_factory=set)
    named: dict[str, list[str]] = field(default_factory=dict)

    def add(self, path: str, logs: Sequence[str], facts: str) -> None:
        real = path if remote.is_url(path) else os.path.realpath(path)
        if real not in self.seen:
            self.seen.add(real)
            self.dumps.append(Dump(dump_name(path), path, tuple(logs), facts))


def find_dumps(paths: Sequence[str | os.PathLike[str]], *, group: str = "file", out: str = "") -> \
        tuple[list[Dump], list[str]]:
    """Expand files, folders, globs and URLs into dumps.

    Parameters
    ----------
    paths : sequence of str or path
        A file is a dump. A folder is searched recursively for files named like logs; hidden ones are left out, and
        small texts with nothing of a server in them.
    group : str
        "file": each log of a folder is a dump. "folder": each folder that itself holds a log is one, read as the logs
        of the ranks of one server.
    out : str
        A folder that is not searched: the batch's own.

    Returns
    -------
    dumps : list of Dump
        In the order given, inside folders and globs in natural order; each file or folder once.
    notes : list of str
        What was passed over and why, one line per reason.

    Raises
    ------
    LogFormatError
        A path that does not exist, a glob that matches nothing, or no log in all of it.
    """
    if group not in GROUPS:
        raise LogFormatError(f"--group {group}: expected {' or '.join(GROUPS)}")
    found = _Found(group, "" if not out or remote.is_url(out) else os.path.realpath(os.path.expanduser(out)))
    names = [os.fspath(path) for path in paths]
    for item in names:
        if remote.is_url(item):
            _add_url(found, item)
            continue
        path = os.path.abspath(os.path.expanduser(item))
        if os.path.isdir(path):
            _add_folder(found, path)
        elif os.path.exists(path):
            _add_file(found, path)
        elif glob.has_magic(item):
            matches = sorted(glob.glob(path, recursive=True), key=natural_key)
            for match in matches:
                _add_file(found, match) if os.path.isfile(match) else _add_folder(found, match)
            if not matches:
                raise LogFormatError(f"{item}: expected a pattern that matches logs, found no match. Check the pattern")
        else:
            raise LogFormatError(f"{item}: no such file or folder; expected a server log. Check the path")
    for directory, names in found.named.items():
        _add_logs_of(found, directory, names, has_others=True)
    if not found.dumps:
        raise LogFormatError(
            f"{', '.join(names)}: expected logs ({', '.join(LOG_SUFFIXES[1:])}, also .gz and .zst), "
            "found none. Name the files themselves if they are called otherwise"
        )
    return found.dumps, found.notes


def dump_name(path: str) -> str:
    """Name a dump after its file or folder: ``/logs/server.log.2.gz`` -> ``server``.

    Examples
    --------
    >>> dump_name("s3://bucket/run 7/"), dump_name("/logs/server.log.2.gz")
    ('run_7', 'server')
    """
    last = PurePosixPath(path.replace(os.sep, "/").partition("?")[0]).name
    suffix = log_suffix(last)
    is_log = suffix and suffix in (*LOG_SUFFIXES, *EXPORT_SUFFIXES)
    stem = last[: last.lower().rindex(suffix)] if is_log else last
    plain = "".join(c if c.isascii() and (c.isalnum() or c in "._-+") else "_" for c in stem)
    return plain.lstrip(".")[:_LONGEST_NAME] or "dump"


def _add_file(found: _Found, path: str) -> None:
    """Add a file, whatever it is called; where folders are dumps, those of one folder are put together at the end."""
    if found.group == "folder":
        found.named.setdefault(os.path.dirname(path), []).append(os.path.basename(path))
    else:
        found.add(path, [path], _facts_in(os.path.dirname(path)))


def _add_folder(found: _Found, folder: str) -> None:
    """Add every log in a folder."""
    holding: dict[str, list[str]] = {}
    foreign: list[str] = []
    n_exports, n_unnamed, visited = 0, 0, set()
    for directory, names, files in os.walk(folder, followlinks=True, onerror=lambda error: found.notes.append(
        f"{error.filename}: cannot be read ({error.strerror})"
    )):
        real = os.path.realpath(directory)
        if real in visited or real == found.out:
            names.clear()
            continue
        visited.add(real)
        n_unnamed += sum(not _is_text(name) for name in (*files, *names))
        names[:] = sorted((name for name in names if not name.startswith(".") and _is_text(name)), key=natural_key)
        logs = [name for name in sorted(files, key=natural_key) if _is_log(directory, name)]
        others = {name for name in logs if is_foreign(os.path.join(directory, name))}
        foreign += [os.path.relpath(os.path.join(directory, name), folder) for name in logs if name in others]
        logs = [name for name in logs if name not in others]
        n_exports += sum(log_suffix(name) in EXPORT_SUFFIXES for name in files if name not in FACTS_NAMES)
        if logs:
            holding[directory] = logs
    for directory, logs in holding.items():
        if found.group == "file":
            for name in logs:
                _add_file(found, os.path.join(directory, name))
        else:
            _add_logs_of(found, directory, logs, has_others=any(
                other.startswith(directory.rstrip(os.sep) + os.sep) for other in holding))
    if n_unnamed:
        found.notes.append(f"{folder}: {n_unnamed} names are not UTF-8 and were left out; rename them")
    if foreign:
        more = f" and {len(foreign) - _MAX_NAMED} more" if len(foreign) > _MAX_NAMED else ""
        found.notes.append(f"{folder}: {len(foreign)} texts have nothing of a server in them and were left out: "
                           f"{', '.join(foreign[:_MAX_NAMED])}{more}; name one to have it tried")
    _note_exports(found, folder, n_exports)


def _note_exports(found: _Found, folder: str, n_exports: int) -> None:
    """Say how many files beside logs are no dumps."""
    if found.group == "file" and n_exports:
        found.notes.append(f"{folder}: {n_exports} files of scrapes or metrics are no dumps of their own; name them, "
                           "or read them beside their log with --group folder")


def _add_logs_of(found: _Found, directory: str, logs: Sequence[str], *, has_others: bool) -> None:
    """Add a folder as one dump: as a whole, which also reads exports beside the logs, unless it holds other dumps."""
    facts = _facts_in(directory) or _facts_in(os.path.dirname(directory))
    found.add(directory, [os.path.join(directory, name) for name in logs] if has_others else [directory], facts)


def _is_log(directory: str, name: str) -> bool:
    """Tell whether a file is named like a log."""
    return (_is_text(name) and not name.startswith(".") and log_suffix(name) in LOG_SUFFIXES
            and os.path.isfile(os.path.join(directory, name)))


def _is_text(name: str) -> bool:
    """Tell whether a name can be written down: names of files may hold any bytes."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _facts_in(directory: str) -> str:
    """Return the path of the facts in a folder; empty if there are none."""
    return next((str(file) for name in FACTS_NAMES if (file := Path(directory) / name).is_file()), "")


def _add_url(found: _Found, url: str) -> None:
    """Add a URL: a file, a folder, or a pattern."""
    files = remote.list_files(url)
    is_searched = files != [url] and not remote.is_pattern(url)
    if is_searched:
        start = len(url.rstrip("/")) + 1
        files = [file for file in files if not any(part.startswith(".") for part in file[start:].split("/"))]
    facts = {_parent(file): file for file in reversed(files) if _last(file) in FACTS_NAMES}
    logs = [file for file in files
            if _last(file) not in FACTS_NAMES and (not is_searched or log_suffix(_last(file)) in LOG_SUFFIXES)]
    exports = [file for file in files if is_searched and _last(file) not in FACTS_NAMES
               and log_suffix(_last(file)) in EXPORT_SUFFIXES]
    if not facts and not is_searched:  # a listing of logs only: look beside them
        beside = [f"{parent}/{name}" for parent in dict.fromkeys(map(_parent, logs)) for name in FACTS_NAMES]
        facts = {_parent(file): file for file in reversed(beside) if remote.exists(file)}
    if found.group == "file":
        for file in logs:
            found.add(file, [file], facts.get(_parent(file), ""))
        _note_exports(found, url, len(exports))
        return
    for parent in dict.fromkeys(map(_parent, logs)):
        own = facts.get(parent) or facts.get(_parent(parent), "")
        beside = [file for file in exports if _parent(file) == parent and find_export(file) is not None]
        found.add(parent, [*(file for file in logs if _parent(file) == parent), *beside], own)


def _last(url: str) -> str:
    return url.partition("?")[0].rstrip("/").rpartition("/")[2]


def _parent(url: str) -> str:
    return url.partition("?")[0].rstrip("/").rpartition("/")[0]
