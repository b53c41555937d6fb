"""Where speculation stops to pay: the load at which a round gives no more than plain steps would."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from scipy.optimize import brentq

from helpers.physics.speculative.payoff import MeasuredRound, RoundModel
from helpers.schema import LawFit, RooflogError

COLUMNS = ("running_req", "gain", "with_tok_per_s", "without_tok_per_s")

SHOWN_POINTS = 8
"""Loads at which two laws are compared."""

SEARCH_POINTS = 256
"""Points between the lowest and the highest level where a change of sign is looked for."""


@dataclass(frozen=True)
class BreakEven:
    """Where speculation stops to pay.

    Attributes
    ----------
    running_req, running_req_lo, running_req_hi : float or None
        The load at which the rate is the same with and without it [req], and the loads at which that is
        so at either end of the uncertainty; None where it is not inside the levels.
    reason : str
        What holds inside the levels, in words.
    levels : DataFrame
        running_req [req], gain [1] (rate with over rate without), with_tok_per_s, without_tok_per_s [tok/s].
    is_measured : bool
        Both rates come from logs; False: that without speculation is measured round minus modelled difference.
    basis : str
        What the rates rest on, in words.
    warnings : tuple of str
        Doubts a reader must see.
    """

    running_req: float | None
    running_req_lo: float | None
    running_req_hi: float | None
    reason: str
    levels: pd.DataFrame
    is_measured: bool
    warnings: tuple[str, ...] = ()
    basis: str = "both rates are measured"


def break_even_running_req(
    round_s: Callable[[float], float],
    accept_len: float | Callable[[float], float],
    plain_step_s: Callable[[float], float],
    levels: Sequence[float],
    *,
    is_measured: bool,
    uncertainty_frac: float = 0.0,
) -> BreakEven:
    """Find the running_req at which N x accept_len / round equals N / plain step.

    Parameters
    ----------
    round_s, plain_step_s : callable
        running_req [req] -> round with, step without speculation [s]: laws of two logs, or for the second
        `plain_step_from`.
    accept_len : float or callable
        Tokens per request and round, the same at every level or by running_req.
    levels : sequence of float
        The levels that both hold at [req]; nothing is said beyond the lowest and the highest.
    is_measured : bool
        Both are laws of logs.
    uncertainty_frac : float
        Relative uncertainty of the gain; gives the ends of ``running_req`` [1].

    Returns
    -------
    BreakEven

    Raises
    ------
    RooflogError
        Fewer than two distinct levels, or a time that is not positive at one of them.
    """
    reqs = np.unique(np.asarray(levels, dtype="float64"))
    if len(reqs) < 2 or not reqs[0] > 0:
        raise RooflogError(f"break-even: expected at least two distinct levels above 0 req, found {reqs.tolist()}")
    length = accept_len if callable(accept_len) else (lambda _: accept_len)

    def gain(running_req: float) -> float:
        spent_s, plain_s = float(round_s(running_req)), float(plain_step_s(running_req))
        if not (spent_s > 0 and plain_s > 0):
            raise RooflogError(
                f"break-even: expected times above 0 at running_req {running_req:g}, found a round of {spent_s:g} s "
                f"and a step without speculation of {plain_s:g} s"
            )
        return float(length(running_req)) * plain_s / spent_s

    table = pd.DataFrame({
        "running_req": reqs,
        "gain": [gain(n) for n in reqs],
        "with_tok_per_s": [n * length(n) / round_s(n) for n in reqs],
        "without_tok_per_s": [n / plain_step_s(n) for n in reqs],
    }, dtype="float64")
    at = _crossings(gain, reqs, 1.0)
    if not at:
        return BreakEven(None, None, None, _reason(table, at), table, is_measured)
    offsets = (uncertainty_frac, -uncertainty_frac) if uncertainty_frac else ()
    beside = [n for offset in offsets for n in _crossings(gain, reqs, 1 + offset)]
    below = max((n for n in beside if n <= at[0]), default=None)
    above = min((n for n in beside if n >= at[0]), default=None)
    seen = ", ".join(f"{n:.3g}" for n in at[:5])
    doubts = (f"the gain passes 1 at {len(at)} loads ({seen} req): the first is given",) if len(at) > 1 else ()
    return BreakEven(at[0], below, above, _reason(table, at), table, is_measured, doubts)


def _crossings(gain: Callable[[float], float], reqs: np.ndarray, wanted: float) -> list[float]:
    """Return every load between the levels at which the gain passes a value, lowest first."""
    grid = np.unique(np.concatenate([reqs, np.geomspace(reqs[0], reqs[-1], SEARCH_POINTS).clip(reqs[0], reqs[-1])]))
    off = np.array([gain(n) for n in grid]) - wanted
    found = [float(n) for n, value in zip(grid, off, strict=True) if value == 0]
    changes = np.flatnonzero(off[:-1] * off[1:] < 0)
    found += [float(brentq(lambda n: gain(n) - wanted, grid[i], grid[i + 1])) for i in changes]
    return sorted(found)


def _reason(table: pd.DataFrame, at: list[float]) -> str:
    first, last = table.iloc[0], table.iloc[-1]
    least, most = f"{first['running_req']:g}", f"{last['running_req']:g}"
    ends = (f"{first['gain']:.3g} times the rate without it at running_req {least}, {last['gain']:.3g} times at {most}")
    if at:
        return f"the gain passes 1 at running_req {at[0]:.3g} ({ends})"
    pays = "pays at every load" if first["gain"] > 1 else "pays at no load"
    return f"speculation {pays} from running_req {least} to {most} ({ends})"


def break_even_measured(speculative: LawFit, plain: LawFit, accept_len: float) -> BreakEven:
    """Find the break-even between the laws of two logs, with and without speculation.

    Parameters
    ----------
    speculative, plain : LawFit
        Round and step over running_req; each holds between its lowest and its highest level only.
    accept_len : float
        Tokens per request and round of the first log.

    Returns
    -------
    BreakEven
        Its interval: the residuals of both laws. Without levels, and with the reason, where a law is refused or the
        loads of the logs do not overlap.
    """
    empty = pd.DataFrame({name: [] for name in COLUMNS}, dtype="float64")
    for name, law in (("with", speculative), ("without", plain)):
        if law.refused or law.predict_step_s is None:
            reason = f"no law of the log {name} speculation: {law.refused or 'it predicts nothing'}"
            return BreakEven(None, None, None, reason, empty, True)
    least = max(speculative.running_req_min, plain.running_req_min)
    most = min(speculative.running_req_max, plain.running_req_max)
    if not least < most:
        ranges = [f"{law.running_req_min:g} to {law.running_req_max:g} req" for law in (speculative, plain)]
        reason = f"the loads of the logs do not overlap: {ranges[0]} with, {ranges[1]} without speculation"
        return BreakEven(None, None, None, reason, empty, True)
    uncertainty = float(np.hypot(*np.nan_to_num([speculative.rms_error_frac, plain.rms_error_frac])))
    found = break_even_running_req(
        _at(speculative), accept_len, _at(plain), np.geomspace(least, most, SHOWN_POINTS).clip(least, most).tolist(),
        is_measured=True, uncertainty_frac=uncertainty,
    )
    return replace(found, basis=f"both rates are laws of logs, whose residuals together are {uncertainty:.2%}")


def _at(law: LawFit) -> Callable[[float], float]:
    """Return a law as a function of one load."""
    predict = law.predict_step_s
    assert predict is not None
    return lambda running_req: float(predict(np.array([running_req]))[0])


def plain_step_from(
    round_s: Callable[[float], float], model: RoundModel, n_draft_tok: int, *, stretch: float = 1.0
) -> Callable[[float], float]:
    """Return the step without speculation: the measured round minus the modelled difference.

    Parameters
    ----------
    round_s : callable
        running_req [req] -> measured round [s].
    model : RoundModel
        Its ``verify_s`` at one token is the modelled step without speculation.
    n_draft_tok : int
        Drafted tokens of the measured round, root not counted.
    stretch : float
        Factor on the difference: 1 as modelled, or measured over modelled round [1].
    """
    def plain_s(running_req: float) -> float:
        saved_s = model.round_s(running_req, n_draft_tok) - model.verify_s(running_req, 1)
        return float(round_s(running_req)) - stretch * saved_s

    return plain_s


def round_from(measured: MeasuredRound, model: RoundModel, *, stretch: float = 1.0) -> Callable[[float], float]:
    """Return the round at other loads: the measured one plus the modelled difference to its level.

    Parameters
    ----------
    measured : MeasuredRound
        Its draft length must be known.
    model : RoundModel
    stretch : float
        Factor on the difference: 1 as modelled, or measured over modelled round [1].
    """
    drafted = _drafted(measured)
    at_level_s = model.round_s(measured.running_req, drafted)
    return lambda running_req: measured.round.value + stretch * (model.round_s(running_req, drafted) - at_level_s)


def break_even_modelled(
    measured: MeasuredRound, model: RoundModel, levels: Sequence[float], *,
    round_s: Callable[[float], float] | None = None,
) -> BreakEven:
    """Find the break-even from one log with speculation and a model of the difference.

    Parameters
    ----------
    measured : MeasuredRound
        A level of the log.
    model : RoundModel
    levels : sequence of float
        Loads to look at [req].
    round_s : callable, optional
        running_req [req] -> measured round [s], the law of the log; by default `round_from`.

    Returns
    -------
    BreakEven
        Its interval: the modelled differences as they are, and stretched by measured over modelled round.

    Raises
    ------
    RooflogError
        The draft length of the measured round is not known, or as `break_even_running_req`.
    """
    drafted = _drafted(measured)
    ratio = measured.round.value / model.round_s(measured.running_req, drafted)

    def found(stretch: float) -> BreakEven:
        spent_s = round_s or round_from(measured, model, stretch=stretch)
        plain_s = plain_step_from(spent_s, model, drafted, stretch=stretch)
        return break_even_running_req(spent_s, measured.accept_len, plain_s, levels, is_measured=False)

    as_modelled, stretched = found(1.0), found(ratio)
    basis = _basis(measured, model, has_law=round_s is not None)
    at, other = as_modelled.running_req, stretched.running_req
    if at is not None and other is not None:
        return replace(as_modelled, basis=basis, running_req_lo=min(at, other), running_req_hi=max(at, other))
    doubt = f"with the modelled differences {ratio:.3g} times as large, as the whole round is: {stretched.reason}"
    more = () if at == other else (doubt,)
    return replace(as_modelled, basis=basis, warnings=(*as_modelled.warnings, *more))


def _basis(measured: MeasuredRound, model: RoundModel, *, has_law: bool) -> str:
    base = f"the measured round at running_req {measured.running_req:g} and its modelled change"
    source = f" ({model.source})" if model.source else ""
    return (f"with speculation: {'the law of the log' if has_law else base}; without: that minus the modelled "
            f"difference{source}; accept length {measured.accept_len:.3g} at every load")


def _drafted(measured: MeasuredRound) -> int:
    if measured.n_draft_tok is None:
        raise RooflogError("break-even: expected the draft length; give num_draft_tokens as the engine counts it")
    return measured.n_draft_tok
