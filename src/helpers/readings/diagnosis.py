"""Tables and sentences about what limits decode: causes, evidence, side files, the next experiment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from typing import Any

import pandas as pd

from helpers.diagnose.observations import CHANNELS, Observations
from helpers.diagnose.reconcile import ProfileMatch
from helpers.display import level_key, show
from helpers.evidence.profiles import Profile, role_shares
from helpers.investigation import Evidence, Recording
from helpers.investigation.reconciled import ClientMatch, Reconciled
from helpers.limiting import causes_rows, limits, predictions, refuted_rows, silent
from helpers.plan import Plan

Card = Mapping[str, Any]

MAX_CLIENTS = 4
"""Runs of a client told in sentences."""

MAX_PLANS = 5
"""Experiments listed; the first one is the answer."""

TELEMETRY_COLUMNS = {
    "power_w": ("power [W]", 1.0), "power_limit_w": ("power limit [W]", 1.0), "sm_clock_hz": ("SM clock [MHz]", 1e-6),
    "mem_clock_hz": ("memory clock [MHz]", 1e-6), "busy_frac": ("any kernel running [%]", 100.0),
    "mem_busy_frac": ("memory controller busy [%]", 100.0), "dram_active_frac": ("memory interface active [%]", 100.0),
    "sm_active_frac": ("SMs with work [%]", 100.0), "sm_occupancy_frac": ("occupancy [%]", 100.0),
    "tensor_active_frac": ("tensor pipes active [%]", 100.0), "temperature_c": ("temperature [C]", 1.0),
    "running_req": ("running requests [req]", 1.0), "queue_req": ("waiting requests [req]", 1.0),
    "kv_used_frac": ("KV pool used [%]", 100.0),
}
"""Column of TELEMETRY -> heading with its unit, and the factor to it."""


def causes_table(card: Card) -> pd.DataFrame:
    """Return the causes that stand, best first: what each means, its status, the strongest facts, what decides."""
    return pd.DataFrame(causes_rows(card), columns=["cause", "status", "for", "against", "decided by"])


def refuted_table(card: Card) -> pd.DataFrame:
    """Return the refuted causes with the fact that refuted each."""
    return pd.DataFrame(refuted_rows(card), columns=["cause", "refuted by"])


def causes_reading(card: Card) -> str:
    """Say what limits decode, what speaks for and against it, and which experiment decides."""
    return "\n".join(limits(card)) or "Nothing is said about causes."


def silence_reading(card: Card) -> str:
    """Name the causes about which nothing was seen: they are neither supported nor refuted."""
    names = silent(card)
    return f"Nothing was seen for or against: {', '.join(names)}." if names else "Something was seen about every cause."


def observations_table(seen: Observations) -> pd.DataFrame:
    """Return everything that was seen, by channel: the evidence behind the causes."""
    order = {name: place for place, name in enumerate(CHANNELS)}
    rows = [{"channel": CHANNELS[item.channel], "seen": item.says, "from": item.source, "place": order[item.channel]}
            for item in seen]
    table = pd.DataFrame(rows, columns=["channel", "seen", "from", "place"]).drop_duplicates(["channel", "seen"])
    return table.sort_values("place", kind="stable").drop(columns="place").reset_index(drop=True)


def evidence_table(evidence: Evidence) -> pd.DataFrame:
    """Return what became of every side file: rows read, lines that cannot be read, and how its clock was aligned."""
    return pd.DataFrame(list(_files(evidence)), columns=["file", "what it is", "rows", "cannot be read", "clock"])


def _files(evidence: Evidence) -> Iterator[dict[str, Any]]:
    for recording in (evidence.recording, evidence.gauges, evidence.baseline):
        if recording is not None:
            clock = recording.clock
            how = clock.how if clock.is_refused else f"{clock.how} (within {show(clock.uncertainty_s, 'duration')})"
            tally = recording.telemetry.tally
            yield {"file": tally.file, "what it is": recording.telemetry.tool, "rows": len(recording.telemetry.table),
                   "cannot be read": tally.lines["malformed"], "clock": how}
    if evidence.clients is not None:
        for tally in evidence.clients.tally:
            of_file = evidence.clients.runs["file"].eq(tally.file)
            tools = ", ".join(sorted(set(evidence.clients.runs.loc[of_file, "tool"])))
            yield {"file": tally.file, "what it is": f"client results ({tools})", "rows": int(of_file.sum()),
                   "cannot be read": tally.lines["malformed"], "clock": ""}
    for found, what in ((evidence.profile, "kernel profile"), (evidence.topology, "topology and link states")):
        if found is not None:
            yield {"file": found.tally.file, "what it is": what, "rows": found.tally.lines["row"],
                   "cannot be read": found.tally.lines["malformed"], "clock": ""}


def evidence_reading(evidence: Evidence) -> str:
    """Say which side files there are, and every doubt about them."""
    n_files = len(list(_files(evidence)))
    if not n_files:
        return ("No side file was given: the causes rest on the log and on what is known of the deployment. Telemetry "
                "of the same time, a client's result or a kernel profile tell more (parameters of this notebook).")
    files = f"{n_files} side file{'' if n_files == 1 else 's'} {'was' if n_files == 1 else 'were'} read."
    return "\n".join([files, *(f"{note}." for note in evidence.notes)])


def telemetry_table(recording: Recording | None) -> pd.DataFrame:
    """Hold the medians of the loaded windows beside those of the whole file, per device or rank.

    Whole-file medians mislead: start-up and idle time are in them. Both are named.
    """
    heads = ["device or rank", "quantity", "median in the loaded windows", "median of the whole file", "samples inside"]
    if recording is None or recording.table.empty:
        return pd.DataFrame(columns=heads)
    rows = []
    whole, inside = (table.assign(who=table["device"].fillna(table["rank"])) for table in (
        recording.table, recording.loaded))
    for who, of_file in whole.groupby("who"):
        of_window = inside[inside["who"].eq(who)]
        for column, (head, factor) in TELEMETRY_COLUMNS.items():
            if of_file[column].notna().any():
                values = [show(float(table[column].median()) * factor) for table in (of_window, of_file)]
                rows.append(dict(zip(heads, (who, head, *values, int(of_window[column].notna().sum())), strict=True)))
    return pd.DataFrame(rows, columns=heads)


def reconciliation_reading(found: Reconciled) -> str:
    """Say whether client and profile tell of the same load as the log, and where the client's time went."""
    lines = []
    for match in found.clients[:MAX_CLIENTS]:
        lines.append(_client_line(match))
    if len(found.clients) > MAX_CLIENTS:
        lines.append(f"And {len(found.clients) - MAX_CLIENTS} more runs of the client.")
    if found.profile is not None:
        lines.append(f"The profile's step against the log's: {_profile_words(found.profile)}.")
    return "\n".join(lines) or "Neither a client's result nor a profile was given: nothing to hold the log against."


def _client_line(match: ClientMatch) -> str:
    client = match.client
    name = " ".join(str(client[key]) for key in ("tool", "name") if isinstance(client[key], str))
    load = f" at {client['concurrency_req']:g} requests" if isfinite(client["concurrency_req"]) else ""
    if match.time is None or match.tokens is None:
        return f"The client's run {name}{load} is not placed in the log: {match.placed}."
    time, tokens = match.time, match.tokens
    text = (f"The client's run {name}{load}: {show(time.client_tok_per_s, 'tok/s')} over "
            f"{show(time.duration_s, 'duration')}, the log's steady rate {show(time.steady_tok_per_s, 'tok/s')}.")
    text += f" {' '.join(f'{note}.' for note in time.notes)}" if time.notes else ""
    if tokens.refused:
        return f"{text} Its time per token is not explained: {tokens.refused}."
    rest = show(tokens.rest_s, "s", tokens.rest_lo_s, tokens.rest_hi_s)
    return (f"{text} Its time per token, {show(tokens.tpot_s, 's')} ({tokens.statistic}), is a step of "
            f"{show(tokens.step_s, 's')}, {show(tokens.prefill_s, 's')} of prompts between steps, "
            f"{show(tokens.other_counts_s + tokens.pauses_s + tokens.requeued_s, 's')} of other counts, pauses and "
            f"waiting, and a rest of {rest}.")


def _profile_words(match: ProfileMatch) -> str:
    if match.represents is None:
        return match.verdict
    ratio = show(match.ratio, "", match.ratio_lo, match.ratio_hi)
    says = f"{match.verdict}{' it' if match.represents else ''}"
    return f"{ratio} of the level N={level_key(match.level_req)}: it {says}"


def client_table(found: Reconciled) -> pd.DataFrame:
    """Return where the duration of the main client run went; the times add up to it."""
    if found.main is None or found.main.time is None:
        return pd.DataFrame(columns=["part", "time [s]", "share [%]"])
    frame = found.main.time.to_frame()
    return pd.DataFrame({"part": frame["part"], "time [s]": frame["time_s"].round(2),
                         "share [%]": (100 * frame["share_frac"]).round(1)})


def roles_table(profile: Profile | None) -> pd.DataFrame:
    """Return what the kernels of a profile do, unclassified ones included."""
    heads = ["role", "time [ms]", "share [%]", "launches", "launches per step"]
    if profile is None:
        return pd.DataFrame(columns=heads)
    shares = role_shares(profile)
    return pd.DataFrame({
        "role": shares["role"], "time [ms]": (1e3 * shares["total_s"]).round(3),
        "share [%]": (100 * shares["share_frac"]).round(1), "launches": shares["n_calls"],
        "launches per step": [show(float(value)) for value in shares["calls_per_step"]]})


def plans_table(plans: Sequence[Plan]) -> pd.DataFrame:
    """Return the experiments that tell the standing causes apart, most telling per minute first."""
    rows = [{"experiment": plan.what, "tells": plan.why, "takes": show(plan.duration_s, "duration"),
             "information [bit]": show(plan.bits), "assumes": "; ".join(plan.assumptions)}
            for plan in plans[:MAX_PLANS]]
    return pd.DataFrame(rows, columns=["experiment", "tells", "takes", "information [bit]", "assumes"])


def plan_reading(plans: Sequence[Plan]) -> str:
    """Say what the first experiment would show under each cause that stands."""
    if not plans:
        return "No experiment is needed, or none of the table tells the causes apart that still stand."
    first = plans[0]
    lines = [f"Next: {first.what}; it takes {show(first.duration_s, 'duration')}."]
    said = predictions({cause: outcome.text for cause, outcome in first.predicts.items()})
    lines += [f"{text[0].upper()}{text[1:]}." for text in said]
    return "\n".join([*lines, "`rooflog plan` on the run folder writes it as a script."])
