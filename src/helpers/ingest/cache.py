"""What files held that took long to read, kept so that the same bytes need not be read again.

Plain logs are mostly read faster than an entry is; exports, scrapes and packed logs take long. An entry is one Parquet
file: the records as its table, everything else as JSON in its metadata. Its name holds the size of the file that was
read (one that no entry has is read without hashing it first), a key made of the file's SHA-256, its path, and the text
of the readers (so a changed reader finds no entry of the one before), and the SHA-256 of the entry itself: one that is
damaged is removed and the file read. Nothing here ever fails a reading.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import hashlib
import io
import json
import os
import stat
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import polars as pl

from helpers import unpack
from helpers.ingest.accounting import MalformedLine
from helpers.ingest.events import Event
from helpers.ingest.export_scan import ExportScan
from helpers.ingest.scan import FileScan

OFF_VARIABLE = "ROOFLOG_NO_CACHE"
"""Environment variable that turns the cache off when it is set to anything but 0."""

FOLDER_VARIABLE = "ROOFLOG_CACHE_DIR"
"""Environment variable that names the folder, in place of rooflog/ in the user's cache folder."""

LEAST_S = 0.2
"""A file that is read faster is not kept: an entry is found and loaded in some 20 ms, and fills the folder [s]."""

FAST_BYTES_PER_S = 250e6
"""A file that is read at such a rate is not kept either: hashing it and loading its records takes as long [B/s]."""

MAX_CACHE_BYTES = 2**30
"""All entries together; the ones not used for longest go first. Records of a 2 GB log take 50 to 200 MB."""

_STALE_S = 3600.0
"""Age from which an unfinished entry belongs to a process that is gone."""

_META = "rooflog"
_LINES = ("lines", "known", "oddities")
_PLAIN = ("unplaced", "gaps_s", "path", "n_lines", "n_bytes", "notes")
_EXPORT = ("export", "restarts", "facts")


def read_through(path: str, read: Callable[[str], FileScan]) -> FileScan:
    """Return what a file holds: from the cache if it holds the same bytes, else by ``read``, and keep that.

    Parameters
    ----------
    path : str
        A file; anything else is just read.
    read : callable
        Path -> what was found.
    """
    folder, size = _folder(), _size_bytes(path)
    if folder is None or size is None:
        return read(path)
    with contextlib.suppress(OSError):
        if any(folder.glob(f"{size}-*.parquet")):
            sha256 = _sha256(path)
            found = _find(folder, size, _key(sha256, path))
            if found is not None and (found.n_bytes, found.digest()) == (size, sha256):
                return found
    start_s = time.perf_counter()
    scan = read(path)
    if time.perf_counter() - start_s < max(LEAST_S, size / FAST_BYTES_PER_S):
        return scan
    if scan.n_bytes == size == _size_bytes(path) and scan.digest():
        with contextlib.suppress(OSError, ValueError, TypeError, RecursionError):
            _keep(folder, scan)
    return scan


def _folder() -> Path | None:
    """Return where entries are; None if the cache is off."""
    if os.environ.get(OFF_VARIABLE, "0") not in ("", "0"):
        return None
    if given := os.environ.get(FOLDER_VARIABLE):
        return Path(given)
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "rooflog" / "ingest" if os.path.isabs(base) else None


def _size_bytes(path: str) -> int | None:
    """Return the size of a regular file; None for anything else, standard input ('-') too."""
    if path == "-":  # a file may have that name
        return None
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def _sha256(path: str) -> str:
    with open(path, "rb", buffering=0) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@functools.lru_cache(maxsize=1)
def reader_version() -> str:
    """Return a name of the readers as they are: it changes with any of their source text, and with polars."""
    digest = hashlib.sha256(pl.__version__.encode())
    folder = Path(__file__).parent
    for source in sorted([*folder.rglob("*.py"), *folder.rglob("*.c"), Path(unpack.__file__)]):
        digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    return digest.hexdigest()


def _key(sha256: str, path: str) -> str:
    """Return the key of a file's content read under a path; how much may be unpacked matters too."""
    parts = (reader_version(), sha256, path, os.environ.get(unpack.LIMIT_VARIABLE, ""))
    return hashlib.sha256("\0".join(parts).encode(errors="surrogatepass")).hexdigest()[:32]


def _find(folder: Path, size: int, key: str) -> FileScan | None:
    """Return the entry of a key; None if there is none that is whole."""
    for path in folder.glob(f"{size}-{key}-*.parquet"):
        data = path.read_bytes()
        if hashlib.sha256(data).hexdigest()[:32] == path.stem.rpartition("-")[2]:
            with contextlib.suppress(OSError):
                os.utime(path)  # used now: the last to go
            return _load(data)
        path.unlink(missing_ok=True)
    return None


def _keep(folder: Path, scan: FileScan) -> None:
    """Write an entry, whole or not at all, and make room for it.

    Raises
    ------
    ValueError, TypeError
        Something in it would not come back as it is.
    """
    data = _dump(scan)
    if len(data) > MAX_CACHE_BYTES // 4:  # it would drive out all others
        return
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)  # logs may quote what is private
    _make_room(folder, MAX_CACHE_BYTES - len(data))
    name = f"{scan.n_bytes}-{_key(scan.digest(), scan.path)}-{hashlib.sha256(data).hexdigest()[:32]}.parquet"
    handle, unfinished = tempfile.mkstemp(dir=folder, prefix=".unfinished-")
    try:
        with open(handle, "wb") as file:
            file.write(data)
        os.replace(unfinished, folder / name)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(unfinished)
        raise


def _make_room(folder: Path, limit_bytes: int) -> None:
    """Remove the entries not used for longest until the others take no more than a limit, and what was left behind."""
    entries = []
    for path in folder.iterdir():
        with contextlib.suppress(OSError):
            status = path.stat()
            if path.suffix == ".parquet":
                entries.append((status.st_mtime, status.st_size, path))
            elif path.name.startswith(".unfinished-") and time.time() - status.st_mtime > _STALE_S:
                path.unlink()
    total = sum(size for _, size, _ in entries)
    for _, size, path in sorted(entries):
        if total <= limit_bytes:
            return
        with contextlib.suppress(OSError):
            path.unlink()
        total -= size


def _dump(scan: FileScan) -> bytes:
    """Return an entry."""
    if isinstance(scan, ExportScan) and scan.pending:
        raise ValueError("some rows are in no table yet")
    rest: dict[str, Any] = {name: dict(getattr(scan, name)) for name in _LINES}
    rest |= {name: getattr(scan, name) for name in _PLAIN}
    rest["sha256"] = scan.digest()
    rest["events"] = [asdict(event) for event in scan.events]
    rest["malformed"] = [asdict(line) for line in scan.malformed]
    rest["n_frames"] = len(scan.samples)
    if isinstance(scan, ExportScan):
        rest["of_export"] = {name: getattr(scan, name) for name in _EXPORT}
        moments = [_parquet(pl.concat(scan.moments), {})] if scan.moments else []
        rest["moments"] = [base64.b64encode(data).decode() for data in moments]
    text = json.dumps(rest)
    if not _is_same(json.loads(text), rest):
        raise ValueError("some value is no JSON")
    table = pl.concat(scan.samples, how="diagonal") if scan.samples else pl.DataFrame()
    return _parquet(table, {_META: text})


def _is_same(one: Any, other: Any) -> bool:
    """Tell whether two values are equal, and of the same types all the way down."""
    if type(one) is not type(other):
        return False
    if isinstance(one, Mapping):
        return list(one) == list(other) and all(_is_same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(_is_same, one, other))
    return bool(one == other)


def _parquet(table: pl.DataFrame, metadata: dict[str, str]) -> bytes:
    stream = io.BytesIO()
    table.write_parquet(stream, compression="lz4", statistics=False, metadata=metadata)
    return stream.getvalue()


def _load(data: bytes) -> FileScan:
    """Return what an entry holds."""
    rest = json.loads(pl.read_parquet_metadata(io.BytesIO(data))[_META])
    n_frames, of_export = rest.pop("n_frames"), rest.pop("of_export", None)
    moments = [pl.read_parquet(io.BytesIO(base64.b64decode(each))) for each in rest.pop("moments", [])]
    rest |= {name: Counter(rest[name]) for name in _LINES}
    rest["events"] = [Event(**event) for event in rest["events"]]
    rest["malformed"] = [MalformedLine(**line) for line in rest["malformed"]]
    rest["digest"] = functools.partial(str, rest.pop("sha256"))
    rest["samples"] = [pl.read_parquet(io.BytesIO(data))] if n_frames else []
    if of_export is None:
        return FileScan(**rest)
    return ExportScan(**rest, **of_export, moments=moments)
