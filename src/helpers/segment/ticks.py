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



READ = ("line_no", "t_s", "server_life", "kind", "running_req", "queue_req", "used_tok", "kv_used_frac",
        "decode_tok_per_s", "prefill_tok_per_s", "accept_len", "graph")
"""Columns of SAMPLES that the rules read; a working table of all would be most of what a large log takes."""


def collect_ticks(samples: pd.DataFrame, ranks: pd.DataFrame, is_used: pd.Series) -> pd.DataFrame:
    """Return one row per counted tick with what stood before, inside and after it in the file.

    Parameters
    ----------
    samples : DataFrame, schema SAMPLES
    ranks : DataFrame
        From `describe_ranks`.
    is_used : Series of bool
        Records whose ticks are wanted; the others still stand between them.

    Returns
    -------
    DataFrame
        ``pos`` is the place in `samples`; rank_key, rank_group and counted_as are categories.
    """
    rank_key = pd.Categorical(samples["rank"].fillna(""))
    ranks = ranks[ranks["counted_as"].notna() & ranks["counted_as"].ne("copy")]
    role = _role_of(samples["server_life"], rank_key, ranks)
    is_prefill = samples["kind"].eq("prefill").to_numpy(dtype=bool)
    is_tick = samples["kind"].isin(["decode", "stats"]) & samples["running_req"].notna()
    is_tick &= samples["decode_tok_per_s"].notna()
    pos = np.flatnonzero((role >= 0) & (is_prefill | is_tick.to_numpy(dtype=bool)))
    around, is_prefill = _around(samples, pos, is_prefill[pos], _scopes(ranks)[role[pos]]), is_prefill[pos]
    is_wanted = ~is_prefill & is_used.to_numpy(dtype=bool)[pos]
    pos = pos[is_wanted]
    ticks = samples[list(READ)].iloc[pos].assign(
        pos=pos, rank_key=rank_key[pos], stages=ranks["stages"].to_numpy()[role[pos]],
        **{name: pd.Categorical(ranks[name])[role[pos]] for name in ("counted_as", "rank_group")})
    numbers = ("running_req", "queue_req", "used_tok", "accept_len")
    ticks = ticks.assign(**{name: ticks[name].astype("float64") for name in numbers},
                         **{name: around.pop(name)[is_wanted] for name in list(around)})
    before, after = _neighbours(role[pos])
    for name in ("n_prefills", "prefill_tok", "cached_inside_tok", "n_empties"):
        ticks[name] = ticks[name] - np.where(before < 0, 0.0, ticks[name].to_numpy()[before])
    for name in ("running_req", "used_tok", "graph", "t_s", "next_prefill_t_s", "kv_used_frac"):
        ticks["prev_" + name] = _taken(ticks[name], before)
    for name in ("running_req", "prefill_tok_per_s", "place", "decode_tok_per_s"):
        ticks["next_" + name] = _taken(ticks[name], after)
    ticks["is_first"] = before < 0
    ticks["prev_t_s"] = ticks["prev_t_s"].where(~ticks["is_first"], ticks.pop("first_t_s"))
    return ticks


def _role_of(life: pd.Series, rank_key: pd.Categorical, ranks: pd.DataFrame) -> np.ndarray:
    """Return for every record the row of its rank in the table of ranks, -1 where it has none."""
    life_codes, lives = pd.factorize(life)
    n_ranks = len(rank_key.categories)
    row_of = np.full(max(len(lives) * n_ranks, 1), -1)
    of_life, of_rank = (pd.Index(known).get_indexer(pd.Index(ranks[name]))
                        for known, name in ((lives, "server_life"), (rank_key.categories, "rank")))
    row_of[np.multiply(of_life, n_ranks) + of_rank] = np.arange(len(ranks))
    return row_of[life_codes * n_ranks + rank_key.codes]


def _scopes(ranks: pd.DataFrame) -> np.ndarray:
    """Return the number of the group that shares its prefills, for each row of the table of ranks."""
    return ranks.groupby(["server_life", "rank_group"]).ngroup().to_numpy()


def _around(samples: pd.DataFrame, pos: np.ndarray, is_prefill: np.ndarray, scope: np.ndarray) -> dict[str, np.ndarray]:
    """Return totals up to each counted record in its scope, itself included, and what comes after it."""
    rows = samples[["t_s", "running_req", "new_tok", "cached_tok"]].iloc[pos]

    def total(values: pd.Series) -> np.ndarray:
        return values.groupby(scope).cumsum().to_numpy()

    def following(values: pd.Series) -> np.ndarray:
        return values.where(is_prefill).groupby(scope).bfill().to_numpy()

    place = rows.groupby(scope).cumcount()
    empty = is_prefill & rows["running_req"].fillna(1).eq(0).to_numpy(dtype=bool)
    return {
        "place": place.to_numpy(),
        "n_prefills": total(pd.Series(is_prefill.astype(int))),
        "prefill_tok": total(rows["new_tok"].where(is_prefill, 0).fillna(0).astype(float)),
        "cached_inside_tok": total(rows["cached_tok"].where(is_prefill, 0).fillna(0).astype(float)),
        "n_empties": total(pd.Series(empty.astype(int))),
        "next_prefill_place": following(place), "next_prefill_t_s": following(rows["t_s"]),
        "first_t_s": rows.groupby(scope)["t_s"].transform("first").to_numpy(),
    }


def _neighbours(own: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the places of the rows before and after each of the same rank, -1 where there is none."""
    order = np.argsort(own, kind="stable")
    same = own[order[1:]] == own[order[:-1]]
    before, after = np.full(len(own), -1), np.full(len(own), -1)
    before[order[1:][same]], after[order[:-1][same]] = order[:-1][same], order[1:][same]
    return before, after


def _taken(column: pd.Series, places: np.ndarray) -> pd.api.extensions.ExtensionArray | np.ndarray:
    """Return the values of other rows, missing at place -1; numbers as float64."""
    if column.dtype == "boolean":
        return column.array.take(places, allow_fill=True)
    values = column.to_numpy(dtype=float)[places]
    values[places < 0] = np.nan
    return values


def of_each_rank(ticks: pd.DataFrame) -> list[tuple[int, pd.DataFrame]]:
    """Return server life and rows of every rank; the table itself where it is of one, for a copy of it is large."""
    if ticks["server_life"].nunique() == 1 and ticks["rank_key"].nunique() == 1:
        return [(int(ticks["server_life"].iloc[0]), ticks)]
    by_rank = ticks.groupby(["server_life", "rank_key"], sort=False)
    return [(int(str(life)), part) for (life, _), part in by_rank]


def put_together(parts: list[pd.DataFrame]) -> pd.DataFrame:
    """Return the rows of all ranks in file order."""
    return parts[0] if len(parts) == 1 else pd.concat(parts).sort_values("pos")


def add_steps_and_times(
    ticks: pd.DataFrame, facts: Mapping[int, Mapping[str, object]], rule: CleanRule
) -> pd.DataFrame:
    """Add n_steps, interval_s, own_req, step_s, prefill_tok, context_tok."""
    parts = []
    for life, part in of_each_rank(ticks):
        part = part.assign(printed_s=part["t_s"] - part["prev_t_s"])
        add = _add_window_times if part["kind"].iloc[0] == "stats" else _add_step_times
        parts.append(add(part, facts.get(life, {}), rule).drop(columns=list(SPENT)))
    return put_together(parts)


SPENT = ("prev_used_tok", "next_running_req", "prefill_tok_per_s")
"""Columns of the working table that are read no more once steps and times are known."""


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
        growth_off=(growth - expected).abs() > slack,
        context_tok=context.where(part["used_tok"] > 0),
        cap=_number(known, "max_running_requests"),
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
    quiet = constant & part["n_prefills"].eq(0) & part["decode_tok_per_s"].gt(0)
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
    several = ticks.loc[ticks["counted_as"].isin(["lockstep", "replica"]),
                        ["server_life", "rank_key", "counted_as", "pos", "t_s", "running_req"]]
    for life, part in several.groupby("server_life"):
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
