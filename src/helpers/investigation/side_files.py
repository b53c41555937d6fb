"""Side files of a run: read, put on the log's clock, clipped to its loaded windows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from helpers.evidence import clocks
from helpers.evidence.clients import Clients, read_clients
from helpers.evidence.clocks import Clock
from helpers.evidence.links import Topology, read_topology
from helpers.evidence.profiles import Profile, read_profile
from helpers.evidence.telemetry import Telemetry, read_telemetry
from helpers.investigation.run import Run
from helpers.progress import Progress

SIDE_FILES = ("telemetry", "client", "topology", "profile", "metrics", "baseline_log", "baseline_telemetry")
"""Files beside a log, as notebooks and commands call them; empty: none."""

LOADED = ("steady", "mixed")
"""Labels of the time that telemetry is compared with: requests decode at a constant count."""

TOP_FRAC = 0.75
"""Share of the largest number of requests from which a window is one of the highest load: what limits the server there
is the question, and medians over all loads belong to none."""

LEAST_COVERED_FRAC = 0.25
"""Share of the windows' time that a file must span to speak for them."""

FEWEST = 3
"""Samples per device in the windows of the highest load below which all loaded windows are taken."""

ANY_LOAD = ("warmup", "ramp", "steady", "mixed", "drain")

SURE_CLOCK_S = 2.0
"""Uncertainty of a clock up to which no margin is taken off its windows [s]: the logs' own stamps have one second."""


@dataclass(frozen=True)
class Recording:
    """Telemetry on the clock of a log.

    Attributes
    ----------
    telemetry : Telemetry
        As read; its table has the file's own clock.
    clock : Clock
    table : DataFrame, schema TELEMETRY
        On the log's clock; empty where the clock was refused.
    loaded : DataFrame, schema TELEMETRY
        The rows inside the loaded windows.
    windows : list of (start_s, end_s)
    at : str
        Which windows these are, in words.
    covered_frac : float
        Share of the windows' time between the first and the last sample.
    margin_s : float
        Taken off at both ends of every window: the uncertainty of the clock, where it is more than that of stamps [s].
    """

    telemetry: Telemetry
    clock: Clock
    table: pd.DataFrame
    loaded: pd.DataFrame
    windows: list[tuple[float, float]]
    margin_s: float = 0.0
    at: str = "loaded windows only"
    covered_frac: float = 1.0


@dataclass(frozen=True)
class Evidence:
    """What side files say, read and aligned; None where a file was not given."""

    recording: Recording | None = None
    gauges: Recording | None = None
    baseline: Recording | None = None
    clients: Clients | None = None
    profile: Profile | None = None
    topology: Topology | None = None
    notes: tuple[str, ...] = ()


def gather(
    run: Run, side: Mapping[str, Any], baseline: Run | None = None, *,
    progress: Callable[[int, int], None] | None = None,
) -> Evidence:
    """Read the side files of a run and put them on its clock.

    Parameters
    ----------
    run : Run
    side : mapping
        Name of `SIDE_FILES` -> path; empty paths are none. ``telemetry_columns`` names the columns of a file without a
        header, ``telemetry_offset_s`` what to add to its times [s].
    baseline : Run, optional
        The stages of ``baseline_log``.
    progress : callable, optional
        Called with bytes read and bytes in all of a large profile.

    Returns
    -------
    Evidence

    Raises
    ------
    LogFormatError
        A file cannot be read as what it was given for.
    """
    notes: list[str] = []
    columns = [name for name in side.get("telemetry_columns") or () if name]
    offset_s = side.get("telemetry_offset_s")

    def recorded(path: str, of: Run) -> Recording:
        found = _record(read_telemetry(path, columns=columns), of, offset_s if of is run else None)
        notes.extend([f"{path}: {note}" for note in found.telemetry.notes])
        rejected = found.telemetry.tally.lines["malformed"]
        notes.extend([f"{path}: {rejected} lines cannot be read"] if rejected else [])
        notes.extend(_clock_notes(path, found))
        return found

    clients = read_clients(str(side["client"])) if side.get("client") else None
    notes += [] if clients is None else list(clients.notes)
    profile = _read_profile(str(side["profile"]), progress) if side.get("profile") else None
    notes += [] if profile is None else [f"{side['profile']}: {note}" for note in profile.notes]
    topology = read_topology(str(side["topology"])) if side.get("topology") else None
    notes += [] if topology is None else [f"{side['topology']}: {note}" for note in topology.notes]
    return Evidence(
        recording=recorded(str(side["telemetry"]), run) if side.get("telemetry") else None,
        gauges=recorded(str(side["metrics"]), run) if side.get("metrics") else None,
        baseline=recorded(str(side["baseline_telemetry"]), baseline)
        if side.get("baseline_telemetry") and baseline is not None else None,
        clients=clients, profile=profile, topology=topology, notes=tuple(dict.fromkeys(notes)),
    )


def _read_profile(path: str, progress: Callable[[int, int], None] | None) -> Profile:
    """Read a profile, and say how far that is: traces reach gigabytes."""
    if progress is not None:
        return read_profile(path, progress=progress)
    with Progress(f"reading {path}") as say:
        return read_profile(path, progress=lambda done, total: say(f"{100 * done / max(total, 1):.0f} %"))


def _record(found: Telemetry, run: Run, offset_s: float | None) -> Recording:
    """Put telemetry on the log's clock and clip it to the loaded windows."""
    clock = clocks.align_telemetry(found.table, found.clock, run.samples, offset_s=offset_s)
    if clock.is_refused:
        # Gauges of ranks are held against each other, not against the log: they need no common clock.
        ranks = found.table[found.table["rank"].notna()]
        return Recording(found, clock, ranks, ranks, [])
    table = clocks.to_log_time(found.table, clock)
    margin_s = 0.0 if clock.uncertainty_s <= SURE_CLOCK_S else clock.uncertainty_s
    of_lives = run.intervals[run.intervals["server_life"].isin(run.lives)]
    loaded = of_lives[of_lives["label"].isin(LOADED)]
    top = loaded[loaded["running_req"] >= TOP_FRAC * loaded["running_req"].max()]
    least, most = (f"{end:g}" for end in (top["running_req"].min(), top["running_req"].max()))
    choices = [(clocks.phases_window(top, LOADED), f"at N={least}" + (f" to {most}" if most != least else "")),
               (clocks.phases_window(of_lives, LOADED), "loaded windows of all levels"),
               (clocks.phases_window(of_lives, ANY_LOAD), "all loaded time, ramps included")]
    for spans, at in choices:
        inside = clocks.clip(table, spans, margin_s=margin_s)
        if len(inside) and inside.groupby(inside["device"].fillna(inside["rank"])).size().min() >= FEWEST:
            break
    covered = _covered_frac(table, spans)
    if covered < LEAST_COVERED_FRAC:
        inside = inside.iloc[:0]
    return Recording(found, clock, table, inside, spans, margin_s, at, covered)


def _covered_frac(table: pd.DataFrame, spans: list[tuple[float, float]]) -> float:
    """Return the share of the windows between the first and the last sample of a file."""
    first, last = table["t_s"].min(), table["t_s"].max()
    total = sum(end - start for start, end in spans)
    inside = sum(max(0.0, min(end, last) - max(start, first)) for start, end in spans)
    return inside / total if total > 0 else 0.0


def _clock_notes(path: str, found: Recording) -> list[str]:
    """Say how the clocks were aligned where a reader must know, and why telemetry is not used."""
    if found.clock.is_refused:
        used = "only its ranks are held against each other" if len(found.loaded) else "not used"
        return [f"{path}: {used}: {found.clock.how}"]
    doubts = [] if found.clock.is_certain else [f"{path}: its clock is uncertain by {found.clock.uncertainty_s:.0f} s: "
                                                f"{found.clock.how}"]
    empty = [f"{path}: not used: its samples span {found.covered_frac:.0%} of the loaded time of the log ({found.at})"
             ] if found.loaded.empty else []
    return [*doubts, *(f"{path}: {text}" for text in found.clock.warnings), *empty]
