"""Results of sglang bench_serving, vllm bench serve and clients with their layout: JSON objects and console blocks."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from helpers.evidence.clients.run import (
    MILLI,
    STATS,
    WHATS,
    Printed,
    Record,
    Run,
    extra_text,
    requests_table,
    said_of_chunks,
    statistics,
)
from helpers.evidence.reading import Tally

TITLE = "Serving Benchmark Result"
MIN_EPOCH_S = 1e9
"""A start later than this (2001) counts from 1970; a monotonic clock would have run for 31 years."""

_SPINE = {"duration", "output_throughput"}
_SGLANG = ("total_output_tokens_retokenized", "mean_e2e_latency_ms", "max_itl_ms", "total_throughput",
           "input_throughput")
_TRTLLM = ("user_throughput", "avg_decoded_tokens_per_iter")
_ENGINES = ("vllm", "sglang", "trt", "tensorrt", "lmdeploy", "tgi")
_LATENCIES = {"ttft": ("ttft",), "tpot": ("tpot",), "itl": ("itl",), "e2e": ("e2el", "e2e_latency")}
_STAT_KEYS = {"median": ("median", "p50")}
_ARRAYS = ("input_lens", "output_lens", "ttfts", "itls", "latencies", "start_times", "errors")

_ROW = re.compile(r"\s*(.{1,60}?):\s+(\S.*?)\s*$")
_RULE = re.compile(r"\s*={20,}\s*$")
_HEADING = re.compile(r"\s*[-=]{3,}\s*(\S.*?\S)\s*[-=]{3,}\s*$")
_LATENCY_ROW = re.compile(r"(Mean|Median|P[\d.]+|Max|Std) (TTFT|TPOT|ITL|E2EL|E2E Latency) \(ms\)$")
_LABELS = {
    "Successful requests": "completed", "Failed requests": "failed", "Backend": "backend",
    "Maximum request concurrency": "max_concurrency", "Max request concurrency": "max_concurrency",
    "Max reqeuest concurrency": "max_concurrency", "Request rate configured (RPS)": "request_rate",
    "Traffic request rate": "request_rate", "Benchmark duration (s)": "duration",
    "Total input tokens": "total_input_tokens", "Total generated tokens": "total_output_tokens",
    "Output token throughput (tok/s)": "output_throughput", "Accept length": "accept_length",
    "Acceptance length": "spec_decode_acceptance_length", "Request throughput (req/s)": "request_throughput",
    "Total generated tokens (retokenized)": "total_output_tokens_retokenized",
    "Input token throughput (tok/s)": "input_throughput", "User throughput (tok/s)": "user_throughput",
    "Avg decoded tokens per iter": "avg_decoded_tokens_per_iter",
}


def is_bench(record: object) -> bool:
    """Tell whether a JSON object is one run of these clients."""
    return isinstance(record, dict) and record.keys() >= _SPINE and bool(
        record.keys() & {"completed", "total_output_tokens", "num_prompts"})


def read_bench(record: Record, line_no: int = 1) -> Run:
    """Turn one object into a run.

    Parameters
    ----------
    record : dict
        An object for which `is_bench` holds: rates in tok/s, duration and arrays in s, statistics in ms.
    line_no : int
        Line in the file, from 1.
    """
    printed = Printed(record)
    tool, backend = _tool(record), printed.text("backend")
    run = Run(printed.text("tool") or tool, line_no=line_no)
    run.values = {
        "name": printed.text("label", "tag") or backend,
        "model": printed.text("model_id", "model"),
        "start_epoch_s": printed.number("benchmark_start_time_unix"),
        "concurrency_req": printed.number("max_concurrency"),
        "request_rate_per_s": printed.number("request_rate"),
        "n_completed": printed.number("completed"),
        "n_failed": printed.number("failed"),
        "duration_s": printed.number("duration"),
        "prompt_tok": printed.number("total_input_tokens", "total_input"),
        "output_tok": printed.number("total_output_tokens", "total_output"),
        "output_tok_per_s": printed.number("output_throughput"),
        "accept_len": printed.number("accept_length", "spec_decode_acceptance_length"),
    }
    for what in WHATS:
        for stat in STATS:
            keys = [f"{s}_{name}_ms" for name in _LATENCIES[what] for s in _STAT_KEYS.get(stat, (stat,))]
            run.values[f"{what}_{stat}_s"] = printed.number(*keys, scale=MILLI)
    if run.tool != tool:
        run.meanings.append(f"layout of {tool}, written by {run.tool}")
    if backend and backend.lower().startswith(_ENGINES):
        run.meanings.append(f"backend {backend!r} is the protocol of the client, not proof of the engine")
    run.doubts = printed.doubts
    chunk_tok = _requests_of(run, record)
    said_of_chunks(run, chunk_tok)
    extra = {k: v for k, v in printed.rest().items() if k not in _ARRAYS}
    if run.requests is not None and run.requests["start_s"].notna().any():
        # Runs of one client machine share this clock: it orders them where nothing else does.
        extra["first_start_time"] = min(record["start_times"])
    run.values["extra"] = extra_text(extra)
    return run


def _tool(record: Record) -> str:
    if any(key in record for key in _TRTLLM):
        return "trtllm"
    return "sglang" if any(key in record for key in _SGLANG) else "vllm"


def _requests_of(run: Run, record: Record) -> float:
    """Set the requests of a run, and return the tokens per chunk (NaN if unknown)."""
    arrays: dict[str, list[Any]] = {k: v for k in _ARRAYS if isinstance(v := record.get(k), list) and v}
    if not {"ttfts", "output_lens"} <= arrays.keys():
        return math.nan
    lengths = {key: len(value) for key, value in arrays.items()}
    if len(set(lengths.values())) > 1:
        run.doubts.append("its arrays differ in length (" + ", ".join(f"{k} {n}" for k, n in lengths.items())
                          + "): no requests read")
        return math.nan
    n = lengths["ttfts"]
    gaps = arrays.get("itls", [[]] * n)
    try:
        ttft, out = np.array(arrays["ttfts"], dtype=float), np.array(arrays["output_lens"], dtype=float)
        all_gaps = np.array([gap for request in gaps for gap in request], dtype=float)
        streamed = np.array([t + sum(g) if g or o <= 1 else math.nan for t, g, o in zip(ttft, gaps, out, strict=True)])
        e2e = np.array(arrays["latencies"], dtype=float) if "latencies" in arrays else streamed
        starts = np.array(arrays["start_times"], dtype=float) if "start_times" in arrays else None
        prompt = np.array(arrays.get("input_lens", [math.nan] * n), dtype=float)
    except (TypeError, ValueError) as error:
        run.doubts.append(f"its arrays hold something else than numbers ({error}): no requests read")
        return math.nan
    negative = int((ttft < 0).sum() + (all_gaps < 0).sum() + (e2e < 0).sum())
    if negative:
        run.doubts.append(f"{negative} times of its requests are negative, which cannot be")
    is_ok = [not e for e in arrays["errors"]] if "errors" in arrays else [bool(o > 0) for o in out]
    run.requests = requests_table(
        start_s=starts, is_epoch=None if starts is None else bool(starts.min() > MIN_EPOCH_S),
        ttft_s=np.where(is_ok, ttft, math.nan), e2e_s=np.where(is_ok, e2e, math.nan),
        prompt_tok=prompt, output_tok=out, is_ok=is_ok)
    if all_gaps.size and math.isnan(run.value("itl_mean_s")):
        run.values |= statistics(all_gaps, "itl")
        run.meanings.append("itl computed here from its chunk gaps")
    return float((out - 1).clip(0).sum() / all_gaps.size) if all_gaps.size else math.nan


def read_console(numbered: Iterable[tuple[int, str]], tally: Tally) -> Iterator[Run]:
    """Find the result blocks in any text, and yield a run for each.

    Parameters
    ----------
    numbered : iterable of (line_no, text)
        As of `reading.lines`.
    tally : Tally
        Lines of a block are rows, its rules and headings headers, all the rest of the text other.
    """
    start, at, found = 0, 0, Record()
    section = ""
    for line_no, line in numbered:
        if TITLE in line and "===" in line:
            if start:
                yield from _block(found, start, tally)
            start, at, found, section = line_no, line.index("="), Record(), ""
            tally.count("header")
            continue
        body = line[at:]
        if not start:
            tally.count("other")
        elif _RULE.match(body):
            tally.count("header")
            yield from _block(found, start, tally)
            start = 0
        elif heading := _HEADING.match(body):
            tally.count("header")
            section = heading[1] if "=" in body else section
        elif row := _ROW.match(body):
            tally.count("row")
            found[f"{section}: {row[1]}" if section else _key(row[1])] = row[2]
        elif body.strip():
            tally.reject(line_no, line, "expected a row 'label: value' of a result block")
        else:
            tally.count("other")
    if start:
        tally.notes.append(f"line {start}: the result block has no end; read up to the end of the file")
        yield from _block(found, start, tally)


def _key(label: str) -> str:
    if latency := _LATENCY_ROW.match(label):
        what = {"E2E Latency": "e2e_latency"}.get(latency[2], latency[2].lower())
        return f"{latency[1].lower()}_{what}_ms"
    return _LABELS.get(label, label)


def _block(found: Record, line_no: int, tally: Tally) -> Iterator[Run]:
    if not is_bench(found):
        missing = ", ".join(sorted(_SPINE - found.keys())) or "number of requests"
        tally.notes.append(f"line {line_no}: result block without {missing}; left out")
        return
    run = read_bench(found, line_no)
    run.decimals = 2
    yield run
