"""Changes and states in words: the lines that `rooflog watch` prints, and the parts of its status block."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from helpers.answer import FORMULAS
from helpers.display import level_key, show
from helpers.schema import printable
from helpers.watch.watcher import Change

Values = Mapping[str, Any]


def line(change: Change) -> str:
    """Return a change as one line."""
    return printable(f"{at(change.values)}  {_text(change)}")


def at(values: Values) -> str:
    """Return when it was: the log's stamp, else the time since watching began."""
    return values["ts"] or show(values["elapsed_s"], "duration")


def _text(change: Change) -> str:
    values = change.values
    if change.change in ("note", "end"):
        return f"{change.change}: {values['text']}"
    if change.change == "alarm":
        return f"ALARM {alarm(values)}"
    if change.change == "life":
        return f"a server starts (life {values['server_life']})"
    if change.change == "law":
        return f"law so far: {law(values['law'])}"
    return state(values)


def alarm(values: Values) -> str:
    """Return an alarm as one line."""
    text = " ".join(values["text"].split())
    return f"{values['alarm'].replace('_', ' ')} (line {values['line_no']}): {text}"


def state(values: Values) -> str:
    """Return the state as one line."""
    text = f"{values['phase']:<6}  {running(values)}, {show(values['decode_tok_per_s'], 'tok/s')}"
    if values["step_s"] is not None:
        text += f", steady at {values['level_req']:g}: {show(values['steady_tok_per_s'], 'tok/s')}, " \
                f"step {show(values['step_s'], 's')}"
    text += f", {values['n_clean']} clean intervals"
    return text + (f"; for steady: {values['needed']}" if values["needed"] else "")


def running(values: Values) -> str:
    """Return running and queued requests; the queue only where the log tells."""
    queue = "" if values["queue_req"] is None else f", {values['queue_req']} queued"
    return f"{values['running_req']} running{queue}"


def law(found: Values) -> str:
    """Return the law with its intervals, or why there is none."""
    if found["refused"]:
        return f"none yet: {found['refused']}"
    p = found["parameters"]
    basis = f"({found['n_levels']} levels, {100 * found['confidence']:.0f} % intervals)"
    if found["law"] == "linear":
        return f"step = {_parameter(p['intercept_s'])} + N x {_parameter(p['slope_s_per_req'])} {basis}"
    parts = ", ".join(f"{name.removesuffix('_' + one['unit'].replace('/', '_per_'))} {_parameter(one)}"
                      for name, one in p.items())
    return f"{found['law']}{FORMULAS.get(found['law'], '')}: {parts} {basis}"


def _parameter(one: Values) -> str:
    return show(one["value"], one["unit"], one["lo"], one["hi"])


def needed(status: Values) -> str:
    """Return what is missing for the proof of steady decode."""
    if status["ended"]:
        return "the next start of the server"
    if status["phase"] == "steady":
        return "nothing: steady decode is proven"
    return status["needed"] or (
        "a load" if status["phase"] == "idle" else "three clean intervals at one count of running requests")


def level_rows(status: Values) -> list[tuple[str, ...]]:
    """Return a row per level: mark of the present one, requests, clean intervals, step with interval, rate, note."""
    rows = []
    measured = set()
    newest = {round(total, 3): n for total, n in status["clean_counts"].items()}
    totals = [round(level["running_req_total"] or level["running_req"], 3) for level in status["levels"]]
    for level in status["levels"]:
        total = level["running_req_total"] or level["running_req"]
        measured.add(round(total, 3))
        step = show(level["step_s"], "s", level["step_s_lo"], level["step_s_hi"])
        if level["accept_len"]:
            step += f", accept length {show(level['accept_len'])}"
        # levels are estimated less often than intervals are counted; two groups of ranks may share a total
        n_clean, n_newest = level["n_clean"], newest.get(round(total, 3), 0)
        is_behind = n_clean < n_newest and totals.count(round(total, 3)) == 1
        clean = f"{n_clean} of {n_newest}" if is_behind else str(n_clean)
        rows.append((total, clean, step, show(level["decode_tok_per_s"], "tok/s"),
                     "" if level["is_fitted"] else "not in the law yet"))
    rows += [(total, str(n), "not estimated yet", "", "") for total, n in status["clean_counts"].items()
             if round(total, 3) not in measured]
    present = status["running_req"] if status["phase"] != "idle" else None
    return [(">" if total == present else "", level_key(total), *rest) for total, *rest in sorted(rows)]
