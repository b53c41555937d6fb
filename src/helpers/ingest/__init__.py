"""Reading server logs (SGLang, vLLM) and hand-typed tables into the stage tables.

Data flow: `sources` (which files) -> `lines` (bytes to lines) -> `scan` (class of every line) -> `extract` with the
dialects `sglang` and `vllm` (records) and `events` (server events) -> `log` (lives, clock, tables).
"""

from helpers.ingest.accounting import Accounting, MalformedLine
from helpers.ingest.log import Log, read_log
from helpers.ingest.sources import Source
from helpers.ingest.table import is_table, read_table

__all__ = ["Accounting", "Log", "MalformedLine", "Source", "is_table", "read_log", "read_table"]
