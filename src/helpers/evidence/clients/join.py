"""Runs that several files tell of: kept once, and joined with their requests."""

from __future__ import annotations

import math
from collections import defaultdict
from pathlib import Path

from helpers.evidence.clients.run import MILLI, STATS, WHATS, Run, complete

_NUMBERS = ("duration_s", *(f"{what}_{stat}_s" for what in WHATS for stat in STATS))
_COUNTS = ("n_completed", "prompt_tok", "output_tok", "concurrency_req")
HALF = 0.5
"""Whole numbers further apart than this differ; some tools print them as means times counts."""

MIN_SHARED = 3
"""Times that both files must print before equal ones mean the same run."""


def _is_same(a: Run, b: Run) -> bool:
    """Tell whether two files hold one run: all that both print is equal, up to the rounding of the coarser one."""
    if a.tool != b.tool and not {a.decimals, b.decimals} - {None}:
        return False
    if a.is_detail or b.is_detail or a.file == b.file:
        return False
    if any(abs(a.value(column) - b.value(column)) > HALF for column in _COUNTS):
        return False
    decimals = min((d for d in (a.decimals, b.decimals) if d is not None), default=None)
    shared = [c for c in _NUMBERS if not math.isnan(a.value(c) + b.value(c))]
    for column in shared:
        unit = 1.0 if column == "duration_s" else MILLI
        room = 1e-9 if decimals is None else 0.51 * 10.0**-decimals * unit
        if abs(a.value(column) - b.value(column)) > room + 1e-9 * a.value(column):
            return False
    return len(shared) >= MIN_SHARED


def once(runs: list[Run], notes: list[str]) -> list[Run]:
    """Keep a run that several files hold once: with requests before without, exact before rounded."""
    kept: dict[float, list[Run]] = defaultdict(list)
    order = sorted(runs, key=lambda run: (run.requests is None, run.decimals is not None, run.is_total))
    dropped = set()
    for run in order:
        bucket = kept[run.value("n_completed") if not math.isnan(run.value("n_completed")) else -1.0]
        twin = next((other for other in bucket if _is_same(run, other)), None)
        if twin is None:
            bucket.append(run)
        else:
            dropped.add(id(run))
            notes.append(f"{run.file}{label(run)}: the run of {twin.file} once more; kept once")
    return [run for run in runs if id(run) not in dropped]


def joined(runs: list[Run], notes: list[str]) -> list[Run]:
    """Give the requests of a per-request file to the one run of its folder that they belong to."""
    kept = []
    for run in runs:
        mates = [other for other in runs if run.is_detail and not other.is_detail and other.requests is None
                 and other.tool == run.tool and Path(other.file).parent == Path(run.file).parent
                 and other.value("n_completed") == run.value("n_completed")]
        if len(mates) != 1:
            kept.append(run)
            continue
        mate = mates[0]
        mate.requests = run.requests
        if math.isnan(mate.value("start_epoch_s")):
            mate.values["start_epoch_s"] = run.value("start_epoch_s")
        complete(mate)
        notes.append(f"{run.file}: its {len(run.requests) if run.requests is not None else 0} requests belong to the "
                     f"run of {mate.file}")
    for run in kept:
        if run.is_total and any(r is not run and r.tool == run.tool and Path(r.file).parent == Path(run.file).parent
                                and not r.is_detail for r in kept):
            run.meanings.append("the sum of the stages beside it, no run of its own")
    return kept


def label(run: Run) -> str:
    """Return what tells a run from others of its file: its line, else its name."""
    return f", line {run.line_no}" if run.line_no > 1 else f" ({run.values['name']})" if run.values.get("name") else ""
