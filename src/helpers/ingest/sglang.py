"""What SGLang prints: batch statistics of every version since 0.1.16, its forks, and its server events.

Order of keys, prefix and version do not matter; a key that is not listed here is kept in ``extra``.
"""

from __future__ import annotations

from helpers.ingest.dialect import HOLE, Dialect, EventRule, Family, Key, Reading

_POOL = {
    "#token": Key("used_tok"),
    "#full token": Key("used_tok"),
    "#gpu token": Key("used_tok"),
    "token usage": Key("kv_used_frac", "rate"),
    "full token usage": Key("kv_used_frac", "rate"),
    "gpu token usage": Key("kv_used_frac", "rate"),
}
_GRAPH = {" graph": Key("graph", "flag")}
"""cuda graph, cpu graph (on NPU), npu graph, musa graph: the device names change, the meaning does not."""

_DISAGGREGATION = {
    "#retracted-req": Key("retracted_req"),
    "#transfer-req": Key("transfer_req"),
    "#prealloc-req": Key("prealloc_req"),
}
_DECODE_KEYS = {
    "#running-req": Key("running_req"),
    "#queue-req": Key("queue_req"),
    **_POOL,
    **_DISAGGREGATION,
    "accept len": Key("accept_len", "rate"),
    "accept rate": Key("accept_rate_frac", "rate"),
    "accept-len": Key("accept_len", "rate"),
    "accept-ratio": Key("accept_rate_frac", "rate"),
    "gen throughput (token/s)": Key("decode_tok_per_s", "rate"),
}
_HEAD = rf" ?(?:\(mixed #running-req: (?P<running_req>{HOLE})\))? ?(?:\[(?P<iteration>{HOLE})\])?[.,](?: +|$)"
_DECODE_REQUIRED = (("#running-req",), ("#token", "#full token", "#gpu token"), ("gen throughput (token/s)",))

DECODE = Family(
    engine="sglang",
    kind="decode",
    literal="Decode batch",
    keys=_DECODE_KEYS,
    suffixes=_GRAPH,
    required=_DECODE_REQUIRED,
    # #queue-req is missing only in a 0.4.x build that prints no graph flag either
    required_with={" graph": "#queue-req"},
    head=_HEAD,
    begins=("#",),
    bare=("accept-len", "accept-ratio"),
)

DECODE_0_1 = Family(
    engine="sglang",
    kind="decode",
    literal="#running-req:",
    keys=_DECODE_KEYS,
    required=_DECODE_REQUIRED,
    is_key=True,
)
"""0.1.16 prints the numbers without naming the batch."""

PREFILL = Family(
    engine="sglang",
    kind="prefill",
    literal="Prefill batch",
    keys={
        "#running-req": Key("running_req"),
        "#queue-req": Key("queue_req"),
        "#new-token": Key("new_tok"),
        "#cached-token": Key("cached_tok"),
        **_POOL,
        **_DISAGGREGATION,
        "input throughput (token/s)": Key("prefill_tok_per_s", "rate"),
    },
    required=(("#new-seq",), ("#new-token",), ("#cached-token",), ("#queue-req",)),
    suffixes=_GRAPH,
    required_with={" graph": "input throughput (token/s)"},
    head=_HEAD,
    begins=("#",),
)

FILL_0_1 = Family(
    engine="sglang",
    kind="prefill",
    literal="new fill batch.",
    keys={
        "#running_req": Key("running_req"),
        "#remaining_req": Key("queue_req"),
        "#new_token": Key("new_tok"),
        "#cached_token": Key("cached_tok"),
    },
    required=(("#seq",), ("#new_token",), ("#cached_token",), ("#remaining_req",), ("#running_req",)),
    begins=("#",),
    separator=r"\. ",
)

_RANK_ROUNDS = tuple(
    Family(
        engine="sglang",
        kind="aux",
        literal=f"{stage} rank batch",
        keys={},
        required=(("gpu-ms",),),
        head=",(?: +|$)",
        begins=("#", "rank: "),
        flags={" (split unavailable)": "split unavailable", " (wait by family)": "wait by family"},
        rewrite=(
            (r" \(compute ([0-9.]+), wait ([0-9.]+)\)", ", compute-ms: ${1}, wait-ms: ${2}"),
            (r" \(split unavailable(?s:.*)$", " (split unavailable)"),
            (r" \(wait by family(?s:.*)$", " (wait by family)"),
        ),
    )
    for stage in ("Decode", "Prefill")
)
"""A fork with uneven tensor parallelism prints each rank's device time per round; kept in ``extra``, never fitted."""

_NUMBER = r"[\d,]*\d(?:\.\d+)?"

EVENTS = (
    EventRule("args", "server_args="),
    EventRule(
        "weights_loaded", "Load weight end",
        r"Load weight end\.(?: elapsed=(?P<elapsed_s>[\d.]+) s,)?(?: type=(?P<type>\w+),)?"
        r"(?:.*?dtype=(?P<dtype>[\w.]+))?(?:.*?quant=(?P<quant>[\w-]+))?"
        r".*?avail mem=(?P<available_gib>[\d.]+) GB(?:, mem usage=(?P<size_gib>-?[\d.]+) GB)?",
    ),
    EventRule(
        "kv_allocated", "KV Cache is allocated",
        rf"KV Cache is allocated\.(?: dtype: (?P<dtype>[\w.]+),)? #tokens: (?P<tokens>{_NUMBER})"
        r"(?:, K size: (?P<k_gib>[\d.]+) GB, V size: (?P<v_gib>[\d.]+) GB)?(?:, KV size: (?P<size_gib>[\d.]+) GB)?",
    ),
    EventRule(
        "kv_allocated", "Mamba Cache is allocated",
        r"(?P<pool>Mamba) Cache is allocated\. max_mamba_cache_size: (?P<slots>\d+), conv_state size: "
        r"(?P<conv_state_gib>[\d.]+) ?GB, ssm_state size: (?P<ssm_state_gib>[\d.]+) ?GB",
    ),
    EventRule(
        "kv_allocated", "max_total_num_tokens=",
        r"max_total_num_tokens=(?P<tokens>\d+)(?:, chunked_prefill_size=(?P<chunked_prefill_size>-?\d+))?"
        r"(?:, max_prefill_tokens=(?P<max_prefill_tokens>\d+))?"
        r"(?:, max_running_requests=(?P<max_running_requests>\d+))?(?:, context_len=(?P<context_len>\d+))?"
        r"(?:, available_\w+_mem=(?P<available_gib>[\d.]+) GB)?",
    ),
    EventRule("graphs_captured", "Capture cuda graph bs", r"Capture cuda graph bs \[(?P<batch_sizes>[\d, ]+)\]"),
    EventRule(
        "graphs_captured", "Capture cuda graph end",
        r"Capture cuda graph end\. Time elapsed: (?P<elapsed_s>[\d.]+) s\.(?=.*mem usage=(?P<size_gib>-?[\d.]+) GB)?",
    ),
    EventRule(
        "graphs_captured", "CUDA graph begin.",
        r"Capture (?P<graph>[\w ]+) CUDA graph begin\..*?bs=\[(?P<batch_sizes>[\d, ]+)\]",
    ),
    EventRule(
        "graphs_captured", "CUDA graph end.",
        r"Capture (?P<graph>[\w ]+) CUDA graph end\.(?: bs=\[(?P<batch_sizes>[\d, ]+)\],)?"
        r"(?: num_tokens=\[[\d, ]+\],)?(?: elapsed=| Time elapsed: )(?P<elapsed_s>[\d.]+) s[.,] "
        r"mem usage=(?P<size_gib>-?[\d.]+) GB",
    ),
    EventRule("ready", "The server is fired up and ready to roll"),
    EventRule(
        "retraction", "Retract requests",
        r"Retract requests\. #(?:aborted_)?retracted_reqs: (?P<retracted_req>\d+)"
        r"(?:, #new_tokens_gained: (?P<gained_tok>\d+))?",
    ),
    EventRule("retraction", "Decode out of memory happened", r"#retracted_reqs: (?P<retracted_req>\d+)"),
    EventRule("out_of_memory", "Prefill out of memory", r"(?P<stage>Prefill) out of memory"),
    EventRule("out_of_memory", "Decode out of memory. Try", r"(?P<stage>Decode) out of memory\. Try"),
    EventRule("crash", "hit an exception", r"(?P<process>\w+) hit an exception"),
    EventRule("crash", "sigquit from a child proc", r"Received sigquit from a child proc"),
    EventRule("crash", "SIGQUIT received"),
    EventRule(
        "crash", "crashed with exit code", r"Subprocess (?P<process>\S+).*crashed with exit code (?P<exit_code>-?\d+)"
    ),
    EventRule("crash", "Dumping requests before crash"),
    EventRule(
        "watchdog", "atchdog timeout", r"[Ww]atchdog timeout \((?:self\.)?watchdog_timeout=(?P<timeout_s>[\d.]+)"
    ),
    EventRule("shutdown", "SIGTERM received"),
    EventRule("shutdown", "Gracefully exiting"),
    EventRule("profile_start", "Profiling starts"),
    EventRule("profile_stop", "Profiling done"),
)

READS = (
    Reading(
        source="Decode batch",
        kind="decode",
        versions="0.1.16 to 0.5.23, sglang-jax, Ascend builds, HiSparse, hybrid models, ragged verify",
        gives={
            "decode_tok_per_s": "tokens generated over wall time since the decode line before of this rank (40 steps "
                                "unless --decode-log-interval says else); accepted drafts included, first tokens not",
            "running_req": "requests of the last step: a point sample, one micro-batch under pipeline parallelism, one "
                           "rank under DP attention (sglang-jax: all DP ranks)",
            "used_tok": "KV slots of running requests, without reusable prefix cache, rounded up to pages; of hybrid "
                        "models the full-attention pool, of HiSparse the part on the device",
            "kv_used_frac": "used_tok over the pool, two decimals",
            "accept_len": "tokens per request per round since the line before, bonus token included",
            "accept_rate_frac": "up to 0.5.10 accept_len / drafts, since 0.5.12 (accept_len - 1) / (drafts - 1)",
            "graph": "the last step replayed a captured graph, whatever the device's name",
            "extra": "by printed name: swa and mamba pools, cap len, block accept len, est. TFLOPS/s and BW, occupancy",
        },
        traps=(
            "the first line after start, idle or a prefill divides by that time too: 100 to 1000 times too low",
            "#token frozen while lines go on: the KV pool is full, or HiSparse before 0.5.14; its growth tells nothing",
            "mamba num is state slots, 1 to 4 per request; #token 0 with a running request is one that just finished",
            "est. read BW charges all weights to each token: above the hardware's peak at any batch, never an input",
            "cap len and block accept len belong to ragged verification: accept len alone is tokens per round",
            "throughput includes the overshoot step of finished requests, and pauses of whatever kind",
        ),
    ),
    Reading(
        source="Prefill batch",
        kind="prefill",
        versions="0.1.16 to 0.5.23 and forks",
        gives={
            "new_tok": "prompt tokens computed in this forward",
            "cached_tok": "prompt tokens of newly admitted requests that the prefix cache held",
            "running_req": "requests already decoding, the new ones not counted",
            "prefill_tok_per_s": "tokens over the gap between prefill lines: idle and decode time are in it",
        },
        traps=(
            "input throughput is no rate of the hardware in any version; sum new_tok over a window instead",
            "a long prompt is several lines; up to 0.5.8 a line says the batch was formed, later that it is done",
        ),
    ),
    Reading(
        source="Decode rank batch, Prefill rank batch",
        kind="aux",
        versions="a fork of 2026 with uneven tensor parallelism",
        gives={"extra": "gpu-ms of one round on one rank, split into compute and wait where it could be"},
        traps=("lines are flushed in bursts: the stamp in front is late by seconds, t: is the round's own",),
    ),
)

DIALECT = Dialect("sglang", (DECODE, PREFILL, FILL_0_1, *_RANK_ROUNDS, DECODE_0_1), EVENTS, READS)
