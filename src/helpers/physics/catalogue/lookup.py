"""Find a name in a catalogue as people, drivers and logs write it, or say which names come near.

A name is compared word by word: case and punctuation do not count, but the point of a number does, so that 1.7B and
17B stay two sizes. What is not certain is an error that lists the candidates, never a guess.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from helpers.schema import RooflogError

MAX_LISTED = 6
_NOUNS = {"hardware": "accelerator"}
_CACHE_PREFIX = "models--"  # a folder of the hub's cache: models--org--name/snapshots/revision


@dataclass(frozen=True)
class Match:
    """The entry that a request means.

    Attributes
    ----------
    name : str
        Name of the entry.
    known_as : str
        The name or alias of it that fits.
    ignored : tuple of str
        Words that only the request or only the entry has; empty where the names are the same.
    """

    name: str
    known_as: str
    ignored: tuple[str, ...] = ()


def find_name(
    asked: str,
    names: Mapping[str, Iterable[str]],
    *,
    what: str,
    where: str,
    noise: Collection[str] = (),
    described: Mapping[str, str] | None = None,
) -> Match:
    """Find the one entry of a catalogue that a request means.

    Tried in order: the name or an alias; the same with case and punctuation aside; the tail of a path or of an
    ``org/name``; the same words when `noise` is aside; and, with `described` only, all words of the request in one
    description, then its letters inside one name.

    Parameters
    ----------
    asked : str
        What a person, a driver or a log calls it.
    names : mapping of str to iterable of str
        Entry -> its other names.
    what, where : str
        For the message: what is looked up, and where the names are.
    noise : collection of str
        Words in lower case that do not tell entries apart (a vendor, "instruct").
    described : mapping of str to str, optional
        Entry -> its words. Give it where a part of a name may stand for the whole.

    Returns
    -------
    Match

    Raises
    ------
    RooflogError
        No entry or several fit; the message lists those to choose from.

    Examples
    --------
    >>> find_name("/models/qwen3_8b/", {"Qwen3-8B": (), "Qwen3-8B-FP8": ()}, what="model", where="the list").name
    'Qwen3-8B'
    """
    aside = frozenset(noise)
    known = [(name, other) for name, others in names.items() for other in (name, *others)]
    for spelled in (str, _joined):
        for form in path_tails(asked):
            hits = _first(known, lambda other: spelled(form) in {spelled(tail) for tail in path_tails(other)})
            if hits:
                return Match(*_only(asked, hits, what))
    for form in path_tails(asked):
        words = _words(form)
        hits = _first(known, lambda other: words - aside == _words(path_tails(other)[-1]) - aside)
        if hits and words - aside:
            name, other = _only(asked, hits, what)
            return Match(name, other, tuple(sorted(words ^ _words(path_tails(other)[-1]))))
    for hits in _parts(asked, described or {}, aside):
        if hits:
            return Match(*_only(asked, hits, what))
    hint = _hint(asked, known, aside)
    raise RooflogError(f"{what} {asked!r}: no such {_NOUNS.get(what, what)}; {hint} (names: {where})")


def path_tails(asked: str) -> tuple[str, ...]:
    """Return a request and what it may stand for if it is a path: ``org/name`` of a hub's cache, the last part.

    Examples
    --------
    >>> path_tails("/data/models/Qwen3-8B/")
    ('/data/models/Qwen3-8B/', 'Qwen3-8B')
    >>> path_tails("/cache/models--Qwen--Qwen3-8B/snapshots/4f2a")[1:]
    ('Qwen/Qwen3-8B', 'Qwen3-8B', '4f2a')
    """
    parts = [part for part in asked.replace("\\", "/").split("/") if part]
    folders = [part.removeprefix(_CACHE_PREFIX) for part in parts if part.startswith(_CACHE_PREFIX)]
    cached = [folder.replace("--", "/", 1) for folder in folders]
    tails = [asked, *cached, *(name.split("/")[-1] for name in cached), *parts[-1:]]
    return tuple(dict.fromkeys(tails))


def _first(known: Iterable[tuple[str, str]], fits: Callable[[str], bool]) -> dict[str, str]:
    """Return the entries with a name that fits, each with the first such name."""
    hits: dict[str, str] = {}
    for name, other in known:
        if fits(other):
            hits.setdefault(name, other)
    return hits


def _only(asked: str, hits: Mapping[str, str], what: str) -> tuple[str, str]:
    """Return the only hit, or list them."""
    if len(hits) > 1:
        found = f"{len(hits)}: {'; '.join(hits)}"
        raise RooflogError(f"{what} {asked!r}: expected one {_NOUNS.get(what, what)}, found {found}")
    return next(iter(hits.items()))


def _parts(asked: str, described: Mapping[str, str], aside: frozenset[str]) -> Iterator[dict[str, str]]:
    """Yield the entries whose description holds every word of a request, then those whose name holds its letters."""
    wanted = _words(asked) - aside
    if wanted:
        yield {name: name for name, text in described.items() if wanted <= _words(text)}
        yield {name: name for name in described if _joined(asked) in _joined(name)}


def _hint(asked: str, known: Iterable[tuple[str, str]], aside: frozenset[str]) -> str:
    """Name the entries that hold every word of the request, else those whose letters come near."""
    known, tail = list(known), path_tails(asked)[-1]
    wanted = _words(tail) - aside
    near = list(_first(known, lambda other: wanted <= _words(path_tails(other)[-1]))) if wanted else []
    if not near:
        joined = {_joined(name): name for name, _ in known}
        near = [joined[key] for key in difflib.get_close_matches(_joined(tail), joined, n=3, cutoff=0.5)]
    if not near:
        return "it is not in the catalogue"
    more = f" or {len(near) - MAX_LISTED} more" if len(near) > MAX_LISTED else ""
    return f"did you mean {' or '.join(near[:MAX_LISTED])}{more}?"


def _spelled(name: str) -> list[str]:
    """Split at everything but letters, digits and the point of a number; no capitals."""
    padded = f" {name.lower()} "
    kept = (
        c if c.isalnum() or (c == "." and before.isdigit() and after.isdigit()) else " "
        for before, c, after in zip(padded, padded[1:], padded[2:], strict=False)
    )
    return "".join(kept).split()


def _words(name: str) -> frozenset[str]:
    return frozenset(_spelled(name))


def _joined(name: str) -> str:
    return "".join(_spelled(name))
