"""Every statistic line of the recorded line variants becomes the row a reader sees.

Exact for counts, flags, ranks and stamps. Two readers that share no code must agree on all lines; about thirty
lines were also read by eye (HAND_READ). Would catch: a key mapped to the wrong column, a percent left at 0..100,
a prefix taken from the wrapper, a record lost on a line that holds two, the clipped line half read.
"""

from __future__ import annotations

import pandas as pd
import plain_parser
import pytest

from helpers import ingest
from helpers.schema import SAMPLES, check

CLIPPED_LINE = 135
MEASURES = [
    "running_req", "queue_req", "used_tok", "kv_used_frac", "new_tok", "cached_tok", "decode_tok_per_s",
    "prefill_tok_per_s", "accept_rate_frac", "graph", "retracted_req", "transfer_req", "prealloc_req", "iteration",
]

# line number -> what stands there, read by eye
HAND_READ = {
    13: {"kind": "decode", "running_req": 12, "used_tok": 3456, "decode_tok_per_s": 812.33, "queue_req": 0},
    15: {"kind": "prefill", "running_req": 9, "queue_req": 57, "new_tok": 2172, "cached_tok": 330},
    17: {"kind": "prefill", "rank": "GPU0", "new_tok": 5890, "running_req": 12, "queue_req": 4},
    20: {"kind": "decode", "running_req": 1010, "used_tok": 55006, "queue_req": 12279},
    24: {"rank": "TP0", "running_req": 1, "used_tok": 3902, "decode_tok_per_s": 333.97},
    28: {"kind": "prefill", "running_req": 7, "new_tok": 8185, "queue_req": 11},
    40: {"rank": "DP7 TP7", "new_tok": 7},
    47: {"accept_len": 2.54, "decode_tok_per_s": 39.33, "queue_req": 68, "running_req": 32},
    52: {"kind": "prefill", "queue_req": 3, "running_req": 0, "new_tok": 4096},
    62: {"kind": "prefill", "running_req": None, "prefill_tok_per_s": 21034.11, "rank": "DP0 TP0 EP0"},
    64: {"iteration": 51341, "running_req": 317, "used_tok": 1094261, "graph": True},
    68: {"rank": "DP31 TP31 EP31", "graph": None, "transfer_req": 0, "prealloc_req": 0},
    75: {"accept_len": 2.83, "accept_rate_frac": 0.71, "transfer_req": 2, "retracted_req": 0, "graph": True},
    91: {"used_tok": 287872, "kv_used_frac": 0.64, "running_req": 80},
    100: {"rank": "PP0 TP0", "running_req": 68, "graph": False, "decode_tok_per_s": 1164.97},
    133: {"rank": "TP0", "used_tok": 2642688, "kv_used_frac": 1.0, "queue_req": 3},
    171: {"decode_tok_per_s": 2533.1, "running_req": 64, "graph": True},
    169: {"kind": "prefill", "cached_tok": 10048, "prefill_tok_per_s": 178.18, "graph": False},
    194: {"accept_len": 3.1, "accept_rate_frac": 0.7, "iteration": 40120, "used_tok": 913408, "running_req": 48},
    197: {"accept_len": 2.0, "decode_tok_per_s": 800.0, "used_tok": 8000},
    202: {"running_req": 1, "used_tok": 64, "decode_tok_per_s": 84.39, "queue_req": 0},
    204: {"running_req": 14, "queue_req": None, "decode_tok_per_s": 272.37},
    246: {"kind": "stats", "running_req": 1, "queue_req": 0, "kv_used_frac": 0.006, "decode_tok_per_s": 61.1},
    254: {"running_req": 16, "kv_used_frac": 0.921, "decode_tok_per_s": 16.7},
    257: {"kind": "spec", "accept_rate_frac": 0.731, "accept_len": 1271 / (1660 / 4)},
    287: {"kind": "iteration", "iteration": 1024, "running_req": 63, "kv_used_frac": 0.312, "rank": "DP0"},
    290: {"rank": "DP1", "running_req": 31, "queue_req": 108, "kv_used_frac": 0.986, "decode_tok_per_s": 809.3},
    294: {"rank": None, "running_req": 1, "decode_tok_per_s": 11.3},
}


@pytest.fixture(scope="module")
def log(shared):
    return ingest.read_log(shared / "log-line-variants.txt")


@pytest.fixture(scope="module")
def expected(shared):
    """What the plain reader says: rows, and the numbers of malformed lines."""
    text = (shared / "log-line-variants.txt").read_bytes().decode()
    rows, malformed = [], []
    for line_no, line in enumerate(text.split("\n"), 1):
        records = plain_parser.read_line(line) if not line.startswith("#") else []
        if records is None:
            malformed.append(line_no)
        rows += [{"line_no": line_no, **record} for record in records or []]
    return pd.DataFrame(rows), malformed


def test_every_statistic_line_is_a_row_and_the_clipped_one_is_reported(log, expected):
    rows, malformed = expected
    assert malformed == [CLIPPED_LINE]  # the plain reader agrees that it alone cannot be read
    assert log.samples["line_no"].tolist() == rows["line_no"].tolist()
    assert [(line.line_no, line.reason) for line in log.accounting.malformed] == [
        (CLIPPED_LINE, "'#queue-req' is no 'key: value'")
    ]
    assert len(log.samples) == 187


def test_values_agree_with_the_plain_reader(log, expected):
    rows, _ = expected
    for name in [*MEASURES, "kind", "rank"]:
        found = log.samples[name].astype("object").where(log.samples[name].notna(), None)
        wanted = rows[name].astype("object").where(rows[name].notna(), None)
        different = [
            (line, got, want) for line, got, want in zip(rows["line_no"], found, wanted, strict=True)
            if got != want and not (got is not None and want is not None and got == pytest.approx(want, rel=1e-12))
        ]
        assert different == [], name


def test_accept_len_agrees_with_the_plain_reader(log, expected):
    rows, _ = expected
    is_vllm_spec = rows["kind"] == "spec"
    is_printed = rows["accept_len"].notna() & ~is_vllm_spec
    assert log.samples["accept_len"][is_printed].tolist() == rows["accept_len"][is_printed].tolist()
    v1 = is_vllm_spec & rows["accept_len"].notna()
    # 3 or 15 position rates of 3 decimals: their sum is off by at most half a digit each
    assert log.samples["accept_len"][v1].tolist() == pytest.approx(rows["accept_len"][v1].tolist(), abs=0.008)


def test_stamps_agree_with_the_plain_reader(log, expected):
    rows, _ = expected
    own = rows["ts"].notna()
    wanted = pd.to_datetime(rows["ts"][own], format="ISO8601").astype("datetime64[us]")
    found = log.samples["ts"][own]
    is_full = wanted.dt.year > 1904  # the others are carried over midnight and New Year by the lines before
    assert found[is_full].tolist() == wanted[is_full].tolist()
    assert (found[~is_full].dt.time == wanted[~is_full].dt.time).all()


@pytest.mark.parametrize("line_no", HAND_READ)
def test_value_read_by_eye(log, line_no):
    row = log.samples[log.samples["line_no"] == line_no].iloc[0]
    for name, value in HAND_READ[line_no].items():
        if value is None:
            assert pd.isna(row[name]), name
        else:
            assert row[name] == (pytest.approx(value, rel=1e-12) if isinstance(value, float) else value), name


def test_two_records_on_one_line_are_two_rows(log):
    glued = log.samples[log.samples["line_no"] == 266]
    assert glued["decode_tok_per_s"].tolist() == [239.2, 240.0]
    assert glued["kv_used_frac"].tolist() == pytest.approx([0.916, 0.919], rel=1e-12)
    assert glued["ts"].dt.strftime("%H:%M:%S").tolist() == ["06:41:09", "06:41:19"]


def test_accounting_adds_up(log, shared):
    n_lines = (shared / "log-line-variants.txt").read_bytes().count(b"\n")
    assert log.accounting.lines_total == n_lines
    assert sum(log.accounting.lines.values()) == n_lines
    assert sum(log.accounting.by_kind.values()) == len(log.samples)
    assert log.accounting.lines["malformed"] == 1


def test_samples_pass_the_schema(log):
    check(log.samples, SAMPLES)
