"""Deployments: ranks, stages, nodes, replicas and workers are combined as they ran, or refused in words.

Truth is the simulator's, counts read by eye from a real log (magik6k, TP4 x PP2), or hand arithmetic; tolerances are
those of the measurement (3 % per level). Would catch: copies counted twice, a micro-batch taken for all requests, the
step of a lockstep group taken from the wrong rank, two servers read as one, a node's clock in another zone.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import polars as pl
import pytest

from build import decode, no_events, prefill, samples, window
from helpers import ingest, levels, schema, segment, synth
from helpers.ingest.workers import add_labels, tell_apart
from helpers.readings.log import balance_reading, balance_table, ranks_reading, topology_reading, topology_table
from helpers.schema import NotEnoughData

TOLERANCE_FRAC = 0.03
LAW = synth.StepLaw(intercept_s=0.020, slope_s_per_req=0.0008)


def levels_of(table, facts=(), events=None):
    intervals = segment.label_intervals(table, no_events() if events is None else events, facts=facts)
    return levels.summarise_levels(intervals)


def assert_right_or_refused(found, truth, at_least):
    """Every fitted level within 3 % of the simulated step at that count, and enough of them."""
    steps = {float(row["running_req"]): row["realised_step_s"] for row in truth["levels"] if row["n_steps"] >= 100}
    fitted = found[found["is_fitted"] & found["running_req"].isin(list(steps))]
    errors = fitted["step_s"] / fitted["running_req"].map(steps) - 1
    assert len(fitted) >= at_least
    assert errors.abs().max() <= TOLERANCE_FRAC
    assert found.loc[~found["is_fitted"], "note"].ne("").all()


def simulate(levels_req=(4, 8, 16), *, seed=1, client=None, **server):
    described = {"law": LAW, "noise": synth.Noise(sigma_frac=0.01, ar1=0.5), "startup_s": 5.0} | server
    load = {"levels_req": levels_req, "output": synth.Lengths(mean_tok=500), "lead_s": 2.0} | (client or {})
    return synth.simulate(synth.Server(**described), synth.Client(**load), seed=seed)


def facts_of(simulation, **more):
    server = simulation.server
    return [{"decode_log_interval": server.decode_log_interval, "page_size": server.page_tok, "dp": server.dp_size,
             "pp": server.pp_size} | more]


# Pipeline stages


def test_stages_of_a_real_log_are_copies_and_token_growth_tells_the_concurrency(shared):
    log = ingest.read_log(shared / "logs/magik6k/sglang-tp4pp2.log")
    table = segment.topology(log.samples, log.facts).set_index("rank")
    decodes = table["n_records"] - table["n_prefills"]
    assert decodes.to_dict() == {"PP0 TP0": 94, "PP1 TP0": 94}
    assert table["used_as"].to_dict() == {"PP0 TP0": "kept", "PP1 TP0": "copy"}
    assert table["role"].to_dict() == {"PP0 TP0": "server, pipeline stage 0", "PP1 TP0": "server, pipeline stage 1"}
    assert "one of 2 micro-batches" in table.loc["PP0 TP0", "how"]
    intervals = segment.label_intervals(log.samples, log.events, facts=log.facts)
    clean = intervals[intervals["clean"]].set_index("line_no")
    # by eye: two prefills of 2 requests, then of 1 and 1, then of 1 and 15; the lines print 2, 1 and 1
    assert clean.loc[[273, 291, 545], "running_req_printed"].tolist() == [2, 1, 1]
    assert clean.loc[[273, 291, 545], "running_req"].tolist() == [4.0, 2.0, 16.0]
    assert clean.loc[545, "step_s"] == pytest.approx(16 / 140.94)


def test_log_of_one_stage_alone_is_read_like_the_whole():
    run = simulate((16, 32, 64), version="0.5.6", tp_size=4, pp_size=2)
    whole, facts = run.samples(), facts_of(run)
    expected = levels_of(whole, facts)
    assert_right_or_refused(expected, run.truth, at_least=0)
    for stage in (0, 1):
        alone = whole[whole["rank"].str.contains(f"PP{stage}")].reset_index(drop=True)
        found = levels_of(alone, facts)
        assert found["running_req"].round(3).tolist() == expected["running_req"].round(3).tolist()
        assert found["step_s"].to_numpy() == pytest.approx(expected["step_s"].to_numpy(), rel=0.005)


def test_tags_tell_copies_whatever_their_counts_say():
    rows = [decode(68 + pp, 1200.0, t=2.0 * i, used=10_000 + 2560 * i + pp, rank=f"PP{pp} TP0")
            for i in range(6) for pp in (0, 1)]
    assert segment.describe_ranks(samples(*rows))["counted_as"].tolist() == ["single", "copy"]


def test_first_stage_alone_without_the_number_of_stages_is_refused():
    table = samples(*(decode(68, 1200.0, t=2.0 * i, used=10_000 + 2560 * i, rank="PP0 TP0") for i in range(8)))
    with pytest.raises(NotEnoughData, match=r"micro-batch .* does not tell how many \(--context pp\)"):
        levels_of(table)
    assert levels_of(table, [{"pp": 2}]).query("is_fitted")["running_req"].tolist() == [128.0]


def test_stages_without_tags_are_refused():
    table = samples(*(decode(68, 1200.0, t=2.0 * (i // 2), used=10_000 + 2560 * (i // 2)) for i in range(12)))
    with pytest.raises(NotEnoughData, match="carry no stage tag"):
        levels_of(table, [{"pp": 2}])


def test_vllm_counts_the_requests_of_all_stages():
    table = samples(*(window(8, 160.0, t=float(i)) for i in range(6)))
    assert segment.describe_ranks(table, {0: {"pp": 4}})["stages"].tolist() == [1]


# Data parallel


def test_idle_lockstep_ranks_print_nothing_and_the_step_follows_the_busiest():
    run = simulate((8, 16, 32), version="0.5.10", tp_size=4, dp_size=4, dp_weights=(0.6, 0.4, 0.0, 0.0))
    table, facts = run.samples(), facts_of(run, dp_attention=True)
    busy = table[table["kind"].eq("decode") & table["running_req"].gt(1)]
    assert sorted(busy["rank"].unique()) == ["DP0 TP0", "DP1 TP1"]
    events = schema.conform(pd.DataFrame([{
        "file": "-", "line_no": int(busy["line_no"].min()) - 1, "server_life": 0, "kind": "ready", "text": ""}]),
        schema.EVENTS)
    intervals = segment.label_intervals(table, events, facts=facts)
    found = levels.summarise_levels(intervals)
    assert_right_or_refused(found, run.truth, at_least=2)
    of_the_busiest = {float(row["running_req"]) for row in run.truth["levels"]}
    assert set(found.loc[found["is_fitted"], "running_req"]) <= of_the_busiest
    balance = segment.rank_balance(intervals).set_index("rank")
    assert balance.loc["DP0 TP0", "mean_req"] > balance.loc["DP1 TP1", "mean_req"]
    assert balance.loc["DP0 TP0", "largest_frac"] > 0.8
    assert balance["token_share_frac"].sum() == pytest.approx(1.0)


def test_lines_of_rank_0_alone_say_what_is_missing():
    table = samples(*(decode(8, 80.0, t=4.0 * i, used=1000 + 320 * i, rank="DP0 TP0") for i in range(6)))
    facts = [{"dp": 8, "tp": 8, "dp_attention": True}]
    row = segment.topology(table, facts).iloc[0]
    assert "7 of 8 ranks print nothing" in row["how"]
    assert "may follow one that is not seen" in segment.combination_notes(segment.topology(table, facts))[0]
    assert "print nothing" not in segment.topology(table, [{"dp": 8, "dp_attention": False}])["how"].iloc[0]


def test_replicas_of_one_file_add_up_and_keep_their_own_step():
    run = simulate((6, 12), dp_size=1)
    one, other = run.samples(), simulate((6, 12), dp_size=1, seed=5).samples()
    both = _interleave(one.assign(rank="DP0 TP0"), other.assign(rank="DP1 TP0"))
    table = segment.topology(both)
    assert table["used_as"].tolist() == ["added", "added"]
    assert table["engine_index"].tolist() == [0, 1]
    found = levels_of(both)
    assert sorted(found["rank_group"].unique()) == ["DP0", "DP1"]
    assert_right_or_refused(found, run.truth, at_least=4)
    at_12 = found[found["running_req"].eq(12) & found["is_fitted"]]
    assert at_12["running_req_total"].to_numpy() == pytest.approx([24.0, 24.0], rel=0.1)


def test_vllm_engines_are_replicas_unless_experts_are_dealt_out_among_them():
    rows = [window(n, n / 0.05, t=10.0 * i, rank=f"DP{dp}") for i in range(6) for dp, n in enumerate((4, 8))]
    assert segment.describe_ranks(samples(*rows))["counted_as"].tolist() == ["replica"] * 2
    facts = {0: {"dp": 2, "ep": 2}}
    assert segment.describe_ranks(samples(*rows), facts)["counted_as"].tolist() == ["lockstep"] * 2
    clean = segment.label_intervals(samples(*rows), no_events(), facts=[facts[0]]).query("clean")
    assert clean["running_req"].unique().tolist() == [8.0]
    assert clean["running_req_total"].unique().tolist() == [12.0]


def test_sum_over_engines_is_not_counted_beside_them_and_says_what_it_is_alone():
    engines = [window(n, n / 0.05, t=10.0 * i, rank=rank)
               for i in range(6) for rank, n in (("DP0", 4), ("DP1", 8), (None, 12))]
    roles = segment.describe_ranks(samples(*engines)).set_index("rank")["counted_as"].to_dict()
    assert roles == {"": "copy", "DP0": "replica", "DP1": "replica"}
    alone = samples(*(row for row in engines if row["rank"] is None))
    assert "a sum over 2 engines: a step serves running_req / 2" in segment.topology(alone, [{"dp": 2}])["how"].iloc[0]


def test_two_api_servers_each_see_a_share_of_the_tokens():
    rows = [window(8, 80.0, t=10.0 * i, rank=f"DP0 API{front}") for i in range(6) for front in (0, 1)]
    with pytest.raises(NotEnoughData, match="2 API servers print, each only its share"):
        levels_of(samples(*rows))


def test_tensor_ranks_that_print_the_same_are_one():
    rows = [decode(8, 80.0 + tp / 10, t=4.0 * i, used=1000 + 320 * i, rank=f"TP{tp}")
            for i in range(6) for tp in (0, 8)]
    table = segment.describe_ranks(samples(*rows)).set_index("rank")
    assert table["counted_as"].to_dict() == {"TP0": "single", "TP8": "copy"}
    other = [decode(3, 60.0, t=4.0 * i, used=500 + 120 * i, rank="TP8") for i in range(6)]
    table = segment.describe_ranks(samples(*(rows[::2] + other))).set_index("rank")
    assert table["rank_group"].to_dict() == {"TP0": "all", "TP8": "TP8"}
    assert table["counted_as"].to_dict() == {"TP0": "single", "TP8": "replica"}


def test_vllm_engines_in_lockstep_follow_the_busiest():
    run = simulate((8, 16, 32), engine="vllm", version="0.20.2", dp_size=2, stat_interval_s=2.0, dp_weights=(0.6, 0.4))
    found = levels_of(run.samples(), [{"dp": 2, "ep": 2}])
    assert_right_or_refused(found, run.truth, at_least=3)
    assert found["running_req_total"].isin([8.0, 16.0, 32.0]).any()


def test_very_many_ranks_are_bounded_and_said():
    rows = samples(*(decode(4, 40.0, t=4.0 * (i // 100), rank=f"DP{i % 100} TP{i % 100}") for i in range(300)))
    assert segment.describe_ranks(rows)["rank_group"].unique().tolist() == ["DP0+..+DP99"]
    many = pd.concat([rows] * 5, ignore_index=True)
    many["rank"] = [f"DP{i} TP0" for i in range(len(many))]
    with pytest.raises(NotEnoughData, match="at most 1024 ranks in server life 0, found 1500"):
        segment.describe_ranks(many)


def test_scrapes_beside_the_lines_are_no_further_rank():
    lines = [decode(8, 80.0, t=4.0 * i, used=1000 + 320 * i, rank="TP0") for i in range(6)]
    scrapes = [decode(8, 80.0, t=1.0 * i) | {"kind": "counters"} for i in range(24)]
    table = segment.describe_ranks(samples(*lines, *scrapes)).set_index("rank")
    assert table["counted_as"].to_dict() == {"": "single", "TP0": "single"}
    assert table["rank_group"].to_dict() == {"": "all", "TP0": "all"}


# Several servers in one file


def _interleave(*tables):
    both = pd.concat(tables, ignore_index=True).sort_values("t_s", kind="stable", ignore_index=True)
    return both.assign(line_no=np.arange(1, len(both) + 1))


@pytest.mark.parametrize("facts", [{}, {"decode_log_interval": 40, "page_size": 1}])
@pytest.mark.parametrize("others", [((3, 9, 20), 1.0), ((4, 8, 16), 1.0), ((2,), 0.2)])
def test_two_servers_without_a_tag_are_refused_in_words(others, facts):
    levels_req, slow = others
    second = simulate(levels_req, seed=9, law=synth.StepLaw(intercept_s=0.020 / slow, slope_s_per_req=0.0008))
    both = _interleave(simulate().samples(), second.samples())
    with pytest.raises(NotEnoughData, match="several servers print here without a tag"):
        levels_of(both, [facts])
    row = segment.topology(both, [facts]).iloc[0]
    assert row["used_as"] == "not used"
    assert "process labels" in segment.combination_notes(segment.topology(both, [facts]))[0]
    assert ranks_reading(segment.topology(both).rename(columns={"used_as": "counted_as"})).endswith("1 not used.")


def test_two_servers_whose_used_tok_is_frozen_are_told_by_the_clock():
    both = _interleave(simulate().samples(), simulate((3, 9, 20), seed=9).samples())
    frozen = both.assign(used_tok=both["used_tok"].where(both["used_tok"].isna(), 4096))
    with pytest.raises(NotEnoughData, match="times the wall clock"):
        levels_of(frozen, [{"decode_log_interval": 40}])


def test_two_vllm_servers_without_a_tag_are_refused():
    by_load = [window(n, n / 0.05, t=5.0 * i, kv=kv + 0.001 * i, rank="DP0")
               for i in range(20) for n, kv in [((8, 0.1), (12, 0.3))[i % 2]]]
    with pytest.raises(NotEnoughData, match="return to the load of the one before the last"):
        levels_of(samples(*by_load))
    by_clock = [window(8, 160.0, t=5.0 * i + 2 * (i % 2), kv=0.1, rank="DP0") for i in range(20)]
    with pytest.raises(NotEnoughData, match="one of two clocks in turn"):
        levels_of(samples(*by_clock))


@pytest.mark.parametrize("preset", [
    "field_case_a", "one_line_per_step", "below_cap", "idle_gaps", "pool_full", "noisy_neighbour", "vllm_closed_loop",
])
def test_one_server_is_never_taken_for_two(preset):
    run = synth.presets.get(preset).simulate(seed=2)
    for facts in ([], facts_of(run) * 4):
        ranks = segment.describe_ranks(run.samples(), dict(enumerate(facts)))
        assert ranks["counted_as"].notna().all()


def _records(*rows):
    """Return (line_no, kind, rank, prefix) rows as ingest has them when it has read the prefixes."""
    return add_labels(pl.DataFrame(rows, schema=["line_no", "kind", "rank", "prefix"], orient="row"))


@pytest.mark.parametrize(("prefix", "tags"), [
    ("(SGLangEngine pid={}) ", ["PID7", "PID8"]), ("(head, rank=0, pid={}) [2026-01-02 03:04:05] ", ["PID7", "PID8"]),
    ("worker-{}  | ", ["WORKER0", "WORKER1"]), ("{}: [2026-01-02 03:04:05] ", ["TASK7", "TASK8"]),
    ("[1,{}]<stdout>:", ["TASK7", "TASK8"]), ("[pod/decode-{}/main] ", ["WORKER0", "WORKER1"]),
    ("Jun  7 18:32:52 host sglang[{}]: ", ["PID7", "PID8"]), ("(ApiServer_{} pid=9) INFO ", ["API7", "API8"]),
    ("2026-06-07T16:30:00.123Z stdout F (Engine pid={}) ", ["PID7", "PID8"]),
])
def test_labels_tell_two_processes_under_one_rank_apart(prefix, tags):
    rows = [(i, "decode", "TP0", prefix.format(7 + i % 2)) for i in range(6)]
    told, notes = tell_apart(_records(*rows))
    assert told["rank"].to_list() == [f"TP0 {tags[i % 2]}" for i in range(6)]
    assert "2 processes print under the same rank" in notes[0]
    assert tell_apart(_records(*((n, kind, None, p) for n, kind, _, p in rows)))[0]["rank"].unique().sort().to_list() \
        == tags


def test_labels_do_not_matter_where_one_process_prints_at_a_time():
    restart = [(i, "decode", "TP0", f"(SGLangEngine pid={7 + i // 3}) ") for i in range(6)]
    engines = [(i, "decode", f"DP{i % 2}", f"(SGLangEngine pid={7 + i % 2}) ") for i in range(6)]
    two_kinds = [(i, ("iteration", "stats")[i % 2], "DP0", f"({('EngineCore_DP0', 'APIServer')[i % 2]} pid={i % 2}) ")
                 for i in range(6)]
    for rows in (restart, engines, two_kinds):
        told, notes = tell_apart(_records(*rows))
        assert told["rank"].to_list() == [row[2] for row in rows]
        assert not notes


def test_labelled_servers_of_one_file_are_read_each_by_itself():
    run = simulate()
    second = simulate((3, 9, 20), seed=9)
    both = _interleave(run.samples().assign(rank="PID7"), second.samples().assign(rank="PID8"))
    found = levels_of(both)
    assert_right_or_refused(found[found["rank_group"].eq("PID7")], run.truth, at_least=3)
    assert_right_or_refused(found[found["rank_group"].eq("PID8")], second.truth, at_least=3)
    assert segment.topology(both)["how"].str.startswith("a server of its own in this file").all()


def test_process_that_repeats_another_is_a_copy():
    run = simulate((4,)).samples()
    both = _interleave(run.assign(rank="TASK0"), run.assign(rank="TASK1"))
    assert segment.describe_ranks(both)["counted_as"].tolist() == ["single", "copy"]


def test_prefill_worker_in_the_same_file_does_not_disturb_the_decode_worker():
    rows = [decode(8, 80.0, t=4.0 * i, used=1000 + 320 * i, rank="PID8") for i in range(6)]
    rows += [prefill(512, t=4.0 * i + 1, rank="PID7") for i in range(6)]
    both = samples(*sorted(rows, key=lambda row: row["t_s"]))
    table = segment.topology(both).set_index("rank")
    assert table["used_as"].to_dict() == {"PID7": "no decode", "PID8": "added"}
    assert segment.label_intervals(both, no_events())["clean"].sum() == 5


# Prefill and decode on different workers


def _decode_worker(run):
    """Turn a simulated log into that of a PD decode worker: no prefill lines, transfer queues on every line."""
    table = run.samples()
    table = table[table["kind"].eq("decode")].assign(transfer_req=0, prealloc_req=0, retracted_req=0)
    first = table["t_s"].diff().gt(4) | (np.arange(len(table)) == 0)
    table.loc[first, "transfer_req"] = 2
    return schema.conform(table, schema.SAMPLES)


def test_decode_worker_without_prefill_lines_is_right_or_refused():
    run = simulate((1, 4, 8, 16), prefill_fixed_s=0.0, prefill_s_per_tok=0.0,
                   client={"reply_delay_s": 0.2, "gap_s": 30.0, "prompts_per_req": 4.0})
    table = _decode_worker(run)
    row = segment.topology(table).iloc[0]
    assert row["role"] == "decode worker"
    assert "context is an upper bound" in row["how"]
    intervals = segment.label_intervals(table, no_events(), facts=facts_of(run))
    assert_right_or_refused(levels.summarise_levels(intervals), run.truth, at_least=3)
    usual = intervals.groupby("running_req")["decode_tok_per_s"].transform("median")
    waits = intervals["decode_tok_per_s"] < 0.7 * usual
    assert waits.any()  # the first line of each load holds the wait for the transfer
    assert not intervals.loc[waits, "clean"].any()


@pytest.mark.parametrize(("mode", "role"), [("decode", "decode worker"), ("null", "server"), (None, "server")])
def test_arguments_name_the_worker(mode, role):
    table = samples(*(decode(8, 80.0, t=4.0 * i, used=1000 + 320 * i) for i in range(4)))
    assert segment.topology(table, [{"disaggregation_mode": mode}])["role"].tolist() == [role]


def test_prefill_worker_has_no_step_and_says_so(tmp_path):
    line = ("[2026-06-09 22:05:{:02d} TP0] Prefill batch, #new-seq: 1, #new-token: 64, #cached-token: 0, token usage: "
            "0.00, #running-req: 0, #queue-req: 0, #bootstrap-req: 0, #inflight-req: 1, cuda graph: False, "
            "input throughput (token/s): 8.75\n")
    path = tmp_path / "prefill.log"
    path.write_text("".join(line.format(i) for i in range(5)))
    log = ingest.read_log(path)
    table = segment.topology(log.samples, log.facts)
    assert table[["role", "used_as"]].iloc[0].tolist() == ["prefill worker", "no decode"]
    assert segment.combination_notes(table) == [
        "server life 0, TP0: prompts only: there is no decode step to measure"]
    with pytest.raises(NotEnoughData, match="prefill-only worker"):
        levels_of(log.samples)


def test_router_lines_before_workers_are_no_statistics(tmp_path):
    run = simulate((4, 8))
    router = '2026-11-02 09:00:01  INFO sglang_router_rs::router: worker http://198.51.100.7:30001 is healthy, load 3'
    lines = [text for line in run.lines() for text in (line, router)]
    path = tmp_path / "router.log"
    path.write_text("\n".join(lines) + "\n")
    log = ingest.read_log(path)
    assert log.accounting.lines["malformed"] == 0
    assert len(log.samples) == len(run.samples())
    assert_right_or_refused(levels_of(log.samples, log.facts, log.events), run.truth, at_least=2)


# Nodes


def _nodes(run, first="node0/server.log", second="node1/server.log"):
    """Split a simulated lockstep server into the logs of two nodes, each with lives of its own."""
    table = run.samples()
    is_second = table["rank"].str.contains("DP[23]")
    parts = [table[~is_second].assign(file=first), table[is_second].assign(file=second, server_life=1)]
    return pd.concat(parts, ignore_index=True)


@pytest.fixture(scope="module")
def lockstep():
    return simulate((16, 32, 64), version="0.5.10", tp_size=4, dp_size=4)


def _node_facts(run, nodes=2, **differ):
    args = {"model_path": "m", "dp_size": 4, "nnodes": nodes}
    known = facts_of(run, dp_attention=True)[0]
    return [known | {"node_rank": n, "args": args | {"node_rank": n} | (differ if n else {})} for n in (0, 1)]


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("zone_s", [0.0, 7200.0, -5.75 * 3600])
def test_nodes_of_one_server_are_read_as_one(lockstep, told, zone_s):
    expected = levels_of(lockstep.samples(), facts_of(lockstep, dp_attention=True))
    split = _nodes(lockstep)
    split["t_s"] += np.where(split["server_life"].eq(1), zone_s, 0.0)
    facts = _node_facts(lockstep) if told else [{"dp_attention": True, "decode_log_interval": 40, "dp": 4}] * 2
    joined = segment.join_nodes(split, no_events(), facts)
    if zone_s and not told:  # nothing says that they belong together
        assert not joined.notes
        return
    assert joined.samples["server_life"].unique().tolist() == [0]
    found = levels_of(joined.samples, facts)
    assert found["running_req"].tolist() == expected["running_req"].tolist()
    for name in ("step_s", "running_req_total"):  # lines of one second may change places
        assert found[name].to_numpy() == pytest.approx(expected[name].to_numpy(), rel=2e-3)
    assert ("moved by" in joined.notes[0]) == bool(zone_s)
    table = segment.topology(split, facts)
    assert table["used_as"].eq("lockstep").all()
    assert table["file"].nunique() == 2
    assert f"{-zone_s / 3600:+g} h" in joined.notes[0] or not zone_s


def test_servers_of_one_folder_stay_apart(lockstep):
    split = _nodes(lockstep)
    for facts in (_node_facts(lockstep, nodes=1), _node_facts(lockstep, model_path="other")):
        assert not segment.join_nodes(split, no_events(), facts).notes
    same_names = split.assign(rank="DP0 TP0")
    assert not segment.join_nodes(same_names, no_events(), _node_facts(lockstep)).notes


def test_node_that_prints_copies_is_not_counted_twice():
    rows = [decode(68, 1200.0, t=2.0 * i, used=10_000 + 2560 * i, rank=f"PP{pp} TP0", life=pp) | {
        "file": f"node{pp}/server.log"} for pp in (0, 1) for i in range(8)]
    joined = segment.join_nodes(samples(*rows), no_events())
    assert levels_of(joined.samples).query("is_fitted")["running_req"].tolist() == [128.0]
    rows = [row | {"rank": "TP0"} for row in rows]
    joined = segment.join_nodes(samples(*rows), no_events())
    assert sorted(joined.samples["rank"].unique()) == ["TP0", "TP0 NODE1"]
    assert segment.describe_ranks(joined.samples)["counted_as"].tolist() == ["single", "copy"]


def test_arguments_of_nodes_and_workers_are_facts(tmp_path):
    dump = "[2026-02-03 04:00:00] server_args=ServerArgs(model_path='m', nnodes=2, node_rank=1, dp_size=4, " \
        "disaggregation_mode='decode', dist_init_addr='192.0.2.1:5000')\n"
    line = "[2026-02-03 04:01:00 TP0] Decode batch, #running-req: 1, #token: 101, token usage: 0.00, " \
        "gen throughput (token/s): 58.18, #queue-req: 0\n"
    (tmp_path / "a.log").write_text(dump + line)
    facts = ingest.read_log(tmp_path / "a.log").facts[0]
    assert [facts[name] for name in ("nnodes", "node_rank", "disaggregation_mode")] == [2, 1, "decode"]
    vllm = "INFO 02-03 04:00:00 [utils.py:1] non-default args: {'model': 'm', 'kv_transfer_config': " \
        "KVTransferConfig(kv_connector='NixlConnector', kv_role='kv_consumer')}\n" \
        "INFO 02-03 04:01:00 [loggers.py:1] Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg generation " \
        "throughput: 1.0 tokens/s, Running: 1 reqs, Waiting: 0 reqs, GPU KV cache usage: 0.0%\n"
    (tmp_path / "b.log").write_text(vllm)
    assert ingest.read_log(tmp_path / "b.log").facts[0]["disaggregation_mode"] == "decode"


def test_nodes_and_replicas_share_a_configuration():
    rows = [{"server_life": life, "rank_group": "all", "population": 0, "running_req": float(n), "n_clean": 9,
             "clean_s": 9.0, "method": "median_of_blocks", "is_fitted": True, "n_rejected": "{}", "note": ""}
            for life in (0, 1) for n in (1, 2, 4)]
    table = schema.conform(pd.DataFrame(rows), schema.LEVELS)
    facts = [{"args": {"tp_size": 8, "node_rank": life, "port": 30000 + life}} for life in (0, 1)]
    assert levels.keep_one_configuration(table, facts)["is_fitted"].all()
    facts[1]["args"]["tp_size"] = 4
    assert levels.keep_one_configuration(table, facts)["is_fitted"].sum() == 3


# What a reader sees


def test_imbalance_by_hand():
    rows = [decode(n, n / 0.1, t=4.0 * i, used=1000 + 40 * n * i, rank=f"DP{dp} TP{4 * dp}")
            for i in range(6) for dp, n in enumerate((3, 8))]
    balance = segment.rank_balance(segment.label_intervals(samples(*rows), no_events())).set_index("rank")
    assert balance["mean_req"].to_dict() == {"DP0 TP0": 3.0, "DP1 TP4": 8.0}
    assert balance["largest_frac"].to_dict() == {"DP0 TP0": 0.0, "DP1 TP4": 1.0}
    assert balance["token_share_frac"].to_dict() == pytest.approx({"DP0 TP0": 3 / 11, "DP1 TP4": 8 / 11}, rel=0.01)
    shown = balance_table(balance.reset_index())
    assert shown["rank"].tolist() == ["DP0 TP0", "DP1 TP4"]
    assert "45 % above the mean" in balance_reading(balance.reset_index())  # 8 over 5.5
    assert segment.rank_balance(segment.label_intervals(samples(*rows[::2]), no_events())).empty


def test_topology_is_said_in_words():
    rows = [decode(8, 80.0, t=4.0 * i, used=1000 + 320 * i, rank=f"PP{pp} TP0") for i in range(4) for pp in (0, 1)]
    found = segment.topology(samples(*rows))
    assert topology_table(found)["used as"].tolist() == ["kept", "copy"]
    assert topology_reading(found) == (
        "1 file(s), 1 server life(s), 2 rank(s): 2 x server, pipeline stage n. Used: 1 kept, 1 copy.")
    assert topology_reading(found.head(0)) == "The log holds no rank."


def test_a_request_that_has_ended_still_counts_for_one_step():
    """The overlap schedule runs one step more for it: `#running-req: 1, #token: 0` is no level."""
    run = simulate((1,), client={"output": synth.Lengths("uniform", 130, 0.5), "prompts_per_req": 40.0})
    table = run.samples()
    over = table[table["kind"].eq("decode") & table["used_tok"].eq(0)]
    assert len(over) > 0
    intervals = segment.label_intervals(table, no_events(), facts=facts_of(run))
    assert not intervals.loc[intervals["used_tok"].eq(0), "clean"].any()
    assert_right_or_refused(levels.summarise_levels(intervals), run.truth, at_least=1)
