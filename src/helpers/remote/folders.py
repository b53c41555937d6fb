"""Folders written to URLs, never taken for whole before they are."""

from __future__ import annotations

import json
import uuid
from pathlib import Path, PurePosixPath
from typing import Any

from helpers.remote.errors import told
from helpers.remote.files import exists, read_text, size_of
from helpers.remote.listing import file_system_of, natural
from helpers.remote.urls import LOCAL_SCHEMES, WEB_SCHEMES, RemoteError, join, scheme_of, shown


def put_folder(folder: str | Path, url: str, last: str = "run.json") -> None:
    """Upload a folder so that it is never taken for whole before it is: one file, the marker, goes last.

    An older marker at the URL is removed first. Other files that are there already and not in the folder stay.

    Parameters
    ----------
    folder : path
        All files in it and below are uploaded.
    url : str
        Folder that gets them.
    last : str
        Name of the marker, a file of the folder.

    Raises
    ------
    RemoteError
        No marker in the folder; the URL cannot be written; a file has another size there than here.
    """
    root = Path(folder)
    names = [path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()]
    if last not in names:
        raise RemoteError(f"{folder}: expected a folder with {last}, found none; it is not whole, nothing was uploaded")
    refuse_web_page(url)
    with told(url, "written"):
        file_system, base = file_system_of(url)
        file_system.invalidate_cache()
        base = base.rstrip("/")
        try:
            file_system.rm_file(f"{base}/{last}")
        except FileNotFoundError:
            pass
        for name in sorted((name for name in names if name != last), key=natural):
            _put(file_system, root / name, f"{base}/{name}", url)
        if scheme_of(url) not in LOCAL_SCHEMES:  # an object appears in one step
            _put(file_system, root / last, f"{base}/{last}", url)
            return
        partial = f"{base}/.partial-{uuid.uuid4().hex[:12]}"
        _put(file_system, root / last, partial, url)
        file_system.mv(partial, f"{base}/{last}")


def refuse_web_page(url: str) -> None:
    """Raise RemoteError if a URL is that of a web page, which cannot be written."""
    if scheme_of(url) in WEB_SCHEMES:
        raise RemoteError(f"{shown(url)}: expected a URL that can be written (s3://, gs://, file://), found a web page")


def _put(file_system: Any, path: Path, target: str, url: str) -> None:
    """Upload one file and look whether it is there whole."""
    file_system.put_file(str(path), target)
    file_system.invalidate_cache()
    size, there = path.stat().st_size, size_of(file_system.info(target))
    if there not in (size, None):
        name = PurePosixPath(target).name
        raise RemoteError(f"{shown(url)}: {name}: expected {size} bytes there, found {there}. Try again")


def is_whole(url: str, marker: str = "run.json") -> bool:
    """Tell whether a folder was uploaded whole: its marker is there, not empty, and readable if it is JSON.

    Raises
    ------
    RemoteError
        That cannot be told: no package, credentials or connection.
    """
    place = join(url, marker)
    if not exists(place):
        return False
    text = read_text(place)
    if not marker.endswith(".json"):
        return bool(text)
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False
