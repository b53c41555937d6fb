"""From what the user names to the files that are read: folders, globs, standard input."""

from __future__ import annotations

import glob
import os
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from helpers import remote
from helpers.ingest.exports import find_export
from helpers.schema import LogFormatError, printable

LOG_SUFFIXES = ("", ".log", ".txt", ".out", ".err", ".stderr", ".stdout")
"""File name endings that a folder's logs have, before .gz or .zst; rotated parts (.1, .2024-01-01) also count."""

EXPORT_SUFFIXES = (".json", ".jsonl", ".ndjson", ".prom", ".metrics")
"""Endings of files that may tell more than a log; in a folder only those count that do (`exports`)."""

_PACKED = (".gz", ".zst", ".zstd")
_ROTATION = re.compile(r"(?:[._-]?\d[\d._-]*)$")

SourceLike = str | os.PathLike[str]


@dataclass(frozen=True)
class Source:
    """One file that was read: path as given, SHA-256 and size of its stored bytes."""

    path: str
    sha256: str
    n_bytes: int


@dataclass(frozen=True)
class Inputs:
    """Paths to read, whether files without statistics may be among them, and what was skipped and why."""

    paths: tuple[str, ...]
    is_searched: bool
    notes: tuple[str, ...]


def find_inputs(source: SourceLike | Sequence[SourceLike], *, takes_urls: bool = False) -> Inputs:
    """Expand files, folders, globs and '-' into the files to read.

    Parameters
    ----------
    source : str, path or sequence of them
        A file, a folder (searched recursively for files named like logs), a glob, '-' for standard input.
    takes_urls : bool
        URLs of files, folders and globs are taken too, and stay URLs (`remote.local_copy` gives their bytes).

    Returns
    -------
    Inputs
        In the order given; inside folders and globs in natural order (rank2 before rank10).

    Raises
    ------
    LogFormatError
        Nothing given, a glob or a folder without a log, a path that does not exist.
    RemoteError
        A URL that cannot be listed, or that holds credentials.
    """
    given = [source] if isinstance(source, (str, os.PathLike)) else list(source)
    if not given:
        raise LogFormatError("no input: expected a log file, a folder, a glob or '-'. Name at least one")
    paths: list[str] = []
    notes: list[str] = []
    is_searched = False
    for item in [os.fspath(path) for path in given]:
        if "\0" in item or not _is_text(item):
            raise LogFormatError(f"{item}: expected a path in UTF-8 without NUL, found other bytes. Rename the file")
        if remote.is_url(item):
            remote.refuse_credentials(item)
            if not takes_urls:
                raise LogFormatError(f"{item}: expected a local path, found a URL. Download the log first")
            found, skipped = _search_url(item)
            paths += found
            notes += [f"skipped {reason}" for reason in skipped]
            is_searched |= found != [item]
        elif os.path.isdir(item):
            found, skipped = _search_folder(item)
            if not found:
                raise LogFormatError(_no_logs(item, skipped))
            paths += found
            notes += [f"skipped {reason}" for reason in skipped]
            is_searched = True
        elif item == "-" or os.path.exists(item):  # pipes too
            _refuse_device(item)
            paths.append(item)
        elif glob.has_magic(item):
            matches = [match for match in glob.glob(item, recursive=True) if os.path.isfile(match)]
            if not matches:
                name = remote.shown(item)
                raise LogFormatError(
                    f"{name}: expected a pattern that matches log files, found no match. Check the pattern"
                )
            paths += sorted(matches, key=natural_key)
            is_searched = True
        else:
            was_url = remote.is_url(item.replace(":/", "://", 1))
            advice = "A URL has two slashes, and Path drops one: give it as text" if was_url else "Check the path"
            raise LogFormatError(f"{remote.shown(item)}: no such file or folder; expected a server log. {advice}")
    return _without_repeats(paths, is_searched, notes)


_STREAMS = ("/dev/stdin", "/dev/fd/", "/dev/tty", "/dev/null", "/proc/self/fd/")


def _refuse_device(path: str) -> None:
    """Raise LogFormatError for a device that gives bytes for ever."""
    if path == "-" or path.startswith(_STREAMS):
        return
    mode = os.stat(path).st_mode
    if stat.S_ISCHR(mode) or stat.S_ISBLK(mode) or stat.S_ISSOCK(mode):
        raise LogFormatError(f"{path}: expected a log file, a folder or a pipe, found a device. Check the path")


def _without_repeats(paths: list[str], is_searched: bool, notes: list[str]) -> Inputs:
    """Read each file once, whatever links lead to it."""
    first_name: dict[str, str] = {}
    kept = []
    for path in paths:
        real = path if path == "-" or remote.is_url(path) else os.path.realpath(path)
        if real in first_name:
            notes.append(f"skipped {path}: the same file as {first_name[real]}")
        else:
            first_name[real] = path
            kept.append(path)
    return Inputs(tuple(kept), is_searched, tuple(notes))


def _search_folder(folder: str) -> tuple[list[str], list[str]]:
    """Return files named like logs and, for every other file, its path and why it was skipped."""
    found, skipped = [], []
    visited: set[str] = set()
    for directory, names, files in os.walk(folder, followlinks=True, onerror=lambda error: skipped.append(
        f"{error.filename}: cannot be read ({error.strerror})"
    )):
        real = os.path.realpath(directory)
        if real in visited:  # a link that leads back
            names.clear()
            continue
        visited.add(real)
        names[:] = sorted((name for name in names if not name.startswith(".")), key=natural_key)
        for name in sorted(files, key=natural_key):
            path = os.path.join(directory, name)
            if not _is_text(path):
                skipped.append(f"{printable(path)}: the name is not UTF-8")
            elif name.startswith("."):
                skipped.append(f"{path}: hidden file")
            elif not os.path.isfile(path):
                skipped.append(f"{path}: no regular file")
            elif (suffix := log_suffix(name)) not in (*LOG_SUFFIXES, *EXPORT_SUFFIXES):
                skipped.append(f"{path}: not named like a log (ends in {suffix})")
            elif _is_empty(path):
                skipped.append(f"{path}: empty")
            elif suffix in EXPORT_SUFFIXES and find_export(path) is None:
                skipped.append(f"{path}: no scrapes, snapshots or metrics that are read (ends in {suffix})")
            else:
                found.append(path)
    return found, skipped


def _search_url(url: str) -> tuple[list[str], list[str]]:
    """Return the file that a URL names, or those of a folder as `_search_folder` does."""
    every = remote.list_files(url)
    if every == [url] or remote.is_pattern(url):
        return every, []
    found, skipped = [], []
    for path in every:
        parts = path[len(url.rstrip("/")) + 1:].split("/")
        suffix = log_suffix(parts[-1])
        if any(part.startswith(".") for part in parts):
            skipped.append(f"{path}: hidden file")
        elif suffix not in (*LOG_SUFFIXES, *EXPORT_SUFFIXES):
            skipped.append(f"{path}: not named like a log (ends in {suffix})")
        elif remote.size_bytes(path) == 0:
            skipped.append(f"{path}: empty")
        elif suffix in EXPORT_SUFFIXES and find_export(path) is None:
            skipped.append(f"{path}: no scrapes, snapshots or metrics that are read (ends in {suffix})")
        else:
            found.append(path)
    if not found:
        raise LogFormatError(_no_logs(url, skipped))
    return found, skipped


def _no_logs(folder: str, skipped: list[str]) -> str:
    """Word the error of a folder without a log."""
    reasons = f" ({len(skipped)} files skipped, the first: {skipped[0]})" if skipped else ""
    return (f"{folder}: expected a folder with server logs ({', '.join(LOG_SUFFIXES[1:])}, also .gz and .zst), "
            f"found none{reasons}. Name the file itself if it is called otherwise")


def _is_text(path: str) -> bool:
    """Tell whether a path can be written down: names of files may hold any bytes."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_empty(path: str) -> bool:
    """Tell whether a file holds nothing; one that is gone since it was listed is found missing when it is read."""
    try:
        return os.path.getsize(path) == 0
    except OSError:
        return False


def log_suffix(name: str) -> str:
    """Return a name's ending without compression and rotation: ``server.log.2.gz`` -> ``.log``."""
    stem = stem_of(name)
    return Path(stem).suffix.lower()


def stem_of(name: str) -> str:
    """Return what rotated parts of one log have in common in their names."""
    stem = name
    for ending in _PACKED:
        stem = stem.removesuffix(ending)
    return _ROTATION.sub("", stem) or stem


def natural_key(name: str) -> list[tuple[int, str]]:
    """Sort key that puts rank2 before rank10."""
    return [(int(part) if part.isdigit() else -1, part) for part in re.split(r"(\d+)", name)]
