"""What the simulated vLLM prints, against hand arithmetic and hand-written lines."""

from __future__ import annotations

import numpy as np
import pytest

from helpers import synth
from helpers.synth import Client, Lengths, Server, StepLaw
from helpers.synth.trace import MIXED

LAW = StepLaw(intercept_s=0.1, slope_s_per_req=0.05)
PAIR = Client(levels_req=(2,), n_prompts=(2,), prompt=Lengths(mean_tok=10), output=Lengths(mean_tok=21), lead_s=1.0,
              stagger_s=0.0)


def server(**changes) -> Server:
    return Server(**{**dict(engine="vllm", version="0.20.2", law=LAW, prefill_fixed_s=0.5, prefill_s_per_tok=0.0,
                            startup_s=10.0, stat_interval_s=2.0), **changes})


def statistics(run: synth.Simulation) -> list[str]:
    return [line for line in run.lines() if "Avg prompt throughput" in line]


def test_two_requests_print_what_hand_arithmetic_says():
    """Ready at 10 s, arrival 11.0, prefill to 11.5 (first tokens), then 20 steps of 0.2 s to 15.5.

    The window to 12.0 holds 2 prompts of 10, 2 first tokens and 2 steps of 2 tokens: 6 tok in 2 s. The windows to
    14.0 and 16.0 hold 10 and 8 steps (11.7 .. 15.5 are 20 steps: 2 + 10 + 8). The timer is late by at most
    1.5 ms a window, too little to move a tenth here.
    """
    run = synth.simulate(server(), PAIR)
    assert statistics(run) == [
        "(APIServer pid=4242) INFO 11-02 09:00:12 [loggers.py:271] Engine 000: Avg prompt throughput: 10.0 tokens/s, "
        "Avg generation throughput: 3.0 tokens/s, Running: 2 reqs, Waiting: 0 reqs, GPU KV cache usage: 0.0%, "
        "Prefix cache hit rate: 0.0%",
        "(APIServer pid=4242) INFO 11-02 09:00:14 [loggers.py:271] Engine 000: Avg prompt throughput: 0.0 tokens/s, "
        "Avg generation throughput: 10.0 tokens/s, Running: 2 reqs, Waiting: 0 reqs, GPU KV cache usage: 0.0%, "
        "Prefix cache hit rate: 0.0%",
        "(APIServer pid=4242) INFO 11-02 09:00:16 [loggers.py:271] Engine 000: Avg prompt throughput: 0.0 tokens/s, "
        "Avg generation throughput: 8.0 tokens/s, Running: 0 reqs, Waiting: 0 reqs, GPU KV cache usage: 0.0%, "
        "Prefix cache hit rate: 0.0%",
        "(APIServer pid=4242) INFO 11-02 09:00:18 [loggers.py:271] Engine 000: Avg prompt throughput: 0.0 tokens/s, "
        "Avg generation throughput: 0.0 tokens/s, Running: 0 reqs, Waiting: 0 reqs, GPU KV cache usage: 0.0%, "
        "Prefix cache hit rate: 0.0%",
    ]  # one idle line, then silence until the stop at 30.5 s


VERSIONS = {
    "0.6.6": "INFO 11-02 09:00:12 metrics.py:467] Avg prompt throughput: 9.5 tokens/s, Avg generation throughput: "
             "3.8 tokens/s, Running: 2 reqs, Swapped: 0 reqs, Pending: 0 reqs, GPU KV cache usage: 0.0%, "
             "CPU KV cache usage: 0.0%.",
    "0.8.5": "INFO 11-02 09:00:12 [loggers.py:87] Engine 000: Avg prompt throughput: 10.0 tokens/s, Avg generation "
             "throughput: 3.0 tokens/s, Running: 2 reqs, Waiting: 0 reqs, GPU KV cache usage: 0.0%, "
             "Prefix cache hit rate: 0.0%",
    "0.10.2": "(APIServer pid=4242) INFO 11-02 09:00:12 [loggers.py:123] Engine 000: Avg prompt throughput: 10.0 "
              "tokens/s, Avg generation throughput: 3.0 tokens/s, Running: 2 reqs, Waiting: 0 reqs, GPU KV cache "
              "usage: 0.0%, Prefix cache hit rate: 0.0%",
    "0.33.0": "(APIServer pid=4242) INFO 11-02 09:00:12 [loggers.py:335] Engine 000: Avg prompt throughput: 10.0 "
              "tokens/s, Avg generation throughput: 3.0 tokens/s, Running: 2 reqs, Waiting: 0 reqs, GPU KV cache "
              "usage: 0.0%, Prefix cache hit rate: 0.0%",
}


@pytest.mark.parametrize("version", VERSIONS)
def test_layout_of_each_version(version):
    """V0 prints at the first step that ends 2 s after ready or later: 11.5 + 3 x 0.2 s, 20 and 8 tok in 2.1 s."""
    assert statistics(synth.simulate(server(version=version), PAIR))[0] == VERSIONS[version]


def test_a_chunked_prompt_is_credited_whole_at_its_first_token():
    """8000 tokens in chunks of 2000 at 1 ms each: windows in mid-prefill print 0.0 although the GPU prefills.

    The second prompt takes five forwards (1999 tokens beside the first request's decode), about 2.65 s each.
    """
    client = Client(levels_req=(2,), n_prompts=(2,), prompt=Lengths(mean_tok=8000), output=Lengths(mean_tok=40))
    run = synth.simulate(server(stat_interval_s=1.0, chunked_prefill_tok=2000, prefill_s_per_tok=1e-3), client)
    stats = run.samples()
    prompt = stats["prefill_tok_per_s"].to_numpy()
    credits = np.flatnonzero(prompt)
    assert len(credits) == 2
    assert prompt[credits] == pytest.approx(8000, rel=0.0016)  # the timer is late by at most 1.5 ms
    first, second = (request.first_token_s for request in run.trace.loop.loads[0].requests)
    assert second - first > 10
    middle = stats[(stats["t_s"] > first + 1) & (stats["t_s"] < second - 1)]
    assert len(middle) > 4 and (middle["prefill_tok_per_s"] == 0).all()
    assert (middle["running_req"] == 2).all()  # a partial prefill counts as running


def test_every_token_is_counted_once_first_tokens_included():
    run = synth.presets.get("vllm_closed_loop", n_prompts=[30, 60, 90]).simulate(seed=2)
    stats = run.samples().query("kind == 'stats'")
    counted = (stats["decode_tok_per_s"] * 10.0009).sum()  # mean window: 10 s and a timer late by 0.9 ms
    total = sum(r["output_tok"] for r in run.truth["client_results"])
    assert counted == pytest.approx(total, rel=0.0005)  # 6e-5 of timer, 0.05 tok/s of rounding a window


def test_running_is_counted_after_finished_requests_left():
    """Unlike SGLang: the window of the last step shows Running: 0 together with tokens; idle is printed once."""
    run = synth.presets.get("vllm_sweep", levels_req=[1, 2], gap_s=20.0).simulate(seed=1)
    stats = run.samples().query("kind == 'stats'")
    ended = stats[(stats["running_req"] == 0) & (stats["decode_tok_per_s"] > 0)]
    zero = stats[(stats["decode_tok_per_s"] == 0) & (stats["prefill_tok_per_s"] == 0)]
    assert len(ended) == len(zero) == 2
    assert list(zero.index) == [index + 1 for index in ended.index]


def test_prefill_is_mixed_into_decode_steps_and_lengthens_them():
    run = synth.simulate(server(), Client(levels_req=(4,), output=Lengths("uniform", 30, 0.5)))
    mixed = [f for f in run.trace.forwards if f.kind == MIXED and f.batch_req]
    assert len(mixed) > 3
    for f in mixed:
        assert f.end_s - f.start_s == pytest.approx(LAW.step_s(f.batch_req) + 0.5, rel=1e-9)
        assert not f.is_pure


def test_overlap_hides_a_share_of_prefill():
    run = synth.simulate(server(prefill_overlap_frac=0.8), Client(levels_req=(4,), output=Lengths("uniform", 30, 0.5)))
    mixed = [f for f in run.trace.forwards if f.kind == MIXED and f.batch_req]
    for f in mixed:
        assert f.end_s - f.start_s == pytest.approx(LAW.step_s(f.batch_req) + 0.1, rel=1e-9)


@pytest.mark.parametrize(("version", "includes_cached"), [("0.11.0", True), ("0.20.2", False)])
def test_cached_prompt_tokens_count_up_to_0_14_only(version, includes_cached):
    client = Client(levels_req=(1,), n_prompts=(4,), prompt=Lengths(mean_tok=161), output=Lengths(mean_tok=40),
                    identical_prompts=True)
    run = synth.simulate(server(version=version, stat_interval_s=1.0), client)
    credited = (run.samples()["prefill_tok_per_s"] * 1.0009).sum()
    # 4 prompts of 161; cached in whole blocks of 16: 160 for each after the first
    assert credited == pytest.approx(4 * 161 if includes_cached else 161 + 3, rel=0.01)


def test_speculation_line_counts_drafts_and_positions():
    run = synth.presets.get("vllm_sweep", levels_req=[4], version="0.20.2",
                            speculation={"num_draft_tokens": 4, "accept_len": 2.5}).simulate(seed=1)
    lines = [line for line in run.lines() if "SpecDecoding" in line]
    spec = run.samples().query("kind == 'spec'")
    assert len(lines) == len(spec) > 5
    accepted = sum(int(line.split("Accepted: ")[1].split()[0]) for line in lines)
    drafted = sum(int(line.split("Drafted: ")[1].split()[0]) for line in lines)
    assert 1 + 3 * accepted / drafted == pytest.approx(2.5, abs=0.05)
    last = lines[-1]
    mean = float(last.split("Mean acceptance length: ")[1].split(",")[0])
    places = [float(x) for x in last.split("Per-position acceptance rate: ")[1].split(", Avg")[0].split(", ")]
    assert len(places) == 3 and places == sorted(places, reverse=True)
    old = synth.presets.get("vllm_sweep", levels_req=[4], version="0.8.5",
                            speculation={"num_draft_tokens": 4, "accept_len": 2.5}).simulate(seed=1)
    without_bonus = next(line for line in old.lines()[::-1] if "SpecDecoding" in line)
    assert f"Mean acceptance length: {mean - 1:.2f}," in without_bonus and "throughput" not in without_bonus
    assert mean == pytest.approx(1 + sum(places), abs=0.008)  # three roundings at 0.001, one at 0.01


def test_engines_print_one_line_each():
    run = synth.presets.get("vllm_sweep", levels_req=[4], dp_size=2, version="0.10.2").simulate()
    lines = statistics(run)
    assert [line.split("Engine ")[1][:3] for line in lines[:4]] == ["000", "001", "000", "001"]
    assert set(run.samples()["rank"]) == {"DP0", "DP1"}


def test_v0_warns_of_preemption_and_v1_is_silent():
    load = dict(levels_req=[16], kv_pool_tok=8000, kv_reserve_frac=0.0, max_running_req=64)
    old = synth.presets.get("vllm_sweep", version="0.6.6", stat_interval_s=5.0, **load).simulate()
    new = synth.presets.get("vllm_sweep", **load).simulate()
    assert "is preempted by PreemptionMode.RECOMPUTE" in old.text
    assert "preempt" not in new.text
    for run in (old, new):
        assert any(e["kind"] == "preemption" for e in run.truth["events"])
        assert run.truth["client_results"][0]["n_completed"] == 48
