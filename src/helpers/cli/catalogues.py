"""`rooflog models` and `rooflog hardware`: what is in the catalogues, with source and confidence."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

import typer
from rich.markup import escape

from helpers import scorecard
from helpers.cli.printing import new_table, print_json, print_table
from helpers.display import show
from helpers.physics.catalogue import hardware as accelerators
from helpers.physics.catalogue import models as catalogued
from helpers.physics.model.spec import ModelSpec

MEGA, GIGA, TERA = 1e6, 1e9, 1e12
KIBI, MEBI, GIBI = 2**10, 2**20, 2**30
NAME_WIDTH = 35  # [characters]

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else on standard output, in base units.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


def models(
    name: Annotated[str, typer.Argument(metavar="[NAME]", help="A model, as you or the log call it.")] = "",
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """List the models of the catalogue, or show one: parameters, bytes and format per role, cache, what was assumed.

    [bold]Examples[/bold]

      rooflog models
      rooflog models Qwen3-30B-A3B
      rooflog models /data/models/deepseek-v4-flash-nvfp4 --json
    """
    if name:
        show_one = print_json if as_json else _print_model
        show_one(_model_card(catalogued.find(name)))
        return
    rows = scorecard.to_plain(catalogued.catalogue().to_dict("records"))
    if as_json:
        print_json({"models": rows})
        return
    _print_rows(
        "Models (one copy; weights with embedding, without draft layers)",
        ("model", "params [B]", "active [B]", "weights [GB]", "KV [KiB/tok]", "state [MB]", "most bytes in", "sure"),
        ([row["name"], _scaled(row["n_params"], GIGA), _scaled(row["n_active_params"], GIGA),
          _scaled(row["weight_bytes"], GIGA), _scaled(row["kv_bytes_per_tok"], KIBI),
          _scaled(row["state_bytes_per_req"] or None, MEGA), row["formats"].split(" + ")[0], row["confidence"]]
         for row in rows),
    )
    print("active: one token's, embedding left out. KV: what one more token of a long context takes.\n"
          "state: recurrent, per request. rooflog models NAME: one model with formats, source, assumptions.")


def hardware(
    name: Annotated[str, typer.Argument(metavar="[NAME]", help="An accelerator, as you or the driver call it.")] = "",
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """List the accelerators of the catalogue, or show one: peak rates, memory, links, source, doubts.

    [bold]Examples[/bold]

      rooflog hardware
      rooflog hardware "NVIDIA H100 80GB HBM3"
      rooflog hardware h200 --json
    """
    if name:
        found = accelerators.find(name)
        show_one = print_json if as_json else _print_accelerator
        show_one(scorecard.to_plain({**vars(found), "warnings": list(found.warnings)}))
        return
    rows = scorecard.to_plain(accelerators.catalogue().to_dict("records"))
    if as_json:
        print_json({"hardware": rows})
        return
    _print_rows(
        "Accelerators (dense peak rates with 32-bit accumulation)",
        ("accelerator", "memory [GiB]", "memory [GB/s]", "BF16 [TFLOP/s]", "FP8 [TFLOP/s]", "FP4 [TFLOP/s]", "sure"),
        ([row["name"], _scaled(row["mem_bytes"], GIBI), _scaled(row["mem_bw_bytes_per_s"], GIGA),
          *(_scaled(row[f"{kind}_flop_per_s"], TERA) for kind in ("bf16", "fp8", "fp4")), row["confidence"]]
         for row in rows),
    )
    print("rooflog hardware NAME: one accelerator with its links, source and doubts.")


def _model_card(spec: ModelSpec) -> dict[str, Any]:
    """Return everything `rooflog models NAME` says, in base units."""
    n_bytes, n_params = catalogued.weight_bytes(spec), catalogued.n_params_by_role(spec)
    return scorecard.to_plain({
        "name": spec.name, "n_params": spec.n_params, "n_active_params": spec.n_active_params,
        "n_layers": spec.n_layers, "hidden": spec.hidden, "vocab": spec.vocab, "is_tied": spec.is_tied,
        "weight_bytes": sum(n_bytes.values()),
        "roles": [
            {"role": role, "n_params": n_params[role], "format": spec.formats[role].name,
             "bytes_per_param": spec.formats[role].bytes_per_param, "weight_bytes": n_bytes[role]}
            for role in n_bytes
        ],
        "draft_n_params": catalogued.draft_params(spec), "draft_format": spec.formats["draft"].name,
        "kv_format": spec.kv.name, "kv_bytes_per_tok": catalogued.kv_bytes_per_tok(spec),
        "state_bytes_per_req": catalogued.state_bytes_per_req(spec), "context_length_max": spec.context_length_max,
        "source": spec.source, "confidence": spec.confidence, "assumptions": list(spec.assumptions),
    })


def _print_model(card: Mapping[str, Any]) -> None:
    print(f"{card['name']}: {_scaled(card['n_params'], GIGA)} B parameters, {_scaled(card['n_active_params'], GIGA)} B "
          f"used by one token (embedding left out), {card['n_layers']} layers, hidden {card['hidden']}, "
          f"vocabulary {card['vocab']}" + (", head and embedding are one" if card["is_tied"] else ""))
    _print_rows(
        "Weights of one copy", ("role", "params [B]", "format", "bytes/param", "weights [GB]"),
        ([row["role"], _scaled(row["n_params"], GIGA), row["format"], f"{row['bytes_per_param']:.5g}",
          _scaled(row["weight_bytes"], GIGA)] for row in card["roles"]),
    )
    lines = [f"all: {_scaled(card['weight_bytes'], GIGA)} GB"]
    if card["draft_n_params"]:
        lines.append(f"draft layers, on top: {_scaled(card['draft_n_params'], GIGA)} B parameters in "
                     f"{card['draft_format']}")
    lines.append(f"cache: {_scaled(card['kv_bytes_per_tok'], KIBI)} KiB for one more token of a long context "
                 f"({card['kv_format']})")
    if card["state_bytes_per_req"]:
        lines.append(f"recurrent state: {_scaled(card['state_bytes_per_req'], MEGA)} MB per request")
    if card["context_length_max"]:
        lines.append(f"longest context: {card['context_length_max']} tok")
    _print_origin(card, lines, card["assumptions"], "assumed")


def _print_accelerator(card: Mapping[str, Any]) -> None:
    print(f"{card['name']} ({', '.join(word for word in (card['vendor'], card['arch']) if word)})")
    rates = {kind: card[f"{kind}_flop_per_s"] for kind in ("bf16", "fp16", "fp8", "fp4", "int8", "fp32")}
    shown = [f"{kind.upper()} {_scaled(rate, TERA)}" for kind, rate in rates.items() if rate is not None]
    lines = [
        f"memory: {_scaled(card['mem_bytes'], GIBI) or 'unknown'} GiB {card['mem_type']}, peak "
        f"{_scaled(card['mem_bw_bytes_per_s'], GIGA)} GB/s",
        f"dense peak [TFLOP/s; INT8: TOP/s]: {', '.join(shown) or 'unknown'}",
    ]
    if card["eta_mem_measured_frac"] is not None:
        lines.append(f"measured share of the peak bandwidth: {100 * card['eta_mem_measured_frac']:.0f} % (large BF16 "
                     "matrix products of at most 16 rows)")
    for label, key, scale, unit in (
        ("last-level cache", "l2_bytes", MEBI, "MiB"), ("board power", "tdp_w", 1, "W"),
        (f"host link {card['pcie']}".strip(), "pcie_bytes_per_s", GIGA, "GB/s per direction"),
        (f"link between accelerators {card['scaleup']}".strip(), "scaleup_bytes_per_s", GIGA, "GB/s per direction"),
    ):
        if card[key] is not None:
            lines.append(f"{label}: {_scaled(card[key], scale)} {unit}")
    if card["notes"]:
        lines.append(f"notes: {card['notes']}")
    _print_origin(card, lines, card["warnings"], "warning")


def _print_origin(card: Mapping[str, Any], lines: Sequence[str], doubts: Sequence[str], doubt: str) -> None:
    for line in (*lines, f"source: {card['source']}", f"confidence: {card['confidence']}"):
        print(line)
    for text in doubts:
        print(f"{doubt}: {text}")


def _print_rows(title: str, headers: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table that fits 100 columns: long names are folded, numbers stand right."""
    table = new_table(title, *(header.replace(" [", "\n[") for header in headers))
    table.padding = (0, 1, 0, 0)
    for column, header in zip(table.columns, headers, strict=True):
        column.overflow = "fold"
        column.justify = "right" if "[" in header or header == "bytes/param" else "left"
    table.columns[0].max_width = NAME_WIDTH
    for row in rows:
        table.add_row(*(escape(cell) for cell in row))
    print_table(table)


def _scaled(value: float | None, scale: float) -> str:
    """Write a number in the unit of its column; nothing where none is known."""
    return "" if value is None else show(value / scale)
