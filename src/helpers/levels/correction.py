"""Levels without enough clean intervals: take the prompts' time out of the contaminated ones, or say why not."""

from __future__ import annotations

import numpy as np
import pandas as pd
from scipy import optimize, stats

from helpers import schema
from helpers.levels.rule import LevelRule


def correct_prefill(
    part: pd.DataFrame, rows: list[dict[str, object]], where: dict[str, object], rule: LevelRule
) -> list[dict[str, object]]:
    """Give levels without enough clean intervals an estimate from the contaminated ones, or the reason why not."""
    if all(row["is_fitted"] or row["population"] for row in rows):
        return rows
    known = {float(str(r["running_req"])): float(str(r["step_s"])) for r in rows if r["is_fitted"]}
    mixed = held_intervals(part)
    cost = prefill_cost(mixed, known)
    done = []
    for row in rows:
        has_enough = float(str(row.get("cv_frac", 0.0))) > rule.max_cv_frac  # measured well, and found to scatter
        if row["is_fitted"] or row["population"] or has_enough:
            done.append(row)
            continue
        level = float(str(row["running_req"]))
        estimate = _corrected(mixed[mixed["level"].sub(level).abs() < 0.5], cost, rule)
        if estimate:
            kept = {name: row[name] for name in ("n_rejected", "n_clean")}
            row = where | {"population": 0, "running_req": level} | kept | estimate
        done.append(row)
    return done


def held_intervals(part: pd.DataFrame) -> pd.DataFrame:
    """Intervals of a held count, with or without prefill: what a correction can work on.

    A count that is seen once or twice in passing was another one in between: it needs three lines in a row. The
    largest count of lockstep ranks moves within an interval, whatever its ends say: no correction there.
    """
    part = part[~part["rank_group"].str.contains("+", regex=False)]
    own = part["rank"].fillna("")
    changed = part["level"].ne(part.groupby(own)["level"].shift()) | part["running_req_printed"].ne(
        part.groupby(own)["running_req_printed"].shift()
    )
    run = [own, changed.groupby(own).cumsum()]
    held = part.groupby(run)["level"].transform("size").ge(3) & ~changed
    usable = held & part["label"].isin(["steady", "mixed"]) & part["step_s"].notna() & part["idle_s"].eq(0)
    stalled = part["why"].str.startswith("stall")
    # Their prompt is credited in another window: the regression would see time without a prompt.
    pending = part["why"].str.startswith("a prompt was admitted")
    return part[usable & ~stalled & ~pending & part["n_steps"].gt(0) & part["interval_s"].gt(0)]


NO_BEND = 1e-12
"""Squared relative residual per line that rounding of doubles explains [1]."""


def prefill_cost(mixed: pd.DataFrame, known: dict[float, float]) -> tuple[float, float]:
    """Seconds per prompt token, and the 95 % doubt about it, shared by all levels; NaN where nothing can tell.

    Notes
    -----
    wall time = steps x step time of the level + cost x prompt tokens. What scatters goes to the left: a SGLang line has
    a fixed number of steps, so its time is regressed; a vLLM window has a fixed time, so its steps are. Levels with a
    clean step keep it. In a closed loop prompts and steps go together: the doubt then says that they cannot be told
    apart.
    """
    if not (mixed["prefill_tok"] > 0).any():
        return np.nan, np.nan
    wall_s, prompt = mixed["interval_s"].to_numpy(float), mixed["prefill_tok"].to_numpy(float)
    steps, levels = mixed["n_steps"].to_numpy(float), mixed["level"].to_numpy(float)
    is_window = schema.is_window(mixed)
    dof = len(mixed) - len(set(levels) - set(known)) - 1
    if dof < 2:
        return np.nan, np.nan

    different, number = np.unique(levels, return_inverse=True)

    def residual(cost: float) -> np.ndarray:
        rest_s = wall_s - cost * prompt
        each_s = [known[level] if level in known else _shared_step(rest_s, steps, levels == level, is_window)
                  for level in different.tolist()]
        step_s = np.array(each_s)[number]
        return (steps - rest_s / step_s) / steps if is_window else (rest_s - steps * step_s) / wall_s

    highest = float(0.95 * np.min(wall_s[prompt > 0] / prompt[prompt > 0]))
    loss = optimize.minimize_scalar(lambda c: float((residual(c) ** 2).sum()), bounds=(0, highest), method="bounded",
                                    options={"xatol": 1e-6 * highest})  # the default is as large as a fast GPU's cost
    cost, width = float(loss.x), 0.02 * highest
    nearby = [float((residual(cost + k * width) ** 2).sum()) for k in (-1, 0, 1)]
    bend = nearby[0] - 2 * nearby[1] + nearby[2]
    # Residuals are relative: a bend below this is rounding, the lines are alike and say nothing about the cost.
    if bend <= NO_BEND * len(mixed):
        return np.nan, np.nan
    error = np.sqrt(2 * nearby[1] / dof / (bend / width**2))
    return cost, float(stats.t.ppf(0.975, dof) * error)


def _shared_step(rest_s: np.ndarray, steps: np.ndarray, at_level: np.ndarray, is_window: bool) -> float:
    """Least-squares step time of one level once the prompts' time is taken out."""
    x, y = (rest_s[at_level], steps[at_level]) if is_window else (steps[at_level], rest_s[at_level])
    slope = float((x * y).sum() / (x * x).sum())
    return 1 / slope if is_window else slope


def _corrected(mixed: pd.DataFrame, cost: tuple[float, float], rule: LevelRule) -> dict[str, object]:
    """Ratio of sums with the prompt time taken out; empty when nothing can be said."""
    cost_s_per_tok, cost_doubt = cost
    if len(mixed) < 3 or float(mixed["n_steps"].sum()) < rule.min_steps or not np.isfinite(cost_s_per_tok):
        return {}
    steps = mixed["n_steps"].to_numpy(float)
    wall_s = mixed["interval_s"].to_numpy(float)
    prefill_s = cost_s_per_tok * mixed["prefill_tok"].to_numpy(float)
    share = float(prefill_s.sum() / wall_s.sum())
    step_s = float((wall_s - prefill_s).sum() / steps.sum())
    if share > rule.prefill_refuse_frac or step_s <= 0:
        return {}
    per_interval = (wall_s - prefill_s) / steps
    spread = float(np.std(per_interval, ddof=1) / np.sqrt(len(steps))) * stats.t.ppf(0.975, len(steps) - 1)
    prompt_per_step = float(mixed["prefill_tok"].sum() / steps.sum())
    doubt = spread + prompt_per_step * max(cost_doubt, rule.correction_frac * cost_s_per_tok)
    if doubt > rule.useless_doubt_frac * step_s:
        return {}
    separable = doubt <= rule.corrected_doubt_frac * step_s
    accept = float(np.average(mixed["accept"], weights=steps))
    total = float(mixed["running_req_total"].mean())
    note = f"too few clean intervals: prompt time ({100 * share:.0f} % of the total) taken out by regression"
    if not separable:
        note += f"; uncertain by {100 * doubt / step_s:.0f} %: not fitted"
    elif share > rule.prefill_warn_frac:
        note += ", which is much: treat with care"
    return {
        "running_req_total": total, "clean_s": 0.0,
        "step_s": step_s, "step_s_lo": max(0.0, step_s - doubt),
        "step_s_hi": min(step_s + doubt, float(wall_s.sum() / steps.sum()) + spread),  # prompts cost no less than 0
        "decode_tok_per_s": total * accept / step_s,
        "context_tok": float(mixed["context_tok"].mean()),
        "accept_len": accept if mixed["accept_len"].notna().any() else np.nan,
        "graph": mixed["graph"].iloc[0], "method": "prefill_corrected",
        "cv_frac": float(np.std(per_interval, ddof=1) / step_s), "is_fitted": separable, "note": note,
    }
