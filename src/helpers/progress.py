"""Progress on standard error for whatever takes longer than two seconds."""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType

from rich.console import Console
from rich.status import Status

QUIET_S = 2.0
"""Nothing is shown before: most commands are done by then."""

REPEAT_S = 15.0
"""Between two lines where the output is no terminal."""

REFRESH_S = 0.5


class Progress:
    """Show what is going on: a spinner on a terminal, a line now and then elsewhere.

    Parameters
    ----------
    task : str
        What runs, for example ``"running 00_diagnose"``.

    Examples
    --------
    >>> with Progress("reading server.log") as say:
    ...     say("chunk 1")
    """

    def __init__(self, task: str) -> None:
        self._task, self._detail = task, ""
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._show, daemon=True)

    def __enter__(self) -> Progress:
        """Start to watch the clock."""
        self._start_s = time.monotonic()
        self._thread.start()
        return self

    def __call__(self, detail: str) -> None:
        """Say where the task is; shown with the next refresh."""
        self._detail = detail

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop and leave the terminal clean."""
        self._done.set()
        self._thread.join()

    def _text(self) -> str:
        elapsed = f"{time.monotonic() - self._start_s:.0f} s"
        return f"{self._task}: {self._detail} ({elapsed})" if self._detail else f"{self._task} ({elapsed})"

    def _show(self) -> None:
        if self._done.wait(QUIET_S):
            return
        if sys.stderr.isatty():
            with Status(self._text(), console=Console(stderr=True)) as status:
                while not self._done.wait(REFRESH_S):
                    status.update(self._text())
            return
        print(self._text(), file=sys.stderr, flush=True)
        while not self._done.wait(REPEAT_S):
            print(self._text(), file=sys.stderr, flush=True)
