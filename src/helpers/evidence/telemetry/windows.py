"""Telemetry of a window beside that of the whole file: medians of a whole file hold start-up and idle time too."""

from __future__ import annotations

import numpy as np
import pandas as pd

from helpers.errors import NotEnoughData
from helpers.schema import TELEMETRY, check

IDLE_BUSY_FRAC = 0.05
"""A device that is busy for less than this, nine samples in ten, did nothing: a driver's own work stays below it."""

WORKING_POWER_RATIO = 2.0
"""A board that draws this many times what the least drawing one draws works, whatever its busy share says. Loaded and
waiting boards draw up to 1.55 times the power of empty ones (118 W against 76 W on an H200)."""

RESTING_POWER_FRAC = 0.6
"""Without a busy share: a board below this part of the highest power in the file rests."""

WORKING_POWER_FRAC = 0.8
"""Without a busy share: a board above this part of the highest power works, if the file shows a resting board."""

_STATISTICS = (("median", 0.5), ("p10", 0.1), ("p90", 0.9))
_NO_QUANTITY = ("file", "line_no", "ts", "t_s", "device", "device_name", "rank", "extra")

SUMMARY_COLUMNS = (
    "device", "rank", "column",
    *(f"{of}_{name}" for of in ("window", "file") for name in ("n", "median", "mean", "p10", "p90")), "is_idle",
)
"""Columns of `summarise`, in this order."""


def window(table: pd.DataFrame, start_s: float, end_s: float) -> pd.DataFrame:
    """Return the samples of a window.

    Parameters
    ----------
    table : DataFrame, schema TELEMETRY
        Samples of one clock.
    start_s, end_s : float
        Window on the file's own clock (``t_s``), both ends included.

    Returns
    -------
    DataFrame, schema TELEMETRY
        Possibly empty; with a fresh index.

    Raises
    ------
    NotEnoughData
        No sample has a time: give the period of the samples when reading.
    """
    check(table, TELEMETRY)
    if len(table) and table["t_s"].isna().all():
        raise NotEnoughData("telemetry: expected samples with times, found none; give period_s when reading the file")
    return table[table["t_s"].between(start_s, end_s)].reset_index(drop=True)


def summarise(telemetry_table: pd.DataFrame, start_s: float, end_s: float) -> pd.DataFrame:
    """Return the middle and the range of every quantity, for the window and for the whole file.

    Parameters
    ----------
    telemetry_table : DataFrame, schema TELEMETRY
        Samples of one clock.
    start_s, end_s : float
        Window on the file's own clock (``t_s``), both ends included.

    Returns
    -------
    DataFrame
        One row per device or rank and column that has a value in the file (SUMMARY_COLUMNS): ``window_n`` values in
        the window, their median, mean, 10th and 90th percentile (linear between order statistics), the same of the
        whole file, and ``is_idle``. Flags are 0 and 1, so that their mean is the share of samples.

    Raises
    ------
    NotEnoughData
        No sample has a time.

    Notes
    -----
    ``is_idle``: the device did nothing in the window. Where a busy share is recorded: its 90th percentile is at most
    IDLE_BUSY_FRAC, and the board does not draw WORKING_POWER_RATIO times what the least drawing one draws (then the
    two contradict each other: missing). With power alone: its 90th percentile is below RESTING_POWER_FRAC of the
    highest of the file; above WORKING_POWER_FRAC it works, if any board of the file rests at some time; else missing.
    A rank is idle if no request ran or waited. Averages over devices should leave idle ones out.
    """
    inside = _long(window(telemetry_table, start_s, end_s))
    everything = _long(telemetry_table)
    keys = ["device", "rank", "column"]
    if everything.empty:
        return pd.DataFrame(columns=list(SUMMARY_COLUMNS))
    both = _statistics(everything, keys, "file").join(_statistics(inside, keys, "window"), how="left").reset_index()
    both["window_n"] = both["window_n"].fillna(0).astype("int64")
    idle = {key: _is_idle(rows, both) for key, rows in both.groupby(["device", "rank"], dropna=False)}
    both["is_idle"] = pd.array([idle[key] for key in zip(both["device"], both["rank"], strict=True)], dtype="boolean")
    for name in ("device", "rank"):
        both[name] = both[name].where(both[name] != "")
    return both[list(SUMMARY_COLUMNS)]


def _long(table: pd.DataFrame) -> pd.DataFrame:
    """Return one row per value: device, rank ("" where missing), column, value."""
    quantities = [column.name for column in TELEMETRY.columns if column.name not in _NO_QUANTITY]
    values = table[quantities].astype("float64")
    used = [name for name in quantities if values[name].notna().any()]
    wide = values[used].assign(device=table["device"].fillna(""), rank=table["rank"].fillna(""))
    long = wide.melt(id_vars=["device", "rank"], var_name="column", value_name="value").dropna(subset="value")
    return long.assign(column=pd.Categorical(long["column"], categories=quantities, ordered=True))


def _statistics(long: pd.DataFrame, keys: list[str], prefix: str) -> pd.DataFrame:
    grouped = long.groupby(keys, observed=True, sort=True)["value"]
    columns = {f"{prefix}_n": grouped.size(), f"{prefix}_mean": grouped.mean()}
    columns |= {f"{prefix}_{name}": grouped.quantile(q) for name, q in _STATISTICS}
    return pd.DataFrame(columns)


def _is_idle(rows: pd.DataFrame, summary: pd.DataFrame) -> bool | None:
    """Judge one device or rank by its rows of the summary; None where they do not tell."""
    recorded = rows[rows["window_n"] > 0]
    mean, median, high = (dict(zip(recorded["column"].astype(str), recorded[f"window_{name}"].map(float), strict=True))
                          for name in ("mean", "median", "p90"))
    held = [mean[name] for name in ("running_req", "queue_req") if name in mean]
    if held:
        return not any(held)
    power = summary[summary["column"] == "power_w"]
    lowest = float(np.nanmin(power["file_p10"].to_numpy(dtype=float), initial=np.inf))
    highest = float(np.nanmax(power[["file_p90", "window_p90"]].to_numpy(dtype=float), initial=0.0))
    if "busy_frac" in high:
        if high["busy_frac"] > IDLE_BUSY_FRAC:
            return False
        return None if median.get("power_w", 0.0) >= WORKING_POWER_RATIO * lowest else True
    if "power_w" not in high or highest <= 0:
        return None
    ratio = high["power_w"] / highest
    if ratio < RESTING_POWER_FRAC:
        return True
    return False if ratio >= WORKING_POWER_FRAC and lowest < RESTING_POWER_FRAC * highest else None
