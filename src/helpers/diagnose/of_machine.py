"""Observations from what the devices recorded, from kernel profiles, from links, and from another run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import isfinite, nan
from typing import Any

import numpy as np
import pandas as pd

from helpers.diagnose.observations import Observation
from helpers.display import level_key, show
from helpers.schema import KERNELS, LEVELS, TELEMETRY, check

FEWEST = 3
"""Samples per device below which its telemetry says nothing."""

WORKS_FRAC = 0.05
"""Busy share below which a device did nothing, if others did: an average over idle boards is none of the server."""

NO_TRAFFIC_FRAC = 0.40
"""Busy share of the memory below which bytes do not set the step."""

LOW_SM_FRAC = 0.50
FULL_BUSY_FRAC = 0.95
NEAR_LIMIT_FRAC = 0.80
"""Board power over its limit below which the limit cannot hold the clock (physics.md 4.2)."""

NO_REASON_FRAC = 0.05
OTHER_BOARD_FRAC = 0.10
"""Difference of memory clocks from which boards are of different kinds: one kind runs its memory at one clock."""

COOL_C = 80.0
"""Core temperature below which no board of the catalogue slows down [C]."""

STEADY_CLOCK_FRAC = 0.95
OTHER_LIMIT_FRAC = 0.10
SAME_SPEED_FRAC = 0.03
LOWER_CLOCK_FRAC = 0.05
SURELY_SLOWER = 1.15
"""Step over the baseline's that no scatter of levels explains, even where an interval is wide (a cap that came and
went)."""

PER_REQUEST_FRAC = 0.8
"""Launches of one kernel per layer and step, over the running requests, from which it runs once per request."""

UNCLASSIFIED_FRAC = 0.10
LARGE_SHARE_FRAC = 0.25

MANY_REQ = 8
"""Running requests from which a kernel per request stands out from the few launches per layer of any model."""


def of_telemetry(
    table: pd.DataFrame, facts: Mapping[str, Any], file: pd.DataFrame | None = None, boost_hz: float = nan,
    at: str = "loaded windows only",
) -> Iterator[Observation]:
    """Yield what devices and ranks recorded in the windows that are compared.

    Parameters
    ----------
    table : DataFrame, schema TELEMETRY
        Clipped to the log's loaded windows.
    facts : mapping
        Of the deployment; its power limits count where the file has none.
    file : DataFrame, schema TELEMETRY, optional
        The whole file, for the largest clock.
    boost_hz : float
        Boost clock of the accelerator; NaN where unknown [Hz].
    at : str
        Which windows, in words.
    """
    check(table, TELEMETRY)
    yield from _gauges(table[table["rank"].notna()])
    every = table[table["device"].notna()]
    devices = _working(every)
    if devices.empty or devices.groupby("device").size().min() < FEWEST:
        return
    n_working, n_all = devices["device"].nunique(), every["device"].nunique()
    where = f"{n_working} {f'of {n_all} ' if n_all > n_working else ''}device{'s' if n_all > 1 else ''}, {at}"
    n_ranks = _ranks(facts)
    if n_ranks is not None and n_working > n_ranks:
        yield _tele("boards_of_others", 1.0, f"{n_working} boards work and the server has {n_ranks} "
                    f"rank{'s' if n_ranks > 1 else ''}: which are its own is not known, so none is used")
        return
    if devices["busy_frac"].notna().any() and devices.groupby("device")["busy_frac"].median().max() < WORKS_FRAC:
        yield _tele("dead_counter", 1.0, f"utilisation shows {devices['busy_frac'].max():.0%} at most while requests "
                    f"decode: it does not count ({where})")
        devices = devices.assign(busy_frac=nan)
    medians = devices.groupby("device").median(numeric_only=True)
    for name, words in (("busy_frac", "any kernel ran in {} of the time"),
                        ("mem_busy_frac", "the memory controller was busy in {} of the time"),
                        ("dram_active_frac", "the memory interface moved data in {} of the time"),
                        ("tensor_active_frac", "the tensor pipes worked in {} of the time")):
        value = float(medians[name].median())
        if isfinite(value):
            yield _tele(name, value, f"{words.format(f'{value:.0%}')} (median; {where})")
    yield from _alike(devices, medians)
    yield from _traffic(medians, where)
    yield from _power(devices, facts, where)
    yield from _clock(devices, file if file is not None else table, boost_hz, where)


def _ranks(facts: Mapping[str, Any]) -> int | None:
    """Count the boards that the server uses; None where its degrees are not known."""
    if facts.get("gpus"):
        return int(facts["gpus"])
    if not facts.get("tp"):
        return None
    copies = 1 if facts.get("dp_attention") and facts.get("engine") == "sglang" else int(facts.get("dp") or 1)
    return int(facts["tp"]) * int(facts.get("pp") or 1) * copies


def _working(devices: pd.DataFrame) -> pd.DataFrame:
    """Drop devices that did nothing while others worked."""
    busy = devices.groupby("device")["busy_frac"].median()
    idle = list(busy.index[busy.lt(WORKS_FRAC)]) if busy.ge(WORKS_FRAC).any() else list[str]()
    return devices[~devices["device"].isin(idle)]


def _alike(devices: pd.DataFrame, medians: pd.DataFrame) -> Iterator[Observation]:
    """Say whether the boards are of one kind: ranks with equal shares of the work wait for the slower board."""
    clocks, names = medians["mem_clock_hz"].dropna(), devices["device_name"].dropna().unique()
    apart = float(clocks.max() / clocks.min() - 1) if len(clocks) > 1 and clocks.min() > 0 else 0.0
    if apart < OTHER_BOARD_FRAC and len(names) < 2:
        return
    what = (f"memory clocks of {clocks.min() / 1e6:.0f} and {clocks.max() / 1e6:.0f} MHz"
            if apart >= OTHER_BOARD_FRAC else "names " + ", ".join(sorted(map(str, names))))
    yield _tele("boards_differ", 1.0,
                f"the boards are not alike ({what}): equal shares of the work wait for the slower one")


def _traffic(medians: pd.DataFrame, where: str) -> Iterator[Observation]:
    """Say whether devices were busy without moving much memory, and how many of their SMs worked."""
    busy = float(medians["busy_frac"].median())
    column = "dram_active_frac" if medians["dram_active_frac"].notna().any() else "mem_busy_frac"
    memory = float(medians[column].median())
    if isfinite(busy) and isfinite(memory):
        yield _tele("busy_without_traffic", float(busy >= FULL_BUSY_FRAC and memory < NO_TRAFFIC_FRAC),
                    f"kernels run in {busy:.0%} of the time while the memory is busy in {memory:.0%} ({where})")
    active = float(medians["sm_active_frac"].median())
    if isfinite(active):
        yield _tele("sm_active_low", float(active < LOW_SM_FRAC),
                    f"{active:.0%} of the SMs hold work on average ({where})")


def _power(devices: pd.DataFrame, facts: Mapping[str, Any], where: str) -> Iterator[Observation]:
    """Hold power against its limit, and read the reasons for lower clocks."""
    limit = devices["power_limit_w"]
    told = facts.get("power_limit_w")
    if limit.isna().all() and isinstance(told, int | float):
        limit = pd.Series(float(told), index=devices.index)
    share = (devices["power_w"] / limit).dropna()
    held = pd.concat([devices["is_power_capped"], devices["is_thermally_slowed"]], axis=1)
    known = held.notna().any(axis=1)
    held_frac = float(held[known].fillna(False).any(axis=1).mean()) if known.any() else float("nan")
    if isfinite(held_frac):
        why = "power" if devices["is_power_capped"].fillna(False).any() else "temperature"
        says = (f"the driver says that {why} held the clock down in {held_frac:.0%} of the samples" if held_frac
                else "the driver gives no reason for a lower clock")
        yield _tele("clock_held_frac", held_frac, f"{says} ({where})")
    if share.empty:
        return
    used, most = float(share.median()), float(share.quantile(0.9))
    watts = show(float(devices["power_w"].median()), "W")
    yield _tele("power_over_limit", used, f"boards draw {watts}, {used:.0%} of their limit ({where})")
    cool = devices["temperature_c"].max() < COOL_C
    clock = devices["sm_clock_hz"].dropna()
    steady = len(clock) > 0 and clock.quantile(0.1) >= STEADY_CLOCK_FRAC * clock.max()
    no_reason = held_frac <= NO_REASON_FRAC if isfinite(held_frac) else (bool(cool) or bool(steady))
    if most < NEAR_LIMIT_FRAC and no_reason:
        yield _tele("far_from_power_limit", 1.0,
                    f"boards draw {watts}, {used:.0%} of their limit, and nothing held the clock down ({where})")


def _clock(devices: pd.DataFrame, file: pd.DataFrame, boost_hz: float, where: str) -> Iterator[Observation]:
    """Hold the clock of the loaded windows against the largest of the file, and against the board's boost clock."""
    now, most = devices.groupby("device")["sm_clock_hz"].median(), file.groupby("device")["sm_clock_hz"].max()
    below = (1 - now / most.reindex(now.index)).dropna()
    if len(below):
        yield _tele("clock_below_max_frac", float(below.max()),
                    f"the clock stands {below.max():.0%} below its largest in the file ({where})")
    if isfinite(boost_hz) and now.notna().any():
        under = float(1 - now.min() / boost_hz)
        yield _tele("clock_below_boost_frac", under,
                    f"the clock, {now.min() / 1e6:.0f} MHz, stands {under:.0%} below the board's boost clock ({where})")


def _gauges(ranks: pd.DataFrame) -> Iterator[Observation]:
    """Hold the gauges of data-parallel ranks against each other."""
    if ranks["rank"].nunique() < 2 or ranks["t_s"].isna().all():
        return
    names = {column: ranks.pivot_table(index="t_s", columns="rank", values=column, aggfunc="last").ffill().dropna()
             for column in ("running_req", "queue_req")}
    running, queue = names["running_req"], names["queue_req"].reindex(names["running_req"].index).ffill()
    if len(running) < FEWEST:
        return
    active = running.mean(axis=1) > 0
    if active.any():
        spread = float((running.max(axis=1) / running.mean(axis=1))[active].mean())
        yield _tele("gauge_rank_spread", spread,
                    f"the fullest of {running.shape[1]} ranks holds {show(spread)} times the mean number of requests")
    if queue.empty:
        return
    room = running.where(queue.eq(0)).min(axis=1) < 0.5 * running.max(axis=1).clip(lower=1)
    beside = queue.gt(0).any(axis=1) & room
    waiting = queue.mean()
    yield _tele("queue_beside_idle_ranks_frac", float(beside.mean()),
                f"in {beside.mean():.0%} of {len(running)} samples requests wait on one rank ({waiting.idxmax()}, mean "
                f"{show(float(waiting.max()))}) while another has room")


def of_profile(
    kernels: pd.DataFrame, *, gap_frac: float, small_launch_frac: float, n_steps: float, running_req: float,
    n_layers: float, file: str = "profile",
) -> Iterator[Observation]:
    """Yield what a kernel profile says.

    Parameters
    ----------
    kernels : DataFrame, schema KERNELS
    gap_frac : float
        Share of the steps in which no kernel ran; NaN where the profile cannot tell.
    small_launch_frac : float
        Share of the kernel time in launches of fewer blocks than multiprocessors; NaN where grids are not recorded.
    n_steps : float
        Steps in the profile; NaN where unknown.
    running_req, n_layers : float
        Of the steps, of the model; NaN where unknown.
    file : str
        Its name.
    """
    check(kernels, KERNELS)
    total_s = float(kernels["total_s"].sum())
    if not total_s > 0:
        return
    share = kernels.groupby("role")["total_s"].sum() / total_s
    unclassified = float(share.get("unclassified", 0.0))
    for name, roles, words in (
        ("communication_share_frac", ("communication",), "collectives"),
        ("attention_share_frac", ("attention",), "attention"),
        ("gemm_share_frac", ("dense_gemm", "moe"), "matrix products"),
        ("state_share_frac", ("state",), "recurrent layers"),
    ):
        known = float(sum(share.get(role, 0.0) for role in roles))
        says = f"{words} take {known:.0%} of the kernel time"
        if unclassified >= UNCLASSIFIED_FRAC:
            says += f" ({unclassified:.0%} is of kernels whose names tell nothing)"
        # A small share is one only if the unknown kernels cannot be of this role.
        yield _prof(name, known if known > LARGE_SHARE_FRAC else known + unclassified, says, file)
    if isfinite(gap_frac):
        yield _prof("gap_frac", gap_frac, f"no kernel runs in {gap_frac:.0%} of a step", file)
    if isfinite(small_launch_frac):
        yield _prof("few_blocks_frac", small_launch_frac, f"{small_launch_frac:.0%} of the kernel time is in launches "
                    "of fewer blocks than the device has SMs", file)
    yield from _launches(kernels, n_steps, running_req, n_layers, file)



def _launches(
    kernels: pd.DataFrame, n_steps: float, running_req: float, n_layers: float, file: str
) -> Iterator[Observation]:
    """Say whether a kernel is launched once per request and layer."""
    if not (isfinite(n_steps) and isfinite(running_req) and isfinite(n_layers) and running_req >= MANY_REQ):
        return
    total_s = float(kernels["total_s"].sum())
    by_name = kernels.groupby("name")[["n_calls", "total_s"]].sum()
    per_layer = by_name["n_calls"] / n_steps / n_layers
    many = by_name[per_layer.ge(PER_REQUEST_FRAC * running_req)]
    frac = float(many["total_s"].sum()) / total_s
    if frac >= 0.25:
        most = float(per_layer[many.index].max())
        yield _prof("kernels_grow_with_requests", 1.0, f"kernels with {frac:.0%} of the time run {show(most)} times "
                    f"per layer and step at N={level_key(running_req)}: once per request", file)
    elif per_layer.max() < running_req / 2:
        yield _prof("kernels_grow_with_requests", 0.0, f"no kernel runs more than {show(float(per_layer.max()))} times "
                    f"per layer and step at N={level_key(running_req)}", file)


def of_baseline(
    levels: pd.DataFrame, base_levels: pd.DataFrame, table: pd.DataFrame | None, base_table: pd.DataFrame | None,
    lives: Sequence[int],
) -> Iterator[Observation]:
    """Yield what another run of the same server says about power and clocks.

    Parameters
    ----------
    levels, base_levels : DataFrame, schema LEVELS
        Of this run and the other one.
    table, base_table : DataFrame, schema TELEMETRY, or None
        Clipped to the loaded windows of either.
    lives : sequence of int
        Server lives of this run that the answer rests on.
    """
    here = check(levels, LEVELS)
    here = here[here["server_life"].isin(list(lives)) & here["population"].eq(0) & here["step_s"].gt(0)]
    there = check(base_levels, LEVELS)
    there = there[there["population"].eq(0) & there["step_s"].gt(0)]
    both = here.merge(there, on="running_req", suffixes=("", "_base"))
    if both.empty:
        return
    row = both.sort_values("running_req").iloc[-1]
    ratio = float(row["step_s"] / row["step_s_base"])
    apart = bool(row["step_s_lo"] > row["step_s_hi_base"])
    level = level_key(row["running_req"])
    says = f"at N={level} the step is {show(ratio)} times that of the baseline"
    yield _base("step_over_baseline", ratio, says)
    if table is None or base_table is None or table.empty or base_table.empty:
        return
    # Nullable columns make the medians NA: as plain numbers, NaN compares as false.
    now, then = (_working(t[t["device"].notna()]).median(numeric_only=True).astype(object).map(_number)
                 for t in (table, base_table))
    limits = now["power_limit_w"], then["power_limit_w"]
    other_limit = abs(limits[0] / limits[1] - 1) >= OTHER_LIMIT_FRAC if limits[1] else False
    watts = f"a power limit of {limits[0]:.0f} W here and {limits[1]:.0f} W there"
    slower_clock = 1 - now["sm_clock_hz"] / then["sm_clock_hz"]
    if isfinite(slower_clock):
        yield _base("clock_below_baseline_frac", float(slower_clock),
                    f"the clock stands {slower_clock:.0%} below the baseline's")
    if other_limit and abs(ratio - 1) <= SAME_SPEED_FRAC:
        yield _base("same_speed_at_other_limit", 1.0, f"{says}, with {watts}: lifting the limit releases nothing")
    elif (apart or ratio > SURELY_SLOWER) and ratio > 1 + SAME_SPEED_FRAC and slower_clock >= LOWER_CLOCK_FRAC:
        yield _base("slower_than_baseline_at_lower_clock", 1.0,
                    f"{says}, at a clock {slower_clock:.0%} lower" + (f", with {watts}" if other_limit else ""))


def _number(value: Any) -> float:
    return nan if pd.isna(value) else float(value)


def of_links(
    has_nvlink: bool | None, reduced: Sequence[str], source: str, *, is_printed: bool
) -> Iterator[Observation]:
    """Yield what topology and link states say; only states under load count.

    Parameters
    ----------
    has_nvlink : bool or None
        Whether the ranks are joined by it; None where nothing tells.
    reduced : sequence of str
        Sentences of links that run below what both ends can, under load.
    source : str
        Where it was seen.
    is_printed : bool
        A tool printed it on the machine; else it is what the user or the catalogue says.
    """
    if has_nvlink is not None:
        yield Observation("has_no_nvlink", float(not has_nvlink), "links" if is_printed else "told",
                          f"the ranks are joined by {'NVLink' if has_nvlink else 'PCIe, not NVLink'}", source)
    for text in reduced:
        yield Observation("link_is_reduced", 1.0, "links", text, source)


def of_facts(facts: Mapping[str, Any]) -> Iterator[Observation]:
    """Yield what the user and the arguments of the server say."""
    degrees = [facts.get(name) for name in ("tp", "pp")]
    if any(degrees):
        ranks = int(np.prod([degree or 1 for degree in degrees]))
        ranks = max(ranks, int(facts.get("dp") or 1) if facts.get("dp_attention") else 1)
        yield _told("n_ranks", float(ranks),
                    "one rank has no other to wait for" if ranks == 1 else f"{ranks} ranks share a step")
    if facts.get("disable_overlap_schedule") or facts.get("enable_overlap_schedule") is False:
        yield _told("overlap_is_off", 1.0, "the server prepares the next step only after the last one is read")
    clients, pool = facts.get("client_concurrency"), facts.get("kv_pool_tokens")
    length = (facts.get("prompt_tokens") or 0) + (facts.get("output_tokens") or 0)
    if clients and pool and length:
        demand = float(clients) * float(length) / float(pool)
        yield _told("demand_over_pool", demand, f"{clients:g} requests of {show(float(length), 'tok')} want "
                    f"{show(demand)} times the KV pool")


def _tele(name: str, value: float, says: str) -> Observation:
    return Observation(name, value, "telemetry", says, "telemetry")


def _prof(name: str, value: float, says: str, file: str) -> Observation:
    return Observation(name, value, "profile", says, file)


def _base(name: str, value: float, says: str) -> Observation:
    return Observation(name, value, "baseline", says, "baseline")


def _told(name: str, value: float, says: str) -> Observation:
    return Observation(name, value, "told", says, "--context or the server's arguments")
