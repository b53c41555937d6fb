"""The confidence band of a fitted law: how far its curve could move, level by level."""

from __future__ import annotations

import numpy as np
import pandas as pd
from scipy.stats import t as student_t

from helpers.laws import gates
from helpers.laws.candidates import known_laws
from helpers.laws.line import fit_line
from helpers.schema import LEVELS, LawFit, check


def confidence_band(levels: pd.DataFrame, law: LawFit, *, n_points: int = 60) -> pd.DataFrame:
    """Return the pointwise confidence band of a law between its lowest and highest level.

    Parameters
    ----------
    levels : DataFrame, schema LEVELS
        The levels that the law was fitted to.
    law : LawFit
        From `fit_laws`; its confidence is used.
    n_points : int
        Points of the band.

    Returns
    -------
    DataFrame
        running_req [req], step_s_lo, step_s_hi [s]. Empty where the law is refused, has no degree of freedom, rests on
        intervals and not on levels, or needs facts of the model to be fitted again (``moe``).

    Notes
    -----
    The straight line: exact, from the covariance of its parameters. Other laws: linearised in log space as their
    parameter intervals are, parameters at the edge of their range held there.
    """
    check(levels, LEVELS)
    empty = pd.DataFrame({"running_req": [], "step_s_lo": [], "step_s_hi": []}, dtype="float64")
    if law.refused is not None or law.predict_step_s is None or law.dof < 1:
        return empty
    points = gates.distinct_levels(levels[levels["is_fitted"]])
    if len(points) <= len(law.parameters):  # the law was fitted to intervals, not to levels
        return empty
    running_req, step_s = points["running_req"].to_numpy(float), points["step_s"].to_numpy(float)
    grid_req = np.linspace(law.running_req_min, law.running_req_max, n_points)
    middle_s = law.predict_step_s(grid_req)
    if law.law == "linear":
        line = fit_line(running_req, step_s, confidence=law.confidence)
        design = np.column_stack([np.ones_like(grid_req), grid_req])
        half_s = line.quantile * np.sqrt(np.einsum("ij,jk,ik->i", design, line.covariance, design))
        return pd.DataFrame({"running_req": grid_req, "step_s_lo": middle_s - half_s, "step_s_hi": middle_s + half_s})
    if law.law == "roofline":
        scale = law["scale"]
        return pd.DataFrame({"running_req": grid_req, "step_s_lo": middle_s * (scale.lo / scale.value),
                             "step_s_hi": middle_s * (scale.hi / scale.value)}).dropna(ignore_index=True)
    half = _relative_half_width(law, running_req, step_s, grid_req)
    if half is None:
        return empty
    lo_s, hi_s = middle_s * np.exp(-half), middle_s * np.exp(half)
    return pd.DataFrame({"running_req": grid_req, "step_s_lo": lo_s, "step_s_hi": hi_s})


def _relative_half_width(
    law: LawFit, running_req: np.ndarray, step_s: np.ndarray, grid_req: np.ndarray
) -> np.ndarray | None:
    """Return the half width of the band in log space along the grid; None for a law that cannot be rebuilt."""
    known = known_laws().get(law.law)
    theta = np.array([parameter.value for parameter in law.parameters])
    free = np.flatnonzero(theta > 0)
    if known is None or len(free) == 0:
        return None
    # The knee moves the band only where the curve bends; a relative step of 1e-5 keeps its derivative one-sided.
    change = 1e-5
    shifted = theta * (1 + change * np.eye(len(theta))[free])

    def gradient(at_req: np.ndarray) -> np.ndarray:
        moved, base = known.predict(shifted, at_req), known.predict(theta[None, :], at_req)
        return np.log(moved / base).T / change

    residual = np.log(known.predict(theta[None, :], running_req)[0] / step_s)
    jacobian = gradient(running_req)
    covariance = float(residual @ residual) / law.dof * np.linalg.pinv(jacobian.T @ jacobian)
    along = gradient(grid_req)
    quantile = float(student_t.ppf((1 + law.confidence) / 2, law.dof))
    return quantile * np.sqrt(np.einsum("ij,jk,ik->i", along, covariance, along))
