"""From the quantisation of a config.json to one number format per role, and what a server's arguments change.

`quantisation_methods` reads what a method says, `module_names` which modules its lists mean; here every role gets
the format of most of its parameters. Embedding, head, router and norms keep the model's dtype unless a list names
them; what has to be assumed is said.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from helpers.physics.model.formats import FORMATS, KV_FORMATS, KvFormat, WeightFormat
from helpers.physics.model.spec import ROLES
from helpers.physics.reading.methods import EXPERTS, PROJECTIONS, Scheme, read_scheme
from helpers.physics.reading.module_names import Listing, draft_count, is_elsewhere, modules
from helpers.schema import LogFormatError, RooflogError

LEVER_ROLES = frozenset({"attention", "linear_attention", "dense_mlp", "routed_experts", "shared_experts"})
"""Roles that a what-if of the weight format changes."""

NEGLIGIBLE_FRAC = 0.005
"""Share of a role's bytes below which other formats inside it are not worth a sentence."""

_TEXT_KEYS = ("text_config", "llm_config", "language_config")
_DTYPES = {
    "bfloat16": "bf16", "bf16": "bf16", "float16": "fp16", "half": "fp16", "fp16": "fp16", "float32": "fp32",
    "float": "fp32", "fp32": "fp32",
}
_KV_NAMES = {
    **_DTYPES, "fp8": "fp8", "fp8_e4m3": "fp8", "fp8_e5m2": "fp8", "float8_e4m3fn": "fp8", "float8_e4m3fnuz": "fp8",
    "float8_e5m2": "fp8", "fp8_inc": "fp8", "int8": "int8", "nvfp4": "nvfp4", "fp4": "nvfp4", "fp4_e2m1": "nvfp4",
    "float4_e2m1fn_x2": "nvfp4",
}
_SERVER_FORMATS = {  # --quantization of a server, on a checkpoint that says nothing itself
    "fp8": "fp8", "w8a8_fp8": "fp8", "fbgemm_fp8": "fp8", "ptpc_fp8": "fp8", "modelopt": "fp8", "modelopt_fp8": "fp8",
    "modelopt_fp4": "nvfp4", "nvfp4": "nvfp4", "mxfp8": "mxfp8", "mxfp4": "mxfp4_weight_only", "fp4": "nvfp4",
    "petit_nvfp4": "nvfp4_weight_only",
    "awq": "int4_g128_zeros", "awq_marlin": "int4_g128_zeros", "gptq": "int4_g128", "gptq_marlin": "int4_g128",
    "w8a8_int8": "int8", "int8": "int8", "experts_int8": "int8_weight_only", "bitsandbytes": "nf4_g64",
}
_EXPERTS_ONLY = frozenset({"mxfp4", "experts_int8"})
MIXED = " mixed"
"""End of the name of a format that is a mean over the parameters of a role."""

PLAIN = frozenset({"bf16", "fp16", "fp32"})
"""Formats of weights that were not quantised."""


def read_formats(
    config: Mapping[str, Any], sidecar: Mapping[str, Any] | None = None,
) -> tuple[dict[str, WeightFormat], KvFormat, tuple[str, ...]]:
    """Read the format of every role, and of the cache, from a model's configuration.

    Parameters
    ----------
    config : mapping
        The whole config.json; text model and ``quantization_config`` may be nested. A catalogue file may carry
        ``_formats`` (role -> format name) and ``_kv_format``, which win.
    sidecar : mapping, optional
        hf_quant_config.json of the same checkpoint; ``_hf_quant_config`` of the configuration by default. The
        configuration wins where both speak.

    Returns
    -------
    formats : dict
        Role -> format, for every role of `helpers.physics.model.spec.ROLES`.
    kv : KvFormat
        Format of the cache if the server is not told otherwise.
    assumptions : tuple of str
        What was assumed, and its effect.

    Raises
    ------
    LogFormatError
        ``_formats`` or ``_kv_format`` names an unknown role or format, or the quantisation is not a mapping.

    Notes
    -----
    Where a list names only part of a role, its bytes are the mean over its parameters, its products run as those of
    most of them, and an assumption says the share. Residual mixing of DeepSeek-V4 (``hc_mult``) is FP32, as in its
    public implementation.

    Examples
    --------
    >>> formats, kv, assumptions = read_formats({"torch_dtype": "float16"})
    >>> formats["attention"].name, kv.name, assumptions
    ('fp16', 'fp16', ())
    """
    text = next((config[key] for key in _TEXT_KEYS if isinstance(config.get(key), Mapping)), config)
    given = _given(config)
    notes: list[str] = []
    dtype = _model_dtype(text, config, notes if not set(ROLES) <= set(given) else [])
    formats = dict.fromkeys(ROLES, FORMATS[dtype])
    if text.get("hc_mult"):
        formats["residual_mix"] = FORMATS["fp32"]
    scheme = None if set(given) >= PROJECTIONS else _scheme(text, config, sidecar, notes)
    if scheme is not None:
        formats |= _by_role(scheme, text, FORMATS[dtype], notes, frozenset(given))
        notes += scheme.notes
    if "routed_experts" not in given and "fp4" in str(text.get("expert_dtype", "")):
        _override_experts(formats, scheme, text, notes)
    kv = scheme.kv if scheme is not None and scheme.kv is not None else KV_FORMATS[dtype]
    return formats | given, _given_kv(config) or kv, tuple(dict.fromkeys(notes))


def kv_format(name: str | None) -> KvFormat | None:
    """Return the format of the cache that a server's argument names; None means "as the model says".

    Parameters
    ----------
    name : str or None
        For example ``fp8_e5m2``, ``torch.bfloat16``, ``nvfp4``; ``auto``, empty and None mean as the model says.

    Raises
    ------
    RooflogError
        The name is not known.
    """
    word = _word(name)
    if word in ("", "auto", "none"):
        return None
    if word not in _KV_NAMES:
        raise RooflogError(f"kv_cache_dtype: expected one of auto, {', '.join(sorted(_KV_NAMES))}; found {name!r}")
    return KV_FORMATS[_KV_NAMES[word]]


def weight_formats(name: str, formats: Mapping[str, WeightFormat] | None = None) -> dict[str, WeightFormat]:
    """Put the projections of attention, dense layers and experts into one format: the lever of a what-if.

    Parameters
    ----------
    name : str
        A name of `FORMATS`.
    formats : mapping, optional
        Role -> format now; roles outside `LEVER_ROLES` keep theirs. BF16 by default.

    Raises
    ------
    RooflogError
        The name is not known.
    """
    if name not in FORMATS:
        raise RooflogError(f"weight format: expected one of {', '.join(FORMATS)}; found {name!r}")
    now = dict(formats) if formats is not None else dict.fromkeys(ROLES, FORMATS["bf16"])
    return now | dict.fromkeys(LEVER_ROLES, FORMATS[name])


def apply_dtype(
    formats: Mapping[str, WeightFormat], dtype: str | None = None, quantization: str | None = None,
) -> tuple[dict[str, WeightFormat], tuple[str, ...]]:
    """Apply the ``dtype`` and ``quantization`` arguments of a server to the formats of the configuration.

    Parameters
    ----------
    formats : mapping
        Role -> format, from `read_formats`.
    dtype : str, optional
        For example ``bfloat16``, ``torch.float16``; ``auto`` and None change nothing. Roles in BF16 or FP16 follow.
    quantization : str, optional
        For example ``fp8``, ``awq``, ``modelopt_fp4``, ``compressed-tensors``; ``auto`` and None change nothing. On
        a checkpoint that is quantised the configuration knows more and stays; on one that is not, `PROJECTIONS`
        get the format of that name.

    Returns
    -------
    formats : dict
        Role -> format.
    assumptions : tuple of str
        What was assumed.
    """
    result, notes = dict(formats), []
    word = _word(dtype)
    if word not in ("", "auto", "none"):
        if word in _DTYPES:
            plain = FORMATS[_DTYPES[word]]
            result |= {role: plain for role, old in formats.items() if old.name in ("bf16", "fp16")}
        else:
            notes.append(f"dtype {dtype!r} of the server is not known: the configuration's dtype is kept")
    method = _word(quantization).replace("-", "_")
    if method in ("", "auto", "none"):
        return result, tuple(notes)
    quantised = {role: item for role, item in formats.items() if role in PROJECTIONS and item.name not in PLAIN}
    named = FORMATS.get(_SERVER_FORMATS.get(method, ""))
    if quantised:
        if named and all(_width(item) != _width(named) for item in quantised.values()):
            found = ", ".join(sorted({item.name for item in quantised.values()}))
            notes.append(f"the server says quantization {quantization!r}, the configuration {found}: the "
                         "configuration is kept; check that it is the model that was served")
    elif named:
        roles = EXPERTS if method in _EXPERTS_ONLY else PROJECTIONS
        result |= dict.fromkeys(roles, named)
        notes.append(f"the server says quantization {quantization!r} and the configuration nothing: "
                     f"{'the routed experts' if roles == EXPERTS else 'every projection of the layers'} counted as "
                     f"{named.name}")
    else:
        notes.append(f"the server says quantization {quantization!r}, whose formats are in no file read here: weights "
                     "counted in the configuration's dtype; their bytes are too high if they are quantised")
    return result, tuple(notes)


def _width(item: WeightFormat) -> int:
    """Return 1 for 4 bits, 2 for 8, whatever the scales add."""
    return int(2 * item.bytes_per_param)


def _given(config: Mapping[str, Any]) -> dict[str, WeightFormat]:
    given = config.get("_formats") or {}
    unknown = [f"{role}: {name}" for role, name in given.items() if role not in ROLES or name not in FORMATS]
    if unknown:
        raise LogFormatError(f"_formats: expected roles of {', '.join(ROLES)} and formats of {', '.join(FORMATS)}; "
                             f"found {'; '.join(unknown)}")
    return {role: FORMATS[name] for role, name in given.items()}


def _given_kv(config: Mapping[str, Any]) -> KvFormat | None:
    name = config.get("_kv_format")
    if name is not None and name not in KV_FORMATS:
        raise LogFormatError(f"_kv_format: expected one of {', '.join(KV_FORMATS)}; found {name!r}")
    return KV_FORMATS[name] if name is not None else None


def _model_dtype(text: Mapping[str, Any], config: Mapping[str, Any], notes: list[str]) -> str:
    found = next((place[key] for place in (text, config) for key in ("dtype", "torch_dtype") if place.get(key)), None)
    if _word(found) in _DTYPES:
        return _DTYPES[_word(found)]
    what = "dtype: not in the configuration" if found is None else f"dtype {found!r} is not known"
    notes.append(f"{what}; BF16 assumed (2 bytes per parameter) for whatever is not quantised")
    return "bf16"


def _word(name: object) -> str:
    return "" if name is None else str(name).strip().lower().removeprefix("torch.")


def _scheme(
    text: Mapping[str, Any], config: Mapping[str, Any], sidecar: Mapping[str, Any] | None, notes: list[str],
) -> Scheme | None:
    """Read the quantisation wherever it stands; the cache's format also from the sidecar."""
    main = next((place[key] for place in (text, config) for key in ("quantization_config", "compression_config")
                 if place.get(key)), None)
    side = sidecar if sidecar is not None else config.get("_hf_quant_config")
    main, side = (_inner(part) for part in (main, side))
    if main is None and side is None:
        return None
    if main is None:
        return read_scheme(side or {})
    scheme = read_scheme(main)
    if side is None:
        return scheme
    beside = read_scheme(side)
    for what, ours, theirs in (("weights", scheme.default, beside.default), ("cache", scheme.kv, beside.kv)):
        if ours is not None and theirs is not None and ours != theirs:
            notes.append(f"config.json says {ours.name} for the {what}, hf_quant_config.json {theirs.name}: "
                         "config.json counted")
    unlike = dict(scheme.named).keys() & dict(beside.named).keys()
    unlike = {name for name in unlike if dict(scheme.named)[name] != dict(beside.named)[name]}
    if unlike:
        notes.append(f"config.json and hf_quant_config.json give {len(unlike)} modules different formats (first: "
                     f"{min(unlike)}): config.json counted")
    return scheme if scheme.kv is not None else replace(scheme, kv=beside.kv)


def _inner(found: Any) -> Mapping[str, Any] | None:
    if found is None or found == {}:
        return None
    if not isinstance(found, Mapping):
        raise LogFormatError(f"quantization_config: expected an object, found {found!r}")
    inner = found.get("quantization")
    return inner if isinstance(inner, Mapping) else found


def _by_role(
    scheme: Scheme, text: Mapping[str, Any], dtype: WeightFormat, notes: list[str], given: frozenset[str],
) -> dict[str, WeightFormat]:
    """Decide every role by the parameters of its modules."""
    listing = Listing(modules(text))
    positions = _positions(listing, scheme, notes)
    shares: dict[str, dict[WeightFormat, float]] = defaultdict(lambda: defaultdict(float))
    for index, module in enumerate(listing.modules):
        shares[module.role][_format_of(index, module.role, scheme, positions, dtype)] += module.n_params
    result = {role: scheme.default or scheme.beneath or dtype for role in scheme.roles}
    for role, share in shares.items():
        result[role], said = _mixed(role, share)
        notes += said if role not in given else []
    return result


def _positions(listing: Listing, scheme: Scheme, notes: list[str]) -> tuple[set[int], dict[int, WeightFormat]]:
    """Return the modules left out, and those named with a format of their own."""
    unread, strange = [], []

    def named(entry: str) -> set[int]:
        found = listing.named(entry)
        if found is None:
            unread.append(entry)
        elif not found and not is_elsewhere(entry):
            strange.append(entry)
        return found or set()

    excluded: set[int] = set().union(*(named(entry) for entry in scheme.excluded))
    own: dict[int, WeightFormat] = {}
    for entry, found in scheme.named:
        own |= dict.fromkeys(named(entry), found)
    if unread:
        notes.append(f"quantisation lists: {len(unread)} expressions not read (first: {unread[0]!r}); "
                     "the modules they name are counted as if not named")
    if strange:
        notes.append(f"quantisation lists: {len(strange)} entries name no module known here (first: {strange[0]!r}); "
                     "they are left out")
    return excluded, own


def _format_of(
    index: int, role: str, scheme: Scheme, positions: tuple[set[int], dict[int, WeightFormat]], dtype: WeightFormat,
) -> WeightFormat:
    excluded, own = positions
    if role == "norm":  # an expression for a whole block means its matrices
        return dtype
    if index in own and index not in excluded:
        return own[index]
    if role in scheme.roles and index not in excluded and scheme.default is not None:
        return scheme.default
    return (scheme.beneath or dtype) if role in PROJECTIONS else dtype


def _mixed(role: str, share: Mapping[WeightFormat, float]) -> tuple[WeightFormat, list[str]]:
    """Return the format of a role: the most common one, with the mean bytes where parts of the role have another."""
    chosen = max(share, key=lambda item: share[item])
    total = sum(share.values())
    mean = sum(item.bytes_per_param * part for item, part in share.items()) / total if total else 0.0
    if not total or abs(mean / chosen.bytes_per_param - 1) < NEGLIGIBLE_FRAC:
        return chosen, []
    said = (f"{role}: {share[chosen] / total:.0%} of the parameters are {chosen.name}; all are counted with the mean "
            f"of {mean:.3g} bytes and multiplied as {chosen.name}")
    return WeightFormat(f"{chosen.name}{MIXED}", mean, chosen.compute), [said]


def _override_experts(
    formats: dict[str, WeightFormat], scheme: Scheme | None, text: Mapping[str, Any], notes: list[str],
) -> None:
    """Apply ``expert_dtype`` (DeepSeek-V4) unless the quantisation has put the experts into 4 bits already."""
    if formats["routed_experts"].bytes_per_param >= 1:
        formats["routed_experts"] = FORMATS["mxfp4_w4a8" if scheme is not None else "mxfp4_weight_only"]
    if draft_count(text):
        notes.append(f"expert_dtype fp4: applied to the experts of the main stack; draft layers counted as "
                     f"{formats['draft'].name} (their experts may be 4 bits as well)")
