"""One step time for one population of one level, with an interval that is not the spread of its samples."""

from __future__ import annotations

import numpy as np
import pandas as pd

from helpers import schema
from helpers.levels.bootstrap import bootstrap_interval
from helpers.levels.rule import LevelRule

GAP_FRAC = 0.02
"""Wall clock beyond the engine's own time that is said [1]; less is within what stamps of 1 s can tell."""

ROUNDING_TOK_PER_S = 0.005
"""Half a unit of the last digit of SGLang's gen throughput (%.2f)."""


def split_populations(clean: pd.DataFrame, rule: LevelRule) -> list[pd.DataFrame]:
    """Split by graph flag, then by jumps of the episodes' mean context; the one with most clean time comes first."""
    parts = []
    for _, part in clean.assign(flag=clean["graph"].astype("Int64").fillna(-1)).groupby("flag"):
        context = part.groupby("episode")["context_tok"].mean().dropna().sort_values()
        jump = (context / context.shift()).gt(rule.context_ratio).cumsum()
        if jump.max() == 0 or jump.empty:
            parts.append(part)
        else:
            parts += [of_context for _, of_context in part.assign(n=part["episode"].map(jump).fillna(0)).groupby("n")]
    return sorted(parts, key=lambda p: -float(p["interval_s"].sum()))


def estimate_level(clean: pd.DataFrame, confidence: float, rule: LevelRule) -> dict[str, object]:
    """Estimate one population of one level."""
    time_s, steps = _blocks(clean, rule.block_steps)
    block_step_s = time_s / steps
    is_window = schema.is_window(clean)
    is_fine = not is_window and clean["n_steps"].median() < rule.fine_steps
    if is_fine:  # single steps: sums keep their skew, a stalled block is none of it
        kept = block_step_s <= rule.stall_factor * np.median(block_step_s)
        time_s, steps, block_step_s = time_s[kept], steps[kept], block_step_s[kept]
    use_median = not is_window and not is_fine and len(block_step_s) >= 3
    step_s = float(np.median(block_step_s)) if use_median else float(time_s.sum() / steps.sum())
    lo, hi = bootstrap_interval(time_s, steps, use_median, confidence)
    # A window cuts up to one step, a printed rate is rounded: an interval is never narrower than what was printed.
    grain_s = step_s * (1 / steps.sum() if is_window else ROUNDING_TOK_PER_S / clean["decode_tok_per_s"].median())
    lo, hi = min(lo, step_s - grain_s), max(hi, step_s + grain_s)
    scatter = _robust_sd(block_step_s) if len(steps) > 2 else np.std(block_step_s)
    accept = float(np.average(clean["accept"], weights=clean["n_steps"]))
    total = float(clean["running_req_total"].mean())
    row: dict[str, object] = {
        "running_req": float(clean["running_req"].mean()),
        "running_req_total": total,
        "n_clean": len(clean),
        # ranks in lockstep share the clock: their clean time is one
        "clean_s": float(clean["interval_s"].sum()) / clean["rank"].fillna("").nunique(),
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
    if float(scatter / step_s) > rule.max_cv_frac:
        notes.append(f"scatters by {100 * scatter / step_s:.0f} %: something else ran; not fitted")
    row["is_fitted"] = not notes
    notes += _own_time_note(clean)
    if len(block_step_s) < 2:
        notes.append("one block of steps: no interval")
    drift = _drift(block_step_s, rule.drift_frac)
    if drift is not None:
        first, second = drift
        notes.append(f"drifts in time: {1e3 * first:.4g} ms in its first half, {1e3 * second:.4g} ms in its second")
        row |= {"step_s_lo": min(lo, first, second), "step_s_hi": max(hi, first, second)}
    return row | {"note": "; ".join(notes)}


def _own_time_note(clean: pd.DataFrame) -> list[str]:
    """Say by how much a client waits longer than the engine's own time of an iteration, where stamps tell."""
    kind = clean["kind"].iloc[0]
    if kind == schema.COUNTED_BY_STAMPS:
        return ["iterations print only what the engine waited: steps counted between the seconds of the stamps"]
    if kind != "iteration":
        return []
    ratio = float(clean["interval_s"].sum() / (clean["n_steps"] * clean["step_s"]).sum())
    if ratio <= 1 + GAP_FRAC:
        return []
    return [f"the engine's own time: between iterations a client waits {100 * (ratio - 1):.0f} % longer by the stamps"]


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


def _robust_sd(values: np.ndarray) -> float:
    """Median absolute deviation, scaled to the standard deviation of a normal distribution."""
    return 1.4826 * float(np.median(np.abs(values - np.median(values))))


def _drift(block_step_s: np.ndarray, drift_frac: float) -> tuple[float, float] | None:
    """Return the medians of both halves when they differ by more than noise and drift_frac."""
    n = len(block_step_s)
    if n < 6:
        return None
    first, second = block_step_s[: n // 2], block_step_s[n // 2 :]
    errors = [_robust_sd(h) * 1.25 / np.sqrt(len(h)) for h in (first, second)]
    medians = float(np.median(first)), float(np.median(second))
    gap = abs(medians[1] - medians[0])
    return medians if gap > drift_frac * min(medians) and gap > 3 * np.hypot(*errors) else None
