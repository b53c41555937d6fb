"""Which ranks of a log are copies, which run in lockstep, which are independent servers.

Sources: log-line semantics read in the SGLang and vLLM releases. SGLang prints one line per attention-DP rank;
pipeline stages and (before 0.5.23) context-parallel ranks print copies of the same record.
"""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

COPY_TAGS = ("PP", "ATTN_CP", "CP")
"""Tags whose ranks above the first print the same record again."""


def parse_tags(rank: str | None) -> dict[str, int]:
    """Split rank tags ("DP1 TP4") into {"DP": 1, "TP": 4}; anything that is no tag is left out."""
    tags: dict[str, int] = {}
    for word in (rank or "").split():
        name = word.rstrip("0123456789")
        if name and name != word:
            tags[name] = int(word[len(name) :])
    return tags


def describe_ranks(samples: pd.DataFrame, facts: Mapping[int, Mapping[str, object]] | None = None) -> pd.DataFrame:
    """Say for every rank of every server life how its lines are counted.

    Parameters
    ----------
    samples : DataFrame, schema SAMPLES
    facts : mapping of server_life to facts
        ``dp_attention`` (bool) decides where the tags cannot.

    Returns
    -------
    DataFrame
        server_life, rank ("" where the line has no tag), n_lines, counted_as {single, lockstep, replica, copy},
        rank_group, stages (pipeline stages seen), action (words).
    """
    facts = facts or {}
    ticks = samples[samples["kind"].isin(["decode", "stats", "prefill"])]
    rows: list[dict[str, object]] = []
    for life, of_life in ticks.groupby("server_life"):
        counts = of_life["rank"].fillna("").value_counts()
        tags = {rank: parse_tags(rank) for rank in counts.index}
        stages = len({t.get("PP", 0) for t in tags.values()})
        firsts = {name: min((t[name] for t in tags.values() if name in t), default=0) for name in COPY_TAGS}
        kept = [r for r in counts.index if all(tags[r].get(n, firsts[n]) == firsts[n] for n in COPY_TAGS)]
        dps = sorted({tags[r]["DP"] for r in kept if "DP" in tags[r]})
        engine = str(of_life["engine"].iloc[0])
        lockstep = len(dps) > 1 and _is_lockstep(engine, [tags[r] for r in kept], facts.get(int(str(life)), {}))
        for rank in sorted(counts.index):
            row = {"server_life": life, "rank": rank, "n_lines": int(counts[rank]), "stages": stages}
            if rank not in kept:
                row |= {"counted_as": "copy", "rank_group": "", "action": "same record as the first stage: not counted"}
            elif len(dps) <= 1:
                note = "" if stages == 1 else f"; one of {stages} micro-batches is printed, concurrency from #token"
                row |= {"counted_as": "single", "rank_group": "all", "action": "counted" + note}
            elif lockstep:
                group = "+".join(f"DP{d}" for d in dps)
                row |= {"counted_as": "lockstep", "rank_group": group,
                        "action": "ranks share the step: fitted against the largest running_req of any; rates add up"}
            else:
                row |= {"counted_as": "replica", "rank_group": f"DP{tags[rank].get('DP', 0)}",
                        "action": "independent engine: fitted by itself; rates add up"}
            rows.append(row)
    columns = ["server_life", "rank", "n_lines", "counted_as", "rank_group", "stages", "action"]
    return pd.DataFrame(rows, columns=columns)


def _is_lockstep(engine: str, tags: list[dict[str, int]], facts: Mapping[str, object]) -> bool:
    """Tell DP attention (TP numbers are global: DP1 TP4) from replicas (DP1 TP0); vLLM engines are replicas."""
    if facts.get("dp_attention") is not None:
        return bool(facts["dp_attention"])
    return engine == "sglang" and any(t.get("DP", 0) > 0 and t.get("TP", 0) > 0 for t in tags)
