"""How fast and in how much memory logs are read, as ratios to references measured in the same run.

References: ``LC_ALL=C grep -cF`` of the statistic's literal, and what private scripts do: one compiled regular
expression with named groups on every line, its numbers converted. Inputs are simulated statistic lines repeated
under an advancing clock with other lines of a server between them; they are made in a temporary folder and removed.
"""

from __future__ import annotations

import argparse
import itertools
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

from helpers.synth import presets

MB = 10**6


class Row(TypedDict):
    """One line of the table: times in seconds (memory rows: MB), ratio as `bar` words it, and whether it holds."""

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
    clock_s = 1_780_000_000.0
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
    """Measure the largest resident size of a process that reads one large log."""
    for engine, every in (("SGLang", 3), ("vLLM", 20)):
        path = folder / f"{engine}-large.log"
        write_log(path, engine, size_bytes, every)
        seconds, peak_bytes = time_and_peak(f"ingest.read_log({str(path)!r}, cache=False)")
        yield Row(
            what=f"peak memory of reading a {engine} log (1 line in {every}) [MB]",
            size=f"{path.stat().st_size / MB:.0f} MB", ours_s=seconds, reference="limit in MB", reference_s=limit_mb,
            ratio=peak_bytes / MB, bar=f"< {limit_mb:.0f}", ok=peak_bytes / MB < limit_mb,
        )
        path.unlink()


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
        short: logs of 60 MB and no memory row. full: 200 MB, and 2 GB for the memory.
    """
    with tempfile.TemporaryDirectory(prefix="rooflog-bench-") as name:
        folder = Path(name)
        if scale == "short":
            return list(speed_rows(folder, 60 * MB, 3))
        return [*speed_rows(folder, 200 * MB, 5), *memory_rows(folder, 2000 * MB)]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scale", nargs="?", default="short", choices=["short", "full"])
    for row in rows(parser.parse_args().scale):
        print(f"{row['what']:60} {row['size']:>8} {row['ours_s']:8.3f} s  {row['reference']:32} "
              f"{row['reference_s']:8.3f}  {row['ratio']:8.2f}  {row['bar']:>8}  {'ok' if row['ok'] else 'MISSED'}")


if __name__ == "__main__":
    main()
