"""Panels to try other choices by hand: the same pure functions and the same figures as the notebooks.

A panel is the last cell of a notebook and changes nothing before it; a choice that cannot be computed is answered in
words.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import ipywidgets as widgets
import pandas as pd

from helpers import allowance, laws, plots
from helpers.allowance import Allowance
from helpers.display import level_key, requests, show
from helpers.laws.band import confidence_band
from helpers.physics.catalogue import hardware as catalogue
from helpers.physics.model.formats import FORMATS
from helpers.physics.steps.hand import HandModel
from helpers.physics.what_if.levers import Change
from helpers.schema import RooflogError

SELECTED = "the selected one"
PLOTLY_MIME = "application/vnd.plotly.v1+json"


def law_figure(levels: pd.DataFrame, *, confidence: float, running_req: tuple[str, ...], law: str) -> plots.Figure:
    """Fit the chosen levels again and draw one law.

    Parameters
    ----------
    levels : DataFrame, schema LEVELS
    confidence : float in (0, 1)
        Of every interval.
    running_req : tuple of str
        Levels that stay, as `display.level_key` writes them.
    law : str
        A law by name, or `SELECTED`.
    """
    kept = levels["running_req"].map(level_key).isin(running_req)
    chosen = levels.assign(is_fitted=levels["is_fitted"] & kept)
    fits = laws.fit_laws(chosen, confidence=confidence)
    by_name = {candidate.law: candidate for candidate in fits.candidates}
    shown = fits if law == SELECTED or law not in by_name else replace(fits, selected=by_name[law])
    band = confidence_band(chosen, shown.selected)
    note = "" if law in (SELECTED, *by_name) else f"{law} needs more levels; the selected law is drawn"
    return plots.step_vs_running_req(chosen, shown, band=band, show_candidates=False, subtitle=note)


def law_panel(levels: pd.DataFrame, *, confidence: float) -> widgets.VBox:
    """Return the panel of notebook 04: confidence, levels, law.

    Parameters
    ----------
    levels : DataFrame, schema LEVELS
    confidence : float in (0, 1)
        Where the panel starts.
    """
    fitted = levels[levels["is_fitted"]].sort_values("running_req")
    names = [level_key(value) for value in fitted["running_req"].unique()]
    known = [candidate.law for candidate in laws.fit_laws(levels, confidence=confidence).candidates]
    controls = {
        "confidence": widgets.FloatSlider(confidence, min=0.5, max=0.99, step=0.01, description="confidence [1]"),
        "running_req": widgets.SelectMultiple(options=names, value=tuple(names), description="levels [req]",
                                              rows=min(8, max(2, len(names)))),
        "law": widgets.Dropdown(options=[SELECTED, *known], description="law"),
    }
    return _panel(controls, lambda **chosen: law_figure(levels, **chosen))


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


def what_if_panel(allowed: Allowance, levels: pd.DataFrame) -> widgets.VBox:
    """Return the panel of notebook 05: weights, accelerator, ranks, context; it starts at the measured deployment.

    Parameters
    ----------
    allowed : Allowance
        With a roofline.
    levels : DataFrame, schema LEVELS
    """
    model = allowed.deployment.model
    tp = model.tp if isinstance(model, HandModel) else model.parallel.tp
    boards = list(catalogue.catalogue()["name"])
    controls = {
        "weights": widgets.Dropdown(options=[AS_MEASURED, *FORMATS], description="weights"),
        "hardware": widgets.Dropdown(options=boards, value=allowed.deployment.hardware.name, description="hardware"),
        "tp": widgets.SelectionSlider(options=sorted({1, 2, 4, 8, 16, tp}), value=tp, description="tp [ranks]"),
        "context_tok": widgets.IntSlider(0, min=0, max=131072, step=256, description="context [tok]"),
    }
    return _panel(controls, lambda **chosen: what_if_figure(allowed, levels, **chosen))


def _panel(controls: dict[str, widgets.Widget], figure: Callable[..., plots.Figure]) -> widgets.VBox:
    """Join controls and the figure they change; an input that cannot be used is answered in words.

    The output is set as a value. Capturing what a function displays (``interactive_output``) makes a headless client
    wait for ever now and then: under load it misses that the cell has ended.
    """
    shown = widgets.Output()

    def draw(_: object = None) -> None:
        try:
            chosen = figure(**{name: control.value for name, control in controls.items()})
            data = {PLOTLY_MIME: json.loads(chosen.to_json())}
        except RooflogError as error:
            data = {"text/plain": str(error)}
        shown.outputs = ({"output_type": "display_data", "data": data, "metadata": {}},)

    for control in controls.values():
        control.style.description_width = "110px"
        control.observe(draw, names="value")
    draw()
    return widgets.VBox([*controls.values(), shown])
