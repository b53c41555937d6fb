"""`rooflog watch`: follow a log, and wait for steady decode instead of sleeping."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from helpers import remote
from helpers.schema import RooflogError, printable

if TYPE_CHECKING:
    from helpers.watch import Change

Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


def watch(
    log: Annotated[str, typer.Argument(metavar="LOG|-", help="One log, also one that is not there yet; - for a pipe.")],
    until: Annotated[
        str, typer.Option(metavar="steady|idle|done", help="Stop, with an exit code, when it is.",
                          autocompletion=lambda: ["steady", "idle", "done"])
    ] = "",
    timeout: Annotated[float, typer.Option(metavar="S", help=r"Longest time to watch \[s]; 0 is without limit.")] = 0.0,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per change, in base units.")] = False,
    debug: Debug = False,
) -> None:
    """Follow a growing or piped log: phase, running requests, rate, clean intervals, levels and law so far, alarms.

    On a terminal a status block is kept up to date; elsewhere every change is a line.

    steady: three clean intervals at one count of running requests, the newest lines among them, every request past its
    prefill. idle: nothing has run for 10 s. done: the server has shut down or crashed.

    Exit codes: 0 reached; 1 the server crashed or ran out of memory; 2 the time or the input ended before, or no
    line came within --timeout, with or without --until; 3 cannot read.

    [bold]Examples[/bold]

      rooflog watch server.log --until steady --timeout 600 && start_profile
      ssh host tail -F server.log | rooflog watch -
      while ! ssh host tail -F server.log; do sleep 5; done | rooflog watch -
      rooflog watch server.log --json
    """
    from helpers.watch import watch as follow

    if remote.is_url(log):
        raise RooflogError(f"{remote.shown(log)}: expected a local log to follow, found a URL; "
                           "pipe it in: ssh host tail -F server.log | rooflog watch -")
    if not as_json and sys.stdout.isatty():
        from rich.console import Console

        from helpers.watch.block import Block

        console = Console(highlight=False)
        if not console.is_dumb_terminal:
            with Block("standard input" if log == "-" else Path(log).name, console) as block:
                code = follow(log, until=until, timeout_s=timeout, say=block.say, look=block.look)
            raise typer.Exit(code)
    raise typer.Exit(follow(log, until=until, timeout_s=timeout, say=_print_json if as_json else _print_line))


def _print_json(change: Change) -> None:
    print(printable(json.dumps(change.as_dict(), allow_nan=False, ensure_ascii=False)), flush=True)


def _print_line(change: Change) -> None:
    from helpers.watch.words import line

    print(line(change), flush=True)
