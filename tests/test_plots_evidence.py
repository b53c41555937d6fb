"""Figures of side files and of the diagnosis: traces, axes with units, points and sentences, by hand arithmetic.

Would catch: a median over idle or start-up time in the title, a sample on the wrong side of a window, load hidden by a
gap of days, a refuted cause that vanishes, a part of a client's time that is lost.
"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from helpers import plots, schema
from helpers.diagnose.causes import CAUSES
from helpers.plots import stretches, style
from helpers.schema import INTERVALS, TELEMETRY

STATUS = ["supported", "compatible", "weak", "refuted"]


def intervals_table(*rows, **more):
    """Return INTERVALS of rows (end [s], length [s], label, running requests)."""
    table = pd.DataFrame([
        {"t_s": end, "interval_s": length, "label": label, "running_req": n, "running_req_printed": n,
         "running_req_total": n, "queue_req": 0, "line_no": i + 1}
        for i, (end, length, label, n) in enumerate(rows)
    ] or [{"t_s": 0.0, "interval_s": 0.0, "label": "idle", "running_req": 0, "running_req_printed": 0, "line_no": 1}])
    fixed = {"file": "a.log", "server_life": 0, "engine": "sglang", "kind": "decode", "rank_group": "all",
             "idle_s": 0.0, "prefill_tok": 0.0, "episode": 0, "clean": False, "why": "", "rank": "DP0"}
    return schema.conform(table.assign(**{**fixed, **more}).head(len(rows)), INTERVALS)


def telemetry(t_s, device="0", **columns):
    """Return TELEMETRY of one device or rank; columns are scalars or one value per sample."""
    table = pd.DataFrame({"t_s": np.asarray(t_s, float), **columns})
    owner = {"rank": device, "device": pd.NA} if str(device).startswith("DP") else {"device": device}
    return table.assign(file="gpu.csv", line_no=range(2, len(table) + 2), **owner)


def conformed(*tables):
    return schema.conform(pd.concat(tables, ignore_index=True), TELEMETRY)


@pytest.fixture
def one_load():
    """Start-up to 20 s, ramp to 30 s, steady to 100 s."""
    return intervals_table((30.0, 10.0, "ramp", 8), (60.0, 30.0, "steady", 16), (100.0, 40.0, "steady", 16))


@pytest.fixture
def one_board():
    """A sample every 5 s from 0 to 100 s: 80 W and idle before 30 s, then 340 W and busy; limit 600 W."""
    t_s = np.arange(0.0, 101.0, 5.0)
    is_busy = t_s >= 30
    return conformed(telemetry(t_s, power_w=np.where(is_busy, 340.0, 80.0), power_limit_w=600.0,
                               busy_frac=is_busy.astype(float), mem_busy_frac=0.3, sm_clock_hz=1.98e9))


def named(figure, name):
    return [t for t in figure.data if t.name == name]


def titles(figure):
    return {name: figure.layout[name].title.text for name in figure.layout
            if name.startswith(("xaxis", "yaxis")) and figure.layout[name].title.text}


def said(figure):
    return figure.layout.title.text.replace("<br>", " ")


def spans_of(trace):
    """Return start and end of every rectangle of a band."""
    corners = [value for value in trace.x if value is not None]
    return [(corners[i], corners[i + 2]) for i in range(0, len(corners), 4)]


# --- telemetry over phases -------------------------------------------------------------------------------------------


def test_telemetry_stands_over_phases_on_one_time_axis(one_load, one_board):
    figure = plots.telemetry_over_phases(one_load, one_board, [(30.0, 100.0)], subtitle="a run")
    assert titles(figure) == {
        "yaxis": "requests [req]", "yaxis2": "board power [W]", "yaxis3": "share [%]", "yaxis4": "SM clock [Hz]",
        "xaxis4": "time on the log's clock [s]"}
    assert {figure.layout[name].matches for name in ("xaxis", "xaxis2", "xaxis3")} == {"x4"}
    assert all(figure.layout[name].overlaying is None for name in ("yaxis2", "yaxis3", "yaxis4"))
    # The end stamp of 30 s with a length of 10 s covers 20 to 30 s; two steady intervals are one band.
    (ramp,), (steady,) = named(figure, "phase: ramp"), named(figure, "phase: steady")
    assert spans_of(ramp) == [(20.0, 30.0)]
    assert spans_of(steady) == [(30.0, 100.0)]
    assert ramp.fillpattern.shape and not steady.fillpattern.shape, "colour alone would not tell them apart"
    (running,) = named(figure, "running requests")
    assert list(running.x) == [30, 60, 100, None]
    assert list(running.y) == [8, 16, 16, None]
    assert figure.layout.title.text.startswith(
        "In the loaded windows the board draws 340 W of 600 W and is busy 100 % of the time (median)")
    assert "a run" in said(figure)


def test_samples_outside_the_windows_are_hollow_and_in_no_median_of_the_title(one_load, one_board):
    figure = plots.telemetry_over_phases(one_load, one_board, [(30.0, 100.0)])
    power = next(t for t in named(figure, "device 0") if t.yaxis == "y2")
    assert len(power.x) == 21
    is_hollow = [symbol.endswith("-open") for symbol in power.marker.symbol]
    assert [x for x, hollow in zip(power.x, is_hollow, strict=True) if hollow] == [0, 5, 10, 15, 20, 25]
    # 15 of 21 samples lie in 30 to 100 s, both ends included; all samples from 0 to 100 s have the same median.
    assert "filled: the 15 of 21 samples in 1 loaded window; hollow: the others" in said(figure)
    # A whole file that rests longer than it works has another median, and both are named: 41 at rest, 15 at work.
    rest = telemetry(np.arange(101.0, 136.0), power_w=80.0, power_limit_w=600.0, busy_frac=0.0)
    figure = plots.telemetry_over_phases(one_load, conformed(one_board, rest), [(30.0, 100.0)])
    assert "the board draws 340 W of 600 W and is busy 100 % of the time (median)" in said(figure)
    assert "included, are different: the board draws 80.0 W of 600 W and is busy 0 % of the time" in said(figure)


def test_a_margin_is_taken_off_both_ends_of_a_window(one_load, one_board):
    figure = plots.telemetry_over_phases(one_load, one_board, [(30.0, 100.0)], margin_s=10.0)
    # 40 to 90 s in steps of 5 s: 11 samples.
    assert "filled: the 11 of 21 samples" in said(figure)
    assert spans_of(named(figure, "loaded windows")[0]) == [(40.0, 90.0)]
    assert "windows without 10 s at both ends" in said(figure)
    assert "no loaded window" in said(plots.telemetry_over_phases(one_load, one_board, [(30.0, 100.0)], margin_s=40.0))


def test_rows_without_data_are_left_out(one_load):
    table = conformed(telemetry([40.0, 50.0], sm_clock_hz=1.2e9))
    figure = plots.telemetry_over_phases(one_load, table, [(30.0, 100.0)])
    assert titles(figure) == {"yaxis": "requests [req]", "yaxis2": "SM clock [Hz]",
                              "xaxis2": "time on the log's clock [s]"}
    assert said(figure).startswith("2 of 2 samples lie in the loaded windows")


def test_every_device_has_its_line_and_the_limit_is_dashed(one_load):
    t_s = np.arange(30.0, 101.0, 10.0)
    rows = [telemetry(t_s, device, power_w=watt, power_limit_w=700.0, busy_frac=1.0)
            for device, watt in (("0", 200.0), ("1", 260.0))]
    idle = telemetry(t_s, "2", power_w=70.0, power_limit_w=700.0, busy_frac=0.0)
    figure = plots.telemetry_over_phases(one_load, conformed(*rows, idle), [(30.0, 100.0)])
    lines = [named(figure, f"device {i}")[0] for i in range(3)]
    assert len({t.line.dash for t in lines}) == 3
    assert len({t.marker.symbol[0] for t in lines}) == 3
    (limit,) = named(figure, "power limit")
    assert limit.line.dash == "dash"
    assert [y for y in limit.y if y is not None] == [700.0, 700.0], "one limit for three devices, two points"
    # 200 and 260 W differ by more than 5 %: both ends. Device 2 did nothing: it is named, and in no median.
    assert "boards draw 200 to 260 W of 700 W and are busy 100 % of the time" in said(figure)
    assert "idle in the windows, so in no median: device 2" in said(figure)
    busy = named(figure, "busy (any kernel)")[0]
    assert np.isnan(np.asarray(busy.y, float)).sum() == 2, "a line must not join two devices"


def test_a_line_breaks_where_nothing_was_recorded(one_load):
    t_s = [30.0, 31.0, 32.0, 33.0, 90.0, 91.0]
    figure = plots.telemetry_over_phases(one_load, conformed(telemetry(t_s, power_w=300.0)), [(30.0, 100.0)])
    y = np.asarray(named(figure, "device 0")[0].y, float)
    assert list(np.flatnonzero(np.isnan(y))) == [4], "57 s are more than five periods of 1 s"


def test_gauges_of_ranks_have_rows_of_their_own(one_load):
    rows = [telemetry([40.0, 60.0], rank, running_req=run, queue_req=queue)
            for rank, run, queue in (("DP0", [4.0, 2.0], 0.0), ("DP1", [4.0, 4.0], [0.0, 10.0]))]
    figure = plots.telemetry_over_phases(one_load, conformed(*rows), [(30.0, 100.0)])
    assert titles(figure)["yaxis2"] == "running [req/rank]"
    assert titles(figure)["yaxis3"] == "waiting [req/rank]"
    # DP1: (4 + 4) / 2 running and (0 + 10) / 2 waiting; DP0: (4 + 2) / 2.
    assert "rank DP1 holds 9 requests, 5 of them waiting; the other 1 hold 3 (mean)" in said(figure)


def test_days_between_two_loads_are_cut_out():
    log = pd.concat([intervals_table((100.0, 100.0, "steady", 4)),
                     intervals_table((300_100.0, 100.0, "steady", 4), server_life=1)], ignore_index=True)
    table = conformed(telemetry([10.0, 50.0, 90.0, 150_000.0, 300_010.0, 300_050.0], power_w=300.0))
    figure = plots.telemetry_over_phases(log, table, [(0.0, 100.0), (300_000.0, 300_100.0)])
    # Two columns, padded by 3 % of the 200 s of load.
    assert figure.layout.xaxis.matches == "x3"
    assert figure.layout.xaxis3.range == (-6.0, 106.0)
    assert figure.layout.xaxis4.range == (299_994.0, 300_106.0)
    assert "//" in [a.text for a in figure.layout.annotations]
    # 299,900 s less two pads are 83.3 h; the sample in the middle of them is not drawn, and that is said.
    assert "//: 83.3 h in which nothing ran, cut out" in said(figure)
    assert "1 samples lie outside what is drawn" in said(figure)
    assert sum(len(t.x) for t in named(figure, "device 0")) == 5
    assert [t.showlegend for t in named(figure, "device 0")] == [True, False]


def test_load_far_from_any_sample_is_not_drawn(one_load):
    log = pd.concat([one_load, intervals_table((9000.0, 600.0, "steady", 4), server_life=1)], ignore_index=True)
    figure = plots.telemetry_over_phases(log, conformed(telemetry([30.0, 70.0, 100.0], power_w=300.0)), [(30.0, 100.0)])
    # Samples from 30 to 100 s reach 17.5 s further; the second load ends hours later.
    assert "not drawn: 10.0 min of load, far from any sample" in said(figure)
    assert figure.layout.xaxis2.range[1] < 120


def test_phases_of_ranks_never_overlap():
    log = pd.concat([intervals_table((10.0, 10.0, "steady", 4), (20.0, 10.0, "mixed", 4), rank="DP0"),
                     intervals_table((20.0, 20.0, "steady", 4), rank="DP1"),
                     intervals_table((20.0, 20.0, "steady", 4), rank="DP2")], ignore_index=True)
    table = stretches.phase_spans(log)
    assert table.to_dict("records") == [{"start_s": 0.0, "end_s": 20.0, "label": "steady"}], "two ranks of three"
    alone = stretches.phase_spans(log[log["rank"].eq("DP0")])
    assert list(alone["label"]) == ["steady", "mixed"]
    assert list(alone["end_s"]) == [10.0, 20.0]


def test_idle_time_at_the_start_of_an_interval_is_its_own_band():
    table = stretches.phase_spans(intervals_table((100.0, 60.0, "ramp", 4), idle_s=50.0))
    assert table.to_dict("records") == [{"start_s": 40.0, "end_s": 90.0, "label": "idle"},
                                        {"start_s": 90.0, "end_s": 100.0, "label": "ramp"}]


def test_many_samples_are_thinned(one_load):
    table = conformed(telemetry(np.linspace(30, 100, 9000), power_w=300.0))
    figure = plots.telemetry_over_phases(one_load, table, [(30.0, 100.0)])
    assert len(named(figure, "device 0")[0].x) == 1800, "every 5th of 9000, at most 2000"
    assert "every 5th of 9000 points drawn" in said(figure)


def test_thinning_leaves_no_device_out(one_load):
    rows = [telemetry(np.linspace(30, 100, 2000), str(i), busy_frac=0.1 * (i + 1)) for i in range(3)]
    figure = plots.telemetry_over_phases(one_load, conformed(*rows), [(30.0, 100.0)])
    y = np.asarray(named(figure, "busy (any kernel)")[0].y, float)
    # 6000 points, every 3rd of each device: 667 of each; every 3rd of all rows would be one device of three.
    assert [int(np.isclose(y, share).sum()) for share in (0.1, 0.2, 0.3)] == [667, 667, 667]


def test_a_count_holds_over_its_interval_and_never_joins_two_server_lives():
    log = pd.concat([intervals_table((100.0, 60.0, "steady", 4)),
                     intervals_table((150.0, 40.0, "ramp", 8), server_life=1)], ignore_index=True)
    figure = plots.telemetry_over_phases(log, conformed(telemetry([50.0, 150.0], power_w=300.0)), [(40.0, 100.0)])
    (running,) = named(figure, "running requests")
    assert list(running.x) == [40, 100, None, 150, None], "a ramp does not begin with the count it ends with"
    assert running.line.shape == "vh"


def test_of_many_devices_eight_are_named(one_load):
    rows = [telemetry([40.0, 60.0], str(i), power_w=200.0 + i, busy_frac=1.0) for i in range(12)]
    figure = plots.telemetry_over_phases(one_load, conformed(*rows), [(30.0, 100.0)])
    power = [t for t in figure.data if t.yaxis == "y2" and t.name.startswith("device")]
    assert [t.name for t in power] == [f"device {i}" for i in range(4, 12)], "those that draw most"
    assert "8 of 12 devices or ranks drawn by name" in said(figure)


def test_names_of_a_file_are_escaped(one_load):
    table = conformed(telemetry([40.0, 60.0], "<b>0", power_w=200.0))
    figure = plots.telemetry_over_phases(one_load, table, [(30.0, 100.0)])
    assert any(t.name == "&lt;b&gt;0" for t in figure.data)
    assert "<b>0" not in figure.to_json().replace("\\u003c", "<")


@pytest.mark.parametrize("table", [
    pd.DataFrame(columns=["t_s", "file", "line_no"]),
    pd.DataFrame({"t_s": [math.nan], "power_w": [300.0], "file": ["a"], "line_no": [1]}),
])  # fmt: skip
def test_without_samples_on_the_log_s_clock_nothing_is_drawn(one_load, table):
    figure = plots.telemetry_over_phases(one_load, schema.conform(table, TELEMETRY), [(30.0, 100.0)])
    assert not figure.data
    assert "clock" in figure.layout.annotations[0].text


def test_samples_without_a_log_or_far_from_it_are_still_drawn(one_board, one_load):
    figure = plots.telemetry_over_phases(intervals_table(), one_board, [])
    assert len(named(figure, "device 0")[0].x) == 21
    assert said(figure).startswith("The log has no loaded window that 21 samples could be held against")
    late = conformed(telemetry([5000.0, 5010.0], power_w=300.0))
    figure = plots.telemetry_over_phases(one_load, late, [(30.0, 100.0)])
    assert said(figure).startswith("None of 2 samples lies in the loaded windows")
    assert "no sample was taken near the load" in said(figure)
    assert sum(len(t.x) for t in named(figure, "device 0")) == 2


# --- causes ----------------------------------------------------------------------------------------------------------


def cause(name, status, score, for_=(), against=(), contradiction=None):
    return {"cause": name, "status": status, "score": score, "evidence_for": list(for_),
            "evidence_against": list(against), "refuted_by": against[0] if status == "refuted" else None,
            "contradiction": contradiction, "next_experiment": None}


@pytest.fixture
def diagnosis():
    return [
        cause("max_context_work", "supported", 4.0, ["a size of 3.94 GiB is 63 requests x 262,208 <b>positions</b>"]),
        cause("communication", "compatible", 1.0, ["PCIe, not NVLink"]),
        cause("host_or_scheduler", "weak", -1.0, [], ["the device never waits"]),
        cause("kv_bandwidth", "weak", 0.0),
        cause("kv_capacity", "refuted", -3.0, [], ["the pool is 12 % full"]),
        cause("healthy", "refuted", -3.0, [], ["85 % of the step is unexplained"]),
    ]


def test_causes_stand_in_rank_order_and_refuted_ones_share_the_last_row(diagnosis):
    figure = plots.causes_bars(diagnosis, subtitle="a run")
    assert titles(figure) == {"xaxis": "score [1]"}
    assert list(figure.layout.yaxis.categoryarray) == [
        "max_context_work", "communication", "host_or_scheduler", "nothing seen (1)", "refuted (2)"]
    assert figure.layout.yaxis.autorange == "reversed"
    bars = {t.legendgroup: t for t in figure.data if t.type == "bar"}
    assert {name: list(t.x) for name, t in bars.items()} == {"supported": [4.0], "compatible": [1.0], "weak": [-1.0]}
    marks = {t.name: t.marker.symbol for t in figure.data if t.type == "scatter" and t.name in STATUS}
    assert len(set(marks.values())) == len(marks) == 3
    beside = {a.y: a.text for a in figure.layout.annotations}
    assert beside["refuted (2)"] == "kv_capacity, healthy"
    assert beside["host_or_scheduler"].startswith("weak: against: the device never waits")
    assert "&lt;b&gt;positions" in beside["max_context_work"].replace("<br>", " ")
    (refuted,) = named(figure, "refuted (2)")
    assert "the pool is 12 % full" in refuted.customdata[0]
    # Three: evidence ten times likelier with the cause than without (physics.md 4.2).
    (line,) = figure.layout.shapes
    assert (line.x0, line.line.dash) == (3, "dash")
    assert said(figure).startswith(f"max_context_work is supported: {CAUSES['max_context_work']}")
    assert "no probability" in said(figure)


def test_the_title_never_claims_more_than_the_first_cause(diagnosis):
    two = [diagnosis[0], cause("kv_bandwidth", "supported", 3.0, ["x"])]
    assert said(plots.causes_bars(two)).startswith("2 causes are supported, first max_context_work")
    assert said(plots.causes_bars(diagnosis[1:])).startswith("No cause is supported; communication fits best")
    unknown = [cause("unknown", "compatible", 0.0, ["nothing speaks"]), *diagnosis[1:]]
    assert said(plots.causes_bars(unknown)).startswith("No cause is supported: what is known does not tell")


def test_a_contradiction_is_said_beside_the_bar(diagnosis):
    row = cause("power_or_thermal", "weak", 2.0, ["capped"], ["clock is high"], "capped; but clock is high")
    figure = plots.causes_bars([row])
    assert "contradiction: capped; but clock is high" in figure.layout.annotations[0].text.replace("<br>", " ")


def test_hover_holds_the_strongest_facts_and_counts_the_rest():
    row = cause("communication", "compatible", 2.0, [f"fact {i}" for i in range(5)], ["one against"])
    hover = next(t for t in plots.causes_bars([row]).data if t.type == "bar").customdata[0]
    assert [f"for: fact {i}" in hover for i in range(5)] == [True, True, True, False, False]
    assert "for: 2 more" in hover
    assert "against: one against" in hover


# --- client time and roles -------------------------------------------------------------------------------------------


def test_a_client_s_bar_adds_up_to_its_duration():
    figure = plots.client_time_bar({"steady": 80.0, "ramp": 12.3, "mixed": 20.0, "drain": 3.0, "idle": 0.0}, 120.0)
    assert titles(figure) == {"xaxis": "time of the client [s]"}
    assert sum(t.x[0] for t in figure.data) == pytest.approx(120.0)
    # 120 - 80 - 12.3 - 20 - 3 = 4.7 s: 3.9 %; 80 / 120 = 67 %.
    assert [t.name for t in figure.data] == ["steady 80.0 s", "ramp 12.3 s", "mixed 20.0 s", "drain 3.00 s",
                                             "not covered 4.70 s"]
    assert said(figure) == "67 % of the client's 2.00 min is steady decode; the log covers all but 3.9 %"
    assert figure.layout.barmode == "stack"
    assert len({(t.marker.color, t.marker.pattern.shape) for t in figure.data}) == 5


def test_parts_longer_than_the_duration_are_said():
    figure = plots.client_time_bar({"steady": 100.0, "not covered": 30.0}, 120.0)
    assert "the parts are 10.0 s longer than the client's duration" in said(figure)
    figure = plots.client_time_bar({"steady": 100.0, "not covered": 20.0}, 120.0)
    assert "longer" not in said(figure)


@pytest.fixture
def shares():
    return pd.DataFrame({"role": ["unclassified", "attention", "dense_gemm"], "total_s": [0.3, 0.1, 0.6],
                         "share_frac": [0.3, 0.1, 0.6], "n_calls": [10, 20, 30], "per_step_s": [0.003, 0.001, 0.006],
                         "calls_per_step": [0.1, 0.2, 1.0]})


def test_roles_stand_largest_first_and_unclassified_last(shares):
    figure = plots.role_bars(shares)
    (bar,) = figure.data
    assert list(bar.y) == ["dense_gemm", "attention", "unclassified"]
    assert list(bar.x) == [0.6, 0.1, 0.3]
    assert bar.text[0] == "60 % · 6.00 ms and 1 launch per step"
    assert titles(figure) == {"xaxis": "share of the time of all kernels and copies [%]"}
    assert said(figure).startswith("dense_gemm takes 60 % of the kernel time; 30 % has no known role")


def test_unclassified_has_a_row_even_if_nothing_is(shares):
    known = shares[shares["role"] != "unclassified"].drop(columns=["per_step_s", "calls_per_step"])
    (bar,) = plots.role_bars(known).data
    assert bar.y[-1] == "unclassified"
    assert bar.x[-1] == 0
    assert bar.text == ("60 % · 30 launches", "10 % · 20 launches", "0 %")
    alone = shares[shares["role"] == "unclassified"].assign(share_frac=1.0)
    assert said(plots.role_bars(alone)).startswith("No kernel has a known role: 100 % of the time")


def test_every_kind_of_kernel_has_a_mark_of_its_own():
    from helpers.plots.evidence import ROLE_MARKS

    assert set(ROLE_MARKS) == set(schema.ROLES)
    assert len(set(ROLE_MARKS.values())) == len(ROLE_MARKS)


@pytest.mark.parametrize("figure", [
    lambda: plots.causes_bars([]), lambda: plots.client_time_bar({}, math.nan), lambda: plots.client_time_bar({}, 0.0),
    lambda: plots.role_bars(pd.DataFrame(columns=["role", "total_s", "share_frac", "n_calls"])),
])  # fmt: skip
def test_empty_inputs_give_a_figure_that_says_so(figure):
    drawn = figure()
    assert not drawn.data
    assert drawn.layout.annotations[0].text
    assert drawn.layout.template == style.pio.templates[style.TEMPLATE]


# --- a real run ------------------------------------------------------------------------------------------------------


def test_a_real_recording_is_drawn_as_it_is(shared):
    """The sample numbers and the median come from the CSV itself, read a second way."""
    from helpers.analysis import analyse

    case = shared / "cases" / "quiet-power-a"
    run = analyse(case / "server.log", side={"telemetry": case / "gpu.csv"})
    found = run.judgement.evidence.recording
    figure = plots.telemetry_over_phases(run.intervals, found.table, found.windows)
    assert f"filled: the {len(found.loaded)} of {len(found.table)} samples" in said(figure)
    csv = pd.read_csv(case / "gpu.csv", skipinitialspace=True)
    watts = csv.filter(like="power.draw").iloc[:, 0].astype(str).str.extract(r"([\d.]+)")[0].astype(float).to_numpy()
    inside = found.loaded["line_no"].to_numpy() - 2
    assert f"the board draws {np.median(watts[inside]):.3g} W of 700 W" in said(figure)
    assert len(inside) < len(watts)
    assert plots.causes_bars(run.scorecard["diagnosis"]).data
