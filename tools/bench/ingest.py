"""How fast and in how much memory logs are read, as ratios to references measured in the same run.

References: ``LC_ALL=C grep -cF`` of the statistic's literal, and what private scripts do: one compiled regular
expression with named groups on every line, its numbers converted. Inputs are simulated statistic lines repeated
under an advancing clock with other lines of a server between them; they are made in a temporary folder and removed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from prometheus_client.parser import text_string_to_metric_families

from helpers.synth import presets

MB = 10**6


class Row(TypedDict):
    """One line of the table: times in seconds (rows of memory: MB), ratio as `bar` words it, and whether it holds."""

    what: str
    size: str
    ours_s: float
    reference: str
    reference_s: float
    ratio: float
    bar: str
    ok: bool


@dataclass(frozen=True)
class Kind:
    """An engine whose log is made: preset, the literal that grep counts, and the line loop's expression."""

    preset: str
    literal: str
    stamp: str
    line: re.Pattern[str]


KINDS = {
    "SGLang": Kind(
        "healthy_moe", "Decode batch", "%Y-%m-%d %H:%M:%S",
        re.compile(
            r"\[(?P<stamp>\d{4}-\d{2}-\d{2} \d{2}:\d{2}:\d{2})(?P<tags>[^\]]*)\] Decode batch.*?"
            r"#running-req: (?P<running_req>\d+), #token: (?P<used_tok>\d+), token usage: (?P<kv_used_frac>[\d.]+).*?"
            r"gen throughput \(token/s\): (?P<decode_tok_per_s>[\d.]+), #queue-req: (?P<queue_req>\d+)"
        ),
    ),
    "vLLM": Kind(
        "vllm_sweep", "Avg prompt throughput", "%m-%d %H:%M:%S",
        re.compile(
            r"INFO (?P<stamp>\d{2}-\d{2} \d{2}:\d{2}:\d{2}) .*?Avg prompt throughput: (?P<prefill_tok_per_s>[\d.]+) "
            r"tokens/s, Avg generation throughput: (?P<decode_tok_per_s>[\d.]+) tokens/s, "
            r"Running: (?P<running_req>\d+) reqs, Waiting: (?P<queue_req>\d+) reqs, "
            r"\w+ KV cache usage: (?P<kv_used_frac>[\d.]+)%"
        ),
    ),
}

_TEXT_GROUPS = ("stamp", "tags")

OTHERS = (
    'INFO:     10.1.{a}.{b}:{port} - "POST /v1/completions HTTP/1.1" 200 OK',
    'INFO:     10.1.{a}.{b}:{port} - "GET /health HTTP/1.1" 200 OK',
    'INFO:     10.1.{a}.{b}:{port} - "POST /v1/chat/completions HTTP/1.1" 200 OK',
    "[{stamp}] router: backend {b} answered in {a}.{b} ms, {port} bytes",
    "[{stamp}] scheduler: cache report, {port} blocks free, {a} evicted",
)
"""Other lines of a server, most of them access lines, in turn."""


def write_log(path: Path, engine: str, size_bytes: int, every: int) -> None:
    """Write a log of which one line in `every` is a statistic.

    Parameters
    ----------
    path : Path
    engine : str
        One of `KINDS`.
    size_bytes : int
        The log ends with the first whole repetition at or above.
    every : int
        3 is a dense log, 20 a sparse one.
    """
    kind = KINDS[engine]
    start_up, statistics = _simulated(kind)
    fill = itertools.cycle(_other_lines())
    clock_s = 1_793_700_000.0  # a day after the simulated start-up
    n_bytes = 0
    with path.open("w", encoding="utf-8") as file:
        n_bytes += file.write("".join(start_up))
        while n_bytes < size_bytes:
            block = []
            for _, before, after in statistics:
                clock_s += 0.4
                stamp = time.strftime(kind.stamp, time.gmtime(clock_s))
                block.append(f"{before}{stamp}{after}")
                block += [line.replace("{stamp}", stamp) for line in itertools.islice(fill, every - 1)]
            n_bytes += file.write("".join(block))


def _simulated(kind: Kind) -> tuple[list[str], list[tuple[int, str, str]]]:
    """Return the lines of the start-up, and the statistic lines cut around their stamps."""
    stamp = re.compile(r"\d{4}-\d{2}-\d{2} \d{2}:\d{2}:\d{2}|(?<=INFO )\d{2}-\d{2} \d{2}:\d{2}:\d{2}")
    start_up: list[str] = []
    statistics: list[tuple[int, str, str]] = []
    for line in presets.get(kind.preset).simulate().lines():
        found = stamp.search(line)
        if ("throughput" in line or "Prefill batch" in line) and found is not None:
            statistics.append((len(line), line[: found.start()], line[found.end():] + "\n"))
        elif not statistics:
            start_up.append(line + "\n")
    return start_up, statistics


def _other_lines() -> list[str]:
    """Return some thousand different lines with {stamp} left in."""
    return [
        OTHERS[number % len(OTHERS)].format(
            a=number % 251, b=number * 7 % 241, port=32768 + number * 7919 % 28000, stamp="{stamp}"
        ) + "\n"
        for number in range(5003)
    ]


def regex_loop(path: Path, engine: str) -> int:
    """Read a log as private scripts do; return the number of records."""
    pattern = KINDS[engine].line
    records = []
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            match = pattern.search(line)
            if match:
                records.append({
                    name: value if name in _TEXT_GROUPS else float(value) for name, value in match.groupdict().items()
                })
    return len(records)


def grep_count(path: Path, literal: str) -> int:
    """Count lines with a literal as fast as a machine can."""
    counted = subprocess.run(
        ["grep", "-cF", literal, str(path)], env={**os.environ, "LC_ALL": "C"}, capture_output=True, check=False
    )
    return int(counted.stdout)


def ours(path: Path) -> int:
    """Read a log with rooflog's reader, past its cache; return the number of decode or periodic records."""
    from helpers import ingest

    kinds = ingest.read_log(path, cache=False).samples["kind"]
    return int(kinds.isin(["decode", "stats"]).sum())


def best_of(n_tries: int, *calls: Callable[[], int]) -> list[float]:
    """Time several calls in turn, `n_tries` rounds; return the shortest time of each [s]."""
    best_s = [float("inf")] * len(calls)
    for _ in range(n_tries):
        for index, call in enumerate(calls):
            start_s = time.perf_counter()
            call()
            best_s[index] = min(best_s[index], time.perf_counter() - start_s)
    return best_s


_PEAK = """
import sys, time
from helpers import ingest
start_s = time.perf_counter()
{call}
seconds = time.perf_counter() - start_s
peak = [line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")][0]
print(seconds, int(peak) * 1024)
"""


def time_and_peak(call: str, **environment: str) -> tuple[float, int]:
    """Run Python text in a process of its own; return its time [s] and its largest resident size [bytes]."""
    done = subprocess.run(
        [sys.executable, "-c", _PEAK.format(call=call)], env={**os.environ, **environment}, capture_output=True,
        check=True, text=True,
    )
    seconds, peak_bytes = done.stdout.split()[-2:]
    return float(seconds), int(peak_bytes)


def speed_rows(folder: Path, size_bytes: int, n_tries: int) -> Iterator[Row]:
    """Compare reading with both references, dense and sparse."""
    for (engine, kind), (name, every) in itertools.product(KINDS.items(), (("dense", 3), ("sparse", 20))):
        path = folder / f"{engine}-{name}.log"
        write_log(path, engine, size_bytes, every)
        counts = ours(path), grep_count(path, kind.literal), regex_loop(path, engine)  # warms the page cache too
        if len(set(counts)) != 1:
            raise AssertionError(f"{path.name}: records read, counted and matched differ: {counts}")
        ours_s, grep_s, loop_s = best_of(
            n_tries, lambda: ours(path), lambda: grep_count(path, kind.literal), lambda: regex_loop(path, engine)
        )
        what, size = f"read a {name} {engine} log (1 line in {every})", f"{path.stat().st_size / MB:.0f} MB"
        if name == "dense":
            yield _row(what, size, ours_s, "regex per line", loop_s, loop_s / ours_s, 5.0, is_least=True)
        most = 5.0 if name == "dense" else 3.0
        yield _row(what, size, ours_s, f"grep -cF '{kind.literal}'", grep_s, ours_s / grep_s, most, is_least=False)
        path.unlink()


def memory_rows(folder: Path, size_bytes: int, limit_mb: float = 600.0) -> Iterator[Row]:
    """Measure the largest resident size of a process that reads one large log; its records are kept, so few lines are.

    A dense log of that size holds six million records, which take more than the limit by themselves.
    """
    for engine in KINDS:
        path = folder / f"{engine}-large.log"
        write_log(path, engine, size_bytes, 20)
        _, peak_bytes = time_and_peak(f"ingest.read_log({str(path)!r}, cache=False)")
        yield _row(f"peak memory of reading a sparse {engine} log [MB]", f"{path.stat().st_size / MB:.0f} MB",
                   peak_bytes / MB, "the limit", limit_mb, peak_bytes / MB / limit_mb, 1.0, is_least=False)
        path.unlink()


def cache_row(folder: Path, size_bytes: int) -> Row:
    """Compare scrapes that were read before with reading them."""
    from helpers import ingest

    path = folder / "cached.txt"
    write_scrapes(path, size_bytes)
    before = {name: os.environ.get(name) for name in ("ROOFLOG_CACHE_DIR", "ROOFLOG_NO_CACHE")}
    os.environ |= {"ROOFLOG_CACHE_DIR": str(folder / "cache"), "ROOFLOG_NO_CACHE": "0"}
    try:
        ingest.read_log(path)
        hit_s, read_s = best_of(
            2, lambda: len(ingest.read_log(path).samples), lambda: len(ingest.read_log(path, cache=False).samples)
        )
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            os.environ |= {name: value} if value is not None else {}
    size = f"{path.stat().st_size / MB:.0f} MB"
    path.unlink()
    return _row("read Prometheus scrapes again", size, hit_s, "reading past the cache", read_s, hit_s / read_s, 1.0,
                is_least=False)


def export_rows(folder: Path, size_bytes: int) -> Iterator[Row]:
    """Compare scrapes, JSON lines and a kernel trace with what a plain script does with them."""
    scrapes, passes, trace = folder / "metrics.txt", folder / "passes.jsonl", folder / "trace.json"
    write_scrapes(scrapes, size_bytes)
    part = scrapes.read_text(encoding="utf-8")[: size_bytes // 20].rpartition("\n# ")[0]
    ours_s, peak_bytes = time_and_peak(f"ingest.read_log({str(scrapes)!r}, cache=False)")
    (part_s,) = best_of(1, lambda: sum(1 for _ in text_string_to_metric_families(part)))
    parser_s = part_s * scrapes.stat().st_size / len(part)
    size = f"{scrapes.stat().st_size / MB:.0f} MB"
    yield _row("read Prometheus scrapes", size, ours_s, "prometheus_client's parser (from 1/20)", parser_s,
               parser_s / ours_s, 5.0, is_least=True)
    yield _row("peak memory of that [MB]", size, peak_bytes / MB, "the limit", 600.0, peak_bytes / MB / 600, 1.0,
               is_least=False)
    scrapes.unlink()

    write_passes(passes, size_bytes)
    ours_s, _ = time_and_peak(f"ingest.read_log({str(passes)!r}, cache=False)")
    loads_s, _ = time_and_peak(f"import json\nfor line in open({str(passes)!r}): json.loads(line)")
    yield _row("read forward passes as JSON lines", f"{passes.stat().st_size / MB:.0f} MB", ours_s,
               "json.loads of every line", loads_s, ours_s / loads_s, 6.0, is_least=False)
    passes.unlink()

    write_kernels(trace, size_bytes)
    read = "from helpers.evidence.profiles.read import read_profile\nread_profile"
    ours_s, peak_bytes = time_and_peak(f"{read}({str(trace)!r})")
    load_s, whole_bytes = time_and_peak(f"import json\nevents = json.load(open({str(trace)!r}))")
    size = f"{trace.stat().st_size / MB:.0f} MB"
    yield _row("read a PyTorch trace", size, ours_s, "json.load of the whole file", load_s, ours_s / load_s, 4.0,
               is_least=False)
    yield _row("peak memory of that [MB]", size, peak_bytes / MB, "json.load of the whole file", whole_bytes / MB,
               peak_bytes / whole_bytes, 1.0, is_least=False)
    trace.unlink()


def write_scrapes(path: Path, size_bytes: int) -> None:
    """Write pages of a vLLM server at work, one a second, with a hundred series that nobody asks for."""
    at = '{engine="0",model_name="m"}'
    others = "".join(
        f'http_request_duration_seconds_bucket{{handler="/v1/{n}",le="0.{n}"}} {n}.0\n' for n in range(100)
    )
    n_bytes = second = 0
    with path.open("w", encoding="utf-8") as file:
        while n_bytes < size_bytes:
            second += 1
            running = 1 + second // 300 % 16
            n_bytes += file.write(
                f"# scrape_unix_time {1_795_960_000 + second}.25\nvllm:num_requests_running{at} {running}.0\n"
                f"vllm:generation_tokens_total{at} {second * 800}.0\nvllm:prompt_tokens_total{at} 0.0\n"
                f"vllm:iteration_tokens_total_count{at} {second * 50}.0\n{others}"
            )


def write_passes(path: Path, size_bytes: int) -> None:
    """Write SGLang's forward-pass records, one JSON object a line."""
    n_bytes = number = 0
    with path.open("w", encoding="utf-8") as file:
        while n_bytes < size_bytes:
            number += 1
            running = 1 + number // 20_000 % 32
            n_bytes += file.write(json.dumps({
                "timestamp": 1_795_960_000 + number / 50, "worker_id": "w0", "dp_rank": 0, "counter_id": number,
                "wall_time": 0.01 + 0.0005 * running + number % 7 * 1e-5,
                "scheduled_requests": {"num_prefill_requests": 0, "sum_prefill_tokens": 0,
                                       "num_decode_requests": running, "sum_decode_kv_tokens": running * 900},
                "queued_requests": {"num_prefill_requests": 0, "num_decode_requests": 0},
            }) + "\n")


def write_kernels(path: Path, size_bytes: int) -> None:
    """Write a trace of torch.profiler: kernels of decode steps, and the operators of the host around them."""
    names = ("nvjet_tst_64x8_64x16_4x1_v_bz_TNT", "void flashinfer::BatchDecodeWithPagedKVCacheKernel<true>(Params)",
             "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)")
    n_bytes = number = 0
    with path.open("w", encoding="utf-8") as file:
        n_bytes += file.write('{"schemaVersion": 1, "traceEvents": [\n{"ph": "M", "name": "process_name"}')
        while n_bytes < size_bytes:
            number += 1
            stamp = 1e12 + number * 25.0
            events = [
                {"ph": "X", "cat": "kernel", "name": names[number % 3], "pid": 0, "tid": 7, "ts": stamp, "dur": 20.0,
                 "args": {"device": 0, "stream": 7, "correlation": number, "grid": [64, 1, 1], "block": [256, 1, 1]}},
                {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": stamp - 90,
                 "dur": 4.0, "args": {"correlation": number}},
                *({"ph": "X", "cat": "python_function", "name": f"model.py({n}): forward", "pid": 1, "tid": 1,
                   "ts": stamp - 100 + n, "dur": 1.0, "args": {"Python id": n}} for n in range(4)),
            ]
            n_bytes += file.write("".join(f",\n{json.dumps(event)}" for event in events))
        file.write('\n], "baseTimeNanoseconds": 1700000000000000000}')


def _row(
    what: str, size: str, ours_s: float, reference: str, reference_s: float, ratio: float, bar: float, *, is_least: bool
) -> Row:
    ok = ratio >= bar if is_least else ratio <= bar
    sign = ">=" if is_least else "<="
    return Row(what=what, size=size, ours_s=ours_s, reference=reference, reference_s=reference_s, ratio=ratio,
               bar=f"{sign} {bar:g}x", ok=ok)


def rows(scale: str = "short") -> list[Row]:
    """Measure everything.

    Parameters
    ----------
    scale : {"short", "full"}
        short: logs of 60 MB, other files of 30 MB. full: 200 MB of each, and logs of 2 GB for the memory.
    """
    with tempfile.TemporaryDirectory(prefix="rooflog-bench-") as name:
        folder = Path(name)
        if scale == "short":
            return [*speed_rows(folder, 60 * MB, 3), cache_row(folder, 30 * MB), *export_rows(folder, 30 * MB)]
        return [*speed_rows(folder, 200 * MB, 9), *memory_rows(folder, 2000 * MB), cache_row(folder, 200 * MB),
                *export_rows(folder, 200 * MB)]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scale", nargs="?", default="short", choices=["short", "full"])
    for row in rows(parser.parse_args().scale):
        print(f"{row['what']:60} {row['size']:>8} {row['ours_s']:8.3f} s  {row['reference']:32} "
              f"{row['reference_s']:8.3f}  {row['ratio']:8.2f}  {row['bar']:>8}  {'ok' if row['ok'] else 'MISSED'}")


if __name__ == "__main__":
    main()
