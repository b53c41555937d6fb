"""Feeds of a decoder layer: a dense network, or experts of which a token uses a few."""

from __future__ import annotations

from dataclasses import dataclass

from helpers.physics.model.spec import Weights


@dataclass(frozen=True)
class Dense:
    """A dense network.

    Attributes
    ----------
    intermediate : int
        Its inner width.
    n_matrices : int
        3 with a gate (SwiGLU, GeGLU), 2 without (relu squared).
    role : str
        Role of its weights; ``shared_experts`` where it stands beside routed experts.
    has_bias : bool
        Biases of its matrices.
    """

    intermediate: int
    n_matrices: int = 3
    role: str = "dense_mlp"
    has_bias: bool = False

    def weights(self, hidden: int) -> tuple[Weights, ...]:
        """All matrices, split over the ranks."""
        return (Weights(self.role, network_params(hidden, self.intermediate, self.n_matrices, self.has_bias)),)


@dataclass(frozen=True)
class Experts:
    """Routed experts, with what every token uses beside them.

    Attributes
    ----------
    n_experts, n_active : int
        Routed experts, and how many a token chooses.
    intermediate, n_matrices : int
        Inner width of one expert; 3 matrices with a gate, 2 without.
    has_bias : bool
        Biases of the experts' matrices.
    router_vectors : int
        Vectors of one number per expert beside the router's matrix: bias, correction bias, scale.
    router_params : int
        Further parameters of the router, for example a scale of its input.
    shared : Dense or None
        A network that every token uses.
    has_shared_gate : bool
        A gate of the shared network, one number per element of the residual.
    latent : int or None
        Width that the experts work in, where it is not the residual's; two projections lead there and back.
    is_hash_routed : bool
        Experts are chosen by a table over token ids; the touched number follows the same formula.
    """

    n_experts: int
    n_active: int
    intermediate: int
    n_matrices: int = 3
    has_bias: bool = False
    router_vectors: int = 0
    router_params: int = 0
    shared: Dense | None = None
    has_shared_gate: bool = False
    latent: int | None = None
    is_hash_routed: bool = False

    def weights(self, hidden: int) -> tuple[Weights, ...]:
        """All experts, the router (replicated), the shared network, the latent projections (replicated)."""
        router = self.n_experts * (hidden + self.router_vectors) + self.router_params + hidden * self.has_shared_gate
        parts = [Weights("routed_experts", self.n_experts * self.expert_params(hidden)), Weights("router", router, 1)]
        if self.latent is not None:
            parts.append(Weights("shared_experts", 2 * hidden * self.latent, 1))
        parts += self.shared.weights(hidden) if self.shared is not None else ()
        return tuple(parts)

    def expert_params(self, hidden: int) -> float:
        """Parameters of one routed expert."""
        return network_params(self.latent or hidden, self.intermediate, self.n_matrices, self.has_bias)

    def idle_params(self, hidden: int) -> float:
        """Parameters of the routed experts that one token does not choose."""
        return (self.n_experts - self.n_active) * self.expert_params(hidden)


def network_params(width: int, intermediate: int, n_matrices: int, has_bias: bool = False) -> float:
    """Return the parameters of a feed-forward network of one inner layer.

    Parameters
    ----------
    width, intermediate : int
        Outer and inner width.
    n_matrices : int
        3 with a gate, 2 without.
    has_bias : bool
        One bias per row of every matrix.

    Returns
    -------
    float
        Parameters.
    """
    biases = (n_matrices - 1) * intermediate + width if has_bias else 0
    return n_matrices * width * intermediate + biases
