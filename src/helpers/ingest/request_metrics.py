"""SGLang's request metrics export (`--export-metrics-to-file`): JSON lines, one finished request each.

Prompts and sampling parameters (``request_parameters``) are never kept: they are the users' texts.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import polars as pl

from helpers.ingest.export_scan import Export, ExportScan, json_units

ENGINE = "sglang"
_KEPT = ("e2e_latency", "first_token_latency", "completion_tokens", "queue_time", "decode_throughput")
"""Numbers kept in ``extra`` as written."""


def matches(head: str, path: str) -> bool:
    """Tell whether a file is such an export."""
    del path
    start = head.lstrip()
    return start.startswith(("{", "[")) and '"request_parameters"' in start and '"completion_tokens"' in start


def read(path: str) -> ExportScan:
    """Read one request per line.

    Returns
    -------
    ExportScan
        ``request`` rows: span_s from the first token to the end of the request, out_tok the tokens after the first,
        new_tok the prompt tokens computed, t_s the end.
    """
    scan = ExportScan(path=path, export=EXPORT.name)
    doubts = Counter[str]()
    for unit, value in json_units(scan):
        if not isinstance(value, dict) or "completion_tokens" not in value:
            scan.malform(unit, str(value)[:80], "it holds no completion_tokens")
            continue
        row, reason = _row(unit, value, doubts)
        if row is None:
            scan.malform(unit, "", reason)
            continue
        scan.lines["statistic"] += 1
        scan.put(row)
    scan.flush()
    if scan.samples:  # requests are written as they end, but by several tasks
        scan.samples = [pl.concat(scan.samples).sort("stamp", nulls_last=True, maintain_order=True)]
    n_requests = scan.lines["statistic"]
    scan.notes += [f"{path}: {text} in {count} of {n_requests} requests" for text, count in doubts.items()]
    return scan


def _row(unit: int, record: dict[str, Any], doubts: Counter[str]) -> tuple[dict[str, Any] | None, str]:
    """Return the SAMPLES row of one request, or why there is none."""
    n_out, n_prompt = record.get("completion_tokens"), record.get("prompt_tokens", 0)
    n_cached = record.get("cached_tokens") or 0
    for name, count in (("completion_tokens", n_out), ("prompt_tokens", n_prompt), ("cached_tokens", n_cached)):
        if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count < 2**63:
            return None, f"{name!r} is {count!r}"
    span_s = _decode_s(record, n_out, doubts)  # type: ignore[arg-type]
    after_first = max(n_out - 1, 0)  # type: ignore[operator]
    extra = {name: record[name] for name in _KEPT if isinstance(record.get(name), (int, float))}
    prompt_s = _seconds(record, "first_token_latency")
    if prompt_s is not None:
        extra["prompt_s"] = prompt_s
    accept_len = _seconds(record, "spec_accept_length")
    return {
        "line_no": unit, "engine": ENGINE, "kind": "request", "stamp": _seconds(record, "request_finished_ts"),
        "rank": f"DP{record['dp_rank']}" if isinstance(record.get("dp_rank"), int) and record["dp_rank"] else None,
        "new_tok": max(n_prompt - n_cached, 0), "cached_tok": n_cached, "span_s": span_s, "out_tok": float(after_first),
        "decode_tok_per_s": after_first / span_s if span_s else None, "accept_len": accept_len, "extra": extra,
    }, ""


def _decode_s(record: dict[str, Any], n_out: int, doubts: Counter[str]) -> float | None:
    """Return the time from the first token to the end: from latencies, else from the rate the server worked out."""
    whole, first = _seconds(record, "e2e_latency"), _seconds(record, "first_token_latency")
    if whole is not None and first is not None and 0 < first <= whole:
        return whole - first
    rate = _seconds(record, "decode_throughput")
    if rate and n_out > 1:
        doubts["no first_token_latency: the decode time comes from decode_throughput, wrong in some versions,"] += 1
        return (n_out - 1) / rate
    if n_out > 1:
        doubts["neither first_token_latency nor decode_throughput, so no decode time,"] += 1
    return None


def _seconds(record: dict[str, Any], key: str) -> float | None:
    value = record.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
        return None
    return float(value)


EXPORT = Export(
    name="SGLang request metrics export",
    engine=ENGINE,
    matches=matches,
    read=read,
    kinds=("request",),
    versions="SGLang 0.5.6 and newer (--export-metrics-to-file)",
    gives=(
        "One finished request per line: the time from its first token to its end and the tokens in it, prompts of "
        "other requests included"
    ),
)
