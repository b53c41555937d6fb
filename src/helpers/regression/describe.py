"""A comparison card as a person reads it: the answer, tables with units in their headings, sentences."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from helpers.compare.words import effect, percent, quantity
from helpers.display import level_key, show

VERDICT_WORDS = {"worse": "worse", "better": "better", "mixed": "mixed, worse and better", "same": "same",
                 "cannot_tell": "cannot tell", "described": "described"}


def answer(card: Mapping[str, Any]) -> str:
    """Return three lines: verdict with its rows and the term that moved; validity; what would tell more."""
    found, validity = card["overall"], card["validity"]["sentence"]
    first = (f"Verdict: {VERDICT_WORDS[found['verdict']]}, for changes of more than "
             f"{percent(card['threshold_frac'])}. {found['sentence']} {card['term']['sentence']}")
    return "\n".join(filter(None, [first.rstrip(), "" if validity in found["sentence"] else validity,
                                   found["needed"]]))


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
    heading = interval_heading(card)
    rows = [
        {
            "quantity": quantity(row["kind"], row["running_req"]), "base": show(row["base"], row["unit"]),
            "new": show(row["new"], row["unit"]), heading: effect(row), "verdict": VERDICT_WORDS[row["verdict"]],
            "least change that would be seen": "" if row["mdc_frac"] is None else percent(row["mdc_frac"]),
            f"to see {percent(card['threshold_frac'])}": still_needed(row),
        }
        for row in card["rows"]
    ]
    return pd.DataFrame(rows)


def interval_heading(card: Mapping[str, Any]) -> str:
    """Head a column of changes with the confidence of their intervals."""
    return f"change [{percent(card['confidence'])} interval]"


def still_needed(row: Mapping[str, Any]) -> str:
    """Return the first clause of what would tell a row that cannot: the reasons behind it are the same in every row."""
    needed = (row["needed"] or "") if row["verdict"] == "cannot_tell" else ""
    return needed.partition(":")[0].partition(";")[0]


def differences_table(card: Mapping[str, Any]) -> pd.DataFrame:
    """Return what differs between the two servers, or is stated on one side only."""
    columns = ["key", "base", "new", "kind", "status"]
    rows = [{name: "not stated" if row[name] is None else row[name] for name in columns}
            for row in card["validity"]["differences"]]
    return pd.DataFrame(rows, columns=columns, dtype=object)  # 4 stays 4 beside what is not stated


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
    columns = ["what moved", interval_heading(card), "chi-squared of the levels"]
    rows = [
        (_explanation(row), "" if row["effect_frac"] is None else effect(row), show(row["chi2"]))
        for row in sorted(card["term"]["evidence"], key=lambda row: row["chi2"])
    ]
    return pd.DataFrame(rows, columns=columns)


def _explanation(row: Mapping[str, Any]) -> str:
    if row["term"] == "one_level":
        return f"the level N={level_key(row['running_req'])} alone"
    return " and ".join(quantity(kind) for kind in str(row["term"]).split(" and "))


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
    said = " to ".join(f"{percent(row['effect_frac'], sign=True)} at N={level_key(row['running_req'])}"
                       for row in ends)
    return (f"The mean over the levels is {percent(mean_frac, sign=True)}; the levels themselves span {said}. The "
            "verdict rests on the levels, never on their mean.")
