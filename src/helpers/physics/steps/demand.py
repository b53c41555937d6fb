"""What one rank must do in one decode step: bytes to read, FLOPs, messages, by group.

A step is one `Forward` of the model over all running requests; under speculation a round is a verification and
the forwards of the draft model. The groups are those of a component table: weights, experts, head, kv, index,
state. `decode` fills them from a configuration, `hand` from a few numbers. No accelerator here: `step` turns bytes
and FLOPs into time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from helpers.schema import RooflogError

MATRICES = ("weights", "experts", "head")
"""Groups that all requests of a step share: read once, compute in proportion to the tokens."""

PER_REQUEST = ("kv", "index", "state")
"""Groups that every running request brings by itself."""

@dataclass(frozen=True)
class Parallel:
    """How the ranks of one model copy share it.

    Attributes
    ----------
    tp : int
        Ranks of one pipeline stage, attention and experts together (SGLang counts data-parallel attention ranks in).
    dp : int
        Data-parallel ranks; independent copies unless ``dp_attention``.
    pp : int
        Pipeline stages.
    ep : int
        Ranks among which whole experts are dealt out; 1 = every expert is split over ``tp``.
    dp_attention : bool
        The ``dp`` ranks attend to their own requests and share the experts of one step.
    """

    tp: int = 1
    dp: int = 1
    pp: int = 1
    ep: int = 1
    dp_attention: bool = False

    def __post_init__(self) -> None:
        """Refuse degrees that are no whole numbers, or do not fit into each other."""
        for name in ("tp", "dp", "pp", "ep"):
            degree = getattr(self, name)
            if degree < 1 or degree != int(degree):
                raise RooflogError(f"parallel: expected {name} to be a whole number of ranks from 1, found {degree}")
        if self.dp_attention and self.tp % self.dp:
            raise RooflogError(
                f"parallel: data-parallel attention shares the tp ranks: expected dp to divide tp, found dp {self.dp} "
                f"and tp {self.tp}"
            )
        if self.ep > 1 and self.tp % self.ep:
            raise RooflogError(
                f"parallel: the ranks that deal out experts are among the tp ranks (data-parallel attention counts its "
                f"ranks in): expected ep to divide tp, found ep {self.ep} and tp {self.tp}"
            )

    @property
    def attention_tp(self) -> int:
        """Ranks that share the attention of one request."""
        return self.tp // self.dp if self.dp_attention else self.tp

    @property
    def expert_ranks(self) -> int:
        """Ranks that hold the experts of one layer together."""
        return self.tp

    @property
    def requests_per_rank(self) -> int:
        """Attention ranks whose requests meet in the experts of one step."""
        return self.dp if self.dp_attention else 1


@dataclass(frozen=True)
class Message:
    """A collective that a forward runs ``count`` times.

    Attributes
    ----------
    kind : str
        all_reduce, all_gather or all_to_all.
    count : float
        Times per forward.
    message_bytes : ndarray, shape (levels,)
        Bytes of one, as one rank holds them [bytes].
    tok : ndarray, shape (levels,)
        Tokens in it [tok].
    n_ranks : int
        Ranks that take part.
    hidden, n_active : int
        Of an all-to-all: width of a token, ranks that it may go to.
    """

    kind: str
    count: float
    message_bytes: np.ndarray
    tok: np.ndarray
    n_ranks: int
    hidden: int = 0
    n_active: int = 0


@dataclass(frozen=True)
class Forward:
    """One forward of one rank at several levels.

    Attributes
    ----------
    name : str
        decode, verify or draft.
    count : float
        Times it runs in a step.
    bytes_read : mapping of group to ndarray, shape (levels,)
        Bytes moved between memory and chip [bytes].
    flops : mapping of group to mapping of rate to ndarray, shape (levels,)
        FLOPs by the rate that they run at (bf16, fp8, fp4, ...) [FLOP].
    messages : tuple of Message
    n_layers : int
        Layers it passes.
    """

    name: str
    count: float
    bytes_read: Mapping[str, np.ndarray]
    flops: Mapping[str, Mapping[str, np.ndarray]]
    messages: tuple[Message, ...] = ()
    n_layers: int = 0

    def total_bytes(self) -> np.ndarray:
        """All bytes of the forward [bytes]."""
        return np.sum([*self.bytes_read.values()], axis=0)


class StepModel(Protocol):
    """Anything that knows what a step asks of one rank."""

    def forwards(
        self, running_req: np.ndarray, context_tok: np.ndarray, *, fewest: bool = False
    ) -> tuple[Forward, ...]:
        """Return the forwards of one step; ``fewest``: experts and rows that no routing can undercut."""
        ...

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Whatever the bytes rest on."""
        ...


def read_bytes(
    model: StepModel, running_req: np.ndarray, context_tok: np.ndarray, *, fewest: bool = False
) -> dict[str, np.ndarray]:
    """Return bytes that one rank moves in a step by group, shape (levels,); draft forwards together [bytes]."""
    read: dict[str, np.ndarray] = {}
    for forward in model.forwards(running_req, context_tok, fewest=fewest):
        for group, n_bytes in forward.bytes_read.items():
            name = "draft" if forward.name == "draft" else group
            read[name] = read.get(name, 0.0) + forward.count * n_bytes
    return read


def touched_experts(n_experts: float, n_active: float, n_tok: np.ndarray | float) -> np.ndarray:
    """Return the expected number of different experts that tokens choose.

    Parameters
    ----------
    n_experts, n_active : float
        Routed experts of a layer, and how many one token chooses.
    n_tok : array_like
        Tokens of the forward [tok].

    Returns
    -------
    ndarray
        ``E (1 - (1 - k/E)^n)`` [experts]: independent tokens, uniform routing. Popular experts and correlated
        tokens touch fewer, so this is an expectation and, for a given spread, the largest.
    """
    missed = np.log1p(-min(n_active / n_experts, 1 - 1e-15))
    return np.asarray(n_experts * -np.expm1(np.asarray(n_tok, dtype="float64") * missed))


def busiest_rank_factor(n_experts: int, n_active: int, n_tok: np.ndarray, n_ranks: int) -> np.ndarray:
    """Return how many times more experts the busiest rank touches than the average one.

    Whole experts are dealt out to ranks, and a step waits for the rank that has most of the chosen ones. Each
    expert is taken as chosen independently: the maximum of ``n_ranks`` binomials over its mean (within 4 % of
    simulated routing).

    Parameters
    ----------
    n_experts, n_active : int
        Routed experts of a layer, and how many one token chooses.
    n_tok : ndarray
        Tokens of the forward [tok].
    n_ranks : int
        Ranks that hold whole experts.

    Returns
    -------
    ndarray
        At least 1.
    """
    from scipy.stats import binom

    if n_ranks <= 1:
        return np.ones_like(n_tok, dtype="float64")
    held = max(n_experts // n_ranks, 1)
    chosen_frac = touched_experts(n_experts, n_active, n_tok) / n_experts
    below = binom.cdf(np.arange(held)[:, None], held, chosen_frac[None, :])
    busiest = np.sum(1.0 - below**n_ranks, axis=0)
    return np.maximum(busiest / (held * chosen_frac), 1.0)
