"""`rooflog watch` as a person sees it, through tmux, in two terminals at once: 100 x 30 and 60 x 24.

Would catch: a block that leaves a trail when its height changes, a line broken inside a word, a phase or an alarm that
never reaches the screen, an exit code a script cannot use, a terminal without cursor or echo after Ctrl-C.
"""

import re
import shutil
import subprocess
import sys
import threading
import time

import live_server
import pytest

WIDE, NARROW = (100, 30), (60, 24)

SPEED = 4.0
"""Simulated over real time: a line each 0.2 s, so that some come between two looks of watch and two frames."""

SILENCE_S = 25.0
"""Longest time until silence is shown as idle: 10 s of it, three log gaps of 1 s, a frame, and a busy machine [s]."""


class Terminal:
    """A shell in tmux that does what a terminal does with cursor movements."""

    def __init__(self, socket, size, folder):
        self._socket, self.size = socket, size
        self.tmux("-f", "/dev/null", "new-session", "-d", "-s", "w", "-x", str(size[0]), "-y", str(size[1]),
                  f"cd {folder}; PS1='$ ' exec bash --norc --noprofile")

    def tmux(self, *words):
        return subprocess.run(["tmux", "-S", str(self._socket), *words], capture_output=True, text=True,
                              check=True).stdout

    def type(self, text):
        self.tmux("send-keys", "-t", "w", text, "Enter")

    def screen(self):
        return self.tmux("capture-pane", "-p", "-t", "w")

    def shown(self, pattern, within_s=40.0):
        """Wait for a pattern; every screen until then has to be whole."""
        end_s = time.monotonic() + within_s
        while not re.search(pattern, screen := self.screen()):
            assert time.monotonic() < end_s, f"{pattern} is not on\n{screen}"
            assert len(re.findall("^phase", screen, re.MULTILINE)) <= 1, screen  # one block, not a trail of them
            time.sleep(0.15)
        return screen


@pytest.fixture
def terminals(tmp_path):
    if shutil.which("tmux") is None:
        pytest.skip("no tmux to show the block in")
    started = []
    try:
        for size in (WIDE, NARROW):
            started.append(Terminal(tmp_path / f"tmux{size[0]}", size, tmp_path))
        yield started
    finally:
        for terminal in started:
            terminal.tmux("kill-server")


def is_whole(screen, text):
    """Tell whether a text is on the screen, broken over lines at most between words."""
    return text in " ".join(screen.split())


def test_a_server_that_pauses_is_rotated_and_crashes(terminals, tmp_path):
    wide, narrow = terminals
    log, seen, faults = tmp_path / "server.log", {}, []
    watch = f"{sys.executable} -m helpers.cli watch {log.name}"
    wide.type(f"clear; {watch} --until done --timeout 120; echo code $?")
    narrow.type(f"clear; {watch}; echo code $?")
    for terminal in terminals:
        assert is_whole(terminal.shown("not there yet;[\\s\\S]*phase"), "not there yet; waiting for it")

    def pause():
        try:
            seen["steady"] = wide.shown(r"phase +steady"), narrow.shown(r"phase +steady")
            seen["idle"] = wide.shown(r"phase +idle", SILENCE_S), narrow.shown(r"phase +idle", SILENCE_S)
        except AssertionError as error:
            faults.append(error)

    lines = live_server.simulate((4, 8), mean_tok=700).lines()
    served = live_server.served(lines)
    fours = [number for number, line in enumerate(served) if "#running-req: 4," in line]
    writer = threading.Thread(target=live_server.write, args=(log, lines, SPEED), kwargs={
        "pause_at": 100 * fours[9] // len(served) + 1, "pause": pause, "rotate_at": 75, "end": "crash"})
    writer.start()
    wide.shown(r"phase +ramp")
    wide.shown("requests +8 running", 60)
    writer.join()
    assert faults == []
    for screen in seen["steady"]:
        assert re.search(r"requests +4 running, 0 queued", screen)
        assert re.search(r"rate +\d+ tok/s now, \d+ tok/s steady at 4, step 2\d\.\d\s+ms", screen)  # 20 + 4 x 0.5 ms
        assert re.search(r"alarms +none", screen)

    end = wide.shown("code 1")
    assert re.search(r"phase +idle +the server has ended: crash", end)
    assert re.search(r"needed +for steady: the next start of the server", end)
    assert re.search(r"alarms +crash 1x", end) and end.count("ALARM") == 1
    assert is_whole(end, "replaced by a new file (rotation); it is followed from its start")
    assert re.search(r"ALARM crash \(line \d+\): hit an exception: Traceback \(most recent call last\):", end)

    screen = narrow.shown(r"alarms +crash 1x")
    assert "code" not in screen  # without --until it goes on
    narrow.tmux("send-keys", "-t", "w", "C-c")
    screen = narrow.shown("code 130")
    # 8 / 24 ms
    assert re.search(r"^ +8 +\d+( of \d+)? +2\d\.\d ms \[\d\d\.\d, \d\d\.\d\] +3\d\d tok/s$", screen, re.MULTILINE)
    narrow.type("clear; stty -a")
    assert re.search(r"(?<!-)\becho\b", narrow.shown(r"\becho\b"))
    assert narrow.tmux("display", "-p", "-t", "w", "#{cursor_flag}").strip() == "1"
    assert all(len(line) <= 60 for line in screen.splitlines())
