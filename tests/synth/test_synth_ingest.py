"""The fast table of a simulation is what reading its text gives, and its facts are those of the server.

Two independent paths: values kept while a line is written, and the reader's view of the written bytes.
"""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

from helpers import ingest, synth

CASES = [(name, {}) for name in synth.presets.names()]
CASES += [("pool_full", {"version": version, "has_ms_stamps": version == "0.5.23"})
          for version in ("0.3.6", "0.4.3", "0.4.6", "0.4.9", "0.5.3", "0.5.4", "0.5.6", "0.5.9", "0.5.12", "0.5.23")]
CASES += [("speculation", {"version": version}) for version in ("0.4.6", "0.5.4", "0.5.10", "0.5.23")]
CASES += [("vllm_sweep", {"version": version, "access_lines": True})
          for version in ("0.6.6", "0.8.5", "0.10.2", "0.11.2", "0.20.2", "0.33.0")]
CASES += [("vllm_sweep", {"version": version, "speculation": {}}) for version in ("0.6.6", "0.8.5", "0.20.2")]
CASES += [("vllm_sweep", {"dp_size": 2, "version": "0.10.2"})]
CASES += [("vllm_sweep", {"iteration_lines": True, **more})
          for more in ({"version": "0.20.2"}, {"dp_size": 2}, {"speculation": {}})]


def read(run: synth.Simulation, folder) -> ingest.Log:
    run.write(folder / "server.log")
    return ingest.read_log(folder / "server.log")


@pytest.mark.parametrize(("name", "changes"), CASES)
def test_fast_samples_equal_what_is_read_from_the_text(name, changes, tmp_path):
    run = synth.presets.get(name, **changes).simulate(seed=2)
    log = read(run, tmp_path)
    assert log.accounting.as_dict()["lines"]["malformed"] == 0
    expected = run.samples(file=log.samples["file"].iloc[0])
    assert len(log.samples) == len(expected)
    for column in expected.columns:
        got, want = log.samples[column], expected[column]
        if column == "extra":
            got, want = (values.map(json.loads, na_action="ignore") for values in (got, want))
        if got.dtype == "float64":
            # accept_len of vLLM is rebuilt from three rates of three digits; all else is the printed number
            rtol = 1e-3 if column == "accept_len" and run.server.engine == "vllm" else 1e-12
            assert np.allclose(got, want, rtol=rtol, atol=0, equal_nan=True), column
        else:
            pd.testing.assert_series_equal(got, want)


def test_events_and_facts_are_those_of_the_server(tmp_path):
    run = synth.presets.get("pool_full", version="0.5.23").simulate(seed=2)
    log = read(run, tmp_path)
    server = run.server
    kinds = log.events["kind"].value_counts()
    retractions = [event for event in run.truth["events"] if event["kind"] == "retraction"]
    assert kinds["retraction"] == len(retractions) and kinds["ready"] == 1 and kinds["args"] == 1
    facts = log.facts[0]
    assert facts["decode_log_interval"] == server.decode_log_interval
    assert facts["args"]["max_running_requests"] == server.max_running_req
    assert facts["args"]["schedule_policy"] == "fcfs"
    assert facts["max_running_requests"] == server.max_running_req
    assert facts["kv_pool_tokens"] == server.kv_pool_tok
    assert facts["captured_batch_sizes"] == list(server.captured_batch_sizes)
    assert facts["context_length_max"] == server.context_length_tok


def test_alarm_words_in_the_argument_dump_are_no_alarm(tmp_path):
    log = read(synth.presets.get("field_case_a").simulate(seed=1), tmp_path)
    assert not set(log.events["kind"]) & {"out_of_memory", "crash", "watchdog"}
    assert log.facts[0]["context_length_max"] == 1_048_576


def test_a_crash_is_read_with_its_size(tmp_path):
    server = synth.Server(out_of_memory_at_req=16, out_of_memory_bytes=63 * 262208 * 64 * 4)
    events = read(synth.simulate(server, synth.Client()), tmp_path).events
    crash = events[events["kind"] == "out_of_memory"]
    assert crash["size_bytes"].iloc[0] == pytest.approx(63 * 262208 * 64 * 4, rel=0.002)  # printed as 3.94 GiB


def test_restarts_are_lives(tmp_path):
    log = read(synth.presets.get("restarts").simulate(), tmp_path)
    assert len(log.facts) == 3 and set(log.samples["server_life"]) == {0, 1, 2}
