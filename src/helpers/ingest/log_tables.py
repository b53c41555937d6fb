"""From the tables that were read to the tables of the schema, without copying twice."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa

from helpers.ingest.events import Event
from helpers.schema import EVENTS, MOMENTS, SAMPLES, Schema, check, conform


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
    empty: dict[str, pd.Series] = {}
    columns = {}
    for column in schema.columns:
        values = table.drop_in_place(column.name)
        if values.dtype != pl.String and values.null_count() == len(values):
            if column.dtype not in empty:
                empty[column.dtype] = pd.Series(_to_column(values, column.dtype == "Int64"))
            columns[column.name] = empty[column.dtype]  # one for all such columns: pandas copies it when one is changed
        else:
            columns[column.name] = _to_column(values, column.dtype == "Int64")
    return check(pd.DataFrame(columns, copy=False), schema)


def to_events(kept: list[tuple[int, Event]], stamped: pl.DataFrame) -> pd.DataFrame:
    """Return EVENTS in the order of files and lines.

    Parameters
    ----------
    kept : list of (row, Event)
        Events with their row in ``stamped``.
    stamped : DataFrame
        file, line_no, ts, t_s, rank of all events.
    """
    rows = [row for row, _ in kept]
    where = pd.DataFrame({name: _to_column(stamped[name][rows]) for name in ("file", "line_no", "ts", "t_s", "rank")})
    found = pd.DataFrame({
        "engine": pd.Series([event.engine for _, event in kept], dtype="str"),
        "server_life": pd.Series([event.life for _, event in kept], dtype="int64"),
        "kind": pd.Series([event.kind for _, event in kept], dtype="str"),
        "size_bytes": pd.Series([event.detail.get("size_bytes", np.nan) for _, event in kept], dtype="float64"),
        "detail": pd.Series([_detail(event) for _, event in kept], dtype="str"),
        "text": pd.Series([event.text for _, event in kept], dtype="str"),
    })
    return conform(pd.concat([where, found], axis="columns"), EVENTS)


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
        return pd.Series(_strings(column), dtype="str")
    return column.to_pandas()


_RUN = 2**16
"""Rows that one copy of a text stands for where all rows say the same."""


def _strings(column: pl.Series) -> pa.Array | pa.ChunkedArray:
    """Return texts; one that stands in all rows, as a file's name does, is held a few times only."""
    n, first = len(column), column[0] if len(column) else None
    if n <= _RUN or first is None or column.has_nulls() or not (column == first).all():
        return column.to_arrow()
    one = pa.repeat(pa.scalar(first, pa.large_string()), _RUN)
    return pa.chunked_array([*[one] * (n // _RUN), one[: n % _RUN]])


def _filled(column: pl.Series, value: int | bool) -> np.ndarray:
    """Return the values as an array of one's own, missing ones replaced."""
    if column.null_count() == len(column):  # zeros take no memory until they are changed
        return np.zeros(len(column), type(value))
    return column.fill_null(value).to_numpy(writable=True)


def _is_missing(column: pl.Series) -> np.ndarray:
    """Return which values are missing."""
    if column.null_count() == 0:
        return np.zeros(len(column), bool)
    return column.is_null().to_numpy(writable=True)
