"""A batch on a dask.distributed cluster: the same work, handed out by a scheduler."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from helpers.batch.child import Worker
from helpers.batch.dumps import Dump
from helpers.batch.keys import Settings
from helpers.batch.local import TICK_S, Report
from helpers.batch.work import Outcome, failed
from helpers.schema import RooflogError

CONNECT_S = 15.0
"""Longest wait for the scheduler, at the start and when it is lost [s]."""

_held = threading.local()


class SchedulerLost(Exception):
    """The scheduler is gone; what its workers finished is kept."""


def on_worker(dump: Dump, settings: Settings) -> Outcome:
    """Do a dump in a child of a dask worker: one child per thread of it, kept for the next dump.

    A dump that takes its process along, or its time limit, costs no dask worker.
    """
    if getattr(_held, "worker", None) is None:
        _held.worker = Worker()
    outcome: Outcome = _held.worker.do(dump, settings)
    return outcome


def run_on(address: str, dumps: Sequence[Dump], settings: Settings, report: Report) -> None:
    """Work on dumps with the workers of a scheduler.

    Parameters
    ----------
    address : str
        Of the scheduler, such as ``tcp://10.0.0.1:8786``, or the path of its scheduler file.
    dumps, settings
        Every worker must see the paths in them.
    report : callable
        Called in this thread: an outcome, or None at least every half second.

    Raises
    ------
    RooflogError
        dask.distributed is not installed, or nobody answers at the address.
    SchedulerLost
        The scheduler went away.
    """
    client = _connect(address)
    ended: queue.SimpleQueue[tuple[Dump, Any]] = queue.SimpleQueue()
    futures = []
    try:
        for number, dump in enumerate(dumps):
            future = client.submit(on_worker, dump, settings, pure=False, retries=1, key=f"{number:06d}-{dump.name}")
            future.add_done_callback(lambda done, dump=dump: ended.put((dump, done)))
            futures.append(future)
        for _ in dumps:
            report(_next(client, ended, report))
    finally:
        _leave(client, futures)


def _next(client: Any, ended: queue.SimpleQueue[tuple[Dump, Any]], report: Report) -> Outcome:
    """Wait for the next outcome, whatever way it ended."""
    while True:
        try:
            dump, future = ended.get(timeout=TICK_S)
            break
        except queue.Empty:
            _require_scheduler(client)
            report(None)
    if future.status == "finished":
        outcome: Outcome = future.result(timeout=CONNECT_S)
        return outcome
    if future.status != "error":
        raise SchedulerLost("the scheduler was lost, or took the work back")
    error = future.exception(timeout=CONNECT_S)
    name = type(error).__name__
    why = "every dask worker that had it died, often for want of memory" if name == "KilledWorker" else str(error)
    return failed(dump, f"{name}: {why}")


def _require_scheduler(client: Any) -> None:
    if client.status != "running":
        raise SchedulerLost("the scheduler was lost")


def _connect(address: str) -> Any:
    """Return a client that says nothing."""
    _require_form(address)
    try:
        from distributed import Client
    except ImportError as error:
        raise RooflogError("--scheduler needs dask.distributed: pip install 'rooflog[cluster]'") from error
    for name in ("distributed", "distributed.client", "distributed.core", "distributed.comm", "tornado", "asyncio"):
        logging.getLogger(name).setLevel(logging.CRITICAL)

    class OwnClient(Client):
        def start(self, **kwargs: Any) -> None:
            try:
                super().start(**kwargs)
            except Exception:  # left half-made, it prints a traceback when the interpreter ends
                with contextlib.suppress(Exception):
                    self.close(timeout=2)
                raise

    try:
        where = {"scheduler_file": address} if address.endswith(".json") else {"address": address}
        return OwnClient(**where, timeout=CONNECT_S, set_as_default=False)
    except (OSError, ValueError) as error:
        raise RooflogError(f"--scheduler {address}: nobody answers there ({type(error).__name__}); expected the "
                           "address of a dask scheduler such as tcp://HOST:8786") from error


def _require_form(address: str) -> None:
    """Refuse what is no address: dask would try it, and wait without end for a scheduler file that is not there."""
    if address.endswith(".json"):
        if not Path(address).is_file():
            raise RooflogError(f"--scheduler {address}: expected the scheduler file of a dask scheduler, found no file")
        return
    try:
        parts = urlsplit(address if "://" in address else f"tcp://{address}")
        is_address = parts.scheme in ("tcp", "tls") and bool(parts.hostname and parts.port) and not parts.path
    except ValueError:  # a port that is no number, or is above 65535
        is_address = False
    if not is_address:
        raise RooflogError(f"--scheduler {address}: expected the address of a dask scheduler, tcp://HOST:PORT, "
                           "tls://HOST:PORT or HOST:PORT, or its scheduler file (.json)")


def _leave(client: Any, futures: list[Any]) -> None:
    """Take back what is not begun, and go; a scheduler that is gone needs no goodbye."""
    try:
        if client.status == "running":
            client.cancel([future for future in futures if not future.done()], force=True)
        client.close(timeout=2)
    except Exception:  # whatever a lost connection raises here, the outcome is known already
        logging.getLogger(__name__).debug("closing the client", exc_info=True)
