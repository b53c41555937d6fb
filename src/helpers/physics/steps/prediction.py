"""A-priori prediction of the decode step, and of the time per output token in a closed loop.

predicted = target + kernels + host: the bytes and collectives of `step`'s target line, the smallest time of every
kernel, and what an engine does per request beside the model. For planning before anything was measured; neither a
bound nor a measurement, and a fit to one's own log is several times closer. The kernel term is added and not
taken as a maximum: public sweeps show the same excess per layer on one rank and on eight, as matrix products do
(time = intercept + bytes / rate).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from helpers.physics.catalogue.hardware import Hardware
from helpers.physics.model.latent import CompressedAttention
from helpers.physics.model.spec import HasExperts, Layer
from helpers.physics.steps import step
from helpers.physics.steps.decode import DecodeModel
from helpers.physics.steps.prefill import prefill_bound
from helpers.physics.steps.step import Link, Shares
from helpers.schema import RooflogError

FITTED_KERNEL_S = 3.75e-6
"""Smallest time of one kernel of a captured step [s], where a layer has the middle of `step.KERNELS_PER_LAYER`.
Fitted once, with `FITTED_HOST_S_PER_REQ`, to public sweeps of three engines on five accelerators
(tests/physics/test_prediction.py). Measured intercepts of matrix products over their size are 2.1-7.1 us."""

FITTED_HOST_S_PER_REQ = 24e-6
"""What an engine adds per running request and step [s]: scheduling, sampling, detokenisation. Fitted once."""


@dataclass(frozen=True)
class ClosedLoop:
    """A load of clients that each send the next request when the last is answered.

    Attributes
    ----------
    concurrency_req : float
        Requests in flight, all ranks and copies together [req].
    prompt_tok, output_tok : float
        Tokens of a prompt and of an answer [tok].
    """

    concurrency_req: float
    prompt_tok: float
    output_tok: float

    def __post_init__(self) -> None:
        """Refuse a load without requests or tokens."""
        for name in ("concurrency_req", "prompt_tok", "output_tok"):
            if not getattr(self, name) >= 1:
                raise RooflogError(f"load: expected {name} of at least 1, found {getattr(self, name)}")

    @property
    def context_tok(self) -> float:
        """Mean context of a running request: the prompt and half of the answer [tok]."""
        return self.prompt_tok + self.output_tok / 2


@dataclass(frozen=True)
class Prediction:
    """Time per output token in a closed loop, before anything was measured.

    Attributes
    ----------
    step_s : float
        Decode step without prefill [s].
    prefill_s : float
        Prefill of one prompt per attention rank: the target of `prefill.prefill_bound` [s].
    tpot_s : float
        Mean time per output token as a client sees it: the step, and the prefills of the other requests [s].
    parts : mapping of str to float
        Part -> time [s]: those of the target line, ``kernels``, ``host``, ``prefill``; their sum is ``tpot_s``.
    """

    step_s: float
    prefill_s: float
    tpot_s: float
    parts: Mapping[str, float]

    @property
    def prefill_frac(self) -> float:
        """Share of the time per output token that goes to prefill [1]."""
        return 1 - self.step_s / self.tpot_s


def predicted_parts(
    model: DecodeModel, hardware: Hardware, running_req: np.ndarray, context_tok: np.ndarray | float,
    *, shares: Shares | None = None, links: Mapping[int, Link] | None = None,
) -> dict[str, np.ndarray]:
    """Return the predicted step by part, at several levels.

    Parameters
    ----------
    model : DecodeModel
    hardware : Hardware
        One rank's accelerator.
    running_req, context_tok : ndarray, shape (levels,)
        Running requests of one attention rank [req] and their mean context [tok].
    shares : Shares, optional
        Of the peaks; by default those of the target line (`step.achievable`).
    links : mapping of ranks to Link, optional
        Collectives among that many ranks; without it they cost nothing.

    Returns
    -------
    dict of str to ndarray, shape (levels,)
        Part -> time [s]: those of the target line, ``kernels`` and ``host``. Their sum is the step.
    """
    levels = np.asarray(running_req, dtype="float64")
    context = np.broadcast_to(np.asarray(context_tok, dtype="float64"), levels.shape)
    used = step.achievable(hardware) if shares is None else shares
    parts = step.step_parts(model, hardware, levels, context, "target", shares=used, links=links)
    kernels_s = np.full(levels.shape, n_kernels(model) * FITTED_KERNEL_S)
    return parts | {"kernels": kernels_s, "host": levels * FITTED_HOST_S_PER_REQ}


def predicted_step_s(
    model: DecodeModel, hardware: Hardware, running_req: np.ndarray, context_tok: np.ndarray | float,
    *, shares: Shares | None = None, links: Mapping[int, Link] | None = None,
) -> np.ndarray:
    """Return the predicted step [s] at any running_req [req] and context [tok]; see `predicted_parts`."""
    parts = predicted_parts(model, hardware, running_req, context_tok, shares=shares, links=links)
    return np.sum([*parts.values()], axis=0)


def n_kernels(model: DecodeModel) -> float:
    """Return the kernels of one step: the middle of `step.KERNELS_PER_LAYER` for each layer that it passes.

    A layer that is a mixer or a feed alone (Nemotron-H) counts half.
    """
    main = sum(layer.count * _kernels_of(layer) for layer in model.spec.layers)
    draft = sum(layer.count * _kernels_of(layer) for layer in model.spec.draft) if model.has_draft_layers else 0.0
    n_draft = model.n_draft_tok if model.n_draft_forwards is None else model.n_draft_forwards
    return main + n_draft * draft


def predict(
    model: DecodeModel, hardware: Hardware, load: ClosedLoop,
    *, shares: Shares | None = None, links: Mapping[int, Link] | None = None,
) -> Prediction:
    """Predict the time per output token of a closed loop.

    Parameters
    ----------
    model : DecodeModel
        No speculation: a round is not a token.
    hardware : Hardware
    load : ClosedLoop
        Data-parallel ranks share its requests evenly.
    shares : Shares, optional
        Of the peaks; by default those of the target line.
    links : mapping of ranks to Link, optional
        Collectives among that many ranks.

    Returns
    -------
    Prediction

    Raises
    ------
    RooflogError
        The model speculates, or the hardware has no rate of compute.

    Notes
    -----
    While a request decodes its ``output_tok`` tokens, every other request of its rank ends and the next one's
    prompt is processed once: ``tpot = step + (running_req - 1) / output_tok * prefill``. Prompts that arrive
    together (equal lengths, a queue in front of the cache) are processed while few decode: then this overstates.
    """
    if model.n_draft_tok:
        raise RooflogError(
            f"prediction: expected a model without speculation, found {model.n_draft_tok} draft tokens per round; "
            "predict the round with predicted_step_s and divide by the accept length"
        )
    running_req = max(load.concurrency_req / model.parallel.dp, 1.0)
    parts = predicted_parts(model, hardware, np.array([running_req]), load.context_tok, shares=shares, links=links)
    by_part = {name: float(time_s[0]) for name, time_s in parts.items()}
    step_s = sum(by_part.values())
    prompt_s = prefill_bound(model, hardware, load.prompt_tok, shares=shares, links=links).target_s
    by_part["prefill"] = (running_req - 1) / load.output_tok * prompt_s
    return Prediction(step_s, prompt_s, step_s + by_part["prefill"], by_part)


def _kernels_of(layer: Layer) -> float:
    """Kernels of one layer, the middle of the counted range."""
    has_experts = isinstance(layer.feed, HasExperts)
    is_compressed = isinstance(layer.mixer, CompressedAttention)
    few, many = step.KERNELS_PER_LAYER["compressed" if is_compressed else "experts" if has_experts else "dense"]
    is_half = layer.mixer is None or layer.feed is None
    return (few + many) / 2 * (0.5 if is_half else 1.0)

