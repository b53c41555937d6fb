"""Two sides held against each other: validity, rows, term, phases and one verdict, as the comparison card."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from helpers import compare as statistics
from helpers import scorecard
from helpers.compare import THRESHOLD_FRAC, Effects, Overall, Term, Validity
from helpers.compare.effects import COLUMNS, CONFIDENCE
from helpers.compare.overall import CANNOT_TELL, PASS
from helpers.display import level_key
from helpers.regression.describe import answer
from helpers.regression.gather import Repeat, Side
from helpers.regression.inputs import COMPARISON_FILE
from helpers.regression.settings import comparable, shortened
from helpers.schema import METHOD_VERSION, SCHEMA_VERSION, LogFormatError, NotEnoughData, RooflogError


@dataclass(frozen=True)
class Comparison:
    """What two sides say about each other.

    Attributes
    ----------
    base, new : Side
    validity : Validity
    effects : Effects or None
        None where the sides have no level in common.
    term : Term or None
    phases : DataFrame
        As `compare.describe_phases` returns it.
    overall : Overall
    card : dict
        All of it as JSON, see `compare_sides`.
    """

    base: Side
    new: Side
    validity: Validity
    effects: Effects | None
    term: Term | None
    phases: pd.DataFrame
    overall: Overall
    card: dict[str, Any]


def compare_sides(
    base: Side, new: Side, *, threshold_frac: float = THRESHOLD_FRAC, confidence: float = CONFIDENCE,
    command: str = "",
) -> dict[str, Any]:
    """Return the comparison card of two sides.

    Returns
    -------
    dict
        JSON-safe, base units, null for unknown: ``kind`` "comparison", ``base`` and ``new`` (their inputs),
        ``validity``, ``rows`` (columns of ``Effects.rows``), ``term``, ``phases``, ``overall``, ``answer`` (the words
        a person reads first), ``notes``, ``checks``, ``run`` (command and hashes), and ``exit_code``
        (``Overall.exit_code``; 2 where nothing can be compared).

    Raises
    ------
    RooflogError
        Threshold or confidence is no share.
    """
    return compare(base, new, threshold_frac=threshold_frac, confidence=confidence, command=command).card


def compare(
    base: Side, new: Side, *, threshold_frac: float = THRESHOLD_FRAC, confidence: float = CONFIDENCE,
    command: str = "",
) -> Comparison:
    """Compare two sides.

    Parameters
    ----------
    base, new : Side
        From `gather.gather_side`.
    threshold_frac : float
        Change that matters [1].
    confidence : float in (0, 1)
        Of a row's own interval.
    command : str
        Command line to record.

    Returns
    -------
    Comparison
        Sides without a level in common, or that are no runs of one server, get the verdict cannot_tell.

    Raises
    ------
    RooflogError
        Threshold or confidence is no share.
    """
    if not 0 < confidence < 1:
        raise RooflogError(f"confidence: expected a share between 0 and 1, found {confidence:g}")
    if not 0 < threshold_frac < 1:
        raise RooflogError(f"threshold: expected a share between 0 and 1, as 0.03 for 3 %, found {threshold_frac:g}")
    validity = _validity(base, new)
    effects: Effects | None = None
    term: Term | None = None
    try:
        effects = statistics.compare_levels(base.runs, new.runs, threshold_frac=threshold_frac, confidence=confidence)
    except NotEnoughData:
        found = _without_rows(base, new, validity)
    if effects is not None:
        term, found = statistics.which_term(effects), statistics.overall(effects, validity)
    found = _with_ends(found, base, new)
    phases = statistics.describe_phases(_mean_phases(base), _mean_phases(new))
    notes = [*(f"base: {note}" for note in base.notes), *(f"new: {note}" for note in new.notes),
             *(f"{name}: {Path(repeat.path).name}: {note}" for name, side in (("base", base), ("new", new))
               for repeat in side.repeats for note in repeat.notes),
             *(effects.notes if effects is not None else ())]
    card: dict[str, Any] = scorecard.to_plain({
        "schema_version": SCHEMA_VERSION,
        "method_version": METHOD_VERSION,
        "kind": "comparison",
        "base": _side_entry(base),
        "new": _side_entry(new),
        "validity": {"verdict": validity.verdict, "variable": validity.variable, "sentence": validity.sentence,
                     "differences": validity.differences.to_dict("records")},
        "threshold_frac": threshold_frac,
        "confidence": confidence,
        "rows": [] if effects is None else effects.rows[list(COLUMNS)].to_dict("records"),
        "term": _term_entry(term),
        "phases": phases.to_dict("records"),
        "checks": [],
        "overall": {"verdict": found.verdict, "is_mixed": found.is_mixed, "n_unknown": found.n_unknown,
                    "sentence": found.sentence, "needed": found.needed},
        "exit_code": found.exit_code,
        "notes": list(dict.fromkeys(notes)),
        "run": {"command": command,
                "log_sha256": list(dict.fromkeys(text for repeat in (*base.repeats, *new.repeats)
                                                 for text in repeat.log_sha256))},
    })
    card["answer"] = answer(card)
    return Comparison(base, new, validity, effects, term, phases, found, card)


def write(card: Mapping[str, Any], folder: str | Path) -> Path:
    """Write comparison.json into an existing folder, whole or not at all; return the file.

    Raises
    ------
    RooflogError
        The folder is not there or cannot be written.
    """
    target = Path(folder) / COMPARISON_FILE
    partial = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        partial.write_text(scorecard.dumps(card), encoding="utf-8")
        os.replace(partial, target)
    except OSError as error:
        raise RooflogError(f"{target}: expected a file that can be written, found: {error.strerror}") from error
    finally:
        if partial.parent.is_dir():
            partial.unlink(missing_ok=True)
    return target


def read(path: str | Path) -> dict[str, Any]:
    """Read a comparison card.

    Parameters
    ----------
    path : path
        The file, or the folder that holds it.

    Raises
    ------
    LogFormatError
        No such file, or no comparison of this version.
    """
    target = Path(path)
    target = target / COMPARISON_FILE if target.is_dir() else target
    card = scorecard.read(target)
    if card.get("kind") != "comparison":
        raise LogFormatError(f"{target}: expected a comparison, found another scorecard; give what rooflog compare "
                             "wrote")
    return card


def _validity(base: Side, new: Side) -> Validity:
    """Judge the two sides, and whether each is runs of one server at all."""
    found = statistics.judge_validity(*shortened(*comparable(base.facts, new.facts)))
    silent = [name for name, side in (("base", base), ("new", new)) if not side.facts]
    if silent:
        return replace(found, verdict="not_comparable", variable=None,
                       sentence=f"Nothing is known of the {' and the '.join(silent)} side.")
    for name, side in (("base", base), ("new", new)):
        found = _within(found, name, side.repeats)
    return found


def _within(validity: Validity, name: str, repeats: Sequence[Repeat]) -> Validity:
    """Say where the runs of one side differ among themselves: they are no repeats of one another then."""
    for repeat in repeats[1:]:
        inner = statistics.judge_validity(*comparable(repeats[0].facts, repeat.facts))
        differing = list(inner.differences.loc[inner.differences["status"] == "differs", "key"])
        if not differing:
            continue
        verdict = "not_comparable" if inner.verdict == "not_comparable" else validity.verdict
        if verdict in ("same_configuration", "single_variable"):
            verdict = "several_differ"
        said = (f" The runs of the {name} side are not repeats of one another: {repeat.path} differs from "
                f"{repeats[0].path} in {', '.join(differing)}.")
        return replace(validity, verdict=verdict, variable=None, sentence=validity.sentence + said)
    return validity


def _without_rows(base: Side, new: Side, validity: Validity) -> Overall:
    """Say why nothing can be compared."""
    empty = [name for name, side in (("base", base), ("new", new)) if not side.runs]
    if empty:
        reason = f"no run of the {' and the '.join(empty)} side has a fitted level"
    else:
        seen = [", ".join(level_key(level) for level in sorted({n for run in side.runs for n in run.step_s}))
                for side in (base, new)]
        reason = f"no level was seen on both sides (base N={seen[0]}; new N={seen[1]})"
    if validity.verdict == "not_comparable":
        reason = f"{validity.sentence} Besides, {reason}"
    return Overall("cannot_tell", False, f"{reason[0].upper()}{reason[1:]}.")


def _with_ends(found: Overall, base: Side, new: Side) -> Overall:
    """Say which servers crashed; where only new ones did, no gate passes on what they did before."""
    ends = [[f"{Path(repeat.path).name} ({repeat.ended.replace('_', ' ')})" for repeat in side.repeats if repeat.ended]
            for side in (base, new)]
    said = " ".join(f"Servers of the {name} side failed: {', '.join(texts)}."
                    for name, texts in zip(("base", "new"), ends, strict=True) if texts)
    if not said:
        return found
    is_new_only = bool(ends[1]) and not ends[0]
    code = CANNOT_TELL if is_new_only and found.exit_code == PASS else found.exit_code
    return replace(found, sentence=f"{said} {found.sentence}", exit_code=code)


def _mean_phases(side: Side) -> dict[str, float | None]:
    """Return the mean seconds of each phase over the runs that tell."""
    told = [repeat.phases for repeat in side.repeats if repeat.phases]
    means: dict[str, float | None] = {}
    for name in dict.fromkeys(name for phases in told for name in phases):
        known = [value for phases in told if (value := phases.get(name)) is not None]
        means[name.removesuffix("_s")] = sum(known) / len(known) if known else None
    return means


def _side_entry(side: Side) -> dict[str, Any]:
    return {
        "inputs": [
            {"path": r.path, "kind": r.kind, "how": r.how, "log_sha256": list(r.log_sha256),
             "server_life": r.server_life, "n_levels": len(r.run.step_s),
             "step_s": {level_key(level): step_s for level, step_s in r.run.step_s.items()}, "notes": list(r.notes)}
            for r in side.repeats
        ],
        "n_runs": len(side.repeats),
        "facts": {name: side.facts.get(name) for name in ("engine", "engine_version", "model", "hardware")},
    }


def _term_entry(term: Term | None) -> dict[str, Any]:
    if term is None:
        return {"name": "cannot_tell", "running_req": math.nan, "sentence": "", "evidence": []}
    return {"name": term.name, "running_req": term.running_req, "sentence": term.sentence,
            "evidence": term.evidence.to_dict("records")}
