"""Observations from intervals and levels, each from a small table by hand: made, not made, and at its threshold."""

from __future__ import annotations

from math import nan

import numpy as np
import pandas as pd
import pytest

from build import decode, prefill, samples
from helpers import schema
from helpers.diagnose import of_steps
from helpers.diagnose.observations import Observations
from law_tables import levels_table

NO_LEVELS = schema.LEVELS.empty()
NO_SAMPLES = schema.SAMPLES.empty()


def intervals(**columns):
    """INTERVALS rows from columns of one length; the rest as for a clean steady SGLang interval of a second."""
    n = max(len(value) for value in columns.values() if isinstance(value, list | np.ndarray))
    table = {
        "file": "hand.log", "line_no": np.arange(n) + 1, "t_s": np.arange(n, dtype=float), "engine": "sglang",
        "server_life": 0, "kind": "decode", "rank_group": "all", "running_req": 8.0, "interval_s": 1.0, "idle_s": 0.0,
        "prefill_tok": 0.0, "episode": 0, "label": "steady", "clean": True, "why": "hand", **columns,
    }
    table = pd.DataFrame(table)
    if "step_s" not in table and "decode_tok_per_s" in table:
        table["step_s"] = table["running_req"] / table["decode_tok_per_s"]
    table["running_req_total"] = table["running_req"]
    table["running_req_printed"] = table["running_req"].round()
    return schema.conform(table, schema.INTERVALS)


def seen(table, levels=NO_LEVELS, records=NO_SAMPLES, growth=None, lives=(0,), s_per_tok=nan, **facts):
    return Observations(of_steps.observe(table, levels, records, facts, list(lives), growth, s_per_tok))


def one(found, name, channel="step"):
    (item,) = found.named(name)
    assert item.channel == channel and item.source
    return item.value, item.says


# Context.


def growing(context, per_tok_s, *, base_s=0.010, wobble_s=0.0, **columns):
    """Steps that grow with the context, with a small wobble that no line explains."""
    context = np.asarray(context, float)
    wobble = wobble_s * np.array([1, -1])[np.arange(len(context)) % 2]
    return intervals(context_tok=context, step_s=base_s + per_tok_s * context + wobble, **columns)


UP = np.linspace(1000, 2000, 21)  # 5 % and 95 % quantiles: 1050 and 1950, median 1500


def test_how_much_the_step_grows_with_the_context():
    """10 ms + 4 us x tokens: 3.6 ms over 900 tok, on 16 ms at the median: 22.5 %."""
    found = seen(growing(UP, 4e-6))
    value, says = one(found, "context_growth_frac")
    assert value == pytest.approx(0.225)
    assert says == "at N=8 the step grows by 22% from 1050 to 1950 tok of context"
    assert not found.named("context_growth_with_resets") and not found.named("context_cost_over_kv")


def test_growth_that_falls_back_with_each_request():
    twice = np.concatenate([UP, UP])
    value, says = one(seen(growing(twice, 4e-6)), "context_growth_with_resets")
    assert value == pytest.approx(0.225)
    assert says.endswith("and falls back with each new request (1 times)")
    # a fall of 20 % of the context before is none (2000 -> 1600), 21 % is one
    for after, is_seen in ((1601, False), (1579, True)):
        table = growing(np.append(UP, after), 4e-6)
        assert bool(seen(table).named("context_growth_with_resets")) is is_seen


def test_a_step_that_does_not_grow_is_a_statement_too():
    """Flat within 0.1 %: growth is below the end of its interval, and that below 2 %."""
    found = seen(growing(UP, 0.0, wobble_s=1e-5))
    value, says = one(found, "context_growth_frac")
    assert 0 < value < 0.002 and says.startswith("at N=8 the step grows by less than 0.")
    assert says.endswith("% from 1050 to 1950 tok of context")


def test_scatter_that_hides_any_growth_says_nothing():
    assert not seen(growing(UP, 0.0, wobble_s=1e-3)).named("context_growth_frac")


@pytest.mark.parametrize("table", [
    growing(UP[:5], 40e-6),  # five intervals
    growing(np.linspace(1300, 1700, 21), 4e-6),  # 360 of 1500 tok: 24 %, below 30 %
    growing(UP, 4e-6, clean=False), growing(UP, 4e-6, server_life=1),
    growing(UP, 4e-6, running_req=np.arange(21) % 5 + 1.0),  # four or five of each level
    growing(np.where(np.arange(21) % 5 == 0, UP, np.nan), 4e-6),
    intervals(context_tok=[np.nan] * 18, step_s=[0.01] * 18),
])
def test_too_little_context_says_nothing(table):
    assert not seen(table).named("context_growth_frac")


def test_six_intervals_of_a_level_are_enough():
    assert seen(growing(UP[::4], 4e-6)).named("context_growth_frac")
    assert not seen(growing(UP[::5], 4e-6)).named("context_growth_frac")


def test_the_spread_of_the_context_at_its_edge():
    """The quantiles leave 90 % of the range: 500 of 1500 tok are exactly 30 %."""
    assert seen(growing(np.linspace(1249, 1751, 21), 4e-6)).named("context_growth_frac")
    assert not seen(growing(np.linspace(1251, 1749, 21), 4e-6)).named("context_growth_frac")


def test_the_level_that_grows_most_speaks():
    both = pd.concat([growing(UP, 1e-6), growing(UP, 4e-6, running_req=16.0)], ignore_index=True)
    assert one(seen(both), "context_growth_frac")[1].startswith("at N=16 the step grows by 22%")


def test_growth_against_the_bytes_of_the_context():
    """The step grows by 4 us / 16 ms = 2.5e-4 per token; bytes by 1e-4: 2.5 times, and no noise: at least 2.5."""
    found = seen(growing(UP, 4e-6), growth=lambda n, context: 1e-4)
    value, says = one(found, "context_cost_over_kv")
    assert value == pytest.approx(2.5)
    assert says.endswith("of context: 2.50 times as fast as the bytes it reads (at least 2.50 times)")
    assert one(found, "context_cost_beyond_kv") == (1.0, says)
    # 6 of 16 ms grow with the context
    assert one(found, "context_cost_share_frac") == (
        pytest.approx(0.375), "38% of the step at N=8 grows with the actual context")


@pytest.mark.parametrize(("own", "is_beyond"), [(1.24e-4, True), (1.26e-4, False), (2.5e-4, False)])
def test_more_than_twice_the_bytes_is_beyond_reading(own, is_beyond):
    found = seen(growing(UP, 4e-6), growth=lambda n, context: own)
    assert found.value("context_cost_over_kv") == pytest.approx(2.5e-4 / own)
    assert bool(found.named("context_cost_beyond_kv")) is is_beyond


@pytest.mark.parametrize(("per_tok_s", "is_beyond"), [(1.0e-6, False), (1.1e-6, True)])
def test_a_growth_that_does_not_matter_is_beyond_nothing(per_tok_s, is_beyond):
    """0.9 ms of 11.5 ms are 7.8 %; 0.99 of 11.65 are 8.5 %: 8 % matters."""
    found = seen(growing(UP, per_tok_s), growth=lambda n, context: 1e-6)
    assert found.named("context_cost_over_kv") and bool(found.named("context_cost_beyond_kv")) is is_beyond


def test_growth_of_the_bytes_is_asked_at_the_level_and_its_context():
    asked = []

    def growth(running_req, context_tok):
        asked.append((running_req, context_tok))
        return 0.0  # nothing of the step grows: no ratio

    found = seen(growing(UP, 4e-6), growth=growth)
    assert asked == [(8.0, 1500.0)] and not found.named("context_cost_over_kv")
    flat = seen(growing(UP, 0.0, wobble_s=1e-5), growth=growth)
    assert len(asked) == 1 and not flat.named("context_cost_share_frac")  # uncertain growth is not compared


# Drift.


def test_a_drift_in_time_at_the_same_context():
    """10 ms + 0.05 ms per second over 20 s: 1 ms on 10.5 ms."""
    found = seen(intervals(step_s=0.010 + 5e-5 * np.arange(21), context_tok=[1500.0] * 21))
    value, says = one(found, "step_drift_frac")
    assert value == pytest.approx(1 / 10.5)
    assert says == "at N=8 the step grows by 10% within 20.0 s at the same context"
    assert seen(intervals(step_s=0.010 + 5e-5 * np.arange(21))).named("step_drift_frac")  # context not known
    half = np.where(np.arange(21) < 11, 1500.0, np.nan)  # known of some: it cannot be ruled out either
    assert seen(intervals(step_s=0.010 + 5e-5 * np.arange(21), context_tok=half)).named("step_drift_frac")


@pytest.mark.parametrize("columns", [
    {"context_tok": np.linspace(1400, 1600, 21)},  # 180 of 1500 tok: 12 %, above 10 %
    {"t_s": np.full(21, np.nan)}, {"t_s": np.zeros(21)}, {"clean": False}, {"server_life": 1},
    {"step_s": 0.010 - 5e-5 * np.arange(21)}, {"step_s": np.full(21, 0.01)},
    {"step_s": 0.010 + 1e-3 * (np.arange(21) % 2)},
])
def test_no_drift(columns):
    assert not seen(intervals(**{"step_s": 0.010 + 5e-5 * np.arange(21), **columns})).named("step_drift_frac")


def test_the_context_of_a_drift_at_its_edge():
    """90 % of the range over the median: 165 of 1500 tok are 9.9 %."""
    steps = 0.010 + 5e-5 * np.arange(21)
    assert seen(intervals(step_s=steps, context_tok=np.linspace(1417.5, 1582.5, 21))).named("step_drift_frac")
    assert not seen(intervals(step_s=steps, context_tok=np.linspace(1415, 1585, 21))).named("step_drift_frac")


def test_residuals_that_follow_one_another_widen_the_interval():
    """A slow wave of the same height as an alternating wobble hides a drift that the wobble does not."""
    time = np.arange(40)
    drift = 0.010 + 4e-6 * time
    wobble = seen(intervals(step_s=drift + 1e-4 * np.where(time % 2, 1, -1)))
    wave = seen(intervals(step_s=drift + 1e-4 * np.where(time // 8 % 2, 1, -1)))
    assert wobble.named("step_drift_frac") and not wave.named("step_drift_frac")


# Prompts.


LEVEL = levels_table([8], [0.010])


def test_the_share_of_prompts_by_the_clean_steps():
    """Two intervals of 2 s hold 100 steps of 10 ms each: 1 s of prompts each; 6 s are clean: 2 of 10 s."""
    table = intervals(interval_s=[2.0, 2.0, 3.0, 3.0], n_steps=[100.0, 100.0, 200.0, 200.0],
                      clean=[False, False, True, True], label=["mixed", "ramp", "steady", "drain"])
    value, says = one(seen(table, LEVEL), "prefill_time_frac")
    assert value == pytest.approx(0.2)
    assert says == "prompts take 20% of the time in which requests decode (by the clean steps at the same counts)"


def test_what_the_share_of_prompts_leaves_out():
    """Warm-up and idle time, a first line, empty intervals, another life; time without a count of steps is decode."""
    table = intervals(
        interval_s=[3.0, 2.0, 9.0, 9.0, 9.0, 9.0, 9.0, 5.0, 1.0], n_steps=[100.0, 100.0, 1, 1, 1, 1, 1, nan, 0],
        clean=[False, True, False, False, False, False, False, False, False], idle_s=[1.0, 0, 0, 0, 0, 0, 0, 0, 0],
        label=["mixed", "steady", "warmup", "idle", "steady", "steady", "steady", "mixed", "mixed"],
        why=["hand", "hand", "hand", "hand", "first line of a load", "hand", "hand", "hand", "hand"],
        running_req=[8.0, 8, 8, 8, 8, 0, 8, 8, 8], server_life=[0, 0, 0, 0, 0, 0, 1, 0, 0])
    # 3 s - 1 s idle - 1 s of steps = 1 s of 2 + 2 + 5 + 1 s
    assert seen(table, LEVEL).value("prefill_time_frac") == pytest.approx(1 / 10)


def test_between_two_levels_the_step_is_interpolated():
    """At 12 requests between 10 ms (8) and 30 ms (16): 20 ms; 100 steps are 2 of 4 s."""
    table = intervals(interval_s=[4.0], n_steps=[100.0], clean=False, running_req=[12.0])
    assert seen(table, levels_table([16, 8], [0.030, 0.010])).value("prefill_time_frac") == pytest.approx(0.5)


def test_steps_longer_than_the_time_are_no_prompts_given_back():
    """150 steps of 10 ms in 1 s count as none, not as -0.5 s beside the 1 s of the other interval."""
    table = intervals(interval_s=[1.0, 2.0], n_steps=[150.0, 100.0], clean=False)
    assert seen(table, LEVEL).value("prefill_time_frac") == pytest.approx(1 / 3)


def test_without_clean_steps_the_fastest_prefills_set_the_least_share():
    """10 prefills right behind one another at 1000 tok/s; 2000 prompt tokens are 2 of 10 s."""
    table = intervals(interval_s=[5.0, 5.0], prefill_tok=[2000.0, 0.0], label=["mixed", "mixed"])
    chain = [prefill(100) | {"prefill_tok_per_s": 1000.0} for _ in range(11)]
    value, says = one(seen(table, records=samples(*chain)), "prefill_time_frac")
    assert value == pytest.approx(0.2)
    assert says.endswith("(at 1000 tok/s, the fastest prefills of the log)")
    assert not seen(table, records=samples(*chain[1:])).named("prefill_time_frac")  # nine follow another
    # alternating with decode lines, none of the rates is one of prompts alone
    mixed = [item for _ in range(20) for item in (prefill(100) | {"prefill_tok_per_s": 1000.0}, decode(8, 100))]
    assert not seen(table, records=samples(*mixed)).named("prefill_time_frac")
    # ten of 80 prefills follow another (12.5 %): too few of them to stand for all
    assert not seen(table, records=samples(*chain, *mixed, *mixed, *mixed, *mixed[:18])).named("prefill_time_frac")
    assert not seen(table).named("prefill_time_frac")
    slow = [prefill(100) | {"prefill_tok_per_s": 100.0} for _ in range(11)]
    assert seen(table, records=samples(*slow)).value("prefill_time_frac") == 1.0  # 20 s of 10: all of it
    # nine in ten are slower: the fastest ones hold least decode time
    spread = [prefill(100) | {"prefill_tok_per_s": rate} for rate in (9.0, *np.linspace(1000, 2000, 11))]
    assert seen(table, records=samples(*spread)).value("prefill_time_frac") == pytest.approx(2000 / 1900 / 10)


@pytest.mark.parametrize(("s_per_tok", "value"), [(1.0e-3, 0.2), (0.51e-3, 0.102), (0.49e-3, None), (nan, None)])
def test_what_good_kernels_take_for_the_prompts_is_a_lower_bound(s_per_tok, value):
    """2000 tokens at 1 ms are 2 of 10 s; below 10 % a lower bound says nothing. Printed rates go before it."""
    table = intervals(interval_s=[5.0, 5.0], prefill_tok=[2000.0, 0.0], label=["mixed", "mixed"])
    found = seen(table, s_per_tok=s_per_tok)
    assert bool(found.named("prefill_time_frac")) is (value is not None)
    if value == 0.2:
        assert one(found, "prefill_time_frac") == (pytest.approx(0.2), (
            "prompts take 20% of the time in which requests decode (at 1000 tok/s, what good kernels reach: at least "
            "so much)"))
    chain = samples(*[prefill(100) | {"prefill_tok_per_s": 4000.0} for _ in range(11)])
    assert seen(table, records=chain, s_per_tok=s_per_tok).value("prefill_time_frac") == pytest.approx(0.05)


def test_no_loaded_time_no_share():
    assert not seen(intervals(interval_s=[1.0], label=["warmup"]), LEVEL).named("prefill_time_frac")
    assert not seen(intervals(interval_s=[1.0], idle_s=[1.0], n_steps=[9.0]), LEVEL).named("prefill_time_frac")


# First lines.


def with_odd_lines(n_clean, odd_rates, **columns):
    rates = [100.0] * n_clean + list(odd_rates)
    return intervals(decode_tok_per_s=rates, clean=[True] * n_clean + [False] * len(odd_rates), **columns)


def test_lines_whose_rate_holds_idle_time():
    """8 lines of 100 tok/s and 2 of 5: the mean of all is 81, 19 % too low."""
    found = seen(with_odd_lines(8, [6.0, 4.0]), levels_table([8], [0.08]))
    value, says = one(found, "first_line_error_frac")
    assert value == pytest.approx(0.19)
    assert says == ("line 10 prints 4.00 tok/s over a span that holds idle time; the steady lines at the same count "
                    "print 100 tok/s, and the mean of all is 19% too low")


@pytest.mark.parametrize(("n_clean", "odd", "is_seen"), [
    (17, [5.0] * 3, True), (18, [5.0] * 3, False),  # 3 of 20 lines are 15 %
    (8, [19.0, 19.0], True), (8, [20.0, 20.0], False)])  # a fifth of the clean rate
def test_odd_lines_at_the_edges(n_clean, odd, is_seen):
    found = seen(with_odd_lines(n_clean, odd), levels_table([8], [0.08]))
    assert bool(found.named("first_line_error_frac")) is is_seen


@pytest.mark.parametrize("levels", [
    levels_table([8], [0.08], n_clean=2), levels_table([8], [0.08], cv_frac=0.06), levels_table([16], [0.08]),
    levels_table([8], [0.08], rank_group="DP0+DP1"), levels_table([8], [0.08], population=1), NO_LEVELS])
def test_without_a_steady_level_nothing_is_odd(levels):
    assert not seen(with_odd_lines(8, [5.0, 5.0]), levels).named("first_line_error_frac")


@pytest.mark.parametrize(("columns", "is_seen"), [
    ({"prefill_tok": 256.0}, True), ({"prefill_tok": 257.0}, False), ({"why": "prefill is next"}, False),
    ({"why": "prompt pending"}, False), ({"why": "after idle"}, True)])
def test_a_line_with_a_prompt_in_it_is_slow_for_that_reason(columns, is_seen):
    found = seen(with_odd_lines(8, [5.0, 5.0], **columns), levels_table([8], [0.08]))
    assert bool(found.named("first_line_error_frac")) is is_seen


def test_only_printed_rates_can_mislead():
    steady = levels_table([8], [0.08], n_clean=3, cv_frac=0.05)
    assert seen(with_odd_lines(8, [5.0, 5.0], kind="stats"), steady).named("first_line_error_frac")
    assert not seen(with_odd_lines(8, [5.0, 5.0], kind="counters"), steady).named("first_line_error_frac")


# Staircase.


SIZES = [8, 16, 32]


def stairs(step_16=0.020, **columns):
    """N = 4, 8 run at 8; 12, 16 at 16; 24, 32 at 32: 10, 20 and 40 ms."""
    return levels_table([4, 8, 12, 16, 24, 32], [0.010, 0.010, 0.020, step_16, 0.040, 0.040], **columns)


def test_levels_that_share_the_step_of_a_captured_size():
    value, says = one(seen(intervals(step_s=[0.01]), stairs(), captured_batch_sizes=SIZES), "staircase_levels")
    assert value == 6
    assert says == "levels 4 to 8 take the step of 8, 12 to 16 take the step of 16, 24 to 32 take the step of 32"


@pytest.mark.parametrize(("step_16", "value"), [(0.0204, 6), (0.0205, 4)])
def test_two_percent_are_one_step(step_16, value):
    """0.4 ms on a mean of 20.2 ms are 1.98 %; 0.5 on 20.25 are 2.5 %."""
    found = seen(intervals(step_s=[0.01]), stairs(step_16), captured_batch_sizes=SIZES)
    assert found.value("staircase_levels") == value


@pytest.mark.parametrize(("top_s", "is_seen"), [(0.02115, False), (0.0215, True)])
def test_levels_that_a_line_would_not_tell_apart_are_no_staircase(top_s, is_seen):
    """N = 8 runs at 8 in 20 ms; 9, 12, 13 and 16 run at 16. A line by relative errors through both steps rises by

    0.75 ms (3.5 %) from 9 to 16 where the second step is 21.15 ms, by 1.0 ms (4.6 %) where it is 21.5 ms.
    """
    n, step = np.array([8, 9, 12, 13, 16]), np.array([0.020, *[top_s] * 4])
    x, w = n - np.average(n, weights=1 / step**2), 1 / step**2
    slope = (w * x * step).sum() / (w * x * x).sum()
    assert bool(7 * slope / top_s > 0.04) is is_seen and 7 * slope / top_s == pytest.approx(0.04, abs=0.012)
    found = seen(intervals(step_s=[0.01]), levels_table(n, step), captured_batch_sizes=[8, 16])
    assert bool(found.named("staircase_levels")) is is_seen


def test_a_straight_line_is_no_staircase():
    n = np.array([4, 8, 12, 16, 24, 32])
    for step in (0.005 + 0.001 * n, 0.020 + 1e-5 * n):  # a slope; so flat that a line would not tell them apart
        assert not seen(intervals(step_s=[0.01]), levels_table(n, step),
                        captured_batch_sizes=SIZES).named("staircase_levels")


@pytest.mark.parametrize(("levels", "sizes"), [
    (stairs(), []), (stairs(is_fitted=False), SIZES), (levels_table([4, 8, 12], [0.01, 0.01, 0.02]), SIZES),
    (levels_table([4, 8, 12, 64], [0.01, 0.01, 0.02, 0.08]), SIZES), (stairs(server_life=1), SIZES),
    (levels_table([4, 16, 17, 33], [0.01, 0.02, 0.04, 0.08]), [8, 16, 32, 64])])
def test_no_staircase(levels, sizes):
    """No sizes, not fitted, three levels inside, another life, no two levels of one size."""
    assert not seen(intervals(step_s=[0.01]), levels, captured_batch_sizes=sizes).named("staircase_levels")


# Rates that the user tells.


def loads():
    """Levels 4 (another load), 12 and 16 (within a quarter of the top): 300 tok/s for 1 s and 400 for 3 s -> 375."""
    return intervals(running_req=[4.0, 12.0, 16.0], decode_tok_per_s=[100.0, 300.0, 400.0], interval_s=[9.0, 1.0, 3.0])


@pytest.mark.parametrize(("told", "value"), [(376, 1.0), (374, 0.0)])
def test_the_rate_without_drafts_by_what_the_user_says(told, value):
    found = seen(loads(), no_speculation_total_tok_per_s=told)
    assert one(found, "slower_than_without_drafts", "baseline") == (value, (
        f"the server gives 375 tok/s at its highest load, {told} tok/s without drafts by what the user says"))


def test_the_rate_of_the_same_build_elsewhere():
    value, says = one(seen(loads(), same_build_elsewhere_tok_per_s=750), "same_build_elsewhere_over_here", "told")
    assert value == pytest.approx(2.0)
    assert says == ("the same build gives 750 tok/s on another machine, 375 tok/s here: the platform differs, not the "
                    "kernels")
    idle = intervals(running_req=[4.0], decode_tok_per_s=[100.0], label=["ramp"])
    assert not len(seen(idle, same_build_elsewhere_tok_per_s=750, no_speculation_total_tok_per_s=1))
    assert not seen(loads()).named("same_build_elsewhere_over_here")
    nothing = intervals(running_req=[4.0], decode_tok_per_s=[0.0])
    assert not seen(nothing, same_build_elsewhere_tok_per_s=750).named("same_build_elsewhere_over_here")


def test_other_tables_are_refused():
    with pytest.raises(schema.SchemaError):
        seen(loads().drop(columns="step_s"))
    with pytest.raises(schema.SchemaError):
        seen(loads(), LEVEL.drop(columns="step_s"))
