"""The truth of a simulation, against direct averages of its steps, closed forms and invariants."""

from __future__ import annotations

import json
from collections import deque

import numpy as np
import pandas as pd
import pytest

from helpers import synth
from helpers.schema import SAMPLES, check
from helpers.synth import Client, ConfigError, Lengths, Noise, Server, StepLaw
from helpers.synth.batch import Group, Pool
from helpers.synth.client import Request
from helpers.synth.trace import DECODE


def levels_of(run: synth.Simulation) -> dict[int, dict]:
    return {row["running_req"]: row for row in run.truth["levels"] if not row["is_identical"]}


def test_laws_against_closed_forms():
    assert StepLaw(intercept_s=0.05, slope_s_per_req=0.03).step_s(16) == pytest.approx(0.53, rel=1e-12)
    moe = StepLaw(kind="moe", intercept_s=0.01, expert_s=0.02, n_experts=8, n_experts_active=2, slope_s_per_req=0.001)
    assert moe.step_s(1) == pytest.approx(0.01 + 0.02 * 0.25 + 0.001, rel=1e-12)
    assert moe.step_s(2) == pytest.approx(0.01 + 0.02 * (1 - 0.75**2) + 0.002, rel=1e-12)
    hinge = StepLaw(kind="hinge", plateau_s=0.04, intercept_s=0.01, slope_s_per_req=0.001)
    assert (hinge.step_s(8), hinge.step_s(50)) == pytest.approx((0.04, 0.06), rel=1e-12)
    context = StepLaw(intercept_s=0.01, slope_s_per_req=0.0, context_s_per_tok=1e-6)
    assert context.step_s(4, 2000) == pytest.approx(0.012, rel=1e-12)


def test_true_and_realised_steps_are_averages_of_steps():
    """realised_step_s is the mean length of the pure decode forwards at N; step_s the law there."""
    run = synth.presets.get("dense_sweep").simulate(seed=4)
    law = run.server.law
    for n, row in levels_of(run).items():
        lengths = [f.end_s - f.start_s for f in run.trace.forwards
                   if f.kind == DECODE and f.batch_req == n and f.is_pure and f.is_ready]
        assert row["n_steps"] == len(lengths)
        assert row["realised_step_s"] == pytest.approx(np.mean(lengths), rel=1e-9)
        assert row["step_s"] == pytest.approx(law.step_s(n), rel=1e-9)
        if row["n_steps"] > 1000:
            # AR(1) with 0.6 over ~38 blocks of sigma 1.5 %: standard error 0.49 %; 4 of them
            assert row["realised_step_s"] == pytest.approx(row["step_s"], rel=0.02)


def test_noise_has_mean_one_and_the_correlation_asked_for():
    noise = Noise(sigma_frac=0.1, ar1=0.5, spike_prob=0.02, spike_factor=3.0)
    run = synth.simulate(Server(noise=noise, overlap_schedule=False),
                         Client(levels_req=(1,), n_prompts=(1,), output=Lengths(mean_tok=40_000)), seed=7)
    steps = np.array([(f.end_s - f.start_s) / f.expected_s for f in run.trace.forwards if f.is_ready and f.is_pure])
    # sigma ~0.3 with spikes: standard error 0.15 %, correlated part included 0.17 %; 4 of them
    assert steps.mean() == pytest.approx(1.0, abs=0.007)
    logs = np.log(steps[steps < 1.6])  # without the spikes, factor 3 / 1.04
    assert logs.std() == pytest.approx(0.1, rel=0.03)
    assert np.corrcoef(logs[:-1], logs[1:])[0, 1] == pytest.approx(0.5, abs=0.03)


def test_level_deviation_is_fixed_per_level_and_of_the_size_asked_for():
    server = Server(level_deviation_frac=0.03)
    client = Client(levels_req=tuple(range(1, 60)), prompts_per_req=1.0, output=Lengths(mean_tok=30), gap_s=0.0)
    run = synth.simulate(server, client, seed=11)
    rows = levels_of(run)
    deviation = np.array([rows[n]["step_s"] / server.law.step_s(n) - 1 for n in range(1, 60)])
    assert deviation.std() == pytest.approx(0.03, rel=0.3)  # 59 draws: 9 % standard error of a deviation
    again = levels_of(synth.simulate(server, Client(levels_req=(30,)), seed=11))
    assert again[30]["step_s"] == pytest.approx(rows[30]["step_s"], rel=1e-12)  # does not depend on the load


def test_padding_is_a_staircase_and_eager_steps_are_slower():
    server = Server(pad_to_captured=True, captured_batch_sizes=(1, 4, 8), eager_factor=2.0)
    run = synth.simulate(server, Client(levels_req=(1, 2, 3, 4, 5, 9), output=Lengths(mean_tok=30)))
    rows, law = levels_of(run), server.law
    for n, padded in ((1, 1), (2, 4), (3, 4), (4, 4), (5, 8)):
        assert rows[n]["step_s"] == pytest.approx(law.step_s(padded), rel=1e-12) and rows[n]["graph"]
    assert rows[9]["step_s"] == pytest.approx(2 * law.step_s(9), rel=1e-12) and not rows[9]["graph"]


def test_context_grows_the_step():
    law = StepLaw(intercept_s=0.01, slope_s_per_req=0.0, context_s_per_tok=1e-5)
    client = Client(levels_req=(2,), n_prompts=(2,), prompt=Lengths(mean_tok=100), output=Lengths(mean_tok=11),
                    stagger_s=0.0)
    run = synth.simulate(Server(law=law, overlap_schedule=False), client)
    lengths = [f.end_s - f.start_s for f in run.trace.forwards if f.is_ready and f.is_pure]
    expected = [0.01 + 1e-5 * 2 * (100 + k) for k in range(1, 11)]
    assert lengths == pytest.approx(expected, rel=1e-9)


def test_bursts_slow_what_starts_in_them_and_are_no_part_of_the_truth():
    run = synth.presets.get("noisy_neighbour", noise=Noise()).simulate()
    (start_s, length_s, factor), *_ = run.server.neighbour_bursts
    inside = [f for f in run.trace.forwards if start_s <= f.start_s < start_s + length_s and f.kind == DECODE]
    assert len(inside) > 10
    for f in inside:
        assert (f.end_s - f.start_s) / f.expected_s == pytest.approx(factor, rel=1e-9)
    for row in run.truth["levels"]:
        assert row["realised_step_s"] == pytest.approx(row["step_s"], rel=1e-9)


def test_client_average_lies_below_steady_by_ramp_and_drain():
    """Field case A: 29.7 tok/s at the client, 32.85 steady: the rest is prefill, and 32 prompts left over.

    Hand: 127 + 1 steps at 64 (1.948 s) + 128 at 32 (1.0215 s) = 380 s; 13 + 1 forwards of at most 8 prompts, 96 * 256
    tokens at 1.22 ms and 14 * 0.35 s = 34.9 s; 12,288 tokens in 415 s = 29.6 tok/s.
    """
    run = synth.presets.get("field_case_a").simulate(seed=1)
    result = run.truth["client_results"][-1]
    assert result["output_tok_per_s"] == pytest.approx(12288 / (380.1 + 34.9), rel=0.01)
    assert result["output_tok_per_s"] == pytest.approx(29.71, rel=0.01)  # the field's client
    decode = run.samples().query("kind == 'decode'")
    at_64 = decode.query("running_req == 64")["decode_tok_per_s"]
    assert at_64.iloc[1:].median() == pytest.approx(32.85, rel=0.02)  # tick noise 0.4 %, correlated
    assert at_64.iloc[0] < 0.3 * 32.85  # first line: idle and prefill
    assert decode.query("running_req == 16")["decode_tok_per_s"].iloc[0] < 6
    ttft = [r["ttft_s_median"] for r in run.truth["client_results"]]
    assert ttft[0] < 1 < ttft[1] < ttft[2]


def test_client_results_against_hand_arithmetic():
    """Two requests of 5 tokens: sent at 0, prefill 0.5 s, four steps of 0.2 s: 10 tok in 1.3 s."""
    server = Server(law=StepLaw(intercept_s=0.1, slope_s_per_req=0.05), prefill_fixed_s=0.5, prefill_s_per_tok=0.0,
                    overlap_schedule=False)
    client = Client(levels_req=(2,), n_prompts=(2,), output=Lengths(mean_tok=5), stagger_s=0.0)
    result = synth.simulate(server, client).truth["client_results"][0]
    assert result["duration_s"] == pytest.approx(1.3, rel=1e-9)
    assert result["output_tok_per_s"] == pytest.approx(10 / 1.3, rel=1e-9)
    assert result["ttft_s_median"] == pytest.approx(0.5, rel=1e-9)
    assert result["tpot_s_median"] == pytest.approx(0.2, rel=1e-9)


def test_phases_are_in_order_and_steady_is_when_exactly_c_decode():
    run = synth.presets.get("field_case_a").simulate(seed=1)
    for phase in run.truth["phases"]:
        assert phase["start_s"] < phase["ramp_end_s"] < phase["drain_start_s"] <= phase["end_s"]
        assert 0 < phase["steady_s"] <= phase["drain_start_s"] - phase["ramp_end_s"] + 1e-9
    last = run.truth["phases"][-1]
    assert last["steady_s"] == pytest.approx(127 * 64 / 32.85, rel=0.02)


def test_one_below_the_level_reads_twice_too_slow_at_one_line_per_step():
    """The trap exists: naive median of N / throughput at 63 is about twice the truth, at 64 it is right."""
    run = synth.presets.get("one_line_per_step").simulate(seed=1)
    decode = run.samples().query("kind == 'decode'")
    naive = (decode["running_req"] / decode["decode_tok_per_s"]).groupby(decode["running_req"]).median()
    rows = levels_of(run)
    assert 1.8 < naive[63] / rows[63]["step_s"] < 2.6
    assert naive[64] / rows[64]["step_s"] == pytest.approx(1.0, abs=0.05)
    assert naive[64] < rows[64]["step_s"]  # skewed noise: the median lies below the mean
    assert naive[15] / rows[15]["step_s"] > 2


def test_just_below_the_cap_reads_several_times_too_slow():
    run = synth.presets.get("below_cap").simulate(seed=1)
    decode = run.samples().query("kind == 'decode'")
    naive = (decode["running_req"] / decode["decode_tok_per_s"]).groupby(decode["running_req"]).median()
    assert naive[31] / levels_of(run)[31]["step_s"] > 3
    assert decode["queue_req"].max() == 0


def test_identical_warmup_is_a_second_faster_population():
    run = synth.presets.get("identical_warmup").simulate(seed=1)
    at_16 = [row for row in run.truth["levels"] if row["running_req"] == 16]
    plain, identical = sorted(at_16, key=lambda row: row["is_identical"])
    assert identical["step_s"] == pytest.approx(0.6 * plain["step_s"], rel=1e-9)
    assert identical["n_steps"] > 1000 and plain["n_steps"] > 1000


def test_micro_batch_period_is_the_law_at_all_requests():
    run = synth.presets.get("micro_batches", noise=Noise()).simulate()
    rows = levels_of(run)
    # 68 + 60 requests alternate; with a linear law their mean period is that of 128
    for n in (8, 32, 128):
        assert rows[n]["realised_step_s"] == pytest.approx(run.server.law.step_s(n), rel=0.002)
    decode = run.samples().query("kind == 'decode' and rank == 'PP0 TP0'")
    naive = decode["running_req"] / decode["decode_tok_per_s"]
    assert naive.iloc[-3:].median() < 0.6 * rows[128]["step_s"]  # a reader who takes the micro-batch for all


def test_first_line_after_idle_is_near_zero():
    decode = synth.presets.get("idle_gaps").simulate(seed=1).samples().query("kind == 'decode'")
    per_level = decode.groupby((decode["t_s"].diff() > 30).cumsum())["decode_tok_per_s"]
    assert (per_level.first() < 0.6 * per_level.median()).all()
    assert len(per_level) == 12


def test_quantised_windows_take_few_values():
    stats = synth.presets.get("quantised_windows").simulate(seed=1).samples()
    alone = stats.query("running_req == 1 and prefill_tok_per_s == 0")["decode_tok_per_s"]
    assert len(alone) > 20 and alone.nunique() <= 4  # 21-23 tokens a window


def test_a_closed_vllm_loop_holds_hardly_a_window_without_prompts():
    stats = synth.presets.get("vllm_closed_loop").simulate(seed=1).samples()
    busy = stats[stats["decode_tok_per_s"] > 100]
    assert (busy["prefill_tok_per_s"] == 0).sum() <= 3 < 40 < len(busy)


@pytest.mark.parametrize("name", synth.presets.names())
def test_every_preset_is_deterministic_consistent_and_described(name, tmp_path):
    """Same seed, same bytes; a seed changes them; SAMPLES holds; truth is JSON; configuration survives a round trip."""
    preset = synth.presets.get(name)
    run, again = preset.simulate(seed=9), preset.simulate(seed=9)
    assert run.text == again.text
    assert run.text != preset.simulate(seed=10).text
    table = check(run.samples(), SAMPLES)
    assert len(table) > 0 and table["t_s"].is_monotonic_increasing
    run.write(tmp_path / "server.log", tmp_path / "truth.json")
    assert (tmp_path / "server.log").read_bytes().decode() == run.text
    truth = json.loads((tmp_path / "truth.json").read_text())
    assert Server.from_mapping(truth["server"]) == preset.server
    assert Client.from_mapping(truth["client"]) == preset.client
    assert preset.about.startswith(("Trap:", "Show", "Sweep"))
    for result in truth["client_results"]:
        assert result["n_completed"] == result["n_prompts"]


def test_fifty_random_servers_lose_no_token_and_no_page():
    """Invariants of 50 drawn configurations: all requests answered, KV returned, tokens made equal tokens asked for."""
    rng = np.random.default_rng(20261129)
    for seed in range(50):
        engine = str(rng.choice(["sglang", "vllm"]))
        draft = synth.Speculation(num_draft_tokens=3, accept_len=2.0) if rng.random() < 0.3 else None
        server = Server(
            engine=engine, version=str(rng.choice(["0.5.4", "0.5.23"] if engine == "sglang" else ["0.6.6", "0.20.2"])),
            speculation=draft, page_size=int(rng.choice([1, 16, 64])), kv_pool_tok=int(rng.choice([6000, 100_000])),
            chunked_prefill_tok=int(rng.choice([128, 512, 8192])), overlap_schedule=bool(rng.random() < 0.5),
            kv_reserve_frac=float(rng.choice([0.0, 0.5])), dp_size=int(rng.choice([1, 1, 2])),
            max_running_req=int(rng.choice([4, 64])),
        )
        client = Client(
            levels_req=tuple(int(x) for x in rng.integers(1, 24, 3)), prompt=Lengths("uniform", 200, 0.8),
            output=Lengths("lognormal", 60, 0.5), identical_prompts=bool(rng.random() < 0.3), gap_s=1.0,
        )
        run = synth.simulate(server, client, seed=seed)
        requests = [r for load in run.trace.loop.loads for r in load.requests]
        assert all(np.isfinite(r.finish_s) and r.arrival_s < r.first_token_s <= r.finish_s for r in requests), seed
        last = {f.group: f for f in run.trace.forwards}
        assert all(f.used_tok == 0 and f.running_req == 0 and f.queue_req == 0 for f in last.values()), seed
        assert all(0 <= f.used_tok <= server.kv_pool_tok for f in run.trace.forwards), seed
        assert all(f.batch_req <= server.max_running_req for f in run.trace.forwards), seed
        if draft is None and not server.is_overlapped:
            made = sum(f.generated_tok for f in run.trace.forwards if f.is_ready)
            assert made == sum(r.output_tok for r in requests), seed
        check(run.samples(), SAMPLES)


def test_estimate_tells_the_sweep_without_noise():
    preset = synth.presets.get("field_case_a")
    table = synth.estimate(preset.server, preset.client)
    assert list(table["name"]) == ["c1", "c16", "c64"]
    assert list(table["decode_tok_per_s"].round(2)) == [12.20, 29.00, 32.85]
    assert table["duration_s"].sum() == pytest.approx(89 + 229 + 415, abs=5)
    noisy = synth.presets.get("field_case_a", noise=Noise(sigma_frac=0.5), level_deviation_frac=0.3)
    pd.testing.assert_frame_equal(synth.estimate(noisy.server, noisy.client), table)


@pytest.mark.parametrize(("build", "message"), [
    (lambda: Server.from_mapping({"law": {"intercept": 1.0}}), "did you mean 'intercept_s'"),
    (lambda: Server.from_mapping({"tp_size": "4"}), "Server.tp_size: expected <class 'int'>, found '4'"),
    (lambda: Server(engine="tgi"), "expected sglang or vllm, found 'tgi'"),
    (lambda: Server(dp_size=2, pp_size=2), "dp_size or pp_size"),
    (lambda: StepLaw(intercept_s=-1.0), "above 0 s"),
    (lambda: Client(levels_req=()), "levels of 1 or more"),
    (lambda: Client(levels_req=(1, 2), n_prompts=(3,)), "one number per level"),
    (lambda: synth.presets.get("field_case"), "did you mean 'field_case_a'"),
    (lambda: synth.presets.get("dense_sweep", slope=3), "no field 'slope'"),
    (lambda: synth.Speculation(num_draft_tokens=2, accept_len=3.0), "1..num_draft_tokens=2"),
    (lambda: synth.simulate(Server(kv_pool_tok=100), Client()), "does not fit 100"),
])
def test_impossible_descriptions_are_refused_by_name(build, message):
    with pytest.raises(ConfigError, match=message.replace("(", r"\(").replace(".", r"\.")):
        build()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"version": "0.3.5"}, "expected 0.3.6 to 0.5.23 for sglang, found '0.3.5'"), ({"version": "0.5.24"}, "0.5.24"),
        ({"version": "1"}, "found '1'"), ({"version": "0.5.x"}, "0.5.x"), ({"version": ""}, "found ''"),
        ({"engine": "vllm", "version": "0.5.10"}, "expected 0.6 to 0.33 for vllm"),
        ({"engine": "vllm", "version": "0.34.0"}, "0.34.0"), ({"version": "0.5.12\n"}, "Server.version"),
    ],
)
def test_versions_without_a_known_layout_are_refused(fields, message):
    with pytest.raises(ConfigError, match="Server.version: expected") as caught:
        Server(**fields)
    assert message in str(caught.value)


def test_versions_with_a_known_layout_pass():
    for engine, versions in {"sglang": ("0.3.6", "0.5", "0.5.23"), "vllm": ("0.6", "0.6.6", "0.33.1")}.items():
        assert all(Server(engine=engine, version=version) for version in versions)


def test_absurd_levels_and_seeds_are_refused():
    with pytest.raises(ConfigError, match="Client.levels_req: expected levels of at most 16384, found 1000000"):
        Client(levels_req=(1, 1_000_000))
    with pytest.raises(ConfigError, match="seed: expected 0 or more, found -1"):
        synth.simulate(Server(), Client(levels_req=(1,)), seed=-1)


def test_a_request_taken_back_at_once_finishes_once():
    """Thrown out and joined again within one step, a request was due twice at the same step."""
    group = Group(0, Server(overlap_schedule=False), Pool(10_000, 1), deque())
    request = Request(1, 0, prompt_tok=10, output_tok=5, is_identical=False)
    other = Request(2, 0, prompt_tok=10, output_tok=9, is_identical=False)
    request.own_tok = other.own_tok = 10
    for r in (other, request):
        group.join(r)
    group.decode()
    group.finish_at[request.finish_step].append(request)
    finished = [r.number for _ in range(3) for r in group.decode()]
    assert finished == [1]
    assert group.context_tok == 10 + 4  # the other request's: prompt and steps done
