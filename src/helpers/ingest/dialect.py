"""What a dialect declares, and how one printed layout of a statistic line is read.

A record body with its numbers blanked out is its *layout*: ``#running-req: 12, #token: 345`` and
``#running-req: 1, #token: 60`` share one. A log holds a handful of layouts in millions of lines, so a layout is
understood once, here, in plain Python, and `extract` applies it to all its lines at once. Keys may come in any
order; unknown ones are kept; a part that is no ``key: value`` makes the layout, and so its lines, malformed.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import polars as pl

HOLE = "\x00"
"""Stands for one value in a layout. NUL bytes are removed from lines before, so it cannot occur in one."""

VALUE_PATTERN = (
    r"-?(?-u:\b)(?:[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|nan|inf|True|False)(?-u:\b)"
)
"""One printed value (Rust regex syntax). Digits inside a word (``TP0``, ``P90``) are no value."""


MAX_VALUES = 100
"""More values than any record has (the longest, 15 speculation positions included, has 24)."""


@dataclass(frozen=True)
class Key:
    """Where a printed key goes: SAMPLES column, how it is read, and the unit printed after the value.

    A column whose name begins with ``_`` is a number for `Family.derived` only; it is in ``extra`` as printed too.

    ``read`` is ``count`` (whole, not negative), ``rate`` (finite, not negative), ``percent`` (a rate divided by
    100), ``ms`` (a rate divided by 1000, to seconds) or ``flag`` (True or False). A fallback fills its column only
    if no other key of the line does.
    """

    column: str
    read: str = "count"
    unit: str = ""
    is_fallback: bool = False


@dataclass(frozen=True, eq=False)
class Family:
    """One kind of statistic record of one engine.

    Attributes
    ----------
    engine, kind : str
        As in SAMPLES.
    literal : str
        Text that names the record; the prefix before it is searched for stamp and rank, never assumed.
    keys : mapping
        Printed key -> `Key`. A key that is absent here goes to ``extra``.
    suffixes : mapping
        End of a printed key -> `Key`, for keys that begin with any device name.
    required : tuple of tuple of str
        Of each inner tuple at least one key (or suffix) must be present, or the line was cut.
    required_with : mapping
        Key or suffix -> key that every version printing the first also prints.
    head : str
        Regular expression on the layout for what stands between literal and first key; its groups are columns.
    begins : tuple of str
        What may follow the head in a real record. Anything else is prose that mentions the literal.
    separator : str
        Regular expression between two parts of the layout.
    is_key : bool
        The literal is itself the first key.
    lists : tuple of str
        Keys whose value is several numbers separated like the parts.
    counts_first : bool
        Parts may read ``12 name`` instead of ``name: 12``.
    continued : tuple of str
        Keys whose value goes on in parts of the form ``12 name``.
    bare : tuple of str
        Keys of forks that print ``key 1.5`` without a colon.
    flags : mapping
        Text -> key of ``extra`` that is true where the text appears.
    units : frozenset of str
        Units that unknown keys may carry.
    rewrite : tuple of (pattern, replacement)
        Regular expressions (Rust syntax, ``${1}`` for a group) that replace text of the body, one after another,
        before its layout is taken: what is no ``key: value`` becomes one, ``12.5ms`` becomes ``12.5e-3``.
    stamps : tuple of (pattern, template)
        Where the line's own time is not in front of the record: regular expressions (Rust syntax) on the whole line
        and what their groups become, ``[2026-01-31 10:11:12 RANK0] ``. The first that matches counts as the prefix.
    derived : mapping
        SAMPLES column -> expression on the columns read; missing keys are null there.
    """

    engine: str
    kind: str
    literal: str
    keys: Mapping[str, Key]
    required: tuple[tuple[str, ...], ...]
    suffixes: Mapping[str, Key] = field(default_factory=dict)
    required_with: Mapping[str, str] = field(default_factory=dict)
    head: str = ""
    begins: tuple[str, ...] = (HOLE,)
    separator: str = ", "
    is_key: bool = False
    lists: tuple[str, ...] = ()
    counts_first: bool = False
    continued: tuple[str, ...] = ()
    bare: tuple[str, ...] = ()
    flags: Mapping[str, str] = field(default_factory=dict)
    units: frozenset[str] = frozenset(("", "%"))
    rewrite: tuple[tuple[str, str], ...] = ()
    stamps: tuple[tuple[str, str], ...] = ()
    derived: Mapping[str, pl.Expr] = field(default_factory=dict)


@dataclass(frozen=True)
class EventRule:
    """One server event or start-up fact.

    Attributes
    ----------
    kind : str
        An EVENT_KINDS entry, or ``banner`` or ``fact`` for start-up lines that only feed the facts.
    literal : str
        Text that names it.
    pattern : str
        Regular expression searched in the line; a line without a match is not this event. Named groups become
        the detail: whole and decimal numbers are converted, thousands separators dropped, a name ending in
        ``_gib`` becomes ``_bytes``; ``size`` with ``unit`` becomes ``size_bytes``.
    """

    kind: str
    literal: str
    pattern: str = ""


@dataclass(frozen=True)
class Reading:
    """What is read from one kind of line or file, in the words of `rooflog engines`.

    Attributes
    ----------
    source : str
        The line or file, by the words that name it.
    kind : str
        Kind of the SAMPLES rows it becomes; empty for other tables.
    versions : str
        Versions of the engine whose output was seen or read in source.
    gives : mapping
        Column of SAMPLES (or name in ``extra``) -> what the number means.
    traps : tuple of str
        What the numbers do not say.
    """

    source: str
    kind: str
    versions: str
    gives: Mapping[str, str]
    traps: tuple[str, ...] = ()


@dataclass(frozen=True)
class Dialect:
    """Everything that is known about the text one engine prints.

    Attributes
    ----------
    engine : str
        As in SAMPLES.
    families, events : tuple
        Statistic records and server events.
    reads : tuple of Reading
        The same for people.
    finish : callable, optional
        Takes the records of one file (all engines, in the order of the lines, with SAMPLES' columns) and completes
        this engine's: what one line alone does not say, such as a block printed over several lines.
    restarts : callable, optional
        Takes the same records and returns the line numbers with which a server begins anew without printing it.
    """

    engine: str
    families: tuple[Family, ...]
    events: tuple[EventRule, ...]
    reads: tuple[Reading, ...] = ()
    finish: Callable[[pl.DataFrame], pl.DataFrame] | None = None
    restarts: Callable[[pl.DataFrame], list[int]] | None = None


@dataclass(frozen=True)
class Slot:
    """The n-th value of a layout: goes to a column, or to ``extra`` under a name."""

    index: int
    name: str
    key: Key | None
    unit: str = ""


@dataclass(frozen=True)
class Layout:
    """A layout understood: its slots, or why it cannot be read (``reason``), or that it is prose."""

    slots: tuple[Slot, ...] = ()
    lists: tuple[tuple[str, tuple[int, ...]], ...] = ()
    flags: tuple[str, ...] = ()
    reason: str | None = None
    is_prose: bool = False


_PAIR = re.compile(rf"(?P<key>[^{HOLE}]+?): *{HOLE}(?P<unit>[^{HOLE}]*)")
_EQUATION = re.compile(rf"(?P<key>[^{HOLE}=]+?) ?= ?{HOLE}(?P<unit>[^{HOLE}=]*)")
_COUNT_FIRST = re.compile(rf"{HOLE} (?P<key>[^{HOLE}:]+)")
_LIST = re.compile(rf"(?P<key>[^{HOLE}]+): \[{HOLE}(?:, {HOLE})*\]")
_INSIDE_BRACKETS = re.compile(rf"\[{HOLE}(?:, {HOLE})*\]")


@functools.lru_cache(maxsize=4096)
def read_layout(family: Family, layout: str) -> Layout:
    """Understand one layout of a family.

    Parameters
    ----------
    family : Family
        Its declaration.
    layout : str
        The record after the literal, each value replaced by `HOLE`.

    Returns
    -------
    Layout
        Slots in the order of the values, or the reason why the line cannot be read whole.
    """
    head = re.match(family.head, layout)
    if layout.count(HOLE) > MAX_VALUES:
        return Layout(reason=f"it holds more than {MAX_VALUES} values")
    if head is None:
        return Layout(is_prose=True)
    rest = layout[head.end():].lstrip()
    if rest and not rest.startswith(family.begins):
        return Layout(is_prose=True)
    columns = [name for name, value in head.groupdict().items() if value]
    slots = [Slot(index, name, Key(name)) for index, name in enumerate(columns)]
    text = family.literal + layout if family.is_key else rest
    flags = tuple(name for printed, name in family.flags.items() if printed in text)
    for printed in family.flags:
        text = text.replace(printed, "")
    return _read_parts(family, text, slots, flags)


def _read_parts(family: Family, text: str, slots: list[Slot], flags: tuple[str, ...]) -> Layout:
    """Read the separated parts after the head."""
    lists: list[tuple[str, tuple[int, ...]]] = []
    seen: set[str] = set()
    position = len(slots)
    previous = ""
    for part in _split_parts(family, text):
        n_values = part.count(HOLE)
        name, unit = _name_part(family, part, previous)
        if name is None:
            return Layout(reason=f"{part.replace(HOLE, '<n>')!r} is no 'key: value'")
        if n_values != 1 or name in family.lists:
            indices = tuple(range(position, position + n_values))
            if lists and lists[-1][0] == name:
                indices = lists.pop()[1] + indices
            lists.append((name, indices))
        elif name in seen:
            return Layout(reason=f"{name!r} appears twice")
        else:
            key = _find_key(family, name)
            allowed = family.units if key is None else {key.unit}
            if unit not in allowed:
                return Layout(reason=f"{name!r} carries {unit.strip()!r} where {sorted(allowed)} was expected")
            slots.append(Slot(position, name, key, unit))
        seen.add(name)
        seen.update(suffix for suffix in family.suffixes if name.endswith(suffix))
        position += n_values
        previous = name
    for choice in family.required:
        if not seen.intersection(choice):
            return Layout(reason=f"{choice[0]!r} is missing")
    for present, needed in family.required_with.items():
        if present in seen and needed not in seen:
            return Layout(reason=f"{needed!r} is missing")
    return Layout(tuple(_one_slot_per_column(slots)), tuple(lists), flags)


def any_of(literals: Iterable[str]) -> str:
    """Return the Rust regular expression for any of some literals: on many texts faster than `contains_any` is."""
    return _alternatives(tuple(literals))


_FEW_TEXTS = 2000
"""Texts that an automaton looks at sooner than an expression is made, as each thread must: 3 ms for 200 literals."""


def holds_any(texts: pl.Series, literals: Sequence[str]) -> pl.Series:
    """Tell which texts hold one of many literals."""
    if len(texts) < _FEW_TEXTS:
        return texts.str.contains_any(list(literals))
    return texts.str.contains(any_of(literals))


@functools.lru_cache(maxsize=64)
def _alternatives(literals: tuple[str, ...]) -> str:
    return "|".join(escape(literal) for literal in literals)


def escape(literal: str) -> str:
    """Return a literal as a Rust regular expression."""
    return re.sub(r"[\\.+*?()|\[\]{}^$#&~-]", r"\\\g<0>", literal)


def _split_parts(family: Family, text: str) -> list[str]:
    """Split at the separator, keeping bracketed lists whole and dropping what some versions leave at the end."""
    joined = _INSIDE_BRACKETS.sub(lambda match: match[0].replace(", ", "\x01"), text.rstrip(" ,.\r\n"))
    parts = (part.replace("\x01", ", ").strip() for part in re.split(family.separator, joined))
    return [part for part in parts if part]


def _name_part(family: Family, part: str, previous: str) -> tuple[str | None, str]:
    """Name one part and its unit; None if it is no part of a whole record."""
    if part == HOLE and previous in family.lists:
        return previous, ""
    for pattern in (_PAIR, _EQUATION):
        if match := pattern.fullmatch(part):
            return match["key"].strip(), match["unit"]
    if match := _LIST.fullmatch(part):
        return match["key"], ""
    if match := _COUNT_FIRST.fullmatch(part):
        if family.counts_first:
            return match["key"], ""
        for key in family.continued:
            if previous.startswith(key):
                return f"{key}: {match['key']}", ""
    for key in family.bare:
        if part == f"{key} {HOLE}":
            return key, ""
    return None, ""


def _find_key(family: Family, name: str) -> Key | None:
    """Return what a printed key means; None for one that goes to ``extra``."""
    if name in family.keys:
        return family.keys[name]
    return next((key for suffix, key in family.suffixes.items() if name.endswith(suffix)), None)


def _one_slot_per_column(slots: list[Slot]) -> list[Slot]:
    """Let one key fill each column, a fallback last; the others go to ``extra``."""
    taken: set[str] = set()
    kept = {}
    for slot in sorted(slots, key=lambda slot: (slot.key is not None and slot.key.is_fallback, slot.index)):
        is_free = slot.key is not None and slot.key.column not in taken
        if slot.key is not None:
            taken.add(slot.key.column)
        kept[slot.index] = slot if is_free or slot.key is None else Slot(slot.index, slot.name, None, slot.unit)
    return [kept[slot.index] for slot in slots]
