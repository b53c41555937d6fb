"""The commands as a user meets them: exit codes, one clear line for every bad input, JSON and nothing else.

Would catch: a traceback, a half-written output, a usage error that exits with 2 (which means "cannot tell"), a
number of the answer that is not that of the scorecard. Logs are simulated here; the simulator's truth is the oracle.
"""

import gzip
import json
import subprocess
import sys
import threading

import nbformat
import numpy as np
import pandas as pd
import pytest

from helpers import __version__, cli, progress, scorecard, synth
from helpers.analysis import analyse
from helpers.cli import printing
from helpers.run import KERNELSPEC

TABLE = "# typed by hand\nrunning_req,decode_tok_per_s\n1,12.2\n16,29.0\n64,32.85\n"
LAW = {"intercept_s": 0.020, "slope_s_per_req": 0.0010}


@pytest.fixture(scope="session")
def sweep(tmp_path_factory):
    """A small simulated sweep with its truth, noise-free."""
    server = synth.Server(law=synth.StepLaw(**LAW), tp_size=2)
    client = synth.Client(levels_req=(1, 4, 16), output=synth.Lengths(mean_tok=512))
    file = tmp_path_factory.mktemp("sweep") / "server.log"
    simulation = synth.simulate(server, client, seed=1)
    simulation.write(file)
    return file, simulation.truth


@pytest.fixture
def table(tmp_path):
    file = tmp_path / "rates.csv"
    file.write_text(TABLE)
    return file


def call(capsys, *words):
    code = cli.main([str(word) for word in words])
    shown = capsys.readouterr()
    return code, shown.out, shown.err


def bad_inputs(folder, log):
    """Every input that cannot be used, and a word of its message."""
    plain = log.read_text()
    packed = gzip.compress(plain.encode())
    files = {
        "empty.log": (b"", "empty"),
        "binary.log": (bytes(range(256)) * 64, "binary"),
        "no_statistics.log": (b"INFO: started\nINFO: done\n", "expected statistic lines"),
        "cut.log.gz": (packed[: len(packed) // 2], "cut"),
        "text.csv": (b"running_req,decode_tok_per_s\n1,fast\n", "fast"),
        "columns.csv": (b"n,rate\n1,2\n", "expected the columns"),
        "no_rows.csv": (b"running_req,decode_tok_per_s\n", "expected at least one row"),
    }
    for name, (content, _) in files.items():
        (folder / name).write_bytes(content)
    return {"missing.log": "no such file", **{name: word for name, (_, word) in files.items()}}


@pytest.mark.parametrize("command", ["fit", "ingest"])
def test_bad_input_is_one_line_exit_3_and_nothing_written(tmp_path, capsys, sweep, command):
    words = bad_inputs(tmp_path, sweep[0])
    before = sorted(tmp_path.iterdir())
    extra = ["--out", tmp_path / "new.parquet"] if command == "ingest" else []
    for name, word in words.items():
        code, out, err = call(capsys, command, tmp_path / name, *extra, "--json")
        assert (code, out) == (3, ""), name
        assert err.startswith("error: ") and err.count("\n") == 1 and "Traceback" not in err, (name, err)
        assert name in err, err
        if command == "fit" or not name.endswith(".csv"):
            assert word in err, err
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run"], "Missing argument"),
        (["run", "x.log", "-p", "confidence"], "expected -p NAME VALUE"),
        (["nosuch"], "No such command"),
        (["fit", "x.csv", "--nosuch"], "No such option"),
        (["fit", "{table}", "--confidence", "high"], "Invalid value for '--confidence'"),
        (["fit", "{table}", "--confidence", "1.5"], "expected a share between 0 and 1, found 1.5"),
        (["fit", "{table}", "--context", "{{"], "not JSON"),
        (["fit", "{table}", "--context", "nosuch.yaml"], "No such file"),
        (["ingest", "x.log", "--out", "x.xlsx"], "expected a file name that ends in .parquet or .csv"),
        (["simulate"], "expected --out LOG, or --estimate"),
        (["simulate", "nosuch", "--estimate"], "no preset 'nosuch'"),
        (["simulate", "dense_swep"], "did you mean 'dense_sweep'"),
        (["simulate", "--engine", "tgi"], "expected sglang or vllm, found 'tgi'"),
        (["simulate", "--seed", "-1"], "Invalid value for '--seed'"),
        (["simulate", "--estimate", "--levels", "1000000"], "expected levels of at most 16384"),
        (["simulate", "--estimate", "--version", "latest"], "expected 0.3.6 to 0.5.23 for sglang, found 'latest'"),
        (["simulate", "--estimate", "--levels", "1,x"], "expected list[int]"),
        (["simulate", "--estimate", "--server", '{{"lawn": 1}}'], "no field 'lawn'"),
        (["simulate", "--estimate", "--truth", "x.json"], "--truth and --sources belong to a log"),
        (["report", "nosuch"], "expected a run folder"),
    ],
)
def test_usage_errors_are_one_line_and_exit_3(table, capsys, words, message):
    code, out, err = call(capsys, *(word.format(table=table) for word in words))
    assert (code, out) == (3, "")
    assert message in err and err.startswith("error: ") and err.count("\n") == 1


def test_traceback_only_with_debug(tmp_path, capsys):
    assert "Traceback" not in call(capsys, "fit", tmp_path / "x.log")[2]
    code, _, err = call(capsys, "fit", tmp_path / "x.log", "--debug")
    assert code == 3 and "Traceback" in err


def test_a_fault_of_ours_is_said_to_be_ours(table, capsys, monkeypatch):
    monkeypatch.setattr(scorecard, "exit_code", lambda card: 1 / 0)
    code, _, err = call(capsys, "fit", table)
    assert code == 3 and "a fault of rooflog" in err and err.count("\n") == 1


def test_help_and_version(capsys):
    for words in ([], ["--help"], ["-h"]):
        code, out, _ = call(capsys, *words)
        assert code == 0 and "Exit codes" in out and "simulate" in out
    assert call(capsys, "--version") == (0, f"rooflog {__version__}\n", "")
    for command in ("run", "ingest", "fit", "simulate", "report"):
        assert "Example" in call(capsys, command, "--help")[1]


def test_fit_of_a_table(table, capsys):
    code, out, err = call(capsys, "fit", table, "--json")
    card = json.loads(out)
    assert (code, err) == (0, "") and out.startswith('{\n "schema_version"')
    # relative weights, closed form: levels 1/12.2, 16/29, 64/32.85 s
    x, y = np.array([1.0, 16, 64]), np.array([1 / 12.2, 16 / 29, 64 / 32.85])
    design = np.column_stack([1 / y, x / y])
    intercept, slope = np.linalg.lstsq(design, np.ones(3), rcond=None)[0]
    assert card["fit"]["intercept_s"] == pytest.approx(intercept, rel=1e-9)
    assert card["fit"]["slope_s_per_req"] == pytest.approx(slope, rel=1e-9)
    assert card["fit"]["asymptote_tok_per_s"] == pytest.approx(1 / slope, rel=1e-9)
    assert len(card["run"]["log_sha256"][0]) == 64 and card["ingest"]["lines_total"] is None
    assert card["run"]["command"] == f"rooflog fit {table} --json"
    _, words, _ = call(capsys, "fit", table)
    assert words.startswith("Measured: 3 levels") and "Law: step time = 51.9 ms" in words
    assert "Levels" in words and "step [ms]" in words


def test_fit_of_one_level_reports_it_and_refuses_the_law(tmp_path, capsys):
    (tmp_path / "one.csv").write_text("running_req,decode_tok_per_s\n16,29.0\n")
    code, out, err = call(capsys, "fit", tmp_path / "one.csv", "--json")
    card = json.loads(out)
    assert (code, err) == (2, "")
    assert card["fit"]["refused"] and card["fit"]["slope_s_per_req"] is None
    assert card["levels"][0]["step_s"] == pytest.approx(16 / 29)
    code, out, _ = call(capsys, "fit", tmp_path / "one.csv")
    assert code == 2 and "Step time at N=16: 552 ms" in out and "No law of step time is claimed" in out


def test_fit_of_a_simulated_log_finds_its_truth(sweep, capsys):
    file, truth = sweep
    code, out, err = call(capsys, "fit", file, "--json")
    card = json.loads(out)
    assert code in (0, 2) and err == ""
    known = {row["running_req"]: row["step_s"] for row in truth["levels"]}
    found = {level["running_req"]: level["step_s"] for level in card["levels"] if level["is_fitted"]}
    assert set(found) == {1.0, 4.0, 16.0}
    for running_req, step_s in found.items():
        assert step_s == pytest.approx(known[running_req], rel=0.03)  # rates are printed with two decimals
    assert card["run"]["engine"] == "sglang" and card["run"]["parallel"]["tp"] == 2
    assert sum(card["ingest"]["lines"].values()) == card["ingest"]["lines_total"] == len(file.read_text().splitlines())
    assert card["phases"]["n_clean"] == sum(level["n_clean"] for level in card["levels"])
    assert card["client"]["source"] == "log" and card["client"]["running_req"] == 16
    assert all(item["pass"] for item in card["checks"])


def test_context_gives_a_roofline_or_says_why_not(sweep):
    file, _ = sweep
    facts = {"hardware": "H100 SXM 80GB", "weight_bytes_per_step": 16e9, "kv_bytes_per_tok": 131072.0, "tp": 4}
    found = analyse(file, context=facts)
    # weights alone, over 4 ranks of 3.35 TB/s: 16e9 / 4 / 3.35e12 = 1.19 ms; context adds to it
    strict = found.scorecard["roofline"]["strict"]["step_s"]["1"]
    assert 0.00119 < strict < 0.00125
    assert found.scorecard["roofline"]["ratio"]["1"] == pytest.approx(
        found.scorecard["levels"][0]["step_s"] / found.scorecard["roofline"]["target"]["step_s"]["1"])
    assert "tp: the log says 2, --context says 4; 4 is used" in found.scorecard["run"]["notes"]
    assert "x the target" in found.answer
    unknown = analyse(file, context={**facts, "hardware": "h100"}).scorecard["roofline"]
    assert unknown["strict"] is None and "H100" in unknown["refused"]
    partial = analyse(file, context={"hardware": "H100 SXM 80GB"}).scorecard["roofline"]
    assert "synthetic-dense" in partial["refused"] and "weight_bytes_per_step" in partial["refused"]
    impossible = analyse(file, context={**facts, "weight_bytes_per_step": 16e12}).scorecard
    assert impossible["checks"][1]["pass"] is False and scorecard.exit_code(impossible) == 1


def test_two_lives_share_a_law_only_with_the_same_arguments(sweep, tmp_path):
    file, _ = sweep
    both = tmp_path / "both.log"
    both.write_text(file.read_text() + file.read_text())
    same = analyse(both)
    assert same.levels.loc[same.levels["is_fitted"], "server_life"].nunique() == 2
    assert same.fits.linear.n_levels == 3 and "2 of 2 server lives, those with the same arguments" in same.answer
    changed = file.read_text().replace("'chunked_prefill_size': 8192", "'chunked_prefill_size': 4096")
    assert changed != file.read_text()
    both.write_text(file.read_text() + changed)
    found = analyse(both)
    assert len(found.log.facts) == 2 and found.scorecard["run"]["n_server_lives"] == 2
    fitted = found.levels[found.levels["is_fitted"]]
    assert fitted["server_life"].nunique() == 1 and found.fits.linear.n_levels == 3
    is_other = found.levels["server_life"].ne(fitted["server_life"].iloc[0])
    others = found.levels[is_other & found.levels["n_clean"].gt(1)]
    assert len(others) and others["note"].str.contains("another server life").all()
    assert f"server life {fitted['server_life'].iloc[0]}" in found.answer


def test_user_client_average_is_held_against_the_steady_rate(sweep):
    file, _ = sweep
    client = analyse(file, context={"client_output_tok_per_s": 100.0, "client_concurrency": 4}).scorecard["client"]
    assert client["source"] == "user" and client["running_req"] == 4
    assert client["steady_over_client"] == pytest.approx(client["steady_tok_per_s"] / 100.0)


def test_several_inputs_with_a_table_among_them_are_refused(sweep, table, capsys):
    code, _, err = call(capsys, "fit", sweep[0], table)
    assert code == 3 and "found a table" in err


def test_ingest_accounts_and_writes_whole_files(sweep, tmp_path, capsys):
    file, _ = sweep
    code, out, err = call(capsys, "ingest", file, "--json", "--out", tmp_path / "samples.parquet")
    told = json.loads(out)
    assert (code, err) == (0, "")
    assert sum(told["lines"].values()) == told["lines_total"]
    samples = pd.read_parquet(tmp_path / "samples.parquet")
    assert len(samples) == sum(told["by_kind"].values())
    assert told["events"]["ready"] == 1 and told["lives"][0]["n_samples"] == len(samples)
    code, out, _ = call(capsys, "ingest", file, "--out", tmp_path / "samples.csv")
    assert code == 0 and f"{told['lines_total']} lines = " in out and "server life 0" in out
    assert len(pd.read_csv(tmp_path / "samples.csv")) == len(samples)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["samples.csv", "samples.parquet"]
    code, out, err = call(capsys, "ingest", file, "--out", tmp_path / "samples.csv" / "x.csv")
    assert (code, out) == (3, "") and "expected a file that can be written" in err


def test_malformed_lines_are_shown_harmless_with_their_number(sweep, tmp_path, capsys):
    broken = tmp_path / "broken.log"
    lines = sweep[0].read_text().splitlines()
    row = next(i for i, line in enumerate(lines) if "Decode batch" in line)
    lines[row] = lines[row].replace("gen throughput (token/s): ", "gen throughput (token/s): \x1b]0;x\x07?")
    broken.write_text("\n".join(lines) + "\n")
    code, out, _ = call(capsys, "ingest", broken)
    assert code == 0 and "1 malformed" in out
    assert f"malformed: {broken}:{row + 1}: " in out and "\x1b" not in out


def test_simulate_writes_the_same_bytes_and_the_truth(tmp_path, capsys):
    words = ["simulate", "dense_sweep", "--levels", "1,4", "--seed", "7", "--version", "0.5.4"]
    code, out, err = call(capsys, *words, "--out", tmp_path / "a.log", "--truth", tmp_path / "a.json", "--json")
    assert (code, err) == (0, "") and json.loads(out)["n_lines"] == len((tmp_path / "a.log").read_text().splitlines())
    assert {row["running_req"] for row in json.loads((tmp_path / "a.json").read_text())["levels"]} >= {1, 4}
    assert call(capsys, *words, "--out", tmp_path / "b.log")[0] == 0
    assert (tmp_path / "a.log").read_bytes() == (tmp_path / "b.log").read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.json", "a.log", "b.log"]


def test_estimate_says_how_long_and_writes_nothing(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    server = json.dumps({"law": LAW, "startup_s": 30.0})
    code, out, err = call(capsys, "simulate", "--estimate", "--levels", "1,4", "--server", server, "--json")
    told = json.loads(out)
    assert (code, err) == (0, "") and list(tmp_path.iterdir()) == []
    assert [level["running_req"] for level in told["levels"]] == [1, 4]
    assert told["levels"][1]["step_s"] == pytest.approx(0.024)  # 20 + 4 x 1 ms
    assert told["total_s"] > sum(level["duration_s"] for level in told["levels"])
    code, out, _ = call(capsys, "simulate", "--estimate", "--levels", "1,4", "--server", server)
    assert code == 0 and "step [ms]" in out and "In all: " in out


def test_the_presets_are_listed_with_what_they_are_in_words_and_as_json(capsys):
    known = [(name, synth.presets.get(name).about) for name in synth.presets.names()]
    assert len(known) > 3 and all(about for _, about in known)
    code, out, err = call(capsys, "simulate", "--list")
    assert (code, err, out.splitlines()) == (0, "", [f"{name}: {about}" for name, about in known])
    code, out, err = call(capsys, "simulate", "--list", "--json")
    assert (code, err) == (0, "")
    assert json.loads(out) == {"presets": [{"name": name, "about": about} for name, about in known]}


@pytest.mark.parametrize("is_terminal", [True, False])
def test_progress_is_shown_after_a_while_and_on_standard_error_only(monkeypatch, capsys, is_terminal):
    with progress.Progress("reading x.log"):
        pass
    assert capsys.readouterr() == ("", "")  # done before anybody wonders
    monkeypatch.setattr(progress, "QUIET_S", 0.0)
    monkeypatch.setattr(progress, "REFRESH_S", 0.01)
    monkeypatch.setattr(progress, "REPEAT_S", 0.01)
    monkeypatch.setattr(progress.sys.stderr, "isatty", lambda: is_terminal)
    said = threading.Event()
    with progress.Progress("reading x.log") as say:
        say("40 % read")
        said.wait(0.2)
    shown = capsys.readouterr()
    assert shown.out == "" and "reading x.log: 40 % read (0 s)" in shown.err


@pytest.fixture
def patient(monkeypatch):
    """No progress lines, however slow the machine."""
    monkeypatch.setattr(progress, "QUIET_S", 600.0)


@pytest.fixture
def notebook(tmp_path, patient):
    """A notebook that does what 00 does, in three cells."""
    parameters = "\n".join([
        'log_path: str = ""  # log [path]; empty: none', 'context: str = ""  # facts [key]; empty: none',
        'out_dir: str = ""  # where to write; empty: nowhere [path]', "confidence: float = 0.95  # of intervals [1]",
    ])
    body = ("from helpers import scorecard\nfrom helpers.analysis import analyse\n"
            "found = analyse(log_path, context=context, confidence=confidence)\nprint(found.answer)")
    cells = [nbformat.v4.new_markdown_cell("# 91 · What?"), nbformat.v4.new_code_cell(parameters),
             nbformat.v4.new_code_cell(body),
             nbformat.v4.new_code_cell("scorecard.write(found.scorecard, out_dir)")]
    cells[1].metadata.tags = ["parameters"]
    path = tmp_path / "nb" / "91_what.ipynb"
    path.parent.mkdir()
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": KERNELSPEC}), path)
    return path


@pytest.mark.notebook
def test_run_prints_the_scorecard_and_leaves_the_folder(notebook, table, tmp_path, capfd):
    out_dir = tmp_path / "out"
    code = cli.main(["run", str(table), "--notebook", str(notebook), "-p", "confidence", "0.9", "--out", str(out_dir),
                     "--context", '{"engine": "vllm"}', "--json"])
    shown = capfd.readouterr()
    card = json.loads(shown.out)
    assert (code, shown.err) == (0, "")
    folder, = out_dir.iterdir()
    assert card == scorecard.read(folder)
    assert card["fit"]["selected"]["confidence"] == 0.9 and card["run"]["engine"] == "vllm"
    assert card["run"]["command"].startswith(f"rooflog run {table} --notebook")
    (folder / "report.html").unlink()
    assert cli.main(["report", str(folder)]) == 0
    assert "Law: step time = 51.9 ms" in (folder / "report.html").read_text()


@pytest.mark.notebook
def test_run_of_a_bad_table_is_one_line_and_nothing_written(notebook, tmp_path, capfd):
    bad = tmp_path / "bad.csv"
    bad.write_text("running_req,decode_tok_per_s\n1,fast\n")
    code = cli.main(["run", str(bad), "--notebook", str(notebook), "--out", str(tmp_path / "out")])
    shown = capfd.readouterr()
    assert (code, shown.out) == (3, "") and not (tmp_path / "out").exists()
    assert shown.err.startswith(f"error: {bad}") and "fast" in shown.err and shown.err.count("\n") == 1


def test_another_engine_takes_a_version_of_its_own(tmp_path, capsys):
    code, _, err = call(capsys, "simulate", "--engine", "vllm", "--levels", "1", "--out", tmp_path / "v.log")
    assert (code, err) == (0, "") and "v0.33.0" in (tmp_path / "v.log").read_text()


@pytest.mark.parametrize("command", ["run", "fit", "ingest", "simulate", "report"])
def test_an_interrupt_is_one_line_and_exit_130(table, tmp_path, capsys, monkeypatch, command):
    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    for place in ("helpers.analysis.analyse", "helpers.ingest.read_log", "helpers.synth.presets.get",
                  "helpers.report.write_report", "helpers.run.execute.run_cells"):
        monkeypatch.setattr(place, interrupted)
    words = [table] if command != "simulate" else []
    words += ["--out", tmp_path / "out"] if command == "run" else []
    assert call(capsys, command, *words) == (130, "", "interrupted: nothing was kept\n")
    assert not (tmp_path / "out").exists()


def test_an_interrupt_while_the_libraries_load_is_one_line_too():
    script = """
import sys
class Interrupts:
    def find_spec(self, name, *_):
        if name == "typer":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupts())
from helpers.cli import main
sys.exit(main(["ingest", "-"]))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted: nothing was kept\n")


@pytest.mark.parametrize("words", ["fit {table}", "fit {table} --json", "--help", "simulate --list"])
def test_a_reader_that_leaves_is_no_error(table, words):
    command = [sys.executable, "-m", "helpers.cli", *(word.format(table=table) for word in words.split())]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        err = process.stderr.read()
    assert (process.returncode, err) == (141, b"")


def test_help_of_run_says_what_is_kept(capsys):
    shown = " ".join(call(capsys, "run", "--help")[1].split())
    assert "cannot be used writes nothing" in shown and "fails otherwise is kept" in shown


def test_stamps_without_year_or_date_are_shown_so(tmp_path, capsys):
    simulation = synth.presets.get("vllm_sweep", levels_req=[1], start="2026-11-29 14:11:51").simulate()
    simulation.write(tmp_path / "v.log")
    code, out, _ = call(capsys, "ingest", tmp_path / "v.log")
    life = next(line for line in out.splitlines() if line.startswith("server life 0"))
    assert code == 0 and " events, 11-29 14:11:5" in life and "1904" not in out
    assert printing.show_stamp("1904-01-01 04:40:55") == "04:40:55"
    assert printing.show_stamp("2026-01-01 04:40:55") == "2026-01-01 04:40:55"


def test_simulate_writes_the_other_sources_into_an_existing_folder(tmp_path, capsys):
    words = ["simulate", "dense_sweep", "--levels", "1,2", "--out", str(tmp_path / "a.log"), "--sources"]
    assert cli.main([*words, str(tmp_path)]) == 0
    assert {"a.log", "metrics.txt", "loads.jsonl"} <= {path.name for path in tmp_path.iterdir()}
    capsys.readouterr()
    assert cli.main([*words, str(tmp_path / "none")]) == 3
    assert "expected an existing folder" in capsys.readouterr().err
