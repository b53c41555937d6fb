"""What stands around a record in real deployments: runtimes, launchers, terminals. No value may change by it.

Composed lines, exact. Would catch: a record lost because something was put before, behind or into it; a value cut
where a runtime or a terminal split the line; a wrapper's clock taken for the engine's.
"""

from __future__ import annotations

import json

import pandas as pd
import pytest
from logs import VLLM, read, vllm_line

from helpers import ingest
from helpers.cli.app import main
from helpers.ingest.scan import scan_file
from helpers.ingest.wrappers import CONTINUED, DOCKER_PART_BYTES
from helpers.redact import redact

OWN = "[2026-06-07 18:32:52 DP1 TP3] "
DECODE = "Decode batch, #running-req: 12, #token: 4512, token usage: 0.37, accept len: 2.54, cuda graph: True, " \
    "gen throughput (token/s): 812.33, #queue-req: 34"
PREFILL = "Prefill batch, #new-seq: 2, #new-token: 5890, #cached-token: 42, token usage: 0.05, #running-req: 15, " \
    "#queue-req: 4"
VALUES = {
    "kind": "decode", "rank": "DP1 TP3", "running_req": 12, "used_tok": 4512, "kv_used_frac": 0.37, "accept_len": 2.54,
    "graph": True, "decode_tok_per_s": 812.33, "queue_req": 34, "t_s": 0.0, "ts": pd.Timestamp("2026-06-07 18:32:52"),
}


def assert_values(row, **changed):
    expected = {**VALUES, **changed}
    assert {name: row[name] for name in expected} == expected
    assert pd.isna(row["extra"])


def docker(text, time="2026-06-07T16:32:53.123456789Z", stream="stdout"):
    return json.dumps({"log": text, "stream": stream, "time": time}, separators=(",", ":"))


def cri(text, flag="F", stream="stdout"):
    return f"2026-06-07T16:32:53.123456789Z {stream} {flag} {text}"


@pytest.mark.parametrize("wrapped", [
    "(SGLangEngine pid=35555) {}", "(SGLangEngine pid=111711, ip=192.0.2.1) {}",
    "\x1b[36m(SGLangEngine pid=35555)\x1b[0m {}", "(SGLangEngine pid=1) {} [repeated 3x across cluster]",
    "2026-06-07T16:32:53.123456789Z {}", "2026-06-07T18:32:53.1+02:00 {}",
    "[pod/server-0/engine] 2026-06-07T16:32:53.123456789Z {}",
    "2026-06-07T16:32:53.123456789Z stdout F {}", "2026-06-07T18:32:53.123456789+02:00 stderr F {}",
    "svc-1  | {}", "\x1b[33mserver-decode-1  |\x1b[0m {}",
    "Jun 07 16:32:53 node7 sglang[4242]: {}", "<30>Jun  7 16:32:53 node7 sglang[4242]: {}",
    "<30>1 2026-06-07T16:32:53.1Z node7 sglang 4242 - - {}", "2026-06-07T16:32:53+0000 node7 python[42]: {}",
    "0: {}", "17: {}", "[1,0]<stdout>:{}", "[1,3]<stderr>: {}", "[node7:0] {}",
    "(head, rank=0, pid=18260) {}", "(worker1, rank=1, pid=18260, ip=192.0.2.2) {}",
    "  7%|▋         | 14/200 [00:34<02:37,  1.18it/s]{}", "\r 12%|█▎  | 1/8 [00:22<02:35, 22.27s/it]\r{}",
    "\x1b[2m2026-06-07T16:32:53.250907Z\x1b[0m \x1b[32m INFO\x1b[0m {}", "\x1b]0;title\x07{}", "\x1b(B{}\x1b[m", "{}\r",
])
def test_wrappers_around_one_line(tmp_path, wrapped):
    log = read(tmp_path, wrapped.format(OWN + DECODE))
    assert_values(log.samples.iloc[0])
    assert log.accounting.lines["statistic"] == log.accounting.lines_total == 1


@pytest.mark.parametrize("line", [
    docker(OWN + DECODE + "\n"), docker("\x1b[36m(A pid=1)\x1b[0m " + OWN + DECODE + "\r\n"),
    docker(OWN + DECODE + "\n", stream="stderr"),
    docker('12%|█ | "x" [00:22<02:35, 22.27s/it]\t' + OWN + DECODE + "\n"),
    docker(OWN + DECODE), docker("\x00\x1b[1m" + OWN + DECODE + "\n"),
])
def test_docker_json_with_escapes(tmp_path, line):
    assert_values(read(tmp_path, line).samples.iloc[0])


def test_docker_stamp_serves_where_the_record_has_none(tmp_path):
    log = read(tmp_path, docker(DECODE + "\n"), docker(DECODE + "\n", time="2026-06-07T16:32:55.623456789Z"))
    assert log.samples["ts"][0] == pd.Timestamp("2026-06-07 16:32:53.123456")
    assert log.samples["t_s"].tolist() == [0.0, 2.5]
    assert any("the wrapper's are used as printed" in note for note in log.accounting.notes)


def test_dynamo_is_utc_in_microseconds_without_any_bracket(tmp_path):
    prefix = "\x1b[2m2026-04-27T23:03:15.{}Z\x1b[0m \x1b[32m INFO\x1b[0m \x1b[2mscheduler.log_decode_stats\x1b[0m: "
    log = read(tmp_path, prefix.format("250907") + DECODE, prefix.format("750909") + DECODE)
    assert_values(log.samples.iloc[0], rank=log.samples["rank"][0], ts=pd.Timestamp("2026-04-27 23:03:15.250907"))
    assert log.samples["rank"].isna().all()
    assert log.samples["t_s"].tolist() == pytest.approx([0.0, 0.500002])


@pytest.mark.parametrize("cut", [5, 40, 60, 75, 120, len(OWN + DECODE) - 1])
def test_cri_parts_are_joined(tmp_path, cut):
    text = OWN + DECODE
    log = read(tmp_path, cri("before"), cri(text[:cut], "P"), cri(text[cut:]), cri(OWN + PREFILL))
    assert_values(log.samples.iloc[0])
    assert log.samples["line_no"].tolist() == [2, 4]
    assert log.accounting.lines == {"statistic": 2, "event": 0, "other_known": 1, "other": 1, "malformed": 0}
    assert log.accounting.known == {CONTINUED: 1}


def test_cri_parts_of_two_streams_interleave(tmp_path):
    text = OWN + DECODE
    log = read(
        tmp_path, cri(text[:50], "P"), cri("some err", "P", "stderr"), cri(text[50:90], "P"), cri("or", "F", "stderr"),
        cri(text[90:]),
    )
    assert_values(log.samples.iloc[0])
    assert log.accounting.lines["other_known"] == 3
    assert sum(log.accounting.lines.values()) == 5


def test_part_without_an_end_is_malformed_not_believed(tmp_path):
    log = read(tmp_path, OWN + DECODE, cri((OWN + DECODE)[:80], "P"))
    assert len(log.samples) == 1
    assert log.accounting.lines["malformed"] == 1


def test_part_is_not_continued_behind_a_line_of_another_writer(tmp_path):
    text = OWN + DECODE
    log = read(tmp_path, cri(text[:80], "P"), "something that no runtime wrote", cri(text[80:]), text)
    assert log.samples["line_no"].tolist() == [4]
    assert log.accounting.lines == {"statistic": 1, "event": 0, "other_known": 0, "other": 2, "malformed": 1}


def test_docker_parts_of_16_kib_are_joined(tmp_path):
    bar = "x" * (DOCKER_PART_BYTES - 60)
    text = bar + OWN + DECODE + "\n"
    cut = DOCKER_PART_BYTES
    parts = [docker(text[:cut]), docker("err\n", stream="stderr"), docker(text[cut:])]
    log = read(tmp_path, *parts, docker(OWN + PREFILL))
    assert_values(log.samples.iloc[0])
    assert log.samples["line_no"].tolist() == [1, 4]
    assert log.accounting.known == {CONTINUED: 1}
    assert sum(log.accounting.lines.values()) == 4


def test_docker_lines_without_line_feed_are_no_parts(tmp_path):
    """What a log shipper strips is the line feed of every line, short ones too."""
    log = read(tmp_path, docker(OWN + DECODE), docker(OWN + PREFILL))
    assert log.samples["kind"].tolist() == ["decode", "prefill"]
    assert log.samples["line_no"].tolist() == [1, 2]


@pytest.mark.parametrize("chunk_bytes", [64, 100, 333, 1000, 4096])
def test_split_lines_do_not_depend_on_the_chunk(tmp_path, chunk_bytes):
    text, path = OWN + DECODE, tmp_path / "a.log"
    group = [cri(text[:70], "P"), cri("x", "F", "stderr"), cri(text[70:]), text[:80], text[80:160], text[160:], text]
    path.write_text("\n".join(group * 7) + "\n")
    whole, pieces = scan_file(str(path)), scan_file(str(path), chunk_bytes=chunk_bytes)
    for scan in (whole, pieces):
        assert sum(len(frame) for frame in scan.samples) == 21
        assert +scan.lines == {"statistic": 21, "other_known": 21, "other": 7}
    assert dict(whole.known) == dict(pieces.known)


@pytest.mark.parametrize("width", [78, 80, 100, 120, 132, 160, 180, 200])
@pytest.mark.parametrize("record", [DECODE, PREFILL])
def test_record_folded_at_the_width_of_a_terminal(tmp_path, width, record):
    text = OWN + record
    rows = [text[start: start + width] for start in range(0, len(text), width)]
    plain, log = read(tmp_path, text, text), read(tmp_path, *rows, *rows)
    pd.testing.assert_frame_equal(log.samples.drop(columns="line_no"), plain.samples.drop(columns="line_no"))
    assert log.samples["line_no"].tolist() == [1, 1 + len(rows)]
    assert log.accounting.lines["statistic"] == 2
    assert log.accounting.lines["other_known"] == 2 * (len(rows) - 1)


def test_fold_inside_the_last_number(tmp_path):
    text = OWN + DECODE
    text = text if len(text) % 2 else " " + text
    width = len(text) // 2
    rows = [text[:width], text[width: 2 * width], text[2 * width:]]
    assert rows[1].endswith("#queue-req: 3") and rows[2] == "4"
    assert_values(read(tmp_path, *rows).samples.iloc[0])


@pytest.mark.parametrize("width", range(81, 200, 3))
def test_a_vllm_record_folded_anywhere(tmp_path, width):
    text = VLLM.format(second=1, n=18, rate=123.4)
    rows = [text[start: start + width] for start in range(0, len(text), width)]
    scanned = read(tmp_path, text, *rows)
    whole = scanned.samples[scanned.samples["line_no"] > 1]
    assert len(whole) == 1
    values = whole.iloc[0][["running_req", "queue_req", "decode_tok_per_s", "kv_used_frac"]].tolist()
    assert values == [18, 0, 123.4, 0.125]


@pytest.mark.parametrize("following", [
    "7", "12: 5", "loss: 3", "  warnings.warn(", "#queue-req: 5", "Traceback (most recent call last):", ", ", "0.5%",
])
def test_a_whole_record_takes_nothing_from_the_next_line(tmp_path, following):
    log = read(tmp_path, OWN + DECODE, following)
    assert_values(log.samples.iloc[0])
    assert log.accounting.lines["statistic"] == 1
    assert sum(log.accounting.lines.values()) == 2


def test_two_records_on_one_line(tmp_path):
    log = read(tmp_path, OWN + DECODE + OWN.replace("52", "53") + PREFILL, OWN + PREFILL + "\r" + OWN + DECODE)
    assert log.samples["kind"].tolist() == ["decode", "prefill", "prefill", "decode"]
    assert_values(log.samples.iloc[0])
    assert_values(log.samples.iloc[3])
    assert log.samples["t_s"].tolist() == [0.0, 1.0, 0.0, 0.0]
    assert log.accounting.lines["statistic"] == 2
    assert log.accounting.oddities == {"glued_records": 2}


@pytest.mark.parametrize("torn", ["8{}2.33", "81{}", "812.{}33"])
def test_a_number_torn_by_another_message_is_not_believed(tmp_path, torn):
    old = "Decode batch. #running-req: 2, #token: 4078, token usage: 0.00, gen throughput (token/s): "
    log = read(tmp_path, OWN + DECODE, OWN + old + torn.format("2026-06-07 18:32:53 other"))
    assert len(log.samples) == 1
    assert log.accounting.lines["malformed"] == 1


def test_wrapper_zone_beside_local_time_is_said(tmp_path):
    log = read(tmp_path, cri(OWN + DECODE), cri(OWN.replace("52", "55") + DECODE))
    assert log.samples["ts"][0] == pd.Timestamp("2026-06-07 18:32:52")
    notes = [note for note in log.accounting.notes if "wrapper" in note]
    assert len(notes) == 1
    assert "-7202 to -7199 s from them" in notes[0] and "the engine's own are used" in notes[0]


def test_wrapper_zone_beside_a_stamp_without_year(tmp_path):
    log = read(tmp_path, "2026-02-03T02:05:01.5Z " + VLLM.format(second=1, n=8, rate=1.0))
    assert log.samples["ts"][0] == pd.Timestamp("1904-02-03 04:05:01")
    assert "-7200 s from them" in " ".join(log.accounting.notes)


def test_no_note_without_a_wrapper(tmp_path):
    assert read(tmp_path, OWN + DECODE).accounting.notes == ()


def test_two_kinds_of_wrapper_in_one_folder(tmp_path):
    (tmp_path / "a.log").write_text(docker(OWN + DECODE + "\n") + "\n")
    (tmp_path / "b.log").write_text(cri((OWN + DECODE)[:70], "P") + "\n" + cri((OWN + DECODE)[70:]) + "\n")
    samples = ingest.read_log(tmp_path).samples
    for row in samples.to_dict("records"):
        assert_values(row)


@pytest.mark.parametrize("record", [
    {"log": "{}\n", "stream": "stderr"}, {"MESSAGE": "{}", "_HOSTNAME": "ulmenhof"}, {"message": "{}\n", "x": 1},
])  # fmt: skip
def test_the_last_argument_in_a_json_record_is_read_and_redacted_alone(tmp_path, record):
    lines = ["INFO 03-01 12:00:00 [core.py:93] Initializing a V1 LLM engine (v0.10.1) with config: model='ulmenhof/x', "
             "dtype=torch.bfloat16, tensor_parallel_size=2", vllm_line()]
    records = [{key: str(value).replace("{}", line) for key, value in record.items()} for line in lines]
    path, safe = tmp_path / "server.log", tmp_path / "safe.log"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    assert main(["redact", str(path), "--out", str(safe)]) == 0 and "ulmenhof" not in safe.read_text()
    assert [ingest.read_log(str(each)).facts[0]["tp"] for each in (path, safe)] == [2, 2]


def test_docker_with_a_terminal_is_redacted_and_reads_the_same(tmp_path):
    """Records that end in an escaped carriage return and line feed keep their statistics through `redact`."""
    text = ("INFO 08-01 10:00:{:02d} [loggers.py:257] Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg generation "
            "throughput: 100.{} tokens/s, Running: 4 reqs, Waiting: 0 reqs, GPU KV cache usage: 1.0%, Prefix cache hit "
            "rate: 0.0%\r\n")
    log = tmp_path / "d.log"
    log.write_text("".join(json.dumps({"log": text.format(i, i), "stream": "stdout"}) + "\n" for i in range(6)))
    redact(log, tmp_path / "safe.log")
    rates = [ingest.read_log(path).samples["decode_tok_per_s"].tolist() for path in (log, tmp_path / "safe.log")]
    assert rates[0] == rates[1] == [100.0, 100.1, 100.2, 100.3, 100.4, 100.5]


def test_docker_with_a_terminal_ends_its_records_with_carriage_returns(tmp_path):
    path = tmp_path / "server.log"
    path.write_text((json.dumps({"log": vllm_line() + "\r\n", "stream": "stdout"}) + "\n") * 3)
    lines = ingest.read_log(str(path)).accounting.as_dict()["lines"]
    assert (lines["statistic"], lines["malformed"]) == (3, 0)
