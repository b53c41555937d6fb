"""The files beside a simulated log: telemetry, a kernel profile, a client's result, as the tools print them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import numpy as np

from helpers.synth import Simulation
from helpers.synth.trace import DECODE

SHOWN_GPUS = 4
"""Boards in the telemetry at most: the others would show the same."""


@dataclass(frozen=True)
class Board:
    """What a board shows while it decodes. Functions of running requests give shares of a decode step, 0..1."""

    limit_w: float
    boost_mhz: int
    mem_mhz: int
    name: str
    busy: Callable[[np.ndarray], np.ndarray]
    mem: Callable[[np.ndarray], np.ndarray]
    tensor: Callable[[np.ndarray], np.ndarray]
    sm_active_frac: float = 0.9
    capped_from_s: float = np.inf  # power limit or temperature holds the clock down from here on
    is_thermal: bool = False
    clock_frac: float = 1.0  # of boost while held down
    spins: bool = False  # waiting in a collective: full utilisation, little power


def sampled(run: Simulation, board: Board, period_s: float) -> dict[str, np.ndarray]:
    """Average what the board shows over each sampling period: t_s, busy, mem, tensor, all 0..1."""
    rows = [f for f in run.trace.forwards]
    start = np.array([f.start_s for f in rows])
    end = np.array([f.end_s for f in rows])
    _, first = np.unique(start, return_index=True)  # ranks in lockstep share a forward
    start, end = start[first], end[first]
    n = np.array([max(rows[i].step_req, 1) for i in first], dtype="float64")
    is_decode = np.array([rows[i].kind == DECODE for i in first])
    shares = {"busy": np.where(is_decode, board.busy(n), 1.0), "mem": np.where(is_decode, board.mem(n), 0.3),
              "tensor": np.where(is_decode, board.tensor(n), 0.5)}
    t_s = np.arange(period_s, run.trace.end_s, period_s)
    edges = np.stack([start, end], axis=1).ravel()
    found = {"t_s": t_s}
    for name, share in shares.items():
        used = np.cumsum(np.stack([np.zeros(len(share)), share * (end - start)], axis=1).ravel())
        found[name] = np.clip((np.interp(t_s, edges, used) - np.interp(t_s - period_s, edges, used)) / period_s, 0, 1)
    ready_s = next(e["t_s"] for e in run.trace.events if e["kind"] == "ready")
    spin = (t_s > 0.8 * ready_s) & (t_s < ready_s)  # capturing graphs: full utilisation, nothing is served
    found["busy"] = np.where(spin, 1.0, found["busy"])
    return found


def _columns(run: Simulation, board: Board, period_s: float, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Turn the shares into what a board reports, with scatter."""
    found = sampled(run, board, period_s)
    t_s, busy = found["t_s"], found["busy"]
    wanted = 0.14 + busy * (0.05 + 0.33 * found["mem"] + 0.9 * found["tensor"]) + (0.04 * busy if board.spins else 0)
    held = (t_s >= board.capped_from_s) & (busy > 0.5)
    power = np.minimum(wanted, 0.97)
    power = np.where(held, 0.82 if board.is_thermal else 0.997, power) * board.limit_w
    power = power * (1 + 0.006 * rng.standard_normal(len(t_s)))
    clock = np.where(held, board.clock_frac, 1.0) * board.boost_mhz + 15 * rng.integers(-1, 1, len(t_s))
    heat = np.where(held & board.is_thermal, 91, 38 + 40 * power / board.limit_w)
    return found | {"power": power, "clock": clock, "heat": heat, "held": held}


def smi_csv(run: Simulation, board: Board, n_gpus: int, rng: np.random.Generator, period_s: float = 1.0) -> str:
    """Return what `nvidia-smi --query-gpu=... --format=csv -lms` prints; stamps are local, as the log's."""
    lines = ["timestamp, index, power.draw [W], power.limit [W], clocks.current.sm [MHz], clocks.current.memory [MHz], "
             "utilization.gpu [%], utilization.memory [%], temperature.gpu, clocks_event_reasons.sw_power_cap, "
             "clocks_event_reasons.hw_thermal_slowdown"]
    start = datetime.strptime(run.server.start, "%Y-%m-%d %H:%M:%S")
    word = ("Not Active", "Active")
    boards = [_columns(run, board, period_s, rng) for _ in range(min(n_gpus, SHOWN_GPUS))]
    for i, t_s in enumerate(boards[0]["t_s"]):
        for index, c in enumerate(boards):
            stamp = start + timedelta(seconds=float(t_s), milliseconds=5 * index)
            held = bool(c["held"][i])
            lines.append(
                f"{stamp:%Y/%m/%d %H:%M:%S}.{stamp.microsecond // 1000:03d}, {index}, {c['power'][i]:.2f} W, "
                f"{board.limit_w:.2f} W, {c['clock'][i]:.0f} MHz, {board.mem_mhz} MHz, {100 * c['busy'][i]:.0f} %, "
                f"{100 * c['mem'][i]:.0f} %, {c['heat'][i]:.0f}, {word[held and not board.is_thermal]}, "
                f"{word[held and board.is_thermal]}")
    return "\n".join(lines) + "\n"


DCGM = (
    ("DCGM_FI_DEV_SM_CLOCK", "SM clock frequency (in MHz).", "clock", 1.0),
    ("DCGM_FI_DEV_POWER_USAGE", "Power draw (in W).", "power", 1.0),
    ("DCGM_FI_DEV_GPU_TEMP", "GPU temperature (in C).", "heat", 1.0),
    ("DCGM_FI_DEV_GPU_UTIL", "GPU utilization (in %).", "busy", 100.0),
    ("DCGM_FI_PROF_SM_ACTIVE", "Ratio of cycles with a warp.", "sm_active", 1.0),
    ("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "Ratio of cycles the tensor pipe is active.", "tensor", 1.0),
    ("DCGM_FI_PROF_DRAM_ACTIVE", "Ratio of cycles the memory interface is active.", "mem", 1.0),
)
"""Gauge, its help, the column it shows, factor."""


def dcgm_pages(
    run: Simulation, board: Board, n_gpus: int, rng: np.random.Generator, zone_s: float, period_s: float = 5.0
) -> str:
    """Return scrapes of dcgm-exporter one after another, with stamps in ms UTC; the log is zone_s ahead of UTC."""
    start = datetime.strptime(run.server.start, "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC).timestamp() - zone_s
    boards = [_columns(run, board, period_s, rng) for _ in range(min(n_gpus, SHOWN_GPUS))]
    for c in boards:
        c["sm_active"] = c["busy"] * board.sm_active_frac
    lines = []
    for i, t_s in enumerate(boards[0]["t_s"]):
        stamp_ms = int(1000 * (start + t_s))
        for name, text, column, factor in DCGM:
            lines += [f"# HELP {name} {text}", f"# TYPE {name} gauge"]
            lines += [f'{name}{{gpu="{g}",device="nvidia{g}",modelName="{board.name}",Hostname="node"}} '
                      f"{factor * c[column][i]:.6g} {stamp_ms}" for g, c in enumerate(boards)]
    return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class Kernel:
    """Launches of one kernel in one step. Times in s; shapes are those of its operator."""

    name: str
    n_calls: int
    step_s: float
    n_blocks: int = 2048
    shapes: tuple[tuple[int, ...], ...] = ()
    operator: str = ""


@dataclass(frozen=True)
class ProfiledStep:
    """One kind of step in a profile: running requests, kernels in order, time the device idles after them [s]."""

    running_req: int
    kernels: tuple[Kernel, ...]
    gap_s: float = 0.0


NAMES = {
    "weights": ("nvjet_tst_192x8_64x8_4x1_v_bz_TNT", 4), "compute": ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n", 1),
    "experts": ("fused_moe_kernel", 2), "index": ("fp8_paged_mqa_logits", 1),
    "kv": ("void flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<128, 64, 128>, false>(Flash_fwd_params)", 1),
    "state": ("fused_recurrent_gated_delta_rule_fwd_kernel", 1),
    "all_reduce": ("void sglang::cross_device_reduce_2stage<__nv_bfloat16, 8>(sglang::RankData*, int)", 2),
    "draft": ("nvjet_tst_128x8_64x12_2x1_v_bz_TNT", 1),
}
"""Part of a step -> (kernel, launches per layer). Names: log-formats 6.4 and public traces."""

SMALL = ("void flashinfer::norm::FusedAddRMSNormKernel<8, __nv_bfloat16>(__nv_bfloat16*)",
         "void flashinfer::BatchQKApplyRotaryPosIdsCosSinCacheHeadParallelismKernel<128>(int)",
         "void act_and_mul_kernel<__nv_bfloat16>(__nv_bfloat16*)",
         "void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16>(int)",
         "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>>(int)")
"""Kernels that share what the smallest kernel times cost, one of each per layer."""


def kernels_of(parts_s: dict[str, float], layers: int) -> list[Kernel]:
    """Return the kernels of a healthy step from its parts [s]; ``host`` is no kernel."""
    found = []
    for part, (name, per_layer) in NAMES.items():
        time_s = parts_s.get(part, 0.0)
        if part == "weights":
            time_s += parts_s.get("head", 0.0)
        if time_s > 0:
            found.append(Kernel(name, per_layer * layers, time_s))
    found += [Kernel(name, layers, parts_s.get("kernels", 0.0) / len(SMALL), 64) for name in SMALL]
    return [*found, Kernel("void flashinfer::sampling::TopKTopPSamplingFromProbKernel<1024>(float*)", 1, 30e-6, 16)]


def nsys_csv(step: ProfiledStep, n_steps: int, rng: np.random.Generator) -> str:
    """Return what `nsys stats --report cuda_gpu_kern_sum --format csv` prints for n_steps equal steps."""
    lines = ["NOTICE: Existing SQLite export found: decode.sqlite", "",
             "Processing [decode.sqlite] with [/opt/nsys/reports/cuda_gpu_kern_sum.py]... ", "",
             "Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name"]
    all_s = sum(k.step_s for k in step.kernels)
    for k in sorted(step.kernels, key=lambda k: -k.step_s):
        total_ns = round(1e9 * k.step_s * n_steps * (1 + 0.002 * rng.standard_normal()))
        mean_ns = total_ns / (k.n_calls * n_steps)
        lines.append(f'{100 * k.step_s / all_s:.1f},{total_ns},{k.n_calls * n_steps},{mean_ns:.1f},{mean_ns:.1f},'
                     f'{int(0.9 * mean_ns)},{int(1.3 * mean_ns)},{0.05 * mean_ns:.1f},"{k.name}"')
    return "\n".join(lines) + "\n"


def torch_trace(steps: Sequence[ProfiledStep], n_sms: int, board_name: str, *, has_graph: bool = True) -> str:
    """Return a PyTorch profiler trace of the steps: replayed graphs, or one launch per kernel.

    Kernels of a step are laid out one after another, interleaved as layers are; the rest of the step is idle.
    """
    events: list[str] = []
    t_us, number, external = 1_000_000.0, 100, 7000
    for step in steps:
        number += 1
        begun_us = t_us
        launch = number
        if has_graph:
            events.append(_event("cuda_runtime", "cudaGraphLaunch", 7, t_us - 20, 12, f'"correlation":{launch}'))
        n_all = sum(k.n_calls for k in step.kernels)
        pause_us = 0.0 if has_graph else 1e6 * step.gap_s / max(n_all, 1)
        order = sorted(((i + 0.5) / k.n_calls, j) for j, k in enumerate(step.kernels) for i in range(k.n_calls))
        seen: set[int] = set()
        for _, j in order:
            k = step.kernels[j]
            dur_us = 1e6 * k.step_s / k.n_calls
            known = ""
            if not has_graph:
                number += 1
                events.append(_event("cuda_runtime", "cudaLaunchKernel", 7, t_us - 5, 4, f'"correlation":{number}'))
            if k.shapes and j not in seen:
                seen.add(j)
                external += 1
                known = f'"External id":{external},'
                dims, types = json.dumps([list(s) for s in k.shapes]), json.dumps(["float"] * len(k.shapes))
                events.append(_event("cpu_op", k.operator, 7, t_us - 9, 6,
                                     f'"External id":{external},"Input Dims":{dims},"Input type":{types}'))
            events.append(_event(
                "kernel", k.name, 0, t_us, dur_us,
                f'{known}"device":0,"stream":7,"correlation":{launch if has_graph else number},'
                f'"grid":[{k.n_blocks},1,1],"block":[256,1,1],"blocks per SM":{k.n_blocks / n_sms:.6f}'))
            t_us += dur_us + pause_us
        if has_graph:
            t_us += 1e6 * step.gap_s
        events.append(_event("user_annotation", f"step[DECODE bs={step.running_req}]", 7, begun_us - 30,
                             t_us - begun_us - 10, f'"Record function id":{number}'))
    head = json.dumps({"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": board_name, "numSms": n_sms}],
                       "displayTimeUnit": "ms", "baseTimeNanoseconds": 1_793_000_000_000_000_000})
    return f'{head[:-1]},"traceEvents":[\n' + ",\n".join(events) + "\n]}\n"


def _event(category: str, name: str, pid: int, ts_us: float, dur_us: float, args: str) -> str:
    return (f'{{"ph":"X","cat":"{category}","name":{json.dumps(name)},"pid":{pid},"tid":7,"ts":{ts_us:.3f},'
            f'"dur":{dur_us:.3f},"args":{{{args}}}}}')


@dataclass(frozen=True)
class ClientResult:
    """One load as the client saw it."""

    text: str
    values: dict[str, float] = field(default_factory=dict)


def client_json(run: Simulation) -> ClientResult:
    """Return the result of the last load: a line of sglang.bench_serving, or vllm bench serve's file."""
    load = max((load for load in run.trace.loop.loads if not load.is_warmup), key=lambda load: load.running_req)
    done = [r for r in load.requests if np.isfinite(r.finish_s) and r.output_tok > 1]
    if not done:
        return ClientResult("")
    ttft = 1e3 * np.array([r.first_token_s - r.arrival_s for r in done])
    e2e = 1e3 * np.array([r.finish_s - r.arrival_s for r in done])
    tpot = (e2e - ttft) / (np.array([r.output_tok for r in done]) - 1)
    duration_s = max(r.finish_s for r in done) - load.start_s
    tokens = sum(r.output_tok for r in done)
    found: dict[str, object] = {"backend": run.server.engine, "request_rate": "inf",
                                "max_concurrency": load.running_req, "duration": duration_s, "completed": len(done),
                                "total_input_tokens": sum(r.prompt_tok for r in done), "total_output_tokens": tokens,
                                "request_throughput": len(done) / duration_s, "output_throughput": tokens / duration_s}
    if run.server.engine == "vllm":
        found |= {"endpoint_type": "openai", "model_id": run.server.model, "num_prompts": len(load.requests)}
    else:
        found |= {"dataset_name": "random", "mean_e2e_latency_ms": float(e2e.mean()),
                  "median_e2e_latency_ms": float(np.median(e2e))}
    for name, values in (("ttft", ttft), ("tpot", tpot)):
        found |= {f"mean_{name}_ms": float(values.mean()), f"median_{name}_ms": float(np.median(values)),
                  f"std_{name}_ms": float(values.std()), f"p99_{name}_ms": float(np.percentile(values, 99))}
    return ClientResult(json.dumps(found) + "\n", {"duration_s": duration_s, "tpot_s": float(tpot.mean()) / 1e3})
