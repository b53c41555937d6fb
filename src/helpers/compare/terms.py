"""Which term of the step moved: the fixed cost, the cost per request, context, acceptance, or one level only."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import ndtri

from helpers.compare.effects import Effects
from helpers.compare.needed import POWER, critical, margin
from helpers.compare.shares import MIN_LEVELS, Shares
from helpers.compare.sides import common_levels, values
from helpers.compare.verdicts import FAMILY_ERROR, holm, two_sided
from helpers.compare.words import QUANTITIES, effect, percent
from helpers.display import level_key

LOG_ODDS_MARGIN = 2 * math.log(10)
"""By how much chi-squared of the named explanation must be below that of its rivals: the levels are then ten times as
probable under it (likelihood ratio 10)."""

STEP_POWER = (1 + POWER) / 2
"""Power of either step to a name, that a row moved and that its rivals explain the levels worse, so that both together
have `POWER`."""

CONTEXT_FRAC = 0.1
"""Mean contexts that differ by more are said to be another context [1]; within it a slope moves by less than most
thresholds, as keys and values are a part of it only."""

MOVED = ("worse", "better")

PARAMETERS = ("fixed_cost", "per_request")
"""Kinds of rows in the order of the design's columns."""

COLUMNS = ["term", "running_req", "effect_frac", "row_lo_frac", "row_hi_frac", "p", "mdc_frac", "chi2"]

Row = Mapping[Any, Any]


@dataclass(frozen=True)
class Term:
    """What moved.

    Attributes
    ----------
    name : str
        none, fixed_cost, per_request, context, acceptance, one_level, two joined by " and ", or cannot_tell.
    running_req : float
        The level, where one level moved alone [req]; else NaN.
    sentence : str
        The finding with its numbers.
    evidence : DataFrame
        One row per explanation: term, running_req, effect_frac (beside the other terms), row_lo_frac and row_hi_frac
        (at ``Effects.confidence``), p (of one_level: Holm over the levels), mdc_frac (change that would be named so
        with a probability of `POWER`), chi2 (of the levels when this explanation is the only one).
    """

    name: str
    running_req: float
    sentence: str
    evidence: pd.DataFrame


def which_term(effects: Effects) -> Term:
    """Name the term that moved, where the levels can tell.

    Parameters
    ----------
    effects : Effects
        From `compare_levels`.

    Returns
    -------
    Term
        A parameter is named where its row is better or worse and no single level explains the levels as well. One
        level is named where it is off the law that the others keep, and the parameters without it did not move.
    """
    rows = [row for row in effects.rows.to_dict("records") if row["is_judged"]]
    accept = [row for row in rows if row["kind"] == "accept_len" and row["verdict"] in MOVED]
    step = [row for row in rows if row["kind"] == "step"]
    parameters = [row for row in rows if row["kind"] in PARAMETERS]
    found = _evidence(effects, step, parameters)
    evidence = pd.DataFrame(found, columns=COLUMNS)
    name, level, sentence = _of_step(effects, step, parameters, found)
    if accept:
        far = max(accept, key=lambda row: abs(row["log_ratio"]))
        of = f", the most of {len(accept)} levels" if len(accept) > 1 else ""
        text = f"Accepted tokens per round moved by {effect(far)} at N={level_key(far['running_req'])}{of}."
        alone = name in ("none", "cannot_tell") and not _moved(step)
        return Term("acceptance" if alone or name == "cannot_tell" else f"{name} and acceptance", level,
                    text if alone else f"{text} {sentence}", evidence)
    return Term(name, level, sentence, evidence)


def _moved(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row["verdict"] in MOVED]


def _of_step(
    effects: Effects, step: Sequence[Row], parameters: Sequence[Row], evidence: Sequence[Row]
) -> tuple[str, float, str]:
    rows = [*step, *parameters]
    if all(row["verdict"] == "same" for row in rows):
        return "none", math.nan, "No term of the step moved by more than the threshold."
    if not _moved(rows):
        return "cannot_tell", math.nan, "No term of the step can be seen to move, and not all are shown to be the same."
    if not evidence:
        return "cannot_tell", math.nan, "Levels moved, but they are too few to tell which term did."
    chi2 = {row["term"]: row["chi2"] for row in evidence if row["term"] != "one_level"}
    of_level = [row for row in evidence if row["term"] == "one_level"]
    names = [row["kind"] for row in _moved(parameters)]
    best_level = min((row["chi2"] for row in of_level), default=math.inf)
    if names and chi2[" and ".join(names)] + LOG_ODDS_MARGIN <= best_level:
        return _of_parameters(effects, _moved(parameters))
    alone = _one_level(effects, step, of_level, min(chi2[kind] for kind in PARAMETERS))
    if alone is not None:
        level = alone["running_req"]
        return "one_level", level, (f"Level N={level_key(level)} alone moved, by {effect(alone)} against the law of "
                                    "the other levels; fixed cost and cost per request without it did not.")
    return "cannot_tell", math.nan, ("Levels moved, but fixed cost, cost per request and single levels explain them "
                                     "about as well: the term cannot be told.")


def _of_parameters(effects: Effects, parameters: Sequence[Row]) -> tuple[str, float, str]:
    said = [f"the {QUANTITIES[row['kind']]} moved by {effect(row)}" for row in parameters]
    names, text = [row["kind"] for row in parameters], " and ".join(said)
    context = _context_log_ratio(effects)
    if "per_request" in names and abs(context) > math.log1p(CONTEXT_FRAC):
        slope = next(row["log_ratio"] for row in parameters if row["kind"] == "per_request")
        if slope * context > 0:
            names[names.index("per_request")] = "context"
            text += (f"; the mean context moved by {percent(math.expm1(context), sign=True)}, which may be all of it: "
                     "repeat at the same context to tell")
    return " and ".join(names), math.nan, text[0].upper() + text[1:] + "."


def _context_log_ratio(effects: Effects) -> float:
    at = common_levels(effects.base, effects.new, "context_tok")
    if not at:
        return 0.0
    means = [np.nanmean(np.log(values(runs, "context_tok", at)), axis=0) for runs in (effects.base, effects.new)]
    return float(np.median(means[1] - means[0]))


def _one_level(
    effects: Effects, step: Sequence[Row], of_level: Sequence[Row], rival_chi2: float
) -> Row | None:
    """Return the evidence of the level that moved alone, or None."""
    if not of_level or effects.shares is None:
        return None
    best = min(of_level, key=lambda row: row["chi2"])
    level, alpha = best["running_req"], 1 - effects.confidence
    is_moved = any(row["running_req"] == level for row in _moved(step))
    if not (best["p"] < alpha and is_moved and best["chi2"] + LOG_ODDS_MARGIN <= rival_chi2):
        return None
    weights = effects.shares.weights(effects.shares.levels.index(level))
    others = [effects.step.contrast(effects.shares.levels, w) for w in weights[:2]]
    d, se, dof = (np.array([getattr(found, name) for found in others]) for name in ("log_ratio", "se", "dof"))
    moved = (two_sided(d, se, dof) < FAMILY_ERROR / 2) & (np.abs(d) > math.log1p(effects.threshold_frac))
    return None if moved.any() else best


def _evidence(effects: Effects, step: Sequence[Row], parameters: Sequence[Row]) -> list[Row]:
    shares = effects.shares
    if shares is None or effects.is_identical:
        return []
    log_ratio, variance = _levels(effects, shares)
    units = np.eye(len(shares.levels))
    table: list[Row] = [{"term": "none", "chi2": _chi2(log_ratio, variance, units[:, :0])}]
    for i, row in enumerate(parameters):
        column = shares.design[:, [i]]
        clear = _told_apart(column, [units[:, [k]] for k in range(len(units))], variance)
        table.append({"term": row["kind"], "p": row["p_holm"],
                      **{name: row[name] for name in ("effect_frac", "row_lo_frac", "row_hi_frac")},
                      "mdc_frac": math.expm1(max(_called(effects, row), clear)),
                      "chi2": _chi2(log_ratio, variance, column)})
    table.append({"term": " and ".join(PARAMETERS), "chi2": _chi2(log_ratio, variance, shares.design)})
    if len(shares.levels) > MIN_LEVELS:
        table += _alone(effects, shares, step, log_ratio, variance)
    return table


def _called(effects: Effects, row: Row) -> float:
    """Return the log ratio that the row calls worse or better with a probability of `STEP_POWER`."""
    se, dof = row["se"], row["dof"]
    alpha_row = FAMILY_ERROR / effects.rows["is_judged"].sum()
    least = max(float(critical(alpha_row, dof)) * se, math.log1p(effects.threshold_frac))
    return least + float(margin(STEP_POWER, dof)) * se


def _told_apart(column: np.ndarray, rivals: Sequence[np.ndarray], variance: np.ndarray) -> float:
    """Return the log ratio at which chi-squared is below every rival's by the margin, with `STEP_POWER`.

    The difference of two chi-squared is normal with mean m and variance 4 m, where m is what the rival leaves of the
    true effect; m grows as the effect squared.
    """
    left = min(_chi2(column[:, 0], variance, rival) for rival in rivals)
    z = float(ndtri(STEP_POWER))
    return (z + math.sqrt(z * z + LOG_ODDS_MARGIN)) / math.sqrt(left) if left > 0 else math.inf


def _levels(effects: Effects, shares: Shares) -> tuple[np.ndarray, np.ndarray]:
    """Return log ratio and variance at each level of the law.

    Levels are weighed by their stated variances, scaled to what was found: with a few runs each level's own is too
    uncertain to weigh by.
    """
    found = [effects.step.contrast([level], np.ones(1)) for level in shares.levels]
    variance = shares.variance * np.mean([f.se**2 for f in found]) / shares.variance.mean()
    return np.array([f.log_ratio for f in found]), variance


def _chi2(log_ratio: np.ndarray, variance: np.ndarray, design: np.ndarray) -> float:
    scaled, scale = log_ratio / np.sqrt(variance), 1 / np.sqrt(variance)[:, None]
    if design.shape[1]:
        scaled = scaled - design * scale @ np.linalg.lstsq(design * scale, scaled, rcond=None)[0]
    return float(scaled @ scaled)


def _alone(
    effects: Effects, shares: Shares, step: Sequence[Row], log_ratio: np.ndarray, variance: np.ndarray
) -> list[Row]:
    """Return one row per level: how far it is off the law of the others."""
    units, alpha = np.eye(len(shares.levels)), 1 - effects.confidence
    found = [effects.step.contrast(shares.levels, shares.weights(i)[2]) for i in range(len(units))]
    d, se, dof = (np.array([getattr(f, name) for f in found]) for name in ("log_ratio", "se", "dof"))
    adjusted = holm(two_sided(d, se, dof))
    own = critical(alpha, dof) * se
    off_law = (critical(alpha / len(units), dof) + margin(STEP_POWER, dof)) * se
    of_step = {row["running_req"]: row for row in step}
    rivals = [shares.design[:, [k]] for k in (0, 1)]
    rows: list[Row] = []
    for i, level in enumerate(shares.levels):
        unit = units[:, [i]]
        least = max(off_law[i], _called(effects, of_step[level]), _told_apart(unit, rivals, variance))
        rows.append({"term": "one_level", "running_req": level, "effect_frac": math.expm1(d[i]),
                     "row_lo_frac": math.expm1(d[i] - own[i]), "row_hi_frac": math.expm1(d[i] + own[i]),
                     "p": float(adjusted[i]), "mdc_frac": math.expm1(least),
                     "chi2": _chi2(log_ratio, variance, unit)})
    return rows
