"""`rooflog doctor`: what works here, what does not, and what to do."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from helpers.cli.printing import print_json
from helpers.progress import Progress
from helpers.schema import printable

STYLES = {"ok": "green", "not ok": "bold red", "optional": "yellow"}


def doctor(
    out: Annotated[str, typer.Option(metavar="DIR", help="Folder that is to get the run folders.")] = "runs",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else on standard output.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Look at this machine: Python, packages, files, folders, compiled libraries, kernels, and what is optional.

    Takes some ten seconds: two kernels are started. Exit codes: 0 all that is needed works; 1 something does not.

    [bold]Examples[/bold]

      rooflog doctor
      rooflog doctor --json
    """
    from helpers import doctor as examiner

    console, checks = Console(highlight=False), []
    with Progress("looking at this machine") as say:
        for check in examiner.examine(out, say):
            checks.append(check)
            if not as_json:
                text = Text(f"{check.status:<9}", STYLES[check.status])
                text.append(printable(f"{check.name:<16}{check.found}"), "default")
                console.print(text, soft_wrap=True)
                if check.advice:
                    console.print(Text(printable(f"{'':<25}to do: {check.advice}")), soft_wrap=True)
    is_good = examiner.is_good(checks)
    if as_json:
        print_json({"is_good": is_good, "checks": [check.as_dict() for check in checks]})
    else:
        n_bad = sum(check.status == examiner.NOT_OK for check in checks)
        print("All that is needed works." if is_good else f"{n_bad} of {len(checks)} things do not work.")
    raise typer.Exit(0 if is_good else 1)
