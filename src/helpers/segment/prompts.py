"""Windows that a prompt fills although it is not yet credited.

vLLM credits a prompt at its first token, whole. A chunked prefill that lasts for several windows shows in none but the
last; the others print prompt 0.0 and a low rate. What tells of it is Running, where it rose for that prompt, and KV
usage: a decode step takes room for one token per request, a chunk for thousands.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

USAGE_STEP = 0.001
"""Step in which the line prints KV usage [1]: two prints are off by less than this together."""

GROWTH_SLACK = 2.0
"""Pure decode fills at most as much of the pool as it makes tokens; the size printed for a hybrid pool is a rounded
division by its groups, hence a factor. A chunk makes a hundred times more KV per token made [1]."""

LARGEST_PAGE_TOK = 2048
"""Block that an unnamed size may have: 16 by default (vLLM CacheConfig, GPU), 128 on a CPU, and hybrids round it up to
a Mamba state, 1952 the largest in the logs read [tok]."""

EARLY_FRAC = 0.1
"""Requests in step open a block each at once. Within this share of a block a run meets that one time in ten: more room
than this allows is no block [1]."""

BUSY_FRAC = 0.5
"""Windows that make this share of the most tokens of any hold decode and little else: they tell the size of a pool
that is not printed [1]."""


def is_pending(ticks: pd.DataFrame) -> pd.Series:
    """Mark windows in which a prompt is computed that a later window credits, or none.

    Parameters
    ----------
    ticks : DataFrame
        Working table of segment with ``swapped``; rows that are no windows are never marked.
    """
    is_window = ticks["kind"].eq("stats")
    if not is_window.any():
        return is_window
    rises_next = ticks["next_level_req"] > ticks["running_req"]  # the scheduler had started before the line
    pending = rises_next | ticks["swapped"] | _admitted(ticks) | _fills_the_pool(ticks)
    return is_window & pending


def _own(ticks: pd.DataFrame) -> list[pd.Series]:
    return [ticks["server_life"], ticks["rank_key"]]


def _admitted(ticks: pd.DataFrame) -> pd.Series:
    """Mark windows between a visible admission and the window that credits a prompt."""
    rose = ticks["running_req"] > ticks["prev_running_req"]
    credited = ticks["prefill_tok"] > 0
    state = pd.Series(np.nan, index=ticks.index).mask((rose | ticks["swapped"]) & ~credited, 1.0).mask(credited, 0.0)
    return state.groupby(_own(ticks)).ffill().eq(1.0)


def _fills_the_pool(ticks: pd.DataFrame) -> pd.Series:
    """Mark windows from which KV usage grows, to the end of their run, by more than decode can fill.

    Admission need not show: two requests that came together are both counted while the first is computed, and one
    that takes a finished one's place in a window that credits a third changes no count. Only a credit, a departure or
    an abort ends a prefill, and each ends the run, so the excess of a run is looked for in its tail.
    """
    counted = ticks["running_req_printed"].eq(ticks["prev_running_req"])
    inside = counted & ~ticks["is_first"] & ~ticks["prefill_tok"].gt(0) & ~ticks["swapped"] & ~ticks["is_idle"]
    run = [*_own(ticks), (~inside).groupby(_own(ticks)).cumsum()]
    tokens = (ticks["decode_tok_per_s"] * ticks["interval_s"]).fillna(0.0).astype(float)
    growth = (ticks["kv_used_frac"] - ticks["prev_kv_used_frac"]).where(inside).fillna(0.0).astype(float)
    per_tok = _usage_per_tok(ticks, growth, tokens.where(inside, 0.0))
    excess = growth - (GROWTH_SLACK * tokens * per_tok).where(inside, 0.0)
    tail = excess[::-1].groupby(run).cumsum()[::-1]
    peak = tail.groupby(run).transform("max")
    begun = tail.eq(peak).groupby(run).cummax()
    begins_next = begun.groupby(run).shift(-1, fill_value=False)  # what came and what left may cancel in one window
    run_tok = tokens.where(inside, 0.0).groupby(run).transform("sum")
    block_tok = ticks["page_tok"].fillna(LARGEST_PAGE_TOK) * ticks["running_req_printed"]
    room_tok = block_tok.mask(ticks["page_tok"].isna() & (run_tok / EARLY_FRAC < block_tok), run_tok / EARLY_FRAC)
    over = peak > USAGE_STEP + 1e-9 + room_tok * per_tok
    return inside & over & (begun | begins_next)


def _usage_per_tok(ticks: pd.DataFrame, growth: pd.Series, tokens: pd.Series) -> pd.Series:
    """Share of the pool that a token takes [1]: by its printed size, else no more than what the windows show.

    Two estimates, and the smaller counts: the busiest windows, which fail where all hold a prefill, and all that grew
    over all prompts and tokens, which fails where a departure hides growth in the same window.
    """
    own = _own(ticks)
    busy = growth.ge(0) & tokens.gt(0) & tokens.ge(BUSY_FRAC * tokens.groupby(own).transform("max"))
    grown, made = (part.where(busy, 0.0).groupby(own).transform("sum") for part in (growth, tokens))
    all_grown = (ticks["kv_used_frac"] - ticks["prev_kv_used_frac"]).clip(lower=0).fillna(0.0).astype(float)
    all_made = (ticks["decode_tok_per_s"] * ticks["interval_s"]).fillna(0.0).astype(float) + ticks["prefill_tok"]
    of_busy = (grown + USAGE_STEP) / made.where(made > 0)
    of_all = (all_grown.groupby(own).transform("sum") + USAGE_STEP) / all_made.groupby(own).transform("sum")
    has_prompts = ticks["prefill_tok"].groupby(own).transform("sum").gt(0)
    shown = of_busy.fillna(0.0).mask(has_prompts & (of_all < of_busy), of_all)
    return (1.0 / ticks["pool_tok"]).fillna(shown)
