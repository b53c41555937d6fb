"""When a client had its full number of requests open: ramp, steady, mixed, drain and idle time of a run."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from helpers.errors import NotEnoughData
from helpers.evidence.clients.run import tpot_s
from helpers.schema import REQUESTS, check

TPOT_STATS = {"tpot_p10_s": 10, "tpot_median_s": 50, "tpot_p90_s": 90, "tpot_p99_s": 99}


def client_windows(requests: pd.DataFrame, *, full_ratio: float = 1.0) -> pd.DataFrame:
    """Divide the time of every run by how many requests were open, and rate the part in which all were.

    Every moment from the first send to the last answer is exactly one of: idle (nothing open), ramp (before the
    concurrency is first full), drain (after it was last full), steady (full, and every open request past its first
    token), mixed (the rest in between: some request waits for its first token, or a place is not filled again yet).

    Parameters
    ----------
    requests : DataFrame, schema REQUESTS
        Of any number of runs. Requests without start or latency cannot be placed and are counted in ``n_unplaced``.
    full_ratio : float in (0, 1]
        Full means at least this share of the largest concurrency, rounded up. 1 suits a client that sends the next
        request when one ends; under a random arrival rate the peak is a moment, and about 0.9 says more.

    Returns
    -------
    DataFrame
        One row per run: file, run, n_requests, n_unplaced, peak_req, full_req (threshold), total_s, ramp_s, steady_s,
        mixed_s, drain_s, idle_s (they add up to total_s), full_from_s, full_to_s (on the clock of start_s),
        mean_open_req, full_tok_per_s (output tokens between full_from_s and full_to_s over that time),
        steady_tok_per_s (the same in steady moments alone), prefill_wait_frac (share of open time between
        full_from_s and full_to_s that requests waited for their first token), n_tpot, tpot_mean_s, tpot_p10_s,
        tpot_median_s, tpot_p90_s, tpot_p99_s. NaN where the requests have no start.

    Raises
    ------
    SchemaError
        The table breaks REQUESTS.
    NotEnoughData
        There is no request, or ``full_ratio`` is outside (0, 1].

    Notes
    -----
    Tokens of a request after its first are taken as evenly spread from first token to end: a stall inside one request
    is spread over it. On our own runs, where per-token times are known, the steady rate is within 1 % of theirs up to
    16 requests at once, and 3 % and 7 % too low at 32 and 64, whose prompts arrive in bursts.
    """
    requests = check(requests, REQUESTS)
    if not len(requests):
        raise NotEnoughData("client_windows: expected requests, found none; keep per-request results (--save-detailed "
                            "of vllm bench serve, --output-details of sglang bench_serving)")
    if not 0 < full_ratio <= 1:
        raise NotEnoughData(f"client_windows: expected full_ratio in (0, 1], found {full_ratio}")
    rows = [{"file": file, "run": run, **_run(table, full_ratio)}
            for (file, run), table in requests.groupby(["file", "run"], sort=False)]
    return pd.DataFrame(rows)


def _run(requests: pd.DataFrame, full_ratio: float) -> dict[str, float]:
    per_tok = tpot_s(requests)
    row: dict[str, float] = {"n_requests": len(requests)}
    placed = requests[requests[["start_s", "e2e_s"]].notna().all(axis=1) & (requests["e2e_s"] >= 0)]
    row["n_unplaced"] = len(requests) - len(placed)
    row |= _times(placed, full_ratio)
    row |= {"n_tpot": len(per_tok), "tpot_mean_s": float(per_tok.mean()) if len(per_tok) else math.nan}
    return row | {name: float(np.percentile(per_tok, q)) if len(per_tok) else math.nan
                  for name, q in TPOT_STATS.items()}


_TIMES = ("peak_req", "full_req", "total_s", "ramp_s", "steady_s", "mixed_s", "drain_s", "idle_s", "full_from_s",
          "full_to_s", "mean_open_req", "full_tok_per_s", "steady_tok_per_s", "prefill_wait_frac")


def _times(placed: pd.DataFrame, full_ratio: float) -> dict[str, float]:
    if not len(placed):
        return dict.fromkeys(_TIMES, math.nan)
    start = placed["start_s"].to_numpy(float)
    end = start + placed["e2e_s"].to_numpy(float)
    # Where the first token is unknown the request counts as waiting to its end: nothing is called steady on a guess.
    first = np.minimum(start + placed["ttft_s"].fillna(math.inf).to_numpy(float), end)
    tok = placed["output_tok"].fillna(0).to_numpy(float)

    edges = np.unique(np.concatenate([start, first, end]))
    width = np.diff(edges)
    n_open = _count(start, end, edges)
    n_waiting = _count(start, first, edges)
    peak = int(n_open.max(initial=0))
    full = math.ceil(full_ratio * peak)
    is_full = (n_open >= full) & (n_open > 0)
    if not is_full.any():
        return dict.fromkeys(_TIMES, math.nan) | {"peak_req": peak, "full_req": full, "total_s": float(width.sum())}
    at_full = np.flatnonzero(is_full)
    place = np.arange(len(width))
    is_idle = n_open == 0
    is_ramp, is_drain = (place < at_full[0]) & ~is_idle, (place > at_full[-1]) & ~is_idle
    is_steady = is_full & (n_waiting == 0)
    is_within = (place >= at_full[0]) & (place <= at_full[-1])
    tok_of = _tokens(first, end, tok, edges)
    open_time = float((n_open * width)[is_within].sum())
    within_s, steady_s = float(width[is_within].sum()), float(width[is_steady].sum())
    # First tokens are moments, at the left edge of a span; none of them falls into a steady span's inside.
    first_in = (first >= edges[at_full[0]]) & (first < edges[at_full[-1] + 1]) & (tok > 0)
    return {
        "peak_req": peak, "full_req": full, "total_s": float(width.sum()),
        "ramp_s": float(width[is_ramp].sum()), "steady_s": steady_s,
        "mixed_s": float(width[is_within & ~is_steady & ~is_idle].sum()),
        "drain_s": float(width[is_drain].sum()), "idle_s": float(width[is_idle].sum()),
        "full_from_s": float(edges[at_full[0]]), "full_to_s": float(edges[at_full[-1] + 1]),
        "mean_open_req": float((n_open * width).sum() / width.sum()),
        "full_tok_per_s": (float(tok_of[is_within].sum()) + float(first_in.sum())) / within_s,
        "steady_tok_per_s": float(tok_of[is_steady].sum()) / steady_s if steady_s > 0 else math.nan,
        "prefill_wait_frac": float((n_waiting * width)[is_within].sum()) / open_time if open_time else math.nan,
    }


def _count(start: np.ndarray, end: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Return how many requests are between start and end in every span between two edges."""
    steps = np.zeros(len(edges))
    np.add.at(steps, np.searchsorted(edges, start), 1)
    np.add.at(steps, np.searchsorted(edges, end), -1)
    return steps.cumsum()[:-1]


def _tokens(first: np.ndarray, end: np.ndarray, tok: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Return the tokens after the first that fall into every span, evenly spread from first token to end."""
    is_spread = (end > first) & (tok > 1)
    rate = (tok[is_spread] - 1) / (end[is_spread] - first[is_spread])
    steps = np.zeros(len(edges))
    np.add.at(steps, np.searchsorted(edges, first[is_spread]), rate)
    np.add.at(steps, np.searchsorted(edges, end[is_spread]), -rate)
    return steps.cumsum()[:-1] * np.diff(edges)
