"""Edges of the level estimate that no other test would notice: each was found by breaking the code once."""

import json

import numpy as np
import pandas as pd
import pytest

from build import decode, prefill, window
from helpers import levels
from helpers.levels.correction import correct_prefill, held_intervals, prefill_cost
from helpers.levels.estimate import bootstrap_interval
from test_levels import estimate, steady


def test_the_life_with_most_fitted_levels_decides_which_arguments_count():
    one = [*steady(4, [0.1] * 4), prefill(9, t=17, running=0), *steady(8, [0.2] * 4, t0=20)]
    two = [*steady(16, [0.3] * 3, t0=99), decode(17, 50.0, t=140)]
    table = estimate(*one, *[{**line, "server_life": 1} for line in two])
    kept = levels.keep_one_configuration(table, [{"args": {"tp": 4}}, {"args": {"tp": 8}}])
    assert kept.loc[kept["is_fitted"], "running_req"].tolist() == [4, 8]
    notes = kept.set_index("running_req")["note"]
    assert (notes[16.0], notes[17.0]) == ("another server life with other arguments", "no clean interval")
    for facts in ([{"args": {"tp": 4}}, {}], [{}, {"args": {"tp": 4}}], [{"args": {"tp": 4}}]):  # not known: alike
        assert levels.keep_one_configuration(table, facts)["is_fitted"].sum() == 3
    nothing = table.assign(is_fitted=False)
    assert levels.keep_one_configuration(nothing, [{}, {}]).equals(nothing)


def line(level, wall_s, prompt, **more):
    """Return an interval of 40 steps as the prefill correction sees it."""
    row = dict(engine="sglang", rank="", rank_group="all", level=float(level), running_req_printed=int(level),
               running_req_total=float(level), label="mixed", why="prefill inside", n_steps=40.0, interval_s=wall_s,
               step_s=wall_s / 40, idle_s=0.0, prefill_tok=float(prompt), accept=1.0, accept_len=np.nan,
               context_tok=100.0, graph=True)
    return row | more


def test_only_undisturbed_intervals_of_a_held_count_are_corrected():
    part = pd.DataFrame([
        line(4, 5, 9), line(8, 5, 9), line(8, 5, 9), line(8, 5, 9, label="warmup"), line(8, 5, 9, idle_s=3.0),
        line(8, 5, 9, why="stall or hidden idle"), line(8, 5, 9), line(8, 5, 9, running_req_printed=9), line(8, 5, 9),
        line(8, 5, 9), line(8, 5, 9), line(12, 5, 9), line(12, 5, 9),
    ])
    assert held_intervals(part).index.tolist() == [2, 6, 9, 10]  # not the first line of a count, nor two in passing
    assert held_intervals(part.assign(rank_group="DP0+DP1")).empty


def test_cost_of_a_prompt_token_is_a_regression_of_what_scatters():
    """Known step 0.1 s, 40 steps a line: what is left of the wall time is cost x prompt tokens, and scatter."""
    prompt, rest_s = np.array([1000.0, 2000.0, 1000.0, 8000.0]), np.array([1.5, 1.8, 0.8, 9.0])
    table = pd.DataFrame([line(8, 4 + r, p) for r, p in zip(rest_s, prompt, strict=True)])

    def by_hand(weight):
        cost = (rest_s * prompt * weight).sum() / (prompt**2 * weight).sum()
        error = np.sqrt(((rest_s - cost * prompt) ** 2 * weight).sum() / 3 / (prompt**2 * weight).sum())
        return cost, 3.182 * error  # t of 3 degrees of freedom

    assert prefill_cost(table, {8.0: 0.1}) == pytest.approx(by_hand(1 / (4 + rest_s) ** 2), rel=0.01)
    windows = table.assign(engine="vllm")  # the steps scatter, of which there are 40 in each
    assert prefill_cost(windows, {8.0: 0.1}) == pytest.approx(by_hand(np.ones(4)), rel=0.01)
    assert np.isfinite(prefill_cost(table[:3], {8.0: 0.1})[0])
    assert np.isnan(prefill_cost(table[:2], {8.0: 0.1})[0])  # one degree of freedom
    assert np.isnan(prefill_cost(table[:3], {})[0])


def corrected(steps_s=(0.19, 0.21, 0.19, 0.21), prompt=500, cost=0.001, known_noise_s=0.0, **more):
    """Correct 12 requests beside a known level of 8, whose lines of 40 x 0.1 s carry prompts at 1 ms a token."""
    known = [line(8, 4 + cost * p + known_noise_s * (-1) ** i, p)
             for i, p in enumerate((0, 1000, 2000, 1000, 3000, 1500))]
    tokens = np.broadcast_to(prompt, len(steps_s))
    unknown = [line(12, 40 * s + cost * p, p, **more) for s, p in zip(steps_s, tokens, strict=True)]
    part = pd.DataFrame([known[0], *known, unknown[0], *unknown])
    rows = [{"running_req": 8.0, "population": 0, "is_fitted": True, "step_s": 0.1},
            {"running_req": 8.0, "population": 1, "is_fitted": False, "step_s": 0.5},
            {"running_req": 12.0, "population": 0, "is_fitted": False, "n_rejected": "{}", "n_clean": 0}]
    found = correct_prefill(part, rows, {"server_life": 0, "rank_group": "all"}, levels.LevelRule())
    assert found[:2] == rows[:2]
    return found[2]


def test_a_corrected_level_and_its_doubt():
    row = corrected()
    assert row["step_s"] == pytest.approx(0.2, rel=1e-3)
    # 0.01 s up and down: 0.01155 / 2 x 3.18 (t, 3 degrees); 12.5 tokens a step, a quarter of 1 ms each in doubt
    doubt = 0.018374 + 12.5 * 0.25 * 0.001
    assert (row["step_s_lo"], row["step_s_hi"]) == pytest.approx((0.2 - doubt, 0.2 + doubt), rel=1e-3)
    assert row["cv_frac"] == pytest.approx(0.01155 / 0.2, rel=1e-2)
    assert not row["is_fitted"] and "prompt time (6 % of the total)" in row["note"]
    assert row["note"].endswith("uncertain by 11 %: not fitted")
    even = corrected([0.199, 0.201] * 4)
    assert even["is_fitted"] and even["note"].endswith("by regression")
    assert even["decode_tok_per_s"] == pytest.approx(12 / 0.2, rel=1e-3)
    assert np.isnan(even["accept_len"])
    much = corrected([0.199, 0.201] * 4, prompt=2100)
    assert much["note"].endswith("; uncertain by 7 %: not fitted")  # 52.5 tokens a step: 0.0131 s of 0.2
    rounds = corrected([0.199, 0.201] * 4, accept=2.5, accept_len=2.5)
    assert rounds["decode_tok_per_s"] == pytest.approx(12 * 2.5 / 0.2, rel=1e-3)
    assert rounds["accept_len"] == pytest.approx(2.5)


def test_a_correction_needs_three_lines_and_forty_steps():
    assert "step_s" in corrected([0.2] * 3)
    assert "step_s" not in corrected([0.2] * 2)
    few = corrected([0.2] * 4, n_steps=9.0)
    assert "step_s" not in few  # 36 steps


def test_prompts_that_hardly_vary_say_nothing_and_cost_no_less_than_nothing():
    walls_s = [5.0, 5.1, 4.9, 5.05, 4.95, 5.0] * 2
    lines = [x for i, wall_s in enumerate([5.0, *walls_s])  # 1000 or 1001 tokens may have cost all of it, or nothing
             for x in (prefill(1000 + i % 2, t=5 * i - 1, running=8), decode(8, round(320 / wall_s, 2), t=5 * i))]
    assert estimate(*lines).iloc[0]["method"] == "none"
    row = corrected([0.199, 0.201] * 4, cost=1e-5, known_noise_s=0.2)  # cost known to 1e-4
    spread = 0.001069 / np.sqrt(8) * 2.365  # t of 7 degrees of freedom
    assert row["step_s_hi"] == pytest.approx(0.2 + 1e-5 * 500 / 40 + spread, rel=1e-4)  # prompts for free


def test_populations_are_ordered_by_clean_time_and_split_by_graph_and_context():
    short = steady(8, [0.1] * 9, context=200)
    long = [prefill(9, t=59, running=0), *steady(8, [0.15] * 7, t0=60, context=4000)]
    table = estimate(*short, *long)
    assert table["n_clean"].tolist() == [7, 9]  # 42 s before 36 s
    assert json.loads(table["n_rejected"].iloc[0]) != {} and table["n_rejected"].iloc[1] == "{}"
    again = [prefill(9, t=259, running=0), *steady(8, [0.15] * 7, t0=260, context=3800)]
    between = [prefill(9, t=159, running=0), *steady(8, [0.1] * 9, t0=160, context=200)]
    assert estimate(*long, *between, *again)["n_clean"].tolist() == [14, 9]  # both long loads together
    eager = [{**line, "graph": False} for line in steady(8, [0.15] * 7, t0=40)]
    flags = estimate(*steady(8, [0.1] * 9), *eager)
    assert flags["graph"].tolist() == [False, True]
    assert flags["step_s"].tolist() == pytest.approx([0.15, 0.1], rel=1e-3)


def fine(*runs):
    """Estimate from one line per step: pairs of (step [s], count)."""
    steps_s = [step_s for step_s, count in runs for _ in range(count)]
    return estimate(*steady(4, steps_s, steps=1), facts=[{"decode_log_interval": 1}]).iloc[0]


def test_single_steps_are_summed_and_a_stalled_block_is_left_out():
    row = fine((0.1, 80), (0.13, 40))
    assert (row["method"], row["is_fitted"]) == ("ratio_of_sums", True)
    assert row["step_s"] == pytest.approx((80 * 0.1 + 40 * 0.13) / 120, rel=1e-3)  # their median is 0.1
    assert fine((0.1, 120), (0.3, 40))["step_s"] == pytest.approx(0.1, rel=1e-4)
    assert fine((0.1, 120), (0.3, 10))["step_s"] == pytest.approx((12 + 3) / 130, rel=1e-3)  # a rest is no block
    few = fine((0.1, 80))
    assert not few["is_fitted"] and few["note"] == "fewer than 120 clean steps"


def test_a_level_needs_enough_steps():
    lines = steady(4, [0.1] * 2, steps=10)
    row = estimate(*lines, facts=[{"decode_log_interval": 10}]).iloc[0]
    assert not row["is_fitted"] and row["note"] == "fewer than 40 clean steps; one block of steps: no interval"
    windows = estimate(*[window(8, 32.0, t=float(i)) for i in range(15)]).iloc[0]  # 14 clean windows of 4 steps
    assert windows["is_fitted"]
    four = estimate(*steady(8, [0.1] * 4), rule=levels.LevelRule(min_clean=5)).iloc[0]
    assert four["note"].startswith("4 clean interval")


def test_columns_of_a_level():
    row = estimate(*steady(8, [0.10, 0.11, 0.12, 0.10, 0.13])).iloc[0]
    assert row["cv_frac"] == pytest.approx(1.4826 * 0.01 / 0.11, rel=1e-3)  # deviations 0.01, 0, 0.01, 0.01, 0.02
    assert row["context_tok"] == pytest.approx(100 + (40 + 80 + 120 + 160 + 200) / 5)
    assert row["clean_s"] == pytest.approx(40 * 0.56, rel=1e-3)
    assert row["graph"] and np.isnan(row["accept_len"])
    rounds = estimate(*[decode(4, 100.0, t=float(4 * i), used=1000 + 400 * i, accept=2.5) for i in range(4)]).iloc[0]
    assert (rounds["step_s"], rounds["accept_len"], rounds["decode_tok_per_s"]) == pytest.approx((0.1, 2.5, 100))
    both = [decode(n, 10.0 * n, t=4 * i, used=1000 + 40 * n * i, rank=f"DP{d} TP{d}") for i in range(5)
            for d, n in enumerate((3, 8))]
    row = estimate(*both).iloc[0]
    assert (row["running_req"], row["running_req_total"], row["decode_tok_per_s"]) == pytest.approx((8, 11, 110))


def test_pipeline_stages_give_the_step_of_all_requests():
    lines = [decode(68, 1200.0, t=2.0 * i, used=10000 + 2562 * i, rank=f"PP{stage} TP0") for i in range(6)
             for stage in (0, 1)]
    row = estimate(*lines).set_index("running_req").loc[2562 / 20]  # 2562 / 40 launches, 2 micro-batches
    assert (row["n_clean"], row["step_s"]) == pytest.approx((5, 128.1 / 1200))
    jitter = [decode(68, 1200.0, t=2.0 * i, used=10000 + 2562 * i + i % 2, rank=f"PP{stage} TP0") for i in range(6)
              for stage in (0, 1)]
    assert estimate(*jitter)["n_clean"].tolist() == [5]  # 128.05 or 128.15: one level


def test_printed_digits_bound_the_interval_from_below():
    row = estimate(*[decode(8, 80.0, t=4 * i) for i in range(6)]).iloc[0]
    assert row["step_s_hi"] - row["step_s"] == pytest.approx(0.1 * 0.005 / 80)  # 79.995 to 80.005


def test_confidence_sets_the_width():
    lines = steady(8, [0.10, 0.11, 0.12, 0.10, 0.13])
    wide, narrow = estimate(*lines, confidence=0.95).iloc[0], estimate(*lines, confidence=0.5).iloc[0]
    assert narrow["step_s_hi"] - narrow["step_s_lo"] < 0.6 * (wide["step_s_hi"] - wide["step_s_lo"])
    assert bootstrap_interval(np.array([4.0, 2.0]), np.array([40.0, 40.0]), False, 0.95)[0] == 0  # no negative step


def test_drift_is_said_of_windows_and_never_of_noise_or_a_few_lines():
    rates = [80.0] * 41 + [8 / 0.12] * 40
    row = estimate(*[window(8, rate, t=10.0 * i) for i, rate in enumerate(rates)]).iloc[0]
    assert "100 ms in its first half, 120 ms in its second" in row["note"]
    assert row["step_s_lo"] <= 0.1 and row["step_s_hi"] >= 0.12 - 1e-9
    assert estimate(*steady(8, [0.1, 0.1, 0.13, 0.13, 0.13])).iloc[0]["note"] == ""
    assert estimate(*steady(8, [0.1] * 4 + [0.103] * 4)).iloc[0]["note"] == ""  # 3 %
    noisy = [0.08, 0.10, 0.12, 0.10, 0.085, 0.106, 0.13, 0.106]  # 6 %, each half scatters by 15 %
    assert estimate(*steady(8, noisy)).iloc[0]["note"] == ""


def test_an_empty_batch_is_no_level():
    empty = [window(0, 0.0, t=float(i)) for i in range(3)]
    assert estimate(*empty).empty
    assert estimate(*empty, *[window(8, 160.0, t=3.0 + i) for i in range(4)])["running_req"].tolist() == [8]


def test_the_life_that_decides_has_three_levels_and_most_clean_time():
    def life(number, counts, lines):
        return [{**x, "server_life": number} for i, n in enumerate(counts)
                for x in (prefill(9, t=500 * i, running=0), *steady(n, [0.1] * lines, t0=500 * i + 1))]

    def kept(*lives):
        table = estimate(*(x for i, (counts, lines) in enumerate(lives) for x in life(i, counts, lines)))
        facts = [{"args": {"tp": 2**i}} for i in range(len(lives))]
        found = levels.keep_one_configuration(table, facts)
        return set(found.loc[found["is_fitted"], "server_life"])

    assert kept(((1, 2, 4), 4), ((8, 16), 40)) == {0}  # two levels make no law, however long they lasted
    assert kept(((1, 2, 4, 8), 4), ((16, 32, 64), 9)) == {1}  # 3 x 36 s are more than 4 x 16 s
    assert kept(((1,), 4), ((2, 4), 3)) == {1}


def test_a_scattering_level_is_not_corrected_for_prompts_either():
    steps_s = [0.10, 0.15, 0.10, 0.16, 0.11, 0.17, 0.10, 0.15, 0.10]  # a prompt follows the last
    lines = steady(8, steps_s)
    for i in range(12):  # the same count with prompts in every line
        t = lines[-1]["t_s"] + 5
        lines += [prefill(1000 + 100 * (i % 3), t=t - 1, running=8),
                  decode(8, round(320 / (5 + 0.1 * (i % 3)), 2), t=t)]
    row = estimate(*lines).iloc[0]
    assert row["method"] == "median_of_blocks" and "scatters by" in row["note"]
