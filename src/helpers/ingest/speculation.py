"""Joins vLLM's speculation line to the statistics of the same window."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from helpers.ingest.distinct import distinct

_MAX_APART_US = 1_500_000
"""A window's two lines are printed in one call; stamps have 1 s resolution, so they differ by at most one tick."""

_POSITIONS = "Per-position acceptance rate"

_ABSURD = 1e15
"""Larger counts and rates are garbled text."""

_AGREES_FRAC = 0.03
"""Relative difference of two counts of rounds that rounding of the printed rates explains."""


def rounds_drafted(extra: dict[str, Any]) -> float:
    """Return the number of request-rounds in which drafts were verified (0 if none).

    The per-position rates add up to accepted / rounds; Drafted / positions would assume that every round proposes
    a full draft, which n-gram speculation does not.
    """
    accepted, positions = extra["Accepted (tokens)"], extra[_POSITIONS]
    if accepted and sum(positions) > 0:
        rounds = accepted / sum(positions)
        return round(rounds) if abs(rounds - round(rounds)) < 0.25 else rounds
    return extra["Drafted (tokens)"] / len(positions)


def _read_numbers(text: str) -> dict[str, Any]:
    """Return the values of ``extra`` that are numbers, or lists of them, with which a count can be meant."""
    numbers = {}
    for name, value in json.loads(text).items():
        values = value if isinstance(value, list) else [value]
        if values and all(isinstance(one, (int, float)) and abs(one) < _ABSURD for one in values):
            numbers[name] = value
    return numbers


def _is_v1(extra: dict[str, Any]) -> bool:
    """Tell whether the line holds what the rounds are counted from."""
    return isinstance(extra.get(_POSITIONS), list) and "Accepted (tokens)" in extra and "Drafted (tokens)" in extra


@dataclass(frozen=True)
class _Window:
    """A stats row and the spec row printed with it."""

    stats_row: int
    spec_row: int
    rounds: float
    extra: dict[str, Any]
    tok_per_s: float
    has_prompts: bool
    is_same_span: bool
    """Both lines cover the same time; a spec line after silence covers all the silence."""

    @property
    def rounds_per_s(self) -> float:
        """Rate of request-rounds: each gives one token beside the accepted ones."""
        return self.tok_per_s - self.extra.get("Accepted throughput (tokens/s)", np.nan)

    @property
    def drafted_rounds_per_s(self) -> float:
        """Rate of request-rounds with a draft."""
        drafted = self.extra["Drafted (tokens)"]
        return self.rounds * self.extra.get("Drafted throughput (tokens/s)", np.nan) / drafted if drafted else np.nan


def join_speculation(samples: pl.DataFrame) -> pl.DataFrame:
    """Fill ``accept_len`` of ``spec`` rows and of the ``stats`` rows they belong to.

    A spec line belongs to the nearest stats line of its file that has none yet: the one before it (vLLM prints
    both in one call, statistics first), else the one after, if their stamps are at most one tick apart and their
    engine tags do not differ. On the spec row accept_len is 1 + accepted / rounds with a draft, computed from the
    counts, bonus token included whatever the version prints. On the stats row it is the mean over *all* rounds:
    where the file shows rounds without a draft (n-gram speculation that finds no match), tokens per second minus
    accepted tokens per second is the rate of rounds and accept_len the ratio; else it is that of the spec row.
    V0's cumulative line is not joined.

    Parameters
    ----------
    samples : DataFrame
        Rows of one file in the order of the lines.
    """
    if "spec" not in distinct(samples, "kind"):
        return samples
    spec_rows = (samples["kind"] == "spec").arg_true().to_numpy()
    accept_len: list[float | None] = samples["accept_len"].to_list()
    extras = [_read_numbers(text) for text in samples["extra"].gather(spec_rows)]
    for row, extra in zip(spec_rows.tolist(), extras, strict=True):
        accept_len[row] = _accept_len_v1(extra) if _is_v1(extra) else _accept_len_v0(extra)
    windows = _pair(samples, spec_rows, extras)
    is_partial = _has_rounds_without_draft(windows)
    for window in windows:
        value = accept_len[window.spec_row]
        if is_partial and window.is_same_span and window.rounds_per_s > 0:
            value = window.tok_per_s / window.rounds_per_s
        accept_len[window.stats_row] = value
    return samples.with_columns(accept_len=pl.Series(accept_len, dtype=pl.Float64))


def _pair(samples: pl.DataFrame, spec_rows: np.ndarray, extras: list[dict[str, Any]]) -> list[_Window]:
    """Find the stats row of each V1 spec row."""
    stats = samples.with_row_index("row").filter(pl.col("kind") == "stats").with_columns(
        before=pl.col("us").diff().over("rank") / 1e6
    )
    stats_rows = stats["row"].to_numpy()
    stamp, rank = samples["us"], samples["rank"]
    windows: list[_Window] = []
    taken: set[int] = set()
    for row, extra in zip(spec_rows.tolist(), extras, strict=True):
        at = int(np.searchsorted(stats_rows, row))
        for index in (at - 1, at) if _is_v1(extra) else ():
            if not 0 <= index < len(stats_rows) or index in taken:
                continue
            neighbour = int(stats_rows[index])
            here, there = stamp[row], stamp[neighbour]
            # where only one of the two carries a stamp they were not printed in one call
            is_near = here is there is None or None not in (here, there) and abs(here - there) <= _MAX_APART_US
            if is_near and rank[row] in (None, rank[neighbour]):
                taken.add(index)
                values = stats.row(index, named=True)
                windows.append(_Window(
                    neighbour, row, rounds_drafted(extra), extra, values["decode_tok_per_s"],
                    values["prefill_tok_per_s"] > 0, _is_same_span(extra, values["before"]),
                ))
                break
    return windows


def _is_same_span(extra: dict[str, Any], seconds_before: float | None) -> bool:
    """Tell whether the spec line's own time (drafted tokens over their rate) is that of the stats window."""
    rate = extra.get("Drafted throughput (tokens/s)")
    if not rate or seconds_before is None:
        return False
    return abs(extra["Drafted (tokens)"] / rate - seconds_before) <= 0.5 + 0.1 * seconds_before


def _has_rounds_without_draft(windows: list[_Window]) -> bool:
    """Tell whether requests went through more rounds than were drafted, in windows without first tokens."""
    clean = [window for window in windows if window.is_same_span and not window.has_prompts]
    rounds = sum(window.rounds_per_s for window in clean)
    drafted = sum(window.drafted_rounds_per_s for window in clean)
    return bool(rounds > drafted * (1 + _AGREES_FRAC))


def _accept_len_v1(extra: dict[str, Any]) -> float | None:
    """Return tokens per round with a draft, bonus token included."""
    rounds = rounds_drafted(extra)
    return 1 + extra["Accepted (tokens)"] / rounds if rounds else None


def _accept_len_v0(extra: dict[str, Any]) -> float | None:
    """Return emitted tokens per round of V0's counters."""
    drafted, proposed = extra.get("Number of draft tokens"), extra.get("Number of speculative tokens")
    emitted = extra.get("Number of emitted tokens")
    return emitted * proposed / drafted if emitted is not None and proposed and drafted else None
