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

from helpers import laws, plots
from helpers.display import level_key
from helpers.laws.band import confidence_band
from helpers.physics import hardware as catalogue
from helpers.physics import step
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


def roofline_figure(
    levels: pd.DataFrame, model: step.HandModel, hardware: str, *, weights_factor: float, kv_factor: float,
    context_tok: float, achievable_frac: float,
) -> plots.Figure:
    """Draw the roofline for other bytes, another context and another share of the peak bandwidth.

    Parameters
    ----------
    levels : DataFrame, schema LEVELS
    model : HandModel
        What the factors refer to.
    hardware : str
        Catalogue name.
    weights_factor, kv_factor : float
        Weights per step, and keys and values per token, over those of ``model`` [1].
    context_tok : float
        Context per request [tok]; 0 = as the levels say.
    achievable_frac : float in (0, 1]
        Share of the peak bandwidth of the target line [1].
    """
    changed = replace(model, weight_bytes_per_step=weights_factor * model.weight_bytes_per_step,
                      kv_bytes_per_tok=kv_factor * model.kv_bytes_per_tok)
    used = levels[levels["is_fitted"] & levels["population"].eq(0)]
    lines = step.roofline(changed, catalogue.find(hardware), used["running_req"],
                          context_tok if context_tok > 0 else used["context_tok"], step_s=used["step_s"],
                          achievable_frac=achievable_frac)
    return plots.roofline_steps(lines, used)


def roofline_panel(levels: pd.DataFrame, model: step.HandModel, hardware: str, achievable_frac: float) -> widgets.VBox:
    """Return the panel of notebook 05: weights, KV bytes, context, share of the peak bandwidth.

    Parameters
    ----------
    levels : DataFrame, schema LEVELS
    model : HandModel
        Where the panel starts.
    hardware : str
        Catalogue name.
    achievable_frac : float
        Share of the peak bandwidth where the panel starts [1].
    """
    controls = {
        "weights_factor": widgets.FloatSlider(1.0, min=0.1, max=3.0, step=0.05, description="weights [x given]"),
        "kv_factor": widgets.FloatSlider(1.0, min=0.0, max=8.0, step=0.25, description="KV bytes [x given]"),
        "context_tok": widgets.IntSlider(0, min=0, max=32768, step=64, description="context [tok]"),
        "achievable_frac": widgets.FloatSlider(achievable_frac, min=0.5, max=1.0, step=0.01,
                                               description="bandwidth [1]"),
    }
    return _panel(controls, lambda **chosen: roofline_figure(levels, model, hardware, **chosen))


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
