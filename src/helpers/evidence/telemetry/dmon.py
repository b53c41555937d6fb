"""Telemetry in columns of blanks: nvidia-smi dmon, dcgmi dmon, amd-smi monitor.

Columns follow the options the tool was started with, so they are found by the header's words alone; the header is
printed again with every page.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from helpers.errors import LogFormatError
from helpers.evidence.reading import Tally, lines
from helpers.evidence.telemetry.names import Meaning, is_missing, split_unit, unit_of
from helpers.evidence.telemetry.rows import Layout, Sheet, layout
from helpers.evidence.telemetry.smi_csv import doubt_last_cell, how_to_name

_NUMBER = re.compile(r"^[-+]?\d*\.?\d+(?:[eE][-+]?\d+)?$")
_SHARE_OF = re.compile(r"^[\d.]+/$")

DCGM_MEANINGS: dict[str, Meaning | None] = {
    name: meaning
    for names, meaning in (
        ("gputl gpu_util gpu_util_ratio 203", Meaning("busy_frac", "%")),
        ("mcutl mem_copy_util mem_copy_util_ratio 204", Meaning("mem_busy_frac", "%")),
        ("smact sm_active sm_util_ratio 1002", Meaning("sm_active_frac", "frac")),
        ("smocc sm_occupancy sm_occupancy_ratio 1003", Meaning("sm_occupancy_frac", "frac")),
        ("tenso pipe_tensor_active tensor_util_ratio 1004", Meaning("tensor_active_frac", "frac")),
        ("drama dram_active dram_util_ratio 1005", Meaning("dram_active_frac", "frac")),
        ("power_usage power board_power_watts 155", Meaning("power_w", "W")),
        ("power_usage_instant powinst board_power_raw_watts 157", Meaning("power_w", "W", 1)),
        ("power_mgmt_limit enforced_power_limit pmlmt 160", Meaning("power_limit_w", "W")),
        ("sm_clock smclk 100", Meaning("sm_clock_hz", "MHz")), ("mem_clock mmclk 101", Meaning("mem_clock_hz", "MHz")),
        ("gpu_temp gpu_temp_celsius tmptr 150", Meaning("temperature_c", "C")),
        ("memory_temp memory_temp_celsius mmtmp 140", Meaning("mem_temperature_c", "C")),
        ("fb_used fbusd 252", Meaning("mem_used_bytes", "MiB")),
        ("fb_total fbttl 250", Meaning("mem_total_bytes", "MiB")),
        ("pcie_tx_bytes pcitx 1009", Meaning("pcie_tx_bytes_per_s", "B/s")),
        ("pcie_rx_bytes pcirx 1010", Meaning("pcie_rx_bytes_per_s", "B/s")),
        ("pcie_tx_throughput 200", Meaning("pcie_tx_bytes_per_s", "KB/s", 1)),
        ("pcie_rx_throughput 201", Meaning("pcie_rx_bytes_per_s", "KB/s", 1)),
        ("nvlink_tx_bytes nvltx 1011", Meaning("nvlink_tx_bytes_per_s", "B/s")),
        ("nvlink_rx_bytes nvlrx 1012", Meaning("nvlink_rx_bytes_per_s", "B/s")),
        ("pcie_link_gen pcilg 237", Meaning("link_gen", "")), ("pcie_link_width pcilw 238", Meaning("link_width", "")),
        ("pcie_max_link_gen 235", Meaning("link_gen_max", "")),
        ("pcie_max_link_width 236", Meaning("link_width_max", "")),
        # PVIOL counts ns since the driver's start: no state of the sample, so not the dmon column of that name
        ("pviol power_violation 240 tviol thermal_violation 241", None),
    )
    for name in names.split()
}
"""Tags of `dcgmi dmon`, field ids and symbols without prefix -> meaning (dcgm_fields.h; DCGM 4 renamed symbols, their
ids and units stayed)."""

_GPM: dict[str, Meaning | None] = {
    name: Meaning(column, unit)
    for names, column, unit in (
        ("smutil", "sm_active_frac", "%"), ("smocc", "sm_occupancy_frac", "%"),
        ("anytc tensor tenutil", "tensor_active_frac", "%"), ("dram dramutil", "dram_active_frac", "%"),
        ("pcitx", "pcie_tx_bytes_per_s", "MiB/s"), ("pcirx", "pcie_rx_bytes_per_s", "MiB/s"),
        ("nvltx", "nvlink_tx_bytes_per_s", "MiB/s"), ("nvlrx", "nvlink_rx_bytes_per_s", "MiB/s"),
    )
    for name in names.split()
}
"""nvidia-smi dmon --gpm-metrics: 20, 21, 60, 61 print MiB/s (its help text; dcgmi's columns of that name bytes/s),
2, 3, 5 and 10 percent."""


def read_dmon(path: str | Path, tally: Tally, columns: Sequence[str] = ()) -> tuple[Sheet, str]:
    """Read nvidia-smi dmon or dcgmi dmon.

    Parameters
    ----------
    path : path
        The file.
    tally : Tally
        Every line is counted into it.
    columns : sequence of str
        Names of the columns of a dmon file without a header.

    Returns
    -------
    Sheet
        All rows.
    str
        "nvidia-smi dmon" or "dcgmi dmon".

    Raises
    ------
    LogFormatError
        It is pmon's output, or has no header and no names are given.
    """
    sheet = Sheet(tally)
    tool, names, units = "", [name.strip() for name in columns], [""] * len(columns)
    pending, is_csv, line_no = bool(names), False, 0
    for line_no, text in lines(path):
        words = _words(text, is_csv)
        if not words or not text.strip():
            tally.count("other")
        elif _is_header(text, words):
            _refuse_pmon(path, words)
            tally.count("header")
            is_csv = "," in text
            words = _words(text.replace("#", " "), is_csv)
            tool = "dcgmi dmon" if words[0].lower() == "entity" else "nvidia-smi dmon"
            if words != names:
                names, units, pending = words, [""] * len(words), True
        elif _is_units(text, words):
            tally.count("header")
            found = _words(text.replace("#", " "), is_csv)
            if pending and len(found) == len(names):
                units = found
        elif not names:
            _refuse_without_header(path, line_no, words)
            tally.count("other")
        else:
            if pending:
                sheet.begin(_layout(names, units, tool))
                pending = False
            _add(sheet, tally, line_no, text, _cells(words, tool), len(names))
    if not sheet.n_layouts:
        raise LogFormatError(f"{path}: expected rows under the header of a dmon file, found none; record it again")
    doubt_last_cell(path, sheet, line_no)
    return sheet, tool or "nvidia-smi dmon"


def _words(text: str, is_csv: bool) -> list[str]:
    return [word.strip() for word in text.split(",")] if is_csv and "," in text else text.split()


def _is_header(text: str, words: list[str]) -> bool:
    if not text.lstrip().startswith("#"):
        return False
    first = {word.strip("#,").lower() for word in words}
    return "entity" in first or "gpu" in first


def _is_units(text: str, words: list[str]) -> bool:
    """Tell the line of units under a header: dmon's begins with #, dcgmi's with ID alone."""
    return text.lstrip().startswith("#") or words[0].lower() in ("id", "idx")


def _layout(names: list[str], units: list[str], tool: str) -> Layout:
    if tool == "dcgmi dmon":
        return layout(["gpu", *names[1:]], [""] * len(names), DCGM_MEANINGS)
    known = [unit if unit_of(unit) else "" for unit in units]
    # dmon prints MB and means 2^20 bytes, as --query-gpu of the same driver prints the same number in MiB
    known = ["MiB" if unit == "MB" else unit.rpartition(":")[2] for unit in known]
    return layout(names, known, _GPM)


def _cells(words: list[str], tool: str) -> list[str]:
    """Join what is one value: dcgmi's entities are two words."""
    if tool == "dcgmi dmon" and len(words) > 1:
        entity = words[1] if words[0] == "GPU" else f"{words[0]} {words[1]}"
        return [entity, *words[2:]]
    return words


def _add(sheet: Sheet, tally: Tally, line_no: int, text: str, cells: list[str], n_names: int) -> None:
    n_values = sum(_NUMBER.match(cell) is not None or is_missing(cell) for cell in cells)
    if len(cells) == n_names:
        sheet.add(line_no, cells)
    elif n_values > len(cells) / 2:
        tally.reject(line_no, text, f"expected {n_names} values, found {len(cells)}")
    else:
        tally.count("other")


def _refuse_pmon(path: str | Path, words: list[str]) -> None:
    if {"pid", "command"} <= {word.strip("#,").lower() for word in words}:
        raise LogFormatError(
            f"{path}: expected samples of devices, found nvidia-smi pmon (one row per process, no power, no clocks); "
            "record nvidia-smi dmon or nvidia-smi --query-gpu beside it"
        )


def _refuse_without_header(path: str | Path, line_no: int, words: list[str]) -> None:
    n_values = sum(_NUMBER.match(word) is not None or is_missing(word) for word in words)
    if len(words) > 1 and n_values > len(words) / 2:
        raise LogFormatError(
            f"{path}: line {line_no}: expected the header of a dmon file, found values; "
            f"{how_to_name(len(words), 'gpu,pwr,gtemp')}"
        )


def read_amd_monitor(path: str | Path, tally: Tally) -> tuple[Sheet, str]:
    """Read `amd-smi monitor` as it stands on a terminal.

    Parameters
    ----------
    path : path
        The file.
    tally : Tally
        Every line is counted into it.

    Returns
    -------
    Sheet
        All rows.
    str
        "amd-smi".
    """
    sheet = Sheet(tally)
    names: list[str] = []
    line_no = 0
    for line_no, text in lines(path):
        words = text.split()
        if not words:
            tally.count("other")
        elif "GPU" in words and is_amd_header(text):
            tally.count("header")
            found = [name for word in words for name in _amd_names(word)]
            if found != names:
                names = found
                plain, units = zip(*(split_unit(name) for name in names), strict=True)
                # amd-smi prints MB and means 2^20 bytes: 196300 MB on a board of 206,141,652,992 bytes
                sheet.begin(layout(plain, units))
        elif not names:
            tally.count("other")
        else:
            _add(sheet, tally, line_no, text, [_in_powers_of_two(cell) for cell in _with_units(words)], len(names))
    doubt_last_cell(path, sheet, line_no)
    return sheet, "amd-smi"


def is_amd_header(text: str) -> bool:
    """Tell the header of `amd-smi monitor`: words in capitals, the card and at least one known quantity."""
    words = text.split()
    known = {"POWER", "GPU_TEMP", "GPU_T", "MEM_TEMP", "MEM_T", "GFX_UTIL", "GFX%", "GFX_CLOCK", "GFX_CLK", "MEM_UTIL",
             "MEM%", "VRAM_USED", "VRAM_USAGE"}
    return "GPU" in words[:2] and bool(known & set(words)) and text.strip() == text.strip().upper()


def _amd_names(word: str) -> tuple[str, ...]:
    """Return the columns under a word: VRAM_USAGE is "used/total"."""
    return ("VRAM_USED", "VRAM_TOTAL") if word == "VRAM_USAGE" else (word,)


def _with_units(words: list[str]) -> list[str]:
    """Join values with their units, and take "0.3/ 192.0 GB" apart."""
    cells: list[str] = []
    for word in words:
        if cells and unit_of(word) and (_NUMBER.match(cells[-1]) or is_missing(cells[-1])):
            if len(cells) > 1 and _SHARE_OF.match(cells[-2]):
                cells[-2] = f"{cells[-2][:-1]} {word}"
            cells[-1] = f"{cells[-1]} {word}" if _NUMBER.match(cells[-1]) else cells[-1]
        elif "/" in word and _NUMBER.match(word.partition("/")[2]):
            used, _, total = word.partition("/")
            cells += [f"{used}/", total]
        else:
            cells.append(word)
    return cells


def _in_powers_of_two(cell: str) -> str:
    for decimal, binary in ((" MB", " MiB"), (" GB", " GiB")):
        if cell.endswith(decimal):
            return cell.removesuffix(decimal) + binary
    return cell
