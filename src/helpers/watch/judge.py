"""Whether the newest lines of a log are steady decode: the clean rule of `segment` on a bounded tail of the log."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from helpers.ingest import read_log
from helpers.schema import NotEnoughData, is_window
from helpers.segment import label_intervals, rules
from helpers.segment.iterations import BLOCK_STEPS

MIN_CLEAN = 3
"""Clean intervals at one running_req that prove steady decode."""

MIN_STEPS = 40
"""Decode steps that the clean intervals hold together: one line of SGLang by default. A server with one line per
step shows three equal lines between any two prefills of a ramp."""

STEP_SLACK_FRAC = 0.05
"""How far the newest step may lie from the others [1]: a prefill that delays a line is printed after it."""

_KEEP = (rules.CLEAN, rules.PREFILL_INSIDE, rules.PREFILL_NEXT, rules.PREFILL_BEFORE, rules.PROMPT_INSIDE,
         rules.PROMPT_NEXT, rules.PROMPT_PENDING, rules.TOKENS, rules.STALL, rules.CHANGES_NEXT)
"""Intervals that do not end a stretch at one running_req: in a closed loop one request leaves and another joins."""

_SILENT_ROWS = 3
"""A rank whose newest interval lies so many rounds of all ranks back has no request."""


@dataclass(frozen=True)
class Verdict:
    """What a tail of the log shows at its newest line.

    Attributes
    ----------
    is_steady : bool
        Proven: at least `MIN_CLEAN` clean intervals at this running_req, the newest interval one of them, nothing
        queued below the cap.
    running_req : float
        Level of the newest interval, of the whole server; NaN without intervals [req].
    n_clean : int
        Clean intervals in the stretch at it.
    step_s : float
        Median step of these (round under speculation); NaN without [s].
    decode_tok_per_s : float
        Tokens over time of these, all ranks; NaN without [tok/s].
    needed : str
        What is missing for the proof, in words; empty if proven.
    min_lines : int
        Lines that a proof takes here at least.
    clean_line_nos : tuple of (line_no, running_req)
        Of all clean intervals in the tail.
    clean : DataFrame, schema INTERVALS, or None
        Those of them that a later line of their rank has confirmed: what follows may still show a prefill.
    """

    is_steady: bool
    running_req: float = np.nan
    n_clean: int = 0
    step_s: float = np.nan
    decode_tok_per_s: float = np.nan
    needed: str = ""
    min_lines: int = MIN_CLEAN + 1
    clean_line_nos: tuple[tuple[int, float], ...] = field(default=(), repr=False)
    clean: pd.DataFrame | None = field(default=None, repr=False, compare=False)


def judge(lines: Sequence[tuple[int, str]]) -> Verdict:
    """Judge the newest line of a tail.

    Parameters
    ----------
    lines : sequence of (line_no, text)
        Start-up lines, statistics and events of one log, in their order; at least one of them a statistic.

    Returns
    -------
    Verdict
    """
    with tempfile.NamedTemporaryFile("w", suffix=".log", encoding="utf-8", errors="replace") as file:
        file.writelines(f"{text}\n" for _, text in lines)
        file.flush()
        log = read_log(file.name, cache=False)  # it has another name each time
    life = log.samples["server_life"].iloc[-1]
    samples, events = (table[table["server_life"].eq(life)] for table in (log.samples, log.events))
    try:
        intervals = label_intervals(samples, events, facts=log.facts)
    except NotEnoughData as error:
        return Verdict(False, needed=str(error))
    if intervals.empty:
        return Verdict(False, needed="no line yet says how many requests decode and how fast")
    numbers = np.array([line_no for line_no, _ in lines])
    line_nos = numbers[intervals["line_no"].to_numpy() - 1]
    clean = intervals["clean"].to_numpy()
    totals = intervals["running_req_total"].fillna(intervals["running_req"])
    found = tuple(zip(line_nos[clean].tolist(), totals[clean].tolist(), strict=True))
    busy = _busy(intervals)
    last_no = min(int(line_nos[part.index[-1]]) for part in busy)
    kept = intervals.assign(line_no=line_nos)[clean & (line_nos < last_no)]
    return _of_all_ranks([_of_rank(part) for part in busy], found, kept)


def _busy(intervals: pd.DataFrame) -> list[pd.DataFrame]:
    """Return the intervals of every rank that has printed lately."""
    parts = [part for _, part in intervals.groupby(intervals["rank"].fillna(""), sort=False)]
    oldest = len(intervals) - 1 - _SILENT_ROWS * len(parts)
    lately = [part for part in parts if part.index[-1] >= oldest]
    return [part for part in lately if part["label"].iloc[-1] != "idle"] or lately


def _of_rank(rows: pd.DataFrame) -> Verdict:
    """Judge the newest interval of one rank."""
    last = rows.iloc[-1]
    level = float(last["running_req"])
    # under pipeline stages the level is inferred from used_tok, within a twentieth
    near = (rows["running_req"] - level).abs() <= (0.0 if level.is_integer() else 0.05 * level)
    holds = near & rows["why"].isin(_KEEP)
    stretch = rows[holds[::-1].cummin()[::-1].astype(bool)]
    clean = stretch[stretch["clean"]]
    is_windowed = is_window(rows)
    steps = clean["n_steps"].fillna(1.0)
    step_s = float(clean["step_s"].median()) if len(clean) else np.nan
    tokens = float((clean["running_req_total"] * clean["accept_len"].fillna(1.0)).mean())
    rate = tokens / step_s if step_s > 0 else np.nan
    total = float(last["running_req_total"]) if pd.notna(last["running_req_total"]) else level
    others_s = float(clean["step_s"].iloc[:-1].median())
    needed = ""
    if not bool(last["clean"]):
        needed = f"the newest interval is not clean: {last['why']}"
    elif len(clean) < MIN_CLEAN:
        needed = f"{MIN_CLEAN - len(clean)} more clean intervals at {total:g} running requests"
    elif not is_windowed and steps.sum() < MIN_STEPS:
        needed = f"clean intervals over {MIN_STEPS} steps, so far {steps.sum():.0f}"
    elif not is_windowed and abs(float(last["step_s"]) / others_s - 1) > STEP_SLACK_FRAC:
        needed = "one more line: the newest step differs from those before it, a prefill may have delayed it"
    return Verdict(not needed, total, len(clean), step_s, rate, needed, _min_lines(rows))


def _min_lines(rows: pd.DataFrame) -> int:
    """Return how many lines with an equal count a proof takes at least."""
    if rows["kind"].iloc[-1] == "iteration":  # a row is a block of them
        return MIN_CLEAN * BLOCK_STEPS
    per_line = float(rows["n_steps"].median()) if rows["n_steps"].notna().any() else 1.0
    few = 0 if is_window(rows) else int(np.ceil(MIN_STEPS / max(per_line, 1.0)))
    return max(MIN_CLEAN + 1, few)


def _of_all_ranks(
    of_ranks: Sequence[Verdict], found: tuple[tuple[int, float], ...], kept: pd.DataFrame
) -> Verdict:
    """Call the server steady when every busy rank is."""
    worst = min(of_ranks, key=lambda verdict: (verdict.is_steady, verdict.n_clean))
    newest = of_ranks[-1]
    return Verdict(
        worst.is_steady, newest.running_req, worst.n_clean, newest.step_s, newest.decode_tok_per_s, worst.needed,
        worst.min_lines, found, kept,
    )
