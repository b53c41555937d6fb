"""Statistic lines like earlier ones of the log, read by arithmetic on their bytes: no expression runs over a line.

A log says the same in millions of lines: a head (`heads`), and a body of one of a few layouts. What `extract` and
`stamps` found in some of the lines is applied to all others here. A line is read only if every byte of it is where it
must be; any other line is left to `extract`. Both give the same rows, so which lines are read here changes nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import polars as pl
import pyarrow as pa

from helpers.ingest.bytewise import (
    MAX_ROW_WORDS,
    NUMBER_WORDS,
    Literal,
    Words,
    have_leading_zero,
    read_flags,
    read_numbers,
    read_whole,
)
from helpers.ingest.dialect import HOLE, Family, Key, Layout, read_layout
from helpers.ingest.extract import MEASURES, SCALES, extra_of
from helpers.ingest.heads import Heads

Span = tuple[np.ndarray, np.ndarray]
"""Begin and end of a value in the text, of each row."""


_END = Key("")
"""Stands for the end of the line in the place of a value."""


@dataclass(frozen=True)
class _Plan:
    """How the lines of one layout are read: literals around the values, and what each value is."""

    family: Family
    layout: Layout
    literals: tuple[Literal, ...]
    keys: tuple[Key | None, ...]
    """One per value in the order of the line; None goes to ``extra``."""


@dataclass
class _Rows:
    """Records of one layout: their rows among the lines looked at, columns, and spans of what goes to ``extra``."""

    plan: _Plan
    rows: np.ndarray
    heads: np.ndarray
    stamp_us: np.ndarray
    columns: dict[str, np.ndarray] = field(default_factory=dict)
    spans: dict[int, Span] = field(default_factory=dict)
    has_leading_zero: bool = False


def read_rapidly(
    text: bytes, words: Words, begins: np.ndarray, ends: np.ndarray, heads: Heads,
    recent: Mapping[Family, Sequence[str]], families: Sequence[Family], line_numbers: np.ndarray,
) -> tuple[pl.DataFrame | None, np.ndarray]:
    """Read the lines whose head and layout are known.

    Parameters
    ----------
    text : bytes
        The chunk, and ``words`` the same.
    begins, ends : array of int
        Where each line begins, and where it ends behind its line feed.
    heads : Heads
    recent : mapping
        Layouts that earlier lines of each family had.
    families : sequence of Family
        In the order in which they claim a line.
    line_numbers : array of int
        Number of each line in its file.

    Returns
    -------
    records : DataFrame or None
        In the order of the lines, with the columns of a scan of a chunk but for those that are missing in all rows
        (`chunk_scan.whole_table` adds them); None if no line is read.
    is_read : array of bool
        Per line.
    """
    is_read: np.ndarray = np.zeros(len(begins), bool)
    found = heads.find(words, begins, ends)
    if not len(found.rows):
        return None, is_read
    known = heads.known
    n_bytes = np.array([head.literal.n_bytes for head in known])
    places = np.array([head.place for head in known])[found.heads]
    parts: list[_Rows] = []
    for place in np.unique(places):
        family = families[place]
        left = np.flatnonzero(places == place)
        for layout in list(recent.get(family, ())):
            plan = _plan(family, layout, tuple(other.literal for other in families[:place]))
            if plan is None or not len(left):
                continue
            rows = found.rows[left]
            part, is_mine = _read_body(plan, words, begins[rows] + n_bytes[found.heads[left]], ends[rows])
            mine = left[is_mine]
            part.rows, part.heads, part.stamp_us = found.rows[mine], found.heads[mine], found.stamp_us[mine]
            if len(mine):
                parts.append(part)
            left = left[~is_mine]
    if not parts:
        return None, is_read
    for part in parts:
        is_read[part.rows] = True
    return _assemble(parts, text, heads, line_numbers), is_read


@functools.lru_cache(maxsize=1024)
def _plan(family: Family, layout: str, earlier: tuple[str, ...]) -> _Plan | None:
    """Return how lines of a layout are read; None if they must be read as text.

    ``earlier`` are the literals of families that claim a line first: none may stand in the layout.
    """
    if family.rewrite or family.stamps or family.derived:
        return None
    understood = read_layout(family, layout)
    if understood.reason is not None or understood.is_prose:
        return None
    if any(name in family.literal + layout or family.literal in name for name in earlier):
        return None
    literals = layout.split(HOLE)
    if len(literals) < 2 or not all(_can_follow(text) for text in literals[1:]):
        return None
    if not all(_can_precede(text) for text in (family.literal + literals[0], *literals[1:-1])):
        return None
    keys: list[Key | None] = [None] * (len(literals) - 1)
    for slot in understood.slots:
        keys[slot.index] = slot.key
    if any(key is not None and not _is_plain(key) for key in keys):
        return None
    ending = tuple(Literal.ending_word(text.encode()) for text in literals)
    if any(len(literal.masks) + NUMBER_WORDS > MAX_ROW_WORDS for literal in ending):
        return None
    return _Plan(family, understood, ending, tuple(keys))


def _can_follow(text: str) -> bool:
    """Tell whether a value ends where this literal begins, whatever the value: no letter, digit, or point of it."""
    is_word = text[:1].isalnum() or text[:1] == "_"
    return bool(text) and not is_word and not (text[0] == "." and text[1:2].isdigit())


def _can_precede(text: str) -> bool:
    """Tell whether a value begins where this literal ends: no sign or part of a word stands before it."""
    return bool(text) and not (text[-1].isalnum() or text[-1] in "_-.")


def _is_plain(key: Key) -> bool:
    dtype = MEASURES.get(key.column)
    return dtype is not None and (dtype == {"count": dtype, "flag": pl.Boolean}.get(key.read, pl.Float64))


def _read_body(plan: _Plan, words: Words, places: np.ndarray, ends: np.ndarray) -> tuple[_Rows, np.ndarray]:
    """Read the bodies that begin at ``places``; return the rows that match, and which they are."""
    is_good: np.ndarray = np.ones(len(places), bool)
    kept = np.arange(len(places))
    part = _Rows(plan, kept, kept, kept)
    at = places
    for index, (key, literal) in enumerate(zip((*plan.keys, _END), plan.literals, strict=True)):
        n_literal = len(literal.masks)
        rows = words.rows(at - literal.lead, n_literal + (0 if key is _END else NUMBER_WORDS))
        is_good &= literal.is_in(rows)
        if index == 0 and not is_good.all():  # another layout's lines
            kept = np.flatnonzero(is_good)
            at, rows, is_good = at[kept], rows[:, kept], is_good[kept]
        at = at + literal.n_bytes
        if key is _END:
            break
        value = rows[n_literal:]
        if key is not None and key.read == "flag":
            is_value, part.columns[key.column], n_bytes = read_flags(value)
        else:
            is_count = key is not None and key.read == "count"
            numbers = read_whole(value) if is_count else read_numbers(words, at, value)
            is_value, n_bytes = numbers.is_read, numbers.n_bytes
            if key is None:
                part.spans[index] = at, at + n_bytes
                part.has_leading_zero |= have_leading_zero(value, n_bytes)
            else:
                part.columns[key.column] = numbers.value * SCALES[key.read] if key.read in SCALES else numbers.value
        is_good &= is_value
        at = at + n_bytes
    is_good &= at == ends[kept]
    if not is_good.all():
        part.columns = {name: values[is_good] for name, values in part.columns.items()}
        part.spans = {index: (begin[is_good], end[is_good]) for index, (begin, end) in part.spans.items()}
    is_mine: np.ndarray = np.zeros(len(places), bool)
    is_mine[kept] = is_good
    return part, is_mine


def _assemble(parts: list[_Rows], text: bytes, heads: Heads, line_numbers: np.ndarray) -> pl.DataFrame:
    """Put the records of all layouts into one table in the order of the lines."""
    rows = np.concatenate([part.rows for part in parts])
    order = None if bool((rows[1:] > rows[:-1]).all()) else np.argsort(rows, kind="stable")

    def arranged(values: Iterable[np.ndarray]) -> np.ndarray:
        whole = np.concatenate(list(values))
        return whole if order is None else whole[order]

    n_rows = [len(part.rows) for part in parts]
    number = arranged(part.heads for part in parts)
    part_of = arranged(np.full(n, index) for index, n in enumerate(n_rows))
    known = heads.known
    stamp_us = arranged(part.stamp_us for part in parts)
    columns: dict[str, pl.Series | np.ndarray | str | None] = {
        "line_no": line_numbers[arranged([rows])],
        "engine": _spread([part.plan.family.engine for part in parts], part_of),
        "kind": _spread([part.plan.family.kind for part in parts], part_of),
        **{name: _measure(parts, name, dtype, arranged) for name, dtype in MEASURES.items()},
        "extra": _extra(parts, text, order),
        "stamp": stamp_us.view("datetime64[us]"),
        "stamp_kind": np.array([head.form.kind for head in known], np.int32)[number],
        "rank": _spread([head.rank for head in known], number),
        "label": _spread([head.label for head in known], number),
    }
    same = {name: pl.lit(values, pl.String) for name, values in columns.items() if isinstance(values, str)}
    table = pl.DataFrame({
        name: values for name, values in columns.items() if values is not None and name not in same
    })
    # a copy, so that these arrays, small and many, are not what is kept: an allocator gives back no part of its blocks
    table = pl.concat([table[:1], table[1:]], rechunk=True)
    return table.with_columns(**same)  # takes no memory per row


def _spread(names: Sequence[str | None], numbers: np.ndarray) -> pl.Series | str | None:
    """Return the name of each number, or the one that all have; None if all are missing."""
    used = np.flatnonzero(np.bincount(numbers, minlength=len(names))).tolist()
    different = list(dict.fromkeys(names[number] for number in used))
    if len(different) == 1:
        return different[0]
    return pl.Series(names, dtype=pl.String).gather(numbers)


def _measure(
    parts: list[_Rows], name: str, dtype: type[pl.DataType], arranged: Callable[[Iterable[np.ndarray]], np.ndarray]
) -> pl.Series | None:
    """Return one column, missing for the layouts that do not print it; None if none does."""
    filled = [
        name in part.columns or name == "n_steps" and part.plan.family.kind == "iteration" for part in parts
    ]
    n_rows = [len(part.rows) for part in parts]
    if not any(filled):
        return None
    numpy_type = {pl.Int64: np.int64, pl.Float64: np.float64, pl.Boolean: np.bool_}[dtype]
    values = arranged(
        part.columns[name].astype(numpy_type, copy=False) if name in part.columns else np.ones(n, numpy_type)
        for part, n in zip(parts, n_rows, strict=True)
    )
    if all(filled):
        return pl.Series(values)
    is_missing = ~arranged(np.full(n, has) for n, has in zip(n_rows, filled, strict=True))
    return pl.Series(pa.array(values, mask=is_missing))


def _extra(parts: list[_Rows], text: bytes, order: np.ndarray | None) -> pl.Series | None:
    """Return what goes to ``extra``, as `extract` words it; None if there is none."""
    if not any(part.spans for part in parts) and not any(part.plan.layout.flags for part in parts):
        return None
    pieces = []
    for part in parts:
        extra = extra_of(part.plan.layout, _value_of, has_odd_numbers=part.has_leading_zero)
        if extra is None:
            pieces.append(pl.Series(dtype=pl.String).clear(len(part.rows)))
            continue
        values = {str(index): _texts(text, span) for index, span in part.spans.items()}
        pieces.append(pl.DataFrame({"row": part.rows, **values}).select(extra=extra)["extra"])
    whole = pl.concat(pieces) if len(pieces) > 1 else pieces[0]
    return whole if order is None else whole.gather(order)


def _value_of(index: int) -> pl.Expr:
    return pl.col(str(index))


def _texts(text: bytes, span: Span) -> pl.Series:
    """Return pieces of a text, without copying it where they are in order."""
    begins, ends = span
    if (begins[1:] < ends[:-1]).any() or (ends < begins).any():
        pieces = zip(begins.tolist(), ends.tolist(), strict=True)
        return pl.Series([text[begin:end].decode() for begin, end in pieces], dtype=pl.String)
    bounds = np.empty(2 * len(begins) + 1, np.int64)
    bounds[0:-1:2], bounds[1::2] = begins, ends
    bounds[-1] = ends[-1] if len(ends) else 0
    both = pa.LargeStringArray.from_buffers(2 * len(begins), pa.py_buffer(bounds), pa.py_buffer(text))
    return pl.Series(both).gather_every(2)
