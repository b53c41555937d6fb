"""Which times a figure of phases shows: bands of labels, and the stretches between long times in which nothing ran."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pandas as pd

from helpers.display import show
from helpers.evidence.clocks.windows import MERGE_GAP_S, merge
from helpers.plots import style

MAX_STRETCHES = 4
"""Columns of a figure; more would be too narrow to read."""

CUT_FRAC = 0.25
"""A time without load is cut out if it is longer than this share of all the load."""

PAD_FRAC = 0.03
"""What is drawn before and after every stretch, as a share of all of them."""

NEAR_FRAC = 0.08
"""Samples this near to load are drawn with it, as a share of all the load; before the first and after the last load, as
near as CUT_FRAC. Twice the sum of this and PAD_FRAC is less than CUT_FRAC: stretches never meet."""

REACH_FRAC = 0.25
"""How far the log is drawn beyond the first and last sample, as a share of the time between the two."""

S_PER_H = 3600.0


@dataclass(frozen=True)
class Stretches:
    """Times that are drawn.

    Attributes
    ----------
    spans : tuple of (start_s, end_s)
        Rising and apart [s]; at least one.
    notes : tuple of str
        What is not drawn.
    """

    spans: tuple[tuple[float, float], ...]
    notes: tuple[str, ...]


def phase_spans(intervals: pd.DataFrame) -> pd.DataFrame:
    """Return the label of the server at every time that an interval covers.

    Parameters
    ----------
    intervals : DataFrame, schema INTERVALS
        ``t_s`` is the end of an interval; its ``idle_s`` lies at its start. Rows without a stamp or a length cover
        nothing.

    Returns
    -------
    DataFrame
        start_s, end_s [s], label: rising, never two labels at one time. Where ranks differ, the label of most of them
        (at a tie, the first of `style.LABEL_MARKS`); neighbours of one label are one span.
    """
    timed = intervals[intervals["t_s"].notna() & intervals["interval_s"].gt(0)]
    end_s, length_s = timed["t_s"].to_numpy(float), timed["interval_s"].to_numpy(float)
    idle_s = np.clip(timed["idle_s"].fillna(0.0).to_numpy(float), 0.0, length_s)
    label = timed["label"].to_numpy(object)
    is_idle = label == "idle"
    idle_s = np.where(is_idle, length_s, idle_s)
    starts = np.concatenate([end_s - length_s + idle_s, end_s - length_s])
    ends = np.concatenate([end_s, end_s - length_s + idle_s])
    labels = np.concatenate([label, np.full(len(label), "idle", dtype=object)])
    edges = np.unique(np.concatenate([starts, ends]))
    if len(edges) < 2:
        return pd.DataFrame({"start_s": [], "end_s": [], "label": []})
    names = list(style.LABEL_MARKS)
    n_ranks = np.zeros((len(names), len(edges)))
    for row, name in enumerate(names):
        is_own = (labels == name) & (ends > starts)
        np.add.at(n_ranks[row], np.searchsorted(edges, starts[is_own]), 1)
        np.add.at(n_ranks[row], np.searchsorted(edges, ends[is_own]), -1)
    open_ranks = n_ranks.cumsum(axis=1)[:, :-1]
    table = pd.DataFrame({"start_s": edges[:-1], "end_s": edges[1:], "label": open_ranks.argmax(axis=0)})
    table = table[open_ranks.max(axis=0) > 0]
    is_new = table["label"].ne(table["label"].shift()) | (table["start_s"] - table["end_s"].shift()).gt(MERGE_GAP_S)
    spans = table.groupby(is_new.cumsum()).agg(start_s=("start_s", "first"), end_s=("end_s", "last"),
                                               label=("label", "first"))
    return spans.assign(label=[names[index] for index in spans["label"]]).reset_index(drop=True)


def cover(spans: np.ndarray, limits: tuple[float, float]) -> np.ndarray:
    """Cut spans to what lies between limits.

    Parameters
    ----------
    spans : ndarray, shape (n, 2)
        Starts and ends [s].
    limits : (start_s, end_s)

    Returns
    -------
    ndarray, shape (m, 2)
        Only spans with a length.
    """
    cut = np.clip(spans, *limits)
    return cut[cut[:, 1] > cut[:, 0]]


def find_stretches(phases: pd.DataFrame, sample_s: np.ndarray, windows: Sequence[tuple[float, float]]) -> Stretches:
    """Choose the times that a figure shows: the load that was recorded, without long times in which nothing ran.

    Parameters
    ----------
    phases : DataFrame
        From `phase_spans`.
    sample_s : ndarray, shape (n,)
        Times of the samples on the log's clock [s], rising; at least one.
    windows : sequence of (start_s, end_s)
        Loaded windows [s]; they count as load.

    Returns
    -------
    Stretches
    """
    first, last = float(sample_s[0]), float(sample_s[-1])
    of_load = phases[phases["label"].ne("idle")]
    known = np.concatenate([of_load[["start_s", "end_s"]].to_numpy(float), np.array(windows, float).reshape(-1, 2)])
    reach = REACH_FRAC * (last - first)
    load = cover(known, (first - reach, last + reach))
    notes = []
    if len(load):
        unseen_s = _length_s(known) - _length_s(load)
        if unseen_s > MERGE_GAP_S:
            notes.append(f"not drawn: {long_time(unseen_s)} of load, far from any sample")
    elif len(known):
        notes.append("no sample was taken near the load of the log")
        load = np.concatenate([known, [[first, max(last, first + MERGE_GAP_S)]]])
    else:
        load = np.array([[first, max(last, first + MERGE_GAP_S)]])
    spans = merge(load[:, 0], load[:, 1])
    busy_s = sum(end - start for start, end in spans)
    gaps = sorted(((spans[i + 1][0] - spans[i][1], i) for i in range(len(spans) - 1)), reverse=True)
    cuts = sorted(i for gap_s, i in gaps[: MAX_STRETCHES - 1] if gap_s > CUT_FRAC * busy_s)
    bounds = [-1, *cuts, len(spans) - 1]
    pad_s = PAD_FRAC * busy_s
    chosen = []
    for before, at in pairwise(bounds):
        start, end = spans[before + 1][0], spans[at][1]
        lo = start - busy_s * (CUT_FRAC if before < 0 else NEAR_FRAC)
        hi = end + busy_s * (CUT_FRAC if at == len(spans) - 1 else NEAR_FRAC)
        near = sample_s[(sample_s >= lo) & (sample_s <= hi)]
        chosen.append((min([start, *near[:1]]) - pad_s, max([end, *near[-1:]]) + pad_s))
    if cuts:
        cut_s = sum(after[0] - before[1] for before, after in pairwise(chosen))
        notes.append(f"//: {long_time(cut_s)} in which nothing ran, cut out")
    is_drawn = np.zeros(len(sample_s), dtype=bool)
    for start, end in chosen:
        is_drawn |= (sample_s >= start) & (sample_s <= end)
    if not is_drawn.all():
        notes.append(f"{np.count_nonzero(~is_drawn)} samples lie outside what is drawn")
    return Stretches(tuple((float(start), float(end)) for start, end in chosen), tuple(notes))


def _length_s(spans: np.ndarray) -> float:
    """Return the time that spans cover, overlaps counted once [s]."""
    return sum(end - start for start, end in merge(spans[:, 0], spans[:, 1])) if len(spans) else 0.0


def long_time(time_s: float) -> str:
    """Write a time that may last for days [s]."""
    return f"{time_s / S_PER_H:.3g} h" if time_s >= 2 * S_PER_H else show(time_s, "duration")
