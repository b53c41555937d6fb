"""What an experiment changes on the server, in each engine's own words."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

ENGINES = ("sglang", "vllm")
"""Engines for which a script can be written."""

FLAGS: dict[str, dict[str, str]] = {
    "context_length_max": {"sglang": "--context-length", "vllm": "--max-model-len"},
    "kv_cache_dtype": {"sglang": "--kv-cache-dtype", "vllm": "--kv-cache-dtype"},
    "quantization": {"sglang": "--quantization", "vllm": "--quantization"},
    "tp": {"sglang": "--tp-size", "vllm": "--tensor-parallel-size"},
    "max_running_requests": {"sglang": "--max-running-requests", "vllm": "--max-num-seqs"},
    "memory_frac": {"sglang": "--mem-fraction-static", "vllm": "--gpu-memory-utilization"},
    "graphs_off": {"sglang": "--disable-cuda-graph", "vllm": "--enforce-eager"},
    "overlap_off": {"sglang": "--disable-overlap-schedule", "vllm": "--no-async-scheduling"},
    "custom_all_reduce_off": {"sglang": "--disable-custom-all-reduce", "vllm": "--disable-custom-all-reduce"},
    "graph_req_max": {"sglang": "--cuda-graph-max-bs", "vllm": "--compilation-config"},
    "balanced": {"sglang": "--enable-eplb", "vllm": "--enable-eplb"},
    "spread": {"sglang": "--load-balance-method"},
    "decode_log_interval": {"sglang": "--decode-log-interval"},
    "draft_tok": {"sglang": "--speculative-num-draft-tokens", "vllm": "--speculative-config"},
    "draft_steps": {"sglang": "--speculative-num-steps"},
    "speculation": {"sglang": "--speculative-algorithm", "vllm": "--speculative-config"},
}
"""Setting -> engine -> flag, as the servers' help names them (docs.sglang.io server arguments, docs.vllm.ai serve)."""

SPECULATION = ("speculative_algorithm", "speculative_draft_model_path", "speculative_num_steps",
               "speculative_eagle_topk", "speculative_num_draft_tokens", "speculative_config")
"""Arguments that go when speculation is switched off."""

VALUES: dict[tuple[str, str], dict[str, Any]] = {
    ("kv_cache_dtype", "fp8"): {"sglang": "fp8_e4m3", "vllm": "fp8"},
}

KEPT_ARGS: dict[str, tuple[str, ...]] = {
    "sglang": (
        "tokenizer_path", "trust_remote_code", "load_format", "dtype", "quantization", "kv_cache_dtype",
        "context_length", "mem_fraction_static", "max_running_requests", "max_total_tokens", "chunked_prefill_size",
        "max_prefill_tokens", "schedule_policy", "page_size", "tp_size", "dp_size", "pp_size", "ep_size",
        "enable_dp_attention", "attention_backend", "sampling_backend", "moe_runner_backend", "moe_a2a_backend",
        "disable_cuda_graph", "cuda_graph_max_bs", "cuda_graph_max_bs_decode",
        "disable_overlap_schedule", "disable_radix_cache",
        "disable_custom_all_reduce", "enable_mixed_chunk", "enable_torch_compile", "decode_log_interval",
        "load_balance_method", "enable_eplb", "speculative_algorithm", "speculative_draft_model_path",
        "speculative_num_steps", "speculative_eagle_topk", "speculative_num_draft_tokens", "served_model_name",
    ),
    "vllm": (
        "tokenizer", "trust_remote_code", "load_format", "dtype", "quantization", "kv_cache_dtype", "max_model_len",
        "gpu_memory_utilization", "max_num_seqs", "max_num_batched_tokens", "block_size", "tensor_parallel_size",
        "data_parallel_size", "pipeline_parallel_size", "enable_expert_parallel", "enforce_eager",
        "enable_prefix_caching", "enable_chunked_prefill", "disable_custom_all_reduce", "async_scheduling",
        "attention_backend", "speculative_config", "enable_eplb", "served_model_name",
    ),
}
"""Server arguments that a script repeats: what shapes a step, and nothing that can hold a secret (keys, hosts, paths of
certificates)."""

_ON_OFF = {"vllm": ("enable_prefix_caching", "enable_chunked_prefill", "async_scheduling")}
"""Flags that have a --no- form: there a False is a choice, not a default."""


@dataclass(frozen=True)
class Changes:
    """What differs from the server of the log.

    Attributes
    ----------
    settings : mapping
        Setting of FLAGS -> value; True = the flag alone, False = without the flag.
    env : mapping
        Engine -> variable -> value.
    """

    settings: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        """Tell whether anything is changed."""
        return bool(self.settings or self.env)

    def words(self, engine: str, args: Mapping[str, Any] | None = None) -> tuple[list[str], list[str]]:
        """Return the flags to add, as words of a command line, and those to leave out.

        Parameters
        ----------
        engine : str
            sglang or vllm.
        args : mapping, optional
            Arguments of the server of the log: a nested argument is changed in place.
        """
        added: list[str] = []
        removed: list[str] = []
        for setting, value in self.settings.items():
            flag = FLAGS.get(setting, {}).get(engine)
            if flag is None:
                continue
            if setting == "speculation":
                removed += [_flag(name) for name in SPECULATION]
                continue
            removed.append(flag)
            if engine == "vllm" and setting == "draft_tok":
                config = _object((args or {}).get("speculative_config"))
                added += [flag, json.dumps({**config, "num_speculative_tokens": value})]
            elif engine == "vllm" and setting == "graph_req_max":
                sizes = sorted({*(2**i for i in range(20) if 2**i < value), value})
                added += [flag, json.dumps({"cudagraph_capture_sizes": sizes})]
            elif value is True:
                added.append(flag)
            elif value is not False:
                added += [flag, str(VALUES.get((setting, value), {}).get(engine, value))]
        return added, removed

    def shown(self, engine: str, args: Mapping[str, Any] | None = None) -> str:
        """Say the change in one line."""
        added, removed = self.words(engine, args)
        gone = [flag for flag in removed if flag not in added]
        parts = [" ".join(added)] if added else []
        parts += [f"without {' '.join(gone)}"] if gone and not added else []
        return "; ".join([*parts, *(f"{k}={v}" for k, v in self.env.get(engine, {}).items())])


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _object(value: Any) -> dict[str, Any]:
    """Read an argument that is itself an object, as a mapping or as JSON text; empty if it is none."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return {}
    return dict(value) if isinstance(value, Mapping) else {}


def kept_args(engine: str, args: Mapping[str, Any]) -> dict[str, Any]:
    """Return those arguments of a server that a script may repeat; values at their default are left out."""
    kept = {}
    for name in KEPT_ARGS.get(engine, ()):
        value = args.get(name)
        if value is None or value == "auto" or (value is False and name not in _ON_OFF.get(engine, ())):
            continue
        if name == "served_model_name" and isinstance(value, list) and value:
            value = value[0]
        if name == "dtype":
            value = str(value).removeprefix("torch.")  # a log prints the type, the flag takes its name
        if isinstance(value, bool | int | float | str) or (name == "speculative_config" and _object(value)):
            kept[name] = value
    return kept


GRAPH_SETTINGS = ("graph_req_max", "graphs_off")
"""Settings that choose what is captured."""

DRAFT_SETTINGS = ("draft_tok", "draft_steps", "speculation")
"""Settings that change how many tokens a request brings to a step: vLLM captures sizes in tokens."""


def graph_words(engine: str, args: Mapping[str, Any], sizes: Sequence[int], changed: Collection[str]) -> list[str]:
    """Return the flag that captures the sizes of the log, so that nothing but the experiment differs.

    Parameters
    ----------
    engine : str
    args : mapping
        Arguments of the server of the log.
    sizes : sequence of int
        What it captured, as its flag takes it (SGLang [req], vLLM [tok]).
    changed : collection of str
        Settings that the experiment changes.

    Returns
    -------
    list of str
        Empty where sizes are not known, graphs are off, or the experiment changes what is captured.
    """
    is_off = args.get("disable_cuda_graph") or args.get("enforce_eager")
    touched = {*GRAPH_SETTINGS, *(DRAFT_SETTINGS if engine == "vllm" else ())}
    if not sizes or is_off or touched & set(changed):
        return []
    if engine == "vllm":
        return ["--compilation-config", json.dumps({"cudagraph_capture_sizes": list(sizes)}, separators=(",", ":"))]
    # newer versions tell the sizes of decode from those of prefill
    flag = "--cuda-graph-bs-decode" if "cuda_graph_max_bs_decode" in args else "--cuda-graph-bs"
    return [flag, *map(str, sizes)]


def server_words(engine: str, args: Mapping[str, Any]) -> list[list[str]]:
    """Turn kept arguments into flags, one list of words each."""
    words = []
    for name, value in kept_args(engine, args).items():
        if value is True:
            words.append([_flag(name)])
        elif value is False:
            words.append(["--no-" + name.replace("_", "-")])
        else:
            text = json.dumps(dict(value)) if isinstance(value, Mapping) else str(value)
            words.append([_flag(name), text])
    return words
