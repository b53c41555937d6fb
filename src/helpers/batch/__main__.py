"""``python -m helpers.batch PARENT``: the worker process of `child`. Pickled jobs come in, pickled outcomes go out."""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
import time

from helpers.batch.work import do

LOOK_S = 1.0
"""Between two looks whether the parent is still there [s]."""

GRACE_S = 10.0


def _end_with(parent: int) -> None:
    """End when the parent is gone, as if it had said so; it may have been killed without a word."""
    while os.getppid() == parent:
        time.sleep(LOOK_S)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE_S)
    os._exit(1)


def main(arguments: list[str]) -> int:
    """Work until there is nothing more to read."""
    if os.name == "posix":
        threading.Thread(target=_end_with, args=(int(arguments[0]),), daemon=True).start()
    jobs, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)  # whatever a library prints is no answer; kernels inherit neither pipe
    pickle.dump("ready", answers)
    answers.flush()
    while True:
        try:
            dump, settings, hashes = pickle.load(jobs)
        except EOFError:
            return 0
        pickle.dump(do(dump, settings, hashes), answers)
        answers.flush()


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
