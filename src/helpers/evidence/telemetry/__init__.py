"""What devices and engine ranks recorded: `read` is the front door; one module per kind of file."""

from helpers.evidence.telemetry.read import Telemetry, read_telemetry
from helpers.evidence.telemetry.windows import summarise, window

__all__ = ["Telemetry", "read_telemetry", "summarise", "window"]
