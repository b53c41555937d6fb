"""What engines annotate in a trace: model steps with their requests and contexts, and the draft model's turns."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import numpy as np

from helpers.evidence.profiles.steps import PROFILER_STEP, Marked

# vLLM: "execute_context_1(8)_generation_32(32)"; with sums of lengths (sk: keys, the context) as TraceLens'
# annotations print them: "execute_32_context_0(sq0sk0...)_generation_32(sq32sk32785...)".
_EXECUTE = re.compile(r"execute_(?:\d+_)?context_(\d+)\(([^)]*)\)_generation_(\d+)\(([^)]*)\)")
_CONTEXT = re.compile(r"(?<![a-z])sq\d+sk(\d+)")
# SGLang: "step[DECODE bs=32]", "step[EXTEND bs=15 toks=15360]".
_STEP = re.compile(r"step\[(\w+) bs=(\d+)")
_SGLANG_KINDS = {"DECODE": "decode", "TARGET_VERIFY": "decode", "EXTEND": "prefill", "PREFILL": "prefill",
                 "MIXED": "mixed"}

FAMILIES = ("execute_*", "scheduler.run_batch", "step[*]", "gpu_model_runner: forward", PROFILER_STEP)
"""Annotations that mark a step; the first that a trace has counts. SGLang may cut one step into several step[*]."""


def family_of(name: str) -> str:
    """Return which annotation of a step this is; empty for any other."""
    if name.startswith("execute_"):
        return FAMILIES[0] if _EXECUTE.match(name) else ""
    if name.startswith("step["):
        return FAMILIES[2] if _STEP.match(name) else ""
    if name.startswith("ProfilerStep#"):
        return FAMILIES[4]
    return name if name in FAMILIES else ""


def mark(name: str, start_s: float) -> Marked | None:
    """Read an annotation of a step.

    Parameters
    ----------
    name : str
        As printed.
    start_s : float
        When it began.

    Returns
    -------
    Marked or None
        None where it says that no request was in the step: it did no work.
    """
    if found := _EXECUTE.match(name):
        n_context, n_generation = int(found[1]), int(found[3])
        if not n_context and not n_generation:
            return None
        kind = "mixed" if n_context and n_generation else "prefill" if n_context else "decode"
        context = _CONTEXT.search(found[4])
        return Marked(start_s, kind, float(n_generation), float(context[1]) if context and n_generation else np.nan)
    if found := _STEP.match(name):
        kind = _SGLANG_KINDS.get(found[1], "")
        n = float(found[2])
        return None if found[1] == "IDLE" else Marked(start_s, kind, n if kind == "decode" else np.nan)
    return Marked(start_s)


@dataclass
class Annotations:
    """Annotations of a trace while it is read.

    Attributes
    ----------
    found : dict
        (family, process) -> its marks in order of reading.
    drafts_s : list of (start_s, end_s)
        Stretches of the host's time in which a draft model was launched.
    """

    found: dict[tuple[str, str], list[Marked]] = field(default_factory=dict)
    drafts_s: list[tuple[float, float]] = field(default_factory=list)
    n_without_work: int = 0

    def take(self, name: str, process: str, start_s: float, duration_s: float) -> None:
        """Take one annotation; those of no interest are passed over."""
        if "draft" in name.lower():
            self.drafts_s.append((start_s, start_s + duration_s))
            return
        if family := family_of(name):
            marked = mark(name, start_s)
            if marked is None:
                self.n_without_work += 1
            else:
                self.found.setdefault((family, process), []).append(marked)

    def steps(self) -> tuple[str, list[Marked], list[str]]:
        """Return the family that counts, its steps by start, and doubts in words."""
        for family in FAMILIES:
            counts = {process: marks for (found, process), marks in self.found.items() if found == family}
            if counts:
                process = max(counts, key=lambda name: len(counts[name]))
                marks = sorted(counts[process], key=lambda one: one.start_s)
                told = sorted((one for (name, owner), some in self.found.items() if name == FAMILIES[2]
                               and owner == process for one in some), key=lambda one: one.start_s)
                notes = [f"{len(counts)} processes annotate steps; those of {process} are counted"] * (len(counts) > 1)
                return family, [_told(one, told) for one in _with_end(marks)], notes
        return "", [], []

    def is_draft(self, moment_s: np.ndarray) -> np.ndarray:
        """Say of each moment on the host's time whether a draft model was being launched; False where unknown."""
        if not self.drafts_s:
            return np.zeros(len(moment_s), dtype=bool)
        starts, ends = (np.array(side) for side in zip(*sorted(self.drafts_s), strict=True))
        at = np.searchsorted(starts, moment_s, side="right") - 1
        return (at >= 0) & (moment_s <= np.maximum.accumulate(ends)[np.maximum(at, 0)])


def _with_end(marks: list[Marked]) -> list[tuple[Marked, float]]:
    return [(one, after.start_s) for one, after in zip(marks, marks[1:], strict=False)] + [(marks[-1], np.inf)]


def _told(pair: tuple[Marked, float], told: list[Marked]) -> Marked:
    """Complete a step that does not say what it does by the annotation inside it that does."""
    one, end_s = pair
    if one.kind or not told:
        return one
    at = int(np.searchsorted([inner.start_s for inner in told], one.start_s))
    if at < len(told) and told[at].start_s < end_s:
        return Marked(one.start_s, told[at].kind, told[at].running_req, told[at].context_tok)
    return one
