"""Measure a read log under a choice of what counts: intervals, levels, laws, and what the hardware allows.

`analysis` goes this way once; an explorer goes it again for every other choice, so both give the same numbers.
"""

from helpers.measure.choice import (
    LEFT_OUT,
    Choice,
    choice_of,
    choose_intervals,
    choose_law,
    choose_levels,
    counted,
    read_spans,
    require_confidence,
    what_was_chosen,
    write_spans,
)
from helpers.measure.stages import (
    Fitted,
    Measured,
    Measurer,
    estimate,
    find_lives,
    fit,
    fitted_lives,
    label,
    main_facts,
    main_life,
    measure,
)

__all__ = [
    "LEFT_OUT", "Choice", "Fitted", "Measured", "Measurer", "choice_of", "choose_intervals", "choose_law",
    "choose_levels", "counted", "estimate", "find_lives", "fit", "fitted_lives", "label", "main_facts", "main_life",
    "measure", "read_spans", "require_confidence", "what_was_chosen", "write_spans",
]
