"""Logs behind URLs: read from a local copy, told of under their URL."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace

from helpers import remote
from helpers.ingest.scan import FileScan

Report = Callable[[int], None]


def stored_bytes(path: str) -> int:
    """Return the size of an input, a path or a URL; 0 where it is not known before its end."""
    if remote.is_url(path):
        return remote.size_bytes(path) or 0
    return os.path.getsize(path) if path != "-" else 0


def scan_copy(url: str, scan: Callable[[str, Report | None], FileScan], report: Report | None = None) -> FileScan:
    """Read a file behind a URL from a copy that lives no longer than the call.

    Parameters
    ----------
    url : str
        Of one file.
    scan : callable
        Local path and ``report`` -> what was found.
    report : callable, optional
        Called with the bytes read so far; receiving a byte and reading it count half each.

    Returns
    -------
    FileScan
        Path, notes and malformed lines name the URL.

    Raises
    ------
    RemoteError
        The file cannot be fetched.
    LogFormatError
        As by ``scan``; the message names the URL.
    """
    received = [0]

    def receive(n_bytes: int) -> None:
        received[0] = n_bytes
        if report is not None:
            report(n_bytes // 2)

    def read(n_bytes: int) -> None:
        if report is not None:
            report((received[0] + n_bytes) // 2 if received[0] else n_bytes)

    with remote.local_copy(url, receive) as local:
        found = scan(local, read)
    found.path = url
    found.notes = [note.replace(local, url) for note in found.notes]
    found.malformed = [replace(line, file=url) for line in found.malformed]
    return found
