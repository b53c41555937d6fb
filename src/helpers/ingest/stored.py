"""The stored bytes of a source: read once, hashed and counted as they are, unpacked and as UTF-8 where asked."""

from __future__ import annotations

import codecs
import hashlib
import os
import signal
import stat
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import BinaryIO

import numpy as np
import zstandard

from helpers import remote, unpack
from helpers.ingest.threads import n_beside, pool_of
from helpers.schema import LogFormatError

_MAGIC_BYTES = 4
_PACKED = (b"\x1f\x8b", zstandard.FRAME_HEADER, codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
"""What files begin with whose lines are not those stored."""

_MAX_UNHASHED = 6
"""Pieces that may be read and not yet hashed: something to do while a log's habits are learnt and tables are made. New
memory for more takes longer than a core that waits."""

_PAGE_BYTES = 2**21
"""Large pages of memory on most machines."""


class Hashing:
    """The SHA-256 of pieces in their order, worked out in another thread where more than one may be used."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self._pool = pool_of(min(1, n_beside()))
        self._begun: deque[Future[None]] = deque()

    def add(self, data: bytes | np.ndarray) -> Future[None]:
        """Take the next piece; it must not change until the future is done."""
        done = self._pool.submit(self._hash.update, data)  # type: ignore[arg-type]
        self._begun.append(done)
        while len(self._begun) > _MAX_UNHASHED:
            self._begun.popleft().result()
        return done

    def digest(self) -> Callable[[], str]:
        """Return what gives the hash of all pieces, once it is worked out. No piece may follow."""
        self._begun.clear()  # they hold the buffers
        return self._pool.submit(self._hash.hexdigest).result

    def close(self) -> None:
        """Let the thread go when it is done."""
        self._pool.shutdown(wait=False)


class StoredBytes:
    """The stored bytes of a source, hashed and counted as they are read."""

    def __init__(self, path: str) -> None:
        self._file: BinaryIO = sys.stdin.buffer if path == "-" else _open(path)
        self._path, self._hashing = path, Hashing()
        self._size_bytes, self._written_ns = (None, 0) if path == "-" else _state(self._file)
        if self._size_bytes is None and sys.platform != "win32":
            signal.siginterrupt(signal.SIGINT, True)  # with polars' handler a read that waits would not end by Ctrl-C
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
        self.n_bytes += len(data)
        self._hashing.add(data)
        return data

    def read_aside(self, size: int, room: int) -> tuple[np.ndarray, Callable[[], None]]:
        """Read into a buffer of ``room`` bytes, an old one if there is one; return what was read, and `give_back`.

        New memory costs as much time as the bytes read into it.
        """
        buffer = self._free.pop() if self._free else _new_buffer(room)
        data = buffer[: self._file.readinto(buffer[:size].data)]  # type: ignore[attr-defined]
        self.n_bytes += len(data)
        hashed = self._hashing.add(data)

        def keep(_: Future[None]) -> None:
            if not self._file.closed:
                self._free.append(buffer)

        return data, lambda: hashed.add_done_callback(keep)

    def digest(self) -> Callable[[], str]:
        """Return what gives the SHA-256 of all that was read, once it is worked out."""
        return self._hashing.digest()

    def doubts(self) -> list[str]:
        """Say in words if the file was written or cut while it was read."""
        before = self._size_bytes
        now, written_ns = (None, 0) if before is None else _state(self._file)
        if before is None or now is None:
            return []
        if before == now == self.n_bytes:
            is_as_it_was = written_ns == self._written_ns
            return [] if is_as_it_was else [
                f"{self._path}: written to while it was read: lines may be missing or mixed"]
        verb, what = ("grew", "the end may be missing") if now > before else ("shrank", "lines are lost")
        return [f"{self._path}: {verb} from {before} to {now} bytes while it was read: {what}"]

    def close(self) -> None:
        """Close the file, unless it is standard input."""
        self._hashing.close()
        self._free.clear()
        if self._file is not sys.stdin.buffer:
            self._file.close()


def _new_buffer(size: int) -> np.ndarray:
    """Return memory that begins where a large page may, so that few of these are asked for, not many small ones."""
    room = np.empty(size + _PAGE_BYTES, np.uint8)
    return room[-room.ctypes.data % _PAGE_BYTES:][:size]


def _state(file: BinaryIO) -> tuple[int | None, int]:
    """Return the size of a regular file, which a pipe has not, and when it was written last [ns]."""
    status = os.fstat(file.fileno())
    return status.st_size if stat.S_ISREG(status.st_mode) else None, status.st_mtime_ns


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
