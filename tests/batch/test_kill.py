"""Kill -9 in the middle: no half-written folder is taken for whole, and the next run finishes.

Would catch: files written in place, a marker written too early, orphans that go on for long, hidden folders that stay.
The study with 20 moments of each is tests/batch/kill_study.py.
"""

import json

import pytest
from kill_study import is_whole, kill, write_logs


@pytest.mark.notebook
@pytest.mark.parametrize("kind", ["run", "batch"])
def test_what_is_killed_at_work_leaves_nothing_that_looks_whole(obedient, tmp_path, kind):
    write_logs(tmp_path, ["slow once\nDecode batch a\n", "good\nDecode batch b\n"])
    case = kill(kind, tmp_path, str(obedient), 0.1, everything=False, n_dumps=2, in_work=True)
    assert case.faults == ()


def test_the_study_sees_a_folder_that_is_not_whole(tmp_path):
    assert not is_whole(tmp_path)
    for name, text in (("run.json", json.dumps({"notebook": "n", "exit_code": 0})), ("scorecard.json", "{}"),
                       ("n.ipynb", '{"cells": [1]}'), ("report.html", "<html></html>\n")):
        (tmp_path / name).write_text(text)
    assert is_whole(tmp_path)
    for name in ("run.json", "scorecard.json", "n.ipynb", "report.html"):
        text = (tmp_path / name).read_text()
        (tmp_path / name).write_text(text[:-6])
        assert not is_whole(tmp_path), name
        (tmp_path / name).write_text(text)
