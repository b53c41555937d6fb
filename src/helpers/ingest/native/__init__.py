"""What is compiled: begins of lines, literals in lines and records, without Python's lock (`lines.c`).

Built when the package is installed, if there is a C compiler. Without it everything is read as text, several times
slower and with the same result.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import struct
import sys
from ctypes import c_int64, c_uint32, c_void_p
from pathlib import Path

import numpy as np

from helpers.schema import LogFormatError

HAS_CONTROL, HAS_HIGH, HAS_RETURN, HAS_NUL, HAS_ESCAPE, HAS_WIDE_CONTROL = 1, 2, 4, 8, 16, 32
"""What `find_lines` tells of a whole text: control codes of ASCII that are no tab and no end of a line (NUL and escape
are some), bytes above 127, carriage returns, control codes of Unicode (directions of writing are some)."""

SWITCH = "ROOFLOG_NATIVE"
"""Environment variable: 0 reads everything as text, 1 or nothing does not."""

_FOLDER = Path(__file__).parent

Text = bytes | np.ndarray
"""Bytes, or an array of uint8 without gaps."""


def address(text: Text) -> bytes | int:
    """Return what a compiled function takes for a pointer to a text."""
    return text if isinstance(text, bytes) else text.ctypes.data


@functools.lru_cache(maxsize=1)
def load() -> ctypes.CDLL | None:
    """Return the compiled library; None if there is none, or one that is damaged or of another source."""
    path = _FOLDER / ("liblines.dylib" if sys.platform == "darwin" else "liblines.so")
    source = _FOLDER / "lines.c"
    try:
        content = path.read_bytes()
        if not _is_whole(content):
            return None
        library = ctypes.CDLL(str(path))
        library.source_hash.restype = ctypes.c_char_p
        said = library.source_hash()
    except (OSError, AttributeError):  # AttributeError: another library under this name
        return None
    if source.exists() and said != hashlib.sha256(source.read_bytes()).hexdigest()[:16].encode():
        return None
    library.find_lines.argtypes = [c_void_p, c_int64, c_void_p, c_int64, c_void_p, c_void_p, c_void_p]
    library.find_lines.restype = c_int64
    library.mark_lines.argtypes = [c_void_p, c_void_p, c_int64, c_void_p, c_void_p]
    library.mark_lines.restype = None
    library.count_marks.argtypes = [c_void_p, c_int64, c_void_p]
    library.count_marks.restype = None
    library.mix_words.argtypes = [c_void_p, c_int64]
    library.mix_words.restype = ctypes.c_uint64
    library.read_records.argtypes = [c_void_p, c_int64, c_void_p, c_void_p, c_int64, *[c_void_p] * 7]
    library.read_records.restype = c_int64
    return library


_SECTIONS_AT, _SECTION_SIZES_AT = 40, 58
"""Where an ELF file of 64 bits tells where its table of sections begins [8 bytes], and the size and number of its
entries [2 bytes each] (System V ABI, chapter 4)."""


def _is_whole(content: bytes) -> bool:
    """Tell whether a library is as long as it says: the system kills a process that loads one that was cut.

    Linkers write the table of sections last. What is no ELF file of 64 bits is left to the system's loader to judge.
    """
    if not content.startswith(b"\x7fELF\x02\x01"):
        return True
    if len(content) < _SECTION_SIZES_AT + 4:
        return False
    (begin,) = struct.unpack_from("<Q", content, _SECTIONS_AT)
    size, n = struct.unpack_from("<HH", content, _SECTION_SIZES_AT)
    return len(content) >= begin + size * n


def library() -> ctypes.CDLL | None:
    """Return the compiled library if it is there and not switched off.

    Raises
    ------
    LogFormatError
        The environment variable says neither.
    """
    return None if is_off() else load()


def is_off() -> bool:
    """Tell whether the environment variable switches the library off.

    Raises
    ------
    LogFormatError
        It says neither.
    """
    given = os.environ.get(SWITCH, "")
    if given not in ("", "0", "1"):
        raise LogFormatError(f"{SWITCH}: expected 0 (all is read as text) or 1, found {given!r}; correct or unset it")
    return given == "0"


_FEW_BYTES = 16
"""Logs have longer lines on average; where they have not, room is made for as many lines as there are bytes."""

_GROUP_BYTES = 64
"""As in `lines.c`: room is asked for as many lines at once."""


def find_lines(
    library: ctypes.CDLL, text: Text, room: np.ndarray | None = None
) -> tuple[np.ndarray, int, int, int]:
    """Return where lines begin and the text ends, its HAS_ flags, the number of CR LF in it, and its longest line.

    ``room`` is an array of int64 that the places are written to if it is large enough.
    """
    odd, n_returns, longest = c_uint32(), c_int64(), c_int64()
    for n_room in (len(text) // _FEW_BYTES, len(text)):
        n_needed = n_room + _GROUP_BYTES + 1
        offsets = room if room is not None and len(room) >= n_needed else np.empty(n_needed, np.int64)
        n_lines = library.find_lines(
            address(text), len(text), offsets.ctypes.data, len(offsets), ctypes.byref(odd), ctypes.byref(n_returns),
            ctypes.byref(longest),
        )
        if n_lines >= 0:
            break
    return offsets[: n_lines + 1], odd.value, n_returns.value, longest.value


def read_records(
    library: ctypes.CDLL, text: Text, offsets: np.ndarray, rows: np.ndarray, reader: object, *out: np.ndarray
) -> int:
    """Read lines of a text into arrays (`compiled.Tables.read`); return how many were read."""
    offsets, rows = (np.ascontiguousarray(values, np.int64) for values in (offsets, rows))
    places = [values.ctypes.data for values in out]
    return library.read_records(
        address(text), len(text), offsets.ctypes.data, rows.ctypes.data, len(rows), reader, *places
    )
