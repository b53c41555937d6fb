"""`rooflog compare`: exit codes, the verdict first, what it writes, and the run folder of notebook 08."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
import typer
from sides import analysed_once, write_log, write_run
from typer.testing import CliRunner

from helpers import regression
from helpers.cli.compare import compare
from helpers.regression import gather
from helpers.schema import LogFormatError, RooflogError

app = typer.Typer()
app.command()(compare)


@pytest.fixture
def rooflog(root, monkeypatch):
    """Return the result of `rooflog compare` with arguments, run in the checkout; errors are raised.

    A log that several tests compare is analysed once.
    """
    monkeypatch.chdir(root)
    monkeypatch.setattr(gather, "analyse", analysed_once)

    def run(*arguments):
        result = CliRunner().invoke(app, [str(word) for word in arguments])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return run


BASE, NEW = "data/samples/sim-regress-base/server.log", "data/samples/sim-regress-new/server.log"


def test_verdict_first_then_every_row_and_exit_1_where_it_regressed(rooflog):
    result = rooflog(BASE, NEW)
    lines = result.stdout.splitlines()
    assert result.exit_code == 1
    assert lines[0].startswith("Verdict: worse, for changes of more than 3 %. Worse: ")
    assert "cost per request. Cannot tell: step at N=" in lines[0] and "The cost per request moved by +2" in lines[0]
    assert lines[1].startswith("No stated fact differs") and lines[2].startswith("Single runs cannot be shown to be")
    rows = [line for line in lines if line.lstrip().startswith(("step at", "fixed cost", "cost per request"))]
    assert len(rows) == 9 and all("ms" in row and "%" in row and "[" in row for row in rows)
    assert "runs on either side" in rows[0], "what would tell a change of the threshold"
    assert "steady" in result.stdout and "sim-regress-new/server.log" in result.stdout


def test_the_same_is_0_and_the_card_is_json(rooflog):
    result = rooflog(BASE, BASE, "--json")
    card = json.loads(result.stdout)
    assert result.exit_code == 0 and card["overall"]["verdict"] == "same" and card["kind"] == "comparison"
    assert card["run"]["command"] == f"rooflog compare {BASE} {BASE} --threshold 0.03"


def test_cannot_tell_is_2_and_a_larger_threshold_may_tell(rooflog, tmp_path):
    """Two runs of one server: 3 % cannot be excluded by single runs that scatter by 2 %, 30 % can."""
    again = write_log(tmp_path / "again.log", seed=9, levels=(1, 2, 4, 8, 16, 32, 64), prompts_per_req=1.5,
                      output={"mean_tok": 512}, gap_s=5.0)
    assert rooflog(BASE, again).exit_code == 2
    assert rooflog(BASE, again, "--threshold", 0.3).exit_code == 0
    assert rooflog(BASE, NEW, "--new-context", '{"tp": 2}').exit_code == 2, "another server"


def test_more_repeats_are_options(rooflog, tmp_path):
    more = [write_log(tmp_path / f"{i}.log", seed=i) for i in (1, 2)]
    card = json.loads(rooflog(BASE, NEW, "--base", more[0], "--new", more[1], "--json").stdout)
    assert [card[side]["n_runs"] for side in ("base", "new")] == [2, 2]
    assert card["base"]["inputs"][1]["path"] == str(more[0])
    assert "--base" in card["run"]["command"] and "--new" in card["run"]["command"]


def test_summary_is_added_to_and_junit_is_written(rooflog, tmp_path):
    summary, junit = tmp_path / "summary.md", tmp_path / "out.xml"
    summary.write_text("before\n")
    rooflog(BASE, NEW, "--summary", summary, "--junit", junit)
    text = summary.read_text()
    assert text.startswith("before\n") and "worse" in text and "per request" in text.replace("_", " ")
    found = ElementTree.parse(junit).getroot()
    assert int(found.get("failures")) >= 1
    with pytest.raises(RooflogError, match="--summary"):
        rooflog(BASE, NEW, "--summary", tmp_path / "none" / "x.md")


def test_what_cannot_run_is_an_error(rooflog, tmp_path):
    with pytest.raises(LogFormatError, match="no such file"):
        rooflog(BASE, tmp_path / "none.log")
    with pytest.raises(RooflogError, match="threshold: expected a share"):
        rooflog(BASE, NEW, "--threshold", 3)
    with pytest.raises(LogFormatError, match="standard input"):
        rooflog("-", "-")
    with pytest.raises(RooflogError, match="--history"):
        rooflog(BASE, NEW, "--history", tmp_path)
    with pytest.raises(LogFormatError, match="--base-context"):
        rooflog(BASE, NEW, "--base-context", "{")


@pytest.mark.notebook
def test_out_keeps_the_executed_notebook_with_its_answer(rooflog, tmp_path):
    past = tmp_path / "past"
    for night in range(8):
        write_run(past / str(night), Path(BASE), step_factor=1.0 + 0.001 * (night % 3) + 0.2 * (night >= 4),
                  started_utc=f"2026-11-0{night + 1}T02:00:00+00:00", sha=f"{night:064x}")
    result = rooflog(BASE, NEW, "--out", tmp_path / "runs", "--threshold", 0.05, "--history", past)
    (folder,) = (tmp_path / "runs").iterdir()
    names = {path.name for path in folder.iterdir()}
    assert names == {"08_did_it_regress.ipynb", "comparison.json", "report.html", "run.json", "summary.md"}
    card, record = regression.read(folder), json.loads((folder / "run.json").read_text())
    assert result.exit_code == record["exit_code"] == card["exit_code"] == 1
    assert card["threshold_frac"] == 0.05 and record["parameters"]["base_paths"][0].endswith(BASE)
    assert record["log_sha256"] == card["run"]["log_sha256"] and len(record["log_sha256"]) == 2
    assert f"Written: {folder}" in result.stdout.replace("\n", "")
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "Verdict: worse, for changes of more than 5 %" in page and "Sample data" not in page
    assert page.index("Verdict: worse") < page.index("May the two be compared?")
    assert "The newest runs are worse than those before: step at N=1" in page
    with pytest.raises(LogFormatError, match="name what it compared"):
        rooflog(folder, NEW)
