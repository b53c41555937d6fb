"""Server events: start-up, memory, crashes and stops, read one line at a time (they are few)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from helpers.ingest.arguments import parse_arguments
from helpers.ingest.dialect import EventRule
from helpers.ingest.engines import DIALECTS

GIB = 2**30
"""Bytes; both engines print GiB, SGLang and old vLLM spell it GB."""

MAX_TEXT = 2000
"""Characters of a line kept in EVENTS.text."""

_ABSURD = 1e18
"""Larger numbers and sizes are garbled text."""

_UNITS = {"B": 1, "bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "KB": 2**10, "MB": 2**20, "GB": 2**30}

COMMON = (
    # A hint how to avoid running out of memory is no event, a traceback line that names the class neither.
    EventRule(
        "out_of_memory", "out of memory",
        r"(?<!encounter )(?<!avoid )(?<!prevent )(?P<device>CUDA|HIP|XPU|NPU)(?: error:)? out of memory(?! errors?\b)"
        r"(?:.*?Tried to allocate (?P<size>[\d.]+) ?(?P<unit>[KMG]i?B|bytes))?",
    ),
    EventRule("out_of_memory", "OutOfMemoryError: ", r"OutOfMemoryError: \S"),
    EventRule("ready", "Application startup complete"),
    # the file of tuned kernels that was looked for is named after the accelerator
    EventRule("fact", "device_name=", r"device_name=(?P<device_name>[A-Za-z]\w*?)(?:\.json|[,\s'\"]|$)"),
    EventRule("shutdown", "INFO:     Shutting down"),
)
"""Lines of the libraries below both engines."""

RULES: tuple[tuple[str | None, EventRule], ...] = tuple(
    sorted(
        [(dialect.engine, rule) for dialect in DIALECTS for rule in dialect.events]
        + [(None, rule) for rule in COMMON],
        key=lambda item: item[1].kind != "args",
    )
)
"""Argument dumps first: whatever words they contain, they are nothing else."""

INTERNAL_KINDS = ("banner", "fact")
"""Kinds that only feed server lives and facts."""

ARGS_LITERALS = tuple(rule.literal for _, rule in RULES if rule.kind == "args")

_DUMP_START = re.compile(r"(?:server_args=|non-default args: |with config: |args: (?=Namespace\())")


@dataclass
class Event:
    """One recognised line."""

    line_no: int
    kind: str
    engine: str | None
    text: str
    start: int
    """Where the message begins in the text; the prefix with stamp and rank is before it."""
    literal: str
    detail: dict[str, Any] = field(default_factory=dict)
    args: dict[str, Any] = field(default_factory=dict)
    life: int = 0
    is_counted: bool = False
    """Its line counts as an event: it holds no statistic and is no mere fact."""


def read_event(line_no: int, text: str) -> Event | None:
    """Recognise a server event in a cleaned line; None if it is none."""
    for engine, rule in RULES:
        start = text.find(rule.literal)
        if start < 0:
            continue
        match = re.search(rule.pattern, text) if rule.pattern else None
        if rule.pattern and match is None:
            continue
        event = Event(line_no, rule.kind, engine, text[:MAX_TEXT], start, rule.literal)
        if match is not None:
            event.detail = _read_groups(match)
        if rule.kind == "args":
            event.args = _read_dump(text)
            if "engine_version" in event.detail:
                event.args["engine_version"] = event.detail["engine_version"]
        return event
    return None


def _read_dump(text: str) -> dict[str, Any]:
    """Read the arguments, with the captured graph sizes that sit deep in what is no Python."""
    begins = _DUMP_START.search(text)
    args = parse_arguments(text[begins.end():]) if begins else {}
    sizes = re.search(r"cudagraph_capture_sizes['\"]: ?\[([\d, ]+)\]", text)
    if sizes:
        args["cudagraph_capture_sizes"] = sorted(read_integers(sizes[1]))
    return args


def _read_groups(match: re.Match[str]) -> dict[str, Any]:
    """Convert named groups: numbers, GiB to bytes, lists of integers."""
    groups = {name: value for name, value in match.groupdict().items() if value is not None}
    detail: dict[str, Any] = {}
    if "size" in groups:
        detail["size_bytes"] = _bytes(groups.pop("size"), _UNITS[groups.pop("unit")])
    for name, value in groups.items():
        if name.endswith("_gib"):
            detail[f"{name.removesuffix('_gib')}_bytes"] = _bytes(value, GIB)
        elif name == "batch_sizes":
            detail[name] = sorted(read_integers(value))
        else:
            detail[name] = _number(value)
    detail = {name: value for name, value in detail.items() if value is not None}
    parts = [detail[name] for name in ("k_bytes", "v_bytes", "conv_state_bytes", "ssm_state_bytes") if name in detail]
    if parts:
        detail["size_bytes"] = sum(parts)
    return detail


def _bytes(text: str, scale: int) -> int | None:
    """Return a size; None where the text is no size that can be meant."""
    try:
        size = float(text) * scale
    except ValueError:
        return None
    return round(size) if abs(size) < _ABSURD else None


def _number(text: str) -> int | float | str:
    """Return the number a text is, without thousands separators, or the text."""
    plain = text.replace(",", "")
    for convert in (int, float):
        try:
            number = convert(plain)
        except ValueError:
            continue
        if abs(number) < _ABSURD:
            return number
    return text


def read_integers(text: str) -> list[int]:
    """``1, 2, 4`` -> [1, 2, 4]; what is no whole number is left out."""
    numbers = (_number(item) for item in text.split(","))
    return [number for number in numbers if isinstance(number, int)]


_READY = (
    "The server is fired up and ready to roll", "Application startup complete", "Starting vLLM server on",
    "Starting vLLM API server",
)
"""Literals that mean ready, the most telling first; those of other engines stand alone and come last."""


def _telling(literal: str | None) -> int:
    """Return the place of a literal that means ready: the lower, the more it says; None is no literal."""
    if literal is None:
        return len(_READY) + 1
    return _READY.index(literal) if literal in _READY else len(_READY)


def number_lives(
    events: list[Event], statistic_lines: pl.Series, first_life: int = 0, restarts: Iterable[int] = ()
) -> list[tuple[int, int]]:
    """Count the server lives of one file and set ``life`` on its events.

    A new life begins at a start-up line (banner, argument dump, engine config) once the life before it has shown
    a statistic line or was ready, or has got further in its start-up or failed and then prints the same kind of
    start-up line again. So all ranks that print the same lines are one life, and a banner with the dumps that
    follow it are one life too.

    Parameters
    ----------
    events : list of Event
        In the order of the lines.
    statistic_lines : Series of int
        Line numbers.
    first_life : int
        Number of the life in which the file begins.
    restarts : iterable of int
        Lines with which a server begins anew though its start-up lines may be missing (`Dialect.restarts`).

    Returns
    -------
    list of (line_no, life)
        Where each life begins; the first is line 1.
    """
    statistics = statistic_lines if statistic_lines.is_sorted() else statistic_lines.sort()
    n_before = 0
    life, begins = first_life, [(1, first_life)]
    has_run = has_progress = has_shown = False
    seen: set[str] = set()
    marks = [Event(line_no, "restart", None, "", 0, "") for line_no in restarts]
    ordered = sorted([*events, *marks], key=lambda event: event.line_no)
    lines = pl.Series([event.line_no for event in ordered], dtype=pl.Int64)
    reached = statistics.search_sorted(lines, side="left")
    for event, n_now in zip(ordered, reached, strict=True):
        if n_now > n_before:
            has_run = has_shown = True
        n_before = n_now
        if event.kind in ("args", "banner", "restart"):
            # a start-up line since the last statistic has begun the life of a restart already
            again = has_run or has_progress and (event.literal in seen or not seen)
            if has_shown if event.kind == "restart" else again:
                life += 1
                begins.append((event.line_no, life))
                has_run = has_progress = has_shown = False
                seen = set()
            seen.add(event.literal)
        elif event.kind == "ready":
            has_run = True
        elif event.kind != "fact":
            has_progress = True
        event.life = life
    return begins


def settle(events: list[Event], engine: str | None) -> list[Event]:
    """Decide what depends on the rest of the life.

    A server says in up to three lines that it is up; the last of them in start-up order counts: SGLang's own, else
    uvicorn's, else vLLM's. A dead child after a stop was asked for is part of the stop. vLLM names the captured
    sizes in its config, not when done.
    """
    settled = []
    stopped: set[int] = set()
    ready: dict[int, str] = {}
    for event in events:
        if event.kind == "ready" and _telling(event.literal) < _telling(ready.get(event.life)):
            ready[event.life] = event.literal
    sizes: dict[int, list[int]] = {}
    for event in events:
        event.engine = event.engine or engine
        if event.kind == "ready" and event.literal != ready[event.life]:
            continue
        if event.kind == "args" and "cudagraph_capture_sizes" in event.args:
            sizes[event.life] = event.args["cudagraph_capture_sizes"]
        if event.kind == "graphs_captured" and event.engine == "vllm" and event.life in sizes:
            event.detail.setdefault("batch_sizes", sizes[event.life])
        if event.kind == "shutdown":
            stopped.add(event.life)
        elif event.kind == "crash" and event.life in stopped:
            event.kind = "shutdown"
            event.detail["after_stop"] = True
        settled.append(event)
    return settled
