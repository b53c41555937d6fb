"""What is taken from the cache equals what reading gives, and nothing that can happen to the cache is a failure.

Exact: frames with their types, counts with their order, notes, facts. Would catch: an entry of another file, path or
reader taken, a damaged one trusted, a log that is not read because a folder is full, the user's own folder touched.
"""

from __future__ import annotations

import errno
import gzip
import json
import os
from pathlib import Path

import pandas as pd
import pytest
from logs import sglang_line, vllm_line

from helpers import ingest
from helpers.ingest import cache, lines, scan
from helpers.ingest import log as log_module
from helpers.schema import LogFormatError

LOADS = [
    json.dumps({"timestamp": 1_795_960_000 + n, "loads": [{
        "dp_rank": 0, "num_running_reqs": 4, "num_waiting_reqs": 0, "max_total_num_tokens": 1000,
        "decode_moments": [10 * n, 40 * n, 1e5 * n, 160 * n, 4e5 * n, 40 * n],
    }]}) for n in range(1, 30)
]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    """An empty cache folder of the test's own, for files that are read in any time."""
    monkeypatch.delenv("ROOFLOG_NO_CACHE", raising=False)
    monkeypatch.setenv("ROOFLOG_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "LEAST_S", 0)
    monkeypatch.setattr(cache, "FAST_BYTES_PER_S", 1e99)
    return tmp_path / "cache"


@pytest.fixture
def path(tmp_path) -> Path:
    return write(tmp_path / "server.log")


def write(path: Path, n: int = 200) -> Path:
    start = "[2026-02-03 04:00:00 TP0] server_args=ServerArgs(model_path='m', tp_size=2, context_length=4096)\n"
    text = "\n".join(sglang_line(k % 60, k % 9, k) for k in range(n)) + "\nDecode batch, #run\n" + sglang_line() + "\n"
    path.write_text(start + 'INFO:     1.2.3.4:5 - "GET / HTTP/1.1" 200 OK\n' + text)
    return path


def entries(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.parquet")) if folder.is_dir() else []


def assert_same(one: ingest.Log, other: ingest.Log) -> None:
    for name in ("samples", "events", "moments"):
        pd.testing.assert_frame_equal(getattr(one, name), getattr(other, name), check_exact=True)
    for name in ("facts", "engine", "engine_version", "sources", "source_kinds"):
        assert getattr(one, name) == getattr(other, name), name
    assert json.dumps(one.accounting.as_dict()) == json.dumps(other.accounting.as_dict())


def forbid_reading(monkeypatch) -> None:
    def read(*args: object) -> None:
        raise AssertionError("it was read again")

    monkeypatch.setattr(log_module, "scan_file", read)
    monkeypatch.setattr(log_module, "find_export", read)


@pytest.mark.parametrize("kind", ["log", "packed", "export", "vllm"])
def test_hit_equals_a_fresh_reading(kind, tmp_path, path, folder, monkeypatch):
    if kind == "packed":
        packed = tmp_path / "server.log.gz"
        packed.write_bytes(gzip.compress(path.read_bytes()))
        path = packed
    elif kind == "export":
        path = tmp_path / "loads.jsonl"
        path.write_text("\n".join(LOADS) + "\n")
    elif kind == "vllm":
        path.write_text("\n".join(vllm_line(k % 60, k % 9) for k in range(100)) + "\n")
    fresh = ingest.read_log(path, cache=False)
    assert entries(folder) == []
    assert_same(fresh, ingest.read_log(path))
    assert len(entries(folder)) == 1
    forbid_reading(monkeypatch)
    told: list[tuple[int, int]] = []
    assert_same(fresh, ingest.read_log(path, progress=lambda done, total: told.append((done, total))))
    assert told[-1] == (path.stat().st_size,) * 2


def test_all_real_logs_and_variants(shared, monkeypatch):
    """Every second real file, to save time; all were compared when this was written."""
    paths = [*sorted((shared / "logs").rglob("server.log")), *sorted((shared / "logs" / "own").rglob("*.gz")),
             *sorted((shared / "logs").rglob("*.jsonl")), *sorted((shared / "logs" / "magik6k").glob("*.log"))][::2]
    n_read = 0
    for path in [shared / "log-line-variants.txt", *paths]:
        try:
            fresh = ingest.read_log(path, cache=False)
        except LogFormatError as error:
            with pytest.raises(LogFormatError) as again:
                ingest.read_log(path)
            assert str(again.value) == str(error)
            continue
        ingest.read_log(path)
        with monkeypatch.context() as patch:
            forbid_reading(patch)
            assert_same(fresh, ingest.read_log(path))
        n_read += 1
    assert n_read > 8


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "swap"])
def test_damaged_entry_is_read_again(damage, path, folder, tmp_path):
    fresh = ingest.read_log(path)
    entry = entries(folder)[0]
    data = bytearray(entry.read_bytes())
    if damage == "flip":
        data[len(data) // 2] ^= 1
    elif damage == "swap":  # another file's entry under this one's name
        ingest.read_log(write(tmp_path / "other.log", 50))
        data = bytearray(next(each for each in entries(folder) if each != entry).read_bytes())
    entry.write_bytes({"cut": data[:-100], "empty": b""}.get(damage, data))
    assert_same(fresh, ingest.read_log(path))
    again = entries(folder)
    assert len([each for each in again if each.name.startswith(f"{path.stat().st_size}-")]) == 1


def test_changed_bytes_path_or_reader_are_read(path, folder, tmp_path, monkeypatch):
    ingest.read_log(path)
    text = path.read_text()
    path.write_text(text.replace("#token: 150,", "#token: 151,"))  # of the same size
    assert 151 in ingest.read_log(path).samples["used_tok"].tolist()
    other = tmp_path / "other.log"
    other.write_text(path.read_text())
    assert set(ingest.read_log(other).samples["file"]) == {str(other)}
    assert len(entries(folder)) == 3
    monkeypatch.setattr(cache, "reader_version", lambda: "another")
    with monkeypatch.context() as patch:
        forbid_reading(patch)
        with pytest.raises(AssertionError, match="read again"):
            ingest.read_log(path)


def test_reader_version_follows_the_source(tmp_path, monkeypatch):
    cache.reader_version.cache_clear()
    before = cache.reader_version()
    cache.reader_version.cache_clear()
    source = tmp_path / "ingest" / "cache.py"
    source.parent.mkdir()
    source.write_text("# one line more")
    monkeypatch.setattr(cache, "__file__", str(source))
    assert cache.reader_version() != before
    cache.reader_version.cache_clear()


def test_off_by_flag_by_environment_and_for_what_is_read_fast(path, folder, monkeypatch):
    ingest.read_log(path, cache=False)
    monkeypatch.setenv("ROOFLOG_NO_CACHE", "1")
    ingest.read_log(path)
    monkeypatch.setenv("ROOFLOG_NO_CACHE", "0")
    monkeypatch.setattr(cache, "LEAST_S", 1e9)
    ingest.read_log(path)
    monkeypatch.setattr(cache, "LEAST_S", 0)
    monkeypatch.setattr(cache, "FAST_BYTES_PER_S", 1e-9)
    ingest.read_log(path)
    assert not folder.exists()


def test_folder_is_that_of_the_user(path, tmp_path, monkeypatch):
    monkeypatch.delenv("ROOFLOG_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    ingest.read_log(path)
    assert len(entries(tmp_path / "xdg" / "rooflog" / "ingest")) == 1
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    ingest.read_log(path)
    (entry,) = entries(tmp_path / "home" / ".cache" / "rooflog" / "ingest")
    assert entry.stat().st_mode & 0o777 == 0o600
    assert entry.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("trouble", ["no folder", "full disk", "full while writing", "no metadata"])
def test_trouble_with_the_cache_is_none_of_the_readers(trouble, path, folder, monkeypatch):
    fresh = ingest.read_log(path, cache=False)

    def fail(*args: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    if trouble == "no folder":
        folder.write_text("a file stands where the folder should be")
    elif trouble == "full disk":
        monkeypatch.setattr(cache.tempfile, "mkstemp", fail)
    elif trouble == "full while writing":
        monkeypatch.setattr(cache.os, "replace", fail)
    else:
        monkeypatch.setattr(cache.os, "utime", fail)
    assert_same(fresh, ingest.read_log(path))
    assert_same(fresh, ingest.read_log(path))
    if trouble == "full while writing":
        assert list(folder.iterdir()) == []  # nothing half-written is left


def test_oldest_entries_go_first(tmp_path, folder, monkeypatch):
    paths = [write(tmp_path / f"{n}.log", 100 + n) for n in range(4)]
    for age, path in enumerate(paths[:3]):
        ingest.read_log(path)
        newest = max(entries(folder), key=lambda entry: entry.stat().st_mtime_ns)
        os.utime(newest, (1e9 + age, 1e9 + age))
    ingest.read_log(paths[0])  # used again: now the second is the oldest
    (folder / ".unfinished-x").write_text("left by a process that was killed")
    os.utime(folder / ".unfinished-x", (1e9, 1e9))
    size = max(entry.stat().st_size for entry in entries(folder))
    monkeypatch.setattr(cache, "MAX_CACHE_BYTES", 5 * size)
    ingest.read_log(paths[3])
    assert len(entries(folder)) == 4  # there is room for five
    monkeypatch.setattr(cache, "MAX_CACHE_BYTES", int(4.2 * size))
    ingest.read_log(write(tmp_path / "4.log", 90))
    kept = {int(entry.name.partition("-")[0]) for entry in entries(folder)}
    assert len(kept) == 4
    assert paths[0].stat().st_size in kept and paths[1].stat().st_size not in kept
    assert not (folder / ".unfinished-x").exists()


def test_file_that_grows_is_not_kept(path, folder, monkeypatch):
    clean = lines.FileReader._clean

    def grow(*args, **names):
        with path.open("a") as file:
            file.write(sglang_line() + "\n")
        return clean(*args, **names)

    monkeypatch.setattr(lines.FileReader, "_clean", grow)
    ingest.read_log(path)
    assert entries(folder) == []


def test_pipes_are_just_read(folder, tmp_path, monkeypatch):
    import io
    import sys

    class Standard:
        buffer = io.BytesIO((sglang_line() + "\n").encode() * 30)

    monkeypatch.setattr(sys, "stdin", Standard)
    monkeypatch.chdir(tmp_path)
    Path("-").write_text((sglang_line(1) + "\n") * 30)  # a file of that name, and of the same size
    assert len(ingest.read_log("-").samples) == 30
    assert entries(folder) == []
    assert scan.FileScan().path == ""
