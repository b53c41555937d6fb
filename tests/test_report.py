"""The report: one offline page; what a log says is text in it, never markup that runs.

Would catch: a script from a model name or a log line, a reference to the network, a figure that ends its script
element, an answer that is not first.
"""

import json
from html.parser import HTMLParser

import nbformat
import pandas as pd
import plotly.graph_objects as go
import pytest

from helpers import report
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
    assert [a["id"] for t, a in page.tags if a.get("class") == "figure"] == ["figure-0", "figure-1"]
    calls = [script for script in page.scripts if script.startswith("Plotly.newPlot")]
    assert [call[: len('Plotly.newPlot("figure-0"')] for call in calls] == [
        'Plotly.newPlot("figure-0"', 'Plotly.newPlot("figure-1"']
    arguments = json.loads("[" + calls[0].removeprefix("Plotly.newPlot(").removesuffix(");") + "]")
    assert arguments[1][0]["name"] == "step" and arguments[2]["autosize"] and "width" not in arguments[2]
    assert sum(len(script) > 1_000_000 for script in page.scripts) == 1  # plotly.js, once
    assert report.render(notebook_of()).count("<script") == 0  # no figure, no library


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
        nbformat.v4.new_output("stream", name="stdout", text="\x1b[31mred\x1b[0m & plain"),
        output({"text/html": pd.DataFrame({"n": [1]})._repr_html_(), "text/plain": "n"}),
        output({"text/markdown": "**bold** words\n\n| a |\n|---|\n| 1 |"}),
        output({"text/html": "<script></script>", "text/plain": "the text instead"}),
    ))
    assert "<pre>red &amp; plain</pre>" in text
    assert '<table border="1" class="dataframe">' in text and "<strong>bold</strong> words" in text
    assert "<pre>the text instead</pre>" in text
    assert "<details><summary>code: headline</summary><pre>x = 1</pre></details>" in text
    assert "<title>00 · Why?</title>" in text and "a widget" not in text


def run_folder(tmp_path, card=None, **record):
    folder = tmp_path / "20260101T000000Z-00"
    folder.mkdir()
    nbformat.write(notebook_of(figure()), folder / "00_diagnose.ipynb")
    (folder / "run.json").write_text(json.dumps({"status": "good", "message": "", "command": "rooflog run x"} | record))
    if card is not None:
        (folder / "scorecard.json").write_text(json.dumps(card))
    return folder


def test_the_answer_comes_first(tmp_path, monkeypatch):
    monkeypatch.setattr(report.scorecard, "answer", lambda card: "Measured: <one>.\nLaw: two.")
    folder = run_folder(tmp_path, {"schema_version": 1})
    page = report.write_report(folder)
    text = page.read_text()
    body = text[text.index("<body>"):]
    assert body.startswith('<body>\n<div class="answer"><p>Measured: &lt;one&gt;.</p><p>Law: two.</p></div>')
    assert body.index("Law: two.") < body.index("00 · Why?") < body.index("rooflog run x")
    names = ["00_diagnose.ipynb", "report.html", "run.json", "scorecard.json"]
    assert sorted(p.name for p in folder.iterdir()) == names


def test_a_failed_run_says_so_first(tmp_path):
    text = report.write_report(run_folder(tmp_path, status="failed", message="KeyError: 'x'")).read_text()
    assert '<body>\n<div class="answer bad"><p><strong>failed</strong>: KeyError: &#x27;x&#x27;</p></div>' in text


def test_what_is_no_run_folder_is_refused(tmp_path):
    with pytest.raises(LogFormatError, match="expected a run folder with one executed notebook, found 0"):
        report.write_report(tmp_path)
    folder = run_folder(tmp_path)
    (folder / "run.json").write_text("{")
    with pytest.raises(LogFormatError, match="expected a run folder, found a file that cannot be read"):
        report.write_report(folder)
    assert not (folder / "report.html").exists()


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
    page = report._wrap_sentences(f"<table><tr><td>51.9 ms [36.2, 67.6]</td><td>{text}</td></tr></table>")
    assert f'<td class="said">{text}</td>' in page and "<td>51.9 ms [36.2, 67.6]</td>" in page
