"""One run of a benchmark client: values as printed turned into seconds and tokens, completed and checked."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

Record = dict[str, Any]
"""A JSON object."""

MILLI = 1e-3
"""Seconds in a millisecond."""

MAX_RATE_GAP_FRAC = 0.02
"""A printed rate further than this from tokens over duration is inconsistent: rounding explains well below 1 %."""

MIN_CHUNK_TOK = 1.1
"""More tokens per chunk than this are no rounding: speculation, a stream interval, or answers merged on the way."""

MAX_EXTRA_ITEMS = 32
"""Longer lists are per request or per token, not values of the run."""

WHATS = ("ttft", "tpot", "itl", "e2e")
STATS = ("mean", "median", "p99")
_UNLIMITED = {"", "inf", "infinity", "none", "not set", "n/a", "null"}
_TEXT_KEYS = {"generated_texts", "errors", "server_info"}
"""What users wrote and got, and whole server dumps: never copied."""


class Printed:
    """Values of one run as printed, what was taken from them, and what among them is impossible."""

    def __init__(self, record: Mapping[str, Any]) -> None:
        self._record, self._taken = record, set[str]()
        self.doubts: list[str] = []

    def number(self, *keys: str, scale: float = 1.0) -> float:
        """Return the first of these keys that holds a number, scaled to base units; NaN if none does."""
        for key in keys:
            self._taken.add(key)
            found = self._one(key)
            if not math.isnan(found):
                return found * scale
        return math.nan

    def _one(self, key: str) -> float:
        value = self._record.get(key)
        if value is None:
            return math.nan
        if isinstance(value, str):
            if value.strip().lower() in _UNLIMITED:
                return math.nan
            text = value.replace(",", "")
            try:
                value = float(text)
            except ValueError:
                self.doubts.append(f"{key} is {text[:40]!r}, expected a number; left out")
                return math.nan
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.doubts.append(f"{key} is {type(value).__name__}, expected a number; left out")
            return math.nan
        if math.isinf(value) and "rate" in key:
            return math.nan
        if not math.isfinite(value) or value < 0:
            self.doubts.append(f"{key} is {value}, which cannot be; left out")
            return math.nan
        return float(value)

    def text(self, *keys: str) -> str | None:
        """Return the first of these keys that holds a text."""
        for key in keys:
            self._taken.add(key)
            value = self._record.get(key)
            if isinstance(value, list) and len(value) == 1:
                value = value[0]
            if isinstance(value, str) and value:
                return value
        return None

    def rest(self) -> Record:
        """Return what was not taken: single values and short lists of them."""
        return {key: value for key, value in self._record.items()
                if key not in self._taken and key not in _TEXT_KEYS and _is_plain(value)}


def _is_plain(value: object) -> bool:
    if isinstance(value, list):
        return len(value) <= MAX_EXTRA_ITEMS and all(_is_plain(v) and not isinstance(v, list) for v in value)
    return value is not None and not isinstance(value, dict)


def flattened(record: Mapping[str, Any], skipped: Iterable[str] = (), prefix: str = "") -> Record:
    """Return nested objects as one, with dotted keys."""
    flat: Record = {}
    for key, value in record.items():
        if key in skipped:
            continue
        if isinstance(value, dict):
            flat |= flattened(value, skipped, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


@dataclass
class Run:
    """One run on its way to a row of CLIENTS.

    Attributes
    ----------
    tool : str
        Tool that wrote it.
    values : dict
        Column of CLIENTS -> value in base units.
    requests : DataFrame or None
        Columns of REQUESTS without file and run.
    line_no : int
        Line in the file, from 1.
    decimals : int or None
        Decimals that a rounding writer kept (console, CSV); None where values are exact.
    meanings, doubts : list of str
        What a number means differently from its name; what cannot be or was left out.
    is_detail : bool
        Only the requests were in the file: another file of the folder holds the run.
    is_total : bool
        Sums up other runs of its folder.
    """

    tool: str
    values: Record = field(default_factory=dict)
    requests: pd.DataFrame | None = None
    line_no: int = 1
    decimals: int | None = None
    meanings: list[str] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)
    is_detail: bool = False
    is_total: bool = False
    file: str = ""

    def value(self, column: str) -> float:
        """Return a number of the run, NaN if unknown."""
        return float(self.values.get(column, math.nan))


def requests_table(
    *,
    start_s: Iterable[float] | None = None,
    is_epoch: bool | None = None,
    ttft_s: Iterable[float],
    e2e_s: Iterable[float],
    prompt_tok: Iterable[float],
    output_tok: Iterable[float],
    is_ok: Iterable[bool],
) -> pd.DataFrame:
    """Build the requests of a run; starts on a clock of the run's own are counted from the first one."""
    table = pd.DataFrame({"ttft_s": [*ttft_s], "e2e_s": [*e2e_s], "prompt_tok": [*prompt_tok],
                          "output_tok": [*output_tok]}).astype("float64")
    table.insert(0, "start_s", math.nan if start_s is None else np.array([*start_s], dtype=float))
    if not is_epoch:
        table["start_s"] -= table["start_s"].min()
    table["is_epoch"] = pd.array([is_epoch] * len(table), dtype="boolean")
    return table.assign(is_ok=pd.array([*is_ok], dtype="boolean"))


def tpot_s(requests: pd.DataFrame) -> pd.Series[float]:
    """Return (latency - first token) / (tokens - 1) of every answered request with at least two tokens."""
    told = requests[requests["is_ok"].fillna(False) & (requests["output_tok"] > 1)]
    return ((told["e2e_s"] - told["ttft_s"]) / (told["output_tok"] - 1)).dropna()


def statistics(values: pd.Series[float] | np.ndarray, what: str) -> Record:
    """Return mean, median and p99 under the names of CLIENTS; nothing if there are no values.

    Linear interpolation between ranks, as the clients use (numpy's default).
    """
    known = np.asarray(values, dtype=float)
    known = known[np.isfinite(known)]
    if not known.size:
        return {}
    found = (known.mean(), np.median(known), np.percentile(known, 99))
    return {f"{what}_{stat}_s": float(x) for stat, x in zip(STATS, found, strict=True)}


def complete(run: Run) -> Run:
    """Fill what a run does not print but its requests tell, and say what does not fit together."""
    filled = _from_requests(run.requests) if run.requests is not None else {}
    new = {column: value for column, value in filled.items() if math.isnan(run.value(column))}
    run.values |= new
    tok, duration_s = run.value("output_tok"), run.value("duration_s")
    if math.isnan(run.value("output_tok_per_s")) and tok >= 0 and duration_s > 0:
        run.values["output_tok_per_s"] = tok / duration_s
        new["output_tok_per_s"] = tok / duration_s
    if new:
        run.meanings.append("computed here, not printed: " + ", ".join(sorted(new)))
    run.doubts += _doubts(run)
    return run


def _from_requests(requests: pd.DataFrame) -> Record:
    ok = requests[requests["is_ok"].fillna(False)]
    found = {**statistics(ok["ttft_s"], "ttft"), **statistics(ok["e2e_s"], "e2e"), **statistics(tpot_s(ok), "tpot"),
             "n_completed": float(len(ok)), "n_failed": float(len(requests) - len(ok))}
    for column in ("prompt_tok", "output_tok"):
        if ok[column].notna().all() and len(ok):
            found[column] = float(ok[column].sum())
    ends = (requests["start_s"] + requests["e2e_s"])[requests["is_ok"].fillna(False)]
    if len(ends) and ends.notna().all():
        found["duration_s"] = float(ends.max() - requests["start_s"].min())
        if requests["is_epoch"].fillna(False).all():
            found["start_epoch_s"] = float(requests["start_s"].min())
    return found


def _doubts(run: Run) -> list[str]:
    said = []
    tok, duration_s, rate = run.value("output_tok"), run.value("duration_s"), run.value("output_tok_per_s")
    if duration_s == 0:
        said.append("duration_s is 0, which cannot be")
    elif tok > 0 and abs(rate * duration_s / tok - 1) > MAX_RATE_GAP_FRAC:
        said.append(f"prints {rate:.6g} output tok/s, but {tok:.0f} tokens in {duration_s:.6g} s are "
                    f"{tok / duration_s:.6g} tok/s")
    if run.value("n_completed") == 0:
        said.append("no request was answered")
    for what in WHATS:
        if run.value(f"{what}_median_s") > run.value(f"{what}_p99_s"):
            said.append(f"the median of {what} is above its 99th percentile, which cannot be")
    if run.value("ttft_median_s") > run.value("e2e_median_s"):
        said.append("the median time to first token is above the median latency, which cannot be")
    if run.requests is not None:
        ok = run.requests[run.requests["is_ok"].fillna(False)]
        total = ok["output_tok"].sum(min_count=1)
        if abs(total - tok) > MAX_RATE_GAP_FRAC * tok:
            said.append(f"prints {tok:.0f} output tokens, but its requests hold {total:.0f}")
        early = int((ok["ttft_s"] > ok["e2e_s"]).sum())
        if early:
            said.append(f"{early} requests have a first token after their end, which cannot be")
    return said


def said_of_chunks(run: Run, chunk_tok: float = math.nan) -> None:
    """Say it where a chunk of the stream holds several tokens: the gap between chunks is then no token time."""
    if math.isnan(chunk_tok) and run.value("tpot_mean_s") > 0:
        chunk_tok = run.value("itl_mean_s") / run.value("tpot_mean_s")
    if chunk_tok > MIN_CHUNK_TOK:
        run.meanings.append(f"itl is the gap between chunks of about {chunk_tok:.1f} tokens, not a time per token")


def extra_text(values: Record) -> str | None:
    """Return the values that have no column as a JSON object; None if there are none."""
    return json.dumps(values, ensure_ascii=False, default=str) if values else None
