"""The command line: `rooflog --help` is the manual.

Exit codes: 0 good, 1 a check failed, 2 cannot tell, 3 could not run;
130, 143, 129 ended by Ctrl-C, SIGTERM, SIGHUP; 141 the reader of the output left.
"""

from __future__ import annotations

import logging
import os
import shlex
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from helpers import __version__
from helpers.cli import (
    INTERRUPTED,
    batch,
    bound,
    catalogues,
    compare,
    doctor,
    engines,
    history,
    plan,
    say_interrupted,
    simulate,
    watch,
)
from helpers.cli import redact as redaction
from helpers.cli.manual import MANUAL, MORE, arrange, flowing
from helpers.cli.printing import (
    describe_lives,
    print_accounting,
    print_json,
    print_levels,
    shown_path,
    write_table,
    write_whole,
)
from helpers.progress import Progress
from helpers.schema import RooflogError, printable

CANNOT_RUN = 3
READER_LEFT = 141

app = typer.Typer(no_args_is_help=True, rich_markup_mode="rich", help=flowing(MANUAL), epilog=flowing(MORE),
                  add_completion=True, pretty_exceptions_enable=False,
                  context_settings={"help_option_names": ["-h", "--help"]})

Logs = Annotated[list[str], typer.Argument(metavar="LOG", help="Files, folders or globs; .gz and .zst too.")]
ContextFacts = Annotated[
    str, typer.Option("--context", metavar="FACTS", help="What the log does not know: JSON text, or a YAML/JSON file.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else on standard output.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
Confidence = Annotated[float, typer.Option(help="Of every interval, between 0 and 1.")]


class _PairsCommand(TyperCommand):
    """Reads ``-p NAME VALUE``: the parser knows only options with one value, so the pair is joined before."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        joined, rest = [], list(args)
        while rest:
            word = rest.pop(0)
            joined.append(word)
            if word in ("-p", "--parameter") and rest:
                name = rest.pop(0)
                if "=" not in name:
                    if not rest:
                        raise typer.BadParameter(f"expected -p NAME VALUE, found no value for {name!r}")
                    name = f"{name}={rest.pop(0)}"
                joined.append(name)
        return super().parse_args(ctx, joined)


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False,
    no_cache: Annotated[
        bool, typer.Option("--no-cache", help="Read every log anew, and keep nothing of it for the next time.")
    ] = False,
) -> None:
    if no_cache:
        from helpers.ingest.cache import OFF_VARIABLE

        os.environ[OFF_VARIABLE] = "1"  # kernels and workers inherit it
    if version:
        print(f"rooflog {__version__}")
        raise typer.Exit


@app.command(cls=_PairsCommand)
def run(
    logs: Logs,
    notebook: Annotated[str, typer.Option(help="Number, start of the name, or path of a notebook.")] = "00",
    parameter: Annotated[
        list[str] | None,
        typer.Option("--parameter", "-p", metavar="NAME VALUE", help="A parameter of the notebook; may be repeated."),
    ] = None,
    context: ContextFacts = "",
    out: Annotated[str, typer.Option(metavar="DIR", help="Folder that gets the run folder.")] = "runs",
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Execute a notebook on a log: the answer, and a run folder (notebook, report.html, scorecard.json, run.json).

    summary.md in it is the same answer to paste into an issue. The folder is written whole or not at all. Input that
    cannot be used writes nothing. A notebook that fails otherwise is kept, executed up to the failing cell.

    [bold]Examples[/bold]

      rooflog run server.log
      rooflog run server.log --notebook 04 -p confidence 0.9 --out runs
      rooflog run server.log --context '{"hardware": "h100-sxm"}' --json
    """
    from helpers import run as runner

    pairs = [(name, value) for name, _, value in (item.partition("=") for item in parameter or [])]
    with Progress(f"running {Path(notebook).stem} on {_names(logs)}") as say:
        result = runner.run(logs, notebook, pairs, out, context, command=_command_line(), progress=say)
    if as_json and result.scorecard is not None:
        print_json(result.scorecard)
    elif result.scorecard is not None:
        from helpers import scorecard

        print(printable(scorecard.answer(result.scorecard)))
    if not as_json:
        is_whole = result.exit_code != CANNOT_RUN
        print(f"{'Written' if is_whole else 'Kept'}: {shown_path(result.folder)}"
              f"{' (open report.html in it)' if is_whole else ''}")
    if result.message:
        _complain(result.message if not as_json else f"{result.message} (kept in {shown_path(result.folder)})")
    raise typer.Exit(result.exit_code)


@app.command()
def ingest(
    logs: Logs,
    out: Annotated[str, typer.Option(metavar="FILE", help="Write the samples: .parquet or .csv.")] = "",
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Read a log and account for every line: statistics, events, known, other, malformed.

    [bold]Examples[/bold]

      rooflog ingest server.log
      rooflog ingest logs/ --out samples.parquet
    """
    from helpers import ingest as reader

    target = Path(out) if out else None
    if target is not None and target.suffix not in (".parquet", ".csv"):
        raise RooflogError(f"--out {out}: expected a file name that ends in .parquet or .csv, found {target.suffix!r}")
    with Progress(f"reading {_names(logs)}") as say:
        log = reader.read_log(logs, progress=_percent(say))
    if target is not None:
        write_whole(target, lambda file: write_table(log.samples, file))
    accounting = log.accounting.as_dict()
    lives = describe_lives(log)
    events = {str(kind): int(n) for kind, n in log.events["kind"].value_counts().items()}
    if as_json:
        from helpers import scorecard

        print_json(scorecard.to_plain({
            "engine": log.engine, "engine_version": log.engine_version, **accounting, "events": events, "lives": lives,
            "sources": [{"path": str(s.path), "sha256": s.sha256, "n_bytes": s.n_bytes} for s in log.sources],
        }))
        return
    print_accounting(log, accounting, lives, events)
    if target is not None:
        print(f"Written: {target} ({len(log.samples)} samples)")


@app.command()
def fit(
    logs: Annotated[
        list[str], typer.Argument(metavar="LOG_OR_TABLE", help="Logs, or one table: running_req, decode_tok_per_s.")
    ],
    context: ContextFacts = "",
    confidence: Confidence = 0.95,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Measure the step time at every level of running requests and fit its law; exit 2 when the law is refused.

    [bold]Examples[/bold]

      rooflog fit server.log
      rooflog fit rates.csv --confidence 0.9
      rooflog fit - < server.log
    """
    from helpers import scorecard
    from helpers.analysis import analyse

    with Progress(f"fitting {_names(logs)}") as say:
        analysis = analyse(
            logs, context=context, confidence=confidence, command=_command_line(), progress=_percent(say)
        )
    if as_json:
        print_json(analysis.scorecard)
    else:
        print(printable(scorecard.answer(analysis.scorecard, causes=False)))
        print_levels(analysis.scorecard["levels"], confidence)
    raise typer.Exit(scorecard.exit_code(analysis.scorecard))


@app.command()
def report(
    run_dir: Annotated[str, typer.Argument(metavar="RUN_DIR", help="A run folder.")],
    debug: Debug = False,
) -> None:
    """Build report.html and summary.md of a run folder again: one offline page, the answer first.

    [bold]Example[/bold]

      rooflog report runs/20261129T120000Z-00
    """
    from helpers.report import write_report

    print(f"Written: {shown_path(write_report(run_dir))}")


app.command()(compare.compare)
app.command()(history.history)
app.command(cls=_PairsCommand)(batch.batch)
app.command()(bound.bound)
app.command()(simulate.simulate)
app.command("plan")(plan.plan_command)
app.command()(watch.watch)
app.command()(catalogues.models)
app.command()(catalogues.hardware)
app.command()(engines.engines)
app.command()(redaction.redact)
app.command()(doctor.doctor)
app.command("bug-report")(redaction.bug_report)
arrange(app)


def _names(logs: Sequence[str]) -> str:
    return printable(Path(logs[0]).name) + (f" and {len(logs) - 1} more" if len(logs) > 1 else "")


def _percent(say: Progress) -> Callable[[int, int], None]:
    """Turn bytes read of bytes in all into words."""
    return lambda done, total: say(f"{100 * done / total:.0f} % read" if total else f"{done / 1e6:.0f} MB read")


def _command_line() -> str:
    return shlex.join(["rooflog", *_arguments])


def _complain(message: str) -> None:
    """Say it in one line on standard error."""
    print(f"error: {' '.join(printable(message).split())}", file=sys.stderr)


def _interrupted() -> int:
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # else it mourns the cell that was running, at exit
    return say_interrupted()


_arguments: list[str] = []


@contextmanager
def _known_arguments(arguments: list[str]) -> Iterator[None]:
    """Remember the command line for the record of a run."""
    _arguments[:] = arguments
    yield
    _arguments.clear()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line; return its exit code, with every error as one line on standard error.

    Parameters
    ----------
    arguments : sequence of str, optional
        Without the program's name; those of the process by default.

    Returns
    -------
    int
        0 good, 1 a check failed, 2 cannot tell, 3 could not run; 130 interrupted, 141 the reader of the output left.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        with _known_arguments(words):
            code = app(words or ["--help"], prog_name="rooflog", standalone_mode=False)
        sys.stdout.flush()  # a reader that left is found here, not after the last word
        if code == INTERRUPTED:  # typer's answer to Ctrl-C
            return _interrupted()
        return code if isinstance(code, int) else 0
    except (KeyboardInterrupt, typer.Abort):
        return _interrupted()
    except (BrokenPipeError, SystemExit) as error:
        if isinstance(error, SystemExit) and not isinstance(error.__context__, BrokenPipeError):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.__stdout__.fileno() if sys.__stdout__ else 1)  # no word at exit
        return READER_LEFT
    except Exception as error:
        if "--debug" in words:
            traceback.print_exc()
        if isinstance(error, RooflogError):
            _complain(str(error))
        elif hasattr(error, "format_message"):  # usage errors of typer, whichever parser it brings
            _complain(f"{error.format_message()} (see rooflog --help)")
        else:
            _complain(f"{type(error).__name__}: {error} (a fault of rooflog: --debug shows where)")
    return CANNOT_RUN
