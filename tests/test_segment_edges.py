"""Edges of the interval rules that no other test would notice: each was found by breaking the code once."""

import numpy as np
import pandas as pd
import pytest

from build import decode, prefill, samples, window
from helpers import schema, segment
from helpers.segment import rules
from test_segment import label, lockstep_lines, steady


def events(kind, line_no, life=0):
    """Return an EVENTS table of one event."""
    row = {"file": "hand.log", "line_no": line_no, "server_life": life, "kind": kind, "text": ""}
    return schema.conform(pd.DataFrame([row]), schema.EVENTS)


def test_loads_without_a_pause_are_told_apart_by_a_higher_peak_only():
    one = steady(4, 4)  # stamps 0 to 6
    two = [prefill(512, t=6, running=0), *steady(16, 4, rate=160.0, t0=10)]
    same = [prefill(512, t=22, running=0), *steady(16, 4, rate=160.0, t0=26)]  # next wave of the same closed loop
    intervals = label(*one, *two, *same)
    assert intervals["idle_s"].eq(0).all()
    assert intervals["episode"].tolist() == [0] * 4 + [1] * 8


def test_idle_time_shows_in_stamps_where_prefill_lines_were_filtered_out():
    intervals = label(*steady(4, 4), *steady(16, 4, rate=160.0, t0=100))
    assert intervals["why"].iloc[4] == rules.AFTER_IDLE
    assert intervals["idle_s"].tolist() == [0] * 4 + [100 - 6] + [0] * 3
    assert intervals["episode"].tolist() == [0] * 4 + [1] * 4


def test_silence_that_one_line_explains_is_not_idle():
    slow = steady(64, 4, rate=64.0)  # 40 steps of 1 s: stamps 0, 40, 80, 120
    started = label(*slow, prefill(9, t=140, running=0), *steady(4, 4, t0=142))
    assert started["idle_s"].eq(0).all()  # 20 s of silence, a line of 64 requests was due in 40 s
    rounded = label(*steady(8, 3), prefill(9, t=13, running=0), *steady(8, 3, t0=14))
    assert rounded["idle_s"].eq(0).all()  # 5 s of silence, a line was due in 4 s, stamps are whole seconds
    mostly_busy = label(*steady(8, 3), prefill(9, t=18, running=0), *steady(8, 3, t0=100))
    assert mostly_busy["idle_s"].eq(0).all()  # 10 s of 92: the rest was not silent
    prefill_later = label(*steady(8, 3), decode(7, 70.0, t=12), prefill(9, t=112, running=0))
    assert prefill_later["idle_s"].eq(0).all()  # the silence is after the last line


def test_vllm_two_empty_windows_are_a_pause_one_is_not():
    def episodes(n_empty):
        empty = [window(0, 0.0, t=4.0 + i) for i in range(n_empty)]
        load = [window(4, 80.0, t=4.0 + n_empty + i) for i in range(3)]
        return label(*[window(4, 80.0, t=float(i)) for i in range(4)], *empty, *load)["episode"].tolist()

    assert episodes(1) == [0] * 8
    assert episodes(2) == [0] * 6 + [1] * 3


def test_time_of_phases_is_that_of_one_rank():
    phases = segment.phase_seconds(label(*lockstep_lines([3, 8], 0.1)))
    assert sum(phases.values()) == pytest.approx(24)  # 20 s of stamps, and 40 x 0.1 s before the first line


def test_stale_windows_are_idle_time_and_no_part_of_the_load():
    rows = [window(16, 220.0, t=float(i)) for i in range(4)] + [window(16, 0.0, t=4.0 + i) for i in range(3)]
    intervals = label(*rows)
    assert segment.phase_seconds(intervals)["idle_s"] == pytest.approx(3)
    row = segment.find_episodes(intervals).iloc[0]
    assert (row["duration_s"], row["tokens"]) == (3, 660)  # the first window has no beginning
    assert segment.find_episodes(label(*[window(0, 0.0, t=float(i)) for i in range(3)])).empty


def test_an_episode_leaves_out_the_idle_time_before_it():
    first, second = steady(4, 4), steady(16, 4, rate=160.0, t0=100)
    row = segment.find_episodes(label(*first, prefill(512, t=98, running=0), *second)).iloc[1]
    assert row["duration_s"] == pytest.approx(2 + 3 * 4)  # from the prefill at 98 s; 40 x 0.1 s a line
    assert row["start_s"] == 100


def test_steady_rate_of_an_episode_is_tokens_over_time_at_its_peak():
    rise = [prefill(64, t=13, running=8), *steady(16, 4, rate=128.0, t0=17)]
    row = segment.find_episodes(label(*steady(8, 4), *rise)).iloc[0]
    assert (row["peak_req"], row["steady_tok_per_s"]) == (16, 128)  # 8 requests made 80
    uneven = [decode(8, rate, t=5 * i) for i, rate in enumerate([80.0, 80.0, 50.0])]
    row = segment.find_episodes(label(*uneven)).iloc[0]
    assert row["steady_tok_per_s"] == pytest.approx(2 * 320 / (4.0 + 6.4))  # 40 steps of 8 requests each
    stalled = [decode(8, rate, t=5 * i) for i, rate in enumerate([80.0, 80.0, 80.0, 80.0, 50.0])]
    assert segment.find_episodes(label(*stalled))["steady_tok_per_s"].tolist() == [80]  # from three lines on: a median
    single = segment.find_episodes(label(*stalled, facts=[{"decode_log_interval": 1}]))  # single steps are skewed
    assert single["steady_tok_per_s"].iloc[0] == pytest.approx(4 * 8 / (3 * 0.1 + 0.16))
    windows = [window(8, rate, t=float(i)) for i, rate in enumerate([160.0, 160.0, 160.0, 160.0, 100.0])]
    assert segment.find_episodes(label(*windows))["steady_tok_per_s"].tolist() == [145]
    rounds = [decode(4, 100.0, t=4 * i, used=1000 + 400 * i, accept=2.5) for i in range(5)]
    assert segment.find_episodes(label(*rounds))["steady_tok_per_s"].iloc[0] == pytest.approx(100)


def test_facts_belong_to_their_life_and_the_cap_is_the_largest_count_where_not_known():
    lines = [{**line, "server_life": life} for life in (0, 1) for line in steady(8, 3, queue=2)]
    why = label(*lines, facts=[{}, {"max_running_requests": 16}])["why"].tolist()
    assert why == [rules.FIRST, rules.CLEAN, rules.CLEAN, rules.FIRST, rules.QUEUE, rules.QUEUE]


def test_a_queue_before_a_full_pool_admits_nothing():
    def why(kv):
        rows = [window(8, 160.0, t=float(i), waiting=3, kv=kv) for i in range(3)]
        return label(*rows, facts=[{"max_running_requests": 16}])["why"].tolist()[1:]

    assert why(0.95) == [rules.CLEAN] * 2
    assert why(0.85) == [rules.QUEUE] * 2


def test_labels_of_a_batch_that_moves():
    lines = [*steady(8, 2), prefill(9, t=5, running=6), decode(7, 70.0, t=8), prefill(9, t=9, running=7),
             decode(9, 90.0, t=12), decode(5, 50.0, t=16)]
    assert label(*lines)["label"].tolist()[2:] == ["mixed", "ramp", "drain"]
    tokens = steady(8, 8)
    tokens[4]["used_tok"] += 7
    assert label(*tokens)["label"].tolist()[3:7] == ["steady", "mixed", "mixed", "steady"]
    rows = [window(8, 160.0, t=float(i)) for i in range(6)]
    rows[3]["prefill_tok_per_s"] = 128.0  # the window before holds part of it
    assert label(*rows)["label"].tolist()[1:] == ["steady", "mixed", "mixed", "steady", "steady"]
    rows = [*(window(8, 160.0, t=float(i)) for i in range(2)), *(window(9, 20.0, t=2.0 + i) for i in range(2))]
    assert label(*rows)["label"].tolist()[1:] == ["mixed", "ramp", "mixed"]  # a prompt is in the making
    assert label(window(0, 0.0, t=0.0), window(8, 160.0, t=1.0))["label"].tolist() == ["idle", "ramp"]


def test_lines_before_ready_are_the_servers_own_warmup():
    found = segment.label_intervals(samples(*steady(8, 5)), events("ready", 4))  # the first three lines
    assert found["label"].tolist() == ["warmup"] * 3 + ["steady"] * 2
    assert found["why"].tolist()[1:3] == [rules.WARMUP] * 2


def test_what_is_no_warmup():
    two_loads = [*steady(4, 2), prefill(9, t=40, running=0), *steady(1, 60, t0=41)]
    assert "warmup" not in set(label(*two_loads)["label"])  # short, but is the other one the measured load?
    brief = [prefill(9, t=998, running=0), *steady(8, 3, t0=1000), prefill(9, t=1998, running=0),
             *steady(16, 3, t0=2000)]
    assert "warmup" not in set(label(*steady(4, 10), *brief)["label"])  # 1000 s of idle time do not make a load long

    def two_episodes(first_cached, second_cached):
        second = [prefill(1024 - second_cached, t=80, running=0, cached=second_cached), *steady(8, 12, t0=82)]
        return label(prefill(1000 - first_cached, t=0, running=0, cached=first_cached), *steady(8, 12, t0=1), *second)

    assert "warmup" in set(two_episodes(600, 0)["label"])
    assert "warmup" not in set(two_episodes(400, 0)["label"])  # 40 % of the prompts
    assert "warmup" not in set(two_episodes(900, 900)["label"])  # the measured load is cached as well


def test_warmup_of_one_life_is_not_that_of_the_next():
    loads = [prefill(9, t=40, running=0), *steady(1, 30, t0=41), prefill(9, t=100, running=0), *steady(4, 30, t0=101)]
    intervals = label(*steady(4, 2), *loads, *steady(4, 5, life=1))
    assert intervals["label"].tolist()[:2] == ["warmup"] * 2
    assert intervals["why"].tolist()[-4:] == [rules.CLEAN] * 4


def test_vllm_pending_prompt_ends_with_its_life():
    rows = [*(window(8, 160.0, t=float(i)) for i in range(2)), *(window(9, 20.0, t=2.0 + i) for i in range(2))]
    why = label(*rows, *(window(8, 160.0, t=9.0 + i, life=1) for i in range(3)))["why"].tolist()
    assert why[2:] == [rules.CHANGED, rules.PROMPT_PENDING, rules.FIRST, rules.CLEAN, rules.CLEAN]


def test_vllm_kv_usage_that_flickers_or_falls_with_the_count_is_no_exchange():
    flicker = [window(8, 160.0, t=float(i), kv=0.100 + 0.001 * (i % 2)) for i in range(5)]  # printed in 0.001
    assert label(*flicker)["why"].tolist()[1:] == [rules.CLEAN] * 4
    left = [*(window(8, 160.0, t=float(i), kv=0.100) for i in range(2)),
            *(window(7, 140.0, t=2.0 + i, kv=0.085) for i in range(3))]
    assert label(*left)["why"].tolist()[1:] == [rules.CLEAN, rules.CHANGED, rules.CLEAN, rules.CLEAN]


def test_a_prefill_delays_the_last_line_of_every_lockstep_rank_and_no_earlier_one():
    records = lockstep_lines([3, 8], 0.1)
    rows = label(*records[:6], prefill(512, t=11.0, running=3, rank="DP0 TP0"), *records[6:])
    assert rows["why"].tolist()[2:8] == [rules.CLEAN] * 2 + [rules.PREFILL_NEXT] * 2 + [rules.PREFILL_INSIDE] * 2
    order = [records[i] for i in (0, 1, 2, 3, 5, 4, 6, 7, 8, 9, 10, 11)]  # DP1 before DP0 at 8 s
    order.insert(7, prefill(512, t=12.0, running=3, rank="DP1 TP4"))  # DP1, DP0; DP0, the prefill, DP1
    rows = label(*order)
    by_rank = {rank: rows.loc[rows["rank"].eq(rank), "why"].tolist()[2:4] for rank in ("DP0 TP0", "DP1 TP4")}
    assert by_rank["DP0 TP0"] == [rules.CLEAN, rules.PREFILL_NEXT]
    assert by_rank["DP1 TP4"] == [rules.CLEAN, rules.PREFILL_INSIDE]


def test_how_long_after_a_line_a_prefill_may_have_delayed_it():
    slow = label(*steady(64, 3, rate=64.0), prefill(9, t=100, running=64))  # 20 s later, half an interval
    assert slow["why"].iloc[-1] == rules.PREFILL_NEXT
    quick = label(*[decode(8, 800.0, t=float(i)) for i in range(3)], prefill(9, t=6, running=8))
    assert quick["why"].iloc[-1] == rules.PREFILL_NEXT  # 4 s later, ten intervals: within 5 s
    late = label(*[decode(8, 800.0, t=float(i)) for i in range(3)], prefill(9, t=8, running=8))
    assert late["why"].iloc[-1] == rules.CLEAN


def test_a_frozen_used_tok_cannot_tell_the_micro_batch():
    records = [decode(68, 1200.0, t=2.0 * i, used=20800, rank=f"PP{stage} TP0") for i in range(4) for stage in (0, 1)]
    intervals = label(*records)
    assert intervals["why"].tolist()[1:] == [rules.NO_MICRO_BATCH] * 3
    assert intervals["step_s"].isna().all()


def test_lockstep_level_changes_with_any_rank():
    records = lockstep_lines([3, 8], 0.1)
    for record in records[6:]:  # from 12 s on
        record["running_req"] += 1
    rows = label(*records)
    assert rows.loc[rows["rank"].eq("DP1 TP4"), "why"].tolist()[3] == rules.CHANGED
    own = lockstep_lines([3, 8], 0.1)
    for record in own[6::2]:
        record["running_req"] += 1  # DP0 alone: 3 to 4 below 8
    rows = label(*own)
    assert rows.loc[rows["rank"].eq("DP0 TP0"), "why"].tolist()[3] == rules.CHANGED
    other = lockstep_lines([3, 8], 0.1)
    for record in other[7::2]:
        record["running_req"] += 1  # DP1 alone: DP0 prints 3 as before, its step is that of 9
    rows = label(*other)
    assert rows.loc[rows["rank"].eq("DP0 TP0"), "why"].tolist()[3] == rules.CHANGED


def test_vllm_window_before_the_end_of_a_load_is_clean():
    rows = [window(8, 160.0, t=float(i)) for i in range(3)] + [window(0, 0.0, t=3.0)]
    assert label(*rows)["why"].tolist()[1:3] == [rules.CLEAN] * 2


def pipeline(growths, *, n=68, rate=1200.0):
    """Lines of two stages: used_tok grows by the given numbers."""
    used = 100000 + np.cumsum([0, *growths])
    return [decode(n, rate, t=2.0 * i, used=int(u), rank=f"PP{stage} TP0") for i, u in enumerate(used)
            for stage in (0, 1)]


def test_a_recovered_micro_batch_must_repeat_within_5_percent():
    intervals = label(*pipeline([40 * 64, 40 * 64, 40 * 65, 40 * 32, 40 * 32, 40 * 48, 40 * 64]))
    assert intervals["running_req"].tolist()[1:] == [128, 128, 130, 64, 64, 96, 128]
    assert intervals["why"].tolist()[1:] == [rules.CLEAN] * 5 + [rules.CHANGED] * 2
    assert intervals["interval_s"].tolist()[1:3] == pytest.approx([40 * 64 / 1200] * 2)  # 40 launches of 64 requests


def test_a_falling_used_tok_gives_no_micro_batch_and_the_printed_count_no_steps():
    intervals = label(*pipeline([2560, 2560, -900, 2560]))
    assert intervals["why"].iloc[3] == rules.NO_MICRO_BATCH
    assert intervals["running_req"].iloc[3] == 68  # as printed
    uneven = label(*pipeline([40 * 64] * 5, n=32))  # 80 x the printed count
    assert uneven["n_steps"].eq(40).all()
    assert uneven["running_req"].tolist()[1:] == [128] * 5


def test_each_rank_tells_by_itself_whether_used_tok_follows_its_steps():
    frozen = [decode(5, 145.0, t=2.0 * i, used=20800, life=1) for i in range(4)]
    assert label(*steady(8, 8), *frozen)["why"].tolist()[-3:] == [rules.CLEAN] * 3


def test_three_lines_outvote_a_stall_two_do_not():
    def n_clean(count, **more):
        lines = [decode(8, 80.0, t=4 * i) for i in range(count + 1)]
        lines[-1]["decode_tok_per_s"] = 20.0
        return int(label(*lines, **more)["clean"].sum())

    assert n_clean(3) == 2
    assert n_clean(2, rule=segment.CleanRule(stall_factor=1.2)) == 2  # 0.1 s and 0.4 s: which one is the stall?


def test_ranks_are_told_by_their_tags():
    def roles(*ranks, facts=None, engine="sglang"):
        rows = samples(*(decode(4, 40.0, rank=rank) | {"engine": engine} for rank in ranks))
        return segment.describe_ranks(rows, facts)["counted_as"].tolist()

    assert roles("ATTN_CP0 TP0", "ATTN_CP1 TP1") == ["single", "copy"]
    assert roles("CP2", "CP3") == ["single", "copy"]  # the first that prints, whatever its number
    assert roles("DP0 TP0", "DP1 TP4") == ["lockstep"] * 2
    assert roles("DP0 TP0", "DP1 TP0") == ["replica"] * 2
    assert roles("DP0 TP0", "DP1 TP4", facts={0: {"dp_attention": False}}) == ["replica"] * 2
    assert roles("DP0 TP0", "DP1 TP0", facts={0: {"dp_attention": True}}) == ["lockstep"] * 2
    assert roles("DP0 TP0", "DP1 TP1", engine="vllm") == ["replica"] * 2
    assert roles("worker 7 DP0") == ["single"]


def test_a_prefill_of_a_lockstep_rank_that_never_decodes_counts():
    lines = [decode(8, 80.0, t=4 * i, rank="DP0 TP0") for i in range(4)]
    why = label(*lines[:3], prefill(9, t=9, rank="DP1 TP4"), lines[3])["why"].tolist()
    assert why[2:] == [rules.PREFILL_NEXT, rules.PREFILL_INSIDE]


def test_a_prefill_of_one_replica_leaves_the_other_alone():
    lines = [decode(8, 80.0, t=4 * i, rank=f"DP{rank} TP0") for i in range(4) for rank in (0, 1)]
    rows = label(*lines[:5], prefill(9, t=9, running=8, rank="DP0 TP0"), *lines[5:])
    assert rows.loc[rows["rank"].eq("DP1 TP0"), "why"].tolist()[1:] == [rules.CLEAN] * 3
    assert rows.loc[rows["rank"].eq("DP0 TP0"), "why"].tolist()[2:] == [rules.PREFILL_NEXT, rules.PREFILL_INSIDE]
    assert sorted(set(rows["rank_group"])) == ["DP0", "DP1"]


def test_a_line_without_a_rate_and_a_prefill_without_a_count_say_nothing():
    lines = steady(8, 4)
    lines[2]["decode_tok_per_s"] = None
    assert len(label(*lines)) == 3
    unknown = prefill(512, t=6, running=None)
    assert label(*steady(4, 4), unknown, *steady(16, 4, rate=160.0, t0=10))["episode"].eq(0).all()


def test_the_first_line_begins_at_the_first_record():
    intervals = label(prefill(512, t=0, running=0), decode(8, 10.0, t=30), decode(8, 80.0, t=34))
    assert intervals["interval_s"].tolist() == pytest.approx([30, 4])  # by stamps; 40 x 8 / 10 would be 32


def test_an_accept_length_below_one_is_not_printed_by_any_step():
    assert label(*steady(8, 4, accept=0.0))["step_s"].iloc[2] == pytest.approx(0.1)


def test_steps_and_time_of_a_line():
    assert label(decode(8, 80.0, t=0), facts=[{"decode_log_interval": 10}])["n_steps"].iloc[0] == 10
    assert label(decode(8, 80.0, t=0), facts=[{"decode_log_interval": -1}])["n_steps"].iloc[0] == 40
    rising = label(decode(8, 80.0, t=0), decode(8, 80.0, t=4), decode(16, 120.0, t=8), decode(16, 0.0, t=15))
    assert rising["interval_s"].iloc[2] == pytest.approx(40 * 12 / 120)  # 12 requests on average
    assert rising["interval_s"].iloc[3] == pytest.approx(7)  # no rate: by stamps
    rounds = label(*[decode(4, 100.0, t=float(i), used=1000 + 400 * i, accept=2.5) for i in range(4)])
    assert rounds["interval_s"].iloc[2] == pytest.approx(4.0)  # 40 rounds of 4 x 2.5 tokens at 100 tok/s


def test_used_tok_off_by_more_than_pages_and_printed_digits_explain():
    def why(growths, **more):
        used = 1000 + np.cumsum([0, *growths])
        records = [decode(4, 400.0, t=float(i), used=int(u), accept=more.get("accept")) for i, u in enumerate(used)]
        return label(*records, facts=[{"page_size": more.get("page", 1)}])["why"].tolist()[1:]

    assert why([160, 160, 160, 192, 160]) == [rules.CLEAN] * 3 + [rules.TOKENS, rules.CLEAN]
    assert why([160, 160, 160, 192, 160], page=16) == [rules.CLEAN] * 5  # 4 x 16 more or less
    assert why([160, 160, 160, 226, 160], page=16) == [rules.CLEAN] * 3 + [rules.TOKENS, rules.CLEAN]  # 66 more
    assert why([400, 400, 405, 420, 400], accept=2.5) == [rules.CLEAN] * 3 + [rules.TOKENS, rules.CLEAN]  # 2 % is 8


def test_context_is_used_tok_per_request():
    assert label(*steady(8, 3, start=800))["context_tok"].tolist() == [100, 140, 180]
    assert label(*[decode(8, 80.0, t=4 * i, used=0) for i in range(3)])["context_tok"].isna().all()


def test_vllm_window_times_steps_and_tokens():
    late = label(*[window(8, 160.0, t=t, prompt=12.8) for t in (0.0, 10.0, 20.0, 31.8, 41.8)])
    assert late["interval_s"].tolist()[1:] == pytest.approx([10, 10, 11.8, 10])  # within a fifth of a window
    assert late["prefill_tok"].iloc[1] == pytest.approx(128)
    rounded = label(*[window(8, 160.0, t=t) for t in (0.0, 1.0, 2.0, 4.0, 5.0)])
    assert rounded["interval_s"].iloc[3] == pytest.approx(2)  # stamps of whole seconds
    rounds = label(*[window(8, 160.0, t=float(i), accept=2.0, kv=0.5) for i in range(3)],
                   facts=[{"kv_pool_tokens": 16000}]).iloc[1]
    assert (rounds["step_s"], rounds["n_steps"]) == pytest.approx((0.1, 10))  # 8 x 2 / 160; 160 / 16
    assert (rounds["used_tok"], rounds["context_tok"]) == (8000, 1000)


def test_logging_interval_needs_three_lines_and_a_fifth_that_agree():
    def n_steps(growths, **more):
        used = 1000 + np.cumsum([0, *growths])
        return set(label(*[decode(4, 100.0, t=float(i), used=int(u), **more) for i, u in enumerate(used)])["n_steps"])

    assert n_steps([40] * 3) == {10}
    assert n_steps([40] * 2) == {40}
    assert n_steps([40] * 3 + [41, 42, 43] * 5) == {40}  # 3 of 18
    assert n_steps([100] * 5, accept=2.52) == {10}  # 2.5 in truth: 100 / (4 x 2.52) = 9.92


def test_logging_interval_comes_from_the_clock_where_used_tok_cannot_tell():
    def n_steps(lines):
        return set(label(*lines)["n_steps"])

    lines = [decode(8, 80.0, t=float(i)) for i in range(80)]  # steps of 0.1 s, a line a second
    assert n_steps(lines) == {10}
    assert n_steps(lines[:50]) == {40}  # less than a minute
    assert n_steps([{**line, "accept_len": 2.0} for line in lines]) == {5}  # rounds of 0.2 s
    pauses = [line for i in range(3) for line in (*[decode(8, 80.0, t=40.0 * i + j) for j in range(31)],
                                                  prefill(9, t=40.0 * i + 35, running=8))]
    assert n_steps(pauses) == {10}  # 9 s of a prompt between the last line and the next are none of it
    assert n_steps([decode(8, 0.1, t=20.0 * i) for i in range(6)]) == {1}  # a line cannot hold less than a step


def totals(*records, rank="DP0 TP0"):
    rows = label(*records)
    return rows.loc[rows["rank"].eq(rank), "running_req_total"].tolist()


def test_count_of_another_rank_is_that_of_its_nearest_line():
    def zero(n, t):
        return decode(n, 10.0 * n, t=t, rank="DP0 TP0")

    def one(n, t):
        return decode(n, 10.0 * n, t=t, rank="DP1 TP4")

    same_second = [line for n in (8, 8, 9, 9) for line in (zero(3, 0.0), one(n, 0.0))]
    assert totals(*same_second) == [11, 11, 12, 12]
    assert totals(zero(3, 0.0), one(8, 0.0), zero(3, 7.0), zero(3, 8.0), one(9, 8.0)) == [11, 12, 12]  # by time
    silent = [zero(3, 4.0 * i) for i in range(6, 12)]
    assert totals(*lockstep_lines([3, 8], 0.1), *silent) == [11] * 9 + [3] * 3  # 12 s after its last line
    within = [line for t in (0.0, 0.0, 1.0, 1.0, 1.0) for line in (zero(3, t), one(8, t))]
    assert totals(*within, zero(3, 3.0), zero(3, 5.0)) == [11] * 6 + [3]  # 2 s and 4 s, stamps of whole seconds
    slow = [line for i in range(4) for line in (zero(3, 40.0 * i), one(8, 40.0 * i + 5))]
    assert totals(*slow) == [11] * 4
