"""A notebook that does what the first word of its log says, and logs for it."""

from __future__ import annotations

import json
from pathlib import Path

import nbformat
import pytest

from helpers import run as runner
from helpers.analysis import analyse

PARAMETERS = '''log_path: str = ""  # log [path]; empty: none
more_log_paths: list[str] = []  # further logs [path]; empty: none
context: str = ""  # facts [key]; empty: none
out_dir: str = ""  # where to write; empty: nowhere [path]
confidence: float = 0.95  # of intervals [1]
telemetry: str = ""  # a side file; empty: none [path]'''

BODY = '''import hashlib, json, os, pathlib, time
from helpers import scorecard
from helpers.schema import NotEnoughData
log = pathlib.Path(log_path)
content = log.read_bytes() if log.is_file() else b"good"
card = json.loads(pathlib.Path(CARD).read_text())
if log.is_file():
    card["run"]["log_sha256"] = [hashlib.sha256(content).hexdigest()]
word = content.decode("utf-8", "replace").partition("\\n")[0]
mark = log.with_suffix(".pid")
print(word, context, confidence)'''

DEEDS = '''if word == "slow" or word == "slow once" and not mark.exists():
    mark.write_text(str(os.getpid()))
    time.sleep(600)
if word == "poison":
    raise NotEnoughData("server.log: expected decode lines,\\n found none")
if word == "bug":
    raise KeyError("a cell failed")
if word == "bomb":
    os.kill(os.getpid(), 9)
if word == "full":
    raise OSError(28, "No space left on device")
if word == "refused":
    card["fit"]["refused"] = "one level"
if word == "check":
    card["checks"] = [{"name": "adds up", "value": 1, "limit": 2, "pass": False}]
    scorecard.require_checks(card, out_dir)'''

GROWS = '''if word == "grows":
    log.write_bytes(content + b"more")
    card["run"]["log_sha256"] = [hashlib.sha256(log.read_bytes()).hexdigest()]
scorecard.write(card, out_dir)'''


@pytest.fixture(scope="session")
def obedient(tmp_path_factory, data) -> Path:
    """The notebook."""
    folder = tmp_path_factory.mktemp("notebooks")
    card = folder / "card.json"
    analysis = analyse([str(data / "samples" / "sglang-sweep" / "server.log")])
    card.write_text(json.dumps(analysis.scorecard))

    def code(source: str, *tags: str):
        return nbformat.v4.new_code_cell(source, metadata={"tags": list(tags)})

    made = nbformat.v4.new_notebook(metadata={"kernelspec": runner.KERNELSPEC}, cells=[
        nbformat.v4.new_markdown_cell("# 91 · Does it do as it is told?"), code(PARAMETERS, "parameters"),
        code(BODY.replace("CARD", repr(str(card))), "setup"), code(DEEDS, "checks"), code(GROWS, "scorecard"),
    ])
    nbformat.write(made, folder / "91_obey.ipynb")
    return folder / "91_obey.ipynb"


@pytest.fixture
def logs(tmp_path):
    """Make logs: name -> first line; every log holds its own name too, so that no two are the same."""
    def make(**words: str) -> Path:
        folder = tmp_path / "logs"
        folder.mkdir(exist_ok=True)
        for name, word in words.items():
            (folder / f"{name}.log").write_text(f"{word}\n{name}\nDecode batch\n")
        return folder
    return make
