"""Observations from the component table, from tables by hand: made, not made, and at the threshold."""

from __future__ import annotations

from dataclasses import replace
from math import inf, nan

import numpy as np
import pandas as pd
import pytest

from helpers.diagnose import of_physics
from helpers.diagnose.observations import Observations
from helpers.diagnose.of_physics import Physics
from helpers.physics.catalogue import models
from helpers.physics.catalogue.hardware import Hardware
from helpers.physics.steps.bound import Line, Roofline
from helpers.physics.steps.decode import DecodeModel
from helpers.physics.steps.demand import Parallel
from helpers.physics.steps.hand import HandModel
from helpers.physics.steps.prediction import predicted_step_s
from helpers.physics.steps.step import Shares
from helpers.schema import LawFit
from law_tables import levels_table

SLAB = Hardware("slab", 1e12, bf16_flop_per_s=100e12)  # 1 TB/s
HAND = HandModel(weight_bytes_per_step=10e9, kv_bytes_per_tok=1e5)
LLAMA = models.find("Meta-Llama-3.1-8B")
TP2 = DecodeModel(LLAMA, Parallel(tp=2))


def components(levels):
    """A component table from level -> name -> time [ms], or (time, lo, hi)."""
    rows = []
    for level, parts in levels.items():
        for name, time in parts.items():
            mid, lo, hi = time if isinstance(time, tuple) else (time, time, time)
            rows.append((float(level), name, mid / 1e3, lo / 1e3, hi / 1e3))
    return pd.DataFrame(rows, columns=["running_req", "name", "time_s", "lo", "hi"])


def physics(levels, model=HAND, *, context=1000.0, measured=None, target=None, hardware=SLAB, **known):
    n = tuple(float(level) for level in levels)
    contexts = (context,) * len(n) if isinstance(context, float) else context
    line = None if target is None else Line(tuple(target), nan, nan)
    roofline = Roofline(n, contexts, measured or (nan,) * len(n), None, None, line, Shares(0.8), ())
    achieved = known.pop("achieved", None)
    return Physics(model, hardware, roofline, components(levels), achieved, LawFit("linear"), **known)


def seen(levels, model=HAND, facts=None, **known):
    return Observations(of_physics.observe(physics(levels, model, **known), facts or {}))


def one(found, name):
    (item,) = found.named(name)
    assert item.channel == "step" and item.source == of_physics.SOURCE
    return item.value, item.says


# What explains the step.


GOOD = {1: {"weights": 8.0, "kv": 1.0, "unexplained": (1.0, -0.5, 2.0)},
        16: {"weights": 8.0, "kv": 6.0, "unexplained": (2.0, 0.0, 3.0)}}


def test_parts_that_explain_the_step():
    """At the highest level, N=16: 8 and 6 of 16 ms."""
    found = seen(GOOD)
    assert one(found, "weights_explained_frac") == (pytest.approx(0.5), (
        "at N=16 weights at good kernels' rates take 50% of the step, and 12% is unexplained"))
    assert one(found, "kv_explained_frac") == (pytest.approx(0.375), (
        "at N=16 keys and values at good kernels' rates take 38% of the step, and 12% is unexplained"))
    assert found.value("state_explained_frac") == found.value("compute_explained_frac") == 0.0
    assert one(found, "step_is_explained") == (1.0, (
        "at every level the step is what good kernels take (12% is unexplained at N=16)"))


@pytest.mark.parametrize(("rest", "is_explained"), [
    ((2.0, 0.0, 3.0), True), ((2.1, 0.0, 3.0), False),  # 20 % of 10 ms
    ((1.0, 0.49, 3.0), True), ((1.0, 0.51, 3.0), False),  # its lower end: 5 %
    ((-2.0, -4.0, 0.0), True), ((-2.1, -4.0, 0.0), False)])
def test_how_much_may_be_left(rest, is_explained):
    table = {1: {"weights": 10.0 - rest[0], "unexplained": rest}}
    found = seen(table)
    assert bool(found.named("step_is_explained")) is bool(found.named("weights_explained_frac")) is is_explained
    if rest[0] == -2.0:
        assert "the parts are 20% longer than the step" in one(found, "step_is_explained")[1]


def test_the_highest_level_must_be_explained():
    table = {1: {"weights": 8.0, "unexplained": (8.0, 7.0, 9.0)}, **{16: GOOD[16]}}
    found = seen(table)
    assert not found.named("step_is_explained")
    assert one(found, "weights_explained_frac") == (pytest.approx(0.5), (
        "at N=16 weights at good kernels' rates take 50% of the step, and 12% is unexplained"))
    assert not seen({1: table[1]}).named("weights_explained_frac")
    low_only = {1: GOOD[1], 16: {"weights": 8.0, "unexplained": (8.0, 7.0, 9.0)}}
    assert not {"step_is_explained", "weights_explained_frac"} & {item.name for item in seen(low_only)}


@pytest.mark.parametrize(("name", "parts"), [
    ("weights", ("weights", "experts", "head", "draft")), ("kv", ("kv", "index")), ("state", ("state",)),
    ("compute", ("compute",))])
def test_parts_of_one_kind_count_together(name, parts):
    """Each takes 1 ms, at most 2, of 10 ms, of which 9 or less are floor."""
    level = {part: (1.0, 1.0, 2.0) for part in parts} | {"floor": 10.0 - len(parts), "unexplained": 0.0}
    found = seen({4: level})
    assert found.value(f"{name}_explained_frac") == pytest.approx(len(parts) / 10)
    value, says = one(found, f"{name}_most_frac")
    assert value == pytest.approx(2 * len(parts) / 10)
    assert says.endswith(f"can take at most {20 * len(parts):.1f}% of the step (N=4)")


def test_what_a_part_can_take_at_most_is_that_of_its_largest_level():
    table = {1: {"weights": 2.0, "kv": 0.1, "unexplained": (8.0, 7.9, 8.0)},
             16: {"weights": 2.0, "kv": (1.0, 0.9, 1.2), "unexplained": (17.0, 16.0, 17.0)}}
    assert one(seen(table), "weights_most_frac")[0] == pytest.approx(2 / 10.1)
    assert one(seen(table), "kv_most_frac") == (
        pytest.approx(1.2 / 20), "keys and values can take at most 6.0% of the step (N=16)")


def test_collectives_that_explain_the_step():
    table = {1: {"weights": 4.0, "all_reduce": 5.0, "unexplained": (1.0, 0.0, 2.0)}}
    found = seen(table)
    assert one(found, "collectives_explained_frac") == (pytest.approx(0.5), (
        "at N=1 collectives at good kernels' rates take 50% of the step, and 10% is unexplained"))
    # their upper end needs a model that knows its collectives
    assert not found.named("collectives_most_frac")


def test_a_missing_end_of_an_interval_is_the_value_and_an_unknown_level_is_none():
    table = {1: {"weights": (8.0, nan, nan), "unexplained": (2.0, nan, inf)}, 2: {"weights": 8.0, "unexplained": nan}}
    physics_ = physics(table)
    physics_.components.loc[3, "time_s"] = nan
    physics_.components.loc[2, "time_s"] = nan
    found = Observations(of_physics.observe(physics_, {}))
    assert found.value("unexplained_least_frac") == pytest.approx(0.2)
    assert found.value("weights_most_frac") == pytest.approx(0.8)
    assert not len(seen({1: {"weights": nan, "unexplained": nan}}))


# What is left.


SLOW = {1: {"weights": 8.0, "unexplained": (1.0, 0.5, 1.5)}, 16: {"weights": 8.0, "unexplained": (12.0, 11.0, 13.0)}}


def test_how_much_is_unexplained():
    """Lower ends: 0.5 of 9 ms and 11 of 20 ms; upper ends 1.5 of 9 and 13 of 20."""
    found = seen(SLOW)
    assert one(found, "unexplained_least_frac") == (pytest.approx(0.5 / 9), (
        "at every level at least 6% of the step is unexplained by what it reads"))
    assert one(found, "unexplained_worst_frac") == (pytest.approx(0.55), (
        "at N=16 at least 55% of the step is unexplained by what it reads"))
    assert one(found, "excess_fixed_frac") == (pytest.approx(0.5 / 9), (
        "at N=1 at least 6% of the step is unexplained by what it reads"))
    assert one(found, "other_share_most_frac") == (pytest.approx(0.65), (
        "launch, latency and host can take at most 65% of the step (N=16)"))


def test_the_floor_is_other_time_and_what_is_overdrawn_is_no_excess():
    table = {1: {"weights": 8.0, "floor": (1.0, 0.5, 3.0), "unexplained": (-1.0, -2.0, -0.1)}}
    found = seen(table)
    assert found.value("other_share_most_frac") == pytest.approx(3 / 8)
    assert one(found, "excess_fixed_frac") == (0.0, "at N=1 what the step reads may explain all of it")
    assert found.value("unexplained_worst_frac") == pytest.approx(-2 / 8)


def test_the_excess_that_comes_with_the_requests():
    """1 ms at N=1, 12 ms at N=16: 11/15 ms each, 11.7 of 12 ms."""
    value, says = one(seen(SLOW), "excess_slope_frac")
    assert value == pytest.approx(16 * 11 / 15 / 12)
    assert says == "98% of what is unexplained at N=16 comes with the requests: 0.733 ms each"


@pytest.mark.parametrize(("top", "rest", "is_seen"), [
    (4, (12.0, 4.0, 13.0), True), (3, (12.0, 4.0, 13.0), False),  # four times the lowest level
    (16, (12.0, 3.99, 13.0), False)])  # 20 % of 20 ms
def test_when_the_slope_of_the_excess_can_be_told(top, rest, is_seen):
    table = {1: SLOW[1], top: {"weights": 8.0, "unexplained": rest}}
    assert bool(seen(table).named("excess_slope_frac")) is is_seen
    assert not seen({4: SLOW[16]}).named("excess_slope_frac")


@pytest.mark.parametrize(("at_low", "share"), [(12.0, 0.0), (15.0, 0.0), (-1.0, 1.0), (6.75, 7 / 15)])
def test_the_share_of_the_slope_stays_a_share(at_low, share):
    """(12 - 6.75) / 15 x 16 / 12 = 0.467; fixed excess has none; a negative one at N=1 is all slope."""
    table = {1: {"weights": 8.0, "unexplained": (at_low, at_low, at_low)}, 16: SLOW[16]}
    assert seen(table).value("excess_slope_frac") == pytest.approx(share)


# Collectives: Llama 3.1 8B on two ranks runs 2 x 32 all-reduces and gathers the logits once: 65.


def fixed(rest_ms, **parts):
    """10 ms at both levels, so that nothing comes with the requests."""
    level = {"weights": 10.0 - rest_ms - sum(parts.values()), **parts, "unexplained": (rest_ms, rest_ms, rest_ms)}
    return {1: level, 16: level}


def test_what_collectives_can_take_at_most():
    table = {1: {"weights": 8.0, "all_reduce": (1.0, 0.5, 1.5), "unexplained": (1.0, 0.5, 2.0)},
             4: {"weights": 8.0, "all_reduce": (1.0, 0.5, 1.2), "unexplained": (1.0, -2.0, -1.0)}}
    assert one(seen(table, TP2), "collectives_most_frac") == (pytest.approx(0.35), (
        "collectives can take at most 35% of the step, with all that is unexplained counted as theirs (N=1)"))
    assert not seen(table, DecodeModel(LLAMA)).named("collectives_most_frac")  # one rank
    assert seen(table, DecodeModel(LLAMA, Parallel(pp=2))).named("collectives_most_frac")


@pytest.mark.parametrize(("rest", "nvlink", "value", "each"), [
    (6.5, False, 1.0, 100), (9.7, False, 1.0, 149), (9.8, False, 0.5, 151),  # 150 us: the usual most over PCIe
    (6.5, True, 0.0, 100), (2.0, True, 0.0, 31)])
def test_the_unexplained_time_per_collective(rest, nvlink, value, each):
    found, says = one(seen(fixed(rest), TP2, has_nvlink=nvlink), "excess_fits_collectives")
    assert found == value
    where = "beyond what was seen over NVLink (up to 30 us)" if nvlink else (
        "within what was seen over PCIe (up to 500 us)")
    assert says == f"the unexplained time at N=1, spread over 65 collectives of a step, is {each} us each: {where}"


def test_far_beyond_what_any_link_took():
    table = {level: {"weights": 2.0, "unexplained": 33.0} for level in (1, 16)}  # 33 ms / 65 = 508 us
    value, says = one(seen(table, TP2, has_nvlink=False), "excess_fits_collectives")
    assert value == 0.0 and "508 us each: beyond what was seen over PCIe" in says
    table = {level: {"weights": 2.0, "unexplained": 32.0} for level in (1, 16)}  # 492 us
    assert seen(table, TP2, has_nvlink=False).value("excess_fits_collectives") == 0.5


def test_collectives_that_are_counted_already_count_with_the_rest():
    """3.25 ms unexplained and 3.25 ms of collectives are 100 us each."""
    says = one(seen(fixed(3.25, all_reduce=3.25), TP2, has_nvlink=False), "excess_fits_collectives")[1]
    assert "is 100 us each" in says


@pytest.mark.parametrize("known", [
    {"has_nvlink": None}, {"has_nvlink": True, "levels": fixed(2.0 - 0.1)},  # 29 us over NVLink are no sign of it
    {"has_nvlink": False, "levels": fixed(1.9)},  # less than 20 % of the step
    {"has_nvlink": False, "levels": SLOW}, {"has_nvlink": False, "model": HAND},
    {"has_nvlink": False, "model": DecodeModel(LLAMA)}])
def test_no_word_about_collectives(known):
    """Link not known; within NVLink's; too little; it comes with the requests; a model by hand; one rank."""
    known = dict(known)
    table, model = known.pop("levels", fixed(6.5)), known.pop("model", TP2)
    assert not seen(table, model, **known).named("excess_fits_collectives")


def test_half_of_the_excess_must_be_fixed():
    """From u1 to 12 ms at N=16: (12 - u1) / 15 x 16 / 12 = 0.5 at u1 = 6.375."""
    for u1, is_seen in ((6.4, True), (6.3, False)):
        table = {1: {"weights": 2.0, "unexplained": u1}, 16: {"weights": 2.0, "unexplained": 12.0}}
        assert bool(seen(table, TP2, has_nvlink=False).named("excess_fits_collectives")) is is_seen


@pytest.mark.parametrize(("per_req_ms", "is_absurd"), [(1.0, False), (1.1, True)])
def test_a_link_that_would_crawl(per_req_ms, is_absurd):
    """64 x 8 KiB + 128,256 bytes = 652.5 kB per request, out and back: 1.31 GB/s in 1 ms; 2 % of 64 GB/s are 1.28."""
    table = {1: {"weights": 2.0, "unexplained": per_req_ms}, 16: {"weights": 2.0, "unexplained": 16 * per_req_ms}}
    found = seen(table, TP2, link_bytes_per_s=64e9)
    assert bool(found.named("collective_slope_is_absurd")) is is_absurd
    if is_absurd:
        assert one(found, "collective_slope_is_absurd")[1] == (
            "if collectives took the 1.10 ms that each request adds, the link would run at 1.2 of 64 GB/s")
    assert not seen(table, TP2).named("collective_slope_is_absurd")
    assert not seen(fixed(6.5), TP2, link_bytes_per_s=64e12).named("collective_slope_is_absurd")
    one_rank = seen(table, DecodeModel(LLAMA), link_bytes_per_s=64e9)
    assert not one_rank.named("collective_slope_is_absurd")


def test_the_lowest_level_need_not_be_one():
    """At N=4 the messages are four times as long: per request they are the same."""
    table = {4: {"weights": 2.0, "unexplained": 4.4}, 16: {"weights": 2.0, "unexplained": 17.6}}
    says = one(seen(table, TP2, link_bytes_per_s=64e9), "collective_slope_is_absurd")[1]
    assert "run at 1.2 of 64 GB/s" in says


# The longest context allowed.


def slope(per_req_ms, top=16):
    return {1: {"weights": 2.0, "unexplained": per_req_ms}, top: {"weights": 2.0, "unexplained": top * per_req_ms}}


def test_the_limit_over_the_actual_context():
    found = seen(GOOD, facts={"context_length_max": 8000}, context=(500.0, 1000.0))
    assert one(found, "context_limit_over_context") == (8.0, (
        "the longest context allowed (8000 tok) is 8.00 times the actual one"))
    for facts, context in (({}, 1000.0), ({"context_length_max": 8000}, nan), ({"context_length_max": 8000}, 0.0)):
        assert not seen(GOOD, facts=facts, context=context).named("context_limit_over_context")


@pytest.mark.parametrize(("per_req_ms", "limit", "is_beyond"), [
    (0.20, 1000, True), (0.12, 1000, False), (0.20, 799, False), (0.20, 800, True), (0.13, 1000, True)])
def test_more_than_a_requests_own_cache(per_req_ms, limit, is_beyond):
    """100 tok x 0.1 MB are 10 MB; 0.2 ms at 0.8 TB/s are 160 MB (16 times), 0.12 ms 96 MB; 8 times the context."""
    found = seen(slope(per_req_ms), facts={"context_length_max": limit}, context=100.0)
    assert bool(found.named("excess_beyond_own_context")) is is_beyond
    if is_beyond and per_req_ms == 0.20:
        assert one(found, "excess_beyond_own_context")[1] == (
            "each request pays 0.200 ms that nothing it reads explains: as bytes 0.16 GB, 16.0 times its own cache")


@pytest.mark.parametrize(("per_req_ms", "is_beyond"), [(0.30, True), (0.35, False)])
def test_more_bytes_than_the_whole_context_holds_are_no_work_on_it(per_req_ms, is_beyond):
    """Llama 3.1 8B caches 128 KiB per token; twice that over 1000 tok are 262 MB; 0.3 ms are 240, 0.35 are 280."""
    facts = {"context_length_max": 1000}
    assert bool(seen(slope(per_req_ms), DecodeModel(LLAMA), facts, context=(50.0, 100.0)).named(
        "excess_beyond_own_context")) is is_beyond


def test_a_small_cache_leaves_four_kib_per_layer_and_position():
    """One of eight ranks caches 16 KiB per token; 4 KiB x 32 layers x 1000 tok are 131 MB: 0.164 ms at 0.8 TB/s."""
    small = replace(TP2, parallel=Parallel(tp=8))
    facts = {"context_length_max": 1000}
    for per_req_ms, is_beyond in ((0.160, True), (0.168, False)):
        found = seen(slope(per_req_ms), small, facts, context=100.0)
        assert bool(found.named("excess_beyond_own_context")) is is_beyond


def test_an_excess_that_does_not_come_with_requests_is_no_context():
    """(12 - u1) / 15 x 16 / 12 = 0.6 at u1 = 5.25 ms."""
    for u1, is_seen in ((5.2, True), (5.3, False)):
        table = {1: {"weights": 2.0, "unexplained": u1}, 16: {"weights": 2.0, "unexplained": 12.0}}
        found = seen(table, facts={"context_length_max": 10_000}, context=100.0)
        assert bool(found.named("excess_beyond_own_context")) is is_seen


# Against lines and peaks.


def test_the_step_over_what_good_kernels_take():
    found = seen(GOOD, measured=(0.010, 0.016), target=(0.008, 0.010))
    assert one(found, "step_over_target") == (pytest.approx(1.6), (
        "the step takes up to 1.60 times what good kernels take"))
    assert seen(GOOD, measured=(0.010, nan), target=(0.008, 0.010)).value("step_over_target") == pytest.approx(1.25)
    assert not seen(GOOD, measured=(0.010, 0.016)).named("step_over_target")


def test_the_rate_of_the_products():
    achieved = pd.DataFrame({"mfu_frac": [0.01, 0.02], "mfu_frac_hi": [0.015, 0.031]})
    assert one(seen(GOOD, achieved=achieved), "mfu_most_frac") == (0.031, (
        "products run at most at 3.1% of the hardware's rate"))
    unknown = pd.DataFrame({"mfu_frac_hi": [nan]})
    assert not seen(GOOD, achieved=unknown).named("mfu_most_frac") and not seen(GOOD).named("mfu_most_frac")


def test_the_step_over_the_prediction():
    """Half of it at N=1 is further away than 1.8 times at N=16."""
    model = DecodeModel(LLAMA)
    h100 = replace(SLAB, mem_bw_bytes_per_s=3.35e12)
    predicted = predicted_step_s(model, h100, np.array([1.0, 16.0]), np.array([1000.0, 1000.0]), shares=Shares(0.8))
    measured = tuple(predicted * np.array([0.5, 1.8]))
    value, says = one(seen(GOOD, model, measured=measured, hardware=h100), "step_over_prediction")
    assert value == pytest.approx(0.5)
    assert says.startswith("at N=1 the step is 0.500 times what is predicted for a good engine")
    one_known = seen(GOOD, model, measured=(nan, measured[1]), hardware=h100)
    assert one(one_known, "step_over_prediction")[0] == pytest.approx(1.8)
    for known in ({"measured": (nan, nan)}, {"measured": measured, "context": nan}):
        assert not seen(GOOD, model, hardware=h100, **known).named("step_over_prediction")
    assert not seen(GOOD, measured=measured).named("step_over_prediction")
    assert not seen(GOOD, replace(model, n_draft_tok=3), measured=measured).named("step_over_prediction")


def test_a_jump_beyond_the_captured_sizes():
    """1.1 times the prediction at N=8; 1.65, 2.2 and 4.4 at 16 to 64: their median is twice as far away."""
    model, n = DecodeModel(LLAMA), np.array([1.0, 8.0, 16.0, 32.0, 64.0])
    h100 = replace(SLAB, mem_bw_bytes_per_s=3.35e12)
    predicted = predicted_step_s(model, h100, n, np.full(5, 1000.0), shares=Shares(0.8))
    table = {level: GOOD[1] for level in (1, 8, 16, 32, 64)}
    known = {"measured": tuple(predicted * np.array([1.5, 1.1, 1.65, 2.2, 4.4])), "hardware": h100}

    def at(sizes):
        return seen(table, model, {"captured_batch_sizes": sizes}, **known).named("jump_beyond_captured")

    (item,) = at([1, 8])
    assert item.value == pytest.approx(2.0)
    assert item.says == ("beyond the largest captured size (8) the step is 2.00 times as far from its prediction as "
                         "within")
    assert at([1, 4, 12, None])[0].value == pytest.approx(2.0)
    assert not at([]) and not at([128]) and not at(None)  # none known; none beyond


# Server lives with other limits.


def lives(steps, limits, n=(1, 16), **columns):
    """Levels of each life, its steps at N=1 and N=16 [s]."""
    levels = pd.concat([levels_table(n, step, server_life=life, **columns) for life, step in enumerate(steps)],
                       ignore_index=True)
    return Observations(of_physics.limits_apart(levels, [{"context_length_max": limit} for limit in limits]))


@pytest.mark.parametrize(("ratio", "value"), [(1.10, 1.0), (1.09, None), (1.06, None), (1.04, 0.0), (1.0, 0.0),
                                              (0.96, 0.0), (0.94, None), (4.0, 1.0)])
def test_whether_the_step_follows_the_limit(ratio, value):
    """10 % longer follows, within 5 % does not; in between, or shorter, nothing is said."""
    found = lives([(0.01, 0.02), (0.01, 0.02 * ratio * 1.0001)], [8192, 32768])
    if value is None:
        assert not len(found)
        return
    (item,) = found
    assert (item.name, item.value, item.channel) == ("step_follows_context_limit", value, "baseline")
    assert item.says.startswith(f"at N=16 the step is {ratio:.2f}") or ratio == 0.96
    assert item.says.endswith("times as long with a context limit of 32768 as with 8192 tok")


def test_the_order_of_lives_does_not_matter_and_limits_must_be_far_apart():
    assert lives([(0.02, 0.08), (0.01, 0.02)], [32768, 8192]).value("step_follows_context_limit") == 1.0
    assert not len(lives([(0.02, 0.08), (0.01, 0.02)], [32767, 8192]))
    assert not len(lives([(0.02, 0.08), (0.01, 0.02)], [None, 8192]))
    assert not len(lives([(0.01, 0.02)], [8192]))


def test_levels_that_both_lives_have_are_compared():
    levels = pd.concat([levels_table([1, 8], [0.01, 0.012]), levels_table([8, 16], [0.03, 0.05], server_life=1)])
    facts = [{"context_length_max": 8192}, {"context_length_max": 65536}]
    found = Observations(of_physics.limits_apart(levels, facts))
    assert next(iter(found)).says.startswith("at N=8 the step is 2.50 times")
    assert not list(of_physics.limits_apart(levels.iloc[[0, 3]], facts))
    assert not len(lives([(0.01, 0.02), (0.02, 0.08)], [8192, 65536], population=1))


def test_a_single_request_decides_only_where_there_is_nothing_else():
    one_level = lives([(0.01,), (0.02,)], [8192, 65536], n=(1,))
    assert one_level.value("step_follows_context_limit") == 1.0
    two = lives([(0.01, 0.02), (0.02, 0.02)], [8192, 65536])
    assert two.value("step_follows_context_limit") == 0.0
