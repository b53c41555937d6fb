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


def _decode(running_req, tok_per_s, used_tok):
    return (f"Decode batch, #running-req: {running_req}, #token: {used_tok}, token usage: 0.14, cuda graph: True, "
            f"gen throughput (token/s): {tok_per_s:.2f}, #queue-req: 0")


def test_an_impossible_estimate_of_the_server_is_called_out(tmp_path):
    """At 64 requests SGLang charges the weights 64 times: 3.4 GB x 64 per 30 ms would be 7,250 GB/s."""
    lines = [
        f"[2026-08-01 10:00:{i:02d} TP0] {_decode(n, n / 0.03, 1000 + 40 * n * i)}, "
        f"est. decode TFLOPS/s (per GPU): 3.10, est. read BW (GB/s per GPU): {3.4 * n / 0.03:.2f}"
        for n in (1, 64) for i in range(6)
    ]
    log = tmp_path / "server.log"
    log.write_text("\n".join(lines) + "\n")
    told = {"model_config": "Qwen3-30B-A3B", "hardware": "h200"}
    notes = " ".join(analysis.analyse(log, context=told).scorecard["run"]["notes"])
    assert "above the 4800 GB/s of one H200 SXM 141GB in 6 of 12 lines (up to 7253)" in notes


def test_a_board_named_twice_is_no_contradiction(tmp_path):
    line = ("[2026-08-01 10:00:00 TP0] Config file not found at E=128,N=768,device_name=NVIDIA_H200.json\n"
            f"[2026-08-01 10:00:01 TP0] {_decode(4, 400, 4000)}\n")
    log = tmp_path / "server.log"
    log.write_text(line)
    of_log = analysis.analyse(log)
    assert of_log.facts.get("hardware") == "NVIDIA H200" and of_log.facts.source["hardware"] == "log"
    assert analysis.analyse(log, context={"hardware": "h200"}).facts.contradictions == ()
    (said,) = analysis.analyse(log, context={"hardware": "h100-sxm"}).facts.contradictions
    assert said == "hardware: the log says NVIDIA H200, --context says h100-sxm; h100-sxm is used"


MOE = SAMPLES / "sim-healthy-moe" / "server.log"
MOE_FACTS = {"model": "Qwen3-30B-A3B", "hardware": "h200"}


@pytest.mark.parametrize(("what_if", "complaint"), [
    ({"tp": ["two"]}, "what_if.tp: expected whole numbers from 1, found 'two'"),
    ({"tp": True}, "what_if.tp"),
    ({"tp": 1.5}, "what_if.tp"),
    ({"context_tok": [1000, "x"]}, "what_if.context_tok: expected numbers above 0, found 'x'"),
    ({"step_budget_s": "20ms"}, "what_if.step_budget_s"),
    ({"running_req": [0]}, "what_if.running_req"),
    ({"weights": {"a": 1}}, "what_if.weights: expected names"),
    ({"weights": [None]}, "what_if.weights"),
    ({"hardware": "h100"}, "what_if: hardware 'h100': expected one accelerator"),
])
def test_a_change_of_another_type_is_said(what_if, complaint):
    card = analysis.analyse(MOE, context=MOE_FACTS | {"what_if": what_if}).scorecard
    assert card["levers"] == [] and card["roofline"]["ratio"]
    assert any(complaint in note and "no lever is computed" in note for note in card["run"]["notes"])


def test_nothing_drafted_is_nothing_accepted():
    what_if = {"accept_len": [1, 2], "context_tok": "500", "weights": None}
    levers = {lever["lever"]: lever for lever in
              analysis.analyse(MOE, context=MOE_FACTS | {"what_if": what_if}).scorecard["levers"]}
    assert levers["accept length 1 instead of 1"]["change_frac"] == 0
    assert "nothing is drafted" in levers["accept length 2 instead of 1"]["refused"]
    assert "weights in fp8" in levers and any(name.startswith("context of 500 tok") for name in levers)


def test_a_context_told_beside_those_of_the_log_is_said():
    notes = analysis.analyse(MOE, context=MOE_FACTS | {"context_tok": 200_000}).scorecard["run"]["notes"]
    assert any(note.startswith("context_tok: the levels have") and "200000 tok" in note for note in notes)
    notes = analysis.analyse(MOE, context=MOE_FACTS | {"context_tok": 1000}).scorecard["run"]["notes"]
    assert not any(note.startswith("context_tok") for note in notes)
