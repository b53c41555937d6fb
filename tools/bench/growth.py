"""How cost grows: with the size of a log, with the number of dumps, with the number of workers.

No ratio to a reference here: the same work at growing size, so that a reader sees where it stops being linear.
"""

from __future__ import annotations

import contextlib
import heapq
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.ingest import MB, time_and_peak, write_log
from helpers.batch import batch, local
from helpers.synth import presets

Table = list[dict[str, str]]

LOG_SIZES = {"short": (1, 10), "full": (1, 10, 100, 1000, 2000)}
"""Sizes of logs [MB]."""

DUMPS = {"short": (1, 4), "full": (1, 10, 100, 1000)}

WORKERS = {"short": (1, 2, 4, 8), "full": (1, 2, 4, 8)}

DUMPS_FOR_WORKERS = {"short": 4, "full": 40}

PRESET = "healthy_moe"
"""A sweep whose log holds a law; a dump is that log and one line that makes its contents its own."""

NO_CACHE = {"ROOFLOG_NO_CACHE": "1"}


def tables(scale: str) -> dict[str, Table]:
    """Measure everything.

    Parameters
    ----------
    scale : {"short", "full"}

    Returns
    -------
    dict
        Title -> rows, each column -> text with its unit in the column's name.
    """
    n_cores = local.n_cores()
    return {
        "One log, 1 line in 3 a statistic: reading it, and the whole analysis (one process, imports left out)":
            log_sizes(LOG_SIZES[scale]),
        f"A batch on {n_cores} cores: small dumps, and the same command once more": dumps(DUMPS[scale]),
        f"A batch of {DUMPS_FOR_WORKERS[scale]} small dumps on 1 to 8 workers; more than {n_cores} are simulated":
            workers(WORKERS[scale], DUMPS_FOR_WORKERS[scale], n_cores),
    }


def log_sizes(sizes: Sequence[int]) -> Table:
    """Read and analyse one log of each size [MB], each in a process of its own."""
    found = []
    for size in sizes:
        with tempfile.TemporaryDirectory(prefix="rooflog-bench-") as folder:
            path = Path(folder) / "server.log"
            write_log(path, "SGLang", size * MB, 3)
            read_s, read_bytes = time_and_peak(f"ingest.read_log({str(path)!r})", **NO_CACHE)
            all_s, all_bytes = time_and_peak(
                f"from helpers.analysis import analyse; start_s = time.perf_counter(); analyse({str(path)!r})",
                **NO_CACHE)
        found.append({
            "log [MB]": f"{size:,}", "reading [s]": f"{read_s:.2f}", "reading [MB/s]": f"{size / read_s:.0f}",
            "its peak memory [MB]": f"{read_bytes / MB:.0f}", "whole analysis [s]": f"{all_s:.2f}",
            "its peak memory, reading included [MB]": f"{all_bytes / MB:.0f}",
        })
    return found


def dumps(counts: Sequence[int]) -> Table:
    """Run a batch of each number of dumps, and the same batch again."""
    found = []
    for count in counts:
        with _dumps(count) as (given, out):
            wall_s, again_s = (batch(given, out).wall_s for _ in range(2))
            index_bytes = (out / "index.html").stat().st_size
            found.append({
                "dumps": f"{count:,}", "batch [s]": f"{wall_s:.1f}", "per dump [s]": f"{wall_s / count:.2f}",
                "again, all done [s]": f"{again_s:.2f}", "index page [kB]": f"{index_bytes / 1e3:.0f}",
            })
    return found


def workers(numbers: Sequence[int], n_dumps: int, n_cores: int) -> Table:
    """Run a batch on each number of workers; on more than there are cores, simulate it.

    Simulated: the time of each dump as one worker alone took it, handed to the worker that is free first, and what a
    batch takes beside its dumps. The same is shown where it was also measured, so that it can be judged.
    """
    with _dumps(n_dumps) as (given, out):
        alone = batch(given, out / "1", n_workers=1)
        each_s = [outcome.wall_s for outcome in alone.outcomes]
        found = []
        for number in numbers:
            measured_s = alone.wall_s if number == 1 else (
                batch(given, out / str(number), n_workers=number).wall_s if number <= n_cores else None)
            simulated_s = makespan(each_s, number) + max(alone.wall_s - sum(each_s), 0.0)
            shown_s = simulated_s if measured_s is None else measured_s
            found.append({"workers": str(number), "measured [s]": "" if measured_s is None else f"{measured_s:.1f}",
                          "simulated [s]": f"{simulated_s:.1f}",
                          "times faster than one": f"{alone.wall_s / shown_s:.2f}"})
    return found


def makespan(each_s: Sequence[float], n_workers: int) -> float:
    """Return when the last of some jobs ends, each given to the worker that is free first [s]."""
    free = [0.0] * n_workers
    for job_s in each_s:
        heapq.heapreplace(free, free[0] + job_s)
    return max(free)


@contextlib.contextmanager
def _dumps(count: int) -> Iterator[tuple[Path, Path]]:
    """Give a folder of dumps of one server, each with contents of its own, and a place for their runs."""
    lines = "\n".join(presets.get(PRESET).simulate().lines())
    with tempfile.TemporaryDirectory(prefix="rooflog-bench-") as name:
        given = Path(name) / "dumps"
        given.mkdir()
        for index in range(count):
            (given / f"sweep-{index:04d}.log").write_text(f"{lines}\nthis is dump {index}\n", encoding="utf-8")
        yield given, Path(name) / "runs"
