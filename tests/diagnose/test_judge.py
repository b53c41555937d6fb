"""From observations to ranked causes: thresholds, caps, refuters, contradictions; and what dropping evidence may do."""

from __future__ import annotations

import math
import random

import pytest

from helpers.diagnose import judge
from helpers.diagnose.causes import CAUSES, UNKNOWN
from helpers.diagnose.observations import CHANNELS, Observation, Observations
from helpers.diagnose.rules import RULES, Rule

MEASURED = [name for name in CHANNELS if name != judge.TOLD]


def seen(*items):
    """Observations from (name, value, channel) triples."""
    return Observations(Observation(name, value, channel, f"{name} is {value:g}", "hand")
                        for name, value, channel in items)


def rule(weight, observation="x", at_least=0.5, cause="communication"):
    return Rule(cause, observation, weight, at_least)


def verdict(observations, *rules, cause="communication"):
    return next(item for item in judge.judge(observations, rules=rules) if item.cause == cause)


def test_a_strong_piece_of_a_measured_channel_supports():
    found = verdict(seen(("x", 1, "profile")), rule(+3))
    assert (found.status, found.score, found.evidence_for) == ("supported", 3.0, ("x is 1",))


def test_what_is_told_is_no_measurement():
    assert verdict(seen(("x", 1, "told")), rule(+3)).status == "compatible"
    # two channels, of which one measured: 2 + 2 = 4 is not enough
    assert verdict(seen(("x", 1, "told"), ("y", 1, "log")), rule(+2), rule(+2, "y")).status == "compatible"


def test_weak_pieces_of_one_channel_are_capped_and_never_support_alone():
    pieces = [(name, 1, "log") for name in "abcde"]
    found = verdict(seen(*pieces), *(rule(+2, name) for name in "abcde"))
    assert (found.status, found.score) == ("compatible", float(judge.WEAK_CAP))


def test_several_measured_channels_together_support():
    two = seen(("x", 1, "log"), ("y", 1, "step"))
    assert verdict(two, rule(+2), rule(+2, "y")).status == "supported"
    assert verdict(two, rule(+2), rule(+1, "y")).status == "compatible"  # 3 in sum, 4 are needed without a strong piece


def test_without_strong_evidence_a_close_rival_holds_a_cause_back():
    both = seen(("x", 1, "log"), ("y", 1, "step"))
    rows = [rule(+2), rule(+2, "y"), rule(+2, cause="host_or_scheduler"), rule(+1, "y", cause="host_or_scheduler")]
    found = verdict(both, *rows)
    assert found.status == "compatible"  # 4 against 3
    assert found.evidence_against == ("the evidence fits host_or_scheduler almost as well",)
    assert verdict(both, *rows[:3]).status == "supported"  # 4 against 2
    strong = verdict(both, rule(+3), rule(+2, "y"), *rows[2:])
    assert strong.status == "supported"  # one strong piece needs no lead


def test_evidence_against_counts_and_one_refuter_decides():
    strong_and_doubt = seen(("x", 1, "log"), ("y", 1, "step"))
    assert verdict(strong_and_doubt, rule(+3), rule(-1, "y")).status == "compatible"
    refuted = verdict(strong_and_doubt, rule(+2), rule(-3, "y"))
    assert (refuted.status, refuted.refuted_by) == ("refuted", "y is 1")


def test_a_refuter_against_strong_evidence_is_a_contradiction_that_is_said():
    found = verdict(seen(("x", 1, "log"), ("y", 1, "step")), rule(+3), rule(-3, "y"))
    assert found.status == "weak" and found.refuted_by is None
    assert found.contradiction == "x is 1; but y is 1"


def test_nan_is_no_observation_and_a_missing_one_says_nothing():
    assert len(seen(("x", math.nan, "log"))) == 0
    assert verdict(seen(), rule(-3)).status == "weak"


def test_unknown_stands_first_only_where_evidence_is_thin():
    thin = judge.judge(seen(("x", 1, "log")), rules=[rule(+1)], missing=("a profile",))
    assert thin[0].cause == UNKNOWN and thin[0].status == "compatible"
    assert "not known: a profile" in thin[0].evidence_for
    enough = judge.judge(seen(("x", 1, "log")), rules=[rule(+2)])
    assert enough[0].cause == "communication" and UNKNOWN not in {item.cause for item in enough}


def test_every_cause_is_judged_once():
    causes = [item.cause for item in judge.judge(seen())]
    assert sorted(causes) == sorted(CAUSES)


def test_a_good_step_stands_behind_a_supported_queue():
    both = seen(("step_is_explained", 1, "step"), ("pool_full_time_frac", 0.5, "log"))
    found = judge.judge(both)
    assert found[0].cause == "kv_capacity" and found[0].status == "supported"
    healthy = next(item for item in found if item.cause == "healthy")
    assert healthy.status == "compatible" and "limits the server first" in healthy.evidence_against[0]
    alone = judge.judge(both.without("log"))
    assert alone[0].cause == "healthy" and alone[0].status == "supported"


def test_ties_go_to_what_can_be_changed_at_once():
    both = seen(("pool_full_time_frac", 0.5, "log"), ("tensor_active_frac", 0.6, "telemetry"),
                ("compute_explained_frac", 0.7, "step"))
    order = [item.cause for item in judge.judge(both) if item.status == "supported"]
    assert order[0] == "kv_capacity"


@pytest.mark.parametrize("seed", range(40))
def test_dropping_a_channel_never_turns_a_refuted_cause_into_a_supported_one(seed):
    """For any evidence at all: values at, below and above every threshold of the table, in any channel."""
    rng = random.Random(seed)
    edges = sorted({edge for item in RULES for edge in (item.at_least, item.at_most) if math.isfinite(edge)})
    names = sorted({item.observation for item in RULES})
    for _ in range(25):
        chosen = rng.sample(names, rng.randint(1, 25))
        evidence = seen(*((name, rng.choice(edges) + rng.choice([-0.01, 0, 0.01]), rng.choice(list(CHANNELS)))
                          for name in chosen for _ in range(rng.randint(1, 2))))
        before = {item.cause: item.status for item in judge.judge(evidence)}
        for channel in evidence.channels():
            after = {item.cause: item.status for item in judge.judge(evidence.without(channel))}
            turned = [cause for cause in after if before.get(cause) == "refuted" and after[cause] == "supported"]
            assert turned == [], (channel, turned)
