"""Run folders made by hand: a scorecard from levels of a known law, and run.json, as a batch leaves them."""

import json
from types import SimpleNamespace

import numpy as np

from helpers import scorecard
from helpers.laws import fit_laws
from law_tables import levels_table

LEVELS_REQ = np.array([1.0, 2.0, 4.0, 8.0, 16.0, 32.0])
INTERCEPT_S, SLOPE_S_PER_REQ = 0.030, 0.005


def card_of(running_req=LEVELS_REQ, step_s=None, *, facts=None, experts=None, roofline=None, **more):
    """The scorecard of levels at ``a + b N`` exactly, or at other step times, each known to 2 %."""
    running_req = np.asarray(running_req, float)
    step_s = INTERCEPT_S + SLOPE_S_PER_REQ * running_req if step_s is None else np.asarray(step_s, float)
    levels = levels_table(running_req, step_s, step_s_lo=0.98 * step_s, step_s_hi=1.02 * step_s)
    log = SimpleNamespace(
        accounting=SimpleNamespace(as_dict=lambda: {"lines_total": 500, "lines": {"statistic": 493, "malformed": 7},
                                                    "by_kind": {"decode": 493}}),
        engine="sglang", engine_version="0.5.12", facts=[{}], sources=[SimpleNamespace(sha256="ab" * 32)])
    known = {"model": "/models/tiny-llama", "hardware": "h100 sxm", "tp": 4, "dp": 1} | (facts or {})
    return scorecard.build(log, None, levels, fit_laws(levels, experts=experts), facts=known, roofline=roofline, **more)


def run_of(dump="/data/a/server.log", **changes):
    """run.json of a good run."""
    return {
        "schema_version": 1, "status": "good", "exit_code": 0, "message": "", "notebook": "00_diagnose", "command": "",
        "parameters": {"log_path": dump}, "log_sha256": ["ab" * 32, "cd" * 32], "versions": {"rooflog": "0.1.0",
        "method": 1}, "started_utc": "2026-11-30T00:44:23+00:00", "wall_s": 5.5, "dump": dump, "key": f"key of {dump}",
    } | changes


def put(out, name, card, run):
    """Leave a run folder."""
    folder = out / name
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps(run))
    if card is not None:
        scorecard.write(card, folder)
    return folder
