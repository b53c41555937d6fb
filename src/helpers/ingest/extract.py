"""From candidate lines to statistic records, all lines of one layout at once."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import polars as pl

from helpers.ingest.dialect import HOLE, VALUE_PATTERN, Family, Key, Layout, any_of, escape, holds_any, read_layout

MEASURES = {
    "running_req": pl.Int64, "queue_req": pl.Int64, "used_tok": pl.Int64, "kv_used_frac": pl.Float64,
    "new_tok": pl.Int64, "cached_tok": pl.Int64, "decode_tok_per_s": pl.Float64, "prefill_tok_per_s": pl.Float64,
    "accept_len": pl.Float64, "accept_rate_frac": pl.Float64, "graph": pl.Boolean, "retracted_req": pl.Int64,
    "transfer_req": pl.Int64, "prealloc_req": pl.Int64, "iteration": pl.Int64,
    "span_s": pl.Float64, "n_steps": pl.Float64, "out_tok": pl.Float64,
}
"""Columns of SAMPLES that a record can fill, with their polars types."""

# A record glued behind another, or another message behind a record, begins with one of these.
_NEXT_MESSAGE = (
    r"(?:\[|\b)[0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9]{2}:|\[[0-9]{2}:[0-9]{2}:[0-9]{2}|"
    r"(?:INFO|WARNING|ERROR|DEBUG)(?: [0-9]{2}-[0-9]{2} |: )|"
    r"\[[0-9]{2}/[0-9]{2}/[0-9]{4}-[0-9]{2}:|"
    r"\((?:APIServer|ApiServer|EngineCore|Worker|VllmWorker)[^)]*pid=|[0-9]+ Engines Aggregated: |Engine [0-9]+: |"
    r"\[repeated [0-9]+x across cluster\]"
)
# TensorRT-LLM prints a time inside its records too
NEXT_MESSAGE_PATTERN = re.compile(rf"(?<!timestamp = )(?:{_NEXT_MESSAGE})")
# In JSON wrappers the record ends at an escaped line feed or the closing quote.
JSON_TAIL = r'\\[rn]|"'


RecentLayouts = dict[Family, list[str]]
_FEW_LINES = 2000

_MAX_RECENT = 8
"""Layouts tried before looking closer; real logs have up to six per kind of line."""


@dataclass(frozen=True)
class Records:
    """Records of a chunk: those read, and the lines that name one but cannot be read whole.

    Lines in neither only mention a statistic. ``unusual`` holds the lines whose text is not all statistic.
    """

    samples: pl.DataFrame
    malformed: pl.DataFrame
    unusual: pl.DataFrame


def extract(
    families: Sequence[Family], lines: pl.DataFrame, recent: RecentLayouts, quoting: Sequence[str] = (),
    other: Sequence[str] = (),
) -> Records:
    """Read every statistic record of the lines.

    Parameters
    ----------
    families : sequence of Family
        In the order in which they claim a line.
    lines : DataFrame
        ``line_no`` and cleaned ``text`` of lines that hold at least one literal.
    recent : dict
        Layouts that earlier lines of the log had; updated. It only saves work.
    quoting : sequence of str
        Literals of lines that quote other text: no statistic counts in them.
    other : sequence of str
        Literals of what else a line could hold beside a record.

    Returns
    -------
    Records
        ``samples`` with line_no, part, text, prefix, engine, kind, the MEASURES and extra; ``malformed`` with
        line_no, text, reason; ``unusual`` with line_no, text.
    """
    named = [family.literal for family in families if not family.literal.startswith("#")]
    special = (*named, *quoting, *other)
    samples = [_no_samples()]
    unusual = [lines.clear()]
    lines = lines.with_columns(part=pl.lit(0, pl.Int64))
    for family in _named_in(lines, families):
        if lines.is_empty():
            break
        mine, lines = _claim(family, lines)
        if mine.is_empty():
            continue
        # a body read to its end holds nothing else; what stands before it may
        is_special = holds_any(mine["prefix"], special)
        if is_special.any():
            unusual.append(mine.filter(is_special).select("line_no", "text"))
            mine = mine.filter(~is_special)
        read, failed = _read_family(family, mine, recent.setdefault(family, []), named)
        samples.append(read)
        unusual.append(failed.select("line_no", "text"))
    looked_at = pl.concat(unusual)
    if looked_at.is_empty():
        return Records(pl.concat(samples), _no_malformed(), looked_at)
    records = _read_unusual(families, looked_at, recent, named, quoting)
    return Records(pl.concat([*samples, records.samples]), records.malformed, looked_at)


def _named_in(lines: pl.DataFrame, families: Sequence[Family]) -> list[Family]:
    """Return the families that some line may name; of many lines, a look at them all costs more than it saves."""
    if len(lines) > _FEW_LINES:
        return list(families)
    literals = list({family.literal for family in families})
    found = lines["text"].str.extract_many(literals, overlapping=True)
    named = {literal for each in found.to_list() for literal in each}
    return [family for family in families if family.literal in named]


def _claim(family: Family, lines: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the lines of a family, split at its literal, and the others."""
    claimed = lines["text"].str.contains(family.literal, literal=True)
    if not claimed.any():
        return lines.clear(), lines
    mine, others = lines, lines.clear()
    if not claimed.all():
        mine, others = lines.filter(claimed), lines.filter(~claimed)
    halves = pl.col("text").str.splitn(family.literal, 2).struct
    mine = mine.with_columns(prefix=halves.field("field_0"), body=halves.field("field_1"))
    if family.stamps:
        found = [
            pl.col("text").str.extract(f"({pattern})").str.replace(pattern, template)
            for pattern, template in family.stamps
        ]
        mine = mine.with_columns(prefix=pl.concat_str("prefix", pl.coalesce(*found, pl.lit(""))))
    for pattern, replacement in family.rewrite:
        mine = mine.with_columns(pl.col("body").str.replace_all(pattern, replacement))
    return mine, others


def _read_unusual(
    families: Sequence[Family], lines: pl.DataFrame, recent: RecentLayouts, named: Sequence[str], quoting: Sequence[str]
) -> Records:
    """Read lines that hold several records, or more than a record: each piece by itself."""
    samples, malformed = [_no_samples()], [_no_malformed()]
    if quoting:
        lines = lines.filter(~pl.col("text").str.contains(any_of(quoting)))
    pieces = pl.DataFrame(
        [
            (line_no, piece, part)
            for line_no, text in lines.iter_rows()
            for part, piece in enumerate(_split_glued(text, named))
        ],
        schema={"line_no": pl.Int64, "text": pl.String, "part": pl.Int64},
        orient="row",
    )
    for family in _named_in(pieces, families):
        mine, pieces = _claim(family, pieces)
        if not mine.is_empty():
            read, failed = _read_whole(family, mine, recent.setdefault(family, []))
            samples.append(read)
            malformed.append(failed.select("line_no", "text", "reason"))
    return Records(pl.concat(samples), pl.concat(malformed), lines)


def _read_whole(family: Family, lines: pl.DataFrame, recent: list[str]) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Read lines of one family; those that fail once more without what other processes or wrappers appended."""
    read, failed = _read_family(family, lines, recent)
    if failed.is_empty():
        return read, failed
    clipped = failed.with_columns(
        body=pl.col("body").str.replace(f"(?s:(?:{_NEXT_MESSAGE}|{JSON_TAIL}).*)$", ""), _before=pl.col("body")
    )
    # a point right before the other text: it broke into a number
    is_changed = (pl.col("body") != pl.col("_before")) & ~pl.col("body").str.contains(r"[0-9]\.$")
    again = clipped.filter(is_changed).drop("_before", "reason")
    if again.is_empty():
        return read, failed
    read_again, failed_again = _read_family(family, again, recent)
    failed = clipped.filter(~is_changed).drop("_before")
    return pl.concat([read, read_again]), pl.concat([failed, failed_again])


def no_records() -> Records:
    """Return what no lines hold."""
    unusual = pl.DataFrame(schema={"line_no": pl.Int64, "text": pl.String})
    return Records(_no_samples(), _no_malformed(), unusual)


@functools.lru_cache(maxsize=1)
def _no_samples() -> pl.DataFrame:
    where = {"line_no": pl.Int64, "part": pl.Int64, "text": pl.String, "prefix": pl.String, "engine": pl.String,
             "kind": pl.String}
    return pl.DataFrame(schema={**where, **MEASURES, "extra": pl.String})


def _read_family(
    family: Family, lines: pl.DataFrame, recent: list[str], named: Sequence[str] = ()
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the records of one family: read, and malformed with the reason; prose is in neither."""
    read, failed = [_no_samples()], [lines.clear().with_columns(reason=pl.lit(None, pl.String))]
    for layout in list(recent):  # a log goes on as it began: most lines need no look at their layout
        if not lines.is_empty():
            lines = _apply(family, layout, lines, read, failed)
    if lines.is_empty():
        return pl.concat(read), pl.concat(failed)
    lines = lines.with_columns(layout=pl.col("body").str.replace_all(VALUE_PATTERN, HOLE))
    verdicts = [(layout, *_judge(family, layout, named)) for layout in lines["layout"].unique(maintain_order=True)]
    if not all(is_read for _, is_read, _ in verdicts):
        judged = pl.DataFrame(
            verdicts, schema={"layout": pl.String, "is_read": pl.Boolean, "reason": pl.String}, orient="row"
        )
        lines = lines.join(judged, on="layout", maintain_order="left")
        failed.append(lines.filter(pl.col("reason").is_not_null()).select(failed[0].columns))
        lines = lines.filter("is_read").drop("is_read", "reason")
    for group in lines.partition_by("layout") if len(verdicts) > 1 else [lines] if len(lines) else []:
        layout = group["layout"][0]
        recent.insert(0, layout)
        del recent[_MAX_RECENT:]
        _apply(family, layout, group.drop("layout"), read, failed)
    return pl.concat(read), pl.concat(failed)


def _judge(family: Family, layout: str, named: Sequence[str]) -> tuple[bool, str | None]:
    """Tell whether lines of a layout are read, and why not; prose is not read for no reason."""
    understood = read_layout(family, layout)
    if any(literal in layout for literal in named):
        return False, "another record begins in it"
    return understood.reason is None and not understood.is_prose, understood.reason


def _apply(
    family: Family, layout: str, lines: pl.DataFrame, read: list[pl.DataFrame], failed: list[pl.DataFrame]
) -> pl.DataFrame:
    """Read the lines that have this layout into ``read`` or ``failed``; return the others."""
    values = lines["body"].str.extract_groups(_layout_pattern(layout))
    first = values.struct.field("1")
    if first.null_count() == len(lines):
        return lines
    others, matched = lines.clear(), lines.with_columns(values=values)
    if first.has_nulls():
        is_match = first.is_not_null()
        others, matched = lines.filter(~is_match), matched.filter(is_match)
    rows = _read_values(family, read_layout(family, layout), matched)
    is_bad = rows["reason"] != ""
    if is_bad.any():
        failed.append(rows.filter(is_bad).select(failed[0].columns))
        rows = rows.filter(~is_bad)
    read.append(rows.select(read[0].columns))
    return others


@functools.lru_cache(maxsize=4096)
def _layout_pattern(layout: str) -> str:
    """Return the regular expression (Rust syntax) that a layout's lines match, one group per value."""
    return "^" + f"({VALUE_PATTERN})".join(escape(text) for text in layout.split(HOLE)) + "$"


def _no_malformed() -> pl.DataFrame:
    return pl.DataFrame(schema={"line_no": pl.Int64, "text": pl.String, "reason": pl.String})


def _read_values(family: Family, layout: Layout, group: pl.DataFrame) -> pl.DataFrame:
    """Turn the values of one layout's lines into columns; ``reason`` is empty where all could be read."""
    return group.with_columns(**_columns_of(family, layout)).with_columns(**family.derived)


@functools.lru_cache(maxsize=1024)
def _columns_of(family: Family, layout: Layout) -> dict[str, pl.Expr]:
    """Return how each column follows from the values; to word these takes as long as to apply them to 1000 lines."""
    columns: dict[str, pl.Expr] = {name: pl.lit(None, dtype) for name, dtype in MEASURES.items()}
    columns |= {key.column: pl.lit(None, _type_of(key)) for key in family.keys.values() if _is_scratch(key)}
    if family.kind == "iteration":
        columns["n_steps"] = pl.lit(1.0)
    problems = []
    for slot in layout.slots:
        if slot.key is None:
            continue
        value = _value_of(slot.index)
        is_required = any(slot.name in choice for choice in family.required)
        number, is_bad = _convert(slot.key, value, is_required=is_required)
        columns[slot.key.column] = number.cast(_type_of(slot.key))
        problems.append(pl.when(is_bad).then(pl.concat_str(pl.lit(f"{slot.name!r} is "), value)))
    reason = pl.coalesce(*problems, pl.lit("")) if problems else pl.lit("")
    extra = extra_of(layout, _value_of)
    extra = pl.lit(None, pl.String) if extra is None else extra
    return columns | {"extra": extra, "reason": reason, "engine": pl.lit(family.engine), "kind": pl.lit(family.kind)}


def _is_scratch(key: Key) -> bool:
    return key.column.startswith("_")


def _type_of(key: Key) -> pl.DataType | type[pl.DataType]:
    """Return the type of a key's column."""
    return MEASURES.get(key.column, pl.Int64 if key.read == "count" else pl.Float64)


SCALES = {"percent": 1.0 / 100.0, "ms": 1.0 / 1000.0}
"""From what is printed to base units: factors, as polars divides one row by rounding once and many rows twice."""


def _convert(key: Key, value: pl.Expr, *, is_required: bool) -> tuple[pl.Expr, pl.Expr]:
    """Return the typed value and whether it cannot be one (absurd, or not a number where one is needed)."""
    if key.read == "flag":
        flag = pl.when(value == "True").then(True).when(value == "False").then(False)
        return flag, flag.is_null()
    if key.read == "count":
        number = value.cast(pl.Int64, strict=False)
        return number, number.is_null() | (number < 0)
    number = value.cast(pl.Float64, strict=False)
    is_bad = number.is_null() | number.is_infinite() | (number < 0)
    is_bad = is_bad | number.is_nan() if is_required else is_bad
    return number * SCALES.get(key.read, 1.0), is_bad


def extra_of(
    layout: Layout, value: Callable[[int], pl.Expr], *, has_odd_numbers: bool = True
) -> pl.Expr | None:
    """Return the other values of a line as a JSON object with the digits as printed; None if there are none.

    Parameters
    ----------
    layout : Layout
    value : callable
        Gives the text of the n-th value of the line.
    has_odd_numbers : bool
        Some value may be no number in JSON: a flag, nan, or one with leading zeros.
    """
    read = _json_value if has_odd_numbers else _as_it_is
    items: list[list[pl.Expr]] = []
    for slot in layout.slots:
        if slot.key is None or _is_scratch(slot.key):
            name = f"{slot.name} ({slot.unit.strip()})" if slot.unit else slot.name
            items.append([pl.lit(f"{json.dumps(name, ensure_ascii=False)}: "), read(value(slot.index))])
    for name, indices in layout.lists:
        values = [read(value(index)) for index in indices]
        separated = [expression for each in values for expression in (each, pl.lit(", "))][:-1]
        items.append([pl.lit(f"{json.dumps(name, ensure_ascii=False)}: ["), *separated, pl.lit("]")])
    items += [[pl.lit(f"{json.dumps(name, ensure_ascii=False)}: true")] for name in layout.flags]
    if not items:
        return None
    joined = [expression for item in items for expression in (*item, pl.lit(", "))][:-1]
    return pl.concat_str(pl.lit("{"), *joined, pl.lit("}"))


def _json_value(value: pl.Expr) -> pl.Expr:
    in_json = {"True": "true", "False": "false", "nan": "null", "inf": "null", "-inf": "null", "-nan": "null"}
    return value.replace(in_json).str.replace(r"^(-?)0+([0-9])", "${1}${2}")  # JSON knows no leading zeros


def _as_it_is(value: pl.Expr) -> pl.Expr:
    return value


def _value_of(index: int) -> pl.Expr:
    """Return the n-th value of lines that a layout's expression matched."""
    return pl.col("values").struct.field(str(index + 1))


def _split_glued(text: str, named: Sequence[str]) -> list[str]:
    """Cut a line into pieces of at most one record, every one with its own prefix where it has one."""
    anchors = [match.start() for match in re.finditer("|".join(map(re.escape, named)), text)]
    starts = [0]
    for before, here in zip(anchors, anchors[1:], strict=False):
        found = NEXT_MESSAGE_PATTERN.search(text, before + 1, here)
        starts.append(found.start() if found else here)
    return [text[start:end] for start, end in zip(starts, [*starts[1:], len(text)], strict=True)]
