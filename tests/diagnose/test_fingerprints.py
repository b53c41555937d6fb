"""Size fingerprints against the published allocation, hand arithmetic and the rate at which luck fits."""

import math

import numpy as np
import pytest

from helpers.diagnose import fingerprints
from helpers.errors import RooflogError

GIB = 2**30
C_MAX = 1_048_576
HEADS = {"index heads": 64, "attention heads": 64, "heads per rank": 16}
FIELD = {"context_length_max": C_MAX, "n_max": 64, "heads": HEADS}


@pytest.mark.parametrize("page_tok", [(64,), (256,), (64, 256)])  # 64 entries are 256 tokens at ratio 4
@pytest.mark.parametrize("near_req", [(63,), (64,)])  # the last line says 64: one ended since
def test_the_published_allocation_is_63_requests_times_a_quarter_of_the_context(page_tok, near_req):
    """63 x (1,048,576 / 4 + 64) x 64 x 4 = 4,228,890,624 bytes = 3.938 GiB, printed 3.94 (field case A)."""
    best = fingerprints.find(3.94 * GIB, page_tok=page_tok, near_req=near_req, **FIELD)[0]
    assert (best.count, best.positions, best.heads, best.value_bytes) == (63, 262_208, 64, 4)
    assert (best.ratio, best.padding_tok, best.heads_name) == (4, 64, "index heads")
    assert best.count * best.positions * best.heads * best.value_bytes == 4_228_890_624
    assert best.error_frac == pytest.approx(4_228_890_624 / (3.94 * GIB) - 1, abs=1e-9)
    assert best.is_near_req and best.is_strong and best.chance_frac < 0.02
    assert not best.is_context_told  # a power of two: 63 and the magnitude speak, not the context
    assert "63 requests x 262,208 positions (1,048,576 / 4 + 64) x 64 index heads x 4 bytes" in best.sentence


def test_without_a_count_seen_near_the_event_the_same_fit_is_luck_one_time_in_five():
    """Counts 33..64 put 32 windows of 0.4 % into an octave: 32 x 0.004 / ln 2 = 18 %; paddings widen them a little."""
    for near_req in ((), (16,)):
        best = fingerprints.find(3.94 * GIB, near_req=near_req, **FIELD)[0]
        assert best.count == 63 and not best.is_near_req
        assert 0.18 < best.chance_frac < 0.22 and not best.is_strong


def test_the_chance_of_one_count_is_its_window_over_an_octave():
    """One count, no padding, no heads: window 0.4 % in each octave, 0.004 / ln 2 = 0.58 %."""
    size = 63 * 131_072 * 2 * 1.0005
    found = fingerprints.find(size, context_length_max=131_072, n_max=1, near_req=(63,), page_tok=())
    assert {f.count for f in found} == {63}
    assert found[0].chance_frac == pytest.approx(0.004 / math.log(2), rel=0.01)
    assert found[0].n_alternatives == len(found) - 1  # ratio 1 x 2 bytes is ratio 2 x 4 bytes


def test_no_context_no_fingerprint():
    assert fingerprints.find(3.94 * GIB, context_length_max=None, n_max=64) == ()
    assert fingerprints.find(63 * 4.0, context_length_max=None, n_max=64) == ()  # not even 63 x 1 x 4 bytes
    assert fingerprints.find_in_shapes([(32, 262_208, 64)], context_length_max=None) == ()
    assert fingerprints.find_in_excess(54e9, 35e9, 73e9, context_length_max=None) == ()


def test_round_sizes_are_never_strong():
    """1 GiB = 64 x 2^24: any power of two fits a context that is one; so do 48 (3 x 16) and 56 (7 x 8)."""
    for n in (16, 48, 56, 64):
        found = fingerprints.find(n * C_MAX / 4 * 64 * 4.0, near_req=(n,), **FIELD)
        assert found and found[0].is_near_req
        assert not any(f.is_strong for f in found)


def test_an_odd_context_is_told_from_other_powers_of_two():
    best = fingerprints.find(61 * 200_000 * 4.0, context_length_max=200_000, n_max=64, near_req=(61,))[0]
    assert best.is_strong and best.is_context_told
    assert not fingerprints.find(61 * 205_000 * 4.0, context_length_max=200_000, n_max=1, near_req=(61,), page_tok=())


@pytest.mark.parametrize("near_req", [(), (17,), (63,), (64,), (48, 64)])
def test_random_sizes_are_strong_at_most_one_time_in_twenty(near_req):
    """2,000 sizes between 64 MiB and 16 GiB, each octave alike; and 2,000 products as buffers really have."""
    rng = np.random.default_rng(5)
    alike = np.exp(rng.uniform(math.log(2**26), math.log(2**34), 2000))
    tokens = rng.choice([*range(1, 129), 2048, 4096, 8192, 16384, 65536], 2000)
    width = rng.choice([2048, 4096, 5120, 6144, 7168, 8192, 12288, 14336, 18432, 28672, 129280, 151936, 128256], 2000)
    products = (tokens * width * rng.choice([1, 2, 4, 8, 16, 32, 64], 2000) * rng.choice([1, 2, 4], 2000)).astype(float)
    for sizes in (alike, products):
        strong = [any(f.is_strong for f in fingerprints.find(
            size, context_length_max=C_MAX, n_max=128, heads=HEADS, near_req=near_req)) for size in sizes]
        assert np.mean(strong) <= 0.05


@pytest.mark.parametrize("n", [23, 47, 63, 101])
def test_a_planted_size_is_found_among_its_neighbours(n):
    """The other half of the rate: a true size is strong, one 1 % off is not found."""
    size = n * (C_MAX // 4 + 64) * 64 * 4.0
    found = fingerprints.find(size, near_req=(n,), context_length_max=C_MAX, n_max=128, heads=HEADS)
    assert found[0].is_strong and found[0].count == n and found[0].positions == 262_208
    off = fingerprints.find(size * 1.02, near_req=(n,), context_length_max=C_MAX, n_max=128, heads=HEADS)
    assert not any(f.is_strong for f in off)


def test_a_known_dimension_that_explains_the_size_takes_the_hint_away():
    """FP32 logits of 63 requests over 262,144 words: 63 x 262,144 x 4 bytes = 63 MiB, also a quarter of 1 M."""
    size = 63 * 2.0**20
    assert fingerprints.find(size, near_req=(63,), **FIELD)[0].is_strong
    best = fingerprints.find(size, near_req=(63,), other_dims={"vocabulary": 262_144, "hidden size": 7168}, **FIELD)[0]
    assert best.rivals == ("vocabulary",) and best.chance_frac == 1 and not best.is_strong
    assert "but vocabulary fits too" in best.sentence


def test_the_printed_digits_set_the_tolerance():
    """1.0 GiB with one decimal is known to 5 %: half a unit of 0.05 GiB."""
    size = 1.0 * GIB
    n = 66  # 66 x 2^24 = 1.031 GiB
    fits = fingerprints.find(size, context_length_max=C_MAX, n_max=1, near_req=(n,), heads=HEADS,
                             half_unit_bytes=0.05 * GIB, limit=99)
    assert n in {f.count for f in fits} and not fits[0].is_strong
    fine = fingerprints.find(size, context_length_max=C_MAX, n_max=1, near_req=(n,), heads=HEADS)
    assert n not in {f.count for f in fine}


def test_the_padded_dimension_of_a_trace_is_a_strong_hint():
    shapes = [(32, 262_208, 64), (1, 262_208), (32, 4096), (8192, 7168), (32, 129_280)]
    best, *others = fingerprints.find_in_shapes(shapes, context_length_max=C_MAX, near_req=(32,))
    assert best.shape == (32, 262_208, 64) and best.is_near_req
    assert (best.ratio, best.padding_tok, best.positions) == (4, 64, 262_208)
    assert best.is_context_told and best.chance_frac < 1e-4
    assert [f.positions for f in others] == [8192] and not others[0].is_strong  # 1 M / 128, and a hidden size


def test_plain_dimensions_are_no_hint_and_named_ones_are_rivals():
    shapes = [(16, 8192), (16, 16_384), (16, 262_144)]
    found = fingerprints.find_in_shapes(shapes, context_length_max=C_MAX, other_dims={"vocabulary": 262_144})
    assert {f.positions: f.is_strong for f in found} == {8192: False, 16_384: False, 262_144: False}
    assert next(f for f in found if f.positions == 262_144).rivals == ("vocabulary",)
    (plain,) = fingerprints.find_in_shapes([(16, 131_072)], context_length_max=131_072)  # 6 of 78 vocabularies
    assert not plain.is_strong and not plain.rivals


def test_random_shapes_are_strong_at_most_one_time_in_twenty():
    """One dimension drawn as the model catalogue has them, 2,000 times; most are round, some are vocabularies."""
    rng = np.random.default_rng(6)
    widths = [1536, 2048, 2304, 2560, 2816, 3072, 3584, 4096, 5120, 5632, 6144, 7168, 8192, 9216, 10_240, 11_008,
              12_288, 13_824, 14_336, 16_384, 18_432, 28_672, 32_000, 32_768, 100_352, 128_256, 129_280, 131_072,
              151_936, 163_840]
    hits = [any(f.is_strong for f in fingerprints.find_in_shapes([(int(rng.integers(1, 65)), int(width))],
                                                                 context_length_max=C_MAX))
            for width in rng.choice(widths, 2000)]
    assert np.mean(hits) <= 0.05


def test_the_excess_of_a_slope_tells_a_magnitude_not_a_cause():
    """Field case A: 30 ms per request are 54 GB [35, 73] at peak: 21 layers x 0.85 GB and more; any product fits."""
    found = fingerprints.find_in_excess(54e9, 35e9, 73e9, context_length_max=C_MAX, n_layers=(21,), heads=HEADS,
                                         limit=10_000)
    assert found and found[0].chance_frac > 0.5 and not found[0].is_strong
    assert all(35e9 <= f.count * f.positions * f.heads * f.value_bytes <= 73e9 for f in found)
    # 8 kB per request and step are below one byte per 128 positions of 21 layers: 21 x 8192 bytes
    assert not fingerprints.find_in_excess(8e3, 7e3, 9e3, context_length_max=C_MAX, n_layers=(21,), heads=HEADS)


@pytest.mark.parametrize(("size", "n_max"), [(0, 4), (-1, 4), (math.nan, 4), (1e9, 0)])
def test_impossible_input_is_refused(size, n_max):
    with pytest.raises(RooflogError, match="expected above 0"):
        fingerprints.find(size, context_length_max=C_MAX, n_max=n_max)
