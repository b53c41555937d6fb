"""`rooflog doctor`: does this machine have what rooflog needs, and if not, what to do about it."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from helpers import paths
from helpers.schema import RooflogError

OK, NOT_OK, OPTIONAL = "ok", "not ok", "optional"

PROJECT = "rooflog"

LIBRARIES = {
    "polars": "import polars; assert polars.DataFrame({'n': [1, 2]}).sum().item() == 3",
    "pyarrow": ("import pyarrow, pyarrow.parquet; "
                "pyarrow.parquet.write_table(pyarrow.table({'n': [1]}), pyarrow.BufferOutputStream())"),
    "pandas": "import pandas; assert pandas.Series([1, 2]).sum() == 3",
    "scipy": "import scipy.optimize, scipy.stats; assert scipy.stats.t.ppf(0.5, 3) == 0",
}
"""Libraries with compiled code, and a line that uses it: each is tried in a process of its own, which may die."""

EXTRAS = {
    "distributed": "batch over several machines: pip install 'rooflog[cluster]'",
    "aiohttp": "logs by https://: pip install aiohttp",
    "s3fs": "logs in s3://: pip install s3fs",
    "gcsfs": "logs in gs://: pip install gcsfs",
}

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")

LEAST_FREE_BYTES = 200e6
"""Free space below which a run is in danger: a run folder has 2 to 10 MB, a batch hundreds of them [B]."""

LEAST_MEMORY_BYTES = 2e9
"""A sparse log of 2 GB is read in up to 0.7 GB (docs/performance.md); a kernel and a browser want the rest [B]."""

TRIAL_S = 120.0
"""Time for one library to load [s]: a second where nothing else runs."""

ANSWER = "rooflog 42"
CELL = "print('rooflog', 6 * 7)"


@dataclass(frozen=True)
class Check:
    """One thing that was looked at.

    Attributes
    ----------
    name : str
    status : str
        ok; not ok: something will not work; optional: missing, and only its own feature needs it.
    found : str
        What there is.
    advice : str
        What to do; empty where all is well.
    """

    name: str
    status: str
    found: str
    advice: str = ""

    def as_dict(self) -> dict[str, str]:
        """Return one JSON-safe object."""
        return {"name": self.name, "status": self.status, "found": self.found, "advice": self.advice}


def examine(out: str | Path = "runs", progress: Callable[[str], None] | None = None) -> Iterator[Check]:
    """Look at everything, the quick things first.

    Parameters
    ----------
    out : path
        Folder that is to get the run folders.
    progress : callable, optional
        Called with what is looked at next.

    Yields
    ------
    Check
    """
    say = progress or (lambda text: None)
    yield check_machine()
    yield from check_packages(_requirements())
    yield check_files()
    yield from (check_writable(name, folder) for name, folder in _folders(Path(out)))
    yield check_browser()
    yield from check_extras()
    is_loaded = True
    for name, code in LIBRARIES.items():
        say(f"loading {name}")
        found = check_library(name, code)
        is_loaded &= found.status == OK
        yield found
    if is_loaded:
        yield check_reader()
    for warm in (False, True):
        say(f"starting a {_kernel_name(warm)}")
        yield check_kernel(warm=warm) if is_loaded else Check(
            _kernel_name(warm), NOT_OK, "not tried: a library does not load", "mend the library first")


def is_good(checks: Sequence[Check]) -> bool:
    """Tell whether everything works that is not optional."""
    return all(check.status != NOT_OK for check in checks)


def check_machine() -> Check:
    """Look at Python, platform, cores and memory."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    memory_bytes = _memory_bytes()
    memory = "memory unknown" if memory_bytes is None else f"{memory_bytes / 1e9:.1f} GB memory"
    found = f"Python {platform.python_version()} on {platform.system()} {platform.machine()}, {cores} cores, {memory}"
    if memory_bytes is not None and memory_bytes < LEAST_MEMORY_BYTES:
        return Check("machine", NOT_OK, found, f"{LEAST_MEMORY_BYTES / 1e9:.0f} GB memory or more are needed")
    return Check("machine", OK, found)


def _memory_bytes() -> float | None:
    """Return memory, of the container where that is less [B]; None where the system does not tell."""
    try:
        found = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, ValueError, OSError):
        return None
    limit = Path("/sys/fs/cgroup/memory.max")
    text = limit.read_text(encoding="ascii").strip() if limit.is_file() else ""
    return min(found, float(text)) if text.isdigit() else found


def _requirements() -> list[Requirement]:
    """Return what the project asks for: of pyproject.toml in a checkout, else of the installed package."""
    if paths.is_checkout():
        text = (paths.PACKAGE.parent.parent / "pyproject.toml").read_text(encoding="utf-8")
        return [Requirement(one) for one in tomllib.loads(text)["project"]["dependencies"]]
    try:
        found = [Requirement(one) for one in metadata.requires(PROJECT) or []]
    except metadata.PackageNotFoundError:
        return []
    return [one for one in found if one.marker is None or one.marker.evaluate({"extra": ""})]


def check_packages(requirements: Sequence[Requirement]) -> Iterator[Check]:
    """Compare the versions that are installed with those asked for: one line if all fit, else one for each misfit.

    Parameters
    ----------
    requirements : sequence of Requirement
    """
    if not requirements:
        yield Check("packages", NOT_OK, "rooflog is not installed as a package", "pip install . in a checkout")
        return
    misfits = []
    for one in requirements:
        try:
            version = metadata.version(one.name)
        except metadata.PackageNotFoundError:
            misfits.append(Check(one.name, NOT_OK, f"not installed, {one.specifier} is asked for",
                                 f"pip install '{one}'"))
            continue
        if not one.specifier.contains(version, prereleases=True):
            misfits.append(Check(one.name, NOT_OK, f"{version}, {one.specifier} is asked for", f"pip install '{one}'"))
    yield from misfits
    if not misfits:
        yield Check("packages", OK, f"all {len(requirements)} in the versions asked for")


def check_files() -> Check:
    """Look for the notebooks and the data that come with the package."""
    try:
        n_notebooks = len(list(paths.notebooks_dir().glob("*.ipynb")))
        paths.data_dir()
    except RooflogError as error:
        return Check("files", NOT_OK, str(error), "install rooflog again")
    if not n_notebooks:
        return Check("files", NOT_OK, f"no notebook in {paths.notebooks_dir()}", "install rooflog again")
    return Check("files", OK, f"{n_notebooks} notebooks in {paths.notebooks_dir()}")


def _folders(out: Path) -> list[tuple[str, Path]]:
    from jupyter_core.paths import jupyter_runtime_dir

    return [("run folders", out.expanduser().absolute()), ("temporary files", Path(tempfile.gettempdir())),
            ("kernel files", Path(jupyter_runtime_dir()))]


def check_writable(name: str, folder: Path) -> Check:
    """Look whether files can be written in a folder; where it is missing, in the one that it would be made in.

    Parameters
    ----------
    name : str
        What is written there.
    folder : Path
    """
    place = next(one for one in (folder, *folder.parents) if one.exists())
    text = f"{folder}" if place == folder else f"{folder} (to be made in {place})"
    try:
        with tempfile.TemporaryFile(dir=place):
            free_bytes = shutil.disk_usage(place).free
    except OSError as error:
        advice = "give another folder with --out" if name == "run folders" else "set TMPDIR or JUPYTER_RUNTIME_DIR"
        return Check(name, NOT_OK, f"{text} cannot be written: {error.strerror}", advice)
    text += f", {free_bytes / 1e9:.1f} GB free"
    return Check(name, *((OK, text) if free_bytes >= LEAST_FREE_BYTES else (NOT_OK, text, "make room")))


def check_browser() -> Check:
    """Look for the browser that makes pictures of reports."""
    found = next((place for name in BROWSERS if (place := shutil.which(name))), None)
    if found is None:
        return Check("chromium", OPTIONAL, "not installed", "only pictures of reports need it: install chromium")
    return Check("chromium", OK, found)


def check_extras() -> Iterator[Check]:
    """Look for packages that only some features need."""
    for name, advice in EXTRAS.items():
        try:
            yield Check(name, OK, metadata.version(name))
        except metadata.PackageNotFoundError:
            yield Check(name, OPTIONAL, "not installed", advice)


def check_library(name: str, code: str) -> Check:
    """Load and use a library in a process of its own.

    Parameters
    ----------
    name : str
    code : str
        Python that fails where it does not work.
    """
    advice = f"pip install --force-reinstall {name}"
    try:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=TRIAL_S,
                              check=False)
    except subprocess.TimeoutExpired:
        return Check(name, NOT_OK, f"not loaded within {TRIAL_S:.0f} s", advice)
    if done.returncode < 0:
        return Check(name, NOT_OK, f"its compiled code was killed by signal {-done.returncode}",
                     f"{advice}; on an old processor take the build for it (polars: polars[rtcompat])")
    if done.returncode:
        words = done.stderr.strip().splitlines() or ["no word"]
        return Check(name, NOT_OK, f"does not load: {words[-1][:300]}", advice)
    return Check(name, OK, "loads and works")


def check_reader() -> Check:
    """Look for the compiled part of the reader; without it Python does the same work."""
    from helpers.ingest import native

    library = native.load()
    try:
        is_off = native.is_off()
    except RooflogError as error:
        return Check("compiled reader", NOT_OK, str(error), f"unset {native.SWITCH}")
    if library is not None and is_off:
        return Check("compiled reader", OPTIONAL, f"switched off by {native.SWITCH}=0", f"unset {native.SWITCH}")
    if library is not None:
        return Check("compiled reader", OK, str(library._name))
    if sys.platform == "win32":
        return Check("compiled reader", OPTIONAL, "not on this system", "reading logs is several times slower here")
    there = sorted(Path(native.__file__).parent.glob("liblines.[sd]*"))
    if there:
        return Check("compiled reader", OPTIONAL, f"{there[0]} is damaged or of another version: not used",
                     "logs are read several times slower without it: remove that file, then install rooflog again (in "
                     "a checkout: pip install -e .)")
    return Check("compiled reader", OPTIONAL, "not built", "logs are read several times slower without it: install "
                 "a C compiler (gcc or clang), then rooflog again (in a checkout: pip install -e .)")


def _kernel_name(warm: bool) -> str:
    return "warm kernel" if warm else "kernel"


def check_kernel(*, warm: bool) -> Check:
    """Execute a notebook of one cell, as `rooflog run` does (warm: as `rooflog batch` does)."""
    from helpers.run import kernel
    from helpers.run.warm import is_available

    name = _kernel_name(warm)
    if warm and not is_available():
        return Check(name, OPTIONAL, "not on this system", "rooflog batch starts plain kernels instead")
    cell: dict[str, Any] = {"cell_type": "code", "id": "only", "metadata": {}, "source": CELL, "outputs": [],
                            "execution_count": None}
    notebook = {"nbformat": 4, "nbformat_minor": 5, "metadata": {"kernelspec": kernel.KERNELSPEC}, "cells": [cell]}
    advice = f"{sys.executable} -m ipykernel install --sys-prefix, and start from the environment of rooflog"
    with tempfile.TemporaryDirectory(prefix="rooflog-doctor-") as folder:
        path, output = Path(folder) / "in.ipynb", Path(folder) / "out.ipynb"
        path.write_text(json.dumps(notebook), encoding="utf-8")
        try:
            raised = kernel.run_cells(path, kernel.load(path), {}, output, lambda text: None, warm=warm)
        except Exception as error:  # whatever jupyter_client or the system raises where no kernel starts
            raised = type(error).__name__, " ".join(str(error).split())[:300]
        said = output.read_text(encoding="utf-8") if output.is_file() else ""
    if raised is not None:
        return Check(name, NOT_OK, f"does not start: {': '.join(raised)}", advice)
    if ANSWER not in said:
        return Check(name, NOT_OK, "starts and does not answer", advice)
    return Check(name, OK, "starts and answers")
