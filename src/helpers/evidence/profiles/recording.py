"""What a profiler recorded, before anything is judged: the common result of the readers of profiles."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helpers.evidence.profiles.steps import Marked
from helpers.evidence.profiles.timeline import Floats, Timeline
from helpers.evidence.reading import Tally

Shape = tuple[str, str, tuple[int, ...], int]
"""Role, operator, dimensions of one of its tensors, and the bytes of that tensor."""


@dataclass
class Recording:
    """One profile as read.

    Attributes
    ----------
    tool : str
        "torch profiler", "nsys" or "ncu".
    tally : Tally
        Where every line or event went.
    timeline : Timeline
        What ran when; empty where the file holds sums only.
    table : DataFrame, schema KERNELS, or None
        Kernels of a file that holds sums only.
    marked, mark_name : list of Marked, str
        Steps as the engine annotated them.
    launched_s : ndarray, shape (entries of the timeline,)
        When the host launched each; NaN where not recorded.
    is_draft : ndarray of bool, shape (entries,)
        Launched inside an annotation of the draft model.
    shapes_of_key : dict
        Number of a key of the timeline -> dimensions of the inputs of its operators.
    shapes : list of Shape
        Largest first.
    n_sms : float
        Multiprocessors of a device; NaN where not recorded.
    start_epoch_s : float
        The profile's zero, seconds since 1970; NaN where not recorded.
    """

    tool: str
    tally: Tally
    timeline: Timeline = field(default_factory=Timeline)
    table: pd.DataFrame | None = None
    marked: list[Marked] = field(default_factory=list)
    mark_name: str = ""
    launched_s: Floats = field(default_factory=lambda: np.empty(0))
    is_draft: NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, dtype=bool))
    shapes_of_key: dict[int, list[object]] = field(default_factory=dict)
    shapes: list[Shape] = field(default_factory=list)
    n_sms: float = np.nan
    start_epoch_s: float = np.nan
    notes: list[str] = field(default_factory=list)
