"""What the compiled reader takes and gives, as arrays of the structs of `native/lines.c`: heads, plans and values."""

from __future__ import annotations

import ctypes
import functools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from helpers.ingest import native

WORD_BYTES = 8

MAX_FIELDS = 128
"""As in `native/lines.c`."""

COUNT, NUMBER, FLAG, OTHER = range(4)
"""Kinds of fields; the printed text of an OTHER goes to ``extra``."""


@dataclass(frozen=True)
class Form:
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

    @functools.cached_property
    def fixed(self) -> Callable[[str], tuple[str, ...]]:
        """What returns all of a head but the digits that may differ."""
        places = sorted(self.free())
        return operator.itemgetter(*map(slice, [0, *(place + 1 for place in places)], [*places, None]))

    def fill(self, text: str, trial: tuple[int, ...]) -> str:
        """Put another stamp into a head."""
        characters = list(text)
        for at, number in ((self.time_at, trial[2]), (self.time_at + 3, trial[3]), (self.time_at + 6, trial[4])):
            characters[at: at + 2] = f"{number:02d}"
        if self.month_at is not None:
            characters[self.month_at: self.month_at + 2] = f"{trial[0]:02d}"
            characters[self.month_at + 3: self.month_at + 5] = f"{trial[1]:02d}"
        if self.part_at is not None:
            characters[self.part_at: self.part_at + self.n_part] = f"{trial[4]:0{self.n_part}d}"[:self.n_part]
        return "".join(characters)

    def row(self) -> tuple[Any, ...]:
        """Return the struct."""
        firsts = np.arange(f"{self.year:04d}-01", f"{self.year + 1:04d}-02", dtype="datetime64[M]")
        days = firsts.astype("datetime64[D]").astype(np.int64)
        base_s = int(days[0]) * 86_400 if self.month_at is None else 0
        at = [-1 if place is None else place for place in (self.month_at, self.time_at, self.part_at)]
        return (*at, self.n_part, base_s, days)


@dataclass(frozen=True)
class Head:
    """Prefix and literal of a record, with the digits of the stamp left open.

    Attributes
    ----------
    place : int
        Place of the literal's family in the order of families.
    rank, label
        As `stamps.read_prefixes` found them.
    form : Form
    text : bytes
        All bytes up to the record's body.
    """

    place: int
    rank: str | None
    label: str | None
    form: Form
    text: bytes

    def words(self) -> tuple[np.ndarray, np.ndarray]:
        """Return masks and masked values of the words of the text."""
        free = self.form.free()
        mask = bytes(0 if place in free else 255 for place in range(len(self.text)))
        padding = bytes(-len(mask) % WORD_BYTES)
        masks, values = (np.frombuffer(each + padding, "<u8") for each in (mask, self.text))
        return masks, values & masks


@dataclass(frozen=True)
class Field:
    """A value of a layout: the text before it, what it is, its column, and what it is multiplied by."""

    literal: bytes
    kind: int
    column: str | None = None
    scale: float = 1.0


@dataclass(frozen=True)
class Plan:
    """How the body of one layout is read.

    Attributes
    ----------
    fields : sequence of Field
        In the order of the line.
    tail : bytes
        Text behind the last one, to the end of the line.
    pieces : sequence of (bytes, int or None)
        What ``extra`` is made of: a text, and the number of the field whose printed value follows it.
    """

    fields: tuple[Field, ...]
    tail: bytes
    pieces: tuple[tuple[bytes, int | None], ...] = ()


@dataclass(frozen=True)
class Values:
    """What was read of some lines.

    Attributes
    ----------
    heads, plans : array of int
        Per line: number of its head and of its plan; -1 for one that is not known. A line with a plan is a record.
    stamps_us : array of int
        Per line with a head [us since 1970].
    columns : dict of str -> array
        Per record, where its plan has the column; elsewhere whatever was in the memory. Counts and flags are whole
        numbers, the others floats.
    extra : bytes
        Of all records.
    extra_ends : array of int
        Per record, and 0 before the first.
    """

    heads: np.ndarray
    plans: np.ndarray
    stamps_us: np.ndarray
    columns: dict[str, np.ndarray]
    extra: bytes
    extra_ends: np.ndarray


_I8, _F8, _U8 = np.int64, np.float64, np.uint64
_FORM = np.dtype([*((name, _I8) for name in ("month_at", "time_at", "part_at", "n_part", "base_s")),
                  ("days", _I8, 13)])
_GROUP = np.dtype([(name, _I8) for name in ("n_bytes", "first_mask", "form", "first_slot", "last_slot")])
_HEAD = np.dtype([(name, _I8) for name in ("place", "first_value")])
_PLAN = np.dtype([(name, _I8) for name in (
    "first_field", "n_fields", "tail_at", "tail_bytes", "first_piece", "n_pieces",
)])
_FIELD = np.dtype([*((name, _I8) for name in ("literal_at", "literal_bytes", "kind", "column")), ("scale", _F8)])
_PIECE = np.dtype([(name, _I8) for name in ("literal_at", "literal_bytes", "field")])


class _Reader(ctypes.Structure):
    """As in `native/lines.c`."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in (
            "forms", "groups", "masks", "slots", "heads", "values", "first_plans", "plans", "fields", "pieces", "pool",
        )),
        ("n_groups", ctypes.c_int64),
    ]


class Tables:
    """Heads and plans as the compiled reader takes them.

    Parameters
    ----------
    library : ctypes.CDLL
    heads : sequence of Head
    plans : sequence of sequence of Plan
        Per place of a family, in the order in which they are tried.
    """

    def __init__(self, library: ctypes.CDLL, heads: Sequence[Head], plans: Sequence[Sequence[Plan]] = ()) -> None:
        self._library = library
        self._pool = bytearray()
        self._kinds: dict[str, int] = {}
        for plan in (plan for some in plans for plan in some):
            for field in plan.fields:
                if field.column is not None:
                    self._kinds.setdefault(field.column, field.kind)
        self._extra_bytes = max(
            (sum(len(text) for text, _ in plan.pieces) for some in plans for plan in some), default=0
        )
        arrays = {**self._of_heads(heads), **self._of_plans(plans)}
        n_places = max((head.place for head in heads), default=0) + 1
        firsts = np.cumsum([0, *(len(some) for some in plans)])
        arrays["first_plans"] = np.concatenate([firsts, np.full(n_places, firsts[-1])]).astype(_I8)
        arrays["pool"] = np.frombuffer(bytes(self._pool) or b"\0", np.uint8)
        self._arrays = arrays  # what the struct points into
        self._reader = _Reader(**{name: values.ctypes.data for name, values in arrays.items() if name != "n_groups"},
                               n_groups=len(arrays["groups"]))

    def _of_heads(self, heads: Sequence[Head]) -> dict[str, np.ndarray]:
        together: dict[tuple[bytes, int, Form], list[int]] = {}
        words = [head.words() for head in heads]
        for number, (head, (masks, _)) in enumerate(zip(heads, words, strict=True)):
            together.setdefault((masks.tobytes(), len(head.text), head.form), []).append(number)
        groups, slots, masks_of_all = [], [np.zeros(0, np.int32)], [np.zeros(0, _U8)]
        firsts = np.cumsum([0, *(len(values) for _, values in words)])
        n_masks = n_slots = 0
        for form, ((mask, n_bytes, _), members) in enumerate(together.items()):
            table = np.zeros(2 ** (2 * len(members)).bit_length(), np.int32)
            for number in members:
                values = words[number][1]
                slot = self._library.mix_words(values.ctypes.data, len(values)) % len(table)
                while table[slot]:
                    slot = (slot + 1) % len(table)
                table[slot] = number + 1
            groups.append((n_bytes, n_masks, form, n_slots, len(table) - 1))
            masks_of_all.append(np.frombuffer(mask, _U8))
            slots.append(table)
            n_masks, n_slots = n_masks + len(mask) // WORD_BYTES, n_slots + len(table)
        places = [(head.place, first) for head, first in zip(heads, firsts[:-1], strict=True)]
        return {
            "forms": np.array([form.row() for _, _, form in together], _FORM), "groups": np.array(groups, _GROUP),
            "masks": np.concatenate(masks_of_all), "slots": np.concatenate(slots), "heads": np.array(places, _HEAD),
            "values": np.concatenate([*(values for _, values in words), np.zeros(0, _U8)]),
        }

    def _of_plans(self, plans: Sequence[Sequence[Plan]]) -> dict[str, np.ndarray]:
        rows: list[tuple[int, ...]] = []
        fields: list[tuple[int | float, ...]] = []
        pieces: list[tuple[int, ...]] = []
        numbers = {name: number for number, name in enumerate(self._kinds)}
        for plan in (plan for some in plans for plan in some):
            rows.append((len(fields), len(plan.fields), *self._kept(plan.tail), len(pieces), len(plan.pieces)))
            for field in plan.fields:
                column = -1 if field.column is None else numbers[field.column]
                fields.append((*self._kept(field.literal), field.kind, column, field.scale))
            pieces += [(*self._kept(text), -1 if field is None else field) for text, field in plan.pieces]
        return {"plans": np.array(rows, _PLAN), "fields": np.array(fields, _FIELD), "pieces": np.array(pieces, _PIECE)}

    def _kept(self, text: bytes) -> tuple[int, int]:
        """Put a text into the pool; return where it stands."""
        self._pool += text
        return len(self._pool) - len(text), len(text)

    def read(self, text: native.Text, offsets: np.ndarray, rows: np.ndarray) -> Values:
        """Read lines of a text.

        Parameters
        ----------
        text : bytes or array of uint8
        offsets : array of int64
            Line k begins at ``offsets[k]`` and ends at ``offsets[k + 1]``.
        rows : array of int64
            Which lines, in their order.
        """
        n = len(rows)
        heads, plans, stamps_us = np.empty(n, np.int32), np.empty(n, np.int32), np.empty(n, _I8)
        columns, ends = np.empty((len(self._kinds), n), _I8), np.empty(n + 1, _I8)
        n_extra = self._extra_bytes * n + int((offsets[rows + 1] - offsets[rows]).sum()) if self._extra_bytes else 0
        extra = np.empty(n_extra + 1, np.uint8)
        n_read = native.read_records(
            self._library, text, offsets, rows, ctypes.byref(self._reader),
            heads, plans, stamps_us, columns, extra, ends,
        )
        named = {
            name: values[:n_read].view(_F8) if kind == NUMBER else values[:n_read]
            for (name, kind), values in zip(self._kinds.items(), columns, strict=True)
        }
        return Values(heads, plans, stamps_us, named, extra[:ends[n_read]].tobytes(), ends[: n_read + 1])
