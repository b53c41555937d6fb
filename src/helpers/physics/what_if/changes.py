"""One change of a deployment at a time, as pure functions, and whether the result fits into the memory."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from helpers.physics.catalogue.hardware import Hardware
from helpers.physics.model.formats import KvFormat
from helpers.physics.model.spec import Mixer, ModelSpec, Weights
from helpers.physics.reading.config import check_parallel
from helpers.physics.reading.quantisation import kv_format, weight_formats
from helpers.physics.steps.decode import DecodeModel, without_speculation
from helpers.physics.steps.demand import Parallel
from helpers.physics.steps.hand import HandModel
from helpers.schema import RooflogError

USABLE_MEM_FRAC = 0.9
"""Share of the memory that servers fill with weights and cache unless told otherwise [1] (vLLM 0.9, SGLang about
0.88); the rest is for activations and graphs."""

LONG_TOK = 1e6  # a context at which windows and blocks no longer matter to a ratio

FEED_ROLES = ("dense_mlp", "shared_experts", "router", "embed", "head")
"""Roles that all ranks of a stage share; routed experts have ranks of their own, the rest those of attention."""


@dataclass(frozen=True)
class Setup:
    """What a step and its tokens depend on, beside the running requests.

    Attributes
    ----------
    model : DecodeModel or HandModel
    hardware : Hardware
    context_tok : float
        Mean context of a request [tok].
    accept_len : float
        Tokens per request and round [tok]; 1 without speculation.
    """

    model: DecodeModel | HandModel
    hardware: Hardware
    context_tok: float
    accept_len: float = 1.0


@dataclass(frozen=True)
class Change:
    """What should be different; None stays as it is.

    Attributes
    ----------
    weights : str
        Format of the projections and experts, a name of `formats.FORMATS`.
    kv : str
        Format of the cache, as servers write it.
    tp : int
        Tensor-parallel ranks.
    hardware : Hardware
    context_tok, accept_len : float
        [tok].
    captured_batch_sizes : tuple of int
        Empty: kernels run at the size of the batch.
    no_speculation : bool
        One token per request and step.
    """

    weights: str | None = None
    kv: str | None = None
    tp: int | None = None
    hardware: Hardware | None = None
    context_tok: float | None = None
    accept_len: float | None = None
    captured_batch_sizes: tuple[int, ...] | None = None
    no_speculation: bool = False


def apply(setup: Setup, change: Change) -> Setup:
    """Return the setup with a change.

    Parameters
    ----------
    setup : Setup
    change : Change

    Returns
    -------
    Setup
        Equal to ``setup`` where the change asks for what is there.

    Raises
    ------
    RooflogError
        A format that is not known, degrees that do not fit the model, an accept length outside 1 to the draft length
        + 1, a context that is not positive, or a change that needs the model's configuration where there is none.
    """
    model = setup.model
    if change.weights is not None:
        model = with_weights(model, change.weights)
    if change.kv is not None:
        model = with_kv(model, change.kv)
    if change.tp is not None:
        model = with_tp(model, change.tp)
    if change.captured_batch_sizes is not None:
        model = replace(_configured(model, "captured sizes"), captured_batch_sizes=change.captured_batch_sizes)
    if change.no_speculation:
        model = without_speculation(_configured(model, "no speculation"))
    context_tok = setup.context_tok if change.context_tok is None else change.context_tok
    if context_tok <= 0:
        raise RooflogError(f"context_tok: expected above 0 tok, found {context_tok:g}")
    accept_len = 1.0 if change.no_speculation else setup.accept_len
    if change.accept_len is not None:
        accept_len = _checked_accept_len(model, setup.accept_len, change.accept_len)
    return Setup(model, change.hardware or setup.hardware, context_tok, accept_len)


def with_weights(model: DecodeModel | HandModel, name: str) -> DecodeModel:
    """Return the model with projections and experts in another format; head, router, norms and draft stay."""
    model = _configured(model, f"weights in {name}")
    return replace(model, spec=replace(model.spec, formats=weight_formats(name, model.spec.formats)))


def with_kv(model: DecodeModel | HandModel, name: str) -> DecodeModel:
    """Return the model with its cache in another format."""
    found = kv_format(name)
    model = _configured(model, f"keys and values in {name}")
    return model if found == (model.kv or model.spec.kv) else replace(model, kv=found)


def with_tp(model: DecodeModel | HandModel, tp: int) -> DecodeModel | HandModel:
    """Return the model on other tensor-parallel ranks; experts dealt out over all of them stay so."""
    if isinstance(model, HandModel):
        return replace(model, tp=tp)
    parallel = model.parallel
    if parallel.dp_attention and tp != parallel.tp:
        raise RooflogError(f"tp {tp}: under data-parallel attention other ranks mean another load per rank; measure it")
    ep = tp if parallel.ep == parallel.tp else parallel.ep
    check_parallel(model.spec, tp, ep=ep)
    return replace(model, parallel=replace(parallel, tp=tp, ep=ep))


def _configured(model: DecodeModel | HandModel, what: str) -> DecodeModel:
    if isinstance(model, HandModel):
        raise RooflogError(f"{what}: expected a model with a configuration, found one given by a few bytes; give model "
                           "or model_config")
    return model


def _checked_accept_len(model: DecodeModel | HandModel, now_accept_len: float, accept_len: float) -> float:
    is_drafted = now_accept_len > 1 or (isinstance(model, DecodeModel) and model.n_draft_tok > 0)
    if accept_len > 1 and not is_drafted:
        raise RooflogError(f"accept_len: expected 1 where nothing is drafted, found {accept_len:g}; a draft and its "
                           "verification take time that was not measured: give num_draft_tokens, or measure it")
    most = model.n_draft_tok + 1 if isinstance(model, DecodeModel) and model.n_draft_tok else np.inf
    if not 1 <= accept_len <= most:
        raise RooflogError(f"accept_len: expected 1 to {most:g} (draft tokens + 1), found {accept_len:g}; a longer "
                           "draft makes a longer round")
    return accept_len


@dataclass(frozen=True)
class Room:
    """What one rank must hold, and what it can.

    Attributes
    ----------
    weight_bytes : float
        Stored weights, embedding and every expert included [bytes].
    kv_bytes_per_tok : float
        Cache of one more token of context [bytes/tok].
    needed_bytes, mem_bytes : float
        Weights and the cache asked for; memory of the accelerator, NaN where not known [bytes].
    kv_pool_tok : float
        Tokens of context that fit beside the weights into `USABLE_MEM_FRAC` of the memory [tok].
    fits : bool
        ``needed_bytes`` fit into the whole memory, or it is not known.
    sentence : str
        Why not, and what to do; empty where it fits.
    """

    weight_bytes: float
    kv_bytes_per_tok: float
    needed_bytes: float
    mem_bytes: float
    kv_pool_tok: float
    fits: bool
    sentence: str = ""


def fits_memory(
    spec: ModelSpec, parallel: Parallel, hardware: Hardware, kv_pool_tok: float | None = None, *,
    kv: KvFormat | None = None, has_draft: bool = False,
) -> Room:
    """Hold weights and cache of one rank against the accelerator's memory.

    Parameters
    ----------
    spec : ModelSpec
    parallel : Parallel
    hardware : Hardware
    kv_pool_tok : float, optional
        Tokens of context that must fit, all requests of one attention rank together [tok]; 0 by default.
    kv : KvFormat, optional
        Format of the cache; the configuration's by default.
    has_draft : bool
        The built-in draft layers are loaded.

    Returns
    -------
    Room
        Recurrent states, activations, graphs and a vision tower are left out: more is needed.
    """
    weights = stored_bytes(spec, parallel, has_draft=has_draft)
    per_tok = _kv_bytes_per_tok(spec, parallel, kv or spec.kv)
    needed = weights + per_tok * (kv_pool_tok or 0.0)
    memory = float("nan") if hardware.mem_bytes is None else hardware.mem_bytes
    left = max(USABLE_MEM_FRAC * memory - weights, 0.0)
    pool = left / per_tok if per_tok else np.inf
    fits = not needed > memory
    cache = f" and {per_tok * kv_pool_tok / 1e9:.4g} GB of cache for {kv_pool_tok:.4g} tok" if kv_pool_tok else ""
    sentence = "" if fits else (
        f"{spec.name}: expected at most the {memory / 1e9:.4g} GB of one {hardware.name}, found {weights / 1e9:.4g} GB "
        f"of weights per rank{cache} (tp {parallel.tp}, pp {parallel.pp}); more ranks, fewer bits or a larger memory")
    return Room(weights, per_tok, needed, memory, pool, fits, sentence)


def largest_kv_pool_tok(
    spec: ModelSpec, parallel: Parallel, hardware: Hardware, *, kv: KvFormat | None = None, has_draft: bool = False
) -> float:
    """Return the tokens of context that fit beside the weights [tok]; see `Room`."""
    return fits_memory(spec, parallel, hardware, kv=kv, has_draft=has_draft).kv_pool_tok


def stored_bytes(spec: ModelSpec, parallel: Parallel, *, has_draft: bool = False) -> float:
    """Return the weights that one rank holds [bytes]; pipeline stages are taken as equal."""
    table = spec.hidden * spec.vocab
    held = [*spec.stack(), (Weights("embed", table), 1)]
    held += [] if spec.is_tied else [(spec.head, 1)]
    total = sum(count * _rank_params(weights, parallel) * spec.formats[weights.role].bytes_per_param
                for weights, count in held) / parallel.pp
    if has_draft:
        draft = [(weights, layer.count) for layer in spec.draft for weights in layer.weights(spec.hidden)]
        total += spec.formats["draft"].bytes_per_param * sum(
            count * _rank_params(weights, parallel) for weights, count in
            [*draft, *((weights, 1) for weights in spec.draft_extra)])
    return total


def _rank_params(weights: Weights, parallel: Parallel) -> float:
    if weights.role == "routed_experts":
        return weights.per_rank(parallel.expert_ranks)
    return weights.per_rank(parallel.tp if weights.role in FEED_ROLES else parallel.attention_tp)


def _kv_bytes_per_tok(spec: ModelSpec, parallel: Parallel, kv: KvFormat) -> float:
    return sum(layer.count * layer.mixer.cell_bytes(kv) * _rank_share(layer.mixer, parallel.attention_tp, kv)
               for layer in spec.layers if layer.mixer is not None) / parallel.pp


def _rank_share(mixer: Mixer, tp: int, kv: KvFormat) -> float:
    """Share of one copy of the cache that a rank holds: what it reads over what one rank alone would."""
    context = np.array([LONG_TOK])
    whole = float(mixer.kv_bytes(context, 1, kv)[0])
    return float(mixer.kv_bytes(context, tp, kv)[0]) / whole if whole else 1.0
