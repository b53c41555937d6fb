"""Load episodes: the stretches between empty batches, and the time spent in each phase."""

from __future__ import annotations

import numpy as np
import pandas as pd

from helpers import schema

IDLE_SLACK_S = 2.0
"""Two stamps of 1 s resolution may be 2 s apart without anything between them."""


def number_episodes(ticks: pd.DataFrame) -> pd.DataFrame:
    """Add ``is_idle`` (idle time dominates the interval) and ``episode`` to the working table of segment.

    Notes
    -----
    An empty batch shows as a prefill record with running_req 0 (SGLang) or a window with Running 0 (vLLM). Waves of a
    closed loop whose requests end together empty the batch too: without idle time between them, a piece that rises no
    higher than the one before belongs to the same episode.
    """
    parts = [_number_rank(part) for _, part in ticks.groupby(["server_life", "rank_key"], sort=False)]
    return pd.concat(parts).sort_values("pos")


def _number_rank(part: pd.DataFrame) -> pd.DataFrame:
    if part["kind"].iloc[0] == "stats":
        idle_s = (part["printed_s"] - part["interval_s"]).where(part["printed_s"] > 1.5 * part["interval_s"], 0)
        empty = part["running_req_printed"].eq(0) & ~(part["decode_tok_per_s"] > 0)
        emptied = part["prev_running_req"].eq(0) & part["running_req_printed"].gt(0)
        pause = idle_s.gt(IDLE_SLACK_S) | (emptied & empty.shift(fill_value=False) & empty.shift(2, fill_value=False))
    else:
        idle_s = _silence_s(part)
        emptied = part["empties_before"] > part["prev_empties_before"].fillna(0)
        pause = idle_s.gt(0)
    return part.assign(
        is_idle=idle_s.gt(0), idle_s=idle_s.fillna(0.0).astype(float),
        episode=count_episodes(part["running_req"], part["is_first"] | emptied | pause, pause),
    )


def count_episodes(running_req: pd.Series, begins: pd.Series, pause: pd.Series) -> pd.Series:
    """Return the load episode of each row: a piece that begins without a pause and rises no higher is no new one."""
    piece = begins.cumsum()
    peak = running_req.groupby(piece).max()
    paused = pause.groupby(piece).first()
    number = (peak.gt(peak.shift().fillna(0)) | paused).cumsum() - 1
    return piece.map(number).astype("int64")


def _silence_s(part: pd.DataFrame) -> pd.Series:
    """SGLang: seconds without a record before the prefill that ended it, when longer than a line would have taken.

    At an unchanged count with no prefill inside nothing arrived: that is a stall, not idle time.
    """
    typical = part.groupby("running_req_printed")["step_s"].transform("median")
    due_s = (part["n_steps"] * typical).shift().fillna(0)
    silence_s = (part["prev_next_prefill_t_s"].clip(upper=part["t_s"]) - part["prev_t_s"]).fillna(part["printed_s"])
    arrived = part["n_prefills"].gt(0) | part["running_req_printed"].ne(part["prev_running_req"])
    idle = arrived & ~part["is_first"] & (silence_s > due_s + IDLE_SLACK_S) & (silence_s > 0.3 * part["printed_s"])
    return silence_s.where(idle, 0.0)


def _wall_s(intervals: pd.DataFrame) -> pd.Series:
    """Wall time of each interval from stamps (their rounding cancels in sums), else from tokens over rate."""
    own = intervals.groupby(["server_life", intervals["rank"].fillna("")])
    return own["t_s"].diff().clip(lower=0).fillna(intervals["interval_s"]).fillna(0)


def phase_seconds(intervals: pd.DataFrame) -> dict[str, float]:
    """Sum the wall time per label, for one rank (the first) of each server life.

    Parameters
    ----------
    intervals : DataFrame, schema INTERVALS

    Returns
    -------
    dict
        warmup_s, ramp_s, steady_s, mixed_s, drain_s, idle_s [s].
    """
    schema.check(intervals, schema.INTERVALS)
    rank = intervals["rank"].fillna("")
    first = intervals.assign(rank_key=rank).groupby("server_life")["rank_key"].transform("first")
    one = intervals[rank.eq(first)]
    idle_s = one["idle_s"]
    sums = (_wall_s(one) - idle_s).clip(lower=0).groupby(one["label"]).sum()
    sums["idle"] = sums.get("idle", 0.0) + idle_s.sum()
    return {f"{label}_s": float(sums.get(label, 0.0)) for label in schema.LABELS}


def find_episodes(intervals: pd.DataFrame) -> pd.DataFrame:
    """Summarise each load episode: its peak, its average rate as a client sees it, its steady rate.

    Parameters
    ----------
    intervals : DataFrame, schema INTERVALS

    Returns
    -------
    DataFrame
        server_life, rank_group, episode, n_ranks (lockstep ranks that print; their tokens add up, their time does not),
        peak_req [req], start_s, duration_s [s], tokens [tok],
        average_tok_per_s (tokens over the whole episode: ramp, prefill and drain included), steady_tok_per_s
        (of its clean intervals at the peak, by the rule of the levels: median of lines, or
        sums over windows; NaN without), steady_over_average [1], seconds per label.
    """
    schema.check(intervals, schema.INTERVALS)
    table = intervals.assign(wall_s=(_wall_s(intervals) - intervals["idle_s"]).clip(lower=0))
    columns = _columns(table)
    grouped = table.groupby(["server_life", "rank_group", "episode"])
    places_of: dict[tuple[int, str, int], np.ndarray] = dict(grouped.indices)  # type: ignore[arg-type]
    busy = columns["running_req"] > 0
    busy |= columns["decode_tok_per_s"] > 0
    active = table[busy & ~columns["is_idle"]]
    by_phase = active.groupby(["server_life", "rank_group", "episode", "label"])["wall_s"].sum()
    phases: dict[tuple[int, str, int, str], float] = by_phase.to_dict()
    rows = []
    for (life, group, episode), places in sorted(places_of.items()):
        part = {name: values[places[busy[places]]] for name, values in columns.items()}
        if not len(part["running_req"]):
            continue
        n_ranks = len(np.unique(part["rank"]))
        tokens = float(np.nansum(part["decode_tok_per_s"] * part["interval_s"]))
        duration_s = float(np.nansum(part["wall_s"][~part["is_idle"]])) / n_ranks
        peak = float(np.nanmax(part["running_req"]))
        at_peak = part["clean"] & (part["running_req"] >= 0.95 * peak)
        clean = {name: values[at_peak] for name, values in part.items()}
        clean_s = float(np.nansum(clean["interval_s"]))
        steady = _steady_tok_per_s(clean, n_ranks) if clean_s > 0 else np.nan
        average = tokens / duration_s if duration_s > 0 else np.nan
        rows.append(
            {
                "server_life": life, "rank_group": group, "episode": episode, "n_ranks": n_ranks, "peak_req": peak,
                "start_s": float(_least(columns["t_s"][places])), "duration_s": duration_s, "tokens": tokens,
                "average_tok_per_s": average, "steady_tok_per_s": steady,
                "steady_over_average": steady / average if average else np.nan,
                **{f"{label}_s": float(phases.get((life, group, episode, label), 0.0) / n_ranks)
                   for label in schema.LABELS if label != "idle"},
            }
        )
    return pd.DataFrame(rows)


def _columns(table: pd.DataFrame) -> dict[str, np.ndarray]:
    """Return what the sums of episodes need as arrays: a log of a day has hundreds of episodes."""
    numbers = ("running_req", "running_req_total", "decode_tok_per_s", "interval_s", "wall_s", "t_s", "accept_len",
               "step_s", "n_steps")
    kind = table["kind"]
    is_window = kind.isin(schema.WINDOW_KINDS) | kind.isna() & table["engine"].eq("vllm")
    return {
        **{name: table[name].to_numpy(dtype=float) for name in numbers},
        "clean": table["clean"].to_numpy(dtype=bool),
        "is_idle": table["label"].eq("idle").to_numpy(dtype=bool),
        "rank": pd.factorize(table["rank"].fillna(""))[0],
        # an engine's own time has gaps
        "is_sum": (is_window | kind.isin(schema.SPAN_KINDS)).to_numpy(dtype=bool),
    }


def _least(values: np.ndarray) -> float:
    """Return the least of values, NaN if all are missing."""
    known = values[~np.isnan(values)]
    return float(known.min()) if len(known) else np.nan


def _steady_tok_per_s(clean: dict[str, np.ndarray], n_ranks: int) -> float:
    """Rate of the clean intervals at the peak; a median like a level's, so that one stall does not make two rates."""
    tokens = clean["decode_tok_per_s"] * clean["interval_s"]
    sums = n_ranks * float(np.nansum(tokens) / np.nansum(clean["interval_s"]))
    if clean["is_sum"][0] or len(tokens) < 3 or _median(clean["n_steps"]) < 5:
        return sums
    accept = np.where(np.isnan(clean["accept_len"]), 1.0, clean["accept_len"])
    return float(np.nanmean(clean["running_req_total"] * accept) / _median(clean["step_s"]))


def _median(values: np.ndarray) -> float:
    """Return the median of the known values, NaN without any."""
    known = values[~np.isnan(values)]
    return float(np.median(known)) if len(known) else np.nan
