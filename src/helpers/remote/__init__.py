"""Files behind URLs (s3://, gs://, http://, file:// ...): listed, fetched, written. The only place that knows fsspec.

A URL with credentials in it is refused before anything is read: command lines, messages and the records of runs name
their inputs, and would keep them. What a store needs comes from its own environment variables and settings files.
"""

from helpers.remote.errors import RemoteFileMissing
from helpers.remote.files import exists, fetch, local_copy, read_start, read_text, size_bytes
from helpers.remote.folders import is_whole, put_folder, refuse_web_page
from helpers.remote.listing import PACKAGES, is_pattern, list_files
from helpers.remote.urls import RemoteError, is_url, join, refuse_credentials, scheme_of, shown

__all__ = [
    "PACKAGES", "RemoteError", "RemoteFileMissing", "exists", "fetch", "is_pattern", "is_url", "is_whole", "join",
    "list_files", "local_copy", "put_folder", "read_start", "read_text", "refuse_credentials", "refuse_web_page",
    "scheme_of", "shown", "size_bytes",
]
