"""The line from a server's own sums, against hand arithmetic, numpy's least squares and the simulator."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from helpers import laws, schema, synth
from helpers.schema import Fits, LawFit


def snapshot(running_req, step_s, *, rank=None, life=0, base=0.0):
    """Return a row of MOMENTS after these steps."""
    b, t = np.asarray(running_req, float), np.asarray(step_s, float)
    return {"file": "loads.jsonl", "line_no": 1, "engine": "sglang", "rank": rank, "server_life": life,
            "n": base + len(b), "sum_b": base + b.sum(), "sum_t_s": base + t.sum(), "sum_bb": base + (b * b).sum(),
            "sum_bt_s": base + (b * t).sum(), "sum_g": base + b.sum()}


def table(*rows):
    return schema.conform(pd.DataFrame(list(rows)), schema.MOMENTS)


def steps(seed=0, n=4000, intercept_s=0.02, slope_s=0.001):
    """Return counts and times of noisy steps on a line."""
    rng = np.random.default_rng(seed)
    running_req = rng.integers(1, 65, n)
    return running_req, (intercept_s + slope_s * running_req) * (1 + 0.05 * rng.standard_normal(n))


def values(fit):
    return fit["intercept_s"].value, fit["slope_s_per_req"].value


def test_hand_arithmetic():
    """1000 steps of 0.03 s at B=10 and 1000 of 0.05 s at B=30: slope 0.001, intercept 0.02."""
    b, t = [10] * 1000 + [30] * 1000, [0.03] * 1000 + [0.05] * 1000
    fit = laws.fit_moments(table(snapshot([], []), snapshot(b, t)))
    assert values(fit) == pytest.approx((0.02, 0.001), rel=1e-9)
    assert (fit.asymptote_tok_per_s, fit.half_load_req) == pytest.approx((1000.0, 20.0), rel=1e-9)
    assert np.isnan(fit["slope_s_per_req"].lo) and np.isnan(fit["slope_s_per_req"].hi)
    assert any("no interval can be given" in warning for warning in fit.warnings)


def test_it_is_least_squares_of_the_steps_between_first_and_last_snapshot():
    running_req, step_s = steps()
    slope, intercept = np.polyfit(running_req, step_s, 1)
    rows = [snapshot(running_req[:n], step_s[:n], base=1e7) for n in (0, 1000, 2500, 4000)]
    assert values(laws.fit_moments(table(*rows))) == pytest.approx((intercept, slope), rel=1e-6)


def test_ranks_are_pooled_or_fitted_alone():
    one, other = steps(1), steps(2, intercept_s=0.03)
    rows = [snapshot([], [], rank=r) for r in ("DP0", "DP1")]
    rows += [snapshot(*one, rank="DP0"), snapshot(*other, rank="DP1")]
    moments = table(*rows)
    assert laws.moment_ranks(moments) == ["DP0", "DP1"]
    assert values(laws.fit_moments(moments, rank="DP1"))[0] == pytest.approx(0.03, rel=0.02)
    pooled = laws.fit_moments(moments)
    assert pooled["intercept_s"].value == pytest.approx(0.025, rel=0.02)
    assert any("pooled over ranks" in warning for warning in pooled.warnings)


def test_a_restart_begins_anew_and_a_pair_around_it_is_not_used():
    running_req, step_s = steps()
    whole = snapshot(running_req, step_s)
    marked = table(snapshot([], []), whole, snapshot([], [], life=1), {**whole, "server_life": 1})
    assert values(laws.fit_moments(marked)) == pytest.approx((0.02, 0.001), rel=0.02)
    unmarked = table(snapshot([], []), whole, snapshot(running_req[:100], step_s[:100]))
    assert values(laws.fit_moments(unmarked)) == pytest.approx((0.02, 0.001), rel=0.02)
    assert laws.fit_moments(marked, server_lives=[1]).refused is None


@pytest.mark.parametrize(("rows", "reason"), [
    ([snapshot([4], [0.1])], "two snapshots"),
    ([snapshot([], []), snapshot([4, 8] * 50, [0.1, 0.2] * 50)], "1000 decode steps or more"),
    ([snapshot([], []), snapshot([8] * 2000, [0.1] * 2000)], "hardly varied"),
    ([snapshot([8] * 2000, [0.1] * 2000), snapshot([], [])], "two snapshots"),
])
def test_what_the_sums_cannot_tell_is_refused_in_words(rows, reason):
    fit = laws.fit_moments(table(*rows))
    assert fit.refused is not None and reason in fit.refused
    assert fit.parameters == ()


def test_it_joins_the_cross_checks_of_a_fit():
    running_req, step_s = steps()
    fits = Fits(LawFit("linear"), LawFit("linear"), (), "", crosschecks={"ols": (0.1, 0.2)})
    found = laws.crosscheck_moments(fits, table(snapshot([], []), snapshot(running_req, step_s)))
    assert list(found) == ["ols", "decode_moments"]
    assert laws.crosscheck_moments(fits, schema.MOMENTS.empty()) == {"ols": (0.1, 0.2)}


def test_sums_of_a_simulated_server_give_its_law():
    law = synth.StepLaw(intercept_s=0.02, slope_s_per_req=0.0008)
    run = synth.presets.get("dense_sweep", law=law.as_dict()).simulate(seed=5)
    rows = [f for f in run.trace.forwards if f.is_pure and f.is_ready]
    moments = table(snapshot([], []), snapshot([f.batch_req for f in rows], [f.end_s - f.start_s for f in rows]))
    assert values(laws.fit_moments(moments)) == pytest.approx((0.02, 0.0008), rel=0.01)
