"""Formats per role: every form of a quantisation that a checkpoint or a server writes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.physics.model.formats import FORMATS, KV_FORMATS, block_fp8, grouped_int
from helpers.physics.model.spec import ROLES
from helpers.physics.reading.module_names import Listing, as_shells, layer_kinds, modules
from helpers.physics.reading.quantisation import (
    PROJECTIONS,
    apply_dtype,
    kv_format,
    read_formats,
    weight_formats,
)
from helpers.schema import LogFormatError, RooflogError

DENSE = {
    "torch_dtype": "bfloat16", "num_hidden_layers": 4, "hidden_size": 64, "intermediate_size": 256, "vocab_size": 1000,
    "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 8,
}
MOE = DENSE | {"num_experts": 16, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_shared_experts": 1,
               "first_k_dense_replace": 1}
STACK = ("attention", "dense_mlp", "routed_experts", "shared_experts")
PLAIN = ("embed", "head", "router", "norm")

EXPECTED: dict[str, tuple[dict[str, str], str]] = {
    # Read by eye from each config.json; roles that the model does not have are left out, the rest is bf16.
    "DeepSeek-V3": (dict.fromkeys((*STACK, "draft"), "fp8_block128"), "bf16"),
    "DeepSeek-V3.2": (dict.fromkeys((*STACK, "indexer", "draft"), "fp8_block128_ue8m0"), "bf16"),
    "DeepSeek-V4-Flash": (
        dict.fromkeys(("attention", "indexer", "compressor", "shared_experts", "draft"), "fp8_block128_ue8m0")
        | {"routed_experts": "mxfp4_w4a8", "residual_mix": "fp32"}, "bf16"),
    "DeepSeek-V4-Pro": (
        dict.fromkeys(("attention", "indexer", "compressor", "shared_experts", "draft"), "fp8_block128_ue8m0")
        | {"routed_experts": "mxfp4_w4a8", "residual_mix": "fp32"}, "bf16"),
    "DeepSeek-V4-Flash-NVFP4": (
        dict.fromkeys(("attention", "indexer", "compressor", "shared_experts", "draft"), "fp8_block128_ue8m0")
        | {"routed_experts": "nvfp4", "residual_mix": "fp32"}, "bf16"),
    "Kimi-K2-Instruct": (dict.fromkeys(STACK, "fp8_block128"), "bf16"),
    "Kimi-K2.5": ({"routed_experts": "int4_g32"}, "bf16"),
    "Llama-3.1-70B-Instruct-FP8": ({"attention": "fp8", "dense_mlp": "fp8"}, "fp8"),
    "MiniMax-M2.5": (dict.fromkeys(("attention", "routed_experts", "draft"), "fp8_block128"), "bf16"),
    "NVIDIA-Nemotron-3-Super-120B-A12B-FP8": (
        dict.fromkeys(("attention", "linear_attention", "routed_experts", "shared_experts", "draft"), "fp8"), "fp8"),
    "Qwen3.6-27B-NVFP4": (
        {"attention": "fp8", "linear_attention": "fp8", "dense_mlp": "nvfp4_weight_only",
         "head": "nvfp4_weight_only"}, "fp8"),
    "Qwen3.6-35B-A3B-NVFP4": (
        {"attention": "fp8", "linear_attention": "fp8", "routed_experts": "nvfp4_weight_only",
         "shared_experts": "nvfp4_weight_only", "head": "nvfp4_weight_only"}, "fp8"),
    "gpt-oss-20b": ({"routed_experts": "mxfp4_weight_only"}, "bf16"),
    "gpt-oss-120b": ({"routed_experts": "mxfp4_weight_only"}, "bf16"),
}
ALWAYS = {"attention", "norm", "embed", "head"}
NO_DTYPE = {"GLM-4.5-Air", "MiniMax-M2.5", "Qwen3-Next-80B-A3B-Instruct", "gemma-2-27b", "gemma-3-27b-it",
            "gpt-oss-20b", "gpt-oss-120b"}


def _read(
    quantisation: dict[str, Any] | None, base: dict[str, Any] = MOE, **more: Any,
) -> tuple[dict[str, str], str, str]:
    config = base | more | ({"quantization_config": quantisation} if quantisation is not None else {})
    formats, kv, notes = read_formats(config)
    assert tuple(formats) == ROLES
    return {role: item.name for role, item in formats.items()}, kv.name, "; ".join(notes)


def _configs(shared: Path) -> dict[str, dict[str, Any]]:
    return {file.stem: json.loads(file.read_text()) for file in sorted((shared / "reference/configs").glob("*.json"))}


def test_formats_of_the_reference_configurations(shared: Path) -> None:
    """Every role of every configuration, against what a reader sees in it."""
    configs = _configs(shared)
    assert len(configs) == 38 and EXPECTED.keys() <= configs.keys()
    for name, config in configs.items():
        formats, kv, notes = read_formats(config)
        expected, expected_kv = EXPECTED.get(name, ({}, "bf16"))
        text = config.get("text_config", config)
        present = {module.role for module in modules(text)} | expected.keys()
        assert present >= ALWAYS - ({"attention"} if "hybrid_override_pattern" in text else set()), name
        found = {role: formats[role].name for role in present if formats[role].name != "bf16"}
        assert (found, kv.name) == (expected, expected_kv), name
        assert any("dtype: not in the configuration" in note for note in notes) == (name in NO_DTYPE), name
        assert not any("entries name no module" in note or "not read" in note for note in notes), (name, notes)


def test_assumptions_of_the_reference_configurations(shared: Path) -> None:
    """Only real doubts are said: groups against map, draft experts, a list that excludes nothing."""
    notes = {name: " ".join(read_formats(config)[2]) for name, config in _configs(shared).items()}
    said = {name for name, text in notes.items() if text and name not in NO_DTYPE}
    assert said == {"DeepSeek-V4-Flash", "DeepSeek-V4-Pro", "DeepSeek-V4-Flash-NVFP4", "Qwen3.6-35B-A3B-NVFP4",
                    "NVIDIA-Nemotron-3-Super-120B-A12B-FP8"}
    assert "disagree on 161 modules" in notes["Qwen3.6-35B-A3B-NVFP4"]
    assert "no module is excluded" in notes["NVIDIA-Nemotron-3-Super-120B-A12B-FP8"]


@pytest.mark.parametrize(("dtype", "name"), [
    ("bfloat16", "bf16"), ("float16", "fp16"), ("torch.float32", "fp32"), ("half", "fp16")])
def test_no_quantisation_is_the_dtype(dtype: str, name: str) -> None:
    """All roles and the cache in the dtype, under either key, at either level."""
    inner = MOE | {"torch_dtype": None}
    for config in ({"dtype": dtype}, {"torch_dtype": dtype}, {"torch_dtype": dtype, "text_config": inner},
                   {"llm_config": {"dtype": dtype}}):
        formats, kv, notes = read_formats(config)
        assert {item.name for item in formats.values()} == {name} and kv.name == name and not notes


def test_missing_and_unknown_dtypes_are_said() -> None:
    """BF16 with a sentence, never in silence."""
    assert "not in the configuration; BF16 assumed" in read_formats({})[2][0]
    assert "'float7' is not known; BF16 assumed" in read_formats({"dtype": "float7"})[2][0]


@pytest.mark.parametrize(("block", "scales", "name", "bytes_per_param"), [
    ([128, 128], None, "fp8_block128", 1 + 4 / 16384), ([128, 128], "ue8m0", "fp8_block128_ue8m0", 1 + 1 / 16384),
    (None, None, "fp8", 1.0), ([1, 32], "ue8m0", "fp8_block1x32_ue8m0", 1 + 1 / 32)])
def test_fp8(block: list[int] | None, scales: str | None, name: str, bytes_per_param: float) -> None:
    """Blocks and scales make the bytes; head, embedding, router and norms stay."""
    config = MOE | {"quantization_config": {"quant_method": "fp8", "activation_scheme": "dynamic",
                                            "weight_block_size": block, "scale_fmt": scales}}
    formats, kv, notes = read_formats(config)
    assert {formats[role].name for role in STACK} == {name} and {formats[role].name for role in PLAIN} == {"bf16"}
    assert formats["attention"].bytes_per_param == pytest.approx(bytes_per_param, rel=1e-12)
    assert formats["attention"].compute == "fp8" and kv.name == "bf16" and not notes


def test_modules_not_converted_decide_their_role() -> None:
    """A whole role left out, small modules left out, a layer left out (the mean of its parts, with the share)."""
    fp8 = {"quant_method": "fp8"}
    names, _, notes = _read(fp8 | {"modules_to_not_convert": ["self_attn", "mlp.gate", "lm_head", "model.norm"]})
    assert names["attention"] == "bf16" and names["routed_experts"] == "fp8" and not notes
    layer = "model.layers.3.self_attn"
    names, _, notes = _read(fp8 | {"modules_to_not_convert": [f"{layer}.{leaf}_proj" for leaf in "qkvo"]})
    assert names["attention"] == "fp8 mixed"
    assert "attention: 75% of the parameters are fp8; all are counted with the mean of 1.25 bytes" in notes
    formats, _, _ = read_formats(DENSE | {"quantization_config": fp8 | {
        "modules_to_not_convert": [f"{layer}.{leaf}_proj" for leaf in "qkvo"]}})
    assert formats["attention"].bytes_per_param == 0.75 * 1 + 0.25 * 2
    three = [f"model.layers.{index}.self_attn" for index in (0, 1, 2)]
    names, _, notes = _read(fp8 | {"modules_to_not_convert": three})
    assert names["attention"] == "bf16 mixed" and "attention: 75% of the parameters are bf16" in notes


def test_shares_are_of_parameters() -> None:
    """The output projection alone is 40 % of this attention (8 heads of 20 in q, k, v and o)."""
    _, _, notes = _read({"quant_method": "fp8", "modules_to_not_convert": ["*.o_proj"]})
    assert "attention: 60% of the parameters are fp8" in notes


def test_shares_of_latent_attention(shared: Path) -> None:
    """Of DeepSeek-V3's latent attention (187,105,280 parameters) the output projection is 117,440,512."""
    text = _configs(shared)["DeepSeek-V3"]
    sizes: dict[str, float] = {}
    for module in modules(text):
        if module.role == "attention" and "layers.0." in module.names[0]:
            sizes[module.names[0]] = module.n_params
    assert sum(sizes.values()) == 187_105_280 and sizes["layers.0.self_attn.o_proj"] == 117_440_512
    v4 = [module for module in modules(_configs(shared)["DeepSeek-V4-Flash"]) if module.role == "attention"]
    assert sum(module.n_params for module in v4) == 43 * 106_954_752


def test_a_layer_is_not_the_draft_layer_of_the_same_number() -> None:
    """model.layers.0 is not mtp.layers.0, and model.layers.4 of 4 layers is the draft."""
    base = MOE | {"num_nextn_predict_layers": 1}
    names, _, notes = _read({"quant_method": "fp8", "modules_to_not_convert": ["model.layers.0"]}, base)
    assert names["draft"] == "fp8" and "draft" not in notes
    for entry in ("mtp*", "mtp.layers.0", "model.layers.4", "re:.*mtp.*", "model.layers.4.*"):
        names, _, notes = _read({"quant_method": "fp8", "ignore": [entry]}, base)
        assert names["draft"] == "bf16" and names["attention"] == "fp8" and not notes, entry


def test_entries_that_mean_nothing_here_are_said() -> None:
    """Vision towers are not read by a decode step; anything else that fits no module is said."""
    fp8 = {"quant_method": "fp8"}
    assert not _read(fp8 | {"ignore": ["model.visual.blocks.0.mlp", "re:vision_tower.*", "mtp.fc"]})[2]
    assert "1 entries name no module known here (first: 'model.layers.0.frob')" in _read(
        fp8 | {"ignore": ["model.layers.0.frob"]})[2]
    unread = "re:^(?!.*experts).*"
    assert f"1 expressions not read (first: {unread!r})" in _read(fp8 | {"ignore": [unread]})[2]


def test_mxfp4_is_for_experts_only() -> None:
    """gpt-oss: experts in 4 bits without quantised activations, the rest in BF16."""
    names, _, notes = _read({"quant_method": "mxfp4", "modules_to_not_convert": [
        "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]})
    assert names == dict.fromkeys(ROLES, "bf16") | {"routed_experts": "mxfp4_weight_only"} and not notes


def _group(bits: int, kind: str, inputs: int | None = None, **weights: Any) -> dict[str, Any]:
    activations = None if inputs is None else {"num_bits": inputs, "type": kind}
    return {"targets": ["Linear"], "weights": {"num_bits": bits, "type": kind, **weights},
            "input_activations": activations}


@pytest.mark.parametrize(("group", "name", "bytes_per_param", "compute"), [
    (_group(8, "float", 8, strategy="channel"), "fp8", 1.0, "fp8"),
    (_group(8, "float"), "fp8_weight_only", 1.0, "bf16"),
    (_group(8, "float", 8, strategy="block", block_structure=[128, 128]), "fp8_block128", 1 + 4 / 16384, "fp8"),
    (_group(8, "float", 8, strategy="block", block_structure="128x128"), "fp8_block128", 1 + 4 / 16384, "fp8"),
    (_group(8, "float", 8, group_size=32), "mxfp8", 1 + 1 / 32, "fp8"),
    (_group(4, "float", 4, group_size=16), "nvfp4", 0.5625, "fp4"),
    (_group(4, "float", group_size=16), "nvfp4_weight_only", 0.5625, "bf16"),
    (_group(4, "float", 8, group_size=16), "nvfp4_w4a8", 0.5625, "fp8"),
    (_group(4, "float", 4, group_size=32), "mxfp4", 0.53125, "fp4"),
    (_group(4, "float", group_size=32), "mxfp4_weight_only", 0.53125, "bf16"),
    (_group(8, "int", 8), "int8", 1.0, "int8"),
    (_group(8, "int"), "int8_weight_only", 1.0, "bf16"),
    (_group(4, "int", group_size=128, symmetric=True), "int4_g128", 0.515625, "bf16"),
    (_group(4, "int", group_size=128, symmetric=False), "int4_g128_zeros", 0.51953125, "bf16"),
    (_group(4, "int", group_size=32, symmetric=True), "int4_g32", 0.5625, "bf16"),
    (_group(4, "int", group_size=64), "int4_g64", 0.53125, "bf16"),
    (_group(4, "int", group_size=-1), "int4_channel", 0.5, "bf16"),
    (_group(4, "int", 8, group_size=128), "int4_g128_w4a8", 0.515625, "int8"),
])
def test_compressed_tensors(group: dict[str, Any], name: str, bytes_per_param: float, compute: str) -> None:
    """Bits, type, groups and activations of a group; activations that are not quantised mean BF16 products."""
    formats, _, notes = read_formats(MOE | {"quantization_config": {
        "quant_method": "compressed-tensors", "config_groups": {"group_0": group}, "ignore": ["lm_head"]}})
    found = formats["routed_experts"]
    assert (found.name, found.compute) == (name, compute) and not notes
    assert found.bytes_per_param == pytest.approx(bytes_per_param, rel=1e-12)
    assert {formats[role].name for role in PLAIN} == {"bf16"}


def test_compressed_tensors_with_several_groups_and_a_cache() -> None:
    """Expressions as targets; the cache's own scheme; ignored modules win over targets."""
    experts = _group(4, "float", 4, group_size=16) | {"targets": ["re:.*mlp\\.experts\\.\\d+\\.(gate|up|down)_proj$"]}
    rest = _group(8, "float", 8) | {"targets": ["re:.*self_attn.*", "re:.*shared_expert.*", "lm_head"]}
    names, kv, notes = _read({
        "quant_method": "compressed-tensors", "config_groups": {"group_0": experts, "group_1": rest},
        "ignore": ["re:.*shared_experts.*"], "kv_cache_scheme": {"num_bits": 8, "type": "float"}})
    assert {role: name for role, name in names.items() if name != "bf16"} == {
        "routed_experts": "nvfp4", "attention": "fp8", "head": "fp8"}
    assert kv == "fp8" and not notes


def test_compressed_tensors_says_what_it_does_not_know() -> None:
    """Three bits of a type nobody knows, and sparse weights."""
    names, _, notes = _read({"quant_method": "compressed-tensors", "config_groups": {"g": _group(6, "ternary")},
                             "sparsity_config": {"format": "sparse-24-bitmask"}})
    assert names["attention"] == "bf16" and "weights of 6 bits, type ternary are not known" in notes
    assert "counted as if dense" in notes


@pytest.mark.parametrize(("algorithm", "name"), [
    ("FP8", "fp8"), ("NVFP4", "nvfp4"), ("W4A16_NVFP4", "nvfp4_weight_only"), ("W4A8_AWQ", "int4_g128_w4a8"),
    ("W4A16_AWQ", "int4_g64"), ("W8A8_SQ_PER_CHANNEL", "int8"), ("FP8_PB_WO", "fp8_block128"), ("MXFP8", "mxfp8")])
def test_modelopt(algorithm: str, name: str) -> None:
    """The same words in config.json, nested there, and beside it."""
    words = {"quant_algo": algorithm, "group_size": 64, "kv_cache_quant_algo": "FP8"}
    excluded = ["lm_head", "*self_attn*", "*mlp.gate"]
    forms: list[tuple[dict[str, Any], dict[str, Any] | None]] = [
        ({"quantization_config": {"quant_method": "modelopt", "ignore": excluded, **words}}, None),
        ({"quantization_config": {"quant_method": "modelopt",
                                  "quantization": {"exclude_modules": excluded, **words}}}, None),
        ({}, {"producer": {"name": "modelopt"}, "quantization": {"exclude_modules": excluded, **words}}),
        ({"_hf_quant_config": {"quantization": {"exclude_modules": excluded, **words}}}, None),
    ]
    for config, sidecar in forms:
        formats, kv, notes = read_formats(MOE | config, sidecar)
        assert formats["routed_experts"].name == name and formats["attention"].name == "bf16"
        assert {formats[role].name for role in PLAIN} == {"bf16"} and kv.name == "fp8" and not notes


def test_modelopt_mixed_precision() -> None:
    """A map from modules to algorithms: what it does not name stays, what is excluded wins."""
    layers = {f"model.layers.{i}.mlp.experts": {"quant_algo": "NVFP4", "group_size": 16} for i in range(1, 4)}
    attention = {f"model.layers.{i}.self_attn.{leaf}_proj": {"quant_algo": "FP8"} for i in range(4) for leaf in "qkvo"}
    odd = {"lm_head": {"quant_algo": "FP8"}, "model.layers.0.mlp.down_proj": {"quant_algo": "SOON"}}
    names, kv, notes = _read({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "ignore": ["lm_head"],
                              "quantized_layers": layers | attention | odd, "kv_cache_quant_algo": "SOON"})
    assert {role: name for role, name in names.items() if name != "bf16"} == {
        "routed_experts": "nvfp4", "attention": "fp8"}
    assert kv == "bf16" and "quant_algo 'SOON' is not known" in notes and "kv_cache_quant_algo 'SOON'" in notes


def test_sidecar_against_configuration() -> None:
    """The configuration wins and the difference is said; a cache that only the sidecar knows counts."""
    config = MOE | {"quantization_config": {"quant_method": "fp8"}}
    sidecar = {"quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}}
    formats, kv, notes = read_formats(config, sidecar)
    assert formats["attention"].name == "fp8" and kv.name == "fp8"
    assert notes == ("config.json says fp8 for the weights, hf_quant_config.json nvfp4: config.json counted",)


@pytest.mark.parametrize(("words", "name", "compute"), [
    ({"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}, "int4_g128_zeros", "bf16"),
    ({"quant_method": "awq", "w_bit": 4, "q_group_size": 64, "zero_point": False}, "int4_g64", "bf16"),
    ({"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True}, "int4_g128", "bf16"),
    ({"quant_method": "gptq", "bits": 8, "group_size": 128, "sym": False}, "int8_g128_zeros", "bf16"),
    ({"quant_method": "gptq", "bits": 8, "group_size": -1}, "int8_weight_only", "bf16"),
    ({"quant_method": "auto-round", "bits": 4, "group_size": 32, "sym": True}, "int4_g32", "bf16"),
    ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "nf4_g64", "bf16"),
    ({"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_use_double_quant": True}, "nf4_g64_double",
     "bf16"),
    ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "int8", "int8"),
    ({"quant_method": "w8a8_int8"}, "int8", "int8"),
    ({"quant_method": "fbgemm_fp8"}, "fp8", "fp8"),
    ({"quant_method": "quark", "global_quant_config": {
        "weight": {"dtype": "fp8_e4m3"}, "input_tensors": {"dtype": "fp8_e4m3"}}}, "fp8", "fp8"),
    ({"quant_method": "quark", "global_quant_config": {
        "weight": {"dtype": "fp4", "group_size": 32}, "input_tensors": {"dtype": "fp4"}}}, "mxfp4", "fp4"),
])
def test_other_methods(words: dict[str, Any], name: str, compute: str) -> None:
    """AWQ, GPTQ, AutoRound, bitsandbytes, Quark and plain names."""
    formats, _, notes = read_formats(MOE | {"quantization_config": words})
    assert {formats[role].name for role in STACK} == {name} and formats["attention"].compute == compute
    assert {formats[role].name for role in PLAIN} == {"bf16"} and not notes


def test_gptq_and_quark_with_modules_of_their_own() -> None:
    """GPTQ's dynamic entries, AutoRound's extra_config, a quantised head, Quark's lists and cache."""
    names, _, notes = _read({"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True, "lm_head": True,
                             "dynamic": {"-:.*attn.*": {}, "+:.*shared_experts.*": {"bits": 8, "group_size": 64}}})
    assert (names["attention"], names["shared_experts"], names["head"]) == ("bf16", "int8_g64", "int4_g128")
    assert names["routed_experts"] == "int4_g128" and not notes
    names, _, _ = _read({"quant_method": "auto-round", "bits": 4, "group_size": 128, "extra_config": {
        f"model.layers.{i}.self_attn": {"bits": 16} for i in range(4)}})
    assert names["attention"] == "bf16"
    names, kv, notes = _read({"quant_method": "quark", "exclude": ["lm_head", "*self_attn*"], "global_quant_config": {
        "weight": {"dtype": "fp9"}}, "kv_cache_quant_config": {"*k_proj": {"output_tensors": {"dtype": "fp8_e4m3"}}}})
    assert kv == "fp8" and names["routed_experts"] == "bf16" and "fp9 dtype are not known" in notes


def test_group_size_that_is_missing_is_said() -> None:
    """128 is the custom, not a fact."""
    assert "no group_size; 128 assumed" in _read({"quant_method": "gptq", "bits": 4})[2]


@pytest.mark.parametrize("words", [{"quant_method": "aqlm"}, {"bits": 4, "group_size": 128}])
def test_unknown_methods_are_said(words: dict[str, Any]) -> None:
    """Counted in the model's dtype, with the effect."""
    names, _, notes = _read(words)
    assert set(names.values()) == {"bf16"} and "is not known" in notes and "bytes are too high" in notes


@pytest.mark.parametrize("words", [
    "fp8", {"quant_method": "compressed-tensors", "config_groups": [1]},
    {"quant_method": "fp8", "weight_block_size": ["a", "b"]}, {"quant_method": "gptq", "bits": "many"}])
def test_damaged_quantisation_is_one_clear_error(words: Any) -> None:
    """Not a traceback from deep inside."""
    with pytest.raises(LogFormatError, match="quantization_config: expected"):
        read_formats(MOE | {"quantization_config": words})


def test_expert_dtype_overrides_the_experts_only() -> None:
    """DeepSeek-V4: 4 bits for the routed experts, whatever the rest is."""
    names, _, notes = _read({"quant_method": "fp8"}, expert_dtype="fp4", num_nextn_predict_layers=1)
    assert names["routed_experts"] == "mxfp4_w4a8" and names["shared_experts"] == names["draft"] == "fp8"
    assert "draft layers counted as fp8" in notes
    assert FORMATS["mxfp4_w4a8"].compute == "fp8" and FORMATS["mxfp4_w4a8"].bytes_per_param == 0.53125


def test_formats_of_a_catalogue_file_win() -> None:
    """Given formats are no assumption; a wrong name is an error."""
    given_all = dict.fromkeys(PROJECTIONS, "nvfp4") | {"head": "fp8"}
    formats, kv, notes = read_formats(MOE | {"_formats": given_all, "_kv_format": "fp8"} | {
        "quantization_config": {"quant_method": "aqlm"}})
    assert formats["attention"].name == "nvfp4" and formats["head"].name == "fp8" and kv.name == "fp8" and not notes
    formats, _, notes = read_formats(MOE | {"_formats": {"attention": "bf16"}} | {"quantization_config": {
        "quant_method": "fp8", "ignore": ["model.layers.3.self_attn"]}})
    assert formats["attention"].name == "bf16" and formats["routed_experts"].name == "fp8" and not notes
    for wrong in ({"_formats": {"attention": "fp3"}}, {"_formats": {"attn": "fp8"}}, {"_kv_format": "fp3"}):
        with pytest.raises(LogFormatError, match="format: expected|formats: expected"):
            read_formats(MOE | wrong)


@pytest.mark.parametrize(("name", "expected"), [
    ("fp8_e5m2", "fp8"), ("fp8_e4m3", "fp8"), ("fp8", "fp8"), ("torch.float8_e4m3fn", "fp8"), ("bf16", "bf16"),
    ("bfloat16", "bf16"), ("torch.bfloat16", "bf16"), ("float16", "fp16"), ("half", "fp16"), ("fp4_e2m1", "nvfp4"),
    ("nvfp4", "nvfp4"), ("int8", "int8"), ("auto", None), (None, None), ("None", None), ("", None)])
def test_cache_formats_as_servers_spell_them(name: str | None, expected: str | None) -> None:
    """auto and None mean: as the model says."""
    found = kv_format(name)
    assert found == (KV_FORMATS[expected] if expected else None)


def test_unknown_cache_format() -> None:
    """One line with the known names."""
    with pytest.raises(RooflogError, match=r"expected one of auto, .*fp8_e5m2.*found 'fp7'"):
        kv_format("fp7")


def test_lever_changes_its_roles_only() -> None:
    """Attention, dense layers, experts; never head, router, norms, draft."""
    now = read_formats(MOE)[0]
    formats = weight_formats("fp8", now)
    assert {role for role in ROLES if formats[role] != now[role]} == {*STACK, "linear_attention"}
    assert weight_formats("fp8") == formats
    with pytest.raises(RooflogError, match="expected one of fp32, .*found 'fp3'"):
        weight_formats("fp3")


def test_arguments_of_a_server() -> None:
    """They decide a checkpoint that says nothing; a checkpoint that says more stays."""
    plain = read_formats(MOE)[0]
    for nothing in (None, "auto", "None"):
        assert apply_dtype(plain, nothing, nothing) == (plain, ())
    formats, notes = apply_dtype(plain, quantization="fp8")
    assert {role for role in ROLES if formats[role].name == "fp8"} == PROJECTIONS and "counted as fp8" in notes[0]
    assert apply_dtype(plain, quantization="modelopt_fp4")[0]["attention"].name == "nvfp4"
    assert apply_dtype(plain, quantization="awq")[0]["attention"].name == "int4_g128_zeros"
    assert apply_dtype(plain, quantization="mxfp4")[0]["attention"].name == "bf16"
    formats, notes = apply_dtype(plain, quantization="compressed-tensors")
    assert formats == plain and "bytes are too high if they are quantised" in notes[0]
    blocks = read_formats(MOE | {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}})[0]
    for agrees in ("fp8", "compressed-tensors", "w8a8_fp8", "modelopt_mixed"):
        assert apply_dtype(blocks, quantization=agrees) == (blocks, ())
    formats, notes = apply_dtype(blocks, quantization="modelopt_fp4")
    assert formats == blocks and "check that it is the model that was served" in notes[0]


def test_dtype_of_a_server() -> None:
    """Roles in 16 bits follow; quantised ones and FP32 do not."""
    mixed = read_formats(MOE | {"quantization_config": {"quant_method": "fp8"}, "hc_mult": 4})[0]
    formats, notes = apply_dtype(mixed, "torch.float16")
    assert (formats["head"].name, formats["attention"].name, formats["residual_mix"].name) == ("fp16", "fp8", "fp32")
    assert not notes and "'float7' of the server is not known" in apply_dtype(mixed, "float7")[1][0]


def test_bytes_of_the_formats() -> None:
    """The closed forms: bits, and scales over the group."""
    assert grouped_int(4, 128, has_zeros=True) is FORMATS["int4_g128_zeros"] and block_fp8(128, 128) is FORMATS[
        "fp8_block128"]
    assert grouped_int(3, 64, has_zeros=True).bytes_per_param == pytest.approx(0.375 + (2 + 0.375) / 64)
    assert all(name == item.name for name, item in FORMATS.items())


@pytest.mark.parametrize("expression", [
    ".*self_attn.*", r".*mlp\.(gate|up|gate_up|down)_proj.*", ".*mlp.gate$", r"^model\.layers\.\d+\.mlp\.experts.*",
    "model.layers.[0-3].self_attn.(q|k)_proj", ".*shared_experts?.*", r"(model\.)?layers\.1\..*", ".*lm_head",
    r".*\.(experts|shared_experts)\.[0-9]+\.down_proj$", "lm_head$|.*embed_tokens", r"(?:.*)o_proj", ".+attn.+",
])
def test_expressions_mean_what_the_language_says(expression: str) -> None:
    """The translation names exactly the modules that re.match names, in the same spelling."""
    listing = Listing(modules(MOE))
    shells = ("", "model.", "model.language_model.")
    expected = {index for index, module in enumerate(listing.modules)
                if any(re.match(expression, shell + name) for shell in shells for name in module.names)}
    assert expected and listing.named(f"re:{expression}") == expected


@pytest.mark.parametrize("expression", [
    "(?!a)b", r"\w+", "a{2}", "(ab)*", "a+", "(a", "[a", "a)", "*a", "a\\"])
def test_expressions_that_are_not_read(expression: str) -> None:
    """None, so that the caller says so."""
    assert as_shells(expression) is None


@given(st.text(alphabet=r"ab.*+?()[]|\d^$-", max_size=12))
def test_any_expression_is_read_or_refused(expression: str) -> None:
    """No exception on whatever stands in a list."""
    found = as_shells(expression)
    assert found is None or all(isinstance(shell, str) for shell in found)


def test_layers_by_kind() -> None:
    """Interval, list, letters and dense-first layers."""
    base = DENSE | {"linear_num_value_heads": 4}
    assert [kind[0] for kind in layer_kinds(base | {"full_attention_interval": 2})] == [
        "linear_attention", "attention"] * 2
    assert [kind[0] for kind in layer_kinds(base | {"layer_types": ["full_attention", "linear_attention"] * 2})] == [
        "attention", "linear_attention"] * 2
    assert [kind[0] for kind in layer_kinds(MOE | {"hybrid_override_pattern": "M*-E"})] == [
        "linear_attention", "attention", "dense_mlp", "routed_experts"]
    assert [kind[1] for kind in layer_kinds(MOE)] == ["dense_mlp"] + ["routed_experts"] * 3
