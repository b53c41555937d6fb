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
    row = card["levels"][2]
    assert row["strict_step_s"] == card["strict"]["step_s"]["16"]
    assert row["target_tok_per_s"] == pytest.approx(16 / card["target"]["step_s"]["16"])
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


def test_every_collective_says_where_its_time_comes_from(capsys):
    card = card_of(capsys, "DeepSeek-V3", "--hardware", "h200", "--tp", "8", "--dp", "8", "--ep", "8",
                   "--dp-attention", "--levels", "16")
    assert any("expert exchange over" in text and "as measured on" in text for text in card["assumptions"])
    both = card_of(capsys, "Qwen3-30B-A3B", "--hardware", "RTX A6000", "--tp", "4", "--dp", "4", "--ep", "4",
                   "--dp-attention", "--levels", "16")["assumptions"]
    assert [any(words in text for text in both) for words in ("communication of RTX A6000", "expert exchange")] == [
        True, True]
    plain = card_of(capsys, "DeepSeek-V3", "--hardware", "h200", "--tp", "8", "--levels", "16")
    assert not any("expert exchange" in text for text in plain["assumptions"])


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


@pytest.mark.parametrize(("levels", "context", "said"), [
    ("1,2048", "2048", "do not fit into the memory from N=2048"),  # 60 GB of cache at 98.3 kB: 0.6 million tok
    ("64", "1e9", "not one context fits into the memory"),
    ("1", "50000", "takes at most 40960 tok of context"),
])
def test_what_no_memory_holds_is_said(capsys, levels, context, said):
    words = ("Qwen3-30B-A3B", "--hardware", "h200", "--context-length", context, "--levels", levels)
    assert any(said in text for text in card_of(capsys, *words)["warnings"])
    assert card_of(capsys, "Qwen3-30B-A3B", "--hardware", "h200", "--levels", "1,64")["warnings"] == []


def test_the_room_for_contexts_is_that_of_the_cache_asked_for(capsys):
    words = ("Qwen3-30B-A3B", "--hardware", "h200", "--levels", "1")
    plain, halved = (card_of(capsys, *words, *more)["run"]["kv_pool_tok"] for more in ((), ("--kv-dtype", "fp8")))
    assert halved == pytest.approx(2 * plain)


def test_copies_are_said_to_be_apart(capsys):
    words = ("Qwen3-30B-A3B", "--hardware", "h200", "--levels", "8", "--tp", "2", "--dp", "2")
    assert any("2 independent copies" in text for text in card_of(capsys, *words)["assumptions"])
    shared = card_of(capsys, *words, "--dp-attention")["assumptions"]
    assert not any("independent copies" in text for text in shared)


@pytest.mark.parametrize(("words", "complaint"), [
    (("Qwen3-30B-A3B", "--pp", "49"), "one pipeline stage for each of 48 layers"),
    (("Qwen3-30B-A3B", "--levels", "1e300"), "tok of context in all"),
    (("Qwen3-30B-A3B", "--context-length", "inf"), "tok of context in all"),
    (("x" * 300,), "no such model"),
    (("",), "no such model"),
])
def test_what_no_server_runs_is_refused_in_one_line(capsys, words, complaint):
    assert main(["bound", *words, "--hardware", "h200"]) == 3
    captured = capsys.readouterr()
    assert complaint in captured.err and captured.err.count("\n") == 1 and not captured.out


@pytest.mark.parametrize(("change", "complaint"), [
    ({"num_hidden_layers": 10**9}, "num_hidden_layers of at most 10 000, found 1e"),
    ({"num_nextn_predict_layers": 10**9}, "num_nextn_predict_layers of at most 10 000"),
    ({"num_experts": 10**9, "num_experts_per_tok": 8}, "num_experts of at most 100 000"),
    ({"hidden_size": 8 * 10**400}, "hidden_size of at most 1 000 000 000 000"),
    ({"quantization_config": {"quant_method": "gptq", "bits": -4, "group_size": -1}}, "-4 bits per weight"),
])
def test_numbers_no_model_has_are_refused(tmp_path, capsys, change, complaint):
    (tmp_path / "config.json").write_text(json.dumps({
        "model_type": "llama", "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 2,
        "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 1000} | change))
    assert main(["bound", str(tmp_path), "--hardware", "h200"]) == 3
    assert complaint in capsys.readouterr().err


def test_files_that_are_hardly_json(tmp_path, capsys):
    config = tmp_path / "config.json"
    config.write_text("[" * 200_000)
    assert main(["bound", str(config), "--hardware", "h200"]) == 3
    assert "nested too deep" in capsys.readouterr().err
    config.write_text(json.dumps({"model_type": "llama", "hidden_size": 512, "intermediate_size": 1024,
                                  "num_hidden_layers": 2, "num_attention_heads": 8, "vocab_size": 1000}),
                      encoding="utf-8-sig")  # as some editors save it
    assert card_of(capsys, str(config), "--hardware", "h200")["run"]["n_params"] > 0
