"""The controls of the explorer: what each stands for, where it starts, and what their values choose."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ipywidgets as widgets

from helpers.display import level_key
from helpers.explore.panel import labelled
from helpers.explore.what_if import AS_MEASURED, board_names, ranks_of, read_change, write_change
from helpers.laws.candidates import known_laws
from helpers.measure import Choice, Measured, choice_of, require_confidence, write_spans
from helpers.measure.choice import READMITTED
from helpers.physics.model.formats import FORMATS, KV_FORMATS
from helpers.physics.what_if.changes import Change

BY_THE_LEVELS = "as the levels support"
LAWS = tuple(known_laws((2, 1), lambda running_req: running_req))
"""Every law that may be fitted; which ones are depends on levels, model and hardware."""
RANKS = (1, 2, 4, 8, 16)

COUNTS = ("ignored_rules", "without_spans", "only_spans")
THRESHOLDS = ("stall_factor", "prefill_slack_s", "min_clean", "min_steps", "confidence", "running_req", "law")
WHAT_IF = ("weights", "kv", "hardware", "tp", "accept_len", "context_tok")

Controls = dict[str, widgets.Widget]


def count_controls(start: Measured, choice: Choice) -> Controls:
    """Return the controls of what counts: rules that are ignored, spans of time."""
    rejected = start.intervals.loc[~start.intervals["clean"], "why"]
    rules = list(dict.fromkeys([*choice.ignored_rules, *rejected.value_counts().index]))
    rules = [rule for rule in rules if not rule.startswith(READMITTED)]
    made = {
        "ignored_rules": widgets.SelectMultiple(options=rules, value=choice.ignored_rules, rows=6,
                                                description="ignored rules"),
        "without_spans": _spans("left out [s]", write_spans(choice.without_s)),
        "only_spans": _spans("only these [s]", write_spans(choice.only_s)),
    }
    return {name: labelled(control) for name, control in made.items()}


def _spans(description: str, spans: list[str]) -> widgets.Text:
    return widgets.Text(", ".join(spans), description=description, placeholder="start..end, start..end",
                        continuous_update=False)


def threshold_controls(start: Measured, choice: Choice, confidence: float) -> Controls:
    """Return the controls of thresholds, levels and law."""
    levels = start.levels[start.levels["step_s"].notna() & start.levels["population"].eq(0)]
    names = [level_key(value) for value in sorted(levels["running_req"].unique())]
    chosen = tuple(key for key in map(level_key, choice.running_req) if key in names)
    number = {"continuous_update": False, "step": None}
    made = {
        "stall_factor": widgets.FloatText(choice.clean.stall_factor, description="stall above [1]", **number),
        "prefill_slack_s": widgets.FloatText(choice.clean.prefill_slack_s, description="prefill slack [s]", **number),
        "min_clean": widgets.IntText(choice.level.min_clean, description="least [intervals]", continuous_update=False),
        "min_steps": widgets.IntText(choice.level.min_steps, description="least [steps]", continuous_update=False),
        "confidence": widgets.FloatText(confidence, description="confidence [1]", **number),
        "running_req": widgets.SelectMultiple(options=names, value=chosen, description="levels [req]",
                                              rows=min(4, max(2, len(names)))),
        "law": widgets.Dropdown(options=[BY_THE_LEVELS, *LAWS], value=choice.law or BY_THE_LEVELS, description="law"),
    }
    return {name: labelled(control) for name, control in made.items()}


def what_if_controls(start: Measured, change: Change | None) -> Controls:
    """Return the controls of one change of the deployment; they are off where no roofline is known."""
    change, allowed = change or Change(), start.fitted.allowed
    is_off = allowed is None or bool(start.fitted.refused)
    measured_tp = 1 if allowed is None else ranks_of(allowed)
    ranks = sorted({*RANKS, measured_tp, change.tp or 1})
    hardware = AS_MEASURED if change.hardware is None else change.hardware.name
    number = {"continuous_update": False, "step": None}
    made = {
        "weights": widgets.Dropdown(options=[AS_MEASURED, *FORMATS], value=change.weights or AS_MEASURED,
                                    description="weights [format]"),
        "kv": widgets.Dropdown(options=list(dict.fromkeys([AS_MEASURED, *KV_FORMATS, change.kv or AS_MEASURED])),
                               value=change.kv or AS_MEASURED, description="KV cache [format]"),
        "hardware": widgets.Dropdown(options=[AS_MEASURED, *board_names()], value=hardware,
                                     description="hardware [key]"),
        "tp": widgets.Dropdown(options=[(AS_MEASURED, 0), *((str(n), n) for n in ranks)], value=change.tp or 0,
                               description="tp [ranks]"),
        "accept_len": widgets.FloatText(change.accept_len or 0.0, description="accept len. [tok]", **number),
        "context_tok": widgets.FloatText(change.context_tok or 0.0, description="context [tok]", **number),
    }
    for control in made.values():
        control.disabled = is_off
    return {name: labelled(control) for name, control in made.items()}


def parameters_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """Turn the values of all controls into the parameters of notebook 09.

    Parameters
    ----------
    values : mapping
        Name of a control -> its value, for every name in COUNTS, THRESHOLDS and WHAT_IF.

    Returns
    -------
    dict
        Parameter -> value of the type that the notebook declares.
    """
    spans = {name: [text.strip() for text in values[name].split(",") if text.strip()]
             for name in ("without_spans", "only_spans")}
    return {
        "running_req": [float(key) for key in values["running_req"]],
        "law": "" if values["law"] == BY_THE_LEVELS else values["law"],
        "ignored_rules": list(values["ignored_rules"]),
        **{name: values[name] for name in ("stall_factor", "prefill_slack_s", "min_clean", "min_steps")},
        **spans,
        "what_if": write_change(**{name: values[name] for name in WHAT_IF}),
        "confidence": values["confidence"],
    }


def chosen_of(parameters: Mapping[str, Any]) -> tuple[Choice, Change | None, float]:
    """Return choice, change and confidence of the parameters of notebook 09, checked as the notebook checks them.

    Raises
    ------
    RooflogError
        A value that cannot be.
    """
    rest = dict(parameters)
    confidence = rest.pop("confidence")
    require_confidence(confidence)
    change = read_change(rest.pop("what_if"))
    return choice_of(**rest), change, confidence
