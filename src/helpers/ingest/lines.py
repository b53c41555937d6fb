"""From bytes to candidate lines: chunked reading, decompression, cleaning, counting what was odd."""

from __future__ import annotations

import contextlib
import functools
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import polars as pl
import pyarrow as pa

from helpers import unpack
from helpers.ingest import native, wrappers
from helpers.ingest.stored import StoredBytes, decoded, with_last
from helpers.schema import LogFormatError

CHUNK_BYTES = 8 * 2**20
"""Bytes of text held at once; memory follows it, not the size of the file."""

MAX_LINE_BYTES = 16 * 2**20
"""Longer lines are cut here (and counted): no statistic line is, and memory must stay bounded."""

LONG_LINE_BYTES = 100_000
"""Lines above are counted as odd; the longest argument dumps seen are 20 kB."""

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
    """Whole lines of a file: valid UTF-8 without NUL bytes; line k begins at ``offsets[k]``.

    Once the chunk is given back, its arrays may be another's.
    """

    first_line_no: int
    data: np.ndarray
    """The text as uint8."""
    offsets: np.ndarray
    ends_open: bool
    """The last line has no line feed: it may have been cut."""
    odd: int
    """What the text holds beside plain lines: the HAS_ flags of `native`."""
    longest_bytes: int
    """Its longest line."""
    give_back: Callable[[], None] = _nothing
    """To be called when nothing more is read from the arrays; it saves memory and time, and may be left out."""

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
    n_lines, n_bytes, notes
        Known after the last chunk; bytes are those of the source as stored, compressed or not.
    digest : callable
        Gives the SHA-256 of these bytes after the last chunk; it may take a moment.
    """

    path: str
    chunk_bytes: int = CHUNK_BYTES
    names_record: re.Pattern[bytes] | None = None
    oddities: Counter[str] = field(default_factory=Counter)
    n_lines: int = 0
    n_bytes: int = 0
    digest: Callable[[], str] = str
    notes: list[str] = field(default_factory=list)
    _rest: bytes = b""
    """Read, and not yet known to end with a line."""
    _is_done: bool = False
    _rooms: list[np.ndarray] = field(default_factory=list)
    """Arrays for the places of lines that were given back."""

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
        with contextlib.closing(StoredBytes(self.path)) as source:
            yield from self._chunks(source, report)
            self.n_bytes, self.digest = source.n_bytes, source.digest()
            self.notes += source.doubts()
        if self.n_lines == 0:
            raise LogFormatError(
                f"{self.path}: the file is empty; expected a server log. Give the log that the server wrote"
            )

    def _chunks(self, source: StoredBytes, report: Callable[[int], None] | None) -> Iterator[Chunk]:
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
        for piece, is_last in with_last(decoded(source, self.path, self.chunk_bytes, self.oddities)):
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

    def _whole_pieces(self, source: StoredBytes) -> Iterator[tuple[np.ndarray, Callable[[], None]]]:
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
        room = self._rooms.pop() if self._rooms else None
        offsets, odd, n_returns, longest_bytes = _find_lines(data, room)
        self.oddities["crlf"] += n_returns
        if odd & (native.HAS_NUL | native.HAS_HIGH):
            valid = self._valid(data, odd)
            if valid is not data:
                data = valid
                offsets, odd, _, longest_bytes = _find_lines(data, room)
                if ends_open and valid[-1:].tobytes() in (b"", b"\n"):  # the last line was of NUL bytes alone
                    offsets = np.append(offsets, len(data))

        def give_all_back() -> None:
            give_back()
            if offsets.base is not None:
                self._rooms.append(offsets.base)

        chunk = Chunk(self.n_lines + 1, data, offsets, ends_open, odd, longest_bytes, give_all_back)
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


def _find_lines(data: np.ndarray, room: np.ndarray | None = None) -> tuple[np.ndarray, int, int, int]:
    """Return where lines begin and the text ends, what it holds (HAS_ flags), its CR LF, and its longest line."""
    library = native.library()
    if library is not None:
        return native.find_lines(library, data, room)
    text = data.tobytes()
    offsets = np.concatenate([[0], np.flatnonzero(data == ord("\n")) + 1]).astype(np.int64, copy=False)
    if offsets[-1] != len(data):
        offsets = np.append(offsets, len(data))
    is_there = {
        native.HAS_CONTROL: len(text.translate(None, _ODD_CODES)) < len(text), native.HAS_HIGH: not text.isascii(),
        native.HAS_RETURN: b"\r" in text, native.HAS_NUL: b"\0" in text, native.HAS_ESCAPE: b"\x1b" in text,
        native.HAS_WIDE_CONTROL: _WIDE_CONTROL.search(text) is not None,
    }
    odd = sum(flag for flag, is_so in is_there.items() if is_so)
    return offsets, odd, text.count(b"\r\n"), int(np.diff(offsets).max(initial=0))


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
