"""The clean-interval rule on hand-made lines: every rule once, with the arithmetic in sight.

Exact: reasons, labels, step times (n x accept / rate). Steady lines below follow 40 steps per line, so at N requests
used_tok grows by 40 N between two of them.
"""

import numpy as np
import pytest

from build import decode, no_events, prefill, samples, window
from helpers import schema, segment
from helpers.segment import rules


def label(*records, facts=(), rule=None):
    return segment.label_intervals(samples(*records), no_events(), facts=facts, rule=rule)


def steady(n, count, *, rate=80.0, start=1000, t0=0.0, **more):
    step_s = n / rate
    return [decode(n, rate, t=round(t0 + 40 * step_s * i), used=start + 40 * n * i, **more) for i in range(count)]


def test_steady_lines_are_clean_and_give_n_over_rate():
    intervals = label(*steady(8, 5))
    assert intervals["why"].tolist() == [rules.FIRST] + [rules.CLEAN] * 4
    assert intervals["step_s"].tolist() == pytest.approx([0.1] * 5)  # 8 / 80
    assert intervals["interval_s"].iloc[1:].tolist() == pytest.approx([4.0] * 4)  # 40 steps of 0.1 s
    assert intervals["label"].iloc[1:].eq("steady").all()


def test_speculation_gives_the_round_time():
    records = [decode(4, 100.0, t=float(i), used=1000 + 400 * i, accept=2.5) for i in range(4)]
    assert label(*records)["step_s"].iloc[2] == pytest.approx(4 * 2.5 / 100)


def test_prefill_inside_and_as_next_record_are_rejected():
    lines = steady(8, 6)
    intervals = label(*lines[:3], prefill(128, t=9, running=8), *lines[3:])
    assert intervals["why"].tolist()[2:4] == [rules.PREFILL_NEXT, rules.PREFILL_INSIDE]
    assert intervals["label"].tolist()[2:4] == ["mixed", "mixed"]
    assert intervals["prefill_tok"].tolist()[3] == 128


def test_a_prefill_long_after_the_last_line_did_not_delay_it():
    intervals = label(*steady(8, 4), prefill(128, t=200, running=0), *steady(8, 3, t0=202))
    assert intervals["why"].iloc[3] == rules.CLEAN


def test_changed_count_and_queue_and_graph_and_tokens():
    changed = label(decode(8, 80.0, t=0), decode(8, 80.0, t=4), decode(7, 80.0, t=8))
    assert changed["why"].iloc[2] == rules.CHANGED
    assert changed["label"].iloc[2] == "drain"
    queued = label(*steady(8, 3, queue=2), decode(9, 80.0, t=16, queue=2))
    assert queued["why"].tolist()[1:3] == [rules.QUEUE] * 2
    at_cap = label(*steady(8, 3, queue=2), facts=[{"max_running_requests": 8}])
    assert at_cap["why"].tolist()[1:] == [rules.CLEAN] * 2
    flags = [decode(8, 80.0, t=4 * i, used=1000 + 320 * i, graph=i != 2) for i in range(5)]
    assert label(*flags)["why"].tolist()[1:] == [rules.CLEAN, rules.GRAPH, rules.GRAPH, rules.CLEAN]
    tokens = steady(8, 8)
    tokens[4]["used_tok"] += 7  # a request of 7 tokens joined and another left
    assert label(*tokens)["why"].tolist()[4:6] == [rules.TOKENS, rules.TOKENS]


def test_frozen_used_tok_says_nothing():
    records = [decode(5, 145.0, t=2.0 * i, used=20800) for i in range(6)]  # HiSparse before 0.5.14
    assert label(*records)["why"].tolist()[1:] == [rules.CLEAN] * 5


def test_page_rounding_is_allowed():
    # page 64, 4 requests: 128 or 192 where 160 is due; the exact lines let the token rule speak at all
    used = [14656, 14784, 14976, 15136, 15296, 15456]
    records = [decode(4, 400.0, t=float(i), used=u) for i, u in enumerate(used)]
    assert label(*records, facts=[{"page_size": 64}])["why"].tolist()[1:] == [rules.CLEAN] * 5
    assert label(*records)["why"].tolist()[1:] == [rules.TOKENS] * 2 + [rules.CLEAN] * 3


def test_logging_interval_is_recovered_from_used_tok():
    records = [decode(4, 100.0, t=i, used=1000 + 4 * 10 * i) for i in range(6)]  # 10 steps a line
    intervals = label(*records)
    assert intervals["n_steps"].eq(10).all()
    assert intervals["interval_s"].iloc[1] == pytest.approx(10 * 4 / 100)
    assert label(*records, rule=segment.CleanRule(decode_log_interval=20))["n_steps"].eq(20).all()


def test_stall_is_named_and_outvoted():
    lines = steady(8, 7)
    lines[4]["decode_tok_per_s"] = 8.0  # one line ten times slower, same tokens
    intervals = label(*lines)
    assert intervals["why"].iloc[4] == rules.STALL
    assert intervals["clean"].sum() == 5


def test_idle_before_a_new_load_is_not_ramp():
    first, second = steady(4, 4), steady(16, 4, rate=160.0, t0=100)
    intervals = label(*first, prefill(512, t=98, running=0), *second)
    row = intervals.iloc[4]
    assert row["why"] == rules.AFTER_IDLE
    assert row["idle_s"] == pytest.approx(98 - 6)  # last line of the first load is stamped 6 s
    phases = segment.phase_seconds(intervals)
    assert phases["idle_s"] == pytest.approx(92)
    assert sum(phases.values()) == pytest.approx(112 + 2)  # stamps 0 to 112, and the first line's 40 x 0.05 s
    assert intervals["episode"].tolist() == [0] * 4 + [1] * 4


def test_short_first_load_is_warmup():
    warm = steady(4, 2)
    loads = [prefill(9, t=40, running=0), *steady(1, 30, t0=41), prefill(9, t=100, running=0), *steady(4, 30, t0=101)]
    intervals = label(*warm, *loads)
    assert intervals["label"].tolist()[:2] == ["warmup", "warmup"]
    assert not intervals["clean"].iloc[:2].any()


def test_cached_prompts_before_uncached_ones_are_warmup():
    warm = [prefill(8, t=0, running=0, cached=1016), *steady(8, 12, rate=100.0, t0=1)]
    load = [prefill(1024, t=80, running=0), *steady(8, 12, rate=80.0, t0=82)]
    intervals = label(*warm, *load)
    assert intervals["why"].tolist()[1:12] == [rules.WARMUP] * 11
    assert intervals.loc[intervals["clean"], "step_s"].median() == pytest.approx(0.1)


def test_server_lives_do_not_touch():
    intervals = label(*steady(8, 3), *steady(8, 3, life=1))
    assert intervals["why"].tolist()[3] == rules.FIRST


def test_pipeline_copies_are_not_counted_twice_and_the_micro_batch_is_recovered():
    records = []
    for i in range(5):  # 40 launches a line, mean micro-batch 64: used_tok grows by 2560; 2 stages: 128 requests
        for stage in (0, 1):
            records.append(decode(68, 1200.0, t=2.0 * i, used=10000 + 2560 * i, rank=f"PP{stage} TP0"))
    intervals = label(*records)
    assert len(intervals) == 5
    assert intervals.loc[intervals["clean"], "running_req"].unique().tolist() == [128.0]
    assert intervals.loc[intervals["clean"], "step_s"].iloc[0] == pytest.approx(128 / 1200)
    ranks = segment.describe_ranks(samples(*records))
    assert ranks.set_index("rank")["counted_as"].to_dict() == {"PP0 TP0": "single", "PP1 TP0": "copy"}


def lockstep_lines(counts, step_s):
    """Every rank prints its own count; all share the step of the largest."""
    records = []
    for i in range(6):
        for rank, n in enumerate(counts):
            records.append(decode(n, n / step_s, t=4.0 * i, used=1000 + 40 * n * i, rank=f"DP{rank} TP{4 * rank}"))
    return records


def test_lockstep_ranks_are_fitted_against_the_largest_and_add_up():
    intervals = label(*lockstep_lines([3, 8], 0.1))
    clean = intervals[intervals["clean"]]
    assert clean["running_req"].unique().tolist() == [8.0]
    assert clean["running_req_total"].unique().tolist() == [11.0]
    assert clean["step_s"].to_numpy() == pytest.approx(np.full(len(clean), 0.1))


def test_a_prefill_of_another_lockstep_rank_stalls_this_one():
    records = lockstep_lines([3, 8], 0.1)
    records.insert(6, prefill(512, t=11.0, running=3, rank="DP0 TP0"))
    why = label(*records).loc[lambda t: t["rank"].eq("DP1 TP4"), "why"].tolist()
    assert rules.PREFILL_INSIDE in why
    assert rules.PREFILL_NEXT in why


def test_replicas_keep_their_own_count():
    records = [decode(n, n / 0.1, t=4.0 * i, used=1000 + 40 * n * i, rank=f"DP{rank} TP0")
               for i in range(4) for rank, n in enumerate([3, 8])]
    intervals = label(*records)
    assert sorted(intervals.loc[intervals["clean"], "running_req"].unique()) == [3.0, 8.0]
    assert intervals.loc[intervals["clean"], "running_req_total"].unique().tolist() == [11.0]


def test_vllm_window_needs_no_prompt_here_and_in_the_next():
    rows = [window(8, 160.0, t=float(i)) for i in range(6)]
    rows[3]["prefill_tok_per_s"] = 128.0
    why = label(*rows)["why"].tolist()
    assert why == [rules.FIRST, rules.CLEAN, rules.PROMPT_NEXT, rules.PROMPT_INSIDE, rules.CLEAN, rules.CLEAN]


def test_vllm_prompt_in_the_making_is_not_clean():
    """A long prompt prints `prompt 0.0` until it is whole: Running rose, nothing was credited yet."""
    rows = [window(8, 160.0, t=float(i)) for i in range(3)]
    rows += [window(9, 20.0, t=3.0 + i) for i in range(4)]
    rows += [window(9, 60.0, t=7.0, prompt=4096.0)] + [window(9, 160.0, t=8.0 + i) for i in range(3)]
    why = label(*rows)["why"].tolist()
    assert why[2] == rules.PROMPT_PENDING  # the window before the rise: the scheduler had already started
    assert why[4:6] == [rules.PROMPT_PENDING] * 2
    assert why[6] == rules.PROMPT_NEXT
    assert why[8:] == [rules.CLEAN] * 3


def test_vllm_exchange_at_constant_running_shows_in_kv_usage():
    rows = [window(8, 160.0, t=float(i), kv=0.100 + 0.001 * i) for i in range(3)]
    rows += [window(8, 90.0, t=3.0 + i, kv=0.085 + 0.001 * i) for i in range(3)]  # one left, a long prompt joined
    rows += [window(8, 90.0, t=6.0, kv=0.09, prompt=2048.0), window(8, 160.0, t=7.0, kv=0.091)]
    why = label(*rows)["why"].tolist()
    assert why[3:6] == [rules.PROMPT_PENDING, rules.PROMPT_PENDING, rules.PROMPT_NEXT]


def test_vllm_stale_count_is_not_a_level():
    rows = [window(16, 220.0, t=float(i)) for i in range(4)] + [window(16, 0.0, t=4.0 + i) for i in range(3)]
    intervals = label(*rows)
    assert intervals["why"].tolist()[3:] == [rules.STOPPED] + [rules.NO_TOKENS] * 3
    assert intervals["label"].tolist()[4:] == ["idle"] * 3


def test_vllm_gap_covers_one_window():
    rows = [window(4, 80.0, t=float(i)) for i in range(4)]
    rows += [window(0, 0.0, t=4.0), window(4, 60.0, t=60.0, prompt=9.0)]
    intervals = label(*rows, window(4, 80.0, t=61.0), window(4, 80.0, t=62.0))
    assert intervals["interval_s"].iloc[5] == pytest.approx(1.0)
    assert intervals["idle_s"].iloc[5] == pytest.approx(55.0)


def test_episode_average_is_below_steady_when_the_ramp_is_long():
    ramp = [prefill(512, t=0, running=0), decode(8, 10.0, t=32, used=900)]
    table = segment.find_episodes(label(*ramp, *steady(8, 6, t0=36)))
    row = table.iloc[0]
    assert row["steady_tok_per_s"] == pytest.approx(80.0)
    assert row["average_tok_per_s"] < 60
    assert row["steady_over_average"] == pytest.approx(row["steady_tok_per_s"] / row["average_tok_per_s"])


def test_every_row_has_a_reason_and_a_label_and_order_is_kept():
    intervals = label(*steady(8, 4), prefill(9, t=17, running=8), *steady(9, 4, t0=18))
    assert intervals["why"].ne("").all()
    assert intervals["label"].isin(schema.LABELS).all()
    assert intervals["line_no"].is_monotonic_increasing


def test_no_decode_line_gives_an_empty_table():
    assert label(prefill(100, t=0)).empty


def test_shifting_time_changes_nothing_but_the_stamps():
    lines = [*steady(8, 4), prefill(9, t=17, running=8), *steady(9, 4, t0=18)]
    moved = [{**line, "t_s": line["t_s"] + 1e5} for line in lines]
    keep = [c for c in schema.INTERVALS.names if c not in ("t_s", "ts")]
    assert label(*lines)[keep].equals(label(*moved)[keep])


def test_lockstep_ranks_add_tokens_but_not_time():
    """Two ranks of 3 and 8 requests at 0.1 s: 110 tok/s together, over one wall clock."""
    row = segment.find_episodes(label(*lockstep_lines([3, 8], 0.1))).iloc[0]
    assert row["n_ranks"] == 2
    assert row["steady_tok_per_s"] == pytest.approx(110.0)
    assert row["duration_s"] == pytest.approx(24.0, abs=0.5)  # six lines of 4 s
    assert row["average_tok_per_s"] == pytest.approx(110.0, rel=0.05)


def test_seconds_per_label_of_lockstep_ranks_are_those_of_one_clock():
    intervals = label(*lockstep_lines([3, 8], 0.1))
    row, phases = segment.find_episodes(intervals).iloc[0], segment.phase_seconds(intervals)
    assert row["steady_s"] == pytest.approx(20)  # five lines of 4 s after the first
    assert {name: row[name] for name in phases if name != "idle_s"} == pytest.approx(
        {name: seconds for name, seconds in phases.items() if name != "idle_s"})
