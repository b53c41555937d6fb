"""The runs of a side: what a comparison needs of each level, taken from tables of levels."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from scipy.stats import norm

from helpers.display import level_key
from helpers.schema import LEVELS, NotEnoughData, check

LEVEL_MATCH_FRAC = 0.01
"""Mean running requests this close to a whole number are that level [1]: 15.98 and 16.01 are both level 16."""


@dataclass(frozen=True)
class Run:
    """One run of one side.

    Attributes
    ----------
    step_s : mapping
        Level [req] -> step time [s].
    own_frac : mapping
        Level -> standard error of the log step time by the level's own interval [1]; NaN where it has none.
    accept_len, context_tok, target_step_s : mapping
        Level -> accepted tokens per round, mean context [tok], target of the roofline [s]; levels may be missing.
    n_clean : mapping
        Level -> clean intervals behind it.
    accept_own_frac : mapping
        Level -> standard error of the log of accept_len by counting alone [1].
    content : str
        Hash of the inputs; "" if not known.
    notes : tuple of str
        Levels that are not compared, and why.
    """

    step_s: Mapping[float, float]
    own_frac: Mapping[float, float] = field(default_factory=dict)
    accept_len: Mapping[float, float] = field(default_factory=dict)
    context_tok: Mapping[float, float] = field(default_factory=dict)
    target_step_s: Mapping[float, float] = field(default_factory=dict)
    n_clean: Mapping[float, int] = field(default_factory=dict)
    content: str = ""
    notes: tuple[str, ...] = ()
    accept_own_frac: Mapping[float, float] = field(default_factory=dict)


def run_of(
    levels: pd.DataFrame,
    *,
    content: str = "",
    target_step_s: Mapping[float, float] | None = None,
    confidence: float = 0.95,
) -> Run:
    """Take what a comparison needs from a table of levels.

    Parameters
    ----------
    levels : DataFrame, schema LEVELS
        Population 0 with ``is_fitted``; of several rows at one level (server lives, rank groups) the one with the most
        clean time, which a note says.
    content : str
        Hash of the inputs.
    target_step_s : mapping, optional
        Level [req] -> target [s].
    confidence : float in (0, 1)
        Of ``step_s_lo`` and ``step_s_hi``.

    Raises
    ------
    SchemaError
        The table breaks LEVELS.
    NotEnoughData
        No level can be compared.
    """
    check(levels, LEVELS)
    known = levels[(levels["population"] == 0) & (levels["step_s"] > 0)]
    used = known[known["is_fitted"]].sort_values("clean_s", ascending=False, na_position="last", kind="stable")
    if used.empty:
        raise NotEnoughData("compare: expected at least one fitted level, found none; give a longer or cleaner log")
    keys = [_level_of(value) for value in used["running_req"]]
    used = used.assign(level=keys)
    first = used.drop_duplicates("level").sort_values("level").set_index("level")
    left_out = sorted({_level_of(value) for value in known["running_req"]} - set(keys))
    notes = [f"level {level_key(level)} is not fitted and not compared" for level in left_out]
    notes += [f"level {level_key(level)} has several rows; the one with the most clean time is compared"
              for level in sorted(set(used.loc[used.duplicated("level"), "level"]))]
    uncounted = (first["clean_s"] == 0) & (first["accept_len"] > 0)  # its error by counting cannot be stated
    notes += [f"accepted length at level {level_key(level)} is not compared: no clean time to count its rounds in"
              for level in first.index[uncounted]]
    accepted = first[~uncounted]
    width = 2 * float(norm.ppf((1 + confidence) / 2))
    own = (np.log(first["step_s_hi"]) - np.log(first["step_s_lo"])) / width
    return Run(
        _by_level(first["step_s"]), _by_level(own), _by_level(accepted["accept_len"]), _by_level(first["context_tok"]),
        dict(target_step_s or {}), {level: int(n) for level, n in _by_level(first["n_clean"]).items()}, content,
        tuple(notes), _by_level(_counting_frac(accepted)),
    )  # fmt: skip


def _counting_frac(levels: pd.DataFrame) -> pd.Series:
    """Return the standard error of the log of the accepted tokens by counting [1].

    A round of one request yields tokens with a variance of at most A (A - 1), that of a geometric number of mean A
    (each token accepted with the same probability, physics.md 1.8; a draft of limited length has less); a level has
    clean_s / step_s rounds of running_req requests. Texts differ in how well they are guessed: that is between runs.
    """
    rounds = levels["running_req"] * levels["clean_s"] / levels["step_s"]
    return np.sqrt((1 - 1 / levels["accept_len"].clip(lower=1)) / rounds)


def _by_level(column: pd.Series) -> dict[float, float]:
    """Return level -> value of a column indexed by level; missing values and zeros are left out."""
    known = column[column > 0]
    return dict(zip(known.index.to_numpy(float).tolist(), known.to_numpy(float).tolist(), strict=True))


def _level_of(running_req: float) -> float:
    whole = round(running_req)
    return float(whole) if abs(running_req - whole) <= LEVEL_MATCH_FRAC * running_req else float(level_key(running_req))


def values(runs: Sequence[Run], name: str, at: Sequence[float]) -> np.ndarray:
    """Return a quantity of the runs at some levels, NaN where unknown; shape (runs, levels)."""
    return np.array([[getattr(run, name).get(level, math.nan) for level in at] for run in runs], float).reshape(
        len(runs), len(at))


def common_levels(
    base: Sequence[Run], new: Sequence[Run], name: str = "step_s", *, in_all: bool = False
) -> list[float]:
    """Return the levels that some run of either side has, or all runs with ``in_all``."""
    def of_side(runs: Sequence[Run]) -> set[float]:
        sets = [set(getattr(run, name)) for run in runs]
        return set.intersection(*sets) if in_all else set.union(*sets)

    return sorted(of_side(base) & of_side(new))
