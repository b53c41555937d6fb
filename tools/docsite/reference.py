"""docs/reference.md: every number of a scorecard, a comparison and the tables, from the code and from docs/*.csv."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from helpers.batch.columns import RUN_LEVELS, SCORECARDS
from helpers.schema import SCHEMAS, Schema

ROOT = Path(__file__).resolve().parents[2]
KEYS_FILE = ROOT / "docs" / "scorecard.csv"
COMPARISON_FILE = ROOT / "docs" / "comparison.csv"
REFERENCE = ROOT / "docs" / "reference.md"

TOGETHER = "run.facts.{fact}"
"""Below it a scorecard holds whatever is known; the name of a fact is its definition."""

NO_PATH = str.maketrans(".[]", "___")
"""Characters of a key ("15.5", a reason) that would read as a path."""

KEY_HEAD = ("key", "unit", "meaning", "formula", "computed by")

STAGES = {"SAMPLES": "ingest", "EVENTS": "ingest", "MOMENTS": "ingest", "INTERVALS": "segment", "LEVELS": "levels",
          "TELEMETRY": "evidence.telemetry", "LINKS": "evidence.links", "CLIENTS": "evidence.clients",
          "REQUESTS": "evidence.clients", "KERNELS": "evidence.profiles"}
"""Table -> part of src/helpers that makes it."""

INTRO = """# Reference: every number

What each number means, in which unit, how it is computed, and which part of `src/helpers` computes it. This page is
generated from the code, docs/scorecard.csv and docs/comparison.csv (`make dictionary`); a test fails when a scorecard
or a comparison holds a number that is not here.

Base units everywhere: s, tok, req, bytes, and shares from 0 to 1 (unit "1"). Reports and terminals show ms, GB and %
instead. Unknown is `null` in JSON and a missing value in a table, never zero. How a cause is judged:
[diagnosis](diagnosis.md). How an interval is made, and how wrong it is: [method](method.ipynb).
"""


def keys(path: Path = KEYS_FILE) -> list[dict[str, str]]:
    """Return the described keys of a scorecard, or a comparison: key, unit, meaning, formula, computed_by.

    A key is a path: ``[]`` an item of a list, ``{level}`` and other names in braces any one key.
    """
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def leaves(value: Any, path: str = "") -> Iterator[str]:
    """Yield the path of every value of a scorecard that is no object and no list; empty ones have none."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            name = str(key).translate(NO_PATH)
            yield from leaves(inner, f"{path}.{name}" if path else name)
    elif isinstance(value, list):
        for inner in value:
            yield from leaves(inner, f"{path}[]")
    else:
        yield path


def undescribed(card: Mapping[str, Any], described: Iterable[str]) -> list[str]:
    """Return the paths of a scorecard that no described key fits.

    A part that is null as a whole ("client": null) counts as described where keys below it are.
    """
    described = list(described)
    patterns = [pattern(key) for key in described]
    stems = {key[:i] for key in described for i, character in enumerate(key) if character in ".["}
    return sorted({path for path in leaves(card)
                   if path not in stems and not any(pattern.fullmatch(path) for pattern in patterns)})


def pattern(key: str) -> re.Pattern[str]:
    """Return what the paths that a described key stands for look like."""
    if key == TOGETHER:
        return re.compile(r"run\.facts\..+")
    return re.compile(re.sub(r"\\\{\w+\\\}", r"[^.\\[\\]]+", re.escape(key)))


def text(described: Iterable[Mapping[str, str]] | None = None) -> str:
    """Return docs/reference.md as it should be."""
    described = keys() if described is None else list(described)
    parts = [INTRO, "## scorecard.json", "",
             "`{level}` and other names in braces stand for a key, `[]` for the items of a list.", ""]
    sections: dict[str, list[Mapping[str, str]]] = {}
    for row in described:
        top = re.split(r"[.\[]", row["key"])[0]
        sections.setdefault("versions" if top.endswith("_version") else top, []).append(row)
    for name, rows in sections.items():
        parts += [f"### {name}", "", *_table(KEY_HEAD, map(_key_row, rows)), ""]
    parts += ["## comparison.json", "", "What `rooflog compare --json` prints and notebook 08 keeps in its run folder.",
              "", *_table(KEY_HEAD, map(_key_row, keys(COMPARISON_FILE))), ""]
    parts += ["## Tables of the stages", "", "From a log to its levels, and what other files hold.", ""]
    for schema in SCHEMAS:
        parts += _of_schema(schema, f"computed by {STAGES[schema.name]}")
    parts += ["## Tables of a batch", "", "What `rooflog batch` writes beside its page.", ""]
    parts += _of_schema(SCORECARDS, "scorecards.parquet and .csv") + _of_schema(RUN_LEVELS, "levels.parquet")
    return "\n".join(parts).rstrip() + "\n"


def _key_row(row: Mapping[str, str]) -> tuple[str, ...]:
    return (f"`{row['key']}`", row["unit"], row["meaning"], row["formula"], row["computed_by"])


def _of_schema(schema: Schema, what: str) -> list[str]:
    rows = ((f"`{c.name}`", c.unit, c.dtype, c.meaning + (" (may be missing)" if c.nullable else ""))
            for c in schema.columns)
    purpose = f"{schema.purpose[0].upper()}{schema.purpose[1:].rstrip('.')}; {what}."
    return [f"### {schema.name}", "", purpose, "", *_table(("column", "unit", "type", "meaning"), rows), ""]


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    head = list(head)
    return ["| " + " | ".join(line) + " |" for line in (
        head, ["---"] * len(head), *([cell.replace("|", "/") for cell in row] for row in rows))]
