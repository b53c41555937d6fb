"""Observations from the statistic lines beside the rate: queue, pool, limits, graphs, ranks, drafts, odd counts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from helpers.diagnose.observations import Observation
from helpers.display import show
from helpers.schema import SAMPLES, check

STATE_KINDS = ("decode", "stats", "iteration", "counters")
"""Records that say how many requests run while decode goes on."""

FEWEST = 10
"""Records below which a share of them says nothing."""

FEWEST_WAITING = 5
"""Records in which requests wait from which these, and not all, tell whether the pool holds them up."""

POOL_FULL_FRAC = 0.97
"""Use of the KV pool from which a server that prints two decimals has no room for a request in flight."""

POOL_FREE_FRAC = 0.90
"""Use of the pool up to which it does not explain a queue."""

SAME_COUNT_FRAC = 0.6
"""Share of the records at one count from which the count is pinned there."""

ABOVE_FRAC = 0.02
"""Share of the records above a count from which it is no limit."""

NEAR_LIMIT_REQ = 1
"""Requests below its limit at which a server still stands at it: it may count one request twice."""

EVEN_REQ = 4.0
"""Mean requests per rank from which chance no longer makes ranks uneven by half [req]."""

IDLE_RANK_FRAC = 0.5
"""A rank with less than this share of the fullest rank's requests has room."""

MIN_FROZEN = 4
"""Records with one count of used tokens, while requests decode, from which the count is no context."""

USUAL_LOG_INTERVAL = 40
"""Decode steps per line where nothing else is known (SGLang's default)."""

LARGEST_USUAL_PAGE_TOK = 64
"""Page up to which counts are rounded where the page is not known [tok]."""

OCCUPANCY_KEY = "fwd occupancy (%)"


def observe(samples: pd.DataFrame, facts: Mapping[str, Any], lives: list[int]) -> Iterator[Observation]:
    """Yield what the records of the given server lives say.

    Parameters
    ----------
    samples : DataFrame, schema SAMPLES
    facts : mapping
        Of the deployment.
    lives : list of int
        Server lives that the answer rests on.
    """
    check(samples, SAMPLES)
    is_of_lives = samples["server_life"].isin(lives)
    is_state = is_of_lives & samples["kind"].isin(STATE_KINDS) & samples["running_req"].notna()
    is_busy = is_state & samples["running_req"].gt(0).fillna(False)

    def of_lives(*names: str) -> pd.DataFrame:
        return samples.loc[is_of_lives, list(names)]

    def busy(*names: str) -> pd.DataFrame:
        return samples.loc[is_busy, ["running_req", *names]]

    # Each takes the columns it reads: a copy of all of them is most of what a large log takes in memory.
    yield from _queue(busy("rank", "queue_req", "kv_used_frac"), facts)
    yield from _pool(busy("queue_req", "kv_used_frac"), of_lives("retracted_req"))
    yield from _ranks(samples.loc[is_state, ["rank", "t_s", "running_req", "queue_req"]], facts)
    yield from _graphs(busy("graph", "decode_tok_per_s"), facts)
    yield from _occupancy(busy("extra"))
    yield from _drafts(of_lives("running_req", "decode_tok_per_s", "accept_len", "accept_rate_frac", "span_s"), facts)
    yield from _counts(busy("kind", "used_tok", "extra"), facts)


def _share(flags: pd.Series) -> float:
    """Share of the records that know; NaN below `FEWEST`."""
    known = flags.dropna()
    return float(known.mean()) if len(known) >= FEWEST else float("nan")


def _queue(busy: pd.DataFrame, facts: Mapping[str, Any]) -> Iterator[Observation]:
    """Tell whether requests wait, and whether a count stands still at a limit."""
    queued = busy[busy["queue_req"].notna()]
    if len(queued) < FEWEST:
        return
    waits = queued["queue_req"].gt(0)
    yield _of("queue_time_frac", float(waits.mean()),
              f"requests wait in {waits.mean():.0%} of {len(queued)} records while others run"
              if waits.any() else f"no request waits in any of {len(queued)} records")
    waiting = queued[waits]
    if len(waiting) < FEWEST_WAITING:
        return
    most = float(waiting["running_req"].mode().max())
    pinned = waiting["running_req"].eq(most) & ~waiting["kv_used_frac"].gt(POOL_FREE_FRAC)
    held = float(pinned.mean())
    if held < SAME_COUNT_FRAC or queued["running_req"].gt(most).mean() > ABOVE_FRAC:
        return
    used = waiting.loc[pinned, "kv_used_frac"].median()
    pool = "" if pd.isna(used) else f", with {used:.0%} of the KV pool in use"
    says = f"while requests wait, those that run stand at {most:g} in {held:.0%} of {len(waiting)} records{pool}"
    yield _of("pinned_with_queue_frac", held, says)
    limit = _limit_per_rank(facts, queued)
    if limit is not None:
        is_there = limit - NEAR_LIMIT_REQ <= most <= limit
        yield _of("pinned_at_limit_frac", held if is_there else 0.0,
                  f"{says}; the limit is {limit:g} {'per rank' if _n_ranks(queued) > 1 else 'in all'}")


def _limit_per_rank(facts: Mapping[str, Any], records: pd.DataFrame) -> float | None:
    """Return the limit on running requests as one rank has it: SGLang divides its limit over data-parallel ranks."""
    limit = facts.get("max_running_requests") or facts.get("slots")
    if not limit:
        return None
    share = _n_ranks(records) if facts.get("engine") == "sglang" and facts.get("dp_attention") else 1
    return max(float(limit) // share, 1.0)


def _n_ranks(records: pd.DataFrame) -> int:
    """Count data-parallel ranks: those whose tags differ in DP."""
    return max(int(_data_rank(pd.Series(records["rank"].unique(), dtype="str")).nunique()), 1)


def _data_rank(rank: pd.Series) -> pd.Series:
    """Return the DP tag of rank tags such as 'DP0 TP0'; missing where there is none."""
    codes, names = pd.factorize(rank)
    tags = [next((tag for tag in str(name).split() if tag.startswith("DP")), None) for name in names]
    return pd.Series(pd.array([*tags, None], dtype="str").take(codes), index=rank.index, name=rank.name)


def _pool(busy: pd.DataFrame, of_lives: pd.DataFrame) -> Iterator[Observation]:
    """Read the use of the KV pool, and requests that were put back."""
    known = busy["kv_used_frac"].dropna()
    if len(known) >= FEWEST:
        # A pool limits those that wait; low loads of a sweep say nothing about it.
        waiting = busy.loc[busy["queue_req"].gt(0), "kv_used_frac"].dropna()
        asked, when = (waiting, " in which requests wait") if len(waiting) >= FEWEST_WAITING else (known, "")
        full = float(asked.ge(POOL_FULL_FRAC).mean())
        yield _of("pool_full_time_frac", full,
                  f"the KV pool is at least {POOL_FULL_FRAC:.0%} full in {full:.0%} of {len(asked)} records{when}")
        yield _of("pool_use_most_frac", float(known.max()), f"the KV pool is never more than {known.max():.0%} full")
    retracted = of_lives["retracted_req"].dropna()
    if len(retracted) and retracted.max() > 0:
        n_records = int((retracted > 0).sum())
        yield _of("retracted_events", float(n_records),
                  f"{n_records} records say that requests were put back (up to {int(retracted.max())})")


def _ranks(state: pd.DataFrame, facts: Mapping[str, Any]) -> Iterator[Observation]:
    """Hold data-parallel ranks against each other."""
    rank = _data_rank(state["rank"])
    names = sorted(rank.dropna().unique(), key=lambda name: int(name[2:] or 0))
    told = int(facts.get("dp") or 1)
    n_ranks = max(len(names), told)
    if len(state):
        yield _of("n_data_ranks", float(n_ranks),
                  "there is one data-parallel rank" if n_ranks == 1 else f"there are {n_ranks} data-parallel ranks")
        if n_ranks == 1 and all(facts.get(name) == 1 for name in ("tp", "pp")):
            yield _of("is_one_rank", 1.0, "one rank does everything: there is no other to wait for")
    if len(names) < 2 or state["t_s"].isna().all():
        return
    table = state.assign(rank_name=rank, second=state["t_s"].round(), running_req=state["running_req"].astype(float),
                         queue_req=state["queue_req"].astype(float))
    running, queue = (_per_second(table, column, names) for column in ("running_req", "queue_req"))
    if len(running) < FEWEST:
        return
    fullest, mean = running.max(axis=1), running.mean(axis=1)
    # Few requests cannot be even: only seconds with some on every rank's share tell.
    active = mean >= EVEN_REQ
    spread = float((fullest[active] / mean[active]).mean()) if active.sum() >= FEWEST else float("nan")
    worst = running[active].mean().idxmax() if active.any() else ""
    yield _of("rank_spread", spread,
              f"the fullest of {len(names)} ranks holds {show(spread)} times the mean number of requests ({worst})")
    waits = queue.gt(0).any(axis=1)
    others = running.where(queue.eq(0)).min(axis=1)
    beside = waits & (others < IDLE_RANK_FRAC * fullest.clip(lower=1))
    share = float(beside.mean())
    where = queue.mean().idxmax()
    waiting = show(float(queue[where].mean()))
    yield _of("queue_beside_idle_ranks_frac", share,
              f"in {share:.0%} of the time requests wait on one rank ({where}, mean {waiting}) while another has room")


def _per_second(table: pd.DataFrame, column: str, names: list[str]) -> pd.DataFrame:
    """Return a column per rank on whole seconds: the last value, kept until the rank's next record.

    A rank that printed nothing while others did has stopped: its steps are counted, it only has no request.
    """
    wide = table.pivot_table(index="second", columns="rank_name", values=column, aggfunc="last").reindex(columns=names)
    silent = wide.isna().astype(float).rolling(SILENT_RECORDS, min_periods=SILENT_RECORDS).mean().ge(1)
    return wide.ffill().mask(silent, 0.0).dropna()


SILENT_RECORDS = 5
"""Seconds with records of other ranks and none of its own from which a rank counts as empty."""


def _graphs(busy: pd.DataFrame, facts: Mapping[str, Any]) -> Iterator[Observation]:
    """Find steps without a graph although graphs were captured, and batches beyond the captured sizes."""
    sizes = [float(size) for size in facts.get("captured_batch_sizes") or [] if size]
    if (facts.get("args") or {}).get("device") == "cpu":
        return  # a processor has no graphs to lose
    if facts.get("engine") == "sglang" and facts.get("cuda_graph_enabled") is False:
        yield _of("graph_is_off", 1.0, "the server was started without graphs for decode")
    flags = busy[busy["graph"].notna()]
    if len(flags) >= FEWEST:
        eager = ~flags["graph"].astype(bool)
        time = _weights(flags)
        frac = float(np.average(eager, weights=time))
        if not eager.any():
            yield _of("graph_always", 1.0, f"all of {len(flags)} decode records ran a captured graph")
        elif not eager.all():
            lowest = flags.loc[eager, "running_req"].min()
            beyond = f" (largest captured size {max(sizes):g})" if sizes else ""
            yield _of("fallback_time_frac", frac, f"decode ran without a graph in {frac:.0%} of its time, from "
                      f"{lowest:g} running requests on{beyond}")
        elif facts.get("cuda_graph_enabled") is not False:
            yield _of("graph_is_off", 1.0, f"no decode record of {len(flags)} ran a captured graph")
    if sizes and len(busy) >= FEWEST and not len(flags):
        beyond_frac = float(busy["running_req"].gt(max(sizes)).mean())
        yield _of("beyond_captured_frac", beyond_frac,
                  f"{beyond_frac:.0%} of the records have more requests than the largest captured size {max(sizes):g}")
    inside = busy[busy["running_req"].le(max(sizes))] if sizes else busy.iloc[:0]
    if len(inside) >= FEWEST:
        n = inside["running_req"].astype(float).to_numpy()
        ladder = np.sort(np.array(sizes))
        padded = ladder[np.searchsorted(ladder, n)]
        frac = float(np.average(padded / n - 1, weights=_weights(inside)))
        yield _of("padding_frac", frac, f"captured sizes add {frac:.0%} to the running requests, over time")


def _weights(records: pd.DataFrame) -> np.ndarray:
    """Return what a record counts for: steps over rate where the rate is known (a slow step lasts longer)."""
    rate = records["decode_tok_per_s"].astype(float)
    time = (records["running_req"].astype(float) / rate).where(rate > 0)
    return time.clip(upper=10 * time.median()).fillna(time.median()).fillna(1.0).to_numpy(float)


def _occupancy(busy: pd.DataFrame) -> Iterator[Observation]:
    """Share of the time in which forward kernels ran, where the server prints it."""
    lines = busy.loc[busy["extra"].str.contains(OCCUPANCY_KEY, regex=False, na=False), "extra"]
    found = [json.loads(text).get(OCCUPANCY_KEY) for text in lines]
    values = np.array([float(value) for value in found if isinstance(value, int | float)])
    values = values[np.isfinite(values)]
    if len(values) >= FEWEST:
        frac = float(np.median(values)) / 100
        yield _of("kernels_fill_step_frac", frac,
                  f"forward kernels ran in {frac:.0%} of the time by the server's own timer ({len(values)} records)")


def _drafts(of_lives: pd.DataFrame, facts: Mapping[str, Any]) -> Iterator[Observation]:
    """Read the acceptance of drafted tokens, and how it moves with the load."""
    known = of_lives[of_lives["accept_len"].notna()]
    uses = len(known) > 0
    if len(of_lives) >= FEWEST:
        yield _of("uses_drafts", float(uses), "drafts are used" if uses else "no record speaks of drafted tokens")
    if not uses:
        return
    length = known["accept_len"].astype(float)
    drafted = _drafted_tok(known, facts)
    if drafted is None:
        return
    accepted = (length - 1) / drafted
    weights = _weights(known) if known["running_req"].notna().all() else known["span_s"].fillna(1.0).to_numpy(float)
    frac = float(np.average(accepted, weights=weights))
    yield _of("accepted_frac", frac, f"of {show(float(np.mean(drafted)))} drafted tokens per request and round "
              f"{frac:.0%} are accepted (accept length {show(float(np.average(length, weights=weights)))})")
    load = known["running_req"].astype(float)
    if load.notna().sum() >= FEWEST and load.max() >= 2 * max(load.min(), 1):
        low, high = (accepted[side].mean() for side in (load <= load.quantile(0.25), load >= load.quantile(0.75)))
        falls = bool(np.isfinite(low) and np.isfinite(high) and high < 0.7 * low)
        yield _of("acceptance_falls_with_load", float(falls),
                  f"accepted share {low:.0%} at few, {high:.0%} at many requests")


def _drafted_tok(known: pd.DataFrame, facts: Mapping[str, Any]) -> np.ndarray | None:
    """Drafted tokens per request and round: as printed with the acceptance, else as the server was told."""
    rate = known["accept_rate_frac"].astype(float)
    length = known["accept_len"].astype(float)
    told = facts.get("num_draft_tokens")
    if told:
        per_round = told - 1 if facts.get("engine") == "sglang" else told
        return np.full(len(known), float(max(per_round, 1)))
    if rate.gt(0).all():
        return ((length - 1) / rate).clip(lower=1).to_numpy(float)
    return None


def _counts(busy: pd.DataFrame, facts: Mapping[str, Any]) -> Iterator[Observation]:
    """Find counts that are not what their names say."""
    used = busy[busy["used_tok"].notna() & busy["kind"].eq("decode")]
    same = used[used["used_tok"].eq(used["used_tok"].shift()) & used["running_req"].eq(used["running_req"].shift())]
    n_steps = len(same) * int(facts.get("decode_log_interval") or USUAL_LOG_INTERVAL)
    is_rounded = n_steps <= int(facts.get("page_size") or LARGEST_USUAL_PAGE_TOK)
    if len(used) >= MIN_FROZEN and len(same) == len(used) - 1 and used["used_tok"].iloc[0] > 0 and not is_rounded:
        yield _of("frozen_count", 1.0, f"the used-token count stays at {int(used['used_tok'].iloc[0])} over "
                  f"{len(used)} records while requests decode: it is no context (a buffer of fixed size)")
    told = busy[busy["extra"].str.contains("num_generation_tokens", regex=False, na=False)]
    scheduled = [(json.loads(text).get("num_generation_tokens"), n) for text, n in
                 zip(told["extra"], told["running_req"], strict=True)]
    pairs = [(float(tokens), float(n)) for tokens, n in scheduled if isinstance(tokens, int | float) and n]
    if len(pairs) >= FEWEST:
        over = float(np.mean([tokens / n - 1 for tokens, n in pairs]))
        yield _of("padded_count_frac", over, f"the printed generation tokens are {over:.0%} more than the scheduled "
                  "requests: they count padding up to the captured size")


def _of(name: str, value: float, says: str) -> Observation:
    return Observation(name, value, "log", says, "statistic lines")
