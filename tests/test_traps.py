"""Every trap of design.md 5 on a simulated server with known truth, through text and ingest.

Each case names a level at which the naive rule (median of running_req / rate over all lines with that count) or the
mean of printed rates is wrong by at least the stated amount; our level is within 3 % of the truth or refused with a
reason. Truth is the realised mean of the pure decode steps at exactly that count.
"""

import json
from dataclasses import dataclass

import numpy as np
import pytest

from helpers import ingest, levels, segment, synth

TOLERANCE_FRAC = 0.03


@dataclass(frozen=True)
class Trap:
    preset: str
    level: int
    naive: str  # median or mean
    naive_error_frac: float  # at least, in absolute terms
    seen: str  # a reason that must show among the rejected intervals


TRAPS = [
    Trap("one_line_per_step", 63, "median", 0.5, "used_tok did not grow by steps x running_req"),
    Trap("below_cap", 31, "median", 1.0, "used_tok did not grow by steps x running_req"),
    Trap("identical_warmup", 16, "mean", 0.1, "warm-up traffic"),
    Trap("lockstep_ranks", 16, "median", 0.1, "prefill inside"),
    Trap("micro_batches", 28, "median", 0.4, "prefill inside"),
    Trap("idle_gaps", 16, "mean", 0.1, "idle time inside"),
    Trap("quantised_windows", 16, "median", 0.02, "no tokens in the interval"),
    Trap("vllm_closed_loop", 64, "median", 0.15, "prompt tokens credited inside"),
    Trap("noisy_neighbour", 8, "mean", 0.04, "stall or hidden idle: step far above the level's median"),
    Trap("field_case_a", 64, "mean", 0.08, "prefill inside"),
]


@pytest.fixture(scope="module")
def read(tmp_path_factory):
    """Simulate a preset, write its log, read it back; cached per preset."""
    cache = {}

    def read_preset(name):
        if name not in cache:
            path = tmp_path_factory.mktemp(name) / "server.log"
            simulation = synth.presets.get(name).simulate(seed=3)
            simulation.write(path, path.with_suffix(".json"))
            log = ingest.read_log(path)
            intervals = segment.label_intervals(log.samples, log.events, facts=log.facts)
            cache[name] = (log, intervals, levels.summarise_levels(intervals), simulation.truth)
        return cache[name]

    return read_preset


def true_steps(truth):
    """Return level -> realised mean step [s] where at least 100 pure decode steps happened."""
    rows = [row for row in truth["levels"] if not row["is_identical"] and row["n_steps"] >= 100]
    return {float(row["running_req"]): row["realised_step_s"] for row in rows}


@pytest.mark.parametrize("trap", TRAPS, ids=lambda trap: trap.preset)
def test_the_naive_rule_falls_into_the_trap(read, trap):
    log, _, _, truth = read(trap.preset)
    rows = log.samples[log.samples["running_req"].eq(trap.level) & log.samples["decode_tok_per_s"].gt(0)]
    rate = rows["decode_tok_per_s"] / rows["accept_len"].fillna(1.0)
    naive_s = trap.level / (rate.mean() if trap.naive == "mean" else rate.median())
    steps = {float(row["running_req"]): row["realised_step_s"] for row in truth["levels"] if not row["is_identical"]}
    if trap.preset == "micro_batches":  # 64 requests run, one micro-batch of 28 is printed
        steps = {28: steps[64.0]}
    assert abs(naive_s / steps[trap.level] - 1) >= trap.naive_error_frac


@pytest.mark.parametrize("trap", TRAPS, ids=lambda trap: trap.preset)
def test_our_levels_are_right_or_refused(read, trap):
    _, intervals, table, truth = read(trap.preset)
    steps = true_steps(truth)
    fitted = table[table["is_fitted"] & table["running_req"].isin(list(steps))]
    errors = fitted["step_s"] / fitted["running_req"].map(steps) - 1
    assert errors.abs().max() <= TOLERANCE_FRAC
    assert table.loc[~table["is_fitted"], "note"].ne("").all()
    assert intervals["why"].eq(trap.seen).any()


@pytest.mark.parametrize("preset", ["dense_sweep", "healthy_moe", "vllm_sweep", "speculation", "restarts", "pool_full"])
def test_plain_servers_are_read_at_every_level_they_held(read, preset):
    _, _, table, truth = read(preset)
    levels_req = {float(n) for n in truth["client"]["levels_req"]}
    fitted = table[table["is_fitted"] & table["running_req"].isin(list(levels_req))]
    assert set(fitted["running_req"]) == levels_req
    errors = fitted["step_s"] / fitted["running_req"].map(true_steps(truth)) - 1
    assert errors.abs().max() <= TOLERANCE_FRAC


def test_graph_limit_is_told_apart(read):
    _, _, table, _ = read("graph_limit")
    fitted = table[table["is_fitted"]].set_index("running_req")
    assert fitted.loc[32.0, "graph"]
    assert not fitted.loc[64.0, "graph"]


def test_speculation_keeps_its_accept_length(read):
    _, _, table, truth = read("speculation")
    true_len = {float(r["running_req"]): r["accept_len"] for r in truth["levels"]}
    fitted = table[table["is_fitted"]]
    assert fitted["accept_len"].to_numpy() == pytest.approx(fitted["running_req"].map(true_len).to_numpy(), rel=0.02)


def test_every_rejected_interval_is_counted_in_the_levels(read):
    _, intervals, table, _ = read("field_case_a")
    busy = intervals[intervals["running_req"] > 0]
    counted = sum(sum(json.loads(text).values()) for text in table["n_rejected"])
    assert counted == int((~busy["clean"]).sum())
    assert int(table["n_clean"].sum()) == int(busy["clean"].sum())


def test_field_case_a_client_average_is_below_steady_and_the_ramp_says_why(read):
    _, intervals, _, truth = read("field_case_a")
    episodes = segment.find_episodes(intervals)
    top = episodes[episodes["peak_req"] == 64].iloc[0]
    client = next(c for c in truth["client_results"] if c["running_req"] == 64)
    # the log cannot see the last lines of a load, fewer than one logging interval of steps
    assert top["average_tok_per_s"] == pytest.approx(client["output_tok_per_s"], rel=0.05)
    assert top["steady_tok_per_s"] == pytest.approx(64 / true_steps(truth)[64.0], rel=0.03)
    assert top["average_tok_per_s"] < 0.95 * top["steady_tok_per_s"]
    assert top["ramp_s"] + top["mixed_s"] + top["drain_s"] > 0.1 * top["duration_s"]
    assert np.isfinite(top["steady_over_average"])
