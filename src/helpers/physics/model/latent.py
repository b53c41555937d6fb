"""Latent attention: MLA, its sparse form with an index, and the compressed attention of DeepSeek-V4.

One latent per token stands for the keys and values of all heads, so every tensor-parallel rank holds and reads all
of it. Cells as the servers lay them out (FlashMLA's FP8 cells of 656 and 584 bytes).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

import numpy as np

from helpers.physics.model.formats import KvFormat
from helpers.physics.model.spec import Weights

INDEX_SCALE_BYTES = 4  # an index key is FP8 with one FP32 scale, whatever the format of the cache
LATENT_SCALE_BLOCK = 128  # elements per FP32 scale in the FP8 cell of sparse latent attention
COMPRESSED_SCALE_BLOCK = 64  # elements per 8-bit scale in the FP8 cell of DeepSeek-V4


SCORE_FLOPS = 2  # a multiplication and an addition


def context_zeros(context_tok: np.ndarray) -> np.ndarray:
    """Nothing per request, in the shape of the contexts."""
    return np.zeros_like(np.asarray(context_tok, dtype=float))


class Stateless:
    """What a mixer without recurrent state and without an index answers."""

    def index_bytes(self, context_tok: np.ndarray) -> np.ndarray:
        """No index keys [bytes]."""
        return context_zeros(context_tok)

    def state_bytes(self, n_tok: int, tp: int) -> float:
        """No recurrent state [bytes]."""
        return 0.0


@dataclass(frozen=True)
class Indexer:
    """The small attention that chooses which tokens sparse attention reads (DeepSeek-V3.2, V4, GLM-5).

    Attributes
    ----------
    n_heads, head_dim : int
        Its query heads and their width; one key per token.
    topk_tok : int
        Tokens it chooses [tok].
    is_full : bool
        False in a layer that takes another layer's choice: it has no indexer of its own.
    """

    n_heads: int
    head_dim: int
    topk_tok: int
    is_full: bool = True

    @property
    def key_bytes(self) -> int:
        """One key as servers read it: FP8 and its scale [bytes]."""
        return self.head_dim + INDEX_SCALE_BYTES

    def cell_bytes(self, kv: KvFormat) -> float:
        """One key in the cache [bytes]: FP8 with its scale, or 16 bit as the models' papers count a BF16 cache."""
        return self.head_dim * kv.bytes_per_element if kv.bytes_per_element >= 2 else self.key_bytes

    def flops_per_key(self) -> float:
        """Scores of one key, every rank [FLOP]."""
        return SCORE_FLOPS * self.n_heads * self.head_dim

    def query_params(self, hidden: int, query_rank: int) -> float:
        """Query projection from the compressed query, and the weights of the heads [parameters]."""
        return query_rank * self.n_heads * self.head_dim + hidden * self.n_heads


@dataclass(frozen=True)
class LatentAttention(Stateless):
    """Multi-head latent attention (MLA), absorbed in decode: one latent per token, replicated on every rank.

    Attributes
    ----------
    n_heads : int
        Query heads.
    q_lora_rank : int or None
        Width of the compressed query; None where queries come straight from the residual.
    kv_lora_rank, rope_dim, nope_dim, v_dim : int
        Widths of the latent, and of a head's parts with and without position, and of its values.
    indexer : Indexer or None
        Sparse attention: which tokens are read.
    has_bias : bool
        Bias of the down projections and of the output.
    """

    n_heads: int
    q_lora_rank: int | None
    kv_lora_rank: int
    rope_dim: int
    nope_dim: int
    v_dim: int
    indexer: Indexer | None = None
    has_bias: bool = False

    @property
    def sharded_heads(self) -> dict[str, int]:
        """Counts that the tensor-parallel degree must divide."""
        return {"attention heads": self.n_heads}

    def weights(self, hidden: int) -> tuple[Weights, ...]:
        """Down projections and indexer (replicated), up projections and output (split by heads)."""
        rank, query_width = self.q_lora_rank, self.n_heads * (self.nope_dim + self.rope_dim)
        rows = hidden + self.has_bias
        down = rows * (self.kv_lora_rank + self.rope_dim) + (rows * rank if rank else 0)
        up = (rank or hidden) * query_width + self.kv_lora_rank * self.n_heads * (self.nope_dim + self.v_dim)
        output = self.n_heads * self.v_dim * hidden + hidden * self.has_bias
        norms = self.kv_lora_rank + (rank or 0)
        return (Weights("attention", up + output), Weights("attention", down, 1), Weights("norm", norms, 1),
                *self._index_weights(hidden))

    def _index_weights(self, hidden: int) -> tuple[Weights, ...]:
        index = self.indexer
        if index is None or not index.is_full:
            return ()
        key = hidden * index.head_dim
        n_params = key + index.query_params(hidden, self.q_lora_rank or hidden)
        return Weights("indexer", n_params, 1), Weights("norm", 2 * index.head_dim, 1)

    def _latent_bytes(self, kv: KvFormat) -> float:
        # FlashMLA's sparse kernel: FP8 latent, FP32 scales per 128 elements, position in BF16 (656 bytes).
        if self.indexer is not None and kv.bytes_per_element < 2:
            return self.kv_lora_rank + 4 * ceil(self.kv_lora_rank / LATENT_SCALE_BLOCK) + 2 * self.rope_dim
        return (self.kv_lora_rank + self.rope_dim) * kv.bytes_per_element

    def attended_tok(self, context_tok: np.ndarray) -> np.ndarray:
        """Tokens of the context whose latent a step reads."""
        context = np.asarray(context_tok, dtype=float)
        return context if self.indexer is None else np.minimum(context, self.indexer.topk_tok)

    def kv_bytes(self, context_tok: np.ndarray, tp: int, kv: KvFormat) -> np.ndarray:
        """Latents read per request, every rank [bytes]."""
        return self.attended_tok(context_tok) * self._latent_bytes(kv)

    def index_bytes(self, context_tok: np.ndarray) -> np.ndarray:
        """Index keys read per request, every rank [bytes]."""
        if self.indexer is None or not self.indexer.is_full:
            return context_zeros(context_tok)
        return np.asarray(context_tok, dtype=float) * self.indexer.key_bytes

    def cell_bytes(self, kv: KvFormat) -> float:
        """Latent and index key per further token [bytes/tok]."""
        index = self.indexer.cell_bytes(kv) if self.indexer is not None and self.indexer.is_full else 0.0
        return self._latent_bytes(kv) + index

    def flops(self, context_tok: np.ndarray, tp: int) -> np.ndarray:
        """Absorbed scores and values of the heads of one rank, and the whole index [FLOP]."""
        per_tok = SCORE_FLOPS * self.n_heads / tp * (2 * self.kv_lora_rank + self.rope_dim)
        attention = self.attended_tok(context_tok) * per_tok
        if self.indexer is None or not self.indexer.is_full:
            return attention
        return attention + np.asarray(context_tok, dtype=float) * self.indexer.flops_per_key()

    def prefill_flops(self, context_tok: np.ndarray, tp: int) -> np.ndarray:
        """As ``flops`` in a prefill, where latents are expanded into heads first [FLOP]; with an indexer, as decode."""
        if self.indexer is not None:
            return self.flops(context_tok, tp)
        widths = self.nope_dim + self.rope_dim + self.v_dim
        return np.asarray(context_tok, dtype=float) * (SCORE_FLOPS * self.n_heads / tp * widths)


@dataclass(frozen=True)
class CompressedAttention(Stateless):
    """Attention of DeepSeek-V4: a window of plain entries and, beyond it, one entry per ``ratio`` tokens.

    Attributes
    ----------
    n_heads, head_dim, rope_dim : int
        Query heads; width of the one shared key that is also the value; its part with position.
    q_lora_rank, o_lora_rank, o_groups : int
        Compressed query; the output's two steps, the first in groups of heads.
    window_tok : int
        Window of uncompressed entries [tok].
    ratio : int
        Tokens per compressed entry: 0 has none, a small one overlaps blocks and is read through an index, a large
        one is read whole.
    indexer : Indexer or None
        Chooses compressed entries.
    """

    n_heads: int
    head_dim: int
    rope_dim: int
    q_lora_rank: int
    o_lora_rank: int
    o_groups: int
    window_tok: int
    ratio: int = 0
    indexer: Indexer | None = None

    @property
    def sharded_heads(self) -> dict[str, int]:
        """Counts that the tensor-parallel degree must divide."""
        return {"attention heads": self.n_heads, "output groups": self.o_groups}

    def weights(self, hidden: int) -> tuple[Weights, ...]:
        """Down projections, compressor and indexer (replicated), queries and output (split by heads)."""
        width = self.n_heads * self.head_dim
        output = width * self.o_lora_rank + self.o_groups * self.o_lora_rank * hidden
        return (
            Weights("attention", self.q_lora_rank * width + output + self.n_heads),  # one sink per head
            Weights("attention", hidden * (self.q_lora_rank + self.head_dim), 1),
            Weights("norm", self.q_lora_rank + self.head_dim, 1),
            *self._compressor("compressor", hidden, self.head_dim),
            *self._index_weights(hidden),
        )

    def _compressor(self, role: str, hidden: int, dim: int) -> tuple[Weights, ...]:
        if not self.ratio:
            return ()
        overlap = 2 if self.indexer is not None else 1  # overlapping blocks: every matrix is twice as wide
        matrices = 2 * overlap * hidden * dim  # values and gates
        positions = self.ratio * overlap * dim
        return Weights(role, matrices + positions, 1), Weights("norm", dim, 1)

    def _index_weights(self, hidden: int) -> tuple[Weights, ...]:
        if self.indexer is None:
            return ()
        query = Weights("indexer", self.indexer.query_params(hidden, self.q_lora_rank), 1)
        return query, *self._compressor("indexer", hidden, self.indexer.head_dim)

    def _entry_bytes(self, kv: KvFormat) -> float:
        # FlashMLA's cell: FP8 without position, BF16 with it, 8-bit scales padded to 8 bytes (584 bytes).
        if kv.bytes_per_element >= 2:
            return self.head_dim * kv.bytes_per_element
        plain = self.head_dim - self.rope_dim
        scales = 8 * ceil(plain / COMPRESSED_SCALE_BLOCK / 8)
        return plain + 2 * self.rope_dim + scales

    def _compressed(self, context_tok: np.ndarray) -> np.ndarray:
        if not self.ratio:
            return context_zeros(context_tok)
        return np.floor_divide(np.asarray(context_tok, dtype=float), self.ratio)

    def attended_entries(self, context_tok: np.ndarray) -> np.ndarray:
        """Entries that a step reads: the window and the chosen compressed ones."""
        compressed = self._compressed(context_tok)
        if self.indexer is not None:
            compressed = np.minimum(compressed, self.indexer.topk_tok)
        return np.minimum(np.asarray(context_tok, dtype=float), self.window_tok) + compressed

    def kv_bytes(self, context_tok: np.ndarray, tp: int, kv: KvFormat) -> np.ndarray:
        """Entries read per request, every rank [bytes]."""
        return self.attended_entries(context_tok) * self._entry_bytes(kv)

    def index_bytes(self, context_tok: np.ndarray) -> np.ndarray:
        """Index keys read per request, every rank [bytes]."""
        return self._compressed(context_tok) * (self.indexer.key_bytes if self.indexer is not None else 0)

    def cell_bytes(self, kv: KvFormat) -> float:
        """Compressed entries and index keys per further token [bytes/tok]; the window does not grow."""
        if not self.ratio:
            return 0.0
        index = self.indexer.cell_bytes(kv) if self.indexer is not None else 0.0
        return (self._entry_bytes(kv) + index) / self.ratio

    def flops(self, context_tok: np.ndarray, tp: int) -> np.ndarray:
        """Scores and values of the heads of one rank, and the whole index [FLOP]."""
        attention = self.attended_entries(context_tok) * (2 * SCORE_FLOPS * self.n_heads / tp * self.head_dim)
        index = self.indexer.flops_per_key() if self.indexer is not None else 0.0
        return attention + self._compressed(context_tok) * index
