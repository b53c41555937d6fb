"""Figures by structure: traces, axes with units, points, bands, escaped text. Never pixels.

The tables are made by hand, or by the stages from hand-made lines, so that every expected number is in sight.
"""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest

import build
from helpers import allowance, explore, laws, plots, schema, segment
from helpers.facts import merge_facts
from helpers.laws.band import confidence_band
from helpers.levels import summarise_levels
from helpers.physics.catalogue import hardware
from helpers.physics.steps import bound, hand
from helpers.plots import style
from helpers.schema import Fits, LawFit


def levels_table(step_s, running_req=(1, 2, 4, 8, 16), **more):
    """Return LEVELS with the given steps and whiskers of one per cent."""
    step_s = np.asarray(step_s, float)
    running_req = np.asarray(running_req, float)
    table = pd.DataFrame({
        "server_life": 0, "rank_group": "all", "population": 0, "running_req": running_req,
        "running_req_total": running_req, "n_clean": 9, "clean_s": 60.0, "step_s": step_s, "step_s_lo": 0.99 * step_s,
        "step_s_hi": 1.01 * step_s, "decode_tok_per_s": running_req / step_s, "context_tok": 300.0,
        "method": "median_of_blocks", "is_fitted": True, "n_rejected": "{}", "note": "",
    })
    return schema.conform(table.assign(**more), schema.LEVELS)


@pytest.fixture(scope="module")
def line():
    """Levels on 20 ms + 2 ms per request, off by 1, -1, 0, -1, 1 %."""
    running_req = np.array([1, 2, 4, 8, 16])
    return levels_table((0.020 + 0.002 * running_req) * np.array([1.01, 0.99, 1.0, 0.99, 1.01]))


@pytest.fixture(scope="module")
def line_fits(line):
    return laws.fit_laws(line)


@pytest.fixture(scope="module")
def intervals():
    """Two levels with a prefill between: 4 requests at 40 tok/s, 8 at 64; 13 lines, each of 40 steps."""
    lines = [build.prefill(64, t=0.0)]
    lines += [build.decode(4, 40.0, t=4.0 * k, used=400 + 160 * k) for k in range(1, 7)]
    lines += [build.prefill(64, t=25.0, running=4)]
    lines += [build.decode(8, 64.0, t=25.0 + 5.0 * k, used=2000 + 320 * k) for k in range(1, 8)]
    samples = build.samples(*lines)
    return segment.label_intervals(samples, build.no_events(), facts=[{"decode_log_interval": 40, "page_size": 1}])


@pytest.fixture(scope="module")
def two_levels(intervals):
    return summarise_levels(intervals)


def refused(reason="two levels <b>only</b>"):
    law = LawFit("linear", refused=reason)
    return Fits(law, law, (law,), f"none: {reason}")


def trace(figure, name):
    found = [t for t in figure.data if t.name == name]
    assert len(found) == 1, [t.name for t in figure.data]
    return found[0]


def titles(figure):
    """Return the titles of all axes."""
    return {name: axis.title.text for name in figure.layout for axis in [figure.layout[name]]
            if name.startswith(("xaxis", "yaxis")) and axis.title.text}


def words(figure):
    return " ".join(a.text for a in figure.layout.annotations if a.text)


def roofline(levels, context_tok=1000.0):
    """7.0 GB of weights and 0.1 MB per token and request over 1.0 TB/s at 50 %: strict 7 ms + 0.1 ms per request."""
    model = hand.HandModel(weight_bytes_per_step=7e9, kv_bytes_per_tok=1e5)
    board = hardware.Hardware("a board", mem_bw_bytes_per_s=1e12)
    return bound.roofline(model, board, levels["running_req"], context_tok, step_s=levels["step_s"],
                          achievable_frac=0.5)


def test_timeline_draws_every_interval_and_hollows_the_rejected(intervals):
    figure = plots.timeline(intervals)
    n_clean = int(intervals["clean"].sum())
    assert 0 < n_clean < len(intervals) == 13
    clean = [t for t in figure.data if t.name and not t.name.endswith("(not clean)")]
    hollow = [t for t in figure.data if t.name and t.name.endswith("(not clean)")]
    assert sum(len(t.x) for t in clean if t.yaxis == "y") == n_clean
    assert sum(len(t.x) for t in hollow if t.yaxis == "y") == 13 - n_clean
    assert all(t.marker.symbol.endswith("-open") for t in hollow)
    assert all(not t.marker.symbol.endswith("-open") for t in clean)
    assert titles(figure) == {"xaxis2": "time since the first line [s]", "yaxis": "decode rate [tok/s]",
                              "yaxis2": "running req. [req]"}
    assert "yaxis3" not in figure.layout and figure.layout.yaxis2.overlaying is None, "no second y axis over the first"
    assert f"{13 - n_clean} of 13 intervals not clean" in figure.layout.title.text


def test_timeline_marks_events_and_escapes_their_text(intervals):
    event = {"file": "a", "line_no": 3, "t_s": 10.0, "server_life": 0, "kind": "out_of_memory",
             "text": "<script>alert(1)</script> & <b>full</b>"}
    figure = plots.timeline(intervals, schema.conform(pd.DataFrame([event]), schema.EVENTS))
    events = [t for t in figure.data if t.name == "server event"]
    assert [list(t.x) for t in events] == [[10.0, 10.0, None]] * 2
    assert "&lt;script&gt;" in events[0].text[0] and "<" not in events[0].text[0]
    assert events[0].line.width == 1


def test_labels_have_colours_and_symbols_of_their_own():
    assert set(style.LABEL_MARKS) == set(schema.LABELS)
    assert len({symbol for _, symbol in style.LABEL_MARKS.values()}) == len(schema.LABELS)
    assert style.LABEL_MARKS["steady"][0] == "#0072B2" and style.LABEL_MARKS["ramp"][0] == "#E69F00"


def test_many_points_are_thinned_visibly(intervals):
    """5,000 rows of one label: every third is drawn, and the figure says so."""
    rows = pd.concat([intervals[intervals["clean"]].head(1)] * 5000, ignore_index=True)
    figure = plots.timeline(rows)
    assert max(len(t.x) for t in figure.data) == 1667 <= style.MAX_POINTS
    assert "every 3th of 5000 points drawn" in figure.layout.title.text
    assert "points drawn" not in plots.timeline(intervals).layout.title.text


def test_throughput_shows_lines_and_levels_with_whiskers(intervals, two_levels):
    figure = plots.throughput_vs_running_req(intervals, two_levels)
    clean, rejected, level = (trace(figure, n) for n in ("clean interval", "rejected interval", "level: tokens / time"))
    assert len(clean.x) == int(intervals["clean"].sum()) and len(rejected.x) == int((~intervals["clean"]).sum())
    assert rejected.marker.symbol == "circle-open"
    assert dict(zip(level.x, level.y, strict=True)) == pytest.approx({4.0: 40.0, 8.0: 64.0}, rel=1e-9)
    assert titles(figure) == {"xaxis": "running requests [req]", "yaxis": "decode throughput [tok/s]"}
    assert figure.layout.yaxis.rangemode == "tozero"
    assert f"{len(rejected.x)} of 13 intervals rejected (hollow)" in figure.layout.title.text
    assert "2.00 times the running requests bring 1.60 times" in figure.layout.title.text


def test_whiskers_turn_a_slower_step_into_a_lower_rate(intervals):
    """A step of 100 ms [90, 125] at 8 requests is 80 tok/s [64, 88.9]."""
    levels = levels_table([0.1], [8], step_s_lo=0.090, step_s_hi=0.125)
    level = trace(plots.throughput_vs_running_req(intervals, levels), "level: tokens / time")
    assert level.y[0] == pytest.approx(80.0)
    assert (level.error_y.array[0], level.error_y.arrayminus[0]) == pytest.approx((80 / 0.9 - 80, 80 - 64))


def test_step_figure_has_law_band_whiskers_and_dotted_extrapolation(line, line_fits):
    assert line_fits.selected.law == "linear"
    band = confidence_band(line, line_fits.selected)
    figure = plots.step_vs_running_req(line, line_fits, band=band, up_to_req=64)
    solid = trace(figure, "linear law")
    assert (min(solid.x), max(solid.x), solid.line.dash) == (1.0, 16.0, "solid")
    dotted = [t for t in figure.data if t.name == "linear law, extrapolated"]
    assert [(min(t.x), max(t.x), t.line.dash) for t in dotted] == [(0.0, 1.0, "dot"), (16.0, 64.0, "dot")]
    assert trace(figure, "band").fill == "toself"
    level = trace(figure, "level")
    assert list(level.error_y.array) == pytest.approx(list(0.01 * line["step_s"]))
    assert titles(figure) == {"xaxis": "running requests [req]", "yaxis": "step time [s]"}
    assert figure.layout.yaxis.tickformat == "~s", "SI prefixes by tick format, data in base units"
    assert "95 % intervals" in figure.layout.title.text
    assert {t.name for t in figure.data} >= {"constant (not selected)", "hinge (not selected)"}
    alone = plots.step_vs_running_req(line, line_fits, show_candidates=False)
    assert not [t.name for t in alone.data if t.name and "not selected" in t.name]
    assert max(max(t.x) for t in alone.data) == 16.0, "no extrapolation beyond the data unless asked"


def test_step_figure_draws_the_bounds_dashed_and_named(line, line_fits):
    figure = plots.step_vs_running_req(line, line_fits, bounds=roofline(line).to_frame(), show_candidates=False)
    strict, target = trace(figure, "strict"), trace(figure, "target")
    assert list(strict.y) == pytest.approx([0.007 + 0.0001 * n for n in (1, 2, 4, 8, 16)])
    assert (strict.line.dash, target.line.dash, strict.line.color) == ("dash", "dot", style.BOUND)
    assert {a.text for a in figure.layout.annotations} == {"linear", "strict", "target"}
    unknown = roofline(line, context_tok=None).to_frame()
    assert not [t for t in plots.step_vs_running_req(line, line_fits, bounds=unknown).data if t.name == "strict"]


def test_step_figure_of_a_refused_law_shows_the_levels_alone(line):
    figure = plots.step_vs_running_req(line, refused())
    assert [t.name for t in figure.data] == ["level"]
    assert "whiskers: 95 % intervals" in figure.layout.title.text
    assert "not claimed" in figure.layout.title.text


def test_levels_that_are_not_fitted_are_hollow_and_counted(line, line_fits):
    mixed = line.assign(is_fitted=[True, True, True, True, False])
    figure = plots.step_vs_running_req(mixed, line_fits)
    out = trace(figure, "level, not fitted")
    assert list(out.x) == [16.0] and out.marker.symbol == "circle-open"
    assert "1 of 5 levels not fitted" in figure.layout.title.text


def test_levels_without_a_step_are_not_drawn(line, line_fits, intervals):
    lost = line.assign(step_s=[np.nan, *line["step_s"][1:]], decode_tok_per_s=[np.nan, *line["decode_tok_per_s"][1:]])
    assert len(trace(plots.step_vs_running_req(lost, line_fits), "level").x) == 4
    assert len(trace(plots.throughput_vs_running_req(intervals, lost), "level: tokens / time").x) == 4
    none = line.assign(step_s=np.nan)
    assert "no step time" in words(plots.step_vs_running_req(none, refused())).lower()


def test_residuals_are_ratios_with_a_zero_line_and_a_band(line, line_fits):
    figure = plots.residuals(line, line_fits)
    points = trace(figure, "linear law")
    law_s = line_fits.selected.predict_step_s(line["running_req"].to_numpy())
    assert list(points.y) == pytest.approx(list(line["step_s"] / law_s - 1))
    assert list(points.x) == ["1", "2", "4", "8", "16"]
    shapes = {(s.type, s.y0, s.y1) for s in figure.layout.shapes}
    assert shapes == {("rect", -plots.levels.TOLERANCE_FRAC, plots.levels.TOLERANCE_FRAC), ("line", 0, 0)}
    assert titles(figure)["yaxis"] == "measured over law [%]"
    assert "two levels" in words(plots.residuals(line, refused()))


def test_loo_errors_hold_both_errors_of_every_law(line_fits):
    figure = plots.loo_errors(line_fits)
    inner, top = trace(figure, "inner level (median)"), trace(figure, "top level, from those below")
    by_name = {c.law: c for c in line_fits.candidates}
    names = [name.removesuffix(" (selected)") for name in inner.y]
    assert list(inner.x) == pytest.approx([by_name[n].loo_error_frac for n in names])
    assert list(top.x) == pytest.approx([by_name[n].loo_error_top_frac for n in names])
    assert "linear (selected)" in inner.y
    assert "four levels" in words(plots.loo_errors(refused()))
    three = plots.loo_errors(laws.fit_laws(levels_table([0.03, 0.05, 0.10], [1, 4, 16])))
    assert "off there" in three.layout.title.text and "nan" not in three.layout.title.text


def test_whiskers_of_a_typed_table_are_called_rounding(line_fits, line):
    figure = plots.step_vs_running_req(line.assign(method="table"), line_fits)
    assert "half a unit of the last printed digit" in figure.layout.title.text
    assert "whiskers: 95 %" not in figure.layout.title.text


def test_phase_bar_adds_up_to_the_logged_time():
    phases = {"warmup_s": 0.0, "ramp_s": 10.0, "steady_s": 60.0, "mixed_s": 20.0, "drain_s": 5.0, "idle_s": 5.0}
    figure = plots.phase_bar(phases)
    assert sum(t.x[0] for t in figure.data) == 100.0 and len(figure.data) == 5
    assert "60 % of 100 s is steady decode" in figure.layout.title.text
    assert titles(figure)["xaxis"].endswith("[s]")
    assert "no interval with a duration" in words(plots.phase_bar(dict.fromkeys(phases, 0.0)))


def test_episode_rates_state_the_ratio():
    episodes = pd.DataFrame({
        "server_life": 0, "rank_group": "all", "episode": [0, 1], "peak_req": [1.0, 64.0], "start_s": [0.0, 90.0],
        "duration_s": [60.0, 100.0], "tokens": [600.0, 3000.0], "average_tok_per_s": [10.0, 30.0],
        "steady_tok_per_s": [12.0, np.nan], "steady_over_average": [1.2, np.nan],
    })
    figure = plots.episode_rates(episodes)
    assert list(trace(figure, "average over the whole episode").x) == [10.0, 30.0]
    assert list(trace(figure, "steady decode at the peak").x)[0] == 12.0
    assert words(figure) == "1.20x no clean interval at the peak"
    assert "17 % below its steady rate" in figure.layout.title.text, "1 - 10 / 12"
    assert "no episode" in words(plots.episode_rates(episodes.head(0))).lower()


def test_rejected_reasons_count_every_rejected_interval(intervals):
    figure = plots.rejected_reasons(intervals)
    assert sum(figure.data[0].x) == int((~intervals["clean"]).sum())
    assert set(figure.data[0].y) == set(intervals.loc[~intervals["clean"], "why"])


def test_per_rank_draws_each_rank_and_escapes_its_name(intervals):
    both = pd.concat([intervals.assign(rank="DP0"), intervals.assign(rank="<i>DP1</i>")], ignore_index=True)
    both = schema.conform(both, schema.INTERVALS)
    figure = plots.per_rank(both)
    assert {t.name for t in figure.data} == {"DP0", "&lt;i&gt;DP1&lt;/i&gt;"}
    assert all(len(t.x) == 13 for t in figure.data)
    assert "one rank" in figure_text(plots.per_rank(intervals))


def figure_text(figure):
    return f"{figure.layout.title.text} {words(figure)}"


def test_level_blocks_show_each_clean_interval_against_its_level(intervals, two_levels):
    figure = plots.level_blocks(intervals, two_levels)
    assert len(figure.data[0].x) == int(intervals["clean"].sum())
    assert list(figure.data[0].y) == pytest.approx([0.0] * len(figure.data[0].y), abs=1e-9), "every line has one rate"


def test_naive_over_level_draws_the_ratio():
    rates = pd.DataFrame({"running_req": [4.0, 8.0], "n_lines": [10, 10], "naive_tok_per_s": [36.0, 66.0],
                          "decode_tok_per_s": [40.0, 60.0], "naive_over_level": [0.9, 1.1]})
    figure = plots.naive_over_level(rates)
    assert list(figure.data[0].y) == pytest.approx([-0.1, 0.1])
    assert titles(figure)["yaxis"] == "mean of printed rates over level [%]"


def test_roofline_is_log_log_with_both_lines_named(line):
    lines = roofline(line)
    figure = plots.roofline_steps(lines, line)
    assert figure.layout.xaxis.type == figure.layout.yaxis.type == "log"
    strict, target, measured = (trace(figure, n) for n in ("strict", "target", "measured"))
    assert list(strict.y) == pytest.approx([0.007 + 0.0001 * n for n in (1, 2, 4, 8, 16)])
    assert list(target.y) == pytest.approx([2 * (0.007 + 0.0001 * n) for n in (1, 2, 4, 8, 16)])
    assert list(measured.error_y.array) == pytest.approx(list(0.01 * line["step_s"]))
    assert strict.line.dash == "dash" and target.line.dash == "dot" and strict.line.color == style.BOUND
    assert {a.text for a in figure.layout.annotations} == {"strict", "target", "measured"}, "the knee, N = 70, is far"
    assert "strict: mostly weights at N=1 to 16" in figure.layout.title.text


def test_ratio_figure_has_a_one_line_and_both_ratios(line):
    figure = plots.ratio_to_bound(roofline(line))
    over = trace(figure, "over target")
    assert list(over.y) == pytest.approx(list(line["step_s"] / (2 * (0.007 + 0.0001 * line["running_req"]))))
    assert [(s.y0, s.y1) for s in figure.layout.shapes] == [(1, 1)]
    assert titles(figure)["yaxis"] == "measured step over bound [1]"
    assert [t.name for t in figure.data] == ["over strict", "over target"], "a model by hand has no expected line"


def test_a_refused_roofline_is_said_in_the_figure(line):
    lines = roofline(line, context_tok=None)
    assert lines.refused
    for figure in (plots.roofline_steps(lines), plots.ratio_to_bound(lines)):
        assert "context per request is not known" in words(figure).replace("<br>", " ")


FIGURES = (
    "episode_rates", "level_blocks", "loo_errors", "naive_over_level", "per_rank", "phase_bar", "ratio_to_bound",
    "rejected_reasons", "residuals", "roofline_steps", "step_vs_running_req", "throughput_vs_running_req", "timeline",
)


def all_figures(intervals, line, line_fits, **texts):
    arguments = {
        "timeline": (intervals,), "rejected_reasons": (intervals,), "per_rank": (intervals,),
        "phase_bar": (segment.phase_seconds(intervals),), "episode_rates": (segment.find_episodes(intervals),),
        "throughput_vs_running_req": (intervals, line), "level_blocks": (intervals, line),
        "step_vs_running_req": (line, line_fits), "residuals": (line, line_fits), "loo_errors": (line_fits,),
        "naive_over_level": (pd.DataFrame({"running_req": [1.0], "n_lines": [1], "naive_tok_per_s": [1.0],
                                           "decode_tok_per_s": [1.0], "naive_over_level": [1.0]}),),
        "roofline_steps": (roofline(line),), "ratio_to_bound": (roofline(line),),
    }
    return {name: getattr(plots, name)(*arguments[name], **texts) for name in FIGURES}


def test_every_builder_is_pure_and_titled(intervals, line, line_fits):
    """Title and subtitle are escaped wherever they come from; two calls give one figure; inputs stay as they were."""
    before = [table.copy(deep=True) for table in (intervals, line)]
    texts = {"title": "a <b>bold</b> & long finding", "subtitle": "model <script> & co"}
    figures, again = (all_figures(intervals, line, line_fits, **texts) for _ in range(2))
    in_other_files = {"component_bars", "lever_bars", "roofline_intensity",  # test_plots_physics.py
                      "causes_bars", "client_time_bar", "role_bars", "telemetry_over_phases"}  # test_plots_evidence.py
    assert set(FIGURES) | in_other_files | {"Figure", "law_finding", "ratio_finding", "use_template"} == (
        set(plots.__all__))
    for name, figure in figures.items():
        assert isinstance(figure, go.Figure)
        assert figure.to_json() == again[name].to_json(), name
        assert "a &lt;b&gt;bold&lt;/b&gt; &amp; long finding" in figure.layout.title.text, name
        assert "model &lt;script&gt; &amp; co" in figure.layout.title.text, name
        assert json.dumps(figure.to_plotly_json()["layout"]["template"], default=str), name
    for name, figure in all_figures(intervals, line, line_fits).items():
        assert len(figure.layout.title.text) > 15, f"{name}: a computed finding"
    pd.testing.assert_frame_equal(before[0], intervals)
    pd.testing.assert_frame_equal(before[1], line)


def test_axes_carry_a_unit_in_brackets(intervals, line, line_fits):
    for name, figure in all_figures(intervals, line, line_fits).items():
        for axis, text in titles(figure).items():
            assert text.endswith("]"), (name, axis, text)


@pytest.mark.parametrize("empty", ["intervals", "levels", "both"])
def test_empty_tables_give_a_figure_that_says_so(intervals, line, empty):
    no_intervals = schema.INTERVALS.empty() if empty != "levels" else intervals
    no_levels = schema.LEVELS.empty() if empty != "intervals" else line
    figures = [plots.timeline(no_intervals), plots.throughput_vs_running_req(no_intervals, no_levels),
               plots.level_blocks(no_intervals, no_levels), plots.step_vs_running_req(no_levels, None),
               plots.rejected_reasons(no_intervals), plots.per_rank(no_intervals)]
    for figure in figures:
        assert len(figure.layout.title.text) > 10


def test_a_table_of_another_schema_is_refused(line):
    with pytest.raises(schema.SchemaError, match="INTERVALS"):
        plots.timeline(line)


def test_the_line_band_is_the_interval_of_the_intercept_at_zero(line, line_fits):
    """At the levels' lowest end the band holds the line; its width at N follows from the covariance of (a, b).

    Independent: the same weighted fit by np.polyfit (weights 1/step), scaled covariance, t(3) at 95 %.
    """
    law = line_fits.selected
    band = confidence_band(line, law, n_points=5)
    req, step_s = line["running_req"].to_numpy(), line["step_s"].to_numpy()
    (slope, intercept), covariance = np.polyfit(req, step_s, 1, w=1 / step_s, cov="unscaled")
    residual = (step_s - intercept - slope * req) / step_s
    variance = covariance * (residual @ residual) / 3
    grid = np.linspace(1, 16, 5)
    half = 3.182446305284263 * np.sqrt(variance[0, 0] * grid**2 + 2 * variance[0, 1] * grid + variance[1, 1])
    assert band["running_req"].to_numpy() == pytest.approx(grid)
    assert band["step_s_hi"].to_numpy() == pytest.approx(intercept + slope * grid + half, rel=1e-9)
    assert band["step_s_lo"].to_numpy() == pytest.approx(intercept + slope * grid - half, rel=1e-9)


def test_a_concave_law_has_a_band_around_it_and_a_refused_one_none():
    running_req = np.array([1, 2, 4, 8, 16, 32, 64, 128])
    wobble = np.array([1.004, 0.997, 1.002, 0.996, 1.003, 0.999, 1.004, 0.997])
    levels = levels_table((0.005 + 0.002 * np.sqrt(running_req)) * wobble, running_req)
    fits = laws.fit_laws(levels)
    sqrt = next(c for c in fits.candidates if c.law == "sqrt")
    band = confidence_band(levels, sqrt)
    middle_s = sqrt.predict_step_s(band["running_req"].to_numpy())
    assert (band["step_s_lo"] < middle_s).all() and (middle_s < band["step_s_hi"]).all()
    width = (band["step_s_hi"] / band["step_s_lo"] - 1).max()
    assert width < 0.05, "the wobble is 0.4 %: a band of 5 % would be no band of this fit"
    assert confidence_band(levels, refused().selected).empty


def test_the_law_panel_holds_few_labelled_controls_and_answers_in_words(line, capsys):
    panel = explore.law_panel(line, confidence=0.9)
    controls = panel.children[:-1]
    assert 1 <= len(controls) <= 4
    assert [c.description for c in controls] == ["confidence [1]", "levels [req]", "law"]
    assert controls[0].value == 0.9 and controls[1].value == ("1", "2", "4", "8", "16")
    chosen = explore.law_figure(line, confidence=0.9, running_req=("1", "4", "16"), law="linear")
    assert list(trace(chosen, "level").x) == [1.0, 4.0, 16.0]
    assert list(trace(chosen, "level, not fitted").x) == [2.0, 8.0]
    few = explore.law_figure(line, confidence=0.9, running_req=("1", "2"), law=explore.SELECTED)
    assert "not claimed" in few.layout.title.text


def test_the_what_if_panel_starts_at_the_measured_deployment_and_halves_with_ranks(line):
    told = {"hardware": "a100-sxm-80gb", "weight_bytes_per_step": 7e9, "kv_bytes_per_tok": 1e5}
    allowed = allowance.of_levels(line, merge_facts({}, told))
    panel = explore.what_if_panel(allowed, line)
    controls = panel.children[:-1]
    assert [c.description for c in controls] == ["weights", "hardware", "tp [ranks]", "context [tok]"]
    assert [c.value for c in controls] == [explore.AS_MEASURED, "A100 80GB SXM", 1, 0]
    asked = {"weights": explore.AS_MEASURED, "hardware": "A100 80GB SXM", "context_tok": 0}
    once, shared = (explore.what_if_figure(allowed, line, tp=tp, **asked) for tp in (1, 2))
    assert trace(shared, "strict").y[0] == pytest.approx(trace(once, "strict").y[0] / 2, rel=1e-9)
    assert "+0 % of what was measured" in once.layout.title.text.replace("<br>", " ")
