"""What stands in a column of which most hold one value in all rows: the engine, the file, the kind of a stamp."""

from __future__ import annotations

from typing import Any

import polars as pl

_MIN_SHARE = 1.0 / 16.0
_MAX_COMPARED = 4
"""Share of rows that makes a value worth a look at them all, and values looked for so: comparing with one is ten times
as fast as hashing."""


def count_values(table: pl.DataFrame, name: str) -> dict[Any, int]:
    """Return how often each value stands in a column, missing included.

    Parameters
    ----------
    table : DataFrame
    name : str
        Of the column. One that polars holds as a literal stays one: it takes no memory per row, and no time here.
    """
    counts, left = _frequent(table, name)
    return {**counts, **dict(left[name].value_counts().iter_rows())} if len(left) else counts


def distinct(table: pl.DataFrame, name: str) -> list[Any]:
    """Return the values that stand in a column, missing included."""
    counts, left = _frequent(table, name)
    return [*counts, *left[name].unique()] if len(left) else list(counts)


def n_distinct(table: pl.DataFrame, name: str) -> int:
    """Return how many values stand in a column, those missing not counted."""
    counts, left = _frequent(table, name)
    n_left = left[name].n_unique() - left[name].has_nulls() if len(left) else 0
    return n_left + sum(value is not None for value in counts)


def one_value(table: pl.DataFrame, name: str) -> tuple[Any, ...]:
    """Return the value that stands in all rows of a column, as a tuple; an empty one where the rows differ or none is.

    A missing value counts as one.
    """
    if table.is_empty():
        return ()
    values = table[[name]]
    first, last = values.row(0), values.row(-1)
    if first != last:
        return ()
    column = pl.col(name)
    return first if _is_literal(values) or values.select(column.eq_missing(column.first()).all()).item() else ()


_MIN_TO_JUDGE = 100
"""Rows below which a column that is held row by row may take no more memory than its first: flags share a byte."""


def _is_literal(values: pl.DataFrame) -> bool:
    """Tell whether a column is surely held as a literal: all its rows take the memory of one."""
    return len(values) >= _MIN_TO_JUDGE and values.estimated_size() == values.head(1).estimated_size()


def _frequent(table: pl.DataFrame, name: str) -> tuple[dict[Any, int], pl.DataFrame]:
    """Count the values that come first while they are few and frequent; return the rows with others too."""
    left = table[[name]]  # brackets, as select would give every column that is missing in all rows its memory
    if _is_literal(left):
        return {left.item(0, 0): len(left)}, left.clear()
    counts: dict[Any, int] = {}
    column, n_left = pl.col(name), len(left)
    is_other = pl.lit(value=True)
    while n_left:
        first = column.first()
        value, n = left.select(first, n=column.eq_missing(first).sum()).row(0)
        if n < _MIN_SHARE * n_left or len(counts) == _MAX_COMPARED:
            return counts, left.filter(is_other)
        counts[value] = n
        n_left -= n
        if n_left:
            is_other &= column.ne_missing(pl.lit(value, left.schema[name]))
            left = left[left.select(is_other.arg_max()).item():]
    return counts, left.clear()
