"""TensorRT-LLM's iteration statistics: what ``GET /metrics`` returns with ``enable_iter_perf_stats: true``.

Every answer is a JSON list and drains the server's queue: an element is sent once, to whoever asks first. A file may
hold one answer or many one after another, pretty-printed or not: what counts are the elements.
"""

from __future__ import annotations

import json
import math
import re
import statistics
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from helpers.ingest.export_scan import Export, ExportScan, whole_text
from helpers.ingest.stamps import FULL
from helpers.ingest.trtllm import ENGINE

_BEGIN = re.compile(r'[\s\[\],]*\{\s*"')
"""Possibly empty answers, then an object."""

_NAMES = ('"iterLatencyMS"', '"inflightBatchingStats"')

_IDLE_FACTOR = 1.5
"""The next iteration begins this much later than the latency explains: the server was idle in between."""

_OVERLAP_FACTOR = 1.3
"""Latency over the time between two starts above which it spans more than one turn (two under overlap)."""

_MAPPED = ("iter", "timestamp", "attentionDpRank", "numQueuedRequests")


def matches(head: str, path: str) -> bool:
    """Tell whether a file holds iteration statistics; a log may quote them, and its stamps may begin with a bracket."""
    del path
    if _BEGIN.match(head) is None or not any(name in head for name in _NAMES):
        return False
    lines = [line.strip() for line in head.splitlines() if line.strip()]
    # an object by itself in the first line, and then something else: a log that quotes it
    goes_on = len(lines) < 2 or _BEGIN.match(lines[1]) is not None or lines[1][0] in "{,]" or not lines[1].strip("[], ")
    return goes_on or not lines[0].endswith("}")


def read(path: str) -> ExportScan:
    """Read the elements of one or many answers.

    Returns
    -------
    ExportScan
        One ``iteration`` row per element: running_req = numGenRequests, new_tok = numCtxTokens, kv_used_frac = used of
        all KV blocks, used_tok = numGenKvTokens where sent. ``span_s`` is the time until the next iteration began, by
        their time stamps; under the overlap scheduler ``iterLatencyMS`` spans two turns and serves only where the
        next element is missing or the server was idle.

    Raises
    ------
    LogFormatError
        The file is larger than can be held.
    """
    scan = ExportScan(path=path, export=EXPORT.name)
    text = whole_text(scan, "iteration statistics", "split the file between two answers")
    scan.n_lines = 0
    rows: list[dict[str, Any]] = []
    seen: set[tuple[Any, ...]] = set()
    for value, problem in _objects(text):
        for element in _elements(value):
            scan.n_lines += 1
            reason = problem or _reason(element)
            if reason:
                scan.malform(scan.n_lines, ", ".join(element) or problem, reason)
                continue
            row = _row(scan.n_lines, element)
            key = (row["rank"], row["iteration"], row["stamp"])
            if None not in key[1:] and key in seen:
                scan.know("element sent before")
                continue
            seen.add(key)
            scan.lines["statistic"] += 1
            rows.append(row)
    scan.notes.append(f"{path}: the {scan.n_lines} elements are counted in place of lines")
    _drop_zeros(scan, rows)
    by_rank: dict[str | None, list[dict[str, Any]]] = {}
    for row in rows:
        by_rank.setdefault(row["rank"], []).append(row)
    has_times = [_add_spans(scan, of_rank) for of_rank in by_rank.values()]
    if rows and not all(has_times):
        scan.notes.append(
            f"{path}: {has_times.count(False)} of {len(has_times)} ranks show no two iterations in a row with a time: "
            "span_s is iterLatencyMS, which spans two turns under the overlap scheduler"
        )
    scan.restarts.sort()
    scan.keep([{name: value for name, value in row.items() if not name.startswith("_")} for row in rows])
    return scan


def _objects(text: str) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield every JSON object between whitespace, commas and list brackets; (empty, reason) where there is none."""
    decoder = json.JSONDecoder(parse_constant=lambda _: None)
    position = 0
    while True:
        while position < len(text) and text[position] in " \t\r\n,[]":
            position += 1
        if position >= len(text):
            return
        if text[position] != "{":  # not tried: every failure counts the lines before it, a long log of them is slow
            line_end = text.find("\n", position)
            yield {}, f"{text[position:position + 80].splitlines()[0]!r} is no JSON object"
            position = line_end if line_end >= 0 else len(text)
            continue
        try:
            value, position = decoder.raw_decode(text, position)
            yield (value, "") if isinstance(value, dict) else ({}, f"{str(value)[:80]!r} is no JSON object")
        except (ValueError, RecursionError) as error:
            yield {}, f"no whole JSON object ({str(error)[:80]})"
            line_end = text.find("\n", position)
            position = line_end if line_end >= 0 else len(text)


def _elements(value: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the elements in an object: itself, or those a scraper put into a list beside its own time."""
    if _is_element(value):
        return [value]
    lists = [inner for inner in value.values() if isinstance(inner, list)]
    inside = [item for inner in lists for item in inner if isinstance(item, dict) and _is_element(item)]
    return inside or [value]


def _is_element(value: dict[str, Any]) -> bool:
    return "iterLatencyMS" in value or "inflightBatchingStats" in value


def _part(element: dict[str, Any], name: str) -> dict[str, Any]:
    part = element.get(name)
    return part if isinstance(part, dict) else {}


def _reason(element: dict[str, Any]) -> str:
    """Say why an element cannot be read; empty if it can."""
    if not _is_element(element):
        return "it holds no iteration statistics"
    latency = element.get("iterLatencyMS")
    if not _is_number(latency):
        return f"'iterLatencyMS' is {str(latency)[:40]!r}"
    batch, blocks = _part(element, "inflightBatchingStats"), _part(element, "kvCacheStats")
    names = ("numGenRequests", "numContextRequests", "numScheduledRequests", "numCtxTokens", "numGenKvTokens")
    counts = {name: batch[name] for name in names if name in batch}
    counts |= {name: element[name] for name in ("iter", "numQueuedRequests", "numActiveRequests") if name in element}
    counts |= {name: blocks[name] for name in ("usedNumBlocks", "maxNumBlocks") if name in blocks}
    return next((f"{name!r} is {str(count)[:40]!r}" for name, count in counts.items() if not _is_count(count)), "")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value and math.isfinite(value)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def _row(unit: int, element: dict[str, Any]) -> dict[str, Any]:
    """Return the SAMPLES row of one element; names with ``_`` are for later."""
    batch, blocks = _part(element, "inflightBatchingStats"), _part(element, "kvCacheStats")
    drafts = _part(element, "specDecodingStats")
    pool = blocks.get("maxNumBlocks")
    running, rank = batch.get("numGenRequests"), element.get("attentionDpRank")
    stamp_s = _read_stamp(element.get("timestamp"))
    length = drafts.get("acceptanceLength") if drafts.get("numRequestsWithDraftTokens") else None
    accept_len = float(length) if isinstance(length, (int, float)) and 1 <= length < math.inf else None
    return {
        "line_no": unit, "engine": ENGINE, "kind": "iteration", "stamp": stamp_s, "n_steps": 1.0,
        "stamp_kind": FULL if stamp_s is not None else 0, "rank": f"DP{rank}" if _is_count(rank) else None,
        "running_req": running, "queue_req": element.get("numQueuedRequests"), "new_tok": batch.get("numCtxTokens"),
        "used_tok": batch.get("numGenKvTokens"), "iteration": element.get("iter"),
        "kv_used_frac": blocks["usedNumBlocks"] / pool if pool and "usedNumBlocks" in blocks else None,
        "accept_len": accept_len, "out_tok": None if running is None else float(running) * (accept_len or 1.0),
        "extra": _flat({name: value for name, value in element.items() if name not in _MAPPED}),
        "_latency_s": element["iterLatencyMS"] / 1000, "_scheduled": batch.get("numScheduledRequests"),
        "_active": element.get("numActiveRequests"),
    }


def _flat(element: dict[str, Any]) -> dict[str, Any]:
    """Return numbers of an element and of its parts under dotted names."""
    flat: dict[str, Any] = {}
    for name, value in element.items():
        inner = value if isinstance(value, dict) else {}
        flat |= {f"{name}.{key}": item for key, item in inner.items() if isinstance(item, (int, float))}
        if isinstance(value, (int, float)):
            flat[name] = value
    return flat


def _read_stamp(text: Any) -> float | None:
    """Read ``07-25-2025 16:54:34.140189`` (month first, the server's local time) as seconds of a day without zone."""
    for layout in ("%m-%d-%Y %H:%M:%S.%f", "%m-%d-%Y %H:%M:%S"):
        try:
            return datetime.strptime(str(text)[:32], layout).replace(tzinfo=UTC).timestamp()
        except ValueError:
            continue
    return None


def _drop_zeros(scan: ExportScan, rows: list[dict[str, Any]]) -> None:
    """Take no zeros for numbers where the backend fills nothing in (PyTorch backend of 1.0, issue 6364)."""
    if any(row["_scheduled"] or row["running_req"] for row in rows) or not any(row["_active"] for row in rows):
        return
    for row in rows:
        row.update(running_req=None, out_tok=None, new_tok=None)
    scan.notes.append(
        f"{scan.path}: requests are active in {sum(bool(row['_active']) for row in rows)} elements and scheduled in "
        "none: this version leaves the batch's numbers 0; use its iteration log (print_iter_log) instead"
    )


def _add_spans(scan: ExportScan, rows: list[dict[str, Any]]) -> bool:
    """Give the elements of one rank their time and count what is missing; tell whether stamps gave any."""
    pairs = list(zip(rows, [*rows[1:], None], strict=True))
    between = [_between_s(row, after) for row, after in pairs]
    ratios = [row["_latency_s"] / gap for row, gap in zip(rows, between, strict=True) if gap]
    spans_two = bool(ratios) and statistics.median(ratios) > _OVERLAP_FACTOR
    n_missing = 0
    for (row, after), gap_s in zip(pairs, between, strict=True):
        is_idle = gap_s is not None and gap_s > _IDLE_FACTOR * row["_latency_s"]
        own_s = None if spans_two and gap_s is None else row["_latency_s"]
        row["span_s"] = own_s if gap_s is None or is_idle else gap_s
        if after is not None and row["iteration"] is not None and after["iteration"] is not None:
            step = after["iteration"] - row["iteration"]
            n_missing += max(step - 1, 0)
            if step < 0:
                scan.restarts.append(after["line_no"])
    if n_missing:
        scan.notes.append(
            f"{scan.path}: {n_missing} iterations are missing by iter: the queue was full, or another reader took them"
        )
    return bool(ratios)


def _between_s(row: dict[str, Any], after: dict[str, Any] | None) -> float | None:
    """Return the time from one iteration's stamp to that of the next one; None where it is not there."""
    if after is None or row["stamp"] is None or after["stamp"] is None or row["iteration"] is None:
        return None
    gap_s = float(after["stamp"] - row["stamp"])
    return gap_s if after["iteration"] == row["iteration"] + 1 and gap_s > 0 else None


EXPORT = Export(
    name="TensorRT-LLM iteration statistics",
    engine=ENGINE,
    matches=matches,
    read=read,
    kinds=("iteration",),
    versions="GET /metrics of trtllm-serve with enable_iter_perf_stats (2025-07 to 2026-05)",
    gives=(
        "Every iteration with its decoding requests, prompt tokens and KV blocks; its time is that until the next "
        "iteration began, not iterLatencyMS, which spans two turns under the overlap scheduler"
    ),
)
