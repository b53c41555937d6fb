"""Reading the files of evidence: whole lines with their numbers, packed or not, and where every one of them went."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from io import BufferedReader
from pathlib import Path

from helpers.schema import LogFormatError
from helpers.unpack import binary_name, gunzip, unzstd

CLASSES = ("row", "header", "other", "malformed")
"""Every line is exactly one of these; a malformed line should be a row and cannot be read as one."""

MAX_EXAMPLES = 20
"""Malformed lines kept with number, text and reason; all are counted."""

MAX_EXAMPLE_CHARS = 200
PIECE_BYTES = 2**20
MAX_LINE_BYTES = 2**24
"""A longer line is no row of a table; reading it whole would not be bounded."""

_CONTROL = bytes(set(range(32)) - set(b"\t\n\r\x08\x0c\x1b"))
_MAX_CONTROL_FRAC = 0.05
"""Share of control characters in the first 4 KiB above which a file is no text."""

_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"


@dataclass
class Tally:
    """Where every line of one file went.

    Attributes
    ----------
    file : str
        The file as given.
    lines : Counter
        CLASSES -> number of lines; they add up to the number of lines of the file.
    malformed : list of (line_no, text, reason)
        The first ones.
    notes : list of str
        What was skipped, repaired or doubtful, in words.
    """

    file: str
    lines: Counter[str] = field(default_factory=Counter)
    malformed: list[tuple[int, str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def lines_total(self) -> int:
        """Lines of the file."""
        return sum(self.lines.values())

    def count(self, name: str, n: int = 1) -> None:
        """Count lines of one class."""
        self.lines[name] += n

    def reject(self, line_no: int, text: str, reason: str) -> None:
        """Count a malformed line, and keep the first ones."""
        self.lines["malformed"] += 1
        if len(self.malformed) < MAX_EXAMPLES:
            self.malformed.append((line_no, text[:MAX_EXAMPLE_CHARS], reason))

    def as_dict(self) -> dict[str, object]:
        """Return everything as JSON-safe containers."""
        return {"file": self.file, "lines_total": self.lines_total,
                "lines": {name: self.lines[name] for name in CLASSES},
                "malformed": [dict(zip(("line_no", "text", "reason"), found, strict=True)) for found in self.malformed],
                "notes": list(self.notes)}


class _Counted:
    """A file that knows how many stored bytes were read: what unpacking is held against, and progress."""

    def __init__(self, file: BufferedReader) -> None:
        self._file, self.n_bytes = file, 0

    def read(self, size: int) -> bytes:
        piece = self._file.read(size)
        self.n_bytes += len(piece)
        return piece


def pieces(path: str | Path) -> Iterator[tuple[bytes, int]]:
    """Yield the content of a file in pieces, unpacked, each with the stored bytes read so far.

    Parameters
    ----------
    path : path
        Plain, .gz or .zst; recognised by content, not by name.

    Raises
    ------
    LogFormatError
        The file cannot be read, or is a damaged archive.
    """
    try:
        file = open(path, "rb")
    except OSError as error:
        raise LogFormatError(f"{path}: expected a readable file, found: {error.strerror or error}") from error
    with file:
        source = _Counted(file)
        try:
            start = source.read(4)
            if start[:2] == _GZIP:
                unpacked = gunzip(start, source, str(path), PIECE_BYTES)
            elif start == _ZSTD:
                unpacked = unzstd(start, source, str(path), PIECE_BYTES)
            else:
                unpacked = _plain(start, source)
            for piece in unpacked:
                yield piece, source.n_bytes
        except OSError as error:
            raise LogFormatError(f"{path}: expected a readable file, found: {error.strerror or error}") from error


def _plain(start: bytes, source: _Counted) -> Iterator[bytes]:
    yield start
    while piece := source.read(PIECE_BYTES):
        yield piece


def lines(path: str | Path) -> Iterator[tuple[int, str]]:
    """Yield (number from 1, text without its end) of every line; UTF-8 or UTF-16 with its mark, wrong bytes replaced.

    Raises
    ------
    LogFormatError
        As `pieces`; or a line is longer than a table can have.
    """
    rest, number, encoding = b"", 0, ""
    for piece, _ in pieces(path):
        rest += piece
        if not encoding and len(rest) >= 4:
            encoding = "utf-16" if rest[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8"
        if encoding == "utf-16":
            continue
        *whole, rest = rest.split(b"\n")
        for line in whole:
            number += 1
            yield number, _text(line, number)
        if len(rest) > MAX_LINE_BYTES:
            raise LogFormatError(f"{path}: line {number + 1} is longer than {MAX_LINE_BYTES} bytes: no table of rows")
    if encoding == "utf-16":
        decoded = rest.decode("utf-16", "replace").removesuffix("\n").split("\n")
        yield from ((at, line.rstrip("\r")) for at, line in enumerate(decoded, 1))
    elif rest:
        yield number + 1, _text(rest, number + 1)


def _text(line: bytes, number: int) -> str:
    text = line.decode("utf-8", "replace").rstrip("\r")
    return text.removeprefix("\ufeff") if number == 1 else text


def binary_kind(path: str | Path) -> str:
    """Say what a file is that holds no text; empty for text, and for an empty file.

    Raises
    ------
    LogFormatError
        As `pieces`.
    """
    start = b""
    for piece, _ in pieces(path):
        start += piece
        if len(start) >= _START_BYTES:
            break
    start = start[:_START_BYTES]
    named = binary_name(start)
    if named or start[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return named
    if start and not (start := start.rstrip(b"\0")):  # a crash leaves zeros behind the last line
        return "nothing but zero bytes"
    n_control = len(start) - len(start.translate(None, _CONTROL))
    return "a binary file" if n_control > _MAX_CONTROL_FRAC * len(start) else ""


def json_keys(start: str, most: int = 6) -> list[str]:
    """Return the first keys in the start of a JSON file, to name it by; none if it is no JSON."""
    return re.findall(r'"([^"\n]{1,40})"\s*:', start[:2000])[:most] if _JSON.match(start) else []


def is_json(start: str) -> bool:
    """Tell whether a file begins as an object or a list of objects; a bracket alone also begins the stamp of a log."""
    return bool(_JSON.match(start))


_JSON = re.compile(r"\s*(\{\s*[\"}]|\[\s*[{\]])")
_START_BYTES = 4096


def head(path: str | Path, size: int = 65536) -> str:
    """Return the first characters of a file, to recognise it by."""
    found = b""
    for piece, _ in pieces(path):
        found += piece
        if len(found) >= size:
            break
    encoding = "utf-16" if found[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    return found[:size].decode(encoding, "replace")
