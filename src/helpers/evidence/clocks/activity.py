"""When a log and a piece of evidence were at work, and at which shift the two shapes fit.

The fit is a correlation over the cells that both cover. How surely one shift beats another is told by the likelihood
of two correlated Gaussian series, with as many independent cells as their autocorrelations leave (Bartlett 1946,
doi:10.2307/2983611).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.signal import correlate

MIN_CELL_S, MAX_CELL_S = 1.0, 10.0
"""Grid of the comparison: log stamps have whole seconds, windows of vLLM ten."""

MAX_CELLS = 2**19
"""Cells of one side; a longer record is compared on a coarser grid."""

HOLD_SPACINGS = 3.0
"""A log that is silent for longer than so many of its longer spacings (three in four are shorter) was idle: engines
print nothing then, while a decode line may take 40 slow steps."""

BLUR_SPACINGS = 3.0
"""How far lines may lag behind the work, in times for which one speaks; largest lag seen in simulated logs: 2.9."""

TREND_S, TREND_SPACINGS = 60.0, 12.0
"""Work is compared with its mean over this time, or so many spacings of log lines and samples."""

MIN_OVERLAP_FRAC = 0.8
"""Least share of the shorter record that both must cover: a short piece fits in many places."""

MIN_CORRELATION = 0.6
MIN_CORRELATION_WITHOUT = 0.4
"""What must be left when the stretch that fits best is taken out: one dip in each record is no shape."""

MIN_SCORE = 6.0
"""Standard errors (Fisher's z) above no correlation; with 1e5 shifts tried, chance alone reaches 4.9."""

LOG_LIKELIHOOD_DROP = 4.5
"""Half of three standard errors squared: shifts that fit the data as well as the best one, at three of them."""

RIVAL_DROP = 8.0
"""Half of four standard errors squared: by how much the best shift must beat every one elsewhere."""


@dataclass(frozen=True)
class Match:
    """How well the evidence fits the log at every shift.

    Attributes
    ----------
    offset_s : array [s]
        Shifts, rising: log time is evidence time plus shift.
    correlation : array [1]
        NaN where the two overlap too little or one of them is constant there.
    n_independent : array [1]
        Independent cells in the overlap.
    cell_s : float
        Grid [s].
    width_s : float
        Shifts nearer than this belong to one peak [s].
    spacing_s : float
        Time for which a line of the log speaks [s].
    log_cells, evidence_cells : arrays
        What was compared, without trend.
    window_cells : int
        Cells of the trend.
    span_ratio : float
        Shorter over longer record [1].
    """

    offset_s: np.ndarray
    correlation: np.ndarray
    n_independent: np.ndarray
    cell_s: float
    width_s: float
    spacing_s: float
    log_cells: np.ndarray
    evidence_cells: np.ndarray
    window_cells: int
    span_ratio: float

    @property
    def score(self) -> np.ndarray:
        """Standard errors of each correlation above none; -inf where unknown."""
        z = np.arctanh(np.clip(self.correlation, -0.9999, 0.9999)) * np.sqrt(np.maximum(self.n_independent - 3, 0))
        return np.where(np.isfinite(z), z, -np.inf)

    def best(self, is_allowed: np.ndarray | None = None) -> int | None:
        """Return the place of the best shift among those allowed, or None."""
        score = self.score if is_allowed is None else np.where(is_allowed, self.score, -np.inf)
        at = int(np.argmax(score)) if len(score) else 0
        return at if len(score) and np.isfinite(score[at]) else None

    def is_convincing(self, at: int, is_allowed: np.ndarray | None = None) -> bool:
        """Tell whether a shift fits well, and better than every allowed one elsewhere."""
        if self.correlation[at] < MIN_CORRELATION or self.score[at] < MIN_SCORE:
            return False
        if self.least_without(at) < MIN_CORRELATION_WITHOUT:
            return False
        elsewhere = np.abs(self.offset_s - self.offset_s[at]) > self.width_s
        if is_allowed is not None:
            elsewhere &= is_allowed
        rivals = self.drop(at)[elsewhere]
        return bool(np.all(~np.isfinite(rivals) | (rivals > RIVAL_DROP)))

    def least_without(self, at: int) -> float:
        """Return the lowest correlation at a shift when any one stretch, as long as the trend, is left out [1]."""
        shift = at - (len(self.evidence_cells) - 1)
        first, end = max(shift, 0), min(len(self.log_cells), shift + len(self.evidence_cells))
        x, y = self.log_cells[first:end], self.evidence_cells[first - shift : end - shift]
        both = np.isfinite(x) & np.isfinite(y)
        terms = np.vstack([np.ones(len(x)), x, y, x * x, y * y, x * y])
        sums = np.cumsum(np.where(both, terms, 0.0), axis=1)
        sums = np.hstack([np.zeros((6, 1)), sums])
        length = min(self.window_cells, len(x))
        n, sum_x, sum_y, xx, yy, xy = sums[:, -1:] - (sums[:, length:] - sums[:, : len(x) + 1 - length])
        n = np.maximum(n, 1)
        var = (xx - sum_x**2 / n) * (yy - sum_y**2 / n)
        is_flat = var <= 1e-9 * max(float(np.max(var)), 1e-300)
        left = np.where(is_flat, 0.0, (xy - sum_x * sum_y / n) / np.sqrt(np.where(is_flat, 1.0, var)))
        return float(np.min(left))

    def drop(self, at: int) -> np.ndarray:
        """Log-likelihood that each shift loses against the one at a place; NaN where unknown."""
        r = np.clip(self.correlation, 0, 0.9999)
        return self.n_independent[at] / 2 * np.log((1 - r**2) / (1 - r[at] ** 2))

    def half_width_s(self, at: int) -> float:
        """Return how far the true shift may be from this one [s].

        As far as the data fit as well; and a line speaks for a time before its stamp whose length alone is known.
        """
        fits = self.drop(at) <= LOG_LIKELIHOOD_DROP
        near = fits & (np.abs(self.offset_s - self.offset_s[at]) <= self.width_s)
        reach_s = float(np.max(np.abs(self.offset_s[near] - self.offset_s[at])))
        return reach_s + self.cell_s + BLUR_SPACINGS * self.spacing_s


def log_activity(samples: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Return when a log was at work.

    Parameters
    ----------
    samples : DataFrame
        SAMPLES or INTERVALS: at least ``t_s`` [s] and ``running_req`` [req].

    Returns
    -------
    t_s : array, rising [s]
        Stamps of the rank that prints most: ranks print one after another, and only one rank's lines lie evenly.
    busy : array [req]
        Requests at work in the time before each stamp, of all ranks as they last said; at least one where a line tells
        of prefill or of tokens.
    """
    known = samples[samples["t_s"].notna()]
    busy = known["running_req"].astype("float64").fillna(0.0)
    is_work = pd.Series(False, index=known.index)
    if "kind" in known:
        is_work |= known["kind"].isin(["prefill", "request"])
    for name in ("decode_tok_per_s", "prefill_tok_per_s"):
        if name in known:
            is_work |= known[name].gt(0)
    busy = busy.where(~is_work, busy.clip(lower=1.0))
    rank = known["rank"].fillna("") if "rank" in known else pd.Series("", index=known.index)
    by_rank = busy.groupby([known["t_s"], rank]).max().unstack()
    if by_rank.empty:
        return np.array([]), np.array([])
    main = by_rank.columns[int(np.argmax(by_rank.notna().sum()))]
    total = by_rank.ffill().sum(axis=1)[by_rank[main].notna()]
    return total.index.to_numpy(dtype=float), total.to_numpy(dtype=float)


def device_activity(telemetry: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Return when devices (or ranks) were at work, by the column that tells most.

    Parameters
    ----------
    telemetry : DataFrame, schema TELEMETRY

    Returns
    -------
    t_s : array, rising [s]
    busy : array
        Running requests, else power [W], else utilisation; mean over devices with the same stamp. Empty where none of
        them changes: utilisation of spinning devices is one throughout and tells nothing.
    """
    for name in ("running_req", "power_w", "busy_frac", "dram_active_frac"):
        known = telemetry[telemetry[name].notna() & telemetry["t_s"].notna()]
        if known.empty:
            continue
        # Boards differ, and one may be idle throughout: each is counted from its own mean.
        who = known["device"].fillna("") + "/" + known["rank"].fillna("")
        changes = known[name] - known[name].groupby(who).transform("mean")
        if changes.abs().max() > 0.02 * known[name].abs().max():
            mean = changes.groupby(known["t_s"]).mean()
            return mean.index.to_numpy(dtype=float), mean.to_numpy(dtype=float)
    return np.array([]), np.array([])


def run_activity(start_s: np.ndarray, duration_s: np.ndarray, pad_s: float = 600.0) -> tuple[np.ndarray, np.ndarray]:
    """Return when a client was at work, taking it for idle between its runs and for some time around them.

    Parameters
    ----------
    start_s, duration_s : arrays [s]
        Of each run, on one clock.
    pad_s : float
        Time before the first and after the last run that counts as idle [s].

    Returns
    -------
    t_s : array [s]
        Every second, or every tenth of a record longer than a day.
    busy : array
        Runs at work.
    """
    start_s, end_s = np.asarray(start_s, dtype=float), np.asarray(start_s, dtype=float) + duration_s
    step_s = 1.0 if end_s.max() - start_s.min() < 86_400 else 10.0
    t_s = np.arange(start_s.min() - pad_s, end_s.max() + pad_s, step_s)
    begun = np.searchsorted(np.sort(start_s), t_s, side="right")
    ended = np.searchsorted(np.sort(end_s), t_s, side="right")
    return t_s, (begun - ended).astype(float)


def spacing_of(t_s: np.ndarray) -> float:
    """Return the usual time between two different stamps [s]; 0 for fewer than two."""
    steps = np.diff(np.unique(t_s))
    return float(np.median(steps)) if len(steps) else 0.0


def match(
    evidence_t_s: np.ndarray, evidence_busy: np.ndarray, log_t_s: np.ndarray, log_busy: np.ndarray,
    *, is_log_idle_outside: bool = False,
) -> Match | None:
    """Compare two activities at every shift.

    Parameters
    ----------
    evidence_t_s, log_t_s : arrays [s]
        Each on its own clock; rows without a time or a value are left out.
    evidence_busy, log_busy : arrays
        In any unit: only their shapes are compared. A value of the log tells of the time before its stamp.
    is_log_idle_outside : bool
        Take the server for idle before the first and after the last line, else for unknown.

    Returns
    -------
    Match or None
        None where one of them holds fewer than three stamps or never changes.
    """
    evidence_t_s, evidence_busy = _known(evidence_t_s, evidence_busy)
    log_t_s, log_busy = _known(log_t_s, log_busy)
    if min(len(np.unique(evidence_t_s)), len(np.unique(log_t_s))) < 3:
        return None
    period_s, spacing_s = spacing_of(evidence_t_s), _blur_s(log_t_s)
    spans = [np.ptp(evidence_t_s), np.ptp(log_t_s)]
    cell_s = float(max(np.clip(period_s, MIN_CELL_S, MAX_CELL_S), max(spans) / MAX_CELLS))
    pad_s = spans[0] if is_log_idle_outside else 0.0
    log_at, in_log = _cells_of_log(log_t_s, log_busy, cell_s, pad_s)
    evidence_at, in_evidence = _cells_of_samples(evidence_t_s, evidence_busy, period_s, cell_s)
    if not (np.ptp(in_log) > 0 and np.nanmax(in_evidence) > np.nanmin(in_evidence)):
        return None
    # Requests are compared by their logarithm: power and traffic rise less than in proportion.
    in_log = np.log2(1 + np.maximum(in_log, 0))
    # Slow trends fit at many shifts; when work begins, ends or changes does not.
    window = int(max(TREND_S, TREND_SPACINGS * spacing_s, TREND_SPACINGS * period_s) / cell_s) | 1
    in_log, in_evidence = _without_trend(in_log, window), _without_trend(in_evidence, window)
    correlation, n_cells = _correlations(in_log, in_evidence)
    shifts = np.arange(-(len(in_evidence) - 1), len(in_log)) * cell_s + (log_at - evidence_at)
    width, dependence = _dependence(in_log, in_evidence)
    is_enough = n_cells * cell_s >= MIN_OVERLAP_FRAC * min(spans)
    return Match(shifts, np.where(is_enough, correlation, np.nan), n_cells / dependence, cell_s,
                 max(width * cell_s, 3 * cell_s), spacing_s, in_log, in_evidence, window,
                 float(min(spans) / max(spans)))


def _without_trend(cells: np.ndarray, window: int) -> np.ndarray:
    """Take off the mean of the cells around each one."""
    return cells - pd.Series(cells).rolling(window, center=True, min_periods=1).mean().to_numpy()


def _hold_s(t_s: np.ndarray) -> float:
    """Return the longest time that a line may speak for [s]."""
    return HOLD_SPACINGS * float(np.quantile(np.diff(np.unique(t_s)), 0.75))


def _blur_s(t_s: np.ndarray) -> float:
    """Return for how long a line speaks at a random moment of work [s]: bursts of lines do not make it shorter."""
    steps = np.diff(np.unique(t_s))
    steps = steps[steps <= max(_hold_s(t_s), 1.0)]
    return float((steps**2).sum() / steps.sum()) if len(steps) else 0.0


def _known(t_s: np.ndarray, busy: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    t_s, busy = np.asarray(t_s, dtype=float), np.asarray(busy, dtype=float)
    order = np.argsort(t_s, kind="stable")
    order = order[np.isfinite(t_s[order]) & np.isfinite(busy[order])]
    return t_s[order], busy[order]


def _cells_of_log(
    t_s: np.ndarray, busy: np.ndarray, cell_s: float, pad_s: float
) -> tuple[float, np.ndarray]:
    """Return the centre of the first cell and the cells: a value holds before its stamp, not longer than usual."""
    centres = np.arange(t_s[0] - pad_s, t_s[-1] + pad_s + cell_s / 2, cell_s)
    after = np.searchsorted(t_s, centres, side="left")
    is_inside = after < len(t_s)
    nearest = np.minimum(after, len(t_s) - 1)
    is_held = is_inside & (t_s[nearest] - centres <= max(_hold_s(t_s), HOLD_SPACINGS * cell_s))
    return float(centres[0]), np.where(is_held, busy[nearest], 0.0)


def _cells_of_samples(
    t_s: np.ndarray, busy: np.ndarray, period_s: float, cell_s: float
) -> tuple[float, np.ndarray]:
    """Return the centre of the first cell and the cells: mean of the samples in it, the one before it, or NaN."""
    place = np.rint((t_s - t_s[0]) / cell_s).astype(int)
    n = np.bincount(place).astype(float)
    mean = np.divide(np.bincount(place, busy), n, out=np.full(len(n), np.nan), where=n > 0)
    limit = int(np.ceil(1.5 * period_s / cell_s))
    return float(t_s[0]), pd.Series(mean).ffill(limit=limit).to_numpy()


def _correlations(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return correlation and number of common cells at every shift, over known cells only.

    Sums over the overlap by Fourier transform (Padfield 2012, doi:10.1109/TIP.2011.2181402).
    """
    has_x, has_y = np.isfinite(x), np.isfinite(y)
    x, y = (np.where(has, (v - np.nanmean(v)) / np.nanstd(v), 0.0) for v, has in ((x, has_x), (y, has_y)))
    in_x, in_y = has_x.astype(float), has_y.astype(float)

    def over(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return correlate(a, b, mode="full", method="fft")

    n = np.rint(over(in_x, in_y))
    some = np.maximum(n, 1)
    sum_x, sum_y = over(x, in_y), over(in_x, y)
    var_x = over(x * x, in_y) - sum_x**2 / some
    var_y = over(in_x, y * y) - sum_y**2 / some
    # Below this share of the whole scatter an overlap is as good as constant, and the ratio would be noise.
    is_flat = (var_x < 0.02 * n) | (var_y < 0.02 * n) | (n < 3)
    scale = np.sqrt(np.where(is_flat, 1.0, var_x * var_y))
    return np.where(is_flat, np.nan, (over(x, y) - sum_x * sum_y / some) / scale), n


def _dependence(x: np.ndarray, y: np.ndarray) -> tuple[int, float]:
    """Return the width of a peak in cells, and how many cells are worth one independent cell."""
    rho = _own_correlation(x)
    other = _own_correlation(y)
    both = rho[: min(len(rho), len(other))] * other[: min(len(rho), len(other))]
    below = np.flatnonzero(both[1:] <= 0.02)
    end = int(below[0]) + 1 if len(below) else len(both)
    return end, float(1 + 2 * both[1:end].sum())


def _own_correlation(x: np.ndarray) -> np.ndarray:
    """Return the autocorrelation from shift 0 up to a quarter of the record, 0 from where it first vanishes."""
    centred = np.where(np.isfinite(x), x - np.nanmean(x), 0.0)
    full = correlate(centred, centred, mode="full", method="fft")[len(x) - 1 :]
    rho = full[: max(len(x) // 4, 2)] / full[0]
    below = np.flatnonzero(rho <= 0)
    rho[below[0] if len(below) else len(rho) :] = 0.0
    return rho
