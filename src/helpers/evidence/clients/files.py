"""One file of client results: recognised by its content, read whole or line by line, every record accounted for."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

from helpers.evidence.clients import bench as client_bench
from helpers.evidence.clients import tools as client_tools
from helpers.evidence.clients.run import MILLI, Printed, Record, Run, extra_text
from helpers.evidence.reading import Tally, binary_kind, head, is_json, json_keys, lines, pieces
from helpers.schema import LogFormatError

GIVE = "give the file that the client saved, or what it printed"

MAX_FILE_BYTES = 512 * 2**20
"""A JSON or CSV file that unpacks to more is refused: it is read whole. 10 000 requests of 1000 tokens are ~200 MiB."""

_FOREIGN = (
    ('"traceEvents"', "a profiler trace, not a client result"),
    ('"avg_latency"', "an offline latency run (vllm bench latency): times of whole batches with neither batch size nor "
                      "token counts in the file, and no client"),
    ('"median_decode_latency"', "sglang bench_one_batch: an offline step time, and no client"),
    ('"laeufe"', "a home-made result file (German keys: laeufe, szenario, gesamt_tps), which no tool documents"),
)
_FLAT = re.compile(r"(?:(?P<a>ttft|tpot|itl|e2e|e2el)_(?P<b>mean|avg|median|p50|p99)"
                   r"|(?P<c>mean|avg|median|p50|p99)_(?P<d>ttft|tpot|itl|e2e|e2el))_(?P<unit>ms|s)$")
_FLAT_STATS = {"avg": "mean", "p50": "median"}


class NotAClient(LogFormatError):
    """A file is none of the known results: an error if it was named, a line of the list if it lay in a folder."""


def read_file(path: Path) -> tuple[list[Run], Tally]:
    """Read the runs of one file, and where its lines or records went.

    Raises
    ------
    NotAClient
        The file is none of the known results.
    LogFormatError
        It looks like one and cannot be read.
    """
    if kind := binary_kind(path):
        raise NotAClient(f"{path}: expected a client result, found {kind}; {GIVE}")
    start, tally = head(path), Tally(str(path))
    for mark, what in _FOREIGN:
        if is_json(start) and mark in start:
            raise NotAClient(f"{path}: expected a client result, found {what}")
    if path.name.endswith("_prometheus_metrics.json"):
        raise NotAClient(f"{path}: metrics scraped by inference-perf: its counts and means cover the scrape window, "
                          "not the run; use the lifecycle files beside it")
    try:
        if is_json(start):
            runs = _read_json(path, tally)
        elif start.startswith("Metric,") or {"duration", "output_throughput"} <= {*_cells(start.split("\n")[0])}:
            runs = _read_csv(path, tally)
        else:
            runs = list(client_bench.read_console(lines(path), tally)) if _holds_console(path) else []
    except LogFormatError:
        raise
    except (csv.Error, TypeError, ValueError, KeyError, AttributeError, IndexError, OverflowError) as error:
        raise LogFormatError(f"{path}: looks like a client result, but a value has another form than documented "
                             f"({type(error).__name__}: {error}); write the result again or omit the file") from error
    if not runs:
        why = "; ".join(tally.notes) or _described(start)
        raise NotAClient(f"{path}: expected a client result, found {why}; {GIVE}")
    return runs, tally


def _described(start: str) -> str:
    if not start.strip():
        return "an empty file"
    if is_json(start):
        keys = json_keys(start)
        named = f"keys {', '.join(keys)}" if keys else "without keys"
        return f"JSON of no known tool ({named})"
    return "a text or table without a result block"


def _cells(line: str) -> list[str]:
    return next(csv.reader([line.replace("\r", " ").rstrip()]), [])  # progress bars print lone returns


def _holds_console(path: Path) -> bool:
    """Search the bytes before reading lines: folders hold server logs of gigabytes."""
    mark, rest = client_bench.TITLE.encode(), b""
    for piece, _ in pieces(path):
        if mark in rest + piece or client_bench.TITLE.encode("utf-16-le") in rest + piece:
            return True
        rest = piece[-2 * len(mark):]
    return False


def _whole(path: Path) -> str:
    content = bytearray()
    for piece, _ in pieces(path):
        content += piece
        if len(content) > MAX_FILE_BYTES:
            raise LogFormatError(f"{path}: expected at most {MAX_FILE_BYTES} bytes of results, found more; save them "
                                 "without texts of requests and answers, or without per-token times")
    return content.decode("utf-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig", "replace")


def _read_json(path: Path, tally: Tally) -> list[Run]:
    text = _whole(path)
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        if "\n" not in text.strip():
            where = f"no JSON from line {error.lineno}, column {error.colno} on"
            is_cut = error.pos >= len(text.rstrip())
            raise LogFormatError(f"{path}: expected a client result in JSON, found "
                                 f"{'its end inside a value: it is cut off' if is_cut else where}; copy it again, or "
                                 "wait until the client has written it") from error
        return _read_json_lines(text, path, tally)
    except RecursionError as error:
        raise LogFormatError(f"{path}: expected a client result, found JSON nested too deeply to be one") from error
    runs = _document(document, path.name)
    if not runs and isinstance(document, list):
        for record in document:
            found = _document(record, path.name) if isinstance(record, dict) else []
            tally.count("row" if found else "other")
            runs += found
    else:
        tally.count("row" if runs else "other", max(len(runs), 1))
    return runs


def _document(document: Any, name: str) -> list[Run]:
    """Return the runs of a JSON document; none if it is nothing known."""
    if client_bench.is_bench(document):
        return [client_bench.read_bench(document)]
    if client_tools.is_guidellm(document):
        return client_tools.read_guidellm(document)
    if client_tools.is_inference_perf(document):
        return [client_tools.read_inference_perf(document, name)]
    if client_tools.is_inference_perf_requests(document):
        return [client_tools.read_inference_perf_requests(document)]
    if client_tools.is_llmperf(document):
        return [client_tools.read_llmperf(document)]
    if client_tools.is_llmperf_requests(document):
        return [client_tools.read_llmperf_requests(document)]
    if client_tools.is_perf(document):
        return [client_tools.read_perf(document, name)]
    if client_tools.is_perf_raw(document):
        return client_tools.read_perf_raw(document)
    if client_tools.is_perf_record(document):
        return [client_tools.read_perf_records([(1, document)])]
    return _flat(document)


def _flat(document: Any) -> list[Run]:
    """Read a small object whose keys say metric, statistic and unit (ttft_p50_ms), whoever wrote it."""
    if not isinstance(document, dict):
        return []
    told = {key: found for key in document if (found := _FLAT.match(str(key)))}
    if len({found["a"] or found["d"] for found in told.values()}) < 2:
        return []
    printed = Printed(document)
    run = Run("unknown", meanings=["of no known tool: names and units taken as written, nothing documents them"])
    run.values = {"name": printed.text("tag", "label", "name"), "model": printed.text("model", "model_id"),
                  "n_completed": printed.number("completed", "n_requests", "num_requests"),
                  "concurrency_req": printed.number("max_concurrency", "concurrency")}
    for key, found in told.items():
        what, stat = found["a"] or found["d"], found["b"] or found["c"]
        what = "e2e" if what == "e2el" else what
        scale = MILLI if found["unit"] == "ms" else 1.0
        run.values[f"{what}_{_FLAT_STATS.get(stat, stat)}_s"] = printed.number(key, scale=scale)
    run.doubts = printed.doubts
    run.values["extra"] = extra_text(printed.rest())
    return [run]


def _read_json_lines(text: str, path: Path, tally: Tally) -> list[Run]:
    runs, records = list[Run](), list[tuple[int, Record]]()
    for line_no, line in enumerate(text.removesuffix("\n").split("\n"), 1):
        if not line.strip():
            tally.count("other")
            continue
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            tally.reject(line_no, line, f"expected a JSON object, found {error}")
            continue
        if client_tools.is_perf_record(record):
            is_warmup = record["metadata"].get("benchmark_phase", "profiling") != "profiling"
            tally.count("other" if is_warmup else "row")
            if not is_warmup:
                records.append((line_no, record))
            continue
        found = _document(record, path.name)
        tally.count("row" if found else "other")
        for run in found:
            run.line_no = line_no
        runs += found
    if records:
        runs.append(client_tools.read_perf_records(records))
    if tally.lines["malformed"]:
        at, _, why = tally.malformed[0]
        tally.notes.append(f"{tally.lines['malformed']} lines are no JSON, the first is line {at}: {why}")
    return runs


def _read_csv(path: Path, tally: Tally) -> list[Run]:
    numbered = list(lines(path))
    cells = [_cells(text) for _, text in numbered]
    if cells[0][0] == "Metric":
        run, used = client_tools.perf_csv(numbered, cells, path.name)
        for (line_no, text), row in zip(numbered, cells, strict=True):
            if line_no in used:
                tally.count("row")
            elif row and row[0] == "Metric":
                tally.count("header")
            elif any(row):
                tally.reject(line_no, text, "expected as many cells as the header above has")
            else:
                tally.count("other")
        return [run]
    tally.count("header")
    runs = []
    for (line_no, text), row in zip(numbered[1:], cells[1:], strict=True):
        if len(row) != len(cells[0]):
            tally.reject(line_no, text, f"expected {len(cells[0])} cells, found {len(row)}")
            continue
        record = {k: _value(v) for k, v in zip(cells[0], row, strict=True) if v}
        tally.count("row")
        runs.append(client_bench.read_bench(record, line_no))
    return runs


def _value(cell: str) -> str | float:
    try:
        return float(cell)
    except ValueError:
        return cell
