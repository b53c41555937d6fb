"""Kill `rooflog run` and `rooflog batch` at random moments, and look at what is there.

``python tests/batch/kill_study.py [MOMENTS]``: 20 moments of each by default, about a quarter of an hour. After each
kill every visible run folder must be whole, and every process gone within seconds; the next run must finish and leave
no hidden folder.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).parent))

from batch_helpers import command

LOG = Path(__file__).resolve().parents[2] / "data" / "samples" / "sglang-sweep" / "server.log"
GONE_WITHIN_S = 30.0
"""Long after the second or two that the processes need: the machine may be busy."""


@dataclass(frozen=True)
class Case:
    """One kill and what followed; ``faults`` is empty where all held."""

    kind: str
    moment_s: float
    n_whole: int
    n_hidden: int
    gone_s: float
    finish_s: float
    faults: tuple[str, ...]


def words_of(kind: str, folder: Path, notebook: str) -> list[str]:
    """Return the command line of one run or one batch in a folder."""
    if kind == "batch":
        return command(folder / "logs", "--out", folder / "out", "--notebook", notebook, "--workers", 2)
    return [sys.executable, "-m", "helpers.cli", "run", str(folder / "logs" / "0.log"), "--out", str(folder / "out"),
            "--notebook", notebook]


def is_whole(folder: Path) -> bool:
    """Tell whether a run folder holds everything, all of it readable."""
    try:
        record = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        json.loads((folder / "scorecard.json").read_text(encoding="utf-8"))
        cells = json.loads((folder / f"{record['notebook']}.ipynb").read_text(encoding="utf-8"))["cells"]
        page = (folder / "report.html").read_text(encoding="utf-8")
    except (OSError, ValueError, KeyError):
        return False
    return record["exit_code"] in (0, 2) and bool(cells) and page.rstrip().endswith("</html>")


def run_folders(out: Path) -> list[Path]:
    """Return what looks like a run: the visible folders."""
    return [path for path in out.glob("*") if path.is_dir() and not path.name.startswith(".") and
            path.name != "failures"]


def write_logs(folder: Path, texts: Sequence[str]) -> None:
    """Write one log per text."""
    (folder / "logs").mkdir(parents=True)
    for index, text in enumerate(texts):
        (folder / "logs" / f"{index}.log").write_text(text, encoding="utf-8")


def kill(
    kind: str, folder: Path, notebook: str, moment_s: float, *, everything: bool, n_dumps: int, in_work: bool = False
) -> Case:
    """Start, kill at a moment, look, run again, look again.

    `in_work` counts the moment from the mark that the notebook of the tests leaves before it sleeps for long.
    """
    words, out = words_of(kind, folder, notebook), folder / "out"
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(words, start_new_session=True, **quiet)
    while in_work and not (folder / "logs" / "0.pid").exists() and process.poll() is None:
        time.sleep(0.02)
    time.sleep(moment_s)
    with contextlib.suppress(psutil.NoSuchProcess):
        family = psutil.Process(process.pid).children(recursive=True)
        os.killpg(process.pid, signal.SIGKILL)
        for member in family if everything else []:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.kill()
    process.wait()
    started_s = time.monotonic()
    _, alive = psutil.wait_procs(family, timeout=GONE_WITHIN_S)
    gone_s = time.monotonic() - started_s
    faults = [f"process left: {' '.join(p.cmdline()[:4])}" for p in alive if p.is_running()]
    before = run_folders(out)
    faults += [f"half-written: {path.name}" for path in before if not is_whole(path)]
    n_hidden = len(list(out.glob(".*")))
    started_s = time.monotonic()
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    finish_s = time.monotonic() - started_s
    if done.returncode:
        faults.append(f"the next run ended with {done.returncode}: {done.stderr.strip()[-200:]}")
    after = run_folders(out)
    n_expected = n_dumps if kind == "batch" else len(before) + 1
    faults += [f"half-written at the end: {path.name}" for path in after if not is_whole(path)]
    faults += [f"{len(after)} runs at the end, expected {n_expected}"] if len(after) != n_expected else []
    faults += [f"left: {path.name}" for path in out.glob(".*")]
    return Case(kind, moment_s, len(before), n_hidden, gone_s, finish_s, tuple(faults))


def study(folder: Path, n_moments: int, *, notebook: str = "00", texts: Sequence[str] = (),
          seed: int = 6) -> list[Case]:
    """Kill each kind at random moments of its whole time, spread evenly; every second time all its processes at once.

    Parameters
    ----------
    folder : Path
        For logs and runs.
    n_moments : int
    notebook : str
    texts : sequence of str
        Contents of the logs; two variants of a sample by default.
    seed : int
    """
    chance, cases = random.Random(seed), []
    sample = LOG.read_text(encoding="utf-8")
    for kind in ("run", "batch"):
        for number in range(-1, n_moments):
            place = folder / f"{kind}-{number}"
            write_logs(place, texts or [sample + f"note {i}\n" for i in range(2)])
            if number < 0:  # how long it takes when nobody kills it
                started_s = time.monotonic()
                subprocess.run(words_of(kind, place, notebook), check=True, capture_output=True)
                whole_s = time.monotonic() - started_s
            else:
                moment_s = whole_s * (number + chance.random()) / n_moments
                cases.append(kill(kind, place, notebook, moment_s, everything=number % 2 == 0,
                                  n_dumps=len(texts) or 2))
            shutil.rmtree(place)
    return cases


def main(arguments: Sequence[str]) -> int:
    """Print a line per case and a summary; 1 if anything did not hold."""
    folder = Path(tempfile.mkdtemp())
    try:
        cases = study(folder, int(arguments[0]) if arguments else 20)
    finally:
        shutil.rmtree(folder)
    for case in cases:
        print(f"{case.kind:<5} killed at {case.moment_s:5.1f} s: {case.n_whole} whole, {case.n_hidden} hidden, gone in "
              f"{case.gone_s:.1f} s, next run {case.finish_s:.1f} s  {'; '.join(case.faults) or 'held'}")
    for kind, n in Counter(case.kind for case in cases).items():
        print(f"{kind}: {sum(not c.faults for c in cases if c.kind == kind)} of {n} held")
    return int(any(case.faults for case in cases))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
