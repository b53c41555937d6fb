"""The table of tests: well formed, every cause can be supported and refuted, every observation is made somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from helpers.diagnose import judge
from helpers.diagnose.causes import CAUSES, UNKNOWN
from helpers.diagnose.observations import Observation, Observations
from helpers.diagnose.rules import RULES

SRC = Path(judge.__file__).parents[1]
JUDGED = [cause for cause in CAUSES if cause != UNKNOWN]
# design.md, section 6, in its order.
VOCABULARY = """healthy, weight_bandwidth, kv_bandwidth, state_bandwidth, tensor_compute, latency_or_occupancy,
max_context_work, serialised_requests, communication, host_or_scheduler, graph_fallback, graph_padding,
prefill_interference, kv_capacity, admission_limit, rank_imbalance, power_or_thermal, low_acceptance,
context_growth, measurement_artifact, unknown"""


def test_the_vocabulary_is_that_of_the_scorecard():
    assert sorted(CAUSES) == sorted(VOCABULARY.replace("\n", " ").split(", "))


def test_rules_are_well_formed():
    for item in RULES:
        assert item.cause in JUDGED and item.weight in (-3, -2, -1, 1, 2, 3) and item.source, item
        assert item.at_least <= item.at_most, item


def test_every_observation_of_the_table_is_made_somewhere():
    """And its name is written where it is made: a misspelt one would never fire."""
    texts = "\n".join(path.read_text(encoding="utf-8") for part in ("diagnose", "investigation")
                      for path in (SRC / part).glob("*.py") if path.name != "rules.py")
    made = set(re.findall(r'"([a-z_]+)"', texts)) | {
        f"{name}_{end}" for name in ("weights", "kv", "state", "compute", "collectives")
        for end in ("explained_frac", "most_frac")}
    assert sorted({item.observation for item in RULES} - made) == []


def _middle(item):
    lo, hi = max(item.at_least, -1e6), min(item.at_most, 1e6)
    return lo if item.at_most > 1e6 else hi if item.at_least < -1e6 else (lo + hi) / 2


@pytest.mark.parametrize("cause", JUDGED)
def test_every_cause_can_be_supported_and_all_but_artifacts_refuted(cause):
    rows = [item for item in RULES if item.cause == cause]
    channels = ("step", "log", "profile", "telemetry", "events")
    # Of ranges of one observation, which exclude one another, the strongest.
    pieces = {item.observation: item for item in sorted(rows, key=lambda item: item.weight) if item.weight > 0}
    strongest = {name: Observation(name, _middle(item), channels[i % len(channels)], "seen")
                 for i, (name, item) in enumerate(pieces.items())}
    found = {item.cause: item for item in judge.judge(Observations(strongest.values()), rules=rows)}
    assert found[cause].status == "supported"
    refuters = [item for item in rows if item.weight == -3]
    if cause != "measurement_artifact":
        assert refuters, "nothing could refute it"
        seen = Observations([Observation(refuters[0].observation, _middle(refuters[0]), "step", "seen")])
        assert {item.cause: item.status for item in judge.judge(seen, rules=rows)}[cause] == "refuted"
