"""A slow, plain per-line reader of statistic lines: the second opinion that the fast one is checked against.

Written from log-formats.md alone and sharing no code with the package: one line at a time, `re` and `str` only,
no table of layouts, no polars. It answers with what a person would read off the line.
"""

from __future__ import annotations

import re

_SGLANG_COLUMNS = {
    "#running-req": "running_req", "#queue-req": "queue_req", "#token": "used_tok", "#full token": "used_tok",
    "#gpu token": "used_tok", "token usage": "kv_used_frac", "full token usage": "kv_used_frac",
    "gpu token usage": "kv_used_frac", "#new-token": "new_tok", "#cached-token": "cached_tok",
    "gen throughput (token/s)": "decode_tok_per_s", "input throughput (token/s)": "prefill_tok_per_s",
    "accept len": "accept_len", "accept rate": "accept_rate_frac", "cuda graph": "graph", "cpu graph": "graph",
    "npu graph": "graph", "#retracted-req": "retracted_req", "#transfer-req": "transfer_req",
    "#prealloc-req": "prealloc_req",
    "#running_req": "running_req", "#remaining_req": "queue_req", "#new_token": "new_tok",
    "#cached_token": "cached_tok",
}
_COUNTS = {
    "running_req", "queue_req", "used_tok", "new_tok", "cached_tok", "retracted_req", "transfer_req", "prealloc_req",
    "iteration",
}


def read_line(line: str) -> list[dict[str, object]] | None:
    """Return the records of a line, an empty list if it holds none, None if it is malformed."""
    line = re.sub(r"\x1b\[[0-9;]*m", "", line)
    line = re.sub(r"\[[0-9]+(;[0-9]+)*m", "", line)
    if "SpecDecoding metrics: " in line and "Avg thr" not in line:
        return [_spec(line)]
    if re.search(r"Iteration\(\d+\)", line):
        return [_iteration(line)]
    if "Avg prompt throughput: " in line:
        ends = [match.start() for match in re.finditer("Avg prompt throughput: ", line)] + [len(line)]
        return [_vllm(line, start, end) for start, end in zip(ends, ends[1:], strict=False)]
    for aux in ("MFU: ", "KV Transfer metrics: ", "Prefix cache hit rate: GPU: ", "Speculative metrics: "):
        if aux in line and not line.startswith("#"):
            rate = re.search(r"Draft acceptance rate: ([\d.]+),", line)
            return [{
                "kind": "spec" if aux.startswith("Spec") else "aux", "rank": _vllm_rank(line), "ts": _stamp(line),
                "accept_rate_frac": float(rate[1]) if rate else None,
            }]
    return _sglang(line)


def _sglang(line: str) -> list[dict[str, object]] | None:
    """Read an SGLang batch line by the recipe of log-formats.md 1.2."""
    old = re.search(r"new fill batch\. (.*)$", line)
    head = re.search(r"(Decode|Prefill) batch ?(?:\(mixed #running-req: (\d+)\))? ?(?:\[(\d+)\])?[.,] (?=#)", line)
    record: dict[str, object]
    if old:
        record = {"kind": "prefill"}
        pairs = [part.rstrip(".").rpartition(": ") for part in old[1].split(". ")]
    elif head:
        record = {"kind": head[1].lower()}
        if head[2]:
            record["running_req"] = int(head[2])
        if head[3]:
            record["iteration"] = int(head[3])
        body = re.split(r'\\n"|"\}', line[head.end():])[0]
        pairs = [part.strip().rstrip(".").rpartition(": ") for part in body.split(",") if part.strip()]
    elif "gen throughput (token/s): " in line:
        record = {"kind": "decode"}
        pairs = [part.rpartition(": ") for part in line[line.index("#running-req"):].split(", ")]
    else:
        return []
    prefix = line[: head.start()] if head else line
    tags = re.search(r"\d\d:\d\d:\d\d[^\] ]* ((?:[A-Z_]+\d+ ?)+)\]", prefix)
    gpu = re.search(r"\[gpu_id=(\d+)\]", prefix)
    record["rank"] = tags[1] if tags else f"GPU{gpu[1]}" if gpu else None
    record["ts"] = _stamp(prefix if head else line) or _stamp(line)
    for key, colon, value in pairs:
        if not colon:
            return None
        column = _SGLANG_COLUMNS.get(key)
        if column == "graph":
            record[column] = value == "True"
        elif column:
            record[column] = int(value) if column in _COUNTS else float(value.rstrip("%"))
    return [record]


def _vllm(line: str, start: int, end: int) -> dict[str, object]:
    """Read one periodic record of vLLM."""
    body = line[start:end]
    prefix = line[:start] if line.index("Avg prompt") == start else line[line.rindex("INFO", 0, start): start]

    def number(pattern: str) -> float | None:
        found = re.search(pattern, body)
        return float(found[1]) if found else None

    record: dict[str, object] = {
        "kind": "stats", "rank": _vllm_rank(prefix), "ts": _stamp(prefix),
        "prefill_tok_per_s": number(r"Avg prompt throughput: +([\d.]+) tokens/s"),
        "decode_tok_per_s": number(r"Avg generation throughput: ([\d.]+) tokens/s"),
        "running_req": int(number(r"Running: (\d+) reqs") or 0),
        "queue_req": int(number(r"(?:Waiting|Pending): (\d+) reqs") or 0),
    }
    usage = number(r"(?:GPU|XPU) KV cache usage: ([\d.]+)%")
    usage = number(r"CPU KV cache usage: ([\d.]+)%") if usage is None else usage
    record["kv_used_frac"] = usage / 100 if usage is not None else None
    return record


def _spec(line: str) -> dict[str, object]:
    """Read a speculation record; tokens per round from the position rates, bonus token added."""
    positions = re.search(r"Per-position acceptance rate: ((?:[\d.]+(?:, )?)+)", line)
    assert positions is not None
    rate = re.search(r"[dD]raft acceptance rate: ([\d.]+)%", line)
    accept_len = 1 + sum(float(value) for value in positions[1].strip(", ").split(", "))
    return {
        "kind": "spec", "rank": _vllm_rank(line), "ts": _stamp(line), "accept_len": accept_len,
        "accept_rate_frac": float(rate[1]) / 100 if rate else None,
    }


def _iteration(line: str) -> dict[str, object]:
    """Read an iteration record."""
    found = re.search(
        r"Iteration\((\d+)\): .*?(\d+) context tokens, (\d+) generation requests, (\d+) generation tokens, "
        r"iteration elapsed time: ([\d.]+) ms", line,
    )
    assert found is not None
    usage = re.search(r"KV cache usage: ([\d.]+)%", line)
    process = re.search(r"EngineCore_DP(\d+)", line)
    return {
        "kind": "iteration", "rank": f"DP{int(process[1])}" if process else _vllm_rank(line), "ts": _stamp(line),
        "iteration": int(found[1]), "new_tok": int(found[2]), "running_req": int(found[3]),
        "out_tok": float(found[4]), "span_s": float(found[5]) / 1000, "n_steps": 1.0,
        "kv_used_frac": float(usage[1]) / 100 if usage else None,
    }


def _vllm_rank(text: str) -> str | None:
    """``Engine 001:`` -> DP1."""
    found = re.search(r"Engine (\d+):", text)
    return f"DP{int(found[1])}" if found else None


def _stamp(text: str) -> str | None:
    """Return the record's own stamp as ISO text, a wrapper's only where there is none."""
    if found := re.findall(r"(?:INFO|WARNING|ERROR) (\d\d-\d\d \d\d:\d\d:\d\d)", text):
        return f"1904-{found[-1]}"
    if found := re.findall(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)?)(?: [A-Z_]+\d+)*\]", text):
        return found[-1]
    if found := re.findall(r"\[(\d\d:\d\d:\d\d)(?: [A-Z]+\d+)*\]", text):
        return f"1904-01-01 {found[-1]}"
    return None
