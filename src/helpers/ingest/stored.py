"""The stored bytes of a source: read once, hashed and counted as they are, unpacked and as UTF-8 where asked."""

from __future__ import annotations

import codecs
import hashlib
import os
import stat
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

import numpy as np
import zstandard

from helpers import remote, unpack
from helpers.ingest.threads import n_threads
from helpers.schema import LogFormatError

_MAGIC_BYTES = 4
_PACKED = (b"\x1f\x8b", zstandard.FRAME_HEADER, codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
"""What files begin with whose lines are not those stored."""

_MIN_HASHED_ASIDE = 2**18
"""Bytes from which another thread hashes them."""


class StoredBytes:
    """The stored bytes of a source, hashed and counted as they are read."""

    def __init__(self, path: str) -> None:
        self._file: BinaryIO = sys.stdin.buffer if path == "-" else _open(path)
        self._path, self._hash = path, hashlib.sha256()
        self._size_bytes = None if path == "-" else _stored_bytes(self._file)
        self._hasher = ThreadPoolExecutor(1) if n_threads() > 1 else None
        self._hashed: Future[None] | None = None
        self._free: list[np.ndarray] = []
        self.n_bytes = 0

    @property
    def is_packed(self) -> bool:
        """Whether lines cannot be read from anywhere: no regular file, compressed, or not plain UTF-8."""
        start = self.peek(0, _MAGIC_BYTES) if self._size_bytes is not None else b""
        return not start or start.startswith(_PACKED)

    def peek(self, at: int, size: int) -> bytes:
        """Return some bytes of a regular file, neither hashed nor counted."""
        return os.pread(self._file.fileno(), size, at)

    def read(self, size: int) -> bytes:
        """Return the next bytes, as many as asked for unless the source ends before."""
        data = self._file.read(size)
        self._add(data)
        return data

    def read_aside(self, size: int, room: int) -> tuple[np.ndarray, Callable[[], None]]:
        """Read into a buffer of ``room`` bytes, an old one if there is one; return what was read, and `give_back`.

        New memory costs as much time as the bytes read into it.
        """
        buffer = self._free.pop() if self._free else np.empty(room, np.uint8)
        data = buffer[: self._file.readinto(buffer[:size].data)]  # type: ignore[attr-defined]
        hashed = self._add(data)

        def give_back() -> None:
            if hashed is not None:
                hashed.result()
            self._free.append(buffer)

        return data, give_back

    def _add(self, data: bytes | np.ndarray) -> Future[None] | None:
        """Hash and count bytes; large ones in another thread, in their order."""
        if not len(data):
            return None
        self.n_bytes += len(data)
        if self._hasher is not None and len(data) > _MIN_HASHED_ASIDE:
            self._hashed = self._hasher.submit(self._hash.update, data)  # type: ignore[arg-type]
            return self._hashed
        self._await_hash()
        self._hash.update(data)  # type: ignore[arg-type]
        return None

    def _await_hash(self) -> None:
        if self._hashed is not None:
            self._hashed.result()

    def hexdigest(self) -> str:
        """Return the SHA-256 of what was read so far."""
        self._await_hash()
        return self._hash.hexdigest()

    def doubts(self) -> list[str]:
        """Say in words if the file was written or cut while it was read."""
        before = self._size_bytes
        now = None if before is None else _stored_bytes(self._file)
        if before is None or now is None or before == now == self.n_bytes:
            return []
        verb, what = ("grew", "the end may be missing") if now > before else ("shrank", "lines are lost")
        return [f"{self._path}: {verb} from {before} to {now} bytes while it was read: {what}"]

    def close(self) -> None:
        """Close the file, unless it is standard input."""
        if self._hasher is not None:
            self._hasher.shutdown()
        if self._file is not sys.stdin.buffer:
            self._file.close()


def _stored_bytes(file: BinaryIO) -> int | None:
    """Return the size of a regular file; a pipe has none."""
    status = os.fstat(file.fileno())
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def _open(path: str) -> BinaryIO:
    """Open a file or say in one line why not."""
    try:
        return Path(path).open("rb", buffering=0)
    except FileNotFoundError as error:
        name = remote.shown(path)
        raise LogFormatError(f"{name}: no such file; expected a server log. Check the path") from error
    except OSError as error:
        raise LogFormatError(f"{path}: cannot be read ({error.strerror}); expected a readable server log") from error


def decoded(source: StoredBytes, path: str, size: int, oddities: Counter[str]) -> Iterator[bytes]:
    """Yield the source unpacked and as UTF-8, recognised by its first bytes, not by its name."""
    if source.n_bytes:  # what is left of a file whose begin is known
        yield from _plain(b"", source, size)
        return
    start = source.read(_MAGIC_BYTES)
    stream: Iterator[bytes]
    if start[:2] == b"\x1f\x8b":
        stream = unpack.gunzip(start, source, path, size)
    elif start == zstandard.FRAME_HEADER:
        stream = unpack.unzstd(start, source, path, size)
    else:
        stream = _plain(start, source, size)
    first = next(stream, b"")
    encoding = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}.get(first[:2])
    is_wide = first[2:1002].count(0) * 4 > len(first[2:1002])  # every second byte of Latin text
    if encoding is None or not is_wide:
        yield first.removeprefix(codecs.BOM_UTF8)
        yield from stream
        return
    oddities["utf16"] += 1  # what a Windows shell writes when it redirects a server's output
    decoder = codecs.getincrementaldecoder(encoding)(errors="replace")
    yield decoder.decode(first[2:]).encode()
    for piece in stream:
        yield decoder.decode(piece).encode()


def with_last(pieces: Iterator[bytes]) -> Iterator[tuple[bytes, bool]]:
    """Tell of each piece whether it is the last."""
    before = next(pieces, None)
    for piece in pieces:
        yield before or b"", False
        before = piece
    if before is not None:
        yield before, True


def _plain(start: bytes, source: StoredBytes, size: int) -> Iterator[bytes]:
    """Yield the bytes as they are."""
    piece = start + source.read(size)
    while piece:
        yield piece
        piece = source.read(size)
