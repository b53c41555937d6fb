"""The step of a model from its configuration: worked numbers, field case A, closed forms, properties."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.physics.catalogue import hardware, models
from helpers.physics.linking import communication
from helpers.physics.model.feeds import Dense, Experts
from helpers.physics.model.formats import FORMATS, KV_FORMATS
from helpers.physics.model.mixers import GatedDelta, GroupedAttention
from helpers.physics.model.spec import ROLES, Layer, ModelSpec, Weights
from helpers.physics.reading import quantisation
from helpers.physics.steps import bound, step
from helpers.physics.steps.decode import DecodeModel
from helpers.physics.steps.demand import Parallel, busiest_rank_factor, touched_experts
from helpers.schema import RooflogError

BF16 = dict.fromkeys(ROLES, FORMATS["bf16"])
BOARD = hardware.Hardware(name="round numbers", mem_bw_bytes_per_s=1e12, bf16_flop_per_s=1e14)
WORKED_BOARDS = {
    "1x H100 SXM": "h100-sxm", "4x H100 SXM": "h100-sxm", "1x A100-80": "A100 SXM 80GB", "2x A6000": "a6000",
    "8x H200 TP8": "h200", "8x H200 TP8 L=64k": "h200", "2x H100 SXM": "h100-sxm",
    "4x RTX PRO 6000": "rtx pro 6000 blackwell server",
}


def model_of(*layers: Layer, hidden: int = 1024, vocab: int = 32000, **changes) -> DecodeModel:
    spec = ModelSpec("toy", hidden, vocab, layers, False, (Weights("norm", hidden, 1),), BF16, KV_FORMATS["bf16"])
    return DecodeModel(spec, **changes)


def dense(count: int = 10, hidden: int = 1024, **attention) -> Layer:
    return Layer(GroupedAttention(16, 4, 64, **attention), Dense(4096), 2 * hidden, count)


def sparse(count: int = 10, n_experts: int = 64, n_active: int = 4) -> Layer:
    return Layer(GroupedAttention(16, 4, 64), Experts(n_experts, n_active, 512), 2048, count)


@pytest.mark.parametrize("at", range(9))
def test_worked_bounds_of_nine_systems(shared, at):
    row = json.loads((shared / "reference" / "worked.json").read_text())[at]
    spec = models.find(row["model"])
    if row["w"] in FORMATS:  # the format of the projections; "v4" and "mxfp4x" are those of the checkpoints
        named = dict.fromkeys(ROLES, FORMATS["bf16"])
        indexer = {"indexer": FORMATS[row["w"]]}
        spec = replace(spec, formats=quantisation.weight_formats(row["w"], named) | indexer)
    model = DecodeModel(spec, Parallel(tp=row["tp"]), KV_FORMATS[row["kv"]])
    board = hardware.find(WORKED_BOARDS[row["hw"]])
    levels = np.array([float(level) for level in row["step"]])
    context = np.full(len(levels), float(row["L"]))
    (forward,) = model.forwards(levels, context)
    read = {group: n_bytes[0] for group, n_bytes in forward.bytes_read.items()}
    assert read["weights"] + read["head"] == pytest.approx(1e9 * row["W_fixed_GB"], rel=0.01)
    assert read["kv"] + read["index"] + read["state"] == pytest.approx(1e6 * row["per_req_MB"], rel=0.01)
    # The table takes the larger of all bytes and all products, without communication.
    memory_s = forward.total_bytes() / board.mem_bw_bytes_per_s
    compute_s = step.compute_s(forward, board, forward.flops)
    assert 1e3 * np.maximum(memory_s, compute_s) == pytest.approx(list(row["step"].values()), rel=0.01)


def field_case_a() -> tuple[DecodeModel, hardware.Hardware]:
    return DecodeModel(models.find("DeepSeek-V4-Flash-NVFP4"), Parallel(tp=4)), hardware.find(
        "rtx pro 6000 blackwell server")


# field_values.json: dsv4.step_ideal_ms, dsv4.step_real_ms (3 %: formats of router and compressor).
FIELD_A = {1: (1.963888, 3.631927), 16: (8.35619, 12.362078), 64: (18.584892, 29.222327)}
MEASURED_A_S = {1: 0.081967213, 16: 0.551724138, 64: 1.948249619}


def test_field_case_a_ideal_target_and_distance():
    model, board = field_case_a()
    links = {4: communication.find_table(board, 4)}
    levels = [*FIELD_A]
    lines = bound.roofline(model, board, levels, 320, step_s=[*MEASURED_A_S.values()], links=links)
    ideal_s = bound.line_step_s(model, board, np.array(levels, float), 320.0, "expected")
    assert 1e3 * ideal_s == pytest.approx([ideal for ideal, _ in FIELD_A.values()], rel=0.03)
    assert [1e3 * s for s in lines.target.step_s] == pytest.approx([real for _, real in FIELD_A.values()], rel=0.03)
    # off_roofline_ideal 41.75, 66.02, 104.8; off_roofline_real 22.58, 44.63, 66.67, 5 % each
    assert np.array([*MEASURED_A_S.values()]) / ideal_s == pytest.approx([41.7539, 66.022915, 104.827079], rel=0.05)
    assert lines.ratio("target") == pytest.approx([22.577545, 44.628418, 66.668203], rel=0.05)
    # The chords published for these levels, 2.85 + 0.251 N and 4.47 + 0.393 N ms, weigh all levels alike.
    even = bound.roofline(model, board, levels, 320, weights=[1, 1, 1], links=links).target
    assert (1e3 * even.intercept_s, 1e3 * even.slope_s_per_req) == pytest.approx((4.47, 0.393), rel=0.03)
    assert lines.regimes == ("weights", "experts", "experts")
    assert lines.knees_req["experts"] == pytest.approx(126, rel=0.01)  # ln 0.05 / ln(1 - 6/256)


def test_touched_experts_closed_form():
    assert touched_experts(256, 6, [1, 16, 64]) == pytest.approx([6.0, 80.837692, 199.889681], rel=1e-6)
    assert touched_experts(8, 8, [1, 2]) == pytest.approx([8, 8])


@pytest.mark.parametrize(
    ("n_experts", "n_active", "n_ranks", "simulated"),
    [(256, 6, 4, (1.87, 1.42, 1.19, 1.07)), (256, 8, 8, (2.58, 1.72, 1.31, 1.09))],
)
def test_busiest_rank_against_simulated_routing(n_experts, n_active, n_ranks, simulated):
    rng = np.random.default_rng(7)
    tok = np.array([1, 4, 16, 64])
    own = []
    for n in tok:  # an independent route: draw experts, count the different ones on each rank
        worst = []
        for _ in range(400):
            drawn = {int(e) for _ in range(n) for e in rng.choice(n_experts, n_active, replace=False)}
            counts = np.bincount([e * n_ranks // n_experts for e in drawn], minlength=n_ranks)
            worst.append(counts.max() / (len(drawn) / n_ranks))
        own.append(np.mean(worst))
    assert own == pytest.approx(simulated, rel=0.04)
    assert busiest_rank_factor(n_experts, n_active, tok.astype(float), n_ranks) == pytest.approx(simulated, rel=0.05)


def test_a_dense_step_by_hand():
    # One layer: q and o 2 x 1024 x 1024, k and v 2 x 1024 x 256, three matrices 3 x 1024 x 4096, norms 2048.
    per_layer = 2 * 1024 * 1024 + 2 * 1024 * 256 + 3 * 1024 * 4096 + 2048
    weights = 2 * (10 * per_layer + 1024)
    head = 2 * 1024 * 32000
    kv = 10 * 2 * 4 * 64 * 2 * 500  # layers x (k, v) x heads x width x bytes x tokens
    lines = bound.roofline(model_of(dense()), BOARD, [1, 8], 500)
    expected = [(weights + head + n * kv) / 1e12 for n in (1, 8)]
    assert lines.strict.step_s == pytest.approx(expected, rel=1e-12)
    assert lines.expected.step_s == pytest.approx(expected, rel=1e-12)  # memory-bound, one rank: nothing is added
    assert lines.target.step_s == pytest.approx([s / 0.82 for s in expected], rel=1e-12)
    assert lines.bytes_read["kv"] == pytest.approx((kv, 8 * kv))
    assert lines.knees_req["requests"] == pytest.approx((weights + head) / kv, rel=1e-9)
    # products: 2 FLOP per parameter and token at 1e14 against 2 bytes per parameter at 1e12
    assert lines.knees_req["compute"] == pytest.approx(100, rel=1e-9)


def test_beyond_the_ridge_the_products_bind():
    lines = bound.roofline(model_of(dense()), BOARD, [400], 1)
    params = 10 * (2 * 1024 * 1024 + 2 * 1024 * 256 + 3 * 1024 * 4096 + 2048) + 1024 + 1024 * 32000
    assert lines.expected.step_s[0] == pytest.approx(2 * params * 400 / 1e14, rel=0.01)
    assert lines.regimes == ("compute",)
    assert sum(times[0] for times in lines.expected.parts.values()) == pytest.approx(lines.expected.step_s[0])


def test_ranks_share_heads_until_each_has_one():
    layer = dense(1)
    for tp, kv_heads in ((1, 4), (2, 2), (4, 1), (8, 1), (16, 1)):
        (forward,) = model_of(layer, parallel=Parallel(tp=tp)).forwards(np.ones(1), np.full(1, 100.0))
        assert forward.bytes_read["kv"][0] == 100 * 2 * kv_heads * 64 * 2
        kv_params = 2 * 1024 * 256 / min(tp, 4)
        others = (2 * 1024 * 1024 + 3 * 1024 * 4096) / tp + 2048 + 1024
        assert forward.bytes_read["weights"][0] == pytest.approx(2 * (kv_params + others))


def test_a_verification_reads_weights_once_and_writes_a_state_per_token():
    state = Layer(GatedDelta(4, 8, 64, 64, 4), Dense(4096), 2048, 3)
    plain = model_of(state).forwards(np.full(1, 5.0), np.full(1, 100.0))[0]
    rounds = model_of(state, n_draft_tok=3).forwards(np.full(1, 5.0), np.full(1, 100.0))
    assert [forward.name for forward in rounds] == ["verify"]  # no draft layers are known
    assert rounds[0].bytes_read["weights"] == pytest.approx(plain.bytes_read["weights"])
    assert rounds[0].bytes_read["state"] == pytest.approx(plain.bytes_read["state"] * (1 + 4) / 2)
    assert rounds[0].flops["weights"]["bf16"] == pytest.approx(4 * plain.flops["weights"]["bf16"])


def test_more_tokens_touch_more_experts_and_drafts_are_read_each_time():
    model = model_of(sparse(), n_draft_tok=2)
    model = replace(model, spec=replace(model.spec, draft=(dense(1),), draft_extra=(Weights("draft", 1000),)))
    verify, draft = model.forwards(np.ones(1), np.full(1, 100.0))
    all_experts = 10 * 64 * 3 * 1024 * 512 * 2
    assert verify.bytes_read["experts"][0] == pytest.approx(all_experts * (1 - (1 - 4 / 64) ** 3))
    assert (draft.name, draft.count) == ("draft", 2.0)
    assert draft.bytes_read["head"][0] == 1024 * 32000 * 2  # the shared head, at every draft step
    strict = model.forwards(np.full(1, 50.0), np.full(1, 100.0), fewest=True)[0]
    assert strict.bytes_read["experts"][0] == pytest.approx(all_experts * 4 / 64)


def test_graphs_pad_the_products_and_not_the_requests():
    model = model_of(dense(), captured_batch_sizes=(1, 8, 16))
    at_9, at_16 = (model.forwards(np.full(1, n), np.full(1, 100.0))[0] for n in (9.0, 16.0))
    assert at_9.flops["weights"]["bf16"] == pytest.approx(at_16.flops["weights"]["bf16"])
    assert at_9.bytes_read["kv"] == pytest.approx(at_16.bytes_read["kv"] * 9 / 16)
    assert model.padded(np.array([1, 2, 8, 17.0])).tolist() == [1, 8, 8, 17]  # beyond the largest: as it is
    strict = model.forwards(np.full(1, 9.0), np.full(1, 100.0), fewest=True)[0]
    assert strict.flops["weights"]["bf16"] == pytest.approx(at_16.flops["weights"]["bf16"] * 9 / 16)


def test_data_parallel_attention_shares_experts_only():
    layer = sparse(1)
    alone = model_of(layer).forwards(np.full(1, 4.0), np.full(1, 100.0))[0]
    ranks = Parallel(tp=8, dp=8, ep=1, dp_attention=True)
    shared = model_of(layer, parallel=ranks).forwards(np.full(1, 4.0), np.full(1, 100.0))[0]
    assert shared.bytes_read["kv"] == pytest.approx(alone.bytes_read["kv"])  # its own requests, whole heads
    touched = touched_experts(64, 4, 32.0) / 64  # the experts see the tokens of eight ranks, each holds an eighth
    assert shared.bytes_read["experts"][0] == pytest.approx(64 * 3 * 1024 * 512 * 2 / 8 * touched)


def test_collectives_of_a_dense_model():
    model = model_of(dense(), parallel=Parallel(tp=4))
    (forward,) = model.forwards(np.array([1.0, 64.0]), np.full(2, 100.0))
    reduces = [message for message in forward.messages if message.kind == "all_reduce"]
    assert sum(message.count for message in reduces) == 20  # two per layer
    assert reduces[0].message_bytes.tolist() == [2048, 131072]  # 1024 x 2 bytes x requests
    (gather,) = [message for message in forward.messages if message.kind == "all_gather"]
    assert gather.message_bytes[0] == 32000 / 4 * 2
    without, link = (bound.line_step_s(model, BOARD, np.ones(1), 100.0, "expected", links=links)
                     for links in ({}, {4: communication.find_table(hardware.find("h200"), 4)}))
    table = communication.find_table(hardware.find("h200"), 4)
    by_hand = 20 * table.all_reduce_s(np.array([2048.0])) + table.all_gather_s(np.array([16000.0]))
    assert link - without == pytest.approx(by_hand)


def test_formats_without_units_run_at_sixteen_bit():
    assert step.rate_flop_per_s(hardware.find("A100 SXM 80GB"), "fp8") == hardware.find("A100 SXM 80GB").bf16_flop_per_s
    h100 = hardware.find("h100-sxm")
    assert h100.fp4_flop_per_s is None and step.rate_flop_per_s(h100, "fp4") == h100.bf16_flop_per_s
    assert step.rate_flop_per_s(hardware.Hardware(name="x", mem_bw_bytes_per_s=1.0), "bf16") is None


@pytest.mark.parametrize(
    ("degrees", "message"),
    [({"tp": 0}, "tp to be a whole number"), ({"tp": 1.5}, "tp to be a whole number"),
     ({"tp": 4, "dp": 3, "dp_attention": True}, "dp to divide tp"), ({"tp": 4, "ep": 3}, "ep to divide tp")],
)  # fmt: skip
def test_impossible_degrees_are_refused(degrees, message):
    with pytest.raises(RooflogError, match=message):
        Parallel(**degrees)


NAMES = ["Meta-Llama-3.1-8B", "Qwen3-30B-A3B", "DeepSeek-V3.2", "DeepSeek-V4-Flash", "Qwen3.6-27B", "gpt-oss-120b",
         "Nemotron-H-56B-Base-8K", "gemma-3-27b-it"]  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(NAMES), st.sampled_from([1, 2, 4]), st.floats(1, 512), st.floats(16, 1e5),
       st.sampled_from([0, 1, 3]))
def test_order_and_monotony(name, tp, n, context, n_draft_tok):
    board = hardware.find("h200")
    model = DecodeModel(models.find(name), Parallel(tp=tp), n_draft_tok=n_draft_tok)
    links = {tp: communication.find_table(board, tp)} if tp > 1 else {}

    def lines(model=model, n=n, context=context, links=links):
        return [bound.line_step_s(model, board, np.array([n]), context, line, links=links,
                                  shares=step.achievable(board))[0] for line in step.LINES]

    strict, expected, target = lines()
    assert 0 < strict <= expected * (1 + 1e-12) and expected <= target * (1 + 1e-12)
    for more in (lines(n=2 * n), lines(context=2 * context)):
        assert all(a >= b * (1 - 1e-12) for a, b in zip(more, (strict, expected, target), strict=True))
    wider = replace(model, parallel=Parallel(tp=2 * tp))
    at = np.array([n]), np.array([context])
    for own, other in zip(model.forwards(*at), wider.forwards(*at), strict=True):
        for group, n_bytes in other.bytes_read.items():
            assert n_bytes[0] <= own.bytes_read[group][0] * (1 + 1e-12)  # more ranks never read more


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 512), st.integers(1, 64), st.floats(1, 1e4))
def test_touched_experts_rise_bend_and_end(n_experts, n_active, tok):
    n_active = min(n_active, n_experts)
    a, b, c = touched_experts(n_experts, n_active, [tok, tok + 1, tok + 2])
    assert a <= b <= c <= n_experts * (1 + 1e-12)
    assert b - a >= c - b - 1e-9
    assert touched_experts(n_experts, n_active, 1) == pytest.approx(n_active)


@given(st.sampled_from(NAMES), st.floats(1, 100), st.floats(101, 1000))
@settings(max_examples=30, deadline=None)
def test_the_chord_of_two_levels_meets_both_lines(name, low, high):
    lines = bound.roofline(DecodeModel(models.find(name)), hardware.find("h200"), [low, high], 1000)
    for line in (lines.strict, lines.expected, lines.target):
        chord = line.intercept_s + line.slope_s_per_req * np.array([low, high])
        assert chord == pytest.approx(line.step_s, rel=1e-9)
