"""Least time of a prefill: the products of a prompt with the weights, and of its tokens with each other.

A prefill is bound by compute as soon as a chunk holds more tokens than the ridge of the hardware; attention grows
with the square of the prompt. It bounds the ramp of a load and the time to first token from below.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from helpers.physics.catalogue.hardware import Hardware
from helpers.physics.steps import step
from helpers.physics.steps.decode import DecodeModel
from helpers.physics.steps.demand import MATRICES, PER_REQUEST, Forward
from helpers.physics.steps.step import Link, Shares
from helpers.schema import RooflogError

CHUNK_TOK = 8192
"""Prompt tokens per forward where the server does not say [tok]: what SGLang and vLLM choose on large boards."""

N_POSITIONS = 64
"""Positions of a prompt at which attention is added up [1]; windows make the sum bend."""


@dataclass(frozen=True)
class Prefill:
    """Least and reachable time of the prefill of one prompt.

    Attributes
    ----------
    prompt_tok, chunk_tok : float
        Tokens of the prompt, tokens per forward [tok].
    strict_s, target_s : float
        At the peak rates without communication; at the achievable shares with it [s].
    matrices_s, attention_s, communication_s : float
        Parts of ``target_s`` [s].
    is_compute_bound : bool
        The products with the weights take longer than reading them.
    """

    prompt_tok: float
    chunk_tok: float
    strict_s: float
    target_s: float
    matrices_s: float
    attention_s: float
    communication_s: float
    is_compute_bound: bool

    @property
    def strict_tok_per_s(self) -> float:
        """Prompt tokens per second that no server exceeds [tok/s]."""
        return self.prompt_tok / self.strict_s

    @property
    def target_tok_per_s(self) -> float:
        """Prompt tokens per second of good kernels [tok/s]."""
        return self.prompt_tok / self.target_s


def prefill_bound(
    model: DecodeModel, hardware: Hardware, prompt_tok: float, *, chunk_tok: float | None = None,
    shares: Shares | None = None, links: Mapping[int, Link] | None = None,
) -> Prefill:
    """Return the least time that one prompt's prefill takes.

    Parameters
    ----------
    model : DecodeModel
        Speculation and captured graphs do not matter here.
    hardware : Hardware
    prompt_tok : float
        Tokens that are not cached [tok].
    chunk_tok : float, optional
        Prompt tokens per forward; `CHUNK_TOK` by default. Every chunk reads the weights again.
    shares : Shares, optional
        For the target; measured or assumed by default.
    links : mapping of ranks to Link, optional

    Returns
    -------
    Prefill

    Raises
    ------
    RooflogError
        No token, or hardware without a rate.
    """
    if not prompt_tok >= 1:
        raise RooflogError(f"prompt_tok: expected at least 1 tok, found {prompt_tok}")
    if step.rate_flop_per_s(hardware, "bf16") is None:
        raise RooflogError(f"{hardware.name}: no rate of compute is known; a prefill is bound by compute: give another")
    chunk = min(float(chunk_tok or CHUNK_TOK), float(prompt_tok))
    n_chunks = prompt_tok / chunk
    plain = replace(model, n_draft_tok=0, captured_batch_sizes=())
    real = shares or step.achievable(hardware)

    def parts(used: Shares, *, fewest: bool) -> tuple[float, float, float, bool]:
        positions = (np.arange(N_POSITIONS) + 0.5) / N_POSITIONS * prompt_tok
        forward = plain.forwards(np.full(N_POSITIONS, chunk), positions, fewest=fewest)[0]
        read_s = sum(float(forward.bytes_read[group][0]) for group in MATRICES) / (
            used.bandwidth_frac * hardware.mem_bw_bytes_per_s)
        product_s = float(np.mean(step.compute_s(forward, hardware, ("weights", "experts"), used)))
        # what requests bring is in proportion to the requests: here every token of the chunk is one
        attention_s = float(np.mean(step.compute_s(_prefilling(plain, forward, chunk, positions), hardware,
                                                   PER_REQUEST, used)))
        messages = [message for message in forward.messages if message.kind != "all_gather"]  # logits: one row only
        link_s = 0.0 if fewest else float(step.communication_s(messages, links or {}, N_POSITIONS)[0])
        return n_chunks * max(read_s, product_s), n_chunks * attention_s, n_chunks * link_s, product_s > read_s

    matrices_s, attention_s, _, _ = parts(step.PEAK, fewest=True)
    of_target = parts(real, fewest=False)
    return Prefill(
        prompt_tok=float(prompt_tok), chunk_tok=chunk, strict_s=matrices_s + attention_s,
        target_s=sum(of_target[:3]), matrices_s=of_target[0], attention_s=of_target[1], communication_s=of_target[2],
        is_compute_bound=of_target[3],
    )


def _prefilling(model: DecodeModel, forward: Forward, chunk: float, positions: np.ndarray) -> Forward:
    """Take the products with the cache as a prefill does them: latent attention expands its latents first."""
    ranks = model.parallel.attention_tp
    flops = {"bf16": np.zeros(len(positions))}
    for layer in model.spec.layers:
        if layer.mixer is not None:
            of_prefill = getattr(layer.mixer, "prefill_flops", layer.mixer.flops)
            flops["bf16"] = flops["bf16"] + layer.count * chunk * of_prefill(positions, ranks)
    return replace(forward, flops=dict(forward.flops) | {"kv": flops})


def prefill_table(bounds: Sequence[Prefill]) -> list[dict[str, float | bool]]:
    """Return prompts and their bounds as plain records, base units."""
    names = ("prompt_tok", "chunk_tok", "strict_s", "target_s", "matrices_s", "attention_s", "communication_s",
             "is_compute_bound")
    return [{name: getattr(bound, name) for name in names} | {"strict_tok_per_s": bound.strict_tok_per_s,
             "target_tok_per_s": bound.target_tok_per_s} for bound in bounds]
