"""How many threads reading may use."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any

from helpers.schema import LogFormatError

THREADS_VARIABLE = "ROOFLOG_THREADS"
"""Environment variable: threads that reading one input may use; 1 in a process that is one of several."""

MAX_THREADS = 4
"""Each holds several times its chunk of text, so memory bounds the number."""


def n_threads() -> int:
    """Return how many threads may be used: what the user says, else one per core this process may run on.

    Raises
    ------
    LogFormatError
        The environment variable holds no number.
    """
    given = os.environ.get(THREADS_VARIABLE, "")
    if given and not (given.isascii() and given.isdecimal() and int(given) > 0):
        raise LogFormatError(f"{THREADS_VARIABLE}: expected a number of threads, found {given!r}; correct or unset it")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(MAX_THREADS, int(given) if given else cores)


def n_beside() -> int:
    """Return how many threads may work beside the one that reads: none where only one may be used."""
    n = n_threads()
    return n if n > 1 else 0


class _Here(Executor):
    """Does what it is given at once, in the thread that gives it."""

    def submit(self, work: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(work(*args, **kwargs))
        return done


def pool_of(n: int) -> Executor:
    """Return what works in so many threads beside this one, 0 for in this one."""
    return ThreadPoolExecutor(n) if n else _Here()
