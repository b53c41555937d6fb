"""A newcomer's first hour: what README.md shows and names, `rooflog --help`, and JupyterLab as `make lab` opens it.

Would catch: a picture that is gone or shows another law than was simulated, a command nobody can find, a help that
breaks its lines at 80 columns, a Lab that opens on nothing, asks a question first, or comes to no answer by itself.
"""

import io
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

import pytest
import typer

from helpers.cli import manual
from helpers.cli.app import app

LAB_LINE_S = 60.0
"""Longest time until JupyterLab says where it is, and then until its page has the notebook [s]."""


def helped(*words, columns=80):
    """Return what a newcomer sees, line by line, at a width."""
    environment = {**os.environ, "COLUMNS": str(columns), "TERMINAL_WIDTH": str(columns), "NO_COLOR": "1"}
    return subprocess.run([sys.executable, "-m", "helpers.cli", *words], capture_output=True, text=True, check=True,
                          env=environment).stdout.splitlines()


def test_every_command_has_its_purpose_and_a_line_of_80_columns():
    commands = typer.main.get_command(app).commands
    known = {name: short for rows in manual.PURPOSES.values() for name, short in rows.items()}
    assert sorted(known) == sorted(commands)
    assert list(commands) == list(known)  # the order of the help
    lines = helped("--help")
    for name, short in known.items():
        assert any(re.fullmatch(rf"│ {name} +{re.escape(short)} +│", line) for line in lines), name
    titles = [line for line in lines if line.startswith("╭─ ")]
    assert [title.strip("╭─╮ ") for title in titles] == ["Options", *manual.PURPOSES]


@pytest.mark.parametrize("columns", [80, 120])
def test_the_help_shows_three_examples_first_and_where_to_read_more(columns):
    lines = helped("--help", columns=columns)
    first_panel = next(number for number, line in enumerate(lines) if line.startswith("╭"))
    assert sum(line.startswith("   rooflog ") for line in lines[:first_panel]) >= 3
    words = " ".join(" ".join(lines[first_panel:]).split())
    assert "Read more: rooflog COMMAND --help" in words and "README.md and docs/" in words
    assert all(len(line) <= columns for line in lines)


@pytest.mark.parametrize("command", ["watch", "compare", "run"])
def test_a_paragraph_of_a_help_fills_the_line(command):
    """Typer keeps the line breaks of a docstring: at 80 columns one of 118 would end in a line of a word or two."""
    lines = [line.strip() for line in helped(command, "--help")]
    text = lines[: lines.index("Examples")]
    for number, line in enumerate(text[:-1]):
        following = text[number + 1].split(" ")[0]
        assert not line or not following or len(line) + 1 + len(following) > 76, (line, text[number + 1])


def test_a_unit_in_brackets_is_no_markup():
    assert "[s]; 0 is without limit." in " ".join(" ".join(helped("watch", "--help", columns=120)).split())


def test_examples_are_indented_also_where_nothing_else_follows_the_first_line():
    assert "   rooflog engines vllm" in [line.rstrip() for line in helped("engines", "--help")]


def test_the_readme_shows_both_pictures(root):
    text = (root / "README.md").read_text(encoding="utf-8")
    shown = re.findall(r"!\[([^\]]+)\]\(([^)]+)\)", text)
    assert [name for _, name in shown] == ["docs/answer.png", "docs/watch.svg"]
    assert all(len(words) > 30 for words, _ in shown)  # for who cannot see them
    png = (root / "docs" / "answer.png").read_bytes()
    assert png[:8] == b"\x89PNG\r\n\x1a\n" and (int.from_bytes(png[16:20]), int.from_bytes(png[20:24])) == (1100, 900)


def test_the_picture_of_watch_holds_the_simulated_law_and_loads_nothing(root):
    """Simulated: 20 ms + N x 0.5 ms/req (tools/picture.py)."""
    svg = (root / "docs" / "watch.svg").read_text(encoding="utf-8")
    assert "@font-face" not in svg and "url(http" not in svg and "href" not in svg
    text = " ".join(" ".join(re.findall(r"<text[^>]*>([^<]*)</text>", svg)).replace("&#160;", " ").split())
    found = re.search(r"step = \S+ ms \[(\S+), (\S+)\] \+ N x \S+ ms/req \[(\S+), (\S+)\]", text)
    a_lo, a_hi, b_lo, b_hi = map(float, found.groups())
    assert a_lo <= 20.0 <= a_hi and b_lo <= 0.5 <= b_hi
    assert re.search(r"phase steady requests 16 running", text)


@pytest.fixture
def lab(root, tmp_path):
    """Start what `make lab` starts, on a copy of the checkout, without a browser and without the user's settings."""
    if shutil.which("make") is None:
        pytest.skip("no make to ask what `make lab` starts")
    shutil.copytree(root / "notebooks", tmp_path / "notebooks")  # Lab saves what it has run
    os.symlink(root / "data", tmp_path / "data")
    outside = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}  # not as a part of it
    asked = subprocess.run(["make", "-n", "lab"], cwd=root, check=True, capture_output=True, text=True, env=outside)
    command = asked.stdout.splitlines()[-1].replace(".venv/bin/jupyter", f"{sys.executable} -m jupyter")
    assert "-m jupyter lab" in command
    folders = ("JUPYTER_CONFIG", "JUPYTER_DATA", "JUPYTER_RUNTIME", "JUPYTERLAB_SETTINGS", "JUPYTERLAB_WORKSPACES")
    environment = {**os.environ, **{f"{name}_DIR": str(tmp_path / name) for name in folders}}
    server = subprocess.Popen(
        f"exec {command} --no-browser --ip=127.0.0.1 --port=0 --ServerApp.allow_root=True", shell=True, cwd=tmp_path,
        env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True)
    said, address = io.StringIO(), []

    def listen():
        for line in server.stderr:
            said.write(line)
            if found := re.search(r"http://127\.0\.0\.1:\d+/lab\S*", line):
                address.append(found[0])

    thread = threading.Thread(target=listen, daemon=True)
    thread.start()
    try:
        end_s = time.monotonic() + LAB_LINE_S
        while not address:
            assert server.poll() is None and time.monotonic() < end_s, said.getvalue()
            time.sleep(0.1)
        yield address[0], said
    finally:
        server.send_signal(signal.SIGTERM)
        try:
            server.wait(15)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
        thread.join(5)
        server.stderr.close()


@pytest.mark.notebook
def test_make_lab_opens_notebook_00_and_its_cells_give_the_answer(lab, browser):
    """Offline: the page may ask nothing but the server on this machine."""
    address, said = lab
    page = browser.new_page(viewport={"width": 1300, "height": 1000})
    faults = []
    page.on("console", lambda line: faults.append(line.text) if line.type == "error" else None)
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("request", lambda asked: faults.append(asked.url)
            if not re.match(r"(https?|wss?)://127\.0\.0\.1:|data:|blob:", asked.url) else None)
    page.goto(address)
    notebook = page.locator(".jp-NotebookPanel:not(.lm-mod-hidden)")
    notebook.locator(".jp-Cell").first.wait_for(timeout=LAB_LINE_S * 1000)
    assert page.locator(".lm-TabBar-tabLabel", has_text="00_diagnose.ipynb").count() == 1
    assert "What does this log prove about decode?" in notebook.locator("h1").inner_text()
    page.locator(".jp-Notebook-ExecutionIndicator[data-status='idle']").first.wait_for(timeout=LAB_LINE_S * 1000)
    begun = notebook.locator(".jp-InputPrompt", has_text=re.compile(r"\[[*0-9]+\]")).first
    for _ in range(3):  # JupyterLab loses now and then what is asked of a kernel that has just started
        page.locator(".lm-MenuBar-itemLabel", has_text="Run").click()
        page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
        end_s = time.monotonic() + LAB_LINE_S / 4
        while not begun.is_visible() and time.monotonic() < end_s:
            time.sleep(0.1)
        if begun.is_visible():
            break
    answer = notebook.locator(".jp-OutputArea-output", has_text="What limits decode:").first
    answer.wait_for(timeout=LAB_LINE_S * 1000)
    assert "Law: step time = " in answer.inner_text()
    notebook.locator(".js-plotly-plot .main-svg").first.wait_for(timeout=LAB_LINE_S * 1000)
    page.locator(".jp-Notebook-ExecutionIndicator[data-status='idle']").first.wait_for(timeout=LAB_LINE_S * 1000)
    assert notebook.locator(".jp-RenderedText[data-mime-type='application/vnd.jupyter.stderr']").count() == 0
    assert page.locator(".jp-Dialog, .Toastify__toast").count() == 0  # no question before the work
    assert faults == []
    assert "Traceback" not in said.getvalue()
