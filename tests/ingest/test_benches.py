"""A benchmark that decodes fixed batches is a table of levels: step time by batch, nothing averaged across cases.

Truth: rows as the programs print them, hand arithmetic, and `rooflog fit` on a table made from a known law. Would
catch: throughput per sequence taken for the aggregate, ns or ms left in, prompt tests taken for decoding, cases of
another prompt length pooled, the warm-up run read, a broken row skipped.
"""

from __future__ import annotations

import csv
import io
import json

import pandas as pd
import pytest

from helpers import analysis, ingest
from helpers.ingest.benches import is_bench, read_bench
from helpers.schema import LEVELS, LogFormatError, check

HEADER = "|    PP |     TG |    B |   N_KV |   T_PP s | S_PP t/s |   T_TG s | S_TG t/s |      T s |    S t/s |"
RULE = "|-------|--------|------|--------|----------|----------|----------|----------|----------|----------|"


def batched_line(batch, t_tg, prompt=2048, n_tok=128):
    return f"|{prompt:6d} | {n_tok:6d} | {batch:4d} | {batch * (prompt + n_tok):6d} |   20.990 |   780.56 | " \
        f"{t_tg:8.3f} | {batch * n_tok / t_tg:8.2f} |   27.914 |   623.64 |"


def single(n_prompt=0, n_gen=128, n_depth=0, avg_ns=1280000000, **more):
    return {
        "build_commit": "abc", "model_type": "qwen2 1.5B Q4_K - Medium", "n_threads": 4, "n_prompt": n_prompt,
        "n_gen": n_gen, "n_depth": n_depth, "test_time": "2026-01-01T00:00:00Z", "avg_ns": avg_ns, "stddev_ns": 2000000,
        "avg_ts": 1e9 * n_gen / avg_ns, "stddev_ts": 0.1, **more,
    }


def one_batch(batch, latency_s, n_prompt=1024, n_out=16):
    return {
        "run_name": "r", "batch_size": batch, "input_len": n_prompt, "output_len": n_out, "prefill_latency": 0.3,
        "median_decode_latency": latency_s, "median_decode_throughput": batch / latency_s, "total_latency": 1.0,
    }


def console(batch, latency_s, n_prompt=1024, n_out=16, names_batch=True):
    name = f"Decode 0. Batch size: {batch}," if names_batch else "Decode. "
    prefill_s = 0.36
    total_s = prefill_s + latency_s * n_out
    return [
        f"Prefill. latency: {prefill_s:6.5f} s, throughput: {batch * n_prompt / prefill_s:9.2f} token/s",
        f"{name} latency: {3 * latency_s:6.5f} s, throughput: {batch / 3 / latency_s:9.2f} token/s",
        f"Decode.  median latency: {latency_s:6.5f} s, median throughput: {batch / latency_s:9.2f} token/s",
        f"Total. latency: {total_s:6.3f} s, throughput: {batch * (n_prompt + n_out) / total_s:9.2f} token/s",
    ]


def levels_of(*lines):
    text = "\n".join(lines) + "\n"
    assert is_bench(text)
    return check(read_bench("bench.txt", text), LEVELS)


def test_a_row_of_batched_bench_by_hand():
    line = "|  2048 |    128 |    8 |  17408 |   20.990 |   780.56 |    6.924 |   147.90 |   27.914 |   623.64 |"
    row = levels_of(HEADER, RULE, line).iloc[0]
    assert row["running_req"] == 8
    assert row["step_s"] == pytest.approx(6.924 / 128, rel=1e-12)
    assert [row["step_s_lo"], row["step_s_hi"]] == pytest.approx([6.9235 / 128, 6.9245 / 128], rel=1e-12)
    assert row["decode_tok_per_s"] == pytest.approx(147.90, abs=0.02)  # the aggregate, as printed
    assert row["context_tok"] == 2048 + 64
    assert (row["method"], row["is_fitted"]) == ("table", True)


def test_batched_bench_jsonl_says_the_same_as_its_table():
    rows = [
        json.dumps({"n_kv_max": 65536, "n_batch": 2048, "n_ubatch": 512, "flash_attn": 1, "is_pp_shared": 0,
                    "n_gpu_layers": 99, "n_threads": 8, "n_threads_batch": 8, "pp": 2048, "tg": 128, "pl": batch,
                    "n_kv": 1, "t_pp": 1.5, "speed_pp": 1.5, "t_tg": t_tg, "speed_tg": 1.5, "t": 3.5, "speed": 1.5})
        for batch, t_tg in ((1, 1.024), (8, 6.924))
    ]
    table = levels_of(HEADER, batched_line(1, 1.024), batched_line(8, 6.924))
    columns = ["running_req", "step_s", "decode_tok_per_s", "context_tok", "population"]
    pd.testing.assert_frame_equal(levels_of("main: n_kv_max = 65536 {", *rows)[columns], table[columns])


def test_cases_are_populations_and_the_one_with_most_batches_is_fitted():
    short = [batched_line(batch, 1.0, prompt=128) for batch in (1, 2)]
    long = [batched_line(batch, 2.0, prompt=512) for batch in (1, 2, 4)]
    levels = levels_of(HEADER, *short, *long)
    assert levels["population"].tolist() == [0, 0, 0, 1, 1]
    assert levels["context_tok"].tolist() == [576] * 3 + [192] * 2
    assert levels["is_fitted"].tolist() == [True] * 3 + [False] * 2
    assert levels["note"].str.contains("prompt 128").tolist() == [False] * 3 + [True] * 2


def test_repeated_rows_are_pooled_and_their_range_shown():
    row = levels_of(HEADER, batched_line(4, 1.0), batched_line(4, 1.2)).iloc[0]
    assert (row["n_clean"], row["step_s"]) == (2, pytest.approx(1.1 / 128, rel=1e-12))
    assert row["step_s_lo"] < 1.0 / 128 < 1.2 / 128 < row["step_s_hi"]


def test_llama_bench_in_all_its_formats():
    prompts = [single(n_prompt=512, n_gen=0), single(n_prompt=512, avg_ns=10**10)]
    rows = [*prompts, single(), single(n_depth=512, avg_ns=2560000000)]
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, list(rows[0]), quoting=csv.QUOTE_ALL)
    writer.writeheader()
    writer.writerows(rows)
    texts = [json.dumps(rows, indent=2), "\n".join(json.dumps(row) for row in rows),
             buffer.getvalue().replace('"', "", buffer.getvalue().index("\n"))]
    for text in texts:
        levels = levels_of(*text.splitlines())
        assert levels["running_req"].tolist() == [1, 1]
        assert levels["step_s"].tolist() == pytest.approx([0.010, 0.020], rel=1e-12)
        assert levels["context_tok"].tolist() == [64, 576]
        assert levels["population"].tolist() == [0, 1]
        # 5 repetitions with 2 ms: t(4, 97.5 %) = 2.7764, so +- 2.7764 x 2 ms / sqrt(5) of 128 tokens
        assert levels["step_s_hi"][0] - 0.010 == pytest.approx(2.7764 * 0.002 / 5**0.5 / 128, rel=1e-4)


def test_llama_bench_markdown():
    levels = levels_of(
        "| model | size | params | backend | ngl | test | t/s |", "| --- | ---: | ---: | --- | --: | ---: | ---: |",
        *(f"| qwen2 1.5B Q4_K - Medium       | 940.37 MiB |     1.54 B | CUDA       |  99 | {test:>15} | {rate:>20} |"
          for test, rate in
          (("pp512", "9000.00 ± 1.00"), ("tg128", "197.71 ± 0.81"), ("tg128 @ d4096", "100.00 ± 0.00"))),
        "", "build: 1fd5f48 (1)",
    )
    assert levels["step_s"].tolist() == pytest.approx([1 / 197.71, 0.01], rel=1e-12)
    assert levels["context_tok"].tolist() == [64, 4096 + 64]
    assert levels["step_s_hi"][1] == pytest.approx(0.01 + 0.005e-4, rel=1e-9)  # no scatter: half a digit of the rate


def test_bench_one_batch_console_and_jsonl_agree_and_the_warm_up_is_left_out():
    steps = {1: 0.0125, 8: 0.01571, 64: 0.02211}
    warm_up = ["Warmup ...", *console(1, 0.5), "Benchmark ..."]
    printed = levels_of(*warm_up, *[line for batch, step_s in steps.items() for line in console(batch, step_s)])
    stored = levels_of(*[json.dumps(one_batch(batch, step_s)) for batch, step_s in steps.items()])
    for levels in (printed, stored):
        assert levels["running_req"].tolist() == list(steps)
        assert levels["step_s"].tolist() == pytest.approx(list(steps.values()), rel=1e-12)
        assert levels["context_tok"].tolist() == pytest.approx([1032] * 3, rel=1e-2)
        assert levels["population"].tolist() == [0, 0, 0]


def test_console_of_versions_that_do_not_print_the_batch():
    levels = levels_of("Benchmark ...", *console(1, 0.0125, names_batch=False), *console(48, 0.02, names_batch=False))
    assert levels["running_req"].tolist() == [1, 48]


def test_console_cases_of_other_lengths_stay_apart():
    levels = levels_of(*console(1, 0.01), *console(8, 0.02), *console(8, 0.03, n_prompt=8192))
    assert levels["population"].tolist() == [0, 0, 1]


def test_runs_of_one_output_token_are_left_out():
    prefill_only = {key: value for key, value in one_batch(4, 0.01, n_out=1).items() if not key.startswith("median")}
    assert len(levels_of(json.dumps(prefill_only), json.dumps(one_batch(8, 0.02)))) == 1


@pytest.mark.parametrize(("lines", "words"), [
    ((HEADER, batched_line(8, 1.0).replace("|    8 |", "|   -8 |")), "line 2, B: expected a whole number"),
    ((HEADER, batched_line(8, 1.0)[:60]), "line 2: expected 10 cells"),
    ((HEADER, batched_line(8, 1.0).replace("1.000 |", "  nan |")), "line 2, T_TG s: expected a number above 0"),
    ((HEADER, batched_line(8, 10**9)), "expected a batch of 1 to"),
    ((json.dumps(single())[:-5],), "expected 1 whole JSON objects"),
    ((json.dumps(single(n_prompt=512, n_gen=0)),), "found only prompts"),
    (('{"median_decode_latency": ' + "[" * 100_000,), "whole JSON objects"),
])
def test_a_row_that_cannot_be_meant_is_named(lines, words):
    with pytest.raises(LogFormatError, match=words) as caught:
        read_bench("bench.txt", "\n".join(lines))
    assert "\n" not in str(caught.value)


def test_a_server_log_that_quotes_a_table_is_a_log():
    assert not is_bench("\n".join([HEADER, batched_line(8, 1.0), "slot print_timing: id  0 | task 0 | "]))
    assert not is_bench("| PP | TG |\n")


def test_fit_reads_a_benchmark_and_finds_its_law(tmp_path):
    """T = 5 ms + 0.25 ms per request, exact but for the three decimals of T_TG."""
    path = tmp_path / "batched.md"
    lines = [batched_line(batch, 128 * (0.005 + 0.00025 * batch)) for batch in (1, 2, 4, 8, 16, 32)]
    path.write_text("\n".join([HEADER, RULE, *lines]) + "\n", encoding="utf-8")
    assert ingest.is_table(path)
    linear = analysis.analyse(path).fits.linear
    assert [parameter.value for parameter in linear.parameters] == pytest.approx([0.005, 0.00025], rel=2e-3)
