"""Numbers, checks and facts of a run, as a notebook shows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from helpers.display import show
from helpers.facts import KNOWN, Facts

SCALARS = (
    ("lines_total", "ingest.lines_total"), ("malformed", "ingest.lines.malformed"),
    ("n_clean", "phases.n_clean"), ("n_intervals", "phases.n_intervals"),
    ("law", "fit.law"), ("intercept_s", "fit.intercept_s"), ("slope_s_per_req", "fit.slope_s_per_req"),
    ("asymptote_tok_per_s", "fit.asymptote_tok_per_s"), ("loo_error_frac", "fit.loo_error_frac"),
    ("steady_over_client", "client.steady_over_client"),
)
"""Name -> place in the scorecard of the numbers that a notebook prints last."""


def scalars(card: Mapping[str, Any], more: Mapping[str, Any] | None = None, names: Sequence[str] = ()) -> str:
    """Return a few rounded numbers of the scorecard, one ``name = value`` a line, base units.

    Parameters
    ----------
    card : mapping
        The scorecard.
    more : mapping, optional
        Further names and values.
    names : sequence of str
        Which of `SCALARS`; all if empty.

    Returns
    -------
    str
        Four significant figures: enough to see a change, too few to see another processor.
    """
    chosen = [(name, path) for name, path in SCALARS if not names or name in names]
    values = {name: _at(card, path) for name, path in chosen} | dict(more or {})
    if "law" in values and card["fit"]["refused"]:
        values["law"] = "none (refused)"
    return "\n".join(f"{name} = {_rounded(value)}" for name, value in values.items())


def _at(card: Mapping[str, Any], path: str) -> Any:
    found: Any = card
    for key in path.split("."):
        found = None if found is None else found[key]
    return found


def _rounded(value: Any) -> str:
    if isinstance(value, float) and not np.isfinite(value):
        return "unknown"
    if isinstance(value, float | np.floating):
        return f"{value:.4g}"
    return "unknown" if value is None else str(value)


def subtitle(card: Mapping[str, Any], source: str = "") -> str:
    """Say in one line which run a figure shows: model, accelerator, engine, log."""
    run = card["run"]
    model = str(run["model"]).rstrip("/").rsplit("/", 1)[-1] if run["model"] else "model not in the log"
    parallel = " ".join(f"{name.upper()}{n}" for name, n in run["parallel"].items() if n and n > 1)
    engine = " ".join(str(part) for part in (run["engine"], run["engine_version"]) if part)
    name = "/".join(source.replace("\\", "/").rstrip("/").split("/")[-2:])
    return " · ".join(filter(None, [model, run["hardware"], parallel, engine, name]))


def facts_table(facts: Facts) -> pd.DataFrame:
    """Return what is known about the deployment, with its meaning and who said it; the argument dump is left out."""
    rows = [
        {"fact": name, "value": _short(value), "meaning": KNOWN.get(name, ("", ""))[1], "from": facts.source[name]}
        for name, value in facts.values.items()
        if name != "args"
    ]
    return pd.DataFrame(rows, columns=["fact", "value", "meaning", "from"])


def _short(value: Any, limit: int = 80) -> str:
    text = str(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def checks_table(card: Mapping[str, Any]) -> pd.DataFrame:
    """Return the checks: what, value, limit, pass."""
    rows = [
        {"check": c["name"], "value": show(c["value"]), "limit": show(c["limit"]), "pass": "yes" if c["pass"] else "NO"}
        for c in card["checks"]
    ]
    return pd.DataFrame(rows, columns=["check", "value", "limit", "pass"])


def check_equal(name: str, value: float, limit: float) -> dict[str, Any]:
    """Return a check that two counts are the same, as the scorecard lists it."""
    return {"name": name, "value": value, "limit": limit, "pass": bool(value == limit)}


def check_at_most(name: str, value: float, limit: float) -> dict[str, Any]:
    """Return a check that a count does not exceed another, as the scorecard lists it."""
    return {"name": name, "value": value, "limit": limit, "pass": bool(value <= limit)}


def source_reading(card: Mapping[str, Any]) -> str:
    """Say what was read: lines and records of a log, or a table."""
    ingest, run = card["ingest"], card["run"]
    if ingest["lines_total"] is None:
        levels = "1 level" if len(card["levels"]) == 1 else f"{len(card['levels'])} levels"
        return f"Read: a table of rates at {levels}, typed by hand or by another tool."
    lines, kinds = ingest["lines"], ingest["by_kind"]
    engine = " ".join(str(part) for part in (run["engine"], run["engine_version"]) if part) or "unknown engine"
    records = ", ".join(f"{n} {kind}" for kind, n in kinds.items() if n)
    lives = f" in {run['n_server_lives']} server lives" if (run["n_server_lives"] or 1) > 1 else ""
    return (
        f"Read: {ingest['lines_total']} lines of {engine}{lives}: {lines['statistic']} statistics ({records}), "
        f"{lines['event']} events, {lines['other_known'] + lines['other']} others, {lines['malformed']} malformed."
    )


def client_reading(card: Mapping[str, Any]) -> str:
    """Hold the client's own average against the steady rate, or say that none was given."""
    client = card["client"]
    if client["source"] != "user" or client["steady_over_client"] is None:
        return "No average of a client was given; the one above is computed from the log, as a client would see it."
    return (
        f"The client reported {show(client['output_tok_per_s'], 'tok/s')} over its load; steady decode at its peak is "
        f"{show(client['steady_over_client'])} times that."
    )
