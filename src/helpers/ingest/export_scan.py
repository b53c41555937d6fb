"""What every reader of an export (a file that is no log of text lines) shares: its result, its counting, its rows."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from helpers.ingest.accounting import MAX_EXAMPLES, MalformedLine
from helpers.ingest.extract import MEASURES
from helpers.ingest.lines import FileReader
from helpers.ingest.scan import FileScan
from helpers.schema import LogFormatError

EPOCH = 5
"""Kind of stamp beside those of `stamps`: seconds since 1970, so UTC, whatever zone the server's log prints."""

MAX_DOCUMENT_BYTES = 512 * 2**20
"""A file that is one JSON value is held whole; above this it must be split (JSON lines are read one by one)."""

_BATCH_ROWS = 20_000
"""Rows kept as objects at once; each takes about 1 KB, ten times its share of a table."""

MAX_UNIX_S = 1e11
"""Seconds since 1970 above which a number is no time, but milliseconds or noise: the year is 5138."""

ROW_TYPES: dict[str, Any] = {
    "line_no": pl.Int64, "part": pl.Int64, "engine": pl.String, "kind": pl.String, **MEASURES,
    "extra": pl.String, "stamp": pl.Datetime("us"), "stamp_kind": pl.Int32, "rank": pl.String,
}
"""Columns of the rows an export yields, with their polars types."""


@dataclass
class ExportScan(FileScan):
    """What was found in a whole export.

    Attributes
    ----------
    export : str
        Name of the `Export` that read it.
    moments : list of DataFrame
        Rows of MOMENTS but for ``file`` and ``server_life``, where the source holds such sums.
    restarts : list of int
        Units (lines or elements) with which a new server life begins: the counters went back.
    facts : dict
        What the source says of its server, under the names of `helpers.ingest.facts`.
    """

    export: str = ""
    moments: list[pl.DataFrame] = field(default_factory=list)
    restarts: list[int] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    pending: list[dict[str, Any]] = field(default_factory=list)
    """Rows put so far that are in no table yet."""

    def malform(self, unit: int, text: str, reason: str, n: int = 1) -> None:
        """Count lines (or elements) that cannot be read, and keep the first ones."""
        self.lines["malformed"] += n
        if len(self.malformed) < MAX_EXAMPLES:
            self.malformed.append(MalformedLine(self.path, unit, text.strip()[:500], reason))

    def know(self, name: str, n: int = 1) -> None:
        """Count lines (or elements) that are understood but hold no statistic."""
        self.lines["other_known"] += n
        self.known[name] += n

    def put(self, row: dict[str, Any]) -> None:
        """Append one row; memory holds a batch of them as objects, the others as tables."""
        self.pending.append(row)
        if len(self.pending) >= _BATCH_ROWS:
            self.flush()

    def flush(self) -> None:
        """Turn the rows put so far into a table."""
        self.keep(self.pending)
        self.pending = []

    def name_ranks(self, names: Mapping[str, str | None]) -> None:
        """Replace what stands for a rank while a file is read, when all its ranks are known."""
        self.flush()
        self.samples = [
            frame.with_columns(rank=pl.col("rank").replace_strict(names, return_dtype=pl.String))
            for frame in self.samples
        ]

    def keep(self, rows: Sequence[dict[str, Any]]) -> None:
        """Append SAMPLES rows."""
        if rows:
            self.samples.append(sample_frame(rows))


@dataclass(frozen=True)
class Export:
    """A kind of file that is no log of text lines.

    Attributes
    ----------
    name : str
        As shown to the user: ``SGLang /v1/loads snapshots``.
    engine : str or None
        As in SAMPLES; None if the file itself tells.
    matches : callable
        (first 64 KiB as text, path) -> whether this reader takes the file. Cheap and sure: a log never matches.
    read : callable
        path -> ExportScan in which every line (of a single JSON value: every element) is in one class of CLASSES.
    gives : str
        What the numbers are and are not, one sentence.
    kinds : tuple of str
        SAMPLES kinds of its rows.
    versions : str
        Versions of the engine that write it.
    """

    name: str
    engine: str | None
    matches: Callable[[str, str], bool]
    read: Callable[[str], ExportScan]
    gives: str = ""
    kinds: tuple[str, ...] = ()
    versions: str = ""


def sample_frame(rows: Sequence[dict[str, Any]]) -> pl.DataFrame:
    """Return rows as a table of the columns of ROW_TYPES that some row has, and ``part``, ``stamp_kind`` and ``rank``.

    Parameters
    ----------
    rows : sequence of dict
        At least ``line_no``, ``engine`` and ``kind``; ``stamp`` is seconds since 1970, ``extra`` may be a dict.
    """
    used = {name for row in rows for name in row} | {"part", "stamp", "stamp_kind", "rank"}
    unknown = used - set(ROW_TYPES)
    if unknown:
        raise KeyError(f"no column of SAMPLES rows: {sorted(unknown)}")
    whole = [{"part": 0, **row} for row in rows]
    for row in whole:
        row["stamp"] = _microseconds(row.get("stamp"))
        row["stamp_kind"] = 0 if row["stamp"] is None else row.get("stamp_kind", EPOCH)
        if isinstance(row.get("extra"), dict):
            row["extra"] = json.dumps(row["extra"]) if row["extra"] else None
    types = {name: dtype for name, dtype in ROW_TYPES.items() if name in used}
    columns = {name: [row.get(name) for row in whole] for name in types}
    # microseconds as integers first: polars would take plain numbers for days
    stamp = pl.Series("stamp", columns.pop("stamp"), dtype=pl.Int64).cast(pl.Datetime("us"))
    del types["stamp"]
    return pl.DataFrame(columns, schema=types, strict=False).with_columns(stamp)


def _microseconds(stamp: float | None) -> int | None:
    """Return a time as whole microseconds; None for one that is no date of a server."""
    return None if stamp is None or not 0 <= stamp < MAX_UNIX_S else round(stamp * 1e6)


def text_lines(scan: ExportScan) -> Iterator[tuple[int, str]]:
    """Yield (line number, text without line feed) of a file, filling in its size, hash and oddities at the end."""
    reader = FileReader(scan.path)
    for chunk in reader.chunks():
        for number, text in enumerate(chunk.text.decode().split("\n")[: len(chunk.offsets) - 1], chunk.first_line_no):
            yield number, text.removesuffix("\r")
    scan.oddities.update(reader.oddities)
    scan.n_lines, scan.n_bytes, scan.digest = reader.n_lines, reader.n_bytes, reader.digest


def whole_text(scan: ExportScan, what: str, way_out: str) -> str:
    """Return a file that is one document.

    Raises
    ------
    LogFormatError
        It is larger than `MAX_DOCUMENT_BYTES`; the message says what was expected and the way out.
    """
    parts, n_chars = [], 0
    for _, line in text_lines(scan):
        parts.append(line)
        n_chars += len(line)
        if n_chars > MAX_DOCUMENT_BYTES:
            limit = f"{MAX_DOCUMENT_BYTES // 2**20} MiB"
            raise LogFormatError(f"{scan.path}: expected at most {limit} of {what}, found more; {way_out}")
    return "\n".join(parts)


def json_units(scan: ExportScan) -> Iterator[tuple[int, Any]]:
    """Yield (number, value) of JSON lines, or of the elements of a file that is one JSON list.

    A line that is no JSON is counted malformed here, an empty one as other_known; the caller counts the rest.
    ``scan.n_lines`` is the number of lines, of a single list that of its elements.
    """
    lines = text_lines(scan)
    first = next(((number, text) for number, text in _counting_blanks(lines, scan) if text.strip()), (0, ""))
    if not _is_one_object(first[1]):
        yield from _elements(scan, first[1], lines)
        return
    for number, text in itertools.chain([first], lines):
        if not text.strip():
            scan.know("empty line")
            continue
        try:
            value = _DECODER.decode(text)
        except (ValueError, RecursionError) as error:
            scan.malform(number, text, f"no JSON value ({error})")
            continue
        yield number, value


def _counting_blanks(lines: Iterable[tuple[int, str]], scan: ExportScan) -> Iterator[tuple[int, str]]:
    for number, text in lines:
        if not text.strip():
            scan.know("empty line")
        yield number, text


def _is_one_object(text: str) -> bool:
    """Tell whether a line alone is a JSON object: then the file is JSON lines."""
    if not text.lstrip().startswith("{"):
        return False
    try:
        _DECODER.decode(text)
    except (ValueError, RecursionError):
        return text.strip() != "{" and '"' in text  # a broken first line; a lone brace opens a printed object
    return True


def _elements(scan: ExportScan, first: str, rest: Iterable[tuple[int, str]]) -> Iterator[tuple[int, Any]]:
    """Read a file that is one JSON list, or objects printed over several lines; these are what is counted then."""
    parts, n_chars = [first], len(first)
    for _, text in rest:
        parts.append(text)
        n_chars += len(text)
        if n_chars > MAX_DOCUMENT_BYTES:
            raise LogFormatError(
                f"{scan.path}: expected a JSON list of at most {MAX_DOCUMENT_BYTES // 2**20} MiB, found more; write "
                "one JSON object per line instead"
            )
    text, at, values = "\n".join(parts).strip(), 0, []
    try:
        while at < len(text):
            value, end = _DECODER.raw_decode(text, at)
            values.append(value)
            at = end + len(text[end:end + 64]) - len(text[end:end + 64].lstrip(" \t\r\n,"))
    except (ValueError, RecursionError) as error:
        raise LogFormatError(
            f"{scan.path}: expected whole JSON values, found one that is not ({error}); save the whole response, or "
            "write one JSON object per line"
        ) from error
    if len(values) == 1 and isinstance(values[0], list):
        values = values[0]
    scan.lines["other_known"] = 0
    scan.known.pop("empty line", None)
    scan.n_lines = len(values)
    scan.notes.append(f"{scan.path}: its {len(values)} JSON values are counted in place of lines")
    yield from enumerate(values, 1)


_DECODER = json.JSONDecoder(parse_constant=lambda _: None)
"""NaN and Infinity, which Python's writer leaves behind, become None."""
