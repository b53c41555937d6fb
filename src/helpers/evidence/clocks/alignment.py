"""One clock for a log and what else was recorded: the offset, how it was found, and how far it can be off.

A log prints local time without a zone, at whole seconds, and often without a year; telemetry prints the local time of
another container, or UTC, or only the seconds since it began. Nothing is moved in silence: a `Clock` says in words what
was assumed, and is refused where several readings fit.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from helpers.evidence.clocks.activity import Match, device_activity, log_activity, match, run_activity, spacing_of
from helpers.evidence.clocks.choice import Clock, Pair, by_activity, by_stamps, refused
from helpers.evidence.clocks.records import Record, overlap_frac, record
from helpers.evidence.clocks.windows import clip, phases_window
from helpers.schema import NotEnoughData

__all__ = ["Clock", "align", "align_runs", "align_telemetry", "clip", "phases_window", "to_log_time"]

CLIENT_START_S = 120.0
"""How long after its own start a client may send its first request: it loads a tokenizer and checks the server."""


def align(
    evidence_ts: ArrayLike, evidence_t_s: ArrayLike, evidence_clock: str, log_ts: ArrayLike, log_t_s: ArrayLike, *,
    log_busy: ArrayLike | None = None, evidence_busy: ArrayLike | None = None, offset_s: float | None = None,
    log_zone_offset_s: float | None = None, period_s: float | None = None,
) -> Clock:
    """Find the offset between the times of some evidence and those of the log.

    Parameters
    ----------
    evidence_ts, evidence_t_s : arrays
        Stamps as printed (datetime64, UTC if the clock is "epoch"; missing if it has none), and seconds on the
        evidence's own clock [s].
    evidence_clock : {"local", "epoch", "elapsed", "none"}
        What its stamps are.
    log_ts, log_t_s : arrays
        Stamps as printed (schema SAMPLES.ts: 1904 where no year, 1904-01-01 where no date) and seconds [s].
    log_busy, evidence_busy : arrays, optional
        Work at each time (requests, power, utilisation): with both, the shapes confirm or decide (`activity.match`).
    offset_s : float, optional
        Given by the user: nothing is derived [s].
    log_zone_offset_s : float, optional
        The log's local time minus UTC, where known [s]; only evidence in UTC can use it.
    period_s : float, optional
        Time between two samples of the evidence [s]; found from its times if not given. 0 for exact moments.

    Returns
    -------
    Clock
        Refused (offset NaN), with what would tell, where no reading or more than one fits.
    """
    evidence, log = record(evidence_ts, evidence_t_s, evidence_busy), record(log_ts, log_t_s, log_busy)
    spacing_s = spacing_of(evidence.t_s) if period_s is None else period_s
    found = None
    if evidence.busy is not None and log.busy is not None and offset_s is None:
        found = match(evidence.t_s, evidence.busy, log.t_s, log.busy)
    return _decide(evidence, log, evidence_clock, found, spacing_s, offset_s, log_zone_offset_s)


def _decide(
    evidence: Record, log: Record, evidence_clock: str, found: Match | None, spacing_s: float, offset_s: float | None,
    log_zone_offset_s: float | None, lead_s: float = 0.0,
) -> Clock:
    if not len(evidence.t_s):
        return refused("the evidence holds no times: give the time between its samples and its start")
    if not len(log.t_s):
        return refused("the log holds no times: nothing can be put on its clock")
    if offset_s is not None:
        is_other = overlap_frac(evidence, log, offset_s) <= 0
        notes = ("at the offset given, the evidence is of another time",) if is_other else ()
        return Clock(float(offset_s), 0.0, "given by the user", True, notes)
    # Times are cut off at their resolution, on either side.
    uncertainty_s = evidence.resolution_s + log.resolution_s + spacing_s
    if evidence_clock not in ("local", "epoch") or not np.isfinite(evidence.zero_s):
        return by_activity(found, uncertainty_s + lead_s, "the evidence tells only elapsed time", "its start time")
    if not np.isfinite(log.zero_s):
        return by_activity(found, uncertainty_s + lead_s, "the log prints no time of day", "the time of its first line")
    return by_stamps(Pair(evidence, log, evidence_clock, found, uncertainty_s, lead_s), log_zone_offset_s)


def align_telemetry(
    telemetry: pd.DataFrame, telemetry_clock: str, samples: pd.DataFrame, *, offset_s: float | None = None,
    log_zone_offset_s: float | None = None,
) -> Clock:
    """Align a table of telemetry with a log, by stamps and by the work in both.

    Parameters
    ----------
    telemetry : DataFrame, schema TELEMETRY
    telemetry_clock : str
        As `align`.
    samples : DataFrame
        SAMPLES or INTERVALS of the log.
    offset_s, log_zone_offset_s : float, optional
        As `align` [s].

    Returns
    -------
    Clock
    """
    t_s, busy = device_activity(telemetry)
    work = pd.Series(busy, index=t_s).reindex(telemetry["t_s"]) if len(t_s) else None
    log = _log_record(samples)
    return align(
        telemetry["ts"], telemetry["t_s"], telemetry_clock, _datetimes(log.ts_s), log.t_s, log_busy=log.busy,
        evidence_busy=work, offset_s=offset_s, log_zone_offset_s=log_zone_offset_s,
        # Devices are sampled some ms apart: the period is that of one of them.
        period_s=float(telemetry.groupby(["device", "rank"], dropna=False)["t_s"].agg(
            lambda own: spacing_of(own.dropna().to_numpy(dtype=float))).max()) if len(telemetry) else None,
    )


def align_runs(
    start_epoch_s: ArrayLike, duration_s: ArrayLike, samples: pd.DataFrame, *, offset_s: float | None = None,
    log_zone_offset_s: float | None = None,
) -> Clock:
    """Align runs of a client, whose start is known in UTC, with a log in local time.

    Parameters
    ----------
    start_epoch_s, duration_s : arrays [s]
        Of each run (CLIENTS); runs without a start are left out.
    samples : DataFrame
        SAMPLES or INTERVALS of the log.
    offset_s, log_zone_offset_s : float, optional
        As `align` [s].

    Returns
    -------
    Clock
        ``t_s`` of the log = seconds since 1970 + offset_s.
    """
    start_s, length_s = np.asarray(start_epoch_s, dtype=float), np.asarray(duration_s, dtype=float)
    is_known = np.isfinite(start_s)
    if not is_known.any():
        return refused("no run tells when it started: give an offset")
    start_s, length_s = start_s[is_known], np.nan_to_num(length_s[is_known])
    moments = np.concatenate([start_s, start_s + length_s])
    evidence, log = record(_datetimes(moments), moments, None), _log_record(samples)
    found = None
    if offset_s is None and log.busy is not None and len(log.t_s):
        found = match(*run_activity(start_s, length_s), log.t_s, log.busy, is_log_idle_outside=True)
    return _decide(evidence, log, "epoch", found, 0.0, offset_s, log_zone_offset_s, CLIENT_START_S)


def _log_record(samples: pd.DataFrame) -> Record:
    """Return stamps and work of a log, one row per time."""
    t_s, busy = log_activity(samples)
    first = samples.dropna(subset="t_s").groupby("t_s")["ts"].first()
    return record(first.reindex(t_s), t_s, busy)


def _datetimes(seconds: np.ndarray) -> np.ndarray:
    """Return seconds since 1970 as datetimes, missing ones as missing."""
    micro = np.where(np.isfinite(seconds), np.rint(np.nan_to_num(seconds) * 1e6), np.iinfo(np.int64).min)
    return micro.astype(np.int64).view("datetime64[us]")


def to_log_time(table: pd.DataFrame, clock: Clock) -> pd.DataFrame:
    """Put a table of evidence on the log's clock.

    Parameters
    ----------
    table : DataFrame
        With ``t_s``, or ``start_epoch_s`` (CLIENTS), or ``start_s`` and ``is_epoch`` (REQUESTS).
    clock : Clock

    Returns
    -------
    DataFrame
        A copy with ``t_s`` [s] on the log's clock, missing where a row has no such time.

    Raises
    ------
    NotEnoughData
        The clock was refused, or the table has no time.
    """
    if clock.is_refused:
        raise NotEnoughData(f"cannot be put on the log's clock: {clock.how}")
    if "t_s" in table:
        own = table["t_s"]
    elif "start_epoch_s" in table:
        own = table["start_epoch_s"]
    elif "start_s" in table and "is_epoch" in table:
        own = table["start_s"].where(table["is_epoch"].fillna(False).astype(bool))
    else:
        raise NotEnoughData(f"expected a column t_s, start_epoch_s or start_s, found {list(table.columns)}")
    return table.assign(t_s=own.astype("float64") + clock.offset_s)
