"""A short run of the fuzzer in every test run; `make fuzz` is the long one.

Would catch: an exception that is not ours, a line lost or counted twice, a value that its line does not print, time or
memory without bound. Also that the properties themselves can fail.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import properties
from mutate import COMPOSED, MUTATIONS, make_file, read_seeds
from properties import Broken, check_file

BUDGET_S = 12
"""Of wall time; the machine decides how many files that is."""

FIRST = 1_000_000
"""Beyond the files of the long run, and no number whose file is large."""


@pytest.fixture(scope="module")
def seeds():
    return read_seeds()


def test_mutated_files_keep_the_properties(tmp_path, seeds):
    began_s = time.monotonic()
    n_files = n_records = 0
    while time.monotonic() - began_s < BUDGET_S and n_files < 60:
        outcome = check_file(tmp_path / "a.log", make_file(FIRST + n_files, seeds, 100))
        n_files += 1
        n_records += outcome.n_records
    assert n_files >= 3
    assert n_records > 0


def test_a_mutation_gives_the_same_bytes_every_time(seeds):
    assert make_file(7, seeds, 50) == make_file(7, seeds, 50)
    assert make_file(7, seeds, 50) != make_file(8, seeds, 50)
    assert len(set(MUTATIONS)) == 11
    assert all(line in seeds for line in COMPOSED)


LINE = COMPOSED[0]


@pytest.mark.parametrize(("column", "message"), [
    ("used_tok", "prints used_tok"), ("decode_tok_per_s", "prints decode_tok_per_s"), ("graph", "prints graph"),
])
def test_a_value_that_is_not_in_the_line_is_found(tmp_path, monkeypatch, column, message):
    real = properties.ingest.read_log

    def wrong(path):
        log = real(path)
        log.samples[column] = False if column == "graph" else 77
        return log

    monkeypatch.setattr(properties.ingest, "read_log", wrong)
    with pytest.raises(Broken, match=message):
        check_file(tmp_path / "a.log", LINE + b"\n")


def test_a_line_that_is_not_counted_is_found(tmp_path, monkeypatch):
    real = properties.log_module.scan_file

    def wrong(*args, **options):
        scan = real(*args, **options)
        scan.lines["other"] += 1
        return scan

    monkeypatch.setattr(properties.log_module, "scan_file", wrong)
    with pytest.raises(Broken, match="classes add up"):
        check_file(tmp_path / "a.log", LINE + b"\n")


def test_an_exception_of_another_kind_is_not_swallowed(tmp_path, monkeypatch):
    monkeypatch.setattr(properties.ingest, "read_log", lambda path: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        check_file(tmp_path / "a.log", LINE)
