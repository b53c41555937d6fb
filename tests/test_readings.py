"""Tables and sentences beside the figures: every number by hand from the tables that go in.

Would catch: a unit that is scaled twice, a share of the wrong total, a sentence that states a number where there is
none, a mean of one rank held against the rate of all.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

import build
from helpers import laws, readings, schema, segment
from helpers.answer import _roofline, components_finding
from helpers.facts import merge_facts
from helpers.levels import summarise_levels
from helpers.schema import Fits, LawFit


def levels_table(step_s, running_req, **more):
    step_s, running_req = np.asarray(step_s, float), np.asarray(running_req, float)
    table = pd.DataFrame({
        "server_life": 0, "rank_group": "all", "population": 0, "running_req": running_req,
        "running_req_total": running_req, "n_clean": 9, "clean_s": 60.0, "step_s": step_s, "step_s_lo": 0.99 * step_s,
        "step_s_hi": 1.01 * step_s, "decode_tok_per_s": running_req / step_s, "method": "median_of_blocks",
        "is_fitted": True, "n_rejected": '{"prefill inside": 2, "idle time inside": 5}', "note": "",
    })
    return schema.conform(table.assign(**more), schema.LEVELS)


@pytest.fixture(scope="module")
def intervals():
    """Five lines at 4 requests: 40 tok/s, after a first one of 10 tok/s that holds a prefill."""
    lines = [build.prefill(64, t=0.0), build.decode(4, 10.0, t=16.0, used=560)]
    lines += [build.decode(4, 40.0, t=16.0 + 4.0 * k, used=560 + 160 * k) for k in range(1, 6)]
    return segment.label_intervals(build.samples(*lines), build.no_events(), facts=[{"decode_log_interval": 40}])


@pytest.fixture
def card():
    return {
        "run": {"model": "/models/llama-8b/", "hardware": "h100-sxm", "engine": "sglang", "engine_version": "0.5.9",
                "parallel": {"tp": 4, "dp": 1, "pp": None, "ep": None}, "n_server_lives": 2},
        "ingest": {"lines_total": 10,
                   "lines": {"statistic": 6, "event": 1, "other_known": 1, "other": 1, "malformed": 1},
                   "by_kind": {"decode": 5, "prefill": 1}},
        "phases": {"n_clean": 4, "n_intervals": 5},
        "fit": {"law": "linear", "intercept_s": 0.0123456, "slope_s_per_req": None, "asymptote_tok_per_s": np.nan,
                "loo_error_frac": 0.02, "refused": None},
        "client": {"output_tok_per_s": 30.0, "steady_over_client": 1.1, "source": "user"},
        "levels": [{"running_req": 1.0, "step_s": 0.06, "step_s_lo": 0.05, "step_s_hi": 0.07}],
        "roofline": {"strict": {"intercept_s": 0.01, "slope_s_per_req": 0.001, "step_s": {"1": 0.011}},
                     "target": {"intercept_s": 0.02, "slope_s_per_req": 0.002, "step_s": {"1": 0.02}},
                     "ratio": {"1": 3.0}, "assumptions": ["the peak holds"], "refused": None},
        "checks": [{"name": "adds up", "value": 10, "limit": 10, "pass": True}],
    }


def test_scalars_are_rounded_named_and_never_nan(card):
    names = ("law", "intercept_s", "slope_s_per_req", "asymptote_tok_per_s")
    assert readings.scalars(card, {"extra": 1234.5678}, names).splitlines() == [
        "law = linear", "intercept_s = 0.01235", "slope_s_per_req = unknown", "asymptote_tok_per_s = unknown",
        "extra = 1235",
    ]
    card["fit"]["refused"] = "one level"
    assert readings.scalars(card, names=("law",)) == "law = none (refused)"


def test_subtitle_names_model_accelerator_and_log(card):
    found = readings.subtitle(card, "/somewhere/run-7/server.log")
    assert found == "llama-8b · h100-sxm · TP4 · sglang 0.5.9 · run-7/server.log"
    card["run"] |= {"model": None, "hardware": None}
    assert readings.subtitle(card).startswith("model not in the log · TP4")


def test_source_reading_adds_up(card):
    assert readings.source_reading(card) == (
        "Read: 10 lines of sglang 0.5.9 in 2 server lives: 6 statistics (5 decode, 1 prefill), 1 events, 2 others, "
        "1 malformed."
    )
    card["ingest"] = {"lines_total": None, "lines": None, "by_kind": None}
    assert "table of rates at 1 level" in readings.source_reading(card)


def test_roofline_reading_names_level_and_line(card):
    """60 ms over 20 ms is 3x the target; over 11 ms 5.45x the strict bound."""
    assert readings.roofline_reading(card) == (
        "At 1 running request a step takes 60.0 ms [50.0, 70.0]: 3.00x the target of 20.0 ms, 5.45x the strict bound "
        "of 11.0 ms."
    )
    card["roofline"] = {"ratio": {}, "refused": "not known: hardware"}
    assert readings.roofline_reading(card) == "No distance from the roofline is stated: not known: hardware."
    assert "No line" in readings.chord_reading(card)


def test_client_reading_tells_whose_average_it_is(card):
    assert readings.client_reading(card) == (
        "The client reported 30.0 tok/s over its load; steady decode at its peak is 1.10 times that."
    )
    card["client"]["source"] = "log"
    assert readings.client_reading(card).startswith("No average of a client was given")


def test_levels_table_scales_once_and_drops_what_is_empty():
    table = readings.levels_table(levels_table([0.02, 0.05], [1, 8]))
    assert list(table["step [ms]"]) == ["20.0", "50.0"]
    assert list(table["interval [ms]"]) == ["19.8 to 20.2", "49.5 to 50.5"]
    assert list(table["decode [tok/s]"]) == ["50.0", "160"]
    assert table["rejected"][0] == "5 idle time inside, 2 prefill inside"
    assert not {"server life", "ranks", "tokens per round", "context [tok]"} & set(table.columns)
    half_lost = levels_table([np.nan, 0.05], [1, 8], is_fitted=[False, True], method=["none", "table"])
    lost = readings.levels_table(half_lost)
    assert list(lost["step [ms]"]) == ["unknown", "50.0"] and list(lost["fitted"]) == ["no", "yes"]


def test_levels_reading_counts_what_is_not_fitted():
    levels = levels_table([0.02, 0.05, 0.06], [1, 8, 16], is_fitted=[True, True, False])
    assert readings.levels_reading(levels) == (
        "2 levels are fitted, from a step of 20.0 ms [19.8, 20.2] at 1 running request (50.0 tok/s) to 50.0 ms "
        "[49.5, 50.5] at 8 running requests (160 tok/s); 1 row(s) of the table are not fitted."
    )
    assert readings.levels_reading(levels.head(1)).startswith("One level is fitted: a step of 20.0 ms")
    assert "No level can be fitted (seen: 16)" in readings.levels_reading(levels.tail(1))


def test_naive_rates_mean_every_printed_rate(intervals):
    """(10 + 5 x 40) / 6 = 35 tok/s beside 40 tok/s of the clean lines: 12.5 % low."""
    rates = readings.naive_rates(intervals, summarise_levels(intervals))
    assert rates.to_dict("records") == [
        {"running_req": 4.0, "n_lines": 6, "naive_tok_per_s": pytest.approx(35.0),
         "decode_tok_per_s": pytest.approx(40.0), "naive_over_level": pytest.approx(0.875)}
    ]
    assert "up to -12.5 % (at 4 running requests" in readings.naive_reading(rates)
    assert "No level can be compared" in readings.naive_reading(rates.head(0))


def test_naive_rates_of_lockstep_ranks_add_up():
    """Two ranks at 4 requests and 40 tok/s each are 80 tok/s, not 40."""
    lines = []
    for k in range(1, 8):
        lines += [build.decode(4, 40.0, t=4.0 * k, used=160 * k, rank=f"DP{d} TP{d}") for d in (0, 1)]
    facts = [{"decode_log_interval": 40, "dp_attention": True}]
    both = segment.label_intervals(build.samples(*lines), build.no_events(), facts=facts)
    rates = readings.naive_rates(both, summarise_levels(both))
    assert list(rates["naive_tok_per_s"]) == [pytest.approx(80.0)]
    assert list(rates["naive_over_level"]) == [pytest.approx(1.0)]


def test_rejected_intervals_are_counted_by_rule(intervals):
    table = readings.rejected_table(intervals)
    assert table["intervals"].sum() == 6 and list(table["clean"])[0] == "yes"
    n_out = int((~intervals["clean"]).sum())
    assert readings.rejected_reading(intervals).startswith(f"{n_out} of 6 intervals were left out, most often: ")
    assert "not known" in readings.rejected_reading(None)


def test_phases_reading_shares_the_logged_time():
    phases = {"warmup_s": 0.0, "ramp_s": 15.0, "steady_s": 60.0, "mixed_s": 0.0, "drain_s": 0.0, "idle_s": 25.0}
    assert readings.phases_reading(phases) == (
        "Of 100 s logged, 60 % is steady decode: 15.0 s ramp, 60.0 s steady, 25.0 s idle."
    )
    assert "no time" in readings.phases_reading(dict.fromkeys(phases, 0.0))


def test_episodes_reading_says_why_the_average_is_lower():
    episodes = pd.DataFrame([{
        "server_life": 0, "rank_group": "all", "episode": 0, "peak_req": 8.0, "start_s": 0.0, "duration_s": 100.0,
        "tokens": 9000.0, "average_tok_per_s": 90.0, "steady_tok_per_s": 120.0, "steady_over_average": 4 / 3,
        "warmup_s": 0.0, "ramp_s": 10.0, "steady_s": 60.0, "mixed_s": 30.0, "drain_s": 0.0,
    }])
    assert readings.episodes_reading(episodes) == (
        "In the episode with a peak of 8 running requests a client sees 90.0 tok/s on average, while steady decode "
        "runs at 120 tok/s (1.33 times that): of its 100 s, 30.0 s of mixed and 10.0 s of ramp are not steady decode."
    )
    table = readings.episodes_table(episodes)
    assert table["ramp [s]"][0] == 10.0 and "drain [s]" not in table.columns
    assert "No load episode" in readings.episodes_reading(episodes.head(0))


def test_laws_and_crosschecks_are_listed_against_the_line():
    """Steps on 20 ms + 2 ms per request exactly: every method finds the same slope."""
    running_req = np.array([1, 2, 4, 8, 16])
    levels = levels_table(0.020 + 0.002 * running_req, running_req)
    fits = laws.fit_laws(levels)
    table = readings.laws_table(fits)
    assert list(table["law"]) == [c.law for c in fits.candidates] and (table["selected"] == "yes").sum() == 1
    line = table.loc[table["law"] == "linear", "parameters [interval]"].iloc[0]
    assert line.startswith("intercept = 20.0 ms") and "slope = 2.00 ms/req" in line
    crosschecks = readings.crosschecks_table(fits)
    assert set(crosschecks["slope [ms/req]"]) == {"2.00"}
    assert "no fit through every printed line" in readings.naive_fit_reading(fits)
    assert readings.law_reading(fits).startswith("Law: linear: intercept = 20.0 ms")
    assert "throughput tends to 500 tok/s" in readings.asymptote_reading(fits), "1 / 2 ms"


def test_a_refusal_is_said_wherever_a_law_is_asked_for():
    law = LawFit("linear", refused="one level")
    fits = Fits(law, law, (law,), "none: one level")
    levels = levels_table([0.02], [1])
    assert readings.law_reading(fits) == "No law is claimed: one level."
    assert readings.asymptote_reading(fits) == "No asymptote: one level."
    for text in (readings.prediction_reading(fits), readings.residuals_reading(levels, fits),
                 readings.warnings_reading(fits), readings.naive_fit_reading(fits), readings.context_reading(fits)):
        assert "nan" not in text and len(text) > 10
    assert readings.laws_table(fits)["refused"][0] == "one level"


def test_events_and_accounting_are_counted():
    event = {"file": "a", "line_no": 3, "t_s": 10.0, "server_life": 0, "kind": "out_of_memory", "size_bytes": 3.94e9,
             "text": "x" * 300}
    events = schema.conform(pd.DataFrame([event, event | {"kind": "ready", "size_bytes": np.nan}]), schema.EVENTS)
    table = readings.events_table(events)
    assert list(table["size [GB]"]) == ["3.94", ""] and all(len(text) == 100 for text in table["text"])
    assert "1 out of memory" in readings.events_reading(events) and "1 ready" in readings.events_reading(events)
    accounting = {"lines_total": 3, "lines": {"statistic": 2, "other_known": 1},
                  "oddities": {"nul_bytes": 2, "crlf": 0}, "known": {"access line": 1},
                  "notes": ["a file was skipped"], "malformed": []}
    assert readings.accounting_reading(accounting) == "3 lines = 2 statistic + 1 other known."
    assert readings.oddities_reading(accounting).splitlines() == [
        "Odd in the bytes: 2 nul bytes.", "Known and of no use here: 1 access line.", "Note: a file was skipped",
    ]
    assert list(readings.malformed_table(accounting).columns) == ["file", "line_no", "reason", "text"]


def test_facts_table_says_who_said_it():
    facts = merge_facts({"tp": 4, "args": {"tp": 4}}, {"hardware": "h100-sxm"})
    table = readings.facts_table(facts).set_index("fact")
    assert "args" not in table.index
    assert table.loc["tp", "from"] == "log" and table.loc["hardware", "from"] == "user"
    assert "accelerator" in table.loc["hardware", "meaning"]


def test_checks_state_value_and_limit(card):
    card["checks"] += [readings.check_equal("equal", 3, 3), readings.check_equal("unequal", 3, 4),
                       readings.check_at_most("at most", 4, 5), readings.check_at_most("too many", 6, 5)]
    assert list(readings.checks_table(card)["pass"]) == ["yes", "yes", "NO", "yes", "NO"]


def test_say_wraps_to_the_page_and_keeps_lines(capsys):
    readings.say("one", "word " * 60)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "one" and len(lines) == 4 and max(map(len, lines)) <= 110 and lines[2].startswith("  word")


def part(running_req, name, *seconds, share_frac, source):
    return dict(zip(("running_req", "name", "time_s", "lo", "hi"), (running_req, name, *seconds), strict=True)) | {
        "share_frac": share_frac, "source": source}


COMPONENTS = [
    part(64.0, "weights", 0.040, 0.035, 0.044, share_frac=0.40, source="a"),
    part(64.0, "kv", 0.022, 0.020, 0.024, share_frac=0.22, source="b"),
    part(64.0, "head", 0.017, None, None, share_frac=0.17, source="c"),
    part(64.0, "unexplained", 0.021, 0.012, 0.030, share_frac=0.21, source="d"),
]
AT_ONE = [
    part(1.0, "weights", 0.022, 0.020, 0.024, share_frac=1.1, source="a"),
    part(1.0, "unexplained", -0.002, -0.004, -0.001, share_frac=-0.1, source="d"),
]


def test_components_are_told_with_their_intervals_and_both_ends(card):
    """40 + 22 of 100 ms are 62 %; at one request the parts are 2 ms longer than the 20 ms measured: 10 %, 5 to 20."""
    card |= {"components": COMPONENTS, "components_by_level": {"64": COMPONENTS, "1": AT_ONE}}
    assert readings.components_reading(card).splitlines() == [
        "At N=64, 62 % of the step is weights and keys and values; 21 % [12, 30] is unexplained.",
        "Of 100 ms: weights 40.0 ms [35.0, 44.0], keys and values 22.0 ms [20.0, 24.0], the output head 17.0 ms "
        "(no interval), unexplained 21.0 ms [12.0, 30.0].",
        "At N=1, of 20.0 ms: its parts add up to 10 % [5, 20] more than the measured step.",
    ]
    assert "No part of the step is stated: hardware, model" in readings.components_reading(card | {"components": []})
    lost = [COMPONENTS[0] | {"time_s": None}, *AT_ONE]
    assert readings.components_reading(card | {"components": lost}).startswith("At N=1, 110 % of the step is weights;")


def test_two_engines_at_one_level_are_not_added_up():
    assert components_finding([*COMPONENTS, *COMPONENTS]) == components_finding(COMPONENTS)
    assert components_finding([]) == "" and "round is weights" in components_finding(COMPONENTS, "round")


def test_components_table_scales_once():
    table = readings.components_table(pd.DataFrame(COMPONENTS))
    assert list(table["part"]) == ["weights", "keys and values", "the output head", "unexplained"]
    assert list(table["time [ms]"]) == ["40.0", "22.0", "17.0", "21.0"]
    assert list(table["interval [ms]"]) == ["35.0 to 44.0", "20.0 to 24.0", "none", "12.0 to 30.0"]
    assert list(table["share of the step [%]"]) == ["40.0", "22.0", "17.0", "21.0"]
    assert list(table["from"]) == list("abcd")


def test_regimes_and_knees_are_said_or_the_reason_why_not(card):
    assert "there is no roofline" in readings.regimes_reading(card)
    assert "neither experts nor FLOPs" in readings.knees_reading(card)
    card["roofline"] |= {"expected": {"step_s": {"1": 0.015}}, "floor_s": [0.001, 0.004],
                         "regimes": {"1": "weights", "4": "weights", "16": "kv", "64": "weights"},
                         "knees_req": {"compute": 300.0, "experts": 33.4, "requests": None}}
    assert readings.regimes_reading(card) == (
        "The expected step spends most on weights at N=1 to 4, keys and values at N=16, weights at N=64. However "
        "little they move, its kernels take 1.00 ms to 4.00 ms: that is in no line."
    )
    assert readings.knees_reading(card).splitlines() == [
        "Above N = 33.4 nearly all experts are read.",
        "Above N = 300 the products take longer than reading the weights.",
    ]
    card["roofline"] |= {"expected": None, "floor_s": [None, None]}
    alone = readings.regimes_reading(card)
    assert alone.startswith("The strict step") and "kernels" not in alone
    card["roofline"] = {"refused": "not known: hardware"}
    assert "not known: hardware" in readings.regimes_reading(card) and "hardware" in readings.knees_reading(card)


def test_the_expected_line_is_named_where_there_is_one(card):
    """60 ms over 15 ms is 4x."""
    card["roofline"]["expected"] = {"intercept_s": 0.015, "slope_s_per_req": 0.0015, "step_s": {"1": 0.015}}
    distances = "3.00x the target of 20.0 ms, 4.00x the expected 15.0 ms, 5.45x the strict bound of 11.0 ms"
    assert distances in readings.roofline_reading(card)
    card["fit"]["slope_s_per_req"] = 0.003
    assert "expected 15.0 ms + N x 1.50 ms/req" in readings.chord_reading(card)
    frame = pd.DataFrame({"running_req": [1.0], "context_tok": [np.nan], "step_s": [0.06], "strict_step_s": [0.011],
                          "expected_step_s": [0.015], "target_step_s": [0.02], "step_over_strict": [5.45],
                          "step_over_expected": [4.0], "step_over_target": [3.0]})
    assert list(readings.roofline_table(frame).loc[0]) == [
        "1", "unknown", "60.0", "11.0", "15.0", "20.0", "5.45", "4.00", "3.00"]
    by_hand = readings.roofline_table(frame.assign(expected_step_s=np.nan, step_over_expected=np.nan))
    assert "expected [ms]" not in by_hand.columns and "measured over target" in by_hand.columns


def lever(name, rate=None, lo=None, hi=None, refused=None, assumes=()):
    change = None if rate is None else rate / 1000 - 1
    step_s = None if rate is None else 64 / rate
    return {"lever": name, "tok_per_s": rate, "lo": lo, "hi": hi, "step_s": step_s, "change_frac": change,
            "assumes": list(assumes), "refused": refused}


def test_levers_are_told_best_first_with_what_they_assume(card):
    card["levers"] = [
        lever("no speculation", 800.0, 700.0, 900.0, assumes=["the rest stays"]),
        lever("tp 8", refused="8 does not divide 4."),
        lever("weights in fp8", 1500.0, 1200.0, 1800.0, assumes=["the rest stays", "quality is not considered"]),
        lever("N=128", 1100.0, 1100.0, 1100.0), lever("context halved", 1050.0),
    ]
    assert readings.levers_reading(card).splitlines() == [
        "weights in fp8: 1500 tok/s [1200, 1800] (+50.0 %). It assumes: the rest stays; quality is not considered.",
        "N=128: 1100 tok/s (+10.0 %).", "context halved: 1050 tok/s (+5.0 %).", "1 more in the table.",
        "Refused: tp 8: 8 does not divide 4.",
    ]
    table = readings.levers_table(card["levers"])
    assert list(table["interval [tok/s]"]) == ["700 to 900", "", "1200 to 1800", "none", "none"]
    assert list(table["change [%]"]) == ["-20.0", "", "+50.0", "+10.0", "+5.0"] and table["step [ms]"][0] == "80.0"
    assert list(table["refused"]) == ["", "8 does not divide 4.", "", "", ""]
    pd.testing.assert_frame_equal(readings.levers_table([SimpleNamespace(**row) for row in card["levers"]]), table)
    assert "No lever is computed" in readings.levers_reading(card | {"levers": []})
    assert list(readings.levers_table([]).columns) == list(table.columns)


def test_the_answer_names_the_largest_parts_in_one_sentence(card):
    for level in card["levels"]:
        level |= {"is_fitted": True, "accept_len": None}
    card["fit"]["n_levels"] = 1
    card["roofline"]["expected"] = {"step_s": {"1": 0.015}}
    assert _roofline(card) == ["Distance from the roofline: at N=1 a step takes 3.00x the target (strict 11.0 ms, "
                               "expected 15.0 ms, target 20.0 ms)."]
    assert _roofline(card | {"components": COMPONENTS})[1:] == [
        "At N=64, 62 % of the step is weights and keys and values; 21 % [12, 30] is unexplained."]


def test_sources_reading_names_what_is_used_and_why_not_the_rest():
    sources = pd.DataFrame({
        "server_life": [0, 0, 1], "source": ["iteration", "line", "line"], "n_records": [900, 30, 40],
        "is_used": [True, False, True], "why": ["used", "not fitted: the other tells more", "used"],
    })
    assert readings.sources_reading(sources) == (
        "2 server life(s): 1 on iteration records, 1 on line records.\n"
        "server life 0: 30 line records not fitted: the other tells more.")
    assert readings.sources_reading(sources.head(0)) == "No record tells of decode."
