"""The cheap ways (one value looked for, columns taken as they are) give what the plain ways give."""

import dataclasses

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from helpers.ingest import read_log
from helpers.ingest.chunk_scan import ChunkScan, _count_known, _keep_events, whole_table
from helpers.ingest.compiled import Form
from helpers.ingest.dialect import holds_any
from helpers.ingest.distinct import count_values, distinct, n_distinct, one_value
from helpers.ingest.engines import DIALECTS
from helpers.ingest.events import Event, number_lives
from helpers.ingest.extract import _named_in, extract
from helpers.ingest.known import KNOWN, OPAQUE
from helpers.ingest.log_tables import to_events, to_samples
from helpers.ingest.stamps import FULL, NO_DATE, NO_YEAR, WRAPPER, read_prefixes
from helpers.schema import EVENTS, SAMPLES, SchemaError, check

MANY = 70_000
"""Rows from which a text that stands in all of them is held once only."""


def columns():
    draw = np.random.default_rng(3)
    yield "one", pl.Series(["sglang"] * 50)
    yield "all missing", pl.Series([None] * 50, dtype=pl.String)
    yield "none", pl.Series([], dtype=pl.String)
    yield "two", pl.Series(["decode"] * 40 + ["prefill"] * 9 + ["decode"])
    yield "missing first", pl.Series([None, "TP0", None, "TP1"] * 5)
    yield "numbers", pl.Series([2, 2, 0, 2, None], dtype=pl.Int32)
    yield "few flags, in one byte", pl.Series([True, False, True])
    yield "rare one first", pl.Series(["x"] + ["a"] * 400 + ["b"] * 30)
    yield "more than are looked for", pl.Series(draw.choice(list("abcdefg") + [None], 900))
    yield "all different", pl.Series([str(number) for number in range(300)])
    pairs = {"text": ("sglang", "vllm"), "flag": (True, False), "number": (7, 8), "missing": (None, 1)}
    for name, (value, other) in pairs.items():
        yield f"one {name} 200 times", pl.Series([value] * 200)
        yield f"another {name} among 200", pl.Series([value] * 100 + [other] + [value] * 99)
    yield "pieces", pl.concat([pl.Series(["a", "b"]), pl.Series(["b", None]), pl.Series(["c"])], rechunk=False)


@pytest.mark.parametrize(("what", "column"), list(columns()))
def test_counts_are_those_of_hashing_every_row(what, column):
    table = pl.DataFrame({"x": column, "row": range(len(column))})
    expected = dict(column.value_counts().iter_rows())
    assert count_values(table, "x") == expected
    assert set(distinct(table, "x")) == set(expected) and len(distinct(table, "x")) == len(expected)
    assert n_distinct(table, "x") == len(set(expected) - {None})
    assert one_value(table, "x") == (tuple(expected) if len(expected) == 1 else ())


def test_a_literal_counts_as_any_column():
    table = pl.DataFrame({"row": range(7)}).with_columns(x=pl.lit("vllm"), y=pl.lit(None, pl.Float64))
    assert count_values(table, "x") == {"vllm": 7} and one_value(table, "x") == ("vllm",)
    assert count_values(table, "y") == {None: 7} and one_value(table, "y") == (None,) and n_distinct(table, "y") == 0


@pytest.mark.parametrize("value", ["vllm", None, 3, True])
def test_a_long_literal_is_told_without_a_look_at_its_rows(value):
    table = pl.DataFrame({"row": range(200)}).with_columns(x=pl.lit(value))
    assert count_values(table, "x") == {value: 200} and one_value(table, "x") == (value,)
    assert table[["x"]].estimated_size() < 10  # it is a literal still


@pytest.mark.parametrize("n", [1, 50])
def test_few_lines_and_many_are_told_apart_alike(n):
    names = {name: literals for named in (OPAQUE, KNOWN) for name, literals in named.items()}
    texts = [f"it says {literal} 7" for literals in names.values() for literal in literals]
    texts += ["nothing", "it/s] [GIN] "]
    assert len(texts) < 500 < 50 * len(texts)
    table = pl.DataFrame({"line_no": range(1, n * len(texts) + 1), "text": texts * n})
    first = [next((name for name, some in names.items() if any(literal in text for literal in some)), None)
             for text in texts]
    expected = {name: n * first.count(name) for name in names}
    assert _count_known(table) == expected and expected["access line"] == 4 * n and expected["request log"] == 7 * n
    assert holds_any(table["text"], [literal for some in names.values() for literal in some]).sum() == n * (
        len(texts) - 1)
    assert not holds_any(table["text"], ["it.says", "nothing$"]).any()


@pytest.mark.parametrize("n_other", [0, 600])
def test_events_are_found_among_few_lines_and_many(n_other):
    found = {3: "[2026-03-04 05:06:07] INFO:     Application startup complete.", 5: "torch.OutOfMemoryError: CUDA out",
             8: "Receive: obj=GenerateReqInput(text='Application startup complete')", 9: "device_name=NVIDIA_H200.json",
             2: "server_args=ServerArgs(model_path='m', chat_template='Received request ')"}
    others = {line_no: "nothing at all" for line_no in range(10, 10 + n_other)}
    lines = pl.DataFrame(list((others | found).items()), schema=["line_no", "text"], orient="row")
    scan = ChunkScan()
    assert _keep_events(scan, pl.concat([lines, lines[:2], lines[-2:]]), {5}) == {2, 3}
    assert [(event.line_no, event.kind, event.is_counted) for event in scan.events] == [
        (2, "args", True), (3, "ready", True), (5, "out_of_memory", False), (9, "fact", False)]


def test_tables_of_chunks_say_together_what_they_say_apart():
    stamp = pl.Series([0, 1, 2]).cast(pl.Datetime("us"))
    first = pl.DataFrame({"line_no": [1, 2, 3], "stamp": stamp}).with_columns(
        engine=pl.lit("vllm"), kind=pl.lit("stats"), stamp_kind=pl.lit(FULL, pl.Int32), rank=pl.lit("DP0"))
    kinds = pl.Series([FULL, NO_DATE, FULL], dtype=pl.Int32)
    for second, rank, kind in ((first.drop("rank"), [None] * 3, [FULL] * 3), (first, ["DP0"] * 3, [FULL] * 3),
                               (first.with_columns(stamp_kind=kinds), ["DP0"] * 3, kinds.to_list()),
                               (first.with_columns(rank=pl.Series(["DP0", "DP1", "DP0"])), ["DP0", "DP1", "DP0"],
                                [FULL] * 3)):
        whole = whole_table([first, first.clear(), second])
        assert whole["rank"].to_list() == ["DP0"] * 3 + rank and whole["stamp_kind"].to_list() == [FULL] * 3 + kind
        assert whole["engine"].to_list() == ["vllm"] * 6 and whole["label"].to_list() == [None] * 6
        assert whole.schema["stamp_kind"] == pl.Int32 and whole["line_no"].to_list() == [1, 2, 3] * 2


def test_a_stamp_is_all_that_a_form_leaves_out():
    form = Form(NO_YEAR, 1904, 5, 11, None, 0)
    head, later = "INFO 11-03 10:06:38 [x.py:3] ", "INFO 12-31 23:59:00 [x.py:3] "
    assert form.fixed(head) == form.fixed(later) == ("INFO ", "", "-", "", " ", "", ":", "", ":", "", " [x.py:3] ")
    assert form.fixed(head) != form.fixed(head.replace("py:3", "py:4")) != form.fixed(head.replace(":06:", "-06:"))
    short = Form(NO_DATE, 1904, None, 1, 10, 3)
    assert short.fixed("[10:06:38.123 TP0]") == short.fixed("[11:07:39.456 TP0]") != short.fixed("[10:06:38.123 TP1]")


def test_a_statistic_on_the_line_of_a_start_up_is_not_before_it():
    statistics = pl.Series([2, 5, 9])
    begins = {line: number_lives([Event(line, "banner", None, "", 0, "up")], statistics)[1:] for line in (1, 2, 3, 5)}
    assert begins == {1: [], 2: [], 3: [(3, 1)], 5: [(5, 1)]}
    # the second banner stands on a line of statistics, in whatever order the table has them
    for lines in ([5, 5, 5, 5, 5], [9, 9, 9, 5], [5, 6, 7]):
        events = [Event(4, "banner", None, "", 0, "up"), Event(5, "banner", None, "", 0, "up")]
        assert number_lives(events, pl.Series(lines)) == [(1, 0)]
        assert number_lives([*events, Event(6, "banner", None, "", 0, "up")], pl.Series(lines)) == [(1, 0), (6, 1)]
    assert number_lives([], pl.Series([1, 2])) == [(1, 0)]


def table_of(n_rows, **columns):
    types = {"Int64": pl.Int64, "int64": pl.Int64, "float64": pl.Float64, "str": pl.String, "boolean": pl.Boolean,
             "datetime64[us]": pl.Datetime("us")}
    missing = {column.name: pl.lit(None, types[column.dtype]) for column in SAMPLES.columns}
    given = {"file": pl.lit("a.log"), "engine": pl.lit("sglang"), "kind": pl.lit("decode"),
             "server_life": pl.lit(0, pl.Int64), "us": pl.lit(1),
             "line_no": pl.Series(range(1, n_rows + 1))}
    return pl.DataFrame({"row": range(n_rows)}).with_columns(**{**missing, **given, **columns})


def test_columns_of_one_value_are_what_the_others_are():
    rank = ["TP0"] * (MANY - 1)
    same = to_samples(table_of(MANY, rank=pl.Series([*rank, "TP0"])))
    other = to_samples(table_of(MANY, rank=pl.Series([*rank, "TP1"])))
    assert same["rank"].tolist() == [*rank, "TP0"] and other["rank"].tolist() == [*rank, "TP1"]
    assert same.dtypes.equals(other.dtypes) and same["extra"].isna().all() and (same["file"] == "a.log").all()
    assert same.index.equals(pd.RangeIndex(MANY))
    pieces = pa.array(same["rank"]).chunks  # 65,536 rows and the rest, of the same letters in memory
    assert [len(piece) for piece in pieces] == [65_536, MANY - 65_536]
    assert len({piece.buffers()[2].address for piece in pieces}) == 1
    assert (same["server_life"] == 0).all() and str(same["server_life"].dtype) == "int64"
    later = to_samples(table_of(4, server_life=pl.Series([0, 0, 1, 1])))
    assert later["server_life"].tolist() == [0, 0, 1, 1]


def test_columns_without_values_do_not_change_each_other():
    samples = to_samples(table_of(3, running_req=pl.Series([1, None, 3]), t_s=pl.Series([0.5, None, 2.0])))
    samples.loc[0, "accept_len"] = 2.5
    samples.loc[1, "retracted_req"] = 4
    assert samples["accept_len"].tolist()[0] == 2.5 and samples["kv_used_frac"].isna().all()
    assert samples["retracted_req"].tolist()[1] == 4 and samples["transfer_req"].isna().all()
    assert samples["running_req"].tolist() == [1, pd.NA, 3]
    assert samples["t_s"].isna().tolist() == [False, True, False] and samples["t_s"][2] == 2.0


def test_pieces_of_a_column_are_put_together_in_their_order():
    pieces = [pl.Series([1, None]), pl.Series([3]), pl.Series([None, 5])]
    samples = to_samples(table_of(5, queue_req=pl.concat(pieces, rechunk=False),
                                  span_s=pl.concat([piece.cast(pl.Float64) for piece in pieces], rechunk=False),
                                  graph=pl.concat([piece.cast(pl.Boolean) for piece in pieces], rechunk=False)))
    assert samples["queue_req"].tolist() == [1, pd.NA, 3, pd.NA, 5]
    assert samples["span_s"].fillna(-1.0).tolist() == [1.0, -1.0, 3.0, -1.0, 5.0]
    assert samples["graph"].tolist() == [True, pd.NA, True, pd.NA, True]


def test_events_take_the_stamps_of_their_rows():
    stamps = pl.DataFrame({
        "file": ["a", "b", "c"], "line_no": [3, 4, 5], "ts": pl.Series([1, 2, None]).cast(pl.Datetime("us")),
        "t_s": [0.0, 1.0, None], "rank": ["TP0", None, None],
    })
    kept = [(2, Event(5, "crash", "sglang", "it broke", 0, "")),
            (0, Event(3, "memory", None, "loaded", 0, "", {"size_bytes": 7, "n": 2}, life=1))]
    events = to_events(kept, stamps)
    assert events["file"].tolist() == ["c", "a"] and events["line_no"].tolist() == [5, 3]
    assert events["ts"].isna().tolist() == [True, False] and events["t_s"].isna().tolist() == [True, False]
    assert events["server_life"].tolist() == [0, 1] and events["text"].tolist() == ["it broke", "loaded"]
    assert events["size_bytes"].fillna(0).tolist() == [0.0, 7.0] and events["detail"].tolist()[1] == '{"n": 2}'
    assert events["engine"].isna().tolist() == [False, True] and events["rank"].isna().tolist() == [True, False]
    none = to_events([], stamps)
    assert none.dtypes.equals(events.dtypes) and none.dtypes.equals(EVENTS.empty().dtypes) and not len(none)


def test_an_empty_table_is_each_time_another():
    first = SAMPLES.empty()
    first.loc[0, "line_no"] = 1
    assert len(first) == 1 and len(SAMPLES.empty()) == 0
    assert check(SAMPLES.empty(), SAMPLES).index.equals(pd.RangeIndex(0))


def test_a_column_that_is_there_twice_is_refused():
    table = SAMPLES.empty()
    with pytest.raises(SchemaError, match=r"unknown columns \['kind'\]"):
        check(pd.concat([table, table[["kind"]]], axis="columns"), SAMPLES)


def test_lines_with_and_without_a_time_keep_their_order():
    texts = ["no stamp at all", "[2026-03-04 05:06:07 TP1] Decode", "INFO 03-04 05:06:08 [x.py:1] Engine 002: say",
             "[2026-03-04 05:06:09] INFO:     up", '{"log":"a record","time":"2026-03-04T05:06:10Z"}', "12:34 is none"]
    prefixes = ["", "[2026-03-04 05:06:07 TP1] ", "INFO 03-04 05:06:08 [x.py:1] Engine 002: ",
                "[2026-03-04 05:06:09] INFO:     ", '{"log":"', ""]
    read = read_prefixes(pl.DataFrame({"text": texts, "prefix": prefixes}))
    assert read["text"].to_list() == texts
    assert read["stamp_kind"].to_list() == [0, FULL, NO_YEAR, FULL, WRAPPER, 0]
    assert read["rank"].to_list() == [None, "TP1", "DP2", None, None, None]
    assert [stamp and stamp.second for stamp in read["stamp"]] == [None, 7, 8, 9, 10, None]


def test_layouts_of_a_family_are_read_whether_one_or_several_and_beside_malformed_lines():
    families = [family for dialect in DIALECTS if dialect.engine == "sglang" for family in dialect.families]
    plain = "[2026-03-04 05:06:07] Decode batch, #running-req: 3, #token: 40, token usage: 0.01, gen throughput " \
            "(token/s): 55.5, #queue-req: 0"
    graph = plain.replace(" gen", " cuda graph: True, gen")
    broken = plain.replace("55.5", "fast")
    for given, n_read, n_malformed in (([plain], 1, 0), ([plain] * 3, 3, 0), ([plain, graph, plain], 3, 0),
                                       ([broken, plain], 1, 1), ([broken], 0, 1), (["x", plain], 1, 0)):
        lines = pl.DataFrame({"line_no": range(1, len(given) + 1), "text": given}).cast({"line_no": pl.Int64})
        for recent in ({}, {families[0]: []}):
            records = extract(families, lines, recent)
            assert (len(records.samples), len(records.malformed)) == (n_read, n_malformed), given
            again = extract(families, lines, recent)  # the layouts are known now
            assert again.samples.sort("line_no").equals(records.samples.sort("line_no"))
            assert records.samples["decode_tok_per_s"].to_list() == [55.5] * n_read


def test_a_literal_that_begins_inside_another_is_seen():
    family = next(family for dialect in DIALECTS for family in dialect.families)
    families = [dataclasses.replace(family, literal=literal) for literal in ("batch, #run", "Decode batch", "Prefill")]
    assert _named_in(pl.DataFrame({"text": ["x", "Decode batch, #running-req: 3"]}), families) == families[:2]


def test_a_line_that_holds_more_than_its_record_is_told():
    families = [family for dialect in DIALECTS if dialect.engine == "sglang" for family in dialect.families]
    record = "Decode batch, #running-req: 3, #token: 4, token usage: 0.01, gen throughput (token/s): 5.5, #queue-req: 0"
    lines = pl.DataFrame({"line_no": [1, 2, 3], "text": [record, f"it went boom {record}", record]})
    records = extract(families, lines, {}, other=["boom"])
    assert records.unusual["line_no"].to_list() == [2]
    assert sorted(records.samples["line_no"]) == [1, 2, 3]


def test_lives_of_a_log_whose_iterations_begin_anew(tmp_path):
    line = (
        "[08/04/2026-10:00:00] [TRT-LLM] [I] [_torch][RANK 0] iter = {}, global_rank = 0, rank = 0, "
        "num_scheduled_requests = 8, kv_cache_util = 0.1, currank_total_requests = 0/1, host_step_time = 7.5ms, "
        "prev_device_step_time = 7.4ms, timestamp = 2026-08-04 10:00:00, states = {{'num_ctx_requests': 0, "
        "'num_ctx_tokens': 0, 'num_generation_tokens': 8, 'cached_kv_tokens': 0}}"
    )
    path = tmp_path / "server.log"
    path.write_text("\n".join(line.format(number) for count in (4, 151, 11) for number in range(1, count)) + "\n")
    lives = read_log(path, cache=False).samples["server_life"]
    assert lives.value_counts().to_dict() == {0: 153, 1: 10}  # the first executor only sizes the cache
