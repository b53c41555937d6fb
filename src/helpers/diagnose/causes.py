"""The vocabulary of causes (scorecard ``diagnosis[].cause``), in the words of a reader."""

from __future__ import annotations

from collections.abc import Mapping

UNKNOWN = "unknown"
HEALTHY = "healthy"

CAUSES: Mapping[str, str] = {
    "measurement_artifact": "a figure of the log is not what it looks like",
    "prefill_interference": "prompts take the time that decode would use",
    "kv_capacity": "the KV pool is full: requests wait or are put back",
    "admission_limit": "a limit on running requests holds others in the queue",
    "rank_imbalance": "one rank is full while others have room, and all wait for it",
    "low_acceptance": "drafted tokens are rejected: a round costs more than it brings",
    "graph_fallback": "decode steps run without a captured graph",
    "graph_padding": "steps run at the next captured size, with padded requests",
    "context_growth": "each token of context costs more than reading it, so decode slows as requests grow",
    "host_or_scheduler": "the device waits for the host between steps",
    "power_or_thermal": "the clock is held down by power or temperature",
    "latency_or_occupancy": "kernels are too small to use the device",
    "communication": "ranks wait for one another in collectives",
    "max_context_work": "every request pays for the longest context allowed, not for its own",
    "serialised_requests": "kernels run once per request, one after the other",
    "tensor_compute": "matrix products take longer than reading the weights",
    "kv_bandwidth": "reading keys and values sets the step",
    "state_bandwidth": "reading and writing recurrent states sets the step",
    "weight_bandwidth": "reading weights sets the step",
    HEALTHY: "the step is what the hardware allows",
    UNKNOWN: "what is known does not tell",
}
"""Cause -> what it means. The order breaks ties: what can be changed at once stands before what the hardware sets, and
the usual before the rare."""
