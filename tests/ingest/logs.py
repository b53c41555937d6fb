"""Lines in the formats of the engines, written for the tests (values invented), and a way to read them."""

from __future__ import annotations

from pathlib import Path

from helpers import ingest

SGLANG = "[2026-02-03 04:05:{second:02d} TP0] Decode batch, #running-req: {n}, #token: {tok}, token usage: 0.25, " \
    "cuda graph: True, gen throughput (token/s): {rate:.2f}, #queue-req: 0"
VLLM = "(APIServer pid=7) INFO 02-03 04:05:{second:02d} [loggers.py:271] Engine 000: Avg prompt throughput: 0.0 " \
    "tokens/s, " \
    "Avg generation throughput: {rate:.1f} tokens/s, Running: {n} reqs, Waiting: 0 reqs, GPU KV cache usage: 12.5%, " \
    "Prefix cache hit rate: 0.0%"


def sglang_line(second: int = 0, n: int = 8, tok: int = 640, rate: float = 123.45) -> str:
    """One decode line."""
    return SGLANG.format(second=second, n=n, tok=tok, rate=rate)


def vllm_line(second: int = 0, n: int = 8, rate: float = 123.4) -> str:
    """One periodic line."""
    return VLLM.format(second=second, n=n, rate=rate)


def read(folder: Path, *lines: str, name: str = "server.log") -> ingest.Log:
    """Write the lines to a file and read it."""
    path = folder / name
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return ingest.read_log(path)
