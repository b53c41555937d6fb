"""Input that was made to hurt, or that only looks like it: bombs, endless lines, absurd numbers, loops, control codes.

Exact on counts and values; bounds on memory and time are wide. Would catch: memory that follows the input, an
exception of another kind than ours, a message of several lines, a byte of a log that a terminal or browser obeys.
"""

from __future__ import annotations

import ast
import fcntl
import gzip
import html
import io
import json
import os
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

import nbformat
import pandas as pd
import pytest
import zstandard
from logs import SGLANG, read, sglang_line, vllm_line

from helpers import ingest, report, unpack
from helpers import run as runner
from helpers.cli import main
from helpers.ingest import lines as lines_module
from helpers.ingest.scan import MAX_RANKS, scan_file
from helpers.ingest.sources import find_inputs
from helpers.report.page import scripts
from helpers.schema import LogFormatError, RooflogError, printable

LINE = sglang_line()
TEXT = "".join(sglang_line(second) + "\n" for second in range(40)).encode()
SCRIPT = "<script>alert(document.cookie)</script>"
CONTROL = [chr(code) for code in (*range(9), *range(11, 32), *range(127, 160), 0x202E, 0x2066)]


def zst(data, level=19):
    return zstandard.ZstdCompressor(level=level).compress(data)


class TestArchives:
    @pytest.mark.parametrize("pack", [gzip.compress, zst])
    def test_bomb_is_refused_early_in_one_line(self, tmp_path, monkeypatch, pack):
        monkeypatch.setattr(unpack, "RATIO_MATTERS_BYTES", 2**20)
        path = tmp_path / "bomb.log.gz"
        path.write_bytes(pack(TEXT + b"x\n" * 20_000_000))
        with pytest.raises(LogFormatError, match=r"found \d+ bytes unpacked from the first \d+ .*BYTES") as caught:
            scan_file(str(path), chunk_bytes=2**16)
        assert int(str(caught.value).split("found ")[1].split()[0]) < 30 * 2**20
        assert "\n" not in str(caught.value)

    def test_limit_can_be_raised_and_lowered(self, tmp_path, monkeypatch):
        monkeypatch.setattr(unpack, "RATIO_MATTERS_BYTES", 2**10)
        path = tmp_path / "a.log.gz"
        path.write_bytes(gzip.compress(TEXT + b"x\n" * 1_000_000))
        with pytest.raises(LogFormatError):
            ingest.read_log(path)
        monkeypatch.setenv(unpack.LIMIT_VARIABLE, "3000000")
        assert len(ingest.read_log(path).samples) == 40
        monkeypatch.setenv(unpack.LIMIT_VARIABLE, "30000")
        with pytest.raises(LogFormatError, match="limits: 30000 bytes"):
            ingest.read_log(path)
        monkeypatch.setenv(unpack.LIMIT_VARIABLE, "1e9")
        with pytest.raises(LogFormatError, match="ROOFLOG_MAX_UNPACKED_BYTES: expected a number of bytes, found '1e9'"):
            ingest.read_log(path)

    def test_plain_files_and_usual_archives_have_no_limit(self, tmp_path, monkeypatch):
        monkeypatch.setattr(unpack, "RATIO_MATTERS_BYTES", 100)
        monkeypatch.setattr(unpack, "MAX_UNPACKED_BYTES", len(TEXT))
        for name, data in {"a.log": TEXT * 10, "b.log.gz": gzip.compress(TEXT), "c.log.zst": zst(TEXT)}.items():
            (tmp_path / name).write_bytes(data)
            assert len(ingest.read_log(tmp_path / name).samples) in (40, 400)

    def test_zstd_never_unpacks_much_at_once(self):
        """Four bytes of zstd can stand for 128 KiB: a decoder that gets 128 KiB may return 4 GiB."""
        class Stored:
            n_bytes = 0
            data = io.BytesIO(zst(b"\0" * 300 * 2**20, 3))

            def read(self, size):
                return self.data.read(size)

        source = Stored()
        pieces = [len(piece) for piece in unpack._unzstd(source.read(4), source, "x")]
        assert sum(pieces) == 300 * 2**20
        assert max(pieces) <= 40 * 2**20

    def test_many_small_zstd_frames(self, tmp_path):
        path = tmp_path / "a.log.zst"
        path.write_bytes(b"".join(zst(TEXT[start: start + 100], 1) for start in range(0, len(TEXT), 100)))
        assert len(ingest.read_log(path).samples) == 40


def peak_of(code: str) -> int:
    """Return by how many bytes a fresh process grew while it ran the code."""
    script = "import resource\nfrom helpers import ingest\nfrom helpers.ingest.scan import scan_file\n" \
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n" + code + \
        "\nprint(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return int(done.stdout.splitlines()[-1]) * (1 if sys.platform == "darwin" else 1024)


@pytest.mark.slow
def test_a_line_of_one_gigabyte_takes_bounded_memory(tmp_path):
    path = tmp_path / "long.log"
    with path.open("wb") as file:
        file.write(TEXT)
        file.seek(2**30, os.SEEK_CUR)  # a hole in the file: NUL bytes, no disk
        file.write(b"\n" + TEXT)
    grown = peak_of(f"scan = scan_file({str(path)!r})\nassert scan.n_lines == 81, scan.n_lines\n"
                    "assert sum(len(frame) for frame in scan.samples) == 80\nassert scan.oddities['cut_lines'] == 1")
    assert grown < 600 * 2**20


@pytest.mark.parametrize("filling", [
    b"x", b"Decode batch, #", b"9", b"\x1b[", b"CUDA out of memory. ", b'{"log":"', b"([{'", b"1: 2, ", b"[1, ",
])
def test_a_line_of_three_megabytes_of_anything(tmp_path, filling):
    path = tmp_path / "long.log"
    path.write_bytes(TEXT + filling * (3_000_000 // len(filling)) + b"\n" + TEXT)
    log = ingest.read_log(path)
    assert len(log.samples) == 80
    assert sum(log.accounting.lines.values()) == log.accounting.lines_total == 81
    assert log.accounting.oddities["long_lines"] == 1


@pytest.mark.parametrize("number", [
    "nan", "inf", "-inf", "-1", "1e999", "-1e999", "9" * 30, "9223372036854775808", "0x10", "1_0", "NaN", "", "1.5",
    "٣",
])
def test_absurd_counts_are_malformed(tmp_path, number):
    log = read(tmp_path, LINE, LINE.replace("#token: 640", f"#token: {number}"))
    assert log.samples["used_tok"].tolist() == [640]
    assert log.accounting.lines == {"statistic": 1, "event": 0, "other_known": 0, "other": 0, "malformed": 1}


@pytest.mark.parametrize("number", ["nan", "inf", "-inf", "-1.0", "1e999", "", "1.2.3", "0x1p3"])
def test_absurd_rates_are_malformed(tmp_path, number):
    log = read(tmp_path, LINE, LINE.replace("123.45", number))
    assert log.samples["decode_tok_per_s"].tolist() == [123.45]
    assert log.accounting.lines["malformed"] == 1


def test_absurd_numbers_in_events_and_companions(tmp_path):
    spec = "(APIServer pid=7) INFO 02-03 04:05:06 [metrics.py:101] SpecDecoding metrics: Mean acceptance length: " \
        "nan, Accepted throughput: nan tokens/s, Drafted throughput: 0.00 tokens/s, Accepted: {} tokens, " \
        "Drafted: 4 tokens, Per-position acceptance rate: {}, Avg Draft acceptance rate: nan%"
    log = read(
        tmp_path, vllm_line(), spec.format("nan", "0.5, nan"), spec.format("9" * 400, "1e-320, 0.0"),
        "CUDA out of memory. Tried to allocate 1.2.3 GiB", f"CUDA out of memory. Tried to allocate {'9' * 400} GiB",
        f"KV Cache is allocated. #tokens: {'9' * 5000}, K size: 1..2 GB, V size: 4.00 GB",
        "Capture cuda graph bs [1, 2 3, , 4]", f"(EngineCore_DP{'9' * 30} pid=1) " + vllm_line(5),
    )
    assert len(log.samples) == 4
    assert log.samples["accept_len"].isna().all()
    assert sum(log.accounting.lines.values()) == 8
    json.loads(json.dumps(log.accounting.as_dict(), allow_nan=False))
    for detail in log.events["detail"].dropna():
        json.loads(detail, parse_constant=pytest.fail)


@pytest.mark.parametrize("opened", ["[", "{", "(", "{'a':", "[(", "-", "not ", "9" * 20 + "**"])
def test_deep_dumps_and_json(tmp_path, opened):
    dump = f"[2026-02-03 04:00:00] server_args=ServerArgs(model_path='a', deep={opened * 20_000}"
    log = read(tmp_path, dump, '{"log":' + opened * 20_000, '{"log":"' + "\\u005b" * 5000 + '"}', LINE)
    assert len(log.samples) == 1
    assert log.facts[0]["model"] == "a"


def test_nothing_is_evaluated(tmp_path):
    marker = tmp_path / "evaluated"
    call = f"__import__('pathlib').Path({str(marker)!r}).touch()"
    log = read(tmp_path, f"[2026-02-03 04:00:00] server_args=ServerArgs(model_path={call}, x=[{call}])", LINE)
    assert call in str(log.facts[0]["args"].values())
    assert not marker.exists()


@pytest.mark.parametrize("mark", [b"\xff\xfe", b"\xfe\xff"])
def test_two_stray_bytes_are_no_utf_16(tmp_path, mark):
    path = tmp_path / "a.log"
    path.write_bytes(mark + b"x\n" + TEXT)
    log = ingest.read_log(path)
    assert (len(log.samples), log.accounting.lines_total) == (40, 41)
    assert log.accounting.oddities == {"invalid_utf8": 2}


def test_clock_that_runs_backwards(tmp_path):
    lines = [SGLANG.format(second=50 - second, n=8, tok=640, rate=1.0) for second in range(50)]
    log = read(tmp_path, *lines)
    assert log.samples["t_s"].tolist() == [49.0 - second for second in range(50)]
    hours = (line.replace("2026-02-03 04", f"2026-02-03 {23 - k:02d}") for k, line in enumerate(lines[:20]))
    log = read(tmp_path, *hours)
    assert "jump back 19 times" in " ".join(log.accounting.notes)


def test_truncated_head_of_a_rotated_log(tmp_path):
    for cut in (1, 20, 40, 60, len(LINE) - 3):
        log = read(tmp_path, LINE[cut:], sglang_line(1), sglang_line(2))
        whole = log.samples[log.samples["line_no"] > 1]
        assert whole["used_tok"].tolist() == [640, 640]
        first = log.samples[log.samples["line_no"] == 1]
        assert first["used_tok"].tolist() in ([], [640])
        assert sum(log.accounting.lines.values()) == 3


@pytest.mark.parametrize(("change", "words"), [
    ("grow", "grew from"), ("cut", "shrank from"), ("rewrite", "written to while it was read"), ("nothing", None)])
def test_file_that_changes_while_it_is_read(tmp_path, monkeypatch, change, words):
    path = tmp_path / "a.log"
    path.write_bytes(TEXT * 50)
    os.utime(path, (10**9, 10**9))  # else the next write may fall into the same tick of the clock
    real, calls = lines_module.StoredBytes.read_aside, []

    def read_and_change(self, size, room):
        calls.append(size)
        if len(calls) == 3 and change == "grow":
            with path.open("ab") as file:
                file.write(TEXT)
        elif len(calls) == 3 and change == "cut":
            os.truncate(path, 5000)
        elif len(calls) == 3 and change == "rewrite":
            with path.open("r+b") as file:
                file.write(TEXT)
        return real(self, size, room)

    monkeypatch.setattr(lines_module.StoredBytes, "read_aside", read_and_change)
    scan = scan_file(str(path), chunk_bytes=4096)
    assert sum(scan.lines.values()) == scan.n_lines
    assert len(calls) >= 3 and len(scan.notes) == (words is not None)
    assert words is None or words in scan.notes[0]


def test_line_that_is_written_in_two_halves_while_its_begin_is_read_is_whole(tmp_path, monkeypatch):
    path = tmp_path / "a.log"
    path.write_bytes(TEXT * 50 + TEXT[:100])
    real, is_written = lines_module.StoredBytes.read_aside, []

    def read_and_write(self, size, room):
        got = real(self, size, room)
        if self.n_bytes == path.stat().st_size and not is_written:
            is_written.append(True)
            with path.open("ab") as file:
                file.write(TEXT[100:])
        return got

    monkeypatch.setattr(lines_module.StoredBytes, "read_aside", read_and_write)
    for chunk_bytes in (4096, 2**23):
        path.write_bytes(TEXT * 50 + TEXT[:100])
        is_written.clear()
        scan = scan_file(str(path), chunk_bytes=chunk_bytes)
        assert is_written and scan.n_lines == 51 * 40 == scan.lines["statistic"]
        assert any("grew from" in note for note in scan.notes)


def test_links_in_circles_and_devices(tmp_path):
    root = tmp_path / "logs"
    (root / "a").mkdir(parents=True)
    (root / "a" / "up").symlink_to(root)
    (root / "a" / "self").symlink_to(root / "a" / "self")
    (root / "a" / "b.log").symlink_to(root / "a" / "c.log")
    (root / "a" / "c.log").symlink_to(root / "a" / "b.log")
    (root / "a" / "zero.log").symlink_to("/dev/zero")
    os.mkfifo(root / "a" / "pipe.log")
    (root / "server.log").write_bytes(TEXT)
    found = find_inputs(root)
    assert found.paths == (str(root / "server.log"),)
    notes = "\n".join(found.notes)
    assert all(f"{name}: no regular file" in notes for name in ("self", "b.log", "c.log", "zero.log", "pipe.log"))
    with pytest.raises(LogFormatError, match="found a device"):
        ingest.read_log("/dev/zero")


def test_folder_that_cannot_be_read_is_said(tmp_path, monkeypatch):
    (tmp_path / "server.log").write_bytes(TEXT)
    (tmp_path / "secret").mkdir()
    real = os.scandir

    def scandir(path):
        if str(path).endswith("secret"):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    assert any("secret: cannot be read (Permission denied)" in note for note in find_inputs(tmp_path).notes)


def test_more_ranks_than_any_server_has(tmp_path):
    lines = [LINE.replace("TP0", f"DP{k} TP{k * k}") for k in range(MAX_RANKS + 1)]
    log = read(tmp_path, *lines[:-1])
    assert log.samples["rank"].nunique() == MAX_RANKS and not log.accounting.notes
    log = read(tmp_path, *lines)
    assert len(log.samples) == log.accounting.lines["statistic"] == MAX_RANKS + 1
    assert any(f"{MAX_RANKS + 1} different rank tags" in note for note in log.accounting.notes)


def test_control_codes_reach_no_table_and_no_terminal(tmp_path, capsys):
    evil = "".join(CONTROL) + "\x1b]0;title\x07\x1b[2J\x1b[31m\u202egnp"
    name = "evil\x1b[2J\nname\u202e.log"
    lines = [
        f"[2026-02-03 04:00:00] server_args=ServerArgs(model_path='a\\x1b[2J{evil}', x='\\x9b2J')",
        f"CUDA out of memory. {evil}", "Decode batch, #running-req: 1, #tok" + evil, f"{evil} nothing", LINE,
        *["nothing"] * 1000,
    ]
    log = read(tmp_path, *lines, name=name)
    tables = [*log.events["text"], *log.events["detail"].dropna(), log.facts, log.accounting.malformed[0].text]
    shown = json.dumps(tables, ensure_ascii=False, default=str)
    assert printable(shown) == shown
    assert log.accounting.oddities["control_codes"] == 4
    for words in (["ingest"], ["fit"], ["ingest", "--json"]):
        main([words[0], str(tmp_path / name), *words[1:]])
        printed = "".join(capsys.readouterr())
        assert printable(printed) == printed
    assert main(["ingest", str(tmp_path / "no\x1b[2Jsuch\nfile")]) == 3
    error = capsys.readouterr().err
    assert printable(error) == error and error.count("\n") == 1


@pytest.mark.parametrize("name", [
    "a b.log", "ü — 日本.log", "$(touch x).log", "'\"`;&.log", "-n.log", "{a}[b]*?.log", "%s%n.log",
])
def test_paths_with_odd_characters(tmp_path, name):
    log = read(tmp_path, LINE, name=name)
    assert log.samples["file"].tolist() == [str(tmp_path / name)]
    assert [Path(source.path).name for source in ingest.read_log(tmp_path).sources] == [name]


def test_a_name_that_is_no_text_is_refused_or_skipped(tmp_path):
    bad = os.path.join(os.fsencode(tmp_path), b"\xff.log")
    try:
        Path(os.fsdecode(bad)).write_bytes(TEXT)
    except OSError:
        pytest.skip("this file system takes only text for names")
    (tmp_path / "good.log").write_bytes(TEXT)
    with pytest.raises(LogFormatError, match=r"\\udcff.log: expected a path in UTF-8"):
        ingest.read_log(os.fsdecode(bad))
    assert any("the name is not UTF-8" in note for note in find_inputs(tmp_path).notes)


def test_every_error_is_one_line_that_a_terminal_can_show():
    assert str(RooflogError("a\nb\x1b[2J\udcff")) == "a b\\u001b[2J\\udcff"
    assert str(LogFormatError("plain: äöü █")) == "plain: äöü █"


INJECTIONS = [
    "'''+__import__('os').system('touch OWNED')+'''", '"; import os; os.system("touch OWNED"); "', "a\nimport os\n",
    "\\", "\\\"", "{__import__('os')}", "%%bash\ntouch OWNED", "!touch OWNED", "\u2028import os", "\x00", "\"\"\"", "'",
    "${HOME}",
]


@pytest.mark.parametrize("value", INJECTIONS)
def test_notebook_parameters_stay_text(tmp_path, value):
    """The injected cell is Python that assigns literals and does nothing else."""
    from papermill.parameterize import parameterize_notebook

    cell = nbformat.v4.new_code_cell("log_path: str = ''", metadata={"tags": ["parameters"]})
    notebook = nbformat.v4.new_notebook(cells=[cell], metadata={"kernelspec": runner.KERNELSPEC})
    notebook.metadata["papermill"] = {}
    made = parameterize_notebook(notebook, {"log_path": value, "more_log_paths": [value]})
    tree = ast.parse(made.cells[-1].source if len(made.cells) == 2 else made.cells[1].source)
    found = {}
    for statement in tree.body:
        assert isinstance(statement, ast.Assign), ast.dump(statement)
        found[statement.targets[0].id] = ast.literal_eval(statement.value)
    assert found == {"log_path": value, "more_log_paths": [value]}


@pytest.fixture
def hostile_log(tmp_path):
    """A log that a law can be read from, with a script in every text field."""
    args = f"model_path='{SCRIPT}', served_model_name='{SCRIPT}', tp_size=1"
    lines = [f"[2026-02-03 04:00:00] server_args=ServerArgs({args})"]
    for k in range(60):
        tok, stamp = 700 + 40 * 8 * k, f"2026-02-03 04:{k // 10:02d}:{6 * (k % 10):02d}"
        lines.append(f"[{stamp}] Decode batch, #running-req: 8, #token: {tok}, token usage: 0.25, cuda graph: True, "
                     f"gen throughput (token/s): {53.33 + k % 3 / 100:.2f}, #queue-req: 0, {SCRIPT}: 1")
    lines += [f"CUDA out of memory. {SCRIPT}", f"Decode batch, #running-req: 1, {SCRIPT}", SCRIPT, "[x](javascript:1)"]
    folder = tmp_path / "<img src=x onerror=alert(1)>"
    folder.mkdir()
    path = folder / f"{SCRIPT.replace('/', '_')}.log"
    path.write_text("\n".join(lines) + "\n")
    return path


def active_markup(page: str) -> list[str]:
    """Return what a browser would run that is not the page's own script."""
    from html.parser import HTMLParser

    class Finder(HTMLParser):
        found: list[str] = []
        inside = False

        def handle_starttag(self, tag, attrs):
            self.inside = tag == "script" and dict(attrs).get("type") != "application/json"  # data: not run
            pairs = [(name, value or "") for name, value in attrs]
            bad = [f"{name}={value}" for name, value in pairs if name.startswith("on") or "javascript:" in value]
            self.found = [*self.found, *bad, *([tag] if tag in ("iframe", "object", "embed", "form") else [])]

        def handle_data(self, data):
            own = data in scripts()[0] or data.startswith(("/**", "!function", "\n/**", "/*"))  # the page's, plotly.js
            if self.inside and not own:
                self.found = [*self.found, data[:100]]

        def handle_endtag(self, tag):
            self.inside = False

    finder = Finder()
    finder.feed(page)
    return finder.found


def test_finder_of_active_markup_finds_it():
    assert active_markup(f"<p>{SCRIPT}</p>") == ["alert(document.cookie)"]
    assert active_markup('<img src=x onerror="alert(1)">') == ["onerror=alert(1)"]


@pytest.mark.parametrize("output", [
    nbformat.v4.new_output("stream", text=SCRIPT),
    nbformat.v4.new_output("error", ename=SCRIPT, evalue=SCRIPT, traceback=[SCRIPT]),
    nbformat.v4.new_output("display_data", {"text/html": SCRIPT, "text/plain": SCRIPT}),
    nbformat.v4.new_output("display_data", {"text/html": "<img src=x onerror=alert(1)>", "text/plain": "x"}),
    nbformat.v4.new_output(
        "display_data", {"text/markdown": f"# {SCRIPT} [x](javascript:alert(1)) <img src=x onerror=alert(1)>"}
    ),
    nbformat.v4.new_output("display_data", {"text/html": pd.DataFrame({SCRIPT: [SCRIPT]}).to_html()}),
    nbformat.v4.new_output(
        "display_data", {report.PLOTLY_MIME: {"data": [{"name": f"</script>{SCRIPT}"}], "layout": {}}}
    ),
])
def test_report_runs_nothing_that_an_output_holds(output):
    cells = [nbformat.v4.new_code_cell(SCRIPT, outputs=[output]), nbformat.v4.new_markdown_cell(SCRIPT)]
    notebook = nbformat.v4.new_notebook(cells=cells)
    record = {"status": "failed", "message": SCRIPT, "command": SCRIPT, "parameters": {SCRIPT: SCRIPT}}
    page = report.render(notebook, None, record)
    assert active_markup(page) == []


@pytest.mark.notebook
@pytest.mark.slow
@pytest.mark.parametrize("notebook", ["00", "01"])
def test_run_on_a_log_full_of_scripts(hostile_log, tmp_path, notebook):
    result = runner.run(hostile_log, notebook, out=tmp_path / "out")
    assert result.exit_code in (0, 1, 2), result.message
    page = (result.folder / "report.html").read_text(encoding="utf-8")
    assert active_markup(page) == []
    assert html.escape(SCRIPT) in page  # as text
    executed = nbformat.read(next(result.folder.glob("*.ipynb")), as_version=4)
    for output in (output for cell in executed.cells if cell.cell_type == "code" for output in cell.outputs):
        for mime in ("text/html", "text/markdown"):
            assert SCRIPT not in output.get("data", {}).get(mime, "")


def in_process(script: str, *arguments: str, **options) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, "-c", script, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            text=True, **options)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_process_forked_from_one_that_had_read_a_log_is_told_so_and_does_not_wait(tmp_path):
    path = tmp_path / "a.log"
    path.write_bytes(TEXT)
    script = """
import os, sys
from helpers import ingest
is_forked_first = sys.argv[2] == "first"
if not is_forked_first:
    ingest.read_log(sys.argv[1])
child = os.fork()
if not child:
    try:
        print(len(ingest.read_log(sys.argv[1]).samples), flush=True)
    except ValueError as error:
        print(error, flush=True)
    os._exit(0)
os.waitpid(child, 0)
"""
    for when, said in (("first", "40"), ("later", "this process was forked from one that had read a log")):
        process = in_process(script, str(path), when)
        out, err = process.communicate(timeout=60)
        assert out.startswith(said) and (when == "first" or "spawn" in out), (out, err)


@pytest.mark.skipif(sys.platform == "win32", reason="no such signals")
def test_ctrl_c_ends_the_wait_for_a_pipe(tmp_path):
    script = "import sys; from helpers.cli import main; sys.exit(main(['ingest', sys.argv[1]]))"
    for name in ("-", str(tmp_path / "pipe.log")):
        if name != "-":
            os.mkfifo(name)
        process = in_process(script, name, stdin=subprocess.PIPE)
        pipe = process.stdin.fileno() if name == "-" else os.open(name, os.O_WRONLY)
        os.write(pipe, TEXT)
        wait_until_it_is_read(pipe)
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130  # the pipe is open still
        if name != "-":
            os.close(pipe)
        process.communicate()


def wait_until_it_is_read(pipe: int) -> None:
    """Wait until nothing is left in a pipe: its reader waits for more a moment later."""
    for _ in range(600):
        if not int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder):
            break
        time.sleep(0.05)
    time.sleep(0.3)
