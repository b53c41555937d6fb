"""The tables from a log to its levels: SAMPLES, EVENTS, INTERVALS, LEVELS, MOMENTS."""

from __future__ import annotations

import pandas as pd

from helpers.schema.columns import Column, Schema, number, text, whole

WHERE = (
    text("file", "path of the input as given; '-' for standard input"),
    whole("line_no", "physical line in that file, from 1"),
    Column(
        "ts", "datetime64[us]", "", "time stamp as printed (local time of the server, no zone; a stamp without "
        "date starts at 1904-01-01, without year in 1904)", True,
    ),
    number("t_s", "s", "seconds since the first stamp of the input, midnight and restarts unrolled"),
)

KINDS = ("prefill", "decode", "stats", "spec", "iteration", "counters", "request", "aux")
"""prefill, decode: SGLang batch lines. stats: vLLM periodic line. spec: vLLM speculation line. iteration: one
engine step. counters: difference of two counter scrapes or snapshots. request: one finished request on one slot.
aux: another line of numbers (MFU, KV transfer, prefix cache) kept in `extra`."""

SPAN_KINDS = ("iteration", "counters", "request")
"""Kinds whose records carry their own time in span_s; the others cover the time since the line before."""

SAMPLES = Schema(
    "SAMPLES",
    "one row per recognised statistic record of the log (two records on one line are two rows)",
    (
        *WHERE,
        text("engine", "as `rooflog engines` names it"),
        text("rank", "rank tags as printed, e.g. 'DP0 TP0'; vLLM 'Engine 001' becomes 'DP1'", True),
        whole("server_life", "0, 1, ..: counted at each start-up of a server in an appended log"),
        text("kind", "one of " + ", ".join(KINDS)),
        whole("running_req", "requests decoding when the line was written", True, "req"),
        whole("queue_req", "requests waiting, not yet admitted", True, "req"),
        whole("used_tok", "KV slots held by running requests (SGLang #token or #full token)", True, "tok"),
        number("kv_used_frac", "1", "share of the KV pool in use"),
        whole("new_tok", "prompt tokens computed in this prefill forward", True, "tok"),
        whole("cached_tok", "prompt tokens taken from the prefix cache in this prefill", True, "tok"),
        number("decode_tok_per_s", "tok/s", "generated tokens per second of wall time since the previous line"),
        number("prefill_tok_per_s", "tok/s", "prompt tokens per second as printed (not a GPU rate)"),
        number("accept_len", "tok", "tokens per request per round under speculation, bonus token included"),
        number("accept_rate_frac", "1", "accept rate as printed (definition depends on the version)"),
        Column("graph", "boolean", "", "that step replayed a captured graph", True),
        whole("retracted_req", "requests whose KV was dropped", True, "req"),
        whole("transfer_req", "requests whose KV is in flight (PD)", True, "req"),
        whole("prealloc_req", "requests waiting for KV space (PD)", True, "req"),
        whole("iteration", "forward iteration number where printed", True),
        number("span_s", "s", "time the record itself covers, as its source measured it (an iteration, the time "
               "between two scrapes, a request's decode); missing: the record covers the time since the line before"),
        number("n_steps", "", "decode steps in span_s (1 for an iteration, a counter's difference for a scrape)"),
        number("out_tok", "tok", "output tokens produced in span_s, all requests together (kind request: that one)"),
        text("extra", "JSON object of every other key of the line, as printed", True),
    ),
)

EVENT_KINDS = (
    "args", "weights_loaded", "kv_allocated", "graphs_captured", "ready", "out_of_memory", "retraction",
    "preemption", "crash", "watchdog", "shutdown", "profile_start", "profile_stop", "idle", "context_shift",
)

EVENTS = Schema(
    "EVENTS",
    "one row per server event",
    (
        *WHERE,
        text("engine", "as `rooflog engines` names it", True),
        text("rank", "rank tags as printed", True),
        whole("server_life", "server life the event belongs to"),
        text("kind", "one of " + ", ".join(EVENT_KINDS)),
        number("size_bytes", "bytes", "bytes named by the event: asked for (out_of_memory), loaded, allocated"),
        text("detail", "JSON object of the values read from the event", True),
        text("text", "the line, stripped of colours, at most 2,000 characters"),
    ),
)

COUNTED_BY_STAMPS = "iteration, by stamps"
"""Kind of intervals of iterations whose printed time is only a wait: their steps are counted between new stamps."""

WINDOW_KINDS = ("stats", "counters", COUNTED_BY_STAMPS)
"""Kinds that cover a fixed time and so cut steps: a level is tokens over time there, never a median."""


def is_window(intervals: pd.DataFrame) -> bool:
    """Tell whether intervals (of one engine) are windows of fixed time and not counts of steps."""
    kind = intervals["kind"].iloc[0] if "kind" in intervals else None
    return kind in WINDOW_KINDS if isinstance(kind, str) else bool(intervals["engine"].iloc[0] == "vllm")


LABELS = ("warmup", "ramp", "steady", "mixed", "drain", "idle")
"""warmup: traffic before the measured load. ramp: running_req rising, prefill at work. steady: constant
running_req, decode only. mixed: constant running_req with prefill in between. drain: running_req falling
with nothing admitted. idle: nothing ran for most of the interval."""

INTERVALS = Schema(
    "INTERVALS",
    "one row per decode or stats sample (what happened between the previous line of that rank and this one), per block "
    "of consecutive iterations, per counters record, or per piece of time with the same requests decoding",
    (
        *WHERE,
        text("engine", "as `rooflog engines` names it"),
        text("rank", "rank tags as printed", True),
        whole("server_life", "server life"),
        text("kind", "kind of the records it rests on: decode, stats, iteration, counters, request; "
              f"'{COUNTED_BY_STAMPS}' where iterations print only a wait", True),
        text("rank_group", "ranks that were combined into this row's group, e.g. 'DP0+DP1', or 'all'"),
        whole("running_req_printed", "running_req on the line", unit="req"),
        number("running_req", "req", "mean running requests that set the step (lockstep maximum over DP ranks; "
               "micro-batch x stages under PP)", False),
        number("running_req_total", "req", "running requests of the whole server (sum over DP ranks)"),
        whole("queue_req", "requests waiting", True, "req"),
        whole("used_tok", "KV slots held", True, "tok"),
        number("context_tok", "tok", "mean context per running request, where the log tells"),
        number("decode_tok_per_s", "tok/s", "rate on the line"),
        number("accept_len", "tok", "tokens per request per round; missing without speculation"),
        Column("graph", "boolean", "", "captured graph replayed", True),
        number("n_steps", "", "decode steps in the interval, where known"),
        number("interval_s", "s", "wall time since the previous line of that rank (tokens over rate where steady); "
               "iterations: by the stamps, gaps between iterations included"),
        number("idle_s", "s", "part of it in which nothing ran, where the log tells", False),
        number("step_s", "s", "running_req x accept_len / rate, or the record's own time over its steps: step time, "
               "round time under speculation; a step time only if clean"),
        number("prefill_tok", "tok", "prompt tokens computed or credited in the interval", False),
        whole("episode", "load episode within the server life: from an empty batch to the next one of another load"),
        text("label", "one of " + ", ".join(LABELS)),
        Column("clean", "bool", "", "nothing but decode steps of a constant batch happened"),
        text("why", "the rule that decided"),
    ),
)

LEVELS = Schema(
    "LEVELS",
    "one row per value of running_req that was seen, per server life, rank group and population",
    (
        whole("server_life", "server life"),
        text("rank_group", "group of ranks"),
        whole("population", "0 = the population used; 1, 2, ..: others at the same running_req, never averaged"),
        number("running_req", "req", "the level", False),
        number("running_req_total", "req", "running requests of the whole server at that level"),
        whole("n_clean", "clean intervals"),
        number("clean_s", "s", "wall time of the clean intervals"),
        number("step_s", "s", "step time (round time under speculation); missing where no interval could tell"),
        number("step_s_lo", "s", "lower end of its interval"),
        number("step_s_hi", "s", "upper end of its interval"),
        number("decode_tok_per_s", "tok/s", "tokens over time at that level, whole server"),
        number("context_tok", "tok", "mean context per running request"),
        number("accept_len", "tok", "mean tokens per request per round"),
        Column("graph", "boolean", "", "captured graph replayed", True),
        text("method", "how step_s was found: median_of_blocks, ratio_of_sums, prefill_corrected, table, none"),
        number("cv_frac", "1", "scatter of the clean intervals: robust standard deviation over median"),
        Column("is_fitted", "bool", "", "enters the law"),
        text("n_rejected", "JSON object: rejected intervals at this running_req, by reason"),
        text("note", "why it is not fitted, or what was odd; empty if nothing", True),
    ),
)

MOMENTS = Schema(
    "MOMENTS",
    "one row per snapshot of a server's cumulative decode sums (SGLang decode_moments); sums since its start",
    (
        *WHERE,
        text("engine", "sglang"),
        text("rank", "rank the sums belong to, e.g. 'DP0'", True),
        whole("server_life", "server life; sums start at 0 with each"),
        number("n", "", "decode steps counted so far", False),
        number("sum_b", "req", "sum of the steps' running requests B", False),
        number("sum_t_s", "s", "sum of the steps' times T", False),
        number("sum_bb", "req2", "sum of B x B", False),
        number("sum_bt_s", "req s", "sum of B x T", False),
        number("sum_g", "tok", "sum of the tokens generated", False),
    ),
)
