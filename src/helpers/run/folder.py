"""Run folders: made hidden beside their place, moved there in one step."""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from helpers import report
from helpers.schema import RooflogError

PARTIAL_PREFIX = ".partial-"


@contextmanager
def make_workspace(destination: Path) -> Iterator[Path]:
    """Yield a hidden folder beside the run folder to come; whatever is left in it at the end disappears."""
    created = [folder for folder in (destination, *destination.parents) if not folder.exists()]
    workspace = destination / f"{PARTIAL_PREFIX}{uuid.uuid4().hex[:12]}"
    try:
        destination.mkdir(parents=True, exist_ok=True)
        workspace.mkdir()
    except OSError as error:
        raise RooflogError(
            f"{destination}: expected a folder to write in, found: {error.strerror}; choose another with --out"
        ) from error
    try:
        yield workspace
    finally:
        shutil.rmtree(workspace, ignore_errors=True)
        for folder in created:
            if not folder.is_dir() or any(folder.iterdir()):
                break
            folder.rmdir()


def publish(workspace: Path, destination: Path, name: str, notebook_name: str) -> Path:
    """Name the folder inside its own files, write the report, and rename it into place."""
    executed = workspace / notebook_name
    text = executed.read_text(encoding="utf-8")
    for attempt in range(1, 1000):
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
    raise RooflogError(f"{destination}: expected a free name {name}-k, found a thousand taken; choose another --out")


