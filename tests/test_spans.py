"""Records that carry their own time: hand-made tables with hand arithmetic, and real logs against their clients."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

from build import decode, no_events, samples, window
from helpers import ingest, levels, schema, segment
from helpers.segment import rules


def iteration(n, span_s, *, t, new=0, dummy=False, rank="DP0", out=None, life=0):
    """Return a per-iteration record: requests decoding, its time [s], stamp [s], prompt tokens in it."""
    extra = {"context requests": int(new > 0), **({"dummy": True} if dummy else {})}
    return dict(kind="iteration", engine="vllm", running_req=n, span_s=span_s, n_steps=1.0, t_s=t, new_tok=new,
                out_tok=float(n if out is None else out), rank=rank, server_life=life, extra=json.dumps(extra))


def counters(n, steps, out, *, t, span=1.0, new=0, accept=None):
    """Return a difference of two scrapes: count at its end, steps, output tokens, stamp [s], prompt tokens."""
    return dict(kind="counters", engine="vllm", running_req=n, n_steps=float(steps), out_tok=float(out), t_s=t,
                span_s=span, new_tok=new, accept_len=accept, rank="DP0", server_life=0)


def request(end, span, out, *, prompt_s=None, new=0):
    """Return a finished request: its end [s], decode time [s], output tokens, time of its prompt [s]."""
    return dict(kind="request", engine="llamacpp", t_s=end, span_s=span, out_tok=float(out), n_steps=float(out),
                new_tok=new, rank=None, server_life=0,
                extra=json.dumps({"prompt_s": prompt_s}) if prompt_s is not None else None)


def label(*records, facts=()):
    return segment.label_intervals(samples(*records), no_events(), facts=facts)


def iterations(n, steps_s, *, t0=0.0, gap_s=0.0, share=1.0):
    """Iterations of n requests after each other; stamps of whole seconds, printed times a share of the step."""
    ends = t0 + np.cumsum(np.array(steps_s) + gap_s)
    return [iteration(n, share * step_s, t=float(np.floor(end))) for step_s, end in zip(steps_s, ends, strict=True)]


def test_an_iteration_is_its_own_time_and_blocks_hold_forty_steps():
    """160 equal iterations lose the first of the life and one that stands beside it: 158 in 4 blocks."""
    table = label(*iterations(8, [0.05] * 160))
    clean = table[table["clean"]]
    assert clean["n_steps"].tolist() == [40.0, 40.0, 40.0, 39.0]
    assert clean["step_s"].tolist() == pytest.approx([0.05] * 4)
    assert table["why"].iloc[0] == rules.FIRST
    assert clean["kind"].eq("iteration").all() and clean["label"].eq("steady").all()


def test_the_median_of_blocks_keeps_the_skew_of_steps():
    """Nine steps of 0.1 s and one of 0.3 s: the median step is 0.1 s, the mean of forty 0.12 s."""
    table = levels.summarise_levels(label(*iterations(4, ([0.1] * 9 + [0.3]) * 40)))
    row = table.iloc[0]
    assert row["step_s"] == pytest.approx(0.12, rel=0.01)
    assert (row["method"], row["is_fitted"]) == ("median_of_blocks", True)


def test_prompts_their_neighbours_and_changes_of_the_count_are_not_clean():
    load = [iteration(4, 0.05, t=0)] * 4 + [iteration(4, 0.30, t=1, new=512)] + [iteration(5, 0.06, t=1)] * 4
    load += [iteration(4, 0.05, t=1)] * 3
    why = label(*load).set_index("line_no")["why"]
    assert why.to_dict() == {
        1: rules.FIRST, 3: rules.CLEAN, 4: rules.PREFILL_NEXT, 5: rules.PREFILL_INSIDE, 6: rules.PREFILL_BEFORE,
        8: rules.CLEAN, 9: rules.CHANGES_NEXT, 10: rules.CHANGED, 12: rules.CLEAN,
    }


def test_the_first_iteration_after_idle_time_is_not_clean():
    table = label(*iterations(2, [0.05] * 50), *iterations(2, [0.05] * 50, t0=60.0))
    after = table[table["t_s"] >= 60]
    assert after["why"].iloc[0] == rules.AFTER_IDLE
    assert after["idle_s"].iloc[0] == pytest.approx(60 - 2 - 0.05, abs=1.0)
    assert table["episode"].unique().tolist() == [0, 1]


def test_periodic_lines_beside_iterations_are_left_out_and_it_is_said():
    both = [*iterations(8, [0.05] * 400), window(8, 160.0, t=10.0), window(8, 160.0, t=20.0)]
    sources = segment.describe_sources(samples(*both)).set_index("source")
    assert sources["is_used"].to_dict() == {"iteration": True, "line": False}
    assert "the iteration records" in sources.loc["line", "why"]
    assert label(*both)["kind"].unique().tolist() == ["iteration"]


def test_iterations_of_a_moment_do_not_replace_the_lines_of_an_hour():
    lines = [window(8, 160.0, t=10.0 * i) for i in range(100)]
    both = samples(*iterations(8, [0.05] * 400), *lines)
    sources = segment.describe_sources(both).set_index("source")
    assert sources["is_used"].to_dict() == {"iteration": False, "line": True}
    assert "less than 50 %" in sources.loc["iteration", "why"]


def test_time_between_iterations_is_said_and_not_fitted():
    """Steps of 50 ms with 5 ms between them: the law is the engine's, a client waits 10 % longer."""
    table = levels.summarise_levels(label(*iterations(8, [0.05] * 2000, gap_s=0.005)))
    assert table["step_s"].iloc[0] == pytest.approx(0.05)
    assert "a client waits 10 % longer" in table["note"].iloc[0]
    assert table["is_fitted"].iloc[0]


def test_printed_times_that_are_only_waits_give_way_to_the_stamps():
    """Asynchronous scheduling prints the residual wait (log-formats 2.4): 16 of 40 ms; stamps of 1 s tell 40 ms."""
    table = levels.summarise_levels(label(*iterations(8, [0.040] * 2000, share=0.4)))
    row = table.iloc[0]
    assert row["step_s"] == pytest.approx(0.040, rel=0.005)
    assert row["step_s_lo"] < 0.040 < row["step_s_hi"]
    assert "only what the engine waited" in row["note"]


def test_where_the_arguments_tell_of_asynchronous_scheduling_the_printed_time_is_not_believed():
    load = iterations(8, [0.040] * 2000, share=0.9)
    told = levels.summarise_levels(label(*load, facts=[{"async_scheduling": "enabled"}]))
    silent = levels.summarise_levels(label(*load))
    assert told["step_s"].iloc[0] == pytest.approx(0.040, rel=0.005)
    assert silent["step_s"].iloc[0] == pytest.approx(0.036)


def test_short_stretches_without_a_whole_second_are_refused_with_the_reason():
    load = []
    for i in range(60):
        load += [iteration(4, 0.1, t=i, new=64), *(iteration(4, 0.01, t=i) for _ in range(10))]
    table = label(*load)
    assert not table["clean"].any()
    assert rules.NO_SECOND in set(table["why"])


def test_a_dummy_iteration_is_no_request_and_no_time_of_its_own():
    load = []
    for i in range(100):
        load += [iteration(4, 0.05, t=i // 20), iteration(0, 0.05, t=i // 20, dummy=True, rank="DP1")]
    table = label(*load, facts=[{"dp_attention": True}])
    assert set(table.loc[table["rank"].eq("DP1"), "why"]) <= {rules.DUMMY, rules.FIRST}
    assert table.loc[table["clean"], "running_req"].eq(4).all()


def test_scheduled_drafts_are_not_tokens_that_came_out():
    """63 requests schedule 252 tokens; the speculation line says 2.5 of 4 are kept: 63 x 2.5 / 50 ms."""
    spec = dict(kind="spec", engine="vllm", accept_len=2.5, t_s=10.0, rank="DP0", server_life=0)
    load = [iteration(63, 0.05, t=i // 20, out=252) for i in range(100)]
    clean = label(*load, spec).query("clean")
    assert clean["step_s"].tolist() == pytest.approx([0.05] * len(clean))
    assert clean["decode_tok_per_s"].tolist() == pytest.approx([63 * 2.5 / 0.05] * len(clean), rel=0.02)
    assert clean["accept_len"].eq(2.5).all()


def test_counters_are_their_own_interval():
    load = [counters(8, 20, 160, t=float(i)) for i in range(6)]
    table = label(*load)
    assert table["why"].tolist() == [rules.NOT_JOINED, *[rules.CLEAN] * 5]
    assert table["step_s"].tolist() == pytest.approx([0.05] * 6)


@pytest.mark.parametrize(("odd", "before", "at", "after"), [
    (counters(8, 18, 144, t=3.0, new=900), rules.PROMPT_NEXT, rules.PROMPT_INSIDE, rules.CLEAN),
    (counters(9, 20, 170, t=3.0), rules.CHANGES_NEXT, rules.CHANGED, rules.CHANGED),
    (counters(8, 30, 160, t=3.0), rules.CLEAN, rules.TOKENS_PER_STEP, rules.CLEAN),
    (counters(8, 0, 0, t=3.0), rules.CLEAN, rules.NO_TOKENS, rules.CLEAN),
])
def test_what_a_counter_record_may_hide(odd, before, at, after):
    load = [counters(8, 20, 160, t=float(i)) for i in range(6)]
    load[3] = odd
    assert label(*load)["why"].tolist()[2:5] == [before, at, after]


def test_a_missing_scrape_leaves_the_count_before_it_unknown():
    load = [counters(8, 20, 160, t=float(i)) for i in (0, 1, 2, 9, 10)]
    assert label(*load)["why"].tolist()[3:] == [rules.NOT_JOINED, rules.CLEAN]


def test_accept_length_is_in_the_tokens_per_step():
    load = [counters(8, 20, 8 * 20 * 2.5, t=float(i), accept=2.5) for i in range(4)]
    assert label(*load)["clean"].tolist() == [False, True, True, True]


def test_concurrency_is_rebuilt_from_finished_requests():
    """One request alone at 10 ms, then two at once at 15 ms, then one alone again: three pieces with their steps."""
    load = [request(1.0, 1.0, 100), request(3.5, 1.5, 100), request(3.5, 1.5, 100), request(6.0, 1.0, 100)]
    busy = label(*load).query("running_req > 0")
    assert busy["running_req"].tolist() == [1.0, 2.0, 1.0]
    assert busy["step_s"].tolist() == pytest.approx([0.010, 0.015, 0.010])
    assert busy["clean"].all()
    assert busy["decode_tok_per_s"].tolist() == pytest.approx([100.0, 2 / 0.015, 100.0])


def test_a_request_that_saw_several_counts_tells_none_of_them():
    """One decodes from 0 to 4 s, another from 2 to 4 s: the first one's mean step is neither count's."""
    table = label(request(4.0, 4.0, 320), request(4.0, 2.0, 130))
    assert table["running_req"].tolist() == [1.0, 2.0]
    assert table["why"].tolist() == [rules.OVERLAP_CHANGES, rules.CLEAN]
    assert table["step_s"].iloc[1] == pytest.approx(2 / 130)


def test_a_prompt_in_another_slot_contaminates():
    """The second prompt takes 1.5 s of the first request's 5 s of decode."""
    table = label(request(5.0, 5.0, 350), request(9.0, 4.0, 400, prompt_s=1.5, new=900))
    at = table.set_index("t_s")
    assert at.loc[5.0, "why"] == rules.PREFILL_INSIDE
    assert at.loc[5.0, "prefill_tok"] == pytest.approx(900)
    assert at.loc[3.5, "why"] == rules.OVERLAP_CHANGES  # its mean step holds the prompt's time
    assert at.loc[9.0, "why"] == rules.CLEAN


def test_requests_without_stamps_are_refused_in_words():
    lost = {**request(1.0, 1.0, 100), "t_s": None}
    with pytest.raises(schema.NotEnoughData, match="time stamp and a decode time on each of the 2 finished"):
        label(lost, lost)
    kept = label(lost, request(2.5, 1.0, 100))
    assert kept["why"].tolist() == [rules.NO_STAMP, rules.CLEAN]


def test_real_iteration_lines_against_their_client(shared):
    """The client's mean token time at 8 is 42.55 ms, its rate 187.76 tok/s; iterations take 39.9 ms in the mean.

    Read off the file: iterations 34 to 800 are one stretch of 767 with 8 requests, 30.60 s in sum; the machine was
    shared in its last fifth, so the median of blocks lies below the mean.
    """
    log = ingest.read_log(shared / "logs" / "own" / "vllm-iteration-lines" / "server.log")
    table = segment.label_intervals(log.samples, log.events, facts=list(log.facts))
    clean = table[table["clean"] & table["running_req"].eq(8) & table["t_s"].between(119, 153)]
    assert clean["n_steps"].sum() == 766  # the first stands beside a prompt
    assert (clean["n_steps"] * clean["step_s"]).sum() / 766 == pytest.approx(30.60 / 767, rel=0.002)
    assert 8 * clean["n_steps"].sum() / clean["interval_s"].sum() == pytest.approx(187.76, rel=0.01)
    found = levels.summarise_levels(table).set_index("running_req")
    assert found.loc[8.0, "step_s_lo"] <= 0.0377 <= found.loc[8.0, "step_s_hi"]
    assert "a client waits 6 % longer" in found.loc[8.0, "note"]
    assert {8.0, 16.0, 24.0} == set(found.index[found["is_fitted"]])
    assert not segment.describe_sources(log.samples).set_index("source").loc["line", "is_used"]


def test_real_finished_requests_against_their_client(shared):
    folder = shared / "logs" / "own" / "llamacpp-sweep"
    log = ingest.read_log(folder / "server.log")
    truth = pd.read_csv(folder / "truth.csv").set_index("concurrency")
    found = levels.summarise_levels(segment.label_intervals(log.samples, log.events, facts=list(log.facts)))
    found = found[found["step_s"].notna()].set_index("running_req")
    assert set(found.index) == {1.0, 2.0, 3.0, 4.0, 6.0, 8.0}
    off = found["step_s"] / (truth.loc[found.index, "itl_ms_mean"] / 1e3) - 1
    quiet = found.index[found["cv_frac"] < 0.15]
    assert off.loc[quiet].abs().max() < 0.02
    assert off.abs().max() < 0.05


def test_real_scrapes_against_the_counters_of_the_truth(shared):
    folder = shared / "logs" / "own" / "vllm-sweep"
    log = ingest.read_log(folder / "metrics_1hz.txt.gz")
    truth = pd.read_csv(folder / "truth.csv").set_index("concurrency")
    found = levels.summarise_levels(segment.label_intervals(log.samples, log.events, facts=list(log.facts)))
    found = found[found["step_s"].notna()].set_index("running_req")
    assert set(found.index) == {1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0}
    off = found["step_s"] / (truth.loc[found.index, "metrics_itl_ms_mean"] / 1e3) - 1
    assert off.abs().max() < 0.03


def test_lines_without_a_time_of_their_own_are_read_as_ever():
    lines = [decode(4, 80.0, t=2.0 * i, used=400 + 160 * i) for i in range(5)]
    table = label(*lines)
    assert table["kind"].eq("decode").all()
    assert table["clean"].sum() == 4
