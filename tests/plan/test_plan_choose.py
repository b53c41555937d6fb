"""The next experiment: durations, predictions and ranking, against the field reports and hand arithmetic."""

from __future__ import annotations

import json
import math
import random
import time

import pandas as pd
import pytest

from helpers.plan import CAUSES, TABLE, Load, Outcome, choose, from_card, kept_args, script, sweep_duration, weights
from helpers.plan.choose import classify, information

CASE_A = {
    "engine": "sglang", "engine_version": "0.5.14", "model": "DeepSeek-V4-Flash", "tp": 4, "gpus": 8,
    "context_length_max": 1048576, "law": (0.052, 0.030), "captured_batch_sizes": [1, 2, 4, 8, 12, 16, 24, 32],
    "levels": [{"running_req": 1, "step_s": 0.082}, {"running_req": 16, "step_s": 0.532},
               {"running_req": 64, "step_s": 1.972}],
    "prompt_tokens": 256, "output_tokens": 128,
}
"""Field case A, config 2: step = 52 + 30 N ms (field-cases.md)."""

WITHOUT_CRASH_LINE = {
    "max_context_work": ("compatible", 2), "latency_or_occupancy": ("compatible", 1),
    "serialised_requests": ("weak", 0), "host_or_scheduler": ("weak", 0), "weight_bandwidth": ("refuted", -3),
    "communication": ("refuted", -3), "kv_bandwidth": ("refuted", -3),
}


def law(running_req: float) -> float:
    return 0.052 + 0.030 * running_req


def plan_named(name: str, known: dict, status: dict | None = None):
    return next(plan for plan in choose(status or {}, known) if plan.name == name)


# duration ------------------------------------------------------------------------------------------------------------

def test_the_sweep_of_field_case_a_takes_13_5_minutes():
    loads = [Load(1, 256, 128, 8), Load(16, 256, 128, 48), Load(64, 256, 128, 128)]
    found = sweep_duration(loads, law)
    # 8 x 128 x 82 ms; 3 waves x 128 x 532 ms; 2 waves x 128 x 1972 ms
    assert found.by_load_s == pytest.approx((83.968, 204.288, 504.832))
    assert found.total_s == pytest.approx(13.5 * 60, rel=0.03)
    assert found.by_load_s[2] == pytest.approx(128 * 128 / 32, rel=0.02)  # the report: 512 s at 32 tok/s
    assert any("prefill" in note for note in found.assumptions)
    # 184 prompts of 256 tokens at 2600 tok/s are the rest
    assert sweep_duration(loads, law, prefill_tok_per_s=2600).total_s == pytest.approx(793.088 + 184 * 256 / 2600)


def test_a_part_wave_runs_at_its_own_step_and_acceptance_shortens():
    found = sweep_duration([Load(64, 256, 128, 96)], law, prefill_tok_per_s=math.inf)
    assert found.total_s == pytest.approx(128 * law(64) + 128 * law(32))
    assert found.assumptions == ()
    assert sweep_duration([Load(64, 256, 128, 64)], law, accept_len=2.0).total_s == pytest.approx(64 * law(64))
    assert sweep_duration([Load(64, 256, 128, 64)], law, accept_len=math.nan).total_s == pytest.approx(128 * law(64))


def test_an_unknown_step_is_assumed_and_said():
    found = sweep_duration([Load(4, 1, 100, 4)], lambda n: None)
    assert found.total_s == pytest.approx(5.0) and any("50 ms" in note for note in found.assumptions)


# choice --------------------------------------------------------------------------------------------------------------

def test_field_case_a_without_its_crash_line_gets_the_context_cap():
    best = choose(WITHOUT_CRASH_LINE, CASE_A)[0]
    assert best.name == "context_cap"
    # 8192 of 1048576 tokens are left: 52 + 480 / 128 = 55.75 of 532 ms
    assert best.predicts["max_context_work"].ratio == pytest.approx(55.75 / 532)
    assert "from 532 ms to 55.8 ms or less" in best.predicts["max_context_work"].text
    assert best.predicts["latency_or_occupancy"].text.startswith("step at N=16 stays at 532 ms within 5 %")
    assert "weight_bandwidth" not in best.predicts
    # 8 lines of 40 steps at 532 ms, and three minutes to start
    assert best.duration_s == pytest.approx(320 * 0.532 + 180)
    entry = best.as_next_experiment("runs/x")
    assert set(entry) == {"what", "command", "duration_s", "predicts"}
    assert entry["command"] == "rooflog plan runs/x --experiment context_cap"
    assert entry["predicts"]["max_context_work"] == best.predicts["max_context_work"].text


def test_a_known_start_up_replaces_the_assumed_one():
    best = choose(WITHOUT_CRASH_LINE, CASE_A | {"startup_s": 60.0})[0]
    assert best.duration_s == pytest.approx(320 * 0.532 + 60)
    assert not any("start-up" in note for note in best.assumptions)
    running = plan_named("clock_lock", CASE_A | {"server_is_running": True})
    assert running.n_starts == 0 and running.duration_s == pytest.approx(2 * 320 * 0.532)


def test_field_case_b_asks_for_other_weight_bytes():
    known = {"engine": "sglang", "model": "Qwen3.6-27B", "tp": 2, "gpus": 2, "accept_len": 3.08, "num_draft_tokens": 4,
             "speculative_algorithm": "NEXTN", "levels": [{"running_req": 1, "step_s": 0.0555}], "law": (0.0555, 0.0),
             "components": [{"running_req": 1, "name": "draft", "time_s": 0.0056}]}
    plans = choose({"weight_bandwidth": ("compatible", 2), "low_acceptance": ("compatible", 1),
                    "communication": ("refuted", -3), "host_or_scheduler": ("weak", 0)}, known)
    assert plans[0].name == "fp8_weights"
    assert plans[0].predicts["weight_bandwidth"].ratio == pytest.approx(0.5)  # one request: all of it is weights
    off = next(plan for plan in plans if plan.name == "speculation_off")
    # 3.08 tokens in 55.5 ms are 55.5 tok/s; 1 token in 55.5 - 5.6 = 49.9 ms is 20.0 tok/s
    assert "from 55.5 tok/s to 20.0 tok/s" in off.predicts["weight_bandwidth"].text
    assert off.predicts["low_acceptance"].ratio == 1.0


def test_predictions_of_a_line():
    known = CASE_A | {"context_length_max": 65536, "law": (0.010, 0.001),
                      "levels": [{"running_req": n, "step_s": 0.010 + 0.001 * n} for n in (1, 16, 64)]}
    lengths = plan_named("two_prompt_lengths", known)
    # prompts 256 and 4 x (256 + 320) = 2304, half of 320 output tokens beside them: 2464 / 416 = 5.923
    at_16_ms = 10 + 16 * 2464 / 416
    assert lengths.predicts["kv_bandwidth"].ratio == pytest.approx(at_16_ms / 26)
    assert f"to {at_16_ms:.0f} ms" in lengths.predicts["kv_bandwidth"].text
    assert lengths.predicts["max_context_work"].ratio == 1.0
    assert [load.phase for load in lengths.loads] == [1, 2]
    kv = plan_named("fp8_kv", known)
    assert kv.predicts["kv_bandwidth"].ratio == pytest.approx((10 + 8) / 26)
    tp = plan_named("tp_change", known)
    assert tp.changes.settings == {"tp": 8}
    assert tp.predicts["weight_bandwidth"].ratio == pytest.approx((5 + 16) / 26)
    # a quarter of the step at least, 7 hops instead of 3
    assert tp.predicts["communication"].ratio == pytest.approx(1 + 0.25 * (7 / 3 - 1))
    # with a roofline of 20 ms in 26: TP 8 halves the bytes of the 20, and only the cause decides about the 6 above
    tp = plan_named("tp_change", known | {"target_step_s": {"16": 0.020}})
    assert tp.predicts["weight_bandwidth"].ratio == tp.predicts["kv_bandwidth"].ratio == pytest.approx(13 / 26)
    assert tp.predicts["communication"].ratio == pytest.approx((10 + 6 * 7 / 3) / 26)
    assert tp.predicts["host_or_scheduler"].ratio == pytest.approx((10 + 6) / 26)
    clock = plan_named("clock_lock", known)
    assert clock.predicts["latency_or_occupancy"].ratio == pytest.approx(1.25)
    assert clock.predicts["tensor_compute"].ratio == pytest.approx((10 + 16 * 1.25) / 26)
    assert "max_context_work" not in clock.predicts, "it may be bound by either: the experiment is silent"
    sizes = plan_named("captured_sizes", known)
    assert [load.running_req for load in sizes.loads] == [1, 2] or [load.running_req for load in sizes.loads] == [4, 5]
    assert sizes.predicts["graph_padding"].ratio == pytest.approx(18 / 14)  # 5 padded to 8, over 4
    assert sizes.predicts["kv_bandwidth"].ratio == pytest.approx(15 / 14)


def test_a_jump_above_the_captured_sizes_asks_for_more_graphs():
    known = CASE_A | {"captured_batch_sizes": [1, 2, 4, 8, 16], "law": None, "context_length_max": None,
                      "levels": [{"running_req": 1, "step_s": 0.011}, {"running_req": 16, "step_s": 0.026},
                                 {"running_req": 32, "step_s": 0.090}]}
    plan = plan_named("capture_more", known, {"graph_fallback": ("compatible", 2), "kv_bandwidth": ("weak", 0)})
    assert plan.predicts["graph_fallback"].ratio == pytest.approx(0.042 / 0.090)  # 10 + 32 ms
    assert plan.changes.shown("sglang") == "--cuda-graph-max-bs 32"
    assert plan.changes.shown("vllm") == '--compilation-config {"cudagraph_capture_sizes": [1, 2, 4, 8, 16, 32]}'


def test_without_a_law_a_sweep_and_with_one_none():
    assert choose({}, {})[0].name == "sweep"
    assert "sweep" not in [plan.name for plan in choose({}, CASE_A)]
    assert "sweep" in [plan.name for plan in choose({}, CASE_A | {"law_refused": "one level"})]
    assert [load.running_req for load in plan_named("sweep", {"max_running_requests": 20}).loads] == [1, 4, 16]
    halved = plan_named("halve_n", {"levels": [{"running_req": 32, "step_s": 0.1}]})
    assert [load.running_req for load in halved.loads] == [16]
    assert halved.predicts["tensor_compute"].ratio == 0.5


def test_only_what_can_be_done_here_is_proposed():
    names = {plan.name for plan in choose({}, CASE_A | {"has_telemetry": True})}
    assert "add_telemetry" not in names and not names & {"speculation_off", "even_ranks", "fp8_kv"} - {"fp8_kv"}
    names = {plan.name for plan in choose({}, {"engine": "sglang", "tp": 1, "gpus": 1, "kv_cache_dtype": "fp8_e5m2"})}
    assert not names & {"tp_change", "custom_all_reduce_off", "profile_collectives", "fp8_kv", "context_cap"}
    tight = CASE_A | {"tp": 2, "gpus": 2, "weight_bytes": 54e9, "mem_bytes": 48e9}
    assert "tp_change" not in {plan.name for plan in choose({}, tight)}
    assert "tp_change" in {plan.name for plan in choose({}, tight | {"weight_bytes": 27e9})}


def test_a_profile_has_a_minute_of_steady_decode():
    known = CASE_A | {"levels": [], "law": (0.01, 0.0), "accept_len": 2.0}
    fast, slow = (plan_named("profile_two_levels", facts).loads for facts in (known, CASE_A))
    assert [load.output_tok for load in fast] == [12000, 12000]  # 2 tokens x 60 s / 10 ms
    assert [load.output_tok for load in slow] == [349, 320]  # 60 s / 172 ms; 8 lines of 40 steps


def test_nothing_to_tell_apart():
    assert choose({"kv_bandwidth": ("supported", 5), "communication": ("refuted", -3)}, CASE_A) == []
    assert choose({"unknown": ("compatible", 0), "healthy": ("supported", 4)}, CASE_A) == []


def test_loads_fit_in_the_context_and_under_the_admission_limit():
    for known in (CASE_A | {"context_length_max": 600, "max_running_requests": 8}, {"context_length_max": 64}):
        for plan in choose({}, known):
            for load in plan.loads:
                assert load.prompt_tok + load.output_tok <= known["context_length_max"], plan.name
                assert plan.name == "more_admitted" or load.running_req <= max(
                    known.get("max_running_requests", 64), 64 if known.get("levels") else 0)


# information ---------------------------------------------------------------------------------------------------------

def test_weights_are_ten_per_three_points_of_score():
    found = weights({"kv_bandwidth": ("compatible", 3), "communication": ("weak", 0),
                     "host_or_scheduler": ("refuted", 9), "unknown": ("compatible", 3)})
    assert found == pytest.approx({"kv_bandwidth": 10 / 11, "communication": 1 / 11})
    capped = weights({"kv_bandwidth": ("supported", 40), "communication": ("weak", None)})
    assert capped["kv_bandwidth"] == pytest.approx(100 / 101)
    assert weights({})["kv_bandwidth"] == pytest.approx(1 / len(CAUSES))


def test_information_by_hand():
    yes, no = Outcome("", 0.1), Outcome("", 1.0)
    assert information({"a": (0.5, yes), "b": (0.5, no)}, 0.0) == pytest.approx(1.0)
    # a binary symmetric channel: 1 - h(0.1) = 1 - 0.4690
    assert information({"a": (0.5, yes), "b": (0.5, no)}, 0.1) == pytest.approx(1 - 0.468996, abs=1e-6)
    assert information({"a": (0.5, yes), "b": (0.5, yes)}, 0.0) == 0.0
    assert information({"a": (0.5, yes), "b": (0.5, None)}, 0.0) == 0.0
    four = {cause: (0.25, Outcome("", None, cause)) for cause in "abcd"}
    assert information(four, 0.0) == pytest.approx(2.0)


def test_predictions_closer_than_a_tenth_are_one_outcome():
    ratios = [Outcome("", ratio) for ratio in (1.0, 1.09, 1.25, 0.5)] + [Outcome("", None, "x"), None]
    assert classify(ratios) == [0, 0, 1, 2, 3, None]


def test_more_error_or_more_minutes_never_help():
    plans = choose(WITHOUT_CRASH_LINE, CASE_A)
    slow = choose(WITHOUT_CRASH_LINE, CASE_A | {"startup_s": 3600})
    assert all(a.bits_per_min >= b.bits_per_min for a, b in zip(plans, plans[1:], strict=False))
    by_name = {plan.name: plan for plan in slow}
    for plan in plans:
        assert by_name[plan.name].bits == pytest.approx(plan.bits)
        assert by_name[plan.name].bits_per_min < plan.bits_per_min


# any input -----------------------------------------------------------------------------------------------------------

def test_every_row_speaks_of_known_causes_only():
    assert len({row.name for row in TABLE}) == len(TABLE) == 25
    for row in TABLE:
        assert row.predicts and set(row.predicts) <= set(CAUSES)
    tested = {cause for row in TABLE for cause in row.predicts}
    assert tested == set(CAUSES), "a cause that no experiment can test"


def test_nothing_known_or_nonsense_never_raises():
    draw = random.Random(5)
    odd = [None, math.nan, math.inf, -1, 0, 1, 3, 1e30, "x", "", [], {}, True, pd.NA, (1, 2), [0], {"a": 1}, 0.5]
    names = [*CASE_A, "dp", "ep", "max_running_requests", "accept_len", "num_draft_tokens", "components",
             "target_step_s", "startup_s", "args", "prefill_frac", "speculative_algorithm",
             "kv_cache_dtype", "cuda_graph_enabled"]
    for _ in range(400):
        known = {**CASE_A, **{name: draw.choice(odd) for name in draw.sample(names, draw.randint(0, len(names)))}}
        if draw.random() < 0.5:
            known["engine"] = draw.choice(["sglang", "vllm", "llamacpp"])
        words = ["supported", "compatible", "weak", "refuted"]
        status = {cause: (draw.choice(words), draw.choice([None, 1, -2, math.nan]))
                  for cause in draw.sample(CAUSES, draw.randint(0, len(CAUSES)))}
        for plan in choose(status, known):
            assert plan.duration_s > 0 and plan.bits > 0 and plan.loads
            assert all(outcome.text for outcome in plan.predicts.values())
            if str(known["engine"]) in ("sglang", "vllm") and draw.random() < 0.1:
                facts = script(plan, known).split("<<'FACTS'\n")[1].split("\nFACTS\n")[0]
                assert isinstance(json.loads(facts, parse_constant=pytest.fail), dict)


def test_choice_is_fast_and_pure():
    known, status = dict(CASE_A), dict(WITHOUT_CRASH_LINE)
    first = choose(status, known)
    assert (known, status) == (CASE_A, WITHOUT_CRASH_LINE)
    times = []
    for _ in range(5):
        start = time.process_time()
        assert choose({}, known)[0].name and choose(status, known) == first
        times.append(time.process_time() - start)
    assert min(times) < 0.05  # two calls; each takes about 3 ms


# from a scorecard ----------------------------------------------------------------------------------------------------

def test_a_scorecard_gives_its_facts_and_the_user_wins():
    card = {
        "run": {"engine": "sglang", "model": "m", "hardware": None, "parallel": {"tp": 4, "dp": None},
                "facts": {"context_length_max": 4096, "args": {"model_path": "m"}}},
        "fit": {"intercept_s": 0.05, "slope_s_per_req": 0.03, "refused": None},
        "levels": [{"running_req": 1, "step_s": 0.08, "accept_len": 2.5, "is_fitted": True},
                   {"running_req": 2, "step_s": 9.0, "accept_len": None, "is_fitted": False}],
        "roofline": {"target": {"step_s": {"1": 0.004}}}, "components": [],
    }
    known = from_card(card, {"parallel": {"tp": 8}, "context_length_max": 8192})
    assert (known["tp"], known["context_length_max"], known["accept_len"]) == (8, 8192, 2.5)
    assert known["law"] == (0.05, 0.03) and known["target_step_s"] == {"1": 0.004}
    assert [row["running_req"] for row in known["levels"]] == [1]
    refused = from_card({**card, "fit": {"intercept_s": 0.05, "slope_s_per_req": 0.03, "refused": "no"}})
    assert "law" not in refused and refused["law_refused"] == "no"
    assert from_card({}) == {"levels": [], "target_step_s": {}, "components": []}


def test_arguments_that_may_be_repeated():
    assert kept_args("sglang", {"tp_size": 4, "api_key": "k", "host": "h", "kv_cache_dtype": "auto",
                                "disable_cuda_graph": False, "cuda_graph_bs": [1, 2], "page_size": 1}) == {
        "page_size": 1, "tp_size": 4}
    assert kept_args("vllm", {"enforce_eager": False, "enable_prefix_caching": False,
                              "served_model_name": ["a", "b"]}) == {"enable_prefix_caching": False,
                                                                    "served_model_name": "a"}
