"""Changes, shares and rows of a comparison as a reader sees them: one spelling everywhere."""

import math

import pytest

from helpers.compare import words


@pytest.mark.parametrize(
    ("frac", "share", "change"),
    [
        (0.03, "3 %", "+3.0 %"), (0.0034, "0.34 %", "+0.3 %"), (0.1341, "13.4 %", "+13.4 %"), (0.0, "0 %", "0.0 %"),
        (1.5, "150 %", "+150.0 %"), (12.346, "1235 %", "+1234.6 %"), (-0.0004, "-0.04 %", "0.0 %"),
        (-0.2, "-20 %", "-20.0 %"),
    ],
)  # fmt: skip
def test_a_share_has_three_figures_and_a_change_one_decimal(frac, share, change):
    assert words.percent(frac) == share and words.percent(frac, sign=True) == change


@pytest.mark.parametrize("missing", [None, math.nan])
def test_a_change_has_its_interval_unless_an_end_is_unknown(missing):
    assert words.change(0.051, 0.02, 0.083) == "+5.1 % [+2.0, +8.3]"
    assert words.change(0.051, -0.0001, missing) == "+5.1 %" and words.change(missing, 0.1, 0.2) == "unknown"


def test_rows_are_named_with_their_levels():
    assert words.quantity("step", 32.0, 64.0) == "step at N=32, 64" and words.quantity("step", 15.5) == "step at N=15.5"
    assert words.quantity("per_request", math.nan) == words.quantity("per_request", None) == "cost per request"
    assert words.quantity("accept_len", 4.0) == "accepted tokens per round at N=4"
