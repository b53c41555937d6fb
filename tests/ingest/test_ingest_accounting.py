"""Every line of any input is exactly one of five classes, whatever was done to it.

Invariants over mutated logs (hypothesis). Would catch: a line counted twice or not at all, an exception of pandas
or polars instead of ours, a row whose numbers are not those of an undamaged line.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import hypothesis.strategies as st
from hypothesis import HealthCheck, given, settings
from logs import read, sglang_line, vllm_line

from helpers import ingest
from helpers.ingest.accounting import CLASSES
from helpers.schema import EVENTS, SAMPLES, LogFormatError, check

LINES = [
    sglang_line(1), sglang_line(2, n=3), vllm_line(3), vllm_line(4, n=2),
    "[2026-02-03 04:05:06 TP0] Prefill batch, #new-seq: 1, #new-token: 9, #cached-token: 0, token usage: 0.00, "
    "#running-req: 0, #queue-req: 0, ",
    "(APIServer pid=7) INFO 02-03 04:05:04 [metrics.py:1] SpecDecoding metrics: Mean acceptance length: 2.00, Accepted "
    "throughput: 1.00 tokens/s, Drafted throughput: 2.00 tokens/s, Accepted: 10 tokens, Drafted: 20 tokens, "
    "Per-position acceptance rate: 0.600, 0.400, Avg Draft acceptance rate: 50.0%",
    "Engine 000: Iteration(7): 1 context requests, 2 context tokens, 3 generation requests, 3 generation tokens, "
    "iteration elapsed time: 1.25 ms",
    "[2026-02-03 04:05:06] server_args=ServerArgs(model_path='m', tp_size=2, x={'a': [1, 2]})",
    "(APIServer pid=1) INFO 02-03 04:00:00 [core.py:1] Initializing a V1 LLM engine (v0.1) with config: model='m', a=b",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.94 "
    "GiB.", "INFO:     Application startup complete.",
    "[2026-02-03 04:05:06] INFO:     127.0.0.1:1 - \"POST /v1 HTTP/1.1\" 200 OK", "something else", "",
    "[2026-02-03 04:05:06 TP0] Retract requests. #retracted_reqs: 2", "\x1b[36mcoloured\x1b[0m", "[0;36mmaimed[0m",
]
FRAGMENTS = st.one_of(
    st.sampled_from(["\0", "\r", "\r\n", "\n", "\x1b[1m", "[0m", ", ", ": ", "nan", "inf", "-", "1e999", "\"", "{",
        "}", "é", "█",
                     "\ufffd", "Decode batch, ", "Avg prompt "
                                                 "throughput: ", "#running-req: ", "99999999999999999999", "[", "]"]),
    st.text(max_size=5),
)


@st.composite
def mutated_logs(draw):
    """A log of whole lines, some of them cut, joined, doubled or sprinkled with fragments."""
    lines = draw(st.lists(st.sampled_from(LINES), min_size=1, max_size=8))
    text = "\n".join([sglang_line(), *lines]) + "\n" * draw(st.integers(0, 1))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(text)))
        drop = draw(st.integers(0, 12))
        text = text[:at] + draw(FRAGMENTS) + text[at + drop:]
    return text.encode("utf-8", errors="surrogatepass")


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(mutated_logs())
def test_lines_add_up_and_only_our_errors_escape(text):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "server.log"
        path.write_bytes(text)
        try:
            log = ingest.read_log(path)
        except LogFormatError as error:
            assert "\n" not in str(error)
            return
    accounting = log.accounting
    n_lines = text.count(b"\n") + (not text.endswith(b"\n"))
    assert accounting.lines_total == n_lines
    assert set(accounting.lines) == set(CLASSES)
    assert min(accounting.lines.values()) >= 0
    assert sum(accounting.lines.values()) == n_lines
    assert sum(accounting.by_kind.values()) == len(log.samples)
    assert accounting.lines["malformed"] == len(accounting.malformed)
    assert sum(accounting.known.values()) <= accounting.lines["other_known"]
    check(log.samples, SAMPLES)
    check(log.events, EVENTS)
    lines_with_rows = log.samples["line_no"].nunique()
    assert lines_with_rows <= accounting.lines["statistic"] + accounting.lines["malformed"]
    assert log.samples["line_no"].between(1, n_lines).all()
    assert (log.samples[["running_req", "queue_req", "used_tok", "decode_tok_per_s"]].fillna(0) >= 0).all(axis=None)
    for extra in log.samples["extra"].dropna():
        assert isinstance(json.loads(extra), dict)
    json.dumps(accounting.as_dict(), allow_nan=False)
    assert accounting.to_frame().loc["all", "lines_total"] == n_lines


def test_doubling_a_log_doubles_every_count(tmp_path):
    once = read(tmp_path, *LINES[:7], name="once.log").accounting
    twice = read(tmp_path, *LINES[:7], *LINES[:7], name="twice.log").accounting
    assert {name: 2 * count for name, count in once.lines.items()} == dict(twice.lines)
    assert {name: 2 * count for name, count in once.by_kind.items()} == dict(twice.by_kind)


def test_first_malformed_lines_are_kept_and_all_are_counted(tmp_path):
    log = read(tmp_path, sglang_line(), *["Decode batch, #oops"] * 50)
    assert log.accounting.lines["malformed"] == 50
    assert [line.line_no for line in log.accounting.malformed] == list(range(2, 22))


def test_classes_of_a_small_log(tmp_path):
    log = read(tmp_path, *LINES)
    assert log.accounting.lines == {"statistic": 7, "event": 5, "other_known": 1, "other": 4, "malformed": 0}
    assert log.accounting.known == {"access line": 1}
    assert log.accounting.oddities == {"ansi": 1}


def test_a_line_with_two_broken_records_is_one_malformed_line(tmp_path):
    log = read(tmp_path, sglang_line(), "Decode batch, #oops" + "Decode batch, #again")
    assert log.accounting.lines["malformed"] == 1
    assert [line.line_no for line in log.accounting.malformed] == [2]
