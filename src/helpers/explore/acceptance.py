"""The panel of notebook 07: what another accept length would give."""

from __future__ import annotations

import ipywidgets as widgets

from helpers import plots
from helpers.explore.command import Command
from helpers.explore.panel import panel
from helpers.physics.speculative import payoff
from helpers.physics.speculative.payoff import MeasuredRound
from helpers.physics.speculative.round_model import RoundModel
from helpers.physics.speculative.speculation import AcceptanceLine
from helpers.plots.speculation import rate_vs_accept_len
from helpers.readings.speculation import what_if_reading


def acceptance_figure(
    line: AcceptanceLine, measured: MeasuredRound, model: RoundModel | None, *, accept_len: float
) -> plots.Figure:
    """Draw the rate over the accept length; the title says what another one would give.

    Parameters
    ----------
    line : AcceptanceLine
    measured : MeasuredRound
    model : RoundModel or None
        As notebook 07 has it.
    accept_len : float
        Tokens per request and round [tok].

    Raises
    ------
    RooflogError
        An accept length that cannot be.
    """
    case = payoff.what_if(measured, accept_len=accept_len, model=model)
    return rate_vs_accept_len(line, title=what_if_reading(case).split(", from ")[0],
                              subtitle="; ".join(case.warnings))


def acceptance_panel(
    line: AcceptanceLine, measured: MeasuredRound, model: RoundModel | None, *, command: Command | None = None
) -> widgets.VBox:
    """Return the panel of notebook 07: the accept length; it starts at what was measured.

    Parameters
    ----------
    line, measured, model : as for `acceptance_figure`
    command : Command, optional
        Begin of the line that repeats what is shown: a row of the table of other accept lengths.
    """
    controls = {
        "accept_len": widgets.FloatText(round(measured.accept_len, 6), description="accept len. [tok]", step=0.1,
                                        continuous_update=False),
    }

    def repeat(accept_len: float) -> str:
        return "" if command is None else command.line("07", accept_lens=[accept_len], draft_lens="[]")

    return panel(controls, lambda **chosen: acceptance_figure(line, measured, model, **chosen),
                 repeat if command is not None else None)
