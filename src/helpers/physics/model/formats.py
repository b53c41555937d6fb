"""Number formats: bytes per stored element, scales included, and the arithmetic they are used in."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class WeightFormat:
    """How weights are stored and multiplied.

    Attributes
    ----------
    name : str
        For example ``fp8_block128``.
    bytes_per_param : float
        Scales included [bytes].
    compute : str
        Rate of the hardware that its products run at: bf16, fp16, fp8, fp4, int8, fp32.
    """

    name: str
    bytes_per_param: float
    compute: str


@dataclass(frozen=True)
class KvFormat:
    """How keys and values are stored.

    Attributes
    ----------
    name : str
        bf16, fp16, fp8, int8, nvfp4.
    bytes_per_element : float
        Scales included [bytes].
    """

    name: str
    bytes_per_element: float


FORMATS: dict[str, WeightFormat] = {
    item.name: item
    for item in (
        WeightFormat("fp32", 4.0, "fp32"),
        WeightFormat("bf16", 2.0, "bf16"),
        WeightFormat("fp16", 2.0, "fp16"),
        WeightFormat("fp8", 1.0, "fp8"),  # a scale per tensor or channel: 4/K, left out
        WeightFormat("fp8_block128", 1.0 + 4 / 128**2, "fp8"),  # one FP32 scale per 128 x 128
        WeightFormat("fp8_block128_ue8m0", 1.0 + 1 / 128**2, "fp8"),
        WeightFormat("fp8_weight_only", 1.0, "bf16"),
        WeightFormat("int8", 1.0, "int8"),
        WeightFormat("int8_weight_only", 1.0, "bf16"),
        WeightFormat("mxfp8", 1.0 + 1 / 32, "fp8"),
        WeightFormat("mxfp4", 0.5 + 1 / 32, "fp4"),
        WeightFormat("mxfp4_weight_only", 0.5 + 1 / 32, "bf16"),
        WeightFormat("mxfp4_w4a8", 0.5 + 1 / 32, "fp8"),  # FP8 activations: DeepSeek-V4 experts
        WeightFormat("nvfp4", 0.5 + 1 / 16, "fp4"),
        WeightFormat("nvfp4_weight_only", 0.5 + 1 / 16, "bf16"),
        WeightFormat("nvfp4_w4a8", 0.5 + 1 / 16, "fp8"),
        WeightFormat("int4_g128", 0.5 + 2 / 128, "bf16"),  # symmetric: one 16-bit scale per group
        WeightFormat("int4_g128_zeros", 0.5 + (2 + 0.5) / 128, "bf16"),  # AWQ, GPTQ with zero points
        WeightFormat("int4_g32", 0.5 + 2 / 32, "bf16"),
        WeightFormat("int4_g128_w4a8", 0.5 + 2 / 128, "fp8"),  # AWQ scales, FP8 activations
        WeightFormat("nf4_g64", 0.5 + 4 / 64, "bf16"),  # bitsandbytes: one FP32 absmax per 64
        WeightFormat("nf4_g64_double", 0.5 + 1 / 64 + 4 / (64 * 256), "bf16"),  # the absmax in 8 bits, FP32 per 256
    )
}
"""Formats by name; physics of section 1.3: MXFP4 and MXFP8 scale per 32, NVFP4 per 16 elements."""

KV_FORMATS: dict[str, KvFormat] = {
    item.name: item
    for item in (
        KvFormat("fp32", 4.0), KvFormat("bf16", 2.0), KvFormat("fp16", 2.0), KvFormat("fp8", 1.0),
        KvFormat("int8", 1.0), KvFormat("nvfp4", 0.5 + 1 / 16),
    )
}
"""Formats of the cache by name."""


MAX_BITS = 16
"""Of an integer weight."""


def grouped_int(n_bits: int, group_size: int | None, *, has_zeros: bool = False) -> WeightFormat:
    """Return the format of weight-only integers with one 16-bit scale per group, multiplied in BF16.

    Parameters
    ----------
    n_bits : int
        Bits of one weight [bit].
    group_size : int or None
        Weights that share a scale; None, 0 or -1 = one scale per channel, which is left out.
    has_zeros : bool
        A zero point of ``n_bits`` is stored per group as well.

    Returns
    -------
    WeightFormat
        The one of `FORMATS` where the name is there.

    Raises
    ------
    ValueError
        A number of bits that no weight has.
    """
    if not 1 <= n_bits <= MAX_BITS:
        raise ValueError(f"{n_bits} bits per weight, expected 1 to {MAX_BITS}")
    if not group_size or group_size < 0:
        return FORMATS["int8_weight_only"] if n_bits == 8 else WeightFormat(f"int{n_bits}_channel", n_bits / 8, "bf16")
    name = f"int{n_bits}_g{group_size}{'_zeros' if has_zeros else ''}"
    per_group_bytes = 2 + (n_bits / 8 if has_zeros else 0)
    return FORMATS.get(name) or WeightFormat(name, n_bits / 8 + per_group_bytes / group_size, "bf16")


def block_fp8(n_rows: int, n_columns: int, *, has_ue8m0_scales: bool = False) -> WeightFormat:
    """Return FP8 with one scale per block of ``n_rows`` x ``n_columns``: FP32, or one byte if UE8M0."""
    shape = f"{n_rows}" if n_rows == n_columns else f"{n_rows}x{n_columns}"
    name = f"fp8_block{shape}{'_ue8m0' if has_ue8m0_scales else ''}"
    scale_bytes = 1 if has_ue8m0_scales else 4
    return FORMATS.get(name) or WeightFormat(name, 1 + scale_bytes / (n_rows * n_columns), "fp8")
