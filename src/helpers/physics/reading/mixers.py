"""From the keys of a config.json to the mixer of every layer."""

from __future__ import annotations

from typing import Any

from helpers.physics.model.mixers import (
    CompressedAttention,
    GatedDelta,
    GroupedAttention,
    Indexer,
    LatentAttention,
    Mamba2,
)
from helpers.physics.model.spec import Mixer
from helpers.physics.reading.families import Family
from helpers.physics.reading.keys import Keys

_STATE_BYTES = {"float32": 4.0, "fp32": 4.0, "bfloat16": 2.0, "bf16": 2.0, "float16": 2.0, "fp16": 2.0}
_FULL, _WINDOW, _CHUNK, _LINEAR = "full_attention", "sliding_attention", "chunked_attention", "linear_attention"
_KINDS = (_FULL, _WINDOW, _CHUNK, _LINEAR)


def read_mixers(keys: Keys, family: Family, n_layers: int) -> list[Mixer]:
    """Return the mixer of each layer of the stack.

    Parameters
    ----------
    keys : Keys
        Of the text model.
    family : Family
        Its conventions.
    n_layers : int
        Layers of the stack.

    Returns
    -------
    list of Mixer, length ``n_layers``

    Raises
    ------
    RooflogError
        A key is missing or impossible, or a layer is of a kind that is not known.
    """
    if keys.has("compress_ratios"):
        ratios = keys.per_layer("compress_ratios", n_layers) or []
        return [compressed(keys, ratio) for ratio in ratios]
    if keys.has("kv_lora_rank"):
        kinds = keys.per_layer("indexer_types", n_layers) or ["full"] * n_layers
        return [latent(keys, is_full=kind != "shared") for kind in kinds]
    shared_from = n_layers - keys.count("num_kv_shared_layers", default=0, at_least=0)
    return [_by_kind(keys, family, kind, index >= shared_from)
            for index, kind in enumerate(_kinds(keys, family, n_layers))]


def draft_mixer(keys: Keys, family: Family, n_layers: int) -> Mixer:
    """Return the mixer of a built-in draft layer: full attention of the model's own sort."""
    if keys.has("compress_ratios"):
        ratios = keys.value("compress_ratios")
        return compressed(keys, ratios[n_layers] if len(ratios) > n_layers else 0)
    return latent(keys) if keys.has("kv_lora_rank") else grouped(keys, family)


def _by_kind(keys: Keys, family: Family, kind: str, shares_kv: bool) -> Mixer:
    if kind == _LINEAR:
        return gated_delta(keys)
    if kind == _FULL:
        return grouped(keys, family, shares_kv=shares_kv)
    window = keys.count("attention_chunk_size" if kind == _CHUNK else "sliding_window")
    if kind == _CHUNK:
        keys.assume(f"layers that attend within chunks are read as a window of {window} tok, their upper bound")
    return grouped(keys, family, window_tok=window, shares_kv=shares_kv)


def _kinds(keys: Keys, family: Family, n_layers: int) -> list[str]:
    interval = keys.count("full_attention_interval", default=4)
    listed = keys.per_layer("layer_types", n_layers)
    if listed is not None:
        unknown = sorted({str(kind) for kind in listed} - {*_KINDS})
        if unknown:
            raise keys.fail(f"layer_types among {', '.join(_KINDS)}", ", ".join(unknown))
        return listed
    if keys.has("linear_num_value_heads"):
        return [_FULL if (index + 1) % interval == 0 else _LINEAR for index in range(n_layers)]
    if not keys.has("sliding_window") or not keys.flag("use_sliding_window", family.uses_window):
        keys.value("sliding_window")
        return [_FULL] * n_layers
    default = family.window_period or n_layers + 1
    period = keys.count("sliding_window_pattern", "_sliding_window_pattern", default=default)
    if period > n_layers:
        keys.assume("every layer attends to the sliding window (no layer_types in the configuration)")
    return [_FULL if (index + 1) % period == 0 else _WINDOW for index in range(n_layers)]


def grouped(keys: Keys, family: Family, window_tok: int | None = None, shares_kv: bool = False) -> GroupedAttention:
    """Return grouped-query attention, over a window or everything."""
    n_heads, n_kv, head_dim = _heads(keys, is_global=window_tok is None)
    is_biased = keys.flag("attention_bias", keys.flag("qkv_bias", family.has_qkv_bias))
    qk_norm = family.qk_norm if keys.flag("use_qk_norm", bool(family.qk_norm)) else ""
    n_normed = (1, 1) if qk_norm == "head" else (n_heads, n_kv)
    return GroupedAttention(
        n_heads=n_heads,
        n_kv_heads=n_kv,
        head_dim=head_dim,
        window_tok=window_tok,
        norm_params=head_dim * (n_normed[0] + (0 if shares_kv else n_normed[1])) if qk_norm else 0,
        has_gate=keys.flag("attn_output_gate", family.has_gate),
        has_qkv_bias=is_biased,
        has_o_bias=is_biased and family.has_o_bias,
        has_sinks=family.has_sinks,
        has_v_proj=not (keys.flag("attention_k_eq_v") and window_tok is None),
        shares_kv=shares_kv,
    )


def _heads(keys: Keys, is_global: bool) -> tuple[int, int, int]:
    """Return query heads, KV heads and head width; Gemma 4 has others in the layers that see everything."""
    n_heads = keys.count("num_attention_heads")
    n_kv = keys.count("num_key_value_heads", default=n_heads)
    if not keys.has("head_dim", "attention_head_dim") and keys.count("hidden_size") % n_heads:
        raise keys.fail("hidden_size to be a multiple of num_attention_heads where head_dim is not given",
                        f"{keys.count('hidden_size')} and {n_heads}")
    head_dim = keys.count("head_dim", "attention_head_dim", default=keys.count("hidden_size") // n_heads)
    global_dim = keys.count("global_head_dim", default=head_dim)
    global_kv = keys.count("num_global_key_value_heads", default=n_kv)
    if is_global:
        n_kv, head_dim = global_kv if keys.flag("attention_k_eq_v") else n_kv, global_dim
    if n_heads % n_kv:
        raise keys.fail("num_attention_heads to be a multiple of the key/value heads", f"{n_heads} and {n_kv}")
    return n_heads, n_kv, head_dim


def latent(keys: Keys, is_full: bool = True) -> LatentAttention:
    """Return latent attention, sparse where the keys of an indexer are there."""
    keys.value("num_key_value_heads")
    keys.value("head_dim")  # both describe attention before it is absorbed
    return LatentAttention(
        n_heads=keys.count("num_attention_heads"),
        q_lora_rank=keys.count("q_lora_rank") if keys.has("q_lora_rank") else None,
        kv_lora_rank=keys.count("kv_lora_rank"),
        rope_dim=keys.count("qk_rope_head_dim"),
        nope_dim=keys.count("qk_nope_head_dim"),
        v_dim=keys.count("v_head_dim"),
        indexer=_indexer(keys, is_full) if keys.has("index_topk") else None,
        has_bias=keys.flag("attention_bias"),
    )


def compressed(keys: Keys, ratio: Any) -> CompressedAttention:
    """Return the attention of DeepSeek-V4 with one compressed entry per ``ratio`` tokens."""
    if ratio not in (0, 4, 128):
        raise keys.fail("compress_ratios of 0, 4 or 128", repr(ratio))
    n_heads, groups = keys.count("num_attention_heads"), keys.count("o_groups")
    keys.value("num_key_value_heads")  # one, which is key and value at once
    if n_heads % groups:
        raise keys.fail("num_attention_heads to be a multiple of o_groups", f"{n_heads} and {groups}")
    return CompressedAttention(
        n_heads=n_heads,
        head_dim=keys.count("head_dim"),
        rope_dim=keys.count("qk_rope_head_dim"),
        q_lora_rank=keys.count("q_lora_rank"),
        o_lora_rank=keys.count("o_lora_rank"),
        o_groups=groups,
        window_tok=keys.count("sliding_window"),
        ratio=ratio,
        indexer=_indexer(keys, True) if ratio == 4 else None,
    )


def _indexer(keys: Keys, is_full: bool) -> Indexer:
    return Indexer(keys.count("index_n_heads"), keys.count("index_head_dim"), keys.count("index_topk"), is_full)


def gated_delta(keys: Keys) -> GatedDelta:
    """Return a gated delta net."""
    n_k, n_v = keys.count("linear_num_key_heads"), keys.count("linear_num_value_heads")
    if n_v % n_k:
        raise keys.fail("linear_num_value_heads to be a multiple of linear_num_key_heads", f"{n_v} and {n_k}")
    return GatedDelta(
        n_k_heads=n_k,
        n_v_heads=n_v,
        k_dim=keys.count("linear_key_head_dim"),
        v_dim=keys.count("linear_value_head_dim"),
        conv_kernel=keys.count("linear_conv_kernel_dim"),
        element_bytes=_state_element_bytes(keys),
    )


def mamba2(keys: Keys) -> Mamba2:
    """Return a Mamba-2 mixer."""
    return Mamba2(
        n_heads=keys.count("mamba_num_heads"),
        head_dim=keys.count("mamba_head_dim"),
        n_groups=keys.count("n_groups"),
        state_dim=keys.count("ssm_state_size"),
        conv_kernel=keys.count("conv_kernel"),
        has_conv_bias=keys.flag("use_conv_bias", True),
        has_proj_bias=keys.flag("mamba_proj_bias") or keys.flag("use_bias"),
        element_bytes=_state_element_bytes(keys),
    )


def _state_element_bytes(keys: Keys) -> float:
    name = keys.value("mamba_ssm_cache_dtype", "mamba_ssm_dtype")
    known = _STATE_BYTES.get(str(name).removeprefix("torch."))
    if known is None:
        keys.assume(f"the recurrent state is taken as FP32 (the configuration says {name or 'nothing'})")
    return known or 4.0
