"""Link state: told from real prints, judged only under load (field case B: first generation at idle is no fault)."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from helpers.evidence.links.prints import Print
from helpers.evidence.links.state import judge_links, link_rows, link_states_of_telemetry, told_load
from helpers.evidence.links.topology import read_topology
from helpers.schema import LINKS, TELEMETRY, check, conform


def _query(**changes):
    """One device of `nvidia-smi -q` as drivers since 555 lay it out; values as given."""
    said = {"gen_max": "5", "gen": "5", "device_max": "5", "host_max": "5", "width_max": "16x", "width": "16x",
            "tx": "558 KB/s", "state": "P0", "idle": "Not Active", "cap": "Not Active", "busy": "0 %",
            "power": "72.02 W", "limit": "700.00 W", "default": "700.00 W", **changes}
    return f"""
==============NVSMI LOG==============

Timestamp                                 : Thu Jan 29 01:39:30 2026
GPU 00000000:19:00.0
    Product Name                          : NVIDIA H100 80GB HBM3
    MIG Mode
        Current                           : Disabled
    PCI
        Bus                               : 0x19
        GPU Link Info
            PCIe Generation
                Max                       : {said['gen_max']}
                Current                   : {said['gen']}
                Device Current            : {said['gen']}
                Device Max                : {said['device_max']}
                Host Max                  : {said['host_max']}
            Link Width
                Max                       : {said['width_max']}
                Current                   : {said['width']}
        Tx Throughput                     : {said['tx']}
        Rx Throughput                     : 441 KB/s
    Performance State                     : {said['state']}
    Clocks Event Reasons
        Idle                              : {said['idle']}
        SW Power Cap                      : {said['cap']}
        HW Slowdown                       : Not Active
            HW Thermal Slowdown           : Not Active
    Utilization
        GPU                               : {said['busy']}
        Memory                            : 0 %
    GPU Power Readings
        Average Power Draw                : {said['power']}
        Current Power Limit               : {said['limit']}
        Default Power Limit               : {said['default']}
    Module Power Readings
        Power Draw                        : N/A
    Clocks
        SM                                : 345 MHz
    Max Clocks
        SM                                : 1980 MHz
"""


def _read(tmp_path, text):
    path = tmp_path / "state.txt"
    path.write_text(text, encoding="utf-8")
    return read_topology(path)


def test_real_query_is_at_full_speed_but_does_not_tell_load(shared):
    found = read_topology(shared / "logs" / "magik6k" / "nvidia-smi-full.txt")
    row = found.links.iloc[0]
    # Read by eye: generation 5 of 5, 16 of 16 lanes; the print ends before utilisation and power.
    assert (row.link_gen, row.link_gen_max, row.link_width, row.link_width_max) == (5, 5, 16, 16)
    assert pd.isna(row.is_under_load) and "PCIe traffic 1 MB/s" in row.why  # 558 + 441 KB/s
    assert found.tally.lines_total == 100 and found.tally.lines["malformed"] == 0
    assert [(f.kind, f.is_proven) for f in judge_links(found.links)] == [("link_full", True)]


def test_idle_first_generation_is_no_fault(tmp_path):
    found = _read(tmp_path, _query(gen="1", state="P8", idle="Active", busy="0 %", power="18.00 W"))
    check(found.links, LINKS)
    row = found.links.iloc[0]
    assert (row.link_gen, row.link_gen_max, row.is_under_load) == (1, 5, False) and "P8" in row.why
    (judged,) = judge_links(found.links)
    assert judged.kind == "link_idle" and not judged.is_proven and "power state" in judged.statement


def test_first_generation_under_load_is_proven(tmp_path):
    found = _read(tmp_path, _query(gen="1", busy="99 %", power="250.00 W"))
    (judged,) = judge_links(found.links)
    assert judged.kind == "link_reduced" and judged.is_proven
    assert "generation 1 of 5 under load" in judged.statement and "utilisation 99%" in judged.statement


def test_fewer_lanes_under_load_is_proven(tmp_path):
    found = _read(tmp_path, _query(width="4x", busy="100 %"))
    (judged,) = judge_links(found.links)
    assert judged.kind == "link_reduced" and "4 of 16 lanes" in judged.statement


def test_a_slow_host_is_no_reduced_link(tmp_path):
    # A device of generation 5 in a slot of generation 4 runs at 4: all that both can do.
    found = _read(tmp_path, _query(gen="4", gen_max="4", device_max="5", host_max="4", busy="99 %"))
    assert found.links["link_gen_max"].iloc[0] == 4
    assert judge_links(found.links)[0].kind == "link_full"


def test_old_driver_names(tmp_path):
    old = _query(busy="95 %", power="650.00 W", cap="Active").replace("Clocks Event Reasons", "Clocks Throttle Reasons")
    old = old.replace("GPU Power Readings", "Power Readings").replace("Average Power Draw ", "Power Draw ")
    old = old.replace("Current Power Limit", "Power Limit").replace("        GPU    ", "        Gpu    ")
    old = "\n".join(line for line in old.splitlines() if "Device " not in line and "Host Max" not in line)
    found = _read(tmp_path, old)
    row = found.links.iloc[0]
    assert (row.link_gen, row.link_gen_max, row.is_under_load) == (5, 5, True)
    assert "utilisation 95%, 650 of 700 W" in row.why
    assert found.notes == (
        "00000000:19:00.0 (NVIDIA H100 80GB HBM3): power limit 700 W; clocks held down by SW Power Cap",)


def test_lowered_limit_and_reasons_are_said(tmp_path):
    found = _read(tmp_path, _query(busy="99 %", power="250.00 W", limit="250.00 W", default="370.00 W", cap="Active"))
    assert found.notes == ("00000000:19:00.0 (NVIDIA H100 80GB HBM3): power limit 250 W, set below the default of "
                           "370 W; clocks held down by SW Power Cap",)


def test_a_value_that_is_no_generation_is_malformed(tmp_path):
    text = _query(gen="five")
    found = _read(tmp_path, text)
    assert found.tally.lines["malformed"] == 2 and "'five'" in found.tally.malformed[0][2]
    assert found.tally.lines_total == len(text.splitlines())
    assert found.links["link_gen"].isna().all() and judge_links(found.links)[0].kind == "link_unknown"


@pytest.mark.parametrize(
    ("values", "reasons", "expected", "word"),
    [
        # idle boards in P0: H100 at 72 of 700 W = 0.10; a loaded model that serves nothing: 118 of 700 W = 0.17
        ({"state": "P0", "busy": "0 %", "power": "72.02 W", "power_limit": "700.00 W"}, {}, False, "idle"),
        ({"state": "P0", "busy": "0 %", "power": "118 W", "power_limit": "700 W"}, {}, False, "idle"),
        ({"state": "P0", "busy": "99 %"}, {}, True, "utilisation 99%"),
        ({"state": "P2", "busy": "98 %", "power": "250 W", "power_limit": "350 W"}, {}, True, "250 of 350 W"),
        ({"state": "P0", "power": "250 W", "power_limit": "300 W"}, {}, True, "250 of 300 W"),
        ({"state": "P0", "tx": "3 GB/s"}, {}, True, "3000 MB/s"),
        ({"state": "P0", "tx": "464 KB/s"}, {}, None, "nothing tells"),
        ({"state": "P8", "busy": "40 %"}, {}, False, "P8"),
        ({"state": "P0", "busy": "100 %"}, {"Idle": True}, False, "Idle"),
        ({}, {}, None, "nothing tells"),
    ],
)  # fmt: skip
def test_what_tells_load(values, reasons, expected, word):
    told, why = told_load(Print("nvidia-smi -q", "0", 1, values=dict(values), reasons=reasons))
    assert told is expected and word in why


BRIDGED = """\
00:01.0 PCI bridge: Intel Corporation Root Port (rev 01) (prog-if 00 [Normal decode])
\tBus: primary=00, secondary=01, subordinate=03, sec-latency=0
\t\tLnkCap:\tPort #2, Speed 32GT/s, Width x16, ASPM L1, Exit Latency L1 <16us
\t\tLnkSta:\tSpeed 8GT/s (downgraded), Width x16 (ok)
01:00.0 PCI bridge: Broadcom Switch
\tBus: primary=01, secondary=02, subordinate=03, sec-latency=0
\t\tLnkCap:\tPort #0, Speed 16GT/s, Width x16, ASPM L1
\t\tLnkSta:\tSpeed 16GT/s, Width x16
02:00.0 3D controller: NVIDIA Corporation GA102 [RTX A6000] (rev a1)
\t\tLnkCap:\tPort #0, Speed 32GT/s, Width x16, ASPM L0s L1
\t\tLnkSta:\tSpeed 16GT/s (ok), Width x16 (ok)
05:00.0 Non-Volatile memory controller: Samsung SSD
\t\tLnkCap:\tPort #0, Speed 16GT/s, Width x4, ASPM L1
\t\tLnkSta:\tSpeed 8GT/s (downgraded), Width x4
"""


def test_lspci_names_the_ports_on_the_way_and_never_proves_load(tmp_path):
    found = _read(tmp_path, BRIDGED)
    assert list(found.links["device"]) == ["02:00.0", "01:00.0", "00:01.0"]
    # The device can do 32 GT/s, its port only 16: generation 4 is all that both can do.
    assert list(found.links["link_gen"]) == [4, 4, 3] and list(found.links["link_gen_max"]) == [4, 4, 5]
    assert found.links["is_under_load"].isna().all() and found.devices == ("02:00.0",)
    assert [(f.kind, f.is_proven) for f in judge_links(found.links)] == [
        ("link_full", True), ("link_full", True), ("link_unknown", False)]
    assert found.tally.lines_total == 14


def test_lspci_without_rights_says_so(tmp_path):
    found = _read(tmp_path, "02:00.0 3D controller: NVIDIA Corporation\n\tCapabilities: <access denied>\n")
    assert found.links.empty and found.notes == ("lspci was not allowed to read link states: run it as root",)


def _telemetry(**columns):
    n = max(len(values) for values in columns.values())
    return conform(pd.DataFrame({"file": "gpu.csv", "line_no": np.arange(2, n + 2), **columns}), TELEMETRY)


def test_telemetry_is_judged_by_its_samples_under_load():
    # Six idle samples at generation 1, then four under load: 1 (link still waking), 4, 4, 4.
    table = _telemetry(device=["0"] * 10, link_gen=[1] * 6 + [1, 4, 4, 4], link_gen_max=[4] * 10, link_width=[16] * 10,
                       link_width_max=[16] * 10, busy_frac=[0.0] * 6 + [0.9] * 4)
    states = link_states_of_telemetry(table)
    row = check(states, LINKS).iloc[0]
    assert (row.link_gen, row.is_under_load) == (4, True)
    assert row.why == "under load in 4 of 10 samples by utilisation; 3 of them show this generation"
    assert row.line_no == 8 and judge_links(states)[0].kind == "link_full"


def test_telemetry_all_idle_proves_nothing():
    table = _telemetry(device=["0"] * 3 + ["1"] * 3, link_gen=[1, 1, 1, 1, 1, 1], link_gen_max=[4] * 6,
                       power_w=[18.0] * 3 + [250.0] * 3, power_limit_w=[300.0] * 6)
    states = link_states_of_telemetry(table)
    assert list(states["is_under_load"]) == [False, True]
    idle, loaded = judge_links(states)
    # Lanes are not recorded; a low generation under load is proven without them.
    assert (idle.kind, idle.is_proven, loaded.kind, loaded.is_proven) == ("link_idle", False, "link_reduced", True)


def test_telemetry_without_links_gives_no_rows():
    table = _telemetry(device=["0", "0"], busy_frac=[1.0, 1.0])
    assert link_states_of_telemetry(table).empty


def test_rows_keep_what_is_unknown_missing():
    (row,) = link_rows([Print("nvidia-smi -q", "0", 7, values={"gen": "4"})], "f")
    assert row["link_gen"] == 4 and np.isnan(row["link_gen_max"]) and np.isnan(row["link_width"])
