"""Sizes that give away their factors: requests x configured context x heads x bytes, with the chance of a lucky fit.

A buffer that scales with the longest context the server was configured for shows in the size of a failed allocation,
in a tensor's shape, or in the bytes each request adds to a step. Many products come close to any number, so every
fingerprint states how likely a size of that magnitude is to be hit by luck.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from helpers.diagnose.chance import (
    LONG_DIM,
    ROUND_DIMS,
    VALUE_BYTES,
    Grid,
    context_sizes,
    dim_probability,
    fits,
    need,
    odd_part,
    product_grid,
)

TOLERANCE_FRAC = 0.002
"""Relative error that is still a fit [1]: allocators round sizes up (PyTorch: to 2 MiB, 0.05 % of 4 GiB) and print
two decimals (half a unit of 3.94 GiB is 0.13 %). Source: physics, section 4.3."""

STRONG_CHANCE_FRAC = 0.05
"""Chance of a lucky fit below which a fingerprint counts as a strong hint [1]: the usual level of a test."""

MIN_POSITIONS = 1024
"""A dimension below this is never read as a context: heads, experts and batches have such sizes."""

INDEX_PAGE = 64
"""Entries of a page in the paged scoring kernels of sparse attention (DeepGEMM paged MQA: block_kv is 64). Paddings
that a printed size cannot tell apart are listed with this one first."""

MAX_PASSES = 16
"""Times that one step may read or write a buffer: each cast, product and sum over it is another pass."""

_MIB = 2**20
_GIB = 2**30


@dataclass(frozen=True)
class Fingerprint:
    """One way to write a size as requests (or layers) x context positions x heads x bytes.

    Attributes
    ----------
    source : str
        "size", "shape" or "excess": what was factored.
    measured : float
        The size or excess [bytes]; the dimension of a shape.
    count : int
        Requests; layers times passes for an excess; 1 for a shape, whose other dimensions are not factored.
    context_length_max : int
        Longest context the server was configured for [tok].
    ratio, padding_tok : int
        The buffer has context_length_max / ratio + padding_tok entries per request.
    heads, heads_name : int, str
        "1" head is no head dimension.
    value_bytes : int
        Bytes of a value; 0 for a shape.
    error_frac : float
        Product over measured, minus 1 [1].
    chance_frac : float
        Probability [1] that a size of this magnitude is fitted by luck by some product at most this complicated.
    is_near_req : bool
        The count was seen running near the event.
    n_alternatives : int
        Other products at most this complicated that fit as well (same chance: they share it).
    rivals : tuple of str
        Known dimensions that explain the same number without the context; chance_frac is then 1.
    shape : tuple of int
        The whole shape, for source "shape".
    """

    source: str
    measured: float
    count: int
    context_length_max: int
    ratio: int
    padding_tok: int
    heads: int
    heads_name: str
    value_bytes: int
    error_frac: float
    chance_frac: float
    is_near_req: bool
    n_alternatives: int
    rivals: tuple[str, ...] = ()
    shape: tuple[int, ...] = ()

    @property
    def positions(self) -> int:
        """Entries per request and head."""
        return self.context_length_max // self.ratio + self.padding_tok

    @property
    def is_strong(self) -> bool:
        """The fit is unlikely to be luck."""
        return self.chance_frac < STRONG_CHANCE_FRAC

    @property
    def is_context_told(self) -> bool:
        """The number tells this context from another power of two; else only the count and the magnitude speak."""
        return odd_part(self.positions if self.source == "shape" else self.context_length_max) not in ROUND_DIMS

    @property
    def sentence(self) -> str:
        """The finding in one sentence."""
        what = f"{self.context_length_max:,} / {self.ratio}" if self.ratio > 1 else f"{self.context_length_max:,}"
        what += f" + {self.padding_tok}" if self.padding_tok else ""
        percent = 100 * self.chance_frac
        luck = f"chance of a lucky fit {percent:.0f} %" if percent >= 10 else f"chance of a lucky fit {percent:.2g} %"
        if self.rivals:
            luck = f"but {' and '.join(self.rivals)} fits too"
        if self.source == "shape":
            size = f"{self.positions:,} = {what}"
            return f"a tensor {list(self.shape)} has a dimension of {size}, the longest context; {luck}"
        unit = "passes over the layers" if self.source == "excess" else "requests"
        factors = f"{self.count} {unit} x {self.positions:,} positions ({what})"
        factors += f" x {self.heads} {self.heads_name}" if self.heads > 1 else ""
        return f"{factors} x {self.value_bytes} bytes, {100 * self.error_frac:+.2f} % off; {luck}"


def find(
    size_bytes: float,
    *,
    context_length_max: int | None,
    n_max: int,
    heads: Mapping[str, int] | None = None,
    page_tok: Sequence[int] = (64,),
    near_req: Iterable[int] = (),
    half_unit_bytes: float | None = None,
    other_dims: Mapping[str, int] | None = None,
    limit: int = 10,
) -> tuple[Fingerprint, ...]:
    """Write a size as N x (context_length_max / ratio + padding) x heads x bytes, most telling product first.

    Parameters
    ----------
    size_bytes : float
        As printed, e.g. 3.94 x 2^30 for "3.94 GiB" [bytes].
    context_length_max : int or None
        Longest context the server was configured for [tok]; None: no fingerprint is possible.
    n_max : int
        Most requests that may run.
    heads : mapping
        Head counts of the model by name; one whose name holds "index" is preferred.
    page_tok : sequence of int
        Sizes of a page [tok]: one page of padding may be added before or after division by ratio.
    near_req : iterable of int
        running_req seen near the event; one less counts too (a request that ended since). Without them any count is
        tried, and a fit is rarely more than luck.
    half_unit_bytes : float, optional
        Half of the last printed digit [bytes]; default: as PyTorch prints, two decimals of KiB, MiB or GiB
        (c10/core/CachingAllocator, format_size).
    other_dims : mapping
        Dimensions known to mean something else (vocabulary, hidden size, KV pool tokens): a size they explain with
        the same counts is no fingerprint of the context.
    limit : int
        Most products returned.

    Returns
    -------
    tuple of Fingerprint
        Empty where nothing fits. Sizes of several events are looked at one by one: the same size twice is one fact.

    Raises
    ------
    RooflogError
        A size, context or count that is not above 0.
    """
    need(size_bytes > 0 and math.isfinite(size_bytes), "size_bytes", size_bytes)
    need(n_max >= 1, "n_max", n_max)
    if context_length_max is None:
        return ()
    near = tuple(sorted({int(n) for n in near_req if n >= 1}))
    grid = product_grid(int(context_length_max), int(n_max), near, _pairs(heads), tuple(page_tok))
    half = _printed_half_unit(size_bytes) if half_unit_bytes is None else half_unit_bytes
    tolerance = max(TOLERANCE_FRAC, half / size_bytes)
    rivals = _rivals(size_bytes, tolerance, other_dims or {}, near or range(1, n_max + 1))
    found = fits(size_bytes, -tolerance, tolerance, grid)
    return _named(found, grid, size_bytes, "size", context_length_max, heads, near, rivals, limit)


def find_in_excess(
    excess_bytes: float,
    lo: float,
    hi: float,
    *,
    context_length_max: int | None,
    n_layers: Iterable[int] = (1,),
    heads: Mapping[str, int] | None = None,
    page_tok: Sequence[int] = (64,),
    limit: int = 10,
) -> tuple[Fingerprint, ...]:
    """Write the bytes that each request adds to a step as layers x passes x context positions x heads x bytes.

    Parameters
    ----------
    excess_bytes, lo, hi : float
        Excess per request and step with its interval, from the slope above its expectation [bytes].
    context_length_max, heads, page_tok, limit
        As in `find`.
    n_layers : iterable of int
        Numbers of layers that may hold such a buffer.

    Returns
    -------
    tuple of Fingerprint
        An interval as wide as slopes have fits almost any product: chance_frac says so. It tells a magnitude, not a
        cause.

    Raises
    ------
    RooflogError
        No interval lo <= excess <= hi above 0.
    """
    need(0 < lo <= excess_bytes <= hi < math.inf, "lo <= excess_bytes <= hi", excess_bytes)
    if context_length_max is None:
        return ()
    counts = tuple(sorted({int(n) * passes for n in n_layers if n >= 1 for passes in range(1, MAX_PASSES + 1)}))
    grid = product_grid(int(context_length_max), 0, counts, _pairs(heads), tuple(page_tok), slack=0)
    down, up = min(lo / excess_bytes - 1, -TOLERANCE_FRAC), max(hi / excess_bytes - 1, TOLERANCE_FRAC)
    found = fits(excess_bytes, down, up, grid)
    return _named(found, grid, excess_bytes, "excess", context_length_max, heads, (), (), limit)


def find_in_shapes(
    shapes: Iterable[Sequence[int]],
    *,
    context_length_max: int | None,
    page_tok: Sequence[int] = (64,),
    near_req: Iterable[int] = (),
    other_dims: Mapping[str, int] | None = None,
    limit: int = 10,
) -> tuple[Fingerprint, ...]:
    """Find tensor dimensions that equal context_length_max / ratio (+ padding) exactly.

    Parameters
    ----------
    shapes : iterable of sequences of int
        Shapes of a trace; every distinct dimension is one more try, and the chance counts them.
    context_length_max, page_tok, near_req, other_dims, limit
        As in `find`; ``is_near_req`` tells that another dimension of the same shape is such a count.

    Returns
    -------
    tuple of Fingerprint
        One per distinct dimension (its largest shape), least likely to be luck first.
    """
    if context_length_max is None:
        return ()
    need(context_length_max >= 1, "context_length_max", context_length_max)
    contexts = {positions: (ratio, padding) for ratio, padding, positions, _ in
                reversed(context_sizes(int(context_length_max), tuple(page_tok))) if positions >= MIN_POSITIONS}
    near = {int(n) for n in near_req}
    named = {int(size): name for name, size in (other_dims or {}).items()}
    every = sorted({tuple(int(d) for d in shape) for shape in shapes}, key=math.prod, reverse=True)
    dims = {dim for shape in every for dim in shape if dim >= MIN_POSITIONS}
    found = []
    for dim in sorted(dims & set(contexts)):
        shape = next(shape for shape in every if dim in shape)
        tries = sum((other > LONG_DIM) == (dim > LONG_DIM) for other in dims)
        alike = [p for p in contexts if (p > LONG_DIM) == (dim > LONG_DIM)
                 and (odd_part(p) in ROUND_DIMS) == (odd_part(dim) in ROUND_DIMS)]
        is_short_round = dim <= LONG_DIM and odd_part(dim) in ROUND_DIMS  # any width: its share counts all lengths
        p_luck = dim_probability(dim) if is_short_round else sum(map(dim_probability, alike))
        ratio, padding = contexts[dim]
        rivals = (named[dim],) if dim in named else ()
        found.append(Fingerprint(
            "shape", float(dim), 1, int(context_length_max), ratio, padding, 1, "", 0, 0.0,
            1.0 if rivals else 1 - (1 - min(p_luck, 1.0)) ** tries, bool(near & set(shape)), 0, rivals, shape,
        ))
    return tuple(sorted(found, key=lambda f: (f.chance_frac, not f.is_near_req, -f.measured))[:limit])


def _pairs(heads: Mapping[str, int] | None) -> tuple[tuple[str, int], ...]:
    return tuple((str(name), int(n)) for name, n in (heads or {}).items() if n > 1)


def _named(
    found: list[tuple[int, float, int]], grid: Grid, measured: float, source: str, context_length_max: int,
    heads: Mapping[str, int] | None, near: tuple[int, ...], rivals: tuple[str, ...], limit: int,
) -> tuple[Fingerprint, ...]:
    """Name the products and put the most telling first: chance, seen count, index heads, padding, error."""
    names = {n: name for name, n in reversed(_pairs(heads))}
    names |= {n: name for name, n in reversed(_pairs(heads)) if "index" in name}
    prints = []
    for row, chance, n_fit in found:
        n_heads = int(grid.heads[row])
        error = math.expm1(float(grid.log_value[row]) - math.log(measured))
        prints.append(Fingerprint(
            source, float(measured), int(grid.count[row]), int(context_length_max), int(grid.ratio[row]),
            int(grid.padding[row]), n_heads, names.get(n_heads, "") if n_heads > 1 else "",
            int(grid.value_bytes[row]), error, 1.0 if rivals else chance,
            bool({int(grid.count[row]), int(grid.count[row]) + 1} & set(near)), n_fit - 1, rivals,
        ))
    prints.sort(key=lambda f: (f.chance_frac >= STRONG_CHANCE_FRAC, not f.is_near_req, "index" not in f.heads_name,
                               f.padding_tok != INDEX_PAGE, round(abs(f.error_frac), 6), f.chance_frac, f.ratio))
    return tuple(prints[:limit])


def _rivals(size: float, tolerance: float, dims: Mapping[str, int], counts: Iterable[int]) -> tuple[str, ...]:
    """Name the known dimensions that make the size with one of the counts (or one less) and no context at all."""
    every = np.array(sorted({c for n in counts for c in (n - 1, n) if c >= 1}))
    products = np.outer(every, VALUE_BYTES).ravel()
    return tuple(name for name, dim in dims.items()
                 if dim > 1 and bool((np.abs(products * dim / size - 1) <= tolerance).any()))


def _printed_half_unit(size_bytes: float) -> float:
    unit = _GIB if size_bytes >= _GIB else _MIB if size_bytes >= _MIB else 1024
    return 0.005 * unit
