"""`rooflog bound`: the answer without a log, and every wrong input in one line."""

from __future__ import annotations

import json

import pytest

from helpers.cli.app import main


def card_of(capsys, *words: str) -> dict:
    assert main(["bound", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_worked_example_of_a_dense_model(capsys):
    card = card_of(capsys, "Meta-Llama-3.1-8B", "--hardware", "h100-sxm", "--context-length", "2048",
                   "--levels", "1,4,16,64,256")
    # worked bounds of this pair [ms], 1 %
    worked = {"1": 4.56, "4": 4.80, "16": 5.76, "64": 9.61, "256": 24.99}
    assert {key: 1e3 * s for key, s in card["strict"]["step_s"].items()} == pytest.approx(worked, rel=0.01)
    assert card["expected"]["step_s"] == pytest.approx(card["strict"]["step_s"])
    assert card["target"]["step_s"]["1"] == pytest.approx(card["strict"]["step_s"]["1"] / 0.85)  # measured on H100
    assert card["knees_req"]["requests"] == pytest.approx(56, rel=0.01)
    assert card["bytes"]["kv"]["16"] == pytest.approx(16 * 268.435e6, rel=1e-3)
    assert card["run"]["n_params"] == 8_030_261_248
    assert card["levels"][2]["strict_step_s"] == card["strict"]["step_s"]["16"]
    assert any("H100" in text for text in card["assumptions"])


def test_field_case_a(capsys):
    card = card_of(capsys, "DeepSeek-V4-Flash-NVFP4", "--hardware", "rtx pro 6000 blackwell server", "--tp", "4",
                   "--context-length", "320", "--levels", "1,16,64")
    target = {key: 1e3 * s for key, s in card["target"]["step_s"].items()}
    assert target == pytest.approx({"1": 3.631927, "16": 12.362078, "64": 29.222327}, rel=0.03)
    assert list(card["target"]["parts_s"]) and card["floor_s"][0] < card["floor_s"][1]
    for key in ("1", "16", "64"):
        assert card["strict"]["step_s"][key] <= card["expected"]["step_s"][key] <= card["target"]["step_s"][key]
        parts = sum(times[key] for times in card["target"]["parts_s"].values())
        assert parts == pytest.approx(card["target"]["step_s"][key])


def test_options_change_what_they_name(capsys):
    words = ("Qwen3.6-27B", "--hardware", "RTX A6000", "--tp", "2", "--context-length", "500", "--levels", "1,8")
    plain = card_of(capsys, *words)
    fp8 = card_of(capsys, *words, "--weights", "fp8", "--kv-dtype", "fp8")
    drafted = card_of(capsys, *words, "--draft-tokens", "3", "--prompt-tokens", "2000")
    assert fp8["bytes"]["weights"]["1"] == pytest.approx(plain["bytes"]["weights"]["1"] / 2, rel=0.01)
    assert fp8["bytes"]["kv"]["1"] == pytest.approx(plain["bytes"]["kv"]["1"] / 2)
    assert drafted["bytes"]["draft"]["1"] == pytest.approx(3 * 1.696e9, rel=0.01)  # three draft forwards
    assert plain["prefill"] is None
    prefill = drafted["prefill"]
    # at least 2 FLOP per parameter and token on two ranks of 154.8 TFLOP/s; the head sees one token
    least_s = 2 * (25.625e9 - 1.2714e9) / 2 * 2000 / 154.8e12
    assert least_s < prefill["strict_s"] < 1.2 * least_s and prefill["is_compute_bound"]
    assert prefill["strict_s"] < prefill["target_s"]


def test_a_configuration_of_ones_own(tmp_path, capsys):
    file = tmp_path / "config.json"
    file.write_text(json.dumps({
        "model_type": "llama", "hidden_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 8,
        "num_key_value_heads": 8, "intermediate_size": 4096, "vocab_size": 32000, "torch_dtype": "bfloat16",
    }))
    card = card_of(capsys, str(file), "--hardware", "h200", "--levels", "1")
    params = 4 * (4 * 1024**2 + 3 * 1024 * 4096 + 2 * 1024) + 1024 + 1024 * 32000
    assert card["bytes"]["weights"]["1"] + card["bytes"]["head"]["1"] == pytest.approx(2 * params)


def test_text_holds_a_unit_at_every_number(capsys):
    assert main(["bound", "Qwen3-30B-A3B", "--hardware", "h200", "--levels", "1,64", "--prompt-tokens", "1000"]) == 0
    text = capsys.readouterr().out
    assert "1.31 ms" in text and "tok/s" in text and "Where it turns" in text and "Rests on:" in text
    assert "nearly all experts are read from N = 46.4" in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("Qwen3-8B", "--hardware", "h900"), "no such accelerator; did you mean"),
        (("Qwen3-80B", "--hardware", "h200"), "no such model"),
        (("nowhere/config.json", "--hardware", "h200"), "nowhere/config.json"),
        (("DeepSeek-V3", "--hardware", "h100-sxm", "--tp", "4"), "expected at most the 85.9 GB"),
        (("Qwen3-8B", "--hardware", "h200", "--tp", "3"), "degrees that work: 1, 2, 4, 8"),
        (("Qwen3-8B", "--hardware", "h200", "--levels", "0,4"), "running requests above 0"),
        (("Qwen3-8B", "--hardware", "h200", "--levels", "a"), "--levels"),
        (("Qwen3-8B", "--hardware", "h200", "--weights", "fp3"), "weight format: expected one of"),
        (("Qwen3-8B", "--hardware", "h200", "--achievable", "1.5"), "share of the peak"),
        (("Qwen3-8B",), "--hardware"),
    ],
)
def test_wrong_input_is_one_line_and_exit_3(words, message, capsys):
    assert main(["bound", *words]) == 3
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and message in err


def test_an_unknown_architecture_says_the_way_on(tmp_path, capsys):
    (tmp_path / "config.json").write_text('{"model_type": "never_seen", "d_model": 4096}')
    assert main(["bound", str(tmp_path), "--hardware", "h200"]) == 3
    err = capsys.readouterr().err
    assert "hidden_size" in err and "weight_bytes_per_step" in err and err.count("\n") == 1
