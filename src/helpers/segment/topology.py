"""What ran where: which files and ranks make one server, what each of them did, and how they were combined."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from helpers import schema
from helpers.segment.ranks import COUNTED_KINDS, IDENTITY, assign_roles, parse_tags, print_the_same

NODE_ARGUMENTS = (
    "node_rank", "host", "port", "nccl_port", "random_seed", "seed", "log_level", "base_gpu_id",
    "data_parallel_rank", "data_parallel_start_rank", "data_parallel_address", "headless",
)
"""Server arguments in which the nodes of one server differ."""

MIN_OVERLAP_FRAC = 0.5
"""Share of the shorter log's time that the nodes of one server have in common [1]."""

ZONE_STEP_S = 900.0
"""Time zones differ by quarters of an hour [s]."""

MAX_ZONE_S = 26 * 3600.0
"""From UTC-12 to UTC+14 [s]."""

COLUMNS = ("server_life", "file", "rank", "role", "engine_index", "n_records", "n_prefills", "used_as", "how")


@dataclass(frozen=True)
class Joined:
    """Samples and events in which the nodes of one server share its life, and what was joined, in words."""

    samples: pd.DataFrame
    events: pd.DataFrame
    notes: tuple[str, ...] = ()


def join_nodes(
    samples: pd.DataFrame, events: pd.DataFrame, facts: Sequence[Mapping[str, object]] = ()
) -> Joined:
    """Put the logs of the nodes of one server into one server life, in the order of time.

    Parameters
    ----------
    samples : DataFrame, schema SAMPLES
        Every file has server lives of its own.
    events : DataFrame, schema EVENTS
    facts : sequence of mappings, one per server life
        ``args`` with ``nnodes`` and ``node_rank`` tell nodes from servers of their own; without them, logs that
        overlap in time are nodes where they print different data-parallel ranks, or the same records.

    Returns
    -------
    Joined
        The life of the first node holds all; the lives of the others are empty. Stamps whose zones differ are shifted
        (t_s, not ts) by whole quarters of an hour, and said so.
    """
    if samples["server_life"].nunique() < 2:
        return Joined(samples, events)
    read = samples[["server_life", "file", "engine", "t_s", *dict.fromkeys(("rank", *IDENTITY))]]
    lives = {int(str(life)): part for life, part in read.groupby("server_life")}
    main_of: dict[int, int] = {}
    moved: dict[int, tuple[int, float, str]] = {}
    notes = []
    for life, part in lives.items():
        for main in (m for m in lives if m < life and m not in main_of):
            found = _find_shift(lives[main], part, _facts_of(facts, main), _facts_of(facts, life))
            if found is not None:
                shift_s, tag = found
                main_of[life] = main
                moved[life] = main, shift_s, tag
                notes.append(_joined_note(lives[main], part, life, main, shift_s))
                break
    if not moved:
        return Joined(samples, events)
    return Joined(_move(samples, moved), _move(events, moved), tuple(notes))


def _facts_of(facts: Sequence[Mapping[str, object]], life: int) -> Mapping[str, object]:
    return facts[life] if life < len(facts) else {}


def _find_shift(
    one: pd.DataFrame, other: pd.DataFrame, facts: Mapping[str, object], other_facts: Mapping[str, object]
) -> tuple[float, str] | None:
    """Return by how many seconds the other node's clock must move, and a tag if its ranks carry the same names."""
    if set(one["file"]) & set(other["file"]) or one["engine"].iloc[0] != other["engine"].iloc[0]:
        return None
    told = _are_told_as_nodes(facts, other_facts)
    if told is False:
        return None
    ranks, other_ranks = set(one["rank"].fillna("")), set(other["rank"].fillna(""))
    is_same = print_the_same(one, other)
    shares_names = bool(ranks & other_ranks)
    if shares_names and not is_same or not (told or is_same or _has_other_engines(ranks, other_ranks)):
        return None
    shift_s = _zone_shift(one["t_s"], other["t_s"], may_shift=bool(told) or is_same)
    if shift_s is None:
        return None
    return shift_s, f"NODE{facts_node(other_facts)}" if shares_names else ""


def facts_node(facts: Mapping[str, object]) -> int:
    """Return the number of a node by its arguments; 1 where it has none."""
    value = facts.get("node_rank")
    return int(value) if isinstance(value, int) and not isinstance(value, bool) else 1


def _are_told_as_nodes(facts: Mapping[str, object], other: Mapping[str, object]) -> bool | None:
    """Compare argument dumps: nodes of one server, two servers, or unknown."""
    args, other_args = facts.get("args"), other.get("args")
    if not isinstance(args, Mapping) or not isinstance(other_args, Mapping):
        return None
    n_nodes = [found.get("nnodes") for found in (args, other_args)]
    if None in n_nodes:  # vLLM dumps only what is no default
        return None
    if not all(isinstance(n, int) and n > 1 for n in n_nodes):
        return False
    stable = [{k: v for k, v in found.items() if k not in NODE_ARGUMENTS} for found in (args, other_args)]
    return args.get("node_rank") != other_args.get("node_rank") and stable[0] == stable[1]


def _has_other_engines(ranks: set[str], other_ranks: set[str]) -> bool:
    """Tell whether both logs name data-parallel ranks, and different ones."""
    engines, others = ({parse_tags(rank).get("DP", -1) for rank in names} for names in (ranks, other_ranks))
    return -1 not in engines | others and not engines & others


def _zone_shift(stamps: pd.Series, other: pd.Series, *, may_shift: bool) -> float | None:
    """Return the shift that lets two logs overlap: none, or else whole quarters of an hour between their begins."""
    if stamps.isna().all() or other.isna().all():
        return 0.0
    spans = (float(stamps.min()), float(stamps.max())), (float(other.min()), float(other.max()))
    if _overlap(spans[0], spans[1]) >= MIN_OVERLAP_FRAC:
        return 0.0
    shift_s = round((spans[0][0] - spans[1][0]) / ZONE_STEP_S) * ZONE_STEP_S
    moved = spans[1][0] + shift_s, spans[1][1] + shift_s
    if may_shift and abs(shift_s) <= MAX_ZONE_S and _overlap(spans[0], moved) >= MIN_OVERLAP_FRAC:
        return shift_s
    return None


def _overlap(one: tuple[float, float], other: tuple[float, float]) -> float:
    """Return the common share of the shorter span; a single instant inside the other is all of it."""
    common = min(one[1], other[1]) - max(one[0], other[0])
    shorter = min(one[1] - one[0], other[1] - other[0])
    return common / shorter if shorter > 0 else float(common >= 0)


def _joined_note(one: pd.DataFrame, other: pd.DataFrame, life: int, main: int, shift_s: float) -> str:
    files = f"{other['file'].iloc[0]} (life {life}) is a node of the server of {one['file'].iloc[0]} (life {main})"
    if shift_s:
        return f"{files}: its stamps are of another time zone and were moved by {shift_s / 3600:+g} h"
    return f"{files}: read as one"


def _move(table: pd.DataFrame, moved: Mapping[int, tuple[int, float, str]]) -> pd.DataFrame:
    """Give the rows of other nodes the main node's life and clock, then order each life that grew by time."""
    lives = table["server_life"]
    table = table.copy()
    for life, (main, shift_s, tag) in moved.items():
        mine = lives.eq(life)
        table.loc[mine, "server_life"] = main
        table.loc[mine, "t_s"] += shift_s
        if tag:
            table.loc[mine, "rank"] = (table.loc[mine, "rank"].fillna("") + f" {tag}").str.strip()
    grown = table["server_life"].isin([main for main, _, _ in moved.values()])
    when = table["t_s"].where(grown).groupby(table["file"]).ffill()
    order = np.lexsort((when.fillna(-np.inf).to_numpy(), table["server_life"].to_numpy()))
    return table.iloc[order].reset_index(drop=True)


def topology(samples: pd.DataFrame, facts: Sequence[Mapping[str, object]] = ()) -> pd.DataFrame:
    """List what was found in the files and how it was combined.

    Parameters
    ----------
    samples : DataFrame, schema SAMPLES
        As read; nodes are joined here.
    facts : sequence of mappings, one per server life

    Returns
    -------
    DataFrame
        server_life, file, rank ("" without a tag), role (what that process is), engine_index (data-parallel engine;
        missing without), n_records, n_prefills (records of prefill among them), used_as (kept, lockstep, added,
        copy, "no decode", "not used"), how (words).
    """
    schema.check(samples, schema.SAMPLES)
    joined = join_nodes(samples, schema.EVENTS.empty(), facts).samples
    by_life = dict(enumerate(facts))
    roles = {(row["server_life"], row["rank"]): row for _, row in assign_roles(joined, by_life).iterrows()}
    columns = ["server_life", "file", "rank", "kind", "transfer_req", "prealloc_req", "extra"]
    counted = joined.loc[joined["kind"].isin(COUNTED_KINDS), columns]
    rows = []
    keys = [counted["server_life"], counted["file"], counted["rank"].fillna("").rename("rank_key")]
    for (number, file, name), part in counted.groupby(keys):
        life, rank = int(str(number)), str(name)
        row = roles[life, rank]
        n_prefills = int(part["kind"].eq("prefill").sum())
        only_prefills = n_prefills == len(part) and row["counted_as"] != "copy"
        tags = parse_tags(rank)
        rows.append({
            "server_life": life, "file": file, "rank": rank,
            "role": _role(tags, row, part, by_life.get(life, {}), only_prefills),
            "engine_index": tags.get("DP", tags.get("GPU")), "n_records": len(part), "n_prefills": n_prefills,
            "used_as": "no decode" if only_prefills else USED_AS.get(row["counted_as"], "not used"),
            "how": _how(row, part, only_prefills),
        })
    table = pd.DataFrame(rows, columns=list(COLUMNS))
    return table.astype({"engine_index": "Int64"})


USED_AS = {"single": "kept", "lockstep": "lockstep", "replica": "added", "copy": "copy"}
"""How a rank is counted -> the word of the topology table."""


def is_decode_worker(part: pd.DataFrame, facts: Mapping[str, object]) -> bool:
    """Tell a worker that decodes prompts computed elsewhere: by its arguments, or by its queues and lack of prefill."""
    if facts.get("disaggregation_mode") in ("decode", "prefill"):
        return facts["disaggregation_mode"] == "decode"
    has_queues = bool(part[["transfer_req", "prealloc_req"]].notna().any(axis=None))
    return has_queues and bool(part["kind"].eq("decode").any()) and not part["kind"].eq("prefill").any()


def _role(
    tags: Mapping[str, int], row: pd.Series, part: pd.DataFrame, facts: Mapping[str, object], only_prefills: bool
) -> str:
    """Name what a process is."""
    if only_prefills:
        told = facts.get("disaggregation_mode") == "prefill"
        return "prefill worker" if told or _has_prefill_queues(part) else "prefill lines only"
    name = "decode worker" if is_decode_worker(part, facts) else "server"
    if row["counted_as"] == "lockstep":
        n_attention = _attention_ranks(facts)
        name = "attention data-parallel rank" + (f" of {n_attention} accelerators" if n_attention else "")
    elif "DP" in tags or "GPU" in tags:
        name = "data-parallel engine"
    elif row["counted_as"] == "copy" and "sum" in row["action"]:
        name = "sum over engines"
    if row["stages"] > 1 or tags.get("PP", 0) > 0:
        name += f", pipeline stage {tags.get('PP', 0)}"
    for tag in ("ATTN_CP", "CP"):
        if tags.get(tag, 0) > 0:
            name += f", context-parallel rank {tags[tag]}"
    return name


def _attention_ranks(facts: Mapping[str, object]) -> int:
    """Return the accelerators that one attention rank spans (SGLang: tp / dp); 0 where unknown."""
    tp, dp = facts.get("tp"), facts.get("dp")
    known = isinstance(tp, int) and isinstance(dp, int) and dp > 1 and bool(facts.get("dp_attention"))
    return tp // dp if known else 0  # type: ignore[operator]


_PREFILL_QUEUES = '"#(?:inflight|bootstrap|unbootstrapped|transferring|optimistic)-req"'
"""Queues that only a prefill worker prints."""


def _has_prefill_queues(part: pd.DataFrame) -> bool:
    return bool(part["extra"].fillna("").str.contains(_PREFILL_QUEUES).any() or part["prealloc_req"].notna().any())


def _how(row: pd.Series, part: pd.DataFrame, only_prefills: bool) -> str:
    """Say how the records were used, and what a reader must not take them for."""
    text = "prompts only: there is no decode step to measure" if only_prefills else str(row["action"])
    if part["transfer_req"].fillna(0).gt(0).any() or part["prealloc_req"].fillna(0).gt(0).any():
        text += "; #token includes KV reserved for requests in transfer: context is an upper bound"
    return text


def combination_notes(table: pd.DataFrame, joined: Joined | None = None) -> list[str]:
    """Say what a reader must know of how ranks were combined: what was left out, what is missing, what was moved.

    Parameters
    ----------
    table : DataFrame
        As `topology` returns it.
    joined : Joined, optional
        As `join_nodes` returns it.
    """
    notes = list(joined.notes) if joined is not None else []
    for (life, how), part in table[table["used_as"].isin(["not used", "no decode"])].groupby(["server_life", "how"]):
        ranks = ", ".join(rank or "lines without a tag" for rank in part["rank"].unique()[:3])
        notes.append(f"server life {life}, {ranks}: {how}")
    used = table[~table["used_as"].isin(["not used", "no decode"])]
    doubtful = used[used["how"].str.contains("micro-batches|print nothing|a sum over|upper bound|of its own")]
    for (life, how), _ in doubtful.groupby(["server_life", "how"]):
        notes.append(f"server life {life}: {how}")
    return notes


def rank_balance(intervals: pd.DataFrame) -> pd.DataFrame:
    """Hold the ranks of each server life against each other.

    Parameters
    ----------
    intervals : DataFrame, schema INTERVALS

    Returns
    -------
    DataFrame
        server_life, rank_group, rank, mean_req (running_req over time) [req], largest_frac (share of the rank's time
        in which it had as many requests as the largest, which sets the step) [1], tokens [tok], token_share_frac
        [1]; lives with one rank are left out.
    """
    schema.check(intervals, schema.INTERVALS)
    table = intervals.assign(rank=intervals["rank"].fillna(""), wall_s=intervals["interval_s"] - intervals["idle_s"])
    table = table[table["wall_s"].gt(0) & table["decode_tok_per_s"].gt(0)]
    rows = []
    for life, of_life in table.groupby("server_life"):
        tokens = of_life["decode_tok_per_s"] * of_life["interval_s"]
        for rank, part in of_life.groupby("rank"):
            wall_s = part["wall_s"].to_numpy(float)
            printed = part["running_req_printed"].to_numpy(float)
            largest = printed >= part["running_req"].to_numpy(float) - 0.5
            rows.append({
                "server_life": life, "rank_group": part["rank_group"].iloc[0], "rank": rank,
                "mean_req": float(np.average(printed, weights=wall_s)),
                "largest_frac": float(np.average(largest, weights=wall_s)),
                "tokens": float(tokens[part.index].sum()),
                "token_share_frac": float(tokens[part.index].sum() / tokens.sum()),
            })
    columns = ["server_life", "rank_group", "rank", "mean_req", "largest_frac", "tokens", "token_share_frac"]
    balance = pd.DataFrame(rows, columns=columns)
    return balance[balance.groupby("server_life")["rank"].transform("size").gt(1)].reset_index(drop=True)
