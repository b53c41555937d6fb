"""`rooflog doctor`: what works is called so, and what is broken on purpose is found, with what to do."""

import json
import signal
from types import SimpleNamespace

import pytest
import typer
from packaging.requirements import Requirement
from typer.testing import CliRunner

from helpers import doctor
from helpers.cli.doctor import doctor as command
from helpers.ingest import native
from helpers.schema import LogFormatError


def status(checks):
    return {check.name: check.status for check in checks}


@pytest.mark.notebook
def test_this_machine_is_good_and_every_thing_was_looked_at(monkeypatch):
    monkeypatch.setattr(doctor, "LIBRARIES", {"pyarrow": doctor.LIBRARIES["pyarrow"]})  # each takes a second
    app = typer.Typer()
    app.command()(command)
    done = CliRunner().invoke(app, ["--json"])
    found = json.loads(done.stdout)
    names = [check["name"] for check in found["checks"]]
    assert done.exit_code == 0, [check for check in found["checks"] if check["status"] == "not ok"]
    assert found["is_good"] is True
    assert {"machine", "packages", "files", "run folders", "compiled reader", "kernel", "warm kernel",
            *doctor.LIBRARIES, *doctor.EXTRAS} <= set(names)
    assert all(check["advice"] for check in found["checks"] if check["status"] != "ok")


def test_a_version_that_does_not_fit_is_named_with_what_to_do():
    asked = [Requirement(text) for text in ("rich>=1", "typer>=999", "no-such-one>=2")]
    checks = list(doctor.check_packages(asked))
    assert [(c.name, c.status, c.advice) for c in checks] == [
        ("typer", "not ok", "pip install 'typer>=999'"), ("no-such-one", "not ok", "pip install 'no-such-one>=2'")]
    assert ">=999 is asked for" in checks[0].found
    (fit,) = doctor.check_packages([Requirement("rich>=1")])
    assert (fit.status, fit.found) == ("ok", "all 1 in the versions asked for")
    assert status(doctor.check_packages([])) == {"packages": "not ok"}


def test_the_requirements_are_those_of_the_project(root, monkeypatch):
    of_checkout = {one.name.lower() for one in doctor._requirements()}
    assert {"polars", "papermill", "rich"} <= of_checkout
    assert "distributed" not in of_checkout  # an extra
    monkeypatch.setattr(doctor.paths, "is_checkout", lambda: False)
    monkeypatch.setattr(doctor.metadata, "requires",
                        lambda name: ["rich>=13", "distributed>=1; extra == 'cluster'", "wmi; sys_platform == 'never'"])
    assert [one.name for one in doctor._requirements()] == ["rich"]


@pytest.mark.parametrize(("code", "word"), [
    ("import no_such_module", "No module named 'no_such_module'"), ("assert 1 + 1 == 3", "does not load"),
    (f"import os; os.kill(os.getpid(), {int(signal.SIGILL)})", "killed by signal 4"),
])
def test_a_library_that_fails_or_dies_is_told(code, word):
    found = doctor.check_library("anything", code)
    assert found.status == "not ok"
    assert word in found.found
    assert "pip install" in found.advice


def test_a_folder_that_cannot_be_written_is_told(tmp_path, monkeypatch):
    assert doctor.check_writable("run folders", tmp_path / "a" / "b").found.startswith(
        f"{tmp_path / 'a' / 'b'} (to be made in {tmp_path})")
    (tmp_path / "file").write_text("")
    found = doctor.check_writable("run folders", tmp_path / "file" / "runs")
    assert (found.status, found.advice) == ("not ok", "give another folder with --out")
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda place: type("Usage", (), {"free": 1e6}))
    assert doctor.check_writable("run folders", tmp_path).advice == "make room"


def test_what_is_optional_does_not_make_the_machine_bad(monkeypatch):
    monkeypatch.setattr(doctor.shutil, "which", lambda name: None)
    monkeypatch.setattr(doctor, "EXTRAS", {"no-such-one": "install it"})
    checks = [doctor.check_browser(), *doctor.check_extras()]
    assert status(checks) == {"chromium": "optional", "no-such-one": "optional"}
    assert doctor.is_good(checks)
    assert not doctor.is_good([*checks, doctor.Check("x", "not ok", "")])


def test_too_little_memory_is_told(monkeypatch):
    monkeypatch.setattr(doctor, "_memory_bytes", lambda: 1e9)
    assert doctor.check_machine().status == "not ok"
    monkeypatch.setattr(doctor, "_memory_bytes", lambda: None)
    assert doctor.check_machine().status == "ok"


def test_the_compiled_reader_is_optional_and_named_with_its_file(tmp_path, monkeypatch):
    monkeypatch.setattr(native, "load", lambda: SimpleNamespace(_name="/somewhere/liblines.so"))
    monkeypatch.delenv("ROOFLOG_NATIVE", raising=False)
    assert (doctor.check_reader().status, doctor.check_reader().found) == ("ok", "/somewhere/liblines.so")
    monkeypatch.setenv("ROOFLOG_NATIVE", "0")
    off = doctor.check_reader()
    assert (off.status, off.found, off.advice) == (
        "optional", "switched off by ROOFLOG_NATIVE=0", "unset ROOFLOG_NATIVE")
    monkeypatch.setenv("ROOFLOG_NATIVE", "no")
    wrong = doctor.check_reader()
    assert (wrong.status, wrong.advice) == ("not ok", "unset ROOFLOG_NATIVE") and "found 'no'" in wrong.found
    with pytest.raises(LogFormatError, match="ROOFLOG_NATIVE: expected 0 .* or 1, found 'no'; correct or unset it"):
        native.library()
    monkeypatch.delenv("ROOFLOG_NATIVE")
    monkeypatch.setattr(native, "load", lambda: None)
    monkeypatch.setattr(native, "__file__", str(tmp_path / "__init__.py"))
    missing = doctor.check_reader()
    assert (missing.name, missing.status, missing.found) == ("compiled reader", "optional", "not built")
    assert "install a C compiler" in missing.advice and "pip install -e ." in missing.advice
    (tmp_path / "liblines.so").write_bytes(b"of another machine")
    stale = doctor.check_reader()
    assert (stale.status, stale.found) == (
        "optional", f"{tmp_path / 'liblines.so'} is damaged or of another version: not used")
    assert "remove that file" in stale.advice and "pip install -e ." in stale.advice
    assert doctor.is_good([off, missing, stale])


def test_a_kernel_that_does_not_start_is_told(monkeypatch):
    from helpers.run import kernel

    monkeypatch.setattr(kernel, "KERNEL", "no-such-kernel")
    found = doctor.check_kernel(warm=False)
    assert found.status == "not ok"
    assert "no-such-kernel" in found.found
    monkeypatch.setattr(kernel, "run_cells", lambda *args, **more: None)
    assert doctor.check_kernel(warm=True).found == "starts and does not answer"


def test_kernels_are_not_tried_when_a_library_kills_its_process(monkeypatch):
    monkeypatch.setattr(doctor, "LIBRARIES", {"bad": "import os; os.abort()"})
    checks = list(doctor.examine())
    assert [(c.name, c.status) for c in checks[-3:]] == [
        ("bad", "not ok"), ("kernel", "not ok"), ("warm kernel", "not ok")]
    assert "not tried" in checks[-1].found
