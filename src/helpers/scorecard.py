"""The scorecard: one JSON object that states what a run found, and its exit code.

Base units, no rounding, ``null`` for unknown. `answer` turns it into the sentences a person reads first.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pandas as pd

from helpers.answer import answer
from helpers.display import level_key, show
from helpers.plan import kept_args
from helpers.schema import INTERVALS, LEVELS, METHOD_VERSION, SCHEMA_VERSION, Fits, LawFit, LogFormatError, check

__all__ = ["FILE_NAME", "CheckFailed", "Client", "answer", "build", "dumps", "exit_code", "read", "require_checks",
           "to_plain", "write"]

FILE_NAME = "scorecard.json"

PHASES = ("warmup_s", "ramp_s", "steady_s", "mixed_s", "drain_s", "idle_s")


class CheckFailed(Exception):
    """A must-hold check failed: the numbers beside it cannot be trusted."""


class _Log(Protocol):
    """What the scorecard needs of an ingested log."""

    @property
    def accounting(self) -> Any: ...  # noqa: D102
    @property
    def engine(self) -> Any: ...  # noqa: D102
    @property
    def engine_version(self) -> Any: ...  # noqa: D102
    @property
    def facts(self) -> Any: ...  # noqa: D102
    @property
    def sources(self) -> Any: ...  # noqa: D102


@dataclass(frozen=True)
class Client:
    """A whole-load average to hold against the steady rate of the same load.

    Attributes
    ----------
    output_tok_per_s : float
        Output tokens over the whole load, ramp and drain included [tok/s].
    source : str
        "user" (the client said so) or "log" (computed from the log).
    steady_tok_per_s : float
        Tokens over time of the clean intervals at the load's peak [tok/s].
    running_req : float
        That peak [req].
    other_s : mapping
        Seconds of ramp, mixed and drain in the load: what the average also holds [s].
    duration_s : float
        The whole load [s].
    """

    output_tok_per_s: float
    source: str
    steady_tok_per_s: float
    running_req: float = math.nan
    other_s: Mapping[str, float] = field(default_factory=dict)
    duration_s: float = math.nan


def build(
    log: _Log | None,
    intervals: pd.DataFrame | None,
    levels: pd.DataFrame,
    fits: Fits,
    *,
    facts: Mapping[str, Any],
    roofline: Mapping[str, Any] | None = None,
    components: Sequence[Mapping[str, Any]] = (),
    components_by_level: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
    levers: Sequence[Mapping[str, Any]] = (),
    diagnosis: Sequence[Mapping[str, Any]] = (),
    next_experiment: Mapping[str, Any] | None = None,
    phases: Mapping[str, float] | None = None,
    client: Client | None = None,
    command: str = "",
    log_sha256: Sequence[str] = (),
    notes: Sequence[str] = (),
) -> dict[str, Any]:
    """State what a run found, as the JSON object that every run writes.

    Parameters
    ----------
    log : Log or None
        The ingested log; None when the levels come from a hand-typed table.
    intervals : DataFrame, schema INTERVALS, or None
        For the counts of clean and rejected intervals.
    levels : DataFrame, schema LEVELS
        Population 0 is listed.
    fits : Fits
        The straight line and the selected law.
    facts : mapping
        Fact -> value (``Facts.values``).
    roofline : mapping, optional
        strict, expected, target, ratio, assumptions as they shall appear.
    components : sequence of mapping
        What the step at the highest level is made of; ``components_by_level`` has every level by its key.
    levers : sequence of mapping
        What changes would give.
    diagnosis : sequence of mapping
        Ranked causes; ``next_experiment`` tells them apart.
    phases : mapping, optional
        Seconds of each phase.
    client : Client, optional
        Whole-run average beside the steady rate.
    command : str
        Command line of the run.
    log_sha256 : sequence of str
        Hashes of the inputs when ``log`` is None.
    notes : sequence of str
        Doubts about the input or the facts that a reader must see (contradictions, warnings of the catalogue).

    Returns
    -------
    dict
        JSON-safe: no NaN, no infinity, no numpy types. ``fit``: intercept, slope, dof and n_levels are always
        those of the straight line; law, asymptote, half load, leave-one-level-out error, warnings and ``refused``
        speak for the selected law, which ``selected`` holds whole.

    Raises
    ------
    SchemaError
        A table breaks its schema.
    """
    check(levels, LEVELS)
    if intervals is not None:
        check(intervals, INTERVALS)
    order = ["server_life", "rank_group", "running_req"]
    accounting = log.accounting.as_dict() if log is not None else {}
    used = levels[levels["population"] == 0].sort_values(order)
    fitted_lives = sorted(set(used.loc[used["is_fitted"], "server_life"])) or sorted(set(used["server_life"]))
    card = {
        "schema_version": SCHEMA_VERSION,
        "method_version": METHOD_VERSION,
        "run": {
            "log_sha256": [s.sha256 for s in log.sources] if log is not None else list(log_sha256),
            "engine": (log.engine if log is not None else None) or facts.get("engine"),
            "engine_version": facts.get("engine_version") or (log.engine_version if log is not None else None),
            "model": facts.get("model"),
            "hardware": facts.get("hardware"),
            "parallel": {name: facts.get(name) for name in ("tp", "dp", "pp", "ep")},
            "command": command,
            "facts": _facts(facts),
            "server_life": fitted_lives[0] if len(fitted_lives) == 1 else None,
            "n_server_lives": _count_lives(log, intervals),
            "fitted_lives": fitted_lives,
            "notes": list(notes),
        },
        "ingest": {
            "lines_total": accounting.get("lines_total"),
            "lines": accounting.get("lines"),
            "by_kind": accounting.get("by_kind"),
        },
        "levels": [_level(row) for row in used.to_dict("records")],
        "fit": _fit(fits),
        "phases": _phases(phases, intervals),
        "client": _client(client),
        "roofline": dict(roofline) if roofline is not None else None,
        "components": list(components),
        "components_by_level": dict(components_by_level or {}),
        "diagnosis": list(diagnosis),
        "levers": list(levers),
        "next_experiment": None if next_experiment is None else dict(next_experiment),
        "checks": [],
    }
    card = to_plain(card)
    card["checks"] = _checks(card)
    return card


def _facts(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is known of the deployment, with the arguments of the server that a plan needs: no keys, no hosts."""
    args = facts.get("args")
    if not isinstance(args, Mapping):
        return dict(facts)
    kept = kept_args(str(facts.get("engine") or ""), args)
    return {**facts, "args": kept}


def _count_lives(log: _Log | None, intervals: pd.DataFrame | None) -> int | None:
    """Count the server lives the log holds."""
    if log is None:
        return None
    seen = int(intervals["server_life"].max()) + 1 if intervals is not None and len(intervals) else 0
    return max(len(log.facts), seen)


def _level(row: Mapping[Any, Any]) -> dict[str, Any]:
    """Turn a LEVELS row into its scorecard entry."""
    names = ("running_req", "n_clean", "step_s", "step_s_lo", "step_s_hi", "decode_tok_per_s", "accept_len",
             "server_life", "rank_group", "clean_s", "context_tok", "is_fitted", "note")
    return {name: row[name] for name in names} | {"n_rejected": json.loads(row["n_rejected"] or "{}")}


def _fit(fits: Fits) -> dict[str, Any]:
    """Put the straight line's numbers beside the selected law."""
    line = {p.name: p for p in fits.linear.parameters}
    entry: dict[str, Any] = {"law": fits.selected.law}
    for name in ("intercept_s", "slope_s_per_req"):
        parameter = line.get(name)
        entry |= {name: parameter and parameter.value, f"{name}_lo": parameter and parameter.lo,
                  f"{name}_hi": parameter and parameter.hi}
    entry |= {"dof": fits.linear.dof, "n_levels": fits.linear.n_levels}
    selected = fits.selected
    entry |= _claims(selected)
    entry["warnings"] = list(selected.warnings)
    entry["refused"] = selected.refused
    entry["selected"] = {
        "law": selected.law,
        "parameters": {p.name: {"value": p.value, "lo": p.lo, "hi": p.hi, "unit": p.unit} for p in selected.parameters},
        "dof": selected.dof,
        "n_levels": selected.n_levels,
        "running_req_min": selected.running_req_min,
        "running_req_max": selected.running_req_max,
        "confidence": selected.confidence,
        "loo_error_frac": selected.loo_error_frac,
        "loo_error_top_frac": selected.loo_error_top_frac,
        "selection": fits.selection,
        "is_named": fits.is_named,
        "warnings": list(selected.warnings),
        "refused": selected.refused,
    }
    context = fits.context
    entry["context"] = None if context is None else {
        "parameters": {p.name: {"value": p.value, "lo": p.lo, "hi": p.hi, "unit": p.unit} for p in context.parameters},
        "refused": context.refused,
    }
    law = fits.prediction
    entry["prediction"] = None if law is None else {
        "law": law.law, "loo_error_frac": law.loo_error_frac, "loo_error_top_frac": law.loo_error_top_frac}
    entry["rounding_envelope"] = dict(fits.rounding_envelope)
    return entry


def _claims(law: LawFit) -> dict[str, Any]:
    """Return the asymptote, half load and error of a law."""
    names = ("asymptote_tok_per_s", "asymptote_tok_per_s_lo", "asymptote_tok_per_s_hi", "half_load_req",
             "loo_error_frac")
    return {name: getattr(law, name) for name in names}


def _phases(phases: Mapping[str, float] | None, intervals: pd.DataFrame | None) -> dict[str, Any]:
    """Seconds of each phase, and how many intervals were clean."""
    known = phases or {}
    clean = intervals["clean"] if intervals is not None else None
    return {name: known.get(name) for name in PHASES} | {
        "n_intervals": None if clean is None else len(clean),
        "n_clean": None if clean is None else int(clean.sum()),
    }


def _client(client: Client | None) -> dict[str, Any]:
    """Hold the whole-load average against the steady rate."""
    names = ("output_tok_per_s", "source", "steady_tok_per_s", "running_req", "other_s", "duration_s")
    if client is None or not client.output_tok_per_s > 0:
        return dict.fromkeys(("steady_over_client", *names))
    ratio = client.steady_tok_per_s / client.output_tok_per_s
    return {name: getattr(client, name) for name in names} | {"steady_over_client": ratio}


def _checks(card: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the checks that must hold on any log; each follows from the scorecard alone."""
    checks = []
    total = card["ingest"]["lines_total"]
    if total is not None:
        counted = sum(card["ingest"]["lines"].values())
        checks.append({"name": "every line is counted exactly once", "value": counted, "limit": total,
                       "pass": counted == total})
    strict = ((card["roofline"] or {}).get("strict") or {}).get("step_s") or {}
    shares = [level["step_s_hi"] / bound_s for level in card["levels"]
              if (bound_s := strict.get(level_key(level["running_req"]))) and level["step_s_hi"] is not None]
    if shares:
        checks.append({"name": "no level is faster than the strict roofline (measured / strict, smallest)",
                       "value": min(shares), "limit": 1.0, "pass": min(shares) >= 1.0})
    return checks


def to_plain(value: Any) -> Any:
    """Turn numpy, pandas and tuple values into JSON's own; NaN, NA and infinity become None."""
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | np.ndarray | pd.Series):
        return [to_plain(item) for item in value]
    if value is None or value is pd.NA or value is pd.NaT:
        return None
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if isinstance(value, int | np.integer):
        return int(value)
    if isinstance(value, float | np.floating):
        return float(value) if math.isfinite(value) else None
    return value if isinstance(value, str) else str(value)


def dumps(card: Mapping[str, Any]) -> str:
    """Return the scorecard as JSON text; a NaN that slipped through is an error here, not in the reader."""
    return json.dumps(to_plain(card), allow_nan=False, indent=1, ensure_ascii=False) + "\n"


def write(card: Mapping[str, Any], path: str | Path) -> Path:
    """Write the scorecard whole or not at all.

    Parameters
    ----------
    card : mapping
        From `build`.
    path : path
        A file, or an existing folder that gets ``scorecard.json``.

    Returns
    -------
    Path
        The file.
    """
    target = Path(path)
    target = target / FILE_NAME if target.is_dir() else target
    partial = target.with_name(f".{target.name}.{os.getpid()}")
    partial.write_text(dumps(card), encoding="utf-8")
    os.replace(partial, target)
    return target


def read(path: str | Path) -> dict[str, Any]:
    """Read a scorecard.

    Parameters
    ----------
    path : path
        The file, or a run folder that holds it.

    Returns
    -------
    dict
        As written.

    Raises
    ------
    LogFormatError
        No such file, no JSON object, or written by a newer schema.
    """
    target = Path(path)
    target = target / FILE_NAME if target.is_dir() else target
    try:
        card = json.loads(target.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise LogFormatError(f"{target}: expected a scorecard, found: {error}") from error
    version = card.get("schema_version") if isinstance(card, dict) else None
    if not isinstance(version, int) or version > SCHEMA_VERSION:
        raise LogFormatError(
            f"{target}: expected a scorecard of schema_version <= {SCHEMA_VERSION}, found {version!r}; "
            "read it with the rooflog that wrote it"
        )
    return card


def exit_code(card: Mapping[str, Any]) -> int:
    """Return 1 if a check failed, 2 if no law is claimed, else 0."""
    if any(item["pass"] is False for item in card["checks"]):
        return 1
    return 2 if card["fit"]["refused"] else 0


def require_checks(card: Mapping[str, Any], out_dir: str | Path = "") -> None:
    """Raise if a must-hold check failed, after writing the scorecard for whoever looks into it.

    Parameters
    ----------
    card : mapping
        From `build`.
    out_dir : path
        Existing folder; empty = do not write.

    Raises
    ------
    CheckFailed
        Names the checks with value and limit.
    """
    failed = [item for item in card["checks"] if item["pass"] is False]
    if failed and out_dir:
        write(card, out_dir)
    if failed:
        raise CheckFailed("; ".join(f"{c['name']}: {show(c['value'])}, limit {show(c['limit'])}" for c in failed))
