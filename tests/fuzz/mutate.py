"""Seeds and mutations: log files that are nearly right, made from a number alone.

File ``n`` is the same on every machine with the same seeds, so a long run can be stopped, resumed and split over
processes, and a finding is reproduced by its number.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

COMPOSED = tuple(line.encode() for line in (
    "[2026-02-03 04:05:06 TP0] Decode batch, #running-req: 8, #token: 640, token usage: 0.25, accept len: 2.54, "
    "accept rate: 0.63, cuda graph: True, gen throughput (token/s): 123.45, #queue-req: 0",
    "[2026-02-03 04:05:07 DP3 PP1 TP0] Prefill batch [17], #new-seq: 2, #new-token: 512, #cached-token: 64, "
    "token usage: 0.01, #running-req: 7, #queue-req: 3, input throughput (token/s): 901.20",
    "[04:40:55 TP0] Decode batch. #running-req: 2, #token: 4078, token usage: 0.00, gen throughput (token/s): 447.31, "
    "#queue-req: 0",
    "[2026-02-03 04:05:08.896] Decode batch, #full token: 431, full token usage: 0.00, mamba num: 2, "
    "mamba usage: 0.02, #running-req: 1, cuda graph: False, gen throughput (token/s): 87.90, #queue-req: 0, ",
    "(APIServer pid=7) INFO 02-03 04:05:06 [loggers.py:271] Engine 000: Avg prompt throughput: 12.5 tokens/s, Avg "
    "generation throughput: 123.4 tokens/s, Running: 8 reqs, Waiting: 0 reqs, GPU KV cache usage: 12.5%, Prefix cache "
    "hit rate: 0.0%",
    "(APIServer pid=7) INFO 02-03 04:05:06 [metrics.py:101] SpecDecoding metrics: Mean acceptance length: 2.50, "
    "Accepted throughput: 60.00 tokens/s, Drafted throughput: 120.00 tokens/s, Accepted: 600 tokens, Drafted: 1200 "
    "tokens, Per-position acceptance rate: 0.800, 0.450, 0.250, Avg Draft acceptance rate: 50.0%",
    "(EngineCore_DP1 pid=9) INFO 02-03 04:05:06 [core.py:88] Iteration(42): 1 context requests, 17 context tokens, 3 "
    "generation requests, 3 generation tokens, iteration elapsed time: 12.34 ms",
    "INFO 06-10 12:00:01 metrics.py:351] Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 30.1 "
    "tokens/s, Running: 1 reqs, Swapped: 0 reqs, Pending: 0 reqs, GPU KV cache usage: 0.2%, CPU KV cache usage: 0.0%.",
    "[2026-02-03 04:00:00] server_args=ServerArgs(model_path='a/b', tp_size=4, dp_size=2, cuda_graph_bs=[1, 2, 4])",
    "[2026-02-03 04:00:01] Capture cuda graph bs [1, 2, 4, 8, 16]",
    "[2026-02-03 04:00:02 TP0] KV Cache is allocated. #tokens: 131072, K size: 4.00 GB, V size: 4.00 GB",
    "[2026-02-03 04:00:03] The server is fired up and ready to roll!",
    "INFO 02-03 04:00:00 [core.py:58] Initializing a V1 LLM engine (v0.9.1) with config: model='a/b', "
    "speculative_config=None, tensor_parallel_size=2, compilation_config={\"cudagraph_capture_sizes\":[8,4,2,1]}",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 79 GiB",
    "[2026-02-03 04:05:06] Retract requests. #retracted_reqs: 3, #new_tokens_gained: 512",
    '[2026-02-03 04:05:06] INFO:     127.0.0.1:20504 - "POST /v1/completions HTTP/1.1" 200 OK',
    "slot print_timing: id  0 | task 7 | n_decoded =    100, tg =  76.30 t/s",
    "       eval time =    3301.23 ms /   256 tokens (   12.90 ms per token,    77.55 tokens per second)",
    "[TRT-LLM] [I] iter = 11, global_rank = 0, rank = 0, currank_total_requests = 0/0, host_step_time = 4.1ms, "
    "prev_device_step_time = 3.9ms, timestamp = 2026-02-03 04:05:06, num_scheduled_requests: 1, states = "
    "{'num_ctx_requests': 0, 'num_ctx_tokens': 0, 'num_generation_tokens': 1}",
    '{"log":"[2026-02-03 04:05:06 TP0] Decode batch, #running-req: 8, #token: 640, token usage: 0.25, cuda graph: '
    'True, gen throughput (token/s): 123.45, #queue-req: 0\\n","stream":"stdout",'
    '"time":"2026-02-03T02:05:06.123456789Z"}',
    "2026-02-03T02:05:06.123456789Z stdout F [2026-02-03 04:05:06 TP0] Decode batch, #running-req: 8, #token: 640, "
    "token usage: 0.25, cuda graph: True, gen throughput (token/s): 123.45, #queue-req: 0",
    "2026-02-03T02:05:06.123456789Z stdout P [2026-02-03 04:05:06 TP0] Decode batch, #running-req: 8, #tok",
    "2026-02-03T02:05:06.123456789Z stdout F en: 640, token usage: 0.25, gen throughput (token/s): 123.45, "
    "#queue-req: 0",
    "sglang:num_running_reqs{model_name=\"a/b\",tp_rank=\"0\"} 8.0",
    '{"timestamp": 1770091506.5, "iter": 12, "numActiveRequests": 3, "iterLatencyMS": 12.5}',
    "Traceback (most recent call last):", '  File "/a/b.py", line 3, in f', "",
))
"""One line of each kind, values invented."""

TOKENS = (
    b"\x00", b"\x1b[36m", b"\x1b[0m", b"\x1b]0;title\x07", b"[0m", b"\r", b"\t", b"\xff\xfe", b"\xc3", b"\xed\xa0\x80",
    "\u2028".encode(), "█".encode(), b"\\n", b'"}', b"'", b'"', b"{", b"}", b"(", b")", b"[", b"]", b", ", b": ", b"%",
    b"=", b"$1", b"${1}", b"{{", b"<script>alert(1)</script>", b"Decode batch, #", b"Prefill batch. #",
    b"#running-req: ", b"Avg prompt throughput: ", b"SpecDecoding metrics: ", b"Iteration(",
    b"Per-position acceptance rate: ", b"server_args=ServerArgs(", b"CUDA out of memory. ",
    b"[2026-02-03 04:05:06 TP0] ", b"INFO 02-30 25:61:61 ", b"[99:99:99] ", b"0000-00-00 00:00:00",
    b"9999-12-31 23:59:59.999999999", b" stdout P ", b" stdout F ", b'{"log":"',
    b"HTTP/1.1\"", b"eval time =", b"iter = ", b"cuda graph: ", b"Receive: obj=",
)
NUMBERS = (
    b"0", b"-0", b"-1", b"00017", b"1e999", b"-1e999", b"1e-999", b"nan", b"-nan", b"inf", b"-inf", b"NaN", b"Infinity",
    b"True", b"False", b"None", b"0x10", b"1_000", b"1,000", b"1.", b".5", b"1.2.3", b"1e", b"9223372036854775807",
    b"9223372036854775808", b"18446744073709551616", b"9" * 40, b"0." + b"3" * 60, b"1e18", b"4.9e-324", b"2147483648",
    "٣".encode(), "１２".encode(), b"12abc", b"",
)
_NUMBER = re.compile(rb"\d+(?:\.\d+)?")

Mutation = Callable[[random.Random, bytes, Sequence[bytes]], bytes]


def _flip(rng: random.Random, line: bytes, seeds: Sequence[bytes]) -> bytes:
    if not line:
        return bytes([rng.randrange(256)])
    at = rng.randrange(len(line))
    return line[:at] + bytes([rng.randrange(256)]) + line[at + 1:]


def _drop(rng: random.Random, line: bytes, seeds: Sequence[bytes]) -> bytes:
    start = rng.randrange(len(line) + 1)
    return line[:start] + line[start + rng.choice((1, 1, 2, 5, 20, 1000)):]


def _repeat(rng: random.Random, line: bytes, seeds: Sequence[bytes]) -> bytes:
    start = rng.randrange(len(line) + 1)
    piece = line[start: start + rng.choice((1, 2, 10, 40, 200))]
    return line[:start] + piece * rng.choice((2, 2, 2, 3, 30)) + line[start:]


def _insert(rng: random.Random, line: bytes, seeds: Sequence[bytes]) -> bytes:
    at = rng.randrange(len(line) + 1)
    return line[:at] + rng.choice(TOKENS) + line[at:]


def _number(rng: random.Random, line: bytes, seeds: Sequence[bytes]) -> bytes:
    found = list(_NUMBER.finditer(line))
    if not found:
        return line + rng.choice(NUMBERS)
    where = rng.choice(found)
    new = rng.choice(NUMBERS) if rng.random() < 0.6 else str(rng.randrange(10 ** rng.randrange(1, 12))).encode()
    return line[:where.start()] + new + line[where.end():]


def _exchange_digits(rng: random.Random, line: bytes) -> bytes:
    return line.translate(bytes.maketrans(b"0123456789", bytes(rng.sample(b"0123456789", 10))))


def _shuffle(rng: random.Random, line: bytes, seeds: Sequence[bytes]) -> bytes:
    parts = line.split(b", ")
    rng.shuffle(parts)
    return b", ".join(parts)


def _swap(rng: random.Random, line: bytes, seeds: Sequence[bytes]) -> bytes:
    parts = line.split(b", ")
    other = rng.choice(seeds).split(b", ")
    parts[rng.randrange(len(parts))] = rng.choice(other)
    return b", ".join(parts)


def _splice(rng: random.Random, line: bytes, seeds: Sequence[bytes]) -> bytes:
    other = rng.choice(seeds)
    return line[: rng.randrange(len(line) + 1)] + other[rng.randrange(len(other) + 1):]


def _glue(rng: random.Random, line: bytes, seeds: Sequence[bytes]) -> bytes:
    return line + rng.choice((b"", b" ", b"\r", b"\\n")) + rng.choice(seeds)


def _wrap(rng: random.Random, line: bytes, seeds: Sequence[bytes]) -> bytes:
    prefix = rng.choice((
        b"2026-02-03T02:05:06.123456789Z stdout F ", b"2026-02-03T02:05:06.1Z stderr P ", b"2026-02-03T02:05:06+02:00 ",
        b"Feb  3 04:05:06 host py[42]: ", b"(Actor pid=1, ip=192.0.2.1) ", b"\x1b[36m(Actor pid=1)\x1b[0m ",
        b"svc-1  | ", b"0: ", b"[1,0]<stdout>:", b" 12%|x | 1/8 [00:22<02:35, 22.27s/it]",
    ))
    return prefix + line


def _fold(rng: random.Random, line: bytes, seeds: Sequence[bytes]) -> bytes:
    width = rng.choice((20, 80, 80, 120))
    return b"\n".join(line[start: start + width] for start in range(0, max(len(line), 1), width))


MUTATIONS: tuple[Mutation, ...] = (
    _flip, _drop, _repeat, _insert, _number, _number, _shuffle, _swap, _splice, _glue, _wrap, _fold,
)


def read_seeds(shared: Path | None = None, per_file: int = 60) -> tuple[bytes, ...]:
    """Return the composed lines and some of every log at hand, the same ones every time."""
    rng = random.Random(7)
    seeds = list(COMPOSED)
    folders = [ROOT / "data" / "samples", *([shared] if shared else [])]
    files = sorted(path for folder in folders for path in folder.rglob("*") if path.suffix in (".log", ".txt"))
    for path in files:
        lines = [line for line in path.read_bytes().split(b"\n") if len(line) < 3000]
        seeds += rng.sample(lines, min(len(lines), per_file * (10 if "variants" in path.name else 1)))
    return tuple(seeds)


def n_mutated_lines(number: int) -> int:
    """Return how many lines file ``number`` begins with: one in 41 is large, so that many lines cost little time."""
    return 20_000 if number % 41 == 0 else 40


POOL = 1_000
"""Lines of a file that are mutated each by itself; further ones are these with all digits exchanged for others."""


def make_file(number: int, seeds: Sequence[bytes], n_lines: int) -> bytes:
    """Return mutated file ``number``: lines with one to four mutations, and at times a mutation of the whole."""
    rng = random.Random(number)
    frequent = rng.sample(seeds, min(len(seeds), rng.choice((3, 10, 40))))
    lines: list[bytes] = []
    for _ in range(min(n_lines, POOL)):
        line = rng.choice(frequent)
        for _ in range(rng.choice((1, 1, 1, 2, 4))):
            line = rng.choice(MUTATIONS)(rng, line, seeds)[:20_000]
        lines.append(line)
    lines += [_exchange_digits(rng, rng.choice(lines)) for _ in range(n_lines - len(lines))]
    whole = rng.choice((b"\n", b"\n", b"\n", b"\r\n")).join(lines) + b"\n"
    kind = rng.random()
    if kind < 0.1:
        return whole[: rng.randrange(len(whole) + 1)]
    if kind < 0.15:
        return whole[rng.randrange(len(whole) + 1):]
    if kind < 0.18:
        return whole.replace(b"\n", b"", rng.randrange(5))
    return whole
