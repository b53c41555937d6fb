"""Every statistic line of the recorded line variants becomes the row a reader sees.

Exact for counts, flags, ranks and stamps. All statistic lines of SGLang, vLLM, LMDeploy, TGI, LightLLM, KTransformers
and Ollama are checked against the table line_variants.csv, written field by field from the lines and compared with
them by eye; it knows the lines by their hash. (TensorRT-LLM and llama.cpp have tables of their own in their tests.)
Beside it, two readers that share no code must agree on all lines of SGLang and vLLM. Would catch: a key mapped to
the wrong column, a percent left at 0..100, milliseconds left as such, a prefix taken from the wrapper, a record lost
on a line that holds two, the clipped line half read.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path

import pandas as pd
import plain_parser
import pytest

from helpers import ingest
from helpers.schema import SAMPLES, check

CLIPPED_LINE = 135
ELIDED_LINE = 352
"""Of TensorRT-LLM; its author replaced parts by dots."""

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


TABLE = pd.read_csv(
    Path(__file__).with_name("line_variants.csv"), dtype="str", keep_default_na=False
).astype({"line_no": int, "part": int})
CHECKED = [*MEASURES, "accept_len", "span_s", "out_tok"]
COUNTED_BY_OTHERS = ("trtllm", "llamacpp")
"""Engines whose lines have their tables in test_trtllm.py and test_llamacpp.py."""

# lines of kind aux keep their numbers in extra
EXTRAS = {
    199: {"rank": 0, "#round": 7453, "t": 1790500877.238, "bs": 5, "#rows": 20, "#fwd": 1, "gpu-ms": 117.7,
          "split unavailable": True},
    200: {"#new-token": 25, "#cached-token": 0, "#chunks": 1, "gpu-ms": 568.2, "compute-ms": 440.8, "wait-ms": 127.4},
    256: {"Prefix cache hit rate: GPU (%)": 43.21, "CPU (%)": 0.0},
    321: {"TF/s/GPU": 31.2, "GB/s/GPU": 1520.4},
    322: {"TF/s/device": 31.2, "GB/s/device": 1520.4},
}
# forks and options of SGLang: named in extra, in no column
NAMED = {
    126: {"#cpu token": 402112, "cpu token usage": 0.41},
    133: {"#swa token": 14592, "swa token usage": 0.06},
    169: {"est. prefill TFLOPS/s (per GPU)": 9.9, "fwd occupancy (%)": None},
    171: {"est. decode TFLOPS/s (per GPU)": 3.1, "est. read BW (GB/s per GPU)": 812.44,
          "est. write BW (GB/s per GPU)": 1.02, "fwd occupancy (%)": 91.4},
    189: {"mamba num": 4, "mamba usage": 0.4},
    194: {"cap len": 3.6, "block accept len": 3.2, "#host-receive-req": 0, "fwd+idle occupancy (%)": 93.1},
    197: {"iter latency (ms)": 20.0, "valid draft len": 1.0, "modeled throughput (token/s)": 1000.0, "modeled step": 1},
    202: {"#cache_miss": 1},
    306: {"Deferred (reqs)": 2, "Prefix cache hit rate (%)": 81.8, "External prefix cache hit rate (%)": 100.0},
    423: {"server succeeded": 40, "server waiting": 2, "Prefix cache hit rate (%)": 41.0, "Accepted (tokens)": 812},
    425: {"total_time_s": 0.357867572, "validation_time_s": 0.00196844, "queue_time_s": 4.9382e-05,
          "time_per_token_s": 0.014827082, "inference_time_s": 0.355849981},
    427: {"first_token_cost (ms)": 355.682373046875, "mean_per_token_cost_time (ms)": 0.025033950805664062},
    429: {"prompt_s": 1.22, "tokenize_s": 0.01},
}


@pytest.fixture(scope="module")
def all_engines(shared):
    return ingest.read_log(shared / "log-line-variants.txt")


@pytest.fixture(scope="module")
def log(all_engines):
    """The lines that the plain reader knows: SGLang and vLLM, without the rank rounds of a fork."""
    samples = all_engines.samples
    is_known = samples["engine"].isin(["sglang", "vllm"]) & ~samples["line_no"].isin([199, 200])
    return dataclasses.replace(all_engines, samples=samples[is_known].reset_index(drop=True))


def as_printed(value: object, expected: str) -> object:
    """Return the expected value of a field in the type that was read; None where nothing is printed."""
    if expected == "":
        return None
    if expected in ("True", "False"):
        return expected == "True"
    return expected if isinstance(value, str) else float(expected)


def test_the_table_is_about_these_lines(shared):
    lines = (shared / "log-line-variants.txt").read_bytes().decode().split("\n")
    found = [hashlib.sha256(lines[number - 1].encode()).hexdigest()[:12] for number in TABLE["line_no"]]
    assert found == TABLE["line_sha256"].tolist()


def test_every_row_of_the_table_is_a_record_and_no_other(all_engines):
    samples = all_engines.samples[~all_engines.samples["engine"].isin(COUNTED_BY_OTHERS)]
    columns = ["line_no", "engine", "kind"]
    assert samples[columns].values.tolist() == TABLE[columns].values.tolist()
    assert len(TABLE) == 195


@pytest.mark.parametrize("column", [*CHECKED, "rank"])
def test_values_are_those_of_the_table(all_engines, column):
    samples = all_engines.samples[~all_engines.samples["engine"].isin(COUNTED_BY_OTHERS)]
    different = []
    for number, found, printed in zip(TABLE["line_no"], samples[column], TABLE[column], strict=True):
        value = None if pd.isna(found) else found
        expected = as_printed(value, printed)
        is_same = value == (pytest.approx(expected, rel=1e-9) if isinstance(expected, float) else expected)
        if not is_same:
            different.append((number, value, printed))
    assert different == []


@pytest.mark.parametrize("line_no", [*EXTRAS, *NAMED])
def test_the_rest_is_kept_by_name(all_engines, line_no):
    extra = json.loads(all_engines.samples.set_index("line_no")["extra"][line_no])
    if line_no in EXTRAS:
        assert extra == EXTRAS[line_no]
    else:
        assert {name: extra[name] for name in NAMED[line_no]} == NAMED[line_no]


def test_the_other_lines_are_accounted(all_engines, shared):
    lines = (shared / "log-line-variants.txt").read_bytes().decode().splitlines()
    accounting = all_engines.accounting
    assert accounting.lines_total == len(lines) == 431
    assert sum(accounting.lines.values()) == len(lines)
    n_notes = sum(line.startswith("#") or not line.strip() for line in lines)
    # beside remarks and blanks nothing is unknown but the tables of the batch benches
    assert accounting.lines["other"] <= n_notes + 4


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
        (CLIPPED_LINE, "'#queue-req' is no 'key: value'"), (ELIDED_LINE, "'...' is no 'key: value'")
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


def test_records_are_counted_by_kind(all_engines):
    accounting = all_engines.accounting
    assert sum(accounting.by_kind.values()) == len(all_engines.samples)
    assert accounting.lines["malformed"] == 2


def test_samples_pass_the_schema(all_engines):
    check(all_engines.samples, SAMPLES)
