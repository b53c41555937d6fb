"""Levers: measured minus modelled change, by hand and against the field case; refusals; a change of nothing."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.physics.catalogue import hardware, models
from helpers.physics.linking.communication import find_table
from helpers.physics.steps.bound import CONTEXT_MISSING, line_step_s
from helpers.physics.steps.decode import DecodeModel
from helpers.physics.steps.demand import Parallel
from helpers.physics.steps.hand import HandModel
from helpers.physics.steps.step import ASSUMED_ACHIEVABLE_FRAC, achievable
from helpers.physics.what_if.changes import with_tp
from helpers.physics.what_if.levers import (
    Change,
    Law,
    MeasuredLevel,
    Options,
    Setup,
    apply,
    fits_memory,
    largest_kv_pool_tok,
    levers,
    modelled_lever,
)
from helpers.schema import RooflogError

A6000 = hardware.find("RTX A6000")
H100 = hardware.find("H100 SXM 80GB")
SLAB = hardware.Hardware("slab", 1e12)  # 1 TB/s: 1 GB a millisecond
HAND = HandModel(weight_bytes_per_step=10e9, kv_bytes_per_tok=1e5)
LINE = Law(lambda n: 0.010 + 0.001 * n, (1.0, 32.0), lambda n: (0.009 + 0.001 * n, 0.012 + 0.001 * n))
ROUND = MeasuredLevel(1, 0.0555, 0.0552, 0.0558)


def field_links(model, accelerator):
    return {model.parallel.tp: find_table(accelerator, model.parallel.tp)} if model.parallel.tp > 1 else {}


@pytest.fixture(scope="module")
def qwen() -> Setup:
    """Field case B: two RTX A6000, three draft tokens, accept length 3.08."""
    return Setup(DecodeModel(models.find("Qwen3.6-27B"), Parallel(tp=2), n_draft_tok=3), A6000, 500.0, 3.08)


@pytest.fixture(scope="module")
def llama() -> Setup:
    return Setup(DecodeModel(models.find("Meta-Llama-3.1-8B")), H100, 2048.0)


def by_name(found):
    return {lever.lever: lever for lever in found}


def test_half_the_context_against_arithmetic():
    # 8 requests x 500 tokens less x 0.1 MB = 0.4 GB: at 0.82 TB/s 0.488 ms, at 0.66 and 0.87 TB/s 0.606 and 0.460.
    level = MeasuredLevel(8, 0.020, 0.019, 0.022)
    lever = modelled_lever(Setup(HAND, SLAB, 1000), level, Change(context_tok=500))
    assert lever.step_s == pytest.approx(0.020 - 0.4e-3 / ASSUMED_ACHIEVABLE_FRAC)
    assert lever.step_s_lo == pytest.approx(0.019 - 0.4e-3 / 0.66)
    assert lever.step_s_hi == pytest.approx(0.022 - 0.4e-3 / 0.87)
    assert lever.tok_per_s == pytest.approx(8 / lever.step_s)
    assert (lever.lo, lever.hi) == pytest.approx((8 / lever.step_s_hi, 8 / lever.step_s_lo))
    assert lever.change_frac == pytest.approx(0.020 / lever.step_s - 1)
    assert "(6.83 ms) stays" in lever.assumes[0]  # 20 - (10 + 0.8)/0.82


def test_other_hardware_is_measured_minus_change_not_ideal():
    twice = hardware.Hardware("twice", 2e12)
    lever = modelled_lever(Setup(HAND, SLAB, 1000), MeasuredLevel(8, 0.020), Change(hardware=twice))
    assert lever.step_s == pytest.approx(0.020 - 10.8e-3 / 0.82 / 2)
    # Shares on the other accelerator are its own: 10.8 GB at 0.66 to 0.87 of 2 TB/s against 0.82 of 1 TB/s.
    assert lever.step_s_hi == pytest.approx(0.020 + 5.4e-3 / 0.66 - 10.8e-3 / 0.82)
    assert lever.step_s_lo == pytest.approx(0.020 + (5.4e-3 - 10.8e-3) / 0.66)
    assert "no interval" in lever.assumes[-1]


def test_a_share_given_by_hand_holds_for_its_accelerator_only():
    twice = hardware.Hardware("twice", 2e12)
    lever = modelled_lever(Setup(HAND, SLAB, 1000), MeasuredLevel(8, 0.030), Change(hardware=twice),
                           achievable_frac=0.5)
    assert lever.step_s == pytest.approx(0.030 - 10.8e-3 / 0.5 + 5.4e-3 / 0.82)


def test_weights_of_field_case_b(qwen):
    # Projections of 64 layers in half the bytes: (24.35 - 12.18) GB less per rank at 0.82 of 768 GB/s.
    lever = modelled_lever(qwen, ROUND, Change(weights="fp8"), find_links=field_links)
    spec = qwen.model.spec
    roles = ("attention", "linear_attention", "dense_mlp")
    halved = sum(weights.per_rank(2) * count for weights, count in spec.stack() if weights.role in roles)
    assert lever.step_s == pytest.approx(0.0555 - halved / (0.82 * 768e9), rel=1e-6)
    assert lever.tok_per_s == pytest.approx(3.08 / lever.step_s)
    then = apply(qwen, Change(weights="fp8"))
    assert lever.step_s > line_step_s(then.model, A6000, np.array([1.0]), 500, "strict")[0]
    assert lever.step_s_lo < lever.step_s < lever.step_s_hi


def test_acceptance_of_field_case_b(qwen, shared):
    values = json.loads((shared / "reference" / "field_values.json").read_text())
    mean_s = values["qwen.implied_round_mean_ms"]["value"] / 1e3
    six = replace(qwen, model=replace(qwen.model, n_draft_tok=5))
    lever = modelled_lever(six, MeasuredLevel(1, mean_s), Change(accept_len=6.0))
    expected = values["qwen.tok_s_observed_round.accept6"]
    assert lever.tok_per_s == pytest.approx(expected["value"], abs=expected["tol"])
    assert lever.step_s == mean_s
    refused = modelled_lever(qwen, ROUND, Change(accept_len=6.0))  # three drafts cannot give six tokens
    assert "expected 1 to 4" in refused.refused
    assert np.isnan(refused.tok_per_s)


def test_acceptance_needs_no_model():
    lever = modelled_lever(Setup(HAND, SLAB, np.nan, 2.0), MeasuredLevel(4, 1e-4), Change(accept_len=3.0))
    assert lever.tok_per_s == pytest.approx(4 * 3 / 1e-4)
    assert lever.change_frac == pytest.approx(0.5)


def test_no_speculation_takes_draft_and_verification_off(qwen):
    found = by_name(levers(qwen, ROUND, find_links=field_links))
    lever = found["no speculation"]
    plain = apply(qwen, Change(no_speculation=True))
    assert (plain.accept_len, plain.model.n_draft_tok) == (1.0, 0)
    at, links = np.array([1.0]), field_links(qwen.model, A6000)
    shares = achievable(A6000)
    before, after = (line_step_s(setup.model, A6000, at, 500, "target", shares=shares, links=links)[0]
                     for setup in (qwen, plain))
    assert lever.step_s == pytest.approx(0.0555 - (before - after))
    assert 0.0555 - lever.step_s == pytest.approx(8.6e-3, abs=0.5e-3)  # three drafts 8.2 ms, three states 0.4 ms
    assert lever.tok_per_s == pytest.approx(1 / lever.step_s)
    assert found["accept length 4 instead of 3.08"].change_frac == pytest.approx(4 / 3.08 - 1)


def test_all_levers_of_a_deployment(llama):
    level = MeasuredLevel(16, 0.010, 0.0098, 0.0102)
    found = by_name(levers(llama, level, law=LINE, options=Options(
        hardware=(hardware.find("H200 SXM 141GB"),), step_budget_s=(0.020,), running_req=(8, 64))))
    assert set(found) == {
        "weights in fp8", "weights in nvfp4", "weights in int4_g128", "keys and values in fp8", "on H200 SXM 141GB",
        "tp 2 instead of 1", "context of 1024 tok per request instead of 2048", "fewer requests: N=8",
        "more requests: N=64", "largest load with a step within 20 ms: N=10",
    }
    # 16 x 2048 x 131072 bytes of cache: half of 4.295 GB at 0.85 of 3.35 TB/s.
    kv = found["keys and values in fp8"]
    assert kv.step_s == pytest.approx(0.010 - 16 * 2048 * 65536 / (0.85 * 3.35e12))
    assert found["context of 1024 tok per request instead of 2048"].step_s == pytest.approx(kv.step_s)
    assert any("no FP4 units" in text for text in found["weights in nvfp4"].assumes)
    assert not any("units" in text for text in found["weights in fp8"].assumes)


def test_load_and_latency_come_from_the_law_alone():
    found = by_name(levers(Setup(HAND, SLAB, 1000), MeasuredLevel(16, 0.027), law=LINE, options=Options(
        weights=(), kv=(), tp=(), context_tok=(), running_req=(8, 16, 32, 33, 0.5),
        step_budget_s=(0.0205, 0.5, 0.005))))
    eight = found["fewer requests: N=8"]
    assert (eight.step_s, eight.step_s_lo, eight.step_s_hi) == pytest.approx((0.018, 0.017, 0.020))
    assert (eight.tok_per_s, eight.running_req) == (pytest.approx(8 / 0.018), 8)
    assert found["more requests: N=16"].tok_per_s == 16 / 0.027  # the level itself was measured
    assert "outside the measured 1 to 32 req" in found["more requests: N=33"].refused
    assert "outside" in found["fewer requests: N=0.5"].refused
    assert found["largest load with a step within 20.5 ms: N=10"].running_req == 10
    (end,) = (lever for name, lever in found.items() if "500 ms" in name)
    assert end.running_req == 32 and "more may fit" in end.assumes[0]
    (none,) = (lever for name, lever in found.items() if "5 ms" in name and lever.refused)
    assert "least: 11 ms" in none.refused
    no_law = levers(Setup(HAND, SLAB, 1000), MeasuredLevel(16, 0.027), options=Options(
        weights=(), kv=(), tp=(), context_tok=(), running_req=(8,), step_budget_s=(1.0,)))
    assert [lever.refused[:20] for lever in no_law] == ["the data have no law"] * 2


def test_a_graph_for_the_very_size():
    spec = models.find("Qwen3-30B-A3B")
    board = replace(H100, bf16_flop_per_s=10e12, fp16_flop_per_s=None)  # slow products: padding costs
    now = Setup(DecodeModel(spec, captured_batch_sizes=(16, 32)), board, 100.0)
    options = Options(weights=(), kv=(), tp=(), context_tok=())
    (lever,) = levers(now, MeasuredLevel(20, 0.100), options=options)
    assert lever.step_s < 0.100 and "20 instead of 32" in lever.assumes[0]
    (above,) = levers(now, MeasuredLevel(40, 0.100), options=options)
    assert "above the largest captured size 32" in above.refused
    assert levers(now, MeasuredLevel(16, 0.100), options=options) == ()  # it has its graph


def test_no_claim_below_the_floor_of_the_kernels():
    # One request of a model with 3.3 B active parameters: its kernels' floor outlasts its bytes.
    now = Setup(DecodeModel(models.find("Qwen3-30B-A3B")), H100, 100.0)
    lever = modelled_lever(now, MeasuredLevel(1, 0.006), Change(weights="fp8"))
    assert lever.step_s == 0.006
    assert lever.step_s_lo < 0.006


def test_what_cannot_be_is_refused(llama, qwen):
    too_fast = modelled_lever(llama, MeasuredLevel(16, 0.0045), Change(weights="int4_g128"))
    assert "an input is wrong" in too_fast.refused and "4.5 ms measured" in too_fast.refused
    degrees = modelled_lever(llama, MeasuredLevel(16, 0.010), Change(tp=3))
    assert "degrees that work" in degrees.refused
    memory = modelled_lever(qwen, ROUND, Change(tp=1))
    assert "weights per rank" in memory.refused and "54.64 GB" in memory.refused
    small = modelled_lever(llama, MeasuredLevel(16, 0.010), Change(hardware=hardware.find("GeForce RTX 4090"),
                                                                  context_tok=60_000))
    assert "of cache for 9.6e+05 tok" in small.refused
    hand = modelled_lever(Setup(HAND, SLAB, 100), MeasuredLevel(1, 0.02), Change(weights="fp8"))
    assert "expected a model with a configuration" in hand.refused
    unknown = modelled_lever(llama, MeasuredLevel(1, 0.02), Change(weights="fp5"))
    assert "expected one of" in unknown.refused
    context = modelled_lever(replace(llama, context_tok=np.nan), MeasuredLevel(1, 0.02), Change(weights="fp8"))
    assert context.refused == CONTEXT_MISSING
    assert "above 0 tok" in modelled_lever(llama, MeasuredLevel(1, 0.02), Change(context_tok=0)).refused
    with pytest.raises(RooflogError, match="running_req and step_s above 0"):
        MeasuredLevel(1, 0.0)


def test_experts_dealt_out_over_all_ranks_stay_so():
    spec = models.find("Qwen3-30B-A3B")
    assert with_tp(DecodeModel(spec, Parallel(tp=2, ep=2)), 4).parallel == Parallel(tp=4, ep=4)
    assert with_tp(DecodeModel(spec, Parallel(tp=2)), 4).parallel == Parallel(tp=4)
    assert with_tp(HAND, 2).weight_bytes() == 5e9
    attention = DecodeModel(spec, Parallel(tp=2, dp=2, dp_attention=True))
    with pytest.raises(RooflogError, match="another load per rank"):
        with_tp(attention, 4)


@pytest.mark.parametrize(
    ("name", "tp", "weight_gb", "kv_bytes"),
    [
        ("Meta-Llama-3.1-8B", 1, 2 * 8.030261248, 128 * 1024),
        ("Meta-Llama-3.1-8B", 4, 2 * 8.030261248 / 4, 32 * 1024),
        ("Meta-Llama-3.1-8B", 16, 2 * (8.030261248 - 32 * 8.388608e-3) / 16 + 2 * 32 * 8.388608e-3 / 8, 16 * 1024),
        ("DeepSeek-V4-Flash-NVFP4", 4, 41.8, None),  # physics.md 2.1: 41.8 GB, the field's log 41 GiB
        ("DeepSeek-V3", 8, None, 70272),  # one latent on every rank: 68.6 KiB
    ],
)
def test_stored_weights_and_cache(name, tp, weight_gb, kv_bytes):
    room = fits_memory(models.find(name), Parallel(tp=tp), H100)
    if weight_gb is not None:
        assert room.weight_bytes / 1e9 == pytest.approx(weight_gb, rel=2e-3)
    if kv_bytes is not None:
        assert room.kv_bytes_per_tok == pytest.approx(kv_bytes)


def test_more_weights_than_memory_is_one_sentence():
    spec = models.find("Meta-Llama-3.1-70B")
    room = fits_memory(spec, Parallel(), H100)
    assert (room.fits, room.kv_pool_tok) == (False, 0)
    assert "at most the 85.9 GB of one H100 SXM 80GB, found 141.1 GB of weights per rank (tp 1" in room.sentence
    two = fits_memory(spec, Parallel(tp=2), H100)
    assert two.fits and two.sentence == ""
    assert two.needed_bytes == two.weight_bytes
    pool = largest_kv_pool_tok(spec, Parallel(tp=2), H100)
    assert pool == pytest.approx((0.9 * 80 * 2**30 - two.weight_bytes) / (160 * 1024))
    assert fits_memory(spec, Parallel(tp=2), H100, pool).fits
    assert not fits_memory(spec, Parallel(tp=2), H100, 3 * pool).fits
    assert fits_memory(spec, Parallel(), SLAB).fits  # no memory known: not refused


def test_draft_layers_and_stages_count():
    spec = models.find("Qwen3.6-27B")
    alone, drafting = (fits_memory(spec, Parallel(), A6000, has_draft=has).weight_bytes for has in (False, True))
    assert drafting - alone == pytest.approx(2 * 424_699_392)
    assert fits_memory(spec, Parallel(pp=2), A6000).weight_bytes == pytest.approx(alone / 2)


SETUPS = {
    "hand": Setup(HAND, SLAB, 1000.0),
    "Qwen3.6-27B": Setup(DecodeModel(models.find("Qwen3.6-27B"), Parallel(tp=2), n_draft_tok=3), A6000, 500.0, 3.0),
    "Qwen3-30B-A3B": Setup(DecodeModel(models.find("Qwen3-30B-A3B"), captured_batch_sizes=(8, 64)), H100, 1000.0),
}


@given(st.sampled_from(sorted(SETUPS)), st.floats(1, 300), st.floats(1e-3, 1), st.data())
@settings(max_examples=60, deadline=None)
def test_a_change_of_nothing_gives_the_measured_rate_exactly(name, running_req, step_s, data):
    now = SETUPS[name]
    same = [Change(), Change(context_tok=now.context_tok), Change(accept_len=now.accept_len),
            Change(hardware=now.hardware), Change(tp=2 if name == "Qwen3.6-27B" else 1)]
    if name != "hand":
        same += [Change(weights="bf16"), Change(kv="bf16"),
                 Change(captured_batch_sizes=now.model.captured_batch_sizes)]
    level = MeasuredLevel(running_req, step_s, 0.9 * step_s, 1.1 * step_s)
    lever = modelled_lever(now, level, data.draw(st.sampled_from(same)))
    assert lever.refused is None
    assert (lever.step_s, lever.step_s_lo, lever.step_s_hi) == (step_s, 0.9 * step_s, 1.1 * step_s)
    assert lever.tok_per_s == running_req * now.accept_len / step_s
    assert lever.change_frac == 0


@given(st.sampled_from(["Qwen3.6-27B", "Qwen3-30B-A3B"]), st.floats(1, 300), st.floats(1.0, 20.0))
@settings(max_examples=40, deadline=None)
def test_intervals_hold_the_value_and_no_step_is_below_its_bound(name, running_req, slowness):
    now = SETUPS[name]
    step_s = slowness * line_step_s(now.model, now.hardware, np.array([running_req]), now.context_tok, "expected")[0]
    options = Options(hardware=(H100, hardware.find("L40S")))
    for lever in levers(now, MeasuredLevel(running_req, step_s, 0.95 * step_s, 1.1 * step_s), options=options):
        if lever.refused is None:
            assert 0 < lever.step_s_lo <= lever.step_s * (1 + 1e-12) and lever.step_s <= lever.step_s_hi * (1 + 1e-12)
            assert lever.lo <= lever.tok_per_s * (1 + 1e-12) and lever.tok_per_s <= lever.hi * (1 + 1e-12)
            assert lever.change_frac == pytest.approx(lever.tok_per_s / (running_req * now.accept_len / step_s) - 1)
