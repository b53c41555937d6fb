"""What the start-up lines of one server life say about its deployment."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from helpers.ingest.arguments import parse_arguments
from helpers.ingest.events import Event

_SGLANG = {
    "model": "model_path", "tp": "tp_size", "dp": "dp_size", "pp": "pp_size", "ep": "ep_size",
    "dp_attention": "enable_dp_attention", "decode_log_interval": "decode_log_interval", "page_size": "page_size",
    "kv_block_size": "page_size", "max_running_requests": "max_running_requests",
    "context_length_max": "context_length", "chunked_prefill_size": "chunked_prefill_size",
    "captured_batch_sizes": "cuda_graph_bs", "speculative_algorithm": "speculative_algorithm",
    "num_draft_tokens": "speculative_num_draft_tokens",
    "num_draft_steps": "speculative_num_steps", "dtype": "dtype", "kv_cache_dtype": "kv_cache_dtype",
    "quantization": "quantization", "enable_mixed_chunk": "enable_mixed_chunk",
    "disaggregation_mode": "disaggregation_mode", "nnodes": "nnodes", "node_rank": "node_rank",
}
_VLLM = {
    "model": "model", "tp": "tensor_parallel_size", "dp": "data_parallel_size", "pp": "pipeline_parallel_size",
    "max_running_requests": "max_num_seqs", "chunked_prefill_size": "max_num_batched_tokens",
    "kv_block_size": "block_size", "dtype": "dtype", "kv_cache_dtype": "kv_cache_dtype",
    "quantization": "quantization", "enable_prefix_caching": "enable_prefix_caching",
    "nnodes": "nnodes", "node_rank": "node_rank",
}
_KV_ROLES = {"kv_producer": "prefill", "kv_consumer": "decode"}
"""vLLM's role in a transfer of keys and values -> SGLang's word for the worker; ``kv_both`` serves either."""
_DECODE_GRAPHS = ("target decode", "target verify", None)
"""Names of the graphs whose sizes pad a decode step; draft and prefill graphs have sizes of their own."""


def collect_facts(events: Iterable[Event], engine: str | None) -> dict[str, Any]:
    """Collect the facts of one life.

    Parameters
    ----------
    events : iterable of Event
        All events of the life, internal ones included, in the order of the lines.
    engine : str or None
        Of the log.

    Returns
    -------
    dict
        Only what the lines say: model, tp, dp, pp, ep, dp_attention, decode_log_interval, page_size,
        max_running_requests, context_length_max, chunked_prefill_size, captured_batch_sizes, kv_pool_tokens,
        kv_block_size, cuda_graph_enabled, speculative_algorithm, num_draft_tokens, dtype, kv_cache_dtype,
        quantization, enable_overlap_schedule, disaggregation_mode, nnodes, node_rank, engine_version, args, ....
        ``num_draft_tokens`` is as the engine counts: SGLang includes the verified root token, vLLM does not.
    """
    events = list(events)
    args: dict[str, Any] = {}
    for event in events:
        args.update(event.args)
    facts = _from_args(args, engine)
    for event in events:
        found = _from_event(event)
        # what the pool finally held wins over what was asked for; a line that also draft models print does not
        facts.update(found if event.kind != "fact" else {k: v for k, v in found.items() if facts.get(k) is None})
    warmed = {int(event.detail["graph_batch_size"]) for event in events if "graph_batch_size" in event.detail}
    if warmed and not facts.get("captured_batch_sizes"):  # TensorRT-LLM prints a line for each size
        facts["captured_batch_sizes"] = sorted(warmed)
    if facts.get("captured_batch_sizes") and "cuda_graph_enabled" not in facts:
        facts["cuda_graph_enabled"] = True
    if facts.get("cuda_graph_enabled") is False:
        facts.pop("captured_batch_sizes", None)
    if args:
        facts["args"] = args
    return {name: value for name, value in facts.items() if value is not None}


def _from_args(args: Mapping[str, Any], engine: str | None) -> dict[str, Any]:
    """Translate the names of an argument dump."""
    if not args:
        return {}
    names = _VLLM if engine == "vllm" else _SGLANG
    facts = {name: args[printed] for name, printed in names.items() if printed in args}
    facts["engine_version"] = args.get("engine_version")
    if engine == "vllm":
        facts.update(_from_vllm_args(args))
        return facts
    if "disable_cuda_graph" in args:
        facts["cuda_graph_enabled"] = not args["disable_cuda_graph"]
    decode_graph = _nested(_nested(args.get("cuda_graph_config")).get("decode"))
    if "backend" in decode_graph:  # since 0.5.14 the resolved configuration says more than the switch
        facts["cuda_graph_enabled"] = decode_graph["backend"] != "disabled"
        facts["captured_batch_sizes"] = decode_graph.get("bs", facts.get("captured_batch_sizes"))
    if "disable_overlap_schedule" in args:
        facts["enable_overlap_schedule"] = not args["disable_overlap_schedule"]
    if "disable_radix_cache" in args:
        facts["enable_prefix_caching"] = not args["disable_radix_cache"]
    return facts


def _nested(value: Any) -> Mapping[str, Any]:
    """Read a value that is itself a dump; empty if it is none."""
    if isinstance(value, str):
        return parse_arguments(value)
    return value if isinstance(value, Mapping) else {}


def _from_vllm_args(args: Mapping[str, Any]) -> dict[str, Any]:
    """Read what vLLM nests or spells the other way round."""
    facts: dict[str, Any] = {"context_length_max": args.get("max_seq_len", args.get("max_model_len"))}
    if isinstance(facts["context_length_max"], str):
        del facts["context_length_max"]
    if "enforce_eager" in args:
        facts["cuda_graph_enabled"] = not args["enforce_eager"]
    if "CUDAGraphMode.NONE" in str(args.get("compilation_config", "")):
        facts["cuda_graph_enabled"] = False
    if "cudagraph_capture_sizes" in args:
        facts["captured_batch_sizes"] = args["cudagraph_capture_sizes"]
    speculative = _nested(args.get("speculative_config"))
    facts["speculative_algorithm"] = speculative.get("method")
    facts["num_draft_tokens"] = speculative.get("num_spec_tokens", speculative.get("num_speculative_tokens"))
    facts["disaggregation_mode"] = _KV_ROLES.get(str(_nested(args.get("kv_transfer_config")).get("kv_role")))
    if args.get("enable_expert_parallel"):
        facts["ep"] = args.get("tensor_parallel_size", 1) * args.get("data_parallel_size", 1)
    return facts


def _from_event(event: Event) -> dict[str, Any]:
    """Return the facts of one start-up line."""
    detail = event.detail
    if event.kind == "kv_allocated":
        named = {
            "kv_pool_tokens": "tokens", "max_running_requests": "max_running_requests",
            "context_length_max": "context_len", "chunked_prefill_size": "chunked_prefill_size",
        }
        return {fact: detail[name] for fact, name in named.items() if name in detail}
    if event.kind == "graphs_captured" and "batch_sizes" in detail and detail.get("graph") in _DECODE_GRAPHS:
        return {"captured_batch_sizes": detail["batch_sizes"]}
    if event.kind == "banner":
        return {"engine_version": str(detail["engine_version"])} if "engine_version" in detail else {}
    if event.kind == "fact":
        named = {
            "context_length_max": "max_model_len", "chunked_prefill_size": "max_num_batched_tokens",
            "model": "model", "n_threads": "n_threads", "kv_block_size": "tokens_per_block",
        }
        facts = {fact: detail[name] for fact, name in named.items() if name in detail}
        if "device_name" in detail:  # as the driver prints it, blanks as underscores
            facts["hardware"] = str(detail["device_name"]).replace("_", " ")
        if "async_scheduling" in detail:
            facts["enable_overlap_schedule"] = detail["async_scheduling"] == "enabled"
        return facts
    return {}
