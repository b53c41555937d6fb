"""`rooflog watch`: follow a log, and wait for steady decode instead of sleeping."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from helpers.display import show
from helpers.schema import printable

if TYPE_CHECKING:
    from helpers.watch import Change

Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


def watch(
    log: Annotated[str, typer.Argument(metavar="LOG|-", help="One log, also one that is not there yet; - for a pipe.")],
    until: Annotated[str, typer.Option(metavar="steady|idle|done", help="Stop, with an exit code, when it is.")] = "",
    timeout: Annotated[float, typer.Option(metavar="S", help="Longest time to watch [s]; 0 is without limit.")] = 0.0,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per change, in base units.")] = False,
    debug: Debug = False,
) -> None:
    """Follow a growing or piped log: phase, running requests, rate, clean intervals, alarms.

    steady: three clean intervals at one count of running requests, the newest lines among them, every request past its
    prefill. idle: nothing has run for 10 s. done: the server has shut down or crashed.

    Exit codes: 0 reached; 1 the server crashed or ran out of memory; 2 the time or the input ended before; 3 cannot
    read.

    [bold]Examples[/bold]

      rooflog watch server.log --until steady --timeout 600 && start_profile
      ssh host tail -F server.log | rooflog watch -
      rooflog watch server.log --json
    """
    from helpers.watch import watch as follow

    raise typer.Exit(follow(log, until=until, timeout_s=timeout, say=_print_json if as_json else _print_line))


def _print_json(change: Change) -> None:
    print(printable(json.dumps(change.as_dict(), allow_nan=False, ensure_ascii=False)), flush=True)


def _print_line(change: Change) -> None:
    values = change.values
    if change.change in ("note", "end"):
        print(printable(f"{_at(values)}  {change.change}: {values['text']}"), flush=True)
    elif change.change == "alarm":
        print(printable(f"{_at(values)}  ALARM {values['alarm'].replace('_', ' ')} (line {values['line_no']}): "
                        f"{' '.join(values['text'].split())}"), flush=True)
    elif change.change == "life":
        print(f"{_at(values)}  a server starts (life {values['server_life']})", flush=True)
    else:
        print(printable(f"{_at(values)}  {_state(values)}"), flush=True)


def _at(values: dict[str, Any]) -> str:
    return values["ts"] or f"{values['elapsed_s']:.0f} s"


def _state(values: dict[str, Any]) -> str:
    """Return the state as one line of words."""
    queue = "" if values["queue_req"] is None else f", {values['queue_req']} queued"
    text = f"{values['phase']:<6}  {values['running_req']} running{queue}, {show(values['decode_tok_per_s'], 'tok/s')}"
    if values["step_s"] is not None:
        text += f", steady at {values['level_req']:g}: {show(values['steady_tok_per_s'], 'tok/s')}, " \
                f"step {show(values['step_s'], 's')}"
    text += f", {values['n_clean']} clean intervals"
    return text + (f"; for steady: {values['needed']}" if values["needed"] else "")
