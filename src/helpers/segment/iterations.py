"""Iteration records to intervals: runs of equal steps, cut into blocks of about forty.

An iteration tells the count exactly, and the engine's own time of the step: without the gap between two iterations,
which a client waits for too. Two traps, both seen: under asynchronous scheduling the printed time is only what the
engine waited for the device (then steps are counted between the seconds of the stamps), and a record may speak of
the iteration beside it (so both neighbours of a clean iteration must be alike).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from helpers.schema import COUNTED_BY_STAMPS
from helpers.segment import rules, spans
from helpers.segment.episodes import IDLE_SLACK_S, count_episodes
from helpers.segment.ticks import combine_ranks

BLOCK_STEPS = 40
"""Steps per block, as a line of SGLang has: a median of single steps is biased low by their skew."""

MIN_CLOCK_S = 10.0
"""Shortest wall time against which the engine's own times are held: stamps have 1 s."""

MIN_SPAN_FRAC = 0.75
"""Printed times that cover less of the wall clock than this are waits for the device, not steps [1]."""


def label_iterations(
    records: pd.DataFrame, events: pd.DataFrame, facts: Mapping[int, Mapping[str, object]], rule: rules.CleanRule
) -> pd.DataFrame:
    """Return one row per block of consecutive iterations that are alike, with the columns of INTERVALS and ``pos``.

    Parameters
    ----------
    records : DataFrame
        SAMPLES of kind iteration with ``pos``, their place in the input.
    events, facts, rule
        As `helpers.segment.label_intervals` takes them.
    """
    rows = spans.with_roles(records[records["span_s"].notna() & records["running_req"].notna()], facts)
    rows = _add_neighbours(_combined(rows))
    rows["why"] = _reasons(rows)
    rows = _hold_against_clock(rows, facts)
    rows = _add_runs(rows)
    blocks = _to_blocks(rows)
    own = spans.own_rank(blocks)
    blocks["prev_level_req"] = blocks.groupby(own)["running_req"].shift()
    blocks["warmup"] = rules.find_warmup(blocks, events, rule)
    blocks["why"] = blocks["why"].mask(blocks["warmup"] & blocks["why"].ne(rules.FIRST), rules.WARMUP)
    return rules.reject_stalls(blocks, rule)


def _combined(rows: pd.DataFrame) -> pd.DataFrame:
    """Add what sets the step when several ranks share it; a dummy iteration counts as an empty rank."""
    is_dummy = rows["extra"].fillna("").str.contains('"dummy": true', regex=False)
    running_req = rows["running_req"].mask(is_dummy, 0.0)
    # vLLM counts the tokens scheduled, drafts included, TensorRT-LLM those of the padded batch: what came out is a
    # token per request, or the accept length where the log tells of speculation.
    out_tok = running_req * spans.accept(rows)
    rate = out_tok / rows["span_s"].where(rows["span_s"] > 0)
    rows = rows.assign(is_dummy=is_dummy, running_req=running_req, own_req=running_req, decode_tok_per_s=rate,
                       out_tok=out_tok)
    return combine_ranks(rows.sort_values("pos"))


def _add_neighbours(rows: pd.DataFrame) -> pd.DataFrame:
    own = rows.groupby(spans.own_rank(rows))
    rows = rows.assign(is_first=own.cumcount().eq(0))
    for name in ("running_req", "prefill_tok", "t_s", "running_req_printed"):
        rows["prev_" + name] = own[name].shift()
    rows["next_running_req"] = own["running_req"].shift(-1)
    rows["next_prefill_tok"] = own["prefill_tok"].shift(-1)
    rows["printed_s"] = rows["t_s"] - rows["prev_t_s"]
    rows["idle_s"] = (rows["printed_s"] - rows["span_s"]).where(lambda gap_s: gap_s > IDLE_SLACK_S, 0.0).fillna(0.0)
    rows["pause"] = rows["idle_s"].gt(0)
    rows["next_pause"] = rows.groupby(spans.own_rank(rows))["pause"].shift(-1).fillna(False).astype(bool)
    return rows


def _reasons(rows: pd.DataFrame) -> pd.Series:
    """Name what disturbs an iteration; its neighbours count because a record may speak of the one beside it."""
    has_prompt = rows["prefill_tok"].gt(0)
    own = spans.own_rank(rows)
    next_counts = ~rows["next_pause"] & rows["next_running_req"].notna()
    return spans.first_holding([
        (rows["is_first"], rules.FIRST),
        (rows["is_dummy"], rules.DUMMY),
        (has_prompt, rules.PREFILL_INSIDE),
        (~rows["running_req"].gt(0) | ~rows["span_s"].gt(0), rules.NO_TOKENS),
        (rows["pause"], rules.AFTER_IDLE),
        (has_prompt.groupby(own).shift(fill_value=False), rules.PREFILL_BEFORE),
        (rows["running_req"].ne(rows["prev_running_req"]), rules.CHANGED),
        (has_prompt.groupby(own).shift(-1, fill_value=False) & next_counts, rules.PREFILL_NEXT),
        (rows["next_running_req"].ne(rows["running_req"]) & next_counts, rules.CHANGES_NEXT),
    ], rules.CLEAN)


def _hold_against_clock(rows: pd.DataFrame, facts: Mapping[int, Mapping[str, object]]) -> pd.DataFrame:
    """Add the share of the wall clock that a rank's printed times fill while busy, and whether they are its steps."""
    rows = rows.assign(covered_frac=1.0, own_time=True)
    for (life, _), part in rows.groupby(["server_life", "rank_key"]):
        busy = part[~part["pause"] & ~part["is_first"] & part["printed_s"].ge(0)]
        wall_s = float(busy["printed_s"].sum())
        if wall_s < MIN_CLOCK_S:
            continue
        covered = float(busy["span_s"].sum()) / wall_s
        is_async = facts.get(int(str(life)), {}).get("async_scheduling") in (True, "enabled")
        rows.loc[part.index, "covered_frac"] = covered
        rows.loc[part.index, "own_time"] = covered >= MIN_SPAN_FRAC and not is_async
    return rows


def _add_runs(rows: pd.DataFrame) -> pd.DataFrame:
    """Add the number of each stretch of alike iterations and, in clean ones, of its blocks of about forty steps."""
    own = spans.own_rank(rows)
    alike = ["why", "running_req", "running_req_printed"]
    changed = rows["is_first"] | rows["pause"]
    for name in alike:
        changed |= rows[name].ne(rows.groupby(own)[name].shift())
    rows["run"] = changed.groupby(own).cumsum()
    in_run = rows.groupby([*own, rows["run"]], sort=False)
    place, size = in_run.cumcount(), in_run["why"].transform("size")
    # Whole seconds: a line that is the first of its second was written within one step of that second.
    ticked = rows["printed_s"].gt(0) & rows["why"].eq(rules.CLEAN)
    rows["second"] = ticked.groupby([*own, rows["run"]], sort=False).cumsum()
    rows["wall_step_s"] = _wall_step_s(rows, in_run, ticked)
    by_span = place // np.ceil(size / np.maximum(1, (size / BLOCK_STEPS).round()))
    rows["block"] = by_span.where(rows["why"].eq(rules.CLEAN), 0).where(rows["own_time"] | rows["why"].ne(rules.CLEAN))
    return _add_stamp_blocks(rows)


def _wall_step_s(rows: pd.DataFrame, in_run: object, ticked: pd.Series) -> pd.Series:
    """Seconds per iteration of each run between its first and its last new stamp; missing below 5 s."""
    keys = [rows["server_life"], rows["rank_key"], rows["run"]]
    number = rows.groupby([rows["server_life"], rows["rank_key"]]).cumcount()
    seen = pd.DataFrame({"t_s": rows["t_s"].where(ticked), "number": number.where(ticked).astype("float64")})
    sums = seen.groupby(keys)
    wall_s = sums["t_s"].transform("max") - sums["t_s"].transform("min")
    steps = sums["number"].transform("max") - sums["number"].transform("min")
    return (wall_s / steps.where(steps > 0)).where(wall_s >= 5.0)


def _add_stamp_blocks(rows: pd.DataFrame) -> pd.DataFrame:
    """Cut runs whose own times are no steps at new stamps, at least forty steps apart; what lies outside is told."""
    by_stamp = rows["why"].eq(rules.CLEAN) & ~rows["own_time"]
    block, stamp_s = rows["block"].fillna(-1).to_numpy(float, copy=True), np.full(len(rows), np.nan)
    outside = by_stamp.to_numpy(bool, copy=True)
    t_s, printed_s = rows["t_s"].to_numpy(float), rows["printed_s"].to_numpy(float)
    place = pd.Series(np.arange(len(rows)), index=rows.index)[by_stamp]
    for _, run in place.groupby([rows[name][by_stamp] for name in ("server_life", "rank_key", "run")], sort=False):
        at = run.to_numpy()
        edges = _edges(np.flatnonzero(printed_s[at] > 0))
        for number, (start, end) in enumerate(zip(edges, edges[1:], strict=False)):
            inside = at[start + 1 : end + 1]
            block[inside], outside[inside] = number, False
            stamp_s[inside] = (t_s[at[end]] - t_s[at[start]]) / (end - start)
    return rows.assign(
        block=block, stamp_s=stamp_s, why=rows["why"].mask(pd.Series(outside, index=rows.index), rules.NO_SECOND),
        kind=rows["kind"].mask(by_stamp & ~pd.Series(outside, index=rows.index), COUNTED_BY_STAMPS),
    )


def _edges(ticks: np.ndarray) -> list[int]:
    """Choose new stamps at least forty steps apart."""
    edges = [int(tick) for tick in ticks[:1]]
    for tick in ticks[1:]:
        if tick - edges[-1] >= BLOCK_STEPS:
            edges.append(int(tick))
    return edges


def _to_blocks(rows: pd.DataFrame) -> pd.DataFrame:
    """Sum the iterations of each block to one row."""
    rows["step_sum_s"] = rows["stamp_s"].fillna(rows["span_s"])
    keys = ["server_life", "rank_key", "run", "block", "why"]
    last = ["file", "line_no", "ts", "t_s", "kind", "rank", "rank_group", "counted_as", "running_req_printed",
            "running_req", "running_req_total", "graph", "pos"]
    # "engine" is an argument of agg and cannot name a column there
    sums = rows.rename(columns={"engine": "engine_name"}).groupby(keys, sort=False).agg(
        **{name: (name, "last") for name in (*last, "engine_name")},
        n_steps=("span_s", "size"), span_s=("step_sum_s", "sum"), out_tok=("out_tok", "sum"),
        prefill_tok=("prefill_tok", "sum"), idle_s=("idle_s", "sum"), context_tok=("context_tok", "mean"),
        used_tok=("used_tok", "last"), accept_len=("accept_len", "mean"), queue_req=("queue_req", "last"),
        is_first=("is_first", "first"), pause=("pause", "first"), wall_step_s=("wall_step_s", "first"),
        covered_frac=("covered_frac", "first"), own_time=("own_time", "first"), cached=("cached_tok", "sum"),
    ).reset_index().sort_values("pos").rename(columns={"engine_name": "engine"})
    interval_s = sums["span_s"] * _wall_ratio(sums)
    sums = sums.assign(
        n_steps=sums["n_steps"].astype("float64"), interval_s=interval_s, step_s=sums["span_s"] / sums["n_steps"],
        decode_tok_per_s=sums["out_tok"] / interval_s.where(interval_s > 0), is_idle=sums["pause"],
        cached_inside_tok=sums["cached"], n_prefills=0,
    )
    return _number_episodes(sums)


def _wall_ratio(sums: pd.DataFrame) -> pd.Series:
    """Wall clock over the engine's own time: of the run where its stamps tell, else of the rank; never below 1."""
    run = [sums["server_life"], sums["rank_key"], sums["run"]]
    own_s = sums.groupby(run)["span_s"].transform("sum") / sums.groupby(run)["n_steps"].transform("sum")
    of_run = (sums["wall_step_s"] / own_s).where(sums["why"].eq(rules.CLEAN))
    return of_run.fillna(1 / sums["covered_frac"]).clip(lower=1.0).where(sums["own_time"], 1.0)


def _number_episodes(sums: pd.DataFrame) -> pd.DataFrame:
    """Add the number of the load episode: a new one after a pause, or when prompts meet an empty batch."""
    own = [sums["server_life"], sums["rank_key"]]
    emptied = sums["running_req"].eq(0) & sums["prefill_tok"].gt(0)
    begins = sums["is_first"] | sums["pause"] | (emptied & ~emptied.groupby(own).shift(fill_value=False))
    sums["episode"] = 0
    for _, part in sums.groupby(own):
        sums.loc[part.index, "episode"] = count_episodes(part["running_req"], begins[part.index], part["pause"])
    sums["episode"] = sums["episode"].clip(lower=0)
    return sums
