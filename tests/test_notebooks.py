"""Every notebook executed with papermill at its defaults and with other parameters; numbers against known truth.

Truth is what a client measured beside the real servers (data/samples/*/truth.csv), what the simulator was told
(truth.json), lines counted here in the file itself, or arithmetic in the test. Nothing is compared with an earlier
output of the notebooks: nbval does that for the stored scorecards. Would catch: a notebook that crashes on a refused
law, on a table or on another engine; a default that leaks into another log; a headline that does not come first.
"""

from __future__ import annotations

import csv
import json

import nbformat
import pytest

from helpers import run as runner
from helpers import synth
from helpers.schema import RooflogError

pytestmark = pytest.mark.notebook

REAL_SGLANG = "data/samples/sglang-sweep"
REAL_VLLM = "data/samples/vllm-sweep"
FIELD_CASE = "data/samples/sim-field-case-a"
HEALTHY = "data/samples/sim-healthy-moe"


@pytest.fixture
def execute(tmp_path, root, monkeypatch):
    """Return (RunResult, outputs of the executed notebook as one text per cell) of a run into a temporary folder."""
    monkeypatch.chdir(root)

    def run(notebook, *logs, context=None, **parameters):
        result = runner.run([str(log) for log in logs], notebook, parameters, tmp_path / "runs", context)
        (executed,) = result.folder.glob("*.ipynb")
        return result, texts(nbformat.read(executed, as_version=4))

    return run


def texts(notebook):
    """Return tag (or position) -> everything a cell printed or displayed as text, figures by their title."""
    shown = {}
    for index, cell in enumerate(notebook.cells):
        if cell.cell_type != "code":
            continue
        parts = []
        for output in cell.outputs:
            data = output.get("data", {})
            figure = data.get("application/vnd.plotly.v1+json")
            displayed = figure["layout"]["title"]["text"] if figure else data.get("text/plain", "")
            parts.append(output.get("text", "") or displayed)
        shown[(cell.metadata.get("tags") or [str(index)])[0]] = "\n".join(parts)
    return shown


def plain(text):
    return " ".join(text.split())


def client_truth(root, sample, column):
    with open(root / sample / "truth.csv", encoding="utf-8") as file:
        return {float(row["concurrency"]): float(row[column]) for row in csv.DictReader(file)}


def simulator_truth(root, sample):
    return json.loads((root / sample / "truth.json").read_text(encoding="utf-8"))


def level_steps(card):
    return {level["running_req"]: level["step_s"] for level in card["levels"] if level["is_fitted"]}


def is_first_with_output(shown, tag, but=()):
    return next(name for name, text in shown.items() if text and name not in but) == tag


def test_00_answers_for_the_real_sglang_server(execute, root):
    """Within 5 % of the client's median time between tokens at every level: another program ran at two of them."""
    result, shown = execute("00")
    assert result.exit_code == 0
    truth_s = {n: 1e-3 * ms for n, ms in client_truth(root, REAL_SGLANG, "itl_ms_median").items()}
    assert level_steps(result.scorecard) == pytest.approx(truth_s, rel=0.05)
    headline = plain(shown["headline"])
    assert headline.startswith("What limits decode: ") and "Measured: sglang" in headline
    assert "Law: " in headline and "95 % interval" in headline
    assert "ms/req" in headline and "tok/s" in headline and "Distance from the roofline: not stated" in headline
    assert headline.count("A step takes") == 1, "one figure, titled with the finding"


def test_00_tells_client_average_from_steady_rate_on_the_field_case(execute, root):
    """Steady rate, law and asymptote within 3 % of what the simulator was told; the average is the client's."""
    result, shown = execute("00", root / FIELD_CASE / "server.log")
    truth, card = simulator_truth(root, FIELD_CASE), result.scorecard
    fit = card["fit"]
    assert fit["intercept_s"] == pytest.approx(truth["law"]["intercept_s"], rel=0.03)
    assert fit["slope_s_per_req"] == pytest.approx(truth["law"]["slope_s_per_req"], rel=0.03)
    assert fit["asymptote_tok_per_s"] == pytest.approx(1 / truth["law"]["slope_s_per_req"], rel=0.03)
    steady = next(64 / level["step_s"] for level in truth["levels"] if level["running_req"] == 64)
    top = next(level for level in card["levels"] if level["running_req"] == 64)
    assert top["decode_tok_per_s"] == pytest.approx(steady, rel=0.03)
    client = next(c["output_tok_per_s"] for c in truth["client_results"] if c["name"] == "c64")
    # The log cannot see the client's first wait (its first line is 20 steps late), so its average is up to 5 % higher.
    assert card["client"]["output_tok_per_s"] == pytest.approx(client, rel=0.05)
    assert card["client"]["steady_over_client"] == pytest.approx(steady / client, rel=0.05)
    words = plain(" ".join(shown.values()))
    assert "a client sees" in words and "ramp" in words and "not steady decode" in words


def test_00_refuses_the_law_of_a_single_level_in_words(execute, tmp_path):
    """One level: its step within 3 % of the simulator's truth, no law, exit code 2."""
    log = tmp_path / "single.log"
    simulation = synth.presets.get("dense_sweep", levels_req=[8]).simulate(seed=1)
    simulation.write(log)
    result, shown = execute("00", log)
    assert result.exit_code == 2
    truth_s = next(level["step_s"] for level in simulation.truth["levels"] if level["running_req"] == 8)
    assert level_steps(result.scorecard) == pytest.approx({8.0: truth_s}, rel=0.03)
    assert "No law of step time is claimed" in plain(shown["headline"])
    assert "a law is not claimed" in shown["headline"], "the figure shows the level"
    assert "law = none (refused)" in shown["scorecard"]


def test_01_accounts_for_every_line_of_the_real_log(execute, root):
    result, shown = execute("01")
    lines = (root / REAL_SGLANG / "server.log").read_bytes().split(b"\n")
    ingest = result.scorecard["ingest"]
    assert ingest["lines_total"] == len(lines) - 1, "the file ends with a line feed"
    assert sum(ingest["lines"].values()) == len(lines) - 1
    assert ingest["by_kind"]["decode"] == sum(b"Decode batch" in line for line in lines)
    assert ingest["by_kind"]["prefill"] == sum(b"Prefill batch" in line for line in lines)
    assert "The server is fired up" in " ".join(shown.values())
    assert "91 of 128" in shown["headline"] or "intervals are steady decode" in shown["headline"]


def test_01_shows_ranks_malformed_lines_and_oddities(execute, tmp_path):
    """Four ranks in lockstep; one line is cut in the middle of a number, one holds NUL bytes."""
    log = tmp_path / "ranks.log"
    synth.presets.get("lockstep_ranks", levels_req=[10, 20], prompts_per_req=2.0).simulate(seed=3).write(log)
    whole = log.read_text(encoding="utf-8")
    decode = next(line for line in whole.splitlines() if "Decode batch" in line)
    cut = decode[: decode.index("gen throughput") + len("gen throughput (token/s): ")]
    log.write_bytes(whole.encode() + cut.encode() + b"\n" + b"some \0\0 bytes\n")
    n_lines = whole.count("\n") + 2
    result, shown = execute("01", log)
    ingest = result.scorecard["ingest"]
    assert ingest["lines_total"] == n_lines and ingest["lines"]["malformed"] == 1
    words = plain(" ".join(shown.values()))
    assert str(n_lines - 1) in words and "nul bytes" in words
    assert "4 lockstep" in words and "4 rank(s)" in words


def test_02_shows_levels_and_why_the_naive_mean_is_wrong(execute, root):
    result, shown = execute("02")
    truth_s = {n: 1e-3 * ms for n, ms in client_truth(root, REAL_SGLANG, "itl_ms_median").items()}
    assert level_steps(result.scorecard) == pytest.approx(truth_s, rel=0.05)
    words = plain(" ".join(shown.values()))
    assert "The mean of every rate printed at a level misses" in words
    phases = result.scorecard["phases"]
    n_out = phases["n_intervals"] - phases["n_clean"]
    assert f"{n_out} of {phases['n_intervals']} intervals rejected (hollow)" in plain(shown["headline"])
    naive = float(shown["scorecard"].split("naive_over_level_median = ")[1].split()[0])
    assert naive < 0.97, "bursts of another program and idle time pull the mean of printed rates down"


def test_02_reads_vllm_within_three_percent_of_its_client(execute, root):
    result, shown = execute("02", root / REAL_VLLM / "server.log")
    assert result.exit_code == 0
    truth_s = {n: 1e-3 * ms for n, ms in client_truth(root, REAL_VLLM, "itl_ms_mean").items()}
    assert level_steps(result.scorecard) == pytest.approx(truth_s, rel=0.03)
    assert "prompt tokens credited inside" in " ".join(shown.values())


def test_03_phases_of_the_field_case_add_up(execute, root):
    """Seconds per phase add up to the log's span from its first to its last decode line; ramp is there."""
    result, shown = execute("03")
    truth, phases = simulator_truth(root, FIELD_CASE), result.scorecard["phases"]
    seconds = {name: s for name, s in phases.items() if name.endswith("_s")}
    busy = [(phase["start_s"], phase["end_s"]) for phase in truth["phases"]]
    span_s = busy[-1][1] - busy[0][0]
    # A line comes every 20 steps, so up to 20 steps at either end are not seen: 40 s of 770 at the top level.
    assert sum(seconds.values()) == pytest.approx(span_s, abs=45)
    steady_s = sum(phase["steady_s"] for phase in truth["phases"])
    assert seconds["steady_s"] == pytest.approx(steady_s, rel=0.15), "prefill between is mixed in the log, not steady"
    assert seconds["ramp_s"] > 0 and seconds["mixed_s"] > 0
    assert "is steady decode" in shown["headline"] and "The average over a load lies" in shown["headline"]


def test_03_holds_the_clients_own_average_against_the_steady_rate(execute, root):
    """The real client of the SGLang server at 32 requests: steady_tok_s beside bench_output_tok_s."""
    average = client_truth(root, REAL_SGLANG, "bench_output_tok_s")[32]
    steady = client_truth(root, REAL_SGLANG, "quiet_tok_s")[32]
    log = root / REAL_SGLANG / "server.log"
    result, shown = execute("03", log, client_output_tok_per_s=average, client_concurrency=32)
    client = result.scorecard["client"]
    assert client["output_tok_per_s"] == average and client["source"] == "user"
    assert client["steady_over_client"] == pytest.approx(steady / average, rel=0.05)
    assert f"The client reported {average:.0f} tok/s" in plain(shown["headline"])


def test_04_compares_the_laws_and_the_naive_line(execute):
    result, shown = execute("04")
    words = plain(" ".join(shown.values()))
    assert "Law: linear" in plain(shown["headline"]) and "95 % intervals" in words
    assert "A straight line through every printed line would claim" in words
    assert "Chosen by this rule: 6 levels" in words
    assert result.scorecard["fit"]["n_levels"] == 6


def test_04_fits_the_typed_table_of_the_field_case(execute, root):
    """Published numbers: 51.9 + 30.3 N ms, slope interval [19.7, 41.0] at one degree of freedom, 33.0 tok/s.

    The tolerances are half a unit of the last digit given.
    """
    result, shown = execute("04", root / "data/field/case_a_config2.csv")
    fit = result.scorecard["fit"]
    assert 1e3 * fit["intercept_s"] == pytest.approx(51.9, abs=0.05)
    assert 1e3 * fit["slope_s_per_req"] == pytest.approx(30.3, abs=0.05)
    assert 1e3 * fit["slope_s_per_req_lo"] == pytest.approx(19.7, abs=0.05)
    assert 1e3 * fit["slope_s_per_req_hi"] == pytest.approx(41.0, abs=0.05)
    assert fit["dof"] == 1 and fit["asymptote_tok_per_s"] == pytest.approx(33.0, abs=0.05)
    assert "1 degree of freedom" in plain(" ".join(shown.values()))


def test_05_shows_how_far_field_case_a_is(execute):
    """Published distances from the target: 22.6, 44.6, 66.7 times at 1, 16, 64 requests (5 %; the context differs)."""
    result, shown = execute("05")
    card = result.scorecard
    ratio = card["roofline"]["ratio"]
    assert [ratio[key] for key in ("1", "16", "64")] == pytest.approx([22.58, 44.63, 66.67], rel=0.05)
    words = plain(shown["headline"])
    assert "At 1 running request a step takes" in words and "x the strict bound of" in words
    everything = plain(" ".join(shown.values()))
    assert "is unexplained" in everything and "nearly all experts are read" in everything
    assert "on H200 SXM 141GB" in everything


def test_05_takes_bytes_in_place_of_a_model(execute, root):
    """strict(N) = (3.4 GB + N x context x 98,304 B) / 2 ranks / 1.792 TB/s at the levels' own context."""
    log = root / "data/samples/sim-healthy-moe/server.log"
    given = {"hardware": "rtx pro 6000 blackwell server", "weight_bytes_per_step": 3.4e9, "kv_bytes_per_tok": 98304.0}
    result, _ = execute("05", log, **given)
    card = result.scorecard
    for level in card["levels"]:
        key = f"{level['running_req']:g}"
        per_rank_bytes = (3.4e9 + level["running_req"] * level["context_tok"] * 98304) / 2
        strict_s = per_rank_bytes / 1.792e12
        assert card["roofline"]["strict"]["step_s"][key] == pytest.approx(strict_s, rel=1e-9)
        assert card["roofline"]["ratio"][key] == pytest.approx(level["step_s"] * 0.83 / strict_s, rel=1e-9)


def test_07_reads_field_case_b(execute):
    """Published: a round of 55.55 +- 0.3 ms at any accept length, -2.65 tok/s at none, three drafts of 1.70 GB."""
    result, shown = execute("07")
    said = dict(line.split(" = ") for line in shown["scorecard"].splitlines() if " = " in line)
    assert 1e3 * float(said["round_s"]) == pytest.approx(55.55, abs=0.3)
    assert float(said["intercept_tok_per_s"]) == pytest.approx(-2.651, abs=0.6)
    assert said["is_round_constant"] == "True"
    # 3 x 1.696 GB at 82 % of 768 GB/s, and the collectives of three draft layers
    assert 1e3 * float(said["draft_s"]) == pytest.approx(3 * 1.696e9 / (0.82 * 768e9) * 1e3, rel=0.03)
    assert float(said["draft_s"]) + float(said["verify_s"]) + float(said["other_s"]) == pytest.approx(
        float(said["round_s"]), rel=1e-3)
    assert result.exit_code == 2  # one level: no law of the load


def test_05_says_what_is_missing_and_takes_it_from_the_user(execute, root):
    """The default sample's hardware belongs to no other log."""
    log = root / REAL_VLLM / "server.log"
    result, shown = execute("05", log)
    assert result.scorecard["roofline"]["ratio"] == {}
    words = plain(shown["headline"])
    assert "No distance from the roofline is stated" in words and "give hardware: a name of `rooflog hardware`" in words
    given = {"hardware": "h100-sxm", "weight_bytes_per_step": 2e8, "kv_bytes_per_tok": 0.0}
    result, shown = execute("05", log, context=given)
    assert result.scorecard["roofline"]["strict"]["step_s"]["1"] == pytest.approx(2e8 / 3.35e12, rel=1e-9)


@pytest.mark.parametrize("notebook", ["01"])
def test_a_table_is_refused_in_one_line_where_lines_are_needed(execute, root, tmp_path, notebook):
    with pytest.raises(RooflogError, match="a table of rates has no lines"):
        execute(notebook, root / "data/field/case_a_config2.csv")
    assert not (tmp_path / "runs").exists(), "nothing is written"
