"""The simulated samples are what `make samples` writes, byte for byte."""

from __future__ import annotations

import json

import pytest

from helpers import synth


@pytest.mark.parametrize("preset", ["field_case_a", "healthy_moe"])
def test_simulated_samples_regenerate_byte_for_byte(data, tmp_path, preset):
    folder = data / "samples" / f"sim-{preset.replace('_', '-')}"
    simulation = synth.presets.get(preset).simulate(seed=0)
    simulation.write(tmp_path / "server.log")
    assert (tmp_path / "server.log").read_bytes() == (folder / "server.log").read_bytes()
    assert json.loads((folder / "truth.json").read_text(encoding="utf-8")) == simulation.truth


def test_another_seed_writes_another_log(data, tmp_path):
    synth.presets.get("field_case_a").simulate(seed=1).write(tmp_path / "server.log")
    sample = data / "samples" / "sim-field-case-a" / "server.log"
    assert (tmp_path / "server.log").read_bytes() != sample.read_bytes()
