"""What joins the ranks: an accelerator's scale-up link, a bridge between pairs, or PCIe."""

from __future__ import annotations

import math
from dataclasses import dataclass

from helpers.physics.catalogue.hardware import Hardware

PCIE_BYTES_PER_S = {"pcie3": 15.75e9, "pcie4": 31.5e9, "pcie5": 63e9, "pcie6": 121e9}
"""Usable bandwidth of 16 lanes per direction [bytes/s], as in the hardware catalogue."""

JOINED_RANKS = {"nvl72": 72}
"""Ranks that a kind of link joins, where they are not those of `NODE_RANKS`."""

NODE_RANKS = 8
"""Accelerators of one node."""

_PCIE_WORDS = ("pcie", "pci-e", "none", "no nvlink", "sys", "phb", "pix", "pxb")  # also as nvidia-smi topo says it
_SCALE_UP_WORDS = ("nvl", "nvswitch", "sxm", "xgmi", "infinity", "ici", "hccs", "scaleup", "scale-up", "roce")


@dataclass(frozen=True)
class Link:
    """A kind of link and its rate.

    Attributes
    ----------
    kind : str
        pcie3 to pcie6, nvlink3 to nvlink5, nvl72, nvlink bridge, scale-up (any other), or empty for none.
    bytes_per_s : float
        Rate of one rank per direction [bytes/s], NaN for none.
    assumptions, warnings : tuple of str
        What was assumed to choose it, what is in doubt.
    """

    kind: str
    bytes_per_s: float = math.nan
    assumptions: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def is_pcie(self) -> bool:
        """Tell whether it is PCIe."""
        return self.kind in PCIE_BYTES_PER_S


def choose(hardware: Hardware, n_ranks: int, interconnect: str | None = None) -> Link:
    """Choose the link between ranks: what the user names, else the catalogue's.

    Parameters
    ----------
    hardware : Hardware
        See `helpers.physics.catalogue.hardware.find`.
    n_ranks : int
        Ranks to be joined.
    interconnect : str, optional
        A word for it: pcie, pcie4, gen5, nvlink, nvswitch, none, or what ``nvidia-smi topo -m`` prints. One that is
        not known becomes a warning.

    Returns
    -------
    Link
        A bridge between pairs only where the user says that it is fitted.
    """
    word = (interconnect or "").lower()
    generation = _named_generation(word)
    asks_pcie = bool(generation) or any(part in word for part in _PCIE_WORDS)
    asks_scale_up = not asks_pcie and any(part in word for part in _SCALE_UP_WORDS)
    rate, bridged = hardware.scaleup_bytes_per_s, _bridge_ranks(hardware)
    if rate is not None and not asks_pcie and (not bridged or asks_scale_up and n_ranks <= bridged):
        found = Link(_scale_up_kind(hardware), rate)
    else:
        found = _pcie(hardware, generation)
    is_open = bridged and not asks_pcie and not asks_scale_up and n_ranks > 1
    assumptions = (f"{hardware.name}: no NVLink bridge is fitted (interconnect=nvlink if it is)",) if is_open else ()
    doubts = _doubts(hardware, n_ranks, interconnect, found) if not asks_pcie else ()
    return Link(found.kind, found.bytes_per_s, assumptions, (*doubts, *_node_warnings(hardware, n_ranks, found.kind)))


def _named_generation(word: str) -> str:
    named = "".join(c for c in word if c.isalnum()).replace("pciexpress", "pcie").replace("gen", "")
    named = "pcie" + named if named.isdigit() else named
    return next((kind for kind in PCIE_BYTES_PER_S if kind in named), "")


def _bridge_ranks(hardware: Hardware) -> int:
    """Count the ranks that a bridge joins; 0 where the link is no bridge and always there."""
    text = hardware.scaleup.lower()
    return 0 if "bridge" not in text else 4 if "4-way" in text or "xgmi" in text else 2


def _scale_up_kind(hardware: Hardware) -> str:
    text = hardware.scaleup.lower()
    if "nvlink" in text and "bridge" in text:
        return "nvlink bridge"
    return next((kind for kind in ("nvl72", "nvlink5", "nvlink4", "nvlink3") if kind in text), "scale-up")


def _pcie(hardware: Hardware, generation: str) -> Link:
    own = f"pcie{hardware.pcie[:1]}"
    kind = generation or own
    if kind == own and hardware.pcie_bytes_per_s is not None:
        return Link(kind, hardware.pcie_bytes_per_s)
    return Link(kind, PCIE_BYTES_PER_S[kind]) if kind in PCIE_BYTES_PER_S else Link("")


def _doubts(hardware: Hardware, n_ranks: int, interconnect: str | None, found: Link) -> tuple[str, ...]:
    used = f"{found.kind or 'no link'} is used"
    if not interconnect:
        return ()
    if not any(part in interconnect.lower() for part in _SCALE_UP_WORDS):
        return (f"interconnect {interconnect!r}: expected pcie, pcie4, nvlink, nvswitch, none or the like; {used} for "
                f"{hardware.name}",)
    if found.kind and not found.is_pcie:
        return ()
    known = f"a bridge of {_bridge_ranks(hardware)}" if hardware.scaleup_bytes_per_s else "none"
    return (f"interconnect {interconnect!r}: expected a scale-up link of {hardware.name} for {n_ranks} ranks, found "
            f"{known} in the hardware catalogue; {used}",)


def _node_warnings(hardware: Hardware, n_ranks: int, kind: str) -> tuple[str, ...]:
    joined = JOINED_RANKS.get(kind, NODE_RANKS)
    if n_ranks <= joined:
        return ()
    return (f"{n_ranks} ranks of {hardware.name}: {kind} joins {joined}, and the network between nodes is not in the "
            "table; real collectives take longer than computed",)
