"""Label every decode or periodic line with what its interval holds, and decide which intervals are clean.

An interval is the time between two statistic lines of one rank, or the time that a record itself carries (`spans`).
Its rate is an average over that time, its running_req the count at its end: dividing one by the other is a step time
only if nothing but decode steps of a constant batch happened.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from helpers import schema
from helpers.segment import rules, spans
from helpers.segment.counters import label_counters
from helpers.segment.episodes import number_episodes
from helpers.segment.iterations import label_iterations
from helpers.segment.ranks import describe_ranks
from helpers.segment.slots import label_of_piece, label_requests
from helpers.segment.ticks import add_steps_and_times, collect_ticks, combine_ranks
from helpers.segment.topology import join_nodes


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
        `describe_ranks` lists them), in file order. ``why`` names the rule that decided for every row. A server life
        with records that carry their own time (iterations, counters) rests on those; `describe_sources` says which.

    Raises
    ------
    NotEnoughData
        The only records are finished requests and none of them can be placed in time.

    Notes
    -----
    The rules, in the order in which the first that holds is named: constants FIRST .. STALL of `helpers.segment.rules`.
    """
    rule = rule or rules.CleanRule()
    schema.check(samples, schema.SAMPLES)
    schema.check(events, schema.EVENTS)
    by_life = dict(enumerate(facts))
    joined = join_nodes(samples, events, facts)
    samples, events = joined.samples, joined.events
    placed = samples.assign(pos=np.arange(len(samples)), accept_len=spans.accept_of_iterations(samples))
    used = spans.used_source(samples)
    parts = [_label_lines(samples, used.isin(["line", ""]), events, by_life, rule)]
    for source, label in SOURCES.items():
        records = placed[used.eq(source) & placed["kind"].eq(source)]
        if len(records):
            ticks = label(records, events, by_life, rule)
            ticks["label"] = label_of_piece(ticks) if source == "request" else _labels(ticks)
            parts.append(ticks)
    parts = [part for part in parts if len(part)]
    if not parts:
        return schema.INTERVALS.empty()
    names = [*schema.INTERVALS.names, "pos"]
    for part in parts:
        part["clean"] = part["why"].eq(rules.CLEAN)
    ticks = parts[0] if len(parts) == 1 else pd.concat([part[names] for part in parts], ignore_index=True)
    del parts
    if not (ticks["pos"].is_unique and ticks["pos"].is_monotonic_increasing):
        ticks = ticks.sort_values(["pos", "t_s"], kind="stable")
    return schema.conform(ticks, schema.INTERVALS, drain=True)


SOURCES = {"iteration": label_iterations, "counters": label_counters, "request": label_requests}
"""Kinds of records that carry their own time, and what makes intervals of them."""


def _label_lines(
    samples: pd.DataFrame, is_used: pd.Series, events: pd.DataFrame, facts: Mapping[int, Mapping[str, object]],
    rule: rules.CleanRule,
) -> pd.DataFrame:
    """Label decode and periodic lines, whose time is that since the line before; columns of INTERVALS and ``pos``."""
    ticks = collect_ticks(samples, describe_ranks(samples, facts), is_used)
    if ticks.empty:
        return ticks
    ticks = add_steps_and_times(ticks, facts, rule)
    ticks = combine_ranks(ticks)
    ticks = number_episodes(ticks)
    ticks["warmup"] = rules.find_warmup(ticks, events, rule)
    ticks["why"] = rules.first_reason(ticks, rule)
    ticks = rules.reject_stalls(ticks, rule)
    ticks["label"] = _labels(ticks)
    ticks = pd.DataFrame({name: ticks[name] for name in (*schema.INTERVALS.names, "pos") if name in ticks}, copy=False)
    ticks["rank_group"] = ticks["rank_group"].astype("str")
    for name in ("file", "ts", "engine", "rank"):  # no rule reads these: they are not carried through the rules
        ticks[name] = samples[name].array.take(ticks["pos"])
    return ticks


def _labels(ticks: pd.DataFrame) -> pd.Series:
    """Label each interval by what the batch did; warm-up and idle win over the rest."""
    before = ticks["prev_level_req"].fillna(0)
    prefill = ticks["n_prefills"].gt(0) | ticks["prefill_tok"].gt(0)
    rising, falling = ticks["running_req"] > before, ticks["running_req"] < before
    empty = ticks["running_req"].eq(0) & ~(ticks["decode_tok_per_s"] > 0)
    empty &= ~(prefill & ticks["kind"].isin(schema.SPAN_KINDS))  # a line says so only of its last step
    disturbed = [rules.PREFILL_NEXT, rules.PREFILL_BEFORE, rules.PROMPT_NEXT, rules.PROMPT_PENDING, rules.TOKENS]
    return spans.last_holding([
        (prefill | ticks["why"].isin(disturbed), "mixed"),
        (falling & ~prefill, "drain"),
        (rising, "ramp"),
        (ticks["warmup"], "warmup"),
        (empty | ticks["why"].eq(rules.NO_TOKENS), "idle"),
    ], "steady")
