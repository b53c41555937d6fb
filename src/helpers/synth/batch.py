"""The requests of one rank or micro-batch: queue, running set and KV pool; who comes in, finishes, is thrown out."""

from __future__ import annotations

from collections import deque

from helpers.synth.client import Request
from helpers.synth.config import ConfigError, Server

RETRACT_AHEAD_STEPS = 20
"""Retraction frees room for this many further steps, as SGLang's retract_decode_steps."""


class Pool:
    """KV slots shared by the micro-batches of one rank [tok]."""

    __slots__ = ("size_tok", "page_tok", "used_tok", "n_identical", "prefix_tok")

    def __init__(self, size_tok: int, page_tok: int) -> None:
        self.size_tok = size_tok
        self.page_tok = page_tok
        self.used_tok = 0
        self.n_identical = 0
        self.prefix_tok = 0

    def pages_tok(self, held_tok: int) -> int:
        """Round up to whole pages [tok]."""
        return -(-held_tok // self.page_tok) * self.page_tok


class Group:
    """Requests that decode in one batch: a DP rank, or a PP micro-batch.

    Finishing costs nothing per step: a request's last step is known when it joins, so that a step is a dictionary
    look-up. Pages are counted the same way, by the step (modulo the page) at which a request opens a new one.
    """

    __slots__ = ("index", "server", "pool", "waiting", "running", "partial", "n_overshoot", "n_steps", "context_tok",
                 "left_tok", "finish_at", "opens_page", "is_identical")

    def __init__(self, index: int, server: Server, pool: Pool, waiting: deque[Request]) -> None:
        self.index = index
        self.server = server
        self.pool = pool
        self.waiting = waiting
        self.running: dict[int, Request] = {}
        self.partial: Request | None = None
        self.n_overshoot = 0
        self.n_steps = 0
        self.context_tok = 0
        self.left_tok = 0
        self.finish_at: dict[int, list[Request]] = {}
        self.opens_page = [0] * pool.page_tok
        self.is_identical = False  # of the requests now running; loads never overlap

    def admit(self, limit_req: int) -> list[tuple[Request, int, int]]:
        """Take prompts for one forward: (request, tokens computed, tokens found in the cache).

        limit_req is the most requests this batch may hold.
        """
        server, pool = self.server, self.pool
        budget_tok = server.chunked_prefill_tok - (len(self.running) if server.is_mixing else 0)
        batch: list[tuple[Request, int, int]] = []
        if self.partial is not None and budget_tok > 0:
            request = self.partial
            taken_tok = min(budget_tok, request.to_compute_tok - request.computed_tok)
            self._compute(request, taken_tok)
            batch.append((request, taken_tok, 0))
            budget_tok -= taken_tok
        slots_req = limit_req - len(self.running) - self.n_overshoot - (self.partial is not None) - len(batch)
        while self.waiting and budget_tok > 0 and slots_req > 0 and self.partial is None:
            request = self.waiting[0]
            cached_tok = self._look_up(request)
            left_tok = request.output_tok - request.generated_tok
            needed_tok = pool.pages_tok(request.own_tok) + pool.page_tok
            reserve_tok = server.kv_reserve_frac * (left_tok + self.left_tok)
            if pool.used_tok + needed_tok + reserve_tok > pool.size_tok and (self.running or batch):
                break
            if pool.used_tok + needed_tok > pool.size_tok:
                if pool.used_tok == 0:
                    raise ConfigError(f"Server.kv_pool_tok: a prompt of {needed_tok} tok does not fit {pool.size_tok}")
                break
            self.waiting.popleft()
            if request.is_identical and server.prefix_cache:
                pool.n_identical += 1
                if pool.n_identical == 1:
                    pool.used_tok += pool.pages_tok(pool.prefix_tok)
            taken_tok = min(budget_tok, request.to_compute_tok)
            self._compute(request, taken_tok)
            batch.append((request, taken_tok, cached_tok))
            budget_tok -= taken_tok
            slots_req -= 1
        return batch

    def _look_up(self, request: Request) -> int:
        """Set what the request must compute and hold; return the tokens found in the cache."""
        total_tok = request.prompt_tok + request.generated_tok
        cached_tok = 0
        request.own_tok = total_tok
        request.computed_tok = 0
        if request.is_identical and self.server.prefix_cache:
            page_tok = self.pool.page_tok
            prefix_tok = (request.prompt_tok - 1) // page_tok * page_tok  # the last token is always computed
            cached_tok = prefix_tok if self.pool.prefix_tok == prefix_tok else 0
            self.pool.prefix_tok = prefix_tok
            request.own_tok = total_tok - prefix_tok
        request.to_compute_tok = total_tok - cached_tok
        return cached_tok

    def _compute(self, request: Request, taken_tok: int) -> None:
        """Compute part of a prompt: allocate its pages, remember the rest."""
        pool = self.pool
        shared_tok = request.to_compute_tok - request.own_tok  # computed by this request, held for all
        before = pool.pages_tok(max(0, request.computed_tok - shared_tok))
        request.computed_tok += taken_tok
        pool.used_tok += pool.pages_tok(max(0, request.computed_tok - shared_tok)) - before
        self.partial = request if request.computed_tok < request.to_compute_tok else None

    def join(self, request: Request) -> bool:
        """Let a request whose prompt is complete decode; return True if its first token was its last."""
        left_tok = request.output_tok - request.generated_tok - 1
        request.start_step = self.n_steps
        if left_tok == 0:
            self._release(request, request.own_tok)
            return True
        request.left_tok = left_tok
        request.group = self.index
        self.is_identical = request.is_identical
        self.running[request.number] = request
        self.context_tok += request.prompt_tok + request.generated_tok
        self.left_tok += left_tok
        if self.server.speculation is None:
            request.finish_step = self.n_steps + left_tok
            self.finish_at.setdefault(request.finish_step, []).append(request)
            self.opens_page[(self.n_steps - request.own_tok) % self.pool.page_tok] += 1
        return False

    def next_pages_tok(self) -> int:
        """KV that the next decode step must allocate [tok]."""
        if self.server.speculation is not None:
            return self.pool.pages_tok(self.server.speculation.num_draft_tokens) * len(self.running)
        return self.opens_page[self.n_steps % self.pool.page_tok] * self.pool.page_tok

    def retract(self) -> tuple[list[Request], int]:
        """Throw out the youngest requests until decode fits again; return them and the KV gained [tok]."""
        pool = self.pool
        before_tok = pool.used_tok
        thrown: list[Request] = []
        while len(self.running) > 1:
            if pool.used_tok + self.next_pages_tok() <= pool.size_tok and thrown:
                if pool.size_tok - pool.used_tok >= RETRACT_AHEAD_STEPS * len(self.running):
                    break
            _, request = self.running.popitem()
            done_tok = self._done_tok(request)
            self._leave(request, done_tok)
            self.left_tok -= request.output_tok - request.generated_tok - 1 - done_tok
            request.generated_tok += done_tok + 1
            request.finish_step = -1
            self.waiting.appendleft(request)
            thrown.append(request)
        if pool.used_tok + self.next_pages_tok() > pool.size_tok:
            raise ConfigError(f"Server.kv_pool_tok: one request does not fit {pool.size_tok} tok")
        return thrown, before_tok - pool.used_tok

    def decode(self) -> list[Request]:
        """Advance one step without speculation; return the requests that finished and release their KV."""
        n = len(self.running)
        self.pool.used_tok += self.opens_page[self.n_steps % self.pool.page_tok] * self.pool.page_tok
        self.n_steps += 1
        self.context_tok += n
        self.left_tok -= n
        due = self.finish_at.pop(self.n_steps, None)
        if due is None:
            return []
        # A request thrown out and taken back can be due twice at the same step.
        finished = [r for r in dict.fromkeys(due) if r.finish_step == self.n_steps and r.number in self.running]
        for request in finished:
            del self.running[request.number]
            self._leave(request, self.n_steps - request.start_step)
        return finished

    def accept(self, accepted_tok: list[int]) -> list[Request]:
        """Advance one speculative round by accepted_tok per request, in running order; return the finished."""
        pool = self.pool
        self.n_steps += 1
        finished = []
        for request, tokens in zip(self.running.values(), accepted_tok, strict=True):
            tokens = min(tokens, request.left_tok)
            before = pool.pages_tok(request.own_tok + self._done_tok(request))
            request.left_tok -= tokens
            self.context_tok += tokens
            self.left_tok -= tokens
            pool.used_tok += pool.pages_tok(request.own_tok + self._done_tok(request)) - before
            if request.left_tok == 0:
                finished.append(request)
        for request in finished:
            del self.running[request.number]
            self._leave(request, self._done_tok(request))
        return finished

    def _done_tok(self, request: Request) -> int:
        """Tokens decoded since the request joined."""
        if self.server.speculation is None:
            return self.n_steps - request.start_step
        return request.output_tok - request.generated_tok - 1 - request.left_tok

    def _leave(self, request: Request, done_tok: int) -> None:
        self.context_tok -= request.prompt_tok + request.generated_tok + done_tok
        if self.server.speculation is None:
            self.opens_page[(request.start_step - request.own_tok) % self.pool.page_tok] -= 1
        self._release(request, request.own_tok + done_tok)

    def _release(self, request: Request, held_tok: int) -> None:
        pool = self.pool
        pool.used_tok -= pool.pages_tok(held_tok)
        if request.is_identical and self.server.prefix_cache:
            pool.n_identical -= 1
            if pool.n_identical == 0:
                pool.used_tok -= pool.pages_tok(pool.prefix_tok)
