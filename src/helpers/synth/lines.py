"""A line of the log, with the values it states, and the clock that stamps it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any


@dataclass(slots=True, eq=False)
class Line:
    """One physical line: when it was written [s], its text, and for a statistic the SAMPLES values as printed."""

    t_s: float
    text: str
    values: dict[str, Any] = field(default_factory=dict)


class Clock:
    """Turns seconds since the first line into stamps; fast because most lines share a second."""

    def __init__(self, start: str, layout: str) -> None:
        self._start = datetime.strptime(start, "%Y-%m-%d %H:%M:%S")
        self._layout = layout
        self._seen: dict[int, str] = {}

    def stamp(self, t_s: float) -> str:
        """Return the stamp of the second that t_s falls in (loggers cut, they do not round)."""
        second = int(t_s)
        text = self._seen.get(second)
        if text is None:
            text = self._seen[second] = (self._start + timedelta(seconds=second)).strftime(self._layout)
        return text


def access(number: int) -> str:
    """Return the access line of request `number`, from a port as varied as real ones."""
    port = 32768 + (number * 7919) % 28000
    return f'INFO:     127.0.0.1:{port} - "POST /v1/completions HTTP/1.1" 200 OK'
