"""A process that works on one dump after the other: what kills it costs only the dump that it has.

A plain child process, not one of multiprocessing: workers of dask are daemons, which multiprocessing forbids children.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import replace

from helpers import remote
from helpers.batch.dumps import Dump
from helpers.batch.keys import Notebook, Settings, read_notebook
from helpers.batch.store import open_store
from helpers.batch.work import FAILED, Outcome, describe, failed, known, prepare
from helpers.schema import printable

THREAD_VARIABLES = ("ROOFLOG_THREADS", "POLARS_MAX_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS",
                    "MKL_NUM_THREADS", "NUMEXPR_MAX_THREADS")
"""Read when the libraries are loaded: a child has its share of the cores, and no more."""

GRACE_S = 10.0
"""A child that is told to end removes its partial folder and its kernel; after that it is killed [s]."""

TRIES = 2
LAST_WORDS_BYTES = 4096


class ChildDied(Exception):
    """The process ended before it answered."""


class Child:
    """One worker process and the dumps that it gets, one at a time."""

    def __init__(self, n_threads: int = 1) -> None:
        """Start the process; its imports do not count in the limit of time of its first dump."""
        self._is_ready = False
        shares = dict.fromkeys(THREAD_VARIABLES, str(n_threads))
        self._errors = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "helpers.batch", str(os.getpid())], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=self._errors, env={**os.environ, **shares}, start_new_session=True,  # Ctrl-C is for the parent
        )

    @property
    def pid(self) -> int:
        """Process number."""
        return self._process.pid

    def is_alive(self) -> bool:
        """Tell whether it can have another dump."""
        return self._process.poll() is None

    def call(self, dump: Dump, settings: Settings, hashes: Sequence[str] = ()) -> Outcome:
        """Have a dump done; `hashes` as for `work.do`.

        Raises
        ------
        ChildDied
            The process was killed, or did not end in time; it cannot be used again.
        """
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        has_run_out = threading.Event()

        def run_out() -> None:
            has_run_out.set()
            self.stop()

        timer = threading.Timer(settings.limit_s or 0.0, run_out)
        try:
            if not self._is_ready:
                pickle.load(stdout)
                self._is_ready = True
            if settings.limit_s:
                timer.start()
            pickle.dump((dump, settings, tuple(hashes)), stdin)
            stdin.flush()
            answer: Outcome = pickle.load(stdout)
            return answer
        except (EOFError, OSError, ValueError, pickle.UnpicklingError) as error:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(GRACE_S)  # it is ending; its own code says more than that of a signal from here
            self.stop()
            if has_run_out.is_set():
                raise ChildDied(f"not done within {settings.limit_s:g} s (--limit-time)") from error
            raise ChildDied(self._cause()) from error
        finally:
            timer.cancel()

    def _cause(self) -> str:
        """Say how the process ended."""
        code = self._process.returncode
        if code is not None and code < 0:
            name = signal.Signals(-code).name
            why = ", often for want of memory" if name == "SIGKILL" else ""
            return f"its worker process was killed ({name}{why})"
        self._errors.seek(max(0, self._errors.seek(0, os.SEEK_END) - LAST_WORDS_BYTES))
        lines = self._errors.read().decode("utf-8", "replace").strip().splitlines()
        return f"its worker process ended with code {code}" + (f": {printable(lines[-1])}" if lines else "")

    def stop(self) -> None:
        """End the process: it cleans up, or is killed."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(GRACE_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def close(self) -> None:
        """End the process and let go of its pipes."""
        self.stop()
        for pipe in (self._process.stdin, self._process.stdout, self._errors):
            with contextlib.suppress(OSError):  # words for a child that is gone
                if pipe is not None:
                    pipe.close()


class Worker:
    """A child that is replaced when it dies, and the rule for trying again."""

    def __init__(self, n_threads: int = 1) -> None:
        """Start nothing yet: a batch that is done already needs no process."""
        self._n_threads = n_threads
        self._child: Child | None = None
        self._notebook: tuple[Settings, Notebook] | None = None
        self._is_stopped = False
        self._lock = threading.Lock()

    def do(self, dump: Dump, settings: Settings) -> Outcome:
        """Look whether a dump is done, which needs no other process, and have it done if not.

        What fails for a passing reason is tried once more, in a new process.
        """
        hashes: Sequence[str] = ()
        try:
            if not any(remote.is_url(path) for path in dump.logs):
                job = prepare(dump, settings, self._notebook_of(settings))
                found = known(job, settings, open_store(settings.out))
                if found is not None:
                    return found
                hashes = job.hashes
        except Exception as error:  # one that got out would end this thread, and the batch would wait for ever
            return failed(dump, describe(error))
        outcome = failed(dump, "not begun")
        for attempt in range(TRIES):
            try:
                outcome = self._started().call(dump, settings, () if attempt else hashes)
            except ChildDied as error:
                outcome = failed(dump, str(error))
            except OSError as error:  # no process can be started
                outcome = failed(dump, describe(error))
            if outcome.state != FAILED or outcome.is_final or self._is_stopped:
                return outcome
            if attempt + 1 < TRIES or self._child is None or not self._child.is_alive():
                self._drop()
        return replace(outcome, message=f"{outcome.message} (tried {TRIES} times)")

    def _notebook_of(self, settings: Settings) -> Notebook:
        """Read the notebook once per batch."""
        if self._notebook is None or self._notebook[0] != settings:
            self._notebook = (settings, read_notebook(settings.notebook, settings.parameters))
        return self._notebook[1]

    def _started(self) -> Child:
        with self._lock:
            if self._is_stopped:
                raise ChildDied("the batch was stopped")
            if self._child is None:
                self._child = Child(self._n_threads)
            return self._child

    def _drop(self) -> None:
        with self._lock:
            child, self._child = self._child, None
        if child is not None:
            child.close()

    def stop(self) -> None:
        """End the process at once, whatever it works on; there will be no other."""
        with self._lock:
            self._is_stopped = True
            child = self._child
        if child is not None:
            child.stop()

    def close(self) -> None:
        """End the process when its work is done."""
        self._drop()
