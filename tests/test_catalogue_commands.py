"""`rooflog models` and `rooflog hardware`: the numbers of the catalogues, readable in 100 columns, one-line errors."""

from __future__ import annotations

import json

import pytest

from helpers import cli
from helpers.physics.catalogue import hardware, models


def call(capsys, *words):
    code = cli.main(list(words))
    shown = capsys.readouterr()
    return code, shown.out, shown.err


@pytest.mark.parametrize(("command", "names"), [("models", models.names()), ("hardware", hardware.catalogue()["name"])])
def test_lists_every_entry_in_100_columns(capsys, command, names):
    code, out, err = call(capsys, command)
    assert (code, err) == (0, "")
    text = out.replace(" ", "").replace("\n", "")
    assert all(name.replace(" ", "") in text or len(name) > 35 for name in names)
    assert max(len(line.rstrip()) for line in out.splitlines()) <= 100
    assert "…" not in out


def test_units_stand_in_the_headers(capsys):
    heads = " ".join(call(capsys, "models")[1].splitlines()[1:3])
    assert all(unit in heads for unit in ("[B]", "[GB]", "[KiB/tok]", "[MB]"))
    heads = " ".join(call(capsys, "hardware")[1].splitlines()[1:3])
    assert all(unit in heads for unit in ("[GiB]", "[GB/s]", "[TFLOP/s]"))


def test_json_of_a_list_is_the_catalogue_in_base_units(capsys):
    code, out, err = call(capsys, "models", "--json")
    rows = {row["name"]: row for row in json.loads(out)["models"]}
    assert (code, err, set(rows)) == (0, "", set(models.names()))
    assert rows["Meta-Llama-3.1-8B"]["kv_bytes_per_tok"] == 131072
    rows = {row["name"]: row for row in json.loads(call(capsys, "hardware", "--json")[1])["hardware"]}
    assert rows["H100 SXM 80GB"]["mem_bw_bytes_per_s"] == pytest.approx(3.35e12)
    assert rows["H100 SXM 80GB"]["fp4_flop_per_s"] is None


def test_one_model(capsys):
    code, out, err = call(capsys, "models", "/data/models/gpt-oss-120b/")
    assert (code, err) == (0, "")
    # 36 KiB: 36 layers, half of them see everything: 18 x 2 x 8 heads x 64 x 2 bytes.
    for word in ("117 B parameters", "5.13 B used", "routed_experts", "mxfp4", "36.0 KiB", "openai/gpt-oss-120b",
                 "confidence: high"):
        assert word in out
    card = json.loads(call(capsys, "models", "gpt-oss-120b", "--json")[1])
    assert sum(row["weight_bytes"] for row in card["roles"]) == pytest.approx(card["weight_bytes"])
    assert card["kv_bytes_per_tok"] == 18 * 2 * 8 * 64 * 2
    assert sum(row["n_params"] for row in card["roles"]) == card["n_params"] == 116_829_156_672


def test_one_model_says_what_was_assumed(capsys):
    out = call(capsys, "models", "nvidia/Qwen3-32B-NVFP4")[1]
    assert "confidence: low" in out and "assumed: NVFP4 taken for every matrix" in out
    out = call(capsys, "models", "qwen3.6-27b")[1]
    assert "recurrent state: 154 MB per request" in out and "draft layers, on top: 0.425 B" in out


def test_one_accelerator(capsys):
    code, out, err = call(capsys, "hardware", "NVIDIA H100 80GB HBM3")
    assert (code, err) == (0, "")
    for word in ("H100 SXM 80GB (NVIDIA", "3350 GB/s", "BF16 989", "FP8 1979", "85 %", "700 W", "450 GB/s", "source: ",
                 "confidence: high"):
        assert word in out
    assert "warning: A10G: low confidence" in call(capsys, "hardware", "a10g")[1]
    card = json.loads(call(capsys, "hardware", "a10g", "--json")[1])
    assert card["warnings"] and card["tdp_w"] == 150


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["models", "Qwen3-9B"], "did you mean Qwen3-"),
        (["models", "Kimi-K2"], "expected one model, found 2"),
        (["models", "none/config.json"], "No such file"),
        (["hardware", "h100"], "expected one accelerator, found 3"),
        (["hardware", "zzzz", "--json"], "not in the catalogue"),
    ],
)
def test_a_name_that_is_not_certain_is_one_line_and_exit_3(capsys, words, message):
    code, out, err = call(capsys, *words)
    assert (code, out) == (3, "")
    assert message in err and err.startswith("error: ") and err.count("\n") == 1


def test_help(capsys):
    for command in ("models", "hardware"):
        assert "Example" in call(capsys, command, "--help")[1]
    shown = call(capsys, "--help")[1]
    assert "models" in shown and "hardware" in shown
