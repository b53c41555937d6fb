"""What watching says of simulated servers, line by line, against the simulator's truth.

Truth is the client's: a ramp ends when all requests of a load have their first token (`synth.truth`). Clean
intervals are those of the whole log, which knows what comes after each line.
"""

import numpy as np
import pytest

from helpers import ingest, segment, synth
from helpers.watch import PHASES, Watcher

STEADY_LAW = synth.StepLaw(intercept_s=0.020, slope_s_per_req=0.0004)


def small(engine="sglang", **changes):
    """Simulate a server whose log takes a second to follow."""
    client = {"levels_req": (4, 16), "prompts_per_req": 1.0, "gap_s": 20.0,
              "output": synth.Lengths("uniform", 450, 0.1)}
    client |= {name: changes.pop(name) for name in list(changes) if hasattr(synth.Client(), name)}
    noise = synth.Noise(sigma_frac=0.01, block_steps=40)
    server = synth.Server(**{"engine": engine, "law": STEADY_LAW, "noise": noise, **changes})
    return synth.simulate(server, synth.Client(**client), seed=5)


def quick():
    """Return a watcher that judges whenever a line may prove something, and never only for a fresh count."""
    return Watcher(max_cpu_frac=0, _credit_s=0.0)


def feed(lines, block_lines, watcher=None):
    """Give the lines block by block; return the changes."""
    watcher = watcher or quick()
    changes = []
    for first in range(0, len(lines), block_lines):
        changes += watcher.take("".join(f"{line}\n" for line in lines[first : first + block_lines]).encode())
    return changes


def proofs(changes):
    """Return line number and level of every time that steady decode was declared."""
    steady = [change.values for change in changes if change.change == "phase" and change.values["phase"] == "steady"]
    return [(values["line_no"], values["level_req"]) for values in steady]


CASES = {
    "lines of 40 steps": {},
    "windows of 1 s": {"engine": "vllm", "version": "0.33.0", "stat_interval_s": 1.0, "levels_req": (8,)},
    "prompts of 2 s each": {"prefill_fixed_s": 2.0, "levels_req": (8,)},
    "lockstep ranks": {"dp_size": 2, "tp_size": 2, "levels_req": (8,)},
}


@pytest.mark.parametrize("name", CASES)
def test_steady_is_declared_within_three_clean_intervals_and_never_in_a_ramp(name, tmp_path):
    simulation = small(**CASES[name])
    simulation.write(tmp_path / "server.log")
    log = ingest.read_log(tmp_path / "server.log")
    intervals = segment.label_intervals(log.samples, log.events, facts=log.facts)
    # stamps are cut to seconds: a line of the second in which the ramp ends may be after it
    t_s = dict(zip(log.samples["line_no"], log.samples["t_s"], strict=True))
    declared = proofs(feed(simulation.lines(), 7))
    for load in simulation.truth["phases"]:
        mine = [(no, level) for no, level in declared if load["start_s"] <= t_s[no] <= load["end_s"]]
        assert mine, load["name"]
        line_no, level_req = mine[0]
        assert level_req == load["running_req"]
        assert all(t_s[no] >= np.floor(load["ramp_end_s"]) for no, _ in mine)
        rows = intervals[intervals["clean"] & intervals["t_s"].between(np.floor(load["ramp_end_s"]), load["end_s"])]
        assert rows["line_no"].le(line_no).sum() <= 3 * simulation.server.dp_size


def test_what_is_declared_does_not_depend_on_how_the_lines_come():
    lines = small(levels_req=(4,)).lines()
    first, *others = [proofs(feed(lines, block_lines)) for block_lines in (11, len(lines))]
    assert first
    assert others == [first]


def test_a_plateau_of_a_ramp_is_not_steady_with_one_line_per_step():
    """A request joins every 0.3 s: 14 equal lines of 21 ms in between, each of them clean."""
    simulation = small(decode_log_interval=1, levels_req=(8,), stagger_s=0.3, output=synth.Lengths(mean_tok=300))
    (load,) = simulation.truth["phases"]
    samples = simulation.samples()
    t_s = dict(zip(samples["line_no"], samples["t_s"], strict=True))
    declared = proofs(feed(simulation.lines(), 20))
    assert declared
    assert min(t_s[no] for no, _ in declared) >= np.floor(load["ramp_end_s"])
    assert declared[0][1] == 8


def test_phases_follow_the_load():
    # windows that hold prompts at a full batch, a batch that empties, and an end
    simulation = small("vllm", version="0.33.0", stat_interval_s=1.0, levels_req=(8,), prompts_per_req=3.0)
    changes = feed(simulation.lines(), 10)
    seen = [change.values["phase"] for change in changes if change.change == "phase"]
    assert seen[:2] == ["ramp", "steady"]
    assert set(seen) == set(PHASES)
    assert seen[-1] == "idle"


def test_the_steady_rate_is_the_true_one():
    simulation = small(levels_req=(16,))
    values = next(c.values for c in feed(simulation.lines(), 5) if c.values["phase"] == "steady")
    true_s = next(row["realised_step_s"] for row in simulation.truth["levels"] if row["running_req"] == 16)
    assert values["step_s"] == pytest.approx(true_s, rel=0.03)
    assert values["steady_tok_per_s"] == pytest.approx(16 / true_s, rel=0.03)
    assert values["needed"] is None


def test_clean_intervals_are_counted_once():
    """450 to 495 tokens of four requests are 11 lines of 40 steps; the first is no interval."""
    lines = small(levels_req=(4,)).lines()
    last = max(number for number, line in enumerate(lines) if "Decode batch, #running-req: 4" in line)
    watcher = quick()
    feed(lines[: last + 1], 12, watcher)
    for _ in range(2):
        watcher._judge(prove=False)
        assert watcher.clean_counts == {4.0: 10}


def test_a_new_server_in_the_same_log_starts_anew():
    simulation = small(levels_req=(4, 4), restart_before=(1,))
    changes = feed(simulation.lines(), 9)
    (life,) = [change.values["line_no"] for change in changes if change.change == "life"]
    declared = [no for no, _ in proofs(changes)]
    assert min(declared) < life < max(declared)
    assert changes[-1].values["server_life"] == 1


def test_memory_stays_bounded_whatever_comes():
    prefill = "[2026-11-02 09:00:{:02d}] Prefill batch, #new-seq: 1, #new-token: 8, #cached-token: 0, " \
              "token usage: 0.01, #running-req: 1, #queue-req: 0, "
    watcher = Watcher()
    for second in range(10):
        watcher.take(f"{prefill.format(second)}\nINFO: anything\n".encode() * 250)
    assert watcher.reader.n_lines == 5000
    assert len(watcher._tail) == 400


def test_judging_stops_when_its_share_of_the_cpu_is_used_up():
    lines = small(levels_req=(4,)).lines()
    watcher = Watcher(max_cpu_frac=1e-9, _credit_s=-1.0)
    feed(lines, 30, watcher)
    assert watcher.judged_s == 0.0
    assert proofs(feed(lines, 30))
