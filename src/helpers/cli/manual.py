"""What `rooflog --help` says: examples first, then the commands by purpose, then where to read more."""

from __future__ import annotations

import inspect

import typer

MANUAL = """
[bold]From an LLM server log to a defended statement of what limits decode.[/bold]

Point it at what a running or finished LLM server wrote. It says what the log measured, which part of it is steady
decode, how the step time grows with running requests, and how far that is from the roofline.

[bold]Start here[/bold]

  rooflog run server.log              the answer, and a folder with its report
  rooflog compare old.log new.log     did it regress? exit code 1 if so
  rooflog watch server.log            what a running server does now

What the log does not know goes into --context, as JSON text or as the path of a YAML or JSON file:

  rooflog run server.log --context '{"hardware": "h100-sxm", "tp": 1}'
"""

MORE = """
[bold]Exit codes[/bold]: 0 good or same; 1 a check failed or it regressed; 2 cannot tell (with the reason); 3 could not
run.

[bold]Read more[/bold]: rooflog COMMAND --help has examples of each command; README.md and docs/ of the source have the
notebooks, the method with its measured errors, and what this will not tell.
"""

PURPOSES = {
    "A log": {
        "run": "The answer, kept in a folder with report and scorecard.",
        "fit": "The answer and the levels of a log or table; nothing is written.",
        "ingest": "What every line of the log was.",
        "report": "Build the report of a run folder again.",
    },
    "Several logs": {
        "compare": "Did it regress: level by level, term by term.",
        "history": "When did it: change points over runs in time.",
        "batch": "The answer for many logs, with an index page.",
    },
    "A running server": {
        "watch": "What it does now; waits for steady decode, with an exit code.",
        "plan": "The next experiment, as a script to run.",
    },
    "Without a log": {
        "bound": "What the hardware allows a model.",
        "simulate": "What a sweep would look like, and how long it would take.",
    },
    "What is known": {
        "engines": "What is read from each engine's logs, and what it means.",
        "models": "Parameters, bytes and cache of models, with source.",
        "hardware": "Peak rates of accelerators, with source.",
    },
    "This installation, and help": {
        "doctor": "What works on this machine, and what to do about the rest.",
        "redact": "The same log, safe to share.",
        "bug-report": "What a report of a fault needs, in one file. Nothing is sent.",
    },
}
"""Panel of the help -> command -> what it gives, short enough for one line of 80 columns. A command that is missing
here is shown last, with the start of its own help."""


def arrange(app: typer.Typer) -> None:
    """Put the commands of an app under their purposes, and let the text of their help fill any terminal.

    Parameters
    ----------
    app : typer.Typer
        With all its commands registered.
    """
    known = {name: (panel, short) for panel, rows in PURPOSES.items() for name, short in rows.items()}
    order = list(known)
    for command in app.registered_commands:
        assert command.callback is not None
        command.name = command.name or command.callback.__name__
        command.help = flowing(command.help or inspect.getdoc(command.callback) or "")
        command.rich_help_panel, command.short_help = known.get(command.name, (None, command.short_help))
    app.registered_commands.sort(key=lambda c: order.index(str(c.name)) if c.name in known else len(order))


def flowing(text: str) -> str:
    """Join the lines of each paragraph; indented lines, which are commands, stay as they are.

    Typer's rich mode keeps the line breaks of a docstring, which an 80-column terminal would break a second time, and
    takes the indent away where nothing but indented lines follow the first: empty markup before it keeps it.
    """
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(f"[bold][/bold]{part}" if part.startswith(" ") else " ".join(part.split("\n"))
                       for part in paragraphs)
