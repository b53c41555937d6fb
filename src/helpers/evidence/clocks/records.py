"""Times of one side on its own clock, and what offset a zone gives: years and days that were not printed filled in."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

NO_YEAR = 1904
"""Year of log stamps that print none (schema SAMPLES.ts); its first day where no date is printed either."""

DAY_S = 86_400.0
_PARTS = (-9.5, -3.5, -2.5, 3.5, 4.5, 5.5, 5.75, 6.5, 8.75, 9.5, 10.5, 12.75, 13.75)

ZONES_S = 3600.0 * np.sort(np.array([*range(-12, 15), *_PARTS]))
"""Local time minus UTC of every zone in use, summer time included [s]; source: IANA time zone database 2025b."""


@dataclass(frozen=True)
class Record:
    """Times of one side."""

    t_s: np.ndarray
    ts_s: np.ndarray  # printed stamps as seconds since 1970, NaN where none
    busy: np.ndarray | None

    @property
    def lo(self) -> float:
        """First time [s]."""
        return float(np.min(self.t_s))

    @property
    def hi(self) -> float:
        """Last time [s]."""
        return float(np.max(self.t_s))

    @property
    def span_s(self) -> float:
        """Time from first to last [s]."""
        return self.hi - self.lo

    @property
    def resolution_s(self) -> float:
        """1 s where every stamp falls on a whole second."""
        return 1.0 if bool(np.all(self.t_s == np.rint(self.t_s))) else 0.001

    @property
    def zero_s(self) -> float:
        """Printed time at t_s = 0; NaN without printed stamps."""
        known = np.flatnonzero(np.isfinite(self.ts_s))
        return float(self.ts_s[known[0]] - self.t_s[known[0]]) if len(known) else float("nan")

    @property
    def is_dateless(self) -> bool:
        """No date is printed: the time of day, or only the time since the start."""
        return self.first.year == NO_YEAR and self.first.day_of_year == 1

    @property
    def first(self) -> pd.Timestamp:
        """First printed stamp."""
        return pd.Timestamp(self.ts_s[np.isfinite(self.ts_s)][0], unit="s")


def record(ts: ArrayLike, t_s: ArrayLike, busy: ArrayLike | None) -> Record:
    """Build the record of one side; rows without a time are left out."""
    stamps = pd.to_datetime(pd.Series(np.asarray(ts))).to_numpy("datetime64[us]")
    printed = np.where(np.isnat(stamps), np.nan, stamps.astype(np.int64) / 1e6)
    seconds = pd.Series(np.asarray(t_s), dtype="float64").to_numpy()
    is_known = np.isfinite(seconds)
    values = None if busy is None else pd.Series(np.asarray(busy), dtype="float64").to_numpy()[is_known]
    return Record(seconds[is_known], printed[is_known], values)


def offset_of_zone(evidence: Record, log: Record, zone_s: float) -> float:
    """Return the offset for a zone (printed log time minus printed evidence time), years and days filled in."""
    if log.is_dateless:
        offset_s = evidence.zero_s + zone_s - log.zero_s
        # Two records share most of their time where their middles are nearest.
        apart_s = (log.lo + log.hi - evidence.lo - evidence.hi) / 2 - offset_s
        return float(offset_s + np.rint(apart_s / DAY_S) * DAY_S)
    if log.first.year != NO_YEAR:
        return evidence.zero_s + zone_s - log.zero_s
    offsets = []
    for year in (evidence.first.year, evidence.first.year - 1, evidence.first.year + 1):
        if (log.first.month, log.first.day) == (2, 29) and not pd.Timestamp(year, 1, 1).is_leap_year:
            continue
        moved_s = (log.first.replace(year=year) - log.first).total_seconds()
        offsets.append(evidence.zero_s + zone_s - (log.zero_s + moved_s))
    return min(offsets, key=lambda offset_s: gap_between(evidence, log, offset_s)) if offsets else float("nan")


def gap_between(evidence: Record, log: Record, offset_s: float) -> float:
    """Time between the two records at an offset; negative where they overlap [s]."""
    return max(evidence.lo + offset_s - log.hi, log.lo - evidence.hi - offset_s)


def overlap_frac(evidence: Record, log: Record, offset_s: float) -> float:
    """Return the common share of the shorter record; a single instant inside the other is all of it."""
    common = min(evidence.hi + offset_s, log.hi) - max(evidence.lo + offset_s, log.lo)
    shorter = min(evidence.span_s, log.span_s)
    return common / shorter if shorter > 0 else float(common >= 0)
