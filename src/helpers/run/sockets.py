"""Where runner and kernel meet: Unix sockets in a folder that only this user can enter."""

from __future__ import annotations

import atexit
import itertools
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from jupyter_client.manager import AsyncKernelManager

from helpers.run.folder import machine_name, remove_stale

PREFIX = "rooflog-"

MAX_PATH_BYTES = 100
"""Longest path of a socket: 104 bytes on macOS, 108 on Linux (sun_path of unix(4), unix(7)), less the ending of one."""

_folders: dict[int, Path] = {}
_counter = itertools.count(1)


def private_folder() -> Path:
    """Return this process's folder for sockets, made at the first call (mode 0700) and removed at the end.

    Those of processes that were killed are removed at that occasion.

    Raises
    ------
    OSError
        No folder for temporary files has a path short enough for a socket.
    """
    found = _folders.get(os.getpid())
    if found is not None and found.is_dir():
        return found
    name = f"{PREFIX}{machine_name()}-{os.getpid()}-"
    for place in dict.fromkeys((tempfile.gettempdir(), "/tmp", "/var/tmp")):
        if len(os.fsencode(f"{place}/{name}12345678/999999-ipc-5")) <= MAX_PATH_BYTES and os.access(place, os.W_OK):
            break
    else:
        raise OSError(f"{tempfile.gettempdir()}: expected a folder for temporary files with a shorter path")
    remove_stale(Path(place), PREFIX)
    _folders[os.getpid()] = Path(tempfile.mkdtemp(prefix=name, dir=place))
    return _folders[os.getpid()]


@atexit.register
def remove_private_folder() -> None:
    """Remove this process's folder for sockets, if there is one."""
    folder = _folders.pop(os.getpid(), None)
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)


class LocalKernelManager(AsyncKernelManager):
    """Manages a kernel reached over Unix sockets where the machine has them: nobody else can connect."""

    def __init__(self, **kwargs: Any) -> None:
        if hasattr(os, "fork"):
            folder = private_folder()
            kwargs = {"transport": "ipc", "connection_file": str(folder / f"{next(_counter)}.json")} | kwargs
        super().__init__(**kwargs)
