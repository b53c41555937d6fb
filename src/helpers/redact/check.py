"""Whether redacted logs still say the same as the originals."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from helpers import ingest
from helpers.ingest.log import Log
from helpers.schema import LogFormatError

MODEL_FACTS = ("model", "args")
"""Facts that redaction may change: they hold text of the user's."""


def compare(originals: Sequence[str], redacted: Sequence[str]) -> list[str]:
    """Say in words where redacted logs read otherwise than the originals; nothing if they are the same."""
    found: list[Log | str] = [read(paths) for paths in (originals, redacted)]
    before, after = found
    if isinstance(before, str) or isinstance(after, str):
        both = isinstance(before, str) and isinstance(after, str)
        return [] if both else ["only one of both can be read: " + str(before if isinstance(before, str) else after)]
    differences = []
    if dict(before.accounting.lines) != dict(after.accounting.lines):
        differences.append(f"lines by class: {dict(before.accounting.lines)} became {dict(after.accounting.lines)}")
    differences += _different_columns("samples", before.samples, after.samples, ("file",))
    differences += _different_columns("events", before.events, after.events, ("file", "text", "detail"))
    for life, (old, new) in enumerate(zip(before.facts, after.facts, strict=False)):
        wrong = sorted(name for name in {*old, *new} - set(MODEL_FACTS) if old.get(name) != new.get(name))
        if wrong:
            differences.append(f"facts of server life {life}: {', '.join(wrong)}")
    return differences


def read(paths: Sequence[str]) -> Log | str:
    """Read logs, or say why they cannot be read."""
    try:
        return ingest.read_log(list(paths), cache=False)  # copies have other names each time
    except LogFormatError as error:
        return str(error)


def _different_columns(name: str, before: pd.DataFrame, after: pd.DataFrame, aside: tuple[str, ...]) -> list[str]:
    """Name the columns of a table that differ."""
    if len(before) != len(after):
        return [f"{name}: {len(before)} rows became {len(after)}"]
    wrong = [column for column in before.columns if column not in aside and not before[column].equals(after[column])]
    return [f"{name}: other values in {', '.join(wrong)}"] if wrong else []
