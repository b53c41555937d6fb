"""What TensorRT-LLM prints: iteration lines of its PyTorch backend, JSON of its old C++ backend, and server events.

One line is one turn of the executor's host loop (``_torch/pyexecutor/py_executor.py``, read in releases of 2025 and
2026). It is printed at the top of the next turn; ``iter``, the host's time, the counts and ``states`` belong to the
turn that ended, only ``prev_device_step_time`` to the one before it. With the overlap scheduler a turn launches its
own batch and then waits for the batch of the turn before: at a constant batch both take one step, after a change of
batch they differ.
"""

from __future__ import annotations

import polars as pl

from helpers.ingest.dialect import HOLE, Dialect, EventRule, Family, Key, Reading

ENGINE = "trtllm"

WARMUP_ITERATIONS = 5
"""Iterations 0..4 hold kernel tuning, graph capture (215 s seen) and waits for the first KV transfer; NVIDIA's own
performance tests drop them (tests/integration/defs/perf, 2026)."""

SIZING_ITERATIONS = 100
"""An executor that ran fewer and was followed by another only sized the KV cache with made-up requests."""

_SPECULATES_FROM = 2.0
"""Token slots per decoding request in every line that mean drafts: graph padding alone stays below in some line."""

_DUMMY_PROMPT_TOK = 1024
"""Shortest dummy prompt: it has about max_num_tokens (8190 and 8192 seen); a real one of this length holds KV."""

_SCHEDULED, _CONTEXTS, _CONTEXT_TOK = (
    pl.col(name) for name in ("_scheduled_req", "_context_req", "_context_tok")
)
_IS_EMPTY = _SCHEDULED == 0
# An empty turn runs no forward pass, so ``states`` still shows the batch before it.
_RUNNING = pl.when(_IS_EMPTY).then(0).when(_CONTEXTS <= _SCHEDULED).then(_SCHEDULED - _CONTEXTS)
_NEW_TOK = pl.when(_IS_EMPTY).then(0).otherwise(_CONTEXT_TOK)

# Tokens in the cache of the sequences of this turn, since 2026-05; before, ``states`` holds a 0 that means nothing.
_HELD_TOK = pl.coalesce(*(pl.when(pl.col(n) > 0).then(pl.col(n)) for n in ("_held_tok", "_state_held_tok")))

_TIME = r"([0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]+)?)"
_RANK = r"global_rank = ([0-9]+), [^{}]*"

ITERATION = Family(
    engine=ENGINE,
    kind="iteration",
    literal="iter = ",
    keys={
        "iter": Key("iteration"),
        "host_step_time": Key("span_s", "ms", " ms"),
        "elapsed_time": Key("span_s", "rate", " s"),  # up to 0.20
        "kv_cache_util": Key("kv_used_frac", "rate"),
        "num_scheduled_requests": Key("_scheduled_req"),
        "num_ctx_requests": Key("_context_req"),
        "num_ctx_tokens": Key("_context_tok"),
        "cached_kv_len": Key("_held_tok"),
        "cached_kv_tokens": Key("_state_held_tok"),
    },
    required=(("iter",), ("host_step_time", "elapsed_time"), ("num_generation_tokens", "states")),
    required_with={"num_generation_tokens": "num_ctx_requests", "host_step_time": "num_scheduled_requests"},
    head=rf"(?={HOLE}, global_rank = )",
    is_key=True,
    units=frozenset(("", "%", " ms", " s")),
    rewrite=(
        (r"timestamp = [0-9]{2,4}-[0-9]{2}-[0-9]{2,4} [0-9:.]+(?:, )?", ""),  # in `stamps`
        (r"currank_total_requests = ([0-9]+)/([0-9]+)", "currank_total_requests: [${1}, ${2}]"),
        (r"states = (?:\{\}|None)", "states = nan"),  # before the first forward pass
        (r"states = \{([^{}]*)\}", "${1}"),
        (r"'([A-Za-z_]+)': ", "${1}: "),
        (r"\btensor\(([0-9]+)[^()]*\)", "${1}"),  # nvbugs 6487036: a tensor printed for its number
        (r"= N/A\b", "= nan"),
        (r"([0-9])(m?s)\b", "${1} ${2}"),
    ),
    stamps=(
        (rf"{_RANK}timestamp = ([0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}) {_TIME}", "[${2} ${3} RANK${1}] "),
        (rf"{_RANK}timestamp = ([0-9]{{2}})-([0-9]{{2}})-([0-9]{{4}}) {_TIME}", "[${4}-${2}-${3} ${5} RANK${1}] "),
    ),
    derived={"running_req": _RUNNING, "new_tok": _NEW_TOK, "used_tok": _HELD_TOK},
)

_GLOG = rf"[IWE]([0-9]{{2}})([0-9]{{2}}) {_TIME} .*"
_JSON_DATE = r'"Timestamp": ?"([0-9]{2})-([0-9]{2})-([0-9]{4}) '

CPP_ITERATION = Family(
    engine=ENGINE,
    kind="iteration",
    literal="Active Request Count",
    keys={
        "Generation Requests": Key("running_req"),
        "Total Context Tokens": Key("new_tok"),
        "Iteration Counter": Key("iteration"),
    },
    required=(
        ("Iteration Counter",), ("Generation Requests",), ("Context Requests",), ("Total Context Tokens",),
        ("Used KV cache blocks",),
    ),
    begins=("Active Request Count", ":"),
    is_key=True,
    rewrite=(
        (r'"Timestamp": ?"[^"]*"(?:, ?)?', ""),  # in `stamps`
        (r'"', ""),
        (r", ?", ", "),
        (r" *\}", ""),
    ),
    stamps=(
        # Triton's own prefix has microseconds but no year
        (rf"{_GLOG}{_JSON_DATE}", "[${6}-${1}-${2} ${3}] "),
        (rf"{_JSON_DATE}{_TIME}", "[${3}-${1}-${2} ${4}] "),
    ),
)
"""Written by the C++ runtime: ``libtensorrtllm.cc:..] {json}`` under Triton, ``[TensorRT-LLM][INFO] {json}`` else."""

EVENTS = (
    EventRule("banner", "LLM version: ", r"\[TensorRT-LLM\] TensorRT[- ]LLM version: (?P<engine_version>\S+)"),
    EventRule(
        "kv_allocated", "for max tokens in paged KV cache",
        r"Allocated (?P<size>[\d.]+) (?P<unit>[KMG]iB) for max tokens in paged KV cache \((?P<tokens>\d+)\)",
    ),
    EventRule(
        "kv_allocated", "max_num_requests=",
        r"max_seq_len=(?P<context_len>\d+), max_num_requests=(?P<max_running_requests>\d+), "
        r"max_num_tokens=(?P<chunked_prefill_size>\d+)(?:, max_batch_size=(?P<max_batch_size>\d+))?",
    ),
    EventRule(
        "weights_loaded", "Loaded engine size:", r"Loaded engine size: (?P<size>[\d.]+) (?P<unit>[KMG]iB)",
    ),
    EventRule("graphs_captured", "CUDA graph instances for", r"CUDA graph instances for (?P<n_sizes>\d+) batch sizes"),
    EventRule(
        "fact", "CUDA graph warmup for batch size=",
        r"CUDA graph warmup for batch size=(?P<graph_batch_size>\d+)(?:, draft_len=(?P<draft_len>\d+))?",
    ),
    EventRule("fact", "MPI size:", r"MPI size: (?P<world_size>\d+), rank: (?P<rank>\d+)"),
    EventRule("fact", "Number of tokens per block:", r"Number of tokens per block: (?P<tokens_per_block>\d+)"),
    EventRule("crash", "Executor worker returned error"),
    EventRule("crash", "Encountered an error in", r"\[TRT-LLM\].*Encountered an error in (?P<where>[\w ]+)"),
    EventRule("watchdog", "Hang detected on rank", r"Hang detected on rank (?P<rank>\d+)"),
    EventRule("profile_start", "Profiling started at iteration", r"Profiling started at iteration (?P<iteration>\d+)"),
    EventRule("profile_stop", "Profiling stopped at iteration", r"Profiling stopped at iteration (?P<iteration>\d+)"),
)


def finish_iterations(samples: pl.DataFrame) -> pl.DataFrame:
    """Complete iteration rows with what only their neighbours tell.

    Parameters
    ----------
    samples : DataFrame
        Records of one file, all engines, in the order of the lines: columns of SAMPLES and ``stamp``.

    Returns
    -------
    DataFrame
        The same rows. Those of this engine get ``out_tok`` (one token per decoding request, missing where drafts
        are verified: the line does not print what was accepted), ``span_s`` of the C++ backend (time to the next
        iteration by the stamps, where these are finer than seconds), and in ``extra``:

        - ``device_step_s``: time of this iteration on the device. Printed one line later as
          ``prev_device_step_time``; given where the next line of the rank is the next iteration.
        - ``warmup``: one of the first iterations of an executor (`WARMUP_ITERATIONS`).
        - ``after_change``: the turn before ran a prompt, nothing, or another number of requests. With the overlap
          scheduler this turn's time is that of the batch before.
        - ``dummy``: no user's request: it pads an idle rank of attention DP, or an executor that only sizes the KV
          cache ran it (`SIZING_ITERATIONS`).

    Notes
    -----
    ``span_s`` is the turn of the host loop: what a client waits for. ``device_step_s`` lies between two events on
    the GPU stream: it leaves the host's own time out where the GPU is ahead, and holds the wait where the turn ran
    nothing (nvbugs 6627789: 1456.7 ms between two steps of 7.3 ms).
    """
    is_mine = pl.col("engine").eq(ENGINE) & pl.col("kind").eq("iteration")
    indexed = samples.with_row_index("_row")
    mine = indexed.filter(is_mine)
    if mine.is_empty():
        return samples
    is_cpp = pl.col("extra").str.contains('"Max Request Count"', literal=True)
    parts = [_finish_turns(mine.filter(~is_cpp)), _finish_cpp(mine.filter(is_cpp)), indexed.filter(~is_mine)]
    return pl.concat(parts).sort("_row").drop("_row")


def find_restarts(samples: pl.DataFrame) -> list[int]:
    """Return the line numbers with which a new server begins: iterations count from the start again.

    Parameters
    ----------
    samples : DataFrame
        As in `finish_iterations`.

    Notes
    -----
    A first executor sizes the KV cache and is part of the start-up of the next one: no restart lies between them.
    """
    mine = samples.filter(pl.col("engine").eq(ENGINE) & pl.col("iteration").is_not_null())
    runs = mine.with_columns(_executor=_executor()).with_columns(is_sizing=_is_sizing())
    first = runs.group_by("_executor").agg(pl.col("line_no").min(), pl.col("is_sizing").first()).sort("_executor")
    return first.filter(~pl.col("is_sizing").shift(1, fill_value=True))["line_no"].to_list()


def _finish_turns(rows: pl.DataFrame) -> pl.DataFrame:
    """Complete the lines of the PyTorch backend."""
    if rows.is_empty():
        return rows
    number = r"([0-9.]+(?:e[+-]?[0-9]+)?)"
    printed = pl.col("extra").str.extract(rf'"prev_device_step_time \(ms\)": {number}')
    scheduled, contexts, slots, dummies = (
        pl.col("extra").str.extract(rf'"{name}": ([0-9]+)').cast(pl.Int64, strict=False)
        for name in ("num_scheduled_requests", "num_ctx_requests", "num_generation_tokens", "num_dummy")
    )
    rows = rows.with_columns(
        _scheduled=scheduled, _contexts=contexts, _slots=slots, _dummies=dummies,
        _printed_s=printed.cast(pl.Float64, strict=False) / 1000, _executor=_executor(),
    )
    running, per_req = pl.col("running_req"), pl.col("_slots") / pl.col("running_req")
    is_decode = (running > 0) & (pl.col("_contexts") == 0)
    least = pl.when(is_decode).then(per_req).min().over("_executor")
    iteration, own = pl.col("iteration"), ["_executor", "rank"]
    is_next = (iteration.shift(-1) == iteration + 1).over(own)
    is_same = (
        (iteration.shift(1) == iteration - 1) & (running.shift(1) == running)
        & (pl.col("_contexts").shift(1) == 0)
    ).over(own)
    notes = [
        _note("device_step_s", pl.col("_printed_s").shift(-1).over(own), is_next),
        _note("warmup", pl.lit("true"), pl.col("iteration") < WARMUP_ITERATIONS),
        _note("after_change", pl.lit("true"), ~is_same.fill_null(False)),
        _note("dummy", pl.lit("true"), _is_dummy(rows, least) | _is_sizing()),
    ]
    # null slots (nothing decoded yet) mean no drafts
    out_tok = pl.when((least < _SPECULATES_FROM).fill_null(True)).then(running.cast(pl.Float64))
    rows = rows.with_columns(out_tok=out_tok, extra=_add(notes))
    return rows.drop("_scheduled", "_contexts", "_slots", "_dummies", "_printed_s", "_executor")


def _executor() -> pl.Expr:
    """Count the executors: their iterations begin again, on every rank."""
    return (pl.col("iteration").diff() < 0).fill_null(False).cum_sum().over("rank")


def _is_sizing() -> pl.Expr:
    """Tell which rows are of an executor that only sized the KV cache."""
    number, iteration = pl.col("_executor"), pl.col("iteration")
    return (number < number.max()) & (iteration.max().over("_executor") < SIZING_ITERATIONS)


def _is_dummy(rows: pl.DataFrame, slots_per_req: pl.Expr) -> pl.Expr:
    """Recognise a lone request that holds no KV: it pads an idle rank of attention DP.

    kv_cache_util has three decimals, so a short request in a large pool shows 0 too. More is asked for: several
    ranks in the log, decode slots beyond a lone request's own (those of the busiest rank), or a full prompt.
    """
    shows_ranks = rows["rank"].n_unique() > 1
    is_padded = pl.lit(shows_ranks) | (pl.col("_slots") >= 2 * slots_per_req.clip(lower_bound=1.0))
    is_lone = (pl.col("_scheduled") == 1) & (pl.col("kv_used_frac") == 0)
    is_prompt = (pl.col("_contexts") == 1) & (pl.col("new_tok") >= _DUMMY_PROMPT_TOK)
    all_dummies = (pl.col("_scheduled") > 0) & (pl.col("_dummies") >= pl.col("_scheduled"))
    return all_dummies | (is_lone & ((pl.col("_contexts") == 0) & is_padded | is_prompt)).fill_null(False)


def _finish_cpp(rows: pl.DataFrame) -> pl.DataFrame:
    """Give the C++ backend's iterations the time to the next one; stamps of whole seconds cannot tell it."""
    if rows.is_empty():
        return rows
    stamp = pl.col("stamp")
    is_fine = bool((rows["stamp"].dt.microsecond() != 0).any())
    is_next = (pl.col("iteration").shift(-1) == pl.col("iteration") + 1) & pl.lit(is_fine)
    span_s = (stamp.shift(-1) - stamp).dt.total_microseconds() / 1e6
    return rows.with_columns(
        span_s=pl.when(is_next & (span_s >= 0)).then(span_s), out_tok=pl.col("running_req").cast(pl.Float64)
    )


def _note(name: str, value: pl.Expr, where: pl.Expr) -> pl.Expr:
    """Return a JSON item, or nothing where it does not hold."""
    return pl.when(where & value.is_not_null()).then(pl.concat_str(pl.lit(f', "{name}": '), value.cast(pl.String)))


def _add(notes: list[pl.Expr]) -> pl.Expr:
    """Append items to the JSON object in ``extra``, which is never empty for these rows."""
    return pl.concat_str(
        pl.col("extra").str.strip_suffix("}"), *(note.fill_null("") for note in notes), pl.lit("}")
    )


READS = (
    Reading(
        source="print_iter_log: `iter = N, global_rank = .., host_step_time = ..ms, .. states = {..}`",
        kind="iteration",
        versions="to 1.3 and main of 2026-08; before 0.20 without the number of requests",
        gives={
            "running_req": "num_scheduled_requests - num_ctx_requests; missing before 0.20",
            "new_tok": "num_ctx_tokens: prompt tokens computed in the turn",
            "span_s": "host_step_time: one turn of the host loop, what a client waits for",
            "out_tok": "one token per decoding request; missing where drafts are verified",
            "kv_used_frac": "kv_cache_util, since 1.2",
            "used_tok": "cached_kv_len: tokens in the cache of the turn's requests, since 2026-05",
            "iteration": "number of the turn, from 1 with each executor",
            "device_step_s": "in extra: time on the device, without the host's gaps; shifted to the turn it belongs to",
        },
        traps=(
            "num_generation_tokens counts token slots, padded to the captured graph and to the busiest rank: never N",
            "prev_device_step_time is of the turn before; after an empty turn it holds the wait",
            "with the overlap scheduler a turn's time is that of the batch before: first turn after a change is off",
            "currank_total_requests are newly fetched requests, not running ones",
            "in an empty turn states still shows the batch before",
            "only rank 0 prints unless TLLM_PROFILE_LOG_RANKS says otherwise: under attention DP its share alone",
            "iter starts again with each executor; a first short one only sizes the KV cache",
        ),
    ),
    Reading(
        source='C++ backend: `{"Active Request Count":..,"Iteration Counter":..}` behind Triton\'s or its own prefix',
        kind="iteration",
        versions="about 0.6 (2023-12)",
        gives={
            "running_req": "Generation Requests",
            "new_tok": "Total Context Tokens",
            "span_s": "time to the next iteration by Triton's stamps (microseconds); missing where stamps are seconds",
        },
        traps=("idle time between two iterations is inside span_s",),
    ),
)

DIALECT = Dialect(ENGINE, (ITERATION, CPP_ITERATION), EVENTS, READS, finish_iterations, find_restarts)
