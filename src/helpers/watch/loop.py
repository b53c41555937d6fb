"""The clock around a watcher: poll, wait, stop, and the exit code."""

from __future__ import annotations

import time
from collections.abc import Callable

from helpers.schema import RooflogError
from helpers.watch.follow import FileFollower, PipeFollower, open_source
from helpers.watch.watcher import Change, Watcher

UNTIL = ("steady", "idle", "done")

REACHED, FAILED, CANNOT_TELL = 0, 1, 2
"""Exit codes; 3, cannot read, is every LogFormatError."""

POLL_S = 0.5
"""Pause between two looks at a log that does not grow faster [s]."""

READ_FRAC = 0.015
"""Share of one core that reading new lines may take: the pause grows with what the last look cost [1]."""

MAX_PAUSE_S = 5.0

BACKLOG_BYTES_PER_S = 200_000
"""What comes faster was there before, whole: a thousand lines in a second are printed by no server."""

_FATAL = ("out_of_memory", "crash")


def watch(
    source: str,
    *,
    until: str = "",
    timeout_s: float = 0.0,
    say: Callable[[Change], None],
    idle_s: float = 10.0,
    poll_s: float = POLL_S,
    watcher: Watcher | None = None,
    look: Callable[[Watcher], None] | None = None,
) -> int:
    """Follow a log until something is reached.

    Parameters
    ----------
    source : str
        Path, also of a file that is not there yet, or '-' for standard input.
    until : str
        steady: decode is proven steady by lines that came while watching. idle: nothing has run for ``idle_s``.
        done: the server has shut down or crashed, also before. Empty: never, only the input's end or the timeout.
    timeout_s : float
        Longest time to watch; 0 is without limit [s].
    say : callable
        Called with every `Change`.
    idle_s, poll_s : float
        See `Watcher` and `POLL_S` [s].
    watcher : Watcher, optional
        With other limits.
    look : callable, optional
        Called after every look at the log, whether or not something changed.

    Returns
    -------
    int
        0 reached (without ``until``: the end of the input or of the time); 1 the server crashed, or ran out of memory
        while steady or idle was waited for; 2 the time, the input, or for steady the server, ended before, or the
        time passed without a line.

    Raises
    ------
    LogFormatError
        The source cannot be read as a log that grows.
    RooflogError
        ``until`` or ``timeout_s`` is nothing of the kind.
    """
    if until and until not in UNTIL:
        raise RooflogError(f"--until {until}: expected one of {', '.join(UNTIL)}")
    if not timeout_s >= 0:
        raise RooflogError(f"--timeout {timeout_s:g}: expected seconds, 0 or more")
    watcher = watcher or Watcher(idle_s=idle_s)
    watcher.stop_at_steady = until == "steady"
    follower = open_source(source)
    try:
        reason, code = _run(follower, watcher, until, timeout_s, say, poll_s, look)
    finally:
        follower.close()
    if until != "steady":  # a script waits for that
        _say_all(watcher.finish(), say)
    if look is not None:
        look(watcher)
    say(watcher.end(reason, code))
    return code


def _run(
    follower: FileFollower | PipeFollower, watcher: Watcher, until: str, timeout_s: float,
    say: Callable[[Change], None], poll_s: float, look: Callable[[Watcher], None] | None = None,
) -> tuple[str, int]:
    deadline_s = time.monotonic() + timeout_s if timeout_s else float("inf")
    was_history = False
    read_at_s = time.monotonic()
    while True:
        began_s, judged_s = time.process_time(), watcher.judged_s
        piece = follower.read()
        for text in piece.notes:
            _say_all(watcher.note(text), say)
        if was_history and not piece.is_history and watcher.state.ended and until != "done":
            _say_all(watcher.note(f"the server in this log had ended before ({watcher.state.ended}); waiting for its "
                                  "next start"), say)
        was_history = piece.is_history
        passed_s, read_at_s = max(time.monotonic() - read_at_s, poll_s / 4), time.monotonic()
        is_backlog = piece.is_end or len(piece.data) > BACKLOG_BYTES_PER_S * passed_s
        was_ended = bool(watcher.state.ended)
        changes = watcher.take(piece.data, is_history=piece.is_history, is_backlog=is_backlog)
        _say_all(changes, say)
        if look is not None:
            look(watcher)
        if not piece.is_history and (found := _reached(watcher, until, changes, was_ended)):
            return found
        if piece.is_end:
            return ("the input ended", CANNOT_TELL if until else REACHED)
        now_s = time.monotonic()
        if now_s >= deadline_s and not watcher.reader.n_lines:
            return (f"no line came within {timeout_s:g} s", CANNOT_TELL)
        if now_s >= deadline_s:
            return (f"{timeout_s:g} s have passed", CANNOT_TELL if until else REACHED)
        if not piece.has_more:
            spent_s = time.process_time() - began_s - (watcher.judged_s - judged_s)  # judging has a limit of its own
            follower.wait(min(max(poll_s, min(spent_s / READ_FRAC, MAX_PAUSE_S)), max(deadline_s - now_s, 0.0)))


def _say_all(changes: list[Change], say: Callable[[Change], None]) -> None:
    for change in changes:
        say(change)


def _reached(watcher: Watcher, until: str, changes: list[Change], was_ended: bool) -> tuple[str, int] | None:
    """Tell whether watching is over, why, and with which exit code."""
    if not until:
        return None
    if until == "steady" and watcher.is_steady_reached:
        return ("steady decode is proven", REACHED)
    if until == "done" and watcher.state.ended:
        return (f"the server has ended: {watcher.state.ended}", FAILED if watcher.state.ended == "crash" else REACHED)
    alarms = [change.values for change in changes if change.change == "alarm" and change.values["alarm"] in _FATAL]
    if until != "done" and alarms:
        return (f"{alarms[0]['alarm'].replace('_', ' ')}: {alarms[0]['text']}", FAILED)
    if until == "steady" and watcher.state.ended and not was_ended:
        return ("the server was shut down", CANNOT_TELL)
    is_idle = watcher.state.phase == "idle" and watcher.idle_for_s() >= watcher.idle_s
    if until == "idle" and is_idle and watcher.state.is_up:
        return (f"nothing has run for {watcher.idle_for_s():.0f} s", REACHED)
    return None
