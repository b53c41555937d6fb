"""Step time by batch size from benchmarks that run no server: llama-bench, llama-batched-bench, bench_one_batch.

They decode a fixed batch in a loop, so a row is a level: nothing has to be cut into intervals. Rows that differ in
anything but the batch (prompt, length, depth, model, settings) are cases; the case with most batch sizes is used,
the others stand by as further populations and are never averaged with it.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
from scipy.special import stdtrit

from helpers.schema import LEVELS, LogFormatError, conform

MAX_BYTES = 64 * 2**20
"""A larger file is no table of benchmark rows."""

STEP_LIMITS_S = (1e-6, 1e5)
"""Shortest and longest step time that a row can mean [s]."""

MAX_BATCH_REQ = 10**7
"""More requests in a batch than any row can mean."""

_SERVER = ("Decode batch", "Avg prompt throughput", "slot print_timing")
"""Words of server logs; a file that holds them is a log, whatever else it quotes."""

_ROUNDS = 5
"""llama-bench repeats each test so often unless told otherwise; its CSV and its table do not say."""

_PAIRED = re.compile(r"([0-9.]+(?:e[+-]?[0-9]+)?) *± *([0-9.]+(?:e[+-]?[0-9]+)?)")
_TEST = re.compile(r"tg([0-9]+)(?: @ d([0-9]+))?")
_PREFILL = re.compile(r"Prefill\. latency: *([0-9.]+) s, throughput: *([0-9.]+) token/s")
_MEDIAN = re.compile(r"Decode\. +median latency: *([0-9.]+) s, median throughput: *([0-9.]+) token/s")
_BATCH = re.compile(r"Decode [0-9]+\. Batch size: *([0-9]+),")
_TOTAL = re.compile(r"Total\. latency: *([0-9.]+) s, throughput: *([0-9.]+) token/s")


@dataclass(frozen=True)
class Row:
    """One measurement: step time [s] with the ends that its digits or its scatter leave, and what it belongs to."""

    line_no: int
    running_req: float
    step_s: float
    half_width_s: float
    context_tok: float | None
    case: str


def is_bench(head: str) -> bool:
    """Tell whether a text begins like the output of one of the benchmarks read here.

    Parameters
    ----------
    head : str
        The first part of a file.
    """
    return not any(words in head for words in _SERVER) and _reader(head) is not None


def read_bench(name: str, text: str) -> pd.DataFrame:
    """Read a benchmark's output into LEVELS.

    Parameters
    ----------
    name : str
        Of the file, for messages.
    text : str
        Table, CSV, JSON, JSONL or console output of llama-bench, llama-batched-bench or SGLang's bench_one_batch.

    Returns
    -------
    DataFrame, schema LEVELS
        One row per case and batch size. step_s is T_TG / TG of llama-batched-bench, time per token of llama-bench's
        tg tests (one stream), median decode latency of bench_one_batch; its interval is what rounding or, for
        llama-bench, the scatter of the repetitions explains. context_tok is the mean over the tokens generated.

    Raises
    ------
    LogFormatError
        No row decodes, or a number is missing or impossible: line and name are given.
    """
    if len(text) > MAX_BYTES:
        raise LogFormatError(f"{name}: expected a table of benchmark rows, found {len(text)} bytes; cut out the rows")
    reader = _reader(text)
    if reader is None:
        raise LogFormatError(f"{name}: expected a benchmark of llama.cpp or SGLang, found none; check the file")
    try:
        rows = list(reader(text))
    except _BadRow as error:
        raise LogFormatError(f"{name}, {error}; correct or remove the row") from error
    if not rows:
        raise LogFormatError(
            f"{name}: expected rows that decode (tg tests, T_TG, median decode latency), found only prompts; run the "
            "benchmark with tokens to generate"
        )
    return _to_levels(rows)


class _BadRow(ValueError):
    """A row that cannot be meant; says line, name, expected and found."""


def _number(line_no: int, cells: Mapping[str, Any], name: str) -> tuple[float, float]:
    """Return a positive number and half a unit of its last digit."""
    text = str(cells.get(name, "")).strip()
    try:
        value = float(text)
    except ValueError as error:
        raise _BadRow(f"line {line_no}, {name}: expected a number, found {text[:40]!r}") from error
    if not math.isfinite(value) or value <= 0:
        raise _BadRow(f"line {line_no}, {name}: expected a number above 0, found {text[:40]!r}")
    mantissa, _, exponent = text.lower().partition("e")
    return value, 0.5 * 10.0 ** (int(exponent or 0) - len(mantissa.partition(".")[2]))


def _whole(line_no: int, cells: Mapping[str, Any], name: str) -> int:
    """Return a whole number from 0, or say where there is none."""
    text = str(cells.get(name, "")).strip()
    if not text.isdecimal() or len(text) > 12:
        raise _BadRow(f"line {line_no}, {name}: expected a whole number, found {text[:40]!r}")
    return int(text)


def _row(line_no: int, batch: float, step_s: float, half_width_s: float, context_tok: float | None, case: str) -> Row:
    """Return a row whose numbers can be meant."""
    shortest_s, longest_s = STEP_LIMITS_S
    if not shortest_s <= step_s <= longest_s or not 1 <= batch <= MAX_BATCH_REQ:
        raise _BadRow(
            f"line {line_no}: expected a batch of 1 to {MAX_BATCH_REQ:g} and a step of {shortest_s:g} to "
            f"{longest_s:g} s, found {batch:g} and {step_s:.3g} s"
        )
    return Row(line_no, float(batch), step_s, half_width_s, context_tok, case)


def _batched_rows(numbered: Iterator[tuple[int, Mapping[str, Any]]], names: Sequence[str]) -> Iterator[Row]:
    """Read llama-batched-bench: one decode step computes one token of every sequence."""
    prompt, generated, batch, seconds = names
    for line_no, cells in numbered:
        if _whole(line_no, cells, generated) == 0:
            continue
        n_tok, n_prompt = _whole(line_no, cells, generated), _whole(line_no, cells, prompt)
        total_s, half_digit_s = _number(line_no, cells, seconds)
        settings = ", ".join(f"{key} {value}" for key, value in cells.items() if key in _SETTINGS)
        case = f"prompt {n_prompt}, {n_tok} generated" + (f", {settings}" if settings else "")
        yield _row(line_no, _whole(line_no, cells, batch), total_s / n_tok, half_digit_s / n_tok,
                   n_prompt + n_tok / 2, case)


_SETTINGS = ("is_pp_shared", "flash_attn", "n_gpu_layers", "n_threads", "n_batch", "n_ubatch")


def _batched_table(text: str) -> Iterator[Row]:
    return _batched_rows(_table_rows(text, "T_TG s"), ("PP", "TG", "B", "T_TG s"))


def _batched_json(text: str) -> Iterator[Row]:
    return _batched_rows(_objects(text, "t_tg"), ("pp", "tg", "pl", "t_tg"))


def _single_table(text: str) -> Iterator[Row]:
    """Read llama-bench's table: ``tg128 @ d512 | 197.71 ± 0.81``; its rates are those of one stream."""
    for line_no, cells in _table_rows(text, "t/s"):
        test, rate = _TEST.fullmatch(cells.get("test", "")), _PAIRED.fullmatch(cells["t/s"])
        if test is None:
            continue
        if rate is None:
            raise _BadRow(f"line {line_no}, t/s: expected '<rate> ± <deviation>', found {cells['t/s'][:40]!r}")
        mean, half_digit = _number(line_no, {"t/s": rate[1]}, "t/s")
        spread = max(_half_width(float(rate[2]), _ROUNDS), half_digit)
        case = ", ".join(value for key, value in cells.items() if key != "t/s")
        yield _row(line_no, 1, 1 / mean, spread / mean**2, int(test[2] or 0) + int(test[1]) / 2, case)


def _single_json(text: str) -> Iterator[Row]:
    return _single_rows(_objects(text, "avg_ns"))


def _single_csv(text: str) -> Iterator[Row]:
    lines = text.splitlines()
    first = next(index for index, line in enumerate(lines) if "avg_ns" in line)
    reader = csv.DictReader(lines[first:])
    return _single_rows((first + reader.line_num, row) for row in reader)


def _single_rows(numbered: Iterator[tuple[int, Mapping[str, Any]]]) -> Iterator[Row]:
    """Read llama-bench's rows with all fields: tests that generate and compute no prompt."""
    for line_no, cells in numbered:
        n_tok = _whole(line_no, cells, "n_gen")
        if n_tok == 0 or _whole(line_no, cells, "n_prompt"):
            continue
        mean_ns, half_digit_ns = _number(line_no, cells, "avg_ns")
        samples = cells.get("samples_ns")
        n_rounds = len(samples) if isinstance(samples, list) and samples else _ROUNDS
        deviation_ns = float(cells["stddev_ns"]) if _is_number(cells.get("stddev_ns")) else 0.0
        half_ns = max(_half_width(deviation_ns, n_rounds), half_digit_ns)
        depth = _whole(line_no, cells, "n_depth") if "n_depth" in cells else 0
        case = ", ".join(f"{key} {cells[key]}" for key in _SINGLE_CASE if key in cells)
        yield _row(line_no, 1, mean_ns * 1e-9 / n_tok, half_ns * 1e-9 / n_tok, depth + n_tok / 2, case)


_SINGLE_CASE = ("model_type", "model_filename", "backends", "n_threads", "n_gpu_layers", "flash_attn", "type_k",
                "type_v", "n_gen", "n_depth")


def _half_width(deviation: float, n_rounds: int) -> float:
    """Return half the 95 % interval of a mean; 0 where nothing was repeated."""
    return float(stdtrit(n_rounds - 1, 0.975)) * deviation / math.sqrt(n_rounds) if n_rounds > 1 else 0.0


def _is_number(value: Any) -> bool:
    """Tell whether a cell is a finite number from 0."""
    return re.fullmatch(r"[0-9.]+(?:e[+-]?[0-9]+)?", str(value).strip().lower()) is not None


def _one_batch_json(text: str) -> Iterator[Row]:
    """Read SGLang's bench_one_batch JSONL; runs of one output token decode nothing and have no median."""
    for line_no, cells in _objects(text, "median_decode_latency"):
        step_s, half_digit_s = _number(line_no, cells, "median_decode_latency")
        n_prompt, n_tok = (_whole(line_no, cells, name) for name in ("input_len", "output_len"))
        case = f"{cells.get('run_name', '')}, input {n_prompt}, output {n_tok}".removeprefix(", ")
        yield _row(line_no, _whole(line_no, cells, "batch_size"), step_s, half_digit_s, n_prompt + n_tok / 2, case)


def _one_batch_console(text: str) -> Iterator[Row]:
    """Read SGLang's bench_one_batch console; the run before ``Benchmark ...`` warms up.

    Old versions do not print the batch: latency times throughput gives it.
    """
    lines = text.splitlines()
    starts = [index for index, line in enumerate(lines) if line.lstrip("# ").startswith("Benchmark ...")]
    batch: int | None = None
    prompt_tok = 0.0
    seen: list[tuple[int, int]] = []
    for index, line in enumerate(lines):
        if index < (starts[0] if starts else 0):
            continue
        if match := _PREFILL.search(line):
            batch, prompt_tok = None, float(match[1]) * float(match[2])
        elif match := _BATCH.search(line):
            batch = int(match[1])
        elif match := _MEDIAN.search(line):
            cells = {"median latency": match[1], "median throughput": match[2]}
            step_s, half_digit_s = _number(index + 1, cells, "median latency")
            rate, _ = _number(index + 1, cells, "median throughput")
            size = batch or round(step_s * rate)
            total = next((m for later in lines[index + 1:index + 4] if (m := _TOTAL.search(later))), None)
            total_tok = float(total[1]) * float(total[2]) if total else prompt_tok
            lengths = tuple(round(tok / max(size, 1)) for tok in (prompt_tok, max(total_tok, prompt_tok)))
            n_prompt, n_all = _about(seen, lengths[0], lengths[1])
            case = f"input about {n_prompt}, output about {n_all - n_prompt}"
            yield _row(index + 1, size, step_s, half_digit_s, (n_prompt + n_all) / 2 or None, case)


def _about(seen: list[tuple[int, int]], n_prompt: int, n_all: int) -> tuple[int, int]:
    """Return the lengths met before that these are, or these: they come from rounded numbers, up to 1 % off."""
    for known in seen:
        if all(abs(a - b) <= 0.01 * b + 1 for a, b in zip((n_prompt, n_all), known, strict=True)):
            return known
    seen.append((n_prompt, n_all))
    return n_prompt, n_all


def _table_rows(text: str, column: str) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the rows of Markdown tables that have a column of this name."""
    names: list[str] = []
    for line_no, line in enumerate(text.splitlines(), 1):
        if "|" not in line:
            names = []
            continue
        cells = [cell.strip() for cell in line[line.index("|"):].strip().strip("|").split("|")]
        if column in cells:
            names = cells
        elif names and not set("".join(cells)) <= set("-: "):
            if len(cells) != len(names):
                raise _BadRow(f"line {line_no}: expected {len(names)} cells, found {len(cells)}")
            yield line_no, dict(zip(names, cells, strict=True))


def _objects(text: str, key: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the JSON objects of a text that have a key: one a line, in a list, or one behind the other."""
    decoder = json.JSONDecoder(parse_float=str, parse_int=str, parse_constant=str)
    at, line_no, before, n_found = text.find("{"), 1, 0, 0
    while at >= 0:
        line_no += text.count("\n", before, at)
        before = at
        try:
            value, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            value, end = None, at + 1  # other programs' braces, or a row that was cut: counted below
        if isinstance(value, dict) and key in value:
            n_found += 1
            yield line_no, value
        at = text.find("{", end)
    n_named = text.count(f'"{key}"')
    if n_found < n_named:
        raise _BadRow(f"{key}: expected {n_named} whole JSON objects with it, found {n_found}")


_READERS: tuple[tuple[str, Callable[[str], Iterator[Row]]], ...] = (
    (r"\| *T_TG s *\| *S_TG t/s *\|", _batched_table),
    (r'"tg" *: *[0-9]+, *"pl" *: *[0-9]+', _batched_json),
    (r"\| *test *\| *t/s *\|", _single_table),
    (r'"avg_ns" *:', _single_json),
    (r"(?m)^[^\n{]*\bavg_ns,", _single_csv),
    (r'"median_decode_latency" *:', _one_batch_json),
    (r"Decode\. +median latency: ", _one_batch_console),
)
"""What only one benchmark prints -> its reader."""


def _reader(text: str) -> Callable[[str], Iterator[Row]] | None:
    """Return the reader of a text."""
    return next((reader for pattern, reader in _READERS if re.search(pattern, text)), None)


def _to_levels(rows: list[Row]) -> pd.DataFrame:
    """Pool the repetitions of a row, choose the case that is fitted, and build LEVELS."""
    table = pd.DataFrame([vars(row) for row in rows])
    sizes = table.groupby("case", sort=False)["running_req"].nunique()
    order = sorted(sizes.index, key=lambda case: -sizes[case])
    grouped = table.groupby(["case", "running_req"], sort=False)
    levels = grouped.agg(
        step_s=("step_s", "mean"), low=("step_s", "min"), high=("step_s", "max"), width=("half_width_s", "max"),
        context_tok=("context_tok", "mean"), n_clean=("step_s", "size"),
    ).reset_index()
    levels["population"] = levels["case"].map({case: number for number, case in enumerate(order)})
    levels["is_fitted"] = levels["population"] == 0
    levels["note"] = None if len(order) == 1 else levels["case"]
    return conform(
        levels.assign(
            server_life=0, rank_group="all", running_req_total=levels["running_req"], method="table", n_rejected="{}",
            step_s_lo=levels["low"] - levels["width"], step_s_hi=levels["high"] + levels["width"],
            decode_tok_per_s=levels["running_req"] / levels["step_s"],
        ).drop(columns=["case", "low", "high", "width"]).sort_values(["population", "running_req"]),
        LEVELS,
    )
