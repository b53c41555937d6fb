"""Results of AIPerf, GenAI-Perf, GuideLLM, inference-perf and llmperf: each with its own meaning of the same names."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any

import numpy as np
import pandas as pd

from helpers.evidence.clients.run import MILLI, STATS, Printed, Record, Run, extra_text, flattened, requests_table

NANO = 1e-9
"""Seconds in a nanosecond."""

UNITS_S = {"s": 1.0, "sec": 1.0, "seconds": 1.0, "ms": MILLI, "us": 1e-6, "ns": NANO}
SECONDS_PER_MINUTE = 60.0

_PERF_LATENCIES = {"ttft": "time_to_first_token", "tpot": "inter_token_latency", "itl": "inter_chunk_latency",
                   "e2e": "request_latency"}
_PERF_STATS = {"mean": "avg", "median": "p50", "p99": "p99"}
_TPOT_IS_ITL = "tpot is the tool's inter_token_latency: (latency - first token) / (tokens - 1) of each request"


def is_perf(record: object) -> bool:
    """Tell whether an object is the summary of AIPerf or GenAI-Perf: metrics with unit and avg."""
    return isinstance(record, dict) and all(
        isinstance(metric := record.get(name), dict) and "avg" in metric
        for name in ("request_latency", "request_throughput"))


def read_perf(record: Record, name: str) -> Run:
    """Turn the summary of AIPerf or GenAI-Perf into a run; units are those it prints with each metric."""
    config = flattened(record.get("input_config") or {})
    is_genai = "genai_perf" in name or any("perf_analyzer" in key or "service_kind" in key for key in config)
    metrics = {k: v for k, v in record.items() if isinstance(v, dict) and "avg" in v}
    flat = flattened(metrics)
    printed = Printed(flat)
    run = Run("genai-perf" if is_genai else "aiperf", meanings=[_TPOT_IS_ITL])
    asked = Printed(config)

    def seconds(metric: str, stat: str) -> float:
        unit = str(flat.get(f"{metric}.unit", "")).lower()
        key = f"{metric}.{stat}"
        if flat.get(key) is not None and unit not in UNITS_S:
            run.doubts.append(f"{key} has the unit {unit!r}, expected a time; left out")
            return math.nan
        return printed.number(key, scale=UNITS_S.get(unit, math.nan))

    n = printed.number("request_count.avg")
    run.values = {
        "model": asked.text("endpoint.model_names", "model_names", "model", "models", "model_name"),
        "start_epoch_s": _epoch_s(record.get("start_time")),
        "concurrency_req": asked.number(*_ending(config, "concurrency")),
        "request_rate_per_s": asked.number(*_ending(config, "request_rate")),
        "n_completed": n,
        "n_failed": printed.number("error_request_count.avg"),
        "duration_s": seconds("benchmark_duration", "avg"),
        "prompt_tok": printed.number("total_isl.avg"),
        "output_tok": printed.number("total_osl.avg", "total_output_tokens.avg"),
        "output_tok_per_s": printed.number("output_token_throughput.avg"),
    }
    for what, metric in _PERF_LATENCIES.items():
        run.values |= {f"{what}_{stat}_s": seconds(metric, _PERF_STATS[stat]) for stat in STATS}
    _fill(run, "prompt_tok", n * printed.number("input_sequence_length.avg"))
    _fill(run, "output_tok", n * printed.number("output_sequence_length.avg"))
    _fill(run, "duration_s", n / (printed.number("request_throughput.avg") or math.nan))
    run.doubts += printed.doubts
    rest = printed.rest() | {k: record[k] for k in ("start_time", "end_time", "was_cancelled") if k in record}
    run.values["extra"] = extra_text({k: v for k, v in rest.items() if not k.endswith(".unit")})
    return run


def _ending(config: Record, name: str) -> list[str]:
    return [key for key in config if key == name or key.endswith("." + name)] or [name]


def _fill(run: Run, column: str, value: float) -> None:
    if math.isnan(run.value(column)) and not math.isnan(value):
        run.values[column] = value
        run.meanings.append(f"{column} worked out here from means and counts")


def _epoch_s(stamp: object) -> float:
    """Return seconds since 1970 where the stamp names its zone; a local time tells no epoch."""
    if not isinstance(stamp, str):
        return math.nan
    try:
        found = datetime.fromisoformat(stamp)
    except ValueError:
        return math.nan
    return found.timestamp() if found.tzinfo else math.nan


def is_perf_record(record: object) -> bool:
    """Tell whether an object is one request of AIPerf's profile_export.jsonl."""
    return isinstance(record, dict) and isinstance(record.get("metadata"), dict) and (
        "request_start_ns" in record["metadata"] and isinstance(record.get("metrics"), dict))


def read_perf_records(records: list[tuple[int, Record]]) -> Run:
    """Turn the per-request lines of AIPerf into the requests of a run; nanoseconds since 1970."""
    run = Run("aiperf", line_no=records[0][0], is_detail=True, meanings=[_TPOT_IS_ITL])
    rows = []
    for _, record in records:
        about, metrics = record["metadata"], record["metrics"]
        n_end, n_start = about.get("request_end_ns"), about["request_start_ns"]
        e2e = _metric(metrics, "request_latency")
        rows.append({
            "start_s": n_start * NANO, "ttft_s": _metric(metrics, "time_to_first_token"),
            "e2e_s": (n_end - n_start) * NANO if math.isnan(e2e) and n_end else e2e,
            "prompt_tok": _metric(metrics, "input_sequence_length"),
            "output_tok": _metric(metrics, "output_sequence_length"),
            "is_ok": not record.get("error") and not about.get("was_cancelled", False)})
    run.requests = _requests(rows, is_epoch=True)
    return run


def _metric(metrics: Record, name: str) -> float:
    found = metrics.get(name)
    if not isinstance(found, dict) or not isinstance(found.get("value"), int | float):
        return math.nan
    return float(found["value"]) * UNITS_S.get(str(found.get("unit", "")).lower(), 1.0)


def _requests(rows: list[Record], is_epoch: bool) -> pd.DataFrame:
    table = pd.DataFrame(rows)
    return requests_table(is_epoch=is_epoch, **{str(name): table[name] for name in table.columns})


def is_perf_raw(record: object) -> bool:
    """Tell whether an object is the raw profile_export.json of perf_analyzer, which GenAI-Perf keeps."""
    return isinstance(record, dict) and isinstance(record.get("experiments"), list) and "service_kind" in record


def read_perf_raw(record: Record) -> list[Run]:
    """Turn every experiment into requests; it has stamps of chunks (ns) and no token counts."""
    runs = []
    for experiment in record["experiments"]:
        rows = []
        for request in experiment.get("requests", []):
            stamps, start = request.get("response_timestamps") or [], request["timestamp"]
            rows.append({"start_s": start * NANO, "ttft_s": (stamps[0] - start) * NANO if stamps else math.nan,
                         "e2e_s": (stamps[-1] - start) * NANO if stamps else math.nan, "prompt_tok": math.nan,
                         "output_tok": math.nan, "is_ok": bool(stamps) and request.get("success", True)})
        run = Run("genai-perf", is_detail=True, meanings=["its requests have no token counts"])
        run.values = {"name": None}
        asked = experiment.get("experiment", {})
        if asked.get("mode") == "concurrency":
            run.values["concurrency_req"] = float(asked["value"])
        if rows:
            run.requests = _requests(rows, is_epoch=True)
            runs.append(run)
    return runs


def perf_csv(numbered: Iterable[tuple[int, str]], rows: Iterable[list[str]], name: str) -> tuple[Run, list[int]]:
    """Read the CSV of AIPerf or GenAI-Perf as the same object as its JSON; return the run and its row numbers.

    Parameters
    ----------
    numbered : iterable of (line_no, text)
        Lines, for their numbers.
    rows : iterable of list of str
        Their cells.
    name : str
        File name, which tells GenAI-Perf.
    """
    record, header, used = Record(), list[str](), list[int]()
    per = False
    for (line_no, _), cells in zip(numbered, rows, strict=True):
        if cells and cells[0] == "Metric":
            header = cells[1:]
        elif header and len(cells) == len(header) + 1:
            label, _, unit = cells[0].rstrip(")").partition(" (")
            stats = {"avg" if stat.lower() == "value" else stat: value
                     for stat, value in zip(header, cells[1:], strict=True) if value}
            record[label.lower().replace(" ", "_").replace("-", "_")] = {"unit": unit, **stats}
            per |= unit == "per sec"
            used.append(line_no)
    run = read_perf(record, "genai_perf" if per else name)
    run.decimals = 2
    return run, used


def is_guidellm(record: object) -> bool:
    """Tell whether an object is GuideLLM's benchmarks.json."""
    return isinstance(record, dict) and isinstance(found := record.get("benchmarks"), list) and all(
        isinstance(b, dict) and "metrics" in b for b in found)


def read_guidellm(record: Record) -> list[Run]:
    """Turn every benchmark of a GuideLLM report into a run; latency in s, keys that end in _ms in ms."""
    return [_guidellm(benchmark) for benchmark in record["benchmarks"]]


def _guidellm(benchmark: Record) -> Run:
    flat = flattened(benchmark, ("requests", "pdf", "request_samples"))
    printed = Printed(flat)
    strategy = next((key.removesuffix("type_") for key in flat if key.endswith("strategy.type_")), "strategy.")
    kind = printed.text(f"{strategy}type_")
    run = Run("guidellm", meanings=[
        "tpot is the tool's inter_token_latency_ms: its own time_per_output_token_ms includes the first token",
        "duration and rates are of its measured window, warm-up and cool-down cut",
        "its output rate is a mean over slices of time"])
    of = "metrics.{}.successful.{}".format
    run.values = {
        "name": kind,
        "model": printed.text("config.backend.model", "args.backend.model", "worker.backend_model"),
        "start_epoch_s": printed.number("start_time", "run_stats.start_time"),
        "concurrency_req": 1.0 if kind == "synchronous" else printed.number(
            f"{strategy}streams", f"{strategy}max_concurrency"),
        "request_rate_per_s": printed.number(f"{strategy}rate"),
        "n_completed": printed.number("scheduler_metrics.requests_made.successful",
                                      "run_stats.requests_made.successful", "metrics.request_totals.successful",
                                      of("request_latency", "count")),
        "n_failed": printed.number("scheduler_metrics.requests_made.errored", "run_stats.requests_made.errored"),
        "duration_s": printed.number("duration"),
        "prompt_tok": printed.number(of("prompt_token_count", "total_sum")),
        "output_tok": printed.number(of("output_token_count", "total_sum")),
        "output_tok_per_s": printed.number(of("output_tokens_per_second", "mean")),
    }
    for what, metric, scale in (("ttft", "time_to_first_token_ms", MILLI), ("tpot", "inter_token_latency_ms", MILLI),
                                ("e2e", "request_latency", 1.0)):
        for stat in STATS:
            run.values[f"{what}_{stat}_s"] = printed.number(of(metric, "percentiles.p99" if stat == "p99" else stat),
                                                            scale=scale)
    run.doubts = printed.doubts
    rows = [row for group in ("successful", "incomplete", "errored")
            for row in _guidellm_requests((benchmark.get("requests") or {}).get(group) or [], group == "successful")]
    if rows:
        run.requests = _requests(rows, is_epoch=True)
    kept = ("metrics.time_per_output_token_ms.successful.", "scheduler_metrics.", "duration", "warmup", "cooldown")
    run.values["extra"] = extra_text({k: v for k, v in printed.rest().items() if k.startswith(kept)})
    return run


def _guidellm_requests(requests: list[Record], is_ok: bool) -> Iterator[Record]:
    for request in requests:
        told = flattened(request, ("request_args", "output", "prompt"))
        start = _first(told, "info.timings.request_start", "scheduler_info.request_timings.request_start", "start_time")
        end = _first(told, "info.timings.request_end", "scheduler_info.request_timings.request_end", "end_time")
        token = _first(told, "info.timings.first_token_iteration", "info.timings.first_iteration", "first_token_time")
        yield {"start_s": start, "ttft_s": token - start, "e2e_s": end - start, "is_ok": is_ok,
               "prompt_tok": _first(told, "input_metrics.text_tokens", "input_metrics.total_tokens", "prompt_tokens"),
               "output_tok": _first(told, "output_metrics.text_tokens", "output_metrics.total_tokens", "output_tokens")}


def _first(record: Record, *keys: str) -> float:
    return next((float(v) for key in keys if isinstance(v := record.get(key), int | float)), math.nan)


_INFERENCE_PERF = {"ttft": "time_to_first_token", "tpot": "time_per_output_token", "e2e": "request_latency"}


def is_inference_perf(record: object) -> bool:
    """Tell whether an object is a lifecycle summary of inference-perf."""
    return isinstance(record, dict) and {"load_summary", "successes"} <= record.keys()


def read_inference_perf(record: Record, name: str) -> Run:
    """Turn a summary or a stage of inference-perf into a run; all times are seconds."""
    flat = flattened(record)
    printed = Printed(flat)
    latency, throughput = "successes.latency.{}.{}".format, "successes.throughput.{}".format
    run = Run("inference-perf", is_total=name.startswith("summary"), meanings=[
        "itl left out: the tool gives all tokens of a chunk the same time, so most of its gaps are 0"])
    n = printed.number("successes.count", "load_summary.count")
    run.values = {
        "name": name.removesuffix(".json").removesuffix("_lifecycle_metrics"),
        "request_rate_per_s": printed.number("load_summary.requested_rate"),
        "concurrency_req": printed.number("load_summary.concurrency"),
        "n_completed": n,
        "n_failed": printed.number("failures.count"),
        "output_tok_per_s": printed.number(throughput("output_tokens_per_sec")),
    }
    for what, metric in _INFERENCE_PERF.items():
        run.values |= {f"{what}_{stat}_s": printed.number(latency(metric, stat)) for stat in STATS}
    _fill(run, "duration_s", n / (printed.number(throughput("requests_per_sec")) or math.nan))
    for column, what in (("prompt_tok", "prompt"), ("output_tok", "output")):
        _fill(run, column, n * printed.number(f"successes.{what}_len.mean", f"successes.{what}_tokens.mean"))
    run.doubts = printed.doubts
    run.values["extra"] = extra_text({k: v for k, v in printed.rest().items()
                                      if not k.startswith("successes.latency.inter_token_latency")})
    return run


def is_inference_perf_requests(record: object) -> bool:
    """Tell whether a list is the per-request file of inference-perf."""
    return isinstance(record, list) and bool(record) and all(
        isinstance(r, dict) and {"start_time", "end_time", "info"} <= r.keys() for r in record)


def read_inference_perf_requests(record: list[Record]) -> Run:
    """Turn the per-request file of inference-perf into the requests of a run; a monotonic clock, in s."""
    run = Run("inference-perf", is_detail=True)
    rows = []
    for request in record:
        info = request.get("info") or {}
        answer = info.get("response_metrics") or info
        times = answer.get("output_token_times") or []
        start = request["start_time"]
        rows.append({"start_s": start, "ttft_s": times[0] - start if times else math.nan,
                     "e2e_s": request["end_time"] - start,
                     "prompt_tok": _first(info, "input_tokens"), "output_tok": _first(answer, "output_tokens"),
                     "is_ok": not request.get("error")})
    run.requests = _requests(rows, is_epoch=False)
    return run


_LLMPERF = ["token counts are of a Llama tokenizer, whatever the model",
            "itl and tpot left out: its inter_token_latency is latency / tokens, first token included"]


def is_llmperf(record: object) -> bool:
    """Tell whether an object is a summary of llmperf."""
    return isinstance(record, dict) and any(str(k).startswith("results_ttft_s") for k in record)


def read_llmperf(record: Record) -> Run:
    """Turn a summary of llmperf into a run; seconds, rates per minute where the key says so."""
    printed = Printed(record)
    run = Run("llmperf", meanings=list(_LLMPERF))
    n = printed.number("results_num_completed_requests")
    run.values = {
        "name": printed.text("name"), "model": printed.text("model"),
        "concurrency_req": printed.number("num_concurrent_requests"),
        "n_completed": n, "n_failed": printed.number("results_number_errors"),
        "output_tok_per_s": printed.number("results_mean_output_throughput_token_per_s"),
    }
    for what, metric in (("ttft", "ttft_s"), ("e2e", "end_to_end_latency_s")):
        run.values |= {
            f"{what}_mean_s": printed.number(f"results_{metric}_mean"),
            f"{what}_median_s": printed.number(f"results_{metric}_quantiles_p50"),
            f"{what}_p99_s": printed.number(f"results_{metric}_quantiles_p99")}
    per_minute = printed.number("results_num_completed_requests_per_min")
    _fill(run, "duration_s", SECONDS_PER_MINUTE * n / (per_minute or math.nan))
    for column, what in (("prompt_tok", "input"), ("output_tok", "output")):
        _fill(run, column, n * printed.number(f"results_number_{what}_tokens_mean"))
    run.doubts = printed.doubts
    run.values["extra"] = extra_text(printed.rest())
    return run


def is_llmperf_requests(record: object) -> bool:
    """Tell whether a list is the individual responses of llmperf."""
    return isinstance(record, list) and bool(record) and all(
        isinstance(r, dict) and {"ttft_s", "end_to_end_latency_s"} <= r.keys() for r in record)


def read_llmperf_requests(record: list[Record]) -> Run:
    """Turn the individual responses of llmperf into the requests of a run; it keeps no start."""
    table = pd.DataFrame(record)
    n = len(table)
    run = Run("llmperf", is_detail=True, meanings=_LLMPERF[:1])

    def column(name: str) -> np.ndarray[Any, np.dtype[np.float64]]:
        found = table[name] if name in table else pd.Series([math.nan] * n)
        return pd.to_numeric(found, errors="coerce").to_numpy(float)

    failed = table["error_code"].notna() if "error_code" in table else pd.Series([False] * n)
    run.requests = requests_table(ttft_s=column("ttft_s"), e2e_s=column("end_to_end_latency_s"), is_ok=~failed,
                                  prompt_tok=column("number_input_tokens"), output_tok=column("number_output_tokens"))
    return run
