"""What ran on the devices of a profile, when: compact columns to read into, and what can be computed from them."""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helpers.schema import KERNELS, conform

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

NO_NUMBER = -1
"""Stands for a block count, correlation or operator that was not recorded, inside integer columns."""

MAX_NAME_CHARS = 400
MAX_KEYS = 200_000
"""Names with their grids kept apart; beyond, grids are dropped, so that no file can fill the memory."""

MAX_SHAPES_PER_KERNEL = 5


@dataclass
class Timeline:
    """Everything that ran on devices, one entry per launch or copy, about 40 bytes each.

    Attributes
    ----------
    keys : dict
        (name, device, blocks or NO_NUMBER, is a copy) -> its number.
    key, start_s, duration_s, correlation, operator : array
        One value per entry: number of its key, seconds since the profile's own zero, seconds, the profiler's number
        of the launch (all kernels of one graph launch share it), and of the operator that launched it.
    """

    keys: dict[tuple[str, str, int, bool], int] = field(default_factory=dict)
    key: array[int] = field(default_factory=lambda: array("i"))
    start_s: array[float] = field(default_factory=lambda: array("d"))
    duration_s: array[float] = field(default_factory=lambda: array("d"))
    correlation: array[int] = field(default_factory=lambda: array("q"))
    operator: array[int] = field(default_factory=lambda: array("q"))
    n_grids_dropped: int = 0

    def __len__(self) -> int:
        """Entries so far."""
        return len(self.key)

    def add(self, name: str, device: str, n_blocks: int, is_copy: bool, start_s: float, duration_s: float,
            correlation: int = NO_NUMBER, operator: int = NO_NUMBER) -> None:
        """Take one launch or copy."""
        found = (name, device, n_blocks, is_copy)
        if found not in self.keys and len(self.keys) >= MAX_KEYS:
            self.n_grids_dropped += n_blocks != NO_NUMBER
            found = (name, device, NO_NUMBER, is_copy)
        self.key.append(self.keys.setdefault(found, len(self.keys)))
        self.start_s.append(start_s)
        self.duration_s.append(duration_s)
        self.correlation.append(correlation)
        self.operator.append(operator)

    def column(self, name: str) -> NDArray[Any]:
        """Return one of the columns as an array that shares its memory; add nothing while it is in use."""
        values = getattr(self, name)
        return np.frombuffer(values, dtype=values.typecode) if len(values) else np.empty(0, dtype=values.typecode)

    def per_key(self, what: Callable[[str, str, int, bool], object]) -> NDArray[Any]:
        """Return a value of every key, by its number."""
        return np.array([what(*key) for key in self.keys])

    def devices(self) -> list[str]:
        """Devices with anything, the busiest with kernels first."""
        kernel_s: dict[str, float] = {}
        if not len(self):
            return []
        totals = np.bincount(self.column("key"), self.column("duration_s"), len(self.keys))
        for (_, device, _, is_copy), total in zip(self.keys, totals, strict=True):
            kernel_s[device] = kernel_s.get(device, 0.0) + (0.0 if is_copy else float(total))
        return sorted(kernel_s, key=lambda device: -kernel_s[device])

    def of_device(self, device: str) -> Ints:
        """Return the entries of one device, by their start."""
        on_it = self.per_key(lambda _name, found, *_: found == device).astype(bool)
        chosen = np.flatnonzero(on_it[self.column("key")])
        return chosen[np.argsort(self.column("start_s")[chosen], kind="stable")]


@dataclass(frozen=True)
class Busy:
    """The union of intervals: streams overlap, so that times must not be added up.

    Attributes
    ----------
    start_s, end_s : ndarray, shape (n,)
        Intervals that neither overlap nor touch, in order.
    """

    start_s: Floats
    end_s: Floats

    @classmethod
    def of(cls, start_s: Floats, end_s: Floats) -> Busy:
        """Build the union of intervals sorted by their start."""
        if not len(start_s):
            return cls(start_s, end_s)
        latest = np.maximum.accumulate(end_s)
        opens = np.flatnonzero(np.concatenate(([True], start_s[1:] > latest[:-1])))
        return cls(start_s[opens], latest[np.concatenate((opens[1:] - 1, [len(latest) - 1]))])

    @property
    def total_s(self) -> float:
        """Time in which anything ran."""
        return float((self.end_s - self.start_s).sum())

    @property
    def span_s(self) -> float:
        """From the first start to the last end."""
        return float(self.end_s[-1] - self.start_s[0]) if len(self.start_s) else np.nan

    def before(self, moment_s: Floats) -> Floats:
        """Return the busy time before each moment."""
        done = np.concatenate(([0.0], np.cumsum(self.end_s - self.start_s)))
        at = np.searchsorted(self.start_s, moment_s, side="right")
        last = np.maximum(at - 1, 0)
        beyond = np.clip(self.end_s[last] - np.asarray(moment_s), 0.0, None)
        return np.asarray(np.where(at > 0, done[at] - beyond, 0.0))


def kernel_table(file: str, timeline: Timeline, role_of: Callable[[str], str], is_draft: NDArray[np.bool_],
                 shapes: dict[int, list[object]]) -> pd.DataFrame:
    """Sum the entries up by name, device and grid.

    Parameters
    ----------
    file : str
        Input as given.
    timeline : Timeline
        At least one entry, or none: the table is then empty.
    role_of : function
        Kernel name -> role.
    is_draft : ndarray of bool, shape (entries,)
        Launched while the draft model ran, as the trace says: role "draft", in rows of their own.
    shapes : dict
        Number of the key -> shapes of the operators that launched it.

    Returns
    -------
    DataFrame, schema KERNELS
        Most time first.
    """
    if not len(timeline):
        return KERNELS.empty()
    n_keys, names = len(timeline.keys), list(timeline.keys)
    group = timeline.column("key").astype(np.int64) + n_keys * is_draft
    duration_s = timeline.column("duration_s").astype(np.float64)
    n_calls = np.bincount(group, minlength=2 * n_keys)
    total_s = np.bincount(group, duration_s, 2 * n_keys)
    shortest_s, longest_s = np.full(2 * n_keys, np.inf), np.zeros(2 * n_keys)
    np.minimum.at(shortest_s, group, duration_s)
    np.maximum.at(longest_s, group, duration_s)
    rows = []
    for at in np.flatnonzero(n_calls):
        name, device, n_blocks, is_copy = names[at % n_keys]
        role = "memory_copy" if is_copy else "draft" if at >= n_keys else role_of(name)
        found = shapes.get(int(at) % n_keys, [])[:MAX_SHAPES_PER_KERNEL]
        rows.append({
            "file": file, "device": device or None, "name": name[:MAX_NAME_CHARS], "role": role,
            "n_calls": int(n_calls[at]), "total_s": total_s[at], "mean_s": total_s[at] / n_calls[at],
            "min_s": shortest_s[at], "max_s": longest_s[at], "n_blocks": np.nan if n_blocks < 0 else n_blocks,
            "shapes": json.dumps(found) if found else None,
        })
    table = pd.DataFrame(rows).sort_values("total_s", ascending=False, kind="stable")
    return conform(table, KERNELS)
