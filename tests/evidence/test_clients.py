"""Client results: every tool's names, units and meanings against hand arithmetic, printed values and measured truth."""

from __future__ import annotations

import copy
import gzip
import itertools
import json
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from helpers.evidence.clients import files as client_files
from helpers.evidence.clients.read import client_windows, read_clients
from helpers.schema import CLIENTS, REQUESTS, LogFormatError, NotEnoughData, check, conform

VLLM = {
    "date": "20260505-141758", "backend": "vllm", "label": None, "model_id": "m/x", "num_prompts": 3,
    "request_rate": "inf", "max_concurrency": 2, "duration": 10.0, "completed": 3, "failed": 0,
    "total_input_tokens": 300, "total_output_tokens": 120, "request_goodput:": None, "output_throughput": 12.0,
    "mean_ttft_ms": 200.0, "median_ttft_ms": 190.0, "p99_ttft_ms": 400.0, "mean_tpot_ms": 40.0,
    "p50_tpot_ms": 39.0, "p99_tpot_ms": 50.0, "mean_itl_ms": 40.5, "median_e2el_ms": 3000.0,
}


def write(path: Path, content: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def only(path: Path) -> pd.Series:
    found = read_clients(path)
    check(found.runs, CLIENTS)
    check(found.requests, REQUESTS)
    assert len(found.runs) == 1
    return found.runs.iloc[0]


def test_vllm_bench_serve(tmp_path):
    run = only(write(tmp_path / "a.json", VLLM))
    assert (run["tool"], run["model"], run["name"], run["concurrency_req"]) == ("vllm", "m/x", "vllm", 2)
    assert math.isnan(run["request_rate_per_s"])
    assert run[["ttft_mean_s", "ttft_p99_s", "tpot_median_s", "itl_mean_s", "e2e_median_s"]].tolist() == pytest.approx(
        [0.2, 0.4, 0.039, 0.0405, 3.0])
    assert run["duration_s"] == 10 and run["output_tok_per_s"] == 12
    assert math.isnan(run["e2e_mean_s"])
    assert "not proof of the engine" in run["note"]
    extra = json.loads(run["extra"])
    assert extra == {"date": "20260505-141758", "num_prompts": 3}


def test_detailed_requests_tell_what_is_not_printed(tmp_path):
    """tpot: (0.1+0.1+0.1)/3 = 0.1 and 0.4/2 = 0.2, so mean 0.15; 5 tokens after the first in 5 chunks; e2e 0.5, 0.8."""
    record = {"duration": 2.0, "completed": 2, "failed": 1, "output_throughput": 3.5, "total_output_tokens": 7,
              "input_lens": [5, 6, 7], "output_lens": [4, 3, 0], "ttfts": [0.2, 0.4, 0.0],
              "itls": [[0.1, 0.1, 0.1], [0.3, 0.1], []], "start_times": [50.0, 51.0, 51.5],
              "errors": ["", "", "Traceback"], "generated_texts": ["secret", "b", "c"], "model_id": "x"}
    found = read_clients(write(tmp_path / "d.json", record))
    run, requests = found.runs.iloc[0], found.requests
    assert requests["start_s"].tolist() == [0, 1, 1.5] and not requests["is_epoch"].any()
    assert requests["e2e_s"].tolist()[:2] == pytest.approx([0.5, 0.8]) and math.isnan(requests["e2e_s"][2])
    assert requests["is_ok"].tolist() == [True, True, False]
    assert run["tpot_mean_s"] == pytest.approx(0.15) and run["e2e_mean_s"] == pytest.approx(0.65)
    assert run["itl_mean_s"] == pytest.approx(0.7 / 5) and run["prompt_tok"] == 11
    assert "computed here" in run["note"] and "chunks" not in run["note"]
    assert "secret" not in run["extra"] and json.loads(run["extra"])["first_start_time"] == 50.0
    assert found.notes == ()


def test_sglang_lines_are_appended(tmp_path):
    """Two runs, a cut line, and chunks of 3 tokens: (7-1)/2 gaps."""
    base = {"backend": "sglang", "request_rate": "inf", "max_concurrency": 4, "duration": 4.0, "completed": 1,
            "total_input_tokens": 10, "total_output_tokens": 7, "total_output_tokens_retokenized": 7,
            "output_throughput": 1.75, "total_throughput": 4.25, "mean_e2e_latency_ms": 700.0, "mean_tpot_ms": 100.0,
            "mean_itl_ms": 300.0, "accept_length": 2.5, "concurrency": 0.2, "tag": "t1"}
    detailed = base | {"input_lens": [10], "output_lens": [7], "ttfts": [0.1], "itls": [[0.3, 0.3]], "tag": "t2"}
    text = json.dumps(base) + "\n" + json.dumps(detailed) + "\n" + json.dumps(base)[:60] + "\n"
    found = read_clients(write(tmp_path / "r.jsonl", text))
    assert found.runs["tool"].tolist() == ["sglang"] * 2 and found.runs["line_no"].tolist() == [1, 2]
    assert found.runs["name"].tolist() == ["t1", "t2"] and found.runs["accept_len"].tolist() == [2.5, 2.5]
    assert found.runs["e2e_mean_s"].tolist() == pytest.approx([0.7, 0.7])
    assert all("chunks of about 3.0 tokens" in note for note in found.runs["note"])
    assert found.requests["run"].tolist() == [1] and math.isnan(found.requests["start_s"][0])
    assert found.tally[0].lines == {"row": 2, "malformed": 1} and "line 3" in found.notes[0]


VLLM_CONSOLE = """\
============ Serving Benchmark Result ============
Successful requests:                     3
Failed requests:                         0
Maximum request concurrency:             2
Benchmark duration (s):                  10.00
Total input tokens:                      300
Total generated tokens:                  120
Output token throughput (tok/s):         12.00
---------------Time to First Token----------------
Mean TTFT (ms):                          200.00
Median TTFT (ms):                        190.00
P99 TTFT (ms):                           400.00
-----Time per Output Token (excl. 1st token)------
Mean TPOT (ms):                          40.00
==================================================
"""
SGLANG_CONSOLE = """\
============ Serving Benchmark Result ============
Backend:                                 sglang
Traffic request rate:                    inf
Max reqeuest concurrency:                not set
Successful requests:                     8
Benchmark duration (s):                  2.00
Total input tokens:                      80
Total generated tokens:                  1,600
Total generated tokens (retokenized):    1598
Output token throughput (tok/s):         800.00
----------------End-to-End Latency----------------
Mean E2E Latency (ms):                   1500.00
Median E2E Latency (ms):                 1400.00
============== Steady-State Result ===============
Output token throughput (tok/s):         950.00
==================================================
"""


def test_console_blocks_in_a_log(tmp_path):
    prefixed = "\n".join("bench-1  | " + line for line in VLLM_CONSOLE.splitlines())
    found = read_clients(write(tmp_path / "run.log", f"noise\n{prefixed}\nmore: noise\n{SGLANG_CONSOLE}"))
    assert found.runs["tool"].tolist() == ["vllm", "sglang"] and found.runs["line_no"].tolist() == [2, 18]
    vllm, sglang = found.runs.iloc[0], found.runs.iloc[1]
    assert (vllm["ttft_p99_s"], vllm["tpot_mean_s"], vllm["n_failed"]) == (0.4, 0.04, 0)
    assert sglang["output_tok"] == 1600 and sglang["e2e_median_s"] == pytest.approx(1.4)
    assert math.isnan(sglang["concurrency_req"])
    assert sglang["output_tok_per_s"] == 800
    assert json.loads(sglang["extra"])["Steady-State Result: Output token throughput (tok/s)"] == "950.00"
    # 15 + 16 lines of blocks: 4 + 4 headers (title, sections, end), 11 + 12 rows; 2 lines of noise.
    assert found.tally[0].lines == {"other": 2, "header": 8, "row": 23}


def test_a_block_without_its_spine_is_said(tmp_path):
    text = VLLM_CONSOLE.replace("Benchmark duration (s):                  10.00\n", "") + SGLANG_CONSOLE
    found = read_clients(write(tmp_path / "run.log", text))
    assert len(found.runs) == 1 and "without duration" in found.notes[0]


def test_a_trtllm_client_is_named(tmp_path):
    assert only(write(tmp_path / "t.json", VLLM | {"user_throughput": 3.0}))["tool"] == "trtllm"


def test_a_sweep_folder_holds_every_run_once(tmp_path):
    first, second = VLLM | {"run_number": 0}, VLLM | {"run_number": 1, "duration": 10.5, "output_throughput": 11.43}
    write(tmp_path / "c=2" / "run=0.json", first)
    write(tmp_path / "c=2" / "run=1.json", second)
    write(tmp_path / "c=2" / "summary.json", [first, second])
    pd.DataFrame([first, second]).to_csv(tmp_path / "summary.csv", index=False)
    write(tmp_path / "c=2" / "notes.txt", "nothing")
    write(tmp_path / "c=2" / "config.json", {"a": 1})
    found = read_clients(tmp_path)
    assert [Path(f).name for f in found.runs["file"]] == ["run=0.json", "run=1.json"]
    assert sum("once more" in note for note in found.notes) == 4
    assert len(found.others) == 2 and any("config.json" in o and "keys a" in o for o in found.others)
    assert sum(tally.lines["row"] for tally in found.tally) == 6


AIPERF = {
    "request_throughput": {"unit": "requests/sec", "avg": 0.2}, "request_count": {"unit": "requests", "avg": 2.0},
    "request_latency": {"unit": "ms", "avg": 1500.0, "p50": 1500.0, "p99": 1990.0},
    "time_to_first_token": {"unit": "ms", "avg": 250.0, "p50": 250.0, "p99": 300.0},
    "inter_token_latency": {"unit": "ms", "avg": 12.5, "p50": 12.5, "p99": 13.0},
    "inter_chunk_latency": {"unit": "ms", "avg": 25.0, "p50": 24.0, "p99": 60.0},
    "output_token_throughput": {"unit": "tokens/sec", "avg": 20.2}, "benchmark_duration": {"unit": "sec", "avg": 10.0},
    "total_isl": {"unit": "tokens", "avg": 64.0}, "total_osl": {"unit": "tokens", "avg": 202.0},
    "error_request_count": {"unit": "requests", "avg": 1.0}, "start_time": "2026-10-02T10:00:00.5",
    "input_config": {"endpoint": {"model_names": ["m"]}, "loadgen": {"concurrency": 4}},
}


def aiperf_line(start_s: float, e2e_ms: float, phase: str = "profiling", error: object = None) -> str:
    metrics = {"request_latency": {"value": e2e_ms, "unit": "ms"},
               "time_to_first_token": {"value": 250.0, "unit": "ms"},
               "output_sequence_length": {"value": 101, "unit": "tokens"},
               "input_sequence_length": {"value": 32, "unit": "tokens"},
               "inter_chunk_latency": {"value": [25.0, 25.0], "unit": "ms"}}
    about = {"request_start_ns": int(start_s * 1e9), "request_end_ns": int((start_s + e2e_ms / 1e3) * 1e9),
             "benchmark_phase": phase, "was_cancelled": False}
    return json.dumps({"metadata": about, "metrics": {} if error else metrics, "error": error})


AIPERF_CSV = """\
Metric,avg,min,max,p1,p50,p99,std
Request Latency (ms),1500.00,1000.00,2000.00,1010.00,1500.00,1990.00,500.00
Time to First Token (ms),250.00,200.00,300.00,201.00,250.00,300.00,50.00
Inter Token Latency (ms),12.50,12.00,13.00,12.00,12.50,13.00,0.50

Metric,Value
Request Throughput (requests/sec),0.20
Request Count (requests),2.00
Benchmark Duration (sec),10.00
Output Token Throughput (tokens/sec),20.20
"""


def test_aiperf_files_of_a_run_are_one_run(tmp_path):
    write(tmp_path / "profile_export_aiperf.json", AIPERF)
    write(tmp_path / "profile_export_aiperf.csv", AIPERF_CSV)
    lines = [aiperf_line(1.7e9 - 5, 900, "warmup"), aiperf_line(1.7e9, 1000), aiperf_line(1.7e9 + 1, 2000),
             aiperf_line(1.7e9 + 2, 100, error={"code": 500})]
    write(tmp_path / "profile_export.jsonl", "\n".join(lines))
    found = read_clients(tmp_path)
    assert len(found.runs) == 1 and len(found.requests) == 3
    run = found.runs.iloc[0]
    assert (run["tool"], run["model"], run["concurrency_req"]) == ("aiperf", "m", 4)
    assert run[["ttft_mean_s", "tpot_median_s", "itl_p99_s", "e2e_p99_s"]].tolist() == pytest.approx(
        [0.25, 0.0125, 0.06, 1.99])
    assert run["duration_s"] == 10 and run["n_failed"] == 1 and run["prompt_tok"] == 64
    assert run["start_epoch_s"] == 1.7e9, "the local start_time of the summary tells no epoch; its requests do"
    assert found.requests["is_epoch"].all() and found.requests["is_ok"].sum() == 2
    jsonl = next(t for t in found.tally if t.file.endswith("jsonl"))
    assert jsonl.lines == {"other": 1, "row": 3}


def test_aiperf_csv_alone(tmp_path):
    run = only(write(tmp_path / "profile_export_aiperf.csv", AIPERF_CSV))
    assert run["tool"] == "aiperf" and run["e2e_median_s"] == 1.5 and run["duration_s"] == 10
    found = read_clients(tmp_path / "profile_export_aiperf.csv").tally[0].lines
    assert found == {"header": 2, "row": 7, "other": 1}


def test_aiperf_lines_alone_tell_the_run(tmp_path):
    """Starts 0 and 1, latencies 1 and 2: from 0 to 3; tpot (1-0.25)/100 and (2-0.25)/100."""
    run = only(write(tmp_path / "x.jsonl", aiperf_line(1.7e9, 1000) + "\n" + aiperf_line(1.7e9 + 1, 2000)))
    assert run["duration_s"] == pytest.approx(3.0) and run["tpot_mean_s"] == pytest.approx(0.0125)
    assert run["output_tok_per_s"] == pytest.approx(202 / 3)


def test_genai_perf(tmp_path):
    """1,234.56 with its comma; 10 requests at 2/s are 5 s, of 200 tokens each."""
    text = ('Metric,avg,min,max,p99,p50\nTime To First Token (ms),"1,234.56",1.0,2000.0,"1,999.00",1200.0\n'
            'Request Latency (ms),"3,000.00",1,1,1,"2,900.0"\nInter Token Latency (ms),8.0,7,9,9,8.1\n'
            "Output Sequence Length (tokens),200.0,1,1,1,1\n\nMetric,Value\nRequest Throughput (per sec),2.0\n"
            "Request Count (count),10.0\nOutput Token Throughput (per sec),400.0\n")
    run = only(write(tmp_path / "p.csv", text))
    assert run["tool"] == "genai-perf" and run["ttft_mean_s"] == pytest.approx(1.23456)
    assert run["ttft_p99_s"] == pytest.approx(1.999) and run["duration_s"] == 5 and run["output_tok"] == 2000
    assert "worked out here" in run["note"]
    config = {"model": ["g"], "perf_analyzer": {"stimulus": {"concurrency": 16}}}
    summary = AIPERF | {"input_config": config}
    run = only(write(tmp_path / "profile_export_genai_perf.json", summary))
    assert (run["tool"], run["model"], run["concurrency_req"]) == ("genai-perf", "g", 16)
    bad = AIPERF | {"request_latency": {"unit": "furlong", "avg": 1.0}}
    found = read_clients(write(tmp_path / "bad.json", bad))
    assert math.isnan(found.runs["e2e_mean_s"][0]) and any("furlong" in note for note in found.notes)


def test_perf_analyzer_raw_requests(tmp_path):
    t = 1_700_000_000_000_000_000
    request = {"timestamp": t, "response_timestamps": [t + 10**8, t + 10**9], "success": True}
    record = {"service_kind": "openai", "experiments": [
        {"experiment": {"mode": "concurrency", "value": 2}, "requests": [request]}]}
    found = read_clients(write(tmp_path / "profile_export.json", record))
    assert found.runs["concurrency_req"][0] == 2 and found.runs["ttft_mean_s"][0] == pytest.approx(0.1, abs=1e-6)
    assert found.runs["e2e_mean_s"][0] == pytest.approx(1.0, abs=1e-6) and math.isnan(found.runs["tpot_mean_s"][0])


def spread(mean: float, median: float, p99: float, **more: float) -> dict:
    return {"successful": {"mean": mean, "median": median, "percentiles": {"p99": p99}, "pdf": [[0, 1]], **more}}


def test_guidellm_swaps_the_names(tmp_path):
    metrics = {
        "time_to_first_token_ms": spread(100, 90, 200), "time_per_output_token_ms": spread(30, 30, 40),
        "inter_token_latency_ms": spread(20, 19, 25), "request_latency": spread(2.5, 2.4, 3.0, count=4),
        "output_tokens_per_second": spread(40, 40, 50), "output_token_count": spread(100, 100, 100, total_sum=400),
        "prompt_token_count": spread(50, 50, 50, total_sum=200)}
    timings = {"request_start": 1.7e9, "first_token_iteration": 1.7e9 + 0.1, "request_end": 1.7e9 + 2.1}
    request = {"info": {"timings": timings}, "input_metrics": {"text_tokens": 50},
               "output_metrics": {"text_tokens": 101}}
    benchmark = {"config": {"strategy": {"type_": "concurrent", "streams": 8}}, "metrics": metrics, "duration": 10.0,
                 "start_time": 1.7e9, "requests": {"successful": [request], "incomplete": [], "errored": [request]},
                 "scheduler_metrics": {"requests_made": {"successful": 4, "errored": 1}}}
    other = {**benchmark, "config": {"strategy": {"type_": "constant", "rate": 3.0}}, "requests": {}}
    report = {"metadata": {"version": 2}, "benchmarks": [benchmark, other]}
    found = read_clients(write(tmp_path / "benchmarks.json", report))
    run = found.runs.iloc[0]
    assert run[["tpot_mean_s", "tpot_median_s", "tpot_p99_s"]].tolist() == pytest.approx([0.02, 0.019, 0.025])
    assert math.isnan(run["itl_mean_s"]) and "includes the first token" in run["note"]
    assert (run["n_completed"], run["n_failed"], run["output_tok"], run["concurrency_req"]) == (4, 1, 400, 8)
    assert json.loads(run["extra"])["metrics.time_per_output_token_ms.successful.mean"] == 30
    assert found.runs["request_rate_per_s"].tolist()[1] == 3 and math.isnan(found.runs["concurrency_req"][1])
    assert found.requests["is_ok"].tolist() == [True, False]
    first = found.requests.iloc[0]
    assert (first["ttft_s"], first["e2e_s"]) == pytest.approx((0.1, 2.1), abs=1e-6)


def inference_perf(n: int, rate: float) -> dict:
    def stats(mean: float) -> dict:
        return {"mean": mean, "median": mean, "p99": mean}

    latency = {"request_latency": stats(2.0), "time_to_first_token": stats(0.2), "time_per_output_token": stats(0.0126),
               "inter_token_latency": stats(0.000047)}
    throughput = {"output_tokens_per_sec": rate * 150, "requests_per_sec": rate}
    return {"load_summary": {"count": n, "requested_rate": rate}, "failures": {"count": 0}, "successes": {
        "count": n, "latency": latency, "throughput": throughput, "prompt_len": stats(201), "output_len": stats(150)}}


def test_inference_perf(tmp_path):
    """47 us between tokens is an artefact and left out; 4 requests at 2/s are 2 s; 8 of both stages."""
    write(tmp_path / "stage_0_lifecycle_metrics.json", inference_perf(4, 2.0))
    write(tmp_path / "stage_1_lifecycle_metrics.json", inference_perf(3, 3.0))
    write(tmp_path / "summary_lifecycle_metrics.json", inference_perf(7, 2.4))
    write(tmp_path / "summary_prometheus_metrics.json", inference_perf(14, 2.4))
    times = [100.2, 100.3, 101.0]
    answers = [{"output_tokens": 3, "output_token_times": [t + i for t in times]} for i in range(7)]
    write(tmp_path / "per_request_lifecycle_metrics.json", [
        {"start_time": 100.0 + i, "end_time": 101.0 + i, "error": None,
         "info": {"input_tokens": 201, "response_metrics": answer}} for i, answer in enumerate(answers)])
    found = read_clients(tmp_path)
    assert found.runs["name"].tolist() == ["stage_0", "stage_1", "summary"]
    stage = found.runs.iloc[0]
    assert stage["tpot_mean_s"] == 0.0126 and math.isnan(stage["itl_mean_s"]) and "itl left out" in stage["note"]
    assert stage["duration_s"] == 2 and stage["output_tok"] == 600 and stage["prompt_tok"] == 804
    assert "sum of the stages" in found.runs["note"][2] and "sum of the stages" not in stage["note"]
    assert found.requests["run"].tolist() == [2] * 7
    assert found.requests["start_s"].tolist() == list(range(7)) and found.requests["ttft_s"][3] == pytest.approx(0.2)
    assert len(found.others) == 1 and "scrape window" in found.others[0]
    assert "inter_token" not in stage["extra"]


def test_one_stage_is_the_summary(tmp_path):
    write(tmp_path / "stage_0_lifecycle_metrics.json", inference_perf(4, 2.0))
    write(tmp_path / "summary_lifecycle_metrics.json", inference_perf(4, 2.0))
    found = read_clients(tmp_path)
    assert found.runs["name"].tolist() == ["stage_0"] and "once more" in found.notes[0]


def test_llmperf(tmp_path):
    """30 requests a minute: 10 took 20 s. Its inter-token latency holds the first token: neither tpot nor itl."""
    summary = {"name": "m_550_150_summary", "model": "m", "num_concurrent_requests": 5,
               "results_ttft_s_quantiles_p50": 0.3, "results_ttft_s_quantiles_p99": 0.9, "results_ttft_s_mean": 0.35,
               "results_inter_token_latency_s_mean": 0.02, "results_end_to_end_latency_s_mean": 3.0,
               "results_number_output_tokens_mean": 150.0, "results_mean_output_throughput_token_per_s": 75.0,
               "results_num_completed_requests": 10, "results_num_completed_requests_per_min": 30.0}
    run = only(write(tmp_path / "m_550_150_summary.json", summary))
    assert (run["tool"], run["concurrency_req"], run["duration_s"], run["output_tok"]) == ("llmperf", 5, 20, 1500)
    assert (run["ttft_median_s"], run["e2e_mean_s"]) == (0.3, 3.0)
    assert math.isnan(run["itl_mean_s"]) and math.isnan(run["tpot_mean_s"]) and "first token included" in run["note"]
    assert json.loads(run["extra"])["results_inter_token_latency_s_mean"] == 0.02
    write(tmp_path / "m_550_150_individual_responses.json", [
        {"error_code": None, "ttft_s": 0.5, "end_to_end_latency_s": 2.5, "number_output_tokens": 101,
         "number_input_tokens": 550, "inter_token_latency_s": 0.0248}] * 10)
    found = read_clients(tmp_path)
    assert len(found.runs) == 1 and len(found.requests) == 10
    assert found.runs["tpot_mean_s"][0] == pytest.approx(0.02)


def test_what_cannot_be_is_said(tmp_path):
    """12 tok/s printed over 10 s is 120 tokens; 150 are 25 % off."""
    record = VLLM | {"total_output_tokens": 150, "mean_ttft_ms": -1.0, "mean_tpot_ms": math.nan,
                     "median_ttft_ms": 500.0, "failed": "many"}
    found = read_clients(write(tmp_path / "bad.json", record))
    said = "\n".join(found.notes)
    assert "15 tok/s" in said and "mean_ttft_ms is -1.0" in said and "mean_tpot_ms is nan" in said
    assert "median of ttft is above its 99th percentile" in said and "'many'" in said
    assert found.runs[["ttft_mean_s", "tpot_mean_s", "n_failed"]].isna().all(axis=None)
    near = VLLM | {"total_output_tokens": 122}
    assert read_clients(write(tmp_path / "near.json", near)).notes == (), "1.6 % is within the 2 % allowed"


def test_arrays_that_do_not_fit_are_said(tmp_path):
    record = VLLM | {"ttfts": [0.1, 0.2], "output_lens": [60]}
    found = read_clients(write(tmp_path / "a.json", record))
    assert len(found.requests) == 0 and "differ in length" in found.notes[0]
    record = VLLM | {"ttfts": [0.1, 9.0], "output_lens": [60, 10], "itls": [[-0.1], [0.2]], "latencies": [1.0, 1.0],
                     "start_times": [0.0, 1.0]}
    said = "\n".join(read_clients(write(tmp_path / "b.json", record)).notes)
    assert "1 times of its requests are negative" in said and "hold 70" in said and "after their end" in said


def test_the_smallest_home_made_file_is_read_as_written(tmp_path):
    run = only(write(tmp_path / "speed.json", {"tag": "q", "model": "m", "n_requests": 20, "ttft_p50_ms": 9.3,
                                               "itl_p50_ms": 6.6, "ttft_p95_ms": 9.7}))
    assert run["tool"] == "unknown" and run["ttft_median_s"] == pytest.approx(0.0093)
    assert run["itl_median_s"] == pytest.approx(0.0066) and json.loads(run["extra"]) == {"ttft_p95_ms": 9.7}


@pytest.mark.parametrize(("name", "content", "words"), [
    ("a.json", {"avg_latency": 0.7, "latencies": [0.7], "percentiles": {"50": 0.7}}, "offline latency run"),
    ("b.json", {"engine": "vllm", "modell": "x", "laeufe": [{"szenario": "a"}]}, "home-made"),
    ("c.json", {"schemaVersion": 1, "traceEvents": []}, "profiler trace"),
    ("d.json", {"model": "x", "steps": []}, "no known tool"),
    ("e.json", '{"duration": 1.0, "completed"', "cut off"),
    ("f.txt", "", "an empty file"),
    ("g.log", "[2026-01-29 01:28:40] Decode batch", "without a result block"),
    ("h.json", {"benchmarks": [{"metrics": {}, "requests": {"successful": [3]}}]}, "another form than documented"),
    ("i.json", "[" * 100_000, "without a result block"),
    ("j.json", '{"a":' * 100_000, "too deeply"),
])
def test_others_are_refused_in_one_line(tmp_path, name, content, words):
    path = write(tmp_path / name, content)
    with pytest.raises(LogFormatError, match=words) as error:
        read_clients(path)
    assert "\n" not in str(error.value) and str(path) in str(error.value)
    good = write(tmp_path / "good.json", VLLM)
    found = read_clients(tmp_path)
    assert len(found.runs) == 1 and len(found.others) == 1 and words in found.others[0]
    with pytest.raises(LogFormatError, match=words):
        read_clients([good, path])


def test_a_file_is_read_packed_and_once_and_not_beyond_the_limit(tmp_path, monkeypatch):
    path = tmp_path / "r.json.gz"
    path.write_bytes(gzip.compress(json.dumps(VLLM).encode()))
    assert len(read_clients([path, tmp_path, path]).runs) == 1
    monkeypatch.setattr(client_files, "MAX_FILE_BYTES", 100)
    with pytest.raises(LogFormatError, match="at most 100 bytes"):
        read_clients(path)


def test_any_value_of_another_form_is_said_or_refused(tmp_path):
    """Every leaf of every format, replaced: a table that passes its schema or one clear line, nothing else."""
    request = {"timestamp": 1, "response_timestamps": [2, 3], "success": True}
    documents = [
        VLLM | {"ttfts": [0.1], "output_lens": [3], "itls": [[0.1, 0.1]], "errors": [""], "start_times": [0.0]},
        AIPERF, json.loads(aiperf_line(1.7e9, 1000)), inference_perf(4, 2.0),
        {"benchmarks": [{"metrics": {"request_latency": spread(1, 1, 1)}, "duration": 1.0, "requests": {"successful": [
            {"info": {"timings": {"request_start": 1.0, "request_end": 2.0}}, "prompt_tokens": 3}]}}]},
        {"service_kind": "openai", "experiments": [{"experiment": {"mode": "concurrency", "value": 2},
                                                    "requests": [request]}]},
        {"results_ttft_s_mean": 0.1, "results_num_completed_requests": 3, "model": "m"},
        [{"ttft_s": 0.1, "end_to_end_latency_s": 1.0, "number_output_tokens": 5, "error_code": None}],
        [{"start_time": 0.0, "end_time": 1.0, "error": None, "info": {"response_metrics": {
            "output_tokens": 2, "output_token_times": [0.5, 0.6]}}}],
    ]
    n_refused = n_read = 0
    for document in documents:
        for replaced in replaced_leaves(document):
            try:
                found = read_clients(write(tmp_path / "x.json", replaced))
            except LogFormatError as error:
                n_refused += 1
                assert "\n" not in str(error)
                continue
            n_read += 1
            check(found.runs, CLIENTS)
            check(found.requests, REQUESTS)
    assert n_read > 100 and n_refused > 10


def replaced_leaves(document: object) -> Iterator[object]:
    odd = (None, "x", -1, math.nan, True, [], {}, 10**400)
    cases = list(itertools.product(leaves(document), odd))
    # Every 11th: 11 and 8 share no divisor, so every leaf and every odd value come up, in seconds.
    for path, value in cases[::11]:
        changed = copy.deepcopy(document)
        at = changed
        for key in path[:-1]:
            at = at[key]
        at[path[-1]] = value
        yield changed


def leaves(node: object, path: tuple = ()) -> Iterator[tuple]:
    if path:
        yield path
    for key, value in node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ():
        yield from leaves(value, (*path, key))


def test_a_folder_of_nothing_and_a_missing_file(tmp_path):
    write(tmp_path / "a.txt", "x")
    with pytest.raises(LogFormatError, match=r"found none; known are .*a\.txt"):
        read_clients(tmp_path)
    with pytest.raises(LogFormatError, match="readable file"):
        read_clients(tmp_path / "none.json")


def windows_table(**changes: object) -> pd.DataFrame:
    table = pd.DataFrame({
        "file": "f", "run": 0, "start_s": [0.0, 1.0, 5.0, 11.0], "is_epoch": False, "ttft_s": [1.0, 1.0, 2.0, 0.4],
        "e2e_s": [5.0, 5.0, 4.0, 1.0], "prompt_tok": 10.0, "output_tok": [9.0, 9.0, 5.0, 2.0], "is_ok": True})
    return conform(table.assign(**changes), REQUESTS)


def test_windows_equal_hand_arithmetic():
    """Open: 1 in 0-1, 2 in 1-6, 1 in 6-9, 0 in 9-11, 1 in 11-12; one waits for its first token in 1-2 and 5-7.

    Each of the first three makes 2 tok/s after its first token. From 1 to 6: first tokens at 1 and 2, 8 tokens of the
    first request in 1-5, 8 of the second in 2-6: 18 in 5 s. Steady from 2 to 5: 2 requests at 2 tok/s.
    """
    row = client_windows(windows_table()).iloc[0]
    assert (row["peak_req"], row["full_from_s"], row["full_to_s"]) == (2, 1, 6)
    parts = row[["ramp_s", "steady_s", "mixed_s", "drain_s", "idle_s"]]
    assert parts.tolist() == [1, 3, 2, 4, 2] and parts.sum() == row["total_s"] == 12
    assert row["full_tok_per_s"] == pytest.approx(18 / 5) and row["steady_tok_per_s"] == pytest.approx(4.0)
    assert row["prefill_wait_frac"] == pytest.approx(2 / 10) and row["mean_open_req"] == pytest.approx(15 / 12)
    assert row["tpot_mean_s"] == pytest.approx((3 * 0.5 + 0.6) / 4) and row["tpot_median_s"] == pytest.approx(0.5)
    assert row["tpot_p90_s"] == pytest.approx(np.percentile([0.5, 0.5, 0.5, 0.6], 90))
    half = client_windows(windows_table(), full_ratio=0.5).iloc[0]
    assert (half["full_req"], half["ramp_s"], half["drain_s"], half["idle_s"]) == (1, 0, 0, 2)


def test_windows_without_starts_or_requests():
    row = client_windows(windows_table(start_s=math.nan)).iloc[0]
    assert row["n_unplaced"] == 4 and math.isnan(row["steady_s"]) and row["tpot_median_s"] == pytest.approx(0.5)
    with pytest.raises(NotEnoughData, match="save-detailed"):
        client_windows(REQUESTS.empty())
    with pytest.raises(NotEnoughData, match="full_ratio"):
        client_windows(windows_table(), full_ratio=1.5)


def test_our_own_runs_printed_and_measured(shared):
    """Statistics from requests equal those that vLLM printed; steady time and rate those from per-token times.

    Even spreading of tokens costs up to 3 % of the rate at 32 requests and 7 % at 64 (bursts of prompts).
    """
    n_same = 0
    for folder in ("vllm-sweep", "sglang-sweep"):
        at = shared / "logs" / "own" / folder
        found = read_clients(at / "client")
        assert found.notes == () and found.others == ()
        truth = pd.read_csv(at / "truth.csv").set_index("label")
        windows = client_windows(found.requests).set_index("run")
        for i, run in found.runs.iterrows():
            printed = json.loads(Path(run["file"]).read_text(encoding="utf-8"))
            requests = found.requests[found.requests["run"] == i]
            tpot = (requests["e2e_s"] - requests["ttft_s"]) / (requests["output_tok"] - 1)
            assert np.percentile(tpot, 99) * 1e3 == pytest.approx(printed["p99_tpot_ms"], rel=1e-9)
            assert tpot.mean() * 1e3 == pytest.approx(printed["mean_tpot_ms"], rel=1e-9)
            row, label = windows.loc[i], Path(run["file"]).stem
            parts = row[["ramp_s", "steady_s", "mixed_s", "drain_s", "idle_s"]].sum()
            assert parts == pytest.approx(run["duration_s"], abs=5e-3)
            if label in truth.index:
                n_same += 1
                assert row["peak_req"] == run["concurrency_req"]
                assert row["steady_s"] == pytest.approx(truth.loc[label, "steady_span_s"], abs=0.02)
                room = {32: 0.03, 64: 0.07}.get(int(run["concurrency_req"]), 0.01)
                assert row["steady_tok_per_s"] == pytest.approx(truth.loc[label, "steady_tok_s"], rel=room)
    assert n_same == 13


def test_speculation_shows_in_the_chunks(shared):
    """truth.csv of the run says 2.8 tokens per chunk at 4 requests."""
    run = only(shared / "logs" / "own" / "vllm-spec-ngram" / "client" / "c4.json")
    assert "chunks of about 2.8 tokens" in run["note"] and run["accept_len"] == pytest.approx(3.009, abs=1e-3)


def test_third_party_folders(shared):
    found = read_clients(shared / "logs" / "hikarioyama")
    assert len(found.runs) == 48 and {Path(o.split(":")[0]).name for o in found.others} == {"summary.json"}
    row = found.runs[found.runs["file"].str.endswith("ws/random-in1024-out128-c8-run1.json")].iloc[0]
    assert row["tpot_median_s"] == pytest.approx(0.0167173, rel=1e-5)
    found = read_clients(shared / "logs" / "djangodevreng" / "nemotron-4b" / "same-run-2026-05")
    assert [Path(f).name for f in found.runs["file"]] == [
        "D_reasoning.json", "H_office-baseline.json", "I_sharegpt-replay.json", "J_monday-burst.json"]
    assert sum("once more" in note for note in found.notes) == 8, "each also printed to a .log and a .md"
    log = only(shared / "logs" / "djangodevreng" / "nemotron-4b" / "same-run-2026-05" / "J_monday-burst.log")
    assert log["ttft_p99_s"] == pytest.approx(found.runs["ttft_p99_s"][3], abs=5.1e-6)
    case = only(shared / "cases" / "pool-full-a" / "client.json")
    assert case["output_tok_per_s"] == 12341.28 and case["concurrency_req"] == 128
    assert len(read_clients(shared / "logs" / "rodder5").runs) == 5
    for folder in ("sostrowsk", "cmontemuino"):
        with pytest.raises(LogFormatError, match="found none"):
            read_clients(shared / "logs" / folder)
