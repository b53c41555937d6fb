"""How each cause changes a healthy server: the mechanism, what its side files show, and what it is honestly also."""

from __future__ import annotations

import re
from collections.abc import Callable

import causes_files as files
import causes_step as physics
import numpy as np
from causes import Build, Scenario, honest_rivals
from causes_step import Planted, Setup

from helpers.synth import Simulation, Speculation

SMALL_DENSE = tuple(Setup(model, board) for model in ("Meta-Llama-3.1-8B", "Qwen3-8B", "Mistral-7B-v0.3")
                    for board in ("H100 SXM 80GB", "H200 SXM 141GB", "L40S", "A100 80GB SXM"))
LARGE_DENSE = (
    Setup("Meta-Llama-3.1-70B", "H100 SXM 80GB", 4), Setup("Meta-Llama-3.1-70B", "H200 SXM 141GB", 2),
    Setup("Qwen2.5-72B", "H200 SXM 141GB", 4), Setup("Qwen2.5-72B", "A100 80GB SXM", 4),
    Setup("Qwen3-32B", "H100 SXM 80GB", 2), Setup("Qwen2.5-32B", "A100 80GB SXM", 2),
)
EXPERTS = (
    Setup("Qwen3-30B-A3B", "H100 SXM 80GB"), Setup("gpt-oss-120b", "H100 SXM 80GB", 2),
    Setup("GLM-4.5-Air", "H100 SXM 80GB", 4), Setup("Qwen3-235B-A22B-FP8", "H200 SXM 141GB", 4),
)
HYBRID = (
    Setup("Nemotron-H-56B-Base-8K", "H200 SXM 141GB", 2), Setup("Nemotron-H-56B-Base-8K", "H100 SXM 80GB", 4),
    Setup("Qwen3.6-27B", "H100 SXM 80GB"), Setup("Qwen3.6-27B", "RTX A6000", 2), Setup("Qwen3.5-27B", "L40S", 2),
)
WITHOUT_NVLINK = (
    Setup("Meta-Llama-3.1-70B", "L40S", 8), Setup("Qwen2.5-72B", "RTX PRO 6000 Blackwell Server", 4),
    Setup("Qwen3-32B", "L40S", 4), Setup("GLM-4.5-Air", "RTX PRO 6000 Blackwell Server", 4),
    Setup("Qwen2.5-32B", "RTX A6000", 4),
)
COPY = ("void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<"
        "at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)>>(int)")
NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def _healthy(b: Build) -> Scenario:
    b.setup = b.pick(*SMALL_DENSE, *LARGE_DENSE, *EXPERTS, *HYBRID[:3])
    b.levels = b.pick((1, 2, 4, 8, 16, 32, 64), (1, 4, 16, 64), (2, 8, 32), (4, 8, 16, 32))
    b.prompt_tok = b.pick(128, 512, 1024)
    b.fit_load()
    b.also_right = honest_rivals(b)
    return b.finish()


def _weights(b: Build) -> Scenario:
    """Few requests on a large dense model: the step is its weights."""
    b.setup = b.pick(*LARGE_DENSE, Setup("Meta-Llama-3.1-8B", "L40S"), Setup("Qwen3-14B", "L40S"))
    b.levels = b.pick((1, 2, 4, 8), (1, 4, 8, 16), (1, 2, 4))
    b.prompt_tok = b.pick(64, 256)
    b.fit_load()
    b.also_right = honest_rivals(b)
    return b.finish()


def _kv(b: Build) -> Scenario:
    """Read long contexts: at the highest level the cache takes about twice the time of all else."""
    # vLLM decodes one token beside each chunk of a prompt: with a large model no window of short runs is clean
    setups = (*SMALL_DENSE, *(LARGE_DENSE[:4] if b.engine == "sglang" else ()))
    b.output_tok = int(b.rng.integers(300, 420)) if b.engine == "sglang" else 700
    top, times = b.pick(16, 32), b.draw(1.6, 2.4)
    while True:  # until the cache that takes so much time fits into memory
        b.setup = b.pick(*setups)
        n = max(top, 4)
        b.prompt_tok = int(times * b.healthy(n, 1.0) / (b.healthy(n, 10_001.0) - b.healthy(n, 1.0)) * 1e4)
        fits = min(1.2 * n, n + 4) * (b.prompt_tok + b.output_tok) < physics.pool_tok(b.setup)
        if fits and b.prompt_tok < 100_000:
            break
        top = max(top // 2, 4) if b.chance(0.3) else top
    b.levels = tuple(k for k in (1, 2, 4, 8, 16, 32) if k <= n)
    b.server["context_length_tok"] = 131072
    b.fit_load()
    b.also_right = honest_rivals(b)
    return b.finish()


def _state(b: Build) -> Scenario:
    """Many requests on a hybrid model: every step reads and writes their recurrent state."""
    b.setup = b.pick(*HYBRID)
    b.levels = (16, 32, 64, 128, 192)
    b.prompt_tok, b.output_tok, b.waves = 64, 330 if b.engine == "sglang" else 500, 1.0
    b.tuning = physics.Tuning(b.tuning.u, b.tuning.v, 0.15)
    b.fit_load()
    b.also_right = honest_rivals(b)
    return b.finish()


def _tensor(b: Build) -> Scenario:
    """More tokens per step than the ridge: the products take longer than the bytes."""
    b.setup = b.pick(Setup("Meta-Llama-3.1-8B", "H20"), Setup("Qwen3-14B", "H20"), Setup("Qwen3-8B", "H20"),
                     Setup("Qwen2.5-14B", "H20"))
    b.levels = (64, 128, 192, 256)
    b.prompt_tok, b.output_tok, b.waves = 32, 280 if b.engine == "sglang" else 320, 1.0
    b.tuning = physics.Tuning(b.tuning.u, b.tuning.v, 0.1)
    b.p_channel["dcgm"] = 0.6
    b.fit_load()
    b.also_right = honest_rivals(b)
    return b.finish()


def _latency(b: Build) -> Scenario:
    """Tiny launches that fill a fraction of the device: long at one request, and hardly longer at sixteen."""
    b.setup = b.pick(Setup("GLM-4.5-Air", "H200 SXM 141GB", 8), Setup("DeepSeek-V3", "H200 SXM 141GB", 8),
                     Setup("Qwen3-30B-A3B", "H200 SXM 141GB", 2), Setup("Qwen3-14B", "H200 SXM 141GB", 2))
    b.levels = b.pick((1, 2, 4, 8), (1, 2, 4), (1, 4, 16))
    b.fit_load()
    added_s = b.draw(3, 7) * b.healthy(1)
    b.extra_s = lambda n, _: np.full(n.shape, added_s)
    layers = physics.n_layers(b.setup)

    def kernels(level: int, planted: Planted) -> list[files.Kernel]:
        slow_s = float(planted.step_s[level - 1] - planted.healthy_s[level - 1])
        name = b.pick("_w8a8_block_fp8_matmul", "void gemv2T_kernel_val<int, int, __nv_bfloat16, float>(int)")
        return [*b.default_kernels(level, planted), files.Kernel(name, 4 * layers, slow_s, int(b.pick(8, 16, 32)))]

    b.kernels, b.profile_req, b.trace = kernels, (b.levels[0],), True
    b.board = {"sm_active_frac": 0.2}
    b.look_alike = ("communication", "host_or_scheduler") if b.setup.tp > 1 else ("host_or_scheduler",)
    return b.finish()


def _max_context(b: Build) -> Scenario:
    """An indexer scores the whole configured context for every request, whatever it holds: bytes per request."""
    b.setup, ratio, heads = b.pick(
        (Setup("DeepSeek-V4-Flash-NVFP4", "RTX PRO 6000 Blackwell Server", 4), 4, 64),
        (Setup("DeepSeek-V4-Flash", "H200 SXM 141GB", 4), 4, 64),
        (Setup("DeepSeek-V3.2", "H200 SXM 141GB", 8), 1, 64), (Setup("GLM-5-FP8", "B200 SXM (HGX)", 8), 1, 32))
    limit_tok = int(b.pick(262_144, 1_048_576) if ratio == 4 else b.pick(131_072, 163_840))
    b.levels = b.pick((1, 4, 16, 32), (1, 2, 4, 8, 16), (1, 8, 32))
    b.output_tok, b.waves = 340 if b.engine == "sglang" else 400, 1.5 if b.engine == "sglang" else 1.0
    page_tok, layers = 64, physics.n_layers(b.setup)
    width = limit_tok // ratio + page_tok
    passes = b.draw(4, 10)  # the scores are written, cast, masked and read again
    bandwidth = physics.resolve(b.setup).hardware.mem_bw_bytes_per_s
    each_s = 0.5 * layers * width * heads * 4 * passes / (0.8 * bandwidth)
    each_s = max(each_s, 0.12 * b.healthy(1, 500.0))
    b.extra_s = lambda n, _: each_s * n
    b.memory_frac, b.server["context_length_tok"] = 0.75, limit_tok
    b.facts = {"context_length_max": limit_tok}
    b.notes |= {"excess_s_per_req": each_s, "width": width, "heads": heads}
    if b.chance(0.5):
        n = b.levels[-1] + int(b.pick(1, 3, 7))
        b.server |= {"out_of_memory_at_req": n, "out_of_memory_bytes": float(n * width * heads * 4)}
        b.levels = (*b.levels, n + 1)
        b.notes["out_of_memory_req"] = n

    def kernels(level: int, planted: Planted) -> list[files.Kernel]:
        slow_s = each_s * level
        shape = ((level, width, heads),)
        return [*b.default_kernels(level, planted),
                files.Kernel(COPY, 3 * layers, 0.6 * slow_s, 65536, shape, "aten::copy_"),
                files.Kernel("sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x64", layers, 0.4 * slow_s, 16384,
                             ((level, heads, 128), (level, 128, width)), "aten::bmm")]

    b.kernels, b.profile_req, b.trace = kernels, (b.pick(4, 8) if 8 in b.levels else 4,), True
    b.look_alike = ("serialised_requests",)
    return b.finish()


def _serialised(b: Build) -> Scenario:
    """A loop over requests in every layer: launches, and time, in proportion to them, whatever the context limit."""
    b.setup = b.pick(*SMALL_DENSE[:8], *EXPERTS[:2], Setup("Qwen3-14B", "H100 SXM 80GB"))
    b.levels = b.pick((1, 2, 4, 8, 16), (1, 4, 8, 16), (1, 4, 16, 32))
    b.server["context_length_tok"] = int(b.pick(8192, 16384, 32768))
    launches, layers = int(b.pick(2, 3, 4)), physics.n_layers(b.setup)
    each_s = b.draw(6e-6, 14e-6)
    b.output_tok = 340 if b.engine == "sglang" else 600
    per_req_s = max(each_s * launches * layers, 0.25 * b.healthy(1, 400.0))
    each_s = per_req_s / (launches * layers)
    b.extra_s = lambda n, _: per_req_s * n

    def kernels(level: int, planted: Planted) -> list[files.Kernel]:
        name = "void at::native::index_elementwise_kernel<128, 4, at::native::index_put_kernel_impl>(int)"
        return [*b.default_kernels(level, planted), files.Kernel(name, launches * layers * level, per_req_s * level, 4)]

    b.kernels, b.profile_req, b.trace = kernels, (2, 4), True
    b.notes |= {"excess_s_per_req": per_req_s, "kernel_s": each_s, "launches_per_req": launches * layers}
    b.board = {"sm_active_frac": 0.3}
    b.look_alike = ("max_context_work", "host_or_scheduler")
    return b.finish()


def _communication(b: Build) -> Scenario:
    """Two collectives per layer that each wait far too long, at every number of requests."""
    b.setup = b.pick(*WITHOUT_NVLINK)
    b.levels = b.pick((1, 2, 4, 8, 16), (1, 4, 16), (1, 2, 4))
    b.fit_load()
    layers = physics.n_layers(b.setup)
    added_s = b.draw(0.9, 2.5) * b.healthy(1)
    slope = b.draw(0.0, 0.01)
    b.extra_s = lambda n, _: added_s * (1 + slope * n)

    def kernels(level: int, planted: Planted) -> list[files.Kernel]:
        usual = [k for k in b.default_kernels(level, planted) if "reduce_2stage" not in k.name]
        own_s = float(planted.parts.get("all_reduce", np.zeros(level))[level - 1])
        wait_s = float(planted.step_s[level - 1] - planted.healthy_s[level - 1]) + own_s
        b.notes["communication_frac"] = wait_s / (wait_s + sum(k.step_s for k in usual))
        return [*usual, files.Kernel(NCCL, 2 * layers, wait_s, 24)]

    b.kernels, b.profile_req = kernels, (b.levels[0],)
    b.notes["alpha_s"] = added_s / (2 * layers)
    b.board, b.facts = {"spins": True, "sm_active_frac": 0.25}, {"interconnect": "PCIe"}
    b.look_alike = ("latency_or_occupancy", "host_or_scheduler")
    return b.finish()


def _host(b: Build) -> Scenario:
    """The device waits for the scheduler between steps; more so with every request."""
    b.setup = b.pick(Setup("Meta-Llama-3.1-8B", "H200 SXM 141GB"), Setup("Qwen3-8B", "H100 SXM 80GB"),
                     Setup("Qwen3-4B", "H100 SXM 80GB"), Setup("Llama-3.2-3B", "A100 80GB SXM"),
                     Setup("Qwen3-30B-A3B", "H200 SXM 141GB"))
    b.levels = b.pick((1, 2, 4, 8, 16), (1, 4, 16, 32), (2, 4, 8))
    b.fit_load()
    fixed_s, each_s = b.draw(0.7, 2.0) * b.healthy(1), b.draw(20e-6, 120e-6)
    b.extra_s = lambda n, _: fixed_s + each_s * n
    b.forward_s = lambda n, planted: planted.healthy_s - planted.parts["host"]
    b.trace = True
    b.p_channel["occupancy"] = 0.8
    if b.engine == "sglang" and b.chance(0.5):
        b.server["overlap_schedule"] = False
    b.look_alike = ("latency_or_occupancy",)
    return b.finish()


def _fallback(b: Build) -> Scenario:
    """Batches beyond the largest captured graph, or a server without graphs, launch kernel by kernel."""
    b.setup = b.pick(*SMALL_DENSE, *EXPERTS[:3])
    largest = int(b.pick(4, 8, 16))
    b.captured = tuple(n for n in (1, 2, 4, 8, 16) if n <= largest)
    b.levels = b.pick((2, 4, 8, 16, 24, 32), (4, 16, 32, 48), (8, 12, 24, 32))
    factor = b.draw(1.35, 3.0)
    if b.chance(0.25):
        b.server["cuda_graph"], largest = False, 0
    b.extra_s = lambda n, planted: np.where(n > largest, (factor - 1) * planted.step_s, 0.0)
    b.forward_s = lambda n, planted: planted.healthy_s  # the device works as before, it waits for the launches
    b.trace = True
    b.notes |= {"eager_factor": factor, "largest_captured": largest}
    b.also_right, b.look_alike = ("host_or_scheduler",), ("latency_or_occupancy",)
    return b.finish()


def _padding(b: Build) -> Scenario:
    """Steps run at the next captured size, far above the batch: experts, or products, of rows that hold no request."""
    if b.chance(0.5):
        b.setup, b.captured = b.pick(*EXPERTS), (1, 2, 4, 8, 16, 32, 64)
        b.levels = b.pick((3, 5, 8, 9, 16, 17), (2, 5, 9, 10, 17), (4, 5, 9, 17, 33))
        b.output_tok = 330 if b.engine == "sglang" else 700
    else:
        b.setup = b.pick(Setup("Meta-Llama-3.1-8B", "H20"), Setup("Qwen3-8B", "H20"), Setup("Qwen3-14B", "H20"))
        b.captured, b.levels = (1, 8, 64, 128, 256), b.pick((64, 72, 80, 136, 144), (66, 72, 128, 132, 140))
        b.prompt_tok, b.output_tok, b.waves = 32, 280 if b.engine == "sglang" else 320, 1.0
        b.tuning = physics.Tuning(b.tuning.u, b.tuning.v, 0.1)
    b.pads, b.waves = True, b.waves or 2.0
    b.facts = {"captured_batch_sizes": list(b.captured)}
    b.fit_load()
    plain = np.array([b.healthy(n) for n in b.levels])
    padded = np.array([b.healthy(min(size for size in b.captured if size >= n)) for n in b.levels])
    b.notes["padding_frac"] = dict(zip(b.levels, (padded / plain - 1).round(4).tolist(), strict=True))

    def kernels(level: int, planted: Planted) -> list[files.Kernel]:
        return b.default_kernels(min(size for size in b.captured if size >= level), planted)

    b.kernels = kernels
    b.also_right = tuple(cause for cause in honest_rivals(b) if cause in ("weight_bandwidth", "tensor_compute"))
    return b.finish()


def _prefill(b: Build) -> Scenario:
    """Prompts keep coming in, long ones with short answers: most of the time is prefill."""
    b.setup = b.pick(*SMALL_DENSE, *LARGE_DENSE[:2], *EXPERTS[:2])
    n = int(b.pick(16, 32, 48))
    b.levels = (n,)
    b.prompt_tok = int(b.rng.integers(2000, 6000))
    prompt_s = b.prompt_tok * physics.prefill_s_per_tok(b.setup)
    share = b.draw(0.6, 0.85)
    b.output_tok = int(np.clip((1 - share) / share * prompt_s * n / b.healthy(n, float(b.prompt_tok)), 24, 400))
    b.waves, b.spread_frac = 10.0, 0.5
    # A pool that holds them all: a full one would be a cause of its own.
    b.server["kv_pool_tok"] = max(physics.pool_tok(b.setup), 2 * n * (b.prompt_tok + b.output_tok))
    b.server["decode_log_interval"] = int(b.pick(1, 5, 10))
    b.clean = False
    b.notes["prefill_frac"] = share
    return b.finish()


def _kv_capacity(b: Build) -> Scenario:
    """The pool holds about half of what the requests in flight want: some wait, some are thrown out."""
    b.setup = b.pick(*SMALL_DENSE, *LARGE_DENSE, *EXPERTS)
    n = int(b.pick(32, 48, 64))
    b.levels = (max(n // 8, 2), n)
    b.prompt_tok, b.output_tok, b.waves, b.spread_frac = int(b.pick(128, 400)), int(b.pick(400, 600)), 2.5, 0.4
    b.server |= {"kv_pool_tok": int(b.draw(0.4, 0.6) * n * (b.prompt_tok + b.output_tok)),
                 "kv_reserve_frac": b.draw(0.0, 0.15)}
    b.facts, b.clean = {"client_concurrency": n}, False
    return b.finish()


def _admission(b: Build) -> Scenario:
    """The server may run far fewer requests than are sent; the pool is nearly empty."""
    b.setup = b.pick(*SMALL_DENSE, *LARGE_DENSE, *EXPERTS)
    limit = int(b.pick(8, 16, 32))
    b.levels = (limit // 4, limit // 2, limit * int(b.pick(2, 3, 4)))
    b.fit_load()
    b.server["max_running_req"] = limit
    b.waves = 1.5 if b.engine == "sglang" else 1.0
    b.facts = {"client_concurrency": b.levels[-1], "max_running_requests": limit}
    b.clean = False
    return b.finish()


def _imbalance(b: Build) -> Scenario:
    """Data-parallel ranks in lockstep, one of which gets most of the requests."""
    b.setup = b.pick(Setup("Qwen3-235B-A22B-FP8", "H200 SXM 141GB", 8, 4), Setup("DeepSeek-V3", "H200 SXM 141GB", 8, 4),
                     Setup("GLM-4.5-Air", "H100 SXM 80GB", 4, 4))
    b.engine, b.version = "sglang", b.pick("0.5.6", "0.5.9", "0.5.12", "0.5.18")
    hot = b.draw(0.5, 0.8)
    weights = [hot, *((1 - hot) / 3 for _ in range(3))]
    b.rng.shuffle(weights)
    b.server |= {"dp_weights": tuple(weights), "max_running_req": 64}
    b.levels = b.pick((8, 24, 48), (12, 32, 64))
    b.output_tok, b.waves, b.clean = int(b.rng.integers(300, 400)), 1.5, False
    b.facts, b.notes["dp_weights"] = {"dp_attention": True}, weights
    most, least = max(int(hot * b.levels[-1]), 1), max(int((1 - hot) / 3 * b.levels[-1]), 1)
    is_cold = b.chance(0.5)

    def kernels(level: int, planted: Planted) -> list[files.Kernel]:
        """Show an idle rank's collectives as long: they wait for the busy one."""
        wait_s = float(planted.step_s[most - 1] - planted.step_s[least - 1])
        shown = b.default_kernels(least if is_cold else most, planted)
        return [*shown, files.Kernel(NCCL, 2 * physics.n_layers(b.setup), wait_s, 24)] if is_cold else shown

    b.kernels, b.profile_req = kernels, (most,)
    b.notes["profile_rank"] = "cold" if is_cold else "hot"
    return b.finish()


def _power(b: Build) -> Scenario:
    """The clock is held down by a low power limit, or by heat: from the start, or from some moment on."""
    b.setup = b.pick(*SMALL_DENSE, *LARGE_DENSE, Setup("Meta-Llama-3.1-8B", "H20"))
    factor = b.draw(1.25, 1.6)
    is_thermal, is_late = b.chance(0.3), b.chance(0.5)
    b.board = {"is_thermal": is_thermal, "clock_frac": b.draw(0.9, 1.0) / factor, "capped_from_s": 0.0}
    if not is_thermal:
        limit_w = float(physics.resolve(b.setup).hardware.tdp_w or 400) * b.draw(0.3, 0.45)
        b.board["limit_w"] = round(limit_w / 5) * 5.0
        b.facts = {"power_limit_w": b.board["limit_w"]}
    b.p_channel |= {"telemetry": 0.9, "dcgm": 0.0}
    if is_late:
        b.levels = b.pick((4, 16, 4, 16), (8, 8, 8, 8), (2, 8, 32, 2, 8, 32))
        b.fit_load()
        half_s = sum(b.waves * b.output_tok * b.healthy(n) + 5 for n in b.levels[: len(b.levels) // 2])
        from_s = 40.0 + 10.0 + half_s
        b.server["neighbour_bursts"] = ((from_s, 1e9, factor),)
        b.board["capped_from_s"], b.clean = from_s, False
    else:
        b.levels = b.pick((1, 4, 16, 32), (1, 2, 4, 8))
        b.scale = factor
    b.has_baseline = b.chance(0.4)
    b.notes |= {"factor": factor, "is_late": is_late, "is_thermal": is_thermal}
    b.look_alike = ("healthy", "weight_bandwidth", "latency_or_occupancy")
    return b.finish()


def _acceptance(b: Build) -> Scenario:
    """Drafts are nearly always rejected: a round costs more than a plain step and yields hardly more than a token."""
    n_draft = int(b.pick(3, 4, 7))
    b.setup = b.pick(Setup("Qwen3.6-27B", "H100 SXM 80GB", 1, 1, n_draft),
                     Setup("Qwen3.6-27B", "RTX A6000", 2, 1, n_draft),
                     Setup("DeepSeek-V3", "H200 SXM 141GB", 8, 1, n_draft))
    b.levels = b.pick((1, 2, 4, 8, 16), (1, 4, 16), (2, 8, 32))
    accept_len = b.draw(1.03, 1.25)
    plain = Setup(b.setup.model, b.setup.hardware, b.setup.tp)
    algorithm = "NEXTN" if b.engine == "sglang" else "mtp"
    b.server["speculation"] = Speculation(algorithm, n_draft + 1, accept_len)
    b.facts = {"num_draft_tokens": n_draft + (b.engine == "sglang"), "speculative_algorithm": algorithm}
    b.output_tok = 380 if b.engine == "sglang" else 700
    plain_s = {n: float(physics.total(physics.parts(plain, b.tuning, np.array([float(n)]), b.context_tok))[0])
               for n in b.levels}
    b.notes |= {"accept_len": accept_len, "plain_step_s": plain_s}
    return b.finish()


def _growth(b: Build) -> Scenario:
    """Long answers to short prompts: at a constant count the step grows with the context."""
    b.setup = b.pick(*SMALL_DENSE, *LARGE_DENSE[:2])
    b.levels = b.pick((1,), (4,), (8,), (2, 8))
    b.prompt_tok, b.output_tok = 64, int(b.rng.integers(2200, 3200))
    b.waves, b.spread_frac = 1.0, 0.0
    b.server |= {"context_length_tok": 131072, "decode_log_interval": 40}
    n = b.levels[-1]
    grown_s = b.healthy(n, float(b.output_tok)) - b.healthy(n, 64.0)
    wanted_s = b.draw(0.5, 1.2) * b.healthy(n, 64.0)
    b.kv_factor = max(wanted_s / grown_s, 1.0)  # an attention kernel far above the bytes it reads
    b.clean = False
    b.notes |= {"kv_factor": b.kv_factor, "growth_frac": b.kv_factor * grown_s / b.healthy(n, 64.0)}
    b.also_right = ("kv_bandwidth", "healthy") if b.kv_factor < 1.5 else ("kv_bandwidth",)
    return b.finish()


def _artifact(b: Build) -> Scenario:
    """A number of the log is not what it says: the first line after idle, a frozen token count, padded counts."""
    kind = b.pick("first_line", "frozen_count", "padded_count")
    b.notes["artifact"] = kind
    b.also_right, b.clean = ("healthy",), False
    b.p_channel |= {"telemetry": 0.0, "profile": 0.0, "client": 0.0, "occupancy": 0.0}
    if kind == "padded_count":
        return _padded_count(b)
    b.engine = "sglang"
    b.version = str(b.pick("0.5.4", "0.5.6", "0.5.9") if kind == "first_line" else b.pick("0.5.9", "0.5.10", "0.5.12"))
    b.setup = b.pick(*SMALL_DENSE)
    b.levels, b.waves, b.spread_frac = ((1,) if kind == "first_line" else (int(b.pick(3, 5, 8)),)), 1.0, 0.0
    b.output_tok = 40 * int(b.rng.integers(5, 10)) + 3
    b.server["decode_log_interval"] = 40
    if kind == "first_line":
        b.client["lead_s"] = b.draw(300, 900)
        b.edit_log = lambda text, run: _cut(text, run, is_prefill_kept=True)
    else:
        frozen = int(b.pick(16384, 20800, 32768))
        b.facts = {"enable_hisparse": True}
        b.edit_log = lambda text, run: re.sub(
            r"#token: \d+, token usage: [\d.]+", f"#token: {frozen}, token usage: 0.29",
            _cut(text, run, is_prefill_kept=False))
    return b.finish()


def _cut(text: str, run: Simulation, *, is_prefill_kept: bool) -> str:
    """Keep the statistic lines of the load; without its prefill and first interval unless they are the point."""
    lines = text.splitlines()
    ready = next(i for i, line in enumerate(lines) if "ready to roll" in line)
    decode = [line for line in lines[ready:] if "Decode batch" in line]
    prefill = [line for line in lines[ready:] if "Prefill batch" in line][:1] if is_prefill_kept else []
    return "\n".join([*prefill, *decode[0 if is_prefill_kept else 1 : -1]]) + "\n"


def _padded_count(b: Build) -> Scenario:
    """TensorRT-LLM counts the rows of the captured graph as generated tokens."""
    running, step_s = int(b.pick(5, 10, 20, 25)), b.draw(0.004, 0.012)
    sizes = (1, 2, 4, 8, 16, 32)
    padded = min(size for size in sizes if size >= running)
    stamp = "04/28/2025-09:5"
    lines = [f"[{stamp}{i % 5}:02] [TRT-LLM] [I] Run generation only CUDA graph warmup for batch size={size}"
             for i, size in enumerate(reversed(sizes))]
    for i in range(int(b.rng.integers(25, 70))):
        t_s = step_s * float(np.exp(b.rng.normal(0, 0.01)))
        states = {"num_ctx_requests": 0, "num_ctx_tokens": 0, "num_generation_tokens": padded}
        lines.append(f"[{stamp}6:43] [TRT-LLM] [I] iter = {130 + i}, global_rank = 0, rank = 0, "
                     f"currank_total_requests = 0/0, elapsed_time = {t_s}s, timestamp = 2025-04-28 09:56:43, "
                     f"num_scheduled_requests: {running}, states = {states}")
    b.notes |= {"padded_req": padded, "engine": "trtllm"}
    facts = {"captured_batch_sizes": list(sizes)} if b.chance(0.6) else {}
    return Scenario(b.cause, b.seed, ("healthy", "graph_padding"), "\n".join(lines) + "\n", facts, {},
                    {"step_s": {running: step_s}, "clean_levels": [], "look_alike": (), **b.notes})


def _unknown(b: Build) -> Scenario:
    """A few statistic lines and nothing else."""
    b.setup = b.pick(*SMALL_DENSE, *LARGE_DENSE, *EXPERTS)
    b.levels, b.waves = (int(b.pick(1, 2, 4, 16)),), 1.0
    b.scale = b.log_draw(1.0, 40.0)
    b.output_tok = 400
    b.p_channel |= {"telemetry": 0.0, "profile": 0.0, "client": 0.0, "occupancy": 0.0}
    b.server["decode_log_interval"] = 40
    b.client["lead_s"] = 2.0
    keep, word = int(b.rng.integers(3, 5)), "Decode batch" if b.engine == "sglang" else "Avg prompt"

    def thin(text: str, run: Simulation) -> str:
        lines = [line for line in text.splitlines() if word in line and " 0 reqs, Waiting" not in line]
        middle = lines[2:-2] or lines[1:-1] or lines
        return "\n".join(middle[:keep]) + "\n"

    b.edit_log, b.clean = thin, False
    found = b.finish()
    return Scenario(found.cause, found.seed, (), found.log_text, {}, {}, found.truth)


RECIPES: dict[str, Callable[[Build], Scenario]] = {
    "healthy": _healthy, "weight_bandwidth": _weights, "kv_bandwidth": _kv, "state_bandwidth": _state,
    "tensor_compute": _tensor, "latency_or_occupancy": _latency, "max_context_work": _max_context,
    "serialised_requests": _serialised, "communication": _communication, "host_or_scheduler": _host,
    "graph_fallback": _fallback, "graph_padding": _padding, "prefill_interference": _prefill,
    "kv_capacity": _kv_capacity, "admission_limit": _admission, "rank_imbalance": _imbalance,
    "power_or_thermal": _power, "low_acceptance": _acceptance, "context_growth": _growth,
    "measurement_artifact": _artifact, "unknown": _unknown,
}
