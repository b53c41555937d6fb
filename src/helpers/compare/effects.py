"""What changed between two sides: an effect with its interval and a verdict per level and per parameter."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from helpers.compare.contrasts import Estimate, Pair, pair_of
from helpers.compare.shares import Shares, shares_of
from helpers.compare.sides import Run, common_levels, values
from helpers.compare.verdicts import COLUMNS, CONFIDENCE, judge
from helpers.schema import NotEnoughData

__all__ = ["COLUMNS", "CONFIDENCE", "THRESHOLD_FRAC", "Effects", "compare_levels", "describe_phases"]

THRESHOLD_FRAC = 0.03
"""Change that matters to the user [1]; the default is beyond the 2 % by which runs of one server differ."""


@dataclass(frozen=True)
class Effects:
    """All rows of one comparison.

    Attributes
    ----------
    rows : DataFrame
        ``kind``: step, accept_len (one row per level), fixed_cost, per_request, asymptote, ratio_to_target.
        ``effect_frac`` is new / base - 1 with ``lo_frac``, ``hi_frac`` (simultaneous, Bonferroni over the judged rows)
        and ``row_lo_frac``, ``row_hi_frac`` (of the row alone). ``mdc_frac``: change that would be called worse or
        better with a probability of `POWER`. ``runs_needed``: runs on either side that tell a change of the threshold
        from none (NaN: these do; infinite: none would), ``needed`` the same in words, with intervals where they help.
        ``is_loss_excluded``: the costly end of the row's own interval is within the threshold.
    base, new : tuple of Run
        The sides.
    step : Pair
        Step times of both sides, for further combinations of levels.
    shares : Shares or None
        Design behind fixed_cost and per_request.
    threshold_frac, confidence : float
        As asked [1].
    is_identical : bool
        Both sides have the same inputs or the same numbers.
    lost : tuple of float
        Levels outside those that both sides have, of every base run and of no new one [req]: nothing says that they
        are no slower. Of a level between two that were compared the law does.
    n_shared : int
        Runs that stand on both sides.
    notes : tuple of str
        What was not compared, and why.
    """

    rows: pd.DataFrame
    base: tuple[Run, ...]
    new: tuple[Run, ...]
    step: Pair
    shares: Shares | None
    threshold_frac: float
    confidence: float
    is_identical: bool
    notes: tuple[str, ...]
    lost: tuple[float, ...] = ()
    n_shared: int = 0


def compare_levels(
    base: Sequence[Run], new: Sequence[Run], *, threshold_frac: float = THRESHOLD_FRAC, confidence: float = CONFIDENCE
) -> Effects:
    """Compare two sides, each one run or several repeats.

    Parameters
    ----------
    base, new : sequence of Run
        A run whose ``content`` stands twice on a side counts once.
    threshold_frac : float
        Change that matters [1].
    confidence : float in (0, 1)
        Of a row's own interval, which decides what is the same; what is worse or better is decided by
        `verdicts.FAMILY_ERROR`.

    Raises
    ------
    NotEnoughData
        A side is empty, or no level was seen on both.
    ValueError
        The threshold is not positive.
    """
    if not threshold_frac > 0:
        raise ValueError(f"threshold_frac: expected a number above 0, found {threshold_frac}")
    old, young = _once(base), _once(new)
    at = common_levels(old, young) if old and young else []
    if not at:
        raise NotEnoughData("compare: expected a level of running requests that both sides have, found none; "
                            "measure the same concurrencies on both sides")
    shares = shares_of(old, young)
    pairs = {name: pair_of(old, young, name) for name in ("step_s", "accept_len")}
    rows = [_level(pair, level, name) for name, pair in pairs.items() for level in pair.levels if level in at]
    if isinstance(shares, Shares):
        rows += _parameters(pairs["step_s"], shares, old, young)
    with_target = common_levels(old, young, "target_step_s")
    rows += [_target(old, young, row) for row in rows if row["kind"] == "step" and row["running_req"] in with_target]
    is_identical = _is_identical(old, young)
    table = judge(pd.DataFrame(rows), threshold_frac, confidence, is_identical, (old, young))
    notes = [note for side, runs in (("base", old), ("new", young)) for run in runs for note in
             (f"{side}: {text}" for text in run.notes)]
    notes += [f"level {level:g} was seen on one side only and is not compared" for level in
              sorted({level for run in (*old, *young) for level in run.step_s} - set(at))]
    if isinstance(shares, str):
        notes.append(f"no parameter is compared: {shares}")
    if len(old) < len(base) or len(young) < len(new):
        notes.append("a run that stands twice on one side counts once")
    if is_identical:
        notes.append("both sides hold the same input")
    return Effects(table, old, young, pairs["step_s"], shares if isinstance(shares, Shares) else None, threshold_frac,
                   confidence, is_identical, tuple(dict.fromkeys(notes)), _lost(old, young, at), _n_shared(old, young))


def describe_phases(base: Mapping[str, float | None], new: Mapping[str, float | None]) -> pd.DataFrame:
    """Put the seconds of each phase side by side; they depend on the load's length and get no verdict.

    Returns
    -------
    DataFrame
        phase, base_s, new_s, base_frac, new_frac (share of the phases' sum [1]); NaN where unknown.
    """
    table = pd.DataFrame({"base_s": pd.Series(base, dtype=float), "new_s": pd.Series(new, dtype=float)})
    table = table.reindex([*dict.fromkeys([*base, *new])]).rename_axis("phase").reset_index()
    for side in ("base", "new"):
        total_s = table[f"{side}_s"].sum()
        table[f"{side}_frac"] = table[f"{side}_s"] / total_s if total_s > 0 else math.nan
    return table


def _once(runs: Sequence[Run]) -> tuple[Run, ...]:
    """Leave out copies: the same bytes, or, of a log that was packed or converted, the same numbers to the last bit."""
    kept: list[Run] = []
    for run in runs:
        if not any(_is_copy(run, other) for other in kept):
            kept.append(run)
    return tuple(kept)


def _is_copy(run: Run, other: Run) -> bool:
    if not (run.content and other.content):
        return False
    return run.content == other.content or _numbers(run) == _numbers(other)


def _numbers(run: Run) -> tuple[object, ...]:
    return tuple(tuple(sorted(values.items())) for values in (run.step_s, run.own_frac, run.accept_len))


def _n_shared(base: Sequence[Run], new: Sequence[Run]) -> int:
    return sum(any(_is_copy(run, other) for other in base) for run in new)


def _lost(base: Sequence[Run], new: Sequence[Run], at: Sequence[float]) -> tuple[float, ...]:
    of_all = set.intersection(*(set(run.step_s) for run in base))
    of_any = {level for run in new for level in run.step_s}
    return tuple(sorted(level for level in of_all - of_any if not min(at) < level < max(at)))


def _is_identical(base: Sequence[Run], new: Sequence[Run]) -> bool:
    hashes = [sorted(run.content for run in runs) for runs in (base, new)]
    if hashes[0] == hashes[1] and all(hashes[0]):
        return True
    numbers = [sorted((sorted(run.step_s.items()), sorted(run.accept_len.items())) for run in runs)
               for runs in (base, new)]
    return numbers[0] == numbers[1]


def _level(pair: Pair, level: float, name: str) -> dict[str, Any]:
    column = pair.levels.index(level)
    middle = [float(np.exp(np.nanmean(logs[:, column]))) for logs, _ in pair.sides]
    kind, unit = ("step", "s") if name == "step_s" else ("accept_len", "tok")
    return _row(kind, level, middle, unit, pair.contrast([level], np.ones(1)))


def _parameters(
    step: Pair, shares: Shares, old: Sequence[Run], young: Sequence[Run]
) -> list[dict[str, Any]]:
    fixed, per_request = (step.contrast(shares.levels, w) for w in shares.weights())
    (a0, b0), (a1, b1) = shares.lines
    # without speculation a request gets one token a step
    unit = "rounds/s" if any(run.accept_len for run in (*old, *young)) else "tok/s"
    mirrored = replace(per_request, log_ratio=-per_request.log_ratio)
    return [
        _row("fixed_cost", math.nan, [a0, a1], "s", fixed),
        _row("per_request", math.nan, [b0, b1], "s/req", per_request),
        # the reciprocal of the slope: the same test, not another one
        _row("asymptote", math.nan, [1 / b0, 1 / b1], unit, mirrored, is_judged=False),
    ]


def _target(base: Sequence[Run], new: Sequence[Run], step: Mapping[str, Any]) -> dict[str, Any]:
    """Ratio to the target: the level's step time over a computed constant, so it is described, not judged."""
    level = step["running_req"]
    target = [float(np.exp(np.nanmean(np.log(values(runs, "target_step_s", [level]))))) for runs in (base, new)]
    ratio = [step["base"] / target[0], step["new"] / target[1]]
    log_ratio = step["log_ratio"] - (math.log(target[1]) - math.log(target[0]))
    found = Estimate(log_ratio, step["se"], step["dof"], step["common_frac"])
    return _row("ratio_to_target", level, ratio, "1", found, is_judged=False)


def _row(
    kind: str, level: float, middle: Sequence[float], unit: str, found: Estimate, *, is_judged: bool = True
) -> dict[str, Any]:
    return {"kind": kind, "running_req": level, "base": middle[0], "new": middle[1], "unit": unit,
            "log_ratio": found.log_ratio, "se": found.se, "dof": found.dof, "common_frac": found.common_frac,
            "is_judged": is_judged}
