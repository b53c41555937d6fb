"""Tables and sentences about the log itself: lines, events, ranks, intervals, episodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from helpers.display import level_key, requests, show
from helpers.readings.text import known
from helpers.schema import INTERVALS, LEVELS, check

MAX_NAMED = 3
"""Items that a sentence lists by name."""

MAX_EVENTS = 40
"""Events shown in a table; all are counted."""

MAX_RANKS = 64
"""Ranks shown in a table; all are counted."""


def accounting_reading(accounting: Mapping[str, Any]) -> str:
    """Say that the classes of lines add up to the lines of the input."""
    lines = accounting["lines"]
    parts = " + ".join(f"{n} {name.replace('_', ' ')}" for name, n in lines.items())
    return f"{accounting['lines_total']} lines = {parts}."


def oddities_reading(accounting: Mapping[str, Any]) -> str:
    """Say what was odd about the bytes of the input."""
    found = [f"{n} {name.replace('_', ' ')}" for name, n in accounting["oddities"].items() if n]
    of_no_use = [f"{n} {name}" for name, n in accounting["known"].items() if n]
    lines = [f"Odd in the bytes: {', '.join(found)}." if found else "Nothing odd in the bytes."]
    lines += [f"Known and of no use here: {', '.join(of_no_use)}."] if of_no_use else []
    lines += [f"Note: {note}" for note in accounting["notes"]]
    return "\n".join(lines)


def malformed_table(accounting: Mapping[str, Any]) -> pd.DataFrame:
    """Return the first malformed lines with file, number, reason and text."""
    return pd.DataFrame(accounting["malformed"], columns=["file", "line_no", "reason", "text"])


def events_table(events: pd.DataFrame) -> pd.DataFrame:
    """Return the server events in order; the text of an argument dump is cut."""
    shown = events.head(MAX_EVENTS)
    return pd.DataFrame(
        {
            "server life": shown["server_life"], "event": shown["kind"], "time [s]": shown["t_s"].round(0),
            "line": shown["line_no"], "size [GB]": [known(size / 1e9) for size in shown["size_bytes"]],
            "text": [text if len(text) <= 100 else text[:99] + "…" for text in shown["text"]],
        }
    ).reset_index(drop=True)


def events_reading(events: pd.DataFrame) -> str:
    """Count the server events by kind."""
    if events.empty:
        return "The log holds no server event."
    counts = ", ".join(f"{n} {str(kind).replace('_', ' ')}" for kind, n in events["kind"].value_counts().items())
    more = f" The first {MAX_EVENTS} are listed." if len(events) > MAX_EVENTS else ""
    return f"{len(events)} server events in {events['server_life'].nunique()} server life(s): {counts}.{more}"


def ranks_reading(ranks: pd.DataFrame) -> str:
    """Say how many ranks were counted, and how."""
    if ranks.empty:
        return "The log holds no rank."
    counts = ranks["counted_as"].fillna("not used").value_counts()
    words = ", ".join(f"{n} as {how}" if how != "not used" else f"{n} not used" for how, n in counts.items())
    return f"{len(ranks)} rank(s) of {ranks['server_life'].nunique()} server life(s): {words}."


def sources_reading(sources: pd.DataFrame) -> str:
    """Say on which kind of record each server life rests, and why not on the others."""
    if sources.empty:
        return "No record tells of decode."
    used = sources[sources["is_used"]]
    words = ", ".join(f"{n} on {name} records" for name, n in used["source"].value_counts().items())
    left = [f"server life {row['server_life']}: {row['n_records']} {row['source']} records {row['why']}"
            for row in sources[~sources["is_used"]].head(MAX_NAMED).to_dict("records")]
    lives = sources["server_life"].nunique()
    return "\n".join([f"{lives} server life(s): {words or 'none rests on anything'}.", *(f"{text}." for text in left)])


def topology_table(topology: pd.DataFrame) -> pd.DataFrame:
    """Return what ran where and how it was combined, as a reader wants it; the first ranks of very many."""
    shown = topology.head(MAX_RANKS)
    table = pd.DataFrame(
        {
            "server life": shown["server_life"], "file": [file.rsplit("/", 1)[-1] for file in shown["file"]],
            "rank": [rank or "(no tag)" for rank in shown["rank"]], "role": shown["role"],
            "engine": ["" if pd.isna(index) else str(index) for index in shown["engine_index"]],
            "records": shown["n_records"], "of prefill": shown["n_prefills"], "used as": shown["used_as"],
            "why": shown["how"],
        }
    )
    same = [name for name in ("server life", "file") if table[name].nunique() <= 1]
    return table.drop(columns=[*same, *(["engine"] if not table["engine"].any() else [])]).reset_index(drop=True)


def topology_reading(topology: pd.DataFrame) -> str:
    """Count the ranks by what they are and by how they were used."""
    if topology.empty:
        return "The log holds no rank."
    used = ", ".join(f"{n} {word}" for word, n in topology["used_as"].value_counts().items())
    roles = topology["role"].str.replace(r"\d+", "n", regex=True).value_counts()
    found = ", ".join(f"{n} x {role}" for role, n in roles.head(MAX_NAMED).items())
    n_files, n_lives = topology["file"].nunique(), topology["server_life"].nunique()
    more = f" The first {MAX_RANKS} are listed." if len(topology) > MAX_RANKS else ""
    return f"{n_files} file(s), {n_lives} server life(s), {len(topology)} rank(s): {found}. Used: {used}.{more}"


def balance_table(balance: pd.DataFrame) -> pd.DataFrame:
    """Return the load of each rank; the one that is largest most of the time sets the step."""
    shown = balance.head(MAX_RANKS)
    return pd.DataFrame(
        {
            "server life": shown["server_life"], "rank": [rank or "(no tag)" for rank in shown["rank"]],
            "mean running requests [req]": [known(n) for n in shown["mean_req"]],
            "largest [% of time]": [known(100 * share) for share in shown["largest_frac"]],
            "tokens [tok]": shown["tokens"].round(0),
            "share of tokens [%]": [known(100 * share) for share in shown["token_share_frac"]],
        }
    ).reset_index(drop=True)


def balance_reading(balance: pd.DataFrame) -> str:
    """Say how unequal the ranks are loaded, in the server life where it is worst."""
    if balance.empty:
        return "One rank counts: there is no imbalance between ranks."
    loads = balance.groupby("server_life")["mean_req"].agg(["min", "max", "mean"])
    worst = loads.iloc[int(np.argmax((loads["max"] / loads["mean"]).to_numpy(float)))]
    excess = 100 * (worst["max"] / worst["mean"] - 1)
    return (
        f"The busiest rank holds {requests(worst['max'])} on average, the idlest {requests(worst['min'])}: "
        f"{excess:.2g} % above the mean of the ranks. Ranks in lockstep all wait for the busiest."
    )


def phases_reading(phases: Mapping[str, float]) -> str:
    """Say how the logged time divides into phases."""
    total_s = sum(phases.values())
    if not total_s > 0:
        return "The log holds no time between two lines."
    parts = [f"{show(s, 'duration')} {name.removesuffix('_s')}" for name, s in phases.items() if s > 0]
    share = 100 * phases["steady_s"] / total_s
    return f"Of {show(total_s, 'duration')} logged, {share:.0f} % is steady decode: {', '.join(parts)}."


def rejected_reading(intervals: pd.DataFrame | None) -> str:
    """Say how many intervals were left out, and the commonest rules."""
    if intervals is None:
        return "A table of rates has no intervals: what was left out of it is not known."
    rejected = intervals[~intervals["clean"]]
    if rejected.empty:
        return f"None of {len(intervals)} intervals was left out."
    counts = rejected["why"].value_counts().sort_index().sort_values(ascending=False, kind="stable")
    first = ", ".join(f"{why} ({n})" for why, n in counts.head(MAX_NAMED).items())
    return f"{len(rejected)} of {len(intervals)} intervals were left out, most often: {first}."


def naive_rates(intervals: pd.DataFrame, levels: pd.DataFrame) -> pd.DataFrame:
    """Hold the mean of the printed rates of each level against tokens over time of its clean intervals.

    Parameters
    ----------
    intervals : DataFrame, schema INTERVALS
    levels : DataFrame, schema LEVELS
        Population 0 is compared, where one rank prints the whole server's rate.

    Returns
    -------
    DataFrame
        running_req [req], n_lines, naive_tok_per_s (mean of every rate printed at that count), decode_tok_per_s (the
        level's), naive_over_level [1].
    """
    check(intervals, INTERVALS)
    check(levels, LEVELS)
    printed = intervals[intervals["decode_tok_per_s"] > 0]
    keys = ["server_life", "rank_group"]
    rates = printed.groupby([*keys, "running_req_printed"])["decode_tok_per_s"].agg(["mean", "size"]).reset_index()
    used = levels[levels["population"].eq(0) & levels["decode_tok_per_s"].notna()]
    used = used.assign(running_req_printed=used["running_req"].round().astype("int64"))
    table = used.merge(rates, on=[*keys, "running_req_printed"])
    n_ranks = printed.groupby(keys)["rank"].nunique().clip(lower=1).rename("n_ranks").reset_index()
    table = table.merge(n_ranks, on=keys)
    naive = table["mean"] * table["n_ranks"]
    return pd.DataFrame(
        {
            "running_req": table["running_req"], "n_lines": table["size"], "naive_tok_per_s": naive,
            "decode_tok_per_s": table["decode_tok_per_s"], "naive_over_level": naive / table["decode_tok_per_s"],
        }
    )


def naive_reading(rates: pd.DataFrame) -> str:
    """Say how far the mean of printed rates is off, and why it cannot be used."""
    if rates.empty:
        return "No level can be compared with the mean of its printed rates."
    off = rates["naive_over_level"].to_numpy(float) - 1
    worst = int(np.argmax(np.abs(off)))
    where = requests(rates["running_req"].iloc[worst])
    return (
        f"The mean of every rate printed at a level misses that level by up to {100 * off[worst]:+.3g} % (at {where}; "
        f"median of all levels {100 * np.median(np.abs(off)):.2g} %): it gives a short interval the weight of a long "
        "one, and takes prefill, ramp and idle time for decode."
    )


def rejected_table(intervals: pd.DataFrame) -> pd.DataFrame:
    """Count the intervals and their time by label and by the rule that decided."""
    check(intervals, INTERVALS)
    counts = intervals.groupby(["label", "clean", "why"]).agg(n=("why", "size"), time_s=("interval_s", "sum"))
    table = counts.reset_index().sort_values(["clean", "n"], ascending=[False, False])
    return pd.DataFrame(
        {
            "label": table["label"], "clean": table["clean"].map({True: "yes", False: "no"}), "rule": table["why"],
            "intervals": table["n"], "time [s]": table["time_s"].round(1),
        }
    ).reset_index(drop=True)


def episodes_table(episodes: pd.DataFrame) -> pd.DataFrame:
    """Return the load episodes as a reader wants them."""
    if episodes.empty:
        return pd.DataFrame(columns=["peak running requests [req]", "duration [s]"])
    table = pd.DataFrame(
        {
            "server life": episodes["server_life"],
            "ranks": episodes["rank_group"],
            "start [s]": episodes["start_s"].round(0),
            "duration [s]": episodes["duration_s"].round(1),
            "peak running requests [req]": episodes["peak_req"].map(level_key),
            "tokens [tok]": episodes["tokens"].round(0),
            "average [tok/s]": [known(value) for value in episodes["average_tok_per_s"]],
            "steady [tok/s]": [known(value) or "no clean interval" for value in episodes["steady_tok_per_s"]],
            "steady over average": [known(value) for value in episodes["steady_over_average"]],
        }
    )
    for label in ("warmup", "ramp", "steady", "mixed", "drain"):
        if episodes[f"{label}_s"].gt(0).any():
            table[f"{label} [s]"] = episodes[f"{label}_s"].round(1)
    same = [name for name in ("server life", "ranks") if table[name].nunique() <= 1]
    return table.drop(columns=same).reset_index(drop=True)


def episodes_reading(episodes: pd.DataFrame) -> str:
    """Say why the average over an episode differs from its steady rate, for the largest load."""
    compared = episodes[episodes["steady_over_average"].notna()] if len(episodes) else episodes
    if compared.empty:
        return "No load episode holds clean decode at its peak: its average cannot be held against a steady rate."
    row = compared.iloc[int(np.argmax(compared["peak_req"].to_numpy(float)))]
    text = (
        f"In the episode with a peak of {requests(row['peak_req'])} a client sees "
        f"{show(row['average_tok_per_s'], 'tok/s')} on average, while steady decode runs at "
        f"{show(row['steady_tok_per_s'], 'tok/s')} ({show(row['steady_over_average'])} times that)"
    )
    other = {label: float(row[f"{label}_s"]) for label in ("warmup", "ramp", "mixed", "drain")}
    why = [f"{show(s, 'duration')} of {label}" for label, s in sorted(other.items(), key=lambda x: -x[1]) if s > 0]
    if not why:
        return f"{text}."
    lost = " and ".join(why[:MAX_NAMED])
    return f"{text}: of its {show(row['duration_s'], 'duration')}, {lost} are not steady decode."


