"""From clean intervals to one step time per level, with an interval that is not the spread of its samples.

A level is a value of running_req. Single steps are skewed, so the estimate rests on blocks of about forty steps:
their median (SGLang lines), or the ratio of sums where a window cuts steps and quantises rates (vLLM).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import optimize, stats

from helpers import schema


@dataclass(frozen=True)
class LevelRule:
    """Thresholds of the level estimate.

    Attributes
    ----------
    block_steps : int
        Steps per block: a median of single steps is biased low by their skew, of 40-step means it is not.
    min_clean : int
        Clean intervals below which a level is not fitted.
    min_steps : int
        Clean steps below which a level is not fitted.
    fine_steps : int
        Lines of fewer steps than this show single steps, whose skew needs three blocks of them and sums over sums.
    stall_factor : float
        A block of single steps above this multiple of the level's median is a stall and left out [1].
    context_ratio : float
        Episodes whose mean context differs by more than this ratio are two populations [1].
    drift_frac : float
        Halves of a level that differ by more than this (and three standard errors) are said to drift [1].
    prefill_warn_frac, prefill_refuse_frac : float
        Share of prefill in the time of a corrected level at which it warns, and is refused [1] (physics 6.2).
    correction_frac : float
        Part of the prefill correction that may be wrong: widens the interval of a corrected level [1]. From
        simulated closed loops (tests/test_levels.py).
    corrected_doubt_frac : float
        A corrected level enters the law only when its interval is within this share of it [1].
    """

    block_steps: int = 40
    min_clean: int = 2
    min_steps: int = 40
    fine_steps: int = 5
    stall_factor: float = 2.0
    context_ratio: float = 1.5
    drift_frac: float = 0.05
    prefill_warn_frac: float = 0.20
    prefill_refuse_frac: float = 0.50
    correction_frac: float = 0.25
    corrected_doubt_frac: float = 0.06


RESAMPLES = 400
"""Bootstrap resamples per level: the ends of a 95 % interval are then known to a tenth of its width."""

BOOTSTRAP_BLOCK = 3
"""Ticks per bootstrap block: noise between ticks is correlated (AR(1), phi 0.5 to 0.8; physics 6.1)."""


ROUNDING_TOK_PER_S = 0.005
"""Half a unit of the last digit of SGLang's gen throughput (%.2f)."""


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
    table = intervals.assign(level=_level_key(intervals), accept=intervals["accept_len"].fillna(1.0))
    rows: list[dict[str, object]] = []
    for (life, group), part in table.groupby(["server_life", "rank_group"]):
        where = {"server_life": life, "rank_group": group}
        found = [where | row for row in _measured_levels(part, confidence, rule)]
        rows += _correct_prefill(part, found, where, rule)
    if not rows:
        return schema.LEVELS.empty()
    keys = ["server_life", "rank_group", "running_req", "population"]
    return schema.conform(pd.DataFrame(rows).sort_values(keys), schema.LEVELS)


VOLATILE_ARGUMENTS = ("host", "port", "nccl_port", "random_seed", "seed", "log_level", "api_key", "dist_init_addr")
"""Server arguments that may differ between restarts without changing the step time."""


def keep_one_configuration(levels: pd.DataFrame, facts: Sequence[Mapping[str, object]]) -> pd.DataFrame:
    """Let only server lives with the same arguments into one law; the life with most fitted levels decides which.

    Parameters
    ----------
    levels : DataFrame, schema LEVELS
    facts : sequence of mappings, one per server life
        ``args`` is compared where known; lives without an argument dump are taken as alike.

    Returns
    -------
    DataFrame, schema LEVELS
        Levels of other configurations keep their step time, with is_fitted False and a note.
    """
    schema.check(levels, schema.LEVELS)
    fitted = levels[levels["is_fitted"]].groupby("server_life").size()
    if len(fitted) < 2:
        return levels
    arguments = {life: _stable_arguments(facts[life]) if life < len(facts) else None for life in fitted.index}
    main = arguments[fitted.idxmax()]
    other = [life for life, found in arguments.items() if None not in (found, main) and found != main]
    out = levels["server_life"].isin(other) & levels["is_fitted"]
    note = "another server life with other arguments"
    return levels.assign(is_fitted=levels["is_fitted"] & ~out, note=levels["note"].mask(out, note))


def _stable_arguments(facts: Mapping[str, object]) -> dict[str, object] | None:
    args = facts.get("args")
    if not isinstance(args, Mapping):
        return None
    return {str(key): value for key, value in args.items() if key not in VOLATILE_ARGUMENTS}


def _level_key(intervals: pd.DataFrame) -> pd.Series:
    """Group by what sets the step; under pipeline stages running_req is a mean, so group by the printed count."""
    whole = (intervals["running_req"] - intervals["running_req"].round()).abs() < 1e-9
    return intervals["running_req"].where(whole, intervals["running_req_printed"].astype(float))


def _measured_levels(part: pd.DataFrame, confidence: float, rule: LevelRule) -> list[dict[str, object]]:
    rows = []
    for level, at_level in part[part["running_req"] > 0].groupby("level"):
        rejected = at_level.loc[~at_level["clean"], "why"].value_counts().to_dict()
        clean = at_level[at_level["clean"] & at_level["step_s"].notna()]
        populations = _split_populations(clean, rule)
        for number, population in enumerate(populations):
            row = _estimate(population, confidence, rule)
            row |= {"population": number, "n_rejected": json.dumps(rejected if number == 0 else {})}
            if number:
                row |= {"is_fitted": False, "note": "another population at this running_req (context or graph differs)"}
            rows.append(row)
        if not populations:
            row = {"population": 0, "running_req": float(str(level)), "n_clean": 0, "n_rejected": json.dumps(rejected)}
            rows.append(row | {"method": "none", "is_fitted": False, "note": "no clean interval"})
    return rows


def _split_populations(clean: pd.DataFrame, rule: LevelRule) -> list[pd.DataFrame]:
    """Split by graph flag, then by jumps of the episodes' mean context; the one with most clean time comes first."""
    parts = []
    for _, part in clean.groupby(clean["graph"].astype("object").fillna("unknown").astype(str)):
        context = part.groupby("episode")["context_tok"].mean().dropna().sort_values()
        jump = (context / context.shift()).gt(rule.context_ratio).cumsum()
        numbers = part["episode"].map(jump).fillna(0)
        parts += [of_context for _, of_context in part.groupby(numbers)]
    return sorted(parts, key=lambda p: -float(p["interval_s"].sum()))


def _blocks(clean: pd.DataFrame, block_steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Sum consecutive clean intervals to blocks of block_steps; return time [s] and steps of each block."""
    steps = clean["n_steps"].to_numpy(float)
    number = np.floor((np.cumsum(steps) - steps / 2) / block_steps).astype(int)
    if (steps >= block_steps).all():
        number = np.arange(len(steps))
    _, number = np.unique(number, return_inverse=True)
    block_time_s = np.bincount(number, weights=steps * clean["step_s"].to_numpy(float))
    steps_in_block = np.bincount(number, weights=steps)
    if len(steps_in_block) > 1 and steps_in_block[-1] < 0.5 * block_steps <= steps_in_block[0]:
        block_time_s[-2] += block_time_s[-1]
        steps_in_block[-2] += steps_in_block[-1]
        block_time_s, steps_in_block = block_time_s[:-1], steps_in_block[:-1]
    return block_time_s, steps_in_block


def _estimate(clean: pd.DataFrame, confidence: float, rule: LevelRule) -> dict[str, object]:
    """Estimate one population of one level."""
    time_s, steps = _blocks(clean, rule.block_steps)
    block_step_s = time_s / steps
    is_window = clean["engine"].iloc[0] == "vllm"
    is_fine = not is_window and clean["n_steps"].median() < rule.fine_steps
    if is_fine:  # single steps: sums keep their skew, a stalled block is none of it
        kept = block_step_s <= rule.stall_factor * np.median(block_step_s)
        time_s, steps, block_step_s = time_s[kept], steps[kept], block_step_s[kept]
    use_median = not is_window and not is_fine and len(block_step_s) >= 3
    step_s = float(np.median(block_step_s)) if use_median else float(time_s.sum() / steps.sum())
    lo, hi = _bootstrap(time_s, steps, use_median, confidence)
    # A window cuts up to one step, a printed rate is rounded: an interval is never narrower than what was printed.
    grain_s = step_s * (1 / steps.sum() if is_window else ROUNDING_TOK_PER_S / clean["decode_tok_per_s"].median())
    lo, hi = min(lo, step_s - grain_s), max(hi, step_s + grain_s)
    scatter = stats.median_abs_deviation(block_step_s, scale="normal") if len(steps) > 2 else np.std(block_step_s)
    accept = float(np.average(clean["accept"], weights=clean["n_steps"]))
    total = float(clean["running_req_total"].mean())
    row: dict[str, object] = {
        "running_req": float(clean["running_req"].mean()),
        "running_req_total": total,
        "n_clean": len(clean),
        "clean_s": float(clean["interval_s"].sum()),
        "step_s": step_s, "step_s_lo": lo, "step_s_hi": hi,
        "decode_tok_per_s": total * accept / step_s,
        "context_tok": float(np.average(clean["context_tok"], weights=clean["n_steps"])),
        "accept_len": accept if clean["accept_len"].notna().any() else np.nan,
        "graph": clean["graph"].iloc[0],
        "method": "median_of_blocks" if use_median else "ratio_of_sums",
        "cv_frac": float(scatter / step_s),
        "is_fitted": True,
        "note": "",
    }
    notes = []
    steps_needed = 3 * rule.block_steps if is_fine else rule.min_steps
    if len(clean) < rule.min_clean:
        notes.append(f"{len(clean)} clean interval: at least {rule.min_clean} are needed")
    elif float(clean["n_steps"].sum()) < 0.9 * steps_needed:
        notes.append(f"fewer than {steps_needed} clean steps")
    row["is_fitted"] = not notes
    if len(block_step_s) < 2:
        notes.append("one block of steps: no interval")
    drift = _drift(block_step_s, rule.drift_frac)
    if drift is not None:
        first, second = drift
        notes.append(f"drifts in time: {1e3 * first:.4g} ms in its first half, {1e3 * second:.4g} ms in its second")
        row |= {"step_s_lo": min(lo, first, second), "step_s_hi": max(hi, first, second)}
    return row | {"note": "; ".join(notes)}


def _bootstrap(time_s: np.ndarray, steps: np.ndarray, use_median: bool, confidence: float) -> tuple[float, float]:
    """Moving-block bootstrap of the level's estimate, widened by t over normal for the few blocks it has."""
    n = len(steps)
    if n < 2:
        return np.nan, np.nan
    length = min(BOOTSTRAP_BLOCK, max(1, n // 2))
    rng = np.random.default_rng(n)
    n_draws = -(-n // length)
    starts = rng.integers(0, n - length + 1, size=(RESAMPLES, n_draws))
    picks = (starts[:, :, None] + np.arange(length)).reshape(RESAMPLES, -1)[:, :n]
    if use_median:
        draws = np.median((time_s / steps)[picks], axis=1)
        centre = float(np.median(time_s / steps))
    else:
        draws = time_s[picks].sum(axis=1) / steps[picks].sum(axis=1)
        centre = float(time_s.sum() / steps.sum())
    tail = (1 - confidence) / 2
    low, high = np.quantile(draws, [tail, 1 - tail])
    effective = max(2.0, n / length)
    widen = stats.t.ppf(1 - tail, effective - 1) / stats.norm.ppf(1 - tail)
    return max(0.0, centre + widen * (low - centre)), centre + widen * (high - centre)


def _drift(block_step_s: np.ndarray, drift_frac: float) -> tuple[float, float] | None:
    """Return the medians of both halves when they differ by more than noise and drift_frac."""
    n = len(block_step_s)
    if n < 6:
        return None
    first, second = block_step_s[: n // 2], block_step_s[n // 2 :]
    errors = [stats.median_abs_deviation(h, scale="normal") * 1.25 / np.sqrt(len(h)) for h in (first, second)]
    medians = float(np.median(first)), float(np.median(second))
    gap = abs(medians[1] - medians[0])
    return medians if gap > drift_frac * min(medians) and gap > 3 * np.hypot(*errors) else None


def _correct_prefill(
    part: pd.DataFrame, rows: list[dict[str, object]], where: dict[str, object], rule: LevelRule
) -> list[dict[str, object]]:
    """Give levels without enough clean intervals an estimate from the contaminated ones, or the reason why not."""
    known = {float(str(r["running_req"])): float(str(r["step_s"])) for r in rows if r["is_fitted"]}
    mixed = _contaminated(part)
    cost = _prefill_cost(mixed, known)
    done = []
    for row in rows:
        if row["is_fitted"] or row["population"]:
            done.append(row)
            continue
        level = float(str(row["running_req"]))
        estimate = _corrected(mixed[mixed["level"].sub(level).abs() < 0.5], cost, rule)
        if estimate:
            kept = {name: row[name] for name in ("n_rejected", "n_clean")}
            row = where | {"population": 0, "running_req": level} | kept | estimate
        done.append(row)
    return done


def _contaminated(part: pd.DataFrame) -> pd.DataFrame:
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
    return part[usable & ~stalled & part["n_steps"].gt(0) & part["interval_s"].gt(0)]


def _prefill_cost(mixed: pd.DataFrame, known: dict[float, float]) -> tuple[float, float]:
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
    is_window = mixed["engine"].iloc[0] == "vllm"
    dof = len(mixed) - len(set(levels) - set(known)) - 1
    if dof < 2:
        return np.nan, np.nan

    def residual(cost: float) -> np.ndarray:
        rest_s = wall_s - cost * prompt
        free = {level: _shared_step(rest_s, steps, levels == level, is_window) for level in set(levels) - set(known)}
        step_s = np.array([(known | free)[level] for level in levels])
        return (steps - rest_s / step_s) / steps if is_window else (rest_s - steps * step_s) / wall_s

    highest = float(0.95 * np.min(wall_s[prompt > 0] / prompt[prompt > 0]))
    loss = optimize.minimize_scalar(lambda c: float((residual(c) ** 2).sum()), bounds=(0, highest), method="bounded")
    cost, width = float(loss.x), 0.02 * highest
    nearby = [float((residual(cost + k * width) ** 2).sum()) for k in (-1, 0, 1)]
    curvature = (nearby[0] - 2 * nearby[1] + nearby[2]) / width**2
    error = np.sqrt(2 * nearby[1] / dof / curvature) if curvature > 0 else np.inf
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
