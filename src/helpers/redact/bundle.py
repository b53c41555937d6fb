"""The bundle of a bug report: redacted logs, what ingest says of them, and versions."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from helpers import __version__
from helpers.ingest.sources import SourceLike, find_inputs
from helpers.redact.check import read
from helpers.redact.write import Redaction, Say, packing_of, redact, refuse_inputs, written_whole
from helpers.schema import RooflogError

_LISTED_PACKAGES = ("polars", "pandas", "numpy", "pyarrow", "zstandard", "typer")
DEFAULT_PART_BYTES = 20 * 2**20
"""Of a longer log a bug report holds this much: half from its beginning, half from its end."""


def bug_report(
    sources: SourceLike | Sequence[SourceLike],
    out: str | Path,
    *,
    keep_models: bool = False,
    part_bytes: int = DEFAULT_PART_BYTES,
    say: Say = lambda _: None,
) -> tuple[list[tuple[str, int]], Redaction]:
    """Write a zip with redacted logs, what ingest says of them, and versions.

    Parameters
    ----------
    sources, keep_models, say
        As for `redact`.
    out : path
        Ends in .zip.
    part_bytes : int
        A longer log is kept in part: half of this from its beginning, half from its end [bytes].

    Returns
    -------
    contents : list of (name, size in bytes)
        What is inside.
    redaction : Redaction
        Its paths are gone.
    """
    target = Path(out)
    if target.suffix.lower() != ".zip":
        raise RooflogError(f"--out {out}: expected a file name that ends in .zip, found {target.suffix!r}")
    refuse_inputs(find_inputs(sources).paths, [target])
    with tempfile.TemporaryDirectory() as scratch, written_whole([target]) as partials:
        folder = Path(scratch, "logs")
        folder.mkdir()
        redaction = redact(sources, folder, keep_models=keep_models, say=say)
        say("packing")
        texts = _report_texts(redaction, folder)
        with zipfile.ZipFile(partials[0], "w", zipfile.ZIP_DEFLATED) as archive:
            for name, text in texts.items():
                _add(archive, name, text.encode())
            for _, file in redaction.files:
                for name, content in _parts(file, file.relative_to(folder).as_posix(), part_bytes):
                    _add(archive, f"logs/{name}", content)
            contents = [(entry.filename, entry.file_size) for entry in archive.infolist()]
    return contents, redaction


def _add(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    """Add a member without the clock of the machine."""
    archive.writestr(zipfile.ZipInfo(name, (2000, 1, 1, 0, 0, 0)), content, zipfile.ZIP_DEFLATED)


def _parts(file: Path, name: str, part_bytes: int) -> Iterator[tuple[str, bytes]]:
    """Yield a file, or its beginning and its end cut between lines."""
    size = file.stat().st_size
    if size <= part_bytes or packing_of(file):
        yield name, file.read_bytes()
        return
    half = part_bytes // 2
    with file.open("rb") as handle:
        head = handle.read(half)
        yield f"{name}.head", head[: head.rfind(b"\n") + 1]
        handle.seek(size - half)
        tail = handle.read()
        yield f"{name}.tail", tail[tail.find(b"\n") + 1:]


def _report_texts(redaction: Redaction, folder: Path) -> dict[str, str]:
    """Return the texts of a bug report; all come from the redacted logs."""
    log = read([str(file) for _, file in redaction.files])
    hide = f"{folder}{os.sep}"
    malformed = ""
    if isinstance(log, str):
        reading: dict[str, Any] = {"error": log.replace(hide, "")}
    else:
        accounting = log.accounting.as_dict()
        reading = {
            "engine": log.engine, "engine_version": log.engine_version, **accounting,
            "events": {str(kind): int(n) for kind, n in log.events["kind"].value_counts().items()},
        }
        malformed = "".join(f"{e['file']}:{e['line_no']}: {e['reason']}\n    {e['text']}\n"
                            for e in accounting["malformed"]).replace(hide, "")
    versions = {
        "rooflog": __version__, "python": platform.python_version(), "system": f"{platform.system()} "
        f"{platform.machine()}", **{name: importlib.metadata.version(name) for name in _LISTED_PACKAGES},
    }
    files = redaction.as_dict() | {"files": [str(file.relative_to(folder)) for _, file in redaction.files]}
    return {
        "README.txt": _README,
        "ingest.json": json.dumps(reading, indent=1, ensure_ascii=False, default=str).replace(hide, ""),
        "malformed.txt": malformed or "No malformed line.\n",
        "redaction.json": json.dumps(files, indent=1).replace(hide, ""),
        "versions.json": json.dumps(versions, indent=1),
    }


_README = """A bug report written by rooflog. Read it before you send it: it holds nothing else than these files.

logs/           the logs, redacted (rooflog redact); long ones by their beginning and end
ingest.json     what rooflog reads in the redacted logs: every line by its class
malformed.txt   lines that name a statistic but cannot be read whole
redaction.json  what was replaced, and whether the redacted logs still read the same
versions.json   rooflog, Python and the libraries that read logs
"""
