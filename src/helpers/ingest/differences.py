"""Differences of two scrapes: one `counters` record per pair and rank, and what makes a record doubtful."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from helpers.ingest.export_scan import ExportScan, sample_frame
from helpers.ingest.exporters import Exporter

_WHOLE_REQ = 0.02
"""Requests per step this near to a whole number did not change between two scrapes [req]."""

_GAP = 1.5
"""A span this many times the usual one means that a scrape is missing."""

_RESTARTED_S = 0.5
"""A start time that moves by more is another process [s]."""


def add_differences(
    scan: ExportScan, exporter: Exporter, rank: str | None, table: pl.DataFrame, stamp_kind: int
) -> None:
    """Append the differences of one rank's scrapes to ``scan``, and note restarts, gaps and clocks that go back.

    Parameters
    ----------
    scan : ExportScan
        Of the file.
    exporter : Exporter
        Whose metrics they are.
    rank : str or None
        Tag of the rank.
    table : DataFrame
        One row per scrape: line_no, time_s and the fields of the exporter that there are.
    stamp_kind : int
        Of ``time_s``.
    """
    leading = "out_tok" if "out_tok" in exporter.counters else "n_steps"
    if leading not in table.columns:
        return
    table = _with_changes(exporter, table, leading)
    if exporter.report:
        table = _trust_gauges(table, exporter.report)
    has_fallen = _has_fallen(exporter, table)
    restarts = table.filter(has_fallen)["line_no"].to_list()
    scan.restarts += [line_no for line_no in restarts if line_no not in scan.restarts]
    rows = table.filter(~has_fallen & pl.col("span_s").is_not_null())
    n_back = int((rows["span_s"] <= 0).sum())
    if n_back:
        scan.notes.append(f"{scan.path}: {n_back} scrapes are not later than the one before and are left out")
    rows = rows.filter(pl.col("span_s") > 0)
    usual_s = rows["span_s"].median()
    n_gaps = int((rows["span_s"] > _GAP * usual_s).sum()) if isinstance(usual_s, float) else 0
    if n_gaps:
        scan.notes.append(f"{scan.path}: scrapes are missing {n_gaps} times: those records cover a longer time")
    if len(rows):
        made = [_record(exporter, row) for row in rows.iter_rows(named=True)]
        scan.samples.append(sample_frame([
            {"engine": exporter.engine, "kind": "counters", "rank": rank, "stamp_kind": stamp_kind, **one}
            for one in made
        ]))


def _with_changes(exporter: Exporter, table: pl.DataFrame, leading: str) -> pl.DataFrame:
    """Add what every field gained since the scrape before, and the gauge of running requests before and after."""
    absent = [name for name in (*exporter.counters, *exporter.gauges) if name not in table.columns]
    table = table.with_columns(pl.lit(None, pl.Float64).alias(name) for name in absent)
    busy = pl.col(exporter.product[0]) * pl.col(exporter.product[1]) if exporter.product else pl.lit(None, pl.Float64)
    table = table.with_columns(busy_req=busy).filter(pl.col(leading).is_not_null())
    return table.with_columns(
        span_s=pl.col("time_s").diff(), start_req=pl.col("running_req").shift(1),
        next_req=pl.col("running_req").shift(-1),
        **{f"d_{name}": pl.col(name).diff() for name in (*exporter.counters, "busy_req")},
    )


def _has_fallen(exporter: Exporter, table: pl.DataFrame) -> pl.Series:
    """Mark the scrapes before which the server started anew: a counter fell, or its start time moved."""
    fell = pl.any_horizontal(pl.col(f"d_{name}") < 0 for name in exporter.counters).fill_null(False)
    if "started" in exporter.gauges:
        fell = fell | (pl.col("started").diff().abs() > _RESTARTED_S).fill_null(False)
    return table.select(fell=fell)["fell"]


def _trust_gauges(table: pl.DataFrame, report: str) -> pl.DataFrame:
    """Mark the records whose gauge of running requests tells the present.

    SGLang renews its gauges with its log lines: a prefill line writes the requests that ran before it, so the gauge
    is one prompt behind until the next decode line, which a change of the reported throughput shows.
    """
    has_prompt = (pl.col("d_new_tok") > 0).fill_null(True)
    table = table.with_columns(is_new=pl.col(report).diff().fill_null(0.0) != 0, batch=has_prompt.cum_sum())
    # a report in the span of the prompt itself may be the one before it
    is_after = (~has_prompt & pl.col("is_new")).cum_max().over("batch")
    return table.with_columns(is_fresh=is_after.shift(1).fill_null(False) & ~has_prompt)


def _record(exporter: Exporter, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the SAMPLES record of one difference, but for engine, kind, rank and kind of stamp."""
    change = {name: row[f"d_{name}"] for name in (*exporter.counters, "busy_req")}
    n_steps, out_tok = change.get("n_steps"), change.get("out_tok")
    if exporter.product:
        # one token per busy slot and step, as long as no slot works on a prompt
        out_tok = change["busy_req"] if not change["new_tok"] else None
    running = _running_req(exporter, row, n_steps, out_tok)
    # time that the engine itself measured inside decode steps is better than that between the scrapes
    span_s = row["span_s"] if change.get("step_s") is None else change["step_s"]
    return {
        "line_no": row["line_no"], "stamp": row["time_s"], "span_s": span_s, "n_steps": n_steps, "out_tok": out_tok,
        "running_req": _whole(running), "queue_req": _whole(row["queue_req"]), "used_tok": _whole(row.get("used_tok")),
        "kv_used_frac": row.get("kv_used_frac"), "new_tok": _whole(change.get("new_tok")),
        "cached_tok": _whole(change.get("cached_tok")), "retracted_req": _whole(change.get("retracted_req")),
        "decode_tok_per_s": out_tok / span_s if out_tok is not None and span_s else None,
        "accept_len": _accept_len(row, change, n_steps, out_tok), "extra": _extra(row, change, n_steps, out_tok),
    }


def _running_req(
    exporter: Exporter, row: Mapping[str, Any], n_steps: float | None, out_tok: float | None
) -> float | None:
    """Return the running requests of a record; None where the gauge cannot be believed and nothing else tells."""
    gauge: float | None = row["running_req"]
    if exporter.report and n_steps and out_tok:
        per_step = out_tok / n_steps / (row.get("accept_len") or 1.0)
        return per_step if abs(per_step - round(per_step)) < _WHOLE_REQ else None
    # without the counter of steps the next scrape must agree too: the gauge is late
    if exporter.report and not (row["is_fresh"] and row["next_req"] == gauge):
        return 0.0 if gauge == 0 and not out_tok else None
    # its time leaves prompts out, whatever ran between; a change of the batch remains a doubt
    if "step_s" in exporter.counters and gauge != row["start_req"]:
        return None
    return gauge


def _accept_len(
    row: Mapping[str, Any], change: Mapping[str, Any], n_steps: float | None, out_tok: float | None
) -> float | None:
    """Return tokens per request per step under speculation; None without it."""
    if not change.get("drafts"):
        return row.get("accept_len") or None
    running = row["running_req"]
    if n_steps and out_tok and running and running == row["start_req"]:
        return max(float(out_tok / n_steps / running), 1.0)
    return 1.0 + float(change["accepted"] or 0.0) / float(change["drafts"])


def _extra(
    row: Mapping[str, Any], change: Mapping[str, Any], n_steps: float | None, out_tok: float | None
) -> dict[str, Any]:
    """Return what has no column of its own."""
    extra: dict[str, Any] = {}
    if row["start_req"] is not None:
        extra["running_req_start"] = round(row["start_req"])
    if n_steps and change["busy_req"] is not None:
        extra["busy_per_step"] = round(change["busy_req"] / n_steps, 3)
    elif n_steps and out_tok is not None:
        extra["tok_per_step"] = round(out_tok / n_steps, 4)
    if change.get("itl_tok") and change.get("itl_s") is not None:
        extra["itl_s"] = round(change["itl_s"] / change["itl_tok"], 7)
    if change.get("step_s") is not None:
        extra["wall_s"] = round(row["span_s"], 6)
    return extra | {name: change[name] for name in ("finished_tok", "prefill_steps") if change.get(name)}


def _whole(value: float | None) -> int | None:
    return None if value is None or abs(value) >= 2**53 else round(value)
