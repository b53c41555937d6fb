"""What a kernel does, from its name: an ordered table of name fragments, the first that fits holds.

The fragments are names as the libraries print them (log-formats.md 6.4, section "Kernel-name substrings", and the
traces of AMD-AGI/TraceLens@171dd74). Adding a kernel is adding a fragment.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True)
class Rule:
    """A role and what a name (in lower case) must hold: one of `fragments`, and one of `starts` if there are any."""

    role: str
    fragments: tuple[str, ...]
    starts: tuple[str, ...] = ()

    def fits(self, text: str) -> bool:
        """Say whether a name in lower case has this role."""
        return (not self.starts or text.startswith(self.starts)) and any(part in text for part in self.fragments)


_INDUCTOR = ("triton_poi_", "triton_red_", "triton_per_", "triton_for_", "triton_tem_", "triton_mm_")
"""Compiled by TorchInductor: the name lists the fused operators, so a word in it (moe, all_reduce) is no role."""

NAME_RULES = (
    Rule("dense_gemm", ("mm",), ("triton_tem_", "triton_mm_")),
    Rule("norm_rope_quant", ("rsqrt", "rms_norm", "rmsnorm", "layer_norm"), _INDUCTOR),
    Rule("elementwise_copy_reduce", ("",), _INDUCTOR),
    # Helpers of speculation only; the draft model's own kernels have the names of any model (see trace.py).
    Rule("draft", ("eagle", "draft", "medusa", "build_tree", "treespeculative", "tree_speculative", "verifytree",
                   "verify_tree")),
    # Before "reduce" and before norms: fused all-reduces carry a norm, and wait for the other ranks.
    Rule("communication", ("nccl", "rccl", "cross_device_reduce", "all_reduce", "allreduce", "all_gather", "allgather",
                           "reduce_scatter", "reducescatter", "sendrecv", "send_recv", "deep_ep", "nvshmem", "mscclpp",
                           "quickreduce", "quick_reduce", "all_to_all", "alltoall", "mooncake")),
    Rule("sampling", ("topktopp", "topk_topp", "samplingfrom", "top_p_", "topp", "min_p", "minp", "gumbel",
                      "multinomial", "token_bitmask", "apply_grammar", "argmax", "sampler", "penalt",
                      "rejection_sample", "greedy_sample", "onlinesoftmax", "online_softmax", "logprob", "mpsampling")),
    # bmm_ of trtllm-gen and _matmul_ogs of Triton kernels are grouped GEMMs of experts, whatever they are called.
    Rule("moe", ("",), ("bmm_",)),
    Rule("moe", ("moe", "matmul_ogs", "grouped_gemm", "groupedgemm", "group_gemm", "expert", "routingindices",
                 "::routing::", "router_gemm", "topkgating", "topk_gating", "grouped_topk", "biased_topk",
                 "topk_forward", "combined_routing", "bitmatrix", "finalize_matmul_scatter", "finalizekernel",
                 "ep_gather", "ep_scatter", "expandinputrows", "doactivationkernel", "dynbatch", "mul_mat_id")),
    # Recurrent layers before attention: lightning and linear attention keep a state, no KV cache.
    Rule("state", ("causal_conv1d", "gated_delta", "delta_rule", "chunk_scan", "chunk_state", "selective_scan",
                   "selective_state", "ssd_", "ssm_", "mamba", "fused_recurrent", "gdn_", "_gdn", "kda_", "_kda",
                   "linear_attn", "linear_attention", "lightning_attn", "lightning_attention", "recompute_w_u",
                   "solve_tril", "chunk_fwd", "chunk_local_cumsum", "state_passing")),
    # With the writes of the KV cache and the index tables that only attention reads.
    Rule("attention", ("attention", "attn", "fmha", "mha_", "xqa", "flash_fwd", "flashmla", "flash_mla", "mla_", "_mla",
                       "mla::", "batchdecodewith", "batchprefillwith", "mergestate", "merge_state", "_fwd_kernel_stage",
                       "_fwd_grouped_kernel_stage", "reduce_segments", "mqa_logits", "reshape_and_cache",
                       "store_kvcache", "store_cache", "kv_cache", "kvcache", "kv_buffer", "kv_indices", "page_indices",
                       "page_table", "slot_mapping", "decode_metadata", "gather_cache", "concat_and_cache")),
    Rule("attention", ("_fwd_kernel",), ("_fwd_kernel",)),
    # "rope_" and not "rope": "property" holds the latter.
    Rule("norm_rope_quant", ("rmsnorm", "rms_norm", "layernorm", "layer_norm", "qk_norm", "qknorm", "l2norm",
                             "norm_kernel", "normkernel", "_norm_", "rotary", "rope_", "_rope", "qkrope", "ropecos",
                             "ropekernel")),
    Rule("dense_gemm", ("nvjet", "gemm", "gemv", "cijk_", "splitkreduce", "cublas", "marlin", "matmul", "wvsplitk",
                        "scaled_mm", "machete", "awq_", "gptq", "s16816", "mul_mat", "wmma", "dot_kernel")),
    Rule("norm_rope_quant", ("quant", "cvt_fp16_to_fp4", "fp16_to_fp8", "to_fp8", "to_fp4")),
    Rule("sampling", ("softmax", "radixsort", "radix_sort", "distribution_elementwise", "bitmask")),
    Rule("elementwise_copy_reduce", (
        "elementwise", "copy", "cpy_", "fill", "catarray", "concat", "index", "gather", "scatter", "reduce", "arange",
        "multi_tensor_apply", "masked", "memset", "memcpy", "scan", "spin_kernel", "act_and_mul", "silu", "swiglu",
        "gelu", "relu", "sigmoid", "functor", "transpose", "permute", "embedding", "cumsum", "bin_bcast", "get_rows",
        "convert", "position_kernel", "future_token", "req_to_token", "alloc_extend", "alloc_decode")),
)
"""Matched in order on the function with its namespaces, in lower case, without templates and arguments."""

WRAPPERS = {"device_kernel", "kentry", "kernel", "kernel2", "reduce_kernel", "trampoline_kernel"}
"""Functions (the last part of the name) that run whatever their template says: the template is asked first."""

TEMPLATE_RULES = (
    Rule("moe", ("groupproblemshape", "grouped", "moe")),
    Rule("attention", ("fmha", "flashattn", "flash_attn", "mla", "attention")),
    Rule("norm_rope_quant", ("rmsnorm", "layernorm", "rotary")),
    Rule("sampling", ("argmax", "multinomial", "exponential", "softmax", "radix_sort")),
    Rule("dense_gemm", ("gemm",)),
    Rule("norm_rope_quant", ("quant",)),
    Rule("elementwise_copy_reduce", ("elementwise", "copy", "reduceop", "reduce_config", "functor", "scan")),
)
"""Matched on the template text, where the function itself says nothing. Few and long: type names hold much."""

_DIGITS = re.compile(r"\d+")


def demangled(name: str) -> tuple[str, str]:
    """Split a kernel name into its function with namespaces, and the text of template and arguments.

    Parameters
    ----------
    name : str
        As printed: demangled with or without return type, or mangled (``_ZN5aiter24add_rmsnorm...``, ROCm).

    Returns
    -------
    (str, str)
        In the case of the input. Of a mangled name the second part stays mangled.
    """
    if name.startswith("_Z"):
        return _mangled(name)
    plain = name.replace("(anonymous namespace)::", "").removeprefix("void ")
    ends = [at for at in (plain.find("<"), plain.find("(")) if at > 0]
    return (plain[: min(ends)], plain[min(ends):]) if ends else (plain, "")


def _mangled(name: str) -> tuple[str, str]:
    """Read the length-prefixed parts at the start of an Itanium-mangled name."""
    at = 3 if name.startswith("_ZN") else 2
    while name[at: at + 1] in ("K", "L"):
        at += 1
    parts = []
    while length := _DIGITS.match(name, at):
        end = length.end() + int(length[0])
        parts.append(name[length.end(): end])
        at = end
        if not name.startswith("_ZN"):
            break
    return ("::".join(parts), name[at:]) if parts else (name, "")


@lru_cache(maxsize=65536)
def role_of(name: str) -> str:
    """Return what a kernel does, from its name.

    Parameters
    ----------
    name : str
        Kernel as printed by a profiler, mangled or not.

    Returns
    -------
    str
        One of schema.ROLES; "unclassified" where the name tells nothing. A fused kernel has the role of its first
        rule: an all-reduce with a norm is communication, a rope that writes the KV cache is attention.
    """
    function, template = demangled(name)
    # Trap: "gemma" (a model) holds "gemm".
    function, template = (part.lower().replace("gemma", "") for part in (function, template))
    orders = [(NAME_RULES, function), (TEMPLATE_RULES, template)]
    if function.rpartition("::")[2] in WRAPPERS:
        orders.reverse()
    for rules, text in orders:
        for rule in rules:
            if rule.fits(text):
                return rule.role
    return "unclassified"


_OPERATORS = (
    Rule("moe", ("moe", "expert")),
    Rule("attention", ("attention", "mha_", "paged_", "store_cache", "reshape_and_cache", "kv_buffer")),
    Rule("communication", ("all_reduce", "allreduce", "all_gather", "allgather", "reduce_scatter", "c10d::")),
    Rule("sampling", ("argmax", "multinomial", "softmax")),
    # Before "quant": vllm::rocm_unquantized_gemm.
    Rule("dense_gemm", ("::mm", "::addmm", "::bmm", "::linear", "::matmul", "gemm", "scaled_mm")),
    Rule("norm_rope_quant", ("norm", "rotary", "rope_", "_rope", "quant")),
)


def operator_role(name: str) -> str:
    """Return what an operator of PyTorch does (``aten::mm``): for shapes whose kernels were not recorded."""
    text = name.lower()
    return next((rule.role for rule in _OPERATORS if rule.fits(text)), "unclassified")


_VENDORS = {
    "AMD": re.compile(r"Cijk_|ck_tile|_ZN2ck|\bck::|\baiter|_ZN5aiter|rocblas|hipblas|rocprim"),
    "NVIDIA": re.compile(r"\bsm\d\d\d?_|nvjet|cutlass|cublas|flashinfer"),
}


def vendor_of(name: str) -> str:
    """Return the vendor whose libraries alone print such a kernel name: "AMD", "NVIDIA"; empty where both may."""
    return next((vendor for vendor, names in _VENDORS.items() if names.search(name)), "")
