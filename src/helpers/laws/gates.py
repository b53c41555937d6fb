"""Tell when no law may be claimed, and what a reader must know when one is: refusals and warnings of physics.md 6.4."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from helpers.schema import SchemaError

MEASURED = ("median_of_blocks", "ratio_of_sums")
"""Methods that rest on clean intervals; a typed table has none, a prefill-corrected level carries its doubt itself."""

MIN_LEVELS = 3
MIN_RANGE = 4.0
"""Least ratio of the highest to the lowest level; a shorter range leaves the intercept to the noise."""

MAX_CV_FRAC = 0.15
MIN_CLEAN = 2
MAX_ACCEPT_SPREAD = 0.10
MAX_CONTEXT_SPREAD = 0.20
MAX_REPLICATE_SPREAD = 0.10
MIN_CLEAN_S = 100.0
"""Total clean time below which a short disturbance can pass for a level [s]."""

ADVICE = "sweep running_req 1, 2, 4, 8, 16, 32, 64 with outputs of 512 tokens or more and 3 prompts per slot"


def distinct_levels(levels: pd.DataFrame) -> pd.DataFrame:
    """Average the rows of one running_req, so that a level counts once however often it was measured.

    What sets a level off its law (padding, wave quantisation, routing) is much the same in every life and rank group,
    so replicates are no independent levels: they count as one degree of freedom.

    Parameters
    ----------
    levels : DataFrame, schema LEVELS
        Rows that enter the law.

    Returns
    -------
    DataFrame
        Columns running_req, step_s (geometric mean) and spread (highest over lowest replicate, minus 1), rising.

    Raises
    ------
    SchemaError
        A running_req or step_s that is not positive and finite.
    """
    for name in ("running_req", "step_s"):
        values = levels[name].to_numpy(float)
        if not (np.isfinite(values) & (values > 0)).all():
            bad = values[~(np.isfinite(values) & (values > 0))][0]
            raise SchemaError(f"LEVELS.{name}: expected positive numbers in fitted rows, found {bad}")
    rounded = levels.assign(log_s=np.log(levels["step_s"]), running_req=levels["running_req"].round(3))
    log_s = rounded.groupby("running_req")["log_s"]
    return pd.DataFrame(
        {"step_s": np.exp(log_s.mean()), "spread": np.exp(log_s.max() - log_s.min()) - 1}
    ).reset_index()


def refusal(levels: pd.DataFrame) -> str | None:
    """Return why these fitted rows of LEVELS allow no law, in words, or None."""
    distinct = np.unique(levels["running_req"].round(3))
    if len(distinct) < MIN_LEVELS:
        found = ", ".join(f"{n:g}" for n in distinct) or "none"
        return (
            f"expected {MIN_LEVELS} or more levels of running_req that can be fitted, found {len(distinct)} ({found}): "
            f"{ADVICE}"
        )
    if distinct[-1] / distinct[0] < MIN_RANGE:
        found = f"{distinct[0]:g} to {distinct[-1]:g}"
        return f"levels too close: running_req {found}, expected a ratio of {MIN_RANGE:g} or more: {ADVICE}"
    measured = levels[levels["method"].isin(MEASURED)]
    few = measured[measured["n_clean"] < MIN_CLEAN]
    if len(few):
        row = few.iloc[0]
        return (
            f"level {row.running_req:g} has {row.n_clean} clean interval, expected {MIN_CLEAN} or more: "
            "longer outputs, or the fit with a prefill covariate"
        )
    scattered = measured[measured["cv_frac"] > MAX_CV_FRAC]
    if len(scattered):
        row = scattered.iloc[0]
        return (
            f"level {row.running_req:g} scatters by {100 * row.cv_frac:.0f} %, expected {100 * MAX_CV_FRAC:.0f} % or "
            "less: something else ran, or two populations are mixed; look at its intervals"
        )
    graph = levels.dropna(subset="graph")
    if graph["graph"].nunique() > 1:
        with_graph = ", ".join(f"{n:g}" for n in np.unique(graph[graph["graph"].astype(bool)]["running_req"]))
        return (
            f"the graph flag changes between levels (captured at {with_graph} only): two servers in one line; "
            "fit the captured levels alone or raise the captured sizes"
        )
    return None


def doubts(levels: pd.DataFrame, captured_batch_sizes: Sequence[int] | None = None) -> list[str]:
    """Return the warnings that fitted rows of LEVELS call for, law or no law."""
    found = []
    spread = distinct_levels(levels)
    worst = spread.sort_values("spread").iloc[-1]
    if worst.spread > MAX_REPLICATE_SPREAD:
        found.append(
            f"replicates of level {worst.running_req:g} differ by {100 * worst.spread:.0f} %: not the same server "
            "state; they were averaged into one level"
        )
    context = levels["context_tok"].dropna()
    if len(context) > 1 and context.min() > 0 and context.max() / context.min() - 1 > MAX_CONTEXT_SPREAD:
        found.append(
            f"context differs between levels ({context.min():.0f} to {context.max():.0f} tok): "
            "the slope holds its cost too"
        )
    clean_s = levels["clean_s"].sum(min_count=1)
    if clean_s < MIN_CLEAN_S:
        found.append(
            f"{clean_s:.0f} s of clean time in all, less than {MIN_CLEAN_S:.0f} s: "
            "a short disturbance can pass for a level"
        )
    if captured_batch_sizes:
        off = sorted(set(levels["running_req"]) - {float(size) for size in captured_batch_sizes})
        off = [n for n in off if n <= max(captured_batch_sizes)]
        if off:
            found.append(
                f"levels {', '.join(f'{n:g}' for n in off)} are no captured batch sizes: "
                "they run padded to the next one (staircase)"
            )
    return found


def tokens_per_request_step(levels: pd.DataFrame) -> tuple[float, str | None]:
    """Return tokens of the whole server per step and per running_req, or NaN and why one number does not exist.

    It is accept_len (1 without speculation) times the server's requests over running_req (data-parallel ranks), and
    turns a step time into the throughput of the server.
    """
    accept = levels["accept_len"].dropna()
    if len(accept) > 1 and accept.max() / accept.min() - 1 > MAX_ACCEPT_SPREAD:
        return np.nan, (
            f"accept_len differs between levels ({accept.min():.2f} to {accept.max():.2f}): "
            "the law is of the round time; no throughput asymptote is claimed"
        )
    ratio = (levels["running_req_total"] / levels["running_req"]).dropna()
    if len(ratio) > 1 and ratio.max() / ratio.min() - 1 > MAX_ACCEPT_SPREAD:
        return np.nan, (
            f"requests of the server per running_req differ between levels ({ratio.min():.2f} to {ratio.max():.2f}, "
            "ranks out of balance): no throughput asymptote is claimed"
        )
    return float(accept.mean() if len(accept) else 1.0) * float(ratio.mean() if len(ratio) else 1.0), None
