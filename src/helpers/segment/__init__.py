"""From statistic lines to intervals: what happened between two lines, and which are nothing but decode.

`label_intervals` is the stage; `describe_ranks` says which ranks were counted how; `find_episodes` and
`phase_seconds` sum up.
"""

from helpers.segment.episodes import find_episodes, phase_seconds
from helpers.segment.intervals import label_intervals
from helpers.segment.ranks import describe_ranks
from helpers.segment.rules import CleanRule

__all__ = ["CleanRule", "describe_ranks", "find_episodes", "label_intervals", "phase_seconds"]
