"""Observations from telemetry, profiles, links, another run and what is told: made, not made, and at the threshold."""

from __future__ import annotations

from math import nan

import numpy as np
import pandas as pd
import pytest

from helpers import schema
from helpers.diagnose import of_machine
from helpers.diagnose.observations import Observations
from law_tables import levels_table

ONE = "(1 device, loaded windows only)"
MEDIAN = "(median; 1 device, loaded windows only)"


def device(name="0", n=3, **columns):
    """Rows of one device; a column is one value or one per row."""
    table = {"file": "gpu.csv", "line_no": np.arange(n) + 2, "t_s": np.arange(n, dtype=float), "device": name}
    return pd.DataFrame(table | columns, index=range(n))


def telemetry(*tables):
    return schema.conform(pd.concat(tables, ignore_index=True), schema.TELEMETRY)


def seen(*tables, file=None, boost_hz=nan, **facts):
    return Observations(of_machine.of_telemetry(telemetry(*tables), facts, file, boost_hz))


def one(found, name, channel="telemetry"):
    (item,) = found.named(name)
    assert item.channel == channel and item.source
    return item.value, item.says


# Shares of time.


@pytest.mark.parametrize(("column", "says"), [
    ("busy_frac", "any kernel ran in 70% of the time"),
    ("mem_busy_frac", "the memory controller was busy in 70% of the time"),
    ("dram_active_frac", "the memory interface moved data in 70% of the time"),
    ("tensor_active_frac", "the tensor pipes worked in 70% of the time")])
def test_shares_are_medians_over_time_and_devices(column, says):
    found = seen(device(**{column: [0.1, 0.7, 0.9]}))
    assert one(found, column) == (pytest.approx(0.7), f"{says} {MEDIAN}")
    three = seen(*[device(str(i), **{column: [0.1, middle, 0.9]}) for i, middle in enumerate((0.5, 0.7, 0.8))])
    assert three.value(column) == pytest.approx(0.7)
    assert "3 devices" in one(three, column)[1]
    assert not seen(device(busy_frac=nan, **({} if column == "busy_frac" else {column: nan}))).named(column)


def test_two_samples_of_a_device_say_nothing():
    columns = {"busy_frac": 1.0, "mem_busy_frac": 0.1, "power_w": 100.0, "power_limit_w": 300.0, "sm_clock_hz": 1e9}
    assert len(seen(device(n=3, **columns))) >= 5
    assert not len(seen(device(n=2, **columns)))
    assert not len(seen(device("0", n=9, **columns), device("1", n=2, **columns)))


def test_devices_that_did_nothing_while_others_worked_are_left_out():
    """Two of four boards idle at 4 %: the medians are those of the two that work."""
    work = [device(str(i), busy_frac=1.0, mem_busy_frac=0.6) for i in (0, 1)]
    idle = [device(str(i), busy_frac=0.04, mem_busy_frac=0.0) for i in (2, 3)]
    found = seen(*work, *idle)
    assert found.value("mem_busy_frac") == pytest.approx(0.6) and "2 of 4 devices" in one(found, "busy_frac")[1]
    slow = [device(str(i), busy_frac=0.05, mem_busy_frac=0.0) for i in (2, 3)]
    assert seen(*work, *slow).value("mem_busy_frac") == pytest.approx(0.3)
    dead = seen(*idle)  # all idle while requests decode: a counter that does not count
    assert not dead.named("busy_frac") and "2 devices" in one(dead, "dead_counter")[1]
    assert dead.value("mem_busy_frac") == 0.0


@pytest.mark.parametrize(("busy", "memory", "flag"), [
    (0.95, 0.39, 1.0), (0.95, 0.40, 0.0), (0.94, 0.39, 0.0), (1.0, 0.9, 0.0)])
@pytest.mark.parametrize("column", ["dram_active_frac", "mem_busy_frac"])
def test_busy_without_traffic(column, busy, memory, flag):
    value, says = one(seen(device(busy_frac=busy, **{column: memory})), "busy_without_traffic")
    assert value == flag
    assert says == f"kernels run in {busy:.0%} of the time while the memory is busy in {memory:.0%} {ONE}"


def test_the_interface_counts_before_the_controller_and_both_must_be_known():
    found = seen(device(busy_frac=1.0, dram_active_frac=0.2, mem_busy_frac=0.9))
    assert found.value("busy_without_traffic") == 1.0
    one_board = seen(device("0", busy_frac=1.0, dram_active_frac=0.2), device("1", busy_frac=1.0, mem_busy_frac=0.9))
    assert one_board.value("busy_without_traffic") == 1.0  # one board that tells is enough
    assert not seen(device(busy_frac=1.0)).named("busy_without_traffic")
    assert not seen(device(dram_active_frac=0.1)).named("busy_without_traffic")


@pytest.mark.parametrize(("active", "flag"), [(0.49, 1.0), (0.50, 0.0)])
def test_few_multiprocessors_hold_work(active, flag):
    found = seen(device(sm_active_frac=active))
    assert one(found, "sm_active_low") == (flag, f"{active:.0%} of the SMs hold work on average {ONE}")
    assert not seen(device(busy_frac=1.0)).named("sm_active_low")


# Boards.


@pytest.mark.parametrize(("clock", "differ"), [(2.2e9, True), (2.19e9, False)])
def test_boards_of_different_kinds(clock, differ):
    """2.2 over 2.0 GHz are 10 %."""
    found = seen(device("0", mem_clock_hz=2.0e9), device("1", mem_clock_hz=clock))
    assert bool(found.named("boards_differ")) is differ
    if differ:
        assert one(found, "boards_differ")[1] == (
            "the boards are not alike (memory clocks of 2000 and 2200 MHz): equal shares of the work wait for the "
            "slower one")


def test_boards_of_different_names():
    assert "(names A100, L40S)" in one(seen(device("0", device_name="L40S"), device("1", device_name="A100")),
                                       "boards_differ")[1]
    alike = [device(str(i), device_name="L40S", mem_clock_hz=2e9) for i in range(4)]
    assert not seen(*alike).named("boards_differ")
    # an idle board of another kind takes no part
    idle = device("1", device_name="A100", busy_frac=0.0)
    assert not seen(device("0", device_name="L40S", busy_frac=1.0), idle).named("boards_differ")


# Power and clocks.


@pytest.mark.parametrize(("capped", "slowed", "frac", "says"), [
    ([True, True, False, False], None, 0.5, "the driver says that power held the clock down in 50% of the samples"),
    ([False] * 4, [True, False, False, False], 0.25,
     "the driver says that temperature held the clock down in 25% of the samples"),
    ([True, False, None, None], None, 0.5, "the driver says that power held the clock down in 50% of the samples"),
    ([True, False, False, False], [True, True, False, False], 0.5,
     "the driver says that power held the clock down in 50% of the samples"),
    ([False] * 4, [False] * 4, 0.0, "the driver gives no reason for a lower clock")])
def test_the_drivers_reasons(capped, slowed, frac, says):
    """Half: of those that know; a sample with both reasons counts once."""
    found = seen(device(n=4, is_power_capped=capped, **({} if slowed is None else {"is_thermally_slowed": slowed})))
    assert one(found, "clock_held_frac") == (frac, f"{says} {ONE}")


def test_unknown_reasons_and_powers_say_nothing():
    found = seen(device(busy_frac=1.0, power_w=100.0))  # no limit
    assert {item.name for item in found} == {"busy_frac"}
    assert not seen(device(busy_frac=1.0, power_limit_w=300.0), power_limit_w=300).named("power_over_limit")


def test_power_over_its_limit():
    value, says = one(seen(device(power_w=[150.0, 240.0, 270.0], power_limit_w=300.0)), "power_over_limit")
    assert value == pytest.approx(0.8) and says == f"boards draw 240 W, 80% of their limit {ONE}"
    assert seen(device(power_w=240.0), power_limit_w=600).value("power_over_limit") == pytest.approx(0.4)
    # the file's own limit counts before the one told
    assert seen(device(power_w=240.0, power_limit_w=300.0), power_limit_w=600).value("power_over_limit") == 0.8


@pytest.mark.parametrize(("columns", "is_far"), [
    ({"power_w": 237.0, "is_power_capped": False}, True),  # 79 %
    ({"power_w": 240.0, "is_power_capped": False}, False),  # 80 %
    ({"power_w": [100.0] * 17 + [290.0] * 3, "is_power_capped": False}, False),  # more than a tenth of the time near it
    ({"power_w": [100.0] * 19 + [290.0], "is_power_capped": False}, True),
    ({"power_w": 100.0, "is_power_capped": [True] + [False] * 19}, True),  # 5 % of the samples
    ({"power_w": 100.0, "is_power_capped": [True] * 2 + [False] * 18}, False),  # 10 %
    ({"power_w": 100.0, "is_power_capped": [True] + [False] * 15 + [None] * 4}, False),  # 6 %
    ({"power_w": 100.0, "temperature_c": [60.0] * 10 + [85.0] * 10}, False),  # the hottest counts
    ({"power_w": 100.0}, False),  # nothing tells whether anything held the clock
    ({"power_w": 100.0, "temperature_c": 79.0}, True), ({"power_w": 100.0, "temperature_c": 80.0}, False),
    ({"power_w": 100.0, "sm_clock_hz": [1.90e9] * 10 + [2e9] * 10}, True),
    ({"power_w": 100.0, "sm_clock_hz": [1.89e9] * 10 + [2e9] * 10}, False),
    ({"power_w": 100.0, "temperature_c": 90.0, "sm_clock_hz": 2e9}, True),
    ({"power_w": 100.0, "temperature_c": 50.0, "is_thermally_slowed": True}, False)])
def test_far_from_the_power_limit(columns, is_far):
    found = seen(device(n=20, power_limit_w=300.0, **columns))
    assert bool(found.named("far_from_power_limit")) is is_far
    if is_far:
        says = one(found, "far_from_power_limit")[1]
        assert " W, " in says and says.endswith(f"of their limit, and nothing held the clock down {ONE}")


def test_the_clock_against_the_largest_of_the_file():
    """The worst board: 1.5 of 2.0 GHz. Idle time of the whole file may hold the largest."""
    loaded = [device("0", sm_clock_hz=[1.2e9, 1.8e9, 1.9e9]), device("1", sm_clock_hz=[1.4e9, 1.5e9, 1.6e9])]
    file = telemetry(*loaded, device("0", n=1, sm_clock_hz=2e9), device("1", n=1, sm_clock_hz=2e9))
    value, says = one(seen(*loaded, file=file), "clock_below_max_frac")
    assert value == pytest.approx(0.25) and says == ("the clock stands 25% below its largest in the file (2 devices, "
                                                     "loaded windows only)")
    assert seen(*loaded).value("clock_below_max_frac") == pytest.approx(1 - 1.5 / 1.6)
    assert not seen(device(busy_frac=1.0)).named("clock_below_max_frac")


def test_the_clock_against_the_boost_clock_of_the_board():
    found = seen(device("0", sm_clock_hz=1.98e9), device("1", sm_clock_hz=1.485e9), boost_hz=1.98e9)
    value, says = one(found, "clock_below_boost_frac")
    assert value == pytest.approx(0.25)
    assert says.startswith("the clock, 1485 MHz, stands 25% below the board's boost clock")
    assert not seen(device(sm_clock_hz=1.5e9)).named("clock_below_boost_frac")
    assert not seen(device(busy_frac=1.0), boost_hz=2e9).named("clock_below_boost_frac")


# Gauges of ranks.


def gauges(loads, *, queue=(0.0, 0.0), n=3):
    tables = [device(None, n, rank=f"DP{i}", running_req=float(load), queue_req=float(q))
              for i, (load, q) in enumerate(zip(loads, queue, strict=True))]
    return [table.assign(device=None) for table in tables]


def test_gauges_of_ranks():
    """12 and 4: 12 over a mean of 8."""
    value, says = one(seen(*gauges((12, 4))), "gauge_rank_spread")
    assert value == pytest.approx(1.5)
    assert says == "the fullest of 2 ranks holds 1.50 times the mean number of requests"
    for few in (gauges((12, 4), n=2), gauges((12, 4))[:1], gauges((0, 0)),
                [table.assign(t_s=nan) for table in gauges((12, 4))]):
        assert not seen(*few).named("gauge_rank_spread")


@pytest.mark.parametrize(("loads", "queue", "share"), [
    ((12, 5), (3, 0), 1.0), ((12, 6), (3, 0), 0.0), ((12, 5), (3, 1), 0.0), ((12, 5), (0, 0), 0.0)])
def test_a_queue_beside_a_rank_with_room(loads, queue, share):
    value, says = one(seen(*gauges(loads, queue=queue)), "queue_beside_idle_ranks_frac")
    assert value == share
    assert says.startswith(f"in {share:.0%} of 3 samples requests wait on one rank (DP0, mean ")


def test_some_of_the_time_and_one_rank_with_room_of_three():
    """One of four samples has a queue; DP1 stands at 12 as DP0 does, DP2 has 5."""
    tables = [*gauges((12, 12), n=4), gauges((5, 5), n=4)[0].assign(rank="DP2")]
    tables[0]["queue_req"] = [3.0, 0.0, 0.0, 0.0]
    assert seen(*tables).value("queue_beside_idle_ranks_frac") == 0.25


# Profile.


KNOWN = {"gap_frac": nan, "small_launch_frac": nan, "n_steps": nan, "running_req": nan, "n_layers": nan}


def kernels(*rows):
    """KERNELS from (name, role, launches, total [s])."""
    table = pd.DataFrame([{"file": "trace.json", "name": name, "role": role, "n_calls": n, "total_s": total_s,
                           "mean_s": total_s / max(n, 1)} for name, role, n, total_s in rows])
    return schema.conform(table, schema.KERNELS)


def profile(*rows, **known):
    return Observations(of_machine.of_profile(kernels(*rows), **{**KNOWN, **known}, file="trace.json"))


ROLES = [("nccl", "communication", 10, 0.10), ("fmha", "attention", 10, 0.20), ("gemm", "dense_gemm", 10, 0.35),
         ("moe", "moe", 10, 0.10), ("delta", "state", 10, 0.05), ("norm", "norm_rope_quant", 10, 0.20)]


@pytest.mark.parametrize(("name", "share", "words"), [
    ("communication_share_frac", 0.10, "collectives take 10%"), ("attention_share_frac", 0.20, "attention take 20%"),
    ("gemm_share_frac", 0.45, "matrix products take 45%"), ("state_share_frac", 0.05, "recurrent layers take 5%")])
def test_shares_of_the_kernel_time(name, share, words):
    value, says = one(profile(*ROLES), name, "profile")
    assert value == pytest.approx(share) and says == f"{words} of the kernel time"


def test_unknown_kernels_may_be_of_any_small_role():
    """0.2 s of 1.2 are unclassified: 0.1 of collectives may be 0.3 of 1.2; products, 37 %, stay what they are."""
    found = profile(*ROLES, ("k", "unclassified", 10, 0.2))
    value, says = one(found, "communication_share_frac", "profile")
    assert value == pytest.approx(0.25)
    assert says == "collectives take 8% of the kernel time (17% is of kernels whose names tell nothing)"
    assert found.value("gemm_share_frac") == pytest.approx(0.375)
    some = profile(*ROLES, ("k", "unclassified", 10, 0.12))  # 11 %
    assert "(11% is of kernels" in one(some, "communication_share_frac", "profile")[1]
    little = profile(*ROLES, ("k", "unclassified", 10, 0.1))  # 9 %: counted, not said
    assert one(little, "communication_share_frac", "profile") == (
        pytest.approx(0.2 / 1.1), "collectives take 9% of the kernel time")


def test_a_large_share_stays_without_the_unknown():
    at_a_quarter = [("a", "attention", 1, 0.25), ("k", "unclassified", 1, 0.75)]
    assert profile(*at_a_quarter).value("attention_share_frac") == 1.0
    assert profile(("a", "attention", 1, 0.26), ("k", "unclassified", 1, 0.74)).value("attention_share_frac") == 0.26


def test_gaps_and_small_launches():
    found = profile(*ROLES, gap_frac=0.3, small_launch_frac=0.6)
    assert one(found, "gap_frac", "profile") == (0.3, "no kernel runs in 30% of a step")
    assert one(found, "few_blocks_frac", "profile") == (
        0.6, "60% of the kernel time is in launches of fewer blocks than the device has SMs")
    assert not {"gap_frac", "few_blocks_frac"} & {item.name for item in profile(*ROLES)}


def test_an_empty_profile_says_nothing():
    assert not len(profile(("nccl", "communication", 0, 0.0), gap_frac=0.3))
    assert not list(of_machine.of_profile(schema.KERNELS.empty(), **KNOWN))


AT_16 = {"n_steps": 10.0, "running_req": 16.0, "n_layers": 4.0}


@pytest.mark.parametrize(("calls", "share", "value"), [
    (512, 0.25, 1.0),  # 512 / 10 / 4 = 12.8 per layer and step = 0.8 x 16; a quarter of the time
    (511, 0.25, None), (512, 0.24, None), (640, 0.6, 1.0),
    (320, 0.6, None), (319, 0.6, 0.0), (80, 0.6, 0.0)])  # half of 16 per layer is 8
def test_kernels_once_per_request(calls, share, value):
    found = profile(("one", "attention", calls, share), ("rest", "dense_gemm", 40, 1 - share), **AT_16)
    if value is None:
        assert not found.named("kernels_grow_with_requests")
        return
    got, says = one(found, "kernels_grow_with_requests", "profile")
    assert got == value
    per_layer = {640: "16.0", 512: "12.8", 319: "7.97", 80: "2.00"}[calls]
    assert says == (f"kernels with {share:.0%} of the time run {per_layer} times per layer and step at N=16: once per "
                    "request" if value else f"no kernel runs more than {per_layer} times per layer and step at N=16")


@pytest.mark.parametrize("unknown", ["n_steps", "running_req", "n_layers"])
def test_launches_per_layer_need_all_three_numbers(unknown):
    rows = [("one", "attention", 640, 0.6), ("rest", "dense_gemm", 40, 0.4)]
    assert not profile(*rows, **{**AT_16, unknown: nan}).named("kernels_grow_with_requests")


@pytest.mark.parametrize(("running_req", "is_seen"), [(8.0, True), (7.0, False)])
def test_few_requests_do_not_stand_out(running_req, is_seen):
    found = profile(("one", "attention", 320, 1.0), n_steps=10.0, n_layers=4.0, running_req=running_req)
    assert bool(found.named("kernels_grow_with_requests")) is is_seen


def test_the_share_of_such_kernels_is_one_of_all_time():
    """0.6 of 4 s are 15 %: too little to speak, although the launches are many."""
    rows = [("one", "attention", 640, 0.6), ("rest", "dense_gemm", 40, 3.4)]
    assert not profile(*rows, **AT_16).named("kernels_grow_with_requests")
    half = [("one", "attention", 640, 2.0), ("rest", "dense_gemm", 40, 2.0)]
    assert "kernels with 50% of the time" in one(profile(*half, **AT_16), "kernels_grow_with_requests", "profile")[1]


def test_grids_of_one_kernel_count_together():
    """Two grids of 320 launches are 16 per layer and step."""
    rows = [("one", "attention", 320, 0.3), ("one", "attention", 320, 0.3), ("rest", "dense_gemm", 40, 0.4)]
    assert profile(*rows, **AT_16).value("kernels_grow_with_requests") == 1.0


# Another run.


def baseline(step_s=0.0125, base_s=0.010, here=None, there=None, lives=(0,), **columns):
    """N = 8 a step of 8 ms in both; N = 16 with intervals of 1 %."""
    ours = levels_table([8, 16], [0.008, step_s], step_s_lo=[0.0079, 0.99 * step_s],
                        step_s_hi=[0.0081, 1.01 * step_s], **columns)
    theirs = levels_table([8, 16], [0.008, base_s], step_s_lo=[0.0079, 0.99 * base_s],
                          step_s_hi=[0.0081, 1.01 * base_s])
    tables = [None if item is None else telemetry(device(**item)) for item in (here, there)]
    return Observations(of_machine.of_baseline(ours, theirs, *tables, list(lives)))


def test_the_step_against_the_baseline():
    assert one(baseline(), "step_over_baseline", "baseline") == (
        pytest.approx(1.25), "at N=16 the step is 1.25 times that of the baseline")
    assert len(baseline()) == 1
    assert len(baseline(here=clocks(300, 1.5e9))) == len(baseline(there=clocks(300, 1.5e9))) == 1  # both must be given
    odd = levels_table([16, 32], [0.010, nan], population=[1, 0])  # another population; no step
    assert not list(of_machine.of_baseline(levels_table([16, 32], [0.01, 0.01]), odd, None, None, [0]))
    for columns in ({"lives": [1]}, {"population": 1}):
        assert not len(baseline(**columns))
    other = levels_table([32], [0.010])
    assert not list(of_machine.of_baseline(levels_table([16], [0.01]), other, None, None, [0]))


def clocks(limit, clock):
    return {"power_limit_w": float(limit), "sm_clock_hz": clock, "busy_frac": 1.0}


@pytest.mark.parametrize(("limit", "ratio", "is_seen"), [
    (269, 1.0, True), (271, 1.0, False), (269, 1.029, True), (269, 1.031, False), (269, 0.98, True)])
def test_the_same_speed_at_another_limit(limit, ratio, is_seen):
    """10 % of 300 W are another limit, 270 W; 3 % are the same speed."""
    found = baseline(0.010 * ratio, here=clocks(limit, 2e9), there=clocks(300, 2e9))
    assert bool(found.named("same_speed_at_other_limit")) is is_seen
    if is_seen:
        assert one(found, "same_speed_at_other_limit", "baseline")[1].endswith(
            f"with a power limit of {limit} W here and 300 W there: lifting the limit releases nothing")


@pytest.mark.parametrize(("ratio", "clock", "is_seen"), [
    (1.25, 1.9e9, True), (1.25, 1.91e9, False), (1.031, 1.6e9, True), (1.029, 1.6e9, False), (0.9, 1.6e9, False)])
def test_slower_at_a_lower_clock(ratio, clock, is_seen):
    """5 % of the clock, 3 % of the step, and intervals apart."""
    found = baseline(0.010 * ratio, here=clocks(300, clock), there=clocks(300, 2e9))
    assert found.value("clock_below_baseline_frac") == pytest.approx(1 - clock / 2e9)
    assert bool(found.named("slower_than_baseline_at_lower_clock")) is is_seen
    if is_seen:
        assert one(found, "slower_than_baseline_at_lower_clock", "baseline")[1].endswith(
            f"at a clock {1 - clock / 2e9:.0%} lower")


def test_a_limit_beside_a_lower_clock_is_said():
    found = baseline(here=clocks(200, 1.6e9), there=clocks(300, 2e9))
    assert one(found, "slower_than_baseline_at_lower_clock", "baseline")[1] == (
        "at N=16 the step is 1.25 times that of the baseline, at a clock 20% lower, with a power limit of 200 W here "
        "and 300 W there")
    assert one(found, "clock_below_baseline_frac", "baseline")[1] == "the clock stands 20% below the baseline's"


@pytest.mark.parametrize(("ratio", "is_slower"), [(1.04, False), (1.14, False), (1.16, True)])
def test_steps_whose_intervals_meet_are_slower_only_beyond_scatter(ratio, is_slower):
    """Intervals of 20 % meet at all of them; 15 % are no scatter of levels."""
    ours = levels_table([16], [0.010 * ratio], step_s_lo=[0.008 * ratio], step_s_hi=[0.012 * ratio])
    theirs = levels_table([16], [0.0100], step_s_lo=[0.0098], step_s_hi=[0.0102])
    tables = [telemetry(device(**clocks(300, hz))) for hz in (1.6e9, 2e9)]
    found = Observations(of_machine.of_baseline(ours, theirs, *tables, [0]))
    assert bool(found.named("slower_than_baseline_at_lower_clock")) is is_slower and found.named("step_over_baseline")


def test_an_idle_board_has_no_clock_of_the_baseline():
    """The second board of the baseline idles at 0.3 GHz."""
    idle = device("1", n=9, power_limit_w=300.0, sm_clock_hz=3e8, busy_frac=0.0)
    there = telemetry(device("0", **clocks(300, 2e9)), idle)
    levels = levels_table([16], [0.01])
    found = Observations(of_machine.of_baseline(levels, levels, telemetry(device(**clocks(300, 2e9))), there, [0]))
    assert found.value("clock_below_baseline_frac") == pytest.approx(0.0)


@pytest.mark.parametrize("columns", [{"busy_frac": 1.0}, {"power_limit_w": 300.0}, {"sm_clock_hz": 2e9}])
def test_what_telemetry_does_not_hold_says_nothing_beside_a_baseline(columns):
    names = {item.name for item in baseline(here=columns, there=columns)}
    assert names == {"step_over_baseline"} | ({"clock_below_baseline_frac"} if "sm_clock_hz" in columns else set())
    halves = baseline(here=columns, there={"busy_frac": 1.0})
    assert {item.name for item in halves} == {"step_over_baseline"}


# Links and what is told.


def test_links():
    printed = Observations(of_machine.of_links(False, ["GPU0 runs at Gen1 of Gen4"], "topo.txt", is_printed=True))
    assert one(printed, "has_no_nvlink", "links") == (1.0, "the ranks are joined by PCIe, not NVLink")
    assert one(printed, "link_is_reduced", "links") == (1.0, "GPU0 runs at Gen1 of Gen4")
    told = Observations(of_machine.of_links(True, [], "catalogue", is_printed=False))
    assert one(told, "has_no_nvlink", "told") == (0.0, "the ranks are joined by NVLink")
    assert not list(of_machine.of_links(None, [], "topo.txt", is_printed=True))


@pytest.mark.parametrize(("facts", "ranks"), [
    ({"tp": 1}, 1), ({"tp": 2, "pp": 4}, 8), ({"tp": None, "pp": 2}, 2), ({"tp": 4, "dp": 8, "dp_attention": True}, 8),
    ({"tp": 4, "dp": 8}, 4)])
def test_how_many_ranks_share_a_step(facts, ranks):
    says = "one rank has no other to wait for" if ranks == 1 else f"{ranks} ranks share a step"
    assert one(Observations(of_machine.of_facts(facts)), "n_ranks", "told") == (ranks, says)


def test_what_the_arguments_say():
    assert not list(of_machine.of_facts({}))
    for facts in ({"disable_overlap_schedule": True}, {"enable_overlap_schedule": False}):
        assert Observations(of_machine.of_facts(facts)).value("overlap_is_off") == 1.0
    assert not list(of_machine.of_facts({"disable_overlap_schedule": False, "enable_overlap_schedule": True}))


def test_what_the_clients_want_of_the_pool():
    """64 requests of 1000 + 1000 tokens in a pool of 100,000: 1.28."""
    facts = {"client_concurrency": 64, "prompt_tokens": 1000, "output_tokens": 1000, "kv_pool_tokens": 100_000}
    value, says = one(Observations(of_machine.of_facts(facts)), "demand_over_pool", "told")
    assert value == pytest.approx(1.28) and says == "64 requests of 2000 tok want 1.28 times the KV pool"
    for missing in ("client_concurrency", "kv_pool_tokens"):
        assert not list(of_machine.of_facts({**facts, missing: None}))
    assert not list(of_machine.of_facts({**facts, "prompt_tokens": None, "output_tokens": None}))


def test_other_tables_are_refused():
    with pytest.raises(schema.SchemaError):
        list(of_machine.of_telemetry(telemetry(device()).drop(columns="power_w"), {}))
    with pytest.raises(schema.SchemaError):
        list(of_machine.of_profile(kernels(*ROLES).drop(columns="role"), **KNOWN))
