"""The healthy decode step of a real model on a real accelerator, and the simulator's law that reproduces any step."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls

from helpers import deployment
from helpers.facts import merge_facts
from helpers.physics.model.spec import HasExperts
from helpers.physics.steps import prediction, step
from helpers.physics.steps.demand import MATRICES
from helpers.physics.steps.prefill import prefill_bound
from helpers.synth import StepLaw

MEMORY = (*MATRICES, "kv", "index", "state")
"""Parts of a step that are time of the memory interface."""

FULL_FRAC = 0.88
"""Share of the memory that a server fills with weights and cache, as SGLang's mem_fraction_static."""


@dataclass(frozen=True)
class Setup:
    """A model on accelerators: catalogue names and degrees."""

    model: str
    hardware: str
    tp: int = 1
    dp: int = 1
    n_draft: int = 0  # draft tokens per round, the root not counted

    @property
    def n_gpus(self) -> int:
        """Accelerators, as SGLang counts: data-parallel attention ranks are among the tp ranks."""
        return self.tp


@dataclass(frozen=True)
class Tuning:
    """How good this server is.

    u scales the target line (0.9..1.15), v the smallest kernel times, w the host's time per request.
    """

    u: float = 1.0
    v: float = 0.6
    w: float = 0.3


@functools.cache
def resolve(setup: Setup) -> deployment.Deployment:
    """Return the physics of a setup."""
    told = {"model": setup.model, "hardware": setup.hardware, "tp": setup.tp, "dp": setup.dp,
            "dp_attention": setup.dp > 1, "ep": setup.tp if setup.dp > 1 else 1}
    if setup.n_draft:
        told |= {"num_draft_tokens": setup.n_draft + 1, "speculative_algorithm": "NEXTN"}
    return deployment.resolve(merge_facts({"engine": "sglang"}, told))


def parts(setup: Setup, tuning: Tuning, running_req: np.ndarray, context_tok: float) -> dict[str, np.ndarray]:
    """Return the healthy step by part [s]: the target line, ``kernels`` and ``host``."""
    of = resolve(setup)
    levels = np.asarray(running_req, dtype="float64")
    found = step.step_parts(of.model, of.hardware, levels, np.full(levels.shape, float(context_tok)), "target",
                            shares=step.achievable(of.hardware), links=of.links)
    scaled = {name: tuning.u * time_s for name, time_s in found.items()}
    kernels_s = tuning.v * prediction.n_kernels(of.model) * prediction.FITTED_KERNEL_S
    return scaled | {"kernels": np.full(levels.shape, kernels_s),
                     "host": tuning.w * levels * prediction.FITTED_HOST_S_PER_REQ}


def total(found: dict[str, np.ndarray]) -> np.ndarray:
    """Add the parts up [s]."""
    return np.sum(list(found.values()), axis=0)


def memory_s(setup: Setup, found: dict[str, np.ndarray]) -> np.ndarray:
    """Return the time the memory interface is busy at its peak rate [s]."""
    eta = step.achievable(resolve(setup).hardware).bandwidth_frac
    return eta * np.sum([found[name] for name in MEMORY if name in found], axis=0)


def tensor_s(setup: Setup, running_req: np.ndarray, context_tok: float) -> np.ndarray:
    """Return the time of all products at the dense peak rate [s]."""
    of = resolve(setup)
    levels = np.asarray(running_req, dtype="float64")
    forward = of.model.forwards(levels, np.full(levels.shape, float(context_tok)))[0]
    return np.broadcast_to(step.compute_s(forward, of.hardware, MATRICES), levels.shape)


def n_layers(setup: Setup) -> int:
    """Layers of the model."""
    return int(resolve(setup).model.spec.n_layers)


def experts(setup: Setup) -> tuple[int, int] | None:
    """Routed experts and those of one token."""
    feeds = [layer.feed for layer in resolve(setup).model.spec.layers if isinstance(layer.feed, HasExperts)]
    return (feeds[0].n_experts, feeds[0].n_active) if feeds else None


def weight_bytes(setup: Setup) -> float:
    """Weights of one rank [bytes]."""
    forward = resolve(setup).model.forwards(np.array([1e7]), np.array([1.0]))[0]
    return float(sum(forward.bytes_read[name][0] for name in MATRICES if name in forward.bytes_read))


def kv_bytes_per_tok(setup: Setup) -> float:
    """Keys and values of one token on one rank [bytes/tok]."""
    found = resolve(setup).model.forwards(np.array([1.0, 1.0]), np.array([1000.0, 21000.0]))[0]
    kv = found.bytes_read.get("kv", np.zeros(2))
    return float(kv[1] - kv[0]) / 20000


def pool_tok(setup: Setup) -> int:
    """Return the KV slots of one rank that fit beside the weights [tok]; at most four million."""
    room = FULL_FRAC * float(resolve(setup).hardware.mem_bytes or 80e9) - weight_bytes(setup)
    return int(min(max(room, 2e9) / max(kv_bytes_per_tok(setup), 1.0), 4e6))


@functools.cache
def prefill_s_per_tok(setup: Setup) -> float:
    """Return what a token of a long prompt costs [s/tok]."""
    of = resolve(setup)
    return float(prefill_bound(of.model, of.hardware, 8192.0, links=of.links).target_s) / 8192


@dataclass(frozen=True)
class Planted:
    """A step law of the simulator, the factor of every batch size on it, and the steps they give.

    Attributes
    ----------
    law : StepLaw
    factors : dict of int to float
    step_s : ndarray, shape (n_max,)
        Step at 1..n_max running requests at the mean context [s].
    healthy_s : ndarray, shape (n_max,)
        The same without the cause [s].
    parts : dict of str to ndarray, shape (n_max,)
        Of the healthy step [s].
    """

    law: StepLaw
    factors: dict[int, float]
    step_s: np.ndarray
    healthy_s: np.ndarray
    parts: dict[str, np.ndarray]


def plant(
    setup: Setup, tuning: Tuning, n_max: int, context_tok: float, extra_s: np.ndarray, *, kv_factor: float = 1.0,
    captured: tuple[int, ...] = (),
) -> Planted:
    """Find the law and factors that make the simulator's step exactly healthy + extra at the mean context.

    The law is what our physics gives, as far as the simulator's kinds of laws go; a factor per batch size takes up the
    rest. ``extra_s`` holds the added time at 1..n_max requests; with ``captured`` the factors are those of the padded
    size, for a server that pads.
    """
    n = np.arange(1, n_max + 1, dtype="float64")
    found = parts(setup, tuning, n, context_tok)
    healthy_s = total(found)
    wide = total(parts(setup, tuning, n[-1:], 1.2 * context_tok + 1))[0]
    per_tok_s = kv_factor * max(wide - healthy_s[-1], 0.0) / (n_max * (0.2 * context_tok + 1))
    context_s = per_tok_s * n * context_tok
    wanted_s = healthy_s + (1 - 1 / kv_factor) * context_s + extra_s
    has = experts(setup)
    touched = 1 - (1 - has[1] / has[0]) ** n if has else np.zeros(n_max)
    columns = np.stack([np.ones(n_max), touched, n], axis=1) / wanted_s[:, None]
    (a, w, b), _ = nnls(columns, (wanted_s - context_s) / wanted_s)
    law = StepLaw(kind="moe" if has else "linear", intercept_s=max(a, 1e-6), slope_s_per_req=b, expert_s=w,
                  context_s_per_tok=per_tok_s, n_experts=has[0] if has else 256, n_experts_active=has[1] if has else 8)
    ours_s = np.array([law.step_s(k, k * context_tok) for k in n])
    factors = wanted_s / ours_s
    if captured:
        padded = np.array([min((size for size in captured if size >= k), default=int(k)) for k in n], dtype=int)
        index = np.minimum(padded, n_max) - 1
        factors = factors[index]
        wanted_s = np.array([(law.step_s(p) + per_tok_s * k * context_tok) * f
                             for p, k, f in zip(padded, n, factors, strict=True)])
    return Planted(law, dict(enumerate(factors.tolist(), start=1)), wanted_s, healthy_s, found)
