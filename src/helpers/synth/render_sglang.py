"""What SGLang prints about a `Trace`: layout and meaning of every line by version.

Decode line: every `decode_log_interval` decode forwards of a rank, counted from the start of the process and never
reset; throughput = tokens decode made since the last line over the time since it, whatever happened in between.
Source: the layouts of sglang wheels 0.3.6 to 0.5.23.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from helpers.synth.config import Server, Speculation
from helpers.synth.lines import Clock, Line, access
from helpers.synth.startup import sglang_crash, sglang_shutdown, sglang_startup
from helpers.synth.trace import DECODE, Forward, Trace

PP_COPY_SPREAD_FRAC = 0.003
"""Copies of one line printed by the pipeline stages differ by about so much (field logs: ~0.3 %)."""


@dataclass(frozen=True)
class Layout:
    """How one range of versions writes its lines."""

    since: tuple[int, ...]
    separator: str = ", "  # after "Decode batch"
    tail: str = ""
    has_graph: bool = True
    has_accept_rate: bool = True
    is_accept_rate_of_drafts: bool = False  # (accept_len - 1) / (n - 1) instead of accept_len / n
    has_cache_hit_rate: bool = False
    prefill_suffix: str = ""  # "", "rate_first", "graph_first"
    is_prefill_processed: bool = False  # printed when its result is read, not when the batch is formed
    is_rate_of_this_prefill: bool = False
    has_pending: bool = False
    tag_order: tuple[str, ...] = ("DP", "TP", "PP")
    has_always_tp: bool = False


LAYOUTS = (
    Layout((0, 3, 6), ". ", has_graph=False, has_accept_rate=False, has_cache_hit_rate=True, has_always_tp=True),
    Layout((0, 4, 3), ". ", ", ", has_graph=False, has_accept_rate=False, has_always_tp=True),
    Layout((0, 4, 6), ". ", has_accept_rate=False),
    Layout((0, 4, 9), ". ", ", ", has_accept_rate=False),
    Layout((0, 5, 3), ". ", ", ", tag_order=("DP", "TP", "EP", "PP")),
    Layout((0, 5, 4), ", ", ", ", tag_order=("DP", "TP", "EP", "PP")),
    Layout((0, 5, 6), ", ", ", ", tag_order=("DP", "PP", "TP", "EP")),
    Layout((0, 5, 9), prefill_suffix="rate_first", is_prefill_processed=True, tag_order=("DP", "PP", "TP", "EP")),
    Layout((0, 5, 10), prefill_suffix="graph_first", is_prefill_processed=True, tag_order=("DP", "PP", "TP", "EP")),
    Layout((0, 5, 12), prefill_suffix="graph_first", is_prefill_processed=True, is_accept_rate_of_drafts=True,
           is_rate_of_this_prefill=True, has_pending=True, tag_order=("DP", "PP", "TP", "EP")),
)


def layout_of(server: Server) -> Layout:
    """Return the layout of the server's version: the newest that is not newer."""
    fitting = [layout for layout in LAYOUTS if layout.since <= server.version_tuple]
    return fitting[-1] if fitting else LAYOUTS[0]


def rank_tags(server: Server, layout: Layout, group: int, stage: int) -> str:
    """Return the tags of a rank as printed: `` DP1 TP4``, or nothing on a single GPU."""
    attention_tp = server.tp_size // server.dp_size if server.dp_size > 1 else server.tp_size
    tp_rank = group * attention_tp if server.dp_size > 1 else 0
    shown = {
        "DP": f"DP{group}" if server.dp_size > 1 else "",
        "TP": f"TP{tp_rank}" if server.tp_size > 1 or layout.has_always_tp else "",
        "EP": f"EP{tp_rank}" if server.ep_size > 1 else "",
        "PP": f"PP{stage}" if server.pp_size > 1 else "",
    }
    return " ".join(shown[tag] for tag in layout.tag_order if shown[tag])


def render(trace: Trace, rng: np.random.Generator) -> list[Line]:
    """Return every line of the log in order.

    Parameters
    ----------
    trace : Trace
        What happened.
    rng : Generator
        Draws the small differences between the copies that pipeline stages print.
    """
    server = trace.server
    layout = layout_of(server)
    clock = Clock(server.start, "%Y-%m-%d %H:%M:%S")
    placed: list[tuple[float, int, Line]] = []

    def place(order: int, line: Line) -> None:
        placed.append((line.t_s, order, line))

    by_life: dict[int, list[Forward]] = {}
    for forward in trace.forwards:
        by_life.setdefault(forward.life, []).append(forward)
    started_s = {e["server_life"]: e["t_s"] for e in trace.events if e["kind"] == "initialised"}
    writer = _Writer(server, layout, clock, rng)
    for life, forwards in by_life.items():
        for line in writer.decode_lines(forwards, started_s[life]):
            place(1, line)
        for line in writer.prefill_lines(forwards, started_s[life]):
            place(2, line)  # formed or processed, the host has just written the decode line before
    for event in trace.events:
        for line in _event_lines(server, layout, clock, event):
            place({"start": -1, "shutdown": 9, "out_of_memory": 9}.get(event["kind"], 3), line)
    if server.access_lines:
        for load in trace.loop.loads:
            for request in load.requests:
                if request.first_token_s == request.first_token_s:
                    place(4, _stamped(clock, server, "", request.first_token_s, access(request.number)))
    placed.sort(key=lambda item: item[:2])
    return [line for _, _, line in placed]


def _stamped(
    clock: Clock, server: Server, tags: str, t_s: float, text: str, values: dict[str, Any] | None = None
) -> Line:
    stamp = clock.stamp(t_s)
    if server.has_ms_stamps:
        stamp = f"{stamp}.{int(t_s * 1000) % 1000:03d}"
    return Line(t_s, f"[{stamp} {tags}] {text}" if tags else f"[{stamp}] {text}", values or {})


class _Writer:
    """Writes the statistic lines of one server."""

    def __init__(self, server: Server, layout: Layout, clock: Clock, rng: np.random.Generator) -> None:
        self.server = server
        self.layout = layout
        self.clock = clock
        self.rng = rng

    def decode_lines(self, forwards: Iterable[Forward], started_s: float) -> list[Line]:
        """Return the decode lines of one server life."""
        server = self.server
        interval = server.decode_log_interval
        by_rank: dict[int, list[Forward]] = {}
        for forward in forwards:
            if forward.kind == DECODE:  # micro-batches share one counter, DP ranks do not
                by_rank.setdefault(forward.group if server.dp_size > 1 else 0, []).append(forward)
        lines: list[Line] = []
        for rank, steps in by_rank.items():
            tokens = np.cumsum([f.decoded_tok for f in steps])
            last_s, last_tok = started_s, 0
            for i in range(interval - 1, len(steps), interval):
                step = steps[i]
                tok = int(tokens[i])
                rate = (tok - last_tok) / (step.print_s - last_s)
                accepted = steps[i + 1 - interval : i + 1] if server.speculation else ()
                lines += self._decode_line(step, rank, rate, accepted)
                last_s, last_tok = step.print_s, tok
        return lines

    def _decode_line(self, step: Forward, rank: int, rate: float, interval: Iterable[Forward]) -> list[Line]:
        server, layout = self.server, self.layout
        usage = f"{step.used_tok / server.kv_pool_tok:.2f}"
        values = {
            "kind": "decode", "running_req": step.batch_req, "queue_req": step.queue_req, "used_tok": step.used_tok,
            "kv_used_frac": float(usage),
        }
        text = (f"Decode batch{layout.separator}#running-req: {step.batch_req}, #token: {step.used_tok}, "
                f"token usage: {usage}, ")
        if server.speculation is not None:
            text += self._accept_part(server.speculation, interval, values)
        if layout.has_graph:
            text += f"cuda graph: {step.graph}, "
            values["graph"] = step.graph
        lines = []
        for stage in range(server.pp_size):
            copy_rate = rate * (1 + PP_COPY_SPREAD_FRAC * self.rng.uniform(-1, 1)) if stage else rate
            printed = f"{copy_rate:.2f}"
            tags = rank_tags(server, layout, rank, stage)
            lines.append(_stamped(
                self.clock, server, tags, step.print_s,
                f"{text}gen throughput (token/s): {printed}, #queue-req: {step.queue_req}{layout.tail}",
                {**values, "rank": tags or None, "decode_tok_per_s": float(printed)},
            ))
        return lines

    def _accept_part(self, speculation: Speculation, interval: Iterable[Forward], values: dict) -> str:
        rounds = accepted = 0
        for step in interval:
            rounds += step.batch_req
            accepted += step.decoded_tok
        accept_len = accepted / rounds
        values["accept_len"] = float(f"{accept_len:.2f}")
        if not self.layout.has_accept_rate:
            return f"accept len: {accept_len:.2f}, "
        n = speculation.num_draft_tokens
        if self.layout.is_accept_rate_of_drafts:
            rate = (accept_len - 1) / (n - 1) if n > 1 else 0.0
        else:
            rate = accept_len / n
        values["accept_rate_frac"] = float(f"{rate:.2f}")
        return f"accept len: {accept_len:.2f}, accept rate: {rate:.2f}, "

    def prefill_lines(self, forwards: Iterable[Forward], started_s: float) -> list[Line]:
        """Return the prefill lines of one server life."""
        server, layout = self.server, self.layout
        lines: list[Line] = []
        last_s: dict[int, float] = {}
        last_tok: dict[int, int] = {}
        seen_tok = hit_tok = 0
        for forward in forwards:
            if forward.kind == DECODE:
                continue
            t_s = forward.end_s if layout.is_prefill_processed else forward.formed_s
            rank = forward.group if server.dp_size > 1 else 0
            gap_s = max(t_s - last_s.get(rank, started_s), 1e-6)
            rate_tok = forward.new_tok if layout.is_rate_of_this_prefill else last_tok.get(rank, 0)
            last_s[rank], last_tok[rank] = t_s, forward.new_tok
            seen_tok += forward.new_tok + forward.cached_tok
            hit_tok += forward.cached_tok
            # Formed: nothing of this batch is allocated yet.
            used_tok = forward.used_tok - (0 if layout.is_prefill_processed else forward.new_tok)
            usage = f"{max(used_tok, 0) / server.kv_pool_tok:.2f}"
            values = {
                "kind": "prefill", "running_req": forward.decoding_req, "queue_req": forward.queue_req,
                "new_tok": forward.new_tok, "cached_tok": forward.cached_tok, "kv_used_frac": float(usage),
            }
            extra: dict[str, float] = {"#new-seq": forward.new_seq}
            text = (f"Prefill batch{layout.separator}#new-seq: {forward.new_seq}, #new-token: {forward.new_tok}, "
                    f"#cached-token: {forward.cached_tok}, ")
            if layout.has_cache_hit_rate:
                text += f"cache hit rate: {100 * hit_tok / max(seen_tok, 1):.2f}%, "
                extra["cache hit rate (%)"] = float(f"{100 * hit_tok / max(seen_tok, 1):.2f}")
            text += f"token usage: {usage}, #running-req: {forward.decoding_req}, #queue-req: {forward.queue_req}"
            if layout.has_pending:
                text += f", #pending-token: {forward.pending_tok}"
                extra["#pending-token"] = forward.pending_tok
            if layout.prefill_suffix:
                rate = f"{rate_tok / gap_s:.2f}"
                parts = ("cuda graph: False", f"input throughput (token/s): {rate}")
                text += ", " + ", ".join(parts if layout.prefill_suffix == "graph_first" else parts[::-1])
                values["graph"] = False
                values["prefill_tok_per_s"] = float(rate)
            text += layout.tail
            for stage in range(server.pp_size):
                tags = rank_tags(server, layout, rank, stage)
                lines.append(_stamped(self.clock, server, tags, t_s, text,
                                      {**values, "rank": tags or None, "extra": extra}))
        return lines


def _event_lines(server: Server, layout: Layout, clock: Clock, event: dict) -> list[Line]:
    """Return the lines of a server event."""
    kind, t_s = event["kind"], event["t_s"]
    tags = rank_tags(server, layout, event.get("group", 0) if server.dp_size > 1 else 0, 0)
    if kind == "start":
        texts = sglang_startup(server, tags)
        step_s = server.startup_s / max(len(texts), 1)
        return [_stamped(clock, server, tag, t_s + i * step_s, text) for i, (tag, text) in enumerate(texts)]
    if kind == "ready":
        return [_stamped(clock, server, "", t_s, "The server is fired up and ready to roll!")]
    if kind == "retraction":
        gained = f", #new_tokens_gained: {event['gained_tok']}" if layout.since >= (0, 5, 3) else ""
        head = ("KV cache pool is full. Retract requests." if layout.since >= (0, 4, 9)
                else "Decode out of memory happened.")
        ratio = server.kv_reserve_frac
        return [_stamped(clock, server, tags, t_s,
                         f"{head} #retracted_reqs: {event['retracted_req']}{gained}, "
                         f"#new_token_ratio: {ratio:.4f} -> {min(1.0, ratio + 0.1):.4f}")]
    if kind == "out_of_memory":
        first, *middle, last = sglang_crash(event["size_bytes"])
        return [_stamped(clock, server, tags, t_s, first), *(Line(t_s, text) for text in middle),
                _stamped(clock, server, "", t_s, last)]
    if kind == "shutdown":
        return [_stamped(clock, server, "", t_s, text) for text in sglang_shutdown()]
    return []
