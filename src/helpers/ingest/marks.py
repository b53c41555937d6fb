"""Which lines hold which of many literals: a number per line, one bit per class of literals.

Compiled, all literals are looked for at once: each has windows of three bytes, one byte apart, and a line is looked at
closer where one stands; a line that is like one before but for its digits is not looked at (`native/lines.c`).
Without a compiler the same is asked of a text column.
"""

from __future__ import annotations

import ctypes
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl
import pyarrow as pa

from helpers.ingest import native
from helpers.ingest.dialect import any_of

_USUAL = (
    b'INFO:     10.1.1.3:40000 - "POST /v1/chat/completions HTTP/1.1" 200 OK\n'
    b'INFO:     127.0.0.1:50018 - "GET /health HTTP/1.1" 200 OK\n'
    b"[2026-11-03 10:06:38 TP0 EP0] Decode batch, #running-req: 8, #token: 6704, token usage: 0.00, cuda graph: True, "
    b"gen throughput (token/s): 797.82, #queue-req: 0,\n"
    b"[2026-11-03 10:06:38 TP0] Prefill batch, #new-seq: 1, #new-token: 2048, #cached-token: 0, token usage: 0.00, \n"
    b"(APIServer pid=4242) INFO 11-03 10:06:38 [loggers.py:335] Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg "
    b"generation throughput: 703.5 tokens/s, Running: 32 reqs, Waiting: 0 reqs, GPU KV cache usage: 2.5%, Prefix cache "
    b"hit rate: 0.0%\n"
)
"""Windows are chosen that are rare in what logs are full of, and in English. Speed is all it changes."""

_LETTERS = b" etaoinsrhldcumfpgwybvkxjqz"
_SHARES = {code: 1 / (place + 3) for place, code in enumerate(_LETTERS)}
_OTHER_SHARE = 0.01
"""Space and letters by how common they are in English words, roughly by rank; capitals, digits and signs are rare."""

_WINDOW_BYTES, _STEP, _MULTIPLIER = 3, 4, 2654435761
"""As in `native/lines.c`."""
_N_HASHES = 2**16

_MANY = 60
"""Literals that are compared with a few vector instructions; more go through an automaton byte by byte."""


_ENTRY = np.dtype([
    *((name, np.uint64) for name in ("value", "mask")),
    *((name, np.int64) for name in ("back", "at", "n_bytes", "mark")),
])


class _Search(ctypes.Structure):
    """As in `native/lines.c`."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in (
            "is_known", "starts", "entries", "pool", "first_marks", "first_starts", "first_masks", "first_values",
            "beginning_marks", "numbered",
        )),
        ("n_numbered", ctypes.c_int64),
    ]


@dataclass(frozen=True)
class Marks:
    """Classes of literals, and of beginnings of lines, with the bit that each sets.

    Attributes
    ----------
    literals, beginnings : dict of bit -> texts
    """

    literals: Mapping[int, tuple[str, ...]]
    beginnings: Mapping[int, tuple[str, ...]]

    def __post_init__(self) -> None:
        """Make the tables of the compiled search."""
        names = [(text.encode(), bit) for bit, texts in self.literals.items() for text in texts]
        # lines that differ in digits alone are searched once (`find_alike` in lines.c): here their digits count
        numbered = [re.sub(b"[0-9]", b"\0", name) for name, _ in names if re.search(b"[0-9]", name)]
        pool = b"".join([*(name for name, _ in names), *numbered])
        starts = np.cumsum([0, *(len(name) for name, _ in names)]).tolist()
        entries = sorted(
            (_hash(window), *_word(name[max(back, 0):], max(-back, 0)), back, at, len(name), bit)
            for (name, bit), at in zip(names, starts, strict=False) for back, window in _windows(name)
        )
        hashes = np.array([entry[0] for entry in entries])
        is_known: np.ndarray = np.zeros(_N_HASHES, np.uint8)
        is_known[hashes] = 1
        arrays: dict[str, np.ndarray] = {
            "is_known": is_known,
            "starts": np.searchsorted(hashes, np.arange(_N_HASHES + 1)).astype(np.int32),
            "entries": np.array([entry[1:] for entry in entries], _ENTRY), "pool": np.frombuffer(pool, np.uint8),
            **self._of_beginnings(),
            "numbered": np.array([(pool.index(name), len(name)) for name in numbered], np.int64),
        }
        search = _Search(**{name: values.ctypes.data for name, values in arrays.items()}, n_numbered=len(numbered))
        object.__setattr__(self, "_tables", (search, arrays))

    def _of_beginnings(self) -> dict[str, np.ndarray]:
        """Return the tables of single bytes, and of longer beginnings, up to a word, by their first byte."""
        first_marks: np.ndarray = np.zeros(256, np.uint8)
        longer = []
        for bit, texts in self.beginnings.items():
            for name in map(str.encode, texts):
                if re.search(b"[0-9]", name):
                    raise ValueError(f"{name!r}: expected a beginning without digits: lines may differ in them")
                if len(name) == 1:
                    first_marks[name[0]] |= np.uint8(bit)
                else:
                    longer.append((name[0], 2 ** (8 * len(name)) - 1, int.from_bytes(name, "little"), bit))
        firsts, masks, values, bits = zip(*sorted(longer), strict=True)
        return {
            "first_marks": first_marks, "first_starts": np.searchsorted(firsts, np.arange(257)).astype(np.int32),
            "first_masks": np.array(masks, np.uint64), "first_values": np.array(values, np.uint64),
            "beginning_marks": np.array(bits, np.uint8),
        }

    def of_lines(self, text: native.Text, offsets: np.ndarray) -> np.ndarray:
        """Return the marks of the lines of a text; line k begins at ``offsets[k]``."""
        library = native.library()
        if library is None:
            lines = pa.LargeStringArray.from_buffers(len(offsets) - 1, pa.py_buffer(offsets), pa.py_buffer(text))
            return self._of_series(pl.Series(lines))
        search, _ = self._tables  # type: ignore[attr-defined]
        marks = np.empty(len(offsets) - 1, np.uint8)
        offsets = np.ascontiguousarray(offsets, np.int64)
        library.mark_lines(
            native.address(text), offsets.ctypes.data, len(marks), ctypes.byref(search), marks.ctypes.data
        )
        return marks

    @staticmethod
    def count(marks: np.ndarray) -> np.ndarray:
        """Return how many lines have each number, 0 to 255, for marks."""
        library = native.library()
        if library is None:
            return np.bincount(marks, minlength=256)
        counts = np.empty(256, np.int64)
        library.count_marks(marks.ctypes.data, len(marks), counts.ctypes.data)
        return counts

    def of_texts(self, texts: pl.Series) -> np.ndarray:
        """Return the marks of some lines."""
        if native.library() is None or not len(texts):
            return self._of_series(texts)
        _, offsets, text = texts.rechunk().to_arrow(compat_level=pl.CompatLevel.oldest()).buffers()
        return self.of_lines(text.to_pybytes(), np.frombuffer(offsets, np.int64, len(texts) + 1))

    def _of_series(self, texts: pl.Series) -> np.ndarray:
        marks = np.zeros(len(texts), np.uint8)
        for bit, names in self.literals.items():
            for some in _some(names):
                marks |= np.uint8(bit) * texts.str.contains(any_of(some)).to_numpy()
        for bit, names in self.beginnings.items():
            marks |= np.uint8(bit) * texts.str.contains(f"^(?:{any_of(names)})").to_numpy()
        return marks


def _some(names: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yield names in parts that are quick to search for."""
    for start in range(0, len(names), _MANY):
        yield names[start: start + _MANY]


def _hash(window: bytes) -> int:
    return int.from_bytes(window, "little") * _MULTIPLIER % 2**32 // (2**32 // _N_HASHES)


def _word(name: bytes, n_open: int) -> tuple[int, int]:
    """Return value and mask of the first eight bytes of a name behind some open ones."""
    known = name[: 8 - n_open]
    shift = 8 * n_open
    return int.from_bytes(known, "little") << shift, (2 ** (8 * len(known)) - 1) << shift


def _windows(name: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the windows of a literal and how far they are behind its begin; rare ones where there is a choice.

    Windows of a short literal reach one byte over its begin or end; there are some for every byte that may stand there.
    """
    n_inside = len(name) - _WINDOW_BYTES + 1
    if n_inside < _STEP - 2:
        raise ValueError(f"{name!r}: expected a literal of {_WINDOW_BYTES + _STEP - 3} bytes or more")
    for code in range(256) if n_inside < _STEP else ():
        yield n_inside, name[n_inside:] + bytes([code])
    for code in range(256) if n_inside < _STEP - 1 else ():
        yield -1, bytes([code]) + name[:_WINDOW_BYTES - 1]

    def cost(at: int) -> tuple[int, float]:
        windows = [name[k: k + _WINDOW_BYTES] for k in range(at, at + _STEP)]
        shares = (math.prod(_SHARES.get(code, _OTHER_SHARE) for code in window) for window in windows)
        return sum(_USUAL.count(window) for window in windows), sum(shares)

    best = min(range(max(n_inside - _STEP, 0) + 1), key=cost)
    yield from ((at, name[at: at + _WINDOW_BYTES]) for at in range(best, min(best + _STEP, n_inside)))
