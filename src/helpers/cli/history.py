"""`rooflog history`: a folder of runs in time, and where it changed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from helpers.cli.printing import new_table, print_json, print_table, shown_path, write_text, write_whole
from helpers.display import show
from helpers.progress import Progress
from helpers.schema import RooflogError, printable

MAX_LISTED = 20
"""Runs left out that are named; the rest is counted, and in --json."""


def history(
    runs_dir: Annotated[str, typer.Argument(metavar="RUNS_DIR", help="Folder of run folders, at any depth.")],
    threshold: Annotated[float, typer.Option(metavar="SHARE", help="Change that matters; 0.03 is 3 %.")] = 0.03,
    out: Annotated[str, typer.Option(metavar="FILE", help="Write the page with the figures, as history.html.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else on standard output.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Put the runs of a folder in time and find where step time, its law or the accepted length changed for good.

    Runs of one configuration are one series; another engine version is no other configuration. A step needs three runs
    on either side, so one slow run is none; six runs are the least. Runs with the same time have no order.

    Exit codes: 0 the newest runs are no worse than those before; 1 worse by more than the threshold; 2 too few runs, no
    order that is known, or a drift to the worse; 3 could not run.

    [bold]Examples[/bold]

      rooflog history runs
      rooflog history runs --threshold 0.05 --out history.html
    """
    from helpers.regression.history import history_card, read_history

    if not 0 < threshold < 1:
        raise RooflogError(f"--threshold {threshold:g}: expected a share between 0 and 1, as 0.03 for 3 %")
    with Progress(f"reading the runs of {printable(Path(runs_dir).name)}") as say:
        card = history_card(read_history(runs_dir, progress=say), threshold_frac=threshold)
    if out:
        from helpers.regression.history_page import history_page

        page = history_page(card)
        write_whole(Path(out), lambda file: write_text(file, page))
    if as_json:
        print_json(card)
    else:
        _print(card)
        if out:
            print(f"Written: {shown_path(Path(out))}")
    raise typer.Exit(card["exit_code"])


def _print(card: Mapping[str, Any]) -> None:
    """Print each configuration: the verdict, then its series."""
    from helpers.regression.describe import VERDICT_WORDS
    from helpers.regression.history import series_name

    for found in card["configurations"]:
        print(printable(f"{found['words']}: {VERDICT_WORDS[found['verdict']]}. {found['sentence']}"))
        table = new_table("", "quantity", "runs", "latest", "latest run", "verdict", "changes")
        for entry in (e for e in card["series"] if e["configuration"] == found["configuration"]):
            last = entry["points"][-1]
            table.add_row(*(escape(printable(str(cell))) for cell in (
                series_name(entry), len(entry["points"]), show(last["value"], entry["unit"], last["lo"], last["hi"]),
                Path(last["run"]).name, VERDICT_WORDS[entry["verdict"]] if entry["is_judged"] else "described",
                entry["sentence"],
            )))
        print_table(table)
    for note in card["notes"]:
        print(printable(f"note: {note}"))
    for entry in card["left_out"][:MAX_LISTED]:
        print(printable(f"left out: {entry['run']}: {entry['why']}"))
    if len(card["left_out"]) > MAX_LISTED:
        print(f"left out: {len(card['left_out']) - MAX_LISTED} more")
