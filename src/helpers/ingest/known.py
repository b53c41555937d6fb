"""Lines that are recognised by a literal but are neither a statistic nor an event of an engine read here."""

from __future__ import annotations

OPAQUE = {
    "request log": (
        "Receive: obj=", "Finish: obj=", "Received request ", "Req Time Stats(", "ReqTimeStats(",
        '"event": "request.', '"event":"request.',
    ),
    "state dump": ("Dumping input data for", "Dumping scheduler output", "Dumping scheduler stats"),
    "LMDeploy statistic": ("Avg thr (in/out):",),
    "SGLang fork statistic": ("Decode rank batch", "Prefill rank batch"),
}
"""Name -> literals of lines that may quote anything, user text included: nothing else in them counts."""

KNOWN = {
    "access line": ('HTTP/1.1"', 'HTTP/2"'),
    "TensorRT-LLM statistic": ("iter = ", "inflightBatchingStats", "libtensorrtllm"),
    "TensorRT-LLM": ("[TRT-LLM]", "[TensorRT-LLM]"),
    "llama.cpp statistic": (
        "eval time =", "slot print_timing", "n_decoded =", "n_gen =", "draft acceptance rate =",
        "#mean acc len =",
    ),
    "llama.cpp": (
        "slot      release", "slot launch_slot", "slot update_slots", "srv  update_slots", "srv    load_model",
    ),
    "TGI statistic": ('time_per_token="',),
    "LightLLM statistic": ("mean_per_token_cost_time",),
    "KTransformers statistic": ("Performance(T/s):",),
    "Ollama statistic": ("eval rate:",),
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
