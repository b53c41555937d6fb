"""Two sides compared from their logs: what was planted is found where it was planted, and nothing else is claimed.

Would catch: a loss at some levels hidden by gains at others in a mean; a verdict between servers that are not the same;
an argument that one side left at its default and nobody mentions; sides exchanged that are no mirror; a secret of an
argument dump in the card.
"""

from __future__ import annotations

import csv
import json
import math
import os
from dataclasses import replace

import pytest
from sides import write_log

from helpers import regression, synth
from helpers.regression import describe, settings
from helpers.schema import LogFormatError, RooflogError

BASE, NEW = "data/samples/sim-regress-base", "data/samples/sim-regress-new"


@pytest.fixture(scope="module")
def samples(root):
    """Sides of the bundled pair: the same 20 ms per step, 0.4 and 0.5 ms per request (their truth.json)."""
    truths = [json.loads((root / folder / "truth.json").read_text(encoding="utf-8"))["law"] for folder in (BASE, NEW)]
    assert [(law["intercept_s"], law["slope_s_per_req"]) for law in truths] == [(0.02, 0.0004), (0.02, 0.0005)]
    return tuple(regression.gather_side(root / folder / "server.log") for folder in (BASE, NEW))


@pytest.mark.parametrize(("folder", "seed", "changes"), [(BASE, 1, {}), (NEW, 4, {"law": {"slope_s_per_req": 0.0005}})])
def test_the_bundled_pair_is_what_its_command_writes(root, folder, seed, changes):
    simulation = synth.presets.get("dense_sweep", prompts_per_req=1.5, **changes).simulate(seed=seed)
    assert (root / folder / "server.log").read_text(encoding="utf-8") == simulation.text
    assert json.loads((root / folder / "truth.json").read_text(encoding="utf-8")) == simulation.truth


def of_kind(card, kind):
    return {row["running_req"]: row for row in card["rows"] if row["kind"] == kind}


def test_the_planted_cost_per_request_is_named(samples):
    """+25 % per request: at level N the step grows by 0.1 N / (20 + 0.4 N), 11.2 % at 64 and 0.5 % at 1."""
    card = regression.compare_sides(*samples)
    assert card["overall"]["verdict"] == "worse" and card["exit_code"] == 1
    assert card["term"]["name"] == "per_request" and card["validity"]["verdict"] == "same_configuration"
    (slope,), (fixed,) = of_kind(card, "per_request").values(), of_kind(card, "fixed_cost").values()
    assert slope["row_lo_frac"] < 0.25 < slope["row_hi_frac"] and slope["verdict"] == "worse"
    assert fixed["row_lo_frac"] < 0 < fixed["row_hi_frac"] and fixed["verdict"] != "worse"
    for level, row in of_kind(card, "step").items():
        assert row["row_lo_frac"] < 0.1 * level / (20 + 0.4 * level) < row["row_hi_frac"]
    first = card["answer"].splitlines()[0]
    assert first.startswith("Verdict: worse, for changes of more than 3 %. Worse: ")


def test_a_pooled_average_that_hides_a_loss_at_levels_2_to_6_is_seen_through(tmp_path):
    """10 % slower at levels 2 to 6; the other three are faster by 1.1^(5/3), so that the mean log ratio is zero."""
    levels, lost = (1, 2, 3, 4, 5, 6, 8, 16), (2, 3, 4, 5, 6)
    factors = {str(n): 1.1 if n in lost else 1.1 ** (-5 / 3) for n in levels}
    sides = [
        regression.gather_side([
            write_log(tmp_path / f"{name}{i}.log", seed=100 * side + i, levels=levels, level_factors=planted,
                      output={"mean_tok": 400})
            for i in range(3)])
        for side, (name, planted) in enumerate((("base", {}), ("new", factors)))
    ]
    card = regression.compare_sides(*sides)
    rows = of_kind(card, "step")
    mean = sum(row["log_ratio"] for row in rows.values()) / len(rows)
    assert abs(mean) < 0.01, "one pooled number says that nothing happened"
    assert {level for level, row in rows.items() if row["verdict"] == "worse"} == set(map(float, lost))
    assert {level for level, row in rows.items() if row["verdict"] == "better"} == {1.0, 8.0, 16.0}
    assert card["exit_code"] == 1 and card["overall"]["is_mixed"]
    assert card["base"]["n_runs"] == card["new"]["n_runs"] == 3
    said = describe.pooled_reading(card)
    assert f"The mean over the levels is {describe.percent(math.expm1(mean), sign=True)}; " in said
    assert "never on their mean" in said and "at N=1" in said


def test_a_side_against_itself_is_the_same_and_sides_exchanged_are_the_mirror(samples):
    for side in samples:
        card = regression.compare_sides(side, side)
        judged = [row for row in card["rows"] if row["is_judged"]]
        assert card["overall"]["verdict"] == "same" and card["exit_code"] == 0 and card["term"]["name"] == "none"
        assert {row["verdict"] for row in judged} == {"same"} and {row["effect_frac"] for row in judged} == {0.0}
    there, back = (regression.compare_sides(*pair) for pair in (samples, samples[::-1]))
    swap = {"worse": "better", "better": "worse"}
    assert [row["log_ratio"] for row in there["rows"]] == [-row["log_ratio"] for row in back["rows"]]
    assert [swap.get(row["verdict"], row["verdict"]) for row in there["rows"]] == [r["verdict"] for r in back["rows"]]
    assert there["term"]["name"] == back["term"]["name"]
    assert back["overall"]["verdict"] == "better" and back["base"]["inputs"] == there["new"]["inputs"]


def with_facts(side, **facts):
    """Return a side whose runs were told other facts."""
    repeats = [replace(repeat, facts={**repeat.facts, **facts}) for repeat in side.repeats]
    return regression.Side(tuple(repeats), {**side.facts, **facts}, side.notes)


@pytest.mark.parametrize(("fact", "value"), [("model", "another"), ("tp", 2), ("hardware", "h100-sxm")])
def test_other_servers_are_not_compared_but_shown(samples, fact, value):
    base = with_facts(samples[0], hardware="h200")
    card = regression.compare_sides(base, with_facts(samples[1], **{"hardware": "h200", fact: value}))
    assert card["validity"]["verdict"] == "not_comparable" and card["overall"]["verdict"] == "cannot_tell"
    assert card["exit_code"] == 2 and of_kind(card, "per_request"), "the rows stay"
    assert card["overall"]["sentence"].startswith(f"These are not the same server: {fact} ")
    assert str(value) in card["answer"]


def test_one_setting_is_the_variable_and_runs_of_a_side_must_agree(samples):
    other = with_facts(samples[1], chunked_prefill_size=2048, args={})
    card = regression.compare_sides(with_facts(samples[0], args={}), other)
    assert card["validity"]["verdict"] == "single_variable"
    assert card["validity"]["variable"] == "chunked_prefill_size"
    mixed = regression.Side((samples[0].repeats[0], with_facts(samples[1], tp=4).repeats[0]), samples[0].facts)
    card = regression.compare_sides(mixed, samples[1])
    assert card["validity"]["verdict"] == "not_comparable" and card["exit_code"] == 2
    assert "The runs of the base side are not repeats of one another" in card["validity"]["sentence"]
    mixed = regression.Side((samples[0].repeats[0], with_facts(samples[1], dtype="fp8").repeats[0]), samples[0].facts)
    assert regression.compare_sides(mixed, samples[1])["validity"]["verdict"] == "several_differ"


def test_an_argument_that_one_side_does_not_print_is_at_its_default():
    known = {"engine": "vllm", "engine_version": "0.32.0"}
    base = {**known, "args": {"max_model_len": 4096, "compilation_config": "a"}}
    new = {**known, "args": {"max_model_len": 4096, "enforce_eager": True, "compilation_config": "b"}}
    old, young = settings.comparable(base, new)
    assert old["args"] == {"max_model_len": 4096, "enforce_eager": "(default)"}, "what vLLM derives is no variable"
    assert young["args"] == {"max_model_len": 4096, "enforce_eager": True}
    alone = settings.comparable(base, {**known, "args": {"max_model_len": 4096, "compilation_config": "b"}})
    assert [side["args"]["compilation_config"] for side in alone] == ["a", "b"]
    assert settings.comparable(base, {**new, "engine_version": "0.33.0"})[0] == base, "of another version nobody knows"
    weights = settings.comparable({"weight_bytes": 100.0}, {"weight_bytes": 101.0})
    assert weights[0] == weights[1]
    assert settings.comparable({"weight_bytes": 100.0}, {"weight_bytes": 50.0})[1] == {"weight_bytes": 50.0}


def test_whole_numbers_stay_whole_beside_what_is_not_stated():
    differences = [{"key": "ep", "base": 4, "new": None, "kind": "identity", "status": "not known"}]
    frame = describe.differences_table({"validity": {"differences": differences}})
    assert [str(cell) for cell in frame.iloc[0]] == ["ep", "4", "not stated", "identity", "not known"]


def test_settings_hold_no_secret_no_result_and_no_folder():
    kept = settings.settings_of({
        "model": "/srv/models/Qwen3-8B", "startup_s": 17.0, "tp": 2,
        "args": {"model_path": "Qwen/Qwen3-8B", "admin_api_key": "s3cret", "hf_token": "hf_x", "host": "10.0.0.1",
                 "ssl_keyfile_password": "p", "max_total_tokens": 5, "max_seq_len": 8}})
    assert kept == {"model": "Qwen3-8B", "tp": 2, "args": {"model_path": "Qwen3-8B", "max_total_tokens": 5}}


def test_long_values_are_shown_where_they_part():
    first, second = ({"args": {"config": "x" * 300 + end + "y" * 300}} for end in ("MODE_A", "MODE_B"))
    old, young = settings.shortened(first, second)
    assert "MODE_A" in old["args"]["config"] and "MODE_B" in young["args"]["config"]
    assert len(old["args"]["config"]) <= settings.SHOWN_CHARS + 2
    assert settings.shortened({"a": "same" * 99}, {"a": "same" * 99})[0]["a"] == "same" * 99


def test_nothing_in_common_is_cannot_tell_with_the_reason(samples, tmp_path):
    other = regression.gather_side(write_log(tmp_path / "other.log", levels=(3, 6)))
    card = regression.compare_sides(samples[0], other)
    assert card["overall"]["verdict"] == "cannot_tell" and card["exit_code"] == 2 and card["rows"] == []
    assert card["overall"]["sentence"] == "No level was seen on both sides (base N=1, 2, 4, 8, 16, 32, 64; new N=3, 6)."
    empty = regression.Side((), {}, ("x.log is not compared: no level is fitted",))
    card = regression.compare_sides(empty, samples[1])
    assert card["exit_code"] == 2 and "no run of the base side has a fitted level" in card["overall"]["sentence"]
    assert card["validity"]["verdict"] == "not_comparable" and card["notes"][0].startswith("base: x.log")
    assert describe.rows_table(card).empty and describe.rows_frame(card).empty
    for name, value in (("threshold_frac", 0.0), ("threshold_frac", 5.0), ("confidence", 1.0)):
        with pytest.raises(RooflogError, match="expected a share between 0 and 1"):
            regression.compare_sides(*samples, **{name: value})


def test_the_card_is_json_and_written_whole_or_not_at_all(samples, tmp_path, monkeypatch):
    card = regression.compare_sides(*samples, command="rooflog compare a b")
    assert json.loads(json.dumps(card, allow_nan=False)) == card
    assert card["run"]["command"] == "rooflog compare a b" and len(card["run"]["log_sha256"]) == 2
    file = regression.write(card, tmp_path)
    assert regression.read(tmp_path) == regression.read(file) == card
    with pytest.raises(RooflogError, match="expected a file that can be written"):
        regression.write(card, tmp_path / "none")
    before = file.read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(RooflogError, match="No space left"):
        regression.write({**card, "exit_code": 9}, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [file.name] and file.read_bytes() == before
    file.write_text('{"schema_version": 1}')
    with pytest.raises(LogFormatError, match="expected a comparison"):
        regression.read(file)


def test_real_logs_say_what_their_client_measured(shared):
    """One server, quiet and beside another program: the change of each level is the client's within a percentage point.

    Client: mean time between tokens, 21.1, 25.2, 14.2, 9.8, 4.3, 5.1 % longer at 1, 2, 8, 16, 32, 64 requests.
    """
    sides, truth_s = [], []
    for name in ("vllm-sweep", "vllm-sweep-noisy"):
        folder = shared / "logs" / "own" / name
        sides.append(regression.gather_side(folder / "server.log"))
        with open(folder / "truth.csv", encoding="utf-8") as file:
            truth_s.append({float(row["concurrency"]): float(row["itl_ms_mean"]) for row in csv.DictReader(file)})
    card = regression.compare_sides(*sides)
    rows = of_kind(card, "step")
    assert set(rows) == {1.0, 2.0, 8.0, 16.0, 32.0, 64.0}, "level 4 has no clean decode beside the other program"
    for level, row in rows.items():
        change = truth_s[1][level] / truth_s[0][level] - 1
        assert row["effect_frac"] == pytest.approx(change, abs=0.01)
        assert row["row_lo_frac"] < change < row["row_hi_frac"]
    assert card["validity"]["verdict"] == "same_configuration" and card["overall"]["verdict"] == "worse"
    assert regression.compare_sides(*sides[::-1])["overall"]["verdict"] == "better"


@pytest.mark.parametrize(
    ("base", "new", "validity", "variable"),
    [
        ("own/vllm-sweep/server.log", "own/vllm-worker-killed/server.log", "single_variable", "args.enforce_eager"),
        ("own/vllm-sweep/server.log", "own/vllm-spec-ngram/server.log", "single_variable", "args.speculative_config"),
        ("magik6k/sglang-optimized.log", "magik6k/sglang-tp4pp2.log", "not_comparable", None),
        ("sostrowsk/vllm-int4.log", "sostrowsk/vllm.log", "not_comparable", None),
    ],
)
def test_real_pairs_that_are_comparable_and_that_are_not(shared, base, new, validity, variable):
    """What differs was read by eye in the argument lines of the logs."""
    card = regression.compare_sides(*(regression.gather_side(shared / "logs" / name) for name in (base, new)))
    assert card["validity"]["verdict"] == validity and card["validity"]["variable"] == variable
    assert (card["overall"]["verdict"] == "cannot_tell") == (validity == "not_comparable")


def test_a_new_server_that_runs_out_of_memory_does_not_pass(tmp_path):
    """The same log twice but for a crash at its end: what it did before says nothing of what it can hold."""
    base, new = tmp_path / "base.log", tmp_path / "new.log"
    write_log(base, 1)
    write_log(new, 1)
    stamp = new.read_text().splitlines()[-1].partition("]")[0]
    with open(new, "a") as file:
        file.write(f"{stamp}] Scheduler hit an exception: Traceback (most recent call last):\n"
                   "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n")
    sides = [regression.gather_side(path) for path in (base, new)]
    ends = [side.repeats[0].ended for side in sides]
    assert ends[0] == "" and ends[1] in ("crash", "out_of_memory")
    there, back = (regression.compare_sides(*pair) for pair in (sides, sides[::-1]))
    assert there["exit_code"] == 2 and "Servers of the new side failed: new.log" in there["overall"]["sentence"]
    assert back["exit_code"] == 0 and "Servers of the base side failed" in back["answer"]
    both = regression.compare_sides(sides[1], sides[1])  # one that failed before is no loss
    assert both["exit_code"] == 0 and both["answer"].count("side failed: new.log") == 2
