"""What a pipeline shows of a comparison: a job summary in GitHub's Markdown, and JUnit XML.

Both speak of a comparison card as `compare.compare_sides` returns it, or of several. Texts of logs and file names are
untrusted: in Markdown all that could be markup is escaped, in XML what no XML may hold is left out.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any
from xml.etree import ElementTree

import pandas as pd

from helpers.compare.words import effect, percent, quantity
from helpers.display import show
from helpers.regression.describe import VERDICT_WORDS, differences_table, rows_table, shown_path

Card = Mapping[str, Any]

GATE_WORDS = {0: "PASS", 1: "FAIL", 2: "INCONCLUSIVE"}
"""Exit code of a comparison -> word of the gate."""

MARKUP = "\\`*_[]#|~!$@"
"""Characters that GitHub's Markdown may read as markup, outside HTML; $ begins a formula, @ names a person."""

MAX_TEXT = 2000
"""Characters of one text in a summary; GitHub takes 1 MiB in all."""

MAX_LISTED = 200
"""Differences or notes listed in a summary; the others are counted, and stand in comparison.json."""

NAME = "rooflog compare"


def to_markdown(cards: Card | Sequence[Card]) -> str:
    """Return the job summary: verdict, what moved, validity, what is needed, every row; all else is folded.

    Parameters
    ----------
    cards : mapping or sequence of mappings
        One or several comparison cards.

    Returns
    -------
    str
        Markdown that ends with a line feed; several summaries may follow each other in one file.
    """
    return "\n".join(_summary(card, name) for name, card in _named(cards))


def to_junit(cards: Card | Sequence[Card]) -> str:
    """Return JUnit XML: a test suite per comparison; its cases are the verdict, the validity and every judged row.

    Worse is a failure, cannot tell is skipped with what is needed; the case of the verdict fails where the gate does. A
    row of sides that are not comparable never fails.

    Parameters
    ----------
    cards : mapping or sequence of mappings
        One or several comparison cards.
    """
    suites = [_suite(card, name) for name, card in _named(cards)]
    root = ElementTree.Element("testsuites", {"name": NAME, **_totals(suites)})
    root.extend(suites)
    ElementTree.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ElementTree.tostring(root, encoding="unicode")}\n'


def _named(cards: Card | Sequence[Card]) -> list[tuple[str, Card]]:
    """Name each card by what it compares."""
    several = [cards] if isinstance(cards, Mapping) else list(cards)
    return [(f"{_side(card, 'new')} against {_side(card, 'base')}", card) for card in several]


def _side(card: Card, side: str) -> str:
    paths = [shown_path(entry["path"]) for entry in card[side]["inputs"]]
    more = len(dict.fromkeys(paths)) - 1
    return f"{paths[0]}{f' and {more} more' if more else ''}" if paths else f"no {side} run"


def _summary(card: Card, name: str) -> str:
    lines = [
        f"## {GATE_WORDS[card['exit_code']]}: {VERDICT_WORDS[card['overall']['verdict']]}", "",
        f"{markdown(name)}, changes of more than {percent(card['threshold_frac'])}. "
        f"{markdown(card['overall']['sentence'])}", "",
    ]
    for head, said in (("What moved", card["term"]["sentence"]), ("Validity", card["validity"]["sentence"]),
                       ("To tell more", card["overall"]["needed"])):
        lines += [f"**{head}:** {markdown(said)}", ""] if said else []
    if card["rows"]:
        lines += [*_frame(rows_table(card)), ""]
    differences = differences_table(card)
    lines += _folded("Configuration differences", _frame(differences), len(differences))
    inputs = [[side, entry["path"], entry["how"],
               "" if entry["server_life"] is None else entry["server_life"], entry["n_levels"],
               " ".join(entry["log_sha256"])] for side in ("base", "new") for entry in card[side]["inputs"]]
    lines += _folded("Inputs", _table(["side", "input", "numbers", "server life", "levels", "sha256"], inputs),
                     len(inputs))
    lines += _folded("Notes", _bullets(card["notes"]), len(card["notes"]))
    return "\n".join(lines)


def _frame(frame: pd.DataFrame) -> list[str]:
    return _table(list(frame.columns), frame.to_numpy().tolist())


def _table(headers: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    kept = [headers, ["---"] * len(headers), *([markdown(cell) for cell in row] for row in rows[:MAX_LISTED])]
    return ["| " + " | ".join(map(str, row)) + " |" for row in kept] + _left_out(len(rows))


def _bullets(texts: Sequence[str]) -> list[str]:
    return [f"- {markdown(text)}" for text in texts[:MAX_LISTED]] + _left_out(len(texts))


def _left_out(n: int) -> list[str]:
    return ["", f"{n - MAX_LISTED} more are in comparison.json."] if n > MAX_LISTED else []


def _folded(title: str, lines: Sequence[str], n: int) -> list[str]:
    return [f"<details><summary>{title} ({n})</summary>", "", *lines, "", "</details>", ""] if n else []


def markdown(text: object) -> str:
    """Return a text as one line that GitHub's Markdown shows as it is."""
    flat = " ".join(_printed(str(text)).split())
    flat = flat if len(flat) <= MAX_TEXT else f"{flat[: MAX_TEXT - 1]}…"
    marked = "".join(f"\\{c}" if c in MARKUP else html.escape(c) for c in flat)
    marked = f"\\{marked}" if flat.startswith(("-", "+")) else marked  # an item of a list
    # bare addresses become links without any markup
    return marked.replace("://", "&#58;//").replace("www.", "www&#46;").replace("WWW.", "WWW&#46;")


def _printed(text: str) -> str:
    """Leave out what XML 1.0 cannot hold and no terminal should see: control codes, half characters."""
    return "".join(c for c in text if c in "\t\n\r" or "\x20" <= c <= "\x7e" or "\xa0" <= c <= "\ud7ff"
                   or "\ue000" <= c <= "\ufffd" or c >= "\U00010000")


def _suite(card: Card, name: str) -> ElementTree.Element:
    suite = ElementTree.Element("testsuite", {"name": _printed(f"{NAME}: {name}")})
    comparable = card["validity"]["verdict"] != "not_comparable"
    found = card["overall"]
    _case(suite, "verdict", "overall", {0: "same", 1: "worse"}.get(card["exit_code"], "cannot_tell"),
          f"{VERDICT_WORDS[found['verdict']]}: {found['sentence']} {found['needed']}".rstrip())
    _case(suite, "validity", "validity", "same" if comparable else "cannot_tell", card["validity"]["sentence"])
    for row in card["rows"]:
        if not row["is_judged"]:
            continue
        said = (f"{VERDICT_WORDS[row['verdict']]}: {show(row['base'], row['unit'])} to "
                f"{show(row['new'], row['unit'])}, {effect(row)}, for changes of more than "
                f"{percent(card['threshold_frac'])}")
        said += f"; needed: {row['needed']}" if row["needed"] and row["verdict"] == "cannot_tell" else ""
        said += "" if comparable else "; the sides are not comparable"
        _case(suite, quantity(row["kind"], row["running_req"]), row["kind"],
              row["verdict"] if comparable else "cannot_tell", said)
    suite.attrib |= _count(suite)
    return suite


def _case(suite: ElementTree.Element, name: str, kind: str, verdict: str, words: str) -> None:
    case = ElementTree.SubElement(suite, "testcase", {"name": _printed(name), "classname": f"rooflog.compare.{kind}",
                                                      "time": "0"})  # a statement takes no time
    if verdict == "worse":
        found = ElementTree.SubElement(case, "failure", {"message": _printed(words), "type": "regression"})
        found.text = _printed(words)
    elif verdict == "cannot_tell":
        ElementTree.SubElement(case, "skipped", {"message": _printed(words)})
    else:
        ElementTree.SubElement(case, "system-out").text = _printed(words)


def _count(suite: ElementTree.Element) -> dict[str, str]:
    counts = {name: str(len(suite.findall(f"testcase/{tag}"))) for name, tag in
              (("failures", "failure"), ("errors", "error"), ("skipped", "skipped"))}
    return {"tests": str(len(suite)), **counts, "time": "0"}


def _totals(suites: Sequence[ElementTree.Element]) -> dict[str, str]:
    return {name: str(sum(int(suite.attrib[name]) for suite in suites)) for name in ("tests", "failures", "errors")} | {
        "time": "0"}
