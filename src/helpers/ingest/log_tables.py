"""From the tables that were read to the tables of the schema, without copying twice."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa

from helpers.ingest.distinct import one_value
from helpers.ingest.events import Event
from helpers.schema import EVENTS, MOMENTS, SAMPLES, Schema, check


def to_samples(table: pl.DataFrame) -> pd.DataFrame:
    """Return SAMPLES in the order of files and lines.

    Parameters
    ----------
    table : DataFrame
        With the columns of SAMPLES and others. These are taken out of it, so that none of a large log is held twice.
    """
    return _to_schema(table, SAMPLES)


def to_moments(table: pl.DataFrame) -> pd.DataFrame:
    """Return MOMENTS in the order of files and lines; its columns are taken out of ``table``."""
    return _to_schema(table, MOMENTS)


def _to_schema(table: pl.DataFrame, schema: Schema) -> pd.DataFrame:
    for name in set(table.columns) - set(schema.names):
        table.drop_in_place(name)
    n, types = len(table), table.schema
    index = pd.RangeIndex(n)  # one for all: pandas compares the indexes of columns that bring their own
    empty: dict[str, pd.Series] = {}
    columns: dict[str, Any] = {}
    for column in schema.columns:
        if n > _RUN and types[column.name] == pl.String and (one := one_value(table, column.name)):
            columns[column.name] = _repeated(one[0], n)  # stays in the table, most often as a literal
            continue
        if column.dtype == "int64" and one_value(table, column.name) == (0,):
            columns[column.name] = np.zeros(n, np.int64)  # takes no memory until it is read or changed
            continue
        values = table.drop_in_place(column.name)
        if values.null_count() < n:
            columns[column.name] = _to_column(values, column.dtype == "Int64")
            continue
        if column.dtype not in empty:
            empty[column.dtype] = pd.Series(_to_column(values, column.dtype == "Int64"), index)
        columns[column.name] = empty[column.dtype]  # one for all such columns: pandas copies it when one is changed
    return check(pd.DataFrame(columns, index, copy=False), schema)


def to_events(kept: list[tuple[int, Event]], stamped: pl.DataFrame) -> pd.DataFrame:
    """Return EVENTS in the order of files and lines.

    Parameters
    ----------
    kept : list of (row, Event)
        Events with their row in ``stamped``.
    stamped : DataFrame
        file, line_no, ts, t_s, rank of all events.
    """
    rows = pl.Series([row for row, _ in kept], dtype=pl.Int64)
    found = {
        "engine": pl.Series([event.engine for _, event in kept], dtype=pl.String),
        "server_life": pl.Series([event.life for _, event in kept], dtype=pl.Int64),
        "kind": pl.Series([event.kind for _, event in kept], dtype=pl.String),
        "size_bytes": pl.Series([event.detail.get("size_bytes") for _, event in kept], dtype=pl.Float64, strict=False),
        "detail": pl.Series([_detail(event) for _, event in kept], dtype=pl.String),
        "text": pl.Series([event.text for _, event in kept], dtype=pl.String),
    }
    where = stamped[["file", "line_no", "ts", "t_s", "rank"]][rows]
    return _to_schema(where.hstack([values.alias(name) for name, values in found.items()]), EVENTS)


def _detail(event: Event) -> str | None:
    """Return the values read from an event as JSON; of a dump only that it is one (its values are in the facts)."""
    detail = {name: value for name, value in event.detail.items() if name != "size_bytes"}
    if event.kind == "args":
        detail["n_arguments"] = len(event.args)
    return json.dumps(detail) if detail else None


def _to_column(column: pl.Series, is_nullable: bool = False) -> Any:
    """Convert without passing whole numbers through floats and without copying twice.

    Parameters
    ----------
    column : Series
    is_nullable : bool
        Whole numbers of which some may be missing.
    """
    if is_nullable:
        return pd.arrays.IntegerArray(_filled(column.cast(pl.Int64), 0), _is_missing(column))
    if column.dtype == pl.Boolean:
        return pd.arrays.BooleanArray(_filled(column, False), _is_missing(column))
    if column.dtype == pl.String:
        return _texts(column.to_arrow())
    if column.dtype == pl.Float64 and column.has_nulls():
        column = column.fill_null(np.nan)
    return _copied(column) if column.n_chunks() > 1 else column.to_numpy()


def _copied(column: pl.Series) -> np.ndarray:
    """Return the values as an array of one's own."""
    return np.concatenate([chunk.to_numpy() for chunk in column.get_chunks()])


_TEXT = pd.StringDtype(na_value=np.nan)
"""The dtype that pandas calls str."""


def _texts(values: pa.Array | pa.ChunkedArray) -> pd.api.extensions.ExtensionArray:
    return pd.array(values, dtype=_TEXT)


_RUN = 2**16
"""Rows that one copy of a text stands for where all rows say the same."""


def _repeated(text: str | None, n: int) -> pd.api.extensions.ExtensionArray:
    """Return a text that stands in all rows of many, as a file's name does; it is held a few times only."""
    one = pa.repeat(pa.scalar(text, pa.large_string()), _RUN)
    return _texts(pa.chunked_array([*[one] * (n // _RUN), one[: n % _RUN]]))


def _filled(column: pl.Series, value: int | bool) -> np.ndarray:
    """Return the values as an array of one's own, missing ones replaced."""
    if column.null_count() == len(column):  # zeros take no memory until they are changed
        return np.zeros(len(column), type(value))
    return _copied(column.fill_null(value) if column.has_nulls() else column)


def _is_missing(column: pl.Series) -> np.ndarray:
    """Return which values are missing."""
    if column.null_count() == 0:
        return np.zeros(len(column), bool)
    return column.is_null().to_numpy(writable=True)
