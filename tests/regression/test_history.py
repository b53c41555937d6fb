"""Runs in time: which stand in one series, in which order, where they changed, and what the command says.

Would catch: runs of two configurations in one series, one log counted twice, numbers of another method, runs ordered by
their analysis and not their log, a change laid at the wrong run, a page that runs what a log holds.
"""

import copy
import json
import re
from datetime import datetime, timedelta
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest
import typer
from typer.testing import CliRunner

from helpers import synth
from helpers.analysis import analyse
from helpers.cli.history import history
from helpers.plots.history import history_panels
from helpers.regression import past_runs
from helpers.regression.history import COLUMNS, History, history_card, read_history, series_name
from helpers.regression.history_page import history_page
from helpers.schema import LogFormatError, RooflogError

LEVELS_REQ = np.array([1, 4, 16, 64])
START = datetime(2026, 9, 1, 12)
APP = typer.Typer()
APP.command()(history)


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """A scorecard of a typed table, with an interval of 1 % at each level, whose numbers the tests replace."""
    file = tmp_path_factory.mktemp("table") / "rates.csv"
    file.write_text("running_req,decode_tok_per_s\n" + "".join(f"{n},{n / (0.02 + 0.001 * n)}\n" for n in LEVELS_REQ))
    facts = {"model": "m-70b", "hardware": "h100-sxm", "tp": 4, "engine": "sglang", "engine_version": "0.5.1"}
    return json.loads(json.dumps(analyse(file, context=facts).scorecard))


def write_run(folder, template, day, intercept_s=0.020, slope_s_per_req=0.001, *, sha="", accept_len=None, name="",
              **facts):
    """Write a run folder of a law, analysed `day` days after START; return the folder."""
    card = copy.deepcopy(template)
    for level in card["levels"]:
        step_s = intercept_s + slope_s_per_req * level["running_req"]
        level |= {"step_s": step_s, "step_s_lo": step_s * 0.99, "step_s_hi": step_s * 1.01, "accept_len": accept_len}
    card["fit"] |= {
        "intercept_s": intercept_s, "intercept_s_lo": intercept_s * 0.9, "intercept_s_hi": intercept_s * 1.1,
        "slope_s_per_req": slope_s_per_req, "asymptote_tok_per_s": 1 / slope_s_per_req,
    }  # fmt: skip
    card["run"]["log_sha256"] = [sha or f"{folder.name}-{day}"]
    card["run"]["facts"] |= facts
    card["run"]["engine_version"] = card["run"]["facts"]["engine_version"]
    at = START + timedelta(days=day)
    where = folder / (name or f"{at:%Y%m%dT%H%M%SZ}-00")
    where.mkdir(parents=True)
    (where / "scorecard.json").write_text(json.dumps(card))
    (where / "run.json").write_text(json.dumps({"started_utc": f"{at.isoformat()}+00:00", "status": "good",
                                                "parameters": {"log_path": "/gone/server.log"}}))
    return where


def write_series(folder, template, n, *, at=None, slope_frac=0.0, seed=0, **more):
    """Write n runs that scatter by 1 % as a whole; from run `at` on the slope is larger."""
    rng = np.random.default_rng(seed)
    for day in range(n):
        off = np.exp(rng.normal(0, 0.01))
        slope = 0.001 * off * (1 + (slope_frac if at is not None and day >= at else 0))
        write_run(folder, template, day, 0.020 * off, slope, **more)


def of(card, name, configuration=0):
    return next(s for s in card["series"] if series_name(s) == name and s["configuration"] == configuration)


def test_a_slope_that_grew_by_10_percent_is_found_at_its_run(tmp_path, template):
    """A step at level N grows by 10 % of its per-request share: N / (20 + N), 7.6 % at 64 and 0.5 % at 1."""
    write_series(tmp_path, template, 24, at=12, slope_frac=0.10)
    card = history_card(read_history(tmp_path))
    slope = of(card, "cost per request")
    assert [c["index"] for c in slope["changes"]] == [12] and slope["changes"][0]["is_worse"]
    assert slope["changes"][0]["lo_frac"] < 0.10 < slope["changes"][0]["hi_frac"]
    assert of(card, "step at N=64")["changes"][0]["effect_frac"] == pytest.approx(0.0762, abs=0.015)
    assert of(card, "step at N=1")["verdict"] == "same" and of(card, "fixed cost")["verdict"] == "same"
    assert slope["verdict"] == "worse" and card["exit_code"] == 1
    assert "20260913T120000Z-00" in slope["sentence"]
    found = card["configurations"][0]
    assert found["verdict"] == "worse" and "cost per request" in found["sentence"]
    # the asymptote is the slope again: shown, and not judged
    assert of(card, "asymptote")["changes"][0]["is_worse"] and not of(card, "asymptote")["is_judged"]


def test_a_gain_passes_and_no_change_passes(tmp_path, template):
    write_series(tmp_path / "gain", template, 24, at=12, slope_frac=-0.10)
    card = history_card(read_history(tmp_path / "gain"))
    assert card["exit_code"] == 0 and card["configurations"][0]["verdict"] == "better"
    write_series(tmp_path / "none", template, 24)
    card = history_card(read_history(tmp_path / "none"))
    assert card["exit_code"] == 0 and {s["verdict"] for s in card["series"]} == {"same"}


def test_a_regression_that_was_mended_passes_and_is_shown(tmp_path, template):
    for day in range(24):
        write_run(tmp_path, template, day, 0.020 * (1.1 if 8 <= day < 16 else 1) * (1 + 0.004 * (day % 2)))
    fixed = of(card := history_card(read_history(tmp_path)), "fixed cost")
    assert [(c["index"], c["is_worse"]) for c in fixed["changes"]] == [(8, True), (16, False)]
    assert fixed["verdict"] == "better" and card["exit_code"] == 0


def test_the_judged_series_of_a_configuration_share_the_false_alarm():
    """Ten series of 12 runs without change: any step in 5 of 100 folders, so 3 of 60; unshared (3 each) it were 16."""
    called = 0
    for seed in range(60):
        noise = np.random.default_rng(seed).normal(0, 0.02, (10, 12))
        points = pd.DataFrame([
            {"configuration": 0, "quantity": "step_s", "running_req": float(level), "unit": "s", "value": np.exp(off),
             "when": START + timedelta(days=day), "clock": "run", "run": str(day), "engine_version": ""}
            for level, row in enumerate(noise, start=1) for day, off in enumerate(row)
        ], columns=list(COLUMNS))
        card = history_card(History(points, ("m",), ()), threshold_frac=0.001)
        called += any(entry["verdict"] in ("worse", "better") for entry in card["series"])
    assert called <= 6


def test_accepted_length_counts_the_other_way(tmp_path, template):
    for day in range(16):
        write_run(tmp_path, template, day, accept_len=(3.0 if day < 8 else 2.7) * (1 + 0.002 * (day % 2)))
    accepted = of(history_card(read_history(tmp_path)), "accepted tokens per round at N=16")
    assert accepted["changes"][0]["is_worse"] and accepted["verdict"] == "worse" and accepted["unit"] == "tok"


def test_too_few_runs_cannot_tell(tmp_path, template):
    write_series(tmp_path, template, 5)
    card = history_card(read_history(tmp_path))
    assert card["exit_code"] == 2
    assert card["configurations"][0]["sentence"] == "5 runs of this configuration: 6 are needed."


def write_six(folder, template, days, names):
    """Write six runs, the last three 10 % slower, that scatter by 0.4 %, in folders of these names."""
    for i, (day, name) in enumerate(zip(days, names, strict=True)):
        slower = (1.1 if i >= 3 else 1.0) * (1 + 0.004 * (i % 2))
        write_run(folder, template, day, 0.020 * slower, 0.001 * slower, sha=name, name=name)


def test_runs_with_the_same_time_are_in_no_order_whatever_their_folders_are_called(tmp_path, template):
    """The same six runs by name as three fast and three slow, and in turn: both were verdicts of the name alone."""
    cards = []
    for names in ("abcdef", "acebdf"):
        write_six(tmp_path / names, template, [0] * 6, names)
        cards.append(history_card(read_history(tmp_path / names)))
    for card in cards:
        assert card["exit_code"] == 2 and {s["verdict"] for s in card["series"]} == {"cannot_tell"}
        assert of(card, "fixed cost")["sentence"].startswith("Cannot tell: runs 1 to 6 have the same time")
        assert "no order" in card["configurations"][0]["sentence"] and "6 of 6 runs have the same" in card["notes"][-1]
    assert cards[0]["configurations"] == cards[1]["configurations"]
    # a day between them, and the step is found
    write_six(tmp_path / "dated", template, range(6), "abcdef")
    assert history_card(read_history(tmp_path / "dated"))["exit_code"] == 1


def test_logs_that_begin_at_the_same_time_are_not_ordered_by_their_analysis(tmp_path, template, monkeypatch):
    monkeypatch.setattr(past_runs, "_log_time", lambda *given: START)
    write_six(tmp_path, template, range(6), "abcdef")
    card = history_card(read_history(tmp_path))
    assert card["exit_code"] == 2 and "order of analysis" in card["notes"][0]


def test_a_drift_to_the_worse_cannot_tell_and_one_to_the_better_passes(tmp_path, template):
    for sign, code in ((1, 2), (-1, 0)):
        folder = tmp_path / str(sign)
        for day in range(30):
            off = (1 + sign * 0.2 * day / 29) * np.exp(np.random.default_rng(day).normal(0, 0.005))
            write_run(folder, template, day, 0.02 * off, 0.001 * off)
        card = history_card(read_history(folder))
        assert card["exit_code"] == code and "drift" in of(card, "fixed cost")["sentence"]


def test_one_series_per_configuration_and_engine_versions_stay_together(tmp_path, template):
    write_series(tmp_path / "a", template, 4, engine_version="0.5.1")
    write_run(tmp_path / "b", template, 30, engine_version="0.5.2")
    write_run(tmp_path / "c", template, 31, hardware="a100-sxm-80gb")
    write_run(tmp_path / "d", template, 32, tp=8)
    found = read_history(tmp_path)
    sizes = found.points.drop_duplicates("run").groupby("configuration").size().tolist()
    assert sizes == [5, 1, 1]
    assert found.configurations == ("m-70b, h100-sxm", "m-70b, a100-sxm-80gb", "m-70b, h100-sxm, tp 8 (not 4)")
    assert tuple(found.points.columns) == COLUMNS


def test_the_engine_version_at_a_step_is_named(tmp_path, template):
    for day in range(16):
        write_run(tmp_path, template, day, 0.02 * (1.2 if day >= 8 else 1) * (1 + 0.002 * (day % 2)),
                  engine_version="0.5.1" if day < 8 else "0.5.2")
    assert "engine 0.5.1 to 0.5.2" in of(history_card(read_history(tmp_path)), "fixed cost")["sentence"]


def test_a_run_that_may_be_of_two_configurations_is_of_neither(tmp_path, template):
    write_run(tmp_path, template, 0, tp=4)
    write_run(tmp_path, template, 1, tp=8)
    unclear = write_run(tmp_path, template, 2, tp=None)
    found = read_history(tmp_path)
    assert found.left_out == ((str(unclear), "its configuration is not stated enough: it may be one of 2 that differ"),)


def test_a_log_that_was_analysed_twice_is_one_run_the_later(tmp_path, template):
    first = write_run(tmp_path, template, 0, 0.020, sha="x")
    later = write_run(tmp_path, template, 5, 0.030, sha="x")
    found = read_history(tmp_path)
    assert set(found.points["run"]) == {str(later)}
    assert found.left_out == ((str(first), f"the same log as {later}"),)


def test_what_is_left_out_is_named_with_its_reason(tmp_path, template):
    good = write_run(tmp_path, template, 0)
    old = write_run(tmp_path, {**template, "method_version": 0}, 1)
    failed = write_run(tmp_path, template, 2)
    (failed / "scorecard.json").unlink()
    wrong = write_run(tmp_path, {**template, "checks": [{"name": "every line is counted", "pass": False}]}, 3)
    broken = write_run(tmp_path, template, 4)
    (broken / "scorecard.json").write_text("{")
    timeless = write_run(tmp_path, template, 5)
    (timeless / "run.json").unlink()
    empty = write_run(tmp_path, {**template, "levels": []}, 6)
    (tmp_path / ".partial-1").mkdir()
    (tmp_path / ".partial-1" / "run.json").write_text("{}")
    compared = write_run(tmp_path, template, 7)
    (compared / "comparison.json").write_text("{}")
    found = read_history(tmp_path)
    assert set(found.points["run"]) == {str(good)}
    why = dict(found.left_out)
    assert set(why) == {str(run) for run in (old, failed, wrong, broken, timeless, empty)}
    assert "method_version 0, not 1" in why[str(old)] and "no scorecard" in why[str(failed)]
    assert "check failed" in why[str(wrong)] and "JSON" in why[str(broken)] and "no time" in why[str(timeless)]
    assert "level" in why[str(empty)]


def test_parameters_of_other_levels_are_no_points_of_the_law(tmp_path, template):
    """A line through 1, 4 and 16 is not that through 1 to 64 where the law bends; its levels are points still."""
    write_series(tmp_path, template, 6)
    fewer = {**template, "levels": [level for level in template["levels"] if level["running_req"] < 64]}
    write_run(tmp_path, fewer, 20)
    card = history_card(read_history(tmp_path))
    assert len(of(card, "step at N=16")["points"]) == 7 and len(of(card, "cost per request")["points"]) == 6


def test_runs_are_placed_by_the_first_stamp_of_their_log(tmp_path, template):
    """Three logs of May, June and July 2026, analysed in another order; SGLang prints whole dates."""
    server = synth.Server(law=synth.StepLaw(intercept_s=0.02, slope_s_per_req=0.001))
    client = synth.Client(levels_req=(1, 4), output=synth.Lengths(mean_tok=128))
    log = tmp_path / "server.log"
    synth.simulate(server, client, seed=1).write(log)
    text = log.read_text()
    stamp = re.search(r"\[(\d{4}-\d\d-\d\d) \d\d:\d\d:\d\d", text)[1]
    for day, month in enumerate((7, 5, 6)):
        copied = tmp_path / f"{month}.log"
        copied.write_text(text.replace(stamp, f"2026-{month:02}-20"))
        sha = analyse(copied).scorecard["run"]["log_sha256"][0]
        run = write_run(tmp_path / "runs", template, day, 0.02 + month / 1e5, sha=sha)
        record = json.loads((run / "run.json").read_text())
        (run / "run.json").write_text(json.dumps({**record, "parameters": {"log_path": str(copied)}}))
    found = read_history(tmp_path / "runs").points
    fixed = found[found["quantity"] == "intercept_s"]
    assert fixed["value"].tolist() == pytest.approx([0.02005, 0.02006, 0.02007]) and set(fixed["clock"]) == {"log"}
    assert fixed["when"].dt.month.tolist() == [5, 6, 7]
    (tmp_path / "5.log").write_text("another log")  # no longer what the run read
    moved = read_history(tmp_path / "runs")
    assert moved.points["clock"].value_counts().idxmin() == "run"
    assert "1 of 3 runs are placed by the time of their analysis" in history_card(moved)["notes"][0]


def test_stamps_without_a_year_are_of_the_year_before_the_analysis(tmp_path, shared, template):
    """vLLM prints month and day: 11-29. Analysed on 1 September 2026, that was in 2025."""
    log = shared / "logs/own/vllm-sweep/server.log"
    sha = analyse(log).scorecard["run"]["log_sha256"][0]
    run = write_run(tmp_path, template, 0, sha=sha)
    record = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**record, "parameters": {"log_path": str(log)}}))
    points = read_history(tmp_path).points
    assert points["when"].dt.strftime("%Y-%m-%d").unique().tolist() == ["2025-11-29"]


def test_no_folder_and_no_run_are_refused(tmp_path):
    for folder in (tmp_path / "nosuch", tmp_path):
        with pytest.raises(LogFormatError, match="expected .* folder"):
            read_history(folder)


class Scripts(HTMLParser):
    def __init__(self, page):
        super().__init__()
        self.tags, self.texts, self.links = [], [], []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.links += [value for name, value in attrs if name in ("src", "href")]

    def handle_data(self, data):
        if self.tags and self.tags[-1] not in ("script", "style"):
            self.texts.append(data)


def test_the_page_is_offline_and_shows_text_of_logs_as_text(tmp_path, template):
    name = "<img src=x onerror=alert(1)>&m"
    write_series(tmp_path / "a", template, 6, model=name)
    write_series(tmp_path / "b", template, 6, model=name, tp=8)
    page = history_page(history_card(read_history(tmp_path)))
    parsed = Scripts(page)
    assert parsed.links == [] and page.count("plotly.js v") == 1 and len(page) < 6_000_000
    assert any(text.startswith(name) for text in parsed.texts)
    assert "img" not in parsed.tags and "<img" not in page
    assert parsed.tags.count("table") == 2
    # a phone shows the first three columns; the finding is text, which wraps as plotly's titles do not
    assert "<th>quantity</th><th>verdict</th><th>changes</th><th>runs</th>" in page
    assert page.count("<figcaption><strong>Of 6 runs none begins a change") == 2
    assert '"title":{"text":"Of 6 runs' not in page


def test_the_figure_has_runs_segments_steps_and_intervals(tmp_path, template):
    write_series(tmp_path, template, 24, at=12, slope_frac=0.10)
    series = [of(history_card(read_history(tmp_path)), name) for name in ("cost per request", "fixed cost")]
    figure = history_panels(series, ["cost per request", "fixed cost"], threshold_frac=0.03, title="t", subtitle="s")
    runs = [trace for trace in figure.data if trace.mode == "markers"]
    assert [len(trace.x) for trace in runs] == [24, 24] and runs[1].error_y.array is not None
    segments = [trace for trace in figure.data if trace.mode == "lines"]
    assert len(segments) == 3 and segments[1].y[0] == pytest.approx(0.10, abs=0.02)
    texts = [a.text for a in figure.layout.annotations]
    assert any(text.startswith("worse +") and text.endswith("]") for text in texts)
    assert any(shape.line.dash == "dash" for shape in figure.layout.shapes)
    assert "20260901T120000Z-00" in runs[0].customdata[0] and "ms/req" in runs[0].customdata[0][2]
    assert figure.layout.yaxis.title.text == "change [%]"


def call(*words):
    found = CliRunner().invoke(APP, [str(word) for word in words])
    return found.exit_code, found.stdout


def test_the_command_prints_writes_and_exits_by_the_newest_runs(tmp_path, template):
    write_series(tmp_path / "runs", template, 24, at=12, slope_frac=0.10)
    page = tmp_path / "history.html"
    code, out = call(tmp_path / "runs", "--out", page)
    assert code == 1 and "m-70b, h100-sxm: worse" in out and "cost per request" in out and page.is_file()
    assert call(tmp_path / "runs", "--threshold", "0.2")[0] == 0
    code, out = call(tmp_path / "runs", "--json")
    card = json.loads(out)
    assert (code, card["exit_code"], card["kind"]) == (1, 1, "history")
    assert isinstance(CliRunner().invoke(APP, [str(tmp_path / "nosuch")]).exception, LogFormatError)
    with pytest.raises(RooflogError, match="--threshold"):
        history(str(tmp_path), threshold=3.0)
