"""The index of a batch: one offline page that counts right, hides nothing, runs nothing of a log, and can be sorted.

Would catch: markup from a file name, a link out of the folder, a failure below the table, a number whose unit is
nowhere, a colour too faint to read, a sort by text of numbers, a filter that loses rows.
"""

import base64
import json
import subprocess
from datetime import UTC, datetime
from hashlib import sha256
from html.parser import HTMLParser

import numpy as np
import pytest
from cards import card_of, run_of

from helpers import paths
from helpers.batch import cells, page, table
from helpers.batch.curve import HEIGHT, MARGIN, WIDTH, sparkline
from helpers.display import show

EVIL = "<script>alert('x')</script><img src=x onerror=alert(1)>\" onclick=\"x\u202e.log"
WRITTEN = datetime(2026, 11, 30, 12, 5, tzinfo=UTC)
BROWSER_S = 60


def row_of(dump="/data/a/server.log", folder="a-1", card=None, **changes):
    card = card_of() if card is None else card
    return table.flatten(card, run_of(dump, **changes), folder)


def failed_row(dump, folder, message="00_diagnose: DeadKernelError: died"):
    return table.flatten(None, run_of(dump, status="failed", exit_code=3, message=message), folder)


class Page(HTMLParser):
    """Elements with attributes in order, the words outside scripts and styles, the cells of each row."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.words, self.rows, self._inside = [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._inside.append(tag)
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        while self._inside and self._inside.pop() != tag:
            pass

    def handle_data(self, data):
        if self._inside and self._inside[-1] in ("script", "style"):
            return
        self.words.append(data)
        if {"td", "th"} & set(self._inside) and "svg" not in self._inside:
            self.rows[-1][-1] += data

    def text(self):
        return " ".join(" ".join(self.words).split())

    def all(self, name):
        return [attributes for tag, attributes in self.tags if tag == name]


def rendered(rows, failures=()):
    return page.render(rows, list(failures), WRITTEN)


def test_the_first_sentence_counts_every_dump():
    rows = [row_of(), row_of("/data/b.log"), row_of("/data/c.log", card=card_of([1, 2]), status="cannot_tell"),
            row_of("/data/d.log", status="check_failed", message="a check"), failed_row("/data/e.log", "e-1")]
    failures = [{"dump": "/data/p.log", "message": "p.log: no engine", "key": None, "file": "failures/p.json"}]
    text = Page(rendered(rows, failures)).text()
    assert ("6 dumps under /data/: 2 good, 1 cannot tell (no law is claimed), 1 check failed, 2 failed. "
            "Written 2026-11-30 12:05 UTC by rooflog 0.1.0, method 1.") in text


def test_failures_stand_first_with_one_line_and_what_there_is():
    rows = [row_of(), failed_row("/data/z.log", "z-1")]
    failures = [{"dump": "/data/p.log", "message": "p.log:\nno engine", "key": None, "file": "failures/p-1.json"}]
    text = rendered(rows, failures)
    assert text.index("p.log: no engine") < text.index("DeadKernelError: died") < text.index("<table")
    found = text[text.index("Failures: 2") : text.index("<table")]
    assert [attributes["href"] for attributes in Page(found).all("a")] == [
        "failures/p-1.json", "z-1/report.html", "z-1/00_diagnose.ipynb"]
    assert "Failures" not in rendered([row_of()])
    unrecorded = {"dump": "/data/q.log", "message": "disk full", "key": None, "file": ""}
    assert Page(rendered([], [unrecorded]).partition("Failures: 1")[2]).all("a") == []


def test_what_to_do_about_a_failure_is_folded_and_notes_are_escaped():
    said = "expected a log; found <none>; check; and run it again"
    failures = [{"dump": "/data/p.log", "message": said, "key": None, "file": ""}]
    text = page.render([], failures, WRITTEN, ["left out: <b>.txt"])
    folded = "<details><summary>more</summary>check; and run it again</details>"
    assert f": expected a log; found &lt;none&gt; {folded}" in text
    assert "<summary>Passed over: 1 note</summary><ul><li>left out: &lt;b&gt;.txt</li></ul>" in text
    assert "Passed over" not in rendered([], failures)


def test_many_failures_are_folded_and_all_there():
    failures = [{"dump": f"p{i}.log", "message": "no engine", "key": None, "file": f"failures/{i}.json"}
                for i in range(page.MAX_OPEN + 5)]
    text = rendered([row_of()], failures)
    assert "5 more" in text and text.count("no engine") == page.MAX_OPEN + 5
    assert "1,000" in Page(rendered([], failures * 40)).text()


def test_texts_of_unknown_origin_are_text():
    card = card_of([1, 2], facts={"model": EVIL, "hardware": EVIL}, diagnosis=[{"cause": EVIL, "status": EVIL}])
    rows = [row_of(EVIL, EVIL, card, status=EVIL) | {"refused": EVIL}, failed_row(EVIL, EVIL, EVIL)]
    parsed = Page(rendered(rows, [{"dump": EVIL, "message": EVIL, "key": None, "file": f"failures/{EVIL}.json"}]))
    assert len(parsed.all("script")) == 1 and parsed.all("img") == []
    known = {"href", "class", "title", "data-v", "data-type", "data-limit", "data-column", "data-search", "id", "for",
             "data-filters", "scope", "role", "d", "lang", "charset", "content", "name", "http-equiv", "hidden", "type",
             "value", "tabindex", "aria-labelledby"}
    assert {name for _, attributes in parsed.tags for name in attributes} <= known
    assert "\u202e" not in rendered(rows)
    assert all(":" not in link["href"] and not link["href"].startswith("/") for link in parsed.all("a"))


def test_a_folder_named_like_a_scheme_is_a_folder():
    links = Page(rendered([row_of(folder="javascript:alert(1)")])).all("a")
    assert "javascript%3Aalert%281%29/report.html" in [link["href"] for link in links]


def test_the_page_loads_nothing_and_runs_its_own_script_only():
    text = rendered([row_of(), failed_row("/data/e.log", "e-1")])
    parsed = Page(text)
    policy = next(meta["content"] for meta in parsed.all("meta") if meta.get("http-equiv"))
    script = text.split("<script>")[1].split("</script>")[0]
    style = text.split("<style>")[1].split("</style>")[0]
    for kind, content in (("script-src", script), ("style-src", style)):
        digest = base64.b64encode(sha256(content.encode()).digest()).decode()
        assert f"{kind} 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy and "unsafe" not in policy
    assert "http:" not in text and "https:" not in text and "src=" not in text and " style=" not in text


def test_every_column_of_numbers_names_its_unit_and_every_row_fills_every_column():
    parsed = Page(rendered([row_of(), failed_row("/data/e.log", "e-1"), row_of(card=card_of([1, 2]))]))
    head, *rows = parsed.rows
    assert {len(row) for row in rows} == {len(head)} == {len(cells.HEADS)}
    numeric = [title for title, kind, _ in cells.HEADS if kind == "number"]
    assert len(numeric) >= 8 and all("[" in title for title in numeric)
    assert [head[column] for column in cells.FILTERS.values()] == list(cells.FILTERS)


def test_the_cells_say_what_the_row_holds_rounded_once_in_the_unit_of_the_head():
    """Step 30 ms + 5 ms N exactly: 200 tok/s, half at 6, 190 ms +- 2 % and 32 / 0.19 = 168 tok/s at 32."""
    row = row_of() | {"asymptote_tok_per_s_lo": 190.04, "asymptote_tok_per_s_hi": 211.0, "loo_error_frac": 0.0123}
    head, body = Page(rendered([row])).rows
    said = dict(zip(head, body, strict=True))
    assert said["Asymptote [tok/s]"] == "200 [190, 211]" and said["Half load [req]"] == "6.00"
    assert said["Top step [ms]"] == "190 [186, 194]" and said["Top rate [tok/s]"] == "168"
    assert said["Fixed cost [ms]"].startswith("30.0") and said["Per request [ms/req]"].startswith("5.00")
    assert said["Error [%]"] == "1.23" and said["Levels [req] (count)"] == "1 to 32 (6)"
    assert said["Hardware"] == "h100 sxm tp 4" and said["Model"] == "tiny-llama" and said["Took [s]"] == "5.50"
    assert said["Step / target [1]"] == "" and said["Status"] == "good"


def test_a_refused_law_shows_levels_and_no_number_of_a_law():
    """Even where the scorecard holds a straight line beside the refusal."""
    line = {"intercept_s": 0.03, "slope_s_per_req": 0.005, "asymptote_tok_per_s": 200.0, "half_load_req": 6.0}
    head, body = Page(rendered([row_of(card=card_of([1, 2]), status="cannot_tell") | line])).rows
    said = dict(zip(head, body, strict=True))
    law = ("Fixed cost [ms]", "Per request [ms/req]", "Asymptote [tok/s]", "Half load [req]", "Error [%]")
    assert [said[name] for name in law] == [""] * 5
    assert said["Top step [ms]"].startswith("40.0") and said["Step over requests"].strip() == "none"


def test_the_sparkline_puts_levels_and_law_where_they_are():
    """At the right edge and the top: level 4 with 8 ms. Level 2 with 4 ms lies in the middle of both axes."""
    levels = [{"running_req": n, "step_s": 0.002 * n, "step_s_lo": 0.0019 * n, "step_s_hi": 0.002 * n} for n in (2, 4)]
    text = sparkline(levels, [(0.0, 0.0), (4.0, 0.008)], "a < b")
    assert "<title>a &lt; b</title>" in text and 'role="img"' in text
    paths_ = {attributes["class"]: attributes["d"] for attributes in Page(text).all("path")}
    right, bottom = WIDTH - MARGIN, HEIGHT - MARGIN
    assert paths_["p"] == f"M{WIDTH // 2} {HEIGHT / 2:.1f}h0M{right} {MARGIN:.1f}h0"
    assert paths_["l"] == f"M{MARGIN} {bottom:.1f}L{right} {MARGIN:.1f}"
    assert paths_["i"] == f"M{WIDTH // 2} {HEIGHT / 2 + 0.05 * (bottom - MARGIN) / 2:.1f}V{HEIGHT / 2:.1f}" + (
        f"M{right} {MARGIN + 0.05 * (bottom - MARGIN):.1f}V{MARGIN:.1f}")


def test_a_sparkline_stays_inside_its_box_and_small():
    rng = np.random.default_rng(1)
    levels = [{"running_req": n, "step_s": step, "step_s_lo": step / 9, "step_s_hi": 9 * step}
              for n, step in zip(np.arange(1, 301), rng.uniform(0.001, 1, 300), strict=True)]
    text = sparkline(levels, [], "")
    dots = next(attributes["d"] for attributes in Page(text).all("path") if attributes["class"] == "p")
    assert dots.count("h0") == 24 and f"M{WIDTH - MARGIN} " in dots and len(text) < 2000
    heights = [float(part.split("V")[0].split("h")[0].split(" ")[-1]) for part in text.split("M")[1:]]
    assert 0 <= min(heights) and max(heights) <= HEIGHT
    assert sparkline([{"running_req": 1, "step_s": None}], [], "") == ""


def test_the_sparkline_says_the_law_in_words():
    text = rendered([row_of()])
    assert (f"{show(0.035, 's')} a step at 1 running request, {show(0.19, 's')} at 32 (6 levels); "
            f"law: {show(0.03, 's')} + N x {show(0.005, 's/req')}") in text
    refused = row_of(card=card_of([1, 2]))
    assert f"; no law: {refused['refused']}" in Page(rendered([refused])).text()


def test_200_rows_are_below_300_kb():
    row = row_of(folder="sweep-000-0123456789ab")
    rows = [row | {"dump": f"/data/sweep-{i:03d}.log", "folder": f"sweep-{i:03d}-0123456789ab"} for i in range(200)]
    assert len(rendered(rows).encode()) < 300_000


def luminance(colour):
    """WCAG 2.2, relative luminance of #rrggbb."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_are_readable(scheme):
    """WCAG AA: 4.5 for text, 3 for what a drawing or a border says."""
    assert contrast("#000000", "#ffffff") == pytest.approx(21) and contrast("#777777", "#ffffff") < 4.5
    light, dark = page.STYLE.split("@media (prefers-color-scheme: dark)")
    text = light if scheme == "light" else dark.split("}")[0]
    colours = dict(part.strip().removeprefix("--").split(": ") for part in text[text.index("--") :].split(";")
                   if part.strip().startswith("--"))
    for name in ("fg", "dim", "accent", "bad", "good"):
        for ground in ("bg", "soft"):
            assert contrast(colours[name], colours[ground]) >= 4.5, (name, ground)
    assert contrast(colours["mark"], colours["bg"]) >= 3


def test_the_index_is_written_whole(tmp_path):
    path = page.write_index([row_of()], [], tmp_path, written=WRITTEN)
    assert path == tmp_path / "index.html" and path.read_text() == rendered([row_of()])
    assert [file.name for file in tmp_path.iterdir()] == ["index.html"]


def test_dumps_are_named_from_the_folder_that_they_share():
    assert page.common_folder(["/a/b/x.log", "/a/c/x.log", "plain"]) == "/a/"
    assert page.common_folder(["s3://bucket/x/1.log", "s3://bucket/x/2.log"]) == "s3://bucket/x/"
    assert page.common_folder(["/a/x.log", "b/x.log"]) == page.common_folder(["x.log"]) == ""


SCRIPT_TEST = """
const said = [], heads = [...document.querySelectorAll("thead th")];
const column = (n) => [...document.querySelectorAll("tbody tr")].filter((row) => !row.hidden)
  .map((row) => row.cells[n].dataset.v ?? row.cells[n].textContent.trim());
const click = (n) => { heads[n].querySelector("button").click(); return column(n); };
const set = (what, value) => { what.value = value; what.dispatchEvent(new Event("input", { bubbles: true })); };
const [search, form] = [document.querySelector("[data-search]"), document.querySelector("form")];
const names = () => column(0).map((text) => text.slice(0, 5));
const more = document.querySelector("button.more");
said.push(click(11), document.querySelector("output").textContent, more.textContent);
more.click(); heads[11].querySelector("button").click();
said.push(more.hidden, click(11), heads[11].getAttribute("aria-sort"), click(11), heads[11].getAttribute("aria-sort"));
said.push(click(0), heads[11].hasAttribute("aria-sort"), form.hidden);
set(search, "SGLANG  b2"); said.push(names());
set(search, "no such"); said.push(names(), document.querySelector("output").textContent);
set(search, ""); set(document.querySelector('select[data-column="1"]'), "failed"); said.push(names());
form.reset();
setTimeout(() => { said.push(names().length, [...document.querySelectorAll("select")][0].options.length);
  document.body.textContent = JSON.stringify(said); });
"""


def test_the_table_sorts_and_filters_in_a_browser(chromium, tmp_path):
    """Steps of 9, 10 and 100 ms sort as numbers, unknown last both ways; names sort as people count."""
    rows = [row_of(f"/data/{name}.log", f"{name}-1") | {"top_step_s": step_s, "top_step_s_lo": None}
            for name, step_s in (("b10", 0.1), ("b2", 0.009), ("b1", 0.01))]
    text = rendered([*rows, failed_row("/data/c.log", "c-1")])
    text = text.replace(f'data-limit="{cells.MAX_SHOWN}"', 'data-limit="3"')
    policy = text[text.index("<meta http-equiv") : text.index("<meta name=")]
    (tmp_path / "index.html").write_text(text.replace(policy, "").replace(
        "</body>", f"<script>{{{SCRIPT_TEST}}}</script></body>"))
    (tmp_path / "policy.html").write_text(text)
    shown = [subprocess.run(
        [chromium, "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
         "--virtual-time-budget=2000", f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom",
         (tmp_path / name).as_uri()], capture_output=True, text=True, timeout=BROWSER_S, check=True,
    ).stdout for name in ("index.html", "policy.html")]
    said = json.loads(shown[0][shown[0].index("<body>") + 6 : shown[0].index("</body>")])
    few, n_few, all_, is_gone, up, is_up, down, is_down, named, still, hidden, *filtered = said
    assert (few, n_few, all_, is_gone) == (["9", "10", "100"], "4 of 4, the first 3 shown", "Show all 4", True)
    assert (up, is_up) == (["9", "10", "100", ""], "ascending")
    assert (down, is_down) == (["100", "10", "9", ""], "descending")
    assert [name[:3] for name in named] == ["b1.", "b2.", "b10", "c.l"] and not still and not hidden
    found, none, count, failed, n_back, n_options = filtered
    assert found == ["b2.lo"] and none == [] and count == "0 of 4" and failed == ["c.log"]
    assert (n_back, n_options) == (4, 3)
    assert shown[1].count("<button type=\"button\">") == len(cells.HEADS), "its policy lets its own script run"


def test_the_script_and_style_are_packaged_beside_the_package():
    assert (paths.PACKAGE / "sortable.js").is_file() and (paths.PACKAGE / "sortable.css").is_file()
