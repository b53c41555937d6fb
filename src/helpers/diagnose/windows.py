"""A client's window on the log: which part of which interval lies inside, and what its steps should have taken."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from helpers import schema
from helpers.errors import NotEnoughData
from helpers.schema import INTERVALS, LEVELS

STAMP_SLACK_S = 2.0
"""Two stamps of 1 s resolution may be 2 s further apart than the interval they close [s]."""

STAMP_ROUNDING_S = 0.4
"""Standard deviation of the difference of two stamps in whole seconds [s]: two uniform errors, 1 / sqrt(6)."""


def number(row: Mapping[str, Any], name: str) -> float:
    """Return a value of a row as a number, NaN where it is absent or missing."""
    value = row.get(name)
    return math.nan if value is None or pd.isna(value) else float(value)


def covered_time(intervals: pd.DataFrame) -> pd.DataFrame:
    """Add what each interval covers on the log's clock: s0 .. busy_s0 idle, busy_s0 .. t_s at work, and its tokens.

    Stamps are whole seconds in many logs: the time between two of them counts, up to their rounding more than the
    interval itself claims; a longer gap is covered by nothing.
    """
    schema.check(intervals, INTERVALS)
    table = intervals[intervals["t_s"].notna()]
    if table.empty:
        raise NotEnoughData("reconcile: expected intervals with time stamps, found none; the client cannot be placed")
    own = [table["server_life"], table["rank"].fillna("")]
    since = table.groupby(own)["t_s"].diff().clip(lower=0)
    claimed = table["interval_s"].fillna(since).fillna(0.0)
    cover_s = np.minimum(since.fillna(claimed), claimed + table["idle_s"] + STAMP_SLACK_S)
    idle_s = np.minimum(table["idle_s"], cover_s)
    first_rank = table["rank"].fillna("").groupby(table["server_life"]).transform("first")
    n_ranks = table["rank"].fillna("").groupby(table["server_life"]).transform("nunique")
    tok = (table["decode_tok_per_s"] * claimed).fillna(0.0)
    return table.assign(
        s0=table["t_s"] - cover_s, busy_s0=table["t_s"] - cover_s + idle_s, tok=tok,
        is_first_rank=table["rank"].fillna("").eq(first_rank), n_ranks=n_ranks,
        prev_req=table.groupby(own)["running_req_total"].shift(),
    )


def clip_to_window(covered: pd.DataFrame, start_s: float, duration_s: float) -> pd.DataFrame:
    """Clip to the window; busy_s, idle_in_s and tok are what lies inside.

    A SGLang line after a pause begins with the last steps before it: idle time that runs over the window's end is
    not called idle, because its beginning was work.
    """
    end_s = start_s + duration_s
    busy = np.minimum(covered["t_s"], end_s) - np.maximum(covered["busy_s0"], start_s)
    idle = np.minimum(covered["busy_s0"], end_s) - np.maximum(covered["s0"], start_s)
    whole = covered["t_s"] - covered["busy_s0"]
    is_tail = covered["kind"].eq("decode") & covered["busy_s0"].gt(end_s)
    busy, idle = np.maximum(busy, 0), np.where(is_tail, 0.0, np.maximum(idle, 0))
    # A record without any width of its own (two lines in one second) counts whole where its stamp lies inside.
    inside = covered["t_s"].gt(start_s) & covered["t_s"].le(end_s)
    share = (busy / whole).where(whole > 0, inside.astype(float))
    kept = (share > 0) | (idle > 0)
    return covered.assign(busy_s=busy, idle_in_s=idle, share=share, tok=covered["tok"] * share)[kept]


def window_of(intervals: pd.DataFrame, duration_s: float, start_s: float) -> pd.DataFrame:
    """Clip what intervals cover to a client's window; NotEnoughData where its place is unknown."""
    if not duration_s > 0:
        raise NotEnoughData("reconcile: expected the client's duration, found none; give a result file that has it")
    if not math.isfinite(start_s):
        raise NotEnoughData("reconcile: expected the client's start on the log's clock, found none; give its offset")
    return clip_to_window(covered_time(intervals), start_s, duration_s)


def known_steps(levels: pd.DataFrame) -> pd.DataFrame:
    """Return running_req, step_s, step_s_lo, step_s_hi of the levels in use, in order."""
    schema.check(levels, LEVELS)
    known = levels[levels["population"].eq(0) & levels["step_s"].gt(0)]
    fitted = known[known["is_fitted"]]
    known = fitted if len(fitted) else known
    columns = ["step_s", "step_s_lo", "step_s_hi"]
    return known.groupby("running_req")[columns].mean().reset_index()


def step_at(running_req: Any, steps: pd.DataFrame) -> Any:
    """Return the step time at a count [s], between levels on straight lines, beyond them that of the last."""
    return np.interp(running_req, steps["running_req"], steps["step_s"])


def step_half_width(running_req: Any, steps: pd.DataFrame) -> Any:
    """Return half of the step's interval at a count [s]; 0 where levels have none."""
    half = ((steps["step_s_hi"] - steps["step_s_lo"]) / 2).fillna(0.0)
    return np.interp(running_req, steps["running_req"], half)


COUNTS = ("counted", "larger", "mean")
"""How the count of an interval whose ends differ is taken: from the steps that its line counts (SGLang), else the
larger end; the larger end everywhere (requests sent and ended together); the mean of both ends (one by one)."""


def spent_time(window: pd.DataFrame, steps: pd.DataFrame, concurrency: float, *, counts: str) -> pd.DataFrame:
    """Tell for each interval what its steps should have taken, and what is over.

    Parameters
    ----------
    window : DataFrame
        From `window_of`.
    steps : DataFrame
        From `known_steps`.
    concurrency : float
        Requests that the client kept open [req]; NaN: unknown.
    counts : str
        One of COUNTS.

    Returns
    -------
    DataFrame
        tok, busy_s; mean_req [req] in the interval; ref_s, time per token of a request at that count [s]; over_s, time
        above the steps [s], and over_doubt_s, what is uncertain about it [s]; queue, flight_req [req]; part: "steady",
        "prompts", "drain" or "other".
    """
    accept = window["accept_len"].fillna(1.0)
    own = window["running_req_total"] / window["n_ranks"]
    before = (window["prev_req"] / window["n_ranks"]).fillna(own)
    held = own.eq(before) & window["idle_s"].eq(0) & window["interval_s"].gt(0)
    at_change = (own + before) / 2 if counts == "mean" else np.maximum(own, before)
    counted = window["tok"] / (window["n_steps"] * window["share"] * accept)
    is_counted = window["kind"].eq("decode") & counted.gt(0) & (counts == "counted")
    is_steady = window["label"].eq("steady")
    mean_req = own.where(is_steady | held, counted.where(is_counted, at_change))
    setting = mean_req * (window["running_req"] / own).where(own > 0, 1.0)
    step_s = pd.Series(step_at(setting, steps), index=window.index)
    n_steps = (window["tok"] / (mean_req * accept)).where(mean_req > 0, 0.0)
    took_s = (window["interval_s"] * window["share"]).where(held, window["busy_s"])
    part = pd.Series("other", index=window.index).mask(is_steady, "steady")
    part = part.mask(window["label"].isin(["ramp", "mixed", "warmup"]), "prompts")
    # A line that counts its steps shows a prompt for the place that became free; a window's fall is only a guess.
    part = part.mask(window["label"].eq("drain"), "drain").mask(window["label"].eq("drain") & is_counted, "prompts")
    # A log of slots calls the time idle in which a prompt is computed and nothing decodes.
    part = part.mask(window["label"].eq("idle") & window["prefill_tok"].gt(0), "prompts")
    over_s = (took_s - n_steps * step_s).mask(window["label"].eq("idle") & part.eq("other"), 0.0)
    stamps_are_whole = bool(window["t_s"].mod(1).eq(0).all())
    doubt_s = n_steps * step_half_width(setting, steps) + (~held & stamps_are_whole) * STAMP_ROUNDING_S
    # The line after a pause counts the last steps before it, and its silence holds their time.
    doubt_s = doubt_s.mask(window["kind"].eq("decode") & window["idle_s"].gt(0), doubt_s + window["busy_s"])
    queue = window["queue_req"].astype("float64").fillna(0.0) / window["n_ranks"]
    flight = mean_req + queue
    if concurrency > 0:  # during prompts a request is in no count: not yet running, no longer queued
        flight = flight.mask(part.eq("prompts"), np.maximum(flight, concurrency / window["n_ranks"]))
    return pd.DataFrame({"tok": window["tok"], "busy_s": window["busy_s"], "mean_req": mean_req,
                         "ref_s": step_s / accept, "over_s": over_s, "over_doubt_s": doubt_s, "queue": queue,
                         "flight_req": flight, "part": part})
