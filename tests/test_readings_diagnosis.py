"""Tables and sentences about causes, side files and experiments, from parts by hand."""

from __future__ import annotations

from collections import Counter
from math import nan
from types import SimpleNamespace

import pandas as pd
import pytest

from helpers import readings, schema
from helpers.diagnose.causes import CAUSES
from helpers.diagnose.observations import Observation, Observations
from helpers.diagnose.reconcile import ClientTime, ProfileMatch, TokenTime
from helpers.evidence.clients import Clients
from helpers.evidence.clocks import Clock
from helpers.evidence.reading import Tally
from helpers.evidence.telemetry import Telemetry
from helpers.investigation import Evidence, Recording
from helpers.investigation.reconciled import ClientMatch, Reconciled
from helpers.plan import Plan
from helpers.plan.outcomes import Outcome
from helpers.readings import diagnosis
from test_limiting import OTHERS, REFUTED, TOP, card

# Causes.


def test_tables_of_causes_keep_their_columns_when_empty():
    full, empty = (diagnosis.causes_table(item) for item in (card(TOP, *OTHERS, *REFUTED), {}))
    heads = ["cause", "status", "for", "against", "decided by"]
    assert list(full.columns) == list(empty.columns) == heads and (len(full), len(empty)) == (3, 0)
    causes = ["max_context_work", "serialised_requests", "host_or_scheduler"]
    assert full["cause"].tolist() == [f"{cause}: {CAUSES[cause]}" for cause in causes]
    refuted, none = (diagnosis.refuted_table(item) for item in (card(TOP, *REFUTED), {}))
    assert list(refuted.columns) == list(none.columns) == ["cause", "refuted by"]
    assert refuted["refuted by"].tolist() == ["the link would crawl", "97% is unexplained"] and none.empty


def test_the_reading_of_causes():
    text = diagnosis.causes_reading(card(TOP, *REFUTED))
    assert text.splitlines()[0].startswith("What limits decode: ")
    assert text.splitlines()[1] == "Refuted: communication, healthy."
    assert diagnosis.causes_reading({}) == "Nothing is said about causes."


def test_causes_about_which_nothing_was_seen():
    assert diagnosis.silence_reading(card(TOP, *OTHERS)) == "Nothing was seen for or against: measurement_artifact."
    assert diagnosis.silence_reading(card(TOP)) == "Something was seen about every cause."


def test_observations_by_channel_each_sentence_once():
    seen = Observations([
        Observation("a", 1.0, "told", "the user says so", "--context"),
        Observation("b", 0.5, "step", "it is slow", "table"), Observation("c", 0.5, "step", "it is slow", "table"),
        Observation("d", 1.0, "log", "requests wait", "lines")])
    table = diagnosis.observations_table(seen)
    assert table["seen"].tolist() == ["it is slow", "requests wait", "the user says so"]
    assert table["channel"].tolist()[0] == "step time against the hardware's lines"
    assert table["from"].tolist() == ["table", "lines", "--context"]
    assert list(diagnosis.observations_table(Observations()).columns) == ["channel", "seen", "from"]


# Side files.


def table_of(*rows):
    rows = [{"file": "gpu.csv", "line_no": i + 2, **row} for i, row in enumerate(rows)]
    return schema.conform(pd.DataFrame(rows), schema.TELEMETRY)


def recording(table, loaded, *, clock=None, n_bad=0, file="gpu.csv"):
    tally = Tally(file, Counter(row=len(table), malformed=n_bad))
    telemetry = Telemetry(table, tally, "nvidia-smi", "local", ())
    return Recording(telemetry, clock or Clock(0.0, 1.5, "by stamps", True), table, loaded, [(0.0, 1.0)])


def test_what_became_of_the_side_files():
    table = table_of({"device": "0", "power_w": 100.0}, {"device": "0", "power_w": 300.0})
    rows = [{"file": "bench.jsonl", "line_no": i, "tool": tool} for i, tool in ((1, "vllm"), (2, "sglang"))]
    runs = schema.conform(pd.DataFrame(rows), schema.CLIENTS)
    clients = Clients(runs, schema.REQUESTS.empty(), (Tally("bench.jsonl", Counter(malformed=1)),), (), ())
    evidence = Evidence(
        recording=recording(table, table, n_bad=3), clients=clients,
        baseline=recording(table, table, file="old.csv", clock=Clock(nan, nan, "the evidence holds no times", False)),
        topology=SimpleNamespace(tally=Tally("topo.txt", Counter(row=8))), notes=("gpu.csv: 3 lines cannot be read",))
    found = diagnosis.evidence_table(evidence).set_index("file")
    assert list(found.columns) == ["what it is", "rows", "cannot be read", "clock"]
    assert found.loc["gpu.csv"].tolist() == ["nvidia-smi", 2, 3, "by stamps (within 1.50 s)"]
    assert found.loc["old.csv", "clock"] == "the evidence holds no times"  # a refused clock has no uncertainty
    assert found.loc["bench.jsonl"].tolist() == ["client results (sglang, vllm)", 2, 1, ""]
    assert found.loc["topo.txt"].tolist() == ["topology and link states", 8, 0, ""]
    assert diagnosis.evidence_reading(evidence) == "4 side files were read.\ngpu.csv: 3 lines cannot be read."


def test_no_side_file_and_one():
    assert diagnosis.evidence_table(Evidence()).empty
    assert diagnosis.evidence_reading(Evidence()).startswith("No side file was given: the causes rest on the log")
    one = Evidence(topology=SimpleNamespace(tally=Tally("topo.txt", Counter(row=8))))
    assert diagnosis.evidence_reading(one) == "1 side file was read."


def test_loaded_windows_beside_the_whole_file():
    """Medians of 300, 320 W inside; of 100, 100, 300, 320 in the file. MHz and percent as a person reads them."""
    rows = [{"device": "0", "power_w": watts, "sm_clock_hz": 1.98e9, "busy_frac": busy}
            for watts, busy in ((100.0, 0.0), (100.0, 0.0), (300.0, 1.0), (320.0, 1.0))]
    whole = table_of(*rows, {"rank": "DP1", "running_req": 7.0})
    found = diagnosis.telemetry_table(recording(whole, whole.iloc[2:]))
    assert list(found.columns) == ["device or rank", "quantity", "median in the loaded windows",
                                   "median of the whole file", "samples inside"]
    assert found.to_numpy().tolist() == [
        ["0", "power [W]", "310", "200", 2], ["0", "SM clock [MHz]", "1980", "1980", 2],
        ["0", "any kernel running [%]", "100", "50.0", 2], ["DP1", "running requests [req]", "7.00", "7.00", 1]]
    outside = diagnosis.telemetry_table(recording(whole, whole.iloc[:0]))
    assert outside["median in the loaded windows"].tolist() == ["unknown"] * 4
    assert outside["samples inside"].tolist() == [0] * 4
    for nothing in (None, recording(whole.iloc[:0], whole.iloc[:0])):
        assert diagnosis.telemetry_table(nothing).empty and len(diagnosis.telemetry_table(nothing).columns) == 5


# Log against client and profile.


TIME = ClientTime(100.0, {"ramp": 10.0, "steady": 85.0}, 5.0, 1600.0, 1500.0, 1490.0, 1400.0, 16.0, 150e3, 149e3,
                  ("the client starts before the log",))
TOKENS = TokenTime(0.0125, "mean", 16.0, 0.010, 0.0015, 0.0, 0.0004, 0.0001, 0.0005, -0.0002, 0.0012, 0.13)
CLIENT = {"tool": "vllm", "name": nan, "concurrency_req": 16.0}


def test_where_the_clients_time_went():
    found = Reconciled((ClientMatch(CLIENT, "by its stamps", TIME, TOKENS),))
    assert diagnosis.reconciliation_reading(found) == (
        "The client's run vllm at 16 requests: 1500 tok/s over 100 s, the log's steady rate 1600 tok/s. the client "
        "starts before the log. Its time per token, 12.5 ms (mean), is a step of 10.0 ms, 1.50 ms of prompts between "
        "steps, 0.500 ms of other counts, pauses and waiting, and a rest of 0.500 ms [-0.200, 1.20].")
    table = diagnosis.client_table(found)
    assert list(table.columns) == ["part", "time [s]", "share [%]"]
    parts = dict(zip(table["part"], table["time [s]"], strict=True))
    assert parts["ramp"] == 10.0 and parts["steady"] == 85.0 and table["time [s]"].sum() == pytest.approx(100.0)
    assert table["share [%]"].sum() == pytest.approx(100.0)


def test_runs_that_are_not_placed_or_not_explained():
    warm = {**CLIENT, "name": "warm", "concurrency_req": nan}
    lost = ClientMatch(warm, "2 loads of the log are like the client's run")
    refused = ClientMatch(CLIENT, "by its stamps", TIME, TokenTime(0.0125, "mean", refused="no level has its count"))
    text = diagnosis.reconciliation_reading(Reconciled((lost, refused)))
    assert text.splitlines()[0] == (
        "The client's run vllm warm is not placed in the log: 2 loads of the log are like the client's run.")
    assert text.endswith("Its time per token is not explained: no level has its count.")
    assert diagnosis.client_table(Reconciled((lost,))).empty
    many = diagnosis.reconciliation_reading(Reconciled((lost,) * 6))
    assert len(many.splitlines()) == 5 and many.endswith("And 2 more runs of the client.")
    assert diagnosis.reconciliation_reading(Reconciled()) == (
        "Neither a client's result nor a profile was given: nothing to hold the log against.")


@pytest.mark.parametrize(("match", "says"), [
    (ProfileMatch("represents", 1.02, 0.98, 1.06, 16.0, 0.01),
     "The profile's step against the log's: 1.02 [0.980, 1.06] of the level N=16: it represents it."),
    (ProfileMatch("differs by +20 %", 1.2, 1.15, 1.25, 16.0, 0.01),
     "The profile's step against the log's: 1.20 [1.15, 1.25] of the level N=16: it differs by +20 %."),
    (ProfileMatch("cannot tell: no level of the log has a step time"),
     "The profile's step against the log's: cannot tell: no level of the log has a step time.")])
def test_whether_the_profile_is_of_the_run(match, says):
    assert diagnosis.reconciliation_reading(Reconciled(profile=match)) == says


def test_roles_of_a_profile():
    """2 steps: 3 ms of attention in 4 launches, 1 ms of the unknown in 2."""
    kernels = schema.conform(pd.DataFrame([
        {"file": "t.json", "name": "fmha", "role": "attention", "n_calls": 4, "total_s": 0.003},
        {"file": "t.json", "name": "k", "role": "unclassified", "n_calls": 2, "total_s": 0.001}]), schema.KERNELS)
    table = diagnosis.roles_table(SimpleNamespace(kernels=kernels, n_steps=2))
    assert table.to_numpy().tolist() == [["attention", 3.0, 75.0, 4, "2.00"], ["unclassified", 1.0, 25.0, 2, "1.00"]]
    assert diagnosis.roles_table(SimpleNamespace(kernels=kernels, n_steps=0))["launches per step"].tolist() == [
        "unknown", "unknown"]
    assert list(diagnosis.roles_table(None).columns) == list(table.columns) and diagnosis.roles_table(None).empty


# Experiments.


def plan(name, n_causes=2, bits=0.9):
    predicts = {f"cause_{i}": Outcome(f"outcome {i}") for i in range(n_causes)}
    return Plan(name, f"do {name}", f"tells {name}", predicts, (), SimpleNamespace(), frozenset(), "", 1, 230.0, bits,
                bits / 4, ("prompts as measured", "one server"))


def test_experiments():
    table = diagnosis.plans_table([plan(str(i)) for i in range(7)])
    assert table["experiment"].tolist() == ["do 0", "do 1", "do 2", "do 3", "do 4"]
    assert table.iloc[0].tolist() == ["do 0", "tells 0", "3.83 min", "0.900", "prompts as measured; one server"]
    assert diagnosis.plans_table([]).empty and len(diagnosis.plans_table([]).columns) == 5


def test_the_first_experiment_in_sentences():
    text = diagnosis.plan_reading([plan("restart", 2), plan("other")])
    assert text.splitlines() == [
        "Next: do restart; it takes 3.83 min.", "If cause_0: outcome 0.", "If cause_1: outcome 1.",
        "`rooflog plan` on the run folder writes it as a script."]
    assert diagnosis.plan_reading([]) == (
        "No experiment is needed, or none of the table tells the causes apart that still stand.")


def test_notebooks_find_them_in_one_place():
    for name in ("causes_table", "causes_reading", "evidence_table", "evidence_reading", "plans_table", "plan_reading"):
        assert getattr(readings, name) is getattr(diagnosis, name)
