"""Kernel profiles: what the device did in a step, by role, and how much of it the device waited."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from helpers.evidence.profiles import ncu, nsys, trace
from helpers.evidence.profiles.kernel_roles import role_of
from helpers.evidence.profiles.recording import Recording, Shape
from helpers.evidence.profiles.steps import Steps, find_steps
from helpers.evidence.profiles.timeline import Busy, kernel_table
from helpers.evidence.reading import Tally, binary_kind, head, pieces
from helpers.schema import KERNELS, ROLES, LogFormatError, check

_BINARY = {b"SQLite format 3": "an SQLite export of nsys", b"NVR\x00": "a report of ncu", b"\x00" * 4: "a binary file"}


EXPORT = ("nsys stats --report cuda_gpu_trace --format csv FILE, or ncu --csv --page raw --import FILE; a trace of "
          "torch.profiler is read as it is")

MIN_GRID_FRAC = 0.5
"""Share of kernel time whose grids must be recorded before launches are called small."""


@dataclass(frozen=True)
class Profile:
    """One kernel profile.

    Attributes
    ----------
    tool : str
        "torch profiler", "nsys" or "ncu".
    kernels : DataFrame, schema KERNELS
        Most time first.
    tally : Tally
        Where every line (of a trace: every event) went.
    span_s, busy_s : dict
        Device -> from its first start to its last end, and the union of all its kernels and copies: streams overlap,
        so busy_s is less than the sum of times. Empty where no times of day are recorded (sums, ncu). A span may be
        mostly idle time outside steps: do not divide by it, use `gap_frac`.
    steps : DataFrame
        One row per step of the busiest device (see steps.Steps); empty where no steps were found.
    n_steps : int or None
        Steps; None where nothing in the profile marks them.
    step_rule : str
        How steps were found, in words.
    step_s, step_s_lo, step_s_hi : float
        Median time of a step, and the 5th and 95th percentile over steps (NaN below two); of steps that only decode
        where the profile says which. NaN where steps are unknown.
    kernels_per_step : float
        Median over the same steps, copies not counted.
    gap_frac : float in [0, 1]
        Share of the time of those steps in which the device ran nothing; long idle times between steps are left out.
    running_req, context_tok : float
        Medians over the same steps, where annotated: requests that decode, tokens of their contexts together.
    shapes : tuple of (role, operator, dimensions, bytes)
        Tensors that operators were given, largest first; empty where not recorded.
    n_sms : float
        Multiprocessors of one device.
    small_launch_frac, grid_known_frac : float in [0, 1]
        Share of kernel time in launches of fewer blocks than multiprocessors, among launches whose grid is recorded;
        and the share of kernel time that these are. The first is NaN below MIN_GRID_FRAC of the second: graph replays
        record no grids, and what runs beside a graph is not what the step consists of.
    start_epoch_s : float
        The zero of ``steps.start_s``, in seconds since 1970; NaN where not recorded.
    notes : tuple of str
        Doubts and traps.
    """

    tool: str
    kernels: pd.DataFrame
    tally: Tally
    span_s: dict[str, float]
    busy_s: dict[str, float]
    steps: pd.DataFrame
    n_steps: int | None
    step_rule: str
    step_s: float
    step_s_lo: float
    step_s_hi: float
    kernels_per_step: float
    gap_frac: float
    running_req: float
    context_tok: float
    shapes: tuple[Shape, ...]
    n_sms: float
    small_launch_frac: float
    grid_known_frac: float
    start_epoch_s: float
    notes: tuple[str, ...]


def read_profile(path: str | Path, *, progress: Callable[[int, int], None] | None = None) -> Profile:
    """Read a kernel profile, whatever tool wrote it.

    Parameters
    ----------
    path : path
        A trace of the PyTorch profiler (.json, .json.gz), the CSV of ``nsys stats`` or of ``ncu --csv``; gzip and
        zstd are recognised by content.
    progress : function, optional
        Called with (bytes read, bytes of the file) while a trace is read.

    Returns
    -------
    Profile
        Doubt is in ``notes``; what the file does not record is NaN, never zero.

    Raises
    ------
    LogFormatError
        The file is none of these, or is cut off; the message says which export to make of a binary report.

    Examples
    --------
    >>> profile = read_profile("decode.json.gz")
    >>> role_shares(profile)
    """
    recording = _recording(path, progress)
    timeline = recording.timeline
    span_s, busy_s = {}, {}
    for device in timeline.devices():
        entries = timeline.of_device(device)
        start_s = timeline.column("start_s")[entries].astype(np.float64)
        busy = Busy.of(start_s, start_s + timeline.column("duration_s")[entries])
        span_s[device], busy_s[device] = busy.span_s, busy.total_s
    steps = _steps(recording)
    chosen = steps.chosen
    if recording.table is not None:
        kernels = check(recording.table, KERNELS)
    else:
        kernels = kernel_table(str(path), timeline, role_of, recording.is_draft, recording.shapes_of_key)
    measured = chosen["duration_s"].astype(float)
    lo, hi = measured.quantile([0.05, 0.95]) if len(measured) > 1 else (np.nan, np.nan)
    small_launch_frac, grid_known_frac = _occupancy(kernels, recording.n_sms)
    notes = [*recording.notes, *steps.notes]
    if not len(kernels):
        notes.append("no kernel is recorded in this profile")
    return Profile(
        recording.tool, kernels, recording.tally, span_s, busy_s, steps.table, len(steps.table) or None, steps.rule,
        float(measured.median()), float(lo), float(hi), float(chosen["n_kernels"].astype(float).median()),
        steps.gap_frac, float(chosen["running_req"].astype(float).median()),
        float(chosen["context_tok"].astype(float).median()), tuple(recording.shapes), recording.n_sms,
        small_launch_frac, grid_known_frac, recording.start_epoch_s, tuple(notes))


def role_shares(profile: Profile) -> pd.DataFrame:
    """Sum a profile up by role.

    Parameters
    ----------
    profile : Profile
        With at least one kernel whose time is known.

    Returns
    -------
    DataFrame
        One row per role that occurs, and always one for "unclassified": role, total_s, share_frac (of the time of all
        kernels and copies; adds up to 1), n_calls, per_step_s and calls_per_step (NaN where steps are unknown).
        Largest share first. Copies and launches outside steps count too.
    """
    sums = profile.kernels.groupby("role", as_index=False)[["total_s", "n_calls"]].sum()
    if "unclassified" not in set(sums["role"]):
        sums = pd.concat([sums, pd.DataFrame({"role": ["unclassified"], "total_s": [0.0], "n_calls": [0]})])
    sums["n_calls"] = sums["n_calls"].astype("int64")
    total_s = float(sums["total_s"].sum())
    sums.insert(2, "share_frac", sums["total_s"] / total_s if total_s > 0 else np.nan)
    n_steps = float(profile.n_steps) if profile.n_steps else np.nan
    sums["per_step_s"], sums["calls_per_step"] = sums["total_s"] / n_steps, sums["n_calls"] / n_steps
    order = sums["role"].map(ROLES.index)
    return sums.assign(order=order).sort_values(["total_s", "order"], ascending=[False, True]).drop(
        columns="order").reset_index(drop=True)


def _recording(path: str | Path, progress: Callable[[int, int], None] | None) -> Recording:
    """Read a file with the reader of its tool."""
    start = next((piece for piece, _ in pieces(path) if piece), b"")
    for magic, what in _BINARY.items():
        if start.startswith(magic[: len(start)] if start else b"?"):
            raise LogFormatError(
                f"{path}: expected a trace in JSON or a report in CSV, found {what}; export it: {EXPORT}")
    if kind := binary_kind(path):
        raise LogFormatError(f"{path}: expected a kernel profile, found {kind}; {EXPORT}")
    text = head(path).lstrip()
    if text.startswith(("{", "[")):
        return trace.read_trace(path, progress)
    if '"Kernel Name"' in text or "==PROF==" in text or "Metric Name" in text:
        return ncu.read_ncu(path)
    return nsys.read_nsys(path)


def _steps(recording: Recording) -> Steps:
    """Find the steps of the busiest device."""
    timeline = recording.timeline
    if not len(timeline):
        return Steps(pd.DataFrame(columns=["start_s", "duration_s", "busy_s", "n_kernels", "kind", "running_req",
                                           "context_tok", "is_measured"]), "the file holds no times of single launches")
    entries = timeline.of_device(timeline.devices()[0])
    sampling = timeline.per_key(lambda name, _device, _blocks, is_copy: not is_copy and role_of(name) == "sampling")
    return find_steps(timeline, entries, recording.marked, recording.mark_name, recording.launched_s[entries],
                      sampling.astype(bool))


def _occupancy(kernels: pd.DataFrame, n_sms: float) -> tuple[float, float]:
    """Return the share of time in launches smaller than the device, and the share of time whose grid is known."""
    only = kernels[kernels["role"] != "memory_copy"]
    total_s = float(only["total_s"].sum())
    known = only[only["n_blocks"].notna()]
    if not total_s > 0:
        return np.nan, np.nan
    known_s = float(known["total_s"].sum())
    if not (known_s >= MIN_GRID_FRAC * total_s and n_sms > 0):
        return np.nan, known_s / total_s
    return float(known.loc[known["n_blocks"] < n_sms, "total_s"].sum()) / known_s, known_s / total_s
