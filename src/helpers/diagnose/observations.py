"""What was seen: named numbers, each with its sentence, its channel and its source."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import nan

CHANNELS: Mapping[str, str] = {
    "step": "step time against the hardware's lines",
    "log": "what the statistic lines say beside the rate",
    "events": "server events: start-up, memory, crashes",
    "telemetry": "what the devices recorded",
    "profile": "kernel profile",
    "client": "results of the client",
    "links": "topology and link state",
    "baseline": "another run of the same server",
    "told": "what the user says",
}
"""Channel -> what speaks through it. Evidence of one channel is never counted as independent."""


@dataclass(frozen=True)
class Observation:
    """One thing that was seen.

    Attributes
    ----------
    name : str
        What `rules` call it.
    value : float
        Base units; shares 0..1; flags 1.0 or 0.0.
    channel : str
        One of `CHANNELS`.
    says : str
        The sentence a reader gets, with number and unit, without a full stop.
    source : str
        File or stage it came from.
    """

    name: str
    value: float
    channel: str
    says: str
    source: str = ""


class Observations:
    """Observations by name; a name may be seen in several channels.

    A missing observation is not an observation of absence: nothing follows from it.
    """

    def __init__(self, seen: Iterable[Observation] = ()) -> None:
        self._seen = tuple(item for item in seen if item.value == item.value)

    def __iter__(self) -> Iterator[Observation]:
        """Yield all."""
        return iter(self._seen)

    def __len__(self) -> int:
        """Count all."""
        return len(self._seen)

    def named(self, name: str) -> tuple[Observation, ...]:
        """Return the observations of a name."""
        return tuple(item for item in self._seen if item.name == name)

    def value(self, name: str) -> float:
        """Return the value of a name, of the first channel that has it; NaN where none has."""
        return next((item.value for item in self._seen if item.name == name), nan)

    def without(self, channel: str, *, source: str | None = None) -> Observations:
        """Return the same without one channel, or without what one source said through it."""
        return Observations(item for item in self._seen
                            if item.channel != channel or (source is not None and item.source != source))

    def channels(self) -> tuple[str, ...]:
        """Return the channels that speak, in the order of `CHANNELS`."""
        found = {item.channel for item in self._seen}
        return tuple(name for name in CHANNELS if name in found)
