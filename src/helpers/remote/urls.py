"""What a URL is, and how it may be shown: credentials in a URL are refused, and hidden wherever it is named."""

from __future__ import annotations

from helpers.schema import RooflogError

LOCAL_SCHEMES = ("file", "local")
WEB_SCHEMES = ("http", "https")

_CREDENTIALS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE", "gs": "GOOGLE_APPLICATION_CREDENTIALS",
    "abfs": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
}
_ALIASES = {"s3a": "s3", "gcs": "gs", "abfss": "abfs", "az": "abfs", "adl": "abfs"}

_SECRET_WORDS = ("token", "key", "sig", "secret", "pass", "pwd", "cred", "auth", "session", "jwt", "code", "sas")
_SECRET_LENGTH = 20
"""Letters without a break from which the value of an unknown query parameter is taken for a secret."""

_USERS_ARE_PUBLIC = ("abfs", "abfss", "ssh", "sftp", "hdfs", "webhdfs", "smb", "ftp")
"""Schemes where what stands before the @ alone is a user or a container, no secret."""


class RemoteError(RooflogError):
    """A URL cannot be listed, read or written; the message says why and what to do."""


def is_url(text: str) -> bool:
    r"""Tell whether a text is a URL (``s3://bucket/x``); a local path is none, nor is ``C:\x``.

    Examples
    --------
    >>> is_url("s3://bucket/x.log"), is_url("memory://x"), is_url("C:/x.log"), is_url("logs/x.log")
    (True, True, False, False)
    """
    scheme, mark, _ = text.partition("://")
    return bool(mark) and len(scheme) > 1 and scheme[0].isalpha() and _is_scheme(scheme)


def _is_scheme(text: str) -> bool:
    return text.isascii() and all(letter.isalnum() or letter in "+-." for letter in text)


def scheme_of(url: str) -> str:
    """Return the scheme of a URL in small letters: ``S3://x`` -> ``s3``."""
    return url.partition("://")[0].lower()


def shown(text: str) -> str:
    """Return a URL as it may be shown and kept: credentials as ``***``; any other text as it is.

    Examples
    --------
    >>> shown("s3://key:secret@bucket/x.log"), shown("https://host/x.log?token=abc&download=1")
    ('s3://***@bucket/x.log', 'https://host/x.log?token=***&download=1')
    """
    return _split_credentials(text)[0]


def refuse_credentials(url: str) -> None:
    """Raise RemoteError if a URL holds credentials: whatever names the URL later would keep them."""
    hidden, names = _split_credentials(url)
    if names:
        raise RemoteError(
            f"{hidden}: expected a URL without credentials, found {' and '.join(names)} in it: messages and records of "
            f"runs would keep them. {advice(url)}"
        )


def advice(url: str) -> str:
    """Say how a store is given its credentials."""
    scheme = _ALIASES.get(scheme_of(url), scheme_of(url))
    if scheme in _CREDENTIALS:
        return f"Give them in the environment ({_CREDENTIALS[scheme]}), or download the file first"
    return f"{'Give them in ~/.netrc, or download' if scheme in WEB_SCHEMES else 'Download'} the file first"


def _split_credentials(text: str) -> tuple[str, list[str]]:
    """Return a URL with its credentials hidden, and what they were, in words."""
    scheme, mark, rest = text.partition(":/")  # a URL that went through Path has one slash
    if not mark or len(scheme) < 2 or not _is_scheme(scheme):
        return text, []
    slashes = "/" if rest.startswith("/") else ""
    rest = rest.removeprefix("/")
    user, at, after = _user_of(rest)
    found = []
    if at and (":" in user or scheme.lower() not in _USERS_ARE_PUBLIC):
        found.append("a user or key before the @")
        rest = f"***@{after}"
    place, question, query = rest.partition("?")
    pieces = []
    for piece in query.replace("#", "&#").split("&") if question else []:
        name, equals, value = piece.partition("=")
        if equals and _is_secret(name, value):
            found.append(f"the parameter {name.lstrip('#')}")
            piece = f"{name}=***"
        pieces.append(piece)
    place, hash_mark, fragment = place.partition("#")
    if scheme.lower() in WEB_SCHEMES and "=" in fragment:
        found.append("values after the #")
        fragment = "***"
    if not found:
        return text, []
    return f"{scheme}{mark}{slashes}{place}{hash_mark}{fragment}{question}{'&'.join(pieces)}", found


def _user_of(rest: str) -> tuple[str, str, str]:
    """Split off what stands before the @ of the host; the secret keys of S3 may hold slashes."""
    host, _, path = rest.partition("/")
    if "@" in host:
        user, at, behind = host.rpartition("@")
        return user, at, behind + rest[len(host):]
    name, colon, port = host.partition(":")
    if colon and not port.isdecimal() and name != "arn" and not host.startswith("[") and "@" in path:
        return rest.partition("@")
    return "", "", rest


def _is_secret(name: str, value: str) -> bool:
    """Tell whether the value of a query parameter may be a secret: by the name's words, or by its length."""
    is_long = max((len(part) for part in value.replace("/", ".").split(".")), default=0) >= _SECRET_LENGTH
    return bool(value) and (is_long or any(word in name.lower() for word in _SECRET_WORDS))


def join(url: str, name: str) -> str:
    """Return the URL of a file or folder in a folder."""
    scheme, mark, rest = url.partition("://")
    folder = rest.rstrip("/")
    return f"{scheme}{mark}{folder}/{name}" if folder else f"{url}{name}"
