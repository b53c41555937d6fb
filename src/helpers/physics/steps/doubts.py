"""What the lines of a step rest on, and what is doubtful about them, in sentences."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from helpers.physics.catalogue.hardware import Hardware
from helpers.physics.steps.demand import PER_REQUEST, StepModel, read_bytes
from helpers.physics.steps.step import Link, Shares

CONTEXT_SPREAD = 1.2
"""Ratio of the largest to the smallest context between levels above which a slope mixes both [1] (a rule)."""


def assumptions_of(
    model: StepModel, hardware: Hardware, context: np.ndarray, shares: Shares, links: Mapping[int, Link]
) -> tuple[str, ...]:
    """Say what the lines rest on: model, accelerator, context, links, shares of the peaks."""
    known = context[np.isfinite(context)]
    span = " to ".join(sorted({f"{known.min():.0f}", f"{known.max():.0f}"}, key=float)) if len(known) else "unknown"
    said = [text for link in links.values() for text in getattr(link, "assumptions", ())]
    exchanges = {message.n_ranks for forward in model.forwards(np.ones(1), np.ones(1)) for message in forward.messages
                 if message.kind == "all_to_all" and message.n_ranks in links}
    said += [links[ranks].exchange_assumption(ranks) for ranks in sorted(exchanges)]
    of_links = dict.fromkeys(text for text in said if text)
    return (
        *model.assumptions,
        f"{hardware.name}: {hardware.mem_bw_bytes_per_s / 1e9:.4g} GB/s peak per rank ({hardware.source})",
        f"context per request: {span} tok, all of it read at every step",
        "strict: memory traffic of weights, context and state, or their products if those take longer; no "
        "communication, launch or host time",
        *of_links,
        "target: achievable share of the peaks "
        f"({shares.bandwidth_frac:.2g} of the bandwidth, {shares.source}); no launch or host time",
    )


def doubts_of(levels: np.ndarray, context: np.ndarray, strict_s: np.ndarray) -> list[str]:
    """Say which levels have no line, and what the chord holds beside the requests."""
    doubts = []
    unknown = levels[~np.isfinite(strict_s)]
    if len(unknown):
        doubts.append(f"context not known at running_req {_names(unknown)}: these levels are left out of the lines")
    known = context[np.isfinite(context)]
    if len(known) and known.max() > CONTEXT_SPREAD * known.min():
        span = f"{known.min():.0f} to {known.max():.0f} tok"
        doubts.append(f"context differs between levels ({span}): the chord's slope holds that growth too")
    if len(np.unique(levels[np.isfinite(strict_s)])) < 2:
        doubts.append("fewer than two levels: the lines have step times but no intercept and slope")
    return doubts


def contradictions_of(
    model: StepModel, hardware: Hardware, levels: np.ndarray, context: np.ndarray, measured_s: np.ndarray,
    strict_s: np.ndarray,
) -> list[str]:
    """Say which input is most likely wrong where the measurement beats the lower bound."""
    below = measured_s < strict_s
    if not below.any():
        return []
    read = read_bytes(model, levels, context, fewest=True)
    shared = sum((n_bytes for group, n_bytes in read.items() if group not in PER_REQUEST), np.zeros(len(levels)))
    moved = sum((n_bytes for group, n_bytes in read.items() if group in PER_REQUEST), np.zeros(len(levels)))
    budget = measured_s * hardware.mem_bw_bytes_per_s
    n, shared, moved, budget = levels[below], shared[below], moved[below], budget[below]
    if (shared + moved <= budget).all():
        guess = "the rate of compute (weights in fewer bits, or a faster accelerator than given)"
    elif (shared < budget).all():
        fits_bytes = ((budget - shared) / n).min()
        guess = (
            f"the bytes per request: {(moved / n).max() / 1e6:.4g} MB given, at most {fits_bytes / 1e6:.4g} MB fit (a "
            "shorter context, window or latent attention, keys and values in fewer bits, or shared by more ranks)"
        )
    elif (moved < budget).all():
        fits_bytes = (budget - moved).min()
        guess = (
            f"the weights: {shared.max() / 1e9:.4g} GB per rank given, at most {fits_bytes / 1e9:.4g} GB fit "
            "(quantised weights, experts that no token chose, or tp counted too small)"
        )
    else:
        guess = (
            f"the hardware ({hardware.mem_bw_bytes_per_s / 1e9:.4g} GB/s given) or the step (accept_len under "
            "speculation, running_req of one rank or of all): neither weights nor context alone explain it"
        )
    return [f"measured faster than the lower bound at running_req {_names(n)}: an input is wrong, most likely {guess}"]


def _names(levels: np.ndarray) -> str:
    return ", ".join(f"{level:g}" for level in levels)
