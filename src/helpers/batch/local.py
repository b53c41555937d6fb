"""A batch on the cores of this machine: threads that feed one worker process each from one queue."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Sequence

from helpers.batch.child import Worker
from helpers.batch.dumps import Dump
from helpers.batch.keys import Settings
from helpers.batch.work import Outcome

Report = Callable[[Outcome | None], None]
"""Gets every outcome as it comes, and None now and then when none came."""

TICK_S = 0.5


def n_cores() -> int:
    """Return the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_here(dumps: Sequence[Dump], settings: Settings, report: Report, n_workers: int | None = None) -> None:
    """Work on dumps with processes of this machine.

    Parameters
    ----------
    dumps : sequence of Dump
    settings : Settings
    report : callable
        Called in this thread: an outcome, or None at least every half second.
    n_workers : int, optional
        Processes at once; as many as cores by default. Each gets its share of the cores as threads.

    Raises
    ------
    KeyboardInterrupt
        Every process is ended first.
    """
    n_workers = max(1, min(n_workers or n_cores(), len(dumps)))
    waiting: queue.SimpleQueue[Dump] = queue.SimpleQueue()
    for dump in dumps:
        waiting.put(dump)
    outcomes: queue.SimpleQueue[Outcome] = queue.SimpleQueue()
    workers = [Worker(max(1, n_cores() // n_workers)) for _ in range(n_workers)]
    is_stopped = threading.Event()

    def feed(worker: Worker) -> None:
        while not is_stopped.is_set():
            try:
                dump = waiting.get_nowait()
            except queue.Empty:
                break
            outcomes.put(worker.do(dump, settings))
        worker.close()

    threads = [threading.Thread(target=feed, args=(worker,), daemon=True) for worker in workers]
    for thread in threads:
        thread.start()
    try:
        for _ in dumps:
            while True:
                try:
                    outcome = outcomes.get(timeout=TICK_S)
                    break
                except queue.Empty:
                    report(None)
            report(outcome)
    finally:
        is_stopped.set()
        stopping = [threading.Thread(target=worker.stop) for worker in workers]
        for thread in stopping:
            thread.start()
        for thread in [*stopping, *threads]:
            thread.join()
