"""Long chunked prefills on vLLM: prompt 0.0 for many windows, and Running need not change.

Truth: a simulated server, through text and ingest, and its own record of which forwards held prompt tokens; windows by
hand with the arithmetic in sight; real logs, whose clean windows were counted before the rule and must all stay.
"""

import numpy as np
import pandas as pd
import pytest

from build import no_events, samples, window
from helpers import ingest, levels, segment, synth
from helpers.segment import rules
from helpers.synth.config import Client, Lengths, Noise, Server, StepLaw
from helpers.synth.trace import MIXED

LEVELS_REQ = (2, 4)


SLOW = {"chunked_prefill_tok": 8192, "prefill_s_per_tok": 1.2e-4, "stat_interval_s": 2.0}
"""A step with a chunk takes a second, fifty times a decode step: a window of a prefill holds one step or two."""

MILD = {"chunked_prefill_tok": 512, "prefill_s_per_tok": 2.5e-5, "stat_interval_s": 1.0}
"""A step with a chunk takes 13 ms more than a decode step of 19 to 31 ms: too little for a stall."""


def long_prompts(pace):
    """Simulate a server whose prompts of 72k tokens take four windows and more."""
    server = Server(
        engine="vllm", version="0.33.0", tp_size=4, kv_pool_tok=1_500_000, max_running_req=64, prefill_fixed_s=0.002,
        law=StepLaw(intercept_s=0.0145, slope_s_per_req=0.002), noise=Noise(sigma_frac=0.02, ar1=0.5), **pace)
    client = Client(levels_req=LEVELS_REQ, prompt=Lengths("uniform", 72_000, 0.1),
                    output=Lengths("uniform", 600, 0.2), prompts_per_req=4.0)
    return synth.simulate(server, client, seed=3)


@pytest.fixture(scope="module", params=[SLOW, MILD], ids=["slow", "mild"])
def simulated(request, tmp_path_factory):
    """The simulation, and what is read from its log: whole, and cut so that the size of the pool is unknown."""
    simulation = long_prompts(request.param)
    read = {}
    for name, drop in (("whole", ()), ("no pool size", ("KV cache size",))):
        path = tmp_path_factory.mktemp("prompts") / "server.log"
        lines = [line for line in simulation.lines() if not any(words in line for words in drop)]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        log = ingest.read_log(path)
        assert ("kv_pool_tokens" in log.facts[0]) == (name == "whole")
        read[name] = log, segment.label_intervals(log.samples, log.events, facts=log.facts)
    return simulation, read, request.param


def true_steps(simulation):
    """Return level -> realised mean step [s] of the pure decode steps."""
    return {float(row["running_req"]): row["realised_step_s"] for row in simulation.truth["levels"]
            if row["n_steps"] >= 100}


def prompt_free(log):
    """Windows that a reader takes for decode only: tokens, no prompt here or next, the same count on both sides."""
    rows = log.samples[log.samples["kind"].eq("stats")]
    alone = rows["prefill_tok_per_s"].eq(0) & rows["prefill_tok_per_s"].shift(-1).eq(0)
    same = rows["running_req"].eq(rows["running_req"].shift()) & rows["running_req"].eq(rows["running_req"].shift(-1))
    return rows[alone & same & rows["decode_tok_per_s"].gt(0)]


def test_windows_that_print_prompt_0_read_a_level_more_than_40_percent_slow(simulated):
    simulation, read, _ = simulated
    rows, steps = prompt_free(read["whole"][0]), true_steps(simulation)
    for level in LEVELS_REQ:
        rate = rows.loc[rows["running_req"].eq(level), "decode_tok_per_s"]
        assert level / rate.mean() / steps[level] - 1 > 0.4


@pytest.mark.parametrize("name", ["whole", "no pool size"])
def test_every_level_is_within_3_percent(simulated, name):
    simulation, read, _ = simulated
    table, steps = levels.summarise_levels(read[name][1]), true_steps(simulation)
    fitted = table[table["is_fitted"]]
    assert set(LEVELS_REQ) <= set(fitted["running_req"])
    assert (fitted["step_s"] / fitted["running_req"].map(steps) - 1).abs().max() < 0.03


@pytest.mark.parametrize("name", ["whole", "no pool size"])
def test_no_clean_window_holds_a_prompt_and_most_others_stay(simulated, name):
    """Stamps are whole seconds: a window of w seconds surely holds the w - 1 before its stamp, and at most w + 1."""
    simulation, read, pace = simulated
    intervals = read[name][1]
    starts, ends = np.array([(f.start_s, f.end_s) for f in simulation.trace.forwards if f.kind == MIXED]).T
    at_s, window_s = intervals["t_s"].to_numpy(float)[:, None], pace["stat_interval_s"]
    inside = ((starts < at_s) & (ends > at_s - (window_s - 1))).any(axis=1)
    near = ((starts < at_s + 1) & (ends > at_s - window_s)).any(axis=1)
    clean = intervals["clean"].to_numpy(bool)
    assert inside.sum() > 50
    assert not (clean & inside).any()
    changed = intervals["why"].isin([rules.CHANGED, rules.FIRST, rules.WARMUP, rules.AFTER_IDLE, rules.NO_TOKENS])
    free = ~near & ~changed.to_numpy(bool)
    assert clean[free].mean() > 0.9


def test_without_kv_usage_windows_of_a_prefill_are_clean_or_stalls(simulated):
    """What Running and rate tell alone: the other tests can fail."""
    _, read, pace = simulated
    log, intervals = read["whole"]
    blind = log.samples.assign(kv_used_frac=np.nan)
    without = segment.label_intervals(blind, log.events, facts=log.facts)
    told = intervals["why"].eq(rules.PROMPT_PENDING)
    assert (told & without["why"].eq(rules.STALL if pace is SLOW else rules.CLEAN)).sum() >= 5


POOL_TOK = 100_000
FACTS = [{"kv_pool_tokens": POOL_TOK, "kv_block_size": 16}]


def label(rows, facts=FACTS):
    return segment.label_intervals(samples(*rows), no_events(), facts=facts)["why"].tolist()


def after_a_credit(growth, rate=160.0):
    """One window of warm start, one that credits a prompt, then windows of 1 s of 8 requests with that KV growth."""
    usage = 0.2 + np.cumsum([0.0, 0.0, *growth])
    rows = [window(8, 160.0, t=float(i), kv=round(float(used), 3)) for i, used in enumerate(usage)]
    rows[1]["prefill_tok_per_s"] = 4096.0
    for row in rows[2:]:
        row["decode_tok_per_s"] = rate
    return rows


def test_growth_beyond_the_tokens_made_is_a_prompt():
    """160 tokens are 0.0016 of the pool, twice that 0.0032; 8 blocks of 16 are 0.0013, the print 0.001: 0.0055."""
    grows = [0.001, 0.002, 0.002, 0.001, 0.002]
    assert label(after_a_credit(grows))[2:] == [rules.CLEAN] * 5
    assert label(after_a_credit([0.020] * 5))[2:] == [rules.PROMPT_PENDING] * 5  # 2000 tok, of which 160 were made


def test_only_the_tail_in_which_usage_grows_is_taken_and_the_window_before_it():
    why = label(after_a_credit([0.001, 0.002, 0.001, 0.002, 0.020, 0.020]))
    assert why[2:] == [rules.CLEAN] * 3 + [rules.PROMPT_PENDING] * 3


def test_growth_too_small_for_one_window_shows_over_the_run():
    """0.004 a window is below the 0.0055 that one may have; four are 0.016 where 0.0128 + 0.0023 may be."""
    assert label(after_a_credit([0.004]))[2:] == [rules.CLEAN]
    assert label(after_a_credit([0.004] * 4))[2:] == [rules.PROMPT_PENDING] * 4


def test_blocks_that_requests_open_together_are_no_prompt():
    """Eight requests in step open eight blocks of 1952 tokens in one window: 0.156 of the pool at once."""
    facts = [{"kv_pool_tokens": POOL_TOK, "kv_block_size": 1952}]
    grows = [0.0] * 20 + [0.156] + [0.0] * 4
    assert label(after_a_credit(grows), facts)[2:] == [rules.CLEAN] * 25
    assert label(after_a_credit(grows), [{"kv_pool_tokens": POOL_TOK}])[2:] == [rules.CLEAN] * 25
    assert rules.PROMPT_PENDING in label(after_a_credit(grows))  # blocks of 16 cannot


def test_a_jump_in_the_first_steps_is_no_block_of_unknown_size():
    """8 tokens in all, one per request: a block of 2048 would open there one time in 2048."""
    rows = after_a_credit([0.08], rate=8.0)  # 8000 tok
    assert label(rows, [{"kv_pool_tokens": POOL_TOK}])[2:] == [rules.PROMPT_PENDING]


def test_pool_of_unknown_size_is_told_by_its_busiest_windows():
    """160 tokens to 0.0016: a pool of 100,000, of which 8 blocks of 2048 are 0.16. The log ends before the credit."""
    rows = [window(8, 160.0, t=float(i), kv=round(0.2 + 0.0016 * i, 3)) for i in range(20)]
    rows += [window(8, 20.0, t=20.0 + i, kv=round(0.32 + 0.09 * i, 3)) for i in range(3)]
    why = label(rows, [{}])
    assert why[1:19] == [rules.CLEAN] * 18
    assert why[19:] == [rules.PROMPT_PENDING] * 4


def test_pool_of_unknown_size_is_told_by_the_prompts_where_every_window_holds_one():
    """24,000 prompt tokens to three windows of 0.02: a pool of 400,000, of which 8 tokens are nothing."""
    rows = [window(4, 8.0, t=float(i), kv=round(0.1 + 0.02 * i, 3), prompt=24_000.0 * (i % 3 == 0))
            for i in range(16)]
    why = label(rows, [{}])
    assert why[1:4] == [rules.PROMPT_PENDING, rules.PROMPT_NEXT, rules.PROMPT_INSIDE]
    assert rules.CLEAN not in why


def test_without_usage_a_window_of_few_steps_is_a_stall():
    """Five windows of 20 steps and two of one: what Running and usage do not show, the rate does."""
    rows = [window(8, rate, t=float(i)) for i, rate in enumerate([160.0] * 6 + [8.0, 8.0] + [160.0] * 2)]
    why = label(rows)
    assert why[6:8] == [rules.STALL] * 2
    assert why[1:6] == [rules.CLEAN] * 5


def test_quantised_windows_of_few_steps_are_no_stalls():
    """At 0.4 s a step a window of 2 s holds five steps, and one in which four end is a quarter slower, no stall."""
    rows = [window(8, rate, t=2.0 * i) for i, rate in enumerate([20.0, 20.0, 16.0, 20.0, 24.0, 20.0])]
    assert label(rows)[1:] == [rules.CLEAN] * 5


CLEAN_BEFORE = {
    "own/vllm-sweep/server.log": 268, "own/vllm-sweep-noisy/server.log": 312, "own/vllm-kv-pressure/server.log": 66,
    "own/vllm-prefill-overlap/server.log": 90, "own/vllm-worker-killed/server.log": 34,
    "own/vllm-restarts/server.log": 11, "sostrowsk/laguna-int4-pinned.log": 18, "sostrowsk/vllm.log": 4,
    "djangodevreng/nemotron-4b/_bootlog.txt": 71,
}
"""Clean windows of real logs by the rules before KV usage was looked at; none of them lies in a prefill."""


@pytest.mark.parametrize("name", list(CLEAN_BEFORE))
def test_real_logs_lose_no_clean_window_even_where_the_size_of_the_pool_is_unknown(shared, name):
    log = ingest.read_log(shared / "logs" / name)
    blind = [{k: v for k, v in found.items() if k != "kv_pool_tokens"} for found in log.facts]
    for facts in (log.facts, blind):
        intervals = segment.label_intervals(log.samples, log.events, facts=facts)
        assert int(intervals["clean"].sum()) == CLEAN_BEFORE[name]


def test_the_bundled_sweep_loses_no_clean_window(data):
    log = ingest.read_log(data / "samples" / "vllm-sweep" / "server.log")
    intervals = segment.label_intervals(log.samples, log.events, facts=log.facts)
    assert int(intervals["clean"].sum()) == CLEAN_BEFORE["own/vllm-sweep/server.log"]


@pytest.mark.parametrize("name", ["qwen38-int4.log", "qwen38-nvfp4.log", "vllm-int4-long.log", "qwen36.log"])
def test_logs_of_prompts_up_to_198k_tokens_have_no_clean_window(shared, name):
    """Their answers last a window at most: every one holds a prompt, before and after this rule."""
    log = ingest.read_log(shared / "logs" / "sostrowsk" / name)
    intervals = segment.label_intervals(log.samples, log.events, facts=log.facts)
    assert pd.notna(log.facts[0]["kv_pool_tokens"]) and not intervals["clean"].any()
