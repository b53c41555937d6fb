"""Real SGLang and vLLM servers against the truth of their clients (per-token times), log by log.

Truth: data/samples/*/truth.csv and, for the logs that are not bundled, the same file beside the log. Tolerances are
those that the project promises: 3 % of the mean step on a quiet machine, 5 % with other programs on its cores.
"""

import numpy as np
import pandas as pd
import pytest

from helpers import laws
from helpers.analysis import analyse
from helpers.segment import rules


@pytest.fixture(scope="module")
def read(data, request):
    """Analyse one of our own logs by name, bundled or beside the checkout; cached."""
    cache = {}

    def read_log(name):
        if name not in cache:
            bundled = data / "samples" / name
            folder = bundled if bundled.is_dir() else request.getfixturevalue("shared") / "logs" / "own" / name
            truth = pd.read_csv(folder / "truth.csv").set_index("concurrency")
            cache[name] = (analyse(folder / "server.log"), truth)
        return cache[name]

    return read_log


def errors(found, truth, column):
    """Relative error of the step of every level that the client held."""
    levels = found.levels[found.levels["step_s"].notna() & found.levels["running_req"].isin(truth.index)]
    levels = levels.set_index("running_req")
    return levels["step_s"] / (truth.loc[levels.index, column] / 1e3) - 1


def relative_slope(step_s):
    """Slope of the relative-weighted line through (running_req, step)."""
    return np.polyfit(step_s.index.to_numpy(float), step_s.to_numpy(), 1, w=1 / step_s.to_numpy())[0]


def test_vllm_sweep_is_within_3_percent_at_every_level_and_in_slope(read):
    found, truth = read("vllm-sweep")
    off = errors(found, truth, "itl_ms_mean")
    assert set(off.index) == {1, 2, 4, 8, 16, 32, 64}
    assert off.abs().max() < 0.03
    slope = found.fits.linear["slope_s_per_req"].value
    assert slope == pytest.approx(relative_slope(truth["itl_ms_mean"] / 1e3), rel=0.03)


def test_vllm_sweep_with_other_programs_is_within_5_percent(read):
    found, truth = read("vllm-sweep-noisy")
    off = errors(found, truth, "itl_ms_mean")
    assert set(off.index) == {1, 2, 4, 8, 16, 32, 64}
    assert off.abs().max() < 0.05
    four = found.levels.set_index("running_req").loc[4.0]  # the neighbour came and went there
    assert not four["is_fitted"] and "scatters by" in four["note"]
    slope = found.fits.linear["slope_s_per_req"].value
    assert slope == pytest.approx(relative_slope(truth["itl_ms_mean"] / 1e3), rel=0.05)


def test_sglang_sweep_is_within_5_percent_of_the_median_token_time(read):
    found, truth = read("sglang-sweep")
    off = errors(found, truth, "itl_ms_median")
    assert set(off.index) == {1, 2, 4, 8, 16, 32}
    assert off.abs().max() < 0.05


def test_sglang_noisy_neighbour_and_first_lines_are_rejected_with_a_reason(read):
    found, _ = read("sglang-sweep")
    why = found.intervals.set_index("decode_tok_per_s")["why"]
    assert why[10.84] == rules.STALL  # among 124 to 148
    assert why[11.13] == rules.AFTER_IDLE  # where the truth is about 133
    first = found.intervals.groupby("episode").head(1)
    assert not first["clean"].any()


def test_three_lives_stay_apart_and_hold_their_levels(read):
    found, truth = read("vllm-restarts")
    assert found.scorecard["run"]["n_server_lives"] == 3
    assert found.intervals.groupby("server_life")["why"].first().eq(rules.FIRST).all()
    by_life = found.levels[found.levels["step_s"].notna()].set_index(["server_life", "running_req"])["step_s"]
    for life, level in enumerate((4.0, 8.0, 16.0)):  # 1 to 7 clean windows each: 5 % is their noise
        assert by_life[life, level] == pytest.approx(truth.loc[level, "itl_ms_mean"] / 1e3, rel=0.05)


def test_no_window_in_mid_prefill_is_clean_though_it_prints_prompt_0(read):
    found, _ = read("vllm-prefill-overlap")
    credited = found.intervals.index[found.intervals["prefill_tok"] > 0]
    burst = found.intervals.loc[found.intervals["running_req"].between(9, 20)]
    in_prefill = burst.index[burst.index < credited.max()]
    assert len(in_prefill) > 30
    assert not found.intervals.loc[in_prefill, "clean"].any()
    clean_at_8 = found.intervals[found.intervals["clean"] & found.intervals["running_req"].eq(8)]
    assert clean_at_8["decode_tok_per_s"].min() > 90  # a stalled window shows 40 or less


def test_rounds_and_accept_length_of_ngram_speculation(read):
    found, truth = read("vllm-spec-ngram")
    levels = found.levels[found.levels["step_s"].notna()].set_index("running_req")
    for level in (1, 4, 16):
        row = levels.loc[level]
        true_s = truth.loc[level, "metrics_itl_ms_mean"] / 1e3  # the server's own counter, quiet seconds and others
        assert row["step_s_lo"] <= true_s <= row["step_s_hi"] or row["step_s"] == pytest.approx(true_s, rel=0.05)
        assert row["accept_len"] == pytest.approx(truth.loc[level, "tokens_per_chunk"], rel=0.2)


def test_a_stale_count_after_a_dead_worker_is_no_level(read):
    found, truth = read("vllm-worker-killed")
    stale = found.intervals[found.intervals["running_req"].eq(16) & found.intervals["decode_tok_per_s"].eq(0)]
    assert len(stale) >= 1
    assert stale["why"].eq(rules.NO_TOKENS).all()
    row = found.levels.set_index("running_req").loc[16.0]
    assert row["step_s"] == pytest.approx(truth.loc[16, "itl_ms_mean"] / 1e3, rel=0.03)


def test_ten_second_windows_of_a_closed_loop_are_corrected_and_say_how_far_they_can_be_trusted(read):
    found, truth = read("vllm-sweep-10s")
    levels = found.levels.set_index("running_req")
    for level in (2, 8, 32):
        row = levels.loc[level]
        true_s = truth.loc[level, "itl_ms_mean"] / 1e3
        assert row["step_s_lo"] <= true_s <= row["step_s_hi"]
        assert row["step_s"] == pytest.approx(true_s, rel=0.03)


def test_a_typed_table_gives_the_published_line(data):
    found = analyse(data / "field" / "case_a_config2.csv")
    line = found.fits.linear
    assert line["intercept_s"].value == pytest.approx(0.0519, abs=0.0003)
    assert line["slope_s_per_req"].value == pytest.approx(0.0303157, abs=5e-5)
    assert (line["slope_s_per_req"].lo, line["slope_s_per_req"].hi) == pytest.approx((0.0197, 0.0410), abs=1e-4)
    assert line.asymptote_tok_per_s == pytest.approx(33.0, abs=0.05)
    assert line.dof == 1
    assert laws.fit_laws(found.levels).linear["slope_s_per_req"].value == line["slope_s_per_req"].value
