"""Log against client and profile: hand arithmetic, simulated servers with known clients, real logs and clients."""

import functools
import json
import math

import numpy as np
import pandas as pd
import pytest

from helpers import ingest, levels, schema, segment, synth
from helpers.diagnose import reconcile
from helpers.errors import NotEnoughData


def interval(t_s, label, req, rate, interval_s, prefill_tok=0.0, **more):
    return {"file": "-", "line_no": int(t_s * 10), "ts": pd.NaT, "t_s": float(t_s), "engine": "vllm", "rank": None,
            "server_life": 0, "kind": "stats", "rank_group": "all", "running_req_printed": req, "running_req": req,
            "running_req_total": req, "decode_tok_per_s": rate, "interval_s": interval_s, "idle_s": 0.0,
            "n_steps": rate * interval_s / req if req else np.nan, "prefill_tok": prefill_tok, "episode": 0,
            "label": label, "clean": label == "steady", "why": "test", **more}


def table_of_levels(**step_s):
    rows = [{"server_life": 0, "rank_group": "all", "population": 0, "running_req": float(name[1:]),
             "running_req_total": float(name[1:]), "n_clean": 9, "step_s": step, "step_s_lo": 0.98 * step,
             "step_s_hi": 1.02 * step, "method": "table", "is_fitted": True, "n_rejected": "{}"}
            for name, step in step_s.items()]
    return schema.conform(pd.DataFrame(rows), schema.LEVELS)


@pytest.fixture
def by_hand():
    """Ten seconds each of: idle before, ramp to 8, steady at 8, mixed at 8, drain to 4; a step of 8 takes 40 ms."""
    rows = [interval(10, "idle", 0, 0.0, 10.0), interval(20, "ramp", 8, 100.0, 10.0, 800.0),
            interval(30, "steady", 8, 200.0, 10.0), interval(40, "mixed", 8, 150.0, 10.0, 200.0),
            interval(50, "drain", 4, 120.0, 10.0)]
    return schema.conform(pd.DataFrame(rows), schema.INTERVALS)


CLIENT = {"duration_s": 42.0, "n_completed": 10.0, "output_tok": 5700.0, "output_tok_per_s": 5700 / 42.0,
          "concurrency_req": 8.0, "ttft_mean_s": 2.0, "tpot_mean_s": 0.05}


def test_time_adds_up_to_the_clients_duration(by_hand):
    """From 9 s to 51 s: 1 s idle, 10 each of ramp, steady, mixed, drain; 1 s after the last line: 42 s."""
    found = reconcile.client_time(by_hand, CLIENT, start_s=9.0)
    seconds = found.to_frame().set_index("part")["time_s"]
    assert seconds.to_dict() == pytest.approx({"warmup": 0, "ramp": 10, "steady": 10, "mixed": 10, "drain": 10,
                                               "idle": 1, "not covered": 1})
    assert seconds.sum() == pytest.approx(42.0, abs=1e-12)
    assert found.to_frame()["share_frac"].sum() == pytest.approx(1.0, abs=1e-12)
    assert (found.running_req, found.steady_tok_per_s) == (8.0, 200.0)
    assert found.log_output_tok == pytest.approx(1000 + 2000 + 1500 + 1200)
    assert found.client_tok_per_s == pytest.approx(5700 / 42) and found.log_tok_per_s == pytest.approx(5700 / 42)
    assert found.naive_tok_per_s == pytest.approx((100 + 200 + 150 + 120) / 4)
    assert found.notes == ()


def test_a_window_cuts_intervals_and_their_tokens(by_hand):
    found = reconcile.client_time(by_hand, {**CLIENT, "duration_s": 10.0, "output_tok": 1750.0}, start_s=25.0)
    assert (found.seconds["steady"], found.seconds["mixed"]) == (pytest.approx(5.0), pytest.approx(5.0))
    assert found.log_output_tok == pytest.approx(5 * 200 + 5 * 150)
    other = reconcile.client_time(by_hand, {**CLIENT, "duration_s": 10.0, "output_tok": 9000.0}, start_s=25.0)
    assert "1750 tokens" in other.notes[0] and "9000" in other.notes[0]


def test_a_gap_between_intervals_is_covered_by_nothing(by_hand):
    """The drain line 30 s later claims its own 10 s and 2 s of stamps: of 42 s, 1 + 30 s are covered."""
    late = by_hand.assign(t_s=[10.0, 20.0, 30.0, 40.0, 80.0])
    found = reconcile.client_time(late, CLIENT, start_s=9.0)
    assert found.seconds["drain"] == 0 and found.not_covered_s == pytest.approx(11.0)
    found = reconcile.client_time(late, CLIENT, start_s=39.0)  # to 81 s: 1 mixed, 12 drain, 28 + 1 unknown
    assert found.seconds["drain"] == pytest.approx(12.0) and found.not_covered_s == pytest.approx(29.0)


def test_tpot_is_the_step_plus_what_prompts_take(by_hand):
    """Window 20 .. 40 s, count 8 throughout: 250 + 187.5 steps of 40 ms = 17.5 s, 2.5 s over, all in the mixed part.

    8 in flight for 2.5 s = 20 req s; 10 first tokens of 1 s took 10 of them; 10 req s over 3500 - 10 tokens remain.
    """
    client = {**CLIENT, "duration_s": 20.0, "output_tok": 3500.0, "ttft_mean_s": 1.0, "tpot_mean_s": 0.0435}
    found = reconcile.tpot_against_step(by_hand, client, table_of_levels(n4=0.030, n8=0.040), start_s=20.0)
    assert found.step_s == pytest.approx(0.040) and found.running_req == 8
    assert found.prefill_s == pytest.approx(10 / 3490)
    assert found.pauses_s == pytest.approx(0, abs=1e-12) and found.other_counts_s == pytest.approx(0, abs=1e-12)
    assert found.rest_s == pytest.approx(0.0435 - 0.040 - 10 / 3490)
    assert found.prefill_share_frac == pytest.approx(2.5 / 20)
    assert found.to_frame()["time_s"].sum() == pytest.approx(0.0435, abs=1e-12)
    # The step is known to 2 % (0.8 ms); prompts can add nothing or all 20 req s; half a second of stamps in doubt.
    assert found.rest_lo_s < -0.0008 < 0 < found.rest_s < found.rest_hi_s and found.is_explained
    much = reconcile.tpot_against_step(by_hand, {**client, "tpot_mean_s": 0.080},
                                       table_of_levels(n4=0.030, n8=0.040), start_s=20.0)
    assert not much.is_explained and much.rest_lo_s > 0.02


def test_ttft_lies_between_one_prompt_and_all_of_them(by_hand):
    """The same window: 2.5 s of prompts for 10 requests: 0.25 s each by itself, 8 x 0.25 = 2 s if all wait for all."""
    client = {**CLIENT, "duration_s": 20.0, "output_tok": 3500.0, "ttft_mean_s": 1.0}
    found = reconcile.ttft_against_queue(by_hand, client, table_of_levels(n8=0.040), start_s=20.0)
    assert found.prefill_s == pytest.approx(0.25) and found.queue_s == 0
    assert found.lo_s <= 0.25 and 2.0 <= found.hi_s < 3.0 and found.rest_s == 0
    queued = by_hand.assign(queue_req=pd.array([0, 0, 4, 4, 0], dtype="Int64"))
    found = reconcile.ttft_against_queue(queued, client, table_of_levels(n8=0.040), start_s=20.0)
    assert found.queue_s == pytest.approx(4 * 20 / 10)  # Little: 4 waiting, half a request a second
    assert found.rest_s == pytest.approx(1.0 - found.lo_s) and found.rest_s < 0


def test_what_is_missing_is_said(by_hand):
    known = table_of_levels(n8=0.040)
    assert "time per output token" in reconcile.tpot_against_step(
        by_hand, {**CLIENT, "tpot_mean_s": math.nan}, known, start_s=9.0).refused
    assert "no level" in reconcile.tpot_against_step(by_hand, CLIENT, schema.LEVELS.empty(), start_s=9.0).refused
    assert "first token" in reconcile.ttft_against_queue(
        by_hand, {**CLIENT, "ttft_mean_s": None}, known, start_s=9.0).refused
    with pytest.raises(NotEnoughData, match="start on the log's clock"):
        reconcile.client_time(by_hand, CLIENT, start_s=math.nan)
    with pytest.raises(NotEnoughData, match="duration"):
        reconcile.client_time(by_hand, {}, start_s=0.0)
    with pytest.raises(NotEnoughData, match="time stamps"):
        reconcile.client_time(by_hand.assign(t_s=np.nan), CLIENT, start_s=0.0)
    derived = reconcile.tpot_against_step(
        by_hand, {**CLIENT, "tpot_mean_s": math.nan, "e2e_mean_s": 30.0, "ttft_mean_s": 2.0}, known, start_s=9.0)
    assert derived.tpot_s == pytest.approx(28 * 10 / 5690) and "latency" in derived.notes[0]


@pytest.mark.parametrize(("step_s", "lo", "hi", "req", "verdict"), [
    (0.041, 0.040, 0.042, 8, "represents"),  # 2.5 % above the level
    (0.043, 0.0428, 0.0432, 8, "represents"),  # 7.5 % above, surely: less than a profiler may cost
    (0.060, 0.058, 0.062, 8, "differs by +50 %"),
    (0.035, 0.034, 0.036, 6, "represents"),  # halfway between 30 and 40 ms
    (0.040, 0.020, 0.060, 8, "cannot tell: the ratio"),
    (0.040, 0.039, 0.041, 32, "cannot tell: 32 requests"),
    (0.040, 0.039, 0.041, math.nan, "cannot tell: how many requests"),
    (math.nan, math.nan, math.nan, 8, "cannot tell: the profile has no step"),
])
def test_a_profile_represents_the_run_or_not(step_s, lo, hi, req, verdict):
    found = reconcile.profile_against_log(step_s, lo, hi, req, table_of_levels(n4=0.030, n8=0.040))
    assert found.verdict.startswith(verdict)
    assert found.represents is (None if "cannot" in verdict else verdict == "represents")
    if "differs" in verdict:
        assert found.ratio == pytest.approx(1.5) and found.level_req == 8
        assert found.ratio_lo == pytest.approx(0.058 / 0.0408) and found.ratio_hi == pytest.approx(0.062 / 0.0392)
    assert reconcile.profile_against_log(0.04, 0.04, 0.04, 8, schema.LEVELS.empty()).represents is None


def client_of_truth(result):
    row = {name: result[name] for name in ("duration_s", "n_completed", "output_tok", "output_tok_per_s")}
    return row | {"concurrency_req": result["running_req"], "ttft_mean_s": result["ttft_s_mean"],
                  "tpot_mean_s": result["tpot_s_mean"]}


@functools.cache
def read_simulation(name):
    run = synth.presets.get(name).simulate(seed=3)
    events = schema.EVENTS.empty()
    interval_steps = {} if run.server.engine == "vllm" else {"decode_log_interval": run.server.decode_log_interval}
    intervals = segment.label_intervals(run.samples(), events, facts=[interval_steps])
    return run, intervals, levels.summarise_levels(intervals)


@pytest.mark.parametrize(("name", "rest_frac"), [
    ("dense_sweep", 0.006), ("vllm_sweep", 0.003), ("speculation", 0.02), ("graph_limit", 0.005),
    ("field_case_a", 0.04),  # twenty steps of two seconds a line: a load of 415 s has 9 lines at 64
])
def test_simulated_clients_are_explained(name, rest_frac):
    """Truth: start and duration of every load, mean time per token and to first token of its client."""
    run, intervals, known = read_simulation(name)
    rests = []
    for result, phase in zip(run.truth["client_results"], run.truth["phases"], strict=True):
        client = client_of_truth(result)
        time = reconcile.client_time(intervals, client, start_s=phase["start_s"])
        assert sum(time.seconds.values()) + time.not_covered_s == pytest.approx(client["duration_s"], abs=1e-9)
        assert time.log_output_tok == pytest.approx(client["output_tok"], rel=0.06)  # lines not printed at both ends
        assert 0 <= time.not_covered_s < 0.06 * client["duration_s"]
        steady_rate = result["running_req"] / next(
            row["step_s"] for row in run.truth["levels"] if row["running_req"] == result["running_req"])
        if name in ("dense_sweep", "vllm_sweep"):
            assert time.steady_tok_per_s == pytest.approx(steady_rate, rel=0.02)
        token = reconcile.tpot_against_step(intervals, client, known, start_s=phase["start_s"])
        assert token.refused is None and token.is_explained
        assert token.to_frame()["time_s"].sum() == pytest.approx(client["tpot_mean_s"], rel=1e-9)
        true_s = next(row["step_s"] / (row["accept_len"] or 1) for row in run.truth["levels"]
                      if row["running_req"] == result["running_req"])
        assert token.step_s == pytest.approx(true_s, rel=0.03)
        rests.append(abs(token.rest_s) / client["tpot_mean_s"])
    assert max(rests) < rest_frac


def test_retracted_requests_wait_again():
    """pool_full, 32 requests: the pool holds fewer; waiting that no first token waited for is named."""
    run, intervals, known = read_simulation("pool_full")
    result, phase = run.truth["client_results"][-1], run.truth["phases"][-1]
    token = reconcile.tpot_against_step(intervals, client_of_truth(result), known, start_s=phase["start_s"])
    assert token.requeued_s > 0.05 * token.tpot_s and token.is_explained


def test_a_load_is_found_by_its_tokens_only_where_it_stands_alone():
    run, intervals, _ = read_simulation("graph_limit")
    phases = {phase["running_req"]: phase for phase in run.truth["phases"]}
    placed = {result["running_req"]: reconcile.place_client(intervals, client_of_truth(result))
              for result in run.truth["client_results"]}
    found = {req: place for req, place in placed.items() if math.isfinite(place.start_s)}
    assert len(found) >= 3
    for req, place in found.items():
        assert abs(place.start_s - phases[req]["start_s"]) <= place.uncertainty_s
    twice, intervals, _ = read_simulation("idle_gaps")  # every load comes two times
    for result in twice.truth["client_results"]:
        assert math.isnan(reconcile.place_client(intervals, client_of_truth(result)).start_s)
    assert "no duration" in reconcile.place_client(intervals, {}).how


def client_of_file(path):
    told = json.loads(path.read_text())
    row = {"duration_s": told["duration"], "n_completed": told["completed"], "concurrency_req": told["max_concurrency"],
           "output_tok": told["total_output_tokens"], "output_tok_per_s": told["output_throughput"]}
    for what in ("ttft", "tpot"):
        value = told.get(f"mean_{what}_ms")
        row[f"{what}_mean_s"] = math.nan if value is None else value / 1e3
    return row


@functools.cache
def read_real(log_path):
    log = ingest.read_log([log_path])
    intervals = segment.label_intervals(log.samples, log.events, facts=log.facts)
    return intervals, levels.summarise_levels(intervals)


@pytest.mark.parametrize(("name", "rest_frac"), [("vllm-sweep", 0.07), ("sglang-sweep", 0.07)])
def test_real_clients_are_explained(data, name, rest_frac):
    """Truth: per-token times of the client (truth.csv); the start of each load in UTC, which the log's stamps are."""
    folder = data / "samples" / name
    truth = pd.read_csv(folder / "truth.csv")
    intervals, known = read_real(folder / "server.log")
    first = intervals.iloc[0]
    epoch_s = first["ts"].replace(year=2026).tz_localize("UTC").timestamp() - first["t_s"]
    for row in truth.to_dict("records"):
        client = {"duration_s": row["bench_duration_s"], "n_completed": row["requests"],
                  "output_tok": 256.0 * row["requests"], "concurrency_req": row["concurrency"]}
        start_s = row["first_unix"] - epoch_s
        time = reconcile.client_time(intervals, client, start_s=start_s)
        assert sum(time.seconds.values()) + time.not_covered_s == pytest.approx(client["duration_s"], abs=1e-9)
        assert time.client_tok_per_s == pytest.approx(row["bench_output_tok_s"], rel=0.01)
        truth_rate = row["steady_tok_s"] if name == "vllm-sweep" else row["concurrency"] / row["itl_ms_median"] * 1e3
        assert time.steady_tok_per_s == pytest.approx(truth_rate, rel=0.06)
        # Time per token by hand from the same truth: the mean gap of steady tokens.
        tpot = {**client, "tpot_mean_s": row["itl_ms_mean"] / 1e3, "ttft_mean_s": math.nan}
        token = reconcile.tpot_against_step(intervals, tpot, known, start_s=start_s)
        assert token.is_explained and token.running_req == row["concurrency"]
        if (name, row["concurrency"]) in (("sglang-sweep", 8), ("sglang-sweep", 16)):  # a neighbour on the cores
            assert token.pauses_s > 0.25 * token.tpot_s
        else:
            assert abs(token.rest_s) < rest_frac * token.tpot_s


@pytest.mark.parametrize("name", ["vllm-sweep", "sglang-sweep", "vllm-sweep-10s"])
def test_real_client_files_are_explained(shared, data, name):
    folder = shared / "logs" / "own" / name
    bundled = data / "samples" / name / "server.log"  # the same bytes, read once
    intervals, known = read_real(bundled if bundled.is_file() else folder / "server.log")
    first = intervals.iloc[0]
    epoch_s = first["ts"].replace(year=2026).tz_localize("UTC").timestamp() - first["t_s"]
    for row in pd.read_csv(folder / "truth.csv").to_dict("records"):
        client = client_of_file(folder / "client" / f"{row['label']}.json")
        token = reconcile.tpot_against_step(intervals, client, known, start_s=row["first_unix"] - epoch_s)
        assert token.refused is None and token.is_explained, row["label"]
        assert abs(token.rest_s) < 0.08 * token.tpot_s


def test_a_full_pool_case_is_placed_by_its_tokens(shared):
    """450 answers with 2,275,328 tokens in 184.37 s, 128 clients; the log starts its load 10 s before 09:13:28."""
    folder = shared / "cases" / "pool-full-a"
    client = client_of_file(folder / "client.json")
    intervals, known = read_real(folder / "server.log")
    place = reconcile.place_client(intervals, client)
    assert place.start_s == pytest.approx(136.0, abs=0.5) and place.uncertainty_s == pytest.approx(10.0)
    time = reconcile.client_time(intervals, client, start_s=place.start_s)
    assert time.client_tok_per_s == pytest.approx(12_341.28, rel=1e-4)
    assert time.log_tok_per_s == pytest.approx(12_341.28, rel=0.02)
    assert math.isnan(time.steady_tok_per_s) and time.seconds["steady"] == 0  # never 128, never constant
    assert sum(time.seconds.values()) + time.not_covered_s == pytest.approx(184.37, abs=1e-9)
    assert reconcile.tpot_against_step(intervals, client, known, start_s=136.0).refused == \
        "the client file has no time per output token"
