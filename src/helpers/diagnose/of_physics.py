"""Observations from the hardware's lines: what explains the step, what is left, and what the rest looks like."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import isfinite, nan
from typing import Any

import numpy as np
import pandas as pd

from helpers.diagnose.observations import Observation
from helpers.display import level_key, show
from helpers.physics.catalogue.hardware import Hardware
from helpers.physics.steps.bound import Roofline
from helpers.physics.steps.decode import DecodeModel
from helpers.physics.steps.demand import StepModel, read_bytes
from helpers.physics.steps.prediction import predicted_step_s
from helpers.physics.steps.step import Link
from helpers.schema import LawFit

SOURCE = "component table"
WEIGHTS = ("weights", "experts", "head", "draft")
KV = ("kv", "index")

EXPLAINED_FRAC = 0.20
"""Unexplained share up to which a step is what good kernels take; its interval must also hold (almost) none."""

ALMOST_NONE = 0.05
MATTERS = 0.20
"""Least share of the step that is surely unexplained, from which its cause is worth a search."""

LARGE_RATIO = 4.0
"""Highest over lowest level from which fixed and per-request excess can be told apart."""

FAR_CONTEXT = 8.0
"""Longest allowed context over the actual one from which work on the former cannot be work on the latter."""

BEYOND_OWN = 10.0
"""Excess bytes per request over the request's own cache from which they cannot be its own."""

NVLINK_MOST_S = 30e-6
"""Longest that a small all-reduce over NVLink takes in a step [s]; measured: 5 to 15 us (aiconfigurator, physics 3)."""

PCIE_MOST_S = 150e-6
"""Longest over PCIe without peer access [s]: 20 to 50 us for two ranks (physics.md 5.1, item 28), more ranks more."""

PCIE_WORST_S = 500e-6
"""Longest that was reported over PCIe [s] (prior-art.md 2: gpt-fast 111)."""

MOST_PER_POSITION = 2.0
LEAST_PER_POSITION_BYTES = 4096.0
"""Bytes that work on the whole configured context can move per position and layer: twice the cache's own (keys and
values in 32 bit), or 4 KiB where the cache is smaller (64 index heads in FP32, written and read, are 0.5 KiB)."""

ABSURD_LINK_FRAC = 0.02
"""Share of a link's rate below which bytes cannot be what takes the time."""

SAME_STEP = 0.05
OTHER_STEP = 0.10
OTHER_LIMIT = 4.0
"""Two server lives with context limits this far apart tell whether the step follows the limit."""


@dataclass(frozen=True)
class Physics:
    """What the hardware's side knows of the levels.

    Attributes
    ----------
    model : StepModel
    hardware : Hardware
    roofline : Roofline
    components : DataFrame
        From `components.component_table`.
    achieved : DataFrame
        From `components.achieved`.
    law : LawFit
        The straight line.
    has_nvlink : bool or None
        The ranks are joined by NVLink; None where it is not known.
    link_bytes_per_s : float
        Rate of the link between ranks; NaN where it is not known [bytes/s].
    links : mapping of ranks to Link, optional
        Collectives.
    """

    model: StepModel
    hardware: Hardware
    roofline: Roofline
    components: pd.DataFrame
    achieved: pd.DataFrame | None
    law: LawFit
    has_nvlink: bool | None = None
    link_bytes_per_s: float = nan
    links: Mapping[int, Link] | None = None


def observe(physics: Physics, facts: Mapping[str, Any]) -> Iterator[Observation]:
    """Yield what the lines and the component table say.

    Parameters
    ----------
    physics : Physics
        Free of contradictions: where a value cannot be, nothing follows from the others.
    facts : mapping
        Of the deployment.
    """
    table = _Table(physics)
    if not len(table.levels):
        return
    yield from _explained(table)
    yield from _rest(table)
    yield from _collectives(table, physics)
    yield from _context_limit(table, physics, facts)
    yield from _predicted(physics, facts)
    ratio = physics.roofline.ratio("target")
    known = [x for x in ratio if isfinite(x)]
    if known:
        yield _of("step_over_target", max(known),
                  f"the step takes up to {show(max(known))} times what good kernels take")
    if physics.achieved is not None and "mfu_frac_hi" in physics.achieved:
        most = float(physics.achieved["mfu_frac_hi"].max())
        if isfinite(most):
            yield _of("mfu_most_frac", most, f"products run at most at {most:.1%} of the hardware's rate")


def _predicted(physics: Physics, facts: Mapping[str, Any]) -> Iterator[Observation]:
    """Hold the step against a priori predictions, which count what the kernels and the host of good engines add."""
    roofline = physics.roofline
    known = np.isfinite(roofline.measured_step_s) & np.isfinite(roofline.context_tok)
    if not isinstance(physics.model, DecodeModel) or physics.model.n_draft_tok or not known.any():
        return
    n, context, measured = (np.asarray(values, dtype=float)[known] for values in (
        roofline.running_req, roofline.context_tok, roofline.measured_step_s))
    predicted_s = predicted_step_s(physics.model, physics.hardware, n, context, shares=roofline.shares,
                                   links=physics.links)
    ratio = measured / predicted_s
    worst = int(np.argmax(np.abs(np.log(ratio))))
    yield _of("step_over_prediction", float(ratio[worst]), f"at N={level_key(float(n[worst]))} the step is "
              f"{show(float(ratio[worst]))} times what is predicted for a good engine (most are within 15 %)")
    largest = max((float(size) for size in facts.get("captured_batch_sizes") or [] if size), default=nan)
    inside, beyond = ratio[n <= largest], ratio[n > largest]
    if len(inside) and len(beyond):
        jump = float(np.median(beyond) / inside[-1])
        yield _of("jump_beyond_captured", jump, f"beyond the largest captured size ({largest:g}) the step is "
                  f"{show(jump)} times as far from its prediction as within")


class _Table:
    """The component table by level: shares of the measured step, with the ends of their intervals."""

    def __init__(self, physics: Physics) -> None:
        rows = physics.components
        self.step_s: dict[float, float] = {}
        self.parts: dict[float, dict[str, tuple[float, float, float]]] = {}
        for level in rows["running_req"].unique().tolist():
            of_level = rows[rows["running_req"].eq(level)]
            step_s = float(of_level["time_s"].sum())
            if not (isfinite(step_s) and step_s > 0):
                continue
            self.step_s[float(level)] = step_s
            self.parts[float(level)] = {
                str(row["name"]): (row["time_s"] / step_s, _or(row["lo"], row["time_s"]) / step_s,
                                   _or(row["hi"], row["time_s"]) / step_s)
                for row in of_level.drop_duplicates("name").to_dict("records")
            }
        self.levels = sorted(self.step_s)

    def share(self, level: float, *names: str, end: int = 0) -> float:
        """Share of the step of some parts together: best value (0), lower (1) or upper end (2)."""
        return sum(self.parts[level].get(name, (0.0, 0.0, 0.0))[end] for name in names)

    def rest(self, level: float, end: int = 0) -> float:
        """Unexplained share."""
        return self.share(level, "unexplained", end=end)

    def is_explained(self, level: float) -> bool:
        """Tell whether good kernels would take about as long."""
        return abs(self.rest(level)) <= EXPLAINED_FRAC and self.rest(level, 1) <= ALMOST_NONE


def _or(value: float, other: float) -> float:
    return float(value) if isfinite(value) else float(other)


def _explained(table: _Table) -> Iterator[Observation]:
    """Say which parts explain the step, and which cannot."""
    explained = [level for level in table.levels if table.is_explained(level)]
    if len(explained) == len(table.levels):
        worst = max(table.levels, key=lambda level: abs(table.rest(level)))
        yield _of("step_is_explained", 1.0, f"at every level the step is what good kernels take "
                  f"({_rest_words(table, worst)} at N={level_key(worst)})")
    for name, parts, words in (("weights", WEIGHTS, "weights"), ("kv", KV, "keys and values"),
                               ("state", ("state",), "recurrent states"), ("compute", ("compute",), "products"),
                               ("collectives", ("all_reduce",), "collectives")):
        top = table.levels[-1]  # where the server gives most: an explained step at fewer requests limits nothing
        if top in explained:
            share = table.share(top, *parts)
            yield _of(f"{name}_explained_frac", share, f"at N={level_key(top)} {words} at good kernels' rates take "
                      f"{share:.0%} of the step, and {_rest_words(table, top)}")
        if name == "collectives":
            continue
        at = max(table.levels, key=lambda level: table.share(level, *parts, end=2))
        most = table.share(at, *parts, end=2)
        yield _of(f"{name}_most_frac", most, f"{words} can take at most {most:.1%} of the step (N={level_key(at)})")


def _rest_words(table: _Table, level: float) -> str:
    rest = table.rest(level)
    return f"{rest:.0%} is unexplained" if rest >= 0 else f"the parts are {-rest:.0%} longer than the step"


def _rest(table: _Table) -> Iterator[Observation]:
    """Say how much is unexplained, and whether it is fixed or comes with the requests."""
    low, top = table.levels[0], table.levels[-1]
    least = min(table.levels, key=lambda level: table.rest(level, 1))
    worst = max(table.levels, key=lambda level: table.rest(level, 1))
    yield _of("unexplained_least_frac", table.rest(least, 1), "at every level " + _least_words(table.rest(least, 1)))
    yield _of("unexplained_worst_frac", table.rest(worst, 1),
              f"at N={level_key(worst)} " + _least_words(table.rest(worst, 1)))
    other = {level: max(table.rest(level, 2), 0.0) + table.share(level, "floor", end=2) for level in table.levels}
    at = max(other, key=lambda level: other[level])
    yield _of("other_share_most_frac", other[at],
              f"launch, latency and host can take at most {other[at]:.0%} of the step (N={level_key(at)})")
    fixed = table.rest(low, 1)
    yield _of("excess_fixed_frac", max(fixed, 0.0), f"at N={level_key(low)} " + _least_words(fixed))
    excess = _excess_slope(table)
    if excess is not None:
        frac, per_req_s = excess
        yield _of("excess_slope_frac", frac, f"{frac:.0%} of what is unexplained at N={level_key(top)} comes with the "
                  f"requests: {show(per_req_s, 's')} each")


def _least_words(frac: float) -> str:
    """Say how much of a step is surely unexplained."""
    return (f"at least {frac:.0%} of the step is unexplained by what it reads" if frac > 0
            else "what the step reads may explain all of it")


def _excess_slope(table: _Table) -> tuple[float, float] | None:
    """Return the share of the excess at the highest level that grows with the requests, and its time per request."""
    low, top = table.levels[0], table.levels[-1]
    if top < LARGE_RATIO * low or table.rest(top, 1) < MATTERS:
        return None
    at_low, at_top = (table.rest(level) * table.step_s[level] for level in (low, top))
    per_req_s = (at_top - at_low) / (top - low)
    return min(max(per_req_s * top / at_top, 0.0), 1.0), per_req_s


def _collectives(table: _Table, physics: Physics) -> Iterator[Observation]:
    """Hold the unexplained time against the number of collectives and the link they run over."""
    model = physics.model
    if not isinstance(model, DecodeModel):
        return
    ranks = model.parallel.tp * model.parallel.pp
    if ranks == 1:
        return
    most = {level: table.share(level, "all_reduce", end=2) + max(table.rest(level, 2), 0.0) for level in table.levels}
    at = max(most, key=lambda level: most[level])
    yield _of("collectives_most_frac", most[at], f"collectives can take at most {most[at]:.0%} of the step, with all "
              f"that is unexplained counted as theirs (N={level_key(at)})")
    low = table.levels[0]
    context = np.array([float(np.nanmean(physics.roofline.context_tok))])
    messages = [(forward.count * message.count, message) for forward in model.forwards(np.array([low]), context)
                for message in forward.messages]
    n_messages = sum(count for count, _ in messages)
    excess = _excess_slope(table)
    if n_messages and table.rest(low, 1) >= MATTERS and (excess is None or excess[0] < 0.5):
        each_s = (table.rest(low) + table.share(low, "all_reduce")) * table.step_s[low] / n_messages
        worst_s = NVLINK_MOST_S if physics.has_nvlink else PCIE_WORST_S
        link = "NVLink" if physics.has_nvlink else "PCIe"
        says = (f"the unexplained time at N={level_key(low)}, spread over {n_messages:.0f} collectives of a step, is "
                f"{1e6 * each_s:.0f} us each: {'within' if each_s <= worst_s else 'beyond'} what was seen over {link} "
                f"(up to {1e6 * worst_s:.0f} us)")
        if physics.has_nvlink is not None and (each_s > worst_s or not physics.has_nvlink):
            usual = 1.0 if each_s <= PCIE_MOST_S else 0.5
            yield _of("excess_fits_collectives", usual if each_s <= worst_s else 0.0, says)
    if excess is not None and excess[0] >= 0.5 and isfinite(physics.link_bytes_per_s):
        moved = sum(count * float(message.message_bytes[0]) for count, message in messages) / low
        rate = 2 * moved / max(excess[1], 1e-12)
        if rate < ABSURD_LINK_FRAC * physics.link_bytes_per_s:
            peak = physics.link_bytes_per_s
            yield _of("collective_slope_is_absurd", 1.0, f"if collectives took the {show(excess[1], 's')} that each "
                      f"request adds, the link would run at {rate / 1e9:.2g} of {peak / 1e9:.3g} GB/s")


def _context_limit(table: _Table, physics: Physics, facts: Mapping[str, Any]) -> Iterator[Observation]:
    """Compare the excess per request with the request's own cache, and the limit with the actual context."""
    limit = facts.get("context_length_max")
    contexts = [c for c in physics.roofline.context_tok if isfinite(c) and c > 0]
    if not limit or not contexts:
        return
    over = float(limit) / max(contexts)
    yield _of("context_limit_over_context", over,
              f"the longest context allowed ({limit:g} tok) is {show(over)} times the actual one")
    excess = _excess_slope(table)
    if excess is None or excess[0] < 0.6 or over < FAR_CONTEXT:
        return
    top = table.levels[-1]
    read = read_bytes(physics.model, np.array([top]), np.array([max(contexts)]))
    own = sum(float(np.ravel(read[name])[0]) for name in KV if name in read) / top
    rate = physics.hardware.mem_bw_bytes_per_s * physics.roofline.shares.bandwidth_frac
    extra = excess[1] * rate
    n_layers = physics.model.spec.n_layers if isinstance(physics.model, DecodeModel) else 0
    most = max(MOST_PER_POSITION * own / max(contexts), LEAST_PER_POSITION_BYTES * n_layers) * float(limit)
    if own > 0 and extra > BEYOND_OWN * own and (extra <= most or not n_layers):
        yield _of("excess_beyond_own_context", 1.0, f"each request pays {show(excess[1], 's')} that nothing it reads "
                  f"explains: as bytes {extra / 1e9:.2g} GB, {show(extra / own)} times its own cache")


def limits_apart(levels: pd.DataFrame, facts: list[Mapping[str, Any]]) -> Iterator[Observation]:
    """Say whether the step follows the configured context limit, where server lives differ in it.

    Parameters
    ----------
    levels : DataFrame, schema LEVELS
        Of all server lives.
    facts : list of mapping
        Of each life.
    """
    limits = {life: float(of["context_length_max"]) for life, of in enumerate(facts) if of.get("context_length_max")}
    known = levels[levels["step_s"].gt(0) & levels["population"].eq(0)]
    for one in limits:
        for other in limits:
            if limits[other] < OTHER_LIMIT * limits[one]:
                continue
            both = known[known["server_life"].eq(one)].merge(known[known["server_life"].eq(other)], on="running_req")
            both = both[both["running_req"].gt(1) | (len(both) == 1)]
            if both.empty:
                continue
            row = both.sort_values("running_req").iloc[-1]
            ratio = float(row["step_s_y"] / row["step_s_x"])
            if SAME_STEP < ratio - 1 < OTHER_STEP or ratio < 1 - SAME_STEP:
                continue
            yield Observation(
                "step_follows_context_limit", float(ratio - 1 >= OTHER_STEP), "baseline",
                f"at N={level_key(row['running_req'])} the step is {show(ratio)} times as long with a context limit of "
                f"{limits[other]:g} as with {limits[one]:g} tok", "server lives")
            return


def _of(name: str, value: float, says: str, channel: str = "step") -> Observation:
    return Observation(name, value, channel, says, SOURCE)
