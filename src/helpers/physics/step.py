"""Bytes and time of one decode step for a model given by hand, and the roofline at given levels.

Every rank reads its share of the weights once per step, and for each running request its keys and values and
its recurrent state. Two lines come out of it:

strict : those bytes at the peak memory bandwidth, and nothing else. A lower bound.
target : the same bytes at the share of the peak that real kernels reach. Not a bound.

A third line, expected (expert routing, communication), needs the model's configuration and is not computed here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from helpers.physics.hardware import Hardware
from helpers.schema import RooflogError

ASSUMED_ACHIEVABLE_FRAC = 0.82
"""Share of the peak bandwidth where the hardware has no measurement [1]: the middle of what matrix products of
at most 16 rows reach on BF16 operands above 400 MB (0.76 A100, 0.83 L40S, 0.84 H200, 0.85 H100). FP8 and FP4
operands reach 0.66-0.81."""

CONTEXT_SPREAD = 1.2
"""Ratio of the largest to the smallest context between levels above which a slope mixes both [1] (a rule)."""

EXPECTED_NEEDS_CONFIG = (
    "not computed: expert routing and communication need the model's config.json; the model is given by hand"
)

CONTEXT_MISSING = (
    "the context per request is not known, and a step reads the keys and values of all of it: give context_tok "
    "(prompt tokens plus half of the output tokens, where the load is known)"
)


@dataclass(frozen=True)
class HandModel:
    """What one decode step reads, given by hand, all ranks of one model copy together.

    Attributes
    ----------
    weight_bytes_per_step : float
        Weights read by a step, embedding table left out (only its rows are read). Mixture of experts: those of
        one token for a lower bound, not the whole checkpoint. Speculation: target and draft reads of one round.
    kv_bytes_per_tok : float
        Keys and values per token of context: 2 x layers x KV heads x head size x bytes per element.
    state_bytes_per_req : float
        Recurrent state moved per request and step, reads and writes (linear attention, state-space layers).
    tp : int
        Tensor-parallel ranks that share the weights and the KV heads evenly.
    kv_is_replicated : bool
        Every rank holds all keys and values (one latent or one KV head): they do not shrink with ``tp``.
    """

    weight_bytes_per_step: float
    kv_bytes_per_tok: float
    state_bytes_per_req: float = 0.0
    tp: int = 1
    kv_is_replicated: bool = False

    def __post_init__(self) -> None:
        """Refuse what cannot be a model."""
        if not self.weight_bytes_per_step > 0:
            raise RooflogError(f"model: expected weight_bytes_per_step > 0 bytes, found {self.weight_bytes_per_step}")
        for name in ("kv_bytes_per_tok", "state_bytes_per_req"):
            if not getattr(self, name) >= 0:
                raise RooflogError(f"model: expected {name} >= 0 bytes, found {getattr(self, name)}")
        if self.tp < 1 or self.tp != int(self.tp):
            raise RooflogError(f"model: expected tp to be a whole number of ranks from 1, found {self.tp}")

    def weight_bytes(self) -> float:
        """Weight bytes that one rank reads per step [bytes]."""
        return self.weight_bytes_per_step / self.tp

    def req_bytes(self, context_tok: np.ndarray) -> np.ndarray:
        """Bytes that one rank moves per request and step at a context [bytes]; NaN where it matters and is unknown."""
        ranks = 1 if self.kv_is_replicated else self.tp
        kv_bytes = context_tok * self.kv_bytes_per_tok / ranks if self.kv_bytes_per_tok else np.zeros_like(context_tok)
        return kv_bytes + self.state_bytes_per_req / self.tp


@dataclass(frozen=True)
class Line:
    """One line of the roofline: step times at the levels, and the chord through them.

    Attributes
    ----------
    step_s : tuple of float
        Step time at each level [s].
    intercept_s, slope_s_per_req : float
        Straight line fitted to ``step_s`` at the levels and weights of the data [s], [s/req]; NaN below two
        levels. Only these compare with a measured intercept and slope.
    """

    step_s: tuple[float, ...]
    intercept_s: float
    slope_s_per_req: float


@dataclass(frozen=True)
class Roofline:
    """What the hardware allows at the levels of the data, and how far the measurement is from it.

    Attributes
    ----------
    running_req, context_tok : tuple of float
        The levels [req] and the mean context per request there [tok].
    measured_step_s : tuple of float
        Step times of the data [s]; NaN where none were given.
    strict, target : Line or None
        The lower bound, and the same bytes at ``achievable_frac`` of the peak; None when refused.
    expected : None
        Expert routing and communication; see ``expected_refused``.
    achievable_frac : float
        Share of the peak bandwidth in ``target`` [1].
    assumptions, warnings : tuple of str
        What the numbers rest on; what is doubtful.
    refused : str or None
        Why there is no roofline.
    """

    running_req: tuple[float, ...]
    context_tok: tuple[float, ...]
    measured_step_s: tuple[float, ...]
    strict: Line | None
    target: Line | None
    achievable_frac: float
    assumptions: tuple[str, ...]
    warnings: tuple[str, ...] = ()
    refused: str | None = None
    expected: Line | None = None
    expected_refused: str = EXPECTED_NEEDS_CONFIG

    def ratio(self, line: str) -> tuple[float, ...]:
        """Measured step over the step of a line at each level [1]; line is strict or target."""
        chosen: Line | None = {"strict": self.strict, "target": self.target}[line]
        if chosen is None:
            return tuple(float("nan") for _ in self.running_req)
        return tuple(m / s for m, s in zip(self.measured_step_s, chosen.step_s, strict=True))

    def to_frame(self) -> pd.DataFrame:
        """Return one row per level: running_req, context_tok, three step times [s], two ratios [1]."""
        missing = tuple(float("nan") for _ in self.running_req)
        return pd.DataFrame(
            {
                "running_req": self.running_req,
                "context_tok": self.context_tok,
                "step_s": self.measured_step_s,
                "strict_step_s": self.strict.step_s if self.strict else missing,
                "target_step_s": self.target.step_s if self.target else missing,
                "step_over_strict": self.ratio("strict"),
                "step_over_target": self.ratio("target"),
            },
            dtype="float64",
        )


def roofline(
    model: HandModel,
    hardware: Hardware,
    running_req: Sequence[float] | np.ndarray | pd.Series,
    context_tok: float | Sequence[float] | np.ndarray | pd.Series | None,
    *,
    step_s: Sequence[float] | np.ndarray | pd.Series | None = None,
    weights: Sequence[float] | np.ndarray | pd.Series | None = None,
    achievable_frac: float | None = None,
) -> Roofline:
    """Compute the strict and the target line at the levels of the data.

    Parameters
    ----------
    model : HandModel
        What a step reads.
    hardware : Hardware
        One accelerator; every rank has one of its own.
    running_req : sequence of float
        The levels [req], as the rank that sets the step sees them.
    context_tok : float, sequence of float or None
        Mean context per running request at each level, or one number for all [tok]. Without it no line is
        drawn unless ``kv_bytes_per_tok`` is 0.
    step_s : sequence of float, optional
        Measured step time at each level [s].
    weights : sequence of float, optional
        Weights of the chord: those of the data's law. By default 1 / step_s^2, without step_s 1 / strict^2.
    achievable_frac : float in (0, 1], optional
        Share of the peak bandwidth for ``target``; by default the hardware's measured one, else
        `ASSUMED_ACHIEVABLE_FRAC`.

    Returns
    -------
    Roofline
        ``refused`` says why there is none; ``warnings`` names an input that the measurement contradicts.

    Raises
    ------
    RooflogError
        No level, a level that is not positive, lengths that differ, or a fraction outside (0, 1].

    Notes
    -----
    strict(N) = (W + N r) / B with W the weight bytes and r the bytes per request of one rank, B its peak
    bandwidth. Compute is left out: the maximum of both is the bound, so memory alone stays one.

    Examples
    --------
    >>> from helpers.physics import hardware
    >>> model = HandModel(weight_bytes_per_step=15.01e9, kv_bytes_per_tok=131072)
    >>> lines = roofline(model, hardware.find("h100-sxm"), [1, 64], 2048)
    >>> [round(1e3 * step_s, 2) for step_s in lines.strict.step_s]
    [4.56, 9.61]
    """
    levels = _column("running_req", running_req, None)
    if len(levels) == 0 or not (levels > 0).all():
        raise RooflogError(f"running_req: expected at least one level above 0 req, found {levels.tolist()}")
    context = _column("context_tok", np.nan if context_tok is None else context_tok, len(levels))
    measured = _column("step_s", np.nan if step_s is None else step_s, len(levels))
    columns = tuple(levels.tolist()), tuple(context.tolist()), tuple(measured.tolist())
    frac, frac_source = _achievable(hardware, achievable_frac)
    assumptions = _assumptions(model, hardware, context, frac_source)
    req_bytes = model.req_bytes(context)
    strict_s = strict_step_s(model, hardware, levels, context)
    if np.isnan(strict_s).all():
        return Roofline(*columns, None, None, frac, assumptions, hardware.warnings, CONTEXT_MISSING)
    default_weights = 1.0 / (measured if step_s is not None else strict_s) ** 2
    weight = default_weights if weights is None else _column("weights", weights, len(levels))
    return Roofline(
        *columns,
        strict=_line(levels, strict_s, weight),
        target=_line(levels, strict_s / frac, weight),
        achievable_frac=frac,
        assumptions=assumptions,
        warnings=(
            *hardware.warnings,
            *_doubts(levels, context, strict_s),
            *_contradictions(model, hardware, levels, req_bytes, measured),
        ),
    )


def strict_step_s(
    model: HandModel, hardware: Hardware, running_req: np.ndarray, context_tok: np.ndarray | float
) -> np.ndarray:
    """Return the lower bound of the step [s] at any running_req [req] and context [tok]."""
    req_bytes = model.req_bytes(np.asarray(context_tok, dtype="float64"))
    return (model.weight_bytes() + running_req * req_bytes) / hardware.mem_bw_bytes_per_s


def _column(name: str, values: object, n_levels: int | None) -> np.ndarray:
    """Return values as floats, one per level; a single number is repeated."""
    column = np.asarray(values, dtype="float64")
    if column.ndim == 0 and n_levels is not None:
        column = np.full(n_levels, column)
    if column.ndim != 1 or (n_levels is not None and len(column) != n_levels):
        raise RooflogError(f"{name}: expected one number per level ({n_levels}), found shape {column.shape}")
    return column


def _achievable(hardware: Hardware, given_frac: float | None) -> tuple[float, str]:
    if given_frac is not None:
        if not 0 < given_frac <= 1:
            raise RooflogError(f"achievable_frac: expected a share of the peak bandwidth in (0, 1], found {given_frac}")
        return given_frac, "given by hand"
    if hardware.eta_mem_measured_frac is not None:
        return hardware.eta_mem_measured_frac, "measured on BF16 operands above 400 MB; FP8 and FP4 reach less"
    return ASSUMED_ACHIEVABLE_FRAC, "assumed: no measurement for this hardware; others reach 0.76-0.85 with BF16"


def _line(levels: np.ndarray, step_s: np.ndarray, weight: np.ndarray) -> Line:
    """Fit the chord: weighted least squares of step_s on the levels, where both are known."""
    use = np.isfinite(step_s) & np.isfinite(weight)
    if len(np.unique(levels[use])) < 2:
        return Line(tuple(step_s.tolist()), float("nan"), float("nan"))
    x, y, w = levels[use], step_s[use], weight[use] / weight[use].sum()
    x_mean, y_mean = w @ x, w @ y
    slope = (w @ ((x - x_mean) * (y - y_mean))) / (w @ (x - x_mean) ** 2)
    return Line(tuple(step_s.tolist()), float(y_mean - slope * x_mean), float(slope))


def _assumptions(model: HandModel, hardware: Hardware, context: np.ndarray, frac_source: str) -> tuple[str, ...]:
    known = context[np.isfinite(context)]
    span = " to ".join(sorted({f"{known.min():.0f}", f"{known.max():.0f}"}, key=float)) if len(known) else "unknown"
    kv_share = "held whole by every rank" if model.kv_is_replicated else "shared evenly"
    return (
        f"model by hand: {model.weight_bytes_per_step / 1e9:.4g} GB of weights per step over {model.tp} rank(s), "
        f"shared evenly; {model.kv_bytes_per_tok:.6g} bytes of keys and values per token, {kv_share}; "
        f"{model.state_bytes_per_req / 1e6:.4g} MB of state per request; the same at every level "
        "(a mixture of experts reads more weights at a higher level: there the true ratio is smaller)",
        f"{hardware.name}: {hardware.mem_bw_bytes_per_s / 1e9:.4g} GB/s peak per rank ({hardware.source})",
        f"context per request: {span} tok, all of it read at every step",
        "strict: memory traffic of weights, context and state only; no compute, communication, launch or host time",
        f"target: strict over the achievable share of the peak ({frac_source}); no communication or host time",
    )


def _doubts(levels: np.ndarray, context: np.ndarray, strict_s: np.ndarray) -> list[str]:
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


def _contradictions(
    model: HandModel, hardware: Hardware, levels: np.ndarray, req_bytes: np.ndarray, measured_s: np.ndarray
) -> list[str]:
    """Say which input is most likely wrong where the measurement beats the lower bound."""
    weight_bytes, per_level_bytes = model.weight_bytes(), levels * req_bytes
    budget_bytes = measured_s * hardware.mem_bw_bytes_per_s
    below = budget_bytes < weight_bytes + per_level_bytes
    if not below.any():
        return []
    n, budget, moved, per_req = levels[below], budget_bytes[below], per_level_bytes[below], req_bytes[below]
    if (weight_bytes < budget).all():
        fits_bytes = ((budget - weight_bytes) / n).min()
        guess = (
            f"the bytes per request: {per_req.max() / 1e6:.4g} MB given, at most {fits_bytes / 1e6:.4g} MB fit (a "
            "shorter context, window or latent attention, keys and values in fewer bits, or shared by more ranks)"
        )
    elif (moved < budget).all():
        fits_bytes = (budget - moved).min()
        guess = (
            f"the weights: {weight_bytes / 1e9:.4g} GB per rank given, at most {fits_bytes / 1e9:.4g} GB fit "
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
