"""What vLLM prints: the periodic line of V0 and V1, its companions, and its server events.

V0 says Pending and Swapped where V1 says Waiting; the device in front of ``KV cache usage`` may be any.
"""

from __future__ import annotations

from helpers.ingest.dialect import HOLE, Dialect, EventRule, Family, Key, Reading

_USAGE = {" KV cache usage": Key("kv_used_frac", "percent", "%")}
# V0 prints a second, swap pool under the name CPU; on a CPU server it is the only pool
_CPU_USAGE = {"CPU KV cache usage": Key("kv_used_frac", "percent", "%", is_fallback=True)}
_UNITS = frozenset(("", "%", " reqs", " tokens", " tokens/s", " ms", " waiting to start", " seconds"))

STATS = Family(
    engine="vllm",
    kind="stats",
    literal="Avg prompt throughput:",
    keys={
        "Avg prompt throughput": Key("prefill_tok_per_s", "rate", " tokens/s"),
        "Avg generation throughput": Key("decode_tok_per_s", "rate", " tokens/s"),
        "Running": Key("running_req", "count", " reqs"),
        "Waiting": Key("queue_req", "count", " reqs"),
        "Pending": Key("queue_req", "count", " reqs"),
        **_CPU_USAGE,
    },
    required=(
        ("Avg prompt throughput",),
        ("Avg generation throughput",),
        ("Running",),
        ("Waiting", "Pending"),
        tuple(_USAGE),
    ),
    suffixes=_USAGE,
    is_key=True,
    continued=("KV fetch",),
    units=_UNITS,
)

SPEC = Family(
    engine="vllm",
    kind="spec",
    literal="SpecDecoding metrics:",
    keys={
        "Avg Draft acceptance rate": Key("accept_rate_frac", "percent", "%"),
        "Draft acceptance rate": Key("accept_rate_frac", "percent", "%"),
    },
    required=(("Mean acceptance length",), ("Accepted",), ("Drafted",), ("Per-position acceptance rate",)),
    begins=("Mean acceptance length", "Draft acceptance rate"),
    lists=("Per-position acceptance rate",),
    units=_UNITS,
)

ITERATION = Family(
    engine="vllm",
    kind="iteration",
    literal="Iteration(",
    keys={
        "context tokens": Key("new_tok"),
        "generation requests": Key("running_req"),
        "generation tokens": Key("out_tok"),
        "iteration elapsed time": Key("span_s", "ms", " ms"),
        **_CPU_USAGE,
    },
    required=(
        ("context requests",), ("context tokens",), ("generation requests",), ("generation tokens",),
        ("iteration elapsed time",),
    ),
    suffixes=_USAGE,
    head=rf"(?P<iteration>{HOLE})\): ",
    counts_first=True,
    flags={" (dummy)": "dummy"},
    units=_UNITS,
)

MFU = Family(
    engine="vllm",
    kind="aux",
    literal="MFU:",
    keys={},
    required=(("TF/s/GPU", "TF/s/device"),),
    separator=rf" (?={HOLE})",
    counts_first=True,
)

KV_TRANSFER = Family(
    engine="vllm",
    kind="aux",
    literal="KV Transfer metrics:",
    keys={},
    required=(("Num successful transfers",),),
    begins=("Num ",),
)

PREFIX_CACHE_V0 = Family(
    engine="vllm",
    kind="aux",
    literal="Prefix cache hit rate: GPU:",
    keys={},
    required=(("Prefix cache hit rate: GPU",),),
    is_key=True,
)

SPEC_V0 = Family(
    engine="vllm",
    kind="spec",
    literal="Speculative metrics:",
    keys={"Draft acceptance rate": Key("accept_rate_frac", "rate")},
    required=(("Draft acceptance rate",), ("Number of accepted tokens",), ("Number of draft tokens",)),
    begins=("Draft acceptance rate",),
)

_GIB = r"(?P<size_gib>-?[\d.]+) Gi?B"

EVENTS = (
    EventRule("args", "non-default args:"),
    EventRule(
        "args", "LLM engine (v", r"Initializing an? (?:V\d )?LLM engine \(v(?P<engine_version>[^)]*)\) with config:"
    ),
    EventRule("args", "args: Namespace("),
    EventRule("banner", "█  version ", r"█  version (?P<engine_version>\S+)"),
    EventRule("banner", "vLLM API server version", r"vLLM API server version (?P<engine_version>\S+)"),
    EventRule(
        "weights_loaded", "Model loading took",
        rf"Model loading took {_GIB}(?: memory)? and (?P<elapsed_s>[\d.]+) seconds",
    ),
    EventRule("weights_loaded", "Loading model weights took", rf"Loading model weights took {_GIB}"),
    EventRule("kv_allocated", "KV cache size:", r"(?P<device>\w+) KV cache size: (?P<tokens>[\d,]+) tokens"),
    EventRule("kv_allocated", "Available KV cache memory:", rf"Available KV cache memory: {_GIB}"),
    EventRule(
        "kv_allocated", " blocks: ", r"# (?P<device>\w+) blocks: (?P<blocks>\d+), # CPU blocks: (?P<cpu_blocks>\d+)"
    ),
    EventRule(
        "graphs_captured", "Graph capturing finished",
        rf"Graph capturing finished in (?P<elapsed_s>[\d.]+) secs?(?:, took {_GIB})?",
    ),
    EventRule("fact", "Using max model len", r"Using max model len (?P<max_model_len>\d+)"),
    EventRule("fact", "Chunked prefill is enabled with", r"max_num_batched_tokens=(?P<max_num_batched_tokens>\d+)"),
    EventRule(
        "fact", "Asynchronous scheduling is", r"Asynchronous scheduling is (?P<async_scheduling>enabled|disabled)"
    ),
    EventRule("ready", "Starting vLLM server on"),
    EventRule("ready", "Starting vLLM API server"),
    EventRule(
        "preemption", "is preempted by PreemptionMode",
        r"is preempted by PreemptionMode\.(?P<mode>\w+)(?:.*total_num_cumulative_preemption=(?P<total>\d+))?",
    ),
    EventRule("crash", "EngineCore encountered a fatal error"),
    EventRule("crash", "EngineCore failed to start"),
    EventRule("crash", "EngineDeadError:"),
    EventRule("crash", "Engine core initialization failed"),
    EventRule("crash", "Engine process failed to start"),
    EventRule(
        "crash", "died unexpectedly", r"(?P<process>[\w-]+) died unexpectedly(?: \(exit code: (?P<exit_code>-?\d+)\))?"
    ),
    EventRule("shutdown", "[shutdown] API server: shutdown triggered"),
    EventRule("shutdown", "trigger received signal=", r"trigger received signal=(?P<signal>\w+)"),
    EventRule("profile_start", "Starting profiler"),
    EventRule("profile_stop", "Stopping profiler"),
)

READS = (
    Reading(
        source="Iteration(n)",
        kind="iteration",
        versions="0.14 and later with --enable-logging-iteration-details",
        gives={
            "span_s": "iteration elapsed time",
            "running_req": "generation requests of exactly this step",
            "extra": "context requests and tokens, generation tokens (scheduled slots, drafts included)",
        },
        traps=(
            "under async scheduling the elapsed time is what the loop still had to wait, less than a step",
            "the gap between two iterations is not in it: the client waits longer",
            "(dummy) is a step of a data-parallel engine without requests",
        ),
    ),
    Reading(
        source="Avg prompt throughput",
        kind="stats",
        versions="0.2 to 0.33, V0 and V1",
        gives={
            "decode_tok_per_s": "tokens that reached the API server since its last line over that time (5 s V0, 10 s "
                                "V1), first tokens and accepted drafts included",
            "prefill_tok_per_s": "prompt tokens, the whole prompt credited at its first token; cached ones counted up "
                                 "to 0.14, not since 0.20",
            "running_req": "running requests at the end of the window, chunked prefills among them",
            "queue_req": "waiting (V0: pending)",
            "kv_used_frac": "share of the KV pool in use, a point sample",
        },
        traps=(
            "ten seconds hold hundreds of steps and all prefills between: the ratio is a step only in quiet windows",
            "last windows of a run average in idle time; idle windows print nothing after the second",
            "one line per engine under data parallelism, to be added; several API servers each see their share",
            "Preemptions never prints",
        ),
    ),
    Reading(
        source="SpecDecoding metrics, Speculative metrics",
        kind="spec",
        versions="V0; V1 0.8 to 0.33",
        gives={"accept_len": "1 + accepted / rounds from the counts, bonus token included in every version",
               "accept_rate_frac": "accepted / drafted tokens"},
        traps=(
            "its throughputs count since the speculation line before, minutes if idle: never used",
            "Mean acceptance length left out the bonus token in 0.8",
        ),
    ),
    Reading(
        source="MFU, KV Transfer metrics, Prefix cache hit rate",
        kind="aux",
        versions="0.14 and later; V0",
        gives={"extra": "as printed"},
        traps=("MFU counts estimated work, no measurement",),
    ),
)

DIALECT = Dialect(
    "vllm", (STATS, SPEC, ITERATION, MFU, KV_TRANSFER, PREFIX_CACHE_V0, SPEC_V0), EVENTS, READS
)
