"""Counter records to intervals: each is the difference of two scrapes or snapshots, so it is its own interval.

Steps and time are counted, not inferred; what a scrape cannot tell is what happened between: prompts, a count that
came and went, idle time. Tokens per step must therefore match the count at both ends.
"""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from helpers.segment import rules, spans
from helpers.segment.episodes import IDLE_SLACK_S, count_episodes
from helpers.segment.ticks import combine_ranks

MAX_SKEW_STEPS = 1.5
"""Counters of one scrape are read one after the other: their differences may be this many steps apart."""

MAX_SKEW_FRAC = 0.02
"""And tokens per step may be off by this much beyond it before another count must have run in between [1]."""

JOIN_FRAC = 0.25
"""Two records follow each other if the gap between them is less than this share of a record [1]."""


def label_counters(
    records: pd.DataFrame, events: pd.DataFrame, facts: Mapping[int, Mapping[str, object]], rule: rules.CleanRule
) -> pd.DataFrame:
    """Return one row per counter record with the columns of INTERVALS and ``pos``.

    Parameters
    ----------
    records : DataFrame
        SAMPLES of kind counters with ``pos``, their place in the input.
    events, facts, rule
        As `helpers.segment.label_intervals` takes them.
    """
    rows = _add_neighbours(spans.with_roles(records[records["span_s"].gt(0)], facts).sort_values("pos"))
    rows = rows[rows["running_req"].notna()]  # one without a count still tells its neighbour of prompts
    rate = (rows["out_tok"] / rows["span_s"]).fillna(rows["decode_tok_per_s"].fillna(0.0))
    rows = combine_ranks(rows.assign(own_req=rows["running_req"], decode_tok_per_s=rate))
    inferred = rows["out_tok"] / (rows["running_req"] * spans.accept(rows)).where(rows["running_req"] > 0)
    rows["is_counted"] = rows["n_steps"].notna()
    rows["n_steps"] = rows["n_steps"].fillna(inferred)
    rows = rows.assign(
        interval_s=rows["span_s"], step_s=(rows["span_s"] / rows["n_steps"].where(rows["n_steps"] > 0)),
        idle_s=rows["span_s"].where(rows["is_empty"], 0.0), n_prefills=0, is_idle=rows["is_empty"],
        cached_inside_tok=rows["cached_tok"].fillna(0.0),
    )
    rows["episode"] = 0
    for _, part in rows.groupby(spans.own_rank(rows)):
        emptied = part["is_empty"].shift(fill_value=False) & ~part["is_empty"]
        idle_s = part["span_s"].where(part["is_empty"], 0.0).groupby((~part["is_empty"]).cumsum()).cumsum().shift()
        pause = emptied & idle_s.gt(IDLE_SLACK_S)
        rows.loc[part.index, "episode"] = count_episodes(
            part["running_req"], part["is_first"] | emptied | pause, pause).clip(lower=0)
    rows["warmup"] = rules.find_warmup(rows, events, rule)
    rows["why"] = _reasons(rows)
    return rules.reject_stalls(rows, rule)


def _add_neighbours(rows: pd.DataFrame) -> pd.DataFrame:
    own = rows.groupby(spans.own_rank(rows))
    rows = rows.assign(is_first=own.cumcount().eq(0), is_empty=rows["running_req"].eq(0) & ~(rows["out_tok"] > 0))
    gap_s = (rows["t_s"] - rows["span_s"] - own["t_s"].shift()).abs()
    is_joined = ~rows["is_first"] & ~(gap_s > JOIN_FRAC * rows["span_s"])
    next_joined = is_joined.groupby(spans.own_rank(rows)).shift(-1, fill_value=False)
    next_prompt = own["prefill_tok"].shift(-1).gt(0) & next_joined
    next_other = own["running_req"].shift(-1).ne(rows["running_req"]) & next_joined
    return rows.assign(is_joined=is_joined, next_prompt=next_prompt, next_other=next_other)


def _reasons(rows: pd.DataFrame) -> pd.Series:
    tokens = rows["n_steps"] * rows["running_req"] * spans.accept(rows)
    slack = rows["running_req"] * spans.accept(rows) * MAX_SKEW_STEPS + MAX_SKEW_FRAC * tokens
    # Where the accept length is unknown tokens per step say nothing about the count.
    off = rows["is_counted"] & rows["out_tok"].notna() & ((rows["out_tok"] - tokens).abs() > slack)
    return spans.first_holding([
        (~rows["is_joined"], rules.NOT_JOINED),
        (~(rows["decode_tok_per_s"] > 0), rules.NO_TOKENS),
        (~(rows["n_steps"] > 0), rules.NO_STEPS),
        (rows["warmup"], rules.WARMUP),
        (rows["prefill_tok"] > 0, rules.PROMPT_INSIDE),
        (rows["running_req"].ne(rows["prev_level_req"]), rules.CHANGED),
        (rows["next_prompt"], rules.PROMPT_NEXT),
        (rows["next_other"], rules.CHANGES_NEXT),
        (off, rules.TOKENS_PER_STEP),
    ], rules.CLEAN)
