"""Print every benchmark as one table, each row a ratio to a reference that was measured in the same run.

``make bench`` takes minutes; ``make bench SCALE=full WRITE=docs/performance.md`` takes an hour or two, measures how
cost grows as well, and puts both into the document. Exit code 1 if a bar is missed.
"""

from __future__ import annotations

import argparse
import importlib
import math
import platform
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from data_readme import with_block
from helpers import __version__
from helpers.batch.local import n_cores

MODULES = ("ingest", "whole_file", "papermill", "batch")
"""Modules of this package with ``rows(scale)``, in the order of the table."""

COLUMNS = ("what", "size", "ours", "reference", "its own", "ratio", "bar", "")
"""Times in seconds, or in the unit that the row names in brackets."""

LIBRARIES = ("numpy", "pandas", "polars", "pyarrow", "papermill")

MAKER = "make bench"
"""Named in the markers of the generated blocks."""

Row = Mapping[str, Any]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and write where asked; return the exit code."""
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("scale", nargs="?", default="short", choices=["short", "full"])
    parser.add_argument("--only", action="append", choices=MODULES, help="one part only; may be repeated")
    parser.add_argument("--growth", action="store_true", help="also how cost grows, as at full scale")
    parser.add_argument("--write", type=Path, metavar="FILE", help="Markdown whose generated blocks are replaced")
    chosen = parser.parse_args(arguments)
    found: list[Row] = []
    for name in chosen.only or MODULES:
        print(f"measuring {name} ...", file=sys.stderr, flush=True)
        found += importlib.import_module(f"bench.{name}").rows(chosen.scale)
    table = as_markdown(COLUMNS, [cells(row) for row in found])
    said = f"{table}\n\n{conditions(chosen.scale)}"
    print(said)
    growth = ""
    if chosen.growth or chosen.scale == "full":
        print("measuring how cost grows ...", file=sys.stderr, flush=True)
        measured = importlib.import_module("bench.growth").tables(chosen.scale)
        growth = "\n\n".join(f"{title}:\n\n{as_markdown(list(rows[0]), [list(row.values()) for row in rows])}"
                             for title, rows in measured.items())
        print(f"\n{growth}")
    if chosen.write:
        text = with_block(chosen.write.read_text(encoding="utf-8"), "table", said, MAKER)
        text = with_block(text, "growth", growth, MAKER) if growth else text
        chosen.write.write_text(text, encoding="utf-8")
    missed = [row for row in found if not row["ok"]]
    if missed:
        print(f"{len(missed)} of {len(found)} bars missed", file=sys.stderr)
    return 1 if missed else 0


def cells(row: Row) -> list[str]:
    """Return a row of the table as texts."""
    return [row["what"], row["size"], figures(row["ours_s"]), row["reference"], figures(row["reference_s"]),
            figures(row["ratio"]), row["bar"], "ok" if row["ok"] else "MISSED"]


def figures(value: float) -> str:
    """Write three figures without an exponent; unknown is empty."""
    if math.isnan(value):
        return ""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) >= 0.001 or not value else f"{value:.4f}"


def as_markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table whose columns are as wide as their contents, to be read in a terminal too."""
    widths = [max(3, *(len(line[i]) for line in (columns, *rows))) for i in range(len(columns))]
    body = [[text.replace("|", "/").ljust(width) for text, width in zip(line, widths, strict=True)]
            for line in (columns, ["-" * width for width in widths], *rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in body)


def conditions(scale: str) -> str:
    """Say under what the numbers were taken."""
    libraries = ", ".join(f"{name} {version(name)}" for name in LIBRARIES)
    return (f"Times in seconds unless a row names another unit. rooflog {__version__}, Python "
            f"{platform.python_version()}, {libraries}; {n_cores()} cores; scale {scale}; "
            f"{datetime.now(UTC):%Y-%m-%d}.")


if __name__ == "__main__":
    raise SystemExit(main())
