"""One offline HTML page from a run folder, and its summary in Markdown: the answer first, then the notebook.

Whatever comes from a log is shown as text, never run: markup is written anew from harmless tags, and the page forbids
itself the network and every script but its own.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

import nbformat

from helpers import scorecard
from helpers.report.cells import SAMPLE_PARAGRAPH
from helpers.report.figures import PLOTLY_MIME
from helpers.report.markup import is_plain_markup
from helpers.report.page import pieces, render
from helpers.report.summary import FILE_NAME as SUMMARY_NAME
from helpers.report.summary import summarise
from helpers.schema import LogFormatError

__all__ = ["CARD_FILES", "FILE_NAME", "PLOTLY_MIME", "SAMPLE_PARAGRAPH", "SUMMARY_NAME", "is_plain_markup", "render",
           "summarise", "write_report"]

FILE_NAME = "report.html"
CARD_FILES = (scorecard.FILE_NAME, "comparison.json")
"""What a run states its answer in; a comparison brings its own words."""


def write_report(folder: str | Path) -> Path:
    """Build report.html and summary.md of a run folder again, each whole or not at all.

    Parameters
    ----------
    folder : path
        A run folder: the executed notebook, run.json, and scorecard.json or comparison.json unless the notebook failed.

    Returns
    -------
    Path
        The page.

    Raises
    ------
    LogFormatError
        The folder holds no executed notebook, or several.
    """
    where = Path(folder)
    notebooks = sorted(where.glob("*.ipynb"))
    if len(notebooks) != 1:
        raise LogFormatError(f"{where}: expected a run folder with one executed notebook, found {len(notebooks)}")
    try:
        notebook = nbformat.read(notebooks[0], as_version=4)
        run_file = where / "run.json"
        run = json.loads(run_file.read_text(encoding="utf-8")) if run_file.is_file() else None
    except ValueError as error:
        raise LogFormatError(f"{where}: expected a run folder, found a file that cannot be read: {error}") from error
    card = next((scorecard.read(where / name) for name in CARD_FILES if (where / name).is_file()), None)
    text = summarise(card, run)
    _write(where / FILE_NAME, pieces(notebook, card, run))
    _write(where / SUMMARY_NAME, [text.encode("utf-8", "backslashreplace")])
    return where / FILE_NAME


def _write(target: Path, parts: Iterable[bytes]) -> None:
    partial = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with partial.open("wb") as file:
            file.writelines(parts)
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)
