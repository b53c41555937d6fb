"""Load episodes: the stretches between empty batches, and the time spent in each phase."""

from __future__ import annotations

import numpy as np
import pandas as pd

from helpers import schema
from helpers.segment.ticks import of_each_rank, put_together

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
    return put_together([_number_rank(part) for _, part in of_each_rank(ticks)])


def _number_rank(part: pd.DataFrame) -> pd.DataFrame:
    if part["kind"].iloc[0] == "stats":
        idle_s = (part["printed_s"] - part["interval_s"]).where(part["printed_s"] > 1.5 * part["interval_s"], 0)
        empty = part["running_req_printed"].eq(0) & ~(part["decode_tok_per_s"] > 0)
        emptied = part["prev_running_req"].eq(0) & part["running_req_printed"].gt(0)
        pause = idle_s.gt(IDLE_SLACK_S) | (emptied & empty.shift(fill_value=False) & empty.shift(2, fill_value=False))
    else:
        idle_s = _silence_s(part)
        emptied = part["n_empties"] > 0
        pause = idle_s.gt(0)
    return part.drop(columns=list(SPENT)).assign(
        is_idle=idle_s.gt(0), idle_s=idle_s.fillna(0.0).astype(float),
        episode=count_episodes(part["running_req"], part["is_first"] | emptied | pause, pause),
    )


SPENT = ("printed_s", "prev_t_s", "prev_next_prefill_t_s", "n_empties")
"""Columns of the working table that are read no more once episodes are known."""


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
    keys = ["server_life", "rank_group", "episode"]
    wall_s = (_wall_s(intervals) - intervals["idle_s"]).clip(lower=0)
    columns = _columns(intervals, wall_s)
    places_of: dict[tuple[int, str, int], np.ndarray] = dict(intervals.groupby(keys).indices)  # type: ignore[arg-type]
    busy = columns["running_req"] > 0
    busy |= columns["decode_tok_per_s"] > 0
    is_active = busy & ~columns["is_idle"]
    by_phase = intervals.loc[is_active, [*keys, "label"]].assign(wall_s=wall_s[is_active]).groupby([*keys, "label"])
    phases: dict[tuple[int, str, int, str], float] = by_phase["wall_s"].sum().to_dict()
    rows = []
    for (life, group, episode), places in sorted(places_of.items()):
        inside = places[busy[places]]
        if not len(inside):
            continue
        rank = columns["rank"][inside]
        n_ranks = 1 if (rank == rank[0]).all() else len(np.unique(rank))
        tokens = float(columns["known_tok"][inside].sum())
        duration_s = float(columns["known_wall_s"][inside[~columns["is_idle"][inside]]].sum()) / n_ranks
        running_req = columns["running_req"][inside]
        peak = float(np.fmax.reduce(running_req))
        clean = inside[columns["clean"][inside] & (running_req >= 0.95 * peak)]
        clean_s = float(columns["known_s"][clean].sum())
        steady = _steady_tok_per_s(columns, clean, n_ranks) if clean_s > 0 else np.nan
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


def _columns(table: pd.DataFrame, wall_s: pd.Series) -> dict[str, np.ndarray]:
    """Return what the sums of episodes need as arrays: a log of a day has thousands of episodes."""
    numbers = ("running_req", "running_req_total", "decode_tok_per_s", "t_s", "step_s", "n_steps")
    kind = table["kind"]
    is_window = kind.isin(schema.WINDOW_KINDS) | kind.isna() & table["engine"].eq("vllm")
    return {
        **{name: table[name].to_numpy(dtype=float) for name in numbers},
        "known_tok": (table["decode_tok_per_s"] * table["interval_s"]).fillna(0.0).to_numpy(dtype=float),
        "known_s": table["interval_s"].fillna(0.0).to_numpy(dtype=float),
        "known_wall_s": wall_s.fillna(0.0).to_numpy(dtype=float),
        "accept": table["accept_len"].fillna(1.0).to_numpy(dtype=float),
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


def _steady_tok_per_s(columns: dict[str, np.ndarray], clean: np.ndarray, n_ranks: int) -> float:
    """Rate of the clean intervals at the peak; a median like a level's, so that one stall does not make two rates."""
    if columns["is_sum"][clean[0]] or len(clean) < 3 or _median(columns["n_steps"][clean]) < 5:
        return n_ranks * float(columns["known_tok"][clean].sum() / columns["known_s"][clean].sum())
    running_req = columns["running_req_total"][clean] * columns["accept"][clean]
    return float(np.nanmean(running_req) / _median(columns["step_s"][clean]))


def _median(values: np.ndarray) -> float:
    """Return the median of the known values, NaN without any."""
    known = np.sort(values[~np.isnan(values)])
    n = len(known)
    return float((known[(n - 1) // 2] + known[n // 2]) / 2) if n else np.nan  # np.median costs more than the sort
