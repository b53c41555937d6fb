"""From clean intervals to one step time per level.

A level is a value of running_req. Single steps are skewed, so the estimate rests on blocks of about forty steps:
their median (SGLang lines), or the ratio of sums where a window cuts steps and quantises rates (vLLM).
"""

from __future__ import annotations

import json
from collections.abc import Iterable

import numpy as np
import pandas as pd

from helpers import schema
from helpers.levels.correction import correct_prefill
from helpers.levels.estimate import estimate_level, split_populations
from helpers.levels.rule import LevelRule


def summarise_levels(
    intervals: pd.DataFrame, *, confidence: float = 0.95, rule: LevelRule | None = None
) -> pd.DataFrame:
    """Estimate the step time at every running_req that was seen.

    Parameters
    ----------
    intervals : DataFrame, schema INTERVALS
    confidence : float in (0, 1)
        Confidence of step_s_lo and step_s_hi.
    rule : LevelRule, optional
        Thresholds.

    Returns
    -------
    DataFrame, schema LEVELS
        Sorted by life, group, running_req, population. Levels that rest on too little, and populations that are not
        the main one, stay in the table with is_fitted False and the reason in ``note``. Levels without enough clean
        intervals are estimated from the contaminated ones with the cost per prompt token that the log itself shows
        (method ``prefill_corrected``), or refused when prefill took more than half of the time.

    Raises
    ------
    NotEnoughData
        No interval at all holds a decode rate.
    """
    rule = rule or LevelRule()
    schema.check(intervals, schema.INTERVALS)
    if intervals.empty:
        raise schema.NotEnoughData(
            "levels: expected decode or periodic lines with a rate, found none; "
            "a prefill-only worker or a start-up log has no decode step to measure"
        )
    level, accept = _level_key(intervals), intervals["accept_len"].fillna(1.0)
    table = intervals[[name for name in intervals if name not in NOT_READ]].assign(level=level, accept=accept)
    rows: list[dict[str, object]] = []
    for (life, group), part in _by_group(table):
        where = {"server_life": life, "rank_group": group}
        found = [where | row for row in _measured_levels(part, confidence, rule)]
        # Under pipeline stages a line counts launches of micro-batches, not steps of all requests; the largest count of
        # lockstep ranks moves within a line: where the count that sets the step is not the printed one, no correction.
        is_printed = part["running_req"].eq(part["running_req_printed"]).all()
        rows += correct_prefill(part, found, where, rule) if is_printed else found
    if not rows:
        return schema.LEVELS.empty()
    keys = ["server_life", "rank_group", "running_req", "population"]
    return schema.conform(pd.DataFrame(rows).sort_values(keys), schema.LEVELS)


def _by_group(table: pd.DataFrame) -> Iterable[tuple[tuple[object, object], pd.DataFrame]]:
    """Return the intervals of each rank group of a server life, without a copy where there is one."""
    keys = ["server_life", "rank_group"]
    first = table[keys].iloc[0]
    if table["server_life"].eq(first["server_life"]).all() and table["rank_group"].eq(first["rank_group"]).all():
        return [((int(first["server_life"]), first["rank_group"]), table)]
    return [((life, group), part) for (life, group), part in table.groupby(keys)]


NOT_READ = ("file", "line_no", "ts", "t_s", "queue_req", "used_tok")
"""Columns of INTERVALS that no level is estimated from: every cut of the table would copy them."""


def _level_key(intervals: pd.DataFrame) -> pd.Series:
    """Group by what sets the step; under pipeline stages running_req is a mean, so group by the printed count."""
    group = [intervals["server_life"], intervals["rank_group"]]
    is_mean = (intervals["running_req"] - intervals["running_req"].round()).abs() >= 1e-9
    whole = ~is_mean.groupby(group).transform("any")
    if whole.all():
        return intervals["running_req"]
    printed = intervals["running_req_printed"].astype(float)
    # One printed count can stand for several loads: 1 of 1 + 1 requests, and 1 of 1 + 15 (log-formats 1.5).
    clean = intervals["running_req"].where(intervals["clean"])
    ordered = intervals[["server_life", "rank_group"]].assign(clean_req=clean, printed=printed).sort_values("clean_req")
    keys = [ordered["server_life"], ordered["rank_group"], ordered["printed"]]
    jumps = (ordered["clean_req"] > 1.05 * ordered.groupby(keys)["clean_req"].shift()).groupby(keys).cumsum()
    mean = ordered.groupby([*keys, jumps])["clean_req"].transform("median").reindex(intervals.index)
    most = mean.groupby([*group, printed]).transform(_commonest)
    return intervals["running_req"].where(whole, mean.where(intervals["clean"], most).fillna(printed))


def _commonest(found: pd.Series) -> float:
    """Return the most frequent value; NaN where there is none."""
    return float(found.mode().iloc[0]) if found.notna().any() else np.nan


def _measured_levels(part: pd.DataFrame, confidence: float, rule: LevelRule) -> list[dict[str, object]]:
    rows = []
    runs = np.flatnonzero(part["running_req"] > 0)
    levels = part["level"].iloc[runs]
    for level, places in sorted(levels.groupby(levels).indices.items()):
        at_level = part.iloc[runs[places]]
        rejected = at_level.loc[~at_level["clean"], "why"].value_counts().to_dict()
        clean = at_level[at_level["clean"] & at_level["step_s"].notna()]
        populations = split_populations(clean, rule)
        for number, population in enumerate(populations):
            row = estimate_level(population, confidence, rule)
            row |= {"population": number, "n_rejected": json.dumps(rejected if number == 0 else {})}
            if number:
                row |= {"is_fitted": False, "note": "another population at this running_req (context or graph differs)"}
            rows.append(row)
        if not populations:
            row = {"population": 0, "running_req": float(str(level)), "n_clean": 0, "n_rejected": json.dumps(rejected)}
            rows.append(row | {"method": "none", "is_fitted": False, "note": "no clean interval"})
    return rows
