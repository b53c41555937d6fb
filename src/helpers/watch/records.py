"""New lines to records and events, by the dialects of `ingest`; a line that names neither is only counted.

`ingest.read_log` reads a whole input at 40 to 100 ms a call; following needs a tenth of it for a few new lines.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import polars as pl

from helpers.ingest.chunk_lines import FAMILIES
from helpers.ingest.events import ARGS_LITERALS, RULES, Event, read_event
from helpers.ingest.extract import RecentLayouts, extract
from helpers.ingest.known import OPAQUE
from helpers.ingest.stamps import read_prefixes
from helpers.ingest.wrappers import unwrap

_EVENT = tuple(dict.fromkeys(rule.literal for _, rule in RULES))
_OPAQUE = tuple(literal for literals in OPAQUE.values() for literal in literals)
_QUOTING = (*ARGS_LITERALS, *_OPAQUE)
_NAMES_SOMETHING = tuple(
    dict.fromkeys(literal.encode() for literal in (*(family.literal for family in FAMILIES), *_EVENT))
)

_COLOUR = r"\x1b\[[0-9;?]*[ -/]*[@-~]"
"""Terminal colours (ECMA-48, control sequences)."""

MAX_TEXT_BYTES = 100_000
"""A longer line is cut: the longest argument dumps seen have 20 kB."""


@dataclass(frozen=True)
class Record:
    """One statistic record: the columns of SAMPLES that watching needs, None where the line has none."""

    line_no: int
    kind: str
    rank: str
    stamp: datetime | None
    values: Mapping[str, Any]

    @property
    def ts(self) -> str | None:
        """Stamp as the log prints it: 1904 stands for a year, its first day for a date, that was not printed."""
        return None if self.stamp is None else str(self.stamp).removeprefix("1904-01-01 ").removeprefix("1904-")

    def count(self, name: str) -> int | None:
        """Return a whole number of the record."""
        value = self.values[name]
        return None if value is None else int(value)

    def number(self, name: str) -> float | None:
        """Return a number of the record."""
        value = self.values[name]
        return None if value is None else float(value)


@dataclass(frozen=True)
class Seen:
    """A line worth keeping, with what it says."""

    line_no: int
    text: str
    records: tuple[Record, ...] = ()
    event: Event | None = None


_KEPT = ("line_no", "kind", "rank", "stamp", "running_req", "queue_req", "decode_tok_per_s", "prefill_tok_per_s",
         "new_tok", "accept_len", "graph", "kv_used_frac", "span_s", "out_tok")


@dataclass
class RecordReader:
    """Reads blocks of whole lines, one after the other.

    Attributes
    ----------
    n_lines, n_malformed : int
        Lines read so far; those of them that name a statistic but cannot be read whole.
    """

    n_lines: int = 0
    n_malformed: int = 0
    _recent: RecentLayouts = field(default_factory=dict)

    def read(self, block: bytes) -> Iterator[Seen]:
        """Yield the lines that hold a record or an event, in their order.

        Parameters
        ----------
        block : bytes
            Whole lines.
        """
        found, first_no = [], self.n_lines + 1
        lines = block.split(b"\n")
        if not lines[-1]:
            lines.pop()
        self.n_lines += len(lines)
        for line_no, line in enumerate(lines, start=first_no):
            if any(literal in line for literal in _NAMES_SOMETHING):
                text = line[:MAX_TEXT_BYTES].replace(b"\0", b"").decode(errors="replace").rstrip("\r")
                found.append((line_no, text))
        if found:
            yield from self._read_found(found)

    def _read_found(self, found: Sequence[tuple[int, str]]) -> Iterator[Seen]:
        raw = dict(found)
        table = pl.DataFrame(found, schema={"line_no": pl.Int64, "text": pl.String}, orient="row")
        lines = unwrap(table, "\n".join(raw.values()).encode()).lines
        if lines["text"].str.contains("\x1b", literal=True).any():
            lines = lines.with_columns(pl.col("text").str.replace_all(_COLOUR, ""))
        records = extract(FAMILIES, lines, self._recent, _QUOTING, _EVENT)
        self.n_malformed += records.malformed["line_no"].n_unique()
        by_line: dict[int, list[Record]] = {}
        if not records.samples.is_empty():
            for row in read_prefixes(records.samples).sort("line_no", "part").select(_KEPT).iter_rows(named=True):
                by_line.setdefault(row["line_no"], []).append(_record(row))
        for line_no, text in lines.iter_rows():
            event = _event(line_no, text)
            if event is not None or line_no in by_line:
                yield Seen(line_no, raw[line_no], tuple(by_line.get(line_no, ())), event)


def _record(row: Mapping[str, Any]) -> Record:
    return Record(row["line_no"], row["kind"], row["rank"] or "", row["stamp"], row)


def _event(line_no: int, text: str) -> Event | None:
    """Read an event; what a line quotes (a request, a dump of state) is none."""
    is_dump = any(literal in text for literal in ARGS_LITERALS)
    if not is_dump and any(literal in text for literal in _OPAQUE):
        return None
    return read_event(line_no, text.strip())
