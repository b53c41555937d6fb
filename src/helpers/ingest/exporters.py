"""What the Prometheus metrics of each engine mean: one `Exporter` each. A new engine's metrics are one more here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Series:
    """A metric that feeds a field; ``label`` and ``values`` choose among its series, which are added up."""

    name: str
    label: str = ""
    values: tuple[str, ...] = ()


def _some(*names: str) -> tuple[Series, ...]:
    return tuple(Series(name) for name in names)


@dataclass(frozen=True)
class Exporter:
    """What one engine's metrics mean.

    Attributes
    ----------
    engine : str
        As in SAMPLES.
    counters, gauges : mapping
        Field -> series that give it; the first of which any is there is taken. Counters: n_steps, out_tok, new_tok,
        cached_tok, prefill_steps, step_s (seconds inside decode steps), finished_tok (grows when a request ends),
        drafts, accepted, itl_s, itl_tok, retracted_req. Gauges: running_req, queue_req, used_tok, kv_used_frac,
        accept_len, started (a time that changes when the server starts anew).
    rank_tags : mapping
        Label -> tag of the rank.
    product : pair of str, optional
        Gauges whose product is the counter busy_req (an average per step, and the steps).
    """

    engine: str
    counters: Mapping[str, tuple[Series, ...]]
    gauges: Mapping[str, tuple[Series, ...]]
    rank_tags: Mapping[str, str] = field(default_factory=dict)
    product: tuple[str, str] | None = None
    report: str = ""
    """Gauge that changes whenever the other gauges are renewed; empty where they always tell the present."""


_DECODE_PASSES = ("decode_cuda_graph", "decode_none")

EXPORTERS = (
    Exporter(
        "vllm",
        {
            # a histogram in spite of its name: its count is the number of engine steps
            "n_steps": _some("vllm:iteration_tokens_total_count"),
            "out_tok": _some("vllm:generation_tokens_total", "vllm:generation_tokens"),
            "new_tok": (
                Series("vllm:prompt_tokens_by_source_total", "source", ("local_compute",)),
                *_some("vllm:prompt_tokens_total", "vllm:prompt_tokens"),
            ),
            "drafts": _some("vllm:spec_decode_num_drafts_total"),
            "accepted": _some("vllm:spec_decode_num_accepted_tokens_total"),
            "itl_s": _some("vllm:inter_token_latency_seconds_sum", "vllm:time_per_output_token_seconds_sum"),
            "itl_tok": _some("vllm:inter_token_latency_seconds_count", "vllm:time_per_output_token_seconds_count"),
            "retracted_req": _some("vllm:num_preemptions_total"),
        },
        {
            "running_req": _some("vllm:num_requests_running"),
            "queue_req": _some("vllm:num_requests_waiting"),
            "kv_used_frac": _some("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
            "started": _some("vllm:generation_tokens_created"),
        },
        {"engine": "DP"},
    ),
    Exporter(
        "sglang",
        {
            "n_steps": (Series("sglang:cuda_graph_passes_total", "mode", _DECODE_PASSES),),
            "out_tok": (
                Series("sglang:realtime_tokens_total", "mode", ("decode",)), *_some("sglang:generation_tokens_total"),
            ),
            "new_tok": (
                Series("sglang:realtime_tokens_total", "mode", ("prefill_compute",)),
                *_some("sglang:prompt_tokens_total"),
            ),
            "cached_tok": (
                Series("sglang:realtime_tokens_total", "mode", ("prefill_cache",)),
                *_some("sglang:cached_tokens_total"),
            ),
            "itl_s": _some("sglang:inter_token_latency_seconds_sum"),
            "itl_tok": _some("sglang:inter_token_latency_seconds_count"),
            "retracted_req": _some("sglang:num_retracted_requests_total"),
        },
        {
            "running_req": _some("sglang:num_running_reqs"),
            "queue_req": _some("sglang:num_queue_reqs"),
            "used_tok": _some("sglang:num_used_tokens"),
            "kv_used_frac": _some("sglang:token_usage"),
            "accept_len": _some("sglang:spec_accept_length"),
            "report": _some("sglang:gen_throughput"),
            "started": _some("sglang:generation_tokens_created"),
        },
        {"dp_rank": "DP", "pp_rank": "PP", "tp_rank": "TP"},
        report="report",
    ),
    Exporter(
        "llamacpp",
        {
            "n_steps": _some("llamacpp:n_decode_total"),
            "finished_tok": _some("llamacpp:tokens_predicted_total"),  # grows when a request ends, not as it goes
            "new_tok": _some("llamacpp:prompt_tokens_total"),
            "drafts": _some("llamacpp:spec_decode_num_drafts_total"),
            "accepted": _some("llamacpp:spec_decode_num_accepted_tokens_total"),
        },
        {
            "running_req": _some("llamacpp:requests_processing"),
            "queue_req": _some("llamacpp:requests_deferred"),
            "busy_per_step": _some("llamacpp:n_busy_slots_per_decode"),
        },
        product=("busy_per_step", "n_steps"),
    ),
    Exporter(
        "tgi",
        {
            "n_steps": (Series("tgi_batch_inference_duration_count", "method", ("decode",)),),
            "step_s": (Series("tgi_batch_inference_duration_sum", "method", ("decode",)),),
            "prefill_steps": (Series("tgi_batch_inference_duration_count", "method", ("prefill",)),),
            "finished_tok": _some("tgi_request_generated_tokens_sum"),
        },
        {"running_req": _some("tgi_batch_current_size"), "queue_req": _some("tgi_queue_size")},
    ),
)

PLACE_LABELS = ("instance", "pod", "model_name")
"""Labels beside the rank's that tell one server from another in a scrape of several."""

WANTED = frozenset(
    series.name for exporter in EXPORTERS for table in (exporter.counters, exporter.gauges)
    for choice in table.values() for series in choice
)
"""Names of all metrics that are kept."""
