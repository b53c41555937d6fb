"""Kernels forked from a warm process: clean as new ones, dead when they die, gone when their runner is gone.

Would catch: a variable, an option or a seed that the next notebook finds; results that differ from those of a plain
kernel; a dead kernel waited for; processes or sockets left by a runner that was killed; a warning on the terminal.
"""

import ast
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import nbformat
import pytest

from helpers import run as runner
from helpers.run import kernel, normal, sockets, warm
from helpers.schema import RooflogError

ROOT = Path(__file__).resolve().parents[1]
LOG = ROOT / "data" / "samples" / "sglang-sweep" / "server.log"

DIRTY = """
import builtins, json, locale, os, random, sys, tempfile, types, warnings
import numpy as np, pandas as pd, plotly.io as pio
from helpers import display, plots
left = 1
builtins.left_in_builtins = 1
os.environ["ROOFLOG_LEFT"] = "1"
os.chdir("/")
os.umask(0o077)
sys.path.insert(0, "/left")
sys.modules["left_module"] = types.ModuleType("left_module")
sys.setrecursionlimit(4321)
random.seed(7)
np.random.seed(7)
np.seterr(all="raise")
plots.use_template()
pd.set_option("display.max_rows", 3)
warnings.filterwarnings("error", message="left")
display.LEFT = 1
get_ipython().run_line_magic("precision", "3")
get_ipython().user_ns["_left"] = 1
"""

LOOK = """
import helpers.analysis, helpers.explore, helpers.plots, nbformat, plotly.tools, plotly.graph_objs._deprecations
import builtins, json, os, signal, sys, warnings
found = {
    "names": sorted(n for n in list(globals()) if "left" in n), "builtins": hasattr(builtins, "left_in_builtins"),
    "environ": {k: v for k, v in os.environ.items() if not k.startswith(("JPY_", "PYDEVD", "PYTEST", "_RJEM"))},
    "cwd": os.getcwd(), "path": sys.path, "left_module": "left_module" in sys.modules,
    "filters": sorted(map(str, warnings.filters)), "recursion": sys.getrecursionlimit(), "argv": sys.argv[1:2],
    "main": __name__, "is_main": sys.modules["__main__"].__dict__ is globals(),
    "signals": [str(signal.getsignal(n)) for n in (signal.SIGTERM, signal.SIGCHLD, signal.SIGHUP)],
}
mask = os.umask(0o022); os.umask(mask); found["umask"] = mask
modules = sorted(sys.modules)
import random
import numpy as np, pandas as pd, plotly.io as pio
from helpers import display
warnings.simplefilter("ignore")  # some options are deprecated
found |= {"template": pio.templates.default, "rows": pd.get_option("display.max_rows"),
          "display": hasattr(display, "LEFT"), "errors": np.geterr(),
          "renderer": pio.renderers.default, "shown": repr(pd.DataFrame([["x" * 50] * 3])),
          "options": {k: str(pd.get_option(k)) for k in sorted(pd._config.config._registered_options)},
          "comms": sorted(get_ipython().kernel.comm_manager.targets),
          "precision": get_ipython().display_formatter.formatters["text/plain"].float_precision}
print(json.dumps({"state": found, "drawn": [random.random(), float(np.random.random())], "modules": modules}))
"""


SEVENTH = 0.07630828937395717
"""First number of numpy's legacy generator after seed(7)."""


@pytest.fixture(autouse=True)
def _settled(monkeypatch):
    monkeypatch.setattr(kernel, "CELL_TIMEOUT_S", 60)


def execute(folder, *sources, warm=True, say=lambda text: None):
    """Run cells in a new kernel; return what run_cells says and the executed notebook."""
    path = folder / "n.ipynb"
    made = nbformat.v4.new_notebook(metadata={"kernelspec": runner.KERNELSPEC},
                                    cells=[nbformat.v4.new_code_cell(source) for source in sources])
    nbformat.write(made, path)
    error = kernel.run_cells(path, made, {}, folder / "out.ipynb", say, warm=warm)
    return error, nbformat.read(folder / "out.ipynb", as_version=4)


def text_of(notebook):
    return "".join(o.get("text", "") for c in notebook.cells for o in c.get("outputs", []))


def is_running(pid):
    """A zombie that no one collects has ended too."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until(is_true, what, limit_s=30.0):
    deadline_s = time.monotonic() + limit_s
    while not is_true():
        assert time.monotonic() < deadline_s, what
        time.sleep(0.05)


@pytest.fixture
def bare_server(monkeypatch):
    """A server that loads nothing, for tests that end it: what is loaded does not matter there."""
    warm.stop_server()
    monkeypatch.setattr(warm, "PRELOADED", ())
    yield
    warm.stop_server()


needs_fork = pytest.mark.skipif(not warm.is_available(), reason="no fork here")


@needs_fork
@pytest.mark.notebook
def test_nothing_of_one_notebook_is_seen_by_the_next(tmp_path, capfd):
    (tmp_path / "first").mkdir()
    before = json.loads(text_of(execute(tmp_path / "first", LOOK)[1]))
    assert execute(tmp_path, DIRTY)[0] is None
    after = json.loads(text_of(execute(tmp_path, LOOK)[1]))
    plain = json.loads(text_of(execute(tmp_path, LOOK, warm=False)[1]))
    folders = [found["state"].pop("cwd") for found in (before, after, plain)]
    assert folders == [str(tmp_path / "first"), str(tmp_path), str(tmp_path)]
    assert before["state"] == after["state"] == plain["state"]
    assert before["modules"] == after["modules"]
    # A plain kernel has loaded nothing that a warm one lacks but the two modules that start it.
    assert set(plain["modules"]) - set(after["modules"]) <= {"ipykernel_launcher", "runpy"}
    assert "helpers.analysis" in after["modules"] and "polars" in after["modules"]
    # Python's and numpy's generators: seeded by the dirty notebook, never the same twice.
    drawn = [before["drawn"], after["drawn"], plain["drawn"], [random.Random(7).random(), SEVENTH]]
    assert len({d[0] for d in drawn}) == len({d[1] for d in drawn}) == 4
    assert before["state"]["template"] == "plotly"
    shown = capfd.readouterr()
    assert shown.out == "" and shown.err == ""


def test_the_dirty_notebook_dirties_what_the_other_looks_at():
    """Every name in the look has its line in the dirt, or this file proves nothing."""
    keys = {node.value for node in ast.walk(ast.parse(LOOK)) if isinstance(node, ast.Constant)}
    assert {"environ", "cwd", "path", "left_module", "filters", "template", "rows", "umask", "errors"} <= keys
    for change in ("os.environ[", "os.chdir", "sys.path.insert", "sys.modules[", "filterwarnings", "use_template",
                   "set_option", "umask", "seterr", "random.seed", "np.random.seed", "setrecursionlimit"):
        assert change in DIRTY


def without_ids(path):
    """An executed notebook less what differs between any two executions."""
    made = nbformat.read(path, as_version=4)
    made.metadata.pop("papermill")
    for cell in made.cells:
        cell.pop("id"), cell.metadata.pop("papermill", None), cell.metadata.pop("execution", None)
        if cell.cell_type == "code":
            cell.outputs = normal._merge_streams(cell.outputs)  # how they are cut depends on timing
        if "injected-parameters" in cell.metadata.get("tags", []):
            cell.source = "".join(line for line in cell.source.splitlines() if not line.startswith("out_dir"))
    return made


@needs_fork
@pytest.mark.notebook
def test_the_results_are_those_of_a_plain_kernel(tmp_path, capfd):
    plain, warmed = (runner.run(LOG, "00", {}, tmp_path / str(is_warm), warm=is_warm) for is_warm in (False, True))
    assert plain.status == warmed.status == "good" and plain.scorecard == warmed.scorecard
    first, second = (without_ids(result.folder / "00_diagnose.ipynb") for result in (plain, warmed))
    assert first == second
    assert sum("application/vnd.plotly.v1+json" in o.get("data", {})
               for c in first.cells for o in c.get("outputs", [])) >= 3
    pages = [(r.folder / "report.html").read_text().replace(str(r.folder), "") for r in (plain, warmed)]
    assert len(pages[0]) == pytest.approx(len(pages[1]), abs=200) and "Law: step time" in pages[1]
    shown = capfd.readouterr()
    assert shown.out == "" and shown.err == ""


@needs_fork
@pytest.mark.notebook
@pytest.mark.parametrize("end", ["os._exit(3)", "os.kill(os.getpid(), 9)"])
def test_a_kernel_that_dies_is_reported_and_the_next_one_works(tmp_path, end, capfd):
    start_s = time.monotonic()
    error, executed = execute(tmp_path, "import os\nprint('before')", end, "print('after')")
    assert error[0] == "DeadKernelError" and "the kernel died" in error[1] and time.monotonic() - start_s < 30
    assert text_of(executed) == "before\n"  # the evidence
    assert text_of(execute(tmp_path, "print(1 + 1)")[1]) == "2\n"
    assert list(sockets.private_folder().iterdir()) == [] and capfd.readouterr().err == ""


@pytest.mark.notebook
def test_a_plain_kernel_that_dies_leaves_the_same_evidence(tmp_path):
    error, executed = execute(tmp_path, "print('before')", "import os; os._exit(3)", warm=False)
    assert error[0] == "DeadKernelError" and text_of(executed) == "before\n"


@needs_fork
@pytest.mark.notebook
def test_a_cell_that_takes_too_long_is_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(kernel, "CELL_TIMEOUT_S", 1)
    error, executed = execute(tmp_path, "import os\nprint(os.getpid())", "import time\ntime.sleep(60)")
    assert error == ("CellTimeoutError", "a cell did not end within 1 s")
    assert not is_running(int(text_of(executed)))


@needs_fork
@pytest.mark.notebook
def test_a_cell_that_raises_is_reported_with_its_name(tmp_path):
    error, executed = execute(tmp_path, "print('before')", "raise KeyError('gone')")
    assert error == ("KeyError", "'gone'") and text_of(executed) == "before\n"


@needs_fork
@pytest.mark.notebook
def test_what_cells_leave_for_the_end_is_done(tmp_path):
    execute(tmp_path, f"import atexit, pathlib\natexit.register(pathlib.Path({str(tmp_path / 'ended')!r}).touch)")
    assert (tmp_path / "ended").exists()


SCRIPT = """
import signal, sys
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
from helpers.run import run, sockets, warm
warm.PRELOADED = ()  # what is loaded does not matter here
print(sockets.private_folder(), warm.start_server().process.pid, flush=True)
run([], sys.argv[1], out=sys.argv[2], warm=True)
"""

ENDLESS = """
import os, pathlib, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
pathlib.Path(out_dir, "pids").write_text(f"{os.getpid()} {child.pid}")
time.sleep(600)
"""


@needs_fork
@pytest.mark.notebook
def test_a_runner_that_is_ended_leaves_no_process_and_no_socket(tmp_path):
    made = nbformat.v4.new_notebook(metadata={"kernelspec": runner.KERNELSPEC}, cells=[
        nbformat.v4.new_code_cell('out_dir: str = ""  # a folder [path]', metadata={"tags": ["parameters"]}),
        nbformat.v4.new_code_cell(ENDLESS)])
    nbformat.write(made, tmp_path / "n.ipynb")
    runners = {}
    try:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGKILL):
            runners[number] = subprocess.Popen(
                [sys.executable, "-c", SCRIPT, str(tmp_path / "n.ipynb"), str(tmp_path / number.name)],
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )
        for number, process in runners.items():
            out = tmp_path / number.name
            wait_until(lambda out=out: list(out.glob(".*/pids")) and next(out.glob(".*/pids")).read_text(), "start", 60)
            pids = [int(pid) for pid in next(out.glob(".*/pids")).read_text().split()]
            process.send_signal(number)
            said, complaint = process.communicate(timeout=30)
            folder, server = said.split()
            for pid in (int(server), *pids):
                wait_until(lambda pid=pid: not is_running(pid), f"{number.name}: process {pid}", 5)
            wait_until(lambda folder=folder: not Path(folder).exists(), f"{number.name}: {folder}", 5)
            if number == signal.SIGKILL:
                assert complaint == "" and [p.name[:9] for p in out.iterdir()] == [".partial-"]
            else:
                assert not out.exists()
    finally:
        for process in runners.values():
            process.kill()
            process.wait()


@pytest.mark.notebook
def test_without_fork_a_plain_kernel_does_it_and_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(kernel, "is_available", lambda: False)
    said = []
    error, executed = execute(tmp_path, "print(1 + 1)", say=said.append)
    assert error is None and text_of(executed) == "2\n"
    assert said[0] == "warm kernels need fork, which this system lacks: a plain one"


def test_sockets_lie_in_a_private_folder_with_a_short_path(tmp_path, monkeypatch):
    dead = subprocess.Popen([sys.executable, "-c", "pass"])
    dead.wait()
    monkeypatch.setattr(sockets, "_folders", {})
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / ("long" * 30)))
    os.mkdir(tempfile.tempdir)
    folder = sockets.private_folder()
    try:
        assert folder == sockets.private_folder() and folder.stat().st_mode & 0o777 == 0o700
        assert len(os.fsencode(folder / "999999-ipc-5")) < 104 and not folder.is_relative_to(tmp_path)
        stale = folder.with_name(folder.name.replace(f"-{os.getpid()}-", f"-{dead.pid}-"))
        stale.mkdir()
        monkeypatch.setattr(sockets, "_folders", {})
        other = sockets.private_folder()
        assert not stale.exists() and folder.exists()
    finally:
        for left in (folder, other):
            left.rmdir()


@needs_fork
@pytest.mark.notebook
def test_a_run_takes_its_exact_name_and_further_keys(tmp_path, monkeypatch):
    made = nbformat.v4.new_notebook(metadata={"kernelspec": runner.KERNELSPEC}, cells=[
        nbformat.v4.new_code_cell('out_dir: str = ""  # a folder [path]', metadata={"tags": ["parameters"]}),
        nbformat.v4.new_code_cell("raise KeyError(out_dir)")])
    nbformat.write(made, tmp_path / "n.ipynb")
    out = tmp_path / "out"
    result = runner.run([], str(tmp_path / "n.ipynb"), out=out, name="k-1", record={"key": "k", "dump": 1}, warm=True)
    assert result.folder == out / "k-1" and result.status == "failed"
    record = json.loads((result.folder / "run.json").read_text())
    assert (record["key"], record["dump"], record["status"]) == ("k", 1, "failed")
    before = (result.folder / "run.json").read_bytes()
    monkeypatch.setattr(kernel.papermill, "execute_notebook", lambda *a, **k: pytest.fail("the notebook was run"))
    with pytest.raises(RooflogError, match="k-1: expected a free name for the run folder, found it taken"):
        runner.run([], str(tmp_path / "n.ipynb"), out=out, name="k-1", warm=True)
    assert (result.folder / "run.json").read_bytes() == before and [p.name for p in out.iterdir()] == ["k-1"]
    for name in ("a/b", ".hidden", ".."):
        with pytest.raises(ValueError, match="plain name of a folder"):
            runner.run([], str(tmp_path / "n.ipynb"), out=out, name=name)
    with pytest.raises(ValueError, match="keys of its own named status, wall_s"):
        runner.run([], str(tmp_path / "n.ipynb"), out=out, record={"status": 1, "wall_s": 2, "key": 3})


@needs_fork
@pytest.mark.notebook
def test_one_server_serves_all_runs_until_it_is_killed_or_the_environment_changes(
    tmp_path, monkeypatch, bare_server
):
    parent = "import os\nprint(os.getppid(), os.environ.get('ROOFLOG_TEST', '-'))"
    first = text_of(execute(tmp_path, parent)[1]).split()
    assert text_of(execute(tmp_path, parent)[1]).split() == first == [str(warm.start_server().process.pid), "-"]
    os.kill(int(first[0]), signal.SIGKILL)
    second = text_of(execute(tmp_path, parent)[1]).split()
    assert second[0] != first[0]
    with monkeypatch.context() as patch:
        patch.setattr(warm.Server, "is_fit", lambda self: True)  # killed just after the look
        os.kill(int(second[0]), signal.SIGKILL)
        warm._servers[0].process.wait()
        second = text_of(execute(tmp_path, parent)[1]).split()
    monkeypatch.setenv("ROOFLOG_TEST", "x")
    third = text_of(execute(tmp_path, parent)[1]).split()
    assert third[0] != second[0] and third[1] == "x"
    wait_until(lambda: not is_running(second[0]), "the server of another environment")


@needs_fork
@pytest.mark.notebook
def test_a_kernel_ends_with_its_server(tmp_path, bare_server):
    error, executed = execute(
        tmp_path, "import os\nprint(os.getpid())", "import time\nos.kill(os.getppid(), 9)\ntime.sleep(60)"
    )
    assert error[0] == "DeadKernelError"
    wait_until(lambda: not is_running(int(text_of(executed))), "the kernel of a server that was killed", 5)


def test_a_name_taken_while_the_notebook_ran_is_told_at_the_end(tmp_path, monkeypatch):
    from helpers.run import folder

    monkeypatch.setattr(folder.report, "write_report", lambda where: where)
    (tmp_path / "k").mkdir()
    partial = tmp_path / ".partial-x"
    partial.mkdir()
    (partial / "n.ipynb").write_text("{}")
    with pytest.raises(RooflogError, match="found it taken"):
        folder.publish(partial, tmp_path, "k", "n.ipynb", exact=True)
    assert sorted(p.name for p in tmp_path.iterdir()) == [".partial-x", "k"]
