"""LMDeploy, TGI, Ollama, KTransformers, LightLLM and the forks of SGLang: what a line becomes, and what it does not.

All lines are written for the tests in the engines' formats; the expected numbers are read from them or computed by
hand beside them. Would catch: a unit taken for another (ns, µs, ms, s, minutes), a block of lines counted as several
requests, a prefill taken for decode, prose taken for a statistic, an estimate of a fork taken for a measurement.
"""

from __future__ import annotations

import json

import pandas as pd
import pytest
from logs import read, sglang_line, vllm_line

from helpers import segment
from helpers.ingest.known import KNOWN
from helpers.ingest.nearest import describe_contents, looks_measured, nearest_dialect
from helpers.schema import SAMPLES, LogFormatError, check

LMDEPLOY = "[2026-02-03 04:05:{second:02d} Engine {rank:03d}] Avg thr (in/out): {taken:.1f} / {given:.1f} tokens/s, " \
    "Server (succeeded/failed/routed/waiting): 7 / 1 / 9 / 3, Engine (running/waiting): {n} / 2, KV cache: 12.5%, "
LMDEPLOY_SPEC = "Prefix cache hit rate: 40.0%, Avg MM preprocess: 0.250 s/req, SpecDecoding metrics: " \
    "Draft acceptance rate: 62.50%, Mean acceptance length: 2.25, Accepted: 50 tokens, Drafted: 80 tokens, " \
    "Per-position acceptance rate: 0.800, 0.450"
TGI = '2026-02-03T04:05:{second:02d}.250000Z  INFO generate{{parameters=GenerateParameters {{ max_new_tokens: ' \
    'Some(40), seed: Some(4) }} total_time="{total}" validation_time="{checked}" queue_time="{queued}" ' \
    'inference_time="{inference}" time_per_token="{per_token}" seed="Some(4)"}}: text_generation_router::server: ' \
    'router/src/server.rs:402: Success'
LIGHTLLM = "INFO 02-03 04:05:{second:02d} [manager.py:384] X-Request-Id:abc X-Session-Id: " \
    "start_time:2026-02-03 04:05:00 lightllm_req_id:{request} first_token_cost:{first}ms " \
    "total_cost_time:{total}ms,out_token_counter:{n} mean_per_token_cost_time: {mean}ms " \
    "prompt_token_num:{prompt} {rest} "
OLLAMA = """total duration:       {total}
load duration:        28.5ms
prompt eval count:    26 token(s)
prompt eval duration: 130.25ms
prompt eval rate:     199.62 tokens/s
eval count:           {n} token(s)
eval duration:        {spent}
eval rate:            {rate} tokens/s"""


def only(log):
    assert len(log.samples) == 1
    check(log.samples, SAMPLES)
    assert sum(log.accounting.lines.values()) == log.accounting.lines_total
    row = log.samples.iloc[0]
    return row, json.loads(row["extra"]) if isinstance(row["extra"], str) else {}


# LMDeploy


def test_lmdeploy_line_with_all_parts(tmp_path):
    row, extra = only(read(tmp_path, LMDEPLOY.format(second=9, rank=3, taken=80.0, given=640.5, n=16) + LMDEPLOY_SPEC))
    assert (row["engine"], row["kind"], row["rank"]) == ("lmdeploy", "stats", "DP3")
    assert str(row["ts"]) == "2026-02-03 04:05:09"
    assert (row["running_req"], row["queue_req"]) == (16, 2)
    assert (row["prefill_tok_per_s"], row["decode_tok_per_s"]) == (80.0, 640.5)
    assert row["kv_used_frac"] == pytest.approx(0.125) and row["accept_rate_frac"] == pytest.approx(0.625)
    assert row["accept_len"] == 2.25  # with the bonus token, as printed
    assert extra == {
        "server succeeded": 7, "server failed": 1, "server routed": 9, "server waiting": 3,
        "Prefix cache hit rate (%)": 40.0, "Avg MM preprocess (s/req)": 0.25, "Accepted (tokens)": 50,
        "Drafted (tokens)": 80, "Per-position acceptance rate": [0.8, 0.45],
    }


def test_lmdeploy_without_options_and_two_engines(tmp_path):
    places = [(second, rank) for second in (1, 11) for rank in (0, 1)]
    log = read(tmp_path, *(LMDEPLOY.format(second=s, rank=r, taken=0, given=100 + r, n=8) for s, r in places))
    assert log.engine == "lmdeploy"
    assert log.samples["rank"].tolist() == ["DP0", "DP1"] * 2
    assert log.samples["decode_tok_per_s"].tolist() == [100.0, 101.0] * 2
    assert log.samples["t_s"].tolist() == [0.0, 0.0, 10.0, 10.0]


@pytest.mark.parametrize("cut", ["KV cache", "Engine (running", "2, KV"])
def test_lmdeploy_cut_line_is_malformed(tmp_path, cut):
    whole = LMDEPLOY.format(second=1, rank=0, taken=0, given=100, n=8)
    log = read(tmp_path, whole, whole[: whole.index(cut)])
    assert len(log.samples) == 1 and log.accounting.lines["malformed"] == 1


def test_lmdeploy_windows_are_judged_as_those_of_vllm(tmp_path):
    """Both print averages over ten seconds beside counts at their end: a window with a prompt in it is no step."""
    windows = [(10 * i, 50.0 if i == 5 else 0.0, 8 if i < 9 else 16, 400.0 if i < 9 else 640.0) for i in range(18)]
    found = []
    for name, lines in {
        "lmdeploy": [(second, LMDEPLOY.replace("/ 2", "/ 0").format(second=0, rank=0, taken=taken, given=rate, n=n))
                     for second, taken, n, rate in windows],
        "vllm": [(second, vllm_line(n=n, rate=rate).replace("prompt throughput: 0.0", f"prompt throughput: {taken}"))
                 for second, taken, n, rate in windows],
    }.items():
        stamped = [line.replace("04:05:00", f"04:{5 + second // 60:02d}:{second % 60:02d}") for second, line in lines]
        log = read(tmp_path, *stamped, name=f"{name}.log")
        found.append(segment.label_intervals(log.samples, log.events, facts=log.facts))
    columns = ["clean", "label", "why", "step_s", "interval_s", "running_req", "prefill_tok"]
    pd.testing.assert_frame_equal(found[0][columns], found[1][columns])
    assert found[0].index[found[0]["clean"]].tolist() == [1, 2, 3, 6, 7]
    assert found[0]["why"][5] == "prompt tokens credited inside" and found[0]["step_s"][3] == pytest.approx(8 / 400)


# TGI


def tgi(**changes) -> str:
    values = {"second": 9, "total": "1.5s", "checked": "754.5µs", "queued": "980ns", "inference": "1.25s",
              "per_token": "31.25ms"}
    return TGI.format(**values | changes)


def test_tgi_units_and_tokens(tmp_path):
    row, extra = only(read(tmp_path, tgi()))
    assert (row["engine"], row["kind"]) == ("tgi", "request")
    assert row["out_tok"] == 40  # 1.25 s / 31.25 ms
    assert extra == pytest.approx({"total_time_s": 1.5, "validation_time_s": 754.5e-6, "queue_time_s": 980e-9,
                                   "inference_time_s": 1.25, "time_per_token_s": 31.25e-3})
    assert str(row["ts"]) == "2026-02-03 04:05:09.250000"


def test_tgi_states_no_decode_time(tmp_path):
    """Its times hold the prefill: neither a span nor a rate may be made of them."""
    row, _ = only(read(tmp_path, tgi()))
    assert pd.isna(row["span_s"]) and pd.isna(row["decode_tok_per_s"]) and pd.isna(row["running_req"])


def test_tgi_token_count_survives_whole_nanoseconds(tmp_path):
    # 2000 tokens at 38.982485 ms, the quotient floored to nanoseconds
    row, _ = only(read(tmp_path, tgi(inference="77.964970999s", per_token="38.982485ms")))
    assert row["out_tok"] == 2000


def test_tgi_other_spans_and_events(tmp_path):
    log = read(
        tmp_path,
        '2026-02-03T04:04:00.000001Z  INFO text_generation_launcher: Args { model_id: "org/model", revision: None }',
        "2026-02-03T04:04:30.000001Z  INFO shard-manager: text_generation_launcher: Shard ready in 10.5s rank=0",
        "2026-02-03T04:04:40.000001Z  INFO text_generation_launcher: Cuda Graphs are enabled for sizes [4, 2, 1]",
        "2026-02-03T04:04:41.000001Z  INFO text_generation_router: router/src/main.rs:354: Setting max batch total "
        "tokens to 43808",
        "2026-02-03T04:04:42.000001Z  INFO text_generation_router: router/src/main.rs:355: Connected",
        tgi().replace("generate{parameters=GenerateParameters { max_new_tokens: Some(40), seed: Some(4) } ",
                      "chat_completions{"),
        "2026-02-03T04:06:00.000001Z  WARN text_generation_router: router/src/main.rs:369: Invalid hostname",
    )
    assert log.events["kind"].tolist() == ["args", "weights_loaded", "graphs_captured", "kv_allocated", "ready"]
    assert json.loads(log.events["detail"][2])["batch_sizes"] == [1, 2, 4]
    assert log.facts[0]["kv_pool_tokens"] == 43808
    assert log.samples["out_tok"].tolist() == [40]
    assert log.accounting.lines == {"statistic": 1, "event": 5, "other_known": 1, "other": 0, "malformed": 0}


# Ollama


@pytest.mark.parametrize(
    ("printed", "seconds"),
    [("4.75s", 4.75), ("1m25.5s", 85.5), ("1h2m3.5s", 3723.5), ("350.5ms", 0.3505), ("12.5µs", 12.5e-6),
     ("800ns", 8e-7)],
)
def test_ollama_durations_as_go_writes_them(tmp_path, printed, seconds):
    row, extra = only(read(tmp_path, OLLAMA.format(total="2m0.5s", n=100, spent=printed, rate="21.05")))
    assert row["span_s"] == pytest.approx(seconds, rel=1e-12)
    assert extra == pytest.approx({"total_s": 120.5, "load_s": 0.0285, "prompt_s": 0.13025})


def test_ollama_block_is_one_request_and_every_line_of_it_counts(tmp_path):
    text = OLLAMA.format(total="5.2s", n=96, spent="4.75s", rate="20.21")
    log = read(tmp_path, "Why is the sky blue?", text, "", text.replace("96", "11"), "bye")
    assert log.accounting.lines == {"statistic": 16, "event": 0, "other_known": 0, "other": 3, "malformed": 0}
    assert log.samples["out_tok"].tolist() == [96, 11]
    assert log.samples["n_steps"].tolist() == [95, 10]  # the prompt's pass made the first token
    assert log.samples["line_no"].tolist() == [9, 18]
    assert log.samples["new_tok"].tolist() == [26, 26]
    assert log.samples["decode_tok_per_s"].tolist() == [20.21, 20.21]
    assert log.samples["prefill_tok_per_s"].tolist() == [199.62, 199.62]
    assert log.accounting.by_kind == {"request": 2}


def test_ollama_rates_alone_are_one_request_each(tmp_path):
    """`ollama run --verbose | grep "eval rate"`: two lines per answer."""
    log = read(tmp_path, *["prompt eval rate:     1354.84 tokens/s", "eval rate:            88.77 tokens/s"] * 2)
    assert log.samples["decode_tok_per_s"].tolist() == [88.77, 88.77]
    assert log.samples["prefill_tok_per_s"].tolist() == [1354.84, 1354.84]


def test_ollama_nothing_after_the_eval_rate_belongs_to_its_block(tmp_path):
    log = read(tmp_path, "eval rate: 10.00 tokens/s", "prompt eval rate: 500.00 tokens/s", "eval rate: 20.00 tokens/s")
    assert log.samples["decode_tok_per_s"].tolist() == [10.0, 20.0]
    assert log.samples["prefill_tok_per_s"].fillna(0).tolist() == [0, 500.0]


@pytest.mark.parametrize("prose", [
    "an eval rate: 42 tokens/s is what I would expect", "the load duration: 5 minutes", "eval count: 12 tokens",
])
def test_ollama_words_in_an_answer_are_no_statistic(tmp_path, prose):
    log = read(tmp_path, prose, sglang_line())
    assert log.accounting.lines["statistic"] == 1 and log.accounting.lines["malformed"] == 0


def test_ollama_server_log(tmp_path):
    log = read(
        tmp_path,
        'time=2026-02-03T04:05:00.000Z level=INFO source=routes.go:1259 msg="Listening on [::]:11434 (version 0.6.2)"',
        'time=2026-02-03T04:05:01.000Z level=INFO source=server.go:596 msg="llama runner started in 2.50 seconds"',
        '[GIN] 2026/02/03 - 04:05:07 | 200 |  1.234567s |       127.0.0.1 | POST     "/api/generate"',
        "eval rate:            42.00 tokens/s",
    )
    assert log.engine_version == "0.6.2"
    assert log.events["kind"].tolist() == ["weights_loaded"]
    assert log.accounting.lines == {"statistic": 1, "event": 1, "other_known": 2, "other": 0, "malformed": 0}


# KTransformers


@pytest.mark.parametrize(("prefill", "decode"), [("50.25", "12.5"), ("50.2500000000001", "12.500000000000002")])
def test_ktransformers_request(tmp_path, prefill, decode):
    row, extra = only(read(
        tmp_path,
        f"2026-02-03 04:05:09,500 INFO base.py[64]: Performance(T/s): prefill {prefill}, decode {decode}. "
        "Time(s): tokenize 0.011, prefill 4.0, decode 38.4",
    ))
    assert (row["engine"], row["kind"]) == ("ktransformers", "request")
    assert row["decode_tok_per_s"] == pytest.approx(12.5) and row["prefill_tok_per_s"] == pytest.approx(50.25)
    assert row["span_s"] == 38.4 and row["out_tok"] == pytest.approx(480)  # 12.5 x 38.4
    assert row["new_tok"] == 201  # 50.25 x 4
    assert extra == {"tokenize_s": 0.011, "prompt_s": 4.0}


def test_ktransformers_forward_is_named_and_no_request(tmp_path):
    log = read(tmp_path, "Model execution time (GPU): 25.000 ms, 40.000 tokens/s",
               "Model execution time (GPU): 26.5 ms",
               "Performance(T/s): prefill 1.0, decode 2.0. Time(s): tokenize 0.1, prefill 1.0, decode 10.0")
    assert log.samples["kind"].tolist() == ["aux", "aux", "request"]
    assert log.samples["span_s"].tolist() == [0.025, 0.0265, 10.0]
    assert log.samples["decode_tok_per_s"].isna().tolist() == [True, True, False]
    assert json.loads(log.samples["extra"][0]) == {"forwards per second": 40.0}


# LightLLM


def test_lightllm_request(tmp_path):
    row, extra = only(read(tmp_path, LIGHTLLM.format(
        second=9, request=64, first="200.5", total="2200.5", n=101, mean="19.8019", prompt=512,
        rest="prompt_cache_len:128 prompt_cache_ratio:0.25",
    )))
    assert (row["engine"], row["kind"]) == ("lightllm", "request")
    assert str(row["ts"]) == "1904-02-03 04:05:09"  # of the line, not the start_time in it
    assert row["span_s"] == pytest.approx(2.0)  # 2200.5 ms - 200.5 ms
    assert (row["out_tok"], row["n_steps"]) == (100, 100)  # the prefill made the first
    assert row["decode_tok_per_s"] == pytest.approx(50.0)
    assert (row["new_tok"], row["cached_tok"]) == (512, 128)
    assert extra["mean_per_token_cost_time (ms)"] == 19.8019  # 2000 / 101: not a step


def test_lightllm_newer_line_with_speculation(tmp_path):
    row, extra = only(read(tmp_path, LIGHTLLM.format(
        second=9, request=64, first="200.5", total="2200.5", n=101, mean="19.8", prompt=512,
        rest="gpu cache hit: True gpu_prompt_cache_len:128 gpu_prompt_cache_ratio:0.25 cpu cache hit: False "
             "cpu_prompt_cache_len:0 mtp_avg_token_per_step:2.5",
    )))
    assert (row["cached_tok"], row["accept_len"]) == (128, 2.5)
    assert (row["out_tok"], row["n_steps"]) == (100, 40)  # 100 tokens at 2.5 per verify step
    assert extra["gpu cache hit"] is True and extra["cpu cache hit"] is False


def test_lightllm_tiny_time_in_exponent_form(tmp_path):
    row, _ = only(read(tmp_path, LIGHTLLM.format(second=1, request=-5, first="355.5", total="355.5", n=1,
                                                 mean="5.1e-05", prompt=4, rest="prompt_cache_len:0")))
    assert (row["span_s"], row["out_tok"]) == (0, 0) and pd.isna(row["decode_tok_per_s"])


def test_lightllm_periodic_rates_are_aux(tmp_path):
    log = read(tmp_path, "Avg tokens(prompt+generate) throughput:  900.500 tokens/s",
               "Avg prompt tokens throughput:            100.000 tokens/s",
               "Avg generate tokens throughput:          800.500 tokens/s",
               LIGHTLLM.format(second=1, request=1, first="1.5", total="2.5", n=2, mean="0.5", prompt=4, rest="x:1"))
    assert log.samples["kind"].tolist() == ["aux", "aux", "aux", "request"]
    assert log.samples["decode_tok_per_s"].tolist()[2] == 800.5
    assert log.samples["prefill_tok_per_s"].tolist()[1] == 100.0


# forks of SGLang


def decode_with(extra: str, n: str = "#token: 640, token usage: 0.25") -> str:
    return (f"[2026-02-03 04:05:06] Decode batch. #running-req: 8, {n}, {extra}gen throughput (token/s): 123.45, "
            "#queue-req: 0")


@pytest.mark.parametrize(("extra", "column", "value", "named"), [
    ("#running-req per DP: [3, 2, 2, 1], accept-len 2.50, accept-ratio 0.60, ", "accept_len", 2.5,
     {"#running-req per DP": [3, 2, 2, 1]}),
    ("accept len: 3.10, accept rate: 0.70, cap len: 3.60, block accept len: 3.20, ", "accept_len", 3.1,
     {"cap len": 3.6, "block accept len": 3.2}),
    ("accept len: 3.10, accept rate: 0.70, dspark est block accept len: [2.10, 2.90], ", "accept_len", 3.1,
     {"dspark est block accept len": [2.1, 2.9]}),
    ("musa graph: False, ", "graph", False, {}),
])
def test_forks_and_ragged_verify(tmp_path, extra, column, value, named):
    row, found = only(read(tmp_path, decode_with(extra)))
    assert row[column] == value and row["running_req"] == 8
    assert found == named


def test_pools_of_hybrid_models_and_hisparse(tmp_path):
    swa = "#full token: 700, full token usage: 0.20, #swa token: 64, swa token usage: 0.90, mamba num: 32, " \
        "mamba usage: 0.40"
    sparse = "#gpu token: 500, gpu token usage: 0.10, #cpu token: 9000, cpu token usage: 0.30"
    log = read(tmp_path, decode_with("", swa), decode_with("", sparse))
    assert log.samples["used_tok"].tolist() == [700, 500]
    assert log.samples["kv_used_frac"].tolist() == [0.2, 0.1]
    assert log.samples["running_req"].tolist() == [8, 8]  # never the state slots
    assert json.loads(log.samples["extra"][0])["mamba num"] == 32


def test_estimates_and_occupancy_are_named_and_in_no_column(tmp_path):
    plain = sglang_line()
    log = read(tmp_path, plain, plain + ", est. decode TFLOPS/s (per GPU): 3.10, est. read BW (GB/s per GPU): "
               "99999.00, fwd occupancy: nan%, fwd+idle occupancy: 93.10%")
    columns = [c.name for c in SAMPLES.columns if c.name not in ("line_no", "extra")]
    pd.testing.assert_series_equal(log.samples.iloc[0][columns], log.samples.iloc[1][columns], check_names=False)
    assert json.loads(log.samples["extra"][1])["est. read BW (GB/s per GPU)"] == 99999.0


def test_frozen_token_count_is_kept_as_printed(tmp_path):
    log = read(tmp_path, *(sglang_line(second=s, tok=1920) for s in range(3)))
    assert log.samples["used_tok"].tolist() == [1920] * 3


@pytest.mark.parametrize(("tail", "named"), [
    ("gpu-ms: 30.5 (compute 10.25, wait 20.25)", {"gpu-ms": 30.5, "compute-ms": 10.25, "wait-ms": 20.25}),
    ("gpu-ms: 30.5 (split unavailable: graph-replay, graphed-fwd 1/1)", {"gpu-ms": 30.5, "split unavailable": True}),
    ("gpu-ms: 30.5 (compute 10.25, wait 20.25) (wait by family: tp.all_reduce 9.2/129x, x:y 2.4/3x)",
     {"gpu-ms": 30.5, "compute-ms": 10.25, "wait-ms": 20.25, "wait by family": True}),
])
def test_rank_rounds_are_aux(tmp_path, tail, named):
    line = f"[2026-02-03 04:05:06 TP1] Decode rank batch, rank: 1, #round: 4120, bs: 6, #tokens: 24, #fwd: 2, {tail}"
    log = read(tmp_path, sglang_line(), line)
    assert log.samples["kind"].tolist() == ["decode", "aux"] and log.samples["rank"][1] == "TP1"
    assert log.samples["running_req"].isna().tolist() == [False, True]
    extra = json.loads(log.samples["extra"][1])
    assert {name: extra[name] for name in named} == named and extra["bs"] == 6


# a log that nobody reads


UNKNOWN = ["INFO engine up", "INFO worker 3 joined",
           "[engine] running=12 batch cache usage=40% gen throughput: 834.5 tok/s queue=3"]


def test_unknown_engine_is_told_the_nearest_dialect_the_lines_and_what_to_do(tmp_path):
    with pytest.raises(LogFormatError) as error:
        read(tmp_path, *UNKNOWN)
    message = str(error.value)
    assert "\n" not in message
    assert "nearest dialect: sglang" in message
    assert message.index("[engine] running=12") < message.index("INFO engine up")  # lines with a rate first
    assert "adding-an-engine.md" in message and "rooflog engines" in message and "lmdeploy" in message


def test_a_rate_far_down_is_shown(tmp_path):
    with pytest.raises(LogFormatError, match="834.5 tok/s"):
        read(tmp_path, *[f"INFO starting part {number}" for number in range(500)], UNKNOWN[-1])


def test_nearest_needs_more_than_common_words():
    assert nearest_dialect(["INFO request 12 done in 3 s", "tokens: 4"]) is None
    assert describe_contents({}, {}, ["hello"]) == "nothing of a server log in it"
    assert looks_measured("decode 12.5 tok/s") and not looks_measured("throughput was fine")


def test_engines_that_are_read_are_not_called_foreign():
    words = " ".join(KNOWN)
    assert not any(name in words for name in ("LMDeploy statistic", "TGI statistic", "Ollama statistic"))


def test_two_engines_in_one_file_are_named(tmp_path):
    log = read(tmp_path, sglang_line(), vllm_line(), LMDEPLOY.format(second=1, rank=0, taken=0, given=1, n=1))
    assert log.samples["engine"].tolist() == ["sglang", "vllm", "lmdeploy"]
