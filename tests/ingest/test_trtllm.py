"""TensorRT-LLM: iteration lines of every era, the JSON of its statistics, and the law found again in a rendered log.

Truth: values read by eye from the recorded lines, a sequence published with its cause (an empty iteration whose wait
shows up one line later), hand arithmetic, and a rendered overlap scheduler whose step times are known.
Would catch: milliseconds kept, the device time joined to the wrong iteration, padded slots taken for requests, states
of an empty turn believed, a month taken for a day, dummies and sizing runs taken for load.
"""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pandas as pd
import polars as pl
import pytest
from logs import read

from helpers import ingest
from helpers.analysis import analyse
from helpers.ingest import trtllm, trtllm_stats
from helpers.ingest.scan import scan_file

LINE = (
    "[08/04/2026-10:00:{second:02d}] [TRT-LLM] [I] [_torch][RANK {rank}] iter = {iteration}, global_rank = {rank}, "
    "rank = {rank}, num_scheduled_requests = {scheduled}, kv_cache_util = {util}, currank_total_requests = 0/1, "
    "host_step_time = {host_ms}ms, prev_device_step_time = {device}, timestamp = 2026-08-04 10:00:{second:02d}, "
    "states = {{'num_ctx_requests': {ctx}, 'num_ctx_tokens': {ctx_tok}, 'num_generation_tokens': {slots}, "
    "'cached_kv_tokens': 0}}"
)


def line(iteration: int, scheduled: int = 8, host_ms: float = 7.5, device: str = "7.4ms", **given: object) -> str:
    """One iteration line of 1.2 and newer."""
    values = {"second": 0, "rank": 0, "util": 0.1, "ctx": 0, "ctx_tok": 0, "slots": scheduled} | given
    return LINE.format(iteration=iteration, scheduled=scheduled, host_ms=host_ms, device=device, **values)


def extra_of(log: ingest.Log) -> list[dict[str, object]]:
    """The extra values of every row."""
    return [json.loads(text) for text in log.samples["extra"]]


# beginning of the line's record -> what stands there, read by eye
HAND_READ = {
    "iter = 198, global_rank = 0, rank = 0, currank_total_requests = 0/0, elapsed_time = 0.005060911178588867s, "
    "timestamp = 2025-04-28 09:56:44, states": {
        "running_req": None, "new_tok": 0, "span_s": 0.005060911178588867, "iteration": 198, "out_tok": None,
        "num_generation_tokens": 16, "ts": "2025-04-28 09:56:44",
    },
    "iter = 198, global_rank = 0, rank = 0, currank_total_requests = 0/0, elapsed_time = 0.005060911178588867s, "
    "timestamp = 2025-04-28 09:56:44, num_scheduled_requests": {
        "running_req": 10, "new_tok": 0, "span_s": 0.005060911178588867, "num_generation_tokens": 16,
    },
    "iter = 1, global_rank = 0, rank = 0, currank_total_requests = 0/1, host_step_time = 45810": {
        "running_req": 0, "new_tok": 13694, "span_s": 45.81021428108215, "prev_device_step_time": None,
        "currank_total_requests": [0, 1], "warmup": True, "ts": "2026-05-20 23:24:41",
    },
    "iter = 5012": {
        "running_req": 256, "new_tok": 0, "span_s": 0.007401943206787109, "device_step_s": 7.402495861053467e-3,
        "prev_device_step_time (ms)": 7.386112213134766, "ts": "2025-09-02 10:00:01",
    },
    "iter = 5013": {
        "running_req": 255, "new_tok": 1024, "span_s": 0.009913206100463867, "num_generation_tokens": 255,
        "currank_total_requests": [1, 1],
    },
    "iter = 2, global": {
        "running_req": 2, "new_tok": 4, "span_s": 0.00408, "kv_used_frac": 0.112, "num_generation_tokens": 7,
        "prev_device_step_time (ms)": 243.13, "cached_kv_tokens": 0, "used_tok": None, "warmup": True,
    },
    "iter = 1, global_rank = 0, rank = 0, num_scheduled": {
        "running_req": 0, "new_tok": 4, "span_s": 0.00408, "kv_used_frac": None, "prev_device_step_time": None,
    },
    "iter = 7, global": {
        "running_req": 1, "new_tok": 0, "span_s": 0.005, "kv_used_frac": 0.1, "num_generation_tokens": 4,
        "ts": "2026-07-22 00:00:00", "rank": "RANK0",
    },
    "iter = 9, global": {
        "running_req": 128, "span_s": 0.00679, "num_generation_tokens": 512, "rank": "RANK3",
        "ts": "2026-08-23 01:02:03",
    },
    "iter = 812": {
        "running_req": 13, "new_tok": 8192, "span_s": 0.0123, "kv_used_frac": 0.301, "used_tok": 40112,
        "cached_kv_len": 40112, "num_active": 14, "num_fetched": 3, "num_dummy": 1, "num_unscheduled": 5,
        "rank": "RANK2", "currank_total_requests": [3, 24],
    },
    '"Iteration Counter":0': {
        "running_req": 0, "new_tok": 2048, "iteration": 0, "span_s": None, "Used KV cache blocks": 1,
        "Max Request Count": 64, "ts": "2023-12-18 03:35:37.688135",
    },
}


@pytest.fixture(scope="module")
def recorded(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], ingest.Log]:
    """The recorded TensorRT-LLM lines by themselves, as text and read."""
    text = (shared / "log-line-variants.txt").read_text(encoding="utf-8")
    block = text[text.index("# TENSORRT-LLM"):text.index("# LLAMA.CPP")]
    lines = [line for line in block.splitlines() if line and not line.startswith("#")]
    assert len(lines) == 17
    return lines, read(tmp_path_factory.mktemp("trtllm"), *lines)


@pytest.mark.parametrize("begin", HAND_READ)
def test_recorded_line_has_the_values_read_by_eye(recorded: tuple[list[str], ingest.Log], begin: str) -> None:
    lines, log = recorded
    (line_no,) = (number for number, text in enumerate(lines, 1) if begin in text)
    (row,) = log.samples[log.samples["line_no"] == line_no].to_dict("records")
    assert (row["engine"], row["kind"], row["n_steps"]) == ("trtllm", "iteration", 1)
    values = json.loads(row["extra"]) | {**row, "ts": str(row["ts"])}
    for name, wanted in HAND_READ[begin].items():
        assert name in values, name
        if wanted is None:
            assert pd.isna(values[name]), name
        else:
            assert values[name] == (pytest.approx(wanted, rel=1e-12) if isinstance(wanted, float) else wanted), name


def test_every_other_recorded_line_is_accounted(recorded: tuple[list[str], ingest.Log]) -> None:
    lines, log = recorded
    assert len(log.samples) == len(HAND_READ)
    # the line that its author elided is none that a server prints; two lines are elements of /metrics
    (malformed,) = log.accounting.malformed
    assert "iter = 5, global_rank = 0, ...," in malformed.text and malformed.reason == "'...' is no 'key: value'"
    assert log.accounting.known == {"TensorRT-LLM /metrics element": 2, "TensorRT-LLM": 1}
    assert sum(log.accounting.lines.values()) == len(lines)
    # the lines are of several servers: their iterations begin anew
    facts = {name: value for of_life in log.facts for name, value in of_life.items()}
    assert facts["kv_pool_tokens"] == 860320 and facts["max_running_requests"] == 4096
    assert facts["context_length_max"] == 157 and facts["chunked_prefill_size"] == 23552
    assert log.events["size_bytes"].dropna().tolist() == [round(52.51 * 2**30)]


def test_recorded_metrics_elements(recorded: tuple[list[str], ingest.Log], tmp_path: Path) -> None:
    lines, _ = recorded
    path = tmp_path / "metrics.json"
    path.write_text("\n".join(text for text in lines if text.startswith("{")))
    first, second = trtllm_stats.read(str(path)).samples[0].to_dicts()
    assert (first["iteration"], first["running_req"], first["new_tok"], first["queue_req"]) == (60, 1, 0, 0)
    assert first["span_s"] == pytest.approx(0.013021209) and str(first["stamp"]) == "2025-07-25 16:54:34.140189"
    assert first["kv_used_frac"] == pytest.approx(3 / 22955)
    assert (second["running_req"], second["new_tok"], second["used_tok"], second["rank"]) == (4, 300, 40, "DP1")
    assert second["span_s"] == 0.0125 and json.loads(second["extra"])["inflightBatchingStats.numPausedKvTokens"] == 25


# ---------------------------------------------------------------------------
# one line after another


def test_device_time_belongs_to_the_iteration_before(tmp_path: Path) -> None:
    # published sequence (nvbugs 6627789): 259 ran nothing for 1456.7 ms, and 260 prints that wait as device time
    log = read(
        tmp_path,
        line(257, 1, 7.4, "7.31ms"),
        line(258, 1, 7.426261901855469, "7.326848030090332ms"),
        line(259, 0, 1456.6991329193115, "7.391776084899902ms", slots=1),
        line(260, 1, 2.572298049926758, "1450.6143798828125ms"),
        line(261, 1, 7.4, "7.31ms"),
    )
    device = [extra.get("device_step_s") for extra in extra_of(log)]
    assert device[:4] == pytest.approx([7.326848030090332e-3, 7.391776084899902e-3, 1.4506143798828125, 7.31e-3])
    assert device[4] is None  # its own time would be on the next line
    assert log.samples["running_req"].tolist() == [1, 1, 0, 1, 1]
    # 260 waited for a batch that was not there: its host time is no step, and it says so
    assert [extra.get("after_change", False) for extra in extra_of(log)] == [True, False, True, True, False]


def test_device_time_is_shifted_per_rank_and_over_no_gap(tmp_path: Path) -> None:
    log = read(
        tmp_path,
        line(5, device="5.0ms"), line(5, device="50.0ms", rank=1),
        line(6, device="6.0ms"), line(6, device="60.0ms", rank=1),
        line(9, device="9.0ms"), line(7, device="70.0ms", rank=1),
    )
    by_rank = {rank: [extra.get("device_step_s") for extra, row in zip(extra_of(log), log.samples["rank"], strict=True)
                      if row == rank] for rank in ("RANK0", "RANK1")}
    assert by_rank == {"RANK0": [0.006, None, None], "RANK1": [0.06, 0.07, None]}


def test_states_of_an_empty_turn_are_those_of_the_batch_before(tmp_path: Path) -> None:
    log = read(tmp_path, line(5, 3, ctx=1, ctx_tok=700, slots=2), line(6, 0, ctx=1, ctx_tok=700, slots=2))
    assert log.samples["running_req"].tolist() == [2, 0]
    assert log.samples["new_tok"].tolist() == [700, 0]


def test_padded_slots_are_no_requests_and_drafts_leave_the_tokens_open(tmp_path: Path) -> None:
    padded = read(tmp_path, line(5, 10, slots=16), line(6, 8, slots=8))
    assert padded.samples["running_req"].tolist() == [10, 8]
    assert padded.samples["out_tok"].tolist() == [10.0, 8.0]
    drafted = read(tmp_path, line(5, 10, slots=64), line(6, 8, slots=32), name="drafts.log")
    assert drafted.samples["running_req"].tolist() == [10, 8]
    assert drafted.samples["out_tok"].isna().all()


def test_warmup_iterations_are_marked(tmp_path: Path) -> None:
    log = read(tmp_path, *(line(number) for number in range(1, 8)))
    assert [extra.get("warmup", False) for extra in extra_of(log)] == [True] * 4 + [False] * 3


def test_dummies_of_attention_dp_are_marked_and_lone_requests_are_not(tmp_path: Path) -> None:
    alone = read(tmp_path, *(line(number, 1, util="0.000") for number in range(5, 9)))
    assert not any("dummy" in extra for extra in extra_of(alone))
    idle = read(tmp_path, line(5, 8), line(6, 1, util="0.000", slots=8), line(7, 1, util="0.001", slots=8), name="b")
    assert ["dummy" in extra for extra in extra_of(idle)] == [False, True, False]
    ranks = read(tmp_path, line(5, 1), line(5, 1, util="0.000", rank=1), name="c")
    assert ["dummy" in extra for extra in extra_of(ranks)] == [False, True]
    prompt = read(tmp_path, line(5, 1, util="0.000", ctx=1, ctx_tok=8190, slots=0),
                  line(6, 1, util="0.000", ctx=1, ctx_tok=12, slots=0), name="d")
    assert ["dummy" in extra for extra in extra_of(prompt)] == [True, False]


def test_sizing_executor_is_no_load_and_another_server_is_one(tmp_path: Path) -> None:
    sizing, server, again = (
        [line(number) for number in range(1, count)] for count in (4, 151, 11)
    )
    path = tmp_path / "server.log"
    path.write_text("\n".join([*sizing, *server, *again]) + "\n")
    samples = pl.concat(scan_file(str(path)).samples)
    finished = trtllm.finish_iterations(samples)
    assert finished["extra"].str.contains('"dummy": true', literal=True).to_list() == [True] * 3 + [False] * 160
    # the executor that sized the cache belongs to the server after it
    assert trtllm.find_restarts(samples) == [3 + 150 + 1]
    # the last line before a new executor has no device time: the next line speaks of another engine
    assert "device_step_s" not in json.loads(finished["extra"][2])


@pytest.mark.parametrize(("text", "named"), [
    (line(5).replace("'num_generation_tokens': 8", "'num_generation_tokens': tensor(8, device='cuda:0')"), None),
    (line(5, device="N/A", util="N/A"), None),
    (line(5, host_ms=9.5e-05), None),
    (line(5).replace("states = {", "states = {'new_field': -3, "), None),
    (line(5).replace("}", "}, num_active = 14, kv_hit_rate = 12.5%"), None),
    ("\x1b[32m" + line(5) + "\x1b[0m\r", None),
    ("0: " + line(5) + " extra words", "num_generation_tokens"),
    (line(5)[:-40], "num_generation_tokens"),
    (line(5).replace("host_step_time = 7.5ms", "host_step_time = infms"), "host_step_time"),
    (line(5).replace("host_step_time = 7.5ms", "host_step_time = -7.5ms"), "host_step_time"),
    (line(5).replace("num_scheduled_requests = 8, ", ""), "num_scheduled_requests"),
    (line(99999999999999999999), "iter"),
])
def test_odd_lines_are_read_whole_or_reported(tmp_path: Path, text: str, named: str | None) -> None:
    log = read(tmp_path, line(4), text, line(6))
    assert sum(log.accounting.lines.values()) == 3
    if named is None:
        assert log.samples["running_req"].tolist() == [8, 8, 8]
    else:
        assert log.samples["line_no"].tolist() == [1, 3]
        (malformed,) = log.accounting.malformed
        assert malformed.line_no == 2


def test_empty_states_leave_only_the_counts_open(tmp_path: Path) -> None:
    before_the_first = line(4).split("states = ")[0]
    log = read(tmp_path, before_the_first + "states = {}", before_the_first + "states = None")
    assert log.samples["running_req"].isna().all() and len(log.samples) == 2


def test_two_records_on_one_line_and_words_that_only_look_like_one(tmp_path: Path) -> None:
    log = read(tmp_path, line(5, 3) + line(6, 4, second=7), "optimiser: iter = 5, loss = 0.1", "max_iter = 5")
    assert log.samples["running_req"].tolist() == [3, 4]
    assert log.samples["ts"].dt.second.tolist() == [0, 7]
    assert log.accounting.lines["statistic"] == 1 and log.accounting.lines["other"] == 2
    assert log.accounting.oddities["glued_records"] == 1


def test_cpp_backend_takes_its_step_from_the_stamps(tmp_path: Path) -> None:
    record = (
        'I1218 03:35:{second} 20559 libtensorrtllm.cc:1205] {{"Active Request Count":4,"Context Requests":0,'
        '"Generation Requests":4,"Iteration Counter":{iteration},"Max KV cache blocks":513,"Max Request Count":64,'
        '"MicroBatch ID":0,"Scheduled Requests":4,"Timestamp":"12-18-2023 03:35:37","Total Context Tokens":0,'
        '"Used KV cache blocks":1}}'
    )
    seconds = ["37.600000", "37.612500", "37.625100", "37.700000"]
    log = read(tmp_path, *(
        record.format(second=second, iteration=number) for second, number in zip(seconds, (7, 8, 9, 20), strict=True)
    ))
    assert log.samples["span_s"][:2].tolist() == pytest.approx([0.0125, 0.0126])
    assert log.samples["span_s"][2:].isna().all()  # 10 is not there, and nothing follows 20
    assert log.samples["running_req"].tolist() == [4] * 4
    bare = ["[TensorRT-LLM][INFO] " + record.format(second="1", iteration=n).split("] ")[1] for n in (1, 2)]
    other = read(tmp_path, *bare, name="benchmark.log")
    assert other.samples["ts"].astype(str).tolist() == ["2023-12-18 03:35:37"] * 2
    assert other.samples["span_s"].isna().all()  # stamps of whole seconds tell no step


def test_start_up_lines_become_events_and_facts(tmp_path: Path) -> None:
    log = read(
        tmp_path,
        "[TensorRT-LLM] TensorRT LLM version: 1.2.0rc4",
        "[TensorRT-LLM][INFO] Number of tokens per block: 32.",
        "[TensorRT-LLM][INFO] [MemUsageChange] Allocated 1.01 GiB for max tokens in paged KV cache (8256).",
        "[11/07/2025-07:20:57] [TRT-LLM] [I] max_seq_len=8193, max_num_requests=32, max_num_tokens=8192, "
        "max_batch_size=32",
        "[11/07/2025-07:20:59] [TRT-LLM] [I] Creating CUDA graph instances for 32 batch sizes.",
        "[11/07/2025-07:20:59] [TRT-LLM] [I] Run generation-only CUDA graph warmup for batch size=32, draft_len=0",
        line(5),
        "[11/07/2025-07:30:00] [TRT-LLM] [E] Hang detected on rank 0 in PyExecutor.",
    )
    assert log.events["kind"].tolist() == ["kv_allocated", "kv_allocated", "graphs_captured", "watchdog"]
    assert log.engine == "trtllm" and log.engine_version == "1.2.0rc4"
    assert log.facts[0]["kv_pool_tokens"] == 8256 and log.facts[0]["max_running_requests"] == 32


# ---------------------------------------------------------------------------
# iteration statistics


def element(number: int, second: float, latency_ms: float = 10.0, **given: object) -> dict[str, object]:
    """One element of GET /metrics."""
    batch = {"numGenRequests": 8, "numContextRequests": 0, "numScheduledRequests": 8, "numCtxTokens": 0}
    stamp = datetime(2026, 8, 4, 23, 59, 50) + timedelta(seconds=second)
    return {
        "iter": number, "iterLatencyMS": latency_ms, "timestamp": stamp.strftime("%m-%d-%Y %H:%M:%S.%f"),
        "numActiveRequests": 8, "numQueuedRequests": 1, "specDecodingStats": None,
        "kvCacheStats": {"usedNumBlocks": 25, "maxNumBlocks": 100}, "inflightBatchingStats": batch,
    } | given


def rows_of(path: Path, text: str) -> tuple[trtllm_stats.ExportScan, list[dict[str, object]]]:
    """Write a file of statistics and read it."""
    path.write_text(text)
    scan = trtllm_stats.read(str(path))
    assert sum(scan.lines.values()) == scan.n_lines
    return scan, pl.concat(scan.samples).to_dicts() if scan.samples else []


def test_answers_are_read_however_they_were_saved(tmp_path: Path) -> None:
    values = [element(number, number / 100) for number in range(4)]
    texts = {
        "list": json.dumps(values),
        "pretty": json.dumps(values, indent=2),
        "answers": "[]\n" + json.dumps(values[:3]) + "\n[]\n" + json.dumps(values[3:]),
        "lines": "\n".join(json.dumps(value) for value in values),
        "wrapped": json.dumps({"scraped_at": 1.5, "metrics": values}),
    }
    for name, text in texts.items():
        scan, rows = rows_of(tmp_path / name, text)
        assert trtllm_stats.matches(text[:65536], name)
        assert [row["running_req"] for row in rows] == [8] * 4, name
        assert [row["span_s"] for row in rows] == pytest.approx([0.01] * 4), name
        assert scan.lines["statistic"] == scan.n_lines == 4, name


def test_answer_that_was_cut_loses_only_its_end(tmp_path: Path) -> None:
    text = json.dumps([element(number, number / 100) for number in range(4)])
    scan, rows = rows_of(tmp_path / "cut", text[:-30])
    assert len(rows) == 3 and scan.lines["malformed"] == 1
    assert scan.malformed[0].reason.startswith("no whole JSON object")


def test_latency_spans_two_turns_under_overlap(tmp_path: Path) -> None:
    values = [element(number, number / 100, latency_ms=20.0) for number in range(5)]
    values += [element(5, 0.05, latency_ms=20.0), element(6, 3.0, latency_ms=20.0), element(9, 3.5, latency_ms=20.0)]
    scan, rows = rows_of(tmp_path / "overlap", json.dumps(values))
    # 5 ended after 20 ms, then the server was idle; 7 and 8 are not there, so 6 and 9 have no time of their own
    assert [row["span_s"] for row in rows] == [*[pytest.approx(0.01)] * 5, 0.02, None, None]
    assert any("2 iterations are missing" in note for note in scan.notes)


def test_repeated_elements_and_a_new_executor(tmp_path: Path) -> None:
    values = [element(1, 0.01), element(2, 0.02), element(2, 0.02), element(1, 9.0)]
    scan, rows = rows_of(tmp_path / "repeated", json.dumps(values))
    assert len(rows) == 3 and scan.known["element sent before"] == 1
    assert scan.restarts == [4]


def test_speculation_gives_the_length_of_a_round(tmp_path: Path) -> None:
    drafts = {"acceptanceLength": 2.5, "numRequestsWithDraftTokens": 8, "numAcceptedTokens": 12}
    _, (row,) = rows_of(tmp_path / "drafts", json.dumps([element(1, 0.0, specDecodingStats=drafts)]))
    assert row["accept_len"] == 2.5 and row["out_tok"] == 20.0


def test_numbers_that_a_backend_leaves_at_zero_are_missing(tmp_path: Path) -> None:
    zeros = {"numGenRequests": 0, "numContextRequests": 0, "numScheduledRequests": 0, "numCtxTokens": 0}
    values = [element(number, number / 100, inflightBatchingStats=zeros) for number in range(3)]
    scan, rows = rows_of(tmp_path / "zeros", json.dumps(values))
    assert [row["running_req"] for row in rows] == [None] * 3
    assert any("leaves the batch's numbers 0" in note for note in scan.notes)
    _, idle = rows_of(tmp_path / "idle", json.dumps([value | {"numActiveRequests": 0} for value in values]))
    assert [row["running_req"] for row in idle] == [0] * 3


@pytest.mark.parametrize("bad", [
    '{"iterLatencyMS": -1}', '{"iterLatencyMS": NaN}', '{"iterLatencyMS": 1e999}', '{"iterLatencyMS": "x"}',
    '{"iterLatencyMS": 1, "iter": 1.5}', '{"iterLatencyMS": 1, "iter": 99999999999999999999}', '{"other": 1}', "7",
    '{"iterLatencyMS": 1, "inflightBatchingStats": {"numGenRequests": -1}}', '{"a":' * 100_000, "\x07",
])
def test_elements_that_cannot_be_are_malformed(tmp_path: Path, bad: str) -> None:
    good, after = json.dumps(element(1, 0.0)), json.dumps(element(2, 0.01))
    scan, rows = rows_of(tmp_path / "bad", f"{good}\n{bad}\n{after}")
    assert len(rows) == 2 and scan.lines["malformed"] == 1


# ---------------------------------------------------------------------------
# a rendered server

INTERCEPT_S, SLOPE_S_PER_REQ, PROMPT_S, GAP_S = 0.008, 50e-6, 0.02, 0.0004
GRAPHS = (1, 2, 4, 8, 16, 24, 32, 64)


def _turns() -> list[dict[str, float]]:
    """A ramp up: at every level a prompt step per new request, then 300 decode steps."""
    turns: list[dict[str, float]] = []
    running = 0
    for level in (1, 2, 4, 8, 12, 16, 24, 32, 48, 64):
        while running < level:
            turns.append({"running": running, "ctx": 1, "step_s": INTERCEPT_S + SLOPE_S_PER_REQ * running + PROMPT_S})
            running += 1
        turns += [{"running": level, "ctx": 0, "step_s": INTERCEPT_S + SLOPE_S_PER_REQ * level}] * 300
    return turns


def _render(turns: list[dict[str, float]]) -> str:
    """The overlap scheduler: turn n takes the step of the batch of turn n - 1 and prints that batch's device time."""
    clock = datetime(2026, 8, 4, 10, 0, 0)
    before = {"running": 0, "ctx": 0, "step_s": 0.002}
    texts = []
    for number, turn in enumerate(turns, 1):
        clock += timedelta(seconds=before["step_s"])
        device = "N/A" if number == 1 else f"{(before['step_s'] - GAP_S) * 1e3}ms"
        slots = next((size for size in GRAPHS if size >= turn["running"]), 0) if turn["running"] else 0
        stamp = clock.strftime("%Y-%m-%d %H:%M:%S")
        texts.append(
            f"[{clock:%m/%d/%Y-%H:%M:%S}] [TRT-LLM] [I] [_torch][RANK 0] iter = {number}, global_rank = 0, rank = 0, "
            f"num_scheduled_requests = {turn['running'] + turn['ctx']}, kv_cache_util = 0.050, "
            f"currank_total_requests = {turn['ctx']}/{turn['ctx']}, host_step_time = {before['step_s'] * 1e3}ms, "
            f"prev_device_step_time = {device}, timestamp = {stamp}, states = {{'num_ctx_requests': {turn['ctx']}, "
            f"'num_ctx_tokens': {512 * turn['ctx']}, 'num_generation_tokens': {slots}, 'cached_kv_tokens': 0}}"
        )
        before = turn
    return "\n".join(texts) + "\n"


def test_rendered_log_gives_the_law_and_the_device_time_of_every_step(tmp_path: Path) -> None:
    turns = _turns()
    path = tmp_path / "server.log"
    path.write_text(_render(turns))
    found = analyse(path)
    assert found.log is not None and len(found.log.samples) == len(turns)
    device = [extra.get("device_step_s") for extra in extra_of(found.log)]
    assert device[:-1] == pytest.approx([turn["step_s"] - GAP_S for turn in turns[:-1]], rel=1e-9)
    # turns follow each other without a gap: their times fill the wall clock
    assert found.log.samples["span_s"].sum() == pytest.approx(float(found.log.samples["t_s"].max()), abs=1.1)
    fitted = found.levels[found.levels["is_fitted"]]
    assert fitted["running_req"].tolist() == [1, 2, 4, 8, 12, 16, 24, 32, 48, 64]
    assert fitted["step_s"].tolist() == pytest.approx(
        [INTERCEPT_S + SLOPE_S_PER_REQ * n for n in fitted["running_req"]], rel=1e-6
    )
    assert found.fits.linear["intercept_s"].value == pytest.approx(INTERCEPT_S, rel=0.01)
    assert found.fits.linear["slope_s_per_req"].value == pytest.approx(SLOPE_S_PER_REQ, rel=0.01)


def test_rendered_statistics_give_the_same_law(tmp_path: Path) -> None:
    values, second = [], 0.0
    turns = _turns()
    for number, (before, turn) in enumerate(pairwise([{"step_s": 0.002, "running": 0, "ctx": 0}, *turns]), 1):
        batch = {
            "numGenRequests": turn["running"], "numContextRequests": turn["ctx"], "numCtxTokens": 512 * turn["ctx"],
            "numScheduledRequests": turn["running"] + turn["ctx"],
        }
        latency_ms = (before["step_s"] + turn["step_s"]) * 1e3
        values.append(element(number, second, latency_ms, inflightBatchingStats=batch, numQueuedRequests=0))
        second += before["step_s"]
    path = tmp_path / "metrics.json"
    path.write_text(json.dumps(values))
    found = analyse(path)
    assert found.fits.linear["intercept_s"].value == pytest.approx(INTERCEPT_S, rel=0.01)
    assert found.fits.linear["slope_s_per_req"].value == pytest.approx(SLOPE_S_PER_REQ, rel=0.01)


def test_a_log_that_begins_with_a_quoted_object_is_read_as_a_log(tmp_path: Path) -> None:
    """One element of /metrics in the first line, SGLang's lines after it: none of them may go unread."""
    element = '{"iter": 1, "iterLatencyMS": 5.0, "inflightBatchingStats": {"numGenRequests": 1}}'
    line = ("[2026-08-01 10:00:{:02d} TP0] Decode batch, #running-req: 4, #token: {}, token usage: 0.10, "
            "cuda graph: True, gen throughput (token/s): 400.00, #queue-req: 0")
    log = tmp_path / "server.log"
    log.write_text("\n".join([element, *(line.format(i, 1000 + 160 * i) for i in range(20))]) + "\n")
    found = ingest.read_log(log)
    assert (found.engine, found.accounting.by_kind["decode"]) == ("sglang", 20)
