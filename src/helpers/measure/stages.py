"""The stages that measure: from a read log to its intervals, levels, laws and what the hardware allows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import pandas as pd

from helpers import allowance, investigation, laws, segment
from helpers.allowance import Allowance
from helpers.facts import Facts, merge_facts
from helpers.ingest import Log
from helpers.levels import LevelRule, keep_one_configuration, keep_one_source, summarise_levels
from helpers.measure.choice import Choice, choose_intervals, choose_law, choose_levels, counted
from helpers.schema import Fits, RooflogError

MIN_LEVELS = 3
"""Distinct levels below which the pooled regression over contaminated intervals is tried instead."""


@dataclass(frozen=True)
class Fitted:
    """The laws of some levels beside what the hardware allows.

    Attributes
    ----------
    fits : Fits
    allowed : Allowance or None
        None where hardware or model are not known.
    refused : str or None
        Why there is no roofline.
    """

    fits: Fits
    allowed: Allowance | None
    refused: str | None


@dataclass(frozen=True)
class Measured:
    """What a log measured under a choice.

    Attributes
    ----------
    lives : tuple of Facts
        One per server life.
    facts : Facts
        Of the server life that the law rests on.
    intervals : DataFrame, schema INTERVALS
        All of the log; those left out by choice say so in ``why``.
    levels : DataFrame, schema LEVELS
    fitted : Fitted
    """

    lives: tuple[Facts, ...]
    facts: Facts
    intervals: pd.DataFrame
    levels: pd.DataFrame
    fitted: Fitted


def find_lives(log: Log, known: Mapping[str, Any]) -> list[Facts]:
    """Return the facts of each server life: what the log says, under what the user says."""
    of_log = {"engine": log.engine}
    lives = [merge_facts(of_log | of_life, known) for of_life in log.facts] or [merge_facts(of_log, known)]
    return [investigation.believable(facts, log.samples[log.samples["server_life"].eq(life)])
            for life, facts in enumerate(lives)]


def label(log: Log, lives: Sequence[Facts], choice: Choice) -> pd.DataFrame:
    """Return the log's intervals, schema INTERVALS, by the thresholds of a choice; nothing is left out yet.

    Raises
    ------
    NotEnoughData
        As `segment.label_intervals`.
    """
    return segment.label_intervals(log.samples, log.events, facts=[facts.values for facts in lives], rule=choice.clean)


def estimate(
    log: Log, lives: Sequence[Facts], intervals: pd.DataFrame, *, confidence: float, choice: Choice
) -> pd.DataFrame:
    """Estimate the levels of intervals that `choose_intervals` marked.

    Returns
    -------
    DataFrame, schema LEVELS
        ``is_fitted`` only in server lives of one configuration and one kind of record; levels that are not chosen are
        still in.

    Raises
    ------
    NotEnoughData
        No interval holds a decode rate.
    """
    levels = summarise_levels(counted(intervals), confidence=confidence, rule=choice.level)
    levels = keep_one_configuration(levels, [facts.values for facts in lives])
    described = segment.describe_sources(log.samples)
    used = described[described["is_used"]]
    return keep_one_source(levels, {int(life): str(name) for life, name in zip(
        used["server_life"], used["source"], strict=True)})


def main_facts(levels: pd.DataFrame, lives: Sequence[Facts]) -> Facts:
    """Return the facts of the server life with most fitted levels."""
    life = main_life(levels)
    return lives[life] if life < len(lives) else lives[-1]


class Measurer:
    """Measures one log under one choice after another; a stage whose input is the same is not done again.

    Parameters
    ----------
    log : Log
    known : mapping
        Facts that the user states.
    """

    def __init__(self, log: Log, known: Mapping[str, Any]) -> None:
        self.log, self.lives = log, tuple(find_lives(log, known))
        self._label = lru_cache(2)(lambda clean: label(log, self.lives, Choice(clean=clean)))
        self._mark = lru_cache(2)(self._marked)
        self._estimate = lru_cache(4)(self._estimated)

    def measure(self, *, confidence: float, choice: Choice | None = None) -> Measured:
        """Go from the log to its laws; parameters, result and errors as of `measure`."""
        choice = choice or Choice()
        of_intervals = Choice(clean=choice.clean, ignored_rules=choice.ignored_rules, only_s=choice.only_s,
                              without_s=choice.without_s)
        intervals = self._mark(of_intervals)
        levels = choose_levels(self._estimate(replace(of_intervals, level=choice.level), confidence), choice)
        facts = main_facts(levels, self.lives)
        fitted = fit(levels, intervals, facts, confidence=confidence, choice=choice)
        return Measured(self.lives, facts, intervals, levels, fitted)

    def _marked(self, choice: Choice) -> pd.DataFrame:
        return choose_intervals(self._label(choice.clean), choice)

    def _estimated(self, choice: Choice, confidence: float) -> pd.DataFrame:
        intervals = self._mark(replace(choice, level=LevelRule()))
        return estimate(self.log, self.lives, intervals, confidence=confidence, choice=choice)


def measure(log: Log, known: Mapping[str, Any], *, confidence: float, choice: Choice | None = None) -> Measured:
    """Go from a read log to its laws.

    Parameters
    ----------
    log : Log
    known : mapping
        Facts that the user states.
    confidence : float in (0, 1)
        Of every interval.
    choice : Choice, optional
        What counts.

    Returns
    -------
    Measured

    Raises
    ------
    NotEnoughData
        No interval holds a decode rate, or nothing is left of them.
    RooflogError
        A choice that cannot be.
    """
    return Measurer(log, known).measure(confidence=confidence, choice=choice)


def fit(
    levels: pd.DataFrame, intervals: pd.DataFrame | None, facts: Facts, *, confidence: float,
    choice: Choice | None = None,
) -> Fitted:
    """Hold levels against the hardware and fit them.

    Parameters
    ----------
    levels : DataFrame, schema LEVELS
    intervals : DataFrame, schema INTERVALS, or None
        None where the levels come from a table.
    facts : Facts
    confidence : float in (0, 1)
    choice : Choice, optional
        Only its law is looked at.

    Returns
    -------
    Fitted

    Raises
    ------
    RooflogError
        A law that was not fitted is asked for.
    """
    allowed, refused = None, None
    try:
        allowed = allowance.of_levels(levels, facts)
        refused = allowed.roofline.refused
    except RooflogError as error:  # a fact that cannot be used is said, never fatal
        refused = str(error)
    intervals = None if intervals is None else counted(intervals)
    fits = _fit(levels, intervals, facts, confidence, None if refused else allowed)
    return Fitted(choose_law(fits, choice or Choice()), allowed, refused)


def fitted_lives(levels: pd.DataFrame) -> list[int]:
    """Return the server lives that the law rests on; the last one where no level is fitted."""
    return sorted(int(life) for life in levels.loc[levels["is_fitted"], "server_life"].unique()) or [main_life(levels)]


def main_life(levels: pd.DataFrame) -> int:
    """Return the server life with most fitted levels; the last one where none is."""
    lives = levels.loc[levels["is_fitted"], "server_life"]
    return int(lives.mode().iloc[0]) if len(lives) else int(levels["server_life"].max() if len(levels) else 0)


def _fit(
    levels: pd.DataFrame, intervals: pd.DataFrame | None, facts: Facts, confidence: float,
    allowed: Allowance | None,
) -> Fits:
    """Fit the levels; with too few of them, the contaminated intervals with a prefill covariate."""
    experts = facts.get("n_experts"), facts.get("n_experts_active")
    if not all(experts) and allowed is not None:
        experts = allowed.experts or experts
    fits = laws.fit_laws(
        levels, confidence=confidence, intervals=intervals,
        roofline_step_s=allowed.ideal_step_s if allowed is not None else None,
        experts=experts if all(experts) else None, captured_batch_sizes=facts.get("captured_batch_sizes"),
    )
    fitted = levels[levels["is_fitted"]]
    is_contaminated = fitted["running_req"].nunique() < MIN_LEVELS or fitted["method"].eq("prefill_corrected").any()
    if fits.selected.refused is None or intervals is None or not is_contaminated:
        return fits
    used = fitted["server_life"].unique() if len(fitted) else [main_life(levels)]
    pooled = laws.fit_with_prefill(intervals[intervals["server_life"].isin(used)], confidence=confidence)
    if pooled.refused is not None or pooled["slope_s_per_req"].lo <= 0:
        return fits
    return replace(fits, linear=pooled, selected=pooled, candidates=(*fits.candidates, pooled),
                   selection="too few clean levels: pooled regression over all intervals with a prefill covariate")
