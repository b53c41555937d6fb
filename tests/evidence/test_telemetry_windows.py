"""Windows against whole files: every figure is worked out by hand or, on real files, by the csv module alone."""

import csv
import gzip
import statistics

import pandas as pd
import pytest

from helpers.evidence.telemetry.read import read_telemetry, summarise, window
from helpers.schema import TELEMETRY, NotEnoughData, conform

BS1 = "Llama-3.1-8B_latency_bs1_in128_out128_float16_mem0.9_20250807_190056.csv"


def samples(**columns):
    n = len(next(iter(columns.values())))
    base = {"file": ["f"] * n, "line_no": list(range(2, n + 2))}
    return conform(pd.DataFrame({**base, **columns}), TELEMETRY)


def row(summary, column, device=None):
    found = summary[summary["column"] == column]
    found = found if device is None else found[found["device"] == device]
    assert len(found) == 1
    return found.iloc[0]


def test_statistics_of_window_and_file():
    table = samples(t_s=[0.0, 1, 2, 3, 4, 5], device=["0"] * 6, busy_frac=[1.0, 1, 0, 0.2, 0.4, 0.5],
                    is_power_capped=[True, True, False, False, True, False], power_w=[90.0, None, 10, 20, 30, 50])
    got = row(summarise(table, 2, 5), "power_w")
    # window 10 20 30 50: median 25, mean 27.5, p10 at place 0.3 = 13, p90 at place 2.7 = 30 + 0.7 x 20 = 44
    assert (got.window_n, got.window_median, got.window_mean) == (4, 25, 27.5)
    assert (got.window_p10, got.window_p90) == pytest.approx((13, 44))
    # file 10 20 30 50 90: median 30, mean 40, p10 at place 0.4 = 14, p90 at place 3.6 = 50 + 0.6 x 40 = 74
    assert (got.file_n, got.file_median, got.file_mean) == (5, 30, 40)
    assert (got.file_p10, got.file_p90) == pytest.approx((14, 74))
    busy = row(summarise(table, 2, 5), "busy_frac")
    assert busy.window_median == pytest.approx(0.3) and busy.file_median == pytest.approx(0.45)
    assert row(summarise(table, 2, 5), "is_power_capped").window_mean == 0.25
    assert window(table, 2, 5)["t_s"].tolist() == [2, 3, 4, 5]


def test_an_empty_window_and_a_file_without_times():
    table = samples(t_s=[0.0, 1], device=["0", "0"], power_w=[90.0, 80])
    got = row(summarise(table, 50, 60), "power_w")
    assert got.window_n == 0 and pd.isna(got.window_median) and got.file_median == 85 and pd.isna(got.is_idle)
    with pytest.raises(NotEnoughData, match="period_s"):
        summarise(samples(device=["0"], power_w=[90.0]), 0, 1)
    assert summarise(samples(t_s=[0.0], device=["0"]), 0, 1).empty


def idle_by_device(table, start_s=0, end_s=1e9):
    summary = summarise(table, start_s, end_s)
    return dict(zip(summary["device"], summary["is_idle"], strict=True))


def test_idle_by_busy_share_and_power():
    table = samples(t_s=[0.0] * 4, device=list("0123"), busy_frac=[1.0, 0.0, 0.0, 0.05], power_w=[600.0, 76, 160, 118])
    found = idle_by_device(table)
    # device 2 draws 160 W > 2 x 76 W at busy 0: contradiction; device 3 is loaded and waits, 118 W < 2 x 76 W
    assert [bool(found[device]) for device in "013"] == [False, True, True] and pd.isna(found["2"])


def test_idle_by_power_alone():
    table = samples(t_s=[0.0, 0, 0, 0], device=list("0123"), power_w=[700.0, 150, 500, 600])
    found = idle_by_device(table)
    # 150/700 rests; 600/700 = 0.86 works, as a board rests; 500/700 = 0.71 is between
    assert [bool(found[device]) for device in "013"] == [False, True, False] and pd.isna(found["2"])
    flat = samples(t_s=[0.0, 0], device=["0", "1"], power_w=[300.0, 310])
    assert pd.isna(idle_by_device(flat)["0"]) and pd.isna(idle_by_device(flat)["1"])


def test_a_rank_is_idle_without_requests():
    table = samples(t_s=[5.0, 5, 60, 60], rank=["DP0", "DP2"] * 2, running_req=[3.0, 3, 0, 1],
                    queue_req=[0.0, 0, 0, 11])
    summary = summarise(table, 60, 80)
    ranks = summary[summary["column"] == "running_req"].set_index("rank")
    assert ranks["is_idle"].to_dict() == {"DP0": True, "DP2": False} and ranks.at["DP2", "window_median"] == 1
    assert ranks.at["DP2", "file_median"] == 2


def real_rows(path, start, end, value, device_column=None, device=None):
    """Values of a column in a window of seconds since the first stamp, by the csv module alone."""
    with open(path, encoding="utf-8", newline="") as file:
        rows = [one for one in csv.DictReader(file, skipinitialspace=True) if one.get(value) not in (None, "")]
    clock = next(name for name in ("timestamp", "elapsed_s", "t_s") if name in rows[0])
    zero = float(rows[0][clock]) if clock == "timestamp" else 0.0
    return [float(one[value]) for one in rows
            if start <= float(one[clock]) - zero <= end and (device is None or one[device_column] == device)]


def test_real_window_of_one_of_eight_cards(shared):
    folder = shared / "logs" / "cmontemuino"
    power = read_telemetry(folder / f"gpu_power_{BS1}")
    usage = read_telemetry(folder / f"gpu_usage_{BS1}")
    assert power.tool == usage.tool == "rocm-smi" and power.clock == "epoch"
    # 4,582 lines: 1 header, 509 samples of 8 cards, 509 closing rows
    assert power.tally.lines == {"header": 1, "row": 509 * 8, "other": 509}
    by_power, by_usage = summarise(power.table, 250, 330), summarise(usage.table, 250, 330)
    for card in ("card0", "card3"):
        expected = real_rows(folder / f"gpu_power_{BS1}", 250, 330, "power_watts", "device", card)
        got = row(by_power, "power_w", card)
        assert (got.window_n, got.window_median) == (len(expected), statistics.median(expected))
        assert got.window_mean == pytest.approx(statistics.fmean(expected))
    got = row(by_power, "power_w", "card0")
    everything = real_rows(folder / f"gpu_power_{BS1}", 0, 1e9, "power_watts", "device", "card0")
    # the file's median is that of a waiting card: start-up and pauses are most of it
    assert got.file_median == statistics.median(everything) == 189 and got.window_median == 715.5
    busy = real_rows(folder / f"gpu_usage_{BS1}", 250, 330, "gpu_use_percent", "device", "card0")
    assert row(by_usage, "busy_frac", "card0").window_median == statistics.median(busy) / 100 == 1.0
    assert row(by_usage, "mem_total_bytes", "card0").window_median == 206_141_652_992
    for summary in (by_power, by_usage):
        assert summary.groupby("device")["is_idle"].first().to_dict() == {
            f"card{card}": card != 0 for card in range(8)}


def test_real_elapsed_seconds(shared):
    path = shared / "logs" / "djangodevreng" / "nemotron-4b" / "other-run-2026-08" / "10-telemetry.csv"
    found = read_telemetry(path)
    assert (found.tool, found.clock, len(found.table)) == ("csv", "elapsed", 53)
    expected = real_rows(path, 100, 400, "power_w")
    got = row(summarise(found.table, 100, 400), "power_w")
    assert got.window_n == len(expected) and got.window_median == pytest.approx(statistics.median(expected))
    busy = real_rows(path, 100, 400, "gpu_util")
    assert row(summarise(found.table, 100, 400), "busy_frac").window_mean == pytest.approx(statistics.fmean(busy) / 100)
    assert found.table["sm_clock_hz"][0] == 2411e6 and found.table["mem_used_bytes"][0] == 116957e6


def test_real_queries_of_cases(shared):
    folders = sorted(path.parent for path in (shared / "cases").glob("*/gpu.csv"))
    assert folders
    for folder in folders:
        found = read_telemetry(folder / "gpu.csv")
        lines = (folder / "gpu.csv").read_text().splitlines()
        assert (found.tool, found.clock, found.notes) == ("nvidia-smi", "local", ())
        assert found.tally.lines == {"header": 1, "row": len(lines) - 1}
        power = [float(line.split(", ")[2].removesuffix(" W")) for line in lines[1:] if line.split(", ")[1] == "0"]
        got = row(summarise(found.table, -1, 1e9), "power_w", "0")
        assert got.window_median == got.file_median == pytest.approx(statistics.median(power))
    loads = read_telemetry(shared / "cases" / "one-rank-a" / "loads.csv").table
    assert loads[["t_s", "rank", "running_req", "queue_req"]].iloc[6].tolist() == [60, "DP2", 1, 11]


def test_real_exporter_page(shared):
    path = shared / "logs" / "srt-slurm" / "dcgm-gb200.txt"
    found = read_telemetry(path)
    assert (found.tool, found.clock, len(found.table)) == ("dcgm-exporter", "none", 4)
    first = found.table.iloc[0]
    # 120 MHz, 170.582 W, FB_USED 16 MiB, as on the page
    assert (first.device, first.device_name) == ("0", "NVIDIA GB200")
    assert (first.sm_clock_hz, first.power_w, first.mem_used_bytes) == (120e6, 170.582, 16 * 2**20)
    assert found.tally.lines == {"header": 38, "row": 76}


@pytest.mark.parametrize(("name", "gauge", "n"), [
    ("vllm-sweep", "vllm:num_requests_running", 510), ("sglang-sweep", "sglang:num_running_reqs", 654),
    ("llamacpp-sweep", "llamacpp:requests_processing", 420),
])
def test_real_engine_gauges(shared, name, gauge, n):
    path = shared / "logs" / "own" / name / "metrics_1hz.txt.gz"
    found = read_telemetry(path)
    with gzip.open(path, "rt") as file:
        text = file.read().splitlines()
    printed = [float(line.rsplit(" ", 1)[1]) for line in text if line.startswith((gauge + "{", gauge + " "))]
    times = [float(line.split()[2]) for line in text if line.startswith("# scrape_unix_time")]
    assert (found.tool, found.clock, len(found.table)) == ("engine metrics", "epoch", n)
    assert found.table["running_req"].tolist() == printed and max(printed) > 0
    assert found.table["t_s"].iloc[-1] == pytest.approx(times[-1] - times[0], abs=1e-5)
    assert found.tally.lines_total == len(text)


def test_real_host_series_are_kept_whole(shared):
    found = read_telemetry(shared / "logs" / "cmontemuino" / f"memory_{BS1}")
    assert len(found.table) == 520 and found.table["mem_used_bytes"].isna().all()
    assert found.table["extra"][0].startswith('{"total_gb": "2014.0"') and "no column but the time" in found.notes[0]
