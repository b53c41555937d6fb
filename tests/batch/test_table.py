"""The table of a batch: what a row says of a run, that no folder is lost, and that files are whole and typed.

Would catch: a unit changed on the way, an unknown that became 0, a damaged run left out or taken for good, a column
that changes its type with its contents, a half-written table.
"""

import json
import os

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from cards import INTERCEPT_S, LEVELS_REQ, SLOPE_S_PER_REQ, card_of, put, run_of

from helpers import scorecard
from helpers.batch import table
from helpers.batch.columns import RUN_LEVELS, SCORECARDS
from helpers.batch.curve import law_curve
from helpers.schema import RooflogError

FILES = ["scorecards.parquet", "scorecards.csv", "levels.parquet"]


def test_a_row_holds_what_the_scorecard_says_in_base_units():
    """Step 30 ms + 5 ms N: asymptote 1/5 ms = 200 tok/s, half of it at 30/5 = 6; at 32: 190 ms, 168.4 tok/s, of a
    target of 95 ms twice as long."""
    roofline = {"ratio": {"32": 2.0}, "ratios": {"strict": {"32": 4.0}, "target": {"1": 1.5, "32": 2.0}}}
    diagnosis = [{"cause": "weight_bandwidth", "status": "supported"}, {"cause": "healthy", "status": "weak"}]
    phases = {"ramp_s": 4.0, "steady_s": 100.0}
    card = card_of(roofline=roofline, diagnosis=diagnosis, phases=phases, notes=["a doubt"])
    row = table.flatten(card, run_of(), "server-ab12")
    expected = {
        "dump": "/data/a/server.log", "folder": "server-ab12", "status": "good", "exit_code": 0, "message": None,
        "key": "key of /data/a/server.log", "wall_s": 5.5, "engine": "sglang", "engine_version": "0.5.12",
        "model": "/models/tiny-llama", "hardware": "h100 sxm", "tp": 4, "dp": 1, "pp": None, "lines_total": 500,
        "lines_malformed": 7, "n_levels": 6, "law": "linear", "refused": None, "top_running_req": 32.0,
        "top_accept_len": None, "top_step_over_target": 2.0, "cause": "weight_bandwidth", "cause_status": "supported",
        "ramp_s": 4.0, "steady_s": 100.0, "idle_s": None, "n_warnings": 1 + len(card["fit"]["warnings"]),
        "log_sha256": f"{'ab' * 32} {'cd' * 32}", "schema_version": 1, "method_version": 1, "rooflog_version": "0.1.0",
    }
    assert {name: row[name] for name in expected} == expected
    close = {"intercept_s": 0.030, "slope_s_per_req": 0.005, "asymptote_tok_per_s": 200.0, "half_load_req": 6.0,
             "top_step_s": 0.190, "top_step_s_lo": 0.98 * 0.190, "top_step_s_hi": 1.02 * 0.190,
             "top_decode_tok_per_s": 32 / 0.190}
    assert {name: row[name] for name in close} == pytest.approx(close, rel=1e-6)
    assert row["intercept_s_lo"] <= row["intercept_s"] <= row["intercept_s_hi"]
    assert [level["running_req"] for level in row["levels"]] == LEVELS_REQ.tolist()


def test_a_row_has_every_column_and_no_other_value():
    rest = {"levels", "law_levels", "curve", "files"}
    assert set(table.flatten(card_of(), run_of(), "a")) - rest == set(SCORECARDS.names)
    assert set(table.flatten(None, {}, "a")) - rest == set(SCORECARDS.names)
    assert all(column.meaning for schema in (SCORECARDS, RUN_LEVELS) for column in schema.columns)


def test_a_refused_law_leaves_its_numbers_unknown_and_its_reason():
    row = table.flatten(card_of([1, 2], facts={"tp": None}), run_of(status="cannot_tell", exit_code=2), "a")
    assert row["law"] is None and row["refused"] and row["curve"] == []
    assert [row[name] for name in ("asymptote_tok_per_s", "half_load_req", "loo_error_frac", "tp")] == [None] * 4
    assert (row["n_levels"], row["top_running_req"], row["top_step_s"]) == (2, 2.0, pytest.approx(0.040))


def test_a_run_without_a_name_is_named_after_its_log_or_its_folder():
    plain = run_of("/data/a/sweep.log")
    del plain["dump"], plain["key"]
    assert table.flatten(None, plain, "x")["dump"] == "sweep.log"
    assert table.flatten(None, {"status": "failed"}, "x")["dump"] == "x"


def law_values(name, step_s, **more):
    """The curve of a law that is selected by hand, over the levels 1 to 32."""
    card = card_of(step_s=step_s, **more)
    selected = card["fit"]["selected"]
    selected["law"] = card["fit"]["law"] = name[0]
    selected["parameters"] = {key: {"value": value, "lo": None, "hi": None, "unit": ""} for key, value in name[1]}
    return np.array(law_curve(card))


def test_the_curve_of_each_law_is_its_formula():
    """sqrt at N=32: 10 + 32 + 2 sqrt(32) ms; moe of 8 experts, 2 a token: 10 + 32 + 5 (1 - 0.75^32) ms; the roofline
    law is the scale times the expected line at the levels."""
    sqrt = law_values(("sqrt", [("intercept_s", .010), ("slope_s_per_req", .001), ("sqrt_s_per_sqrt_req", .002)]), None)
    assert sqrt[[0, -1], 0].tolist() == [1.0, 32.0] and len(sqrt) > 6
    assert sqrt[-1, 1] == pytest.approx(0.042 + 0.002 * 32**0.5)
    moe = law_values(("moe", [("intercept_s", .010), ("slope_s_per_req", .001), ("experts_s", .005)]), None,
                     facts={"n_experts": 8, "n_experts_active": 2})
    assert moe[-1, 1] == pytest.approx(0.042 + 0.005 * (1 - 0.75**32))
    roofline = {"expected": {"step_s": {"1": 0.010, "32": 0.020, "16": 0.015, "64": 0.030}}}
    scaled = law_values(("roofline", [("scale", 1.5)]), None, roofline=roofline)
    assert scaled.tolist() == [[1.0, 0.015], [16.0, 0.0225], [32.0, 0.03]]
    line = law_curve(card_of())
    assert line == [(1.0, pytest.approx(INTERCEPT_S + SLOPE_S_PER_REQ)), (32.0, pytest.approx(0.190))]


def test_a_law_that_the_scorecard_cannot_evaluate_has_no_curve():
    moe = ("moe", [("intercept_s", .010), ("slope_s_per_req", .001), ("experts_s", .005)])
    assert law_values(moe, None).size == 0  # the number of experts is not in the facts
    assert law_values(("roofline", [("scale", 1.5)]), None).size == 0
    assert law_values(("of tomorrow", [("x", 1.0)]), None).size == 0


@pytest.fixture
def out(tmp_path):
    """Two good runs, one whose notebook failed, and what else lies in a folder of runs."""
    put(tmp_path, "b-1", card_of(), run_of("/data/b.log"))
    put(tmp_path, "a-1", card_of([1, 2]), run_of("/data/a.log", status="cannot_tell", exit_code=2))
    put(tmp_path, "c-1", None, run_of("/data/c.log", status="failed", exit_code=3, message="00: DeadKernelError: died"))
    put(tmp_path, ".partial-1", card_of(), run_of("/data/hidden.log"))
    (tmp_path / ".batch").mkdir()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "note.txt").write_text("not a run")
    (tmp_path / "scorecards.csv").write_text("old")
    return tmp_path


def test_read_rows_finds_whole_runs_only_by_dump(out):
    rows, failures = table.read_rows(out)
    assert [(row["dump"], row["folder"], row["status"]) for row in rows] == [
        ("/data/a.log", "a-1", "cannot_tell"), ("/data/b.log", "b-1", "good"), ("/data/c.log", "c-1", "failed")]
    assert rows[2]["message"] == "00: DeadKernelError: died"
    assert rows[2]["files"] == ["report.html", "00_diagnose.ipynb"]
    assert failures == []
    assert table.read_rows(out / "nowhere") == ([], [])


def damaged_card(folder):
    (folder / "scorecard.json").write_text('{"schema_version": 1}')


DAMAGE = {
    "run.json cut off": lambda folder: (folder / "run.json").write_text('{"status": "go'),
    "run.json is a list": lambda folder: (folder / "run.json").write_text("[]"),
    "run.json missing": lambda folder: (folder / "run.json").unlink(),
    "run.json not text": lambda folder: (folder / "run.json").write_bytes(b"\xff\xfe\x00"),
    "scorecard missing": lambda folder: (folder / "scorecard.json").unlink(),
    "scorecard cut off": lambda folder: (folder / "scorecard.json").write_text('{"schema_ver'),
    "scorecard of other keys": damaged_card,
    "wrong type": lambda folder: (folder / "run.json").write_text(json.dumps(run_of(wall_s="long"))),
    "wrong time": lambda folder: (folder / "run.json").write_text(json.dumps(run_of(started_utc="noon"))),
    "newer schema": lambda folder: (folder / "scorecard.json").write_text('{"schema_version": 99}'),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_folder_that_cannot_be_read_is_a_failure_and_spoils_nothing(out, name):
    DAMAGE[name](out / "b-1")
    rows, failures = table.read_rows(out)
    assert [row["folder"] for row in rows] == ["a-1", "c-1"]
    assert [(failure["dump"], failure["file"]) for failure in failures] == [("b-1", "b-1")]
    assert failures[0]["message"].startswith("the run folder cannot be read: ")
    table.write_table(rows, out)


def test_failures_are_read_unless_a_whole_run_settled_them(out):
    records = out / "failures"
    records.mkdir()
    said = {"dump": "/data/p.log", "name": "p-1", "key": "p", "message": "p.log: no engine", "is_final": True}
    (records / "p-1.json").write_text(json.dumps(said))
    (records / "b-0.json").write_text(json.dumps(said | {"dump": "/data/b.log", "key": "key of /data/b.log"}))
    (records / "o-1.json").write_text(json.dumps(said | {"key": "", "message": "", "is_overtaken": True}))
    (records / "x-1.json").write_text("{")
    _, failures = table.read_rows(out)
    assert [(failure["dump"], failure["file"]) for failure in failures] == [
        ("/data/p.log", "failures/p-1.json"), ("x-1", "failures/x-1.json")]
    assert failures[0]["message"] == "p.log: no engine"


def test_the_files_hold_the_rows_with_types_and_units(out):
    rows, _ = table.read_rows(out)
    assert [file.name for file in table.write_table(rows, out)] == FILES
    runs, levels = (pd.read_parquet(out / name) for name in (FILES[0], FILES[2]))
    assert {name: str(dtype) for name, dtype in runs.dtypes.items()} == {c.name: c.dtype for c in SCORECARDS.columns}
    assert runs["top_step_s"].tolist()[:2] == [rows[0]["top_step_s"], rows[1]["top_step_s"]]
    assert pd.isna(runs.loc[2, "top_step_s"]) and pd.isna(runs.loc[0, "law"]) and runs.loc[2, "tp"] is pd.NA
    assert str(runs.loc[0, "started_utc"]) == "2026-11-30 00:44:23+00:00"
    assert levels["dump"].tolist() == ["/data/a.log"] * 2 + ["/data/b.log"] * 6
    field = pq.read_schema(out / FILES[0]).field("slope_s_per_req")
    assert field.metadata[b"unit"] == b"s/req" and field.metadata[b"meaning"]
    csv = pd.read_csv(out / FILES[1])
    assert list(csv.columns) == SCORECARDS.names and csv["intercept_s"].tolist()[1] == rows[1]["intercept_s"]
    assert csv["refused"].tolist()[0] == rows[0]["refused"]


def test_no_rows_leave_the_same_columns(tmp_path):
    table.write_table([], tmp_path)
    runs = pd.read_parquet(tmp_path / FILES[0])
    assert {name: str(dtype) for name, dtype in runs.dtypes.items()} == {c.name: c.dtype for c in SCORECARDS.columns}
    assert (tmp_path / FILES[1]).read_text().strip() == ",".join(SCORECARDS.names)


def test_a_table_that_cannot_be_written_leaves_the_old_one(out, monkeypatch):
    rows, _ = table.read_rows(out)
    table.write_table(rows, out)
    before = {name: (out / name).read_bytes() for name in FILES}

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pd.DataFrame, "to_csv", full)
    with pytest.raises(RooflogError, match="cannot be written: No space left"):
        table.write_table(rows[:1], out)
    assert {name: (out / name).read_bytes() for name in FILES} == before
    assert [name for name in os.listdir(out) if name.startswith(".partial-") and name != ".partial-1"] == []


def test_the_sample_that_was_simulated_lies_in_its_row(data, tmp_path):
    """The truth of the sample, 51.9 ms + 30.3 ms N, lies inside the intervals of its row."""
    from helpers.analysis import analyse

    folder = data / "samples" / "sim-field-case-a"
    truth = json.loads((folder / "truth.json").read_text())["server"]["law"]
    card = analyse(folder / "server.log", context=folder / "facts.yaml").scorecard
    put(tmp_path, "a-1", card, run_of(status=["good", "check_failed", "cannot_tell"][scorecard.exit_code(card)]))
    row = table.read_rows(tmp_path)[0][0]
    assert row["intercept_s_lo"] < truth["intercept_s"] < row["intercept_s_hi"]
    assert row["slope_s_per_req_lo"] < truth["slope_s_per_req"] < row["slope_s_per_req_hi"]
    assert row["top_step_over_target"] > 1 and row["cause"]
