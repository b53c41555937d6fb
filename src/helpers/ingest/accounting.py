"""What happened to every line of the input."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pandas as pd

if TYPE_CHECKING:
    from helpers.ingest.scan import FileScan

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
        Line feeds, plus one for a last line without. Of a file that is one JSON value: its elements.
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
        cut_lines (above the limit of memory), glued_records (lines), utf16 (files), control_codes (lines),
        split_lines and folded_lines (later parts of a line that a runtime or a terminal had split).
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


def add_up(scans: Sequence[FileScan], by_kind: Mapping[str, int], notes: Sequence[str]) -> Accounting:
    """Add up the lines of all files.

    Parameters
    ----------
    scans : sequence of FileScan
        What was found in each file.
    by_kind : mapping
        Kind -> number of records.
    notes : sequence of str
        What was skipped, dropped or doubtful.
    """
    lines, oddities, known = Counter[str](), Counter[str](), Counter[str]()
    for scan in scans:
        lines.update(scan.lines)
        known.update(scan.known)
        oddities.update(scan.oddities)
    return Accounting(
        lines_total=sum(scan.n_lines for scan in scans),
        lines={name: lines[name] for name in CLASSES},
        by_kind=dict(sorted(by_kind.items())),
        per_file={scan.path: {name: scan.lines[name] for name in CLASSES} for scan in scans},
        known=dict(sorted(((name, n) for name, n in known.items() if n), key=lambda item: (-item[1], item[0]))),
        malformed=tuple(line for scan in scans for line in scan.malformed)[:MAX_EXAMPLES],
        oddities={name: count for name, count in sorted(oddities.items()) if count},
        notes=tuple(notes),
    )
