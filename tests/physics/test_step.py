"""One decode step by hand: closed forms, published worked numbers, refusals and contradictions."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.physics.catalogue import hardware
from helpers.physics.steps.bound import roofline, strict_step_s
from helpers.physics.steps.hand import HandModel
from helpers.physics.steps.step import ASSUMED_ACHIEVABLE_FRAC
from helpers.schema import RooflogError

CPU = hardware.Hardware(name="round numbers", mem_bw_bytes_per_s=100e9)
MODEL = HandModel(weight_bytes_per_step=10e9, kv_bytes_per_tok=1e5, state_bytes_per_req=2e7)

# Llama-3.1-8B: 32 layers x 2 x 8 KV heads x 128 x 2 bytes = 131,072 bytes/tok; x 2048 tok = 268.4 MB per request.
# 70B FP8 with FP8 KV on 4 ranks: 80 x 2 x 8 x 128 x 1 = 163,840 bytes/tok of the whole model.
WORKED = {
    "Meta-Llama-3.1-8B": (HandModel(15.01e9, 131072), "h100-sxm", 2048, (4.56, 4.80, 5.76, 9.61, 24.99)),
    "Meta-Llama-3.1-70B": (HandModel(4 * 17.641e9, 163840, tp=4), "h100-sxm", 2048, (5.29, 5.37, 5.67, 6.87, 11.68)),
    # 16 full-attention layers of 4 KV heads x 256; 48 gated-delta layers of 73.40625 MiB per rank, read and written.
    "Qwen3.6-27B-NVFP4": (
        HandModel(2 * 25.625e9, 16 * 2 * 4 * 256 * 2, 2 * 2 * 73.40625 * 2**20, tp=2),
        "a6000", 500, (33.59, 34.25, 36.91, 47.56, 90.14),
    ),
}


@pytest.mark.parametrize("name", WORKED)
def test_worked_examples(name):
    model, board, context_tok, expected_ms = WORKED[name]
    lines = roofline(model, hardware.find(board), [1, 4, 16, 64, 256], context_tok)
    # Printed to 0.01 ms: half a unit of the smallest (4.56) is 0.11 %.
    assert [1e3 * s for s in lines.strict.step_s] == pytest.approx(expected_ms, rel=1.2e-3)


def test_worked_examples_are_those_of_the_reference(shared):
    reference = {row["model"]: row for row in json.loads((shared / "reference" / "worked.json").read_text())}
    for name, (model, _, context_tok, expected_ms) in WORKED.items():
        row = reference[name]
        assert list(row["step"].values()) == list(expected_ms)
        assert model.weight_bytes() == pytest.approx(1e9 * row["W_fixed_GB"], rel=1e-3)
        assert model.req_bytes(np.array(float(context_tok))) == pytest.approx(1e6 * row["per_req_MB"], rel=1e-3)


def test_hand_arithmetic_of_every_field():
    # Per request: 1000 tok x 100 kB + 20 MB = 120 MB. N=10: (10 + 1.2) GB / 100 GB/s = 112 ms; N=20: 124 ms.
    lines = roofline(MODEL, CPU, [10, 20], 1000, step_s=[0.224, 0.186])
    assert lines.strict.step_s == pytest.approx((0.112, 0.124), rel=1e-12)
    assert lines.target.step_s == pytest.approx((0.112 / 0.82, 0.124 / 0.82), rel=1e-12)
    assert lines.ratio("strict") == pytest.approx((2.0, 1.5), rel=1e-12)
    assert lines.ratio("target") == pytest.approx((1.64, 1.23), rel=1e-12)
    assert (lines.strict.intercept_s, lines.strict.slope_s_per_req) == pytest.approx((0.1, 0.0012), rel=1e-9)
    assert lines.expected is None and "config.json" in lines.expected_refused
    assert lines.achievable_frac == ASSUMED_ACHIEVABLE_FRAC and "assumed" in lines.assumptions[-1]
    frame = lines.to_frame()
    assert list(frame["running_req"]) == [10, 20]
    assert frame.loc[1, "step_over_target"] == pytest.approx(1.23, rel=1e-12)


def test_ranks_share_weights_and_heads_but_not_a_replicated_latent():
    shared_heads = HandModel(10e9, 1e5, 2e7, tp=4)
    assert shared_heads.weight_bytes() == 2.5e9
    assert shared_heads.req_bytes(np.array(1000.0)) == pytest.approx(30e6)  # (100 + 20) MB / 4
    latent = HandModel(10e9, 1e5, 2e7, tp=4, kv_is_replicated=True)
    assert latent.req_bytes(np.array(1000.0)) == pytest.approx(105e6)  # 100 + 20 / 4 MB


def test_target_uses_the_measured_fraction_or_the_given_one():
    h200 = hardware.find("h200")
    lines = roofline(MODEL, h200, [1, 2], 100)
    assert lines.achievable_frac == 0.84 and "measured" in lines.assumptions[-1]
    lines = roofline(MODEL, h200, [1, 2], 100, achievable_frac=0.5)
    assert lines.target.step_s == pytest.approx([2 * s for s in lines.strict.step_s])
    for wrong in (0, 1.01, float("nan")):
        with pytest.raises(RooflogError, match="achievable_frac"):
            roofline(MODEL, h200, [1, 2], 100, achievable_frac=wrong)


def test_the_chord_uses_the_levels_and_weights_of_the_data():
    # Context grows with the level, so the bound bends: 1000, 1000, 3000 tok -> 0.100 + N (c 1e5 + 2e7) / 1e11.
    levels, context = np.array([1.0, 10.0, 20.0]), np.array([1000.0, 1000.0, 3000.0])
    measured = np.array([0.2, 0.3, 1.0])
    lines = roofline(MODEL, CPU, levels, context, step_s=measured)
    # Independent route: numpy's polyfit takes weights of the residual, hence the square root.
    slope, intercept = np.polyfit(levels, lines.strict.step_s, 1, w=1 / measured)
    assert (lines.strict.intercept_s, lines.strict.slope_s_per_req) == pytest.approx((intercept, slope), rel=1e-9)
    other = roofline(MODEL, CPU, levels, context, step_s=measured, weights=[1, 1, 1])
    slope, intercept = np.polyfit(levels, lines.strict.step_s, 1)
    assert (other.strict.intercept_s, other.strict.slope_s_per_req) == pytest.approx((intercept, slope), rel=1e-9)
    assert other.strict.slope_s_per_req != pytest.approx(lines.strict.slope_s_per_req, rel=0.01)
    assert any("context differs" in text for text in lines.warnings)


def test_unknown_context_refuses_only_where_it_matters():
    lines = roofline(MODEL, CPU, [1, 2], None, step_s=[0.3, 0.3])
    assert "context" in lines.refused and lines.strict is None and lines.target is None
    assert lines.to_frame().drop(columns=["running_req", "step_s"]).isna().all(axis=None)
    without_kv = roofline(HandModel(10e9, 0.0, 2e7), CPU, [1, 2], None)
    assert without_kv.refused is None
    assert without_kv.strict.step_s == pytest.approx((0.1002, 0.1004), rel=1e-12)


def test_a_level_without_context_is_named_and_left_out():
    lines = roofline(MODEL, CPU, [10, 20, 30], [1000, np.nan, 1000])
    assert np.isnan(lines.strict.step_s[1])
    assert (lines.strict.intercept_s, lines.strict.slope_s_per_req) == pytest.approx((0.1, 0.0012), rel=1e-9)
    assert any("running_req 20" in text for text in lines.warnings)


def test_one_level_has_a_ratio_but_no_chord():
    lines = roofline(MODEL, CPU, [10], 1000, step_s=[0.224])
    assert lines.ratio("strict") == pytest.approx((2.0,))
    assert np.isnan(lines.strict.slope_s_per_req)
    assert any("fewer than two levels" in text for text in lines.warnings)


def test_faster_than_the_bound_names_the_weights():
    # 10 GB need 100 ms; a step of 60 ms at N=1 (120 MB) allows 6 - 0.12 = 5.88 GB.
    (text,) = [t for t in roofline(MODEL, CPU, [1, 10], 1000, step_s=[0.06, 0.2]).warnings if "lower bound" in t]
    assert "running_req 1:" in text and "the weights: 10 GB" in text and "at most 5.88 GB fit" in text


def test_faster_than_the_bound_names_the_bytes_per_request():
    # N=100: (10 + 12) GB need 220 ms; a step of 160 ms leaves (16 - 10) GB / 100 = 60 MB per request.
    (text,) = [t for t in roofline(MODEL, CPU, [1, 100], 1000, step_s=[0.15, 0.16]).warnings if "lower bound" in t]
    assert "running_req 100:" in text and "bytes per request: 120 MB" in text and "at most 60 MB fit" in text


def test_faster_than_either_part_alone_names_hardware_or_step():
    # N=100: 10 GB of weights and 12 GB of requests; 50 ms is 5 GB.
    (text,) = [t for t in roofline(MODEL, CPU, [100, 101], 1000, step_s=[0.05, 0.05]).warnings if "lower bound" in t]
    assert "the hardware (100 GB/s given) or the step" in text


def test_a_possible_measurement_gives_no_warning():
    assert roofline(MODEL, CPU, [1, 10], 1000, step_s=[0.2, 0.3]).warnings == ()


def test_doubtful_hardware_is_said():
    assert "low confidence" in roofline(MODEL, hardware.find("A10G"), [1, 2], 100).warnings[0]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: HandModel(0, 1), "weight_bytes_per_step > 0"),
        (lambda: HandModel(float("nan"), 1), "weight_bytes_per_step > 0"),
        (lambda: HandModel(1, -1), "kv_bytes_per_tok >= 0"),
        (lambda: HandModel(1, 1, -1), "state_bytes_per_req >= 0"),
        (lambda: HandModel(1, 1, tp=0), "tp"),
        (lambda: HandModel(1, 1, tp=1.5), "tp"),
        (lambda: roofline(MODEL, CPU, [], 1), "at least one level"),
        (lambda: roofline(MODEL, CPU, [0, 1], 1), "above 0 req"),
        (lambda: roofline(MODEL, CPU, [1, 2], [1, 2, 3]), "context_tok: expected one number per level"),
        (lambda: roofline(MODEL, CPU, [1, 2], 1, step_s=[1]), "step_s: expected one number per level"),
    ],
)
def test_impossible_input_is_refused_in_words(call, message):
    with pytest.raises(RooflogError, match=message):
        call()


positive = st.floats(1e6, 1e12)
small = st.floats(1.0, 1e6)


@given(positive, small, small, st.integers(1, 8), st.floats(1, 512), st.floats(1, 1e5), st.floats(1e10, 1e13))
def test_monotone_in_every_input(weights, kv, state, tp, n, context, bandwidth):
    board = hardware.Hardware(name="any", mem_bw_bytes_per_s=bandwidth)
    step = strict_step_s(HandModel(weights, kv, state, tp), board, np.array([n]), context)[0]
    faster = hardware.Hardware(name="any", mem_bw_bytes_per_s=2 * bandwidth)
    faster_step = strict_step_s(HandModel(weights, kv, state, tp), faster, np.array([n]), context)[0]
    assert faster_step == pytest.approx(step / 2)
    for model, more_n, more_context in (
        (HandModel(2 * weights, kv, state, tp), n, context),
        (HandModel(weights, 2 * kv, state, tp), n, context),
        (HandModel(weights, kv, 2 * state, tp), n, context),
        (HandModel(weights, kv, state, tp), 2 * n, context),
        (HandModel(weights, kv, state, tp), n, 2 * context),
    ):
        assert strict_step_s(model, board, np.array([more_n]), more_context)[0] >= step
    shared_step = strict_step_s(HandModel(weights, kv, state, 2 * tp), board, np.array([n]), context)[0]
    assert shared_step == pytest.approx(step / 2)


@given(st.lists(st.floats(1, 512), min_size=2, max_size=2, unique=True), st.lists(small, min_size=2, max_size=2))
def test_the_chord_of_two_levels_meets_both(levels, context):
    if abs(levels[0] - levels[1]) < 1e-3:
        return
    lines = roofline(MODEL, CPU, levels, context, step_s=[1e3, 2e3])
    for line in (lines.strict, lines.target):
        chord = line.intercept_s + line.slope_s_per_req * np.array(levels)
        # Levels may lie 1e-3 apart in 500: six digits of the slope cancel.
        assert chord == pytest.approx(line.step_s, rel=1e-6)


@given(st.permutations(range(4)))
def test_row_order_does_not_matter(order):
    levels, context = np.array([1.0, 4, 16, 64]), np.array([100.0, 200, 300, 400])
    step_s = np.array([0.2, 0.3, 0.4, 0.9])
    base = roofline(MODEL, CPU, levels, context, step_s=step_s)
    index = list(order)
    other = roofline(MODEL, CPU, levels[index], context[index], step_s=step_s[index])
    assert other.strict.intercept_s == pytest.approx(base.strict.intercept_s, rel=1e-9)
    assert other.target.slope_s_per_req == pytest.approx(base.target.slope_s_per_req, rel=1e-9)
