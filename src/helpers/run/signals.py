"""Signals that end a process, handled as Ctrl-C is: a run that is ended leaves no folder and no kernel behind."""

from __future__ import annotations

import logging
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

ENDING = ("SIGTERM", "SIGHUP")
"""What job schedulers and closing terminals send; SIGHUP is not known everywhere."""


@contextmanager
def signals_as_interrupt() -> Iterator[list[int]]:
    """Turn the first signal that would end the process into an interrupt inside; give the list that gets its number.

    Only what has its default meaning is handled: nohup and a program around this one keep their own. In another thread
    than the main one nothing is.
    """
    received: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        received.append(number)
        if len(received) == 1:  # cleaning up is not interrupted again
            raise KeyboardInterrupt

    in_main = threading.current_thread() is threading.main_thread()
    numbers = [getattr(signal, name) for name in ENDING if hasattr(signal, name)] if in_main else []
    replaced = [number for number in numbers if signal.getsignal(number) is signal.SIG_DFL]
    for number in replaced:
        signal.signal(number, interrupt)
    try:
        yield received
    finally:
        for number in replaced:
            signal.signal(number, signal.SIG_DFL)


@contextmanager
def ended_as_interrupted() -> Iterator[None]:
    """Turn signals that end the process into an interrupt inside, and into an exit of 128 + signal outside.

    Raises
    ------
    SystemExit
        143 on SIGTERM, 129 on SIGHUP, once everything inside is cleaned up.
    """
    with signals_as_interrupt() as received:
        try:
            yield
        except KeyboardInterrupt:
            if not received:
                raise
            logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # else it mourns the cell that was running, at exit
            print(f"ended by {signal.Signals(received[0]).name}: nothing was kept", file=sys.stderr)
            raise SystemExit(128 + received[0]) from None
