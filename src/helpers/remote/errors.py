"""From whatever a file system raises to one line that says what to do."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from helpers.remote.urls import LOCAL_SCHEMES, RemoteError, advice, scheme_of, shown
from helpers.schema import RooflogError

_NO_CREDENTIALS = {
    "NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError", "NoAuthTokenError",
    "UnauthorizedSSOTokenError", "SSOTokenLoadError", "TokenRetrievalError", "DefaultCredentialsError", "RefreshError",
    "ClientAuthenticationError", "AuthenticationException",
}
"""Classes of botocore, google.auth, azure-core and paramiko; those packages need not be there, so names stand here."""

_NO_CONNECTION = {
    "ConnectionError", "ClientConnectionError", "ClientPayloadError", "HTTPClientError", "TransportError",
    "IncompleteRead", "ServiceRequestError", "ServiceResponseError", "TimeoutError", "FSTimeoutError", "gaierror",
    "SSHException",
}
"""Base classes of builtins, aiohttp, botocore, google.auth, azure-core, paramiko for a connection that failed."""


class RemoteFileMissing(RemoteError):
    """There is no file or folder at a URL."""


@contextmanager
def told(url: str, action: str) -> Iterator[None]:
    """Turn whatever a file system raises into a RemoteError of one line; ``action`` is a verb: read, written."""
    try:
        yield
    except RooflogError:
        raise
    except Exception as error:  # each store has its own classes, and no base of them is common
        reason = _reason(error, url, action)
        kind = RemoteFileMissing if reason == _MISSING else RemoteError
        raise kind(f"{shown(url)}: {reason}") from error


_MISSING = "no such file or folder. Check the address"


def _reason(error: Exception, url: str, action: str) -> str:
    """Say what an error of a file system means, without its own words: they may hold anything."""
    names = {base.__name__ for one in _chain(error) for base in type(one).__mro__}
    status = _status(error)
    if names & _NO_CREDENTIALS or status == 401:
        return f"no valid credentials. {advice(url)}"
    if isinstance(error, PermissionError) or status == 403:
        if scheme_of(url) in LOCAL_SCHEMES:
            return f"cannot be {action}: permission denied"
        return f"access refused: the credentials are missing, wrong, or have no right to it. {advice(url)}"
    if names & _NO_CONNECTION:  # before the missing file: fsspec calls a web server that is not there that, too
        return f"cannot be {action}: no connection, or it was lost. Check network, host and proxy, then try again"
    if status in (404, 410):
        return _MISSING
    if status:
        return f"cannot be {action}: the server answered with status {status}. Try again later"
    if isinstance(error, FileNotFoundError):
        return _MISSING
    if isinstance(error, IsADirectoryError):
        return "expected a file, found a folder. Name a file in it"
    if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
        return f"cannot be {action}: no space left"
    return f"cannot be {action} ({type(error).__name__}). Check the address, or download the file first"


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and those it came from."""
    seen: list[int] = []
    now: BaseException | None = error
    while now is not None and id(now) not in seen:
        yield now
        seen.append(id(now))
        now = now.__cause__ or now.__context__


def _status(error: BaseException) -> int:
    """Return the HTTP status that an error carries, by the names under which clients keep it; 0 if none."""
    for one in _chain(error):
        for name in ("status", "status_code", "code"):
            value = getattr(one, name, None)
            if isinstance(value, int) and 400 <= value < 600:
                return value
        response = getattr(one, "response", None)
        value = response.get("ResponseMetadata", {}).get("HTTPStatusCode") if isinstance(response, dict) else None
        if isinstance(value, int) and value >= 400:
            return value
    return 0
