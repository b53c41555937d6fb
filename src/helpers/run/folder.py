"""Run folders: made hidden beside their place, moved there in one step."""

from __future__ import annotations

import json
import os
import platform
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

from helpers import report
from helpers.schema import RooflogError

PARTIAL_PREFIX = ".partial-"


@contextmanager
def make_workspace(destination: Path) -> Iterator[Path]:
    """Yield a hidden folder beside the run folder to come; whatever is left in it at the end disappears."""
    created = [folder for folder in (destination, *destination.parents) if not folder.exists()]
    workspace = destination / f"{PARTIAL_PREFIX}{machine_name()}-{os.getpid()}-{uuid.uuid4().hex[:12]}"
    try:
        destination.mkdir(parents=True, exist_ok=True)
        workspace.mkdir()
    except OSError as error:
        raise RooflogError(
            f"{destination}: expected a folder to write in, found: {error.strerror}; choose another with --out"
        ) from error
    remove_stale(destination)
    try:
        yield workspace
    finally:
        shutil.rmtree(workspace, ignore_errors=True)
        for folder in created:
            if not folder.is_dir() or any(folder.iterdir()):
                break
            folder.rmdir()


def remove_stale(destination: Path, prefix: str = PARTIAL_PREFIX) -> None:
    """Remove the hidden folders of killed runs: only those made on this machine by a process that is gone."""
    for folder in destination.glob(f"{prefix}{machine_name()}-*-*"):
        pid = folder.name.split("-")[-2]
        if pid.isdecimal() and folder.is_dir() and not _is_alive(int(pid)):
            shutil.rmtree(folder, ignore_errors=True)


def machine_name() -> str:
    """Name this machine in a few letters: a process number means nothing on another one that shares the folder."""
    return sha256(platform.node().encode()).hexdigest()[:8]


def _is_alive(pid: int) -> bool:
    """Tell whether a process runs; where that cannot be told, it does."""
    if os.name != "posix" or pid < 1:  # elsewhere signal 0 ends a process
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


def publish(workspace: Path, destination: Path, name: str, notebook_name: str, *, exact: bool = False) -> Path:
    """Name the folder inside its own files, write the report, and rename it into place.

    Parameters
    ----------
    workspace, destination : Path
        The hidden folder, and the folder that gets it.
    name : str
        Of the run folder.
    notebook_name : str
        File name of the executed notebook.
    exact : bool
        Take that name or none; else ``-2`` and so on follow a name that is taken.

    Raises
    ------
    RooflogError
        The name, or a thousand of them, is taken.
    """
    executed = workspace / notebook_name
    text = executed.read_text(encoding="utf-8")
    for attempt in range(1, 2 if exact else 1000):
        folder = destination / (name if attempt == 1 else f"{name}-{attempt}")
        if folder.exists():
            continue
        old, new = (json.dumps(str(path), ensure_ascii=False)[1:-1] for path in (workspace, folder))
        executed.write_text(text.replace(old, new), encoding="utf-8")
        report.write_report(workspace)
        try:
            os.rename(workspace, folder)
        except OSError:
            if folder.exists():  # another run took the name between the look and the step
                continue
            raise
        return folder
    if exact:
        raise RooflogError(f"{destination / name}: expected a free name for the run folder, found it taken")
    raise RooflogError(f"{destination}: expected a free name {name}-k, found a thousand taken; choose another --out")
