"""What every stage of a run and every side file says, as observations."""

from __future__ import annotations

import json
from collections.abc import Iterator
from math import isfinite, nan
from typing import Any

import numpy as np
import pandas as pd

from helpers import deployment
from helpers.allowance import Allowance, prefill_of
from helpers.diagnose import fingerprints, of_events, of_log, of_machine, of_physics, of_steps
from helpers.diagnose.fingerprints import INDEX_PAGE
from helpers.diagnose.observations import Observation
from helpers.evidence.links import judge_links, link_states_of_telemetry
from helpers.evidence.profiles import Profile
from helpers.facts import as_number
from helpers.investigation.run import Run
from helpers.investigation.side_files import Evidence
from helpers.physics.steps.decode import DecodeModel
from helpers.physics.steps.demand import read_bytes
from helpers.physics.steps.step import achievable
from helpers.schema import RooflogError


def observe(run: Run, evidence: Evidence, baseline: Run | None) -> Iterator[Observation]:
    """Yield what every stage and file says.

    Parameters
    ----------
    run : Run
    evidence : Evidence
        From `side_files.gather`.
    baseline : Run or None
        Another run of the same server.
    """
    facts = _in_requests(run)
    physics = _physics(run)
    if not run.samples.empty:
        yield from of_log.observe(run.samples, facts, run.lives)
        yield from of_steps.observe(run.intervals, run.levels, run.samples, facts, run.lives, _growth(run),
                                    _prefill_s_per_tok(run))
        yield from of_events.observe(run.events, run.samples, run.levels, facts, run.lives)
    if physics is not None:
        yield from of_physics.observe(physics, facts)
        yield from _without_drafts(run)
    yield from of_physics.limits_apart(run.levels, list(run.life_facts))
    yield from of_machine.of_facts(facts)
    yield from _sizes(run)
    for recording in (evidence.recording, evidence.gauges):
        if recording is not None and len(recording.loaded):
            board = None if run.allowed is None else run.allowed.deployment.hardware
            boost_hz = board.boost_hz if board is not None and board.boost_hz else nan
            yield from of_machine.of_telemetry(recording.loaded, facts, recording.table, boost_hz, recording.at)
    yield from _links(run, evidence, physics)
    if evidence.profile is not None:
        yield from _profile(evidence.profile, run)
    if baseline is not None:
        here, there = (None if item is None else item.loaded for item in (evidence.recording, evidence.baseline))
        yield from of_machine.of_baseline(run.levels, baseline.levels, here, there, run.lives)


def _in_requests(run: Run) -> dict[str, Any]:
    """Return the facts with captured sizes in requests: vLLM captures tokens, and a round brings several at once."""
    sizes = deployment.captured_requests(run.facts, deployment.draft_tokens(run.facts))
    return {**run.facts.values, **({"captured_batch_sizes": list(sizes)} if sizes else {})}


def _physics(run: Run) -> of_physics.Physics | None:
    """Return the hardware's side; None where it is not known, or contradicts itself: then nothing follows from it."""
    allowed = run.allowed
    if allowed is None or allowed.components is None or allowed.roofline.refused or _is_contradicted(allowed):
        return None
    links = [link for link in (getattr(item, "link", None) for item in allowed.deployment.links.values()) if link]
    has_nvlink = None if not links or not links[0].kind else not links[0].is_pcie
    return of_physics.Physics(
        allowed.deployment.model, allowed.deployment.hardware, allowed.roofline, allowed.components, allowed.achieved,
        run.fits.linear, has_nvlink, float(links[0].bytes_per_s) if links and links[0].bytes_per_s else nan,
        allowed.deployment.links)


def _is_contradicted(allowed: Allowance) -> bool:
    """Tell whether a value cannot be, or a step is faster than its bound: hardware or model is wrong then."""
    strict = allowed.roofline.strict
    return bool(allowed.impossible) or (
        strict is not None and bool(np.less(allowed.roofline.measured_step_s, strict.step_s).any()))


def _growth(run: Run) -> of_steps.Growth | None:
    """Return by how much the bytes of a step grow with the context, where the model is known and not contradicted."""
    if run.allowed is not None and _is_contradicted(run.allowed):
        return None
    try:
        model = deployment.resolve_model(run.facts)
    except RooflogError:
        return None

    def growth(running_req: float, context_tok: float) -> float:
        both = read_bytes(model, np.full(2, running_req), np.array([context_tok, context_tok * 1.01]))
        total = np.sum([np.broadcast_to(n_bytes, 2) for n_bytes in both.values()], axis=0)
        return float((total[1] / total[0] - 1) / (0.01 * context_tok)) if total[0] > 0 else nan

    return growth


def _prefill_s_per_tok(run: Run) -> float:
    """Return what good kernels take for a prompt token of this load; NaN where hardware or model are not known."""
    try:
        of = deployment.resolve(run.facts)
    except RooflogError:
        return nan
    found = prefill_of(of, float(run.facts.get("prompt_tokens") or USUAL_PROMPT_TOK), achievable(of.hardware))
    return nan if found is None else found.target_s / found.prompt_tok


USUAL_PROMPT_TOK = 1024.0
"""Prompt whose cost per token stands for others where theirs is not known [tok]: attention adds little up to there."""


def _without_drafts(run: Run) -> Iterator[Observation]:
    """Hold the measured rate against what the model gives without speculation."""
    if run.allowed is None:
        return
    lever = next((item for item in run.allowed.levers if item.lever == "no speculation"), None)
    if lever is None or lever.refused or lever.change_frac is None or not isfinite(lever.lo) or not isfinite(lever.hi):
        return
    now = lever.tok_per_s / (1 + lever.change_frac)
    if lever.lo > now or lever.hi < now:
        slower = lever.lo > now
        yield Observation("slower_than_without_drafts", float(slower), "step",
                          f"without drafts the same server would give {lever.lo:.3g} to {lever.hi:.3g} tok/s, with "
                          f"them it gives {now:.3g}", "levers")


def _sizes(run: Run) -> Iterator[Observation]:
    """Factor the sizes of failed allocations with the longest context."""
    limit = run.facts.get("context_length_max")
    failed = run.events[run.events["kind"].eq("out_of_memory") & run.events["size_bytes"].gt(0)]
    if not limit or failed.empty:
        return
    heads, other = _dimensions(run)
    pages = tuple(sorted({INDEX_PAGE, *(int(page) for page in (run.facts.get("page_size"),) if page)}))
    for at in failed.drop_duplicates("size_bytes").to_dict("records"):
        size = float(at["size_bytes"])
        near = _running_near(run.samples, int(at["server_life"]), int(at["line_no"]))
        n_max = int(run.facts.get("max_running_requests") or 0) or max([*near, 1])
        found = fingerprints.find(size, context_length_max=int(limit), n_max=n_max, heads=heads, near_req=near,
                                  page_tok=pages, other_dims=other)
        if found:
            best = found[0]
            yield Observation("size_fingerprint", 1.0 - best.chance_frac, "events",
                              f"a failed allocation of {size / 2**30:.3g} GiB is {best.sentence}",
                              f"{at['file']}:{at['line_no']}")


def _running_near(samples: pd.DataFrame, life: int, line_no: int) -> list[int]:
    """Return how many requests may have run at a line: as the last records print, and with those just admitted."""
    before = samples[samples["server_life"].eq(life) & samples["line_no"].lt(line_no) & samples["running_req"].notna()]
    near = set[int]()
    for kind in before["kind"].unique():
        last = before[before["kind"].eq(kind)].iloc[-1]
        running = int(last["running_req"])
        admitted = as_number(json.loads(last["extra"] if isinstance(last["extra"], str) else "{}").get("#new-seq")) or 0
        near |= {running, running + int(admitted)}
    return sorted(n for n in near if n > 0)


def _dimensions(run: Run) -> tuple[dict[str, int], dict[str, int]]:
    """Return head counts of the model, and dimensions that mean something else."""
    try:
        model = deployment.resolve_model(run.facts)
    except RooflogError:
        return {"index heads": DEFAULT_INDEX_HEADS}, {}
    if not isinstance(model, DecodeModel):
        return {"index heads": DEFAULT_INDEX_HEADS}, {}
    heads = {"index heads": DEFAULT_INDEX_HEADS}
    for layer in model.spec.layers:
        for name, words in (("index_heads", "index heads"), ("n_heads", "attention heads")):
            count = getattr(layer.mixer, name, None)
            if isinstance(count, int) and count > 1:
                heads[words] = count
    if "attention heads" in heads and model.parallel.tp > 1:
        heads["heads per rank"] = max(heads["attention heads"] // model.parallel.tp, 1)
    other = {"vocabulary": model.spec.vocab, "hidden size": model.spec.hidden}
    for name, fact in (("chunk of a prefill", "chunked_prefill_size"), ("KV pool", "kv_pool_tokens")):
        if isinstance(run.facts.get(fact), int):
            other[name] = run.facts.get(fact)
    return heads, other


DEFAULT_INDEX_HEADS = 64
"""Index heads of the models with sparse attention (DeepSeek-V3.2, V4: config.json, index_n_heads)."""


def _links(run: Run, evidence: Evidence, physics: of_physics.Physics | None) -> Iterator[Observation]:
    """Say how the ranks are joined: by a topology print, else by the catalogue or the user's word."""
    findings = [] if evidence.topology is None else judge_links(evidence.topology.links)
    if evidence.recording is not None and len(evidence.recording.loaded):
        states = link_states_of_telemetry(evidence.recording.loaded)
        findings += [item for item in (judge_links(states) if len(states) else [])
                     if item.kind == "link_reduced"]
    reduced = [item.statement for item in findings if item.kind == "link_reduced" and item.is_proven]
    kinds = {item.kind for item in findings if item.is_proven}
    has_nvlink: bool | None = None
    source = "topology"
    if kinds & {"no_nvlink", "all_nvlink"}:
        has_nvlink = "all_nvlink" in kinds
    elif physics is not None and (run.facts.get("tp") or 1) > 1:
        has_nvlink, source = physics.has_nvlink, "catalogue or --context"
    yield from of_machine.of_links(has_nvlink, reduced, source, is_printed=source == "topology")


def _profile(profile: Profile, run: Run) -> Iterator[Observation]:
    """Hand the profile's numbers on, and factor its shapes with the longest context."""
    model = run.allowed.deployment.model if run.allowed is not None else None
    n_layers = float(model.spec.n_layers) if isinstance(model, DecodeModel) else nan
    yield from of_machine.of_profile(
        profile.kernels, gap_frac=profile.gap_frac, small_launch_frac=profile.small_launch_frac,
        n_steps=float(profile.n_steps) if profile.n_steps else nan, running_req=profile.running_req,
        n_layers=n_layers, file=str(profile.tally.file))
    limit = run.facts.get("context_length_max")
    if limit and profile.shapes:
        near = [int(profile.running_req)] if isfinite(profile.running_req) else []
        found = fingerprints.find_in_shapes([shape[2] for shape in profile.shapes], context_length_max=int(limit),
                                            near_req=near, other_dims=_dimensions(run)[1])
        if found:
            yield Observation("shape_fingerprint", 1.0 - found[0].chance_frac, "profile", found[0].sentence,
                              str(profile.tally.file))
