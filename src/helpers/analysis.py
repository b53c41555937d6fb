"""The whole way from a log to a scorecard, as commands and notebooks go it: every stage once, in order."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import file_digest
from pathlib import Path
from typing import Any

import pandas as pd

from helpers import allowance, ingest, investigation, laws, remote, scorecard, segment
from helpers.allowance import Allowance
from helpers.facts import Facts, merge_facts, read_context
from helpers.ingest import Log
from helpers.investigation import Judgement, Run
from helpers.measure import (
    Choice,
    Fitted,
    choose_levels,
    fit,
    fitted_lives,
    main_life,
    measure,
    require_confidence,
    what_was_chosen,
)
from helpers.physics.catalogue.hardware import Hardware
from helpers.physics.steps.bound import Roofline
from helpers.schema import Fits, LogFormatError, RooflogError, kept_rows


@dataclass(frozen=True)
class Analysis:
    """Everything a run found, stage by stage.

    Attributes
    ----------
    log : Log or None
        None when the levels come from a hand-typed table; then ``intervals`` is None too.
    facts : Facts
        What is known about the deployment, and from whom.
    intervals : DataFrame, schema INTERVALS, or None
    levels : DataFrame, schema LEVELS
        ``is_fitted`` only in server lives that were started with the same arguments.
    fits : Fits
    phases : dict or None
        Seconds of each phase.
    allowed : Allowance or None
        What the hardware allows; None where hardware or model are not known, ``scorecard["roofline"]["refused"]``
        says what is missing.
    judgement : Judgement
        What limits decode: observations, ranked causes, experiments, and the side files behind them.
    scorecard : dict
    """

    log: Log | None
    facts: Facts
    intervals: pd.DataFrame | None
    levels: pd.DataFrame
    fits: Fits
    phases: dict[str, float] | None
    allowed: Allowance | None
    judgement: Judgement
    scorecard: dict[str, Any]

    @property
    def roofline(self) -> Roofline | None:
        """The lines at the levels of the data."""
        return None if self.allowed is None else self.allowed.roofline

    @property
    def answer(self) -> str:
        """The answer in a few sentences."""
        return scorecard.answer(self.scorecard)


def analyse(
    sources: str | Path | Sequence[str | Path],
    *,
    context: str | Path | Mapping[str, Any] | None = None,
    confidence: float = 0.95,
    min_clean: int | None = None,
    choice: Choice | None = None,
    command: str = "",
    side: Mapping[str, Any] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Analysis:
    """Analyse logs, or one hand-typed table of rates.

    Parameters
    ----------
    sources : path or sequence of paths
        Whatever `ingest.read_log` takes, or the path of one table.
    context : path, text or mapping, optional
        Facts about the deployment, as `facts.read_context` takes them.
    confidence : float in (0, 1)
        Of every interval.
    min_clean : int, optional
        Clean intervals below which a level does not rest on them alone: it is corrected for prompts, or not fitted.
    choice : measure.Choice, optional
        What of the log counts, and which law is shown; `min_clean` wins over its own. A table takes levels and law.
    command : str
        Command line to record.
    side : mapping, optional
        Files beside the log, as `investigation.gather` takes them.
    progress : callable, optional
        Called with bytes read and bytes in all, as by `ingest.read_log`.

    Returns
    -------
    Analysis
        A law that cannot be claimed is no error: ``fits.selected.refused`` says why.

    Raises
    ------
    LogFormatError
        An input cannot be read at all, or holds no statistics.
    NotEnoughData
        No interval holds a decode rate.
    RooflogError
        ``confidence`` is not a share between 0 and 1, or a choice cannot be.
    """
    require_confidence(confidence)
    user, choice = read_context(context), choice or Choice()
    if min_clean is not None:
        choice = replace(choice, level=replace(choice.level, min_clean=min_clean))
    paths = [sources] if isinstance(sources, str | Path) else list(sources)
    is_named_table = [Path(path).suffix.lower() == ".csv" for path in paths]
    if len(paths) == 1 and (is_named_table[0] or ingest.is_table(paths[0])):
        with remote.local_copy(str(paths[0])) as local:
            return _analyse_table(Path(local), user, confidence, command, side or {}, choice)
    if any(is_named_table):
        raise LogFormatError("several inputs: expected logs, found a table (.csv) among them; give the table by itself")
    log = ingest.read_log(paths, progress=progress)
    _refuse_mixed_engines(log)
    measured = measure(log, user, confidence=confidence, choice=choice)
    intervals, levels, facts, life = measured.intervals, measured.levels, measured.facts, main_life(measured.levels)
    told = [facts_of_life.values for facts_of_life in measured.lives]
    phases = segment.phase_seconds(kept_rows(intervals, intervals["server_life"].isin(fitted_lives(levels))))
    client = _client(segment.find_episodes(intervals), intervals, life, facts)
    notes = [*what_was_chosen(intervals), *_incidents(log, fitted_lives(levels)), *_other_lives(levels, intervals),
             *_combined(log, told, fitted_lives(levels))]
    return _assemble(log, facts, intervals, levels, measured.fitted, confidence, phases, client, command, (), notes,
                     told, side or {})


MIXED_RECORDS = 3
"""Decode records of a second engine in one server life from which no law can be told apart; fewer are a quotation."""


def _refuse_mixed_engines(log: Log) -> None:
    """Refuse a log in which two engines print into one server life: which line is whose decides every number."""
    if log.samples["engine"].nunique() < 2:
        return
    telling = log.samples[log.samples["kind"].isin(["decode", "stats", "iteration", "request", "counters"])]
    for life, of_life in telling.groupby("server_life"):
        counts = of_life["engine"].value_counts()
        found = {str(name): int(n) for name, n in counts.items() if n >= MIXED_RECORDS}
        if len(found) > 1:
            words = " and ".join(f"{n} of {name}" for name, n in found.items())
            raise LogFormatError(
                f"{log.sources[0].path}: expected the records of one engine in server life {life}, found {words}; "
                "no law holds for both: give each server's log by itself"
            )


def _combined(log: Log, facts: Sequence[Mapping[str, Any]], lives: Sequence[int]) -> list[str]:
    """Say how ranks, nodes and several kinds of records were put together, where a reader must know."""
    sources = segment.describe_sources(log.samples)
    sources = sources[sources["server_life"].isin(lives)]
    several = sources[~sources["is_used"]]
    notes = [f"{row['source']} records ({row['n_records']}): {row['why']}" for row in several.to_dict("records")]
    joined = segment.join_nodes(log.samples, log.events, facts)
    return [*dict.fromkeys(notes), *segment.combination_notes(segment.topology(log.samples, facts), joined)]


def _analyse_table(
    path: Path, user: Mapping[str, Any], confidence: float, command: str, side: Mapping[str, Any], choice: Choice
) -> Analysis:
    """Fit a hand-typed table: no log, so no intervals, phases or client average."""
    levels = choose_levels(ingest.read_table(path), choice)
    facts = merge_facts(None, user)
    fitted = fit(levels, None, facts, confidence=confidence, choice=choice)
    with open(path, "rb") as file:
        sha256 = file_digest(file, "sha256").hexdigest()
    return _assemble(None, facts, None, levels, fitted, confidence, None, None, command, (sha256,), [], [facts.values],
                     side)


READ_ESTIMATE = "est. read BW (GB/s per GPU)"
"""Key of SGLang's own estimate of its memory traffic: it counts all weights once per token, not once per step."""


def _own_estimates(samples: pd.DataFrame, board: Hardware) -> list[str]:
    """Call out a server's own estimate of its read bandwidth where it lies above the peak of the hardware."""
    lines = samples.loc[samples["extra"].str.contains(READ_ESTIMATE, regex=False, na=False), "extra"]
    printed = [json.loads(text).get(READ_ESTIMATE) for text in lines]
    rates = [1e9 * float(rate) for rate in printed if rate is not None]
    above = sum(rate > board.mem_bw_bytes_per_s for rate in rates)
    if not above:
        return []
    peak = f"{board.mem_bw_bytes_per_s / 1e9:.4g} GB/s of one {board.name}"
    return [f"the server's own {READ_ESTIMATE} is above the {peak} in {above} of {len(rates)} lines (up to "
            f"{max(rates) / 1e9:.4g}): it charges the weights to every token, and is never used here"]


INCIDENTS = ("out_of_memory", "crash", "watchdog", "retraction", "preemption")
"""Server events that a reader of the answer must know of."""


def _incidents(log: Log, lives: Sequence[int]) -> list[str]:
    """Say what went wrong in the server lives that the law rests on, with the first line."""
    events = log.events[log.events["server_life"].isin(lives) & log.events["kind"].isin(INCIDENTS)]
    return [
        f"the log reports {str(kind).replace('_', ' ')} ({len(rows)} line{'' if len(rows) == 1 else 's'}, "
        f"first {Path(rows['file'].iloc[0]).name}:{rows['line_no'].iloc[0]})"
        for kind, rows in events.groupby("kind", sort=False)
    ]


def _other_lives(levels: pd.DataFrame, intervals: pd.DataFrame) -> list[str]:
    """Say which server lives the answer leaves out, and which file holds the ones it rests on."""
    lives = fitted_lives(levels)
    others = sorted(set(intervals["server_life"].unique().tolist()) - set(lives))
    if not others:
        return []
    files = intervals[intervals["server_life"].isin(lives)]["file"].unique()
    names = ", ".join(Path(name).name if len(files) == 1 else name for name in files)
    left_out = ", ".join(str(life) for life in others)
    rests_on = ", ".join(map(str, lives))
    return [f"the answer rests on server life {rests_on} ({names}); of the others ({left_out}) only the table tells"]


def _client(episodes: pd.DataFrame, intervals: pd.DataFrame, life: int, facts: Facts) -> scorecard.Client | None:
    """Hold the whole-load average against the steady rate, in the largest load episode that has a steady rate."""
    if episodes.empty:
        return None
    known = episodes[(episodes["server_life"] == life) & episodes["steady_tok_per_s"].notna()]
    if facts.get("client_output_tok_per_s") is None:
        # Lockstep ranks begin and end a load at different times: their log gives no average that a client would see.
        # Nor does a log without prefill records, whose loads have no beginning.
        has_prefill = bool(intervals.loc[intervals["server_life"].eq(life), "prefill_tok"].gt(0).any())
        known = known[known["n_ranks"].eq(1) & has_prefill]
    wanted = facts.get("client_concurrency")
    if wanted is not None and (known["peak_req"] == wanted).any():
        known = known[known["peak_req"] == wanted]
    if known.empty:
        return None
    largest = known.sort_values("peak_req", kind="stable").iloc[-1]
    told = facts.get("client_output_tok_per_s")
    return scorecard.Client(
        output_tok_per_s=float(told if told is not None else largest["average_tok_per_s"]),
        source="log" if told is None else "user",
        steady_tok_per_s=float(largest["steady_tok_per_s"]),
        running_req=float(largest["peak_req"]),
        other_s={name: float(largest[f"{name}_s"]) for name in ("ramp", "mixed", "drain")},
        duration_s=float(largest["duration_s"]),
    )


SAID_OF_SIDE_FILES = ("boards_differ", "boards_of_others", "dead_counter")
"""Observations that take others away: a reader must know of them."""


def _assemble(
    log: Log | None, facts: Facts, intervals: pd.DataFrame | None, levels: pd.DataFrame, fitted: Fitted,
    confidence: float, phases: dict[str, float] | None, client: scorecard.Client | None, command: str,
    log_sha256: Sequence[str], said: Sequence[str], told: Sequence[Mapping[str, Any]], side: Mapping[str, Any],
) -> Analysis:
    """Judge what was measured, and state everything."""
    notes = [*said, *facts.contradictions, *(f"{key} (--context): {reason}" for key, reason in facts.unused.items())]
    fits, allowed, refused = fitted.fits, fitted.allowed, fitted.refused
    if allowed is not None:
        notes += [*allowed.deployment.warnings, *allowed.roofline.warnings]
        notes += [] if log is None else _own_estimates(log.samples, allowed.deployment.hardware)
    if log is not None and len(log.moments):
        fits = replace(fits, crosschecks=laws.crosscheck_moments(fits, log.moments))
    if allowed is not None and not refused:
        notes += allowed.impossible
        try:
            allowed = allowance.with_levers(allowed, levels, fits.selected, facts)
        except RooflogError as error:  # a change that cannot be read leaves the rest as it is
            notes.append(str(error))
    run = investigation.empty_run(levels, fits, facts, allowed) if log is None or intervals is None else Run(
        log.samples, log.events, intervals, levels, fits, facts, told, fitted_lives(levels), allowed)
    baseline = _baseline(side, confidence)
    evidence = investigation.gather(run, side, baseline)
    judgement = investigation.investigate(run, evidence, baseline)
    notes += [*judgement.evidence.notes, *(item.says for item in judgement.seen if item.name in SAID_OF_SIDE_FILES)]
    of_law = None if intervals is None else kept_rows(intervals, intervals["server_life"].isin(fitted_lives(levels)))
    card = scorecard.build(
        log, of_law, levels, fits, facts={**facts.values, **investigation.measured(run)}, phases=phases,
        client=client, command=command, log_sha256=log_sha256, notes=notes, **allowance.entries(allowed, refused),
        **investigation.entries(judgement),
    )
    return Analysis(log, facts, intervals, levels, fits, phases, allowed, judgement, card)


def _baseline(side: Mapping[str, Any], confidence: float) -> Run | None:
    """Analyse the log of another run of the same server."""
    path = side.get("baseline_log")
    if not path:
        return None
    other = analyse(path, confidence=confidence)
    if other.log is None or other.intervals is None:
        return investigation.empty_run(other.levels, other.fits, other.facts, other.allowed)
    return Run(other.log.samples, other.log.events, other.intervals, other.levels, other.fits, other.facts,
               list(other.log.facts), fitted_lives(other.levels), other.allowed)
