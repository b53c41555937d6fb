"""Hand-typed CSV tables: values, rounding intervals, and every refusal with line and column.

Exact: the formulas are one line each. Would catch: a table sorted as text, an interval of the wrong digit, text in a
number read as missing.
"""

from __future__ import annotations

import pytest

from helpers import ingest
from helpers.ingest.table import half_last_digit
from helpers.schema import LEVELS, LogFormatError, check


def table(tmp_path, text):
    path = tmp_path / "levels.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_values_and_rounding(tmp_path):
    path = table(tmp_path, "# field case\n\nrunning_req,decode_tok_per_s\n16, 240.0\n2,40\n\n# end\n")
    assert ingest.is_table(path)
    levels = check(ingest.read_table(path), LEVELS)
    assert levels["running_req"].tolist() == [2.0, 16.0]
    assert levels["step_s"].tolist() == [2 / 40, 16 / 240]
    assert levels["step_s_lo"].tolist() == [2 / 40.5, 16 / 240.05]
    assert levels["step_s_hi"].tolist() == [2 / 39.5, 16 / 239.95]
    assert levels["decode_tok_per_s"].tolist() == [40.0, 240.0]
    assert (levels["method"] == "table").all()
    assert levels["is_fitted"].all()
    assert (levels["n_clean"] == 1).all()
    assert (levels["n_rejected"] == "{}").all()


def test_accept_len_makes_rounds(tmp_path):
    levels = ingest.read_table(table(tmp_path, "running_req,accept_len,decode_tok_per_s\n4,2.5,100\n8,,100\n"))
    assert levels["step_s"].tolist() == [4 * 2.5 / 100, 8 / 100]
    assert levels["accept_len"].isna().tolist() == [False, True]


def test_other_columns_quotes_and_a_byte_order_mark_are_no_obstacle(tmp_path):
    path = table(tmp_path, '\ufeffnote,running_req,decode_tok_per_s\r\n"a, b",4,100\r\n')
    assert ingest.is_table(path)
    assert ingest.read_table(path)["step_s"].tolist() == [0.04]


@pytest.mark.parametrize(("text", "message"), [
    ("running_req,decode_tok_per_s\n1,2\n2,fast\n", "line 3, column decode_tok_per_s: expected a number, found 'fast'"),
    ("# x\nrunning_req,decode_tok_per_s\n1.5.2,2\n", "line 3, column running_req: expected a number"),
    ("running_req,decode_tok_per_s\n1,\n", "line 2, column decode_tok_per_s: expected a number, found ''"),
    ("running_req,decode_tok_per_s\n1,0\n", "expected a number above 0, found '0'"),
    ("running_req,decode_tok_per_s\n-1,5\n", "expected a number above 0, found '-1'"),
    ("running_req,decode_tok_per_s\n1,nan\n", "expected a number above 0, found 'nan'"),
    ("running_req,decode_tok_per_s\n1,inf\n", "expected a number above 0, found 'inf'"),
    ("running_req,decode_tok_per_s\n1,20\n2,1e300\n", "line 3, column decode_tok_per_s: expected .* found '1e300'"),
    ("running_req,decode_tok_per_s\n1,1e-300\n", "column decode_tok_per_s: expected .* found '1e-300'"),
    ("running_req,decode_tok_per_s\n8,1e11\n", "line 2, column decode_tok_per_s: .* a step of 1e-06 to 100000 s"),
    ("running_req,decode_tok_per_s\n8,1e-5\n", "line 2, column decode_tok_per_s: .* a step of 8e\\+05 s"),
    ("running_req,decode_tok_per_s\n1e300,5\n", "line 2, column running_req: expected .* found '1e300'"),
    ("running_req,decode_tok_per_s,accept_len\n1,5,0.5\n", "column accept_len: .* from 1 to 1000, found '0.5'"),
    ("running_req,decode_tok_per_s,accept_len\n1,5,1001\n", "column accept_len: expected .* found '1001'"),
    ("running_req,decode_tok_per_s,context_tok\n1,5,1e300\n", "column context_tok: expected .* found '1e300'"),
    ("running_req,decode_tok_per_s\n1,2,3\n", "line 2: expected 2 values, found 3"),
    ("running_req,decode_tok_per_s\n", "at least one row"),
    ("running_req,decode_tok_per_s\n4,2\n4,3\n", "one row per running_req, found 4 twice"),
    ("running,tok\n1,2\n", "expected the columns running_req, decode_tok_per_s, found running, tok"),
    ("# nothing\n", "found only comments"), ("", "the file is empty"),
])
def test_refused_with_line_and_column(tmp_path, text, message):
    path = table(tmp_path, text)
    assert ingest.is_table(path)
    with pytest.raises(LogFormatError, match=message) as caught:
        ingest.read_table(path)
    assert str(path) in str(caught.value)


def test_a_log_is_no_table(tmp_path):
    path = tmp_path / "server.log"
    path.write_text("[2026-01-01 00:00:00] hello, world\n")
    assert not ingest.is_table(path)
    assert not ingest.is_table(tmp_path)
    assert not ingest.is_table("-")
    assert not ingest.is_table(tmp_path / "missing.csv")


@pytest.mark.parametrize(("text", "half"), [("412", 0.5), ("33.0", 0.05), ("1.25", 0.005), ("1.2e3", 50.0), ("5e-1",
    0.05)])
def test_half_a_unit_of_the_last_digit(text, half):
    assert half_last_digit(text) == pytest.approx(half, rel=1e-12)
