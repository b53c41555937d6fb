"""From observations to ranked causes, what is missing, and the experiment that tells them apart."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from helpers import deployment, plan
from helpers.diagnose import judge, of_physics
from helpers.diagnose.judge import Finding
from helpers.diagnose.observations import Observations
from helpers.investigation.observe import observe
from helpers.investigation.others import foreign_baseline, foreign_profile
from helpers.investigation.reconciled import Reconciled, observe_clients, reconcile_all
from helpers.investigation.run import Run
from helpers.investigation.side_files import Evidence
from helpers.schema import Fits, RooflogError, kept_rows


@dataclass(frozen=True)
class Judgement:
    """What the evidence says.

    Attributes
    ----------
    seen : Observations
    findings : tuple of Finding
        Ranked causes.
    plans : tuple of plan.Plan
        Experiments, most telling per minute first.
    evidence : Evidence
    reconciled : Reconciled
        Log against client and profile.
    missing : tuple of str
        What was not given and would tell more.
    """

    seen: Observations
    findings: tuple[Finding, ...]
    plans: tuple[plan.Plan, ...]
    evidence: Evidence
    reconciled: Reconciled
    missing: tuple[str, ...]


def investigate(run: Run, evidence: Evidence, baseline: Run | None = None) -> Judgement:
    """Rank the causes of what limits decode, and choose the experiment that tells them apart.

    Parameters
    ----------
    run : Run
    evidence : Evidence
        From `gather`.
    baseline : Run, optional
        Another run of the same server.

    Returns
    -------
    Judgement
    """
    reconciled = reconcile_all(run, evidence.clients, evidence.profile)
    evidence, baseline = _of_this_run(run, evidence, baseline, reconciled)
    seen = Observations([*observe(run, evidence, baseline),
                         *observe_clients(reconciled, run.facts.get("kv_pool_tokens"))])
    if seen.named("boards_differ"):
        # The lines are of one kind of board: nothing follows from them here.
        seen = seen.without("step", source=of_physics.SOURCE)
    missing = tuple(_missing(run, evidence))
    findings = judge.judge(seen, missing=missing)
    plans = plan.choose_for([vars(item) for item in findings], known(run, evidence))
    return Judgement(seen, findings, tuple(plans), evidence, reconciled, missing)


def _of_this_run(
    run: Run, evidence: Evidence, baseline: Run | None, reconciled: Reconciled
) -> tuple[Evidence, Run | None]:
    """Take out what cannot be of this run, or cannot be held against it, with a note for each."""
    notes = list(evidence.notes)
    if evidence.profile is not None and (why := foreign_profile(evidence.profile, reconciled.profile, run)):
        notes.append(f"{evidence.profile.tally.file}: not used: {why}")
        evidence = replace(evidence, profile=None)
    if baseline is not None and (why := foreign_baseline(run, baseline)):
        notes.append(f"the baseline is not used: {why}")
        evidence, baseline = replace(evidence, baseline=None), None
    if evidence.clients is not None and reconciled.main is None:
        why = reconciled.clients[0].placed if reconciled.clients else "a table of rates has no times"
        notes.append(f"the client's results are not used: {why}")
    return replace(evidence, notes=tuple(notes)), baseline


def _missing(run: Run, evidence: Evidence) -> Iterator[str]:
    """Name what was not given and would tell more."""
    if run.facts.get("hardware") is None:
        yield "the accelerator (hardware, with --context)"
    try:
        deployment.resolve_model(run.facts)
    except RooflogError as error:
        told = run.facts.get("model")
        yield "the model (model or model_config, with --context)" + (f"; {error}" if told else "")
    if run.levels["step_s"].notna().sum() < FEW_LEVELS:
        yield "clean decode at three or more numbers of running requests (a sweep)"
    if evidence.recording is None:
        yield "telemetry of the same time (-p telemetry gpu.csv)"
    if evidence.profile is None:
        yield "a kernel profile of a few steps (-p profile trace.json.gz)"


FEW_LEVELS = 3


def known(run: Run, evidence: Evidence) -> dict[str, Any]:
    """Return what `plan` may know about the server."""
    facts = dict(run.facts.values)
    levels = run.levels[run.levels["step_s"].gt(0) & run.levels["population"].eq(0)
                        & run.levels["server_life"].isin(run.lives)]
    fitted = levels[levels["is_fitted"]] if levels["is_fitted"].any() else levels
    accept = fitted["accept_len"].dropna()
    found: dict[str, Any] = {
        **facts,
        "levels": fitted[["running_req", "step_s"]].to_dict("records"),
        "law": run.fits.selected.predict_step_s and _law(run.fits),
        "accept_len": float(accept.iloc[-1]) if len(accept) else None,
        "has_telemetry": evidence.recording is not None, "has_profile": evidence.profile is not None,
        "law_refused": run.fits.selected.refused, **measured(run),
    }
    if run.allowed is not None and run.allowed.components is not None:
        found["components"] = run.allowed.components.to_dict("records")
        target = run.allowed.roofline.target
        if target is not None:
            found["target_step_s"] = {f"{n:g}": s for n, s in zip(run.allowed.roofline.running_req, target.step_s,
                                                                   strict=True)}
    return {name: value for name, value in found.items() if value is not None}


def measured(run: Run) -> dict[str, Any]:
    """Return what a plan needs and the log has measured: start-up, weights, memory of a device, prompts."""
    loaded = run.events[run.events["kind"].eq("weights_loaded") & run.events["size_bytes"].gt(0)]["size_bytes"]
    ranks = (run.facts.get("tp") or 1) * (run.facts.get("pp") or 1)
    board = None if run.allowed is None else run.allowed.deployment.hardware
    args = run.facts.get("args") or {}
    of_lives = kept_rows(run.samples, run.samples["server_life"].isin(run.lives))
    found = {
        **plan.prompts_of(of_lives, chunk_tok=run.facts.get("chunked_prefill_size")), "startup_s": _startup_s(run),
        "weight_bytes": float(loaded.max()) * ranks if len(loaded) else None,
        "mem_bytes": None if board is None else board.mem_bytes,
        "model_served": args.get("model_path") or args.get("model") or args.get("model_tag"),
    }
    return {name: value for name, value in found.items() if value is not None}


def _law(fits: Fits) -> tuple[float, float] | None:
    """Return intercept and slope of the straight line [s, s/req]; None where it is refused."""
    line = {parameter.name: parameter.value for parameter in fits.linear.parameters}
    return (line["intercept_s"], line["slope_s_per_req"]) if fits.linear.refused is None and line else None


def _startup_s(run: Run) -> float | None:
    """Return the time from the first line of a server life to its readiness [s]."""
    ready = run.events[run.events["kind"].eq("ready") & run.events["t_s"].notna()]
    args = run.events[run.events["kind"].eq("args") & run.events["t_s"].notna()]
    both = ready.groupby("server_life")["t_s"].min() - args.groupby("server_life")["t_s"].min()
    both = both[both > 0]
    return float(both.median()) if len(both) else None


def entries(judgement: Judgement) -> dict[str, Any]:
    """Return the scorecard's entries: diagnosis and next_experiment."""
    plans = judgement.plans
    rows = []
    for item in judgement.findings:
        telling = next((p for p in plans if item.cause in p.predicts), None)
        rows.append({
            "cause": item.cause, "status": item.status, "score": item.score, "evidence_for": list(item.evidence_for),
            "evidence_against": list(item.evidence_against), "refuted_by": item.refuted_by,
            "contradiction": item.contradiction, "next_experiment": None if telling is None else telling.what,
        })
    return {"diagnosis": rows, "next_experiment": plans[0].as_next_experiment() if plans else None}
