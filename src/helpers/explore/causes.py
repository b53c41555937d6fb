"""The panel of notebook 06: one cause after the other, with everything that speaks for and against it."""

from __future__ import annotations

import html
from collections.abc import Mapping
from typing import Any

import ipywidgets as widgets

from helpers.explore.panel import panel
from helpers.schema import RooflogError


def cause_html(card: Mapping[str, Any], cause: str) -> str:
    """Return status, facts and next experiment of a cause as HTML.

    Parameters
    ----------
    card : mapping
        The scorecard.
    cause : str
        As in its ``diagnosis``.

    Raises
    ------
    RooflogError
        No such cause.
    """
    by_name = {row["cause"]: row for row in card["diagnosis"]}
    if cause not in by_name:
        raise RooflogError(f"cause: expected one of {', '.join(by_name)}, found {cause}")
    row = by_name[cause]
    said = [f"<b>{html.escape(cause)}</b>: {html.escape(row['status'])}, score {row['score']:.3g} [1]"]
    for title, facts in (("for", row["evidence_for"]), ("against", row["evidence_against"])):
        items = "".join(f"<li>{html.escape(fact)}</li>" for fact in facts) or "<li>nothing was seen</li>"
        said.append(f"{title}<ul style='margin:0'>{items}</ul>")
    named = {"refuted by": "refuted_by", "contradiction": "contradiction", "decided by": "next_experiment"}
    for title, name in named.items():
        said += [f"{title}: {html.escape(row[name])}"] if row[name] else []
    return "<br>".join(said)


def causes_panel(card: Mapping[str, Any]) -> widgets.VBox:
    """Return the panel of notebook 06: choose a cause, best first; it changes no number."""
    names = [row["cause"] for row in card["diagnosis"]]
    controls = {"cause": widgets.Dropdown(options=names, description="cause [name]")}
    return panel(controls, lambda cause: cause_html(card, cause))
