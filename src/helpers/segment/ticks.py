"""Times, steps and neighbours of every counted line: the working table of segment.

Semantics of the lines were read in the SGLang and vLLM sources: the rate is an average since the previous line, the
count is of the last step, a SGLang line comes every n decode steps, a vLLM line every window of wall time.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from helpers.segment.rules import CleanRule

DEFAULT_DECODE_LOG_INTERVAL = 40
"""Decode steps per SGLang line unless --decode-log-interval says otherwise (SGLang, all versions)."""

TRUSTED_STAMP_S = 10.0
"""Shortest stamp difference used as a duration: stamps have 1 s, so the error is at most a tenth."""



def collect_ticks(samples: pd.DataFrame, ranks: pd.DataFrame) -> pd.DataFrame:
    """Return one row per counted tick with what stood before, inside and after it in the file."""
    rows = samples.assign(pos=np.arange(len(samples)), rank_key=samples["rank"].fillna(""))
    roles = ranks.set_index(["server_life", "rank"])[["counted_as", "rank_group", "stages"]]
    rows = rows.join(roles, on=["server_life", "rank_key"])
    rows = rows[rows["counted_as"].notna() & rows["counted_as"].ne("copy")]
    is_prefill = rows["kind"].eq("prefill")
    is_tick = rows["kind"].isin(["decode", "stats"]) & rows["running_req"].notna() & rows["decode_tok_per_s"].notna()
    rows = rows[is_prefill | is_tick].copy()
    is_prefill = is_prefill[rows.index]
    scope = [rows["server_life"], rows["rank_group"]]
    rows["place"] = rows.groupby(scope).cumcount()
    rows["prefills_before"] = is_prefill.astype(int).groupby(scope).cumsum()
    rows["prompt_tok_before"] = rows["new_tok"].where(is_prefill, 0).fillna(0).astype(float).groupby(scope).cumsum()
    rows["cached_tok_before"] = rows["cached_tok"].where(is_prefill, 0).fillna(0).astype(float).groupby(scope).cumsum()
    rows["empties_before"] = (is_prefill & rows["running_req"].fillna(1).eq(0)).astype(int).groupby(scope).cumsum()
    for source, target in (("place", "next_prefill_place"), ("t_s", "next_prefill_t_s")):
        rows[target] = rows[source].where(is_prefill).groupby(scope).bfill()
    ticks = rows[~is_prefill].copy()
    own = ticks.groupby([ticks["server_life"], ticks["rank_key"]])
    for name in ("running_req", "used_tok", "graph", "t_s", "prefills_before", "prompt_tok_before", "cached_tok_before",
                 "empties_before", "next_prefill_t_s", "kv_used_frac"):
        ticks["prev_" + name] = own[name].shift()
    for name in ("running_req", "prefill_tok_per_s", "place", "decode_tok_per_s"):
        ticks["next_" + name] = own[name].shift(-1)
    ticks["is_first"] = own.cumcount().eq(0)
    start = rows.groupby(scope)["t_s"].transform("first")
    ticks["prev_t_s"] = ticks["prev_t_s"].where(~ticks["is_first"], start.loc[ticks.index])
    numbers = ["running_req", "queue_req", "used_tok", "prev_running_req", "prev_used_tok", "next_running_req",
               "prev_kv_used_frac", "next_prefill_tok_per_s", "next_place", "accept_len"]
    return ticks.assign(**{name: ticks[name].astype("float64") for name in numbers})


def add_steps_and_times(
    ticks: pd.DataFrame, facts: Mapping[int, Mapping[str, object]], rule: CleanRule
) -> pd.DataFrame:
    """Add n_steps, interval_s, own_req, step_s, prefill_tok, context_tok."""
    parts = []
    for (life, _), part in ticks.groupby(["server_life", "rank_key"], sort=False):
        known = facts.get(int(str(life)), {})
        part = part.assign(printed_s=part["t_s"] - part["prev_t_s"])
        add = _add_window_times if part["kind"].iloc[0] == "stats" else _add_step_times
        parts.append(add(part, known, rule))
    return pd.concat(parts).sort_values("pos")


def _accept(part: pd.DataFrame) -> pd.Series:
    return part["accept_len"].fillna(1.0).clip(lower=1.0)


def _add_step_times(part: pd.DataFrame, known: Mapping[str, object], rule: CleanRule) -> pd.DataFrame:
    """SGLang: a line every n decode steps; the interval follows from tokens over rate (stamps have 1 s)."""
    stages = int(part["stages"].iloc[0])
    n_steps = rule.decode_log_interval or _number(known, "decode_log_interval") or infer_log_interval(part)
    growth = part["used_tok"] - part["prev_used_tok"]
    if stages > 1:
        # Every line samples the same micro-batch; growth of used_tok per launch is the mean of all (log-formats 1.5).
        own = (growth / n_steps).where(growth > 0) * stages
    else:
        own = part["running_req"]
    mean_req = (part["running_req"] + part["prev_running_req"].fillna(part["running_req"])) / 2
    tokens = (own / stages if stages > 1 else mean_req) * n_steps * _accept(part)
    rate = part["decode_tok_per_s"].where(part["decode_tok_per_s"] > 0)
    # Stamps of 1 s are within a tenth of ten seconds; tokens over rate is exact but only where the count is known.
    unsteady = part["running_req"].ne(part["prev_running_req"]) & part["printed_s"].ge(TRUSTED_STAMP_S)
    interval_s = (tokens / rate).mask(unsteady, part["printed_s"]).fillna(part["printed_s"])
    page = _number(known, "page_size") or 1
    expected = n_steps * part["running_req"] * _accept(part)
    # accept_len is printed with two decimals: half a unit over n_steps x running_req tokens, or 2 % with speculation
    speculates = part["accept_len"].notna()
    slack = (page * part["running_req"] + 0.02 * expected).where(speculates | (page > 1), 0.0)
    slack = slack.where(speculates, slack - 0.02 * expected).clip(lower=0)
    context = part["used_tok"] / part["running_req"].where(part["running_req"] > 0)
    return part.assign(
        n_steps=float(n_steps),
        own_req=own,
        interval_s=interval_s,
        step_s=own * _accept(part) / rate,
        prefill_tok=(part["prompt_tok_before"] - part["prev_prompt_tok_before"].fillna(0)).astype(float),
        n_prefills=part["prefills_before"] - part["prev_prefills_before"].fillna(0),
        growth_off=(growth - expected).abs() > slack,
        context_tok=context.where(part["used_tok"] > 0),
        cap=_number(known, "max_running_requests"),
        pool_tok=np.nan,
        page_tok=np.nan,
    )


def _add_window_times(part: pd.DataFrame, known: Mapping[str, object], rule: CleanRule) -> pd.DataFrame:
    """vLLM: a line every window of wall time; the steps follow from tokens over running requests."""
    printed = part["printed_s"]
    window_s = float(printed[printed > 0].median()) if (printed > 0).any() else np.nan
    # An idle server prints nothing but keeps resetting its counters: a line after a gap covers one window.
    interval_s = printed.where((printed - window_s).abs() <= max(1.5, 0.2 * window_s), window_s)
    own = part["running_req"]
    rate = part["decode_tok_per_s"].where(part["decode_tok_per_s"] > 0)
    busy = own.where(own > 0)
    pool = _number(known, "kv_pool_tokens")
    used = part["used_tok"] if not pool else part["kv_used_frac"] * pool
    return part.assign(
        n_steps=rate * interval_s / (busy * _accept(part)),
        own_req=own,
        interval_s=interval_s,
        step_s=own * _accept(part) / rate,
        prefill_tok=(part["prefill_tok_per_s"].fillna(0) * interval_s).fillna(0),
        n_prefills=0,
        growth_off=False,
        used_tok=used.round(),
        context_tok=(used / busy).where(used > 0),
        cap=_number(known, "max_running_requests"),
        pool_tok=float(pool) if pool else np.nan,
        page_tok=float(_number(known, "kv_block_size") or _number(known, "page_size") or np.nan),
    )


def infer_log_interval(part: pd.DataFrame) -> int:
    """Recover decode steps per line from growth of used_tok at constant running_req, else from the clock.

    Notes
    -----
    Between clean lines with N requests used_tok grows by steps x N, whatever the clock says. The most frequent
    ratio is taken when at least three lines and a fifth of the constant ones agree on it. Where it cannot tell
    (pages, frozen #token), wall time x rate / N summed over at least 60 s of constant lines is used, stamps of 1 s
    being off by one at most per stretch; else 40.
    """
    if part["stages"].iloc[0] > 1:  # the printed count is one micro-batch of several: growth says nothing about steps
        return DEFAULT_DECODE_LOG_INTERVAL
    constant = part["running_req"].eq(part["prev_running_req"]) & part["running_req"].gt(0)
    growth = (part["used_tok"] - part["prev_used_tok"])[constant]
    ratio = growth / (part["running_req"] * _accept(part))[constant]
    slack = 0.02 if part["accept_len"].notna().any() else 1e-6  # accept_len is printed with two decimals
    ratio = ratio[(ratio > 0) & ((ratio - ratio.round()).abs() <= slack * ratio)].round()
    counts = ratio.value_counts()
    if len(counts) and counts.iloc[0] >= max(3, 0.2 * int(constant.sum())):
        return int(counts.index[0])
    quiet = constant & part["prefills_before"].eq(part["prev_prefills_before"]) & part["decode_tok_per_s"].gt(0)
    wall_s = part["printed_s"].where(quiet)
    step_s = (part["running_req"] * _accept(part) / part["decode_tok_per_s"]).where(quiet)
    if wall_s.sum() < 60:
        return DEFAULT_DECODE_LOG_INTERVAL
    return max(1, round(float(wall_s.sum() / step_s[wall_s.notna()].sum())))


def _number(known: Mapping[str, object], key: str) -> int:
    value = known.get(key)
    return int(value) if isinstance(value, (int, float)) and value > 0 else 0


def combine_ranks(ticks: pd.DataFrame) -> pd.DataFrame:
    """Add running_req (what sets the step) and running_req_total (whole server)."""
    ticks["running_req_printed"] = ticks["running_req"].astype("int64")
    ticks["running_req"] = ticks["own_req"].fillna(ticks["running_req"])
    ticks["running_req_total"] = ticks["running_req"]
    ticks["system_rate"] = ticks["decode_tok_per_s"]
    for life, part in ticks[ticks["counted_as"].isin(["lockstep", "replica"])].groupby("server_life"):
        mates = [mate for _, mate in part.groupby("rank_key")]
        counts = np.column_stack([_nearest_count(part, mate) for mate in mates])
        ticks.loc[part.index, "running_req_total"] = counts.sum(axis=1)
        if part["counted_as"].iloc[0] == "lockstep":
            ticks.loc[part.index, "running_req"] = counts.max(axis=1)
    own = ticks.groupby(["server_life", "rank_key"])
    ticks["prev_level_req"] = own["running_req"].shift()
    ticks["next_level_req"] = own["running_req"].shift(-1)
    return ticks


def _nearest_count(part: pd.DataFrame, mate: pd.DataFrame) -> np.ndarray:
    """running_req of another rank at each row of `part`: its nearest line, 0 when it has long been silent."""
    place, places = part["pos"].to_numpy(), mate["pos"].to_numpy()
    times, at = mate["t_s"].to_numpy(float), part["t_s"].to_numpy(float)
    counts = mate["running_req"].to_numpy(float)
    after = np.clip(np.searchsorted(places, place), 0, len(places) - 1)
    before = np.clip(after - 1, 0, len(places) - 1)
    off_after, off_before = np.abs(times[after] - at), np.abs(times[before] - at)
    tie = np.isclose(off_after, off_before) | np.isnan(off_after) | np.isnan(off_before)
    nearer = np.where(tie, np.abs(places[after] - place) <= np.abs(places[before] - place), off_after < off_before)
    chosen = np.where(nearer, after, before)
    spacing = np.nanmedian(np.diff(times)) if len(times) > 1 else np.nan
    silent = np.abs(times[chosen] - at) > max(3.0, 3.0 * spacing) if np.isfinite(spacing) else np.zeros(len(at), bool)
    return np.where(silent, 0.0, counts[chosen])
