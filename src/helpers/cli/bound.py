"""`rooflog bound`: what the hardware allows, without a log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from helpers.display import level_key, show
from helpers.parameters import NotebookParameter, convert
from helpers.schema import RooflogError

LEVELS = "1,2,4,8,16,32,64,128,256"
CONTEXT_TOK = 2048.0


def bound(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Name (rooflog models), config.json, or its folder.")],
    hardware: Annotated[str, typer.Option(metavar="NAME", help="Accelerator (rooflog hardware).")],
    tp: Annotated[int, typer.Option(min=1, help="Tensor-parallel ranks.")] = 1,
    dp: Annotated[int, typer.Option(min=1, help="Data-parallel ranks.")] = 1,
    pp: Annotated[int, typer.Option(min=1, help="Pipeline stages.")] = 1,
    ep: Annotated[int, typer.Option(min=1, help="Ranks that share whole experts.")] = 1,
    dp_attention: Annotated[bool, typer.Option("--dp-attention", help="The dp ranks share one step.")] = False,
    context_length: Annotated[
        float, typer.Option(min=1, metavar="TOK", help="Mean context of a running request.")
    ] = CONTEXT_TOK,
    levels: Annotated[str, typer.Option(metavar="N,N,...", help="Running requests.")] = LEVELS,
    weights: Annotated[str, typer.Option(metavar="FORMAT", help="Weight format, if not the model's.")] = "",
    kv_dtype: Annotated[str, typer.Option(metavar="FORMAT", help="Cache format, if not the model's: fp8, bf16.")] = "",
    draft_tokens: Annotated[int, typer.Option(min=0, metavar="TOK", help="Draft tokens per round.")] = 0,
    prompt_tokens: Annotated[float, typer.Option(min=0, metavar="TOK", help="Bound the prefill of such a prompt.")] = 0,
    interconnect: Annotated[str, typer.Option(metavar="LINK", help="What joins the ranks: nvlink, pcie5...")] = "",
    achievable: Annotated[
        float | None, typer.Option(metavar="FRAC", help="Share of the peak bandwidth of the target line.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else on standard output.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Say what the hardware allows a model: step time at each level, what bounds it, and where that turns.

    strict: a lower bound. expected: ideal kernels, uniform routing, collectives. target: what good kernels reach.

    [bold]Examples[/bold]

      rooflog bound Qwen3-30B-A3B --hardware h200
      rooflog bound DeepSeek-V3 --hardware h200 --tp 8 --context-length 4096 --levels 1,16,64 --json
      rooflog bound ./config.json --hardware "RTX A6000" --tp 2 --weights fp8 --prompt-tokens 4000
    """
    from helpers import without_log

    running_req = convert(NotebookParameter("--levels", "list[float]", [], ""), levels)
    if not running_req or min(running_req) <= 0:
        raise RooflogError(f"--levels: expected running requests above 0, separated by commas, found {levels!r}")
    facts = {
        "hardware": hardware, "tp": tp, "dp": dp, "pp": pp, "ep": ep, "dp_attention": dp_attention,
        "weight_format": weights or None, "kv_cache_dtype": kv_dtype or None, "num_draft_tokens": draft_tokens,
        "interconnect": interconnect or None,
    }
    card = without_log.bound_of(model, facts, running_req, context_length, prompt_tok=prompt_tokens,
                                achievable_frac=achievable)
    if as_json:
        from helpers.cli.printing import print_json

        print_json(card)
        return
    _print(card)


def _print(card: Mapping[str, Any]) -> None:
    """Print the answer as text: one table, then what it rests on."""
    run = card["run"]
    degrees = " ".join(f"{name.upper()}{n}" for name, n in run["parallel"].items() if n > 1) or "one rank"
    print(f"{run['model']} on {run['hardware']}, {degrees}, {show(card['context_tok'], 'tok')} of context per request")
    print(f"{show(run['n_params'] / 1e9)} B parameters, {show(run['n_active_params'] / 1e9)} B used by one token; "
          f"{show(run['weight_bytes_per_rank'] / 1e9)} GB of weights per rank of {show(run['mem_bytes'] / 1e9)} GB; "
          f"{show(run['kv_bytes_per_tok'] / 1e3)} kB of cache per token")
    word = "round" if run["draft_tok"] else "step"
    print(f"\n{'N':>6} {'strict':>10} {'expected':>10} {'target':>10} {'tok/s':>10}  most of the {word} goes to")
    for level in card["levels"]:
        times = [show(level[f"{name}_step_s"], "s") for name in ("strict", "expected", "target")]
        rate = show(level["target_tok_per_s"])
        print(f"{level_key(level['running_req']):>6} {times[0]:>10} {times[1]:>10} {times[2]:>10} {rate:>10}  "
              f"{level['regime']}")
    print(f"\ntok/s: of the target{', one token per request and round' if run['draft_tok'] else ''}. None of the lines "
          "holds launch, host or sampling time.")
    for text in card["reading"]:
        print(text)
    print("\nRests on:")
    for text in [*card["assumptions"], *card["warnings"]]:
        print(f"- {text}")
