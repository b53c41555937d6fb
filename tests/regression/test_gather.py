"""Which runs an input stands for, and whose numbers are used: of the logs where these are at hand, else the stored.

Would catch: a stored number that is believed while its log says another, a log that has changed since, numbers of
another version, server lives with other arguments taken for repeats, a run counted under two names as two.
"""

from __future__ import annotations

from hashlib import sha256

import pytest
from sides import write_log, write_run

from helpers import regression, report
from helpers.analysis import analyse
from helpers.regression import inputs
from helpers.schema import METHOD_VERSION, LogFormatError


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    return write_log(tmp_path_factory.mktemp("logs") / "server.log", seed=3)


@pytest.fixture(scope="module")
def steps(log):
    """Level -> step time as the analysis of the log has it."""
    levels = analyse(log).levels
    return dict(zip(levels["running_req"], levels["step_s"], strict=True))


def step_s(side):
    (repeat,) = side.repeats
    return dict(repeat.run.step_s)


def test_a_log_is_one_run_with_its_hash_and_settings(log, steps):
    side = regression.gather_side(log)
    (repeat,) = side.repeats
    digest = sha256(log.read_bytes()).hexdigest()
    assert step_s(side) == pytest.approx(steps)
    assert (repeat.kind, repeat.how, repeat.server_life, repeat.log_sha256) == ("log", "read", "0", (digest,))
    assert repeat.run.content == f"{digest}:0"
    assert side.facts["model"] == "synthetic-dense" and "host" not in side.facts["args"] and side.notes == ()
    assert repeat.phases["steady_s"] > 0


def test_the_log_wins_over_the_stored_numbers_and_the_record_over_nothing(log, steps, tmp_path):
    folder = write_run(tmp_path / "run", log, step_factor=2.0, hardware="h200", min_clean=3)
    side = regression.gather_side(folder)
    assert step_s(side) == pytest.approx(steps), "not twice that, as is stored"
    assert side.repeats[0].how == "recomputed" and side.facts["hardware"] == "h200", "told to the run, not to us"
    assert "analysed with min_clean = 3" in side.notes[0]
    told = regression.gather_side(folder / "scorecard.json", context={"hardware": "h100-sxm"})
    assert told.facts["hardware"] == "h100-sxm" and told.repeats[0].how == "recomputed"
    strict = regression.gather_side(write_run(tmp_path / "strict", log, min_clean=1000))
    assert strict.repeats == () and "no level is fitted" in strict.notes[-1], "read as the run read it"
    assert side.repeats[0].run.content == regression.gather_side(log).repeats[0].run.content, "one run, two names"


def test_stored_numbers_are_used_and_said_where_the_log_is_gone_or_another(log, steps, tmp_path):
    copy = tmp_path / "logs" / "server.log"
    copy.parent.mkdir()
    copy.write_bytes(log.read_bytes())
    folder = write_run(tmp_path / "elsewhere" / "run", copy, step_factor=2.0)
    asked = regression.gather_side(folder, recompute=False)
    with open(copy, "a", encoding="utf-8") as file:
        file.write("one line more\n")
    changed = regression.gather_side(folder)
    copy.unlink()
    gone = regression.gather_side(folder)
    (folder / "run.json").unlink()
    alone = regression.gather_side(folder)
    for side, why in ((asked, "it was asked for"), (changed, f"its log {copy} is not at hand as it was"),
                      (gone, f"its log {copy} is not at hand as it was"), (alone, "its logs are not at hand")):
        assert side.repeats[0].how == "stored" and step_s(side) == pytest.approx({n: 2 * s for n, s in steps.items()})
        assert side.notes == (f"{folder}: the stored numbers are used, as {why}",)
    (folder / "server.log").write_bytes(log.read_bytes())
    write_run(tmp_path / "again", log)
    record = (tmp_path / "again" / "run.json").read_text()
    (folder / "run.json").write_text(record.replace(str(log), "/gone/server.log"))
    assert regression.gather_side(folder).repeats[0].how == "recomputed", "the log moved along with the folder"


def test_stored_numbers_of_another_version_are_refused_but_not_needed(log, tmp_path):
    copy = tmp_path / "server.log"
    copy.write_bytes(log.read_bytes())
    folder = write_run(tmp_path / "deep" / "runs" / "run", copy, versions={"method_version": METHOD_VERSION - 1})
    assert regression.gather_side(folder).repeats[0].how == "recomputed"
    copy.unlink()
    with pytest.raises(LogFormatError, match=rf"method_version {METHOD_VERSION}, found 1 and {METHOD_VERSION - 1}, and "
                                             ".*not at hand.*run its logs again"):
        regression.gather_side(folder)
    with pytest.raises(LogFormatError, match="method_version"):
        regression.gather_side(folder / "scorecard.json")


def test_a_folder_of_runs_is_as_many_repeats(log, tmp_path):
    other = write_log(tmp_path / "b.log", seed=4)
    write_run(tmp_path / "runs" / "a" / "1", log)
    write_run(tmp_path / "runs" / "b", other)
    write_run(tmp_path / "runs" / ".partial-x", other)
    compared = tmp_path / "runs" / "c"
    compared.mkdir()
    (compared / "comparison.json").write_text('{"kind": "comparison"}')
    side = regression.gather_side(tmp_path / "runs")
    assert [repeat.path for repeat in side.repeats] == [str(tmp_path / "runs" / name) for name in ("a/1", "b")]
    assert side.notes == (f"{compared}: the folder of a comparison, left out",)
    assert len(regression.gather_side(str(tmp_path / "runs" / "[ab]*")).repeats) == 1, "only b is itself a run"
    for path in (compared, compared / "comparison.json"):
        with pytest.raises(LogFormatError, match="comparison; name what it compared"):
            regression.gather_side(path)


def test_lives_are_repeats_only_with_the_same_arguments(tmp_path):
    path = write_log(tmp_path / "lives.log", levels=(1, 4, 16, 1, 4, 16), restart_before=[3])
    two = regression.gather_side(path)
    assert [repeat.server_life for repeat in two.repeats] == ["0", "1"] and two.notes == ()
    assert [sorted(repeat.run.step_s) for repeat in two.repeats] == [[1.0, 4.0, 16.0]] * 2
    assert two.repeats[0].run.content != two.repeats[1].run.content
    text = path.read_text()
    assert text.count("'schedule_policy': 'fcfs'") + text.count("schedule_policy='fcfs'") == 2
    second = text.rindex("fcfs")
    path.write_text(text[:second] + "lpm" + text[second + 4 :])
    one = regression.gather_side(path)
    assert len(one.repeats) == 1
    assert len(one.notes) == 1 and one.notes[0].endswith("was started with other arguments and is not compared")


def test_a_sweep_that_restarts_between_its_levels_is_one_run(tmp_path):
    path = write_log(tmp_path / "sweep.log", levels=(1, 4, 16, 64), restart_before=[1, 2, 3])
    (repeat,) = regression.gather_side(path).repeats
    assert sorted(repeat.run.step_s) == [1.0, 4.0, 16.0, 64.0] and repeat.server_life == "0+1+2+3"


def test_a_typed_table_is_a_run(tmp_path):
    table = tmp_path / "rates.csv"
    table.write_text("running_req,decode_tok_per_s\n1,40\n4,150\n16,400\n")
    (repeat,) = regression.gather_side([table]).repeats
    assert dict(repeat.run.step_s) == pytest.approx({1.0: 1 / 40, 4.0: 4 / 150, 16.0: 16 / 400})
    assert repeat.kind == "table" and repeat.server_life is None


def test_a_log_without_a_fitted_level_is_said_and_keeps_its_settings(log, tmp_path):
    short = tmp_path / "short.log"
    lines = log.read_text().splitlines(keepends=True)
    first = next(i for i, line in enumerate(lines) if "Decode batch" in line)
    short.write_text("".join(lines[: first + 1]))
    side = regression.gather_side([short, log])
    assert len(side.repeats) == 1 and side.notes[0].startswith(f"{short} is not compared: ")


@pytest.mark.parametrize("text", ["", "[1]", '{"schema_version": 1, "method_version": 1}'])
def test_a_damaged_run_is_an_error_in_one_line(tmp_path, text):
    for name in ("run.json", "scorecard.json"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / name).write_text(text)
        with pytest.raises(LogFormatError, match=r"run it again|run its logs again"):
            regression.gather_side(folder)


def test_nothing_and_nonsense_are_errors(tmp_path):
    (tmp_path / "a.log").write_text("hello\n")
    for given in ([], [tmp_path / "none.log"], [tmp_path / "a.log"]):
        with pytest.raises(LogFormatError):
            regression.gather_side(given)


def test_one_name_for_the_file_of_a_comparison():
    """The report lies below the comparison and cannot take its constant."""
    assert inputs.COMPARISON_FILE in report.CARD_FILES


def test_facts_that_say_nothing_are_named(log):
    notes = regression.gather_side(log, context={"hardwear": "h100"}).notes
    assert [note for note in notes if "hardwear" in note], notes
