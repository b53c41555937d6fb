"""Tables and sentences about speculation: rounds, acceptance, parts of a round, what another choice would give."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from helpers.display import level_key, requests, show
from helpers.physics.speculative.acceptance import AcceptRate, iid_acceptance
from helpers.physics.speculative.break_even import BreakEven
from helpers.physics.speculative.payoff import RoundParts, WhatIf
from helpers.physics.speculative.speculation import AcceptanceLine
from helpers.readings.text import ends, known
from helpers.schema import LEVELS, Parameter, check

MAX_POINTS = 12
"""Points of a line that are listed one by one; more are shown in `MAX_POINTS` groups of neighbours."""

ACCEPT_RATE_WORDS = {
    "len_over_verified": "accept length over verified tokens (root counted): an accept length of 1 is not 0",
    "accepted_over_drafted": "accepted over drafted tokens: 0 if no draft was accepted, 1 if all were",
}
"""Definition of the accept rate -> what it means."""


def rounds_table(levels: pd.DataFrame) -> pd.DataFrame:
    """Return the round at each level: tokens per round, time with interval, rate of the level and of one request."""
    check(levels, LEVELS)
    used = levels[levels["step_s"].notna() & levels["accept_len"].notna()].sort_values(["running_req", "population"])
    per_req = used["accept_len"] / used["step_s"]
    return pd.DataFrame(
        {
            "running requests [req]": used["running_req"].map(level_key),
            "tokens per round": [known(value) for value in used["accept_len"]],
            "round [ms]": [_interval(s, lo, hi) for s, lo, hi in
                           zip(used["step_s"], used["step_s_lo"], used["step_s_hi"], strict=True)],
            "decode [tok/s]": [show(rate) for rate in used["running_req"] * per_req],
            "one request [tok/s]": [show(rate) for rate in per_req],
        }
    ).reset_index(drop=True)


def _interval(value: float, lo: float, hi: float) -> str:
    return show(value, "s", *ends(lo, hi)).replace(" ms", "")


def acceptance_table(line: AcceptanceLine) -> pd.DataFrame:
    """Return the points of the line with the round that each implies; many are averaged in groups of neighbours."""
    points = pd.DataFrame({"accept_len": line.accept_len, "rate": line.decode_tok_per_s})
    points["round_s"] = line.running_req * points["accept_len"] / points["rate"]
    points = points.sort_values("accept_len", ignore_index=True)
    if len(points) > MAX_POINTS:
        groups = points.groupby(points.index * MAX_POINTS // len(points))
        points = groups.mean().assign(n=groups.size())
    # A group's rate is that of its mean length and round: rates are no means of rates.
    rate = line.running_req * points["accept_len"] / points["round_s"]
    table = pd.DataFrame(
        {
            "tokens per round": [show(value) for value in points["accept_len"]],
            "decode [tok/s]": [show(value) for value in rate],
            "round [ms]": [_interval(value, np.nan, np.nan) for value in points["round_s"]],
        }
    )
    return table.assign(intervals=points["n"].to_numpy()) if "n" in points else table


def acceptance_line_reading(line: AcceptanceLine) -> str:
    """Say the round, and whether the free line goes through the origin, with what that would mean."""
    if not line.accept_len:
        return f"No round was measured: {line.refused}."
    at = f"At {requests(line.running_req)}"
    if line.refused:
        return (f"{at} a round takes {_shown(line.mean_round)} (mean of {len(line.accept_len)}). Whether it depends on "
                f"the accept length cannot be told: {line.refused}.")
    text = (
        f"{at} one round of {_shown(line.round)} explains {len(line.accept_len)} rates at accept lengths "
        f"{show(min(line.accept_len))} to {show(max(line.accept_len))}: every token more per round gives "
        f"{_shown(line.through_origin).replace(' tok/s/tok', ' tok/s')}."
    )
    free = (f"The free line starts at {_shown(line.free_intercept)} with {_shown(line.free_slope)} "
            f"({line.dof:.3g} degree{'' if line.dof == 1 else 's'} of freedom)")
    verdict = {
        True: "its interval holds 0, as a constant round demands; that says nothing of what the round is made of",
        False: "its interval excludes 0: draft length or padding changes with acceptance, so the round is no constant",
        None: "it has no interval",
    }[line.is_round_constant]
    return "\n".join([text, f"{free}: {verdict}.", *(f"Doubt: {doubt}." for doubt in line.warnings)])


def _shown(parameter: Parameter) -> str:
    """Write a number with its interval; one that was given has none."""
    if parameter.lo == parameter.value == parameter.hi:
        return show(parameter.value, parameter.unit)
    return show(parameter.value, parameter.unit, *ends(parameter.lo, parameter.hi))


def acceptance_chance_reading(accept_len: float, n_draft_tok: int | None) -> str:
    """Say the chance of one drafted token that explains an accept length if all are alike."""
    if n_draft_tok is None or not np.isfinite(accept_len):
        return "No chance of acceptance is stated: the accept length or the draft length is not known."
    if accept_len > n_draft_tok + 1:
        return (f"No chance of acceptance is stated: {show(accept_len)} tokens per round are more than a draft of "
                f"{n_draft_tok} tok can give.")
    chance = iid_acceptance(accept_len, n_draft_tok)
    return (f"{show(accept_len)} of at most {n_draft_tok + 1} tokens per round: a chance of {show(chance)} for every "
            "drafted token, if all are alike (no interval: it is a conversion, not a fit).")


def accept_rate_reading(found: AcceptRate) -> str:
    """Say which definition of the accept rate the log printed, or why that cannot be told."""
    if found.definition is None:
        return f"Which accept rate the log prints is not known: {found.reason}."
    return f"The accept rate of this log is {ACCEPT_RATE_WORDS[found.definition]} ({found.reason})."


def round_parts_table(parts: RoundParts) -> pd.DataFrame:
    """Return the parts of the round in ms with interval and share; they add up to the measured round."""
    table = parts.to_frame()
    meaning = {"draft": "all draft steps, as modelled", "verify": "the target model's forward, as modelled",
               "other": "measured minus both"}
    rows = pd.DataFrame(
        {
            "part": table["part"],
            "time [ms]": [_interval(value, np.nan, np.nan) for value in table["time_s"]],
            "interval [ms]": [_ends(lo, hi) for lo, hi in zip(table["time_s_lo"], table["time_s_hi"], strict=True)],
            "share [%]": [f"{100 * share:.1f}" for share in table["share_frac"]],
            "what": table["part"].map(meaning),
        }
    )
    whole = parts.measured
    rows.loc[len(rows)] = ["round", _interval(whole.value, np.nan, np.nan), _ends(whole.lo, whole.hi), "100.0",
                           "measured"]
    return rows


def _ends(lo: float, hi: float) -> str:
    if not (np.isfinite(lo) and np.isfinite(hi)):
        return "none"
    return " to ".join(_interval(value, np.nan, np.nan) for value in (lo, hi))


def round_parts_reading(parts: RoundParts) -> str:
    """Say the parts of the round with their intervals."""
    if parts.warnings:
        return "\n".join(f"Contradiction: {text}." for text in parts.warnings)
    named = ", ".join(f"{words} {_shown(part)}" for words, part in
                      (("drafting", parts.draft), ("verifying", parts.verify)))
    return f"Of {_shown(parts.measured)} a round: {named} as modelled; {_shown(parts.other)} is neither."


def what_if_table(cases: Sequence[WhatIf]) -> pd.DataFrame:
    """Return what each change would give: tokens per round, round, rate, each with its interval, and the gain."""
    return pd.DataFrame(
        {
            "what": [case.what for case in cases],
            "tokens per round": [_shown(case.accept_len).replace(" tok", "") for case in cases],
            "round [ms]": [_shown(case.round).replace(" ms", "") for case in cases],
            "decode [tok/s]": [_shown(case.tok_per_s).replace(" tok/s", "") for case in cases],
            "over measured": [f"{show(case.gain)}x" for case in cases],
            "assumes": ["; ".join(case.assumptions) for case in cases],
            "doubt": ["; ".join(case.warnings) for case in cases],
        }
    )


def what_if_reading(case: WhatIf) -> str:
    """Say the rate that a change would give, what it rests on, and what is doubtful."""
    text = (f"{case.what[:1].upper()}{case.what[1:]}: {_shown(case.tok_per_s)}, {show(case.gain)} times the measured "
            f"rate, from {'; '.join(case.assumptions)}.")
    return "\n".join([text, *(f"Doubt: {doubt}." for doubt in case.warnings)])


def break_even_reading(found: BreakEven) -> str:
    """Say where speculation stops to pay, or that it does not inside the levels, and what that rests on."""
    if found.levels.empty:
        return f"No break-even: {found.reason.rstrip('.')}."
    basis = f"{found.basis[:1].upper()}{found.basis[1:]}"
    if found.running_req is None:
        text = f"No break-even: {found.reason}."
    else:
        span = show(found.running_req, "", *ends(*(np.nan if end is None else end for end in
                                                   (found.running_req_lo, found.running_req_hi))))
        text = f"Break-even at N = {span} running requests: {found.reason}."
    return "\n".join([f"{text} {basis}.", *(f"Doubt: {doubt}." for doubt in found.warnings)])
