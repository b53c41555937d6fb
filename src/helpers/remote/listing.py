"""fsspec's file systems: the one of a URL, and listing it without a silent gap."""

from __future__ import annotations

import fnmatch
import logging
from itertools import groupby
from typing import Any

from helpers.remote.errors import RemoteFileMissing, told
from helpers.remote.urls import LOCAL_SCHEMES, WEB_SCHEMES, RemoteError, join, refuse_credentials, scheme_of, shown

MAX_DEPTH = 20
"""Folders within folders that are searched; a web server can link them without end."""

EXPECTED = "s3://, gs://, abfs://, http://, https://, sftp://, file://"

CONNECT_S, SILENCE_S = 30.0, 120.0
"""Seconds after which a web server that does not answer, or sends nothing more, is given up; ours."""

PACKAGES = {
    "s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "http": "aiohttp", "https": "aiohttp",
    "abfs": "adlfs", "abfss": "adlfs", "az": "adlfs", "adl": "adlfs", "sftp": "paramiko", "ssh": "paramiko",
    "smb": "smbprotocol", "hdfs": "pyarrow", "webhdfs": "requests", "oci": "ocifs", "oss": "ossfs",
}
"""Scheme -> package that fsspec needs for it (the ``err`` texts of fsspec.registry, 2026.9)."""


def file_system_of(url: str) -> tuple[Any, str]:
    """Return fsspec's file system of a URL and the path in it."""
    import fsspec  # 0.1 s that no local log pays for

    refuse_credentials(url)
    scheme = scheme_of(url)
    if "::" in url:
        raise RemoteError(f"{shown(url)}: expected one plain URL, found '::', which chains several. Unpack it first")
    try:
        known = fsspec.get_filesystem_class(scheme)
    except ImportError as error:
        package = PACKAGES.get(scheme)
        install = f"pip install {package}" if package else f"install the package that fsspec needs for {scheme}://"
        raise RemoteError(f"{shown(url)}: {scheme}:// needs a package that is not installed: {install}") from error
    except ValueError as error:
        raise RemoteError(f"{shown(url)}: no such kind of URL as {scheme}://; expected one of {EXPECTED}") from error
    _hush(known)
    file_system, path = fsspec.url_to_fs(url, **_options(scheme))
    return file_system, str(path)


def _hush(file_system: type) -> None:
    """Keep a store's own warnings off the terminal: its errors are told in one line; a program that logs gets them."""
    logger = logging.getLogger(file_system.__module__.partition(".")[0])
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())


def _options(scheme: str) -> dict[str, Any]:
    """Return what fsspec is told beside the user's own settings of it."""
    if scheme in LOCAL_SCHEMES:
        return {"auto_mkdir": True}
    if scheme not in WEB_SCHEMES:
        return {}
    import aiohttp
    from fsspec.config import conf

    # aiohttp ends every transfer after 5 min in all and overlooks proxies and ~/.netrc unless told otherwise.
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=SILENCE_S)
    return {"client_kwargs": {"trust_env": True, "timeout": timeout, **conf.get(scheme, {}).get("client_kwargs", {})}}


def list_files(url: str) -> list[str]:
    """Return the URLs of the files that a URL names.

    Parameters
    ----------
    url : str
        A file, a folder (searched recursively; over http its name ends in ``/`` and its index page is read), or a
        pattern (``*``, ``?``, ``[ab]``; ``**`` for any folders; over http ``*`` only).

    Returns
    -------
    list of str
        In natural order (rank2 before rank10); of a folder that holds no file, empty.

    Raises
    ------
    RemoteFileMissing
        No such file or folder; a pattern that matches none.
    RemoteError
        No package for such URLs, no credentials, no connection.
    """
    with told(url, "listed"):
        file_system, path = file_system_of(url)
        file_system.invalidate_cache()
        is_web = scheme_of(url) in WEB_SCHEMES
        base, pattern = _split_pattern(url)
        if pattern and not _is_there(file_system, path, is_web):
            depth = MAX_DEPTH if "**" in pattern else len(pattern)
            found = [name for name in _walk(file_system, base, depth, is_web) if _fits(name.split("/"), pattern)]
            if not found:
                raise RemoteFileMissing(f"{shown(url)}: expected a pattern that matches files, found no match")
            return [join(base, name) for name in found]
        is_page = is_web and url.endswith("/")
        if not is_page and file_system.info(path)["type"] == "file":
            return [url]
        return [join(url, name) for name in _walk(file_system, url, MAX_DEPTH, is_web)]


def is_pattern(url: str) -> bool:
    """Tell whether a URL holds wildcards."""
    return bool(_split_pattern(url)[1])


def _split_pattern(url: str) -> tuple[str, list[str]]:
    """Split a URL into the folder before its first part with a wildcard, and the parts from there on."""
    is_web = scheme_of(url) in WEB_SCHEMES
    magic, first_part = ("*", 3) if is_web else ("*?[", 2)
    parts = url.split("/")
    first = next((i for i, part in enumerate(parts) if i >= first_part and any(sign in part for sign in magic)), None)
    return (url, []) if first is None else ("/".join(parts[:first]) + "/", parts[first:])


def _is_there(file_system: Any, path: str, is_web: bool) -> bool:
    """Tell whether a name is that of a file, be it by a link or with wildcards in it."""
    try:
        return not is_web and file_system.info(path)["type"] == "file"
    except (FileNotFoundError, ValueError):
        return False


def _walk(file_system: Any, url: str, max_depth: int, is_web: bool) -> list[str]:
    """Return the names of the files below a folder; unlike fsspec's own walk it raises if one cannot be listed."""
    root = str(file_system._strip_protocol(url)).rstrip("/")
    folders, files = [(root, 1)], set()
    seen = {root}
    while folders:
        folder, depth = folders.pop()
        for entry in file_system.ls(folder + "/" if is_web else folder, detail=True):
            name = str(entry["name"]).rstrip("/")
            below = name.removeprefix(root + "/")
            # The index pages of web servers also hold links to themselves, sorted otherwise, and upwards.
            is_odd = is_web and ("?" in below or "#" in below or ".." in below.split("/"))
            if name in seen or below in (name, "") or is_odd:
                continue
            seen.add(name)
            if entry["type"] == "file" or entry.get("islink") and _is_there(file_system, name, is_web):
                files.add(below)
            elif entry["type"] == "directory" and depth < max_depth:  # a link to a folder is none: it may lead back
                folders.append((name, depth + 1))
    return sorted(files, key=natural)


def _fits(parts: list[str], pattern: list[str]) -> bool:
    """Tell whether the parts of a path fit those of a pattern."""
    if not pattern:
        return not parts
    if pattern[0] == "**":
        return any(_fits(parts[skipped:], pattern[1:]) for skipped in range(len(parts) + 1))
    return bool(parts) and fnmatch.fnmatchcase(parts[0], pattern[0]) and _fits(parts[1:], pattern[1:])


def natural(name: str) -> list[tuple[int, str]]:
    """Return a sort key that puts rank2 before rank10."""
    runs = ["".join(letters) for _, letters in groupby(name, str.isdecimal)]
    first = [""] if name[:1].isdecimal() else []  # numbers before letters, as of local files
    return [(int(run) if run.isdecimal() else -1, run) for run in first + runs]
