"""What an input of a comparison is: a log, a table, a run folder, a folder of them, or a scorecard."""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Sequence
from hashlib import file_digest
from pathlib import Path
from typing import Any

from helpers import scorecard
from helpers.schema import LogFormatError

RUN_FILE = "run.json"
COMPARISON_FILE = "comparison.json"


def expand(path: str, notes: list[str]) -> list[tuple[str, str]]:
    """Return path and kind (log, run_folder or scorecard) of everything that an input stands for.

    Parameters
    ----------
    path : str
        As `gather.gather_side` takes it.
    notes : list of str
        Gets what was left out.

    Raises
    ------
    LogFormatError
        It is what a comparison wrote.
    """
    if os.path.isdir(path):
        if (kind := _kind_of_folder(Path(path))) is not None:
            return [(path, kind)]
        return _runs_below(Path(path), notes) or [(path, "log")]
    if os.path.isfile(path) and path.lower().endswith(".json") and _is_card(Path(path)):
        folder = Path(path).parent
        is_of_run = Path(path).name == scorecard.FILE_NAME and (folder / RUN_FILE).is_file()
        return [(str(folder), "run_folder")] if is_of_run else [(path, "scorecard")]
    if glob.has_magic(path) and not os.path.exists(path):
        folders = [(name, kind) for name in sorted(glob.glob(path, recursive=True))
                   if (kind := _kind_of_folder(Path(name))) is not None]
        if folders:
            return folders
    return [(path, "log")]


def _kind_of_folder(folder: Path) -> str | None:
    if not folder.is_dir():
        return None
    if (folder / COMPARISON_FILE).is_file():
        raise LogFormatError(f"{folder}: expected logs or the folder of a run, found that of a comparison; name what "
                             "it compared")
    if (folder / RUN_FILE).is_file():
        return "run_folder"
    return "scorecard" if (folder / scorecard.FILE_NAME).is_file() else None


def _runs_below(folder: Path, notes: list[str]) -> list[tuple[str, str]]:
    """Return the run folders in a folder and its subfolders; those of comparisons are left out."""
    found = []
    for at, names, files in os.walk(folder):
        if COMPARISON_FILE in files:
            notes.append(f"{at}: the folder of a comparison, left out")
        elif RUN_FILE in files or scorecard.FILE_NAME in files:
            found.append((at, "run_folder" if RUN_FILE in files else "scorecard"))
        else:
            names[:] = sorted(name for name in names if not name.startswith("."))
            continue
        names.clear()
    return found


def _is_card(path: Path) -> bool:
    """Tell a scorecard from an export of metrics; what is no JSON is left to the reader of logs."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    if isinstance(found, dict) and found.get("kind") == "comparison":
        raise LogFormatError(f"{path}: expected a log, a run or a scorecard, found a comparison; name what it compared")
    return isinstance(found, dict) and {"schema_version", "levels", "run"} <= found.keys()


def at_hand(name: str, folder: Path, hashes: Sequence[str]) -> str | None:
    """Return where a log of a run is: where it was, in the run's folder, or beside it (folders move together)."""
    if glob.has_magic(name) and not os.path.exists(name):
        return name if glob.glob(name, recursive=True) else None
    for place in (Path(name), folder / Path(name).name, folder.parent / Path(name).name):
        if place.is_dir() or (place.is_file() and _sha256(place) in hashes):
            return str(place)
    return None


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return file_digest(file, "sha256").hexdigest()


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object that rooflog wrote; LogFormatError if it is none."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise LogFormatError(f"{path}: expected JSON that rooflog wrote, found: {error}; run it again") from error
    if not isinstance(found, dict):
        raise LogFormatError(f"{path}: expected a JSON object, found {type(found).__name__}; run it again")
    return found
