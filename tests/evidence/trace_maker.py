"""Write PyTorch profiler traces of any size with known counts, as a stream, in no order of time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

LAYER = (
    ("nvjet_tst_64x8_64x16_4x1_v_bz_TNT", 20.0, 64),
    ("void flashinfer::BatchDecodeWithPagedKVCacheKernel<true, 128u, 8u>(flashinfer::Params)", 30.0, 256),
    ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 10.0, 16),
    ("void flashinfer::norm::FusedAddRMSNormKernel<8u, __nv_bfloat16>(__nv_bfloat16*)", 5.0, 32),
)
"""Name, duration in us, blocks. One layer: 65 us."""

HEAD = (("nvjet_tst_128x8_64x12_2x1_v_bz_TNT", 100.0, 1024),
        ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<f, at::native::ArgMaxOps<f>>>(f)", 8.0, 32))
"""Once a step: 108 us."""

ZERO_US = 1_365_627_868_906.685


@dataclass(frozen=True)
class Made:
    """What a trace holds: counts, and times in seconds."""

    n_steps: int
    n_layers: int
    step_s: float
    busy_s: float
    n_kernels: int
    n_events: int
    n_bytes: int


def write_trace(path: Path, *, n_steps: int = 4, n_layers: int = 16, gap_us: float = 52.0, n_python: int = 0,
                mark: str = "execute_context_0(0)_generation_{n}({n})", is_graph: bool = True, running_req: int = 32,
                device: int = 0, has_launches: bool = True) -> Made:
    """Write a trace; per step, kernels follow each other without gaps, then nothing runs for `gap_us`.

    `n_python` events of Python functions are added per step: what makes real traces large. The kernels of a step come
    before its annotation in the file, and every second step's in reverse order.
    """
    step_us = n_layers * sum(us for _, us, _ in LAYER) + sum(us for _, us, _ in HEAD) + gap_us
    properties = [{"id": i, "name": "NVIDIA B200", "numSms": 148} for i in range(2)]
    n_events = 0
    with path.open("w") as file:
        file.write('{"schemaVersion": 1, "deviceProperties": ' + json.dumps(properties) + ', "traceEvents": [\n')
        for step in range(n_steps):
            for event in _step(step, ZERO_US + step * step_us, n_layers, mark.format(n=running_req), is_graph, device,
                               n_python, has_launches):
                file.write((",\n" if n_events else "") + json.dumps(event))
                n_events += 1
        file.write('\n], "baseTimeNanoseconds": 1700000000000000000}')
    n_kernels = n_layers * len(LAYER) + len(HEAD)
    return Made(n_steps, n_layers, step_us * 1e-6, n_steps * (step_us - gap_us) * 1e-6, n_steps * n_kernels, n_events,
                path.stat().st_size)


def _step(step: int, start_us: float, n_layers: int, mark: str, is_graph: bool, device: int, n_python: int,
          has_launches: bool) -> Iterator[dict[str, object]]:
    kernels, now_us = [], start_us
    correlation = step * 10_000 + 1
    for at, (name, us, blocks) in enumerate([*LAYER * n_layers, *HEAD]):
        number = correlation + (0 if is_graph else at)
        kernels.append({"ph": "X", "cat": "kernel", "name": name, "pid": device, "tid": 7, "ts": now_us, "dur": us,
                        "args": {"device": device, "stream": 7, "correlation": number, "grid": [blocks, 1, 1],
                                 "block": [256, 1, 1], "External id": correlation}})
        now_us += us
    yield from kernels if step % 2 else reversed(kernels)
    # The host runs ahead: it launches before the device starts.
    if has_launches:
        for at in range(1 if is_graph else len(kernels)):
            name = "cudaGraphLaunch" if is_graph else "cudaLaunchKernel"
            yield {"ph": "X", "cat": "cuda_runtime", "name": name, "pid": 99, "tid": 99,
                   "ts": start_us - 200 + at * 1e-3, "dur": 5.0, "args": {"correlation": correlation + at}}
    yield {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 99, "tid": 99, "ts": start_us - 201, "dur": 3.0,
           "args": {"External id": correlation, "Input Dims": [[32, 4096], [4096, 6144]],
                    "Input type": ["c10::BFloat16", "c10::BFloat16"]}}
    for at in range(n_python):
        yield {"ph": "X", "cat": "python_function", "pid": 99, "tid": 99,
               "name": f"/opt/venv/lib/python3.12/site-packages/{at % 97}.py(1): f", "ts": start_us + at, "dur": 0.5,
               "args": {"Python parent id": at, "Python id": at + 1, "Ev Idx": at}}
    if mark:
        yield {"ph": "X", "cat": "user_annotation", "name": mark, "pid": 99, "tid": 99, "ts": start_us - 250,
               "dur": 100.0, "args": {}}
    yield {"ph": "X", "cat": "gpu_user_annotation", "name": mark or "x", "pid": device, "tid": 7, "ts": start_us,
           "dur": now_us - start_us, "args": {}}
    yield {"ph": "s", "id": correlation, "pid": 99, "tid": 99, "ts": start_us, "cat": "ac2g", "name": "ac2g"}
