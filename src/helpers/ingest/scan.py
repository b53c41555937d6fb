"""One file, chunk by chunk, several chunks at once."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

import polars as pl

from helpers.ingest.chunk_lines import names_record
from helpers.ingest.chunk_scan import ChunkScan, new_habits, scan_chunk
from helpers.ingest.distinct import distinct
from helpers.ingest.lines import CHUNK_BYTES, Chunk, FileReader
from helpers.ingest.rapid import to_tables
from helpers.ingest.stamps import FULL, NO_DATE, NO_YEAR, WRAPPER
from helpers.ingest.threads import n_beside, pool_of

MAX_RANKS = 1024
"""More rank tags than any server prints."""


_MAX_HELD = 100_000
"""Records held as they were read; a table is made of them then, so that not all are held twice in the end."""

_N_WAITING = 1
"""Chunks read before there is a worker for them: something to hash while one learns. Each takes memory."""


@dataclass
class FileScan(ChunkScan):
    """What was found in a whole file."""

    path: str = ""
    samples: list[pl.DataFrame] = field(default_factory=list)
    n_lines: int = 0
    n_bytes: int = 0
    digest: Callable[[], str] = str
    """Gives the SHA-256 of the bytes as stored; it may still be worked on."""
    notes: list[str] = field(default_factory=list)
    """Doubts about the file as a whole, in words."""

    def add(self, later: ChunkScan) -> None:
        """Append what the lines after these hold."""
        super().add(later)
        if sum(map(len, self.records)) > _MAX_HELD:
            self.settle()

    def settle(self) -> None:
        """Make tables of the records read so far."""
        self.samples += to_tables(self.records)  # in a worker it takes longer: its memory is new each time
        self.records = []


def scan_file(
    path: str, report: Callable[[int], None] | None = None, chunk_bytes: int = CHUNK_BYTES
) -> FileScan:
    """Read one file to the end.

    Parameters
    ----------
    path : str
        A file or '-'.
    report : callable, optional
        Called with the bytes read so far.
    chunk_bytes : int
        Text held at once per worker; the result does not depend on it.
    """
    reader = FileReader(path, chunk_bytes, names_record)
    scan = FileScan(path=path)
    habits = new_habits()
    pending: deque[tuple[Chunk, Future[ChunkScan]]] = deque()
    n_workers = n_beside()
    n_waiting = n_workers + _N_WAITING if n_workers else 0
    with pool_of(n_workers) as pool:

        def add_first() -> None:
            chunk, future = pending.popleft()
            scan.add(future.result())
            chunk.give_back()

        for chunk in reader.chunks(report):
            pending.append((chunk, pool.submit(scan_chunk, path, chunk, habits)))
            if len(pending) > n_waiting:
                add_first()
        while pending:
            add_first()
    scan.settle()
    scan.oddities.update(reader.oddities)
    scan.n_lines, scan.n_bytes, scan.digest = reader.n_lines, reader.n_bytes, reader.digest
    scan.notes += [*reader.notes, *_stamp_doubts(scan)]
    return scan


SAME_CLOCK_S = 1.5
"""Stamps of wrapper and engine that lie closer are of one clock: both are often whole seconds [s]."""


def _stamp_doubts(scan: FileScan) -> list[str]:
    """Say which stamps are used where a wrapper's stand beside the engine's, or alone."""
    if scan.gaps_s:
        least, most = min(scan.gaps_s), max(scan.gaps_s)
        if max(abs(least), abs(most)) < SAME_CLOCK_S:
            return []
        by = f"{least:+.0f} s" if most - least < 1.5 else f"{least:+.0f} to {most:+.0f} s"
        return [f"{scan.path}: a wrapper's time stamps stand beside the engine's own, {by} from them (another zone, or "
                "buffered); the engine's own are used"]
    kinds = {kind for frame in scan.samples for kind in distinct(frame, "stamp_kind")}
    if WRAPPER in kinds and not kinds & {FULL, NO_YEAR, NO_DATE}:
        return [f"{scan.path}: the records carry no time stamp of their own; the wrapper's are used as printed (often "
                "UTC, at times buffered): only their differences count"]
    return []
