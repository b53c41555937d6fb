"""Clocks: offsets against real files, planted zones and simulated servers; windows against hand arithmetic.

Exact: offsets by stamps. Within the stated uncertainty: offsets by the shape of the work. Bugs it would catch: the sign
of a zone, a year or a day taken from the wrong side, a false pair accepted, a window that leaks.
"""

from __future__ import annotations

import gzip
import json

import numpy as np
import pandas as pd
import pytest

from helpers import synth
from helpers.evidence.clocks.activity import device_activity, log_activity, match, run_activity
from helpers.evidence.clocks.alignment import (
    Clock,
    align,
    align_runs,
    align_telemetry,
    clip,
    phases_window,
    to_log_time,
)
from helpers.ingest import read_log
from helpers.schema import SAMPLES, TELEMETRY, NotEnoughData, conform

DAY = pd.Timestamp("2026-07-05")


def _times(first, n, step_s=1.0):
    """Return n stamps from a first one, and their seconds."""
    t_s = np.arange(n) * step_s
    return pd.Timestamp(first) + pd.to_timedelta(t_s, unit="s"), t_s


def _telemetry(ts, t_s, power_w, clock="local"):
    table = pd.DataFrame({"file": "gpu.csv", "line_no": 1, "t_s": t_s, "device": "0", "power_w": power_w})
    table["ts"] = pd.Series(ts) if clock != "elapsed" else pd.NaT
    return conform(table, TELEMETRY)


def _smi_csv(path):
    """Read nvidia-smi's own layout with nothing but pandas: stamps, index, power."""
    table = pd.read_csv(path, skipinitialspace=True)
    table.columns = [name.split(" [")[0] for name in table.columns]
    ts = pd.to_datetime(table["timestamp"], format="%Y/%m/%d %H:%M:%S.%f")
    return conform(pd.DataFrame({
        "file": str(path), "line_no": table.index + 2, "ts": ts, "t_s": (ts - ts.iloc[0]).dt.total_seconds(),
        "device": table["index"].astype(str), "power_w": table["power.draw"].str.split().str[0].astype(float),
    }), TELEMETRY)


# --- stamps -----------------------------------------------------------------------------------------------------------


def test_same_clock_offset_is_the_difference_of_the_stamps():
    ev_ts, ev_t = _times("2026-07-05 18:14:19", 100)
    log_ts, log_t = _times("2026-07-05 18:12:00", 300)
    clock = align(ev_ts, ev_t, "local", log_ts, log_t)
    assert clock.offset_s == 139.0 and clock.is_certain and "same zone assumed" in clock.how
    assert clock.uncertainty_s == 3.0  # 1 s of each stamp, 1 s between samples


@pytest.mark.parametrize(
    ("case", "offset_s"),
    [
        # first telemetry stamp minus first log stamp, read by eye from the two files
        ("cap-250-a", 139.0),  # 18:14:19.000 - 18:12:00
        ("null-cap-a", 139.0),  # 13:07:19.000 - 13:05:00, and two days in both files
        ("quiet-power-a", 60.229),  # 15:41:10.229 - 15:40:10
        ("tiny-kernels-a", 63.590),  # 22:16:33.590 - 22:15:30
        ("wide-scan-a", 411.996),  # 19:26:56.996 - 19:20:05
    ],
)
def test_telemetry_beside_its_log(shared, case, offset_s):
    folder = shared / "cases" / case
    clock = align_telemetry(_smi_csv(folder / "gpu.csv"), "local", read_log(folder / "server.log").samples)
    assert clock.offset_s == pytest.approx(offset_s, abs=1e-6) and clock.is_certain
    assert clock.uncertainty_s <= 12.0  # 10 s between samples at most


def test_telemetry_of_another_day_is_refused(shared):
    folder = shared / "cases" / "cap-250-a"
    clock = align_telemetry(_smi_csv(folder / "reference_gpu.csv"), "local", read_log(folder / "server.log").samples)
    # 2026-07-04 11:06:58 to 2026-07-05 18:14 is 31 h
    assert clock.is_refused and "31 hours before the log" in clock.how
    with pytest.raises(NotEnoughData, match="31 hours before"):
        to_log_time(_smi_csv(folder / "reference_gpu.csv"), clock)


def test_two_days_apart_is_said_in_words():
    ev_ts, ev_t = _times("2026-07-08 12:00:00", 60)
    log_ts, log_t = _times("2026-07-05 12:00:00", 60)
    clock = align(ev_ts, ev_t, "local", log_ts, log_t)
    assert clock.is_refused and not clock.is_certain and "3 days after the log" in clock.how


def test_a_given_offset_wins_and_is_held_against_the_times():
    ev_ts, ev_t = _times("2026-07-08 12:00:00", 60)
    log_ts, log_t = _times("2026-07-05 12:00:00", 60)
    assert align(ev_ts, ev_t, "local", log_ts, log_t, offset_s=5.0) == Clock(5.0, 0.0, "given by the user", True)
    far = align(ev_ts, ev_t, "local", log_ts, log_t, offset_s=500.0)
    assert far.offset_s == 500.0 and far.warnings == ("at the offset given, the evidence is of another time",)


@pytest.mark.parametrize("evidence", ["none", "elapsed"])
def test_evidence_without_stamps_or_shape_is_refused(evidence):
    log_ts, log_t = _times("2026-07-05 12:00:00", 60)
    clock = align([pd.NaT] * 30, np.arange(30.0), evidence, log_ts, log_t)
    assert clock.is_refused and "start time" in clock.how
    nothing = align([pd.NaT] * 3, [np.nan] * 3, "none", log_ts, log_t)
    assert nothing.is_refused and "no times" in nothing.how


def test_year_is_taken_from_the_evidence_across_the_leap_day_of_1904():
    # 1904 has a 29 February and 2026 has none: whole days must not slip.
    ev_ts, ev_t = _times("2026-03-02 10:00:30", 60)
    log_ts, log_t = _times("1904-03-02 10:00:00", 120)
    clock = align(ev_ts, ev_t, "local", log_ts, log_t)
    assert clock.offset_s == 30.0 and "no year: 2026" in clock.warnings[0]
    # A log of New Year's Eve with telemetry that begins after midnight.
    ev_ts, ev_t = _times("2027-01-01 00:00:10", 60)
    log_ts, log_t = _times("1904-12-31 23:59:00", 300)
    assert align(ev_ts, ev_t, "local", log_ts, log_t).offset_s == 70.0


def test_a_leap_day_that_the_evidence_does_not_have():
    ev_ts, ev_t = _times("2026-03-01 10:00:00", 60)
    log_ts, log_t = _times("1904-02-29 10:00:00", 60)
    clock = align(ev_ts, ev_t, "local", log_ts, log_t)
    assert clock.is_refused and "29 February" in clock.how


def test_time_of_day_is_matched_where_no_date_is_printed():
    ev_ts, ev_t = _times("2026-07-05 23:59:30", 120)
    log_ts, log_t = _times("1904-01-01 23:58:30", 300)
    clock = align(ev_ts, ev_t, "local", log_ts, log_t)
    assert clock.offset_s == 60.0 and not clock.is_certain and "no date" in clock.warnings[0]
    # Telemetry that begins after the midnight which the log crosses: the day before must be taken.
    ev_ts, ev_t = _times("2026-07-06 00:00:30", 60)
    assert align(ev_ts, ev_t, "local", log_ts, log_t).offset_s == 120.0


def test_uptime_is_no_time_of_day():
    # llama.cpp prints the time since its start, which reads as just after midnight.
    ev_ts, ev_t = _times("2026-11-29 13:30:00", 600)
    log_ts, log_t = _times("1904-01-01 00:00:02", 600)
    clock = align(ev_ts, ev_t, "epoch", log_ts, log_t)
    assert clock.is_refused and "only the time since its start" in clock.how


# --- zones ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("zone_h", [-7, -3.5, 0, 1, 2, 5.5, 5.75, 9, 13])
def test_zone_of_evidence_in_utc_is_derived(zone_h):
    ev_ts, ev_t = _times("2026-07-05 12:00:30", 700)
    log_ts, log_t = _times(DAY + pd.Timedelta(hours=12 + zone_h), 720)
    clock = align(ev_ts, ev_t, "epoch", log_ts, log_t)
    assert clock.offset_s == 30.0 and f"zone derived: {zone_h:+g} h" in clock.how
    # Another zone than UTC rests on the times alone: a run so many hours apart would look the same.
    assert clock.is_certain == (zone_h == 0)
    given = align(ev_ts, ev_t, "epoch", log_ts, log_t, log_zone_offset_s=zone_h * 3600)
    assert given.offset_s == 30.0 and given.is_certain


def test_a_wrong_zone_given_is_refused_not_mended():
    ev_ts, ev_t = _times("2026-07-05 12:00:30", 700)
    log_ts, log_t = _times("2026-07-05 14:00:00", 720)
    clock = align(ev_ts, ev_t, "epoch", log_ts, log_t, log_zone_offset_s=3600.0)
    assert clock.is_refused and "48 minutes before" in clock.how  # 13:12:09 to 14:00:00


def test_several_zones_that_fit_are_refused_or_said():
    ev_ts, ev_t = _times("2026-07-05 12:00:00", 600)
    log_ts, log_t = _times("2026-07-05 13:00:00", 6 * 360, 10.0)  # six hours: every zone from +1 h fits
    clock = align(ev_ts, ev_t, "epoch", log_ts, log_t)
    assert clock.is_refused and "nothing tells them apart" in clock.how
    log_ts, log_t = _times("2026-07-05 11:00:00", 6 * 360, 10.0)  # UTC among them
    clock = align(ev_ts, ev_t, "epoch", log_ts, log_t)
    assert clock.offset_s == 3600.0 and not clock.is_certain and "taken to be in UTC" in clock.how


def test_a_runner_two_hours_ahead_of_its_log(shared):
    """Suites of a runner in CEST, log in UTC: back to back for 5547 s, and the log shows the same 92 minutes."""
    folder = shared / "logs" / "djangodevreng" / "nemotron-4b"
    samples = read_log(folder / "_bootlog.txt").samples
    lines = (folder / "same-run-2026-05" / "_runner.log").read_text(encoding="utf-8").splitlines()
    stamps = [line[1:9] for line in lines if "── START" in line or "── END" in line]
    assert len(stamps) == 20
    ts = pd.to_datetime(["2026-05-05 " + stamp for stamp in stamps])  # the day of meta.json
    t_s = (ts - ts[0]).total_seconds()
    log_ts = samples.groupby("t_s")["ts"].first()
    clock = align(ts, t_s, "local", log_ts, log_ts.index, period_s=0.0)
    # 14:45:31 CEST is 12:45:31 UTC, 906 s after the log's first line at 12:30:25.
    assert clock.offset_s == 906.0 and "zone derived: -2 h" in clock.how and not clock.is_certain


def test_client_runs_of_that_log_find_its_zone(shared):
    folder = shared / "logs" / "djangodevreng" / "nemotron-4b"
    samples = read_log(folder / "_bootlog.txt").samples
    starts, lengths = [], []
    for path in sorted((folder / "same-run-2026-05").glob("*.json")):
        if path.name != "meta.json":
            run = json.loads(path.read_text(encoding="utf-8").splitlines()[0])
            ended = pd.to_datetime(run["date"], format="%Y%m%d-%H%M%S").timestamp()
            starts.append(ended - run["duration"])
            lengths.append(run["duration"])
    zero = pd.Timestamp("2026-05-05 12:30:25").timestamp()
    clock = align_runs(starts, lengths, samples)
    assert clock.offset_s == pytest.approx(-zero, abs=1e-3) and clock.is_certain
    moved = samples.assign(ts=samples["ts"] + pd.Timedelta(hours=2))
    clock = align_runs(starts, lengths, moved)
    assert clock.offset_s == pytest.approx(-zero, abs=1e-3) and "+2 h" in clock.how and not clock.is_certain


@pytest.mark.parametrize("zone_h", [0, 5.5])
def test_scrapes_in_utc_beside_a_real_log(shared, zone_h):
    """The log's first line is at 2026-11-29 14:11:51 UTC; scrapes carry seconds since 1970."""
    folder = shared / "logs" / "own" / "vllm-sweep"
    epoch, running = [], []
    with gzip.open(folder / "metrics_1hz.txt.gz", "rt", encoding="utf-8") as lines:
        for line in lines:
            if line.startswith("# scrape_unix_time"):
                at = float(line.split()[2])
            elif line.startswith("vllm:num_requests_running{"):
                epoch.append(at)
                running.append(float(line.split()[-1]))
    samples = read_log(folder / "server.log").samples
    moved = samples.assign(ts=samples["ts"] + pd.Timedelta(hours=zone_h))
    log_t, log_busy = log_activity(moved)
    log_ts = moved.groupby("t_s")["ts"].first().reindex(log_t)
    zero = -pd.Timestamp("2026-11-29 14:11:51").timestamp()
    clock = align(pd.to_datetime(epoch, unit="s"), epoch, "epoch", log_ts, log_t, log_busy=log_busy,
                  evidence_busy=running)
    assert clock.offset_s == pytest.approx(zero, abs=1e-3) and clock.is_certain
    assert f"zone derived: {zone_h:+g} h; the work in both agrees" in clock.how
    # The same without its stamps: found by its shape, and said to be only that.
    elapsed = np.array(epoch) - epoch[0]
    shape = align([pd.NaT] * len(epoch), elapsed, "elapsed", log_ts, log_t, log_busy=log_busy, evidence_busy=running)
    assert not shape.is_certain and abs(shape.offset_s - (zero + epoch[0])) <= shape.uncertainty_s < 8


# --- work -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suite", ["03", "07", "10", "11"])
def test_elapsed_telemetry_of_another_run_is_refused(shared, suite):
    """August's telemetry beside May's log: a dip in both is no proof."""
    folder = shared / "logs" / "djangodevreng" / "nemotron-4b"
    samples = read_log(folder / "_bootlog.txt").samples
    recorded = pd.read_csv(folder / "other-run-2026-08" / f"{suite}-telemetry.csv")
    for column in ("power_w", "gpu_util"):
        table = _telemetry(None, recorded["elapsed_s"], recorded[column].astype(float), "elapsed")
        assert align_telemetry(table, "elapsed", samples).is_refused
        found = match(recorded["elapsed_s"], recorded[column], *log_activity(samples))
        at = found.best() if found else None
        assert at is None or not found.is_convincing(at)


def _power(run, rng, period_s):
    """Sample the power of a simulated server: idle 90 W, more with the batch, mean over a period, 6 W of noise."""
    forwards = run.trace.forwards
    edges = np.array([(f.start_s, 1, f.batch_req) for f in forwards] + [(f.end_s, -1, f.batch_req) for f in forwards])
    edges = edges[np.argsort(edges[:, 0], kind="stable")]
    level = np.concatenate([[0.0], np.cumsum(edges[:, 1] * (60 + 40 * np.log2(1 + np.maximum(edges[:, 2], 1))))])
    energy = np.concatenate([[0.0], np.cumsum(np.diff(edges[:, 0]) * level[1:-1])])
    t_s = np.arange(rng.uniform(-60, 0), run.trace.end_s + rng.uniform(0, 60), period_s)
    used = np.interp(t_s, edges[:, 0], energy) - np.interp(t_s - period_s, edges[:, 0], energy)
    return t_s, 90 + used / period_s + rng.normal(0, 6, len(t_s))


@pytest.fixture(scope="module")
def simulated():
    """Six servers of several shapes: their samples, start and power."""
    found = []
    for seed, name in enumerate(["dense_sweep", "idle_gaps", "vllm_sweep", "quantised_windows", "restarts",
                                 "vllm_closed_loop"]):
        run, rng = synth.presets.get(name).simulate(seed=seed), np.random.default_rng(seed)
        found.append((run.samples(), pd.Timestamp(run.server.start), *_power(run, rng, (1.0, 2.0, 5.0)[seed % 3])))
    return found


def test_planted_zones_are_recovered_or_refused(simulated):
    n_right = 0
    for i, (samples, start, t_s, power_w) in enumerate(simulated):
        zone_h = (0, 2, -7, 5.5, 9)[i % 5]
        ts = start + pd.to_timedelta(t_s - zone_h * 3600, unit="s")
        clock = align_telemetry(_telemetry(ts, t_s - t_s[0], power_w), "epoch", samples)
        assert clock.is_refused or abs(clock.offset_s - t_s[0]) <= clock.uncertainty_s, (i, clock)
        n_right += not clock.is_refused
    assert n_right == len(simulated)


def test_elapsed_telemetry_is_recovered_by_its_shape_or_refused(simulated):
    n_right = 0
    for i, (samples, _, t_s, power_w) in enumerate(simulated):
        clock = align_telemetry(_telemetry(None, t_s - t_s[0], power_w, "elapsed"), "elapsed", samples)
        assert not clock.is_certain
        assert clock.is_refused or abs(clock.offset_s - t_s[0]) <= clock.uncertainty_s, (i, clock)
        n_right += not clock.is_refused
    assert n_right >= 2  # half of 150 logs simulated beside this test


def test_a_clock_that_is_minutes_off_is_found_where_the_shape_tells(simulated):
    samples, start, t_s, power_w = simulated[1]  # idle gaps
    ts = start + pd.to_timedelta(t_s + 170.0, unit="s")
    clock = align_telemetry(_telemetry(ts, t_s - t_s[0], power_w), "local", samples)
    assert abs(clock.offset_s - t_s[0]) <= clock.uncertainty_s < 15 and not clock.is_certain
    assert "corrected by the work" in clock.how and "differ by -17" in clock.warnings[-1]


def test_overlap_as_printed_does_not_hide_a_zone(simulated):
    """A long recording overlaps the log as printed and two hours off: the work decides."""
    samples, start, t_s, power_w = simulated[1]
    rng = np.random.default_rng(0)
    before = np.arange(t_s[0] - 3 * 3600, t_s[0], 2.0)
    t_s, power_w = np.concatenate([before, t_s]), np.concatenate([90 + rng.normal(0, 6, len(before)), power_w])
    ts = start + pd.to_timedelta(t_s + 7200.0, unit="s")
    clock = align_telemetry(_telemetry(ts, t_s - t_s[0], power_w), "local", samples)
    assert clock.offset_s == pytest.approx(t_s[0], abs=clock.uncertainty_s) and "-2 h" in clock.how


def test_spinning_devices_have_no_shape():
    table = conform(pd.DataFrame({"file": "f", "line_no": 1, "t_s": np.arange(50.0), "device": "0", "busy_frac": 1.0}),
                    TELEMETRY)
    assert len(device_activity(table)[0]) == 0


def test_activity_of_a_log_by_hand():
    table = conform(pd.DataFrame({
        "file": "f", "line_no": range(6), "engine": "sglang", "server_life": 0,
        "kind": ["prefill", "decode", "decode", "decode", "decode", "decode"],
        "rank": ["DP0", "DP0", "DP1", "DP0", "DP1", "DP0"], "t_s": [0.0, 1, 1, 2, 2, 3],
        "running_req": [0, 4, 2, 4, 3, 0],
        "decode_tok_per_s": [np.nan, 10, 10, 10, 10, 0]}), SAMPLES)
    t_s, busy = log_activity(table)
    # prefill counts as one; then 4 + 2, 4 + 3, and 0 of DP0 with the 3 that DP1 last said
    assert t_s.tolist() == [0, 1, 2, 3] and busy.tolist() == [1, 6, 7, 3]


def test_activity_of_runs_by_hand():
    t_s, busy = run_activity(np.array([100.0, 103.0]), np.array([2.0, 2.0]), pad_s=2.0)
    # runs over [100, 102) and [103, 105), idle for two seconds around them
    assert t_s.tolist() == [98, 99, 100, 101, 102, 103, 104, 105, 106]
    assert busy.tolist() == [0, 0, 1, 1, 0, 1, 1, 0, 0]


# --- windows ----------------------------------------------------------------------------------------------------------


def test_to_log_time_of_each_table():
    clock = Clock(-100.0, 1.0, "", True)
    assert to_log_time(pd.DataFrame({"t_s": [105.0, np.nan]}), clock)["t_s"].tolist()[0] == 5.0
    assert to_log_time(pd.DataFrame({"start_epoch_s": [130.0]}), clock)["t_s"].tolist() == [30.0]
    requests = pd.DataFrame({"start_s": [140.0, 3.0], "is_epoch": pd.array([True, False], dtype="boolean")})
    moved = to_log_time(requests, clock)["t_s"]
    assert moved[0] == 40.0 and np.isnan(moved[1])
    with pytest.raises(NotEnoughData, match="expected a column t_s"):
        to_log_time(pd.DataFrame({"x": [1]}), clock)


def _intervals():
    return pd.DataFrame({
        "t_s": [10.0, 20.0, 30.0, 45.0, 45.0, np.nan, 90.0], "interval_s": [5.0, 10.0, 10.0, 15.0, 14.0, 3.0, 30.0],
        "idle_s": [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 20.0], "clean": [True, True, False, True, True, True, True],
        "label": ["steady", "steady", "mixed", "steady", "steady", "steady", "steady"],
    })


def test_windows_by_hand():
    # ends minus lengths: [5, 10], [10, 20] join; [30, 45] and [31, 45] are two ranks; 20 of the last 30 s were idle
    assert phases_window(_intervals()) == [(5.0, 20.0), (30.0, 45.0), (80.0, 90.0)]
    assert phases_window(_intervals(), ("mixed",)) == [(20.0, 30.0)]
    assert phases_window(_intervals(), ("steady", "mixed"), only_clean=True) == phases_window(_intervals())
    assert phases_window(_intervals(), ("steady", "idle"))[-1] == (60.0, 90.0)
    assert phases_window(_intervals(), ("drain",)) == []


def test_clip_by_hand():
    table = pd.DataFrame({"t_s": [4.9, 5.0, 12.0, 20.0, 20.1, 30.0, np.nan, 44.0, 46.0]})
    windows = [(5.0, 20.0), (30.0, 45.0)]
    assert clip(table, windows)["t_s"].tolist() == [5.0, 12.0, 20.0, 30.0, 44.0]
    assert clip(table, windows, margin_s=2.0)["t_s"].tolist() == [12.0]
    assert clip(table, windows, margin_s=8.0).empty and clip(table, []).empty


def test_clip_of_real_telemetry_leaves_out_what_is_outside(shared):
    """null-cap-a: two runs days apart in one file; the window of the first holds none of the second."""
    folder = shared / "cases" / "null-cap-a"
    table, log = _smi_csv(folder / "gpu.csv"), read_log(folder / "server.log").samples
    aligned = to_log_time(table, align_telemetry(table, "local", log))
    first = clip(aligned, [(139.0, 3600.0)])
    assert (first["ts"] < pd.Timestamp("2026-07-26")).all()
    assert len(first) == int((table["ts"] < pd.Timestamp("2026-07-26")).sum()) == 56  # half of 112 rows
