"""Windows of a log, and what of other tables lies in them: figures of different times are never compared."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

MERGE_GAP_S = 1.0
"""Windows this close are one: log stamps have whole seconds."""

Windows = list[tuple[float, float]]


def phases_window(
    intervals: pd.DataFrame, labels: Sequence[str] = ("steady",), *, only_clean: bool = False
) -> Windows:
    """Return the times that intervals with some labels cover.

    Parameters
    ----------
    intervals : DataFrame, schema INTERVALS
        Their ``t_s`` is the end of the interval; intervals of several ranks add up to one set of times.
    labels : sequence of str
        Labels wanted (schema.LABELS).
    only_clean : bool
        Only intervals in which nothing but decode steps of a constant batch happened.

    Returns
    -------
    list of (start_s, end_s)
        On the log's clock [s], rising, merged where they touch. Intervals without a stamp or a length cover none; idle
        time at the start of an interval belongs to it only if "idle" is wanted.
    """
    is_wanted = intervals["label"].isin(list(labels)) & intervals["t_s"].notna() & intervals["interval_s"].notna()
    if only_clean:
        is_wanted &= intervals["clean"]
    chosen = intervals[is_wanted]
    length_s = chosen["interval_s"]
    if "idle" not in labels:
        length_s = length_s - chosen["idle_s"].fillna(0.0)
    chosen_end = chosen["t_s"].to_numpy(dtype=float)
    return merge(chosen_end - length_s.clip(lower=0.0).to_numpy(dtype=float), chosen_end)


def merge(start_s: np.ndarray, end_s: np.ndarray) -> Windows:
    """Join windows that touch or overlap.

    Parameters
    ----------
    start_s, end_s : arrays [s]

    Returns
    -------
    list of (start_s, end_s)
    """
    found: Windows = []
    for at in np.argsort(start_s, kind="stable"):
        start, end = float(start_s[at]), float(end_s[at])
        if end <= start:
            continue
        if found and start <= found[-1][1] + MERGE_GAP_S:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return found


def clip(table: pd.DataFrame, windows: Sequence[tuple[float, float]], *, margin_s: float = 0.0) -> pd.DataFrame:
    """Keep the rows of a table that lie inside windows.

    Parameters
    ----------
    table : DataFrame
        With ``t_s`` on the log's clock [s]; rows without one lie in no window.
    windows : sequence of (start_s, end_s)
        Rising and apart, as `phases_window` gives them; both ends are inside.
    margin_s : float
        Taken off at both ends of every window [s]: the uncertainty of the clock, so that no row is from outside.

    Returns
    -------
    DataFrame
        The rows, in their order, with their index.
    """
    inside = [(start + margin_s, end - margin_s) for start, end in windows if end - start >= 2 * margin_s]
    t_s = table["t_s"].to_numpy(dtype=float)
    if not inside:
        return table.iloc[:0]
    starts, ends = (np.array(side) for side in zip(*inside, strict=True))
    at = np.searchsorted(starts, t_s, side="right") - 1
    return table[(at >= 0) & (t_s <= ends[np.maximum(at, 0)])]
