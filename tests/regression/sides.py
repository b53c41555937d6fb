"""Small simulated logs and run folders for the tests of a comparison."""

import copy
import json
from functools import cache
from hashlib import sha256
from pathlib import Path

from helpers import scorecard, synth
from helpers.analysis import analyse


def write_log(path, seed=0, *, levels=(1, 4, 16, 64), slope_s_per_req=0.0004, **changes):
    """Write a log of 20 ms per step and some more per request; return its path."""
    law = {"intercept_s": 0.020, "slope_s_per_req": slope_s_per_req}
    preset = synth.presets.get("dense_sweep", **{
        "levels_req": list(levels), "prompts_per_req": 1.0, "gap_s": 3.0, "output": {"mean_tok": 500}, "law": law,
        **changes})
    preset.simulate(seed=seed).write(path)
    return path


_ANALYSES = {}


def analysed_once(logs, **options):
    """Do what `analyse` does, once for the same content and options."""
    told = {name: value for name, value in options.items() if name != "progress"}
    if not all(Path(log).is_file() for log in logs):
        return analyse(logs, **told)
    key = (tuple(Path(log).read_bytes() for log in logs), json.dumps(told, sort_keys=True))
    if key not in _ANALYSES:
        _ANALYSES[key] = analyse(logs, **told)
    return _ANALYSES[key]


@cache
def card_of(log, content):
    """Return the scorecard of a log, analysed once per content."""
    return analyse(log).scorecard


def write_run(
    folder, log, *, step_factor=1.0, versions=None, started_utc="2026-11-02T10:00:00+00:00", sha="", **parameters
):
    """Write what `rooflog run` leaves of a log.

    The stored steps may be false by a factor, to see who reads them; a sha256 of its own makes it another run.
    """
    folder.mkdir(parents=True)
    card = copy.deepcopy(card_of(log, log.read_bytes()))
    for level in card["levels"]:
        for key in ("step_s", "step_s_lo", "step_s_hi"):
            level[key] *= step_factor
    digest = sha or sha256(log.read_bytes()).hexdigest()
    card["run"]["log_sha256"] = [digest]
    card |= versions or {}
    scorecard.write(card, folder)
    record = {"schema_version": 1, "status": "good", "exit_code": 0, "notebook": "00_diagnose",
              "parameters": {"log_path": str(log), "out_dir": "", **parameters}, "log_sha256": [digest],
              "started_utc": started_utc}
    (folder / "run.json").write_text(json.dumps(record), encoding="utf-8")
    return folder
