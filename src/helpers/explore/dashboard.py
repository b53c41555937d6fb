"""The explorer: one log under other choices, its law beside that of the notebook, its timeline to brush and click."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ipywidgets as widgets
import pandas as pd

from helpers import allowance, plots
from helpers.display import level_key, show
from helpers.explore import controls as made
from helpers.explore.command import Command
from helpers.explore.log_lines import lines_html
from helpers.explore.panel import command_html, complaint, figure_output
from helpers.explore.what_if import lever_of, lever_reading
from helpers.ingest import Log
from helpers.laws.band import confidence_band
from helpers.measure import Choice, Measured, Measurer
from helpers.physics.what_if.changes import Change
from helpers.physics.what_if.levers import Lever
from helpers.plots import live
from helpers.schema import LogFormatError, RooflogError

WIDTH_PX, TIMELINE_PX, HALF_PX, LAW_PX = 950, 360, 470, 320
"""Of the figures; a notebook in a window of 1,400 pixels has 960 beside the file browser."""

LEAVE_OUT, KEEP_ONLY = "leave it out", "keep only it"


@dataclass(frozen=True)
class Found:
    """What a choice gives.

    Attributes
    ----------
    measured : Measured
    lever : Lever or None
        The rate after a change of the deployment; None where none is asked for.
    """

    measured: Measured
    lever: Lever | None = None


class Explorer:
    """Controls, figures and numbers that follow them.

    Parameters
    ----------
    log : Log
    known : mapping
        Facts that the user states, as the notebook passed them on.
    choice, change, confidence
        Where the controls start: the parameters of the notebook.
    command : Command
        Begin of the line that repeats what is shown.
    groups : sequence of str
        Which controls are shown: counts, thresholds, what_if. The others stay where they start.

    Attributes
    ----------
    controls : dict of str to Widget
        By parameter; setting a ``value`` is what a person does.
    found : Found
        The last choice that could be computed.
    said : HTML
        One line where the present choice cannot be computed, else empty.
    line : str
        The command that repeats `found`.
    view : VBox
        All of it, to display.

    Raises
    ------
    RooflogError
        The choice that it starts with cannot be computed.
    """

    def __init__(
        self, log: Log, known: Mapping[str, Any], *, choice: Choice, confidence: float, command: Command,
        change: Change | None = None, groups: Sequence[str] = ("counts", "thresholds", "what_if"),
    ) -> None:
        self._measurer, self._command, self._events = Measurer(log, known), command, log.events
        self._start = self._compute(choice, change, confidence)
        start = self._start.measured
        self._groups = {
            "counts": made.count_controls(start, choice),
            "thresholds": made.threshold_controls(start, choice, confidence),
            "what_if": made.what_if_controls(start, change),
        }
        self.controls = {name: control for group in self._groups.values() for name, control in group.items()}
        self.found, self.line = self._start, ""
        self.said, self.numbers = widgets.HTML(), widgets.HTML()
        self._repeat, self._lines = widgets.HTML(), widgets.HTML(_HINT)
        self._law, self._bounds = (widgets.Output(layout={"width": f"{HALF_PX}px", "height": f"{LAW_PX + 8}px"})
                                   for _ in range(2))
        self._within_s: tuple[float, float] | None = None
        self._batch = False
        self._brush = widgets.ToggleButtons(options=[LEAVE_OUT, KEEP_ONLY], style={"button_width": "110px"},
                                            layout={"width": "250px"})
        self._forget = widgets.Button(description="all spans count", layout={"width": "130px"})
        self._forget.on_click(lambda _: self.forget_spans())
        self.timeline = live.live_figure(self._draw_timeline(start.intervals))
        for trace in self.timeline.data:
            self._attach(trace)
        live.on_zoom(self.timeline, self._zoomed)
        live.on_brush(self.timeline, self.brush)
        for control in self.controls.values():
            control.observe(self._changed, names="value")
        self._show(self._start)
        self.view = self._arranged(groups)

    def set(self, **values: Any) -> None:
        """Set several controls and compute once."""
        self._batch = True
        for name, value in values.items():
            self.controls[name].value = value
        self._batch = False
        self._changed()

    def brush(self, start_s: float, end_s: float) -> None:
        """Leave out or keep a span of time [s], as the buttons say; spans add up."""
        name = "without_spans" if self._brush.value == LEAVE_OUT else "only_spans"
        told = self.controls[name].value.strip()
        span = f"{round(start_s, 3)!r}..{round(end_s, 3)!r}"
        self.controls[name].value = f"{told}, {span}" if told else span

    def forget_spans(self) -> None:
        """Let all spans count again."""
        self.set(without_spans="", only_spans="")

    def click(self, t_s: float, line_no: int) -> None:
        """Show the log lines of the interval that ends at a time [s], on a line."""
        table = self.found.measured.intervals
        near = table[table["line_no"].eq(line_no)]
        at = near.loc[(near["t_s"] - t_s).abs().sort_values(kind="stable").index[:1]] if len(near) else near
        try:
            if at.empty:
                raise LogFormatError(f"line {line_no}: no interval ends there")
            self._lines.value = lines_html(str(at["file"].iloc[0]), line_no)
        except RooflogError as error:
            self._lines.value = complaint(str(error))

    def _compute(self, choice: Choice, change: Change | None, confidence: float) -> Found:
        measured = self._measurer.measure(confidence=confidence, choice=choice)
        fitted = measured.fitted
        return Found(measured, None if change is None else lever_of(fitted.allowed, fitted.refused, measured.levels,
                                                                    change))

    def _changed(self, _: object = None) -> None:
        if self._batch:
            return
        self.said.value = "<span style='color:#555'>computing …</span>"
        parameters = made.parameters_of({name: control.value for name, control in self.controls.items()})
        try:
            choice, change, confidence = made.chosen_of(parameters)
            self._show(self._compute(choice, change, confidence), parameters, change)
            self.said.value = ""
        except RooflogError as error:
            self.said.value = complaint(str(error))

    def _show(
        self, found: Found, parameters: Mapping[str, Any] | None = None, change: Change | None = None
    ) -> None:
        """Draw what was found, all of it or nothing; the timeline only where its intervals are others."""
        if parameters is None:
            parameters = made.parameters_of({name: control.value for name, control in self.controls.items()})
            _, change, _ = made.chosen_of(parameters)
        measured = found.measured
        law, bounds = law_figure(measured), bounds_figure(found, change)
        self.found = found
        self._law.outputs = figure_output(law)
        self._bounds.outputs = () if bounds is None else figure_output(bounds)
        if measured.intervals is not self._drawn:
            live.refresh(self.timeline, self._draw_timeline(measured.intervals), self._attach)
        self.numbers.value = numbers_html(self._start, found)
        self.line = self._command.line("09", **parameters)
        self._repeat.value = command_html(self.line)

    def _draw_timeline(self, intervals: pd.DataFrame) -> plots.Figure:
        self._drawn = intervals
        return live.live_timeline(intervals, self._events, within_s=self._within_s, width_px=WIDTH_PX,
                                  height_px=TIMELINE_PX)

    def _zoomed(self, within_s: tuple[float, float] | None) -> None:
        if within_s != self._within_s:
            self._within_s = within_s
            live.refresh(self.timeline, self._draw_timeline(self.found.measured.intervals), self._attach)

    def _attach(self, trace: Any) -> None:
        live.on_point(trace, self.click)

    def _arranged(self, groups: Sequence[str]) -> widgets.VBox:
        titles = {"counts": "What counts", "thresholds": "Thresholds, levels, law", "what_if": "What if"}
        columns = [
            widgets.VBox([widgets.HTML(f"<b>{titles[name]}</b>"), *self._groups[name].values()],
                         layout={"width": "316px", "overflow": "hidden"})
            for name in titles if name in groups
        ]
        return widgets.VBox([
            widgets.HBox(columns), self.said, self.numbers, widgets.HBox([self._law, self._bounds]),
            widgets.HBox([widgets.Label("a brushed span:"), self._brush, self._forget]), self.timeline, self._lines,
            self._repeat,
        ], layout={"width": f"{WIDTH_PX + 8}px"})


_HINT = ("<span style='color:#555'>Drag over the timeline to brush a span; click a point to see its log lines. The "
         "toolbar at its right side has zoom and pan.</span>")


def law_figure(measured: Measured) -> plots.Figure:
    """Draw the law of a choice with its levels and band."""
    fits = measured.fitted.fits
    figure = plots.step_vs_running_req(measured.levels, fits, band=confidence_band(measured.levels, fits.selected),
                                       show_candidates=False)
    return live.compact(figure, HALF_PX, LAW_PX)


def bounds_figure(found: Found, change: Change | None) -> plots.Figure | None:
    """Draw the roofline, of the changed deployment where one is asked for; None where none is known."""
    allowed = found.measured.fitted.allowed
    if allowed is None or found.measured.fitted.refused:
        return None
    lines = allowed.roofline if change is None else allowance.changed_roofline(allowed, change)
    return live.compact(plots.roofline_steps(lines, found.measured.levels), HALF_PX, LAW_PX)


def number_rows(found: Found) -> dict[str, str]:
    """Return the numbers of a choice as a person reads them, with their intervals: name and unit -> text."""
    measured, fits = found.measured, found.measured.fitted.fits
    law, fitted = fits.selected, measured.levels[measured.levels["is_fitted"]]
    n_clean = int(measured.intervals["clean"].sum())
    rows = {"law of step time": f"none: {law.refused}" if law.refused else law.law}
    if not law.refused:
        rows |= {_name(parameter.name): show(parameter.value, parameter.unit, parameter.lo, parameter.hi)
                 for parameter in law.parameters}
        rows["asymptote"] = show(law.asymptote_tok_per_s, "tok/s", law.asymptote_tok_per_s_lo,
                                 law.asymptote_tok_per_s_hi)
    rows["levels in the law [req]"] = ", ".join(dict.fromkeys(level_key(n) for n in fitted["running_req"])) or "none"
    rows["clean intervals"] = f"{n_clean} of {len(measured.intervals)}"
    return rows


def _name(parameter: str) -> str:
    known = {"intercept_s": "intercept", "slope_s_per_req": "slope"}
    return known.get(parameter, parameter.split("_s")[0].replace("_", " "))


def numbers_html(start: Found, found: Found) -> str:
    """Return the numbers of the notebook beside those of the present choice, as HTML; what differs is bold."""
    before, after = number_rows(start), number_rows(found)
    rows = []
    for name in dict.fromkeys([*after, *before]):
        was, now = html.escape(before.get(name, "-")), html.escape(after.get(name, "-"))
        rows.append(f"<tr><td>{html.escape(name)}</td><td>{was}</td>"
                    f"<td>{f'<b>{now}</b>' if was != now else now}</td></tr>")
    confidence = 100 * found.measured.fitted.fits.selected.confidence
    head = (f"<tr style='text-align:left'><th>intervals in brackets: {confidence:g} %</th><th>as the notebook has it"
            "</th><th>with these choices</th></tr>")
    lever = "" if found.lever is None else f"<div><b>{html.escape(lever_reading(found.lever))}</b></div>"
    return (f"<table style='border-spacing:14px 1px;border-collapse:separate;line-height:1.4'>{head}{''.join(rows)}"
            f"</table>{lever}")
