"""A log held against its hardware: lines, components, levers and doubts as they reach the scorecard."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers import allowance, analysis
from helpers.physics.what_if.levers import Change

SAMPLES = Path(__file__).resolve().parents[1] / "data" / "samples"
CASE_A = {"model_config": "DeepSeek-V4-Flash-NVFP4", "hardware": "rtx pro 6000 blackwell server"}


@pytest.fixture(scope="module")
def case_a():
    return analysis.analyse(SAMPLES / "sim-field-case-a" / "server.log", context=CASE_A | {"prompt_tokens": 256})


def test_distance_of_field_case_a(case_a):
    roofline = case_a.scorecard["roofline"]
    # off_roofline_real of the field tables at N = 1, 16, 64 (22.6, 44.6, 66.7); the log is simulated after them, at
    # a mean context of 512 instead of 320 tok
    assert [roofline["ratio"][key] for key in ("1", "16", "64")] == pytest.approx([22.58, 44.63, 66.67], rel=0.05)
    assert roofline["ratio"] == roofline["ratios"]["target"]
    assert roofline["ratios"]["strict"]["64"] > roofline["ratios"]["expected"]["64"] > roofline["ratio"]["64"]
    assert roofline["regimes"] == {"1": "weights", "16": "experts", "32": "experts", "64": "experts"}
    assert roofline["prefill"]["prompt_tok"] == 256 and roofline["prefill"]["strict_s"] > 0
    assert case_a.allowed.impossible == ()


def test_components_add_up_at_every_level(case_a):
    card = case_a.scorecard
    measured = {f"{level['running_req']:g}": level["step_s"] for level in card["levels"] if level["is_fitted"]}
    assert set(card["components_by_level"]) == set(measured)
    for key, rows in card["components_by_level"].items():
        assert sum(row["time_s"] for row in rows) == pytest.approx(measured[key])
        assert all(row["lo"] <= row["time_s"] <= row["hi"] for row in rows)
    assert card["components"] == card["components_by_level"]["64"]
    (rest,) = [row for row in card["components"] if row["name"] == "unexplained"]
    assert rest["share_frac"] > 0.97 and rest["source"]
    assert "is unexplained" in case_a.answer


def test_levers_start_from_the_measured_step(case_a):
    card = case_a.scorecard
    top = max((level for level in card["levels"]), key=lambda level: level["running_req"])
    by_name = {lever["lever"]: lever for lever in card["levers"]}
    fewer = by_name["fewer requests: N=32"]
    law = case_a.fits.selected
    assert fewer["tok_per_s"] == pytest.approx(32 / float(law.predict_step_s(32.0)), rel=1e-6)
    h200 = by_name["on H200 SXM 141GB"]
    # 98 % of the step is unexplained and stays: a faster board gives next to nothing
    assert 0 < h200["change_frac"] < 0.03 and h200["lo"] < h200["tok_per_s"] < h200["hi"]
    assert h200["step_s"] < top["step_s"]
    assert "outside the measured" in by_name["more requests: N=128"]["refused"]


def test_what_if_chooses_the_changes():
    log = SAMPLES / "sim-field-case-a" / "server.log"
    asked = {"weights": ["fp8"], "kv": [], "hardware": ["h100-sxm"], "tp": [8], "running_req": [4],
             "context_tok": [100], "step_budget_s": [0.6]}
    levers = analysis.analyse(log, context=CASE_A | {"what_if": asked}).scorecard["levers"]
    names = [lever["lever"] for lever in levers]
    assert names[:3] == ["weights in fp8", "on H100 SXM 80GB", "tp 8 instead of 4"]
    assert any("fewer requests: N=4" in name for name in names)
    # 52 + 30.3 N ms within 600 ms: N = 18
    assert any("largest load with a step within 600 ms: N=18" in name for name in names)
    wrong = analysis.analyse(log, context=CASE_A | {"what_if": {"colour": ["red"]}})
    assert wrong.scorecard["levers"] == [] and any("what_if" in note for note in wrong.scorecard["run"]["notes"])


def test_a_change_of_nothing_is_the_measured_rate(case_a):
    lever = allowance.lever_of(case_a.allowed, case_a.levels, Change())
    top = case_a.levels.set_index("running_req").loc[64.0]
    assert lever.tok_per_s == pytest.approx(64 / top["step_s"]) and lever.change_frac == 0
    same = allowance.changed_roofline(case_a.allowed, Change())
    assert same.target.step_s == pytest.approx(case_a.roofline.target.step_s)


def test_a_model_too_large_for_the_board_is_a_doubt(case_a):
    found = analysis.analyse(SAMPLES / "sim-field-case-a" / "server.log",
                             context={"model_config": "DeepSeek-V3", "hardware": "h100-sxm"})
    assert any("the weights do not fit" in note for note in found.scorecard["run"]["notes"])
    assert found.scorecard["roofline"]["ratio"]  # said, not fatal


def test_a_step_below_the_bound_names_the_input():
    log = SAMPLES / "sim-healthy-moe" / "server.log"
    found = analysis.analyse(log, context={"model_config": "Meta-Llama-3.1-405B", "hardware": "l40s"})
    notes = " ".join(found.scorecard["run"]["notes"])
    assert "measured faster than the lower bound" in notes and "most likely" in notes
    assert all(lever["refused"] for lever in found.scorecard["levers"] if "requests: N=" not in lever["lever"])


def test_without_hardware_only_the_roofline_is_missing():
    card = analysis.analyse(SAMPLES / "sim-field-case-a" / "server.log").scorecard
    assert "hardware" in card["roofline"]["refused"] and card["roofline"]["strict"] is None
    assert (card["components"], card["components_by_level"], card["levers"]) == ([], {}, [])
