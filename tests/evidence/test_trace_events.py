"""The events of a trace, whatever the pieces it comes in: the same as ijson alone finds, and the same files refused.

Exact: events are compared with those of `ijson.items` over the whole file, for whole, cut and changed traces. Would
catch: an event lost or doubled where pieces meet, a list that begins in a text, a trailing comma or NaN let through.
One difference is known and harmless: numbers beyond 64 bits or beyond a double, which ijson refuses, are let through.
"""

from __future__ import annotations

import io
import random
from collections.abc import Iterator

import ijson
import pytest
import trace_maker

from helpers.evidence.profiles.trace_events import TraceEvents

WHOLE = (
    b'{"traceEvents": []}', b"[]", b"[1]", b'{"traceEvents": [1, 2.5, "a", null, [1], {}]}',
    b'{"x": "\\"traceEvents\\": [", "y": {"traceEvents": [1, 2]}, "traceEvents": [{"ph": "X"}], "z": [3]}',
    b'{"traceEvents":[{"ph":"X"}], "traceEvents":[{"ph":"B"}]}', b'{"traceEvents": [{"a": "\\ud83d\\ude00 \\ud800"}]}',
    b'{"traceEvents" :\n[ {"a": 1}\n ,\t{"a": "\xe2\x82\xac"} ] }', b'{"traceEvents": {"a": [1]}}',
    b'{"traceEvents": [12345678901234, -0, 1e5, 0.1]}',
)
WRONG = (
    b'{"traceEvents": [{"a": NaN}]}', b'{"traceEvents": [{"a": 1},]}', b'{"traceEvents": [,{"a": 1}]}',
    b'{"traceEvents": [{"a": 1} {"a": 2}]}', b'{"traceEvents": [{"a": 01}]}', b'{"traceEvents": [{"a": 1}]} x',
    b'{"traceEvents": [{"a": "\x01"}]}', b'{"traceEvents": [12, 3', b'{"traceEvents": [{"a": 1}', b"[1, 2",
    b'{"traceEvents": [{"a": "\xff"}]}', b'{"traceEvents": [{"a": 1}, ', b'{"traceEvents": [{"a": 1}]',
)


def expected(data: bytes) -> list[object] | None:
    """Events by ijson alone; None if it refuses the file."""
    try:
        return list(ijson.items(io.BytesIO(data), "item" if data[:1] == b"[" else "traceEvents.item", use_float=True))
    except (ijson.JSONError, UnicodeDecodeError):
        return None


def found(data: bytes, size: int) -> list[object] | None:
    def events() -> Iterator[object]:
        trace = TraceEvents(is_list=data[:1] == b"[")
        for start in range(0, len(data), size):
            yield from trace.take(data[start: start + size])
        yield from trace.close()

    try:
        return list(events())
    except (ijson.JSONError, UnicodeDecodeError):
        return None


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> bytes:
    path = tmp_path_factory.mktemp("trace") / "trace.json"
    trace_maker.write_trace(path, n_steps=2, n_layers=2, n_python=2)
    return path.read_bytes()


@pytest.mark.parametrize("size", [1, 3, 7, 64, 10**6])
def test_whole_and_wrong_files_in_pieces(size, made):
    for data in (*WHOLE, made):
        assert repr(found(data, size)) == repr(expected(data)), data[:80]
        assert expected(data) is not None
    for data in WRONG:
        assert expected(data) is None
        assert found(data, size) is None, data


@pytest.mark.parametrize("size", [5, 500, 10**6])
def test_changed_files_are_the_same_or_refused(size, made):
    rng = random.Random(size)
    n_refused = 0
    for _ in range(120):
        data = bytearray(rng.choice((made, *WHOLE[:4], *WHOLE[7:9])))
        at = rng.randrange(len(data))
        change = rng.randrange(3)
        if change == 0:
            data = data[:at]
        elif change == 1:
            data[at] = rng.choice(b' ,[]{}":x0\\\n\xff\xc3eN-.')
        else:
            data[at:at] = rng.choice((b",", b"]", b"[", b"{}", b" ", b'"', b"NaN"))
        want = expected(bytes(data)) if data else []
        if data:
            assert repr(found(bytes(data), size)) == repr(want), bytes(data[:120])
        n_refused += want is None
    assert 20 < n_refused < 115


def test_long_elements_are_left_to_the_other_parser(monkeypatch):
    from helpers.evidence.profiles import trace_events

    monkeypatch.setattr(trace_events, "MAX_ELEMENT_CHARS", 100)
    data = b'{"traceEvents": [{"a": 1}, {"long": "' + b"x" * 1000 + b'"}, {"b": 2}], "baseTimeNanoseconds": 1}'
    assert found(data, 50) == expected(data)
