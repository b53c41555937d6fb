"""The record of a simulation: every forward, every event."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from helpers.synth.client import ClosedLoop
from helpers.synth.config import Server

DECODE, PREFILL, MIXED = 0, 1, 2
"""Kinds of forward. MIXED: decode with prompt tokens in the same step (vLLM)."""


@dataclass(slots=True, eq=False)
class Forward:
    """What one rank (or micro-batch) did in one forward. Times in s since the first line of the log."""

    start_s: float
    end_s: float
    print_s: float  # when the host has read the result
    formed_s: float  # when the batch was put together
    life: int
    group: int
    kind: int
    batch_req: int  # decode requests in the batch, overshoot included
    generated_tok: int  # all tokens made, first tokens included
    decoded_tok: int  # tokens made by decode, overshoot included
    used_tok: int  # KV held when the result is read
    queue_req: int
    running_req: int  # after this forward, partial prefills included
    decoding_req: int  # before this forward
    new_seq: int
    new_tok: int
    cached_tok: int
    pending_tok: int
    credited_tok: int  # prompts that were completed
    credited_cached_tok: int
    graph: bool
    step_req: int  # what set the step: largest rank, or micro-batch times stages
    total_req: int  # of the whole server
    expected_s: float  # noise-free decode step
    launch_share: float  # part of the step that this launch took: below 1 with micro-batches
    is_pure: bool  # nothing but decode on every rank, no burst
    context_tok: int
    is_identical: bool
    is_ready: bool
    accepted: tuple[int, ...]  # how many requests accepted 1, 2, .. tokens


@dataclass
class Trace:
    """All that happened: forwards in order, events, the client's loads."""

    server: Server
    loop: ClosedLoop
    forwards: list[Forward] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    end_s: float = 0.0
