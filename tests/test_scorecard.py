"""The scorecard: its keys are the regression baseline's contract, it never holds NaN, its answer hides nothing.

Would catch: a key renamed, a NaN written as NaN, an interval dropped from the answer, a refusal reported as good.
"""

import json
import math
import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from helpers import scorecard
from helpers.display import show
from helpers.schema import INTERVALS, LEVELS, Fits, LawFit, LogFormatError, Parameter, SchemaError, conform

# Section -> keys of the published contract; `extra` are ours beside it.
CONTRACT = {
    "run": ("log_sha256", "engine", "engine_version", "model", "hardware", "parallel", "command"),
    "ingest": ("lines_total", "lines", "by_kind"),
    "levels": ("running_req", "n_clean", "n_rejected", "step_s", "step_s_lo", "step_s_hi", "decode_tok_per_s",
               "accept_len"),
    "fit": ("law", "intercept_s", "intercept_s_lo", "intercept_s_hi", "slope_s_per_req", "slope_s_per_req_lo",
            "slope_s_per_req_hi", "dof", "n_levels", "asymptote_tok_per_s", "asymptote_tok_per_s_lo",
            "asymptote_tok_per_s_hi", "half_load_req", "loo_error_frac", "warnings", "refused", "selected"),
    "phases": ("ramp_s", "steady_s", "mixed_s", "drain_s", "idle_s"),
    "client": ("output_tok_per_s", "steady_over_client"),
    "roofline": ("strict", "expected", "target", "ratio", "assumptions"),
    "checks": ("name", "value", "limit", "pass"),
}
EXTRA = {
    "fit": {"prediction", "rounding_envelope", "context"},
    "run": {"server_life", "n_server_lives", "fitted_lives", "notes", "facts"},
    "levels": {"server_life", "rank_group", "clean_s", "context_tok", "is_fitted", "note"},
    "phases": {"warmup_s", "n_intervals", "n_clean"},
    "client": {"source", "steady_tok_per_s", "running_req", "other_s", "duration_s"},
    "roofline": {"refused"},
}
TOP = ["schema_version", "method_version", "run", "ingest", "levels", "fit", "phases", "client", "roofline",
       "components", "components_by_level", "diagnosis", "levers", "next_experiment", "checks"]


def levels_table(**columns):
    table = {
        "server_life": [0, 0, 0], "rank_group": "all", "population": 0, "running_req": [1.0, 16.0, 64.0],
        "n_clean": [4, 5, 6], "clean_s": [10.0, 20.0, 30.0], "step_s": [0.082, 0.55, 1.95],
        "step_s_lo": [0.08, 0.54, 1.9], "step_s_hi": [0.084, 0.56, 2.0], "decode_tok_per_s": [12.2, 29.0, 32.85],
        "method": "median_of_blocks", "is_fitted": True, "n_rejected": ['{"prefill": 2}', "{}", '{"prefill": 3}'],
    }
    return conform(pd.DataFrame({**table, **columns}), LEVELS)


def line(**changes):
    parameters = (Parameter("intercept_s", 0.0519, 0.0362, 0.0676, "s"),
                  Parameter("slope_s_per_req", 0.0303, 0.0197, 0.041, "s/req"))
    fit = LawFit("linear", parameters, dof=1, n_levels=3, running_req_min=1, running_req_max=64,
                 asymptote_tok_per_s=33.0, asymptote_tok_per_s_lo=24.4, asymptote_tok_per_s_hi=50.8, half_load_req=1.71)
    return replace(fit, **changes)


def fits_of(selected, linear=None):
    return Fits(linear or line(), selected, (selected,), "the only one")


def log_of(lines_total=10):
    counts = {"lines_total": lines_total, "by_kind": {"decode": 7},
              "lines": {"statistic": 7, "event": 1, "other_known": 1, "other": 1, "malformed": 0}}
    return SimpleNamespace(
        accounting=SimpleNamespace(as_dict=lambda: counts), engine="sglang", engine_version="0.5.9", facts=({}, {}),
        sources=(SimpleNamespace(sha256="ab" * 32),),
    )


def intervals_table(n=12, n_clean=5):
    row = {c.name: {"int64": 0, "float64": 1.0, "bool": False, "str": "steady"}.get(c.dtype)
           for c in INTERVALS.columns}
    return conform(pd.DataFrame([row | {"clean": i < n_clean} for i in range(n)]), INTERVALS)


def card(**changes):
    arguments = {
        "log": log_of(), "intervals": intervals_table(), "levels": levels_table(), "fits": fits_of(line()),
        "facts": {"model": "some-model", "tp": np.int64(4), "hardware": "h100-sxm"},
        "phases": {"warmup_s": 0.0, "ramp_s": 20.0, "steady_s": 60.0, "mixed_s": 5.0, "drain_s": 10.0, "idle_s": 1.0},
    } | changes
    positional = [arguments.pop(name) for name in ("log", "intervals", "levels", "fits")]
    return scorecard.build(*positional, **arguments)


ROOFLINE = {
    "strict": {"intercept_s": 0.001, "slope_s_per_req": 1e-4, "step_s": {"1": 0.0011, "16": 0.0026, "64": 0.0074}},
    "expected": None,
    "target": {"intercept_s": 0.0012, "slope_s_per_req": 1.2e-4, "step_s": {"1": 0.0013, "16": 0.0032, "64": 0.009}},
    "ratio": {"1": 63.0, "16": 172.0, "64": 216.0}, "assumptions": ["by hand"], "refused": None,
}


def test_keys_are_the_contract():
    full = card(roofline=ROOFLINE, client=scorecard.Client(29.71, "user", 32.85, 64.0))
    assert list(full) == TOP
    for section, keys in CONTRACT.items():
        entry = full[section][0] if isinstance(full[section], list) else full[section]
        assert set(entry) == set(keys) | EXTRA.get(section, set()), section
    assert set(full["run"]["parallel"]) == {"tp", "dp", "pp", "ep"}
    assert set(full["fit"]["selected"]) >= {"law", "parameters", "loo_error_frac", "loo_error_top_frac", "selection",
                                            "warnings", "refused"}
    assert full["fit"]["selected"]["parameters"]["intercept_s"] == {
        "value": 0.0519, "lo": 0.0362, "hi": 0.0676, "unit": "s"}


def test_contract_is_the_design_document(shared):
    text = (shared / "design.md").read_text()
    section = text[text.index("## 7. Scorecard"):text.index("## 8.")]
    for name, keys in CONTRACT.items():
        found = re.search(rf"`{name}` (?:\[ )?\{{(.*?)\}}(?: \]| \||\s\()", section.replace("\n", " "))
        assert found, name
        assert set(keys) - {"selected"} == set(re.findall(r"\w+", re.sub(r"\{.*?\}", "", found[1]))) - {"n", "s", "x"}


def test_values_go_through_unrounded_and_unknown_is_null():
    full = card()
    assert full["fit"]["slope_s_per_req"] == 0.0303
    assert full["levels"][0]["accept_len"] is None
    assert full["levels"][2]["n_rejected"] == {"prefill": 3}
    assert full["fit"]["loo_error_frac"] is None  # NaN in the law
    assert full["run"]["parallel"] == {"tp": 4, "dp": None, "pp": None, "ep": None}
    assert (full["components"], full["diagnosis"], full["levers"], full["next_experiment"]) == ([], [], [], None)
    assert full["phases"]["n_clean"] == 5


def test_straight_line_stays_beside_another_law():
    moe = line(law="moe", parameters=(Parameter("expert_s", 0.01, 0.008, 0.012, "s"),), dof=0,
               asymptote_tok_per_s=math.nan, loo_error_frac=0.01, loo_error_top_frac=0.02)
    full = card(fits=fits_of(moe))
    assert full["fit"]["law"] == "moe" and full["fit"]["dof"] == 1
    assert full["fit"]["intercept_s"] == 0.0519 and full["fit"]["asymptote_tok_per_s"] is None
    assert list(full["fit"]["selected"]["parameters"]) == ["expert_s"]
    text = scorecard.answer(full)
    assert "Law: moe, intercept + " in text and ": expert = 10.0 ms [8.00, 12.0]" in text
    assert "The straight line, for comparison: 51.9 ms [36.2, 67.6]" in text
    assert "inner level is off by 1.00 %" in text and "top level by 2.00 %" in text
    assert "no asymptote is claimed" in text


def test_other_populations_are_not_levels():
    table = pd.concat([levels_table(), levels_table(population=1)], ignore_index=True)
    assert len(card(levels=table)["levels"]) == 3


def test_json_has_no_nan_and_reads_back(tmp_path):
    full = card(roofline=ROOFLINE | {"ratio": {"1": float("inf")}})
    text = scorecard.dumps(full)
    assert "NaN" not in text and "Infinity" not in text
    assert text.startswith('{\n "schema_version": 1')
    file = scorecard.write(full, tmp_path)
    assert file == tmp_path / "scorecard.json" and [p.name for p in tmp_path.iterdir()] == ["scorecard.json"]
    assert scorecard.read(tmp_path) == scorecard.read(file) == full


@pytest.mark.parametrize(
    ("value", "plain"),
    [(np.float64("nan"), None), (pd.NA, None), (pd.NaT, None), (np.int64(3), 3), (np.bool_(True), True), (True, True),
     ((1, np.nan), [1, None]), ({1: -np.inf}, {"1": None}), (np.array([1.5]), [1.5])],
)
def test_plain_values(value, plain):
    found = scorecard.to_plain(value)
    assert found == plain and type(found) is type(plain)
    json.dumps(found, allow_nan=False)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema_version": "1"}', '{"schema_version": 99}', "{"])
def test_read_refuses_what_is_no_scorecard(tmp_path, text):
    (tmp_path / "scorecard.json").write_text(text)
    with pytest.raises(LogFormatError, match="expected a scorecard"):
        scorecard.read(tmp_path)


def test_read_of_nothing(tmp_path):
    with pytest.raises(LogFormatError, match="No such file"):
        scorecard.read(tmp_path / "nosuch.json")


def test_build_checks_its_tables():
    with pytest.raises(SchemaError, match="LEVELS"):
        card(levels=levels_table().drop(columns="step_s"))
    with pytest.raises(SchemaError, match="INTERVALS"):
        card(intervals=intervals_table().drop(columns="clean"))


def test_checks_and_exit_codes(tmp_path):
    good = card(roofline=ROOFLINE)
    assert [c["pass"] for c in good["checks"]] == [True, True]
    assert scorecard.exit_code(good) == 0
    scorecard.require_checks(good, tmp_path)
    assert list(tmp_path.iterdir()) == []
    refused = card(fits=fits_of(line(refused="fewer than three levels")))
    assert scorecard.exit_code(refused) == 2
    lost = card(log=log_of(lines_total=11), fits=fits_of(line(refused="fewer than three levels")))
    assert lost["checks"][0] == {"name": "every line is counted exactly once", "value": 10, "limit": 11, "pass": False}
    assert scorecard.exit_code(lost) == 1
    with pytest.raises(scorecard.CheckFailed, match="every line is counted exactly once: 10, limit 11"):
        scorecard.require_checks(lost, tmp_path)
    assert scorecard.read(tmp_path) == lost


def test_a_level_faster_than_the_bound_fails_the_check():
    # Upper end of the step at N=16 is 0.56 s; a strict step of 0.7 s cannot be: a fact is wrong.
    strict = ROOFLINE["strict"] | {"step_s": {"16": 0.7}}
    check = card(roofline=ROOFLINE | {"strict": strict})["checks"][1]
    assert check["pass"] is False and check["value"] == pytest.approx(0.8)  # 0.56 / 0.7


def test_answer_names_everything_with_unit_and_interval():
    text = scorecard.answer(card(roofline=ROOFLINE, client=scorecard.Client(
        29.71, "log", 32.85, 64.0, {"ramp": 38.0, "mixed": 0.0, "drain": 20.0}, 400.0)))
    for part in (
        "Measured: sglang 0.5.9, server life 0 (0 is the first of 2): 3 levels, N=1 to N=64 running requests; "
        "5 of 12 intervals of the log are clean decode, 60.0 s of 96.0 s. Left out most: prefill (5).",
        "step time = 51.9 ms [36.2, 67.6] + N x 30.3 ms/req [19.7, 41.0] (95 % interval, 1 degree of freedom; "
        "valid from N=1 to N=64)",
        "At N=64 the server decodes 32.9 tok/s in steps of 1950 ms [1900, 2000]",
        "above 33.0 tok/s [24.4, 50.8]", "half of which is reached at N=1.71",
        "at N=1 a step takes 63.0x the target (strict 1.10 ms, target 1.30 ms)", "at N=64 a step takes 216x the target",
        "average over the load that peaked at N=64 (from the log) is 29.7 tok/s, the steady rate 32.9 tok/s: 1.11x, "
        "because the average also holds 38.0 s of ramp + 20.0 s of drain in 6.67 min",
    ):
        assert part in text


def test_answer_says_why_there_is_no_roofline_and_no_law():
    text = scorecard.answer(card(
        levels=levels_table().iloc[:1],
        fits=fits_of(line(parameters=(), refused="one level only."), line(parameters=())),
        roofline={"strict": None, "expected": None, "target": None, "ratio": {}, "assumptions": [],
                  "refused": "not known: hardware"},
        notes=["tp: the log says 4, --context says 8; 8 is used"],
    ))
    assert "1 level, N=1 running requests" in text
    assert "Step time at N=1: 82.0 ms [80.0, 84.0], 12.2 tok/s." in text
    assert "No law of step time is claimed: one level only.\nFor a law, " in text
    assert "Distance from the roofline: not stated; not known: hardware." in text
    assert "Doubt: tp: the log says 4, --context says 8; 8 is used." in text


def test_answer_of_a_table_and_of_nothing():
    fits = replace(fits_of(line()), rounding_envelope={"intercept_s": (0.05, 0.054), "slope_s_per_req": (0.029, 0.031)})
    table = scorecard.answer(card(log=None, intervals=None, phases=None, log_sha256=["cd" * 32], fits=fits))
    assert "digit of the table alone allows 50.0 ms to 54.0 ms and 29.0 ms/req to 31.0 ms/req" in table
    assert table.startswith("Measured: 3 levels, N=1 to N=64 running requests, from a table of rates")
    nothing = card(levels=LEVELS.empty(), fits=fits_of(line(parameters=(), refused="no level")))
    assert "no level with clean decode" in scorecard.answer(nothing)
    json.loads(scorecard.dumps(nothing))


def test_levels_without_a_step_are_listed_but_not_counted():
    table = levels_table(step_s=[0.082, np.nan, 1.95], is_fitted=[True, False, True], n_clean=[4, 0, 6])
    full = card(levels=table)
    assert full["levels"][1]["step_s"] is None and len(full["levels"]) == 3
    assert "2 levels, N=1 to N=64" in scorecard.answer(full)
    refused = card(levels=table.assign(is_fitted=False), fits=fits_of(line(refused="too few")))
    assert "Step time at N=1: " in scorecard.answer(refused) and "N=16" not in scorecard.answer(refused)


def test_levels_of_other_server_lives_stand_in_the_table_only():
    both = levels_table().iloc[[0, 0, 1]].assign(
        server_life=[0, 1, 1], step_s=[0.082, 0.05, 0.06], is_fitted=[True, False, False])
    refused = fits_of(line(parameters=(), refused="one level only."), line(parameters=()))
    text = scorecard.answer(card(levels=both, fits=refused))
    assert "Step time at N=1: 82.0 ms" in text and "50.0 ms" not in text and "60.0 ms" not in text


def test_answer_calls_a_round_a_round_and_shouts_a_failed_check():
    text = scorecard.answer(card(levels=levels_table(accept_len=2.5), log=log_of(lines_total=11)))
    assert "round time = " in text
    assert "CHECK FAILED: every line is counted exactly once: found 10, limit 11; do not use" in text


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((0.0519, "s", 0.0362, 0.0676), "51.9 ms [36.2, 67.6]"),
        ((1.951, "s"), "1951 ms"), ((0.0001, "s"), "0.100 ms"), ((3e-9, "s"), "3.00e-06 ms"),
        ((33.0, "tok/s"), "33.0 tok/s"), ((12345.6, "tok/s"), "12346 tok/s"), ((9.99e8, "bytes"), "9.99e+08 bytes"),
        ((90.0, "duration"), "90.0 s"), ((600.0, "duration"), "10.0 min"), ((0.0, "s"), "0 ms"),
        ((-0.05, "s", None, 1.0), "-50.0 ms"), ((None, "s"), "unknown"), ((math.nan, "s"), "unknown"),
        ((0.5, "s", math.nan, 1.0), "500 ms"), ((0.9998, ""), "1.00"), ((np.int64(7), ""), "7"), ((999.7, ""), "1000"),
        ((0.5, "1"), "0.500"),
    ],
)
def test_numbers_for_a_person(arguments, text):
    assert show(*arguments) == text
