"""The answer of a run in Markdown, to paste into an issue or a chat."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from helpers.report import words

FILE_NAME = "summary.md"

MAX_LEVELS = 40
"""Levels in the table; an issue is no place for more."""

HASH_CHARS = 12
"""Of each SHA-256: enough to tell inputs apart; run.json has all of it."""

MARKS = "\\`*~|"
"""Characters that mean something in Markdown wherever they stand."""

MARKS_BEFORE = {"]": "([:", "!": "[", "#": "0123456789", "[": " xX^"}
"""Character -> those before which it means something: a link, a picture, an issue, a box to tick, a note."""


def summarise(card: Mapping[str, Any] | None, run: Mapping[str, Any] | None = None) -> str:
    """Return the answer in Markdown.

    Parameters
    ----------
    card : mapping or None
        Scorecard or comparison; None where the run ended without one.
    run : mapping, optional
        run.json.

    Returns
    -------
    str
        Sentences and tables; whatever came from a log is escaped, and calls nobody by "@name".
    """
    failure = words.failure_of(run)
    parts = [f"**{escape(failure)}**"] if failure else []
    if card is None:
        parts.append("The run ended without an answer: there is no scorecard.")
    elif words.is_comparison(card):
        answer = words.answer_of(card)
        parts += [*_lines(answer.lead, bold=True), *_lines(answer.part("more")), _table(words.effects(card))]
    else:
        parts += _answer(card)
    return "\n\n".join(filter(None, [*parts, _foot(card, run)])) + "\n"


def _answer(card: Mapping[str, Any]) -> list[str]:
    answer = words.answer_of(card)
    levels = words.level_rows(card)
    left = f"{len(levels) - MAX_LEVELS} more levels are in the report." if len(levels) > MAX_LEVELS else ""
    return [*_lines(answer.part("check"), bold=True), *_lines(answer.lead, bold=True),
            *_lines(answer.part("law", "roofline", "next")), _table(words.causes(card)),
            *_lines(answer.part("others")), *_lines(answer.part("more", "measured")), _table(levels[:MAX_LEVELS]), left,
            *_lines(answer.part("client", "doubt"))]


def _lines(lines: Sequence[str], *, bold: bool = False) -> list[str]:
    return [f"**{escape(line)}**" if bold else escape(line) for line in lines]


def _table(rows: Sequence[Mapping[str, str]]) -> str:
    if not rows:
        return ""
    head = list(rows[0])
    lines = [head, ["---"] * len(head), *([escape(row[name]) for name in head] for row in rows)]
    lines[0] = [escape(name) for name in head]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _foot(card: Mapping[str, Any] | None, run: Mapping[str, Any] | None) -> str:
    """Say what made it, on which input, by which command."""
    versions = (run or {}).get("versions") or {}
    known = (run or {}).get("log_sha256") or ((card or {}).get("run") or {}).get("log_sha256") or []
    hashes = ", ".join(str(text)[:HASH_CHARS] for text in known)
    method = versions.get("method", (card or {}).get("method_version"))
    parts = [f"rooflog {escape(str(versions.get('rooflog', '(version not recorded)')))}",
             f"method {escape(str(method))}" if method is not None else "",
             escape(words.source_line(card)) if card else "", f"sha256 of the input {escape(hashes)}" if hashes else ""]
    command = str((run or {}).get("command") or "")
    return " · ".join(filter(None, parts)) + (f"\n\n{_code(command)}" if command else "")


def _code(text: str) -> str:
    """Return a line of code between more backticks than it holds in a row."""
    flat = " ".join(text.split())
    fence = "`"
    while fence in flat:
        fence += "`"
    return f"{fence} {flat} {fence}"


def escape(text: str) -> str:
    """Return text that Markdown shows as it is, on one line.

    Examples
    --------
    >>> escape("kv_cache <b> [1, 2] @you")
    'kv_cache &lt;b&gt; [1, 2] @\u200byou'
    """
    flat = " ".join(text.split())
    out = []
    for i, char in enumerate(flat):
        inside_word = 0 < i < len(flat) - 1 and flat[i - 1].isalnum() and flat[i + 1].isalnum()
        before = flat[i + 1 : i + 2]
        if char in MARKS or (char == "_" and not inside_word) or (before and before in MARKS_BEFORE.get(char, "")):
            out.append("\\" + char)
        elif char == "@":
            out.append("@\u200b")  # a space of no width: no person is called
        else:
            out.append({"&": "&amp;", "<": "&lt;", ">": "&gt;"}.get(char, char))
    return "".join(out)
