"""Statistic lines like earlier ones of the log, read by the compiled reader: no expression runs over a line.

A log says the same in millions of lines: a head (`heads`), and a body of one of a few layouts. What `extract` and
`stamps` found in some of the lines is applied to all others here. A line is read only if every byte of it is where it
must be; any other line is left to `extract`. Both give the same rows, so which lines are read here changes nothing.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
import pyarrow as pa

from helpers.ingest.compiled import COUNT, FLAG, MAX_FIELDS, NUMBER, OTHER, Field, Plan, Tables, Values
from helpers.ingest.dialect import HOLE, Family, Key, read_layout
from helpers.ingest.extract import MEASURES, SCALES, extra_of
from helpers.ingest.heads import Heads
from helpers.ingest.lines import Chunk

_KINDS = {"count": COUNT, "flag": FLAG}
_NUMPY_TYPES = {pl.Int64: np.int64, pl.Float64: np.float64, pl.Boolean: np.bool_}


class Reader:
    """Reads what is known of one log at one time.

    Parameters
    ----------
    library : ctypes.CDLL
    heads : Heads
    recent : mapping
        Layouts that earlier lines of each family had, in the order in which they are tried.
    families : sequence of Family
        In the order in which they claim a line.
    """

    def __init__(
        self, library: ctypes.CDLL, heads: Heads, recent: Mapping[Family, Sequence[str]], families: Sequence[Family]
    ) -> None:
        self._heads = list(heads.known)
        self._basis = _basis(heads, recent)
        self._families: list[Family] = []
        self._plans: list[Plan] = []
        per_place = []
        for place, family in enumerate(families):
            earlier = tuple(other.literal for other in families[:place])
            plans = [plan for layout in list(recent.get(family, ()))
                     if (plan := _plan(family, layout, earlier)) is not None]
            per_place.append(plans)
            self._plans += plans
            self._families += [family] * len(plans)
        self._tables = Tables(library, self._heads, per_place)

    def is_of(self, heads: Heads, recent: Mapping[Family, Sequence[str]]) -> bool:
        """Tell whether nothing more is known by now."""
        return self._basis == _basis(heads, recent)

    def read(self, chunk: Chunk, rows: np.ndarray) -> tuple[Block | None, np.ndarray]:
        """Read the lines whose head and layout are known.

        Parameters
        ----------
        chunk : Chunk
        rows : array of int
            Which of its lines, in their order.

        Returns
        -------
        records : Block or None
            In the order of the lines; None if no line is read.
        left : array of int
            The other lines.
        """
        values = self._tables.read(chunk.data, chunk.offsets, rows)
        is_read = values.plans >= 0
        if not is_read.any():
            return None, rows
        heads, plans, stamps_us, mine = (
            array if is_read.all() else array[is_read]
            for array in (values.heads, values.plans, values.stamps_us, rows)
        )
        values = replace(values, heads=heads, plans=plans, stamps_us=stamps_us)
        return Block(self, values, mine + chunk.first_line_no), rows[~is_read]

    def table(self, values: Values, line_no: np.ndarray) -> pl.DataFrame:
        """Return records with the columns of a scan of a chunk, but for those that are missing in all rows.

        `chunk_scan.whole_table` adds them. A name that all rows have takes no memory per row.
        """
        plans, heads, known = values.plans, values.heads, self._heads
        used = np.flatnonzero(np.bincount(plans)).tolist()
        columns: dict[str, pl.Series | np.ndarray | str | int | None] = {
            "line_no": line_no,
            "engine": _spread([family.engine for family in self._families], plans),
            "kind": _spread([family.kind for family in self._families], plans),
            **{name: self._measure(values, name, dtype, used) for name, dtype in MEASURES.items()},
            "extra": self._extra(values, used),
            "stamp": values.stamps_us.view("datetime64[us]"),
            "stamp_kind": _spread([head.form.kind for head in known], heads, pl.Int32),
            "rank": _spread([head.rank for head in known], heads),
            "label": _spread([head.label for head in known], heads),
        }
        same = {name: pl.lit(value, pl.String if isinstance(value, str) else pl.Int32)
                for name, value in columns.items() if isinstance(value, (str, int))}
        table = pl.DataFrame({
            name: values for name, values in columns.items() if values is not None and name not in same
        })
        return table.with_columns(**same)

    def _measure(
        self, values: Values, name: str, dtype: type[pl.DataType], used: list[int]
    ) -> pl.Series | None:
        """Return one column, missing for the layouts that do not print it; None if none does."""
        has = [any(field.column == name for field in plan.fields) for plan in self._plans]
        is_one = [name == "n_steps" and not has[number] and self._families[number].kind == "iteration"
                  for number in range(len(self._plans))]
        filled = [a or b for a, b in zip(has, is_one, strict=True)]
        if not any(filled[number] for number in used):
            return None
        plans = values.plans
        column = values.columns[name] if name in values.columns else np.empty(len(plans), _NUMPY_TYPES[dtype])
        if any(is_one[number] for number in used):
            column[np.array(is_one)[plans]] = 1
        if all(filled[number] for number in used):
            return pl.Series(column.astype(_NUMPY_TYPES[dtype], copy=False))
        is_missing = ~np.array(filled)[plans]
        column[is_missing] = 0
        return pl.Series(pa.array(column.astype(_NUMPY_TYPES[dtype], copy=False), mask=is_missing))

    def _extra(self, values: Values, used: list[int]) -> pl.Series | None:
        """Return what goes to ``extra``; None if there is none."""
        has = [bool(plan.pieces) for plan in self._plans]
        if not any(has[number] for number in used):
            return None
        missing = None
        if not all(has[number] for number in used):
            missing = pa.py_buffer(np.packbits(np.array(has)[values.plans], bitorder="little"))
        return pl.Series(pa.LargeStringArray.from_buffers(
            len(values.plans), pa.py_buffer(values.extra_ends), pa.py_buffer(values.extra), missing
        ))


@dataclass(frozen=True)
class Block:
    """Records as they were read, in the order of their lines.

    Attributes
    ----------
    reader : Reader
    values : Values
        Per record; no line without one.
    line_no : array of int
    """

    reader: Reader
    values: Values
    line_no: np.ndarray

    def __len__(self) -> int:
        """Return the number of records."""
        return len(self.line_no)

    def table(self) -> pl.DataFrame:
        """Return the records as `Reader.table` does."""
        return self.reader.table(self.values, self.line_no)


def to_tables(parts: Iterable[pl.DataFrame | Block]) -> list[pl.DataFrame]:
    """Make tables of parts of a log, one of all blocks that follow each other: a table of its own costs 5 ms."""
    tables = []
    for reader, group in itertools.groupby(parts, lambda part: part.reader if isinstance(part, Block) else None):
        if reader is None:
            tables += [part for part in group if isinstance(part, pl.DataFrame)]
        else:
            tables.append(_joined([part for part in group if isinstance(part, Block)]).table())
    return tables


def _joined(blocks: list[Block]) -> Block:
    """Put blocks of one reader together."""
    if len(blocks) == 1:
        return blocks[0]
    values = [block.values for block in blocks]
    n_before = np.cumsum([0, *(each.extra_ends[-1] for each in values[:-1])])
    heads, plans, stamps_us = (
        np.concatenate([getattr(each, name) for each in values]) for name in ("heads", "plans", "stamps_us")
    )
    columns = {name: np.concatenate([each.columns[name] for each in values]) for name in values[0].columns}
    ends = [each.extra_ends[1:] + before for each, before in zip(values, n_before, strict=True)]
    whole = Values(
        heads, plans, stamps_us, columns, b"".join(each.extra for each in values), np.concatenate([[0], *ends])
    )
    return Block(blocks[0].reader, whole, np.concatenate([block.line_no for block in blocks]))


def _basis(heads: Heads, recent: Mapping[Family, Sequence[str]]) -> tuple[int, tuple[tuple[str, ...], ...]]:
    """Return what tells states of knowledge apart."""
    return len(heads.known), tuple(tuple(layouts) for layouts in list(recent.values()))


@functools.lru_cache(maxsize=1024)
def _plan(family: Family, layout: str, earlier: tuple[str, ...]) -> Plan | None:
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
    if not 1 < len(literals) <= MAX_FIELDS or not all(_can_follow(text) for text in literals[1:]):
        return None
    if not all(_can_precede(text) for text in (family.literal + literals[0], *literals[1:-1])):
        return None
    keys: dict[int, Key | None] = {slot.index: slot.key for slot in understood.slots}
    if any(key is not None and not _is_plain(key) for key in keys.values()):
        return None
    fields = tuple(_field(text, keys.get(index)) for index, text in enumerate(literals[:-1]))
    extra = extra_of(understood, lambda index: pl.lit(f"{HOLE}{index}{HOLE}"), has_odd_numbers=False)
    pieces: list[tuple[bytes, int | None]] = []
    if extra is not None:  # text, number, text, number, ..., text
        *parts, last = pl.select(extra).item().split(HOLE)
        pieces = [(text.encode(), int(number)) for text, number in zip(parts[::2], parts[1::2], strict=True)]
        pieces.append((last.encode(), None))
    return Plan(fields, literals[-1].encode(), tuple(pieces))


def _field(literal: str, key: Key | None) -> Field:
    if key is None:
        return Field(literal.encode(), OTHER)
    return Field(literal.encode(), _KINDS.get(key.read, NUMBER), key.column, SCALES.get(key.read, 1.0))


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


def _spread(
    names: Sequence[str | int | None], numbers: np.ndarray, dtype: type[pl.DataType] = pl.String
) -> pl.Series | str | int | None:
    """Return the name of each number, or the one that all have; None if all are missing."""
    used = np.flatnonzero(np.bincount(numbers, minlength=len(names))).tolist()
    different = list(dict.fromkeys(names[number] for number in used))
    if len(different) == 1:
        return different[0]
    return pl.Series(names, dtype=dtype).gather(numbers)
