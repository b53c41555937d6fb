"""SGLang's forward-pass metrics (`--enable-forward-pass-metrics`), as JSON lines: one record per forward pass.

The server publishes msgpack on a socket; what is read here is what a subscriber wrote out as JSON, with or without
a time of its own (the record has none).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from helpers.ingest.export_scan import Export, ExportScan, json_units
from helpers.ingest.moments import read_time

ENGINE = "sglang"
_INSIDE = ("payload", "metrics", "fpm", "data", "record")
"""Keys under which a subscriber may have put the record beside its own time."""


def matches(head: str, path: str) -> bool:
    """Tell whether a file holds forward-pass records."""
    del path
    return head.lstrip()[:1] in ("{", "[") and '"scheduled_requests"' in head and '"num_decode_requests"' in head


def read(path: str) -> ExportScan:
    """Read JSON lines (or one JSON list) of forward-pass records.

    Returns
    -------
    ExportScan
        One ``iteration`` row per pass: running_req = decoding requests, used_tok = the sum of their contexts,
        new_tok = prompt tokens, span_s = wall_time, iteration = counter_id. Idle heartbeats are other_known.
    """
    scan = ExportScan(path=path, export=EXPORT.name)
    passes, ranks = _Passes(), dict[str, tuple[str, str]]()
    for unit, value in json_units(scan):
        record, time_s = _find_record(value)
        if record is None:
            scan.malform(unit, str(value)[:200], "it holds no scheduled_requests")
            continue
        row, reason = _row(unit, record, time_s)
        if row is None:
            scan.malform(unit, str(record)[:200], reason)
            continue
        worker = f"{record.get('worker_id', '')} {row['rank']}"
        if row["iteration"] is not None:
            passes.follow(scan, worker, unit, row["iteration"])
        if not row["span_s"] and not row["running_req"] and not row["new_tok"]:
            scan.know("idle heartbeat")
            continue
        scan.lines["statistic"] += 1
        scan.put({**row, "rank": worker})
        ranks[worker] = (str(record.get("worker_id", "")), str(row["rank"]))
    scan.name_ranks(_name_ranks(ranks))
    if passes.n_lost:
        scan.notes.append(
            f"{path}: {passes.n_lost} forward passes are missing by counter_id: the socket drops records when its "
            "reader is slow"
        )
    if ranks:
        scan.notes.append(
            f"{path}: wall_time of a forward pass is the time on the GPU in SGLang 0.5.23; the host's gaps between "
            "passes, which a client waits for, are not in it"
        )
    return scan


def _name_ranks(ranks: Mapping[str, tuple[str, str]]) -> dict[str, str | None]:
    """Name the ranks as the log does: none if there is one, and the worker where there are several."""
    workers = list(dict.fromkeys(worker for worker, _ in ranks.values()))
    is_single = len({rank for _, rank in ranks.values()}) == 1
    named = {}
    for key, (worker, rank) in ranks.items():
        parts = [f"WORKER{workers.index(worker)}"] if len(workers) > 1 else []
        named[key] = " ".join([*parts, *([] if is_single else [rank])]) or None
    return named


def _find_record(value: Any) -> tuple[dict[str, Any] | None, float | None]:
    """Return the record and the time its collector gave it."""
    if not isinstance(value, dict):
        return None, None
    time_s = read_time(value)
    if isinstance(value.get("scheduled_requests"), dict):
        return value, time_s
    for key in _INSIDE:
        inner = value.get(key)
        if isinstance(inner, dict) and isinstance(inner.get("scheduled_requests"), dict):
            return inner, read_time(inner) or time_s
    return None, None


def _row(unit: int, record: dict[str, Any], time_s: float | None) -> tuple[dict[str, Any] | None, str]:
    """Return the SAMPLES row of one record, or why there is none."""
    scheduled = record["scheduled_requests"]
    queued = record.get("queued_requests")
    queued = queued if isinstance(queued, dict) else {}
    wall_s = record.get("wall_time")
    if isinstance(wall_s, bool) or not isinstance(wall_s, (int, float)) or not math.isfinite(wall_s) or wall_s < 0:
        return None, f"'wall_time' is {wall_s!r}"
    names = ("num_decode_requests", "sum_decode_kv_tokens", "sum_prefill_tokens", "num_prefill_requests")
    counts = {name: scheduled.get(name, 0) for name in names}
    for name, count in counts.items():
        if not _is_count(count):
            return None, f"{name!r} is {count!r}"
    waiting = [queued.get("num_prefill_requests", 0), queued.get("num_decode_requests", 0)]
    extra = {
        name: scheduled[name] for name in scheduled
        if name not in ("num_decode_requests", "sum_decode_kv_tokens", "sum_prefill_tokens") and scheduled[name]
    }
    number = record.get("counter_id")
    return {
        "line_no": unit, "engine": ENGINE, "kind": "iteration", "stamp": time_s,
        "rank": f"DP{record.get('dp_rank', 0)}",
        "running_req": counts["num_decode_requests"], "used_tok": counts["sum_decode_kv_tokens"],
        "new_tok": counts["sum_prefill_tokens"], "span_s": float(wall_s), "n_steps": 1.0,
        "queue_req": sum(waiting) if all(_is_count(x) for x in waiting) else None,
        "iteration": number if _is_count(number) else None, "extra": extra,
    }, ""


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


@dataclass
class _Passes:
    """The counter of each worker's passes."""

    last: dict[str, int] = field(default_factory=dict)
    n_lives: Counter[str] = field(default_factory=Counter)
    n_lost: int = 0

    def follow(self, scan: ExportScan, worker: str, unit: int, number: int) -> None:
        """Note passes that are missing, and a server that counts anew (its ranks do so one after the other)."""
        before = self.last.get(worker)
        self.last[worker] = number
        if before is None:
            return
        if number > before:
            self.n_lost += number - before - 1
            return
        self.n_lives[worker] += 1
        if self.n_lives[worker] > len(scan.restarts):
            scan.restarts.append(unit)


EXPORT = Export(
    name="SGLang forward-pass metrics",
    engine=ENGINE,
    matches=matches,
    read=read,
    kinds=("iteration",),
    versions="SGLang 0.5.12 and newer (--enable-forward-pass-metrics), JSON lines written by a subscriber",
    gives=(
        "Every forward pass with its decoding requests, their summed context and its time; the time is the GPU's in "
        "0.5.23, without the host's gaps"
    ),
)
