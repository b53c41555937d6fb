"""The rules of form for notebooks, as functions from one notebook to a list of what breaks them."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from typing import Any

Notebook = dict[str, Any]

MAX_CELLS = 25
MAX_CODE_LINES = 15
MAX_PARAMETERS = 18  # one a line, none of them code
MAX_DEF_LINES = 5
PARAMETER = re.compile(
    r"(?P<name>\w+): (?P<type>str|int|float|bool|list\[(?:str|int|float|bool)\]) = (?P<value>.+?)  # (?P<comment>\S.*)"
)
# A unit in brackets, or the word key for a value that is looked up.
UNIT = re.compile(r"\[[^\]]+\]|\bkey\b")
NUMBER_WITH_UNIT = re.compile(
    r"\d\s*(?:%|percent\b|x\b|×|[munµ]?s\b|min\b|h\b|[KMGT]i?B\b|bytes?\b|tok(?:ens?)?\b|req(?:uests?)?\b"
    r"|[GMT]?FLOPs?\b|T?FLOP/s\b|W\b|[kMG]?Hz\b)"
)
MACHINE_PATH = re.compile(r"""(?:^|[\s"'(=])(?:~/|/(?:home|root|tmp|work|srv|opt|usr|var|mnt|Users|data)/|[A-Z]:\\)""")


def source(cell: dict[str, Any]) -> str:
    """Return a cell's text, whichever way it is stored."""
    text = cell["source"]
    return text if isinstance(text, str) else "".join(text)


def tags(cell: dict[str, Any]) -> list[str]:
    return list(cell["metadata"].get("tags", []))


def code_cells(notebook: Notebook) -> list[dict[str, Any]]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def headings(notebook: Notebook, level: int) -> list[str]:
    """Return the headings of a level, without their marks."""
    mark = "#" * level + " "
    texts = [source(cell) for cell in notebook["cells"] if cell["cell_type"] == "markdown"]
    return [line[len(mark) :].strip() for text in texts for line in text.splitlines() if line.startswith(mark)]


def one_h1_in_the_first_cell(notebook: Notebook) -> list[str]:
    first = notebook["cells"][0]
    ok = first["cell_type"] == "markdown" and source(first).startswith("# ") and len(headings(notebook, 1)) == 1
    return [] if ok else ["expected one H1, at the start of the first cell"]


def h1_is_the_readme_row(notebook: Notebook, row: str | None) -> list[str]:
    found = headings(notebook, 1)
    return [] if found == [row] else [f"expected the H1 of the README row, {row!r}, found {found}"]


def one_parameters_cell_second(notebook: Notebook) -> list[str]:
    places = [i for i, cell in enumerate(notebook["cells"]) if "parameters" in tags(cell)]
    return [] if places == [1] else [f"expected one cell tagged parameters, the second; found {places}"]


def parameters_are_typed_and_explained(notebook: Notebook) -> list[str]:
    broken = []
    for cell in notebook["cells"]:
        if "parameters" not in tags(cell):
            continue
        for line in source(cell).splitlines():
            match = PARAMETER.fullmatch(line)
            if not match or not UNIT.search(match["comment"]):
                broken.append(f"expected `name: type = literal  # meaning [unit]`, found {line!r}")
                continue
            try:
                value = ast.literal_eval(match["value"])
            except ValueError:
                broken.append(f"expected a literal, found {line!r}")
                continue
            if value in ("", []) and "empty" not in match["comment"]:
                broken.append(f"expected the comment to say what empty means, found {line!r}")
    return broken


def cell_order(notebook: Notebook) -> list[str]:
    wanted = ["parameters", "setup", "headline", "checks", "scorecard"]
    found = [tag for cell in notebook["cells"] for tag in tags(cell) if tag in wanted]
    broken = [] if found == wanted else [f"expected cells tagged {wanted} in this order, found {found}"]
    sections = headings(notebook, 2)
    broken += [f"expected a section {name!r}" for name in ("What this does not show", "Next") if name not in sections]
    explore = [i for i, cell in enumerate(notebook["cells"]) if "explore" in tags(cell)]
    if explore and (explore != [len(notebook["cells"]) - 1] or "nbval-skip" not in tags(notebook["cells"][-1])):
        broken.append("expected the explore cell last, tagged nbval-skip")
    return broken


def small(notebook: Notebook) -> list[str]:
    broken = []
    if len(notebook["cells"]) > MAX_CELLS:
        broken.append(f"expected at most {MAX_CELLS} cells, found {len(notebook['cells'])}")
    for cell in code_cells(notebook):
        n_lines = len(source(cell).splitlines())
        most = MAX_PARAMETERS if "parameters" in tags(cell) else MAX_CODE_LINES
        if n_lines > most:
            broken.append(f"expected at most {most} lines of code, found {n_lines}: {source(cell)[:60]!r}")
    return broken


def composes_stages_only(notebook: Notebook) -> list[str]:
    """No long function, no class, no re, no open(, no shell, no hidden warning."""
    broken = []
    for cell in code_cells(notebook):
        text = source(cell)
        shell = [line for line in text.splitlines() if line.lstrip().startswith(("!", "%%bash", "%%sh", "%%script"))]
        if shell:
            broken.append(f"expected no shell, found {shell[0]!r}")
            continue
        if "open(" in text:
            broken.append("expected no open(")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef):
                broken.append(f"expected no class, found {node.name}")
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                n_lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if n_lines > MAX_DEF_LINES:
                    broken.append(f"expected a def of at most {MAX_DEF_LINES} lines, found {node.name}: {n_lines}")
            elif isinstance(node, ast.Import | ast.ImportFrom):
                names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names]
                banned = [name for name in names if name.split(".")[0] in ("re", "warnings")]
                broken += [f"expected no import of {name}" for name in banned]
            elif isinstance(node, ast.Attribute) and node.attr in ("filterwarnings", "simplefilter", "catch_warnings"):
                broken.append(f"expected no warning filter, found {node.attr}")
    return broken


def no_numbers_in_prose(notebook: Notebook) -> list[str]:
    """Numbers are computed; a paragraph about the sample data may state some."""
    broken = []
    for cell in notebook["cells"]:
        if cell["cell_type"] != "markdown":
            continue
        for paragraph in source(cell).split("\n\n"):
            match = NUMBER_WITH_UNIT.search(paragraph)
            if match and not paragraph.lstrip().startswith("Sample data:"):
                broken.append(f"expected no number with a unit in prose, found {match[0]!r} in {paragraph[:60]!r}")
    return broken


def no_machine_paths(notebook: Notebook) -> list[str]:
    found = [match[0].strip() for cell in notebook["cells"] for match in [MACHINE_PATH.search(source(cell))] if match]
    return [f"expected no absolute path, found {text!r}" for text in found]


def normal_form(notebook: Notebook) -> list[str]:
    """Only the scorecard cell keeps its output, with count 1; metadata names the kernel and the tags."""
    broken = []
    for cell in code_cells(notebook):
        count, outputs = cell["execution_count"], cell["outputs"]
        if "scorecard" in tags(cell):
            if "nbval-check-output" not in tags(cell):
                broken.append("expected the scorecard cell to be tagged nbval-check-output")
            # nbval compares nothing in a cell without count, and a missing output would pass it.
            if count != 1 or not outputs:
                broken.append(f"expected count 1 and outputs in the scorecard cell, found {count} and {len(outputs)}")
        elif count is not None or outputs:
            broken.append(f"expected no count and no outputs, found some in {source(cell)[:60]!r}")
    for cell in notebook["cells"]:
        extra = sorted(set(cell["metadata"]) - {"tags"})
        broken += [f"expected only tags in a cell's metadata, found {extra}"] if extra else []
    kernel = notebook["metadata"].get("kernelspec", {}).get("name")
    if set(notebook["metadata"]) != {"kernelspec"} or kernel != "python3":
        broken.append(f"expected metadata with kernelspec python3 only, found {notebook['metadata']}")
    return broken


RULES: tuple[Callable[[Notebook], list[str]], ...] = (
    one_h1_in_the_first_cell,
    one_parameters_cell_second,
    parameters_are_typed_and_explained,
    cell_order,
    small,
    composes_stages_only,
    no_numbers_in_prose,
    no_machine_paths,
    normal_form,
)
