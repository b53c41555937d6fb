"""What counts by choice: spans, rules, levels and laws, against tables made by hand and a simulated sweep.

Would catch: a span that leaves out the wrong interval, an interval that is left out and still corrects a level, a
choice that the whole analysis takes otherwise than the stages that an explorer goes again.
"""

import numpy as np
import pandas as pd
import pytest

from helpers import ingest, measure, schema, synth
from helpers.analysis import analyse
from helpers.laws import fit_laws
from helpers.measure import (
    LEFT_OUT,
    Choice,
    choice_of,
    choose_intervals,
    choose_law,
    choose_levels,
    require_confidence,
    what_was_chosen,
)
from helpers.measure.choice import READMITTED
from helpers.schema import NotEnoughData, RooflogError
from law_tables import levels_table

STALL = "stall or hidden idle: step far above the level's median"


def intervals(*rows):
    """INTERVALS of (end [s], clean, why)."""
    table = pd.DataFrame([{
        "file": "a.log", "line_no": i + 1, "t_s": t_s, "engine": "sglang", "server_life": 0, "rank_group": "all",
        "running_req_printed": 4, "running_req": 4.0, "running_req_total": 4.0, "decode_tok_per_s": 100.0,
        "n_steps": 40.0, "interval_s": 1.6, "idle_s": 0.0, "step_s": 0.04, "prefill_tok": 0.0, "episode": 0,
        "label": "steady", "clean": is_clean, "why": why} for i, (t_s, is_clean, why) in enumerate(rows)])
    return schema.conform(table, schema.INTERVALS)


TABLE = intervals((1.0, True, "decode only"), (2.0, False, STALL), (3.0, True, "decode only"),
                  (4.0, False, "prefill inside"), (np.nan, True, "decode only"))


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    """Levels 1, 4, 16, 32 of a server whose step is 20 ms + 2 ms/req."""
    server = synth.Server(law=synth.StepLaw(intercept_s=0.020, slope_s_per_req=0.002),
                          noise=synth.Noise(sigma_frac=0.01, block_steps=40))
    client = synth.Client(levels_req=(1, 4, 16, 32), output=synth.Lengths(mean_tok=768))
    file = tmp_path_factory.mktemp("sweep") / "server.log"
    synth.simulate(server, client, seed=3).write(file)
    return file


def test_a_choice_of_nothing_is_the_same_table():
    assert choose_intervals(TABLE, Choice()) is TABLE


def test_spans_hold_the_ends_of_intervals_and_both_of_their_own_ends():
    out = choose_intervals(TABLE, choice_of(without_spans=["2..3"]))
    assert out["why"].eq(LEFT_OUT).tolist() == [False, True, True, False, False]
    assert out["clean"].tolist() == [True, False, False, False, True]
    kept = choose_intervals(TABLE, choice_of(only_spans=["0.5..1", "3..9"], without_spans=["4..5"]))
    assert kept["why"].eq(LEFT_OUT).tolist() == [False, True, False, True, True]  # no stamp: in no span
    assert len(measure.counted(kept)) == 2 and len(measure.counted(TABLE)) == 5


def test_an_ignored_rule_counts_what_it_rejected_and_nothing_else():
    out = choose_intervals(TABLE, choice_of(ignored_rules=[STALL]))
    assert out["clean"].tolist() == [True, True, True, False, True]
    assert out["why"].iloc[1].endswith(STALL) and out["why"].iloc[1] != STALL
    both = choose_intervals(TABLE, choice_of(ignored_rules=[STALL], without_spans=["2..2.5"]))
    assert not both["clean"].iloc[1] and both["why"].iloc[1] == LEFT_OUT


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"without_spans": ["3"]}, "without_spans: expected start..end"),
        ({"without_spans": ["a..b"]}, "without_spans: expected start..end"),
        ({"only_spans": ["5..5"]}, "only_spans: expected a span that ends after it starts"),
        ({"only_spans": ["1..inf"]}, "only_spans: expected start..end"),
        ({"stall_factor": 0.5}, "stall_factor: expected a number from 1"),
        ({"prefill_slack_s": float("nan")}, "prefill_slack_s"),
        ({"min_clean": 0}, "min_clean: expected a number from 1"),
        ({"running_req": [0.0]}, "running_req: expected levels above 0"),
    ],
)  # fmt: skip
def test_a_value_that_cannot_be_is_named(given, named):
    with pytest.raises(RooflogError, match=named.replace("..", r"\.\.")):
        choice_of(**given)


def test_a_choice_that_this_log_does_not_have_is_named():
    with pytest.raises(RooflogError, match="'drain'; there is: stall.*; prefill inside"):
        choose_intervals(TABLE, choice_of(ignored_rules=["drain"]))
    with pytest.raises(NotEnoughData, match="some of the 5 intervals to be left"):
        choose_intervals(TABLE, choice_of(only_spans=["100..200"]))


def test_spans_keep_every_digit():
    span = (0.1 + 0.2, 1e3 / 3)
    assert measure.read_spans(measure.write_spans((span,))) == (span,)


def test_levels_and_law_by_choice():
    """Steps of exactly 20 ms + 2 ms/req: two parameters of any three levels."""
    levels = levels_table([1, 4, 16, 32], [0.022, 0.028, 0.052, 0.084])
    chosen = choose_levels(levels, choice_of(running_req=[1.0, 4.0, 16.0]))
    assert chosen["is_fitted"].tolist() == [True, True, True, False] and chosen["note"].iloc[3] == LEFT_OUT
    with pytest.raises(RooflogError, match="no level 8 req; the log has 1, 4, 16, 32 req"):
        choose_levels(levels, choice_of(running_req=[8.0]))
    fits = fit_laws(levels)
    constant = choose_law(fits, Choice(law="constant"))
    assert constant.selected.law == "constant" and not constant.is_named and "chosen by hand" in constant.selection
    assert choose_law(fits, Choice(law=fits.selected.law)) is fits
    with pytest.raises(RooflogError, match="law: expected one of .*linear.*, found 'cubic'"):
        choose_law(fits, Choice(law="cubic"))


def test_the_analysis_and_a_measurer_that_goes_from_choice_to_choice_agree(sweep):
    """Exactly: levels, whose interval is drawn by chance, and law; whatever was measured before."""
    log = ingest.read_log(sweep)
    measurer = measure.Measurer(log, {})
    plain = measurer.measure(confidence=0.95)
    clean_s = plain.intervals.loc[plain.intervals["clean"], "t_s"]
    choices = [
        Choice(),
        choice_of(running_req=[1.0, 4.0, 16.0]),
        choice_of(law="constant"),
        choice_of(ignored_rules=["prefill is the next record"], stall_factor=1.5, prefill_slack_s=0.0),
        choice_of(without_spans=measure.write_spans(((clean_s.min(), clean_s.quantile(0.2)),)), min_clean=3),
        choice_of(min_steps=200),
    ]
    found = [measurer.measure(confidence=0.95, choice=choice) for choice in choices + choices[::-1]]
    for here, again, choice in zip(found, found[::-1], choices, strict=False):
        whole = analyse(sweep, choice=choice)
        for mine in (here, again):
            pd.testing.assert_frame_equal(mine.levels, whole.levels, check_exact=True)
            pd.testing.assert_frame_equal(mine.intervals, whole.intervals, check_exact=True)
            assert mine.fitted.fits.selected == whole.fits.selected
    assert not found[4].levels.equals(plain.levels) and not found[3].intervals.equals(plain.intervals)


def test_what_is_left_out_moves_the_level_as_its_other_intervals_say(sweep):
    """Level 16: the median of the steps that stay; with all of its time left out there is no such level."""
    whole = analyse(sweep)
    at = whole.intervals[whole.intervals["running_req"].eq(16) & whole.intervals["clean"]]
    half_s = float(at["t_s"].median())
    half = analyse(sweep, choice=choice_of(without_spans=measure.write_spans(((half_s, at["t_s"].max()),))))
    row = half.levels[half.levels["running_req"].eq(16)].iloc[0]
    assert row["n_clean"] == (at["t_s"] < half_s).sum() < len(at)
    assert row["step_s"] == pytest.approx(at.loc[at["t_s"] < half_s, "step_s"].median(), rel=0.01)
    times = whole.intervals.loc[whole.intervals["running_req"].eq(16), "t_s"]
    none = analyse(sweep, choice=choice_of(without_spans=measure.write_spans(((times.min(), times.max()),))))
    assert 16.0 not in set(none.levels["running_req"]) and none.fits.linear.n_levels == 3


def test_min_clean_wins_over_that_of_a_choice(sweep):
    asked = analyse(sweep, choice=choice_of(min_clean=2), min_clean=10_000).levels
    assert not asked["method"].eq("median_of_blocks").any()


def test_what_was_chosen_is_told_with_its_share():
    told = pd.DataFrame({"why": [None, LEFT_OUT, LEFT_OUT, f"{READMITTED}prefill inside", "prefill inside"]})
    assert what_was_chosen(told) == ["by choice, 2 of 5 intervals are left out and 1 that a rule rejects are counted: "
                                     "the answer is not that of the whole log"]
    assert what_was_chosen(told[:1]) == []


@pytest.mark.parametrize(("confidence", "said"), [(0.99999, "at most 0.9999, found 0.99999"), (1.0, "between 0 and 1")])
def test_a_confidence_without_a_finite_interval_is_refused(confidence, said):
    require_confidence(0.9999)
    with pytest.raises(RooflogError, match=said):
        require_confidence(confidence)
