"""What vLLM prints about a `Trace`: the periodic statistics line of V0 and V1.

The front end counts tokens as it sees them (first tokens included, a prompt whole at its first token) and divides by
the time since its last line; Running, Waiting and KV usage are those of the last step before the line.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from itertools import accumulate
from typing import Any

import numpy as np

from helpers.synth.config import Server
from helpers.synth.lines import Clock, Line, access
from helpers.synth.render_sources import iteration_lines
from helpers.synth.startup import vllm_crash, vllm_shutdown, vllm_startup
from helpers.synth.trace import Forward, Trace

TIMER_LATE_S = (0.0003, 0.0015)
"""A timer of the front end fires late by so much [s] (own logs: 128 tokens in a 1 s window print as 127.9)."""

SOURCE_LINES = (
    ((0, 8), 87), ((0, 10), 123), ((0, 11), 236), ((0, 14), 257), ((0, 20), 271), ((0, 26), 310), ((0, 33), 335),
)
"""Version -> line number in loggers.py, which the prefix shows."""

V0_FORCED_S = 10.0
"""V0 prints from the engine loop; when idle a timer of the API server forces a line after so long [s]."""

CACHED_COUNT_UNTIL = (0, 14)
"""Up to here the prompt throughput counts cached tokens too."""


def render(trace: Trace, rng: np.random.Generator) -> list[Line]:
    """Return every line of the log in order.

    Parameters
    ----------
    trace : Trace
        What happened.
    rng : Generator
        Draws how late the statistics timer fires.
    """
    server = trace.server
    writer = _Writer(server, rng)
    placed: list[tuple[float, int, Line]] = []
    ends = {e["server_life"]: e["t_s"] for e in trace.events if e["kind"] in ("shutdown", "out_of_memory")}
    for event in trace.events:
        order = {"start": -1, "ready": 0, "shutdown": 9, "out_of_memory": 9}.get(event["kind"], 3)
        placed += [(line.t_s, order, line) for line in writer.event_lines(event)]
        if event["kind"] == "ready":
            life = event["server_life"]
            forwards = [f for f in trace.forwards if f.life == life]
            end_s = ends.get(life, trace.end_s)
            placed += [(line.t_s, 1, line) for line in writer.statistics(forwards, event["t_s"], end_s)]
            if server.iteration_lines:
                placed += [(line.t_s, 0, line) for line in iteration_lines(server, forwards, writer.line)]
    if server.access_lines:
        for load in trace.loop.loads:
            for request in load.requests:
                if request.first_token_s == request.first_token_s:
                    text = writer.process("api") + access(request.number)
                    placed.append((request.first_token_s, 2, Line(request.first_token_s, text)))
    placed.sort(key=lambda item: item[:2])
    return [line for _, _, line in placed]


class _Totals:
    """Running totals of one engine, to read what was counted up to any moment."""

    def __init__(self, forwards: list[Forward], counts_cached: bool, n_draft: int) -> None:
        self.rows = forwards
        self.ends = [f.end_s for f in forwards]
        self.generated = [0, *accumulate(f.generated_tok for f in forwards)]
        self.prompt = [0, *accumulate(
            f.credited_tok - (0 if counts_cached else f.credited_cached_tok) for f in forwards)]
        self.queried = [0, *accumulate(f.new_tok + f.cached_tok for f in forwards)]
        self.hit = [0, *accumulate(f.cached_tok for f in forwards)]
        self.drafts = [0, *accumulate(sum(f.accepted) for f in forwards)]
        self.positions = [[0, *accumulate(sum(f.accepted[i + 1 :]) for f in forwards)] for i in range(n_draft)]

    def at(self, t_s: float) -> int:
        """Return how many forwards had ended by t_s."""
        return bisect.bisect_right(self.ends, t_s)


class _Writer:
    """Writes the lines of one server."""

    def __init__(self, server: Server, rng: np.random.Generator) -> None:
        self.server = server
        self.rng = rng
        self.clock = Clock(server.start, "%m-%d %H:%M:%S")
        version = server.version_tuple
        numbers = [number for since, number in SOURCE_LINES if since <= version]
        self.source_line = numbers[-1] if numbers else 467

    def process(self, name: str) -> str:
        """Return the process tag in front of a line."""
        if self.server.version_tuple < (0, 10):
            return ""
        core = "EngineCore_DP0" if self.server.version_tuple < (0, 20) else "EngineCore"
        return "(APIServer pid=4242) " if name == "api" else f"({core} pid=4301) "

    def _line(
        self, t_s: float, process: str, source: str, text: str, values: dict[str, Any] | None = None,
        level: str = "INFO",
    ) -> Line:
        return self.line(t_s, self.process(process), source, text, values, level)

    def line(
        self, t_s: float, tag: str, source: str, text: str, values: dict[str, Any] | None = None, level: str = "INFO"
    ) -> Line:
        """Return a line behind a process tag."""
        stamp = self.clock.stamp(t_s)
        place = f"{source}]" if self.server.version_tuple < (0, 8) else f"[{source}]"
        return Line(t_s, f"{tag}{level} {stamp} {place} {text}", values or {})

    def event_lines(self, event: dict) -> Iterator[Line]:
        """Yield the lines of a server event."""
        kind, t_s = event["kind"], event["t_s"]
        if kind == "start":
            texts = vllm_startup(self.server)
            step_s = self.server.startup_s / len(texts)
            for i, (process, source, text) in enumerate(texts):
                yield self._line(t_s + i * step_s, process, source, text)
        elif kind == "ready":
            for text in ("INFO:     Started server process [4242]", "INFO:     Waiting for application startup.",
                         "INFO:     Application startup complete."):
                yield Line(t_s, self.process("api") + text)
        elif kind == "preemption" and self.server.version_tuple < (0, 8):
            yield self._line(
                t_s, "", "scheduler.py:1141",
                f"Sequence group {event['running_req']} is preempted by PreemptionMode.RECOMPUTE mode because there is "
                f"not enough KV cache space. total_num_cumulative_preemption={event['retracted_req']}", level="WARNING")
        elif kind == "out_of_memory":
            for text in vllm_crash(event["size_bytes"]):
                yield self._line(t_s, "core", "core.py:398", text, level="ERROR")
        elif kind == "shutdown":
            for text in vllm_shutdown():
                yield self._line(t_s, "api", "launcher.py:254", text)

    def statistics(self, forwards: list[Forward], ready_s: float, end_s: float) -> Iterator[Line]:
        """Yield the statistics lines of one server life, engine by engine."""
        server = self.server
        n_draft = server.speculation.num_draft_tokens - 1 if server.speculation else 0
        counts_cached = server.version_tuple[:2] <= CACHED_COUNT_UNTIL
        by_engine: dict[int, list[Forward]] = {i: [] for i in range(server.dp_size)}
        for forward in forwards:
            by_engine[forward.group].append(forward)
        totals = {engine: _Totals(rows, counts_cached, n_draft) for engine, rows in by_engine.items()}
        moments = list(self._moments(totals[0].ends, ready_s, end_s))
        for engine, total in totals.items():
            yield from self._engine_lines(engine, total, moments, ready_s)

    def _moments(self, ends: list[float], ready_s: float, end_s: float) -> Iterator[float]:
        """Yield when statistics are written: a timer (V1), or the first step after the period (V0)."""
        period_s = self.server.stat_interval_s
        t_s = ready_s
        if self.server.is_mixing:
            while True:
                t_s += period_s + self.rng.uniform(*TIMER_LATE_S)
                if t_s >= end_s:
                    return
                yield t_s
        while True:
            i = bisect.bisect_left(ends, t_s + period_s)
            step_s = ends[i] if i < len(ends) else float("inf")
            t_s = min(step_s, t_s + max(V0_FORCED_S, period_s))
            if t_s >= end_s:
                return
            yield t_s

    def _engine_lines(self, engine: int, total: _Totals, moments: list[float], ready_s: float) -> Iterator[Line]:
        before, last_s = 0, ready_s
        drafts_before, drafts_s = 0, ready_s
        was_busy = False
        for t_s in moments:
            now = total.at(t_s)
            prompt_tok = total.prompt[now] - total.prompt[before]
            generated_tok = total.generated[now] - total.generated[before]
            is_busy = prompt_tok + generated_tok > 0
            if is_busy or was_busy or not self.server.is_mixing:
                statistics = self._statistics_line(engine, total, now, t_s, t_s - last_s, prompt_tok, generated_tok)
                yield statistics
                if total.drafts[now] > total.drafts[drafts_before]:
                    if self.server.is_mixing:
                        line = self._speculation_line(total, drafts_before, now, t_s, t_s - drafts_s)
                        statistics.values["accept_len"] = line.values["accept_len"]
                    else:
                        line = self._speculation_line_v0(total, now, t_s)
                    yield line
                    drafts_before, drafts_s = now, t_s
            before, last_s, was_busy = now, t_s, is_busy

    def _statistics_line(
        self, engine: int, total: _Totals, now: int, t_s: float, gap_s: float, prompt_tok: int, generated_tok: int
    ) -> Line:
        server = self.server
        prompt, generated = f"{prompt_tok / gap_s:.1f}", f"{generated_tok / gap_s:.1f}"
        running = waiting = used_tok = 0
        if now:
            row = total.rows[now - 1]
            running, waiting, used_tok = row.running_req, row.queue_req, row.used_tok
        usage = f"{100 * used_tok / server.kv_pool_tok:.1f}"
        values = {
            "kind": "stats", "running_req": running, "queue_req": waiting, "kv_used_frac": float(usage) / 100,
            "decode_tok_per_s": float(generated), "prefill_tok_per_s": float(prompt),
            "rank": f"DP{engine}" if server.is_mixing else None,
        }
        rates = f"Avg prompt throughput: {prompt} tokens/s, Avg generation throughput: {generated} tokens/s, "
        if not server.is_mixing:
            return self._line(
                t_s, "", f"metrics.py:{self.source_line}",
                f"{rates}Running: {running} reqs, Swapped: 0 reqs, Pending: {waiting} reqs, "
                f"GPU KV cache usage: {usage}%, CPU KV cache usage: 0.0%.",
                {**values, "extra": {"Swapped (reqs)": 0, "CPU KV cache usage (%)": 0.0}})
        hit_rate = f"{100 * total.hit[now] / max(total.queried[now], 1):.1f}"
        text = (f"Engine {engine:03d}: {rates}Running: {running} reqs, Waiting: {waiting} reqs, "
                f"GPU KV cache usage: {usage}%")
        extra = {}
        if server.prefix_cache or server.version_tuple < (0, 33):
            text += f", Prefix cache hit rate: {hit_rate}%"
            extra["Prefix cache hit rate (%)"] = float(hit_rate)
        return self._line(t_s, "api", f"loggers.py:{self.source_line}", text, {**values, "extra": extra})

    def _speculation_line(self, total: _Totals, before: int, now: int, t_s: float, gap_s: float) -> Line:
        n_drafts = total.drafts[now] - total.drafts[before]
        positions = [p[now] - p[before] for p in total.positions]
        n_accepted, n_drafted = sum(positions), n_drafts * len(positions)
        rates = [f"{p / n_drafts:.3f}" for p in positions]
        share = f"{100 * n_accepted / n_drafted:.1f}"
        mean = n_accepted / n_drafts
        has_rates = self.server.version_tuple >= (0, 10)
        printed_mean = f"{1 + mean if has_rates else mean:.2f}"
        speeds = (f"{n_accepted / gap_s:.2f}", f"{n_drafted / gap_s:.2f}")
        counts = f"Accepted: {n_accepted} tokens, Drafted: {n_drafted} tokens"
        by_position = f"Per-position acceptance rate: {', '.join(rates)}"
        extra: dict[str, Any] = {
            "Mean acceptance length": float(printed_mean), "Accepted (tokens)": n_accepted,
            "Drafted (tokens)": n_drafted, "Per-position acceptance rate": [float(rate) for rate in rates],
        }
        if has_rates:
            text = (f"Mean acceptance length: {printed_mean}, Accepted throughput: {speeds[0]} tokens/s, "
                    f"Drafted throughput: {speeds[1]} tokens/s, {counts}, {by_position}, "
                    f"Avg Draft acceptance rate: {share}%")
            extra |= {"Accepted throughput (tokens/s)": float(speeds[0]),
                      "Drafted throughput (tokens/s)": float(speeds[1])}
        else:
            text = f"Draft acceptance rate: {share}%, Mean acceptance length: {printed_mean}, {counts}, {by_position}"
        values = {"kind": "spec", "accept_len": 1 + mean, "accept_rate_frac": float(share) / 100, "extra": extra}
        return self._line(t_s, "api", "metrics.py:120", f"SpecDecoding metrics: {text}", values)

    def _speculation_line_v0(self, total: _Totals, now: int, t_s: float) -> Line:
        """Return V0's line, whose counts are totals since the start."""
        n_drafts, n_positions = total.drafts[now], len(total.positions)
        n_accepted = sum(p[now] for p in total.positions)
        n_drafted, n_emitted = n_drafts * n_positions, n_accepted + n_drafts
        share = f"{n_accepted / n_drafted:.3f}"
        efficiency = f"{n_emitted / (n_drafts * (n_positions + 1)):.3f}"
        extra = {"System efficiency": float(efficiency), "Number of speculative tokens": n_positions,
                 "Number of accepted tokens": n_accepted, "Number of draft tokens": n_drafted,
                 "Number of emitted tokens": n_emitted}
        values = {"kind": "spec", "accept_rate_frac": float(share), "accept_len": n_emitted * n_positions / n_drafted,
                  "extra": extra}
        return self._line(
            t_s, "api", "metrics.py:477",
            f"Speculative metrics: Draft acceptance rate: {share}, System efficiency: {efficiency}, "
            f"Number of speculative tokens: {n_positions}, Number of accepted tokens: {n_accepted}, "
            f"Number of draft tokens: {n_drafted}, Number of emitted tokens: {n_emitted}.", values)
