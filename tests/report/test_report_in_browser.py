"""The report as a browser shows it: first screen, both schemes, 400 px, keyboard, paper, hostile text.

Would catch: an answer below the first screen, a script of a log that runs, a figure black on black, a page that
scrolls sideways, a table that cannot be sorted by key or is cut on paper, a number that is not the scorecard's.
"""

import json
import time

import pytest
from executed import SCRIPT, comparison_folder, run_folder, write_hostile_log

from helpers.display import level_key, show

pytestmark = pytest.mark.filterwarnings("default")  # of IPython and of the browser's driver, not ours

WIDE, NARROW = {"width": 1100, "height": 900}, {"width": 400, "height": 800}


@pytest.fixture(scope="module")
def folders(tmp_path_factory, data):
    base = tmp_path_factory.mktemp("report")
    case = data / "samples" / "sim-field-case-a"
    context = {"model_config": "DeepSeek-V4-Flash-NVFP4", "hardware": "rtx pro 6000 blackwell server"}
    hostile = write_hostile_log(base / "hostile.log")
    return {"case": run_folder(base / "case", case / "server.log", context),
            "hostile": run_folder(base / "hostile", hostile), "comparison": comparison_folder(base / "comparison")}


@pytest.fixture(scope="module")
def pages(browser, folders):
    """Each report opened once, without a network: to parse plotly.js takes the browser a second."""
    context = browser.new_context(viewport=WIDE, color_scheme="light", offline=True)
    pages = {}
    for name, folder in folders.items():
        page = pages[name] = context.new_page()
        page.faults = []
        listen(page, page.faults)
        page.goto((folder / "report.html").as_uri())
        page.wait_for_selector("html[data-drawn]")
    yield pages
    context.close()


def listen(page, faults):
    """Note what a reader must never meet: messages, dialogs, requests."""
    page.on("console", lambda said: faults.append(said.text) if said.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("dialog", lambda dialog: (faults.append(f"dialog {dialog.message}"), dialog.dismiss()))
    page.on("request", lambda asked: faults.append(asked.url) if asked.url.startswith(("http", "ws")) else None)


@pytest.fixture
def look(pages):
    """Return a page in a size and a scheme; what went wrong since it was opened is in `page.faults`."""

    def look(name, viewport=WIDE, scheme="light"):
        page = pages[name]
        page.set_viewport_size(viewport)
        page.emulate_media(color_scheme=scheme, media="screen")
        ink = {"light": "rgb(27, 31, 36)", "dark": "rgb(228, 232, 236)"}[scheme]
        until(page, f"{INK} === '{ink}' && [...document.querySelectorAll('.canvas .svg-container')].every((e) => "
                    "e.getBoundingClientRect().width < e.closest('.plot').clientWidth + 1)")  # clientWidth is rounded
        return page

    return look


INK = "getComputedStyle(document.querySelector('.plot .xtitle')).fill"


def until(page, condition, seconds=10.0):
    """Wait for the page; playwright's own waiting needs eval, which the page forbids."""
    end = time.monotonic() + seconds
    while not page.evaluate(condition):
        assert time.monotonic() < end, condition
        time.sleep(0.02)


def card_of(folders, name):
    return json.loads((folders[name] / "scorecard.json").read_text())


def bottom(page, selector):
    box = page.locator(selector).first.bounding_box()
    return box["y"] + box["height"]


def test_the_first_screen_holds_the_answer(look, folders):
    page, card = look("case"), card_of(folders, "case")
    assert page.faults == []
    assert bottom(page, "section.answer") <= WIDE["height"]  # all of it: sentence, law, roofline, plan, causes, figure
    text = page.locator("section.answer").inner_text()
    fit, top = card["fit"], card["diagnosis"][0]
    law = (f"{show(fit['intercept_s'], 's', fit['intercept_s_lo'], fit['intercept_s_hi'])} + N x "
           f"{show(fit['slope_s_per_req'], 's/req', fit['slope_s_per_req_lo'], fit['slope_s_per_req_hi'])}")
    ratio = {key: show(value) for key, value in card["roofline"]["ratio"].items()}
    for said in (top["cause"], top["status"], law, f"at N=64 a step takes {ratio['64']}x the target",
                 card["next_experiment"]["what"], show(card["next_experiment"]["duration_s"], "duration")):
        assert said in text, said
    assert page.locator("section.answer .plot .main-svg").count() > 0


def test_the_first_screen_of_a_comparison_shows_both_sides_of_every_row(look):
    page = look("comparison")
    assert page.faults == []
    assert bottom(page, "section.answer") <= WIDE["height"]
    box = page.locator(".box", has_text="base to new")
    assert box.evaluate("(e) => e.scrollWidth <= e.clientWidth && e.scrollHeight <= e.clientHeight")
    rows = [row.locator("th, td").all_inner_texts() for row in box.locator("tbody tr").all()]
    assert len(rows) == 11
    assert rows[6] == ["step at N=64", "worse", "+14.0 % [+4.0, +24.0]", "45.6 to 52.0 ms"]  # 20 + 64 x 0.4 or 0.5 ms
    assert rows[9][3] == "0.409 to 0.506 ms/req"


def test_tables_hold_the_numbers_of_the_scorecard(look, folders):
    page, levels = look("case"), card_of(folders, "case")["levels"]
    table = page.locator("table.sortable", has_text="clean intervals").first
    rows = [row.locator("th, td").all_inner_texts()[:4] for row in table.locator("tbody tr").all()]
    assert rows == [
        [level_key(level["running_req"]), show(level["step_s"], "s").removesuffix(" ms"),
         f"{show(level['step_s_lo'], 's').removesuffix(' ms')} to {show(level['step_s_hi'], 's').removesuffix(' ms')}",
         show(level["decode_tok_per_s"])] for level in levels]
    causes = [row.locator("th, td").all_inner_texts()[0] for row in page.locator("table.causes tbody tr").all()]
    status = {row["cause"]: row["status"] for row in card_of(folders, "case")["diagnosis"]}
    names = [text.split(":")[0] for text in page.locator("table.causes tbody tr td:nth-child(2)").all_inner_texts()]
    assert causes == [status[name] for name in names] and "max_context_work" in names


def test_tables_are_sorted_by_click_and_by_key(look):
    page = look("case")
    table = page.locator("table.sortable", has_text="clean intervals").first
    head = table.locator("thead th", has_text="decode")
    first_cells = table.locator("tbody tr > :first-child")
    head.locator("button").click()
    assert (head.get_attribute("aria-sort"), first_cells.all_inner_texts()) == ("ascending", ["1", "16", "32", "64"])
    head.locator("button").focus()
    page.keyboard.press("Enter")
    assert (head.get_attribute("aria-sort"), first_cells.all_inner_texts()) == ("descending", ["64", "32", "16", "1"])
    clean = table.locator("thead th", has_text="clean time")
    clean.locator("button").focus()
    page.keyboard.press("Space")
    assert clean.get_attribute("aria-sort") == "ascending" and head.get_attribute("aria-sort") is None
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"  # where the focus is


def test_every_table_can_be_sorted(look):
    page = look("case")
    n = page.evaluate("[...document.querySelectorAll('table')].map((t) => [t.tHead.rows[0].cells.length, "
                      "t.querySelectorAll('thead button').length])")
    assert len(n) >= 4 and all(heads == buttons for heads, buttons in n)


def test_the_skip_link_comes_first_and_leads_to_the_sections(look):
    page = look("case")
    skip = page.locator(".skip")
    assert skip.bounding_box()["x"] < 0  # until it is reached, first of all
    assert page.evaluate("document.querySelector('a[href], button, summary, [tabindex]').className") == "skip"
    skip.focus()
    assert skip.bounding_box()["x"] >= 0
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "sections"
    assert [page.locator(tag).count() for tag in ("main", "header", "nav", "footer", "h1")] == [1] * 5


CONTRASTS = """() => {
  const parts = (text) => text.match(/[\\d.]+/g).map(Number);
  const luminance = (c) => { const [r, g, b] = c.slice(0, 3).map((v) => v / 255).map((v) =>
    v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const ground = (e) => { for (; e; e = e.parentElement) {
    const c = parts(getComputedStyle(e).backgroundColor); if (c.length === 3 || c[3] === 1) return c; }
    throw new Error("no ground"); };
  const found = {};
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const e = walker.currentNode.parentElement, style = getComputedStyle(e);
    if (!walker.currentNode.data.trim() || !e.checkVisibility() || ["SCRIPT", "STYLE"].includes(e.tagName)) continue;
    if (e.closest(".bars")) continue; // text inside bars: plotly picks black or white
    const ink = parts(e.ownerSVGElement ? style.fill : style.color), paper = ground(e);
    const [low, high] = [luminance(ink), luminance(paper)].sort((a, b) => a - b);
    const key = `${ink} on ${paper} in ${e.ownerSVGElement ? "figure" : "page"}`;
    found[key] = [(high + 0.05) / (low + 0.05), walker.currentNode.data.trim().slice(0, 40)];
  }
  return found; }"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["case", "hostile"])
def test_text_has_contrast_in_either_scheme(look, name, scheme):
    """WCAG 2.2, 1.4.3: 4.5 to 1, in figures too."""
    page = look(name, scheme=scheme)
    found = page.evaluate(CONTRASTS)
    assert sum("figure" in key for key in found) >= 2 and len(found) >= 8
    assert {key: value for key, value in found.items() if value[0] < 4.5} == {}
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert ground == {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 24, 28)"}[scheme]
    assert page.faults == []


def test_figures_follow_a_change_of_scheme(look):
    page = look("case")
    assert page.evaluate(INK) == "rgb(27, 31, 36)"
    page.emulate_media(color_scheme="dark")
    until(page, f"{INK} === 'rgb(228, 232, 236)'")


@pytest.mark.parametrize("name", ["case", "hostile", "comparison"])
def test_a_narrow_screen_never_scrolls_sideways(look, name):
    page = look(name, NARROW)
    until(page, f"document.documentElement.scrollWidth === {NARROW['width']}")  # figures follow a new size
    beyond = page.evaluate("""[...document.querySelectorAll('main *, footer *')].filter((e) =>
        !e.closest('.box, pre, svg, .hidden') && e.checkVisibility()
        && e.getBoundingClientRect().right > innerWidth + 1).map((e) => e.outerHTML)""")
    assert beyond == []
    if name == "case":  # the key of a row stays in sight while the wide table is scrolled in its box
        box = page.locator(".box", has_text="clean intervals").first
        cell = box.locator("tbody th").first
        x = cell.bounding_box()["x"]
        assert box.evaluate("(e) => { e.scrollLeft = 150; return e.scrollLeft; }") == 150
        assert abs(cell.bounding_box()["x"] - x) < 2


def test_paper_shows_everything_and_cuts_nothing(look):
    page = look("case", {"width": 703, "height": 1000}, scheme="dark")
    page.emulate_media(media="print")  # keeps the reader's dark scheme: paper is light all the same
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.evaluate(INK) == "rgb(27, 31, 36)"
    assert page.evaluate("document.documentElement.scrollWidth") <= 703
    cut = page.evaluate("""[...document.querySelectorAll('.box, .plot, pre')].filter((e) => e.checkVisibility()
        && (e.scrollWidth > e.clientWidth + 1 || e.scrollHeight > e.clientHeight + 1)).map((e) => e.textContent)""")
    assert cut == []
    assert page.locator("details:not(.code):not([open])").count() == 0
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.locator("details[open]").count() == 0
    assert len(page.pdf()) > 50_000 and page.faults == []


def test_a_hostile_log_gives_a_safe_and_honest_page(look, folders):
    page = look("hostile")
    page.locator("summary").evaluate_all("(all) => all.forEach((e) => e.click())")
    page.locator("summary").evaluate_all("(all) => all.forEach((e) => e.click())")
    assert page.faults == []
    assert page.locator("img, iframe, object, form").count() == 0
    text = page.locator("section.answer").inner_text()
    assert SCRIPT in text  # the model's name as it was given
    assert "No law of step time is claimed: expected 3 or more levels" in text
    assert "10000 of 10060 lines with statistics are malformed" in text
    assert bottom(page, "section.answer") <= WIDE["height"]
    assert (folders["hostile"] / "report.html").stat().st_size < 6e6


def test_the_policy_stops_what_would_slip_through(browser, folders):
    page = browser.new_page()
    said = []
    page.on("console", lambda message: said.append(message.text))
    page.goto((folders["hostile"] / "report.html").as_uri(), wait_until="commit")
    page.wait_for_selector("main")
    page.evaluate("""() => { const script = document.createElement('script'); script.text = 'window.ran = 1';
        document.body.append(script); document.body.insertAdjacentHTML('beforeend',
        '<img src="https://example.invalid/x.png" onerror="window.ran = 2">'); }""")
    until(page, "true")
    assert page.evaluate("window.ran") is None
    assert sum("Content Security Policy" in text for text in said) >= 2
    page.close()
