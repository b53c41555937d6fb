"""Speculation: field case B, closed forms, and logs whose definition of the accept rate is known.

Would catch: the root counted as a draft token, a round of an ideal machine held against a measured rate, a line that
claims a constant round from two accept lengths, an accept rate read by the wrong definition.
"""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers import ingest, segment
from helpers.deployment import Deployment
from helpers.levels import summarise_levels
from helpers.physics.catalogue import hardware, models
from helpers.physics.linking.communication import find_table
from helpers.physics.speculative import acceptance, break_even, payoff, round_model, speculation
from helpers.physics.steps import bound
from helpers.physics.steps.decode import DecodeModel
from helpers.physics.steps.demand import Parallel
from helpers.physics.steps.hand import HandModel
from helpers.physics.steps.step import PEAK, achievable, step_parts
from helpers.schema import LEVELS, LawFit, Parameter, RooflogError, conform


def ms(value, lo=None, hi=None):
    """A time with its interval, from milliseconds."""
    lo, hi = (value if end is None else end for end in (lo, hi))
    return Parameter("round_s", value / 1e3, lo / 1e3, hi / 1e3, "s")


@pytest.fixture(scope="module")
def case_b(data):
    return pd.read_csv(data / "field" / "case_b_acceptance.csv", comment="#")


@pytest.fixture(scope="module")
def line(case_b):
    return speculation.acceptance_line(case_b)


@pytest.fixture(scope="module")
def field(shared):
    return json.loads((shared / "reference" / "field_values.json").read_text())


def agrees(found, reference):
    return found == pytest.approx(reference["value"], abs=reference["tol"])


# --- rounds and the line -------------------------------------------------------------------------------------------


def test_rounds_of_case_b(case_b):
    # 1 x 3.08 / 55 = 56.0 ms, 3.33 / 60 = 55.5, 3.77 / 68 = 55.44, 3.98 / 72 = 55.28
    found = speculation.round_s(1, case_b["decode_tok_per_s"].to_numpy(), case_b["accept_len"].to_numpy())
    assert (1e3 * found).round(2).tolist() == [56.0, 55.5, 55.44, 55.28]
    assert speculation.round_s(16, 400, 2.5) == pytest.approx(0.1)
    assert np.isnan(speculation.round_s(1, 50, np.nan))


@pytest.mark.parametrize(("values", "said"), [
    ((0, 55, 3), "running_req: expected above 0 req, found 0"),
    ((1, -2, 3), "decode_tok_per_s: expected above 0 tok/s, found -2"),
    ((1, 55, 0.9), "accept_len: expected at least 1, the bonus token included, found 0.9"),
])
def test_an_impossible_round_is_refused(values, said):
    with pytest.raises(RooflogError, match=said):
        speculation.round_s(*values)


def test_the_line_of_case_b(line):
    assert 1e3 * line.mean_round.value == pytest.approx(55.555, abs=0.001)
    assert 1e3 * line.round.value == pytest.approx(55.507, abs=0.001)
    assert line.through_origin.value == pytest.approx(1e3 / 55.5065, rel=1e-5)
    assert line.free_slope.value == pytest.approx(18.757, abs=0.001)
    # physics.md 5.1, no. 29: intercept -2.65 [-6.2, 0.9]
    assert (line.free_intercept.value, line.free_intercept.lo, line.free_intercept.hi) == pytest.approx(
        (-2.65, -6.2, 0.9), abs=0.03)
    assert line.is_round_constant is True and line.dof == 2 and not line.warnings
    assert 0.0550 < line.round.lo < line.round.value < line.round.hi < 0.0560


def test_the_reference_values_of_case_b(case_b, line, field):
    for length, rate in zip(case_b["accept_len"], case_b["decode_tok_per_s"], strict=True):
        spent_s = float(speculation.round_s(1, rate, length))
        assert agrees(1e3 * spent_s, field[f"qwen.implied_round_ms.{length}"])
        assert agrees(42.4e-3 / spent_s, field[f"qwen.efficiency.{length}"])
    assert agrees(1e3 * line.mean_round.value, field["qwen.implied_round_mean_ms"])
    assert agrees(1e3 * line.round.value, field["qwen.through_origin_round_ms"])
    assert agrees(line.free_intercept.value, field["qwen.tok_vs_accept.intercept"])
    assert agrees(line.free_slope.value, field["qwen.tok_vs_accept.slope"])


def test_intervals_are_those_of_least_squares(line):
    """The free line against scipy's own, the through-origin one by hand: s^2 / sum A^2, t with n - 1."""
    from scipy import stats

    x, y = np.array(line.accept_len), np.array(line.decode_tok_per_s)
    known = stats.linregress(x, y)
    half = stats.t.ppf(0.975, 2) * known.intercept_stderr
    assert (line.free_intercept.lo, line.free_intercept.hi) == pytest.approx(
        (known.intercept - half, known.intercept + half))
    slope = (x @ y) / (x @ x)
    half = stats.t.ppf(0.975, 3) * np.sqrt(((y - slope * x) ** 2).sum() / 3 / (x @ x))
    assert line.round.lo == pytest.approx(1 / (slope + half)) and line.round.hi == pytest.approx(1 / (slope - half))


def test_a_round_that_grows_with_acceptance_is_seen():
    """A round of 40 + 5 A ms at 8 requests: 8 A / round is concave, and its free line does not pass the origin."""
    length = np.array([1.5, 2.0, 2.5, 3.0, 3.5, 4.0])
    table = pd.DataFrame({"running_req": 8.0, "accept_len": length, "step_s": (40 + 5 * length) / 1e3})
    line = speculation.acceptance_line(table)
    assert line.is_round_constant is False and line.free_intercept.lo > 0


def test_two_accept_lengths_make_no_line(case_b):
    line = speculation.acceptance_line(case_b.iloc[[0, 3]])
    assert line.refused.startswith("2 distinct accept lengths at running_req 1, a line needs 3")
    assert line.is_round_constant is None and np.isnan(line.round.value)
    assert 1e3 * line.mean_round.value == pytest.approx((56.0 + 55.278) / 2, abs=0.001)
    one = speculation.acceptance_line(case_b.iloc[[0]])
    assert one.refused.startswith("1 distinct accept length at") and np.isnan(one.mean_round.lo)


def test_no_speculation_is_no_round(case_b):
    for plain in (case_b.assign(accept_len=np.nan), case_b.assign(accept_len=1.0)):
        line = speculation.acceptance_line(plain)
        assert line.refused == "4 rows and none with accept_len above 1: without speculation a step is no round"
        assert not line.accept_len and line.is_round_constant is None and np.isnan(line.mean_round.value)
    other = speculation.acceptance_line(case_b, running_req=2)
    assert other.refused == "no round at running_req 2, only at 1" and other.running_req == 2
    with pytest.raises(RooflogError, match="one of step_s and decode_tok_per_s"):
        speculation.acceptance_line(case_b.drop(columns="decode_tok_per_s"))


def test_a_levels_table_at_one_level():
    """Four rows of LEVELS at 4 requests, 60 ms a round; a level with a single accept length is not chosen."""
    rows = [{"running_req": n, "accept_len": a, "step_s": s} for n, a, s in
            ((4, 1.8, 0.06), (4, 2.4, 0.06), (4, 3.0, 0.06), (8, 2.0, 0.07))]
    same = {"server_life": 0, "rank_group": "all", "population": 0, "n_clean": 5, "method": "median_of_blocks",
            "is_fitted": True, "n_rejected": "{}"}
    line = speculation.acceptance_line(conform(pd.DataFrame(rows).assign(**same), LEVELS))
    assert line.running_req == 4 and line.decode_tok_per_s == pytest.approx((120, 160, 200))
    assert line.round.value == pytest.approx(0.06) and line.free_intercept.value == pytest.approx(0, abs=1e-9)


def series(seed, accept_len, autocorrelation):
    """INTERVALS-like clean rows of 100 ms rounds at 4 requests with noise of 2 %."""
    rng, noise, rounds = np.random.default_rng(seed), 0.0, []
    for _ in accept_len:
        noise = autocorrelation * noise + np.sqrt(1 - autocorrelation**2) * rng.standard_normal()
        rounds.append(0.1 * (1 + 0.02 * noise))
    return pd.DataFrame({"running_req": 4.0, "accept_len": accept_len, "step_s": rounds, "interval_s": 4.0,
                         "clean": True})


@pytest.mark.parametrize("autocorrelation", [0.0, 0.7])
def test_the_round_of_a_log_is_covered(autocorrelation):
    """95 % intervals of 400 simulated series of 60 lines, text that drifts from hard to easy, cover the truth."""
    length = np.linspace(1.8, 3.6, 60)
    lines = [speculation.acceptance_line(series(seed, length, autocorrelation)) for seed in range(400)]
    covered = np.mean([found.round.lo <= 0.1 <= found.round.hi for found in lines])
    constant = np.mean([bool(found.is_round_constant) for found in lines])
    assert 0.90 <= covered <= 0.99 and 0.90 <= constant <= 0.99


def test_the_points_are_intervals_of_the_fitted_lives_or_levels():
    levels = pd.DataFrame({"server_life": [0, 1, 1], "is_fitted": [False, True, False]})
    intervals = pd.DataFrame({"server_life": [0, 1, 2]})
    assert speculation.points(levels) is levels
    assert speculation.points(levels, intervals)["server_life"].tolist() == [1]
    assert speculation.points(levels.iloc[:1], intervals) is intervals


def test_lines_that_are_not_clean_are_left_out():
    table = series(1, np.linspace(1.8, 3.6, 20), 0.0)
    spoilt = table.assign(clean=False, step_s=0.5)
    found = speculation.acceptance_line(pd.concat([table, spoilt], ignore_index=True))
    assert found == speculation.acceptance_line(table)


def test_doubts_are_said():
    table = series(2, np.tile([2.0, 2.03, 2.06], 5), 0.0).assign(context_tok=np.linspace(500, 900, 15))
    vague, context = speculation.acceptance_line(table).warnings
    assert "hardly test whether the round is constant" in vague
    assert context == ("context differs between the points (500 to 900 tok) and may lengthen the round, too")


# --- acceptance ----------------------------------------------------------------------------------------------------


def test_acceptance_by_hand():
    assert acceptance.accept_len_from(0.5, 3) == 1 + 0.5 + 0.25 + 0.125
    assert acceptance.iid_acceptance(1.875, 3) == pytest.approx(0.5)
    assert [acceptance.iid_acceptance(n, 3) for n in (1, 4)] == [0, 1]
    assert acceptance.iid_acceptance(1.3, 1) == pytest.approx(0.3)


@given(st.floats(0, 1), st.integers(1, 32))
def test_acceptance_there_and_back(chance, n_draft_tok):
    length = acceptance.accept_len_from(chance, n_draft_tok)
    assert 1 <= length <= n_draft_tok + 1
    back = acceptance.iid_acceptance(length, n_draft_tok)
    assert acceptance.accept_len_from(back, n_draft_tok) == pytest.approx(length, rel=1e-9)
    if chance < 1:
        assert length == pytest.approx((1 - chance ** (n_draft_tok + 1)) / (1 - chance), rel=1e-6)


@pytest.mark.parametrize(("length", "n_draft_tok", "said"), [
    (4.1, 3, "expected 1 to 4 for 3 drafted tokens, found 4.1"), (0.9, 3, "found 0.9"), (float("nan"), 3, "found nan"),
    (2, 0, "n_draft_tok: expected a whole number from 1, found 0"), (2, 1.5, "found 1.5"),
])
def test_impossible_acceptance(length, n_draft_tok, said):
    with pytest.raises(RooflogError, match=said):
        acceptance.iid_acceptance(length, n_draft_tok)


def test_impossible_chance():
    with pytest.raises(RooflogError, match="expected a share from 0 to 1, found 1.2"):
        acceptance.accept_len_from(1.2, 3)


def test_the_root_counts_for_one_engine_only():
    assert acceptance.drafted_tok("sglang", 4) == 3 and acceptance.drafted_tok("vllm", 3) == 3
    with pytest.raises(RooflogError, match="above 1 for sglang, found 1"):
        acceptance.drafted_tok("sglang", 1)
    with pytest.raises(RooflogError, match="expected one of sglang, vllm to count its draft tokens, found 'tgi'"):
        acceptance.drafted_tok("tgi", 4)
    assert acceptance.drafted_tok(None, None) is None and acceptance.drafted_tok("vllm", 0) is None


# --- the definition of the accept rate -----------------------------------------------------------------------------


def printed(definition, n_draft_tok, lengths):
    """Pairs as SGLang prints them, two decimals each."""
    lengths = np.asarray(lengths, float)
    rate = {"len_over_verified": lengths / (n_draft_tok + 1), "accepted_over_drafted": (lengths - 1) / n_draft_tok}
    return pd.DataFrame({"accept_len": lengths.round(2), "accept_rate_frac": rate[definition].round(2)})


@pytest.mark.parametrize("definition", ["len_over_verified", "accepted_over_drafted"])
@pytest.mark.parametrize("n_draft_tok", [1, 3, 7, 15])
def test_the_definition_is_found_in_what_it_printed(definition, n_draft_tok):
    lengths = 1 + n_draft_tok * np.random.default_rng(3).uniform(0.05, 0.9, 200)
    found = acceptance.accept_rate_definition(printed(definition, n_draft_tok, lengths))
    assert (found.definition, found.n_draft_tok, found.agree_frac) == (definition, n_draft_tok, 1.0)


def test_recorded_pairs():
    """log-formats 1.5: 2.83 / 0.71 is the old definition with 4 verified, 2.85 / 0.62 the new one with 3 drafted."""
    def of(length, rate, **known):
        pair = pd.DataFrame({"accept_len": [length], "accept_rate_frac": [rate]})
        return acceptance.accept_rate_definition(pair, **known)

    assert of(2.83, 0.71).fits == (("len_over_verified", 3),)
    assert of(2.85, 0.62).fits == (("accepted_over_drafted", 3),)
    both = of(2.75, 0.12)
    assert both.definition is None and ("accepted_over_drafted", 15) in both.fits and "cannot tell" in both.reason
    assert of(2.75, 0.12, n_draft_tok=15).definition == "accepted_over_drafted"
    wrong = of(2.85, 0.62, n_draft_tok=5)
    assert wrong.definition is None and "with the 5 drafted tokens given" in wrong.reason
    assert wrong.reason.endswith("without it: accepted_over_drafted with 3 drafted tokens")


def test_nothing_to_test():
    none = acceptance.accept_rate_definition(pd.DataFrame({"accept_len": [1.0, np.nan], "accept_rate_frac": [0, 0.5]}))
    assert none.definition is None and none.n_pairs == 0 and np.isnan(none.agree_frac)
    assert none.reason == "the log prints no accept rate beside an accept length above 1"


@pytest.mark.parametrize(("log", "n_draft_tok"), [
    ("sostrowsk/sglang-int4.log", 15), ("sostrowsk/qwen36.log", 3), ("sostrowsk/vllm-int4.log", 15),
    ("sostrowsk/qwen38-nvfp4.log", 3),
])
def test_real_logs_name_their_definition(shared, log, n_draft_tok):
    samples = ingest.read_log([str(shared / "logs" / log)]).samples
    found = acceptance.accept_rate_definition(samples)
    assert (found.definition, found.n_draft_tok) == ("accepted_over_drafted", n_draft_tok)


def test_drafts_of_changing_length_fit_no_definition(shared):
    samples = ingest.read_log([str(shared / "logs" / "own" / "vllm-spec-ngram" / "server.log")]).samples
    found = acceptance.accept_rate_definition(samples, n_draft_tok=3)
    assert found.definition is None and not found.fits and "drafts of changing length" in found.reason


def test_a_real_round_does_not_depend_on_acceptance(shared):
    """SGLang with 15 drafted tokens, one request: 3 clean lines, 128 to 132 ms at accept lengths 2.30 to 2.60."""
    log = ingest.read_log([str(shared / "logs" / "sostrowsk" / "sglang-int4.log")])
    intervals = segment.label_intervals(log.samples, log.events, facts=log.facts)
    line = speculation.acceptance_line(intervals, running_req=1)
    assert len(line.accept_len) == 3 and 0.128 < line.round.value < 0.132 and line.is_round_constant
    level = summarise_levels(intervals).query("running_req == 1").iloc[0]
    assert line.round.value == pytest.approx(level["step_s"], rel=0.01)


# --- what if -------------------------------------------------------------------------------------------------------


@pytest.fixture
def measured(line):
    return payoff.MeasuredRound(line.mean_round, 1, 3.08, n_draft_tok=3)


MODEL = payoff.RoundModel(
    draft_step_s=lambda running_req: 2e-3, verify_s=lambda running_req, n_tok: 30e-3 + 1e-3 * running_req * n_tok,
    source="by hand",
)


def test_another_accept_length_keeps_the_measured_round(measured, field):
    found = payoff.what_if(measured, accept_len=6)
    assert agrees(found.tok_per_s.value, field["qwen.tok_s_observed_round.accept6"])
    assert found.round == Parameter("round_s", *(getattr(measured.round, end) for end in ("value", "lo", "hi")), "s")
    assert found.tok_per_s.lo == pytest.approx(6 / measured.round.hi)
    assert found.gain == pytest.approx(6 / 3.08) and found.what == "accept length 6"
    assert found.warnings == ("6 tokens per round need a longer draft than the 3 tok measured, and so a longer round: "
                              "this is an upper end",)
    assert not payoff.what_if(measured, accept_len=4).warnings


def test_the_measured_point_is_its_own_what_if(measured):
    found = payoff.what_if(measured)
    assert found.gain == 1 and found.what == "as measured"
    assert found.tok_per_s.value == pytest.approx(3.08 / 55.5547e-3, rel=1e-5)


def test_fp8_weights_of_the_ideal_round(field):
    """27 GB / 768 GB/s = 35.156 ms; half of it off the ideal 42.354 ms leaves 24.82: ideal from ideal, as published."""
    ideal_ms = 35.15625 + 0.02 + 0.09349 + 1.024 + 5.56 + 0.5
    assert agrees(ideal_ms, field["qwen.round_ms"])
    ideal = payoff.MeasuredRound(ms(field["qwen.round_ms"]["value"]), 1, 3.08, 3)
    change_s = -field["qwen.weight_ms"]["value"] / 2 / 1e3
    three, four = (payoff.what_if(ideal, accept_len=n, change_s=change_s, what="FP8 weights") for n in (3, 4))
    assert three.round.value == pytest.approx(24.82e-3, abs=0.1e-3)
    assert agrees(1e3 * three.round.value, field["qwen.fp8_round_ms"] | {"tol": 0.1})
    assert agrees(three.tok_per_s.value, field["qwen.fp8_tok_s_accept3"])
    assert agrees(four.tok_per_s.value, field["qwen.fp8_tok_s_accept4"])
    assert three.what == "FP8 weights, accept length 3"


def test_a_change_starts_from_the_measured_round(measured):
    """Half the weight read off the measured 55.55 ms: 37.98 ms as modelled, less if the change is as slow as the rest.

    Model: 3 drafts of 2 ms + 30 + 4 = 40 ms; measured over modelled 1.389; 55.06 - 1.389 x 17.578 = 30.65 ms.
    """
    found = payoff.what_if(measured, change_s=-17.578e-3, model=MODEL, what="FP8 weights")
    assert 1e3 * found.round.value == pytest.approx(55.555 - 17.578, abs=0.001)
    assert 1e3 * found.round.lo == pytest.approx(55.059 - 17.578 * 55.555 / 40, abs=0.002)
    assert 1e3 * found.round.hi == pytest.approx(56.050 - 17.578, abs=0.001)
    assert found.assumptions[-1] == ("a modelled change of -17.6 ms of the round (by hand), the rest of it as measured")
    alone = payoff.what_if(measured, change_s=-17.578e-3, what="FP8 weights")
    assert alone.round.lo > found.round.lo and "is not modelled" in alone.warnings[0]


def test_a_longer_draft(measured):
    """5 tokens: 2 drafts more (4 ms), 2 tokens more to verify (2 ms), accept length at most that of equal chances."""
    found = payoff.what_if(measured, n_draft_tok=5, model=MODEL)
    chance = acceptance.iid_acceptance(3.08, 3)
    assert 1e3 * found.round.value == pytest.approx(55.555 + 6, abs=0.001)
    assert 1e3 * found.round.hi == pytest.approx(56.050 + 6 * 55.555 / 40, abs=0.01)
    assert (found.accept_len.lo, found.accept_len.value) == (3.08, acceptance.accept_len_from(chance, 5))
    assert found.accept_len.hi == found.accept_len.value
    assert found.tok_per_s.lo == pytest.approx(3.08 / found.round.hi)
    assert found.tok_per_s.hi == pytest.approx(found.accept_len.value / found.round.lo)
    given_len = payoff.what_if(measured, n_draft_tok=5, accept_len=3.5, model=MODEL)
    assert given_len.accept_len.lo == given_len.accept_len.hi == 3.5


def test_a_shorter_draft(measured):
    found = payoff.what_if(measured, n_draft_tok=1, model=MODEL)
    assert found.accept_len.lo == found.accept_len.value == pytest.approx(1 + acceptance.iid_acceptance(3.08, 3))
    assert found.accept_len.hi == 2 and 1e3 * found.round.value == pytest.approx(55.555 - 6, abs=0.001)


def test_the_measured_round_of_a_line(line, case_b):
    found = payoff.measured_round(line, 3)
    assert found == payoff.MeasuredRound(line.round, 1, np.mean([3.08, 3.33, 3.77, 3.98]), 3)
    refused = speculation.acceptance_line(case_b.iloc[:1])
    assert payoff.measured_round(refused, 0) == payoff.MeasuredRound(refused.mean_round, 1, 3.08, None)
    assert payoff.measured_round(speculation.acceptance_line(case_b.assign(accept_len=1.0)), 3) is None


def test_what_cannot_be_asked(measured, line):
    with pytest.raises(RooflogError, match="needs the measured n_draft_tok and a model"):
        payoff.what_if(measured, n_draft_tok=5)
    with pytest.raises(RooflogError, match="expected at most 6 tokens per round from a draft of 5, found 7"):
        payoff.what_if(measured, n_draft_tok=5, accept_len=7, model=MODEL)
    with pytest.raises(RooflogError, match="leaves nothing of a round of 55.6 ms"):
        payoff.what_if(measured, change_s=-0.06)
    with pytest.raises(RooflogError, match="accept_len: expected at least 1"):
        payoff.what_if(measured, accept_len=0.5)
    with pytest.raises(RooflogError, match="expected 1 to 3 for 2 drafted tokens, found 3.08"):
        payoff.MeasuredRound(line.round, 1, 3.08, n_draft_tok=2)
    with pytest.raises(RooflogError, match="expected a time and running_req above 0"):
        payoff.MeasuredRound(line.round, 0, 3.08)


# --- parts ---------------------------------------------------------------------------------------------------------


def test_parts_add_up():
    parts = payoff.round_parts(ms(55.5, 55.0, 56.0), ms(6.6, 6.6, 8.0), ms(35.0, 35.0, 42.0))
    frame = parts.to_frame()
    assert frame["time_s"].sum() == pytest.approx(55.5e-3) and frame["share_frac"].sum() == pytest.approx(1)
    assert (1e3 * parts.other.value, 1e3 * parts.other.lo, 1e3 * parts.other.hi) == pytest.approx((13.9, 5.0, 14.4))
    assert not parts.warnings


def test_parts_above_the_measured_round_are_called_out():
    (said,) = payoff.round_parts(ms(40), ms(10), ms(35)).warnings
    assert said.startswith("draft and verify alone take at least 45.0 ms as modelled, longer than the measured round")


# --- the round of a deployment ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def deployed():
    """Case B: Qwen3.6-27B BF16 on 2 x RTX A6000, 3 drafted tokens."""
    board = hardware.find("RTX A6000")
    return DecodeModel(models.find("Qwen3.6-27B"), Parallel(tp=2), n_draft_tok=3), board, {2: find_table(board, 2)}


def test_the_ideal_round_of_case_b(deployed, field):
    model, board, links = deployed
    ideal = round_model.round_models(model, board, 500, PEAK, links=links)
    # 25.63 + 3 x 1.70 + 0.39 GB at 768 GB/s, and 128 all-reduces; the field counts no logits gather
    assert agrees(1e3 * ideal.central.round_s(1, 3), field["qwen.ideal_round_ms_this_ref"])
    bare = round_model.round_models(model, board, 0, PEAK).central
    assert bare.draft_s(1, 1) * 768 == pytest.approx(field["qwen.draft_step_read_GB_rank"]["value"], rel=0.002)
    assert bare.round_s(1, 3) * 768 == pytest.approx(field["qwen.bytes_per_round_GB_rank"]["value"], rel=0.002)


def test_the_round_at_the_shares_of_a_roofline(deployed):
    model, board, links = deployed
    lines = bound.roofline(model, board, [1, 4], [400.0, 600.0], links=links)
    found = round_model.of_deployment(Deployment(model, board, links), lines)
    own = round_model.round_models(model, board, 500, lines.shares, links=links)
    # 31.1 GB at 0.82 x 768 GB/s = 49.4 ms, the second request's states 0.6 ms, and the all-reduces
    assert found.central.round_s(2, 3) == own.central.round_s(2, 3) == pytest.approx(51.4e-3, rel=0.01)
    by_hand = HandModel(weight_bytes_per_step=1e9, kv_bytes_per_tok=1e5)
    assert round_model.of_deployment(Deployment(by_hand, board, {}), lines) is None
    assert round_model.of_deployment(Deployment(model, board, links), replace(lines, refused="no context")) is None


def test_draft_and_verify_add_up_to_the_round_of_the_step_model(deployed):
    model, board, links = deployed
    shares = achievable(board)
    split = round_model.round_models(model, board, 500, shares, links=links).central
    for n in (1.0, 8.0):
        whole = step_parts(model, board, np.array([n]), np.array([500.0]), "target", shares=shares, links=links)
        assert split.round_s(n, 3) == pytest.approx(float(sum(part[0] for part in whole.values())), rel=1e-9)


def test_the_parts_of_case_b(deployed, line):
    """At 0.82 of 768 GB/s: drafts 3 x 1.70 GB = 8.1 ms, target 25.63 + 0.39 GB = 41.3 ms, and the all-reduces."""
    model, board, links = deployed
    found = round_model.round_models(model, board, 500, achievable(board), links=links)
    parts = found.parts(payoff.MeasuredRound(line.round, 1, 3.08, 3))
    assert parts.draft.value == found.central.draft_s(1, 3) and parts.verify.value == found.central.verify_s(1, 4)
    assert 8.0e-3 < parts.draft.value < 8.4e-3 and 41.5e-3 < parts.verify.value < 43e-3
    assert parts.draft.lo < parts.draft.value < parts.draft.hi
    assert parts.verify.lo < parts.verify.value < parts.verify.hi
    assert parts.other.lo < 0 < parts.other.value < parts.other.hi and not parts.warnings
    with pytest.raises(RooflogError, match="its parts need the draft length"):
        found.parts(payoff.MeasuredRound(line.round, 1, 3.08))


def test_drafts_that_cost_nothing_and_several_tokens_per_forward(deployed):
    model, board, _ = deployed
    foreign = round_model.round_models(replace(model, n_draft_forwards=0), board, 500, PEAK).central
    assert foreign.draft_s(1, 3) == 0 and foreign.round_s(1, 3) == foreign.verify_s(1, 4)
    one = round_model.round_models(model, board, 500, PEAK).central
    for forwards in (None, 2):
        unasked = replace(model, n_draft_tok=0, n_draft_forwards=forwards)
        assert round_model.round_models(unasked, board, 500, PEAK).central.round_s(1, 3) == one.round_s(1, 3)
    several = round_model.round_models(replace(model, n_draft_tok=4, n_draft_forwards=2), board, 500, PEAK).central
    assert several.draft_s(1, 4) == pytest.approx(2 * one.draft_step_s(1)) and one.draft_s(1, 4) > several.draft_s(1, 4)


def test_a_longer_verification_costs_states_and_products(deployed):
    """One token per request and forward is the step without speculation; each token more writes a state."""
    model, board, _ = deployed
    one = round_model.round_models(model, board, 500, PEAK).central
    state_s = one.verify_s(1, 2) - one.verify_s(1, 1)
    assert one.verify_s(1, 4) - one.verify_s(1, 3) == pytest.approx(state_s, rel=0.01)
    assert state_s == pytest.approx(77.0e6 / 768e9, rel=0.02)  # physics.md 1.5: one state of 77 MB


# --- break-even ----------------------------------------------------------------------------------------------------


def test_break_even_by_hand():
    """2 tokens in 20 + N ms against one in 11 + 0.4 N ms: 22 + 0.8 N = 20 + N at N = 10."""
    found = break_even.break_even_running_req(
        lambda n: (20 + n) / 1e3, 2.0, lambda n: (11 + 0.4 * n) / 1e3, [1, 4, 16, 64], is_measured=True)
    assert found.running_req == pytest.approx(10) and found.running_req_lo is None and found.is_measured
    first = found.levels.iloc[0]
    assert first["with_tok_per_s"] == pytest.approx(2 / 21e-3)
    assert first["without_tok_per_s"] == pytest.approx(1 / 11.4e-3)
    said = "the gain passes 1 at running_req 10 (1.09 times the rate without it at running_req 1, 0.871 times at 64)"
    assert found.reason == said


def test_break_even_with_uncertainty():
    """Gain (22 + 0.8 N) / (20 + N): 1.02 at 1.6 / 0.22 = 7.27, 0.98 at 2.4 / 0.18 = 13.3."""
    found = break_even.break_even_running_req(
        lambda n: (20 + n) / 1e3, 2.0, lambda n: (11 + 0.4 * n) / 1e3, [1, 64], is_measured=True, uncertainty_frac=0.02)
    assert (found.running_req_lo, found.running_req_hi) == pytest.approx((1.6 / 0.22, 2.4 / 0.18))


@pytest.mark.parametrize(("accept_len", "word"), [(3.0, "pays at every load"), (1.1, "pays at no load")])
def test_no_break_even_in_range(accept_len, word):
    found = break_even.break_even_running_req(
        lambda n: 20e-3, accept_len, lambda n: 15e-3, [1, 16], is_measured=False)
    assert found.running_req is None and found.reason.startswith(f"speculation {word} from running_req 1 to 16 (")


def test_more_than_one_break_even_is_said():
    found = break_even.break_even_running_req(
        lambda n: 1.0, lambda n: 1 + 0.1 * np.cos(n), lambda n: 1.0, [1, 8], is_measured=True)
    assert found.running_req == pytest.approx(np.pi / 2)
    assert found.warnings == ("the gain passes 1 at 3 loads (1.57, 4.71, 7.85 req): the first is given",)


def law(intercept_s, slope_s_per_req, least, most, **more):
    return LawFit("linear", running_req_min=least, running_req_max=most,
                  predict_step_s=lambda n: intercept_s + slope_s_per_req * n, **more)


def test_break_even_of_two_logs():
    """22 + 0.8 N = 20 + N at 10; residuals of 1.2 and 1.6 % together 2 %: 7.27 to 13.3, inside both ranges."""
    with_it = law(20e-3, 1e-3, 1, 32, rms_error_frac=0.012)
    without = law(11e-3, 0.4e-3, 4, 64, rms_error_frac=0.016)
    found = break_even.break_even_measured(with_it, without, 2.0)
    assert found.running_req == pytest.approx(10) and found.is_measured
    assert found.basis == "both rates are laws of logs, whose residuals together are 2.00%"
    assert (found.running_req_lo, found.running_req_hi) == pytest.approx((1.6 / 0.22, 2.4 / 0.18))
    assert (found.levels["running_req"].min(), found.levels["running_req"].max()) == (4, 32)


def test_two_logs_that_cannot_be_compared():
    good = law(20e-3, 1e-3, 1, 32)
    refused = break_even.break_even_measured(good, LawFit("linear", refused="two levels"), 2.0)
    assert refused.running_req is None and refused.levels.empty
    assert refused.reason == "no law of the log without speculation: two levels"
    apart = break_even.break_even_measured(good, law(11e-3, 1e-3, 64, 128), 2.0)
    assert apart.reason == "the loads of the logs do not overlap: 1 to 32 req with, 64 to 128 req without speculation"


def test_plain_step_is_measured_minus_modelled_difference():
    """Round 50 + N ms; model 3 x 2 + 30 + 4 N against 30 + N: 6 + 3 N less, 1.25 times that if stretched."""
    plain_s = break_even.plain_step_from(lambda n: (50 + n) / 1e3, MODEL, 3)
    assert 1e3 * plain_s(4) == pytest.approx(54 - 18)
    stretched_s = break_even.plain_step_from(lambda n: (50 + n) / 1e3, MODEL, 3, stretch=1.25)
    assert 1e3 * stretched_s(4) == pytest.approx(54 - 22.5)


def test_break_even_of_one_log_and_a_model(line):
    """Measured 20 ms at 1 request; modelled 2 + 13 + N, without speculation 9.

    2 tokens: round 19 + N, plain 19 + N - (6 + N) = 13, so 26 = 19 + N at N = 7. Differences stretched by 20 / 16:
    round 20 + 1.25 (N - 1), plain 20 - 1.25 x 7 = 11.25, so 22.5 = 18.75 + 1.25 N at N = 3.
    """
    model = payoff.RoundModel(lambda n: 2e-3, lambda n, n_tok: (13 + n) / 1e3 if n_tok > 1 else 9e-3, "by hand")
    measured = payoff.MeasuredRound(ms(20), 1, 2.0, 1)
    found = break_even.break_even_modelled(measured, model, [1, 2, 4, 8, 16])
    assert (found.running_req, found.running_req_lo, found.running_req_hi) == pytest.approx((7, 3, 7))
    assert not found.is_measured and not found.warnings
    assert found.basis == (
        "with speculation: the measured round at running_req 1 and its modelled change; without: that minus the "
        "modelled difference (by hand); accept length 2 at every load")
    law = break_even.break_even_modelled(measured, model, [1, 16], round_s=lambda n: (19 + n) / 1e3)
    assert law.running_req == pytest.approx(7) and law.basis.startswith("with speculation: the law of the log;")
    (said,) = break_even.break_even_modelled(measured, model, [4, 16]).warnings
    assert said.startswith("with the modelled differences 1.25 times as large, as the whole round is: speculation pays "
                           "at no load from running_req 4 to 16")
    with pytest.raises(RooflogError, match="break-even: expected the draft length"):
        break_even.break_even_modelled(replace(measured, n_draft_tok=None), model, [1, 16])


def test_what_has_no_break_even():
    with pytest.raises(RooflogError, match="at least two distinct levels above 0 req, found \\[4.0\\]"):
        break_even.break_even_running_req(lambda n: 1.0, 2.0, lambda n: 1.0, [4, 4], is_measured=True)
    with pytest.raises(RooflogError, match="expected times above 0 at running_req 1, found a round of 1 s"):
        break_even.break_even_running_req(lambda n: 1.0, 2.0, lambda n: -1.0, [1, 4], is_measured=True)
