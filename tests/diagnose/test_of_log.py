"""Observations from the statistic lines, each from a small table by hand: made, not made, and at its threshold."""

from __future__ import annotations

import json

import pytest

from build import decode, prefill, samples, window
from helpers.diagnose import of_log
from helpers.diagnose.observations import Observations
from helpers.schema import SAMPLES, SchemaError


def seen(*records, lives=(0,), **facts):
    """What is seen in the records, with the facts."""
    return Observations(of_log.observe(samples(*records), facts, list(lives)))


def one(found, name):
    """The only observation of a name: its value and its sentence."""
    (item,) = found.named(name)
    assert item.channel == "log" and item.source
    return item.value, item.says


def names(found):
    return {item.name for item in found}


def iteration(n, tokens):
    """A TensorRT-LLM record with its printed generation tokens."""
    return dict(kind="iteration", engine="trtllm", server_life=0, running_req=n,
                extra=json.dumps({"num_generation_tokens": tokens}))


# Queue and limit.


def test_the_share_of_records_in_which_requests_wait():
    found = seen(*[decode(8, 100, queue=2)] * 3, *[decode(8, 100)] * 7)
    assert one(found, "queue_time_frac") == (0.3, "requests wait in 30% of 10 records while others run")
    assert one(seen(*[decode(8, 100)] * 10), "queue_time_frac") == (0.0, "no request waits in any of 10 records")


@pytest.mark.parametrize("other", [decode(8, 100, queue=None), decode(0, None, queue=5), decode(8, 100, life=1),
                                   prefill(50, running=8, queue=3)])
def test_records_that_cannot_tell_do_not_count_for_the_queue(other):
    """Nine that know and any number that do not (no count, nothing runs, another life, a prefill) say nothing."""
    assert "queue_time_frac" not in names(seen(*[decode(8, 100, queue=2)] * 9, *[other] * 20))
    assert one(seen(*[decode(8, 100, queue=2)] * 10, *[other] * 20), "queue_time_frac")[0] == 1.0


def test_requests_stand_at_a_count_while_others_wait():
    found = seen(*[window(16, 100, t=i, waiting=4, kv=0.5) for i in range(6)],
                 *[window(12, 100, t=i, waiting=4, kv=0.5) for i in range(4)])
    assert one(found, "pinned_with_queue_frac") == (0.6, (
        "while requests wait, those that run stand at 16 in 60% of 10 records, with 50% of the KV pool in use"))
    assert not found.named("pinned_at_limit_frac")  # no limit is known
    # 5 of 10 are no standing still (the others differ)
    others = [window(n, 100, t=n, waiting=4, kv=0.5) for n in (9, 10, 11, 12, 13)]
    assert not seen(*[window(16, 100, t=0, waiting=4)] * 5, *others).named("pinned_with_queue_frac")


def test_four_waiting_records_say_nothing_about_a_limit():
    free = [decode(8, 100)] * 20
    assert not seen(*free, *[decode(16, 100, queue=3)] * 4, max_running_requests=16).named("pinned_with_queue_frac")
    found = seen(*free, *[decode(16, 100, queue=3)] * 5, max_running_requests=16)
    assert one(found, "pinned_with_queue_frac")[1].endswith("stand at 16 in 100% of 5 records")
    assert one(found, "queue_time_frac")[0] == pytest.approx(0.2)


@pytest.mark.parametrize(("kv", "is_seen"), [(0.90, True), (0.91, False), (None, True)])
def test_a_full_pool_explains_the_queue_instead(kv, is_seen):
    found = seen(*[window(16, 100, t=i, waiting=4, kv=kv) for i in range(10)], max_running_requests=16)
    assert bool(found.named("pinned_with_queue_frac")) is bool(found.named("pinned_at_limit_frac")) is is_seen


def test_a_count_that_others_exceed_is_no_limit():
    """1 of 50 records above it (2 %) may be counted twice; 1 of 45 (2.2 %) are more requests than the limit."""
    pinned, above = decode(16, 100, queue=3), decode(17, 100)
    assert seen(*[pinned] * 49, above).named("pinned_with_queue_frac")
    assert not seen(*[pinned] * 44, above).named("pinned_with_queue_frac")


def test_of_two_counts_seen_as_often_the_higher_one_is_the_limit():
    """Ten records each at 16 and 17 are no standing still; the higher one is looked at (and 50 % is too little)."""
    both = [decode(n, 100, queue=3) for n in (16, 17)] * 10
    assert not seen(*both, max_running_requests=16).named("pinned_at_limit_frac")
    half = [window(16, 100, t=i, waiting=4, kv=kv) for i, kv in enumerate((0.2, 0.4, 0.8) * 4)]
    assert "with 40% of the KV pool in use" in one(seen(*half), "pinned_with_queue_frac")[1]


@pytest.mark.parametrize(("limit", "value"), [(15, 0.0), (16, 1.0), (17, 1.0), (18, 0.0), (256, 0.0)])
@pytest.mark.parametrize("fact", ["max_running_requests", "slots"])
def test_the_limit_itself_or_one_below(fact, limit, value):
    found, says = one(seen(*[decode(16, 100, queue=3)] * 10, **{fact: limit}), "pinned_at_limit_frac")
    assert found == value and says.endswith(f"; the limit is {limit} in all")


def test_sglang_divides_its_limit_over_attention_ranks_and_others_do_not():
    ranks = [decode(16, 100, queue=3, rank=f"DP{i % 2} TP{i % 2}", t=i) for i in range(10)]
    facts = {"max_running_requests": 32, "dp_attention": True}
    value, says = one(seen(*ranks, engine="sglang", **facts), "pinned_at_limit_frac")
    assert value == 1.0 and says.endswith("the limit is 16 per rank")
    assert one(seen(*ranks, engine="vllm", **facts), "pinned_at_limit_frac")[0] == 0.0
    assert one(seen(*ranks, engine="sglang", max_running_requests=32), "pinned_at_limit_frac")[0] == 0.0
    # tensor ranks of one server are no data ranks: the limit is of all
    tensor = [decode(16, 100, queue=3, rank=f"TP{i % 2}", t=i) for i in range(10)]
    assert one(seen(*tensor, engine="sglang", **facts), "pinned_at_limit_frac")[0] == 0.0


# Pool.


def test_the_share_of_time_with_a_full_pool():
    found = seen(*[window(8, 100, t=i, kv=0.97) for i in range(4)], *[window(8, 100, t=i, kv=0.96) for i in range(6)])
    assert one(found, "pool_full_time_frac") == (0.4, "the KV pool is at least 97% full in 40% of 10 records")
    assert one(found, "pool_use_most_frac") == (0.97, "the KV pool is never more than 97% full")
    nine = [window(8, 100, t=i, kv=0.97) for i in range(9)]
    assert not names(seen(*nine, window(8, 100, t=9))) & {"pool_full_time_frac", "pool_use_most_frac"}


def test_the_pool_counts_where_requests_wait():
    """5 waiting records at 98 % beside 15 of low load: all of the time that matters; 4 do not tell."""
    low = [window(2, 100, t=i, kv=0.2) for i in range(15)]
    full = window(30, 100, t=20, kv=0.98, waiting=9)
    value, says = one(seen(*low, *[full] * 5), "pool_full_time_frac")
    assert value == 1.0 and says.endswith("in 100% of 5 records in which requests wait")
    value, says = one(seen(*low, *[full] * 4), "pool_full_time_frac")
    assert value == pytest.approx(4 / 19) and says.endswith("in 21% of 19 records")


def test_requests_put_back_are_counted_by_record():
    put_back = [decode(8, 100) | {"retracted_req": n} for n in (0, 2, 5, None)]
    value, says = one(seen(*put_back), "retracted_events")
    assert value == 2 and says == "2 records say that requests were put back (up to 5)"
    assert not seen(*[decode(8, 100) | {"retracted_req": 0}] * 5).named("retracted_events")
    assert not seen(decode(8, 100)).named("retracted_events")


# Ranks.


def two_ranks(a, b, *, seconds=12, queue=(0, 0)):
    """One record per rank and second."""
    return [decode(n, 100, t=i, rank=f"DP{rank} TP0", queue=q) for i in range(seconds)
            for rank, (n, q) in enumerate(zip((a, b), queue, strict=True))]


def test_ranks_are_counted_by_their_tags_or_as_told():
    assert one(seen(decode(8, 100)), "n_data_ranks") == (1, "there is one data-parallel rank")
    assert one(seen(*two_ranks(8, 8)), "n_data_ranks") == (2, "there are 2 data-parallel ranks")
    assert one(seen(decode(8, 100, rank="DP0"), dp=8), "n_data_ranks")[0] == 8
    assert one(seen(decode(8, 100, rank="TP0"), decode(8, 100, rank="TP1")), "n_data_ranks")[0] == 1
    assert not names(seen(prefill(10))) & {"n_data_ranks", "rank_spread"}


@pytest.mark.parametrize(("facts", "is_one"), [
    ({"tp": 1, "pp": 1}, True), ({"tp": 2, "pp": 1}, False), ({"tp": 1, "pp": 2}, False), ({"tp": 1}, False),
    ({}, False), ({"tp": 1, "pp": 1, "dp": 2}, False)])
def test_one_rank_has_no_other_to_wait_for(facts, is_one):
    found = seen(decode(8, 100), **facts)
    assert bool(found.named("is_one_rank")) is is_one
    assert not is_one or one(found, "is_one_rank") == (
        1.0, "one rank does everything: there is no other to wait for")


def test_the_fullest_rank_over_the_mean():
    """12 and 4 requests: 12 over a mean of 8."""
    value, says = one(seen(*two_ranks(4, 12)), "rank_spread")
    assert value == pytest.approx(1.5)
    assert says == "the fullest of 2 ranks holds 1.50 times the mean number of requests (DP1)"
    assert not seen(*two_ranks(4, 12, seconds=9)).named("rank_spread")  # nine seconds
    assert not seen(*[decode(n, 100, t=i) for i in range(30) for n in (4, 12)]).named("rank_spread")  # no tags
    assert not seen(*[item | {"t_s": None} for item in two_ranks(4, 12)]).named("rank_spread")  # no stamps
    some = [item | ({"t_s": None} if item["t_s"] == 3 else {}) for item in two_ranks(4, 12)]
    assert seen(*some).value("rank_spread") == pytest.approx(1.5)
    start = [*two_ranks(0, 0, seconds=2), *[item | {"t_s": item["t_s"] + 2} for item in two_ranks(4, 12)]]
    assert one(seen(*start), "rank_spread") == (pytest.approx(1.5), says)  # seconds without load do not count


@pytest.mark.parametrize(("loads", "is_seen"), [((2, 6), True), ((2, 5), False)])
def test_few_requests_cannot_be_even(loads, is_seen):
    """A mean of 4 per rank tells (6 / 4 = 1.5); 3.5 does not."""
    found = seen(*two_ranks(*loads))
    assert bool(found.named("rank_spread")) is is_seen
    assert not is_seen or found.value("rank_spread") == pytest.approx(1.5)


def test_a_rank_keeps_its_count_until_its_next_line_and_is_empty_after_five_silent_seconds():
    """DP1 prints every second second: 8 and 8 are even. Then it stops: for 5 seconds its last count holds."""
    every = [item for item in two_ranks(8, 8) if item["rank"] == "DP0 TP0" or item["t_s"] % 2 == 0]
    assert seen(*every).value("rank_spread") == pytest.approx(1.0)
    stopped = [item for item in two_ranks(8, 8, seconds=14) if item["rank"] == "DP0 TP0" or item["t_s"] < 4]
    # 4 seconds of 8 and 8, 4 more carried, then 6 of 8 and 0 (8 over a mean of 4): (8 x 1 + 6 x 2) / 14
    assert seen(*stopped).value("rank_spread") == pytest.approx(20 / 14)


@pytest.mark.parametrize(("loads", "queue", "share"), [
    ((12, 5), (3, 0), 1.0), ((12, 6), (3, 0), 0.0), ((12, 5), (3, 1), 0.0), ((12, 5), (0, 0), 0.0)])
def test_a_queue_beside_a_rank_with_room(loads, queue, share):
    """Room: less than half of the fullest rank's 12, and no queue of its own."""
    value, says = one(seen(*two_ranks(*loads, queue=queue)), "queue_beside_idle_ranks_frac")
    assert value == share
    assert f"in {share:.0%} of the time requests wait on one rank (DP0, mean {'3.00' if queue[0] else '0'})" in says


def test_one_rank_with_room_beside_a_full_one_without_a_queue():
    """Three ranks: DP0 waits at 12, DP1 stands at 12, DP2 has 5: one with room is enough."""
    records = [decode(n, 100, t=i, rank=f"DP{rank}", queue=q) for i in range(12)
               for rank, (n, q) in enumerate(((12, 3), (12, 0), (5, 0)))]
    assert seen(*records).value("queue_beside_idle_ranks_frac") == 1.0


# Graphs.


def test_the_time_without_a_graph_counts_by_time():
    """5 records of 32 / 320 = 0.1 s with a graph, 5 of 64 / 160 = 0.4 s without: 2.0 of 2.5 s."""
    found = seen(*[decode(32, 320)] * 5, *[decode(64, 160, graph=False)] * 5, captured_batch_sizes=[1, 8, 32])
    value, says = one(found, "fallback_time_frac")
    assert value == pytest.approx(0.8)
    assert says == ("decode ran without a graph in 80% of its time, from 64 running requests on (largest captured "
                    "size 32)")
    assert not names(found) & {"graph_always", "graph_is_off", "beyond_captured_frac"}
    several = seen(*[decode(32, 320)] * 5, *[decode(n, 160, graph=False) for n in (96, 64, 80, 48, 72)])
    assert one(several, "fallback_time_frac")[1].endswith("from 48 running requests on")
    assert not seen(*[decode(32, 320)] * 5, *[decode(64, 160, graph=False)] * 4).named("fallback_time_frac")


def test_one_stalled_record_does_not_outweigh_the_others():
    """A rate of 0.1 over 64 requests would be 640 s; it counts for ten medians of 0.1 s."""
    found = seen(*[decode(32, 320)] * 9, decode(64, 0.1, graph=False))
    assert found.value("fallback_time_frac") == pytest.approx(1.0 / 1.9)
    assert seen(*[decode(32, 320)] * 9, decode(64, 0, graph=False)).value("fallback_time_frac") == pytest.approx(0.1)


def test_always_or_never_a_graph():
    always = seen(*[decode(8, 100)] * 10)
    assert one(always, "graph_always") == (1.0, "all of 10 decode records ran a captured graph")
    never = seen(*[decode(8, 100, graph=False)] * 10)
    assert one(never, "graph_is_off") == (1.0, "no decode record of 10 ran a captured graph")
    for records in ([decode(8, 100)] * 9, [decode(8, 100, graph=False)] * 9, [decode(8, 100, graph=None)] * 30):
        assert not names(seen(*records)) & {"graph_always", "graph_is_off", "fallback_time_frac"}


def test_a_server_started_without_graphs_is_said_once():
    found = seen(*[decode(8, 100, graph=False)] * 10, engine="sglang", cuda_graph_enabled=False)
    assert one(found, "graph_is_off")[1] == "the server was started without graphs for decode"
    assert not seen(decode(8, 100), engine="sglang", cuda_graph_enabled=True).named("graph_is_off")
    assert not seen(decode(8, 100), engine="sglang").named("graph_is_off")


@pytest.mark.parametrize(("n", "share"), [(32, 0.0), (33, 0.5)])
def test_requests_beyond_the_captured_sizes_where_no_flag_is_printed(n, share):
    records = [window(n, 100, t=i) for i in range(5)] + [window(8, 100, t=i) for i in range(5)]
    value, says = one(seen(*records, captured_batch_sizes=[8, 32]), "beyond_captured_frac")
    assert value == share
    assert says == f"{share:.0%} of the records have more requests than the largest captured size 32"
    assert not seen(*records[1:], captured_batch_sizes=[8, 32]).named("beyond_captured_frac")
    assert not seen(*records).named("beyond_captured_frac")
    flagged = [decode(n, 100)] * 10
    assert not seen(*flagged, captured_batch_sizes=[8, 32]).named("beyond_captured_frac")


def test_padding_over_time():
    """12 requests run at 16: +1/3 for 12 / 120 = 0.1 s; 16 at 16: none, for 16 / 53.3 = 0.3 s. Over time 1/12."""
    both = [decode(12, 120)] * 5 + [decode(16, 160 / 3)] * 5
    value, says = one(seen(*both, captured_batch_sizes=[8, 16]), "padding_frac")
    assert value == pytest.approx(1 / 12)
    assert says == "captured sizes add 8% to the running requests, over time"
    # beyond the largest size nothing is padded: 9 records inside are too few
    beyond = [decode(12, 120)] * 9 + [decode(20, 120)] * 9
    assert not seen(*beyond, captured_batch_sizes=[8, 16]).named("padding_frac")
    assert seen(*beyond, decode(12, 120), captured_batch_sizes=[8, 16]).value("padding_frac") == pytest.approx(1 / 3)
    assert not seen(*both).named("padding_frac")


# Occupancy.


def occupied(*percents):
    return [decode(8, 100) | {"extra": json.dumps({"fwd occupancy (%)": value, "other": 1})} for value in percents]


def test_the_servers_own_timer_of_forward_kernels():
    """The median of 60 x 5, 70 x 5 and the first line's nan is 65 %."""
    value, says = one(seen(*occupied(float("nan"), *[60.0] * 5, *[70.0] * 5)), "kernels_fill_step_frac")
    assert value == pytest.approx(0.65)
    assert says == "forward kernels ran in 65% of the time by the server's own timer (10 records)"
    for few in (occupied(*[60.0] * 9), occupied(*[60.0] * 9, float("nan"), "nan"), [decode(8, 100)] * 20):
        assert not seen(*few).named("kernels_fill_step_frac")


# Drafts.


def test_whether_drafts_are_used():
    assert one(seen(*[decode(1, 50)] * 10), "uses_drafts") == (0.0, "no record speaks of drafted tokens")
    assert one(seen(*[decode(1, 50, accept=2.0)] * 10), "uses_drafts") == (1.0, "drafts are used")
    assert not seen(*[decode(1, 50)] * 9).named("uses_drafts")


@pytest.mark.parametrize(("facts", "rate", "drafted"), [
    ({"engine": "sglang", "num_draft_tokens": 4}, None, "3.00"), ({}, 0.5, "3.00"),
    ({"engine": "vllm", "num_draft_tokens": 3}, None, "3.00"),
    ({"engine": "sglang", "num_draft_tokens": 4}, 0.9, "3.00")])
def test_the_accepted_share_of_the_drafted_tokens(facts, rate, drafted):
    """2.5 tokens per round are one of the model and 1.5 of 3 drafted ones (SGLang counts the model's token too)."""
    found = seen(*[decode(4, 100, accept=2.5) | {"accept_rate_frac": rate}] * 3, **facts)
    value, says = one(found, "accepted_frac")
    assert value == pytest.approx(0.5)
    assert says == f"of {drafted} drafted tokens per request and round 50% are accepted (accept length 2.50)"


def test_how_many_were_drafted_must_be_known():
    assert not seen(*[decode(4, 100, accept=2.5)] * 12).named("accepted_frac")
    for other in (None, 0.0):
        half = [decode(4, 100, accept=2.5) | {"accept_rate_frac": rate} for rate in (0.5, other)]
        assert not seen(*half).named("accepted_frac")
    assert not seen(*[decode(4, 100)] * 12, engine="vllm", num_draft_tokens=3).named("accepted_frac")


def test_the_accepted_share_counts_by_time():
    """4 / 40 = 0.1 s at 2.0 (1/3 accepted), 4 / 400 / ... : 0.3 s at 4.0 (all): (0.1 / 3 + 0.3) / 0.4 = 5/6."""
    found = seen(decode(4, 40, accept=2.0), decode(4, 40 / 3, accept=4.0), engine="vllm", num_draft_tokens=3)
    assert found.value("accepted_frac") == pytest.approx(5 / 6)


def test_records_without_a_count_weigh_by_their_span():
    """3 s at 2.0 (1/3 accepted) and 1 s at 4.0 (all): one of them has no count: (3 / 3 + 1) / 4 = 1/2."""
    records = [decode(4, 100, accept=2.0) | {"span_s": 3.0}, decode(None, 100, accept=4.0) | {"span_s": 1.0}]
    assert seen(*records, engine="vllm", num_draft_tokens=3).value("accepted_frac") == pytest.approx(0.5)


@pytest.mark.parametrize(("high", "falls"), [(2.39, 1.0), (2.41, 0.0)])
def test_acceptance_that_falls_with_the_load(high, falls):
    """At few requests 2.0 of 3 are accepted; 70 % of that is 1.4: an accept length of 2.4."""
    records = [decode(1, 100, accept=3.0)] * 5 + [decode(16, 100, accept=high)] * 5
    facts = {"engine": "vllm", "num_draft_tokens": 3}
    value, says = one(seen(*records, **facts), "acceptance_falls_with_load")
    assert value == falls
    assert says == f"accepted share 67% at few, {'46' if falls else '47'}% at many requests"
    assert not seen(*records[1:], **facts).named("acceptance_falls_with_load")
    alike = [decode(n, 100, accept=a) for n, a in ((9, 3.0), (16, 2.0)) for _ in range(6)]
    assert not seen(*alike, **facts).named("acceptance_falls_with_load")  # 16 is less than twice 9


# Counts that are not what they say.


def test_a_used_count_that_stands_still_while_requests_decode():
    """Four lines 40 steps apart: 120 steps at one count are no page of 64."""
    found = seen(*[decode(1, 60, used=8192)] * 4)
    assert one(found, "frozen_count") == (1.0, "the used-token count stays at 8192 over 4 records while requests "
                                          "decode: it is no context (a buffer of fixed size)")
    moves = [decode(1, 60, used=n) for n in (500, 540, 580, 620, 660)]
    other_load = [decode(n, 60, used=8192) for n in (1, 1, 2, 1, 1, 1)]
    for records in ([decode(1, 60, used=8192)] * 3, moves, [decode(1, 60, used=0)] * 9, [decode(1, 60)] * 9,
                    [*[decode(1, 60, used=8192)] * 5, decode(1, 60, used=8200)], other_load):
        assert not seen(*records).named("frozen_count")


@pytest.mark.parametrize(("facts", "is_seen"), [
    ({"page_size": 159}, True), ({"page_size": 160}, False), ({"page_size": 256}, False),
    ({"decode_log_interval": 17}, True), ({"decode_log_interval": 16}, False),
    ({"page_size": None, "decode_log_interval": 16}, False),
    ({"page_size": 1, "decode_log_interval": 1}, True)])
def test_counts_in_whole_pages_stand_still_for_a_while(facts, is_seen):
    """Four pauses of 40 steps = 160 tokens in one page of 160; a page that is not known may have 64."""
    assert bool(seen(*[decode(1, 60, used=8192)] * 5, **facts).named("frozen_count")) is is_seen


def test_printed_tokens_that_count_padding():
    """11 tokens printed for 10 requests: 10 % more."""
    value, says = one(seen(*[iteration(10, 11)] * 10), "padded_count_frac")
    assert value == pytest.approx(0.1)
    assert says == ("the printed generation tokens are 10% more than the scheduled requests: they count padding up to "
                    "the captured size")
    assert seen(*[iteration(10, 10)] * 10).value("padded_count_frac") == 0.0
    for few in ([iteration(10, 11)] * 9, [iteration(10, None)] * 12, [decode(10, 11)] * 12):
        assert not seen(*few).named("padded_count_frac")


def test_another_table_is_refused():
    with pytest.raises(SchemaError):
        list(of_log.observe(samples(decode(1, 50)).drop(columns="queue_req"), {}, [0]))
    assert not list(of_log.observe(SAMPLES.empty(), {}, [0]))
