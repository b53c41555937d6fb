"""What Ollama prints: the block of ``--verbose`` after each answer, and its server's log.

The block is one number per line; `finish` makes one record of it. The lines of the llama.cpp server below Ollama
are read by that engine's dialect.
"""

from __future__ import annotations

import json
import math
from typing import Any

import polars as pl

from helpers.ingest.dialect import HOLE, Dialect, EventRule, Family, Key, Reading

_GO_DURATION = (
    # Go writes 1h2m3.5s, 2m3.5s, 3.5s, 350.1ms, 12.5µs, 800ns
    (r"^ *([0-9]+)h([0-9]+)m([0-9.]+)s\s*$", " ${3}, minutes: ${2}, hours: ${1}"),
    (r"^ *([0-9]+)m([0-9.]+)s\s*$", " ${2}, minutes: ${1}"),
    (r"^ *([0-9.]+)ms\s*$", " ${1}e-3"),
    (r"^ *([0-9.]+)(?:µ|μ|u)s\s*$", " ${1}e-6"),
    (r"^ *([0-9]+)ns\s*$", " ${1}e-9"),
    (r"^ *([0-9.]+)s\s*$", " ${1}"),
)
_DURATION_HEAD = rf"(?= *{HOLE}(?:, minutes: {HOLE})?(?:, hours: {HOLE})?$)"
_ENDS = {"count": rf"(?= *{HOLE} token\(s\)\s*$)", "rate": rf"(?= *{HOLE} tokens/s\s*$)"}
_UNITS = {"count": " token(s)", "rate": " tokens/s"}

_COUNTS_AND_RATES = {
    "prompt eval count": Key("new_tok", "count", " token(s)"),
    "prompt eval rate": Key("prefill_tok_per_s", "rate", " tokens/s"),
    "eval count": Key("out_tok", "count", " token(s)"),
    "eval rate": Key("decode_tok_per_s", "rate", " tokens/s"),
}
_DURATIONS = {
    "prompt eval duration": {}, "eval duration": {"eval duration": Key("span_s", "rate")},
    "total duration": {}, "load duration": {},
}


def _family(name: str) -> Family:
    """Return the family of one line of the block."""
    is_duration = name in _DURATIONS
    end = name.rpartition(" ")[2]
    return Family(
        engine="ollama",
        kind="request",
        literal=f"{name}:",
        keys=_DURATIONS[name] if is_duration else {name: _COUNTS_AND_RATES[name]},
        required=((name,),),
        # an answer may speak of rates and durations: only a line that holds nothing else is the block's
        head=_DURATION_HEAD if is_duration else _ENDS[end],
        is_key=True,
        rewrite=_GO_DURATION if is_duration else (),
    )


# those that begin with `prompt` first: the others' names are the ends of theirs
FAMILIES = tuple(_family(name) for name in sorted({**_DURATIONS, **_COUNTS_AND_RATES}, key=len, reverse=True))

EVENTS = (
    EventRule("banner", "Listening on ", r"Listening on \S+ \(version (?P<engine_version>[^)\s]+)\)"),
    EventRule("weights_loaded", "llama runner started in", r"llama runner started in (?P<elapsed_s>[\d.]+) seconds"),
    EventRule("fact", "msg=\"starting llama server\"", r"--ctx-size (?P<max_model_len>\d+)"),
)

READS = (
    Reading(
        source="eval count / eval duration / eval rate (block of `ollama run --verbose`)",
        kind="request",
        versions="0.1 and later",
        gives={
            "decode_tok_per_s": "eval rate: output tokens over their time, this request alone",
            "span_s": "eval duration: time after the prompt was processed",
            "out_tok": "eval count, the first token included",
            "n_steps": "decode steps in span_s: eval count less the first token, which the prompt's pass made",
            "new_tok": "prompt eval count: prompt tokens processed, without those found in the cache",
            "prompt_s": "in extra: prompt eval duration; load_s and total_s beside it",
        },
        traps=(
            "the printed rate counts n tokens for n - 1 steps: n / (n - 1) too high, much on short answers",
            "one stream of one client: requests of others at the same time slow it and cannot be seen",
            "the block has no time stamp",
        ),
    ),
    Reading(
        source="[GIN] access line, time= level= source= lines",
        kind="",
        versions="all",
        gives={"events": "version, start of the runner and its time; an access line's time is the whole request's"},
        traps=("no rate in them: statistics of the server are the llama.cpp lines below, see llamacpp",),
    ),
)

_BLOCK = {"prompt eval duration": "prompt_s", "total duration": "total_s", "load duration": "load_s"}
_ABSURD = 1e15
"""Larger numbers are garbled text."""

_SUMMED = ("new_tok", "out_tok", "span_s", "decode_tok_per_s", "prefill_tok_per_s")


def finish(samples: pl.DataFrame) -> pl.DataFrame:
    """Join the lines of each block into the row of its last line.

    A block ends where one of its lines appears a second time, or after the eval rate, which is printed last.
    """
    mine = (samples["engine"] == "ollama").fill_null(False)
    if not mine.any():
        return samples
    rows = samples.with_row_index("row").filter(mine)
    kept: list[dict[str, Any]] = []
    seen: set[str] = set()
    for row in rows.iter_rows(named=True):
        name, values = _read_row(row)
        if not kept or name in seen or "eval rate" in seen:
            kept.append({"extra": {}})
            seen = set()
        seen.add(name)
        extra = kept[-1].pop("extra") | values.pop("extra", {})
        kept[-1] |= values | {"row": row["row"], "extra": extra}
    block = pl.DataFrame(
        [[item["row"], *(item.get(column) for column in _SUMMED), _dump(item["extra"])] for item in kept],
        schema={"row": pl.UInt32, **{column: samples.schema[column] for column in _SUMMED}, "extra": pl.String},
        orient="row",
    ).with_columns(n_steps=pl.when(pl.col("out_tok") > 1).then(pl.col("out_tok") - 1))
    joined = rows.drop(*_SUMMED, "n_steps", "extra").join(block, on="row", how="inner")
    others = samples.with_row_index("row").filter(~mine)
    return pl.concat([others, joined.select(others.columns)]).sort("row").drop("row")


def _dump(extra: dict[str, float]) -> str | None:
    """Return times as JSON, without those that are no numbers."""
    known = {name: value for name, value in extra.items() if math.isfinite(value)}
    return json.dumps(known) if known else None


def _read_row(row: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return which line of the block a record is, and its values: durations in seconds."""
    extra = {name: _number(value) for name, value in json.loads(row["extra"] or "{}").items()}
    more_s = 60 * extra.get("minutes", 0.0) + 3600 * extra.get("hours", 0.0)
    if row["span_s"] is not None:
        return "eval duration", {"span_s": row["span_s"] + more_s}
    for printed, name in _BLOCK.items():
        if printed in extra:
            return printed, {"extra": {name: extra[printed] + more_s}}
    column = next(c for c in _SUMMED if row[c] is not None)
    name = next(name for name, key in _COUNTS_AND_RATES.items() if key.column == column)
    return name, {column: row[column]}


def _number(value: object) -> float:
    """Return a number of ``extra``; garbled text is none."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _ABSURD
    return float(value) if is_number else math.nan  # type: ignore[arg-type]


DIALECT = Dialect("ollama", FAMILIES, EVENTS, READS, finish)
