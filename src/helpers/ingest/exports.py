"""The exports that are read: files that are no logs of text lines, each recognised by its first bytes.

A new one is a module with an `Export` (see `export_scan`) and one line here.
"""

from __future__ import annotations

import codecs
import contextlib
import gzip
import io
import zlib
from pathlib import Path

import zstandard

from helpers import remote
from helpers.ingest import forward_pass, moments, prometheus, request_metrics, trtllm_stats
from helpers.ingest.export_scan import Export, ExportScan

__all__ = ["EXPORTS", "Export", "ExportScan", "find_export"]

EXPORTS: tuple[Export, ...] = (
    moments.EXPORT,
    forward_pass.EXPORT,
    request_metrics.EXPORT,
    trtllm_stats.EXPORT,
    prometheus.QUERY,
    prometheus.PAGES,
)
"""In the order in which they are asked; the first that matches reads the file."""

HEAD_BYTES = 65536
"""Text of a file's beginning that is shown to `Export.matches`."""


def find_export(path: str) -> Export | None:
    """Return the export that a file is; None if it is to be read as a log of text lines.

    Parameters
    ----------
    path : str
        A file, plain or compressed. Standard input ('-') and pipes cannot be read twice and are taken for logs.
    """
    head = read_head(path)
    return next((export for export in EXPORTS if export.matches(head, path)), None) if head else None


def read_head(path: str) -> str:
    """Return the beginning of a file as text; empty where it cannot be had (the reader proper then says why)."""
    is_url = remote.is_url(path)
    if path == "-" or not is_url and not Path(path).is_file():
        return ""
    with contextlib.suppress(OSError, EOFError, zlib.error, zstandard.ZstdError), (
        io.BytesIO(remote.read_start(path, HEAD_BYTES)) if is_url else Path(path).open("rb")
    ) as file:
        start = file.read(4)
        file.seek(0)
        if start[:2] == b"\x1f\x8b":
            head = gzip.GzipFile(fileobj=file).read(HEAD_BYTES)
        elif start == zstandard.FRAME_HEADER:
            head = zstandard.ZstdDecompressor().stream_reader(file).read(HEAD_BYTES)
        else:
            head = file.read(HEAD_BYTES)
        return head.removeprefix(codecs.BOM_UTF8).decode(errors="replace")
    return ""
