"""What changed between two sides: an effect with its interval and a verdict per level and per parameter.

The rule, on the log ratio d = log(new / base) and the threshold t = log(1 + threshold_frac), both signs alike:

- worse (better): "no change" is rejected by Holm's procedure over all judged rows of the comparison (`FAMILY_ERROR`),
  and |d| > t, in the direction that costs (saves) time;
- same: the row's own interval lies inside [-t, t]. No correction is due: "all the same" needs every row of them;
- cannot_tell: neither.

Logs make new against base the mirror of base against new. Inputs with the same hash, or the same numbers, are the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.stats import t as student_t

from helpers.compare.needed import POWER, needed
from helpers.compare.shares import Shares, shares_of
from helpers.compare.sides import Estimate, Run, common_levels, contrast, values
from helpers.schema import NotEnoughData

THRESHOLD_FRAC = 0.03
"""Change that matters to the user [1]; the default is beyond the 2 % by which runs of one server differ."""

CONFIDENCE = 0.95
"""Of a row's own interval."""

FAMILY_ERROR = 0.03
"""Probability at most that any row of a comparison without change is called worse or better. Not 0.05: in 400 pairs
without change the share found must itself stay below 5 %, which at 0.05 it would miss in every third study."""

VERDICTS = ("worse", "cannot_tell", "better", "same")
"""In the order in which one row decides the whole."""

COLUMNS = (
    "kind", "running_req", "base", "new", "unit", "effect_frac", "lo_frac", "hi_frac", "row_lo_frac", "row_hi_frac",
    "p_holm", "is_judged", "verdict", "mdc_frac", "needed", "log_ratio", "se", "dof",
)  # fmt: skip


@dataclass(frozen=True)
class Effects:
    """All rows of one comparison.

    Attributes
    ----------
    rows : DataFrame
        ``kind``: step, accept_len (one row per level), fixed_cost, per_request, asymptote, ratio_to_target.
        ``effect_frac`` is new / base - 1 with ``lo_frac``, ``hi_frac`` (simultaneous, Bonferroni over the judged rows)
        and ``row_lo_frac``, ``row_hi_frac`` (of the row alone). ``mdc_frac``: change that would be called worse or
        better with a probability of `POWER`. ``needed``: what would bring it to the threshold, in words.
    base, new : tuple of Run
        The sides.
    shares : Shares or None
        Design behind fixed_cost and per_request.
    threshold_frac, confidence : float
        As asked [1].
    is_identical : bool
        Both sides have the same inputs or the same numbers.
    notes : tuple of str
        What was not compared, and why.
    """

    rows: pd.DataFrame
    base: tuple[Run, ...]
    new: tuple[Run, ...]
    shares: Shares | None
    threshold_frac: float
    confidence: float
    is_identical: bool
    notes: tuple[str, ...]


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
        Of a row's own interval, which decides what is the same; `FAMILY_ERROR` decides what is worse or better.

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
    rows = [_level(old, young, level, name) for name in ("step_s", "accept_len")
            for level in common_levels(old, young, name) if level in at]
    if isinstance(shares, Shares):
        rows += _parameters(old, young, shares)
    rows += [_target(old, young, row) for row in rows if row["kind"] == "step"
             and common_levels(old, young, "target_step_s") and row["running_req"]
             in common_levels(old, young, "target_step_s")]
    is_identical = _is_identical(old, young)
    table = _judge(pd.DataFrame(rows), threshold_frac, confidence, is_identical, (old, young))
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
    return Effects(table, old, young, shares if isinstance(shares, Shares) else None, threshold_frac, confidence,
                   is_identical, tuple(dict.fromkeys(notes)))


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
    seen: dict[object, Run] = {}
    for i, run in enumerate(runs):
        seen.setdefault(run.content or i, run)
    return tuple(seen.values())


def _is_identical(base: Sequence[Run], new: Sequence[Run]) -> bool:
    hashes = [sorted(run.content for run in runs) for runs in (base, new)]
    if hashes[0] == hashes[1] and all(hashes[0]):
        return True
    numbers = [sorted(repr((dict(run.step_s), dict(run.accept_len))) for run in runs) for runs in (base, new)]
    return numbers[0] == numbers[1]


def _level(base: Sequence[Run], new: Sequence[Run], level: float, name: str) -> dict[str, object]:
    found = contrast(base, new, [level], np.ones(1), name)
    middle = [float(np.exp(np.nanmean(np.log(values(runs, name, [level]))))) for runs in (base, new)]
    kind, unit = ("step", "s") if name == "step_s" else ("accept_len", "tok")
    return _row(kind, level, middle, unit, found)


def _parameters(base: Sequence[Run], new: Sequence[Run], shares: Shares) -> list[dict[str, object]]:
    fixed, per_request = (contrast(base, new, shares.levels, w) for w in shares.weights())
    (a0, b0), (a1, b1) = shares.lines
    mirrored = Estimate(-per_request.log_ratio, per_request.se, per_request.dof)
    return [
        _row("fixed_cost", math.nan, [a0, a1], "s", fixed),
        _row("per_request", math.nan, [b0, b1], "s/req", per_request),
        # the reciprocal of the slope: the same test, not another one
        _row("asymptote", math.nan, [1 / b0, 1 / b1], "req/s", mirrored, is_judged=False),
    ]


def _target(base: Sequence[Run], new: Sequence[Run], step: Mapping[str, object]) -> dict[str, object]:
    """Ratio to the target: the level's step time over a computed constant, so it is described, not judged."""
    level = float(str(step["running_req"]))
    target = [float(np.exp(np.nanmean(np.log(values(runs, "target_step_s", [level]))))) for runs in (base, new)]
    ratio = [float(str(step["base"])) / target[0], float(str(step["new"])) / target[1]]
    log_ratio = float(str(step["log_ratio"])) - (math.log(target[1]) - math.log(target[0]))
    found = Estimate(log_ratio, float(str(step["se"])), float(str(step["dof"])))
    return _row("ratio_to_target", level, ratio, "1", found, is_judged=False)


def _row(
    kind: str, level: float, middle: Sequence[float], unit: str, found: Estimate, *, is_judged: bool = True
) -> dict[str, object]:
    return {"kind": kind, "running_req": level, "base": middle[0], "new": middle[1], "unit": unit,
            "log_ratio": found.log_ratio, "se": found.se, "dof": found.dof, "is_judged": is_judged}


def holm(p: np.ndarray) -> np.ndarray:
    """Return p-values adjusted by Holm's step-down procedure (Holm 1979, Scandinavian Journal of Statistics 6, 65)."""
    order = np.argsort(p, kind="stable")
    stepped = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    adjusted = np.empty_like(stepped)
    adjusted[order] = np.minimum(stepped, 1.0)
    return adjusted


def _judge(
    rows: pd.DataFrame, threshold_frac: float, confidence: float, is_identical: bool,
    sides: tuple[Sequence[Run], Sequence[Run]],
) -> pd.DataFrame:  # fmt: skip
    d, se, dof = (rows[name].to_numpy(float) for name in ("log_ratio", "se", "dof"))
    judged = rows["is_judged"].to_numpy(bool)
    if is_identical:
        d, se = np.zeros_like(d), np.zeros_like(se)
        rows = rows.assign(log_ratio=d, se=se)
    t, alpha = math.log1p(threshold_frac), 1 - confidence
    critical = student_t.ppf(1 - FAMILY_ERROR / judged.sum() / 2, dof)
    own = student_t.ppf(1 - alpha / 2, dof)
    p = np.ones_like(d)
    is_known = se > 0
    p[is_known] = 2 * student_t.sf(np.abs(d[is_known]) / se[is_known], dof[is_known])
    p_holm = np.full_like(d, math.nan)
    p_holm[judged] = holm(p[judged])
    costs = np.where(rows["kind"].isin(["accept_len", "asymptote"]), -d, d)
    moved = (p_holm < FAMILY_ERROR) & (np.abs(d) > t)
    same = np.abs(d) + own * se <= t
    verdict = np.where(moved, np.where(costs > 0, "worse", "better"), np.where(same, "same", "cannot_tell"))
    mdc = np.maximum(critical * se, t) + student_t.ppf(POWER, dof) * se
    rows = rows.assign(
        effect_frac=np.expm1(d), lo_frac=np.expm1(d - critical * se), hi_frac=np.expm1(d + critical * se),
        row_lo_frac=np.expm1(d - own * se), row_hi_frac=np.expm1(d + own * se), p_holm=p_holm,
        verdict=np.where(judged, verdict, "described"), mdc_frac=np.where(judged, np.expm1(mdc), math.nan),
    )
    if (rows["kind"] == "asymptote").any():
        of_slope = rows.loc[rows["kind"] == "per_request", "verdict"].iloc[0]
        rows.loc[rows["kind"] == "asymptote", "verdict"] = of_slope
    rows["needed"] = [
        needed(row, sides, FAMILY_ERROR / judged.sum(), threshold_frac) if row["is_judged"] and not is_identical else ""
        for row in rows.to_dict("records")
    ]
    return rows[list(COLUMNS)]
