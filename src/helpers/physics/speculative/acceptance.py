"""Acceptance of drafted tokens: from accept length to chance and back, and which accept rate a log printed.

``n_draft_tok`` (D) counts drafted tokens without the root, so 1 <= accept_len <= D + 1; `drafted_tok` converts what an
engine is told.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from scipy.optimize import brentq

from helpers.schema import RooflogError

MAX_DRAFT_TOK = 64
"""Longest draft that is tried when the definition of the accept rate is looked for [tok]."""

MIN_AGREE_FRAC = 0.95
"""Share of printed pairs that a definition must explain; single windows hold counts too small to round well [1]."""

ACCEPT_RATES: dict[str, Callable[[np.ndarray, int], np.ndarray]] = {
    "len_over_verified": lambda accept_len, n_draft_tok: accept_len / (n_draft_tok + 1),
    "accepted_over_drafted": lambda accept_len, n_draft_tok: (accept_len - 1) / n_draft_tok,
}
"""Definitions of a printed accept rate. SGLang up to 0.5.10: accept_len / num_draft_tokens, root counted. SGLang from
0.5.12, and vLLM: accepted over drafted tokens (log-formats 1.3, 2.3)."""


def drafted_tok(engine: str | None, num_draft_tokens: int | None) -> int | None:
    """Return the drafted tokens per round without the root, from the engine's own setting.

    Parameters
    ----------
    engine : str or None
        sglang (counts the root as a draft token) or vllm (does not).
    num_draft_tokens : int or None
        As the engine was told: ``speculative_num_draft_tokens``, ``num_speculative_tokens``; 0 and None: not told.

    Returns
    -------
    int or None
        None where nothing was told.

    Raises
    ------
    RooflogError
        Another engine, or a setting that drafts nothing.
    """
    if not num_draft_tokens:
        return None
    roots = {"sglang": 1, "vllm": 0}
    if engine not in roots:
        raise RooflogError(
            f"engine: expected one of {', '.join(roots)} to count its draft tokens, found {engine!r}; give "
            "the fact engine"
        )
    if num_draft_tokens != int(num_draft_tokens) or num_draft_tokens <= roots[engine]:
        raise RooflogError(
            f"num_draft_tokens: expected a whole number above {roots[engine]} for {engine}, found {num_draft_tokens}"
        )
    return int(num_draft_tokens) - roots[engine]


def accept_len_from(acceptance_frac: float, n_draft_tok: int) -> float:
    """Return tokens per round if every drafted token is accepted with the same chance, one after the other.

    Parameters
    ----------
    acceptance_frac : float in [0, 1]
        Chance a of one drafted token, given that those before it were accepted.
    n_draft_tok : int
        Drafted tokens D, root not counted.

    Notes
    -----
    1 + a + ... + a^D = (1 - a^(D+1)) / (1 - a).

    Examples
    --------
    >>> accept_len_from(0.5, 3), accept_len_from(1.0, 3)
    (1.875, 4.0)
    """
    _check_draft(n_draft_tok)
    if not 0 <= acceptance_frac <= 1:
        raise RooflogError(f"acceptance_frac: expected a share from 0 to 1, found {acceptance_frac}")
    return float(np.sum(float(acceptance_frac) ** np.arange(n_draft_tok + 1)))


def iid_acceptance(accept_len: float, n_draft_tok: int) -> float:
    """Return the chance of one drafted token that explains an accept length: the inverse of `accept_len_from`.

    Parameters
    ----------
    accept_len : float
        Tokens per request and round, bonus token included.
    n_draft_tok : int
        Drafted tokens D of a chain, root not counted.

    Returns
    -------
    float
        In [0, 1]; 0 at accept_len 1, 1 at D + 1.

    Raises
    ------
    RooflogError
        ``accept_len`` outside 1 to D + 1: the draft was longer than given, or the bonus token is not counted.

    Examples
    --------
    >>> round(iid_acceptance(3.08, 3), 3)
    0.828
    """
    _check_draft(n_draft_tok)
    if not 1 <= accept_len <= n_draft_tok + 1:
        raise RooflogError(
            f"accept_len: expected 1 to {n_draft_tok + 1} for {n_draft_tok} drafted tokens, found {accept_len:g}; "
            "check the draft length (root not counted) and that the bonus token is counted"
        )
    if accept_len in (1, n_draft_tok + 1):
        return float(accept_len > 1)
    return float(brentq(lambda chance: accept_len_from(chance, n_draft_tok) - accept_len, 0.0, 1.0, xtol=1e-14))


def _check_draft(n_draft_tok: int) -> None:
    if n_draft_tok != int(n_draft_tok) or n_draft_tok < 1:
        raise RooflogError(f"n_draft_tok: expected a whole number from 1, found {n_draft_tok}")


@dataclass(frozen=True)
class AcceptRate:
    """Which definition of the printed accept rate explains the printed accept lengths.

    Attributes
    ----------
    definition : str or None
        A key of `ACCEPT_RATES`; None where none or more than one fits, or there is nothing to test.
    n_draft_tok : int or None
        The drafted tokens per round that it needs, root not counted; None where several fit.
    fits : tuple of (str, int)
        Every definition and draft length that explains the pairs.
    agree_frac : float
        Share of the pairs that the best one explains within their rounding [1]; NaN without pairs.
    n_pairs : int
        Pairs tested: those with an accepted token.
    reason : str
        Why, in words.
    """

    definition: str | None
    n_draft_tok: int | None
    fits: tuple[tuple[str, int], ...]
    agree_frac: float
    n_pairs: int
    reason: str


def accept_rate_definition(samples: pd.DataFrame, *, n_draft_tok: int | None = None) -> AcceptRate:
    """Find the definition of the accept rate that a log printed, from the log itself.

    Parameters
    ----------
    samples : DataFrame
        SAMPLES, or any table with accept_len and accept_rate_frac of the same line.
    n_draft_tok : int, optional
        The draft length if it is known (`drafted_tok`): only this one counts then; ``reason`` names others that fit
        where it does not.

    Returns
    -------
    AcceptRate

    Notes
    -----
    Both are means over the same rounds, so the right definition holds for every line within half a unit of the last
    printed digit of either. Lines on which nothing was accepted are left out: they fit every draft length.
    """
    pairs = samples[["accept_len", "accept_rate_frac"]].dropna()
    pairs = pairs[pairs["accept_len"].gt(1)]
    if pairs.empty:
        return AcceptRate(None, None, (), np.nan, 0, "the log prints no accept rate beside an accept length above 1")
    length, rate = pairs["accept_len"].to_numpy(float), pairs["accept_rate_frac"].to_numpy(float)
    half_length, half_rate = _half_unit(length), _half_unit(rate)
    agree: dict[tuple[str, int], float] = {}
    for name, definition in ACCEPT_RATES.items():
        for n_tok in range(1, MAX_DRAFT_TOK + 1):
            slope = abs(float(definition(np.array(2.0), n_tok) - definition(np.array(1.0), n_tok)))
            allowed = half_rate + slope * half_length + 1e-9
            agree[name, n_tok] = float((np.abs(definition(length, n_tok) - rate) <= allowed).mean())
    if n_draft_tok is None:
        return _judge(agree, len(pairs), "")
    given = f" with the {n_draft_tok} drafted tokens given"
    found = _judge({key: share for key, share in agree.items() if key[1] == n_draft_tok}, len(pairs), given)
    others = _fitting(agree)
    if found.fits or not others:
        return found
    words = ", ".join(f"{name} with {n_tok}" for name, n_tok in others[:3])
    return replace(found, reason=f"{found.reason}; without it: {words} drafted tokens")


def _fitting(agree: dict[tuple[str, int], float]) -> tuple[tuple[str, int], ...]:
    fits = (key for key, share in agree.items() if share >= MIN_AGREE_FRAC)
    return tuple(sorted(fits, key=lambda key: -agree[key]))


def _judge(agree: dict[tuple[str, int], float], n_pairs: int, given: str) -> AcceptRate:
    fits, best = _fitting(agree), max(agree.values(), default=0.0)
    lines = f"{n_pairs} line{'' if n_pairs == 1 else 's'}"
    if not fits:
        reason = (f"no definition explains more than {best:.0%} of {lines}{given}: drafts of changing length "
                  "(n-gram, adaptive), or a definition of its own")
        return AcceptRate(None, None, (), best, n_pairs, reason)
    names = sorted({name for name, _ in fits})
    if len(names) > 1:
        reason = f"{lines} cannot tell {' from '.join(names)}{given}; more lines or the draft length would"
        return AcceptRate(None, None, fits, best, n_pairs, reason)
    drafts = sorted(n_tok for _, n_tok in fits)
    span = f"{drafts[0]}" if len(drafts) == 1 else f"{drafts[0]} to {drafts[-1]}"
    reason = f"only {names[0]} explains {best:.0%} of {lines}, with {span} drafted tokens per round"
    return AcceptRate(names[0], drafts[0] if len(drafts) == 1 else None, fits, best, n_pairs, reason)


def _half_unit(values: np.ndarray) -> float:
    """Return half a unit of the last digit that was printed; 0 where the numbers were not rounded."""
    for decimals in range(2, 6):
        if np.allclose(values, np.round(values, decimals), rtol=0, atol=1e-9):
            return 0.5 * 10.0**-decimals
    return 0.0
