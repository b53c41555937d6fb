"""What stands in front of a record, known from earlier lines of the log: it differs only in the digits of its stamp.

`stamps.read_prefixes` finds stamp, rank and label in a prefix by searching. It looks at digits as such, never at
which they are, so a prefix that equals an earlier one but for the digits of the stamp has the same rank and label,
and a stamp at the same place. Each new prefix is tried with other stamps before it is trusted (`Heads.learn`).
"""

from __future__ import annotations

import ctypes
import re
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import polars as pl

from helpers.ingest.compiled import Form, Head, Tables
from helpers.ingest.stamps import FULL, NO_DATE, NO_YEAR, read_prefixes

MAX_HEADS = 512
"""More different prefixes than ranks and processes print: then each line has its own, and none is worth keeping."""

MAX_HEAD_BYTES = 1024

_TIME = r"(?P<time>[0-9]{2}:[0-9]{2}:[0-9]{2})(?:[.,](?P<part>[0-9]{1,6})(?![0-9]))?"
_FORMS = (
    (FULL, re.compile(rf"(?P<year>[0-9]{{4}})-[0-9]{{2}}-[0-9]{{2}} {_TIME}")),
    (NO_YEAR, re.compile(rf"(?<![0-9-])[0-9]{{2}}-[0-9]{{2}} {_TIME}")),
    (NO_DATE, re.compile(_TIME)),
)
"""Stamps by kind, as `stamps` knows them."""

_WRAPPED = re.compile(r"[0-9]{2}T[0-9]{2}:")
"""A wrapper's stamp beside the record's own: it changes too, and both are wanted."""

_UNDATED_YEAR = 1904
"""Stands for a year that was not printed, as in `stamps`."""

# Other stamps that a new prefix is tried with: month, day, hour, minute, second.
_TRIALS = ((3, 14, 15, 9, 26), (11, 5, 0, 58, 47), (12, 28, 23, 31, 2))


@dataclass
class Heads:
    """The heads of one log; they only save work, whatever is known of them.

    Attributes
    ----------
    known : list of Head
        The number of a head is its place here.
    """

    known: list[Head] = field(default_factory=list)
    _seen: set[tuple[tuple[str, ...], int]] = field(default_factory=set)
    _forms: dict[int, set[Form]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def learn(self, library: ctypes.CDLL, prefixes: Iterable[tuple[str, str, int]]) -> None:
        """Take prefixes of records that were read.

        Parameters
        ----------
        library : ctypes.CDLL
            The compiled reader.
        prefixes : iterable of (prefix, literal, place)
            Text in front of the literal, the literal itself, and the family's place in the order of families.
        """
        with self._lock:
            candidates = []
            for prefix, literal, place in prefixes:
                forms = self._forms.setdefault(len(prefix), set())  # most are like one before
                if any((form.fixed(prefix), place) in self._seen for form in forms):
                    continue
                form = _form_of(prefix) if len(self._seen) < MAX_HEADS else None
                if form is not None:
                    forms.add(form)
                    self._seen.add((form.fixed(prefix), place))
                    candidates.append((prefix, literal, place, form))
            if candidates:
                self.known += _trusted(library, candidates)


def _form_of(prefix: str) -> Form | None:
    """Return where the last stamp of a prefix stands; None if there is none that can be read here."""
    if not prefix.isascii() or _WRAPPED.search(prefix):
        return None
    for kind, pattern in _FORMS:
        found = list(pattern.finditer(prefix))
        if not found:
            continue
        stamp = found[-1]
        part = stamp["part"]
        year = int(stamp["year"]) if kind == FULL else _UNDATED_YEAR
        month_at = {FULL: stamp.start() + 5, NO_YEAR: stamp.start(), NO_DATE: None}[kind]
        return Form(kind, year, month_at, stamp.start("time"), stamp.start("part") if part else None, len(part or ""))
    return None


def _trusted(library: ctypes.CDLL, candidates: list[tuple[str, str, int, Form]]) -> list[Head]:
    """Return the heads whose stamp, rank and label are found where expected, whatever the digits of the stamp."""
    trials = [
        (number, form.fill(prefix, trial)) for number, (prefix, _, _, form) in enumerate(candidates)
        for trial in _TRIALS
    ]
    table = pl.DataFrame(trials, schema={"number": pl.Int64, "prefix": pl.String}, orient="row")
    table = read_prefixes(table.with_columns(text=pl.col("prefix")))
    table = table.with_columns(us=pl.col("stamp").cast(pl.Int64))
    heads = []
    for number, rows in enumerate(table.partition_by("number", maintain_order=True)):
        prefix, literal, place, form = candidates[number]
        head = Head(place, rows["rank"][0], rows["label"][0], form, (prefix + literal).encode())
        if len(head.text) > MAX_HEAD_BYTES:
            continue
        texts = [(filled + literal).encode() for filled in rows["prefix"]]
        offsets = np.arange(len(texts) + 1) * len(head.text)
        found = Tables(library, [head]).read(b"".join(texts), offsets, np.arange(len(texts)))
        is_same = all(rows[name].n_unique() == 1 for name in ("stamp_kind", "rank", "label"))
        if ((found.heads == 0).all() and is_same and rows["stamp_kind"][0] == form.kind
                and rows["us"].to_list() == found.stamps_us.tolist()):
            heads.append(head)
    return heads
