"""`rooflog engines` says what is read, and docs/adding-an-engine.md is true: its example is added and read.

Would catch: a dialect without a word for people, a column that is no column, a page whose code no longer works.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys

import pytest

from helpers.cli.app import main
from helpers.ingest.engines import DIALECTS, TITLES
from helpers.ingest.exports import EXPORTS
from helpers.ingest.reads import find_reads, list_reads
from helpers.schema import KINDS, SAMPLES, LogFormatError

COLUMNS = {column.name for column in SAMPLES.columns}


def answer(capsys, *words: str) -> str:
    assert main(["engines", *words]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.engine)
def test_every_dialect_says_what_it_reads(dialect):
    assert dialect.engine in TITLES
    assert dialect.reads, "expected a Reading per kind of line"
    kinds = {family.kind for family in dialect.families}
    assert kinds == {read.kind for read in dialect.reads} - {""}, "kinds read and kinds described"
    for read in dialect.reads:
        assert read.kind in (*KINDS, "")
        assert read.versions and read.gives
        assert all(meaning and not meaning.endswith(".") for meaning in (*read.gives.values(), *read.traps))
        assert all(name in COLUMNS for name in read.gives if name in ("running_req", "decode_tok_per_s", "span_s"))


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.engine)
def test_every_described_column_is_filled_by_a_key_or_named_elsewhere(dialect):
    filled = {key.column for family in dialect.families for key in (*family.keys.values(), *family.suffixes.values())}
    described = {name for read in dialect.reads for name in read.gives}
    wrong = {name for name in described & COLUMNS if name not in filled} - {"extra"}
    assert not wrong or dialect.finish is not None or dialect.engine == "vllm", wrong


def test_every_engine_and_every_export_is_listed(capsys):
    listed = json.loads(answer(capsys, "--json"))["engines"]
    assert [entry["engine"] for entry in listed][: len(DIALECTS)] == [dialect.engine for dialect in DIALECTS]
    sources = [read["source"] for entry in listed for read in entry["reads"]]
    assert len(sources) == len(set(sources))
    assert {export.name for export in EXPORTS} <= set(sources)
    text = answer(capsys)
    for entry in list_reads():
        assert entry.title in text


def test_one_engine_with_units_and_traps(capsys):
    text = answer(capsys, "LMDeploy")
    assert "decode_tok_per_s [tok/s]:" in text and "running_req [req]:" in text
    assert text.count("trap:") == 2
    assert max(map(len, text.splitlines())) <= 100
    one = json.loads(answer(capsys, "lmdeploy", "--json"))["engines"]
    assert len(one) == 1 and one[0]["reads"][0]["kind"] == "stats"


@pytest.mark.parametrize("name", ["TensorRT-LLM", "trtllm", "tensorrt_llm", "TRT-LLM"])
def test_an_engine_is_found_however_it_is_spelled(name):
    if "trtllm" not in {dialect.engine for dialect in DIALECTS}:
        pytest.skip("this engine is not registered")
    assert find_reads(name).engine == "trtllm"


def test_an_unknown_engine_is_one_line(capsys):
    assert main(["engines", "noengine"]) == 3
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "expected one of sglang" in error and "adding-an-engine" in error
    with pytest.raises(LogFormatError):
        find_reads("")


def page_blocks(root) -> list[tuple[str, str]]:
    text = (root / "docs" / "adding-an-engine.md").read_text(encoding="utf-8")
    return re.findall(r"^```(\w+)\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def package(root, tmp_path_factory):
    """A copy of the package to which the page's example was added as the page says."""
    (_, log), (_, dialect), (_, lines), (_, test) = page_blocks(root)
    folder = tmp_path_factory.mktemp("engine")
    shutil.copytree(root / "src" / "helpers", folder / "helpers", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "helpers" / "ingest" / "examplellm.py").write_text(dialect, encoding="utf-8")
    engines = folder / "helpers" / "ingest" / "engines.py"
    imported, added = (line.removeprefix("+") + "\n" for line in lines.splitlines())
    text = engines.read_text(encoding="utf-8")
    at, end = text.index("from helpers.ingest import"), text.index(")\n", text.index("DIALECTS: "))
    engines.write_text(text[:at] + imported + text[at:end] + added + text[end:], encoding="utf-8")
    (folder / "server.log").write_text(log, encoding="utf-8")
    fixture = "import pathlib, pytest\n\n\n@pytest.fixture\ndef example_log():\n" \
        "    return pathlib.Path(__file__).with_name('server.log')\n"
    (folder / "conftest.py").write_text(fixture, encoding="utf-8")
    (folder / "test_examplellm.py").write_text(test, encoding="utf-8")
    return folder


def run_python(folder, *words: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, *words], cwd=folder, env={"PYTHONPATH": str(folder), "PATH": "/usr/bin:/bin"},
        capture_output=True, text=True, timeout=120, check=False,
    )


def test_the_pages_example_is_read_as_it_says(package):
    ran = run_python(package, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_examplellm.py")
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-3000:]
    assert "1 passed" in ran.stdout
    listed = run_python(package, "-m", "helpers.cli", "engines", "examplellm")
    assert "tokens over the time since the line before" in listed.stdout


def test_the_pages_example_is_short(root):
    blocks = [text for language, text in page_blocks(root) if language in ("python", "diff")]
    lines = [line for text in blocks for line in text.splitlines() if line.strip()]
    assert len(blocks) == 3 and len(lines) < 40


def test_a_wrong_key_in_the_pages_example_is_seen(package, tmp_path):
    copy = tmp_path / "engine"
    shutil.copytree(package, copy)
    path = copy / "helpers" / "ingest" / "examplellm.py"
    path.write_text(path.read_text(encoding="utf-8").replace('"percent"', '"rate"'), encoding="utf-8")
    ran = run_python(copy, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_examplellm.py")
    assert ran.returncode == 1 and "43.5" in ran.stdout
