"""Following files and pipes: growth, rotation, truncation, a file that is not there yet, exit codes."""

import gzip
import json
import os
import threading
import time

import pytest
import typer
from typer.testing import CliRunner

from helpers import synth
from helpers.cli.watch import watch as command
from helpers.schema import LogFormatError, RooflogError
from helpers.watch import FileFollower, PipeFollower, Watcher, watch
from helpers.watch import loop as watch_loop

STOP = "[2026-11-02 09:30:00] SIGTERM received. signum=15 frame=None. Draining requests and shutting down...\n"
CRASH = "[2026-11-02 09:30:00] Scheduler hit an exception: Traceback (most recent call last):\n"
READY = "[2026-11-02 09:00:00] The server is fired up and ready to roll!\n"


@pytest.fixture(scope="module")
def lines():
    """A server under four requests, until they are done; 60 lines."""
    server = synth.Server(law=synth.StepLaw(intercept_s=0.02, slope_s_per_req=0.0005), startup_s=5.0)
    client = synth.Client(levels_req=(4,), prompts_per_req=1.0, output=synth.Lengths(mean_tok=500))
    return [f"{line}\n" for line in synth.simulate(server, client, seed=2).lines()]


def first_decode(lines):
    return next(number for number, line in enumerate(lines) if "Decode batch" in line)


def run(path, **arguments):
    """Watch without pauses worth the name; return exit code and changes."""
    said = []
    code = watch(str(path), say=said.append, poll_s=0.005, **arguments,
                 watcher=Watcher(idle_s=0.05, max_cpu_frac=0, _credit_s=0.0))
    return code, said


def write_slowly(path, pieces, pause_s=0.03, between=None):
    """Write pieces from another thread; ``between`` happens in the middle."""
    def work():
        for number, piece in enumerate(pieces):
            if between is not None and number == len(pieces) // 2:
                between()
            with path.open("a") as file:
                file.write(piece)
            time.sleep(pause_s)

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_growth_comes_in_whole_lines(tmp_path):
    path = tmp_path / "a.log"
    path.write_bytes(b"one\ntw")
    follower = FileFollower(str(path))
    first = follower.read()
    assert (first.data, first.is_history) == (b"one\n", True)
    with path.open("ab") as file:
        file.write(b"o\nthree\n")
    second = follower.read()
    assert (second.data, second.is_history) == (b"two\nthree\n", False)
    assert follower.read().data == b""
    follower.close()


def test_a_rotated_file_is_read_to_its_end_and_the_new_one_from_its_start(tmp_path):
    path = tmp_path / "a.log"
    path.write_bytes(b"one\n")
    follower = FileFollower(str(path))
    follower.read()
    with path.open("ab") as file:
        file.write(b"two\nthr")
    path.rename(tmp_path / "a.log.1")
    assert follower.read().data == b"two\n"
    assert follower.read().data == b""  # nothing has the name: the rotation is under way
    path.write_bytes(b"four\n")
    rotated = follower.read()
    assert rotated.data == b"thr\n"
    assert "rotation" in rotated.notes[0]
    assert (follower.read().data, follower.read().data) == (b"four\n", b"")
    follower.close()


def test_a_truncated_file_is_read_again_from_its_start(tmp_path):
    path = tmp_path / "a.log"
    path.write_bytes(b"one\ntwo\nthr")
    follower = FileFollower(str(path))
    follower.read()
    os.truncate(path, 0)
    with path.open("ab") as file:
        file.write(b"four\n")
    piece = follower.read()
    assert (piece.data, piece.is_history) == (b"four\n", False)
    assert "truncated from 11 to 5 bytes" in piece.notes[0]
    follower.close()


def test_of_a_long_log_only_the_end_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr("helpers.watch.follow.HISTORY_BYTES", 25)
    path = tmp_path / "a.log"
    path.write_bytes(b"".join(b"line %02d\n" % n for n in range(10)))  # 8 bytes each, 80 in all
    follower = FileFollower(str(path))
    piece = follower.read()
    assert piece.data == b"line 07\nline 08\nline 09\n"
    assert "may be missing" in piece.notes[0]
    follower.close()


@pytest.mark.parametrize(("content", "word"), [
    # Workers must collect one name: gzip writes the second of the day into its header.
    (gzip.compress(b"text\n", mtime=0), "a gzip file"), (bytes(range(256)) * 64, "binary"),
    (b"PAR1....", "a Parquet file"),
    ("text\n".encode("utf-16"), "UTF-16"),
])
def test_what_cannot_be_followed_is_said_in_one_line(tmp_path, content, word):
    (tmp_path / "a.log").write_bytes(content)
    with pytest.raises(LogFormatError, match=word):
        run(tmp_path / "a.log", timeout_s=1.0)
    with pytest.raises(LogFormatError, match="a folder"):
        run(tmp_path, timeout_s=1.0)


def test_steady_is_awaited_in_a_file_that_is_not_there_yet(tmp_path, lines):
    path = tmp_path / "server.log"
    write_slowly(path, ["".join(lines[n : n + 8]) for n in range(0, len(lines), 8)]).join(0.0)
    code, said = run(path, until="steady", timeout_s=20.0)
    assert code == 0
    assert said[-1].values["phase"] == "steady"
    assert "proven" in said[-1].values["text"]


def test_a_missing_file_is_waited_for_until_the_time_is_over(tmp_path):
    code, said = run(tmp_path / "none.log", until="steady", timeout_s=0.05)
    assert code == 2
    assert [change.change for change in said] == ["note", "end"]
    assert "not there yet" in said[0].values["text"]


@pytest.mark.parametrize("how", ["rotated", "truncated"])
def test_steady_is_found_across_a_change_of_the_file(tmp_path, lines, how):
    """Two lines of the plateau are in the old file, the rest in the new one."""
    path = tmp_path / "server.log"
    middle = first_decode(lines) + 2
    path.write_text("".join(lines[: middle - 2]))

    def change():
        time.sleep(0.1)  # a poll sees what was there
        if how == "rotated":
            path.rename(tmp_path / "server.log.1")
        else:
            os.truncate(path, 0)

    pieces = ["".join(lines[middle - 2 : middle]), "".join(lines[middle : middle + 8])]
    thread = write_slowly(path, pieces, 0.1, between=change)
    code, said = run(path, until="steady", timeout_s=20.0)
    thread.join()
    assert code == 0
    assert any(how[:6] in change.values["text"] or "rotation" in change.values["text"]
               for change in said if change.change == "note")


def test_what_was_there_before_proves_nothing_until_a_line_comes(lines):
    watcher = Watcher(max_cpu_frac=0, _credit_s=0.0)
    there = first_decode(lines) + 7
    before = watcher.take("".join(lines[:there]).encode(), is_history=True)
    assert {change.values["phase"] for change in before} == {"ramp"}
    assert not watcher.is_steady_reached
    watcher.take(lines[there].encode())
    assert watcher.is_steady_reached


def test_a_pipe_that_ends_before_is_no_proof(lines):
    def piped(text, until):
        out, into = os.pipe()
        os.write(into, text.encode())
        os.close(into)
        said = []
        watcher = Watcher(stop_at_steady=until == "steady", _credit_s=0.1)
        _, code = watch_loop._run(PipeFollower(out), watcher, until, 5.0, said.append, 0.005)
        os.close(out)
        return code

    whole = "".join(lines)
    assert piped(whole, "steady") == 0
    assert piped("".join(lines[: first_decode(lines) + 3]), "steady") == 2
    assert piped(whole, "") == 0
    assert piped(READY + "[2026-11-02 09:30:00] SIGTERM received. signum=15", "done") == 0  # without a line feed
    assert piped("", "done") == 2


@pytest.mark.parametrize(("until", "added", "code"), [
    ("done", STOP, 0), ("done", CRASH, 1), ("steady", CRASH, 1), ("steady", STOP, 2),
    ("steady", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.94 GiB.\n", 1),
    ("idle", "", 0), ("done", "", 2), ("", CRASH, 0),
])
def test_exit_codes(tmp_path, until, added, code):
    path = tmp_path / "server.log"
    path.write_text(READY)
    thread = write_slowly(path, ["", added], 0.05)
    found, said = run(path, until=until, timeout_s=0.4)
    thread.join()
    assert found == code
    assert said[-1].change == "end"
    assert said[-1].values["exit_code"] == code


def test_a_crash_before_watching_began_is_history_but_ends_done(tmp_path):
    path = tmp_path / "server.log"
    path.write_text(READY + CRASH)
    code, said = run(path, until="steady", timeout_s=0.1)
    assert code == 2
    assert "had ended before (crash)" in said[0].values["text"]
    assert run(path, until="done", timeout_s=5.0)[0] == 1


def test_a_server_that_is_starting_is_not_idle(tmp_path):
    path = tmp_path / "server.log"
    path.write_text("[2026-11-02 09:00:00] Load weight begin. avail mem=78.5 GB\n")
    assert run(path, until="idle", timeout_s=0.2)[0] == 2


def test_bad_words_are_refused():
    with pytest.raises(RooflogError, match="expected one of steady, idle, done"):
        run("a.log", until="ready")
    with pytest.raises(RooflogError, match="expected seconds, 0 or more"):
        run("a.log", timeout_s=-1.0)


def test_the_command_prints_one_json_object_per_change(tmp_path):
    law = synth.StepLaw(intercept_s=0.02, slope_s_per_req=0.0005)
    client = synth.Client(levels_req=(4,), prompts_per_req=1.0, output=synth.Lengths(mean_tok=8000))
    lines = [f"{line}\n" for line in synth.simulate(synth.Server(law=law), client, seed=2).lines()]
    path, is_done = tmp_path / "server.log", threading.Event()
    path.write_text("".join(lines[: first_decode(lines)]))

    def write():
        with path.open("a") as file:
            for line in lines[first_decode(lines) :]:
                if is_done.wait(0.1):
                    break
                file.write(line)
                file.flush()

    thread = threading.Thread(target=write)
    thread.start()
    app = typer.Typer()
    app.command()(command)
    done = CliRunner().invoke(app, [str(path), "--until", "steady", "--timeout", "30", "--json"])
    is_done.set()
    thread.join()
    assert done.exit_code == 0
    objects = [json.loads(line) for line in done.stdout.splitlines()]
    assert objects[-1]["change"] == "end"
    assert [found["phase"] for found in objects if found["change"] == "phase"][-1] == "steady"
    with path.open("a") as file:
        file.write(STOP)
    text = CliRunner().invoke(app, [str(path), "--until", "done", "--timeout", "30"])
    assert text.exit_code == 0
    assert text.stdout.splitlines()[-1].endswith("end: the server has ended: shutdown")


def test_a_file_that_is_no_log_is_said_to_be_none(tmp_path, lines):
    path = tmp_path / "gpu.csv"
    path.write_text("timestamp, index, power.draw [W]\n" + "2026/01/01 00:00:00.000, 0, 5.00 W\n" * 30)
    code, said = run(path, timeout_s=0.1)
    notes = [change.values["text"] for change in said if change.change == "note"]
    assert notes == ["none of 31 lines was recognised as an engine's (rooflog engines lists what is read) so far"]
    assert said[-1].values["text"].endswith("have passed; none of 31 lines was recognised as an engine's (rooflog "
                                            "engines lists what is read)")
    path.write_text("one line\n")  # too few to say so while it may grow
    code, said = run(path, timeout_s=0.1)
    assert [change.change for change in said] == ["end"] and "none of 1 line was recognised" in said[-1].values["text"]
    path.write_text("".join(lines))
    code, said = run(path, timeout_s=0.1)
    assert not any("recognised" in str(change.values.get("text")) for change in said)
    path.write_text("")
    assert "recognised" not in run(path, timeout_s=0.1)[1][-1].values["text"]


@pytest.mark.parametrize("content", [None, "", READY])
def test_a_log_that_never_came_is_no_success(tmp_path, content):
    path = tmp_path / "server.log"
    if content is not None:
        path.write_text(content)
    code, said = run(path, timeout_s=0.05)
    assert code == said[-1].values["exit_code"] == (0 if content else 2)
    assert said[-1].values["text"] == ("0.05 s have passed" if content else "no line came within 0.05 s")
