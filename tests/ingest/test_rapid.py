"""Lines that are like earlier ones are read by compiled code; every row must be the one that reading text gives.

Exact: frames, counts and notes are compared bit by bit, with the fast way always taken against never taken, on the
recorded variants, all real logs, and lines made to break it. Would catch: a digit lost, a value rounded another way, a
stamp of 30 February, a rank or label of another line, a line that differs in one byte read as if it did not.
"""

from __future__ import annotations

import json
import random
import re
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest
from logs import sglang_line, vllm_line

from helpers import ingest
from helpers.ingest import habits, lines, native, rapid, scan
from helpers.ingest.chunk_lines import ACCESS, GONE, MARKS, STATISTIC, ChunkLines
from helpers.ingest.compiled import COUNT, NUMBER, OTHER, Field, Form, Head, Plan, Tables
from helpers.ingest.threads import n_threads
from helpers.schema import LogFormatError


@pytest.fixture(autouse=True)
def _no_cache(monkeypatch):
    monkeypatch.setenv("ROOFLOG_NO_CACHE", "1")


@pytest.fixture
def n_rapid(monkeypatch) -> list[int]:
    """Number of records that the fast way has read."""
    if native.library() is None:
        pytest.skip("no compiled reader here: everything is read as text")
    found = [0]
    read_block = rapid.Reader.read

    def count(reader, chunk, rows):
        block, left = read_block(reader, chunk, rows)
        found[0] += 0 if block is None else len(block)
        return block, left

    monkeypatch.setattr(rapid.Reader, "read", count)
    return found


def always(monkeypatch) -> None:
    for name, value in (("_MIN_TO_LEARN", 1), ("_MIN_TO_READ", 1), ("_MAX_FAILURES", 10**9)):
        monkeypatch.setattr(habits, name, value)


def never(monkeypatch) -> None:
    monkeypatch.setattr(habits, "_MAX_FAILURES", 0)


def read(path: Path) -> ingest.Log | str:
    try:
        return ingest.read_log(path)
    except LogFormatError as error:
        return str(error)


def assert_same(one: ingest.Log | str, other: ingest.Log | str) -> None:
    if isinstance(one, str) or isinstance(other, str):
        assert one == other
        return
    for name in ("samples", "events", "moments"):
        pd.testing.assert_frame_equal(getattr(one, name), getattr(other, name), check_exact=True)
    for name in ("accounting", "facts", "engine", "engine_version", "sources", "source_kinds"):
        assert getattr(one, name) == getattr(other, name), name


def both_ways(path: Path, monkeypatch) -> ingest.Log | str:
    """Read with the fast way always and never taken; return what both gave."""
    always(monkeypatch)
    fast = read(path)
    never(monkeypatch)
    assert_same(fast, read(path))
    return fast


@pytest.mark.parametrize(("most_digits", "decimals"), [
    (17, range(0, 11)), (5, (2,)), (5, (1, 2)), (5, (7,)), (5, (8,)), (9, (0,)),
])
def test_numbers_are_those_python_reads(most_digits, decimals, n_rapid):
    rng = random.Random(most_digits)
    texts = []
    for _ in range(3000):
        text = "0" * rng.choice((0, 0, 0, 2)) + str(rng.randrange(10 ** rng.randint(1, most_digits)))
        part = "".join(rng.choice("0123456789") for _ in range(rng.choice(list(decimals))))
        texts.append(rng.choice((text + ("." + part if part else ""),) * 30 + ("", "x", "-3", ".5", text + ".")))
    ends = [rng.choice((", ", "%", "!", " ", ":")) for _ in texts]
    lines = [f"[04:05:06] {text}{end}{text}{end}{text}{end}\n" for text, end in zip(texts, ends, strict=True)]
    offsets = np.cumsum([0, *(len(line) for line in lines)])
    head = Head(0, None, None, Form(3, 1904, None, 1, None, 0), b"[04:05:06] ")
    plans = [
        Plan((Field(b"", OTHER), Field(end.encode(), NUMBER, "number"), *more), tail, ((b"<", 0), (b">", None)))
        for end in (", ", "%", "!", " ", ":")
        for more, tail in (((Field(end.encode(), COUNT, "whole"),), f"{end}\n".encode()),
                           ((Field(end.encode(), OTHER),), f"{end}\n".encode()))
    ]
    found = Tables(native.library(), [head], [plans]).read("".join(lines).encode(), offsets, np.arange(len(lines)))
    n_read = 0
    for index, (text, plan) in enumerate(zip(texts, found.plans.tolist(), strict=True)):
        match = re.fullmatch(r"[0-9]+(?:\.[0-9]+)?", text)
        digits, _, part = text.partition(".")
        assert (plan >= 0) == bool(match and len(digits + part) <= 15 and len(part) <= 7), text
        if plan < 0:
            continue
        assert found.columns["number"][n_read] == float(text)  # the same double, not a near one
        begin, end = found.extra_ends[n_read: n_read + 2]
        assert json.loads(found.extra[begin + 1: end - 1]) == float(text)
        if plan % 2 == 0:
            assert found.columns["whole"][n_read] == int(digits) and not part
        n_read += 1
    assert n_read == len(found.extra_ends) - 1
    assert n_read > 500 or decimals == (8,)


def test_recorded_variants_are_the_same_both_ways(shared, tmp_path, monkeypatch, n_rapid):
    path = shared / "log-line-variants.txt"
    both_ways(path, monkeypatch)
    often = tmp_path / "often.log"  # each variant often enough to be learnt, its numbers changed
    rng = random.Random(3)
    split = re.compile(r"^{|std(?:out|err) P")  # a runtime that splits lines is read as text
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if 0 < len(line) < 2000]
    lines = [line for line in lines if not split.search(line)]
    change = re.compile(r"(?<=: )[0-9]+")
    often.write_text("\n".join(
        change.sub(lambda match: str(rng.randrange(10 ** len(match[0]))), rng.choice(lines)) for _ in range(3000)
    ) + "\n", encoding="utf-8")
    both_ways(often, monkeypatch)
    assert n_rapid[0] > 100  # of each family only the latest layouts are kept, and here are a hundred


def test_real_logs_are_the_same_both_ways(shared, monkeypatch, n_rapid):
    paths = [path for path in sorted((shared / "logs").rglob("*.log")) if path.stat().st_size > 100_000]
    assert len(paths) > 8
    for path in paths:
        both_ways(path, monkeypatch)
    assert n_rapid[0] > 3000


STAMPS = {
    "ranks": "[{t:%Y-%m-%d %H:%M:%S} DP{r} TP{r}] ",
    "fractions": "[{t:%Y-%m-%d %H:%M:%S},{ms:03d} TP{r}] ",
    "undated": "[{t:%H:%M:%S} TP{r}] ",
    "wrapped": "{t:%Y-%m-%dT%H:%M:%S}.123456789Z stderr F [{t:%Y-%m-%d %H:%M:%S} TP{r}] ",
    "twice": "[{t:%Y-%m-%d %H:%M:%S}] INFO server.py:1: [{t:%Y-%m-%d %H:%M:%S} TP{r}] ",
}


@pytest.mark.parametrize("name", STAMPS)
def test_prefixes_of_many_ranks_over_new_year(name, tmp_path, monkeypatch, n_rapid):
    start, rng, lines = datetime(2026, 12, 31, 23, 50), random.Random(1), []
    for number in range(3000):
        prefix = STAMPS[name].format(t=start + timedelta(seconds=number // 3), r=number % 12, ms=number % 1000)
        body = sglang_line(0, rng.randrange(300), rng.randrange(10 ** rng.randint(1, 9)), rng.random() * 5000)
        lines.append(prefix + body.partition("] ")[2])
        if number % 5 == 0:
            lines.append('INFO:     127.0.0.1:1 - "POST /v1/completions HTTP/1.1" 200 OK')
    path = tmp_path / "server.log"
    path.write_text("\n".join(lines) + "\n")
    log = both_ways(path, monkeypatch)
    assert len(log.samples) == 3000
    assert 999 <= log.samples["t_s"].max() < 1000  # 3000 lines, three a second
    assert (n_rapid[0] > 2900) == (name not in ("wrapped", "twice"))  # two stamps that both change are left to text


@pytest.mark.parametrize("n_plain", [0, 200])
def test_wrapper_that_buffers_is_told_of(n_plain, tmp_path, monkeypatch, n_rapid):
    """All lines leave the buffer in one second, so only the records' own stamps change; lines around have none."""
    start, lines = datetime(2026, 2, 3, 4, 0), []
    for number in range(n_plain * 2 + 600):
        body = sglang_line(0, number % 9, number).partition("] ")[2]
        own = f"[{start + timedelta(seconds=number):%Y-%m-%d %H:%M:%S} TP0] "
        is_wrapped = n_plain <= number < n_plain + 600
        lines.append("2026-02-03T04:15:00+0000 host python[7]: " * is_wrapped + own + body)
    path = tmp_path / "server.log"
    path.write_text("\n".join(lines) + "\n")
    log = both_ways(path, monkeypatch)
    first_s, last_s = 15 * 60 - n_plain, 15 * 60 - n_plain - 599
    assert f"{last_s:+d} to {first_s:+d} s from them" in " ".join(log.accounting.notes)
    assert n_rapid[0] == 2 * n_plain


@pytest.mark.parametrize("odd", ["cut", "folded", "folded, and whole without its second row"])
def test_lines_that_are_cut_or_folded_are_read_as_text_though_like_earlier_ones(odd, tmp_path, monkeypatch, n_rapid):
    """What a cut line, or the first row of a folded one, looks like is known from others by the second chunk."""
    whole = [sglang_line(number % 60, number % 9, number) for number in range(1000)]
    if "whole" in odd:  # as builds before the graph was named
        whole = [line.replace("cuda graph: True, ", "") for line in whole]
    cut = "123.45, #queue" if odd == "cut" else "123.45,"
    for number in range(0, 1000, 10):
        begin = whole[number].partition(cut)[0] + cut
        # torn by another process's line, which is whole; or folded by a terminal
        whole[number] = begin + whole[number] if odd == "cut" else begin + "\n" + " #queue-req: 3"
    text = "\n".join(whole) + "\n" + (sglang_line().partition("123.45")[0] + "123.4") * (odd == "cut")
    path = tmp_path / "server.log"
    path.write_text(text)
    monkeypatch.setenv("ROOFLOG_THREADS", "1")
    monkeypatch.setattr(scan.scan_file, "__defaults__", (None, 50_000))
    log = both_ways(path, monkeypatch)
    assert n_rapid[0] > 800
    if odd == "cut":
        assert log.accounting.lines["malformed"] == 101 and len(log.samples) == 1000
    else:
        assert len(log.samples) == 1000
        assert log.samples["queue_req"].eq(3).sum() == 100


ODD_LINES = (
    sglang_line().replace("2026-02-03", "2026-02-30"), sglang_line().replace("04:05:00", "24:05:00"),
    sglang_line().replace("04:05:00", "04:60:00"), sglang_line().replace("04:05:00", "04:05:60"),
    sglang_line().replace("2026-02-03", "2026-13-03"), sglang_line().replace("2026-02-03", "2026-00-03"),
    sglang_line().replace("2026-02-03", "2026-02-00"),
    sglang_line(tok=12).replace("#token: 12", "#token: -12"), sglang_line().replace("123.45", "nan"),
    sglang_line().replace("123.45", "1.5e3"), sglang_line().replace("#token: 640", "#token: 99999999999999999999"),
    sglang_line().replace("#token: 640", "#token: 6.5"), sglang_line().replace("0.25", "0.123456789"),
    sglang_line() + " ", sglang_line() + "\r", sglang_line()[:-1], sglang_line()[:60], "x" + sglang_line(),
    sglang_line().replace("TP0", "TP1"), sglang_line().replace("cuda graph: True", "cuda graph: Trueish"),
    sglang_line() + sglang_line(7), "\x1b[36m" + sglang_line() + "\x1b[0m", sglang_line().replace("Decode", "D\0ecode"),
    sglang_line().replace("] Decode", "] SpecDecoding metrics: Decode"), sglang_line().replace(", #queue", ",\n#queue"),
    vllm_line(), vllm_line().replace("pid=7", "pid=8"), vllm_line().replace("12.5%", "007.5%"), "é " + sglang_line(),
    sglang_line().replace("token usage", "token u[0msage"), "[36m(W pid=3)[0m " + sglang_line(), vllm_line() + "[0;0m",
    "torch.OutOfMemoryError: CUDA out of memory. " + sglang_line(),
)


def test_lines_that_differ_in_little_are_read_as_text(tmp_path, monkeypatch, n_rapid):
    path = tmp_path / "server.log"
    path.write_text("\n".join(
        ODD_LINES[number // 3 % len(ODD_LINES)] if number % 3 == 0 else
        sglang_line(number % 60, number % 50, number * 17) for number in range(1800)
    ) + "\n", encoding="utf-8", newline="")
    log = both_ways(path, monkeypatch)
    assert log.accounting.lines["malformed"] > 100
    assert n_rapid[0] > 1000


def test_neither_threads_nor_chunks_change_a_row(tmp_path, monkeypatch, n_rapid):
    path = tmp_path / "server.log"
    lines = [sglang_line(number % 60, number % 50, number) for number in range(3000)]
    path.write_text("\n".join([*lines, *(vllm_line(number % 60, number % 9) for number in range(3000))]))
    always(monkeypatch)
    logs = []
    for threads, chunk_bytes in (("1", 2**23), ("2", 2**23), ("1", 50_000), ("2", 50_000)):
        monkeypatch.setattr(scan, "_MAX_HELD", 100 if threads == "2" else 10**9)
        monkeypatch.setenv("ROOFLOG_THREADS", threads)
        assert n_threads() == int(threads)
        monkeypatch.setattr(scan.scan_file, "__defaults__", (None, chunk_bytes))
        logs.append(read(path))
    for log in logs[1:]:
        assert_same(logs[0], log)
    assert n_rapid[0] > 4 * 5000


def test_number_of_threads_is_checked(monkeypatch):
    monkeypatch.setenv("ROOFLOG_THREADS", "two")
    with pytest.raises(LogFormatError, match="ROOFLOG_THREADS: expected a number of threads, found 'two'"):
        n_threads()


NAMES = [name for names in MARKS.literals.values() for name in names]


@pytest.mark.parametrize("is_compiled", [True, False])
def test_every_literal_marks_its_line_wherever_it_stands(is_compiled, monkeypatch, n_rapid):
    """Every place within a step, first and last in the text, cut by a line feed, in part of a line before or after."""
    monkeypatch.setenv("ROOFLOG_NATIVE", "1" if is_compiled else "0")
    for name in NAMES:
        lines = ["x" * n + name + "y" * m for n in range(5) for m in range(3)]
        lines = [name, *lines, name[:2] + "\n" + name[2:], name[:-1], name[1:], "", name]
        text = "\n".join(lines).encode()
        ends = [match.end() for match in re.finditer(b"\n", text)]
        marks = MARKS.of_lines(text, np.array([0, *ends, len(text)]))
        for line, mark in zip(text.decode().split("\n"), marks.tolist(), strict=True):
            expected = {bit for bit, names in MARKS.literals.items() if any(other in line for other in names)}
            expected |= {bit for bit, names in MARKS.beginnings.items() if line.startswith(names)}
            assert mark == sum(expected), (name, line)


def test_texts_without_line_feeds_are_marked_each_by_itself(n_rapid):
    """As unwrapped lines are: a literal that two of them share is in neither."""
    texts = pl.Series(["Decode ba", "tch", "Decode batch", "", "Decode ba", "", "tch", None or "x"])
    assert (MARKS.of_texts(texts) & 1).tolist() == [0, 0, 1, 0, 0, 0, 0, 0]


@pytest.mark.parametrize("seed", range(4))
def test_marks_of_pieces_of_literals_are_those_of_text(seed, monkeypatch, n_rapid):
    """Literals cut anywhere, their halves in neighbouring texts, one begun within another."""
    rng = random.Random(seed)
    whole = "".join(rng.choice(NAMES)[rng.choice((0, 0, 1, 3)):] + rng.choice(("", " ", "#", "x")) for _ in range(4000))
    cuts = sorted(rng.sample(range(len(whole)), 4000))
    texts = pl.Series([whole[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(whole)], strict=True)])
    found = MARKS.of_texts(texts)
    monkeypatch.setenv("ROOFLOG_NATIVE", "0")
    assert found.tolist() == MARKS.of_texts(texts).tolist()
    assert (found > 0).sum() > 500


def test_nothing_is_read_in_front_of_a_text_or_behind_it(n_rapid):
    whole = np.frombuffer(b"Decode batch", np.uint8)
    for begin, end in ((1, 12), (0, 11), (3, 9)):
        assert MARKS.of_lines(whole[begin:end], np.array([0, end - begin])).tolist() == [0]
    assert native.find_lines(native.library(), np.frombuffer(b"a\r\n", np.uint8)[:2])[2] == 0


def test_literal_over_two_texts_is_in_neither_though_another_begins_in_the_second(n_rapid):
    one, two = MARKS.of_texts(pl.Series(["prompt ", "eval time ="])).tolist()
    assert (one, two) == (0, MARKS.of_texts(pl.Series(["eval time ="]))[0]) and two != 0
    assert MARKS.of_texts(pl.Series(["prompt eval time ="]))[0] & STATISTIC


def test_nothing_is_read_from_a_buffer_that_was_given_back(tmp_path, monkeypatch, n_rapid):
    path = tmp_path / "server.log"
    kinds = (sglang_line, vllm_line)
    path.write_text("\n".join(kinds[n // 400 % 2](n % 60, n % 50) + "\nother {}" for n in range(4000)) + "\n")
    always(monkeypatch)
    plain = read(path)
    n_given = []

    class Spoiling(list):
        def append(self, array):
            array[:] = 55
            n_given.append(array.dtype.itemsize)
            super().append(array)

    read_aside, clean = lines.StoredBytes.read_aside, lines.FileReader._clean

    def read_and_spoil(source, size, room):
        source._free = source._free if isinstance(source._free, Spoiling) else Spoiling()
        return read_aside(source, size, room)

    def clean_and_spoil(reader, data, **others):
        reader._rooms = reader._rooms if isinstance(reader._rooms, Spoiling) else Spoiling()
        return clean(reader, data, **others)

    monkeypatch.setattr(lines.StoredBytes, "read_aside", read_and_spoil)
    monkeypatch.setattr(lines.FileReader, "_clean", clean_and_spoil)
    for threads in ("1", "2"):
        monkeypatch.setenv("ROOFLOG_THREADS", threads)
        monkeypatch.setattr(scan.scan_file, "__defaults__", (None, 50_000))
        assert_same(plain, read(path))
    assert n_given.count(1) > 20 and n_given.count(8) > 20


@pytest.mark.parametrize("seed", range(3))
def test_lines_and_odd_bytes_are_those_python_finds(seed, monkeypatch, n_rapid):
    rng = random.Random(seed)
    usual = b"abc DEF 123, \n"
    for size in [*range(200), *[300] * 200]:
        odd = rng.sample([b"\r", b"\0", b"\x1b", b"\x7f", b"\x80", b"\xff", b"\t", b"\x1f", b"~"], rng.randint(0, 2))
        text = b"".join(rng.choice([usual[i: i + 1] for i in range(len(usual))]) for _ in range(size))
        for code in (*odd, rng.choice("\u0085\u00a0\u2029\u202e\u202f\u2065\u2069\u206a").encode()):
            at = rng.randint(0, len(text))
            text = text[:at] + code + text[at:]
        offsets, *told = native.find_lines(native.library(), text)
        monkeypatch.setenv("ROOFLOG_NATIVE", "0")
        expected, *expected_told = lines._find_lines(np.frombuffer(text, np.uint8))
        monkeypatch.setenv("ROOFLOG_NATIVE", "1")
        begins = [0, *(match.end() for match in re.finditer(b"[^\n]*\n|[^\n]+", text))]
        assert offsets.tolist() == expected.tolist() == begins
        assert told == expected_told, text
        assert told[2] == max(np.diff(begins), default=0)


def test_lines_that_went_into_another_are_no_longer_counted():
    text = np.frombuffer(b"Decode batch\n HTTP/2\"\nno\n", np.uint8)
    offsets = np.array([0, 13, 22, 25])
    found = ChunkLines(lines.Chunk(7, text, offsets, False, 0, 13), MARKS.of_lines(text, offsets))
    assert [found.count(STATISTIC), found.count(ACCESS, GONE), found.rows(ACCESS, GONE).tolist()] == [1, 1, [1]]
    found.mark([8], gone=True)
    assert [found.count(STATISTIC), found.count(ACCESS, GONE), found.rows(ACCESS, GONE).tolist()] == [1, 0, []]
    found.mark([9])
    assert [found.count(STATISTIC), found.rows(STATISTIC).tolist()] == [2, [0, 2]]


@pytest.mark.parametrize("native_is", ["1", "0"])
def test_kinds_of_lines_of_which_there_are_none_are_not_named(native_is, tmp_path, monkeypatch):
    monkeypatch.setenv("ROOFLOG_NATIVE", native_is)
    path = tmp_path / "a.log"
    path.write_text("one\ntwo\nthree\n")
    assert scan.scan_file(str(path)).known == {}
    assert "nearest" not in read(path)
    path.write_text('INFO:     1.2.3.4:5 - "GET / HTTP/1.1" 200 OK\ntwo\n')
    assert scan.scan_file(str(path)).known == {"access line": 1}
