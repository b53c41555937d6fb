"""How long a collective takes, in closed form and as a measured curve.

``p`` ranks, a message of ``m`` bytes, ``alpha`` seconds per hop or exchange, ``beta`` bytes per second and
direction of one rank. One rank takes no time. Formulas: Thakur, Rabenseifner and Gropp (2005),
doi:10.1177/1094342005051521.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from helpers.schema import RooflogError

ELEMENT_BYTES = 2
"""The residual stream and the logits travel as BF16 [bytes]."""

DISPATCH_BYTES_PER_ELEMENT = 1 + 4 / 128
"""Tokens go to their experts in FP8 with one FP32 scale per 128 elements [bytes]."""


def ring_s(n_ranks: int, message_bytes: np.ndarray, alpha_s: float, beta_bytes_per_s: float) -> np.ndarray:
    """All-reduce around a ring: ``2 (p-1) alpha + 2 (p-1)/p m / beta`` [s]."""
    hops = 2 * (n_ranks - 1)
    return hops * alpha_s + hops / n_ranks * np.asarray(message_bytes, dtype=float) / beta_bytes_per_s


def one_shot_s(n_ranks: int, message_bytes: np.ndarray, alpha_s: float, beta_bytes_per_s: float) -> np.ndarray:
    """All-reduce in one exchange, every rank reads all others: ``alpha + (p-1) m / beta`` [s]."""
    return (n_ranks > 1) * alpha_s + (n_ranks - 1) * np.asarray(message_bytes, dtype=float) / beta_bytes_per_s


def two_shot_s(n_ranks: int, message_bytes: np.ndarray, alpha_s: float, beta_bytes_per_s: float) -> np.ndarray:
    """All-reduce as reduce-scatter, then all-gather: ``2 alpha + 2 (p-1)/p m / beta`` [s]."""
    moved = 2 * leaving_frac(n_ranks) * np.asarray(message_bytes, dtype=float)
    return 2 * (n_ranks > 1) * alpha_s + moved / beta_bytes_per_s


def tree_s(n_ranks: int, message_bytes: np.ndarray, alpha_s: float, beta_bytes_per_s: float) -> np.ndarray:
    """All-reduce up and down a binary tree: ``2 ceil(log2 p) (alpha + m / beta)`` [s]."""
    return 2 * tree_depth(n_ranks) * (alpha_s + np.asarray(message_bytes, dtype=float) / beta_bytes_per_s)


def tree_depth(n_ranks: int) -> int:
    """Levels of a binary tree over the ranks."""
    return math.ceil(math.log2(n_ranks))


def leaving_frac(n_ranks: int) -> float:
    """Share of a rank's data that belongs to other ranks."""
    return (n_ranks - 1) / n_ranks


def all_reduce_message_bytes(n_tok: np.ndarray, hidden: int, element_bytes: float = ELEMENT_BYTES) -> np.ndarray:
    """Bytes that one all-reduce of the residual stream adds up: tokens of the forward x hidden x element."""
    return np.asarray(n_tok, dtype=float) * hidden * element_bytes


def logits_message_bytes(n_tok: np.ndarray, vocab: int, tp: int, element_bytes: float = ELEMENT_BYTES) -> np.ndarray:
    """Bytes of logits that each of ``tp`` ranks gives to the all-gather after the head."""
    return np.asarray(n_tok, dtype=float) * vocab / tp * element_bytes


@dataclass(frozen=True)
class Curve:
    """Time of one collective against its message size.

    Straight in bytes between the points, as every closed form is; the first time below them, the last slope
    beyond. Straight in the logarithm of the size would overstate what lies between: +29 % at 64 KiB on four
    RTX PRO 6000.

    Attributes
    ----------
    message_bytes, time_s : tuple of float
        Ascending sizes [bytes], and times that never fall [s].
    floor_s : float
        What no message undercuts, for example a launch from the host [s].
    """

    message_bytes: tuple[float, ...] = (0.0,)
    time_s: tuple[float, ...] = (0.0,)
    floor_s: float = 0.0

    @property
    def alpha_s(self) -> float:
        """Time of the smallest message: latency [s]."""
        return max(self.time_s[0], self.floor_s)

    def at(self, message_bytes: np.ndarray) -> np.ndarray:
        """Return the time of messages of these sizes [s]; refuse negative sizes."""
        size = np.asarray(message_bytes, dtype=float)
        if not np.all(size >= 0):
            raise RooflogError(f"message: expected bytes >= 0, found {float(np.min(size))}")
        beyond = np.maximum(size - self.message_bytes[-1], 0)
        time = np.interp(size, self.message_bytes, self.time_s) + self._last_slope * beyond
        return np.maximum(time, self.floor_s)

    @property
    def _last_slope(self) -> float:
        if len(self.time_s) < 2:
            return 0.0
        (x0, x1), (y0, y1) = self.message_bytes[-2:], self.time_s[-2:]
        return (y1 - y0) / (x1 - x0)

    def scaled(self, alpha_ratio: float, beta_ratio: float) -> Curve:
        """Multiply the latency by one factor and what is above it by another; a floor stays."""
        alpha = self.time_s[0]
        times = tuple(alpha * alpha_ratio + (time - alpha) * beta_ratio for time in self.time_s)
        return replace(self, time_s=times)

    def not_below(self, floor_s: float) -> Curve:
        """Raise every time to at least ``floor_s`` [s]."""
        return replace(self, floor_s=max(floor_s, self.floor_s))

    def between(self, upper: Curve, share: float) -> Curve:
        """Mix with another curve: ``(1 - share)`` of this one, ``share`` of ``upper``."""
        size = np.array(sorted({*self.message_bytes, *upper.message_bytes}))
        time = (1 - share) * self.at(size) + share * upper.at(size)
        return Curve(tuple(size.tolist()), tuple(time.tolist()))
