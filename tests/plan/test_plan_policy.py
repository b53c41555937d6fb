"""Which experiment a diagnosis asks for, and that `rooflog run` and `rooflog plan` name the same one."""

from __future__ import annotations

import json

import pytest
import typer

from helpers import scorecard, synth
from helpers.analysis import analyse
from helpers.cli.plan import plan_command
from helpers.diagnose.causes import UNKNOWN
from helpers.diagnose.judge import OF_HARDWARE
from helpers.plan import choose, choose_for, from_card, is_good, policy, standing
from helpers.plan.changes import graph_words
from helpers.schema import LogFormatError

KNOWN = {"engine": "sglang", "context_length_max": 1048576, "max_running_requests": 64,
         "levels": [{"running_req": n, "step_s": 0.05 + 0.03 * n} for n in (1, 16)]}


def entry(cause: str, status: str, score: float | None = 1.0, seen: bool = True) -> dict:
    return {"cause": cause, "status": status, "score": score, "evidence_for": ["x"] if seen else [],
            "evidence_against": []}


def test_the_causes_of_a_good_step_are_those_of_the_diagnosis():
    assert policy.GOOD == OF_HARDWARE and policy.UNKNOWN == UNKNOWN


def test_a_good_step_asks_for_nothing_unless_something_else_stands():
    good = [entry("kv_bandwidth", "supported", 4.0), entry("weight_bandwidth", "compatible"), entry("healthy", "weak"),
            entry("communication", "refuted")]
    assert choose(standing(good), KNOWN)  # they could be told apart
    assert is_good(good) and choose_for(good, KNOWN) == []
    rival = [*good, entry("max_context_work", "compatible", 1.0)]
    assert not is_good(rival) and choose_for(rival, KNOWN)
    assert is_good([*good, entry("max_context_work", "compatible", 0.0)])  # nothing speaks for it
    assert not is_good([entry("kv_bandwidth", "compatible", 4.0)]) and not is_good([])


def test_a_cause_about_which_nothing_was_seen_stands_far_behind():
    seen = [entry("max_context_work", "supported", 3.0), entry("communication", "compatible", 0.0, seen=False)]
    assert standing(seen) == {"max_context_work": ("supported", 3.0), "communication": ("compatible", -2.0)}
    assert standing([{"cause": "communication", "status": "weak", "score": None}]) == {"communication": ("weak", None)}
    with pytest.raises(LogFormatError, match="diagnosis entries with a cause"):
        standing(["x"])


def test_what_collects_evidence_comes_first_where_nothing_is_known():
    causes = [entry(cause, "compatible", 0.0, seen=False) for cause in
              ("max_context_work", "communication", "host_or_scheduler", "power_or_thermal")]
    plans = choose_for([entry("unknown", "compatible"), *causes], KNOWN)
    gathering = [plan.name in policy.GATHERING for plan in plans]
    assert gathering[0] and gathering == sorted(gathering, reverse=True) and not all(gathering)
    usual = [plan.name for plan in choose_for([*causes, entry("unknown", "weak")], KNOWN)]
    assert usual != [plan.name for plan in plans] and set(usual) == {plan.name for plan in plans}
    assert usual == [plan.name for plan in choose(standing(causes), KNOWN)]


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    """The scorecard of a simulated sweep, as a run writes it."""
    folder = tmp_path_factory.mktemp("run")
    server = synth.Server(law=synth.StepLaw(intercept_s=0.020, slope_s_per_req=0.010))
    client = synth.Client(levels_req=(1, 4, 16), output=synth.Lengths(mean_tok=400))
    synth.simulate(server, client, seed=1).write(folder / "server.log")
    found = analyse(str(folder / "server.log"), context='{"hardware": "h100-sxm"}')
    scorecard.write(found.scorecard, folder)
    (folder / "run.json").write_text(json.dumps({"parameters": {"context": '{"hardware": "h100-sxm"}'}}))
    return folder, found


def planned(folder, capsys, **options) -> dict:
    arguments = {"out": str(folder / "plan.sh"), "experiment": "", "context": "", "debug": False, **options}
    with pytest.raises(typer.Exit):
        plan_command(str(folder), as_json=True, **arguments)
    return json.loads(capsys.readouterr().out)


def test_run_and_plan_name_the_same_experiment_with_the_same_duration(run_folder, capsys):
    folder, found = run_folder
    named = scorecard.read(folder)["next_experiment"]
    plan = planned(folder, capsys)
    assert named["command"].endswith(f"--experiment {plan['experiment']}")
    assert plan["duration_s"] == pytest.approx(named["duration_s"], rel=1e-9)
    assert plan["what"] == named["what"] and plan["predicts"] == named["predicts"]
    ranked = choose_for(scorecard.read(folder)["diagnosis"], from_card(scorecard.read(folder)))
    assert [p.name for p in ranked][:3] == [p.name for p in found.judgement.plans][:3]


def test_what_the_run_named_is_taken_before_what_ranks_first_unless_there_is_news(run_folder, capsys, tmp_path):
    card = scorecard.read(run_folder[0])
    first, second = (plan.name for plan in choose_for(card["diagnosis"], from_card(card))[:2])
    card["next_experiment"]["command"] = f"rooflog plan RUN_DIR --experiment {second}"
    scorecard.write(card, tmp_path / scorecard.FILE_NAME)
    assert planned(tmp_path, capsys)["experiment"] == second
    assert planned(tmp_path, capsys, experiment=first)["experiment"] == first
    assert planned(tmp_path, capsys, context='{"gpus": 1}')["experiment"] == first


def test_telemetry_that_the_run_had_is_not_asked_for_again(run_folder, capsys, tmp_path):
    card = scorecard.read(run_folder[0]) | {"diagnosis": [entry("unknown", "compatible"), *(
        entry(cause, "compatible", 0.0, seen=False) for cause in ("power_or_thermal", "host_or_scheduler"))]}
    card["next_experiment"] = None
    scorecard.write(card, tmp_path / scorecard.FILE_NAME)
    assert planned(tmp_path, capsys)["experiment"] == "add_telemetry"
    (tmp_path / "run.json").write_text(json.dumps({"parameters": {"telemetry": "/gpu.csv"}}))
    assert planned(tmp_path, capsys)["experiment"] != "add_telemetry"


def test_the_model_of_the_script_is_the_one_that_the_server_was_given(run_folder, capsys, tmp_path):
    card = scorecard.read(run_folder[0])
    card["run"]["model"] = card["run"]["facts"]["model"] = "Llama-3.1-8B"
    card["run"]["facts"]["model_served"] = "/srv/models/llama"
    scorecard.write(card, tmp_path / scorecard.FILE_NAME)
    planned(tmp_path, capsys)
    script = tmp_path / "plan.sh"
    assert "\nDEFAULT_MODEL=/srv/models/llama\n" in script.read_text()
    del card["run"]["facts"]["model_served"]
    scorecard.write(card, tmp_path / scorecard.FILE_NAME)
    planned(tmp_path, capsys)
    assert "\nDEFAULT_MODEL=Llama-3.1-8B\n" in script.read_text()


def test_captured_sizes_are_those_of_the_log_unless_they_are_what_changes():
    assert graph_words("sglang", {}, [1, 2, 8], ()) == ["--cuda-graph-bs", "1", "2", "8"]
    assert graph_words("sglang", {"cuda_graph_max_bs_decode": 8}, [1, 8], ()) == ["--cuda-graph-bs-decode", "1", "8"]
    assert graph_words("vllm", {}, [1, 2], ("kv_cache_dtype",)) == [
        "--compilation-config", '{"cudagraph_capture_sizes":[1,2]}']
    for engine, args, sizes, changed in (
        ("sglang", {}, [], ()), ("sglang", {"disable_cuda_graph": True}, [1], ()),
        ("vllm", {"enforce_eager": True}, [1], ()),
        ("sglang", {}, [1], ("graphs_off",)), ("vllm", {}, [1], ("graph_req_max",)), ("vllm", {}, [1], ("draft_tok",)),
    ):
        assert graph_words(engine, args, sizes, changed) == []
    assert graph_words("sglang", {}, [1], ("draft_tok",))  # SGLang captures requests
