"""Label every decode or periodic line with what its interval holds, and decide which intervals are clean.

An interval is the time between two statistic lines of one rank. Its rate is an average over that time, its
running_req the count at its end: dividing one by the other is a step time only if nothing but decode steps of a
constant batch happened.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from helpers import schema
from helpers.segment import rules
from helpers.segment.episodes import number_episodes
from helpers.segment.ranks import describe_ranks
from helpers.segment.ticks import add_steps_and_times, collect_ticks, combine_ranks


def label_intervals(
    samples: pd.DataFrame,
    events: pd.DataFrame,
    *,
    facts: Sequence[Mapping[str, object]] = (),
    rule: rules.CleanRule | None = None,
) -> pd.DataFrame:
    """Turn statistic lines into labelled intervals.

    Parameters
    ----------
    samples : DataFrame, schema SAMPLES
        In file order.
    events : DataFrame, schema EVENTS
        The ready events end the server's own warm-up.
    facts : sequence of mappings, one per server life
        decode_log_interval, page_size, max_running_requests, kv_pool_tokens, dp_attention are used where given.
    rule : CleanRule, optional
        Thresholds.

    Returns
    -------
    DataFrame, schema INTERVALS
        One row per decode or periodic line that counts (copies by pipeline or context-parallel ranks are left out;
        `describe_ranks` lists them), in file order. ``why`` names the rule that decided for every row.

    Notes
    -----
    The rules, in the order in which the first that holds is named: constants FIRST .. STALL of `helpers.segment.rules`.
    """
    rule = rule or rules.CleanRule()
    schema.check(samples, schema.SAMPLES)
    schema.check(events, schema.EVENTS)
    by_life = dict(enumerate(facts))
    ranks = describe_ranks(samples, by_life)
    ticks = collect_ticks(samples, ranks)
    if ticks.empty:
        return schema.INTERVALS.empty()
    ticks = add_steps_and_times(ticks, by_life, rule)
    ticks = combine_ranks(ticks)
    ticks = number_episodes(ticks)
    ticks["warmup"] = rules.find_warmup(ticks, events, rule)
    ticks["why"] = rules.first_reason(ticks, rule)
    ticks = rules.reject_stalls(ticks, rule)
    ticks["clean"] = ticks["why"].eq(rules.CLEAN)
    ticks["label"] = _labels(ticks)
    return schema.conform(ticks.sort_values("pos"), schema.INTERVALS)


def _labels(ticks: pd.DataFrame) -> pd.Series:
    """Label each interval by what the batch did; warm-up and idle win over the rest."""
    before = ticks["prev_level_req"].fillna(0)
    prefill = ticks["n_prefills"].gt(0) | ticks["prefill_tok"].gt(0)
    rising, falling = ticks["running_req"] > before, ticks["running_req"] < before
    empty = ticks["running_req"].eq(0) & ~(ticks["decode_tok_per_s"] > 0)
    label = pd.Series("steady", index=ticks.index)
    disturbed = [rules.PREFILL_NEXT, rules.PROMPT_NEXT, rules.PROMPT_PENDING, rules.TOKENS]
    label = label.mask(prefill | ticks["why"].isin(disturbed), "mixed")
    label = label.mask(falling & ~prefill, "drain")
    label = label.mask(rising, "ramp")
    label = label.mask(ticks["warmup"], "warmup")
    return label.mask(empty | ticks["why"].eq(rules.NO_TOKENS), "idle")
