"""Telemetry of every format: small files in the layout of the tool, read and held against hand-made numbers."""

import gzip
import json
import math
import random

import pandas as pd
import pytest

from helpers.evidence.reading import lines
from helpers.evidence.telemetry.read import read_telemetry
from helpers.schema import LogFormatError

MIB = 2**20

SMI_HEADER = (
    "timestamp, index, power.draw [W], power.limit [W], clocks.current.sm [MHz], utilization.gpu [%], "
    "memory.used [MiB], pcie.link.gen.current, pcie.link.width.current, clocks_throttle_reasons.active\n"
)
SMI_ROWS = (
    "2026/06/11 03:20:37.315, 0, 76.89 W, 600.00 W, 345 MHz, 0 %, 4 MiB, 1, 16, 0x0000000000000001\n"
    "2026/06/11 03:20:37.318, 1, [N/A], 600.00 W, 2400 MHz, 98 %, 80000 MiB, 5, 16, 0x0000000000000004\n"
    "2026/06/11 03:20:38.318, 0, 599.50 W, 600.00 W, 2100 MHz, 100 %, 80000 MiB, 5, 16, 0x0000000000000064\n"
)


@pytest.fixture
def read(tmp_path):
    """Read a text as a file; whatever it is, every line must be counted once."""

    def reader(text, name="a.csv", **options):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        found = read_telemetry(path, **options)
        if found.tally.notes[-1:] != ["one JSON answer: its series are counted in place of lines"]:
            assert found.tally.lines_total == sum(1 for _ in lines(path))
        return found

    return reader


def test_query_csv_in_base_units(read):
    found = read(SMI_HEADER + SMI_ROWS)
    table = found.table
    assert (found.tool, found.clock, found.notes) == ("nvidia-smi", "local", ())
    assert table["device"].tolist() == ["0", "1", "0"]
    assert table["t_s"].round(3).tolist() == [0.0, 0.003, 1.003]
    assert table["ts"][0] == pd.Timestamp("2026-06-11 03:20:37.315")
    assert math.isnan(table["power_w"][1]) and table["power_w"][2] == 599.5
    assert table["sm_clock_hz"].tolist() == [345e6, 2400e6, 2100e6]
    assert table["busy_frac"].tolist() == [0.0, 0.98, 1.0]
    assert table["mem_used_bytes"].tolist() == [4 * MIB, 80000 * MIB, 80000 * MIB]
    assert table["link_gen"].tolist() == [1, 5, 5] and table["link_width"].tolist() == [16, 16, 16]
    # 0x1 idle; 0x4 SW power cap; 0x64 = 0x40 HW thermal + 0x20 SW thermal + 0x4 SW power cap
    assert table["is_power_capped"].tolist() == [False, True, True]
    assert table["is_thermally_slowed"].tolist() == [False, False, True]
    assert json.loads(table["extra"][2]) == {"clocks_throttle_reasons.active": "0x0000000000000064"}


def test_query_csv_without_units_or_header(read):
    plain = "2026/06/11 03:20:37.315, 0, 76.89, 345, 40, 1000\n2026/06/11 03:20:38.315, 0, 80.11, 2400, 90, 2000\n"
    with pytest.raises(LogFormatError, match='line 1: expected a header.*its 6 columns.*_columns "timestamp,index'):
        read(plain)
    names = "timestamp,index,power.draw,clocks.sm,utilization.gpu,memory.used"
    table = read(plain, columns=names).table
    assert table.equals(read(plain, columns=names.split(",")).table)
    last = table.iloc[-1]
    # the last cell has neither a unit nor doubt: the file ends with a line feed
    assert (last.power_w, last.sm_clock_hz, last.busy_frac, last.mem_used_bytes) == (80.11, 2400e6, 0.9, 2000 * MIB)
    header = "timestamp, index, power.draw [W], clocks.sm [MHz], utilization.gpu [%], memory.used [MiB]\n"
    with_header = read(header + plain, columns=names)
    assert "header" in with_header.notes[0] and with_header.table["power_w"].tolist() == [76.89, 80.11]


def test_a_cut_last_row_is_malformed_and_a_cut_last_value_missing(read):
    cut = read(SMI_HEADER + SMI_ROWS + "2026/06/11 03:20:39.318, 0, 599.")
    assert cut.tally.lines["malformed"] == 1 and cut.tally.malformed[0][0] == 5 and len(cut.table) == 3
    text = "timestamp, index, utilization.gpu [%]\n2026/06/11 03:20:37.000, 0, 99\n2026/06/11 03:20:38.000, 0, 9"
    doubted = read(text)
    assert doubted.table["busy_frac"].isna().tolist() == [False, True] and "may be cut" in doubted.notes[0]
    whole = read(text.replace("0, 99", "0, 99 %").replace("0, 9", "0, 9") + " %")
    assert whole.table["busy_frac"].tolist() == [0.99, 0.09] and whole.notes == ()


def test_header_again_and_another_header(read):
    other = "timestamp, index, temperature.gpu\n2026/06/11 03:21:00.000, 0, 45\n"
    found = read(SMI_HEADER + SMI_ROWS + SMI_HEADER + SMI_ROWS.splitlines()[-1] + "\n" + other)
    assert found.tally.lines == {"header": 3, "row": 5}
    assert found.table["temperature_c"].tolist()[-1] == 45 and math.isnan(found.table["power_w"].tolist()[-1])


def test_the_averaged_power_is_taken_before_the_instant_one(read):
    header = "timestamp, index, power.draw.instant [W], power.draw.average [W], clocks_event_reasons.sw_power_cap\n"
    table = read(header + "2026/06/11 03:20:37.315, 0, 500.00 W, 450.00 W, Active\n").table
    assert table["power_w"][0] == 450 and bool(table["is_power_capped"][0])
    assert json.loads(table["extra"][0]) == {"power.draw.instant": "500.00 W"}


def test_milliwatts_and_values_that_are_none(read):
    table = read("timestamp, index, power.draw [mW], clocks.sm [MHz]\n"
                 "2026/06/11 03:20:37.315, 0, 76890 mW, [Unknown Error]\n2026/06/11 03:20:38.315, 0, 1000, lots\n")
    assert table.table["power_w"].tolist() == [76.89, 1.0] and table.table["sm_clock_hz"].isna().all()
    assert table.notes == ("clocks.sm: 1 values cannot be read, for example 'lots'; they are missing in the table",)


def test_a_row_without_a_readable_time_is_malformed(read):
    found = read(SMI_HEADER + SMI_ROWS + SMI_ROWS.splitlines()[-1].replace("2026/06/11 03:20:38", "2026/16/41 03:20:38")
                 + "\n")
    assert found.tally.malformed[0][2] == "its time cannot be read" and len(found.table) == 3


def test_zone_of_local_stamps(read):
    table = read(SMI_HEADER + SMI_ROWS, file_zone="Europe/Berlin")
    # summer time: UTC is two hours earlier
    assert table.clock == "epoch" and table.table["ts"][0] == pd.Timestamp("2026-06-11 01:20:37.315")
    assert read(SMI_HEADER + SMI_ROWS, file_zone="+05:30").table["ts"][0] == pd.Timestamp("2026-06-10 21:50:37.315")
    with pytest.raises(LogFormatError, match="expected a time zone"):
        read(SMI_HEADER + SMI_ROWS, file_zone="Mars/North")
    zoned = read("timestamp,gpu,power_w\n2026-06-11T03:20:37+02:00,0,5\n2026-06-11T03:20:38+02:00,0,5\n")
    assert zoned.clock == "epoch" and zoned.table["ts"][0] == pd.Timestamp("2026-06-11 01:20:37")


def test_devices_by_place_where_no_column_names_them(read):
    rows = [f"2026/06/11 03:20:{second:02d}.{card:03d}, {100 + card} W\n" for second in range(5) for card in range(4)]
    found = read("timestamp, power.draw [W]\n" + "".join(rows))
    assert found.table["device"].tolist() == ["0", "1", "2", "3"] * 5 and "4 at a time" in found.notes[0]
    assert found.table.groupby("device")["power_w"].nunique().tolist() == [1, 1, 1, 1]
    single = read("timestamp, power.draw [W]\n" + "".join(rows[::4]))
    assert single.table["device"].isna().all() and single.notes == ()


DMON = """\
#Date        Time         gpu    pwr  gtemp  mtemp     sm    mem    enc   mclk   pclk  pviol  tviol     fb  rxpci  txpci
#YYYYMMDD    HH:MM:SS     Idx      W      C      C      %      %      %    MHz    MHz      %   bool     MB   MB/s   MB/s
 20260816    09:22:34       0    338     62      -    100     41      0  14001   2400      7      0  80000     12     34
 20260816    09:22:34       1     18     38      -      0      0      0    405    180      0      1      4      0      0
"""


def test_dmon(read):
    found = read(DMON + DMON.replace("09:22:34", "09:22:35"), "dmon.txt")
    table = found.table
    assert (found.tool, found.clock, found.tally.lines["header"]) == ("nvidia-smi dmon", "local", 4)
    assert table["t_s"].tolist() == [0, 0, 1, 1] and table["ts"][0] == pd.Timestamp("2026-08-16 09:22:34")
    first = table.iloc[0]
    # `sm` of dmon is the share of time in which any kernel ran; its MB are 2**20 bytes
    assert (first.busy_frac, first.mem_busy_frac, first.mem_used_bytes) == (1.0, 0.41, 80000 * MIB)
    assert (first.power_w, first.sm_clock_hz, first.mem_clock_hz) == (338, 2400e6, 14001e6)
    assert (first.pcie_rx_bytes_per_s, first.pcie_tx_bytes_per_s) == (12e6, 34e6)
    assert math.isnan(first.mem_temperature_c) and math.isnan(first.sm_active_frac)
    assert table["is_power_capped"].tolist()[:2] == [True, False]
    assert table["is_thermally_slowed"].tolist()[:2] == [False, True]


def test_dmon_of_old_drivers_without_stamps(read):
    old = ("# gpu   pwr  temp    sm   mem   enc   dec  mclk  pclk\n"
           "# Idx     W     C     %     %     %     %   MHz   MHz\n")
    rows = ("    0    43    35     0     0     0     0  2505  1075\n"
            "    1    42    31    97    95     0     0  2505   975\n")
    found = read(old + rows + old + rows + "    0    43    35", "dmon.txt")
    assert found.clock == "none" and found.table["t_s"].isna().all() and "period_s" in found.notes[0]
    assert found.tally.lines == {"header": 4, "row": 4, "malformed": 1}
    timed = read(old + rows + rows, "dmon.txt", period_s=2.0)
    assert timed.table["t_s"].tolist() == [0, 0, 2, 2] and timed.table["busy_frac"].tolist()[:2] == [0, 0.97]
    bare = read(rows, "dmon.txt", columns="gpu,pwr,temp,sm,mem,enc,dec,mclk,pclk")
    assert bare.table["power_w"].tolist() == [43, 42]
    with pytest.raises(LogFormatError, match="columns="):
        read(rows, "dmon.txt")


def test_dmon_times_of_day_over_midnight_and_gpm_columns(read):
    text = ("#Time        gpu    pwr smutil  smocc   dram  pcitx\n#HH:MM:SS    Idx      W      %      %      %  MiB/s\n"
            " 23:59:59      0    300     90     25     80     10\n"
            " 00:00:01      0    300      -     25     80     10\n")
    table = read(text, "dmon.txt").table
    assert table["t_s"].tolist() == [0, 2] and table["ts"][0] == pd.Timestamp("1904-01-01 23:59:59")
    first = table.iloc[0]
    assert (first.sm_active_frac, first.sm_occupancy_frac, first.dram_active_frac) == (0.9, 0.25, 0.8)
    assert first.pcie_tx_bytes_per_s == 10 * MIB and math.isnan(first.busy_frac) and math.isnan(table.sm_active_frac[1])


def test_dmon_as_csv(read):
    text = "#gpu, pwr, gtemp, sm\n#Idx, W, C, %\n0, 76, 40, 12\n1, 80, -, 13\n"
    assert read(text).table["busy_frac"].tolist() == [0.12, 0.13]


def test_pmon_is_refused_in_words(read):
    with pytest.raises(LogFormatError, match="pmon .*record nvidia-smi dmon"):
        read("# gpu         pid   type     sm    mem    command \n# Idx           #    C/G      %      %    name \n"
             "    0       1312     G     24      3    Hyprland       \n")


DCGMI = """\
#Entity   GRACT        SMACT        TENSO        DRAMA        POWER        FBUSD
ID                                                            W
GPU 0     N/A          N/A          N/A          N/A          N/A          N/A
GPU 1     1.000        0.926        0.038        0.869        412.5        70000
GPU 0     0.500        140737488355328.000 0.020 0.400        9223372036854775794 10
"""


def test_dcgmi_dmon(read):
    found = read(DCGMI + DCGMI.splitlines()[0] + "\n      Id\nGPU 1  1.000  0.9  0.1  0.8  400  70000\n", "dcgmi.txt")
    table = found.table
    assert (found.tool, found.clock, found.tally.lines["header"]) == ("dcgmi dmon", "none", 4)
    assert table["device"].tolist() == ["0", "1", "0", "1"]
    assert table["dram_active_frac"].tolist()[1:] == [0.869, 0.4, 0.8] and math.isnan(table["dram_active_frac"][0])
    assert table["tensor_active_frac"][1] == 0.038 and table["mem_used_bytes"][1] == 70000 * MIB
    assert math.isnan(table["sm_active_frac"][2]) and math.isnan(table["power_w"][2])
    assert json.loads(table["extra"][1]) == {"GRACT": "1.000"}


def test_dcgmi_field_ids_and_slices(read):
    text = ("# Entity  203   1005  201\n      Id\nGPU-I 3   55    0.25  9\nGPU 12    60    0.50  2147483632\n")
    table = read(text, "dcgmi.txt", period_s=1).table
    assert table["device"].tolist() == ["GPU-I 3", "12"] and table["busy_frac"].tolist() == [0.55, 0.6]
    # field 201 is in KB/s
    assert table["pcie_rx_bytes_per_s"][0] == 9000 and math.isnan(table["pcie_rx_bytes_per_s"][1])


def test_dcgm_exporter_pages(read):
    def page(at, power, power_1):
        label = 'UUID="GPU-{0}",modelName="NVIDIA H200",Hostname="n1"'
        return (
            f"# time {at}\n# HELP DCGM_FI_DEV_POWER_USAGE Power draw (in W).\n# TYPE DCGM_FI_DEV_POWER_USAGE gauge\n"
            f'DCGM_FI_DEV_POWER_USAGE{{gpu="1",{label.format("b")}}} {power_1}\n'
            f'DCGM_FI_DEV_POWER_USAGE{{gpu="0",{label.format("a")}}} {power}\n'
            f'DCGM_FI_DEV_GPU_UTIL_RATIO{{gpu="0",{label.format("a")}}} 1\n'
            f'DCGM_FI_PROF_DRAM_ACTIVE{{gpu="0",{label.format("a")}}} 0.7\n'
            f'DCGM_FI_DEV_FB_USED{{gpu="0",{label.format("a")}}} 2\n'
            f'DCGM_FI_DEV_XID_ERRORS{{gpu="0",{label.format("a")}}} 0\nother_metric 4\n'
        )

    found = read(page(1795959146.5, 300.5, 9223372036854775794) + page(1795959176.5, 310, 75) + "DCGM_FI_DEV_X{ 3\n")
    table = found.table.sort_values(["t_s", "device"], ignore_index=True)
    assert (found.tool, found.clock) == ("dcgm-exporter", "epoch")
    assert found.tally.lines == {"header": 6, "row": 12, "other": 2, "malformed": 1}
    assert table["t_s"].tolist() == [0, 0, 30, 30] and table["device"].tolist() == ["0", "1"] * 2
    assert math.isnan(table["power_w"][1]) and table["power_w"].tolist()[2:] == [310, 75]
    # the new name says RATIO, the field is percent as before; FB_USED is MiB
    first = table.iloc[0]
    assert (first.busy_frac, first.dram_active_frac, first.mem_used_bytes) == (0.01, 0.7, 2 * MIB)
    assert table["device_name"][0] == "NVIDIA H200" and json.loads(table["extra"][0]) == {"DCGM_FI_DEV_XID_ERRORS": 0.0}


def test_engine_gauges_of_several_ranks(read):
    def page(at, *ranks):
        return f"{at}\n" + "".join(
            f'sglang:num_running_reqs{{dp_rank="{rank}",tp_rank="0",model_name="m"}} {running}\n'
            f'sglang:num_queue_reqs{{dp_rank="{rank}",tp_rank="0",model_name="m"}} {queued}\n'
            f'sglang:token_usage{{dp_rank="{rank}",tp_rank="0",model_name="m"}} 0.5\n'
            f'sglang:e2e_request_latency_seconds_bucket{{le="1",model_name="m"}} 4\n'
            for rank, (running, queued) in enumerate(ranks))

    found = read(page("2026-11-29T14:00:00Z", (3, 0), (1, 9)) + page("2026-11-29T14:00:02Z", (4, 0), (0, 9)))
    assert (found.tool, found.clock) == ("engine metrics", "epoch")
    assert found.table["rank"].tolist() == ["DP0 TP0", "DP1 TP0"] * 2
    assert found.table["running_req"].tolist() == [3, 1, 4, 0] and found.table["queue_req"].tolist() == [0, 9, 0, 9]
    assert found.table["t_s"].tolist() == [0, 0, 2, 2] and found.table["kv_used_frac"].eq(0.5).all()
    assert found.table["device"].isna().all()


def test_engine_gauges_with_the_time_behind_the_value(read):
    text = "".join(f'vllm:num_requests_running{{engine="0"}} {n} {at}\n'
                   f'vllm:gpu_cache_usage_perc{{engine="0"}} 0.25 {at}\n'
                   for n, at in ((4, 1795959146500), (5, 1795959147500)))
    table = read(text).table
    assert table["running_req"].tolist() == [4, 5] and table["t_s"].tolist() == [0, 1] and table["rank"][0] == "DP0"
    assert table["ts"][0] == pd.Timestamp(1795959146.5, unit="s") and table["kv_used_frac"].tolist() == [0.25, 0.25]
    untimed = read("vllm:num_requests_running 4\nvllm:num_requests_running 5\n", period_s=10)
    assert untimed.clock == "none" and untimed.table["t_s"].tolist() == [0, 10]


def test_range_query(read):
    answer = {"status": "success", "data": {"resultType": "matrix", "result": [
        {"metric": {"__name__": "vllm:num_requests_running", "engine": "0"}, "values": [[1795959146, "4"],
                                                                                  [1795959161, "6"]]},
        {"metric": {"__name__": "up"}, "values": [[1795959146, "1"]]},
        {"metric": {"__name__": "vllm:num_requests_waiting", "engine": "0"}, "values": [[1795959146, "0"]]}]}}
    found = read(json.dumps(answer), "answer.json")
    assert found.table["running_req"].tolist() == [4, 6] and found.table["t_s"].tolist() == [0, 15]
    assert found.tally.lines == {"row": 2, "other": 1} and math.isnan(found.table["queue_req"][1])
    with pytest.raises(LogFormatError, match="query_range"):
        read(json.dumps(answer)[:-9], "answer.json")


def test_amd_monitor(read):
    text = """\
GPU  POWER  GPU_TEMP  MEM_TEMP  GFX_UTIL  GFX_CLOCK  MEM_UTIL  MEM_CLOCK  VRAM_USED  VRAM_TOTAL
  0  171 W     32 °C     33 °C      90 %    2114 MHz       5 %    900 MHz     283 MB   196300 MB
  1    N/A     32 °C     33 °C       0 %    114 MHz       0 %    900 MHz     283 MB   196300 MB
"""
    found = read(text, "monitor.txt")
    first = found.table.iloc[0]
    assert (found.tool, found.clock) == ("amd-smi", "none")
    assert (first.power_w, first.busy_frac, first.mem_busy_frac, first.sm_clock_hz) == (171, 0.9, 0.05, 2114e6)
    # 196300 of its MB on a board of 206,141,652,992 bytes: they are 2**20 bytes (within 0.2 %, against 4.8 % for 10**6)
    assert first.mem_total_bytes == pytest.approx(206_141_652_992, rel=2e-3) and math.isnan(found.table["power_w"][1])
    newer = ("TIMESTAMP  GPU  POWER   GPU_T   MEM_T   GFX_CLK   GFX%   MEM%   VRAM_USAGE\n"
             "1754586056    0  154 W   44 °C   38 °C   132 MHz    7 %    1 %    0.5/ 192.0 GB\n")
    row = read(newer, "monitor.txt")
    assert row.clock == "epoch" and row.table["mem_used_bytes"][0] == 2**29 and row.table["busy_frac"][0] == 0.07
    assert row.table["mem_total_bytes"][0] == 192 * 2**30 and row.table["ts"][0] == pd.Timestamp("2025-08-07 17:00:56")


def test_amd_csv(read):
    monitor = "timestamp,gpu,power_usage,hotspot_temperature,memory_temperature,gfx,gfx_clock,mem,mem_clock,pviol\n"
    rows = [f"{at},0,750,80,60,99,2100,30,1300,{violation}\n" for at, violation in ((1754586056, 12), (1754586057, 0))]
    found = read(monitor + rows[0] + monitor + rows[1])
    first = found.table.iloc[0]
    assert (found.tool, found.clock, found.tally.lines["header"]) == ("amd-smi", "epoch", 2)
    assert (first.power_w, first.mem_busy_frac, first.mem_temperature_c, first.temperature_c) == (750, 0.3, 60, 80)
    assert found.table["is_power_capped"].tolist() == [True, False]

    metric = ("timestamp,gpu,gfx_activity,umc_activity,vcn_activity,socket_power,throttle_status,gfx_0_clk,mem_0_clk,"
              "edge,hotspot,mem,current_bandwidth_sent\n")
    row = "1772939616,0,95,80,\"['N/A', 'N/A']\",1180,N/A,2100,2000,N/A,78,60,16\n"
    found = read("WARNING: User is missing groups\n\n" + metric + row)
    first = found.table.iloc[0]
    # in `metric` the column mem is a temperature; PCIe is in Mb/s: 16e6 bits are 2e6 bytes
    assert (first.busy_frac, first.mem_busy_frac, first.mem_temperature_c) == (0.95, 0.8, 60)
    assert (first.temperature_c, first.pcie_tx_bytes_per_s, found.tally.lines["other"]) == (78, 2e6, 2)


def test_rocm_smi_csv(read):
    text = ("device,Temperature (Sensor junction) (C),Current Socket Graphics Package Power (W),sclk clock speed:,"
            "GPU use (%),VRAM Total Memory (B),VRAM Total Used Memory (B),GPU Memory Allocated (VRAM%)\n"
            "card0,41.0,133.0,(131Mhz),3,206141652992,297771008,0\n\ndevice,GPU use (%)\ncard0,4\n")
    found = read(text)
    first = found.table.iloc[0]
    assert (found.tool, found.tally.lines["other"], found.tally.lines["header"]) == ("rocm-smi", 1, 2)
    assert (first.device, first.temperature_c, first.power_w, first.sm_clock_hz) == ("card0", 41, 133, 131e6)
    assert (first.busy_frac, first.mem_used_bytes, first.mem_total_bytes) == (0.03, 297771008, 206141652992)
    assert found.table["busy_frac"].tolist() == [0.03, 0.04]


def test_counters_are_no_shares_and_shares_without_unit_are_judged_together(read):
    found = read("timestamp,gpu,gfx_activity,busy\n1754586056,0,89377230,0.0\n1754586061,0,89377231,0.5\n")
    assert found.table["busy_frac"].tolist() == [0.0, 0.5]
    assert json.loads(found.table["extra"][0]) == {"gfx_activity": "89377230"}
    assert any("gfx_activity" in note and "counter" in note for note in found.notes)
    assert read("t_s,gpu,gpu_util\n0,0,1\n1,0,96\n").table["busy_frac"].tolist() == [0.01, 0.96]


def test_a_unit_of_another_quantity_is_not_taken(read):
    found = read("timestamp, index, power.draw [MHz], utilization.gpu [%]\n2026/06/11 03:20:37.315, 0, 80 MHz, 4 %\n")
    assert found.table["power_w"].isna().all() and json.loads(found.table["extra"][0]) == {"power.draw": "80 MHz"}
    assert "unit" in found.notes[0]


@pytest.mark.parametrize("text", [
    "", "\n\n", "hello\nworld\n", "[2026-01-01 00:00:00 TP0] Decode batch. #running-req: 1\n" * 50,
    "concurrency,steady_tok_s\n1,29.4\n", SMI_HEADER, "#Entity  SMACT\nID\n", b"\x00\xff" * 500,
    "# TYPE vllm:x counter\nvllm:x 4\n", '{"a": 1}\n',
])
def test_what_is_no_telemetry_is_refused_in_one_line(read, text):
    with pytest.raises(LogFormatError, match="expected") as caught:
        read(text)
    assert "\n" not in str(caught.value) and "a.csv" in str(caught.value)


def test_packed_files_and_windows_line_ends(read):
    text = (SMI_HEADER + SMI_ROWS).replace("\n", "\r\n")
    plain = read(SMI_HEADER + SMI_ROWS, "b.csv").table.drop(columns="file")
    assert read(gzip.compress(text.encode())).table.drop(columns="file").equals(plain)
    assert read(text.encode("utf-16")).table.drop(columns="file").equals(plain)


def test_damaged_files_are_read_or_refused_and_every_line_counted(read):
    rng = random.Random(5)
    pieces = ['"', ",", "\n", "\t", "{", "#", "[N/A]", "nan", "inf", "1e400", "9" * 25, "\0", "0x", "%", " W", "3.5"]
    n_read = 0
    for _ in range(60):
        text = rng.choice([SMI_HEADER + SMI_ROWS, DMON, DCGMI])
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(text))
            text = text[:at] + rng.choice(pieces) + text[at + rng.choice([0, 0, 5, 40]):]
        try:
            # the fixture compares the count of lines
            read(text)
            n_read += 1
        except LogFormatError as error:
            assert "expected" in str(error)
    assert n_read > 30
