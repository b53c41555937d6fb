"""The least time of a prefill by hand: products, attention over the square of the prompt, chunks, few experts."""

from __future__ import annotations

import pytest

from helpers.physics.catalogue import hardware, models
from helpers.physics.steps.decode import DecodeModel
from helpers.physics.steps.demand import Parallel
from helpers.physics.steps.prefill import prefill_bound, prefill_table
from helpers.schema import RooflogError

H100 = hardware.find("h100-sxm")  # 989.4 TFLOP/s, 3.35 TB/s; 0.7 of the rate is taken as reachable


def test_a_long_prompt_of_a_dense_model():
    bound = prefill_bound(DecodeModel(models.find("Meta-Llama-3.1-8B")), H100, 16000)
    # Scores and values: 4 FLOP x 32 heads x 128 per pair of tokens, half of the square, 32 layers.
    attention_flop = 4 * 32 * 128 * 16000**2 / 2 * 32
    assert bound.attention_s == pytest.approx(attention_flop / (0.7 * H100.bf16_flop_per_s), rel=1e-6)
    # 2 FLOP per parameter of the layers; the head sees one token.
    matrices_flop = 2 * (7_504_924_672 - 4096 * 128256) * 16000
    assert bound.matrices_s == pytest.approx(matrices_flop / (0.7 * H100.bf16_flop_per_s), rel=1e-3)
    assert bound.strict_s == pytest.approx(0.7 * (bound.matrices_s + bound.attention_s), rel=1e-6)
    assert bound.is_compute_bound and bound.communication_s == 0
    assert bound.strict_tok_per_s == pytest.approx(16000 / bound.strict_s)
    (row,) = prefill_table([bound])
    assert row["target_tok_per_s"] == pytest.approx(16000 / bound.target_s) and row["prompt_tok"] == 16000


def test_latent_attention_expands_its_latents_in_prefill():
    bound = prefill_bound(DecodeModel(models.find("DeepSeek-V3"), Parallel(tp=8)), hardware.find("h200"), 4000)
    # Scores over 128 + 64, values over 128 elements, 16 heads a rank, 61 layers.
    flop = 2 * 16 * (128 + 64 + 128) * 4000**2 / 2 * 61
    assert bound.attention_s == pytest.approx(flop / (0.7 * hardware.find("h200").bf16_flop_per_s), rel=1e-6)


def test_short_prompts_read_weights_and_the_bound_only_the_experts_of_one_token():
    model = DecodeModel(models.find("Qwen3-30B-A3B"))
    bound = prefill_bound(model, H100, 8)
    all_experts = 48 * 128 * 3 * 2048 * 768 * 2
    fixed = 2 * (30_532_122_624 - 2048 * 151936) - all_experts
    assert not bound.is_compute_bound
    assert bound.strict_s == pytest.approx((fixed + all_experts * 8 / 128) / 3.35e12, rel=0.01)
    touched_frac = 1 - (1 - 8 / 128) ** 8
    assert bound.matrices_s == pytest.approx((fixed + all_experts * touched_frac) / (0.85 * 3.35e12), rel=0.01)


def test_every_chunk_reads_the_weights_again():
    model = DecodeModel(models.find("Meta-Llama-3.1-8B"))
    whole, chunked = (prefill_bound(model, H100, 1024, chunk_tok=chunk) for chunk in (1024, 16))
    assert chunked.matrices_s == pytest.approx(64 * 2 * 7_504_924_672 / (0.85 * 3.35e12), rel=1e-3)
    assert whole.matrices_s < chunked.matrices_s / 10
    assert whole.attention_s == pytest.approx(chunked.attention_s)


def test_what_cannot_be_bounded_is_refused():
    model = DecodeModel(models.find("Qwen3-8B"))
    with pytest.raises(RooflogError, match="at least 1 tok"):
        prefill_bound(model, H100, 0)
    with pytest.raises(RooflogError, match="no rate of compute"):
        prefill_bound(model, hardware.Hardware(name="unknown", mem_bw_bytes_per_s=1e12), 100)
