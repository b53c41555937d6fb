"""Blocks of new lines in, changes worth saying out: state and judge together, on a bounded memory and share of CPU."""

from __future__ import annotations

import math
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from helpers.watch.judge import MIN_CLEAN, Verdict, judge
from helpers.watch.law import LevelsSoFar
from helpers.watch.records import RecordReader, Seen
from helpers.watch.state import State

TAIL_LINES = 400
"""Statistics and events kept per rank that prints: some hundred intervals."""

MAX_TAIL_LINES = 4000
"""Kept in all, however many ranks print."""

MAX_START_LINES = 200
"""Start-up lines of one server life that are kept; eight ranks print about sixty."""

UNKNOWN_LINES = 20
"""Lines without one of an engine's after which that is said: start-up logs name themselves earlier."""

START_KINDS = ("args", "banner", "fact", "weights_loaded", "kv_allocated", "graphs_captured", "ready")

MAX_ALARMS = 5
"""Newest alarms that are kept for the status."""

RECENT_LINES = 256
"""Lines among which one that comes again is looked for: a `tail -F` that is started anew sends its last ten again."""

FIT_CPU_FRAC = 0.004
"""Share of one core that estimating levels and law may take over time [1]."""

FIT_CREDIT_S = 0.25
"""CPU time that it may take at once: three fits [s]."""

CREDIT_S = 0.6
"""CPU time that judging may take at once before its share of the clock limits it [s]."""

RESERVE_S = 0.35
"""Of that kept for lines that may prove steady decode: a fresh count of clean intervals can wait [s]."""


@dataclass(frozen=True)
class Change:
    """One thing worth saying.

    Attributes
    ----------
    change : str
        phase, counts (running, queued or clean intervals), law (levels and law were estimated anew), alarm, note,
        life (a server starts anew) or end.
    values : mapping
        The state after it, in base units; None where the log does not tell.
    """

    change: str
    values: dict[str, Any]

    def as_dict(self) -> dict[str, Any]:
        """Return one JSON-safe object."""
        return {"change": self.change, **self.values}


@dataclass
class Watcher:
    """Takes a log in piece by piece.

    Attributes
    ----------
    idle_s : float
        Shortest silence, or time with nothing running, that counts as idle [s].
    max_cpu_frac : float
        Share of one core that judging may take over time; 0 sets no limit, also not on fitting [1].
    stop_at_steady : bool
        Take nothing more in once steady decode is proven.
    state : State
        What the log has said so far.
    is_steady_reached : bool
        Steady decode was proven at some line that came while watching.
    clean_counts : dict
        running_req of the whole server -> clean intervals of this server life.
    levels : LevelsSoFar
        Levels and law of this server life, from the clean intervals of every tail that was judged.
    n_repeated : int
        Statistics and events that came a second time, after the stream was connected anew; they are left out.
    judged_s : float
        CPU time that judging and fitting have taken [s].
    """

    idle_s: float = 10.0
    max_cpu_frac: float = 0.015
    stop_at_steady: bool = False
    state: State = field(default_factory=State)
    reader: RecordReader = field(default_factory=RecordReader)
    verdict: Verdict | None = None
    is_steady_reached: bool = False
    clean_counts: dict[float, int] = field(default_factory=dict)
    levels: LevelsSoFar = field(default_factory=LevelsSoFar)
    n_repeated: int = 0
    judged_s: float = 0.0
    _start: deque[tuple[int, str]] = field(default_factory=lambda: deque(maxlen=MAX_START_LINES))
    _tail: deque[tuple[int, str]] = field(default_factory=lambda: deque(maxlen=TAIL_LINES))
    _changes: list[Change] = field(default_factory=list)
    _said: tuple[Any, ...] = ()
    _said_phase: str = "idle"
    _has_noted: bool = False
    _has_known: bool = False
    _has_said_unknown: bool = False
    _line_no: int = 0
    _counted_no: int = 0
    _kept_no: int = 0
    _alarms: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=MAX_ALARMS))
    _recent: deque[int] = field(default_factory=lambda: deque(maxlen=RECENT_LINES))
    _is_repeating: bool = False
    _episode: int = 0
    _was_idle: bool = True
    _judged_tick: int = 0
    _retry_tick: int = 0
    _min_lines: int = MIN_CLEAN + 1
    _credit_s: float = CREDIT_S
    _fit_credit_s: float = FIT_CREDIT_S
    _began_s: float = field(default_factory=time.monotonic)
    _credited_s: float = field(default_factory=time.monotonic)

    def take(self, block: bytes, *, is_history: bool = False, is_backlog: bool = False) -> list[Change]:
        """Take whole lines in.

        Parameters
        ----------
        block : bytes
            Whole lines; may be empty, then only the clock moves on.
        is_history : bool
            They were there before watching began: they set the state, and prove or alarm nothing.
        is_backlog : bool
            More is waiting than a server prints: the limit on CPU does not hold.

        Returns
        -------
        list of Change
        """
        now_s = time.monotonic()
        self._credit_s = min(CREDIT_S, self._credit_s + self.max_cpu_frac * (now_s - self._credited_s))
        self._fit_credit_s = min(FIT_CREDIT_S, self._fit_credit_s + FIT_CPU_FRAC * (now_s - self._credited_s))
        self._credited_s = now_s
        for seen in self.reader.read(block) if block else ():
            self._take_line(seen, now_s, is_history=is_history, is_free=is_backlog or not self.max_cpu_frac)
            if self.stop_at_steady and self.is_steady_reached:
                break
        if self._is_unknown and self.reader.n_lines >= UNKNOWN_LINES and not self._has_said_unknown:
            self._has_said_unknown = True
            self._changes += self.note(f"{self._unknown_text} so far")
        if not is_history:
            self.state.note_silence(now_s, self.idle_s)
            is_free = is_backlog and bool(block)
            if self.state.n_ticks - self._judged_tick > 0 and (is_free or self._credit_s > RESERVE_S) and self._tail:
                self._judge(prove=False)
            if self.levels.is_due and (is_free or not self.max_cpu_frac or self._fit_credit_s > 0):
                self._fit()
            self._say_phase()
        return self._flush()

    def status(self) -> dict[str, Any]:
        """Return all there is to show now: the values of a change, levels, law, what a law needs, newest alarms."""
        return {
            **self._values(), "clean_counts": dict(self.clean_counts), "levels": self.levels.level_values(),
            "law": self.levels.law_values(), "newest_alarms": list(self._alarms),
        }

    def note(self, text: str) -> list[Change]:
        """Return a note as a change."""
        return [Change("note", {**self._values(), "text": text})]

    def finish(self) -> list[Change]:
        """Count what came since the last look, whatever it costs: nothing will follow."""
        if self._tail and self.state.n_ticks > self._judged_tick:
            self._judge(prove=False)
        if self.levels.is_due:
            self._fit()
        return self._flush()

    def end(self, reason: str, exit_code: int) -> Change:
        """Return the last change."""
        text = f"{reason}; {self._unknown_text}" if self.reader.n_lines and self._is_unknown else reason
        return Change("end", {**self._values(), "text": text, "exit_code": exit_code})

    @property
    def _is_unknown(self) -> bool:
        return not self._has_known and not self.reader.n_malformed

    @property
    def _unknown_text(self) -> str:
        n_lines = self.reader.n_lines
        return (f"none of {n_lines} line{'' if n_lines == 1 else 's'} was recognised as an engine's (rooflog engines "
                "lists what is read)")

    def idle_for_s(self) -> float:
        """Return for how long nothing has run; 0 while something does [s]."""
        since_s = self.state.idle_since_s
        return 0.0 if since_s is None else time.monotonic() - since_s

    def _take_line(self, seen: Seen, now_s: float, *, is_history: bool, is_free: bool) -> None:
        life, self._line_no, self._has_known = self.state.life, seen.line_no, True
        if self._is_repeat(seen):
            self.n_repeated += 1
            return
        alarms = self.state.take_event(seen.event) if seen.event is not None else []
        if self.state.life != life:
            self._forget()
            if not is_history:
                self._changes.append(Change("life", self._values()))
        if seen.event is not None and seen.event.kind in START_KINDS and not seen.records:
            self._start.append((seen.line_no, seen.text))
        else:
            self._keep(seen)
        for record in seen.records:
            if record.kind == "request" and not self.state.n_ticks and not self._has_noted:
                self._has_noted = True
                self._changes += self.note("this log tells of finished requests only: phase and steady decode cannot "
                                           "be followed")
            is_candidate, raised = self.state.take(record, now_s)
            alarms += raised
            if is_candidate and not is_history:
                self._try_to_prove(is_free)
        is_idle = self.state.phase == "idle"
        self._episode, self._was_idle = self._episode + (is_idle and not self._was_idle), is_idle
        if is_history:
            self._said_phase = self.state.phase
            return
        self._say_phase()
        for alarm in alarms:
            found = {"alarm": alarm.kind, "text": alarm.text, "line_no": alarm.line_no}
            self._alarms.append(found)
            self._changes.append(Change("alarm", {**self._values(), **found}))

    def _is_repeat(self, seen: Seen) -> bool:
        """Tell a line that was read before: the same text, older than the newest of its rank or right behind such.

        Without stamps, or within one second of them, a line that comes again cannot be told from one that is alike.
        """
        mark = hash(seen.text)
        stamps = [(record.stamp, self.state.ranks[record.rank].stamp) for record in seen.records
                  if record.rank in self.state.ranks]
        is_older = any(mine is not None and newest is not None and mine < newest for mine, newest in stamps)
        self._is_repeating = (is_older or self._is_repeating) and mark in self._recent
        if not self._is_repeating:
            self._recent.append(mark)
        return self._is_repeating

    def _keep(self, seen: Seen) -> None:
        wanted = min(MAX_TAIL_LINES, TAIL_LINES * max(1, len(self.state.ranks)))
        if self._tail.maxlen != wanted and wanted > (self._tail.maxlen or 0):
            self._tail = deque(self._tail, maxlen=wanted)
        self._tail.append((seen.line_no, seen.text))

    def _forget(self) -> None:
        """Begin a server life: lines of the one before say nothing about it."""
        self._start.clear()
        self._tail.clear()
        self.verdict, self.clean_counts, self.levels = None, {}, LevelsSoFar()
        self._judged_tick = self._retry_tick = self.state.n_ticks
        self._min_lines = MIN_CLEAN + 1

    def _try_to_prove(self, is_free: bool) -> None:
        """Judge the newest line, if it has a chance and CPU time is left."""
        plateau = min((rank.plateau for rank in self.state.busy if rank.running_req), default=0)
        if plateau < self._min_lines or self.state.n_ticks < self._retry_tick or not (is_free or self._credit_s > 0):
            return
        verdict = self._judge(prove=True)
        if not verdict.is_steady:
            # a refusal is looked at again after the next round of all ranks, on a long plateau less and less often
            self._retry_tick = self.state.n_ticks + max(len(self.state.busy), plateau // 8)

    def _judge(self, *, prove: bool) -> Verdict:
        began_s = time.process_time()
        verdict = judge(sorted([*self._start, *self._tail]))
        spent_s = time.process_time() - began_s
        self._credit_s, self.judged_s = self._credit_s - spent_s, self.judged_s + spent_s
        self.verdict, self._judged_tick, self._min_lines = verdict, self.state.n_ticks, verdict.min_lines
        for line_no, running_req in verdict.clean_line_nos:
            if line_no > self._counted_no:
                self.clean_counts[running_req] = self.clean_counts.get(running_req, 0) + 1
                self._counted_no = line_no
        if verdict.clean is not None and len(verdict.clean):
            self.levels.add(verdict.clean[verdict.clean["line_no"] > self._kept_no], self._episode)
            self._kept_no = max(self._kept_no, int(verdict.clean["line_no"].max()))
        if prove and verdict.is_steady:
            # single steps scatter: only a line of many shows a stall
            self.state.prove(verdict.step_s if verdict.min_lines == MIN_CLEAN + 1 else None)
            self.is_steady_reached = True
        return verdict

    def _fit(self) -> None:
        spent_s = self.levels.fit()
        self._fit_credit_s, self.judged_s = self._fit_credit_s - spent_s, self.judged_s + spent_s
        self._changes.append(Change("law", {
            **self._values(), "levels": self.levels.level_values(), "law": self.levels.law_values(),
        }))

    def _say_phase(self) -> None:
        phase = self.state.phase
        if phase != self._said_phase:
            self._said_phase = phase
            self._changes.append(Change("phase", self._values()))
            self._said = self._counts()

    def _counts(self) -> tuple[Any, ...]:
        values = self._values()
        return tuple(values[name] for name in ("phase", "running_req", "queue_req", "n_clean", "n_malformed"))

    def _flush(self) -> list[Change]:
        """Return what is to be said; the counts at most once for every reading."""
        counts = self._counts()
        if counts != self._said and self.state.n_ticks:
            self._said = counts
            self._changes.append(Change("counts", self._values()))
        changes, self._changes = self._changes, []
        return changes

    def _values(self) -> dict[str, Any]:
        state, verdict = self.state, self.verdict
        is_steady = state.phase == "steady" and verdict is not None
        needed = "" if is_steady or verdict is None else verdict.needed
        return {
            "elapsed_s": round(time.monotonic() - self._began_s, 3), "line_no": self._line_no, "ts": state.ts,
            "server_life": state.life, "phase": state.phase, "running_req": state.running_req,
            "queue_req": state.queue_req, "decode_tok_per_s": state.decode_tok_per_s,
            "kv_used_frac": state.kv_used_frac, "graph": state.is_in_graph, "accept_len": state.accept_len,
            "level_req": _known(verdict.running_req) if is_steady and verdict else None,
            "step_s": _known(verdict.step_s) if is_steady and verdict else None,
            "steady_tok_per_s": _known(verdict.decode_tok_per_s) if is_steady and verdict else None,
            "n_clean": sum(self.clean_counts.values()), "needed": needed or None,
            "n_lines": self.reader.n_lines, "n_malformed": self.reader.n_malformed,
            "alarms": dict(state.alarm_counts), "ended": state.ended or None,
        }


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None
