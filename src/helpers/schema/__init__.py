"""The tables that flow between stages: names, dtypes, units, meanings, and the one check.

Data flow: log -> SAMPLES, EVENTS -> INTERVALS -> LEVELS -> law records -> scorecard; what else a machine recorded
(`evidence`) stands beside them. Every stage calls `check` on entry. Doubt is data (``warnings``, ``refused``, missing
values); impossibility is one of the exceptions of `errors`, which are at hand here too.
"""

from helpers.errors import LogFormatError, NotEnoughData, RooflogError, SchemaError, printable
from helpers.schema.columns import Column, Schema, check, conform, kept_rows
from helpers.schema.evidence import CLIENTS, KERNELS, LINKS, REQUESTS, ROLES, TELEMETRY
from helpers.schema.laws import Fits, LawFit, Parameter
from helpers.schema.log import (
    COUNTED_BY_STAMPS,
    EVENT_KINDS,
    EVENTS,
    INTERVALS,
    KINDS,
    LABELS,
    LEVELS,
    MOMENTS,
    SAMPLES,
    SPAN_KINDS,
    WINDOW_KINDS,
    is_window,
)

__all__ = [
    "CLIENTS", "COUNTED_BY_STAMPS", "EVENTS", "EVENT_KINDS", "INTERVALS", "KERNELS", "KINDS", "LABELS", "LEVELS",
    "LINKS", "METHOD_VERSION", "MOMENTS", "REQUESTS", "ROLES", "SAMPLES", "SCHEMAS", "SCHEMA_VERSION", "SPAN_KINDS",
    "TELEMETRY", "WINDOW_KINDS", "Column", "Fits", "LawFit", "LogFormatError", "NotEnoughData", "Parameter",
    "RooflogError", "Schema", "SchemaError", "check", "conform", "data_dictionary", "is_window", "kept_rows",
    "printable",
]

SCHEMA_VERSION = 1
"""Version of the tables and of scorecard.json; raised when a column or key changes its meaning."""

METHOD_VERSION = 1
"""Version of the method (clean rule, level estimate, laws); raised when the same log gives other numbers."""

SCHEMAS = (SAMPLES, EVENTS, INTERVALS, LEVELS, MOMENTS, TELEMETRY, LINKS, CLIENTS, REQUESTS, KERNELS)


def data_dictionary() -> str:
    """Return the column dictionary of all tables as Markdown (the block in data/README.md)."""
    lines = []
    for schema in SCHEMAS:
        lines += [f"### {schema.name}", "", f"{schema.purpose[0].upper()}{schema.purpose[1:]}.", ""]
        lines += ["| column | dtype | unit | may be missing | meaning |", "|---|---|---|---|---|"]
        for c in schema.columns:
            missing = "yes" if c.nullable else "no"
            lines.append(f"| {c.name} | {c.dtype} | {c.unit} | {missing} | {c.meaning.replace('|', '/')} |")
        lines.append("")
    return "\n".join(lines)
