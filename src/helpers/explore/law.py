"""The panel of notebook 04: confidence, levels, law."""

from __future__ import annotations

from dataclasses import replace

import ipywidgets as widgets
import pandas as pd

from helpers import laws, plots
from helpers.display import level_key
from helpers.explore.command import Command
from helpers.explore.panel import panel
from helpers.laws.band import confidence_band
from helpers.measure import Choice, Measurer
from helpers.schema import RooflogError

SELECTED = "the selected one"


def law_figure(
    levels: pd.DataFrame, *, confidence: float, running_req: tuple[str, ...], law: str,
    measurer: Measurer | None = None, choice: Choice | None = None,
) -> plots.Figure:
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
    measurer : Measurer, optional
        Of the log of the levels: they are estimated again, with everything that notebook 09 takes into account.
    choice : Choice, optional
        What counts beside levels and law.

    Raises
    ------
    RooflogError
        With a measurer: a law that these levels do not allow, or a confidence that cannot be.
    """
    if measurer is not None:
        found = measurer.measure(confidence=confidence, choice=choice_of_law(choice, levels, running_req, law))
        chosen, shown, note = found.levels, found.fitted.fits, ""
    else:
        kept = levels["running_req"].map(level_key).isin(running_req)
        chosen = levels.assign(is_fitted=levels["is_fitted"] & kept)
        fits = laws.fit_laws(chosen, confidence=confidence)
        by_name = {candidate.law: candidate for candidate in fits.candidates}
        shown = fits if law == SELECTED or law not in by_name else replace(fits, selected=by_name[law])
        note = "" if law in (SELECTED, *by_name) else f"{law} needs more levels; the selected law is drawn"
    band = confidence_band(chosen, shown.selected)
    return plots.step_vs_running_req(chosen, shown, band=band, show_candidates=False, subtitle=note)


def choice_of_law(choice: Choice | None, levels: pd.DataFrame, running_req: tuple[str, ...], law: str) -> Choice:
    """Return a choice with levels and law; no level is named where all that can be fitted are chosen.

    Raises
    ------
    RooflogError
        No level is chosen.
    """
    if not running_req:
        raise RooflogError("levels: expected at least one to be chosen, found none")
    every = set(levels.loc[levels["is_fitted"], "running_req"].map(level_key))
    chosen = () if every <= set(running_req) else tuple(float(key) for key in running_req)
    return replace(choice or Choice(), running_req=chosen, law="" if law == SELECTED else law)


def law_panel(
    levels: pd.DataFrame, *, confidence: float, measurer: Measurer | None = None, choice: Choice | None = None,
    command: Command | None = None,
) -> widgets.VBox:
    """Return the panel of notebook 04: confidence, levels, law.

    Parameters
    ----------
    levels : DataFrame, schema LEVELS
    confidence : float in (0, 1)
        Where the panel starts.
    measurer, choice : as for `law_figure`
    command : Command, optional
        Begin of the line that repeats what is shown.
    """
    fitted = levels[levels["is_fitted"]].sort_values("running_req")
    names = [level_key(value) for value in fitted["running_req"].unique()]
    if measurer is None:
        fits = laws.fit_laws(levels, confidence=confidence)
    else:
        fits = measurer.measure(confidence=confidence, choice=choice).fitted.fits
    controls = {
        "confidence": widgets.FloatSlider(confidence, min=0.5, max=0.99, step=0.01, description="confidence [1]"),
        "running_req": widgets.SelectMultiple(options=names, value=tuple(names), description="levels [req]",
                                              rows=min(8, max(2, len(names)))),
        "law": widgets.Dropdown(options=[SELECTED, *(candidate.law for candidate in fits.candidates)],
                                description="law"),
    }

    def line(confidence: float, running_req: tuple[str, ...], law: str) -> str:
        chosen = choice_of_law(choice, levels, running_req, law)
        asked = {"running_req": list(chosen.running_req), "law": chosen.law, "confidence": confidence,
                 "min_clean": chosen.level.min_clean}
        return "" if command is None else command.line("09", **asked)

    def draw(confidence: float, running_req: tuple[str, ...], law: str) -> plots.Figure:
        return law_figure(levels, confidence=confidence, running_req=running_req, law=law, measurer=measurer,
                          choice=choice)

    return panel(controls, draw, line if command is not None else None)
