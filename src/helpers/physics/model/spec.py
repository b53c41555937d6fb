"""What a model is made of, as far as a decode step can tell: layers, their weights, formats and shares.

A `ModelSpec` is a stack of layers; each layer is a mixer (attention or a recurrent state) and a feed (dense or
experts). Mixers and feeds know their weights, what a step reads of a request, and their FLOPs; nothing here knows
an accelerator. `config` builds it from a config.json, `demand` adds it up for a step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np

from helpers.physics.model.formats import KvFormat, WeightFormat

ALL_RANKS = 1 << 30
"""``max_shards`` of a matrix that any number of tensor-parallel ranks can split."""

ROLES = (
    "attention", "linear_attention", "indexer", "compressor", "residual_mix", "dense_mlp", "routed_experts",
    "shared_experts", "router", "norm", "embed", "head", "draft",
)
"""What a weight does; its format is given per role. ``draft``: matrices of multi-token-prediction layers."""


@dataclass(frozen=True)
class Weights:
    """Parameters of one role in one layer.

    Attributes
    ----------
    role : str
        One of `ROLES`.
    n_params : float
        Parameters of the whole model copy, all ranks together.
    max_shards : int
        Tensor-parallel ranks that can share them: 1 = every rank holds all of them, the number of KV heads for
        their projections, `ALL_RANKS` for the rest.
    """

    role: str
    n_params: float
    max_shards: int = ALL_RANKS

    def per_rank(self, tp: int) -> float:
        """Parameters that one of ``tp`` ranks holds."""
        return self.n_params / min(tp, self.max_shards)


class Mixer(Protocol):
    """Mixes tokens: attention, latent attention, a recurrent state."""

    def weights(self, hidden: int) -> tuple[Weights, ...]:
        """Parameters of the layer's mixer, norms inside it included."""
        ...

    def kv_bytes(self, context_tok: np.ndarray, tp: int, kv: KvFormat) -> np.ndarray:
        """Keys and values that one rank reads per request and forward, this layer [bytes]."""
        ...

    def index_bytes(self, context_tok: np.ndarray) -> np.ndarray:
        """Index keys that one rank reads per request and forward, this layer [bytes]."""
        ...

    def state_bytes(self, n_tok: int, tp: int) -> float:
        """Recurrent state that one rank moves per request and forward of ``n_tok`` tokens, this layer [bytes]."""
        ...

    def cell_bytes(self, kv: KvFormat) -> float:
        """Cache that one more token of context takes in the long run, one copy, this layer [bytes/tok]."""
        ...

    def flops(self, context_tok: np.ndarray, tp: int) -> np.ndarray:
        """FLOPs of one rank per token of the forward beyond the projections, this layer [FLOP]."""
        ...


class Feed(Protocol):
    """What follows the mixer: a dense network, experts."""

    def weights(self, hidden: int) -> tuple[Weights, ...]:
        """Parameters of the feed, all experts included."""
        ...


@runtime_checkable
class HasExperts(Feed, Protocol):
    """A feed of which each token uses a part.

    Attributes
    ----------
    n_experts, n_active : int
        Routed experts of the layer, and how many a token chooses.
    """

    n_experts: int
    n_active: int

    def expert_params(self, hidden: int) -> float:
        """Parameters of one routed expert."""
        ...

    def idle_params(self, hidden: int) -> float:
        """Parameters of the routed experts that one token does not choose."""
        ...


@dataclass(frozen=True)
class Layer:
    """One layer, and how often it occurs.

    Attributes
    ----------
    mixer, feed : Mixer, Feed or None
        None where the layer has none (Nemotron-H layers are one or the other).
    norm_params : float
        Norms around mixer and feed, and other replicated vectors [parameters].
    count : int
        Layers of this kind in the stack.
    extra : tuple of Weights
        Weights that belong to neither (streams of the residual).
    """

    mixer: Mixer | None
    feed: Feed | None
    norm_params: float
    count: int = 1
    extra: tuple[Weights, ...] = ()

    def weights(self, hidden: int) -> tuple[Weights, ...]:
        """Parameters of one such layer."""
        parts = [Weights("norm", self.norm_params, 1), *self.extra]
        for part in (self.mixer, self.feed):
            parts += part.weights(hidden) if part is not None else ()
        return tuple(parts)

    @property
    def n_all_reduces(self) -> int:
        """Reductions over the tensor-parallel ranks in one such layer."""
        return (self.mixer is not None) + (self.feed is not None)


@dataclass(frozen=True)
class ModelSpec:
    """A model, from its configuration.

    Attributes
    ----------
    name : str
        As the user or the catalogue calls it.
    hidden, vocab : int
        Width of the residual stream, rows of the embedding.
    layers : tuple of Layer
        The main stack; order does not matter to a step.
    is_tied : bool
        Head and embedding are one matrix: read once per step as the head, counted once.
    final : tuple of Weights
        What stands between the stack and the head (the last norm).
    draft : tuple of Layer
        Layers of the built-in draft model (multi-token prediction), outside the stack.
    draft_extra : tuple of Weights
        Its projections and norms.
    formats : mapping
        Role -> format of its weights.
    kv : KvFormat
        Format of the cache, as far as the configuration says.
    context_length_max : int or None
        Longest context the model knows [tok]; the server's limit may be lower.
    assumptions : tuple of str
        Whatever had to be assumed to read the configuration.
    source, confidence : str
        Where the configuration comes from.
    """

    name: str
    hidden: int
    vocab: int
    layers: tuple[Layer, ...]
    is_tied: bool
    final: tuple[Weights, ...]
    formats: Mapping[str, WeightFormat]
    kv: KvFormat
    draft: tuple[Layer, ...] = ()
    draft_extra: tuple[Weights, ...] = ()
    context_length_max: int | None = None
    assumptions: tuple[str, ...] = ()
    source: str = ""
    confidence: str = ""
    notes: Mapping[str, str] = field(default_factory=dict)

    @property
    def n_layers(self) -> int:
        """Layers of the main stack."""
        return sum(layer.count for layer in self.layers)

    @property
    def has_compressed_attention(self) -> bool:
        """Tell whether layers compress their cache (many small kernels per layer)."""
        return any(weights.role == "compressor" for weights, _ in self.stack())

    @property
    def head(self) -> Weights:
        """The output matrix, one copy split over the ranks."""
        return Weights("head", self.hidden * self.vocab)

    def stack(self) -> Iterator[tuple[Weights, int]]:
        """Yield every weight of the main stack with the number of layers that have it; no embedding, no head."""
        for layer in self.layers:
            for weights in layer.weights(self.hidden):
                yield weights, layer.count
        for weights in self.final:
            yield weights, 1

    @property
    def n_params(self) -> float:
        """Parameters of the text model, embedding included, draft layers left out."""
        ends = self.hidden * self.vocab * (1 if self.is_tied else 2)
        return ends + sum(weights.n_params * count for weights, count in self.stack())

    @property
    def n_active_params(self) -> float:
        """Parameters that one token uses, head included, embedding left out."""
        idle = sum(layer.count * layer.feed.idle_params(self.hidden) for layer in self.layers
                   if isinstance(layer.feed, HasExperts))
        embedding = 0 if self.is_tied else self.hidden * self.vocab
        return self.n_params - embedding - idle
