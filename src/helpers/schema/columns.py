"""What a table is: named columns with dtype, unit and meaning, and the one check that every stage calls on entry."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from helpers.errors import SchemaError


@dataclass(frozen=True)
class Column:
    """One column: name, pandas dtype, unit ("" = count, label or flag), meaning, may it be missing."""

    name: str
    dtype: str
    unit: str
    meaning: str
    nullable: bool = False


@dataclass(frozen=True)
class Schema:
    """A named, ordered set of columns."""

    name: str
    purpose: str
    columns: tuple[Column, ...]

    @property
    def names(self) -> list[str]:
        """Column names in order."""
        return [column.name for column in self.columns]

    def empty(self) -> pd.DataFrame:
        """Return a table with no rows and the right dtypes."""
        return self._without_rows.copy()

    @cached_property
    def _without_rows(self) -> pd.DataFrame:
        return pd.DataFrame({c.name: pd.Series([], dtype=c.dtype) for c in self.columns})


def whole(name: str, meaning: str, nullable: bool = False, unit: str = "") -> Column:
    """Column of whole numbers."""
    return Column(name, "Int64" if nullable else "int64", unit, meaning, nullable)


def number(name: str, unit: str, meaning: str, nullable: bool = True) -> Column:
    """Column of numbers, NaN where unknown."""
    return Column(name, "float64", unit, meaning, nullable)


def text(name: str, meaning: str, nullable: bool = False) -> Column:
    """Column of text."""
    return Column(name, "str", "", meaning, nullable)


def flag(name: str, meaning: str) -> Column:
    """Column of true, false or unknown."""
    return Column(name, "boolean", "", meaning, True)


_NEVER_MISSING = ("int64", "bool")
"""dtypes that hold a value in every row."""


def check(table: pd.DataFrame, schema: Schema) -> pd.DataFrame:
    """Check a table against its schema; return it unchanged.

    Parameters
    ----------
    table : DataFrame
        Any number of rows; columns beyond the schema are not allowed.
    schema : Schema
        One of the tables of this package.

    Returns
    -------
    DataFrame
        The same object, so that a stage can write ``samples = check(samples, SAMPLES)``.

    Raises
    ------
    SchemaError
        Names the table, the column, what was expected and what was found.
    """
    names, dtypes = schema.names, dict(zip(table.columns, table.dtypes, strict=True))
    missing = [name for name in names if name not in dtypes]
    unknown = [name for name in dtypes if name not in names]
    if len(dtypes) < len(table.columns):
        unknown += table.columns[table.columns.duplicated()].to_list()
    if missing or unknown:
        raise SchemaError(
            f"{schema.name}: missing columns {missing}, unknown columns {unknown}; "
            "build the table with schema.conform"
        )
    for column in schema.columns:
        found = str(dtypes[column.name])
        if found != column.dtype:
            raise SchemaError(f"{schema.name}.{column.name}: expected dtype {column.dtype}, found {found}")
        if column.nullable or column.dtype in _NEVER_MISSING:
            continue
        is_missing = table[column.name].array.isna()
        if is_missing.any():
            row = int(np.flatnonzero(is_missing)[0])
            raise SchemaError(f"{schema.name}.{column.name}: expected no missing value, found one in row {row}")
    return table


def kept_rows(table: pd.DataFrame, kept: pd.Series) -> pd.DataFrame:
    """Return some rows of a table, itself where they are all: of a large log a copy is most of what is held.

    Parameters
    ----------
    table : DataFrame
    kept : Series of bool
        Per row.
    """
    return table if kept.all() else table[kept]


def conform(table: pd.DataFrame, schema: Schema, *, drain: bool = False) -> pd.DataFrame:
    """Order columns, add missing nullable ones as missing, and cast to the schema's dtypes.

    Parameters
    ----------
    table : DataFrame
        Any subset of the schema's columns that holds all non-nullable ones.
    schema : Schema
        Target.
    drain : bool
        Take each column out of ``table`` as it is cast, so that no two copies of a large table are held.

    Returns
    -------
    DataFrame
        A new table with a fresh index that passes `check`.

    Raises
    ------
    SchemaError
        A non-nullable column is absent or a value does not fit its dtype.
    """
    columns = {}
    for column in schema.columns:
        if column.name in table.columns:
            values = table.pop(column.name) if drain else table[column.name]
        elif column.nullable:
            values = pd.Series([None] * len(table), index=table.index, dtype="object")
        else:
            raise SchemaError(f"{schema.name}.{column.name}: expected the column, found none")
        try:
            columns[column.name] = values.astype(column.dtype)  # type: ignore[call-overload]
        except (TypeError, ValueError) as error:
            raise SchemaError(f"{schema.name}.{column.name}: expected {column.dtype}: {error}") from error
    return check(pd.DataFrame(columns, copy=not drain).reset_index(drop=True), schema)
