"""The two pictures of README.md: ``python tools/picture.py [CHROMIUM]``, or ``make picture``.

``docs/answer.png`` is the first screen of the report of the simulated field case, taken by chromium. ``docs/watch.svg``
is the block of `rooflog watch` on a simulated server whose log is fed line by line; it needs no browser and is the
same, byte for byte, until watch or the simulator changes.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console

from helpers import run, synth
from helpers.watch import Watcher
from helpers.watch.block import Block

ROOT = Path(__file__).resolve().parents[1]
ANSWER, WATCH = ROOT / "docs" / "answer.png", ROOT / "docs" / "watch.svg"

SCREEN_PX = "1100,900"
"""Width and height of the picture of the report: its first screen."""

COLUMNS = 104
"""Width of the terminal in the picture: the law fits in a line, and in a page 880 px wide its text is 13.6 px high."""

FONTS = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
"""Named instead of the web font of rich's template: a page that shows a picture loads no font for it."""


def report(file: Path, chromium: str) -> None:
    """Run notebook 00 on the simulated field case and take a picture of its report.

    Parameters
    ----------
    file : Path
        Picture to write.
    chromium : str
        Command of the browser.
    """
    case = ROOT / "data" / "samples" / "sim-field-case-a"
    with tempfile.TemporaryDirectory() as folder:
        result = run.run([str(case / "server.log")], out=folder, context=str(case / "facts.yaml"))
        page = (result.folder / "report.html").resolve().as_uri()
        subprocess.run([chromium, "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
                        "--hide-scrollbars", f"--window-size={SCREEN_PX}", "--virtual-time-budget=10000",
                        f"--user-data-dir={folder}/profile", f"--screenshot={file}", page],
                       check=True, capture_output=True)


def block() -> str:
    """Return the block of `rooflog watch` as SVG, while the fifth level of a sweep is held.

    Notes
    -----
    The simulated law is 20 ms + N x 0.5 ms/req with 1 % noise: the law in the picture can be held against it.
    """
    server = synth.Server(law=synth.StepLaw(intercept_s=0.020, slope_s_per_req=0.0005),
                          noise=synth.Noise(sigma_frac=0.01, block_steps=40))
    client = synth.Client(levels_req=(1, 2, 4, 8, 16), prompts_per_req=1.0, gap_s=2.0,
                          output=synth.Lengths("uniform", 1200, 0.1))
    lines = synth.simulate(server, client, seed=5).lines()
    first = next(number for number, line in enumerate(lines) if "#running-req: 16," in line)
    shown = lines[: first + 20]
    console = Console(record=True, width=COLUMNS, height=30, file=io.StringIO(), highlight=False)
    picture, watcher = Block("server.log", console), Watcher(max_cpu_frac=0)
    for line in shown:
        for change in watcher.take(f"{line}\n".encode()):
            picture.say(change)
    watcher.finish()
    picture.look(watcher)
    stamps = [time.mktime(time.strptime(line[1:20], "%Y-%m-%d %H:%M:%S")) for line in shown if line.startswith("[20")]
    picture._began_s = time.monotonic() - (stamps[-1] - stamps[0])  # as if the lines had come when they were due
    console.print(picture.render())
    text = console.export_svg(title="rooflog watch server.log", unique_id="watch")
    text = re.sub(r"@font-face \{.*?\}\s*", "", text, flags=re.DOTALL).replace("Fira Code, monospace", FONTS)
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


def main() -> None:
    """Write both pictures."""
    WATCH.write_text(block(), encoding="utf-8")
    report(ANSWER, sys.argv[1] if len(sys.argv) > 1 else "chromium")
    print(f"Written: {WATCH.relative_to(ROOT)}, {ANSWER.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
