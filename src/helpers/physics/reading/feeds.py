"""From the keys of a config.json to the feed of every layer."""

from __future__ import annotations

from helpers.physics.model.feeds import Dense, Experts
from helpers.physics.model.spec import Feed
from helpers.physics.reading.families import Family
from helpers.physics.reading.keys import Keys

N_EXPERTS = ("n_routed_experts", "num_experts", "num_local_experts")
N_ACTIVE = ("num_experts_per_tok", "top_k_experts", "experts_per_token")
MAX_EXPERTS = 100_000
"""Of one layer; published ones have a few hundred, and degrees of parallelism are looked for among all of them."""

_DENSE, _SPARSE, _HASH = "dense", "sparse", "hash_moe"
_KINDS = {_DENSE: _DENSE, _SPARSE: _SPARSE, "moe": _SPARSE, _HASH: _HASH}
_UNGATED = ("relu2", "relu_squared", "squared_relu")


def has_experts(keys: Keys) -> bool:
    """Tell whether the configuration knows routed experts."""
    is_on = keys.flag("enable_moe_block", True)
    return is_on and any(keys.count(name, default=0, at_least=0) > 0 for name in N_EXPERTS)


def read_feeds(keys: Keys, family: Family, n_layers: int) -> list[Feed]:
    """Return the feed of each layer of the stack.

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
    list of Feed, length ``n_layers``

    Raises
    ------
    RooflogError
        A key is missing or impossible.
    """
    kinds = _kinds(keys, n_layers)
    keys.value("intermediate_size")  # without a dense layer it describes nothing
    widths = keys.width_of_layers(_dense_key(keys, family), n_layers) if _DENSE in kinds else [0] * n_layers
    doubled_from = n_layers - keys.count("num_kv_shared_layers", default=0, at_least=0)
    is_doubled = keys.flag("use_double_wide_mlp")
    return [dense(keys, width * (2 if is_doubled and index >= doubled_from else 1)) if kind == _DENSE
            else experts(keys, family, is_hash_routed=kind == _HASH)
            for index, (kind, width) in enumerate(zip(kinds, widths, strict=True))]


def draft_feed(keys: Keys, family: Family) -> Feed:
    """Return the feed of a built-in draft layer: experts where the model has any."""
    return experts(keys, family) if has_experts(keys) else dense(keys, keys.count(_dense_key(keys, family)))


def _dense_key(keys: Keys, family: Family) -> str:
    return family.dense_width_key if keys.has(family.dense_width_key) else "intermediate_size"


def _kinds(keys: Keys, n_layers: int) -> list[str]:
    if not has_experts(keys):
        return [_DENSE] * n_layers
    listed = keys.per_layer("mlp_layer_types", n_layers)
    if listed is not None:
        unknown = sorted({str(kind) for kind in listed} - {*_KINDS})
        if unknown:
            raise keys.fail(f"mlp_layer_types among {', '.join(_KINDS)}", ", ".join(unknown))
        keys.value("first_k_dense_replace")
        keys.value("moe_layer_freq")
        return [_KINDS[kind] for kind in listed]
    n_hash = keys.count("num_hash_layers", default=0, at_least=0)
    sparse = _sparse_layers(keys, n_layers)
    return [(_HASH if index < n_hash else _SPARSE) if index in sparse else _DENSE for index in range(n_layers)]


def _sparse_layers(keys: Keys, n_layers: int) -> set[int]:
    """Return the layers with experts: DeepSeek counts from 0, Qwen and Llama 4 from 1."""
    first = keys.count("first_k_dense_replace", default=0, at_least=0)
    if isinstance(keys.values.get("moe_layer_freq"), list):
        flags = keys.per_layer("moe_layer_freq", n_layers) or []
        return {index for index, flag in enumerate(flags) if flag}
    every = keys.count("moe_layer_freq", default=1)
    step = keys.count("decoder_sparse_step", "interleave_moe_layer_step", default=1)
    dense_only = set(keys.value("mlp_only_layers") or ())
    return {index for index in range(first, n_layers)
            if index % every == 0 and (index + 1) % step == 0 and index not in dense_only}


def dense(keys: Keys, width: int, role: str = "dense_mlp") -> Dense:
    """Return a dense network of the inner width."""
    return Dense(width, _n_matrices(keys), role, keys.flag("mlp_bias"))


def _n_matrices(keys: Keys) -> int:
    activation = keys.value("mlp_hidden_act", "hidden_act", "hidden_activation")
    return 2 if activation in _UNGATED else 3


def experts(keys: Keys, family: Family, is_hash_routed: bool = False) -> Experts:
    """Return routed experts with what stands beside them."""
    n_experts, n_active = keys.count(*N_EXPERTS, at_most=MAX_EXPERTS), keys.count(*N_ACTIVE)
    if n_active > n_experts:
        raise keys.fail(f"{N_ACTIVE[0]} of at most {n_experts} experts", n_active)
    width = keys.count("moe_intermediate_size" if keys.has("moe_intermediate_size") else "intermediate_size")
    hidden = keys.count("hidden_size")
    beside = family.is_dense_beside
    return Experts(
        n_experts=n_experts,
        n_active=n_active,
        intermediate=width,
        n_matrices=_n_matrices(keys),
        has_bias=family.has_expert_bias,
        router_vectors=0 if is_hash_routed else _router_vectors(keys, family),
        router_params=hidden if beside else 0,  # Gemma 4 scales the router's input and each expert
        shared=_shared(keys, family, width),
        has_shared_gate=keys.count("shared_expert_intermediate_size", default=0, at_least=0) > 0,
        latent=keys.count("moe_latent_size") if keys.has("moe_latent_size") else None,
        is_hash_routed=is_hash_routed,
    )


def _router_vectors(keys: Keys, family: Family) -> int:
    is_corrected = keys.value("topk_method") == "noaux_tc" or keys.flag("use_routing_bias")
    return max(family.router_vectors, int(is_corrected))


def _shared(keys: Keys, family: Family, width: int) -> Dense | None:
    """Return the network every token uses beside the experts; its width goes by four names."""
    if family.is_dense_beside:
        return dense(keys, keys.count(family.dense_width_key))
    n_shared = keys.count("n_shared_experts", "num_shared_experts", default=int(family.has_shared_expert), at_least=0)
    own = keys.count("shared_expert_intermediate_size", "shared_intermediate_size", default=0, at_least=0)
    each = keys.count("moe_shared_expert_intermediate_size", default=width)
    total = own or n_shared * each
    return dense(keys, total, "shared_experts") if total else None
