"""`rooflog compare`: did it regress."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import typer
from rich.markup import escape

from helpers.cli.printing import new_table, print_json, print_table, shown_path, write_text, write_whole
from helpers.facts import read_context
from helpers.parameters import absolute
from helpers.progress import Progress
from helpers.schema import LogFormatError, RooflogError, printable

CANNOT_RUN = 3
SIDES = ("base", "new")
NOTEBOOK = "08"

Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


def compare(
    base: Annotated[str, typer.Argument(metavar="BASE", help="Log, run folder, folder of runs, scorecard or table.")],
    new: Annotated[str, typer.Argument(metavar="NEW", help="The same of the other side.")],
    more_base: Annotated[
        list[str] | None, typer.Option("--base", metavar="PATH", help="One more repeat of BASE; may be repeated.")
    ] = None,
    more_new: Annotated[
        list[str] | None, typer.Option("--new", metavar="PATH", help="One more repeat of NEW; may be repeated.")
    ] = None,
    context: Annotated[
        str, typer.Option("--context", metavar="FACTS", help="What no log knows: JSON text, or a YAML/JSON file.")
    ] = "",
    base_context: Annotated[
        str, typer.Option("--base-context", metavar="FACTS", help="The same, true of BASE only.")
    ] = "",
    new_context: Annotated[
        str, typer.Option("--new-context", metavar="FACTS", help="The same, true of NEW only.")
    ] = "",
    threshold: Annotated[float, typer.Option(metavar="SHARE", help="Change that matters; 0.03 is 3 %.")] = 0.03,
    confidence: Annotated[float, typer.Option(help="Of every interval, between 0 and 1.")] = 0.95,
    stored: Annotated[
        bool, typer.Option("--stored", help="Use the stored numbers of runs, even where their logs are at hand.")
    ] = False,
    out: Annotated[
        str, typer.Option(metavar="DIR", help="Execute notebook 08 and keep it in a run folder in this folder.")
    ] = "",
    history: Annotated[
        str, typer.Option(metavar="DIR", help="With --out: show in it when the runs of this folder changed.")
    ] = "",
    summary: Annotated[
        str, typer.Option(metavar="FILE", help='Append a summary in Markdown, as to "$GITHUB_STEP_SUMMARY".')
    ] = "",
    junit: Annotated[str, typer.Option(metavar="FILE", help="Write the verdicts as JUnit XML.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else on standard output.")] = False,
    debug: Debug = False,
) -> None:
    """Tell whether NEW is slower than BASE: level by level, term by term, better, worse, same or cannot tell.

    Each side may have repeats: several server lives in a log, run folders in a folder, --base and --new. Repeats make
    small changes visible; what would be needed is printed. Runs are computed again from their logs where these are at
    hand.

    Exit codes: 0 every level excludes a loss beyond the threshold; 1 worse; 2 a level could be worse, or the sides are
    not comparable; 3 could not run.

    [bold]Examples[/bold]

      rooflog compare before.log after.log
      rooflog compare runs/main runs/branch --threshold 0.05
      rooflog compare a1.log b1.log --base a2.log --base a3.log --new b2.log --new b3.log
      rooflog compare main.log branch.log --summary "$GITHUB_STEP_SUMMARY" --junit compare.xml
    """
    both = read_context(context)
    facts = [{**both, **read_context(of_side, option)} for of_side, option in
             ((base_context, "--base-context"), (new_context, "--new-context"))]
    sides = [base, *(more_base or [])], [new, *(more_new or [])]
    if sum(side.count("-") for side in sides) > (0 if out else 1):
        raise LogFormatError("-: standard input can be one log of one side, and a notebook cannot read it; save it to "
                             "a file")
    if history and not out:
        raise RooflogError("--history: is shown in the notebook that --out keeps; expected --out DIR beside it, or use "
                           "rooflog history")
    command = _command(sides, threshold)
    asked = {"threshold_frac": threshold, "confidence": confidence}
    with Progress(f"comparing {_short(base)} with {_short(new)}") as say:
        if out:
            parameters = {**asked, "recompute": not stored, "history_dir": absolute(history)}
            card, folder = _notebook(sides, facts, parameters, out, command, say)
        else:
            card, folder = _card(sides, facts, asked, not stored, command, say), None
    _outputs(card, summary, junit)
    if as_json:
        print_json(card)
    else:
        _print(card)
        if folder is not None:
            print(f"Written: {shown_path(folder)}")
    raise typer.Exit(card["exit_code"])


def _card(
    sides: Sequence[Sequence[str]], facts: Sequence[Mapping[str, Any]], asked: Mapping[str, float], recompute: bool,
    command: str, say: Progress,
) -> dict[str, Any]:
    from helpers import regression

    gathered = [regression.gather_side(paths, context=told, recompute=recompute, progress=say)
                for paths, told in zip(sides, facts, strict=True)]
    return regression.compare_sides(gathered[0], gathered[1], command=command, **asked)


def _notebook(
    sides: Sequence[Sequence[str]], facts: Sequence[Mapping[str, Any]], parameters: Mapping[str, Any], out: str,
    command: str, say: Progress,
) -> tuple[dict[str, Any], Path]:
    """Execute notebook 08; return the card it wrote and the run folder."""
    from helpers import regression
    from helpers import run as runner

    paths = {f"{name}_paths": [absolute(path) for path in side] for name, side in zip(SIDES, sides, strict=True)}
    told = {f"{name}_context": _text(known) for name, known in zip(SIDES, facts, strict=True)}
    result = runner.run((), NOTEBOOK, {**paths, **told, **parameters}, out, command=command, progress=say)
    if result.exit_code == CANNOT_RUN:
        raise RooflogError(f"{result.message} (kept in {shown_path(result.folder)})")
    return regression.read(result.folder), result.folder


def _text(facts: Mapping[str, Any]) -> str:
    """Write facts as JSON; a file they name is taken from the caller's folder, as the notebook runs in another."""
    config = facts.get("model_config")
    if isinstance(config, str) and Path(config).expanduser().exists():
        facts = {**facts, "model_config": absolute(config)}
    return json.dumps(facts, default=str) if facts else ""


def _short(path: str) -> str:
    """Return the last two parts of a path: logs are often called the same."""
    return printable("/".join(Path(path).parts[-2:]))


def _command(sides: Sequence[Sequence[str]], threshold: float) -> str:
    more = [word for option, paths in zip(("--base", "--new"), sides, strict=True) for path in paths[1:]
            for word in (option, path)]
    return shlex.join(["rooflog", "compare", sides[0][0], sides[1][0], *more, "--threshold", f"{threshold:g}"])


def _outputs(card: Mapping[str, Any], summary: str, junit: str) -> None:
    """Write what a pipeline shows."""
    if not (summary or junit):
        return
    from helpers.regression import gate

    if summary:
        try:
            with open(summary, "a", encoding="utf-8") as file:
                file.write(gate.to_markdown(card))
        except OSError as error:
            raise RooflogError(f"--summary {summary}: expected a file that can be written, found: {error.strerror}"
                               ) from error
    if junit:
        write_whole(Path(junit), lambda file: write_text(file, gate.to_junit(card)))


def _print(card: Mapping[str, Any]) -> None:
    """Print the verdict first, then the rows."""
    from helpers.regression import describe

    print(printable(card["answer"]))
    _print_frame("Levels and parameters", describe.rows_table(card))
    differences = describe.differences_table(card)
    _print_frame("Differences of the servers", differences[~differences["key"].str.startswith("args.")
                                                           | differences["status"].eq("differs")])
    _print_frame("Time in each phase", describe.phases_table(card))
    _print_frame("Inputs", describe.inputs_table(card))
    for note in card["notes"]:
        print(printable(f"note: {note}"))


def _print_frame(title: str, frame: pd.DataFrame) -> None:
    if frame.empty:
        return
    table = new_table(title, *(str(name) for name in frame.columns))
    for row in frame.itertuples(index=False):
        table.add_row(*(escape(printable(str(value))) for value in row))
    print_table(table)
