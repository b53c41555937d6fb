"""From what is known about a deployment to the physics of its step: model, accelerator, links.

A model is taken from bytes given by hand, a config.json, a catalogue name, or a few parameter counts, in this order;
arguments of the server's log say how it was run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from helpers.facts import Facts, merge_facts, read_context
from helpers.physics.catalogue import hardware, models
from helpers.physics.catalogue.hardware import Hardware
from helpers.physics.linking import communication
from helpers.physics.model.formats import KvFormat, WeightFormat
from helpers.physics.model.spec import ModelSpec
from helpers.physics.reading import quantisation
from helpers.physics.reading.config import check_parallel, read_config
from helpers.physics.steps.decode import DecodeModel
from helpers.physics.steps.demand import Parallel
from helpers.physics.steps.hand import HandModel
from helpers.physics.steps.step import Link
from helpers.schema import NotEnoughData, RooflogError

HAND_FACTS = ("weight_bytes_per_step", "kv_bytes_per_tok")
COUNT_FACTS = ("n_params", "kv_bytes_per_tok")

NO_MODEL = (
    "model (give model: a name of `rooflog models`, or model_config: a config.json, or by hand weight_bytes_per_step "
    "and kv_bytes_per_tok, with --context)"
)
NO_HARDWARE = "hardware (give hardware: a name of `rooflog hardware`, with --context)"

DRAFTLESS = ("ngram", "lookahead", "suffix", "eagle", "medusa", "dflash", "draft_model", "standalone")
"""Speculation whose draft is not made of the model's own layers."""

BF16_BYTES = 2.0

NAME_FORMATS = {
    "fp8": "fp8", "nvfp4": "nvfp4", "fp4": "nvfp4", "mxfp4": "mxfp4_weight_only", "int4": "int4_g128",
    "w4a16": "int4_g128", "autoround": "int4_g128", "gptq": "int4_g128", "awq": "int4_g128_zeros", "int8": "int8",
    "w8a8": "int8",
}
"""Word in a model's name -> format of its projections, where nothing else speaks of one."""


@dataclass(frozen=True)
class Deployment:
    """A model as it runs on accelerators.

    Attributes
    ----------
    model : DecodeModel or HandModel
    hardware : Hardware
        One accelerator.
    links : mapping of ranks to Link
        Collectives among that many ranks.
    interconnect : str or None
        What joins the ranks, as the user says.
    has_graph : bool
        Steps are replayed as graphs.
    chunk_tok : int or None
        Prompt tokens per prefill forward [tok].
    warnings : tuple of str
        Contradictions and doubts.
    """

    model: DecodeModel | HandModel
    hardware: Hardware
    links: Mapping[int, Link]
    interconnect: str | None = None
    has_graph: bool = True
    chunk_tok: int | None = None
    warnings: tuple[str, ...] = ()


def resolve(facts: Facts) -> Deployment:
    """Return the physics of a deployment.

    Parameters
    ----------
    facts : Facts
        From the log and the user.

    Returns
    -------
    Deployment

    Raises
    ------
    NotEnoughData
        Hardware or model are not known; the message says what to give.
    RooflogError
        A name that is in no catalogue, a configuration that cannot be read, degrees that do not fit the model.
    """
    missing = [] if facts.get("hardware") is not None else [NO_HARDWARE]
    missing += [] if _has_model(facts) else [NO_MODEL]
    if missing:
        raise NotEnoughData(f"not known: {'; '.join(missing)}")
    accelerator = hardware.find(facts.get("hardware"))
    model = resolve_model(facts)
    interconnect, has_graph = facts.get("interconnect"), facts.get("cuda_graph_enabled") is not False
    links = find_links(model, accelerator, interconnect, has_graph)
    doubts = dict.fromkeys(text for link in links.values() for text in getattr(link, "warnings", ()))
    return Deployment(model, accelerator, links, interconnect, has_graph, facts.get("chunked_prefill_size"),
                      tuple(doubts))


def resolve_model(facts: Facts) -> DecodeModel | HandModel:
    """Return what a step of the model reads; the accelerator is not needed.

    Raises
    ------
    NotEnoughData
        The model is not known; the message says what to give.
    RooflogError
        As `resolve`.
    """
    if not _has_model(facts):
        raise NotEnoughData(f"not known: {NO_MODEL}")
    if all(facts.get(name) is not None for name in HAND_FACTS):
        return _by_hand(facts)
    if all(facts.get(name) is not None for name in COUNT_FACTS) and facts.get("model_config") is None:
        return _by_count(facts)
    return _from_config(facts)


def _has_model(facts: Facts) -> bool:
    """Tell whether anything says what the model is."""
    return any(facts.get(name) is not None for name in ("model_config", "model")) or any(
        all(facts.get(name) is not None for name in names) for names in (HAND_FACTS, COUNT_FACTS))


def find_links(
    model: DecodeModel | HandModel, accelerator: Hardware, interconnect: str | None = None, graph: bool = True
) -> dict[int, Link]:
    """Return the collectives of a model's ranks; none for a model by hand, whose messages are not known."""
    if isinstance(model, HandModel):
        return {}
    parallel = model.parallel
    groups = {parallel.attention_tp, parallel.tp, parallel.ep if parallel.dp_attention else 1} - {1}
    return {ranks: communication.find_table(accelerator, ranks, interconnect, graph) for ranks in sorted(groups)}


def _by_hand(facts: Facts) -> HandModel:
    return HandModel(
        weight_bytes_per_step=facts.get("weight_bytes_per_step"), kv_bytes_per_tok=facts.get("kv_bytes_per_tok"),
        state_bytes_per_req=facts.get("state_bytes_per_req", 0.0), tp=facts.get("tp", 1),
        kv_is_replicated=facts.get("kv_is_replicated", False), expert_bytes=facts.get("expert_bytes", 0.0),
        n_experts=facts.get("n_experts", 0), n_experts_active=facts.get("n_experts_active", 0),
    )


def _by_count(facts: Facts) -> HandModel:
    """Turn total and active parameters into bytes: what is idle is routed experts."""
    per_param = facts.get("weight_bytes_per_param", BF16_BYTES)
    total, active = facts.get("n_params"), facts.get("n_active_params", facts.get("n_params"))
    if active > total:
        raise RooflogError(f"model: expected n_active_params <= n_params, found {active:g} of {total:g}")
    n_experts, n_active = facts.get("n_experts", 0), facts.get("n_experts_active", 0)
    if n_experts and n_active > n_experts:
        raise RooflogError(f"model: expected n_experts_active <= n_experts, found {n_active} of {n_experts}")
    expert_params = (total - active) * n_experts / (n_experts - n_active) if n_experts > n_active > 0 else 0.0
    return replace(
        _by_hand(Facts({**facts.values, "weight_bytes_per_step": active * per_param})),
        expert_bytes=expert_params * per_param,
    )


def _from_config(facts: Facts) -> DecodeModel:
    """Read the configuration and run it as the log and the user say."""
    spec = find_spec(facts)
    formats, said = quantisation.apply_dtype(spec.formats, facts.get("dtype"), facts.get("quantization"))
    by_name = _format_in_name(facts, formats)
    if facts.get("weight_format") is not None:
        formats = quantisation.weight_formats(str(facts.get("weight_format")), formats)
        said = (*said, f"weights of attention, dense layers and experts counted as {facts.get('weight_format')}: told")
    elif by_name is not None:
        word, name = by_name
        formats = quantisation.weight_formats(name, formats)
        said = (*said, f"weights of attention, dense layers and experts counted as {name}: the model's name says "
                f"{word!r} and its configuration nothing; give weight_format if that is wrong")
    spec = replace(spec, formats=formats)
    parallel = parallel_of(facts)
    check_parallel(spec, parallel.tp, ep=parallel.ep, attention_tp=parallel.attention_tp)
    if parallel.pp > spec.n_layers:
        raise RooflogError(f"{spec.name}: expected at most one pipeline stage for each of {spec.n_layers} layers, "
                           f"found pp {parallel.pp}")
    kv, kv_said = _kv(facts)
    n_draft_tok = draft_tokens(facts)
    algorithm = str(facts.get("speculative_algorithm") or "").lower()
    is_draftless = any(word in algorithm for word in DRAFTLESS) and not (algorithm == "eagle" and spec.draft)
    return DecodeModel(
        spec, parallel, kv, n_draft_tok, n_draft_forwards=0 if is_draftless else facts.get("num_draft_steps"),
        captured_batch_sizes=captured_requests(facts, n_draft_tok), said=(*said, *kv_said),
    )


def _format_in_name(facts: Facts, formats: Mapping[str, WeightFormat]) -> tuple[str, str] | None:
    """Return (word, format) that a name of the model holds; None where the configuration or the server says one."""
    if str(facts.get("quantization") or "auto").lower() not in ("auto", "none"):
        return None
    if any(formats[role].name not in quantisation.PLAIN for role in quantisation.LEVER_ROLES):
        return None
    args = facts.get("args") or {}
    names = [str(name) for name in (facts.get("model"), args.get("model_path"), args.get("model")) if name]
    words = "".join(c if c.isalnum() else " " for c in " ".join(names).lower()).split()
    return next(((word, NAME_FORMATS[word]) for word in words if word in NAME_FORMATS), None)


def find_spec(facts: Facts) -> ModelSpec:
    """Return the model of the facts: its configuration, or the catalogue's by name."""
    config = facts.get("model_config")
    if isinstance(config, str) and config in models.names():  # a shape by name, whatever the log calls the model
        return models.find(config)
    if config is not None and not isinstance(config, str | Path | Mapping):
        raise RooflogError("model_config: expected the path of a config.json or its content as an object, found "
                           f"{config!r}")
    if config is not None:
        return read_config(config, name=str(facts.get("model") or ""))
    return models.find(str(facts.get("model")))


def model_facts(model: str) -> dict[str, Any]:
    """Return the fact that a name on a command line states: a configuration if there is such a file, else a model."""
    path = Path(model).expanduser()
    try:
        is_path = bool(model) and (path.exists() or model.endswith(".json"))
    except (OSError, ValueError):  # no path: too long, or with characters that none can have
        is_path = False
    return {"model_config": str(path), "model": path.name} if is_path else {"model": model}


def told(context: str | Path | Mapping[str, Any] | None = None, **given: Any) -> dict[str, Any]:
    """Put facts given one by one beside those of a context; empty text, zero and an empty list are not given.

    Parameters
    ----------
    context : as for `facts.read_context`
        Wins where both say something.
    **given
        Facts by name; ``model`` may be the path of a configuration.

    Returns
    -------
    dict
        Facts, not yet checked.
    """
    known = {name: value for name, value in given.items() if value not in ("", 0, None, [], {})}
    if "model" in known:
        known |= model_facts(known.pop("model"))
    return known | read_context(context)


def unusable(context: str | Path | Mapping[str, Any] | None) -> list[str]:
    """Return a sentence for each fact of a context that cannot be used, and for hardware that no catalogue has.

    Parameters
    ----------
    context : as for `facts.read_context`

    Raises
    ------
    LogFormatError
        The context cannot be read.
    """
    facts = merge_facts(None, context)
    said = [f"{key} (--context): {reason}" for key, reason in facts.unused.items()]
    try:
        if facts.get("hardware") is not None:
            hardware.find(facts.get("hardware"))
    except RooflogError as error:
        said.append(f"hardware (--context): {error}")
    return said


def parallel_of(facts: Facts) -> Parallel:
    """Return the degrees as the physics counts them.

    SGLang counts the ranks of data-parallel attention into ``tp``; vLLM has ``tp`` per data-parallel rank, and deals
    experts out over all of them under expert parallelism.
    """
    tp, dp, pp, ep = (facts.get(name) or 1 for name in ("tp", "dp", "pp", "ep"))
    if facts.get("engine") == "vllm" and dp > 1 and ep > 1:
        return Parallel(tp=tp * dp, dp=dp, pp=pp, ep=tp * dp, dp_attention=True)
    return Parallel(tp=tp, dp=dp, pp=pp, ep=ep, dp_attention=bool(facts.get("dp_attention")) and dp > 1)


def draft_tokens(facts: Facts) -> int:
    """Return draft tokens per round without the root: SGLang counts it in, vLLM does not."""
    told = facts.get("num_draft_tokens") or 0
    return max(told - 1, 0) if facts.get("engine") == "sglang" else told


def captured_requests(facts: Facts, n_draft_tok: int) -> tuple[int, ...]:
    """Return captured batch sizes in requests; vLLM captures tokens, and a request brings a round's tokens at once."""
    if facts.get("cuda_graph_enabled") is False:
        return ()
    sizes = [int(size) for size in facts.get("captured_batch_sizes") or []]
    if facts.get("engine") == "vllm" and n_draft_tok:
        sizes = [size // (n_draft_tok + 1) for size in sizes]
    return tuple(sorted({size for size in sizes if size > 0}))


def _kv(facts: Facts) -> tuple[KvFormat | None, tuple[str, ...]]:
    name = facts.get("kv_cache_dtype")
    if name is None:
        return None, ()
    found = quantisation.kv_format(str(name))
    return found, () if found is None else (f"keys and values in {found.name}: the server was started so",)

