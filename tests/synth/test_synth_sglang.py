"""What the simulated SGLang prints, against hand arithmetic and hand-written lines.

Exact: counts, layouts, numerators. A wrong denominator, an overshoot that is not counted or a KV count taken at the
wrong moment changes a literal below.
"""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest

from helpers import synth
from helpers.synth import Client, Lengths, Noise, Server, StepLaw
from helpers.synth.batch import Group, Pool
from helpers.synth.client import Request
from helpers.synth.trace import DECODE, PREFILL

TINY = dict(law=StepLaw(intercept_s=0.1, slope_s_per_req=0.05), prefill_fixed_s=0.5, prefill_s_per_tok=0.0,
            startup_s=10.0)
PAIR = Client(levels_req=(2,), n_prompts=(2,), prompt=Lengths(mean_tok=10), output=Lengths(mean_tok=5), lead_s=1.0,
              stagger_s=0.0)


def statistics(run: synth.Simulation, word: str) -> list[str]:
    return [line for line in run.lines() if f"{word} batch" in line]


def test_two_requests_without_overlap_print_what_hand_arithmetic_says():
    """Warm-up: prefill 10.0-10.5 s, 7 steps of 0.15 s to 11.55. Load: arrives 12.55, prefill to 13.05, 4 steps of 0.2.

    Ticks fall on decode forwards 2, 4, 6 (warm-up), 8 and 10. Forward 8 is the first of the load: 1 + 2 tokens over
    13.25 - 11.40 s = 1.62; forward 10: 2 * 2 tokens over 0.4 s. KV: 2 * (10 prompt + steps done).
    """
    run = synth.simulate(Server(overlap_schedule=False, decode_log_interval=2, **TINY), PAIR)
    assert statistics(run, "Decode") == [
        "[2026-11-02 09:00:10] Decode batch, #running-req: 1, #token: 8, token usage: 0.00, cuda graph: True, "
        "gen throughput (token/s): 2.50, #queue-req: 0",
        "[2026-11-02 09:00:11] Decode batch, #running-req: 1, #token: 10, token usage: 0.00, cuda graph: True, "
        "gen throughput (token/s): 6.67, #queue-req: 0",
        "[2026-11-02 09:00:11] Decode batch, #running-req: 1, #token: 12, token usage: 0.00, cuda graph: True, "
        "gen throughput (token/s): 6.67, #queue-req: 0",
        "[2026-11-02 09:00:13] Decode batch, #running-req: 2, #token: 22, token usage: 0.00, cuda graph: True, "
        "gen throughput (token/s): 1.62, #queue-req: 0",
        "[2026-11-02 09:00:13] Decode batch, #running-req: 2, #token: 26, token usage: 0.00, cuda graph: True, "
        "gen throughput (token/s): 10.00, #queue-req: 0",
    ]
    assert statistics(run, "Prefill")[1] == (
        "[2026-11-02 09:00:13] Prefill batch, #new-seq: 2, #new-token: 20, #cached-token: 0, token usage: 0.00, "
        "#running-req: 0, #queue-req: 0, #pending-token: 0, cuda graph: False, input throughput (token/s): 7.84"
    )  # 20 tokens over 13.05 - 10.50 s


def test_overlap_counts_one_overshoot_step_and_the_kv_of_the_next_forward():
    """Four real steps, then one overshoot with both requests and no KV left; #token is one step ahead."""
    run = synth.simulate(Server(decode_log_interval=1, **TINY), PAIR)
    load = run.samples().query("kind == 'decode' and running_req == 2")
    assert list(load["used_tok"]) == [24, 26, 28, 0, 0]
    assert list(load["decode_tok_per_s"][1:]) == [10.0] * 4


def test_numerator_excludes_first_tokens_and_includes_overshoot():
    """5 requests of 8 tokens, one at a time: 7 decode tokens and 1 overshoot each; warm-up the same."""
    client = Client(levels_req=(1,), n_prompts=(5,), output=Lengths(mean_tok=8))
    with_overlap = synth.simulate(Server(decode_log_interval=1, **TINY), client)
    without = synth.simulate(Server(decode_log_interval=1, overlap_schedule=False, **TINY), client)
    assert sum(with_overlap.samples().query("kind == 'decode'")["running_req"]) == 6 * 8
    assert sum(without.samples().query("kind == 'decode'")["running_req"]) == 6 * 7


def test_lines_of_every_step_tile_the_wall_clock():
    """With one line per step, the sum of N / throughput is the time from start to the last line: nothing is lost.

    Tolerance 0.5 %: %.2f of rates down to 30 tok/s rounds each interval by at most 0.02 %; the first line, 0.0x tok/s
    over the start-up, is left out.
    """
    run = synth.presets.get("one_line_per_step").simulate(seed=3)
    decode = run.samples().query("kind == 'decode'")
    rows = [f for f in run.trace.forwards if f.kind == DECODE]
    assert len(rows) == len(decode)
    tiled_s = (decode["running_req"] / decode["decode_tok_per_s"]).iloc[10:].sum()
    assert tiled_s == pytest.approx(rows[-1].print_s - rows[9].print_s, rel=0.005)


def test_printed_rate_is_tokens_over_time_since_the_line_before_even_across_idle():
    """Every printed rate, recomputed from the forwards, counter never reset by idle."""
    run = synth.presets.get("idle_gaps").simulate(seed=2)
    steps = [f for f in run.trace.forwards if f.kind == DECODE]
    printed = run.samples().query("kind == 'decode'")["decode_tok_per_s"].to_numpy()
    ends = np.array([f.print_s for f in steps])[39::40]
    tokens = np.cumsum([f.decoded_tok for f in steps])[39::40]
    assert len(printed) == len(steps) // 40
    assert np.allclose(printed[1:], np.diff(tokens) / np.diff(ends), atol=0.00501)


def test_token_count_grows_by_one_per_request_and_step():
    """Page size 1, no speculation: between lines without prefill or a finish, #token grows by interval x N."""
    run = synth.presets.get("dense_sweep").simulate(seed=1)
    decode = run.samples().query("kind == 'decode' and running_req == 32")
    grown = np.diff(decode["used_tok"].to_numpy(dtype=float))
    assert np.count_nonzero(grown == 40 * 32) >= 30
    assert set(grown[grown > 0]) == {40.0 * 32}


def test_pages_round_up_per_request():
    """Page 64, prompt 100: 3 requests hold 2 pages each until token 128, then 3."""
    client = Client(levels_req=(3,), n_prompts=(3,), prompt=Lengths(mean_tok=100), output=Lengths(mean_tok=60),
                    stagger_s=0.0)
    server = Server(decode_log_interval=1, page_size=64, overlap_schedule=False, **TINY)
    held = synth.simulate(server, client).samples().query("kind == 'decode' and running_req == 3")["used_tok"]
    assert list(held) == [3 * 128] * 28 + [3 * 192] * 30 + [0]  # 59 steps; the last frees all


LAYOUT_LINES = {
    "0.3.6": (
        "[2026-11-02 09:00:13 TP0] Prefill batch. #new-seq: 2, #new-token: 20, #cached-token: 0, "
        "cache hit rate: 0.00%, token usage: 0.00, #running-req: 0, #queue-req: 0",
        "[2026-11-02 09:00:13 TP0] Decode batch. #running-req: 2, #token: 24, token usage: 0.00, "
        "gen throughput (token/s): 10.00, #queue-req: 0",
    ),
    "0.4.3": (
        "[2026-11-02 09:00:13 TP0] Prefill batch. #new-seq: 2, #new-token: 20, #cached-token: 0, token usage: 0.00, "
        "#running-req: 0, #queue-req: 0, ",
        "[2026-11-02 09:00:13 TP0] Decode batch. #running-req: 2, #token: 24, token usage: 0.00, "
        "gen throughput (token/s): 10.00, #queue-req: 0, ",
    ),
    "0.4.6": (
        "[2026-11-02 09:00:13] Prefill batch. #new-seq: 2, #new-token: 20, #cached-token: 0, token usage: 0.00, "
        "#running-req: 0, #queue-req: 0",
        "[2026-11-02 09:00:13] Decode batch. #running-req: 2, #token: 24, token usage: 0.00, cuda graph: True, "
        "gen throughput (token/s): 10.00, #queue-req: 0",
    ),
    "0.5.4": (
        "[2026-11-02 09:00:13] Prefill batch, #new-seq: 2, #new-token: 20, #cached-token: 0, token usage: 0.00, "
        "#running-req: 0, #queue-req: 0, ",
        "[2026-11-02 09:00:13] Decode batch, #running-req: 2, #token: 24, token usage: 0.00, cuda graph: True, "
        "gen throughput (token/s): 10.00, #queue-req: 0, ",
    ),
    "0.5.9": (
        "[2026-11-02 09:00:13] Prefill batch, #new-seq: 2, #new-token: 20, #cached-token: 0, token usage: 0.00, "
        "#running-req: 0, #queue-req: 0, input throughput (token/s): 2.35, cuda graph: False",
        "[2026-11-02 09:00:13] Decode batch, #running-req: 2, #token: 24, token usage: 0.00, cuda graph: True, "
        "gen throughput (token/s): 10.00, #queue-req: 0",
    ),
    "0.5.10": (  # the rate is the previous prefill's 6 tokens over 13.05 - 10.50 s
        "[2026-11-02 09:00:13] Prefill batch, #new-seq: 2, #new-token: 20, #cached-token: 0, token usage: 0.00, "
        "#running-req: 0, #queue-req: 0, cuda graph: False, input throughput (token/s): 2.35",
        "[2026-11-02 09:00:13] Decode batch, #running-req: 2, #token: 24, token usage: 0.00, cuda graph: True, "
        "gen throughput (token/s): 10.00, #queue-req: 0",
    ),
    "0.5.23": (
        "[2026-11-02 09:00:13] Prefill batch, #new-seq: 2, #new-token: 20, #cached-token: 0, token usage: 0.00, "
        "#running-req: 0, #queue-req: 0, #pending-token: 0, cuda graph: False, input throughput (token/s): 7.84",
        "[2026-11-02 09:00:13] Decode batch, #running-req: 2, #token: 24, token usage: 0.00, cuda graph: True, "
        "gen throughput (token/s): 10.00, #queue-req: 0",
    ),
}


@pytest.mark.parametrize("version", LAYOUT_LINES)
def test_layout_of_each_version(version):
    """Whole lines as each version writes them, trailing comma and blank included."""
    run = synth.simulate(Server(version=version, overlap_schedule=False, decode_log_interval=1, **TINY), PAIR)
    prefill, decode = LAYOUT_LINES[version]
    # 0.5.9 and newer stamp a prefill when its result is read (13.05 s), older ones when it is formed (12.55 s)
    formed = version in ("0.3.6", "0.4.3", "0.4.6", "0.5.4")
    assert statistics(run, "Prefill")[1] == (prefill.replace("09:00:13", "09:00:12") if formed else prefill)
    assert statistics(run, "Decode")[8] == decode


@pytest.mark.parametrize(("version", "tags"), [
    ("0.5.2", "DP1 TP4"), ("0.5.4", "DP1 TP4 EP4"), ("0.5.23", "DP1 TP4 EP4"), ("0.4.6", "DP1 TP4"),
])
def test_rank_tags(version, tags):
    server = Server(version=version, tp_size=8, dp_size=2, ep_size=8 if "EP" in tags else 1, **TINY)
    ranks = synth.simulate(server, Client(levels_req=(8,))).samples()["rank"]
    assert set(ranks) == {tags.replace("DP1 TP4", "DP0 TP0").replace("EP4", "EP0"), tags}


def test_milliseconds_in_stamps_on_request():
    run = synth.simulate(Server(has_ms_stamps=True, overlap_schedule=False, decode_log_interval=2, **TINY), PAIR)
    assert statistics(run, "Decode")[-1].startswith("[2026-11-02 09:00:13.650]")
    assert run.samples()["t_s"].iloc[-1] == 13.65


def test_accept_length_and_both_definitions_of_the_rate():
    """Old rate: len / 4; new: (len - 1) / 3. Printed to two places."""
    client = Client(levels_req=(8,), output=Lengths(mean_tok=800))
    for version, rate in (("0.5.10", lambda length: length / 4), ("0.5.12", lambda length: (length - 1) / 3)):
        run = synth.simulate(Server(version=version, speculation=synth.Speculation(), **TINY), client, seed=5)
        decode = run.samples().query("kind == 'decode' and running_req == 8")
        assert decode["accept_len"].mean() == pytest.approx(3.0, abs=0.06)  # 4 sigma of ~70 lines of 320 rounds
        assert np.allclose(decode["accept_rate_frac"], rate(decode["accept_len"]), atol=0.0084)  # two roundings
        true_round_s = 0.1 + 8 * 0.05
        implied_s = decode["running_req"] * decode["accept_len"] / decode["decode_tok_per_s"]
        assert implied_s.median() == pytest.approx(true_round_s, rel=0.005)  # accept_len has three digits


def test_prefill_is_printed_after_the_line_it_delayed_from_0_5_9_on_and_before_it_in_older_versions():
    """The trap of one line per step, at the place where it happens: the order of the two lines differs by version."""
    for version, first in (("0.5.8", "prefill"), ("0.5.9", "decode")):
        run = synth.presets.get("one_line_per_step", version=version, noise=Noise()).simulate(seed=1)
        forwards = run.trace.forwards
        held = [a.batch_req == 63 and b.kind == PREFILL and a.print_s > a.end_s
                for a, b in zip(forwards, forwards[1:], strict=False) if a.kind == DECODE]
        kinds = run.samples()["kind"].to_numpy()
        places = np.flatnonzero(kinds == "decode")[np.flatnonzero(held)]  # one line per decode forward
        assert len(places) > 50
        step = -1 if first == "prefill" else 1
        assert set(kinds[places + step]) == {"prefill"}
        assert np.mean(kinds[places - step] == "decode") > 0.8  # else another prefill, every seventh


def test_argument_dump_holds_alarm_words_and_is_one_line():
    run = synth.presets.get("field_case_a").simulate()
    dump = [line for line in run.lines() if "server_args=" in line]
    assert len(dump) == 1 and "out of memory" in dump[0] and "context_length=1048576" in dump[0]
    assert sum("out of memory" in line for line in run.lines()) == 1


def test_retraction_lines_and_recovery():
    """Pool full: lines are printed, the pool is never exceeded, every request is still answered in full."""
    run = synth.presets.get("pool_full").simulate(seed=1)
    lines = [line for line in run.lines() if "Retract requests. #retracted_reqs: " in line]
    events = [e for e in run.truth["events"] if e["kind"] == "retraction"]
    assert len(lines) == len(events) > 3
    assert run.samples()["used_tok"].max() <= run.server.kv_pool_tok
    assert all(r["n_completed"] == r["n_prompts"] for r in run.truth["client_results"])
    first_tokens = sum(f.generated_tok - f.decoded_tok for f in run.trace.forwards)
    retracted = sum(e["retracted_req"] for e in events)
    n_requests = sum(r["n_prompts"] for r in run.truth["client_results"]) + 1
    assert first_tokens == n_requests + retracted  # a retracted request makes its next token by prefill again


def test_a_retracted_request_makes_every_token_once():
    """Without overshoot, tokens made (by prefill and decode) are the tokens asked for, retraction or not."""
    run = synth.presets.get("pool_full", overlap_schedule=False).simulate(seed=1)
    assert any(e["kind"] == "retraction" for e in run.truth["events"])
    made = sum(f.generated_tok for f in run.trace.forwards if f.is_ready)
    assert made == sum(r["output_tok"] for r in run.truth["client_results"])


def test_retraction_throws_out_the_youngest_until_twenty_steps_fit():
    """Four requests of 100 tokens in a pool of 400: 3 x 20 steps need 60 free, which throwing out one gives."""
    server = Server(kv_pool_tok=400)
    group = Group(0, server, Pool(400, 1), deque(Request(i, 0, 100, 50, False) for i in range(4)))
    server_batch = group.admit(4)
    assert [request.number for request, *_ in server_batch] == [0, 1, 2]  # the fourth needs a free page to decode
    group.pool.size_tok = 10_000
    for request, *_ in server_batch + group.admit(4):
        group.join(request)
    group.pool.size_tok = 400
    thrown, gained_tok = group.retract()
    assert [request.number for request in thrown] == [3] and gained_tok == 100
    group.pool.size_tok = 305
    thrown, gained_tok = group.retract()
    assert [request.number for request in thrown] == [2] and gained_tok == 100  # 105 free for 2 requests
    assert [request.number for request in group.waiting] == [2, 3]
    small = Group(0, server, Pool(10_000, 1), deque(Request(i, 0, 10, 50, False) for i in range(4)))
    for request, *_ in small.admit(4):
        small.join(request)
    small.pool.size_tok = 40
    assert len(small.retract()[0]) == 3  # 10 free < 3 x 20, 20 < 2 x 20, 30 > 20


def test_out_of_memory_ends_the_log_with_a_size():
    run = synth.simulate(Server(out_of_memory_at_req=16, out_of_memory_bytes=63 * 262208 * 64 * 4), Client())
    text = run.text
    assert "Tried to allocate 3.94 GiB" in text and text.rstrip().endswith("one child failed.")
    assert [r["n_completed"] for r in run.truth["client_results"]][2:] == [0, 0]
    assert run.truth["client_results"][3]["duration_s"] is None


def test_restarts_begin_new_lives_with_new_counters():
    run = synth.presets.get("restarts").simulate()
    table = run.samples()
    assert set(table["server_life"]) == {0, 1, 2}
    assert sum("fired up" in line for line in run.lines()) == 3
    for life in (0, 1, 2):
        rows = [f for f in run.trace.forwards if f.life == life and f.kind == DECODE]
        assert len(table.query(f"server_life == {life} and kind == 'decode'")) == len(rows) // 40
    ends = [phase["end_s"] for phase in run.truth["phases"]]
    starts = [event["t_s"] for event in run.truth["events"] if event["kind"] == "start"]
    assert starts == [0.0, ends[1] + run.client.gap_s, ends[3] + run.client.gap_s]


def test_stages_print_copies_of_one_micro_batch():
    """PP 2: two lines per tick, #token of both micro-batches: +40 launches x mean micro-batch between lines."""
    run = synth.presets.get("micro_batches").simulate(seed=4)
    decode = run.samples().query("kind == 'decode'")
    first, second = (decode[decode["rank"] == rank] for rank in ("PP0 TP0", "PP1 TP0"))
    assert (first["used_tok"].to_numpy() == second["used_tok"].to_numpy()).all()
    assert np.allclose(first["decode_tok_per_s"], second["decode_tok_per_s"], rtol=0.004)
    tail = first.iloc[-8:]
    assert set(np.diff(tail["used_tok"])) == {40 * 64}  # 128 requests in two micro-batches
    assert set(tail["running_req"]) in ({60}, {68})  # even interval: always the same micro-batch


def test_an_idle_rank_prints_nothing_and_the_largest_rank_sets_the_step():
    server = Server(tp_size=2, dp_size=2, dp_weights=(1.0, 0.0), **TINY)
    run = synth.simulate(server, Client(levels_req=(4,)))
    assert set(run.samples().query("t_s > 20")["rank"]) == {"DP0 TP0"}
    uneven = synth.presets.get("lockstep_ranks", noise=Noise()).simulate()
    law, sizes = uneven.server.law, uneven.server.captured_batch_sizes
    pure = [f for f in uneven.trace.forwards if f.is_pure]
    assert len(pure) > 10_000
    largest: dict[float, int] = {}
    for f in pure:
        largest[f.start_s] = max(largest.get(f.start_s, 0), f.batch_req)
    assert all(f.step_req == largest[f.start_s] for f in pure)
    for f in pure:
        padded = min(s for s in sizes if s >= f.step_req)
        assert f.end_s - f.start_s == pytest.approx(law.step_s(padded), rel=1e-9)


def test_a_prefill_on_one_rank_stalls_the_others_without_a_line_of_theirs():
    run = synth.presets.get("lockstep_ranks").simulate()
    stalled = [f for f in run.trace.forwards if f.kind == DECODE and not f.is_pure and f.is_ready]
    assert len(stalled) > 100
    assert all(not f.graph and f.end_s - f.start_s >= 0.030 for f in stalled)


def test_identical_prompts_are_cached_after_the_first():
    run = synth.presets.get("identical_warmup").simulate()
    prefill = run.samples().query("kind == 'prefill'")
    assert prefill["cached_tok"].sum() == 47 * 255  # 48 warm-up prompts of 256, the first computed, 1 token each since
    assert run.trace.forwards[-1].used_tok == 0


def test_batches_beyond_the_captured_sizes_say_so():
    decode = synth.presets.get("graph_limit").simulate().samples().query("kind == 'decode'")
    assert not decode.query("running_req > 32")["graph"].any()
    assert decode.query("running_req <= 32")["graph"].all()


def test_chunks_of_a_long_prompt_print_one_line_each():
    client = Client(levels_req=(1,), n_prompts=(1,), prompt=Lengths(mean_tok=2500), output=Lengths(mean_tok=4))
    run = synth.simulate(Server(chunked_prefill_tok=1000, **TINY), client)
    lines = statistics(run, "Prefill")[1:]
    assert [line.split("#new-token: ")[1].split(",")[0] for line in lines] == ["1000", "1000", "500"]
    assert [line.split("#pending-token: ")[1].split(",")[0] for line in lines] == ["1500", "500", "0"]
    assert all("#new-seq: 1," in line for line in lines)
