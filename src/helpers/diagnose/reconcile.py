"""Log against client, and profile against log: where the time of a load went and whether two clocks tell one story.

A client's rate holds ramp, prompts and drain; its time per output token holds the pauses that other requests' prompts
make between steps; a profile holds a dozen steps. Each is put beside what the log says, and what is left is stated.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from helpers.diagnose.token_time import FirstTokenTime, TokenTime, tpot_against_step, ttft_against_queue
from helpers.diagnose.windows import (
    STAMP_SLACK_S,
    clip_to_window,
    covered_time,
    known_steps,
    number,
    step_at,
    step_half_width,
    window_of,
)
from helpers.schema import LABELS

__all__ = [
    "ClientTime", "FirstTokenTime", "Placement", "ProfileMatch", "TokenTime", "client_time", "place_client",
    "profile_against_log", "tpot_against_step", "ttft_against_queue",
]

SAME_STEP_FRAC = 0.10
"""A profile whose step differs by less represents the run [1]: shares of its time move by no more than that, and a
profiler alone slows a step by some percent."""

UNKNOWN_STEP_FRAC = 0.25
"""With intervals wider than this a ratio decides nothing [1]."""

NEAR_LEVEL_FRAC = 0.10
"""A level within this of the asked count stands for it [1]."""

MATCH_FRAC = 0.05
"""Tokens of a stretch of the log and of a client that agree within this are taken for the same load [1]."""


LIKE_FRAC = 0.25
"""A second load of the same count whose tokens come this close could be the run as well [1]."""


@dataclass(frozen=True)
class Placement:
    """Where on the log's clock a client run lies.

    Attributes
    ----------
    start_s, uncertainty_s : float
        First request, seconds on the log's clock, and how far off that may be [s]; NaN where it cannot be told.
    how : str
        What decided, or why nothing could.
    """

    start_s: float
    uncertainty_s: float
    how: str


@dataclass(frozen=True)
class ClientTime:
    """Where the client's duration went, by the log.

    Attributes
    ----------
    duration_s : float
        As the client counts: first request to last answer [s].
    seconds : dict
        Time per label of the intervals (warmup, ramp, steady, mixed, drain, idle) [s].
    not_covered_s : float
        Rest that no interval of the log covers [s]; with ``seconds`` it adds up to ``duration_s``.
    steady_tok_per_s : float
        Tokens over time of the clean intervals at the load's count [tok/s]; NaN without any.
    client_tok_per_s, log_tok_per_s : float
        Output tokens over the whole duration, by the client and by the log [tok/s].
    naive_tok_per_s : float
        Plain mean of the rates printed in the window [tok/s]: what a reader of the log would say.
    running_req : float
        The load's count that ``steady_tok_per_s`` belongs to [req].
    output_tok, log_output_tok : float
        Output tokens by the client and by the log in the window [tok].
    notes : tuple of str
    """

    duration_s: float
    seconds: dict[str, float]
    not_covered_s: float
    steady_tok_per_s: float
    client_tok_per_s: float
    log_tok_per_s: float
    naive_tok_per_s: float
    running_req: float
    output_tok: float
    log_output_tok: float
    notes: tuple[str, ...] = ()

    def to_frame(self) -> pd.DataFrame:
        """Return part, time_s, share_frac: one row per label and the rest; time_s adds up to the duration."""
        rows = {**self.seconds, "not covered": self.not_covered_s}
        return pd.DataFrame({"part": list(rows), "time_s": list(rows.values()),
                             "share_frac": [value / self.duration_s for value in rows.values()]})


@dataclass(frozen=True)
class ProfileMatch:
    """Whether a profile's steps are the run's.

    Attributes
    ----------
    verdict : str
        "represents", "differs by x %", or "cannot tell: why".
    ratio, ratio_lo, ratio_hi : float
        Step of the profile over step of the level [1].
    level_req, level_step_s : float
        The level (or the two around it, interpolated) it was compared with [req], [s].
    """

    verdict: str
    ratio: float = math.nan
    ratio_lo: float = math.nan
    ratio_hi: float = math.nan
    level_req: float = math.nan
    level_step_s: float = math.nan

    @property
    def represents(self) -> bool | None:
        """True, False, or None where it cannot be told."""
        return None if self.verdict.startswith("cannot tell") else self.verdict == "represents"

    def to_frame(self) -> pd.DataFrame:
        """Return one row with every number."""
        return pd.DataFrame([{"verdict": self.verdict, "ratio": self.ratio, "ratio_lo": self.ratio_lo,
                              "ratio_hi": self.ratio_hi, "level_req": self.level_req,
                              "level_step_s": self.level_step_s}])


def place_client(intervals: pd.DataFrame, client: Mapping[str, Any]) -> Placement:
    """Find the load of a client run in the log by its tokens, where no clock tells.

    Parameters
    ----------
    intervals : DataFrame, schema INTERVALS
    client : mapping
        One row of CLIENTS: duration_s and output_tok are used.

    Returns
    -------
    Placement
        A start is only given where one load of the log has the client's tokens in its duration (within 5 %, or one
        interval) and no other load of that count comes within 25 %.
    """
    duration_s, output_tok = number(client, "duration_s"), number(client, "output_tok")
    if not (duration_s > 0 and output_tok > 0):
        return Placement(math.nan, math.nan, "the client file gives no duration or no output tokens")
    covered = covered_time(intervals)
    starts = covered[covered["label"].ne("idle")].groupby(["server_life", "episode"])[["busy_s0", "interval_s"]].first()
    found = []
    for start_s, first_s in starts.itertuples(index=False):
        in_window = clip_to_window(covered, start_s, duration_s)
        # Windows at both ends belong to the run in part only: as much may be off.
        tolerance = max(MATCH_FRAC, float(in_window["interval_s"].median()) / duration_s)
        tokens = in_window["tok"]
        ratio = float(tokens.sum()) / output_tok
        # The line after a pause counts the last steps before it as well: its tokens may be another load's.
        is_shared = in_window["kind"].eq("decode") & in_window["idle_s"].gt(0)
        least = float(tokens[~is_shared].sum()) / output_tok
        if least <= 1 + max(LIKE_FRAC, tolerance) and ratio >= 1 - max(LIKE_FRAC, tolerance):
            peak = float(in_window["running_req_total"].max())
            found.append((peak, abs(ratio - 1) <= tolerance, float(start_s), float(first_s)))
    concurrency = number(client, "concurrency_req")
    if concurrency > 0:
        found = [load for load in found if load[0] == concurrency] or [load for load in found if load[0] < concurrency]
    fits = [load for load in found if load[1]]
    if len(found) != 1 or not fits:
        why = f"{len(found)} loads of the log are like" if len(found) > 1 else "no load of the log has the tokens of"
        return Placement(math.nan, math.nan, f"{why} the client's run: give its start")
    _, _, start_s, first_s = fits[0]
    return Placement(start_s, max(STAMP_SLACK_S, first_s), "the one load of the log with the client's tokens")


def client_time(intervals: pd.DataFrame, client: Mapping[str, Any], *, start_s: float) -> ClientTime:
    """Split the client's duration by what the server did.

    Parameters
    ----------
    intervals : DataFrame, schema INTERVALS
    client : mapping
        One row of CLIENTS: duration_s; output_tok, output_tok_per_s, concurrency_req where known.
    start_s : float
        First request on the log's clock (t_s) [s].

    Returns
    -------
    ClientTime
        The times add up to the duration, the last one being what no interval covers.

    Raises
    ------
    NotEnoughData
        The client has no duration, its start is unknown, or the log has no stamps.
    """
    duration_s = number(client, "duration_s")
    window = window_of(intervals, duration_s, start_s)
    first = window[window["is_first_rank"]]
    seconds = dict.fromkeys(LABELS, 0.0)
    for label, part in first.groupby("label"):
        seconds[str(label)] += float(part["busy_s"].sum())
    seconds["idle"] += float(first["idle_in_s"].sum())
    total = math.fsum(seconds.values())
    notes = []
    if total > duration_s:  # rounding of the clipping only: intervals do not overlap
        seconds = {label: value * duration_s / total for label, value in seconds.items()}
        total = duration_s
    if window["rank"].fillna("").nunique() > 1:
        notes.append("several ranks: times are those of the first, tokens those of all")
    running_req, steady = _steady(window, number(client, "concurrency_req"))
    log_tok = float(window["tok"].sum())
    output_tok = number(client, "output_tok")
    if output_tok > 0 and abs(log_tok / output_tok - 1) > MATCH_FRAC:
        notes.append(f"the log has {log_tok:.0f} tokens in the client's window, the client {output_tok:.0f}: "
                     "the clocks or the run may be others")
    printed = window.loc[window["decode_tok_per_s"] > 0, "decode_tok_per_s"]
    rate = number(client, "output_tok_per_s")
    return ClientTime(
        duration_s, seconds, duration_s - total, steady, rate if rate > 0 else output_tok / duration_s,
        log_tok / duration_s, float(printed.mean()) if len(printed) else math.nan, running_req, output_tok, log_tok,
        tuple(notes),
    )


def profile_against_log(
    profile_step_s: float, lo: float, hi: float, running_req: float, levels: pd.DataFrame
) -> ProfileMatch:
    """Tell whether the steps of a profile are those of the run.

    Parameters
    ----------
    profile_step_s, lo, hi : float
        Median time of a step in the profile with its interval [s]; NaN bounds: unknown.
    running_req : float
        Requests that ran during the profile [req]; NaN: unknown.
    levels : DataFrame, schema LEVELS

    Returns
    -------
    ProfileMatch
        Compared with the level within 10 % of ``running_req``, else between its two neighbours.
    """
    steps = known_steps(levels)
    if not profile_step_s > 0:
        return ProfileMatch("cannot tell: the profile has no step time")
    if steps.empty:
        return ProfileMatch("cannot tell: no level of the log has a step time")
    if not running_req > 0:
        return ProfileMatch("cannot tell: how many requests ran during the profile is not known")
    known = steps["running_req"].to_numpy()
    nearest = float(known[np.abs(known - running_req).argmin()])
    if abs(nearest - running_req) <= NEAR_LEVEL_FRAC * running_req:
        level_req = nearest
    elif known.min() < running_req < known.max():
        level_req = running_req
    else:
        return ProfileMatch(f"cannot tell: {running_req:g} requests during the profile, the log's levels are "
                            f"{known.min():g} to {known.max():g}")
    step_s, half = float(step_at(level_req, steps)), float(step_half_width(level_req, steps))
    low, high = (lo if lo > 0 else profile_step_s), (hi if hi > 0 else profile_step_s)
    ratio, ratio_lo, ratio_hi = profile_step_s / step_s, low / (step_s + half), high / max(step_s - half, 1e-12)
    if ratio_hi - ratio_lo > 2 * UNKNOWN_STEP_FRAC and ratio_lo < 1 < ratio_hi:
        verdict = f"cannot tell: the ratio lies between {ratio_lo:.2f} and {ratio_hi:.2f}"
    elif abs(ratio - 1) <= SAME_STEP_FRAC or ratio_lo <= 1 <= ratio_hi:
        verdict = "represents"
    else:
        verdict = f"differs by {100 * (ratio - 1):+.0f} %"
    return ProfileMatch(verdict, ratio, ratio_lo, ratio_hi, level_req, step_s)


def _steady(window: pd.DataFrame, concurrency: float) -> tuple[float, float]:
    """Return the load's count and its rate over clean intervals; the rate of all ranks together."""
    clean = window[window["clean"] & window["label"].eq("steady")]
    if clean.empty:
        return math.nan, math.nan
    by_req = clean.groupby("running_req_total")["interval_s"].sum()
    longest = float(by_req.index.to_numpy(dtype=float)[by_req.to_numpy().argmax()])
    running_req = concurrency if concurrency in by_req.index else longest
    chosen = clean[clean["running_req_total"].eq(running_req)]
    n_ranks = chosen["rank"].fillna("").nunique()
    rate = (chosen["decode_tok_per_s"] * chosen["interval_s"]).sum() / chosen["interval_s"].sum()
    return running_req, float(rate) * n_ranks
