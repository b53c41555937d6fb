"""Where lines come from: files, archives, folders, globs, pipes; odd bytes; and every input that is refused.

Exact. Would catch: a result that depends on the size of a chunk, lines lost at its borders, a truncated archive
read as a short log, a file of a folder skipped without a word, a link followed for ever.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import sys
import threading
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import zstandard
from logs import read, sglang_line, vllm_line

from helpers import ingest
from helpers.ingest import lines as lines_module
from helpers.ingest.scan import scan_file
from helpers.schema import LogFormatError

LINES = [sglang_line(second, n=second + 1, tok=64 * second) for second in range(40)]
TEXT = ("\n".join(LINES) + "\n").encode()


@pytest.fixture
def plain(tmp_path):
    return read(tmp_path, *LINES)


def same_samples(log, plain):
    pd.testing.assert_frame_equal(log.samples.drop(columns="file"), plain.samples.drop(columns="file"))


@pytest.mark.parametrize("members", [1, 3])
def test_gzip_of_one_or_several_members(tmp_path, plain, members):
    path = tmp_path / "a.log.gz"
    cuts = np.linspace(0, len(TEXT), members + 1).astype(int)
    path.write_bytes(b"".join(gzip.compress(TEXT[a:b]) for a, b in zip(cuts, cuts[1:], strict=False)))
    log = ingest.read_log(path)
    same_samples(log, plain)
    assert log.sources[0].n_bytes == path.stat().st_size


@pytest.mark.parametrize("frames", [1, 3])
def test_zstd_of_one_or_several_frames(tmp_path, plain, frames):
    path = tmp_path / "a.log.zst"
    cuts = np.linspace(0, len(TEXT), frames + 1).astype(int)
    packer = zstandard.ZstdCompressor()
    path.write_bytes(b"".join(packer.compress(TEXT[a:b]) for a, b in zip(cuts, cuts[1:], strict=False)))
    same_samples(ingest.read_log(path), plain)


def test_packing_is_recognised_by_content_not_by_name(tmp_path, plain):
    (tmp_path / "packed.log").write_bytes(gzip.compress(TEXT))
    same_samples(ingest.read_log(tmp_path / "packed.log"), plain)
    (tmp_path / "plain.gz").write_bytes(TEXT)
    same_samples(ingest.read_log(tmp_path / "plain.gz"), plain)


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.ZstdCompressor().compress])
@pytest.mark.parametrize("left", [0.5, 0.98])
def test_truncated_archive_is_refused(tmp_path, pack, left):
    packed = pack(TEXT)
    path = tmp_path / "cut.log.gz"
    path.write_bytes(packed[: int(len(packed) * left)])
    with pytest.raises(LogFormatError, match="the (gzip|zstd) data is (truncated|damaged)") as caught:
        ingest.read_log(path)
    assert "\n" not in str(caught.value)


def test_standard_input(plain, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(TEXT)))
    log = ingest.read_log("-")
    same_samples(log, plain)
    assert set(log.samples["file"]) == {"-"}


def test_named_pipe(tmp_path, plain):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(TEXT,))  # opening a pipe waits for the other end
    writer.start()
    same_samples(ingest.read_log(pipe), plain)
    writer.join()


@pytest.mark.parametrize("chunk_bytes", [8, 100, 137, 1024, 4096])
def test_result_does_not_depend_on_the_chunk(tmp_path, chunk_bytes):
    path = tmp_path / "a.log"
    text = TEXT + "kein Statistikzeile äöü █\n".encode() * 5 + (LINES[0] + "\r\n").encode() + b"\0\0" + TEXT[:-30]
    path.write_bytes(text)
    whole, pieces = scan_file(str(path)), scan_file(str(path), chunk_bytes=chunk_bytes)
    assert sum(len(frame) for frame in pieces.samples) == sum(len(frame) for frame in whole.samples) == 80
    assert dict(pieces.lines) == dict(whole.lines)
    assert +pieces.oddities == +whole.oddities
    assert pieces.malformed == whole.malformed
    assert (pieces.n_lines, pieces.digest()) == (whole.n_lines, whole.digest())


def test_source_names_hash_and_size(tmp_path):
    log = read(tmp_path, *LINES)
    assert log.sources == (ingest.Source(str(tmp_path / "server.log"), hashlib.sha256(TEXT).hexdigest(), len(TEXT)),)


@pytest.mark.parametrize(("name", "text", "oddities"), [
    ("crlf", TEXT.replace(b"\n", b"\r\n"), {"crlf": 40}),
    ("nul in front, as after copytruncate", b"\0" * 500 + TEXT, {"nul_bytes": 500}),
    ("nul inside", TEXT.replace(b"Decode", b"Dec\0ode", 3), {"nul_bytes": 3}),
    ("colours", TEXT.replace(b"[2026", b"\x1b[36m(A pid=1)\x1b[0m [2026"), {"ansi": 40}),
    ("colours without escape", TEXT.replace(b"[2026", b"[1;36m(A pid=1)[0;0m [2026"), {"ansi": 40}),
    ("latin-1", b"Ger\xe4t bereit \xff\n" + TEXT, {"invalid_utf8": 2}),
    ("byte order mark", b"\xef\xbb\xbf" + TEXT, {}),
    ("utf-16", TEXT.decode().encode("utf-16"), {"utf16": 1}),
    ("a line of 1 MB", b"x" * 1_000_000 + b"\n" + TEXT, {"long_lines": 1}),
    ("lines of 0.1 MB, and one byte more", b"x" * 99_999 + b"\n" + b"x" * 100_000 + b"\n" + TEXT, {"long_lines": 1}),
    ("a record behind 1 MB", b"x" * 1_000_000 + TEXT, {"long_lines": 1}),
    ("last line without line feed", TEXT[:-1], {"truncated_last_line": 1}),
])
def test_odd_bytes_are_counted_and_read_through(tmp_path, plain, name, text, oddities):
    path = tmp_path / "odd.log"
    path.write_bytes(text)
    log = ingest.read_log(path)
    assert log.samples["used_tok"].tolist() == plain.samples["used_tok"].tolist()
    assert log.accounting.oddities == oddities
    assert sum(log.accounting.lines.values()) == log.accounting.lines_total


def test_line_above_the_limit_is_cut_and_the_next_ones_are_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(lines_module, "MAX_LINE_BYTES", 10_000)
    path = tmp_path / "a.log"
    path.write_bytes(TEXT + b"y" * 100_000 + b"\n" + TEXT)
    scan = scan_file(str(path), chunk_bytes=1000)
    assert scan.n_lines == 81
    assert sum(len(frame) for frame in scan.samples) == 80
    assert scan.oddities["cut_lines"] == 1


@pytest.mark.parametrize(("end", "is_read"), [
    ("#queue-req: 0", True), ("gen throughput (token/s): 123.45", False), ("gen throughput (token/s): 123.4", False),
    ("cuda graph: True", False),
])
def test_half_last_line(tmp_path, end, is_read):
    path = tmp_path / "a.log"
    half = sglang_line()
    path.write_text(sglang_line() + "\n" + half[: half.index(end) + len(end)])
    log = ingest.read_log(path)
    assert len(log.samples) == 1 + is_read
    assert log.accounting.lines["malformed"] == 1 - is_read
    assert log.accounting.oddities == {"truncated_last_line": 1}


def test_last_value_that_may_be_cut_is_not_believed(tmp_path):
    """Old builds end with the rate: without a line feed, 123.4 may have been 123.45."""
    path = tmp_path / "a.log"
    old = "Decode batch. #running-req: 8, #token: 640, token usage: 0.25, gen throughput (token/s): 123.45"
    path.write_text(f"{old}\n{old[:-1]}")
    log = ingest.read_log(path)
    assert log.samples["decode_tok_per_s"].tolist() == [123.45]
    assert log.accounting.malformed[0].reason == "the last line has no line feed and ends within a value"


@pytest.mark.parametrize(("name", "content", "message"), [
    ("missing.log", None, "no such file"), ("empty.log", b"", "the file is empty"),
    ("image.log", b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 9, "a PNG image"),
    ("table.parquet", b"PAR1" + bytes(range(256)) * 9, "a Parquet file"),
    ("a.zip", b"PK\x03\x04" + bytes(range(256)) * 9, "a zip archive"),
    ("noise.log", bytes(range(256)) * 40, "binary data"),
    ("story.txt", b"Once upon a time\n" * 9, "first unread lines: Once upon a time"),
    ("args.log", b"[2026-01-02 03:04:05] server_args=ServerArgs(model_path='x', tp_size=8)\n", "server events args x1"),
    ("other.log", b"hello\n[engine] 12 streams, 834.5 tok/s\n", r"first unread lines: \[engine\] 12 streams, 834.5"),
    ("half.log", b"Decode batch, #running-req: 1, #tok\n", "1 malformed, the first in line 1"),
    ("note.log", b"SpecDecoding metrics: Mean acceptance length: 2.00, Accepted: 2 tokens, Drafted: 4 tokens, "
                 b"Per-position acceptance rate: 0.500, 0.500\n", "found none in 1 lines"),
    ("table.csv", b"running_req,decode_tok_per_s\n1,2.5\n", "rooflog fit"),
])
def test_refused_in_one_clear_line(tmp_path, name, content, message):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(LogFormatError, match=message) as caught:
        ingest.read_log(path)
    assert str(path) in str(caught.value)
    assert "expected" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("source", "message"), [
    ([], "no input"), ("nowhere/*.log", "no match"),
])
def test_refused_before_reading(source, message):
    with pytest.raises(LogFormatError, match=message):
        ingest.read_log(source)


@pytest.fixture
def folder(tmp_path):
    """Two logs in a tree, and everything that lies around beside logs."""
    root = tmp_path / "runs"
    (root / "deep" / "er").mkdir(parents=True)
    (root / "b.log").write_bytes(TEXT)
    (root / "deep" / "er" / "a.txt.gz").write_bytes(gzip.compress(TEXT.replace(b"2026-02-03", b"2026-02-01")))
    (root / "deep" / "notes.txt").write_text("nothing of interest\n")
    (root / "result.json").write_text("{}")
    (root / ".hidden.log").write_bytes(TEXT)
    (root / "empty.log").write_bytes(b"")
    (root / "deep" / "loop").symlink_to(root)
    (root / "again.log").symlink_to(root / "b.log")
    return root


def test_folder_reads_logs_and_lists_what_it_skipped(folder):
    log = ingest.read_log(folder)
    names = [str(Path(source.path).relative_to(folder)) for source in log.sources]
    assert names == ["deep/er/a.txt.gz", "again.log"]  # in the order of their stamps
    notes = "\n".join(log.accounting.notes)
    for name, reason in {
        "result.json": "no scrapes", ".hidden.log": "hidden", "empty.log": "empty",
        "b.log": "the same file as", "notes.txt": "no statistic line",
    }.items():
        assert any(f"{name}:" in line and reason in line for line in notes.splitlines()), name
    assert len(log.accounting.notes) == 5  # the link back to the top was not followed
    assert log.samples["server_life"].unique().tolist() == [0, 1]


def test_glob(folder):
    log = ingest.read_log(str(folder / "**" / "*.txt*"))
    assert [Path(source.path).name for source in log.sources] == ["a.txt.gz"]


def test_folder_without_logs_is_refused(tmp_path):
    (tmp_path / "data.csv").write_text("a,b\n")
    with pytest.raises(LogFormatError, match="found none .1 files skipped"):
        ingest.read_log(tmp_path)


def test_folder_with_logs_without_statistics_is_refused(tmp_path):
    (tmp_path / "a.log").write_text("hello\n")
    with pytest.raises(LogFormatError, match="no statistic line among 1 lines"):
        ingest.read_log(tmp_path)


def test_several_files_in_the_order_given(tmp_path):
    paths = [tmp_path / name for name in ("b.log", "a.log")]
    paths[0].write_text(sglang_line(30) + "\n")
    paths[1].write_text(sglang_line(10) + "\n" + sglang_line(20) + "\n")
    log = ingest.read_log(paths)
    assert log.samples["file"].tolist() == [str(paths[0]), str(paths[1]), str(paths[1])]
    assert log.samples["t_s"].tolist() == [20.0, 0.0, 10.0]  # one clock for the whole input
    assert log.samples["line_no"].tolist() == [1, 1, 2]
    assert log.samples["server_life"].tolist() == [0, 1, 1]
    assert log.accounting.lines_total == 3
    assert list(log.accounting.to_frame()["lines_total"]) == [1, 2, 3]
    assert log.accounting.per_file[str(paths[1])]["statistic"] == 2


def test_rotated_parts_are_one_life(tmp_path):
    (tmp_path / "server.log.1").write_text(sglang_line(10) + "\n")
    (tmp_path / "server.log.2.gz").write_bytes(gzip.compress((sglang_line(5) + "\n").encode()))
    (tmp_path / "server.log").write_text(sglang_line(20) + "\n")
    log = ingest.read_log(tmp_path)
    assert log.samples["t_s"].tolist() == [0.0, 5.0, 15.0]
    assert log.samples["server_life"].tolist() == [0, 0, 0]


def test_one_of_several_named_files_without_statistics_is_noted(tmp_path):
    (tmp_path / "a.log").write_text(sglang_line() + "\n")
    (tmp_path / "b.log").write_text("hello\n")
    log = ingest.read_log([tmp_path / "a.log", tmp_path / "b.log"])
    assert "b.log: no statistic line" in log.accounting.notes[0]


def test_logs_of_two_engines_are_noted(tmp_path):
    (tmp_path / "a.log").write_text(sglang_line() + "\n" + sglang_line(1) + "\n")
    (tmp_path / "b.log").write_text(vllm_line() + "\n")
    log = ingest.read_log([tmp_path / "a.log", tmp_path / "b.log"])
    assert log.engine == "sglang"
    assert any("more than one engine" in note for note in log.accounting.notes)


def test_progress_is_told_in_bytes(tmp_path, monkeypatch):
    paths = [tmp_path / "a.log", tmp_path / "b.log"]
    for path in paths:
        path.write_bytes(TEXT)
    told: list[tuple[int, int]] = []
    ingest.read_log(paths, progress=lambda done, total: told.append((done, total)))
    assert told[-1] == (2 * len(TEXT), 2 * len(TEXT))
    assert told == sorted(told)


def test_file_cut_within_the_chunk_that_is_read_keeps_every_line_that_is_left(tmp_path, monkeypatch):
    path = tmp_path / "a.log"
    path.write_bytes(TEXT * 50)
    read = lines_module.StoredBytes.read_aside
    left = b""

    def cut_and_read(self, size, room):
        nonlocal left
        if self.n_bytes and not left:  # the second chunk
            os.truncate(path, self.n_bytes + 300)
            left = path.read_bytes()
        return read(self, size, room)

    monkeypatch.setattr(lines_module.StoredBytes, "read_aside", cut_and_read)
    scan = scan_file(str(path), chunk_bytes=4096)
    assert left and not left.endswith(b"\n")
    assert scan.n_lines == left.count(b"\n") + 1 == sum(scan.lines.values())
    assert scan.oddities["truncated_last_line"] == 1


def test_file_is_closed_however_reading_ends(tmp_path, monkeypatch):
    path = tmp_path / "a.log"
    path.write_bytes(TEXT * 50)
    closed = []
    close = lines_module.StoredBytes.close
    monkeypatch.setattr(lines_module.StoredBytes, "close", lambda self: (closed.append(True), close(self)))
    chunks = lines_module.FileReader(str(path), chunk_bytes=4096).chunks()
    next(chunks)
    assert closed == []
    chunks.close()
    assert closed == [True]
