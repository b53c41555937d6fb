"""The form in which notebooks are committed, and the way to reach it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from helpers.run.kernel import KERNELSPEC, Say, load, run_cells
from helpers.schema import RooflogError


def normal_form(notebook: NotebookNode) -> NotebookNode:
    """Reduce an executed notebook to the form in which it is committed.

    Only the cell tagged ``scorecard`` keeps its output, with count 1; metadata is the kernel's name; cell ids
    are positions, so that re-executing changes nothing but numbers that changed.
    """
    cells = []
    for index, cell in enumerate(c for c in notebook.cells if "injected-parameters" not in c.metadata.get("tags", [])):
        tags = cell.metadata.get("tags", [])
        clean = NotebookNode(
            cell_type=cell.cell_type, id=f"cell-{index:02d}", metadata={"tags": list(tags)} if tags else {},
            source=cell.source,
        )
        if cell.cell_type == "code":
            keeps = "scorecard" in tags
            clean.outputs = _merge_streams(cell.outputs) if keeps else []
            clean.execution_count = 1 if keeps else None
        cells.append(clean)
    return NotebookNode(cells=cells, metadata={"kernelspec": dict(KERNELSPEC)}, nbformat=4, nbformat_minor=5)


def _merge_streams(outputs: list[NotebookNode]) -> list[NotebookNode]:
    """Join neighbouring pieces of one stream (how they are cut depends on timing); results get count 1."""
    merged: list[NotebookNode] = []
    for output in outputs:
        if merged and output.output_type == "stream" == merged[-1].output_type and output.name == merged[-1].name:
            merged[-1].text += output.text
            continue
        copy = NotebookNode(output)
        if copy.output_type == "execute_result":
            copy.execution_count = 1
        merged.append(copy)
    return merged


def normalise(notebooks: Sequence[Path], progress: Say | None = None) -> list[Path]:
    """Re-execute notebooks at their defaults and write them back in normal form.

    Parameters
    ----------
    notebooks : sequence of Path
        Files, changed in place, each whole or not at all.
    progress : callable, optional
        Called with a line of text at every cell.

    Returns
    -------
    list of Path
        Those whose text changed.

    Raises
    ------
    RooflogError
        A notebook failed; it and those after it are left as they were.
    """
    changed = []
    for path in notebooks:
        executed = path.with_name(f".{path.stem}.{os.getpid()}.ipynb")
        try:
            say = partial(_say_of, progress, path.stem)
            error = run_cells(path, load(path), {}, executed, say)
            if error is not None:
                raise RooflogError(f"{path}: {error[0]}: {error[1]}")
            text = nbformat.writes(normal_form(load(executed)), indent=1) + "\n"
            if text != path.read_text(encoding="utf-8"):
                executed.write_text(text, encoding="utf-8")
                os.replace(executed, path)
                changed.append(path)
        finally:
            executed.unlink(missing_ok=True)
    return changed


def _say_of(progress: Say | None, name: str, text: str) -> None:
    if progress is not None:
        progress(f"{name}: {text}")
