"""The explorer as it is used: a real JupyterLab on the loopback, a real browser, a mouse.

Would catch: a widget that does not come up in JupyterLab, a brush or a click that never reaches the kernel, a message
in the console, anything that is asked of another machine.
"""

import re
import time

import pytest
from a_jupyterlab import jupyter_lab, open_and_run, place

pytestmark = [pytest.mark.notebook, pytest.mark.filterwarnings("default")]

NOTEBOOKS = ("09_explore.ipynb", "03_ramp_or_steady_state.ipynb")
WINDOW = {"width": 1400, "height": 1500}
OF_THE_DRIVER = "GL Driver Message"  # a browser without a graphics card says that it is slow


@pytest.fixture(scope="module")
def lab(browser, root, tmp_path_factory):
    with jupyter_lab(place(tmp_path_factory.mktemp("lab") / "work", root, *NOTEBOOKS)) as base:
        yield base


@pytest.fixture
def opened(lab, browser):
    """Return the panel of a notebook in which all cells ran; what a person must never meet is in `page.faults`."""
    page = browser.new_page(viewport=WINDOW)
    page.faults = []
    page.on("console", lambda said: page.faults.append(said.text) if said.type in ("error", "warning")
            and OF_THE_DRIVER not in said.text else None)
    page.on("pageerror", lambda error: page.faults.append(str(error)))
    page.on("request", lambda asked: page.faults.append(asked.url) if not is_own(asked.url, lab) else None)

    def open_notebook(name):
        open_and_run(page, lab, name)
        panel = page.locator(".jp-Cell").last
        panel.locator("pre", has_text="rooflog run").wait_for(timeout=40_000)
        panel.scroll_into_view_if_needed()
        panel.locator(".js-plotly-plot .nsewdrag").last.wait_for(timeout=20_000)
        return page, panel

    yield open_notebook
    page.close()


def is_own(url, base):
    return url.startswith((f"{base}/", base.replace("http://", "ws://") + "/", "data:", "blob:"))


def control(panel, label):
    box = panel.locator(".widget-inline-hbox").filter(has=panel.page.locator("label", has_text=re.compile(label)))
    return box.locator("select, input").first


def numbers(panel):
    return panel.locator("table", has_text="as the notebook has it").inner_text()


def wait_for_change(panel, before, seconds=20.0):
    end = time.monotonic() + seconds
    while numbers(panel) == before:
        assert time.monotonic() < end, "the numbers stay as they are"
        time.sleep(0.1)
    return numbers(panel)


def timeline_box(panel):
    """Return where the upper axes of the timeline lie, the last figure of the panel."""
    drags = panel.locator(".js-plotly-plot").last.locator(".nsewdrag")
    drags.first.scroll_into_view_if_needed()
    return drags.first.bounding_box()


def brush(page, box, start_frac, end_frac):
    page.mouse.move(box["x"] + start_frac * box["width"], box["y"] + 0.2 * box["height"])
    page.mouse.down()
    page.mouse.move(box["x"] + end_frac * box["width"], box["y"] + 0.8 * box["height"], steps=5)
    page.mouse.up()


def test_notebook_09_follows_controls_brush_and_click(opened):
    page, panel = opened("09_explore.ipynb")
    start = numbers(panel)
    assert "52.1 ms [42.5, 61.8]" in start
    control(panel, r"^law$").select_option("constant")
    constant = wait_for_change(panel, start)
    assert "constant" in constant
    control(panel, r"^law$").select_option("linear")
    before = wait_for_change(panel, constant)
    brush(page, timeline_box(panel), 0.30, 0.45)
    after = wait_for_change(panel, before)
    assert re.search(r"60 of 83\s+5\d of 83", after), after
    spans = control(panel, r"^left out").input_value()
    assert re.fullmatch(r"3\d\d\.\d+\.\.4\d\d\.\d+", spans), spans
    line = panel.locator("pre", has_text="rooflog run").inner_text()
    assert f"""-p without_spans '["{spans}"]'""" in line and "-p law linear" in line
    control(panel, r"^left out").fill("no span")
    control(panel, r"^left out").press("Enter")
    panel.get_by_text("Not computed:").wait_for(timeout=10_000)
    assert numbers(panel) == after
    point = panel.locator(".js-plotly-plot").last.evaluate("""(plot) => {
        const trace = plot._fullData.findIndex((t) => t.name === 'steady' && t.yaxis === 'y');
        const axes = plot._fullLayout, box = plot.getBoundingClientRect(), at = plot._fullData[trace];
        return {x: box.x + axes.xaxis._offset + axes.xaxis.d2p(at.x[3]), line: at.customdata[3][3],
                y: box.y + axes.yaxis._offset + axes.yaxis.d2p(at.y[3])}; }""")
    page.mouse.move(point["x"], point["y"])
    page.locator(".hoverlayer .hovertext").first.wait_for(timeout=5_000)
    page.mouse.click(point["x"], point["y"])
    panel.get_by_text(re.compile(rf"server\.log, line {point['line']}$")).wait_for(timeout=10_000)
    assert "Decode batch" in panel.locator("pre b").inner_text()
    assert page.faults == []


def test_notebook_03_sees_the_law_move(opened):
    page, panel = opened("03_ramp_or_steady_state.ipynb")
    start = numbers(panel)
    control(panel, r"^left out").fill("300..620")
    control(panel, r"^left out").press("Enter")
    assert "1, 32, 64" in wait_for_change(panel, start)
    assert page.faults == []
