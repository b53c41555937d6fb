"""`rooflog batch`: a notebook on many dumps."""

from __future__ import annotations

import shlex
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from helpers.cli import INTERRUPTED
from helpers.cli.printing import print_json, shown_path
from helpers.display import show
from helpers.progress import Progress
from helpers.schema import printable

if TYPE_CHECKING:
    from helpers.batch import BatchResult

SHOWN_FAILURES = 20
WORDS = {"good": "good", "cannot_tell": "cannot tell", "check_failed": "with a failed check", "failed": "failed",
         "not_done": "not done"}


def batch(
    logs: Annotated[
        list[str], typer.Argument(metavar="PATH", help="Logs, folders, globs, URLs; .gz and .zst too.")
    ],
    out: Annotated[str, typer.Option(metavar="DIR|URL", help="Folder that gets the run folders.")] = "runs/batch",
    notebook: Annotated[str, typer.Option(help="Number, start of the name, or path of a notebook.")] = "00",
    parameter: Annotated[
        list[str] | None,
        typer.Option("--parameter", "-p", metavar="NAME VALUE", help="A parameter of the notebook; may be repeated."),
    ] = None,
    context: Annotated[
        str, typer.Option("--context", metavar="FACTS", help="Holds for every dump: JSON text, or a YAML/JSON file.")
    ] = "",
    group: Annotated[str, typer.Option(metavar="file|folder", help="What is one dump.")] = "file",
    workers: Annotated[
        int, typer.Option(metavar="N", help="Processes at once; 0 is one per core.", min=0)
    ] = 0,
    scheduler: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Of a dask scheduler that has the workers instead.")
    ] = "",
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Try again what the same contents made fail before.")
    ] = False,
    limit_time: Annotated[
        float, typer.Option("--limit-time", metavar="S", help="Longest time for one dump in seconds; 0: no limit.")
    ] = 0.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else on standard output.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Execute a notebook on many logs: a run folder each, one table of all scorecards, one index page.

    A log whose run is there is skipped, so the same command goes on where it was stopped. What kills a worker, fills
    the disk or cannot be read costs only its own dump. A file facts.yaml or facts.json beside a log tells what only
    that log's server had.

    Exit codes: 3 if a dump could not be run, else 1 if a check failed somewhere, else 2 if one cannot tell, else 0.

    [bold]Examples[/bold]

      rooflog batch logs/
      rooflog batch 'logs/*/server.log' --out runs/nightly --context '{"hardware": "h100-sxm"}'
      rooflog batch s3://bucket/logs/ --out s3://bucket/runs --scheduler tcp://10.0.0.1:8786
      rooflog batch logs/ --group folder --limit-time 600
    """
    from helpers.batch import BatchEnded
    from helpers.batch import batch as execute
    from helpers.run.signals import signals_as_interrupt

    pairs = [(name, value) for name, _, value in (item.partition("=") for item in parameter or [])]
    with signals_as_interrupt() as received:
        try:
            with Progress("batch") as say:
                result = execute(
                    logs, out, notebook, pairs, context, group=group, n_workers=workers or None, scheduler=scheduler,
                    retry_failed=retry_failed, limit_s=limit_time or None, progress=say,
                    command=shlex.join(["rooflog", *sys.argv[1:]]),
                )
        except BatchEnded as end:
            _say_ended(end.result, received)
            raise SystemExit(128 + received[0] if received else INTERRUPTED) from None
    if as_json:
        print_json(result.as_dict())
    else:
        _print(result)
    raise typer.Exit(result.exit_code)


def _say_ended(result: BatchResult, received: Sequence[int]) -> None:
    """Say how far it came, in one line on standard error."""
    why = f"ended by {signal.Signals(received[0]).name}" if received else "interrupted"
    n = len(result.outcomes)
    how_far = (f"{n} of {result.n_dumps} dumps came to an end and are kept; the same command goes on from there" if n
               else f"none of {result.n_dumps} dumps was done yet; the same command starts them again")
    print(f"{why}: {how_far}", file=sys.stderr)


def _print(result: BatchResult) -> None:
    """Print what failed first, then the counts and where to look."""
    bad = [outcome for outcome in result.outcomes if outcome.exit_code in (1, 3)]
    bad.sort(key=lambda outcome: (outcome.exit_code != 3, outcome.dump))
    for outcome in bad[:SHOWN_FAILURES]:
        word = "failed" if outcome.exit_code == 3 else "check failed"
        said = outcome.message.removeprefix(f"{outcome.dump}: ")  # the reader's errors name the file, too
        print(printable(f"{word}: {outcome.dump}: {' '.join(said.split())}"))
    if len(bad) > SHOWN_FAILURES:
        print(f"and {len(bad) - SHOWN_FAILURES} more, in the index")
    for note in result.notes:
        print(printable(f"note: {note}"))
    counts = result.counts()
    n_skipped = counts.pop("skipped")
    told = ", ".join(f"{n} {WORDS[name]}" for name, n in counts.items() if n) or "none came to an end"
    done = f" ({n_skipped} of them done before)" if n_skipped else ""
    print(f"{result.n_dumps} dumps in {show(result.wall_s, 'duration')}: {told}{done}")
    place = result.index if "://" in result.index else shown_path(Path(result.index))
    print(f"Index: {printable(place)}")
