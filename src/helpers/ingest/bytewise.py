"""Numbers, stamps and literals read from many places of a text at once: eight bytes are one 64-bit integer each.

No regular expression and no string is made per line; every test is an equality of integers, so a match is exact.
Fetching bytes from scattered places costs most, so all that is wanted of a place is fetched at once (`Words.rows`).
The digits are put together as in D. Lemire, "Number parsing at a gigabyte per second" (2021), on arrays.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

WORD_BYTES = 8
MAX_ROW_WORDS = 128
"""Words fetched at once at most."""

NUMBER_WORDS = 2
"""Words that `read_numbers` wants of each place."""

_EVERY = 0x0101010101010101
_HIGH = np.uint64(0x80 * _EVERY)
_LOW7 = np.uint64(0x7F * _EVERY)
_TO_HIGH = np.uint64(0x76 * _EVERY)
"""Added to a byte below 128 it sets the high bit from 10 on."""
_ZEROS = np.uint64(0x30 * _EVERY)
"""Eight characters '0'."""

MAX_EXACT_DIGITS = 15
"""Decimal digits whose whole number a double holds exactly, so that one division by a power of ten rounds as reading
the text would."""

_POWERS = 10.0 ** np.arange(MAX_EXACT_DIGITS + 1)
_POWERS_INT = 10 ** np.arange(MAX_EXACT_DIGITS + 1, dtype=np.int64)


class Words:
    """A text of which the bytes at any place can be had as integers.

    Parameters
    ----------
    text : bytes
        Only its end is copied, with zero bytes behind it, so that words can be fetched there too.
    """

    def __init__(self, text: bytes) -> None:
        n_pad = MAX_ROW_WORDS * WORD_BYTES
        self._text = np.frombuffer(text, np.uint8)
        self._n_plain = max(len(text) - n_pad, 0)
        self._end = np.zeros(len(text) - self._n_plain + n_pad, np.uint8)
        self._end[: len(text) - self._n_plain] = self._text[self._n_plain:]

    def rows(self, places: np.ndarray, n_words: int) -> np.ndarray:
        """Return the bytes from each place on as words, the first byte lowest: an array of ``n_words`` rows.

        Places behind the text count as its end.
        """
        n_bytes = n_words * WORD_BYTES
        if not len(places):
            return np.zeros((n_words, 0), np.uint64)
        if places.max() < self._n_plain:
            fetched = _windows(self._text, n_bytes)[places]
        else:
            fetched = np.empty(len(places), f"V{n_bytes}")
            is_near_end = places >= self._n_plain
            if not is_near_end.all():
                fetched[~is_near_end] = _windows(self._text, n_bytes)[places[~is_near_end]]
            near = np.minimum(places[is_near_end] - self._n_plain, len(self._end) - n_bytes)
            fetched[is_near_end] = _windows(self._end, n_bytes)[near]
        return fetched.view("<u8").reshape(len(places), n_words).T

    def at(self, places: np.ndarray) -> np.ndarray:
        """Return the eight bytes at each place."""
        return self.rows(places, 1)[0]


def _windows(text: np.ndarray, n_bytes: int) -> np.ndarray:
    """Return the bytes from every place on as one value each, without copying."""
    return np.ndarray((len(text) - n_bytes + 1,), f"V{n_bytes}", buffer=text, strides=(1,))


@dataclass(frozen=True)
class Literal:
    """A text to be compared word by word; ``masks`` leave out the bytes that may differ.

    Attributes
    ----------
    n_bytes : int
        Its length.
    lead : int
        Bytes in front of it that its first word also covers.
    values, masks
        One per word.
    """

    n_bytes: int
    lead: int
    values: tuple[np.uint64, ...]
    masks: tuple[np.uint64, ...]

    @classmethod
    def of(cls, text: bytes, free: frozenset[int] = frozenset()) -> Literal:
        """Take a text that begins a word; bytes at the places in ``free`` may be anything."""
        return cls._made(text, free, 0)

    @classmethod
    def ending_word(cls, text: bytes) -> Literal:
        """Take a text that ends where a word ends, so that what follows begins one."""
        return cls._made(text, frozenset(), -len(text) % WORD_BYTES)

    @classmethod
    def _made(cls, text: bytes, free: frozenset[int], lead: int) -> Literal:
        values, masks = [], []
        known = bytes(lead) + bytes(0 if place in free else 255 for place in range(len(text)))
        whole = bytes(lead) + text
        for start in range(0, len(whole), WORD_BYTES):
            mask = int.from_bytes(known[start: start + WORD_BYTES], "little")
            masks.append(np.uint64(mask))
            values.append(np.uint64(int.from_bytes(whole[start: start + WORD_BYTES], "little") & mask))
        return cls(len(text), lead, tuple(values), tuple(masks))

    def is_in(self, rows: np.ndarray) -> np.ndarray:
        """Tell of each column of fetched words whether this text is there."""
        found: np.ndarray = np.ones(rows.shape[1], bool)
        for row, value, mask in zip(rows, self.values, self.masks, strict=False):
            if mask:
                found &= (row & mask) == value
        return found


@dataclass(frozen=True)
class Numbers:
    """Numbers without sign or exponent at many places.

    ``value`` is the number, rounded as if read from the text; ``n_bytes`` the length of its text. Only where
    ``is_read`` do the others mean anything.
    """

    is_read: np.ndarray
    value: np.ndarray
    n_bytes: np.ndarray


def read_whole(rows: np.ndarray) -> Numbers:
    """Read the whole number of up to 15 digits that fetched words begin with."""
    whole, n_digits = _digits(rows[0])
    is_long = n_digits == WORD_BYTES
    if is_long.any():
        more, n_more = _digits(rows[1])
        whole = np.where(is_long, whole * _POWERS_INT[np.minimum(n_more, 7)] + more, whole)
        n_digits = np.where(is_long, n_digits + n_more, n_digits)
    return Numbers((n_digits > 0) & (n_digits <= MAX_EXACT_DIGITS), whole, n_digits)


def read_numbers(words: Words, places: np.ndarray, rows: np.ndarray) -> Numbers:
    """Read a number of up to 15 digits at each place: digits, and after a point up to seven more.

    Parameters
    ----------
    words : Words
    places : array of int
    rows : array of shape (at least NUMBER_WORDS, n)
        The words from each place on.
    """
    front = read_whole(rows)
    whole, n_whole = front.value, front.n_bytes
    if n_whole.max(initial=0) < WORD_BYTES:
        n_bits = n_whole.view(np.uint64) << np.uint64(3)
        behind = (rows[0] >> n_bits) | (rows[1] << (np.uint64(64) - n_bits))
    else:
        behind = words.at(places + n_whole)
    has_point = (behind & np.uint64(0xFF)) == np.uint64(ord("."))
    if not has_point.any():
        return Numbers(front.is_read, whole.astype(np.float64), n_whole)
    part, n_part = _digits(behind >> np.uint64(8))  # seven digits at most, as the last byte is none
    if n_part.max() == WORD_BYTES - 1:
        part, n_part = _digits(words.at(places + n_whole + 1))
    has_part = has_point & (n_part > 0)
    is_read = front.is_read & (n_whole + n_part <= MAX_EXACT_DIGITS) & (n_part < WORD_BYTES)
    if has_part.all() and n_part.min() == n_part.max():  # most are printed with two decimals
        n_same = min(int(n_part[0]), WORD_BYTES)
        value = (whole * _POWERS_INT[n_same] + part).astype(np.float64) / _POWERS[n_same]
        return Numbers(is_read, value, n_whole + (n_same + 1))
    n_part = np.where(has_part, n_part, 0)
    scaled = (whole * _POWERS_INT[n_part] + part).astype(np.float64) / _POWERS[n_part]
    is_read = np.where(has_part, is_read, front.is_read)
    return Numbers(is_read, np.where(has_part, scaled, whole), n_whole + n_part + has_part)


def have_leading_zero(rows: np.ndarray, n_bytes: np.ndarray) -> bool:
    """Tell whether some number that fetched words begin with has zeros in front, as no number in JSON has."""
    second = (rows[0] >> np.uint64(8)) & np.uint64(0xFF)
    starts = ((rows[0] & np.uint64(0xFF)) == np.uint64(ord("0"))) & (n_bytes > 1)
    return bool((starts & (second != np.uint64(ord(".")))).any())


def _digits(words: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the number that the leading digits of eight bytes are (0 if there is none), and how many they are."""
    digits = words ^ _ZEROS
    is_other = (((digits & _LOW7) + _TO_HIGH) | digits) & _HIGH
    lowest = is_other & (~is_other + np.uint64(1))
    n_bits = np.bitwise_count(lowest - np.uint64(1)) & np.uint8(0x78)  # 64 where all eight are digits
    # the first digit is the lowest byte: shifted up, missing ones in front are zeros (a shift by 64 gives 0)
    packed = digits << (np.uint64(64) - n_bits)
    packed = (packed * np.uint64(10) + (packed >> np.uint64(8))) & np.uint64(0x00FF00FF00FF00FF)
    packed = (packed * np.uint64(100) + (packed >> np.uint64(16))) & np.uint64(0x0000FFFF0000FFFF)
    packed = (packed * np.uint64(10000) + (packed >> np.uint64(32))) & np.uint64(0x00000000FFFFFFFF)
    return packed.view(np.int64), (n_bits >> 3).astype(np.int64)


_TRUE, _FALSE = (np.uint64(int.from_bytes(text, "little")) for text in (b"True", b"False"))


def read_flags(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Read True or False from fetched words: whether it is one of both, which, and its length."""
    is_true = (rows[0] & np.uint64(0xFFFFFFFF)) == _TRUE
    is_false = (rows[0] & np.uint64(0xFFFFFFFFFF)) == _FALSE
    return is_true | is_false, is_true, np.where(is_true, 4, 5)


def read_digit(rows: np.ndarray, offset: int) -> tuple[np.ndarray, np.ndarray]:
    """Read the digit ``offset`` bytes behind the begin of fetched words: whether it is one, and its number."""
    code = (rows[offset // WORD_BYTES] >> np.uint64(8 * (offset % WORD_BYTES))) & np.uint64(0xFF)
    digit = code.view(np.int64) - ord("0")
    return (digit >= 0) & (digit <= 9), digit


def read_pair(rows: np.ndarray, offset: int) -> tuple[np.ndarray, np.ndarray]:
    """Read two digits ``offset`` bytes behind the begin of fetched words: whether they are digits, and their number."""
    (is_ten, tens), (is_one, ones) = (read_digit(rows, place) for place in (offset, offset + 1))
    return is_ten & is_one, tens * 10 + ones
