"""The laws that compete for the levels, each fitted in log space (relative errors) with the signs physics allows.

All fits are batched over masks: a mask keeps some levels and leaves others out, so that every leave-one-level-out fit
of a law is one call. Laws that are linear in non-negative parameters (a cone) are solved exactly by trying each subset
of parameters that may be positive; the two hinges add a search over the knee.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import combinations

import numpy as np

LOG_STEPS = 15
SETTLED_FRAC = 1e-7
"""Gauss-Newton steps from relative to log residuals at most, and the relative move at which they stop."""

TINY_FRAC = 1e-12
"""A law may predict 0 s where it is not fitted; its log is then taken of this share of the measured step."""

KNEES_PER_GAP = 3
"""Trial knees of the plateau-then-line law per gap between levels, spaced evenly in log running_req."""

Basis = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Law:
    """One candidate: how to fit it to masked levels and how to predict from its parameters.

    Attributes
    ----------
    name : str
        As in `schema.LawFit.law`.
    parameters : tuple of (name, unit)
        In the order of theta.
    slope : str
        Parameter that is the step added per request at high load; empty if the law has none.
    contains : frozenset of str
        Laws that are special cases of this one.
    fit : callable (running_req (n,), step_s (n,), masks (m, n)) -> theta (m, p)
    predict : callable (theta (m, p), running_req (k,)) -> step_s (m, k)
    """

    name: str
    parameters: tuple[tuple[str, str], ...]
    fit: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray] = field(repr=False)
    predict: Callable[[np.ndarray, np.ndarray], np.ndarray] = field(repr=False)
    slope: str = ""
    contains: frozenset[str] = frozenset()

    @property
    def n_parameters(self) -> int:
        """Number of free parameters."""
        return len(self.parameters)


def known_laws(
    experts: tuple[int, int] | None = None, roofline_step_s: Callable[[np.ndarray], np.ndarray] | None = None
) -> dict[str, Law]:
    """Return the candidate laws by name.

    Parameters
    ----------
    experts : (E, k), optional
        Routed experts and experts per token; adds ``moe``.
    roofline_step_s : callable running_req [req] -> step [s], optional
        The roofline of the deployment; adds ``roofline`` with one free scale.

    Returns
    -------
    dict
        Fewest parameters first.

    Notes
    -----
    ``sqrt`` (a + b N + c sqrt(N)) is an empirical concave law: it fits public measured sweeps of MoE models as well as
    expert coverage does and needs no knowledge of the model.
    """
    one, slope = ("intercept_s", "s"), ("slope_s_per_req", "s/req")
    laws = [
        _cone("constant", (("step_s", "s"),), lambda n: np.stack([np.ones_like(n)], axis=-1)),
        _cone("linear", (one, slope), lambda n: np.stack([np.ones_like(n), n], axis=-1),
              slope="slope_s_per_req", contains={"constant"}),
        Law("hinge", (("plateau_s", "s"), slope), _fit_hinge, _predict_hinge, "slope_s_per_req",
            frozenset({"constant"})),
        _cone("sqrt", (one, slope, ("sqrt_s_per_sqrt_req", "s/req^0.5")),
              lambda n: np.stack([np.ones_like(n), n, np.sqrt(n)], axis=-1),
              slope="slope_s_per_req", contains={"constant", "linear"}),
        Law("hinge3", (("plateau_s", "s"), slope, ("knee_req", "req")), _fit_hinge3, _predict_hinge3,
            "slope_s_per_req", frozenset({"constant", "linear", "hinge"})),
        _cone("quadratic", (one, slope, ("quadratic_s_per_req2", "s/req^2")),
              lambda n: np.stack([np.ones_like(n), n, n * n], axis=-1), contains={"constant", "linear"}),
        _cone("usl", (("first_s", "s"), ("contention_s_per_req", "s/req"), ("coherency_s_per_req2", "s/req^2")),
              lambda n: np.stack([np.ones_like(n), n - 1, n * (n - 1)], axis=-1),
              contains={"constant", "linear", "quadratic"}),
    ]
    if experts is not None:
        n_experts, per_token = experts
        missed_frac = 1 - per_token / n_experts
        laws.append(
            _cone("moe", (one, slope, ("experts_s", "s")),
                  lambda n: np.stack([np.ones_like(n), n, 1 - missed_frac**n], axis=-1),
                  slope="slope_s_per_req", contains={"constant", "linear"})
        )
    if roofline_step_s is not None:
        laws.append(_cone("roofline", (("scale", "1"),), lambda n: np.asarray(roofline_step_s(n), float)[..., None]))
    return {law.name: law for law in sorted(laws, key=lambda law: law.n_parameters)}


def _cone(
    name: str,
    parameters: tuple[tuple[str, str], ...],
    basis: Basis,
    slope: str = "",
    contains: Iterable[str] = (),
) -> Law:
    """Build a law that is a sum of basis functions with non-negative coefficients."""
    return Law(
        name,
        parameters,
        lambda running_req, step_s, masks: fit_cone(basis(running_req), step_s, masks),
        lambda theta, running_req: theta @ basis(running_req).T,
        slope,
        frozenset(contains),
    )


def fit_cone(basis: np.ndarray, step_s: np.ndarray, masks: np.ndarray) -> np.ndarray:
    """Fit non-negative coefficients to log step_s under each mask.

    Parameters
    ----------
    basis : array (n, p) or (m, n, p)
        Basis functions at the levels, non-negative.
    step_s : array (n,)
        Positive.
    masks : array (m, n)
        1 = level used, 0 = left out.

    Returns
    -------
    array (m, p)
        Least squares of log(basis @ theta) - log(step_s): Gauss-Newton, each step an exact non-negative least squares.
    """
    relative = np.broadcast_to(basis / step_s[:, None], (*masks.shape, basis.shape[-1]))
    theta = _nonnegative_least_squares(relative, np.ones(masks.shape), masks)
    for _ in range(LOG_STEPS):
        model = np.maximum((relative @ theta[..., None])[..., 0], TINY_FRAC)
        following = _nonnegative_least_squares(relative / model[..., None], 1 - np.log(model), masks)
        # Far from the solution a full step can drive a level to 0, where the log ends: half a step instead.
        collapses = ((relative @ following[..., None])[..., 0] < 0.2 * model).any(axis=-1)
        following = np.where(collapses[:, None], (theta + following) / 2, following)
        done = bool((np.abs(following - theta) <= SETTLED_FRAC * theta).all())
        theta = following
        if done:
            break
    return theta


def _nonnegative_least_squares(design: np.ndarray, target: np.ndarray, masks: np.ndarray) -> np.ndarray:
    """Solve masked non-negative least squares for a batch by trying every subset of positive coefficients."""
    masked = design * masks[..., None]
    norm = np.sqrt((masked**2).sum(axis=-2))
    scaled = masked / np.where(norm > 0, norm, 1.0)[:, None, :]
    gram = scaled.swapaxes(-1, -2) @ scaled
    moment = (scaled * target[..., None]).sum(axis=-2)
    n_masks, p = moment.shape
    best, best_theta = np.full(n_masks, np.inf), np.zeros((n_masks, p))
    for size in range(p, 0, -1):
        for chosen in combinations(range(p), size):
            index = np.array(chosen)
            block = gram[:, index[:, None], index] + 1e-14 * np.eye(size)
            part = np.linalg.solve(block, moment[:, index, None])[..., 0]
            # |target - design theta|^2 up to a constant, as a sum of squares would need the residual.
            loss = -(part * moment[:, index]).sum(axis=-1)
            better = (part >= 0).all(axis=-1) & (loss < best)
            best = np.where(better, loss, best)
            full = np.zeros((n_masks, p))
            full[:, index] = part
            best_theta = np.where(better[:, None], full, best_theta)
        if size == p and np.isfinite(best).all():
            break  # no constraint binds under any mask
    return best_theta / np.where(norm > 0, norm, 1.0)


def _predict_hinge(theta: np.ndarray, running_req: np.ndarray) -> np.ndarray:
    return np.maximum(theta[:, :1], theta[:, 1:] * running_req)


def _fit_hinge(running_req: np.ndarray, step_s: np.ndarray, masks: np.ndarray) -> np.ndarray:
    """Fit max(p, q N) exactly: for each knee between or at levels the log fit is a mean."""
    log_step, log_req = np.log(step_s), np.log(running_req)
    n = len(step_s)
    flat = np.arange(n) < np.arange(n + 1)[:, None]
    on_flat, on_line = masks[:, None, :] * flat, masks[:, None, :] * ~flat
    plateau = _mean(log_step, on_flat)
    slope = _mean(log_step - log_req, on_line)
    # A side without levels does not bind: put its branch on the other one's value at the outermost level.
    plateau = np.where(on_flat.sum(axis=-1) > 0, plateau, slope + log_req[0])
    slope = np.where(on_line.sum(axis=-1) > 0, slope, plateau - log_req[-1])
    at_level = _mean(log_step - np.maximum(log_req - log_req[:, None], 0), np.repeat(masks[:, None, :], n, axis=1))
    plateau = np.concatenate([plateau, at_level], axis=1)
    slope = np.concatenate([slope, at_level - log_req], axis=1)
    model = np.maximum(plateau[..., None], slope[..., None] + log_req)
    best = (masks[:, None, :] * (model - log_step) ** 2).sum(axis=-1).argmin(axis=1)
    rows = np.arange(len(masks))
    return np.exp(np.column_stack([plateau[rows, best], slope[rows, best]]))


def _mean(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    return (weights * values).sum(axis=-1) / np.maximum(weights.sum(axis=-1), 1e-300)


def _predict_hinge3(theta: np.ndarray, running_req: np.ndarray) -> np.ndarray:
    return theta[:, :1] + theta[:, 1:2] * np.maximum(running_req - theta[:, 2:], 0)


def _fit_hinge3(running_req: np.ndarray, step_s: np.ndarray, masks: np.ndarray) -> np.ndarray:
    """Fit a plateau, then a line from a knee on; the knee is searched on a grid."""
    log_req = np.log(running_req)
    shares = np.arange(KNEES_PER_GAP) / KNEES_PER_GAP
    knees = np.exp(np.unique(np.concatenate([log_req[:-1] + share * np.diff(log_req) for share in shares])))
    above = np.maximum(running_req - knees[:, None], 0)
    basis = np.stack([np.ones_like(above), above], axis=-1)
    n_masks, n_knees = len(masks), len(knees)
    # One batch over (knee, mask): knees outermost.
    theta = fit_cone(np.repeat(basis, n_masks, axis=0), step_s, np.tile(masks, (n_knees, 1)))
    theta = np.column_stack([theta, np.repeat(knees, n_masks)])
    model = _predict_hinge3(theta, running_req) / step_s
    loss = np.tile(masks, (n_knees, 1)) * np.log(np.maximum(model, TINY_FRAC)) ** 2
    best = loss.sum(axis=-1).reshape(n_knees, n_masks).argmin(axis=0)
    return theta.reshape(n_knees, n_masks, 3)[best, np.arange(n_masks)]
