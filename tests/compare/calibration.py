"""Pairs of sides from a server of known truth, and how often the comparison is right about them.

``python tests/compare/calibration.py --write docs/comparison.md`` makes the tables of that page anew (about ten CPU
minutes for 400 pairs each).
"""

import argparse
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.stats import binomtest

from helpers import compare

LEVELS_REQ = np.array([1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0])
INTERCEPT_S, SLOPE_S_PER_REQ = 20e-3, 1e-3
OWN_FRAC = 0.005  # standard error that 40 or so clean intervals leave

REPEATS = (1, 2, 3, 5, 10)
PLANTS = {
    "fixed cost +5 %": {"fixed": 1.05}, "fixed cost +10 %": {"fixed": 1.1},
    "per request +5 %": {"per_request": 1.05}, "per request +10 %": {"per_request": 1.1},
    "level 8 +5 %": {"at": [8.0], "factor": 1.05}, "level 8 +10 %": {"at": [8.0], "factor": 1.1},
}  # fmt: skip
BEGIN, END = "<!-- calibration: made by tests/compare/calibration.py -->", "<!-- calibration: end -->"


def side(rng, repeats, *, fixed=1.0, per_request=1.0, at=None, factor=1.0, own_frac=OWN_FRAC, run_frac=0.02,
         common_frac=0.0):
    """Runs of ``a + b N``: each level scatters on its own and by its own error, each run as a whole as well."""
    truth_s = INTERCEPT_S * fixed + SLOPE_S_PER_REQ * per_request * LEVELS_REQ
    truth_s = np.where(np.isin(LEVELS_REQ, at if at is not None else []), truth_s * factor, truth_s)
    runs = []
    for _ in range(repeats):
        scatter = run_frac * rng.standard_normal(len(truth_s)) + own_frac * rng.standard_normal(len(truth_s))
        if common_frac:
            scatter += common_frac * rng.standard_normal()
        runs.append(compare.Run(
            dict(zip(LEVELS_REQ, truth_s * np.exp(scatter), strict=True)), dict.fromkeys(LEVELS_REQ, own_frac),
            n_clean=dict.fromkeys(LEVELS_REQ, 40)))
    return runs


def calibrate(repeats, pairs=400, seed=6, run_frac=0.02, common_frac=0.0, **plant):
    """Compare ``pairs`` pairs, the second with the plant; one row each: what was said, and the least that can be seen.

    ``mdc_frac`` is of the planted term (that of the level alone for a level), ``is_wrong`` that another answer than the
    planted term or cannot_tell was given.
    """
    rng, rows = np.random.default_rng(seed), []
    scatter = {"run_frac": run_frac, "common_frac": common_frac}
    term = "fixed_cost" if "fixed" in plant else "per_request" if "per_request" in plant else "one_level"
    for _ in range(pairs):
        effects = compare.compare_levels(side(rng, repeats, **scatter), side(rng, repeats, **scatter, **plant))
        found = compare.which_term(effects)
        least = next(row["mdc_frac"] for row in found.evidence.to_dict("records")
                     if row["term"] == term and ("at" not in plant or row["running_req"] == plant["at"][0]))
        is_level = np.isnan(found.running_req) or [found.running_req] == plant.get("at")
        is_right = found.name == term and is_level
        verdicts = effects.rows["verdict"]
        rows.append({"name": found.name, "is_right": is_right,
                     "is_wrong": not is_right and found.name != "cannot_tell",
                     "mdc_frac": least, "moved": verdicts.isin(["worse", "better"]).any()})
    return pd.DataFrame(rows)


def size_of(plant):
    """Planted change [1]."""
    return next(value for key, value in plant.items() if key != "at") - 1


def share(hits, total):
    """Per cent with the exact binomial interval (Clopper and Pearson) at 95 %."""
    low, high = binomtest(hits, total).proportion_ci(0.95)
    return f"{hits / total:.1%} [{low:.1%}, {high:.1%}]".replace("%", " %")


def study(pairs):
    """Return the page's tables as Markdown."""
    scatters = ((0.01, 0.0), (0.02, 0.0), (0.04, 0.0), (0.02, 0.02))
    nothing, named, wrong, seed = [], [], [], 0
    for run_frac, common_frac in scatters:
        label = f"{run_frac:.0%}".replace("%", " %") + (" and the run as a whole 2 %" if common_frac else "")
        of_none = [label]
        for repeats in REPEATS:
            seed += 1
            found = calibrate(repeats, pairs, seed, run_frac, common_frac)
            of_none.append(share(int(found["moved"].sum()), pairs))
        nothing.append(of_none)
        for name, plant in PLANTS.items() if not common_frac else ():
            of_named, of_wrong = [label, name], [label, name]
            for repeats in REPEATS:
                seed += 1
                started = time.process_time()
                found = calibrate(repeats, pairs, seed, run_frac, **plant)
                above = found[found["mdc_frac"] < size_of(plant)]
                least = f"{found['mdc_frac'].median():.1%}".replace("%", " %")
                of_named.append(f"{share(int(above['is_right'].sum()), len(above))} of {len(above)}; {least}"
                                if len(above) else f"none; {least}")
                of_wrong.append(f"{found['is_wrong'].mean():.1%}".replace("%", " %"))
                print(label, name, repeats, of_named[-1], of_wrong[-1],
                      f"{time.process_time() - started:.0f} CPU s", file=sys.stderr, flush=True)
            named.append(of_named)
            wrong.append(of_wrong)
    heads = [f"R = {repeats}" for repeats in REPEATS]
    return "\n\n".join([
        f"No change, {pairs} pairs each: share in which any row was called worse or better (95 % interval).",
        table(["true scatter of a level", *heads], nothing),
        f"Planted changes, {pairs} pairs each: of the pairs whose printed minimum was below the plant, the share in "
        "which the right term was named (95 % interval), and how many these pairs were; after the semicolon the median "
        "of the printed minimum.",
        table(["true scatter", "planted", *heads], named),
        "The same pairs, all of them: share in which another term was named, or none.",
        table(["true scatter", "planted", *heads], wrong),
    ])  # fmt: skip


def table(head, rows):
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def main():
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--pairs", type=int, default=400)
    options.add_argument("--write", type=Path, help="page with the marks of the block; else the tables are printed")
    chosen = options.parse_args()
    text = study(chosen.pairs)
    if chosen.write is None:
        print(text)
        return
    page = chosen.write.read_text(encoding="utf-8")
    before, after = page[: page.index(BEGIN) + len(BEGIN)], page[page.index(END) :]
    chosen.write.write_text(f"{before}\n\n{text}\n\n{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
