"""New whole lines of a log that grows, is rotated, truncated or not there yet, or of a pipe.

A file is followed by size and inode, as ``tail -F`` does, because notifications do not cross network file systems.
"""

from __future__ import annotations

import os
import select
import stat
import sys
import time
from dataclasses import dataclass, field

import zstandard

from helpers.ingest.lines import MAX_LINE_BYTES, refuse_binary
from helpers.schema import LogFormatError

PIECE_BYTES = 2**20
"""Bytes read at once: bounds memory and the time until the next alarm while a backlog is read."""

HISTORY_BYTES = 64 * 2**20
"""Of a log that is there already, at most so much of its end is read: the tail that is judged is far shorter."""

_PACKED = {b"\x1f\x8b": "a gzip file", zstandard.FRAME_HEADER: "a zstd file", b"\xff\xfe": "UTF-16 text"}
"""First bytes of what `rooflog run` reads and nobody can follow."""


@dataclass
class Piece:
    """What one reading gave: whole lines with their line feeds.

    Attributes
    ----------
    data : bytes
        Whole lines; empty if there are none yet.
    is_history : bool
        Was in the log before watching began.
    has_more : bool
        More is waiting: no pause before the next reading.
    is_end : bool
        The input ended; nothing will follow.
    notes : tuple of str
        What happened to the file, in words.
    """

    data: bytes = b""
    is_history: bool = False
    has_more: bool = False
    is_end: bool = False
    notes: tuple[str, ...] = ()


class _Lines:
    """Cuts bytes into whole lines and keeps the rest."""

    def __init__(self, name: str) -> None:
        self._name, self._rest, self._is_first = name, b"", True

    def cut(self, data: bytes) -> bytes:
        """Return the whole lines so far."""
        if self._is_first and data:
            self._is_first = False
            kind = next((kind for magic, kind in _PACKED.items() if data.startswith(magic)), None)
            if kind is not None:
                raise LogFormatError(
                    f"{self._name}: expected a plain text log that grows, found {kind}; `rooflog run` reads it"
                )
            refuse_binary(data, self._name)
        text = self._rest + data
        end = text.rfind(b"\n") + 1
        self._rest = text[end:][:MAX_LINE_BYTES]
        return text[:end]

    def finish(self) -> bytes:
        """Return the begun line as if it were whole: nothing will be added to it."""
        rest, self._rest = self._rest, b""
        return rest + b"\n" if rest else b""

    def drop(self) -> None:
        """Forget the begun line: the file it stood in is gone."""
        self._rest = b""


class FileFollower:
    """Reads what is appended to a file, whatever happens to it.

    Parameters
    ----------
    path : str
        May be missing yet. After a rotation (another inode under the name) the rest of the old file is read first,
        after a truncation reading begins at the start. A file that was truncated and has outgrown its old size
        between two polls cannot be told from one that grew.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._lines = _Lines(path)
        self._fd = -1
        self._inode = (0, 0)
        self._offset = self._history_bytes = 0
        self._has_waited = False

    def wait(self, pause_s: float) -> None:
        """Let time pass until more may be there [s]."""
        time.sleep(pause_s)

    def close(self) -> None:
        """Close the file; it may be closed already."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def read(self) -> Piece:
        """Return the new lines, at once.

        Raises
        ------
        LogFormatError
            The path cannot be read or is no text.
        """
        notes = [*self._open()] if self._fd < 0 else []
        if self._fd < 0:
            return Piece(notes=tuple(notes))
        size = os.fstat(self._fd).st_size
        if size < self._offset:
            notes.append(f"{self._path}: truncated from {self._offset} to {size} bytes; read again from its start")
            self._offset = self._history_bytes = 0
            self._lines.drop()
        is_history = self._offset < self._history_bytes
        n_wanted = min(PIECE_BYTES, self._history_bytes - self._offset) if is_history else PIECE_BYTES
        try:
            data = os.pread(self._fd, n_wanted, self._offset)
        except OSError as error:
            raise _unreadable(self._path, error) from error
        self._offset += len(data)
        has_more = len(data) == n_wanted
        if not data and self._is_replaced():
            notes.append(f"{self._path}: replaced by a new file (rotation); it is followed from its start")
            self.close()
            return Piece(self._lines.finish(), has_more=True, notes=tuple(notes))
        return Piece(self._lines.cut(data), is_history, has_more, notes=tuple(notes))

    def _open(self) -> list[str]:
        """Open the file if it is there; say once if it is not."""
        is_first_try, self._has_waited = not self._has_waited, True
        try:
            fd = os.open(self._path, os.O_RDONLY)
        except FileNotFoundError:
            return [f"{self._path}: not there yet; waiting for it"] if is_first_try else []
        except OSError as error:
            raise _unreadable(self._path, error) from error
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            os.close(fd)
            kind = "a folder" if stat.S_ISDIR(found.st_mode) else "a device"
            raise LogFormatError(f"{self._path}: expected one log file or '-', found {kind}. Name the file itself")
        self._fd, self._inode, self._offset = fd, (found.st_dev, found.st_ino), 0
        self._history_bytes = found.st_size if is_first_try else 0
        self._offset = max(0, self._history_bytes - HISTORY_BYTES)
        if not self._offset:
            return []
        self._offset = _after_line_feed(fd, self._offset)
        return [f"{self._path}: only the last {HISTORY_BYTES / 2**20:.0f} MiB of {found.st_size / 2**20:.0f} MiB are "
                "read; what the server said at its start may be missing"]

    def _is_replaced(self) -> bool:
        """Tell whether another file has the name now; none at all is a rotation under way."""
        try:
            found = os.stat(self._path)
        except OSError:
            return False
        return (found.st_dev, found.st_ino) != self._inode


@dataclass
class PipeFollower:
    """Reads a pipe or any other stream to its end, never waiting longer than asked.

    Attributes
    ----------
    fd : int
        File descriptor; 0 is standard input.
    name : str
        For messages.
    """

    fd: int = 0
    name: str = "-"
    _lines: _Lines = field(init=False)

    def __post_init__(self) -> None:
        """Begin with no line."""
        self._lines = _Lines(self.name)

    def wait(self, pause_s: float) -> None:
        """Let the whole pause pass, so that lines are read together, unless the pipe is full or at its end [s]."""
        time.sleep(pause_s)

    def close(self) -> None:
        """Leave the stream to whoever opened it."""

    def read(self) -> Piece:
        """Return the new lines, at once."""
        ready, _, _ = select.select([self.fd], [], [], 0)
        if not ready:
            return Piece()
        data = os.read(self.fd, PIECE_BYTES)
        if not data:
            return Piece(self._lines.finish(), is_end=True)
        return Piece(self._lines.cut(data), has_more=True)


def open_source(path: str) -> FileFollower | PipeFollower:
    """Return the follower of a path: '-' is standard input, a named pipe is read like one.

    Raises
    ------
    LogFormatError
        No path was given.
    """
    if path == "-":
        return PipeFollower(sys.stdin.fileno())
    if not path or "\0" in path:
        raise LogFormatError(f"{path!r}: expected the path of a log or '-'")
    if os.path.exists(path) and stat.S_ISFIFO(os.stat(path).st_mode):
        return PipeFollower(os.open(path, os.O_RDONLY), path)
    return FileFollower(path)


def _unreadable(path: str, error: OSError) -> LogFormatError:
    return LogFormatError(f"{path}: cannot be read ({error.strerror}); expected a readable server log")


def _after_line_feed(fd: int, offset: int) -> int:
    """Return where the next whole line begins; the same place where none is near."""
    found = os.pread(fd, PIECE_BYTES, offset).find(b"\n")
    return offset + found + 1 if found >= 0 else offset
