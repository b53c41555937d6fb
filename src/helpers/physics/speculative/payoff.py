"""What speculation gives: the parts of a round, and the rate with another accept length, draft or round.

Every figure starts from the measured round and adds what a model says of the *difference*; a measured round is never
held against an ideal one. A model is two functions of time, so that any step model can be asked.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from helpers.display import show
from helpers.physics.speculative.acceptance import accept_len_from, iid_acceptance
from helpers.physics.speculative.speculation import AcceptanceLine
from helpers.schema import Parameter, RooflogError


@dataclass(frozen=True)
class RoundModel:
    """What a model says of a round.

    Attributes
    ----------
    draft_step_s : callable
        running_req [req] -> time of one draft step [s].
    verify_s : callable
        running_req [req], tokens per request [tok] -> time of one forward of the target model [s]; with one token it
        is the step without speculation.
    source : str
        Which line this is: strict, expected, target, ... of which model and accelerator.
    steps_per_draft_tok : float
        Draft steps per drafted token: 1 of a chain, less where one step drafts several [1].
    """

    draft_step_s: Callable[[float], float]
    verify_s: Callable[[float, int], float]
    source: str = ""
    steps_per_draft_tok: float = 1.0

    def draft_s(self, running_req: float, n_draft_tok: int) -> float:
        """Return all draft steps of one round with ``n_draft_tok`` drafted tokens [s]."""
        return self.steps_per_draft_tok * n_draft_tok * self.draft_step_s(running_req)

    def round_s(self, running_req: float, n_draft_tok: int) -> float:
        """Return draft and verify of one round with ``n_draft_tok`` drafted tokens [s]."""
        return self.draft_s(running_req, n_draft_tok) + self.verify_s(running_req, n_draft_tok + 1)


@dataclass(frozen=True)
class MeasuredRound:
    """The round of a log at one level.

    Attributes
    ----------
    round : Parameter
        Its time and interval [s]: of `AcceptanceLine`, or step_s of LEVELS.
    running_req : float
        The level [req].
    accept_len : float
        Tokens per request and round there, bonus token included.
    n_draft_tok : int or None
        Drafted tokens per round, root not counted; None where not known.
    """

    round: Parameter
    running_req: float
    accept_len: float
    n_draft_tok: int | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be a round."""
        if not (self.round.value > 0 and self.running_req > 0 and self.accept_len >= 1):
            raise RooflogError(
                "measured round: expected a time and running_req above 0 and accept_len from 1, found "
                f"{self.round.value} s, {self.running_req} req, {self.accept_len} tok"
            )
        if self.n_draft_tok is not None:
            iid_acceptance(self.accept_len, self.n_draft_tok)

    @property
    def tok_per_s(self) -> float:
        """Rate of the level [tok/s]."""
        return self.running_req * self.accept_len / self.round.value


def measured_round(line: AcceptanceLine, n_draft_tok: int | None) -> MeasuredRound | None:
    """Return the round of a line with the tokens per round of its points together; None where it has no points.

    Parameters
    ----------
    line : AcceptanceLine
        Of a refused one the mean round is taken.
    n_draft_tok : int or None
        Drafted tokens per round, root not counted; 0 and None: not known.
    """
    if not line.accept_len:
        return None
    spent = line.mean_round if line.refused else line.round
    return MeasuredRound(spent, line.running_req, float(np.mean(line.accept_len)), n_draft_tok or None)


@dataclass(frozen=True)
class WhatIf:
    """The rate if one thing were different.

    Attributes
    ----------
    what : str
        The difference, in words.
    accept_len, round, tok_per_s : Parameter
        Tokens per request and round [tok], time of a round [s], rate of the level [tok/s].
    gain : float
        Rate over the measured one [1].
    assumptions, warnings : tuple of str
        What the figure rests on; what is doubtful.
    """

    what: str
    accept_len: Parameter
    round: Parameter
    tok_per_s: Parameter
    gain: float
    assumptions: tuple[str, ...]
    warnings: tuple[str, ...] = ()


def what_if(
    measured: MeasuredRound,
    *,
    accept_len: float | None = None,
    n_draft_tok: int | None = None,
    model: RoundModel | None = None,
    change_s: float = 0.0,
    what: str = "",
) -> WhatIf:
    """Say what the measured level would give with another accept length, draft length or round.

    Parameters
    ----------
    measured : MeasuredRound
        Where it starts from.
    accept_len : float, optional
        Tokens per request and round [tok]; by default the measured one, or with another draft the one that follows
        from an equal chance for every drafted token.
    n_draft_tok : int, optional
        Another draft length, root not counted; needs the measured one and ``model``.
    model : RoundModel, optional
        Says what the draft length changes, and how much slower than modelled the measured round is.
    change_s : float
        A further change of the round, modelled by the caller: FP8 weights, other hardware [s].
    what : str
        The difference in words, where ``change_s`` is given.

    Returns
    -------
    WhatIf

    Raises
    ------
    RooflogError
        A draft length without model or measured draft length, an accept length that no such draft can reach, or a
        change that leaves no round.

    Notes
    -----
    The round is the measured one plus the modelled change. Its interval holds the measured interval, and the change
    both as modelled and stretched by measured over modelled round. Accept length of a longer draft: between the
    measured one (no further token is ever accepted) and the one of an equal chance, which is high where later tokens
    are harder; of a shorter draft: between that of an equal chance and the measured one.
    """
    length, why = _accept_len(measured, accept_len, n_draft_tok)
    doubts = _reach(measured, length.value, n_draft_tok)
    change = change_s + _draft_change_s(measured, n_draft_tok, model)
    modelled_s = np.nan
    if model is not None and measured.n_draft_tok is not None:
        modelled_s = model.round_s(measured.running_req, measured.n_draft_tok)
    spent = _changed(measured.round, change, measured.round.value / modelled_s if modelled_s > 0 else 1.0)
    if change:
        source = f" ({model.source})" if model is not None and model.source else ""
        why.append(f"a modelled change of {show(change, 's')} of the round{source}, the rest of it as measured")
    if change and not modelled_s > 0:
        doubts.append("the whole round is not modelled: the interval does not hold how far the change may be off")
    words = [what, f"draft of {n_draft_tok} tok" if n_draft_tok is not None else "",
             f"accept length {accept_len:g}" if accept_len is not None else ""]
    n = measured.running_req
    rate = Parameter(
        "tok_per_s", n * length.value / spent.value, n * length.lo / spent.hi, n * length.hi / spent.lo, "tok/s"
    )
    base = f"the measured round of {show(measured.round.value, 's')} at running_req {n:g}"
    return WhatIf(", ".join(filter(None, words)) or "as measured", length, spent, rate,
                  rate.value / measured.tok_per_s, (base, *why), tuple(doubts))


def _draft_change_s(measured: MeasuredRound, n_draft_tok: int | None, model: RoundModel | None) -> float:
    """Return what another draft length changes of the round, as modelled [s]."""
    if n_draft_tok is None:
        return 0.0
    if model is None or measured.n_draft_tok is None:
        raise RooflogError("what-if: another draft length needs the measured n_draft_tok and a model of the round")
    n = measured.running_req
    return model.round_s(n, n_draft_tok) - model.round_s(n, measured.n_draft_tok)


def _reach(measured: MeasuredRound, accept_len: float, n_draft_tok: int | None) -> list[str]:
    """Refuse an accept length that the given draft cannot reach; doubt one that the measured draft cannot."""
    drafted = n_draft_tok if n_draft_tok is not None else measured.n_draft_tok
    if drafted is None or accept_len <= drafted + 1:
        return []
    if n_draft_tok is not None:
        raise RooflogError(
            f"what-if: expected at most {drafted + 1} tokens per round from a draft of {drafted}, found {accept_len:g}"
        )
    return [f"{accept_len:g} tokens per round need a longer draft than the {drafted} tok measured, and so a longer "
            "round: this is an upper end"]


def _accept_len(measured: MeasuredRound, given: float | None, n_draft_tok: int | None) -> tuple[Parameter, list[str]]:
    """Return the accept length with its bounds, and what it rests on."""
    old = measured.accept_len
    if given is not None:
        if not given >= 1:
            raise RooflogError(f"accept_len: expected at least 1, the bonus token included, found {given}")
        return Parameter("accept_len", given, given, given, "tok"), [f"an accept length of {given:g} tok, given"]
    if n_draft_tok is None or measured.n_draft_tok is None:
        return Parameter("accept_len", old, old, old, "tok"), [f"the measured accept length of {old:.4g} tok"]
    chance = iid_acceptance(old, measured.n_draft_tok)
    new = accept_len_from(chance, n_draft_tok)
    lo, hi = (old, new) if n_draft_tok >= measured.n_draft_tok else (new, min(old, n_draft_tok + 1.0))
    return Parameter("accept_len", new, lo, hi, "tok"), [
        f"every drafted token accepted with the same chance of {chance:.3g}, from {old:.4g} of "
        f"{measured.n_draft_tok} + 1 tok"
    ]


def _changed(measured: Parameter, change_s: float, stretch: float) -> Parameter:
    """Add a modelled change to a measured time; the interval also holds the change stretched as the whole is."""
    changes = (change_s, change_s * stretch)
    value, lo, hi = measured.value + change_s, measured.lo + min(changes), measured.hi + max(changes)
    if not (value > 0 and (np.isnan(lo) or lo > 0)):
        raise RooflogError(
            f"what-if: a change of {show(change_s, 's')} leaves nothing of a round of {show(measured.value, 's')}; "
            "check the bytes or the hardware of the change"
        )
    return Parameter("round_s", value, lo, hi, "s")


@dataclass(frozen=True)
class RoundParts:
    """A measured round, split as a model says; the parts add up to it.

    Attributes
    ----------
    measured : Parameter
        The round [s].
    draft, verify : Parameter
        All draft steps, and the target model's forward, as modelled [s].
    other : Parameter
        What neither explains [s]: scheduling, launches, sampling, kernels slower than modelled. Its interval holds
        those of all three, end against end: one achievable fraction moves draft and verify together.
    warnings : tuple of str
        Doubts a reader must see.
    """

    measured: Parameter
    draft: Parameter
    verify: Parameter
    other: Parameter
    warnings: tuple[str, ...] = ()

    def to_frame(self) -> pd.DataFrame:
        """Return one row per part: part, time_s, time_s_lo, time_s_hi [s], share_frac of the measured round [1]."""
        parts = {"draft": self.draft, "verify": self.verify, "other": self.other}
        return pd.DataFrame({
            "part": list(parts),
            "time_s": [part.value for part in parts.values()],
            "time_s_lo": [part.lo for part in parts.values()],
            "time_s_hi": [part.hi for part in parts.values()],
            "share_frac": [part.value / self.measured.value for part in parts.values()],
        })


def round_parts(measured: Parameter, draft: Parameter, verify: Parameter) -> RoundParts:
    """Split a measured round into modelled draft and verify, and the rest.

    Parameters
    ----------
    measured, draft, verify : Parameter
        Times with intervals [s]; those of the model from the peak to the lowest achievable fraction.
    """
    other = Parameter(
        "other_s", measured.value - draft.value - verify.value, measured.lo - draft.hi - verify.hi,
        measured.hi - draft.lo - verify.lo, "s",
    )
    if not other.hi < 0:
        return RoundParts(measured, draft, verify, other)
    doubt = (
        f"draft and verify alone take at least {show(draft.lo + verify.lo, 's')} as modelled, longer than the measured "
        f"round of {show(measured.value, 's')}: an input is wrong, most likely the draft length, the formats of the "
        "weights or the accelerator"
    )
    return RoundParts(measured, draft, verify, other, (doubt,))
