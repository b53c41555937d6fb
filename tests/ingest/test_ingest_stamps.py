"""Stamps and rank tags are searched in the prefix, a record's own before any wrapper's; t_s is never made up.

Exact. Would catch: a wrapper's clock mixed with the engine's, midnight or New Year read as a jump back, row numbers
in place of seconds, tags dropped or reordered.
"""

from __future__ import annotations

import pandas as pd
import pytest
from logs import read, sglang_line, vllm_line

RECORD = "Decode batch, #running-req: 1, #token: 101, token usage: 0.00, cuda graph: True, " \
    "gen throughput (token/s): 58.18, #queue-req: 0"
OWN = "[2026-06-07 18:32:52 TP0] "


@pytest.mark.parametrize("wrapped", [
    "svc-1  | {}", "2026-06-07T16:30:00.123456789Z {}", "2026-06-07T16:30:00.123456789Z stdout F {}",
    '{{"log":"{}\\n","stream":"stdout","time":"2026-06-07T16:30:00.5Z"}}', "2026-06-07T16:30:00+00:00 host py[42]: {}",
    "Jun 07 16:30:00 host py[42]: {}", "<14>Jun  7 16:30:00 host py: {}", "0: {}", "[1,0]<stdout>:{}",
    "[2026-06-07 16:30:00] {}", "\x1b[36m(Actor pid=1)\x1b[0m {}", "[36m(Actor pid=1)[0m {}", "\x1b[2mp0\x1b[0m{}",
    "(head, rank=0, pid=1) {}", " 12%|█▎  | 1/8 [00:22<02:35, 22.27s/it]{}", "x:9086{}",
])
def test_wrapper_does_not_change_a_record(tmp_path, wrapped):
    row = read(tmp_path, wrapped.format(OWN + RECORD)).samples.iloc[0]
    assert row.ts == pd.Timestamp("2026-06-07 18:32:52")
    assert (row["rank"], row.t_s, row.used_tok, row.queue_req) == ("TP0", 0.0, 101, 0)


@pytest.mark.parametrize(("prefix", "stamp"), [
    ("p0\x1b[2m2026-04-27T23:03:15.250907Z\x1b[0m ... ", "2026-04-27 23:03:15.250907"),
    ("2026-06-07T18:32:52.123456789Z ", "2026-06-07 18:32:52.123456"),
    ('{"asctime": "2026-06-07 18:32:52,125", "levelname": "INFO", "message": "', "2026-06-07 18:32:52.125"),
    ("Jun  7 18:32:52 host sglang: ", "1904-06-07 18:32:52"),
])
def test_wrapper_stamp_serves_where_the_record_has_none(tmp_path, prefix, stamp):
    assert read(tmp_path, prefix + RECORD + '"}' * prefix.startswith("{")).samples["ts"][0] == pd.Timestamp(stamp)


def test_docker_json_stamp_stands_behind_the_record(tmp_path):
    line = '{"log":"' + RECORD + '\\n","stream":"stdout","time":"2026-06-07T18:32:52.5Z"}'
    assert read(tmp_path, line).samples["ts"][0] == pd.Timestamp("2026-06-07 18:32:52.5")


def test_wrapper_stamps_are_not_mixed_with_own_ones(tmp_path):
    log = read(tmp_path, OWN + RECORD, "2026-06-07T16:30:00.1Z " + RECORD, OWN.replace("52", "55") + RECORD)
    assert log.samples["ts"].isna().tolist() == [False, True, False]
    assert log.samples["t_s"].fillna(-1).tolist() == [0.0, -1.0, 3.0]
    assert "1 of 3 records carry no time stamp" in " ".join(log.accounting.notes)


def test_no_stamp_stays_missing(tmp_path):
    samples = read(tmp_path, RECORD, RECORD).samples
    assert samples["ts"].isna().all()
    assert samples["t_s"].isna().all()


@pytest.mark.parametrize(("prefix", "tags"), [
    ("[2026-01-02 03:04:05] ", None), ("[2026-01-02 03:04:05 TP0] ", "TP0"),
    ("[2026-01-02 03:04:05 DP3 TP12 EP12] ", "DP3 TP12 EP12"),
    ("[2026-01-02 03:04:05 DP0 PP1 ATTN_CP2 MOE_DP1 TP4 EP4] ", "DP0 PP1 ATTN_CP2 MOE_DP1 TP4 EP4"),
    ("2026-01-02 03:04:05 TP0] ", "TP0"), ("[2026-01-02 03:04:05.678 DP1 TP1] ", "DP1 TP1"),
    ("[03:04:05 TP7] ", "TP7"), ("[gpu_id=2] ", "GPU2"),
])
def test_tags_as_printed(tmp_path, prefix, tags):
    row = read(tmp_path, prefix + RECORD).samples.iloc[0]
    assert row["rank"] == tags if tags else pd.isna(row["rank"])


@pytest.mark.parametrize(("printed", "rank"), [
    ("Engine 000: ", "DP0"), ("Engine 011: ", "DP11"), ("2 Engines Aggregated: ", None), ("", None),
])
def test_vllm_engine_number_is_the_rank(tmp_path, printed, rank):
    row = read(tmp_path, vllm_line().replace("Engine 000: ", printed)).samples.iloc[0]
    assert row["rank"] == rank if rank else pd.isna(row["rank"])


def test_milliseconds_are_kept(tmp_path):
    samples = read(tmp_path, *(f"[2026-01-02 03:04:05.{ms} TP0] {RECORD}" for ms in ("250", "875"))).samples
    assert samples["t_s"].tolist() == [0.0, 0.625]


def test_midnight_without_date(tmp_path):
    times = ["23:59:58", "23:59:57", "00:00:01", "00:00:00", "12:00:00", "23:59:59", "00:00:02"]
    samples = read(tmp_path, *(f"[{time} TP0] {RECORD}" for time in times)).samples
    # 23:59:57 comes first in time: two processes write, their lines interleave by a second
    assert samples["t_s"].tolist() == [1.0, 0.0, 4.0, 3.0, 43203.0, 86402.0, 86405.0]
    assert samples["ts"][2] == pd.Timestamp("1904-01-02 00:00:01")


def test_new_year_without_year(tmp_path):
    lines = [vllm_line().replace("02-03 04:05:00", stamp) for stamp in ("12-31 23:59:55", "01-01 00:00:05")]
    assert read(tmp_path, *lines).samples["t_s"].tolist() == [0.0, 10.0]


def test_leap_day_without_year(tmp_path):
    assert read(tmp_path, vllm_line().replace("02-03", "02-29")).samples["ts"][0] == pd.Timestamp("1904-02-29 04:05:00")


def test_clock_set_back_is_said_not_hidden(tmp_path):
    log = read(tmp_path, sglang_line(50), sglang_line(55), sglang_line(10).replace("04:05", "03:05"))
    assert log.samples["t_s"].tolist() == [3640.0, 3645.0, 0.0]
    assert "jump back 1 times, first by 3645 s at line 3" in log.accounting.notes[0]


def test_impossible_date_is_no_stamp(tmp_path):
    assert read(tmp_path, "[2026-13-45 03:04:05 TP0] " + RECORD).samples["ts"].isna().all()


def test_two_stamps_of_different_kind_have_their_own_zero(tmp_path):
    log = read(tmp_path, sglang_line(10), sglang_line(12), vllm_line(30), vllm_line(33))
    assert log.samples["t_s"].tolist() == [0.0, 2.0, 0.0, 3.0]
    assert any("different kinds" in note for note in log.accounting.notes)


@pytest.mark.parametrize(("days", "seconds"), [
    (["02-28", "03-01"], 86400.0),  # no year is a leap year unless the log says so
    (["02-28", "02-29", "03-01"], 2 * 86400.0),
])
def test_end_of_february_without_year(tmp_path, days, seconds):
    samples = read(tmp_path, *(vllm_line().replace("02-03", day) for day in days)).samples
    assert samples["t_s"].iloc[-1] == seconds
    assert samples["ts"].iloc[-1] == pd.Timestamp("1904-03-01 04:05:00")  # shown as printed
