"""Times of evidence on the log's clock, and the windows of the log that evidence is clipped to."""

from helpers.evidence.clocks.alignment import Clock, align, align_runs, align_telemetry, to_log_time
from helpers.evidence.clocks.windows import clip, merge, phases_window

__all__ = ["Clock", "align", "align_runs", "align_telemetry", "clip", "merge", "phases_window", "to_log_time"]
