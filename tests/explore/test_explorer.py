"""The explorer without a browser: values are set as a person sets them, and numbers are those of a headless run.

Would catch: a control that changes nothing, a bad value that takes the last figure away, an exported command that gives
other numbers, text of a log that becomes markup.
"""

import gzip
import json
import shlex

import pytest

from helpers import cli, explore, ingest, measure
from helpers.explore import dashboard
from helpers.explore.command import DEFAULTS
from helpers.explore.controls import BY_THE_LEVELS, LAWS
from helpers.explore.log_lines import lines_html
from helpers.parameters import read_parameters
from helpers.schema import LogFormatError, RooflogError

CASE = {"model_config": "DeepSeek-V4-Flash-NVFP4", "hardware": "rtx pro 6000 blackwell server"}


@pytest.fixture(scope="module")
def case(data):
    return str(data / "samples" / "sim-field-case-a" / "server.log")


@pytest.fixture(scope="module")
def shared_explorer(case):
    return explore.Explorer(ingest.read_log(case), CASE, choice=measure.Choice(), confidence=0.95,
                            command=explore.command([case], context=CASE))


@pytest.fixture
def explorer(shared_explorer):
    """The explorer where it starts: one is enough, everything it shows follows from its controls."""
    shared_explorer._brush.value = shared_explorer._brush.options[0]
    moved = {name: first_value(name) for name, control in shared_explorer.controls.items()
             if control.value != first_value(name)}
    if moved or shared_explorer.said.value:
        shared_explorer.set(**moved)
    return shared_explorer


def first_value(name):
    if name in DEFAULTS:
        return DEFAULTS[name]
    if name in ("ignored_rules", "running_req"):
        return ()
    if name in ("tp", "accept_len", "context_tok"):
        return 0
    return "" if name.endswith("spans") else BY_THE_LEVELS if name == "law" else explore.AS_MEASURED


@pytest.fixture(scope="module")
def notebook_09(root):
    cells = json.loads((root / "notebooks" / "09_explore.ipynb").read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def repeated(line, folder, cells):
    """Execute the cells of notebook 09 in this process with the parameters of a command; return its scorecard."""
    words = shlex.split(line)
    assert words[:2] == ["rooflog", "run"] and words[3:5] == ["--notebook", "09"]
    declared = read_parameters(cells[0], "09")
    given = {"log_path": words[2], "out_dir": str(folder)}
    rest = words[5:]
    while rest:
        option, value = rest.pop(0), rest.pop(0)
        name, value = (value, rest.pop(0)) if option == "-p" else ("context", value)
        kind = declared[name].type
        given[name] = value if kind == "str" else json.loads(value)
    space = {"display": lambda *shown: None}
    exec(cells[0], space)
    space.update(given)
    for text in cells[1:]:
        exec(text, space)
    return json.loads((folder / "scorecard.json").read_text(encoding="utf-8"))


def assert_same(found, card):
    """Every number of law, levels and change, exactly."""
    law = found.measured.fitted.fits.selected
    assert card["fit"]["selected"]["law"] == law.law
    for parameter in law.parameters:
        entry = card["fit"]["selected"]["parameters"][parameter.name]
        assert [entry[end] for end in ("value", "lo", "hi")] == [parameter.value, parameter.lo, parameter.hi]
    steps = {row["running_req"]: row["step_s"] for row in card["levels"] if row["is_fitted"]}
    levels = found.measured.levels[found.measured.levels["is_fitted"]]
    assert steps == dict(zip(levels["running_req"], levels["step_s"], strict=True)) and steps
    assert card["phases"]["n_clean"] == found.measured.intervals["clean"].sum()
    if found.lever is not None:
        assert [card["levers"][0][end] for end in ("tok_per_s", "lo", "hi")] == [
            found.lever.tok_per_s, found.lever.lo, found.lever.hi]


def test_it_starts_with_the_numbers_of_the_notebook(explorer, case):
    assert explorer.line == shlex.join(["rooflog", "run", case, "--notebook", "09", "--context", json.dumps(CASE)])
    assert "52.1 ms [42.5, 61.8]" in explorer.numbers.value and "<b>" not in explorer.numbers.value
    assert [trace.name for trace in explorer.timeline.data if trace.yaxis == "y"][0] == "steady"
    assert explorer.said.value == ""


def test_every_control_is_labelled_with_a_unit_or_names_what_it_chooses(explorer):
    named = {"ignored_rules", "law"}
    assert len(explorer.controls) == 16
    for name, control in explorer.controls.items():
        assert control.description and (name in named or "[" in control.description), name


@pytest.mark.parametrize(
    ("choice", "moved"),
    [
        ({"running_req": ("1", "16", "32")}, "<b>1, 16, 32</b>"),
        ({"law": "constant", "confidence": 0.5}, "<b>constant</b>"),
        ({"ignored_rules": ("prefill inside",), "without_spans": "300..620"}, "<b>1, 32, 64</b>"),
        ({"only_spans": "0..820"}, "<b>1, 16, 64</b>"),
        ({"min_steps": 250}, "<b>1, 16</b>"),
        ({"prefill_slack_s": 0.0}, " of 83</b>"),
    ],
)  # fmt: skip
def test_a_choice_moves_the_numbers_and_its_parameters_repeat_them(explorer, choice, moved, tmp_path, notebook_09):
    before = explorer.numbers.value
    explorer.set(**choice)
    assert explorer.said.value == "" and explorer.numbers.value != before and moved in explorer.numbers.value
    assert_same(explorer.found, repeated(explorer.line, tmp_path, notebook_09))


@pytest.mark.notebook
def test_the_exported_command_as_it_is_typed_gives_the_same_numbers(explorer, tmp_path, capsys):
    """All kinds of choices at once, through the command line, a kernel and the scorecard that it writes."""
    explorer.set(ignored_rules=("prefill inside", "idle time inside"), without_spans="0.1..210.3333333333333",
                 stall_factor=3.0, prefill_slack_s=0.1, min_clean=3, min_steps=60, running_req=("1", "16", "64"),
                 confidence=0.9, weights="fp8", tp=8, context_tok=4096.5)
    assert explorer.said.value == "" and explorer.found.lever is not None
    words = shlex.split(explorer.line)
    assert cli.main([*words[1:], "--out", str(tmp_path)]) == 0, capsys.readouterr().err
    (card,) = tmp_path.glob("*/scorecard.json")
    assert_same(explorer.found, json.loads(card.read_text(encoding="utf-8")))


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("without_spans", "5", "without_spans: expected start..end in seconds"),
        ("only_spans", "9000..9001", "only_spans, without_spans: expected some of the 83 intervals to be left"),
        ("stall_factor", -1.0, "stall_factor: expected a number from 1"),
        ("confidence", 1.5, "confidence: expected a share between 0 and 1, found 1.5"),
        ("context_tok", -5.0, "what_if: context_tok: expected a number above 0"),
        ("accept_len", 3.0, "what_if: "),
        ("weights", "bf16", "what_if: DeepSeek"),
    ],
)  # fmt: skip
def test_a_bad_value_is_one_line_and_the_last_good_state_stays(explorer, name, value, said):
    found, figure, line = explorer.found, explorer.timeline.data[0].x, explorer.line
    before, explorer.controls[name].value = first_value(name), value
    assert said in explorer.said.value and "\n" not in explorer.said.value
    assert explorer.found is found and explorer.line == line and explorer.timeline.data[0].x is figure
    explorer.controls[name].value = before
    assert explorer.said.value == ""


def test_a_choice_that_cannot_be_drawn_leaves_numbers_and_figures_as_they_are(explorer, monkeypatch):
    def refuse(*given):
        raise RooflogError("no line to draw")

    found, law, numbers = explorer.found, explorer._law.outputs, explorer.numbers.value
    monkeypatch.setattr(dashboard, "bounds_figure", refuse)
    explorer.set(running_req=("1", "16", "32"))
    assert "no line to draw" in explorer.said.value
    assert (explorer.found, explorer._law.outputs, explorer.numbers.value) == (found, law, numbers)


def test_brushing_adds_spans_and_the_buttons_say_what_for(explorer):
    explorer.timeline.plotly_relayout({"selections": [{"x0": 620.00004, "x1": 300.0}]}, source_view_id="a")
    assert explorer.controls["without_spans"].value == "300.0..620.0"
    assert "<b>1, 32, 64</b>" in explorer.numbers.value
    explorer.brush(0.0, 10.0)
    assert explorer.controls["without_spans"].value == "300.0..620.0, 0.0..10.0"
    explorer.forget_spans()
    explorer._brush.value = explorer._brush.options[1]
    explorer.brush(0.0, 820.0)
    assert (explorer.controls["without_spans"].value, explorer.controls["only_spans"].value) == ("", "0.0..820.0")
    assert "<b>1, 16, 64</b>" in explorer.numbers.value and explorer.said.value == ""
    hollow = next(t for t in explorer.timeline.data if t.name == "steady (not clean)" and t.yaxis == "y")
    assert min(hollow.x) > 820.0


def test_a_click_shows_the_lines_of_that_point(explorer):
    row = explorer.found.measured.intervals.query("clean").iloc[20]
    trace = next(t for t in explorer.timeline.data if t.yaxis == "y" and row["t_s"] in list(t.x))
    index = list(trace.x).index(row["t_s"])
    explorer.timeline._js2py_pointsCallback = {
        "event_type": "plotly_click", "selector": None, "device_state": None,
        "points": {"trace_indexes": [list(explorer.timeline.data).index(trace)], "point_indexes": [index],
                   "xs": [row["t_s"]], "ys": [1.0]}}
    shown = explorer._lines.value
    assert f"line {row['line_no']}</div>" in shown and f"{row['decode_tok_per_s']:.2f}" in shown.split("<b ")[1]


def test_log_lines_are_those_of_the_file_and_are_escaped(tmp_path):
    lines = [f"line {n} of all" for n in range(1, 21)]
    lines[9] = "<script>alert(1)</script> & more"
    packed = tmp_path / "a.log.gz"
    packed.write_bytes(gzip.compress(("\r\n".join(lines) + "\r\n").encode()))
    assert explore.log_lines(str(packed), 20, around=2) == [(n, lines[n - 1]) for n in (18, 19, 20)]
    shown = lines_html(str(packed), 10)
    assert "&lt;script&gt;alert(1)&lt;/script&gt; &amp; more" in shown and "<script" not in shown
    for path, line_no, named in ((str(packed), 99, "found fewer"), ("-", 1, "standard input"),
                                 (str(tmp_path / "gone.log"), 1, "no such file")):
        with pytest.raises(LogFormatError, match=named):
            explore.log_lines(path, line_no)


def test_a_log_without_a_roofline_has_its_what_if_turned_off(data):
    log = str(data / "samples" / "sglang-sweep" / "server.log")
    explorer = explore.Explorer(ingest.read_log(log), {}, choice=measure.Choice(), confidence=0.95,
                                command=explore.command([log]))
    assert explorer.controls["weights"].disabled and not explorer.controls["law"].disabled
    explorer.controls["running_req"].value = explorer.controls["running_req"].options[:4]
    assert explorer.said.value == "" and explorer._bounds.outputs == ()


def test_defaults_and_names_are_those_of_the_notebook(notebook_09):
    declared = read_parameters(notebook_09[0], "09")
    assert {name: declared[name].default for name in DEFAULTS} == DEFAULTS
    assert {"linear", "constant", "moe", "roofline"} <= set(LAWS)


@pytest.mark.parametrize(
    ("text", "named"),
    [("[1]", "object"), ('{"tp": 1.5}', "tp: expected a whole number"), ('{"colour": 1}', "expected any of weights"),
     ('{"hardware": "abacus"}', "abacus"), ('{"weights": 3}', "weights: expected a name"), ("{", "not JSON")],
)  # fmt: skip
def test_a_change_that_cannot_be_read_is_named(text, named):
    with pytest.raises(RooflogError, match=named):
        explore.read_change(text)


def test_a_change_reads_back_as_it_was_written():
    text = explore.write_change(weights="fp8", hardware="H200 SXM 141GB", tp=8, accept_len=0.0, context_tok=512.5)
    change = explore.read_change(text)
    assert (change.weights, change.hardware.name, change.tp, change.accept_len, change.context_tok) == (
        "fp8", "H200 SXM 141GB", 8, None, 512.5)
    assert explore.read_change(explore.write_change(weights=explore.AS_MEASURED)) is None


def test_a_command_is_one_line_for_a_shell_with_absolute_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = explore.command(["a b.log", "s3://bucket/c.log"], context={"model": "it's"}, min_clean=2, min_steps=7)
    assert shlex.split(made.line("09", law="", running_req=[1.0, 0.1 + 0.2], confidence=0.95,
                                 stall_factor=0.1 + 0.2)) == [
        "rooflog", "run", str(tmp_path / "a b.log"), "s3://bucket/c.log", "--notebook", "09", "-p", "min_steps", "7",
        "-p", "running_req", "[1.0, 0.30000000000000004]", "-p", "stall_factor", "0.30000000000000004",
        "--context", '{"model": "it\'s"}']
