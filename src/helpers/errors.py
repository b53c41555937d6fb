"""The errors that a user can cause: one line each, as a terminal may show it."""

from __future__ import annotations

_CONTROLS = {
    code: f"\\u{code:04x}"
    for code in (*range(9), *range(11, 32), *range(127, 160), *range(0x202A, 0x202F), *range(0x2066, 0x206A))
}
"""What a terminal obeys instead of showing it, directions of writing included -> its escape."""


def printable(text: str) -> str:
    """Return a text of unknown origin as a terminal may show it: control codes as escapes, tab and line feed kept."""
    return text.translate(_CONTROLS).encode("utf-8", "backslashreplace").decode()


class RooflogError(ValueError):
    """Base of the errors a user can cause; the message says what, where, expected, found, what to do.

    It is one line that a terminal can show, whatever the file names and texts in it hold.
    """

    def __init__(self, message: object = "") -> None:
        super().__init__(" ".join(printable(str(message)).splitlines()))


class SchemaError(RooflogError):
    """A table breaks its schema; the message names the table and the column."""


class LogFormatError(RooflogError):
    """An input cannot be read as a log or a table at all."""


class NotEnoughData(RooflogError):
    """An input is readable but holds too little to compute what was asked."""
