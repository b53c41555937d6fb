"""Which points a live timeline draws, and what the browser tells it: tables made here, messages as browsers send.

Would catch: a peak that thinning loses, a point outside the view, a brush that is not heard, data of another trace.
"""

import time

import numpy as np
import pandas as pd
import pytest

from helpers import plots, schema
from helpers.plots import live

SIZE = {"width_px": 950, "height_px": 360}


def table(n, seed=0):
    """INTERVALS, one every second: decode rates about 100 tok/s; every 7th is not clean."""
    rng = np.random.default_rng(seed)
    is_clean = np.arange(n) % 7 != 0
    return schema.conform(pd.DataFrame({
        "file": "a.log", "line_no": np.arange(1, n + 1), "t_s": np.arange(n, dtype=float), "engine": "sglang",
        "server_life": 0, "rank_group": "all", "running_req_printed": 4, "running_req": 4.0, "running_req_total": 4.0,
        "decode_tok_per_s": 100 * rng.lognormal(0, 0.02, n), "interval_s": 1.0, "idle_s": 0.0, "step_s": 0.04,
        "prefill_tok": 0.0, "episode": 0, "label": "steady", "clean": is_clean, "why": np.where(is_clean, "ok", "no"),
    }), schema.INTERVALS)


@pytest.fixture(scope="module")
def many():
    return table(100_000)


def test_a_peak_and_a_dip_among_100_000_are_drawn(many):
    odd = many.assign(decode_tok_per_s=many["decode_tok_per_s"].mask(many.index == 54_321, 900.0)
                      .mask(many.index == 12_345, 1.0))
    drawn, note = live.keep_extremes(odd)
    assert {12_345, 54_321} <= set(drawn.index) and len(drawn) <= live.DRAWN_POINTS
    assert note == f"{len(drawn)} of 100000 points drawn, extremes kept; zoom in for more"
    assert drawn["t_s"].is_monotonic_increasing


def test_a_view_draws_what_lies_in_it_and_a_tenth_on_either_side(many):
    drawn, note = live.keep_extremes(many, within_s=(1000.0, 1500.0))
    assert drawn["t_s"].tolist() == list(range(950, 1551)) and note == ""
    assert live.keep_extremes(many.assign(t_s=np.nan))[0].empty


def test_zooming_in_on_100_000_draws_more_of_less_and_takes_little_time(many):
    """0.13 to 0.25 s measured on two shared cores; a second would be felt."""
    figure = live.live_timeline(many, **SIZE)
    assert all(len(trace.x) <= live.DRAWN_POINTS for trace in figure.data) and len(figure.data) == 4
    widget = live.live_figure(figure)
    start = time.process_time()
    live.refresh(widget, live.live_timeline(many, within_s=(1000.0, 1400.0), **SIZE))
    assert time.process_time() - start < 1.0
    shown = np.concatenate([trace.x for trace in widget.data if trace.yaxis == "y"])
    assert sorted(shown) == list(range(960, 1441))


def test_the_drawn_points_are_those_of_the_notebook_where_they_are_few():
    few = table(300)
    for ours, theirs in zip(live.live_timeline(few, **SIZE).data, plots.timeline(few).data, strict=True):
        assert (ours.name, ours.yaxis) == (theirs.name, theirs.yaxis) and list(ours.x) == list(theirs.x)


def test_refreshing_matches_traces_by_name_and_empties_those_that_are_gone():
    few, new = table(30), []
    widget = live.live_figure(live.live_timeline(few, **SIZE))
    live.refresh(widget, live.live_timeline(few.assign(clean=False), **SIZE), new.append)
    by_name = {(trace.name, trace.yaxis): trace for trace in widget.data}
    assert not by_name["steady", "y"].visible and by_name["steady", "y"].x is None
    assert len(by_name["steady (not clean)", "y2"].x) == 30
    live.refresh(widget, live.live_timeline(few.assign(label="ramp"), **SIZE), new.append)
    assert sorted(trace.name for trace in new) == ["ramp"] * 2 + ["ramp (not clean)"] * 2


BOX = {"xref": "x", "yref": "y", "type": "rect", "x0": 20.5, "x1": 4.25, "y0": 9.0, "y1": 0.0}


def test_a_brush_is_heard_in_either_direction_and_its_box_goes_away():
    widget, heard = live.live_figure(live.live_timeline(table(30), **SIZE)), []
    live.on_brush(widget, lambda *span: heard.append(span))
    widget.plotly_relayout({"selections": [BOX]}, source_view_id="a")
    widget.plotly_relayout({"selections": []}, source_view_id="a")
    widget.plotly_relayout({"selections[0].x0": 3.0}, source_view_id="a")
    assert heard == [(4.25, 20.5)] and widget.layout.selections == ()


def test_a_view_is_heard_when_it_changes():
    widget, heard = live.live_figure(live.live_timeline(table(30), **SIZE)), []
    live.on_zoom(widget, heard.append)
    widget.plotly_relayout({"xaxis.range[0]": 3.0, "xaxis.range[1]": 9.0}, source_view_id="a")
    widget.plotly_relayout({"xaxis.autorange": True}, source_view_id="a")
    assert (3.0, 9.0) in heard and heard[-1] is None
