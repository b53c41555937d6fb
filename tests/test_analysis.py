"""The composition of the stages: what is passed on, whose numbers an answer rests on, and what it says of the rest.

Logs come from the simulator, truth from its law. Would catch: a fact, threshold or filter that one stage computes and
the next never sees.
"""

import numpy as np
import pandas as pd
import pytest

from helpers import synth
from helpers.analysis import analyse
from helpers.levels import keep_one_source
from helpers.schema import LogFormatError
from helpers.synth import Client, Lengths, Noise, Server, StepLaw

LAW = StepLaw(intercept_s=0.020, slope_s_per_req=0.002)


def write(folder, name="server.log", *, server=None, client=None, seed=1):
    """Simulate a short sweep and return the path of its log and its truth."""
    server = server or Server(law=LAW, noise=Noise(sigma_frac=0.01, block_steps=40))
    client = client or Client(levels_req=(1, 4, 16), output=Lengths(mean_tok=512))
    simulation = synth.simulate(server, client, seed=seed)
    simulation.write(folder / name)
    return folder / name, simulation.truth


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    return write(tmp_path_factory.mktemp("sweep"))[0]


def test_confidence_and_min_clean_reach_the_levels(sweep):
    wide, narrow = analyse(sweep, confidence=0.99), analyse(sweep, confidence=0.5)
    assert (wide.levels["step_s_hi"] > narrow.levels["step_s_hi"]).all()
    assert wide.fits.linear["slope_s_per_req"].hi > narrow.fits.linear["slope_s_per_req"].hi
    assert wide.levels["method"].eq("median_of_blocks").all()
    assert not analyse(sweep, min_clean=10_000).levels["method"].eq("median_of_blocks").any()


def test_facts_of_the_log_reach_the_intervals(tmp_path):
    """Pages hide the steps per line in #token: only the argument dump says that a line holds ten."""
    server = Server(law=LAW, decode_log_interval=10, page_size=64)
    path, _ = write(tmp_path, server=server)
    assert analyse(path).intervals["n_steps"].eq(10).all()
    assert analyse(path, context={"decode_log_interval": 12}).intervals["n_steps"].eq(12).all()


def test_a_loop_without_clean_levels_is_fitted_through_its_prompts_or_refused(tmp_path):
    path = tmp_path / "loop.log"
    truth = None
    simulation = synth.presets.get("vllm_closed_loop").simulate(seed=3)
    simulation.write(path)
    truth = simulation.truth["law"]
    found = analyse(path)
    assert found.levels[found.levels["is_fitted"]]["running_req"].nunique() < 3
    assert found.fits.selected.refused is None and "prefill covariate" in found.fits.selection
    slope = found.fits.linear["slope_s_per_req"]
    assert slope.lo <= truth["slope_s_per_req"] <= slope.hi


def test_the_answer_rests_on_one_configuration_and_says_so(tmp_path):
    one, _ = write(tmp_path, "one.log")
    other = Server(law=StepLaw(intercept_s=0.2, slope_s_per_req=0.02), tp_size=8)
    two, _ = write(tmp_path, "two.log", server=other, client=Client(levels_req=(1, 8), output=Lengths(mean_tok=512)))
    found = analyse([one, two])
    assert found.scorecard["run"]["fitted_lives"] == [0]
    assert found.fits.linear["intercept_s"].value == pytest.approx(0.020, rel=0.05)
    assert any("rests on server life 0 (one.log)" in note and "(1)" in note for note in found.scorecard["run"]["notes"])
    alone = analyse(one).scorecard
    for key in ("ramp_s", "steady_s", "n_intervals", "n_clean"):
        assert found.scorecard["phases"][key] == pytest.approx(alone["phases"][key])
    assert found.scorecard["client"]["steady_tok_per_s"] == pytest.approx(alone["client"]["steady_tok_per_s"])
    assert found.facts.get("tp") == 1


def test_incidents_of_the_lives_that_count_are_said_with_their_line(tmp_path):
    retract = ("[2026-11-02 09:05:00] KV cache pool is full. Retract requests. #retracted_reqs: 2, "
               "#new_tokens_gained: 4096, #new_token_ratio: 0.1234 -> 0.5678\n")
    path, _ = write(tmp_path)
    text = path.read_text()
    n_lines = len(text.splitlines())
    path.write_text(text + retract)
    notes = analyse(path).scorecard["run"]["notes"]
    assert [note for note in notes if "retraction" in note] == [
        f"the log reports retraction (1 line, first server.log:{n_lines + 1})"]
    quiet, _ = write(tmp_path, "quiet.log")
    other = Server(law=LAW, tp_size=8)
    noisy, _ = write(tmp_path, "noisy.log", server=other, client=Client(levels_req=(1,), output=Lengths(mean_tok=512)))
    noisy.write_text(noisy.read_text() + retract)
    assert not any("retraction" in note for note in analyse([quiet, noisy]).scorecard["run"]["notes"])


def test_a_client_average_is_stated_only_where_the_log_can_give_it(sweep, tmp_path):
    whole = analyse(sweep).scorecard["client"]
    assert whole["source"] == "log" and whole["running_req"] == 16
    assert set(whole["other_s"]) == {"ramp", "mixed", "drain"} and whole["other_s"]["mixed"] > 0
    decode_only = tmp_path / "grepped.log"
    decode_only.write_text("".join(f"{line}\n" for line in sweep.read_text().splitlines() if "Decode batch" in line))
    assert analyse(decode_only).scorecard["client"]["output_tok_per_s"] is None
    assert analyse(sweep, context={"client_concurrency": 4}).scorecard["client"]["running_req"] == 4
    assert analyse(sweep, context={"client_concurrency": 7}).scorecard["client"]["running_req"] == 16
    ranks = tmp_path / "ranks.log"
    synth.presets.get("lockstep_ranks").simulate(seed=1).write(ranks)
    assert analyse(ranks).scorecard["client"]["output_tok_per_s"] is None


def test_the_roofline_takes_what_is_given_by_hand(sweep, data):
    model = {"hardware": "H100 SXM 80GB", "weight_bytes_per_step": 16e9, "kv_bytes_per_tok": 131072.0}

    def strict_s(source, **facts):
        return analyse(source, context=model | facts).scorecard["roofline"]["strict"]["step_s"]["16"]

    plain = strict_s(sweep)
    assert strict_s(sweep, state_bytes_per_req=1e9) == pytest.approx(plain + 16 * 1e9 / 3.35e12)
    table = data / "field" / "case_a_config2.csv"  # a typed table has no context of its own
    by_context = strict_s(table, context_tok=500)
    assert by_context == pytest.approx((16e9 + 16 * 500 * 131072) / 3.35e12)
    assert strict_s(table, prompt_tokens=400, output_tokens=200) == pytest.approx(by_context)
    assert analyse(table, context=model).scorecard["roofline"]["refused"] is not None


def test_captured_sizes_and_unused_facts_are_said(tmp_path):
    server = Server(law=LAW, captured_batch_sizes=(1, 8, 16))
    path, _ = write(tmp_path, server=server)
    found = analyse(path, context={"nosuch": 1})
    assert any("levels 4 are no captured batch sizes" in text for text in found.fits.selected.warnings)
    assert any("nosuch" in note for note in found.scorecard["run"]["notes"])
    assert np.isfinite(found.fits.linear["slope_s_per_req"].value)


def test_the_source_that_tells_most_is_used_and_the_others_are_named(tmp_path):
    """Scrapes of a simulated server beside its log: the law within 1 % of the simulator's, from the scrapes."""
    server = Server(engine="vllm", version="0.20.2", law=StepLaw(intercept_s=0.02, slope_s_per_req=0.0008))
    preset = synth.presets.Preset("both", "log and scrapes", server, Client(levels_req=(1, 4, 16)))
    simulation = preset.simulate(seed=2)
    with open(tmp_path / "server.log", "w", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in simulation.lines())
    simulation.write_sources(tmp_path)
    found = analyse([tmp_path / "server.log", tmp_path / "metrics.txt"])
    assert found.fits.linear["slope_s_per_req"].value == pytest.approx(0.0008, rel=0.01)
    assert any(note.startswith("line records") and "not fitted" in note for note in found.scorecard["run"]["notes"])


def test_snapshots_give_the_line_as_a_cross_check(tmp_path):
    preset = synth.presets.get("dense_sweep", levels_req=[1, 4, 16])
    simulation = preset.simulate(seed=1)
    with open(tmp_path / "server.log", "w", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in simulation.lines())
    simulation.write_sources(tmp_path)
    found = analyse([tmp_path / "server.log", tmp_path / "loads.jsonl"])
    intercept_s, slope_s_per_req = found.fits.crosschecks["decode_moments"]
    law = preset.server.law
    assert intercept_s == pytest.approx(law.intercept_s, rel=0.01)
    assert slope_s_per_req == pytest.approx(law.slope_s_per_req, rel=0.03)  # noise of a short sweep


def test_two_engines_in_one_log_are_refused_in_words(tmp_path):
    sglang = synth.presets.get("dense_sweep", levels_req=[1, 4, 16]).simulate(seed=1).lines()
    other = Server(engine="vllm", version="0.20.2", law=StepLaw(intercept_s=0.04, slope_s_per_req=0.001))
    vllm = synth.presets.Preset("other", "", other, Client(levels_req=(1, 4, 16))).simulate(seed=1).lines()
    mixed = [line for pair in zip(sglang[-300:], vllm[-300:], strict=False) for line in pair]
    (tmp_path / "server.log").write_text("\n".join(map(str, mixed)) + "\n")
    with pytest.raises(LogFormatError, match="one engine in server life 0, found .* of sglang and|of vllm and"):
        analyse(tmp_path / "server.log")


def test_a_source_that_cannot_be_placed_is_not_pooled_with_the_log():
    rows = [{"server_life": life, "running_req": n, "step_s": 0.01 * n, "clean_s": 50.0 - 10 * life,
             "is_fitted": True, "note": ""} for life in (0, 1) for n in (1.0, 2.0)]
    levels = pd.DataFrame(rows)
    kept = keep_one_source(levels, {0: "request", 1: "counters"})
    assert kept["is_fitted"].tolist() == [True, True, False, False]
    assert kept["note"].iloc[2].startswith("rests on other records than the law (request)")
    assert keep_one_source(levels, {0: "line", 1: "line"})["is_fitted"].all()
