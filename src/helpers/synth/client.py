"""The closed-loop client: when each request is sent, and what the client sees."""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from helpers.synth.config import Client


@dataclass(slots=True, eq=False)
class Request:
    """One request; the first block is the client's, the second the server's book-keeping."""

    number: int
    load: int
    prompt_tok: int
    output_tok: int
    is_identical: bool
    arrival_s: float = math.nan
    first_token_s: float = math.nan
    finish_s: float = math.nan

    cached_tok: int = 0
    to_compute_tok: int = 0
    computed_tok: int = 0
    own_tok: int = 0
    generated_tok: int = 0
    start_step: int = 0
    finish_step: int = -1
    left_tok: int = 0
    group: int = -1


@dataclass
class Load:
    """One level of the load (or the warm-up): its requests and when it ran."""

    name: str
    running_req: int
    is_warmup: bool
    restarts: bool
    requests: list[Request] = field(default_factory=list)
    n_sent: int = 0
    n_done: int = 0
    start_s: float = math.nan
    end_s: float = math.nan
    server_life: int = 0


class ClosedLoop:
    """Keep `running_req` requests of the current load in flight; start the next load when it is used up."""

    def __init__(self, client: Client, rng: np.random.Generator) -> None:
        self.client = client
        self.loads = _plan_loads(client, rng)
        self.index = 0
        self.restart_due_s = math.inf
        self.life = 0
        self._heap: list[tuple[float, int, Request]] = []

    @property
    def next_arrival_s(self) -> float:
        """Time of the next request that is already on its way [s]; inf if none."""
        return self._heap[0][0] if self._heap else math.inf

    @property
    def has_ended(self) -> bool:
        """All loads are done."""
        return self.index >= len(self.loads)

    def begin(self, at_s: float) -> None:
        """Send the first requests of the current load."""
        load = self.loads[self.index]
        load.start_s = at_s
        load.server_life = self.life
        for i in range(min(load.running_req, len(load.requests))):
            self._send(load, at_s + i * self.client.stagger_s)

    def take(self, until_s: float) -> list[Request]:
        """Return the requests that have arrived by until_s, in order of arrival."""
        arrived = []
        while self._heap and self._heap[0][0] <= until_s:
            arrived.append(heapq.heappop(self._heap)[2])
        return arrived

    def finished(self, requests: list[Request], at_s: float) -> None:
        """Take finished answers; send replacements, or go on to the next load."""
        for i, request in enumerate(requests):
            request.finish_s = at_s
            load = self.loads[request.load]
            load.n_done += 1
            if load.n_sent < len(load.requests):
                self._send(load, at_s + self.client.reply_delay_s + i * self.client.stagger_s)
            elif load.n_done == len(load.requests):
                load.end_s = at_s
                self.index += 1
                if self.has_ended:
                    return
                if self.loads[self.index].restarts:
                    self.restart_due_s = at_s + self.client.gap_s
                else:
                    self.begin(at_s + self.client.gap_s)

    def _send(self, load: Load, at_s: float) -> None:
        request = load.requests[load.n_sent]
        load.n_sent += 1
        request.arrival_s = at_s
        heapq.heappush(self._heap, (at_s, request.number, request))


def _plan_loads(client: Client, rng: np.random.Generator) -> list[Load]:
    loads = []
    plan: list[tuple[str, int, int, bool]] = []
    if client.warmup_req:
        plan.append(("warmup", client.warmup_req, client.warmup_prompts, True))
    for i, level_req in enumerate(client.levels_req):
        n = client.n_prompts[i] if client.n_prompts else max(1, round(client.prompts_per_req * level_req))
        plan.append((f"c{level_req}", level_req, n, False))
    number = 0
    n_warmup_loads = 1 if client.warmup_req else 0
    for index, (name, level_req, n, is_warmup) in enumerate(plan):
        load = Load(name, level_req, is_warmup, restarts=index - n_warmup_loads in client.restart_before)
        prompts = client.prompt.draw(rng, n)
        outputs = client.output.draw(rng, n)
        is_identical = client.warmup_identical if is_warmup else client.identical_prompts
        for prompt_tok, output_tok in zip(prompts, outputs, strict=True):
            load.requests.append(Request(
                number, index, prompts[0] if is_identical else prompt_tok,
                client.warmup_output_tok if is_warmup and client.warmup_output_tok else output_tok, is_identical,
            ))
            number += 1
        loads.append(load)
    return loads


def client_results(load: Load) -> dict[str, Any]:
    """Return what the client reports for one load; None where nothing finished.

    The duration runs from the first request to the last answer, as benchmark clients count it: it holds the ramp and
    the drain, so that its rate lies below the steady one.
    """
    done = [r for r in load.requests if math.isfinite(r.finish_s)]
    if not done:
        return {"n_prompts": len(load.requests), "n_completed": 0, "duration_s": None, "output_tok_per_s": None}
    duration_s = max(r.finish_s for r in done) - load.start_s
    output_tok = sum(r.output_tok for r in done)
    ttft = np.array([r.first_token_s - r.arrival_s for r in done])
    tpot = np.array([(r.finish_s - r.first_token_s) / (r.output_tok - 1) for r in done if r.output_tok > 1])
    return {
        "n_prompts": len(load.requests), "n_completed": len(done), "duration_s": duration_s,
        "prompt_tok": sum(r.prompt_tok for r in done), "output_tok": output_tok,
        "output_tok_per_s": output_tok / duration_s,
        "ttft_s_mean": float(ttft.mean()), "ttft_s_median": float(np.median(ttft)),
        "ttft_s_p99": float(np.percentile(ttft, 99)),
        "tpot_s_mean": float(tpot.mean()) if len(tpot) else None,
        "tpot_s_median": float(np.median(tpot)) if len(tpot) else None,
    }


def phase_times(load: Load) -> dict[str, Any]:
    """Return ramp, steady and drain of one load as the client sees them [s since the log's first line].

    Ramp ends when the first `running_req` requests have their first token; the drain starts when an answer is not
    followed by a new request. ``steady_s`` is the time in which exactly that many requests decode and none awaits
    its first token.
    """
    done = [r for r in load.requests if math.isfinite(r.finish_s)]
    phase: dict[str, Any] = {
        "name": load.name, "running_req": load.running_req, "is_warmup": load.is_warmup,
        "server_life": load.server_life, "start_s": _finite(load.start_s), "end_s": _finite(load.end_s),
        "ramp_end_s": None, "drain_start_s": None, "steady_s": 0.0,
    }
    if not done:
        return phase
    n_first = min(load.running_req, len(done))
    phase["ramp_end_s"] = max(r.first_token_s for r in done[:n_first])
    finishes = sorted(r.finish_s for r in done)
    phase["drain_start_s"] = finishes[len(finishes) - n_first]
    changes: list[tuple[float, int, int]] = []
    for r in done:
        changes += [(r.arrival_s, 0, 1), (r.first_token_s, 1, -1), (r.finish_s, -1, 0)]
    changes.sort()
    decoding = waiting = 0
    last_s = changes[0][0]
    for at_s, d_decoding, d_waiting in changes:
        if decoding == load.running_req and waiting == 0:
            phase["steady_s"] += at_s - last_s
        decoding += d_decoding
        waiting += d_waiting
        last_s = at_s
    return phase


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
