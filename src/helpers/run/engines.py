"""Papermill's engine with kernels over Unix sockets: started anew (`plain`), or forked from a warm process (`warm`)."""

from __future__ import annotations

from typing import Any

from nbclient.exceptions import CellTimeoutError, DeadKernelError
from papermill.engines import NBClientEngine, papermill_engines
from papermill.iorw import write_ipynb

from helpers.run import warm
from helpers.run.sockets import LocalKernelManager

PLAIN, WARM = "rooflog-plain", "warm"


class PlainEngine(NBClientEngine):
    """Papermill's own, which writes the notebook once, at its end, and also where its kernel died or fell silent."""

    kernel_manager_class: type[LocalKernelManager] = LocalKernelManager

    @classmethod
    def execute_managed_notebook(
        cls, nb_man: Any, kernel_name: str, evidence_path: str = "", **kwargs: Any
    ) -> Any:
        """Execute; as papermill describes it.

        Parameters
        ----------
        nb_man : NotebookExecutionManager
        kernel_name : str
        evidence_path : str
            File for the notebook as far as it came, should the kernel die or a cell take too long. Papermill would
            rather write the whole notebook after every cell, which costs the square of its size.
        """
        try:
            return super().execute_managed_notebook(
                nb_man, kernel_name, kernel_manager_class=cls.kernel_manager_class, **kwargs
            )
        except (CellTimeoutError, DeadKernelError):
            if evidence_path:
                write_ipynb(nb_man.nb, evidence_path)
            raise


class WarmEngine(PlainEngine):
    """In kernels that have their imports loaded already: see `helpers.run.warm`."""

    kernel_manager_class = warm.WarmKernelManager


papermill_engines.register(PLAIN, PlainEngine)
papermill_engines.register(WARM, WarmEngine)
