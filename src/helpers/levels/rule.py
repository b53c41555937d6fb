"""Thresholds of the level estimate."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LevelRule:
    """Thresholds of the level estimate.

    Attributes
    ----------
    block_steps : int
        Steps per block: a median of single steps is biased low by their skew, of 40-step means it is not.
    min_clean : int
        Clean intervals below which a level does not rest on them alone: it is corrected for prompts, or not fitted.
    min_steps : int
        Clean steps below which a level is not fitted.
    fine_steps : int
        Lines of fewer steps than this show single steps, whose skew needs three blocks of them and sums over sums.
    stall_factor : float
        A block of single steps above this multiple of the level's median is a stall and left out [1].
    context_ratio : float
        Episodes whose mean context differs by more than this ratio are two populations [1].
    drift_frac : float
        Halves of a level that differ by more than this (and three standard errors) are said to drift [1].
    prefill_warn_frac, prefill_refuse_frac : float
        Share of prefill in the time of a corrected level at which it warns, and is refused [1] (physics 6.2).
    correction_frac : float
        Part of the prefill correction that may be wrong: widens the interval of a corrected level [1]. From
        simulated closed loops (tests/test_levels.py).
    corrected_doubt_frac : float
        A corrected level enters the law only when its interval is within this share of it [1].
    useless_doubt_frac : float
        A corrected level is not stated at all when its interval is wider than this share of it [1].
    max_cv_frac : float
        A level whose clean intervals scatter by more than this is stated and not fitted (physics 6.4) [1].
    """

    block_steps: int = 40
    min_clean: int = 2
    min_steps: int = 40
    fine_steps: int = 5
    stall_factor: float = 2.0
    context_ratio: float = 1.5
    drift_frac: float = 0.05
    prefill_warn_frac: float = 0.20
    prefill_refuse_frac: float = 0.50
    correction_frac: float = 0.25
    corrected_doubt_frac: float = 0.06
    useless_doubt_frac: float = 0.50
    max_cv_frac: float = 0.15
