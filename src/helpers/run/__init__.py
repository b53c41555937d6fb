"""Run a notebook on logs, headless: check first, execute, and leave a run folder whole or not at all.

`execute` (one run) uses `kernel` (a notebook in a kernel) and `folder` (hidden, then renamed); `normal` re-executes
notebooks for the commit: ``python -m helpers.run normalise [NOTEBOOK...]``.
"""

from helpers.run.execute import RunResult, find_notebook, run
from helpers.run.folder import PARTIAL_PREFIX
from helpers.run.kernel import KERNELSPEC
from helpers.run.normal import normal_form, normalise

__all__ = ["KERNELSPEC", "PARTIAL_PREFIX", "RunResult", "find_notebook", "normal_form", "normalise", "run"]
