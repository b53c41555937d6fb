import math
from dataclasses import replace

import numpy as np
import pytest
from calibration import LEVELS_REQ, side
from scipy.stats import norm
from scipy.stats import t as student_t

from helpers import compare
from helpers.compare.effects import holm
from helpers.schema import NotEnoughData
from law_tables import levels_table

STEP_S = 20e-3 + 1e-3 * LEVELS_REQ


def run(step_s, own_frac=0.005, **more):
    return compare.Run(dict(zip(LEVELS_REQ, step_s, strict=True)), dict.fromkeys(LEVELS_REQ, own_frac),
                       n_clean=dict.fromkeys(LEVELS_REQ, 40), **more)


def rows(effects, kind="step"):
    return effects.rows[effects.rows["kind"] == kind]


def test_single_runs_by_hand():
    """sd of a log ratio: sqrt(2 * (0.02^2 + 0.005^2)); 7 levels and 2 parameters are judged, so z at 0.03 / 9 / 2."""
    effects = compare.compare_levels([run(STEP_S)], [run(STEP_S * 1.2)])
    se = math.sqrt(2 * (0.02**2 + 0.005**2))
    z = norm.ppf(1 - 0.03 / 18)
    row = rows(effects).iloc[0]
    assert effects.rows["is_judged"].sum() == 9
    assert row["se"] == pytest.approx(se) and math.isinf(row["dof"])
    assert row["effect_frac"] == pytest.approx(0.2)
    assert row["lo_frac"] == pytest.approx(1.2 * math.exp(-z * se) - 1)
    assert row["row_hi_frac"] == pytest.approx(1.2 * math.exp(1.959964 * se) - 1)
    assert row["mdc_frac"] == pytest.approx(math.exp((z + norm.ppf(0.9)) * se) - 1)
    assert (rows(effects)["verdict"] == "worse").all() and compare.overall(effects).verdict == "worse"


def test_repeats_bring_their_own_variance_with_welch_degrees_of_freedom():
    shifts = [np.array([-0.03, 0.0, 0.03]), np.array([-0.02, 0.02])]
    base, new = ([run(STEP_S * math.exp(s)) for s in side_shifts] for side_shifts in shifts)
    row = rows(compare.compare_levels(base, new)).iloc[0]
    parts = [0.03**2 / 3, 0.0008 / 2]  # variances 0.0009 and 0.0008 over 3 and 2 runs
    assert row["se"] == pytest.approx(math.sqrt(sum(parts)))
    assert row["dof"] == pytest.approx(sum(parts) ** 2 / (parts[0] ** 2 / 2 + parts[1] ** 2))
    p = 2 * student_t.sf(abs(row["log_ratio"]) / row["se"], row["dof"])
    assert row["p_holm"] == pytest.approx(min(1.0, 9 * p))


def test_repeats_never_claim_less_than_the_levels_own_intervals():
    row = rows(compare.compare_levels([run(STEP_S)] * 2, [run(STEP_S * 1.001)] * 2)).iloc[0]
    assert row["se"] == pytest.approx(0.005)  # sqrt(0.005^2 / 2 + 0.005^2 / 2)


def test_holm_by_hand():
    """0.01 * 4, 0.02 * 3, 0.03 * 2, 0.9 * 1, each at least the one before."""
    assert holm(np.array([0.03, 0.01, 0.9, 0.02])) == pytest.approx([0.06, 0.04, 0.9, 0.06])


def test_a_side_against_itself_is_all_same():
    for same in ([run(STEP_S)], [run(STEP_S, content="aa"), run(STEP_S * 1.05, content="bb")]):
        effects = compare.compare_levels(same, list(reversed(same)))
        assert (effects.rows["verdict"] == "same").all() and effects.is_identical
        assert (effects.rows["effect_frac"] == 0).all() and compare.overall(effects).verdict == "same"
        assert compare.which_term(effects).name == "none"
    assert not compare.compare_levels([run(STEP_S)], [run(STEP_S * 1.0001)]).is_identical
    # the same log read twice with other settings is still the same log
    assert compare.compare_levels([run(STEP_S, content="aa")], [run(STEP_S * 1.2, content="aa")]).is_identical
    assert not compare.compare_levels([run(STEP_S, content="aa")], [run(STEP_S * 1.2, content="bb")]).is_identical


@pytest.mark.parametrize("repeats", [(1, 1), (4, 4), (1, 5)])
def test_the_other_way_round_is_the_mirror(repeats):
    rng = np.random.default_rng(3)
    base, new = side(rng, repeats[0]), side(rng, repeats[1], fixed=1.15)
    there, back = compare.compare_levels(base, new).rows, compare.compare_levels(new, base).rows
    assert (there["log_ratio"] == -back["log_ratio"]).all()
    for name in ("se", "dof", "p_holm", "mdc_frac"):
        assert there[name].equals(back[name])
    mirrored = back["verdict"].replace({"worse": "better", "better": "worse"})
    assert there["verdict"].equals(mirrored) and there["verdict"].isin(["worse", "better"]).any()


def test_equivalence_needs_the_whole_interval_inside_the_threshold():
    exact = [run(STEP_S * f, own_frac=0.001) for f in (0.999, 1.0, 1.001, 1.0, 1.0005)]
    shifted = [run(STEP_S * f * 1.005, own_frac=0.001) for f in (0.999, 1.0, 1.001, 1.0, 1.0005)]
    effects = compare.compare_levels(exact, shifted)
    # 0.5 % is told from none, but is no change that matters
    assert (rows(effects)["p_holm"] < 0.03).all() and (rows(effects)["verdict"] == "same").all()
    strict = compare.compare_levels(exact, shifted, threshold_frac=0.004)
    assert (rows(strict)["verdict"] == "worse").all()
    assert (rows(compare.compare_levels([run(STEP_S)], [run(STEP_S * 1.001)]))["verdict"] == "cannot_tell").all()


def test_what_is_needed_says_intervals_only_where_they_help():
    effects = compare.compare_levels([run(STEP_S)], [run(STEP_S * 1.001)])
    assert rows(effects)["needed"].str.contains("more clean intervals do not help").all()
    rough = compare.compare_levels([run(STEP_S, 0.04)], [run(STEP_S * 1.001, 0.04)])
    assert rows(rough)["needed"].str.contains("alone are not enough").all()
    # threshold 15 %: log 0.1398 / (2.935 + 1.282) = 0.0331; less the stated scatter's 0.0008 leaves 0.000299 for own
    # errors of 2 * 0.025^2 = 0.00125, so 40 intervals become 40 * 4.18: 128 more (rounded up)
    wide = compare.compare_levels([run(STEP_S, 0.025)], [run(STEP_S * 1.001, 0.025)], threshold_frac=0.15)
    allowed = (math.log(1.15) / (norm.ppf(1 - 0.03 / 18) + norm.ppf(0.9))) ** 2 - 2 * 0.02**2
    more = math.ceil(40 * (2 * 0.025**2 / allowed - 1))
    assert rows(wide)["needed"].iloc[0] == f"{more} more clean intervals at this level on either side"
    assert rows(compare.compare_levels([run(STEP_S)], [run(STEP_S * 1.001)], threshold_frac=0.3))["needed"].eq("").all()


def test_a_mean_that_hides_a_loss_at_some_levels_is_seen_through():
    """10 % slower at levels 2 to 6, faster elsewhere: the mean step ratio is 1, the verdict is worse and mixed."""
    at = np.arange(1.0, 11.0)
    rng = np.random.default_rng(0)
    truth_s = 20e-3 + 1e-3 * at
    factor = np.where((at >= 2) & (at <= 6), 1.10, 1 / 1.10)

    def runs(step_s):
        return [compare.Run(dict(zip(at, step_s * np.exp(0.02 * rng.standard_normal(len(at))), strict=True)),
                            dict.fromkeys(at, 0.005)) for _ in range(8)]

    effects = compare.compare_levels(runs(truth_s), runs(truth_s * factor))
    assert abs(rows(effects)["log_ratio"].mean()) < 0.015
    worse = rows(effects).loc[rows(effects)["verdict"] == "worse", "running_req"]
    assert list(worse) == [2, 3, 4, 5, 6]
    found = compare.overall(effects)
    assert found.verdict == "worse" and found.is_mixed and "step at 2, 3, 4, 5, 6" in found.sentence


def test_the_worst_row_decides_and_an_invalid_pair_gets_no_verdict():
    rng = np.random.default_rng(1)
    effects = compare.compare_levels(side(rng, 1), side(rng, 1, fixed=1 / 1.5))
    assert set(effects.rows.loc[effects.rows["is_judged"], "verdict"]) == {"better", "cannot_tell"}
    assert compare.overall(effects).verdict == "cannot_tell"
    invalid = compare.judge_validity({"model": "a"}, {"model": "b"})
    worse = compare.compare_levels([run(STEP_S)], [run(STEP_S * 1.5)])
    assert compare.overall(worse, invalid).verdict == "cannot_tell"
    assert "not the same server" in compare.overall(worse, invalid).sentence


def test_fewer_accepted_tokens_are_worse_and_the_target_is_described():
    accept = dict.fromkeys(LEVELS_REQ, 3.0)
    target = dict.fromkeys(LEVELS_REQ, 10e-3)
    base = run(STEP_S, accept_len=accept, target_step_s=target)
    new = run(STEP_S, accept_len={k: 2.4 for k in accept}, target_step_s={k: 12.5e-3 for k in target})
    effects = compare.compare_levels([base], [new])
    assert (rows(effects, "accept_len")["verdict"] == "worse").all()
    ratio = rows(effects, "ratio_to_target")
    assert ratio["base"].iloc[0] == pytest.approx(2.1) and ratio["new"].iloc[0] == pytest.approx(1.68)
    assert ratio["effect_frac"].to_numpy() == pytest.approx(-0.2) and (ratio["verdict"] == "described").all()
    assert rows(effects, "asymptote")["base"].iloc[0] == pytest.approx(1000)


def test_tables_become_runs_with_what_is_left_out_said():
    table = levels_table(
        [1, 2, 4.02, 4, 8], [0.02, 0.022, 0.03, 0.025, 0.03], step_s_lo=[0.019, 0.021, 0.029, 0.024, 0.029],
        step_s_hi=[0.021, 0.023, 0.031, 0.026, 0.031], clean_s=[9.0, 9, 5, 9, 9],
        is_fitted=[True, True, True, True, False])
    found = compare.run_of(table, content="aa")
    assert dict(found.step_s) == {1: 0.02, 2: 0.022, 4: 0.025} and found.n_clean[1] == 12
    assert found.own_frac[1] == pytest.approx(math.log(21 / 19) / 2 / 1.959964)
    assert len(found.notes) == 2 and not found.accept_len
    with pytest.raises(NotEnoughData, match="fitted level"):
        compare.run_of(table.assign(is_fitted=False))


def test_levels_of_one_side_are_named_and_none_in_common_is_an_error():
    part = replace(run(STEP_S), step_s={1.0: 0.021, 2.0: 0.022})
    effects = compare.compare_levels([run(STEP_S)], [part])
    assert "level 64 was seen on one side only and is not compared" in effects.notes
    assert any("no parameter is compared" in note for note in effects.notes) and effects.shares is None
    with pytest.raises(NotEnoughData, match="both sides have"):
        compare.compare_levels([run(STEP_S)], [replace(part, step_s={3.0: 0.02})])
    with pytest.raises(ValueError, match="above 0"):
        compare.compare_levels([part], [part], threshold_frac=0)


def test_a_run_counts_once_and_phases_are_described():
    twice = [run(STEP_S, content="aa"), run(STEP_S, content="aa")]
    effects = compare.compare_levels(twice, [run(STEP_S * 1.2, content="bb")])
    assert len(effects.base) == 1 and any("counts once" in note for note in effects.notes)
    phases = compare.describe_phases({"steady_s": 90.0, "ramp_s": 10.0}, {"steady_s": 50.0, "drain_s": None})
    assert list(phases["phase"]) == ["steady_s", "ramp_s", "drain_s"]
    assert phases["base_frac"].iloc[0] == pytest.approx(0.9) and math.isnan(phases["new_s"].iloc[2])
