"""What one change would give: the measured step, less or more what the model says the change does to it.

``step_new = step_measured + (target_then - target_now)``: never an ideal step against a measured one. What the model
does not explain of the measured step stays as it is. Other loads come from the measured law alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from helpers.physics.catalogue.hardware import Hardware
from helpers.physics.model.formats import FORMATS
from helpers.physics.steps.bound import CONTEXT_MISSING, floor_s, line_step_s
from helpers.physics.steps.decode import DecodeModel
from helpers.physics.steps.hand import HandModel
from helpers.physics.steps.step import ACHIEVABLE_RANGE, Link, achievable
from helpers.physics.what_if.changes import Change, Room, Setup, apply, fits_memory, largest_kv_pool_tok
from helpers.physics.what_if.measured import UNKNOWN, Law, MeasuredLevel
from helpers.physics.what_if.plausible import End, ends
from helpers.schema import RooflogError

__all__ = [
    "Change", "Law", "Lever", "MeasuredLevel", "Options", "Room", "Setup", "apply", "fits_memory",
    "largest_kv_pool_tok", "levers", "modelled_lever",
]

CENTRE, FAST, SLOW = 0, 1, 2  # places in what `ends` returns
NO_LAW = "the data have no law of step over load; measure at least three levels"


@dataclass(frozen=True)
class Lever:
    """The rate if one thing were different.

    Attributes
    ----------
    lever : str
        The change, in words.
    step_s, step_s_lo, step_s_hi : float
        Step (round under speculation) with the change [s]; NaN if refused.
    tok_per_s, lo, hi : float
        Decode rate of all running requests [tok/s].
    change_frac : float
        Rate over the measured one, minus 1 [1].
    assumes : tuple of str
        What the figure rests on.
    refused : str or None
        Why there is none.
    running_req : float
        Requests that run then [req].
    """

    lever: str
    step_s: float = UNKNOWN
    step_s_lo: float = UNKNOWN
    step_s_hi: float = UNKNOWN
    tok_per_s: float = UNKNOWN
    lo: float = UNKNOWN
    hi: float = UNKNOWN
    change_frac: float = UNKNOWN
    assumes: tuple[str, ...] = ()
    refused: str | None = None
    running_req: float = UNKNOWN


@dataclass(frozen=True)
class Options:
    """Which levers to compute.

    Attributes
    ----------
    weights, kv : tuple of str
        Formats of the weights and of the cache.
    hardware : tuple of Hardware
        Other accelerators, the same number of them.
    tp : tuple of int, optional
        Tensor-parallel ranks; by default twice and half of those now.
    context_tok, accept_len : tuple of float, optional
        By default half of the context; under speculation every drafted token accepted [tok].
    running_req : tuple of float, optional
        Other loads; by default half and twice [req].
    step_budget_s : tuple of float
        Longest step that a request may wait for its next token (round under speculation) [s].
    """

    weights: tuple[str, ...] = ("fp8", "nvfp4", "int4_g128")
    kv: tuple[str, ...] = ("fp8",)
    hardware: tuple[Hardware, ...] = ()
    tp: tuple[int, ...] | None = None
    context_tok: tuple[float, ...] | None = None
    accept_len: tuple[float, ...] | None = None
    running_req: tuple[float, ...] | None = None
    step_budget_s: tuple[float, ...] = ()


FindLinks = Callable[[DecodeModel | HandModel, Hardware], Mapping[int, Link]]
"""Model and accelerator -> collectives among its ranks."""


def no_links(model: DecodeModel | HandModel, hardware: Hardware) -> Mapping[int, Link]:
    """Return none: collectives cost nothing."""
    return {}


@dataclass(frozen=True)
class _Base:
    """Where all levers start: the deployment, its measured level, and how steps are modelled."""

    now: Setup
    level: MeasuredLevel
    achievable_frac: float | None = None
    find_links: FindLinks = field(default=no_links, repr=False)

    @property
    def tok_per_s(self) -> float:
        return self.level.running_req * self.now.accept_len / self.level.step_s

    def ends(self, setup: Setup) -> tuple[End, End, End]:
        """Shares and links at centre, fast and slow end; a share given by hand holds for its accelerator."""
        given = self.achievable_frac if setup.hardware == self.now.hardware else None
        return ends(achievable(setup.hardware, given), self.find_links(setup.model, setup.hardware))

    def targets_s(self, setup: Setup) -> tuple[float, float, float]:
        """Target step at centre, fast and slow end, no shorter than the floor of the kernels [s]."""
        least, most = floor_s(setup.model)
        floors = np.nan_to_num([np.sqrt(least * most), least, most])
        at = np.array([self.level.running_req])
        lines = [line_step_s(setup.model, setup.hardware, at, setup.context_tok, "target", shares=end.shares,
                             links=end.links) for end in self.ends(setup)]
        centre, fast, slow = (max(float(line[0]), float(floor)) for line, floor in zip(lines, floors, strict=True))
        return centre, fast, slow

    def strict_s(self, setup: Setup) -> float:
        at = np.array([self.level.running_req])
        return float(line_step_s(setup.model, setup.hardware, at, setup.context_tok, "strict")[0])

    def rate(self, lever: str, step_s: tuple[float, float, float], accept_len: float, assumes: tuple[str, ...],
             running_req: float | None = None) -> Lever:
        """Turn a step with its interval into a lever."""
        n = self.level.running_req if running_req is None else running_req
        middle, lo, hi = (n * accept_len / step_s[place] for place in (0, 2, 1))
        return Lever(lever, *step_s, middle, lo, hi, middle / self.tok_per_s - 1, assumes, running_req=n)


def levers(
    now: Setup, level: MeasuredLevel, *, law: Law | None = None, options: Options | None = None,
    achievable_frac: float | None = None, find_links: FindLinks = no_links,
) -> tuple[Lever, ...]:
    """Say what each change alone would give at a measured level.

    Parameters
    ----------
    now : Setup
        The deployment as it was measured.
    level : MeasuredLevel
    law : Law, optional
        Step over load, for levers of load and latency.
    options : Options, optional
    achievable_frac : float in (0, 1], optional
        Share of the peak bandwidth that kernels reach on the measured accelerator.
    find_links : callable
        Collectives of a model on an accelerator (``deployment.find_links``).

    Returns
    -------
    tuple of Lever
        ``refused`` says why one is not computed: degrees that do not fit, weights that do not fit into the memory,
        a load outside the measured range, a step below what the hardware allows.

    Notes
    -----
    The interval holds that of the measured step, and the modelled change at both ends of the shares and links that
    were seen. Where the format of the weights or the accelerator changes, its kernels may reach another share than
    today's: those ends are inside as well.
    """
    base, chosen = _Base(now, level, achievable_frac, find_links), options or Options()
    return (*_of_weights(base, chosen), *_of_deployment(base, chosen), *_of_requests(base, chosen),
            *_of_load(base, chosen, law))


def modelled_lever(
    now: Setup, level: MeasuredLevel, change: Change, *, lever: str = "", assumes: tuple[str, ...] = (),
    achievable_frac: float | None = None, find_links: FindLinks = no_links,
) -> Lever:
    """Say what any change would give; see `levers`. A change of nothing gives the measured rate."""
    return _modelled(_Base(now, level, achievable_frac, find_links), lever or "changed", change, assumes)


def _modelled(base: _Base, lever: str, change: Change, assumes: tuple[str, ...] = ()) -> Lever:
    now, level = base.now, base.level
    no_interval = () if level.has_interval else ("the measured step has no interval",)
    try:
        then = apply(now, change)
        if replace(then, accept_len=now.accept_len) == now:  # the same step: no model is needed
            said = (*assumes, *(("it is so already",) if then == now else ()), *no_interval)
            return base.rate(lever, (level.step_s, *level.span_s), then.accept_len, said)
        if refused := _no_room(base, then):
            return Lever(lever, refused=refused)
        before, after, strict_s = base.targets_s(now), base.targets_s(then), base.strict_s(then)
    except RooflogError as error:
        return Lever(lever, refused=str(error))
    if np.isnan([*before, *after]).any():
        return Lever(lever, refused=CONTEXT_MISSING)
    if before[FAST] > level.span_s[1]:
        return Lever(lever, refused=f"{1e3 * level.step_s:.4g} ms measured are less than the model says at its best "
                     f"({1e3 * before[FAST]:.4g} ms): an input is wrong")
    places = [(CENTRE, CENTRE), (FAST, FAST), (SLOW, SLOW)]
    places += [(CENTRE, FAST), (CENTRE, SLOW)] if _has_other_kernels(now, then) else []
    changes = [after[j] - before[i] for i, j in places]
    step_s, (step_lo, step_hi) = level.step_s + changes[0], level.span_s
    if step_s < strict_s:
        return Lever(lever, refused=f"{1e3 * level.step_s:.4g} ms measured and {1e3 * changes[0]:+.4g} ms modelled "
                     f"leave {1e3 * step_s:.4g} ms, below the least possible then ({1e3 * strict_s:.4g} ms): the "
                     "measured step is shorter than modelled, an input is wrong")
    rest_s = level.step_s - before[CENTRE]
    said = (f"what the model does not explain of the measured step ({1e3 * rest_s:.3g} ms) stays as it is",)
    ends_s = max(step_lo + min(changes), strict_s), step_hi + max(changes)
    return base.rate(lever, (step_s, *ends_s), then.accept_len, (*assumes, *said, *no_interval))


def _has_other_kernels(now: Setup, then: Setup) -> bool:
    """Tell whether kernels of another kind, or on another accelerator, do the work."""
    return now.hardware != then.hardware or (
        isinstance(now.model, DecodeModel) and isinstance(then.model, DecodeModel)
        and now.model.spec.formats != then.model.spec.formats)


def _no_room(base: _Base, then: Setup) -> str:
    """Say why a changed deployment cannot hold weights and context; empty where it can."""
    if not isinstance(then.model, DecodeModel):
        return ""
    model, context_tok = then.model, np.nan_to_num(then.context_tok)
    room = fits_memory(model.spec, model.parallel, then.hardware, base.level.running_req * context_tok, kv=model.kv,
                       has_draft=model.has_draft_layers)
    return room.sentence


def _of_weights(base: _Base, options: Options) -> Iterator[Lever]:
    lo, hi = ACHIEVABLE_RANGE
    reach = f"kernels of that format reach {lo:g} to {hi:g} of the peak bandwidth; quality is not considered"
    for name in options.weights:
        rate = FORMATS[name].compute if name in FORMATS else ""
        units = () if not rate or getattr(base.now.hardware, f"{rate}_flop_per_s") else (
            f"{base.now.hardware.name} has no {rate.upper()} units known: products run in 16 bit",)
        yield _modelled(base, f"weights in {name}", Change(weights=name),
                        (reach, "head, router, norms and draft layers stay in their format", *units))
    for name in options.kv:
        said = "attention reads them at the same share of the bandwidth; quality is not considered"
        yield _modelled(base, f"keys and values in {name}", Change(kv=name), (said,))


def _of_deployment(base: _Base, options: Options) -> Iterator[Lever]:
    for other in options.hardware:
        yield _modelled(base, f"on {other.name}", Change(hardware=other),
                        (f"the same number of {other.name} ({achievable(other).bandwidth_frac:.2g} of the peak "
                         "bandwidth), linked as the catalogue says; launch and host time as now", *other.warnings))
    model = base.now.model
    tp = model.tp if isinstance(model, HandModel) else model.parallel.tp
    wanted = (2 * tp, tp // 2) if options.tp is None else options.tp
    for ranks in (ranks for ranks in wanted if ranks >= 1):
        said = "weights, experts and caches are shared by the ranks as the model allows; collectives as modelled"
        yield _modelled(base, f"tp {ranks} instead of {tp}", Change(tp=ranks), (said,))
    if isinstance(model, DecodeModel) and model.captured_batch_sizes and base.level.running_req not in (
            model.captured_batch_sizes):
        yield _of_graphs(base, model)


def _of_graphs(base: _Base, model: DecodeModel) -> Lever:
    n = base.level.running_req
    padded, largest = float(model.padded(np.array([n]))[0]), max(model.captured_batch_sizes)
    lever = f"a graph captured at N={n:g}"
    if n > largest:
        return Lever(lever, refused=f"N={n:g} is above the largest captured size {largest} and runs without a graph: "
                     "the launches that one would save are not modelled; capture that size and measure")
    sizes = tuple(sorted({*model.captured_batch_sizes, int(np.ceil(n))}))
    return _modelled(base, lever, Change(captured_batch_sizes=sizes),
                     (f"kernels run at {np.ceil(n):g} instead of {padded:g} requests",))


def _of_requests(base: _Base, options: Options) -> Iterator[Lever]:
    """Context, acceptance, speculation."""
    now, model = base.now, base.now.model
    contexts = (now.context_tok / 2,) if options.context_tok is None else options.context_tok
    for context_tok in contexts:
        lever = f"context of {context_tok:.4g} tok per request instead of {now.context_tok:.4g}"
        yield _modelled(base, lever, Change(context_tok=context_tok),
                        ("the same requests with other contexts; a cost that grows with the configured maximum stays",))
    n_draft_tok = model.n_draft_tok if isinstance(model, DecodeModel) else 0
    lengths = ((n_draft_tok + 1.0,) if n_draft_tok else ()) if options.accept_len is None else options.accept_len
    for accept_len in lengths:
        yield _modelled(base, f"accept length {accept_len:g} instead of {now.accept_len:.3g}",
                        Change(accept_len=accept_len), ("the measured round, which does not depend on acceptance",))
    if n_draft_tok:
        yield _modelled(base, "no speculation", Change(no_speculation=True),
                        ("one token per request and step; draft and verification as modelled",))


def _of_load(base: _Base, options: Options, law: Law | None) -> Iterator[Lever]:
    """Take loads and latency from the measured law."""
    n = base.level.running_req
    usual = tuple(load for load in (n / 2, 2 * n) if law is not None and load >= 1)
    for load in usual if options.running_req is None else options.running_req:
        yield _at_load(base, f"{'fewer' if load < n else 'more'} requests: N={load:g}", load, law)
    for budget_s in options.step_budget_s:
        yield _within(base, budget_s, law)


def _at_load(base: _Base, lever: str, load: float, law: Law | None, assumes: tuple[str, ...] = ()) -> Lever:
    if law is None:
        return Lever(lever, refused=NO_LAW)
    if not law.covers(load):
        return Lever(lever, refused=f"N={load:g} is outside the measured {law.range_text}: measure it")
    if load == base.level.running_req:
        return base.rate(lever, (base.level.step_s, *base.level.span_s), base.now.accept_len, assumes)
    at = np.array([load])
    step_s = float(law.step_s(at)[0])
    lo, hi = (float(end[0]) for end in law.band_s(at)) if law.band_s is not None else (UNKNOWN, UNKNOWN)
    said = f"the measured law between {law.range_text}, contexts and acceptance as there"
    no_band = () if law.band_s is not None else ("the law has no interval here",)
    return base.rate(lever, (step_s, lo, hi), base.now.accept_len, (*assumes, said, *no_band), load)


def _within(base: _Base, budget_s: float, law: Law | None) -> Lever:
    """Find the largest load of the measured range whose step keeps a budget."""
    what = "round" if base.now.accept_len > 1 else "step"
    lever = f"largest load with a {what} within {1e3 * budget_s:g} ms"
    if law is None:
        return Lever(lever, refused=NO_LAW)
    loads = np.arange(np.ceil(law.range_req[0]), np.floor(law.range_req[1]) + 1)
    steps_s = law.step_s(loads) if len(loads) else np.array([])
    kept = loads[steps_s <= budget_s]
    if not len(kept):
        least = f"{1e3 * steps_s.min():.4g} ms" if len(steps_s) else "none at whole requests"
        return Lever(lever, refused=f"no load of the measured {law.range_text} keeps it (least: {least})")
    load = float(kept[-1])
    at_end = ("the budget holds up to the end of the measured range: more may fit",) if load == loads[-1] else ()
    return _at_load(base, f"{lever}: N={load:g}", load, law, at_end)
