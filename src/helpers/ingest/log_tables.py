"""From the tables that were read to the tables of the schema, without copying twice."""

from __future__ import annotations

import json
from collections.abc import Container
from typing import Any

import numpy as np
import pandas as pd
import polars as pl

from helpers.ingest.events import Event
from helpers.schema import EVENTS, MOMENTS, SAMPLES, Schema, check, conform


def to_samples(table: pl.DataFrame) -> pd.DataFrame:
    """Return SAMPLES in the order of files and lines.

    Parameters
    ----------
    table : DataFrame
        With the columns of SAMPLES and others.
    """
    return _to_schema(table, SAMPLES)


def to_moments(table: pl.DataFrame) -> pd.DataFrame:
    """Return MOMENTS in the order of files and lines."""
    return _to_schema(table, MOMENTS)


def _to_schema(table: pl.DataFrame, schema: Schema) -> pd.DataFrame:
    ordered = table.select(column.name for column in schema.columns)
    return check(_to_pandas(ordered, nullable={c.name for c in schema.columns if c.dtype == "Int64"}), schema)


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
    where = _to_pandas(stamped[rows].select("file", "line_no", "ts", "t_s", "rank"))
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


def _to_pandas(table: pl.DataFrame, nullable: Container[str] = ()) -> pd.DataFrame:
    """Convert without passing whole numbers through floats and without copying twice."""
    columns: dict[str, Any] = {}
    for column in table.iter_columns():
        if column.name in nullable:
            numbers = _filled(column.cast(pl.Int64), 0)
            columns[column.name] = pd.arrays.IntegerArray(numbers, _is_missing(column))
        elif column.dtype == pl.Boolean:
            columns[column.name] = pd.arrays.BooleanArray(_filled(column, False), _is_missing(column))
        elif column.dtype == pl.String:
            columns[column.name] = pd.Series(column.to_arrow(), dtype="str")
        else:
            columns[column.name] = column.to_pandas()
    return pd.DataFrame(columns, copy=False)


def _filled(column: pl.Series, value: int | bool) -> np.ndarray:
    """Return the values as an array of one's own, missing ones replaced."""
    if column.null_count() == len(column):
        return np.full(len(column), value)
    return column.fill_null(value).to_numpy(writable=True)


def _is_missing(column: pl.Series) -> np.ndarray:
    """Return which values are missing."""
    if column.null_count() in (0, len(column)):
        return np.full(len(column), column.null_count() > 0)
    return column.is_null().to_numpy(writable=True)
