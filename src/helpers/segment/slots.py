"""Finished requests to intervals: from each one's decode time, which of them decoded together and when.

A request decodes from ``t_s - span_s`` to ``t_s``. Between two changes the number of requests that decode is constant,
and one step gives each of them one token, so the mean step of any of them is the step of that count, as far as its
whole span had that count: a request that saw several counts tells none of them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import numpy as np
import pandas as pd

from helpers import schema
from helpers.segment import rules, spans
from helpers.segment.episodes import IDLE_SLACK_S, count_episodes

MIN_PURE_FRAC = 0.9
"""A request tells the step of a count if this share of its decode time had that count and no prompt elsewhere [1]."""

GRAIN_S = 2.0
"""With stamps of 1 s a piece between two of them is only known to be there above this."""


def label_requests(
    records: pd.DataFrame, events: pd.DataFrame, facts: Mapping[int, Mapping[str, object]], rule: rules.CleanRule
) -> pd.DataFrame:
    """Return one row per piece of time in which the same requests decode, with the columns of INTERVALS and ``pos``.

    Parameters
    ----------
    records : DataFrame
        SAMPLES of kind request with ``pos``, their place in the input.
    events, facts, rule
        As `helpers.segment.label_intervals` takes them.

    Raises
    ------
    NotEnoughData
        No request has both a stamp and a decode time: which of them ran together cannot be rebuilt.
    """
    rows = spans.with_roles(records, facts)
    rows = _with_times(rows)
    known = rows["start_s"].notna() & rows["span_s"].gt(0) & rows["steps"].gt(0)
    if len(rows) and not known.any():
        raise schema.NotEnoughData(
            f"requests: expected a time stamp and a decode time on each of the {len(rows)} finished requests, found "
            "none with both; without them nobody can tell which ran together. Log with time stamps (llama.cpp: "
            "--log-timestamps, Docker: --timestamps)"
        )
    parts = [_pieces(part) for _, part in rows[known].groupby(["server_life", "rank_key"], sort=False)]
    pieces = pd.concat([*parts, _unplaced(rows[~known])]) if parts else _unplaced(rows)
    pieces = pieces.sort_values(["pos", "t_s"], kind="stable").reset_index(drop=True)
    pieces["warmup"] = rules.find_warmup(pieces, events, rule)
    pieces["why"] = pieces["why"].mask(pieces["warmup"] & pieces["why"].eq(rules.CLEAN), rules.WARMUP)
    return rules.reject_stalls(pieces, rule)


def label_of_piece(pieces: pd.DataFrame) -> pd.Series:
    """Label pieces: the count differs from piece to piece by construction, so only clean ones are steady."""
    before = pieces.groupby(["server_life", "rank_key"])["running_req"].shift().fillna(0)
    label = pd.Series("drain", index=pieces.index).mask(pieces["running_req"] > before, "ramp")
    label = label.mask(pieces["prefill_tok"].gt(0), "mixed")
    label = label.mask(pieces["why"].isin([rules.CLEAN, rules.STALL]), "steady")
    return label.mask(pieces["warmup"], "warmup").mask(pieces["running_req"].eq(0), "idle")


def _with_times(rows: pd.DataFrame) -> pd.DataFrame:
    """Add start and steps of each request's decode, and the start of its prompt."""
    prompt_s = rows["extra"].map(_prompt_s).astype("float64")
    prompt_s = prompt_s.fillna(rows["new_tok"] / rows["prefill_tok_per_s"].where(rows["prefill_tok_per_s"] > 0))
    start_s = rows["t_s"] - rows["span_s"]
    return rows.assign(
        start_s=start_s, end_s=rows["t_s"], prompt_start_s=start_s - prompt_s.fillna(0.0).clip(lower=0.0),
        steps=rows["n_steps"].fillna(rows["out_tok"]), has_prompt_time=prompt_s.notna(),
    )


def _prompt_s(extra: object) -> float:
    if not isinstance(extra, str) or '"prompt_s"' not in extra:
        return np.nan
    value = json.loads(extra).get("prompt_s")
    return float(value) if isinstance(value, (int, float)) else np.nan


def _pieces(part: pd.DataFrame) -> pd.DataFrame:
    """Cut the time of one rank at every change and give each piece its count, prompts and step."""
    start_s, end_s, prompt_s = (part[name].to_numpy(float) for name in ("start_s", "end_s", "prompt_start_s"))
    edges = np.unique(np.concatenate([start_s, end_s, prompt_s]))
    left, right = edges[:-1], edges[1:]
    count = _running_at(left, start_s, end_s)
    prompts = _running_at(left, prompt_s, start_s)
    pairs = _pairs(left, right, start_s, end_s)
    table = pd.DataFrame({"t_s": right, "interval_s": right - left, "running_req": count.astype(float)})
    table["prefill_tok"] = _prompt_tokens(part, left, right, prompts)
    own_step_s = part["span_s"].to_numpy(float) / part["steps"].to_numpy(float)
    is_quiet = (table["prefill_tok"] == 0).to_numpy()
    pure = _is_pure(pairs, table["interval_s"].to_numpy(), count, is_quiet, end_s - start_s)
    pairs = pairs.assign(pure=pure, steps=table["interval_s"].to_numpy()[pairs["piece"]] / own_step_s[pairs["request"]])
    chosen = pairs["pure"] | ~pairs.groupby("piece")["pure"].transform("any")
    steps = pairs[chosen].groupby("piece")["steps"].mean()
    table["n_steps"] = steps.reindex(table.index)
    table["pure_frac"] = pairs.groupby("piece")["pure"].mean().reindex(table.index)
    return _complete(table, part, spans.has_whole_seconds(part["t_s"]))


def _running_at(moments: np.ndarray, start_s: np.ndarray, end_s: np.ndarray) -> np.ndarray:
    """Count the spans that hold the time just after each moment."""
    begun = np.searchsorted(np.sort(start_s), moments, side="right")
    return begun - np.searchsorted(np.sort(end_s), moments, side="right")


def _pairs(left: np.ndarray, right: np.ndarray, start_s: np.ndarray, end_s: np.ndarray) -> pd.DataFrame:
    """Return every pair of a piece and a request that decodes in it."""
    first = np.searchsorted(left, start_s, side="left")
    last = np.searchsorted(right, end_s, side="right")
    n = np.maximum(last - first, 0)
    request = np.repeat(np.arange(len(start_s)), n)
    piece = np.arange(n.sum()) - np.repeat(np.cumsum(n) - n, n) + np.repeat(first, n)
    return pd.DataFrame({"piece": piece, "request": request})


def _prompt_tokens(part: pd.DataFrame, left: np.ndarray, right: np.ndarray, prompts: np.ndarray) -> np.ndarray:
    """Prompt tokens of each piece; a prompt without a time of its own falls into the piece before its first token."""
    timed = part[part["has_prompt_time"] & (part["start_s"] > part["prompt_start_s"])]
    rate = (timed["prefill_tok"] / (timed["start_s"] - timed["prompt_start_s"])).to_numpy(float)
    begin, end = timed["prompt_start_s"].to_numpy(float), timed["start_s"].to_numpy(float)
    tokens = np.zeros(len(left))
    for edge, sign in ((begin, 1.0), (end, -1.0)):
        np.add.at(tokens, np.searchsorted(left, edge), sign * rate) if len(edge) and len(left) else None
    tokens = np.cumsum(tokens) * (right - left)
    tokens[prompts == 0] = 0.0
    untimed = part[~part["has_prompt_time"] & part["prefill_tok"].gt(0)]
    at = np.searchsorted(right, untimed["start_s"].to_numpy(float))
    np.add.at(tokens, at[at < len(right)], untimed["prefill_tok"].to_numpy(float)[at < len(right)])
    return tokens


def _is_pure(
    pairs: pd.DataFrame, piece_s: np.ndarray, count: np.ndarray, is_quiet: np.ndarray, span_s: np.ndarray
) -> pd.Series:
    """Tell for each pair whether nearly all of the request's decode time had the piece's count and no prompt."""
    piece, request = pairs["piece"].to_numpy(), pairs["request"].to_numpy()
    quiet_s = pd.Series(piece_s[piece] * is_quiet[piece])
    alike_s = quiet_s.groupby([request, count[piece]]).transform("sum").to_numpy()
    return pd.Series((alike_s >= MIN_PURE_FRAC * span_s[request]) & is_quiet[piece], index=pairs.index)


def _complete(table: pd.DataFrame, part: pd.DataFrame, is_coarse: bool) -> pd.DataFrame:
    """Add what the table of intervals needs beside times and counts."""
    order = part.sort_values("end_s")
    at = np.searchsorted(order["end_s"].to_numpy(float), table["t_s"].to_numpy(float)).clip(max=len(order) - 1)
    last = ["file", "line_no", "ts", "engine", "kind", "rank", "rank_key", "rank_group", "server_life", "pos"]
    for name in last:
        table[name] = order[name].to_numpy()[at]
    is_empty = table["running_req"].eq(0)
    pause = is_empty & table["interval_s"].gt(IDLE_SLACK_S) & table["prefill_tok"].eq(0)
    begins = is_empty & ~is_empty.shift(fill_value=False)
    begins.iloc[0] = True
    table = table.assign(
        running_req_printed=table["running_req"].astype("int64"), running_req_total=table["running_req"],
        step_s=(table["interval_s"] / table["n_steps"].where(table["n_steps"] > 0)),
        decode_tok_per_s=(table["running_req"] * table["n_steps"] / table["interval_s"]).fillna(0.0),
        idle_s=table["interval_s"].where(is_empty & table["prefill_tok"].eq(0), 0.0), is_idle=pause,
        queue_req=pd.Series(np.nan, index=table.index), used_tok=np.nan, context_tok=np.nan, accept_len=np.nan,
        graph=pd.Series(pd.NA, index=table.index, dtype="boolean"), cached_inside_tok=0.0,
        episode=count_episodes(table["running_req"], begins, pause).clip(lower=0),
    )
    return table.assign(why=spans.first_holding([
        (is_empty, rules.NO_TOKENS),
        (table["prefill_tok"].gt(0), rules.PREFILL_INSIDE),
        (table["interval_s"].lt(GRAIN_S) & is_coarse, rules.STAMP_GRAIN),
        (table["pure_frac"].fillna(0.0).lt(0.5), rules.OVERLAP_CHANGES),
    ], rules.CLEAN))


def _unplaced(rows: pd.DataFrame) -> pd.DataFrame:
    """Keep requests that cannot be placed in time: seen, and no part of any count."""
    return rows.assign(
        running_req=0.0, running_req_printed=0, running_req_total=np.nan, step_s=np.nan, n_steps=np.nan,
        interval_s=np.nan, idle_s=0.0, decode_tok_per_s=rows["decode_tok_per_s"].fillna(0.0), prefill_tok=0.0,
        is_idle=False, episode=0, why=rules.NO_STAMP, cached_inside_tok=0.0,
    )
