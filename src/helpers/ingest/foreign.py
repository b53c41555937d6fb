"""Texts that lie beside server logs: licences, notes, what a client printed."""

from __future__ import annotations

import os

from helpers.ingest.chunk_lines import names_record
from helpers.ingest.log import describes_nothing
from helpers.ingest.scan import scan_file
from helpers.schema import LogFormatError

MAX_FOREIGN_BYTES = 2**20
"""Larger files count as logs: reading them only to leave them out would take long."""


def is_foreign(path: str) -> bool:
    """Tell whether a small text holds nothing of a server: no statistic, no event, no line of a known kind.

    Parameters
    ----------
    path : str
        A file. What cannot be read is not foreign: whoever reads it shall say why.
    """
    try:
        if not 0 < os.path.getsize(path) <= MAX_FOREIGN_BYTES:
            return False
        with open(path, "rb") as file:
            if names_record.search(file.read()):
                return False
        return describes_nothing(scan_file(path))
    except (OSError, LogFormatError):
        return False
