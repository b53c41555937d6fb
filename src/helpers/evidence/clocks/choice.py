"""The offset that stamps, zones and the work in both records allow, or why none can be given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from helpers.evidence.clocks.activity import LOG_LIKELIHOOD_DROP, Match
from helpers.evidence.clocks.records import DAY_S, NO_YEAR, ZONES_S, Record, gap_between, offset_of_zone, overlap_frac

MAX_DRIFT_S = 300.0
"""How far clocks that are meant to be the same are looked for apart: less than half of the least step between zones."""

MIN_OVERLAP_FRAC = 0.5
"""Least share of the shorter record in the time of the other, for a zone to be possible."""

MIN_SPAN_RATIO = 0.5
"""Least length of one record against the other, to be placed by its shape alone: loads repeat, and a short piece then
fits at the wrong repeat (1 of 34 placed in 150 simulated logs)."""

CONTAINED_FRAC = 0.9
"""Share of the shorter record in the time of the other from which they are of one time."""


@dataclass(frozen=True)
class Clock:
    """How times of one piece of evidence become times of the log.

    Attributes
    ----------
    offset_s : float
        ``t_s`` of the log = ``t_s`` of the evidence + offset_s [s]; NaN where it was refused.
    uncertainty_s : float
        How far the offset can be off [s]: resolution of both stamps and the time between two samples, and the width of
        the match where work decided. An offset by stamps takes both clocks for right: a clock that was minutes off is
        found only where the shapes of the work tell.
    how : str
        What it rests on, or why it was refused and what would tell.
    is_certain : bool
        False where another reading is possible: read the warnings.
    warnings : tuple of str
    """

    offset_s: float
    uncertainty_s: float
    how: str
    is_certain: bool
    warnings: tuple[str, ...] = ()

    @property
    def is_refused(self) -> bool:
        """No offset could be given."""
        return not np.isfinite(self.offset_s)


@dataclass(frozen=True)
class Pair:
    """The two records to be put on one clock.

    Attributes
    ----------
    evidence, log : Record
    evidence_clock : str
        "local" or "epoch".
    found : Match or None
        How the work in both fits.
    uncertainty_s : float
        Resolution and sampling [s].
    lead_s : float
        How long the evidence may begin before its work does [s]: 0 for telemetry, the start-up of a client.
    """

    evidence: Record
    log: Record
    evidence_clock: str
    found: Match | None
    uncertainty_s: float
    lead_s: float = 0.0

    def offset(self, zone_s: float) -> float:
        """Offset for a zone: printed log time minus printed evidence time [s], to the microsecond of stamps."""
        return round(offset_of_zone(self.evidence, self.log, zone_s), 6)

    def overlap(self, offset_s: float) -> float:
        """Share of the shorter record in the time of the other [1]."""
        return overlap_frac(self.evidence, self.log, offset_s)

    def tolerance(self, at: int) -> float:
        """How far a shift by the work may be from one by stamps and still agree with it [s]."""
        return self.uncertainty_s + self.lead_s + (self.found.half_width_s(at) if self.found else 0.0)

    def uncertainty(self, at: int, offset_s: float) -> float:
        """Uncertainty of an offset that a shift by the work agrees with [s]: it covers both where they differ."""
        if self.found is None or self.lead_s or abs(self.found.offset_s[at] - offset_s) <= self.uncertainty_s:
            return self.uncertainty_s
        return float(abs(self.found.offset_s[at] - offset_s)) + self.found.half_width_s(at)


def refused(why: str, *warnings: str) -> Clock:
    """Return a clock without an offset."""
    return Clock(float("nan"), float("nan"), why, False, warnings)


def by_activity(found: Match | None, uncertainty_s: float, why: str, what: str) -> Clock:
    """Align by the shape of the work alone, or refuse.

    Parameters
    ----------
    found : Match or None
    uncertainty_s : float
        Of the evidence's own times [s].
    why : str
        Why stamps cannot tell.
    what : str
        What would.
    """
    ask = f"give {what}, or an offset"
    if found is None:
        return refused(f"{why}, and the work in both has no shape to compare: {ask}")
    if found.span_ratio < MIN_SPAN_RATIO:
        return refused(f"{why}, and one record is too short a piece of the other to be placed by its shape: {ask}")
    at = found.best()
    if at is None or not found.is_convincing(at):
        return refused(f"{why}, and the work in it fits the log at several times or at none: {ask}")
    return Clock(
        float(found.offset_s[at]), found.half_width_s(at) + uncertainty_s,
        f"stretches of work matched (correlation {found.correlation[at]:.2f})", False,
        (f"{why}: that it is of this run is read from the shape of its work alone",),
    )


def by_stamps(pair: Pair, log_zone_s: float | None) -> Clock:
    """Align printed stamps: the same zone, a given one, or the one that fits.

    Parameters
    ----------
    pair : Pair
    log_zone_s : float or None
        The log's local time minus UTC, where known [s].
    """
    log, is_local = pair.log, pair.evidence_clock == "local"
    notes = []
    if log.is_dateless:
        notes.append("the log prints no date: its time of day is taken for that of the evidence's days")
    elif log.first.year == NO_YEAR:
        notes.append(f"the log prints no year: {pair.evidence.first.year} is taken, from the evidence")
    if is_local and log_zone_s is not None:
        notes.append("a zone of the log says nothing about evidence in local time")
    zone_s = 0.0 if is_local or log_zone_s is None else log_zone_s
    base_s = pair.offset(zone_s)
    is_known = is_local or log_zone_s is not None
    if is_known and pair.overlap(base_s) > 0:
        how = "both stamps local, same zone assumed" if is_local else (
            f"evidence in UTC, zone of the log given: {_hours(zone_s)}")
        clock = Clock(base_s, pair.uncertainty_s, how, not log.is_dateless, tuple(notes))
        return _held_against_work(clock, pair)
    if log.is_dateless:
        return by_activity(pair.found, pair.uncertainty_s + pair.lead_s,
                           "the log prints no date, or only the time since its start", "the time of its first line")
    if is_known and not is_local:
        return refused(_other_time(pair, base_s), *notes)
    return _by_zone(pair, notes)


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:+g} h"


def _apart(seconds: float) -> str:
    for size, name in ((DAY_S, "days"), (3600.0, "hours"), (60.0, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {name}"
    return f"{seconds:.0f} s"


def _other_time(pair: Pair, offset_s: float) -> str:
    gap_s = gap_between(pair.evidence, pair.log, offset_s)
    if not np.isfinite(gap_s):
        return "the log prints a 29 February, which the years of the evidence do not have: it is of another year"
    where = "after" if offset_s + pair.evidence.lo > pair.log.hi else "before"
    return (f"the evidence is of another time: {_apart(gap_s)} {where} the log's records; give an offset if a clock "
            "was wrong")


def _held_against_work(clock: Clock, pair: Pair) -> Clock:
    """Keep an offset by stamps unless the work in both clearly fits another one."""
    overlap = pair.overlap(clock.offset_s)
    if overlap < MIN_OVERLAP_FRAC:
        said = f"only {overlap:.0%} of the shorter record lies in the time of the other"
        clock = replace(clock, warnings=(*clock.warnings, said))
    found = pair.found
    if found is None:
        return clock
    zones_s = np.unique([*ZONES_S, *-ZONES_S]) if pair.evidence_clock == "local" else np.array([0.0])
    apart_s = found.offset_s - clock.offset_s
    nearest_s = _nearest(zones_s, apart_s)
    is_allowed = np.abs(apart_s - nearest_s) <= MAX_DRIFT_S
    at = found.best(is_allowed)
    if at is None or not found.is_convincing(at, is_allowed):
        return clock
    here = int(np.argmin(np.abs(apart_s)))
    if abs(apart_s[at]) <= pair.tolerance(at):
        said = f"{clock.how}; the work in both agrees (correlation {found.correlation[at]:.2f})"
        return replace(clock, how=said, is_certain=True, uncertainty_s=pair.uncertainty(at, clock.offset_s))
    if found.drop(at)[here] <= LOG_LIKELIHOOD_DROP or pair.lead_s:
        return clock
    if nearest_s[at] and abs(apart_s[at] - nearest_s[at]) <= pair.tolerance(at):
        return replace(
            clock, offset_s=clock.offset_s + float(nearest_s[at]), is_certain=True,
            how=f"zone derived from the work in both: {_hours(nearest_s[at])}",
            warnings=(*clock.warnings, "the stamps overlap as printed too, but the work does not fit there"))
    said = (f"the two clocks differ by {apart_s[at]:+.0f} s: the work in both fits with a correlation of "
            f"{found.correlation[at]:.2f} there, {found.correlation[here]:.2f} by the stamps")
    return replace(
        clock, offset_s=float(found.offset_s[at]), is_certain=False, how="stamps, corrected by the work in both",
        uncertainty_s=found.half_width_s(at) + clock.uncertainty_s, warnings=(*clock.warnings, said))


def _nearest(values: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Return for each wanted number the nearest of some values."""
    middle = (values[1:] + values[:-1]) / 2
    return values[np.searchsorted(middle, wanted)]


def _by_zone(pair: Pair, notes: Sequence[str]) -> Clock:
    """Find the zone: by the work in both, by the ends, by the one overlap that stands out, or refuse."""
    is_local = pair.evidence_clock == "local"
    zones_s = np.unique([*ZONES_S, *-ZONES_S]) if is_local else ZONES_S
    offsets = np.array([pair.offset(zone_s) for zone_s in zones_s])
    overlaps = np.array([pair.overlap(offset_s) for offset_s in offsets])
    is_fit = overlaps >= MIN_OVERLAP_FRAC
    if not is_fit.any():
        return refused(_other_time(pair, pair.offset(0.0)), *notes)
    zones_s, offsets, overlaps = zones_s[is_fit], offsets[is_fit], overlaps[is_fit]
    by_work = _zone_by_work(pair, zones_s, offsets, notes)
    if by_work is not None:
        return by_work
    ends_s = np.maximum(np.abs(pair.evidence.lo + offsets - pair.log.lo),
                        np.abs(pair.evidence.hi + offsets - pair.log.hi))
    at_utc = np.flatnonzero(zones_s == 0)
    doubts = []
    if ends_s.min() <= MAX_DRIFT_S:
        chosen, why = int(np.argmin(ends_s)), "zone derived: {}; both begin and end together"
    elif len(zones_s) == 1:
        chosen, why = 0, "zone derived: {}; only there do the two cover the same time"
    elif not is_local and len(at_utc):
        chosen, why = int(at_utc[0]), "zone assumed: {}; several fit, the log is taken to be in UTC"
        doubts = [f"{len(zones_s)} zones fit the times: give the log's zone if it was not UTC"]
    else:
        return refused(f"zones from {_hours(zones_s.min())} to {_hours(zones_s.max())} fit the times and nothing tells "
                       "them apart: give the log's zone or an offset", *notes)
    if zones_s[chosen]:
        doubts.append(f"evidence of another run, {abs(zones_s[chosen]) / 3600:g} h apart, would look the same: give "
                      "the log's zone or an offset to be sure")
    elif overlaps[chosen] < CONTAINED_FRAC:
        doubts.append(f"only {overlaps[chosen]:.0%} of the shorter record lies in the time of the other")
    return Clock(float(offsets[chosen]), pair.uncertainty_s, why.format(_hours(zones_s[chosen])), not doubts,
                 (*notes, *doubts))


def _zone_by_work(pair: Pair, zones_s: np.ndarray, offsets: np.ndarray, notes: Sequence[str]) -> Clock | None:
    """Return the zone that the work in both decides for, or None where it decides for none."""
    found = pair.found
    if found is None:
        return None
    near = (np.abs(found.offset_s[:, None] - offsets[None, :]) <= MAX_DRIFT_S).any(axis=1)
    at = found.best(near)
    if at is None or not found.is_convincing(at, near):
        return None
    chosen = int(np.argmin(np.abs(offsets - found.offset_s[at])))
    apart_s = float(found.offset_s[at] - offsets[chosen])
    zone = _hours(zones_s[chosen])
    if abs(apart_s) <= pair.tolerance(at):
        how = f"zone derived: {zone}; the work in both agrees (correlation {found.correlation[at]:.2f})"
        return Clock(float(offsets[chosen]), pair.uncertainty(at, offsets[chosen]), how, True, tuple(notes))
    if pair.lead_s:
        return None
    return Clock(float(found.offset_s[at]), found.half_width_s(at) + pair.uncertainty_s,
                 f"zone derived: {zone}, corrected by the work in both", False,
                 (*notes, f"the two clocks differ by {apart_s:+.0f} s beside the zone"))
