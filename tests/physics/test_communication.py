"""All-reduce, all-gather and expert exchange against measurements, closed forms and their properties."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.physics.catalogue import hardware
from helpers.physics.linking import communication, links
from helpers.physics.linking.communication import (
    Curve,
    all_reduce_message_bytes,
    find_table,
    logits_message_bytes,
    one_shot_s,
    ring_s,
    tree_s,
    two_shot_s,
)
from helpers.schema import LogFormatError, RooflogError

RTX = "RTX PRO 6000 Blackwell Server"
KIB = 1024
MEASURED = {  # physics reference 1.10: microseconds of a small message, 128 KiB, 512 KiB; then GB/s of a large one
    (RTX, 2): (4.5, 7.9, 17.3, 37.5), (RTX, 4): (13.5, 25.3, 76.3, 28.9), (RTX, 8): (25.6, 49.1, 156.6, 23.5),
    ("L40S", 2): (5.6, 11.1, 32, 19.0), ("L40S", 4): (14.5, 66, 232, 3.7), ("L40S", 8): (27.6, 137, 500, 1.9),
    ("A100 80GB SXM", 2): (5.1, 6.1, 8.3, 184), ("A100 80GB SXM", 4): (5.2, 7.7, 15.0, 194),
    ("A100 80GB SXM", 8): (5.8, 11.3, 19.9, 200),
    ("H200 SXM 141GB", 2): (2.5, 3.1, 4.4, 296), ("H200 SXM 141GB", 4): (2.8, 4.3, 7.0, 319),
    ("H200 SXM 141GB", 8): (3.5, 6.7, 14.9, 393),
}

sizes = st.lists(st.floats(0, 1e10), min_size=2, max_size=8).map(sorted)
names = st.sampled_from([name for name in hardware.catalogue()["name"] if not name.startswith("Apple")])
ranks = st.integers(2, 96)


def times(name: str, tp: int, *args: object, **options: object) -> communication.Communication:
    return find_table(hardware.find(name), tp, *args, **options)  # type: ignore[arg-type]


def us(value: np.ndarray) -> float:
    return float(value) * 1e6


# Closed forms.


def test_closed_forms_by_hand():
    # 4 ranks, 8 MB, 5 us, 100 GB/s: m / beta = 80 us.
    m, alpha, beta = np.array(8e6), 5e-6, 100e9
    assert us(ring_s(4, m, alpha, beta)) == pytest.approx(6 * 5 + 1.5 * 80)
    assert us(one_shot_s(4, m, alpha, beta)) == pytest.approx(5 + 3 * 80)
    assert us(two_shot_s(4, m, alpha, beta)) == pytest.approx(2 * 5 + 1.5 * 80)
    assert us(tree_s(4, m, alpha, beta)) == pytest.approx(4 * 85)
    assert us(tree_s(5, m, alpha, beta)) == pytest.approx(6 * 85)


FORMS = pytest.mark.parametrize("form", [ring_s, one_shot_s, two_shot_s, tree_s])


@FORMS
def test_one_rank_takes_no_time(form):
    assert form(1, np.array([0.0, 1e6]), 5e-6, 1e9).tolist() == [0, 0]


@FORMS
@settings(deadline=None)
@given(p=st.integers(1, 512), m=sizes, alpha=st.floats(0, 1e-3), beta=st.floats(1e8, 1e13))
def test_forms_are_monotone_and_never_negative(form, p, m, alpha, beta):
    t = form(p, np.array(m), alpha, beta)
    assert (t >= 0).all()
    assert (np.diff(t) >= 0).all()
    latency = [float(form(n, np.array(0.0), alpha, beta)) for n in range(1, p + 1)]
    assert (np.diff(latency) >= 0).all()


@settings(deadline=None)
@given(p=ranks, m=st.floats(1, 1e10), alpha=st.floats(0, 1e-3), beta=st.floats(1e8, 1e13))
def test_ring_and_two_shot_move_the_same_bytes(p, m, alpha, beta):
    # The lower bound of an all-reduce: 2 (p-1)/p of the message leaves every rank.
    ring, two = (float(form(p, np.array(m), alpha, beta)) for form in (ring_s, two_shot_s))
    assert ring - 2 * (p - 1) * alpha == pytest.approx(two - 2 * alpha, rel=1e-6, abs=1e-12)


def test_message_sizes_are_exact():
    # DeepSeek-V4-Flash, hidden 4096: 8 KiB for one token, 512 KiB for 64 tokens, BF16.
    assert all_reduce_message_bytes(np.array([1, 64]), 4096).tolist() == [8192, 524288]
    assert float(logits_message_bytes(np.array(64), 129280, 4)) == 64 * 129280 / 4 * 2


# The measured curves.


@pytest.mark.parametrize(("name", "tp"), MEASURED)
def test_measured_systems_give_the_measured_times(name, tp):
    small, at_128k, at_512k, bus_gb = MEASURED[name, tp]
    table = times(name, tp)
    assert table.is_measured
    assert table.warnings == ()
    assert us(table.all_reduce_s(np.array(1024))) == pytest.approx(small, rel=0.02)
    assert us(table.all_reduce_s(np.array(128 * KIB))) == pytest.approx(at_128k, rel=0.02)
    assert us(table.all_reduce_s(np.array(512 * KIB))) == pytest.approx(at_512k, rel=0.02)
    # Bus bandwidth 2 (p-1)/p m / t; the reference's is a summary over large sizes, which it does not name.
    large = np.array(128.0 * 2**20)
    assert 2 * (tp - 1) / tp * large / table.all_reduce_s(large) / 1e9 == pytest.approx(bus_gb, rel=0.12)


def test_all_reduces_of_a_step_on_four_pcie_boards(shared):
    # Field case A: 86 all-reduces of 8192 bytes per token, from the full tables of the collector.
    steps = json.loads((shared / "reference" / "dsv4_bottomup.json").read_text())
    table = times(RTX, 4)
    assert [step["N"] for step in steps] == [1, 8, 16, 64]
    for step in steps:
        size = all_reduce_message_bytes(np.array(step["N"]), 4096)
        assert 86 * float(table.all_reduce_s(size)) * 1e3 == pytest.approx(step["ar"], rel=0.01)


def test_field_case_step_is_memory_over_082_plus_all_reduce(shared):
    fields = json.loads((shared / "reference" / "field_values.json").read_text())
    ideal = {n: fields[f"dsv4.step_ideal_ms.N{n}"]["value"] for n in (1, 16, 64)}
    for n, ideal_ms in ideal.items():
        reduce_ms = 86e3 * float(times(RTX, 4).all_reduce_s(all_reduce_message_bytes(np.array(n), 4096)))
        assert ideal_ms / 0.82 + reduce_ms == pytest.approx(fields[f"dsv4.step_real_ms.N{n}"]["value"], rel=0.03)


def test_summaries_agree_with_the_calibration(shared):
    calibration = json.loads((shared / "reference" / "calibration.json").read_text())["allreduce"]
    for system, name in (("rtx_pro_6000_server", RTX), ("l40s", "L40S"), ("h100_sxm", "H100 SXM 80GB")):
        for tp in (2, 4, 8):
            for mode in ("graph", "eager"):
                known = calibration[f"{system}_comm_sglang_0.5.14_custom_allreduce|sglang_{mode}|{tp}"]
                table = times(name, tp, graph=mode == "graph")
                assert us(table.all_reduce_s(np.array(256))) == pytest.approx(known["alpha_us_small"], rel=0.01)
                if mode == "graph":
                    for size in (131072, 524288):
                        assert us(table.all_reduce_s(np.array(size))) == pytest.approx(known[f"t{size}_us"], rel=0.01)


def test_curve_between_below_and_beyond_its_points():
    curve = Curve((1000.0, 2000.0, 4000.0), (1e-6, 2e-6, 6e-6))
    assert curve.at(np.array([0, 500, 1000, 1500, 3000, 5000])) * 1e6 == pytest.approx([1, 1, 1, 1.5, 4, 8])
    assert curve.not_below(3e-6).at(np.array([0, 2000, 3000, 5000])) * 1e6 == pytest.approx([3, 3, 4, 8])
    assert curve.scaled(2, 3).at(np.array([0, 2000, 4000])) * 1e6 == pytest.approx([2, 5, 17])
    with pytest.raises(RooflogError, match="expected bytes >= 0, found -1"):
        curve.at(np.array([1, -1]))


def test_a_time_that_falls_with_the_size_is_raised():
    # NCCL on eight H200 takes 21.4 us for 128 KiB and 20.5 us for 512 KiB.
    at_both = times("H200 SXM 141GB", 8, kernel="nccl").all_reduce_s(np.array([128.0, 512.0]) * KIB)
    assert at_both * 1e6 == pytest.approx([21.4, 21.4], rel=0.01)


def test_gather_takes_the_latency_and_half_of_the_transfer():
    # NCCL on 4 boards: an all-reduce of 512 KiB takes 78.1 us, of a small message 13.45; each rank gives a quarter.
    assert us(times(RTX, 4).all_gather_s(np.array(128 * KIB))) == pytest.approx((13.45 + 78.1) / 2, rel=1e-3)
    # NCCL's own all-gather of 32 MiB, same source: 1095 us.
    assert us(times(RTX, 4).all_gather_s(np.array(8.0 * 2**20))) == pytest.approx(1095, rel=0.1)


def test_exchange_reproduces_deepep():
    # H200, one node of 8, hidden 7168, 8 of 256 experts: 11.9 us + 0.20 us/token, 12.6 us + 0.46 us/token.
    tokens = np.array([1.0, 16.0, 128.0])
    assert times("H200 SXM 141GB", 8).all_to_all_s(tokens, 7168, 8, 8) * 1e6 == pytest.approx(24.5 + 0.66 * tokens)
    # Another shape of the same source, hidden 2048, 8 of 128, 1024 tokens: 73.5 + 147.3 us.
    assert us(times("H200 SXM 141GB", 8).all_to_all_s(np.array(1024), 2048, 8, 8)) == pytest.approx(220.8, rel=0.1)


def test_exchange_over_pcie_reproduces_nccl():
    # NCCL all-to-all on 4 boards: 8.7 us for 8 KB, 31 us for 512 KB. hidden 128, 31 experts: dispatch min(31, 4).
    got = us(times(RTX, 4).all_to_all_s(np.array(64.0), 128, 32, 4))
    assert got == pytest.approx(8.7 + (31.5 - 16.1) * 64 * 128 * (4 * 1.03125 - 1) / (384 * KIB) + 31.5, rel=0.15)


def test_exchange_of_one_rank_and_without_a_link():
    apple = find_table(hardware.find("Apple M1 Max"), 1)
    assert apple.all_to_all_s(np.array([1.0, 5.0]), 7168, 8, 1).tolist() == [0, 0]
    assert apple.exchange_assumption(1) == ""
    with pytest.raises(RooflogError, match="expected a link between ranks, found none"):
        apple.all_to_all_s(np.array(1.0), 7168, 8, 2)
    assert times(RTX, 4).exchange_assumption(1) == ""
    said = times("RTX A6000", 2).exchange_assumption(4)
    assert said == "expert exchange over pcie4: nccl as measured on L40S"


def test_exchange_scales_with_the_link_and_with_what_leaves():
    def transfer_s(name: str, ep: int) -> float:
        sent_tok = np.array([0.0, 1e5])
        return float(np.diff(times(name, 2).all_to_all_s(sent_tok, 4096, 2, ep))[0])

    assert transfer_s("Tesla T4", 4) / transfer_s("L40S", 4) == pytest.approx(2)  # PCIe 3 against 4
    assert transfer_s(RTX, 16) / transfer_s(RTX, 8) == pytest.approx((15 / 16) / (7 / 8))
    assert "transfer times x 2 " in times("Tesla T4", 2).exchange_assumption(4)


def test_eager_launches_are_a_floor_and_nccl_is_slower_when_small():
    small, large = np.array(8192), np.array(64.0 * 2**20)
    graph, eager, nccl = (times("H200 SXM 141GB", 8, **o) for o in ({}, {"graph": False}, {"kernel": "nccl"}))
    assert us(eager.all_reduce_s(small)) == pytest.approx(28.95)
    assert eager.all_reduce_s(large) == graph.all_reduce_s(large)
    assert us(nccl.all_reduce_s(np.array(0))) == pytest.approx(16.4, rel=0.01)


# Which measurement stands for which accelerator.


@pytest.mark.parametrize(
    ("name", "tp", "interconnect", "kind", "system"),
    [
        ("RTX A6000", 2, None, "pcie4", "L40S"),
        ("RTX A6000", 2, "nvlink", "nvlink bridge", "A100 80GB SXM"),
        ("RTX A6000", 4, "nvlink", "pcie4", "L40S"),
        ("RTX PRO 6000 Blackwell Workstation", 4, "PCIe Gen4 x16", "pcie4", "L40S"),
        ("RTX PRO 6000 Blackwell Workstation", 4, "none", "pcie5", RTX),
        ("GeForce RTX 4090", 2, "SYS", "pcie4", "L40S"),
        ("Tesla T4", 4, None, "pcie3", "L40S"),
        ("H100 SXM 80GB", 4, "none", "pcie5", RTX),
        ("A100 80GB SXM", 2, "SYS", "pcie4", "L40S"),
        ("B300 SXM (HGX)", 4, "pcie", "pcie6", RTX),
        ("H100 SXM 80GB", 8, "nvswitch", "nvlink4", "H100 SXM 80GB"),
        ("H20", 8, None, "nvlink4", "H200 SXM 141GB"),
        ("H200 NVL 141GB", 4, "NVLink", "nvlink bridge", "A100 80GB SXM"),
        ("A100 40GB SXM", 8, None, "nvlink3", "A100 80GB SXM"),
        ("B300 SXM (HGX)", 8, None, "nvlink5", "B200 SXM (HGX)"),
        ("GB200 (per GPU)", 16, None, "nvl72", "GB300 (per GPU)"),
        ("MI300X", 8, None, "scale-up", "A100 80GB SXM"),
        ("TPU v5p", 4, None, "scale-up", "A100 80GB SXM"),
        ("Apple M1 Max", 2, "pcie4", "pcie4", "L40S"),
    ],
)
def test_nearest_kind_of_link(name, tp, interconnect, kind, system):
    table = times(name, tp, interconnect)
    assert table.link.kind == kind
    assert table.source.startswith(system + ":")
    assert table.is_measured == (name == system)
    if name != system:
        assert any(text.startswith(f"communication of {name} over {kind}: as measured on {system}")
                   for text in table.assumptions)


def test_link_rate_scales_the_transfer_but_not_the_latency():
    # MI300X: 448 GB/s per direction against 300 of the A100, NCCL.
    ours, theirs = times("MI300X", 8), times("A100 80GB SXM", 8, kernel="nccl")
    small, large = np.array(0.0), np.array(2.0**30)
    assert ours.all_reduce_s(small) == theirs.all_reduce_s(small)
    transfer = [table.all_reduce_s(large) - table.all_reduce_s(small) for table in (theirs, ours)]
    assert transfer[0] / transfer[1] == pytest.approx(448 / 300, rel=1e-9)
    assert "transfer times x 0.67 for the link's rate" in " ".join(ours.assumptions)


def test_ranks_that_were_not_measured():
    # PCIe, ring: latency grows with p-1. Between 4 and 8 on the straight line; beyond 8 from 8.
    small = np.array(0.0)
    assert us(times(RTX, 6).all_reduce_s(small)) == pytest.approx((13.53 + 25.63) / 2)
    assert us(times(RTX, 15).all_reduce_s(small)) == pytest.approx(25.63 * 14 / 7)
    # NVSwitch, tree: latency grows with the depth, 4 levels for 16 ranks against 3 for 8.
    sixteen = times("H200 SXM 141GB", 16)
    assert us(sixteen.all_reduce_s(small)) == pytest.approx(3.47 * 4 / 3)
    assert not sixteen.is_measured
    assert any("16 ranks: from 8" in text for text in sixteen.assumptions)
    assert any("network between nodes" in text for text in sixteen.warnings)
    assert times("GB200 (per GPU)", 72).warnings == ()  # one rack


def test_one_rank_is_free_even_without_a_link():
    table = find_table(hardware.find("Apple M1 Max"), 1)
    assert table.all_reduce_s(np.array([0.0, 1e9])).tolist() == [0, 0]
    assert table.all_gather_s(np.array([0.0, 1e9])).tolist() == [0, 0]
    assert (table.is_measured, table.assumptions, table.warnings) == (True, (), ())


def test_unknown_interconnect_is_a_warning():
    table = times(RTX, 4, "carrier pigeon")
    assert table.link.kind == "pcie5"
    assert "interconnect 'carrier pigeon': expected pcie" in table.warnings[0]
    assert "found a bridge of 2" in times("RTX A6000", 4, "nvlink").warnings[0]
    assert "found none in the hardware catalogue; pcie5 is used" in times(RTX, 4, "nvlink").warnings[0]


def test_a_bridge_is_not_assumed_in_silence():
    said = "RTX A6000: no NVLink bridge is fitted (interconnect=nvlink if it is)"
    assert times("RTX A6000", 2).assumptions[0] == said
    assert not any("bridge" in text for text in times("RTX A6000", 2, "pcie").assumptions)


def test_impossible_requests_are_one_clear_line():
    for tp in (0, -2, 1.5):
        with pytest.raises(RooflogError, match="expected tp to be a whole number of ranks from 1"):
            times(RTX, tp)
    with pytest.raises(RooflogError, match="expected custom or nccl, found 'gloo'"):
        times(RTX, 2, kernel="gloo")
    with pytest.raises(RooflogError, match="Apple M1 Max: expected a link between 2 ranks, found none"):
        times("Apple M1 Max", 2)


# Properties that hold for every accelerator.


@settings(deadline=None)
@given(name=names, tp=ranks, m=sizes, graph=st.booleans(), interconnect=st.sampled_from([None, "pcie4", "nvlink"]))
def test_times_grow_with_the_message(name, tp, m, graph, interconnect):
    table = times(name, tp, interconnect, graph)
    for t in (table.all_reduce_s(np.array(m)), table.all_gather_s(np.array(m)),
              table.all_to_all_s(np.array(m), 64, 8, tp)):
        assert (t > 0).all()
        assert (np.diff(t) >= -1e-12 * t[1:]).all()
    assert table.link.kind in communication.LINKS
    assert table.is_measured or table.assumptions  # whatever is not measured is said


@settings(deadline=None)
@given(name=names)
def test_latency_grows_with_ranks(name):
    latency = np.array([us(times(name, tp).all_reduce_s(np.array(0.0))) for tp in range(1, 80)])
    assert (np.diff(latency) >= 0).all()


@settings(deadline=None)
@given(name=names, tp=ranks, m=st.floats(0, 1e10))
def test_eager_is_never_faster(name, tp, m):
    size = np.array(m)
    assert times(name, tp, graph=False).all_reduce_s(size) >= times(name, tp).all_reduce_s(size)


# The table.


def test_table_is_sound():
    rows = communication.measurements()
    assert (rows["time_s"].between(1e-6, 0.2)).all()  # 1 us to 200 ms: a slip of a unit is 1000
    assert rows["source"].str.len().gt(10).all()
    assert not rows.duplicated(["collective", "system", "n_ranks", "kernel", "mode", "message_bytes"]).any()
    catalogue = set(hardware.catalogue()["name"])
    assert set(rows["system"]) <= catalogue
    assert {system for system, _ in communication.LINKS.values()} <= set(rows["system"])
    for name, link in set(zip(rows["system"], rows["link"], strict=True)):
        assert links.choose(hardware.find(name), 2).kind == link


def test_rates_of_pcie_are_those_of_the_catalogue():
    table = hardware.catalogue().dropna(subset=["pcie_bytes_per_s"])
    for generation, rate in zip(table["pcie"].str[:1], table["pcie_bytes_per_s"], strict=True):
        assert links.PCIE_BYTES_PER_S[f"pcie{generation}"] == rate


def test_broken_tables_are_refused(tmp_path, data):
    file = tmp_path / "communication.csv"
    lines = (data / "catalog" / "communication.csv").read_text().splitlines()
    file.write_text("\n".join([lines[0].replace("time_us", "time"), *lines[1:]]))
    with pytest.raises(LogFormatError, match="found none named \\['time_us'\\]"):
        communication.measurements(file)
    file.write_text("\n".join([lines[0], lines[1].rsplit(",", 1)[0] + ","]))
    with pytest.raises(LogFormatError, match="found none of one in line 2"):
        communication.measurements(file)
