"""docs/adding-hardware.md, followed on a copy of the data: the row that it shows is found, warned of and computed with.

Would catch: a column that was renamed, a name that is not found, a catalogue that is read from elsewhere.
"""

import csv
import io
import json
import re
import shutil

import pytest
from typer.testing import CliRunner

from helpers import paths
from helpers.cli.app import app
from helpers.physics.catalogue import hardware
from helpers.schema import LogFormatError


@pytest.fixture(scope="module")
def text(root):
    return (root / "docs" / "adding-hardware.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def row(text):
    (given,) = csv.DictReader(io.StringIO(re.search(r"^```csv\n(.*?)^```", text, re.MULTILINE | re.DOTALL)[1]))
    return given


@pytest.fixture
def add(row, data, tmp_path, monkeypatch):
    """Return a function that writes the row, with changes, into a copy of the table which is then the catalogue."""

    def add(**changes):
        shutil.copytree(data / "catalog", tmp_path / "catalog", dirs_exist_ok=True)
        table = tmp_path / "catalog" / "hardware.csv"
        with open(table, encoding="utf-8", newline="") as file:
            columns = next(csv.reader(file))
        assert set(row) <= set(columns)
        with open(table, "a", encoding="utf-8", newline="") as file:
            csv.DictWriter(file, columns, restval="", lineterminator="\n").writerow({**row, **changes})
        monkeypatch.setattr(paths, "data_dir", lambda: tmp_path)
        hardware._by_name.cache_clear()
        return table

    yield add
    hardware._by_name.cache_clear()


def printed(*words):
    return CliRunner().invoke(app, [*words, "--json"])


def test_the_row_is_found_by_name_and_in_base_units(add):
    assert "no such accelerator" in str(printed("hardware", "Example X1").exception)  # made up: not in our table
    add()
    for name in ("Example X1", "x1 example"):
        board = hardware.find(name)
        assert board.mem_bw_bytes_per_s == 2e12 and board.mem_bytes == 64 * 2**30
        assert board.bf16_flop_per_s == pytest.approx(4e14) == board.bf16_from_clock_flop_per_s
        assert board.fp4_flop_per_s is None and board.eta_mem_measured_frac is None  # empty is unknown
        assert board.warnings == ()
    assert json.loads(printed("hardware", "Example X1").stdout)["source"] == "example.com data sheet of the X1"


def test_the_bound_uses_it(add):
    """By hand, as on the page: 2 bytes x 7.57e9 parameters and 147,456 bytes x 2,048 tokens over 2e12 bytes/s."""
    add()
    found = printed("bound", "Qwen3-8B", "--hardware", "Example X1", "--levels", "1,16")
    assert found.exit_code == 0, found.output
    strict_s = json.loads(found.stdout)["strict"]["step_s"]["1"]
    assert strict_s == pytest.approx((2 * 7.568e9 + 147456 * 2048) / 2e12, rel=0.002)


def test_doubt_is_said(add):
    add(confidence="low")
    assert "low confidence" in hardware.find("Example X1").warnings[0]


@pytest.mark.parametrize("column", ["mem_bw_gbs", "source", "confidence"])
def test_what_must_be_there_is_asked_for(add, column):
    add(**{column: ""})
    with pytest.raises(LogFormatError, match="Example X1"):
        hardware.find("Example X1")


def test_the_page_checks_the_row_as_it_says(row, text):
    """SM count x FLOP per clock and SM x clock is the printed rate within 4 %: 100 x 2000 x 2e9 = 4e14."""
    flop_per_s = float(row["sm_count"]) * float(row["flop_per_clk_sm_bf16"]) * float(row["boost_mhz"]) * 1e6
    assert flop_per_s == pytest.approx(float(row["bf16_dense_tflops"]) * 1e12, rel=0.04)
    assert {"name", "mem_bw_gbs", "source", "confidence"} <= set(re.findall(r"`(\w+)`", text))
