"""Whether two sides may be compared at all: their configuration differences, and what these allow."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from helpers.display import show

IDENTITY = ("model", "hardware", "gpus", "tp", "dp", "pp", "ep", "nnodes")
"""Facts that make two runs different servers: a difference in one of them is no regression."""

VERSION = ("engine", "engine_version")

LOAD = ("prompt_tokens", "output_tokens", "context_tok", "client_concurrency")

LOAD_TOLERANCE_FRAC = 0.1
"""Mean lengths of a load that differ by less are one load: they are means over the prompts that came [1]."""

NOT_CONFIGURATION = frozenset({
    "what_if", "model_config", "client_output_tok_per_s", "no_speculation_total_tok_per_s",
    "same_build_elsewhere_tok_per_s", "achievable_frac", "node_rank", "decode_log_interval",
    # what the server found for itself from its free memory, another number at every start
    "kv_pool_tokens", "slots",
    "args.host", "args.port", "args.api_key", "args.log_level", "args.served_model_name", "args.random_seed",
    "args.seed", "args.nccl_port", "args.dist_init_addr", "args.decode_log_interval",
})  # fmt: skip
"""Keys that are assumptions, results, names or addresses; they change no step and are not compared."""

UNITS: Mapping[str, tuple[float, str]] = {
    "_bytes": (1e9, "GB"), "_bytes_per_step": (1e9, "GB"), "_tokens": (1.0, "tok"),
    "_tok": (1.0, "tok"), "_w": (1.0, "W"), "_s": (1.0, "s"),
}
"""End of a fact's name -> what its value is divided by, and the unit it is shown in."""

ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    "tp": ("tp_size", "tensor_parallel_size"),
    "dp": ("dp_size", "data_parallel_size"),
    "pp": ("pp_size", "pipeline_parallel_size"),
    "ep": ("ep_size", "expert_parallel_size"),
    "context_length_max": ("context_length", "max_model_len"),
    "captured_batch_sizes": ("cuda_graph_bs", "cudagraph_capture_sizes"),
    "cuda_graph_enabled": ("disable_cuda_graph", "enforce_eager"),
    "num_draft_tokens": ("speculative_num_draft_tokens", "num_speculative_tokens"),
    "num_draft_steps": ("speculative_num_steps",),
    "max_running_requests": ("max_num_seqs",),
    "kv_block_size": ("block_size",),
    "model": ("model_path", "model_tag"),
    "hardware": ("device",),
}
"""Fact -> server arguments that state it (SGLang, vLLM); an argument of the fact's own name states it too."""


@dataclass(frozen=True)
class Validity:
    """What a comparison of two sides may claim.

    Attributes
    ----------
    verdict : str
        same_configuration, single_variable, several_differ or not_comparable.
    differences : DataFrame
        key, base, new, kind (identity, configuration, load, version), status: ``differs`` or ``not known`` (stated on
        one side only: neither equal nor different).
    variable : str or None
        The one key that differs, where it is the only one.
    sentence : str
        The verdict in words, with what is not known.
    """

    verdict: str
    differences: pd.DataFrame
    variable: str | None
    sentence: str


def judge_validity(base: Mapping[str, Any], new: Mapping[str, Any]) -> Validity:
    """Hold the facts of two sides against each other.

    Parameters
    ----------
    base, new : mapping
        Fact -> value as in ``scorecard["run"]["facts"]``; nested objects (``args``) are flattened to ``args.name``.
        None, NaN, empty texts and empty lists are not known.

    Returns
    -------
    Validity
        A server argument that states a differing fact again is not counted twice.
    """
    old, young = flatten(base), flatten(new)
    rows = []
    for key in sorted({*old, *young} - NOT_CONFIGURATION):
        if key.startswith("args._"):  # the server's own bookkeeping of its arguments
            continue
        if key in old and key in young and _is_equal(key, old[key], young[key]):
            continue
        status = "differs" if key in old and key in young else "not known"
        rows.append({"key": key, "base": old.get(key), "new": young.get(key), "kind": kind_of(key), "status": status})
    rows = _without_repeats(rows)
    found = pd.DataFrame(rows, columns=["key", "base", "new", "kind", "status"]).astype({"base": object, "new": object})
    differing = [row for row in rows if row["status"] == "differs"]
    verdict, sentence = _verdict(differing)
    sentence += _unknown([row["key"] for row in rows if row["status"] == "not known"])
    silent = [key for key in ("model", "hardware") if key not in old and key not in young]
    if silent:
        sentence += f" Stated on neither side: {', '.join(silent)}."
    return Validity(verdict, found, differing[0]["key"] if verdict == "single_variable" else None, sentence)


def flatten(facts: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the known facts with nested objects as dotted keys; lists are sorted where their items can be."""
    flat: dict[str, Any] = {}
    for key, value in facts.items():
        name = f"{prefix}{key}".replace("-", "_")
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{name}.")
        elif _is_known(value):
            flat[name] = _plain(value)
    return flat


def kind_of(key: str) -> str:
    """Return identity, version, load or configuration, by the fact an argument states."""
    fact = _fact_of(key)
    groups = {"identity": IDENTITY, "version": VERSION, "load": LOAD}
    return next((kind for kind, keys in groups.items() if fact in keys), "configuration")


def _fact_of(key: str) -> str:
    name = key.removeprefix("args.")
    return next((fact for fact, names in ARGUMENTS.items() if name in names), name)


def _without_repeats(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Leave out the arguments that state a fact which is listed itself."""
    facts = {row["key"] for row in rows if row["status"] == "differs" and not row["key"].startswith("args.")}
    return [row for row in rows if not (row["key"].startswith("args.") and _fact_of(row["key"]) in facts)]


def _verdict(differing: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    other = [row for row in differing if row["kind"] == "identity"]
    if other:
        return "not_comparable", f"These are not the same server: {_list(other)}."
    if not differing:
        return "same_configuration", "No stated fact differs: a change is one of the code, the machine or chance."
    if all(row["kind"] == "load" for row in differing):
        verdict = "single_variable" if len(differing) == 1 else "several_differ"
        return verdict, (f"The loads differ: {_list(differing)}. No stated fact of the server does, so a change may be "
                         "the effect of the load.")
    if len(differing) == 1:
        return "single_variable", f"One variable differs, so a change may be its effect: {_list(differing)}."
    return "several_differ", f"This is not a single-variable comparison; {len(differing)} differ: {_list(differing)}."


def _unknown(keys: Sequence[str]) -> str:
    """Name the facts stated on one side; of server arguments, which versions add by the hundred, the number."""
    said = [key for key in keys if not key.startswith("args.")]
    n_arguments = len(keys) - len(said)
    if n_arguments:
        said.append(f"{n_arguments} server argument{'' if n_arguments == 1 else 's'}")
    return f" Stated on one side only, so not known to be equal: {', '.join(said)}." if said else ""


def _list(rows: Iterable[Mapping[str, Any]]) -> str:
    return "; ".join("{} {} against {}".format(row["key"], *_shown(row["key"], row["base"], row["new"]))
                     for row in rows)


def _shown(key: str, base: Any, new: Any) -> tuple[str, str]:
    """Write two values as a person reads them; where three figures do not tell them apart, as they are."""
    if any(isinstance(value, bool) or not isinstance(value, int | float) for value in (base, new)):
        return str(base), str(new)
    is_argument = key.startswith("args.")  # its name is the engine's, which promises no unit
    end = "" if is_argument else max((end for end in UNITS if key.endswith(end)), key=len, default="")
    scale, unit = UNITS.get(end, (1.0, ""))
    first, second = (show(value / scale if scale != 1.0 else value, unit) for value in (base, new))
    return (first, second) if first != second else (str(base), str(new))


def _is_known(value: Any) -> bool:
    if value is None or value is pd.NA or value is pd.NaT:
        return False
    if isinstance(value, float):
        return math.isfinite(value)
    return not (isinstance(value, str | list | tuple | set) and len(value) == 0)


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple | set):
        items = [_plain(item) for item in value]
        return sorted(items) if all(isinstance(item, int | float) for item in items) else items
    return value


def _is_equal(key: str, base: Any, new: Any) -> bool:
    if isinstance(base, str) and isinstance(new, str):
        # vLLM prints torch.bfloat16 for what SGLang calls bfloat16
        return base.casefold().removeprefix("torch.") == new.casefold().removeprefix("torch.")
    numbers = isinstance(base, int | float) and isinstance(new, int | float)
    if kind_of(key) == "load" and numbers and base > 0 and new > 0:
        return abs(math.log(new) - math.log(base)) <= math.log1p(LOAD_TOLERANCE_FRAC)
    return bool(base == new)
