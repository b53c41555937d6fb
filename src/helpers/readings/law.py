"""Tables and sentences about levels and laws."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pandas as pd

from helpers.display import level_key, requests, show
from helpers.readings.text import ends, known
from helpers.schema import LEVELS, Fits, LawFit, check


def levels_table(levels: pd.DataFrame) -> pd.DataFrame:
    """Return the levels as a reader wants them: step with interval, rate, counts, what was odd."""
    check(levels, LEVELS)
    used = levels.sort_values(["server_life", "rank_group", "running_req", "population"])
    table = pd.DataFrame(
        {
            "server life": used["server_life"],
            "ranks": used["rank_group"],
            "running requests [req]": used["running_req"].map(level_key),
            "step [ms]": [show(s, "s").removesuffix(" ms") for s in used["step_s"]],
            "interval [ms]": [_ends(lo, hi) for lo, hi in zip(used["step_s_lo"], used["step_s_hi"], strict=True)],
            "decode [tok/s]": [show(rate) for rate in used["decode_tok_per_s"]],
            "tokens per round": [known(value) for value in used["accept_len"]],
            "context [tok]": [known(value) for value in used["context_tok"]],
            "clean intervals": used["n_clean"].astype(str).where(used["method"].ne("table"), ""),
            "clean time [s]": [known(value) for value in used["clean_s"]],
            "rejected": [_reasons(text) for text in used["n_rejected"]],
            "fitted": used["is_fitted"].map({True: "yes", False: "no"}),
            "note": used["note"].fillna(""),
        }
    )
    same = [name for name in ("server life", "ranks") if table[name].nunique() <= 1]
    maybe = ("tokens per round", "context [tok]", "clean intervals", "clean time [s]", "rejected")
    empty = [name for name in maybe if table[name].eq("").all()]
    return table.drop(columns=[*same, *empty]).reset_index(drop=True)


def _ends(lo: float, hi: float) -> str:
    if not (np.isfinite(lo) and np.isfinite(hi)):
        return "none"
    return " to ".join(show(value, "s").removesuffix(" ms") for value in (lo, hi))


def _reasons(text: str) -> str:
    counts = json.loads(text or "{}")
    return ", ".join(f"{n} {why}" for why, n in sorted(counts.items(), key=lambda item: -item[1]))


def laws_table(fits: Fits) -> pd.DataFrame:
    """Return every law tried: parameters with intervals, errors on levels it was not shown, the selected one marked."""
    rows = [_law_row(law, law.law == fits.selected.law) for law in fits.candidates]
    return pd.DataFrame(rows)


def _law_row(law: LawFit, is_selected: bool) -> dict[str, Any]:
    parameters = "; ".join(
        f"{p.name.removesuffix('_' + p.unit.replace('/', '_per_'))} = {show(p.value, p.unit, *ends(p.lo, p.hi))}"
        for p in law.parameters
    )
    return {
        "law": law.law,
        "selected": "yes" if is_selected else "",
        "parameters [interval]": parameters or "none",
        "degrees of freedom": law.dof,
        "residual [%]": _percent(law.rms_error_frac),
        "inner level left out [%]": _percent(law.loo_error_frac),
        "top level left out [%]": _percent(law.loo_error_top_frac),
        "refused": law.refused or "",
    }


def _percent(frac: float) -> str:
    return f"{100 * frac:.2g}" if np.isfinite(frac) else "unknown"


CROSSCHECK_MEANING = {
    "ols": "least squares, equal absolute weights",
    "throughput_space": "fitted to throughput instead of step time",
    "theil_sen": "median of all pairwise slopes",
    "huber_log": "robust fit of log step",
    "naive_ticks": "every printed line, as private scripts do",
}


def crosschecks_table(fits: Fits) -> pd.DataFrame:
    """Return the same straight line by other methods, each slope against the relative-weighted one."""
    lines: dict[str, tuple[float, float]] = {}
    if fits.linear.parameters:
        lines["relative weights"] = (fits.linear["intercept_s"].value, fits.linear["slope_s_per_req"].value)
    own = lines.get("relative weights", (np.nan, np.nan))[1]
    lines |= dict(fits.crosschecks)
    return pd.DataFrame(
        [
            {
                "method": name.replace("_", " "),
                "what it does": CROSSCHECK_MEANING.get(name, "the line of this project"),
                "intercept [ms]": show(a, "s").removesuffix(" ms"),
                "slope [ms/req]": show(b, "s").removesuffix(" ms"),
                "slope against relative weights [%]": f"{100 * (b / own - 1):+.2g}" if own else "unknown",
            }
            for name, (a, b) in lines.items()
        ]
    )


def naive_fit_reading(fits: Fits) -> str:
    """Say what the fit through every printed line would have claimed."""
    naive = fits.crosschecks.get("naive_ticks")
    if naive is None or not fits.linear.parameters:
        return "There is no fit through every printed line to compare with."
    own = fits.linear["slope_s_per_req"]
    if not own.value > 0:
        return "The straight line has no positive slope to compare with."
    where = "inside" if own.lo <= naive[1] <= own.hi else "outside"
    return (
        f"A straight line through every printed line would claim {show(naive[0], 's')} and {show(naive[1], 's/req')}: "
        f"its slope is {100 * (naive[1] / own.value - 1):+.3g} % off, {where} the interval of the fit to clean levels."
    )


def context_reading(fits: Fits) -> str:
    """Say what the joint fit in running requests and context found, or why there is none."""
    joint = fits.context
    if joint is None:
        return "No joint fit in running requests and context: the levels carry no context."
    if joint.refused:
        return f"No joint fit in running requests and context: {joint.refused}."
    words = ", ".join(f"{p.name} = {show(p.value, p.unit, *ends(p.lo, p.hi))}" for p in joint.parameters)
    return f"Joint fit in running requests and context: {words} ({joint.dof} degrees of freedom)."


def asymptote_reading(fits: Fits) -> str:
    """Say the highest rate that the law implies if it goes on, and the load at half of it."""
    law = fits.selected
    if law.refused:
        return f"No asymptote: {law.refused}."
    if not np.isfinite(law.asymptote_tok_per_s):
        return f"No asymptote is claimed: the {law.law} law has none, or its slope could be zero."
    top = show(law.asymptote_tok_per_s, "tok/s", *ends(law.asymptote_tok_per_s_lo, law.asymptote_tok_per_s_hi))
    beyond = requests(law.running_req_max)
    text = f"If the {law.law} law goes on beyond {beyond}, throughput tends to {top}"
    if np.isfinite(law.half_load_req):
        half = show(law.half_load_req, "req", *ends(law.half_load_req_lo, law.half_load_req_hi))
        text += f"; half of that is reached at {half}"
    return f"{text}. That is extrapolation: it was not measured."


def levels_reading(levels: pd.DataFrame) -> str:
    """Say how many levels there are, and the step and rate at both ends."""
    used = levels[levels["population"].eq(0)]
    fitted = used[used["is_fitted"]].sort_values("running_req")
    if fitted.empty:
        found = ", ".join(level_key(value) for value in used["running_req"].head(6)) or "none"
        return f"No level can be fitted (seen: {found}); the table says why."
    words = [
        f"{show(row['step_s'], 's', *ends(row['step_s_lo'], row['step_s_hi']))} at {requests(row['running_req'])} "
        f"({show(row['decode_tok_per_s'], 'tok/s')})"
        for _, row in fitted.iloc[[0, -1]].drop_duplicates("running_req").iterrows()
    ]
    rest = len(levels) - len(fitted)
    more = f"; {rest} row(s) of the table are not fitted" if rest else ""
    if len(fitted) == 1:
        return f"One level is fitted: a step of {words[0]}{more}."
    return f"{len(fitted)} levels are fitted, from a step of {' to '.join(words)}{more}."


def notes_reading(levels: pd.DataFrame) -> str:
    """List what was odd about single levels."""
    odd = levels[levels["note"].fillna("").ne("")]
    if odd.empty:
        return "No level drifts, splits into populations, or rests on too little."
    pairs = zip(odd["running_req"], odd["note"], strict=True)
    return "\n".join(f"- {requests(running_req)}: {note}" for running_req, note in pairs)


def law_reading(fits: Fits) -> str:
    """Say the selected law with its parameters, interval, degrees of freedom and range."""
    law = fits.selected
    if law.refused:
        return f"No law is claimed: {law.refused.rstrip('.')}."
    parameters = ", ".join(
        f"{p.name.removesuffix('_' + p.unit.replace('/', '_per_'))} = {show(p.value, p.unit, *ends(p.lo, p.hi))}"
        for p in law.parameters
    )
    span = f"{level_key(law.running_req_min)} to {requests(law.running_req_max)}"
    dof = f"{law.dof} degree{'' if law.dof == 1 else 's'} of freedom"
    return f"Law: {law.law}: {parameters} ({100 * law.confidence:g} % intervals, {law.n_levels} levels, {dof}; {span})."


def prediction_reading(fits: Fits) -> str:
    """Say how far the law that predicts is off on levels it was not shown."""
    law = fits.prediction
    if law is None or not np.isfinite(law.loo_error_top_frac):
        return "No level can be left out to test a law."
    inner = ""
    if np.isfinite(law.loo_error_frac):
        inner = f"an inner level is off by {_percent(law.loo_error_frac)} % (median), "
    return (
        f"The rule that picks a law to predict with (here {law.law}), tried on levels it was not shown: {inner}the top "
        f"level by {_percent(law.loo_error_top_frac)} %."
    )


def residuals_reading(levels: pd.DataFrame, fits: Fits) -> str:
    """Say which level the selected law misses most."""
    law = fits.selected
    used = levels[levels["is_fitted"] & levels["population"].eq(0)]
    if law.refused or law.predict_step_s is None or used.empty:
        return "No law, no residuals."
    off = used["step_s"].to_numpy(float) / law.predict_step_s(used["running_req"].to_numpy(float)) - 1
    worst = int(np.argmax(np.abs(off)))
    where = requests(used["running_req"].iloc[worst])
    return f"The {law.law} law misses most at {where}: the step there is {100 * off[worst]:+.2g} % off it."


def warnings_reading(fits: Fits) -> str:
    """List the doubts about the law."""
    if fits.selected.refused:
        return "No law is claimed, so there is nothing to doubt about it."
    doubts = [f"Doubt: {text.rstrip('.')}." for text in fits.selected.warnings]
    return "\n".join(doubts) or "No doubt was found about the law."
