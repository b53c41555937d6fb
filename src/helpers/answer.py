"""The answer in a few sentences, from a scorecard alone.

Every number carries its unit and its interval, or the reason why it has none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from typing import Any

from helpers.display import level_key, show
from helpers.limiting import limits

Card = Mapping[str, Any]

FORMULAS = {
    "sqrt": ", intercept + slope N + c sqrt(N)", "hinge": ", max(plateau, slope N)",
    "hinge3": ", max(plateau, intercept + slope N)", "quadratic": ", a + b N + c N^2",
    "moe": ", intercept + experts (1 - (1 - k/E)^N) + slope N", "roofline": ", scale x what the hardware allows",
}
"""What a law says, for readers who do not know its name."""

MAX_LISTED = 6
"""Levels listed by name when no law sums them up; the table has all."""

PART_WORDS = {
    "kv": "keys and values", "index": "the index", "state": "recurrent state", "head": "the output head",
    "all_reduce": "communication", "floor": "the kernels' least time", "draft": "the draft",
    "peak": "the bytes at the peak bandwidth", "efficiency": "what kernels lose to it",
}
"""Part of a step -> what a reader calls it; the others are called by their name."""

UNEXPLAINED = "unexplained"
"""Name of the row that holds what the other parts leave of the measured step."""

MAX_PARTS = 2
"""Parts named in a finding."""

KNEE_WORDS = {
    "experts": "nearly all experts are read",
    "requests": "what requests bring takes longer than the weights",
    "compute": "the products take longer than reading the weights",
}
"""Knee -> what holds above it."""

MODEL_FACTS_EXAMPLE = '--context \'{"hardware": "h100-sxm", "model": "Qwen3-30B-A3B"}\''


def answer(card: Card, *, causes: bool = True) -> str:
    """Say what a run found, what it refuses to say and why.

    Parameters
    ----------
    card : mapping
        From ``scorecard.build`` or ``scorecard.read``.
    causes : bool
        Begin with what limits decode; without, only what was measured is said.

    Returns
    -------
    str
        A sentence or two a line: what limits decode and what decides it, measured, law, asymptote, roofline, client
        average, refusals.
    """
    lines = [*(limits(card) if causes else ()), _measured(card), *_law(card), *_roofline(card), *_client(card)]
    lines += [f"Doubt: {text}." for text in (_ended(w) for w in [*card["run"]["notes"], *card["fit"]["warnings"]])]
    lines += [f"CHECK FAILED: {c['name']}: found {show(c['value'])}, limit {show(c['limit'])}; "
              "do not use these numbers." for c in card["checks"] if c["pass"] is False]
    return "\n".join(lines)


def _ended(text: str) -> str:
    """Drop a closing full stop."""
    return text.rstrip().removesuffix(".")


def fitted_levels(card: Card) -> list[Mapping[str, Any]]:
    """Return the levels that entered the law; all that have a step time where it came from no level by itself."""
    levels = [level for level in card["levels"] if level["is_fitted"]]
    if len({level["running_req"] for level in levels}) >= (card["fit"]["n_levels"] or 0) and levels:
        return levels
    return [level for level in card["levels"] if level["step_s"] is not None]


def _step_word(card: Card) -> str:
    """Under speculation a step is a round of draft and verify."""
    return "round" if any((level["accept_len"] or 1) > 1 for level in fitted_levels(card)) else "step"


def _measured(card: Card) -> str:
    run, phases, levels = card["run"], card["phases"], fitted_levels(card)
    names = [level_key(n) for n in sorted({level["running_req"] for level in levels})]
    if not names:
        span = "no level with clean decode"
    elif len(names) == 1:
        span = f"1 level, N={names[0]} running requests"
    else:
        span = f"{len(names)} levels, N={names[0]} to N={names[-1]} running requests"
    if phases["n_intervals"] is None:
        return f"Measured: {span}, from a table of rates (how they were taken is not known to rooflog)."
    engine = " ".join(str(part) for part in (run["engine"] or "unknown engine", run["engine_version"]) if part)
    if run["engine"] and not run["engine_version"]:
        engine += " (version not in the log)"
    if run["n_server_lives"] and run["n_server_lives"] > 1:
        lives = run["fitted_lives"]
        engine += f", server life {lives[0]} (0 is the first of {run['n_server_lives']})" if len(lives) == 1 else (
            f", {len(lives)} of {run['n_server_lives']} server lives, those with the same arguments")
    of_law = [level for level in card["levels"] if level["server_life"] in run["fitted_lives"]]
    n_engines = len({(level["server_life"], level["rank_group"]) for level in of_law})
    # independent engines run at the same time
    clean_s = sum(level["clean_s"] or 0.0 for level in of_law) * len(run["fitted_lives"]) / max(n_engines, 1)
    logged_s = sum(phases[name] or 0.0 for name in ("warmup_s", "ramp_s", "steady_s", "mixed_s", "drain_s", "idle_s"))
    text = (f"Measured: {engine}: {span}; {phases['n_clean']} of {phases['n_intervals']} intervals of the log "
            f"are clean decode, {show(clean_s, 'duration')} of {show(logged_s, 'duration')}.")
    if phases["n_clean"] < phases["n_intervals"]:
        reasons = Counter[str]()
        for level in of_law:
            reasons.update(level["n_rejected"])
        if reasons:
            text += " Left out most: " + ", ".join(f"{reason} ({n})" for reason, n in reasons.most_common(3)) + "."
    return text


def _law(card: Card) -> list[str]:
    fit, step = card["fit"], _step_word(card)
    if fit["refused"]:
        lines = [_each_level(card)] if any(level["step_s"] is not None for level in card["levels"]) else []
        lines.append(f"No law of {step} time is claimed: {_ended(fit['refused'])}.")
        return [*lines, "For a law, hold at least four levels a factor of two apart, each for a few minutes after its "
                        "ramp; `rooflog simulate --estimate` says how long that takes."]
    selected, levels = fit["selected"], fitted_levels(card)
    terms = f"{selected['confidence'] * 100:g} % interval, {_dof(selected['dof'])}"
    inside = f"valid from N={level_key(selected['running_req_min'])} to N={level_key(selected['running_req_max'])}"
    line = (f"{show(fit['intercept_s'], 's', fit['intercept_s_lo'], fit['intercept_s_hi'])} + N x "
            f"{show(fit['slope_s_per_req'], 's/req', fit['slope_s_per_req_lo'], fit['slope_s_per_req_hi'])}")
    if fit["law"] == "linear":
        lines = [f"Law: {step} time = {line} ({terms}; {inside})."]
    else:
        parts = ", ".join(f"{name.removesuffix('_' + p['unit'].replace('/', '_per_'))} = "
                          f"{show(p['value'], p['unit'], p['lo'], p['hi'])}"
                          for name, p in selected["parameters"].items())
        formula = FORMULAS.get(fit["law"], "")
        lines = [f"Law: {fit['law']}{formula}: {parts} ({terms}; {inside}).",
                 f"The straight line, for comparison: {line} ({_dof(fit['dof'])})."]
    if fit["loo_error_frac"] is not None:
        top = selected["loo_error_top_frac"]
        lines[0] += f" Left out and predicted, an inner level is off by {show(fit['loo_error_frac'] * 100)} % (median)"
        lines[0] += "." if top is None else f", the top level by {show(top * 100)} %."
    envelope = fit.get("rounding_envelope") or {}
    if envelope:
        ends = [f"{show(envelope[name][0], unit)} to {show(envelope[name][1], unit)}"
                for name, unit in (("intercept_s", "s"), ("slope_s_per_req", "s/req")) if name in envelope]
        lines.append(f"The last printed digit of the table alone allows {' and '.join(ends)}.")
    top_level = max(levels, key=lambda level: level["running_req"])
    steady = (f"At N={level_key(top_level['running_req'])} the server decodes "
              f"{show(top_level['decode_tok_per_s'], 'tok/s')} in {step}s of {_step(top_level)}")
    return [*lines, f"{steady}; {_asymptote(fit, top_level['decode_tok_per_s'])}."]


def _dof(dof: int) -> str:
    return f"{dof} degree{'' if dof == 1 else 's'} of freedom"


def _asymptote(fit: Mapping[str, Any], measured_tok_per_s: float) -> str:
    if fit["asymptote_tok_per_s"] is None:
        return "no asymptote is claimed (the law has none, or its slope could be zero)"
    lo = fit["asymptote_tok_per_s_lo"]
    text = "more requests cannot lift it above " + show(
        fit["asymptote_tok_per_s"], "tok/s", lo, fit["asymptote_tok_per_s_hi"]
    ) + " if the law goes on"
    if lo is not None and lo < measured_tok_per_s:
        text += f" (the part below {show(measured_tok_per_s, 'tok/s')} is excluded: that was measured)"
    half, selected = fit["half_load_req"], fit["selected"]
    if half is None:
        return text
    text += f", half of which is reached at N={show(half)}"
    is_inside = selected["running_req_min"] <= half <= selected["running_req_max"]
    return text if is_inside else text + " (outside the measured levels)"


def _each_level(card: Card) -> str:
    every = [level for level in card["levels"] if level["step_s"] is not None]
    levels = [level for level in every if level["server_life"] in card["run"]["fitted_lives"]] or every
    texts = [f"N={level_key(level['running_req'])}: {_step(level)}, {show(level['decode_tok_per_s'], 'tok/s')}"
             for level in levels[:MAX_LISTED]]
    rest = f"; and {len(levels) - MAX_LISTED} more" if len(levels) > MAX_LISTED else ""
    return f"{_step_word(card).capitalize()} time at " + "; ".join(texts) + rest + "."


def _step(level: Mapping[str, Any]) -> str:
    """Show the step of a level with its interval, or why it has none."""
    text = show(level["step_s"], "s", level["step_s_lo"], level["step_s_hi"])
    return text if level["step_s_lo"] is not None else text + " (no interval: too few steps)"


def _roofline(card: Card) -> list[str]:
    roofline = card["roofline"] or {}
    if not roofline.get("ratio"):
        reason = _ended(roofline.get("refused") or "hardware and model are not known")
        example = f" For example {MODEL_FACTS_EXAMPLE}." if reason.startswith("not known") else ""
        return [f"Distance from the roofline: not stated; {reason}.{example}"]
    ratio = roofline["ratio"]
    keys = sorted((key for key in ratio if ratio[key] is not None), key=float)
    ends = keys if len(keys) <= 2 else [keys[0], keys[-1]]
    lines = []
    for key in ends:
        against = [f"{name} {show(roofline[name]['step_s'][key], 's')}" for name in ("strict", "expected", "target")
                   if (roofline.get(name) or {}).get("step_s", {}).get(key) is not None]
        lines.append(f"at N={key} a {_step_word(card)} takes {show(ratio[key])}x the target ({', '.join(against)})")
    found = components_finding(card.get("components") or [], _step_word(card))
    return ["Distance from the roofline: " + "; ".join(lines) + ".", *([f"{found}."] if found else [])]


def components_finding(rows: Iterable[Mapping[str, Any]], step: str = "step") -> str:
    """Say what explains the step at the highest level and what is left, without a full stop; empty without rows.

    Parameters
    ----------
    rows : iterable of mapping
        Rows of a component table: running_req, name, time_s, lo, hi; those of one level add up to the measured step.
    step : str
        What a step is called.
    """
    top = highest_level(rows)
    step_s = sum(row["time_s"] for row in top)
    parts = sorted((row for row in top if row["name"] != UNEXPLAINED), key=lambda row: -row["time_s"])[:MAX_PARTS]
    if not parts or not step_s > 0:
        return ""
    names = " and ".join(PART_WORDS.get(row["name"], row["name"]) for row in parts)
    explained = show_share(sum(row["time_s"] for row in parts) / step_s)
    text = f"At N={level_key(top[0]['running_req'])}, {explained} of the {step} is {names}"
    left = next((row for row in top if row["name"] == UNEXPLAINED), None)
    return text if left is None else f"{text}; {left_over(left, step_s, step)}"


def highest_level(rows: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the rows of a component table at the highest level at which every part is known; empty if none is.

    Where two engines were measured at one level, the first of them.
    """
    levels: dict[float, dict[str, Mapping[str, Any]]] = {}
    for row in rows:
        levels.setdefault(row["running_req"], {}).setdefault(row["name"], row)
    known = [level for level, parts in levels.items()
             if all(row["time_s"] is not None and isfinite(row["time_s"]) for row in parts.values())]
    return [*levels[max(known)].values()] if known else []


def left_over(row: Mapping[str, Any], step_s: float, step: str = "step") -> str:
    """Say the unexplained share of a step of ``step_s`` [s] with its interval; below zero the parts are too long."""
    share_frac, lo, hi = (None if row[name] is None else row[name] / step_s for name in ("time_s", "lo", "hi"))
    if share_frac is not None and share_frac < 0:
        flipped = (None, None) if lo is None or hi is None else (-hi, -lo)
        return f"its parts add up to {show_share(-share_frac, *flipped)} more than the measured {step}"
    return f"{show_share(share_frac, lo, hi)} is unexplained"


def show_share(frac: float | None, lo: float | None = None, hi: float | None = None) -> str:
    """Write a share in whole percent with its interval: "21 % [12, 30]"."""
    if frac is None or not isfinite(frac):
        return "an unknown share"
    if lo is None or hi is None or not (isfinite(lo) and isfinite(hi)):
        return f"{100 * frac:.0f} %"
    return f"{100 * frac:.0f} % [{100 * lo:.0f}, {100 * hi:.0f}]"


def regimes_finding(running_req: Sequence[float], regimes: Sequence[str]) -> str:
    """Say what a step spends most on, level by level, neighbours with the same answer together."""
    spans: list[tuple[str, list[float]]] = []
    for level, regime in sorted(zip(running_req, regimes, strict=True)):
        if not spans or spans[-1][0] != regime:
            spans.append((regime, []))
        spans[-1][1].append(level)
    return ", ".join(
        f"{PART_WORDS.get(regime, regime)} at N={level_key(levels[0])}"
        + (f" to {level_key(levels[-1])}" if len(levels) > 1 else "")
        for regime, levels in spans
    )


def _client(card: Card) -> list[str]:
    client = card["client"]
    if client["steady_over_client"] is None:
        return []
    ratio, others = client["steady_over_client"], client["other_s"] or {}
    load = f"the load that peaked at N={level_key(client['running_req'])}"
    whose = "The client's average" if client["source"] == "user" else f"A client's average over {load} (from the log)"
    text = (f"{whose} is {show(client['output_tok_per_s'], 'tok/s')}, the steady rate "
            f"{'' if client['source'] == 'log' else f'of {load} '}{show(client['steady_tok_per_s'], 'tok/s')}: "
            f"{show(ratio)}x")
    if ratio < 1:
        return [f"{text}. The average is the higher one: that load's clean intervals are few or not typical."]
    parts = " + ".join(f"{show(seconds, 'duration')} of {name}" for name, seconds in others.items() if seconds)
    if not parts or ratio <= 1:
        return [text + "."]
    return [f"{text}, because the average also holds {parts} in {show(client['duration_s'], 'duration')}."]
