"""What a fit says: a law with its parameters, intervals, warnings and refusals."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True)
class Parameter:
    """A fitted parameter in base units with its interval; lo and hi are NaN where none can be given."""

    name: str
    value: float
    lo: float
    hi: float
    unit: str


@dataclass(frozen=True)
class LawFit:
    """A model of step time over running requests, with what it can and cannot claim.

    Attributes
    ----------
    law : str
        constant, linear, sqrt, moe, hinge, quadratic or roofline.
    parameters : tuple of Parameter
        Base units (s, s/req, ...). Empty when refused.
    dof : int
        Levels minus parameters; the t quantile of every interval uses it.
    n_levels : int
        Levels fitted.
    running_req_min, running_req_max : float
        Range of the data [req].
    loo_error_frac : float
        Median leave-one-level-out relative error at inner levels [1]; NaN below four levels.
    loo_error_top_frac : float
        The same for the highest level predicted from the ones below [1].
    rms_error_frac : float
        Relative residual of the fit [1].
    asymptote_tok_per_s, asymptote_tok_per_s_lo, asymptote_tok_per_s_hi : float
        1 / slope of the linear law; NaN where the law has no asymptote or the slope's interval holds 0.
    half_load_req, half_load_req_lo, half_load_req_hi : float
        running_req at which half of the asymptote is reached, intercept / slope [req].
    warnings : tuple of str
        Doubts a reader must see.
    refused : str or None
        Why no law is claimed; the levels stay.
    """

    law: str
    parameters: tuple[Parameter, ...] = ()
    dof: int = 0
    n_levels: int = 0
    running_req_min: float = np.nan
    running_req_max: float = np.nan
    loo_error_frac: float = np.nan
    loo_error_top_frac: float = np.nan
    rms_error_frac: float = np.nan
    asymptote_tok_per_s: float = np.nan
    asymptote_tok_per_s_lo: float = np.nan
    asymptote_tok_per_s_hi: float = np.nan
    half_load_req: float = np.nan
    half_load_req_lo: float = np.nan
    half_load_req_hi: float = np.nan
    confidence: float = 0.95
    warnings: tuple[str, ...] = ()
    refused: str | None = None
    predict_step_s: Callable[[np.ndarray], np.ndarray] | None = field(default=None, compare=False, repr=False)

    def __getitem__(self, name: str) -> Parameter:
        """Return a parameter by name; KeyError names the ones that exist."""
        for parameter in self.parameters:
            if parameter.name == name:
                return parameter
        raise KeyError(f"{self.law} has no parameter {name!r}; it has {[p.name for p in self.parameters]}")

    def is_extrapolated(self, running_req: float) -> bool:
        """Tell whether a prediction at running_req [req] leaves the range of the data."""
        return not self.running_req_min <= running_req <= self.running_req_max


@dataclass(frozen=True)
class Fits:
    """Every law tried on one set of levels: the straight line, the selected law, and why.

    Attributes
    ----------
    linear : LawFit
        Relative-weighted straight line (parameters ``intercept_s``, ``slope_s_per_req``), always tried.
    selected : LawFit
        The law the data support best; the linear one where nothing better can be told.
    candidates : tuple of LawFit
        All laws tried, the selected one among them.
    selection : str
        The rule that selected, in words.
    is_named : bool
        The levels support calling the selected law by its name; False: it is used, not claimed.
    crosschecks : mapping
        Name -> (intercept_s, slope_s_per_req): ols, throughput_space, theil_sen, huber_log, naive_ticks.
    context : LawFit or None
        Joint fit in running_req and context where separable; its ``refused`` says why not.
    prediction : LawFit or None
        The law to predict with. It makes no claim about the server; its left-out errors are those of the whole rule,
        the law chosen again without the level left out. None where no law is fitted.
    rounding_envelope : mapping
        Hand-typed tables only: ``intercept_s`` and ``slope_s_per_req`` -> (lo, hi) that the last printed digit allows.
    """

    linear: LawFit
    selected: LawFit
    candidates: tuple[LawFit, ...]
    selection: str
    is_named: bool = True
    crosschecks: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    context: LawFit | None = None
    prediction: LawFit | None = None
    rounding_envelope: Mapping[str, tuple[float, float]] = field(default_factory=dict)
