"""From config.json to the model: parameters to the last one, bytes per request, and what is refused."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from helpers.physics.model.feeds import Experts
from helpers.physics.model.formats import FORMATS, KV_FORMATS
from helpers.physics.model.mixers import CompressedAttention, GatedDelta, GroupedAttention, LatentAttention, Mamba2
from helpers.physics.reading.config import check_parallel, read_config
from helpers.schema import LogFormatError, RooflogError

BF16, FP8 = KV_FORMATS["bf16"], KV_FORMATS["fp8"]

# Llama-3.1-8B: https://huggingface.co/meta-llama/Llama-3.1-8B, 8,030,261,248 parameters as transformers counts them.
LLAMA = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "tie_word_embeddings": False,
    "torch_dtype": "bfloat16", "max_position_embeddings": 131072,
}
# Qwen3.6-27B, text model: 26,895,998,464 parameters, 424,699,392 in its draft layer.
QWEN_27B = {
    "model_type": "qwen3_5", "tie_word_embeddings": False, "vision_config": {"hidden_size": 1152},
    "text_config": {
        "model_type": "qwen3_5_text", "hidden_size": 5120, "intermediate_size": 17408, "num_hidden_layers": 64,
        "num_attention_heads": 24, "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 248320,
        "linear_num_key_heads": 16, "linear_key_head_dim": 128, "linear_num_value_heads": 48,
        "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "mamba_ssm_dtype": "float32",
        "full_attention_interval": 4, "attn_output_gate": True, "mtp_num_hidden_layers": 1, "dtype": "bfloat16",
    },
}
MOE = LLAMA | {"model_type": "qwen3_moe", "num_experts": 64, "num_experts_per_tok": 8, "moe_intermediate_size": 768,
               "head_dim": 128}


def configs(shared):
    files = sorted((shared / "reference" / "configs").glob("*.json"))
    assert len(files) == 38
    return {file.stem: json.loads(file.read_text()) for file in files}


def spec_of(shared, name):
    config = json.loads((shared / "reference" / "configs" / f"{name}.json").read_text())
    return read_config(config, name=name, sidecar=config.get("_hf_quant_config"))


def draft_params(spec):
    layers = sum(part.n_params * layer.count for layer in spec.draft for part in layer.weights(spec.hidden))
    return layers + sum(part.n_params for part in spec.draft_extra)


def cell_bytes(spec, kv=BF16):
    return sum(layer.mixer.cell_bytes(kv) * layer.count for layer in spec.layers if layer.mixer is not None)


def request_bytes(spec, context_tok, tp, kv):
    context = np.array([context_tok], dtype=float)
    return sum(
        layer.count * float((layer.mixer.kv_bytes(context, tp, kv) + layer.mixer.index_bytes(context))[0]
                            + layer.mixer.state_bytes(1, tp))
        for layer in spec.layers if layer.mixer is not None
    )


# ---- parameters


def test_parameters_equal_the_reference_for_every_configuration(shared):
    rows = json.loads((shared / "reference" / "param_check.json").read_text())
    assert len(rows) == 37
    found = configs(shared)
    wrong = {}
    for row in rows:
        spec = read_config(found[row["model"]], name=row["model"])
        embedding = 0 if spec.is_tied else spec.hidden * spec.vocab
        counts = (spec.n_params, spec.n_active_params, spec.n_active_params + embedding)
        expected = (row["formula"], row["active_no_embed"], row["active_with_embed"])
        if counts != expected:
            wrong[row["model"]] = [count - truth for count, truth in zip(counts, expected, strict=True)]
    assert wrong == {}


def test_gemma_4_has_its_published_size(shared):
    # The one configuration without a row: "25.2B total, 3.8B active" on its model card.
    spec = spec_of(shared, "gemma-4-26B-A4B")
    assert spec.n_params == pytest.approx(25.2e9, rel=0.01)
    assert spec.n_active_params == pytest.approx(3.8e9, rel=0.01)


def test_parameters_without_reference_material():
    assert read_config(LLAMA).n_params == 8_030_261_248
    spec = read_config(QWEN_27B)
    assert spec.n_params == 26_895_998_464
    assert draft_params(spec) == 424_699_392


def test_draft_layers_stand_outside_the_stack(shared):
    v3, flash = spec_of(shared, "DeepSeek-V3"), spec_of(shared, "DeepSeek-V4-Flash")
    assert draft_params(v3) == pytest.approx(11.6e9, rel=0.005)
    assert (v3.n_layers, [layer.count for layer in v3.draft]) == (61, [1])
    (layer,) = flash.draft
    assert isinstance(layer.mixer, CompressedAttention) and layer.mixer.ratio == 0
    assert isinstance(layer.feed, Experts) and not layer.feed.is_hash_routed
    assert flash.n_layers == 43  # its list of ratios has 44 entries
    minimax = spec_of(shared, "MiniMax-M2.5")
    assert minimax.notes == {"draft_modules": "3"} and sum(layer.count for layer in minimax.draft) == 1
    assert spec_of(shared, "Kimi-K2-Instruct").draft == ()
    two = read_config(LLAMA | {"num_nextn_predict_layers": 2})
    assert [layer.count for layer in two.draft] == [1] and two.notes == {"draft_modules": "2"}


# ---- bytes per request

KV_KIB_PER_TOK = {
    "Meta-Llama-3.1-8B": 128, "Meta-Llama-3.1-70B": 320, "Qwen2.5-7B": 56, "Qwen3-32B": 256, "Qwen3-30B-A3B": 96,
    "Qwen3-235B-A22B": 188, "Qwen3-Next-80B-A3B-Instruct": 24, "Qwen3.6-27B-NVFP4": 64, "Mixtral-8x7B-v0.1": 128,
    "gpt-oss-120b": 36, "gemma-2-27b": 184, "gemma-3-27b-it": 80, "GLM-4.5-Air": 184, "MiniMax-M2.5": 248,
    "DeepSeek-V3": 68.625, "Kimi-K2-Instruct": 68.625, "Nemotron-H-56B-Base-8K": 40,
    "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": 6,
}
STATE_MB = {"Qwen3-Next-80B-A3B-Instruct": 77, "Qwen3.6-27B-NVFP4": 154, "Nemotron-H-56B-Base-8K": 913,
            "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": 49}


@pytest.mark.parametrize(("name", "kib"), KV_KIB_PER_TOK.items())
def test_cache_per_token(shared, name, kib):
    assert cell_bytes(spec_of(shared, name)) == kib * 1024


def test_cache_of_a_million_tokens_as_published(shared):
    # DeepSeek-V4's report: 9.62 GiB, 8.7 times less than V3.2.
    pro = cell_bytes(spec_of(shared, "DeepSeek-V4-Pro")) * 2**20
    v32 = cell_bytes(spec_of(shared, "DeepSeek-V3.2")) * 2**20
    assert pro / 2**30 == pytest.approx(9.62, abs=0.01)
    assert v32 / 2**30 == pytest.approx(83.9, abs=0.05)


@pytest.mark.parametrize(("name", "mb"), STATE_MB.items())
def test_recurrent_state(shared, name, mb):
    spec = spec_of(shared, name)
    state = sum(layer.count * layer.mixer.state_bytes(0, 1) for layer in spec.layers if layer.mixer is not None)
    assert state / 1e6 == pytest.approx(mb, abs=0.6)


def test_state_of_one_of_two_ranks():
    # 48 layers x (24 value heads x 128 x 128 x 4 bytes + 5120 x 3 x 2 bytes); a server's log said 73.5 MiB.
    spec = read_config(QWEN_27B)
    (layer,) = [layer for layer in spec.layers if isinstance(layer.mixer, GatedDelta)]
    one = layer.count * layer.mixer.state_bytes(0, 2)
    assert one / 2**20 == 73.40625
    assert layer.count * layer.mixer.state_bytes(4, 2) == 5 * one  # a verification of 3 + 1 tokens: read 1, write 4


@pytest.mark.parametrize("index", range(9))
def test_worked_examples(shared, index):
    # W_fixed: everything of the stack but the routed experts, and the head. W_expert: all routed experts.
    row = json.loads((shared / "reference" / "worked.json").read_text())[index]
    spec, tp = spec_of(shared, row["model"]), row["tp"]
    of_role = worked_formats(row["w"])
    parts = {True: 0.0, False: spec.head.per_rank(tp) * FORMATS["bf16"].bytes_per_param}
    for weights, count in spec.stack():
        stored = weights.per_rank(tp) * count * FORMATS[of_role(weights.role)].bytes_per_param
        parts[weights.role == "routed_experts"] += stored
    assert parts[False] / 1e9 == pytest.approx(row["W_fixed_GB"], rel=0.002)
    assert parts[True] / 1e9 == pytest.approx(row["W_expert_GB"], rel=1e-4)
    per_request = request_bytes(spec, row["L"], tp, KV_FORMATS[row["kv"]])
    assert per_request / 1e6 == pytest.approx(row["per_req_MB"], rel=5e-4)


def worked_formats(name):
    """Formats per role that the worked examples name: v4 = FP8 with experts in NVFP4 and the residual mix in FP32."""
    everything, experts = {"v4": ("fp8_block128", "nvfp4"), "mxfp4x": ("bf16", "mxfp4")}.get(name, (name, name))
    roles = ("attention", "linear_attention", "dense_mlp", "shared_experts", "indexer", "compressor")
    table = dict.fromkeys(roles, everything) | {"routed_experts": experts, "residual_mix": "fp32"}
    return lambda role: table.get(role, "bf16")


# ---- architectures


def kinds(spec, attribute):
    return {getattr(layer.mixer, attribute): layer.count for layer in spec.layers if layer.mixer is not None}


def test_layer_patterns(shared):
    window = "window_tok"
    assert kinds(spec_of(shared, "gpt-oss-120b"), window) == {128: 18, None: 18}
    assert kinds(spec_of(shared, "gemma-2-27b"), window) == {4096: 23, None: 23}
    assert kinds(spec_of(shared, "gemma-3-27b-it"), window) == {1024: 52, None: 10}
    assert kinds(spec_of(shared, "gemma-4-26B-A4B"), window) == {1024: 25, None: 5}
    flash = spec_of(shared, "DeepSeek-V4-Flash")
    ratios = [layer.mixer.ratio for layer in flash.layers for _ in range(layer.count)]
    assert [ratios.count(ratio) for ratio in (0, 4, 128)] == [2, 21, 20]
    assert sum(layer.count for layer in flash.layers if layer.feed.is_hash_routed) == 3
    full = [layer.count for layer in spec_of(shared, "GLM-5.2").layers if layer.mixer.indexer.is_full]
    assert sum(full) == 21
    dense = [layer.count for layer in spec_of(shared, "DeepSeek-V3").layers if not isinstance(layer.feed, Experts)]
    assert dense == [3]
    nano = spec_of(shared, "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16")
    by_kind = [sum(layer.count for layer in nano.layers if isinstance(layer.mixer, kind))
               for kind in (Mamba2, GroupedAttention)]
    assert by_kind == [23, 6] and nano.n_layers == 52
    assert sum(layer.count * layer.n_all_reduces for layer in nano.layers) == 52


def test_layer_types_that_are_not_listed_follow_the_family():
    # Mistral slides everywhere, Qwen only if told to, Gemma 2 in every other layer.
    slid = LLAMA | {"sliding_window": 1024}
    assert kinds(read_config(slid | {"model_type": "mistral"}), "window_tok") == {1024: 32}
    assert kinds(read_config(slid | {"model_type": "qwen3", "head_dim": 128}), "window_tok") == {None: 32}
    assert kinds(read_config(slid | {"model_type": "gemma2"}), "window_tok") == {1024: 16, None: 16}
    assert any("sliding window" in text for text in read_config(slid | {"model_type": "mistral"}).assumptions)


def test_layers_that_share_a_cache_have_no_projections_for_it():
    shared_kv = LLAMA | {"model_type": "gemma4_text", "head_dim": 128, "num_kv_shared_layers": 12}
    plain, spec = read_config(shared_kv | {"num_kv_shared_layers": 0}), read_config(shared_kv)
    # 2 x 4096 x 8 x 128 for keys and values, 128 for the norm of the keys.
    assert plain.n_params - spec.n_params == 12 * (2 * 4096 * 8 * 128 + 128)
    assert cell_bytes(spec) == cell_bytes(plain) * 20 / 32  # capacity shrinks ...
    assert request_bytes(spec, 1000, 1, BF16) == request_bytes(plain, 1000, 1, BF16)  # ... traffic does not


def test_experts_of_qwen_stand_in_every_nth_layer():
    spec = read_config(MOE | {"decoder_sparse_step": 2, "mlp_only_layers": [1]})
    assert sum(layer.count for layer in spec.layers if isinstance(layer.feed, Experts)) == 15


def test_llama_4_has_its_published_size():
    # Llama 4 Scout, text model: "109B total, 17B active" with vision; 107.8 B counted by hand.
    spec = read_config({"model_type": "llama4", "text_config": {
        "model_type": "llama4_text", "hidden_size": 5120, "intermediate_size": 8192, "intermediate_size_mlp": 16384,
        "num_hidden_layers": 48, "num_attention_heads": 40, "num_key_value_heads": 8, "head_dim": 128,
        "vocab_size": 202048, "num_local_experts": 16, "num_experts_per_tok": 1, "interleave_moe_layer_step": 1,
        "attention_chunk_size": 8192, "torch_dtype": "bfloat16", "tie_word_embeddings": False,
        "layer_types": (["chunked_attention"] * 3 + ["full_attention"]) * 12,
    }})
    assert spec.n_params == pytest.approx(107.8e9, rel=0.001)
    assert kinds(spec, "window_tok") == {8192: 36, None: 12}
    assert any("chunks" in text for text in spec.assumptions)


def test_gemma_3n_keeps_its_embeddings_per_layer_out_of_the_step():
    # Gemma 3n E4B, text model: 6.9 B, of which 262144 x 35 x 256 are looked up per layer.
    spec = read_config({"model_type": "gemma3n", "text_config": {
        "model_type": "gemma3n_text", "hidden_size": 2048, "intermediate_size": [16384] * 35, "num_hidden_layers": 35,
        "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 256, "vocab_size": 262400,
        "vocab_size_per_layer_input": 262144, "hidden_size_per_layer_input": 256, "altup_num_inputs": 4,
        "laurel_rank": 64, "num_kv_shared_layers": 15, "sliding_window": 512, "torch_dtype": "bfloat16",
    }})
    assert spec.n_params + 262144 * 35 * 256 == pytest.approx(6.87e9, rel=0.01)
    (text,) = spec.assumptions
    assert "looked up" in text


def test_latent_attention_without_a_compressed_query():
    # DeepSeek-V2-Lite: https://huggingface.co/deepseek-ai/DeepSeek-V2-Lite, 15.7 B, 2.4 B active.
    spec = read_config({
        "model_type": "deepseek_v2", "hidden_size": 2048, "intermediate_size": 10944, "moe_intermediate_size": 1408,
        "num_hidden_layers": 27, "num_attention_heads": 16, "q_lora_rank": None, "kv_lora_rank": 512,
        "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 64,
        "n_shared_experts": 2, "num_experts_per_tok": 6, "first_k_dense_replace": 1, "moe_layer_freq": 1,
        "vocab_size": 102400, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    })
    assert spec.n_params == 15_706_484_224
    assert isinstance(spec.layers[0].mixer, LatentAttention)


# ---- what is said and what is refused


def test_text_model_inherits_what_it_does_not_say():
    inner = {key: value for key, value in LLAMA.items() if key not in ("tie_word_embeddings", "torch_dtype")}
    spec = read_config({"model_type": "llava", "tie_word_embeddings": True, "torch_dtype": "float16",
                        "text_config": inner})
    assert spec.is_tied and spec.formats["attention"].name == "fp16"


def test_gemma_is_tied_without_saying_so():
    untold = {key: value for key, value in LLAMA.items() if key != "tie_word_embeddings"}
    assert not read_config(untold).is_tied
    assert read_config(untold | {"model_type": "gemma2", "head_dim": 128}).is_tied


def test_a_whole_configuration_leaves_nothing_to_assume():
    assert read_config(LLAMA).assumptions == ()
    assert read_config(LLAMA).context_length_max == 131072


def test_an_unknown_key_is_named():
    (text,) = read_config(LLAMA | {"adapter_rank": 64, "rope_theta": 5e5, "unused": None}).assumptions
    assert "adapter_rank" in text and "rope_theta" not in text and "unused" not in text


def test_an_unknown_architecture_is_read_by_its_keys_and_says_so():
    spec = read_config(MOE | {"model_type": "newcomer"})
    assert spec.n_active_params < spec.n_params
    assert any("newcomer" in text for text in spec.assumptions)


def test_missing_keys_are_named_all_at_once_with_the_way_on():
    with pytest.raises(RooflogError) as caught:
        read_config({"model_type": "newcomer", "d_model": 4096}, name="new")
    text = str(caught.value)
    for part in ("new:", "hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "intermediate_size",
                 "weight_bytes_per_step", "kv_bytes_per_tok"):
        assert part in text
    assert "\n" not in text


@pytest.mark.parametrize(("change", "word"), [
    ({"hidden_size": -1}, "at least 1"),
    ({"hidden_size": 0}, "at least 1"),
    ({"num_hidden_layers": math.nan}, "whole number"),
    ({"num_hidden_layers": math.inf}, "whole number"),
    ({"vocab_size": "128k"}, "whole number"),
    ({"vocab_size": True}, "whole number"),
    ({"num_attention_heads": 32.5}, "whole number"),
    ({"num_key_value_heads": 5}, "multiple"),
    ({"num_attention_heads": 30, "num_key_value_heads": 30}, "multiple"),
    ({"tie_word_embeddings": "yes"}, "true or false"),
    ({"layer_types": ["full_attention"] * 31}, "31 entries"),
    ({"layer_types": "full_attention"}, "list"),
    ({"layer_types": ["full_attention", "hyena"] * 16}, "hyena"),
    ({"sliding_window": 0, "layer_types": ["sliding_attention"] * 32}, "at least 1"),
    ({"num_experts": 4, "num_experts_per_tok": 8, "moe_intermediate_size": 64}, "at most 4"),
    ({"num_experts": 4, "moe_intermediate_size": 64}, "num_experts_per_tok"),
    ({"moe_num_experts": 64, "moe_k": 6}, "experts in a form"),
    ({"mamba_d_state": 128}, "recurrent layers in a form"),
    ({"compress_ratios": [7] * 32}, "compress_ratios"),
    ({"hybrid_override_pattern": "M*X"}, "pattern"),
    ({"hybrid_override_pattern": "M*-"}, "pattern of 32 layers"),
])
def test_what_cannot_be_is_refused_in_one_line(change, word):
    with pytest.raises(RooflogError) as caught:
        read_config(LLAMA | change, name="model")
    assert word in str(caught.value) and "\n" not in str(caught.value)


def test_catalogue_files_give_formats_by_role():
    spec = read_config(LLAMA | {"_formats": {"attention": "fp8"}, "_kv_format": "fp8", "_source": "card",
                                "_confidence": "high", "_aliases": ["a/b"]})
    assert (spec.formats["attention"].name, spec.kv.name) == ("fp8", "fp8")
    assert (spec.source, spec.confidence) == ("card", "high")
    assert not any("attention" in text for text in spec.assumptions)


def test_compressed_attention_is_served_with_its_own_cells(shared):
    spec = spec_of(shared, "DeepSeek-V4-Flash")
    assert spec.kv.name == "fp8"
    assert any("584" in text for text in spec.assumptions)


def test_a_path_may_be_a_file_or_a_folder_with_a_sidecar(tmp_path):
    folder = tmp_path / "Llama-FP8"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    (folder / "hf_quant_config.json").write_text(json.dumps(
        {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8",
                                                            "exclude_modules": ["lm_head"]}}))
    by_folder, by_file = read_config(folder), read_config(str(folder / "config.json"))
    assert by_folder == by_file
    assert by_folder.name == "Llama-FP8"
    assert (by_folder.formats["dense_mlp"].name, by_folder.kv.name) == ("fp8", "fp8")
    assert read_config(folder, name="mine").name == "mine"


@pytest.mark.parametrize("content", [None, "{", "[1, 2]"])
def test_a_file_that_is_no_configuration(tmp_path, content):
    file = tmp_path / "config.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(LogFormatError, match="config.json"):
        read_config(file)


# ---- parallelism


def test_degrees_of_parallelism_that_do_not_divide():
    spec = read_config(QWEN_27B, name="Qwen3.6-27B")
    for tp in (1, 2, 4, 8):
        check_parallel(spec, tp)
    with pytest.raises(RooflogError, match=r"24 attention heads, found tp 5; degrees that work: 1, 2, 4, 8$"):
        check_parallel(spec, 5)
    with pytest.raises(RooflogError, match="at least 1"):
        check_parallel(spec, 0)
    check_parallel(spec, 16, attention_tp=4)
    with pytest.raises(RooflogError, match=r"ep to divide 64 experts, found ep 12; degrees that work: 1, 2, 4, 8, 16"):
        check_parallel(read_config(MOE, name="moe"), 4, ep=12)
    odd = read_config(LLAMA | {"num_attention_heads": 24, "num_key_value_heads": 6, "head_dim": 128})
    with pytest.raises(RooflogError, match="key/value heads"):
        check_parallel(odd, 4)
