"""How far a modelled step could be off: what kernels and links are known to reach, and routing that is not uniform.

Central values are in `step` and `communication`; here are the ends beside them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from helpers.physics.model.spec import HasExperts
from helpers.physics.steps.decode import DecodeModel
from helpers.physics.steps.demand import StepModel, touched_experts
from helpers.physics.steps.hand import HandModel
from helpers.physics.steps.step import ACHIEVABLE_RANGE, Link, Shares

COMPUTE_RANGE = (0.51, 0.85)
"""Share of the dense peak rate [1]: MI300X reaches 0.51; the upper end is assumed."""

MEASURED_LINK_RANGE, OTHER_LINK_RANGE = (0.8, 1.2), (0.8, 1.5)
"""Factors on the time of collectives measured on this system, or taken from another one [1]: rules."""

SKEW_EXPONENT = 0.72
"""Popularity of experts falls with this power of their rank where routing is skewed [1]. Within 3 % of the touched
experts under power-law routing of 8 of 128: 64.7 at 16 tokens (21 % fewer than uniform), 116.5 at 64 (7 %)."""


@dataclass(frozen=True)
class ScaledLink:
    """A link whose collectives take ``factor`` times as long [1]."""

    link: Link
    factor: float

    def all_reduce_s(self, message_bytes: np.ndarray) -> np.ndarray:
        """Time of one all-reduce [s]."""
        return self.factor * self.link.all_reduce_s(message_bytes)

    def all_gather_s(self, message_bytes: np.ndarray) -> np.ndarray:
        """Time of one all-gather [s]."""
        return self.factor * self.link.all_gather_s(message_bytes)

    def all_to_all_s(self, tokens: np.ndarray, hidden: int, n_active: int, ep: int) -> np.ndarray:
        """Time to send tokens to their experts and back [s]."""
        return self.factor * self.link.all_to_all_s(tokens, hidden, n_active, ep)

    def exchange_assumption(self, ep: int) -> str:
        """Where the unscaled times come from."""
        return self.link.exchange_assumption(ep)


@dataclass(frozen=True)
class End:
    """Shares and links of one end of what is plausible."""

    shares: Shares
    links: Mapping[int, Link]


def ends(shares: Shares, links: Mapping[int, Link]) -> tuple[End, End, End]:
    """Return central, fast and slow end: `ACHIEVABLE_RANGE` and `COMPUTE_RANGE`, widened to hold the central shares."""
    fast = Shares(max(ACHIEVABLE_RANGE[1], shares.bandwidth_frac), max(COMPUTE_RANGE[1], shares.compute_frac))
    slow = Shares(min(ACHIEVABLE_RANGE[0], shares.bandwidth_frac), min(COMPUTE_RANGE[0], shares.compute_frac))
    quick: dict[int, Link] = {ranks: ScaledLink(link, link_range(link)[0]) for ranks, link in links.items()}
    late: dict[int, Link] = {ranks: ScaledLink(link, link_range(link)[1]) for ranks, link in links.items()}
    return End(shares, links), End(fast, quick), End(slow, late)


def link_range(link: Link) -> tuple[float, float]:
    """Return smallest and largest plausible factor on a link's times [1]."""
    return MEASURED_LINK_RANGE if getattr(link, "is_measured", False) else OTHER_LINK_RANGE


def skewed_experts(n_experts: int, n_active: int, n_tok: np.ndarray) -> np.ndarray:
    """Return the expected number of different experts that tokens choose where some are more popular.

    Parameters
    ----------
    n_experts, n_active : int
        Routed experts of a layer, and how many one token chooses.
    n_tok : ndarray
        Tokens of the forward [tok].

    Returns
    -------
    ndarray
        ``sum_e 1 - (1 - p_e)^n`` with ``p_e = min(c rank^-SKEW_EXPONENT, 1)`` adding up to ``n_active`` [experts];
        never more than under uniform routing, never fewer than one token's.
    """
    falling = np.arange(1.0, n_experts + 1) ** -SKEW_EXPONENT
    for n_certain in range(n_active):  # experts that every token chooses
        scale = (n_active - n_certain) / falling[n_certain:].sum()
        if scale * falling[n_certain] <= 1:
            break
    chosen = np.minimum(scale * falling, 1.0)
    tok = np.maximum(np.asarray(n_tok, dtype="float64"), 1.0)
    return np.sum(1.0 - (1.0 - chosen) ** tok[..., None], axis=-1)


def skew_frac(model: StepModel, running_req: np.ndarray) -> np.ndarray:
    """Return how many of the experts of uniform routing a skewed one touches [1]; 1 without experts."""
    n_experts, n_active, n_tok = 0, 0, running_req
    if isinstance(model, HandModel):
        n_experts, n_active = (model.n_experts, model.n_experts_active) if model.has_experts else (0, 0)
    elif isinstance(model, DecodeModel):
        feeds = [layer.feed for layer in model.spec.layers if isinstance(layer.feed, HasExperts)]
        n_experts, n_active = (feeds[0].n_experts, feeds[0].n_active) if feeds else (0, 0)
        n_tok = running_req / model.parallel.pp * (model.n_draft_tok + 1) * model.parallel.requests_per_rank
    if not n_experts:
        return np.ones(len(running_req))
    uniform = touched_experts(n_experts, n_active, np.maximum(n_tok, 1.0))
    return np.minimum(skewed_experts(n_experts, n_active, n_tok) / uniform, 1.0)
