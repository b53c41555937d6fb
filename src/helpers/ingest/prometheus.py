"""Prometheus counters of SGLang, vLLM, llama.cpp and TGI as a source: differences of two scrapes are step times.

What a scrape has and the log line has not: the number of steps (all but old SGLang count them), so no guess whether
the batch changed in between: tokens per step tell. `exporters` says what the metrics mean, `scrapes` reads the pages,
`differences` makes the records.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence

import polars as pl

from helpers.ingest.differences import add_differences
from helpers.ingest.export_scan import Export, ExportScan
from helpers.ingest.exporters import EXPORTERS, PLACE_LABELS, WANTED, Exporter, Series
from helpers.ingest.scrapes import Scrapes, read_labels, read_pages, read_range_query

_LOOKS = re.compile(r"^(?:# (?:HELP|TYPE) )?(?:vllm:|sglang:|llamacpp:|tgi_)[a-zA-Z0-9_:]+[ {]", re.MULTILINE)
_PAGE_LINE = re.compile(r"#|[a-zA-Z_:][a-zA-Z0-9_:]*(?:\{|[ \t][-+0-9NI.])|[0-9.]+\s*$")
_PAGE_FRAC = 0.9
"""Share of the first lines that must look like those of a page."""

_LOOKS_LIKE_QUERY = re.compile(r'^\s*\{\s*"status"\s*:\s*"success"\s*,\s*"data"\s*:')
_QUERY_NAMES = re.compile(r'"__name__"\s*:\s*"(?:vllm:|sglang:|llamacpp:|tgi_)')


def matches_pages(head: str, path: str) -> bool:
    """Tell whether a file is scrape pages: its first lines are metrics, comments or times, some an engine's."""
    del path
    lines = [line for line in head.split("\n")[:50] if line.strip()]
    if _LOOKS.search(head) is None or not lines:
        return False
    return sum(_PAGE_LINE.match(line) is not None for line in lines) >= _PAGE_FRAC * len(lines)


def matches_query(head: str, path: str) -> bool:
    """Tell whether a file is the answer of a Prometheus range query for an engine's metrics."""
    del path
    return _LOOKS_LIKE_QUERY.match(head) is not None and _QUERY_NAMES.search(head) is not None


def read(path: str, *, is_query: bool = False) -> ExportScan:
    """Read scrapes into ``counters`` records: one per pair of scrapes and rank.

    Parameters
    ----------
    path : str
        Pages one after another, each with a time before it or behind its values.
    is_query : bool
        The file is the answer of a range query instead.

    Returns
    -------
    ExportScan
        span_s is the time between the scrapes (of TGI: inside its decode steps), n_steps, out_tok and new_tok what
        the counters gained, running_req the gauge at the second scrape; ``extra`` has running_req_start (the first
        scrape's) and tok_per_step or busy_per_step, which must equal running_req where the batch did not change.
    """
    scan = ExportScan(path=path, export=(QUERY if is_query else PAGES).name)
    scrapes = (read_range_query if is_query else read_pages)(scan, WANTED)
    labels = {key: read_labels(key) for key in scrapes.values["key"].unique().sort()}
    models = {of_key["model_name"] for _, of_key in labels.values() if of_key.get("model_name")}
    if len(models) == 1:
        scan.facts["model"] = models.pop()
    for exporter in EXPORTERS:
        for rank, fields in _ranks(scan, exporter, labels).items():
            add_differences(scan, exporter, rank, _pivot(scrapes, fields), scrapes.stamp_kind)
    if not scan.samples:
        scan.notes.append(_why_nothing(path, scrapes))
    elif scrapes.n_untimed:
        scan.notes.append(f"{path}: samples before the first time are left out")
    return scan


def _why_nothing(path: str, scrapes: Scrapes) -> str:
    """Say why a file of metrics gives no difference."""
    if scrapes.n_untimed and scrapes.times.is_empty():
        return (
            f"{path}: expected a time with every scrape, found none; write one line before each, for example "
            "`echo \"# time $(date +%s.%N)\"`"
        )
    return f"{path}: expected at least two scrapes with an engine's counters, found {len(scrapes.times)}; scrape again"


Labels = Mapping[str, tuple[str, Mapping[str, str]]]
_Place = tuple[str, ...]


def _ranks(scan: ExportScan, exporter: Exporter, labels: Labels) -> dict[str | None, dict[str, list[str]]]:
    """Return for every rank the fields and the series that feed each of them."""
    fed: dict[str, dict[_Place, list[str]]] = {}
    for name, choice in {**exporter.counters, **exporter.gauges}.items():
        fed[name] = next(filter(None, (_by_place(exporter, series, labels) for series in choice)), {})
    places = [place for name in ("running_req", "n_steps") for place in fed.get(name, {})]
    kept = _drop_copies(scan, exporter, list(dict.fromkeys(places)))
    n_tags = len(exporter.rank_tags)
    found: dict[str | None, dict[str, list[str]]] = {}
    for place, rank in kept.items():
        # what one process counts for all ranks carries no rank: it is this rank's only if there is no other
        shared = ("",) * n_tags + place[n_tags:]
        others = [other for other in kept if other[n_tags:] == place[n_tags:]]
        found[rank] = {
            name: by_place.get(place, by_place.get(shared, []) if len(others) == 1 else [])
            for name, by_place in fed.items()
        }
    return found


def _by_place(exporter: Exporter, series: Series, labels: Labels) -> dict[_Place, list[str]]:
    """Return the printed series of one metric, by rank and server."""
    found: dict[_Place, list[str]] = {}
    for key, (name, of_key) in labels.items():
        if name == series.name and (not series.label or of_key.get(series.label) in series.values):
            place = tuple(of_key.get(label, "") for label in (*exporter.rank_tags, *PLACE_LABELS))
            found.setdefault(place, []).append(key)
    return found


def _drop_copies(scan: ExportScan, exporter: Exporter, places: Sequence[_Place]) -> dict[_Place, str | None]:
    """Name the ranks as the log does; what tensor and pipeline ranks above 0 print are copies."""
    tags = list(exporter.rank_tags.items())
    main = []
    for place in places:
        of_rank = dict(zip(exporter.rank_tags, place, strict=False))
        if all(of_rank.get(label, "") in ("", "0") for label in ("tp_rank", "pp_rank")):
            main.append(place)
    n_copies = len(places) - len(main)
    if n_copies:
        scan.notes.append(f"{scan.path}: {n_copies} series of tensor or pipeline ranks above 0 are copies, left out")
    servers = list(dict.fromkeys(place[len(tags):] for place in main))
    if len(servers) > 1:
        names = ", ".join(f"WORKER{number} is {' '.join(filter(None, one))}" for number, one in enumerate(servers))
        scan.notes.append(f"{scan.path}: series of {len(servers)} servers: {names}")
    if len(main) == 1 and exporter.report:
        return {main[0]: None}  # the log of a single rank has no tag
    named = {}
    for place in main:
        parts = [f"WORKER{servers.index(place[len(tags):])}"] if len(servers) > 1 else []
        parts += [f"{tag}{number}" for (_, tag), number in zip(tags, place, strict=False) if tag == "DP" and number]
        named[place] = " ".join(parts) or None
    return named


def _pivot(scrapes: Scrapes, fields: Mapping[str, list[str]]) -> pl.DataFrame:
    """Return one row per scrape: its time and every field, series of one field added up."""
    pairs = [(name, key) for name, keys in fields.items() for key in keys]
    which = pl.DataFrame(pairs, schema={"field": pl.String, "key": pl.String}, orient="row")
    long = scrapes.values.join(which, on="key").group_by("scrape", "field").agg(pl.col("value").sum())
    wide = long.pivot("field", index="scrape", values="value")
    return scrapes.times.join(wide, on="scrape", how="inner").sort("scrape")


PAGES = Export(
    name="Prometheus scrapes",
    engine=None,
    matches=matches_pages,
    read=read,
    kinds=("counters",),
    versions="vLLM V0 and V1, SGLang 0.4 and newer, llama.cpp --metrics, TGI 2",
    gives=(
        "Differences of counters between scrapes: steps, tokens, prompts; running requests are a gauge at the scrape, "
        "which SGLang renews only with its log line"
    ),
)

QUERY = Export(
    name="Prometheus range query",
    engine=None,
    matches=matches_query,
    read=functools.partial(read, is_query=True),
    kinds=("counters",),
    versions="any Prometheus server's /api/v1/query_range",
    gives="As Prometheus scrapes, at the steps of the query: a step finer than the scrape interval repeats values",
)
