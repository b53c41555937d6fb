"""Tables and sentences about the hardware's side: the roofline, the parts of a step, the levers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from helpers.answer import (
    KNEE_WORDS,
    PART_WORDS,
    UNEXPLAINED,
    components_finding,
    highest_level,
    left_over,
    regimes_finding,
)
from helpers.display import level_key, requests, show
from helpers.readings.text import known

Card = Mapping[str, Any]

LINES = ("strict", "expected", "target")
MAX_LEVERS = 3
"""Levers that are told in sentences; the table has all."""


def roofline_table(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the roofline at each level in ms, with its ratios (``Roofline.to_frame()``); unknown lines left out."""
    lines = [name for name in LINES if frame[f"{name}_step_s"].notna().any() or name != "expected"]
    return pd.DataFrame(
        {
            "running requests [req]": frame["running_req"].map(level_key),
            "context [tok]": [known(value) or "unknown" for value in frame["context_tok"]],
            "measured [ms]": _in_ms(frame["step_s"]),
        }
        | {f"{name} [ms]": _in_ms(frame[f"{name}_step_s"]) for name in lines}
        | {f"measured over {name}": [known(value) or "unknown" for value in frame[f"step_over_{name}"]]
           for name in lines}
    )


def _in_ms(seconds: pd.Series) -> list[str]:
    return [show(value, "s").removesuffix(" ms") for value in seconds]


def chord_reading(card: Card) -> str:
    """Hold the measured straight line against the lines that the hardware allows at the same levels and weights."""
    fit, roofline = card["fit"], card["roofline"] or {}
    if not roofline.get("strict") or roofline["strict"].get("slope_s_per_req") is None:
        return "No line of the roofline can be held against the measured one."
    words = [
        f"{name} {show(line['intercept_s'], 's')} + N x {show(line['slope_s_per_req'], 's/req')}"
        for name in LINES if (line := roofline.get(name))
    ]
    if fit["intercept_s"] is None:
        return f"At the levels of the data the hardware allows {' and '.join(words)}; no line was measured."
    own = f"{show(fit['intercept_s'], 's')} + N x {show(fit['slope_s_per_req'], 's/req')}"
    return f"Measured as a straight line: {own}. The same line through the hardware's steps: {'; '.join(words)}."


def roofline_reading(card: Card) -> str:
    """Say the distance at the lowest and the highest level, with the line and the level named, or what is missing."""
    roofline = card["roofline"] or {}
    ratio = roofline.get("ratio") or {}
    if not ratio:
        return f"No distance from the roofline is stated: {roofline.get('refused') or 'no level was measured'}."
    levels = {level_key(level["running_req"]): level for level in card["levels"]}
    meaning = {"target": "the target of", "expected": "the expected", "strict": "the strict bound of"}
    lines = []
    for key in dict.fromkeys([min(ratio, key=float), max(ratio, key=float)]):
        level = levels[key]
        measured = show(level["step_s"], "s", level["step_s_lo"], level["step_s_hi"])
        distances = [
            f"{show(level['step_s'] / bound_s)}x {words} {show(bound_s, 's')}" for name, words in meaning.items()
            if (bound_s := ((roofline.get(name) or {}).get("step_s") or {}).get(key))
        ]
        lines.append(f"At {requests(level['running_req'])} a step takes {measured}: {', '.join(distances)}.")
    return "\n".join(lines)


def assumptions_reading(card: Card) -> str:
    """List what the roofline rests on, one a line."""
    assumptions = (card["roofline"] or {}).get("assumptions") or []
    return "\n".join(f"- {text}" for text in assumptions) or "No line is drawn, so nothing is assumed."


def regimes_reading(card: Card) -> str:
    """Say what the hardware's own step spends most on at each level, and the kernels' least time beside it."""
    roofline = card["roofline"] or {}
    regimes = roofline.get("regimes") or {}
    if not regimes:
        return f"No regime is stated: {roofline.get('refused') or 'there is no roofline'}."
    line = "expected" if roofline.get("expected") else "strict"
    text = f"The {line} step spends most on {regimes_finding([float(key) for key in regimes], [*regimes.values()])}."
    least_s, most_s = roofline.get("floor_s") or (None, None)
    if least_s is None or most_s is None:
        return text
    return (f"{text} However little they move, its kernels take {show(least_s, 's')} to {show(most_s, 's')}: that is "
            "in no line.")


def knees_reading(card: Card) -> str:
    """Say at how many running requests the regime turns."""
    roofline = card["roofline"] or {}
    knees = {name: at for name, at in (roofline.get("knees_req") or {}).items() if at is not None}
    if not knees:
        return f"No knee is stated: {roofline.get('refused') or 'neither experts nor FLOPs of the model are known'}."
    return "\n".join(f"Above N = {show(at)} {KNEE_WORDS.get(name, name)}."
                     for name, at in sorted(knees.items(), key=lambda item: item[1]))


def prefill_reading(card: Card) -> str:
    """Say what bounds the prefill of the prompt that was given, or how to ask for it."""
    found = (card["roofline"] or {}).get("prefill")
    if not found:
        return "No prefill is bounded: give the prompt's length (prompt_tokens) and the model's configuration."
    bound_by = "compute" if found["is_compute_bound"] else "reading the weights"
    return (f"A prefill of {show(found['prompt_tok'], 'tok')} takes at least {show(found['strict_s'], 's')} "
            f"({show(found['strict_tok_per_s'], 'tok/s')}), with good kernels {show(found['target_s'], 's')} "
            f"({show(found['target_tok_per_s'], 'tok/s')}); bound by {bound_by}. A ramp or a time to first token "
            "cannot be shorter.")


def top_rate(card: Card) -> float:
    """Return the measured rate at the level that levers start from [tok/s]; NaN without one."""
    known = [level for level in card["levels"] if level_key(level["running_req"]) in (card["roofline"] or {})["ratio"]]
    return max(known, key=lambda level: level["running_req"])["decode_tok_per_s"] if known else float("nan")


def components_reading(card: Card) -> str:
    """Say what explains the step at the highest level, every part with its interval, and how the rest changes."""
    rows = highest_level(card.get("components") or [])
    found = components_finding(rows)
    if not found:
        reason = (card["roofline"] or {}).get("refused") or "hardware, model and a measured step are needed"
        return f"No part of the step is stated: {reason}."
    parts = ", ".join(f"{PART_WORDS.get(row['name'], row['name'])} {_time(row)}"
                      for row in sorted(rows, key=lambda row: (row["name"] == UNEXPLAINED, -row["time_s"])))
    step_s = sum(row["time_s"] for row in rows)
    lines = [f"{found}.", f"Of {show(step_s, 's')}: {parts}."]
    by_level = card.get("components_by_level") or {}
    lowest = highest_level(by_level[min(by_level, key=float)]) if len(by_level) > 1 else []
    left = next((row for row in lowest if row["name"] == UNEXPLAINED), None)
    if left is not None:
        low_s = sum(row["time_s"] for row in lowest)
        lines.append(f"At N={level_key(left['running_req'])}, of {show(low_s, 's')}: {left_over(left, low_s)}.")
    return "\n".join(lines)


def _time(row: Mapping[str, Any]) -> str:
    has_interval = row["lo"] is not None and row["hi"] is not None
    return show(row["time_s"], "s", row["lo"], row["hi"]) + ("" if has_interval else " (no interval)")


def components_table(table: pd.DataFrame) -> pd.DataFrame:
    """Return the parts of the step at each level in ms with interval and share (``components.component_table``)."""
    rows = zip(table["lo"], table["hi"], strict=True)
    return pd.DataFrame(
        {
            "running requests [req]": table["running_req"].map(level_key),
            "part": [PART_WORDS.get(name, name) for name in table["name"]],
            "time [ms]": _in_ms(table["time_s"]),
            "interval [ms]": [_interval(lo, hi, "s").removesuffix(" ms") for lo, hi in rows],
            "share of the step [%]": [f"{100 * share:.1f}" for share in table["share_frac"]],
            "from": table["source"],
        }
    ).reset_index(drop=True)


def _interval(lo: float | None, hi: float | None, unit: str = "") -> str:
    lo, hi = _span(lo, hi)
    if lo is None:
        return "none"
    return f"{show(lo, unit).removesuffix(' ms')} to {show(hi, unit)}"


def levers_reading(card: Card) -> str:
    """Say what the levers with most to win would bring and on what that rests, and which were refused."""
    levers = card.get("levers") or []
    told = sorted((lever for lever in levers if not lever["refused"]), key=lambda lever: -lever["tok_per_s"])
    if not levers:
        return "No lever is computed: that needs hardware, model and a measured step."
    lines, said = [], set[str]()
    for lever in told[:MAX_LEVERS]:
        new = [text for text in lever["assumes"] if text not in said]
        said.update(new)
        rate = show(lever["tok_per_s"], "tok/s", *_span(lever["lo"], lever["hi"]))
        because = f" It assumes: {'; '.join(new)}." if new else ""
        lines.append(f"{lever['lever']}: {rate} ({100 * lever['change_frac']:+.1f} %).{because}")
    if len(told) > MAX_LEVERS:
        lines.append(f"{len(told) - MAX_LEVERS} more in the table.")
    refused = [f"Refused: {lever['lever']}: {lever['refused'].rstrip('.')}." for lever in levers if lever["refused"]]
    return "\n".join([*lines, *refused])


def _span(lo: float | None, hi: float | None) -> tuple[float | None, float | None]:
    """Return both ends, or none where one is unknown or they are the same: that is no interval."""
    return (None, None) if lo is None or hi is None or not lo < hi else (lo, hi)


def levers_table(levers: Sequence[Any]) -> pd.DataFrame:
    """Return every lever with step, rate, interval and what it rests on; refused ones with the reason.

    Parameters
    ----------
    levers : sequence of Lever or of mapping
        From ``levers.levers`` or the scorecard.
    """
    rows = [lever if isinstance(lever, Mapping) else vars(lever) for lever in levers]
    names = ("lever", "step [ms]", "decode [tok/s]", "interval [tok/s]", "change [%]", "assumes", "refused")
    return pd.DataFrame([dict(zip(names, _lever_row(row), strict=True)) for row in rows], columns=names)


def _lever_row(row: Mapping[str, Any]) -> tuple[str, ...]:
    if row["refused"]:
        return row["lever"], "", "", "", "", "; ".join(row["assumes"]), row["refused"]
    return (
        row["lever"], show(row["step_s"], "s").removesuffix(" ms"), show(row["tok_per_s"]),
        _interval(row["lo"], row["hi"]), f"{100 * row['change_frac']:+.1f}", "; ".join(row["assumes"]), "",
    )
