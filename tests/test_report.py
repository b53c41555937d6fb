"""The report: one offline page; what a log says is text in it, never markup that runs.

Would catch: a script from a model name or a log line, a reference to the network, a figure that ends its script
element, an answer that is not first.
"""

import json
import math
from base64 import b64encode
from hashlib import sha256
from html.parser import HTMLParser

import nbformat
import pandas as pd
import plotly.graph_objects as go
import pytest

from helpers import report
from helpers.report import page as page_module
from helpers.report import summary, words
from helpers.report.markup import rewrite
from helpers.report.tables import number_of
from helpers.schema import LogFormatError

EVIL = "<script>alert('x')</script><img src=x onerror=alert(1)>"


class Page(HTMLParser):
    """Tags with attributes, text by element, and what scripts hold."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.scripts, self.words = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        (self.scripts if self.lasttag == "script" else self.words).append(data)


def output(data, kind="display_data"):
    return nbformat.v4.new_output(kind, data)


def notebook_of(*outputs, source="x = 1"):
    cell = nbformat.v4.new_code_cell(source, outputs=list(outputs))
    cell.metadata.tags = ["headline"]
    explore = nbformat.v4.new_code_cell("explore()", outputs=[output({"text/plain": "a widget"})])
    explore.metadata.tags = ["explore", "nbval-skip"]
    return nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("# 00 · Why?\n\nText."), cell, explore])


def figure(name="step"):
    made = go.Figure(go.Scatter(x=[1, 2], y=[3, 4], name=name), {"width": 900, "height": 480})
    return output({report.PLOTLY_MIME: json.loads(made.to_json()), "text/html": "<div>plotly</div>"})


def test_a_figure_is_drawn_from_one_copy_of_the_library():
    text = report.render(notebook_of(figure(), figure()))
    page = Page(text)
    assert [a["id"] for t, a in page.tags if a.get("class") == "canvas"] == ["figure-0", "figure-1"]
    names = [a["id"] for t, a in page.tags if a.get("type") == "application/json"]
    assert names == ["figure-0-data", "figure-1-data"]
    drawn = json.loads(next(script for script in page.scripts if script.startswith("{")))
    assert drawn["data"][0]["name"] == "step" and drawn["layout"]["autosize"] and "width" not in drawn["layout"]
    assert sum(len(script) > 1_000_000 for script in page.scripts) == 1  # plotly.js, once
    assert len(text) < 6e6
    assert max(map(len, Page(report.render(notebook_of())).scripts)) < 50_000  # no figure, no library


def test_the_policy_names_every_script_that_runs_and_no_other():
    text = report.render(notebook_of(figure()))
    page = Page(text)
    policy = next(a["content"] for t, a in page.tags if a.get("http-equiv") == "Content-Security-Policy")
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    run = [script for script in page.scripts if not script.startswith("{") and script.strip()]
    hashes = {f"'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'" for script in run}
    assert len(run) == 3 and set(rules["script-src"].split()) == hashes


def test_the_library_is_read_once_however_many_reports_are_written(monkeypatch, tmp_path):
    calls = []
    monkeypatch.setattr(page_module, "get_plotlyjs", lambda: calls.append(1) or "/* plotly.js */")
    page_module.plotly_js.cache_clear()
    try:
        for name in "ab":
            (tmp_path / name).mkdir()
            assert "<script>/* plotly.js */</script>" in report.write_report(run_folder(tmp_path / name)).read_text()
    finally:
        page_module.plotly_js.cache_clear()
    assert calls == [1]


def test_the_title_of_a_figure_is_text_above_it():
    made = go.Figure(go.Scattergl(x=[1], y=[1]), {"height": 500, "margin": {"t": 120, "b": 60}, "legend": {"y": -0.2},
                     "title": {"text": "A &lt;b&gt; takes<br>2 ms<br><span style='font-size:12px'>one<br>log</span>"}})
    text = report.render(notebook_of(output({report.PLOTLY_MIME: json.loads(made.to_json())})))
    assert "<figcaption><strong>A &lt;b&gt; takes 2 ms</strong> <small>one log</small></figcaption>" in text
    drawn = json.loads(next(script for script in Page(text).scripts if script.startswith("{")))
    assert "title" not in drawn["layout"] and drawn["data"][0]["type"] == "scatter"  # no eval for WebGL
    # 120 px of title become 28: the axes keep 500 - 120 - 60 = 320 px, and the legend its distance from them
    assert (drawn["layout"]["height"], drawn["layout"]["margin"]["t"], drawn["layout"]["legend"]["y"]) == (408, 28, -.2)


def test_nothing_is_asked_of_the_network():
    page = Page(report.render(notebook_of(figure(), output({"image/png": "aGk=\n"}))))
    for tag, attributes in page.tags:
        assert tag != "link" and not attributes.get("src", "data:").startswith(("http", "//")), (tag, attributes)
    policy = next(a["content"] for t, a in page.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'")


@pytest.mark.parametrize(
    "made",
    [
        output({"text/plain": EVIL}), output({"text/html": EVIL, "text/plain": "fallback"}),
        output({"text/markdown": EVIL}), nbformat.v4.new_output("stream", name="stdout", text=EVIL),
        nbformat.v4.new_output("error", ename=EVIL, evalue=EVIL, traceback=[EVIL]),
        output({"text/html": pd.DataFrame({EVIL: [EVIL]})._repr_html_()}), figure(EVIL), figure("</script>" + EVIL),
        output({"text/markdown": "[x](javascript:alert(1))"}),
    ],
    ids=["plain", "html", "markdown", "stream", "error", "table", "figure", "figure_end", "link"],
)
def test_what_a_log_says_never_runs(made):
    notebook = notebook_of(made, source="# " + EVIL)
    notebook.cells[0].source += EVIL
    page = Page(report.render(notebook, None, {"message": EVIL, "status": EVIL, "command": EVIL}))
    assert not any("onerror" in attributes or tag == "img" for tag, attributes in page.tags)
    assert not any(script.startswith("alert") for script in page.scripts)
    assert not any(attributes.get("href", "").startswith("javascript") for _, attributes in page.tags)


@pytest.mark.parametrize(
    ("fragment", "is_plain"),
    [
        (pd.DataFrame({"a<b": [1]})._repr_html_(), True), ("<p>a &lt; b</p>", True), ("<script>", False),
        ("<p onclick='x'>", False), ("<iframe src='x'>", False), ("<scr", False), ("<script ", False),
        ("<!-- <script> -->", False), ("<p style='background: url(x)'>", False),
        ("<style>@import 'x';</style>", False), ("<?php x ?>", False), ("<!DOCTYPE html>", False),
    ],
)
def test_only_plain_markup_passes(fragment, is_plain):
    assert report.is_plain_markup(fragment) is is_plain


def test_outputs_are_shown_and_code_is_folded():
    text = report.render(notebook_of(
        nbformat.v4.new_output("stream", name="stdout", text="\x1b[31mred\x1b[0m & `plain`\n  goes on\nnext"),
        nbformat.v4.new_output("stream", name="stdout", text="a   b\n1   2"),
        output({"text/html": pd.DataFrame({"n": [1]})._repr_html_(), "text/plain": "n"}),
        output({"text/markdown": "**bold** words\n\n| a |\n|---|\n| 1 |"}),
        output({"text/html": "<script></script>", "text/plain": "the text instead"}),
    ))
    assert '<p class="printed">red &amp; <code>plain</code> goes on</p>\n<p class="printed">next</p>' in text
    assert "<pre>a   b\n1   2</pre>" in text
    assert text.count('<table class="sortable">') == 2 and "<strong>bold</strong> words" in text
    assert "<pre>the text instead</pre>" in text
    assert '<details class="code"><summary>code: headline</summary><pre>x = 1</pre></details>' in text
    assert "<title>00 · Why?</title>" in text and "a widget" not in text
    assert text.count("00 · Why?") == 2  # as title of the window and of the page


def run_folder(tmp_path, card=None, **record):
    folder = tmp_path / "20260101T000000Z-00"
    folder.mkdir()
    nbformat.write(notebook_of(figure()), folder / "00_diagnose.ipynb")
    (folder / "run.json").write_text(json.dumps({"status": "good", "message": "", "command": "rooflog run x"} | record))
    if card is not None:
        (folder / "scorecard.json").write_text(json.dumps(card))
    return folder


def test_the_answer_comes_first(tmp_path, monkeypatch):
    said = "Measured: <one>.\nLaw: two.\nDistance from the roofline: `three`.\nDoubt: four.\nCHECK FAILED: five."
    monkeypatch.setattr(words.scorecard, "answer", lambda card: said)
    folder = run_folder(tmp_path, {"schema_version": 1})
    body = report.write_report(folder).read_text().partition("<body>")[2]
    order = ["CHECK FAILED: five.", '<p class="lead">Law: two.',
             "<h2>Distance from the roofline</h2><p><code>three</code>.", '<p class="doubt">Doubt: four.',
             "Measured: &lt;one&gt;.", "Law: two.\n", 'id="sections"', "rooflog run x"]
    found = [body.find(text) for text in order]
    assert -1 not in found and found == sorted(found)
    names = ["00_diagnose.ipynb", "report.html", "run.json", "scorecard.json", "summary.md"]
    assert sorted(p.name for p in folder.iterdir()) == names


def test_a_failed_run_says_so_first_and_shows_where(tmp_path):
    text = report.write_report(run_folder(tmp_path, status="failed", message="KeyError: 'x'")).read_text()
    main = text.partition('<main><div id="top">')[2]
    assert main.startswith('<div class="answer bad" role="alert"><p><strong>failed: KeyError: &#x27;x&#x27;</strong>')
    assert "there is no scorecard" in main.partition("<nav")[0] and 'href="#error"' in main


def test_what_papermill_says_of_an_error_is_left_out():
    notebook = notebook_of(nbformat.v4.new_output("error", ename="KeyError", evalue="x", traceback=[]))
    notebook.cells.insert(1, nbformat.v4.new_markdown_cell("<span>An Exception</span>"))
    notebook.cells[1].metadata.tags = ["papermill-error-cell-tag"]
    text = report.render(notebook)
    assert "An Exception" not in text and '<div class="error" id="error"><strong>KeyError</strong>: x' in text


COMPARISON = {
    "schema_version": 1, "method_version": 1, "kind": "comparison", "overall": {"verdict": "worse"},
    "confidence": 0.95,
    "answer": "Verdict: worse.\nThe <cost> moved.", "new": {"facts": {"model": "m", "engine": "sglang"}},
    "rows": [{"kind": "step", "running_req": 16.0, "base": 0.02, "new": 0.025, "unit": "s", "effect_frac": 0.25,
              "row_lo_frac": 0.2, "row_hi_frac": 0.3, "verdict": "worse"},
             {"kind": "fixed_cost", "running_req": None, "base": 0.02, "new": None, "unit": "s", "effect_frac": None,
              "row_lo_frac": None, "row_hi_frac": None, "verdict": "cannot_tell"}],
}


def test_a_comparison_is_told_in_its_own_words_with_every_row(tmp_path):
    folder = run_folder(tmp_path, status="check_failed")
    (folder / "comparison.json").write_text(json.dumps(COMPARISON))
    text = report.write_report(folder).read_text()
    assert '<section class="answer bad" aria-label="Answer"><p class="lead">Verdict: worse.</p>' in text
    assert "<p>The &lt;cost&gt; moved.</p>" in text and "check failed" not in text.partition("<footer>")[0]
    summary = (folder / "summary.md").read_text()
    assert "| quantity | verdict | change [95 % interval] | base to new |" in summary
    assert "| step at N=16 | worse | +25.0 % [+20.0, +30.0] | 20.0 to 25.0 ms |" in summary
    assert "| fixed cost | cannot tell | unknown | 20.0 ms to unknown |" in summary
    assert '<td class="n" data-v="0.02">20.0 to 25.0 ms</td>' in text
    assert summary.startswith("**Verdict: worse.**\n\nThe &lt;cost&gt; moved.\n")


def test_what_is_no_run_folder_is_refused(tmp_path):
    with pytest.raises(LogFormatError, match="expected a run folder with one executed notebook, found 0"):
        report.write_report(tmp_path)
    folder = run_folder(tmp_path)
    (folder / "run.json").write_text("{")
    with pytest.raises(LogFormatError, match="expected a run folder, found a file that cannot be read"):
        report.write_report(folder)
    assert not (folder / "report.html").exists()


def test_a_report_that_cannot_be_written_leaves_nothing(tmp_path, monkeypatch):
    folder = run_folder(tmp_path)
    before = sorted(folder.iterdir())

    def full(*given):
        yield b"<!DOCTYPE html>"
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(report, "pieces", full)
    with pytest.raises(OSError, match="No space left"):
        report.write_report(folder)
    assert sorted(folder.iterdir()) == before


def test_words_about_the_sample_data_are_left_out_of_a_run_on_another_log():
    notebook = notebook_of()
    notebook.cells[0].source = "# Q?\n\nBefore.\n\nSample data: the default log\nis simulated.\n\nSamples: stay."
    notebook.cells.append(nbformat.v4.new_markdown_cell("Sample data: more of it."))
    own = report.render(notebook, None, {"status": "good", "parameters": {"log_path": "/x.log"}})
    assert "Sample data:" not in own and "is simulated" not in own
    assert "Before." in own and "Samples: stay." in own
    for run in (None, {"status": "good"}, {"status": "good", "parameters": {"log_path": ""}}):
        text = report.render(notebook, None, run)
        assert "is simulated" in text and "more of it" in text


def test_sentences_in_tables_break_into_lines_and_numbers_do_not():
    text = "each request pays 29.2 ms that nothing it reads explains"
    table = pd.DataFrame({"step": ["51.9 ms [36.2, 67.6]"], "why": [text], "note": [""]})
    with pd.option_context("display.max_colwidth", None):
        table = table._repr_html_()
    page = report.render(notebook_of(output({"text/html": table})))
    assert f'<td class="said">{text}</td>' in page
    assert '<th scope="col" data-type="number">step</th><th scope="col">why</th></tr>' in page  # nothing else
    assert '<td class="n" data-v="0.0519">51.9 ms [36.2, 67.6]</td>' in page


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1947", 1947), ("22.6x", 22.6), ("98 %", 98), ("+5.1 % [+2.0, +8.3]", 5.1), ("90.0 s", 90), ("2.00 min", 120),
        ("30.3 ms/req [28.1, 32.4]", 0.0303), ("43 GB", 43e9), ("82.0 to 82.2", 82),
        ("20.0 to 25.0 ms", 0.02), ("20.0 ms to 1.50 s", 0.02), ("20.0 ms to unknown", 0.02),
        ("20.0 to many ms", None), ("7 prefill inside, 1 idle", None),
        ("yes", None), ("sglang/server.log", None), ("1 first line of the server life", None), ("[1, 2]", None),
    ],
)
def test_a_cell_is_sorted_by_its_number_in_one_unit(text, value):
    assert number_of(text) == (value if value is None else pytest.approx(value, rel=1e-12))
    assert all(math.isnan(number_of(unknown)) for unknown in ("", "unknown", "none", "unknown to 25.0 ms"))


def test_markup_is_written_anew_and_balanced():
    made = rewrite('</div></main><div class="answer" style="x"><p onclick="x">a<b>b</div>c<a href="x.ipynb">d</a>'
                   '<a href="https://e">e</a><iframe src="x">f</iframe>')
    assert made == '<div><p>a<b>b</b></p></div>c' + 'd<a href="https://e" rel="noreferrer">e</a>f'
    cells = rewrite("<table><thead><tr><th>a</th></tr></thead><tr><td><b>1</td></tr></b></table>2</b>")
    assert "<b>1</b></td></tr></tbody></table></div>2" in cells
    wide = rewrite("<table><thead><tr><th colspan=2>a</th></tr></thead><tr><td>1</td><td>2</td></tr></table>")
    assert '<table class="plain"><thead><tr><th colspan="2">a</th></tr></thead>' in wide and "sortable" not in wide


def test_a_table_of_many_rows_is_shown_in_part_and_says_so():
    table = pd.DataFrame({"n": range(300)}).to_html()
    assert '<table class="sortable" data-limit="200">' in report.render(notebook_of(output({"text/html": table})))


def luminance(colour):
    """WCAG 2.2: relative luminance of "#rrggbb"."""
    shares = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    r, g, b = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in shares)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


def test_the_colours_have_contrast_in_both_schemes():
    """WCAG 2.2, 1.4.3: 4.5 to 1 for text."""
    assert luminance("#ffffff") == pytest.approx(1) and luminance("#777777") == pytest.approx(0.184, abs=1e-3)
    blocks = [block.partition("}")[0] for block in page_module.style().split(":root {")[1:3]]
    schemes = [dict(part.strip()[2:].split(": ") for part in block.split(";") if part.strip().startswith("--"))
               for block in blocks]
    assert [scheme["bg"] for scheme in schemes] == ["#ffffff", "#14181c"]
    for scheme in schemes:
        for ink in ("fg", "dim", "accent", "bad", "good", "mark"):
            for paper in ("bg", "soft"):
                low, high = sorted((luminance(scheme[ink]), luminance(scheme[paper])))
                assert (high + 0.05) / (low + 0.05) >= 4.5, (scheme["bg"], ink, paper)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("max_context_work: 2 * 3 | `x` ~a~", r"max_context_work: 2 \* 3 \| \`x\` \~a\~"),
        ("<img src=x> &amp;", "&lt;img src=x&gt; &amp;amp;"), ("51.9 ms [36.2, 67.6]", "51.9 ms [36.2, 67.6]"),
        ("[x](javascript:alert(1))", r"\[x\](javascript:alert(1))"),
        ("![x][y]", r"\!\[x\][y]"), ("fixes #12", r"fixes \#12"),
        ("two\nlines", "two lines"), ("@you _em_", "@\u200byou \\_em\\_"),
    ],
)
def test_a_summary_holds_text_of_a_log_as_text(text, shown):
    assert summary.escape(text) == shown


def test_a_summary_of_a_failed_run_says_so():
    made = report.summarise(None, {"status": "failed", "message": "KeyError: <x>", "command": "rooflog run a`b",
                                   "versions": {"rooflog": "0.1", "method": 1}, "log_sha256": ["ab" * 32]})
    assert made == ("**failed: KeyError: &lt;x&gt;**\n\nThe run ended without an answer: there is no scorecard.\n\n"
                    "rooflog 0.1 · method 1 · sha256 of the input abababababab\n\n`` rooflog run a`b ``\n")
