"""How a notebook says things: numbers that may be missing, and lines that fit a page."""

from __future__ import annotations

import textwrap

import numpy as np
import pandas as pd

from helpers.display import show


def known(value: float) -> str:
    """Write a number, or nothing where there is none."""
    return show(float(value)) if np.isfinite(value) else ""


def ends(lo: float, hi: float) -> tuple[float | None, float | None]:
    """Return an interval as `display.show` takes it: both ends, or none."""
    return (lo, hi) if np.isfinite(lo) and np.isfinite(hi) else (None, None)


PAGE_WIDTH = 110
"""Characters of a printed line that fit the page of a notebook and of its report."""


def say(*texts: str) -> None:
    """Print sentences, each line wrapped to the page; a wrapped line is indented."""
    for line in "\n".join(texts).splitlines():
        print(textwrap.fill(line, PAGE_WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False))


def use_whole_tables() -> None:
    """Let tables of this session show long texts and many rows whole; the report scrolls."""
    pd.set_option("display.max_colwidth", None)
    pd.set_option("display.max_rows", 200)
