"""Time that ranks spend talking to each other: all-reduce, all-gather, expert exchange.

Times are measured ones (data/catalog/communication.csv) where the accelerator and its link are in the table;
elsewhere those of the nearest kind of link, their transfer part scaled by the link's rate, and that is said.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd

from helpers import paths
from helpers.physics.catalogue.hardware import Hardware
from helpers.physics.catalogue.hardware import find as find_hardware
from helpers.physics.linking import links
from helpers.physics.linking.collectives import (
    DISPATCH_BYTES_PER_ELEMENT,
    ELEMENT_BYTES,
    Curve,
    all_reduce_message_bytes,
    leaving_frac,
    logits_message_bytes,
    one_shot_s,
    ring_s,
    tree_depth,
    tree_s,
    two_shot_s,
)
from helpers.physics.linking.links import Link
from helpers.schema import LogFormatError, RooflogError

__all__ = [
    "Communication", "Curve", "all_reduce_message_bytes", "find_table", "logits_message_bytes", "measurements",
    "one_shot_s", "ring_s", "tree_s", "two_shot_s",
]

LINKS = {
    "pcie3": ("L40S", "custom"),
    "pcie4": ("L40S", "custom"),
    "pcie5": ("RTX PRO 6000 Blackwell Server", "custom"),
    "pcie6": ("RTX PRO 6000 Blackwell Server", "custom"),
    "nvlink bridge": ("A100 80GB SXM", "custom"),
    "nvlink3": ("A100 80GB SXM", "custom"),
    "nvlink4": ("H200 SXM 141GB", "custom"),
    "nvlink5": ("B200 SXM (HGX)", "custom"),
    "nvl72": ("GB300 (per GPU)", "custom"),
    "scale-up": ("A100 80GB SXM", "nccl"),  # no NVLink switch: a general library on a general link
}
"""Kinds of link; the accelerator whose measurements stand for it, and the all-reduce that exists on it."""

EXCHANGES = {
    "pcie3": ("L40S", ("all_to_all", "all_to_all"), "nccl"),
    "pcie4": ("L40S", ("all_to_all", "all_to_all"), "nccl"),
    "pcie": ("RTX PRO 6000 Blackwell Server", ("all_to_all", "all_to_all"), "nccl"),
    "nvlink5": ("B200 SXM (HGX)", ("dispatch", "combine"), "deepep_ll"),
    "nvl72": ("B200 SXM (HGX)", ("dispatch", "combine"), "deepep_ll"),
    "": ("H200 SXM 141GB", ("dispatch", "combine"), "deepep_ll"),
}
"""First letters of a link; the accelerator measured, its curves for dispatch and combine, their kernel."""

NOTES = {
    "pcie4": (4, "PCIe 4 on 4 ranks or more depends on the host: 3.7 GB/s in most measurements of the L40S, 21 in one"),
    "nvl72": (5, "NVL72 beyond the 4 accelerators of a tray: SGLang 0.5.14 took 28 us on 8 ranks, others may differ"),
}
"""What a reader must know about a link from so many ranks on."""

_COLUMNS = ("collective", "system", "link", "n_ranks", "kernel", "mode", "message_bytes", "time_us", "source")
_US = 1e-6


@dataclass(frozen=True)
class Communication:
    """Times of the collectives of one set of ranks, from `find_table`.

    Attributes
    ----------
    n_ranks : int
        Tensor-parallel ranks.
    link : Link
        What joins them; its ``kind`` is a key of `LINKS`, or empty where an accelerator has none.
    reduce, gather : Curve
        All-reduce of the engine, and of NCCL, which also gathers.
    is_measured : bool
        This accelerator was measured with this link and this number of ranks (or there is one rank).
    source : str
        Where the times come from.
    assumptions, warnings : tuple of str
        What was assumed, what is in doubt.
    """

    n_ranks: int
    link: Link
    reduce: Curve = Curve()
    gather: Curve = Curve()
    is_measured: bool = True
    source: str = "one rank: nothing to communicate"
    assumptions: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def all_reduce_s(self, message_bytes: np.ndarray) -> np.ndarray:
        """Time one all-reduce.

        Parameters
        ----------
        message_bytes : array of float
            What is added up, all of it on every rank [bytes]; see `all_reduce_message_bytes`.

        Returns
        -------
        array of float, the same shape
            Never negative, never falling with the size [s].

        Raises
        ------
        RooflogError
            A negative size.
        """
        return self.reduce.at(message_bytes)

    def all_gather_s(self, message_bytes: np.ndarray) -> np.ndarray:
        """Time one all-gather.

        Parameters
        ----------
        message_bytes : array of float
            What each rank contributes [bytes]; see `logits_message_bytes`.

        Returns
        -------
        array of float, the same shape
            [s].

        Raises
        ------
        RooflogError
            A negative size.

        Notes
        -----
        An all-reduce is a reduce-scatter and an all-gather and moves twice the bytes of either: half of its
        transfer time, for the gathered size, is taken, but all of its latency. NCCL's own all-gather takes
        0.6 to 1 of that latency.
        """
        gathered = np.asarray(message_bytes, dtype=float) * self.n_ranks
        return (self.gather.alpha_s + self.gather.at(gathered)) / 2

    def all_to_all_s(self, tokens: np.ndarray, hidden: int, n_active: int, ep: int) -> np.ndarray:
        """Time one layer's expert exchange, dispatch and combine together.

        Parameters
        ----------
        tokens : array of float
            Tokens of the forward that one rank holds and sends [tok/rank].
        hidden : int
            Width of the residual stream.
        n_active : int
            Experts that a token chooses.
        ep : int
            Ranks that share the experts; 1 takes no time.

        Returns
        -------
        array of float, the same shape
            [s].

        Raises
        ------
        RooflogError
            Negative tokens, ``ep`` below 1, or an accelerator without a link.

        Notes
        -----
        Dispatch sends ``tokens min(n_active, ep) hidden`` elements in FP8 with scales, combine returns
        ``tokens n_active hidden`` in BF16; the share ``(ep-1)/ep`` leaves the rank. Measured with NCCL on RTX
        PRO 6000 for PCIe, with DeepEP's low-latency kernels on eight B200 or H200 for NVLink.
        """
        _check_ranks("ep", ep)
        sent = np.asarray(tokens, dtype=float) * hidden
        if ep == 1:
            return 0.0 * sent
        if not self.link.kind:
            raise RooflogError("expert exchange: expected a link between ranks, found none in the hardware catalogue; "
                               "give interconnect, for example pcie4, or ep=1")
        dispatch, combine = _exchange(self.link, ep)
        return (dispatch.at(sent * min(n_active, ep) * DISPATCH_BYTES_PER_ELEMENT)
                + combine.at(sent * n_active * ELEMENT_BYTES))

    def exchange_assumption(self, ep: int) -> str:
        """Say where the times of `all_to_all_s` come from; nothing for one rank or no link."""
        if ep == 1 or not self.link.kind:
            return ""
        system, _, kernel = _exchange_source(self.link)
        ratio = _measured_rate(system, self.link) / self.link.bytes_per_s
        change = "" if math.isclose(ratio, 1) else f", transfer times x {ratio:.2g} for the link's rate"
        return f"expert exchange over {self.link.kind}: {kernel} as measured on {system}{change}"


def find_table(
    hardware: Hardware, tp: int, interconnect: str | None = None, graph: bool = True, *, kernel: str = "custom"
) -> Communication:
    """Choose the times of communication for an accelerator, its ranks and their link.

    Parameters
    ----------
    hardware : Hardware
        See `helpers.physics.catalogue.hardware.find`.
    tp : int
        Tensor-parallel ranks.
    interconnect : str, optional
        What joins the ranks, in a word: pcie, pcie4, nvlink, nvswitch, none ...; else the catalogue's scale-up
        link, or PCIe where there is none or only a bridge between pairs.
    graph : bool
        The step is replayed as a graph. Eager launches put a floor under each collective.
    kernel : {"custom", "nccl"}
        The engine's own all-reduce, or NCCL where that is switched off.

    Returns
    -------
    Communication
        Its ``assumptions`` name every step away from a measurement.

    Raises
    ------
    RooflogError
        ``tp`` is no number of ranks, or it is above 1 and the accelerator has no link that is known.

    Examples
    --------
    >>> from helpers.physics.catalogue import hardware
    >>> times = find_table(hardware.find("L40S"), 2)
    >>> round(float(times.all_reduce_s(524288)) * 1e6, 1)
    32.2
    """
    _check_ranks("tp", tp)
    if kernel not in ("custom", "nccl"):
        raise RooflogError(f"all-reduce kernel: expected custom or nccl, found {kernel!r}")
    link = links.choose(hardware, tp, interconnect)
    if tp == 1:
        return Communication(1, link, warnings=link.warnings)
    if not link.kind:
        raise RooflogError(f"{hardware.name}: expected a link between {tp} ranks, found none in the hardware "
                           "catalogue; give interconnect, for example pcie4, or tp=1")
    system, offered = _system_of(hardware, link)
    kernel = "nccl" if offered == "nccl" else kernel
    beta_ratio = _measured_rate(system, link) / link.bytes_per_s
    reduce, gather = (_reduce_curve(system, name, tp, link).scaled(1.0, beta_ratio) for name in (kernel, "nccl"))
    if not graph:
        floor_s = _rank_curve("all_reduce", system, "custom", "eager", tp).alpha_s
        reduce, gather = reduce.not_below(floor_s), gather.not_below(floor_s)
    steps = _steps_away(hardware, system, link, tp, beta_ratio)
    from_ranks, note = NOTES.get(link.kind, (math.inf, ""))
    notes = (note,) if tp >= from_ranks else ()
    return Communication(
        tp, link, reduce, gather, not steps, _source(system, kernel), (*link.assumptions, *steps, *notes), link.warnings
    )


def measurements(path: str | Path | None = None) -> pd.DataFrame:
    """Return the table of measured times, one row per point.

    Parameters
    ----------
    path : path, optional
        Another table with the same columns; the bundled one by default.

    Returns
    -------
    DataFrame
        collective, system, link, kernel, mode, source : str; n_ranks : int64; message_bytes [bytes], time_s [s].

    Raises
    ------
    LogFormatError
        A column is missing, or a row lacks a value.
    """
    file = Path(path) if path is not None else paths.data_dir() / "catalog" / "communication.csv"
    raw = pd.read_csv(file)
    missing = [name for name in _COLUMNS if name not in raw.columns]
    if missing:
        raise LogFormatError(f"{file}: expected the columns of the communication table, found none named {missing}")
    gaps = raw.index[raw[list(_COLUMNS)].isna().any(axis=1)]
    if len(gaps):
        raise LogFormatError(f"{file}: expected a value in every column, found none of one in line {gaps[0] + 2}")
    sizes, times = (raw[name].astype("float64") for name in ("message_bytes", "time_us"))
    return raw.assign(message_bytes=sizes, time_s=times * _US).drop(columns="time_us")


def _check_ranks(name: str, n_ranks: int) -> None:
    if n_ranks < 1 or n_ranks != int(n_ranks):
        raise RooflogError(f"communication: expected {name} to be a whole number of ranks from 1, found {n_ranks}")


def _system_of(hardware: Hardware, link: Link) -> tuple[str, str]:
    return (hardware.name, "custom") if (hardware.name, link.kind) in _measured_links() else LINKS[link.kind]


def _measured_rate(system: str, link: Link) -> float:
    """Return the rate of the link that was measured [bytes/s]."""
    measured = find_hardware(system)
    rate = measured.pcie_bytes_per_s if link.is_pcie else measured.scaleup_bytes_per_s
    if rate is None:
        raise RooflogError(f"data/catalog/hardware.csv: expected the link rate of {system}, found none")
    return rate


def _steps_away(hardware: Hardware, system: str, link: Link, tp: int, beta_ratio: float) -> tuple[str, ...]:
    """Say what lies between the measurement and this set of ranks; nothing where it was measured."""
    steps = []
    if hardware.name != system:
        change = "" if math.isclose(beta_ratio, 1) else f", transfer times x {beta_ratio:.2g} for the link's rate"
        steps.append(f"communication of {hardware.name} over {link.kind}: as measured on {system}{change}")
    ranks = _ranks("all_reduce", system, "custom", "graph")
    if tp > ranks[-1]:
        form = "a ring" if link.is_pcie else "a tree"
        steps.append(f"{tp} ranks: from {ranks[-1]}, with the latency of {form} and the share of bytes that leaves")
    elif tp not in ranks:
        steps.append(f"{tp} ranks: between the measurements of the next fewer and the next more")
    return tuple(steps)


@cache
def _source(system: str, kernel: str) -> str:
    rows = _rows()
    fits = rows[(rows["system"] == system) & (rows["kernel"] == kernel) & (rows["collective"] == "all_reduce")]
    return f"{system}: {'; '.join(fits['source'].unique())} (data/catalog/communication.csv)"


@cache
def _rows() -> pd.DataFrame:
    return measurements()


@cache
def _measured_links() -> frozenset[tuple[str, str]]:
    rows = _rows()
    return frozenset(zip(rows["system"], rows["link"], strict=True))


@cache
def _curves() -> dict[tuple[str, str, str, str], dict[int, Curve]]:
    """Return the curves by ranks, by collective, system, kernel and mode."""
    curves: dict[tuple[str, str, str, str], dict[int, Curve]] = {}
    keys = ["collective", "system", "kernel", "mode", "n_ranks"]
    for key, points in _rows().sort_values("message_bytes").groupby(keys):
        # A switch of algorithm makes some times fall with the size; the step model needs them to be monotone.
        times = np.maximum.accumulate(points["time_s"].to_numpy())
        curve = Curve(tuple(points["message_bytes"].tolist()), tuple(times.tolist()))
        collective, system, kernel, mode, n_ranks = map(str, key)
        curves.setdefault((collective, system, kernel, mode), {})[int(n_ranks)] = curve
    return curves


def _ranks(collective: str, system: str, kernel: str, mode: str) -> tuple[int, ...]:
    return tuple(sorted(_curves()[collective, system, kernel, mode]))


def _rank_curve(collective: str, system: str, kernel: str, mode: str, n_ranks: int) -> Curve:
    """Return the curve of a number of ranks: between the measured ones on the straight line, else the nearest."""
    curves = _curves()[collective, system, kernel, mode]
    ranks = sorted(curves)
    lower = max((n for n in ranks if n <= n_ranks), default=ranks[0])
    upper = min((n for n in ranks if n >= n_ranks), default=ranks[-1])
    if lower == upper:
        return curves[lower]
    return curves[lower].between(curves[upper], (n_ranks - lower) / (upper - lower))


def _reduce_curve(system: str, kernel: str, n_ranks: int, link: Link) -> Curve:
    curve = _rank_curve("all_reduce", system, kernel, "graph", n_ranks)
    most = _ranks("all_reduce", system, kernel, "graph")[-1]
    if n_ranks <= most:
        return curve
    alpha_ratio = (n_ranks - 1) / (most - 1) if link.is_pcie else tree_depth(n_ranks) / tree_depth(most)
    return curve.scaled(alpha_ratio, leaving_frac(n_ranks) / leaving_frac(most))


def _exchange_source(link: Link) -> tuple[str, tuple[str, str], str]:
    return next(source for start, source in EXCHANGES.items() if link.kind.startswith(start))


def _exchange(link: Link, ep: int) -> tuple[Curve, Curve]:
    """Return dispatch and combine against the bytes that a rank sends."""
    system, collectives, kernel = _exchange_source(link)
    ranks = _ranks(collectives[0], system, kernel, "graph")
    nearest = min(max(ep, ranks[0]), ranks[-1])
    ratio = _measured_rate(system, link) / link.bytes_per_s * leaving_frac(ep) / leaving_frac(nearest)
    dispatch, combine = (_rank_curve(name, system, kernel, "graph", ep).scaled(1.0, ratio) for name in collectives)
    return dispatch, combine
