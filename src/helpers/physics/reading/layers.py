"""From the keys of a config.json to the layers: mixer, feed, norms and what stands beside them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from helpers.physics.model.feeds import Experts
from helpers.physics.model.spec import Feed, Layer, Mixer, Weights
from helpers.physics.reading.families import Family
from helpers.physics.reading.feeds import dense, draft_feed, experts, read_feeds
from helpers.physics.reading.keys import Keys
from helpers.physics.reading.mixers import draft_mixer, grouped, mamba2, read_mixers

_BLOCK_NAMES = {"mamba": "M", "attention": "*", "mlp": "-", "moe": "E"}
_HYBRID_KEYS = ("hybrid_override_pattern", "layers_block_type")
_N_DRAFT_MODULES = ("num_nextn_predict_layers", "num_mtp_modules")
_N_DRAFT_LAYERS = ("mtp_num_hidden_layers", "mtp_transformer_layers")

MAX_LAYERS = 10_000
"""Layers are listed one by one; the deepest published stacks have a few hundred."""


def read_layers(keys: Keys, family: Family) -> tuple[Layer, ...]:
    """Return the stack, equal layers counted together.

    Parameters
    ----------
    keys : Keys
        Of the text model.
    family : Family
        Its conventions.

    Returns
    -------
    tuple of Layer

    Raises
    ------
    RooflogError
        A key is missing or impossible, or a layer is of a kind that is not known.
    """
    if keys.has(*_HYBRID_KEYS):
        return _counted(_block(keys, family, letter) for letter in _pattern(keys))
    n_layers = keys.count("num_hidden_layers", at_most=MAX_LAYERS)
    pairs = zip(read_mixers(keys, family, n_layers), read_feeds(keys, family, n_layers), strict=True)
    return _counted(_layer(keys, family, mixer, feed) for mixer, feed in pairs)


def _counted(layers: Iterable[Layer]) -> tuple[Layer, ...]:
    return tuple(replace(layer, count=count) for layer, count in Counter(layers).items())


def _layer(keys: Keys, family: Family, mixer: Mixer, feed: Feed) -> Layer:
    hidden = keys.count("hidden_size")
    n_norms = family.n_norms
    if family.is_dense_beside and isinstance(feed, Experts):
        n_norms += 3  # Gemma 4 norms the experts' input, their output, and the dense network's
    is_scaled = int(family.is_dense_beside)
    return Layer(mixer, feed, n_norms * hidden + is_scaled, extra=_beside(keys, hidden))


def _pattern(keys: Keys) -> str:
    listed = keys.value("hybrid_override_pattern") or keys.value("layers_block_type")
    pattern = listed if isinstance(listed, str) else "".join(_BLOCK_NAMES.get(str(name), "?") for name in listed)
    keys.value("intermediate_size")  # a pattern without mlp layers has no use for it
    n_layers = keys.count("num_hidden_layers", default=len(pattern))
    unknown = set(pattern) - {*_BLOCK_NAMES.values()}
    if unknown or len(pattern) != n_layers:
        raise keys.fail(f"a pattern of {n_layers} layers out of M (mamba), * (attention), - (mlp), E (experts)",
                        repr(listed))
    return pattern


def _block(keys: Keys, family: Family, letter: str) -> Layer:
    """Return a layer that is a mixer or a feed, as in Nemotron-H."""
    mixer = mamba2(keys) if letter == "M" else grouped(keys, family) if letter == "*" else None
    feed: Feed | None = None
    if letter in "-E":
        feed = experts(keys, family) if letter == "E" else dense(keys, keys.count("intermediate_size"))
    return Layer(mixer, feed, keys.count("hidden_size"))


def _beside(keys: Keys, hidden: int) -> tuple[Weights, ...]:
    """Return the weights of a layer that belong to neither mixer nor feed."""
    parts: list[Weights] = []
    if keys.has("hc_mult"):
        streams = keys.count("hc_mult")
        mixes = (2 + streams) * streams  # one row per stream in, out, and per pair of streams
        parts.append(Weights("residual_mix", 2 * (mixes * streams * hidden + mixes + 3), 1))
    if keys.count("hidden_size_per_layer_input", default=0, at_least=0):
        width = keys.count("hidden_size_per_layer_input")
        parts += [Weights("dense_mlp", 2 * hidden * width, 1), Weights("norm", hidden, 1)]
    if keys.has("altup_num_inputs"):
        n, rank = keys.count("altup_num_inputs"), keys.count("laurel_rank")
        altup = n * n * n + n * n + hidden * n + 2 * hidden
        parts.append(Weights("residual_mix", altup + 2 * hidden * rank + hidden, 1))
    return tuple(parts)


def read_final(keys: Keys) -> tuple[Weights, ...]:
    """Return what stands outside the layers and is read once per forward: the last norm, projections of streams."""
    hidden = keys.count("hidden_size")
    parts = [Weights("norm", hidden, 1), *_stream_head(keys, hidden)]
    width = keys.count("hidden_size_per_layer_input", default=0, at_least=0)
    if width:
        n_layers = keys.count("num_hidden_layers")
        parts += [Weights("dense_mlp", hidden * n_layers * width, 1), Weights("norm", width, 1)]
        rows = keys.count("vocab_size_per_layer_input", default=keys.count("vocab_size"))
        keys.assume(f"the table of per-layer embeddings ({rows * n_layers * width:.3g} parameters) is looked up, not "
                    "read: it is in no count")
    if keys.has("altup_num_inputs"):
        parts.append(Weights("residual_mix", 2 * (keys.count("altup_num_inputs") - 1) * hidden * hidden, 1))
    return tuple(parts)


def _stream_head(keys: Keys, hidden: int) -> tuple[Weights, ...]:
    """Return the mix of the residual's streams before the head (DeepSeek-V4)."""
    if not keys.has("hc_mult"):
        return ()
    streams = keys.count("hc_mult")
    return (Weights("residual_mix", streams * streams * hidden + streams + 1, 1),)


def read_draft(keys: Keys, family: Family) -> tuple[tuple[Layer, ...], tuple[Weights, ...], Mapping[str, str]]:
    """Return the built-in draft model.

    Parameters
    ----------
    keys : Keys
        Of the text model.
    family : Family
        Its conventions.

    Returns
    -------
    layers : tuple of Layer
        Those of one module: what one forward of the draft runs. Empty where the model has none.
    extra : tuple of Weights
        The projection of embedding and residual to one, and the norms around.
    notes : mapping
        ``draft_modules``: how many modules the checkpoint has, where more than one.
    """
    n_modules = keys.count(*_N_DRAFT_MODULES, default=0, at_least=0, at_most=MAX_LAYERS)
    n_layers = keys.count(*_N_DRAFT_LAYERS, default=1 if n_modules else 0, at_least=0, at_most=MAX_LAYERS)
    pattern = keys.value("mtp_hybrid_override_pattern")
    if not keys.flag("use_mtp", True) or not n_layers:
        return (), (), {}
    hidden = keys.count("hidden_size")
    layers = (_counted(_block(keys, family, letter) for letter in pattern) if pattern
              else _counted(_draft_layers(keys, family, n_layers)))
    extra = (Weights("draft", 2 * hidden * hidden), Weights("norm", 3 * hidden, 1), *_stream_head(keys, hidden))
    return layers, extra, {"draft_modules": str(n_modules)} if n_modules > 1 else {}


def _draft_layers(keys: Keys, family: Family, n_layers: int) -> Sequence[Layer]:
    mixer = draft_mixer(keys, family, keys.count("num_hidden_layers"))
    return [_layer(keys, family, mixer, draft_feed(keys, family))] * n_layers
