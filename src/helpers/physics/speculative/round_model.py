"""The round of a deployment as the step model sees it: draft steps and verification, and how far both could be off."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from helpers.physics.catalogue.hardware import Hardware
from helpers.physics.speculative.payoff import MeasuredRound, RoundModel, RoundParts, round_parts
from helpers.physics.steps.bound import Roofline
from helpers.physics.steps.decode import DecodeModel
from helpers.physics.steps.demand import StepModel
from helpers.physics.steps.step import Link, Shares, step_parts
from helpers.physics.what_if.plausible import End, ends
from helpers.schema import Parameter, RooflogError


@dataclass(frozen=True)
class RoundModels:
    """The same round at the central, the fast and the slow end of what kernels and links are known to reach."""

    central: RoundModel
    fast: RoundModel
    slow: RoundModel

    def parts(self, measured: MeasuredRound) -> RoundParts:
        """Split a measured round; the model's intervals run from the fast to the slow end.

        Raises
        ------
        RooflogError
            The draft length of the measured round is not known.
        """
        if measured.n_draft_tok is None:
            raise RooflogError("round: its parts need the draft length; give num_draft_tokens as the engine counts it")
        n, drafted = measured.running_req, measured.n_draft_tok
        value, lo, hi = (model.draft_s(n, drafted) for model in (self.central, self.fast, self.slow))
        draft = Parameter("draft_s", value, lo, hi, "s")
        value, lo, hi = (model.verify_s(n, drafted + 1) for model in (self.central, self.fast, self.slow))
        return round_parts(measured.round, draft, Parameter("verify_s", value, lo, hi, "s"))


class Deployed(Protocol):
    """A model as it runs on accelerators (deployment.Deployment)."""

    @property
    def model(self) -> StepModel: ...  # noqa: D102
    @property
    def hardware(self) -> Hardware: ...  # noqa: D102
    @property
    def links(self) -> Mapping[int, Link]: ...  # noqa: D102


def of_deployment(deployed: Deployed, roofline: Roofline) -> RoundModels | None:
    """Return the round of a deployment at the shares and the mean context of its roofline.

    None for a model by hand, whose draft is not known, and where the roofline is refused.
    """
    if not isinstance(deployed.model, DecodeModel) or roofline.refused:
        return None
    context_tok = float(np.nanmean(roofline.context_tok))
    return round_models(deployed.model, deployed.hardware, context_tok, roofline.shares, links=deployed.links)


def round_models(
    model: DecodeModel, hardware: Hardware, context_tok: float, shares: Shares, *,
    links: Mapping[int, Link] | None = None,
) -> RoundModels:
    """Return the target line of a round, split into draft and verification, for any load and draft length.

    Parameters
    ----------
    model : DecodeModel
        Its own draft length and captured sizes do not matter, but how many forwards draft a token does. A draft that
        is not made of the model's layers costs nothing here.
    hardware : Hardware
        One rank's accelerator.
    context_tok : float
        Mean context of a request [tok].
    shares : Shares
        Of the peaks, at the centre.
    links : mapping of ranks to Link, optional
        Collectives among that many ranks.

    Notes
    -----
    A forward of one token per request is the step without speculation. Expert routing, states per verified token and
    collectives of all tokens are those of the step model (physics.md 1.8).
    """
    central, fast, slow = (_at(model, hardware, context_tok, end) for end in ends(shares, links or {}))
    return RoundModels(central, fast, slow)


def _at(model: DecodeModel, hardware: Hardware, context_tok: float, end: End) -> RoundModel:
    def parts_s(running_req: float, changed: DecodeModel) -> dict[str, float]:
        found = step_parts(changed, hardware, np.array([running_req]), np.array([context_tok]), "target",
                           shares=end.shares, links=end.links)
        return {name: float(time_s[0]) for name, time_s in found.items()}

    def draft_step_s(running_req: float) -> float:
        return parts_s(running_req, replace(model, n_draft_tok=1, n_draft_forwards=1)).get("draft", 0.0)

    def verify_s(running_req: float, n_tok: int) -> float:
        return sum(parts_s(running_req, replace(model, n_draft_tok=n_tok - 1, n_draft_forwards=0)).values())

    source = f"target of {model.spec.name} on {hardware.name}"
    return RoundModel(draft_step_s, verify_s, source, _steps_per_draft_tok(model))


def _steps_per_draft_tok(model: DecodeModel) -> float:
    """Return forwards of the draft layers per drafted token: 0 where others draft, 1 where not told otherwise."""
    if not model.n_draft_forwards:
        return 1.0 if model.n_draft_forwards is None else 0.0
    return model.n_draft_forwards / model.n_draft_tok if model.n_draft_tok else 1.0
