"""One side of a comparison, from logs, run folders, scorecards or typed tables, as runs that are repeats."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from helpers import compare, deployment, scorecard
from helpers.analysis import Analysis, analyse
from helpers.compare import Run
from helpers.facts import KNOWN, merge_facts, read_context
from helpers.regression.inputs import RUN_FILE, at_hand, expand, read_json
from helpers.regression.settings import joined, settings_of
from helpers.schema import (
    LEVELS,
    METHOD_VERSION,
    SCHEMA_VERSION,
    LogFormatError,
    NotEnoughData,
    SchemaError,
    conform,
)

LEVELS_OF_A_RUN = 3
"""Fitted levels below which a server life is no run of its own beside one that has them: two parameters need three."""

CONFIDENCE = 0.95
"""Of the intervals of the levels, where no run has recorded another."""

FAILURES = ("crash", "out_of_memory")
"""Events after which a server has failed, whatever it did before."""

OTHER_ARGUMENTS = "another server life with other arguments"
"""Note of `levels.keep_one_configuration`."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class Repeat:
    """One run of a side, and where it comes from.

    Attributes
    ----------
    run : Run
    path, kind, how : str
        Input as given; log, table, run_folder or scorecard; read, recomputed (from the logs of a run) or stored.
    log_sha256 : tuple of str
    server_life : str or None
        "0"; "0+1+2" of a sweep that restarts the server between its levels; None where the levels come from a table.
    facts : mapping
        Settings (`settings.settings_of`).
    phases : mapping
        Seconds of each phase [s], None where unknown; of the whole input, so of the first of its lives only.
    notes : tuple of str
        Doubts of the run's own scorecard.
    ended : str
        Kind of the last event that ends a server badly (`FAILURES`), "" if there is none or no log to tell.
    """

    run: Run
    path: str
    kind: str
    how: str
    log_sha256: tuple[str, ...]
    server_life: str | None
    facts: Mapping[str, Any]
    phases: Mapping[str, float | None]
    notes: tuple[str, ...] = ()
    ended: str = ""


@dataclass(frozen=True)
class Side:
    """All repeats of one side, its settings, and what a reader must know of how they were gathered."""

    repeats: tuple[Repeat, ...]
    facts: Mapping[str, Any]
    notes: tuple[str, ...] = ()

    @property
    def runs(self) -> tuple[Run, ...]:
        """What the statistics take."""
        return tuple(repeat.run for repeat in self.repeats)


def gather_side(
    inputs: str | Path | Sequence[str | Path],
    *,
    context: str | Path | Mapping[str, Any] | None = None,
    recompute: bool = True,
    progress: Say | None = None,
) -> Side:
    """Read one side.

    Parameters
    ----------
    inputs : path or sequence of paths
        Each a log (file, folder of one run's logs, glob), a typed table (.csv), a run folder, a folder of run folders,
        or a scorecard.json. Each is one repeat. Several server lives of one log are several, if they were started with
        the same arguments; together they are one where none has enough levels of its own.
    context : path, text or mapping, optional
        Facts of the deployment, as `facts.read_context` takes them; they win over those that a run recorded.
    recompute : bool
        Read the logs of a run folder again where they are at hand. Else, and where they are gone, its stored numbers
        are used, if they were made by this version of schema and method.
    progress : callable, optional
        Called with a line of text.

    Returns
    -------
    Side
        Without repeats where no input has a fitted level; a note says so of each.

    Raises
    ------
    LogFormatError
        An input cannot be read, or stored numbers are of another version and their logs are not at hand.
    """
    given = [inputs] if isinstance(inputs, str | Path) else list(inputs)
    if not given:
        raise LogFormatError("no input: expected a log, a run folder, a scorecard or a table on either side")
    gathering = _Gathering(read_context(context), recompute, progress or (lambda text: None))
    gathering.notes += deployment.unusable(gathering.user)
    found = [item for path in given for item in expand(os.fspath(path), gathering.notes)]
    for path, kind in found:
        gathering.read(path, kind)
    return Side(tuple(gathering.repeats), joined(gathering.facts), tuple(dict.fromkeys(gathering.notes)))


class _Gathering:
    """The repeats of a side while they are read."""

    def __init__(self, user: Mapping[str, Any], recompute: bool, say: Say) -> None:
        self.user, self.recompute, self.say = user, recompute, say
        self.repeats: list[Repeat] = []
        self.facts: list[Mapping[str, Any]] = []
        self.notes: list[str] = []

    def read(self, path: str, kind: str) -> None:
        """Add what one input holds; one without decode is said and left out."""
        try:
            if kind == "log":
                analysis = self._analyse([path], self.user, {})
                self._of_analysis(analysis, path, "log" if analysis.log is not None else "table", "read", CONFIDENCE)
            else:
                self._of_run(Path(path), kind)
        except NotEnoughData as error:
            self.notes.append(f"{path} is not compared: {error}")

    def _of_run(self, folder: Path, kind: str) -> None:
        record = read_json(folder / RUN_FILE) if kind == "run_folder" else {}
        parameters = record.get("parameters") or {}
        why = "its logs are not at hand" if self.recompute else "it was asked for"
        if record and self.recompute:
            found = self._again(folder, record, parameters)
            if isinstance(found, Analysis):
                if parameters.get("min_clean"):
                    self.notes.append(f"{folder}: analysed with min_clean = {parameters['min_clean']}, as it was")
                self._of_analysis(found, str(folder), kind, "recomputed", _confidence(parameters))
                return
            why = found
        self._of_card(folder, kind, why)

    def _analyse(self, logs: Sequence[str], facts: Mapping[str, Any], parameters: Mapping[str, Any]) -> Analysis:
        name = Path(logs[0]).name
        self.say(f"reading {name}")
        return analyse(
            list(logs), context=facts, confidence=_confidence(parameters), min_clean=parameters.get("min_clean"),
            progress=lambda done, total: self.say(f"reading {name}, {100 * done / total:.0f} %" if total else
                                                  f"reading {name}"),
        )

    def _again(self, folder: Path, record: Mapping[str, Any], parameters: Mapping[str, Any]) -> Analysis | str:
        """Analyse the logs of a run as it did; in words why not, where they are gone or others."""
        hashes = sorted(record.get("log_sha256") or [])
        named = [str(name) for name in [parameters.get("log_path"), *(parameters.get("more_log_paths") or [])] if name]
        if not named or not hashes:
            return "it does not tell which logs it read"
        logs = [at_hand(name, folder, hashes) for name in named]
        gone = [name for name, log in zip(named, logs, strict=True) if log is None]
        if gone:
            return f"its log {gone[0]} is not at hand as it was"
        recorded = deployment.told(parameters.get("context"), **{n: parameters[n] for n in KNOWN if n in parameters})
        analysis = self._analyse([log for log in logs if log], {**recorded, **self.user}, parameters)
        if sorted(analysis.scorecard["run"]["log_sha256"]) != hashes:
            return f"its log {named[0]} is not what it was"
        return analysis

    def _of_analysis(self, analysis: Analysis, path: str, kind: str, how: str, confidence: float) -> None:
        facts = {**analysis.scorecard["run"]["facts"], "args": analysis.facts.get("args")}
        ends: dict[int, str] = {}
        if analysis.log is not None:
            events = analysis.log.events[analysis.log.events["kind"].isin(FAILURES)]
            ends = {int(life): str(kind) for life, kind in zip(events["server_life"], events["kind"], strict=True)}
        self._add(analysis.levels, analysis.scorecard, facts, path, kind, how, confidence, ends)

    def _of_card(self, path: Path, kind: str, why: str) -> None:
        """Take the stored numbers of a scorecard, or refuse them."""
        file = path / scorecard.FILE_NAME if path.is_dir() else path
        if not file.is_file():
            raise LogFormatError(f"{path}: expected a run that wrote {scorecard.FILE_NAME}, found none, and {why}; run "
                                 "it again")
        card = read_json(file)
        found = card.get("schema_version"), card.get("method_version")
        if found != (SCHEMA_VERSION, METHOD_VERSION):
            raise LogFormatError(
                f"{file}: expected numbers of schema_version {SCHEMA_VERSION} and method_version {METHOD_VERSION}, "
                f"found {found[0]} and {found[1]}, and {why}; run its logs again with this rooflog, or name the logs"
            )
        try:
            confidence = float((card["fit"].get("selected") or {}).get("confidence") or CONFIDENCE)
            facts = merge_facts(card["run"]["facts"], self.user).values
            self._add(stored_levels(card), card, facts, str(path), kind, "stored", confidence)
        except (KeyError, TypeError, AttributeError, SchemaError) as error:
            raise LogFormatError(f"{file}: expected a scorecard, found one that is not whole: {error}; run it again"
                                 ) from error
        self.notes.append(f"{path}: the stored numbers are used, as {why}")

    def _add(
        self, levels: pd.DataFrame, card: Mapping[str, Any], facts: Mapping[str, Any], path: str, kind: str, how: str,
        confidence: float, ends: Mapping[int, str] | None = None,
    ) -> None:
        """Add a run for each server life; lives with hardly a level are none beside those with enough."""
        settings = settings_of(facts)
        self.facts.append(settings)
        lives = self._lives(levels, path)
        self.notes += [f"{path}: a check of this run failed ({check['name']})"
                       for check in card["checks"] if check["pass"] is False]
        hashes = tuple(card["run"]["log_sha256"])
        target_s = ((card["roofline"] or {}).get("target") or {}).get("step_s") or {}
        phases = {name: value for name, value in card["phases"].items() if name.endswith("_s")}
        for life in lives:
            name = "+".join(map(str, life))
            run = compare.run_of(
                levels[levels["server_life"].isin(life)], confidence=confidence,
                target_step_s={float(key): float(value) for key, value in target_s.items() if value},
                content=f"{'+'.join(sorted(hashes))}:{name}" if hashes else "",
            )
            where = f"{Path(path).name} (server life {name})" if len(lives) > 1 else Path(path).name
            run = replace(run, notes=tuple(f"{where}: {note}" for note in run.notes))
            self.repeats.append(Repeat(run, path, kind, how, hashes, None if kind == "table" else name, settings,
                                       phases if life == lives[0] else {}, tuple(card["run"]["notes"]),
                                       next((ends[n] for n in life if n in ends), "") if ends else ""))

    def _lives(self, levels: pd.DataFrame, path: str) -> list[tuple[int, ...]]:
        """Return the server lives of each run: one each, or all of a sweep that restarts between its levels."""
        fitted = levels[levels["is_fitted"] & levels["population"].eq(0)]
        seen = {int(str(life)): set(part["running_req"].round(1)) for life, part in fitted.groupby("server_life")}
        if not seen:
            raise NotEnoughData("no level is fitted; give a longer or cleaner log")
        self.notes += [f"{path}: server life {life} was started with other arguments and is not compared"
                       for life in sorted(set(levels.loc[levels["note"].eq(OTHER_ARGUMENTS), "server_life"]))]
        main = [life for life, at in seen.items() if len(at) >= LEVELS_OF_A_RUN]
        if not main and any(at != seen[min(seen)] for at in seen.values()):
            return [tuple(sorted(seen))]
        self.notes += [f"{path}: server life {life} has too few fitted levels ({len(at)}) and is not compared"
                       for life, at in seen.items() if main and life not in main]
        return [(life,) for life in main or seen]


def _confidence(parameters: Mapping[str, Any]) -> float:
    value = parameters.get("confidence")
    return float(value) if isinstance(value, int | float) else CONFIDENCE


def stored_levels(card: Mapping[str, Any]) -> pd.DataFrame:
    """Return the levels of a scorecard as a table.

    Returns
    -------
    DataFrame, schema LEVELS
        Columns that a scorecard leaves out are missing values.
    """
    rows = [{**level, "population": 0, "method": "none", "n_rejected": json.dumps(level.get("n_rejected") or {})}
            for level in card["levels"]]
    return conform(pd.DataFrame(rows), LEVELS) if rows else LEVELS.empty()
