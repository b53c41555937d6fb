"""Reading single keys of a config.json: types checked, aliases resolved, and a record of what was never read.

A key that nobody reads may change the bytes of a step, so it is reported; `HARMLESS` lists those that cannot.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from helpers.schema import RooflogError

BY_HAND = "or give the facts weight_bytes_per_step and kv_bytes_per_tok by hand"

HARMLESS = (
    "_*", "architectures", "auto_map", "model_type", "transformers_version", "torch_dtype", "dtype",
    "quantization_config", "compression_config", "tie_encoder_decoder", "use_cache", "is_decoder",
    "is_encoder_decoder", "*token_id", "*token_ids", "*token_index", "*token", "tokenizer*", "pad_*",
    "*_placeholder", "ignore_index", "rope_*", "*rope*", "rotary_*", "*rotary*", "original_max_position_embeddings",
    "initial_context_length", "initializer_range", "*init*", "*dropout*", "*_eps", "*epsilon", "*_act",
    "*activation*", "*softcap*", "*_loss*", "vision*", "audio*", "visual*", "image*", "video*", "mm_*", "*vision*",
    "projector*", "*multimodal*", "routed_scaling_factor", "scoring_func", "n_group", "topk_group",
    "norm_topk_prob", "*router_dtype", "aux_loss*", "router_aux_loss_coef", "seq_aux", "output_router_logits",
    "*logits*", "swiglu_limit", "moe_shared_expert_overlap", "ep_size", "pretraining_tp", "chunk_size", "expand",
    "time_step*", "residual_in_fp32", "rescale_*", "use_mamba_kernels", "max_window_layers", "hc_sinkhorn_iters",
    "index_topk_*", "index_skip_*", "index_share_*", "indexer_rope_*", "qk_head_dim", "qk_norm_type",
    "query_pre_attn_scalar", "attn_scale", "attn_temperature*", "floor_scale", "use_bidirectional_attention",
    "output_gate_type", "output_attentions", "output_hidden_states", "return_dict*", "id2label", "label2id",
    "num_labels", "problem_type", "finetuning_task", "task_specific_params", "prefix", "pruned*",
    "chunk_size_feed_forward", "temperature", "top_k", "top_p", "typical_p", "num_beam*", "num_return_sequences",
    "*_length", "*length_penalty", "*diversity_penalty", "*repetition_penalty", "*no_repeat*", "do_sample",
    "early_stopping", "torchscript", "tf_legacy_loss", "use_bfloat16", "remove_invalid_values", "bad_words_ids",
    "*suppress_tokens", "add_cross_attention", "cross_attention*", "language_model_only", "cache_implementation",
    "mtp_use_dedicated_embeddings", "expert_dtype", "kv_cache_*", "text_config", "llm_config", "language_config",
    "vocab_size_per_layer_input", "unsloth*", "attn_implementation", "layernorm_*", "*attn_factor",
    "embedding_multiplier", "residual_multiplier", "attention_multiplier", "altup_*", "embd_pdrop", "resid_pdrop",
    "attn_pdrop",
)
"""Patterns of keys that change no byte of a decode step (names, tokens, positions, training, sampling, vision)."""

MAX_COUNT = 10**12
"""Above any dimension of a model: a larger one is a slip of the pen, and no arithmetic would hold it."""

SUSPECT = {
    "experts": ("*expert*", "moe_*", "*_moe_*"),
    "recurrent layers": ("*mamba*", "*ssm*", "linear_*", "attn_type_list", "attn_layer_*", "*rwkv*", "*lightning*"),
}
"""What an unread key may stand for that no reading without it could be right about."""


class Keys:
    """The keys of one model configuration.

    Parameters
    ----------
    values : mapping
        The text model's keys, inherited ones included.
    where : str
        Name of the model or file, for messages.
    """

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self.values = values
        self.where = where
        self.assumptions: list[str] = []
        self._read: set[str] = set()

    def assume(self, text: str) -> None:
        """Note an assumption, once."""
        if text not in self.assumptions:
            self.assumptions.append(text)

    def fail(self, expected: str, found: object) -> RooflogError:
        """Return the error for a value that cannot be right."""
        return RooflogError(f"{self.where}: expected {expected}, found {found}; correct the configuration {BY_HAND}")

    def has(self, *names: str) -> bool:
        """Tell whether one of the keys is there and not null."""
        return any(self.values.get(name) is not None for name in names)

    def value(self, *names: str) -> Any:
        """Return the first of the keys that is there and not null; all count as read."""
        self._read.update(names)
        found = {name: self.values[name] for name in names if self.values.get(name) is not None}
        first = next(iter(found), None)
        other = next((name for name in found if first is not None and found[name] != found[first]), None)
        if first is not None and other is not None:
            self.assume(f"{first} {found[first]} is used, although {other} says {found[other]}")
        return found[first] if first is not None else None

    def count(self, *names: str, default: int | None = None, at_least: int = 1, at_most: int = MAX_COUNT) -> int:
        """Return a whole number.

        Parameters
        ----------
        *names : str
            Names the key goes by; the first that is there counts.
        default : int, optional
            Where none is there; without one, a missing key is an error.
        at_least, at_most : int
            Smallest and largest value that make sense.

        Returns
        -------
        int

        Raises
        ------
        RooflogError
            Missing without a default, not a whole number, too small or too large.
        """
        value = self.value(*names)
        if value is None:
            if default is None:
                raise self.missing([names[0]])
            return default
        written = next(name for name in names if self.values.get(name) is not None)
        return self._whole(value, written, at_least, at_most)

    def _whole(self, value: Any, name: str, at_least: int, at_most: int = MAX_COUNT) -> int:
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not is_number or value != value or value in (float("inf"), -float("inf")) or value != int(value):
            raise self.fail(f"{name} to be a whole number", repr(value))
        if value < at_least:
            raise self.fail(f"{name} of at least {at_least}", value)
        if value > at_most:
            raise self.fail(f"{name} of at most {at_most:,}".replace(",", " "), f"{float(str(value)):.4g}")
        return int(value)

    def flag(self, name: str, default: bool = False) -> bool:
        """Return a switch."""
        value = self.value(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.fail(f"{name} to be true or false", repr(value))
        return value

    def per_layer(self, name: str, n_layers: int) -> list[Any] | None:
        """Return a list with one entry per layer, or None; entries beyond the stack (draft layers) are cut off."""
        value = self.value(name)
        if value is None:
            return None
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise self.fail(f"{name} to be a list", repr(value))
        if len(value) < n_layers:
            raise self.fail(f"{name} to have an entry for each of {n_layers} layers", f"{len(value)} entries")
        return list(value[:n_layers])

    def width_of_layers(self, name: str, n_layers: int) -> list[int]:
        """Return a whole number per layer from a number or a list."""
        if isinstance(self.values.get(name), list):
            return [self._whole(width, name, 1) for width in self.per_layer(name, n_layers) or ()]
        return [self.count(name)] * n_layers

    def missing(self, names: Sequence[str]) -> RooflogError:
        """Return the error for keys that a decode step cannot be computed without."""
        keys = ", ".join(names)
        return RooflogError(f"{self.where}: expected the keys {keys} in the configuration, found none of that name; "
                            f"add them {BY_HAND}")

    def unread(self) -> list[str]:
        """Return the keys that are set, were never read and are not known to be harmless."""
        return sorted(
            name for name, value in self.values.items()
            if value and name not in self._read and not any(fnmatchcase(name, pattern) for pattern in HARMLESS)
        )
