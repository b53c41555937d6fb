"""From the lines of llama.cpp's timing blocks to one record per finished request, on one clock.

Lines that name slot and task are joined by these. Bare lines follow a header that names them; where the blocks of
several slots interleave, each line belongs to the first header that lacks it, and the printed total must agree.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl

ENGINE = "llamacpp"

UPTIME = 6
"""Kind of stamp beside those of `stamps`: time since the start of the server, as 1904-01-01 plus that time."""

_ORIGIN_US = int(np.datetime64("1904-01-01", "us").astype(np.int64))
_RESTART_US = 10**6
"""Lines are written within microseconds of each other; a larger step back is a server that was started again."""

_MAX_MINUTES = 10**7
"""Nineteen years; a longer uptime is no stamp."""

_TOTAL_TOLERANCE_S = 2.5e-5
"""The total and its two parts are printed with 0.01 ms each."""

_MAX_OPEN = 256
"""Headers that wait for their lines; a server has fewer slots."""

_MAX_APART_LINES = 16
"""Lines between two bare lines of one block: the server prints them in one call, others can come in between."""

_NUMBERS = {
    "slot": "slot", "task": "task", "prompt_s": "prompt time (ms)", "total_s": "total time (ms)",
    "total_tok": "total tokens", "graphs_reused": "graphs reused", "accepted_tok": "draft accepted",
}
"""Name here -> key of ``extra``."""

_HEADER = r'^\{"slot": -?[0-9]+, "task": -?[0-9]+\}$'
_DOUBT = "its parts do not add up to the printed total: lines of several slots are mixed"

_PARTS = ("header", "prompt", "decode", "total", "graphs", "draft")
_STAMP = ("us", "stamp_kind", "rank")
_CHANGED = (
    "kind", "span_s", "out_tok", "n_steps", "new_tok", "decode_tok_per_s", "accept_len", "accept_rate_frac", "extra",
    *_STAMP,
)
"""Columns of a joined record that differ from those of its eval line."""

Lines = Mapping[str, list[Any]]


@dataclass
class _Block:
    """The lines of one request found so far: what each is -> its place among the lines."""

    task: float | None = None
    parts: dict[str, int] = field(default_factory=dict)


def join_blocks(samples: pl.DataFrame) -> pl.DataFrame:
    """Make one ``request`` row of each block of timing lines; other lines of numbers become ``aux`` rows.

    Parameters
    ----------
    samples : DataFrame
        Records of one file in the order of the lines, of all engines.

    Returns
    -------
    DataFrame
        The same columns. Of a block the row of its eval line stays, with span_s, out_tok (the first token is not in
        the eval time), n_steps, new_tok and its rate; ``extra`` holds slot, task, prompt_s, n_tok (as printed) and
        the rest. A block whose parts do not add up to its printed total stays as ``aux`` rows and says so. ``us``
        is the uptime, going on where the server was started again.
    """
    if not (samples["engine"] == ENGINE).any():
        return samples
    samples = _read_uptimes(samples).with_row_index("row")
    lines = _read_lines(samples.filter(pl.col("engine") == ENGINE)).with_row_index("at")
    named = {name: lines[name].to_list() for name in ("part", "slot", "task", "rank", "is_sum", "line_no")}
    blocks = [[block.parts.get(part) for part in _PARTS] for block in _blocks(named) if "decode" in block.parts]
    table = pl.DataFrame(blocks, schema=dict.fromkeys(_PARTS, pl.UInt32), orient="row")
    joined = _join(table, lines)
    requests = joined.filter(pl.col("kind") == "request")
    others = pl.concat([requests[f"row_{part}"] for part in _PARTS if part != "decode"]).drop_nulls()
    return _apply(samples, joined, others)


def _read_uptimes(samples: pl.DataFrame) -> pl.DataFrame:
    """Turn the tags that carry uptimes into stamps; every child of a router has its own clock."""
    tags = pl.col("rank").str.extract_groups(
        r"^(?:(PORT[0-9]+) )?(MINUTES)([0-9]+) SECONDS([0-9]+) MICROSECONDS([0-9]+)$"
    ).struct
    minutes, seconds, micros = (tags.field(str(group)).cast(pl.Int64, strict=False) for group in (3, 4, 5))
    up_us = (minutes * 60 + seconds) * 10**6 + micros
    found = samples.with_columns(
        _port=tags.field("1"), _is_uptime=tags.field("2").is_not_null(),
        _up=pl.when(minutes <= _MAX_MINUTES).then(up_us),
    )
    back = (pl.col("_up").forward_fill().shift() - pl.col("_up")).over("_port").fill_null(0)
    restarts = pl.when(back > _RESTART_US).then(back).otherwise(0).cum_sum().over("_port")
    return found.with_columns(
        us=pl.when("_is_uptime").then(pl.col("_up") + restarts + _ORIGIN_US).otherwise("us"),
        stamp_kind=pl.when("_is_uptime").then(pl.lit(UPTIME, pl.Int32)).otherwise("stamp_kind"),
        rank=pl.when("_is_uptime").then("_port").otherwise("rank"),
    ).drop("_port", "_up", "_is_uptime")


def _read_lines(mine: pl.DataFrame) -> pl.DataFrame:
    """Return the columns that joining needs, with what each line is."""
    read = mine.with_columns(
        **{name: pl.col("extra").str.extract(f'"{re.escape(key)}": (-?[0-9.]+)').cast(pl.Float64, strict=False)
           for name, key in _NUMBERS.items()},
        is_sum=pl.col("extra").str.contains('"is_sum": true', literal=True).fill_null(False),
    ).with_columns(pl.col("prompt_s", "total_s") / 1000)
    has = {name: pl.col(name).is_not_null() for name in (*_NUMBERS, "span_s")}
    part = (
        pl.when(pl.col("kind") != "request").then(None)
        .when(has["span_s"]).then(pl.lit("decode"))
        .when(has["prompt_s"]).then(pl.lit("prompt"))
        .when(has["accepted_tok"]).then(pl.lit("draft"))
        .when(has["total_s"]).then(pl.lit("total"))
        .when(has["graphs_reused"]).then(pl.lit("graphs"))
        .when(pl.col("extra").str.contains(_HEADER)).then(pl.lit("header"))
    )
    return read.with_columns(part=part, has_slots=pl.col("slot").is_not_null().any())


def _blocks(lines: Lines) -> Iterator[_Block]:
    """Yield the blocks of lines, each once it can get no more."""
    named: dict[tuple[Any, ...], _Block] = {}
    bare: deque[_Block] = deque()
    for at, (part, slot, task) in enumerate(zip(lines["part"], lines["slot"], lines["task"], strict=True)):
        if part is None:
            continue
        if part == "header":
            while bare and (_is_over(bare[0], lines, at) or "total" in bare[0].parts or len(bare) >= _MAX_OPEN):
                yield bare.popleft()
            bare.append(_Block(task, {"header": at}))
            continue
        if slot is None and not lines["is_sum"][at]:
            while bare and _is_over(bare[0], lines, at):
                yield bare.popleft()
            block = next((block for block in bare if part not in block.parts), None)
            if block is None:
                yield from bare
                block = _Block()
                bare = deque([block])
            block.parts[part] = at
            continue
        key = (lines["rank"][at], slot)
        block = named.get(key)
        if block is None or part in block.parts or block.task != task:
            if block is not None:
                yield block
            block = named[key] = _Block(task)
        block.parts[part] = at
    yield from named.values()
    yield from bare


def _is_over(block: _Block, lines: Lines, at: int) -> bool:
    """Tell whether a bare line is too far behind a block to belong to it."""
    return bool(lines["line_no"][at] - lines["line_no"][max(block.parts.values())] > _MAX_APART_LINES)


def _join(blocks: pl.DataFrame, lines: pl.DataFrame) -> pl.DataFrame:
    """Return the records of the blocks, ``aux`` ones where they cannot be trusted; no row where it is no request."""
    columns = ["row", "extra", "span_s", "out_tok", "n_steps", "new_tok", "accept_rate_frac", "slot", "is_sum",
               "has_slots", *_STAMP, *_NUMBERS]
    wide = blocks
    for part in _PARTS:
        found = lines.select("at", *(pl.col(name).alias(f"{name}_{part}") for name in dict.fromkeys(columns)))
        wide = wide.join(found, left_on=part, right_on="at", how="left", maintain_order="left")
    is_sum, span_s = pl.col("is_sum_decode"), pl.col("span_s_decode")
    n_tok = pl.when(is_sum).then("n_steps_decode").otherwise("out_tok_decode")
    # 0.00 ms / 1 runs: nothing was decoded
    is_request = n_tok.is_not_null() & ~(is_sum & (pl.col("has_slots_decode") | (span_s == 0)))
    # the prompt's last step gives the first token, before the eval time begins
    out_tok = pl.when(is_sum).then(n_tok).otherwise((n_tok - 1).clip(0))
    accepted = pl.col("accepted_tok_draft")
    wide = wide.filter(is_request).with_columns(
        n_tok=n_tok, out_tok=out_tok, n_steps=(out_tok - accepted.fill_null(0)).clip(0),
        is_doubtful=pl.col("slot_decode").is_null() & ~is_sum & ~_adds_up(n_tok),
    )
    out_tok, n_steps = pl.col("out_tok"), pl.col("n_steps")
    return wide.with_columns(
        row=pl.col("row_decode"),
        kind=pl.when("is_doubtful").then(pl.lit("aux")).otherwise(pl.lit("request")),
        span_s=span_s,
        new_tok=pl.when(~pl.col("is_doubtful")).then("new_tok_prompt"),
        decode_tok_per_s=pl.when((span_s > 0) & (out_tok > 0)).then(out_tok / span_s),
        accept_len=pl.when(accepted.is_not_null() & (n_steps > 0)).then(out_tok / n_steps),
        accept_rate_frac=pl.col("accept_rate_frac_draft"),
        extra=_extra(),
        **{name: pl.when(pl.col("header").is_null()).then(f"{name}_decode").otherwise(f"{name}_header")
           for name in _STAMP},
    )


def _adds_up(n_tok: pl.Expr) -> pl.Expr:
    """Tell whether prompt and eval agree with the printed total, where there is one."""
    seconds = pl.col("prompt_s_prompt") + pl.col("span_s_decode") - pl.col("total_s_total")
    tokens = pl.col("new_tok_prompt") + n_tok - pl.col("total_tok_total")
    return (seconds.abs() <= _TOTAL_TOLERANCE_S).fill_null(True) & (tokens == 0).fill_null(True)


def _extra() -> pl.Expr:
    """Put the other numbers of a block into one JSON object: slot and task once, the prompt's time in seconds."""
    slot = r'^"slot": -?[0-9]+, "task": -?[0-9]+'
    inner = {part: pl.col(f"extra_{part}").str.strip_chars("{}") for part in _PARTS}
    named = pl.coalesce(*(inner[part].str.extract(f"({slot})") for part in ("header", "decode")))
    inner["prompt"] = inner["prompt"].str.replace(r'"prompt time \(ms\)": [0-9.e+-]+(?:, )?', "")
    bodies = {part: text.str.replace(f"{slot}(?:, )?", "") for part, text in inner.items() if part != "header"}
    once = [text.str.replace('(?:, )?"is_sum": true', "") for part, text in bodies.items() if part != "decode"]
    rest = [text.replace("", None) for text in (bodies["decode"], *once)]
    prompt_s = pl.format('"prompt_s": {}', pl.col("prompt_s_prompt").round(9))
    n_tok = pl.format('"n_tok": {}', pl.col("n_tok").cast(pl.Int64, strict=False))
    doubt = pl.when("is_doubtful").then(pl.lit(f'"doubt": "{_DOUBT}"'))
    whole = pl.concat_str(named, *rest, prompt_s, n_tok, separator=", ", ignore_nulls=True)
    own = pl.concat_str(rest[0], doubt, separator=", ", ignore_nulls=True)
    return pl.concat_str(pl.lit("{"), pl.when("is_doubtful").then(own).otherwise(whole), pl.lit("}"))


def _apply(samples: pl.DataFrame, joined: pl.DataFrame, others: pl.Series) -> pl.DataFrame:
    """Put the joined records in the place of their eval lines; what belongs to none stays as ``aux``."""
    is_mine = (pl.col("engine") == ENGINE) & (pl.col("kind") == "request")
    table = samples.with_columns(kind=pl.when(is_mine).then(pl.lit("aux")).otherwise("kind")).join(
        joined.select("row", *_CHANGED, _is_joined=True), on="row", how="left", maintain_order="left", suffix="_joined"
    )
    is_joined = pl.col("_is_joined").fill_null(False)
    table = table.with_columns(
        pl.when(is_joined).then(f"{name}_joined").otherwise(name).alias(name) for name in _CHANGED
    )
    kept = table.join(others.to_frame("row"), on="row", how="anti", maintain_order="left")
    return kept.select(column for column in samples.columns if column != "row")
