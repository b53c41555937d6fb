"""Did it regress: whether two sides may be compared, what changed at each level, and which term moved."""

from helpers.compare.effects import THRESHOLD_FRAC, Effects, compare_levels, describe_phases
from helpers.compare.needed import POWER
from helpers.compare.overall import Overall, overall
from helpers.compare.scatter import RUN_TO_RUN_FRAC
from helpers.compare.sides import Run, run_of
from helpers.compare.terms import Term, which_term
from helpers.compare.validity import Validity, judge_validity

__all__ = ["POWER", "RUN_TO_RUN_FRAC", "THRESHOLD_FRAC", "Effects", "Overall", "Run", "Term", "Validity",
           "compare_levels", "describe_phases", "judge_validity", "overall", "run_of", "which_term"]
