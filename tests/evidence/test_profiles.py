"""Kernel profiles against the reference tables beside real traces, and against made traces with known counts."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from trace_maker import ZERO_US, write_trace

from helpers.evidence.profiles.read import read_profile, role_shares
from helpers.evidence.profiles.timeline import Busy
from helpers.schema import KERNELS, LogFormatError, check

TRACES = {
    "sglang_decode": "sglang_Qwen3-8B_decode.json.gz", "sglang_prefilldecode": "sglang_Qwen3-8B_prefilldecode.json.gz",
    "vllm_decode_full": "graph_execution.json.gz", "vllm_prefilldecode_piecewise": "graph_execution.json.gz",
}

# "op category" of unified_perf_summary.csv -> role; operators whose category is "other" or "reduce" by their name.
CATEGORY_ROLES = {"GEMM": "dense_gemm", "InferenceAttention": "attention", "MoE_unfused": "moe",
                  "RMSNorm": "norm_rope_quant", "RoPE_fwd": "norm_rope_quant", "elementwise": "elementwise_copy_reduce",
                  "triton": "elementwise_copy_reduce", "multi_tensor_apply": "elementwise_copy_reduce",
                  "reduce": "elementwise_copy_reduce", "other": "elementwise_copy_reduce"}
OPERATOR_ROLES = {"aten::argmax": "sampling", "SortTokens": "moe", "TopK": "moe", "_C::rotary_embedding":
                  "norm_rope_quant", "pseudo_op::moe_triton_unfused_finalize_matmul_scatter": "moe"}


@pytest.fixture(scope="module")
def profiles(shared):
    folder = shared / "logs" / "tracelens"
    return {name: read_profile(folder / name / file) for name, file in TRACES.items()}


def reference(shared: Path, name: str, table: str) -> pd.DataFrame:
    return pd.read_csv(shared / "logs" / "tracelens" / name / "perf_csvs" / f"{table}.csv")


@pytest.mark.parametrize("name", TRACES)
def test_busy_time_is_that_of_the_reference(profiles, shared, name):
    timeline = reference(shared, name, "gpu_timeline").set_index("type")["time ms"]
    (busy_s,), (span_s,) = profiles[name].busy_s.values(), profiles[name].span_s.values()
    assert busy_s == pytest.approx(timeline["busy_time"] * 1e-3, rel=1e-4)
    assert span_s == pytest.approx(timeline["total_time"] * 1e-3, rel=1e-4)


@pytest.mark.parametrize("name", TRACES)
def test_roles_have_the_shares_of_the_reference(profiles, shared, name):
    """Within 2 points each; the reference counts copies among elementwise operators, here they are a role."""
    operators = reference(shared, name, "unified_perf_summary")
    role = [OPERATOR_ROLES.get(op, CATEGORY_ROLES[kind]) for op, kind in
            zip(operators["name"], operators["op category"], strict=True)]
    spent = operators["Kernel Time (µs)_sum"].groupby(role).sum()
    expected = spent / spent.sum()
    found = role_shares(profiles[name]).set_index("role")["share_frac"]
    found = found.rename({"memory_copy": "elementwise_copy_reduce"}).groupby(level=0).sum()
    assert found.sum() == pytest.approx(1.0)
    assert len(expected) >= 5
    for each in expected.index.union(found.index):
        assert found.get(each, 0.0) == pytest.approx(expected.get(each, 0.0), abs=0.02), each
    assert found["unclassified"] < 0.01


# README.md of the logs, section tracelens: requests, contexts, what the step did; kernels by hand from the files.
STEPS = {
    "sglang_decode": ("decode", 32, 32785, 555), "sglang_prefilldecode": ("prefill", 0, np.nan, 527),
    "vllm_decode_full": ("decode", 32, 55086, 425), "vllm_prefilldecode_piecewise": ("mixed", 37, 34489, 413),
}


@pytest.mark.parametrize("name", TRACES)
def test_one_step_with_its_requests(profiles, name):
    profile = profiles[name]
    kind, running_req, context_tok, n_kernels = STEPS[name]
    assert profile.n_steps == 1 and "execute_" in profile.step_rule
    assert list(profile.steps["kind"]) == [kind]
    assert profile.running_req == running_req
    assert profile.context_tok == pytest.approx(context_tok, nan_ok=True)
    assert profile.kernels_per_step == n_kernels
    assert profile.kernels.loc[profile.kernels["role"] != "memory_copy", "n_calls"].sum() == n_kernels


def test_an_early_kernel_of_another_step_is_no_gap(profiles):
    """One kernel 463 ms early: the span is 474 ms, the step 10.45 ms, of which 9.77 ms busy: 6.5 % idle, not 98 %."""
    profile = profiles["sglang_decode"]
    assert profile.step_s == pytest.approx(10.45e-3, abs=0.01e-3)
    assert profile.gap_frac == pytest.approx(1 - 9.768 / 10.450, abs=0.002)
    assert profiles["vllm_decode_full"].gap_frac == pytest.approx(1 - 10.7177 / 10.7432, abs=1e-4)


def test_blocks_of_tensile_kernels_are_threads_over_block(profiles):
    """Grid 491520 of 256 threads: (15360 / 256) x (6144 / 192) = 60 x 32 = 1920 blocks; gate-up 120 x 96 = 11520."""
    kernels = profiles["sglang_prefilldecode"].kernels
    tensile = kernels[kernels["name"].str.startswith("Cijk_")]
    assert {1920.0, 11520.0} <= set(tensile["n_blocks"])
    assert profiles["sglang_prefilldecode"].n_sms == 304


def test_shapes_of_a_prefill_name_the_weights_and_the_cache(profiles):
    """aten::mm (4096, 24576) BF16 = 201,326,592 bytes; the cache tensor (835874, 8, 128) of the attention operator."""
    shapes = profiles["sglang_prefilldecode"].shapes
    assert ("dense_gemm", "aten::mm", (4096, 24576), 4096 * 24576 * 2) in shapes
    assert ("attention", "aiter::mha_batch_prefill", (835874, 8, 128), 835874 * 8 * 128 * 2) in shapes
    assert [s[3] for s in shapes] == sorted((s[3] for s in shapes), reverse=True)
    gate_up = profiles["sglang_prefilldecode"].kernels.iloc[0]
    assert json.loads(gate_up["shapes"])[0] == [[15360, 4096], [4096, 24576]]


def test_a_capture_of_graphs_is_no_step(shared):
    profile = read_profile(shared / "logs" / "tracelens" / "sglang_decode" / "capture_traces" / "bs_32_rank0.json.gz")
    assert profile.n_steps is None and np.isnan(profile.step_s) and np.isnan(profile.gap_frac)
    assert any(shape[1] == "aten::mm" and shape[2] == (4096, 6144) for shape in profile.shapes)


def test_a_graph_replay_records_no_grid(profiles):
    assert profiles["sglang_decode"].grid_known_frac < 0.02
    assert np.isnan(profiles["sglang_decode"].small_launch_frac)


# Made traces: 16 layers of 65 us + 108 us = 1148 us busy, 52 us gap: 1200 us.

RULES = {
    "annotation": ({}, "execute_"),
    "SGLang annotation": ({"mark": "step[DECODE bs={n}]"}, "step["),
    "graph launch": ({"mark": ""}, "graph launch"),
    "repetition": ({"mark": "", "is_graph": False}, "repetition"),
    "PyTorch's own steps": ({"mark": "ProfilerStep#1"}, "ProfilerStep"),
    "no launches recorded": ({"has_launches": False}, "execute_"),
}


@pytest.mark.parametrize("case", RULES)
def test_every_rule_counts_the_steps(tmp_path, case):
    options, words = RULES[case]
    made = write_trace(tmp_path / "t.json", n_steps=6, **options)
    profile = read_profile(tmp_path / "t.json")
    check(profile.kernels, KERNELS)
    assert profile.n_steps == 6 and words in profile.step_rule
    assert profile.step_s == pytest.approx(made.step_s, rel=1e-6) == 1.2e-3
    assert profile.busy_s == {"0": pytest.approx(made.busy_s, rel=1e-6)}
    assert profile.kernels_per_step == 16 * 4 + 2
    # Five steps reach to the next one, the last has no gap after it.
    assert profile.gap_frac == pytest.approx(5 * 52 / (5 * 1200 + 1148), abs=1e-6)
    has_requests = "bs={n}" in options.get("mark", "") or "mark" not in options
    assert profile.running_req == (32 if has_requests else pytest.approx(np.nan, nan_ok=True))
    shares = role_shares(profile).set_index("role")
    assert shares["share_frac"].sum() == pytest.approx(1.0)
    assert shares.loc["attention", "share_frac"] == pytest.approx(16 * 30 / 1148)
    assert shares.loc["communication", "calls_per_step"] == 16
    assert shares.loc["sampling", "per_step_s"] == pytest.approx(8e-6)
    assert shares.loc["unclassified", "share_frac"] == 0.0


def test_every_event_is_counted_once_and_none_twice(tmp_path):
    made = write_trace(tmp_path / "t.json", n_python=3)
    tally = read_profile(tmp_path / "t.json").tally
    assert tally.lines_total == made.n_events
    assert tally.lines["row"] == made.n_kernels and tally.lines["malformed"] == 0


def test_small_launches(tmp_path):
    """Of 1148 us, 16 x (20 + 10 + 5) + 8 = 568 us in launches of fewer than 148 blocks."""
    write_trace(tmp_path / "t.json")
    profile = read_profile(tmp_path / "t.json")
    assert profile.n_sms == 148 and profile.grid_known_frac == pytest.approx(1.0)
    assert profile.small_launch_frac == pytest.approx(568 / 1148)


def edited(path: Path, change) -> Path:
    """Write a made trace again with its events changed in place."""
    trace = json.loads(path.read_text())
    change(trace["traceEvents"])
    path.write_text(json.dumps(trace))
    return path


@pytest.mark.parametrize(("n_early", "n_late"), [(20, 30), (50, 0)])
def test_a_profile_that_begins_and_ends_inside_steps(tmp_path, n_early, n_late):
    """Nothing is annotated; 50 kernels are missing: 346 of 396 are 5.2 periods of 66."""
    def cut(events):
        inside = sorted((e["ts"], at) for at, e in enumerate(events) if e["cat"] == "kernel")
        gone = {at for _, at in inside[:n_early] + inside[len(inside) - n_late:]}
        events[:] = [e for at, e in enumerate(events) if at not in gone]
    write_trace(tmp_path / "t.json", n_steps=6, mark="", is_graph=False)
    profile = read_profile(edited(tmp_path / "t.json", cut))
    assert profile.n_steps == 5
    assert profile.step_s == pytest.approx(1.2e-3)
    assert profile.steps["n_kernels"].between(60, 72).all() and profile.kernels_per_step == 66


def kernel(ts: float, dur: float, name: str = "nvjet_x", **args: object) -> dict:
    return {"ph": "X", "cat": "kernel", "name": name, "ts": ts, "dur": dur, "args": {"device": 0, **args}}


def test_streams_overlap_and_annotations_of_the_device_count_nothing(tmp_path):
    events = [kernel(100, 10), kernel(105, 10), kernel(130, 5), kernel(131, 1),
              {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy DtoH", "ts": 134, "dur": 3, "args": {"device": 0}},
              {"ph": "X", "cat": "gpu_user_annotation", "name": "step", "ts": 0, "dur": 1000, "args": {"device": 0}}]
    (tmp_path / "t.json").write_text(json.dumps(events))
    profile = read_profile(tmp_path / "t.json")
    # 100..115 and 130..137 us.
    assert profile.busy_s["0"] == pytest.approx(22e-6) and profile.span_s["0"] == pytest.approx(37e-6)
    assert role_shares(profile).set_index("role").loc["memory_copy", "share_frac"] == pytest.approx(3 / 29)
    assert profile.n_steps is None and any("unknown" in note for note in profile.notes)
    assert np.isnan(profile.gap_frac) and np.isnan(profile.step_s)


def test_a_pause_between_steps_is_left_out(tmp_path):
    def pause(events):
        for event in events:
            # The host launches its step before the device begins it.
            early_us = 1 if event["cat"] in ("kernel", "gpu_user_annotation") else 300
            if event["ts"] > ZERO_US + 3 * 1200 - early_us:
                event["ts"] += 5e5
    write_trace(tmp_path / "t.json", n_steps=6)
    profile = read_profile(edited(tmp_path / "t.json", pause))
    assert profile.n_steps == 6 and profile.step_s == pytest.approx(1.2e-3)
    assert profile.gap_frac == pytest.approx(4 * 52 / (4 * 1200 + 2 * 1148), abs=1e-6)
    assert any("1 of 6 steps are followed by a long idle time" in note for note in profile.notes)


def test_a_server_that_waits_in_every_step_is_not_excused(tmp_path):
    """Gaps of 8 ms after each 1.148 ms of work are the finding, however long they are."""
    write_trace(tmp_path / "t.json", n_steps=6, gap_us=8000.0)
    profile = read_profile(tmp_path / "t.json")
    assert profile.step_s == pytest.approx(9.148e-3)
    assert profile.gap_frac == pytest.approx(5 * 8000 / (5 * 9148 + 1148), abs=1e-6)


def test_kernels_launched_while_drafting_have_the_role_draft(tmp_path):
    def draft(events):
        first = min(e["ts"] for e in events if e.get("cat") == "cuda_runtime")
        events.append({"ph": "X", "cat": "user_annotation", "name": "gpu_model_runner: draft", "pid": 99,
                       "ts": first - 1, "dur": 3.0})
    write_trace(tmp_path / "t.json", n_steps=4)
    shares = role_shares(read_profile(edited(tmp_path / "t.json", draft))).set_index("role")
    assert shares.loc["draft", "share_frac"] == pytest.approx(0.25)
    assert shares.loc["attention", "share_frac"] == pytest.approx(0.75 * 16 * 30 / 1148)


def test_decode_steps_speak_where_prefill_is_in_the_trace_too(tmp_path):
    def prefill(events):
        marks = [e for e in events if e.get("cat") == "user_annotation"]
        marks[1]["name"] = marks[2]["name"] = "execute_context_4(4096)_generation_0(0)"
        marks[3]["name"] = "execute_context_0(0)_generation_16(16)"
    write_trace(tmp_path / "t.json")
    profile = read_profile(edited(tmp_path / "t.json", prefill))
    assert list(profile.steps["kind"]) == ["decode", "prefill", "prefill", "decode"]
    assert list(profile.steps["running_req"]) == [32, 0, 0, 16]
    assert profile.n_steps == 4 and profile.running_req == (32 + 16) / 2


def test_steps_without_requests_are_not_counted(tmp_path):
    def idle(events):
        next(e for e in events if e.get("cat") == "user_annotation")["name"] = "execute_context_0(0)_generation_0(0)"
    write_trace(tmp_path / "t.json")
    profile = read_profile(edited(tmp_path / "t.json", idle))
    assert profile.n_steps == 3 and any("without a request" in note for note in profile.notes)


def test_shapes_leave_out_views(tmp_path):
    def view(events):
        for event in events:
            event["name"] = event["name"].replace("aten::mm", "aten::view")
    write_trace(tmp_path / "t.json")
    assert read_profile(tmp_path / "t.json").shapes == (
        ("dense_gemm", "aten::mm", (4096, 6144), 50331648), ("dense_gemm", "aten::mm", (32, 4096), 262144))
    assert read_profile(edited(tmp_path / "t.json", view)).shapes == ()


def test_old_spelling_and_malformed_events(tmp_path):
    events = [
        {"ph": "X", "cat": "Kernel", "name": "nvjet_a", "ts": "100", "dur": 2, "pid": 1, "args": {"external id": 4}},
        {"ph": "X", "cat": "Memcpy", "name": "Memcpy HtoD", "ts": 103, "dur": 2, "pid": 1},
        {"ph": "X", "cat": "kernel", "name": "lost", "dur": 2}, {"ph": "X", "cat": "kernel", "ts": 1, "dur": -1},
        {"ph": "M", "name": "process_name"}, "text",
    ]
    (tmp_path / "t.json").write_text(json.dumps({"traceEvents": events}))
    profile = read_profile(tmp_path / "t.json")
    assert dict(profile.tally.lines) == {"row": 2, "malformed": 3, "other": 1}
    assert list(profile.kernels["n_calls"]) == [1, 1] and list(profile.kernels["device"]) == ["1", "1"]
    assert profile.kernels["n_blocks"].isna().all()


def test_packed_and_bare_lists_read_the_same(tmp_path):
    write_trace(tmp_path / "t.json")
    plain = read_profile(tmp_path / "t.json")
    (tmp_path / "t.json.gz").write_bytes(gzip.compress((tmp_path / "t.json").read_bytes()))
    calls = []
    packed = read_profile(tmp_path / "t.json.gz", progress=lambda *done: calls.append(done))
    size = (tmp_path / "t.json.gz").stat().st_size
    assert calls[-1] == (size, size)
    bare = tmp_path / "bare.json"
    bare.write_text(json.dumps(json.loads((tmp_path / "t.json").read_text())["traceEvents"]))
    for other in (packed, read_profile(bare)):
        pd.testing.assert_frame_equal(other.kernels.drop(columns="file"), plain.kernels.drop(columns="file"))
    # ts 1365627868906.685 us + 1.7e18 ns; an epoch in a double is good to a quarter microsecond.
    assert plain.start_epoch_s + plain.steps["start_s"][0] == pytest.approx(1.7e9 + 1365627.868906685, abs=1e-6)


@pytest.mark.parametrize(("content", "words"), [
    (b"", "expected"), (b"{}", "traceEvents"), (b'{"traceEvents": [{"ph": "X", "cat": "ker', "to its end"),
    (b"[1, 2,, 3]", "to its end"), (b"a,b,c\n1,2,3\n", "nsys stats"), (b"SQLite format 3\x00", "nsys stats"),
    (b'{"a": 1, "b": [2]}', "traceEvents"), (b'[{"name": "a run", "tok": 3}]', "traceEvents"),
    (b"\x1f\x8b\x08\x00broken", "gzip"),
])
def test_what_is_no_profile_is_refused_in_one_line(tmp_path, content, words):
    (tmp_path / "x.json").write_bytes(content)
    with pytest.raises(LogFormatError, match=words) as error:
        read_profile(tmp_path / "x.json")
    assert "\n" not in str(error.value) and "x.json" in str(error.value)


def test_union_of_intervals_against_counting():
    """Against marking single microseconds, 200 random cases."""
    random = np.random.default_rng(5)
    for _ in range(200):
        start = np.sort(random.integers(0, 60, 12)).astype(float)
        end = start + random.integers(0, 9, 12)
        marks = np.zeros(80, dtype=bool)
        for a, b in zip(start.astype(int), end.astype(int), strict=True):
            marks[a:b] = True
        busy = Busy.of(start, end)
        moments = np.arange(80.0)
        assert busy.total_s == marks.sum()
        assert list(busy.before(moments)) == [marks[: int(m)].sum() for m in moments]


@pytest.mark.slow
def test_a_large_trace_is_read_in_bounded_memory(tmp_path):
    """100 MB in a process of its own: at most 150 MiB more than before reading (1.16 GB took 95 MiB more)."""
    made = write_trace(tmp_path / "t.json", n_steps=250, n_layers=48, n_python=1500)
    assert made.n_bytes > 95e6
    code = textwrap.dedent("""
        import resource, sys
        from helpers.evidence.profiles.read import read_profile
        peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        before = peak()
        profile = read_profile(sys.argv[1])
        print(profile.n_steps, peak() - before)
    """)
    out = subprocess.run([sys.executable, "-c", code, str(tmp_path / "t.json")], capture_output=True, text=True,
                         check=True).stdout.split()
    assert int(out[0]) == 250
    assert float(out[1]) < 150
