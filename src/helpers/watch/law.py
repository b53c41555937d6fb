"""Levels and the law so far: what the clean intervals of a server life have shown, on a bounded memory."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from helpers.schema import INTERVALS, LawFit, conform

MAX_ROWS = 256
"""Rows kept per level: when it is full, neighbours are summed to blocks of twice the steps. Steps and time are sums,
so that no clean interval of the past is lost; a level of three days is then 128 to 256 blocks."""

MAX_LEVELS = 128
"""Levels kept: the one with the least clean time goes first."""

REFIT_FRAC = 0.10
"""A level counts as changed when its clean intervals grew by this share [1]."""

CONFIDENCE = 0.95

_SUMMED = ("n_steps", "interval_s", "idle_s", "prefill_tok")
_MEANS = ("running_req", "running_req_total", "context_tok", "accept_len", "step_s")


@dataclass
class LevelsSoFar:
    """Clean intervals of one server life, level by level, and the law through them.

    Attributes
    ----------
    levels : DataFrame, schema LEVELS, or None
        As of the last fit.
    law : LawFit or None
        The law that the levels support, or the reason why none is claimed yet.
    """

    levels: pd.DataFrame | None = None
    law: LawFit | None = None
    _rows: dict[tuple[str, float], pd.DataFrame] = field(default_factory=dict)
    _n_clean: dict[tuple[str, float], int] = field(default_factory=dict)
    _n_fitted: dict[tuple[str, float], int] = field(default_factory=dict)
    _block_steps: dict[tuple[str, float], float] = field(default_factory=dict)

    def add(self, clean: pd.DataFrame, episode: int) -> None:
        """Take clean intervals in.

        Parameters
        ----------
        clean : DataFrame, schema INTERVALS
            New ones only, in file order.
        episode : int
            Load episode they belong to: the numbers of a tail begin anew with every tail.
        """
        if clean.empty:
            return
        rows = clean.assign(episode=episode, server_life=0)
        for key, new in rows.groupby(["rank_group", rows["running_req"].round(3)], sort=False):
            level = (str(key[0]), float(str(key[1])))
            old = self._rows.get(level)
            kept = new if old is None else pd.concat([old, new], ignore_index=True)
            while len(kept) > MAX_ROWS:
                typical = float(kept["n_steps"].fillna(1.0).median())
                self._block_steps[level] = 2 * self._block_steps.get(level, typical)
                kept = _summed(kept, self._block_steps[level])
            self._rows[level] = kept.reset_index(drop=True)
            self._n_clean[level] = self._n_clean.get(level, 0) + len(new)
        while len(self._rows) > MAX_LEVELS:
            least = min(self._rows, key=lambda level: float(self._rows[level]["interval_s"].sum()))
            for table in (self._rows, self._n_clean, self._n_fitted, self._block_steps):
                table.pop(least, None)

    @property
    def is_due(self) -> bool:
        """A level is new, or has grown enough to say more than at the last fit."""
        return any(n >= (1 + REFIT_FRAC) * self._n_fitted.get(level, 0) and n > self._n_fitted.get(level, 0)
                   for level, n in self._n_clean.items())

    def fit(self) -> float:
        """Estimate every level and fit the law, as `analysis` does on a whole log; return the CPU time it took [s]."""
        # half a second of imports, once: most watches end before a law is due
        from helpers.laws import fit_laws
        from helpers.levels import summarise_levels

        began_s = time.process_time()
        # the newest rows are as fine as they came: of equal blocks alone a median is fair to the past
        parts = [_summed(rows, self._block_steps[level]) if level in self._block_steps else rows
                 for level, rows in self._rows.items()]
        table = conform(pd.concat(parts, ignore_index=True), INTERVALS)
        levels = summarise_levels(table, confidence=CONFIDENCE)
        keys = zip(levels["rank_group"], levels["running_req"].round(3), strict=True)
        counts = [self._n_clean.get((group, req), n) for (group, req), n in zip(keys, levels["n_clean"], strict=True)]
        self.levels = levels.assign(n_clean=counts)
        self.law = fit_laws(self.levels, confidence=CONFIDENCE).selected
        self._n_fitted = dict(self._n_clean)
        return time.process_time() - began_s

    def level_values(self) -> list[dict[str, Any]]:
        """Return the levels as JSON-safe objects in base units, rising; main populations only."""
        if self.levels is None:
            return []
        names = ("running_req_total", "running_req", "n_clean", "step_s", "step_s_lo", "step_s_hi", "decode_tok_per_s",
                 "accept_len", "clean_s")
        main = self.levels[self.levels["population"].eq(0)].sort_values(["running_req", "rank_group"])
        return [{**{name: _plain(row[name]) for name in names}, "is_fitted": bool(row["is_fitted"])}
                for row in main.to_dict("records")]

    def law_values(self) -> dict[str, Any]:
        """Return the law as a JSON-safe object: parameters with their intervals, or ``refused`` in words."""
        law = self.law
        if law is None:
            return {"law": None, "refused": "no level is estimated yet", "n_levels": 0, "parameters": {}}
        return {
            "law": law.law, "refused": law.refused, "n_levels": law.n_levels, "confidence": law.confidence,
            "parameters": {p.name: {"value": _plain(p.value), "lo": _plain(p.lo), "hi": _plain(p.hi), "unit": p.unit}
                           for p in law.parameters},
        }


def _summed(rows: pd.DataFrame, block_steps: float) -> pd.DataFrame:
    """Sum neighbours of one rank and one graph flag to blocks of steps: times add up, means are weighted by steps."""
    parts = []
    for _, part in rows.groupby([rows["rank"].fillna(""), rows["graph"].astype("Int64").fillna(-1)], sort=False):
        weights = part["n_steps"].fillna(1.0).to_numpy()
        number = ((np.cumsum(weights) - weights / 2) // block_steps).astype(int)
        merged = part.groupby(number).last()
        for name in _MEANS:
            values = part[name].astype(float).to_numpy()
            known = np.isfinite(values)
            total = pd.Series(np.where(known, weights, 0.0)).groupby(number).sum()
            sums = pd.Series(np.where(known, values * weights, 0.0)).groupby(number).sum()
            merged[name] = sums / total.where(total > 0)
        for name in _SUMMED:
            merged[name] = part[name].groupby(number).sum(min_count=1)
        rate = merged["running_req_total"] * merged["accept_len"].fillna(1.0) / merged["step_s"]
        merged["decode_tok_per_s"] = rate.where(merged["decode_tok_per_s"].notna())
        parts.append(merged)
    return pd.concat(parts).sort_values("line_no", kind="stable").reset_index(drop=True)


def _plain(value: Any) -> float | int | None:
    if isinstance(value, int | np.integer):
        return int(value)
    return float(value) if value is not None and np.isfinite(value) else None
