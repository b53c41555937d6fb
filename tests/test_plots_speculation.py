"""Figures, tables and sentences of speculation: by structure, every number by hand from the records that go in.

Would catch: a line drawn solid where there are no data, a figure without its uncertainty, a sentence that claims a
constant round where none can be told, a part of the round that is lost.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from helpers.physics.speculative import acceptance, break_even, payoff, speculation
from helpers.plots import speculation as figures
from helpers.readings import speculation as words
from helpers.schema import LEVELS, Parameter, conform


@pytest.fixture(scope="module")
def case_b(data):
    return pd.read_csv(data / "field" / "case_b_acceptance.csv", comment="#")


@pytest.fixture(scope="module")
def line(case_b):
    return speculation.acceptance_line(case_b)


@pytest.fixture
def parts():
    def time(value, lo, hi):
        return Parameter("", value / 1e3, lo / 1e3, hi / 1e3, "s")

    return payoff.round_parts(time(50, 49, 51), time(10, 9, 12), time(30, 28, 35))


@pytest.fixture
def meeting():
    """2 tokens in 20 + N ms against one in 11 + 0.4 N ms: even at 10, within 2 % from 7.27 to 13.3."""
    return break_even.break_even_running_req(
        lambda n: (20 + n) / 1e3, 2.0, lambda n: (11 + 0.4 * n) / 1e3, [1, 4, 16, 64], is_measured=True,
        uncertainty_frac=0.02)


def trace(figure, name):
    found = [t for t in figure.data if t.name == name]
    assert len(found) == 1, [t.name for t in figure.data]
    return found[0]


def axes(figure):
    return figure.layout.xaxis.title.text, figure.layout.yaxis.title.text


# --- figures -------------------------------------------------------------------------------------------------------


def test_rate_over_accept_length(line):
    figure = figures.rate_vs_accept_len(line, subtitle="case <b>B</b>")
    assert figure.layout.title.text.startswith("One round of 55.5 ms explains every accept length at 1 running request")
    assert "case &lt;b&gt;B" in figure.layout.title.text and "95 % intervals" in figure.layout.title.text
    assert axes(figure) == ("accept length [tok per request and round]", "decode throughput [tok/s]")
    points = trace(figure, "measured")
    assert list(points.x) == [3.08, 3.33, 3.77, 3.98] and list(points.y) == [55, 60, 68, 72]
    assert list(points.customdata) == ["56.0 ms", "55.5 ms", "55.4 ms", "55.3 ms"]


def test_the_lines_are_solid_where_data_are(line):
    figure = figures.rate_vs_accept_len(line)
    inside, outside = trace(figure, "through the origin"), trace(figure, "through the origin, extrapolated")
    assert list(inside.x) == [3.08, 3.98] and inside.line.dash == "solid"
    assert list(outside.x) == [0, 3.08] and outside.line.dash == "dot" and outside.y[0] == 0
    assert inside.y[1] == pytest.approx(3.98 / 0.0555065, rel=1e-4)
    assert trace(figure, "free line, extrapolated").y[0] == pytest.approx(-2.651, abs=0.001)


def test_uncertainty_is_drawn(line):
    figure = figures.rate_vs_accept_len(line)
    band, start = trace(figure, "band"), trace(figure, "free line at 0")
    assert band.fill == "toself" and band.y[1] == pytest.approx(3.98 * line.through_origin.lo)
    assert band.y[2] == pytest.approx(3.98 * line.through_origin.hi)
    assert (start.error_y.array[0], start.error_y.arrayminus[0]) == pytest.approx((3.571, 3.571), abs=0.001)
    assert {a.text for a in figure.layout.annotations} == {"round of 55.5 ms", "free: -2.65 at 0"}


def test_a_refused_line_draws_its_points_only(case_b):
    figure = figures.rate_vs_accept_len(speculation.acceptance_line(case_b.iloc[:2]))
    assert [t.name for t in figure.data] == ["measured"]
    assert figure.layout.title.text.startswith("A round takes 55.8 ms at 1 running request; no line can be drawn")


def test_no_round_is_said_not_drawn(case_b):
    line = speculation.acceptance_line(case_b.assign(accept_len=1.0))
    figure = figures.rate_vs_accept_len(line)
    assert not figure.data and figure.layout.title.text.startswith("No round was measured")
    assert "without speculation a step is no round" in figure.layout.annotations[0].text
    assert words.acceptance_line_reading(line) == (
        "No round was measured: 4 rows and none with accept_len above 1: without speculation a step is no round.")


@pytest.mark.parametrize(("change", "said"), [
    ({"free_intercept": Parameter("", 9.0, 4.0, 14.0, "tok/s")}, "The round changes with the accept length"),
    ({"free_intercept": Parameter("", 9.0, -90.0, 108.0, "tok/s")}, "whether acceptance changes it is hardly tested"),
    ({"free_intercept": Parameter("", 9.0, np.nan, np.nan, "tok/s")}, "A round takes 55.5 ms at 1 running request"),
])
def test_the_title_is_the_finding(line, change, said):
    assert said in figures.acceptance_finding(replace(line, **change))


def test_the_parts_of_a_round_in_one_bar(parts):
    figure = figures.round_parts_bar(parts, subtitle="x")
    assert [t.name for t in figure.data] == ["draft", "verify", "other", "draft and verify"]
    assert sum(t.x[0] for t in figure.data[:3]) == pytest.approx(0.05)
    both = trace(figure, "draft and verify")
    assert (both.x[0], both.error_x.array[0], both.error_x.arrayminus[0]) == pytest.approx((0.040, 0.007, 0.003))
    assert trace(figure, "draft").customdata[0] == "10.0 ms [9.00, 12.0]"
    assert trace(figure, "other").text == "other<br>10.0 ms<br>20 %"
    assert figure.layout.xaxis.title.text == "time of a round [s]"
    assert figure.layout.title.text.startswith(
        "Of a round of 50.0 ms, the model gives 20 % to drafting and 60 % to verifying; 20 % is neither")
    assert [shape.x0 for shape in figure.layout.shapes] == [0.05]


def test_parts_that_contradict_are_titled_so(parts):
    wrong = payoff.round_parts(Parameter("", 0.02, 0.02, 0.02, "s"), parts.draft, parts.verify)
    assert figures.parts_finding(wrong).endswith("an input is wrong")


def test_rates_with_and_without(meeting):
    figure = figures.rates_with_and_without(meeting)
    assert axes(figure) == ("running requests [req]", "decode throughput [tok/s]")
    spec, plain = trace(figure, "with speculation"), trace(figure, "without, measured")
    assert spec.y[0] == pytest.approx(2 / 0.021) and plain.y[-1] == pytest.approx(64 / 0.0366)
    assert figure.layout.title.text == "Speculation pays up to 10.0 running requests"
    area, mark = sorted(figure.layout.shapes, key=lambda shape: shape.type != "rect")
    assert (area.x0, area.x1, mark.x0) == pytest.approx((7.2727, 13.3333, 10), abs=1e-3)


def test_a_modelled_rate_is_named_and_drawn_as_a_bound(meeting):
    figure = figures.rates_with_and_without(replace(meeting, is_measured=False, running_req_lo=None))
    assert trace(figure, "without, modelled").line.dash == "dash"
    assert [shape.type for shape in figure.layout.shapes] == ["line"]


def test_logs_that_cannot_be_compared_are_said_not_drawn(meeting):
    none = replace(meeting, running_req=None, reason="the loads do not overlap", levels=meeting.levels.iloc[:0])
    assert figures.rates_with_and_without(none).layout.annotations[0].text == "the loads do not overlap"
    assert words.break_even_reading(none) == "No break-even: the loads do not overlap."


@pytest.mark.parametrize(("accept_len", "said"), [(3.0, "pays at every load"), (1.1, "pays at no load")])
def test_no_break_even_is_the_finding(accept_len, said):
    found = break_even.break_even_running_req(
        lambda n: 20e-3, accept_len, lambda n: 15e-3, [1, 16], is_measured=True)
    figure = figures.rates_with_and_without(found)
    assert figure.layout.title.text == f"Speculation {said} from 1 to 16 running requests"
    assert not figure.layout.shapes


# --- tables and sentences ------------------------------------------------------------------------------------------


def test_the_line_in_words(line):
    assert words.acceptance_line_reading(line).splitlines() == [
        "At 1 running request one round of 55.5 ms [55.1, 56.0] explains 4 rates at accept lengths 3.08 to 3.98: every "
        "token more per round gives 18.0 tok/s [17.9, 18.2].",
        "The free line starts at -2.65 tok/s [-6.22, 0.920] with 18.8 tok/s/tok [17.8, 19.8] (2 degrees of freedom): "
        "its interval holds 0, as a constant round demands; that says nothing of what the round is made of.",
    ]


def test_a_line_that_misses_the_origin_in_words(line):
    bent = replace(line, free_intercept=Parameter("", 9.0, 4.0, 14.0, "tok/s"), warnings=("few points",))
    text = words.acceptance_line_reading(bent)
    assert "its interval excludes 0: draft length or padding changes with acceptance" in text
    assert text.endswith("Doubt: few points.")


def test_a_refused_line_in_words(case_b):
    text = words.acceptance_line_reading(speculation.acceptance_line(case_b.iloc[[0]]))
    assert text.startswith("At 1 running request a round takes 56.0 ms (mean of 1). Whether it depends on the accept "
                           "length cannot be told: 1 distinct accept length at running_req 1")


def test_the_points_of_the_line(line):
    table = words.acceptance_table(line)
    assert table["round [ms]"].tolist() == ["56.0", "55.5", "55.4", "55.3"] and "intervals" not in table


def test_many_points_are_grouped():
    length = np.linspace(2.0, 3.0, 120)
    table = pd.DataFrame({"running_req": 4.0, "accept_len": length, "step_s": 0.1})
    shown = words.acceptance_table(speculation.acceptance_line(table))
    assert len(shown) == words.MAX_POINTS and shown["intervals"].tolist() == [10] * 12
    assert shown["tokens per round"].iloc[0] == "2.04"  # mean of the first 10 of 120: 2 + 4.5 / 119
    assert shown["decode [tok/s]"].iloc[0] == "81.5"  # 4 x 2.0378 / 0.1


def test_the_rounds_of_the_levels():
    rows = {"server_life": 0, "rank_group": "all", "population": 0, "running_req": [4.0, 1.0, 8.0], "n_clean": 5,
            "step_s": [0.06, 0.05, np.nan], "step_s_lo": [0.059, np.nan, np.nan], "step_s_hi": [0.061, np.nan, np.nan],
            "accept_len": [3.0, 2.5, 2.5], "method": "median_of_blocks", "is_fitted": True, "n_rejected": "{}"}
    table = words.rounds_table(conform(pd.DataFrame(rows), LEVELS))
    assert table.to_dict("list") == {
        "running requests [req]": ["1", "4"], "tokens per round": ["2.50", "3.00"],
        "round [ms]": ["50.0", "60.0 [59.0, 61.0]"], "decode [tok/s]": ["50.0", "200"],
        "one request [tok/s]": ["50.0", "50.0"],
    }


def test_the_chance_in_words():
    assert words.acceptance_chance_reading(1.875, 3).startswith("1.88 of at most 4 tokens per round: a chance of 0.500")
    assert "is not known" in words.acceptance_chance_reading(3.08, None)
    assert "is not known" in words.acceptance_chance_reading(np.nan, 3)
    assert "5.00 tokens per round are more than a draft of 3 tok can give" in words.acceptance_chance_reading(5.0, 3)


def test_the_accept_rate_in_words():
    pair = pd.DataFrame({"accept_len": [2.85], "accept_rate_frac": [0.62]})
    assert words.accept_rate_reading(acceptance.accept_rate_definition(pair)) == (
        "The accept rate of this log is accepted over drafted tokens: 0 if no draft was accepted, 1 if all were (only "
        "accepted_over_drafted explains 100% of 1 line, with 3 drafted tokens per round)."
    )
    nothing = acceptance.accept_rate_definition(pair.iloc[:0])
    assert words.accept_rate_reading(nothing).startswith("Which accept rate the log prints is not known: the log")
    assert set(words.ACCEPT_RATE_WORDS) == set(acceptance.ACCEPT_RATES)


def test_the_parts_in_words(parts):
    assert words.round_parts_reading(parts) == (
        "Of 50.0 ms [49.0, 51.0] a round: drafting 10.0 ms [9.00, 12.0], verifying 30.0 ms [28.0, 35.0] as modelled; "
        "10.0 ms [2.00, 14.0] is neither."
    )
    table = words.round_parts_table(parts)
    assert table["part"].tolist() == ["draft", "verify", "other", "round"]
    assert table["time [ms]"].tolist() == ["10.0", "30.0", "10.0", "50.0"]
    assert table["what"].tolist()[2:] == ["measured minus both", "measured"]
    assert table["interval [ms]"].tolist() == ["9.00 to 12.0", "28.0 to 35.0", "2.00 to 14.0", "49.0 to 51.0"]
    wrong = payoff.round_parts(Parameter("", 0.02, 0.02, 0.02, "s"), parts.draft, parts.verify)
    assert words.round_parts_reading(wrong).startswith("Contradiction: draft and verify alone take at least 37.0 ms")


def test_what_if_in_words(line):
    measured = payoff.MeasuredRound(line.round, 1, 3.08, 3)
    four, six = (payoff.what_if(measured, accept_len=n) for n in (4, 6))
    assert words.what_if_reading(four) == (
        "Accept length 4: 72.1 tok/s [71.5, 72.7], 1.30 times the measured rate, from the measured round of 55.5 ms at "
        "running_req 1; an accept length of 4 tok, given."
    )
    assert words.what_if_reading(six).splitlines()[1].startswith("Doubt: 6 tokens per round need a longer draft")
    table = words.what_if_table([four, six])
    assert table["decode [tok/s]"].tolist() == ["72.1 [71.5, 72.7]", "108 [107, 109]"]
    assert table["tokens per round"].tolist() == ["4.00", "6.00"]
    assert table["over measured"].tolist() == ["1.30x", "1.95x"]
    assert table["doubt"].iloc[0] == "" and table["round [ms]"].iloc[0] == "55.5 [55.1, 56.0]"


def test_break_even_in_words(meeting):
    assert words.break_even_reading(meeting) == (
        "Break-even at N = 10.0 [7.27, 13.3] running requests: the gain passes 1 at running_req 10 (1.09 times the "
        "rate without it at running_req 1, 0.871 times at 64). Both rates are measured."
    )
    none = replace(meeting, running_req=None, reason="it always pays", basis="one is modelled", warnings=("few",))
    assert words.break_even_reading(none).splitlines() == [
        "No break-even: it always pays. One is modelled.",
        "Doubt: few.",
    ]
