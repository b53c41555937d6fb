"""Server events, server lives and facts of start-up.

Exact; bytes are GiB x 2^30 rounded to a byte. Would catch: an argument dump taken for an error because of the words
in it, a stop taken for a crash, ranks that print the same start-up counted as restarts, a restart not counted.
"""

from __future__ import annotations

import json
import math

import pytest
from logs import read, sglang_line, vllm_line

from helpers.ingest.arguments import parse_arguments
from helpers.schema import EVENTS, check

GIB = 2**30
SG = "[2026-02-03 04:00:00 TP0] "
VL = "(EngineCore pid=9) INFO 02-03 04:00:00 [core.py:1] "

SCARY = "CUDA out of memory. Tried to allocate 3.94 GiB|SIGQUIT received|Scheduler hit an " \
    "exception|EngineDeadError: x|" \
    "Watchdog timeout (watchdog_timeout=1)|Decode batch, #running-req: 5, #token: 7, token usage: 0.00, gen " \
        "throughput " \
    "(token/s): 41.50, #queue-req: 2|Avg prompt throughput: 1.0 tokens/s|Retract requests. #retracted_reqs: 2"


def kinds(log):
    return log.events["kind"].tolist()


def details(log):
    return [json.loads(text) if isinstance(text, str) else None for text in log.events["detail"]]


@pytest.mark.parametrize("dump", [
    f"[2026-02-03 04:00:00] server_args=ServerArgs(model_path='m', chat_template='{SCARY}', tp_size=2)",
    f"[2026-02-03 04:00:00] server_args={{'model_path': 'm', 'chat_template': '{SCARY}', 'tp_size': 2}}",
    f"(APIServer pid=1) INFO 02-03 04:00:00 [utils.py:1] non-default args: "
    f"{{'model': 'm', 'chat_template': '{SCARY}'}}",
    f"(EngineCore pid=9) INFO 02-03 04:00:00 [core.py:1] Initializing a V1 LLM engine (v0.32.0) with config: "
    f"model='m', x='{SCARY}'",
    f"INFO 02-03 04:00:00 api_server.py:1] args: Namespace(model='m', chat_template='{SCARY}')",
])
@pytest.mark.parametrize("line", [sglang_line(), vllm_line()])
def test_argument_dump_is_nothing_else_whatever_words_it_holds(tmp_path, dump, line):
    log = read(tmp_path, dump, line)
    assert kinds(log) == ["args"]
    assert len(log.samples) == 1
    assert log.accounting.lines == {"statistic": 1, "event": 1, "other_known": 0, "other": 0, "malformed": 0}


@pytest.mark.parametrize(("text", "kind", "size_bytes", "detail"), [
    (SG + "Load weight end. elapsed=433.55 s, type=DeepForCausalLM, quant=fp8, fmt=e4m3, avail mem=58.21 GB, mem "
          "usage=79.80 GB.",
     "weights_loaded", 79.80 * GIB,
     {"elapsed_s": 433.55, "type": "DeepForCausalLM", "quant": "fp8", "available_bytes": round(58.21 * GIB)}),
    (SG + "Load weight end. type=GlmForCausalLM, dtype=torch.bfloat16, avail mem=52.22 GB", "weights_loaded", None,
     {"type": "GlmForCausalLM", "dtype": "torch.bfloat16", "available_bytes": round(52.22 * GIB)}),
    (SG + "KV Cache is allocated. #tokens: 841782, K size: 18.46 GB, V size: 18.46 GB", "kv_allocated",
     2 * round(18.46 * GIB), {"tokens": 841782, "k_bytes": round(18.46 * GIB), "v_bytes": round(18.46 * GIB)}),
    (SG + "KV Cache is allocated. dtype: torch.float8_e4m3fn, #tokens: 509157, KV size: 33.32 GB", "kv_allocated",
     33.32 * GIB, {"tokens": 509157, "dtype": "torch.float8_e4m3fn"}),
    (SG + "Capture cuda graph bs [1, 2, 4, 8]", "graphs_captured", None, {"batch_sizes": [1, 2, 4, 8]}),
    (SG + "Capture cuda graph end. Time elapsed: 13.55 s. mem usage=3.12 GB. avail mem=62.18 GB.", "graphs_captured",
     3.12 * GIB, {"elapsed_s": 13.55}),
    (SG + "Capture cuda graph end. Time elapsed: 13.55 s. avail mem=62.18 GB. mem usage=3.12 GB.", "graphs_captured",
     3.12 * GIB, {"elapsed_s": 13.55}),
    (SG + "Capture target verify CUDA graph begin. backend=full, num_tokens_per_req=16, bs=[1, 2, 3], avail "
          "mem=7.27 GB",
     "graphs_captured", None, {"graph": "target verify", "batch_sizes": [1, 2, 3]}),
    (SG + "Capture target decode CUDA graph end. bs=[1, 2], elapsed=3.00 s, mem usage=0.60 GB, avail mem=6.67 GB.",
     "graphs_captured", 0.60 * GIB, {"graph": "target decode", "batch_sizes": [1, 2], "elapsed_s": 3.0}),
    (SG + "KV cache pool is full. Retract requests. #retracted_reqs: 2, #new_tokens_gained: 4096, "
          "#new_token_ratio: 0.1 -> 0.5",
     "retraction", None, {"retracted_req": 2, "gained_tok": 4096}),
    (SG + "Decode out of memory happened. #retracted_reqs: 1, #new_token_ratio: 0.5800 -> 0.9800", "retraction", None,
     {"retracted_req": 1}),
    (SG + "RuntimeError: Prefill out of memory. Try to lower your batch "
          "size.", "out_of_memory", None, {"stage": "Prefill"}),
    ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.94 GiB. GPU 0 has a total capacity of 79.1 GiB",
     "out_of_memory", 3.94 * GIB, {"device": "CUDA"}),
    ("torch.OutOfMemoryError: HIP out of memory. Tried to allocate 50.00 MiB.", "out_of_memory", 50 * 2**20,
     {"device": "HIP"}),
    (SG + "Scheduler hit an exception: Traceback (most recent call last):", "crash", None, {"process": "Scheduler"}),
    ("[2026-02-03 04:00:00] Received sigquit from a child process. It usually means the child "
     "failed.", "crash", None, None),
    ("[2026-02-03 04:00:00] Received sigquit from a child proces. It usually means the child "
     "failed.", "crash", None, None),
    ("[2026-02-03 04:00:00] SIGQUIT received. signum=None, frame=None. It usually means one child "
     "failed.", "crash", None, None),
    ("[2026-02-03 04:00:00] Subprocess scheduler (pid=7) crashed with exit code 1. Triggering SIGQUIT for cleanup...",
     "crash", None, {"process": "scheduler", "exit_code": 1}),
    (SG + "Watchdog timeout (self.watchdog_timeout=300)", "watchdog", None, {"timeout_s": 300}),
    (SG + "Scheduler watchdog timeout (self.watchdog_timeout=300, "
          "self.soft=False)", "watchdog", None, {"timeout_s": 300}),
    ("[2026-02-03 04:00:00] SIGTERM received. signum=None frame=None. Draining requests and shutting "
     "down...", "shutdown",
     None, None),
    (SG + "Profiling starts. Traces will be saved to: /x (with profile id: 1)", "profile_start", None, None),
    (SG + "Profiling done. Traces are saved to: /x", "profile_stop", None, None),
    (VL + "Model loading took 17.22 GiB memory and 49.707560 "
          "seconds", "weights_loaded", 17.22 * GIB, {"elapsed_s": 49.70756}),
    (VL + "Model loading took 14.9889 GiB and 30.3 seconds", "weights_loaded", 14.9889 * GIB, {"elapsed_s": 30.3}),
    ("INFO 01-22 18:26:55 model_runner.py:1] Loading model weights took 14.9595 "
     "GB", "weights_loaded", 14.9595 * GIB, None),
    (VL + "GPU KV cache size: 6,130,106 tokens", "kv_allocated", None, {"device": "GPU", "tokens": 6130106}),
    (VL + "Available KV cache memory: 106.25 GiB", "kv_allocated", 106.25 * GIB, None),
    ("INFO 01-22 18:26:55 executor_base.py:110] # GPU blocks: 5691, # CPU blocks: 2048", "kv_allocated", None,
     {"device": "GPU", "blocks": 5691, "cpu_blocks": 2048}),
    (VL + "Graph capturing finished in 4 secs, took -0.41 GiB", "graphs_captured", -0.41 * GIB, {"elapsed_s": 4}),
    ("WARNING 08-20 10:18:39 scheduler.py:1] Sequence group 147 is preempted by PreemptionMode.RECOMPUTE mode because "
     "there is not enough KV cache space. total_num_cumulative_preemption=51", "preemption", None,
     {"mode": "RECOMPUTE", "total": 51}),
    ("ERROR 04-28 02:37:03 [core.py:398] EngineCore encountered a fatal error.", "crash", None, None),
    ("ERROR 05-05 12:36:59 [serving.py:1] vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.",
     "crash", None, None),
    (VL + "Worker proc VllmWorker-0 died unexpectedly (exit code: -9), shutting down executor.", "crash", None,
     {"process": "VllmWorker-0", "exit_code": -9}),
    (VL + "[shutdown] EngineCore: trigger received signal=SIGTERM", "shutdown", None, {"signal": "SIGTERM"}),
])
def test_event_and_what_it_says(tmp_path, text, kind, size_bytes, detail):
    line = vllm_line() if text.startswith((VL[:5], "INFO", "WARN", "ERROR")) else sglang_line()
    log = read(tmp_path, text, line)
    assert kinds(log) == [kind]
    assert details(log) == [detail]
    event = log.events.iloc[0]
    # printed with 2 decimals of a GiB; the conversion itself is exact to a byte
    assert event.size_bytes == pytest.approx(math.nan if size_bytes is None else size_bytes, abs=1, nan_ok=True)
    assert event.text == text
    assert log.accounting.lines["event"] == 1
    check(log.events, EVENTS)


@pytest.mark.parametrize("text", [
    "set --max-total-tokens to avoid the out-of-memory error.", "If you encounter CUDA out of memory errors, lower it",
    "    except torch.cuda.OutOfMemoryError as "
    "e:", "triton OutOfResources: out of resource: shared memory, Required: 1",
    "INFO profiling: Profiling CUDA graph memory: FULL=35", "    raise EngineDeadError()",
])
def test_talk_of_trouble_is_no_event(tmp_path, text):
    assert kinds(read(tmp_path, sglang_line(), text)) == []


def test_event_has_stamp_rank_and_life(tmp_path):
    log = read(tmp_path, sglang_line(0), "[2026-02-03 04:05:30 DP1 TP2] Retract requests. #retracted_reqs: "
                                         "2", sglang_line(59))
    event = log.events.iloc[0]
    assert (event["rank"], event.t_s, event.line_no, event.server_life, event.engine) == ("DP1 TP2", 30.0, 2, 0,
        "sglang")


def test_stop_is_no_crash_but_a_crash_before_it_is(tmp_path):
    dead = "ERROR 05-05 12:37:00 [serving.py:1] vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered " \
        "an issue."
    stop = VL + "[shutdown] EngineCore: trigger received signal=SIGTERM"
    assert kinds(read(tmp_path, vllm_line(), stop, dead)) == ["shutdown", "shutdown"]
    assert details(read(tmp_path, vllm_line(), stop, dead))[1] == {"after_stop": True}
    assert kinds(read(tmp_path, vllm_line(), dead, stop)) == ["crash", "shutdown"]


@pytest.mark.parametrize(("lines", "ready"), [
    (["INFO:     Application startup complete.", "The server is fired up and ready to roll!", sglang_line()], [2]),
    (["(APIServer pid=1) INFO 02-03 04:00:00 [entry.py:1] Starting vLLM server on "
      "http://x", "INFO:     Application startup complete.",
      vllm_line()], [2]),
    (["(APIServer pid=1) INFO 02-03 04:00:00 [entry.py:1] Starting vLLM server on http://x", vllm_line()], [1]),
])
def test_ready_once_and_by_the_most_telling_line(tmp_path, lines, ready):
    log = read(tmp_path, *lines)
    assert log.events["line_no"][log.events["kind"] == "ready"].tolist() == ready
    assert log.accounting.lines["event"] == 1
    assert sum(log.accounting.lines.values()) == len(lines)


SG_ARGS = "[2026-02-03 04:00:00] server_args=ServerArgs(model_path='m', tp_size=2)"
SG_READY = "[2026-02-03 04:00:00] The server is fired up and ready to roll!"
VL_BANNER = "(APIServer pid=1) INFO 02-03 04:00:00 [api_utils.py:1]  ▄▄ ▄█ █     █     █ ▀▄▀ █  version {}"
VL_ARGS = "(APIServer pid=1) INFO 02-03 04:00:00 [utils.py:1] non-default args: {{'model': '{}'}}"
VL_INIT = "(EngineCore_DP{} pid=9) INFO 02-03 04:00:00 [core.py:1] Initializing a V1 LLM engine (v0.32.0) with " \
    "config: model='m', " \
    "tensor_parallel_size=4"
LOADED = SG + "Load weight end. type=X, avail mem=1.00 GB, mem usage=1.00 GB."


@pytest.mark.parametrize(("lines", "lives"), [
    # the dump of one start may come in several lines and from several ranks
    ([VL_BANNER.format("0.32.0"), VL_ARGS.format("m"), VL_INIT.format(0), VL_INIT.format(1), vllm_line()], [0]),
    ([SG_ARGS, LOADED, LOADED, SG_READY, sglang_line(), sglang_line(1)], [0, 0]),
    # a log that begins in mid-run, then a restart
    ([sglang_line(), SG_ARGS, sglang_line(1)], [0, 1]),
    # restart after traffic, after ready, after a crash before ready, after a start that stopped without a word
    ([SG_ARGS, sglang_line(), SG_ARGS, sglang_line(1)], [0, 1]),
    ([SG_ARGS, SG_READY, SG_ARGS, sglang_line()], [1]),
    ([SG_ARGS, "[2026-02-03 04:00:00] SIGQUIT received.", SG_ARGS, sglang_line()], [1]),
    ([SG_ARGS, LOADED, SG_ARGS, sglang_line()], [1]),
    # the dying server's last words after the new one's banner are no third life
    ([VL_BANNER.format("1"), VL_ARGS.format("a"), vllm_line(), VL_BANNER.format("2"),
      VL + "[shutdown] EngineCore: trigger received signal=SIGTERM", VL_ARGS.format("b"), vllm_line(1)], [0, 1]),
])
def test_server_lives(tmp_path, lines, lives):
    log = read(tmp_path, *lines)
    assert log.samples["server_life"].tolist() == lives
    assert len(log.facts) == max(lives) + 1


def test_config_of_a_crash_dump_is_no_new_life(tmp_path):
    dump = "(EngineCore pid=9) ERROR 02-03 04:00:00 [dump_input.py:1] Dumping input data for V1 LLM engine " \
        "(v0.32.0) with config: m"
    log = read(tmp_path, VL_INIT.format(0), vllm_line(), dump, vllm_line(1))
    assert log.samples["server_life"].tolist() == [0, 0]
    assert kinds(log) == ["args"]


def test_facts_of_sglang(tmp_path):
    args = "[2026-02-03 04:00:00] server_args=ServerArgs(model_path='org/m, with \\'quotes\\'', tp_size=8, " \
        "dp_size=4, pp_size=2, ep_size=8, " \
        "enable_dp_attention=True, decode_log_interval=10, page_size=64, max_running_requests=None, " \
            "context_length=None, " \
        "chunked_prefill_size=8192, disable_cuda_graph=False, disable_overlap_schedule=True, " \
            "speculative_algorithm='EAGLE', " \
        "speculative_num_draft_tokens=4, dtype='auto', kv_cache_dtype='fp8_e4m3', quantization='fp8', " \
            "cuda_graph_bs=[1, 2, 4])"
    pool = SG + "max_total_num_tokens=509157, chunked_prefill_size=4096, max_prefill_tokens=32768, " \
        "max_running_requests=512, " \
        "context_len=163840, available_gpu_mem=18.61 GB"
    facts = read(tmp_path, args, SG + "Capture cuda graph bs [1, 2, 4, 8]", pool, sglang_line()).facts[0]
    assert facts.pop("args")["model_path"] == "org/m, with 'quotes'"
    assert facts == {
        "model": "org/m, with 'quotes'", "tp": 8, "dp": 4, "pp": 2, "ep": 8, "dp_attention": True,
        "decode_log_interval": 10, "page_size": 64, "kv_block_size": 64, "max_running_requests": 512,
        "context_length_max": 163840, "chunked_prefill_size": 4096, "captured_batch_sizes": [1, 2, 4, 8],
        "speculative_algorithm": "EAGLE", "num_draft_tokens": 4, "dtype": "auto", "kv_cache_dtype": "fp8_e4m3",
        "quantization": "fp8", "cuda_graph_enabled": True, "enable_overlap_schedule": False, "kv_pool_tokens": 509157,
    }


@pytest.mark.parametrize("config", [
    "'cuda_graph_config': {'decode': {'backend': 'disabled', 'bs': [1, 2]}}",
    "'cuda_graph_config': \"CudaGraphConfig(decode=PhaseConfig(backend='disabled', bs=[1, 2]))\"",
    "'disable_cuda_graph': True, 'cuda_graph_bs': [1, 2]",
])
def test_sizes_of_disabled_graphs_are_no_captured_sizes(tmp_path, config):
    facts = read(tmp_path, f"[2026-02-03 04:00:00] server_args={{{config}}}", sglang_line()).facts[0]
    assert facts["cuda_graph_enabled"] is False
    assert "captured_batch_sizes" not in facts


def test_facts_of_vllm(tmp_path):
    init = "(EngineCore pid=9) INFO 02-03 04:00:00 [core.py:1] Initializing a V1 LLM engine (v0.25.1) with config: " \
        "model='org/m', " \
        "speculative_config=SpeculativeConfig(method='mtp', model='d, raft', num_spec_tokens=3), " \
            "dtype=torch.bfloat16, max_seq_len=65536, " \
        "tensor_parallel_size=4, pipeline_parallel_size=1, data_parallel_size=2, quantization=None, " \
            "enforce_eager=False, kv_cache_dtype=auto, " \
        "enable_prefix_caching=True, compilation_config={'mode': <CompilationMode.VLLM_COMPILE: 3>, " \
            "'cudagraph_capture_sizes': [4, 2, 1], " \
        "'cudagraph_mode': <CUDAGraphMode.FULL: 2>}"
    log = read(
        tmp_path, VL_BANNER.format("0.25.1"),
        "(APIServer pid=1) INFO 02-03 04:00:00 [utils.py:1] non-default args: {'model': 'org/m', 'max_num_seqs': 32, "
        "'enable_expert_parallel': True, 'block_size': 16}",
        "(APIServer pid=1) INFO 02-03 04:00:00 [model.py:1] Using max model len "
        "1048576",  # printed for the draft model too
        init, VL + "Chunked prefill is enabled with "
                   "max_num_batched_tokens=2048.", VL + "Asynchronous scheduling is enabled.",
        VL + "GPU KV cache size: 94,135 tokens", VL + "Graph capturing finished in 4 secs, took 0.41 GiB", vllm_line(),
    )
    facts = log.facts[0]
    assert facts.pop("args")["tensor_parallel_size"] == 4
    assert facts == {
        "model": "org/m", "tp": 4, "dp": 2, "pp": 1, "ep": 8, "max_running_requests": 32, "context_length_max": 65536,
        "chunked_prefill_size": 2048, "captured_batch_sizes": [1, 2, 4], "kv_block_size": 16, "kv_pool_tokens": 94135,
        "cuda_graph_enabled": True, "speculative_algorithm": "mtp", "num_draft_tokens": 3, "dtype": "torch.bfloat16",
        "kv_cache_dtype": "auto", "enable_prefix_caching": True, "enable_overlap_schedule": True,
            "engine_version": "0.25.1",
    }
    assert log.engine_version == "0.25.1"
    captured = json.loads(log.events["detail"][log.events["kind"] == "graphs_captured"].iloc[0])
    assert captured["batch_sizes"] == [1, 2, 4]
    json.dumps(facts)  # JSON-safe


def test_facts_belong_to_their_life(tmp_path):
    facts = read(tmp_path, SG_ARGS, sglang_line(), SG_ARGS.replace("tp_size=2", "tp_size=4"), sglang_line(1)).facts
    assert [fact["tp"] for fact in facts] == [2, 4]


@pytest.mark.parametrize(("text", "expected"), [
    ("ServerArgs(a=1, b='x, y', c=[1, 2], d={'e': (1, 2)}, f=None)",
     {"a": 1, "b": "x, y", "c": [1, 2], "d": {"e": [1, 2]}, "f": None}),
    ("{'a': 1, 'b': {'c': \"it's\"}}", {"a": 1, "b": {"c": "it's"}}),
    ("a=torch.float32, b=<Mode.X: 3>, c=Config(x=1, "
     "y='z')", {"a": "torch.float32", "b": "<Mode.X: 3>", "c": "Config(x=1, y='z')"}),
    ("ServerArgs(a=1, b='cut in the mid", {"a": 1, "b": "'cut in the mid"}),
    ("{'a': float('inf'), 'b': {1, 2}, 'c': 1e400}", {"a": "float('inf')", "b": [1, 2], "c": "inf"}),
    ("", {}), ("()", {}), ("no arguments at all", {}), ("((((((", {}),
    ("{'a': __import__('os').system('echo no')}", {"a": "__import__('os').system('echo no')"}),
    ("a=" + "(" * 5000, {"a": "(" * 5000}),
])
def test_argument_dumps_are_read_without_evaluating_them(text, expected):
    assert parse_arguments(text) == expected
    json.dumps(parse_arguments(text))


def test_events_without_a_stamp_keep_their_line(tmp_path):
    """Stamps are read pattern by pattern: rows that match a later one, or none, must come back to their place."""
    log = read(
        tmp_path, sglang_line(0), "INFO:     Application startup complete.",
        "[04:05:09 TP0] Load weight end. type=X, dtype=torch.bfloat16, avail mem=52.22 GB, mem usage=41.90 GB.",
        "[2026-02-03 04:05:11 TP0] KV cache pool is full. Retract requests. #retracted_reqs: 2, "
        "#new_tokens_gained: 4096, #new_token_ratio: 0.1234 -> 0.5678", sglang_line(12),
    )
    where = log.events.set_index("kind")["line_no"].to_dict()
    assert where == {"ready": 2, "weights_loaded": 3, "retraction": 4}
    texts = log.events.set_index("line_no")["text"]
    assert "Application startup" in texts[2] and "Load weight" in texts[3] and "Retract" in texts[4]


@pytest.mark.parametrize("newline", ["", "\\n", "\\r\\n"])
@pytest.mark.parametrize(("dump", "expected"), [
    ("model='m', tensor_parallel_size=2", {"model": "m", "tensor_parallel_size": 2}),
    ("tp=2, dtype=torch.bfloat16", {"tp": 2, "dtype": "torch.bfloat16"}),
    ("tp=2, compilation_config={'level': 3}", {"tp": 2, "compilation_config": {"level": 3}}),
    ("tp=2, tokenizer='m'", {"tp": 2, "tokenizer": "m"}),
    ("{'tp': 2}", {"tp": 2}),
])  # fmt: skip
def test_a_dump_ends_with_the_message_of_the_json_record_around_it(dump, expected, newline):
    assert parse_arguments(f'{dump}{newline}", "_HOSTNAME": "node7", "x=y": "z=1, q=2"}}') == expected


def test_quotes_of_values_end_no_dump():
    assert parse_arguments("a=\"it's\", b=b\"it's\", c='x\", \"y', d=1") == {
        "a": "it's", "b": "b\"it's\"", "c": 'x", "y', "d": 1} | {"b": str(b"it's")}
    assert parse_arguments(r"a='it\'s, b=2', c='\\', d=[']', '\\\'('], e=3") == {
        "a": "it's, b=2", "c": "\\", "d": ["]", "\\'("], "e": 3}


def test_arguments_of_one_dump_are_not_those_of_the_next():
    first = parse_arguments("ServerArgs(sizes=[1, 2], extra={'a': [3]}, tp=4)")
    first["sizes"].append(5)
    first["extra"]["a"].clear()
    assert parse_arguments("ServerArgs(sizes=[1, 2], extra={'a': [3]}, tp=4)") == {
        "sizes": [1, 2], "extra": {"a": [3]}, "tp": 4}
