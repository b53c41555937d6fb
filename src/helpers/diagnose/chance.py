"""How many products come close to a size, and so how likely a fit is to be luck."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from helpers.errors import RooflogError

RATIOS = (1, 2, 4, 8, 64, 128)
"""Context positions per entry of a buffer: none, or the compression and block sizes of sparse attention."""

VALUE_BYTES = (1, 2, 4)
"""Bytes of a value: FP8 or INT8, BF16 or FP16, FP32."""

MODEL_DIMS = 211
"""Dimensions from 1,024 to 65,536 in the 82 model configurations of data/catalog/models (each value once per model,
limits of the context left out), counted on 2026-11-29."""

ROUND_DIMS = {1: 70, 3: 53, 5: 16, 7: 20, 9: 12, 11: 3, 13: 1, 15: 0}
"""How many of them are an odd number up to 15 times a power of two, by the odd number."""

LONG_DIM = 65_536
"""Longer dimensions are vocabularies: 78 in the same count."""

LONG_ROUND_FRAC = 12 / 78 / 3
"""Share of those vocabularies per round value [1]: 12 of the 78 have one of three (131,072, 163,840, 262,144)."""


def _products_of_two() -> dict[int, float]:
    """Return how often the product of two model dimensions has each small odd part [1]."""
    share: dict[int, float] = dict.fromkeys(ROUND_DIMS, 0.0)
    for first, n_first in ROUND_DIMS.items():
        for second, n_second in ROUND_DIMS.items():
            if first * second in share:
                share[first * second] += n_first * n_second
    return {odd: n / sum(share.values()) for odd, n in share.items()}


ROUND_SHARE = _products_of_two()
"""What a buffer's size is like where it is a small odd number times a power of two: a product of two dimensions."""


@dataclass(frozen=True)
class Grid:
    """All products, sorted by value; cost orders them by how much freedom they take."""

    log_value: np.ndarray
    count: np.ndarray
    ratio: np.ndarray
    padding: np.ndarray
    heads: np.ndarray
    value_bytes: np.ndarray
    cost: np.ndarray


def need(is_true: bool, name: str, found: object) -> None:
    """Refuse what is not above 0."""
    if not is_true:
        raise RooflogError(f"{name}: expected above 0, found {found}")


def context_sizes(context_length_max: int, page_tok: tuple[int, ...]) -> list[tuple[int, int, int, int]]:
    """Return (ratio, padding, positions, cost); a page of tokens before the division is as plain as no padding."""
    rows: dict[tuple[int, int], int] = {}
    for ratio in RATIOS:
        if context_length_max < ratio:
            continue
        rows[ratio, 0] = 0
        for page in page_tok:
            if page % ratio == 0:
                rows.setdefault((ratio, page // ratio), 0)
            rows.setdefault((ratio, page), 1)
    return [(r, p, context_length_max // r + p, cost) for (r, p), cost in rows.items()]


@lru_cache(maxsize=64)
def product_grid(
    context_length_max: int, n_max: int, near: tuple[int, ...], heads: tuple[tuple[str, int], ...],
    page_tok: tuple[int, ...], slack: int = 1,
) -> Grid:
    """Multiply everything out. Costs: a count not seen near the event 4, one less than seen 1; other heads 1."""
    need(context_length_max >= 1, "context_length_max", context_length_max)
    counts = dict.fromkeys(range(1, n_max + 1), 4)
    counts |= {n - 1: 1 for n in near if n > 1 and slack} | dict.fromkeys(near, 0)
    by_heads = {1: 0}
    for name, n_of_name in heads:
        by_heads[n_of_name] = min(by_heads.get(n_of_name, 1), 0 if "index" in name else 1)
    context = np.array(context_sizes(context_length_max, page_tok), dtype=float)
    n, c, h, b = (part.ravel() for part in np.meshgrid(
        np.arange(len(counts)), np.arange(len(context)), np.arange(len(by_heads)), np.array(VALUE_BYTES),
        indexing="ij"))
    count, n_heads = np.array(list(counts))[n], np.array(list(by_heads))[h]
    cost = np.array(list(counts.values()))[n] + np.array(list(by_heads.values()))[h] + context[c, 3].astype(int)
    log_value = np.log(count * context[c, 2] * n_heads * b)
    order = np.argsort(log_value, kind="stable")
    return Grid(log_value[order], count[order], context[c, 0].astype(int)[order],
                 context[c, 1].astype(int)[order], n_heads[order], b[order], cost[order])


def fits(size: float, down: float, up: float, grid: Grid) -> list[tuple[int, float, int]]:
    """Return (row of the grid, chance, products of at most that cost that fit) of every product within down .. up."""
    centre, low, high = math.log(size), math.log1p(down), math.log1p(up)
    first, last = np.searchsorted(grid.log_value, [centre + low, centre + high], side="left")
    rows = np.arange(first, last)
    chances: dict[int, float] = {}
    for cost in np.unique(grid.cost[rows]):
        chances[int(cost)] = _chance(centre, low, high, grid.log_value[grid.cost <= cost])
    n_fit = {cost: int((grid.cost[rows] <= cost).sum()) for cost in chances}
    return [(int(row), chances[int(grid.cost[row])], n_fit[int(grid.cost[row])]) for row in rows]


def _chance(centre: float, low: float, high: float, log_value: np.ndarray) -> float:
    """Return the probability that a size of this magnitude is within tolerance of some product.

    Two guesses at what sizes look like, the larger chance counts: any size within the octave alike, or, for a size
    that is a small odd number times a power of two, such sizes as often as models have such dimensions.
    """
    half_octave = math.log(2) / 2
    near = log_value[np.searchsorted(log_value, centre - half_octave - high):
                     np.searchsorted(log_value, centre + half_octave - low)]
    begin = np.maximum(near - high, centre - half_octave)
    end = np.minimum(near - low, centre + half_octave)
    begin[1:] = np.maximum(begin[1:], end[:-1])
    chance = float(np.maximum(end - begin, 0).sum()) / (2 * half_octave)
    if _round_odd_part(np.array([centre]), low, high)[0]:
        hit = set(_round_odd_part(near, low, high).tolist()) - {0}
        chance = max(chance, sum(ROUND_SHARE[k] for k in hit))
    return min(chance, 1.0)


def _round_odd_part(log_value: np.ndarray, low: float, high: float) -> np.ndarray:
    """Return the odd part of the small odd number times a power of two within tolerance of each value; 0 if none."""
    found = np.zeros(len(log_value), dtype=int)
    for k in ROUND_SHARE:
        octaves = (log_value - math.log(k)) / math.log(2)
        off = (octaves - np.round(octaves)) * math.log(2)
        found[(found == 0) & (off >= -high) & (off <= -low)] = k
    return found


def dim_probability(dim: int) -> float:
    """Return the probability that one dimension of a model's tensors has this value (short: is as round) by luck."""
    odd = odd_part(dim)
    if odd not in ROUND_DIMS:
        return 1 / (dim * math.log(2**24 / 16))  # any whole number from 16 to 2^24, each octave alike
    return LONG_ROUND_FRAC if dim > LONG_DIM else ROUND_DIMS[odd] / MODEL_DIMS


def odd_part(number: int) -> int:
    """Return what is left of a whole number above 0 without its factors of two."""
    return number // (number & -number)
