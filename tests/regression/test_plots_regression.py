"""Figures of a comparison by structure: traces by verdict, the band of the threshold, both laws, axes with units."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from helpers import compare
from helpers.compare.words import effect
from helpers.plots import regression as figures

LEVELS_REQ = (1.0, 4.0, 16.0, 64.0)


def run(slope_s_per_req):
    own = dict.fromkeys(LEVELS_REQ, 0.004)
    return compare.Run({n: 0.020 + slope_s_per_req * n for n in LEVELS_REQ}, own, n_clean=dict.fromkeys(LEVELS_REQ, 30))


@pytest.fixture(scope="module")
def rows():
    """20 ms per step and 1 ms per request against 1.5 ms per request."""
    return compare.compare_levels([run(0.001)], [run(0.0015)]).rows


def test_effects_are_drawn_by_verdict_over_the_threshold(rows):
    figure = figures.effects_by_row(rows, threshold_frac=0.05, subtitle="a <b>server</b>")
    judged = rows[rows["is_judged"]]
    drawn = {name: value for trace in figure.data for name, value in zip(trace.x, trace.y, strict=True)}
    names = ["1", "4", "16", "64", "fixed cost", "cost per request"]
    assert drawn == dict(zip(names, judged["effect_frac"], strict=True))
    assert {trace.name for trace in figure.data} == set(judged["verdict"].str.replace("_", " "))
    for trace in figure.data:
        assert (np.array(trace.error_y.array) > 0).all() and (np.array(trace.error_y.arrayminus) > 0).all()
    (band,) = [shape for shape in figure.layout.shapes if shape.type == "rect"]
    assert (band.y0, band.y1) == pytest.approx((1 / 1.05 - 1, 0.05))
    assert figure.layout.yaxis.title.text == "new over base [%]"
    assert list(figure.layout.xaxis.categoryarray) == names
    row = judged.iloc[3]
    shown = {name: text for trace in figure.data for name, text in zip(trace.x, trace.customdata, strict=True)}["64"]
    assert list(shown[:2]) == ["84.0 ms", "116 ms"], "20 + 64 and 20 + 96"
    assert shown[2] == effect(row) and shown[2].startswith("+38.1 % [+"), "32 of 84"
    n_worse = int((judged["verdict"] == "worse").sum())
    assert n_worse >= 2 and f"Of 6 levels and parameters: {n_worse} worse" in figure.layout.title.text
    assert "&lt;b&gt;" in figure.layout.title.text


def test_both_laws_go_through_their_levels(rows):
    runs = {"base": [run(0.001).step_s], "new": [run(0.0015).step_s, run(0.0015).step_s]}
    figure = figures.both_laws(rows, runs)
    traces = {trace.name: trace for trace in figure.data}
    assert set(traces) == {"base, measured", "base, law", "new, measured", "new, law"}
    assert len(traces["base, measured"].x) == 4 and len(traces["new, measured"].x) == 8, "every run is drawn"
    for side, slope in (("base", 0.001), ("new", 0.0015)):
        law = traces[f"{side}, law"]
        assert (law.x[0], law.x[-1]) == (1.0, 64.0), "a law ends where the data end"
        assert np.array(law.y) == pytest.approx(0.020 + slope * np.array(law.x), rel=1e-6)
    assert figure.layout.xaxis.title.text == "running requests [req]"
    assert figure.layout.yaxis.title.text == "step time [s]"
    assert "A step took 20.0 ms and 1.00 ms more per request, and takes 20.0 ms and 1.50" in figure.layout.title.text


def test_nothing_compared_is_said(rows):
    nothing = pd.DataFrame()
    assert "Nothing was compared" in figures.effects_by_row(nothing, threshold_frac=0.03).layout.title.text
    assert not figures.both_laws(nothing, {"base": [], "new": []}).data
    steps = rows[rows["kind"] == "step"]
    assert [t.name for t in figures.both_laws(steps, {"base": [{1.0: 0.02}], "new": []}).data] == ["base, measured"]
