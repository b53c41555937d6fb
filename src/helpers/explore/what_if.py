"""What a changed deployment would give: the panel of notebook 05, and changes as text."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import ipywidgets as widgets
import pandas as pd

from helpers import allowance, plots
from helpers.allowance import Allowance
from helpers.display import requests, show
from helpers.explore.command import Command
from helpers.explore.panel import panel
from helpers.facts import read_context
from helpers.physics.catalogue import hardware as catalogue
from helpers.physics.model.formats import FORMATS
from helpers.physics.steps.hand import HandModel
from helpers.physics.what_if.levers import Change, Lever
from helpers.schema import RooflogError

AS_MEASURED = "as measured"


def what_if_figure(
    allowed: Allowance, levels: pd.DataFrame, *, weights: str, hardware: str, tp: int, context_tok: float
) -> plots.Figure:
    """Draw the roofline of a changed deployment, with what the change would give from the measured step.

    Parameters
    ----------
    allowed : Allowance
        The deployment as it was measured.
    levels : DataFrame, schema LEVELS
        For the whiskers of the measured steps.
    weights : str
        Weight format, or `AS_MEASURED`.
    hardware : str
        Catalogue name.
    tp : int
        Ranks that share the model.
    context_tok : float
        Context per request [tok]; 0 = as measured.
    """
    change = Change(
        weights=None if weights == AS_MEASURED else weights, tp=tp, hardware=catalogue.find(hardware),
        context_tok=context_tok if context_tok > 0 else None,
    )
    lever = allowance.lever_of(allowed, levels, change)
    lines = allowance.changed_roofline(allowed, change)
    if lever.refused:
        title = f"The change is refused: {lever.refused}"
    else:
        rate = show(lever.tok_per_s, "tok/s", lever.lo, lever.hi)
        title = f"{rate} at {requests(lever.running_req)}, {100 * lever.change_frac:+.0f} % of what was measured"
    return plots.roofline_steps(lines, levels, title=title)


CHANGE_TEXTS, CHANGE_NUMBERS = ("weights", "kv", "hardware"), ("tp", "accept_len", "context_tok")
"""Names of a change as notebook 09 takes it."""


def read_change(text: str) -> Change | None:
    """Read one change of the deployment.

    Parameters
    ----------
    text : str
        JSON object of any of weights, kv, hardware (names) and tp [ranks], accept_len, context_tok [tok]; or empty.

    Returns
    -------
    Change or None
        None where nothing changes.

    Raises
    ------
    RooflogError
        No such object, another name, a value of another kind, or hardware that no catalogue has.
    """
    given = read_context(text, "what_if")
    values: dict[str, Any] = {}
    for name, value in given.items():
        if name in CHANGE_TEXTS and isinstance(value, str) and value:
            values[name] = catalogue.find(value) if name == "hardware" else value
        elif name in CHANGE_NUMBERS and isinstance(value, int | float) and not isinstance(value, bool) \
                and math.isfinite(value) and value > 0 and (name != "tp" or value == int(value)):
            values[name] = int(value) if name == "tp" else float(value)
        elif name in CHANGE_TEXTS + CHANGE_NUMBERS:
            what = "a name" if name in CHANGE_TEXTS else "a whole number from 1" if name == "tp" else "a number above 0"
            raise RooflogError(f"what_if: {name}: expected {what}, found {value!r}")
        else:
            raise RooflogError(f"what_if: expected any of {', '.join(CHANGE_TEXTS + CHANGE_NUMBERS)}, found {name!r}")
    return Change(**values) if values else None


def write_change(**values: Any) -> str:
    """Write a change as `read_change` takes it; what is empty, zero or as measured is left away."""
    asked = {name: value for name, value in values.items() if value not in ("", 0, None, AS_MEASURED)}
    return json.dumps(asked) if asked else ""


def lever_of(allowed: Allowance | None, refused: str | None, levels: pd.DataFrame, change: Change) -> Lever:
    """Say what a change would give at the highest level, from its measured step.

    Raises
    ------
    RooflogError
        No roofline is known, or the change cannot be.
    """
    if allowed is None or refused:
        raise RooflogError(f"what_if: no roofline, so no change can be computed: {refused}")
    lever = allowance.lever_of(allowed, levels, change)
    if lever.refused:
        raise RooflogError(f"what_if: {lever.refused}")
    return replace(lever, lever=change_words(change))


def change_words(change: Change) -> str:
    """Name a change."""
    said = [f"{name} {value}" for name, value in (("weights", change.weights), ("KV cache", change.kv)) if value]
    said += [] if change.hardware is None else [change.hardware.name]
    said += [] if change.tp is None else [f"tp {change.tp}"]
    said += [f"{name} {show(value, 'tok')}" for name, value in (
        ("accept length", change.accept_len), ("context", change.context_tok)) if value is not None]
    return ", ".join(said)


def lever_entry(lever: Lever) -> dict[str, Any]:
    """Return a lever as an entry of the scorecard's ``levers``."""
    names = ("lever", "tok_per_s", "lo", "hi", "step_s", "step_s_lo", "step_s_hi", "change_frac", "assumes", "refused")
    return {name: getattr(lever, name) for name in names}


def lever_reading(lever: Lever) -> str:
    """Say in one sentence what a change would give."""
    rate = show(lever.tok_per_s, "tok/s", lever.lo, lever.hi)
    return (f"With {lever.lever}: {rate} at {requests(lever.running_req)}, "
            f"{round(100 * lever.change_frac):+d} % against what was measured.")


def what_if_panel(allowed: Allowance, levels: pd.DataFrame, *, command: Command | None = None) -> widgets.VBox:
    """Return the panel of notebook 05: weights, accelerator, ranks, context; it starts at the measured deployment.

    Parameters
    ----------
    allowed : Allowance
        With a roofline.
    levels : DataFrame, schema LEVELS
    command : Command, optional
        Begin of the line that repeats what is shown.
    """
    measured_tp, board = ranks_of(allowed), allowed.deployment.hardware.name
    controls = {
        "weights": widgets.Dropdown(options=[AS_MEASURED, *FORMATS], description="weights"),
        "hardware": widgets.Dropdown(options=board_names(), value=board, description="hardware"),
        "tp": widgets.SelectionSlider(options=sorted({1, 2, 4, 8, 16, measured_tp}), value=measured_tp,
                                      description="tp [ranks]"),
        "context_tok": widgets.IntSlider(0, min=0, max=131072, step=256, description="context [tok]"),
    }

    def line(weights: str, hardware: str, tp: int, context_tok: float) -> str:
        change = write_change(weights=weights, hardware=hardware if hardware != board else "",
                              tp=tp if tp != measured_tp else 0, context_tok=context_tok)
        return "" if command is None else command.line("09", what_if=change)

    return panel(controls, lambda **chosen: what_if_figure(allowed, levels, **chosen),
                 line if command is not None else None)


def ranks_of(allowed: Allowance) -> int:
    """Return the tensor-parallel ranks of the measured deployment."""
    model = allowed.deployment.model
    return model.tp if isinstance(model, HandModel) else model.parallel.tp


def board_names() -> list[str]:
    """Return the accelerators of the catalogue."""
    return list(catalogue.catalogue()["name"])
