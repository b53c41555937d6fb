"""Start-up, crash and shutdown lines of both engines: enough for every fact that can be read from a log."""

from __future__ import annotations

from typing import Any

from helpers.synth.config import Server

GIB = 2**30
PROCESS_ID = 4242
DEVICE_BYTES = 96 * GIB
"""Memory of the simulated accelerator; only printed."""


def _gib(size_bytes: float) -> str:
    return f"{size_bytes / GIB:.2f}"


def _kv_bytes(server: Server) -> float:
    """Size of the KV pool at 64 KiB per token, a middling model; only printed."""
    return server.kv_pool_tok * 64 * 1024


def sglang_args(server: Server) -> dict[str, Any]:
    """Return the argument dump of the simulated server."""
    speculation = server.speculation
    return {
        "model_path": f"/models/{server.model}", "tokenizer_path": f"/models/{server.model}", "dtype": "auto",
        "quantization": None, "kv_cache_dtype": "auto", "context_length": server.context_length_tok,
        "mem_fraction_static": 0.88, "max_running_requests": server.max_running_req, "max_total_tokens": None,
        "chunked_prefill_size": server.chunked_prefill_tok, "max_prefill_tokens": 16384,
        "schedule_policy": "fcfs", "schedule_conservativeness": 1.0, "page_size": server.page_tok,
        "tp_size": server.tp_size, "pp_size": server.pp_size, "dp_size": server.dp_size, "ep_size": server.ep_size,
        "enable_dp_attention": server.dp_size > 1, "decode_log_interval": server.decode_log_interval,
        "disable_radix_cache": not server.prefix_cache, "disable_cuda_graph": not server.cuda_graph,
        "cuda_graph_max_bs": max(server.captured_batch_sizes) if server.cuda_graph else None,
        "cuda_graph_bs": None, "disable_overlap_schedule": not server.overlap_schedule,
        "speculative_algorithm": speculation.algorithm if speculation else None,
        "speculative_num_draft_tokens": speculation.num_draft_tokens if speculation else None,
        "enable_mixed_chunk": False, "log_level": "info", "host": "127.0.0.1", "port": 30000, "random_seed": 7,
        **server.extra_args,
    }


def sglang_startup(server: Server, tags: str) -> list[tuple[str, str]]:
    """Return (rank tags, text) of each start-up line up to the last before the warm-up request."""
    version = server.version_tuple
    args = sglang_args(server)
    if version >= (0, 5, 20):
        dump = f"server_args={args!r}"
    else:
        dump = "server_args=ServerArgs(" + ", ".join(f"{name}={value!r}" for name, value in args.items()) + ")"
    free: float = DEVICE_BYTES
    lines = [("", dump), (tags, "Init torch distributed begin."),
             (tags, "Init torch distributed ends. mem usage=0.25 GB"),
             (tags, f"Load weight begin. avail mem={_gib(free)} GB")]
    free -= server.weight_bytes
    elapsed = "elapsed=21.50 s, " if version >= (0, 5, 9) else ""
    lines.append((tags, f"Load weight end. {elapsed}type=SyntheticForCausalLM, dtype=torch.bfloat16, "
                        f"avail mem={_gib(free)} GB, mem usage={_gib(server.weight_bytes)} GB."))
    kv_bytes = _kv_bytes(server)
    free = max(free - kv_bytes, 3 * GIB)
    kv_dtype = "dtype: torch.bfloat16, " if version >= (0, 5, 14) else ""
    half = _gib(kv_bytes / 2)
    lines += [(tags, f"KV Cache is allocated. {kv_dtype}#tokens: {server.kv_pool_tok}, "
                     f"K size: {half} GB, V size: {half} GB"),
              (tags, f"Memory pool end. avail mem={_gib(free)} GB")]
    if server.cuda_graph:
        sizes = "[" + ", ".join(map(str, server.captured_batch_sizes)) + "]"
        left = _gib(free - 0.5 * GIB)
        if version >= (0, 5, 14):
            lines += [(tags, f"Capture target decode CUDA graph begin. backend=full, num_tokens_per_req=1, "
                             f"avail mem={_gib(free)} GB"),
                      (tags, f"Capture target decode CUDA graph end. bs={sizes}, elapsed=12.00 s, "
                             f"mem usage=0.50 GB, avail mem={left} GB.")]
        else:
            lines += [(tags, "Capture cuda graph begin. This can take up to several minutes. "
                             f"avail mem={_gib(free)} GB"),
                      (tags, f"Capture cuda graph bs {sizes}"),
                      (tags, f"Capture cuda graph end. Time elapsed: 12.00 s. mem usage=0.50 GB. avail mem={left} GB.")]
    available = f", available_gpu_mem={_gib(free)} GB" if version >= (0, 5) else ""
    lines += [(tags, f"max_total_num_tokens={server.kv_pool_tok}, chunked_prefill_size={server.chunked_prefill_tok}, "
                     f"max_prefill_tokens=16384, max_running_requests={server.max_running_req}, "
                     f"context_len={server.context_length_tok}{available}"),
              ("", f"INFO:     Started server process [{PROCESS_ID}]"),
              ("", "INFO:     Waiting for application startup."),
              ("", "INFO:     Application startup complete."),
              ("", "INFO:     Uvicorn running on http://127.0.0.1:30000 (Press CTRL+C to quit)")]
    return lines


def _out_of_memory(size_bytes: float) -> str:
    return (f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {_gib(size_bytes)} GiB. GPU 0 has a total "
            f"capacity of {_gib(DEVICE_BYTES)} GiB of which {_gib(0.7 * size_bytes)} GiB is free.")


def sglang_crash(size_bytes: float) -> list[str]:
    """Return the lines of a scheduler that dies of an allocation of size_bytes; the first and last carry a stamp."""
    return [
        "Scheduler hit an exception: Traceback (most recent call last):",
        '  File "scheduler.py", line 1, in run_scheduler_process',
        "    scheduler.event_loop()",
        _out_of_memory(size_bytes),
        "",
        "SIGQUIT received. signum=None, frame=None. It usually means one child failed.",
    ]


def sglang_shutdown() -> list[str]:
    """Return the lines of an orderly stop."""
    return ["INFO:     Shutting down", "INFO:     Waiting for application shutdown.",
            "INFO:     Application shutdown complete.", f"INFO:     Finished server process [{PROCESS_ID}]"]


def vllm_args(server: Server) -> dict[str, Any]:
    """Return the non-default arguments of the simulated server."""
    args: dict[str, Any] = {
        "model_tag": f"/models/{server.model}", "model": f"/models/{server.model}", "host": "127.0.0.1", "port": 8000,
        "max_model_len": server.context_length_tok, "max_num_seqs": server.max_running_req,
        "max_num_batched_tokens": server.chunked_prefill_tok, "tensor_parallel_size": server.tp_size,
        "data_parallel_size": server.dp_size, "enable_prefix_caching": server.prefix_cache,
    }
    if not server.cuda_graph:
        args["enforce_eager"] = True
    if server.iteration_lines:
        args |= {"enable_logging_iteration_details": True, "async_scheduling": False}
    if server.speculation:
        args["speculative_config"] = {"method": server.speculation.algorithm,
                                      "num_speculative_tokens": server.speculation.num_draft_tokens - 1}
    return {**args, **server.extra_args}


def vllm_startup(server: Server) -> list[tuple[str, str, str]]:
    """Return (process, source line, text) of each start-up line up to ready."""
    args = vllm_args(server)
    block, blocks = server.page_tok, server.kv_pool_tok // server.page_tok
    per_request = server.kv_pool_tok / server.context_length_tok
    if not server.is_mixing:
        return [
            ("", "api_server.py:640", f"vLLM API server version {server.version}"),
            ("", "api_server.py:641", "args: Namespace(" + ", ".join(f"{k}={v!r}" for k, v in args.items()) + ")"),
            ("", "llm_engine.py:249", f"Initializing an LLM engine (v{server.version}) with config: "
                                      f"model='/models/{server.model}', dtype=torch.bfloat16, "
                                      f"max_seq_len={server.context_length_tok}, "
                                      f"tensor_parallel_size={server.tp_size}"),
            ("", "model_runner.py:1077", f"Loading model weights took {server.weight_bytes / GIB:.4f} GB"),
            ("", "gpu_executor.py:122", f"# GPU blocks: {blocks}, # CPU blocks: 2048"),
            ("", "gpu_executor.py:126", f"Maximum concurrency for {server.context_length_tok} tokens per request: "
                                        f"{per_request:.2f}x"),
            ("", "model_runner.py:1518", "Graph capturing finished in 12 secs, took 0.50 GiB"),
        ]
    speculation = vllm_args(server).get("speculative_config")
    sizes = list(server.captured_batch_sizes) if server.cuda_graph else []
    config = (f"model='/models/{server.model}', speculative_config={speculation}, dtype=torch.bfloat16, "
              f"max_seq_len={server.context_length_tok}, tensor_parallel_size={server.tp_size}, "
              f"pipeline_parallel_size={server.pp_size}, data_parallel_size={server.dp_size}, quantization=None, "
              f"enforce_eager={not server.cuda_graph}, kv_cache_dtype=auto, "
              f"enable_prefix_caching={server.prefix_cache}, chunked_prefill_enabled=True, "
              f"compilation_config={{'mode': <CompilationMode.COMPILE: 3>, 'cudagraph_capture_sizes': {sizes}}}")
    graphs = [("core", "gpu_model_runner.py:6456", "Graph capturing finished in 12 secs, took 0.50 GiB")]
    return [
        ("api", "utils.py:233", f"non-default args: {args!r}"),
        ("api", "model.py:1663", f"Using max model len {server.context_length_tok}"),
        ("api", "scheduler.py:226",
         f"Chunked prefill is enabled with max_num_batched_tokens={server.chunked_prefill_tok}."),
        ("core", "core.py:96", f"Initializing a V1 LLM engine (v{server.version}) with config: {config}"),
        ("core", "gpu_model_runner.py:5132",
         f"Model loading took {_gib(server.weight_bytes)} GiB memory and 21.500000 seconds"),
        ("core", "gpu_worker.py:466", f"Available KV cache memory: {_gib(_kv_bytes(server))} GiB"),
        ("core", "kv_cache_utils.py:1733", f"GPU KV cache size: {blocks * block:,} tokens"),
        ("core", "kv_cache_utils.py:1734", f"Maximum concurrency for {server.context_length_tok:,} tokens per request: "
                                           f"{per_request:.2f}x"),
        *(graphs if server.cuda_graph else []),
        ("core", "core.py:302",
         "init engine (profile, create kv cache, warmup model) took 45.00 s (compilation: 20.00 s)"),
        ("api", "api_server.py:1201", "Starting vLLM API server 0 on http://127.0.0.1:8000"),
    ]


def vllm_crash(size_bytes: float) -> list[str]:
    """Return the messages of an engine that dies of an allocation of size_bytes."""
    return ["EngineCore encountered a fatal error.", _out_of_memory(size_bytes)]


def vllm_shutdown() -> list[str]:
    """Return the messages of an orderly stop."""
    return ["[shutdown] API server: shutdown triggered", "[shutdown] API server: engine client stopped"]
