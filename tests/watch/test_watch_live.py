"""A server that writes its log while the clock runs, faster than real: phases, alarms, exit codes, the block.

`live_server` writes; it can be run by itself to look at `rooflog watch` by eye.
"""

import os
import re
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import live_server
import pytest

from helpers.watch import PipeFollower, Watcher, watch
from helpers.watch import loop as watch_loop


@pytest.fixture(scope="module")
def short():
    """Lines of two levels."""
    return live_server.simulate((4, 8), mean_tok=360).lines()


def follow(path, lines, *, until, speed=40.0, timeout_s=60.0, say=None, **how):
    """Watch a log that is written meanwhile; return exit code and changes."""
    said = []

    def hear(change):
        said.append(change)
        if say is not None:
            say(change)

    thread = threading.Thread(target=live_server.write, args=(path, lines, speed), kwargs=how)
    thread.start()
    code = watch(str(path), until=until, timeout_s=timeout_s, say=hear, poll_s=0.02,
                 watcher=Watcher(idle_s=0.3, max_cpu_frac=0, _credit_s=1e9))
    thread.join()
    return code, said


def seen(said, change, key):
    return [found.values[key] for found in said if found.change == change]


def test_a_crash_after_a_rotation_is_the_only_alarm_and_ends_the_wait(tmp_path, short):
    code, said = follow(tmp_path / "a.log", short, until="done", rotate_at=60, end="crash")
    assert code == 1
    assert seen(said, "alarm", "alarm") == ["crash"]
    assert sum("(rotation)" in text for text in seen(said, "note", "text")) == 1
    phases = seen(said, "phase", "phase")
    assert phases.count("steady") >= 2  # both levels
    assert phases[-1] == "idle"
    assert {level for level in seen(said, "phase", "level_req") if level} == {4.0, 8.0}


def test_memory_that_runs_out_ends_the_wait_for_idle(tmp_path, short):
    """Truncation in between: the rest is still followed."""
    code, said = follow(tmp_path / "a.log", short[: len(short) // 2], until="idle", truncate_at=70, end="memory")
    assert code == 1
    assert seen(said, "alarm", "alarm")[0] == "out_of_memory"
    assert any("truncated from" in text for text in seen(said, "note", "text"))


def test_a_pause_is_idle_and_the_load_after_it_is_found(tmp_path, short, monkeypatch):
    """By the log's own clock lines are 1 s apart: at 40 times the speed its silence is one of 75 ms."""
    monkeypatch.setattr("helpers.watch.state.SILENT_GAPS", 3 / 40)
    is_idle = threading.Event()

    def say(change):
        if change.values["phase"] == "idle" and change.values["n_lines"] > 20:
            is_idle.set()

    code, said = follow(tmp_path / "a.log", short, until="done", say=say, pause_at=60, end="stop",
                        pause=lambda: is_idle.wait(20))
    assert code == 0
    phases = seen(said, "phase", "phase")
    assert "idle" in phases[:-1]
    assert "steady" in phases[phases.index("idle") :]


def test_lines_that_a_new_connection_sends_again_count_once(short):
    """``ssh host tail -F`` that is started anew begins with the last ten lines."""
    lines = [f"{line}\n" for line in live_server.served(short)]
    cut = max(number for number, line in enumerate(lines) if "#running-req: 4," in line)
    text, before, again, after = "".join(lines), "".join(lines[:cut]), "".join(lines[cut - 10 : cut]), lines[cut:]

    def counted(blocks):
        watcher = Watcher(max_cpu_frac=1e-9, _credit_s=-1.0)  # judged once, at the end
        changes = [change for block in blocks for change in watcher.take(block.encode())]
        assert [change for change in changes if change.change == "alarm"] == []
        watcher.finish()
        return watcher.state.n_ticks, watcher.clean_counts, watcher.n_repeated

    ticks, clean, repeated = counted([before, again, *after])
    assert (ticks, clean) == counted([text])[:2]
    assert repeated == again.count("#running-req") > 4
    assert counted([text])[2] == 0


def test_exit_code_of_a_pipe_that_crashes(short):
    out, into = os.pipe()
    lines = [*live_server.served(short), f"[2026-11-02 09:30:00] {live_server.CRASH}"]
    os.write(into, "".join(f"{line}\n" for line in lines).encode())
    os.close(into)
    said = []
    _, code = watch_loop._run(PipeFollower(out), Watcher(_credit_s=0.1), "done", 5.0, said.append, 0.005)
    os.close(out)
    assert code == 1


def test_a_block_on_a_terminal_shows_every_field(tmp_path):
    """Through tmux: what a person sees, with the cursor movements done by a terminal."""
    if shutil.which("tmux") is None:
        pytest.skip("no tmux to show the block in")
    log, socket = tmp_path / "server.log", tmp_path / "tmux"
    lines = live_server.simulate((1, 4), mean_tok=400).lines()
    end = next(number for number, line in enumerate(lines) if "running-req: 4," in line) + 8
    log.write_text("".join(f"{line}\n" for line in lines[: end - 5]))
    program = f"{sys.executable} -m helpers.cli watch {log} --until done --timeout 60; echo code $?; sleep 60"

    def tmux(*words):
        return subprocess.run(["tmux", "-S", str(socket), *words], capture_output=True, text=True, check=True).stdout

    tmux("-f", "/dev/null", "new-session", "-d", "-s", "w", "-x", "100", "-y", "40",
         f"cd {Path(__file__).parents[2]}; {program}")
    try:
        def shown(pattern):
            deadline_s = time.monotonic() + 40
            while not re.search(pattern, screen := tmux("capture-pane", "-p", "-t", "w")):
                assert time.monotonic() < deadline_s, screen
                time.sleep(0.2)
            return screen

        shown(r"requests +4 running")
        with log.open("a") as file:
            file.writelines(f"{line}\n" for line in lines[end - 5 : end])
        screen = shown(r"phase +steady[\s\S]*> +4")
        for pattern in (r"server.log +\S+ s, \d+ lines\n", r"requests +4 running, 0 queued", r"rate +\d+ tok/s now, "
                        r"\d+ tok/s steady at 4, step 2\d\.\d ms", "steps +in a captured graph", r"KV pool +\S+ % used",
                        "law +none yet: ", "needed +for steady: nothing", "alarms +none",
                        r"running +clean +step \[95 %"):
            assert re.search(pattern, screen), (pattern, screen)
        with log.open("a") as file:
            file.write(f"[2026-11-02 09:30:00] {live_server.CRASH}\n")
        screen = shown("code 1")
        assert "ALARM crash (line" in screen
        assert re.search(r"phase +idle +the server has ended: crash", screen)
        assert re.search(r"alarms +crash 1x", screen)
        assert len(re.findall("^phase", screen, re.MULTILINE)) == 1  # one block, not a trail of them
    finally:
        tmux("kill-server")
