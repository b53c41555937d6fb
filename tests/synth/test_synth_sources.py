"""One simulated server seen through its log, its iteration lines, its scrapes and its own sums: one law."""

from __future__ import annotations

import json

import numpy as np
import pytest

from helpers import ingest, laws, levels, segment, synth
from helpers.synth import Client, ConfigError, Lengths, Noise, Server, StepLaw

LAW = {"intercept_s": 0.02, "slope_s_per_req": 0.0008}
NOISE = Noise(sigma_frac=0.02, ar1=0.5).as_dict()


def analysed(path):
    """Return the log and the parameters of the straight line that its levels give."""
    log = ingest.read_log(path)
    table = segment.label_intervals(log.samples, log.events, facts=list(log.facts))
    fit = laws.fit_laws(levels.summarise_levels(table)).linear
    assert fit.refused is None
    return log, (fit["intercept_s"].value, fit["slope_s_per_req"].value), table


@pytest.fixture(scope="module")
def vllm(tmp_path_factory):
    """The same seed with and without iteration lines, and its scrapes."""
    folder = tmp_path_factory.mktemp("vllm")
    for name, more in (("lines", {}), ("iterations", {"iteration_lines": True})):
        run = synth.presets.get("vllm_sweep", law=LAW, noise=NOISE, **more).simulate(seed=1)
        run.write(folder / f"{name}.log")
    run.write_sources(folder)
    return folder


@pytest.fixture(scope="module")
def sglang(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sglang")
    run = synth.presets.get("dense_sweep", law=LAW, noise=NOISE).simulate(seed=1)
    run.write(folder / "server.log")
    run.write_sources(folder)
    return folder


@pytest.mark.parametrize("name", ["lines.log", "iterations.log", "metrics.txt"])
def test_vllm_lines_iterations_and_scrapes_give_one_law(vllm, name):
    _, line, _ = analysed(vllm / name)
    assert line == pytest.approx((0.02, 0.0008), rel=0.01)


@pytest.mark.parametrize("name", ["server.log", "metrics.txt", "loads.jsonl"])
def test_sglang_lines_scrapes_and_snapshots_give_one_law(sglang, name):
    _, line, _ = analysed(sglang / name)
    assert line == pytest.approx((0.02, 0.0008), rel=0.01)


def test_sums_of_the_snapshots_give_the_law_of_the_log_line(sglang):
    log = ingest.read_log(sglang / "loads.jsonl")
    exact = laws.fit_moments(log.moments)
    _, line, _ = analysed(sglang / "server.log")
    assert (exact["intercept_s"].value, exact["slope_s_per_req"].value) == pytest.approx(line, rel=0.01)


def test_iterations_are_used_and_the_lines_beside_them_are_not(vllm):
    log, _, table = analysed(vllm / "iterations.log")
    assert set(table["kind"]) == {"iteration"}
    assert log.accounting.lines["malformed"] == 0
    printed = log.samples[log.samples["kind"].eq("iteration")]
    run = synth.presets.get("vllm_sweep", law=LAW, noise=NOISE, iteration_lines=True).simulate(seed=1)
    assert len(printed) == len({f.start_s for f in run.trace.forwards})
    assert printed["span_s"].sum() == pytest.approx(sum(f.end_s - f.start_s for f in run.trace.forwards), rel=1e-4)


def test_iteration_lines_do_not_change_what_else_the_server_prints(vllm):
    plain, more = ((vllm / f"{name}.log").read_text().splitlines() for name in ("lines", "iterations"))
    rest = [line for line in more if "Iteration(" not in line]
    assert [line for line in plain if "Avg prompt" in line] == [line for line in rest if "Avg prompt" in line]


ITERATION = "Iteration(1): 0 context requests, 0 context tokens, 2 generation requests, 2 generation tokens, " \
    "iteration elapsed time: 200.00 ms"


@pytest.mark.parametrize(("version", "expected"), [
    ("0.20.2", f"(EngineCore_DP0 pid=4301) INFO 11-02 09:00:11 [core.py:349] {ITERATION}"),
    ("0.33.0", f"(APIServer pid=4242) INFO 11-02 09:00:11 [loggers.py:199] Engine 000: {ITERATION}, GPU KV cache "
               "usage: 0.0%"),
])
def test_layout_of_the_iteration_line(version, expected):
    """Ready at 10 s, prompts to 11.5 s, then steps of 0.1 + 2 x 0.05 s."""
    server = Server(engine="vllm", version=version, law=StepLaw(intercept_s=0.1, slope_s_per_req=0.05),
                    prefill_fixed_s=0.5, prefill_s_per_tok=0.0, startup_s=10.0, iteration_lines=True)
    client = Client(levels_req=(2,), n_prompts=(2,), prompt=Lengths(mean_tok=10), output=Lengths(mean_tok=21),
                    lead_s=1.0, stagger_s=0.0)
    lines = [line for line in synth.simulate(server, client).lines() if "Iteration(" in line]
    assert lines[1] == expected
    assert len(lines) == 21


def test_an_idle_rank_prints_dummy_iterations(tmp_path):
    preset = synth.presets.get("vllm_sweep", dp_size=2, iteration_lines=True, levels_req=[1, 5], n_prompts=[])
    run = preset.simulate(seed=1)
    run.write(tmp_path / "dp.log")
    log = ingest.read_log(tmp_path / "dp.log")
    printed = log.samples[log.samples["kind"].eq("iteration")]
    dummies = printed["extra"].str.contains("dummy")
    assert printed["rank"].value_counts().nunique() == 1  # a line of every rank per step
    assert dummies.sum() > 100 and printed.loc[dummies, "running_req"].eq(0).all()


def test_iteration_lines_belong_to_the_versions_that_print_them():
    for engine, version in (("sglang", "0.5.23"), ("vllm", "0.11.2")):
        with pytest.raises(ConfigError, match="iteration_lines"):
            Server(engine=engine, version=version, iteration_lines=True)
    assert "iteration_lines" not in Server().as_dict()
    described = Server(engine="vllm", version="0.33.0", iteration_lines=True)
    assert Server.from_mapping(described.as_dict()) == described


def test_snapshots_hold_the_sums_of_contiguous_decode_steps(sglang):
    last = json.loads((sglang / "loads.jsonl").read_text().splitlines()[-1])["loads"][0]
    run = synth.presets.get("dense_sweep", law=LAW, noise=NOISE).simulate(seed=1)
    rows = run.trace.forwards
    pairs = [(f.batch_req, f.end_s - f.start_s) for before, f in zip(rows, rows[1:], strict=False)
             if before.kind == f.kind == 0 and before.end_s == f.start_s and f.batch_req and f.end_s - f.start_s < 2]
    b, t = np.array(pairs).T
    found = np.array(last["decode_moments"])
    assert found[0] == len(pairs)
    assert found[:5] == pytest.approx([len(b), b.sum(), 1e6 * t.sum(), (b * b).sum(), 1e6 * (b * t).sum()], rel=1e-6)


def test_lines_of_single_steps_tile_the_wall_clock(tmp_path):
    """With a line per step, running_req over the printed rate is the time since the line before: prefills included."""
    server = Server(decode_log_interval=1, has_ms_stamps=True, law=StepLaw(**LAW), noise=Noise(sigma_frac=0.05))
    client = Client(levels_req=(1, 8, 32), output=Lengths("uniform", 300, 0.3), gap_s=0.0)
    run = synth.simulate(server, client, seed=2)
    run.write(tmp_path / "server.log")
    samples = ingest.read_log(tmp_path / "server.log").samples
    lines = samples[samples["kind"].eq("decode")].iloc[1:]
    busy = lines[lines["t_s"].diff().lt(2.0)]
    tiled_s = float((busy["running_req"] / busy["decode_tok_per_s"]).sum())
    assert tiled_s == pytest.approx(float(lines["t_s"].diff()[busy.index].sum()), rel=0.005)
