"""Better sources than the log line, from the same `Trace`: iteration lines, /v1/loads snapshots, Prometheus scrapes.

They state what really ran, so an analysis of each must find the same law as one of the log.
"""

from __future__ import annotations

import bisect
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import accumulate
from typing import Any

from helpers.synth.config import Server
from helpers.synth.lines import Line
from helpers.synth.trace import DECODE, Forward, Trace

LONGEST_COUNTED_S = 2.0
"""SGLang leaves longer steps out of decode_moments."""

ITERATION_IN_API_SINCE = (0, 26)
"""From here on the API server prints the iteration lines, with the engine's number and the pool's usage."""

WriteLine = Callable[..., Line]


def iteration_lines(server: Server, forwards: list[Forward], write: WriteLine) -> Iterator[Line]:
    """Yield what vLLM prints of every engine step of one server life under --enable-logging-iteration-details.

    Parameters
    ----------
    server : Server
    forwards : list of Forward
        Of one life, in order. An engine without a request in a step that others run prints a dummy iteration.
    write : callable
        (t_s, process tag, source, text, values) -> Line, with the stamp and layout of the version.
    """
    numbers = [0] * server.dp_size
    for acting in _by_step(forwards):
        start_s, end_s = next(iter(acting.values())).start_s, next(iter(acting.values())).end_s
        for engine in range(server.dp_size):
            forward = acting.get(engine)
            yield _iteration_line(server, engine, numbers[engine], forward, end_s - start_s, end_s, write)
            numbers[engine] += 1


def _by_step(forwards: list[Forward]) -> Iterator[dict[int, Forward]]:
    """Yield the forwards that ran together, by engine."""
    together: dict[int, Forward] = {}
    for forward in forwards:
        if together and next(iter(together.values())).start_s != forward.start_s:
            yield together
            together = {}
        together[forward.group] = forward
    if together:
        yield together


def _iteration_line(
    server: Server, engine: int, number: int, forward: Forward | None, length_s: float, t_s: float, write: WriteLine
) -> Line:
    context_req = context_tok = decode_req = used_tok = 0
    if forward is not None:
        context_req, context_tok = forward.new_seq, forward.new_tok
        decode_req, used_tok = forward.batch_req, forward.used_tok
    # What is scheduled is counted: under speculation every draft, accepted or not.
    decode_tok = decode_req * (server.speculation.num_draft_tokens if server.speculation else 1)
    elapsed = f"{1000 * length_s:.2f}"
    text = (f"Iteration({number}): {context_req} context requests, {context_tok} context tokens, {decode_req} "
            f"generation requests, {decode_tok} generation tokens, iteration elapsed time: {elapsed} ms")
    extra: dict[str, Any] = {"context requests": context_req}
    if forward is None:
        text += " (dummy)"
        extra["dummy"] = True
    values = {
        "kind": "iteration", "rank": f"DP{engine}", "iteration": number, "running_req": decode_req,
        "new_tok": context_tok, "out_tok": float(decode_tok), "span_s": float(elapsed) / 1000, "n_steps": 1.0,
        "extra": extra,
    }
    if server.version_tuple < ITERATION_IN_API_SINCE:
        return write(t_s, f"(EngineCore_DP{engine} pid={4301 + engine}) ", "core.py:349", text, values)
    usage = f"{100 * used_tok / server.kv_pool_tok:.1f}"
    return write(t_s, "(APIServer pid=4242) ", "loggers.py:199", f"Engine {engine:03d}: {text}, GPU KV cache usage: "
                 f"{usage}%", {**values, "kv_used_frac": float(usage) / 100})


@dataclass
class _Counts:
    """What one rank had counted after each of its forwards; index i = after i forwards."""

    ends: list[float]
    rows: list[Forward]
    moments: list[list[float]]
    steps: list[int]
    generated_tok: list[int]
    decoded_tok: list[int]
    prompt_tok: list[int]
    prefill_s: list[float]
    graph_steps: list[int]
    eager_steps: list[int]

    def at(self, t_s: float) -> int:
        """Return how many forwards had ended by t_s."""
        return bisect.bisect_right(self.ends, t_s)

    def last(self, n: int) -> tuple[int, int, int]:
        """Return running requests, waiting requests and KV held after n forwards."""
        row = self.rows[n - 1] if n else None
        return (row.running_req, row.queue_req, row.used_tok) if row else (0, 0, 0)


def _counts(rows: list[Forward]) -> _Counts:
    moments = [[0.0] * 6]
    before: Forward | None = None
    for row in rows:
        length_s = row.end_s - row.start_s
        is_next = before is not None and before.kind == DECODE and before.end_s == row.start_s
        add = [0.0] * 6
        if is_next and row.kind == DECODE and row.batch_req and length_s < LONGEST_COUNTED_S:
            b, t_us = row.batch_req, 1e6 * length_s
            add = [1, b, t_us, b * b, b * t_us, row.decoded_tok]
        moments.append([total + part for total, part in zip(moments[-1], add, strict=True)])
        before = row
    return _Counts(
        [row.end_s for row in rows], rows, moments, list(range(len(rows) + 1)),
        [0, *accumulate(row.generated_tok for row in rows)], [0, *accumulate(row.decoded_tok for row in rows)],
        [0, *accumulate(row.new_tok for row in rows)],
        [0.0, *accumulate(row.end_s - row.start_s if row.new_tok else 0.0 for row in rows)],
        [0, *accumulate(int(row.kind == DECODE and row.graph) for row in rows)],
        [0, *accumulate(int(row.kind == DECODE and not row.graph) for row in rows)],
    )


def _lives(trace: Trace) -> Iterator[tuple[int, float, float, dict[int, _Counts]]]:
    """Yield number, start and end of each server life, and the counts of its ranks."""
    ends = {e["server_life"]: e["t_s"] for e in trace.events if e["kind"] in ("shutdown", "out_of_memory")}
    for event in trace.events:
        if event["kind"] != "ready":
            continue
        life = event["server_life"]
        by_rank: dict[int, list[Forward]] = {rank: [] for rank in range(trace.server.dp_size)}
        for forward in trace.forwards:
            if forward.life == life:
                by_rank[forward.group if trace.server.dp_size > 1 else 0].append(forward)
        yield life, event["t_s"], ends.get(life, trace.end_s), {k: _counts(rows) for k, rows in by_rank.items()}


def _moments_of_time(start_s: float, end_s: float, period_s: float) -> Iterator[float]:
    number = 1
    while start_s + number * period_s < end_s:
        yield start_s + number * period_s
        number += 1


def _unix_s(server: Server) -> float:
    """Return the seconds since 1970 of the first line, taken for UTC."""
    return datetime.strptime(server.start, "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC).timestamp()


def load_snapshots(trace: Trace, period_s: float) -> Iterator[str]:
    """Yield JSON lines: what `GET /v1/loads` of SGLang would answer every period_s [s], with the time of each."""
    origin_s = _unix_s(trace.server)
    for _, start_s, end_s, ranks in _lives(trace):
        for t_s in _moments_of_time(start_s, end_s, period_s):
            loads = []
            for rank, counts in ranks.items():
                n = counts.at(t_s)
                running, waiting, used_tok = counts.last(n)
                sums = counts.moments[n]
                loads.append({
                    "dp_rank": rank, "num_running_reqs": running, "num_waiting_reqs": waiting,
                    "num_used_tokens": used_tok, "max_total_num_tokens": trace.server.kv_pool_tok,
                    "decode_moments": [*(int(x) for x in sums[:2]), round(sums[2], 3), int(sums[3]), round(sums[4], 3),
                                       int(sums[5])],
                    "total_prefill_busy_us": round(1e6 * counts.prefill_s[n]),
                    "total_prefill_uncached_tokens": counts.prompt_tok[n],
                })
            yield json.dumps({"timestamp": round(origin_s + t_s, 6), "version": trace.server.version, "loads": loads})


def scrapes(trace: Trace, period_s: float) -> Iterator[str]:
    """Yield the lines of Prometheus pages scraped every period_s [s], each page after a line with its time."""
    server, origin_s = trace.server, _unix_s(trace.server)
    page = _vllm_page if server.engine == "vllm" else _sglang_page
    for _, start_s, end_s, ranks in _lives(trace):
        for t_s in _moments_of_time(start_s, end_s, period_s):
            yield f"# scrape_unix_time {origin_s + t_s:.6f} took_s 0.0010"
            for rank, counts in ranks.items():
                yield from page(server, rank, counts, counts.at(t_s))


def _vllm_page(server: Server, engine: int, counts: _Counts, n: int) -> Iterator[str]:
    running, waiting, used_tok = counts.last(n)
    labels = f'{{engine="{engine}",model_name="{server.model}"}}'
    for name, value in (
        ("num_requests_running", running), ("num_requests_waiting", waiting),
        ("kv_cache_usage_perc", used_tok / server.kv_pool_tok), ("prompt_tokens_total", counts.prompt_tok[n]),
        ("generation_tokens_total", counts.generated_tok[n]), ("iteration_tokens_total_count", counts.steps[n]),
        ("iteration_tokens_total_sum", counts.prompt_tok[n] + counts.generated_tok[n]),
    ):
        yield f"vllm:{name}{labels} {float(value)!r}"


def _sglang_page(server: Server, rank: int, counts: _Counts, n: int) -> Iterator[str]:
    running, waiting, used_tok = counts.last(n)
    tag = f'dp_rank="{rank}",' if server.dp_size > 1 else ""
    labels = f'{tag}engine_type="unified",model_name="{server.model}",pp_rank="0",tp_rank="0"'
    for name, value in (
        ("num_running_reqs", running), ("num_queue_reqs", waiting), ("num_used_tokens", used_tok),
        ("token_usage", used_tok / server.kv_pool_tok),
    ):
        yield f"sglang:{name}{{{labels}}} {float(value)!r}"
    for name, mode, count in (
        ("realtime_tokens_total", "decode", counts.decoded_tok[n]),
        ("realtime_tokens_total", "prefill_compute", counts.prompt_tok[n]),
        ("cuda_graph_passes_total", "decode_cuda_graph", counts.graph_steps[n]),
        ("cuda_graph_passes_total", "decode_none", counts.eager_steps[n]),
    ):
        yield f'sglang:{name}{{{labels},mode="{mode}"}} {float(count)!r}'
