"""The stored bytes of a source: hashed in their order while they are read, in buffers that are used again."""

from __future__ import annotations

import gc
import gzip
import hashlib
import threading
import time
import weakref

import numpy as np
import pytest

from helpers.ingest import native, stored
from helpers.ingest.lines import FileReader
from helpers.ingest.stored import Hashing, StoredBytes

PIECES = [bytes([number]) * (number * 997 % 5000) for number in range(60)]
EXPECTED = hashlib.sha256(b"".join(PIECES)).hexdigest()


@pytest.mark.parametrize("threads", ["1", "2"])
@pytest.mark.parametrize("n_pieces", [0, 1, 8, 9, 60])
def test_hash_is_that_of_all_pieces_in_their_order(monkeypatch, threads, n_pieces):
    monkeypatch.setenv("ROOFLOG_THREADS", threads)
    hashing = Hashing()
    done = [hashing.add(piece) for piece in PIECES[:n_pieces]]
    assert threads == "2" or all(future.done() for future in done)  # no thread of its own
    assert hashing.digest()() == hashlib.sha256(b"".join(PIECES[:n_pieces])).hexdigest()
    hashing.close()
    assert all(future.done() for future in done)


class SlowHash:
    """Hashes when it may, each piece a little later than it is given."""

    def __init__(self):
        self.may_go, self.hash = threading.Event(), hashlib.sha256()

    def update(self, data):
        assert self.may_go.wait(20)
        time.sleep(0.002)
        self.hash.update(data)

    def hexdigest(self):
        return self.hash.hexdigest()


def test_pieces_wait_for_the_hash_but_no_more_than_memory_is_meant_for(monkeypatch):
    monkeypatch.setenv("ROOFLOG_THREADS", "2")
    hashing, done, n_unhashed = Hashing(), [], []
    hashing._hash = slow = SlowHash()
    n_first = stored._MAX_UNHASHED
    assert 3 <= n_first <= 10  # of 8 MiB each
    done = [hashing.add(piece) for piece in PIECES[:n_first]]
    assert not any(future.done() for future in done)  # and none was waited for
    slow.may_go.set()
    for piece in PIECES[n_first:]:
        done.append(hashing.add(piece))
        n_unhashed.append(sum(not future.done() for future in done))
    assert max(n_unhashed) <= n_first
    assert hashing.digest()() == EXPECTED
    hashing.close()


@pytest.mark.parametrize("threads", ["1", "2"])
def test_a_hash_that_fails_is_told_and_not_waited_for(monkeypatch, threads):
    monkeypatch.setenv("ROOFLOG_THREADS", threads)
    hashing = Hashing()
    with pytest.raises(TypeError, match="encoded"):
        for _ in range(20):
            hashing.add("no bytes")
    hashing.close()


@pytest.mark.parametrize("threads", ["1", "2"])
def test_buffer_is_used_again_once_it_is_given_back_and_hashed(tmp_path, monkeypatch, threads):
    monkeypatch.setenv("ROOFLOG_THREADS", threads)
    path = tmp_path / "a.log"
    path.write_bytes(bytes(range(256)) * 400)
    source = StoredBytes(str(path))
    one, give_back = source.read_aside(1000, 4096)
    other, _ = source.read_aside(2000, 4096)
    assert not np.shares_memory(one, other) and (one[:3].tolist(), other[0]) == ([0, 1, 2], 1000 % 256)
    give_back()
    while not source._free:
        time.sleep(0.001)
    third, _ = source.read_aside(4096, 4096)
    assert np.shares_memory(one, third) and third[0] == 3000 % 256
    assert other[0] == 1000 % 256
    while source.read(50_000):
        pass
    assert source.digest()() == hashlib.sha256(path.read_bytes()).hexdigest()
    source.close()


@pytest.mark.parametrize("threads", ["1", "2"])
def test_no_buffer_is_left_when_all_is_hashed(tmp_path, monkeypatch, threads):
    monkeypatch.setenv("ROOFLOG_THREADS", threads)
    path = tmp_path / "a.log"
    path.write_bytes(b"x" * 100_000)
    source = StoredBytes(str(path))
    buffers = []
    gc.disable()  # it would free what still refers to itself
    try:
        for _ in range(20):
            data, give_back = source.read_aside(5000, 5000)
            buffers.append(weakref.ref(data.base))
            give_back()
        del data, give_back
        digest = source.digest()
        source.close()
        assert digest() == hashlib.sha256(path.read_bytes()).hexdigest()
        del digest
        for _ in range(100):  # the thread lets the last one go after it is hashed
            time.sleep(0.01 * any(each() is not None for each in buffers))
        assert [each() is not None for each in buffers] == [False] * 20
    finally:
        gc.enable()


def test_buffers_of_a_closed_source_go_one_by_one_as_they_are_hashed(tmp_path, monkeypatch):
    monkeypatch.setenv("ROOFLOG_THREADS", "2")
    may_go = [threading.Event() for _ in range(4)]
    gates = iter(may_go)

    class GatedHash:
        def __init__(self):
            self.hash = hashlib.sha256()
            self.hexdigest = self.hash.hexdigest

        def update(self, data):
            next(gates).wait(20)
            self.hash.update(data)

    path = tmp_path / "a.log"
    path.write_bytes(b"x" * 20_000)
    source = StoredBytes(str(path))
    source._hashing._hash = GatedHash()
    buffers = []
    for _ in range(4):
        data, give_back = source.read_aside(5000, 5000)
        buffers.append(weakref.ref(data.base))
        give_back()
    del data, give_back
    assert source._free == []  # given back, and not hashed
    digest = source.digest()
    source.close()
    for number, gate in enumerate(may_go):
        assert [each() is not None for each in buffers[number:]] == [True] * (4 - number)
        gate.set()
        for _ in range(100):
            time.sleep(0.01 * (buffers[number]() is not None))
        assert buffers[number]() is None
    assert digest() == hashlib.sha256(path.read_bytes()).hexdigest()


def test_buffers_begin_where_a_large_page_does():
    for size in (1, 5000, 2**21, 2**23):
        buffer = stored._new_buffer(size)
        assert len(buffer) == size and buffer.ctypes.data % 2**21 == 0


@pytest.mark.parametrize("threads", ["1", "2"])
def test_hash_of_a_packed_file_is_that_of_its_stored_bytes(tmp_path, monkeypatch, threads):
    monkeypatch.setenv("ROOFLOG_THREADS", threads)
    path = tmp_path / "a.log.gz"
    path.write_bytes(gzip.compress(b"some text {}\n" * 90_000))
    reader = FileReader(str(path), chunk_bytes=1000)
    assert sum(len(chunk.offsets) - 1 for chunk in reader.chunks()) == 90_000
    assert reader.digest() == hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("native_is", ["1", "0"])
@pytest.mark.parametrize(("content", "n_lines"), [
    (b"one\ntwo\n", 2), (b"one\ntwo", 2), (b"one\n\0\0", 2), (b"\0", 1), (b"one\n\0two\0", 2), (b"\n\n", 2),
    (b"and more text\n\xff", 2),
])
def test_every_line_is_counted_one_of_nul_bytes_too(tmp_path, monkeypatch, native_is, content, n_lines):
    monkeypatch.setenv("ROOFLOG_NATIVE", native_is)
    path = tmp_path / "a.log"
    path.write_bytes(content)
    reader = FileReader(str(path))
    (chunk,) = reader.chunks()
    assert (reader.n_lines, len(chunk.offsets) - 1) == (n_lines, n_lines)
    assert chunk.offsets[-1] == len(chunk.data) == len(content.replace(b"\0", b"").replace(b"\xff", b"fff"))
    assert chunk.ends_open == (not content.endswith(b"\n"))
    assert chunk.longest_bytes == np.diff(chunk.offsets).max()


def test_places_of_lines_go_where_there_is_room_for_them():
    library = native.library()
    if library is None:
        pytest.skip("no compiled reader")
    text = b"ab\n" * 200
    for n_room, is_used in ((10_000, True), (100, False), (0, False)):
        room = np.zeros(n_room, np.int64)
        offsets, *_ = native.find_lines(library, text, room)
        assert offsets.tolist() == list(range(0, 601, 3))
        assert np.shares_memory(offsets, room) == is_used
