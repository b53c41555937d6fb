"""Pairs of sides from a server of known truth, and how often the comparison is right about them."""

import numpy as np
import pandas as pd

from helpers import compare

LEVELS_REQ = np.array([1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0])
INTERCEPT_S, SLOPE_S_PER_REQ = 20e-3, 1e-3
OWN_FRAC = 0.005  # standard error that 40 or so clean intervals leave


def side(rng, repeats, *, fixed=1.0, per_request=1.0, at=None, factor=1.0, own_frac=OWN_FRAC, run_frac=0.02):
    """Runs of ``a + b N`` with the scatter between runs and each level's own error; one level may be off."""
    truth_s = INTERCEPT_S * fixed + SLOPE_S_PER_REQ * per_request * LEVELS_REQ
    truth_s = np.where(np.isin(LEVELS_REQ, at if at is not None else []), truth_s * factor, truth_s)
    runs = []
    for _ in range(repeats):
        scatter = run_frac * rng.standard_normal(len(truth_s)) + own_frac * rng.standard_normal(len(truth_s))
        runs.append(compare.Run(
            dict(zip(LEVELS_REQ, truth_s * np.exp(scatter), strict=True)), dict.fromkeys(LEVELS_REQ, own_frac),
            n_clean=dict.fromkeys(LEVELS_REQ, 40)))
    return runs


def calibrate(repeats, pairs=400, seed=6, **plant):
    """Compare ``pairs`` pairs, the second with the plant; one row each: what was said, and the least that can be seen.

    ``mdc_frac`` is of the planted term: the row's for a parameter, that of the level alone for a level.
    """
    rng, rows = np.random.default_rng(seed), []
    term = "fixed_cost" if "fixed" in plant else "per_request" if "per_request" in plant else "one_level"
    for _ in range(pairs):
        effects = compare.compare_levels(side(rng, repeats), side(rng, repeats, **plant))
        found = compare.which_term(effects)
        seen = found.evidence[found.evidence["term"] == term]
        if "at" in plant:
            seen = seen[seen["running_req"] == plant["at"][0]]
        is_level = np.isnan(found.running_req) or [found.running_req] == plant.get("at")
        verdicts = effects.rows.loc[effects.rows["is_judged"], "verdict"]
        rows.append({"name": found.name, "is_right": found.name == term and is_level,
                     "mdc_frac": float(seen["mdc_frac"].iloc[0]), "moved": verdicts.isin(["worse", "better"]).any(),
                     "same": (verdicts == "same").all(), "verdict": compare.overall(effects).verdict})
    return pd.DataFrame(rows)
