"""`rooflog plan`: the next experiment of a run, as a script."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from helpers.cli.printing import print_json, shown_path, write_text, write_whole
from helpers.display import show
from helpers.schema import LogFormatError, RooflogError, printable

if TYPE_CHECKING:
    from helpers.plan import Plan

GOOD_STEP = "the step is what the hardware allows, and no other cause stands"

CANNOT_TELL = 2
MAX_OTHERS = 3


def plan_command(
    run_dir: Annotated[str, typer.Argument(metavar="RUN_DIR", help="A run folder, or its scorecard.json.")],
    out: Annotated[str, typer.Option(metavar="FILE", help="Script to write; RUN_DIR/plan.sh by default.")] = "",
    experiment: Annotated[
        str, typer.Option(metavar="NAME", help="This experiment instead of the one that tells most per minute.")
    ] = "",
    context: Annotated[
        str, typer.Option("--context", metavar="FACTS", help="What the run did not know: JSON text, or a file.")
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else on standard output.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Write the next experiment as a bash script for SGLang or vLLM: the one that tells most per minute.

    The script starts the server with the flags of the log and the changed ones, sends the load, records telemetry and
    log, and ends with the rooflog run that reads them. Nothing is started here. Exit 2: nothing would tell the causes
    apart, or no script can be written for the engine.

    [bold]Examples[/bold]

      rooflog plan runs/20261129T120000Z-00
      rooflog plan runs/20261129T120000Z-00 --experiment clock_lock --out clock.sh
    """
    from helpers import plan as planning
    from helpers import scorecard
    from helpers.facts import read_context

    folder = Path(run_dir)
    card = _card(folder)
    told = read_context(context)
    known = planning.from_card(card, {**_facts_of_run(folder), **told})
    diagnosis = card.get("diagnosis") or []
    plans, status = planning.choose_for(diagnosis, known), planning.standing(diagnosis)
    if not plans and experiment:
        plans = planning.choose(status, known)
    if not plans:
        reason = GOOD_STEP if planning.is_good(diagnosis) else _why_none(
            status, planning.weights(status) if status else {})
        if as_json:
            print_json({"experiment": None, "why": reason})
        else:
            print(f"No experiment: {reason}")
        raise typer.Exit(CANNOT_TELL)
    chosen = _pick(plans, experiment, "" if told else _named_by_run(card))
    others = [plan for plan in plans if plan is not chosen][:MAX_OTHERS]
    target = Path(out) if out else (folder if folder.is_dir() else folder.parent) / "plan.sh"
    text = ""
    if str(known.get("engine") or "").lower() in ("sglang", "vllm"):
        text = planning.script(chosen, known)
        write_whole(target, lambda file: _write_executable(file, text))
    if as_json:
        print_json(scorecard.to_plain({
            "experiment": chosen.name, **chosen.as_next_experiment(str(run_dir)), "why": chosen.why,
            "bits": chosen.bits, "bits_per_min": chosen.bits_per_min, "assumptions": chosen.assumptions,
            "script": str(target) if text else None, "others": [plan.name for plan in others],
        }))
    else:
        _print(chosen, others)
        print(f"Written: {shown_path(target)}" if text else
              f"No script: expected engine sglang or vllm, found {printable(str(known.get('engine') or 'none'))}; "
              "do it by hand")
    raise typer.Exit(0 if text else CANNOT_TELL)


def _card(folder: Path) -> dict[str, Any]:
    """Read the scorecard, and say in words what is there instead."""
    from helpers import scorecard

    file = folder / scorecard.FILE_NAME if folder.is_dir() else folder
    if not file.is_file():
        found = f"a folder without {scorecard.FILE_NAME}" if folder.is_dir() else "no such file or folder"
        raise LogFormatError(f"{folder}: expected a scorecard or the folder of a run, found {found}; give the folder "
                             "that rooflog run has written")
    try:
        return scorecard.read(file)
    except LogFormatError as error:
        if isinstance(error.__cause__, ValueError):
            raise LogFormatError(f"{file}: expected a scorecard, found no JSON; give the folder that rooflog run has "
                                 "written") from error
        raise


def _named_by_run(card: Mapping[str, Any]) -> str:
    """Return the experiment that the run itself named; empty where it named none."""
    named = card.get("next_experiment")
    words = str(named.get("command") or "").split() if isinstance(named, Mapping) else []
    return words[-1] if "--experiment" in words[-2:-1] else ""


def _facts_of_run(folder: Path) -> dict[str, Any]:
    """Return what the user told and gave the run; nothing where the folder has no record of it."""
    from helpers.facts import read_context

    record = folder / "run.json"
    if not record.is_file():
        return {}
    try:
        parameters = json.loads(record.read_text(encoding="utf-8")).get("parameters") or {}
    except (OSError, ValueError, AttributeError) as error:
        found = "it cannot be read" if isinstance(error, OSError) else "no JSON of that form"
        raise LogFormatError(f"{record}: expected the record of a run, found {found}; run it again") from error
    context = str(parameters.get("context") or "")
    is_text = context.lstrip().startswith(("{", "["))
    facts = read_context(context) if is_text or Path(context).is_file() else {}
    return {**facts, "has_telemetry": bool(parameters.get("telemetry")), "has_profile": bool(parameters.get("profile"))}


def _why_none(status: Mapping[str, Any], standing: Mapping[str, float]) -> str:
    """Say why no experiment is worth its time."""
    if len(standing) == 1:
        return f"{next(iter(standing))} is the only cause that is not refuted"
    if status and not standing:
        return "every cause that an experiment can test is refuted"
    return f"nothing that can be done here tells {' and '.join(sorted(standing))} apart"


def _pick(plans: Sequence[Plan], name: str, named_by_run: str) -> Plan:
    """Return the plan that the user names, else the one that the run named, else the best."""
    if not name:
        return next((plan for plan in plans if plan.name == named_by_run), plans[0])
    found = next((plan for plan in plans if plan.name == name), None)
    if found is None:
        raise RooflogError(f"--experiment {name}: expected one of {', '.join(p.name for p in plans)}; others cannot be "
                           "done here or tell nothing")
    return found


def _write_executable(file: Path, text: str) -> None:
    """Write a script that its owner can run."""
    write_text(file, text)
    file.chmod(0o755)


def _print(plan: Plan, others: Sequence[Plan]) -> None:
    """Print the experiment as a person reads it."""
    print(printable(f"{plan.what}."))
    print(printable(f"Why: {plan.why} ({show(plan.bits)} bits expected)."))
    print(f"Takes about {show(plan.duration_s, 'duration')}.")
    print("Predicted:")
    for cause, outcome in plan.predicts.items():
        print(printable(f"- {cause}: {outcome.text}"))
    if plan.assumptions:
        print("Assumed:")
        for text in plan.assumptions:
            print(printable(f"- {text}"))
    if others:
        print("Next best: " + "; ".join(f"{p.name} ({show(p.duration_s, 'duration')})" for p in others))
