"""From facts to the physics of a deployment: which model, whose ranks, what is refused in words."""

from __future__ import annotations

import json

import pytest

from helpers import deployment
from helpers.facts import merge_facts
from helpers.physics.steps.decode import DecodeModel
from helpers.physics.steps.hand import HandModel
from helpers.schema import NotEnoughData, RooflogError

H200 = {"hardware": "h200"}


def resolved(log=None, **user):
    return deployment.resolve(merge_facts(log, user))


def test_bytes_by_hand_win_over_a_name():
    of = resolved({"model": "Qwen3-8B"}, **H200, weight_bytes_per_step=1e9, kv_bytes_per_tok=1e3)
    assert isinstance(of.model, HandModel) and of.model.weight_bytes_per_step == 1e9 and of.links == {}


def test_a_model_of_the_log_is_looked_up():
    of = resolved({"model": "/data/models/Qwen3-30B-A3B", "tp": 2, "engine": "vllm"}, **H200)
    assert isinstance(of.model, DecodeModel) and of.model.spec.n_params == 30_532_122_624
    assert of.model.parallel.tp == 2 and list(of.links) == [2]


def test_a_few_counts_are_a_model_too():
    # 30.5 B in 2 bytes, 3 B per token, 8 of 128 experts: idle 27.5 B are 120/128 of the experts
    of = resolved(**H200, n_params=30.5e9, n_active_params=3e9, kv_bytes_per_tok=98304, n_experts=128,
                  n_experts_active=8)
    assert isinstance(of.model, HandModel)
    assert of.model.weight_bytes_per_step == 6e9
    assert of.model.expert_bytes == pytest.approx(27.5e9 * 128 / 120 * 2)
    with pytest.raises(RooflogError, match="n_active_params <= n_params"):
        resolved(**H200, n_params=1e9, n_active_params=2e9, kv_bytes_per_tok=1)


def test_a_dense_model_by_its_count_alone():
    of = resolved(**H200, n_params=8e9, kv_bytes_per_tok=131072)
    assert (of.model.weight_bytes_per_step, of.model.expert_bytes) == (16e9, 0.0)
    told_twice = resolved(**H200, n_params=8e9, n_active_params=8e9, kv_bytes_per_tok=131072)
    assert told_twice.model == of.model
    eight_bits = resolved(**H200, n_params=8e9, kv_bytes_per_tok=65536, weight_bytes_per_param=1.0)
    assert eight_bits.model.weight_bytes_per_step == 8e9


def test_a_configuration_is_read_from_a_file_or_an_object(tmp_path):
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 512, "num_hidden_layers": 2,
              "num_attention_heads": 8, "num_key_value_heads": 4, "intermediate_size": 1024, "vocab_size": 1000,
              "torch_dtype": "bfloat16", "max_position_embeddings": 4096}
    by_hand = 2 * 512 * 1000 + 2 * (2 * 512 * 512 + 2 * 512 * 256 + 3 * 512 * 1024 + 2 * 512) + 512
    (tmp_path / "config.json").write_text(json.dumps(config))
    for given in (config, str(tmp_path / "config.json"), str(tmp_path)):
        assert resolved(**H200, model_config=given).model.spec.n_params == by_hand
    assert deployment.model_facts(str(tmp_path)) == {"model_config": str(tmp_path), "model": tmp_path.name}
    assert deployment.model_facts("Qwen3-8B") == {"model": "Qwen3-8B"}
    # a shape by name, whatever the log calls its model
    assert resolved({"model": "/models/ours"}, **H200, model_config="Qwen3-8B").model.spec.name == "Qwen3-8B"


@pytest.mark.parametrize(
    ("log", "tp", "dp", "ep", "attention_tp"),
    [
        ({"engine": "sglang", "tp": 8, "dp": 8, "dp_attention": True}, 8, 8, 1, 1),
        ({"engine": "sglang", "tp": 8, "dp": 2}, 8, 2, 1, 8),  # copies that do not share a step
        ({"engine": "vllm", "tp": 2, "dp": 4, "ep": 8}, 8, 4, 8, 2),
        ({"engine": "vllm", "tp": 4}, 4, 1, 1, 4),
    ],
)
def test_degrees_as_the_engines_count_them(log, tp, dp, ep, attention_tp):
    parallel = deployment.parallel_of(merge_facts(log))
    assert (parallel.tp, parallel.dp, parallel.ep, parallel.attention_tp) == (tp, dp, ep, attention_tp)


@pytest.mark.parametrize(
    ("log", "n_draft_tok", "n_forwards"),
    [
        ({"engine": "sglang", "num_draft_tokens": 4, "num_draft_steps": 3, "speculative_algorithm": "NEXTN"}, 3, 3),
        ({"engine": "sglang", "num_draft_tokens": 4, "num_draft_steps": 3, "speculative_algorithm": "EAGLE"}, 3, 3),
        ({"engine": "vllm", "num_draft_tokens": 3, "speculative_algorithm": "mtp"}, 3, None),
        ({"engine": "vllm", "num_draft_tokens": 3, "speculative_algorithm": "ngram"}, 3, 0),
        ({"engine": "vllm"}, 0, None),
    ],
)
def test_drafts_as_the_engines_count_them(log, n_draft_tok, n_forwards):
    model = resolved(log | {"model": "Qwen3.6-27B", "tp": 2}, **H200).model
    assert (model.n_draft_tok, model.n_draft_forwards) == (n_draft_tok, n_forwards)
    assert model.has_draft_layers == (n_draft_tok > 0 and n_forwards != 0)


def test_captured_sizes_are_requests():
    facts = merge_facts({"engine": "vllm", "captured_batch_sizes": [1, 2, 4, 8, 16]})
    assert deployment.captured_requests(facts, 0) == (1, 2, 4, 8, 16)
    assert deployment.captured_requests(facts, 3) == (1, 2, 4)  # vLLM captures tokens: 4 per request and round
    eager = merge_facts({"captured_batch_sizes": [1, 2], "cuda_graph_enabled": False})
    assert deployment.captured_requests(eager, 0) == ()


def test_arguments_of_the_server_change_the_formats():
    log = {"model": "Qwen3-8B", "quantization": "fp8", "kv_cache_dtype": "fp8_e4m3", "engine": "vllm"}
    model = resolved(log, **H200).model
    assert model.spec.formats["attention"].name == "fp8" and model.kv.name == "fp8"
    assert any("quantization 'fp8'" in text for text in model.assumptions)
    told = resolved({"model": "Qwen3-8B"}, **H200, weight_format="nvfp4").model
    assert told.spec.formats["dense_mlp"].name == "nvfp4" and told.spec.formats["head"].name == "bf16"


@pytest.mark.parametrize(
    ("log", "user", "message"),
    [
        ({}, {}, "hardware .*; model"),
        ({"model": "Qwen3-8B"}, {}, "not known: hardware"),
        ({}, H200, "not known: model"),
        ({}, {**H200, "model": "Qwen3-9B"}, "no such model; did you mean"),
        ({}, {"hardware": "H300", "model": "Qwen3-8B"}, "no such accelerator; did you mean"),
        ({"tp": 3}, {**H200, "model": "Qwen3-8B"}, "expected tp to divide 32 attention heads"),
        ({}, {**H200, "model_config": "nowhere/config.json"}, "nowhere"),
        ({"kv_cache_dtype": "fp3"}, {**H200, "model": "Qwen3-8B"}, "kv_cache_dtype: expected one of"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(log, user, message):
    with pytest.raises(RooflogError, match=message) as caught:
        resolved(log, **user)
    assert "\n" not in str(caught.value)
    if "not known" in message:
        assert isinstance(caught.value, NotEnoughData)


def test_what_a_context_says_in_vain_is_said():
    assert deployment.unusable('{"hardware": "h100-sxm", "tp": 2}') == [] == deployment.unusable("")
    said = deployment.unusable({"hardwear": "h100-sxm", "hardware": "h1000", "tp": "two"})
    assert [text.split(":")[0] for text in said] == ["hardwear (--context)", "tp (--context)", "hardware (--context)"]
    assert "did you mean hardware" in said[0] and "h1000" in said[2]


def test_told_keeps_what_is_given_and_the_context_wins():
    told = deployment.told('{"tp": 8}', model="Qwen3-8B", hardware="", tp=4, context_tok=0.0, what_if={})
    assert told == {"model": "Qwen3-8B", "tp": 8}


@pytest.mark.parametrize("config", [[1], 3, True])
def test_a_configuration_of_another_kind_is_refused(config):
    with pytest.raises(RooflogError, match="model_config: expected the path"):
        resolved(**H200, model_config=config)


def test_more_active_experts_than_experts_are_refused():
    with pytest.raises(RooflogError, match="n_experts_active <= n_experts"):
        resolved(**H200, n_params=30e9, n_active_params=3e9, kv_bytes_per_tok=1e5, n_experts=8, n_experts_active=128)


@pytest.mark.parametrize("name", ["tp", "dp", "pp", "ep"])
def test_a_degree_of_zero_is_no_degree(name):
    facts = merge_facts({name: 2}, {name: 0})
    assert facts.get(name) == 2 and "whole number from 1" in facts.unused[name]


def test_a_format_in_the_models_name_counts_where_nothing_else_speaks_of_one():
    plain = {"model_config": "Qwen3-8B", "model": "Qwen3-8B"}

    def attention(log=None, **user):
        return resolved(log, **H200, **user).model.spec.formats["attention"].name

    assert attention(**plain) == "bf16"
    assert attention(**plain | {"model": "Qwen3-8B-W4A16"}) == "int4_g128"
    assert attention({"args": {"model_path": "/models/Qwen3-8B-FP8"}}, **plain) == "fp8"
    assert attention(**plain | {"model": "Qwen3-8B FP8"}, quantization="awq") == "int4_g128_zeros"
    assert attention(**plain | {"model": "Qwen3-8B FP8"}, weight_format="nvfp4") == "nvfp4"
    assert attention(**plain | {"model": "Qwen3-8B-fp8x"}) == "bf16"
    said = resolved(**H200, **plain | {"model": "Qwen3-8B INT4"}).model.said
    assert any("the model's name says 'int4'" in text for text in said)
