"""Panels to try other choices by hand: the same pure functions and the same figures as the notebooks.

A panel is the last cell of a notebook and changes nothing before it; a choice that cannot be computed is answered in
one line, and the command that repeats what is shown stands below. `Explorer` is the dashboard of notebook 09.
"""

from helpers.explore.acceptance import acceptance_figure, acceptance_panel
from helpers.explore.causes import cause_html, causes_panel
from helpers.explore.command import Command, command
from helpers.explore.dashboard import Explorer, Found
from helpers.explore.law import SELECTED, law_figure, law_panel
from helpers.explore.log_lines import log_lines, require_log
from helpers.explore.what_if import (
    AS_MEASURED,
    change_words,
    lever_entry,
    lever_of,
    lever_reading,
    read_change,
    what_if_figure,
    what_if_panel,
    write_change,
)

__all__ = [
    "AS_MEASURED", "SELECTED", "Command", "Explorer", "Found", "acceptance_figure", "acceptance_panel", "cause_html",
    "causes_panel", "change_words", "command", "law_figure", "law_panel", "lever_entry", "lever_of", "lever_reading",
    "log_lines", "read_change", "require_log", "what_if_figure", "what_if_panel", "write_change",
]
