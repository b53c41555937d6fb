"""What the figure of telemetry says in its title and notes: medians of the loaded windows, beside the whole file's."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from helpers.display import show
from helpers.evidence.telemetry.windows import summarise

MAX_NAMED = 6
"""Idle devices named in a note."""

SAME_FRAC = 0.05
"""Medians of devices closer than this are one number."""


def members(table: pd.DataFrame) -> pd.Series:
    """Name the device or rank of every row, as a legend does.

    Parameters
    ----------
    table : DataFrame, schema TELEMETRY

    Returns
    -------
    Series of str
        "device 0" for a bare index, else as printed; "rank DP0" is its own name; "one device" where none is printed.
    """
    device = table["device"].fillna("")
    is_index = device.str.fullmatch(r"\d+")
    named = device.where(~is_index, "device " + device)
    return named.where(device.ne(""), table["rank"].fillna("")).replace("", "one device")


def finding(timed: pd.DataFrame, windows: Sequence[tuple[float, float]]) -> str:
    """State what the boards or ranks did in the loaded windows, by medians.

    Parameters
    ----------
    timed : DataFrame, schema TELEMETRY, with member and is_inside
    windows : sequence of (start_s, end_s)
    """
    loaded = timed[timed["is_inside"]]
    if not windows:
        return f"The log has no loaded window that {len(timed)} samples could be held against"
    if loaded.empty:
        return f"None of {len(timed)} samples lies in the loaded windows"
    working = loaded[~loaded["member"].isin(_idle(loaded))]
    if boards := _of_boards(working):
        return f"In the loaded windows {boards} (median)"
    if ranks := _of_ranks(loaded):
        return f"In the loaded windows {ranks} (mean)"
    return f"{len(loaded)} of {len(timed)} samples lie in the loaded windows"


def notes(
    table: pd.DataFrame, timed: pd.DataFrame, windows: Sequence[tuple[float, float]], margin_s: float
) -> list[str]:
    """Say which samples count, what the whole file would give, and what else a reader must know.

    Parameters
    ----------
    table, timed : DataFrame, schema TELEMETRY
        All rows; those with a time, with member and is_inside.
    windows : sequence of (start_s, end_s)
        Without the margin.
    margin_s : float
        What was taken off both ends of every window [s].
    """
    loaded = timed[timed["is_inside"]]
    plural = "" if len(windows) == 1 else "s"
    said = [f"filled: the {len(loaded)} of {len(timed)} samples in {len(windows)} loaded window{plural}; "
            "hollow: the others"]
    if margin_s > 0 and windows:
        said.append(f"windows without {margin_s:.3g} s at both ends, as the clocks are not surer")
    idle = _idle(loaded)
    working = timed[~timed["member"].isin(idle)]
    whole = _of_boards(working)
    if whole and len(loaded) < len(timed):
        is_same = whole == _of_boards(working[working["is_inside"]])
        said.append("the medians of the whole file, start-up and idle time included, are "
                    + ("the same" if is_same else f"different: {whole}"))
    if idle:
        named = ", ".join([*idle[:MAX_NAMED], *([f"{len(idle) - MAX_NAMED} more"] if len(idle) > MAX_NAMED else [])])
        said.append(f"idle in the windows, so in no median: {named}")
    held = loaded.loc[~loaded["member"].isin(idle)]
    for column, cause in (("is_power_capped", "power"), ("is_thermally_slowed", "temperature")):
        flags = held[column].dropna().astype(float)
        if len(flags) and flags.mean() > 0:
            said.append(f"{cause} held the clock down in {100 * flags.mean():.3g} % of the samples in the windows")
    if len(timed) < len(table):
        said.append(f"{len(table) - len(timed)} samples have no time and are left out")
    return said


def _idle(loaded: pd.DataFrame) -> list[str]:
    """Name the devices that did nothing in the windows; none if all did nothing."""
    if loaded.empty:
        return []
    summary = summarise(loaded.drop(columns=["member", "is_inside"]), -np.inf, np.inf)
    idle = summary[summary["is_idle"].fillna(False) & summary["device"].notna()]
    found = list(dict.fromkeys(members(idle)))
    return found if len(found) < loaded["member"].nunique() else []


def _of_boards(rows: pd.DataFrame) -> str:
    """State power and busy share of boards; empty where neither is recorded."""
    told = rows[rows[["power_w", "busy_frac", "dram_active_frac"]].notna().any(axis=1)]
    if told.empty:
        return ""
    subject, draw, are, move = (
        ("the board", "draws", "is", "moves") if told["member"].nunique() == 1 else ("boards", "draw", "are", "move"))
    parts = []
    if power := _middle(told, "power_w", "W"):
        limit = _middle(told, "power_limit_w", "W")
        parts.append(f"{draw} {power} of {limit}" if limit else f"{draw} {power}")
    if busy := _middle(told, "busy_frac", "%"):
        parts.append(f"{are} busy {busy} of the time")
    if dram := _middle(told, "dram_active_frac", "%"):
        parts.append(f"{move} data in DRAM {dram} of the time")
    return f"{subject} {', '.join(parts[:-1])} and {parts[-1]}" if len(parts) > 1 else f"{subject} {parts[0]}"


def _middle(rows: pd.DataFrame, column: str, unit: str) -> str:
    """Write the median; of devices that differ, or of a limit that changed, the least and the highest."""
    known = rows[rows[column].notna()]
    if known.empty:
        return ""
    scale = 100.0 if unit == "%" else 1.0
    by_member = known.groupby("member")[column].median()
    ends = known[column] if column == "power_limit_w" else by_member
    lo, hi = scale * float(ends.min()), scale * float(ends.max())
    if hi - lo <= SAME_FRAC * hi:
        return show(scale * float(known[column].median()), unit)
    return f"{show(lo)} to {show(hi, unit)}"


def _of_ranks(rows: pd.DataFrame) -> str:
    """State how requests are spread over ranks, waiting ones included; empty where no rank has gauges."""
    known = rows[rows["running_req"].notna()]
    if known.empty:
        return ""
    mean = known.groupby("member")[["running_req", "queue_req"]].mean()
    held = mean.sum(axis=1).sort_values(kind="stable")
    fullest, waiting = str(held.index[-1]), float(mean["queue_req"].fillna(0.0)[held.index[-1]])
    first = f"rank {fullest} holds {held.iloc[-1]:.3g} requests"
    first += f", {waiting:.3g} of them waiting" if waiting else ""
    if len(held) == 1:
        return first
    lo, hi = float(held.iloc[0]), float(held.iloc[-2])
    others = f"{hi:.3g}" if hi - lo <= SAME_FRAC * hi else f"{lo:.3g} to {hi:.3g}"
    return f"{first}; the other {len(held) - 1} hold {others}"
