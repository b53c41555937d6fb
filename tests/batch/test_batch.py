"""A batch on this machine: what fails costs only its own dump, and the next batch goes on from there.

Would catch: a batch that stops at the first bad log, a dead worker that takes others along, a dump run twice, a failure
that passes recorded for ever, a log that grew while it was read taken for done, output of a half-done run.
"""

import errno
import json
import signal
import subprocess
import sys
import threading
import time

import pandas as pd
import psutil
import pytest
import typer
from batch_helpers import command, kill_worker_of, messages, states, worker_of

from helpers.batch import BatchEnded, BatchResult, batch, child
from helpers.batch.work import describe
from helpers.cli.batch import _print, _say_ended
from helpers.cli.batch import batch as batch_command
from helpers.schema import RooflogError

pytestmark = pytest.mark.notebook


def processes():
    return set(psutil.Process().children(recursive=True))


@pytest.fixture
def others():
    """Processes that tests before left to this one, as a warm parent of kernels, which lives as long as it does."""
    return processes()


def test_six_dumps_one_poisoned_one_worker_killed(obedient, logs, tmp_path, monkeypatch, capsys, others):
    folder = logs(a="good", b="refused", c="check", d="slow once", e="poison", f="good")
    out = tmp_path / "out"
    thread, killed = kill_worker_of(folder / "d.pid")
    said = []
    result = batch(folder, out, str(obedient), n_workers=2, command="rooflog batch", progress=said.append)
    thread.join()
    assert len(killed) == 1
    assert states(result) == {"a": ("done", 0), "b": ("done", 2), "c": ("done", 1), "d": ("done", 0),
                              "e": ("failed", 3), "f": ("done", 0)}
    assert messages(result) == {"c": "adds up: 1, limit 2", "e": "server.log: expected decode lines, found none"}
    assert result.exit_code == 3 and result.counts() == {
        "good": 3, "cannot_tell": 1, "check_failed": 1, "failed": 1, "not_done": 0, "skipped": 0}
    assert any("6/6 dumps, 1 failed" in text and "dumps/min" in text for text in said)
    table = pd.read_parquet(out / "scorecards.parquet")
    assert sorted(table["dump"]) == [str(folder / f"{name}.log") for name in "abcdf"]
    assert set(table["folder"]) == {o.name for o in result.outcomes if o.has_folder}
    page = (out / "index.html").read_text()
    assert "server.log: expected decode lines, found none" in page and "e.log" in page
    folders = {path.name for path in out.iterdir() if path.is_dir()}
    assert folders == {*table["folder"], "failures"} and len(list(out.glob("failures/*"))) == 1
    assert json.loads((out / table["folder"][0] / "run.json").read_text())["command"] == "rooflog batch"

    before = {path: path.stat().st_mtime_ns for path in out.glob("*-*/*")}
    monkeypatch.setattr(child, "Child", None)  # no process is started for what is done
    monkeypatch.chdir(tmp_path)
    with pytest.raises(typer.Exit) as end:
        batch_command(["logs"], "out", str(obedient), None, "", "file", 2, "", False, 0.0, False, False)
    assert end.value.exit_code == 3
    assert {path: path.stat().st_mtime_ns for path in out.glob("*-*/*")} == before
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"failed: {folder}/e.log: server.log: expected decode lines, found none"
    assert lines[1] == f"check failed: {folder}/c.log: adds up: 1, limit 2"
    assert lines[2].startswith("6 dumps in ") and lines[2].endswith(
        ": 3 good, 1 cannot tell, 1 with a failed check, 1 failed (6 of them done before)")
    assert lines[3] == "Index: out/index.html"
    with pytest.raises(typer.Exit):
        batch_command(["logs"], "out", str(obedient), None, "", "file", 2, "", False, 0.0, True, False)
    told = json.loads(capsys.readouterr().out)
    assert (told["exit_code"], told["n_failed"], told["n_skipped"], len(told["dumps"])) == (3, 1, 6, 6)
    assert not processes() - others


def test_reasons_that_pass_are_tried_again_by_the_next_batch(obedient, logs, tmp_path, monkeypatch):
    monkeypatch.setattr(child, "TRIES", 1)
    folder = logs(a="bomb", b="full", c="bug", d="slow", e="good", f="grows")
    out = tmp_path / "out"
    thread, killed = kill_worker_of(folder / "d.pid")
    result = batch([folder], out, str(obedient), n_workers=1)
    thread.join()
    assert len(killed) == 1
    assert states(result) == {"a": ("failed", 3), "b": ("failed", 3), "c": ("done", 3), "d": ("failed", 3),
                              "e": ("done", 0), "f": ("failed", 3)}
    said = messages(result)
    assert "DeadKernelError" in said["a"] and "No space left" in said["b"] and "KeyError" in said["c"]
    assert said["d"] == "its worker process was killed (SIGKILL, often for want of memory) (tried 1 times)"
    assert "f.log: changed while it was read" in said["f"]
    assert [outcome.is_final for outcome in result.outcomes] == [False, False, True, False, True, False]
    assert sorted(path.name[0] for path in out.glob("?-*")) == ["c", "e"]  # nothing half-done
    for name in "abdf":
        (folder / f"{name}.log").write_text(f"good\n{name}\nDecode batch\n")
    again = batch([folder], out, str(obedient), n_workers=1)
    assert states(again) == {**{name: ("done", 0) for name in "abdf"}, "c": ("skipped", 3), "e": ("skipped", 0)}
    assert not list(out.glob("failures/*"))  # the page must not list what was mended
    assert not list(out.glob(".*"))


def test_a_limit_of_time_costs_one_dump(obedient, logs, tmp_path, monkeypatch, others):
    monkeypatch.setattr(child, "TRIES", 1)
    result = batch(logs(a="slow"), tmp_path / "out", str(obedient), limit_s=1)
    assert messages(result) == {"a": "not done within 1 s (--limit-time) (tried 1 times)"}
    assert not list((tmp_path / "out").glob(".*")) and not processes() - others


def test_two_batches_in_one_folder_at_once(obedient, logs, tmp_path):
    folder, out = logs(a="good", b="good", c="poison"), tmp_path / "out"
    results = []
    threads = [threading.Thread(target=lambda: results.append(batch(folder, out, str(obedient), n_workers=1)))
               for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 2
    for result in results:
        assert {name: code for name, (_, code) in states(result).items()} == {"a": 0, "b": 0, "c": 3}
    assert len(list(out.glob("[ab]-*"))) == 2 and len(pd.read_parquet(out / "scorecards.parquet")) == 2


def test_inputs_and_outputs_behind_urls(obedient, logs, tmp_path):
    folder = logs(a="good", b="poison")
    (folder / "facts.json").write_text('{"tp": 4}')
    out = f"file://{tmp_path}/out"
    result = batch(f"file://{folder}", out, str(obedient), n_workers=1)
    assert states(result) == {"a": ("done", 0), "b": ("failed", 3)}
    [run] = (tmp_path / "out").glob("a-*")
    assert {path.name for path in run.iterdir()} == {
        "run.json", "scorecard.json", "report.html", "summary.md", "91_obey.ipynb"}
    assert json.loads((run / "run.json").read_text())["dump"] == f"file://{folder}/a.log"
    assert '{\\"tp\\": 4}' in (run / "91_obey.ipynb").read_text().replace('\\\\\\"', '\\"')
    assert "b.log" in (tmp_path / "out/index.html").read_text() and result.index == f"{out}/index.html"
    assert len(pd.read_parquet(tmp_path / "out/scorecards.parquet")) == 1
    again = batch(f"file://{folder}", out, str(obedient), n_workers=1)
    assert states(again) == {"a": ("skipped", 0), "b": ("skipped", 3)}


def test_poisoned_logs_cost_only_themselves(tmp_path, data, capsys):
    """With the real notebook: what the reader refuses is refused here, in its words."""
    folder = tmp_path / "logs"
    folder.mkdir()
    (folder / "binary.log").write_bytes(bytes(range(256)) * 100)
    (folder / "cut.log.gz").write_bytes(b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03" + b"\x01" * 40)
    (folder / "empty.log").write_bytes(b"")
    (folder / "start.log").write_text("INFO 11-29 10:00:00 [api_server.py:1289] vLLM API server version 0.11.0\n")
    (folder / "licence.txt").write_text("no <b>statistics</b> here\n" * 1000)
    (folder / "broken.log").write_text("Decode batch. #running-req: x, gen throughput (token/s): ?\n" * 100_000)
    (folder / "good.log").write_bytes((data / "samples/sglang-sweep/server.log").read_bytes())
    result = batch(folder, tmp_path / "out", n_workers=1)
    told = messages(result)
    assert "good" not in told and states(result).pop("good") == ("done", 0)
    assert len(told) == 5 and all(code == 3 for name, (_, code) in states(result).items() if name != "good")
    assert told["binary"].startswith(f"{folder}/binary.log: ")
    _print(result)  # the path once
    shown = [line for line in capsys.readouterr().out.splitlines() if "binary.log" in line]
    assert len(shown) == 1 and shown[0].count("binary.log") == 1
    assert shown[0].startswith(f"failed: {folder}/binary.log: expected")
    page = (tmp_path / "out/index.html").read_text()
    assert page.count("binary.log") == 1
    assert '<strong>binary.log</strong> <span class="status bad">failed</span>: expected' in page
    assert "expected statistic lines" in told["start"] and "licence" not in told and "licence.txt" in result.notes[0]
    assert "<summary>Passed over: 1 note</summary>" in page and "left out: licence.txt" in page
    assert "gzip" in told["cut.log.gz"] and "empty" in told["empty"] and "binary" in told["binary"]
    assert all(outcome.is_final for outcome in result.outcomes)


@pytest.mark.parametrize(("how", "said"), [
    ({"notebook": "77"}, "notebook '77'"), ({"parameters": {"confidense": 1}}, "did you mean confidence"),
    ({"n_workers": 0}, "--workers 0"), ({"limit_s": -1.0}, "--limit-time -1"), ({"out": "/proc/none"}, "--out"),
    ({"scheduler": "tcp://127.0.0.1:9"}, "nobody answers"), ({"context": "{"}, "not JSON"),
    ({"out": "s3://key:secret@bucket/runs"}, "without credentials"),
    ({"out": "http://127.0.0.1:9/runs"}, "found a web page"), ({"notebook": "08"}, "has no parameter log_path"),
])
def test_what_cannot_be_asked_for_is_said_before_anything_runs(logs, tmp_path, monkeypatch, how, said):
    monkeypatch.setattr("helpers.batch.cluster.CONNECT_S", 0.5)
    with pytest.raises(RooflogError, match=said):
        batch(logs(a="good"), **({"out": tmp_path / "out"} | how))
    assert not list(tmp_path.glob("out/*-*"))


@pytest.mark.parametrize(("place", "error", "said"), [
    ("Child", BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"), "Resource temporarily unavailable"),
    ("prepare", ValueError("unforeseen"), "ValueError: unforeseen (a fault of rooflog)"),
])
def test_an_error_in_a_feeding_thread_fails_the_dump_and_ends_the_batch(
    obedient, logs, tmp_path, monkeypatch, place, error, said
):
    """A thread that dies of it would leave the batch waiting for ever."""
    def fail(*args, **how):
        raise error

    monkeypatch.setattr(child, place, fail)
    monkeypatch.setattr(threading, "excepthook", lambda args: None)
    ticks = []

    def tick(text):
        ticks.append(text)
        assert len(ticks) < 20, "nothing came in ten seconds"

    result = batch(logs(a="good", b="good"), tmp_path / "out", str(obedient), n_workers=1, progress=tick)
    assert states(result) == {"a": ("failed", 3), "b": ("failed", 3)} and said in messages(result)["a"]


def test_a_batch_ended_before_a_dump_was_done_says_so(capsys):
    for n_done, said in ((0, "none of 3 dumps was done yet; the same command starts them again"),
                         (2, "2 of 3 dumps came to an end and are kept; the same command goes on from there")):
        _say_ended(BatchResult("out", 3, ["outcome"] * n_done), [])
        assert capsys.readouterr().err == f"interrupted: {said}\n"


def test_without_dask_the_way_to_it_is_said(logs, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(RooflogError, match=r"pip install 'rooflog\[cluster\]'"):
        batch(logs(a="good"), tmp_path / "out", scheduler="tcp://127.0.0.1:9")


def test_an_interrupt_ends_every_process(obedient, logs, tmp_path, others):
    folder, out = logs(a="good", b="slow"), tmp_path / "out"
    seen = []

    def interrupt(text):
        if (folder / "b.pid").exists() and not seen:
            seen.append(worker_of(folder / "b.pid"))
            raise KeyboardInterrupt

    with pytest.raises(BatchEnded) as end:
        batch(folder, out, str(obedient), n_workers=1, progress=interrupt)
    assert states(end.value.result) == {"a": ("done", 0)} and end.value.result.n_dumps == 2
    assert len(seen) == 1 and not seen[0].is_running() and not processes() - others
    assert [path.name[0] for path in out.glob("?-*")] == ["a"] and not list(out.glob(".partial*"))


def test_a_signal_ends_a_batch_at_once_and_the_next_goes_on(obedient, logs, tmp_path):
    folder, out = logs(a="good", b="slow once", c="good"), tmp_path / "out"
    words = command(folder, "--out", out, "--notebook", obedient, "--workers", 1, "-p", "confidence", "0.9")
    with subprocess.Popen(words, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        deadline_s = time.monotonic() + 120
        while not ((folder / "b.pid").exists() and (folder / "b.pid").read_text()):
            assert process.poll() is None and time.monotonic() < deadline_s
            time.sleep(0.05)
        kernel = psutil.Process(int((folder / "b.pid").read_text()))
        process.send_signal(signal.SIGTERM)
        shown, said = process.communicate(timeout=60)
    assert (process.returncode, shown) == (143, "")
    assert said.splitlines()[-1].startswith("ended by SIGTERM: 1 of 3 dumps came to an end")
    assert "Traceback" not in said
    gone, alive = psutil.wait_procs([kernel], timeout=5)
    assert gone and not alive
    assert [path.name[0] for path in out.glob("?-*")] == ["a"] and not list(out.glob(".partial*"))
    done = subprocess.run([*words, "--json"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert [told[f"n_{name}"] for name in ("dumps", "good", "skipped", "failed")] == [3, 3, 1, 0]


def test_a_disk_that_takes_no_more_costs_the_dump_and_is_said(monkeypatch, obedient, logs, tmp_path):
    """A limit on the size of files stands in for it: the scorecard has 16 kB."""
    monkeypatch.setattr(child, "TRIES", 1)
    limited = f"import resource, runpy, signal; resource.setrlimit(resource.RLIMIT_FSIZE, ({2**12}, {2**12})); " \
              "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); runpy.run_module('helpers.batch', run_name='__main__')"
    real = subprocess.Popen

    def start(words, **how):
        is_worker = words[1:3] == ["-m", "helpers.batch"]
        return real([words[0], "-c", limited, words[3]] if is_worker else words, **how)

    monkeypatch.setattr(child.subprocess, "Popen", start)
    result = batch(logs(a="good"), tmp_path / "out", str(obedient))
    assert states(result) == {"a": ("failed", 3)} and "File too large" in messages(result)["a"]
    assert not result.outcomes[0].is_final
    assert [path.name for path in (tmp_path / "out").iterdir() if path.is_dir()] == ["failures"]
    error = OSError(errno.ENOSPC, "No space left on device", "/x/run.json")
    assert describe(error) == \
        "/x/run.json: the disk is full (No space left on device); make room and run the batch again"
