"""Unpacking gzip and zstd with bounded memory, and up to a limit: an archive may be a bomb."""

from __future__ import annotations

import gzip
import io
import os
import zlib
from collections.abc import Iterator
from typing import Protocol

import zstandard

from helpers.schema import LogFormatError

MAX_UNPACKED_BYTES = 64 * 2**30
"""An archive that unpacks to more is refused; a day of one line per step and rank is a few GiB."""

MAX_UNPACKED_RATIO = 500
"""An archive that grows by more is taken for a bomb; logs shrink up to about 100-fold, gzip at most 1032-fold."""

RATIO_MATTERS_BYTES = 256 * 2**20
"""Below, no ratio is a danger."""

LIMIT_VARIABLE = "ROOFLOG_MAX_UNPACKED_BYTES"
"""Environment variable that sets how much one archive may unpack to, whatever its ratio."""

_MAGIC = {
    b"\x89PNG": "a PNG image", b"PAR1": "a Parquet file", b"PK\x03\x04": "a zip archive", b"\x7fELF": "a program",
    b"%PDF": "a PDF", b"SQLite format 3": "an SQLite database", b"\x93NUMPY": "a NumPy array",
    b"BZh": "a bzip2 file", b"\xfd7zXZ": "an xz file", b"\xff\xd8\xff": "a JPEG image", b"GIF8": "a GIF image",
    b"ARROW1": "an Arrow file",
}

_COMPRESSED_PIECE_BYTES = 128 * 1024
_ZSTD_FEED_BYTES = 512
"""Fed to the zstd decoder at once: four bytes can stand for 128 KiB, and memory must stay bounded."""


def binary_name(start: bytes) -> str:
    """Name the binary format that a file begins as; empty where it is none of those seen in place of a text."""
    return next((name for magic, name in _MAGIC.items() if start.startswith(magic)), "")


class Stored(Protocol):
    """The stored bytes of a source; ``n_bytes`` of them have been read."""

    n_bytes: int

    def read(self, size: int) -> bytes:
        """Return the next bytes; none at the end."""
        ...


def unpacked_limit_bytes() -> int | None:
    """Return what the user allows an archive to unpack to; None if they said nothing.

    Raises
    ------
    LogFormatError
        The environment variable holds no number.
    """
    given = os.environ.get(LIMIT_VARIABLE, "")
    if given and not (given.isascii() and given.isdecimal()):
        raise LogFormatError(f"{LIMIT_VARIABLE}: expected a number of bytes, found {given!r}; correct or unset it")
    return int(given) if given else None


def _limited(pieces: Iterator[bytes], source: Stored, path: str) -> Iterator[bytes]:
    """Pass on unpacked text until it is more than an archive of a log can hold."""
    allowed = unpacked_limit_bytes()
    limit = MAX_UNPACKED_BYTES if allowed is None else allowed
    n_bytes = 0
    for piece in pieces:
        n_bytes += len(piece)
        ratio = n_bytes / max(source.n_bytes, 1)
        is_bomb = allowed is None and n_bytes > RATIO_MATTERS_BYTES and ratio > MAX_UNPACKED_RATIO
        if n_bytes > limit or is_bomb:
            raise LogFormatError(
                f"{path}: expected an archive of a log, found {n_bytes} bytes unpacked from the first {source.n_bytes} "
                f"({ratio:.0f}-fold; limits: {limit} bytes, {MAX_UNPACKED_RATIO}-fold). If it is a log, allow more "
                f"with the environment variable {LIMIT_VARIABLE}=BYTES, or unpack it first"
            )
        yield piece


def _gathered(pieces: Iterator[bytes], size: int) -> Iterator[bytes]:
    """Put small pieces together: a chunk has a cost of its own."""
    kept, n_bytes = [], 0
    for piece in pieces:
        kept.append(piece)
        n_bytes += len(piece)
        if n_bytes >= size:
            yield b"".join(kept)
            kept, n_bytes = [], 0
    if kept:
        yield b"".join(kept)


def gunzip(start: bytes, source: Stored, path: str, size: int) -> Iterator[bytes]:
    """Unpack one or several gzip members; ``start`` was read before, ``size`` is about that of a piece."""
    return _limited(_gunzip(start, source, path, size), source, path)


def unzstd(start: bytes, source: Stored, path: str, size: int) -> Iterator[bytes]:
    """Unpack one or several zstd frames; ``start`` was read before, ``size`` is about that of a piece."""
    return _limited(_gathered(_unzstd(start, source, path), size), source, path)


def _gunzip(start: bytes, source: Stored, path: str, size: int) -> Iterator[bytes]:
    with gzip.GzipFile(fileobj=_Rejoined(start, source)) as unpacked:
        try:
            while piece := unpacked.read(size):
                yield piece
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise LogFormatError(
                f"{path}: the gzip data is truncated or damaged ({error}); copy the file again"
            ) from error


def _unzstd(start: bytes, source: Stored, path: str) -> Iterator[bytes]:
    decoder = zstandard.ZstdDecompressor().decompressobj()
    packed = start + source.read(_COMPRESSED_PIECE_BYTES)
    try:
        while packed:
            position = 0
            while position < len(packed):
                if decoder.eof:
                    decoder = zstandard.ZstdDecompressor().decompressobj()
                fed = packed[position: position + _ZSTD_FEED_BYTES]
                if piece := decoder.decompress(fed):
                    yield piece
                position += len(fed) - (len(decoder.unused_data) if decoder.eof else 0)
            packed = source.read(_COMPRESSED_PIECE_BYTES)
    except zstandard.ZstdError as error:
        raise LogFormatError(f"{path}: the zstd data is damaged ({error}); copy the file again") from error
    if not decoder.eof:
        raise LogFormatError(f"{path}: the zstd data is truncated (the last frame has no end); copy the file again")


class _Rejoined(io.RawIOBase):
    """A stream with the bytes that were read to recognise it put back."""

    def __init__(self, start: bytes, source: Stored) -> None:
        self._start, self._source = start, source

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        taken = self._start if size < 0 else self._start[:size]
        self._start = self._start[len(taken):]
        return taken or self._source.read(size)
