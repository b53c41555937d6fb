"""llama.cpp: a finished request is one record, whatever its lines look like and whichever slots print between them.

Truth: what the clients of a real sweep were told and measured, values read by eye, and hand arithmetic. Would catch:
the first token counted into the eval time, lines of two slots or two children of a router joined, an uptime taken for
a time of day, a sum over a whole run taken for a request.
"""

from __future__ import annotations

import json

import pandas as pd
import pytest
from logs import read

from helpers import ingest
from helpers.schema import SAMPLES, check

PREFIX = "slot print_timing: id {slot:2d} | task {task} | "


def timings(prompt_ms, n_prompt, eval_ms, n_tok, rest=True):
    """The bare lines of a block; rates are not read, so any will do."""
    rates = "tokens (    1.00 ms per token,  1000.00 tokens per second)"
    lines = [
        f"prompt eval time = {prompt_ms:10.2f} ms / {n_prompt:5d} {rates}",
        f"       eval time = {eval_ms:10.2f} ms / {n_tok:5d} {rates}",
    ]
    total = f"      total time = {prompt_ms + eval_ms:10.2f} ms / {n_prompt + n_tok:5d} tokens"
    return [*lines, total] if rest else lines


def block(stamp, slot, task, *values):
    """The lines of 2026, each with its prefix."""
    lines = [*timings(*values), "   graphs reused =         17"]
    return [f"{stamp}{number} I {PREFIX.format(slot=slot, task=task)}{line}" for number, line in enumerate(lines)]


def requests(log):
    """Return the request rows with their extra unpacked."""
    found = log.samples[log.samples["kind"] == "request"].reset_index(drop=True)
    return found.join(pd.DataFrame([json.loads(text) for text in found["extra"]], index=found.index))


@pytest.fixture(scope="module")
def sweep(shared):
    return ingest.read_log(shared / "logs/own/llamacpp-sweep/server.log")


@pytest.fixture(scope="module")
def clients(shared):
    """What each request of each level was told by the server, and the levels' truth."""
    folder = shared / "logs/own/llamacpp-sweep"
    told = {
        label: json.loads((folder / f"client/{label}.json").read_text())["server_timings"]
        for label in ("c1", "c2", "c3", "c4", "c6", "c8", "q12")
    }
    return told, pd.read_csv(folder / "truth.csv").set_index("label")


def test_every_line_of_the_sweep_is_counted_and_every_block_is_one_record(sweep, shared):
    lines = (shared / "logs/own/llamacpp-sweep/server.log").read_text().splitlines()
    n_timing = sum("slot print_timing" in line for line in lines)
    n_requests = sum(" total time =" in line for line in lines)
    assert (n_timing, n_requests) == (1538, 284)
    assert sweep.accounting.lines["statistic"] == n_timing
    assert sweep.accounting.lines["malformed"] == 0
    assert sum(sweep.accounting.lines.values()) == len(lines)
    assert sweep.accounting.by_kind == {"request": n_requests, "aux": sum("n_gen =" in line for line in lines)}
    check(sweep.samples, SAMPLES)


def test_records_are_what_the_server_told_its_clients(sweep, clients):
    found = requests(sweep)
    columns = found[["span_s", "n_tok", "new_tok", "prompt_s"]].itertuples(index=False)
    table = [(1000 * span_s, n_tok, new_tok, 1000 * prompt_s) for span_s, n_tok, new_tok, prompt_s in columns]
    told = [timing for timings_of_level in clients[0].values() for timing in timings_of_level]
    missing = [
        timing for timing in told
        if not any(
            abs(span - timing["predicted_ms"]) < 0.006 and n_tok == timing["predicted_n"]
            and new_tok == timing["prompt_n"] and abs(prompt - timing["prompt_ms"]) < 0.006
            for span, n_tok, new_tok, prompt in table
        )
    ]
    assert (len(told), missing) == (282, [])


@pytest.mark.parametrize(("label", "first"), [("c1", 2), ("c2", 22), ("c3", 54), ("c4", 90), ("c6", 130), ("c8", 184)])
def test_time_per_token_of_a_level_is_what_its_clients_measured(sweep, clients, label, first):
    """The client's mean is over spans with exactly C requests, the records hold a few per cent of ramp and prompts."""
    told, truth = clients
    of_level = requests(sweep).iloc[first:first + len(told[label])]
    step_s = of_level["span_s"].sum() / of_level["out_tok"].sum()
    assert 1000 * step_s == pytest.approx(truth.loc[label, "itl_ms_mean"], rel=0.01)


def test_the_end_of_a_request_is_its_uptime(sweep):
    last = requests(sweep).iloc[-1]
    first = requests(sweep).iloc[0]
    # 6.57.702.484 and 0.01.968.131 in the log
    assert last["t_s"] - first["t_s"] == pytest.approx(6 * 60 + 57.702484 - 1.968131, abs=1e-9)
    assert last[["slot", "task", "graphs reused"]].tolist() == [3, 20306, 12299]


EYE = [
    (376, "request", {"span_s": 41.51179, "out_tok": 813, "new_tok": 104305}, {"slot": 0, "prompt_s": 116.91681}),
    (380, "request", {"span_s": 0.05177, "out_tok": 3, "new_tok": 22}, {"slot": 3, "n_tok": 4, "graphs reused": 3}),
    (390, "request", {"span_s": 0.01594, "out_tok": 2, "new_tok": 37}, {"task": 0, "tokens/s": 188.22}),
    (391, "aux", {"new_tok": 32}, {"task": 70, "prompt time (ms)": 10.51}),
    (394, "request", {"span_s": 0.26395, "out_tok": 15, "new_tok": 5}, {"total time (ms)": 373.93}),
    (397, "aux", {}, {"task": 314, "prompt tokens done": 3584, "progress": 0.11, "so far (s)": 3.10}),
    (398, "aux", {}, {"prompt tokens done": 4096, "new tokens/s": 1175.62}),
    (400, "aux", {"decode_tok_per_s": 28.69}, {"n_gen": 101, "tg_3s (t/s)": 28.68}),
    (401, "aux", {"decode_tok_per_s": 28.69, "rank": "PORT53409"}, {"n_decoded": 101}),
    (403, "aux", {"accept_rate_frac": 0.81944}, {"draft accepted": 118, "draft generated": 144}),
    (404, "aux", {"accept_len": 2.92}, {"#acc tokens": 23, "draft-mtp calls": [1, 12, 12],
                                        "accepted per position": [1.0, 0.917]}),
    (406, "aux", {"new_tok": 71}, {"prompt time (ms)": 1725.02}),
    (407, "aux", {"span_s": 0.0, "n_steps": 1}, {"tokens/s": None}),
    (408, "aux", {"span_s": 2.8257, "n_steps": 33}, {"tokens/s": 11.68}),
    (410, "aux", {"span_s": 14.08585, "n_steps": 178}, {"ms/token": 79.13}),
    (411, "aux", {"span_s": 14.08585, "n_steps": 178}, {"ms/token": 79.13}),
]


@pytest.mark.parametrize(("line_no", "kind", "columns", "extra"), EYE)
def test_value_read_by_eye(shared, line_no, kind, columns, extra):
    log = ingest.read_log(shared / "log-line-variants.txt")
    row = log.samples[log.samples["line_no"] == line_no].iloc[0]
    assert row["kind"] == kind
    for name, value in columns.items():
        assert row[name] == (pytest.approx(value, rel=1e-12) if isinstance(value, float) else value), name
    found = json.loads(row["extra"])
    assert {name: found[name] for name in extra} == extra


def test_a_bare_block_is_one_record_at_the_time_of_its_header(tmp_path):
    header = "27.39.077.123 I " + PREFIX.format(slot=0, task=11)
    log = read(tmp_path, "27.00.000.000 I srv  update_slots: all slots are idle", header,
               *timings(2132.89, 16, 18165.4, 263),
               "draft acceptance rate = 0.54839 (  204 accepted /   372 generated)",
               "27.39.077.138 I statistics draft-mtp: #calls(b,g,a) = 1 62 62, #gen drafts = 62, #acc drafts = 55, "
               "#gen tokens = 372, #acc tokens = 204, dur(b,g,a) = 0.001, 3935.948, 0.063 ms")
    row = requests(log).iloc[0]
    assert log.accounting.by_kind == {"request": 1, "aux": 1}
    assert row["ts"].strftime("%H:%M:%S.%f") == "00:27:39.077123"
    assert row[["slot", "task", "n_tok", "new_tok"]].tolist() == [0, 11, 263, 16]
    assert row["prompt_s"] == pytest.approx(2.13289, rel=1e-12)
    # 262 tokens after the first, 204 of them drafted: 58 rounds
    assert row[["out_tok", "n_steps"]].tolist() == [262, 58]
    assert row["accept_len"] == pytest.approx(262 / 58, rel=1e-12)
    assert row["accept_rate_frac"] == 0.54839


def test_bare_blocks_of_two_slots_that_interleave_stay_apart(tmp_path):
    one, two = timings(10.0, 5, 200.0, 21), timings(30.0, 7, 400.0, 31)
    headers = [PREFIX.format(slot=slot, task=task) for slot, task in ((0, 3), (1, 4))]
    mixed = [line for pair in zip(one, two, strict=True) for line in pair]
    found = requests(read(tmp_path, *headers, *mixed))
    assert found[["slot", "task", "new_tok", "out_tok"]].values.tolist() == [[0, 3, 5, 20], [1, 4, 7, 30]]
    assert found["span_s"].tolist() == [0.2, 0.4]


def test_a_bare_block_that_does_not_add_up_is_no_request(tmp_path):
    one, two = timings(10.0, 5, 200.0, 21), timings(30.0, 7, 400.0, 31)
    headers = [PREFIX.format(slot=slot, task=task) for slot, task in ((0, 3), (1, 4))]
    log = read(tmp_path, *headers, one[0], two[0], two[1], one[1], one[2], two[2])
    assert "request" not in log.accounting.by_kind
    assert log.samples["extra"].str.contains("do not add up").sum() == 2
    assert log.accounting.lines["statistic"] == 8


def test_slots_that_print_between_each_other_are_joined_by_slot_and_task(tmp_path):
    one, two = block("0.10.000.00", 0, 8, 10.0, 5, 200.0, 21), block("0.10.000.00", 1, 9, 30.0, 7, 400.0, 31)
    found = requests(read(tmp_path, *[line for pair in zip(two, one, strict=True) for line in pair]))
    assert found[["slot", "task", "new_tok", "out_tok"]].values.tolist() == [[1, 9, 7, 30], [0, 8, 5, 20]]


def test_the_children_of_a_router_are_ranks_with_their_own_clocks(tmp_path):
    lines = []
    for tens in (1, 2):  # both children print the same slot and task, line by line between each other
        one = block(f"0.{tens}0.000.00", 0, tens, 10.0, 5, 200.0, 21)
        two = block(f"9.{tens}0.000.00", 0, tens, 30.0, 7, 400.0, 31)
        for pair in zip(one, two, strict=True):
            lines += [f"[{port}] {line}" for port, line in zip((40001, 40002), pair, strict=True)]
    found = requests(read(tmp_path, *lines))
    assert found["rank"].tolist() == ["PORT40001", "PORT40002"] * 2
    assert found[["new_tok", "out_tok"]].values.tolist() == [[5, 20], [7, 30]] * 2
    assert found["t_s"].tolist() == pytest.approx([0.0, 540.0, 10.0, 550.0], abs=1e-9)


def test_uptimes_go_past_the_hour_and_on_after_a_restart(tmp_path):
    start = ["0.00.001.496 I srv  llama_server: initializing ..."]
    log = read(tmp_path, *start, *block("119.50.749.18", 0, 8, 10.0, 5, 200.0, 21),
               *start, *block("0.30.000.00", 0, 8, 10.0, 5, 200.0, 21), *block("0.40.000.00", 0, 9, 10.0, 5, 200.0, 21))
    found = requests(log)
    assert found["ts"].iloc[0].strftime("%d %H:%M:%S") == "01 01:59:50"
    assert found["server_life"].tolist() == [0, 1, 1]
    # how long the server was down is not known: the clock stands still in between
    assert found["t_s"].tolist() == pytest.approx([0.0, 0.0, 10.0], abs=1e-5)


def test_an_absurd_uptime_is_no_stamp(tmp_path):
    found = requests(read(tmp_path, *block("99999999999.10.000.00", 0, 8, 10.0, 5, 200.0, 21)))
    assert found[["t_s", "ts", "rank"]].isna().all(axis=None)


def test_a_request_of_one_token_decodes_nothing(tmp_path):
    row = requests(read(tmp_path, *block("0.10.000.00", 0, 8, 10.0, 5, 0.0, 1))).iloc[0]
    assert row[["out_tok", "n_steps", "span_s"]].tolist() == [0, 0, 0.0]
    assert pd.isna(row["decode_tok_per_s"])


def test_infinite_rates_are_read_as_missing(tmp_path):
    lines = [line.replace("1000.00 tokens per second", "inf tokens per second")
             for line in block("0.10.000.00", 0, 8, 0.0, 5, 200.0, 21)]
    log = read(tmp_path, *lines)
    assert log.accounting.lines["malformed"] == 0
    assert requests(log)[["tokens/s", "new tokens/s"]].isna().all(axis=None)


@pytest.mark.parametrize("words", ["draft acceptance rate", "draft acceptance"])
def test_drafts_of_a_slot_belong_to_its_request(tmp_path, words):
    line = f"0.10.000.009 I {PREFIX.format(slot=0, task=8)}{words} = 0.75000 (   12 accepted /    16 generated)"
    rest = ", mean acceptance length =  2.50, acceptance rate per position = (0.900, 0.600)"
    row = requests(read(tmp_path, *block("0.10.000.00", 0, 8, 10.0, 5, 200.0, 21), line + rest)).iloc[0]
    assert row[["out_tok", "n_steps", "accept_rate_frac"]].tolist() == [20, 8, 0.75]
    assert row["accept_len"] == 2.5  # 20 tokens in 8 rounds; the printed length is kept too
    assert row["accepted per position"] == [0.9, 0.6]


def test_the_sums_of_the_command_line_are_one_request(tmp_path):
    name = "llama_perf_context_print: "
    log = read(tmp_path, f"{name}       load time =    1500.00 ms",
               name + timings(100.0, 12, 0.0, 1)[0],
               f"{name}       eval time =    2000.00 ms /   100 runs   (   20.00 ms per token,    50.00 tokens per "
               "second)",
               f"{name}      total time =    2300.00 ms /   112 tokens", f"{name}   graphs reused =         99")
    row = requests(log).iloc[0]
    assert log.accounting.lines["statistic"] == 5
    # runs are steps that were done: none is the prompt's
    assert row[["span_s", "n_steps", "out_tok", "new_tok", "decode_tok_per_s"]].tolist() == [2.0, 100, 100, 12, 50.0]


@pytest.mark.parametrize("cut", [45, 70, 76, 80, 83, 88, 95, 105, 120])
def test_a_cut_line_is_malformed_or_known_but_never_read(tmp_path, cut):
    whole = block("0.10.000.00", 0, 8, 10.0, 5, 200.0, 21)
    log = read(tmp_path, *whole, whole[1][:cut], *block("0.20.000.00", 0, 9, 10.0, 5, 200.0, 21))
    assert len(requests(log)) == 2
    assert sum(log.accounting.lines.values()) == 9
    assert log.accounting.lines["statistic"] == 8


def test_prose_about_timings_is_no_statistic(tmp_path):
    log = read(tmp_path, *block("0.10.000.00", 0, 8, 10.0, 5, 200.0, 21), "the eval time = what a request waits",
               "Prints statistics of the total time = sum of both")
    assert log.accounting.lines["statistic"] == 4
    assert log.accounting.lines["malformed"] == 0


def test_start_up_lines_become_events_and_facts(tmp_path):
    log = read(
        tmp_path,
        "build: 4938 (6adc3c3e) with cc (Debian 12) for x86_64-linux-gnu",
        "load_tensors:        CUDA0 model buffer size =  4685.30 MiB",
        "llama_kv_cache:      size =  128.00 MiB (  4096 cells,  32 layers,  1/1 seqs), K (f16):   64.00 MiB",
        "srv    load_model: initializing slots, n_slots = 4",
        "slot         init: id  0 | task -1 | new slot n_ctx_slot = 1024",
        "main: server is listening on http://127.0.0.1:8080 - starting the main loop",
        *block("0.10.000.00", 0, 8, 10.0, 5, 200.0, 21),
        "slot update_slots: id  0 | task 8 | slot context shift, n_keep = 1, n_left = 1022, n_discard = 511",
        "ggml_backend_cuda_alloc_buffer: allocating 1024.00 MiB on device 0: cudaMalloc failed: out of memory",
        "ggml_gallocr_reserve_n_impl: failed to allocate CUDA0 buffer of size 1073741824",
        "/src/ggml/src/ggml.c:123: GGML_ASSERT(n > 0) failed",
        "srv  update_slots: all slots are idle",
    )
    assert log.events["kind"].tolist() == [
        "weights_loaded", "kv_allocated", "kv_allocated", "kv_allocated", "ready", "context_shift", "out_of_memory",
        "out_of_memory", "crash", "idle",
    ]
    assert log.events["size_bytes"].dropna().tolist() == [round(4685.3 * 2**20), 128 * 2**20, 2**30, 2**30]
    wanted = {"engine_version": "4938", "max_running_requests": 4, "context_length_max": 1024, "kv_pool_tokens": 4096}
    assert {name: log.facts[0].get(name) for name in wanted} == wanted
    assert sum(log.accounting.lines.values()) == 15


def test_start_up_lines_are_facts(tmp_path) -> None:
    """Model file and threads, as a build of 2026 prints them in front of a finished request."""
    log = tmp_path / "server.log"
    log.write_text(
        "0.00.001.000 I srv    load_model: loading model '/models/tiny.gguf'\n"
        "0.00.002.000 I system_info: n_threads = 2 (n_threads_batch = 2) / 2 | CPU : SSE3 = 1\n"
        + "".join(f"0.01.000.{n:03d} I slot print_timing: id  0 | task 0 | {text}\n" for n, text in enumerate((
            "prompt eval time =  10.00 ms /  10 tokens (    1.00 ms per token,  1000.00 tokens per second)",
            "       eval time = 100.00 ms /  11 tokens (    9.09 ms per token,   110.00 tokens per second)",
            "      total time = 110.00 ms /  21 tokens",
        )))
    )
    facts = ingest.read_log(log).facts[0]
    assert (facts["model"], facts["n_threads"]) == ("/models/tiny.gguf", 2)
