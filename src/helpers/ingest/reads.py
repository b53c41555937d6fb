"""What is read from each engine, for people: collected from the dialects and the exports, typed nowhere twice."""

from __future__ import annotations

from dataclasses import dataclass

from helpers.ingest.dialect import Reading
from helpers.ingest.engines import DIALECTS, TITLES
from helpers.ingest.exports import EXPORTS
from helpers.schema import LogFormatError

ANY_ENGINE = "any"
"""Engine of an export that several engines write and that tells itself which."""


@dataclass(frozen=True)
class EngineReads:
    """One engine and everything that is read from it.

    Attributes
    ----------
    engine, title : str
        As in SAMPLES, and as its makers write it.
    lines : tuple of Reading
        Kinds of log lines.
    files : tuple of Reading
        Files that are no logs of lines.
    events : tuple of str
        Kinds of server events that are recognised, beside those common to all engines.
    """

    engine: str
    title: str
    lines: tuple[Reading, ...]
    files: tuple[Reading, ...]
    events: tuple[str, ...]


def list_reads() -> tuple[EngineReads, ...]:
    """Return what is read from every engine, in the order in which the dialects are asked.

    Returns
    -------
    tuple of EngineReads
        Exports that tell their engine themselves stand under `ANY_ENGINE`, last.
    """
    found = [
        EngineReads(
            dialect.engine, TITLES.get(dialect.engine, dialect.engine), dialect.reads, _files(dialect.engine),
            tuple(dict.fromkeys(rule.kind for rule in dialect.events if rule.kind not in ("banner", "fact"))),
        )
        for dialect in DIALECTS
    ]
    names = {entry.engine for entry in found}
    elsewhere = {export.engine for export in EXPORTS} - names - {None}
    found += [EngineReads(str(name), TITLES.get(str(name), str(name)), (), _files(name), ()) for name in elsewhere]
    shared = _files(None)
    return (*found, EngineReads(ANY_ENGINE, "any engine", (), shared, ())) if shared else tuple(found)


def _files(engine: str | None) -> tuple[Reading, ...]:
    """Return the exports of one engine in the form of the lines."""
    return tuple(
        Reading(export.name, ", ".join(export.kinds), export.versions, {"rows": export.gives})
        for export in EXPORTS if export.engine == engine
    )


def find_reads(name: str) -> EngineReads:
    """Return one engine by its name, however it is spelled (``llama.cpp``, ``TensorRT-LLM``, ``trtllm``).

    Raises
    ------
    LogFormatError
        No engine of that name is read; the message names those that are.
    """
    entries = list_reads()
    for entry in entries:
        if _plain(name) in (_plain(entry.engine), _plain(entry.title)):
            return entry
    known = ", ".join(entry.engine for entry in entries)
    raise LogFormatError(
        f"engines {name}: expected one of {known}, found {name!r}; docs/adding-an-engine.md says how to add one"
    )


def _plain(name: str) -> str:
    return "".join(character for character in name.lower() if character.isalnum())
