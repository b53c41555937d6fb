"""What reading a log costs beside pandas with the whole file in memory, in time and in peak memory.

The reference is a usual notebook cell: all lines of the file as one Series, one ``str.extract`` of the statistic's
expression, its numbers converted. Each side runs in a process of its own.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from bench.ingest import KINDS, MB, time_and_peak, write_log

ENGINE, EVERY = "SGLang", 3
TIMES = 3
"""Runs of each side in turn; the shortest time and the least peak count."""

PANDAS = """
import re
import pandas as pd
lines = pd.Series(open({path!r}, encoding="utf-8").read().splitlines())
table = lines.str.extract(re.compile({pattern!r})).dropna(subset=["stamp"])
numbers = [name for name in table if name not in ("stamp", "tags")]
table[numbers] = table[numbers].astype(float)
"""


def rows(scale: str = "short") -> list[dict[str, Any]]:
    """Measure.

    Parameters
    ----------
    scale : {"short", "full"}
        A log of 60 or of 200 MB.

    Returns
    -------
    list of dict
        what, size, ours_s, reference, reference_s, ratio, bar, ok; in the row of memory the times are peaks [MB].
    """
    with tempfile.TemporaryDirectory(prefix="rooflog-bench-") as folder:
        path = Path(folder) / "server.log"
        write_log(path, ENGINE, (60 if scale == "short" else 200) * MB, EVERY)
        reference = PANDAS.format(path=str(path), pattern=KINDS[ENGINE].line.pattern)
        ours, theirs = [], []
        for _ in range(TIMES):
            ours.append(time_and_peak(f"ingest.read_log({str(path)!r})", ROOFLOG_NO_CACHE="1"))
            theirs.append(time_and_peak(reference))
        size = f"{path.stat().st_size / MB:.0f} MB"
    found = []
    for index, (what, scale_by) in enumerate((("read a dense SGLang log, imports left out", 1.0),
                                              ("peak memory of that [MB]", 1 / MB))):
        own, other = (scale_by * min(pair[index] for pair in pairs) for pairs in (ours, theirs))
        found.append({"what": what, "size": size, "ours_s": own, "reference": "pandas, whole file in memory",
                      "reference_s": other, "ratio": own / other, "bar": "<= 1x", "ok": own <= other})
    return found
