"""One file, chunk by chunk: every line gets its class, statistic lines become records, events are read."""

from __future__ import annotations

import os
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import polars as pl

from helpers.ingest.accounting import CLASSES, MAX_EXAMPLES, MalformedLine
from helpers.ingest.dialect import any_of
from helpers.ingest.engines import DIALECTS
from helpers.ingest.events import ARGS_LITERALS, INTERNAL_KINDS, RULES, Event, read_event
from helpers.ingest.extract import MEASURES, RecentLayouts, Records, extract
from helpers.ingest.known import KNOWN, OPAQUE
from helpers.ingest.lines import CHUNK_BYTES, LONG_LINE_BYTES, Chunk, FileReader, split_lines
from helpers.ingest.stamps import read_prefixes

FAMILIES = tuple(
    sorted(
        (family for dialect in DIALECTS for family in dialect.families),
        key=lambda family: family.literal.startswith("#"),
    )
)
"""In the order in which they claim a line; one that is known by a mere key comes last."""

_OPAQUE = [literal for literals in OPAQUE.values() for literal in literals]
_QUOTING = [*ARGS_LITERALS, *_OPAQUE]
_EVENT = list(dict.fromkeys(rule.literal for _, rule in RULES))
_KNOWN = [literal for literals in KNOWN.values() for literal in literals]

_NAMES_STATISTIC = any_of(family.literal for family in FAMILIES)
_NAMES_EVENT = any_of(_EVENT)
_IS_ACCESS = any_of(KNOWN["access line"])
_IS_ARGS = any_of(ARGS_LITERALS)
_IS_OPAQUE = any_of(_OPAQUE)
_IS_RARE = any_of(dict.fromkeys((*_QUOTING, *_EVENT, *_KNOWN)))

_COLOUR = r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b[()][A-Z0-9]|\x1b[=>]"
_COLOUR_WITHOUT_ESCAPE = r"\[[0-9]{1,3}(?:;[0-9]{1,3})*m"
_COLOUR_RESET = r"\[0(?:;0)?m"
"""Logs that lost the escape bytes of their colours when they were saved still end each with this."""

# An uncut record ends in a count, two decimals, a unit, a flag or its wrapper's quote.
_WHOLE_END = (
    r"(?:#[\w-]+: [0-9]+|\.[0-9]{2,}|%|reqs|tokens|tokens/s|ms|\(dummy\)|True|False|nan|[\"}]|"
    r"completed waiting|/GPU|/device|tree_cache_hit_rate.*)[ ,.\r]*$"
)
_N_WORKERS = min(4, os.cpu_count() or 1)
"""Chunks scanned at once; each holds several times its text, so memory bounds the number."""

_MAX_SHOWN = 3
"""Lines that could not be placed, kept for the error message of a log without statistics."""

SAMPLE_COLUMNS = ["line_no", "part", "engine", "kind", *MEASURES, "extra", "stamp", "stamp_kind", "rank"]


@dataclass
class ChunkScan:
    """What was found in some lines; the lines of its classes add up to their number."""

    samples: list[pl.DataFrame] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    lines: Counter[str] = field(default_factory=Counter)
    known: Counter[str] = field(default_factory=Counter)
    oddities: Counter[str] = field(default_factory=Counter)
    malformed: list[MalformedLine] = field(default_factory=list)
    unplaced: list[str] = field(default_factory=list)

    def add(self, later: ChunkScan) -> None:
        """Append what the lines after these hold."""
        self.samples += later.samples
        self.events += later.events
        self.lines.update(later.lines)
        self.known.update(later.known)
        self.oddities.update(later.oddities)
        self.malformed += later.malformed[: MAX_EXAMPLES - len(self.malformed)]
        self.unplaced += later.unplaced[: _MAX_SHOWN - len(self.unplaced)]


@dataclass
class FileScan(ChunkScan):
    """What was found in a whole file."""

    path: str = ""
    n_lines: int = 0
    n_bytes: int = 0
    sha256: str = ""


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
    reader = FileReader(path, chunk_bytes)
    scan = FileScan(path=path)
    recent: RecentLayouts = {}
    pending: deque[Future[ChunkScan]] = deque()
    with ThreadPoolExecutor(_N_WORKERS) as pool:
        for chunk in reader.chunks(report):
            pending.append(pool.submit(_scan_chunk, path, chunk, recent))
            if len(pending) > _N_WORKERS:
                scan.add(pending.popleft().result())
        for future in pending:
            scan.add(future.result())
    scan.oddities.update(reader.oddities)
    scan.n_lines, scan.n_bytes, scan.sha256 = reader.n_lines, reader.n_bytes, reader.sha256
    return scan


def _scan_chunk(path: str, chunk: Chunk, recent: RecentLayouts) -> ChunkScan:
    """Place every line of a chunk: statistics first, then the many access lines, then what is rare."""
    scan = ChunkScan()
    lines = split_lines(chunk)
    if b"\x1b" in chunk.text:
        lines = _strip_colours(lines, "\x1b", _COLOUR, scan.oddities)
    scan.oddities["long_lines"] += int((np.diff(chunk.offsets) > LONG_LINE_BYTES).sum())
    masks = lines.select(
        statistic=pl.col("text").str.contains(_NAMES_STATISTIC), access=pl.col("text").str.contains(_IS_ACCESS)
    )
    candidates = lines.filter(masks["statistic"])
    candidates = _strip_colours(candidates, _COLOUR_RESET, _COLOUR_WITHOUT_ESCAPE, scan.oddities)
    records = extract(FAMILIES, candidates, recent, _QUOTING, _EVENT)
    statistic, malformed = _keep_statistics(scan, path, chunk, records)
    placed = statistic | malformed
    unread = candidates.filter(~pl.col("line_no").is_in(placed)) if len(placed) < len(candidates) else candidates[:0]

    n_access = int((~masks["statistic"] & masks["access"]).sum())
    scan.known += Counter({"access line": n_access})
    rest = lines.filter(~masks["statistic"] & ~masks["access"])
    is_rare = rest["text"].str.contains(_IS_RARE)
    _keep_unplaced(scan, rest.filter(~is_rare))
    rare = pl.concat([rest.filter(is_rare), unread])
    events = _keep_events(scan, pl.concat([rare, records.unusual]), placed)

    counts = Counter(other=int((~is_rare).sum()), other_known=n_access)
    counts.update(statistic=len(statistic), malformed=len(malformed), event=len(events))
    counts.update(_count_known(scan.known, rare.filter(~pl.col("line_no").is_in(events))))
    scan.lines.update({name: counts[name] for name in CLASSES})
    return scan


def _keep_unplaced(scan: ChunkScan, lines: pl.DataFrame) -> None:
    """Keep the first lines that nothing is known about."""
    texts = (text.strip()[:160] for text in lines["text"].head(50))
    scan.unplaced = [text for text in texts if text][:_MAX_SHOWN]


def _strip_colours(lines: pl.DataFrame, sign: str, colour: str, oddities: Counter[str]) -> pl.DataFrame:
    """Remove terminal colours from the lines that hold their sign, and count these."""
    is_coloured = lines["text"].str.contains(sign)
    if not is_coloured.any():
        return lines
    oddities["ansi"] += int(is_coloured.sum())
    plain = lines.filter(is_coloured).with_columns(pl.col("text").str.replace_all(colour, ""))
    return pl.concat([lines.filter(~is_coloured), plain]).sort("line_no")


def _keep_statistics(scan: ChunkScan, path: str, chunk: Chunk, records: Records) -> tuple[set[int], set[int]]:
    """Keep the records; return the numbers of the lines read whole and of the malformed ones."""
    samples, malformed = records.samples, records.malformed
    if chunk.ends_open:
        is_last = pl.col("line_no") == chunk.last_line_no
        cut = samples.filter(is_last & ~pl.col("text").str.contains(_WHOLE_END))
        if not cut.is_empty():
            reason = pl.lit("the last line has no line feed and ends within a value")
            malformed = pl.concat([malformed, cut.select("line_no", "text", reason=reason)])
            samples = samples.filter(~(is_last & pl.col("part").is_in(cut["part"].to_list())))
    scan.oddities["glued_records"] += int((samples["part"] == 1).sum())
    kept = read_prefixes(samples).select(SAMPLE_COLUMNS)
    if not kept["line_no"].is_sorted() or (kept["part"] > 0).any():
        kept = kept.sort("line_no", "part")
    scan.samples.append(kept)
    for line_no, text, reason in malformed.unique("line_no", keep="first").sort("line_no").iter_rows():
        if len(scan.malformed) < MAX_EXAMPLES:
            scan.malformed.append(MalformedLine(path, line_no, text.strip()[:500], reason))
    numbers = set(malformed["line_no"].to_list())
    return set(samples["line_no"].to_list()) - numbers, numbers


def _keep_events(scan: ChunkScan, lines: pl.DataFrame, placed: set[int]) -> set[int]:
    """Read the events; return the numbers of the lines that are an event and nothing before."""
    is_opaque = pl.col("text").str.contains(_IS_OPAQUE) & ~pl.col("text").str.contains(_IS_ARGS)
    possible = lines.filter(pl.col("text").str.contains(_NAMES_EVENT) & ~is_opaque).unique("line_no").sort("line_no")
    numbers = set()
    for line_no, text in possible.select("line_no", "text").iter_rows():
        event = read_event(line_no, text.strip())
        if event is None:
            continue
        scan.events.append(event)
        if event.kind not in INTERNAL_KINDS and line_no not in placed:
            event.is_counted = True
            numbers.add(line_no)
    return numbers


def _count_known(known: Counter[str], lines: pl.DataFrame) -> Counter[str]:
    """Count the remaining lines by the first name whose literal they hold."""
    name = pl.lit(None, pl.String)
    for group, literals in reversed([*OPAQUE.items(), *KNOWN.items()]):
        name = pl.when(pl.col("text").str.contains(any_of(literals))).then(pl.lit(group)).otherwise(name)
    names = lines.select(name=name)["name"]
    for group, count in names.drop_nulls().value_counts().iter_rows():
        known[group] += count
    n_known = len(names) - names.null_count()
    return Counter(other_known=n_known, other=names.null_count())
