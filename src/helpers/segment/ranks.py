"""Which ranks of a log are copies, which run in lockstep, which are independent servers, which cannot be told apart.

Sources: log-line semantics read in the SGLang and vLLM releases. SGLang prints one line per attention-DP rank;
pipeline stages and (before 0.5.23) context-parallel ranks print copies of the same record. vLLM prints one line per
data-parallel engine, or one sum over them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pandas as pd

from helpers.schema import NotEnoughData
from helpers.segment.series import holds_several_series

COPY_TAGS = ("PP", "ATTN_CP", "CP")
"""Tags whose ranks above the first print the same record again."""

WORKER_TAGS = ("PID", "TASK", "WORKER")
"""Tags that ingest adds where several processes print under one rank tag into one file: separate servers."""

COUNTED_KINDS = ("prefill", "decode", "stats", "iteration", "counters", "request")
"""Kinds of records that say what a rank did."""

LINE_KINDS = ("prefill", "decode", "stats")
"""Kinds of records that are lines about the time since the line before."""

COUNTED_AS = ("single", "lockstep", "replica", "copy")
"""How a rank's lines are counted; missing where they cannot be, ``action`` then says why."""

MAX_RANKS = 1024
"""Ranks of one server life; the largest deployments known print from some hundreds."""

_MAX_NAMED = 32
"""Data-parallel ranks that the name of their group spells out."""

_SAME_SHARE_FRAC = 0.8
"""Share of the records of two ranks that must be the same for one to be a copy (a line may be lost at either end)."""

COLUMNS = ("server_life", "rank", "n_lines", "counted_as", "rank_group", "stages", "action")


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
        ``dp_attention`` (bool), ``dp``, ``pp``, ``decode_log_interval`` and ``page_size`` decide where the tags cannot.

    Returns
    -------
    DataFrame
        server_life, rank ("" where the line has no tag), n_lines, counted_as (one of `COUNTED_AS`; missing where the
        lines cannot be used), rank_group, stages (pipeline stages), action (words).

    Raises
    ------
    NotEnoughData
        No rank can be used, because their lines have no one meaning.
    """
    table = assign_roles(samples, facts or {})
    refused = table[table["counted_as"].isna()]
    if len(refused) and not table["counted_as"].isin(["single", "lockstep", "replica"]).any():
        row = refused.iloc[0]
        raise NotEnoughData(f"ranks: expected lines of one server under {row['rank'] or 'no tag'}, {row['action']}")
    return table


_READ = ("server_life", "rank", "engine", "kind", "t_s", "running_req", "queue_req", "used_tok", "kv_used_frac",
         "new_tok", "decode_tok_per_s", "accept_len")
"""Columns of SAMPLES from which the roles are read."""


def assign_roles(samples: pd.DataFrame, facts: Mapping[int, Mapping[str, object]]) -> pd.DataFrame:
    """Do what `describe_ranks` does, and leave it to the reader when nothing can be used."""
    counted = samples.loc[samples["kind"].isin(COUNTED_KINDS), list(_READ)]
    rows: list[dict[str, object]] = []
    for life, of_life in _by_life(counted):
        n_ranks = int(of_life["rank"].nunique())
        if n_ranks > MAX_RANKS:
            raise NotEnoughData(f"ranks: expected at most {MAX_RANKS} ranks in server life {life}, found {n_ranks}; "
                                "their tags cannot be those of one server: check what wrote the lines")
        by_rank = _by_rank(of_life)
        # Snapshots and scrapes name ranks in their own way: they are no further ranks beside those of the lines.
        lines = {rank: part for rank, part in by_rank.items() if part["kind"].isin(LINE_KINDS).any()}
        for own in (lines, {rank: part for rank, part in by_rank.items() if rank not in lines}):
            rows += [{"server_life": life, **row} for row in _rows_of_life(own, facts.get(life, {}))]
    table = pd.DataFrame(rows, columns=list(COLUMNS))
    return table.sort_values(["server_life", "rank"], kind="stable").reset_index(drop=True)


def _by_life(records: pd.DataFrame) -> list[tuple[int, pd.DataFrame]]:
    """Return the records of each server life, without a copy where there is one."""
    if records["server_life"].nunique() == 1:
        return [(int(records["server_life"].iloc[0]), records)]
    return [(int(str(life)), part) for life, part in records.groupby("server_life")]


def _by_rank(of_life: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return the records of each rank, without a copy where there is one."""
    ranks = of_life["rank"].unique()
    if len(ranks) == 1:
        return {"" if pd.isna(ranks[0]) else str(ranks[0]): of_life}
    return {str(rank): part for rank, part in of_life.groupby(of_life["rank"].fillna(""))}


def _rows_of_life(by_rank: Mapping[str, pd.DataFrame], facts: Mapping[str, object]) -> list[dict[str, object]]:
    """Return a row per rank, each process label a server of its own unless it repeats the first."""
    workers: dict[str, list[str]] = {}
    for rank in by_rank:
        workers.setdefault(_worker(rank), []).append(rank)
    main = next(iter(workers.values()), [])
    copies = [w for w, ranks in workers.items() if ranks is not main and _print_all_the_same(by_rank, main, ranks)]
    rows = []
    for worker, ranks in workers.items():
        if worker in copies:
            rows += [_copy_of_worker(rank, by_rank[rank]) for rank in ranks]
            continue
        name = worker if len(workers) - len(copies) > 1 else ""
        rows += _Server(name, {rank: by_rank[rank] for rank in ranks}, facts).rows()
    return rows


def _worker(rank: str) -> str:
    """Return the part of the tags that names a process of its own, "" where none does."""
    return " ".join(f"{name}{number}" for name, number in parse_tags(rank).items() if name in WORKER_TAGS)


def _print_all_the_same(by_rank: Mapping[str, pd.DataFrame], main: Sequence[str], ranks: Sequence[str]) -> bool:
    """Tell whether every rank of a process prints what a rank of the first process prints."""
    return all(any(print_the_same(by_rank[one], by_rank[rank]) for one in main) for rank in ranks)


def _copy_of_worker(rank: str, records: pd.DataFrame) -> dict[str, object]:
    return {"rank": rank, "n_lines": len(records), "stages": 1, "counted_as": "copy", "rank_group": "",
            "action": "same records as another process: not counted"}


@dataclass
class _Server:
    """The ranks of one server: those under one process label, or all of a life."""

    name: str
    records: Mapping[str, pd.DataFrame]
    facts: Mapping[str, object]
    tags: dict[str, dict[str, int]] = field(default_factory=dict)

    def rows(self) -> list[dict[str, object]]:
        """Return one row per rank."""
        self.tags = {rank: parse_tags(rank) for rank in self.records}
        engine = str(next(iter(self.records.values()))["engine"].iloc[0])
        stages = self._stages(engine)
        found: dict[str, tuple[str | None, str, str]] = {}
        kept = self._without_copies(found, engine)
        dps = sorted({self._dp(rank) for rank in kept if self._dp(rank) >= 0})
        lockstep = len(dps) > 1 and _is_lockstep(engine, [self.tags[rank] for rank in kept], self.facts)
        engines: dict[int, list[str]] = {}
        for rank in kept:
            engines.setdefault(self._dp(rank), []).append(rank)
        for ranks in engines.values():
            self._decide(ranks, dps, lockstep, stages, found)
        for rank in kept:
            self._refuse_what_cannot_be(rank, engine, stages, found)
        fronts = {tags["API"] for tags in self.tags.values() if "API" in tags}
        if len(fronts) > 1:
            found |= {rank: (None, "", f"not used: {len(fronts)} API servers print, each only its share of the tokens; "
                             "scrape the counters instead, or start with one API server") for rank in found}
        return [
            {"rank": rank, "n_lines": len(self.records[rank]), "stages": max(stages, 1), "counted_as": how,
             "rank_group": " ".join(part for part in (self.name, group) if part) if how not in ("copy", None) else "",
             "action": action}
            for rank, (how, group, action) in sorted(found.items())
        ]

    def _dp(self, rank: str) -> int:
        """Return the data-parallel engine that a rank belongs to (SGLang 0.2 names its GPU instead); -1 without."""
        return self.tags[rank].get("DP", self.tags[rank].get("GPU", -1))

    def _stages(self, engine: str) -> int:
        """Return the pipeline stages whose micro-batches a line samples; 0 where they exist and cannot be counted."""
        is_line = any(part["kind"].isin(["decode", "prefill"]).any() for part in self.records.values())
        if engine != "sglang" or not is_line:  # vLLM counts the requests of all stages
            return 1
        seen = {tags["PP"] for tags in self.tags.values() if "PP" in tags}
        told = _whole(self.facts, "pp")
        if not seen:
            return 1 if told <= 1 else 0
        if told > 1 or len(seen) > 1:
            return max(told, len(seen), max(seen) + 1)
        return max(seen) + 1 if max(seen) else 0

    def _without_copies(self, found: dict[str, tuple[str | None, str, str]], engine: str) -> list[str]:
        """Return the ranks that print something of their own; note the others."""
        firsts = {name: min((t[name] for t in self.tags.values() if name in t), default=0) for name in COPY_TAGS}
        is_sum = engine == "vllm" and "" in self.records and any(self._dp(rank) >= 0 for rank in self.records)
        kept = []
        for rank, tags in self.tags.items():
            above = [name for name in COPY_TAGS if tags.get(name, firsts[name]) != firsts[name]]
            if above:
                where = "first stage" if above == ["PP"] else "first context-parallel rank" if "PP" not in above else \
                    "first stage and context-parallel rank"
                found[rank] = "copy", "", f"same record as the {where}: not counted"
            elif is_sum and rank == "":
                found[rank] = "copy", "", "sum over the engines, whose own lines are counted: not counted again"
            else:
                kept.append(rank)
        return kept

    def _decide(
        self, ranks: Sequence[str], dps: Sequence[int], lockstep: bool, stages: int,
        found: dict[str, tuple[str | None, str, str]],
    ) -> None:
        """Decide for the ranks of one data-parallel engine, normally one."""
        main, *others = sorted(ranks, key=lambda rank: (-_n_ticks(self.records[rank]), self.tags[rank].get("TP", 0)))
        dp = self._dp(main)
        if len(dps) <= 1 or dp < 0:
            found[main] = "single", "all", "counted" + self._doubt(main, stages, dps)
        elif lockstep:
            found[main] = ("lockstep", _group_name(dps),
                           "ranks share the step: fitted against the largest running_req of any; rates add up"
                           + self._missing(dps))
        else:
            found[main] = "replica", f"DP{dp}", "independent engine: fitted by itself; rates add up"
        if self.name and not lockstep:
            how, group, action = found[main]
            found[main] = "replica", "" if group == "all" else group, f"a server of its own in this file: {action}"
        for rank in others:
            if print_the_same(self.records[main], self.records[rank]):
                found[rank] = "copy", "", f"same records as {main or 'the lines without a tag'}: not counted"
            else:
                found[rank] = "replica", rank or "untagged", "another server by its tags: fitted by itself"

    def _doubt(self, rank: str, stages: int, dps: Sequence[int]) -> str:
        """Say what the count of a single series leaves out."""
        n_engines = _whole(self.facts, "dp")
        if stages > 1:
            return f"; one of {stages} micro-batches is printed, concurrency from #token"
        if n_engines > 1 and not dps and self.records[rank]["kind"].eq("stats").any():
            return f"; a sum over {n_engines} engines: a step serves running_req / {n_engines}"
        return self._missing(dps)

    def _missing(self, dps: Sequence[int]) -> str:
        """Say which data-parallel ranks of the server print nothing."""
        n_engines = _whole(self.facts, "dp")
        if not dps or n_engines <= len(dps) or not (self.facts.get("dp_attention") or len(dps) > 1):
            return ""
        return (f"; {n_engines - len(dps)} of {n_engines} ranks print nothing: idle, or their lines are in another "
                "log, and then the step may follow one that is not seen")

    def _refuse_what_cannot_be(
        self, rank: str, engine: str, stages: int, found: dict[str, tuple[str | None, str, str]]
    ) -> None:
        """Take back a rank whose lines have no one meaning."""
        if found[rank][0] == "copy":
            return
        if stages == 0:
            what = "the log does not tell how many" if _whole(self.facts, "pp") <= 1 else "its lines carry no stage tag"
            found[rank] = None, "", f"not used: a micro-batch of several pipeline stages, {what} (--context pp)"
        elif stages == 1 and (why := holds_several_series(self.records[rank], engine, self.facts)):
            found[rank] = None, "", (
                f"not used: several servers print here without a tag that tells them apart ({why}); give each server "
                "its own log, or a log with process labels"
            )


def _group_name(dps: Sequence[int]) -> str:
    """Name lockstep ranks by their numbers; the first and the last of very many."""
    return "+".join(f"DP{dp}" for dp in dps) if len(dps) <= _MAX_NAMED else f"DP{dps[0]}+..+DP{dps[-1]}"


def _n_ticks(records: pd.DataFrame) -> int:
    return int(records["kind"].ne("prefill").sum())


def _whole(facts: Mapping[str, object], name: str) -> int:
    value = facts.get(name)
    return int(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else 0


def _is_lockstep(engine: str, tags: list[dict[str, int]], facts: Mapping[str, object]) -> bool:
    """Tell DP attention (TP numbers are global: DP1 TP4) from replicas (DP1 TP0); vLLM engines are replicas."""
    if facts.get("dp_attention") is not None:
        return bool(facts["dp_attention"])
    if engine == "vllm":  # engines that deal out experts among them run dummy steps to keep in step
        return _whole(facts, "ep") > 1 and _whole(facts, "dp") > 1
    return engine == "sglang" and any(t.get("DP", 0) > 0 and t.get("TP", 0) > 0 for t in tags)


IDENTITY = ("kind", "running_req", "queue_req", "used_tok", "kv_used_frac", "new_tok")
"""Columns in which two copies of a record agree."""


def print_the_same(one: pd.DataFrame, other: pd.DataFrame) -> bool:
    """Tell whether two ranks print the same records: counts agree to the last token, rates may differ a little."""
    if min(len(one), len(other)) < _SAME_SHARE_FRAC * max(len(one), len(other)):
        return False
    first, second = (
        Counter(part[list(IDENTITY)].astype("object").where(part[list(IDENTITY)].notna(), None)
                .itertuples(index=False, name=None))
        for part in (one, other)
    )
    shared = sum((first & second).values())
    return shared >= max(1, _SAME_SHARE_FRAC * max(len(one), len(other)))
