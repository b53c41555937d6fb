"""Levels and law so far: bounded memory that loses no time and no step, and the same answer as a whole log gives."""

import io
import json
import re

import numpy as np
import pandas as pd
import pytest
from live_server import simulate
from rich.console import Console

from helpers import ingest, laws, levels, schema, segment
from helpers.watch import LevelsSoFar, Watcher, block, law, words


def intervals(running_req, step_s, n_steps=40.0, **more):
    """Clean intervals of one rank, one row per step time [s]."""
    step_s = np.asarray(step_s, float)
    rows = pd.DataFrame({
        "file": "a", "line_no": np.arange(len(step_s)) + 1, "server_life": 0, "engine": "sglang", "kind": "decode",
        "rank_group": "all", "running_req_printed": int(running_req), "running_req": float(running_req),
        "running_req_total": float(running_req), "n_steps": n_steps, "step_s": step_s, "interval_s": n_steps * step_s,
        "idle_s": 0.0, "prefill_tok": 0.0, "decode_tok_per_s": running_req / step_s, "episode": 0, "label": "steady",
        "clean": True, "why": "decode only, constant batch", **more,
    })
    return schema.conform(rows, schema.INTERVALS)


def test_rows_stay_bounded_and_sums_stay_exact():
    """3000 rows of 40 steps, of 10 and 30 ms in turn, are 120,000 steps and 2400 s."""
    so_far = LevelsSoFar()
    for _ in range(30):
        so_far.add(intervals(4, [0.010, 0.030] * 50), 0)
    (rows,) = so_far._rows.values()
    assert len(rows) <= law.MAX_ROWS
    assert rows["n_steps"].sum() == 120_000
    assert rows["interval_s"].sum() == pytest.approx(40 * 0.020 * 3000)
    # neighbours were summed, so every row that is left shows the mean, weighted by steps
    assert rows["step_s"].iloc[0] == pytest.approx(0.020)
    assert rows["decode_tok_per_s"].iloc[0] == pytest.approx(4 / 0.020)
    so_far.fit()
    (level,) = so_far.level_values()
    assert level["n_clean"] == 3000
    assert level["clean_s"] == pytest.approx(2400.0)


def test_a_mean_is_weighted_by_steps_and_ranks_are_not_mixed():
    """10 steps of 10 ms and 30 of 30 ms are 40 steps of 25 ms."""
    pair = pd.concat([intervals(2, [0.010], 10.0), intervals(2, [0.030], 30.0)], ignore_index=True)
    merged = law._summed(pair, 40.0)
    assert merged["step_s"].tolist() == pytest.approx([0.025])
    assert merged["n_steps"].tolist() == [40.0]
    two_ranks = pd.concat([intervals(2, [0.010], rank="DP0"), intervals(2, [0.030], rank="DP1")], ignore_index=True)
    assert law._summed(two_ranks, 80.0)["step_s"].tolist() == [0.010, 0.030]
    two_flags = pd.concat([intervals(2, [0.010], graph=True), intervals(2, [0.030], graph=False)], ignore_index=True)
    assert law._summed(two_flags, 80.0)["step_s"].tolist() == [0.010, 0.030]


def test_the_level_with_least_clean_time_goes_first(monkeypatch):
    monkeypatch.setattr(law, "MAX_LEVELS", 3)
    so_far = LevelsSoFar()
    for running_req, n in ((1, 5), (2, 2), (4, 5), (8, 5)):
        so_far.add(intervals(running_req, [0.02] * n), 0)
    assert sorted(level for _, level in so_far._rows) == [1.0, 4.0, 8.0]


def test_a_fit_is_due_when_a_level_is_new_or_has_grown_by_a_tenth():
    so_far = LevelsSoFar()
    assert not so_far.is_due
    so_far.add(intervals(4, [0.02] * 40), 0)
    assert so_far.is_due
    so_far.fit()
    so_far.add(intervals(4, [0.02] * 3), 0)
    assert not so_far.is_due  # 43 of 40
    so_far.add(intervals(4, [0.02]), 0)
    assert so_far.is_due  # 44


def test_levels_and_law_are_those_of_the_whole_log_and_true(tmp_path):
    """The simulator's law is 20 ms + 0.5 ms per request; with two levels none is claimed."""
    simulation = simulate((1, 2, 4, 16), mean_tok=700)
    simulation.write(tmp_path / "a.log")
    log = ingest.read_log(tmp_path / "a.log")
    whole = levels.summarise_levels(segment.label_intervals(log.samples, log.events, facts=log.facts))
    whole = whole[whole["is_fitted"]].set_index("running_req")
    watcher, found = Watcher(max_cpu_frac=0, _credit_s=1e9), []
    lines = simulation.lines()
    for first in range(0, len(lines), 25):
        found += watcher.take("".join(f"{line}\n" for line in lines[first : first + 25]).encode())
    found += watcher.finish()
    of_changes = [change.values for change in found if change.change == "law"]
    assert "expected 3 or more levels" in of_changes[0]["law"]["refused"]
    json.dumps(of_changes, allow_nan=False)
    fitted = {level["running_req"]: level for level in of_changes[-1]["levels"] if level["is_fitted"]}
    assert list(fitted) == [1.0, 2.0, 4.0, 16.0]
    for running_req, level in fitted.items():
        # the tail knows less of what comes after a line: an interval more or less at the ends of a level
        assert abs(level["n_clean"] - whole.loc[running_req, "n_clean"]) <= 2
        assert level["step_s"] == pytest.approx(whole.loc[running_req, "step_s"], rel=0.005)
        assert level["step_s_lo"] < level["step_s"] < level["step_s_hi"]
    of_log, of_watch = laws.fit_laws(whole.reset_index()).selected, of_changes[-1]["law"]
    assert (of_watch["law"], of_watch["refused"], of_watch["n_levels"]) == ("linear", None, 4)
    for name, true in (("intercept_s", 0.020), ("slope_s_per_req", 0.0005)):
        parameter = of_watch["parameters"][name]
        assert parameter["value"] == pytest.approx(of_log[name].value, rel=0.02)
        # noise is a seed's: a tenth of the 95 % interval's width is granted on either side
        slack = 0.1 * (parameter["hi"] - parameter["lo"])
        assert parameter["lo"] - slack < true < parameter["hi"] + slack


def shown(watcher, width):
    """Return the block as text."""
    console = Console(file=io.StringIO(), width=width, height=40, force_terminal=False)
    picture = block.Block("server\x1b[2J.log", console)
    picture.look(watcher)
    console.print(picture.render())
    return console.file.getvalue()


def test_the_block_says_every_number_with_its_unit_and_fits_a_narrow_terminal():
    watcher = Watcher(max_cpu_frac=0, _credit_s=1e9)
    watcher.levels.add(pd.concat([intervals(n, (0.02 + 0.001 * n) * np.tile([1.0, 1.01], 20)) for n in (1, 4, 16)]), 0)
    watcher.levels.fit()
    watcher.state.alarm_counts["retraction"] = 3
    watcher._alarms.append({"alarm": "retraction", "line_no": 7, "text": "KV cache pool is full\x1b[31m [bold]x"})
    text = shown(watcher, 100)
    assert "\x1b" not in text
    # 20 ms + 1 ms per request, half of the steps 1 % longer
    assert re.search(r"law       step = 20\.1 ms \[\S+, \S+\] \+ N x 1\.0[01] ms/req \[\S+, \S+\] \(", text)
    assert "(3 levels, 95 % intervals)" in text
    assert "retraction 3x" in text and "[bold]x" in text
    assert all(len(line) <= 60 for line in shown(watcher, 60).splitlines())
    assert words.level_rows(watcher.status())[2][1] == "16"


def test_more_levels_than_the_terminal_has_lines_are_cut_from_below():
    watcher = Watcher()
    watcher.clean_counts = {float(n): 2 for n in range(1, 60)}
    console = Console(file=io.StringIO(), width=80, height=24, force_terminal=False)
    picture = block.Block("a.log", console)
    picture.look(watcher)
    console.print(picture.render())
    text = console.file.getvalue()
    assert len(text.splitlines()) <= 24
    assert "49 lower levels are not shown" in text
    assert " 59 " in text


def test_intervals_that_are_counted_and_not_estimated_yet_are_told_apart():
    """Estimated from 40, counted 44; two groups of ranks at one total of 8 hold 20 each, and none is behind."""
    watcher = Watcher(max_cpu_frac=0, _credit_s=1e9)
    watcher.levels.add(intervals(4, np.full(40, 0.02)), 0)
    for group in ("prefill", "decode"):
        watcher.levels.add(intervals(8, np.full(20, 0.02), rank_group=group), 0)
    watcher.levels.fit()
    watcher.clean_counts = {4.0: 44, 8.0: 40}
    assert [row[1:3] for row in words.level_rows(watcher.status())] == [
        ("4", "40 of 44"), ("8", "20"), ("8", "20")]


def test_an_ended_server_needs_its_next_start_and_says_so_undimmed():
    watcher = Watcher()
    status = {**watcher.status(), "ended": "crash", "needed": "the newest interval is not clean: running_req changed"}
    assert words.needed(status) == "the next start of the server"
    phase = dict(block.rows(status))["phase"]
    assert "dim" not in str(phase.style) and str(phase.spans[-1].style) == "bold red"
