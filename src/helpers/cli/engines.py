"""`rooflog engines`: what is read from each engine's logs and files, and what each number means."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from helpers.cli.printing import new_table, print_json, print_table
from helpers.schema import SAMPLES

if TYPE_CHECKING:
    from helpers.ingest.dialect import Reading
    from helpers.ingest.reads import EngineReads

LINE_WIDTH = 100  # [characters]
COLUMN_WIDTHS = (13, 38, 9, 36)  # [characters]

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else on standard output.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]

_UNITS = {column.name: column.unit for column in SAMPLES.columns}


def engines(
    name: Annotated[str, typer.Argument(metavar="[NAME]", help="An engine, however you spell it.")] = "",
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """List what is read from each engine, or show one: lines and files, versions, what each number means, traps.

    [bold]Examples[/bold]

      rooflog engines
      rooflog engines vllm
      rooflog engines llama.cpp --json
    """
    from helpers.ingest.reads import find_reads, list_reads

    entries = (find_reads(name),) if name else list_reads()
    if as_json:
        print_json({"engines": [_as_dict(entry) for entry in entries]})
    elif name:
        _print_engine(entries[0])
    else:
        _print_list(entries)


def _as_dict(entry: EngineReads) -> dict[str, Any]:
    """Return an engine as plain values."""
    return {
        "engine": entry.engine, "title": entry.title, "events": list(entry.events),
        "reads": [
            {"source": read.source, "is_file": is_file, "kind": read.kind or None, "versions": read.versions,
             "gives": [{"name": name, "unit": _UNITS.get(name, ""), "meaning": meaning}
                       for name, meaning in read.gives.items()],
             "traps": list(read.traps)}
            for reads, is_file in ((entry.lines, False), (entry.files, True)) for read in reads
        ],
    }


def _print_list(entries: Iterable[EngineReads]) -> None:
    table = new_table("What is read", "engine", "line or file", "becomes", "versions")
    table.padding = (0, 1, 0, 0)
    for column, width in zip(table.columns, COLUMN_WIDTHS, strict=True):
        column.overflow, column.max_width = "fold", width
    for entry in entries:
        for number, read in enumerate((*entry.lines, *entry.files)):
            title = entry.title if number == 0 else ""
            table.add_row(*(escape(cell) for cell in (title, read.source, read.kind or "events", read.versions)))
        if not entry.lines and not entry.files:
            table.add_row(escape(entry.title), "", "", "")
    print_table(table)
    print("rooflog engines NAME: what each number means, and its traps. Another engine: docs/adding-an-engine.md.")


def _print_engine(entry: EngineReads) -> None:
    print(f"{entry.title} ({entry.engine} in the tables)")
    for read in entry.lines:
        _print_read(read, "line")
    for read in entry.files:
        _print_read(read, "file")
    if entry.events:
        print("\n" + _wrapped("events: " + ", ".join(entry.events), ""))


def _print_read(read: Reading, what: str) -> None:
    """Print one source: a heading, the numbers, the traps."""
    print(f"\n{read.source}")
    print(_wrapped(f"{what}, becomes {read.kind or 'events'}; {read.versions}", "  "))
    for name, meaning in read.gives.items():
        unit = f" [{_UNITS[name]}]" if _UNITS.get(name) else ""
        print(_wrapped(f"{name}{unit}: {meaning}", "  "))
    for trap in read.traps:
        print(_wrapped(f"trap: {trap}", "  "))


def _wrapped(text: str, indent: str) -> str:
    return textwrap.fill(text, LINE_WIDTH, initial_indent=indent, subsequent_indent=indent + "  ")
