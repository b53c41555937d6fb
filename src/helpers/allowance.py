"""What the hardware allows a deployment at given levels, as tables and as entries of a scorecard.

It says how far measured levels are from it, what their step is made of and what a change would give. `without_log` is
the same where nothing was measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import pandas as pd

from helpers import deployment
from helpers.deployment import Deployment
from helpers.display import level_key, show
from helpers.facts import Facts, as_number
from helpers.laws.band import confidence_band
from helpers.physics.catalogue import hardware
from helpers.physics.catalogue.hardware import Hardware
from helpers.physics.model.spec import HasExperts
from helpers.physics.steps import bound, prefill, step
from helpers.physics.steps.decode import DecodeModel
from helpers.physics.what_if import components, levers
from helpers.schema import LawFit, NotEnoughData, RooflogError

RATIO_LINE = "target"
"""The line of the scorecard's ``ratio``; ``ratios`` has all three."""

NO_LEVEL = "no level"

SAME_CONTEXT = 0.1
"""Share by which a context told may lie outside those of the levels without a word."""

MAX_IMPOSSIBLE = 2
"""Impossible values said one by one; they mostly have one cause."""

WHAT_IF = tuple(option.name for option in fields(levers.Options))
"""Names of the fact ``what_if``: the changes whose effect is computed."""

NAMED_CHANGES = ("weights", "kv", "hardware")
"""Those of them that are names; the others are numbers."""

OTHER_HARDWARE = ("H100 SXM 80GB", "H200 SXM 141GB", "B200 SXM (HGX)")
"""Accelerators that levers name where none is asked for."""


@dataclass(frozen=True)
class Allowance:
    """What a deployment could do, beside what it did.

    Attributes
    ----------
    deployment : Deployment
    roofline : bound.Roofline
        With the measured steps inside.
    components : DataFrame or None
        From `components.component_table`; None where there is no line.
    achieved : DataFrame or None
        From `components.achieved`: shares of the peaks.
    levers : tuple of levers.Lever
        At the highest level.
    prefill : prefill.Prefill or None
        Bound of a prompt, where its length and the configuration are known.
    impossible : tuple of str
        Values that cannot be, with the input that is most likely wrong.
    """

    deployment: Deployment
    roofline: bound.Roofline
    components: pd.DataFrame | None = None
    achieved: pd.DataFrame | None = None
    levers: tuple[levers.Lever, ...] = ()
    prefill: prefill.Prefill | None = None

    impossible: tuple[str, ...] = ()

    def ideal_step_s(self, running_req: np.ndarray) -> np.ndarray:
        """Return the step of ideal kernels [s] at any running_req for the mean context of the levels.

        The expected line, or the strict one where the routing of experts is not known.
        """
        line = "strict" if self.roofline.expected is None else "expected"
        context_tok = float(np.nanmean(self.roofline.context_tok))
        return bound.line_step_s(self.deployment.model, self.deployment.hardware, running_req, context_tok, line,
                                 links=self.deployment.links)

    @property
    def experts(self) -> tuple[int, int] | None:
        """Routed experts and those of one token, where a step decodes one token of each request."""
        model = self.deployment.model
        if not isinstance(model, DecodeModel) or model.n_draft_tok or model.parallel.dp_attention:
            return None
        feeds = [layer.feed for layer in model.spec.layers if isinstance(layer.feed, HasExperts)]
        return (feeds[0].n_experts, feeds[0].n_active) if feeds else None


def of_levels(levels: pd.DataFrame, facts: Facts) -> Allowance:
    """Hold the levels of the data against the hardware.

    Parameters
    ----------
    levels : DataFrame, schema LEVELS
        Fitted ones are used; where none is, those with a step.
    facts : Facts
        Of the deployment.

    Returns
    -------
    Allowance
        Without levers: they need the law of the data (`with_levers`).

    Raises
    ------
    NotEnoughData
        Hardware, model or a level is missing.
    RooflogError
        A fact that cannot be used, with the way on.
    """
    used = _used(levels)
    of = deployment.resolve(facts)
    if used.empty:
        raise NotEnoughData(NO_LEVEL)
    context_tok = used["context_tok"].astype("float64")
    told = _told_context(facts)
    if context_tok.isna().all() and told is not None:
        context_tok = context_tok.fillna(told)
    of = replace(of, warnings=(*of.warnings, *_other_context(facts, context_tok)))
    roofline = bound.roofline(of.model, of.hardware, used["running_req"], context_tok, step_s=used["step_s"],
                              links=of.links, achievable_frac=facts.get("achievable_frac"))
    if roofline.refused is not None:
        return Allowance(of, roofline)
    measured = (of.model, of.hardware, used["running_req"], context_tok, used["step_s"], used["step_s_lo"],
                used["step_s_hi"])
    table = components.component_table(*measured, shares=roofline.shares, links=of.links)
    reached = components.achieved(*measured)
    return Allowance(of, roofline, table, reached, prefill=prefill_of(of, facts.get("prompt_tokens"), roofline.shares),
                     impossible=(*_impossible(roofline, table, reached), *_no_room(of)))


def _used(levels: pd.DataFrame) -> pd.DataFrame:
    """Return the fitted levels; those that have a step where none is fitted."""
    fitted = levels[levels["is_fitted"] & (levels["population"] == 0)]
    return levels[(levels["population"] == 0) & levels["step_s"].notna()] if fitted.empty else fitted


def with_levers(allowed: Allowance, levels: pd.DataFrame, law: LawFit, facts: Facts) -> Allowance:
    """Add what single changes would give at the highest level, from its measured step.

    Parameters
    ----------
    allowed : Allowance
        From `of_levels`, with a roofline.
    levels : DataFrame, schema LEVELS
    law : LawFit
        The selected law; refused ones give no levers of load.
    facts : Facts
        ``what_if`` chooses the changes; a usual set without it.

    Returns
    -------
    Allowance
    """
    of = allowed.deployment
    now, level = _top(allowed, levels)
    found = levers.levers(
        now, level, law=_measured_law(levels, law), options=_options(facts, of.hardware),
        achievable_frac=facts.get("achievable_frac"), find_links=_links_as(allowed),
    )
    return replace(allowed, levers=found)


def lever_of(allowed: Allowance, levels: pd.DataFrame, change: levers.Change) -> levers.Lever:
    """Say what any change would give at the highest level, from its measured step."""
    now, level = _top(allowed, levels)
    frac = allowed.roofline.achievable_frac
    return levers.modelled_lever(now, level, change, achievable_frac=frac, find_links=_links_as(allowed))


def changed_roofline(allowed: Allowance, change: levers.Change) -> bound.Roofline:
    """Return the lines of a changed deployment at the levels of the data, with the steps as they were measured."""
    roofline, of = allowed.roofline, allowed.deployment
    then = levers.apply(levers.Setup(of.model, of.hardware, float(np.nanmax(roofline.context_tok))), change)
    context_tok = roofline.context_tok if change.context_tok is None else change.context_tok
    frac = roofline.achievable_frac if then.hardware == of.hardware else None
    return bound.roofline(then.model, then.hardware, roofline.running_req, context_tok, achievable_frac=frac,
                          step_s=roofline.measured_step_s, links=_links_as(allowed)(then.model, then.hardware))


def _links_as(allowed: Allowance) -> levers.FindLinks:
    """Return the collectives as this deployment has them; on another accelerator, those of its catalogue row."""
    of = allowed.deployment
    return lambda model, board: deployment.find_links(
        model, board, of.interconnect if board == of.hardware else None, of.has_graph)


def _top(allowed: Allowance, levels: pd.DataFrame) -> tuple[levers.Setup, levers.MeasuredLevel]:
    """Return the deployment and the measured step at the highest level."""
    of, roofline = allowed.deployment, allowed.roofline
    is_known = np.isfinite(roofline.measured_step_s)
    if not is_known.any():
        raise NotEnoughData("no level has a measured step")
    top = int(np.nanargmax(np.where(is_known, roofline.running_req, np.nan)))
    used = _used(levels)
    row = used[used["running_req"].eq(roofline.running_req[top])].iloc[0]
    accept_len = 1.0 if pd.isna(row["accept_len"]) else float(row["accept_len"])
    ends_s = ("step_s_lo", "step_s_hi")
    return (levers.Setup(of.model, of.hardware, roofline.context_tok[top], accept_len),
            levers.MeasuredLevel(float(row["running_req"]), float(row["step_s"]), *(_number(row[e]) for e in ends_s)))


def _measured_law(levels: pd.DataFrame, law: LawFit) -> levers.Law | None:
    """Return the law as levers take it; None where it is refused."""
    if law.refused or law.predict_step_s is None:
        return None

    band = confidence_band(levels, law)

    def band_s(running_req: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        lo, hi = (np.interp(running_req, band["running_req"], band[name]) for name in ("step_s_lo", "step_s_hi"))
        return lo, hi

    return levers.Law(law.predict_step_s, (law.running_req_min, law.running_req_max), band_s if len(band) else None)


def _options(facts: Facts, now: Hardware) -> levers.Options:
    """Read the changes to compute from the fact ``what_if``."""
    asked = facts.get("what_if") or {}
    if not isinstance(asked, Mapping) or not set(asked) <= set(WHAT_IF):
        raise RooflogError(f"what_if: expected an object of {', '.join(WHAT_IF)}, found {asked!r}")
    given = {name: _changes(name, value if isinstance(value, list | tuple) else [value])
             for name, value in asked.items() if value is not None}
    boards = [_board(name) for name in given.pop("hardware", OTHER_HARDWARE)]
    return levers.Options(**given, hardware=tuple(board for board in boards if board != now))


def _changes(name: str, values: Sequence[Any]) -> tuple[Any, ...]:
    """Return the changes of one kind in its type; one that is of another type is an error that names it."""
    if name in NAMED_CHANGES:
        wrong = [value for value in values if not isinstance(value, str) or not value]
        found, expected = list(values), "names"
    else:
        found = [as_number(value) for value in values]
        is_whole = name == "tp"
        wrong = [value for value, number in zip(values, found, strict=True)
                 if number is None or number <= 0 or (is_whole and not number.is_integer())]
        found = [int(number) if is_whole else number for number in found if number is not None] if not wrong else []
        expected = "whole numbers from 1" if is_whole else "numbers above 0"
    if wrong:
        raise RooflogError(f"what_if.{name}: expected {expected}, found {wrong[0]!r}; no lever is computed")
    return tuple(found)


def _board(name: str) -> Hardware:
    try:
        return hardware.find(name)
    except RooflogError as error:
        raise RooflogError(f"what_if: {error}; no lever is computed") from None


def _number(value: Any) -> float:
    return float("nan") if pd.isna(value) else float(value)


def _told_context(facts: Facts) -> float | None:
    """Context per request as the user says it, or as prompt and output lengths give it [tok]."""
    if facts.get("context_tok") is not None:
        return float(facts.get("context_tok"))
    if facts.get("prompt_tokens") is not None:
        return float(facts.get("prompt_tokens") + facts.get("output_tokens", 0.0) / 2)
    return None


def _other_context(facts: Facts, context_tok: pd.Series) -> list[str]:
    """Say so where the user's context is none of those that the levels have: theirs are used."""
    told, least, most = facts.get("context_tok"), context_tok.min(), context_tok.max()
    if told is None or pd.isna(least) or (1 - SAME_CONTEXT) * least <= told <= (1 + SAME_CONTEXT) * most:
        return []
    return [f"context_tok: the levels have {show(least)} to {show(most, 'tok')} of their own, --context says "
            f"{show(told, 'tok')}; their own is used"]


def _impossible(roofline: bound.Roofline, table: pd.DataFrame, reached: pd.DataFrame) -> list[str]:
    """Return the first impossible values; none where a step below its bound says the same already."""
    if roofline.strict and np.less(roofline.measured_step_s, roofline.strict.step_s).any():
        return []
    found = list(components.impossible(table, reached))
    rest = len(found) - MAX_IMPOSSIBLE
    return found if rest <= 0 else [*found[:MAX_IMPOSSIBLE], f"{rest} more values of the component table cannot be"]


def _no_room(of: Deployment) -> list[str]:
    """Say so where the weights would not have fitted: the server ran, so an input is wrong."""
    if not isinstance(of.model, DecodeModel):
        return []
    room = levers.fits_memory(of.model.spec, of.model.parallel, of.hardware, kv=of.model.kv)
    return [] if room.fits else [f"the weights do not fit, so model, format, tp or hardware is wrong: {room.sentence}"]


def prefill_of(of: Deployment, prompt_tok: float | None, shares: step.Shares) -> prefill.Prefill | None:
    """Return the bound of a prompt's prefill; None without a prompt or without a configuration."""
    if not prompt_tok or not isinstance(of.model, DecodeModel):
        return None
    return prefill.prefill_bound(of.model, of.hardware, prompt_tok, chunk_tok=of.chunk_tok, shares=shares,
                                 links=of.links)


def roofline_entry(roofline: bound.Roofline | None, refused: str | None = None) -> dict[str, Any]:
    """Return the scorecard's roofline: the lines, measured over each at every level, what it rests on, or why not."""
    if roofline is None:
        return {name: None for name in step.LINES} | {"ratio": {}, "ratios": {}, "assumptions": [], "refused": refused}
    keys = [level_key(level) for level in roofline.running_req]
    entry: dict[str, Any] = {}
    for name in step.LINES:
        line = roofline.line(name)
        entry[name] = None if line is None else {
            "intercept_s": line.intercept_s, "slope_s_per_req": line.slope_s_per_req,
            "step_s": dict(zip(keys, line.step_s, strict=True)),
            "parts_s": {part: dict(zip(keys, times, strict=True)) for part, times in line.parts.items()},
        }
    ratios = {
        name: {key: times for key, times in zip(keys, roofline.ratio(name), strict=True) if np.isfinite(times)}
        for name in step.LINES
    }
    said = [f"expected: {roofline.expected_refused}"] if roofline.expected_refused else []
    return entry | {
        "ratio": ratios[RATIO_LINE],
        "ratio_line": RATIO_LINE,
        "ratios": ratios,
        "regimes": dict(zip(keys, roofline.regimes, strict=True)) if roofline.regimes else {},
        "knees_req": dict(roofline.knees_req),
        "floor_s": list(roofline.floor_s),
        "bytes": {group: dict(zip(keys, n_bytes, strict=True)) for group, n_bytes in roofline.bytes_read.items()},
        "assumptions": [*roofline.assumptions, *said],
        "refused": refused,
    }


def entries(allowed: Allowance | None, refused: str | None = None) -> dict[str, Any]:
    """Return the scorecard's entries: roofline, components (of the highest level, and by level), levers."""
    by_level: dict[str, list[dict[Any, Any]]] = {}
    if allowed is not None and allowed.components is not None:
        table = allowed.components.sort_values("running_req", kind="stable")
        for row in table.to_dict("records"):
            by_level.setdefault(level_key(row["running_req"]), []).append(row)
    roofline = roofline_entry(allowed.roofline if allowed is not None else None, refused)
    if allowed is not None and allowed.prefill is not None:
        roofline["prefill"] = prefill.prefill_table([allowed.prefill])[0]
    names = ("lever", "tok_per_s", "lo", "hi", "step_s", "step_s_lo", "step_s_hi", "change_frac", "assumes", "refused")
    return {
        "roofline": roofline,
        "components": [*by_level.values()][-1] if by_level else [],
        "components_by_level": by_level,
        "levers": [{name: getattr(lever, name) for name in names} for lever in allowed.levers] if allowed else [],
    }
