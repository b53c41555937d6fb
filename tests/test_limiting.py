"""What limits decode in sentences and tables, from scorecards by hand."""

from __future__ import annotations

import pytest

from helpers.diagnose.causes import CAUSES
from helpers.limiting import causes_rows, limits, predictions, refuted_rows, silent


def row(cause, status, score=0.0, *, says=(), against=(), refuted_by=None, contradiction=None, decides=None):
    return {"cause": cause, "status": status, "score": float(score), "evidence_for": list(says),
            "evidence_against": list(against), "refuted_by": refuted_by, "contradiction": contradiction,
            "next_experiment": decides}


TOP = row("max_context_work", "supported", 4, says=["a size fits", "the slope is too steep", "a third fact"],
          against=["a doubt", "another doubt"], decides="Restart with 8192 tokens")
OTHERS = [row("serialised_requests", "compatible", 1, says=["the slope is too steep"]),
          row("host_or_scheduler", "weak", -1, says=["it is slow"], against=["kernels fill the step"]),
          row("measurement_artifact", "weak")]
REFUTED = [row("communication", "refuted", -3, against=["the link would crawl"], refuted_by="the link would crawl"),
           row("healthy", "refuted", -6, refuted_by="97% is unexplained")]
PLAN = {"what": "Restart with 8192 tokens", "command": "rooflog plan", "duration_s": 230.0, "predicts": {
    "serialised_requests": "it stays at 532 ms", "max_context_work": "it falls to 56 ms"}}


def card(*rows, plan=None):
    return {"diagnosis": list(rows), "next_experiment": plan}


def named(cause):
    """Return a cause as the tables write it."""
    return f"{cause}: {CAUSES[cause]}"


def test_the_answer_in_sentences():
    assert limits(card(TOP, *OTHERS, *REFUTED, plan=PLAN)) == [
        f"What limits decode: {CAUSES['max_context_work']} (max_context_work, supported): a size fits; the slope is "
        "too steep. Against it: a doubt.",
        "Also: serialised_requests (compatible).",
        "Refuted: communication, healthy.",
        "Next experiment, 3.83 min: Restart with 8192 tokens. It shows: if max_context_work: it falls to 56 ms; if "
        "serialised_requests: it stays at 532 ms.",
    ]


def test_a_compatible_top_is_not_proven_and_stands_alone():
    top = row("low_acceptance", "compatible", 2, says=["few are accepted"])
    assert limits(card(top)) == [f"What limits decode: {CAUSES['low_acceptance']} (low_acceptance, compatible, not "
                                 "proven): few are accepted."]


def test_no_diagnosis_no_word():
    assert limits({}) == limits({"diagnosis": None}) == limits({"diagnosis": []}) == []
    assert causes_rows({}) == refuted_rows({}) == silent({}) == []


def test_unknown_first_says_what_is_missing():
    first = row("unknown", "compatible", says=["no cause has evidence enough", "not known: the accelerator",
                                               "not known: a profile"])
    lines = limits(card(first, *OTHERS, *REFUTED[:1]))
    assert lines[0] == "What limits decode: this does not tell. Not known: the accelerator; a profile."
    assert lines[1:] == ["Also: serialised_requests (compatible).", "Refuted: communication."]
    assert limits(card(row("unknown", "compatible", says=["nothing"])))[0] == "What limits decode: this does not tell."


def test_contradictions_are_said_wherever_they_stand():
    both = row("communication", "weak", says=["NCCL takes 40%"], contradiction="NCCL takes 40%; but the link is idle")
    lines = limits(card(TOP, both, *REFUTED))
    assert "Contradiction about communication: NCCL takes 40%; but the link is idle." in lines
    assert lines.index("Contradiction about communication: NCCL takes 40%; but the link is idle.") == 1
    assert causes_rows(card(TOP, both))[1]["against"] == "NCCL takes 40%; but the link is idle"


def test_four_others_at_most_and_only_those_with_evidence():
    names = ["kv_capacity", "admission_limit", "rank_imbalance", "graph_fallback", "graph_padding"]
    rows = [row(name, "compatible", 1, says=["x"]) for name in names]
    assert limits(card(TOP, *rows))[1] == (
        "Also: kv_capacity (compatible), admission_limit (compatible), rank_imbalance (compatible), graph_fallback "
        "(compatible).")
    assert limits(card(TOP, row("kv_capacity", "compatible", 0), row("healthy", "weak", 1)))[1:] == []
    assert limits(card(TOP, row("healthy", "supported", 3, says=["x"])))[1] == "Also: healthy (supported)."


def test_three_outcomes_the_first_causes_own_first():
    predicts = {name: f"{name} says" for name in ("kv_capacity", "graph_padding", "healthy", "max_context_work", "x")}
    (line,) = limits(card(TOP, plan={**PLAN, "duration_s": 42.0, "predicts": predicts}))[1:]
    assert line == (
        "Next experiment, 42.0 s: Restart with 8192 tokens. It shows: if max_context_work: max_context_work says; if "
        "kv_capacity: kv_capacity says; if graph_padding: graph_padding says.")


def test_causes_with_one_outcome_are_said_together():
    """What is seen stands before the colon; five causes of one outcome, three by name."""
    predicts = {**{name: f"it stays: because of {name}" for name in "abcde"}, "f": "it falls: f", "g": "it falls: g"}
    assert predictions(predicts) == ["if a, b, c or 2 more: it stays: because of a", "if f, g: it falls: f"]
    assert predictions(predicts, "g") == ["if g, f: it falls: g", "if a, b, c or 2 more: it stays: because of a"]
    assert predictions({}) == []


def test_the_table_of_causes():
    assert causes_rows(card(TOP, *OTHERS, *REFUTED)) == [
        {"cause": named("max_context_work"), "status": "supported",
         "for": "a size fits; the slope is too steep", "against": "a doubt", "decided by": "Restart with 8192 tokens"},
        {"cause": named("serialised_requests"), "status": "compatible",
         "for": "the slope is too steep", "against": "nothing", "decided by": ""},
        {"cause": named("host_or_scheduler"), "status": "weak", "for": "it is slow",
         "against": "kernels fill the step", "decided by": ""},
    ]
    only_against = row("healthy", "weak", -1, against=["it is slow"])
    assert causes_rows(card(only_against))[0]["for"] == "nothing"


def test_the_table_of_what_is_refuted():
    assert refuted_rows(card(TOP, *OTHERS, *REFUTED)) == [
        {"cause": named("communication"), "refuted by": "the link would crawl"},
        {"cause": named("healthy"), "refuted by": "97% is unexplained"}]


@pytest.mark.parametrize(("item", "is_silent"), [
    (row("kv_capacity", "weak"), True), (row("kv_capacity", "weak", says=["x"]), False),
    (row("kv_capacity", "weak", against=["x"]), False), (row("kv_capacity", "refuted"), False),
    (row("kv_capacity", "compatible"), False)])
def test_causes_about_which_nothing_was_seen(item, is_silent):
    assert silent(card(TOP, item)) == (["kv_capacity"] if is_silent else [])
