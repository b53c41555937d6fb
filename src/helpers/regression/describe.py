"""A comparison card as a person reads it: the answer, tables with units in their headings, sentences."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from helpers.display import level_key, show

VERDICT_WORDS = {"worse": "worse", "better": "better", "mixed": "mixed, worse and better", "same": "same",
                 "cannot_tell": "cannot tell", "described": "described"}

QUANTITIES = {"step": "step", "accept_len": "accepted tokens per round", "fixed_cost": "fixed cost",
              "per_request": "cost per request", "asymptote": "asymptote", "ratio_to_target": "step over target"}
"""Kind of a row -> what a reader calls it."""


def answer(card: Mapping[str, Any]) -> str:
    """Return verdict, validity and term, a sentence a line."""
    found = card["overall"]
    verdict = VERDICT_WORDS[found["verdict"]]
    lines = [f"Verdict: {verdict}, for changes of more than {percent(card['threshold_frac'])}. {found['sentence']}"]
    if card["validity"]["sentence"] not in found["sentence"]:
        lines.append(card["validity"]["sentence"])
    if card["term"]["sentence"]:
        lines.append(card["term"]["sentence"])
    return "\n".join(lines)


def rows_frame(card: Mapping[str, Any]) -> pd.DataFrame:
    """Return the rows as the figures take them: NaN for what is not known."""
    rows = pd.DataFrame(card["rows"])
    numbers = [name for name in rows.columns if name.endswith(("_frac", "_req", "_needed"))
               or name in ("base", "new", "log_ratio", "se", "dof", "p_holm")]
    return rows.astype(dict.fromkeys(numbers, float))


def runs_of(card: Mapping[str, Any]) -> dict[str, list[dict[float, float]]]:
    """Return level [req] -> step time [s] of every run of "base" and "new"."""
    return {side: [{float(level): step_s for level, step_s in entry["step_s"].items()}
                   for entry in card[side]["inputs"]] for side in ("base", "new")}


def subtitle(card: Mapping[str, Any]) -> str:
    """Say in one line which server and inputs a figure shows."""
    facts = card["new"]["facts"]
    engine = " ".join(str(part) for part in (facts["engine"], facts["engine_version"]) if part)
    names = []
    for side in ("base", "new"):
        paths = list(dict.fromkeys(shown_path(entry["path"]) for entry in card[side]["inputs"]))
        more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
        names.append(f"{side} {paths[0]}{more}" if paths else f"{side} nothing")
    known = [facts["model"] or "model not in the log", facts["hardware"], engine, *names]
    return " · ".join(str(part) for part in known if part)


def scalars(card: Mapping[str, Any]) -> str:
    """Return a few rounded numbers of the comparison, one ``name = value`` a line, base units."""
    values: dict[str, Any] = {
        "verdict": card["overall"]["verdict"], "validity": card["validity"]["verdict"],
        "variable": card["validity"]["variable"] or "none", "term": card["term"]["name"],
        "n_rows": sum(bool(row["is_judged"]) for row in card["rows"]), "n_unknown": card["overall"]["n_unknown"],
    }
    for kind in ("fixed_cost", "per_request"):
        row = next((row for row in card["rows"] if row["kind"] == kind), None)
        values[f"{kind}_effect_frac"] = None if row is None else row["effect_frac"]
    steps = [row["effect_frac"] for row in card["rows"] if row["kind"] == "step"]
    values |= {"step_effect_frac_min": min(steps, default=None), "step_effect_frac_max": max(steps, default=None)}
    return "\n".join(f"{name} = {_rounded(value)}" for name, value in values.items())


def _rounded(value: Any) -> str:
    if value is None:
        return "unknown"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def rows_table(card: Mapping[str, Any]) -> pd.DataFrame:
    """Return every row: both sides with units, effect with the interval of the row alone, verdict, what can be seen."""
    rows = [
        {
            "quantity": quantity(row), "base": show(row["base"], row["unit"]), "new": show(row["new"], row["unit"]),
            "effect [interval]": effect(row), "verdict": VERDICT_WORDS.get(row["verdict"], row["verdict"]),
            "least change that would be seen": "" if row["mdc_frac"] is None else percent(row["mdc_frac"]),
            f"to see {percent(card['threshold_frac'])}": still_needed(row),
        }
        for row in card["rows"]
    ]
    return pd.DataFrame(rows)


def still_needed(row: Mapping[str, Any]) -> str:
    """Return the first clause of what would tell a row that cannot: the reasons behind it are the same in every row."""
    needed = (row["needed"] or "") if row["verdict"] == "cannot_tell" else ""
    return needed.partition(":")[0].partition(";")[0]


def quantity(row: Mapping[str, Any]) -> str:
    """Name a row: "step at 16 req", "cost per request"."""
    name = QUANTITIES.get(row["kind"], str(row["kind"]).replace("_", " "))
    level = row["running_req"]
    return name if level is None or not math.isfinite(level) else f"{name} at {level_key(level)} req"


def effect(row: Mapping[str, Any]) -> str:
    """Write new against base with the row's own interval: "+5.1 % [+2.0, +8.3]"."""
    if row["effect_frac"] is None:
        return "unknown"
    ends = [row["row_lo_frac"], row["row_hi_frac"]]
    text = percent(row["effect_frac"], sign=True)
    return text if None in ends else f"{text} [{', '.join(percent(e, sign=True)[:-2] for e in ends)}]"


def percent(frac: float, *, sign: bool = False) -> str:
    """Write a share in percent: one decimal below 10 % where there is one, "+5.1 %" with ``sign``."""
    value = 100 * frac
    value = value if abs(value) >= 0.05 else 0.0  # no "-0.0"
    text = f"{value:.0f}" if abs(value) >= 100 or abs(value - round(value)) < 1e-9 else f"{value:.1f}"
    return f"{'+' if sign and value > 0 else ''}{text} %"


def differences_table(card: Mapping[str, Any]) -> pd.DataFrame:
    """Return what differs between the two servers, or is stated on one side only."""
    columns = ["key", "base", "new", "kind", "status"]
    return pd.DataFrame(card["validity"]["differences"], columns=columns).fillna("not stated")


def inputs_table(card: Mapping[str, Any]) -> pd.DataFrame:
    """Return what was read on either side, how, and how many levels it gave."""
    rows = [
        {"side": side, "input": shown_path(entry["path"]), "kind": entry["kind"].replace("_", " "), "how": entry["how"],
         "server life": "" if entry["server_life"] is None else entry["server_life"], "levels": entry["n_levels"],
         "sha256": ", ".join(text[:12] for text in entry["log_sha256"])}
        for side in ("base", "new") for entry in card[side]["inputs"]
    ]
    return pd.DataFrame(rows, columns=["side", "input", "kind", "how", "server life", "levels", "sha256"])


def shown_path(path: str) -> str:
    """Return the last two parts of a path: folders differ between machines."""
    return "/".join(path.replace("\\", "/").rstrip("/").split("/")[-2:])


def phases_table(card: Mapping[str, Any]) -> pd.DataFrame:
    """Return the time in each phase on either side."""
    rows = [
        {"phase": row["phase"], "base": show(row["base_s"], "duration"), "new": show(row["new_s"], "duration"),
         "base share": "" if row["base_frac"] is None else percent(row["base_frac"]),
         "new share": "" if row["new_frac"] is None else percent(row["new_frac"])}
        for row in card["phases"]
    ]
    return pd.DataFrame(rows, columns=["phase", "base", "new", "base share", "new share"])


def evidence_table(card: Mapping[str, Any]) -> pd.DataFrame:
    """Return the explanations that were held against the levels, the best first."""
    rows = [
        {"what moved": str(row["term"]).replace("_", " "),
         "at": "" if row["running_req"] is None else f"{level_key(row['running_req'])} req",
         "effect": "" if row["effect_frac"] is None else percent(row["effect_frac"], sign=True),
         "chi-squared of the levels": show(row["chi2"])}
        for row in sorted(card["term"]["evidence"], key=lambda row: row["chi2"])
    ]
    return pd.DataFrame(rows, columns=["what moved", "at", "effect", "chi-squared of the levels"])


def notes_reading(card: Mapping[str, Any]) -> str:
    """Return what a reader must know of the inputs, a line each."""
    return "\n".join(f"- {note}" for note in card["notes"]) or "Nothing was left out."


def pooled_reading(card: Mapping[str, Any]) -> str:
    """Hold the mean change of all levels against the levels: what one number would have hidden."""
    steps = [row for row in card["rows"] if row["kind"] == "step" and row["log_ratio"] is not None]
    if not steps:
        return "There is no level on both sides."
    mean_frac = math.expm1(sum(row["log_ratio"] for row in steps) / len(steps))
    ends = [min(steps, key=lambda row: row["effect_frac"]), max(steps, key=lambda row: row["effect_frac"])]
    said = " to ".join(f"{percent(row['effect_frac'], sign=True)} at {level_key(row['running_req'])} req"
                       for row in ends)
    return (f"The mean over the levels is {percent(mean_frac, sign=True)}; the levels themselves span {said}. The "
            "verdict rests on the levels, never on their mean.")
