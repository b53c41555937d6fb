"""Figures of the hardware's side: expected line and knees, parts of a step, arithmetic intensity, levers.

Would catch: a bar that begins at the wrong place, shares of the wrong step, an overshoot drawn as a gap, a ridge at the
wrong intensity, a refused lever drawn as a bar, names of lines on top of each other.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from helpers import plots
from helpers.physics.catalogue import hardware
from helpers.physics.steps import bound, hand
from helpers.physics.what_if.levers import Lever
from helpers.plots import style
from helpers.plots.bounds import _apart, _ticks
from helpers.plots.components import PART_MARKS
from test_plots import figure_text, titles, trace, words

BOARD = hardware.Hardware("a board", mem_bw_bytes_per_s=1e12, bf16_flop_per_s=2e14, fp8_flop_per_s=4e14)


def parts(*rows):
    """Return a component table: (N, name, ms, lo, hi)."""
    table = pd.DataFrame(rows, columns=["running_req", "name", "time_s", "lo", "hi"])
    table[["time_s", "lo", "hi"]] /= 1e3
    step_s = table.groupby("running_req")["time_s"].transform("sum")
    return table.assign(share_frac=table["time_s"] / step_s, source="a <b>rule</b>")


def said(figure):
    """Return title and subtitle, as they read without their line breaks."""
    return figure.layout.title.text.replace("<br>", " ")


@pytest.fixture
def table():
    """20 ms at N=1 of which 5 are left, 100 ms at N=64 of which 21 are left."""
    return parts(
        (1.0, "weights", 10.0, 9.0, 11.0), (1.0, "kv", 5.0, 4.0, 6.0), (1.0, "unexplained", 5.0, 2.0, 8.0),
        (64.0, "weights", 40.0, 35.0, 44.0), (64.0, "experts", 22.0, 20.0, 24.0), (64.0, "kv", 17.0, 15.0, 18.0),
        (64.0, "unexplained", 21.0, 12.0, 30.0),
    )


@pytest.fixture
def moe():
    """1 GB, and 0.5 GB of 4 GB of experts a token, 1 of 8 chosen: nearly all are read above N = ln 20 / ln(8/7)."""
    model = hand.HandModel(1.5e9, 1e5, expert_bytes=4e9, n_experts=8, n_experts_active=1)
    levels = np.array([1.0, 4.0, 16.0])
    return bound.roofline(model, BOARD, levels, 1000.0, step_s=[0.004, 0.008, 0.012], achievable_frac=0.5)


def test_steps_of_seconds_are_named_in_seconds(moe):
    slow = bound.roofline(hand.HandModel(1.5e9, 1e5), BOARD, np.array([1.0, 4.0, 16.0]), 1000.0,
                          step_s=[0.02, 0.5, 4.0], achievable_frac=0.5)
    ticks = plots.roofline_steps(slow).layout.yaxis.ticktext
    assert {"1 s", "2 s", "500 ms"} <= set(ticks) and not any("e+" in tick for tick in ticks)


def test_expected_is_drawn_between_strict_and_target(moe):
    figure = plots.roofline_steps(moe)
    expected = trace(figure, "expected")
    touched = 4e9 * (1 - (7 / 8) ** np.array([1, 4, 16]))
    assert list(expected.y) == pytest.approx(list((1e9 + touched + np.array([1, 4, 16]) * 1e8) / 1e12), rel=1e-9)
    assert "%{customdata[1]:.3g}x expected" in trace(figure, "measured").hovertemplate
    over = trace(plots.ratio_to_bound(moe), "over expected")
    assert list(over.y) == pytest.approx(list(np.array([0.004, 0.008, 0.012]) / expected.y), rel=1e-9)
    assert len({(t.line.dash, t.marker.symbol) for t in figure.data if t.line.dash}) == 3, "never by colour alone"


def test_knees_near_the_levels_are_marked_and_the_regime_said(moe):
    """All experts above N = 22.4, inside twice the highest level; requests weigh as much as 5 GB above N = 50: not."""
    figure = plots.roofline_steps(moe)
    knee = np.log(20) / np.log(8 / 7)
    assert [s.x0 for s in figure.layout.shapes] == [pytest.approx(knee, rel=0.01)]
    assert "experts: N = 22.4" in words(figure) and "requests" not in words(figure)
    assert figure.layout.xaxis.range[1] > np.log10(knee), "the axis holds the knee"
    assert "above N = 22.4 nearly all experts are read" in said(figure)
    assert "expected: mostly weights at N=1, experts at N=4 to 16" in said(figure)
    several = plots.roofline_steps(replace(moe, knees_req={"experts": 10.0, "requests": 11.0, "compute": 12.0}))
    rows = [a.yshift for a in several.layout.annotations if "N = " in a.text]
    assert sorted(rows) == [-32, -16, 0], "each name on a line of its own"


def test_names_of_lines_that_meet_are_pushed_apart(moe):
    """Strict and expected end at one place: their names are at least a line apart, symmetric."""
    same = replace(moe, expected=moe.strict)
    names = plots.roofline_steps(same).layout.annotations
    assert sorted(a.yshift for a in names if a.text in ("strict", "expected")) == [-8, 8]


@pytest.mark.parametrize("span", [(0.0021, 0.0049), (0.0031, 0.0033), (0.001, 3.0)])
def test_every_time_axis_has_at_least_three_ticks(span):
    ticks = _ticks(*span)
    assert len(ticks) >= 3 and all(span[0] <= tick <= span[1] for tick in ticks) and ticks == sorted(set(ticks))


def test_names_on_a_logarithmic_axis_are_thinned_from_the_end():
    assert list(_apart([1, 15, 16], 0.04)) == [True, False, True]
    assert list(_apart([5], 0.04)) == [True] and list(_apart([5, 5], 0.04)) == [False, True]


def test_bars_begin_where_the_part_before_ends_and_fill_the_step(table):
    figure = plots.component_bars(table)
    names = ("weights", "experts", "keys and values", "unexplained")
    weights, experts, kv, left = (trace(figure, name) for name in names)
    assert list(weights.x) == pytest.approx([0.5, 0.4]) and list(weights.base) == [0, 0]
    assert list(experts.y) == ["N=64 · 100 ms"] and list(experts.base) == pytest.approx([0.4])
    assert list(kv.base) == pytest.approx([0.5, 0.62])
    assert [b + x for b, x in zip(left.base, left.x, strict=True)] == pytest.approx([1.0, 1.0])
    assert "At N=64, 62 % of the step is weights and experts; 21 % [12, 30] is unexplained" in said(figure)
    assert words(figure) == "25 % [10, 40] unexplained 21 % [12, 30] unexplained"
    assert titles(figure) == {"xaxis": "share of the measured step [%]", "yaxis": "running requests [req]"}
    assert weights.customdata[1] == "40.0 ms [35.0, 44.0], 40.0% of 100 ms<br>a &lt;b&gt;rule&lt;/b&gt;"
    in_seconds = plots.component_bars(table, in_seconds=True)
    assert list(trace(in_seconds, "weights").x) == pytest.approx([0.010, 0.040])
    assert titles(in_seconds)["xaxis"] == "time of a step [s]" and not in_seconds.layout.shapes


def test_parts_have_a_mark_of_their_own_in_every_figure(table):
    used = [mark for name, mark in PART_MARKS.items() if name not in ("peak", "efficiency")]
    assert len(set(used)) == len(used), "the two of the gap table stand for weights and compute, never beside them"
    alone = plots.component_bars(table[table["running_req"].eq(1.0)])
    assert trace(alone, "keys and values").marker.color == PART_MARKS["kv"][0]
    assert trace(alone, "unexplained").marker.pattern.shape == "x"
    other = plots.component_bars(parts((1.0, "weights", 1.0, 1.0, 1.0), (1.0, "<new>", 1.0, 1.0, 1.0)))
    assert trace(other, "&lt;new&gt;").base[0] == pytest.approx(0.5)


def test_parts_that_overshoot_the_step_are_drawn_beyond_it():
    """12 + 6 ms of parts in a measured step of 15: 20 % too long, between 5 and 40."""
    figure = plots.component_bars(parts((8.0, "weights", 12.0, 10.0, 14.0), (8.0, "kv", 6.0, 5.0, 7.0),
                                        (8.0, "unexplained", -3.0, -6.0, -0.75)))
    beyond = trace(figure, "parts beyond the step")
    assert list(beyond.base) == pytest.approx([1.0]) and list(beyond.x) == pytest.approx([0.2])
    assert words(figure) == "20 % [5, 40] too long"
    assert "its parts add up to 20 % [5, 40] more than the measured step" in said(figure)
    assert "at least one of them is too long" in said(figure)
    assert "unexplained" not in [t.name for t in figure.data]


def test_levels_with_an_unknown_part_are_left_out(table):
    table.loc[table["running_req"].eq(64.0) & table["name"].eq("kv"), "time_s"] = np.nan
    figure = plots.component_bars(table)
    assert {key for t in figure.data for key in t.y} == {"N=1 · 20.0 ms"} and "At N=1," in said(figure)
    for none in (table.head(0), table[table["running_req"].eq(64.0)]):
        assert "no level" in words(plots.component_bars(none))


def achieved(**more):
    """2 GFLOP and 1 GB in 2 ms, then 1 TFLOP and 2 GB in 8 ms: 2 and 500 FLOP/byte, 1 and 125 TFLOP/s."""
    return pd.DataFrame({
        "running_req": [1.0, 512.0], "flop": [2e9, 1e12], "read_bytes": [1e9, 2e9], "flop_per_s": [1e12, 1.25e14],
        "flop_per_s_lo": [0.9e12, 1.2e14], "flop_per_s_hi": [1.1e12, 1.3e14], "mbu_frac": [0.5, 0.25],
        "mbu_frac_lo": [0.45, 0.2], "mbu_frac_hi": [0.55, 0.3]} | more)


def test_intensity_is_log_log_with_the_ridge_where_the_roofs_meet():
    figure = plots.roofline_intensity(achieved(), BOARD)
    assert figure.layout.xaxis.type == figure.layout.yaxis.type == "log"
    measured, ridge, memory = (trace(figure, name) for name in ("measured", "ridge (bf16)", "memory"))
    assert list(measured.x) == [2.0, 500.0] and list(measured.y) == [1e12, 1.25e14]
    assert list(measured.error_y.array) == pytest.approx([1e11, 5e12])
    assert (ridge.x[0], ridge.y[0]) == pytest.approx((200.0, 2e14)), "2e14 FLOP/s over 1e12 bytes/s"
    assert memory.y[1] / memory.x[1] == memory.y[0] / memory.x[0] == pytest.approx(1e12)
    assert {"memory: 1000 GB/s", "bf16: 200 TFLOP/s", "ridge: 200 FLOP/byte"} == {
        a.text for a in figure.layout.annotations}
    assert list(measured.customdata[:, 1]) == pytest.approx([0.5, 0.625]), "of 2 TFLOP/s, of 200 TFLOP/s"
    assert "right of the ridge at 200: it reaches 62 % [60, 65] of what compute in bf16" in said(figure)
    assert titles(figure) == {"xaxis": "arithmetic intensity [FLOP/byte]", "yaxis": "achieved per rank [FLOP/s]"}
    low = plots.roofline_intensity(achieved().head(1), BOARD)
    assert "left of the ridge at 200: it reaches 50 % [45, 55] of what memory" in said(low)


def test_intensity_draws_the_roofs_asked_for_and_says_where_there_are_none():
    asked = plots.roofline_intensity(achieved(), BOARD, rates=("fp8", "fp4"))
    assert [t.name for t in asked.data if t.name.startswith("ridge")] == ["ridge (fp8)"], "no rate of FP4 is known"
    plain = hardware.Hardware("a <board>", mem_bw_bytes_per_s=1e12)
    figure = plots.roofline_intensity(achieved(), plain)
    assert "there is no compute roof" in said(figure) and "a &lt;board&gt;" in said(figure)
    assert [t.name for t in figure.data] == ["memory", "measured"]
    nothing = plots.roofline_intensity(achieved(flop=[np.nan, np.nan]), BOARD)
    assert "not known" in words(nothing)


@pytest.fixture
def levers():
    return (
        Lever("weights in fp8", 0.05, 0.04, 0.06, 1500.0, 1200.0, 1800.0, 0.5, ("routing <as> now",)),
        Lever("more requests: N=128", 0.1, 0.1, 0.1, 1100.0, 1100.0, 1100.0, 0.1, ("the law has no interval here",)),
        Lever("no speculation", 0.09, 0.08, 0.1, 800.0, 700.0, 900.0, -0.2),
        Lever("tp 8 instead of 4", refused="8 ranks do not divide 4 heads"),
    )


def test_levers_stand_against_the_measured_rate(levers):
    figure = plots.lever_bars(levers, 1000.0)
    bars = trace(figure, "with the lever")
    assert list(bars.y) == ["no speculation", "more requests: N=128", "weights in fp8"]
    assert list(bars.x) == [800.0, 1100.0, 1500.0]
    assert list(bars.error_x.array) == pytest.approx([100, 0, 300]), "an interval of no length is none"
    assert list(bars.marker.color)[0] == style.rgba(style.BASELINE, 0.55) != list(bars.marker.color)[1]
    assert list(bars.marker.pattern.shape) == ["/", "", ""]
    assert [s.x0 for s in figure.layout.shapes] == [1000.0]
    assert "1500 (1.50x)" in words(figure) and "measured 1000" in words(figure)
    assert "The lever that wins most: weights in fp8, 1500 tok/s [1200, 1800] against the measured 1000 tok/s" in (
        figure_text(figure))
    assert "refused: tp 8 instead of 4 (8 ranks do not divide 4 heads)" in said(figure)
    assert "<as>" not in bars.customdata[2] and titles(figure) == {"xaxis": "decode throughput [tok/s]"}
    as_read = plots.lever_bars([vars(lever) for lever in levers], 1000.0)
    assert as_read.to_json() == figure.to_json(), "levers of a scorecard draw the same figure"


def test_a_lever_that_may_win_nothing_is_not_promised(levers):
    unsure = replace(levers[0], lo=900.0)
    assert "may win most, or nothing" in said(plots.lever_bars([unsure], 1000.0))
    assert "No lever brings more than the measured 1000 tok/s" in (
        said(plots.lever_bars([levers[2]], 1000.0)))
    unknown = [vars(replace(levers[0])) | {"lo": None, "hi": None}]
    assert "1500 tok/s against" in said(plots.lever_bars(unknown, 1000.0))
    for none in ([levers[3]], []):
        assert said(plots.lever_bars(none, 1000.0)).startswith("No lever can be computed")
    many = [replace(levers[3], lever=f"tp {n}") for n in range(9)]
    assert "5 more refused" in said(plots.lever_bars([levers[0], *many], 1000.0))


def test_new_builders_are_pure_and_escape_their_texts(table, levers):
    texts = {"title": "a <b>bold</b> finding", "subtitle": "model <script> & co"}
    builders = {
        "component_bars": lambda **t: plots.component_bars(table, **t),
        "roofline_intensity": lambda **t: plots.roofline_intensity(achieved(), BOARD, **t),
        "lever_bars": lambda **t: plots.lever_bars(levers, 1000.0, **t),
    }
    before = table.copy(deep=True)
    assert set(builders) <= set(plots.__all__)
    for name, build in builders.items():
        figure = build(**texts)
        assert figure.to_json() == build(**texts).to_json(), name
        assert "a &lt;b&gt;bold&lt;/b&gt; finding" in said(figure), name
        assert "model &lt;script&gt; &amp; co" in said(figure), name
        assert all(text.endswith("]") for text in titles(figure).values()), name
    pd.testing.assert_frame_equal(before, table)
