"""Client results: what benchmark clients wrote, from any file or folder, as a table of runs and one of requests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from helpers.evidence.clients.files import NotAClient, read_file
from helpers.evidence.clients.join import joined, label, once
from helpers.evidence.clients.run import Run, complete
from helpers.evidence.clients.windows import client_windows
from helpers.evidence.reading import Tally
from helpers.schema import CLIENTS, REQUESTS, LogFormatError, conform

__all__ = ["Clients", "client_windows", "read_clients"]

KNOWN = ("sglang bench_serving, vllm bench serve (JSON, JSONL, sweep CSV or console block), the serving benchmark of "
         "TensorRT-LLM, AIPerf, GenAI-Perf, GuideLLM, inference-perf, llmperf")


MAX_REASONS = 2
"""Files named in the error for a folder that holds no result; the longest reasons say the most."""


@dataclass(frozen=True)
class Clients:
    """What benchmark clients told.

    Attributes
    ----------
    runs : DataFrame, schema CLIENTS
        One row per run.
    requests : DataFrame, schema REQUESTS
        One row per request of the runs whose files keep them.
    tally : tuple of Tally
        One per file that was read: lines of a text, records of a JSON file.
    notes : tuple of str
        What cannot be, was left out, joined or found twice.
    others : tuple of str
        Files of a folder that are no client result, each with the reason.
    """

    runs: pd.DataFrame
    requests: pd.DataFrame
    tally: tuple[Tally, ...]
    notes: tuple[str, ...]
    others: tuple[str, ...]


def read_clients(paths: str | Path | Iterable[str | Path]) -> Clients:
    """Read results of benchmark clients into seconds and tokens.

    Parameters
    ----------
    paths : path or iterable of paths
        Files (plain, .gz or .zst), or folders, of which every file is tried; others are listed, not read.

    Returns
    -------
    Clients
        Runs in the order of the paths, files of a folder by name. A run found in two files is kept once, in the
        richer form; per-request files are joined to the run of their folder with as many answered requests.

    Raises
    ------
    LogFormatError
        A named file is no client result or cannot be read, or a folder holds none.
    """
    given = [paths] if isinstance(paths, str | Path) else list(paths)
    runs, tallies, notes, others = list[Run](), list[Tally](), list[str](), list[str]()
    for path, is_named in _files(given):
        try:
            found, tally = read_file(path)
        except NotAClient as error:
            if is_named:
                raise
            others.append(str(error))
            continue
        except LogFormatError as error:
            if is_named:
                raise
            others.append(f"cannot be read: {error}")
            continue
        for run in found:
            run.file = str(path)
        runs += found
        tallies.append(tally)
        notes += [f"{path}: {note}" for note in tally.notes]
    if not runs:
        where = ", ".join(str(path) for path in given) or "no path"
        why = "".join(f"; {other}" for other in sorted(others, key=len, reverse=True)[:MAX_REASONS])
        raise LogFormatError(f"{where}: expected a client result, found none; known are {KNOWN}{why}")
    runs = once([complete(run) for run in runs], notes)
    runs = joined(runs, notes)
    notes += [f"{run.file}{label(run)}: {doubt}" for run in runs for doubt in dict.fromkeys(run.doubts)]
    return Clients(_runs_table(runs), _requests_table(runs), tuple(tallies), tuple(notes), tuple(others))


def _files(given: Iterable[str | Path]) -> Iterator[tuple[Path, bool]]:
    """Yield every file once, with whether it was named itself."""
    seen = set()
    for path in map(Path, given):
        inside = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
        for file in inside:
            if file.resolve() not in seen:
                seen.add(file.resolve())
                yield file, not path.is_dir()


def _runs_table(runs: list[Run]) -> pd.DataFrame:
    rows = [{**run.values, "file": run.file, "line_no": run.line_no, "tool": run.tool,
             "note": "; ".join(dict.fromkeys(run.meanings))} for run in runs]
    return conform(pd.DataFrame(rows).reindex(columns=CLIENTS.names), CLIENTS)


def _requests_table(runs: list[Run]) -> pd.DataFrame:
    tables = [run.requests.assign(file=run.file, run=at) for at, run in enumerate(runs) if run.requests is not None]
    return conform(pd.concat(tables, ignore_index=True), REQUESTS) if tables else REQUESTS.empty()
