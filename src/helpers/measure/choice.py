"""What a person chooses of a log: which intervals count, which levels the law rests on, and which law is shown."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pandas as pd

from helpers.display import level_key
from helpers.levels import LevelRule
from helpers.schema import INTERVALS, Fits, NotEnoughData, RooflogError, check
from helpers.segment import CleanRule

Spans = tuple[tuple[float, float], ...]
"""Starts and ends on the log's clock, seconds since its first stamp [s]."""

LEFT_OUT = "left out by choice"
"""``why`` of an interval that a person left out, and ``note`` of such a level."""

READMITTED = "counted by choice, although: "
"""Begins ``why`` of an interval whose rule a person ignores."""


@dataclass(frozen=True)
class Choice:
    """What counts; as it is, everything that `analysis.analyse` takes by itself.

    Attributes
    ----------
    clean : CleanRule
        Thresholds of the clean-interval rule.
    level : LevelRule
        Thresholds of the level estimate.
    ignored_rules : tuple of str
        Reasons (``why`` of INTERVALS) that reject no interval. An interval names only the first rule that holds, so one
        that a second rule would reject counts as well.
    only_s, without_s : tuple of (start_s, end_s)
        Spans that alone count, and spans that do not [s]. An interval lies in the span that holds its end ``t_s``; both
        ends belong to a span. One without a stamp lies in none.
    running_req : tuple of float
        Levels that the law may rest on [req]; all if empty.
    law : str
        Law to show; the one that the levels support if empty.
    """

    clean: CleanRule = field(default_factory=CleanRule)
    level: LevelRule = field(default_factory=LevelRule)
    ignored_rules: tuple[str, ...] = ()
    only_s: Spans = ()
    without_s: Spans = ()
    running_req: tuple[float, ...] = ()
    law: str = ""


def choice_of(
    *,
    stall_factor: float | None = None,
    prefill_slack_s: float | None = None,
    min_clean: int | None = None,
    min_steps: int | None = None,
    ignored_rules: Sequence[str] = (),
    only_spans: Sequence[str] = (),
    without_spans: Sequence[str] = (),
    running_req: Sequence[float] = (),
    law: str = "",
) -> Choice:
    """Make a choice of the parameters of notebook 09.

    Parameters
    ----------
    stall_factor, prefill_slack_s : float, optional
        As in `segment.CleanRule` [1], [s].
    min_clean, min_steps : int, optional
        As in `levels.LevelRule`.
    ignored_rules, running_req, law
        As in `Choice`.
    only_spans, without_spans : sequence of str
        Spans as `read_span` takes them.

    Returns
    -------
    Choice

    Raises
    ------
    RooflogError
        A value that cannot be; the message names the parameter.
    """
    positive = {"stall_factor": stall_factor, "prefill_slack_s": prefill_slack_s, "min_clean": min_clean,
                "min_steps": min_steps}
    for name, value in positive.items():
        least = 0 if name == "prefill_slack_s" else 1
        if value is not None and not (math.isfinite(value) and value >= least):
            raise RooflogError(f"{name}: expected a number from {least}, found {value:g}")
    wrong = [value for value in running_req if not (math.isfinite(value) and value > 0)]
    if wrong:
        raise RooflogError(f"running_req: expected levels above 0 req, found {wrong[0]:g}")
    clean = {"stall_factor": stall_factor, "prefill_slack_s": prefill_slack_s}
    level = {"min_clean": min_clean, "min_steps": min_steps}
    return Choice(
        replace(CleanRule(), **_given(clean)), replace(LevelRule(), **_given(level)), tuple(ignored_rules),
        read_spans(only_spans, "only_spans"), read_spans(without_spans, "without_spans"), tuple(running_req), law,
    )


MAX_CONFIDENCE = 0.9999
"""Beyond, an interval says more about the shape of a tail than about the data, and ends at infinity [1]."""


def require_confidence(confidence: float) -> None:
    """Raise RooflogError for what cannot be the confidence of an interval."""
    if not 0 < confidence < 1:
        raise RooflogError(f"confidence: expected a share between 0 and 1, found {confidence:g}")
    if confidence > MAX_CONFIDENCE:
        raise RooflogError(f"confidence: expected at most {MAX_CONFIDENCE}, found {confidence:.15g}")


def what_was_chosen(intervals: pd.DataFrame) -> list[str]:
    """Say how many intervals a person left out or let in; nothing where there are none."""
    n_out = int(intervals["why"].eq(LEFT_OUT).sum())
    n_back = int(intervals["why"].fillna("").str.startswith(READMITTED).sum())
    said = [f"{n_out} of {len(intervals)} intervals are left out"] * bool(n_out)
    said += [f"{n_back} that a rule rejects are counted"] * bool(n_back)
    return [f"by choice, {' and '.join(said)}: the answer is not that of the whole log"] if said else []


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def read_spans(texts: Iterable[str], name: str = "spans") -> Spans:
    """Read spans of time, each "start..end" in seconds since the log's first stamp.

    Raises
    ------
    RooflogError
        A text that is no span, or a span that ends before it starts; the message holds `name`.

    Examples
    --------
    >>> read_spans(["12.5..80"])
    ((12.5, 80.0),)
    """
    return tuple(_read_span(text, name) for text in texts if text.strip())


def _read_span(text: str, name: str) -> tuple[float, float]:
    start, dots, end = text.partition("..")
    try:
        span = float(start), float(end)
    except ValueError:
        span = (math.nan, math.nan)
    if not dots or not all(map(math.isfinite, span)):
        raise RooflogError(f"{name}: expected start..end in seconds, as 12.5..80, found {text.strip()!r}")
    if span[0] >= span[1]:
        raise RooflogError(f"{name}: expected a span that ends after it starts, found {text.strip()!r}")
    return span


def write_spans(spans: Spans) -> list[str]:
    """Write spans so that `read_spans` gives the same numbers."""
    return [f"{float(start)!r}..{float(end)!r}" for start, end in spans]


def choose_intervals(intervals: pd.DataFrame, choice: Choice) -> pd.DataFrame:
    """Mark what a choice counts and leaves out.

    Parameters
    ----------
    intervals : DataFrame, schema INTERVALS
    choice : Choice

    Returns
    -------
    DataFrame, schema INTERVALS
        The same rows: those left out have ``why`` LEFT_OUT and are not clean, those of ignored rules are clean.

    Raises
    ------
    RooflogError
        An ignored rule that rejects no interval of this log; the message lists those that do.
    NotEnoughData
        Nothing is left.
    """
    if not (choice.ignored_rules or choice.only_s or choice.without_s):
        return intervals
    check(intervals, INTERVALS)
    known = list(intervals.loc[~intervals["clean"], "why"].unique())
    unknown = [name for name in choice.ignored_rules if name not in known]
    if unknown:
        raise RooflogError(f"ignored_rules: no interval of this log is rejected as {unknown[0]!r}; "
                           f"there is: {'; '.join(known) or 'none'}")
    is_back = intervals["why"].isin(choice.ignored_rules)
    is_out = _in_spans(intervals["t_s"], choice.without_s)
    if choice.only_s:
        is_out |= ~_in_spans(intervals["t_s"], choice.only_s)
    if is_out.all():
        raise NotEnoughData(
            f"only_spans, without_spans: expected some of the {len(intervals)} intervals to be left, found none; they "
            f"end between {intervals['t_s'].min():.1f} and {intervals['t_s'].max():.1f} s")
    why = intervals["why"].mask(is_back, READMITTED + intervals["why"]).mask(is_out, LEFT_OUT)
    return intervals.assign(clean=(intervals["clean"] | is_back) & ~is_out, why=why)


def _in_spans(t_s: pd.Series, spans: Spans) -> pd.Series:
    inside = pd.Series(False, index=t_s.index)
    for start, end in spans:
        inside |= t_s.between(start, end)
    return inside


def counted(intervals: pd.DataFrame) -> pd.DataFrame:
    """Return the intervals that are not left out by choice: the others correct no level and enter no law either."""
    is_out = intervals["why"].eq(LEFT_OUT)
    return intervals[~is_out] if is_out.any() else intervals


def choose_levels(levels: pd.DataFrame, choice: Choice) -> pd.DataFrame:
    """Let only the chosen levels into the law.

    Raises
    ------
    RooflogError
        A level that the log does not have.
    """
    if not choice.running_req:
        return levels
    keys = levels["running_req"].map(level_key)
    wanted = [level_key(value) for value in choice.running_req]
    missing = [key for key in wanted if key not in set(keys)]
    if missing:
        raise RooflogError(f"running_req: no level {missing[0]} req; the log has {', '.join(dict.fromkeys(keys))} req")
    is_out = levels["is_fitted"] & ~keys.isin(wanted)
    return levels.assign(is_fitted=levels["is_fitted"] & ~is_out, note=levels["note"].mask(is_out, LEFT_OUT))


def choose_law(fits: Fits, choice: Choice) -> Fits:
    """Show the chosen law instead of the one that the levels support.

    Raises
    ------
    RooflogError
        A law that was not fitted: its name is wrong, or it needs more levels.
    """
    if not choice.law or choice.law == fits.selected.law:
        return fits
    by_name = {candidate.law: candidate for candidate in fits.candidates}
    if choice.law not in by_name:
        raise RooflogError(f"law: expected one of {', '.join(by_name)}, found {choice.law!r}; "
                           "a law with more parameters needs more levels")
    return replace(fits, selected=by_name[choice.law], is_named=False,
                   selection=f"chosen by hand; the rule had chosen {fits.selected.law}: {fits.selection}")
