import math

import numpy as np
import pytest
from calibration import LEVELS_REQ, PLANTS, calibrate, side, size_of
from scipy.stats import binomtest

from helpers import compare


def exact(accept=None, context=None, **plant):
    """One noiseless run with a planted change."""
    found = side(np.random.default_rng(0), 1, own_frac=1e-9, run_frac=0.0, **plant)[0]
    return compare.Run(found.step_s, found.own_frac, accept_len=dict.fromkeys(LEVELS_REQ, accept) if accept else {},
                       context_tok=dict.fromkeys(LEVELS_REQ, context) if context else {})


@pytest.mark.parametrize(
    ("plant", "name"),
    [
        ({"fixed": 1.2}, "fixed_cost"), ({"per_request": 1.3}, "per_request"), ({"fixed": 1 / 1.2}, "fixed_cost"),
        ({"fixed": 1.4, "per_request": 1.4}, "fixed_cost and per_request"),
        ({"at": [8.0], "factor": 1.25}, "one_level"),
    ],
)  # fmt: skip
def test_a_planted_term_is_named(plant, name):
    found = compare.which_term(compare.compare_levels([exact()], [exact(**plant)]))
    assert found.name == name
    assert math.isnan(found.running_req) or found.running_req == 8
    assert found.sentence.count(" % [") == 1 + (name == "fixed_cost and per_request"), "each move with its interval"


def test_the_interval_of_a_level_alone_is_that_of_its_contrast_to_the_law():
    """One run a side: 2 % is stated for each level of each, so the variance is 2 * 0.0004 times the squared weights."""
    effects = compare.compare_levels([exact()], [exact(at=[8.0], factor=1.25)])
    weights = effects.shares.weights(list(LEVELS_REQ).index(8))[2]
    half = 1.959964 * math.sqrt(2 * 0.02**2 * weights @ weights)
    row = compare.which_term(effects).evidence.set_index("running_req").loc[8]
    assert row["row_lo_frac"] == pytest.approx(1.25 * math.exp(-half) - 1)
    assert row["row_hi_frac"] == pytest.approx(1.25 * math.exp(half) - 1)


def test_the_size_of_the_move_is_right_for_a_large_one_too():
    """Shares are means of both sides, so that even a doubled cost comes out within 3 %."""
    effects = compare.compare_levels([exact()], [exact(fixed=2.0)])
    size = effects.rows.set_index("kind")["effect_frac"]
    assert size["fixed_cost"] == pytest.approx(1.0, abs=0.03)
    assert size["per_request"] == pytest.approx(0.0, abs=0.03)


def test_another_context_may_be_all_of_a_slope():
    longer = compare.compare_levels([exact(context=1000.0)], [exact(context=2000.0, per_request=1.3)])
    found = compare.which_term(longer)
    assert found.name == "context" and "+100.0 %" in found.sentence
    other_way = compare.compare_levels([exact(context=2000.0)], [exact(context=1000.0, per_request=1.3)])
    assert compare.which_term(other_way).name == "per_request"


def test_acceptance_is_a_term_of_its_own():
    found = compare.which_term(compare.compare_levels([exact(accept=3.0)], [exact(accept=2.4)]))
    assert found.name == "acceptance" and "-20.0 % [" in found.sentence
    both = compare.which_term(compare.compare_levels([exact(accept=3.0)], [exact(accept=2.4, fixed=1.2)]))
    assert both.name == "fixed_cost and acceptance"


def test_two_levels_that_moved_are_no_parameter():
    found = compare.which_term(compare.compare_levels([exact()], [exact(at=[2.0, 32.0], factor=1.25)]))
    assert found.name == "cannot_tell"


def test_too_few_levels_tell_no_term():
    base = compare.Run({1.0: 0.02, 8.0: 0.03})
    found = compare.which_term(compare.compare_levels([base], [compare.Run({1.0: 0.04, 8.0: 0.06})]))
    assert found.name == "cannot_tell" and "too few" in found.sentence


def test_calibration_in_small():
    """The studies are below; these few see a broken rule at once."""
    assert calibrate(5, 20, fixed=1.1)["is_right"].mean() >= 0.9
    assert calibrate(2, 30)["moved"].mean() <= 0.1


def at_most(hits, total, frac):
    """No evidence (at 1 %) that the true share is above ``frac``."""
    return binomtest(int(hits), int(total), frac, alternative="greater").pvalue >= 0.01


@pytest.mark.slow
@pytest.mark.parametrize(
    ("repeats", "run_frac"), [(1, 0.02), (2, 0.02), (3, 0.02), (5, 0.02), (10, 0.02), (2, 0.04), (3, 0.04), (10, 0.04)]
)
def test_no_change_is_called_one_in_at_most_one_pair_of_twenty(repeats, run_frac):
    moved = calibrate(repeats, 200, run_frac=run_frac)["moved"]
    assert at_most(moved.sum(), len(moved), 0.05)


@pytest.mark.slow
@pytest.mark.parametrize("repeats", [1, 2, 3, 10])
@pytest.mark.parametrize("plant", PLANTS.values(), ids=PLANTS)
def test_a_change_above_the_printed_minimum_is_named_and_none_below_is_named_wrongly(plant, repeats):
    found = calibrate(repeats, 120, **plant)
    above = found[found["mdc_frac"] < size_of(plant)]
    assert not len(above) or at_most((~above["is_right"]).sum(), len(above), 0.1)
    assert at_most(found["is_wrong"].sum(), len(found), 0.05)


def test_what_can_be_seen_grows_with_the_repeats_and_is_used():
    """Of a change of 10 % in the slope: single runs cannot see it by the printed minimum, ten runs always do."""
    few, many = calibrate(1, 12, per_request=1.1), calibrate(10, 12, per_request=1.1)
    assert (few["mdc_frac"] > 0.1).all() and (many["mdc_frac"] < 0.1).all()
    assert many["is_right"].mean() >= 0.9
