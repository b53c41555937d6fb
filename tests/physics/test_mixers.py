"""Mixers and feeds against hand arithmetic, and what tensor parallelism does to them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.physics.model.feeds import Dense, Experts
from helpers.physics.model.formats import KV_FORMATS
from helpers.physics.model.mixers import (
    CompressedAttention,
    GatedDelta,
    GroupedAttention,
    Indexer,
    LatentAttention,
    Mamba2,
)
from helpers.physics.model.spec import ALL_RANKS

BF16, FP8 = KV_FORMATS["bf16"], KV_FORMATS["fp8"]
GROUPED = GroupedAttention(32, 8, 128)
LATENT = LatentAttention(128, 1536, 512, 64, 128, 128)
SPARSE = LatentAttention(128, 1536, 512, 64, 128, 128, Indexer(64, 128, 2048))
CSA = CompressedAttention(64, 512, 64, 1024, 1024, 8, 128, 4, Indexer(64, 128, 512))
HCA = CompressedAttention(64, 512, 64, 1024, 1024, 8, 128, 128)
SWA = CompressedAttention(64, 512, 64, 1024, 1024, 8, 128)
DELTA = GatedDelta(16, 48, 128, 128, 4)
MAMBA = Mamba2(64, 64, 8, 128, 4)
MIXERS = (GROUPED, LATENT, SPARSE, CSA, HCA, SWA, DELTA, MAMBA)


def read(mixer, context_tok, tp=1, kv=BF16):
    return float(mixer.kv_bytes(np.array([float(context_tok)]), tp, kv)[0])


def n_params(mixer, role, hidden, tp=1):
    return sum(part.per_rank(tp) for part in mixer.weights(hidden) if part.role == role)


def test_grouped_attention_reads_every_key_and_value():
    assert read(GROUPED, 1000) == 1000 * 2 * 8 * 128 * 2
    assert read(GROUPED, 1000, kv=FP8) == 1000 * 2 * 8 * 128
    assert read(GROUPED, 1000, tp=4) == 1000 * 2 * 2 * 128 * 2
    assert read(GROUPED, 1000, tp=16) == 1000 * 2 * 1 * 128 * 2  # fewer heads than ranks: copies


def test_a_window_bounds_what_is_read_and_stores_nothing_in_the_long_run():
    mixer = GroupedAttention(32, 8, 128, window_tok=128)
    assert read(mixer, 100) == read(GROUPED, 100)
    assert read(mixer, 5000) == read(GROUPED, 128)
    assert mixer.cell_bytes(BF16) == 0


def test_projections_of_grouped_attention():
    assert n_params(GROUPED, "attention", 4096) == 2 * 4096 * 4096 + 2 * 4096 * 1024
    gated = GroupedAttention(32, 8, 128, has_gate=True)
    assert n_params(gated, "attention", 4096) - n_params(GROUPED, "attention", 4096) == 4096 * 4096
    biased = GroupedAttention(32, 8, 128, has_qkv_bias=True, has_o_bias=True, has_sinks=True)
    more = n_params(biased, "attention", 4096) - n_params(GROUPED, "attention", 4096)
    assert more == 4096 + 2 * 1024 + 4096 + 32
    keys_only = GroupedAttention(32, 8, 128, has_v_proj=False)
    assert n_params(keys_only, "attention", 4096) == 2 * 4096 * 4096 + 4096 * 1024
    assert read(keys_only, 10) == read(GROUPED, 10)  # the cache still holds both
    # 16 ranks: queries and output to a sixteenth, keys and values only to an eighth.
    assert n_params(GROUPED, "attention", 4096, 16) == 2 * 4096 * 4096 / 16 + 2 * 4096 * 1024 / 8


def test_latents_are_replicated():
    assert read(LATENT, 4096) == read(LATENT, 4096, tp=8) == 4096 * 1152
    assert LATENT.cell_bytes(FP8) == 576
    (down,) = [part for part in LATENT.weights(7168) if part.role == "attention" and part.max_shards == 1]
    assert down.n_params == 7168 * (1536 + 512 + 64)


def test_sparse_attention_reads_its_choice_and_the_whole_index():
    context = np.array([1000.0, 65536.0])
    assert list(SPARSE.kv_bytes(context, 8, FP8)) == [1000 * 656, 2048 * 656]
    assert list(SPARSE.kv_bytes(context, 8, BF16)) == [1000 * 1152, 2048 * 1152]
    assert list(SPARSE.index_bytes(context)) == [1000 * 132, 65536 * 132]
    follower = LatentAttention(128, 1536, 512, 64, 128, 128, Indexer(64, 128, 2048, is_full=False))
    assert list(follower.index_bytes(context)) == [0, 0]
    assert n_params(follower, "indexer", 7168) == 0
    assert float(follower.flops(np.array([1000.0]), 1)[0]) == 1000 * 2 * 128 * 1088
    assert n_params(SPARSE, "indexer", 7168, 8) == 7168 * 128 + 1536 * 64 * 128 + 7168 * 64
    assert list(follower.kv_bytes(context, 8, FP8)) == list(SPARSE.kv_bytes(context, 8, FP8))


@pytest.mark.parametrize(("mixer", "context_tok", "entries", "index_keys"), [
    (SWA, 100, 100, 0), (SWA, 5000, 128, 0),
    (CSA, 321, 128 + 80, 80), (CSA, 100_000, 128 + 512, 25_000),
    (HCA, 320, 128 + 2, 0), (HCA, 100_000, 128 + 781, 0),
])
def test_compressed_attention(mixer, context_tok, entries, index_keys):
    assert read(mixer, context_tok, kv=FP8) == read(mixer, context_tok, tp=4, kv=FP8) == entries * 584
    assert read(mixer, context_tok) == entries * 1024
    assert float(mixer.index_bytes(np.array([float(context_tok)]))[0]) == index_keys * 132


def test_compressed_attention_stores_an_entry_per_ratio():
    assert SWA.cell_bytes(FP8) == 0
    assert HCA.cell_bytes(FP8) == 584 / 128
    assert CSA.cell_bytes(FP8) == (584 + 132) / 4
    assert CSA.cell_bytes(BF16) == (1024 + 256) / 4


def test_states_are_read_once_and_written_per_token():
    # Gated delta: 48 x 128 x 128 x 4 bytes, and (2 x 16 x 128 + 48 x 128) x 3 x 2 bytes of the convolution.
    one = 48 * 128 * 128 * 4 + (2 * 16 * 128 + 48 * 128) * 3 * 2
    assert DELTA.state_bytes(1, 1) == 2 * one
    assert DELTA.state_bytes(4, 2) == 5 * one / 2
    mamba = 64 * 64 * 128 * 4 + (64 * 64 + 2 * 8 * 128) * 3 * 2
    assert MAMBA.state_bytes(1, 4) == 2 * mamba / 4
    assert Mamba2(64, 64, 8, 128, 4, element_bytes=2.0).state_bytes(0, 1) == 64 * 64 * 128 * 2 + 6144 * 6


@pytest.mark.parametrize(("mixer", "per_tok"), [
    (GROUPED, 4 * 32 * 128), (LATENT, 2 * 128 * (2 * 512 + 64)), (SPARSE, 2 * 128 * 1088 + 2 * 64 * 128),
])
def test_flops_per_token_of_context(mixer, per_tok):
    assert float(mixer.flops(np.array([1000.0]), 1)[0]) == 1000 * per_tok


def test_what_ranks_divide_of_the_work():
    context = np.array([1000.0])
    assert float(GROUPED.flops(context, 8)[0]) == 1000 * 4 * 4 * 128
    assert float(SPARSE.flops(context, 8)[0]) == 1000 * (2 * 16 * 1088 + 2 * 64 * 128)  # every rank runs the index
    assert float(CSA.flops(np.array([400.0]), 4)[0]) == (128 + 100) * 4 * 16 * 512 + 100 * 2 * 64 * 128
    assert float(DELTA.flops(context, 2)[0]) == 6 * 24 * 128 * 128
    assert float(MAMBA.flops(context, 2)[0]) == 6 * 32 * 64 * 128


@given(st.sampled_from(MIXERS), st.floats(1, 1e6), st.floats(0, 1e5), st.sampled_from([1, 2, 4, 8, 16]))
def test_more_context_never_reads_less_and_more_ranks_never_more(mixer, context_tok, more_tok, tp):
    context = np.array([context_tok, context_tok + more_tok])
    for values in (mixer.kv_bytes(context, tp, FP8), mixer.index_bytes(context), mixer.flops(context, tp)):
        assert values.shape == (2,) and values[1] >= values[0] >= 0
    assert (mixer.kv_bytes(context, 2 * tp, FP8) <= mixer.kv_bytes(context, tp, FP8)).all()
    assert mixer.state_bytes(2, tp) >= mixer.state_bytes(2, 2 * tp)
    one, two = ([part.per_rank(ranks) for part in mixer.weights(2048)] for ranks in (tp, 2 * tp))
    assert all(after <= before for before, after in zip(one, two, strict=True))


def test_feeds():
    assert Dense(14336).weights(4096)[0].n_params == 3 * 4096 * 14336
    assert Dense(14336, n_matrices=2).weights(4096)[0].n_params == 2 * 4096 * 14336
    assert Dense(100, has_bias=True).weights(10)[0].n_params == 3 * 1000 + 2 * 100 + 10


def test_experts():
    feed = Experts(256, 8, 2048, router_vectors=1, shared=Dense(2048, role="shared_experts"), has_shared_gate=True)
    parts = {part.role: part for part in feed.weights(7168)}
    assert feed.expert_params(7168) == 3 * 7168 * 2048
    assert feed.idle_params(7168) == 248 * 3 * 7168 * 2048
    assert parts["routed_experts"].n_params == 256 * 3 * 7168 * 2048
    assert (parts["router"].n_params, parts["router"].max_shards) == (256 * 7169 + 7168, 1)
    assert (parts["shared_experts"].n_params, parts["shared_experts"].max_shards) == (3 * 7168 * 2048, ALL_RANKS)


def test_experts_in_a_latent_width():
    feed = Experts(512, 22, 2688, n_matrices=2, latent=1024)
    assert feed.expert_params(4096) == 2 * 1024 * 2688
    (projections,) = [part for part in feed.weights(4096) if part.role == "shared_experts"]
    assert (projections.n_params, projections.max_shards) == (2 * 4096 * 1024, 1)
