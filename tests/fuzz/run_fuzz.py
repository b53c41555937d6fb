"""The long run: ``python tests/fuzz/run_fuzz.py [--files N] [--first N] [--workers N] [--out DIR] [--shared DIR]``.

Stopped and started again with the same folder it goes on where it was; another folder begins anew. Every finding is
kept as a file with the property that it breaks.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from mutate import ROOT, make_file, n_mutated_lines, read_seeds
from properties import Broken, check_file

SAVE_EVERY_S = 15
"""Between two notes of where a worker is."""


def main() -> int:
    """Run the workers, print what they counted; exit code 1 if anything was found."""
    options = _options()
    options.out.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("POLARS_MAX_THREADS", "1")  # for the workers: one core each
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_work, args=(k, options)) for k in range(options.workers)]
    for worker in workers:
        worker.start()
    began_s = time.monotonic()
    while any(worker.is_alive() for worker in workers):
        time.sleep(2)
        if int(time.monotonic() - began_s) % 30 < 2:
            print(_summary(options.out, time.monotonic() - began_s), flush=True)
    total = _count(options.out)
    print(_summary(options.out, time.monotonic() - began_s))
    died = [worker.exitcode for worker in workers if worker.exitcode]
    if died:
        print(f"workers died: {died}")
    return 1 if died or total.get("n_findings") else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="fuzz", description="Mutated logs against the properties of the reader.")
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--workers", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--first", type=int, default=0, help="number of the first file")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "fuzz")
    parser.add_argument("--shared", type=Path, default=ROOT.parent / "shared", help="more real logs, if it is there")
    return parser.parse_args()


def _work(worker: int, options: argparse.Namespace) -> None:
    """Check every file whose number is this worker's, beginning where it stopped."""
    state_file = options.out / f"worker-{worker}.json"
    state = json.loads(state_file.read_text()) if state_file.is_file() else {"next": options.first + worker}
    seeds = read_seeds(options.shared if options.shared.is_dir() else None)
    log = options.out / f"worker-{worker}.log"
    saved_s = time.monotonic()
    parent = multiprocessing.parent_process()
    for number in range(state["next"], options.first + options.files, options.workers):
        if parent is not None and not parent.is_alive():
            break
        n_lines = n_mutated_lines(number)
        content = make_file(number, seeds, n_lines)
        found = _check(log, content, state)
        if found:
            (options.out / f"finding-{number}.log").write_bytes(content)
            (options.out / f"finding-{number}.txt").write_text(found, encoding="utf-8", errors="replace")
        state["next"] = number + options.workers
        state["n_mutated"] = state.get("n_mutated", 0) + n_lines
        if time.monotonic() - saved_s > SAVE_EVERY_S:
            _save(state, state_file)
            saved_s = time.monotonic()
    _save(state, state_file)


def _check(log: Path, content: bytes, state: dict[str, Any]) -> str:
    """Check one file and count; return what is wrong with it."""
    found = ""
    try:
        outcome = check_file(log, content)
        for name in ("n_lines", "n_records", "n_malformed", "is_refused", "cpu_s"):
            state[name] = state.get(name, 0) + getattr(outcome, name)
        state["slowest_cpu_s"] = max(state.get("slowest_cpu_s", 0), outcome.cpu_s)
    except Broken as error:
        found = str(error)
    except BaseException as error:  # a panic of a library is no Exception
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            raise
        found = f"an exception that is not ours: {traceback.format_exc()}"
    state["n_files"] = state.get("n_files", 0) + 1
    state["n_findings"] = state.get("n_findings", 0) + bool(found)
    return found


def _save(state: dict[str, Any], file: Path) -> None:
    state["peak_rss_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    partial = file.with_suffix(".partial")
    partial.write_text(json.dumps(state))
    os.replace(partial, file)


def _count(folder: Path) -> dict[str, Any]:
    """Add up what the workers counted."""
    total: dict[str, Any] = {}
    for file in sorted(folder.glob("worker-*.json")):
        for name, value in json.loads(file.read_text()).items():
            is_peak = name.startswith(("peak", "slowest"))
            total[name] = max(total.get(name, 0), value) if is_peak else total.get(name, 0) + value
    return total


def _summary(folder: Path, wall_s: float) -> str:
    total = _count(folder)
    names = ("n_files", "n_mutated", "n_lines", "n_records", "n_malformed", "is_refused", "n_findings")
    counts = ", ".join(f"{total.get(name, 0):,} {name.removeprefix('n_').removeprefix('is_')}" for name in names)
    return (f"{wall_s:.0f} s: {counts}; slowest file {total.get('slowest_cpu_s', 0):.2f} s of CPU, "
            f"peak {total.get('peak_rss_mib', 0)} MiB")


if __name__ == "__main__":
    sys.exit(main())
