"""Which process printed a record: the labels that wrappers put in front, and when they must tell ranks apart.

A label is no rank: mostly one process prints everything, and its pid changes with every restart. Only where two
processes print under one rank tag at the same time does the label become part of the tag.
"""

from __future__ import annotations

import re

import polars as pl

from helpers.ingest.distinct import n_distinct

_STAMP = r"^ *(?:20[0-9]{2}-[0-9T:.Z+-]+ (?:std(?:out|err) [FP] )?)?"
_LABELS = (
    r"\(([^()]*pid=[0-9]+[^()]*)\)",  # Ray, SkyPilot, vLLM
    r"\[([0-9]+,[0-9]+)\]<std",  # mpirun --tag-output
    r"\[pod/([^\]]+)\]",  # kubectl logs --prefix
    r"\[([0-9]{2,5})\] ",  # port of a router's child
    r"([0-9]+): ",  # srun -l
    r"([0-9A-Za-z_.-]+) +\| ",  # docker compose
    r"(?:<[0-9]+>)?(?:[A-Z][a-z]{2} +[0-9]+ [0-9:]+ )?[0-9A-Za-z_.-]+ ([0-9A-Za-z_./-]+\[[0-9]+\]): ",  # syslog
)
"""Label of the process at the begin of a line (Rust regex syntax); the first that matches counts."""

_HAS_LABEL = _STAMP + "(?:" + "|".join(_LABELS) + ")"

_FRONT = re.compile(r"ApiServer_([0-9]+) ")
_PID = re.compile(r"pid=([0-9]+)|\[([0-9]+)\]$")
_TASK = re.compile(r"(?:[0-9]+,)?([0-9]+)")

_MAX_LABELS = 10_000
"""Processes told apart in one file; a label that changes with every line is none."""


_MIN_RECORDS = 3
"""Records of a process that make it one of several in a file; fewer among others' are a paste."""


def add_labels(frame: pl.DataFrame) -> pl.DataFrame:
    """Add ``label``, the process that a wrapper names in ``prefix``; missing where there is none."""
    is_labelled = frame["prefix"].str.contains(_HAS_LABEL)
    if not is_labelled.any():
        return frame.with_columns(label=pl.lit(None, pl.String))
    first = frame["prefix"].str.extract(_STAMP + _LABELS[0])
    if not (is_labelled & first.is_null()).any():
        return frame.with_columns(label=first)
    others = (pl.col("prefix").str.extract(_STAMP + pattern) for pattern in _LABELS[1:])
    return frame.with_columns(label=pl.coalesce(first, *others))


def tell_apart(samples: pl.DataFrame) -> tuple[pl.DataFrame, list[str]]:
    """Add the process to the rank of records where several processes print under one rank tag at the same time.

    Parameters
    ----------
    samples : DataFrame
        Records of one file with ``line_no``, ``rank`` and ``label``.

    Returns
    -------
    samples : DataFrame
        Without ``label``; ``rank`` ends in PID<n>, TASK<n>, API<n> or WORKER<n> where it had to.
    notes : list of str
        Which processes were told apart, in words.
    """
    if "label" not in samples.columns:
        return samples, []
    if n_distinct(samples, "label") < 2:
        return samples[[name for name in samples.columns if name != "label"]], []
    # vLLM's engines and its API server are two processes of one server: each prints other kinds of records.
    stream = pl.when(pl.col("kind").is_in(["prefill", "decode"])).then(pl.lit("batch")).when(
        pl.col("kind") == "iteration").then(pl.lit("iteration")).otherwise(pl.lit("stats"))
    spans = (
        samples.filter(pl.col("label").is_not_null())
        .group_by("rank", "label", stream=stream)
        .agg(first=pl.col("line_no").min(), last=pl.col("line_no").max(), n=pl.len())
        .filter(pl.col("n") >= _MIN_RECORDS)
        .sort("rank", "stream", "first")
    )
    mixed = _overlapping(spans)
    if mixed.is_empty() or mixed["label"].n_unique() > _MAX_LABELS:
        return samples.drop("label"), []
    labels = mixed.sort("first")["label"].unique(maintain_order=True).to_list()
    tags = dict(zip(labels, _tags(labels), strict=True))
    tag = pl.col("label").replace_strict(tags, return_dtype=pl.String)
    named = mixed.unique(["rank", "label"]).select("rank", "label", tag=tag)
    joined = samples.join(named, on=["rank", "label"], how="left", nulls_equal=True, maintain_order="left")
    rank = pl.when(pl.col("tag").is_null()).then("rank").otherwise(
        pl.concat_str("rank", "tag", separator=" ", ignore_nulls=True)
    )
    words = ", ".join(f"{tag} ({label})" for label, tag in list(tags.items())[:3])
    more = f" and {len(tags) - 3} more" if len(tags) > 3 else ""
    note = f"{len(tags)} processes print under the same rank, told apart by their labels: {words}{more}"
    return joined.with_columns(rank=rank).drop("label", "tag"), [note]


def _overlapping(spans: pl.DataFrame) -> pl.DataFrame:
    """Return the labels whose records stand among those of another label of the same rank."""
    reached = pl.col("last").cum_max().shift().over("rank", "stream")
    next_first = pl.col("first").shift(-1).over("rank", "stream")
    return spans.filter((pl.col("first") < reached) | (next_first < pl.col("last").cum_max().over("rank", "stream")))


def _tags(labels: list[str]) -> list[str]:
    """Name each label by its pid, task or API server, if that tells them apart; else number them."""
    for name, pattern in (("API", _FRONT), ("PID", _PID), ("TASK", _TASK)):
        search = pattern.fullmatch if name == "TASK" else pattern.search
        numbers = [next((g for g in found.groups() if g), None) if (found := search(text)) else None for text in labels]
        if None not in numbers and len(set(numbers)) == len(numbers):
            return [f"{name}{int(str(number))}" for number in numbers]
    return [f"WORKER{number}" for number in range(len(labels))]
