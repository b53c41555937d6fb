"""What the tests of the batch share."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil

import helpers.cli  # noqa: F401


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


def kill_worker_of(mark: Path, wait_s: float = 120.0) -> tuple[threading.Thread, list[int]]:
    """Kill, in a thread, the worker process that runs the notebook which leaves a mark with its process number."""
    def kill() -> None:
        deadline_s = time.monotonic() + wait_s
        while not (mark.exists() and mark.read_text()):
            if time.monotonic() > deadline_s:
                return
            time.sleep(0.05)
        worker = worker_of(mark)
        killed.append(worker.pid)
        worker.kill()

    killed: list[int] = []
    thread = threading.Thread(target=kill)
    thread.start()
    return thread, killed


def command(*words: Any) -> list[str]:
    """Return the command line `rooflog batch`, whether the program has it already or not."""
    names = [group.name for group in sys.modules["helpers.cli.app"].app.registered_commands]
    add = "" if "batch" in names else 'app.app.command("batch", cls=app._PairsCommand)(batch.batch); '
    return [sys.executable, "-c", "import sys; from helpers.cli import batch; app = sys.modules['helpers.cli.app']; "
            f"{add}sys.exit(app.main(sys.argv[1:]))", "batch", *map(str, words)]
