"""What the columns of telemetry files are called, in which units they come, and how one printed value is read.

A name is looked up by what is left of it without its unit, case and punctuation: ``power.draw [W]``, ``power_draw_w``
and ``Power Draw (W)`` are one. The unit printed with a value wins over the one in the header, and that over the
tool's usual one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd

KIND_BY_SUFFIX = {"_bytes_per_s": "rate", "_bytes": "size", "_w": "power", "_hz": "frequency", "_frac": "share",
                  "_c": "temperature"}
"""End of a column's name -> kind of its values; other columns are counts, those that begin with is_ are switches."""

_BITS = {f"{p}b/s": ("rate", f / 8) for p, f in (("K", 1e3), ("M", 1e6), ("G", 1e9))}
"""Only the case tells bits from bytes; amd-smi prints PCIe traffic in Mb/s (ROCm/amdsmi, `amd-smi metric --pcie`)."""

UNITS = {
    "w": ("power", 1.0), "watt": ("power", 1.0), "watts": ("power", 1.0), "mw": ("power", 1e-3), "kw": ("power", 1e3),
    "hz": ("frequency", 1.0), "khz": ("frequency", 1e3), "mhz": ("frequency", 1e6), "ghz": ("frequency", 1e9),
    "%": ("share", 0.01), "percent": ("share", 0.01), "pct": ("share", 0.01), "frac": ("share", 1.0),
    "fraction": ("share", 1.0), "ratio": ("share", 1.0), "c": ("temperature", 1.0), "°c": ("temperature", 1.0),
    "celsius": ("temperature", 1.0), "degc": ("temperature", 1.0), "b": ("size", 1.0), "bytes": ("size", 1.0),
    "kb": ("size", 1e3), "kib": ("size", 2.0**10), "mb": ("size", 1e6), "mib": ("size", 2.0**20), "gb": ("size", 1e9),
    "gib": ("size", 2.0**30), "s": ("time", 1.0), "sec": ("time", 1.0), "seconds": ("time", 1.0), "ms": ("time", 1e-3),
    "us": ("time", 1e-6), "ns": ("time", 1e-9),
}
UNITS |= {f"{size}/s": ("rate", scale) for size, (kind, scale) in tuple(UNITS.items()) if kind == "size"}

MISSING = frozenset({"", "-", "--", "n/a", "na", "nan", "none", "null", "not supported", "err!", "unknown"})
"""Printed where a value is not at hand; so is anything in square brackets ([N/A], [Unknown Error])."""

_BLANKS = ((2147483632, 2147483635), (2**63 - 16, 2**63), (140737488355328, 140737488355332))
"""Blank values of DCGM (dcgm_fields.h: 0x7ffffff0, 0x7ffffffffffffff0, 140737488355328.0, each with its reasons)."""

_VALUE = re.compile(r"^\(?\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*([^\s\d()]?[^\d()]*(?:\^\d)?)\)?$")
_HEX = re.compile(r"^0x[0-9a-fA-F]+$")
_LANES = re.compile(r"^x?(\d+)x?$")
_WITH_UNIT = re.compile(r"^(.*?)\s*[\[(]\s*([^\[\]()]*)\s*[\])]\s*$")
_PUNCTUATION = re.compile(r"[\s.:/_\-()\[\]]+")

POWER_CAP_BITS = 0x4 | 0x80
"""SW power cap and HW power brake in clocks_event_reasons.active (nvml.h, nvmlClocksEventReason*)."""

THERMAL_BITS = 0x20 | 0x40
"""SW and HW thermal slowdown. 0x8 (HW slowdown) is either: it tells neither."""


@dataclass(frozen=True)
class Meaning:
    """What a printed column is.

    Attributes
    ----------
    column : str
        Column of TELEMETRY.
    unit : str
        Unit where none is printed; "" of a count; "?" where both percent and share are in use.
    choice : int
        0 for the best source of the column; a higher one serves where no better one is in the file.
    bits : int
        Of a mask: the bits that set the switch.
    kind : str
        Kind of its values, as in UNITS, or switch, or count; told by the column's name.
    """

    column: str
    unit: str
    choice: int = 0
    bits: int = 0
    kind: str = field(init=False, compare=False, default="")

    def __post_init__(self) -> None:
        """Tell the kind."""
        ends = (kind for end, kind in KIND_BY_SUFFIX.items() if self.column.endswith(end))
        object.__setattr__(self, "kind", "switch" if self.column.startswith("is_") else next(ends, "count"))


_NAMES: tuple[tuple[str, ...], ...] = (
    # column, usual unit, names, names of the second choice, of the third
    ("power_w", "W", "power_draw pwr power power_usage socket_power current_socket_power gpu_power board_power"
     " current_socket_graphics_package_power average_graphics_package_power 155",
     "power_draw_average average_socket_power", "power_draw_instant powinst 157"),
    ("power_limit_w", "W", "enforced_power_limit", "power_limit power_cap pwr_cap max_graphics_package_power 160"),
    ("sm_clock_hz", "MHz", "clocks_current_sm clocks_sm pclk sm_clock smclk gfx_clock gfx_clk gfx_0_clk gpu_clock sclk"
     " sclk_clock_speed sm gpu gfx 100", "clocks_current_graphics clocks_gr graphics_clock gr_clock"),
    ("mem_clock_hz", "MHz", "clocks_current_memory clocks_mem mclk mem_clock mem_clk mem_0_clk memory_clock mmclk"
     " mclk_clock_speed mem memory 101"),
    ("busy_frac", "%", "utilization_gpu gputl gpu_use gfx gfx_util 203", "gfx_activity"),
    ("busy_frac", "%", "sm"),
    ("busy_frac", "?", "gpu_util util gpu_utilization utilization gpu_busy busy sm_util gpu_utilisation utilisation"
     " gpu"),
    ("mem_busy_frac", "%", "utilization_memory mem mcutl umc_activity umc 204"),
    ("mem_busy_frac", "?", "mem_util memory_util mem_utilization memory_utilization mem_busy mem_copy_util"),
    ("temperature_c", "C", "temperature_gpu gtemp temp temperature gpu_temp gpu_t gpu_temperature hotspot tmptr gpu gfx"
     " hotspot_temperature temp_hotspot temp_junction junction temperature_sensor_junction 150",
     "edge edge_temperature temp_edge temperature_sensor_edge"),
    ("mem_temperature_c", "C", "temperature_memory mtemp memory_temperature memory_temp mem_temp mem_t temp_mem"
     " temp_memory mmtmp mem memory temperature_sensor_memory 140"),
    ("sm_active_frac", "?", "sm_active smact smutil sm_activity 1002"),
    ("sm_occupancy_frac", "?", "sm_occupancy smocc sm_occ 1003"),
    ("tensor_active_frac", "?", "tensor_active tenso anytc tensor pipe_tensor_active tensor_util 1004"),
    ("dram_active_frac", "?", "dram_active drama dram dramutil dram_util 1005"),
    ("mem_used_bytes", "MiB", "memory_used fb fbusd fb_used mem_used vram_used used_vram gpu_mem_used mem memory 252"),
    ("mem_used_bytes", "B", "vram_total_used_memory"),
    ("mem_total_bytes", "MiB", "memory_total fbttl fb_total mem_total vram_total total_vram gpu_mem_total 250"),
    ("mem_total_bytes", "B", "vram_total_memory"),
    ("pcie_tx_bytes_per_s", "MB/s", "txpci pcie_tx pcie_tx_throughput"),
    ("pcie_rx_bytes_per_s", "MB/s", "rxpci pcie_rx pcie_rx_throughput"),
    ("pcie_tx_bytes_per_s", "Mb/s", "current_bandwidth_sent"),
    ("pcie_rx_bytes_per_s", "Mb/s", "current_bandwidth_received"),
    ("pcie_tx_bytes_per_s", "KB/s", "200"), ("pcie_rx_bytes_per_s", "KB/s", "201"),
    ("pcie_tx_bytes_per_s", "B/s", "pcitx 1009"), ("pcie_rx_bytes_per_s", "B/s", "pcirx 1010"),
    ("nvlink_tx_bytes_per_s", "B/s", "nvltx nvlink_tx 1011"), ("nvlink_rx_bytes_per_s", "B/s", "nvlrx nvlink_rx 1012"),
    ("link_gen", "", "pcie_link_gen_gpucurrent pcilg pcie_gen 237", "pcie_link_gen_current link_gen"),
    ("link_gen_max", "", "pcie_link_gen_max link_gen_max 235"),
    ("link_width", "", "pcie_link_width_current pcilw pcie_width link_width 238"),
    ("link_width_max", "", "pcie_link_width_max link_width_max 236"),
    ("is_power_capped", "", "clocks_event_reasons_sw_power_cap clocks_event_reasons_hw_power_brake_slowdown pviol"),
    ("is_thermally_slowed", "", "clocks_event_reasons_sw_thermal_slowdown clocks_event_reasons_hw_thermal_slowdown"
     " tviol phot_tviol vr_tviol hbm_tviol"),
    ("running_req", "", "running_req running_reqs num_running_reqs num_requests_running num_running_req running"
     " requests_running num_running requests_processing"),
    ("queue_req", "", "queue_req queue_reqs num_queue_reqs num_requests_waiting num_waiting_reqs num_queue_req waiting"
     " waiting_reqs queued requests_waiting num_waiting num_queued_reqs requests_deferred queue num_waiting_requests"),
    ("kv_used_frac", "frac", "token_usage kv_cache_usage_perc gpu_cache_usage_perc"),
    ("kv_used_frac", "?", "kv_used kv_usage kv_cache_usage cache_usage kv_cache"),
)
"""Names of nvidia-smi (man page; query names), dmon, dcgmi (tags and field ids of dcgm_fields.h), amd-smi, rocm-smi,
the engines, and what scripts make of them. One name may have several meanings: its unit tells which, and the first
named here holds where there is no unit."""

_FIRST = {"sm": "busy_frac", "mem": "mem_busy_frac", "gfx": "busy_frac", "gpu": "busy_frac", "memory": "mem_used_bytes"}


def _catalogue() -> dict[str, list[Meaning]]:
    found: dict[str, list[Meaning]] = {}
    for column, unit, *choices in _NAMES:
        for choice, names in enumerate(choices):
            for name in names.split():
                found.setdefault(name, []).append(Meaning(column, unit, choice))
    for name, column in _FIRST.items():
        found[name].sort(key=lambda one: one.column != column)
    for column, bits in (("is_power_capped", POWER_CAP_BITS), ("is_thermally_slowed", THERMAL_BITS)):
        found.setdefault("clocks_event_reasons_active", []).append(Meaning(column, "", 0, bits))
    return found


CATALOGUE = _catalogue()

_RENAMED = (
    ("clocks_throttle_reasons", "clocks_event_reasons"), ("dcgm_fi_dev_", ""), ("dcgm_fi_prof_", ""),
    ("sglang_", ""), ("vllm_", ""), ("llamacpp_", ""),
)
"""Beginnings of names that say the same as without them, or as another: old driver names, DCGM's symbols."""


def split_unit(name: str) -> tuple[str, str]:
    """Split a printed column name into name and unit: ``power.draw [W]`` -> ("power.draw", "W"); "" for none."""
    if match := _WITH_UNIT.match(name):
        if unit_of(match[2]) or match[2] in ("bool", "errs"):
            return match[1], match[2]
        return name, ""
    if name.endswith("%") and len(name) > 1:
        return name[:-1], "%"
    return name, ""


def key_of(name: str) -> str:
    """Return a name without case and punctuation, renamed ones by their newest name."""
    key = _PUNCTUATION.sub("_", name.strip().lower()).strip("_")
    for old, new in _RENAMED:
        if key.startswith(old):
            key = new + key[len(old):]
    return key


def unit_of(text: str) -> tuple[str, float] | None:
    """Return kind and factor to the base unit of a printed unit, or None if it is none."""
    text = text.strip().rpartition(":")[2].strip()
    return _BITS.get(text) or UNITS.get(text.lower())


def _split_word(key: str) -> tuple[str, str]:
    """Split the unit off a name that ends in one: ``mem_used_mb`` -> ("mem_used", "mb")."""
    for end, joined in (("_per_s", "/s"), ("_s", "/s")):
        base, _, word = key.removesuffix(end).rpartition("_")
        if key.endswith(end) and base and UNITS.get(word, ("",))[0] == "size":
            return base, word + joined
    base, _, word = key.rpartition("_")
    return (base, word) if base and word in UNITS else (key, "")


def meanings(name: str, unit: str, special: Mapping[str, Meaning | None] | None = None) -> tuple[Meaning, ...]:
    """Return what a column means, with the unit that holds where a value prints none.

    Parameters
    ----------
    name, unit : str
        As printed in the header, apart; unit "" if there is none.
    special : mapping, optional
        Key -> meaning in this tool's files, where it differs; None where it has none there.

    Returns
    -------
    tuple of Meaning
        Empty if the name is unknown or the unit is none of its own; more than one only of a mask.
    """
    key = key_of(name)
    known = CATALOGUE.get(key, [])
    if special and key in special:
        own = special[key]
        known = [own] if own else []
    elif not known and not unit:
        base, unit = _split_word(key)
        known = CATALOGUE.get(base, []) if unit else []
    if not known or known[0].bits:
        return tuple(known)
    printed = unit_of(unit) if unit else None
    if printed is None:
        return (known[0],)
    fitting = [one for one in known if one.kind == printed[0]]
    if not fitting and known[0].kind == "switch":
        return (known[0],)
    return (replace(fitting[0], unit=unit),) if fitting else ()


def is_missing(text: str) -> bool:
    """Tell whether a printed value stands for none."""
    return text.strip().lower() in MISSING or text.strip().startswith("[")


def read_values(texts: Sequence[str], meaning: Meaning) -> tuple[np.ndarray, np.ndarray]:
    """Read distinct printed values of one column in base units.

    Parameters
    ----------
    texts : sequence of str
        As printed.
    meaning : Meaning
        Their column.

    Returns
    -------
    array of float
        NaN where there is none.
    array of bool
        Texts that are no value of this kind.

    Notes
    -----
    Most values of a column share one unit: those are read together, the others by `read_value`.
    """
    values = np.full(len(texts), np.nan)
    first = next((found for text in texts if (found := _VALUE.match(text.strip()))), None)
    if first is not None and meaning.kind != "switch":
        unit = first[2].rstrip()
        scale = read_value(f"1 {unit}", meaning)
        if scale is not None and not first[0].startswith("("):
            bare = [text[: len(text) - len(unit)] if text.endswith(unit) else "" for text in texts]
            numbers = pd.to_numeric(pd.Series(bare, dtype=object), errors="coerce").to_numpy(dtype=float)
            is_blank = np.zeros(len(texts), dtype=bool)
            for low, high in _BLANKS:
                is_blank |= (numbers >= low) & (numbers <= high)
            values = np.where(np.isfinite(numbers) & ~is_blank, in_base(numbers, scale), np.nan)
    is_bad = np.zeros(len(texts), dtype=bool)
    for at in np.flatnonzero(np.isnan(values)):
        value = read_value(texts[int(at)], meaning)
        is_bad[at] = value is None
        values[at] = np.nan if value is None else value
    return values, is_bad


def read_value(text: str, meaning: Meaning) -> float | None:
    """Read one printed value in base units.

    Parameters
    ----------
    text : str
        As printed: ``76.89 W``, ``[N/A]``, ``0x0000000000000004``, ``Not Active``, ``16x``.
    meaning : Meaning
        Its column; of unit "?" the number is returned as it stands.

    Returns
    -------
    float or None
        NaN where the file says that there is no value; None where the text is no value of this kind.
    """
    text = text.strip()
    if is_missing(text):
        return math.nan
    if meaning.kind == "switch":
        return _read_switch(text, meaning.bits)
    if meaning.kind == "count" and (lanes := _LANES.match(text)):
        text = lanes[1]
    match = _VALUE.match(text)
    if match is None:
        return None
    value = float(match[1])
    if any(low <= value <= high for low, high in _BLANKS):
        return math.nan
    unit = match[2].strip()
    if meaning.kind == "count":
        return None if unit else value
    if not unit and meaning.unit == "?":
        return value
    found = unit_of(unit or meaning.unit)
    if found is None or found[0] != meaning.kind:
        return None
    return float(in_base(value, found[1]))


def in_base(value: float | np.ndarray, scale: float) -> float | np.ndarray:
    """Scale to the base unit; by division where that is exact, so that 41 % is 0.41 to the last digit."""
    return value / round(1 / scale) if 0 < scale < 1 else value * scale


_WORDS = {"active": 1.0, "not active": 0.0, "true": 1.0, "false": 0.0, "yes": 1.0, "no": 0.0}


def _read_switch(text: str, bits: int) -> float | None:
    if _HEX.match(text):
        return float(bool(int(text, 16) & bits)) if bits else None
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    match = _VALUE.match(text)
    if match is None:
        return None
    number = float(match[1])
    return float(bool(int(number) & bits)) if bits else float(number > 0)
