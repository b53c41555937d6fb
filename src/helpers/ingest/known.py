"""Lines that are recognised by a literal but are neither a statistic nor an event of an engine read here."""

from __future__ import annotations

OPAQUE = {
    "request log": (
        "Receive: obj=", "Finish: obj=", "Received request ", "Req Time Stats(", "ReqTimeStats(",
        '"event": "request.', '"event":"request.',
    ),
    "state dump": ("Dumping input data for", "Dumping scheduler output", "Dumping scheduler stats"),
}
"""Name -> literals of lines that may quote anything, user text included: nothing else in them counts."""

KNOWN = {
    "access line": ('HTTP/1.1"', 'HTTP/2"', "[GIN] "),
    "TensorRT-LLM /metrics element": ('"iterLatencyMS"', '"inflightBatchingStats"'),
    "TensorRT-LLM": ("[TRT-LLM]", "[TensorRT-LLM]", "libtensorrtllm"),
    "llama.cpp": (
        "slot      release", "slot launch_slot", "slot update_slots", "srv  update_slots", "srv    load_model",
        "slot get_availabl", "slot print_timing", "slot   load_model", "slot         init", "srv  llama_server",
        "eval time =", "common_perf_print", "llama_perf_", "llama_model_loader", "common_params_print_info",
        "failed to find free space in the KV cache",
    ),
    "TGI": ("text_generation_launcher", "text_generation_router"),
    "Ollama": ("level=INFO source=", "level=WARN source=", "level=ERROR source=", "level=DEBUG source="),
    "web server": (
        "Started server process", "Waiting for application", "Application shutdown complete", "Uvicorn running on",
        "Finished server process", "Route: ", "Available routes are",
    ),
    "progress bar": ("it/s]", "s/it]"),
    "traceback": ("Traceback (most recent call last)", '  File "'),
    "start-up": (
        "Load weight begin", "Memory pool end", "Init torch distributed", "raph begin", "Capture draft",
        "Starting to load model", "init engine (profile", "Maximum concurrency for", "Loading weights took", "[Gloo]",
        "Ignore import error", "world_size=", "Resolved architecture", "Starting vLLM",
    ),
}
"""Name -> literals; the first name that matches counts the line."""
