"""The tables of the field cases hold the published figures, and give the published arithmetic."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest


def table(data, name):
    return pd.read_csv(data / "field" / name, comment="#")


@pytest.mark.parametrize("name", ["case_a_config1", "case_a_config2", "case_a_live_samples", "case_b_acceptance"])
def test_every_table_names_its_source(data, name):
    head = (data / "field" / f"{name}.csv").read_text(encoding="utf-8").splitlines()
    assert head[0].startswith("# Field case") and any(line.startswith("# Source:") for line in head)


def test_case_a_levels(data):
    one, two = table(data, "case_a_config1.csv"), table(data, "case_a_config2.csv")
    assert one.to_dict("list") == {"running_req": [1, 8, 16], "decode_tok_per_s": [14, 28, 30]}
    assert two.to_dict("list") == {"running_req": [1, 16, 64], "decode_tok_per_s": [12.2, 29, 32.85]}


def test_case_b_is_a_constant_round(data):
    # N = 1: round = accept_len / rate; 3.08 / 55 = 56.0 ms, 3.33 / 60 = 55.5, 3.77 / 68 = 55.4, 3.98 / 72 = 55.3.
    rounds = table(data, "case_b_acceptance.csv").eval("running_req * accept_len / decode_tok_per_s")
    assert list(rounds.round(4)) == [0.0560, 0.0555, 0.0554, 0.0553]


def test_the_reference_values(data, shared):
    values = json.loads((shared / "reference" / "field_values.json").read_text())
    for prefix, name in (("12519", "case_a_config1.csv"), ("12532", "case_a_config2.csv")):
        for row in table(data, name).itertuples():
            reference = values[f"{prefix}.step_ms.N{row.running_req}"]["value"]
            assert 1e3 * row.running_req / row.decode_tok_per_s == pytest.approx(reference, abs=1e-6)
    live = table(data, "case_a_live_samples.csv")
    steps_ms = 1e3 * live["running_req"] / live["decode_tok_per_s"]
    reference = values["12528.live_steps_ms"]
    assert np.allclose(steps_ms, reference["value"], atol=reference["tol"])
    rounds = table(data, "case_b_acceptance.csv").eval("accept_len / decode_tok_per_s")
    assert 1e3 * rounds.mean() == pytest.approx(values["qwen.implied_round_mean_ms"]["value"], abs=1e-6)


def test_the_catalogue_is_the_reference_s(data, shared):
    assert (data / "catalog" / "hardware.csv").read_bytes() == (shared / "reference" / "hardware.csv").read_bytes()


@pytest.mark.parametrize("name", ["vllm-sweep", "sglang-sweep"])
def test_the_measured_samples_are_the_originals(data, shared, name):
    for file in ("server.log", "truth.csv", "timeline.txt", "commands.txt"):
        ours, original = data / "samples" / name / file, shared / "logs" / "own" / name / file
        assert ours.read_bytes() == original.read_bytes()
