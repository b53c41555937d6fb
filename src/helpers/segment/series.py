"""Whether the lines under one rank tag can be those of one server.

Two servers that print into one file without a label give a series that no server can produce: used_tok and
running_req jump between two histories, each of which is consistent by itself.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

MAX_LAG = 5
"""Lines back in which the history of a line is looked for: that many servers less one can interleave evenly."""

MIN_JUMPS = 6
"""Lines that go on with an older line and not with the one before them; fewer can be chance."""

MIN_JUMP_SHARE_FRAC = 0.1
"""Share of the lines with a history that must jump [1]; one server gives none, two give a third or more."""

MAX_LINES = 50_000
"""Lines looked at: a log that mixes two servers shows it at once."""

MIN_OVERLAP = 1.5
"""Time that the lines claim over wall time [1] above which one server cannot have printed them."""

VLLM_PERIODS_S = (10.0, 5.0)
"""Window of one server: V1 and V0. Two clocks of one period share it between them [s]."""

_ALTERNATES_FRAC = 0.6
"""Share of vLLM windows that must come in two alternating series."""


def holds_several_series(records: pd.DataFrame, engine: str, facts: Mapping[str, object]) -> str:
    """Say why the lines of one rank cannot be one server's, or return nothing.

    Parameters
    ----------
    records : DataFrame, schema SAMPLES
        Of one rank of one server life, in file order.
    engine : str
        sglang: by the growth of used_tok and by time; windows of fixed time: where they alternate.
    facts : mapping
        decode_log_interval and page_size where known.
    """
    ticks = records[records["kind"].isin(["decode", "stats"])].head(MAX_LINES)
    if len(ticks) <= MIN_JUMPS:
        return ""
    if engine == "sglang":
        return _by_growth(ticks, facts) or _by_time(ticks, facts)
    return _by_alternation(ticks) if ticks["kind"].eq("stats").any() else ""


def _fact(facts: Mapping[str, object], name: str) -> int:
    value = facts.get(name)
    return int(value) if isinstance(value, (int, float)) and value > 0 else 0


def _numbers(ticks: pd.DataFrame, name: str) -> np.ndarray:
    return ticks[name].to_numpy("float64", na_value=np.nan)


def _by_growth(ticks: pd.DataFrame, facts: Mapping[str, object]) -> str:
    """Count lines whose running_req and used_tok go on where an older line stopped, not the line before."""
    running, used = _numbers(ticks, "running_req"), _numbers(ticks, "used_tok")
    per_step = running * np.clip(np.nan_to_num(_numbers(ticks, "accept_len"), nan=1.0), 1.0, None)
    speculates = bool(ticks["accept_len"].notna().any())
    page = _fact(facts, "page_size") or _page_tok(used)
    n_steps = _fact(facts, "decode_log_interval") or (_steps_per_line(running, used, per_step) if page == 1 else 0)
    if 2 * (page if page > 1 else 0) >= n_steps or len(np.unique(used[np.isfinite(used)])) < MIN_JUMPS:
        return ""  # unknown, coarser than a line's growth, or frozen (HiSparse before 0.5.14)
    slack = (page > 1) * page * running + speculates * 0.02 * n_steps * per_step
    goes_on = [_goes_on(running, used, n_steps * per_step, slack, lag) for lag in range(1, MAX_LAG + 1)]
    follows = goes_on[0]
    jumps = np.any(goes_on[1:], axis=0) & ~follows
    n_jumps, n_known = int(jumps.sum()), int((jumps | follows).sum())
    if n_jumps < MIN_JUMPS or n_jumps < MIN_JUMP_SHARE_FRAC * n_known:
        return ""
    return f"in {n_jumps} of {n_known} lines #running-req and #token go on with an older line, not the one before"


def _goes_on(running: np.ndarray, used: np.ndarray, growth: np.ndarray, slack: np.ndarray, lag: int) -> np.ndarray:
    """Mark the lines that are one line's steps after the line ``lag`` before them."""
    found = np.zeros(len(running), dtype=bool)
    same = (running[lag:] == running[:-lag]) & (running[lag:] > 0)
    found[lag:] = same & (np.abs(used[lag:] - used[:-lag] - growth[lag:]) <= slack[lag:])
    return found


def _steps_per_line(running: np.ndarray, used: np.ndarray, per_step: np.ndarray) -> int:
    """Recover the decode steps per line, whatever lines stand in between; 0 where used_tok cannot tell."""
    ratios = []
    for lag in range(1, MAX_LAG + 1):
        same = (running[lag:] == running[:-lag]) & (running[lag:] > 0)
        ratio = (used[lag:] - used[:-lag])[same] / per_step[lag:][same]
        ratios.append(ratio[np.isfinite(ratio) & (ratio >= 1) & (np.abs(ratio - np.round(ratio)) < 1e-6)])
    values, counts = np.unique(np.round(np.concatenate(ratios)), return_counts=True)
    if not len(counts) or counts.max() < MIN_JUMPS:
        return 0
    return int(values[counts >= 0.6 * counts.max()][0])  # lines further apart show a multiple of it


def _page_tok(used: np.ndarray) -> int:
    """Return the unit in which used_tok is counted; pages hide how many steps a line has."""
    known = used[np.isfinite(used)].astype("int64")
    return max(int(np.gcd.reduce(known)), 1) if len(known) else 1


def _by_time(ticks: pd.DataFrame, facts: Mapping[str, object]) -> str:
    """Add up the time that each line covers: one server's lines tile the wall clock, two servers' cover it twice."""
    n_steps = _fact(facts, "decode_log_interval")
    stamps = _numbers(ticks, "t_s")
    running, rate = _numbers(ticks, "running_req"), _numbers(ticks, "decode_tok_per_s")
    accept = np.clip(np.nan_to_num(_numbers(ticks, "accept_len"), nan=1.0), 1.0, None)
    if not n_steps or not np.isfinite(stamps).all() or stamps[-1] - stamps[0] < 60:
        return ""
    # A count that rose within the line claims too much time: the smaller end claims the least that is certain.
    least = np.minimum(running[1:], running[:-1])
    claimed_s = float((n_steps * least * accept[1:] / np.where(rate[1:] > 0, rate[1:], np.inf)).sum())
    overlap = claimed_s / float(stamps[-1] - stamps[0])
    if overlap < MIN_OVERLAP:
        return ""
    return f"lines of {n_steps} steps each cover {overlap:.1f} times the wall clock, or decode_log_interval is another"


def _by_alternation(ticks: pd.DataFrame) -> str:
    """Look for windows that come in turns from two servers: two loads, or two clocks of one period."""
    ticks = ticks[ticks["kind"].eq("stats")]
    running, usage, stamps = (_numbers(ticks, name) for name in ("running_req", "kv_used_frac", "t_s"))
    if len(ticks) < 2 * MIN_JUMPS:
        return ""
    away, back = np.abs(usage[1:-1] - usage[:-2]), np.abs(usage[2:] - usage[:-2])
    in_turns = (running[2:] == running[:-2]) & (running[1:-1] != running[:-2]) & (back < 0.3 * away)
    if in_turns.mean() >= _ALTERNATES_FRAC:
        return f"{int(in_turns.sum())} of {len(in_turns)} windows return to the load of the one before the last"
    gaps = np.diff(stamps)
    if len(gaps) > 3 and np.isfinite(gaps).all():
        is_period = np.any([np.abs(gaps[1:-1] + gaps[:-2] - period_s) <= 1 for period_s in VLLM_PERIODS_S], axis=0)
        turns = is_period & (np.abs(gaps[1:-1] - gaps[:-2]) >= 2) & (np.abs(gaps[2:] - gaps[:-2]) <= 1)
        if turns.mean() >= _ALTERNATES_FRAC:
            return f"{int(turns.sum())} of {len(turns)} windows end by one of two clocks in turn"
    return ""
