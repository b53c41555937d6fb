"""Laws of step time over running requests: fitted on levels, selected by rule, refused in words.

Data flow: LEVELS -> gates (may a law be claimed?) -> line and candidates -> selection -> `schema.Fits`.
"""

from helpers.laws.covariate import fit_with_context, fit_with_prefill
from helpers.laws.fit import fit_laws
from helpers.laws.line import rounding_envelope

__all__ = ["fit_laws", "fit_with_context", "fit_with_prefill", "rounding_envelope"]
