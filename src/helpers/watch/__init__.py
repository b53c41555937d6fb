"""`rooflog watch`: follow a growing or piped log, and say when steady decode is proven, over, or never to come.

Data flow: `follow` (new whole lines of a file or pipe) -> `records` (the same dialects as `ingest`, new lines only) ->
`state` (phase and alarms, line by line) and `judge` (the same clean rule as `segment`, on a bounded tail of the log)
-> `law` (levels and law from the clean intervals so far) -> `watcher` (all together, one `Change` for each thing worth
saying) -> `loop` (time, exit codes).
"""

from helpers.watch.follow import FileFollower, PipeFollower, open_source
from helpers.watch.law import LevelsSoFar
from helpers.watch.loop import UNTIL, watch
from helpers.watch.state import ALARMS, PHASES, Alarm
from helpers.watch.watcher import Change, Watcher

__all__ = [
    "ALARMS", "PHASES", "UNTIL", "Alarm", "Change", "FileFollower", "LevelsSoFar", "PipeFollower", "Watcher",
    "open_source", "watch",
]
