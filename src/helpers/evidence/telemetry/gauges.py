"""Prometheus scrapes as time series: boards of dcgm-exporter, and the gauges of an engine's ranks.

Pages lie one after another in a file, each with a time before it or behind its values; or the file is the answer of
a range query. Only the series wanted are parsed (by prometheus_client), all lines are counted.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pandas as pd
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from helpers.errors import LogFormatError
from helpers.evidence.reading import Tally, lines, pieces
from helpers.evidence.telemetry.dmon import DCGM_MEANINGS
from helpers.evidence.telemetry.names import Meaning, key_of, read_value

ENGINE_GAUGES = {
    "running_req": ("sglang:num_running_reqs", "vllm:num_requests_running", "llamacpp:requests_processing",
                    "tgi_batch_current_size"),
    "queue_req": ("sglang:num_queue_reqs", "vllm:num_requests_waiting", "llamacpp:requests_deferred",
                  "tgi_queue_size"),
    # 0 to 1, whatever "perc" says
    "kv_used_frac": ("sglang:token_usage", "vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc",
                     "llamacpp:kv_cache_usage_ratio"),
}
"""Column -> gauges that fill it; a later one where no earlier is in the file."""

ENGINE_EXTRA = frozenset(
    f"{engine}:{name}" for engine, names in (
        ("sglang", "gen_throughput num_used_tokens decode_sum_seq_lens num_retracted_reqs num_retracted_requests_total"
                   " generation_tokens_total prompt_tokens_total max_total_num_tokens cache_hit_rate"
                   " spec_accept_length fwd_occupancy is_cuda_graph"),
        ("vllm", "num_preemptions_total generation_tokens_total prompt_tokens_total num_requests_swapped"
                 " avg_generation_throughput_toks_per_s iteration_tokens_total_count"),
        ("llamacpp", "tokens_predicted_total n_decode_total n_busy_slots_per_decode"),
    ) for name in names.split()
)
"""Series kept in `extra`: what explains the gauges. The counters in full are for the log's readers."""

_COLUMN_OF = {name: column for column, names in ENGINE_GAUGES.items() for name in names}
_RANK_LABELS = (("dp_rank", "DP"), ("engine", "DP"), ("pp_rank", "PP"), ("tp_rank", "TP"))

_NAME = re.compile(r"^([a-zA-Z_:][a-zA-Z0-9_:]*)[ \t{]")
_EPOCH = re.compile(r"(?<![\d.])(1\d{9}(?:\.\d+)?|1\d{12}|1\d{15}|1\d{18})(?![\d.])")
_ISO = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?")
_DATE = re.compile(r"([A-Z][a-z]{2} +\d{1,2} \d\d:\d\d:\d\d) (?:UTC|GMT) (\d{4})")
_META = ("# HELP ", "# TYPE ", "# UNIT ", "# EOF")
_LARGEST_ANSWER_BYTES = 2**29

_Value = tuple[int, int, float, str, dict[str, str], float]
"""Line, page, time (NaN if none), name, labels, value."""


def is_wanted(name: str) -> bool:
    """Tell whether a series goes into the table."""
    return name in _COLUMN_OF or name in ENGINE_EXTRA or name.startswith("DCGM_FI_")


def read_pages(path: str | Path, tally: Tally) -> tuple[pd.DataFrame, str, str]:
    """Read scrape pages.

    Parameters
    ----------
    path : path
        Pages of Prometheus or OpenMetrics text, one after another.
    tally : Tally
        Every line is counted into it: wanted samples are rows, times and descriptions headers, other samples other.

    Returns
    -------
    DataFrame
        Columns of TELEMETRY as far as the series tell, `ts` where the pages have times.
    str
        Tool: "dcgm-exporter" or "engine metrics".
    str
        Clock: "epoch", "local", or "none" where pages have no times.

    Raises
    ------
    LogFormatError
        No wanted series is in the file.
    """
    values: list[_Value] = []
    marks: dict[int, float] = {}
    state = _Pages()
    for line_no, text in lines(path):
        if text.startswith(_META):
            tally.count("header")
        elif (match := _NAME.match(text)) and text[0] != "#":
            if not is_wanted(match[1]):
                tally.count("other")
                continue
            values.extend(_sample(line_no, text, tally, state))
        elif (found := read_mark(text)) is not None:
            tally.count("header")
            state.begin()
            marks[state.page], is_local = found
            state.is_local = state.is_local or is_local
        else:
            tally.count("other")
    clock = "none"
    if marks:
        values = [(at, page, marks.get(page, np.nan), *rest) for at, page, _, *rest in values]  # type: ignore[misc]
        n_untimed = sum(np.isnan(value[2]) for value in values)
        if n_untimed:
            tally.notes.append(f"{n_untimed} samples before the first time are left out")
            values = [value for value in values if not np.isnan(value[2])]
        clock = "local" if state.is_local else "epoch"
    elif values and not any(np.isnan(value[2]) for value in values):
        clock = "epoch"
    return *_table(path, values, tally), clock


class _Pages:
    """Where a page ends: at a time, or where a series comes again."""

    def __init__(self) -> None:
        self.page, self.is_local, self.seen = 0, False, set[str]()
        self.known: dict[str, tuple[str, dict[str, str]]] = {}

    def begin(self) -> None:
        self.page += 1
        self.seen = set()

    def take(self, series: str) -> None:
        if series in self.seen:
            self.begin()
        self.seen.add(series)


def _sample(line_no: int, text: str, tally: Tally, state: _Pages) -> Iterator[_Value]:
    # OpenMetrics may append an exemplar behind " # "
    text = text.partition(" # ")[0]
    series, _, rest = text.rpartition("}") if "}" in text else text.partition(" ")
    try:
        if series not in state.known:
            # the parser reads each series once; its labels are shared by all its samples
            found: Sample = next(iter(text_string_to_metric_families(text + "\n"))).samples[0]
            state.known[series] = (found.name, found.labels)
        value, *stamp = map(float, rest.split())
        time_s = _seconds(*stamp) if stamp else float("nan")
    except (ValueError, TypeError, StopIteration) as error:
        tally.reject(line_no, text, f"no sample of a metric ({error or 'nothing in it'})")
        return
    tally.count("row")
    state.take(series)
    name, labels = state.known[series]
    yield line_no, state.page, time_s, name, labels, value


def _seconds(stamp: float) -> float:
    """Return seconds since 1970: Prometheus' text has milliseconds, OpenMetrics seconds."""
    return stamp / 1e3 if stamp > 1e11 else stamp


def read_mark(text: str) -> tuple[float, bool] | None:
    """Return the time that a line between two pages tells, and whether it is local; None if it tells none.

    Parameters
    ----------
    text : str
        ``# scrape_unix_time 1795961563.58``, ``1795961563``, ``2026-11-29T14:12:43Z``, or as `date` prints it in UTC.
    """
    text = text[:300]
    if match := _EPOCH.search(text):
        return float(match[1]) / {10: 1.0, 13: 1e3, 16: 1e6, 19: 1e9}[len(match[1].partition(".")[0])], False
    try:
        if match := _ISO.search(text):
            found = datetime.datetime.fromisoformat(match[0].replace(",", "."))
            return found.replace(tzinfo=found.tzinfo or datetime.UTC).timestamp(), found.tzinfo is None
        if match := _DATE.search(text):
            found = datetime.datetime.strptime(f"{match[1]} {match[2]}", "%b %d %H:%M:%S %Y")
            return found.replace(tzinfo=datetime.UTC).timestamp(), False
    except ValueError:
        return None
    return None


def read_range_query(path: str | Path, tally: Tally) -> tuple[pd.DataFrame, str, str]:
    """Read the answer of Prometheus's ``/api/v1/query_range``; each series is counted as a line.

    Returns
    -------
    DataFrame, str, str
        As `read_pages`.

    Raises
    ------
    LogFormatError
        The file is no whole answer, or none of its series is wanted.
    """
    content = b""
    for piece, _ in pieces(path):
        content += piece
        if len(content) > _LARGEST_ANSWER_BYTES:
            raise LogFormatError(f"{path}: expected an answer of at most 512 MiB, found more; query a shorter range")
    try:
        series = json.loads(content)["data"]["result"]
        labelled = [(one["metric"], one["values"]) for one in series]
    except (ValueError, KeyError, TypeError) as error:
        raise LogFormatError(
            f"{path}: expected the whole answer of a Prometheus range query, found none ({type(error).__name__}); "
            "save the answer of /api/v1/query_range again"
        ) from error
    values: list[_Value] = []
    for at, (labels, points) in enumerate(labelled, 1):
        name = str(labels.get("__name__", ""))
        if not is_wanted(name):
            tally.count("other")
            continue
        rest = {key: str(value) for key, value in labels.items() if key != "__name__"}
        try:
            values += [(at, 0, float(time_s), name, rest, float(value)) for time_s, value in points]
        except (ValueError, TypeError) as error:
            tally.reject(at, str(labels), f"its values are no [time, number] pairs ({error})")
            continue
        tally.count("row")
    tally.notes.append("one JSON answer: its series are counted in place of lines")
    return *_table(path, values, tally), "epoch"


def _table(path: str | Path, values: list[_Value], tally: Tally) -> tuple[pd.DataFrame, str]:
    """Turn samples into one row per scrape and device or rank."""
    if not values:
        raise LogFormatError(
            f"{path}: expected metrics of dcgm-exporter, SGLang, vLLM, llama.cpp or TGI, found no such series in "
            f"{tally.lines_total} lines; scrape the engine's /metrics or dcgm-exporter's"
        )
    long = pd.DataFrame(values, columns=["line_no", "page", "time_s", "name", "labels", "value"])
    is_board = long["name"].str.startswith("DCGM_FI_")
    parts = []
    if is_board.any():
        parts.append(_boards(long[is_board]))
    if not is_board.all():
        parts.append(_ranks(long[~is_board], tally))
    table = pd.concat(parts, ignore_index=True).sort_values("line_no", ignore_index=True)
    if table["time_s"].notna().all():
        table["ts"] = (table["time_s"] * 1e6).round().astype("int64").astype("datetime64[us]")
        table = table.sort_values(["ts", "line_no"], ignore_index=True, kind="stable")
    table["_layout"] = 1
    return table.drop(columns=["time_s", "page"]), "dcgm-exporter" if is_board.any() else "engine metrics"


def _boards(long: pd.DataFrame) -> pd.DataFrame:
    """Return one row per scrape and board (or MIG slice)."""
    labels = long["labels"]
    hosts = {of.get("Hostname", "") for of in labels}
    device = [_board(of, len(hosts) > 1) for of in labels]
    named = long.assign(device=device, device_name=[of.get("modelName") for of in labels])
    wide = _wide(named, ["page", "time_s", "device"])
    table = wide[["page", "time_s", "device", "line_no"]].copy()
    names = named.drop_duplicates("device").set_index("device")["device_name"]
    table["device_name"] = table["device"].map(names)
    rest = []
    best: dict[str, int] = {}
    for name in sorted(set(long["name"])):
        meaning = DCGM_MEANINGS.get(key_of(name))
        if meaning is None or meaning.choice >= best.get(meaning.column, 9):
            rest.append(name)
            continue
        best[meaning.column] = meaning.choice
        table[meaning.column] = [_in_base_units(value, meaning) for value in wide[name]]
    table["extra"] = _extra(wide, rest)
    return table


def _board(labels: dict[str, str], has_hosts: bool) -> str:
    device = labels.get("gpu") or labels.get("UUID") or labels.get("device", "")
    if labels.get("GPU_I_ID"):
        device += f"/GI{labels['GPU_I_ID']}"
    return f"{labels.get('Hostname', '')}/{device}" if has_hosts else device


def _in_base_units(value: float, meaning: Meaning) -> float:
    found = read_value(repr(value), meaning)
    return float("nan") if found is None else found


def _ranks(long: pd.DataFrame, tally: Tally) -> pd.DataFrame:
    """Return one row per scrape and rank; series without a rank go to the only rank there is."""
    gauges = long["name"].isin(_COLUMN_OF)
    stages = {of.get("pp_rank") for of in long["labels"]}
    servers = {_server(of) for of in long.loc[gauges, "labels"]}
    rank = [_rank(of, len(stages - {None}) > 1, len(servers) > 1) for of in long["labels"]]
    named = long.assign(rank=rank)
    known = sorted(set(named.loc[gauges, "rank"]))
    if len(known) == 1:
        named["rank"] = known[0]
    else:
        is_shared = ~named["rank"].isin(known)
        if is_shared.any():
            tally.notes.append(f"{int(is_shared.sum())} samples without a rank are left out: there are several ranks")
        named = named[~is_shared]
    wide = _wide(named, ["page", "time_s", "rank"])
    table = wide[["page", "time_s", "rank", "line_no"]].copy()
    table["rank"] = table["rank"].where(table["rank"] != "")
    for column, names in ENGINE_GAUGES.items():
        for name in names:
            if name in wide.columns:
                filled = table[column].fillna(wide[name]) if column in table.columns else wide[name]
                table[column] = filled
    table["extra"] = _extra(wide, [name for name in wide.columns if name in ENGINE_EXTRA])
    return table


def _server(labels: dict[str, str]) -> str:
    return labels.get("instance") or labels.get("pod") or ""


def _rank(labels: dict[str, str], has_stages: bool, has_servers: bool) -> str:
    tags = [f"{tag}{labels[label]}" for label, tag in _RANK_LABELS
            if labels.get(label) and (tag != "PP" or has_stages)]
    return " ".join([*([_server(labels)] if has_servers else []), *tags])


def _wide(named: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Return one row per key: line_no of its first sample, and a column per series (the last of equal ones)."""
    grouped = named.groupby(keys, sort=False, dropna=False)
    first = grouped["line_no"].min()
    values = named.groupby([*keys, "name"], sort=False, dropna=False)["value"].last().unstack("name")
    return values.join(first).reset_index()


def _extra(wide: pd.DataFrame, names: Iterable[str]) -> list[str | None]:
    kept = [name for name in names if name in wide.columns]
    rows = wide[kept].to_dict("records")
    found = [{name: value for name, value in row.items() if not np.isnan(value)} for row in rows]
    return [json.dumps(row) if row else None for row in found]
