"""From a config.json to a `ModelSpec`: the model's layers, their formats, and what had to be assumed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from helpers.physics.model.formats import KV_FORMATS, KvFormat
from helpers.physics.model.mixers import CompressedAttention, GatedDelta, GroupedAttention, Mamba2
from helpers.physics.model.spec import HasExperts, Layer, ModelSpec
from helpers.physics.reading.families import FAMILIES, UNKNOWN, Family
from helpers.physics.reading.feeds import N_ACTIVE, N_EXPERTS, has_experts
from helpers.physics.reading.keys import BY_HAND, SUSPECT, Keys
from helpers.physics.reading.layers import read_draft, read_final, read_layers
from helpers.physics.reading.quantisation import read_formats
from helpers.schema import LogFormatError, RooflogError

NESTED = ("text_config", "llm_config", "language_config")
"""Where multi-modal configurations keep the text model."""

INHERITED = ("tie_word_embeddings", "quantization_config", "dtype", "torch_dtype")
"""What the text model takes from the outer configuration where it says nothing itself."""

SIDECAR_NAME = "hf_quant_config.json"
"""File beside config.json in which ModelOpt checkpoints keep their formats."""


def read_config(config: Mapping[str, Any] | str | Path, *, name: str = "",
                sidecar: Mapping[str, Any] | None = None) -> ModelSpec:
    """Read a model's configuration.

    Parameters
    ----------
    config : mapping or path
        The content of a config.json, the file, or the folder that holds it.
    name : str
        What to call the model; by default the file's or folder's name.
    sidecar : mapping, optional
        Content of hf_quant_config.json; beside a file it is found by itself.

    Returns
    -------
    ModelSpec
        Vision and audio towers left out; draft layers apart from the stack. ``assumptions`` says what the
        configuration left open and which of its keys were not understood.

    Raises
    ------
    LogFormatError
        The file cannot be read as a configuration.
    RooflogError
        A key that a decode step cannot be computed without is missing or impossible, or its layers are of a kind
        that is not known.

    Examples
    --------
    >>> spec = read_config({
    ...     "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    ...     "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "torch_dtype": "bfloat16",
    ...     "tie_word_embeddings": False,
    ... }, name="Llama-3.1-8B")
    >>> int(spec.n_params)
    8030261248
    """
    if isinstance(config, (str, Path)):
        values, sidecar, where = _load(Path(config), sidecar)
        name = name or where
    else:
        values = config
    where = name or "model configuration"
    keys = Keys(_text_model(values), where)
    family = _family(keys, values)
    _require(keys)
    layers = read_layers(keys, family)
    draft, draft_extra, notes = read_draft(keys, family)
    final = read_final(keys)
    formats, kv, told = read_formats(values, sidecar)
    kv = _served_kv(keys, values, kv, layers)
    return ModelSpec(
        name=name,
        hidden=keys.count("hidden_size"),
        vocab=keys.count("vocab_size"),
        layers=layers,
        is_tied=keys.flag("tie_word_embeddings", family.is_tied),
        final=final,
        formats=formats,
        kv=kv,
        draft=draft,
        draft_extra=draft_extra,
        context_length_max=keys.count("max_position_embeddings", default=0) or None,
        assumptions=(*_not_understood(keys, layers), *keys.assumptions, *told),
        source=str(values.get("_source", "")),
        confidence=str(values.get("_confidence", "")),
        notes=notes,
    )


def _load(path: Path, sidecar: Mapping[str, Any] | None) -> tuple[Mapping[str, Any], Mapping[str, Any] | None, str]:
    file = path / "config.json" if path.is_dir() else path
    beside = file.with_name(SIDECAR_NAME)
    if sidecar is None and beside.is_file():
        sidecar = _json(beside)
    return _json(file), sidecar, file.parent.name if file.name == "config.json" else file.stem


def _json(file: Path) -> Mapping[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise LogFormatError(f"{file}: expected a readable config.json, found {error.strerror}") from error
    except ValueError as error:
        raise LogFormatError(f"{file}: expected JSON, found {error}") from error
    except RecursionError as error:
        raise LogFormatError(f"{file}: expected JSON, found brackets that are nested too deep to be read") from error
    if not isinstance(content, dict):
        raise LogFormatError(f"{file}: expected a JSON object with a model's keys, found {type(content).__name__}")
    return content


def _text_model(values: Mapping[str, Any]) -> Mapping[str, Any]:
    inner = next((values[key] for key in NESTED if isinstance(values.get(key), Mapping)), None)
    if inner is None:
        return values
    return {**{key: values[key] for key in INHERITED if key in values}, **inner}


def _family(keys: Keys, values: Mapping[str, Any]) -> Family:
    kinds = [str(kind) for kind in (keys.value("model_type"), values.get("model_type")) if kind]
    known = next((FAMILIES[kind] for kind in kinds if kind in FAMILIES), None)
    if known is None:
        kind = f"model_type {kinds[0]}" if kinds else "a configuration without model_type"
        keys.assume(f"{kind} is not known: read by its keys as a decoder with the conventions of Llama "
                    "(no biases or norms beyond those its keys name)")
    return known or UNKNOWN


def _require(keys: Keys) -> None:
    """Refuse a configuration that lacks what every architecture has, naming all of it at once."""
    needed: list[tuple[str, ...]] = [("hidden_size",), ("num_attention_heads",), ("vocab_size",)]
    if not keys.has("hybrid_override_pattern", "layers_block_type"):
        needed.append(("num_hidden_layers",))
        width = ("moe_intermediate_size", "intermediate_size") if has_experts(keys) else ("intermediate_size",)
        needed.append(width)
    if has_experts(keys):
        needed.append(N_ACTIVE)
    missing = [names[0] for names in needed if not keys.has(*names)]
    if missing:
        raise keys.missing(missing)


def _not_understood(keys: Keys, layers: Iterable[Layer]) -> tuple[str, ...]:
    unread = keys.unread()
    known = {
        "experts": keys.has(*N_EXPERTS),
        "recurrent layers": any(isinstance(layer.mixer, (GatedDelta, Mamba2)) for layer in layers),
    }
    for meaning, patterns in SUSPECT.items():
        hints = [key for key in unread if any(fnmatchcase(key, pattern) for pattern in patterns)]
        if hints and not known[meaning]:
            raise RooflogError(
                f"{keys.where}: the keys {', '.join(hints)} speak of {meaning} in a form that is not known; expected "
                f"the key names of a published architecture, {BY_HAND}"
            )
    return (f"keys not understood, whatever bytes they mean are left out: {', '.join(unread)}",) if unread else ()


def _served_kv(keys: Keys, values: Mapping[str, Any], kv: KvFormat, layers: Iterable[Layer]) -> KvFormat:
    # The servers have one layout for these compressed entries, of FP8 and BF16 parts: 584 bytes.
    if any(isinstance(layer.mixer, CompressedAttention) for layer in layers) and kv.bytes_per_element >= 2:
        if "_kv_format" not in values:
            keys.assume("the cache is taken as FP8 entries of 584 bytes, the servers' layout for this attention")
            return KV_FORMATS["fp8"]
    return kv


def check_parallel(spec: ModelSpec, tp: int, *, ep: int = 1, attention_tp: int | None = None) -> None:
    """Refuse degrees of parallelism that no server runs this model with.

    Parameters
    ----------
    spec : ModelSpec
    tp : int
        Tensor-parallel ranks.
    ep : int
        Expert-parallel ranks; 1 where experts are split over ``tp``.
    attention_tp : int, optional
        Ranks that share one request's attention under data-parallel attention; ``tp`` by default.

    Raises
    ------
    RooflogError
        The ranks do not divide the query heads (or the heads of a recurrent mixer), neither divide nor are divided
        by the key/value heads, or do not divide the experts; the message names the degrees that would.
    """
    ranks = attention_tp or tp
    if ranks < 1 or ep < 1:
        raise RooflogError(f"{spec.name}: expected parallel degrees of at least 1, found tp {ranks}, ep {ep}")
    wrong = [f"{count} {what}" for what, count in _head_counts(spec) if count % ranks]
    if wrong or not _shares_kv_heads(spec, ranks):
        found = wrong[0] if wrong else "the key/value heads, or a multiple of them"
        raise RooflogError(f"{spec.name}: expected tp to divide {found}, found tp {ranks}; degrees that work: "
                           f"{_degrees(spec)}")
    for n_experts in {layer.feed.n_experts for layer in spec.layers if isinstance(layer.feed, HasExperts)}:
        if n_experts % ep:
            works = ", ".join(str(degree) for degree in range(1, n_experts + 1) if n_experts % degree == 0)
            raise RooflogError(f"{spec.name}: expected ep to divide {n_experts} experts, found ep {ep}; "
                               f"degrees that work: {works}")


def _head_counts(spec: ModelSpec) -> list[tuple[str, int]]:
    mixers = {layer.mixer for layer in spec.layers if layer.mixer is not None}
    return sorted({item for mixer in mixers for item in getattr(mixer, "sharded_heads", {}).items()})


def _shares_kv_heads(spec: ModelSpec, ranks: int) -> bool:
    """Tell whether KV heads can be dealt out evenly, or copied evenly."""
    counts = {layer.mixer.n_kv_heads for layer in spec.layers if isinstance(layer.mixer, GroupedAttention)}
    return all(count % ranks == 0 or ranks % count == 0 for count in counts)


def _degrees(spec: ModelSpec) -> str:
    counts = [count for _, count in _head_counts(spec)]
    return ", ".join(str(ranks) for ranks in range(1, min(counts) + 1)
                     if all(count % ranks == 0 for count in counts) and _shares_kv_heads(spec, ranks))
