"""Time of one decode step on an accelerator: three lines, part by part.

strict : the larger of all bytes at the peak bandwidth and all FLOPs at the peak rate, experts of one token, no
    communication. A lower bound.
expected : matrices, then what every request brings, each at its own roof; experts that uniform routing touches,
    kernels at the padded batch, the collectives of the ranks. What ideal kernels would take.
target : the same at the shares of bandwidth and rate that real kernels reach, collectives as measured. Not a bound.

No line holds launch, host or sampling time: a floor is stated beside them (`latency_floor_s`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from helpers.physics.catalogue.hardware import Hardware
from helpers.physics.steps.demand import MATRICES, PER_REQUEST, Forward, Message, StepModel
from helpers.schema import RooflogError

LINES = ("strict", "expected", "target")

ASSUMED_ACHIEVABLE_FRAC = 0.82
"""Share of the peak bandwidth where the hardware has no measurement [1]: the middle of what matrix products of
at most 16 rows reach on BF16 operands above 400 MB (0.76 A100, 0.83 L40S, 0.84 H200, 0.85 H100). FP8 and FP4
operands reach 0.66-0.81."""

ACHIEVABLE_RANGE = (0.66, 0.87)
"""Smallest and largest measured share of the peak bandwidth over boards and formats [1]: FP8 on RTX PRO 6000, the
90th percentile of BF16 on H200 (calibration of public kernel tables)."""

ACHIEVABLE_COMPUTE_FRAC = 0.7
"""Share of the dense peak rate that large matrix products reach [1]: an assumption; MI300X reaches 0.51."""

FALLBACK_RATES: Mapping[str, tuple[str, ...]] = {
    "bf16": ("bf16", "fp16"), "fp16": ("fp16", "bf16"), "fp8": ("fp8", "bf16", "fp16"),
    "int8": ("int8", "bf16", "fp16"), "fp4": ("fp4", "bf16", "fp16"), "fp32": ("fp32",),
}
"""Rates in the order tried: hardware without FP8 or FP4 units multiplies such weights in 16 bit."""

KERNEL_S = (2e-6, 5e-6)
"""Smallest time of a kernel inside a graph [s]: intercepts of matrix products over their size, 2.1 us (RTX, L40S)
to 4.8 us (FP8 with its conversion)."""

KERNELS_PER_LAYER = {"dense": (8, 12), "experts": (20, 30), "compressed": (30, 50)}
"""Kernels of a layer: rough counts; count them in a trace instead."""


class Link(Protocol):
    """Time of collectives (communication.Communication)."""

    def all_reduce_s(self, message_bytes: np.ndarray) -> np.ndarray:
        """Time of one all-reduce [s]."""
        ...

    def all_gather_s(self, message_bytes: np.ndarray) -> np.ndarray:
        """Time of one all-gather [s]."""
        ...

    def all_to_all_s(self, tokens: np.ndarray, hidden: int, n_active: int, ep: int) -> np.ndarray:
        """Time to send tokens to their experts and back [s]."""
        ...

    def exchange_assumption(self, ep: int) -> str:
        """Where the times of `all_to_all_s` come from."""
        ...


@dataclass(frozen=True)
class Shares:
    """What real kernels reach of the peaks.

    Attributes
    ----------
    bandwidth_frac, compute_frac : float in (0, 1]
        Of the peak memory bandwidth, of the peak dense rate [1].
    source : str
    """

    bandwidth_frac: float
    compute_frac: float = ACHIEVABLE_COMPUTE_FRAC
    source: str = "given by hand"

    def __post_init__(self) -> None:
        """Refuse what is no share."""
        for value in (self.bandwidth_frac, self.compute_frac):
            if not 0 < value <= 1:
                raise RooflogError(f"achievable_frac: expected a share of the peak in (0, 1], found {value}")


PEAK = Shares(1.0, 1.0, "peak")


def achievable(hardware: Hardware, given_frac: float | None = None) -> Shares:
    """Return the shares for the target line: given, measured on this hardware, or assumed."""
    if given_frac is not None:
        return Shares(given_frac)
    measured = hardware.eta_mem_measured_frac
    if measured is not None:
        text = "measured on BF16 operands above 400 MB; FP8 and FP4 reach less"
        return Shares(measured, source=text)
    return Shares(ASSUMED_ACHIEVABLE_FRAC, source="assumed: no measurement for this hardware; others reach 0.76-0.85 "
                                                  "with BF16")


def rate_flop_per_s(hardware: Hardware, rate: str) -> float | None:
    """Return the dense peak rate that a format runs at on this hardware [FLOP/s]; None if no rate is known."""
    for name in FALLBACK_RATES[rate]:
        found = getattr(hardware, f"{name}_flop_per_s")
        if found:
            return float(found)
    return None


def step_parts(
    model: StepModel, hardware: Hardware, running_req: np.ndarray, context_tok: np.ndarray, line: str,
    *, shares: Shares = PEAK, links: Mapping[int, Link] | None = None,
) -> dict[str, np.ndarray]:
    """Return the time of one step by part, at several levels.

    Parameters
    ----------
    model : StepModel
    hardware : Hardware
        One rank's accelerator.
    running_req, context_tok : ndarray, shape (levels,)
        Running requests of one rank [req] and their mean context [tok].
    line : str
        One of `LINES`.
    shares : Shares
        For ``target``; the other lines take the peaks.
    links : mapping of ranks to Link, optional
        Collectives among that many ranks; without it they cost nothing.

    Returns
    -------
    dict of str to ndarray, shape (levels,)
        Part -> time [s]: weights, experts, head, kv, index, state, draft, all_reduce, compute. Their sum is the
        step. ``compute`` is what FLOPs ask beyond the bytes; parts that are zero everywhere are left out.
    """
    forwards = model.forwards(running_req, context_tok, fewest=line == "strict")
    used = shares if line == "target" else PEAK
    parts: dict[str, np.ndarray] = {}
    for forward in forwards:
        of_forward = (_strict if line == "strict" else _tight)(forward, hardware, used)
        if line != "strict":
            of_forward["all_reduce"] = communication_s(forward.messages, links or {}, len(running_req))
        if forward.name == "draft":
            of_forward = {"draft": np.sum([*of_forward.values()], axis=0)}
        for name, time_s in of_forward.items():
            parts[name] = parts.get(name, 0.0) + forward.count * time_s
    return {name: time_s for name, time_s in parts.items() if np.any(time_s != 0)}  # NaN stays


def _memory_s(forward: Forward, hardware: Hardware, shares: Shares) -> dict[str, np.ndarray]:
    bandwidth = shares.bandwidth_frac * hardware.mem_bw_bytes_per_s
    return {group: n_bytes / bandwidth for group, n_bytes in forward.bytes_read.items()}


def compute_s(forward: Forward, hardware: Hardware, groups: Iterable[str], shares: Shares = PEAK) -> np.ndarray | float:
    """Return the time that the FLOPs of some groups take [s]; rates that are not known count as endless."""
    total: np.ndarray | float = 0.0
    for group in groups:
        for rate, flops in forward.flops.get(group, {}).items():
            peak = rate_flop_per_s(hardware, rate)
            total = total + (flops / (shares.compute_frac * peak) if peak else 0.0 * flops)
    return total


def _strict(forward: Forward, hardware: Hardware, shares: Shares) -> dict[str, np.ndarray]:
    """All bytes or all FLOPs, whichever takes longer."""
    parts = _memory_s(forward, hardware, shares)
    beyond = compute_s(forward, hardware, forward.flops, shares) - np.sum([*parts.values()], axis=0)
    return parts | {"compute": np.maximum(beyond, 0.0)}


def _tight(forward: Forward, hardware: Hardware, shares: Shares) -> dict[str, np.ndarray]:
    """Matrices, then requests: each group at its own roof, one after the other."""
    parts = _memory_s(forward, hardware, shares)
    beyond: np.ndarray | float = 0.0
    for groups in (MATRICES, PER_REQUEST):
        memory_s = sum((parts[group] for group in groups if group in parts), np.zeros(1))
        beyond = beyond + np.maximum(compute_s(forward, hardware, groups, shares) - memory_s, 0.0)
    return parts | {"compute": np.asarray(beyond)}


def communication_s(messages: Iterable[Message], links: Mapping[int, Link], n_levels: int) -> np.ndarray:
    """Return the time of the collectives of one forward [s]; zero among ranks without a link."""
    total = np.zeros(n_levels)
    for message in messages:
        link = links.get(message.n_ranks)
        if link is None:
            continue
        if message.kind == "all_to_all":
            once_s = link.all_to_all_s(message.tok, message.hidden, message.n_active, message.n_ranks)
        else:
            once_s = getattr(link, f"{message.kind}_s")(message.message_bytes)
        total = total + message.count * once_s
    return total


def latency_floor_s(n_layers: int, kind: str) -> tuple[float, float]:
    """Return the least and the most that the kernels of a step take however little they move [s].

    Parameters
    ----------
    n_layers : int
        Layers that a step passes, draft forwards included.
    kind : str
        A key of `KERNELS_PER_LAYER`.
    """
    few, many = KERNELS_PER_LAYER[kind]
    return n_layers * few * KERNEL_S[0], n_layers * many * KERNEL_S[1]
