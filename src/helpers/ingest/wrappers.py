"""What container runtimes and terminals do to lines: wrap them in JSON, split them, fold them at a width.

A line that was split becomes one again under the number of its first part; its other parts are counted as
continued lines. Stamps that a wrapper puts in front stay in front, where `stamps` looks for them.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import polars as pl

CONTINUED = "continued line"
"""Name under which the later parts of a split line are counted among the known lines."""

COLOUR_RESET = r"\[0(?:;0)?m"
"""Logs that lost the escape bytes of their colours when they were saved still end each with this (Rust syntax)."""

DOCKER_PART_BYTES = 16 * 2**10
"""The json-file driver cuts lines here; only the last part of a line ends in a line feed."""

MAX_ROWS = 8
"""Rows into which a terminal folds one record at most: 400 characters at 50 columns."""

DOCKER = '{"log":"'
_DOCKER_TIME = r'"time":"([^"]*)"\}?\s*$'
CRI_PARTS = (" stdout P", " stderr P")
"""One of these is in each line that a CRI runtime split."""

_STREAM = r'"stream":"(\w+)"'
_CRI = r"^([0-9][0-9T:.Z+-]{18,40}) (stdout|stderr) ([FP](?::[A-Z]+)*)(?: ([^\n]*))?\n?$"
_LAST_LINES = 1024
"""Lines at the end of a chunk that are looked at for a split line that goes on in the next chunk."""

_CRI_PART = re.compile(rb"[0-9][0-9T:.Z+-]{18,40} (stdout|stderr) ([FP])")
_DOCKER_PART = re.compile(rb'\{"log":"')

# What begins a record of its own: a stamp, a level, a bracket, a process tag.
_BEGINS_ANEW = r"[0-9]{2}:[0-9]{2}:[0-9]{2}|^\s*(?:INFO|WARNING|ERROR|DEBUG)\b|^\s*[\[({<]"
_GOES_ON = r": ?-?[0-9TFni]|^[0-9a-z. ]+(?: tokens| reqs|%)|^-?[0-9.]+%?,?\s*$|^(?:rue|alse|ue|lse|se|e)\b"


@dataclass(frozen=True)
class Parts:
    """Lines that belong together: the first takes the text of the others."""

    lines: pl.DataFrame
    n_continued: int
    is_changed: bool = False
    """Some text is not as stored."""


def unwrap(lines: pl.DataFrame, text: bytes) -> Parts:
    """Take lines out of docker's JSON and put together what docker or a CRI runtime split.

    Parameters
    ----------
    lines : DataFrame
        ``line_no`` and ``text``.
    text : bytes
        The text the lines are from: most hold no wrapper at all, which a look at it tells fastest.
    """
    is_changed = is_docker(text)
    if is_changed:
        lines = _from_docker(lines)
    elif is_cri(text):
        lines = _from_cri(lines)
    if "is_open" not in lines.columns or not lines["is_open"].any():
        return Parts(lines.select("line_no", "text"), 0, is_changed)
    joined = _join(lines)
    lines = lines.select("line_no", "text").join(joined, on="line_no", how="left", maintain_order="left")
    whole = lines.filter(~pl.col("is_later").fill_null(False))
    whole = whole.select("line_no", text=pl.coalesce("whole", "text"))
    return Parts(whole, len(lines) - len(whole), True)


def is_docker(text: bytes) -> bool:
    """Tell whether some line of a text begins as docker's JSON does."""
    return text.startswith(DOCKER.encode()) or f"\n{DOCKER}".encode() in text


def is_cri(text: bytes) -> bool:
    """Tell whether a text may hold lines that a CRI runtime split."""
    return any(part.encode() in text for part in CRI_PARTS)


def _from_docker(lines: pl.DataFrame) -> pl.DataFrame:
    """Put docker's stamp in front of the text it wrapped."""
    log = pl.when(pl.col("text").str.starts_with(DOCKER)).then("text").str.json_path_match("$.log")
    lines = lines.with_columns(_log=log)
    is_open = ~pl.col("_log").str.ends_with("\n") & (pl.col("_log").str.len_bytes() >= DOCKER_PART_BYTES)
    content = pl.col("_log").str.strip_chars_end("\r\n").str.replace_all("\n", "\\n", literal=True)
    stamp = pl.col("text").str.extract(_DOCKER_TIME)
    is_wrapped = pl.col("_log").is_not_null()
    return lines.with_columns(
        stream=pl.when(is_wrapped).then(pl.col("text").str.extract(_STREAM).fill_null("stdout")), is_open=is_open,
        content=content, text=pl.coalesce(pl.concat_str(stamp, pl.lit(" "), content), content, "text"),
    ).drop("_log")


def _from_cri(lines: pl.DataFrame) -> pl.DataFrame:
    """Read the flag of a CRI runtime: P for a part, F for the end of a line."""
    groups = pl.col("text").str.extract_groups(_CRI).struct
    return lines.with_columns(
        stream=groups.field("2"), is_open=groups.field("3").str.starts_with("P"),
        content=groups.field("4").fill_null(""),
    )


def _join(parts: pl.DataFrame) -> pl.DataFrame:
    """Return for every line that is part of a split one its whole text, or that it is a later part of it."""
    open_at: dict[str, int] = {}
    pieces: dict[int, list[str]] = {}
    later: list[int] = []
    for line_no, text, stream, is_open, content in parts.select(
        "line_no", "text", "stream", "is_open", "content"
    ).iter_rows():
        first = open_at.get(stream)
        if stream is None:
            open_at.clear()  # no runtime wrote that: whatever was open has no end
        elif first is not None:
            pieces[first].append(content)
            later.append(line_no)
        elif is_open:
            open_at[stream] = line_no
            pieces[line_no] = [text.rstrip("\r\n")]
        if stream is not None and not is_open:
            open_at.pop(stream, None)
    rows = [(line_no, "".join(texts), False) for line_no, texts in pieces.items()]
    rows += [(line_no, None, True) for line_no in later]  # type: ignore[misc]
    schema = {"line_no": pl.Int64, "whole": pl.String, "is_later": pl.Boolean}
    return pl.DataFrame(rows, schema=schema, orient="row")


_GUESSES = pl.Schema({"line_no": pl.Int64(), "text": pl.String(), "later": pl.List(pl.Int64)})


@functools.lru_cache(maxsize=1)
def no_guesses() -> pl.DataFrame:
    """Return what `folded` does where nothing may go on."""
    return pl.DataFrame(schema=_GUESSES)


def folded(lines: pl.DataFrame, literals: str, may_follow: np.ndarray | None = None) -> pl.DataFrame:
    """Return what records would read that a terminal may have folded over the lines after them.

    Parameters
    ----------
    lines : DataFrame
        ``line_no`` and ``text``, in the order of the file.
    literals : str
        Regular expression (Rust syntax) found in lines that name a statistic.
    may_follow : array of bool, optional
        False for lines that surely begin anew (`BEGINNINGS`); only saves work.

    Returns
    -------
    DataFrame
        ``line_no`` of the first row, ``text`` of all rows joined, numbers of the ``later`` rows; the longest guess of
        a line comes first. Nothing is decided here: a guess is right if it can be read whole.
    """
    text = lines["text"]
    possible = np.arange(1, len(text)) if may_follow is None else np.flatnonzero(may_follow[1:]) + 1
    later = text.gather(possible)
    goes_on = _is_plain(later, literals) & later.str.contains(_GOES_ON)
    second = possible[goes_on.to_numpy()]
    if not len(second):
        return no_guesses()
    first, after = text.gather(second - 1), text.gather(second)
    # the end of a row may lie inside the literal
    pairs = first.str.strip_chars_end("\r\n") + after
    names_record = first.str.contains(literals) | first.str.contains(_BEGINS_ANEW) & pairs.str.contains(literals)
    at = second[names_record.to_numpy()] - 1
    near = np.unique(np.minimum(at[:, None] + np.arange(MAX_ROWS), len(text) - 1))
    is_plain: np.ndarray = np.zeros(len(text), bool)
    is_plain[near] = _is_plain(text.gather(near), literals).to_numpy()
    guesses: list[tuple[int, str, list[int]]] = []
    for index in at.tolist():
        rows = lines[index: index + MAX_ROWS]
        texts = [text.rstrip("\r\n") for text in rows["text"]]
        guesses += _guess(rows["line_no"].to_list(), texts, is_plain[index: index + MAX_ROWS].tolist())
    return pl.DataFrame(guesses, schema=_GUESSES, orient="row")


def _is_plain(text: pl.Series, literals: str) -> pl.Series:
    """Tell of each line whether it could be the later row of a folded one."""
    return ~text.str.contains(_BEGINS_ANEW) & ~text.str.contains(literals) & text.str.contains(r"\S")


BEGINNINGS = (
    "[", "(", "{", "<", "INFO:", "INFO ", "WARNING:", "WARNING ", "ERROR:", "ERROR ", "DEBUG:", "DEBUG ",
)
"""Lines that begin so continue none before: some of what `folded` takes for the begin of a record."""


def _guess(numbers: list[int], texts: list[str], is_plain: list[bool]) -> list[tuple[int, str, list[int]]]:
    """Return the wholes of the first rows, the longest first: an early end may lie inside a number."""
    width = len(texts[0])
    found = []
    for last in range(1, len(texts)):
        # only the last row of a folded line is shorter than the terminal is wide
        if not is_plain[last] or len(texts[last]) > width + 1 or last > 1 and len(texts[last - 1]) < width - 1:
            break
        found.append((numbers[0], "".join(texts[: last + 1]), numbers[1: last + 1]))
    return found[::-1]


def hold_from(block: bytes, names_record: re.Pattern[bytes]) -> int:
    """Return where the lines at the end of a chunk begin that may go on in the next one; its length if none does.

    Parameters
    ----------
    block : bytes
        Whole lines.
    names_record : pattern
        Found in lines that name a statistic: a terminal may fold them.
    """
    starts = _last_starts(block, MAX_ROWS)
    named = (start for start in starts if names_record.search(block[start: start + 4096]))
    return min(next(named, len(block)), _open_part(block))


def _last_starts(block: bytes, n_lines: int) -> Iterable[int]:
    """Yield where the last lines begin, the last one first."""
    end = len(block)
    for _ in range(n_lines):
        if end <= 0:
            return
        end = start = block.rfind(b"\n", 0, end - 1) + 1
        yield start


def _open_part(block: bytes) -> int:
    """Return where the first line begins that a runtime split and has not ended."""
    held = len(block)
    settled: set[bytes] = set()
    for start in _last_starts(block, _LAST_LINES):
        stream, is_open = _part(block, start)
        if stream is None or len(settled) == 2:
            break
        if stream in settled:
            continue
        if is_open:
            held = start
        else:
            settled.add(stream)
    return held


def _part(block: bytes, start: int) -> tuple[bytes | None, bool]:
    """Return stream of a wrapped line, and whether it goes on; None for any other line."""
    if match := _CRI_PART.match(block, start, start + 64):
        return match[1], match[2] == b"P"
    if _DOCKER_PART.match(block, start, start + 16):
        line = block[start: block.find(b"\n", start)]
        stream = b"stderr" if b'"stream":"stderr"' in line[-200:] else b"stdout"
        ends = b'\\n","stream"' in line[-200:] or b'\\n","' in line[-4096:]
        return stream, not ends and len(line) >= DOCKER_PART_BYTES
    return None, False
