"""Reading the argument dumps that servers print: Python reprs that are not always Python."""

from __future__ import annotations

import ast
import functools
import math
import re
import warnings
from collections.abc import Iterator
from typing import Any

from helpers.schema import printable

MAX_DUMP = 10**6
"""Characters of a dump that are read; the longest seen have 20,000."""

_CLOSING = {"(": ")", "[": "]", "{": "}"}
_SPECIAL = re.compile(r"[\"'\\,()\[\]{}]")
_NAME = re.compile(r"\s*(?:'([^']*)'|\"([^\"]*)\"|([\w.-]+))\s*$")

_ENVELOPE_END = re.compile(r"(?<=[\w)\]}'\"])(?<![=: ][bBfFrRuU])(?:\\[nrt])*\Z")
"""Before a double quote that opens nothing: it ends the message of a JSON record (docker, journald) around the dump."""


def parse_arguments(text: str) -> dict[str, Any]:
    """Read ``ServerArgs(a=1, b='x')``, ``Namespace(...)``, ``{'a': 1}`` or ``a=1, b=x`` into a dict.

    Nothing is evaluated: each value goes through ``ast.literal_eval`` and stays text where that fails, as in
    ``dtype=torch.float32`` or ``<CompilationMode.VLLM_COMPILE: 3>``. A dump that was cut gives the part before.

    Parameters
    ----------
    text : str
        The dump; what precedes the first bracket is dropped if it is a bare name.

    Returns
    -------
    dict
        Names to JSON-safe values.
    """
    body = text[:MAX_DUMP].strip()
    if opened := re.match(r"\w*([({])", body):
        body = body[opened.end():]
    parsed = {}
    for part in split_top_level(body):
        name, value = _split_pair(part)
        if name is not None:
            parsed[name] = to_json(_literal(value))
    return parsed


def split_top_level(text: str) -> Iterator[str]:
    """Split at commas outside quotes and brackets; stop at the bracket or JSON record that ends the whole."""
    stack: list[str] = []
    quote = ""
    start = position = 0
    while special := _SPECIAL.search(text, position):
        position, character = special.start(), special[0]
        if quote:
            if character == "\\":
                position += 1
            elif character == quote:
                quote = ""
        elif not stack and character == '"' and (end := _ENVELOPE_END.search(text, max(start, position - 8), position)):
            position = end.start()
            break
        elif character in "'\"":
            quote = character
        elif character in _CLOSING:
            stack.append(_CLOSING[character])
        elif stack and character == stack[-1]:
            stack.pop()
        elif not stack and character in ")}]":
            break
        elif not stack and character == ",":
            yield text[start:position]
            start = position + 1
        position += 1
    else:
        position = len(text)
    if text[start:position].strip():
        yield text[start:position]


def _split_pair(part: str) -> tuple[str | None, str]:
    """Split ``name=value`` or ``'name': value``."""
    for separator in ("=", ":"):
        name, found, value = part.partition(separator)
        if found and (match := _NAME.match(name)):
            return next(group for group in match.groups() if group is not None), value.strip()
    return None, ""


@functools.lru_cache(maxsize=1024)  # most values of a dump are None, False or True, and the next dump has the same
def _literal(text: str) -> Any:
    """Return the Python literal, or the text itself where it is none; not to be changed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a regular expression's backslashes are no concern of the reader
            return ast.literal_eval(text)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return text


def to_json(value: Any) -> Any:
    """Make a parsed literal storable as JSON: containers become lists and dicts, the rest text."""
    if isinstance(value, float) and not math.isfinite(value):
        return printable(str(value))
    if isinstance(value, str):
        return printable(value)
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, dict):
        return {printable(str(key)): to_json(item) for key, item in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted((to_json(item) for item in value), key=str)
    if isinstance(value, (list, tuple)):
        return [to_json(item) for item in value]
    return str(value)
