"""The status block on a terminal: what the server does now, a line per level, the law so far."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from helpers.display import level_key, show
from helpers.schema import printable
from helpers.watch import words
from helpers.watch.watcher import Change, Watcher

REFRESH_PER_S = 1.0
"""A refresh costs some milliseconds of CPU: the clock moves, and that is enough."""

MAX_LEVELS = 20
"""Levels shown; on a lower terminal fewer."""

OTHER_ROWS = 14
"""Rows of the terminal that the rest of the block may take."""

_STYLES = {"steady": "bold green", "idle": "dim", "ramp": "yellow", "mixed": "yellow", "drain": "yellow"}


class Block:
    """Shows the state of a watcher at the bottom of a terminal; alarms and notes scroll above it.

    Parameters
    ----------
    source : str
        Name of the log.
    console : Console
    """

    def __init__(self, source: str, console: Console) -> None:
        self._source, self._console = source, console
        self._began_s = time.monotonic()
        self._status: dict[str, Any] | None = None
        self._live = Live(console=console, get_renderable=self.render, refresh_per_second=REFRESH_PER_S,
                          vertical_overflow="crop")

    def __enter__(self) -> Block:
        """Begin to show."""
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the last state on the terminal."""
        self._live.stop()

    def look(self, watcher: Watcher) -> None:
        """Take the newest state; it is shown with the next refresh, by another thread."""
        self._status = watcher.status()

    def say(self, change: Change) -> None:
        """Print what must not scroll out of sight."""
        if change.change in ("alarm", "note", "life", "end"):
            style = "bold red" if change.change == "alarm" else ""
            self._console.print(Text(words.line(change), style))

    def render(self) -> RenderableType:
        """Build the block."""
        status = self._status
        if status is None:
            return Text(f"{printable(self._source)}: waiting for its first lines")
        elapsed_s = max(time.monotonic() - self._began_s, status["elapsed_s"])
        grid = Table.grid(padding=(0, 2))
        grid.add_column(style="dim", no_wrap=True)
        grid.add_column(overflow="fold")
        for name, text in rows(status):
            grid.add_row(name, text)
        head = Text(f"{printable(self._source)}  {show(elapsed_s, 'duration')}, {status['n_lines']} lines", "bold")
        return Group(head, grid, *self._levels(status))

    def _levels(self, status: dict[str, Any]) -> list[RenderableType]:
        found = words.level_rows(status)
        if not found:
            return []
        n_shown = max(1, min(MAX_LEVELS, self._console.height - OTHER_ROWS))
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
        for name in ("", "running", "clean", "step [95 % interval]", "rate", ""):
            table.add_column(name, justify="right" if name in ("running", "clean") else "left", no_wrap=name != "")
        for row in found[-n_shown:]:
            table.add_row(*row, style="bold" if row[0] else "")
        hidden = len(found) - n_shown
        return [table] if hidden <= 0 else [table, Text(f"{hidden} lower levels are not shown", "dim")]


def rows(status: dict[str, Any]) -> list[tuple[str, Text]]:
    """Return the lines of the block above the levels: name and text.

    Parameters
    ----------
    status : dict
        As `Watcher.status` returns it.
    """
    is_lost = status["ended"] == "crash"
    phase = Text.assemble((status["phase"], _STYLES[status["phase"]]))  # not the style of all: an end is not dim
    if status["ended"]:
        phase.append(f"  the server has ended: {status['ended']}", "bold red" if is_lost else "bold")
    rate = "none" if status["decode_tok_per_s"] is None else f"{show(status['decode_tok_per_s'], 'tok/s')} now"
    if status["steady_tok_per_s"] is not None:
        rate += f", {show(status['steady_tok_per_s'], 'tok/s')} steady at {level_key(status['level_req'])}, " \
                f"step {show(status['step_s'], 's')}"
    graph = {None: "not told", True: "in a captured graph", False: "not in a captured graph"}[status["graph"]]
    kv = "not told" if status["kv_used_frac"] is None else f"{show(100 * status['kv_used_frac'])} % used"
    accept = "" if status["accept_len"] is None else f", accept length {show(status['accept_len'])}"
    found = [
        ("phase", phase), ("requests", Text(words.running(status))), ("rate", Text(rate)),
        ("steps", Text(graph + accept)), ("KV pool", Text(kv)),
        ("clean", Text(f"{status['n_clean']} intervals so far")), ("law", Text(printable(words.law(status["law"])))),
        ("needed", Text(printable(f"for steady: {words.needed(status)}"))),
    ]
    counts = ", ".join(f"{kind.replace('_', ' ')} {n}x" for kind, n in status["alarms"].items())
    alarms = Text(counts or "none", "bold red" if counts else "")
    for one in status["newest_alarms"][-2:]:
        alarms.append("\n" + printable(words.alarm(one)), "red")
    return [*found, ("alarms", alarms)]
