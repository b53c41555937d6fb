"""The events of a Chrome trace as a stream: memory for one piece of the file, whatever its size.

Two parsers share the file. Python's own, the faster by far, takes the elements of the one long list; `ijson` takes all
around it, and the list too from the first element on that the other cannot take, so that what is wrong with a file is
always found and worded by the same one.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from typing import NoReturn

import ijson  # type: ignore[import-untyped]

MAX_ELEMENT_CHARS = 2**24
"""A longer element is left to the parser that need not begin anew with every piece of it."""

MAX_HEAD_BYTES = 2**23
"""The list begins before, or is left to the other parser: what stands before it in real traces is a few kilobytes."""

_LIST = re.compile(rb'"traceEvents"\s*:\s*\[')
_LIST_BYTES = 64
_BETWEEN = re.compile(r"[ \t\r\n]*(,?)[ \t\r\n]*")
_BEHIND = ",] \t\r\n"
_BETWEEN_BYTES = re.compile(rb"[ \t\r\n]*(,?)[ \t\r\n]*")


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")


_scan = json.JSONDecoder(parse_constant=_refuse).raw_decode


class TraceEvents:
    """Takes the pieces of a file and gives the events in them.

    Parameters
    ----------
    is_list : bool
        The file is the bare list of events; else an object with ``traceEvents``.
    """

    def __init__(self, *, is_list: bool) -> None:
        self._found = ijson.sendable_list()
        self._parser = ijson.items_coro(self._found, "item" if is_list else "traceEvents.item", use_float=True)
        self._places = ijson.sendable_list()
        self._place = ijson.parse_coro(self._places, use_float=True)
        self._wanted = ("", "start_array", None) if is_list else ("traceEvents", "start_array", None)
        self._begin = re.compile(rb"\[") if is_list else _LIST
        self._head: bytes | None = b""
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._text = ""
        self._is_inside, self._is_first = False, True

    def take(self, piece: bytes) -> Iterator[object]:
        """Yield the events that end in this piece of the file.

        Raises
        ------
        ijson.JSONError
            This is no JSON.
        """
        if self._head is not None:
            piece = self._look_for_list(piece)
        if self._is_inside:
            yield from self._elements(piece)
        elif piece:
            self._parser.send(piece)
        yield from self._found
        self._found.clear()

    def close(self) -> Iterator[object]:
        """Take the end of the file; yield what was left.

        Raises
        ------
        ijson.JSONError
            The file ends within a value.
        """
        if self._is_inside:
            self._leave(self._decoder.getstate()[0])
        yield from self._found
        self._found.clear()
        self._parser.close()

    def _look_for_list(self, piece: bytes) -> bytes:
        """Return what follows the begin of the list, or all of a piece that it does not begin in."""
        before = self._head or b""
        head, n_placed = before + piece, len(before)
        for match in self._begin.finditer(head, max(len(before) - _LIST_BYTES, 0)):
            if match.end() <= len(before):
                continue
            self._place.send(head[n_placed: match.end()])
            n_placed = match.end()
            if self._places and self._places[-1] == self._wanted:  # else it stands in a text
                self._parser.send(piece[: n_placed - len(before)])
                self._head, self._is_inside = None, True
                return head[n_placed:]
        if head[n_placed:]:  # nothing would mean the end of the file
            self._place.send(head[n_placed:])
        self._places.clear()
        self._head = head if len(head) < MAX_HEAD_BYTES else None
        return piece

    def _elements(self, piece: bytes) -> Iterator[object]:
        """Yield the elements that are whole; keep the begin of the next one."""
        pending, _ = self._decoder.getstate()
        try:
            text = self._text + self._decoder.decode(piece)
        except UnicodeDecodeError:
            self._leave(pending + piece)
            return
        if "\\ud" in text or "\\uD" in text:  # half a pair would make a text that cannot be written down
            self._text = text
            self._leave(self._decoder.getstate()[0])
            return
        at, end = 0, len(text)
        while True:
            between = _BETWEEN.match(text, at)
            start = between.end() if between else at
            is_in_order = bool(between and between[1]) != self._is_first
            if start >= end:
                break
            if text[start] == "]" or not is_in_order:
                self._text = text[at:]
                self._leave(self._decoder.getstate()[0])
                return
            try:
                value, stop = _scan(text, start)
            except (ValueError, RecursionError):
                stop = end
            if stop >= end or text[stop] not in _BEHIND:  # it is cut, or goes on, or is none
                if end - start > MAX_ELEMENT_CHARS:
                    self._text = text[at:]
                    self._leave(self._decoder.getstate()[0])
                    return
                break
            self._is_first = False
            yield value
            at = stop
        self._text = text[at:]

    def _leave(self, rest: bytes) -> None:
        """Give what is left to the other parser, for which nothing has been in the list so far."""
        data = self._text.encode() + rest
        self._is_inside, self._text = False, ""
        between = _BETWEEN_BYTES.match(data)
        following = data[between.end():] if between else data
        if not self._is_first and not following.startswith(b"]"):
            # two elements without a comma between them stay as wrong as they were
            data = following if between and between[1] or not following else b"0 " + following
        if data:
            self._parser.send(data)
