"""`rooflog plan`: what it prints and writes, and its exit codes."""

from __future__ import annotations

import json
import os

import pytest
import typer

from helpers.cli.plan import plan_command
from helpers.schema import SCHEMA_VERSION, RooflogError

CARD = {
    "schema_version": SCHEMA_VERSION,
    "run": {"engine": "sglang", "engine_version": "0.5.14", "model": "m", "hardware": "h200", "parallel": {"tp": 4},
            "facts": {"context_length_max": 1048576}},
    "fit": {"intercept_s": 0.052, "slope_s_per_req": 0.030, "refused": None},
    "levels": [{"running_req": n, "step_s": 0.052 + 0.030 * n, "is_fitted": True} for n in (1, 16, 64)],
    "roofline": None, "components": [],
    "diagnosis": [
        {"cause": "max_context_work", "status": "compatible", "score": 2.0},
        {"cause": "latency_or_occupancy", "status": "compatible", "score": 1.0},
        {"cause": "communication", "status": "refuted", "score": -3.0},
        {"cause": "host_or_scheduler", "status": "weak", "score": None},
    ],
}


def run(folder, code=0, **options) -> None:
    defaults = {"out": "", "experiment": "", "context": "", "as_json": False, "debug": False}
    with pytest.raises(typer.Exit) as ended:
        plan_command(str(folder), **{**defaults, **options})
    assert ended.value.exit_code == code


@pytest.fixture
def folder(tmp_path):
    write(tmp_path)
    return tmp_path


def write(folder, **changes) -> None:
    (folder / "scorecard.json").write_text(json.dumps({**CARD, **changes}))


def test_prints_the_experiment_and_writes_a_script(folder, capsys):
    run(folder)
    said = capsys.readouterr().out
    assert "Restart with a context limit of 8192 tokens instead of 1048576 and run 16 requests." in said
    assert "Takes about 5.84 min." in said  # 320 x 532 ms and three minutes
    assert "- max_context_work: step at N=16 falls from 532 ms to 55.8 ms or less" in said
    assert "- latency_or_occupancy: step at N=16 stays at 532 ms within 5 %" in said
    assert "communication" not in said
    file = folder / "plan.sh"
    assert f"Written: {file}" in said and os.access(file, os.X_OK)
    assert "--context-length 8192" in file.read_text()
    assert sorted(path.name for path in folder.iterdir()) == ["plan.sh", "scorecard.json"]


def test_json_out_and_another_experiment(folder, capsys):
    run(folder, experiment="clock_lock", out=str(folder / "clock.sh"), as_json=True)
    card = json.loads(capsys.readouterr().out)
    assert card["experiment"] == "clock_lock" and card["script"] == str(folder / "clock.sh")
    assert set(card["predicts"]) == {"latency_or_occupancy", "host_or_scheduler"}
    assert "rises from 532 ms to 665 ms" in card["predicts"]["latency_or_occupancy"]  # 532 / 0.8
    assert "--lock-gpu-clocks" in (folder / "clock.sh").read_text() and not (folder / "plan.sh").exists()


def test_what_the_user_says_wins_over_what_the_run_was_told(folder, capsys):
    (folder / "run.json").write_text(json.dumps({"parameters": {"context": '{"context_length_max": 131072}'}}))
    run(folder)
    assert "instead of 131072" in capsys.readouterr().out
    run(folder, context='{"context_length_max": 262144, "parallel": {"tp": 8}}')
    assert "instead of 262144" in capsys.readouterr().out
    assert "--tp-size 8" in (folder / "plan.sh").read_text()


def test_nothing_to_tell_apart_is_2_and_writes_nothing(folder, capsys):
    write(folder, diagnosis=[CARD["diagnosis"][0], CARD["diagnosis"][2]])
    run(folder, code=2)
    assert "max_context_work is the only cause that is not refuted" in capsys.readouterr().out
    write(folder, diagnosis=CARD["diagnosis"][2:3])
    run(folder, code=2, as_json=True)
    assert json.loads(capsys.readouterr().out)["why"] == "every cause that an experiment can test is refuted"
    assert not (folder / "plan.sh").exists()


def test_another_engine_gets_the_plan_but_no_script(folder, capsys):
    write(folder, run={**CARD["run"], "engine": "llamacpp"})
    run(folder, code=2)
    said = capsys.readouterr().out
    assert "No script: expected engine sglang or vllm, found llamacpp" in said and "Predicted:" in said
    assert not (folder / "plan.sh").exists()


@pytest.mark.parametrize(("change", "message"), [
    (lambda f: (f / "scorecard.json").unlink(), "or the folder of a run, found a folder without scorecard.json; give"),
    (lambda f: (f / "scorecard.json").write_text("{"), "expected a scorecard, found no JSON; give the folder"),
    (lambda f: (f / "scorecard.json").write_text('{"schema_version": 99}'), "expected a scorecard of schema_version"),
    (lambda f: (f / "run.json").write_text("{"), "expected the record of a run, found no JSON of that form"),
    (lambda f: write(f, diagnosis=["x"]), "expected diagnosis entries with a cause"),
])
def test_bad_input_is_one_line_and_writes_nothing(folder, change, message):
    change(folder)
    with pytest.raises(RooflogError, match=message):  # the command line turns it into exit 3
        plan_command(str(folder), out="", experiment="", context="", as_json=False, debug=False)
    assert not (folder / "plan.sh").exists()


def test_a_folder_that_is_not_there_is_said_in_words(tmp_path):
    with pytest.raises(RooflogError, match="nope: expected a scorecard or .*, found no such file or folder") as error:
        plan_command(str(tmp_path / "nope"), out="", experiment="", context="", as_json=False, debug=False)
    assert "Errno" not in str(error.value)


def test_a_good_step_asks_for_nothing_but_what_is_named(folder, capsys):
    good = {"cause": "kv_bandwidth", "status": "supported", "score": 4.0}
    write(folder, diagnosis=[good, {**CARD["diagnosis"][0], "score": 0.0}])
    run(folder, code=2)
    assert "No experiment: the step is what the hardware allows" in capsys.readouterr().out
    run(folder, experiment="context_cap")
    assert "Restart with a context limit" in capsys.readouterr().out


def test_an_unknown_experiment_names_those_there_are(folder):
    with pytest.raises(RooflogError, match="expected one of context_cap, .*clock_lock"):
        plan_command(str(folder), out="", experiment="x", context="", as_json=False, debug=False)


def test_a_target_that_cannot_be_written_leaves_nothing(folder):
    with pytest.raises(RooflogError, match="expected a file that can be written"):
        plan_command(str(folder), out=str(folder / "no" / "plan.sh"), experiment="", context="", as_json=False,
                     debug=False)
    assert [path.name for path in folder.iterdir()] == ["scorecard.json"]
