"""Files that are no logs of lines: recognised by their first bytes, every line or element counted, values by hand."""

from __future__ import annotations

import datetime
import gzip
import importlib
import json
import os
from pathlib import Path

import numpy as np
import pytest
from logs import sglang_line, vllm_line

from helpers import ingest, synth
from helpers.ingest import lives, stamps
from helpers.ingest.chunk_scan import SAMPLE_COLUMNS, whole_table
from helpers.ingest.export_scan import sample_frame
from helpers.ingest.exports import EXPORTS, find_export
from helpers.ingest.moments import read_time
from helpers.laws.moments import fit_moments
from helpers.levels import summarise_levels
from helpers.schema import LogFormatError
from helpers.segment import label_intervals

START_S = 1_770_000_000.0
INTERCEPT_S, SLOPE_S = 0.010, 0.0005


def adds_up(log: ingest.Log) -> bool:
    """Every line or element is in one class, over all files and in each."""
    accounting = log.accounting
    return sum(accounting.lines.values()) == accounting.lines_total


def write_lines(path: Path, records: list[object]) -> str:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return str(path)


class Scheduler:
    """A server of one DP rank with a known law, counting as `_accumulate_decode_moment` does."""

    def __init__(self, rank: int = 0) -> None:
        self.rank, self.time_s, self.batch = rank, START_S, 0
        self.sums = np.zeros(6)
        self.prefill_us = self.prefill_tok = 0

    def decode(self, batch: int, steps: int) -> None:
        step_us = round((INTERCEPT_S + SLOPE_S * batch) * 1e6)
        self.batch = batch
        self.time_s += steps * step_us / 1e6
        self.sums += steps * np.array([1, batch, step_us, batch**2, batch * step_us, batch])

    def prefill(self, tokens: int) -> None:
        self.time_s += 0.2
        self.prefill_us += 200_000
        self.prefill_tok += tokens

    def load(self) -> dict[str, object]:
        return {
            "timestamp": self.time_s, "dp_rank": self.rank, "num_running_reqs": self.batch, "num_waiting_reqs": 0,
            "num_used_tokens": 100 * self.batch, "max_total_num_tokens": 65536, "max_running_requests": 64,
            "token_usage": 0.1, "total_prefill_uncached_tokens": self.prefill_tok,
            "total_prefill_busy_us": self.prefill_us, "decode_moments": self.sums.tolist() if self.sums[0] else None,
        }

    def response(self) -> dict[str, object]:
        stamp = datetime.datetime.fromtimestamp(self.time_s, datetime.UTC).isoformat()
        return {"timestamp": stamp, "version": "0.5.23", "accelerator": None, "loads": [self.load()]}


def sweep() -> list[dict[str, object]]:
    """Responses at 4, 8 and 16 requests, a prompt before each level."""
    server, responses = Scheduler(), []
    for batch in (4, 8, 16):
        server.prefill(1000)
        for _ in range(12):
            server.decode(batch, 40)
            responses.append(server.response())
    return responses


def test_moments_become_counters_free_of_prompts_and_exact_sums(tmp_path):
    log = ingest.read_log(write_lines(tmp_path / "loads.jsonl", sweep()))
    rows = log.samples
    assert adds_up(log) and log.accounting.lines["statistic"] == 36 and len(rows) == 35
    assert set(rows["kind"]) == {"counters"} and rows["rank"].isna().all() and log.source_kinds == ("counters",)
    # 40 steps of 10 ms + 0.5 ms x B each
    batch = rows["running_req"].astype(float)
    assert rows["n_steps"].tolist() == [40.0] * 35 and batch.value_counts().to_dict() == {4: 11, 8: 12, 16: 12}
    np.testing.assert_allclose(rows["span_s"], 40 * (INTERCEPT_S + SLOPE_S * batch), rtol=1e-9)
    np.testing.assert_allclose(rows["out_tok"], 40 * batch)
    # the prompt before 8 requests: 0.2 s of wall time that is in no step
    across = json.loads(rows["extra"][11])
    assert (across["prefill_tok"], across["prefill_busy_s"]) == (1000, 0.2) and rows["new_tok"][11] == 0
    assert across["wall_s"] == pytest.approx(0.2 + 40 * 0.014, abs=2e-6)
    assert log.facts[0] == {"engine_version": "0.5.23", "kv_pool_tokens": 65536, "max_running_requests": 64}
    assert log.engine == "sglang" and log.engine_version == "0.5.23"


def test_moments_table_gives_the_law_of_the_server(tmp_path):
    log = ingest.read_log(write_lines(tmp_path / "loads.jsonl", sweep()))
    assert len(log.moments) == 36 and log.moments["n"].iloc[-1] == 36 * 40
    assert log.moments["sum_t_s"].iloc[-1] == pytest.approx(12 * 40 * (0.012 + 0.014 + 0.018))
    fit = fit_moments(log.moments)
    found = {parameter.name: parameter.value for parameter in fit.parameters}
    assert list(found.values())[:2] == pytest.approx([INTERCEPT_S, SLOPE_S], rel=1e-6)


def test_moments_levels_are_the_servers_steps(tmp_path):
    log = ingest.read_log(write_lines(tmp_path / "loads.jsonl", sweep()))
    levels = summarise_levels(label_intervals(log.samples, log.events, facts=log.facts)).set_index("running_req")
    for batch in (4.0, 8.0, 16.0):
        assert levels.loc[batch, "step_s"] == pytest.approx(INTERCEPT_S + SLOPE_S * batch, rel=1e-6)


def test_moments_of_a_changing_batch_keep_their_mean_only(tmp_path):
    server = Scheduler()
    server.decode(4, 40)
    responses = [server.response()]
    server.decode(4, 30)
    server.decode(8, 10)
    responses.append(server.response())
    log = ingest.read_log(write_lines(tmp_path / "loads.jsonl", responses))
    assert log.samples["running_req"].isna().all() and log.samples["n_steps"].tolist() == [40.0]
    assert json.loads(log.samples["extra"][0])["running_req_mean"] == 5.0


def test_moments_that_fall_begin_a_new_life(tmp_path):
    first, second = Scheduler(), Scheduler()
    second.time_s += 100
    responses = []
    for server in (first, second):
        for _ in range(3):
            server.decode(4, 50)
            responses.append(server.response())
    log = ingest.read_log(write_lines(tmp_path / "loads.jsonl", responses))
    assert log.samples["server_life"].tolist() == [0, 0, 1, 1]
    assert log.moments["server_life"].tolist() == [0] * 3 + [1] * 3
    assert (log.samples["span_s"] > 0).all() and len(log.facts) == 2


def test_moments_of_two_ranks_in_one_response(tmp_path):
    ranks = [Scheduler(0), Scheduler(1)]
    records = []
    for _ in range(3):
        for server, batch in zip(ranks, (4, 6), strict=True):
            server.decode(batch, 10)
        # wrapped by a collector, with its own time
        records.append({"t": ranks[0].time_s, "body": {"loads": [server.load() for server in ranks]}})
    log = ingest.read_log(write_lines(tmp_path / "loads.jsonl", records))
    assert log.samples.groupby("rank")["running_req"].unique().map(list).to_dict() == {"DP0": [4], "DP1": [6]}
    assert log.moments["rank"].tolist() == ["DP0", "DP1"] * 3 and adds_up(log)


@pytest.mark.parametrize("shape", ["list", "indented", "one line", "gz"])
def test_snapshots_may_be_one_json_list(tmp_path, shape):
    responses = sweep()
    path = tmp_path / "loads.json"
    text = json.dumps(responses, indent=1 if shape != "one line" else None)
    if shape == "indented":  # jq prints objects one after another over many lines
        text = "\n".join(json.dumps(response, indent=2) for response in responses)
    path.write_bytes(gzip.compress(text.encode()) if shape == "gz" else text.encode())
    log = ingest.read_log(str(path))
    assert len(log.samples) == 35 and log.accounting.lines_total == 36 and adds_up(log)
    assert "36 JSON values are counted in place of lines" in log.accounting.notes[0]


def test_bad_lines_of_snapshots_are_malformed_and_counted(tmp_path):
    responses = [json.dumps(response) for response in sweep()]
    idle = json.dumps({"timestamp": "2026-02-02T02:40:00+00:00", "loads": [{"num_running_reqs": 0, "dp_rank": 0}]})
    odd = json.dumps({"loads": [{"num_running_reqs": 1, "decode_moments": [1, "x", 3, 4, 5, 6]}]})
    path = tmp_path / "loads.jsonl"
    bad = ["{\"cut", "", '{"other": 1}', odd, "[" * 100_000]
    path.write_text("\n".join([idle, *responses[:3], *bad, responses[3][:-20]]))
    log = ingest.read_log(str(path))
    assert log.accounting.lines == {"statistic": 3, "event": 0, "other_known": 2, "other": 0, "malformed": 5}
    assert adds_up(log) and log.accounting.oddities["truncated_last_line"] == 1
    assert log.accounting.known == {"load without decode_moments": 1, "empty line": 1}
    assert [line.line_no for line in log.accounting.malformed] == [5, 7, 8, 9, 10]


def test_snapshots_without_steps_say_what_is_missing(tmp_path):
    server = Scheduler()
    server.decode(4, 10)
    with pytest.raises(LogFormatError, match="expected records of SGLang /v1/loads snapshots.*two snapshots.*0.5.18"):
        ingest.read_log(write_lines(tmp_path / "loads.jsonl", [server.response()]))


def test_a_broken_list_is_one_clear_error(tmp_path):
    path = tmp_path / "loads.json"
    path.write_text(json.dumps(sweep(), indent=1)[:-40])
    with pytest.raises(LogFormatError, match=r"loads.json: expected whole JSON values.*save the whole response"):
        ingest.read_log(str(path))


def forward_pass(number: int, decoding: int, context: int = 0, prompt: int = 0, wall_s: float = 0.02, **more: object):
    scheduled = {
        "num_prefill_requests": int(prompt > 0), "sum_prefill_tokens": prompt, "num_decode_requests": decoding,
        "sum_decode_kv_tokens": context, "var_decode_kv_tokens": 2.5,
    }
    queued = {"num_prefill_requests": 3, "num_decode_requests": 0}
    return {"version": 1, "worker_id": "w", "dp_rank": 0, "counter_id": number, "wall_time": wall_s,
            "scheduled_requests": scheduled, "queued_requests": queued, **more}


def test_forward_passes_become_iterations(tmp_path):
    records = [
        forward_pass(0, 0, prompt=700, wall_s=0.11), forward_pass(1, 8, 800), forward_pass(2, 8, 808, wall_s=0.021),
        forward_pass(5, 0, wall_s=0.0), {"timestamp": START_S, "payload": forward_pass(6, 7, 707)},
        forward_pass(7, 7, wall_s=-1.0), {"no": "record"},
    ]
    log = ingest.read_log(write_lines(tmp_path / "fpm.jsonl", records))
    rows = log.samples
    assert rows["kind"].tolist() == ["iteration"] * 4 and log.source_kinds == ("iteration",)
    assert rows["running_req"].tolist() == [0, 8, 8, 7] and rows["new_tok"].tolist() == [700, 0, 0, 0]
    assert rows["used_tok"].tolist() == [0, 800, 808, 707] and rows["span_s"].tolist() == [0.11, 0.02, 0.021, 0.02]
    assert rows["iteration"].tolist() == [0, 1, 2, 6] and rows["queue_req"].tolist() == [3] * 4
    assert rows["n_steps"].tolist() == [1.0] * 4 and rows["t_s"].isna().tolist() == [True, True, True, False]
    assert log.accounting.lines == {"statistic": 4, "event": 0, "other_known": 1, "other": 0, "malformed": 2}
    assert any("2 forward passes are missing" in note for note in log.accounting.notes)


def test_forward_passes_of_ranks_and_a_restart(tmp_path):
    records = [forward_pass(number, 4, dp_rank=rank) for number in (0, 1, 2) for rank in (0, 1)]
    records += [forward_pass(number, 4, dp_rank=rank) for number in (0, 1) for rank in (0, 1)]
    log = ingest.read_log(write_lines(tmp_path / "fpm.jsonl", records))
    assert log.samples["rank"].tolist() == ["DP0", "DP1"] * 5
    assert log.samples["server_life"].tolist() == [0] * 6 + [1] * 4


def request(number: int, **more: object) -> dict[str, object]:
    record = {
        "request_parameters": json.dumps({"text": "a secret prompt", "rid": f"r{number}"}), "id": f"r{number}",
        "prompt_tokens": 512, "cached_tokens": 112, "completion_tokens": 101, "e2e_latency": 3.0,
        "first_token_latency": 1.0, "request_received_ts": START_S + number,
        "request_finished_ts": START_S + number + 3,
    }
    return {name: value for name, value in {**record, **more}.items() if value is not None}


def test_request_metrics_become_requests_without_their_prompts(tmp_path):
    records = [
        request(1), request(0), request(2, first_token_latency=None, decode_throughput=25.0),
        request(3, first_token_latency=None), request(4, completion_tokens=-1), {"request_parameters": "{}"},
    ]
    log = ingest.read_log(write_lines(tmp_path / "sglang-request-metrics-20260202_02.log", records))
    rows = log.samples
    assert rows["kind"].tolist() == ["request"] * 4 and rows["t_s"].tolist() == [0.0, 1.0, 2.0, 3.0]
    # 101 tokens, the first at 1 s, the last at 3 s; 100 tokens at 25 tok/s
    assert rows["span_s"].tolist()[:3] == [2.0, 2.0, 4.0] and np.isnan(rows["span_s"][3])
    assert rows["out_tok"].tolist() == [100.0] * 4 and rows["decode_tok_per_s"].tolist()[:3] == [50.0, 50.0, 25.0]
    assert rows["new_tok"].tolist() == [400] * 4 and rows["cached_tok"].tolist() == [112] * 4
    assert log.accounting.lines == {"statistic": 4, "event": 0, "other_known": 0, "other": 0, "malformed": 2}
    assert sum("in 1 of 4 requests" in note for note in log.accounting.notes) == 2
    assert "secret" not in rows.to_csv() + json.dumps(log.accounting.as_dict())


def test_a_log_is_never_taken_for_an_export(tmp_path, shared):
    ours = tmp_path / "server.log"
    ours.write_text(sglang_line() + "\n" + vllm_line() + "\n")
    logs = [ours, *sorted((shared / "logs").rglob("*.log")), shared / "log-line-variants.txt"]
    assert len(logs) > 20 and {str(path): find_export(str(path)) for path in logs if find_export(str(path))} == {}


def test_pipes_and_missing_files_are_no_exports(tmp_path):
    assert find_export("-") is None and find_export(str(tmp_path / "none")) is None and len(EXPORTS) >= 5


def log_of(stamps_s: list[float], zone_s: float = 0.0) -> str:
    """SGLang lines whose clock is that many seconds ahead of UTC."""
    times = [datetime.datetime.fromtimestamp(START_S + s + zone_s, datetime.UTC) for s in stamps_s]
    line = sglang_line().split("] ", 1)[1]
    return "".join(f"[{time:%Y-%m-%d %H:%M:%S} TP0] {line}\n" for time in times)


@pytest.mark.parametrize("zone_h", [0, 2, -7, 5.75])
def test_an_export_inside_a_logs_time_is_of_its_server(tmp_path, zone_h):
    path = tmp_path / "server.log"
    path.write_text(log_of([0, 10, 20, 30], zone_h * 3600))
    loads = write_lines(tmp_path / "loads.jsonl", sweep())
    log = ingest.read_log([str(path), loads])
    assert set(log.samples["server_life"]) == {0} and log.source_kinds == ("counters", "decode") and adds_up(log)
    assert any("read as of the same server" in note for note in log.accounting.notes)
    counters = log.samples[log.samples["kind"] == "counters"]
    # the first difference ends after a prompt (0.2 s) and twice 40 steps of 12 ms
    assert counters["t_s"].iloc[0] == pytest.approx(0.2 + 2 * 0.48, abs=1e-6)
    assert log.moments["t_s"].iloc[0] == pytest.approx(0.68, abs=1e-6)


@pytest.mark.parametrize("month_day", ["02-14", "11-29"])
def test_an_export_beside_a_log_without_year_shows_the_logs_day(tmp_path, month_day):
    begin = datetime.datetime.fromisoformat(f"2026-{month_day}T12:00:00+00:00")
    path = tmp_path / "server.log"
    line = vllm_line().split(" [", 1)[1]
    times = [begin + datetime.timedelta(seconds=s) for s in (0, 10, 20, 30)]
    path.write_text("".join(f"INFO {time:%m-%d %H:%M:%S} [{line}\n" for time in times))
    pages = [f"# scrape_unix_time {time.timestamp()}\nvllm:num_requests_running 8.0\n"
             f"vllm:iteration_tokens_total_count {i * 100}.0\nvllm:generation_tokens_total {i * 800}.0\n"
             for i, time in enumerate(times)]
    (tmp_path / "metrics.txt").write_text("".join(pages))
    log = ingest.read_log([str(path), str(tmp_path / "metrics.txt")])
    assert set(log.samples["server_life"]) == {0} and set(log.samples["kind"]) == {"counters", "stats"}
    assert set(log.samples["ts"].dt.strftime("%m-%d")) == {month_day} and log.samples["t_s"].max() == 30


def test_an_export_of_another_time_or_engine_is_a_server_of_its_own(tmp_path):
    loads = write_lines(tmp_path / "loads.jsonl", sweep())
    late = tmp_path / "late.log"
    late.write_text(log_of([864_000 + 7, 864_000 + 9]))
    log = ingest.read_log([str(late), loads])
    assert log.samples.groupby("kind")["server_life"].unique().map(list).to_dict() == {"decode": [0], "counters": [1]}
    other = tmp_path / "other.log"
    # inside the export's time, but no vLLM server answers /v1/loads
    stamped = [vllm_line().replace("02-03 04:05:00", f"02-02 02:40:{second:02d}") for second in (0, 30)]
    other.write_text("\n".join(stamped) + "\n")
    log = ingest.read_log([str(other), loads])
    assert log.samples.groupby("engine")["server_life"].unique().map(list).to_dict() == {"vllm": [0], "sglang": [1]}
    assert any("more than one engine (sglang 35, vllm 2)" in note for note in log.accounting.notes)


def test_a_long_log_leaves_a_guessed_zone_open():
    span = lives.LogSpan(stamps.FULL, 0, 10 * 3600 * 10**6, ((0, 0),))
    assert lives.find_shift_us(span, 20 * 3600 * 10**6, 21 * 3600 * 10**6) is None
    assert lives.find_shift_us(span, 11 * 3600 * 10**6, 21 * 3600 * 10**6) == -11 * 3600 * 10**6


def test_folders_skip_a_broken_export_with_a_note(tmp_path):
    (tmp_path / "server.log").write_text(log_of([0, 1, 2]))
    (tmp_path / "loads.txt").write_text(json.dumps(sweep(), indent=1)[:-40])
    log = ingest.read_log(str(tmp_path))
    skipped = [note for note in log.accounting.notes if note.startswith("skipped")]
    assert len(log.samples) == 3 and len(skipped) == 1 and "loads.txt" in skipped[0]


@pytest.mark.parametrize(("value", "expected"), [
    (1_770_000_000, 1.77e9), (1_770_000_000_500, 1.7700000005e9), (1_770_000_000_500_000_000, 1.7700000005e9),
    ("2026-02-02T02:40:00Z", 1_770_000_000.0), ("2026-02-02T03:40:00+01:00", 1_770_000_000.0),
    (12.5, None), ("yesterday", None), ("2026-02-02T02:40:00", None), (True, None), (1e300, None), (float("nan"), None),
])
def test_times_of_records(value, expected):
    assert read_time({"timestamp": value}) == (expected if expected is None else pytest.approx(expected, abs=1e-3))


def test_rows_keep_to_the_columns():
    with pytest.raises(KeyError, match="nonsense"):
        sample_frame([{"line_no": 1, "engine": "vllm", "kind": "counters", "nonsense": 1}])


def test_rows_take_memory_for_the_columns_they_have_only():
    rows = [{"line_no": n, "engine": "vllm", "kind": "counters", "running_req": n, "extra": {"n": n} if n else {}}
            for n in range(3)]
    frame = sample_frame(rows)
    assert set(frame.columns) == {"line_no", "part", "engine", "kind", "running_req", "extra", "stamp", "stamp_kind",
                                  "rank"}
    assert frame["extra"].to_list() == [None, '{"n": 1}', '{"n": 2}'] and frame["part"].to_list() == [0, 0, 0]
    whole = whole_table([frame, sample_frame([{"line_no": 3, "engine": "vllm", "kind": "counters", "queue_req": 7}])])
    assert whole["running_req"].to_list() == [0, 1, 2, None] and whole["queue_req"].to_list() == [None, None, None, 7]
    assert set(SAMPLE_COLUMNS) <= set(whole.columns) and whole["engine"].to_list() == ["vllm"] * 4


def test_the_allocator_of_polars_is_told_to_give_memory_back(monkeypatch):
    """A user's own setting stays."""
    import helpers

    for given, expected in ((None, "muzzy_decay_ms:0"), ("dirty_decay_ms:7", "dirty_decay_ms:7")):
        monkeypatch.delenv("_RJEM_MALLOC_CONF", raising=False)
        if given:
            monkeypatch.setenv("_RJEM_MALLOC_CONF", given)
        importlib.reload(helpers)
        assert os.environ["_RJEM_MALLOC_CONF"].endswith(expected)


def test_a_folder_gives_its_exports_and_names_the_other_files(tmp_path) -> None:
    """Scrapes and snapshots beside the log are read; a client's result is skipped with the reason."""
    simulation = synth.presets.get("dense_sweep", levels_req=[1, 2]).simulate(seed=4)
    (tmp_path / "server.log").write_text("".join(f"{line}\n" for line in simulation.lines()))
    simulation.write_sources(tmp_path)
    (tmp_path / "client.json").write_text('{"output_throughput": 1.5}')
    log = ingest.read_log(tmp_path)
    assert {source.path.rsplit("/", 1)[-1] for source in log.sources} == {"server.log", "metrics.txt", "loads.jsonl"}
    assert len(log.moments) and any("client.json: no scrapes" in note for note in log.accounting.notes)
