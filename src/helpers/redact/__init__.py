"""`rooflog redact` and `rooflog bug-report`: logs that are safe to share, and proof that they still say the same.

Data flow: `write` (files, through `ingest.redaction` line by line) -> `check` (both read and compared) -> `bundle`.
"""

from helpers.redact.bundle import bug_report
from helpers.redact.check import compare
from helpers.redact.write import Redaction, redact, write_map

__all__ = ["Redaction", "bug_report", "compare", "redact", "write_map"]
