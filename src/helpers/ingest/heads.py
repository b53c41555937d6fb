"""What stands in front of a record, known from earlier lines of the log: it differs only in the digits of its stamp.

`stamps.read_prefixes` finds stamp, rank and label in a prefix by searching. It looks at digits as such, never at
which they are, so a prefix that equals an earlier one but for the digits of the stamp has the same rank and label,
and a stamp at the same place. Each new prefix is tried with other stamps before it is trusted (`Heads.learn`).
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import polars as pl

from helpers.ingest.bytewise import MAX_ROW_WORDS, WORD_BYTES, Literal, Words, read_digit, read_pair
from helpers.ingest.stamps import FULL, NO_DATE, NO_YEAR, read_prefixes

MAX_HEADS = 512
"""More different prefixes than ranks and processes print: then each line has its own, and none is worth keeping."""

_SECOND_US = 10**6
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


@dataclass(frozen=True)
class _Form:
    """Where the digits of a stamp stand in a head: bytes from its begin; None where they are not printed."""

    kind: int
    year: int
    month_at: int | None
    time_at: int
    part_at: int | None
    n_part: int

    def free(self) -> frozenset[int]:
        """Return the places of digits that may differ."""
        places = [self.time_at + i for i in (0, 1, 3, 4, 6, 7)]
        if self.month_at is not None:
            places += [self.month_at + i for i in (0, 1, 3, 4)]
        if self.part_at is not None:
            places += range(self.part_at, self.part_at + self.n_part)
        return frozenset(places)

    def fill(self, text: str, trial: tuple[int, ...]) -> str:
        """Put another stamp into a head."""
        characters = list(text)
        for at, number in ((self.time_at, trial[2]), (self.time_at + 3, trial[3]), (self.time_at + 6, trial[4])):
            characters[at: at + 2] = f"{number:02d}"
        if self.month_at is not None:
            characters[self.month_at: self.month_at + 2] = f"{trial[0]:02d}"
            characters[self.month_at + 3: self.month_at + 5] = f"{trial[1]:02d}"
        return "".join(characters)

    def read(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return whether each stamp is one, and its microseconds since 1970, from the words of heads."""
        is_read: np.ndarray = np.ones(rows.shape[1], bool)
        clock = []
        for offset, limit in ((0, 24), (3, 60), (6, 60)):
            is_number, number = read_pair(rows, self.time_at + offset)
            is_read &= is_number & (number < limit)
            clock.append(number)
        seconds = (clock[0] * 60 + clock[1]) * 60 + clock[2]
        if self.month_at is not None:
            is_month, month = read_pair(rows, self.month_at)
            is_day, day = read_pair(rows, self.month_at + 3)
            is_month &= (month >= 1) & (month <= 12)
            firsts = np.arange(f"{self.year:04d}-01", f"{self.year + 1:04d}-02", dtype="datetime64[M]")
            days = firsts.astype("datetime64[D]").astype(np.int64)
            at = np.where(is_month, month - 1, 0)
            is_read &= is_month & is_day & (day >= 1) & (days[at] + day - 1 < days[at + 1])
            seconds += (days[at] + day - 1) * 86_400
        else:
            seconds += int(np.datetime64(f"{self.year:04d}-01-01", "s").astype(np.int64))
        stamp_us = seconds * _SECOND_US
        for place in range(self.n_part):  # few logs print fractions of a second
            is_digit, digit = read_digit(rows, self.part_at + place)  # type: ignore[operator]
            is_read &= is_digit
            stamp_us += digit * 10 ** (5 - place)
        return is_read, stamp_us


@dataclass(frozen=True)
class Head:
    """Prefix and literal of a record, with the digits of the stamp left open.

    Attributes
    ----------
    place : int
        Place of the literal's family in the order of families.
    rank, label
        As `stamps.read_prefixes` found them.
    form : _Form
    literal : Literal
        All bytes up to the record's body.
    """

    place: int
    rank: str | None
    label: str | None
    form: _Form
    literal: Literal


@dataclass
class Found:
    """Records whose head is known: their rows (in the order of lines), head number and stamp [us since 1970]."""

    rows: np.ndarray
    heads: np.ndarray
    stamp_us: np.ndarray


@dataclass
class Heads:
    """The heads of one log; they only save work, whatever is known of them.

    Attributes
    ----------
    known : list of Head
        The number of a head is its place here.
    """

    known: list[Head] = field(default_factory=list)
    _seen: set[tuple[str, int]] = field(default_factory=set)
    _groups: list[_Group] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def learn(self, prefixes: Iterable[tuple[str, str, int]], never: str) -> None:
        """Take prefixes of records that were read.

        Parameters
        ----------
        prefixes : iterable of (prefix, literal, place)
            Text in front of the literal, the literal itself, and the family's place in the order of families.
        never : str
            Regular expression (Rust syntax) of what makes a line one to be looked at as a whole.
        """
        with self._lock:
            candidates = []
            for prefix, literal, place in prefixes:
                form = _form_of(prefix) if len(self._seen) < MAX_HEADS else None
                if form is None:
                    continue
                like = form.fill(prefix, _TRIALS[0]), place
                if like not in self._seen:
                    self._seen.add(like)
                    candidates.append((prefix, literal, place, form))
            if candidates:
                self.known += _trusted(candidates, never)
                self._groups = _group(self.known)

    def find(self, words: Words, begins: np.ndarray, ends: np.ndarray) -> Found:
        """Look for the known heads at the begin of lines.

        Parameters
        ----------
        words : Words
        begins, ends : array of int
            Where each line begins, and where it ends behind its line feed.
        """
        rows, heads, stamps_us = [], [], []
        left = np.arange(len(begins))
        for group in self._groups:
            if not len(left):
                break
            fetched = words.rows(begins[left], len(group.literal.masks))
            number = group.number_of(fetched)
            is_mine = (number >= 0) & (ends[left] >= begins[left] + group.literal.n_bytes)
            if not is_mine.any():
                continue
            is_read, stamp_us = group.form.read(fetched)
            is_read &= is_mine
            rows.append(left[is_read])
            heads.append(number[is_read])
            stamps_us.append(stamp_us[is_read])
            left = left[~is_mine]
        if not rows:
            return Found(*(np.zeros(0, np.int64) for _ in range(3)))
        whole = np.concatenate(rows)
        order = np.argsort(whole, kind="stable")
        return Found(whole[order], np.concatenate(heads)[order], np.concatenate(stamps_us)[order])


@dataclass(frozen=True)
class _Group:
    """Heads of one length with the digits of the stamp at the same places.

    ``words`` holds a row per head, ``mixes`` a number made of each row, sorted, ``numbers`` which head each row is.
    """

    literal: Literal
    form: _Form
    words: np.ndarray
    mixes: np.ndarray
    numbers: np.ndarray

    def number_of(self, rows: np.ndarray) -> np.ndarray:
        """Return the number of the head in each column of fetched words; -1 where none of this group stands."""
        here = [row & mask for row, mask in zip(rows, self.literal.masks, strict=True)]
        if len(self.numbers) == 1:
            is_same: np.ndarray = np.ones(rows.shape[1], bool)
            for word, value in zip(here, self.words[0], strict=True):
                is_same &= word == value
            return np.where(is_same, self.numbers[0], -1)
        row = np.minimum(np.searchsorted(self.mixes, _mix(here)), len(self.mixes) - 1)
        is_same = np.ones(rows.shape[1], bool)
        for index, word in enumerate(here):
            is_same &= word == self.words[row, index]
        return np.where(is_same, self.numbers[row], -1)


_ODD = np.uint64(0x9E3779B97F4A7C15)
"""2^64 over the golden ratio, the usual multiplier to spread bits."""


def _mix(words: Iterable[np.ndarray]) -> np.ndarray:
    """Return one number per row of words; different rows nearly always differ in it."""
    mixed: np.ndarray | np.uint64 = np.uint64(0)
    for word in words:
        mixed = (mixed ^ word) * _ODD
        mixed ^= mixed >> np.uint64(29)
    return np.asarray(mixed)


def _group(heads: list[Head]) -> list[_Group]:
    """Put heads that can be compared at once together, in the order in which they were first seen."""
    together: dict[tuple[int, tuple[np.uint64, ...], _Form], list[int]] = {}
    for number, head in enumerate(heads):
        together.setdefault((head.literal.n_bytes, head.literal.masks, head.form), []).append(number)
    groups = []
    for numbers in together.values():
        words = np.array([heads[number].literal.values for number in numbers], np.uint64)
        mixes = _mix(words.T)
        order = np.argsort(mixes)
        first = heads[numbers[0]]
        groups.append(_Group(first.literal, first.form, words[order], mixes[order], np.array(numbers)[order]))
    return groups


def _form_of(prefix: str) -> _Form | None:
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
        return _Form(kind, year, month_at, stamp.start("time"), stamp.start("part") if part else None, len(part or ""))
    return None


def _trusted(candidates: list[tuple[str, str, int, _Form]], never: str) -> list[Head]:
    """Return the heads whose stamp, rank and label are found where expected, whatever the digits of the stamp."""
    trials = [
        (number, form.fill(prefix, trial)) for number, (prefix, _, _, form) in enumerate(candidates)
        for trial in _TRIALS
    ]
    table = pl.DataFrame(trials, schema={"number": pl.Int64, "prefix": pl.String}, orient="row")
    table = read_prefixes(table.with_columns(text=pl.col("prefix")))
    table = table.with_columns(us=pl.col("stamp").cast(pl.Int64), is_odd=pl.col("prefix").str.contains(never))
    heads = []
    for number, rows in enumerate(table.partition_by("number", maintain_order=True)):
        prefix, literal, place, form = candidates[number]
        whole = (prefix + literal).encode()
        if len(whole) > MAX_ROW_WORDS * WORD_BYTES:
            continue
        texts = Words("".join(rows["prefix"]).encode())
        is_read, stamp_us = form.read(texts.rows(np.arange(len(rows)) * len(prefix), -(-len(whole) // WORD_BYTES)))
        is_same = all(rows[name].n_unique() == 1 for name in ("stamp_kind", "rank", "label"))
        if (is_read.all() and is_same and rows["stamp_kind"][0] == form.kind and not rows["is_odd"].any()
                and rows["us"].to_list() == stamp_us.tolist()):
            heads.append(Head(place, rows["rank"][0], rows["label"][0], form, Literal.of(whole, form.free())))
    return heads
