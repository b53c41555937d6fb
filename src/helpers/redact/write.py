"""`rooflog redact` and `rooflog bug-report`: logs that are safe to share, and proof that they still say the same."""

from __future__ import annotations

import functools
import gzip
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import zstandard

from helpers.ingest import table
from helpers.ingest.exports import find_export
from helpers.ingest.lines import FileReader
from helpers.ingest.redaction import Redactor
from helpers.ingest.redaction_arguments import redact_json_line, redact_scrape_line, redact_table_line
from helpers.ingest.redaction_names import redacted_name
from helpers.ingest.sources import SourceLike, find_inputs
from helpers.physics.catalogue import models
from helpers.redact.check import compare
from helpers.schema import RooflogError

_COLUMNS = frozenset((*table.REQUIRED, *table.OPTIONAL, "rate", "note", "n"))
Say = Callable[[str], None]


@dataclass(frozen=True)
class Redaction:
    """What was written, what was replaced, and whether it still says the same.

    Attributes
    ----------
    files : tuple of (str, Path)
        Input as given, and what was written for it.
    n_lines, n_changed : int
        Lines in all, and those that differ.
    counts : mapping
        Kind -> replacements.
    names : mapping
        Placeholder -> what it stands for. Secret.
    is_checked : bool
        Both were read and compared.
    differences : tuple of str
        Where the redacted logs say something else; empty if nowhere.
    notes : tuple of str
        What a reader must know.
    """

    files: tuple[tuple[str, Path], ...]
    n_lines: int
    n_changed: int
    counts: dict[str, int]
    names: dict[str, str] = field(repr=False)
    is_checked: bool
    differences: tuple[str, ...]
    notes: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return everything but the names, as JSON-safe values."""
        return {
            "files": [str(target) for _, target in self.files], "n_lines": self.n_lines, "n_changed": self.n_changed,
            "replaced": self.counts, "is_checked": self.is_checked, "differences": list(self.differences),
            "notes": list(self.notes),
        }


def redact(
    sources: SourceLike | Sequence[SourceLike],
    out: str | Path,
    *,
    keep_models: bool = False,
    keep_other: bool = False,
    check: bool = True,
    say: Say = lambda _: None,
) -> Redaction:
    """Write logs that are safe to share and analyse to the same numbers.

    Parameters
    ----------
    sources : path or sequence of paths
        Whatever `ingest.read_log` takes.
    out : path
        A file for one input, else a folder that does not exist yet. A name that ends in .gz or .zst is packed.
    keep_models : bool
        Keep the last part of every model's path; else only names of the catalogue stay.
    keep_other : bool
        Keep the text of unknown lines, but for what has the shape of a secret. Not safe.
    check : bool
        Read both and compare.
    say : callable
        Told what goes on.

    Returns
    -------
    Redaction

    Raises
    ------
    RooflogError
        An input cannot be read, or the output is an input or cannot be written. Nothing is left behind then.
    """
    inputs = find_inputs(sources)
    given = [sources] if isinstance(sources, (str, os.PathLike)) else list(sources)
    is_folder = len(inputs.paths) > 1 or any(os.path.isdir(item) for item in given) or Path(out).is_dir()
    redactor = Redactor(_keep_last_part if keep_models else _catalogue_part, keep_other=keep_other)
    targets = _targets(inputs.paths, Path(out), redactor) if is_folder else [Path(out)]
    refuse_inputs(inputs.paths, targets)
    with written_whole(targets) as partials:
        n_lines = 0
        for path, target, partial in zip(inputs.paths, targets, partials, strict=True):
            say(f"redacting {Path(path).name}")
            n_lines += _write(path, partial, packing_of(target), redactor)
    notes = [*_notes(redactor, keep_other, inputs.paths), *(f"not written: {note}" for note in inputs.notes)]
    is_checked = check and "-" not in inputs.paths
    differences: list[str] = []
    if is_checked:
        say("reading both, to compare")
        differences = compare(inputs.paths, [str(target) for target in targets])
    return Redaction(
        tuple(zip(inputs.paths, targets, strict=True)), n_lines, redactor.n_changed,
        dict(redactor.counts.most_common()), redactor.names, is_checked, tuple(differences), tuple(notes),
    )


def _notes(redactor: Redactor, keep_other: bool, paths: Sequence[str]) -> list[str]:
    notes = ["ports, process ids, time stamps and source lines of the engine stay"]
    if keep_other:
        notes.append("--keep-other: text of unknown lines stays, and may hold what has no shape of a secret. Read it")
    if redactor.is_full:
        notes.append("more different names than are kept apart: the later ones share the number 0")
    if "-" in paths:
        notes.append("standard input cannot be read twice: not compared")
    return notes


@functools.lru_cache(maxsize=4096)
def _catalogue_part(model: str) -> str | None:
    """Return the last part of a model's path that the catalogue knows: that name is public."""
    for part in reversed(model.replace("\\", "/").split("/")):
        name = part.rsplit("--", 1)[-1]
        if not name or len(name) > 80 or name.endswith(".json") or os.path.exists(name):
            continue
        try:
            models.find(name)
        except RooflogError:
            continue
        return name
    return None


def _keep_last_part(model: str) -> str | None:
    """Return the last part of a model's path."""
    return _catalogue_part(model) or model.rstrip("/").rsplit("/", 1)[-1] or None


def _targets(paths: Sequence[str], folder: Path, redactor: Redactor) -> list[Path]:
    """Name the files of a folder: words that say nothing stay, so that parts of one log still are."""
    if folder.exists() and not folder.is_dir():
        raise RooflogError(f"--out {folder}: expected a folder for {len(paths)} logs, found a file")
    base = os.path.commonpath([os.path.dirname(os.path.abspath(path)) for path in paths if path != "-"] or ["."])
    targets = []
    for path in paths:
        parts = Path(os.path.relpath(os.path.abspath(path), base)).parts if path != "-" else ("stdin.log",)
        targets.append(folder.joinpath(*(redacted_name(part, redactor) for part in parts)))
    return targets


def refuse_inputs(paths: Sequence[str], targets: Sequence[Path]) -> None:
    """Never write over an input."""
    inputs = {os.path.realpath(path) for path in paths if path != "-"}
    for target in targets:
        if os.path.realpath(target) in inputs or any(
            target.exists() and os.path.samefile(target, path) for path in inputs
        ):
            raise RooflogError(f"--out {target}: expected another file than the input, found the input itself")
    if len({str(target) for target in targets}) < len(targets):
        raise RooflogError("--out: two inputs would get the same name; redact them one by one")


@contextmanager
def written_whole(targets: Sequence[Path]) -> Iterator[list[Path]]:
    """Give names beside the targets, and move all files into place, or none."""
    made = [folder for target in targets for folder in reversed(target.parents) if not folder.exists()]
    partials = [target.with_name(f".{os.getpid()}.{target.name}") for target in targets]
    is_done = False
    try:
        for target in targets:
            target.parent.mkdir(parents=True, exist_ok=True)
        yield partials
        for partial, target in zip(partials, targets, strict=True):
            os.replace(partial, target)
        is_done = True
    except OSError as error:
        raise RooflogError(
            f"--out {targets[0]}: expected a place that can be written, found: {error.strerror or error}"
        ) from error
    finally:
        for partial in partials:
            partial.unlink(missing_ok=True)
        for folder in reversed(dict.fromkeys(made)) if not is_done else ():
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()


def packing_of(target: Path) -> str:
    """Return the ending by which a file is packed; empty if it is not."""
    return target.suffix.lower() if target.suffix.lower() in (".gz", ".zst", ".zstd") else ""


def _write(path: str, partial: Path, packing: str, redactor: Redactor) -> int:
    """Redact one file, a chunk at a time; return its number of lines."""
    rewrite = _counted(line_rewriter(path, redactor), redactor)
    reader = FileReader(path)
    with ExitStack() as stack:
        file = _open(partial, packing, stack)
        for chunk in reader.chunks():
            lines = chunk.text.decode().split("\n")
            file.write("\n".join(rewrite(line) if line else line for line in lines).encode())
    return reader.n_lines


def _counted(rewrite: Callable[[str], str], redactor: Redactor) -> Callable[[str], str]:
    """Count the lines that change."""
    def one(line: str) -> str:
        redacted = rewrite(line)
        redactor.n_changed += redacted != line
        return redacted

    return one


def line_rewriter(path: str, redactor: Redactor) -> Callable[[str], str]:
    """Return how the lines of a file are redacted: as those of a log, an export or a table."""
    if path != "-" and table.is_table(path):
        return lambda line: redact_table_line(line, redactor, _COLUMNS)
    export = find_export(path)
    if export is None:
        return redactor.line
    if "rometheus" in export.name or "scrape" in export.name:
        return lambda line: redact_scrape_line(line, redactor)
    return lambda line: redact_json_line(line, redactor)


def _open(partial: Path, packing: str, stack: ExitStack) -> Any:
    """Open a file for writing, packed as its name says."""
    file = stack.enter_context(partial.open("wb"))
    if packing == ".gz":  # no name and no time of the machine in its header
        return stack.enter_context(gzip.GzipFile("", "wb", fileobj=file, mtime=0))
    if packing:
        return stack.enter_context(zstandard.ZstdCompressor().stream_writer(file))
    return file


def write_map(names: dict[str, str], file: Path) -> None:
    """Write what the placeholders stand for, readable by its owner only."""
    partial = file.with_name(f".{os.getpid()}.{file.name}")
    try:
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as handle:
            json.dump(names, handle, indent=1, ensure_ascii=False)
        os.replace(partial, file)
    except OSError as error:
        raise RooflogError(f"--map {file}: expected a file that can be written, found: {error.strerror}") from error
    finally:
        partial.unlink(missing_ok=True)
