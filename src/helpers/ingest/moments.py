"""Snapshots of SGLang's `GET /v1/loads` over time: exact sums over decode steps instead of a sampled line.

Each load carries ``decode_moments`` = [count, sum B, sum T, sum B^2, sum B T, sum G], since the server's start, over
decode steps that follow a decode step at once (T from launch to launch, in microseconds, below 2 s; prefill and
idle boundaries are left out). Differences of two snapshots are therefore free of prompts, whatever happened between.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl

from helpers.ingest.export_scan import EPOCH, MAX_UNIX_S, Export, ExportScan, json_units

ENGINE = "sglang"
US = 1e6
"""Microseconds per second: the unit of T in decode_moments and of total_prefill_busy_us."""

N_MOMENTS = 6
_MAX_DEPTH = 4
"""Levels of wrapping (a collector's own object around the response) that are looked through."""

_TIME_KEYS = ("timestamp", "time", "ts", "t", "unix_time", "scrape_unix_time", "wall_clock", "received_at")
_LEAST_UNIX_S = 1e9
"""Numbers below are no date: relative clocks count from 0."""

_LOOKS = re.compile(r'"decode_moments"\s*:|"loads"\s*:\s*\[')
_CONSTANT_REQ2 = 1e-6
"""Variance of B below which it did not change: sums of whole numbers in doubles are exact far beyond any server."""

_COLUMNS = {
    "line_no": pl.Int64, "engine": pl.String, "rank": pl.String, "stamp": pl.Int64, "stamp_kind": pl.Int32,
    "n": pl.Float64, "sum_b": pl.Float64, "sum_t_s": pl.Float64, "sum_bb": pl.Float64, "sum_bt_s": pl.Float64,
    "sum_g": pl.Float64,
}


@dataclass(frozen=True)
class _Snapshot:
    """One load of one DP rank."""

    unit: int
    time_s: float | None
    rank: int
    sums: np.ndarray
    load: dict[str, Any]


@dataclass
class _Rank:
    """What was seen of one DP rank so far."""

    last: _Snapshot | None = None
    n_restarts: int = 0
    sums: list[tuple[int, float | None, np.ndarray]] = field(default_factory=list)
    """Line or element, time and sums of every snapshot."""


def matches(head: str, path: str) -> bool:
    """Tell whether a file holds /v1/loads responses."""
    del path
    return head.lstrip()[:1] in ("{", "[") and _LOOKS.search(head) is not None and "num_running_reqs" in head


def read(path: str) -> ExportScan:
    """Read JSON lines (or one JSON list) of responses, or of objects that hold a response and a time.

    Returns
    -------
    ExportScan
        Per rank and pair of snapshots one ``counters`` row: n_steps, span_s (the time of those steps, prompts left
        out), out_tok; running_req where B did not change between them, else missing and its mean in ``extra``. Every
        snapshot is a row of MOMENTS.
    """
    scan = ExportScan(path=path, export=EXPORT.name)
    ranks: dict[int, _Rank] = {}
    for unit, value in json_units(scan):
        loads = list(find_loads(value))
        if not loads:
            scan.malform(unit, str(value)[:200], "it holds no load of /v1/loads")
            continue
        found = [snapshot for load, time_s in loads if (snapshot := _snapshot(unit, load, time_s)) is not None]
        if not found and all(load.get("decode_moments") is None for load, _ in loads):
            scan.know("load without decode_moments")
            continue
        if not found:
            scan.malform(unit, str(loads[0][0].get("decode_moments")), "decode_moments is no list of six sums")
            continue
        for snapshot in found:
            _difference(scan, ranks.setdefault(snapshot.rank, _Rank()), snapshot)
        scan.lines["statistic"] += 1
        scan.facts.update({name: fact for name, fact in _facts(value, loads[0][0]).items() if fact})
    is_single = len(ranks) < 2
    scan.name_ranks({f"DP{rank}": None if is_single else f"DP{rank}" for rank in ranks})
    _add_moments(scan, ranks, is_single=is_single)
    if not scan.samples:
        scan.notes.append(
            f"{path}: expected at least two snapshots with decode_moments between which steps ran (SGLang 0.5.18 or "
            "newer), found none; take snapshots while requests decode"
        )
    return scan


Load = tuple[dict[str, Any], float | None]


def find_loads(value: Any, time_s: float | None = None, depth: int = 0) -> Iterator[Load]:
    """Yield every load in a response, with the time of the nearest object around it that tells one.

    Parameters
    ----------
    value : any JSON value
        A response, a load, or objects and lists around them.
    time_s : float, optional
        Time told further out [s since 1970].
    depth : int
        Levels looked through so far.
    """
    if depth > _MAX_DEPTH:
        return
    if isinstance(value, list):
        for item in value:
            yield from find_loads(item, time_s, depth + 1)
    elif isinstance(value, dict):
        mine = read_time(value)
        time_s = mine if mine is not None else time_s
        if "num_running_reqs" in value or "decode_moments" in value:
            yield value, time_s
            return
        for item in value.values():
            if isinstance(item, (dict, list)):
                yield from find_loads(item, time_s, depth + 1)


def read_time(record: dict[str, Any]) -> float | None:
    """Return the time a record tells [s since 1970], from a number or an ISO date with zone; None if it tells none."""
    for key in _TIME_KEYS:
        value = record.get(key)
        if isinstance(value, bool) or value is None:
            continue
        if isinstance(value, (int, float)) and _LEAST_UNIX_S <= value < 1e9 * MAX_UNIX_S:
            return next((value / unit for unit in (1.0, 1e3, 1e6, 1e9) if value / unit < MAX_UNIX_S), None)
        if isinstance(value, str):
            try:
                parsed = datetime.datetime.fromisoformat(value[:40])
            except ValueError:
                continue
            if parsed.tzinfo is not None:
                return parsed.timestamp()
    return None


def _snapshot(unit: int, load: dict[str, Any], time_s: float | None) -> _Snapshot | None:
    """Return the sums of one load; None if it holds none that can be read."""
    sums = load.get("decode_moments")
    rank = load.get("dp_rank", 0)
    if not isinstance(sums, list) or len(sums) < N_MOMENTS or not isinstance(rank, int):
        return None
    if not all(isinstance(x, (int, float)) and not isinstance(x, bool) and 0 <= x < 1e30 for x in sums):
        return None
    return _Snapshot(unit, time_s, rank, np.array(sums[:N_MOMENTS], dtype=float), load)


def _difference(scan: ExportScan, rank: _Rank, snapshot: _Snapshot) -> None:
    """Put the row between the snapshot before and this one, if steps were counted between them."""
    before, rank.last = rank.last, snapshot
    rank.sums.append((snapshot.unit, snapshot.time_s, snapshot.sums))
    if before is None:
        return
    change = snapshot.sums - before.sums
    if (change < 0).any():
        rank.n_restarts += 1
        if rank.n_restarts > len(scan.restarts):  # the ranks of a server start anew one after the other
            scan.restarts.append(snapshot.unit)
        return
    n, sum_b, sum_t_us, sum_bb, _, sum_g = change
    if n < 1 or sum_t_us <= 0:
        return
    mean = sum_b / n
    is_constant = sum_bb / n - mean**2 <= _CONSTANT_REQ2 * max(1.0, mean**2)
    load = snapshot.load
    extra = {"running_req_mean": round(mean, 6), **_between(before, snapshot)}
    scan.put({
        "line_no": snapshot.unit, "engine": ENGINE, "kind": "counters", "stamp": snapshot.time_s,
        "rank": f"DP{snapshot.rank}", "running_req": round(mean) if is_constant else None,
        "queue_req": _count(load, "num_waiting_reqs"), "used_tok": _count(load, "num_used_tokens"),
        "kv_used_frac": _share(load, "token_usage"), "new_tok": 0, "n_steps": n, "span_s": sum_t_us / US,
        "out_tok": sum_g, "decode_tok_per_s": sum_g / (sum_t_us / US), "accept_len": _accept_len(load, sum_g, sum_b),
        "extra": extra,
    })


def _between(before: _Snapshot, snapshot: _Snapshot) -> dict[str, float]:
    """Return what else happened between two snapshots; none of it is in the counted steps."""
    found: dict[str, float] = {}
    if before.time_s is not None and snapshot.time_s is not None:
        found["wall_s"] = round(snapshot.time_s - before.time_s, 6)
    for key, name, scale in (
        ("total_prefill_busy_us", "prefill_busy_s", US), ("total_prefill_uncached_tokens", "prefill_tok", 1.0),
    ):
        ends = before.load.get(key), snapshot.load.get(key)
        if all(isinstance(x, (int, float)) for x in ends):
            found[name] = (ends[1] - ends[0]) / scale  # type: ignore[operator]
    return found


def _accept_len(load: dict[str, Any], sum_g: float, sum_b: float) -> float | None:
    """Return tokens per request per step under speculation; without it G is B and the column stays empty."""
    return sum_g / sum_b if load.get("speculative") and sum_b > 0 else None


def _count(load: dict[str, Any], key: str) -> int | None:
    value = load.get(key)
    return value if isinstance(value, int) and 0 <= value < 2**63 else None


def _share(load: dict[str, Any], key: str) -> float | None:
    value = load.get(key)
    return float(value) if isinstance(value, (int, float)) and 0 <= value <= 1 else None


def _facts(value: Any, load: dict[str, Any]) -> dict[str, Any]:
    """Return what a response says of the server."""
    found = {"kv_pool_tokens": _count(load, "max_total_num_tokens"),
             "max_running_requests": _count(load, "max_running_requests")}
    version = value.get("version") if isinstance(value, dict) else None
    return {"engine_version": version if isinstance(version, str) else None, **found}


def _add_moments(scan: ExportScan, ranks: dict[int, _Rank], *, is_single: bool) -> None:
    """Append the cumulative sums of every snapshot, in the order of the file."""
    rows = [
        (
            unit, ENGINE, None if is_single else f"DP{rank}", None if time_s is None else round(time_s * 1e6),
            0 if time_s is None else EPOCH, sums[0], sums[1], sums[2] / US, sums[3], sums[4] / US, sums[5],
        )
        for rank, of_rank in ranks.items() for unit, time_s, sums in of_rank.sums
    ]
    if not rows:
        return
    rows.sort(key=lambda row: (row[0], row[2] or ""))
    table = pl.DataFrame(rows, schema=_COLUMNS, orient="row")
    scan.moments.append(table.with_columns(pl.col("stamp").cast(pl.Datetime("us"))))


EXPORT = Export(
    name="SGLang /v1/loads snapshots",
    engine=ENGINE,
    matches=matches,
    read=read,
    kinds=("counters",),
    versions="SGLang 0.5.18 and newer",
    gives=(
        "Exact sums over the decode steps between two snapshots, prompts and idle time left out; T runs from launch "
        "to launch; no sum of T squared, so the law from them has no interval"
    ),
)
