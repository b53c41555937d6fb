"""The stages of one log, as an investigation takes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from helpers.allowance import Allowance
from helpers.facts import Facts
from helpers.schema import EVENTS, INTERVALS, SAMPLES, Fits


@dataclass(frozen=True)
class Run:
    """The stages of one log, as the investigation takes them."""

    samples: pd.DataFrame
    events: pd.DataFrame
    intervals: pd.DataFrame
    levels: pd.DataFrame
    fits: Fits
    facts: Facts
    life_facts: Sequence[Mapping[str, Any]]
    lives: list[int]
    allowed: Allowance | None = None


def empty_run(levels: pd.DataFrame, fits: Fits, facts: Facts, allowed: Allowance | None) -> Run:
    """Return the stages of a table of rates, which has no log."""
    return Run(SAMPLES.empty(), EVENTS.empty(), INTERVALS.empty(), levels, fits, facts, [facts.values], [0], allowed)
