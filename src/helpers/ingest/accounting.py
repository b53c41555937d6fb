"""What happened to every line of the input."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

CLASSES = ("statistic", "event", "other_known", "other", "malformed")
"""Every line is exactly one of these; a line that names a statistic but cannot be read whole is malformed."""

MAX_EXAMPLES = 20
"""Malformed lines kept with number, text and reason; all are counted."""


@dataclass(frozen=True)
class MalformedLine:
    """A line that names a statistic but cannot be read whole."""

    file: str
    line_no: int
    text: str
    reason: str


@dataclass(frozen=True)
class Accounting:
    """Where every line of the input went.

    Attributes
    ----------
    lines_total : int
        Line feeds, plus one for a last line without.
    lines : mapping
        CLASSES -> number of lines; they add up to ``lines_total``, always.
    by_kind : mapping
        SAMPLES kind -> number of records (a line can hold two).
    per_file : mapping
        File -> its ``lines``.
    known : mapping
        What the other_known lines were.
    malformed : tuple of MalformedLine
        The first ones.
    oddities : mapping
        nul_bytes, crlf (lines), ansi (lines), invalid_utf8 (bytes or runs of them), truncated_last_line, long_lines,
        cut_lines (above the limit of memory), glued_records (lines), utf16 (files).
    notes : tuple of str
        What was skipped, dropped or doubtful, in words.
    """

    lines_total: int
    lines: Mapping[str, int]
    by_kind: Mapping[str, int]
    per_file: Mapping[str, Mapping[str, int]]
    known: Mapping[str, int]
    malformed: tuple[MalformedLine, ...]
    oddities: Mapping[str, int]
    notes: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return everything as JSON-safe containers."""
        return {
            "lines_total": self.lines_total,
            "lines": dict(self.lines),
            "by_kind": dict(self.by_kind),
            "per_file": {file: dict(lines) for file, lines in self.per_file.items()},
            "known": dict(self.known),
            "malformed": [vars(line) for line in self.malformed],
            "oddities": dict(self.oddities),
            "notes": list(self.notes),
        }

    def to_frame(self) -> pd.DataFrame:
        """Return one row per file and one for all: lines by class, and their total."""
        rows = {**{file: dict(lines) for file, lines in self.per_file.items()}, "all": dict(self.lines)}
        table = pd.DataFrame.from_dict(rows, orient="index", columns=list(CLASSES)).rename_axis("file")
        return table.assign(lines_total=table.sum(axis=1))
