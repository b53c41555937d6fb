"""What the statistic lines of one log look like: learnt from some of them, applied to all that are alike (`rapid`)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from ctypes import CDLL
from dataclasses import dataclass, field

import numpy as np
import polars as pl

from helpers.ingest import native
from helpers.ingest.dialect import Family
from helpers.ingest.extract import RecentLayouts, extract
from helpers.ingest.heads import Heads
from helpers.ingest.lines import Chunk
from helpers.ingest.rapid import Block, Reader
from helpers.ingest.wrappers import COLOUR_RESET

_MIN_TO_LEARN = 4000
"""Lines below which reading them all takes no longer than learning from some."""

_MIN_TO_READ = 50
_N_LEARNT_FROM = 600
"""Lines that are read to learn from: enough for each rank of a large server to be among them, 20 ms to read."""

_MIN_SHARE = 0.5
"""Share of lines left that makes it worth to learn once more."""

_MAX_FAILURES = 3
"""Chunks with more lines left than read, until no further one is tried: each line has its own prefix."""


@dataclass
class Habits:
    """What is known of one log, shared by its chunks; rows read do not depend on it, only the time they take.

    Attributes
    ----------
    families : sequence of Family
        In the order in which they claim a line.
    quoting, other : sequence of str
        As `extract` takes them.
    recent : dict
        Layouts that lines of each family had.
    """

    families: Sequence[Family]
    quoting: Sequence[str]
    other: Sequence[str]
    recent: RecentLayouts = field(default_factory=dict)
    _heads: Heads = field(default_factory=Heads)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _reader: Reader | None = None
    _n_seen: int = 0
    _n_failures: int = 0

    def read(
        self, chunk: Chunk, rows: np.ndarray, take: Callable[[np.ndarray], pl.DataFrame]
    ) -> tuple[Block | None, np.ndarray]:
        """Read the lines that are alike.

        Parameters
        ----------
        chunk : Chunk
            As stored.
        rows : array of int
            Lines that name a statistic, in their order.
        take : callable
            Gives ``line_no`` and ``text`` of some lines.

        Returns
        -------
        records : Block or None
            None if none was read here.
        left : array of int
            Lines that must be read as text.
        """
        has_habits = bool(self._heads.known)
        self._n_seen += len(rows)
        is_worth_it = len(rows) >= _MIN_TO_READ and (has_habits or self._n_seen >= _MIN_TO_LEARN)
        library = native.library()
        if not is_worth_it or self._n_failures >= _MAX_FAILURES or library is None:
            return None, rows
        if not has_habits:
            with self._lock:  # the chunks after the first wait for what it learns
                if not self._heads.known:
                    self._learn(library, rows, take)
        found, left = self._apply(library, chunk, rows)
        if has_habits and len(left) > max(_MIN_TO_LEARN, _MIN_SHARE * len(rows)):
            self._learn(library, left, take)
            found, left = self._apply(library, chunk, rows)
        self._n_failures += int(len(left) > (0 if found is None else len(found)))
        return found, left

    def _apply(
        self, library: CDLL, chunk: Chunk, rows: np.ndarray
    ) -> tuple[Block | None, np.ndarray]:
        reader = self._reader
        if reader is None or not reader.is_of(self._heads, self.recent):
            reader = self._reader = Reader(library, self._heads, self.recent, self.families)
        return reader.read(chunk, rows)

    def _learn(self, library: CDLL, rows: np.ndarray, take: Callable[[np.ndarray], pl.DataFrame]) -> None:
        """Read some lines as text and keep how they look; the records are read again with all others."""
        if not len(rows):
            return
        some = rows[np.unique(np.linspace(0, len(rows) - 1, _N_LEARNT_FROM).astype(np.int64))]
        lines = take(some)
        is_coloured = lines["text"].str.contains(COLOUR_RESET)
        lines = lines.filter(~is_coloured) if is_coloured.any() else lines  # read without its colours
        records = extract(self.families, lines, self.recent, self.quoting, self.other)
        unusual = set(records.unusual["line_no"])
        columns = ["line_no", "part", "prefix", "text", "engine", "kind"]
        places: dict[tuple[str, str], list[int]] = {}
        for place, family in enumerate(self.families):
            places.setdefault((family.engine, family.kind), []).append(place)
        prefixes = []
        for line_no, part, prefix, text, *names in records.samples[columns].iter_rows():
            if part or line_no in unusual:  # what stands before it may say more
                continue
            found = [place for place in places[names[0], names[1]]
                     if text.startswith(self.families[place].literal, len(prefix))]
            if found and text.startswith(prefix):
                prefixes.append((prefix, self.families[found[0]].literal, found[0]))
        self._heads.learn(library, prefixes)
