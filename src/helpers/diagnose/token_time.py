"""A client's times per token and to first token, taken apart by what the log says happened meanwhile."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from helpers.diagnose.windows import COUNTS, known_steps, number, spent_time, step_at, step_half_width, window_of

STEPS_TO_JOIN = 2
"""Steps that a request may wait through besides prompts: the one under way when it comes, and with an overlapping
scheduler the one after its prompt, before its first token is sent."""


@dataclass(frozen=True)
class TokenTime:
    """A client's time per output token, taken apart.

    Attributes
    ----------
    tpot_s : float
        Of the client [s].
    statistic : str
        "mean", or "median" where only that is given.
    running_req : float
        Count of the load [req].
    step_s : float
        Step time of that count over tokens per request and round [s].
    prefill_s, requeued_s, other_counts_s, pauses_s : float
        Added by prompts computed between steps; by waiting again after a retraction (more waiting than first tokens
        waited for); by steps at other counts (ramp, drain); by steady intervals above or below their level [s].
    rest_s, rest_lo_s, rest_hi_s : float
        What nothing in the log explains, with what is uncertain about step and prefill [s].
    prefill_share_frac : float
        Share of the load's busy time that went to prompts instead of steps [1].
    refused : str or None
        Why nothing can be told; the numbers are NaN then.
    notes : tuple of str
    """

    tpot_s: float
    statistic: str
    running_req: float = math.nan
    step_s: float = math.nan
    prefill_s: float = math.nan
    requeued_s: float = math.nan
    other_counts_s: float = math.nan
    pauses_s: float = math.nan
    rest_s: float = math.nan
    rest_lo_s: float = math.nan
    rest_hi_s: float = math.nan
    prefill_share_frac: float = math.nan
    refused: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def is_explained(self) -> bool:
        """The interval of the rest holds 0."""
        return self.rest_lo_s <= 0 <= self.rest_hi_s

    def to_frame(self) -> pd.DataFrame:
        """Return part, time_s, lo_s, hi_s; time_s adds up to the client's time per token."""
        parts = {
            "step over tokens per round": self.step_s, "prompts between steps": self.prefill_s,
            "waiting after retraction": self.requeued_s, "steps at other counts": self.other_counts_s,
            "pauses in steady intervals": self.pauses_s, "rest": self.rest_s,
        }
        frame = pd.DataFrame({"part": list(parts), "time_s": list(parts.values()), "lo_s": np.nan, "hi_s": np.nan})
        frame.loc[frame["part"].eq("rest"), ["lo_s", "hi_s"]] = [self.rest_lo_s, self.rest_hi_s]
        return frame


@dataclass(frozen=True)
class FirstTokenTime:
    """A client's time to first token against queue and prefill of the log.

    Attributes
    ----------
    ttft_s : float
        Of the client [s].
    statistic : str
        "mean", or "median" where only that is given.
    queue_s : float
        Waiting requests over finished requests per second (Little's law) [s].
    prefill_s : float
        Time for prompts per request, if each is computed by itself [s].
    lo_s, hi_s : float
        Queue and one prompt; all requests in flight waiting through every prompt, and two steps [s].
    refused : str or None
    """

    ttft_s: float
    statistic: str
    queue_s: float = math.nan
    prefill_s: float = math.nan
    lo_s: float = math.nan
    hi_s: float = math.nan
    refused: str | None = None

    @property
    def rest_s(self) -> float:
        """How far outside [lo_s, hi_s] the client is [s]; 0 inside."""
        return self.ttft_s - min(max(self.ttft_s, self.lo_s), self.hi_s)

    def to_frame(self) -> pd.DataFrame:
        """Return part, time_s of client, queue, prefill and the bounds."""
        rows = {"client": self.ttft_s, "queue": self.queue_s, "own prompt": self.prefill_s,
                "least": self.lo_s, "most": self.hi_s, "outside": self.rest_s}
        return pd.DataFrame({"part": list(rows), "time_s": list(rows.values())})


def tpot_against_step(
    intervals: pd.DataFrame, client: Mapping[str, Any], levels: pd.DataFrame, *, start_s: float
) -> TokenTime:
    """Explain a client's time per output token by the log's step time and what came between the steps.

    Parameters
    ----------
    intervals, levels : DataFrame, schema INTERVALS, LEVELS
    client : mapping
        One row of CLIENTS: duration_s, n_completed, output_tok, tpot (or e2e and ttft), concurrency_req where known.
    start_s : float
        First request on the log's clock (t_s) [s].

    Returns
    -------
    TokenTime
        Parts that add up to the client's number, the last one the rest.

    Raises
    ------
    NotEnoughData
        The client has no duration, its start is unknown, or the log has no stamps.

    Notes
    -----
    Requests in flight while prompts are computed either wait for their first token or for their next one. All of them
    together wait (in flight) x (time for prompts); what the client counts as time to first token, less the queue
    while steps ran, is the first kind; the remainder is what prompts add to the time per token.
    """
    window = window_of(intervals, number(client, "duration_s"), start_s)
    tpot_s, statistic, notes = _tpot(client)
    steps = known_steps(levels)
    n, output_tok = number(client, "n_completed"), number(client, "output_tok")
    refused = None if tpot_s > 0 else "the client file has no time per output token"
    refused = refused or (None if len(steps) else "no level of the log has a step time")
    refused = refused or (None if n > 0 and output_tok > n else "the client file has no tokens or answers")
    if refused:
        return TokenTime(tpot_s, statistic, refused=refused, notes=tuple(notes))
    concurrency = number(client, "concurrency_req")
    running_req = _load_req(window, concurrency, steps)
    accept = _accept_len(window)
    ref_s = float(step_at(running_req, steps)) / accept
    ttft_s = _first_known(client, "ttft")[0]
    if not ttft_s > 0:
        notes.append("no time to first token: half of the requests are taken to wait through a prompt")
    every = [_parts(spent_time(window, steps, concurrency, counts=counts), ref_s, n * ttft_s, output_tok - n)
             for counts in COUNTS]
    first = every[0]
    rest_s = tpot_s - ref_s - first.known_s
    # Doubt: the step (its interval), the counts between lines, who waited through prompts, tokens no interval shows.
    unseen_frac = abs(1 - float(window["tok"].sum()) / output_tok)
    half_s = float(step_half_width(running_req, steps)) / accept + unseen_frac * ref_s
    lo = min(tpot_s - ref_s - part.known_s - (part.most_s - part.prefill_s) for part in every) - half_s
    hi = max(tpot_s - ref_s - part.known_s + (part.prefill_s - part.least_s) for part in every) + half_s
    return TokenTime(tpot_s, statistic, running_req, ref_s, first.prefill_s, first.requeued_s, first.others_s,
                     first.pauses_s, rest_s, lo, hi, first.share_frac, notes=tuple(notes))


@dataclass(frozen=True)
class _Parts:
    """What adds to the step, per token [s]; least and most for prompts; share of busy time for prompts [1]."""

    prefill_s: float = 0.0
    requeued_s: float = 0.0
    others_s: float = 0.0
    pauses_s: float = 0.0
    least_s: float = 0.0
    most_s: float = 0.0
    share_frac: float = math.nan

    @property
    def known_s(self) -> float:
        """All of it together."""
        return self.prefill_s + self.requeued_s + self.others_s + self.pauses_s


def _parts(spent: pd.DataFrame, ref_s: float, waited_s: float, decode_tok: float) -> _Parts:
    """Split what is above the steps; ``waited_s``: all times to first token together [s], NaN where unknown.

    Least for prompts: nobody who had a first token waited through one. Most: all who ran did, in drains too.
    """
    tok, busy_s = float(spent["tok"].sum()), float(spent["busy_s"].sum())
    if not tok > 0:
        return _Parts()
    others_s = float((spent["tok"] * (spent["ref_s"] - ref_s)).sum()) / tok
    ran_s = spent["mean_req"] * spent["over_s"]
    pauses_s = float(ran_s[spent["part"].eq("steady")].sum()) / tok
    at_prompts = spent["part"].eq("prompts")
    doubt_s = float((spent["mean_req"] * spent["over_doubt_s"])[at_prompts].pow(2).sum()) ** 0.5
    running_s = max(float(ran_s[at_prompts].sum()), 0.0)
    drained_s = max(float(ran_s[spent["part"].eq("drain")].sum()), 0.0)
    stalled_s, requeued_s = running_s / 2, 0.0
    over_s = spent["over_s"].where(at_prompts, 0.0)
    if waited_s > 0:
        queued_s = float((spent["queue"] * (spent["busy_s"] - over_s)).sum())
        flight_s = float((spent["flight_req"] * over_s).sum())
        stalled_s = min(max(flight_s - max(waited_s - queued_s, 0.0), 0.0), running_s)
        requeued_s = max(queued_s - waited_s, 0.0)  # waiting that no first token waited for: put back, to run again
    share = max(float(over_s.sum()), 0.0) / busy_s if busy_s > 0 else math.nan
    return _Parts(stalled_s / decode_tok, requeued_s / decode_tok, others_s, pauses_s, -doubt_s / decode_tok,
                  (running_s + drained_s + doubt_s) / decode_tok, share)


def ttft_against_queue(
    intervals: pd.DataFrame, client: Mapping[str, Any], levels: pd.DataFrame, *, start_s: float
) -> FirstTokenTime:
    """Hold a client's time to first token against the queue and the prompts of the log.

    Parameters, errors
        As `tpot_against_step`.

    Returns
    -------
    FirstTokenTime
        Bounds: a request waits at least its queue and its own prompt, at most through all prompts with all others.
    """
    window = window_of(intervals, number(client, "duration_s"), start_s)
    ttft_s, statistic = _first_known(client, "ttft")
    steps, n = known_steps(levels), number(client, "n_completed")
    refused = None if ttft_s > 0 else "the client file has no time to first token"
    refused = refused or (None if len(steps) else "no level of the log has a step time")
    refused = refused or (None if n > 0 else "the client file does not tell how many were answered")
    if refused:
        return FirstTokenTime(ttft_s, statistic, refused=refused)
    lo, hi = math.inf, 0.0
    queue_s = prefill_s = math.nan
    scheduling_s = STEPS_TO_JOIN * float(step_at(_load_req(window, number(client, "concurrency_req"), steps), steps))
    for counts in reversed(COUNTS):  # the plain numbers are those of the first
        spent = spent_time(window, steps, number(client, "concurrency_req"), counts=counts)
        at_prompts = spent["part"].eq("prompts")
        over_s = spent["over_s"].where(at_prompts, 0.0)
        doubt_s = float(spent.loc[at_prompts, "over_doubt_s"].pow(2).sum()) ** 0.5
        most_doubt_s = float((spent["flight_req"] * spent["over_doubt_s"])[at_prompts].pow(2).sum()) ** 0.5
        queue_s = float((spent["queue"] * spent["busy_s"]).sum()) / n
        prefill_s = max(float(over_s.sum()), 0.0) / n
        lo = min(lo, max(queue_s + prefill_s - doubt_s / n, 0.0))
        most_s = (spent["flight_req"] * over_s + spent["queue"] * (spent["busy_s"] - over_s)).sum() + most_doubt_s
        hi = max(hi, float(most_s) / n + scheduling_s, queue_s + prefill_s + scheduling_s)
    return FirstTokenTime(ttft_s, statistic, queue_s, prefill_s, lo, hi)


def _first_known(client: Mapping[str, Any], what: str) -> tuple[float, str]:
    for statistic in ("mean", "median"):
        value = number(client, f"{what}_{statistic}_s")
        if value > 0:
            return value, statistic
    return math.nan, "mean"


def _tpot(client: Mapping[str, Any]) -> tuple[float, str, list[str]]:
    """Return the time per output token; from latency and first token where the tool gives no such number."""
    tpot_s, statistic = _first_known(client, "tpot")
    if tpot_s > 0:
        notes = [] if statistic == "mean" else ["only the median of requests is given: means would add up"]
        return tpot_s, statistic, notes
    e2e_s, ttft_s = number(client, "e2e_mean_s"), number(client, "ttft_mean_s")
    n, output_tok = number(client, "n_completed"), number(client, "output_tok")
    if e2e_s > ttft_s > 0 and output_tok > n > 0:
        return (e2e_s - ttft_s) * n / (output_tok - n), "mean", ["from mean latency and time to first token"]
    return math.nan, "mean", []


def _load_req(window: pd.DataFrame, concurrency: float, steps: pd.DataFrame) -> float:
    """Return the step-setting count of the load: of clean intervals, else of most time, else what the client kept."""
    busy = window[window["running_req"].gt(0)]
    clean = busy[busy["clean"]]
    used = clean if len(clean) else busy
    if used.empty:
        return concurrency if concurrency > 0 else float(steps["running_req"].iloc[-1])
    at_load = used[used["running_req_total"].eq(concurrency)]
    if len(at_load):
        used = at_load
    by_req = used.groupby("running_req")["busy_s"].sum()
    return float(by_req.index.to_numpy(dtype=float)[by_req.to_numpy().argmax()])


def _accept_len(window: pd.DataFrame) -> float:
    """Return tokens per request and round, weighted by tokens; 1 without speculation."""
    known = window[window["accept_len"].notna() & window["tok"].gt(0)]
    return float(known["tok"].sum() / (known["tok"] / known["accept_len"]).sum()) if len(known) else 1.0
