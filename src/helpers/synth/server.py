"""The discrete-event core: one Python loop turn per forward, counts instead of tokens.

It knows nothing of log lines. It records every forward (`Forward`) and event; `render_sglang` and `render_vllm` turn
them into what each version prints, `truth` into what really happened.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Any

import numpy as np

from helpers.synth.batch import Group, Pool
from helpers.synth.client import ClosedLoop, Request
from helpers.synth.config import Server
from helpers.synth.trace import DECODE, MIXED, PREFILL, Forward, Trace

WARMUP_PROMPT_TOK, WARMUP_OUTPUT_TOK = 6, 8
"""The request that SGLang sends to itself before it says that it is ready."""

NOISE_CHUNK = 4096
"""Noise factors drawn at a time; a constant of the format: another value gives other logs for the same seed."""


class _Dead(Exception):
    """The simulated server died."""


class Engine:
    """A server serving a closed-loop client, through restarts, until the client is done."""

    def __init__(self, server: Server, loop: ClosedLoop, seeds: list[np.random.SeedSequence]) -> None:
        self.server = server
        self.loop = loop
        self.trace = Trace(server, loop)
        noise_seed, level_seed, accept_seed = seeds
        self._noise_rng = np.random.Generator(np.random.PCG64(noise_seed))
        self._accept_rng = np.random.Generator(np.random.PCG64(accept_seed))
        self._level_rng = np.random.Generator(np.random.PCG64(level_seed))
        n_levels = server.max_running_req * server.pp_size + 2
        deviation = np.exp(server.level_deviation_frac * self._level_rng.standard_normal(n_levels))
        self._deviation = deviation.tolist()
        self._ar_state = float(self._noise_rng.standard_normal())
        self._noise: list[float] = []
        self._spikes: list[float] = []
        self._accepts: list[int] = []
        self._n_decodes = 0
        self._base: dict[int, tuple[float, float]] = {}
        self._dealt = [0] * server.dp_size
        self.t = 0.0
        self.life = 0
        self.is_ready = False

    def run(self) -> Trace:
        """Play all lives of the server."""
        while True:
            self._start()
            try:
                self._serve()
            except _Dead:
                break
            if self.loop.has_ended:
                self.t += self.loop.client.tail_s
                self._event("shutdown")
                break
            self.t = max(self.t, self.loop.restart_due_s)
            self._event("shutdown")
            self.life += 1
            self.loop.life = self.life
        self.trace.end_s = self.t
        return self.trace

    def _event(self, kind: str, **values: Any) -> None:
        self.trace.events.append({"t_s": self.t, "kind": kind, "server_life": self.life, **values})

    def _start(self) -> None:
        """Build empty groups, spend the start-up time, play the server's own warm-up request."""
        server = self.server
        self._event("start")
        self.t += server.startup_s
        self._event("initialised")
        queue: deque[Request] = deque()
        pool = Pool(server.kv_pool_tok, server.page_tok)
        self.groups = []
        for index in range(max(server.dp_size, server.pp_size)):
            if server.dp_size > 1:
                queue, pool = deque(), Pool(server.kv_pool_tok, server.page_tok)
            self.groups.append(Group(index, server, pool, queue))
        self.turn = 0
        self.is_busy = False
        self.last_start_s = self.t
        self.last: list[Forward | None] = [None] * len(self.groups)
        self.is_ready = False
        if server.engine == "sglang":
            for group in self.groups if server.dp_size > 1 else self.groups[:1]:
                group.waiting.append(Request(-1 - group.index, -1, WARMUP_PROMPT_TOK, WARMUP_OUTPUT_TOK, False))
            self._serve()
        self.is_ready = True
        self._event("ready")
        self.loop.restart_due_s = math.inf
        self.loop.begin(self.t + self.loop.client.lead_s)

    def _serve(self) -> None:
        """Run forwards until nothing is left to do and no request is on its way."""
        is_overlapped = self.server.is_overlapped
        while True:
            # Overlap: the next forward is decided when the last one has just started.
            visible_s = self.last_start_s if is_overlapped and self.is_busy else self.t
            self._receive(visible_s)
            acting = self._plan(visible_s)
            if not acting and visible_s < self.t:
                self.is_busy = False
                visible_s = self.t
                self._receive(visible_s)
                acting = self._plan(visible_s)
            if acting:
                self._forward(acting, visible_s)
                continue
            self.is_busy = False
            arrival_s = self.loop.next_arrival_s if self.is_ready else math.inf
            if arrival_s == math.inf:
                return
            self.t = max(self.t, arrival_s)

    def _receive(self, until_s: float) -> None:
        if not self.is_ready or self.loop.next_arrival_s > until_s:
            return
        for request in self.loop.take(until_s):
            self.groups[self._route()].waiting.append(request)

    def _route(self) -> int:
        server = self.server
        if server.dp_size == 1:
            return 0
        if server.dp_weights:
            fill = [dealt / weight if weight > 0 else math.inf
                    for dealt, weight in zip(self._dealt, server.dp_weights, strict=True)]
            rank = fill.index(min(fill))
        elif server.dp_router == "shortest":
            load = [len(g.running) + len(g.waiting) + (g.partial is not None) for g in self.groups]
            rank = load.index(min(load))
        else:
            rank = sum(self._dealt) % server.dp_size
        self._dealt[rank] += 1
        return rank

    def _plan(self, visible_s: float) -> list[tuple[Group, list[tuple[Request, int, int]]]]:
        """Decide the next forward: each acting group with the prompts it takes (none = decode)."""
        server = self.server
        if server.pp_size > 1:
            return self._plan_micro_batch()
        acting = []
        for group in self.groups:
            batch = group.admit(server.max_running_req) if group.waiting or group.partial is not None else []
            if batch or group.running or group.n_overshoot:
                acting.append((group, batch))
        return acting

    def _plan_micro_batch(self) -> list[tuple[Group, list[tuple[Request, int, int]]]]:
        server = self.server
        for _ in range(server.pp_size):
            group = self.groups[self.turn % server.pp_size]
            self.turn += 1
            batch = []
            if group.waiting or group.partial is not None:
                n_all = sum(len(g.running) for g in self.groups) + len(group.waiting)
                share = -(-n_all // server.pp_size)
                skew = min(server.micro_batch_skew_req, share // 4)
                share += skew if group.index == 0 else -(skew // (server.pp_size - 1))
                batch = group.admit(min(share, server.max_running_req))
            if batch or group.running:
                return [(group, batch)]
        return []

    def _forward(self, acting: list[tuple[Group, list[tuple[Request, int, int]]]], formed_s: float) -> None:
        """Launch one forward, let its time pass, read its result."""
        server = self.server
        is_mixing = server.is_mixing
        start_s = self.t
        prefill_s = 0.0
        has_prefill = False
        step_req = context_tok = 0
        decoding = []
        is_identical = True
        for group, batch in acting:
            if batch:
                has_prefill = True
                tokens = sum(taken for _, taken, _ in batch)
                prefill_s = max(prefill_s, server.prefill_fixed_s + server.prefill_s_per_tok * tokens)
            n_req = 0
            if not batch or is_mixing:
                if group.running and group.pool.used_tok + group.next_pages_tok() > group.pool.size_tok:
                    self._retract(group)
                n_req = len(group.running) + group.n_overshoot
                if n_req:
                    is_identical = is_identical and group.is_identical
                step_req = max(step_req, n_req)
                context_tok = max(context_tok, group.context_tok + n_req)
            decoding.append(n_req)
        step_req *= server.pp_size
        if server.out_of_memory_at_req and step_req >= server.out_of_memory_at_req:
            self._event("out_of_memory", size_bytes=server.out_of_memory_bytes, running_req=step_req)
            raise _Dead
        # A micro-batch takes its share of the time in which all advance; an empty one leaves its share to the others.
        launch_share = 1.0
        if server.pp_size > 1:
            launch_share = 1.0 / max(1, sum(len(g.running) > 0 for g in self.groups))
        expected_s = step_s = 0.0
        graph = False
        if step_req:
            expected_s = self._step_s(step_req, context_tok, is_identical)
            step_s = expected_s * self._noise_factor() * launch_share
            graph = server.cuda_graph and step_req <= server.captured_batch_sizes[-1]
        stall_s = prefill_s * (1.0 - server.prefill_overlap_frac)
        if not has_prefill:
            length_s = step_s
        elif is_mixing:
            length_s = step_s + (stall_s if step_req else prefill_s)
        else:
            length_s = max(stall_s, step_s)
            graph = False
        burst = self._burst_factor(start_s)
        length_s *= burst
        end_s = start_s + length_s
        if server.is_overlapped and self.is_busy:
            self._revise_last(acting, end_s, length_s)
        self.last_start_s, self.t = start_s, end_s
        total_req = sum(len(g.running) + g.n_overshoot for g in self.groups)
        is_pure = not has_prefill and burst == 1.0
        finished: list[Request] = []
        for (group, batch), n_req in zip(acting, decoding, strict=True):
            finished += self._read(group, batch, n_req, Forward(
                start_s, end_s, end_s, formed_s, self.life, group.index,
                DECODE if not batch else MIXED if is_mixing else PREFILL,
                n_req, n_req, n_req, 0, 0, 0, len(group.running), len(batch), 0, 0, 0, 0, 0, graph, step_req,
                total_req, expected_s, launch_share, is_pure, context_tok, is_identical, self.is_ready, (),
            ))
        self.is_busy = True
        if finished and self.is_ready:
            self.loop.finished(finished, end_s)

    def _read(
        self, group: Group, batch: list[tuple[Request, int, int]], n_req: int, row: Forward
    ) -> list[Request]:
        """Apply the result of a forward to one group, complete its row, return the requests that finished."""
        server = self.server
        finished: list[Request] = []
        was_overshoot = group.n_overshoot
        group.n_overshoot = 0
        if n_req:
            if server.speculation is None:
                finished = group.decode() if group.running else []
            else:
                accepted = self._accepted(n_req - was_overshoot)
                row.accepted = tuple(accepted.count(i + 1) for i in range(server.speculation.num_draft_tokens))
                row.decoded_tok = row.generated_tok = sum(accepted)
                finished = group.accept(accepted)
            if server.is_overlapped:
                group.n_overshoot = len(finished)
        joined = []
        for request, taken_tok, cached_tok in batch:
            row.new_tok += taken_tok
            row.cached_tok += cached_tok
            if request.computed_tok < request.to_compute_tok:
                continue
            row.credited_tok += request.prompt_tok + request.generated_tok
            row.credited_cached_tok += request.prompt_tok + request.generated_tok - request.to_compute_tok
            row.generated_tok += 1
            if math.isnan(request.first_token_s):
                request.first_token_s = row.end_s
            if group.join(request):
                joined.append(request)
        finished += joined
        row.used_tok = group.pool.used_tok
        row.queue_req = len(group.waiting)
        row.running_req = len(group.running) + (group.partial is not None)
        if batch:
            row.pending_tok = sum(r.prompt_tok + r.generated_tok for r in group.waiting)
            if group.partial is not None:
                row.pending_tok += group.partial.to_compute_tok - group.partial.computed_tok
        self.last[group.index] = row
        self.trace.forwards.append(row)
        return finished

    def _revise_last(
        self, acting: list[tuple[Group, list[tuple[Request, int, int]]]], end_s: float, length_s: float
    ) -> None:
        """Apply the launch of a forward to the result before it, which the host reads only now.

        The host reads late by the share of a prefill that it spends launching it, and finds the KV of the next
        forward already allocated.
        """
        held_s = self.server.prefill_launch_frac * length_s
        for group, batch in acting:
            last = self.last[group.index]
            if last is None or last.end_s != self.t or last.kind == PREFILL:
                continue
            if batch:
                last.print_s = last.end_s + held_s
                last.used_tok = group.pool.used_tok
            else:
                last.used_tok = group.pool.used_tok + group.next_pages_tok()

    def _retract(self, group: Group) -> None:
        before_req = len(group.running)
        thrown, gained_tok = group.retract()
        self._event("preemption" if self.server.engine == "vllm" else "retraction", group=group.index,
                    retracted_req=len(thrown), gained_tok=gained_tok, running_req=before_req)

    def _step_s(self, step_req: int, context_tok: int, is_identical: bool) -> float:
        """Noise-free step [s]: law, padding, eager factor, deviation of this batch size."""
        server = self.server
        if step_req not in self._base:
            padded_req, factor = step_req, 1.0
            largest = server.captured_batch_sizes[-1] if server.cuda_graph else 0
            if step_req > largest:
                factor *= server.eager_factor
            elif server.pad_to_captured:
                padded_req = min(size for size in server.captured_batch_sizes if size >= step_req)
            factor *= server.level_factors.get(step_req, self._deviation[min(step_req, len(self._deviation) - 1)])
            self._base[step_req] = (server.law.step_s(padded_req), factor)
        base_s, factor = self._base[step_req]
        step_s = (base_s + server.law.context_s_per_tok * context_tok) * factor
        return step_s * server.identical_step_factor if is_identical else step_s

    def _noise_factor(self) -> float:
        noise = self.server.noise
        if noise.sigma_frac == 0 and noise.spike_prob == 0:
            return 1.0
        block = self._n_decodes // noise.block_steps
        while block >= len(self._noise):
            self._draw_noise()
        factor = self._noise[block]
        if noise.spike_prob:
            while self._n_decodes >= len(self._spikes):
                self._draw_spikes()
            factor *= self._spikes[self._n_decodes]
        self._n_decodes += 1
        return factor

    def _draw_noise(self) -> None:
        noise = self.server.noise
        state, keep, add = self._ar_state, noise.ar1, math.sqrt(1 - noise.ar1**2)
        shift = noise.sigma_frac**2 / 2  # mean one
        for shock in self._noise_rng.standard_normal(NOISE_CHUNK).tolist():
            state = keep * state + add * shock
            self._noise.append(math.exp(noise.sigma_frac * state - shift))
        self._ar_state = state

    def _draw_spikes(self) -> None:
        noise = self.server.noise
        mean = 1 + noise.spike_prob * (noise.spike_factor - 1)
        hit = self._noise_rng.random(NOISE_CHUNK) < noise.spike_prob
        self._spikes += (np.where(hit, noise.spike_factor, 1.0) / mean).tolist()

    def _accepted(self, n: int) -> list[int]:
        speculation = self.server.speculation
        assert speculation is not None
        while len(self._accepts) < n:
            chances = np.cumsum(speculation.accept_probabilities())[:-1]
            drawn = np.searchsorted(chances, self._accept_rng.random(NOISE_CHUNK), side="right") + 1
            self._accepts += drawn.tolist()
        taken, self._accepts = self._accepts[:n], self._accepts[n:]
        return taken

    def _burst_factor(self, at_s: float) -> float:
        factor = 1.0
        for start_s, duration_s, slower in self.server.neighbour_bursts:
            if start_s <= at_s < start_s + duration_s:
                factor *= slower
        return factor
