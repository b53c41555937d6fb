"""A model given by a few numbers: `HandModel`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from helpers.physics.steps.demand import Forward, touched_experts
from helpers.schema import RooflogError


@dataclass(frozen=True)
class HandModel:
    """What one decode step reads, given by hand, all ranks of one model copy together.

    Attributes
    ----------
    weight_bytes_per_step : float
        Weights read by a step of one request, embedding table left out (only its rows are read). Speculation:
        target and draft reads of one round.
    kv_bytes_per_tok : float
        Keys and values per token of context: 2 x layers x KV heads x head size x bytes per element.
    state_bytes_per_req : float
        Recurrent state moved per request and step, reads and writes (linear attention, state-space layers).
    tp : int
        Tensor-parallel ranks that share the weights and the KV heads evenly.
    kv_is_replicated : bool
        Every rank holds all keys and values (one latent or one KV head): they do not shrink with ``tp``.
    expert_bytes : float
        All routed experts together [bytes]; 0 = none, or not known.
    n_experts, n_experts_active : int
        Routed experts of a layer, and how many one token chooses; those are inside ``weight_bytes_per_step``.
    """

    weight_bytes_per_step: float
    kv_bytes_per_tok: float
    state_bytes_per_req: float = 0.0
    tp: int = 1
    kv_is_replicated: bool = False
    expert_bytes: float = 0.0
    n_experts: int = 0
    n_experts_active: int = 0

    def __post_init__(self) -> None:
        """Refuse what cannot be a model."""
        if not self.weight_bytes_per_step > 0:
            raise RooflogError(f"model: expected weight_bytes_per_step > 0 bytes, found {self.weight_bytes_per_step}")
        for name in ("kv_bytes_per_tok", "state_bytes_per_req", "expert_bytes"):
            if not getattr(self, name) >= 0:
                raise RooflogError(f"model: expected {name} >= 0 bytes, found {getattr(self, name)}")
        if self.tp < 1 or self.tp != int(self.tp):
            raise RooflogError(f"model: expected tp to be a whole number of ranks from 1, found {self.tp}")
        if self.expert_bytes and not 0 < self.n_experts_active <= self.n_experts:
            raise RooflogError(
                "model: experts need n_experts and n_experts_active with 0 < active <= all, found "
                f"{self.n_experts_active} of {self.n_experts}"
            )

    @property
    def has_experts(self) -> bool:
        """Tell whether the routed experts are known."""
        return self.expert_bytes > 0

    def weight_bytes(self) -> float:
        """Weight bytes that one rank reads for one request [bytes]."""
        return self.weight_bytes_per_step / self.tp

    def req_bytes(self, context_tok: np.ndarray) -> np.ndarray:
        """Bytes that one rank moves per request and step at a context [bytes]; NaN where it matters and is unknown."""
        return self._kv_bytes(context_tok) + self.state_bytes_per_req / self.tp

    def _kv_bytes(self, context_tok: np.ndarray) -> np.ndarray:
        ranks = 1 if self.kv_is_replicated else self.tp
        return context_tok * self.kv_bytes_per_tok / ranks if self.kv_bytes_per_tok else np.zeros_like(context_tok)

    def forwards(
        self, running_req: np.ndarray, context_tok: np.ndarray, *, fewest: bool = False
    ) -> tuple[Forward, ...]:
        """Return the one forward of a step; see `StepModel`."""
        share_frac = self.n_experts_active / self.n_experts if self.has_experts else 0.0
        touched_frac = np.full(len(running_req), share_frac)
        if self.has_experts and not fewest:
            touched_frac = touched_experts(self.n_experts, self.n_experts_active, running_req) / self.n_experts
        fixed = self.weight_bytes() - share_frac * self.expert_bytes / self.tp
        read = {
            "weights": np.full(len(running_req), fixed),
            "experts": touched_frac * self.expert_bytes / self.tp,
            "kv": running_req * self._kv_bytes(context_tok),
            "state": running_req * self.state_bytes_per_req / self.tp,
        }
        return (Forward("decode", 1.0, read, {}),)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What was given."""
        kv_share = "held whole by every rank" if self.kv_is_replicated else "shared evenly"
        experts = (
            f"; {self.expert_bytes / 1e9:.4g} GB of routed experts, {self.n_experts_active} of {self.n_experts} a token"
            if self.has_experts else
            " (a mixture of experts reads more weights at a higher level: there the true ratio is smaller)"
        )
        return (
            f"model by hand: {self.weight_bytes_per_step / 1e9:.4g} GB of weights per step over {self.tp} rank(s), "
            f"shared evenly; {self.kv_bytes_per_tok:.6g} bytes of keys and values per token, {kv_share}; "
            f"{self.state_bytes_per_req / 1e6:.4g} MB of state per request; the same at every level{experts}",
        )
