"""All real server logs of the reference material: as many rows as grep counts, no exception, known lives and events.

Exact counts. Would catch: a family of lines lost on some version, rows invented from prose, a log of a real server
that raises.
"""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd
import pytest

from helpers import ingest
from helpers.schema import EVENTS, SAMPLES, LogFormatError, check

_GREP = {
    "decode": re.compile(rb"Decode batch[^\n]{0,12}[.,] #running-req"),
    "prefill": re.compile(rb"Prefill batch[^\n]{0,12}[.,] #new-seq"),
    "stats": re.compile(rb"Avg prompt throughput: +[0-9]"),
    "spec": re.compile(rb"SpecDecoding metrics: "),
    "iteration": re.compile(rb"Iteration\([0-9]+\): "),
}


def server_logs(shared: Path) -> list[Path]:
    """Return the logs of SGLang and vLLM and of their clients; the llama.cpp log has its own test."""
    names = ("*.log", "*.stderr", "*log.txt")
    found = sorted(path for name in names for path in (shared / "logs").rglob(name))
    return [path for path in found if path.parent.name != "llamacpp-sweep"]


def test_rows_equal_grep_counts_in_every_log(shared):
    """Client and start-up logs hold no statistic: they are refused in words, never by another exception."""
    read, refused = [], []
    for path in server_logs(shared):
        text = path.read_bytes()
        counts = {kind: len(pattern.findall(text)) for kind, pattern in _GREP.items()}
        telling = sum(count for kind, count in counts.items() if kind != "spec")
        if telling == 0:
            with pytest.raises(LogFormatError, match="expected statistic lines"):
                ingest.read_log(path)
            refused.append(path.name)
            continue
        log = ingest.read_log(path)
        accounting = log.accounting
        assert dict(accounting.by_kind) == {kind: count for kind, count in counts.items() if count}, path
        assert accounting.lines["malformed"] == 0, path
        n_lines = text.count(b"\n") + (not text.endswith(b"\n"))
        assert sum(accounting.lines.values()) == accounting.lines_total == n_lines, path
        assert log.samples["t_s"].notna().all(), path
        check(log.samples, SAMPLES)
        check(log.events, EVENTS)
        read.append(path.name)
    assert (len(read), len(refused)) == (34, 21)


@pytest.mark.parametrize(("name", "lives"), [("vllm-restarts", 3), ("vllm-sweep", 1), ("sglang-sweep", 1),
    ("vllm-worker-killed", 1)])
def test_server_lives(shared, name, lives):
    log = ingest.read_log(shared / "logs" / "own" / name / "server.log")
    assert log.samples["server_life"].unique().tolist() == list(range(lives))
    assert len(log.facts) == lives
    assert (log.events["kind"] == "ready").sum() == lives


def test_own_sglang_sweep(shared):
    log = ingest.read_log(shared / "logs" / "own" / "sglang-sweep" / "server.log")
    facts = log.facts[0]
    assert (facts["model"], facts["tp"], facts["decode_log_interval"], facts["page_size"]) == (
        "/srv/models/tiny-llama-512x8", 1, 40, 1)
    assert (facts["kv_pool_tokens"], facts["max_running_requests"], facts["context_length_max"]) == (65536, 64, 8192)
    assert facts["cuda_graph_enabled"] is False
    assert log.events["kind"].value_counts().to_dict() == {
        "args": 1, "weights_loaded": 1, "kv_allocated": 2, "ready": 1, "shutdown": 3}
    # first decode line of the sweep after idle, next to its plateau
    assert (log.samples["decode_tok_per_s"] == 11.13).sum() == 1


def test_own_vllm_log(shared):
    log = ingest.read_log(shared / "logs" / "own" / "vllm-iteration-lines" / "server.log")
    assert log.engine_version == "0.32.0"
    assert log.facts[0]["max_running_requests"] == 128
    iterations = log.samples[log.samples["kind"] == "iteration"]
    assert iterations["iteration"].tolist() == list(range(1189))
    assert (iterations["rank"] == "DP0").all()


def test_worker_killed_is_a_crash_and_a_stop_is_none(shared):
    own = shared / "logs" / "own"
    killed = ingest.read_log(own / "vllm-worker-killed" / "server.log").events
    assert (killed["kind"] == "crash").sum() == 19
    stopped = ingest.read_log(shared / "logs" / "sostrowsk" / "vllm.log").events  # EngineDeadError after SIGTERM
    assert (stopped["kind"] == "crash").sum() == 0
    sglang = ingest.read_log(shared / "logs" / "sostrowsk" / "sglang-int4.log").events  # SIGQUIT after SIGTERM
    assert (sglang["kind"] == "crash").sum() == 0
    assert (sglang["kind"] == "shutdown").sum() == 3


def test_kernel_limit_is_a_crash_but_no_gpu_memory_shortage(shared):
    events = ingest.read_log(shared / "logs" / "magik6k" / "sglang-k25-int4.log").events
    assert (events["kind"] == "crash").sum() == 9  # eight schedulers and the parent
    assert (events["kind"] == "out_of_memory").sum() == 0


def test_pipeline_stages_are_both_kept(shared):
    samples = ingest.read_log(shared / "logs" / "magik6k" / "sglang-tp4pp2.log").samples
    decode = samples[samples["kind"] == "decode"]
    assert decode["rank"].value_counts().to_dict() == {"PP0 TP0": 94, "PP1 TP0": 94}


def test_draft_model_and_progress_bars(shared):
    log = ingest.read_log(shared / "logs" / "sostrowsk" / "sglang-int4.log")
    facts = log.facts[0]
    assert (facts["speculative_algorithm"], facts["num_draft_tokens"]) == ("DFLASH", 16)
    assert facts["captured_batch_sizes"] == [1, 2, 3, 4, 5, 6, 7, 8]
    decode = log.samples[log.samples["kind"] == "decode"]
    assert decode["accept_len"].between(1.23, 3.79).all()
    # new definition: (len - 1) / (draft tokens - 1), both printed with 2 decimals
    implied = (decode["accept_len"] - 1) / 15
    assert (implied - decode["accept_rate_frac"]).abs().max() <= 0.005 + 0.005 / 15 + 1e-9


def test_context_length_is_not_the_draft_models(shared):
    assert ingest.read_log(shared / "logs" / "sostrowsk" / "vllm.log").facts[0]["context_length_max"] == 65536


def test_folder_of_everything(shared):
    """Client notes, traces and CSV files lie between the logs; each is named with its reason."""
    log = ingest.read_log(shared / "logs" / "sostrowsk")
    assert len(log.sources) == 10
    assert log.samples["file"].nunique() == 10
    assert sum("no statistic line" in note for note in log.accounting.notes) == 8
    assert sum("no scrapes, snapshots or metrics" in note for note in log.accounting.notes) >= 10
    per_file_lives = log.samples.groupby("file")["server_life"].nunique()
    assert (per_file_lives == 1).all()
    assert log.samples["server_life"].nunique() == 10


def test_v0_line_behind_a_progress_bar(shared):
    for path in (shared / "logs" / "cmontemuino").glob("*.log"):
        samples = ingest.read_log(path).samples
        assert samples["ts"].dt.hour.tolist() == [17, 17], path  # the engine's own stamp, not the wrapper's 19
        assert isinstance(samples, pd.DataFrame)
