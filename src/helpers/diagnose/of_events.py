"""Observations from server events, from odd levels, and fields that are known to mislead in the log's version."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import pandas as pd

from helpers.diagnose.observations import Observation
from helpers.display import level_key, show
from helpers.schema import EVENTS, LEVELS, SAMPLES, check

FEWEST = 3
"""Retractions or preemptions from which they are no accident."""

LATER_FRAC = 0.75
"""Largest batch of a later server life over the one before an out-of-memory error, from which it was made smaller."""


@dataclass(frozen=True)
class Misleading:
    """A printed field that does not say what its name says.

    Attributes
    ----------
    engine : str
    since, before : tuple of int
        Versions that print it so: since <= version < before.
    mark : str
        Text in the other keys of a record that shows that it was printed; a column of SAMPLES where it begins with "=".
    says : str
        What it really is.
    """

    engine: str
    since: tuple[int, ...]
    before: tuple[float, ...]
    mark: str
    says: str


MISLEADING: tuple[Misleading, ...] = (
    Misleading("sglang", (0, 5, 10), (inf,), "est. read BW",
               "est. read BW charges all weights to every token, not to every step: N times too high"),
    Misleading("sglang", (0,), (inf,), "=prefill_tok_per_s",
               "input throughput is tokens over the time since another prefill, decode and idle time in it: no rate"),
    Misleading("sglang", (0,), (0, 5, 23), "cache hit rate",
               "the cache hit rate was set to zero by every decode report"),
    Misleading("sglang", (0, 5, 9), (inf,), "mamba num",
               "mamba num counts state slots, several per request: no number of requests"),
    Misleading("vllm", (0, 10), (inf,), "Accepted throughput",
               "accepted and drafted throughput count from the previous such line, which may be minutes ago"),
    Misleading("vllm", (0, 11), (inf,), "Preemptions",
               "preemptions are set to zero before they are printed: none printed does not mean that there were none"),
    Misleading("trtllm", (0,), (inf,), "num_generation_tokens",
               "num_generation_tokens counts padding up to the captured size"),
)
"""From log-formats.md 1.4, 1.9, 2.2, 2.3, 3.1. Readers of those numbers are told; no number of ours rests on them."""


def observe(
    events: pd.DataFrame, samples: pd.DataFrame, levels: pd.DataFrame, facts: Mapping[str, Any], lives: Sequence[int],
) -> Iterator[Observation]:
    """Yield what the server's events say.

    Parameters
    ----------
    events : DataFrame, schema EVENTS
    samples : DataFrame, schema SAMPLES
    levels : DataFrame, schema LEVELS
    facts : mapping
        Of the deployment.
    lives : sequence of int
        Server lives that the answer rests on.
    """
    check(events, EVENTS)
    check(samples, SAMPLES)
    check(levels, LEVELS)
    put_back = events[events["server_life"].isin(lives) & events["kind"].isin(("retraction", "preemption"))]
    if len(put_back) >= FEWEST:
        yield _of("retracted_events", float(len(put_back)), f"the server says {len(put_back)} times that it put "
                  "requests back for want of memory: each is computed again")
    yield from _smaller_batches(events, samples)
    yield from _two_populations(levels, lives)
    yield from _misleading(samples, facts)


def _smaller_batches(events: pd.DataFrame, samples: pd.DataFrame) -> Iterator[Observation]:
    """Say whether the batches were made smaller after an out-of-memory error."""
    failed = events[events["kind"].eq("out_of_memory")]
    if failed.empty:
        return
    life = int(failed["server_life"].min())
    largest = samples.groupby("server_life")["running_req"].max().dropna().astype(float)
    later = largest[largest.index > life]
    if life not in largest.index or later.empty or not largest[life] > 0:
        return
    if later.max() <= LATER_FRAC * largest[life]:
        yield _of("smaller_after_out_of_memory", 1.0, f"after it ran out of memory at up to {largest[life]:g} running "
                  f"requests the server was never run with more than {later.max():g}")


def _two_populations(levels: pd.DataFrame, lives: Sequence[int]) -> Iterator[Observation]:
    """Name levels at which two different steps were seen: they were never averaged."""
    others = levels[levels["server_life"].isin(lives) & levels["population"].gt(0) & levels["step_s"].gt(0)]
    for row in others.to_dict("records"):
        used = levels[levels["running_req"].eq(row["running_req"]) & levels["population"].eq(0)
                      & levels["rank_group"].eq(row["rank_group"]) & levels["server_life"].eq(row["server_life"])]
        if len(used) and used["step_s"].iloc[0] > 0:
            ratio = float(row["step_s"] / used["step_s"].iloc[0])
            yield _of("two_steps_at_one_level", ratio, f"at N={level_key(row['running_req'])} two steps were seen, one "
                      f"{show(ratio)} times the other: something besides the number of requests differed")


def _misleading(samples: pd.DataFrame, facts: Mapping[str, Any]) -> Iterator[Observation]:
    """Name printed fields that mislead in this version; in an unknown one, those that mislead in any."""
    digits = "".join(c if c.isdigit() else " " for c in str(facts.get("engine_version") or "")).split()
    version = tuple(int(part) for part in digits[:3])
    for field in MISLEADING:
        if field.engine != facts.get("engine") or (version and not field.since <= version < field.before):
            continue
        if field.mark.startswith("="):
            is_printed = bool(samples[field.mark[1:]].notna().any())
        else:
            is_printed = bool(samples["extra"].str.contains(field.mark, regex=False, na=False).any())
        if is_printed:
            yield Observation("misleading_field", 1.0, "log", f"do not trust: {field.says}", "log-formats")


def _of(name: str, value: float, says: str) -> Observation:
    return Observation(name, value, "events", says, "server events")
