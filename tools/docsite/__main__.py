"""``python -m docsite [reference] [--out DIR]``: write the pages, or docs/reference.md."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from nbformat import NotebookNode

from docsite import reference
from docsite.pages import Site, of_markdown, of_notebook
from helpers.run.kernel import load, run_cells

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
DEFAULT_OUT = ROOT / "runs" / "docs"


class PageFailed(Exception):
    """A notebook of the documentation raised."""


def executed(path: Path) -> NotebookNode:
    """Execute a notebook of docs/ and return it; PageFailed names the page and what it raised."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / path.name
        error = run_cells(path, load(path), {}, output, lambda text: None, warm=True)
        if error is not None:
            raise PageFailed(f"{path.name}: {error[0]}: {error[1]}")
        return load(output)


def build(out: Path, *, run: Callable[[Path], NotebookNode] = executed, only: Iterable[str] = ()) -> list[Path]:
    """Write every page into a folder.

    Parameters
    ----------
    out : Path
        Folder; made if it is not there. Pages in it are written over.
    run : callable
        Executes the notebook of a path.
    only : iterable of str
        Sources to write; empty: all.

    Returns
    -------
    list of Path
        The pages, index.html first.
    """
    site, wanted, written = Site.of(DOCS), set(only), []
    out.mkdir(parents=True, exist_ok=True)
    for source in site.names:
        if wanted and source not in wanted:
            continue
        path = DOCS / source
        content = (of_notebook(run(path), source, site) if path.suffix == ".ipynb"
                   else of_markdown(path.read_text(encoding="utf-8"), source, site))
        target = out / site.target(source)
        target.write_bytes(content)
        written.append(target)
    return written


def main(arguments: list[str]) -> int:
    """Return the exit code: 0 done, 3 the arguments are wrong."""
    if arguments == ["reference"]:
        reference.REFERENCE.write_text(reference.text(), encoding="utf-8")
        print(f"{reference.REFERENCE.name} written")
        return 0
    if arguments and (arguments[0] != "--out" or len(arguments) != 2):
        print("usage: python -m docsite [reference | --out DIR]", file=sys.stderr)
        return 3
    written = build(Path(arguments[1]) if arguments else DEFAULT_OUT)
    print(f"{len(written)} pages; open {written[0]}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
