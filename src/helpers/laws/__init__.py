"""Laws of step time over running requests: fitted on levels, selected by rule, refused in words.

Data flow: LEVELS -> gates (may a law be claimed?) -> line and candidates -> selection -> `schema.Fits`.
"""

from helpers.laws.covariate import fit_with_context, fit_with_prefill
from helpers.laws.fit import fit_laws
from helpers.laws.line import rounding_envelope
from helpers.laws.moments import crosscheck_moments, fit_moments, moment_ranks

__all__ = [
    "crosscheck_moments", "fit_laws", "fit_moments", "fit_with_context", "fit_with_prefill", "moment_ranks",
    "rounding_envelope",
]
