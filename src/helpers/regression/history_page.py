"""The history of a folder of runs as one offline HTML page: the verdicts first, then table and figure of each."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from helpers import plots
from helpers.compare.words import percent
from helpers.display import show
from helpers.plots.history import history_panels
from helpers.regression.describe import VERDICT_WORDS
from helpers.regression.history import series_name
from helpers.report.figures import place
from helpers.report.page import document

TABLE_STYLE = """.history th:nth-child(-n+3), .history td:nth-child(-n+3) { text-align: left; }
.history td:first-child { white-space: normal; min-width: 6rem; } .history td.said { min-width: 11rem; }"""
"""What a reader needs is left, within the width of a phone; the rest scrolls."""


def history_figure(card: Mapping[str, Any], configuration: int) -> plots.Figure:
    """Return the figure of one configuration.

    Parameters
    ----------
    card : mapping
        From `history.history_card`.
    configuration : int
        Its number.
    """
    series = [entry for entry in card["series"] if entry["configuration"] == configuration]
    found = card["configurations"][configuration]
    return history_panels(series, [series_name(entry) for entry in series], threshold_frac=card["threshold_frac"],
                          title=found["sentence"], subtitle=found["words"])


def history_page(card: Mapping[str, Any]) -> str:
    """Return the page: no reference to the network, whatever the logs hold is shown as text.

    Parameters
    ----------
    card : mapping
        From `history.history_card`.
    """
    figures: list[str] = []
    title = f"History of runs, changes of more than {percent(card['threshold_frac'])}"
    parts = [f"<h1>{html.escape(title)}</h1>"]
    for i, found in enumerate(card["configurations"]):
        bad = " bad" if found["verdict"] == "worse" else ""
        parts += [f"<h2>{html.escape(found['words'])}</h2>",
                  f'<div class="answer{bad}"><p><strong>{html.escape(VERDICT_WORDS[found["verdict"]])}</strong>: '
                  f"{html.escape(found['sentence'])}</p></div>", _table(card, i)]
        parts.append(place(json.loads(history_figure(card, i).to_json()), figures))
    if card["notes"]:
        parts.append("".join(f"<p>{html.escape(note)}.</p>" for note in card["notes"]))
    if card["left_out"]:
        rows = "".join(f"<dt>{html.escape(entry['run'])}</dt><dd>{html.escape(entry['why'])}</dd>"
                       for entry in card["left_out"])
        parts.append(f"<h2>Left out ({len(card['left_out'])})</h2><dl>{rows}</dl>")
    return b"".join(document(title, parts, figures, TABLE_STYLE)).decode()


def _table(card: Mapping[str, Any], configuration: int) -> str:
    headers = ("quantity", "verdict", "changes", "runs", "latest", "latest run")
    rows = [f"<tr>{''.join(f'<th>{h}</th>' for h in headers)}</tr>"]
    for entry in (e for e in card["series"] if e["configuration"] == configuration):
        last = entry["points"][-1]
        verdict = VERDICT_WORDS[entry["verdict"]] if entry["is_judged"] else "described"
        cells = (len(entry["points"]), show(last["value"], entry["unit"], last["lo"], last["hi"]),
                 Path(last["run"]).name)
        rows.append(f"<tr><td>{html.escape(series_name(entry))}</td><td>{html.escape(verdict)}</td>"
                    f'<td class="said">{html.escape(entry["sentence"])}</td>'
                    f"{''.join(f'<td>{html.escape(str(cell))}</td>' for cell in cells)}</tr>")
    return f'<div class="wide history"><table>{"".join(rows)}</table></div>'
