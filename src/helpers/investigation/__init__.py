"""From everything that is known of a run to ranked causes and the next experiment: what `analysis` asks last.

`side_files` reads what lies beside the log and puts it on its clock; `others` refuses what cannot be of the run;
`observe` turns stages and files into observations (`diagnose.of_*`); `judgement` ranks the causes (`diagnose.judge`)
and chooses an experiment (`plan`).
"""

from helpers.investigation.judgement import Judgement, entries, investigate, measured
from helpers.investigation.others import believable
from helpers.investigation.run import Run, empty_run
from helpers.investigation.side_files import SIDE_FILES, Evidence, Recording, gather

__all__ = ["SIDE_FILES", "Evidence", "Judgement", "Recording", "Run", "believable", "empty_run", "entries", "gather",
           "investigate", "measured"]
