"""The same batch on a real dask scheduler with two worker processes on loopback.

Would catch: a dask worker lost with its dump, results of a lost scheduler thrown away or waited for without end, noise
of dask on standard error, daemons that may have no child processes.
"""

import contextlib
import queue
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pandas as pd
import psutil
import pytest
from batch_helpers import kill_worker_of, messages, states

from helpers.batch import Dump, batch
from helpers.batch import cluster as cluster_module
from helpers.schema import RooflogError

pytest.importorskip("distributed", reason="dask.distributed is not installed: pip install 'rooflog[cluster]'")
pytestmark = pytest.mark.notebook

LOOPBACK = "127.0.0.1"


@contextlib.contextmanager
def cluster(folder):
    """Start a scheduler and two workers, each a process of its own under its nanny; yield address and scheduler."""
    file = folder / "scheduler.json"
    dask = [sys.executable, "-m", "dask"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": folder}
    processes = [subprocess.Popen(
        [*dask, "scheduler", "--host", LOOPBACK, "--port", "0", "--no-dashboard", "--no-jupyter", "--scheduler-file",
         str(file)], **quiet)]
    try:
        processes.append(subprocess.Popen(
            [*dask, "worker", "--host", LOOPBACK, "--nworkers", "2", "--nthreads", "1", "--no-dashboard",
             "--scheduler-file", str(file), "--local-directory", str(folder), "--memory-limit", "0"], **quiet))
        deadline_s = time.monotonic() + 120
        while not (file.exists() and file.read_text()):
            assert time.monotonic() < deadline_s and all(p.poll() is None for p in processes)
            time.sleep(0.1)
        yield str(file), processes[0]
    finally:
        family = [child for p in processes if p.poll() is None for child in psutil.Process(p.pid).children(True)]
        for process in [*processes, *family]:
            with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
                process.kill()
        for process in processes:
            process.wait()
        psutil.wait_procs(family, timeout=10)


def test_six_dumps_on_two_dask_workers_and_then_the_scheduler_is_lost(obedient, logs, tmp_path, capfd):
    folder, out = logs(a="good", b="refused", c="good", d="slow once", e="poison", f="good"), tmp_path / "out"
    with cluster(tmp_path) as (address, scheduler):
        thread, killed = kill_worker_of(folder / "d.pid")
        result = batch(folder, out, str(obedient), scheduler=address)
        thread.join()
        assert len(killed) == 1
        assert states(result) == {"a": ("done", 0), "b": ("done", 2), "c": ("done", 0), "d": ("done", 0),
                                  "e": ("failed", 3), "f": ("done", 0)}
        assert messages(result) == {"e": "server.log: expected decode lines, found none"}
        assert sorted(pd.read_parquet(out / "scorecards.parquet")["dump"]) == [
            str(folder / f"{name}.log") for name in "abcdf"]
        assert "e.log" in (out / "index.html").read_text()

        before = {path: path.stat().st_mtime_ns for path in out.glob("*-*/*")}
        again = batch(folder, out, str(obedient), scheduler=address)
        assert states(again) == {name: ("skipped", code) for name, (_, code) in states(result).items()}
        assert {path: path.stat().st_mtime_ns for path in out.glob("*-*/*")} == before

        # A dask worker that dies with its child costs only time: the scheduler gives its dump to another.
        logs(g="slow once")
        thread, killed = kill_worker_of(folder / "g.pid", is_dask=True)
        third = batch(folder, out, str(obedient), scheduler=address)
        thread.join()
        assert len(killed) == 1 and states(third)["g"] == ("done", 0) and third.counts()["skipped"] == 6

        logs(h="good", i="slow")
        thread = threading.Thread(target=kill_when, args=(folder / "i.pid", out, scheduler))
        thread.start()
        started_s = time.monotonic()
        lost = batch([folder / f"{name}.log" for name in "ahi"], out, str(obedient), scheduler=address)
        thread.join()
        assert time.monotonic() - started_s < 120
    assert states(lost) == {"a": ("skipped", 0), "h": ("done", 0)} and lost.exit_code == 3
    assert lost.not_done == [str(folder / "i.log")]
    assert len(lost.notes) == 1 and lost.notes[0].startswith("the scheduler was lost")
    assert "1 of 3 dumps are not done; what was finished is kept" in lost.notes[0]
    shown = capfd.readouterr()
    assert (shown.out, shown.err) == ("", "")


def kill_when(mark, out, scheduler):
    """Kill the scheduler when one notebook has begun and another dump is done."""
    deadline_s = time.monotonic() + 120
    while not (mark.exists() and list(out.glob("h-*/run.json"))) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    time.sleep(5)  # for what is done to be told, however busy the machine is
    scheduler.kill()


def test_a_dump_that_kills_every_dask_worker_is_reported_and_nothing_else_is_lost(tmp_path):
    from distributed.scheduler import KilledWorker

    dump = Dump("x", "/logs/x.log", ("/logs/x.log",))
    ended = queue.SimpleQueue()
    error = KilledWorker("x", None, 3)
    ended.put((dump, SimpleNamespace(status="error", exception=lambda timeout: error)))
    outcome = cluster_module._next(SimpleNamespace(status="running"), ended, lambda outcome: None)
    assert (outcome.dump, outcome.state, outcome.exit_code, outcome.is_final) == ("/logs/x.log", "failed", 3, False)
    assert outcome.message == "KilledWorker: every dask worker that had it died, often for want of memory"
    with pytest.raises(cluster_module.SchedulerLost):
        cluster_module._next(SimpleNamespace(status="closed"), ended, lambda outcome: None)


@pytest.mark.parametrize("address", ["nonsense", "127.0.0.1", "http://host:8786", "tcp://host", "tcp://:8786",
                                     "host:port", "host:99999", "nowhere/scheduler.json"])
def test_what_is_no_address_is_refused_at_once(address):
    with pytest.raises(RooflogError, match="expected the (address|scheduler file) of a dask scheduler"):
        cluster_module._connect(address)


@pytest.mark.parametrize("address", ["tcp://10.0.0.1:8786", "tls://host:8786", "host:8786", "tcp://[::1]:8786"])
def test_every_form_of_an_address_is_taken(address):
    cluster_module._require_form(address)


def test_a_client_that_cannot_connect_leaves_one_line_and_no_traceback():
    """dask closes a half-made client itself after a refused connection, but not after an address it cannot read."""
    program = ("from helpers.batch import cluster\ncluster.CONNECT_S, cluster._require_form = 0.5, str\n"
               "try:\n    cluster._connect('nonsense')\n"
               "except Exception as error:\n    kept = error\n    print(error)\n")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert "nobody answers there (ValueError)" in done.stdout
