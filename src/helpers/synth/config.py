"""What is simulated: a server, and the client that loads it.

A run is described by one JSON or YAML mapping:
``Server.from_mapping({"law": {"intercept_s": 0.05, "slope_s_per_req": 0.03}})``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from helpers.synth.parts import ConfigError, Described, Lengths, Noise, Speculation, StepLaw, need

__all__ = ["Client", "ConfigError", "Lengths", "Noise", "Server", "Speculation", "StepLaw"]

CAPTURED_SIZES = (1, 2, 4, *range(8, 129, 8), *range(144, 257, 16))
"""Batch sizes captured by default: 1, 2, 4, every 8 to 128, every 16 to 256, as servers commonly do."""


VERSIONS = {"sglang": ("0.3.6", "0.5.23"), "vllm": ("0.6", "0.33")}
"""Engine -> oldest and newest version whose line layout is known."""

NEWEST = {"sglang": "0.5.23", "vllm": "0.33.0"}
"""Engine -> version to write where none is asked for and that of the preset belongs to the other engine."""

ITERATION_LINES_SINCE = (0, 14)
"""Version of vLLM that first prints a line per engine step."""

MAX_LEVEL_REQ = 16_384
"""Largest concurrency that is simulated [req]: an estimate of it takes seconds, one of a million takes minutes."""


def _as_numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def _is_known_version(engine: str, version: str) -> bool:
    """Tell whether a text is a version, and one whose layout is known."""
    parts = str(version).split(".")
    if not 2 <= len(parts) <= 4 or not all(part.isascii() and part.isdigit() and len(part) <= 4 for part in parts):
        return False
    oldest, newest = (_as_numbers(end) for end in VERSIONS[engine])
    numbers = _as_numbers(version)
    return oldest <= numbers and numbers[: len(newest)] <= newest


@dataclass(frozen=True)
class Server(Described):
    """A continuous-batching server as the log shows it. Times in s, counts in tok and req.

    Attributes
    ----------
    engine, version : str
        sglang (0.3.6 to 0.5.23) or vllm (0.6 to 0.33); the version decides the layout and meaning of every line.
    law : StepLaw
        True step over running requests (round time under speculation).
    model : str
        Name printed in the start-up lines.
    tp_size, dp_size, pp_size, ep_size : int
        Parallel layout. dp_size > 1 means ranks in lockstep (DP attention): the step follows the largest rank and a
        prefill of one rank stalls all. pp_size > 1 means micro-batches: law(N) is the time in which all N running
        requests gain one token, each launch takes its share of it.
    decode_log_interval : int
        Decode forwards per line (SGLang).
    stat_interval_s : float
        Period of the statistics line (vLLM) [s].
    has_ms_stamps : bool
        Milliseconds in SGLang's stamps (0.5.6 and newer).
    max_running_req : int
        Cap on running requests of one rank [req].
    kv_pool_tok, page_size : int
        KV pool of one rank and its allocation unit [tok]; page_size 0 = 1 for SGLang, 16 for vLLM.
    kv_reserve_frac : float
        Share of a request's remaining output for which a free slot is demanded at admission [1].
    chunked_prefill_tok : int
        Prompt tokens computed in one forward at most (vLLM: all tokens of a step) [tok].
    prefill_fixed_s, prefill_s_per_tok : float
        Cost of a prefill forward [s, s/tok].
    prefill_overlap_frac : float
        Share of that cost hidden behind decode, 0..1.
    prefill_launch_frac : float
        Share of a prefill's time for which the host holds back the result of the decode step before it (overlap
        schedule only): that decode line is late by so much although no prefill line precedes it.
    overlap_schedule : bool
        SGLang launches the next step before it reads the last one: one overshoot step per finished request, counts one
        forward late, KV of the next forward already allocated when a line is written. Not with speculation, PP, vLLM.
    prefix_cache : bool
        Identical prompts are served from the cache.
    identical_step_factor : float
        Factor on the step while all running requests have the same prompt (same experts).
    cuda_graph : bool
        Decode replays captured graphs up to the largest captured size.
    captured_batch_sizes : tuple of int
        Captured sizes [req].
    pad_to_captured : bool
        The step is that of the next captured size (a staircase).
    eager_factor : float
        Factor on the step beyond the largest captured size or without graphs.
    speculation : Speculation or None
        Draft-and-verify decoding.
    noise : Noise
        Noise of the step time.
    level_deviation_frac : float
        Standard deviation of a fixed random factor per batch size: lack of fit of the law [1].
    level_factors : mapping
        Batch size -> factor, instead of the random one.
    neighbour_bursts : tuple
        (start_s, duration_s, factor) triples after the first line of the log: everything is slower by factor.
    dp_router : str
        round_robin, or shortest (fewest requests first).
    dp_weights : tuple of float
        Share of the requests of each rank, instead of dp_router.
    micro_batch_skew_req : int
        How many requests more than its share the first micro-batch takes, at most a quarter of the share [req].
    context_length_tok : int
        Longest context the server accepts [tok].
    weight_bytes : float
        Weights loaded per GPU, for the start-up lines [bytes].
    startup_s : float
        From the first line to ready [s].
    access_lines : bool
        Print an HTTP access line per request.
    iteration_lines : bool
        Print a line per engine step, as --enable-logging-iteration-details does (vLLM 0.14 and newer).
    extra_args : mapping
        Further arguments of the argument dump, name -> value.
    out_of_memory_at_req : int
        The server dies with an out-of-memory error when a decode batch reaches this size; 0 = never [req].
    out_of_memory_bytes : float
        Allocation that fails [bytes].
    start : str
        Stamp of the first line, ``YYYY-MM-DD HH:MM:SS``.
    """

    engine: str = "sglang"
    version: str = "0.5.23"
    law: StepLaw = field(default_factory=StepLaw)
    model: str = "synthetic-dense"
    tp_size: int = 1
    dp_size: int = 1
    pp_size: int = 1
    ep_size: int = 1
    decode_log_interval: int = 40
    stat_interval_s: float = 10.0
    has_ms_stamps: bool = False
    max_running_req: int = 256
    kv_pool_tok: int = 1_000_000
    page_size: int = 0
    kv_reserve_frac: float = 0.2
    chunked_prefill_tok: int = 8192
    prefill_fixed_s: float = 0.010
    prefill_s_per_tok: float = 2e-5
    prefill_overlap_frac: float = 0.0
    prefill_launch_frac: float = 1.0
    overlap_schedule: bool = True
    prefix_cache: bool = True
    identical_step_factor: float = 1.0
    cuda_graph: bool = True
    captured_batch_sizes: tuple[int, ...] = CAPTURED_SIZES
    pad_to_captured: bool = False
    eager_factor: float = 1.0
    speculation: Speculation | None = None
    noise: Noise = field(default_factory=Noise)
    level_deviation_frac: float = 0.0
    level_factors: Mapping[int, float] = field(default_factory=dict)
    neighbour_bursts: tuple[tuple[float, float, float], ...] = ()
    dp_router: str = "round_robin"
    dp_weights: tuple[float, ...] = ()
    micro_batch_skew_req: int = 0
    context_length_tok: int = 32768
    weight_bytes: float = 16e9
    startup_s: float = 60.0
    access_lines: bool = False
    iteration_lines: bool = False
    extra_args: Mapping[str, Any] = field(default_factory=dict)
    out_of_memory_at_req: int = 0
    out_of_memory_bytes: float = 4.2e9
    start: str = "2026-11-02 09:00:00"

    def __post_init__(self) -> None:
        """Refuse what cannot be simulated, with the field's name."""
        need(self.engine in ("sglang", "vllm"), f"Server.engine: expected sglang or vllm, found {self.engine!r}")
        need(_is_known_version(self.engine, self.version),
             f"Server.version: expected {' to '.join(VERSIONS[self.engine])} for {self.engine}, found {self.version!r}")
        for name in ("tp_size", "dp_size", "pp_size", "ep_size", "decode_log_interval", "max_running_req",
                     "kv_pool_tok", "chunked_prefill_tok"):
            need(getattr(self, name) >= 1, f"Server.{name}: expected 1 or more, found {getattr(self, name)}")
        for name in ("prefill_fixed_s", "prefill_s_per_tok", "startup_s", "level_deviation_frac", "page_size"):
            need(getattr(self, name) >= 0, f"Server.{name}: expected 0 or more, found {getattr(self, name)}")
        need(self.stat_interval_s > 0, "Server.stat_interval_s: expected more than 0")
        for name in ("prefill_overlap_frac", "prefill_launch_frac", "kv_reserve_frac"):
            need(0 <= getattr(self, name) <= 1, f"Server.{name}: expected 0..1, found {getattr(self, name)}")
        need(self.dp_size == 1 or self.pp_size == 1, "Server: expected dp_size or pp_size of 1, found both above")
        need(self.pp_size == 1 or (self.engine == "sglang" and self.speculation is None),
              "Server.pp_size: micro-batches are simulated for sglang without speculation only")
        need(not self.iteration_lines or (self.engine == "vllm" and self.version_tuple >= ITERATION_LINES_SINCE),
             f"Server.iteration_lines: vllm 0.14 and newer print them, found {self.engine} {self.version}")
        need(len(self.dp_weights) in (0, self.dp_size), "Server.dp_weights: expected one weight per rank")
        need(self.dp_router in ("round_robin", "shortest"),
              f"Server.dp_router: expected round_robin or shortest, found {self.dp_router!r}")
        need(not self.cuda_graph or len(self.captured_batch_sizes) > 0,
              "Server.captured_batch_sizes: expected at least one size with cuda_graph")

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as a JSON-safe mapping; a field added later is left out at its default.

        So the truth of a simulation that does not use it stays what it was.
        """
        found = super().as_dict()
        return {name: value for name, value in found.items() if name != "iteration_lines" or value}

    @property
    def version_tuple(self) -> tuple[int, ...]:
        """The version as numbers, for comparison."""
        return _as_numbers(self.version)

    @property
    def is_mixing(self) -> bool:
        """Prefill is mixed into decode steps (vLLM V1, 0.8 and newer) instead of running in between."""
        return self.engine == "vllm" and self.version_tuple >= (0, 8)

    @property
    def is_overlapped(self) -> bool:
        """The next forward is launched before the last one is read."""
        return (self.overlap_schedule and self.engine == "sglang" and self.pp_size == 1
                and self.speculation is None)

    @property
    def page_tok(self) -> int:
        """Allocation unit of the KV pool [tok]."""
        return self.page_size or (16 if self.engine == "vllm" else 1)


@dataclass(frozen=True)
class Client(Described):
    """A closed-loop client: at each level it keeps a fixed number of requests in flight until its prompts are used up.

    Attributes
    ----------
    levels_req : tuple of int
        Concurrency, one level after the other, at most 16384 each [req].
    n_prompts : tuple of int
        Prompts per level; empty = prompts_per_req times the concurrency.
    prompts_per_req : float
        Waves of prompts per level where n_prompts is empty [1].
    prompt, output : Lengths
        Lengths of prompts and outputs [tok].
    lead_s, gap_s, tail_s : float
        Idle time before the first level, between levels, and before the server is stopped [s].
    reply_delay_s : float
        From a finished answer to the arrival of the next request [s].
    stagger_s : float
        Between requests that are sent together [s].
    identical_prompts : bool
        All prompts are the same text.
    warmup_req, warmup_prompts : int
        Concurrency and number of warm-up requests before the levels; 0 = none.
    warmup_identical : bool
        The warm-up repeats one prompt.
    warmup_output_tok : int
        Output length of warm-up requests; 0 = as in the levels [tok].
    restart_before : tuple of int
        Indices of levels before which the server is stopped and started again.
    """

    levels_req: tuple[int, ...] = (1, 4, 16, 64)
    n_prompts: tuple[int, ...] = ()
    prompts_per_req: float = 3.0
    prompt: Lengths = field(default_factory=lambda: Lengths(mean_tok=256))
    output: Lengths = field(default_factory=lambda: Lengths(mean_tok=512))
    lead_s: float = 10.0
    gap_s: float = 5.0
    tail_s: float = 15.0
    reply_delay_s: float = 0.002
    stagger_s: float = 0.0005
    identical_prompts: bool = False
    warmup_req: int = 0
    warmup_prompts: int = 0
    warmup_identical: bool = True
    warmup_output_tok: int = 0
    restart_before: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Refuse a load that cannot be played."""
        need(len(self.levels_req) > 0 and min(self.levels_req) >= 1,
              f"Client.levels_req: expected levels of 1 or more, found {self.levels_req}")
        need(max(self.levels_req) <= MAX_LEVEL_REQ,
             f"Client.levels_req: expected levels of at most {MAX_LEVEL_REQ}, found {max(self.levels_req)}")
        need(len(self.n_prompts) in (0, len(self.levels_req)), "Client.n_prompts: expected one number per level")
        need(not self.n_prompts or min(self.n_prompts) >= 1, "Client.n_prompts: expected 1 or more")
        for name in ("lead_s", "gap_s", "tail_s", "reply_delay_s", "stagger_s", "warmup_req", "warmup_prompts"):
            need(getattr(self, name) >= 0, f"Client.{name}: expected 0 or more, found {getattr(self, name)}")
        need((self.warmup_req > 0) == (self.warmup_prompts > 0),
              "Client: expected warmup_req and warmup_prompts both 0 or both above")
        need(all(0 < i < len(self.levels_req) for i in self.restart_before),
              "Client.restart_before: expected indices of levels after the first")
