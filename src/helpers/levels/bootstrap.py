"""Moving-block bootstrap of a level's estimate: the same draws and the same medians as by hand, without every pick.

A level of a day's log has a hundred thousand blocks, and 400 resamples of it 40 million picks. A median needs few of
them: the picks below a window around the level's own median are only counted, by sums over whole blocks of picks, and
those inside it are looked at one by one. Where a resample's median falls outside the window, all its picks are taken.
"""

from __future__ import annotations

import numpy as np
from scipy import stats

RESAMPLES = 400
"""Bootstrap resamples per level: the ends of a 95 % interval are then known to a tenth of its width."""

MAX_PICKS = 4_000_000
"""Indices of the bootstrap held at a time: a level of a million iterations would take gigabytes in one go."""

BOOTSTRAP_BLOCK = 3
"""Ticks per bootstrap block: noise between ticks is correlated (AR(1), phi 0.5 to 0.8; physics 6.1)."""

FEW_VALUES = 2_000
"""Values up to which picking all of them is as fast as counting."""

WINDOW_SDS = 4.5
"""Half width of the window, in standard deviations of the rank of a median of blocks that move as one: one resample in
100,000 lies beyond it."""

NEAR = np.uint8(128)
"""Bit of a start whose block of picks has some in the window; the bits below count its picks under the window."""


def bootstrap_interval(
    time_s: np.ndarray, steps: np.ndarray, use_median: bool, confidence: float
) -> tuple[float, float]:
    """Moving-block bootstrap of the level's estimate, widened by t over normal for the few blocks it has.

    Parameters
    ----------
    time_s : array, shape (n_blocks,)
        Time of each block of steps [s].
    steps : array, shape (n_blocks,)
        Steps of each block.
    use_median : bool
        Estimate by the median of time per step, else by the ratio of sums.
    confidence : float in (0, 1)

    Returns
    -------
    tuple of float
        Lower and upper end [s]; NaN with fewer than two blocks.
    """
    n = len(steps)
    if n < 2:
        return np.nan, np.nan
    length = min(BOOTSTRAP_BLOCK, max(1, n // 2))
    rng = np.random.default_rng(n)
    n_draws = -(-n // length)
    at_once = max(1, MAX_PICKS // n)
    step_s = time_s / steps if use_median else time_s
    medians = _Medians(step_s, length) if use_median and n > FEW_VALUES and np.isfinite(step_s).all() else None
    parts = []
    for first in range(0, RESAMPLES, at_once):
        starts = rng.integers(0, n - length + 1, size=(min(at_once, RESAMPLES - first), n_draws))
        if medians is not None:
            parts.append(np.array([medians.of(row) for row in starts]))
            continue
        picks = (starts[:, :, None] + np.arange(length)).reshape(len(starts), -1)[:, :n]
        parts.append(np.median(step_s[picks], axis=1) if use_median else
                     time_s[picks].sum(axis=1) / steps[picks].sum(axis=1))
    draws = np.concatenate(parts)
    centre = float(np.median(step_s)) if use_median else float(time_s.sum() / steps.sum())
    tail = (1 - confidence) / 2
    low, high = np.quantile(draws, [tail, 1 - tail])
    effective = max(2.0, n / length)
    widen = stats.t.ppf(1 - tail, effective - 1) / stats.norm.ppf(1 - tail)
    return max(0.0, centre + widen * (low - centre)), centre + widen * (high - centre)


class _Medians:
    """Medians of resamples of some values, each resample given by the starts of its blocks of picks.

    Parameters
    ----------
    values : array, shape (n,)
        Finite.
    length : int
        Picks per block; the last block of a resample is cut so that it has n picks in all.
    """

    def __init__(self, values: np.ndarray, length: int) -> None:
        n = len(values)
        self.values, self.length = values, length
        self.n_last = n - (-(-n // length) - 1) * length
        half = int(WINDOW_SDS * 0.5 * np.sqrt(n * length)) + 1
        ends = max(n // 2 - half, 0), min(n // 2 + half, n - 1)
        self.low, self.high = np.partition(values, ends)[list(ends)]
        self.ranks = (n - 1) // 2, n // 2
        self.is_below = values < self.low
        blocks = np.lib.stride_tricks.sliding_window_view(self.is_below, length)
        is_inside = (values >= self.low) & (values <= self.high)
        is_near = np.lib.stride_tricks.sliding_window_view(is_inside, length).any(axis=1)
        # One byte per start holds both: gathers through them take most of the time.
        self.code = blocks.sum(axis=1, dtype=np.uint8) + NEAR * is_near

    def of(self, starts: np.ndarray) -> float:
        """Return the median of one resample, bit for bit that of all its picks."""
        whole, last = starts[:-1], starts[-1] + np.arange(self.n_last)
        code = self.code.take(whole)
        n_below = int((code & (NEAR - 1)).sum(dtype=np.int64)) + int(self.is_below[last].sum())
        near = whole[np.flatnonzero(code >= NEAR)]
        found = self.values[np.concatenate([(near[:, None] + np.arange(self.length)).ravel(), last])]
        found = found[(found >= self.low) & (found <= self.high)]
        places = [rank - n_below for rank in self.ranks]
        if places[0] < 0 or places[1] >= len(found):
            picks = np.concatenate([(whole[:, None] + np.arange(self.length)).ravel(), last])
            return float(np.median(self.values[picks]))
        return float(np.mean(np.partition(found, places)[places]))
