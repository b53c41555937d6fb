"""Hatchling's build hook: compiles the reader's C file into a library beside it.

Without a compiler, or with one that fails, there is no library: one line says so, the installation goes on, and the
reader in Python does the same work. Nothing here needs Python's headers, so one library serves every Python.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FOLDER = "src/helpers/ingest/native"
SOURCE = "lines.c"
LIBRARY = "liblines.dylib" if sys.platform == "darwin" else "liblines.so"

COMPILERS = ("cc", "gcc", "clang")
"""Tried in this order where $CC names none."""

OPTIMISE = ("-O3",)
"""Before $CFLAGS, which may ask for another level."""

DEMANDED = ("-std=c11", "-shared", "-fPIC", "-fno-math-errno", "-ffp-contract=off")
"""After $CFLAGS: numbers are to be read the same everywhere, so no multiplication and addition become one rounding."""

LIMIT_S = 300.0
"""Time for the compiler [s]: one file takes about a second."""

TRIAL = """
import ctypes, sys
source_hash = ctypes.CDLL(sys.argv[1]).source_hash
source_hash.restype = ctypes.c_char_p
sys.exit(source_hash() != sys.argv[2].encode())
"""
"""Run in a process of its own, which a library of another machine may kill."""


class NotBuilt(Exception):
    """There is no library; the text says why, in half a line."""


def hash_of(source: Path) -> str:
    """Return what the library says of its source: the first 16 hex digits of the SHA-256 of the file's bytes."""
    return hashlib.sha256(source.read_bytes()).hexdigest()[:16]


def compiler(environ: Mapping[str, str]) -> list[str]:
    """Return the command of the C compiler: $CC, which may hold arguments, else the first of COMPILERS on the path.

    Raises
    ------
    NotBuilt
        If there is none.
    """
    named = shlex.split(environ.get("CC", ""))
    if named:
        return named
    found = next((name for name in COMPILERS if shutil.which(name, path=environ.get("PATH"))), None)
    if found is None:
        raise NotBuilt(f"no C compiler: $CC is not set, and none of {', '.join(COMPILERS)} is on the path")
    return [found]


def compile_library(source: Path, library: Path, environ: Mapping[str, str] | None = None) -> None:
    """Compile one C file into a shared library, try it, and put it in its place in one step.

    Parameters
    ----------
    source : Path
        C file with `const char *source_hash(void)`, which returns the macro SOURCE_HASH.
    library : Path
        Is replaced where the compiler succeeds, and removed where it does not: a library of another source is worse
        than none.
    environ : mapping, optional
        CC, CFLAGS and PATH; by default those of this process.

    Raises
    ------
    NotBuilt
        If there is no compiler, it fails, or its library does not work here.
    """
    try:
        _compile(source, library, dict(os.environ if environ is None else environ))
    except (NotBuilt, OSError, ValueError, subprocess.SubprocessError) as error:
        library.unlink(missing_ok=True)
        raise NotBuilt(" ".join(str(error).split())) from error


def _compile(source: Path, library: Path, environ: dict[str, str]) -> None:
    """Do as `compile_library`, and raise whatever goes wrong."""
    expected = hash_of(source)
    with tempfile.TemporaryDirectory(prefix=f"{library.stem}.", dir=library.parent) as folder:
        built = Path(folder) / library.name
        command = [*compiler(environ), *OPTIMISE, *shlex.split(environ.get("CFLAGS", "")), *DEMANDED,
                   f'-DSOURCE_HASH="{expected}"', "-o", str(built), str(source), "-lm"]
        done = subprocess.run(command, env=environ, capture_output=True, text=True, errors="replace", timeout=LIMIT_S,
                              check=False)
        if done.returncode:
            said = (done.stderr + done.stdout).splitlines()
            reason = next((line for line in said if "error" in line), said[-1] if said else "it says nothing")
            raise NotBuilt(f"{shlex.join(command[:1])} failed with exit code {done.returncode}: {reason.strip()}")
        tried = subprocess.run([sys.executable, "-I", "-c", TRIAL, str(built), expected], capture_output=True,
                               timeout=LIMIT_S, check=False)
        if tried.returncode:
            raise NotBuilt(f"the library that {shlex.join(command[:1])} made does not work on this machine")
        # A file written in place would kill every process that has the old library mapped.
        os.replace(built, library)


class NativeHook(BuildHookInterface):
    """Compiles the library for a wheel or an editable installation, and marks a wheel that holds it."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile before hatchling collects its files.

        Parameters
        ----------
        version : str
            "standard" for a wheel, "editable" for one that only points at this folder.
        build_data : dict
            Of hatchling; changed where a wheel holds the library.
        """
        if self.target_name != "wheel" or sys.platform == "win32":
            return
        folder = Path(self.root) / FOLDER
        try:
            compile_library(folder / SOURCE, folder / LIBRARY)
        except NotBuilt as error:
            self.app.display_warning(
                f"WARNING: rooflog's compiled reader was not built ({error}). Everything works, reading logs is "
                "several times slower; install a C compiler that works, then install rooflog again.")
            return
        if version == "standard":
            build_data["artifacts"].append(f"/{FOLDER}/{LIBRARY}")
            build_data["pure_python"] = False
            # hatchling knows the name of the platform, and of macOS the oldest version that the compiler served.
            platform = self.build_config.builder.get_best_matching_tag().rpartition("-")[2]
            build_data["tag"] = f"py3-none-{platform}"

    def clean(self, versions: list[str]) -> None:
        """Remove the library (`hatch clean`)."""
        (Path(self.root) / FOLDER / LIBRARY).unlink(missing_ok=True)
