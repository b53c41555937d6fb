"""The lines of a chunk, and what is asked of every one of them before any is read: a few bits (`marks`)."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable

import numpy as np
import polars as pl

from helpers.ingest.dialect import any_of
from helpers.ingest.engines import DIALECTS
from helpers.ingest.events import ARGS_LITERALS, RULES
from helpers.ingest.known import KNOWN, OPAQUE
from helpers.ingest.lines import Chunk, split_lines, texts_of
from helpers.ingest.marks import Marks
from helpers.ingest.wrappers import BEGINNINGS, CRI_PARTS, DOCKER

FAMILIES = tuple(
    sorted(
        (family for dialect in DIALECTS for family in dialect.families),
        key=lambda family: family.literal.startswith("#"),
    )
)
"""In the order in which they claim a line; one that is known by a mere key comes last."""

OPAQUE_LITERALS = [literal for literals in OPAQUE.values() for literal in literals]
QUOTING = [*ARGS_LITERALS, *OPAQUE_LITERALS]
EVENT = list(dict.fromkeys(rule.literal for _, rule in RULES))
_KNOWN = [literal for literals in KNOWN.values() for literal in literals]

_OWN_LITERALS = [family.literal for family in FAMILIES if not family.literal.startswith("#")]
NAMES_OWN = any_of(_OWN_LITERALS)
names_record = re.compile("|".join(map(re.escape, _OWN_LITERALS)).encode())
"""A mere key stands in the later rows of a folded record too."""
_ACCESS = KNOWN["access line"]

NOTHING = 0
STATISTIC, ACCESS, RARE, ANEW, IN_DOCKER, IN_CRI, GONE = (2**bit for bit in range(7))
"""Bits; a line that is gone is part of another."""

_FEW_ROWS = 2000
"""Rows up to which a table of them is made faster than one of all lines."""

MARKS = Marks(
    {
        STATISTIC: tuple(family.literal for family in FAMILIES),
        ACCESS: _ACCESS,
        RARE: tuple(dict.fromkeys(name for name in (*QUOTING, *EVENT, *_KNOWN) if name not in _ACCESS)),
        IN_CRI: CRI_PARTS,
    },
    {ANEW: BEGINNINGS, IN_DOCKER: (DOCKER,)},
)
"""What is asked of every line: does it name a statistic, is it an access line, may it be an event or another known
line, or one that a CRI runtime split, does it surely begin anew, or in docker's JSON."""

NO_LINES = pl.DataFrame(schema={"line_no": pl.Int64, "text": pl.String})


@functools.lru_cache(maxsize=64)
def _marks_with(has: int, lacks: int) -> np.ndarray:
    """Return the numbers for marks that have one and lack some."""
    return np.flatnonzero((np.arange(256) & (has | lacks)) == has)


class ChunkLines:
    """The lines of a chunk by their place: most are only counted, so a table is made of few.

    Attributes
    ----------
    marks : array of uint8
        Per line, of `MARKS`.
    is_stored : bool
        Every line is one as stored in the chunk; its text may lack some codes.
    """

    def __init__(
        self, chunk: Chunk, marks: np.ndarray, table: pl.DataFrame | None = None, *, is_stored: bool = True
    ) -> None:
        self._chunk, self._table = chunk, table
        self._counts: np.ndarray | None = None
        self.is_stored = is_stored
        self.marks = marks

    @functools.cached_property
    def numbers(self) -> np.ndarray:
        """Numbers of the lines in their file."""
        return self.table()["line_no"].to_numpy()

    def table(self) -> pl.DataFrame:
        """Return all lines as ``line_no`` and ``text``."""
        if self._table is None:
            self._table = split_lines(self._chunk)
        return self._table

    def take(self, rows: np.ndarray) -> pl.DataFrame:
        """Return some lines as ``line_no`` and ``text``."""
        if not len(rows):
            return NO_LINES
        if self._table is None and len(rows) < _FEW_ROWS:
            numbers = rows + self._chunk.first_line_no
            return pl.DataFrame({"line_no": numbers, "text": pl.Series(self.texts(rows), dtype=pl.String)})
        return self.table()[rows]

    def texts(self, rows: np.ndarray) -> list[str]:
        """Return the text of some lines."""
        return self._table["text"][rows].to_list() if self._table is not None else texts_of(self._chunk, rows)

    def count(self, has: int, lacks: int = NOTHING) -> int:
        """Return how many lines have one mark and lack some."""
        if self._counts is None:
            self._counts = MARKS.count(self.marks)
        return int(self._counts[_marks_with(has, lacks)].sum())

    def rows(self, has: int, lacks: int = NOTHING, n_wanted: int | None = None) -> np.ndarray:
        """Return the lines that have one mark and lack some; only the first of them where so many are wanted."""
        n_left = self.count(has, lacks) if n_wanted is None else min(n_wanted, self.count(has, lacks))
        n_looked_at = 0 if not n_left else len(self.marks) if n_wanted is None else _FEW_ROWS
        rows = np.flatnonzero((self.marks[:n_looked_at] & (has | lacks)) == has)
        if len(rows) < n_left:
            rows = np.flatnonzero((self.marks & (has | lacks)) == has)
        return rows[:n_left]

    def mark(self, numbers: Iterable[int], *, gone: bool = False) -> None:
        """Mark lines, given by their numbers, as statistics, or as gone."""
        at = np.isin(self.numbers, list(numbers))
        self.marks[at] = GONE if gone else self.marks[at] | STATISTIC
        self._counts = None
