"""Which records of a server life tell its step time best, and what all records with a time of their own share.

A log line covers the time since the line before; an iteration, a difference of counters and a finished request carry
the time they cover in ``span_s``. Each kind has its module: `iterations`, `counters`, `slots`.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from helpers.segment.ranks import describe_ranks

PREFERENCE = ("iteration", "counters", "line", "request")
"""Best first: single steps, steps counted over a known time, lines averaged over steps or windows, whole requests."""

LINE_KINDS = ("decode", "stats")

MIN_COVER_FRAC = 0.5
"""A better source must cover at least this share of the time that the worse one covers [1]: lines of a detail that was
switched on for a moment are no base for a law."""


def describe_sources(samples: pd.DataFrame) -> pd.DataFrame:
    """Say for every server life which kinds of records it has and which of them its intervals rest on.

    Parameters
    ----------
    samples : DataFrame, schema SAMPLES

    Returns
    -------
    DataFrame
        server_life, source (iteration, counters, line or request), n_records, is_used, why (words). One source per life
        is used, so that no time counts twice.
    """
    rows: list[dict[str, object]] = []
    is_usable = _is_usable(samples)
    left = samples.loc[~is_usable, ["server_life", "kind"]]
    unplaced = left["kind"].mask(left["kind"].isin(LINE_KINDS), "line").groupby(left["server_life"]).value_counts()
    usable = samples.loc[is_usable, ["server_life", "kind", "t_s", "span_s"]]
    for life, of_life in usable.groupby("server_life"):
        by_source = _by_source(of_life)
        best = _choose(by_source)
        for name in PREFERENCE:
            if name in by_source:
                why = _why(name, best, by_source)
                lacking = int(unplaced.get((life, name), 0))
                why += f"; {lacking} more state no count, rate or time" if lacking else ""
                rows.append({"server_life": life, "source": name, "n_records": len(by_source[name]),
                             "is_used": name == best, "why": why})
    return pd.DataFrame(rows, columns=["server_life", "source", "n_records", "is_used", "why"])


def used_source(samples: pd.DataFrame) -> pd.Series:
    """Return for every sample the source that its server life uses ("" where it has none)."""
    sources = describe_sources(samples)
    used = sources[sources["is_used"].astype(bool)]
    by_life = dict(zip(used["server_life"], used["source"], strict=True))
    places, lives = pd.factorize(samples["server_life"])
    words = pd.array([by_life.get(life, "") for life in lives], dtype="str")
    return pd.Series(words.take(places), index=samples.index)


def _by_source(of_life: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return the records of each source, without a copy where there is one."""
    names = {kind: "line" if kind in LINE_KINDS else str(kind) for kind in of_life["kind"].unique()}
    if len(set(names.values())) == 1:
        return {next(iter(names.values())): of_life}
    return {name: part for name, part in of_life.groupby(of_life["kind"].map(names))}


def _is_usable(samples: pd.DataFrame) -> pd.Series:
    """Mark records that can become an interval."""
    is_line = samples["kind"].isin(LINE_KINDS) & samples["running_req"].notna() & samples["decode_tok_per_s"].notna()
    has_span = samples["span_s"].notna() & samples["running_req"].notna()
    return is_line | (samples["kind"].isin(["iteration", "counters"]) & has_span) | samples["kind"].eq("request")


def _choose(by_source: Mapping[str, pd.DataFrame]) -> str:
    covered_s = {name: _covered_s(part) for name, part in by_source.items()}
    longest_s = max(covered_s.values())
    return next(name for name in PREFERENCE if name in by_source and covered_s[name] >= MIN_COVER_FRAC * longest_s)


def _covered_s(part: pd.DataFrame) -> float:
    """Seconds from the first to the last record; without stamps their own time."""
    between_s = float(part["t_s"].max() - part["t_s"].min()) if part["t_s"].notna().any() else 0.0
    return max(between_s, float(part["span_s"].sum()))


_WORDS = {
    "iteration": "iteration records (single steps)", "counters": "counter differences (steps and time counted)",
    "line": "log lines (averages)", "request": "finished requests (averages over each request)",
}


def _why(name: str, best: str, by_source: Mapping[str, pd.DataFrame]) -> str:
    if name == best:
        return "used: the best source of this server life" if len(by_source) > 1 else "used: the only source"
    if PREFERENCE.index(name) > PREFERENCE.index(best):
        return f"not fitted: the {_WORDS[best]} of the same server life tell more"
    return f"not fitted: covers less than {100 * MIN_COVER_FRAC:.0f} % of the time of the {_WORDS[best]}"


def with_roles(records: pd.DataFrame, facts: Mapping[int, Mapping[str, object]]) -> pd.DataFrame:
    """Return records with place in the file, rank and how the rank counts; copies of a record are left out."""
    roles = describe_ranks(records, facts).set_index(["server_life", "rank"])[["counted_as", "rank_group", "stages"]]
    rows = records.assign(rank_key=records["rank"].fillna(""))
    rows = rows.join(roles, on=["server_life", "rank_key"])
    rows = rows[rows["counted_as"].notna() & rows["counted_as"].ne("copy")]
    numbers = ("running_req", "queue_req", "used_tok", "new_tok", "cached_tok", "accept_len", "span_s", "out_tok")
    rows = rows.assign(**{name: rows[name].astype("float64") for name in numbers})
    pool_tok = rows["server_life"].map({life: _pool_tok(known) for life, known in facts.items()}).astype("float64")
    used_tok = rows["used_tok"].fillna((rows["kv_used_frac"] * pool_tok).round())
    context_tok = (used_tok / rows["running_req"].where(rows["running_req"] > 0)).where(used_tok > 0)
    return rows.assign(used_tok=used_tok, context_tok=context_tok, prefill_tok=rows["new_tok"].fillna(0.0))


def _pool_tok(known: Mapping[str, object]) -> float:
    value = known.get("kv_pool_tokens")
    return float(value) if isinstance(value, (int, float)) and value > 0 else np.nan


def accept(rows: pd.DataFrame) -> pd.Series:
    """Tokens per request per round; 1 where the log tells of no speculation."""
    return rows["accept_len"].fillna(1.0).clip(lower=1.0)


def accept_of_iterations(samples: pd.DataFrame) -> pd.Series:
    """Return accept_len, for speculating iterations from the speculation line that follows (its window holds them)."""
    is_told = samples["kind"].eq("spec")
    if not is_told.any():
        return samples["accept_len"]
    told = samples["accept_len"].where(is_told)
    life = samples["server_life"]
    nearest = told.groupby(life).bfill().fillna(told.groupby(life).ffill())
    speculates = samples["kind"].eq("iteration") & (samples["out_tok"] > samples["running_req"].astype("float64"))
    return samples["accept_len"].mask(speculates & samples["accept_len"].isna(), nearest)


def own_rank(rows: pd.DataFrame) -> list[pd.Series]:
    """Return the keys of one rank of one server life."""
    return [rows["server_life"], rows["rank_key"]]


def first_holding(reasons: list[tuple[pd.Series, str]], otherwise: str) -> pd.Series:
    """Return for every row the first reason whose mask holds."""
    return last_holding([*reversed(reasons)], otherwise)


def last_holding(words: list[tuple[pd.Series, str]], otherwise: str) -> pd.Series:
    """Return for every row the word of the last mask that holds."""
    chosen = np.zeros(len(words[0][0]), dtype=np.int16)
    for number, (mask, _) in enumerate(words, start=1):
        chosen[mask.fillna(False).to_numpy(dtype=bool)] = number
    return pd.Series(pd.array([otherwise, *(word for _, word in words)], dtype="str").take(chosen), words[0][0].index)


def has_whole_seconds(t_s: pd.Series) -> bool:
    """Tell whether stamps have a resolution of 1 s (the origin is a stamp too, so differences are whole)."""
    known = t_s.dropna()
    return bool(len(known)) and bool((known % 1 == 0).all())
