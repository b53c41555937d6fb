"""What is said about a text without a statistic line: the nearest dialect, the lines that were not read, what to do."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from helpers.ingest.dialect import Dialect
from helpers.ingest.engines import DIALECTS

MIN_SHARED_WORDS = 3
"""Words that unread lines and a dialect must share before it is named; two happen by chance in any server log."""

_WORD = re.compile(r"[A-Za-z]{3,}")
_COMMON_WORDS = frozenset(
    "and are for from info is not the with was has avg time times number count rate token tokens request requests "
    "req reqs input output total batch per".split()
)
NOTHING = "nothing of a server log in it"
"""What `describe_contents` says of any other text."""

MEASURED_PATTERN = r"[0-9] ?(?:tok(?:en)?s?|t)/s|per second|throughput|\b(?:tok|token)s?\b.*[0-9]"
"""A line that seems to state a rate or a number of tokens (Rust and Python syntax)."""

_MEASURED = re.compile(MEASURED_PATTERN)

HOW_TO_REPORT = (
    "to have it read: report these lines with engine and version (`rooflog redact` makes a copy safe to share), or add "
    "the engine, docs/adding-an-engine.md; `rooflog engines` lists what is read"
)


def looks_measured(text: str) -> bool:
    """Tell whether a line that no dialect knows seems to state a rate or a number of tokens.

    Parameters
    ----------
    text : str
        A line without colours.
    """
    return bool(_MEASURED.search(text)) and any(character.isdigit() for character in text)


@functools.cache
def _vocabularies() -> dict[str, frozenset[str]]:
    """Return the words of every engine that is read."""
    return {dialect.engine: _vocabulary(dialect) for dialect in DIALECTS}


def _vocabulary(dialect: Dialect) -> frozenset[str]:
    """Return the words by which an engine's statistic lines are known."""
    texts: list[str] = []
    for family in dialect.families:
        texts += [family.literal, *family.keys, *family.suffixes, *family.lists]
        texts += [key for choice in family.required for key in choice]
    return frozenset(word for text in texts for word in _words(text))


def _words(text: str) -> set[str]:
    return {word.lower() for word in _WORD.findall(text)} - _COMMON_WORDS


def nearest_dialect(lines: Iterable[str]) -> tuple[str, list[str]] | None:
    """Return the engine whose words the lines share most, and those words; None if none shares enough.

    Parameters
    ----------
    lines : iterable of str
        Lines that were not read.
    """
    words = set[str]().union(*map(_words, lines))
    shared = {engine: sorted(words & vocabulary) for engine, vocabulary in _vocabularies().items()}
    engine = max(shared, key=lambda name: len(shared[name]))
    return (engine, shared[engine]) if len(shared[engine]) >= MIN_SHARED_WORDS else None


def describe_contents(known: Mapping[str, int], event_kinds: Mapping[str, int], unread: Sequence[str] = ()) -> str:
    """Say in a few words what a text without statistics holds instead.

    Parameters
    ----------
    known : mapping
        Name of a known kind of line -> lines of it.
    event_kinds : mapping
        Kind of event -> events of it.
    unread : sequence of str
        First lines that could not be placed.

    Returns
    -------
    str
        Beginning with ``nearest:``, or that there is nothing of a server log in it.
    """
    foreign = Counter({name: count for name, count in known.items() if name.endswith("statistic")})
    if foreign:
        name, count = foreign.most_common(1)[0]
        return f"nearest: {count} lines of {name}, an engine not read here"
    if event_kinds:
        found = Counter(event_kinds).most_common(5)
        return "nearest: server events " + ", ".join(f"{kind} x{count}" for kind, count in found)
    near = nearest_dialect(unread)
    if near is not None:
        return f"nearest dialect: {near[0]} (shares the words {', '.join(near[1][:6])})"
    if known:
        name, count = Counter(known).most_common(1)[0]
        return f"nearest: {count} lines of kind {name}"
    return NOTHING


def describe_unread(
    path: str, n_lines: int, contents: str, unread: Sequence[str] = (), malformed: Sequence[tuple[int, str]] = (),
    n_malformed: int = 0,
) -> str:
    """Word the error of a log without statistics: expected, found, nearest dialect, first unread lines, what to do.

    Parameters
    ----------
    path : str
        The input.
    n_lines : int
        Lines in it.
    contents : str
        From `describe_contents`.
    unread : sequence of str
        First lines that could not be placed; those that state a rate are shown before others.
    malformed : sequence of (line number, reason)
        The first statistic lines that could not be read whole.
    n_malformed : int
        All of them.
    """
    message = f"{path}: expected statistic lines ({expected_lines()}), found none in {n_lines} lines; {contents}"
    if malformed:
        line_no, reason = malformed[0]
        message += f"; {n_malformed} malformed, the first in line {line_no}: {reason}"
    elif unread:
        shown = sorted(unread, key=lambda text: not looks_measured(text))
        message += "; first unread lines: " + " | ".join(shown) + "; " + HOW_TO_REPORT
    return message + (
        ". Check that it is the server's log, that it was not started with --disable-log-stats or a log level above "
        "info, and that requests were served"
    )


def expected_lines() -> str:
    """Return the best known statistic lines and the names of the other engines, as words of an error message."""
    others = sorted(dialect.engine for dialect in DIALECTS if dialect.engine not in ("sglang", "vllm"))
    return f"'Decode batch' of SGLang, 'Avg prompt throughput' of vLLM, or those of {', '.join(others)}"
