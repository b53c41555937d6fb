"""From statistic lines to intervals: what happened between two lines, and which are nothing but decode.

`label_intervals` is the stage; `describe_sources` says which kind of record the intervals of a server life come from,
`describe_ranks` which ranks were counted how; `find_episodes` and `phase_seconds` sum up; `join_nodes`, `topology`
and `rank_balance` say what ran where.
"""

from helpers.segment.episodes import find_episodes, phase_seconds
from helpers.segment.intervals import label_intervals
from helpers.segment.ranks import describe_ranks
from helpers.segment.rules import CleanRule
from helpers.segment.spans import describe_sources
from helpers.segment.topology import Joined, combination_notes, join_nodes, rank_balance, topology

__all__ = [
    "CleanRule", "Joined", "combination_notes", "describe_ranks", "describe_sources", "find_episodes", "join_nodes",
    "label_intervals", "phase_seconds", "rank_balance", "topology",
]
