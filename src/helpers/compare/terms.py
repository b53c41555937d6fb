"""Which term of the step moved: the fixed cost, the cost per request, context, acceptance, or one level only."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.stats import t as student_t

from helpers.compare.effects import Effects, holm
from helpers.compare.needed import POWER
from helpers.compare.shares import MIN_LEVELS, Shares
from helpers.compare.sides import Estimate, common_levels, contrast, values
from helpers.display import level_key

LOG_ODDS_MARGIN = 2 * math.log(10)
"""By how much chi-squared of the named explanation must be below that of its rivals: the levels are then ten times as
probable under it (likelihood ratio 10)."""

CONTEXT_FRAC = 0.1
"""Mean contexts that differ by more are said to be another context [1]; within it a slope moves by less than most
thresholds, as keys and values are a part of it only."""

MOVED = ("worse", "better")


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
        One row per explanation: term, running_req, effect_frac (beside the other terms), p (of one_level: Holm over the
        levels), mdc_frac (change that would be named so with a probability of `POWER`), chi2 (of the levels when this
        explanation is the only one).
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
    accept = _moved_levels(effects, "accept_len")
    evidence = _evidence(effects)
    name, level, sentence = _of_step(effects, evidence)
    if not accept.empty:
        far = accept.iloc[int(accept["log_ratio"].abs().to_numpy().argmax())]
        text = (f"Tokens accepted per round moved by {far['effect_frac']:+.1%} at level "
                f"{level_key(far['running_req'])}, the most of {len(accept)} levels.")
        alone = name in ("none", "cannot_tell") and _moved_levels(effects, "step").empty
        return Term("acceptance" if alone or name == "cannot_tell" else f"{name} and acceptance", level,
                    text if alone else f"{text} {sentence}", evidence)
    return Term(name, level, sentence, evidence)


def _moved_levels(effects: Effects, kind: str) -> pd.DataFrame:
    rows = effects.rows
    return rows[(rows["kind"] == kind) & rows["verdict"].isin(MOVED)]


def _of_step(effects: Effects, evidence: pd.DataFrame) -> tuple[str, float, str]:
    rows = effects.rows[effects.rows["kind"].isin(["step", "fixed_cost", "per_request"])]
    if (rows["verdict"] == "same").all():
        return "none", math.nan, "No term of the step moved by more than the threshold."
    if not rows["verdict"].isin(MOVED).any():
        return "cannot_tell", math.nan, "No term of the step can be seen to move, and not all are shown to be the same."
    if evidence.empty:
        return "cannot_tell", math.nan, "Levels moved, but they are too few to tell which term did."
    of_level = evidence[evidence["term"] == "one_level"]
    best_level = of_level["chi2"].min() if len(of_level) else math.inf
    parameters = rows[rows["kind"].isin(["fixed_cost", "per_request"]) & rows["verdict"].isin(MOVED)]
    names = list(parameters["kind"])
    if names:
        chi2 = float(evidence.loc[evidence["term"] == " and ".join(names), "chi2"].iloc[0])
        if chi2 + LOG_ODDS_MARGIN <= best_level:
            return _of_parameters(effects, parameters)
    rival = float(evidence.loc[evidence["term"].isin(["fixed_cost", "per_request"]), "chi2"].min())
    level = _one_level(effects, of_level, rival)
    if level is not None:
        effect = of_level.loc[of_level["running_req"] == level, "effect_frac"].iloc[0]
        return "one_level", level, (f"Level {level_key(level)} alone moved, by {effect:+.1%} against the law of the "
                                    "other levels; fixed cost and cost per request without it did not.")
    return "cannot_tell", math.nan, ("Levels moved, but fixed cost, cost per request and single levels explain them "
                                     "about as well: the term cannot be told.")


def _of_parameters(effects: Effects, parameters: pd.DataFrame) -> tuple[str, float, str]:
    words = {"fixed_cost": "the fixed cost of a step", "per_request": "the cost per request"}
    said = [f"{words[row['kind']]} moved by {row['effect_frac']:+.1%} [{row['row_lo_frac']:+.1%}, "
            f"{row['row_hi_frac']:+.1%}]" for row in parameters.to_dict("records")]
    names, text = list(parameters["kind"]), " and ".join(said)
    context = _context_log_ratio(effects)
    if "per_request" in names and abs(context) > math.log1p(CONTEXT_FRAC):
        slope = float(parameters.loc[parameters["kind"] == "per_request", "log_ratio"].iloc[0])
        if slope * context > 0:
            names[names.index("per_request")] = "context"
            text += (f"; the mean context moved by {math.expm1(context):+.1%}, which may be all of it: "
                     "repeat at the same context to tell")
    return " and ".join(names), math.nan, text[0].upper() + text[1:] + "."


def _context_log_ratio(effects: Effects) -> float:
    at = common_levels(effects.base, effects.new, "context_tok")
    if not at:
        return 0.0
    means = [np.nanmean(np.log(values(runs, "context_tok", at)), axis=0) for runs in (effects.base, effects.new)]
    return float(np.median(means[1] - means[0]))


def _one_level(effects: Effects, of_level: pd.DataFrame, rival_chi2: float) -> float | None:
    """Return the level that moved alone, or None."""
    if of_level.empty or effects.shares is None:
        return None
    best = of_level.iloc[int(of_level["chi2"].to_numpy().argmin())]
    level, alpha = float(best["running_req"]), 1 - effects.confidence
    row = effects.rows[(effects.rows["kind"] == "step") & (effects.rows["running_req"] == level)].iloc[0]
    if not (best["p"] < alpha and row["verdict"] in MOVED and best["chi2"] + LOG_ODDS_MARGIN <= rival_chi2):
        return None
    weights = effects.shares.weights(effects.shares.levels.index(level))
    others = [contrast(effects.base, effects.new, effects.shares.levels, w) for w in weights[:2]]
    t = math.log1p(effects.threshold_frac)
    stay = all(_p(found) >= alpha / 2 or abs(found.log_ratio) <= t for found in others)
    return level if stay else None


def _p(found: Estimate) -> float:
    return float(2 * student_t.sf(abs(found.log_ratio) / found.se, found.dof)) if found.se > 0 else 1.0


def _evidence(effects: Effects) -> pd.DataFrame:
    columns = ["term", "running_req", "effect_frac", "p", "mdc_frac", "chi2"]
    shares = effects.shares
    if shares is None or effects.is_identical:
        return pd.DataFrame(columns=columns)
    log_ratio, variance = _levels(effects, shares)
    nothing = np.empty((len(log_ratio), 0))
    table: list[dict[str, object]] = [{"term": "none", "chi2": _chi2(log_ratio, variance, nothing)}]
    for i, kind in enumerate(("fixed_cost", "per_request")):
        row = effects.rows[effects.rows["kind"] == kind].iloc[0]
        table.append({"term": kind, "effect_frac": row["effect_frac"], "p": row["p_holm"], "mdc_frac": row["mdc_frac"],
                      "chi2": _chi2(log_ratio, variance, shares.design[:, [i]])})
    table.append({"term": "fixed_cost and per_request", "chi2": _chi2(log_ratio, variance, shares.design)})
    if len(shares.levels) > MIN_LEVELS:
        table += _alone(effects, shares, log_ratio, variance)
    return pd.DataFrame(table, columns=columns)


def _levels(effects: Effects, shares: Shares) -> tuple[np.ndarray, np.ndarray]:
    """Return log ratio and variance at each level of the law.

    With repeats the variance is the mean over levels: of a few runs each level's own is too uncertain to weigh by.
    """
    found = [contrast(effects.base, effects.new, shares.levels, unit) for unit in np.eye(len(shares.levels))]
    variance = np.array([f.se**2 for f in found])
    if any(math.isfinite(f.dof) for f in found):
        variance = np.full_like(variance, variance.mean())
    return np.array([f.log_ratio for f in found]), variance


def _chi2(log_ratio: np.ndarray, variance: np.ndarray, design: np.ndarray) -> float:
    scaled, scale = log_ratio / np.sqrt(variance), 1 / np.sqrt(variance)[:, None]
    if design.shape[1]:
        scaled = scaled - design * scale @ np.linalg.lstsq(design * scale, scaled, rcond=None)[0]
    return float(scaled @ scaled)


def _alone(
    effects: Effects, shares: Shares, log_ratio: np.ndarray, variance: np.ndarray
) -> list[dict[str, object]]:
    """Return one row per level: how far it is off the law of the others."""
    units, alpha = np.eye(len(shares.levels)), 1 - effects.confidence
    found = [contrast(effects.base, effects.new, shares.levels, shares.weights(i)[2]) for i in range(len(units))]
    adjusted = holm(np.array([_p(f) for f in found]))
    rows: list[dict[str, object]] = []
    for level, unit, f, p in zip(shares.levels, units, found, adjusted, strict=True):
        own = effects.rows[(effects.rows["kind"] == "step") & (effects.rows["running_req"] == level)].iloc[0]
        power = float(student_t.ppf(POWER, f.dof))
        off_law = float(student_t.ppf(1 - alpha / len(units) / 2, f.dof)) * f.se + power * f.se
        rows.append({
            "term": "one_level", "running_req": level, "effect_frac": math.expm1(f.log_ratio), "p": float(p),
            "mdc_frac": math.expm1(max(off_law, math.log1p(float(own["mdc_frac"])))),
            "chi2": _chi2(log_ratio, variance, unit[:, None]),
        })  # fmt: skip
    return rows
