"""Model steps in a profile: which kernels belong to one step, how long it took, how much of it the device was idle.

Four rules, the first that finds steps holds: what the engine annotated, graph launches that replay whole models, a
sequence of kernels that repeats, kernels that sample. None finds any: the number of steps is unknown, not one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helpers.evidence.profiles.timeline import NO_NUMBER, Busy, Floats, Ints, Timeline

MIN_LAYERS = 8
"""Names that occur this often in a step are those of layers; models of one to four layers only draft."""

MIN_LAYER_SHARE = 0.8
"""Share of a step's kernels that are such names: what surrounds the layers is little."""

MAX_MARKERS = 500
"""Names tried as the start of a period, the most frequent first."""

STRAY_BUSY_FRAC = 0.01
STRAY_GAP_FRAC = 0.05
"""A step's first or last kernels are strays of another step if they are less than the first share of its busy time,
and a gap of more than the second share parts them from the rest. Preparation of the next batch runs early, on a
stream of its own (tracelens/sglang_decode: one kernel of 6 us 463 ms before 10 ms of work)."""

PROFILER_STEP = "ProfilerStep#*"
"""PyTorch's own annotation: whatever the engine did between two calls, a capture of graphs too. Believed only where a
whole model ran in it."""

IDLE_FACTOR = 3.0
"""A step that starts later than this many usual steps after the one before: the server idled between them."""


@dataclass(frozen=True)
class Marked:
    """What an engine annotated as one step, on the time of the host.

    Attributes
    ----------
    start_s : float
        Seconds since the profile's zero.
    kind : str
        "decode", "prefill", "mixed", or "" where the annotation does not say.
    running_req, context_tok : float
        Requests that decode, and the tokens of their contexts together; NaN where not said.
    """

    start_s: float
    kind: str = ""
    running_req: float = np.nan
    context_tok: float = np.nan


@dataclass(frozen=True)
class Steps:
    """The steps of the busiest device.

    Attributes
    ----------
    table : DataFrame
        One row per step: start_s, duration_s (to the start of the next one; the busy stretch where that is not
        known), busy_s, n_kernels, kind, running_req, context_tok, is_measured (duration_s reaches to the next step).
    rule : str
        How they were found, in words.
    gap_frac : float
        Idle share of the steps that `chosen` holds, from each to the next one; NaN without steps.
    notes : tuple of str
        Doubts.
    """

    table: pd.DataFrame
    rule: str
    gap_frac: float = np.nan
    notes: tuple[str, ...] = ()

    @property
    def chosen(self) -> pd.DataFrame:
        """Steps that only decode, or all where the profile does not tell them apart."""
        is_decode = self.table["kind"] == "decode"
        return self.table[is_decode] if is_decode.any() else self.table


def find_steps(timeline: Timeline, entries: Ints, marked: list[Marked], mark_name: str, launched_s: Floats,
               sampling: NDArray[np.bool_]) -> Steps:
    """Find the steps of one device.

    Parameters
    ----------
    timeline : Timeline
        What ran.
    entries : ndarray of int, shape (n,)
        Entries of the device, by start.
    marked : list of Marked
        Steps as annotated, by start; may be empty.
    mark_name : str
        What those annotations are called, for the rule's words.
    launched_s : ndarray, shape (n,)
        When the host launched each of them; NaN where not recorded.
    sampling : ndarray of bool, shape (number of keys,)
        Whether a key's role is sampling.
    """
    copies = timeline.per_key(lambda _name, _device, _blocks, is_copy: is_copy).astype(bool)
    key = timeline.column("key")[entries]
    is_kernel = ~copies[key]
    names = {name: i for i, name in enumerate(dict.fromkeys(key[0] for key in timeline.keys))}
    name = timeline.per_key(lambda name, *_: names[name])[key].astype(np.int64)
    step_of, rule, notes, seen = np.full(len(entries), NO_NUMBER), "", [], marked
    if marked:
        step_of, doubt = _by_marks(timeline, entries, marked, launched_s)
        rule, notes = f"one per annotation {mark_name}", doubt
        if mark_name == PROFILER_STEP and not _has_layers(name[is_kernel & (step_of == step_of.max())]):
            rule = ""
    if not rule or not (step_of >= 0).any():
        seen = []
        step_of, rule = _by_sequence(timeline.column("correlation")[entries], name, is_kernel, sampling[key])
    if not (step_of >= 0).any():
        empty = pd.DataFrame(columns=["start_s", "duration_s", "busy_s", "n_kernels", "kind", "running_req",
                                      "context_tok", "is_measured"])
        return Steps(empty, rule, notes=(*notes, "the number of steps is unknown: nothing in the profile marks them"))
    return _measured(timeline, entries, step_of, is_kernel, seen, rule, notes)


def _by_marks(timeline: Timeline, entries: Ints, marked: list[Marked], launched_s: Floats) -> tuple[Ints, list[str]]:
    """Give every entry the last annotated step that began before the host launched it."""
    starts = np.array([mark.start_s for mark in marked])
    known = ~np.isnan(launched_s)
    if known.mean() < 0.5:
        launched_s = timeline.column("start_s")[entries].astype(np.float64)
        found = np.maximum(np.searchsorted(starts, launched_s, side="right") - 1, 0)
        return found, ["launches are not recorded: kernels were given to steps by their own start, which comes later "
                       "than the host's annotation"]
    # An entry without its launch is given what the one before it on the device has.
    last_known = np.maximum.accumulate(np.where(known, np.arange(len(known)), 0))
    filled_s = np.nan_to_num(launched_s[last_known], nan=-np.inf)
    return np.searchsorted(starts, filled_s, side="right") - 1, []


def _by_sequence(correlation: Ints, name: Ints, is_kernel: NDArray[np.bool_],
                 samples: NDArray[np.bool_]) -> tuple[Ints, str]:
    """Find steps where nothing is annotated: by graph launches, repetition, or sampling."""
    none = np.full(len(name), NO_NUMBER)
    at = np.flatnonzero(is_kernel)
    if not len(at):
        return none, "no kernels"
    starts, stop = _graph_starts(correlation[at], name[at]), len(at)
    rule = "one per graph launch that replays a whole model"
    if not len(starts):
        starts, stop = _repetition(name[at])
        rule = "one per repetition of the sequence of kernels"
    if len(starts):
        step_of = np.searchsorted(at[starts], np.arange(len(name)), side="right") - 1
        if stop < len(at):
            step_of[at[stop]:] = NO_NUMBER
        return step_of, rule
    found, counts = np.unique(name[at][samples[at]], return_counts=True)
    if not len(found):
        return none, "none of the rules found steps"
    usual = np.bincount(counts).argmax()
    last = at[np.flatnonzero(name[at] == found[counts == usual][-1])]
    step_of = np.searchsorted(last, np.arange(len(name)), side="left")
    return np.minimum(step_of, len(last) - 1), "one per sampling of tokens"


def _has_layers(name: Ints) -> bool:
    """Say whether most of these kernels are those of repeated layers: a whole model, not a piece of one."""
    counts = np.unique(name, return_counts=True)[1]
    return len(name) > 0 and float(counts[counts >= MIN_LAYERS].sum()) >= MIN_LAYER_SHARE * len(name)


def _graph_starts(correlation: Ints, name: Ints) -> Ints:
    """Return the first kernel of every graph launch that replays a whole model; none if most kernels are in others."""
    _, group, counts = np.unique(correlation, return_inverse=True, return_counts=True)
    # Launches of one kernel each are millions in an eager trace: they are out before anything is split.
    inside = np.flatnonzero((counts[group] >= MIN_LAYERS) & (correlation != NO_NUMBER))
    order = inside[np.argsort(group[inside], kind="stable")]
    edges = np.flatnonzero(np.diff(group[order])) + 1
    starts, n_inside = [], 0
    for launch in np.split(order, edges):
        if _has_layers(name[launch]):
            starts.append(int(launch[0]))
            n_inside += len(launch)
    return np.sort(np.array(starts, dtype=np.int64)) if n_inside >= 0.5 * len(name) else np.empty(0, dtype=np.int64)


def _repetition(name: Ints) -> tuple[Ints, int]:
    """Return the first kernel of every period, and the end of the last: the shortest that holds repeated layers.

    A name that occurs once a period tells how long it is, not where it begins: it is taken to begin where the profile
    does. A last period that is cut off is left out.
    """
    found, counts = np.unique(name, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    for which in order[counts[order] >= 2][:MAX_MARKERS]:
        at = np.flatnonzero(name == found[which])
        lengths = np.diff(at)
        usual = float(np.median(lengths))
        is_regular = np.mean(np.abs(lengths - usual) <= 0.1 * usual) >= 0.8
        covers = at[-1] - at[0] + usual >= 0.8 * len(name)
        pieces = [name[at[i]: at[i + 1]] for i in np.linspace(0, len(lengths) - 1, min(len(lengths), 20)).astype(int)]
        if is_regular and covers and np.mean([_has_layers(piece) for piece in pieces]) >= 0.8:
            starts = at - at[0] if at[0] <= 1.1 * usual else at
            if len(name) - starts[-1] < 0.9 * usual:
                return starts[:-1], int(starts[-1])
            return starts, min(len(name), int(starts[-1] + 1.1 * usual))
    return np.empty(0, dtype=np.int64), len(name)


def _body(busy: Busy) -> tuple[float, float]:
    """Return start and end of a step without strays at its ends."""
    done = np.cumsum(busy.end_s - busy.start_s)
    is_wide = busy.start_s[1:] - busy.end_s[:-1] > STRAY_GAP_FRAC * done[-1]
    early = np.flatnonzero(is_wide & (done[:-1] < STRAY_BUSY_FRAC * done[-1]))
    late = np.flatnonzero(is_wide & (done[-1] - done[:-1] < STRAY_BUSY_FRAC * done[-1]))
    first = int(early[-1]) + 1 if len(early) else 0
    last = int(late[0]) if len(late) else len(done) - 1
    return float(busy.start_s[first]), float(busy.end_s[last])


def _measured(timeline: Timeline, entries: Ints, step_of: Ints, is_kernel: NDArray[np.bool_], marked: list[Marked],
              rule: str, notes: list[str]) -> Steps:
    """Measure each step: from its start to the next one's, or its busy stretch where the server idled after it."""
    start_s = timeline.column("start_s")[entries].astype(np.float64)
    end_s = start_s + timeline.column("duration_s")[entries]
    order = np.argsort(step_of, kind="stable")
    rows = []
    for inside in np.split(order, np.flatnonzero(np.diff(step_of[order])) + 1):
        step = int(step_of[inside[0]])
        if step < 0 or not is_kernel[inside].any():
            continue
        busy = Busy.of(start_s[inside], end_s[inside])
        body = _body(busy)
        mark = marked[step] if marked else Marked(body[0])
        rows.append({"start_s": body[0], "end_s": body[1], "busy_s": busy.total_s, "kind": mark.kind,
                     "n_kernels": int(is_kernel[inside].sum()), "running_req": mark.running_req,
                     "context_tok": mark.context_tok})
    table = pd.DataFrame(rows).sort_values("start_s", kind="stable").reset_index(drop=True)
    body_s = table["end_s"] - table["start_s"]
    period_s = -table["start_s"].diff(-1)
    limit_s = IDLE_FACTOR * np.maximum(body_s, np.nanmax([period_s.median(), body_s.median()]))
    table["is_measured"] = period_s.notna() & (period_s <= limit_s)
    table["duration_s"] = np.where(table["is_measured"], period_s, body_s)
    n_idle = int((period_s > limit_s).sum())
    if n_idle:
        notes = [*notes, f"{n_idle} of {len(table)} steps are followed by a long idle time, which is left out"]
    if len(table) == 2 and period_s[0] > 1.2 * body_s[0]:
        notes = [*notes, "two steps only: idle time between them may be a rare stall as well as what every step waits"]
    steps = Steps(table.drop(columns="end_s"), rule, notes=tuple(notes))
    chosen = steps.chosen
    ends_s = (chosen["start_s"] + chosen["duration_s"]).to_numpy()
    busy = Busy.of(start_s, end_s)
    inside_s = busy.before(ends_s) - busy.before(chosen["start_s"].to_numpy())
    gap_frac = 1.0 - float(inside_s.sum() / chosen["duration_s"].sum())
    return Steps(steps.table, rule, max(gap_frac, 0.0), tuple(notes))
