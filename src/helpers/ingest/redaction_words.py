"""What a redacted log may keep: words that are the engines' own, and the shapes of what must never stay.

The vocabulary is an allow-list. A word that is not in it goes, so that a secret of a shape that nobody thought of goes
too; the shapes below only name what went, and guard the places where more than the vocabulary is kept.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable

from helpers.ingest.chunk_lines import FAMILIES
from helpers.ingest.events import RULES
from helpers.ingest.known import KNOWN, OPAQUE

PLACEHOLDER = r"redacted_(?:text|path|name|host|ip|id|key|mail|url|model)_[0-9]+"
"""What replaces something: kind and number. The same thing has the same number throughout one run."""

STAMP = (
    r"(?:[0-9]{4}[-/][0-9]{2}[-/][0-9]{2}|[0-9]{2}[-/][0-9]{2}(?:[-/][0-9]{4})?|"
    r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) +[0-9]{1,2}(?: [0-9]{4})?)(?:[ T]| - |-)"
    r"[0-9]{2}:[0-9]{2}:[0-9]{2}(?:[.,][0-9]{1,9})?(?:Z|[+-][0-9]{2}:?[0-9]{2})?"
    r"|(?<![\w:])[0-9]{2}:[0-9]{2}:[0-9]{2}(?:[.,][0-9]{1,9})?(?![\w:])"
    r"|(?<![\w.])[0-9]{1,6}\.[0-9]{2}\.[0-9]{3}\.[0-9]{3}(?![\w.])"
)
"""Date and time as engines, wrappers and routers print them; the last is llama.cpp's uptime."""

EPOCH = (
    r"(?i:time|timestamp|ts)[\"']?\s*[=:]\s*[\"']?1[5-9][0-9]{8}(?:[0-9]{3}|[0-9]{6}|[0-9]{9})?"
    r"(?:\.[0-9]{1,9})?(?![\w.])"
)
"""Seconds, ms, us or ns since 1970 behind a name that says so; alone such a number may be anything."""

SHAPES = (
    ("url", r"[A-Za-z][A-Za-z0-9+.-]{1,20}://[^\s'\"<>,;)\]}|\\]+"),
    ("mail", r"[\w.+-]+@[\w-]+(?:\.[\w-]+)*"),
    ("id", r"(?:GPU-|MIG-)?[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"),
    ("id", r"(?<![\w:])(?:[0-9a-fA-F]{2}[:-]){5}[0-9a-fA-F]{2}(?![\w:])"),
    ("ip", r"(?<![\w:.])(?:(?:[0-9a-fA-F]{1,4}:){7}[0-9a-fA-F]{1,4}|(?:[0-9a-fA-F]{1,4}:)+(?::[0-9a-fA-F]{1,4})+|"
           r"(?:[0-9a-fA-F]{1,4}:){2,}:|::(?:[0-9a-fA-F]{1,4}:)*[0-9a-fA-F]{1,4})(?:%\w+)?(?![\w:])"),
    ("ip", r"(?<![\w.])(?:[0-9]{1,3}\.){3}[0-9]{1,3}(?![\w]|\.[0-9])"),
    ("host", r"\bip(?:-[0-9]{1,3}){4}(?:[.\w-]*\w)?"),
    ("key", r"\b(?i:bearer|basic) +[^\s'\",]+"),
    ("key", r"\b(?:sk|pk|rk|hf|gh[opsu]|github_pat|glpat|xox[abeprs]|nvapi|AKIA|ASIA|AIza|ya29|eyJ|npm|pypi|dop_v1)"
            r"[-_.]?[A-Za-z0-9_.=+/-]{8,}"),
    ("key", r"\b(?i:[\w-]*(?:api[_-]?key|secret|passw(?:or)?d|passwd|pwd|credential|authorization|cookie|"
            r"private[_-]?key|access[_-]?key)[\w-]*)[\"']?\s*[=:]\s*[\"']?[^\s\"',}&;]+"),
    ("key", r"\b(?i:[\w-]*(?:token|session|auth))[\"']?\s*[=:]\s*[\"']?(?=[^\s\"',}&;]*[A-Za-z])"
            r"(?!(?i:true|false|none|null|nan|inf)\b)[^\s\"',}&;]{6,}"),
    ("name", r"\b(?i:user(?:_?name)?|host(?:_?name)?|node_?name|pod(?:_?name)?|login|tenant|customer|account)"
             r"[\"']?\s*[=:]\s*[\"']?(?![0-9.]+\b|redacted_)[^\s\"',}&;]+"),
    ("key", r"(?<![\w+/=-])(?=[\w+/=-]*[0-9])(?=[\w+/=-]*[A-Z])(?=[\w+/=-]*[a-z])[A-Za-z0-9+/_-]{28,}={0,2}"),
    ("id", r"(?<![\w.])(?=[0-9]*[a-fA-F])[0-9a-fA-F]{12,}(?![\w.])"),
    ("id", r"(?<![\w.])[0-9]{3,5}(?:[ -][0-9]{3,5}){2,4}(?![\w.])|(?<!\w)\+[0-9][0-9 ()-]{7,}[0-9]"),
    ("path", r"(?<![\w/.])(?:~[\w.-]*|\.{1,2})?(?:/[\w.@%+~=-]+)+/?|\b[A-Za-z]:\\[^\s'\",;]+"),
    ("host", r"\b[A-Za-z0-9][\w-]*(?:\.[\w-]+)*\.(?:com|net|org|io|internal|local|lan|corp|cloud|dev|ai|edu|gov|"
             r"int|example|test|invalid|svc|home|intra|(?!(?:py|so|cc|rs|js|sh|md|pt|go)\b)[a-z]{2})\b(?!\()"),
)
"""(kind, pattern), tried in this order."""

KEPT_NETWORKS = tuple(ipaddress.ip_network(text) for text in (
    "127.0.0.0/8", "0.0.0.0/32", "255.255.255.255/32", "192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24",
    "240.0.0.0/8", "::/127", "2001:db8::/32",
))
"""Addresses that say nothing: this machine, those for documentation, and 240.0.0.0/8, which nobody can have and from
which the replacements come."""

FRAME_WORDS = frozenset(
    "INFO WARN WARNING ERROR DEBUG CRITICAL FATAL TRACE NOTICE info warn warning error debug critical fatal trace I "
    "W E D APIServer ApiServer EngineCore Worker VllmWorker VllmWorkerProcess SGLangEngine RayWorkerWrapper pid ip "
    "rank head worker stdout stderr F P log stream time message msg level severity timestamp ts text textPayload "
    "jsonPayload levelname asctime name process processName thread Engine Engines Aggregated gpu_id repeated across "
    "cluster it s x TRT-LLM TensorRT-LLM RANK _torch MainThread INFO: uvicorn Z T Mon Tue Wed Thu Fri Sat Sun Jan "
    "Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec pod container node server engine prefill decode router replica "
    "vllm sglang python python3 slot srv id task ERR OUT true false null PP TP DP EP CP SP Initializing a an V0 V1 "
    "common_perf_print llama_perf_context_print llama_print_timings print_timing update_slots launch_slot release "
    "load_model srv prompt eval total".split()
)
"""What stands around a record: levels, processes, wrappers."""

_FILES = (
    "loggers serving launcher metrics core autotuner api_utils vllm core_client model backends weight_utils "
    "gpu_model_runner utils async_llm kernel parallel_state monitor kv_cache_utils gpu_worker default_loader "
    "multiproc_executor api_server compilation cuda model_runner entry config scheduler llm_engine launch_server "
    "arg_utils perf dump_input model_rpc manager http_server server_args worker executor_base base_loader cpu_worker "
    "cpu_model_runner engine tp_worker nixl_utils speculative system_utils model_config stats metrics_reporter "
    "scheduler_metrics_mixin decorators"
)
SOURCE_FILES = frozenset(f"{name}.py" for name in _FILES.split()) | {"libtensorrtllm.cc"}
"""Modules of the engines that print the line: said with the line number, which hints at the version."""

_EVENT_WORDS = (
    "Watchdog watchdog RECOMPUTE SWAP torch bfloat16 float16 float32 float8_e4m3fn float8_e5m2 uint8 fp8 auto "
    "Scheduler scheduler detokenizer tokenizer available_gpu_mem available_cpu_mem available_npu_mem "
    "available_xpu_mem TokenizerManager DetokenizerManager Mamba CUDA HIP XPU NPU GPU"
)


def words_of(texts: Iterable[str]) -> frozenset[str]:
    """Return the words of literals and regular expressions without their escapes."""
    plain = (re.sub(r"\\[a-zA-Z]|\(\?P<\w+>", " ", text) for text in texts)
    return frozenset(word for text in plain for word in re.findall(r"[^\W\d_]\w*", text))


def _family_texts() -> Iterable[str]:
    for family in FAMILIES:
        yield from (family.literal, family.head, family.separator, *family.begins, *family.keys, *family.suffixes)
        yield from (*family.lists, *family.continued, *family.bare, *family.flags, *family.units)
        yield from (name for choice in family.required for name in choice)
        yield from (text for pair in family.required_with.items() for text in pair)
        yield from (text for pair in family.rewrite for text in pair)


_MORE_KEYS = (
    "True False nan inf cuda cpu npu gpu xpu hpu musa GPU CPU XPU NPU HPU TPU MPS N A I rank global_rank queue req "
    "cached Per swa mamba pending prealloc transfer pre allocated retracted Swapped inflight num bootstrap fwd est "
    "occupancy External prefix Runtime Memory Usage unbootstrapped transferring TFLOPS BW block modeled Deferred "
    "xfer P90 post Max drafts tree_cache_hit_rate largest read write cap host receive idle replay optimistic "
    "latency valid step round bs rows chunks System efficiency speculative emitted MM Throughput number descriptors "
    "completed Free MicroBatch ID Pinned Scheduled mtp draft router src rs Success generate parameters "
    "GenerateParameters Request Count Context Generation Iteration Counter KV cache blocks Active Timestamp Tokens "
    "per Total Used tg_3s prompt_cache_ratio prompt_cache_len prev_device_step_time cached_kv_tokens"
)
STATISTIC_WORDS = words_of(_family_texts()) | frozenset(_MORE_KEYS.split())
"""All words that statistic records are made of, of every engine that is read."""

RULE_WORDS = {id(rule): words_of((rule.literal, rule.pattern)) | frozenset(_EVENT_WORDS.split()) for _, rule in RULES}
"""id of an event rule -> the words that it looks for."""

GROUPS = {**OPAQUE, **KNOWN}
"""Name -> literals of lines that are known but not read, in the order in which they are counted."""

ROUTES = frozenset(
    "/v1/chat/completions /v1/completions /v1/embeddings /v1/models /v1/responses /generate /tokenize /detokenize "
    "/metrics /health /health_generate /ping /version /get_server_info /server_info /get_model_info /model_info "
    "/get_load /v1/loads /start_profile /stop_profile /freeze_gc /flush_cache /load /docs /openapi.json /slots "
    "/completion /completions /props /api/generate /api/chat / /v1/ /prometheus /invocations /rerank /score".split()
)
"""Paths of the servers themselves."""

SAFE_VALUES = frozenset(
    "auto none null true false default cuda cpu hip rocm npu xpu tpu decode prefill int8 int4 fp8 fp4 nvfp4 mxfp4 "
    "bf16 fp16 fp32 fp8_e4m3 fp8_e5m2 bfloat16 float16 float32 half float eagle eagle3 nextn mtp ngram medusa "
    "dflash draft_model standalone awq gptq marlin awq_marlin gptq_marlin compressed-tensors modelopt modelopt_fp4 "
    "bitsandbytes flashinfer triton fa3 fa4 flashmla trtllm_mla cutlass_mla aiter torch_native pytorch xgrammar "
    "outlines fcfs lpm lru lfu mp ray uni external_launcher round_robin shortest_queue huggingface transformers "
    "fused inductor eager all piecewise full disabled mooncake nixl safetensors dummy binary warn text builtin "
    "sha256 0.0.0.0 localhost counter gauge histogram summary untyped stdout stderr info warning error stop length "
    "abort +inf -inf inf nan".split()
)
"""Values that only say which of the engine's own ways was chosen."""
