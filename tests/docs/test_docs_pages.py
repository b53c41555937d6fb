"""The documentation as a reader meets it: all pages written, every notebook and recipe executed, every link followed.

Would catch: a number on an executed page that is no longer what the code computes, a recipe that ends otherwise than it
says, a page that is in no list, a link that leads nowhere, a figure that became text, a page that loads something.
"""

import copy
import json
import posixpath
import re
import shlex
from html.parser import HTMLParser

import nbformat
import pytest
import typer

import notebook_rules as rules
from docsite import __main__ as docsite
from docsite.commands import BLOCK, CommandFailed, Workplace, split
from docsite.pages import Site, of_markdown, of_notebook
from helpers.cli.app import app
from helpers.run.normal import normal_form

pytestmark = pytest.mark.notebook

NOTEBOOKS = ("method.ipynb", "tutorial-case-a.ipynb", "tutorial-case-b.ipynb")
RULES = [rule for rule in rules.RULES if rule not in (rules.one_parameters_cell_second, rules.cell_order)]
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


class Page(HTMLParser):
    """Links, ids and what a page would load."""

    def __init__(self, content):
        super().__init__()
        self.links, self.ids, self.loads, self.text, self.skipped = [], set(), [], "", 0
        self.feed(content)

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.skipped += tag in ("script", "style")
        self.ids |= {given["id"]} if "id" in given else set()
        self.links += [given["href"]] if tag == "a" else []
        self.loads += [tag] if "src" in given or tag == "link" else []

    def handle_endtag(self, tag):
        self.skipped -= tag in ("script", "style")

    def handle_data(self, data):
        self.text += "" if self.skipped else data


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Every page written as `make docs` does, and the notebooks as they were executed for it."""
    executed = {}

    def run(path):
        executed[path.name] = docsite.executed(path)
        return executed[path.name]

    out = tmp_path_factory.mktemp("docs")
    written = docsite.build(out, run=run)
    pages = {path.name: Page(path.read_text(encoding="utf-8")) for path in written}
    pages["index.html"].folder = out
    return pages, executed


def test_every_document_is_a_page_and_in_the_list_of_contents(site, root):
    pages, executed = site
    sources = {path.name for path in (root / "docs").iterdir() if path.suffix in (".md", ".ipynb")}
    assert sources - set(Site.of(root / "docs").names) == set()
    assert sorted(executed) == list(NOTEBOOKS)
    assert list(pages)[0] == "index.html" and len(pages) == len(sources) + 1  # data/README.md is the one from elsewhere
    for page in pages.values():
        assert set(pages) <= set(page.links)  # each page lists all


def test_every_link_leads_somewhere(site):
    pages, _ = site
    inner = [(name, *link.partition("#")[::2]) for name, page in pages.items() for link in page.links
             if "://" not in link]
    assert len(inner) > 16 * len(pages)
    assert [(name, path, anchor) for name, path, anchor in inner
            if (path or name) not in pages or (anchor and anchor not in pages[path or name].ids)] == []
    assert {link for page in pages.values() for link in page.links if "docs.invalid" in link} == set()


def test_links_in_the_sources_lead_to_files(root):
    """Those that are read on a forge, not as pages; a link to a heading names one."""
    wrong = []
    for path in [*(root / "docs").glob("*.md"), *(root / "docs").glob("*.ipynb")]:
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".ipynb":
            text = "\n\n".join(c.source for c in nbformat.reads(text, as_version=4).cells if c.cell_type == "markdown")
        for link in LINK.findall(re.sub(r"^```.*?^```|`[^`\n]+`", "", text, flags=re.MULTILINE | re.DOTALL)):
            target = posixpath.normpath(posixpath.join("docs", link.partition("#")[0])) if link[0] != "#" else "docs"
            wrong += [(path.name, link)] if "://" not in link and not (root / target).exists() else []
    assert wrong == []


def test_a_wrong_link_of_a_source_is_seen(root, tmp_path):
    site = Site.of(root / "docs")
    assert site.href("method.ipynb#5-a-law", "how-to.md") == "https://docs.invalid/method.html#5-a-law"
    assert site.href("../data/README.md", "how-to.md") == "https://docs.invalid/data.html"
    assert site.href("README.md", "../data/README.md") == "https://docs.invalid/data.html"
    assert site.href("../docs/how-to.md", "../data/README.md") == "https://docs.invalid/how-to.html"
    assert site.href("how-to.md", "../data/README.md") == "how-to.md"  # there is none beside it: no page
    page = Page(of_markdown("# A\n\n[b](method.ipynb) [c](gone.md) [d](#e)\n\n## E\n", "how-to.md", site).decode())
    assert page.links.count("method.html") == 2  # in the list and in the text
    assert "gone.md" not in page.links and "how-to.html#e" in page.links and "e" in page.ids


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_is_stored_with_the_numbers_that_it_computes(site, root, name):
    """What nbval compares, and more: the whole stored form."""
    stored = nbformat.read(root / "docs" / name, as_version=4)
    now = normal_form(copy.deepcopy(site[1][name]))
    assert [c for c in stored.cells if "scorecard" in c.metadata.get("tags", [])][0].outputs
    assert nbformat.writes(now) == nbformat.writes(stored)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_notebooks_keep_the_rules_of_all_notebooks(root, name, rule):
    assert rule(json.loads((root / "docs" / name).read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize(("name", "n_figures"), [("method", 2), ("tutorial-case-a", 2), ("tutorial-case-b", 2)])
def test_figures_are_figures_and_no_page_loads_anything(site, name, n_figures):
    pages, executed = site
    shown = [output for cell in executed[f"{name}.ipynb"].cells for output in cell.get("outputs", [])]
    assert sum("application/vnd.plotly.v1+json" in output.get("data", {}) for output in shown) == n_figures
    assert {tag: page.loads for tag, page in pages.items() if page.loads} == {}
    assert "Figure({" not in pages[f"{name}.html"].text


def test_the_tutorials_say_what_the_field_cases_are_known_for(site):
    """By hand: 588 / 32.85 = 17.9; the rounds 3.08 / 55 to 3.98 / 72 are 55.3 to 56.0 ms; 55.5 - 42.4 = 13.1."""
    case_a, case_b = site[0]["tutorial-case-a.html"].text, site[0]["tutorial-case-b.html"].text
    assert "588 tok/s: 17.9x" in case_a
    assert "max_context_work: compatible before, supported now" in case_a
    assert "63 requests x 262,208 positions" in case_a
    assert "55.5 ms [55.0, 56.0]" in case_b or "55.5 ms [55.1, 56.0]" in case_b
    assert "13.1 ms were left open" in case_b


def test_the_recipes_show_what_they_print(site, root):
    text = (root / "docs" / "how-to.md").read_text(encoding="utf-8")
    assert len(BLOCK.findall(text)) >= 9
    shown = site[0]["how-to.html"].text
    assert shown.count("prints") >= 9
    for said in ("max_context_work", "end: steady decode is proven", "Verdict: worse", "same samples", "In all:",
                 "read as one"):
        assert said in shown, said
    assert str(root) not in shown and "/tmp/" not in shown


def commands_of(text):
    """Return the rooflog commands of a shell text as words, up to the next operator."""
    lexer = shlex.shlex(text.replace("\n", " ; "), posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split = True
    words, found = list(lexer), []
    for i, word in enumerate(words):
        if word == "rooflog":
            end = next((j for j in range(i, len(words)) if set(words[j]) <= set("|&;<>")), len(words))
            found.append(words[i:end])
    return found


def test_recipes_that_are_not_run_have_commands_and_options_that_exist(root):
    known = typer.main.get_command(app).commands
    text = (root / "docs" / "how-to.md").read_text(encoding="utf-8")
    commands = [c for block in re.findall(r"^```sh not run[^\n]*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
                for c in commands_of(block)]
    assert len(commands) >= 6
    for _, name, *words in commands:
        options = {option for parameter in known[name].params for option in parameter.opts}
        assert [word for word in words if re.match(r"--?[a-z]", word) and word not in options] == [], name
    assert commands_of("a | rooflog x -y 1 && rooflog z") == [["rooflog", "x", "-y", "1"], ["rooflog", "z"]]


def test_no_page_names_a_folder_of_this_machine(site, root):
    assert [name for name, page in site[0].items() if str(root) in page.text] == []


def test_a_recipe_that_ends_otherwise_is_seen():
    with Workplace() as work:
        assert work.run("ls data/field; false # exit code 1\n").exit_code == 1
        with pytest.raises(CommandFailed, match="expected exit code 0, found 3"):
            work.run("exit 3\n")
        with pytest.raises(CommandFailed, match="expected exit code 1, found 0"):
            work.run("true # exit code 1\n")
    pieces = list(split("a\n```sh\nls\n```\nb\n```sh not run\nrm\n```\n"))
    assert [commands for _, commands in pieces] == ["ls\n", ""]
    assert "".join(text for text, _ in pieces) == "a\n```sh\nls\n```\nb\n```sh not run\nrm\n```\n"


def test_text_of_a_notebook_cannot_become_markup(root):
    """Would catch: an output of a page that runs in it."""
    evil = "<script>alert(1)</script><img src=x onerror=alert(1)>"
    cells = [nbformat.v4.new_markdown_cell(f"# T {evil}\n\n## {evil}\n\n{evil}"), nbformat.v4.new_code_cell(
        evil, outputs=[nbformat.v4.new_output("stream", text=evil)])]
    content = of_notebook(nbformat.v4.new_notebook(cells=cells), "method.ipynb", Site.of(root / "docs")).decode()
    assert "<script>alert" not in content and "<img" not in content
    assert Page(content).loads == []


@pytest.mark.filterwarnings("default")  # of the browser's driver, not ours
@pytest.mark.parametrize("width", [1100, 400])
def test_pages_in_a_browser(site, width, browser):
    """Offline, on a screen and on a telephone: no message, no sideways scrolling, a link followed, figures drawn."""
    context = browser.new_context(viewport={"width": width, "height": 800}, offline=True)
    page = context.new_page()
    faults = []
    page.on("console", lambda said: faults.append(said.text) if said.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.goto((site[0]["index.html"].folder / "index.html").as_uri())
    for words, title in (("How-to", "How-to: short recipes"), ("Tutorial A", "Tutorial: field case A")):
        page.locator("nav.pages").get_by_role("link", name=words, exact=True).click()
        assert page.locator("h1").inner_text().startswith(title)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), words
    page.locator(".plot .main-svg").first.wait_for(state="attached")
    context.close()
    assert faults == []
