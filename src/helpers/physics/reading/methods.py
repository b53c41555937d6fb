"""What each quantisation method says in a configuration, as the same few facts.

Methods: fp8, mxfp4, compressed-tensors, modelopt, awq, gptq, auto-round, bitsandbytes, quark, and plain names such
as w8a8_int8. Keys as transformers 5.24, compressed-tensors and NVIDIA ModelOpt write them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from helpers.physics.model.formats import FORMATS, KV_FORMATS, KvFormat, WeightFormat, block_fp8, grouped_int
from helpers.schema import LogFormatError

PROJECTIONS = frozenset({"attention", "linear_attention", "indexer", "compressor", "dense_mlp", "routed_experts",
                         "shared_experts", "draft"})
"""Roles that a method quantises if nothing else is said: the linear layers of the stack."""

EXPERTS = frozenset({"routed_experts"})
"""Roles of a method for experts only."""

_ALGORITHMS = {  # quant_algo of modelopt
    "FP8": "fp8", "FP8_PER_CHANNEL_PER_TOKEN": "fp8", "FP8_PB_WO": "fp8_block128", "FP8_PB_REAL": "fp8_block128",
    "MXFP8": "mxfp8", "NVFP4": "nvfp4", "NVFP4_AWQ": "nvfp4", "NVFP4_SVD": "nvfp4", "NVFP4_FP8_MHA": "nvfp4",
    "W4A16_NVFP4": "nvfp4_weight_only", "W4A8_NVFP4_FP8": "nvfp4_w4a8", "MXFP4": "mxfp4",
    "W4A8_MXFP4_FP8": "mxfp4_w4a8", "W4A16_MXFP4": "mxfp4_weight_only", "W4A8_AWQ": "int4_g128_w4a8",
    "W8A8_SQ_PER_CHANNEL": "int8", "INT8_SQ": "int8", "W8A16": "int8_weight_only",
}
_INT4_ALGORITHMS = ("W4A16_AWQ", "INT4_AWQ", "W4A16", "W4A16_GPTQ")
_KV_ALGORITHMS = {"FP8": "fp8", "INT8": "int8", "NVFP4": "nvfp4", "NVFP4_AFFINE": "nvfp4", "NVFP4_ROTATE": "nvfp4"}
_TELLING_KEYS = {"kv_cache_quant_algo": "modelopt", "config_groups": "compressed_tensors",
                 "load_in_4bit": "bitsandbytes", "load_in_8bit": "bitsandbytes", "global_quant_config": "quark"}
_MODULE_CLASSES = frozenset({"Linear", "FusedMoE", "LinearBase", "RoutedExperts"})
_EXCLUDED_KEYS = ("modules_to_not_convert", "ignored_layers", "ignore", "exclude_modules", "exclude",
                  "llm_int8_skip_modules")


@dataclass(frozen=True)
class Scheme:
    """What a quantisation says, whatever its method.

    Attributes
    ----------
    default : WeightFormat or None
        Format of the modules of `roles` that no list names; None: that of `beneath`.
    roles : frozenset of str
        Roles that it quantises without naming modules.
    named : tuple of (str, WeightFormat)
        Entries of lists with a format of their own; later ones win.
    excluded : tuple of str
        Entries of the modules that are left out; they win.
    beneath : WeightFormat or None
        Format of the projections that are left out; None: the model's dtype.
    kv : KvFormat or None
        Format of the cache; None: not said.
    notes : tuple of str
        What was assumed.
    """

    default: WeightFormat | None
    roles: frozenset[str] = PROJECTIONS
    named: tuple[tuple[str, WeightFormat], ...] = ()
    excluded: tuple[str, ...] = ()
    beneath: WeightFormat | None = None
    kv: KvFormat | None = None
    notes: tuple[str, ...] = ()


def read_scheme(quantisation: Mapping[str, Any]) -> Scheme:
    """Read a ``quantization_config``, or the ``quantization`` of a hf_quant_config.json.

    A method that is not known quantises nothing here and says so in ``notes``.

    Raises
    ------
    LogFormatError
        The values under the keys of the method are of another kind.
    """
    method = str(quantisation.get("quant_method") or "").lower().replace("-", "_")
    if quantisation.get("quant_algo") or quantisation.get("quantized_layers"):
        method = "modelopt"  # DeepSeek-V4 NVFP4 says quant_method fp8 as well
    if not method:
        method = next((name for key, name in _TELLING_KEYS.items() if key in quantisation), "")
    try:
        return _METHODS.get(method, _unknown)(quantisation)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise LogFormatError(f"quantization_config: expected the keys of quant_method {method!r}, found values that "
                             f"cannot be read as such ({error})") from error


def _excluded(quantisation: Mapping[str, Any]) -> tuple[str, ...]:
    found: list[str] = []
    for key in _EXCLUDED_KEYS:
        value = quantisation.get(key) or ()
        found += [value] if isinstance(value, str) else [str(entry) for entry in value]
    return tuple(dict.fromkeys(found))


def _fp8(quantisation: Mapping[str, Any]) -> Scheme:
    return Scheme(_fp8_format(quantisation), excluded=_excluded(quantisation))


def _fp8_format(quantisation: Mapping[str, Any]) -> WeightFormat:
    block = quantisation.get("weight_block_size")
    if not block:
        return FORMATS["fp8"]
    return block_fp8(int(block[0]), int(block[1]), has_ue8m0_scales=quantisation.get("scale_fmt") == "ue8m0")


def _mxfp4(quantisation: Mapping[str, Any]) -> Scheme:
    # Activations stay BF16 in the reference implementation; some servers quantise them to FP8 on Blackwell.
    return Scheme(FORMATS["mxfp4_weight_only"], EXPERTS, excluded=_excluded(quantisation))


def _integers(quantisation: Mapping[str, Any]) -> Scheme:
    """Read awq, gptq and auto-round: weight-only integers in groups."""
    is_awq = "awq" in str(quantisation.get("quant_method", "")).lower()
    n_bits = int(quantisation.get("bits") or quantisation.get("w_bit") or 4)
    size = quantisation.get("group_size", quantisation.get("q_group_size"))
    has_zeros = bool(quantisation.get("zero_point", True) if is_awq else not quantisation.get("sym", True))
    found = grouped_int(n_bits, 128 if size is None else int(size), has_zeros=has_zeros)
    notes = () if size is not None else (f"quantization_config: no group_size; 128 assumed for {n_bits}-bit weights",)
    own = {**(quantisation.get("dynamic") or {}), **(quantisation.get("extra_config") or {})}
    named = [("lm_head", found)] if quantisation.get("lm_head") else []
    excluded = list(_excluded(quantisation))
    for name, entry in own.items():
        entry_bits = int(entry.get("bits") or n_bits)
        if name.startswith("-:") or entry_bits >= 16:
            excluded.append(f"re:{name.removeprefix('-:')}" if name.startswith("-:") else name)
        else:
            group = int(entry.get("group_size") or size or 128)
            named.append((f"re:{name.removeprefix('+:')}" if name.startswith("+:") else name,
                          grouped_int(entry_bits, group, has_zeros=has_zeros)))
    return Scheme(found, named=tuple(named), excluded=tuple(excluded), notes=notes)


def _bitsandbytes(quantisation: Mapping[str, Any]) -> Scheme:
    nf4 = "nf4_g64_double" if quantisation.get("bnb_4bit_use_double_quant") else "nf4_g64"
    is_4bit = quantisation.get("load_in_4bit") or quantisation.get("_load_in_4bit")
    return Scheme(FORMATS[nf4 if is_4bit else "int8"], excluded=_excluded(quantisation))


def _compressed_tensors(quantisation: Mapping[str, Any]) -> Scheme:
    """Read config_groups: a target that is a module class is the default, any other names modules."""
    default: WeightFormat | None = None
    named: list[tuple[str, WeightFormat]] = []
    notes: list[str] = []
    if (quantisation.get("sparsity_config") or {}).get("format", "dense") != "dense":
        notes.append("quantization_config: sparse weights are counted as if dense; their bytes are too high")
    for group in (quantisation.get("config_groups") or {}).values():
        found, doubt = _group_format(group)
        notes += doubt
        for target in group.get("targets") or ("Linear",):
            if found is None:
                continue
            if target in _MODULE_CLASSES:
                default = found
            else:
                named.append((str(target), found))
    return Scheme(default, named=tuple(named), excluded=_excluded(quantisation), notes=tuple(notes),
                  kv=_kv_of_arguments(quantisation.get("kv_cache_scheme")))


def _group_format(group: Mapping[str, Any]) -> tuple[WeightFormat | None, list[str]]:
    weights, inputs = group.get("weights") or {}, group.get("input_activations")
    kind, n_bits, size = str(weights.get("type", "")), weights.get("num_bits"), weights.get("group_size")
    if kind == "float" and n_bits == 8:
        return _float8(weights, size, is_weight_only=not inputs), []
    if kind == "float" and n_bits == 4:
        stem = "mxfp4" if size == 32 else "nvfp4"
        input_bits = inputs.get("num_bits", 4) if inputs else 16
        return FORMATS[stem + {4: "", 8: "_w4a8"}.get(input_bits, "_weight_only")], []
    if kind == "int" and n_bits == 8 and inputs:
        return FORMATS["int8"], []
    if kind == "int" and n_bits:
        found = grouped_int(int(n_bits), size, has_zeros=weights.get("symmetric") is False)
        if not inputs:
            return found, []
        return replace(found, name=f"{found.name}_w{n_bits}a8", compute=_activation_rate(inputs)), []
    return None, [f"quantization_config: weights of {n_bits} bits, type {kind or 'not said'} are not known; counted in "
                  "the model's dtype, their bytes may be too high"]


def _activation_rate(inputs: Mapping[str, Any]) -> str:
    return "int8" if inputs.get("type") == "int" else "fp8"


def _float8(weights: Mapping[str, Any], size: int | None, *, is_weight_only: bool) -> WeightFormat:
    block = weights.get("block_structure")
    if block:
        n_rows, n_columns = block.split("x") if isinstance(block, str) else block
        found = block_fp8(int(n_rows), int(n_columns))
    else:
        found = FORMATS["mxfp8" if size == 32 else "fp8"]
    if not is_weight_only:
        return found
    return FORMATS["fp8_weight_only"] if found.name == "fp8" else replace(
        found, name=f"{found.name}_weight_only", compute="bf16")


def _kv_of_arguments(scheme: Mapping[str, Any] | None) -> KvFormat | None:
    if not scheme or not scheme.get("num_bits"):
        return None
    return KV_FORMATS.get({("float", 8): "fp8", ("int", 8): "int8", ("float", 4): "nvfp4"}.get(
        (str(scheme.get("type")), scheme["num_bits"]), ""))


def _modelopt(quantisation: Mapping[str, Any]) -> Scheme:
    """Read NVIDIA ModelOpt: one algorithm, or a map from modules to algorithms over a base."""
    algorithm = str(quantisation.get("quant_algo") or "").upper()
    per_module = quantisation.get("quantized_layers") or {}
    notes: list[str] = []
    named = [(str(name), found) for name, entry in per_module.items()
             if (found := _algorithm(entry.get("quant_algo"), entry.get("group_size"), notes)) is not None]
    # A checkpoint that puts 4-bit experts over an FP8 one (DeepSeek-V4 NVFP4) says the FP8 blocks too.
    beneath = _fp8_format(quantisation) if quantisation.get("weight_block_size") and named else None
    default = None
    if algorithm != "MIXED_PRECISION" and algorithm:
        default = _algorithm(algorithm, quantisation.get("group_size"), notes)
    if algorithm == "MIXED_PRECISION" and not named:
        return replace(_compressed_tensors(quantisation), kv=_modelopt_kv(quantisation, notes), notes=tuple(notes))
    if default is not None and not _excluded(quantisation):
        notes.append(f"quant_algo {algorithm}: no module is excluded; every projection of the layers counted as "
                     f"{default.name}, the head and the router in the model's dtype")
    notes += _contradiction(quantisation, dict(named))
    kv = _modelopt_kv(quantisation, notes)
    return Scheme(default, named=tuple(named), excluded=_excluded(quantisation), beneath=beneath, kv=kv,
                  notes=tuple(dict.fromkeys(notes)))


def _contradiction(quantisation: Mapping[str, Any], named: Mapping[str, WeightFormat]) -> list[str]:
    """Compare the map of modules with the config_groups beside it."""
    groups = dict(_compressed_tensors(quantisation).named)
    unlike = [name for name in named if name in groups and groups[name] != named[name]]
    return [f"quantization_config: config_groups and quantized_layers disagree on {len(unlike)} modules (first: "
            f"{unlike[0]}: {groups[unlike[0]].name}, {named[unlike[0]].name}); quantized_layers counted"
            ] if unlike else []


def _algorithm(name: object, group_size: object, notes: list[str]) -> WeightFormat | None:
    word = str(name or "").upper()
    if word in _INT4_ALGORITHMS:
        return grouped_int(4, int(str(group_size)) if group_size else 128)
    if word in _ALGORITHMS:
        return FORMATS[_ALGORITHMS[word]]
    notes.append(f"quant_algo {name!r} is not known: its weights counted in the model's dtype; their bytes are too "
                 "high if they are quantised")
    return None


def _modelopt_kv(quantisation: Mapping[str, Any], notes: list[str]) -> KvFormat | None:
    name = quantisation.get("kv_cache_quant_algo")
    if not name:
        return _kv_of_arguments(quantisation.get("kv_cache_scheme"))
    if str(name).upper() not in _KV_ALGORITHMS:
        notes.append(f"kv_cache_quant_algo {name!r} is not known: the cache counted in the model's dtype")
        return None
    return KV_FORMATS[_KV_ALGORITHMS[str(name).upper()]]


def _quark(quantisation: Mapping[str, Any]) -> Scheme:
    notes: list[str] = []
    named = tuple((str(name), found) for name, entry in (quantisation.get("layer_quant_config") or {}).items()
                  if (found := _quark_format(entry, notes)) is not None)
    cache = (quantisation.get("kv_cache_quant_config") or {}).values()
    is_fp8 = any("fp8" in str((entry.get("output_tensors") or {}).get("dtype", "")) for entry in cache)
    return Scheme(_quark_format(quantisation.get("global_quant_config") or {}, notes), named=named,
                  excluded=_excluded(quantisation), kv=KV_FORMATS["fp8"] if is_fp8 else None, notes=tuple(notes))


def _quark_format(entry: Mapping[str, Any], notes: list[str]) -> WeightFormat | None:
    weight, inputs = entry.get("weight") or {}, entry.get("input_tensors")
    dtype, size = str(weight.get("dtype", "")), weight.get("group_size")
    if dtype.startswith("fp8"):
        return FORMATS["fp8" if inputs else "fp8_weight_only"]
    if dtype.startswith("fp4") and size == 32:
        return FORMATS["mxfp4" if inputs else "mxfp4_weight_only"]
    if dtype in ("int8", "uint8") and inputs:
        return FORMATS["int8"]
    if dtype in ("int4", "uint4", "int8", "uint8") and not inputs:
        return grouped_int(8 if "8" in dtype else 4, size, has_zeros=dtype.startswith("u"))
    notes.append(f"quark weights of {dtype or 'unsaid'} dtype are not known: counted in the model's dtype; their bytes "
                 "may be too high")
    return None


def _plain(name: str, roles: frozenset[str] = PROJECTIONS) -> Callable[[Mapping[str, Any]], Scheme]:
    return lambda quantisation: Scheme(FORMATS[name], roles, excluded=_excluded(quantisation))


def _unknown(quantisation: Mapping[str, Any]) -> Scheme:
    return Scheme(None, notes=(
        f"quant_method {quantisation.get('quant_method')!r} is not known: weights counted in the model's dtype; their "
        "bytes are too high if they are quantised",))


_METHODS: dict[str, Callable[[Mapping[str, Any]], Scheme]] = {
    "fp8": _fp8, "fbgemm_fp8": _fp8, "mxfp4": _mxfp4, "gpt_oss_mxfp4": _mxfp4, "mxfp8": _plain("mxfp8"),
    "compressed_tensors": _compressed_tensors, "modelopt": _modelopt, "modelopt_fp4": _modelopt,
    "modelopt_mixed": _modelopt, "awq": _integers, "awq_marlin": _integers, "gptq": _integers,
    "gptq_marlin": _integers, "auto_round": _integers, "auto_gptq": _integers, "bitsandbytes": _bitsandbytes,
    "quark": _quark, "w8a8_int8": _plain("int8"), "w8a8_fp8": _plain("fp8"), "int8": _plain("int8"),
    "experts_int8": _plain("int8_weight_only", EXPERTS),
}
