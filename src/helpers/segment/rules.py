"""The clean-interval rule: every way in which an interval is not nothing but decode steps of a constant batch.

Each rule is one way in which real logs break the division of running_req by rate; its effect was seen on real or
simulated servers (tests/test_traps.py).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from helpers.segment import prompts, spans

FIRST = "first line of the server life"
NO_TOKENS = "no tokens in the interval"
STOPPED = "no tokens in the next window"
AFTER_IDLE = "idle time inside"
CHANGED = "running_req changed"
PREFILL_INSIDE = "prefill inside"
PREFILL_NEXT = "prefill is the next record"
PROMPT_INSIDE = "prompt tokens credited inside"
PROMPT_NEXT = "prompt tokens credited in the next window"
PROMPT_PENDING = "a prompt was admitted and not yet credited"
QUEUE = "requests queued below the cap"
GRAPH = "graph flag changed"
TOKENS = "used_tok did not grow by steps x running_req"
WARMUP = "warm-up traffic"
STALL = "stall or hidden idle: step far above the level's median"
NO_MICRO_BATCH = "micro-batch size unknown: used_tok cannot tell"
DUMMY = "dummy iteration: this rank had no request, others did"
PREFILL_BEFORE = "the iteration before held a prompt"
CHANGES_NEXT = "running_req changes in the next record"
NO_SECOND = "no whole second between stamps in the stretch: its time cannot be told"
TOKENS_PER_STEP = "output tokens per step do not match running_req"
NOT_JOINED = "the record before it is missing: the count at its beginning is unknown"
NO_STEPS = "no step is counted in the record"
OVERLAP_CHANGES = "the requests' spans cover other counts too: their mean step is not this count's"
NO_STAMP = "no stamp or no decode time: which requests ran together is unknown"
STAMP_GRAIN = "shorter than the stamps can tell"
CLEAN = "decode only, constant batch"


@dataclass(frozen=True)
class CleanRule:
    """Thresholds of the clean-interval rule.

    Attributes
    ----------
    decode_log_interval : int
        Decode steps per SGLang line; 0 = from the argument dump, else from the growth of #token, else 40.
    stall_factor : float
        A line of ten steps or more, or a window, is a stall when its step exceeds this multiple of the median of its
        level's lines of ten steps or more [1].
    prefill_slack_s : float
        A prefill record that follows a decode line within this time (or within one interval) may have delayed it [s].
    kv_drop_frac : float
        A fall of KV usage at constant running_req larger than this means one request left and another joined; the
        line prints steps of 0.001 [1].
    warmup_share_frac : float
        A first episode shorter than this share of the median later episode is warm-up [1].
    cached_share_frac : float
        An episode whose prompts come from the prefix cache by more than this share, before one whose do not, is
        warm-up with identical prompts [1].
    kv_full_frac : float
        A queue is no sign of an admission while KV usage is above this: the pool is the cap [1].
    """

    decode_log_interval: int = 0
    stall_factor: float = 2.0
    prefill_slack_s: float = 5.0
    kv_drop_frac: float = 0.0015
    warmup_share_frac: float = 0.25
    cached_share_frac: float = 0.5
    kv_full_frac: float = 0.9


def find_warmup(ticks: pd.DataFrame, events: pd.DataFrame, rule: CleanRule) -> pd.Series:
    """Mark the server's own warm-up, a short first episode, and episodes of cached prompts before uncached ones."""
    ready = events[events["kind"].eq("ready")].groupby("server_life")[["line_no"]].min()["line_no"]
    warmup = ticks["line_no"].lt(ticks["server_life"].map(ready).fillna(0))
    keys = ["server_life", "rank_key", "episode"]
    sums = ticks[keys].assign(
        prefill_tok=ticks["prefill_tok"],
        cached=ticks["cached_inside_tok"],
        active_s=ticks["interval_s"].where(~ticks["is_idle"], 0).fillna(0),
    )
    sums = sums.groupby(keys, as_index=False)[["cached", "prefill_tok", "active_s"]].sum()
    for _, of_rank in sums.groupby(["server_life", "rank_key"]):
        chosen: list[int] = []
        active_s = of_rank["active_s"]
        if len(of_rank) > 2 and active_s.iloc[0] < rule.warmup_share_frac * active_s.iloc[1:].median():
            chosen.append(int(of_rank["episode"].iloc[0]))
        prompts = of_rank["cached"] + of_rank["prefill_tok"]
        share = (of_rank["cached"] / prompts.where(prompts > 0)).fillna(0)
        later_uncached = share.gt(rule.cached_share_frac) & share[::-1].cummin()[::-1].lt(rule.cached_share_frac / 2)
        chosen += of_rank["episode"][later_uncached].tolist()
        first = of_rank.iloc[0]
        same = ticks["server_life"].eq(first["server_life"]) & ticks["rank_key"].eq(first["rank_key"])
        warmup |= same & ticks["episode"].isin(chosen)
    return warmup


def first_reason(ticks: pd.DataFrame, rule: CleanRule) -> pd.Series:
    """Name the first rule that rejects each interval, CLEAN if none does."""
    windowed = ticks["kind"].eq("stats")
    ticks["swapped"] = (
        windowed
        & ticks["running_req"].eq(ticks["prev_level_req"])
        & (ticks["prev_kv_used_frac"] - ticks["kv_used_frac"] > rule.kv_drop_frac)
    )
    since_prefill = ticks["next_prefill_t_s"] - ticks["t_s"]
    mates = ticks.groupby(["server_life", "rank_group"])["rank_key"].transform("nunique")
    next_is_prefill = (
        (ticks["next_prefill_place"] - ticks["place"] <= mates)
        & ~(ticks["next_prefill_place"] > ticks["next_place"])
        & ~(since_prefill > np.maximum(rule.prefill_slack_s, ticks["interval_s"].fillna(0)))
    )
    cap = ticks["cap"].where(ticks["cap"] > 0, ticks.groupby("server_life")["running_req"].transform("max"))
    at_cap = ticks["running_req"].ge(cap) | ticks["kv_used_frac"].ge(rule.kv_full_frac)
    below_cap = ticks["queue_req"].fillna(0).gt(0) & ~at_cap
    graph_changed = (ticks["graph"] != ticks["prev_graph"]).fillna(False).astype(bool)
    decode_only = ticks["n_prefills"].eq(0) & ~ticks["is_first"] & ticks["running_req"].eq(ticks["prev_level_req"])
    rules: list[tuple[pd.Series, str]] = [
        (ticks["is_first"], FIRST),
        (~(ticks["decode_tok_per_s"] > 0), NO_TOKENS),
        (ticks["warmup"], WARMUP),
        (ticks["is_idle"], AFTER_IDLE),
        (ticks["n_prefills"].gt(0), PREFILL_INSIDE),
        (windowed & ticks["prefill_tok"].gt(0), PROMPT_INSIDE),
        (ticks["stages"].gt(1) & ticks["own_req"].isna(), NO_MICRO_BATCH),
        (~_same_level(ticks), CHANGED),
        (ticks["running_req_printed"].ne(ticks["prev_running_req"]), CHANGED),
        (~windowed & next_is_prefill, PREFILL_NEXT),
        (windowed & ticks["next_prefill_tok_per_s"].gt(0), PROMPT_NEXT),
        (prompts.is_pending(ticks), PROMPT_PENDING),
        (windowed & ticks["next_decode_tok_per_s"].eq(0) & ticks["next_level_req"].gt(0), STOPPED),
        (below_cap, QUEUE),
        (graph_changed, GRAPH),
        (ticks["growth_off"] & _growth_can_tell(ticks, decode_only), TOKENS),
    ]
    return spans.first_holding(rules, CLEAN)


def _same_level(ticks: pd.DataFrame) -> pd.Series:
    """running_req equal at both ends; under pipeline stages the growth of used_tok must repeat within 5 %."""
    exact = ticks["running_req"].eq(ticks["prev_level_req"])
    near = (ticks["running_req"] - ticks["prev_level_req"]).abs() <= 0.05 * ticks["running_req"]
    near_next = (ticks["running_req"] - ticks["next_level_req"]).abs() <= 0.05 * ticks["running_req"]
    return exact.where(ticks["stages"].eq(1), near | near_next)


def _growth_can_tell(ticks: pd.DataFrame, decode_only: pd.Series) -> pd.Series:
    """Use the token test only for ranks whose #token follows the steps on half of the prefill-free lines.

    HiSparse before 0.5.14 freezes #token, hybrid pools round it: there it says nothing.
    """
    usable = decode_only & ticks["stages"].eq(1) & ticks["used_tok"].notna()
    fits = (usable & ~ticks["growth_off"]).astype(float).where(usable)
    share = fits.groupby([ticks["server_life"], ticks["rank_key"]]).transform("mean")
    return share.ge(0.5) & ticks["stages"].eq(1)


def reject_stalls(ticks: pd.DataFrame, rule: CleanRule) -> pd.DataFrame:
    """Reject lines whose step is far above their level's median (a neighbour on the machine, a hidden pause)."""
    candidate = ticks["why"].eq(CLEAN) & ticks["n_steps"].ge(10)
    level = [ticks["server_life"], ticks["rank_group"], ticks["running_req"].round()]
    steps = ticks["step_s"].where(candidate)
    median = steps.groupby(level).transform("median")
    several = candidate.groupby(level).transform("sum").ge(3)
    # Few steps in a window of fixed time are themselves the sign; a line of fixed steps may have one by its setting.
    judged = candidate | (ticks["why"].eq(CLEAN) & ticks["kind"].eq("stats"))
    stalled = judged & several & (ticks["step_s"] > rule.stall_factor * median)
    ticks["why"] = ticks["why"].mask(stalled, STALL)
    return ticks
