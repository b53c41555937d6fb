"""A folder of runs in time: one series per configuration, quantity and level, and where it changed.

Numbers are those that the runs stored, so only runs of this version of schema and method stand in a series; others are
left out and named. `compare` is the gate for one change: it recomputes both sides. This is for what creeps in.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from scipy.stats import norm

from helpers import compare, scorecard
from helpers.compare import THRESHOLD_FRAC, words
from helpers.compare.changes import FALSE_ALARM, MIN_SERIES, Changes, find_changes, same_time
from helpers.regression import past_runs
from helpers.regression.gather import stored_levels
from helpers.regression.inputs import RUN_FILE
from helpers.regression.past_runs import PastRun
from helpers.schema import METHOD_VERSION, SCHEMA_VERSION, LogFormatError, RooflogError

COLUMNS = ("configuration", "quantity", "running_req", "unit", "when", "clock", "run", "value", "lo", "hi", "se",
           "engine_version")

QUANTITIES = {"step_s": "s", "accept_len": "tok", "intercept_s": "s", "slope_s_per_req": "s/req",
              "asymptote_tok_per_s": "tok/s"}
"""Series of a configuration -> unit; the first two have one of each level."""

KINDS = {"step_s": "step", "accept_len": "accept_len", "intercept_s": "fixed_cost", "slope_s_per_req": "per_request",
         "asymptote_tok_per_s": "asymptote"}
"""Series -> kind of a row of a comparison, which has the same name for a reader."""

GROWS_WELL = ("accept_len", "asymptote_tok_per_s")

NOT_JUDGED = ("asymptote_tok_per_s",)
"""Follows from the slope and the accepted length: their tests are its tests."""

CONFIDENCE = 0.95
"""Of intervals of levels that are computed from their standard errors."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class History:
    """The runs of a folder.

    Attributes
    ----------
    points : DataFrame
        One row per run, quantity and level, oldest first: columns `COLUMNS`; ``configuration`` counts from 0 in order
        of first use; ``when`` has no zone; ``se`` is the standard error of the log value [1], NaN if unknown.
    configurations : tuple of str
        Each in words: what tells it from the others.
    left_out : tuple of (run folder, why)
    """

    points: pd.DataFrame
    configurations: tuple[str, ...]
    left_out: tuple[tuple[str, str], ...]


def read_history(folder: str | Path, *, progress: Say | None = None) -> History:
    """Read all run folders in a folder and its subfolders.

    Parameters
    ----------
    folder : path
    progress : callable, optional
        Called with a line of text per run.

    Returns
    -------
    History
        Runs are placed by the first stamp of their log where that is at hand and tells a date, else by the start of
        the analysis. Stamps are taken as they stand: logs tell no time zone. A log that was analysed several times
        is one run, the latest analysis. Runs with the same time have no order: neither the names of their folders nor
        the order in which they were analysed stands in for it.

    Raises
    ------
    LogFormatError
        No such folder, or no run in it.
    """
    where, say = Path(folder), progress or (lambda text: None)
    if not where.is_dir():
        raise LogFormatError(f"{where}: expected a folder of runs, found none; name the one given to --out")
    left_out: list[tuple[str, str]] = []
    runs = past_runs.read_runs(where, say, left_out)
    if not runs and not left_out:
        raise LogFormatError(f"{where}: expected the folders that rooflog run writes ({RUN_FILE} and "
                             f"{scorecard.FILE_NAME}), found none; name the folder given to --out")
    groups = past_runs.group(runs, left_out)
    rows = [row for i, of_one in enumerate(groups) for row in _points(i, of_one, left_out)]
    points = pd.DataFrame(rows, columns=list(COLUMNS)).astype({"when": "datetime64[us]"})
    return History(points, tuple(past_runs.describe(groups)), tuple(left_out))


def history_card(
    history: History, *, threshold_frac: float = THRESHOLD_FRAC, confidence: float = CONFIDENCE
) -> dict[str, Any]:
    """Find the changes of every series.

    Parameters
    ----------
    history : History
    threshold_frac : float
        Change that matters [1].
    confidence : float in (0, 1)
        Of each effect.

    Returns
    -------
    dict
        JSON-safe: ``kind`` "history", ``series`` (configuration, quantity, level, unit, is_judged, points, verdict,
        no_order, changes, sentence), ``configurations`` (words, verdict, sentence), ``left_out``, ``notes``,
        ``exit_code``: 1 where the newest segment of any judged series is worse than the one before it, else 2 where a
        configuration has too few runs, hangs on the order of runs with the same time or drifts to the worse, else 0.
        The judged series of a configuration share `FALSE_ALARM`.
    """
    keys = ["configuration", "quantity", "running_req"]
    tables = [(int(str(number)), str(quantity), float(str(level)), rows) for (number, quantity, level), rows in
              history.points.groupby(keys, sort=False, dropna=False)]
    n_judged = [sum(number == i and quantity not in NOT_JUDGED and len(rows) >= MIN_SERIES
                    for number, quantity, _, rows in tables) for i in range(len(history.configurations))]
    series = [_series(number, quantity, level, rows, threshold_frac, FALSE_ALARM / max(1, n_judged[number]), confidence)
              for number, quantity, level, rows in tables]
    verdicts = [_verdict([s for s in series if s["configuration"] == i]) for i in range(len(history.configurations))]
    configurations = [{"configuration": i, "words": words, "verdict": verdicts[i][0], "sentence": verdicts[i][1]}
                      for i, words in enumerate(history.configurations)]
    found = {verdict for verdict, _ in verdicts}
    return scorecard.to_plain({
        "schema_version": SCHEMA_VERSION, "method_version": METHOD_VERSION, "kind": "history",
        "threshold_frac": threshold_frac, "confidence": confidence, "configurations": configurations, "series": series,
        "notes": _notes(history.points),
        "left_out": [{"run": run, "why": why} for run, why in history.left_out],
        "exit_code": 1 if "worse" in found else 0 if found and "cannot_tell" not in found else 2,
    })


def _points(
    number: int, group: Sequence[PastRun], left_out: list[tuple[str, str]]
) -> Iterator[dict[str, Any]]:
    """Yield the points of one configuration; parameters only of runs that fitted the levels most runs fitted."""
    measured = []
    for run in group:
        try:
            measured.append((run, compare.run_of(stored_levels(run.card))))
        except (RooflogError, KeyError, TypeError) as error:
            left_out.append((run.folder, str(error)))
    sets = pd.Series([tuple(sorted(levels.step_s)) for _, levels in measured], dtype=object)
    usual = sets.mode().iloc[0] if len(sets) else ()
    z = float(norm.ppf((1 + CONFIDENCE) / 2))
    for run, levels in measured:
        common = {"configuration": number, "when": run.when, "clock": run.clock, "run": run.folder, "se": math.nan,
                  "lo": math.nan, "hi": math.nan, "engine_version": run.card["run"]["engine_version"] or ""}
        for level, step_s in levels.step_s.items():
            se = levels.own_frac.get(level, math.nan)
            yield {**common, "quantity": "step_s", "running_req": level, "unit": "s", "value": step_s, "se": se,
                   "lo": step_s * math.exp(-z * se), "hi": step_s * math.exp(z * se)}
        for level, accept_len in levels.accept_len.items():
            yield {**common, "quantity": "accept_len", "running_req": level, "unit": "tok", "value": accept_len}
        fit = run.card["fit"]
        if fit["refused"] is not None or tuple(sorted(levels.step_s)) != usual:
            continue
        for name in ("intercept_s", "slope_s_per_req", "asymptote_tok_per_s"):
            if fit[name] is not None and fit[name] > 0:
                # no se: a fit's interval holds how far the levels are off the law, the same in every run
                yield {**common, "quantity": name, "running_req": math.nan, "unit": QUANTITIES[name],
                       "value": fit[name], "lo": fit[f"{name}_lo"], "hi": fit[f"{name}_hi"]}


def _series(
    number: int, quantity: str, level: float, rows: pd.DataFrame, threshold_frac: float, false_alarm: float,
    confidence: float,
) -> dict[str, Any]:
    found = find_changes(rows["value"].to_numpy(), rows["se"].to_numpy(), when=rows["when"].to_numpy(),
                         threshold_frac=threshold_frac, false_alarm=false_alarm, confidence=confidence)
    runs, versions = rows["run"].tolist(), rows["engine_version"].tolist()
    changes = [
        {"index": step.index, "run": runs[step.index], "when": rows["when"].iloc[step.index].isoformat(),
         "before": step.before, "after": step.after, "effect_frac": step.effect_frac, "lo_frac": step.lo_frac,
         "hi_frac": step.hi_frac, "p": step.p, "is_worse": (step.effect_frac < 0) == (quantity in GROWS_WELL),
         "engine_versions": [versions[step.index - 1], versions[step.index]]}
        for step in found.steps
    ]
    points = [{"when": row["when"].isoformat(), "clock": row["clock"], "run": row["run"], "value": row["value"],
               "lo": row["lo"], "hi": row["hi"], "engine_version": row["engine_version"]}
              for row in rows.to_dict("records")]
    return {"configuration": number, "quantity": quantity, "level": level, "unit": QUANTITIES[quantity],
            "is_judged": quantity not in NOT_JUDGED, "points": points, "verdict": _of_series(found, quantity),
            "no_order": found.verdict == "no_order", "changes": changes, "sentence": _sentence(found, changes)}


def _of_series(found: Changes, quantity: str) -> str:
    """Return worse, better or same by the newest segment, or cannot_tell, as of a drift to the worse."""
    grows_well = quantity in GROWS_WELL
    if found.verdict == "drift":
        return "better" if (found.drift_frac > 0) == grows_well else "cannot_tell"
    if found.verdict == "steps":
        return "better" if (found.steps[-1].effect_frac > 0) == grows_well else "worse"
    return "same" if found.verdict == "none" else "cannot_tell"


def _sentence(found: Changes, changes: Sequence[Mapping[str, Any]]) -> str:
    """Name the run folders and engine versions at the steps."""
    if not changes:
        return found.sentence
    said = []
    for change in changes:
        old, new = change["engine_versions"]
        version = f", engine {old} to {new}" if old and new and old != new else ""
        effect = words.change(change["effect_frac"], change["lo_frac"], change["hi_frac"])
        said.append(f"{effect} at {Path(change['run']).name}{version}")
    return f"Changed by {'; '.join(said)}."


def _notes(points: pd.DataFrame) -> list[str]:
    """Say where two clocks order the runs, and where none does."""
    runs = points.drop_duplicates("run")
    n = int((runs["clock"] == "run").sum())
    notes = [f"{n} of {len(runs)} runs are placed by the time of their analysis: the time of their logs is not known"
             ] if n else []
    tied = sum(end - start for _, of_one in runs.groupby("configuration")
               for start, end in same_time(of_one["when"].sort_values().to_numpy()))
    return notes + ([f"{tied} of {len(runs)} runs have the same time as another of their configuration and are in no "
                     "order: names of folders and the order of analysis do not tell which was first"] if tied else [])


def series_name(entry: Mapping[str, Any]) -> str:
    """Return what a reader calls a series: "step at N=16"."""
    return words.quantity(KINDS[entry["quantity"]], entry["level"])


def _verdict(series: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """Join the judged series of one configuration: worse if any is, else cannot_tell where none could be judged."""
    judged = [entry for entry in series if entry["is_judged"]]
    runs = max((len(entry["points"]) for entry in judged), default=0)
    by = {v: [series_name(entry) for entry in judged if entry["verdict"] == v]
          for v in ("worse", "better", "same", "cannot_tell")}
    drifts = [series_name(entry) for entry in judged
              if entry["verdict"] == "cannot_tell" and len(entry["points"]) >= MIN_SERIES and not entry["no_order"]]
    unordered = [series_name(entry) for entry in judged if entry["no_order"]]
    if by["worse"]:
        return "worse", f"The newest runs are worse than those before: {', '.join(by['worse'])}."
    if unordered:
        return "cannot_tell", f"Runs with the same time have no order, and it matters: {', '.join(unordered)}."
    if drifts:
        return "cannot_tell", f"Drifting to the worse, without a run where it changed: {', '.join(drifts)}."
    if runs < MIN_SERIES:
        return "cannot_tell", f"{runs} run{'' if runs == 1 else 's'} of this configuration: {MIN_SERIES} are needed."
    few = f" Too few runs: {', '.join(by['cannot_tell'])}." if by["cannot_tell"] else ""
    if by["better"]:
        return "better", f"The newest runs are better than those before: {', '.join(by['better'])}.{few}"
    return "same", f"Of {runs} runs none begins a change: {', '.join(by['same'])}.{few}"
