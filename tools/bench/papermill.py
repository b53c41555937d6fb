"""What an executed notebook costs beyond its own cells: CPU time of all processes, per dump of a batch.

Three ways to do notebook 00 on one log, turn by turn, so that all meet the same load of the machine:

own
    Its code cells by ``exec()`` in this process, everything loaded and done once before: the analysis and its figures.
warm
    ``helpers.run.run(..., warm=True)``: papermill, kernel forked from a warm process, run folder, report.
plain
    Papermill's own engine as it comes: a new kernel, the notebook saved after every cell; no run folder, no report.
"""

from __future__ import annotations

import contextlib
import io
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import nbformat
import papermill
import psutil

from helpers import paths
from helpers.run import run, warm

MAX_BEYOND_S = 1.0
"""Most CPU time that a dump may cost beyond its own analysis [s]."""

MIN_RATIO = 3.0
"""Least ratio of papermill's plain engine to the warm one; 5 to 6 was measured."""

TRIES = {"short": 3, "full": 10}


def rows(scale: str = "short") -> list[dict[str, Any]]:
    """Measure, and return the rows of the table.

    Parameters
    ----------
    scale : str
        "short" (3 turns, half a minute) or "full" (10 turns).

    Returns
    -------
    list of dict
        what, size, ours_s, reference, reference_s (CPU time, median over the turns), ratio, bar, ok.
    """
    notebook = paths.notebooks_dir() / "00_diagnose.ipynb"
    log = paths.data_dir() / "samples" / "sglang-sweep" / "server.log"
    with tempfile.TemporaryDirectory() as folder:
        ways = {"own": _own_cells(notebook, log), "warm": lambda: run(log, "00", out=folder, warm=True),
                "plain": lambda: _plainly(notebook, log, Path(folder) / "plain.ipynb")}
        for name in ("own", "warm"):
            ways[name]()  # what the first one loads is not the cost of a further one
        spent_s: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(TRIES[scale]):
            for name, act in ways.items():
                before_s = _cpu_s()
                act()
                spent_s[name].append(_cpu_s() - before_s)
    own_s, warm_s, plain_s = (median(spent_s[name]) for name in ("own", "warm", "plain"))
    size = f"{log.stat().st_size / 1e6:.2f} MB, 1 more dump"
    return [
        {"what": "notebook 00 in a warm kernel, with report [CPU]", "size": size, "ours_s": warm_s,
         "reference": "papermill's plain engine", "reference_s": plain_s, "ratio": plain_s / warm_s,
         "bar": f">= {MIN_RATIO:g}", "ok": plain_s / warm_s >= MIN_RATIO},
        {"what": f"the same, {warm_s - own_s:.2f} s beyond its own cells [CPU]", "size": size, "ours_s": warm_s,
         "reference": "its cells by exec()", "reference_s": own_s, "ratio": warm_s / own_s,
         "bar": f"<= {MAX_BEYOND_S:g} s beyond", "ok": warm_s - own_s <= MAX_BEYOND_S},
    ]


def _own_cells(notebook: Path, log: Path) -> Callable[[], None]:
    """Return what executes a notebook's code cells here, its output thrown away."""
    cells = [compile(cell.source, notebook.name, "exec") for cell in nbformat.read(notebook, as_version=4).cells
             if cell.cell_type == "code"]

    def execute() -> None:
        names: dict[str, Any] = {"display": lambda shown: None}
        here = os.getcwd()
        os.chdir(notebook.parent)
        try:
            with contextlib.redirect_stdout(io.StringIO()), tempfile.TemporaryDirectory() as folder:
                exec(cells[0], names)  # its parameters
                names |= {"log_path": str(log), "out_dir": folder}
                for cell in cells[1:]:
                    exec(cell, names)
        finally:
            os.chdir(here)

    return execute


def _plainly(notebook: Path, log: Path, output: Path) -> None:
    # Its kernel warns of its sockets on standard error; that is not what is compared here.
    papermill.execute_notebook(
        str(notebook), str(output), parameters={"log_path": str(log), "out_dir": str(output.parent)},
        kernel_name="python3", cwd=str(notebook.parent), progress_bar=False,
        extra_arguments=["--IPKernelApp.log_level=50"],
    )


def _cpu_s() -> float:
    """Return the CPU time of this process, of its children that ended, and of the warm server and its kernels [s]."""
    own = os.times()
    server = psutil.Process(warm.start_server().process.pid).cpu_times()
    return sum(own[:4]) + server.user + server.system + server.children_user + server.children_system


if __name__ == "__main__":
    for row in rows():
        print(row)
