"""The roofline at the levels of the data: three lines, their chords, their knees, and the doubts about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from helpers.physics.catalogue.hardware import Hardware
from helpers.physics.model.spec import HasExperts
from helpers.physics.steps import doubts, step
from helpers.physics.steps.decode import DecodeModel
from helpers.physics.steps.demand import MATRICES, PER_REQUEST, StepModel, read_bytes
from helpers.physics.steps.hand import HandModel
from helpers.physics.steps.step import LINES, Link, Shares
from helpers.schema import RooflogError

SATURATED_FRAC = 0.95
"""Share of the experts that counts as all of them [1]."""

MANY_REQ = 1e7
"""Running requests at which every expert is read [req]."""

CONTEXT_MISSING = (
    "the context per request is not known, and a step reads the keys and values of all of it: give context_tok "
    "(prompt tokens plus half of the output tokens, where the load is known)"
)
EXPECTED_NEEDS_CONFIG = (
    "not computed: expert routing and communication need the model's config.json; the model is given by hand"
)


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
    parts : mapping of str to tuple of float
        Part -> time at each level [s]; they add up to ``step_s``.
    """

    step_s: tuple[float, ...]
    intercept_s: float
    slope_s_per_req: float
    parts: Mapping[str, tuple[float, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Roofline:
    """What the hardware allows at the levels of the data, and how far the measurement is from it.

    Attributes
    ----------
    running_req, context_tok : tuple of float
        The levels [req] and the mean context per request there [tok].
    measured_step_s : tuple of float
        Step times of the data [s]; NaN where none were given.
    strict, expected, target : Line or None
        The lower bound, what ideal kernels would take, and the same at ``shares`` of the peaks; None when refused.
        A model given by a few numbers has an expected line only where its experts are known.
    shares : Shares
        Of the peaks, in ``target``.
    regimes : tuple of str
        What the expected step (strict, where there is none) spends most on at each level: weights, experts, head,
        kv, index, state, draft, compute, all_reduce.
    knees_req : mapping of str to float
        Running requests at which the regime turns [req]: ``experts`` nearly all experts are read, ``requests`` what
        requests bring takes as long as the weights, ``compute`` the products take longer than reading the weights.
        Only knees that exist.
    floor_s : tuple of float
        Least and most that the kernels of a step take however little they move [s]; in no line. NaN if unknown.
    bytes_read : mapping of str to tuple of float
        Group -> bytes of one rank and step at each level, as in ``expected`` (else strict) [bytes].
    assumptions, warnings : tuple of str
        What the numbers rest on; what is doubtful.
    refused : str or None
        Why there is no roofline.
    expected_refused : str or None
        Why there is no expected line.
    """

    running_req: tuple[float, ...]
    context_tok: tuple[float, ...]
    measured_step_s: tuple[float, ...]
    strict: Line | None
    expected: Line | None
    target: Line | None
    shares: Shares
    assumptions: tuple[str, ...]
    warnings: tuple[str, ...] = ()
    refused: str | None = None
    expected_refused: str | None = None
    regimes: tuple[str, ...] = ()
    knees_req: Mapping[str, float] = field(default_factory=dict)
    floor_s: tuple[float, float] = (float("nan"), float("nan"))
    bytes_read: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

    @property
    def achievable_frac(self) -> float:
        """Share of the peak bandwidth in ``target`` [1]."""
        return self.shares.bandwidth_frac

    def line(self, name: str) -> Line | None:
        """Return a line by name, one of `LINES`."""
        return {"strict": self.strict, "expected": self.expected, "target": self.target}[name]

    def ratio(self, name: str) -> tuple[float, ...]:
        """Measured step over the step of a line at each level [1]; NaN where there is no line or no measurement."""
        chosen = self.line(name)
        if chosen is None:
            return tuple(float("nan") for _ in self.running_req)
        return tuple(m / s for m, s in zip(self.measured_step_s, chosen.step_s, strict=True))

    def to_frame(self) -> pd.DataFrame:
        """Return one row per level: running_req, context_tok, measured and line step times [s], ratios [1]."""
        missing = tuple(float("nan") for _ in self.running_req)
        table: dict[str, Any] = {
            "running_req": self.running_req, "context_tok": self.context_tok, "step_s": self.measured_step_s,
        }
        for name in LINES:
            line = self.line(name)
            table[f"{name}_step_s"] = line.step_s if line else missing
        for name in LINES:
            table[f"step_over_{name}"] = self.ratio(name)
        return pd.DataFrame(table, dtype="float64")


def roofline(
    model: StepModel,
    hardware: Hardware,
    running_req: Sequence[float] | np.ndarray | pd.Series,
    context_tok: float | Sequence[float] | np.ndarray | pd.Series | None,
    *,
    step_s: Sequence[float] | np.ndarray | pd.Series | None = None,
    weights: Sequence[float] | np.ndarray | pd.Series | None = None,
    achievable_frac: float | None = None,
    links: Mapping[int, Link] | None = None,
) -> Roofline:
    """Compute the three lines at the levels of the data.

    Parameters
    ----------
    model : StepModel
        What a step asks of one rank: a `DecodeModel`, or a `HandModel`.
    hardware : Hardware
        One accelerator; every rank has one of its own.
    running_req : sequence of float
        The levels [req], as the rank that sets the step sees them.
    context_tok : float, sequence of float or None
        Mean context per running request at each level, or one number for all [tok]. Without it no line is
        drawn unless the model keeps no keys and values.
    step_s : sequence of float, optional
        Measured step time at each level [s].
    weights : sequence of float, optional
        Weights of the chord: those of the data's law. By default 1 / step_s^2, without step_s 1 / strict^2.
    achievable_frac : float in (0, 1], optional
        Share of the peak bandwidth for ``target``; by default the hardware's measured one, else an assumed one.
    links : mapping of ranks to Link, optional
        Collectives, for expected and target.

    Returns
    -------
    Roofline
        ``refused`` says why there is none; ``warnings`` names an input that the measurement contradicts.

    Raises
    ------
    RooflogError
        No level, a level that is not positive, lengths that differ, or a fraction outside (0, 1].

    Examples
    --------
    >>> from helpers.physics.catalogue import hardware
    >>> from helpers.physics.steps import hand
    >>> model = hand.HandModel(weight_bytes_per_step=15.01e9, kv_bytes_per_tok=131072)
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
    shares = step.achievable(hardware, achievable_frac)
    assumptions = doubts.assumptions_of(model, hardware, context, shares, links or {})
    expected_refused = None if _knows_routing(model) else EXPECTED_NEEDS_CONFIG
    parts = {line: step.step_parts(model, hardware, levels, context, line, shares=shares, links=links)
             for line in LINES}
    strict_s = _total(parts["strict"])
    if np.isnan(strict_s).all():
        return Roofline(*columns, None, None, None, shares, assumptions, hardware.warnings, CONTEXT_MISSING,
                        expected_refused)
    default_weights = 1.0 / (measured if step_s is not None else strict_s) ** 2
    weight = default_weights if weights is None else _column("weights", weights, len(levels))
    lines = {name: _line(levels, found, weight) for name, found in parts.items()}
    read = read_bytes(model, levels, context, fewest=expected_refused is not None)
    return Roofline(
        *columns,
        strict=lines["strict"],
        expected=None if expected_refused else lines["expected"],
        target=lines["target"],
        shares=shares,
        assumptions=assumptions,
        warnings=(
            *hardware.warnings,
            *doubts.doubts_of(levels, context, strict_s),
            *doubts.contradictions_of(model, hardware, levels, context, measured, strict_s),
        ),
        expected_refused=expected_refused,
        regimes=_regimes(parts["strict" if expected_refused else "expected"], len(levels)),
        knees_req=knees_req(model, hardware, float(np.nanmean(context)) if np.isfinite(context).any() else np.nan),
        floor_s=floor_s(model),
        bytes_read={group: tuple(n_bytes.tolist()) for group, n_bytes in read.items() if n_bytes.any()},
    )


def line_step_s(
    model: StepModel, hardware: Hardware, running_req: np.ndarray, context_tok: np.ndarray | float, line: str,
    *, shares: Shares = step.PEAK, links: Mapping[int, Link] | None = None,
) -> np.ndarray:
    """Return the step of one line [s] at any running_req [req] and context [tok]; see `step.step_parts`."""
    levels = np.asarray(running_req, dtype="float64")
    context = np.broadcast_to(np.asarray(context_tok, dtype="float64"), levels.shape)
    return _total(step.step_parts(model, hardware, levels, context, line, shares=shares, links=links))


def strict_step_s(
    model: StepModel, hardware: Hardware, running_req: np.ndarray, context_tok: np.ndarray | float
) -> np.ndarray:
    """Return the lower bound of the step [s] at any running_req [req] and context [tok]."""
    return line_step_s(model, hardware, running_req, context_tok, "strict")


def knees_req(model: StepModel, hardware: Hardware, context_tok: float) -> dict[str, float]:
    """Return the running requests at which the regime turns [req]; see `Roofline`.

    Every matrix is taken as read whole, as it is beyond the knee of the experts.
    """
    many, context = np.array([MANY_REQ]), np.array([context_tok])
    main = model.forwards(many, context)[0]
    shared_bytes = sum(float(main.bytes_read[group][0]) for group in MATRICES if group in main.bytes_read)
    req_bytes = sum(float(main.bytes_read[group][0]) for group in PER_REQUEST if group in main.bytes_read) / MANY_REQ
    compute_s = float(np.sum(step.compute_s(main, hardware, MATRICES))) / MANY_REQ
    found = {}
    experts = main.bytes_read.get("experts", np.zeros(1))[0]
    if experts > 0:
        grid = np.geomspace(0.1, 1e5, 4000)
        share = model.forwards(grid, np.full(len(grid), context_tok))[0].bytes_read["experts"] / experts
        found["experts"] = float(np.interp(SATURATED_FRAC, share, grid))
    if req_bytes > 0:
        found["requests"] = shared_bytes / req_bytes
    if compute_s > 0:
        found["compute"] = shared_bytes / hardware.mem_bw_bytes_per_s / compute_s
    return found


def floor_s(model: StepModel) -> tuple[float, float]:
    """Return least and most time of the kernels of a step however little they move [s]; NaN for a model by hand."""
    if not isinstance(model, DecodeModel):
        return float("nan"), float("nan")
    one = np.ones(1)
    n_layers = round(sum(forward.count * forward.n_layers for forward in model.forwards(one, one)))
    has_experts = any(isinstance(layer.feed, HasExperts) for layer in model.spec.layers)
    kind = "compressed" if model.spec.has_compressed_attention else "experts" if has_experts else "dense"
    return step.latency_floor_s(n_layers, kind)


def _knows_routing(model: StepModel) -> bool:
    return not isinstance(model, HandModel) or model.has_experts


def _total(parts: Mapping[str, np.ndarray]) -> np.ndarray:
    return np.sum([*parts.values()], axis=0)


def _column(name: str, values: object, n_levels: int | None) -> np.ndarray:
    """Return values as floats, one per level; a single number is repeated."""
    column = np.asarray(values, dtype="float64")
    if column.ndim == 0 and n_levels is not None:
        column = np.full(n_levels, column)
    if column.ndim != 1 or (n_levels is not None and len(column) != n_levels):
        raise RooflogError(f"{name}: expected one number per level ({n_levels}), found shape {column.shape}")
    return column


def _line(levels: np.ndarray, parts: Mapping[str, np.ndarray], weight: np.ndarray) -> Line:
    """Fit the chord: weighted least squares of the step on the levels, where both are known."""
    step_s = _total(parts)
    by_part = {name: tuple(time_s.tolist()) for name, time_s in parts.items()}
    use = np.isfinite(step_s) & np.isfinite(weight)
    if len(np.unique(levels[use])) < 2:
        return Line(tuple(step_s.tolist()), float("nan"), float("nan"), by_part)
    x, y, w = levels[use], step_s[use], weight[use] / weight[use].sum()
    x_mean, y_mean = w @ x, w @ y
    slope = (w @ ((x - x_mean) * (y - y_mean))) / (w @ (x - x_mean) ** 2)
    return Line(tuple(step_s.tolist()), float(y_mean - slope * x_mean), float(slope), by_part)


def _regimes(parts: Mapping[str, np.ndarray], n_levels: int) -> tuple[str, ...]:
    """Name the largest part at each level; what compute asks beyond the bytes makes the whole compute-bound."""
    return tuple(max(parts, key=lambda name: np.nan_to_num(parts[name][i], nan=-1.0)) for i in range(n_levels))
