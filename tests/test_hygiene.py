"""Static rules: who imports whom, names, sizes, the form of the notebooks, the generated parts of the documents.

Each rule about notebooks is also held against a specimen that breaks it, so that none can pass by not looking.
"""

from __future__ import annotations

import ast
import copy
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import data_readme
import notebook_rules as rules

ROOT = Path(__file__).resolve().parents[1]
SRC = ROOT / "src" / "helpers"
MODULES = sorted(SRC.rglob("*.py"))
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))

# The direction of imports: a part may import parts of lower layers, of its own only where named below.
LAYERS = (
    {"errors"},
    {"schema"},
    {"paths", "display", "progress", "unpack", "remote"},
    {"facts", "parameters", "ingest", "segment", "levels", "laws", "physics", "evidence", "synth"},
    {"diagnose", "plan", "compare", "deployment"},
    {"limiting"},
    {"answer", "allowance"},
    {"investigation"},
    {"plots", "readings", "scorecard", "measure"},
    {"analysis", "explore", "report", "without_log", "redact"},
    {"regression"},
    {"run", "batch", "watch", "doctor"},
    {"cli"},
)
STAGES = {"segment", "levels", "laws", "ingest", "evidence", "physics", "synth", "facts", "parameters"}
# Parts that may use another of their own layer.
SAME_LAYER_OK = {("batch", "run"), ("watch", "run"), ("doctor", "run")}
# design.md, section 2: diagnose and plan may use these two stages, and no other.
STAGES_FOR_JUDGEMENT = {"diagnose": {"synth", "physics"}, "plan": {"synth", "physics"}, "compare": set()}

# Libraries that only some parts may import.
RESERVED = {
    "re": {"ingest", "evidence"},
    "plotly": {"plots", "report"},
    "ipywidgets": {"explore"},
    "papermill": {"run", "report"},
    "nbformat": {"run", "report"},
    "nbconvert": {"run", "report"},
    "nbclient": {"run", "report"},
    "dask": {"batch"},
    "distributed": {"batch"},
    "ruptures": {"compare"},
    "fsspec": {"remote"},
    "tsdownsample": {"plots"},
}

MAX_MODULE_LINES = 400
UNIT_SLIPS = ("_ms", "_gb", "_gib", "_mb", "_mib", "_pct", "_percent", "_tflops", "_gbs")
SHOWN_TO_PEOPLE = {"plots", "display", "report", "answer", "readings"}


def part_of(path: Path) -> str:
    """Return the part of the package a module belongs to: its folder or its name."""
    return path.relative_to(SRC).parts[0].removesuffix(".py")


def imports(path: Path) -> Iterator[tuple[str, int]]:
    """Yield the full name of every import in a module, at any depth, with its line."""
    package = ["helpers", *path.relative_to(SRC).parent.parts]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            stem = ".".join([*base, *([node.module] if node.module else [])])
            yield from ((f"{stem}.{alias.name}", node.lineno) for alias in node.names)


def layer_of(part: str) -> int:
    found = [i for i, layer in enumerate(LAYERS) if part in layer]
    assert found, f"src/helpers/{part}: give the new part a layer in {Path(__file__).name}"
    return found[0]


def import_faults(part: str, imported: str) -> str | None:
    """Say what is wrong with a part importing a module, or None."""
    top, _, rest = imported.partition(".")
    if top in RESERVED and part not in RESERVED[top]:
        return f"{top} is for {sorted(RESERVED[top])} only"
    if top == "plotly" and part == "report" and not imported.startswith("plotly.offline"):
        return "report may take plotly.js from plotly.offline, nothing else of plotly"
    if top != "helpers" or not rest:
        return None
    other = rest.split(".")[0]
    if other in (part, "__version__"):
        return None
    mine, its = layer_of(part), layer_of(other)
    if its > mine or (its == mine and (part, other) not in SAME_LAYER_OK):
        return f"{part} may not import {other}"
    if part in STAGES_FOR_JUDGEMENT and other in STAGES and other not in STAGES_FOR_JUDGEMENT[part]:
        return f"{part} takes tables, it may not import the stage {other}"
    return None


@pytest.mark.parametrize("path", MODULES, ids=lambda p: p.relative_to(SRC).as_posix())
def test_imports_go_one_way(path):
    part = part_of(path)
    found = [(line, name, import_faults(part, name)) for name, line in imports(path)] if part != "__init__" else []
    assert [fault for fault in found if fault[2]] == []


@pytest.mark.parametrize(
    ("part", "imported"),
    [
        ("levels", "helpers.segment"), ("schema", "helpers.paths"), ("laws", "helpers.cli"), ("levels", "re"),
        ("ingest", "helpers.laws.linear"), ("laws", "plotly.graph_objects"), ("report", "plotly.graph_objects"),
        ("plots", "ipywidgets"), ("cli", "papermill"), ("diagnose", "helpers.ingest"), ("physics", "helpers.laws"),
        ("run", "dask.bag"),
    ],
)  # fmt: skip
def test_the_import_rule_sees_a_wrong_one(part, imported):
    assert import_faults(part, imported)


@pytest.mark.parametrize(
    ("part", "imported"),
    [
        ("levels", "helpers.schema"), ("cli", "helpers.run"), ("plots", "helpers.laws"), ("ingest", "re"),
        ("ingest", "polars"), ("diagnose", "helpers.physics.steps"), ("physics", "helpers.physics.catalogue"),
        ("report", "plotly.offline.get_plotlyjs"), ("physics", "helpers.paths"), ("cli", "helpers.__version__"),
    ],
)  # fmt: skip
def test_the_import_rule_lets_a_right_one_pass(part, imported):
    assert import_faults(part, imported) is None


def test_no_import_of_our_own_is_caught():
    """A try around an import of ours would hide a broken module."""
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Try):
                caught = {handler.type and ast.unparse(handler.type) for handler in node.handlers}
                if caught == {"KeyboardInterrupt"}:  # says nothing of the module
                    continue
                inner = [n for n in ast.walk(node) if isinstance(n, ast.Import | ast.ImportFrom)]
                ours = [n.lineno for n in inner if "helpers" in ast.unparse(n) or getattr(n, "level", 0)]
                assert ours == [], f"{path.name}: import inside try at line {ours}"


def names(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield the names a module itself gives: functions, arguments, variables, fields, keywords."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr, node.lineno


def unit_slips(text: str) -> list[tuple[str, int]]:
    given = [(name.lower().lstrip("_"), line) for name, line in names(ast.parse(text))]
    return [(name, line) for name, line in given if name.endswith(UNIT_SLIPS) and not name.startswith(("is_", "has_"))]


def test_units_in_names_are_base_units():
    found = {
        path.relative_to(SRC).as_posix(): slips
        for path in MODULES
        if part_of(path) not in SHOWN_TO_PEOPLE and (slips := unit_slips(path.read_text(encoding="utf-8")))
    }
    assert found == {}
    slips = unit_slips("step_ms = _GIB = has_ms = 1\ndef size_gb(load_pct): ...")
    assert sorted(slips, key=lambda slip: slip[1]) == [("step_ms", 1), ("size_gb", 2), ("load_pct", 2)]


def test_a_long_module_says_why():
    """A module of more than 400 lines gives its reason in the docstring, in a line that starts with "Long because"."""
    silent = {}
    for path in MODULES:
        text = path.read_text(encoding="utf-8")
        reason = "\nLong because" in (ast.get_docstring(ast.parse(text)) or "")
        if len(text.splitlines()) > MAX_MODULE_LINES and not reason:
            silent[path.relative_to(SRC).as_posix()] = len(text.splitlines())
    assert silent == {}


def readme_rows() -> dict[str, str]:
    """Return file name -> title of the notebook table of README.md."""
    rows = {}
    for line in (ROOT / "README.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("| [") and "](notebooks/" in line:
            title, _, rest = line.removeprefix("| [").partition("](notebooks/")
            rows[rest.partition(")")[0]] = title
    return rows


def test_every_notebook_has_its_row_and_every_row_its_notebook():
    assert NOTEBOOKS, "expected notebooks in notebooks/, found none: no rule was checked"
    assert sorted(readme_rows()) == [path.name for path in NOTEBOOKS]


@pytest.mark.parametrize("rule", rules.RULES, ids=lambda rule: rule.__name__)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_notebook_form(path, rule):
    assert rule(json.loads(path.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_notebook_title_is_the_readme_row(path):
    notebook = json.loads(path.read_text(encoding="utf-8"))
    assert rules.h1_is_the_readme_row(notebook, readme_rows().get(path.name)) == []


def cell(kind: str, text: str, *tags: str, count: int | None = None, outputs: tuple = ()) -> dict:
    base = {"cell_type": kind, "id": "x", "metadata": {"tags": list(tags)} if tags else {}, "source": text}
    return base if kind == "markdown" else base | {"execution_count": count, "outputs": list(outputs)}


GOOD = {
    "cells": [
        cell("markdown", "# 09 · Is this a question?\n\nWhy one asks."),
        cell("code", 'log: str = "../data/a.log"  # log [path]\nbase: str = ""  # empty = none [path]', "parameters"),
        cell("code", "from helpers import laws", "setup"),
        cell("markdown", "Sample data: 8 requests at 20 ms.\n\nSteady as computed below."),
        cell("code", "def f(x):\n    return x", "headline"),
        cell("code", "print(1)", "checks"),
        cell("markdown", "## What this does not show\n\nNothing."),
        cell("code", "card", "scorecard", "nbval-check-output", count=1, outputs=({"output_type": "stream"},)),
        cell("markdown", "## Next\n\n[04](04_x.ipynb)"),
        cell("code", "panel()", "explore", "nbval-skip"),
    ],
    "metadata": {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}},
    "nbformat": 4,
    "nbformat_minor": 5,
}


def replaced(index: int, **change: object) -> dict:
    notebook = copy.deepcopy(GOOD)
    notebook["cells"][index] |= change
    return notebook


def inserted(index: int, *new: dict) -> dict:
    notebook = copy.deepcopy(GOOD)
    notebook["cells"][index:index] = new
    return notebook


BROKEN = {
    "no H1": (rules.one_h1_in_the_first_cell, replaced(0, source="## 09")),
    "second H1": (rules.one_h1_in_the_first_cell, inserted(4, cell("markdown", "# again"))),
    "parameters third": (rules.one_parameters_cell_second, inserted(1, cell("markdown", "text"))),
    "two parameters cells": (rules.one_parameters_cell_second, inserted(2, cell("code", "", "parameters"))),
    "no parameters": (rules.one_parameters_cell_second, replaced(1, metadata={})),
    "optional type": (rules.parameters_are_typed_and_explained, replaced(1, source="a: str | None = None  # b [s]")),
    "no comment": (rules.parameters_are_typed_and_explained, replaced(1, source="a: float = 1.0")),
    "no unit": (rules.parameters_are_typed_and_explained, replaced(1, source="a: float = 1.0  # duration")),
    "not a literal": (rules.parameters_are_typed_and_explained, replaced(1, source="a: float = 2 * b  # d [s]")),
    "empty unexplained": (rules.parameters_are_typed_and_explained, replaced(1, source='a: str = ""  # d [path]')),
    "no headline": (rules.cell_order, replaced(4, metadata={})),
    "no limits section": (rules.cell_order, replaced(6, source="## Limits")),
    "explore not last": (rules.cell_order, inserted(10, cell("markdown", "end"))),
    "too many cells": (rules.small, inserted(3, *[cell("markdown", "text")] * 16)),
    "long cell": (rules.small, replaced(4, source="x = 1\n" * 16)),
    "long def": (rules.composes_stages_only, replaced(4, source="def f():\n" + "    x = 1\n" * 5)),
    "class": (rules.composes_stages_only, replaced(4, source="class A: pass")),
    "re": (rules.composes_stages_only, replaced(4, source="import re")),
    "from re": (rules.composes_stages_only, replaced(4, source="from re import match")),
    "open": (rules.composes_stages_only, replaced(4, source="x = Path('a').open()")),
    "shell": (rules.composes_stages_only, replaced(4, source="!ls")),
    "bash cell": (rules.composes_stages_only, replaced(4, source="%%bash\nls")),
    "warning filter": (rules.composes_stages_only, replaced(4, source="warnings.filterwarnings('ignore')")),
    "number in prose": (rules.no_numbers_in_prose, replaced(6, source="## What\n\nIt takes 20 ms.")),
    "percent in prose": (rules.no_numbers_in_prose, replaced(6, source="At 95 % confidence.")),
    "home path": (rules.no_machine_paths, replaced(4, source='x = "/tmp/a.log"')),
    "drive": (rules.no_machine_paths, replaced(4, source='x = "C:\\\\a.log"')),
    "stray count": (rules.normal_form, replaced(5, execution_count=3)),
    "stray output": (rules.normal_form, replaced(5, outputs=[{}])),
    "scorecard not run": (rules.normal_form, replaced(7, execution_count=None)),
    "scorecard without output": (rules.normal_form, replaced(7, outputs=[])),
    "scorecard unchecked": (rules.normal_form, replaced(7, metadata={"tags": ["scorecard"]})),
    "cell metadata": (rules.normal_form, replaced(5, metadata={"collapsed": True})),
    "language info": (rules.normal_form, copy.deepcopy(GOOD) | {"metadata": {**GOOD["metadata"], "language_info": {}}}),
    "other kernel": (rules.normal_form, copy.deepcopy(GOOD) | {"metadata": {"kernelspec": {"name": "conda-env"}}}),
}


@pytest.mark.parametrize("rule", rules.RULES, ids=lambda rule: rule.__name__)
def test_a_good_notebook_breaks_no_rule(rule):
    assert rule(GOOD) == []


@pytest.mark.parametrize("name", BROKEN)
def test_each_notebook_rule_sees_a_broken_one(name):
    rule, notebook = BROKEN[name]
    assert len(rule(notebook)) >= 1


def test_the_title_rule_sees_another_title():
    assert rules.h1_is_the_readme_row(GOOD, "09 · Is this a question?") == []
    assert rules.h1_is_the_readme_row(GOOD, "09 · Is this another?") != []
    assert rules.h1_is_the_readme_row(GOOD, None) != []


def test_data_readme_is_up_to_date():
    """The sha256 of every data file and the column dictionary; `make dictionary` writes them."""
    text = data_readme.README.read_text(encoding="utf-8")
    assert data_readme.generated(text) == text


def test_the_page_about_diagnosis_has_the_table_of_tests_as_it_is():
    text = data_readme.DIAGNOSIS.read_text(encoding="utf-8")
    assert data_readme.diagnosed(text) == text


def test_data_readme_sees_a_changed_file_and_a_lost_marker(tmp_path):
    (tmp_path / "a.csv").write_text("1\n")
    before = data_readme.files_table(tmp_path)
    assert "| a.csv | 2 | 4355a46b19d348dc2f57c046f8ef63d4538ebb936000f3c9ee954a27460dd865 |" in before
    (tmp_path / "a.csv").write_text("2\n")
    assert data_readme.files_table(tmp_path) != before
    with pytest.raises(ValueError, match="expected the markers"):
        data_readme.generated("no markers", tmp_path)
