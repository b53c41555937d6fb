"""Did it regress: two sides gathered from logs, run folders, scorecards or tables, compared, and the answer in words.

The statistics are those of `compare`; `inputs` and `gather` read the sides, `settings` says what of their facts is
compared, `compare` makes the comparison card, `describe` shows it.
"""

from helpers.regression.compare import Comparison, compare, compare_sides, read, write
from helpers.regression.gather import Repeat, Side, gather_side
from helpers.regression.inputs import COMPARISON_FILE

__all__ = ["COMPARISON_FILE", "Comparison", "Repeat", "Side", "compare", "compare_sides", "gather_side", "read",
           "write"]
