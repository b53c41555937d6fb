"""The hardware catalogue: data/catalog/hardware.csv in base units, and the look-up by name.

The catalogue's columns are as vendors print them (GB, GB/s, TFLOP/s); this is the one place that scales
them. Rates are dense, with 32-bit accumulation.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd

from helpers import paths
from helpers.physics.catalogue.lookup import find_name
from helpers.schema import LogFormatError, RooflogError

GB_BYTES = 1e9  # bandwidth is decimal
GIB_BYTES = 2**30  # capacity is binary: a "96 GB" board reports 97,887 MiB, a "268 GB" one 275,040 MiB
MIB_BYTES = 2**20  # caches, likewise
TERA = 1e12
MEGA = 1e6

_SCALED = {
    "mem_gb": ("mem_bytes", GIB_BYTES),
    "mem_bw_gbs": ("mem_bw_bytes_per_s", GB_BYTES),
    "bf16_dense_tflops": ("bf16_flop_per_s", TERA),
    "fp16_dense_tflops": ("fp16_flop_per_s", TERA),
    "fp8_dense_tflops": ("fp8_flop_per_s", TERA),
    "fp4_dense_tflops": ("fp4_flop_per_s", TERA),
    "int8_dense_tops": ("int8_flop_per_s", TERA),
    "fp32_tflops": ("fp32_flop_per_s", TERA),
    "derived_bf16_tflops": ("bf16_from_clock_flop_per_s", TERA),
    "sm_count": ("sm_count", 1.0),
    "l2_mb": ("l2_bytes", MIB_BYTES),
    "tdp_w": ("tdp_w", 1.0),
    "pcie_gbs_per_dir": ("pcie_bytes_per_s", GB_BYTES),
    "scaleup_gbs_per_dir": ("scaleup_bytes_per_s", GB_BYTES),
    "flop_per_clk_sm_bf16": ("bf16_flop_per_clk_sm", 1.0),
    "boost_mhz": ("boost_hz", MEGA),
    "eta_mem_measured": ("eta_mem_measured_frac", 1.0),
}
_TEXT = (
    "name", "vendor", "arch", "compute_capability", "mem_type", "pcie", "scaleup", "vendor_number_style", "source",
    "confidence", "notes",
)
_DOUBT_WORDS = ("not confirmed", "unverified", "unsourced", "not sourced")
_NOISE_WORDS = frozenset(
    "nvidia amd intel google huawei apple tesla instinct radeon edition generation oam gpu".split()
)
_SXM = " SXM SXM2 SXM3 SXM4 SXM5"  # drivers print the board's form with its generation, the catalogue mostly does not
_PRODUCT_NAMES = {
    # What the driver prints is one product, although its words fit several rows of the catalogue.
    "H200 SXM 141GB": ("NVIDIA H200", "H200"),
    "RTX PRO 6000 Blackwell Max-Q": (
        "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "RTX PRO 6000 Blackwell Max-Q Workstation Edition",
    ),
    "GH200 96GB": ("NVIDIA GH200 480GB", "GH200 480GB"),
    "DGX Spark GB10": ("NVIDIA GB10", "GB10"),
}


@dataclass(frozen=True)
class Hardware:
    """One accelerator in base units; None where the catalogue has no number.

    Attributes
    ----------
    name : str
        Catalogue name, or any name for hardware given by hand.
    mem_bw_bytes_per_s : float
        Peak memory bandwidth [bytes/s].
    mem_bytes, l2_bytes : float or None
        Memory and last-level cache [bytes].
    bf16_flop_per_s ... fp32_flop_per_s : float or None
        Dense peak rates [FLOP/s] (int8: operations per second); fp32 is the non-tensor rate.
    bf16_from_clock_flop_per_s : float or None
        SM count x FLOP per clock x boost clock: a check of the printed rate [FLOP/s].
    tdp_w : float or None
        Board power [W]; the limit that is set may be lower.
    pcie_bytes_per_s, scaleup_bytes_per_s : float or None
        Usable link bandwidth per direction [bytes/s].
    eta_mem_measured_frac : float or None
        Measured share of the peak bandwidth: matrix products of at most 16 rows on BF16 operands above 400 MB.
    source, confidence, notes : str
        Where the numbers come from; high, medium, low or given.
    """

    name: str
    mem_bw_bytes_per_s: float
    vendor: str = ""
    arch: str = ""
    compute_capability: str = ""
    mem_bytes: float | None = None
    mem_type: str = ""
    bf16_flop_per_s: float | None = None
    fp16_flop_per_s: float | None = None
    fp8_flop_per_s: float | None = None
    fp4_flop_per_s: float | None = None
    int8_flop_per_s: float | None = None
    fp32_flop_per_s: float | None = None
    bf16_from_clock_flop_per_s: float | None = None
    sm_count: float | None = None
    l2_bytes: float | None = None
    tdp_w: float | None = None
    pcie: str = ""
    pcie_bytes_per_s: float | None = None
    scaleup: str = ""
    scaleup_bytes_per_s: float | None = None
    bf16_flop_per_clk_sm: float | None = None
    boost_hz: float | None = None
    eta_mem_measured_frac: float | None = None
    vendor_number_style: str = ""
    source: str = "given by hand"
    confidence: str = "given"
    notes: str = ""

    def __post_init__(self) -> None:
        """Refuse hardware without a bandwidth: nothing could be computed from it."""
        if not self.mem_bw_bytes_per_s > 0:
            raise RooflogError(f"{self.name}: expected mem_bw_bytes_per_s > 0, found {self.mem_bw_bytes_per_s}")

    @property
    def warnings(self) -> tuple[str, ...]:
        """Doubts about this row that a reader must see."""
        if self.confidence == "low":
            return (f"{self.name}: low confidence in the catalogue's numbers ({self.notes}); give your own",)
        if any(word in self.notes.lower() for word in _DOUBT_WORDS):
            return (f"{self.name}: part of the catalogue's row is not confirmed ({self.notes})",)
        return ()


def catalogue(path: str | Path | None = None) -> pd.DataFrame:
    """Return the catalogue in base units, one row per accelerator.

    Parameters
    ----------
    path : path, optional
        Another table with the same columns; the bundled one by default.

    Returns
    -------
    DataFrame
        Columns are the fields of `Hardware`; numbers are float64 with NaN where none is known.

    Raises
    ------
    LogFormatError
        A column is missing, or a row has no source, no confidence or no bandwidth.
    """
    file = Path(path) if path is not None else paths.data_dir() / "catalog" / "hardware.csv"
    raw = pd.read_csv(file, dtype={name: "str" for name in _TEXT}, keep_default_na=False, na_values=[""])
    missing = [name for name in (*_TEXT, *_SCALED) if name not in raw.columns]
    if missing:
        raise LogFormatError(f"{file}: expected the columns of the hardware catalogue, found none named {missing}")
    table = {name: raw[name].fillna("") for name in _TEXT}
    table |= {name: raw[column].astype("float64") * scale for column, (name, scale) in _SCALED.items()}
    hardware = pd.DataFrame(table)
    bad = hardware[(hardware["source"] == "") | (hardware["confidence"] == "") | hardware["mem_bw_bytes_per_s"].isna()]
    if len(bad):
        raise LogFormatError(
            f"{file}: expected source, confidence and bandwidth in every row, found none of one in {list(bad['name'])}"
        )
    return hardware


def find(name: str) -> Hardware:
    """Look an accelerator up by the name a person or a driver writes.

    Tried in order: the exact name; a product name as the driver prints it; all words of the request in one row
    only (words of the name, memory type and size); the letters of the request inside one name only.

    Parameters
    ----------
    name : str
        For example ``"H100 SXM 80GB"``, ``"h100-sxm"``, ``"NVIDIA H100 80GB HBM3"``, ``"4090"``.

    Returns
    -------
    Hardware
        See its ``warnings``.

    Raises
    ------
    RooflogError
        No row or several rows fit; the message lists the names to choose from.

    Examples
    --------
    >>> find("h100-sxm").mem_bw_bytes_per_s
    3350000000000.0
    """
    rows = _by_name()
    match = find_name(
        name,
        {known: _PRODUCT_NAMES.get(known, ()) for known in rows},
        what="hardware",
        where="rooflog hardware",
        noise=_NOISE_WORDS,
        described={known: f"{known} {row.mem_type}{_SXM * ('SXM' in known)}" for known, row in rows.items()},
    )
    return rows[match.name]


@cache
def _by_name() -> dict[str, Hardware]:
    rows = {}
    for record in catalogue().to_dict("records"):
        fields: dict[str, Any] = {str(key): None if pd.isna(value) else value for key, value in record.items()}
        rows[str(record["name"])] = Hardware(**fields)
    return rows
