"""The first screen: what went wrong, the sentence that answers, law, roofline, next experiment, causes, one figure."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

from helpers.report import words
from helpers.report.cells import ERROR_ID
from helpers.report.markup import inline
from helpers.report.tables import Cell, render_table, text_cell

PARTS = (("Law", ("law",)), ("Distance from the roofline", ("roofline",)), ("Next experiment", ("next",)))
"""Heading -> parts of the answer beside the figure."""

MAX_DOUBTS = 2
"""Doubts in sight at first."""


def first_screen(
    card: Mapping[str, Any] | None, run: Mapping[str, Any] | None, figure: str, *, is_wide: bool = False
) -> str:
    """Return what a reader sees without scrolling.

    Parameters
    ----------
    card : mapping or None
        Scorecard or comparison; None where the run ended without one.
    run : mapping or None
        run.json.
    figure : str
        HTML of the one figure; may be empty.
    is_wide : bool
        It needs the whole width: it then stands below the words, not beside them.
    """
    failure = words.failure_of(run)
    parts = [f'<div class="answer bad" role="alert"><p><strong>{html.escape(failure)}</strong></p>'
             f"{'' if card else _no_answer()}</div>"] if failure else []
    if card:
        parts.append(_comparison(card, figure) if words.is_comparison(card) else _answer(card, figure, is_wide))
    elif figure:
        parts.append(figure)
    return "\n".join(parts)


def _no_answer() -> str:
    return ("<p>The run ended without an answer: there is no scorecard, and no number below has passed its checks. The "
            f'sections below show how far it came; <a href="#{ERROR_ID}">where it ended</a>.</p>')


def _answer(card: Mapping[str, Any], figure: str, is_wide: bool) -> str:
    answer = words.answer_of(card)
    doubts = answer.part("doubt")
    checks = _paragraphs(answer.part("check"))
    failed = f'<div class="answer bad" role="alert">{checks}</div>' if checks else ""
    columns = "".join(f"<div><h2>{heading}</h2>{_paragraphs(_without_heading(answer.part(*names), heading))}</div>"
                      for heading, names in PARTS if answer.part(*names))
    refused = ' bad' if (card.get("fit") or {}).get("refused") else ""
    rows = words.causes(card)
    table = f"<h2>Causes, the best first</h2>{_table(rows, 'Causes', 'causes')}" if rows else ""
    return (f'{failed}<section class="answer{refused}" aria-label="Answer">{_lead(answer.lead)}'
            f'<div class="{"stacked" if is_wide else "beside"}"><div class="facts">{columns}</div>{figure}</div>{table}'
            f"{_paragraphs(answer.part('others'), 'small')}{_doubts(doubts)}</section>"
            f"{_paragraphs(answer.part('more', 'measured', 'client'))}{_whole(answer.text)}")


def _comparison(card: Mapping[str, Any], figure: str) -> str:
    answer = words.answer_of(card)
    bad = " bad" if (card.get("overall") or {}).get("verdict") in ("worse", "mixed") else ""
    rows = words.effects(card)
    table = f"<h2>Every row</h2>{_table(rows, 'Every row of the comparison', 'effects')}" if rows else ""
    return (f'<section class="answer{bad}" aria-label="Answer">{_lead(answer.lead)}{_paragraphs(answer.part("more"))}'
            f'<div class="beside compared"><div class="facts">{table}</div>{figure}</div></section>'
            f"{_whole(answer.text)}")


def _lead(lines: Sequence[str]) -> str:
    return "".join(f'<p class="lead">{inline(line)}</p>' for line in lines[:1]) + _paragraphs(lines[1:])


def _paragraphs(lines: Sequence[str], name: str = "") -> str:
    shown = f' class="{name}"' if name else ""
    return "".join(f"<p{shown}>{inline(line)}</p>" for line in lines)


def _without_heading(lines: Sequence[str], heading: str) -> list[str]:
    """Drop the words that stand as heading above."""
    if not lines:
        return []
    first = lines[0].removeprefix(f"{heading}: ").removeprefix(f"{heading}, ")
    return [first[:1].upper() + first[1:], *lines[1:]]


def _doubts(doubts: Sequence[str]) -> str:
    """Show the first doubts and fold the others."""
    rest = doubts[MAX_DOUBTS:]
    folded = f"<details><summary>{len(rest)} more doubts</summary>{_paragraphs(rest)}</details>" if rest else ""
    return _paragraphs(doubts[:MAX_DOUBTS], "doubt") + folded


def _whole(text: str) -> str:
    return (f'<details class="whole"><summary>The whole answer as text</summary><pre>{html.escape(text)}</pre>'
            "</details>")


def _table(rows: Sequence[Mapping[str, str]], label: str, name: str) -> str:
    def cell(column: str, text: str) -> Cell:
        if column in ("status", "verdict"):
            return Cell(f'<span class="status {html.escape(text.replace(" ", "-"))}">{html.escape(text)}</span>', text)
        return text_cell(text)

    head = [text_cell(column) for column in rows[0]]
    return render_table(head, [[cell(column, text) for column, text in row.items()] for row in rows], label, name=name)
