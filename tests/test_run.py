"""The runner: parameters are checked before a kernel starts, a run folder is there whole or not at all.

Would catch: a misspelt parameter that papermill only logs, text injected where a number is declared, a half-written
folder after a kill, a failed notebook that looks like a good one. The notebook is a small one made here: what the
stages compute is tested elsewhere.
"""

import ast
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest

import helpers
from helpers import run as runner
from helpers import scorecard
from helpers.facts import merge_facts
from helpers.parameters import NotebookParameter, ParameterError, check_parameters, convert, read_parameters
from helpers.run import execute, kernel, normal
from helpers.run import folder as run_folder
from helpers.run.__main__ import main as normalise_command
from helpers.run.signals import ended_as_interrupted
from helpers.schema import LogFormatError, RooflogError

PARAMETERS = '''log_path: str = ""  # log [path]; empty: none
more_log_paths: list[str] = []  # further logs [path]; empty: none
context: str = ""  # facts [key]; empty: none
out_dir: str = ""  # where to write; empty: nowhere [path]
mode: str = "good"  # what the notebook does [key]
confidence: float = 0.95  # of intervals [1]
min_clean: int = 2  # fewest clean intervals [intervals]
is_strict: bool = False  # a flag [key]
telemetry: str = ""  # a side file; empty: none [path]
levels: list[int] = [1, 4]  # levels [req]'''

BODY = '''import json, pathlib, time
from helpers import scorecard
from helpers.facts import merge_facts
card = json.loads(pathlib.Path(CARD).read_text())
print(repr((log_path, more_log_paths, context, confidence, min_clean, is_strict, telemetry, levels)))
if mode == "slow":
    scorecard.write(card, out_dir)
    time.sleep(600)'''

CHECKS = '''from helpers.run import execute, kernel, normal
from helpers.run import folder as run_folder
from helpers.run.__main__ import main as normalise_command
from helpers.schema import NotEnoughData
if mode == "code_error":
    scorecard.write(card, out_dir)
    raise KeyError("a cell failed")
if mode == "input_error":
    raise NotEnoughData("levels: expected decode lines,\\n found none")
if mode == "check":
    card["checks"] = [{"name": "adds up", "value": 1, "limit": 2, "pass": False}]
    scorecard.require_checks(card, out_dir)
if mode == "refused":
    card["fit"]["refused"] = "one level"'''

CARD = {
    "schema_version": 1, "method_version": 1,
    "run": {"log_sha256": ["ab"], "engine": "sglang", "engine_version": None, "model": None, "hardware": None,
            "parallel": {}, "command": "", "server_life": 0, "n_server_lives": 1, "fitted_lives": [0], "notes": []},
    "ingest": {"lines_total": 1, "lines": {"statistic": 1}, "by_kind": {"decode": 1}},
    "levels": [], "phases": dict.fromkeys([*scorecard.PHASES, "n_intervals", "n_clean"]),
    "fit": {"law": "linear", "refused": None, "warnings": [], "loo_error_frac": None, "intercept_s": 0.05,
            "intercept_s_lo": 0.04, "intercept_s_hi": 0.06, "slope_s_per_req": 0.03, "slope_s_per_req_lo": 0.02,
            "slope_s_per_req_hi": 0.04, "dof": 1, "n_levels": 3, "asymptote_tok_per_s": None, "half_load_req": None,
            "selected": {"confidence": 0.95, "dof": 1, "running_req_min": 1.0, "running_req_max": 64.0}},
    "client": {"steady_over_client": None}, "roofline": None, "checks": [],
}
CARD["levels"] = [{"running_req": 1.0, "server_life": 0, "step_s": 0.08, "step_s_lo": 0.07, "step_s_hi": 0.09,
                   "decode_tok_per_s": 12.5, "is_fitted": True, "accept_len": None, "clean_s": 1.0,
                   "n_rejected": {}, "n_clean": 3}]


def code(source, *tags):
    cell = nbformat.v4.new_code_cell(source)
    cell.metadata.tags = list(tags)
    return cell


@pytest.fixture
def notebook(tmp_path):
    """A notebook of four cells, in a folder of its own."""
    folder = tmp_path / "notebooks {x}"  # papermill takes braces in paths for a format string
    folder.mkdir()
    card = folder / "card.json"
    card.write_text(json.dumps(CARD))
    made = nbformat.v4.new_notebook(metadata={"kernelspec": runner.KERNELSPEC}, cells=[
        nbformat.v4.new_markdown_cell("# 90 · Does it run?"), code(PARAMETERS, "parameters"),
        code(BODY.replace("CARD", repr(str(card))), "setup"), code(CHECKS, "checks"),
        code("if mode != 'no_card':\n    scorecard.write(card, out_dir) if out_dir else None\nprint('step 51.9 ms')",
             "scorecard", "nbval-check-output"),
    ])
    path = folder / "90_does_it_run.ipynb"
    nbformat.write(made, path)
    return path


@pytest.fixture
def log(tmp_path):
    file = tmp_path / "server.log"
    file.write_text("a line\n")
    return file


def everything(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


@pytest.mark.notebook
def test_a_good_run_leaves_a_whole_folder(notebook, log, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    other = tmp_path / "other.log"
    other.write_text("x\n")
    said = []
    result = runner.run(
        ["server.log", "other.log"], str(notebook), [("confidence", "0.9"), ("is_strict", "true"), ("levels", "2,8")],
        "out", {"tp": 2}, command="rooflog run server.log", progress=said.append,
    )
    assert (result.exit_code, result.status, result.message) == (0, "good", "")
    assert everything(tmp_path / "out") == sorted(
        [result.folder.name, *(f"{result.folder.name}/{name}" for name in
                               ("90_does_it_run.ipynb", "report.html", "run.json", "scorecard.json", "summary.md"))])
    assert result.folder.name.endswith("Z-90")
    executed = nbformat.read(result.folder / notebook.name, as_version=4)
    printed = "".join(o.text for c in executed.cells if c.cell_type == "code" for o in c.outputs)
    assert repr((str(log), [str(other)], '{"tp": 2}', 0.9, 2, True, "", [2, 8])) in printed
    text = (result.folder / notebook.name).read_text()
    assert runner.PARTIAL_PREFIX not in text and str(result.folder) in text  # the injected out_dir
    assert scorecard.read(result.folder) == result.scorecard
    assert result.scorecard["run"]["command"] == "rooflog run server.log"
    record = json.loads((result.folder / "run.json").read_text())
    assert record["status"] == "good" and record["exit_code"] == 0 and record["log_sha256"] == ["ab"]
    assert record["parameters"]["confidence"] == 0.9 and record["parameters"]["out_dir"] == ""
    assert set(record["versions"]) >= {"rooflog", "python", "papermill"} and record["wall_s"] > 0
    assert "Law: step time = 50.0 ms" in (result.folder / "report.html").read_text()
    assert said[-1] == "cell 6 of 6"
    shown = capfd.readouterr()
    assert shown.out == "" and shown.err == ""  # no noise of kernel or papermill


@pytest.mark.notebook
@pytest.mark.parametrize(
    ("mode", "exit_code", "status", "message", "has_card"),
    [
        ("refused", 2, "cannot_tell", "", True),
        ("check", 1, "check_failed", "adds up: 1, limit 2", True),
        ("code_error", 3, "failed", "90_does_it_run: KeyError: 'a cell failed'", False),
        ("no_card", 3, "failed", "90_does_it_run: the notebook ended without writing scorecard.json", False),
    ],
)
def test_exit_codes_of_a_notebook(notebook, log, tmp_path, mode, exit_code, status, message, has_card):
    result = runner.run(log, str(notebook), {"mode": mode}, tmp_path / "out")
    assert (result.exit_code, result.status) == (exit_code, status)
    assert result.message.startswith(message) and bool(result.message) == bool(message)
    assert (result.folder / "scorecard.json").exists() == has_card == (result.scorecard is not None)
    record = json.loads((result.folder / "run.json").read_text())
    assert (record["exit_code"], record["status"], record["message"]) == (exit_code, status, result.message)
    assert (result.folder / "report.html").is_file()
    if mode == "code_error":
        cells = nbformat.read(result.folder / notebook.name, as_version=4).cells
        errors = [o for c in cells if c.cell_type == "code" for o in c.outputs if o.output_type == "error"]
        assert [e.ename for e in errors] == ["KeyError"]
        assert any("(" in o.get("text", "") for c in cells if c.cell_type == "code" for o in c.outputs)  # cells before
        assert record["log_sha256"] == execute._hash_logs({"log_path": str(log)}) and record["log_sha256"]
        assert "KeyError" in (result.folder / "report.html").read_text()


@pytest.mark.notebook
def test_input_error_in_the_kernel_writes_nothing(notebook, log, tmp_path):
    with pytest.raises(RooflogError, match="^levels: expected decode lines, found none$"):
        runner.run(log, str(notebook), {"mode": "input_error"}, tmp_path / "new" / "out")
    assert not (tmp_path / "new").exists()


def test_every_error_of_an_input_is_known_by_its_name_also_where_its_module_is_not_loaded():
    classes = {}
    for file in Path(helpers.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                classes[node.name] = [base.id for base in node.bases if isinstance(base, ast.Name)]
    family = {"RooflogError"}
    while found := {name for name, bases in classes.items() if family & set(bases)} - family:
        family |= found
    assert {"NotAClient", "LogFormatError", "ConfigError"} <= family
    script = "from helpers.run.kernel import input_error_names; print(*input_error_names())"
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert set(said.split()) == family


@pytest.mark.notebook
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_run_that_a_signal_ends_leaves_nothing(notebook, log, tmp_path, number, code):
    out = tmp_path / "new" / "out"
    # The tests may run under nohup, which the run would respect.
    script = f"import signal; signal.signal({int(number)}, signal.SIG_DFL); from helpers.run import run; " \
             f"run({str(log)!r}, {str(notebook)!r}, {{'mode': 'slow'}}, {str(out)!r})"
    with subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.PIPE, text=True) as process:
        try:
            deadline_s = time.monotonic() + 60
            while not list(out.glob(".*/scorecard.json")):
                assert process.poll() is None and time.monotonic() < deadline_s
                time.sleep(0.05)
            process.send_signal(number)
            said = process.communicate(timeout=60)[1]
        finally:
            process.kill()
    assert process.returncode == code
    assert f"ended by {number.name}: nothing was kept" in said and "Traceback" not in said
    assert not (tmp_path / "new").exists()


def test_signals_keep_their_handling_elsewhere(monkeypatch):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # nohup
    try:
        with ended_as_interrupted():
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            assert callable(signal.getsignal(signal.SIGTERM))
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        with pytest.raises(KeyboardInterrupt), ended_as_interrupted():
            raise KeyboardInterrupt  # Ctrl-C stays Ctrl-C
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.notebook
def test_a_killed_run_leaves_no_folder_that_looks_whole(notebook, log, tmp_path):
    out = tmp_path / "out"
    script = f"from helpers.run import run; run({str(log)!r}, {str(notebook)!r}, {{'mode': 'slow'}}, {str(out)!r})"
    process = subprocess.Popen([sys.executable, "-c", script])
    deadline_s = time.monotonic() + 60
    while not list(out.glob("*/scorecard.json")) + list(out.glob(".*/scorecard.json")):
        assert process.poll() is None and time.monotonic() < deadline_s
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    left = list(out.iterdir())
    assert left and all(folder.name.startswith(runner.PARTIAL_PREFIX) for folder in left)


@pytest.mark.notebook
def test_normal_form_is_reached_and_stays(notebook, capsys):
    assert normalise_command(["normalise", str(notebook)]) == 0
    first = notebook.read_text()
    made = nbformat.read(notebook, as_version=4)
    kept = [(c.execution_count, c.outputs) for c in made.cells if c.cell_type == "code"]
    assert kept[:-1] == [(None, [])] * 3
    assert kept[-1] == (1, [{"name": "stdout", "output_type": "stream", "text": "step 51.9 ms\n"}])
    assert made.metadata == {"kernelspec": runner.KERNELSPEC}
    assert [c.id for c in made.cells] == [f"cell-{i:02d}" for i in range(5)]
    assert made.cells[-1].metadata == {"tags": ["scorecard", "nbval-check-output"]}
    capsys.readouterr()
    assert normalise_command(["normalise", str(notebook)]) == 0
    assert capsys.readouterr().out == "1 notebooks executed, 0 changed\n"
    assert notebook.read_text() == first
    assert everything(notebook.parent) == ["90_does_it_run.ipynb", "card.json"]


def test_streams_are_joined_and_injected_cells_dropped():
    cell = code("print()", "scorecard")
    cell.outputs = [nbformat.v4.new_output("stream", name="stdout", text=t) for t in ("a", "b")]
    cell.outputs.append(nbformat.v4.new_output("execute_result", {"text/plain": "1"}, execution_count=9))
    made = runner.normal_form(nbformat.v4.new_notebook(cells=[code("x = 1", "injected-parameters"), cell]))
    assert len(made.cells) == 1
    assert [o.get("text", "") for o in made.cells[0].outputs] == ["ab", ""]
    assert made.cells[0].outputs[1].execution_count == 1


def nothing_runs(monkeypatch):
    monkeypatch.setattr(kernel.papermill, "execute_notebook", lambda *a, **k: pytest.fail("a kernel was started"))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"confidense": 0.9}, r"no parameter 'confidense'; did you mean confidence\? It has: mode, confidence"),
        ({"confidence": "high"}, r"parameter confidence: expected float \(a finite number\), found 'high'"),
        ({"min_clean": 2.5}, r"parameter min_clean: expected int \(a whole number\), found 2.5"),
        ({"is_strict": 3}, r"parameter is_strict: expected bool \(true or false\), found 3"),
        ({"out_dir": "x"}, "parameter out_dir is set by --out, not by -p"),
        ([("mode", "good"), ("mode", "slow")], "parameter mode is given twice"),
    ],
)
def test_parameters_are_refused_before_anything_runs(notebook, log, tmp_path, monkeypatch, given, message):
    nothing_runs(monkeypatch)
    with pytest.raises(ParameterError, match=message):
        runner.run(log, str(notebook), given, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_missing_log_notebook_and_bad_context(notebook, log, tmp_path, monkeypatch):
    nothing_runs(monkeypatch)
    with pytest.raises(LogFormatError, match=r"nosuch.log: no such file or folder; expected a server log"):
        runner.run(tmp_path / "nosuch.log", str(notebook), out=tmp_path / "out")
    with pytest.raises(LogFormatError, match="standard input"):
        runner.run("-", str(notebook), out=tmp_path / "out")
    with pytest.raises(LogFormatError, match="not JSON"):
        runner.run(log, str(notebook), out=tmp_path / "out", context="{")
    with pytest.raises(RooflogError, match="notebook 'nosuch': none fits"):
        runner.run(log, "nosuch", out=tmp_path / "out")
    broken = tmp_path / "broken.ipynb"
    broken.write_text("{}")
    with pytest.raises(LogFormatError, match="expected a notebook"):
        runner.run(log, str(broken), out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_unwritable_out_is_found_before_anything_runs(notebook, log, tmp_path, monkeypatch):
    nothing_runs(monkeypatch)
    for out in (log, log / "below"):  # a file where a folder is wanted: holds for root too
        with pytest.raises(RooflogError, match="expected a folder to write in, found: .*choose another with --out"):
            runner.run(log, str(notebook), out=out)
    assert log.read_text() == "a line\n"


def test_an_interrupted_run_leaves_nothing(notebook, log, tmp_path, monkeypatch):
    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(kernel.papermill, "execute_notebook", interrupted)
    with pytest.raises(KeyboardInterrupt):
        runner.run(log, str(notebook), out=tmp_path / "a" / "b")
    assert not (tmp_path / "a").exists()


def test_a_folder_name_that_is_taken_gets_a_number(tmp_path, monkeypatch):
    monkeypatch.setattr(run_folder.report, "write_report", lambda folder: folder)
    (tmp_path / "run").mkdir()
    names = []
    for _ in range(2):
        partial = tmp_path / ".partial-x"
        partial.mkdir()
        (partial / "n.ipynb").write_text(json.dumps(str(partial)))
        folder = run_folder.publish(partial, tmp_path, "run", "n.ipynb")
        names.append(folder.name)
        assert json.loads((folder / "n.ipynb").read_text()) == str(folder)
    assert names == ["run-2", "run-3"]


def test_notebooks_are_found_by_number_and_name(tmp_path, monkeypatch):
    monkeypatch.setattr(execute.paths, "notebooks_dir", lambda: tmp_path)
    for name in ("00_diagnose", "01_what", "10_other", "01_what_else"):
        (tmp_path / f"{name}.ipynb").touch()
    assert runner.find_notebook("0").stem == runner.find_notebook("00").stem == "00_diagnose"
    assert runner.find_notebook("01_what").stem == "01_what"  # exact beats prefix
    assert runner.find_notebook("10_").stem == "10_other"
    with pytest.raises(RooflogError, match="several fit; choose from: 01_what, 01_what_else"):
        runner.find_notebook("1")
    with pytest.raises(RooflogError, match="none fits"):
        runner.find_notebook("")


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("str", "0.5", "0.5"), ("int", "16", 16), ("int", 16.0, 16), ("float", "1e-3", 1e-3), ("float", 2, 2.0),
        ("bool", "No", False), ("bool", True, True), ("list[str]", "a, b", ["a", "b"]),
        ("list[str]", '["a,b"]', ["a,b"]), ("list[float]", [1, "2.5"], [1.0, 2.5]), ("list[int]", "", []),
    ],
)
def test_values_take_the_declared_type(kind, value, expected):
    found = convert(NotebookParameter("p", kind, None, ""), value)
    assert found == expected and type(found) is type(expected)


@pytest.mark.parametrize(
    ("kind", "value"),
    [("str", 5), ("int", "1.5"), ("int", True), ("int", "ten"), ("float", "nan"), ("float", "inf"), ("float", None),
     ("bool", "maybe"), ("list[int]", "1,x"), ("list[str]", "[1"), ("list[str]", 5), ("list[str]", [1])],
)
def test_values_of_another_type_are_refused(kind, value):
    with pytest.raises(ParameterError, match="parameter p: expected " + kind.replace("[", r"\[")):
        convert(NotebookParameter("p", kind, None, ""), value)


def test_paths_are_taken_from_the_callers_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    one = NotebookParameter("p", "str", "", "a file [path]")
    many = NotebookParameter("p", "list[str]", [], "files [path]")
    assert convert(one, "a/b") == str(tmp_path / "a/b")
    assert [convert(one, same) for same in ("", "-", "s3://bucket/x", "/abs")] == ["", "-", "s3://bucket/x", "/abs"]
    assert convert(many, "a,b") == [str(tmp_path / "a"), str(tmp_path / "b")]
    assert convert(NotebookParameter("p", "str", "", "no file"), "a/b") == "a/b"


def test_the_parameters_cell_is_read_with_types_defaults_and_help():
    found = read_parameters(PARAMETERS + '\nwords = "a#b"  # a text, with # inside', "n")
    assert found["confidence"] == NotebookParameter("confidence", "float", 0.95, "of intervals [1]")
    assert found["levels"].default == [1, 4] and found["telemetry"].is_path
    assert found["words"] == NotebookParameter("words", "str", "a#b", "a text, with # inside")
    assert check_parameters(found, {}, "n") == {}


@pytest.mark.parametrize("source", ["x: dict = {}", "x = 1 + y", "print(1)", "x: int", "x = ("])
def test_a_parameters_cell_of_something_else_is_refused(source):
    with pytest.raises(ParameterError, match="^n: param|^n: line"):
        read_parameters(source, "n")


def test_normalise_without_arguments_is_a_usage_line(capsys):
    assert normalise_command([]) == 3 and "usage:" in capsys.readouterr().err


def test_a_notebook_that_fails_is_left_as_it_was(notebook, monkeypatch, capsys):
    before = notebook.read_text()
    monkeypatch.setattr(normal, "run_cells", lambda *a: ("KeyError", "'x'"))
    assert normalise_command(["normalise", str(notebook)]) == 3
    assert "KeyError" in capsys.readouterr().err and notebook.read_text() == before


def test_folders_of_killed_runs_are_removed_and_those_of_live_ones_kept(tmp_path):
    dead = subprocess.Popen([sys.executable, "-c", "pass"])
    dead.wait()
    with run_folder.make_workspace(tmp_path) as own:
        prefix, _, _ = own.name.rsplit("-", 2)
        stale = tmp_path / f"{prefix}-{dead.pid}-0123456789ab"
        kept = [tmp_path / f"{prefix}-{os.getppid()}-0123456789ab", tmp_path / f"{prefix}-{10**30}-0123456789ab",
                tmp_path / f".partial-elsewhere-{dead.pid}-0123456789ab", tmp_path / ".partial-x"]
        for folder in (stale, *kept):
            folder.mkdir()
            (folder / "a").touch()
        with run_folder.make_workspace(tmp_path):
            assert own.is_dir() and not stale.exists()
    assert sorted(tmp_path.iterdir()) == sorted(kept)


def test_a_fact_that_is_no_number_reaches_the_notebook_that_says_so(notebook, log, tmp_path, monkeypatch):
    seen = {}
    monkeypatch.setattr(execute, "_execute", lambda path, source, values, *rest: seen.update(values))
    runner.run(log, str(notebook), out=tmp_path / "out", context={"power_limit_w": float("nan"), "tp": 2})
    facts = merge_facts({}, seen["context"])
    assert facts.values == {"tp": 2} and facts.unused["power_limit_w"] == "expected a number not below zero, found nan"
