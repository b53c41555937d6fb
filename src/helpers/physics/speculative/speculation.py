"""Speculative decoding from what a log prints: rounds, acceptance, and whether the round is constant.

A round is one draft and one verification: running_req requests gain accept_len tokens each, bonus token included.
`acceptance` says what accept lengths mean, `payoff` what another accept length or draft would give.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from scipy.stats import t as student_t

from helpers.schema import Parameter, RooflogError

MIN_ACCEPT_LENS = 3
"""Distinct accept lengths below which a line and its intercept cannot be told from each other."""

MIN_SERIES = 10
"""Points of a time series from which the autocorrelation of its residuals is estimated."""

VAGUE_FRAC = 0.2
"""Half width of the intercept's interval over the mean rate, above which a constant round is hardly tested [1]."""

CONTEXT_SPREAD = 1.2
"""Largest over smallest context of the points above which the rounds may differ through it (physics.md 6.4) [1]."""

UNKNOWN = Parameter("unknown", np.nan, np.nan, np.nan, "")


def round_s(
    running_req: float | np.ndarray, decode_tok_per_s: float | np.ndarray, accept_len: float | np.ndarray
) -> np.ndarray:
    """Return the time of one draft-and-verify round [s]: running_req x accept_len / decode_tok_per_s.

    Parameters
    ----------
    running_req, decode_tok_per_s, accept_len : float or array
        Requests in the batch [req], their rate together [tok/s], tokens per request and round. NaN stays NaN.

    Raises
    ------
    RooflogError
        A request count or a rate that is not positive, an accept length below 1.

    Examples
    --------
    >>> round(float(round_s(1, 55, 3.08)), 4)  # field case B
    0.056
    """
    n, rate, length = (np.asarray(values, dtype="float64") for values in (running_req, decode_tok_per_s, accept_len))
    for name, values, is_bad, expected in (
        ("running_req", n, n <= 0, "above 0 req"), ("decode_tok_per_s", rate, rate <= 0, "above 0 tok/s"),
        ("accept_len", length, length < 1, "at least 1, the bonus token included"),
    ):
        if is_bad.any():
            raise RooflogError(f"{name}: expected {expected}, found {values[is_bad].min():g}")
    return n * length / rate


@dataclass(frozen=True)
class AcceptanceLine:
    """Rate over accept length at one running_req: the line through the origin, and the free line that tests it.

    Attributes
    ----------
    running_req : float
        The level [req].
    accept_len, decode_tok_per_s : tuple of float
        The points [tok], [tok/s].
    mean_round : Parameter
        Mean of the points' rounds [s].
    through_origin : Parameter
        Slope running_req / round [tok/s/tok].
    round : Parameter
        The round of that slope [s].
    free_slope, free_intercept : Parameter
        Least squares with an intercept [tok/s/tok], [tok/s].
    dof : float
        Degrees of freedom of the free line; fewer than points - 2 where a log's residuals are autocorrelated.
    confidence : float
        Of every interval.
    warnings : tuple of str
        Doubts a reader must see.
    refused : str or None
        Why no line is drawn; the lines are NaN, the mean round stays if there are points.
    """

    running_req: float
    accept_len: tuple[float, ...]
    decode_tok_per_s: tuple[float, ...]
    mean_round: Parameter
    through_origin: Parameter
    round: Parameter
    free_slope: Parameter
    free_intercept: Parameter
    dof: float
    confidence: float = 0.95
    warnings: tuple[str, ...] = ()
    refused: str | None = None

    @property
    def is_round_constant(self) -> bool | None:
        """False if the intercept's interval excludes 0: draft length or padding changes with acceptance. None: unknown.

        True says that a constant round is compatible with the points, not what the round is made of.
        """
        if self.refused or not np.isfinite(self.free_intercept.lo):
            return None
        return self.free_intercept.lo <= 0 <= self.free_intercept.hi

    @property
    def is_vague(self) -> bool:
        """Tell whether the intercept is so uncertain that a constant round is hardly tested."""
        half = (self.free_intercept.hi - self.free_intercept.lo) / 2
        return bool(half > VAGUE_FRAC * np.mean(self.decode_tok_per_s))


def acceptance_line(
    table: pd.DataFrame, *, running_req: float | None = None, confidence: float = 0.95
) -> AcceptanceLine:
    """Fit the rate over the accept length at one level.

    Parameters
    ----------
    table : DataFrame
        LEVELS or INTERVALS (clean ones are used), or any table with running_req, accept_len and one of step_s (the
        round) and decode_tok_per_s.
    running_req : float, optional
        The level [req]; by default the one with most distinct accept lengths.
    confidence : float in (0, 1)
        Of every interval.

    Returns
    -------
    AcceptanceLine
        ``refused`` without a round at that level, or with fewer than `MIN_ACCEPT_LENS` distinct accept lengths.

    Raises
    ------
    RooflogError
        A column is missing.

    Notes
    -----
    tok/s = running_req x accept_len / round, so a round that does not depend on acceptance is a line through the
    origin. Rates are those of the rank that sets the round: running_req x accept_len / step_s. Intervals use Student's
    t; in INTERVALS, a time series, the points count n (1 - r) / (1 + r) with r the autocorrelation of the residuals.
    """
    rows = _speculative_rows(table)
    if rows.empty:
        return _refused((np.nan, (), ()), UNKNOWN, confidence, f"{len(table)} rows and none with accept_len above 1: "
                        "without speculation a step is no round")
    counts = rows.groupby("running_req")["accept_len"].agg(lambda values: values.round(2).nunique())
    level = float(counts.index[int(counts.argmax())]) if running_req is None else float(running_req)
    rows = rows[rows["running_req"].eq(level)]
    if rows.empty:
        seen = ", ".join(f"{value:g}" for value in counts.index)
        return _refused((level, (), ()), UNKNOWN, confidence, f"no round at running_req {level:g}, only at {seen}")
    length, spans_s = rows["accept_len"].to_numpy(float), rows["step_s"].to_numpy(float)
    rate = level * length / spans_s
    points = level, tuple(length.tolist()), tuple(rate.tolist())
    is_series = "interval_s" in rows and len(rows) >= MIN_SERIES
    middle, half = float(spans_s.mean()), _half_width(spans_s, is_series, confidence)
    mean = Parameter("mean_round_s", middle, middle - half, middle + half, "s")
    n_distinct = int(counts[level])
    if n_distinct < MIN_ACCEPT_LENS:
        refused = (f"{n_distinct} distinct accept length{'' if n_distinct == 1 else 's'} at running_req {level:g}, a "
                   f"line needs {MIN_ACCEPT_LENS}; serve texts that are easier and harder to predict at this load")
        return _refused(points, mean, confidence, refused)
    slope, _, _ = _least_squares(length[:, None], rate, is_series, confidence)
    free, intercept, dof = _least_squares(np.column_stack([length, np.ones_like(length)]), rate, is_series, confidence)
    lo, hi = (level / end if end > 0 else np.nan for end in (slope[2], slope[1]))
    line = AcceptanceLine(
        *points, mean, Parameter("slope_tok_per_s_per_tok", *slope, "tok/s/tok"),
        Parameter("round_s", level / slope[0], lo, hi, "s"),
        Parameter("free_slope_tok_per_s_per_tok", *free, "tok/s/tok"),
        Parameter("intercept_tok_per_s", *intercept, "tok/s"), dof, confidence,
    )
    return replace(line, warnings=_doubts(line, rows))


def points(levels: pd.DataFrame, intervals: pd.DataFrame | None = None) -> pd.DataFrame:
    """Return the table that `acceptance_line` takes: the intervals of the fitted server lives, or the levels.

    Parameters
    ----------
    levels : DataFrame, schema LEVELS
        Of a log or of a hand-typed table.
    intervals : DataFrame, schema INTERVALS, optional
        Of a log; None of a table.
    """
    if intervals is None:
        return levels
    lives = levels.loc[levels["is_fitted"], "server_life"]
    return intervals[intervals["server_life"].isin(lives)] if len(lives) else intervals


_Points = tuple[float, tuple[float, ...], tuple[float, ...]]


def _refused(points: _Points, mean_round: Parameter, confidence: float, reason: str) -> AcceptanceLine:
    return AcceptanceLine(*points, mean_round, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, 0, confidence, (), reason)


def _speculative_rows(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows that hold a round, with step_s filled in; none where nothing was ever accepted."""
    missing = {"running_req", "accept_len"} - set(table.columns)
    if missing or not {"step_s", "decode_tok_per_s"} & set(table.columns):
        raise RooflogError(
            "rounds: expected the columns running_req, accept_len and one of step_s and decode_tok_per_s, found "
            f"{', '.join(map(str, table.columns))}"
        )
    rows = table[table["clean"]] if "clean" in table else table
    if "step_s" not in rows:
        columns = (rows[name].to_numpy("float64") for name in ("running_req", "decode_tok_per_s", "accept_len"))
        rows = rows.assign(step_s=round_s(*columns))
    rows = rows[rows["accept_len"].ge(1) & rows["step_s"].gt(0) & rows["running_req"].gt(0)]
    return rows if rows["accept_len"].gt(1).any() else rows.iloc[:0]


_Estimate = tuple[float, float, float]


def _least_squares(
    design: np.ndarray, rate: np.ndarray, is_series: bool, confidence: float
) -> tuple[_Estimate, _Estimate, float]:
    """Return slope and intercept (NaN for a line through the origin), each with its interval, and the freedom."""
    theta = np.linalg.lstsq(design, rate, rcond=None)[0]
    residual = rate - design @ theta
    n_free = len(rate) - design.shape[1]
    n_worth = len(rate) * _worth(residual) if is_series else len(rate)
    dof = max(n_worth - design.shape[1], 1.0)
    # A series worth fewer points widens both the variance of the estimates and the quantile.
    variance = float(residual @ residual) / n_free * (len(rate) / n_worth) * np.linalg.inv(design.T @ design)
    half = student_t.ppf((1 + confidence) / 2, dof) * np.sqrt(np.diag(variance))
    found = [(float(v), float(v - h), float(v + h)) for v, h in zip(theta, half, strict=True)]
    return found[0], found[1] if len(found) > 1 else (np.nan, np.nan, np.nan), float(dof)


def _worth(residual: np.ndarray) -> float:
    """Return the share of independent points in an autocorrelated series, (1 - r) / (1 + r) with r of lag 1 [1]."""
    power = float(residual @ residual)
    lag1 = float(residual[1:] @ residual[:-1]) / power if power > 0 else 0.0
    r = min(max(lag1, 0.0), 0.95)
    return (1 - r) / (1 + r)


def _half_width(values: np.ndarray, is_series: bool, confidence: float) -> float:
    """Return half the interval of a mean; NaN for one value."""
    if len(values) < 2:
        return float("nan")
    n_worth = len(values) * _worth(values - values.mean()) if is_series else len(values)
    quantile = float(student_t.ppf((1 + confidence) / 2, max(n_worth - 1, 1.0)))
    return quantile * float(values.std(ddof=1)) / float(np.sqrt(n_worth))


def _doubts(line: AcceptanceLine, rows: pd.DataFrame) -> tuple[str, ...]:
    doubts = []
    if line.is_vague:
        half = (line.free_intercept.hi - line.free_intercept.lo) / 2
        doubts.append(
            f"the intercept is uncertain by {half / np.mean(line.decode_tok_per_s):.0%} of the rate: these points "
            "hardly test whether the round is constant"
        )
    context = rows["context_tok"].dropna() if "context_tok" in rows else pd.Series(dtype="float64")
    if len(context) and context.max() > CONTEXT_SPREAD * context.min():
        doubts.append(
            f"context differs between the points ({context.min():.0f} to {context.max():.0f} tok) and may lengthen the "
            "round, too"
        )
    return tuple(doubts)
