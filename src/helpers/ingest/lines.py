"""From bytes to candidate lines: chunked reading, decompression, cleaning, counting what was odd."""

from __future__ import annotations

import codecs
import contextlib
import functools
import hashlib
import os
import re
import stat
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import numpy as np
import polars as pl
import pyarrow as pa
import zstandard

from helpers import remote, unpack
from helpers.ingest import native, wrappers
from helpers.ingest.threads import n_threads
from helpers.schema import LogFormatError

CHUNK_BYTES = 8 * 2**20
"""Bytes of text held at once; memory follows it, not the size of the file."""

MAX_LINE_BYTES = 16 * 2**20
"""Longer lines are cut here (and counted): no statistic line is, and memory must stay bounded."""

LONG_LINE_BYTES = 100_000
"""Lines above are counted as odd; the longest argument dumps seen are 20 kB."""

_MIN_HASHED_ASIDE = 2**18
"""Bytes from which another thread hashes them."""

_PROBE_BYTES = 2**18
"""Read first from where a chunk shall end, to find the end of a line there."""

_CONTROL = bytes(set(range(32)) - set(b"\t\n\r\x08\x0c\x1b\x00"))
_ODD_CODES = bytes([*set(range(32)) - set(b"\t\n\r"), 127])
_WIDE_CONTROL = re.compile(rb"\xc2[\x80-\x9f]|\xe2\x80[\xaa-\xae]|\xe2\x81[\xa6-\xa9]")
_JUDGED_BYTES = 65536
_MAX_ODD_SHARE = 0.1
"""Share of control characters and undecodable bytes above which a file is taken for binary."""


def _nothing() -> None:
    """Keep a buffer that nobody else wants."""


@dataclass
class Chunk:
    """Whole lines of a file: valid UTF-8 without NUL bytes; line k begins at ``offsets[k]``."""

    first_line_no: int
    data: np.ndarray
    """The text as uint8; it may be another's once the chunk is given back."""
    offsets: np.ndarray
    ends_open: bool
    """The last line has no line feed: it may have been cut."""
    odd: int
    """What the text holds beside plain lines: the HAS_ flags of `native`."""
    give_back: Callable[[], None] = _nothing
    """To be called when nothing more is read from ``data``; it saves memory and time, and may be left out."""

    @functools.cached_property
    def text(self) -> bytes:
        """A copy of the text."""
        return self.data.tobytes()

    @property
    def last_line_no(self) -> int:
        """Number of the last line."""
        return self.first_line_no + len(self.offsets) - 2


@dataclass
class FileReader:
    """Reads one source once, front to back.

    Attributes
    ----------
    path : str
        As given; '-' is standard input.
    oddities : Counter
        nul_bytes, crlf, ansi, invalid_utf8, truncated_last_line, long_lines, cut_lines, utf16.
    names_record : pattern, optional
        Found in lines that name a statistic; such lines at the end of a chunk go to the next one, with the lines after
        them over which a terminal may have folded them.
    n_lines, n_bytes, sha256, notes
        Known after the last chunk; bytes and hash are those of the source as stored, compressed or not.
    """

    path: str
    chunk_bytes: int = CHUNK_BYTES
    names_record: re.Pattern[bytes] | None = None
    oddities: Counter[str] = field(default_factory=Counter)
    n_lines: int = 0
    n_bytes: int = 0
    sha256: str = ""
    notes: list[str] = field(default_factory=list)
    _rest: bytes = b""
    """Read, and not yet known to end with a line."""
    _is_done: bool = False

    def chunks(self, report: Callable[[int], None] | None = None) -> Iterator[Chunk]:
        """Yield the file in chunks of whole lines.

        Parameters
        ----------
        report : callable, optional
            Called with the bytes of the source read so far.

        Raises
        ------
        LogFormatError
            Missing, unreadable, empty or binary file, or a truncated archive.
        """
        with contextlib.closing(_HashingReader(self.path)) as source:
            yield from self._chunks(source, report)
            self.n_bytes, self.sha256 = source.n_bytes, source.hexdigest()
            self.notes += source.doubts()
        if self.n_lines == 0:
            raise LogFormatError(
                f"{self.path}: the file is empty; expected a server log. Give the log that the server wrote"
            )

    def _chunks(self, source: _HashingReader, report: Callable[[int], None] | None) -> Iterator[Chunk]:
        is_first = True
        for data, give_back in self._whole_pieces(source):
            if is_first:
                refuse_binary(data[:_JUDGED_BYTES].tobytes(), self.path)
                is_first = False
            if report is not None:
                report(source.n_bytes)
            ends_open = bool(data[-1] != ord("\n"))  # the file may have been cut meanwhile
            yield self._clean(data, ends_open=ends_open, give_back=give_back)
        if self._is_done:
            return
        carry = self._rest
        overlong = False
        for piece, is_last in _with_last(_decoded(source, self.path, self.chunk_bytes, self.oddities)):
            if is_first:
                refuse_binary(piece, self.path)
                is_first = False
            if report is not None:
                report(source.n_bytes)
            cut = piece.rfind(b"\n") + 1
            if overlong and cut:
                piece = piece[piece.find(b"\n"):]
                cut = piece.rfind(b"\n") + 1
                overlong = False
            elif overlong:
                continue
            if not cut:
                carry += piece
                if len(carry) > MAX_LINE_BYTES:
                    carry, overlong = carry[:MAX_LINE_BYTES], True
                    self.oddities["cut_lines"] += 1
                continue
            is_whole = not carry and cut == len(piece)
            block, rest = (piece, b"") if is_whole else (b"".join((carry, memoryview(piece)[:cut])), piece[cut:])
            held = len(block) if is_last else self._hold_from(block)
            if held:
                yield self._clean(_bytes_of(block[:held]), ends_open=False)
            carry = block[held:] + rest
        if carry:
            yield self._clean(_bytes_of(carry), ends_open=not carry.endswith(b"\n"))

    def _whole_pieces(self, source: _HashingReader) -> Iterator[tuple[np.ndarray, Callable[[], None]]]:
        """Yield whole lines of a plain file, and how to give them back, up to what must be looked at."""
        n_probed = min(_PROBE_BYTES, self.chunk_bytes // 2)
        while not source.is_packed:
            probe_at = source.n_bytes + self.chunk_bytes - n_probed
            probe = source.peek(probe_at, n_probed)
            first, last = probe.find(b"\n") + 1, probe.rfind(b"\n") + 1
            held = self._hold_from(probe[first:last])
            is_last = len(probe) < n_probed
            if not is_last and not held:
                return
            n_wanted = self.chunk_bytes if is_last else probe_at + first + held - source.n_bytes
            data, give_back = source.read_aside(n_wanted, self.chunk_bytes)
            if is_last and source.peek(source.n_bytes, 1):
                self._rest = data.tobytes()  # more was written meanwhile
                return
            if len(data):
                yield data, give_back
            if is_last or not len(data):
                self._is_done = is_last
                return

    def _hold_from(self, block: bytes) -> int:
        """Return where the lines begin that must wait for the ones after them."""
        if self.names_record is None:
            return len(block)
        held = wrappers.hold_from(block, self.names_record)
        return held if len(block) - held <= MAX_LINE_BYTES // 2 else len(block)

    def _clean(
        self, data: np.ndarray, *, ends_open: bool, give_back: Callable[[], None] = _nothing
    ) -> Chunk:
        """Count what is odd in a run of lines and make it valid text."""
        self.oddities["truncated_last_line"] += ends_open
        ends, odd, n_returns = _find_ends(data)
        self.oddities["crlf"] += n_returns
        if odd & (native.HAS_NUL | native.HAS_HIGH):
            valid = self._valid(data, odd)
            if valid is not data:
                data, give_back = valid, _nothing
                ends, odd, _ = _find_ends(data)
        offsets = np.concatenate([[0], ends, [len(data)] if ends_open else []]).astype(np.int64, copy=False)
        chunk = Chunk(self.n_lines + 1, data, offsets, ends_open, odd, give_back)
        self.n_lines += len(offsets) - 1
        return chunk

    def _valid(self, data: np.ndarray, odd: int) -> np.ndarray:
        """Return the text as UTF-8 without NUL bytes."""
        text = valid = data.tobytes()
        if odd & native.HAS_NUL:
            self.oddities["nul_bytes"] += text.count(b"\0")
            valid = text.replace(b"\0", b"")
        try:
            valid.decode()
        except UnicodeDecodeError:
            decoded = valid.decode(errors="replace")
            self.oddities["invalid_utf8"] += decoded.count("\ufffd")
            valid = decoded.encode()
        return data if valid is text else _bytes_of(valid)


def _bytes_of(text: bytes) -> np.ndarray:
    return np.frombuffer(text, np.uint8)


def _find_ends(data: np.ndarray) -> tuple[np.ndarray, int, int]:
    """Return where lines end behind their line feeds, what else is there (HAS_ flags of `native`), and CR LF in it."""
    library = native.library()
    if library is not None:
        return native.find_ends(library, data)
    text = data.tobytes()
    ends = np.flatnonzero(data == ord("\n")) + 1
    is_there = {
        native.HAS_CONTROL: len(text.translate(None, _ODD_CODES)) < len(text), native.HAS_HIGH: not text.isascii(),
        native.HAS_RETURN: b"\r" in text, native.HAS_NUL: b"\0" in text, native.HAS_ESCAPE: b"\x1b" in text,
        native.HAS_WIDE_CONTROL: _WIDE_CONTROL.search(text) is not None,
    }
    return ends, sum(flag for flag, is_so in is_there.items() if is_so), text.count(b"\r\n")


def split_lines(chunk: Chunk) -> pl.DataFrame:
    """Return the lines of a chunk as columns ``line_no`` and ``text``, without copying the text."""
    lines = pa.LargeStringArray.from_buffers(
        len(chunk.offsets) - 1, pa.py_buffer(chunk.offsets), pa.py_buffer(chunk.text)
    )
    numbers = np.arange(chunk.first_line_no, chunk.first_line_no + len(lines))
    return pl.DataFrame({"line_no": pl.Series(numbers, dtype=pl.Int64), "text": pl.Series(lines)})


def texts_of(chunk: Chunk, rows: np.ndarray) -> list[str]:
    """Return the text of a few lines of a chunk."""
    ends = zip(chunk.offsets[rows].tolist(), chunk.offsets[rows + 1].tolist(), strict=True)
    return [chunk.data[begin:end].tobytes().decode() for begin, end in ends]


_MAGIC_BYTES = 4
_PACKED = (b"\x1f\x8b", zstandard.FRAME_HEADER, codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
"""What files begin with whose lines are not those stored."""


def refuse_binary(sample: bytes, path: str) -> None:
    """Raise LogFormatError if the first bytes are not those of text."""
    if name := unpack.binary_name(sample):
        raise LogFormatError(f"{path}: expected a text log (plain, .gz or .zst), found {name}")
    text = sample[:_JUDGED_BYTES].replace(b"\0", b"")
    n_control = len(text) - len(text.translate(None, _CONTROL))
    n_invalid = text.decode(errors="replace").count("\ufffd")
    if text and (n_control + n_invalid) / len(text) > _MAX_ODD_SHARE:
        raise LogFormatError(
            f"{path}: expected a text log (plain, .gz or .zst), found binary data "
            f"({n_control + n_invalid} of the first {len(text)} bytes are no text)"
        )


class _HashingReader:
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


def _decoded(source: _HashingReader, path: str, size: int, oddities: Counter[str]) -> Iterator[bytes]:
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


def _with_last(pieces: Iterator[bytes]) -> Iterator[tuple[bytes, bool]]:
    """Tell of each piece whether it is the last."""
    before = next(pieces, None)
    for piece in pieces:
        yield before or b"", False
        before = piece
    if before is not None:
        yield before, True


def _plain(start: bytes, source: _HashingReader, size: int) -> Iterator[bytes]:
    """Yield the bytes as they are."""
    piece = start + source.read(size)
    while piece:
        yield piece
        piece = source.read(size)
