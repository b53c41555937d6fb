"""Mixers of a decoder layer: what each weighs, what it reads of a request, what it computes.

Grouped-query attention (also over a window), gated delta nets and Mamba-2 are here; latent attention and what
descends from it in `latent`. The formulas are those of the models' published code, bytes per request as the
servers lay their caches out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from helpers.physics.model.formats import KvFormat
from helpers.physics.model.latent import (
    SCORE_FLOPS,
    CompressedAttention,
    Indexer,
    LatentAttention,
    Stateless,
    context_zeros,
)
from helpers.physics.model.spec import Weights

CONV_BYTES = 2  # the short convolution's window is kept in 16 bit
DELTA_FLOPS = 6  # per element of the state and token: decay, read, correct, write, query (a rough count)


@dataclass(frozen=True)
class GroupedAttention(Stateless):
    """Attention with as many or fewer key/value heads than query heads.

    Attributes
    ----------
    n_heads, n_kv_heads, head_dim : int
        Query heads, key/value heads, elements per head. Fewer KV heads than ranks are replicated.
    window_tok : int or None
        Sliding window [tok]; None attends to the whole context.
    norm_params : int
        Norms of queries and keys (and sub-norms), replicated [parameters].
    has_gate : bool
        The query projection also makes a gate of the output, twice the width.
    has_qkv_bias, has_o_bias, has_sinks : bool
        Bias of the projections; one learned sink per query head.
    has_v_proj : bool
        False where the values are the keys before their norm (the cache still holds both).
    shares_kv : bool
        Reads another layer's cache: its traffic stays, its cells and its k/v projections do not exist.
    """

    n_heads: int
    n_kv_heads: int
    head_dim: int
    window_tok: int | None = None
    norm_params: int = 0
    has_gate: bool = False
    has_qkv_bias: bool = False
    has_o_bias: bool = False
    has_sinks: bool = False
    has_v_proj: bool = True
    shares_kv: bool = False

    @property
    def sharded_heads(self) -> dict[str, int]:
        """Counts that the tensor-parallel degree must divide."""
        return {"attention heads": self.n_heads}

    def weights(self, hidden: int) -> tuple[Weights, ...]:
        """Query, output, key and value projections; biases travel with their matrix."""
        width, kv_width = self.n_heads * self.head_dim, self.n_kv_heads * self.head_dim
        rows = hidden + self.has_qkv_bias
        query = width * rows * (2 if self.has_gate else 1)
        output = width * hidden + hidden * self.has_o_bias + self.n_heads * self.has_sinks
        kv = 0 if self.shares_kv else kv_width * rows * (2 if self.has_v_proj else 1)
        parts = (
            Weights("attention", query + output),
            Weights("attention", kv, self.n_kv_heads),
            Weights("norm", self.norm_params, 1),
        )
        return tuple(part for part in parts if part.n_params)

    def attended_tok(self, context_tok: np.ndarray) -> np.ndarray:
        """Tokens of the context that a step looks at."""
        context = np.asarray(context_tok, dtype=float)
        return context if self.window_tok is None else np.minimum(context, self.window_tok)

    def kv_bytes(self, context_tok: np.ndarray, tp: int, kv: KvFormat) -> np.ndarray:
        """Keys and values read per request, one rank [bytes]."""
        heads = max(1.0, self.n_kv_heads / tp)
        return self.attended_tok(context_tok) * (2 * heads * self.head_dim * kv.bytes_per_element)

    def cell_bytes(self, kv: KvFormat) -> float:
        """Cache per further token [bytes/tok]; a window and a shared cache do not grow."""
        if self.window_tok is not None or self.shares_kv:
            return 0.0
        return 2 * self.n_kv_heads * self.head_dim * kv.bytes_per_element

    def flops(self, context_tok: np.ndarray, tp: int) -> np.ndarray:
        """Scores and weighted values per token, one rank [FLOP]."""
        return self.attended_tok(context_tok) * (2 * SCORE_FLOPS * self.n_heads / tp * self.head_dim)


class _Recurrent:
    """What a mixer without a cache that grows answers."""

    def kv_bytes(self, context_tok: np.ndarray, tp: int, kv: KvFormat) -> np.ndarray:
        """No keys and values [bytes]."""
        return context_zeros(context_tok)

    def index_bytes(self, context_tok: np.ndarray) -> np.ndarray:
        """No index keys [bytes]."""
        return context_zeros(context_tok)

    def cell_bytes(self, kv: KvFormat) -> float:
        """Nothing grows with the context [bytes/tok]."""
        return 0.0

    def resident_bytes(self, tp: int) -> float:
        """One copy of the state and the convolution's window [bytes]."""
        raise NotImplementedError

    def state_bytes(self, n_tok: int, tp: int) -> float:
        """One state read and one written per token of the forward, so that any can be gone back to [bytes]."""
        return (1 + n_tok) * self.resident_bytes(tp)


@dataclass(frozen=True)
class GatedDelta(_Recurrent):
    """Gated delta net (Qwen3-Next, Qwen3.5): a matrix per value head.

    Attributes
    ----------
    n_k_heads, n_v_heads, k_dim, v_dim : int
        Key and value heads, and their widths.
    conv_kernel : int
        Taps of the short convolution over queries, keys and values.
    element_bytes : float
        Of the state [bytes].
    """

    n_k_heads: int
    n_v_heads: int
    k_dim: int
    v_dim: int
    conv_kernel: int
    element_bytes: float = 4.0

    @property
    def sharded_heads(self) -> dict[str, int]:
        """Counts that the tensor-parallel degree must divide."""
        return {"linear key heads": self.n_k_heads, "linear value heads": self.n_v_heads}

    @property
    def _conv_width(self) -> int:
        return 2 * self.n_k_heads * self.k_dim + self.n_v_heads * self.v_dim

    def weights(self, hidden: int) -> tuple[Weights, ...]:
        """Projections of q, k, v, gate, decay and output, convolution, vectors of the heads."""
        values = self.n_v_heads * self.v_dim
        inputs = hidden * (self._conv_width + values + 2 * self.n_v_heads)
        n_params = inputs + self._conv_width * self.conv_kernel + 2 * self.n_v_heads + values * hidden
        return Weights("linear_attention", n_params), Weights("norm", self.v_dim, 1)

    def resident_bytes(self, tp: int) -> float:
        """One copy of the state and the convolution's window, one rank [bytes]."""
        state = self.n_v_heads * self.k_dim * self.v_dim * self.element_bytes
        window = self._conv_width * (self.conv_kernel - 1) * CONV_BYTES
        return (state + window) / min(tp, self.n_v_heads)

    def flops(self, context_tok: np.ndarray, tp: int) -> np.ndarray:
        """Update and query of the state per token, one rank [FLOP]."""
        per_tok = DELTA_FLOPS * self.n_v_heads * self.k_dim * self.v_dim / min(tp, self.n_v_heads)
        return context_zeros(context_tok) + per_tok


@dataclass(frozen=True)
class Mamba2(_Recurrent):
    """Mamba-2 (Nemotron-H): a matrix per head, inputs shared by groups of heads.

    Attributes
    ----------
    n_heads, head_dim, n_groups, state_dim : int
        Heads and their width, groups of heads with common B and C, width of the state.
    conv_kernel : int
        Taps of the short convolution.
    has_conv_bias, has_proj_bias : bool
        Biases of the convolution and of the projections.
    element_bytes : float
        Of the state [bytes].
    """

    n_heads: int
    head_dim: int
    n_groups: int
    state_dim: int
    conv_kernel: int
    has_conv_bias: bool = True
    has_proj_bias: bool = False
    element_bytes: float = 4.0

    @property
    def sharded_heads(self) -> dict[str, int]:
        """Counts that the tensor-parallel degree must divide."""
        return {"mamba heads": self.n_heads}

    @property
    def _inner(self) -> int:
        return self.n_heads * self.head_dim

    @property
    def _conv_width(self) -> int:
        return self._inner + 2 * self.n_groups * self.state_dim

    def weights(self, hidden: int) -> tuple[Weights, ...]:
        """Projections in and out, convolution, A, D and the step of each head, the gated norm."""
        in_width = self._inner + self._conv_width + self.n_heads
        inputs = in_width * (hidden + self.has_proj_bias)
        output = self._inner * hidden + hidden * self.has_proj_bias
        convolution = self._conv_width * (self.conv_kernel + self.has_conv_bias)
        return (Weights("linear_attention", inputs + output + convolution + 3 * self.n_heads),
                Weights("norm", self._inner))

    def resident_bytes(self, tp: int) -> float:
        """One copy of the state and the convolution's window, one rank [bytes]."""
        state = self._inner * self.state_dim * self.element_bytes
        window = self._conv_width * (self.conv_kernel - 1) * CONV_BYTES
        return (state + window) / min(tp, self.n_heads)

    def flops(self, context_tok: np.ndarray, tp: int) -> np.ndarray:
        """Update and query of the state per token, one rank [FLOP]."""
        return context_zeros(context_tok) + DELTA_FLOPS * self._inner * self.state_dim / min(tp, self.n_heads)


__all__ = [
    "CompressedAttention", "GatedDelta", "GroupedAttention", "Indexer", "LatentAttention", "Mamba2",
]
