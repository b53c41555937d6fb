"""A simulated server that writes its log while the clock runs: ``python live_server.py LOG SPEED [options]``.

``SPEED`` is simulated over real time. Lines come when their stamps are due, so that a log is followed as a real one is.
"""

import argparse
import os
import time
from pathlib import Path

from helpers import synth

CRASH = "Scheduler hit an exception: Traceback (most recent call last):"
OUT_OF_MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.94 GiB."
STOP = "SIGTERM received. signum=15 frame=None. Draining requests and shutting down..."
ENDS = {"crash": (CRASH,), "memory": (OUT_OF_MEMORY, CRASH), "stop": (STOP,), "": ()}


def simulate(levels_req=(1, 2, 4, 8, 16), mean_tok=600):
    """Simulate a sweep with one prompt a slot."""
    law = synth.StepLaw(intercept_s=0.020, slope_s_per_req=0.0005)
    server = synth.Server(law=law, noise=synth.Noise(sigma_frac=0.01, block_steps=40), startup_s=2.0)
    client = synth.Client(levels_req=tuple(levels_req), prompts_per_req=1.0, gap_s=2.0,
                          output=synth.Lengths("uniform", mean_tok, 0.1))
    return synth.simulate(server, client, seed=5)


def stamp_of(line):
    """Return the stamp [s], or None for a line without one."""
    try:
        return time.mktime(time.strptime(line[1:20], "%Y-%m-%d %H:%M:%S"))
    except ValueError:
        return None


def served(lines):
    """Return the lines before the shutdown."""
    return lines[: next((n for n, line in enumerate(lines) if "Shutting down" in line), len(lines))]


def write(path, lines, speed, *, rotate_at=0, truncate_at=0, pause_at=0, pause=None, end=""):
    """Write the lines when they are due; ``*_at`` are shares of the lines in percent, 0 is never.

    ``pause`` is called at its place, and lasts as long as it likes.

    The shutdown that the simulator prints is left out: ``end`` says how it ends.
    """
    path, lines = Path(path), served(lines)
    stamps = [stamp_of(line) for line in lines]
    first_s = next(s for s in stamps if s is not None)
    began_s, waited_s, due_s = time.monotonic(), 0.0, 0.0
    places = {name: len(lines) * share // 100 for name, share in
              (("rotate", rotate_at), ("truncate", truncate_at), ("pause", pause_at)) if share}
    file = path.open("a")
    for number, line in enumerate(lines):
        if stamps[number] is not None:
            due_s = (stamps[number] - first_s) / speed
        left_s = began_s + waited_s + due_s - time.monotonic()
        if left_s > 0:
            file.flush()
            time.sleep(left_s)
        if number == places.get("rotate"):
            file.close()
            path.rename(f"{path}.1")
            file = path.open("a")
        if number == places.get("truncate"):
            file.flush()
            os.truncate(path, 0)
        if number == places.get("pause"):
            file.flush()
            paused_at_s = time.monotonic()
            pause()
            waited_s += time.monotonic() - paused_at_s
        file.write(f"{line}\n")
    newest = next(line[:21] for line in reversed(lines) if line.startswith("["))
    file.writelines(f"{newest} {text}\n" for text in ENDS[end])
    file.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("log")
    parser.add_argument("speed", type=float)
    for name in ("rotate", "truncate", "pause"):
        parser.add_argument(f"--{name}-at", type=int, default=0)
    parser.add_argument("--pause-s", type=float, default=0.0)
    parser.add_argument("--end", choices=sorted(ENDS), default="")
    asked = vars(parser.parse_args())
    pause_s = asked.pop("pause_s")
    write(asked.pop("log"), simulate().lines(), asked.pop("speed"), pause=lambda: time.sleep(pause_s), **asked)
