"""`rooflog redact` and `rooflog bug-report`: logs that are safe to share."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from helpers.cli.printing import print_json
from helpers.progress import Progress

if TYPE_CHECKING:
    from helpers.redact import Redaction

CHECK_FAILED = 1

Logs = Annotated[list[str], typer.Argument(metavar="LOG", help="Files, folders or globs; .gz and .zst too.")]
KeepModels = Annotated[bool, typer.Option("--keep-models", help="Keep the last part of the paths of models.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else on standard output.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


def redact(
    logs: Logs,
    out: Annotated[str, typer.Option(metavar="FILE|DIR", help="For one log a file (.gz, .zst pack), else a folder.")],
    keep_models: KeepModels = False,
    keep_other: Annotated[
        bool, typer.Option("--keep-other", help="Keep the text of unknown lines, but for what looks like a secret.")
    ] = False,
    map_file: Annotated[str, typer.Option("--map", metavar="FILE", help="Write what placeholders mean. Secret!")] = "",
    check: Annotated[bool, typer.Option("--check/--no-check", help="Read both and compare.")] = True,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Write a log safe to share that analyses to the same numbers; exit 1 if it does not.

    Kept: statistics, events, numbers and choices among the server's arguments, stamps, levels, ranks, ports. Replaced,
    the same thing by the same placeholder: hosts, addresses, users, paths, keys, prompts, models that no catalogue
    knows, and the text of every line that rooflog does not know.

    [bold]Examples[/bold]

      rooflog redact server.log --out safe.log
      rooflog redact logs/ --out safe/ --map names.json
    """
    from helpers import redact as redaction

    with Progress("redacting") as say:
        done = redaction.redact(
            logs, out, keep_models=keep_models, keep_other=keep_other, check=check, say=say,
        )
        if map_file:
            redaction.write_map(done.names, Path(map_file))
    if as_json:
        print_json(done.as_dict() | {"map": map_file or None})
    else:
        print(f"{done.n_lines} lines, {done.n_changed} changed: {_counts(done.counts)}")
        for _, target in done.files:
            print(f"Written: {target}")
        if map_file:
            print(f"Written: {map_file} (secret: it says what every placeholder stands for)")
        for note in done.notes:
            print(f"note: {note}")
        print(_verdict(done))
    raise typer.Exit(CHECK_FAILED if done.differences else 0)


def _verdict(done: Redaction) -> str:
    """Say whether the redacted logs read the same."""
    if not done.is_checked:
        return "Not compared with the original"
    if not done.differences:
        return "Compared: same lines by class, same samples, same events, same facts"
    return "Reads otherwise than the original: " + "; ".join(done.differences)


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{n} {_WORDS.get(kind, kind)}" for kind, n in counts.items()) or "nothing to replace"


_WORDS = {
    "text": "texts", "path": "paths", "name": "names", "host": "hosts", "ip": "addresses", "id": "identifiers",
    "key": "keys", "mail": "mail addresses", "url": "URLs", "model": "models",
}


def bug_report(
    logs: Logs,
    out: Annotated[str, typer.Option(metavar="FILE.zip", help="The bundle.")],
    keep_models: KeepModels = False,
    size: Annotated[int, typer.Option(min=1, metavar="MB", help="Of a longer log: half from each end.")] = 20,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Pack what a bug report needs: the redacted log, what rooflog reads in it, and versions. Nothing is sent.

    [bold]Example[/bold]

      rooflog bug-report server.log --out report.zip
    """
    from helpers import redact as redaction

    with Progress("packing") as say:
        contents, done = redaction.bug_report(
            logs, out, keep_models=keep_models, part_bytes=size * 2**20, say=say
        )
    if as_json:
        entries = [{"name": name, "n_bytes": n_bytes} for name, n_bytes in contents]
        print_json({"out": out, "contents": entries, "differences": list(done.differences)})
    else:
        print(f"Written: {out}")
        for name, n_bytes in contents:
            print(f"  {name} ({n_bytes} bytes)")
        print(f"Replaced: {_counts(done.counts)}")
        print(_verdict(done))
    raise typer.Exit(CHECK_FAILED if done.differences else 0)
