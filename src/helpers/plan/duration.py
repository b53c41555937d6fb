"""How long a load takes, from the law of the step."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from helpers.plan.known import ASSUMED_STEP_S


@dataclass(frozen=True)
class Load:
    """Requests sent by one client run that keeps a fixed number in flight.

    Attributes
    ----------
    running_req : int
        Requests kept in flight [req].
    prompt_tok, output_tok : int
        Of each request [tok].
    n_prompts : int
        Requests in all.
    phase : int
        1, or 2 for what runs after the setting of the device was changed or with another shape of request: its part
        of the log is kept apart, because two populations at one level are not one level.
    """

    running_req: int
    prompt_tok: int
    output_tok: int
    n_prompts: int
    phase: int = 1


@dataclass(frozen=True)
class Duration:
    """Seconds of a sweep and what they rest on.

    Attributes
    ----------
    total_s : float
        All loads [s].
    by_load_s : tuple of float
        Of each load [s].
    assumptions : tuple of str
        What was not known.
    """

    total_s: float
    by_load_s: tuple[float, ...]
    assumptions: tuple[str, ...]


def sweep_duration(
    loads: Sequence[Load],
    step_s: Callable[[float], float | None],
    *,
    accept_len: float | None = None,
    prefill_tok_per_s: float | None = None,
) -> Duration:
    """Predict how long a sweep takes.

    Each load is waves of ``running_req`` requests: time = waves x output tokens x step(N) / accept_len, plus prompts at
    the rate of prefill. The last wave holds what is left and runs at its own, shorter step.

    Parameters
    ----------
    loads : sequence of Load
        In any order.
    step_s : callable
        Running requests [req] -> step or round [s]; None where unknown.
    accept_len : float, optional
        Tokens per request and round under speculation [tok]; 1 without.
    prefill_tok_per_s : float, optional
        Prompt tokens computed per second, all requests together [tok/s]; unknown: prompts take no time, and that is
        said.

    Returns
    -------
    Duration

    Examples
    --------
    Field case A (52 + 30 N ms): 128 prompts at 64 in flight, 128 tokens each.

    >>> round(sweep_duration([Load(64, 256, 128, 128)], lambda n: 0.052 + 0.030 * n).total_s)
    505
    """
    notes: dict[str, None] = {}
    times = []
    per_round_tok = accept_len if accept_len is not None and accept_len >= 1 else 1.0

    def decode_s(running_req: int, output_tok: int) -> float:
        known_s = step_s(running_req)
        if known_s is None or not math.isfinite(known_s) or known_s <= 0:
            notes[f"no step was measured: {1e3 * ASSUMED_STEP_S:.0f} ms at every level"] = None
            known_s = ASSUMED_STEP_S
        return output_tok * known_s / per_round_tok

    for load in loads:
        waves, rest = divmod(load.n_prompts, load.running_req)
        time_s = waves * decode_s(load.running_req, load.output_tok)
        time_s += decode_s(rest, load.output_tok) if rest else 0.0
        if prefill_tok_per_s is not None and prefill_tok_per_s > 0:
            time_s += load.n_prompts * load.prompt_tok / prefill_tok_per_s
        else:
            notes["the rate of prefill is not known: prompts are not counted in the duration"] = None
        times.append(time_s)
    return Duration(float(sum(times)), tuple(times), tuple(notes))
