"""Level estimates on hand-made intervals; the simulated servers are in test_traps.py and test_coverage.py."""

import json

import numpy as np
import pandas as pd
import pytest

from build import decode, no_events, prefill, samples, window
from helpers import levels, schema, segment
from helpers.levels.estimate import bootstrap_interval


def estimate(*records, facts=(), **more):
    return levels.summarise_levels(segment.label_intervals(samples(*records), no_events(), facts=facts), **more)


def steady(n, steps_s, *, steps=40, t0=0.0, context=100):
    """SGLang lines whose intervals hold `steps` steps of the given lengths [s]."""
    t, lines = t0, [decode(n, 1.0, t=t0, used=n * context)]
    for i, step_s in enumerate(steps_s):
        t += steps * step_s
        lines.append(decode(n, round(n / step_s, 2), t=t, used=n * (context + steps * (i + 1))))
    return lines


def test_sglang_level_is_the_median_of_forty_step_lines():
    table = estimate(*steady(8, [0.10, 0.11, 0.12, 0.10, 0.13]))
    row = table.iloc[0]
    assert row["step_s"] == pytest.approx(0.11, rel=1e-4)  # rates are printed with two decimals
    assert (row["n_clean"], row["method"], row["is_fitted"]) == (5, "median_of_blocks", True)
    assert row["step_s_lo"] <= 0.11 <= row["step_s_hi"]
    assert row["decode_tok_per_s"] == pytest.approx(8 / 0.11, rel=1e-4)


def test_single_steps_are_pooled_to_blocks():
    """Skewed steps, one line each: the median of single steps is 0.10 s, the mean of 40 is 0.12 s."""
    steps_s = ([0.1] * 9 + [0.3]) * 40
    facts = [{"decode_log_interval": 1}]
    row = estimate(*steady(4, steps_s, steps=1), facts=facts).iloc[0]
    assert row["step_s"] == pytest.approx(0.12, rel=0.01)


def test_vllm_level_is_tokens_over_time():
    """Windows of 1 s cut steps of 0.16 s: 6 or 7 of them; sum of requests x time over tokens, not the median."""
    rates = [64 * 6] * 3 + [64 * 7]
    rows = [window(64, float(rates[i % 4]), t=float(i)) for i in range(41)]
    row = estimate(*rows).iloc[0]
    assert row["step_s"] == pytest.approx(1 / 6.25, rel=0.01)
    assert row["method"] == "ratio_of_sums"


def test_one_clean_line_is_shown_and_not_fitted():
    table = estimate(*steady(8, [0.1]))
    assert not table["is_fitted"].iloc[0]
    assert "1 clean interval" in table["note"].iloc[0]
    assert np.isnan(table["step_s_lo"].iloc[0])


def test_rejected_intervals_are_counted_by_reason_also_where_nothing_is_clean():
    lines = steady(8, [0.1] * 4)
    table = estimate(*lines, prefill(10, t=17, running=8), decode(9, 80.0, t=20))
    eight, nine = table.set_index("running_req").loc[8.0], table.set_index("running_req").loc[9.0]
    assert json.loads(eight["n_rejected"]) == {"first line of the server life": 1, "prefill is the next record": 1}
    assert (nine["n_clean"], nine["method"]) == (0, "none")
    assert np.isnan(nine["step_s"])


def test_two_contexts_at_one_level_are_two_populations():
    short = steady(8, [0.1] * 6, context=200)
    long = [prefill(9, t=199, running=0), *steady(8, [0.2] * 9, t0=200, context=4000)]
    table = estimate(*short, *long)
    assert table["population"].tolist() == [0, 1]
    assert table["step_s"].tolist() == pytest.approx([0.2, 0.1], rel=1e-3)
    assert table["is_fitted"].tolist() == [True, False]


def test_drift_is_said_and_widens_the_interval():
    row = estimate(*steady(8, [0.100, 0.101, 0.1, 0.101, 0.120, 0.121, 0.12, 0.121])).iloc[0]
    assert "drifts in time" in row["note"]
    assert row["step_s_lo"] <= 0.1005 and row["step_s_hi"] >= 0.1195


def test_identical_lines_still_have_an_interval_of_what_was_printed():
    row = estimate(*[window(3, 87.0, t=10.0 * i) for i in range(4)]).iloc[0]
    n_steps = 3 * 10 * 87 / 3  # three clean windows of 10 s
    assert row["step_s_hi"] - row["step_s"] == pytest.approx(row["step_s"] / n_steps)


def closed_loop(n, step_s, cost_s_per_tok, *, count=40, window_s=10.0, prompt=500):
    """Write vLLM windows of a closed loop: each holds two prompts and the decode steps of the time that is left."""
    rng = np.random.default_rng(5)
    rows, t = [], 0.0
    for _ in range(count):
        prompts = int(rng.integers(1, 4))
        steps = (window_s - prompts * prompt * cost_s_per_tok) / step_s
        rows.append(window(n, round(n * steps / window_s, 1), t=t, prompt=round(prompts * prompt / window_s, 1)))
        t += window_s
    return rows


def test_a_closed_loop_without_clean_windows_is_corrected_for_prompts():
    table = estimate(*closed_loop(16, 0.05, 0.0004))
    row = table.iloc[0]
    assert (row["method"], row["n_clean"], row["is_fitted"]) == ("prefill_corrected", 0, True)
    assert row["step_s"] == pytest.approx(0.05, rel=0.01)
    naive_s = 16 / np.mean([r["decode_tok_per_s"] for r in closed_loop(16, 0.05, 0.0004)])
    assert naive_s > 1.03 * 0.05  # what the rate alone would have said
    assert row["step_s_lo"] < 0.05 < row["step_s_hi"]


def test_a_log_that_is_mostly_prefill_gives_no_step():
    row = estimate(*closed_loop(16, 0.05, 0.006)).iloc[0]  # 60 % of the time
    assert row["method"] == "none"
    assert np.isnan(row["step_s"])


def test_scaling_the_rate_scales_the_step():
    lines = steady(8, [0.10, 0.11, 0.12, 0.10, 0.13])
    doubled = [{**line, "decode_tok_per_s": 2 * line["decode_tok_per_s"], "t_s": line["t_s"] / 2} for line in lines]
    one, two = estimate(*lines).iloc[0], estimate(*doubled).iloc[0]
    assert two["step_s"] == pytest.approx(one["step_s"] / 2)
    assert two["step_s_hi"] == pytest.approx(one["step_s_hi"] / 2)


def test_no_interval_at_all_is_not_enough_data():
    with pytest.raises(schema.NotEnoughData, match="expected decode or periodic lines"):
        levels.summarise_levels(schema.INTERVALS.empty())


def test_interval_of_a_level_covers_its_mean_with_correlated_noise():
    """95 % nominal; 200 simulated levels of 24 lines, AR(1) noise of 3 % with phi 0.6: 88-100 % is 4 sigma of 200."""
    hits = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        noise = np.zeros(24)
        for i in range(1, 24):
            noise[i] = 0.6 * noise[i - 1] + rng.normal(0, 0.03 * 0.8)
        steps_s = 0.1 * (1 + noise)
        time_s = 40 * steps_s
        row = bootstrap_interval(time_s, np.full(24, 40.0), True, 0.95)
        hits += row[0] <= 0.1 <= row[1]
    assert 0.88 <= hits / 200


def test_result_keeps_the_schema_for_every_method():
    for records in (steady(8, [0.1] * 5), closed_loop(16, 0.05, 0.0004), closed_loop(16, 0.05, 0.006)):
        assert isinstance(schema.check(estimate(*records), schema.LEVELS), pd.DataFrame)


def test_lives_with_other_arguments_do_not_share_a_law():
    lines = [*steady(4, [0.1] * 4), *[{**r, "server_life": 1} for r in steady(8, [0.2] * 3)]]
    table = estimate(*lines)
    same = levels.keep_one_configuration(table, [{"args": {"tp": 4, "port": 1}}, {"args": {"tp": 4, "port": 2}}])
    assert same["is_fitted"].all()
    changed = levels.keep_one_configuration(table, [{"args": {"tp": 4}}, {"args": {"tp": 8}}])
    assert changed.groupby("server_life")["is_fitted"].any().sum() == 1
    assert changed.loc[~changed["is_fitted"], "note"].iloc[0] == "another server life with other arguments"
    assert levels.keep_one_configuration(table, [{}, {}])["is_fitted"].all()


def test_clean_time_of_lockstep_ranks_is_counted_once():
    records = []
    for i in range(6):
        for rank in (0, 1):
            records.append(decode(4, 40.0, t=4.0 * i, used=1000 + 160 * i, rank=f"DP{rank} TP{rank}"))
    row = estimate(*records).iloc[0]
    assert row["n_clean"] == 10
    assert row["clean_s"] == pytest.approx(20.0)  # five intervals of 40 x 0.1 s on one clock


def test_a_scattering_level_is_stated_and_not_fitted():
    row = estimate(*steady(8, [0.10, 0.15, 0.10, 0.16, 0.11, 0.17, 0.10, 0.15])).iloc[0]
    assert not row["is_fitted"]
    assert "scatters by" in row["note"] and row["method"] == "median_of_blocks"
    assert row["step_s"] == pytest.approx(0.13, abs=0.02)


def test_lines_of_twenty_steps_are_taken_in_pairs():
    row = estimate(*steady(4, [0.1, 0.1, 0.2, 0.2, 0.1, 0.1], steps=20), facts=[{"decode_log_interval": 20}]).iloc[0]
    assert row["step_s"] == pytest.approx(0.1, rel=1e-3)  # blocks of 0.1, 0.2 and 0.1 s


def test_a_known_step_tells_what_prompts_cost_where_they_never_vary():
    """8 requests: 40 steps of 0.1 s, known, and 1000 tokens in 5 s: 1 ms a token. 12 requests: 500 tokens in 8.5 s."""
    part = pd.DataFrame({"level": [8.0] * 7 + [12.0] * 7, "interval_s": [5.0] * 7 + [8.5] * 7,
                         "prefill_tok": [1000.0] * 7 + [500.0] * 7})
    part = part.assign(engine="sglang", rank="", rank_group="all", running_req_printed=part["level"], n_steps=40.0,
                       running_req_total=part["level"], label="mixed", why="prefill inside", accept=1.0, graph=True,
                       step_s=part["interval_s"] / 40, idle_s=0.0, accept_len=np.nan, context_tok=100.0)
    rows = [{"running_req": 8.0, "population": 0, "is_fitted": True, "step_s": 0.1},
            {"running_req": 12.0, "population": 0, "is_fitted": False, "n_rejected": "{}", "n_clean": 0}]
    known, found = levels.correction.correct_prefill(part, rows, {"server_life": 0}, levels.LevelRule())
    assert known == rows[0]
    assert found["step_s"] == pytest.approx((8.5 - 500 * 0.001) / 40, rel=1e-3)


def pipeline(growths, rate, prompts=()):
    records, used = [], 10000
    for i, growth in enumerate(growths):
        used += growth
        if len(prompts):
            records += [prefill(prompts[i], t=2.0 * i, running=64, rank=f"PP{stage} TP0") for stage in (0, 1)]
        records += [decode(64, rate, t=2.0 * i, used=used, rank=f"PP{stage} TP0") for stage in (0, 1)]
    return records


def test_pipeline_lines_with_prompts_are_refused_not_halved():
    """40 launches of 0.05 s: the step of 128 requests is 0.1 s, and a launch must not pass for it."""
    prompts = [500 + 100 * (i % 7) for i in range(20)]
    table = estimate(*pipeline([2560] * 20, 1000.0, prompts))
    assert not table["is_fitted"].any()
    assert table["step_s"].isna().all()


def test_pipeline_means_of_one_load_are_one_level():
    table = estimate(*pipeline([2560, 2562, 2558, 2561, 2560, 2563, 2557, 2560, 2560], 1280.0))
    assert len(table[table["is_fitted"]]) == 1
    assert table.loc[table["is_fitted"], "step_s"].iloc[0] == pytest.approx(0.1, rel=0.005)


def test_a_small_cost_per_prompt_token_is_found():
    """Noise-free: 40 steps of 30 ms and 2 microseconds a prompt token, far below an absolute tolerance of 1e-5 s."""
    lines, t, used = [decode(8, 1.0, t=0.0, used=800)], 0.0, 800
    for i in range(20):
        prompt = 4000 + 600 * i
        wall_s = 40 * 0.03 + 2e-6 * prompt
        t, used = t + wall_s, used + 320
        lines += [prefill(prompt, t=t, running=8), decode(8, round(320 / wall_s, 2), t=t, used=used)]
    row = estimate(*lines).iloc[0]
    assert row["step_s"] == pytest.approx(0.03, rel=0.005)
    assert row["step_s_lo"] <= 0.03 <= row["step_s_hi"]


def test_identical_lines_with_prompts_give_no_cost():
    row = estimate(*[window(8, 64.0, t=10.0 * i, prompt=200.0) for i in range(20)]).iloc[0]
    assert np.isnan(row["step_s"]) and not row["is_fitted"]
