"""Phase and alarms of a server, line by line, at the cost of a few comparisons.

A phase is what the newest lines show: only `judge` may call it steady, so that a plateau of a ramp stays a ramp.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from datetime import datetime

from helpers.ingest.events import Event
from helpers.segment.ranks import COPY_TAGS, parse_tags
from helpers.watch.records import Record

PHASES = ("idle", "ramp", "steady", "mixed", "drain")

ALARMS = ("out_of_memory", "retraction", "left_graphs", "crash", "stall")

TICK_KINDS = ("iteration", "counters", "decode", "stats")
"""Kinds that say how many requests decode, best first; of one server only the best that was seen counts."""

_ALARM_OF = {"out_of_memory": "out_of_memory", "retraction": "retraction", "preemption": "retraction",
             "crash": "crash", "watchdog": "stall"}
"""EVENTS kind -> alarm. vLLM's preemption is what SGLang calls retraction: KV is dropped and computed again."""

STALL_FACTOR = 2.0
"""A step above this multiple of the steady one is a stall, as in `segment.CleanRule`."""

MAX_SILENT_TICKS = 5
"""A rank that printed nothing while the others printed so many lines each has no request."""

SILENT_GAPS = 3.0
"""Silence in times between two lines that means that nothing runs."""

UNKNOWN_GAP_S = 20.0
"""Time between two lines where none is known yet; 40 steps of half a second."""

MIN_EAGER = 3
"""Lines in a row without a captured graph, and without a prefill, that count where the count fits a captured one: in
a data-parallel group another rank's prefill takes the graph away for a step."""

_MAX_RANKS = 1024
"""More rank tags than any server prints (as in `ingest`): memory stays bounded."""


@dataclass(frozen=True)
class Alarm:
    """Something that a person should look at."""

    kind: str
    line_no: int
    text: str
    ts: str | None = None


@dataclass
class RankState:
    """The newest lines of one rank.

    Attributes
    ----------
    plateau : int
        Lines in a row with the same running_req.
    """

    running_req: int = 0
    queue_req: int | None = None
    decode_tok_per_s: float | None = None
    accept_len: float | None = None
    kv_used_frac: float | None = None
    is_in_graph: bool | None = None
    plateau: int = 0
    phase: str = "idle"
    prefills_seen: int = 0
    ticks_seen: int = 0
    n_eager: int = 0
    n_empty_windows: int = 0
    stamp: datetime | None = None
    had_graph: bool = False


@dataclass
class State:
    """What the log has said so far, of the server life it is in.

    Attributes
    ----------
    is_proven : bool
        The newest lines are steady decode, as `judge` found.
    ended : str
        How the server ended: "shutdown", "crash", or "" while it lives.
    n_ticks : int
        Lines that say how many requests decode, in this life.
    """

    life: int = 0
    ranks: dict[str, RankState] = field(default_factory=dict)
    is_proven: bool = False
    ended: str = ""
    n_ticks: int = 0
    ts: str | None = None
    last_at_s: float = field(default_factory=time.monotonic)
    idle_since_s: float | None = field(default_factory=time.monotonic)
    gap_s: float | None = None
    steady_step_s: float | None = None
    largest_captured_req: int | None = None
    alarm_counts: dict[str, int] = field(default_factory=dict)
    _kind: str = ""
    _n_prefills: int = 0
    _raised: set[str] = field(default_factory=set)
    _has_run: bool = False

    @property
    def is_up(self) -> bool:
        """The server has said that it is ready, or served a request."""
        return self._has_run and not self.ended

    @property
    def busy(self) -> list[RankState]:
        """Ranks that have printed lately."""
        limit = self.n_ticks - MAX_SILENT_TICKS * max(1, len(self.ranks))
        return [rank for rank in self.ranks.values() if rank.plateau and rank.ticks_seen >= limit]

    @property
    def phase(self) -> str:
        """One of `PHASES`, of the whole server: what the busiest rank does."""
        phases = {rank.phase for rank in self.busy} | {rank.phase for rank in self.ranks.values() if not rank.plateau}
        return next((phase for phase in ("ramp", "mixed", "drain", "steady") if phase in phases), "idle")

    @property
    def running_req(self) -> int:
        """Requests decoding on all ranks, as printed."""
        return sum(rank.running_req for rank in self.busy)

    @property
    def queue_req(self) -> int | None:
        """Requests waiting, where the lines tell."""
        known = [rank.queue_req for rank in self.busy if rank.queue_req is not None]
        return sum(known) if known else None

    @property
    def decode_tok_per_s(self) -> float | None:
        """Rate of the newest lines, all ranks together."""
        known = [rank.decode_tok_per_s for rank in self.busy if rank.decode_tok_per_s is not None]
        return sum(known) if known else None

    @property
    def kv_used_frac(self) -> float | None:
        """Share of the KV pool in use, of the fullest rank."""
        return max((rank.kv_used_frac for rank in self.busy if rank.kv_used_frac is not None), default=None)

    @property
    def accept_len(self) -> float | None:
        """Tokens per request and round of speculation, mean of the ranks."""
        known = [rank.accept_len for rank in self.busy if rank.accept_len is not None]
        return sum(known) / len(known) if known else None

    @property
    def is_in_graph(self) -> bool | None:
        """The newest steps replay a captured graph on every rank, where the lines tell."""
        known = [rank.is_in_graph for rank in self.busy if rank.running_req and rank.is_in_graph is not None]
        return all(known) if known else None

    def take(self, record: Record, now_s: float) -> tuple[bool, list[Alarm]]:
        """Take a record in; tell whether `judge` could find steady decode at it, and what is alarming.

        Parameters
        ----------
        record : Record
        now_s : float
            Monotonic clock at which its line was read [s].
        """
        if record.kind == "request":
            self._has_run, self.ts, self.last_at_s, self.idle_since_s = True, record.ts or self.ts, now_s, now_s
            return False, []
        is_prefill = record.kind == "prefill"
        if not is_prefill and record.kind not in TICK_KINDS or self._is_copy(record):
            return False, []
        self.ts = record.ts or self.ts
        self._has_run = True
        if is_prefill:
            self.last_at_s = now_s
            return self._take_prefill(record), []
        if self._kind and TICK_KINDS.index(record.kind) > TICK_KINDS.index(self._kind):
            return False, []
        running_req = record.count("running_req")
        if running_req is None:
            return False, []
        self._kind = record.kind
        self.n_ticks += 1
        if len(self.ranks) >= _MAX_RANKS and record.rank not in self.ranks:
            return False, []
        rank = self.ranks.setdefault(record.rank, RankState())
        rank.ticks_seen = self.n_ticks
        had_prefill = self._had_prefill(rank, record)
        is_candidate = self._move(rank, record, running_req, had_prefill)
        self._note_time(rank, record, now_s)
        return is_candidate, self._alarms_of(rank, record, had_prefill)

    def _note_time(self, rank: RankState, record: Record, now_s: float) -> None:
        """Keep when something last ran, and the time between two lines by the log's own clock."""
        if record.stamp is not None:
            gap_s = (record.stamp - rank.stamp).total_seconds() if rank.stamp is not None else -1.0
            self.gap_s = gap_s if rank.plateau > 1 and gap_s >= 0 else self.gap_s
            rank.stamp = record.stamp
        self.last_at_s = now_s
        if self.phase != "idle":
            self.idle_since_s = None
        elif self.idle_since_s is None:
            self.idle_since_s, self._raised = now_s, set()

    def _take_prefill(self, record: Record) -> bool:
        """Take a prefill line in: whatever was steady is no longer proven."""
        self._n_prefills += 1
        self.is_proven, self.idle_since_s = False, None
        rank = self.ranks.setdefault(record.rank, RankState()) if len(self.ranks) < _MAX_RANKS else RankState()
        rank.phase = "mixed" if rank.phase in ("steady", "drain", "mixed") and rank.plateau else "ramp"
        if record.count("running_req") == 0:  # the batch had run empty
            rank.plateau, rank.running_req, rank.phase = 0, 0, "ramp"
        return False

    def _had_prefill(self, rank: RankState, record: Record) -> bool:
        """Tell whether a prompt was computed, by any rank, since the tick before of this one."""
        return (
            rank.prefills_seen != self._n_prefills or (record.number("prefill_tok_per_s") or 0) > 0
            or record.kind == "iteration" and (record.count("new_tok") or 0) > 0
        )

    def _move(self, rank: RankState, record: Record, running_req: int, had_prefill: bool) -> bool:
        """Compare a tick with the one before of its rank; tell whether it may complete a proof."""
        before, rank.running_req = rank.running_req, running_req
        rank.prefills_seen = self._n_prefills
        rank.queue_req, rank.decode_tok_per_s = record.count("queue_req"), record.number("decode_tok_per_s")
        if rank.decode_tok_per_s is None and record.values["span_s"] and record.values["out_tok"] is not None:
            rank.decode_tok_per_s = record.values["out_tok"] / record.values["span_s"]
        rank.accept_len, rank.kv_used_frac = record.number("accept_len"), record.number("kv_used_frac")
        rank.is_in_graph = record.values["graph"]
        is_same = running_req == before and rank.plateau > 0
        rank.plateau = rank.plateau + 1 if is_same else 1
        if running_req == 0 and not had_prefill:
            rank.phase = "idle"
        elif not is_same:
            rank.phase = "ramp" if running_req > before else "mixed" if had_prefill else "drain"
        elif had_prefill and rank.phase != "ramp":
            rank.phase = "mixed"
        if not is_same or had_prefill:
            self.is_proven = False
            return False
        return not self.is_proven and running_req > 0

    def prove(self, step_s: float | None) -> None:
        """Note that the newest lines are steady decode, with their step [s]."""
        self.is_proven, self.steady_step_s = True, step_s
        busy = [rank for rank in self.busy if rank.running_req]
        for rank in self.ranks.values():
            rank.phase = "steady" if rank in busy else "idle"

    def _is_copy(self, record: Record) -> bool:
        """Tell the lines that repeat another rank's, or sum several up (`segment.describe_ranks` has the rules)."""
        tags = parse_tags(record.rank)
        is_sum = record.kind == "stats" and not record.rank and any("DP" in rank for rank in self.ranks)
        return is_sum or any(tags.get(name, 0) > 0 for name in COPY_TAGS)

    def _alarms_of(self, rank: RankState, record: Record, had_prefill: bool) -> list[Alarm]:
        """Find what a tick alone shows: eager steps after captured ones, stalls."""
        alarms = []
        graph = record.values["graph"]
        rank.n_eager = rank.n_eager + 1 if graph is False and not had_prefill else 0
        is_beyond = bool(self.largest_captured_req) and rank.running_req > (self.largest_captured_req or 0)
        if rank.n_eager and rank.had_graph and (is_beyond or rank.n_eager >= MIN_EAGER):
            limit = f" (largest captured batch {self.largest_captured_req})" if self.largest_captured_req else ""
            alarms += self.alarm("left_graphs", record.line_no, f"{rank.running_req} requests run without a captured "
                                 f"graph, earlier ones ran with one{limit}", record.ts)
        if graph:
            rank.had_graph = True
            self._raised.discard("left_graphs")
        rate = rank.decode_tok_per_s
        is_empty = record.kind == "stats" and rank.running_req > 0 and rate == 0
        is_empty &= not record.values["prefill_tok_per_s"]
        rank.n_empty_windows = rank.n_empty_windows + 1 if is_empty else 0
        if rank.n_empty_windows > 1:
            alarms += self.alarm("stall", record.line_no, f"{rank.running_req} requests run and no token comes",
                                 record.ts)
        if self.is_proven and self.steady_step_s and rate:
            step_s = rank.running_req * max(rank.accept_len or 1.0, 1.0) / rate
            if step_s > STALL_FACTOR * self.steady_step_s:
                alarms += self.alarm("stall", record.line_no, f"a step of {step_s / self.steady_step_s:.1f} times the "
                                     "steady one at the same count", record.ts)
        return alarms

    def take_event(self, event: Event, ts: str | None = None) -> list[Alarm]:
        """Take a server event in; return what is alarming about it."""
        if event.kind in ("args", "banner") and (self._has_run or self.ended):
            self._begin_life()
        if event.kind == "ready":
            self._has_run = True
        if event.kind == "graphs_captured" and (sizes := event.detail.get("batch_sizes")):
            self.largest_captured_req = max(sizes)
        if event.kind == "args" and (sizes := event.args.get("cudagraph_capture_sizes")):
            self.largest_captured_req = max(sizes)
        if event.kind == "shutdown":
            self._end("shutdown")
        if event.kind not in _ALARM_OF or event.kind == "crash" and self.ended:
            return []  # a child that dies after a stop was asked for is part of the stop, a second after a crash of it
        if event.kind == "crash":
            self._end("crash")
        return self.alarm(_ALARM_OF[event.kind], event.line_no, event.text[event.start:].strip(), ts)

    def alarm(self, kind: str, line_no: int, text: str, ts: str | None = None) -> list[Alarm]:
        """Count an alarm; return it the first time in a stretch of load, later ones are only counted."""
        self.alarm_counts[kind] = self.alarm_counts.get(kind, 0) + 1
        if kind in self._raised:
            return []
        self._raised.add(kind)
        return [Alarm(kind, line_no, text[:300], ts or self.ts)]

    def _begin_life(self) -> None:
        self.life += 1
        self.ended, self._has_run, self._kind = "", False, ""
        self.steady_step_s = self.gap_s = self.largest_captured_req = None
        self._go_idle()

    def _end(self, how: str) -> None:
        self.ended = self.ended or how
        self._go_idle()

    def _go_idle(self) -> None:
        self.ranks, self.is_proven = {}, False
        self._raised = set()
        if self.idle_since_s is None:
            self.idle_since_s = self.last_at_s

    def note_silence(self, now_s: float, idle_s: float) -> bool:
        """Call it idle when nothing was printed for longer than a line is due; tell whether that is new.

        Parameters
        ----------
        now_s : float
            Monotonic clock [s].
        idle_s : float
            Shortest silence that counts [s].

        Notes
        -----
        SGLang prints nothing when its last request ends: silence is all there is. A server that hangs is as silent,
        until its watchdog speaks.
        """
        due_s = SILENT_GAPS * (self.gap_s if self.gap_s is not None else UNKNOWN_GAP_S)
        if self.idle_since_s is not None or now_s - self.last_at_s < max(idle_s, due_s):
            return False
        had_ranks = bool(self.ranks)
        self._go_idle()
        return had_ranks
