"""The tables of what else a machine recorded: telemetry, links, client results, kernel profiles."""

from __future__ import annotations

from helpers.schema.columns import Schema, flag, number, text, whole
from helpers.schema.log import WHERE

TELEMETRY = Schema(
    "TELEMETRY",
    "one row per sample of one device, or of one engine rank where an engine's gauges were recorded",
    (
        *WHERE,
        text("device", "index or name of the device as printed, e.g. '0'; missing for a rank's gauges", True),
        text("device_name", "name of the board as printed", True),
        text("rank", "engine rank, e.g. 'DP1'; missing for a device", True),
        number("power_w", "W", "board power, as the driver averages it"),
        number("power_limit_w", "W", "board power limit in force"),
        number("sm_clock_hz", "Hz", "clock of the multiprocessors"),
        number("mem_clock_hz", "Hz", "clock of the memory"),
        number("busy_frac", "1", "share of the sample in which any kernel ran (utilization.gpu): one busy SM is 1"),
        number("mem_busy_frac", "1", "share of the sample in which the memory controller was busy: no bandwidth share"),
        number("temperature_c", "C", "core temperature"),
        number("mem_temperature_c", "C", "memory temperature"),
        number("sm_active_frac", "1", "share of cycles in which an SM held a warp, mean over SMs"),
        number("sm_occupancy_frac", "1", "resident warps over the most that fit"),
        number("tensor_active_frac", "1", "share of cycles in which the tensor pipes worked"),
        number("dram_active_frac", "1", "share of cycles in which the memory interface moved data"),
        number("mem_used_bytes", "bytes", "device memory in use"),
        number("mem_total_bytes", "bytes", "device memory"),
        number("pcie_tx_bytes_per_s", "bytes/s", "PCIe traffic from the device"),
        number("pcie_rx_bytes_per_s", "bytes/s", "PCIe traffic to the device"),
        number("nvlink_tx_bytes_per_s", "bytes/s", "NVLink traffic from the device, all links"),
        number("nvlink_rx_bytes_per_s", "bytes/s", "NVLink traffic to the device, all links"),
        whole("link_gen", "PCIe generation in use", True),
        whole("link_gen_max", "PCIe generation that device and host can use", True),
        whole("link_width", "PCIe lanes in use", True),
        whole("link_width_max", "PCIe lanes that device and host can use", True),
        flag("is_power_capped", "the clock was held down by the power limit"),
        flag("is_thermally_slowed", "the clock was held down by temperature"),
        number("running_req", "req", "requests running on the rank"),
        number("queue_req", "req", "requests waiting for the rank"),
        number("kv_used_frac", "1", "share of the rank's KV pool in use"),
        text("extra", "JSON object of every other column, as printed", True),
    ),
)

LINKS = Schema(
    "LINKS",
    "one row per pair of devices (topology), and one per device whose own link state was printed (peer missing)",
    (
        text("file", "path of the input as given"),
        whole("line_no", "physical line in that file, from 1"),
        text("device", "name as printed: 'GPU0', or a bus address"),
        text("peer", "the other device; missing in a row of one device's link state", True),
        text("kind", "how they are connected: NVn (n NVLinks), PIX, PXB, PHB, NODE, SYS; 'PCIe' for a link state"),
        whole("link_gen", "PCIe generation in use", True),
        whole("link_gen_max", "lower of what device and host can use", True),
        whole("link_width", "PCIe lanes in use", True),
        whole("link_width_max", "lower of what device and host can use", True),
        flag("is_under_load", "the device worked when this was printed: only then does a low generation mean anything"),
        text("why", "what told load from idle, or that nothing did"),
    ),
)

CLIENTS = Schema(
    "CLIENTS",
    "one row per benchmark run of a client, in seconds and tokens whatever the tool prints",
    (
        text("file", "path of the input as given"),
        whole("line_no", "line of the run in that file, from 1"),
        text("tool", "tool that wrote it, or what the file calls it: sglang, vllm, aiperf, guidellm, .., unknown"),
        text("name", "label, backend or stage of the run", True),
        text("model", "model as the client named it", True),
        number("start_epoch_s", "s", "start, seconds since 1970 in UTC where the file tells"),
        number("concurrency_req", "req", "requests the client kept open at most; missing for an open loop"),
        number("request_rate_per_s", "1/s", "offered rate; missing where unlimited"),
        number("n_completed", "", "requests that were answered"),
        number("n_failed", "", "requests that failed"),
        number("duration_s", "s", "first request sent to last answer, ramp and drain included"),
        number("prompt_tok", "tok", "prompt tokens of all answered requests"),
        number("output_tok", "tok", "output tokens of all answered requests"),
        number("output_tok_per_s", "tok/s", "output tokens over the duration, as printed"),
        *(number(f"{what}_{stat}_s", "s", f"{meaning}, {stat} over requests") for what, meaning in (
            ("ttft", "time to first token"), ("tpot", "(latency - first token) / (output tokens - 1)"),
            ("itl", "gap between two chunks of a stream"), ("e2e", "latency of a request"),
        ) for stat in ("mean", "median", "p99")),
        number("accept_len", "tok", "tokens per request and round under speculation"),
        text("note", "what its numbers mean differently from the names, empty if nothing", True),
        text("extra", "JSON object of the other values, as printed", True),
    ),
)

REQUESTS = Schema(
    "REQUESTS",
    "one row per request of a client run, where the file keeps them",
    (
        text("file", "path of the input as given"),
        whole("run", "row of CLIENTS it belongs to, from 0"),
        number("start_s", "s", "when it was sent: seconds since 1970 if is_epoch, else since the run's own zero"),
        flag("is_epoch", "start_s counts from 1970"),
        number("ttft_s", "s", "time to first token"),
        number("e2e_s", "s", "latency"),
        number("prompt_tok", "tok", "prompt tokens"),
        number("output_tok", "tok", "output tokens"),
        flag("is_ok", "it was answered"),
    ),
)

ROLES = ("attention", "moe", "dense_gemm", "communication", "sampling", "norm_rope_quant", "state",
         "elementwise_copy_reduce", "draft", "memory_copy", "unclassified")
"""What kernels do. state: recurrent layers (delta rule, Mamba). unclassified: the name told nothing."""

KERNELS = Schema(
    "KERNELS",
    "one row per kernel name, launch grid and device of a profile",
    (
        text("file", "path of the input as given"),
        text("device", "device as the profile numbers it", True),
        text("name", "kernel as printed, at most 400 characters"),
        text("role", "one of " + ", ".join(ROLES)),
        whole("n_calls", "launches"),
        number("total_s", "s", "time of all launches; streams overlap, so times add up to more than the wall time"),
        number("mean_s", "s", "mean time of a launch"),
        number("min_s", "s", "shortest launch"),
        number("max_s", "s", "longest launch"),
        number("n_blocks", "", "thread blocks of a launch, where recorded"),
        text("shapes", "JSON list of the tensor shapes of its operator, where recorded", True),
        number("dram_bytes_per_s", "bytes/s", "DRAM traffic while it ran (ncu)"),
        number("sm_busy_frac", "1", "share of cycles in which SMs held its warps (ncu)"),
    ),
)
