"""What the tests of the batch share."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil


def states(result: Any) -> dict[str, tuple[str, int]]:
    """Dump's name -> state and exit code."""
    return {o.dump.rpartition("/")[2].removesuffix(".log"): (o.state, o.exit_code) for o in result.outcomes}


def messages(result: Any) -> dict[str, str]:
    """Dump's name -> message, where there is one."""
    return {o.dump.rpartition("/")[2].removesuffix(".log"): o.message for o in result.outcomes if o.message}


def worker_of(mark: Path) -> psutil.Process:
    """Return the worker process above the kernel that left a mark."""
    kernel = psutil.Process(int(mark.read_text()))
    return next(p for p in kernel.parents() if p.cmdline()[1:3] == ["-m", "helpers.batch"])


def kill_worker_of(mark: Path, *, is_dask: bool = False) -> tuple[threading.Thread, list[int]]:
    """Kill, in a thread, the worker process that runs the notebook which leaves a mark with its process number.

    `is_dask`: the dask worker above it instead.
    """
    def kill() -> None:
        deadline_s = time.monotonic() + 120
        while not (mark.exists() and mark.read_text()):
            if time.monotonic() > deadline_s:
                return
            time.sleep(0.05)
        worker = worker_of(mark).parent() if is_dask else worker_of(mark)
        killed.append(worker.pid)
        worker.kill()

    killed: list[int] = []
    thread = threading.Thread(target=kill)
    thread.start()
    return thread, killed


def command(*words: Any) -> list[str]:
    """Return the command line `rooflog batch`."""
    return [sys.executable, "-m", "helpers.cli", "batch", *map(str, words)]
