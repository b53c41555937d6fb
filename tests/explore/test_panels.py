"""The panels of notebooks 04 to 07: the command of each repeats its numbers; a bad value is one line.

Would catch: a panel whose law is not that of the command, a what-if that counts a change that is none, facts of a cause
that become markup.
"""

import base64
import shlex

import numpy as np
import pytest

from helpers import explore, measure
from helpers.allowance import lever_of
from helpers.analysis import analyse
from helpers.physics.speculative import acceptance, payoff, speculation
from helpers.physics.what_if.changes import Change

CASE = {"model_config": "DeepSeek-V4-Flash-NVFP4", "hardware": "rtx pro 6000 blackwell server"}
CASE_B = {"model": "Qwen3.6-27B", "hardware": "RTX A6000", "tp": 2, "engine": "sglang", "num_draft_tokens": 4,
          "context_tok": 500.0, "interconnect": "pcie4"}


@pytest.fixture(scope="module")
def log(data):
    return str(data / "samples" / "sim-field-case-a" / "server.log")


@pytest.fixture(scope="module")
def run(log):
    return analyse(log, context=CASE)


def parameters(line):
    words = shlex.split(line)
    return {words[i + 1]: words[i + 2] for i, word in enumerate(words) if word == "-p"}


def shown(panel):
    """Return message, outputs and command of a panel."""
    said, output, repeat = panel.children[-1].children
    return said.value, output.outputs, repeat.value


def titles(outputs):
    return outputs[0]["data"]["application/vnd.plotly.v1+json"]["layout"]["title"]["text"].replace("<br>", " ")


def test_the_law_panel_draws_what_its_command_measures(run, log):
    measurer = measure.Measurer(run.log, CASE)
    panel = explore.law_panel(run.levels, confidence=0.95, measurer=measurer, command=explore.command([log]))
    confidence, levels, law = panel.children[:-1]
    levels.value, law.value, confidence.value = ("1", "16", "64"), "linear", 0.9
    said, outputs, repeat = shown(panel)
    assert said == "" and "-p running_req &#x27;[1.0, 16.0, 64.0]&#x27; -p law linear -p confidence 0.9" in repeat
    choice = measure.choice_of(running_req=[1.0, 16.0, 64.0], law="linear")
    fit = analyse(log, context=CASE, confidence=0.9, choice=choice).fits.selected
    drawn = outputs[0]["data"]["application/vnd.plotly.v1+json"]["data"]
    line = next(trace for trace in drawn if trace.get("name") == "linear law")
    expected_s = fit["intercept_s"].value + fit["slope_s_per_req"].value * _array(line["x"])
    assert _array(line["y"]) == pytest.approx(expected_s, rel=1e-12)


def _array(stored):
    """Return the numbers of a trace, which plotly may store as base64."""
    return (np.frombuffer(base64.b64decode(stored["bdata"]), stored["dtype"]) if isinstance(stored, dict)
            else np.array(stored, float))


def test_the_law_panel_keeps_its_figure_where_nothing_is_chosen(run, log):
    panel = explore.law_panel(run.levels, confidence=0.95, measurer=measure.Measurer(run.log, CASE),
                              command=explore.command([log]))
    before = shown(panel)
    panel.children[1].value = ()
    after = shown(panel)
    assert "levels: expected at least one to be chosen" in after[0] and after[1:] == before[1:]


def test_the_what_if_panel_says_the_rate_that_its_command_gives(run, log):
    panel = explore.what_if_panel(run.allowed, run.levels, command=explore.command([log]))
    assert "what_if" not in shown(panel)[2]
    weights, _, tp, context = panel.children[:-1]
    weights.value, tp.value, context.value = "fp8", 8, 4096
    said, outputs, repeat = shown(panel)
    change = explore.read_change(parameters(repeat.split("user-select:all'>")[1].removesuffix("</pre>")
                                            .replace("&quot;", '"').replace("&#x27;", "'"))["what_if"])
    lever = explore.lever_of(run.allowed, None, run.levels, change)
    assert said == "" and lever.tok_per_s > 0
    assert titles(outputs).startswith(explore.lever_reading(lever).split(": ", 1)[1].split(", ")[0])


def test_a_changed_deployment_of_the_panel_is_that_of_its_command_to_the_last_digit(run):
    """The panel names hardware and ranks also where they stay; that must be no change."""
    board = run.allowed.deployment.hardware
    named = lever_of(run.allowed, run.levels, Change(weights="fp8", tp=8, hardware=board))
    short = lever_of(run.allowed, run.levels, Change(weights="fp8", tp=8))
    assert (named.tok_per_s, named.lo, named.hi) == (short.tok_per_s, short.lo, short.hi)
    ranks = run.allowed.deployment.model.parallel.tp
    assert lever_of(run.allowed, run.levels, Change(tp=ranks, hardware=board)).change_frac == 0


def test_the_acceptance_panel_says_what_the_notebook_computes(data):
    """The round stays (the points of case B lie on a line through 0): tokens over measured tokens are the gain."""
    table = str(data / "field" / "case_b_acceptance.csv")
    found = analyse(table, context=CASE_B)
    line = speculation.acceptance_line(speculation.points(found.levels, found.intervals), confidence=0.95)
    measured = payoff.measured_round(line, acceptance.drafted_tok("sglang", 4))
    panel = explore.acceptance_panel(line, measured, None, command=explore.command([table], context=CASE_B))
    panel.children[0].value = 3.5
    said, outputs, repeat = shown(panel)
    rate = 3.5 * measured.tok_per_s / measured.accept_len
    assert said == "" and f"{rate:.3g}"[:3] in titles(outputs) and "-p accept_lens [3.5]" in repeat.replace(
        "&#x27;", "")
    panel.children[0].value = 9.0  # above draft + 1
    assert "need a longer draft" in titles(shown(panel)[1])
    outputs = shown(panel)[1]
    panel.children[0].value = 0.5
    assert "Not computed" in shown(panel)[0] and shown(panel)[1] == outputs


def test_the_causes_panel_shows_every_fact_escaped():
    card = {"diagnosis": [
        {"cause": "a", "status": "supported", "score": 2.0, "evidence_for": ["<b>x</b> & y"], "evidence_against": [],
         "refuted_by": None, "contradiction": None, "next_experiment": "run it"},
        {"cause": "b", "status": "refuted", "score": -1.0, "evidence_for": [], "evidence_against": ["z"],
         "refuted_by": "the fact", "contradiction": None, "next_experiment": None}]}
    panel = explore.causes_panel(card)
    first = shown(panel)[1][0]["data"]["text/html"]
    assert "&lt;b&gt;x&lt;/b&gt; &amp; y" in first and "supported" in first and "decided by: run it" in first
    panel.children[0].value = "b"
    second = shown(panel)[1][0]["data"]["text/html"]
    assert "refuted by: the fact" in second and "<li>z</li>" in second
