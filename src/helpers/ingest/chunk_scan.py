"""One chunk of a file: every line gets its class, statistic lines become records, events are read."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import polars as pl

from helpers.ingest import native
from helpers.ingest.accounting import CLASSES, MAX_EXAMPLES, MalformedLine
from helpers.ingest.chunk_lines import (
    ACCESS,
    ANEW,
    EVENT,
    FAMILIES,
    GONE,
    IN_CRI,
    IN_DOCKER,
    MARKS,
    NAMES_OWN,
    NO_LINES,
    NOTHING,
    OPAQUE_LITERALS,
    QUOTING,
    RARE,
    STATISTIC,
    ChunkLines,
)
from helpers.ingest.dialect import any_of
from helpers.ingest.distinct import one_value
from helpers.ingest.events import ARGS_LITERALS, INTERNAL_KINDS, Event, read_event
from helpers.ingest.extract import MEASURES, Records, extract, no_records
from helpers.ingest.habits import Habits
from helpers.ingest.known import KNOWN, OPAQUE
from helpers.ingest.lines import LONG_LINE_BYTES, Chunk, split_lines
from helpers.ingest.nearest import MEASURED_PATTERN
from helpers.ingest.rapid import Block
from helpers.ingest.stamps import read_prefixes, wrapper_gaps_s
from helpers.ingest.wrappers import COLOUR_RESET, CONTINUED, Parts, folded, no_guesses, unwrap

_NAMED = (*OPAQUE.items(), *KNOWN.items())
_FEW_LINES = 500
"""Lines that Python looks at sooner than an expression of many literals is made, as each thread must (1 to 3 ms)."""

_COLOUR = r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[()][A-Z0-9]|\x1b[=>]"
_COLOUR_WITHOUT_ESCAPE = r"\[[0-9]{1,3}(?:;[0-9]{1,3})*m"
_CONTROL = "[\\x00-\\x08\\x0b\\x0c\\x0e-\\x1f\\x7f-\\x9f\\u202a-\\u202e\\u2066-\\u2069]"
"""What a terminal obeys instead of showing it, directions of writing included; it can stand nowhere in a record."""

# An uncut record ends in a count, two decimals, a unit, a flag or its wrapper's quote.
_WHOLE_END = (
    r"(?:#[\w-]+: [0-9]+|\.[0-9]{2,}|%|reqs|tokens|tokens/s|ms|\(dummy\)|True|False|nan|[\"}]|"
    r"completed waiting|/GPU|/device|tree_cache_hit_rate.*)[ ,.\r]*$"
)
_MAX_LOOKED_AT = 50
_MAX_SHOWN = 3
"""Lines that could not be placed, kept for the error message of a log without statistics."""

SAMPLE_COLUMNS = ["line_no", "part", "engine", "kind", *MEASURES, "extra", "stamp", "stamp_kind", "rank"]


@dataclass
class ChunkScan:
    """What was found in some lines; the lines of its classes add up to their number."""

    records: list[pl.DataFrame | Block] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    lines: Counter[str] = field(default_factory=Counter)
    known: Counter[str] = field(default_factory=Counter)
    oddities: Counter[str] = field(default_factory=Counter)
    malformed: list[MalformedLine] = field(default_factory=list)
    unplaced: list[str] = field(default_factory=list)
    gaps_s: list[float] = field(default_factory=list)
    """Stamp of the wrapper less the record's own, of some records that carry both."""

    def add(self, later: ChunkScan) -> None:
        """Append what the lines after these hold."""
        self.records += later.records
        self.events += later.events
        self.lines.update(later.lines)
        self.known.update(later.known)
        self.oddities.update(later.oddities)
        self.malformed += later.malformed[: MAX_EXAMPLES - len(self.malformed)]
        self.unplaced += later.unplaced[: _MAX_SHOWN - len(self.unplaced)]
        self.gaps_s += later.gaps_s


def new_habits() -> Habits:
    """Return what is known of a log before its first line."""
    return Habits(FAMILIES, QUOTING, EVENT)


_NO_LINES: tuple[set[int], set[int], pl.DataFrame, pl.DataFrame] = set(), set(), NO_LINES, NO_LINES


def scan_chunk(path: str, chunk: Chunk, habits: Habits) -> ChunkScan:
    """Place every line of a chunk: statistics first, then the many access lines, then what is rare.

    Parameters
    ----------
    path : str
        Of the file, for messages.
    chunk : Chunk
    habits : Habits
        What chunks before found out about the log.
    """
    scan = ChunkScan()
    if chunk.longest_bytes > LONG_LINE_BYTES:
        scan.oddities["long_lines"] += int((np.diff(chunk.offsets) > LONG_LINE_BYTES).sum())
    lines = _readable_lines(scan, chunk)
    guesses = no_guesses()
    if lines.count(NOTHING, ANEW):
        guesses = folded(lines.table(), NAMES_OWN, (lines.marks & ANEW) == 0)
    left, alike = lines.rows(STATISTIC), None
    if lines.is_stored:
        is_odd = np.isin(left, _odd_rows(chunk, guesses, len(lines.marks)))
        alike, as_text = habits.read(chunk, left[~is_odd], lines.take)
        left = np.sort(np.concatenate([left[is_odd], as_text]))

    statistic, malformed, unread, unusual = _NO_LINES
    if len(left) or len(guesses):
        statistic, malformed, unread, unusual = _read_texts(scan, path, chunk, lines, left, guesses, habits, alike)
    else:
        scan.records.append(_no_statistics() if alike is None else alike)

    n_access = lines.count(ACCESS, STATISTIC | GONE)
    scan.known["access line"] += n_access
    _keep_unplaced(scan, lines)
    n_unplaced = lines.count(NOTHING, _PLACED)
    counts = Counter(other=n_unplaced, other_known=n_access + scan.known[CONTINUED])
    counts.update(statistic=len(statistic) + (0 if alike is None else len(alike)), malformed=len(malformed))
    rows = lines.rows(RARE, STATISTIC | ACCESS | GONE)
    if len(rows) or len(unread) or len(unusual):
        rare = pl.concat([lines.take(rows), unread])
        events = _keep_events(scan, pl.concat([rare, unusual]), statistic | malformed)
        others = rare.filter(~pl.col("line_no").is_in(events)) if events else rare
        known = _count_known(others)
        counts.update(other=len(others) - known.total(), other_known=known.total(), event=len(events))
        scan.known.update(known)
    scan.lines.update({name: counts[name] for name in CLASSES})
    scan.known = +scan.known  # only what is there
    return scan


def _read_texts(
    scan: ChunkScan, path: str, chunk: Chunk, lines: ChunkLines, left: np.ndarray, guesses: pl.DataFrame,
    habits: Habits, alike: Block | None,
) -> tuple[set[int], set[int], pl.DataFrame, pl.DataFrame]:
    """Read the statistics that are ``left`` as text, and keep all.

    Returns
    -------
    statistic, malformed : set of int
        Numbers of lines.
    unread, unusual : DataFrame
        Lines that only mention a statistic, and those whose text is not all statistic.
    """
    candidates = _strip_colours(lines.take(left), COLOUR_RESET, _COLOUR_WITHOUT_ESCAPE, scan.oddities)
    records = extract(FAMILIES, candidates, habits.recent, QUOTING, EVENT) if len(left) else no_records()
    records, later = _unfold(records, guesses, habits)
    if later:
        lines.mark(later, gone=True)
        lines.mark(records.samples["line_no"].unique())  # the literal itself may be folded
        candidates = candidates.filter(~pl.col("line_no").is_in(later))
    scan.known[CONTINUED] += len(later)
    scan.oddities["folded_lines"] += len(later)
    statistic, malformed = _keep_statistics(scan, path, chunk, records, alike)
    placed = statistic | malformed
    is_all_read = not later and len(placed) == len(candidates)
    unread = candidates[:0] if is_all_read else candidates.filter(~pl.col("line_no").is_in(placed))
    return statistic, malformed, unread, records.unusual


def _odd_rows(chunk: Chunk, guesses: pl.DataFrame, n_lines: int) -> list[int]:
    """Return the lines that may be part of another or cut."""
    numbers = {*guesses["line_no"], *guesses["later"].explode()} if len(guesses) else set()
    return [number - chunk.first_line_no for number in numbers] + ([n_lines - 1] if chunk.ends_open else [])


def _readable_lines(scan: ChunkScan, chunk: Chunk) -> ChunkLines:
    """Return the lines without wrappers and codes."""
    lines = ChunkLines(chunk, MARKS.of_lines(chunk.data, chunk.offsets))
    is_docker = lines.count(IN_DOCKER) > 0
    is_wrapped = is_docker or lines.count(IN_CRI) > 0
    has_escapes = is_docker or bool(chunk.odd & native.HAS_ESCAPE)  # docker writes control codes as JSON
    has_controls = is_docker or bool(chunk.odd & (native.HAS_CONTROL | native.HAS_WIDE_CONTROL))
    if not is_wrapped and not has_controls:
        return lines
    parts = unwrap(split_lines(chunk), chunk.text) if is_wrapped else Parts(split_lines(chunk), 0)
    scan.oddities["split_lines"] += parts.n_continued
    scan.known[CONTINUED] += parts.n_continued
    table = _strip_colours(parts.lines, "\x1b", _COLOUR, scan.oddities) if has_escapes else parts.lines
    if has_controls:
        is_odd = table["text"].str.contains(_CONTROL)
        scan.oddities["control_codes"] += int(is_odd.sum())
        table = table.with_columns(pl.col("text").str.replace_all(_CONTROL, "\ufffd"))
    return ChunkLines(chunk, MARKS.of_texts(table["text"]), table, is_stored=not parts.is_changed)


def _unfold(records: Records, guesses: pl.DataFrame, habits: Habits) -> tuple[Records, list[int]]:
    """Read the records that a terminal folded over several lines; return the numbers of their later lines too."""
    if guesses.is_empty():
        return records, []
    guesses = guesses.with_row_index("guess").cast({"guess": pl.Int64})
    numbered = guesses.select(line_no="guess", text="text")
    found = extract(FAMILIES, numbered, habits.recent, QUOTING, EVENT)
    is_cut = pl.col("line_no").is_in(found.malformed["line_no"].to_list()) | ~pl.col("text").str.contains(_WHOLE_END)
    whole = found.samples.filter(~is_cut)
    whole = whole.rename({"line_no": "guess"}).join(guesses.drop("text"), on="guess").sort("guess")
    whole = whole.filter(pl.col("guess") == pl.col("guess").min().over("line_no"))
    says = pl.sum_horizontal(pl.col(MEASURES).is_not_null()).sum().over("line_no").alias("says")
    ends = pl.col("text").str.strip_chars_end("\r\n").str.contains(_WHOLE_END)
    before = records.samples.select("line_no", says, ends=ends).unique("line_no")
    better = whole.with_columns(says).join(before, on="line_no", how="left", suffix="_before").filter(
        pl.col("says_before").is_null() | ~pl.col("ends") | (pl.col("says") > pl.col("says_before"))
    )
    if better.is_empty():
        return records, []
    later = better.unique("line_no")["later"].explode().to_list()
    is_replaced = pl.col("line_no").is_in([*better["line_no"].unique(), *later])
    samples = pl.concat([records.samples.filter(~is_replaced), better.select(records.samples.columns)])
    return Records(samples, *(table.filter(~is_replaced) for table in (records.malformed, records.unusual))), later


_PLACED = STATISTIC | ACCESS | RARE | GONE


def _keep_unplaced(scan: ChunkScan, lines: ChunkLines) -> None:
    """Keep the first lines that nothing is known about; where none is a statistic, those that state a rate."""
    texts = lines.texts(lines.rows(NOTHING, _PLACED, _MAX_LOOKED_AT))
    if not any(len(records) for records in scan.records):
        found = lines.take(lines.rows(NOTHING, _PLACED))["text"]
        texts = [*found.filter(found.str.contains(MEASURED_PATTERN)).head(_MAX_SHOWN), *texts]
    shown = (text.strip()[:160] for text in texts[:_MAX_LOOKED_AT])
    scan.unplaced = list(dict.fromkeys(text for text in shown if text))[:_MAX_SHOWN]


def _strip_colours(lines: pl.DataFrame, sign: str, colour: str, oddities: Counter[str]) -> pl.DataFrame:
    """Remove terminal colours from the lines that hold their sign, and count these."""
    is_coloured = lines["text"].str.contains(sign)
    if not is_coloured.any():
        return lines
    oddities["ansi"] += int(is_coloured.sum())
    plain = lines.filter(is_coloured).with_columns(pl.col("text").str.replace_all(colour, ""))
    return pl.concat([lines.filter(~is_coloured), plain]).sort("line_no")


def _keep_statistics(
    scan: ChunkScan, path: str, chunk: Chunk, records: Records, alike: Block | None
) -> tuple[set[int], set[int]]:
    """Keep the records; return the numbers of the lines read whole as text and of the malformed ones."""
    samples, malformed = records.samples, records.malformed
    if samples.is_empty() and malformed.is_empty():
        scan.records.append(_no_statistics() if alike is None else alike)
        return set(), set()
    if chunk.ends_open:
        is_last = pl.col("line_no") == chunk.last_line_no
        cut = samples.filter(is_last & ~pl.col("text").str.contains(_WHOLE_END))
        if not cut.is_empty():
            reason = pl.lit("the last line has no line feed and ends within a value")
            malformed = pl.concat([malformed, cut.select("line_no", "text", reason=reason)])
            samples = samples.filter(~(is_last & pl.col("part").is_in(cut["part"].to_list())))
    scan.oddities["glued_records"] += int((samples["part"] == 1).sum())
    stamped = read_prefixes(samples)
    scan.gaps_s += wrapper_gaps_s(stamped)
    kept = stamped.select(*SAMPLE_COLUMNS, "label")
    if alike is not None:
        kept = pl.concat([alike.table().with_columns(part=pl.lit(0, pl.Int64)), kept], how="diagonal")
    if not kept["line_no"].is_sorted() or (kept["part"] > 0).any():
        kept = kept.sort("line_no", "part")
    scan.records.append(kept)
    for line_no, text, reason in malformed.unique("line_no", keep="first").sort("line_no").iter_rows():
        if len(scan.malformed) < MAX_EXAMPLES:
            scan.malformed.append(MalformedLine(path, line_no, text.strip()[:500], reason))
    numbers = set(malformed["line_no"].to_list())
    return set(samples["line_no"].to_list()) - numbers, numbers


_OFTEN_SAME = ("engine", "kind", "stamp_kind", "rank", "label")


def whole_table(frames: list[pl.DataFrame]) -> pl.DataFrame:
    """Put the records of chunks together; columns that none of them has are missing in all rows (``part``: 0)."""
    types, frames = _no_statistics().schema, [frame for frame in frames if len(frame)]
    same = {name: pl.lit(value, types[name]) for name, value in _same_values(frames).items()}
    parts = []
    for frame in frames:  # a column that one frame has takes memory in the rows of all
        n_missing = zip(frame.columns, frame.null_count().row(0), strict=True)
        parts.append(frame[[name for name, n in n_missing if name not in same and n < len(frame)]])
    table = pl.concat(parts or [_no_statistics()], how="diagonal")
    missing = {name: pl.lit(0 if name == "part" else None, types[name]) for name in SAMPLE_COLUMNS}
    there = {name: pl.col(name) for name in table.columns}
    return table.select(**(missing | there | same))


def _same_values(frames: Sequence[pl.DataFrame]) -> dict[str, str | int | None]:
    """Return what stands in all rows of some columns: as literals they take no memory per row."""
    same: dict[str, str | int | None] = {}
    for index, frame in enumerate(frames):
        some = frame[[name for name in _OFTEN_SAME if name in frame.columns]]
        if not index:
            same = dict.fromkeys(_OFTEN_SAME) | some[:1].row(0, named=True)
        answers = {name: one_value(some, name) == (same[name],) for name in some.columns if name in same}
        same = {name: value for name, value in same.items() if answers.get(name, value is None)}
    return same


@functools.lru_cache(maxsize=1)
def _no_statistics() -> pl.DataFrame:
    return read_prefixes(no_records().samples).select(*SAMPLE_COLUMNS, "label")


def _keep_events(scan: ChunkScan, lines: pl.DataFrame, placed: set[int]) -> set[int]:
    """Read the events; return the numbers of the lines that are an event and nothing before."""
    if len(lines) > _FEW_LINES:
        lines = lines.filter(pl.col("text").str.contains(any_of(EVENT)))
    texts = dict(lines.select("line_no", "text").iter_rows())  # some are both unread and unusual
    numbers = set()
    for line_no, text in sorted(texts.items()):
        event = None if _is_opaque(text) else read_event(line_no, text.strip())
        if event is None:
            continue
        scan.events.append(event)
        if event.kind not in INTERNAL_KINDS and line_no not in placed:
            event.is_counted = True
            numbers.add(line_no)
    return numbers


def _holds(text: str, literals: Iterable[str]) -> bool:
    return any(literal in text for literal in literals)


def _is_opaque(text: str) -> bool:
    """Tell whether a line may quote anything."""
    return _holds(text, OPAQUE_LITERALS) and not _holds(text, ARGS_LITERALS)


def _count_known(lines: pl.DataFrame) -> Counter[str]:
    """Count lines by the first name whose literal they hold."""
    if len(lines) <= _FEW_LINES:
        found = (next((name for name, some in _NAMED if _holds(text, some)), None) for text in lines["text"])
        return Counter(name for name in found if name is not None)
    name = pl.lit(None, pl.String)
    for group, literals in reversed(_NAMED):
        name = pl.when(pl.col("text").str.contains(any_of(literals))).then(pl.lit(group)).otherwise(name)
    return Counter(dict(lines.select(name=name)["name"].drop_nulls().value_counts().iter_rows()))
