"""A batch of many simulated dumps with poison among them and a worker killed midway: here, and on a dask cluster.

``python -m bench.batch_study [N_DUMPS] [--cluster]``, 200 dumps of 5 to 20 MB by default: all but the poisoned ones
must complete, the table and the page must list each once, and the same command again must do nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import psutil

from helpers.batch import BatchResult, batch
from helpers.progress import Progress
from helpers.synth import presets

BASES = ("healthy_moe", "dense_sweep", "field_case_a", "one_line_per_step", "vllm_sweep", "graph_limit")
SEEDS = (0, 1)
SIZES_BYTES = (5_000_000, 20_000_000)
POISON = {
    "poison-0": b"\x7fELF" + bytes(range(256)) * 20_000,
    "poison-1": b"no statistics in here\n" * 300_000,
    "poison-2": b"",
}
KILL_AFTER_FRAC = 0.3
"""Of the dumps are done when a worker is killed."""

LOOPBACK = "127.0.0.1"


def write_dumps(folder: Path, n_dumps: int) -> None:
    """Write simulated logs between lines of other components, each with contents of its own, and the poison.

    Twelve simulated servers; a dump is one of them with other lines of its own between, up to its size.
    """
    chance = random.Random(6)
    bases = [presets.get(name).simulate(seed=seed).lines() for name in BASES for seed in SEEDS]
    for index in range(n_dumps - len(POISON)):
        lines = bases[index % len(bases)]
        size = chance.randint(*SIZES_BYTES)
        others = max(1, (size - sum(map(len, lines))) // (90 * len(lines)))
        with (folder / f"dump-{index:04d}.log").open("w", encoding="utf-8") as file:
            for number, line in enumerate(lines):
                file.write(line + "\n")
                file.writelines(f'INFO:     10.{index}.0.{k % 256}:{40000 + number % 20000} - "POST /v1/completions '
                                f'HTTP/1.1" 200 OK {k:08d}\n' for k in range(others))
    for name, content in POISON.items():
        (folder / f"{name}.log").write_bytes(content)


def kill_one_worker(out: Path, n_dumps: int, killed: list[int], top: psutil.Process) -> None:
    """Kill one worker process below another when some dumps are done."""
    while len(list(out.glob("dump-*/run.json"))) < KILL_AFTER_FRAC * n_dumps:
        time.sleep(0.2)
    workers = [p for p in top.children(recursive=True) if p.cmdline()[1:3] == ["-m", "helpers.batch"]]
    workers[0].kill()
    killed.append(workers[0].pid)


@contextlib.contextmanager
def cluster(folder: Path) -> Iterator[str]:
    """Start a scheduler and two worker processes on loopback; yield the scheduler file."""
    file = folder / "scheduler.json"
    words = [[sys.executable, "-m", "dask", "scheduler", "--host", LOOPBACK, "--port", "0", "--no-dashboard",
              "--no-jupyter", "--scheduler-file", str(file)],
             [sys.executable, "-m", "dask", "worker", "--host", LOOPBACK, "--nworkers", "2", "--nthreads", "1",
              "--no-dashboard", "--scheduler-file", str(file), "--local-directory", str(folder)]]
    processes = []
    try:
        for line in words:
            processes.append(subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=folder))
            while not (file.exists() and file.read_text(encoding="utf-8")):
                time.sleep(0.2)
        yield str(file)
    finally:
        for process in reversed(processes):
            process.terminate()
            process.wait()


def check(result: BatchResult, out: Path, n_dumps: int) -> list[str]:
    """Return what does not hold."""
    n_good = n_dumps - len(POISON)
    table = pd.read_parquet(out / "scorecards.parquet")
    page = (out / "index.html").read_text(encoding="utf-8")
    failed = {Path(outcome.dump).stem for outcome in result.outcomes if outcome.exit_code == 3}
    listed = [Path(dump).stem for dump in table["dump"]]
    faults = [] if failed == set(POISON) else [f"failed: {sorted(failed)}"]
    faults += [] if sorted(listed) == [f"dump-{i:04d}" for i in range(n_good)] else [f"{len(listed)} rows in the table"]
    faults += [f"{name} is not on the page" for name in [*listed, *POISON] if f"{name}" not in page]
    faults += [f"left: {path.name}" for path in out.glob(".*")]
    return faults


def study(n_dumps: int, *, on_cluster: bool) -> int:
    """Run it; print what was found; return 1 if anything did not hold."""
    with tempfile.TemporaryDirectory(prefix="rooflog-study-") as name, contextlib.ExitStack() as stack:
        folder, out = Path(name) / "logs", Path(name) / "out"
        folder.mkdir()
        write_dumps(folder, n_dumps)
        size_bytes = sum(path.stat().st_size for path in folder.iterdir())
        where = stack.enter_context(cluster(Path(name))) if on_cluster else ""
        killed: list[int] = []
        killer = threading.Thread(target=kill_one_worker, args=(out, n_dumps, killed, psutil.Process()), daemon=True)
        killer.start()
        with Progress("study") as say:
            result = batch(folder, out, scheduler=where, progress=say)
        faults = check(result, out, n_dumps) + ([] if killed else ["no worker was killed"])
        times = {path: path.stat().st_mtime_ns for path in out.glob("*/*") if path.parent.name != "failures"}
        again = batch(folder, out, scheduler=where)
        faults += [] if again.counts()["skipped"] == n_dumps else [f"again: {again.counts()}"]
        faults += [] if times == {path: path.stat().st_mtime_ns for path in times} else ["again: files were written"]
        print(json.dumps({
            "where": "dask, two workers" if on_cluster else "here", "dumps": n_dumps, "MB": round(size_bytes / 1e6),
            "counts": result.counts(), "killed": len(killed), "wall_s": round(result.wall_s, 1),
            "again_s": round(again.wall_s, 2), "index_kB": round((out / "index.html").stat().st_size / 1e3),
            "faults": faults,
        }))
        return int(bool(faults))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("n_dumps", nargs="?", type=int, default=200)
    parser.add_argument("--cluster", action="store_true")
    chosen = parser.parse_args()
    raise SystemExit(study(chosen.n_dumps, on_cluster=chosen.cluster))
