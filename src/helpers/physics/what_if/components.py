"""Where the measured step goes: one row per component and level, adding up to it, and what of it is impossible.

A component's time is its part of the target line. Its interval spans what kernels are known to reach, not the
scatter of the log; ``unexplained`` is the measured step minus all others, and may be negative.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from helpers.physics.catalogue.hardware import Hardware
from helpers.physics.steps import step
from helpers.physics.steps.bound import floor_s, line_step_s
from helpers.physics.steps.demand import StepModel, read_bytes
from helpers.physics.steps.step import Link, Shares
from helpers.physics.what_if.plausible import MEASURED_LINK_RANGE, ends, link_range, skew_frac
from helpers.schema import RooflogError

MEMORY = ("weights", "experts", "head", "kv", "index", "state")
COMPONENTS = (*MEMORY, "compute", "all_reduce", "draft", "floor", "unexplained")
"""Names of the rows, in their order."""

GAP = ("peak", "efficiency", "all_reduce", "floor", "unexplained")
"""Rows of `gap_table`."""

LIKELY_WRONG: Mapping[str, str] = {
    "weights": "the format of the weights, or tp counted too small", "head": "the format of the head, or tp",
    "experts": "the format of the experts, or the routing (equal prompts touch fewer experts)",
    "kv": "the context per request, or the format of the cache", "index": "the context per request",
    "state": "the draft length (a state is written per verified token), or the format of the state",
    "compute": "the rate of the hardware, or the format that products run in",
    "all_reduce": "the link between the ranks (interconnect), or the all-reduce kernel",
    "draft": "the draft forwards per round", "floor": "the number of kernels (a rough count: count them in a trace)",
}
"""Component -> the input that is most likely wrong where it cannot be."""


@dataclass(frozen=True)
class _Part:
    """One component at all levels [s]."""

    name: str
    time_s: np.ndarray
    lo: np.ndarray
    hi: np.ndarray
    source: tuple[str, ...]


@dataclass(frozen=True)
class _Levels:
    """The measurement: arrays of one length, NaN where unknown."""

    running_req: np.ndarray
    context_tok: np.ndarray
    step_s: np.ndarray
    step_s_lo: np.ndarray
    step_s_hi: np.ndarray

    @classmethod
    def read(cls, running_req: object, *columns: object) -> _Levels:
        """Take numbers or columns; a single number counts for all levels."""
        levels = np.atleast_1d(np.asarray(running_req, dtype="float64"))
        if not (levels > 0).all() or levels.ndim != 1 or not len(levels):
            raise RooflogError(f"running_req: expected levels above 0 req, found {levels.tolist()}")
        arrays = [np.asarray(np.nan if column is None else column, dtype="float64") for column in columns]
        for name, array in zip(("context_tok", "step_s", "step_s_lo", "step_s_hi"), arrays, strict=True):
            if array.shape not in ((), (1,), levels.shape):
                raise RooflogError(f"{name}: expected one number per level ({len(levels)}), found shape {array.shape}")
        return cls(levels, *(np.broadcast_to(array, levels.shape) for array in arrays))

    @property
    def has_interval(self) -> np.ndarray:
        """Tell at which levels the measured step has one."""
        return np.isfinite(self.step_s_lo) & np.isfinite(self.step_s_hi)

    @property
    def span_s(self) -> tuple[np.ndarray, np.ndarray]:
        """Ends of the measured step [s]: the step itself where it has no interval."""
        return (np.where(self.has_interval, self.step_s_lo, self.step_s),
                np.where(self.has_interval, self.step_s_hi, self.step_s))


Column = Sequence[float] | np.ndarray | pd.Series | float


def component_table(
    model: StepModel, hardware: Hardware, running_req: Column, context_tok: Column | None, step_s: Column,
    step_s_lo: Column | None = None, step_s_hi: Column | None = None, *, shares: Shares | None = None,
    links: Mapping[int, Link] | None = None, floor: bool = True,
) -> pd.DataFrame:
    """Split the measured step into what the hardware must do and what stays unexplained.

    Parameters
    ----------
    model : StepModel
    hardware : Hardware
        One rank's accelerator.
    running_req, context_tok, step_s : float or one per level
        Running requests of one rank [req], their mean context [tok], measured step (round under speculation) [s].
    step_s_lo, step_s_hi : float or one per level, optional
        Interval of the measured step [s].
    shares : Shares, optional
        What kernels reach of the peaks; `step.achievable` by default.
    links : mapping of ranks to Link, optional
        Collectives; without it they cost nothing.
    floor : bool
        Count what the kernels' least time adds beyond the other components (`bound.floor_s`).

    Returns
    -------
    DataFrame
        running_req [req]; name, one of `COMPONENTS`; time_s, lo, hi [s]; share_frac of the measured step [1]; source.
        ``time_s`` of a level add up to ``step_s``; components that are zero are left out. NaN where the context is
        needed and unknown.

    Raises
    ------
    RooflogError
        No level above 0 requests, or columns of different lengths.

    Notes
    -----
    Parts are taken at both ends of `ACHIEVABLE_RANGE` and of the links' range. The lower end of experts is skewed
    routing (`skewed_experts`). The interval of ``unexplained`` is that of the step minus the other end of all others.
    """
    levels = _Levels.read(running_req, context_tok, step_s, step_s_lo, step_s_hi)
    used = shares or step.achievable(hardware)
    parts = _line_parts(model, hardware, levels, used, links or {})
    if floor and np.isfinite(floor_s(model)[0]):
        parts.append(_floor(model, levels, parts))
    return _frame(levels, [*parts, _unexplained(levels, parts)])


def _line_parts(
    model: StepModel, hardware: Hardware, levels: _Levels, shares: Shares, links: Mapping[int, Link]
) -> list[_Part]:
    """Take the parts of the target line at the centre and at both ends."""
    found = [
        step.step_parts(model, hardware, levels.running_req, levels.context_tok, "target", shares=end.shares,
                        links=end.links)
        for end in ends(shares, links)
    ]
    skew = skew_frac(model, levels.running_req)
    moved = read_bytes(model, levels.running_req, levels.context_tok)
    nothing = np.zeros(len(levels.running_req))
    parts = []
    for name in (name for name in COMPONENTS if any(name in at for at in found)):
        times = [at.get(name, nothing) for at in found]
        lo = np.minimum.reduce(times) * (skew if name == "experts" else 1.0)
        source = _sources(name, hardware, shares, links, moved.get(name, nothing), skew)
        parts.append(_Part(name, times[0], lo, np.maximum.reduce(times), source))
    return parts


def _sources(
    name: str, hardware: Hardware, shares: Shares, links: Mapping[int, Link], n_bytes: np.ndarray, skew: np.ndarray
) -> tuple[str, ...]:
    """Say for each level what a component's time and interval rest on."""
    _, fast, slow = ends(shares, links)
    joined = "; ".join(dict.fromkeys(
        f"{getattr(link, 'source', '') or 'link given'}, x{link_range(link)[0]:g} to x{link_range(link)[1]:g} "
        f"({'measured on this system' if link_range(link) == MEASURED_LINK_RANGE else 'not measured on this system'})"
        for link in links.values()))
    if name == "all_reduce":
        return (joined,) * len(n_bytes)
    if name == "compute":
        text = (f"products beyond the bytes, at {shares.compute_frac:.2g} of the peak rate, interval "
                f"{slow.shares.compute_frac:.2g} to {fast.shares.compute_frac:.2g}")
        return (text,) * len(n_bytes)
    rate = (f"at {shares.bandwidth_frac:.2g} of {hardware.mem_bw_bytes_per_s / 1e9:.4g} GB/s ({shares.source}), "
            f"interval {slow.shares.bandwidth_frac:.2g} to {fast.shares.bandwidth_frac:.2g}")
    texts = [f"{size / 1e9:.4g} GB per rank {rate}" for size in n_bytes]
    if name == "experts":
        texts = [f"{text}; lower end: skewed routing touches {1 - frac:.0%} fewer experts than uniform"
                 for text, frac in zip(texts, skew, strict=True)]
    return tuple(f"{text}; with its collectives: {joined}" if name == "draft" and joined else text for text in texts)


def _floor(model: StepModel, levels: _Levels, parts: Sequence[_Part]) -> _Part:
    """Return what the least time of the kernels adds beyond what the other components take."""
    least, most = floor_s(model)
    middle = float(np.sqrt(least * most))
    total, lo, hi = _sums(parts, levels)
    source = (f"kernels of a step take {1e3 * least:.3g} to {1e3 * most:.3g} ms however little they move (rough counts "
              "per layer), and no less than the other components together")
    time_s, beyond_lo, beyond_hi = (np.maximum(at, 0.0) for at in (middle - total, least - hi, most - lo))
    return _Part("floor", time_s, beyond_lo, beyond_hi, (source,) * len(total))


def _sums(parts: Sequence[_Part], levels: _Levels) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    nothing = np.zeros(len(levels.running_req))
    return (sum((part.time_s for part in parts), nothing), sum((part.lo for part in parts), nothing),
            sum((part.hi for part in parts), nothing))


def _unexplained(levels: _Levels, parts: Sequence[_Part]) -> _Part:
    total, lo, hi = _sums(parts, levels)
    step_lo, step_hi = levels.span_s
    sources = tuple("the measured step minus the others" if known else "the measured step minus the others; the step "
                    "has no interval: lo and hi are those of the others alone" for known in levels.has_interval)
    return _Part("unexplained", levels.step_s - total, step_lo - hi, step_hi - lo, sources)


def _frame(levels: _Levels, parts: Sequence[_Part]) -> pd.DataFrame:
    rows = [
        (float(n), part.name, float(part.time_s[i]), float(part.lo[i]), float(part.hi[i]),
         float(part.time_s[i] / levels.step_s[i]), part.source[i])
        for i, n in enumerate(levels.running_req) for part in parts
        if part.name == "unexplained" or not part.time_s[i] == part.hi[i] == 0
    ]
    return pd.DataFrame(rows, columns=["running_req", "name", "time_s", "lo", "hi", "share_frac", "source"])


def achieved(
    model: StepModel, hardware: Hardware, running_req: Column, context_tok: Column | None, step_s: Column,
    step_s_lo: Column | None = None, step_s_hi: Column | None = None,
) -> pd.DataFrame:
    """Return what the measured step reaches of the peaks, per level.

    Parameters
    ----------
    model, hardware, running_req, context_tok, step_s, step_s_lo, step_s_hi
        As in `component_table`.

    Returns
    -------
    DataFrame
        running_req [req]; read_bytes of a step and rank, uniform routing [bytes]; bytes_per_s [bytes/s] and mbu_frac,
        its share of the peak bandwidth [1]; flop of a step and rank, flop_per_s, and mfu_frac: the time of the
        products at the peak rates over the step [1]. Each rate has ``_lo`` and ``_hi``: the step's interval, and at
        the lower end skewed routing. Products are NaN for a model by hand or where the hardware has no rate.
    """
    levels = _Levels.read(running_req, context_tok, step_s, step_s_lo, step_s_hi)
    step_lo, step_hi = levels.span_s
    moved = read_bytes(model, levels.running_req, levels.context_tok)
    total = np.sum([*moved.values()], axis=0)
    fewest = total - (1 - skew_frac(model, levels.running_req)) * moved.get("experts", 0.0)
    flop, peak_s = _products(model, hardware, levels)
    table = {"running_req": levels.running_req, "read_bytes": total}
    bandwidth = hardware.mem_bw_bytes_per_s
    for name, most, least, per in (
        ("bytes_per_s", total, fewest, 1.0), ("mbu_frac", total, fewest, bandwidth), ("flop_per_s", flop, flop, 1.0),
        ("mfu_frac", peak_s, peak_s, 1.0),
    ):
        table |= {name: most / levels.step_s / per, f"{name}_lo": least / step_hi / per,
                  f"{name}_hi": most / step_lo / per}
    return pd.DataFrame(table | {"flop": flop}, dtype="float64")


def _products(model: StepModel, hardware: Hardware, levels: _Levels) -> tuple[np.ndarray, np.ndarray]:
    """FLOPs of a step and rank, and their time at the peak rates; NaN where unknown."""
    flop, peak_s, is_known = (np.zeros(len(levels.running_req)) for _ in range(3))
    for forward in model.forwards(levels.running_req, levels.context_tok):
        for by_rate in forward.flops.values():
            for rate, flops in by_rate.items():
                peak = step.rate_flop_per_s(hardware, rate)
                flop = flop + forward.count * flops
                peak_s = peak_s + forward.count * flops / (peak or np.nan)
                is_known = is_known + 1
    return np.where(is_known, flop, np.nan), np.where(is_known, peak_s, np.nan)


def gap_table(
    model: StepModel, hardware: Hardware, running_req: Column, context_tok: Column | None, step_s: Column,
    step_s_lo: Column | None = None, step_s_hi: Column | None = None, *, shares: Shares | None = None,
    links: Mapping[int, Link] | None = None, floor: bool = True,
) -> pd.DataFrame:
    """Say what lies between the step at the peaks and the measured one.

    Parameters
    ----------
    model, hardware, running_req, context_tok, step_s, step_s_lo, step_s_hi, shares, links, floor
        As in `component_table`.

    Returns
    -------
    DataFrame
        As `component_table`, names of `GAP`: ``peak`` the expected line without collectives; ``efficiency`` what the
        achievable shares add; ``all_reduce`` all collectives, those of the draft too.
    """
    levels = _Levels.read(running_req, context_tok, step_s, step_s_lo, step_s_hi)
    at = levels.running_req, levels.context_tok
    peak = step.step_parts(model, hardware, *at, "expected")
    peak_s, skew = np.sum([*peak.values()], axis=0), skew_frac(model, levels.running_req)
    found = ends(shares or step.achievable(hardware), links or {})
    whole = [line_step_s(model, hardware, *at, "target", shares=end.shares, links=end.links) for end in found]
    alone = [line_step_s(model, hardware, *at, "target", shares=end.shares) for end in found]
    said = ("all bytes and products at the peaks, uniform routing", "kernels reach a share of the peaks", "collectives")
    rows = (
        ("peak", [peak_s, peak_s - (1 - skew) * peak.get("experts", 0.0), peak_s], said[0]),
        ("efficiency", [time_s - peak_s for time_s in alone], said[1]),
        ("all_reduce", [both - one for both, one in zip(whole, alone, strict=True)], said[2]),
    )
    parts = [_Part(name, times[0], np.minimum.reduce(times), np.maximum.reduce(times), (text,) * len(skew))
             for name, times, text in rows]
    rest = component_table(model, hardware, *at, step_s, step_s_lo, step_s_hi, shares=shares, links=links, floor=floor)
    table = pd.concat([_frame(levels, parts).query("name != 'unexplained'"),
                       rest[rest["name"].isin(["floor", "unexplained"])]])
    order = table["name"].map(GAP.index)
    return table.assign(order=order).sort_values(["running_req", "order"]).drop(columns="order").reset_index(drop=True)


def impossible(table: pd.DataFrame, reached: pd.DataFrame | None = None) -> tuple[str, ...]:
    """Name what cannot be in a component table, with the input that is most likely wrong.

    Parameters
    ----------
    table : DataFrame
        From `component_table`.
    reached : DataFrame, optional
        From `achieved`, for the same levels.

    Returns
    -------
    tuple of str
        One sentence each: a bandwidth above the peak, a component that alone is longer than the measured step,
        components that together are longer even at their lower ends. Empty where all is possible.
    """
    sentences = []
    for row in [] if reached is None else reached.to_dict("records"):
        if row["mbu_frac_lo"] > 1:
            level = table[table["running_req"].eq(row["running_req"])]
            sentences.append(
                f"running_req {row['running_req']:g}: {row['bytes_per_s'] / 1e9:.4g} GB/s per rank is "
                f"{row['mbu_frac']:.3g} of the peak bandwidth; most likely wrong: {_suspect(level)}")
    for level_req, level in table.groupby("running_req"):
        sentences += _too_long(float(level_req), level)  # type: ignore[arg-type]
    return tuple(sentences)


def _too_long(running_req: float, level: pd.DataFrame) -> list[str]:
    """Sentences of one level: single components first, else all together."""
    rest = level[level["name"].eq("unexplained")].iloc[0]
    others = level[level["name"].ne("unexplained")]
    longest_s = rest["hi"] + others["lo"].sum()  # upper end of the measured step
    alone = others[others["lo"] > longest_s]
    limit = f"the measured step takes at most {1e3 * longest_s:.3g} ms"
    if len(alone):
        return [f"running_req {running_req:g}: {row['name']} takes at least {1e3 * row['lo']:.3g} ms at the best share "
                f"of the peak that was seen, {limit}; most likely wrong: {LIKELY_WRONG[row['name']]}"
                for row in alone.to_dict("records")]
    if rest["hi"] < 0:
        return [f"running_req {running_req:g}: at the best shares of the peaks that were seen the components take "
                f"{-1e3 * rest['hi']:.3g} ms longer, {limit}; most likely wrong: {_suspect(level)}"]
    return []


def _suspect(level: pd.DataFrame) -> str:
    """Name the input behind the largest component."""
    others = level[level["name"].ne("unexplained")]
    return LIKELY_WRONG[str(others["name"].iloc[int(others["time_s"].argmax())])]
