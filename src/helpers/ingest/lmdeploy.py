"""What LMDeploy prints with ``--log-level`` and metrics on: one periodic line per engine.

The numbers of a group stand in one part (``running / waiting``); they are spelled out before the layout is taken.
"""

from __future__ import annotations

from helpers.ingest.dialect import Dialect, Family, Key, Reading

_N = "([0-9.]+)"
_COUNT = "([0-9]+)"

STATS = Family(
    engine="lmdeploy",
    kind="stats",
    literal="Avg thr (in/out):",
    keys={
        "in": Key("prefill_tok_per_s", "rate", " tokens/s"),
        "out": Key("decode_tok_per_s", "rate", " tokens/s"),
        "running": Key("running_req"),
        "waiting": Key("queue_req"),
        "KV cache": Key("kv_used_frac", "percent", "%"),
        "Draft acceptance rate": Key("accept_rate_frac", "percent", "%"),
        "Mean acceptance length": Key("accept_len", "rate"),
    },
    required=(("in",), ("out",), ("running",), ("waiting",), ("KV cache",)),
    begins=("in: ",),
    lists=("Per-position acceptance rate",),
    units=frozenset(("", "%", " tokens", " tokens/s", " s/req")),
    rewrite=(
        (rf"^ *{_N} / {_N} tokens/s", "in: ${1} tokens/s, out: ${2} tokens/s"),
        (
            rf"Server \(succeeded/failed/routed/waiting\): {_COUNT} / {_COUNT} / {_COUNT} / {_COUNT}",
            "server succeeded: ${1}, server failed: ${2}, server routed: ${3}, server waiting: ${4}",
        ),
        (rf"Engine \(running/waiting\): {_COUNT} / {_COUNT}", "running: ${1}, waiting: ${2}"),
        ("SpecDecoding metrics: ", ""),
    ),
)

READS = (
    Reading(
        source="Avg thr (in/out)",
        kind="stats",
        versions="as of 2026 (the line is printed, not logged; tag `DPn` or `Engine nnn`)",
        gives={
            "decode_tok_per_s": "tokens generated since the line before over the time since then, first tokens and "
                                "accepted drafts included",
            "prefill_tok_per_s": "prompt tokens in the same time, credited at a sequence's first iteration",
            "running_req": "running requests of the last scheduler message: a point sample at the end of the window",
            "queue_req": "waiting in the engine; `server waiting` in extra waits before it",
            "kv_used_frac": "share of the KV pool in use, the same point sample",
            "accept_len": "1 + accepted / drafts: tokens per request per round, bonus token included",
            "accept_rate_frac": "accepted / drafted tokens",
        },
        traps=(
            "averages over the window (10 s) beside counts at its end: their ratio is a step only in steady windows",
            "windows in which no token moved print nothing, and the clock starts anew there",
        ),
    ),
)

DIALECT = Dialect("lmdeploy", (STATS,), (), READS)
