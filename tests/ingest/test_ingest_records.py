"""One statistic line at a time: which values it gives, and when it is malformed instead.

Exact. Would catch: dependence on key order, unknown keys lost, absurd numbers accepted, a line cut anywhere and
still half read, records lost behind or before other text on the same line.
"""

from __future__ import annotations

import json
import math

import pandas as pd
import pytest
from logs import read, sglang_line, vllm_line

SPINE = "#running-req: 5, #token: 77, token usage: 0.10, gen throughput (token/s): 41.50, #queue-req: 2"


def only(log):
    assert len(log.samples) == 1
    return log.samples.iloc[0]


@pytest.mark.parametrize("head", [
    "Decode batch. ", "Decode batch, ", "Decode batch [912], ", "[gpu_id=3] Decode batch. ",
    "(Engine pid=1) [2026-01-02 03:04:05 TP0] Decode "
    "batch, ", "  5%|5    | 1/20 [00:22<02:35, 22.27s/it]Decode batch, ",
])
@pytest.mark.parametrize("tail", ["", ", ", ",", " ", ", #cache_miss: 1"])
def test_decode_line_of_any_version(tmp_path, head, tail):
    row = only(read(tmp_path, head + SPINE + tail))
    assert (row.kind, row.engine) == ("decode", "sglang")
    assert (row.running_req, row.used_tok, row.queue_req) == (5, 77, 2)
    assert (row.kv_used_frac, row.decode_tok_per_s) == (0.10, 41.5)
    assert (row.iteration == 912) if "912" in head else pd.isna(row.iteration)


def test_keys_in_any_order(tmp_path):
    keys = SPINE.split(", ")
    rows = [only(read(tmp_path, "Decode batch, " + ", ".join(order))) for order in (keys, keys[::-1])]
    pd.testing.assert_series_equal(rows[0], rows[1])


def test_unknown_keys_are_kept_as_printed(tmp_path):
    line = f"Decode batch, {SPINE}, new figure: 0.50, share of it: 91.40%, list of them: [1, 2, 3], is new: True"
    assert json.loads(only(read(tmp_path, line)).extra) == {
        "new figure": 0.5, "share of it (%)": 91.4, "is new": True, "list of them": [1, 2, 3],
    }


def test_fork_without_colons(tmp_path):
    line = "Decode batch. #running-req: 1, #token: 64, token usage: 0.00, #running-req per DP: [1, 0], " \
        "accept-len 2.25, accept-ratio 0.75, gen throughput (token/s): 84.39, #queue-req: 0, #cache_miss: 1"
    row = only(read(tmp_path, line))
    assert (row.running_req, row.accept_len, row.accept_rate_frac) == (1, 2.25, 0.75)
    assert json.loads(row.extra) == {"#cache_miss": 1, "#running-req per DP": [1, 0]}


@pytest.mark.parametrize("device", ["cuda", "npu", "musa", "cpu", "anything"])
def test_graph_flag_of_any_device(tmp_path, device):
    row = only(read(tmp_path, f"Decode batch, {SPINE}, {device} graph: False"))
    assert row.graph is False or row.graph == False  # noqa: E712  (pandas BooleanDtype)


def test_nan_of_an_optional_value_is_missing(tmp_path):
    row = only(read(tmp_path, f"Decode batch, {SPINE}, accept len: nan, fwd occupancy: nan%"))
    assert math.isnan(row.accept_len)
    assert json.loads(row.extra) == {"fwd occupancy (%)": None}


@pytest.mark.parametrize(("line", "reason"), [
    (SPINE.replace("41.50", "-41.50"), "'gen throughput (token/s)' is -41.50"),
    (SPINE.replace("41.50", "inf"), "'gen throughput (token/s)' is inf"),
    (SPINE.replace("41.50", "nan"), "'gen throughput (token/s)' is nan"),
    (SPINE.replace("41.50", "1e999"), "'gen throughput (token/s)' is 1e999"),
    (SPINE.replace(": 5,", ": -5,"), "'#running-req' is -5"),
    (SPINE.replace(": 5,", ": 99999999999999999999,"), "'#running-req' is 99999999999999999999"),
    (SPINE.replace(": 5,", ": 5.5,"), "'#running-req' is 5.5"),
    (SPINE.replace(": 5,", ": many,"), "'#running-req: many' is no 'key: value'"),
    (SPINE.replace("token usage", "token us").replace(": 0.10", "accept rate"), "'token usaccept rate' is no 'key: "
        "value'"),
    (SPINE.replace("#token: 77, ", ""), "'#token' is missing"),
    (SPINE.replace("#running-req: 5, ", ""), "'#running-req' is missing"),
    (SPINE.replace("gen throughput (token/s): 41.50, ", ""), "'gen throughput (token/s)' is missing"),
    (SPINE.replace(", #queue-req: 2", ", cuda graph: True"), "'#queue-req' is missing"),
    (SPINE + ", #token: 3", "'#token' appears twice"),
    (SPINE + " tok", "'#queue-req' carries 'tok' where [''] was expected"),
    (SPINE.split(", gen")[0] + ", gen through", "'gen through' is no 'key: value'"),
    ("#ru", "'#ru' is no 'key: value'"),
    (", ".join(f"#k{i}: {i}" for i in range(200)), "it holds more than 100 values"),
])
def test_malformed_line_is_reported_and_never_half_read(tmp_path, line, reason):
    log = read(tmp_path, sglang_line(), "Decode batch, " + line)
    assert len(log.samples) == 1
    assert log.accounting.lines["malformed"] == 1
    found = log.accounting.malformed[0]
    assert (found.line_no, found.reason) == (2, reason)
    assert found.text.startswith("Decode batch, ")


def test_every_cut_of_a_line_is_malformed_or_no_statistic(tmp_path):
    """A line cut at any character (and ended by a line feed) must not give a row with a wrong value."""
    whole = sglang_line(rate=987.65)
    row = only(read(tmp_path, whole))
    lines = [whole[:end] for end in range(len(whole))]
    samples = read(tmp_path, *lines, whole).samples
    # none of the cuts reaches the last value (#queue-req: 0)
    assert samples["line_no"].tolist() == [len(lines) + 1]
    assert samples.iloc[0].decode_tok_per_s == row.decode_tok_per_s


def test_prefill_line_needs_its_keys(tmp_path):
    whole = "Prefill batch, #new-seq: 2, #new-token: 300, #cached-token: 4, token usage: 0.01, #running-req: 7, " \
        "#queue-req: 1, cuda graph: True, input throughput (token/s): 55.25"
    log = read(tmp_path, whole, whole.replace(", #queue-req: 1", ""), whole.split(", input")[0],
        whole.split(", cuda")[0])
    assert log.samples["new_tok"].tolist() == [300, 300]
    assert log.samples["line_no"].tolist() == [1, 4]
    assert [line.reason for line in log.accounting.malformed] == [
        "'#queue-req' is missing", "'input throughput (token/s)' is missing",
    ]


@pytest.mark.parametrize("device", ["GPU", "XPU", "CPU", "QUANTUM"])
def test_vllm_usage_of_any_device(tmp_path, device):
    assert only(read(tmp_path, vllm_line().replace("GPU", device))).kv_used_frac == 0.125


def test_v0_swap_pool_is_not_the_kv_pool(tmp_path):
    line = "INFO 02-03 04:05:06 metrics.py:351] Avg prompt throughput: 1.0 tokens/s, Avg generation throughput: 2.0 " \
        "tokens/s, Running: 1 reqs, Swapped: 3 reqs, Pending: 4 reqs, {usage}."
    pools = ["GPU KV cache usage: 50.0%", "CPU KV cache usage: 10.0%"]
    for order in (pools, pools[::-1]):
        row = only(read(tmp_path, line.format(usage=", ".join(order))))
        assert (row.kv_used_frac, row.queue_req) == (0.5, 4)
        assert json.loads(row.extra) == {"Swapped (reqs)": 3, "CPU KV cache usage (%)": 10.0}


def test_vllm_optional_parts_are_kept(tmp_path):
    line = vllm_line().replace(
        "GPU KV", "Preemptions: 9, Deferred: 1 reqs, KV fetch: 1 waiting to start, 2 in progress, 0 completed waiting, "
        "Corrupted: 3 reqs, GPU KV",
    ) + ", External prefix cache hit rate: 99.0%, MM cache hit rate: 1.0%"
    assert json.loads(only(read(tmp_path, line)).extra) == {
        "Preemptions": 9, "Deferred (reqs)": 1, "KV fetch (waiting to start)": 1, "KV fetch: in progress": 2,
        "KV fetch: completed waiting": 0, "Corrupted (reqs)": 3, "Prefix cache hit rate (%)": 0.0,
        "External prefix cache hit rate (%)": 99.0, "MM cache hit rate (%)": 1.0,
    }


@pytest.mark.parametrize("cut", ["Waiting: 0 re", "Waiting: 0", "Running: 8", "GPU KV cache usage: "
    "12.5", "GPU KV cache us"])
def test_vllm_line_cut_is_malformed(tmp_path, cut):
    line = vllm_line()
    log = read(tmp_path, line, line[: line.index(cut) + len(cut)])
    assert len(log.samples) == 1
    assert log.accounting.lines["malformed"] == 1


def test_iteration_line(tmp_path):
    line = "(EngineCore_DP2 pid=1) INFO 12-22 21:44:40 [core.py:349] Iteration(7): 1 context requests, 256 context " \
        "tokens, 20 generation requests, 40 generation tokens, iteration elapsed time: 10.99 ms"
    log = read(tmp_path, line, line.replace(" ms", " ms (dummy)"))
    row = log.samples.iloc[0]
    assert (row.kind, row.iteration, row.running_req, row["rank"]) == ("iteration", 7, 20, "DP2")
    assert (row.new_tok, row.out_tok, row.span_s, row.n_steps) == (256, 40, pytest.approx(0.01099), 1)
    assert json.loads(row.extra) == {"context requests": 1}
    assert json.loads(log.samples.iloc[1].extra)["dummy"] is True


def test_auxiliary_lines(tmp_path):
    log = read(
        tmp_path, vllm_line(),
        "INFO 05-20 10:00:10 [perf.py:1] Engine 001: MFU: 31.2 TF/s/GPU 1520.4 GB/s/GPU",
        "INFO 05-20 10:00:10 [metrics.py:1] KV Transfer metrics: Num successful transfers=32, P90 xfer time (ms)=4.5",
        "INFO 05-20 10:00:10 metrics.py:1] Prefix cache hit rate: GPU: 43.21%, CPU: 0.00%",
    )
    assert log.samples["kind"].tolist() == ["stats", "aux", "aux", "aux"]
    assert [json.loads(text) for text in log.samples["extra"][1:]] == [
        {"TF/s/GPU": 31.2, "GB/s/GPU": 1520.4}, {"Num successful transfers": 32, "P90 xfer time (ms)": 4.5},
        {"Prefix cache hit rate: GPU (%)": 43.21, "CPU (%)": 0.0},
    ]
    assert log.samples["rank"][1] == "DP1"


@pytest.mark.parametrize("behind", [
    "[2026-02-03 04:05:06] INFO:     127.0.0.1:1 - \"POST /v1 HTTP/1.1\" 200 OK", "INFO:     127.0.0.1:1 - \"GET /\"",
    "[repeated 3x across cluster]", " [repeated 3x across cluster] (Ray deduplicates logs by default)",
    "(APIServer pid=1) WARNING something", "\\n\",\"stream\":\"stdout\"}",
])
def test_what_is_glued_behind_a_record_is_cut_off(tmp_path, behind):
    for line in (sglang_line(), vllm_line()):
        log = read(tmp_path, line + behind)
        assert only(log).running_req == 8
        assert log.accounting.lines["malformed"] == 0


def test_records_of_two_processes_on_one_line(tmp_path):
    glued = sglang_line(1, n=4) + sglang_line(2, n=6).replace("TP0", "TP0 EP0") + vllm_line(3, n=7)
    log = read(tmp_path, glued)
    assert log.samples["running_req"].tolist() == [4, 6, 7]
    assert log.samples["line_no"].tolist() == [1, 1, 1]
    assert log.samples["rank"].tolist() == ["TP0", "TP0 EP0", "DP0"]
    assert log.accounting.lines["statistic"] == 1
    assert log.accounting.oddities["glued_records"] == 1


def test_a_line_with_a_whole_and_a_broken_record_is_malformed_but_keeps_the_whole_one(tmp_path):
    log = read(tmp_path, sglang_line(1)[:80] + sglang_line(2, n=3))
    assert log.samples["running_req"].tolist() == [3]
    assert log.accounting.lines == {"statistic": 0, "event": 0, "other_known": 0, "other": 0, "malformed": 1}


@pytest.mark.parametrize("prose", [
    "no \"Decode batch\" was seen", "grep for Decode batch. Then count", "the Prefill batch came late",
    "see SpecDecoding metrics for details", "Avg prompt throughput: unknown", "Iteration(abc) done", "the MFU: is high",
])
def test_prose_that_mentions_a_literal_is_no_statistic(tmp_path, prose):
    log = read(tmp_path, sglang_line(), prose)
    assert log.accounting.lines["malformed"] == 0
    assert log.accounting.lines["other"] == 1


@pytest.mark.parametrize("line", [
    "[2026-02-03 04:05:06] Receive: obj=GenerateReqInput(text='" + sglang_line() + "')",
    "INFO 02-03 04:05:06 logger.py:39] Received request cmpl-1: prompt: '" + vllm_line() + "', params: x",
    "[2026-02-03 04:05:06] Finish: obj=x, out='CUDA out of memory. Tried to allocate 3.94 GiB'",
])
def test_quoted_user_text_is_no_statistic_and_no_event(tmp_path, line):
    log = read(tmp_path, sglang_line(), line)
    assert len(log.samples) == 1
    assert log.events.empty
    assert log.accounting.known == {"request log": 1}


@pytest.mark.parametrize("line", [
    "Decode rank batch, rank: 0, #round: 7, t: 17.2, bs: 5",
    "[2026-07-01 10:00:00 DP0] Avg thr (in/out): 0.0 / 12.5 tokens/s, SpecDecoding metrics: Draft acceptance rate: "
    "71.2%, Mean acceptance length: 2.42, ",
])
def test_cut_lines_of_other_engines_are_reported_and_not_read_as_another_engines(tmp_path, line):
    log = read(tmp_path, sglang_line(), line)
    assert log.accounting.lines["malformed"] == 1
    assert len(log.samples) == 1
