"""Notebooks in a kernel: read, execute with papermill, and say what went wrong."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import nbformat
import papermill
from nbclient.exceptions import CellTimeoutError, DeadKernelError
from nbformat import NotebookNode

from helpers.run import engines
from helpers.run.warm import is_available
from helpers.schema import LogFormatError, RooflogError

KERNEL = "python3"
KERNELSPEC = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": KERNEL}

QUIET_KERNEL = ["--IPKernelApp.log_level=50"]
"""Kernels call the interrupt that ends them an error, on standard error."""

CELL_TIMEOUT_S = 1800
"""A cell that says nothing for so long has lost its kernel's answer: a run must end, whatever happens [s]."""

Say = Callable[[str], None]


def load(path: Path) -> NotebookNode:
    """Read a notebook; LogFormatError if it is none."""
    try:
        return nbformat.read(path, as_version=4)
    except (OSError, ValueError, nbformat.ValidationError) as error:
        raise LogFormatError(f"{path}: expected a notebook, found: {str(error).splitlines()[0]}") from error


def run_cells(
    path: Path, source: NotebookNode, values: Mapping[str, Any], output: Path, progress: Say, *, warm: bool = False
) -> tuple[str, str] | None:
    """Execute with papermill; return (exception name, message) if a cell raised.

    Parameters
    ----------
    path, output : Path
        Notebook to read; file for the executed one, also when a cell raised or the kernel died.
    source : NotebookNode
        The notebook again, read already.
    values : mapping
        Of its parameters.
    progress : callable
        Called with a line of text at every cell.
    warm : bool
        In a kernel that has its imports loaded already, where the system can fork one.
    """
    logging.getLogger("papermill").setLevel(logging.ERROR)  # it warns of what was checked here already

    def cell_starts(cell: NotebookNode, cell_index: int) -> None:
        progress(f"cell {cell_index + 1} of {len(source.cells) + 1}")

    if warm and not is_available():
        progress("warm kernels need fork, which this system lacks: a plain one")
    try:
        papermill.execute_notebook(
            _literal(path), _literal(output), parameters=dict(values), kernel_name=KERNEL, cwd=path.parent,
            engine_name=engines.WARM if warm and is_available() else engines.PLAIN, evidence_path=str(output),
            progress_bar=False, request_save_on_cell_execute=False, extra_arguments=QUIET_KERNEL,
            on_cell_start=cell_starts, execution_timeout=CELL_TIMEOUT_S,
        )
    except papermill.PapermillExecutionError as error:
        return error.ename, " ".join(str(error.evalue).split())
    except CellTimeoutError:
        return "CellTimeoutError", f"a cell did not end within {CELL_TIMEOUT_S} s"
    except DeadKernelError as error:
        return "DeadKernelError", f"the kernel died, often for want of memory: {error}"
    return None


def _literal(path: Path) -> str:
    """Protect braces: papermill fills its paths in as format strings."""
    return str(path).replace("{", "{{").replace("}", "}}")


def input_error_names() -> set[str]:
    """Name every exception that says the input is at fault; from a kernel only the name arrives."""
    # Not loaded, a class has no name here: the kernel loaded what it raised.
    import helpers.evidence.clients
    import helpers.synth  # noqa: F401

    names, open_classes = set(), [RooflogError]
    while open_classes:
        found = open_classes.pop()
        names.add(found.__name__)
        open_classes += found.__subclasses__()
    return names
