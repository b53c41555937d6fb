"""State of the PCIe links, judged only under load: an idle link of the first generation is a power state, no fault."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from helpers.evidence.links.prints import Print
from helpers.schema import LINKS, TELEMETRY, check, conform

BUSY_FRAC = 0.1
"""Utilisation from which a device works: a display or the print itself shows a few per cent."""

POWER_FRAC = 0.25
"""Share of the power limit from which a device works: idle boards in P0 draw 0.10 (H100: 72 of 700 W) to 0.17 (a loaded
model that serves nothing, 118 of 700 W: log-formats.md 5.2)."""

TRAFFIC_BYTES_PER_S = 1e8
"""PCIe traffic from which a device works: idle prints show 1 to 3 MB/s, a first-generation x16 link carries 4 GB/s."""

DEEPEST_WORKING_STATE = 3
"""Performance states P0 to P3 do compute (GeForce boards compute in P2); deeper ones save power."""

_PREFIXES = {"KB/s": 1e3, "MB/s": 1e6, "GB/s": 1e9}
_NVLINK = "NV"


@dataclass(frozen=True)
class Finding:
    """One thing that topology or link state tell.

    Attributes
    ----------
    kind : str
        no_nvlink, some_nvlink, all_nvlink, crosses_sockets, link_reduced, link_full, link_idle, link_unknown.
    devices : tuple of str
    statement : str
        One sentence.
    is_proven : bool
        False: it may be so; the sentence says what would tell.
    """

    kind: str
    devices: tuple[str, ...]
    statement: str
    is_proven: bool


def _number(text: str | None) -> float:
    """Return the number a print starts with, in its own unit; NaN without one."""
    words = (text or "").removesuffix("x").split()
    try:
        return float(words[0]) if words else np.nan
    except ValueError:
        return np.nan


def _traffic_bytes_per_s(found: Print) -> float:
    rates = [_number(text) * _PREFIXES.get(text.split()[-1], np.nan)
             for text in (found.values.get("tx"), found.values.get("rx")) if text]
    return float(np.sum(rates)) if rates else np.nan


def told_load(found: Print) -> tuple[bool | None, str]:
    """Tell from one print whether the device worked when it was made, and what told it.

    Parameters
    ----------
    found : Print

    Returns
    -------
    is_under_load : bool or None
        True only if the print itself shows work: a working performance state with utilisation, power or traffic above
        `BUSY_FRAC`, `POWER_FRAC` of the limit, `TRAFFIC_BYTES_PER_S`. None where nothing told.
    why : str
    """
    if found.tool == "lspci -vv":
        return None, "lspci prints no activity: nothing tells load from idle"
    state = found.values.get("state", "")
    depth = _number(state.removeprefix("P"))
    if depth > DEEPEST_WORKING_STATE:
        return False, f"idle: performance state {state}"
    if found.reasons.get("Idle"):
        return False, "idle: the clocks' event reason is Idle"
    busy = _number(found.values.get("busy")) / 100
    power, limit = _number(found.values.get("power")), _number(found.values.get("power_limit"))
    traffic = _traffic_bytes_per_s(found)
    shown = {
        f"utilisation {busy:.0%}": (busy, BUSY_FRAC), f"{power:.0f} of {limit:.0f} W": (power / limit, POWER_FRAC),
        f"PCIe traffic {traffic / 1e6:.0f} MB/s": (traffic, TRAFFIC_BYTES_PER_S),
    }
    told = {words: value >= least for words, (value, least) in shown.items() if np.isfinite(value)}
    at_work = [words for words, is_work in told.items() if is_work]
    state_words = f"performance state {state}" if state else "no performance state printed"
    if at_work:
        return True, f"under load: {state_words}, {', '.join(at_work)}"
    # Traffic alone does not prove idleness: decode on one device hardly uses the link.
    if any(not words.startswith("PCIe") for words in told):
        return False, f"idle: {', '.join(told)}"
    seen = ", ".join([state_words, *told])
    return None, f"neither utilisation nor power is printed ({seen}): nothing tells load from idle"


def link_rows(prints: Iterable[Print], file: str) -> list[dict[str, object]]:
    """Return a row of LINKS for each print with a link state.

    Parameters
    ----------
    prints : iterable of Print
    file : str

    Returns
    -------
    list of dict
        Highest generation and width are the lower ones of what device and host can use.
    """
    rows: list[dict[str, object]] = []
    for found in prints:
        if not found.has_link:
            continue
        is_under_load, why = told_load(found)
        sides = [_number(found.values.get(name)) for name in ("gen_device_max", "gen_host_max")]
        gen_max = np.fmin.reduce([*sides, _number(found.values.get("gen_max"))])
        widths = [_number(found.values.get(name)) for name in ("width_max", "width_host_max")]
        rows.append({
            "file": file, "line_no": found.line_no, "device": found.device, "peer": None, "kind": "PCIe",
            "link_gen": _number(found.values.get("gen")), "link_gen_max": gen_max,
            "link_width": _number(found.values.get("width")), "link_width_max": np.fmin.reduce(widths),
            "is_under_load": is_under_load, "why": ("port on the way to a device; " if found.is_bridge else "") + why,
        })
    return rows


def device_notes(prints: Iterable[Print]) -> list[str]:
    """Say each device's power limit and what held its clocks down when it was printed."""
    notes = []
    for found in prints:
        said = []
        limit, default = (_number(found.values.get(name)) for name in ("power_limit", "power_limit_default"))
        if np.isfinite(limit):
            lowered = f", set below the default of {default:g} W" if limit < default else ""
            said.append(f"power limit {limit:g} W{lowered}")
        active = [reason for reason, is_active in found.reasons.items() if is_active and reason != "Idle"]
        if active:
            said.append(f"clocks held down by {', '.join(active)}")
        if said:
            name = f" ({found.values['name']})" if "name" in found.values else ""
            notes.append(f"{found.device}{name}: {'; '.join(said)}")
    return notes


def judge_links(links: pd.DataFrame) -> list[Finding]:
    """Say what topology and link states prove, and what they do not.

    Parameters
    ----------
    links : DataFrame, schema LINKS

    Returns
    -------
    list of Finding
        Proven: which pairs NVLink joins, links below what they can do while the device worked. Not proven: a low
        generation at idle (a power state) or where nothing tells load from idle.
    """
    check(links, LINKS)
    return [*_judge_pairs(links[links["peer"].notna()]), *_judge_states(links[links["peer"].isna()])]


def _judge_pairs(pairs: pd.DataFrame) -> list[Finding]:
    # Network cards are in the matrix too; NVLink is between accelerators.
    own = pairs[pairs["device"].str.startswith("GPU") & pairs["peer"].str.startswith("GPU")]
    if own.empty:
        return []
    names = tuple(dict.fromkeys([*own["device"], *own["peer"]]))
    is_nvlink = own["kind"].str.startswith(_NVLINK)
    kinds = ", ".join(f"{kind} {n}" for kind, n in sorted(Counter(own["kind"]).items()))
    n_pairs = "the one pair" if len(own) == 1 else f"the {len(own)} pairs"
    if not is_nvlink.any():
        kind, said = "no_nvlink", f"no NVLink between any of {n_pairs} of devices: all of it crosses PCIe ({kinds})"
    elif is_nvlink.all():
        kind, said = "all_nvlink", f"NVLink joins {n_pairs} of devices ({kinds})"
    else:
        kind, said = "some_nvlink", f"NVLink joins {int(is_nvlink.sum())} of {n_pairs} of devices ({kinds})"
    found = [Finding(kind, names, said, True)]
    crossing = own[own["kind"].eq("SYS")]
    if len(crossing):
        said = f"{len(crossing)} of {n_pairs} of devices cross the link between CPU sockets (SYS)"
        found.append(Finding("crosses_sockets", names, said, True))
    return found


def _judge_states(states: pd.DataFrame) -> list[Finding]:
    return [_judge_state(row) for row in states.to_dict("records")]


def _judge_state(row: Mapping[Any, Any]) -> Finding:
    low, n_known = [], 0
    for name, words in (("link_gen", "generation {} of {}"), ("link_width", "{} of {} lanes")):
        value, most = row[name], row[f"{name}_max"]
        if pd.notna(value) and pd.notna(most):
            n_known += 1
            if value < most:
                low.append(words.format(value, most))
    is_under_load = row["is_under_load"]
    if not low:
        # A link seen at full speed once is not reduced, whatever the device did at that moment.
        is_full = n_known == 2
        kind = "link_full" if is_full else "link_unknown"
        is_proven, said = is_full, "link at all it can do" if is_full else "link state not told in full"
    elif pd.isna(is_under_load):
        kind, is_proven = "link_unknown", False
        said = f"link at {', '.join(low)}, but nothing tells whether the device worked: print it again under load"
    elif is_under_load:
        kind, is_proven, said = "link_reduced", True, f"link at {', '.join(low)} under load"
    else:
        kind, is_proven = "link_idle", False
        said = f"link at {', '.join(low)} at idle: a power state as likely as a fault, print it again under load"
    return Finding(kind, (str(row["device"]),), f"{row['device']}: {said} ({row['why']})", is_proven)


def link_states_of_telemetry(telemetry: pd.DataFrame) -> pd.DataFrame:
    """Return the link state of each device from the samples in which it worked.

    Parameters
    ----------
    telemetry : DataFrame, schema TELEMETRY

    Returns
    -------
    DataFrame, schema LINKS
        A row per device whose link was recorded: the state that most samples under load show (a link takes a moment to
        come out of its power state), or at idle, marked so, where no sample was under load.
    """
    check(telemetry, TELEMETRY)
    rows = []
    known = telemetry[telemetry["link_gen"].notna() | telemetry["link_width"].notna()]
    for device, part in known.groupby("device", sort=False):
        is_load, measure = _worked(part)
        used = part[is_load] if is_load.any() else part
        told: bool | None = bool(is_load.any()) if measure else None
        state = {name: _most_common(used[name])
                 for name in ("link_gen", "link_gen_max", "link_width", "link_width_max")}
        same = int((used["link_gen"].eq(state["link_gen"]) | used["link_gen"].isna()).sum())
        if told:
            why = f"under load in {len(used)} of {len(part)} samples by {measure}; {same} of them show this generation"
        else:
            why = f"idle in all {len(part)} samples by {measure}" if measure else "no utilisation, power or traffic"
        rows.append({"file": used["file"].iloc[0], "line_no": used["line_no"].iloc[0], "device": device, "peer": None,
                     "kind": "PCIe", **state, "is_under_load": told, "why": why})
    return conform(pd.DataFrame(rows), LINKS) if rows else LINKS.empty()


def _worked(part: pd.DataFrame) -> tuple[pd.Series, str]:
    """Return which samples were under load, and by what; "" where nothing recorded tells."""
    shares = {
        "utilisation": part["busy_frac"] / BUSY_FRAC,
        "power": part["power_w"] / part["power_limit_w"] / POWER_FRAC,
        "PCIe traffic": part[["pcie_tx_bytes_per_s", "pcie_rx_bytes_per_s"]].sum(axis=1, min_count=1)
        / TRAFFIC_BYTES_PER_S,
    }
    measures = [name for name, share in shares.items() if share.notna().any()]
    is_load = pd.DataFrame(shares).ge(1.0).any(axis=1)
    # Little traffic is no proof of idleness.
    return is_load, " or ".join(measures) if measures != ["PCIe traffic"] or is_load.any() else ""


def _most_common(values: pd.Series) -> Any:
    counts = values.dropna().value_counts()
    return counts.index[0] if len(counts) else pd.NA
