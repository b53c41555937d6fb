"""Topology: the real matrix and query of one machine, and prints made after the documented layouts.

Layouts: log-formats.md 5.4 and 5.6. Machine prints are rebuilt here from single facts, not copied.
"""

from __future__ import annotations

import pandas as pd
import pytest

from helpers.evidence.links.state import judge_links
from helpers.evidence.links.topology import read_topology
from helpers.schema import LINKS, LogFormatError, check

NVLINK = (
    "\t\x1b[4mGPU0\tGPU1\tGPU2\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n"
    "GPU0\t X \tNV18\tNV18\tPIX\t\t0\t\tN/A\n"
    "GPU1\tNV18\t X \tNV18\tNODE\t0-31\t0\t\tN/A\n"
    "GPU2\tNV18\tNV18\t X \tSYS\t32-63\t1\t\tN/A\n"
    "NIC0\tPIX\tNODE\tSYS\t X \t\t\t\t\n"
    "\n"
    "Legend:\n\n"
    "  X    = Self\n"
    "  NV#  = Connection traversing a bonded set of # NVLinks\n"
    "\nNIC Legend:\n\n"
    "  NIC0: mlx5_0\n"
)


def _write(tmp_path, text, name="topology.txt"):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def _kinds(links):
    return {(row.device, row.peer): row.kind for row in links.itertuples()}


def test_real_matrix_without_nvlink(shared):
    found = read_topology(shared / "logs" / "magik6k" / "gpu-topology.txt")
    check(found.links, LINKS)
    assert found.devices == tuple(f"GPU{i}" for i in range(8))
    # 8 devices: 28 pairs; two sockets of four: 2 x (4 x 3 / 2) = 12 within, 4 x 4 = 16 across.
    assert found.links["kind"].value_counts().to_dict() == {"SYS": 16, "NODE": 12}
    assert _kinds(found.links)[("GPU0", "GPU3")] == "NODE" and _kinds(found.links)[("GPU3", "GPU4")] == "SYS"
    # 19 lines by eye: one header, eight rows, blank lines and legend.
    assert dict(found.tally.lines) == {"header": 1, "row": 8, "other": 10}
    none, crossing = judge_links(found.links)
    assert (none.kind, none.is_proven) == ("no_nvlink", True) and "NODE 12, SYS 16" in none.statement
    assert crossing.kind == "crosses_sockets" and crossing.statement.startswith("16 of the 28 pairs")


def test_matrix_with_nvlink_network_cards_and_empty_affinity(tmp_path):
    found = read_topology(_write(tmp_path, NVLINK))
    assert found.devices == ("GPU0", "GPU1", "GPU2")
    assert _kinds(found.links) == {
        ("GPU0", "GPU1"): "NV18", ("GPU0", "GPU2"): "NV18", ("GPU0", "NIC0"): "PIX", ("GPU1", "GPU2"): "NV18",
        ("GPU1", "NIC0"): "NODE", ("GPU2", "NIC0"): "SYS",
    }
    assert found.notes == ("network cards: NIC0 is mlx5_0",)
    assert found.tally.lines_total == len(NVLINK.splitlines()) == sum(found.tally.lines.values())
    # A network card across the sockets is no pair of devices.
    assert [(f.kind, f.is_proven) for f in judge_links(found.links)] == [("all_nvlink", True)]


def test_matrix_pasted_with_blanks_and_some_nvlink(tmp_path):
    text = ("        GPU0    GPU1    GPU2    CPU Affinity    NUMA Affinity\n"
            "GPU0     X      NV4     SYS     0-11    0\n"
            "GPU1    NV4      X      SOC     0-11    0\n"
            "GPU2    SYS     SOC      X      12-23   1\n")
    found = read_topology(_write(tmp_path, text))
    assert _kinds(found.links) == {("GPU0", "GPU1"): "NV4", ("GPU0", "GPU2"): "SYS", ("GPU1", "GPU2"): "SYS"}
    assert [f.statement.split(" of devices")[0] for f in judge_links(found.links)] == [
        "NVLink joins 1 of the 3 pairs", "2 of the 3 pairs"]


def test_one_device_has_no_pair(tmp_path):
    found = read_topology(_write(tmp_path, "\tGPU0\tCPU Affinity\tNUMA Affinity\nGPU0\t X \t0-7\t0\n"))
    assert found.devices == ("GPU0",) and found.links.empty and judge_links(found.links) == []
    assert found.notes == ("one device: there is no pair to connect",)


def test_broken_rows_are_counted_and_the_others_kept(tmp_path):
    glued = NVLINK.replace("GPU1\tNV18\t X \tNV18\tNODE", "GPU1\tNV18\t X \tNV18NODE")
    found = read_topology(_write(tmp_path, glued))
    assert found.tally.lines["malformed"] == 1 and found.tally.lines_total == len(glued.splitlines())
    assert found.tally.malformed[0][0] == 3 and "'NV18NODE'" in found.tally.malformed[0][2]
    # GPU1's pairs are still told by the rows of the others.
    assert _kinds(found.links)[("GPU0", "GPU1")] == "NV18" and _kinds(found.links)[("GPU1", "GPU2")] == "NV18"
    assert "line 3" in found.notes[-1]


def test_a_cut_row_is_malformed(tmp_path):
    cut = NVLINK.split("GPU2\tNV18")[0] + "GPU2\tNV18\n"
    found = read_topology(_write(tmp_path, cut))
    assert found.tally.malformed == [(4, "GPU2\tNV18", "expected 4 cells, found 1")]
    assert len(found.links) == 5  # rows of GPU0 and GPU1 name all pairs but GPU2 with the network card


def test_two_halves_that_disagree_are_said(tmp_path):
    found = read_topology(_write(tmp_path, NVLINK.replace("GPU2\tNV18\tNV18", "GPU2\tSYS\tNV18")))
    assert _kinds(found.links)[("GPU0", "GPU2")] == "NV18"
    assert found.notes[0] == "GPU0 and GPU2: NV18 in line 2, SYS in line 4; the first is used"


def test_peer_access_is_no_topology(tmp_path):
    text = "\tGPU0\tGPU1\t\nGPU0\tX\tGNS\t\nGPU1\tGNS\tX\t\n\nLegend:\n\n  X    = Self\n"
    found = read_topology(_write(tmp_path, text))
    assert found.links.empty and found.notes == ("peer access (topo -p2p): GNS for 1 of 1 pairs",)


def test_several_prints_in_one_file(tmp_path):
    query = ("==============NVSMI LOG==============\n\nTimestamp                   : Thu Jan 29 01:39:30 2026\n"
             "GPU 00000000:01:00.0\n    PCI\n        GPU Link Info\n            PCIe Generation\n"
             "                Max                       : 5\n                Current                   : 1\n"
             "    Performance State                     : P8\n")
    lspci = ("01:00.0 3D controller: NVIDIA Corporation Device 2bb5 (rev a1)\n"
             "\tCapabilities: [78] Express (v2) Endpoint, MSI 00\n"
             "\t\tLnkCap:\tPort #0, Speed 32GT/s, Width x16, ASPM L1, Exit Latency L1 <4us\n"
             "\t\tLnkSta:\tSpeed 2.5GT/s (downgraded), Width x16\n")
    text = NVLINK + query + lspci
    found = read_topology(_write(tmp_path, text))
    states = found.links[found.links["peer"].isna()]
    assert list(states["device"]) == ["00000000:01:00.0", "01:00.0"]
    assert list(states["link_gen"]) == [1, 1] and list(states["link_gen_max"]) == [5, 5]
    assert found.devices == ("GPU0", "GPU1", "GPU2", "00000000:01:00.0", "01:00.0")
    assert found.tally.lines_total == len(text.splitlines()) and found.tally.lines["malformed"] == 0
    # Line numbers are those of the whole file: the row points at the first link value.
    assert text.splitlines()[states["line_no"].iloc[0] - 1].split() == ["Max", ":", "5"]


def test_packed_file_reads_the_same(tmp_path):
    import gzip
    path = tmp_path / "t.gz"
    path.write_bytes(gzip.compress(NVLINK.encode()))
    plain = read_topology(_write(tmp_path, NVLINK)).links.drop(columns="file")
    pd.testing.assert_frame_equal(read_topology(path).links.drop(columns="file"), plain)


def test_another_file_is_refused_in_one_line(tmp_path):
    path = _write(tmp_path, "INFO 07-10 12:00:00 hello\nGPU blocks: 1234\n")
    with pytest.raises(LogFormatError, match=r"expected the output of `nvidia-smi topo -m`.*found none.*in 2 lines"):
        read_topology(path)
