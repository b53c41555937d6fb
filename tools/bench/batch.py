"""What a batch saves over one command per log, and what it costs to find that all is done."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from helpers.batch import batch
from helpers.synth import presets

PRESET = "healthy_moe"
N_DUMPS = {"short": 6, "full": 40}
N_ALONE = {"short": 2, "full": 6}
"""Logs of the reference: the others take as long."""

LEAST_GAIN = 2.0
LEAST_GAIN_AGAIN = 5.0


def rows(scale: str = "short") -> list[dict[str, Any]]:
    """Measure a batch against the same notebook run by one command per log, and a batch that is done already.

    Parameters
    ----------
    scale : {"short", "full"}

    Returns
    -------
    list of dict
        what, size, ours_s, reference, reference_s, ratio (reference over ours), bar, ok.
    """
    lines = "\n".join(presets.get(PRESET).simulate().lines())
    n_dumps, n_alone = N_DUMPS[scale], N_ALONE[scale]
    with tempfile.TemporaryDirectory(prefix="rooflog-bench-") as folder:
        logs, out = Path(folder) / "logs", Path(folder) / "out"
        logs.mkdir()
        for index in range(n_dumps):
            (logs / f"{index}.log").write_text(f"{lines}\nthis is dump {index}\n", encoding="utf-8")
        size = f"{n_dumps} dumps of {(logs / '0.log').stat().st_size / 1e6:.1f} MB"
        started_s = time.perf_counter()
        for index in range(n_alone):
            subprocess.run(
                [sys.executable, "-m", "helpers.cli", "run", str(logs / f"{index}.log"), "--out", f"{folder}/alone"],
                check=True, capture_output=True)
        alone_s = (time.perf_counter() - started_s) * n_dumps / n_alone
        first_s, again_s = _batch(logs, out), _batch(logs, out)
    return [
        _row("batch", size, first_s, f"rooflog run, one log after the other ({n_alone} of them, times "
             f"{n_dumps / n_alone:g})", alone_s, LEAST_GAIN),
        _row("batch, all done before", size, again_s, "the same batch at first", first_s, LEAST_GAIN_AGAIN),
    ]


def _batch(logs: Path, out: Path) -> float:
    """Return how long a batch takes [s]; an error if a dump of it failed."""
    started_s = time.perf_counter()
    result = batch(logs, out)
    if result.counts()["failed"]:
        raise RuntimeError(next(outcome.message for outcome in result.outcomes if outcome.message))
    return time.perf_counter() - started_s


def _row(what: str, size: str, ours_s: float, reference: str, reference_s: float, least: float) -> dict[str, Any]:
    ratio = reference_s / ours_s
    return {"what": what, "size": size, "ours_s": ours_s, "reference": reference, "reference_s": reference_s,
            "ratio": ratio, "bar": f">= {least:g}", "ok": ratio >= least}
