"""The gate's files as their readers take them: Markdown rendered, XML parsed and counted.

Would catch: a verdict that differs between the exit code and the files, a text of a log that becomes a link, a tag or a
column, XML that no reader takes, a row of incomparable sides that fails a build.
"""

import json
from html.parser import HTMLParser
from xml.etree import ElementTree

import mistune
import numpy as np
import pytest

from helpers.compare.words import quantity
from helpers.regression import compare_sides, gather_side
from helpers.regression.describe import VERDICT_WORDS
from helpers.regression.gate import GATE_WORDS, markdown, to_junit, to_markdown

LEVELS_REQ = np.array([1, 4, 16, 64])
HOSTILE = ("m|x`y` <script>alert(1)</script> [go](http://evil.example) **b** ~~s~~ www.evil.example\n## head \x1b[31m"
           " \x00")
RENDER = mistune.create_markdown(escape=False, plugins=["table", "url", "strikethrough"])


def side(folder, name, slope_s_per_req=0.001, *, n=3, levels=LEVELS_REQ, **facts):
    """Return a side of n typed tables of a law of 20 ms and a slope; run k scatters alike on all sides, by 0.4 %."""
    paths = []
    for seed in range(n):
        noise = np.random.default_rng(seed).normal(0, 0.004, len(levels))
        step_s = (0.020 + slope_s_per_req * levels) * np.exp(noise)
        paths.append(folder / f"{name}{seed}.csv")
        rows = "".join(f"{req},{req / s}\n" for req, s in zip(levels, step_s, strict=True))
        paths[-1].write_text("running_req,decode_tok_per_s\n" + rows)
    return gather_side(paths, context={"model": "m", "hardware": "h100-sxm", **facts})


@pytest.fixture(scope="module")
def cards(tmp_path_factory):
    """One comparison of every kind."""
    folder = tmp_path_factory.mktemp("tables")
    base = side(folder, "base")
    made = {
        "worse": compare_sides(base, side(folder, "slow", slope_s_per_req=0.0011)),
        "better": compare_sides(base, side(folder, "fast", slope_s_per_req=0.0009)),
        "same": compare_sides(base, base),
        "cannot_tell": compare_sides(side(folder, "one", n=1), side(folder, "two", n=1, slope_s_per_req=0.00103)),
        "not_comparable": compare_sides(base, side(folder, "other", slope_s_per_req=0.002, hardware="a100-sxm-80gb")),
        "no_rows": compare_sides(base, side(folder, "elsewhere", levels=np.array([2, 8, 32]))),
        "hostile": compare_sides(side(folder, "h", dtype=HOSTILE), side(folder, "i", dtype="bfloat16")),
    }
    return {name: json.loads(json.dumps(card)) for name, card in made.items()}


class Page(HTMLParser):
    """Collects what a rendered summary holds."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.rows, self.text, self._is_cell = [], [], "", False
        self.feed(RENDER(text))

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self._is_cell = tag in ("td", "th")
        if tag == "tr":
            self.rows.append([])
        elif self._is_cell:
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        self._is_cell = False

    def handle_data(self, data):
        self.text += data
        if self._is_cell:
            self.rows[-1][-1] += data


@pytest.mark.parametrize("name", ["worse", "better", "same", "cannot_tell", "not_comparable", "no_rows", "hostile"])
def test_the_summary_begins_with_the_verdict_and_holds_every_row(cards, name):
    card = cards[name]
    text = to_markdown(card)
    page = Page(text)
    verdict = VERDICT_WORDS[card["overall"]["verdict"]]
    assert text.splitlines()[0] == f"## {GATE_WORDS[card['exit_code']]}: {verdict}"
    assert {tag for tag in page.tags} <= {
        "h2", "p", "strong", "table", "thead", "tbody", "tr", "th", "td", "details", "summary", "ul", "li"}
    tables = [row for row in page.rows if len(row) == 7]
    assert len(tables) == (len(card["rows"]) + 1 if card["rows"] else 0)
    assert sum(len(row) == 6 for row in page.rows) == len(card["base"]["inputs"]) + len(card["new"]["inputs"]) + 1
    n_different = len(card["validity"]["differences"])
    assert sum(len(row) == 5 for row in page.rows) == (n_different + 1 if n_different else 0)
    assert {len(row) for row in page.rows} <= {5, 6, 7}
    hashes = {h for s in ("base", "new") for e in card[s]["inputs"] for h in e["log_sha256"]}
    assert hashes and all(h in page.text for h in hashes)
    order = [text.index(word) for word in ("## ", "**Validity:**", "Inputs (")]
    assert order == sorted(order)


def test_the_words_of_each_gate(cards):
    """0 passes, 1 fails, 2 is neither; 2 also where the sides are not comparable, whatever the rows say."""
    found = {name: to_markdown(card).split(":")[0].removeprefix("## ") for name, card in cards.items()}
    assert found["worse"] == "FAIL" and found["same"] == "PASS"
    assert {found[name] for name in ("cannot_tell", "not_comparable", "no_rows")} == {"INCONCLUSIVE"}


def test_a_row_has_units_interval_verdict_and_least_change(cards):
    """The law was typed as 20 ms + 1.0 or 1.1 ms a request."""
    rows = {row[0]: row for row in Page(to_markdown(cards["worse"])).rows}
    names = {row["kind"]: quantity(row["kind"], row["running_req"]) for row in cards["worse"]["rows"]}
    _, base, new, change, verdict, least, _ = rows[names["per_request"]]
    assert base.endswith(" ms/req") and float(base.split()[0]) == pytest.approx(1.0, rel=0.02)
    assert float(new.split()[0]) == pytest.approx(1.1, rel=0.02)
    assert change.startswith("+") and "[" in change and change.endswith("]") and verdict == "worse" and "%" in least
    assert rows["quantity"][3] == "change [95 % interval]" and rows[names["step"]][4] == "worse"


def test_text_of_a_log_is_shown_and_never_markup(cards):
    card = cards["hostile"]
    differing = [{**card["validity"]["differences"][0], "key": "dtype", "base": HOSTILE}]
    validity = {**card["validity"], "sentence": HOSTILE, "differences": differing}
    page = Page(to_markdown({**card, "validity": validity, "notes": [HOSTILE]}))
    assert "script" not in page.tags and "a" not in page.tags and "del" not in page.tags and "h2" in page.tags
    row = next(row for row in page.rows if len(row) == 5 and row[0] == "dtype")
    shown = " ".join(HOSTILE.replace("\x1b", "").replace("\x00", "").split())
    assert row[1] == shown and page.text.count(shown) == 3 and page.tags.count("h2") == 1


@pytest.mark.parametrize("text", ["a|b", "- item", "+ item", "# head", "*x* _y_ `z`", "<b>&amp;", "https://x.example/y",
                                  "www.x.example", "[a](b)", "![a](b)", "$x$", "a\nb", "~~c~~", r"\| \\", "@name"])
def test_markdown_shows_any_text_as_it_is(text):
    page = Page(f"| h |\n| --- |\n| {markdown(text)} |\n\n- {markdown(text)}\n")
    assert page.tags == ["table", "thead", "tr", "th", "tbody", "tr", "td", "ul", "li"]
    assert page.rows[1] == [" ".join(text.split())]


SUITE = {"name", "tests", "failures", "errors", "skipped", "time"}
RESULTS = ["skipped", "error", "failure", "system-out"]


def check_junit(text):
    """Hold a report against the form that readers of JUnit XML share (that of Ant's and Jenkins' schemas)."""
    root = ElementTree.fromstring(text)
    assert text.startswith('<?xml version="1.0" encoding="UTF-8"?>\n')
    assert root.tag == "testsuites" and set(root.attrib) == {"name", "tests", "failures", "errors", "time"}
    for suite in root:
        assert suite.tag == "testsuite" and set(suite.attrib) == SUITE
        assert len({case.get("name") for case in suite}) == len(suite)
        for case in suite:
            assert case.tag == "testcase" and set(case.attrib) == {"name", "classname", "time"}
            assert [child.tag for child in case] == [tag for tag in RESULTS if case.find(tag) is not None]
            assert len(case) <= 1 and all(case.attrib.values())
            assert all(child.get("message") for child in case if child.tag != "system-out")
        for name, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            assert int(suite.get(name)) == sum(case.find(tag) is not None for case in suite)
        assert int(suite.get("tests")) == len(suite)
    for name in ("tests", "failures", "errors"):
        assert int(root.get(name)) == sum(int(suite.get(name)) for suite in root)
    return root


def results(suite):
    return {case.get("name"): case[0].tag for case in suite}


@pytest.mark.parametrize("name", ["worse", "better", "same", "cannot_tell", "not_comparable", "no_rows", "hostile"])
def test_junit_says_what_the_card_says(cards, name):
    card = cards[name]
    root = check_junit(to_junit(card))
    found = results(root[0])
    assert found.pop("verdict") == {0: "system-out", 1: "failure", 2: "skipped"}[card["exit_code"]]
    is_comparable = card["validity"]["verdict"] != "not_comparable"
    assert found.pop("validity") == ("system-out" if is_comparable else "skipped")
    judged = [row for row in card["rows"] if row["is_judged"]]
    of_verdict = {"worse": "failure", "cannot_tell": "skipped", "same": "system-out", "better": "system-out"}
    assert list(found.values()) == [of_verdict[r["verdict"]] if is_comparable else "skipped" for r in judged]


@pytest.mark.parametrize(("verdict", "code", "found"), [("better", 2, "skipped"), ("mixed", 1, "failure"),
                                                       ("cannot_tell", 0, "system-out")])
def test_the_gate_decides_over_the_word(cards, verdict, code, found):
    """Better with rows that may hide a loss is no pass; rows that cannot tell but exclude a loss are one."""
    card = {**cards["better"], "overall": {**cards["better"]["overall"], "verdict": verdict}, "exit_code": code}
    assert results(check_junit(to_junit(card))[0])["verdict"] == found
    assert to_markdown(card).startswith(f"## {GATE_WORDS[code]}: {VERDICT_WORDS[verdict]}\n")


def test_a_skipped_row_says_what_is_needed(cards):
    root = check_junit(to_junit(cards["cannot_tell"]))
    row = next(r for r in cards["cannot_tell"]["rows"] if r["kind"] == "per_request")
    message = next(case[0].get("message") for case in root[0] if case.get("name") == "cost per request")
    assert row["needed"] and row["needed"] in message and "cannot tell" in message


def test_incomparable_sides_fail_no_row_though_all_are_worse(cards):
    """The slope was doubled, on other hardware: that is no regression."""
    assert any(row["verdict"] == "worse" for row in cards["not_comparable"]["rows"])
    assert check_junit(to_junit(cards["not_comparable"])).get("failures") == "0"


def test_several_comparisons_are_several_suites_and_summaries(cards):
    both = [cards["worse"], cards["same"]]
    root = check_junit(to_junit(both))
    assert len(root) == 2 and [results(suite)["verdict"] for suite in root] == ["failure", "system-out"]
    heads = [line for line in to_markdown(both).splitlines() if line.startswith("## ")]
    assert heads == ["## FAIL: worse", "## PASS: same"]
    assert check_junit(to_junit([])).get("tests") == "0" and to_markdown([]) == ""


def test_control_codes_and_half_characters_are_left_out_of_xml(cards):
    card = {**cards["worse"], "validity": {**cards["worse"]["validity"], "sentence": "a\x00b\x1bc\ud800d\ufffee\x9bf"}}
    root = check_junit(to_junit(card))
    assert next(case for case in root[0] if case.get("name") == "validity")[0].text == "abcdef"
    assert "abcdef" in to_markdown(card)


def test_long_lists_are_cut_and_counted(cards):
    differing = [{"key": f"args.x{i}", "base": i, "new": None, "kind": "configuration", "status": "not known"}
                 for i in range(300)]
    validity = {**cards["worse"]["validity"], "differences": differing}
    card = {**cards["worse"], "validity": validity, "notes": [f"note {i}" for i in range(1000)]}
    text = to_markdown(card)
    assert "Notes (1000)" in text and "800 more are in comparison.json" in text and "note 200" not in text
    assert "(300)" in text and "100 more are in comparison.json" in text and "args.x200" not in text
