"""Files behind URLs: read, fetched whole or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from helpers.remote.errors import RemoteFileMissing, told
from helpers.remote.listing import file_system_of
from helpers.remote.urls import LOCAL_SCHEMES, WEB_SCHEMES, RemoteError, is_url, scheme_of, shown
from helpers.schema import RooflogError

MAX_TEXT_BYTES = 64 * 2**20
"""Largest file that `read_text` takes into memory; scorecards and run records are below 1 MB."""


def size_bytes(url: str) -> int | None:
    """Return the size of a file; None where the server does not tell.

    Raises
    ------
    RemoteError
        As `fetch`.
    """
    with told(url, "read"):
        file_system, path = file_system_of(url)
        return size_of(file_system.info(path))


def size_of(info: dict[str, Any]) -> int | None:
    """Return the size of a file by what fsspec says of it."""
    size = info.get("size")
    return int(size) if isinstance(size, int) and info.get("type") == "file" else None


def exists(url: str) -> bool:
    """Tell whether there is a file or folder at a URL.

    Raises
    ------
    RemoteError
        That cannot be told: no package, credentials or connection.
    """
    try:
        with told(url, "read"):
            file_system, path = file_system_of(url)
            file_system.invalidate_cache()
            file_system.info(path)
    except RemoteFileMissing:
        return False
    return True


def read_start(url: str, n_bytes: int) -> bytes:
    """Return the first bytes of a file as stored; the rest is not transferred where the server allows that.

    Raises
    ------
    RemoteError
        As `fetch`.
    """
    with told(url, "read"):
        file_system, path = file_system_of(url)
        with file_system.open(path, "rb", block_size=max(n_bytes, 1)) as file:
            return bytes(file.read(n_bytes))


def read_text(url: str) -> str:
    """Return a small file as text.

    Raises
    ------
    RemoteError
        As `fetch`; a file above `MAX_TEXT_BYTES`, or one that is not UTF-8.
    """
    start = read_start(url, MAX_TEXT_BYTES + 1)
    if len(start) > MAX_TEXT_BYTES:
        raise RemoteError(f"{shown(url)}: expected a text of at most {MAX_TEXT_BYTES} bytes, found more")
    try:
        return start.decode()
    except UnicodeDecodeError as error:
        raise RemoteError(f"{shown(url)}: expected a text in UTF-8, found other bytes") from error


def fetch(url: str, folder: str | Path, report: Callable[[int], None] | None = None) -> Path:
    """Download a file into a folder, whole or not at all.

    Parameters
    ----------
    url : str
        Of one file.
    folder : path
        Gets the file under its own name, so that .gz and the numbers of rotated logs are seen.
    report : callable, optional
        Called with the bytes received so far.

    Returns
    -------
    Path
        The local file.

    Raises
    ------
    RemoteFileMissing
        No such file.
    RemoteError
        A folder; no package, credentials or connection; fewer bytes than the store has; no room on the local disk.
    """
    target = Path(folder) / _file_name(url)
    partial = Path(folder) / f".partial-{uuid.uuid4().hex[:12]}"
    with told(url, "fetched"):
        file_system, path = file_system_of(url)
        info = file_system.info(path)
        if info["type"] == "directory":
            raise RemoteError(f"{shown(url)}: expected a file, found a folder. Name a file in it")
        size = size_of(info)
        free = shutil.disk_usage(folder).free
        if size is not None and size > free:
            raise RemoteError(f"{shown(url)}: expected room for {size} bytes in {folder}, found {free}. Make room, or "
                              "set TMPDIR to another disk")
        try:
            file_system.get_file(path, str(partial), **({"callback": _callback(report)} if report else {}))
            n_bytes = partial.stat().st_size
            if size is not None and n_bytes < size:  # more is a log that grew meanwhile
                raise RemoteError(f"{shown(url)}: expected {size} bytes, received {n_bytes}: the connection was lost, "
                                  "or the file is being replaced. Try again")
            os.replace(partial, target)
        finally:
            partial.unlink(missing_ok=True)
    return target


def _callback(report: Callable[[int], None]) -> Any:
    """Return fsspec's way to hear of bytes received."""
    from fsspec.callbacks import Callback

    return Callback(hooks={"report": lambda size, value, **_: report(value)})


def _file_name(url: str) -> str:
    """Return the name of a URL's file as a plain local one."""
    is_web = scheme_of(url) in WEB_SCHEMES
    name = url.partition("://")[2].rstrip("/")
    name = unquote(name.partition("?")[0].partition("#")[0].rpartition("/")[2]) if is_web else name.rpartition("/")[2]
    plain = "".join("_" if letter in '/\\:*?"<>|' or not letter.isprintable() else letter for letter in name)
    return plain.encode()[-200:].decode(errors="ignore").lstrip(".") or "file"  # file names hold up to 255 bytes


@contextmanager
def local_copy(path: str, report: Callable[[int], None] | None = None) -> Iterator[str]:
    """Give a local file for a path or URL for as long as the block lasts; errors raised in it name the URL.

    Parameters
    ----------
    path : str
        A local path (given as it is), or the URL of a file (fetched into a temporary folder; file:// is read in place).
    report : callable, optional
        Called with the bytes received so far.

    Raises
    ------
    RemoteError
        As `fetch`.
    """
    if not is_url(path):
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="rooflog-") as folder:
        if scheme_of(path) in LOCAL_SCHEMES:
            with told(path, "read"):
                local = file_system_of(path)[1]
        else:
            local = str(fetch(path, folder, report))
        try:
            yield local
        except RooflogError as error:
            raise type(error)(str(error).replace(local, path)) from error
