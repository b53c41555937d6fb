import json
import math
from dataclasses import replace

import numpy as np
import pytest
from calibration import LEVELS_REQ, side
from scipy.stats import norm
from scipy.stats import t as student_t

from helpers import compare
from helpers.compare.contrasts import Pair
from helpers.compare.needed import critical, margin
from helpers.compare.scatter import scatter_of
from helpers.compare.verdicts import holm
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


def test_repeats_are_moderated_by_what_was_stated_and_shifts_of_whole_runs_are_seen():
    """Three and two runs that differ as a whole only, at seven levels: no scatter of a level about its run is found."""
    shifts = [np.array([-0.03, 0.0, 0.03]), np.array([-0.02, 0.02])]
    base, new = ([run(STEP_S * math.exp(s)) for s in side_shifts] for side_shifts in shifts)
    row = rows(compare.compare_levels(base, new)).iloc[0]
    parts = []
    for n, squares in ((3, 0.0018), (2, 0.0008)):  # sums of squared shifts
        d, direct = n - 1, (n - 1) / (n - 1 + 4)
        within = 2 * (0.02**2 + 0.005**2) / (2 + 6 * d)  # two degrees of freedom are stated, 6 d found none
        common = (0.5 * within / 7 + squares) / (0.5 + d)
        parts += [((1 - direct) * within * 6 / 7 / n, 2 + 6 * d), ((1 - direct) * common / n, 0.5 + d),
                  (direct * squares / d / n, d)]
    variance = sum(v for v, _ in parts)
    assert row["se"] == pytest.approx(math.sqrt(variance))
    assert row["dof"] == pytest.approx(variance**2 / sum(v * v / dof for v, dof in parts))
    p = 2 * student_t.sf(abs(row["log_ratio"]) / row["se"], row["dof"])
    assert row["p_holm"] == pytest.approx(min(1.0, 9 * p))
    # were each run's seven equal shifts taken for seven findings, there would be 18 degrees of freedom and more
    assert row["dof"] < 8


def test_levels_that_scatter_on_their_own_bring_degrees_of_freedom_each():
    rng = np.random.default_rng(2)
    row = rows(compare.compare_levels(side(rng, 3), side(rng, 3))).iloc[0]
    assert row["dof"] > 8  # each level alone has 4
    assert row["se"] == pytest.approx(math.sqrt(2 * (0.02**2 + 0.005**2) / 3), rel=0.4)


def test_repeats_never_claim_less_than_the_levels_own_intervals():
    row = rows(compare.compare_levels([run(STEP_S, 0.1)] * 2, [run(STEP_S * 1.001, 0.1)] * 2)).iloc[0]
    assert row["se"] == pytest.approx(0.1)  # sqrt(0.1^2 / 2 + 0.1^2 / 2)


def test_a_single_run_takes_the_larger_of_the_stated_scatter_and_that_of_the_other_side():
    signs = np.array([1, -1, 1, -1, 1, -1, 1])
    single = [run(STEP_S, own_frac=1e-6)]
    for off, least in ((1e-4, 0.02), (0.1, 0.1)):
        repeats = [run(STEP_S * np.exp(k * off * signs), own_frac=1e-6) for k in (-1, 0, 1)]
        row = rows(compare.compare_levels(repeats, single)).iloc[0]
        mean = off**2 / 3 + 1e-12  # its own at the quiet side: far below the single run's
        assert row["se"] >= 0.9 * least and row["se"] == pytest.approx(math.sqrt(least**2 + mean), rel=0.15)


@pytest.mark.parametrize(("n_levels", "n_rows"), [(1, 1), (2, 2), (3, 5), (7, 9)])
def test_more_repeats_never_make_it_worse(n_levels, n_rows):
    """Median of the least change seen at one level, of 300 pairs of the stated scatter without change."""
    rng, least = np.random.default_rng(4), []
    own = 0.005**2
    for repeats in (1, 2, 3, 5, 10):
        found = []
        for _ in range(300):
            sides = [(rng.normal(0, math.sqrt(0.02**2 + own), (repeats, n_levels)), np.full((repeats, n_levels), own))
                     for _ in range(2)]
            pair = Pair(tuple(LEVELS_REQ[:n_levels]), tuple(sides), tuple(scatter_of(*one) for one in sides))
            one = pair.contrast([1.0], np.ones(1))
            found.append((critical(0.03 / n_rows, one.dof) + margin(0.9, one.dof)) * one.se)
        least.append(np.median(found))
    assert (np.diff(least) < 0).all()
    assert least[0] == pytest.approx((norm.ppf(1 - 0.015 / n_rows) + norm.ppf(0.9)) * math.sqrt(2 * (0.02**2 + own)))


def test_a_quiet_side_does_not_hide_a_noisy_one():
    """Ten runs without scatter and two that differ by 10 % at each level, up at one and down at the next."""
    signs = np.array([1, -1, 1, -1, 1, -1, 1])
    noisy = [run(STEP_S * np.exp(0.05 * k * signs)) for k in (-1, 1)]
    row = rows(compare.compare_levels([run(STEP_S)] * 10, noisy)).iloc[1]
    assert row["se"] == pytest.approx(math.sqrt(0.005 / 2), rel=0.15)  # variance of +-0.05 is 0.005


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
    mirrored = back["verdict"].replace(MIRROR)
    assert there["verdict"].equals(mirrored) and there["verdict"].isin(["worse", "better"]).any()


MIRROR = {"worse": "better", "better": "worse"}


@pytest.mark.parametrize("plant", [{}, {"fixed": 1.3}, {"per_request": 1.4}, {"at": [8.0], "factor": 1.4}, "mixed"])
def test_the_whole_verdict_and_the_term_are_mirrored_too(plant):
    rng = np.random.default_rng(5)
    seen = set()
    for repeats in ((1, 1), (2, 3), (4, 4)):
        base, new = side(rng, repeats[0]), side(rng, repeats[1], **plant if plant != "mixed" else {"fixed": 1.4})
        if plant == "mixed":
            new = [replace(one, step_s={n: s / (1.8 if n > 10 else 1) for n, s in one.step_s.items()}) for one in new]
        there, back = compare.compare_levels(base, new), compare.compare_levels(new, base)
        verdicts = [compare.overall(there).verdict, compare.overall(back).verdict]
        assert verdicts[0] == MIRROR.get(verdicts[1], verdicts[1])
        assert compare.overall(there).n_unknown == compare.overall(back).n_unknown
        terms = [compare.which_term(there), compare.which_term(back)]
        assert terms[0].name == terms[1].name
        assert terms[0].running_req == terms[1].running_req or math.isnan(terms[0].running_req)
        assert (there.rows["needed"] == back.rows["needed"]).all()
        seen |= set(verdicts)
    expected = {"mixed"} if plant == "mixed" else {"worse", "better"} if plant else {"cannot_tell"}
    assert expected <= seen


def test_equivalence_needs_the_whole_interval_inside_the_threshold():
    factors = np.random.default_rng(8).normal(1, 0.0005, (20, len(STEP_S)))
    exact = [run(STEP_S * f, own_frac=0.001) for f in factors[:10]]
    shifted = [run(STEP_S * f * 1.005, own_frac=0.001) for f in factors[10:]]
    effects = compare.compare_levels(exact, shifted)
    # 0.5 % is told from none, but is no change that matters
    assert (rows(effects)["p_holm"] < 0.03).all() and (rows(effects)["verdict"] == "same").all()
    strict = compare.compare_levels(exact, shifted, threshold_frac=0.003)
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
    assert (found.verdict, found.exit_code, found.is_mixed) == ("mixed", 1, True)
    assert "Worse: step at N=2, 3, 4, 5, 6" in found.sentence


def test_a_gate_passes_only_where_every_level_excludes_a_loss():
    factor = np.where(LEVELS_REQ < 64, 1 / 1.5, 1.0)
    half = compare.compare_levels([run(STEP_S)], [run(STEP_S * factor)])
    verdicts = rows(half).set_index("running_req")["verdict"]
    assert verdicts[64.0] == "cannot_tell" and (verdicts.drop(64.0) == "better").all()
    found = compare.overall(half)
    assert (found.verdict, found.exit_code) == ("better", 2) and found.n_unknown >= 1
    assert compare.overall(compare.compare_levels(half.new, half.base)).exit_code == 1
    # 5 % faster with intervals of +-5.7 %: no row is better or same, and none can be 3 % slower
    gain = compare.compare_levels([run(STEP_S)], [run(STEP_S / 1.05)])
    assert compare.overall(gain).verdict == "cannot_tell" and gain.rows["is_loss_excluded"].all()
    assert gain.rows["row_hi_frac"].iloc[0] == pytest.approx(math.exp(1.96 * math.sqrt(8.5e-4)) / 1.05 - 1, abs=1e-5)
    assert compare.overall(gain).exit_code == 0
    loss = compare.compare_levels([run(STEP_S)], [run(STEP_S * 1.05)])
    assert compare.overall(loss).verdict == "cannot_tell" and compare.overall(loss).exit_code == 2


def test_an_invalid_pair_gets_no_verdict():
    invalid = compare.judge_validity({"model": "a"}, {"model": "b"})
    worse = compare.compare_levels([run(STEP_S)], [run(STEP_S * 1.5)])
    assert compare.overall(worse, invalid).verdict == "cannot_tell"
    assert "not the same server" in compare.overall(worse, invalid).sentence
    assert compare.overall(worse).exit_code == 1 and compare.overall(worse, invalid).exit_code == 2


def test_single_runs_say_that_they_cannot_be_shown_to_be_the_same():
    effects = compare.compare_levels([run(STEP_S)], [run(STEP_S * 1.001)])
    runs = rows(effects)["runs_needed"].max()
    assert runs < effects.rows["runs_needed"].max(), "a parameter needs more, and does not hold the gate"
    needed = compare.overall(effects).needed
    assert needed.startswith("Single runs cannot be shown to be the same within 3 %: ")
    assert f" 3 %: {runs:.0f} runs on either side are" in needed
    assert rows(effects)["needed"].str.contains("can show neither a change of 3 % nor that there is none").all()
    # as many runs of that scatter do show it: nine of ten rows at least in ten pairs without change
    rng, verdicts = np.random.default_rng(9), []
    for _ in range(10):
        many = compare.compare_levels(side(rng, int(runs)), side(rng, int(runs)))
        verdicts += list(many.rows.loc[many.rows["is_judged"], "verdict"])
    assert np.mean(np.array(verdicts) == "same") >= 0.9
    assert 10 <= runs <= 30


def test_counting_alone_gives_accepted_tokens_an_interval():
    """A = 3 over 10 s of 20 ms steps of 2 requests: 1000 rounds, variance of a geometric number 3 * 2."""
    table = levels_table([2, 4, 8], [0.02, 0.025, 0.03], clean_s=[10.0, 10, 10], accept_len=[3.0, 3, math.nan])
    found = compare.run_of(table)
    assert found.accept_own_frac[2] == pytest.approx(math.sqrt(3 * 2 / 1000) / 3)
    assert set(found.accept_own_frac) == {2, 4}
    effects = compare.compare_levels([found], [replace(found, accept_len={2.0: 2.9, 4.0: 2.9})])
    row = rows(effects, "accept_len").iloc[0]
    assert row["se"] == pytest.approx(math.sqrt(2 * (0.02**2 + 6 / 9000)))


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


def client_runs(folder, shape):
    """Median time per output token of three repeats of one server, by client concurrency [s]."""
    found = {}
    for path in sorted(folder.glob(f"random-{shape}-c*-run*.json")):
        level, repeat = (int(part) for part in path.stem.replace("run", "c").split("-c")[1:])
        found.setdefault(repeat, {})[float(level)] = json.loads(path.read_text())["median_tpot_ms"] / 1e3
    return [compare.Run(found[repeat]) for repeat in sorted(found)]


def test_three_real_repeats_show_what_single_runs_cannot(shared):
    """Two power limits of one GPU differ by 6 %; two loads on one of them by less than 1 % (hikarioyama/README)."""
    slow, fast = (client_runs(shared / "logs" / "hikarioyama" / name, "in256-out1024") for name in ("maxq", "ws"))
    other_load = client_runs(shared / "logs" / "hikarioyama" / "ws", "in1024-out128")
    assert len(slow) == len(fast) == len(other_load) == 3
    worse = compare.compare_levels(fast, slow)
    assert (rows(worse)["verdict"] == "worse").all() and len(rows(worse)) == 4
    assert rows(worse)["effect_frac"].between(0.055, 0.067).all() and compare.overall(worse).exit_code == 1
    same = compare.compare_levels(fast, other_load)
    assert (rows(same)["verdict"] == "same").all() and compare.overall(same).exit_code == 0
    # the slope is a tenth of the step at most there: nothing can be said of it, which the sentence says
    assert "for cost per request no sensible number of runs would do" in compare.overall(same).needed
    for pair in ((fast, slow), (fast, other_load)):
        single = compare.compare_levels(pair[0][:1], pair[1][:1])
        assert (rows(single)["verdict"] == "cannot_tell").all() and compare.overall(single).exit_code == 2


def test_accepted_tokens_without_clean_time_are_left_out_with_a_note():
    """No round was counted at level 2 (its step is a regression): a counting error of infinity says nothing."""
    table = levels_table([2, 4, 8], [0.02, 0.025, 0.03], clean_s=[0.0, 10, 10], accept_len=[3.0, 3, 3])
    found = compare.run_of(table)
    assert sorted(found.accept_len) == sorted(found.accept_own_frac) == [4.0, 8.0] and 2.0 in found.step_s
    assert [note for note in found.notes if "level 2 is not compared: no clean time" in note]
    assert not rows(compare.compare_levels([found], [found]), "accept_len").empty


@pytest.mark.parametrize(("accept", "unit"), [({}, "tok/s"), ({4.0: 2.0}, "rounds/s")])
def test_the_asymptote_counts_tokens_where_a_round_is_one(accept, unit):
    one = run(STEP_S, accept_len=accept)
    assert list(rows(compare.compare_levels([one], [run(STEP_S * 1.1)]), "asymptote")["unit"]) == [unit]


def kept(run_, levels):
    return replace(run_, step_s={level: run_.step_s[level] for level in levels})


def test_a_level_that_the_new_side_lost_keeps_the_gate_shut():
    """Three quiet runs a side pass; without the highest levels on the new side nothing is known of these."""
    rng = np.random.default_rng(3)
    base, new = ([run(STEP_S * rng.normal(1, 1e-3, 7), 1e-4) for _ in range(3)] for _ in range(2))
    assert compare.overall(compare.compare_levels(base, new)).exit_code == 0
    short = compare.compare_levels(base, [kept(one, LEVELS_REQ[:5]) for one in new])
    found = compare.overall(short)
    assert short.lost == (32.0, 64.0) and found.exit_code == 2
    assert found.sentence.startswith("The new side has no step time at N=32, 64, which the base has")
    # more levels than the base, or one less between those that are compared, is no loss
    assert compare.overall(compare.compare_levels([kept(one, LEVELS_REQ[:5]) for one in base], new)).exit_code == 0
    inner = compare.compare_levels(base, [kept(one, [1, 2, 4, 16, 32, 64]) for one in new])
    assert inner.lost == () and compare.overall(inner).exit_code == 0


def test_copies_count_once_and_what_both_sides_share_is_said_first():
    one, packed = run(STEP_S, content="log"), run(STEP_S, content="log.gz")
    other = run(STEP_S * 1.01, content="other")
    effects = compare.compare_levels([one, packed], [other])
    assert len(effects.base) == 1 and effects.n_shared == 0
    both = compare.overall(compare.compare_levels([one], [packed]))
    assert both.sentence.startswith("Both sides hold the same input.")
    shared = compare.compare_levels([one, other], [packed, run(STEP_S * 1.02, content="third")])
    assert compare.overall(shared).sentence.startswith("Of the new runs 1 stand on the base side too.")
