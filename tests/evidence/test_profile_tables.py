"""CSV of nsys stats and of ncu, as these tools print it, against sums by hand."""

from __future__ import annotations

import json

import numpy as np
import pytest

from helpers.evidence.profiles import ncu
from helpers.evidence.profiles.read import read_profile, role_shares
from helpers.schema import KERNELS, LogFormatError, check

KERN_SUM = """NOTICE: Existing SQLite export found: run.sqlite
      It is assumed file was previously exported from: run.nsys-rep

Processing [run.sqlite] with [/opt/nsys/reports/cuda_gpu_kern_sum.py]...
Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name
60.0,6000000,300,20000.0,19900.0,18000,30000,100.0,nvjet_tst_64x8_64x16_4x1_v_bz_TNT
30.0,3000000,300,10000.0,9900.0,9000,12000,50.0,"void flashinfer::BatchDecodeWithPagedKVCacheKernel<1, 2>(int, int)"
10.0,1000000,10,100000.0,1.0,90000,110000,5.0,mystery

Processing [run.sqlite] with [/opt/nsys/reports/cuda_api_sum.py]...
Time (%),Total Time (ns),Num Calls,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name
99.0,9000000,40,1.0,1.0,1,2,0.1,cudaGraphLaunch
"""


def write(tmp_path, text: str):
    path = tmp_path / "report.csv"
    path.write_text(text)
    return path


def test_kernel_sums(tmp_path):
    profile = read_profile(write(tmp_path, KERN_SUM))
    check(profile.kernels, KERNELS)
    assert profile.tool == "nsys" and list(profile.kernels["n_calls"]) == [300, 300, 10]
    assert list(profile.kernels["total_s"]) == pytest.approx([6e-3, 3e-3, 1e-3])
    assert list(profile.kernels["max_s"]) == pytest.approx([30e-6, 12e-6, 110e-6])
    shares = role_shares(profile).set_index("role")["share_frac"]
    assert dict(shares) == pytest.approx({"dense_gemm": 0.6, "attention": 0.3, "unclassified": 0.1})
    assert profile.n_steps is None and profile.busy_s == {} and np.isnan(profile.gap_frac)
    # 4 lines before, 3 rows, 1 blank, 1 "Processing", and the report of host calls: heading, then a line passed over.
    assert dict(profile.tally.lines) == {"other": 4 + 1 + 1 + 1, "header": 2, "row": 3}
    assert any("--cuda-graph-trace=node" in note for note in profile.notes)


@pytest.mark.parametrize("heading", [
    "Time(%),Total Time (ns),Instances,Average,Minimum,Maximum,Name",
    "Time (%),Total Time (us),Instances,Avg (us),Min (us),Max (us),Name",
])
def test_old_spelling_and_other_units(tmp_path, heading):
    scale = 1e-6 if "(us)" in heading else 1e-9
    profile = read_profile(write(tmp_path, f"{heading}\n100.0,500,5,100.0,90,120,fused_moe_kernel\n"))
    row = profile.kernels.iloc[0]
    assert (row["role"], row["n_calls"]) == ("moe", 5)
    assert [row["total_s"], row["min_s"], row["max_s"]] == pytest.approx([500 * scale, 90 * scale, 120 * scale])


TRACE_HEADING = ("Start (ns),Duration (ns),CorrId,GrdX,GrdY,GrdZ,BlkX,BlkY,BlkZ,Reg/Trd,StcSMem (MB),DymSMem (MB),"
                 "Bytes (MB),Throughput (MB/s),SrcMemKd,DstMemKd,Device,Ctx,GreenCtx,Strm,Name\n")


def gpu_trace(n_steps: int, n_layers: int = 10, is_graph: bool = True) -> str:
    """Steps of 1 ms: 10 x (30 + 40) us + 50 us of sampling + 10 us copy = 760 us busy, 240 us idle."""
    rows = []
    for step in range(n_steps):
        now, corr = step * 1_000_000, 100 * step
        layers = [("nvjet_tst_a", 30_000), ("void fmha<a, b>(int)", 40_000)] * n_layers
        for at, (name, duration) in enumerate([*layers, ("argmax_kernel", 50_000), ("[CUDA memcpy DtoH]", 10_000)]):
            number = corr if is_graph and at < 2 * n_layers else corr + at + 1
            grid = ",,,,,,,,," if "memcpy" in name else "64,2,1,128,1,1,32,0,0,"
            name = f'"{name}"' if "," in name else name
            copied = "0.1,10,Device,Pageable" if "memcpy" in name else ",,,"
            rows.append(f"{now},{duration},{number},{grid}{copied},NVIDIA H200 (0),1,,7,{name}")
            now += duration
    return TRACE_HEADING + "\n".join(rows) + "\n"


@pytest.mark.parametrize("is_graph", [True, False])
def test_gpu_trace_has_steps_and_gaps(tmp_path, is_graph):
    profile = read_profile(write(tmp_path, gpu_trace(5, is_graph=is_graph)))
    assert profile.tally.lines["malformed"] == 0 and profile.tally.lines["row"] == 5 * 22
    assert profile.n_steps == 5 and ("graph" in profile.step_rule) is is_graph
    assert profile.step_s == pytest.approx(1e-3)
    assert profile.busy_s == {"NVIDIA H200 (0)": pytest.approx(5 * 760e-6)}
    assert profile.gap_frac == pytest.approx(4 * 240 / (4 * 1000 + 760), abs=1e-6)
    assert profile.kernels_per_step == 21
    assert set(profile.kernels["n_blocks"].dropna()) == {128.0}
    assert role_shares(profile).set_index("role").loc["memory_copy", "n_calls"] == 5


def test_one_step_is_not_taken_for_its_layers(tmp_path):
    """Without graphs, ten equal layers and one sampling: one step."""
    profile = read_profile(write(tmp_path, gpu_trace(1, n_layers=40, is_graph=False)))
    assert profile.n_steps == 1 and "sampling" in profile.step_rule


def test_steps_of_different_graphs_are_counted_by_launch(tmp_path):
    """A step whose graph differs (another batch size) is a step all the same."""
    text = gpu_trace(4).replace("nvjet_tst_a", "nvjet_tst_b", 10)
    assert read_profile(write(tmp_path, text)).n_steps == 4


def test_malformed_lines_are_counted_with_their_number(tmp_path):
    text = KERN_SUM.replace("6000000,300", "?,300").replace(",5.0,mystery", ",mystery")
    tally = read_profile(write(tmp_path, text)).tally
    assert [number for number, _, _ in tally.malformed] == [6, 8]
    assert tally.lines["row"] == 1 and tally.lines_total == len(text.splitlines())


NCU_COLUMNS = ('"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size",'
               '"Device","CC","Section Name","Metric Name","Metric Unit","Metric Value"')


def ncu_long(values: list[tuple[int, str, str, str, str]]) -> str:
    lines = ["==PROF== Connected to process 77 (/usr/bin/python)", "==WARNING== clocks", NCU_COLUMNS]
    return "\n".join([*lines, *(f'"{at}","77","python","host","{name}","1","7","(256, 1, 1)","(66, 2, 1)","0","9.0",'
                                f'"x","{metric}","{unit}","{value}"' for at, name, metric, unit, value in values)])


def test_ncu_long_form_with_units_that_differ(tmp_path):
    text = ncu_long([
        (0, "nvjet_a", "Duration", "us", "1,000.50"), (0, "nvjet_a", "Memory Throughput", "%", "71.00"),
        (0, "nvjet_a", "Memory Throughput", "Tbyte/s", "1.20"), (0, "nvjet_a", "Registers Per Thread", "", "168"),
        (0, "nvjet_a", "SM Active Cycles", "cycle", "900"), (0, "nvjet_a", "Elapsed Cycles", "cycle", "1,000"),
        (1, "nvjet_a", "Duration", "ms", "3.0015"), (1, "nvjet_a", "Memory Throughput", "Gbyte/s", "400.00"),
        (1, "nvjet_a", "# SMs", "SM", "132"),
    ])
    profile = read_profile(write(tmp_path, text))
    (row,) = check(profile.kernels, KERNELS).to_dict("records")
    assert (row["role"], row["n_calls"], row["n_blocks"]) == ("dense_gemm", 2, 132)
    assert row["total_s"] == pytest.approx(1000.5e-6 + 3.0015e-3)
    # Over time: (1.2e12 x 1.0005 + 0.4e12 x 3.0015) / 4.002 = 0.6e12.
    assert row["dram_bytes_per_s"] == pytest.approx(0.6e12)
    assert row["sm_busy_frac"] == pytest.approx(0.9)
    assert profile.n_sms == 132 and profile.small_launch_frac == 0.0
    assert dict(profile.tally.lines) == {"other": 3, "header": 1, "row": 8}


def test_ncu_with_decimal_commas(tmp_path):
    text = ncu_long([(0, "fused_moe_kernel", "gpu__time_duration.sum", "us", "1.234,50"),
                     (0, "fused_moe_kernel", "dram__bytes.sum.per_second", "Gbyte/s", "2,345")])
    (row,) = read_profile(write(tmp_path, text)).kernels.to_dict("records")
    assert row["total_s"] == pytest.approx(1234.5e-6) and row["dram_bytes_per_s"] == pytest.approx(2.345e9)


def test_ncu_wide_form_has_a_row_of_units(tmp_path):
    heading = ('"ID","Process ID","Kernel Name","Block Size","Grid Size","Device","dram__bytes_read.sum",'
               '"dram__bytes_write.sum","gpu__time_duration.sum",'
               '"sm__cycles_active.avg.pct_of_peak_sustained_elapsed"')
    text = "\n".join(["==PROF== Disconnected", heading, '"","","","","","","Mbyte","Kbyte","us","%"',
                      '"0","9","fmhaSm100a","128, 1, 1","16, 4, 1","0","7.5","500","2.0","45.5"',
                      '"1","9","fmhaSm100a","128, 1, 1","16, 4, 1","0","n/a","500","2.0","45.5"'])
    profile = read_profile(write(tmp_path, text))
    (row,) = profile.kernels.to_dict("records")
    assert row["n_blocks"] == 64 and row["total_s"] == pytest.approx(4e-6)
    assert row["dram_bytes_per_s"] == pytest.approx(8e6 / 2e-6) and row["sm_busy_frac"] == pytest.approx(0.455)
    assert dict(profile.tally.lines) == {"other": 1, "header": 2, "row": 2}


@pytest.mark.parametrize(("texts", "found"), [
    (["1,234", "9,00"], ("comma", True)), (["1,234,567"], ("point", True)), (["1.234.567"], ("comma", True)),
    (["0.5"], ("point", True)), (["1,234"], ("point", False)), (["12", "n/a"], ("point", True)),
    (["1.234,5"], ("comma", True)), (["1,234.5"], ("point", True)),
])
def test_the_decimal_mark(texts, found):
    assert ncu.decimal_mark(texts) == found


def test_ncu_without_a_duration_has_no_time(tmp_path):
    profile = read_profile(write(tmp_path, ncu_long([(0, "nvjet_a", "# SMs", "SM", "132")])))
    assert profile.kernels["total_s"].isna().all()
    assert profile.kernels["n_calls"].tolist() == [1]


def test_a_report_of_host_calls_alone_is_refused(tmp_path):
    text = "\n".join(KERN_SUM.splitlines()[10:])
    assert "cudaGraphLaunch" in text
    with pytest.raises(LogFormatError, match="cuda_gpu_kern_sum"):
        read_profile(write(tmp_path, text))


def test_profiles_say_their_tallies_as_json(tmp_path):
    assert json.loads(json.dumps(read_profile(write(tmp_path, KERN_SUM)).tally.as_dict()))["lines"]["row"] == 3
