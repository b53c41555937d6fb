"""Change points: found where planted, not found where there are none, refused at a trend and at too few runs.

Would catch: a spike called a step, a step one run off or more, a penalty that finds steps in noise, a drift cut into
stairs, an interval that is not that of the two segments.
"""

import time

import numpy as np
import pytest
from scipy import stats

from helpers.compare import changes
from helpers.compare.changes import MIN_SERIES, find_changes

SCATTER_FRAC = 0.02
N_SERIES = 400


def series(seed, n, *, step_frac=0.0, at=None):
    """Return n step times of 20 ms with 2 % scatter, from run `at` on changed by `step_frac`."""
    values = 0.020 * np.exp(np.random.default_rng(seed).normal(0, SCATTER_FRAC, n))
    values[n if at is None else at :] *= 1 + step_frac
    return values


@pytest.mark.parametrize("n", [6, 12, 30, 100])
def test_without_change_a_step_is_found_in_5_of_100_at_most(n):
    """Any size counts: the threshold is far below the scatter, so chance alone is tested."""
    found = [find_changes(series(seed, n), threshold_frac=0.001).verdict for seed in range(N_SERIES)]
    assert found.count("steps") + found.count("drift") <= 0.05 * N_SERIES


@pytest.mark.parametrize(("n", "most_frac"), [(30, 0.05), (200, 0.08)])
def test_without_change_heavy_tails_make_few_steps(n, most_frac):
    """t of three degrees of freedom, scaled to the same scatter: one run in 100 is beyond 4.5 of its deviations."""
    found = []
    for seed in range(N_SERIES):
        noise = np.random.default_rng(seed).standard_t(3, n) / np.sqrt(3)
        found.append(find_changes(0.02 * np.exp(SCATTER_FRAC * noise), threshold_frac=0.001).verdict)
    assert found.count("steps") <= most_frac * N_SERIES


@pytest.mark.parametrize("step_frac", [0.05, -0.05])
def test_a_step_of_5_percent_is_found_within_one_run(step_frac):
    found = [find_changes(series(seed, 24, step_frac=step_frac, at=12)) for seed in range(N_SERIES)]
    right = [r for r in found if any(abs(step.index - 12) <= 1 for step in r.steps)]
    assert len(right) >= 0.9 * N_SERIES
    covers = sum(r.steps[0].lo_frac <= step_frac <= r.steps[0].hi_frac for r in right if len(r.steps) == 1)
    # the place is chosen where the effect looks largest, so the 95 % interval covers a little less often
    assert covers >= 0.90 * sum(len(r.steps) == 1 for r in right)
    assert sum(len(r.steps) > 1 for r in found) <= 0.05 * N_SERIES


@pytest.mark.parametrize("at", [0, 1, 5, 11, 22, 23])
def test_a_single_run_of_20_percent_more_is_no_step(at):
    for seed in range(50):
        values = series(seed, 24)
        values[at] *= 1.2
        assert not [step for step in find_changes(values).steps if step.effect_frac > 0.05]


@pytest.mark.parametrize("at", [0, 11, 22])
def test_two_runs_of_20_percent_more_are_hardly_ever_a_step(at):
    """Three runs are the least that last; two beside one that is high by chance look like three."""
    called = 0
    for seed in range(50):
        values = series(seed, 24)
        values[at : at + 2] *= 1.2
        called += any(step.effect_frac > 0.05 for step in find_changes(values).steps)
    assert called <= 5


def test_a_spike_hides_no_step():
    values = series(3, 24, step_frac=0.06, at=12)
    values[[5, 17]] *= 1.25
    found = find_changes(values)
    assert [step.index for step in found.steps] == [12]
    assert found.steps[0].effect_frac == pytest.approx(0.06, abs=0.025)


def test_a_regression_that_was_mended_is_two_steps():
    values = series(1, 32)
    values[12:20] *= 1.08
    found = find_changes(values)
    assert [abs(step.index - at) <= 1 for step, at in zip(found.steps, (12, 20), strict=True)] == [True, True]
    assert found.steps[0].effect_frac > 0.05 and found.steps[1].effect_frac < -0.05


def test_a_drift_is_said_and_no_run_named():
    found = [find_changes(series(seed, 30) * np.linspace(1, 1.15, 30)) for seed in range(100)]
    drifts = [r for r in found if r.verdict == "drift"]
    assert len(drifts) >= 75
    assert all(r.steps == () and "drift" in r.sentence for r in drifts)
    assert np.median([r.drift_frac for r in drifts]) == pytest.approx(0.15, abs=0.02)


def test_the_numbers_of_one_step_are_those_of_the_two_segments():
    """Six runs of 10 or 10.2 ms, six of 11 or 11.2: an equal-variance t test of the logs, times its 7 places."""
    values = np.array([10, 10.2] * 3 + [11, 11.2] * 3) / 1e3
    (step,) = find_changes(values).steps
    oracle = stats.ttest_ind(np.log(values[6:]), np.log(values[:6]))
    lo, hi = oracle.confidence_interval(0.95)
    assert step.index == 6
    assert step.before == pytest.approx(np.sqrt(10 * 10.2) / 1e3)
    assert step.after == pytest.approx(np.sqrt(11 * 11.2) / 1e3)
    assert step.effect_frac == pytest.approx(np.sqrt(11 * 11.2 / (10 * 10.2)) - 1)
    assert (step.lo_frac, step.hi_frac) == (pytest.approx(np.expm1(lo)), pytest.approx(np.expm1(hi)))
    assert step.p == pytest.approx(7 * oracle.pvalue)


def test_runs_without_scatter_part_where_they_do():
    found = find_changes([0.020] * 5 + [0.022] * 4)
    assert [(step.index, round(step.effect_frac, 9)) for step in found.steps] == [(5, 0.1)]
    assert find_changes([0.020] * 9).verdict == "none"


def test_a_step_below_the_threshold_is_none():
    values = series(0, 60, step_frac=0.03, at=30)
    assert find_changes(values, threshold_frac=0.01).verdict == "steps"
    assert find_changes(values, threshold_frac=0.08).verdict == "none"


def test_runs_scatter_no_less_than_their_own_intervals():
    """0, 1, 0, 1 .. then 4 % more: certain where the runs are exact, not where each is known to 5 % only."""
    values = np.array([1.0, 1.01] * 3 + [1.04, 1.05] * 3)
    assert find_changes(values, [0.001] * 12).verdict == "steps"
    assert find_changes(values, [0.05] * 12).verdict == "none"
    assert find_changes(values, [np.nan] * 12) == find_changes(values)


@pytest.mark.parametrize("n", range(MIN_SERIES))
def test_too_few_runs_cannot_tell(n):
    found = find_changes(np.linspace(1, 2, n))
    assert (found.verdict, found.steps) == ("cannot_tell", ())
    assert f"{n} run" in found.sentence and str(MIN_SERIES) in found.sentence


def test_a_long_series_of_many_steps_takes_little_time():
    """1000 runs with a step of 10 % up or down every 20: more than are looked for, and all that are given are real."""
    values = series(5, 1000) * np.where(np.arange(1000) // 20 % 2, 1.1, 1.0)
    began_s = time.process_time()
    found = find_changes(values)
    assert time.process_time() - began_s < 5
    assert all(min(step.index % 20, -step.index % 20) <= 1 for step in found.steps)


def test_the_same_twice_and_the_mirror_of_the_reciprocals():
    values = series(7, 24, step_frac=0.07, at=10)
    assert find_changes(values) == find_changes(values.copy())
    there, back = find_changes(values).steps, find_changes(1 / values).steps
    assert [step.index for step in there] == [step.index for step in back] != []
    assert 1 / (1 + there[0].effect_frac) == pytest.approx(1 + back[0].effect_frac)


def test_the_unit_does_not_matter():
    values = series(7, 24, step_frac=0.07, at=10)
    a, b = find_changes(values).steps[0], find_changes(values * 1e3).steps[0]
    assert (a.index, a.p) == (b.index, pytest.approx(b.p)) and b.after == pytest.approx(1e3 * a.after)


def test_values_that_are_no_times_are_refused():
    for bad in ([1.0, 0.0, 1, 1, 1, 1], [1.0, np.nan, 1, 1, 1, 1], [1.0, -1, 1, 1, 1, 1]):
        with pytest.raises(ValueError, match="expected positive numbers"):
            find_changes(bad)
    with pytest.raises(ValueError, match="threshold_frac"):
        find_changes([1.0] * 6, threshold_frac=0)


def test_one_run_further_and_a_spike_is_a_step():
    """Three runs are the least that last: the border between the two."""
    values = series(4, 24)
    for n, expected in ((changes.MIN_RUNS - 1, 0), (changes.MIN_RUNS, 1)):
        moved = values.copy()
        moved[-n:] *= 1.2
        assert len(find_changes(moved).steps) == expected


def test_a_step_lies_between_two_times():
    """Twelve runs, 10 % slower from the seventh on: a tie on one side of it changes nothing, one across it all."""
    values = np.exp(np.random.default_rng(3).normal(0, 0.005, 12)) * np.repeat([0.020, 0.022], 6)
    plain = find_changes(values)
    assert [step.index for step in plain.steps] == [6]
    beside = [0, 1, 1, 1, 4, 5, 6, 7, 7, 9, 10, 11]
    assert [step.index for step in find_changes(values, when=beside).steps] == [6]
    across = find_changes(values, when=[0, 1, 2, 3, 4, 5, 5, 7, 8, 9, 10, 11])
    assert (across.verdict, across.steps) == ("no_order", ()) and "runs 6 to 7 have the same time" in across.sentence


def test_the_order_within_a_time_changes_no_verdict():
    """Two times with six runs each: none, a step between them, and steps that only one order shows."""
    rng = np.random.default_rng(5)
    noise = np.exp(rng.normal(0, 0.003, 12))
    when = np.repeat([0, 1], 6)
    mixed = np.tile([0.020, 0.020, 0.020, 0.022, 0.022, 0.022], 2)
    for values, verdict in ((np.full(12, 0.020), "none"), (np.repeat([0.020, 0.022], 6), "steps"), (mixed, "no_order")):
        own = values * noise
        orders = [np.concatenate([rng.permutation(6), 6 + rng.permutation(6)]) for _ in range(10)]
        found = {(one.verdict, one.sentence) for one in (find_changes(own[order], when=when) for order in orders)}
        assert len(found) == 1 and found.pop()[0] == verdict


def test_stretches_of_the_same_time():
    assert changes.same_time([1, 1, 2, 3, 3, 3]) == [(0, 2), (3, 6)] and changes.same_time([1, 2]) == []


def test_what_hangs_on_the_order_within_a_time_is_no_verdict():
    """A rise by 15 % over 12 runs: a drift if the six of one time rise too, a step after them if they fall."""
    values = 0.020 * np.linspace(1, 1.15, 12) * np.exp(np.random.default_rng(1).normal(0, 0.004, 12))
    assert find_changes(values).verdict == "drift"
    assert find_changes(values, when=[0] * 6 + [1, 2, 3, 4, 5, 6]).verdict == "no_order"


def test_without_a_place_for_a_step_nothing_is_told():
    """Of six runs a step can lie between the third and the fourth only."""
    assert find_changes([0.020] * 6, when=[0, 1, 2, 2, 4, 5]).verdict == "no_order"
    assert find_changes([0.020] * 6, when=[0, 0, 2, 3, 3, 3]).verdict == "none"
