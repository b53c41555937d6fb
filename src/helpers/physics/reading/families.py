"""What the published code of a model family fixes and its config.json does not say: biases, norms, ties, windows."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Family:
    """Conventions of one ``model_type``.

    Attributes
    ----------
    has_qkv_bias : bool
        Query, key and value projections have biases where ``attention_bias`` is not given.
    has_o_bias : bool
        ``attention_bias`` also means the output projection.
    has_sinks, has_gate : bool
        Learned attention sinks; a gate of the attention's output.
    qk_norm : str
        ``head``: norms of one head's width for queries and keys; ``width``: of the whole projection's.
    n_norms : int
        Norms per layer, each as wide as the residual.
    is_tied : bool
        Head and embedding are one matrix where ``tie_word_embeddings`` is not given.
    window_period : int
        Every n-th layer attends to everything, the others to a window; 0 = all layers have the window, if there is one.
    uses_window : bool
        ``sliding_window`` counts where ``use_sliding_window`` is not given.
    router_vectors : int
        Vectors of one number per expert beside the router's matrix, where no key says so.
    has_expert_bias : bool
        Experts have biases.
    has_shared_expert : bool
        One shared expert as wide as a routed one, without a key for it.
    dense_width_key : str
        Inner width of dense layers.
    is_dense_beside : bool
        The dense network stands beside the experts in every layer.
    """

    has_qkv_bias: bool = False
    has_o_bias: bool = True
    has_sinks: bool = False
    has_gate: bool = False
    qk_norm: str = ""
    n_norms: int = 2
    is_tied: bool = False
    window_period: int = 0
    uses_window: bool = True
    router_vectors: int = 0
    has_expert_bias: bool = False
    has_shared_expert: bool = False
    dense_width_key: str = "intermediate_size"
    is_dense_beside: bool = False


_LLAMA = Family()
_QWEN2 = Family(has_qkv_bias=True, has_o_bias=False, uses_window=False)
_QWEN3 = Family(qk_norm="head", uses_window=False)
_QWEN_NEXT = Family(qk_norm="head", uses_window=False, has_gate=True)
_DEEPSEEK = Family()
_GLM_MOE = Family(has_o_bias=False, qk_norm="head", router_vectors=1)
_GEMMA2 = Family(n_norms=4, is_tied=True, window_period=2)
_GEMMA3 = Family(n_norms=4, is_tied=True, window_period=6, qk_norm="head")
_GEMMA4 = Family(n_norms=4, is_tied=True, window_period=6, qk_norm="head", is_dense_beside=True, router_vectors=1)

FAMILIES: dict[str, Family] = {
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "mixtral": _LLAMA,
    "phi3": _LLAMA,
    "smollm3": _LLAMA,
    "llama4_text": Family(has_shared_expert=True, dense_width_key="intermediate_size_mlp"),
    "qwen2": _QWEN2,
    "qwen2_moe": _QWEN2,
    "qwen2_5_vl": _QWEN2,
    "qwen2_5_vl_text": _QWEN2,
    "qwen2_vl_text": _QWEN2,
    "qwen3": _QWEN3,
    "qwen3_moe": _QWEN3,
    "qwen3_vl_text": _QWEN3,
    "qwen3_vl_moe_text": _QWEN3,
    "qwen3_next": _QWEN_NEXT,
    "qwen3_5_text": _QWEN_NEXT,
    "qwen3_5_moe_text": _QWEN_NEXT,
    "qwen3_5": _QWEN_NEXT,
    "qwen3_5_moe": _QWEN_NEXT,
    "deepseek_v2": _DEEPSEEK,
    "deepseek_v3": _DEEPSEEK,
    "deepseek_v32": _DEEPSEEK,
    "deepseek_v4": _DEEPSEEK,
    "kimi_k2": _DEEPSEEK,
    "kimi_k25": _DEEPSEEK,
    "glm_moe_dsa": _DEEPSEEK,
    "glm4_moe": _GLM_MOE,
    "glm4_moe_lite": Family(router_vectors=1),
    "glm4v_moe_text": _GLM_MOE,
    "minimax_m2": Family(qk_norm="width"),
    "gpt_oss": Family(has_qkv_bias=True, has_sinks=True, window_period=2, router_vectors=1, has_expert_bias=True),
    "nemotron_h": Family(n_norms=1, router_vectors=1),
    "gemma2": _GEMMA2,
    "gemma3": _GEMMA3,
    "gemma3_text": _GEMMA3,
    "gemma3n_text": Family(n_norms=4, is_tied=True, window_period=5, qk_norm="head"),
    "gemma4": _GEMMA4,
    "gemma4_text": _GEMMA4,
}
"""By ``model_type`` of the text model; from the models' published code."""

UNKNOWN = Family()
"""Conventions assumed for a ``model_type`` that is not listed: those of Llama, as far as its keys do not say more."""
