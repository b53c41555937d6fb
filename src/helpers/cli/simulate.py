"""`rooflog simulate`: a log with known truth, in the exact format of an engine's version."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from helpers.cli.printing import print_estimate, print_json, write_text, write_whole
from helpers.facts import read_context
from helpers.parameters import NotebookParameter, convert
from helpers.progress import Progress
from helpers.schema import RooflogError

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else on standard output.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


def simulate(
    preset: Annotated[
        str, typer.Argument(metavar="PRESET", help="A named server and client; see --list.")
    ] = "dense_sweep",
    out: Annotated[str, typer.Option(metavar="LOG", help="Write the log.")] = "",
    truth: Annotated[str, typer.Option(metavar="FILE", help="Write what really happened, as JSON.")] = "",
    sources: Annotated[
        str, typer.Option(metavar="DIR", help="Existing folder for metrics.txt and loads.jsonl of the same server.")
    ] = "",
    estimate: Annotated[bool, typer.Option("--estimate", help="Only tell what it would look like and take.")] = False,
    server: Annotated[
        str, typer.Option(metavar="FACTS", help="Fields of server or client to change: JSON text, or a YAML/JSON file.")
    ] = "",
    levels: Annotated[str, typer.Option(metavar="N,N,...", help="Requests the client keeps in flight.")] = "",
    engine: Annotated[str, typer.Option(help="sglang or vllm.")] = "",
    engine_version: Annotated[str, typer.Option("--version", help="Whose line format to write.")] = "",
    seed: Annotated[int, typer.Option(min=0, help="Same seed, same bytes.")] = 0,
    show_list: Annotated[bool, typer.Option("--list", help="List the presets and stop.")] = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Simulate a server under a client: a log in the exact format of an engine's version, with known truth.

    [bold]Examples[/bold]

      rooflog simulate --list
      rooflog simulate --estimate --levels 1,4,16,64
      rooflog simulate field_case_a --out a.log --truth a.json --seed 3
      rooflog simulate --engine vllm --version 0.20.2 --server '{"law": {"intercept_s": 0.03}}' --out v.log
    """
    from helpers import synth
    from helpers.synth.config import NEWEST

    if show_list and as_json:
        print_json({"presets": [{"name": name, "about": synth.presets.get(name).about}
                                for name in synth.presets.names()]})
        return
    if show_list:
        for name in synth.presets.names():
            print(f"{name}: {synth.presets.get(name).about}")
        return
    changes = read_context(server, "--server")
    changes |= {name: value for name, value in (("engine", engine), ("version", engine_version)) if value}
    if levels:
        changes |= {"levels_req": convert(NotebookParameter("--levels", "list[int]", [], ""), levels), "n_prompts": []}
    preset_engine = synth.presets.get(preset).server.engine
    if changes.get("engine", preset_engine) != preset_engine and changes["engine"] in NEWEST:
        changes.setdefault("version", NEWEST[changes["engine"]])  # the preset's is one of the other engine
    chosen = synth.presets.get(preset, **changes)
    if not out and not estimate:
        raise RooflogError("simulate: expected --out LOG, or --estimate to write nothing; found neither")
    if (truth or sources) and not out:
        raise RooflogError("simulate: --truth and --sources belong to a log; expected --out LOG beside them")
    if sources and not Path(sources).is_dir():
        raise RooflogError(f"simulate: --sources {sources}: expected an existing folder; make it first")
    with Progress(f"simulating {preset}"):
        if estimate:
            print_estimate(synth.estimate(chosen.server, chosen.client), preset, as_json)
        if not out:
            return
        simulation = chosen.simulate(seed=seed)
        write_whole(Path(out), lambda file: simulation.write(file))
        if truth:
            text = json.dumps(simulation.truth, indent=1) + "\n"
            write_whole(Path(truth), lambda file: write_text(file, text))
        if sources:
            simulation.write_sources(sources)
    if as_json and not estimate:
        print_json({"log": out, "truth": truth or None, "preset": preset, "seed": seed,
                     "n_lines": len(simulation.lines())})
    elif not as_json:
        print(f"Written: {out} ({len(simulation.lines())} lines)" + (f" and {truth}" if truth else ""))
