"""The forwards of a step from a model's configuration: `DecodeModel`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from helpers.physics.model.formats import KvFormat, WeightFormat
from helpers.physics.model.spec import HasExperts, Layer, ModelSpec, Weights
from helpers.physics.steps.demand import (
    MATRICES,
    PER_REQUEST,
    Forward,
    Message,
    Parallel,
    busiest_rank_factor,
    touched_experts,
)

RESIDUAL_BYTES = 2
"""Bytes per element of the residual stream that ranks exchange (BF16)."""

FORMAT_OF_ATTENTION = "bf16"
"""Rate at which attention multiplies queries with the cache: its products are kept in 16 bit."""


@dataclass(frozen=True)
class DecodeModel:
    """A model from its configuration, as one deployment runs it.

    Attributes
    ----------
    spec : ModelSpec
    parallel : Parallel
    kv : KvFormat or None
        Format of the cache; None = as the configuration says.
    n_draft_tok : int
        Draft tokens per round, the bonus token not counted; 0 = no speculation.
    n_draft_forwards : int or None
        Forwards of the built-in draft layers per round; None = one per draft token.
    captured_batch_sizes : tuple of int
        Batch sizes with a captured graph: a step is padded to the next one.
    said : tuple of str
        What was assumed about the deployment.
    """

    spec: ModelSpec
    parallel: Parallel = field(default_factory=Parallel)
    kv: KvFormat | None = None
    n_draft_tok: int = 0
    n_draft_forwards: int | None = None
    captured_batch_sizes: tuple[int, ...] = ()
    said: tuple[str, ...] = ()

    @property
    def has_draft_layers(self) -> bool:
        """Tell whether a round runs layers of the model's own draft."""
        return self.n_draft_tok > 0 and bool(self.spec.draft) and self.n_draft_forwards != 0

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What the bytes rest on, in sentences."""
        spec, parallel = self.spec, self.parallel
        kv = self.kv or spec.kv
        texts = [
            f"{spec.name}: {spec.n_params / 1e9:.4g} B parameters, {spec.n_active_params / 1e9:.4g} B of them used by "
            f"one token (embedding left out); {formats_in_short(spec)}; keys and values in {kv.name} "
            f"({spec.source or 'configuration given'})",
            *spec.assumptions, *self.said,
        ]
        if any(isinstance(layer.feed, HasExperts) for layer in spec.layers):
            texts.append("experts: strict counts those of one token, expected and target those that independent tokens "
                         "with uniform routing touch; popular experts and equal prompts touch fewer")
        if parallel.pp > 1:
            texts.append(f"pipeline of {parallel.pp} stages: a token passes all of them with 1/{parallel.pp} of the "
                         "running requests in each; waiting between stages is not counted")
        if parallel.dp_attention:
            texts.append(f"data-parallel attention: running_req is that of one of {parallel.dp} ranks, all equally "
                         "loaded; the experts see the tokens of all ranks")
        elif parallel.dp > 1:
            texts.append(f"{parallel.dp} independent copies: running_req, step and rates are those of one of them")
        if self.n_draft_tok:
            drafts = (f"{self._draft_forwards()} forwards of the model's draft layers and their head"
                      if self.has_draft_layers else "a draft that costs nothing (no draft layers are known)")
            texts.append(f"a round verifies {self.n_draft_tok + 1} tokens per request after {drafts}")
        return tuple(texts)

    def _draft_forwards(self) -> int:
        return self.n_draft_tok if self.n_draft_forwards is None else self.n_draft_forwards

    def padded(self, running_req: np.ndarray) -> np.ndarray:
        """Return the batch size that the kernels run at: the next captured one [req]."""
        sizes = np.array(sorted(self.captured_batch_sizes), dtype="float64")
        if not len(sizes):
            return running_req
        at = np.searchsorted(sizes, running_req - 1e-9)
        return np.where(at < len(sizes), sizes[np.minimum(at, len(sizes) - 1)], running_req)

    def forwards(
        self, running_req: np.ndarray, context_tok: np.ndarray, *, fewest: bool = False
    ) -> tuple[Forward, ...]:
        """Return the forwards of one step (a round under speculation), one rank.

        Parameters
        ----------
        running_req : ndarray, shape (levels,)
            Running requests of one attention rank [req].
        context_tok : ndarray, shape (levels,)
            Mean context of a request [tok]; NaN where unknown.
        fewest : bool
            Experts of one token only, no padding: nothing can undercut it.
        """
        n = running_req / self.parallel.pp
        n_tok = self.n_draft_tok + 1
        main = self._forward("verify" if self.n_draft_tok else "decode", 1.0, self.spec.layers, self.spec.final, n,
                             context_tok, n_tok, fewest)
        if not self.has_draft_layers:
            return (main,)
        draft = self._forward("draft", float(self._draft_forwards()), self.spec.draft, self.spec.draft_extra, n,
                              context_tok, 1, fewest)
        return main, draft

    def _forward(
        self, name: str, count: float, layers: tuple[Layer, ...], ends: tuple[Weights, ...], n: np.ndarray,
        context_tok: np.ndarray, n_tok: int, fewest: bool,
    ) -> Forward:
        """Add up one forward of ``n`` requests with ``n_tok`` tokens each."""
        parallel, hidden = self.parallel, self.spec.hidden
        rows = n_tok * (n if fewest else self.padded(n))
        tally = _Tally(len(n), self.spec.formats["draft"] if name == "draft" else None)
        for layer in layers:
            for weights in layer.mixer.weights(hidden) if layer.mixer else ():
                self._add(tally, "weights", weights, layer.count, parallel.attention_tp, rows)
            for weights in (Weights("norm", layer.norm_params, 1), *layer.extra):
                self._add(tally, "weights", weights, layer.count, parallel.attention_tp, rows)
            self._add_feed(tally, layer, n * n_tok, rows, fewest)
            self._add_requests(tally, layer, n, context_tok, n_tok)
        for weights in ends:
            self._add(tally, "weights", weights, 1, parallel.attention_tp, rows)
        self._add(tally, "head", self.spec.head, 1, parallel.tp, rows)
        messages = tuple(self._messages(layers, rows))
        return Forward(name, count, tally.bytes_read, tally.flops, messages, sum(layer.count for layer in layers))

    def _add(self, tally: _Tally, group: str, weights: Weights, count: int, n_ranks: int, rows: np.ndarray) -> None:
        """Add matrices that every token passes."""
        held = count * weights.per_rank(n_ranks)
        stored = tally.stored(weights.role, self.spec.formats)
        tally.add(group, held * stored.bytes_per_param, stored.compute, 2.0 * held * rows)

    def _add_feed(self, tally: _Tally, layer: Layer, tok: np.ndarray, rows: np.ndarray, fewest: bool) -> None:
        """Add a dense network, or the experts that the tokens of all attention ranks touch."""
        feed, parallel = layer.feed, self.parallel
        if feed is None:
            return
        rows, tok = rows * parallel.requests_per_rank, tok * parallel.requests_per_rank
        for weights in feed.weights(self.spec.hidden):
            if weights.role != "routed_experts" or not isinstance(feed, HasExperts):
                self._add(tally, "weights", weights, layer.count, parallel.tp, rows)
                continue
            all_held = layer.count * weights.per_rank(parallel.expert_ranks)
            share_frac = feed.n_active / feed.n_experts
            touched_frac = np.full(len(tok), share_frac)
            if not fewest:
                touched_frac = touched_experts(feed.n_experts, feed.n_active, np.maximum(tok, 1.0)) / feed.n_experts
                touched_frac = touched_frac * busiest_rank_factor(feed.n_experts, feed.n_active, tok, parallel.ep)
            stored = tally.stored("routed_experts", self.spec.formats)
            tally.add("experts", all_held * np.minimum(touched_frac, 1.0) * stored.bytes_per_param, stored.compute,
                      2.0 * all_held * share_frac * rows)

    def _add_requests(
        self, tally: _Tally, layer: Layer, n: np.ndarray, context_tok: np.ndarray, n_tok: int
    ) -> None:
        """Add what every request brings: cache, index, state, and the products with them."""
        mixer, ranks = layer.mixer, self.parallel.attention_tp
        if mixer is None:
            return
        kv_bytes = mixer.kv_bytes(context_tok, ranks, self.kv or self.spec.kv)
        flops = mixer.flops(context_tok, ranks)
        tally.add("kv", layer.count * n * kv_bytes, FORMAT_OF_ATTENTION, layer.count * n * n_tok * flops)
        tally.add("index", layer.count * n * mixer.index_bytes(context_tok))
        tally.add("state", layer.count * n * mixer.state_bytes(n_tok, ranks))

    def _messages(self, layers: tuple[Layer, ...], rows: np.ndarray) -> Iterator[Message]:
        """Yield the collectives of a forward."""
        parallel, hidden = self.parallel, self.spec.hidden
        n_mixers = sum(layer.count for layer in layers if layer.mixer is not None)
        n_feeds = sum(layer.count for layer in layers if layer.feed is not None)
        n_dealt = sum(layer.count for layer in layers if isinstance(layer.feed, HasExperts))
        message = rows * hidden * RESIDUAL_BYTES
        if parallel.attention_tp > 1:
            yield Message("all_reduce", n_mixers, message, rows, parallel.attention_tp)
        if parallel.dp_attention and parallel.ep > 1 and n_dealt:
            active = max(layer.feed.n_active for layer in layers if isinstance(layer.feed, HasExperts))
            yield Message("all_to_all", n_dealt, message, rows, parallel.ep, hidden, active)
            n_feeds -= n_dealt
        if parallel.tp > 1 and n_feeds:
            yield Message("all_reduce", n_feeds, message * parallel.requests_per_rank, rows, parallel.tp)
        if parallel.tp > 1:
            logits = rows * self.spec.vocab / parallel.tp * RESIDUAL_BYTES
            yield Message("all_gather", 1, logits, rows, parallel.tp)


class _Tally:
    """Bytes and FLOPs by group while they are added up."""

    def __init__(self, n_levels: int, draft: WeightFormat | None) -> None:
        self.draft = draft
        self.bytes_read = {group: np.zeros(n_levels) for group in (*MATRICES, *PER_REQUEST)}
        self.flops: dict[str, dict[str, np.ndarray]] = {group: {} for group in self.bytes_read}

    def stored(self, role: str, formats: Mapping[str, WeightFormat]) -> WeightFormat:
        """Return the format of a role; draft layers have one of their own, the head is the model's."""
        return formats[role] if self.draft is None or role in ("head", "norm") else self.draft

    def add(self, group: str, n_bytes: np.ndarray | float, rate: str = "", flops: np.ndarray | None = None) -> None:
        self.bytes_read[group] = self.bytes_read[group] + n_bytes
        if flops is not None:
            self.flops[group][rate] = self.flops[group].get(rate, 0.0) + flops


def formats_in_short(spec: ModelSpec) -> str:
    """Say the weight formats, roles of one format together."""
    roles: dict[str, list[str]] = {}
    present = {weights.role for weights, _ in spec.stack()} | {"head"}
    for role, stored in spec.formats.items():
        if role in present and role != "norm":
            roles.setdefault(stored.name, []).append(role.replace("_", " "))
    return "; ".join(f"{name}: {', '.join(found)}" for name, found in roles.items())


def without_speculation(model: DecodeModel) -> DecodeModel:
    """Return the same deployment decoding one token per step."""
    return replace(model, n_draft_tok=0, n_draft_forwards=None)
