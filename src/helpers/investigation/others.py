"""Side files and facts that cannot be of the run: refused with the reason, rather than believed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pandas as pd

from helpers.diagnose.reconcile import ProfileMatch
from helpers.display import show
from helpers.evidence.profiles import Profile, vendor_of
from helpers.facts import Facts
from helpers.investigation.run import Run
from helpers.physics.model.spec import HasExperts
from helpers.physics.steps.decode import DecodeModel

OTHER_STEP = 1.5
"""Factor between the step of a profile and the log's from which it is of another load: a profiler adds less."""

EXPERT_FRAC = 0.05
"""Share of a profile's time in expert kernels that a dense model cannot have: single names may be misread."""

VENDOR_FRAC = 0.1
"""Share of a profile's time under the other vendor's names from which it is of other hardware."""

MORE_THAN_ROUNDING = 1.02
"""Ratio from which a recorded value contradicts a limit."""

MANY_RECORDS = 3
"""Records above a limit from which the limit is wrong: one may be a misprint."""


def foreign_profile(profile: Profile, match: ProfileMatch | None, run: Run) -> str | None:
    """Return why a profile cannot be of this run; None where nothing speaks against it.

    Parameters
    ----------
    profile : Profile
    match : ProfileMatch or None
        Its step against the log's.
    run : Run

    Returns
    -------
    str or None
    """
    if match is not None and match.represents is False and not 1 / OTHER_STEP < match.ratio < OTHER_STEP:
        return (f"its step is {show(match.ratio, '', match.ratio_lo, match.ratio_hi)} times the log's at "
                f"N={match.level_req:g}: it is of another load")
    total_s = float(profile.kernels["total_s"].sum())
    if run.allowed is None or not total_s > 0:
        return None
    own = str(run.allowed.deployment.hardware.vendor)
    by_vendor = profile.kernels.groupby(profile.kernels["name"].map(vendor_of))["total_s"].sum() / total_s
    for vendor, share in by_vendor.items():
        if vendor and own and vendor != own and share >= VENDOR_FRAC:
            return f"{share:.0%} of its time lies in kernels of {vendor}, and the hardware is of {own}"
    model = run.allowed.deployment.model
    experts = float(profile.kernels.loc[profile.kernels["role"].eq("moe"), "total_s"].sum()) / total_s
    is_dense = isinstance(model, DecodeModel) and not any(
        isinstance(layer.feed, HasExperts) for layer in model.spec.layers)
    if is_dense and experts >= EXPERT_FRAC:
        return f"{experts:.0%} of its time lies in kernels of experts, and the model has none"
    return None


def foreign_baseline(run: Run, baseline: Run) -> str | None:
    """Return why another log is no baseline of this one; None where nothing speaks against it."""
    for name in ("engine", "model"):
        if run.facts.source.get(name) != baseline.facts.source.get(name):
            continue  # the user's word for what the other log calls otherwise proves no difference
        here, there = (str(item.facts.get(name) or "").rstrip("/").rsplit("/", 1)[-1] for item in (run, baseline))
        if here and there and here.lower() != there.lower():
            return f"its {name} is {there}, this log's is {here}"
    return None


def believable(facts: Facts, samples: pd.DataFrame) -> Facts:
    """Drop facts of the user that the log's own records contradict, and say so.

    Parameters
    ----------
    facts : Facts
        Of one server life.
    samples : DataFrame, schema SAMPLES
        Of the same life.

    Returns
    -------
    Facts
        Without the limits that the server was seen beyond; each is in ``unused`` with the reason.
    """
    running, held = samples["running_req"].astype(float), samples["used_tok"].astype(float)
    # A prompt in chunks holds tokens and is not counted as running yet.
    seen = {"context_length_max": (held / (running.where(running > 0) + 1), "tok", "a mean context"),
            "kv_pool_tokens": (held, "tok", "KV tokens in use"),
            "max_running_requests": (running, "req", "running requests")}
    values, unused = dict(facts.values), dict(facts.unused)
    for name, (records, unit, words) in seen.items():
        limit = facts.values.get(name)
        if limit is None or facts.source.get(name) != "user":
            continue
        beyond = records[records > MORE_THAN_ROUNDING * float(limit)]
        if len(beyond) >= MANY_RECORDS:
            del values[name]
            unused[name] = (f"{limit} contradicts the log, not used: {len(beyond)} records show {words} above it, "
                            f"up to {show(float(beyond.max()), unit)}")
    source: Mapping[str, str] = {key: said for key, said in facts.source.items() if key in values}
    return replace(facts, values=values, source=source, unused=unused)
