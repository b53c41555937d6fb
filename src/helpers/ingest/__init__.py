"""Reading server logs (SGLang, vLLM) and hand-typed tables into the stage tables.

Data flow: `sources` (which files) -> `cache` (read before?) -> `lines` (bytes to lines) -> `chunk_scan` (class of
every line) -> `extract` with the dialects (records), or `rapid` for the lines that are like earlier ones, and `events`
(server events) -> `parts` (one file on one clock) -> `log` (lives, tables).
"""

from helpers.ingest.accounting import Accounting, MalformedLine
from helpers.ingest.log import Log, read_log
from helpers.ingest.sources import Source
from helpers.ingest.table import is_table, read_table

__all__ = ["Accounting", "Log", "MalformedLine", "Source", "is_table", "read_log", "read_table"]
