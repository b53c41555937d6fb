r"""Which modules of a checkpoint have which role, and which of them a quantisation list names.

Quantisation lists name modules (``model.layers.3.self_attn.q_proj``), shells (``*.attn.*``) or regular
expressions (``re:.*mlp\.(gate|up)_proj``), in the spelling of the checkpoint. Every module here carries the
spellings of the common checkpoints; a list names it if it names one of them. Leading ``model.``,
``language_model.`` and the like are dropped on both sides.
"""

from __future__ import annotations

import fnmatch
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

_SHELLS = ("language_model", "model", "backbone", "transformer")
_ELSEWHERE = ("visual", "vision", "audio", "image", "projector", "connector", "patch", "mtp")
_ATTENTION = ("self_attn", "attn", "mixer", "attention")
_LINEAR = ("linear_attn", "mixer", "mamba", "self_attn", "linear_attention")
_MLP = ("mlp", "feed_forward", "ffn", "mixer")
_EXPERTS = (
    *(f"{block}.experts{index}" for block in (*_MLP, "block_sparse_moe", "moe") for index in (".0", "")),
    "experts.0", "experts",
)
_SHARED = tuple(f"{block}.{name}" for block in (*_MLP, "block_sparse_moe")
                for name in ("shared_experts", "shared_expert", "shared_mlp"))
_NORMS = (
    "input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm", "norm",
    *(f"{block}.{norm}" for block in _ATTENTION
      for norm in ("q_norm", "k_norm", "q_a_layernorm", "kv_a_layernorm", "kv_norm")),
)
_DRAFT_NORMS = ("mtp.norm", "mtp.pre_fc_norm_hidden", "mtp.pre_fc_norm_embedding")
_DRAFT_SMALL = ("enorm", "hnorm", "shared_head.head", "shared_head.norm", "embed_tokens")
_GATED = (("gate_proj", "w1", "gate_up_proj"), ("up_proj", "w3", "gate_up_proj"), ("down_proj", "w2"))

Leaf = tuple[tuple[str, ...], float]
"""Spellings of a matrix, and its parameters."""

Matrix = tuple[tuple[str, ...], tuple[str, ...], float]
"""Spellings of the block that a matrix is in, its own, and its parameters in one layer."""


@dataclass(frozen=True)
class Module:
    """A matrix of the checkpoint: its role, spellings and parameters (0: known, too small to count)."""

    role: str
    names: tuple[str, ...]
    n_params: float


def modules(text: Mapping[str, Any]) -> tuple[Module, ...]:
    """List the matrices of a text model.

    Parameters
    ----------
    text : mapping
        Configuration of the text model. Missing sizes count as 1, so that shares stay sensible.

    Returns
    -------
    tuple of Module
        Matrices of the main stack, of the draft layers, embedding and head. All experts of a layer are one
        module per matrix.
    """
    kinds = layer_kinds(text)
    found: list[Module] = []
    for index, roles in enumerate(kinds):
        for role in (*roles, "norm"):
            found += [Module(role, _spelled([f"layers.{index}"], blocks, names), n_params)
                      for blocks, names, n_params in _matrices(role, text)]
    found += _draft(text, kinds)
    size = _number(text, "hidden_size") * _number(text, "vocab_size")
    found.append(Module("head", ("lm_head", "head", "output_layer"), size))
    found.append(Module("embed", ("embed_tokens", "embed", "embeddings", "word_embeddings"), size))
    found.append(Module("norm", ("norm", "norm_f", "final_layernorm"), 0.0))
    return tuple(found)


def layer_kinds(text: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return the roles of each layer of the main stack, mixer first."""
    n_layers = int(_number(text, "num_hidden_layers"))
    pattern = text.get("hybrid_override_pattern")
    if pattern:
        letters = {"M": ("linear_attention",), "*": ("attention",), "-": ("dense_mlp",)}
        return [letters.get(letter, _moe_roles(text)) for letter in pattern]
    return [(*_mixer_roles(text, index), *_feed_roles(text, index)) for index in range(n_layers)]


def draft_count(text: Mapping[str, Any]) -> int:
    """Return the number of built-in draft layers (multi-token prediction)."""
    return int(_number(text, "num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules", default=0))


class Listing:
    """The modules of a model, indexed to be named by quantisation lists."""

    def __init__(self, found: Iterable[Module]) -> None:
        """Index every spelling of every module."""
        self.modules = tuple(found)
        self._by_name: dict[str, set[int]] = defaultdict(set)
        for index, module in enumerate(self.modules):
            for name in module.names:
                self._by_name[name].add(index)
        self._names = list(self._by_name)
        self._by_part: dict[str, set[int]] = {}

    def named(self, entry: str) -> set[int] | None:
        """Return the positions of the modules that an entry names; None for an expression it cannot read.

        Parameters
        ----------
        entry : str
            A name (names every module that has it as a run of its dotted parts), a shell pattern, or ``re:`` and a
            regular expression (anchored at the start, as servers apply it).
        """
        if entry.startswith("re:"):
            shells = as_shells(entry[3:])
            return None if shells is None else self._matching(shells)
        if any(sign in entry for sign in "*?["):
            return self._matching([entry, f"{entry}.*"])
        return set(self._parts().get(_bare(entry.strip(".")), ()))

    def _matching(self, shells: Iterable[str]) -> set[int]:
        hits: set[int] = set()
        for shell in shells:
            for name in fnmatch.filter(self._names, _bare(shell)):
                hits |= self._by_name[name]
        return hits

    def _parts(self) -> dict[str, set[int]]:
        if not self._by_part:
            parts: dict[str, set[int]] = defaultdict(set)
            for name, indices in self._by_name.items():
                words = name.split(".")
                for start, stop in product(range(len(words)), range(1, len(words) + 1)):
                    # layers.0 is a layer of the stack, not the end of mtp.layers.0.
                    if start < stop and not (start and words[start] == "layers"):
                        parts[".".join(words[start:stop])] |= indices
            self._by_part = dict(parts)
        return self._by_part


def is_elsewhere(entry: str) -> bool:
    """Say whether an entry that names no module means vision, audio, or draft layers that the model does not have."""
    return any(word in entry for word in _ELSEWHERE)


def as_shells(expression: str) -> list[str] | None:
    r"""Translate a regular expression of a quantisation list into shell patterns.

    Known: literals, ``.``, ``.*``, ``.+``, ``\.``, ``\d``, classes, groups with alternatives, ``?``, ``^`` at the
    start and ``$`` at the end. A repeated digit or class is read as "one of them, then anything".

    Parameters
    ----------
    expression : str
        Applied as ``re.match``: anchored at the start, open at the end.

    Returns
    -------
    list of str or None
        One pattern per alternative; None for anything else, for example a look-ahead.
    """
    try:
        shells, rest = _alternatives(expression)
    except ValueError:
        return None
    if rest:
        return None
    return [shell[:-1] if shell.endswith("$") else f"{shell}*" for shell in shells]


def _alternatives(text: str) -> tuple[list[str], str]:
    """Read up to the closing bracket; return the patterns and what follows."""
    found: list[str] = []
    current = [""]
    while text and text[0] != ")":
        if text[0] == "|":
            found, current, text = found + current, [""], text[1:]
            continue
        atom, text = _atom(text)
        atom, text = _repeated(atom, text)
        current = [head + tail for head in current for tail in atom]
    return found + current, text


def _atom(text: str) -> tuple[list[str], str]:
    sign = text[0]
    if sign == "(":
        inner, rest = _alternatives(text[1:].removeprefix("?:"))
        if not rest.startswith(")"):
            raise ValueError(text)
        return inner, rest[1:]
    if sign == "[":
        stop = text.index("]", 2)
        return ["[" + text[1:stop].replace("^", "!") + "]"], text[stop + 1:]
    if sign == "\\":
        if text[1:2] == "d":
            return ["[0-9]"], text[2:]
        if text[1:2].isalnum() or len(text) < 2:
            raise ValueError(text)
        return [text[1]], text[2:]
    if sign == "^":
        return [""], text[1:]
    if sign in "*+?{" or (sign == "$" and text[1:2] not in ("", ")", "|")):
        raise ValueError(text)
    return ["?" if sign == "." else sign], text[1:]


def _repeated(atom: list[str], text: str) -> tuple[list[str], str]:
    sign = text[:1]
    if sign == "?":
        return [*atom, ""], text[1:]
    if sign == "*" and atom == ["?"]:
        return ["*"], text[1:].removeprefix("?")
    if sign == "+" and (atom == ["?"] or atom[0].startswith("[")):
        return [f"{one}*" for one in atom], text[1:].removeprefix("?")
    return atom, text


def _bare(name: str) -> str:
    """Drop the shells of a checkpoint's names: ``model.language_model.layers.0`` -> ``layers.0``."""
    for shell in _SHELLS * 2:
        if name.startswith(shell) and name[len(shell):len(shell) + 1] in (".", "?") and len(name) > len(shell) + 1:
            name = name[len(shell) + 1:]
    return name


def _spelled(prefixes: Iterable[str], blocks: Iterable[str], names: Iterable[str]) -> tuple[str, ...]:
    return tuple(".".join(part for part in parts if part) for parts in product(prefixes, blocks, names))


def _mixer_roles(text: Mapping[str, Any], index: int) -> tuple[str, ...]:
    kinds = text.get("layer_types")
    interval = int(_number(text, "full_attention_interval"))
    if kinds and index < len(kinds):
        is_linear = str(kinds[index]).startswith(("linear", "mamba"))
    else:
        is_linear = (index + 1) % interval != 0
    if is_linear:
        return ("linear_attention",)
    indexer = ("indexer",) if text.get("index_n_heads") else ()
    compressor = ("compressor",) if text.get("compress_ratios") else ()
    return ("attention", *indexer, *compressor)


def _feed_roles(text: Mapping[str, Any], index: int) -> tuple[str, ...]:
    if not _n_experts(text):
        return ("dense_mlp",)
    kinds = text.get("mlp_layer_types") or ()
    is_dense = (
        index < _number(text, "first_k_dense_replace", default=0)
        or index in (text.get("mlp_only_layers") or ())
        or (index < len(kinds) and kinds[index] == "dense")
        or (index + 1) % int(_number(text, "decoder_sparse_step")) != 0
    )
    if is_dense:
        return ("dense_mlp",)
    return ("dense_mlp", *_moe_roles(text)) if text.get("enable_moe_block") else _moe_roles(text)


def _moe_roles(text: Mapping[str, Any]) -> tuple[str, ...]:
    has_shared = any(text.get(key) for key in (
        "n_shared_experts", "shared_expert_intermediate_size", "moe_shared_expert_intermediate_size"))
    return ("routed_experts", *(("shared_experts",) if has_shared else ()), "router")


def _draft(text: Mapping[str, Any], kinds: list[tuple[str, ...]]) -> list[Module]:
    """Return the draft layers: each as the last layer of its kind, and the projection into it."""
    hidden = _number(text, "hidden_size")
    roles = ("attention", *(_moe_roles(text) if _n_experts(text) else ("dense_mlp",)))
    found = []
    for index in range(draft_count(text)):
        prefixes = [f"mtp.layers.{index}", f"mtp.{index}", f"layers.{len(kinds) + index}"]
        found += [Module("draft", _spelled(prefixes, blocks, names), n_params)
                  for role in roles for blocks, names, n_params in _matrices(role, text)]
        found.append(Module("draft", ("mtp.fc", *_spelled(prefixes, [""], ["eh_proj"])), 2 * hidden**2))
        found.append(Module("draft", (*_DRAFT_NORMS, *_spelled(prefixes, [""], (*_NORMS, *_DRAFT_SMALL))), 0.0))
    return found


def _matrices(role: str, text: Mapping[str, Any]) -> list[Matrix]:
    """Return blocks, spellings and parameters of each matrix of a role in one layer."""
    hidden = _number(text, "hidden_size")
    if role == "attention":
        return [(_ATTENTION, names, size) for names, size in _attention(text)]
    if role == "linear_attention":
        return [(_LINEAR, names, size) for names, size in _linear_attention(text)]
    if role == "dense_mlp":
        return _gated(_MLP, hidden * _number(text, "intermediate_size"))
    if role == "routed_experts":
        width = _number(text, "moe_intermediate_size", "intermediate_size")
        return _gated(_EXPERTS, _n_experts(text) * hidden * width)
    if role == "shared_experts":
        width = _number(text, "moe_intermediate_size", "shared_expert_intermediate_size")
        # Nemotron-3 Super: experts act on a projection of the residual stream.
        return [*_gated(_SHARED, hidden * width), (_MLP, ("fc1_latent_proj", "fc2_latent_proj"), 0.0)]
    router = (*_MLP, "block_sparse_moe", "")
    indexer = ("self_attn.indexer", "attn.indexer")
    others: dict[str, list[Matrix]] = {
        "router": [(router, ("gate", "router"), hidden * _n_experts(text)),
                   (router, ("gate.e_score_correction_bias", "e_score_correction_bias", "shared_expert_gate"), 0.0)],
        "indexer": [(indexer, ("wq_b",), hidden), (indexer, ("wk", "weights_proj", "k_norm"), 0.0)],
        "compressor": [(("self_attn.compressor", "attn.compressor"), ("wkv", "wgate"), hidden)],
        "norm": [(("",), _NORMS, 0.0)],
    }
    return others[role]


def _gated(blocks: tuple[str, ...], size: float) -> list[Matrix]:
    return [(blocks, names, size) for names in _GATED]


def _attention(text: Mapping[str, Any]) -> list[Leaf]:
    hidden, heads = _number(text, "hidden_size"), _number(text, "num_attention_heads")
    if text.get("kv_lora_rank"):
        return _latent_attention(text, hidden, heads)
    head = _number(text, "head_dim", default=hidden / heads)
    if text.get("o_lora_rank"):
        return _compressed_attention(text, hidden, heads * head, head)
    kv = hidden * head * _number(text, "num_key_value_heads", default=heads)
    fused = ("qkv_proj", "c_attn")
    return [(("q_proj", *fused), hidden * head * heads), (("k_proj", *fused), kv), (("v_proj", *fused), kv),
            (("o_proj", "out_proj", "dense"), hidden * head * heads)]


def _latent_attention(text: Mapping[str, Any], hidden: float, heads: float) -> list[Leaf]:
    kv_rank, q_rank = _number(text, "kv_lora_rank"), _number(text, "q_lora_rank", default=0)
    nope, rope, value = (_number(text, key) for key in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))
    down = ("fused_qkv_a_proj_with_mqa", "fused_a")  # query and KV in one matrix, as servers and ModelOpt name it
    query: list[Leaf] = [(("q_proj",), hidden * heads * (nope + rope))]
    if q_rank:
        query = [(("q_a_proj", *down), hidden * q_rank), (("q_b_proj",), q_rank * heads * (nope + rope))]
    return [*query, (("kv_a_proj_with_mqa", *down), hidden * (kv_rank + rope)),
            (("kv_b_proj",), kv_rank * heads * (nope + value)), (("o_proj",), heads * value * hidden)]


def _compressed_attention(text: Mapping[str, Any], hidden: float, width: float, head: float) -> list[Leaf]:
    q_rank, o_rank, groups = (_number(text, key) for key in ("q_lora_rank", "o_lora_rank", "o_groups"))
    return [(("wq_a", "q_a_proj"), hidden * q_rank), (("wq_b", "q_b_proj"), q_rank * width),
            (("wkv", "kv_proj"), hidden * head), (("wo_a", "o_a_proj"), width * o_rank),
            (("wo_b", "o_b_proj"), groups * o_rank * hidden)]


def _linear_attention(text: Mapping[str, Any]) -> list[Leaf]:
    """Return the large projections with sizes; the small ones only by name."""
    hidden = _number(text, "hidden_size")
    small = (("in_proj_a", "in_proj_b", "in_proj_ba", "conv1d", "norm", "A_log", "dt_bias", "D"), 0.0)
    if not text.get("linear_num_value_heads"):
        inner = _number(text, "mamba_num_heads") * _number(text, "mamba_head_dim")
        return [(("in_proj",), 2 * hidden * inner), (("out_proj",), hidden * inner), small]
    keys = _number(text, "linear_num_key_heads") * _number(text, "linear_key_head_dim")
    values = _number(text, "linear_num_value_heads") * _number(text, "linear_value_head_dim")
    return [(("in_proj_qkv", "in_proj_qkvz"), hidden * (2 * keys + values)),
            (("in_proj_z", "in_proj_qkvz"), hidden * values), (("out_proj",), hidden * values), small]


def _n_experts(text: Mapping[str, Any]) -> float:
    return _number(text, "n_routed_experts", "num_experts", "num_local_experts", default=0)


def _number(text: Mapping[str, Any], *keys: str, default: float = 1.0) -> float:
    """Return the first of the keys that holds a positive number; the reader of the model refuses wrong ones."""
    for key in keys:
        value = text.get(key)
        if isinstance(value, int | float) and 0 < value < float("inf"):
            return float(value)
    return default
