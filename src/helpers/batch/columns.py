"""The columns of a batch's tables, with their units and meanings."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import pandas as pd
import pyarrow as pa

from helpers import scorecard
from helpers.schema import Column, Schema, conform
from helpers.schema.columns import flag, number, text, whole


def _interval(name: str, unit: str, meaning: str) -> list[Column]:
    return [number(name, unit, meaning), number(f"{name}_lo", unit, f"lower end of {name}"),
            number(f"{name}_hi", unit, f"upper end of {name}")]


SCORECARDS = Schema("scorecards", "one row per run", (
    text("dump", "what was analysed"),
    text("folder", "run folder, relative to the table"),
    text("status", "good, cannot_tell, check_failed or failed"),
    whole("exit_code", "0, 2, 1 or 3 of that status", nullable=True),
    text("message", "what failed, in one line", nullable=True),
    text("key", "hash of the dump's contents, notebook, parameters, facts and versions", nullable=True),
    text("notebook", "notebook that was executed", nullable=True),
    Column("started_utc", "datetime64[us, UTC]", "", "when the run began", True),
    number("wall_s", "s", "how long it took"),
    text("rooflog_version", "version that ran it", nullable=True),
    whole("schema_version", "of the scorecard", nullable=True),
    whole("method_version", "of the method", nullable=True),
    text("engine", "engine that wrote the log", nullable=True),
    text("engine_version", "its version", nullable=True),
    text("model", "model served", nullable=True),
    text("hardware", "accelerator", nullable=True),
    *(whole(name, f"{words} parallel size", nullable=True) for name, words in
      (("tp", "tensor"), ("dp", "data"), ("pp", "pipeline"), ("ep", "expert"))),
    whole("lines_total", "lines of the log", nullable=True),
    whole("lines_malformed", "lines of a known kind that could not be read", nullable=True),
    whole("n_levels", "levels behind the law, or with a step time where there is no law", nullable=True),
    whole("n_clean", "clean intervals of the log", nullable=True),
    text("law", "selected law of step time over running requests; null where none is claimed", nullable=True),
    *_interval("intercept_s", "s", "step time at zero requests by the straight line, whatever law was selected"),
    *_interval("slope_s_per_req", "s/req", "step time per running request by the straight line"),
    *_interval("asymptote_tok_per_s", "tok/s", "decode rate that the selected law cannot exceed"),
    number("half_load_req", "req", "running requests at half of that rate"),
    number("loo_error_frac", "1", "median error of the law at an inner level that it was not shown"),
    text("refused", "why no law is claimed", nullable=True),
    number("top_running_req", "req", "highest of these levels"),
    *_interval("top_step_s", "s", "step time there"),
    number("top_decode_tok_per_s", "tok/s", "decode rate there"),
    number("top_accept_len", "tok", "tokens per round and request there, under speculation"),
    number("top_step_over_target", "1", "step time there over the target of the roofline"),
    text("cause", "first cause of the diagnosis", nullable=True),
    text("cause_status", "supported, compatible, weak or refuted", nullable=True),
    *(number(name, "s", f"time in the phase {name.removesuffix('_s')}") for name in scorecard.PHASES),
    whole("n_warnings", "doubts about the law and the input", nullable=True),
    text("log_sha256", "hashes of the log files, separated by spaces", nullable=True),
))
"""The table ``scorecards.parquet`` and ``scorecards.csv``."""

RUN_LEVELS = Schema("levels", "one row per level of a run", (
    text("dump", "as in scorecards"),
    text("folder", "as in scorecards"),
    text("key", "as in scorecards", nullable=True),
    whole("server_life", "start of the server", nullable=True),
    text("rank_group", "ranks of the level", nullable=True),
    number("running_req", "req", "running requests"),
    whole("n_clean", "clean intervals", nullable=True),
    number("clean_s", "s", "their time"),
    *_interval("step_s", "s", "step time"),
    number("decode_tok_per_s", "tok/s", "decode rate"),
    number("accept_len", "tok", "tokens per round and request, under speculation"),
    number("context_tok", "tok", "mean context"),
    flag("is_fitted", "whether the law rests on it"),
))
"""The table ``levels.parquet``."""

LEVEL_NAMES = [name for name in RUN_LEVELS.names if name not in ("dump", "folder", "key")]


def require_types(rows: Iterable[Mapping[str, Any]], schema: Schema) -> None:
    """Raise TypeError or ValueError where a value does not fit its column."""
    wanted: dict[str, Any] = {"Int64": int, "float64": (int, float), "boolean": bool}
    for row in rows:
        for column in schema.columns:
            value = row.get(column.name)
            if value is None and column.nullable:
                continue
            if column.dtype.startswith("datetime"):
                datetime.fromisoformat(value)  # type: ignore[arg-type]
            elif value is None or not isinstance(value, wanted.get(column.dtype, object)):
                raise TypeError(f"{column.name}: expected {column.dtype}, found {value!r}")


def as_frame(rows: Sequence[Mapping[str, Any]], schema: Schema) -> pd.DataFrame:
    """Build a table of a schema; None becomes the missing value of each column's type.

    Raises
    ------
    SchemaError
        A value does not fit its column.
    """
    columns: dict[str, Any] = {}
    for column in schema.columns:
        values = [row.get(column.name) for row in rows]
        if column.dtype.startswith("datetime"):
            columns[column.name] = pd.to_datetime(pd.Series(values, dtype="object"), utc=True, format="ISO8601")
        elif column.dtype == "str":
            columns[column.name] = pd.Series([None if value is None else str(value) for value in values], dtype="str")
        else:
            plain = [None if isinstance(value, float) and not math.isfinite(value) else value for value in values]
            columns[column.name] = pd.Series(plain, dtype="object")
    return conform(pd.DataFrame(columns, columns=schema.names), schema)


def as_arrow(frame: pd.DataFrame, schema: Schema) -> pa.Table:
    """Return the table with the unit and the meaning of each column in its field."""
    table = pa.Table.from_pandas(frame, preserve_index=False)
    for position, column in enumerate(schema.columns):
        field = table.schema.field(position).with_metadata({"unit": column.unit, "meaning": column.meaning})
        table = table.set_column(position, field, table.column(position))
    return table
