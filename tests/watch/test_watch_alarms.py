"""Alarms: what raises one, and what looks like one and is none.

Field case A9 was misled by a grep that matched the server's own argument dump.
"""

import pytest

from helpers import synth
from helpers.watch import Watcher

TICK = "[2026-11-02 09:00:{:02d}] Decode batch, #running-req: {}, #token: {}, token usage: 0.01, cuda graph: {}, " \
       "gen throughput (token/s): {}, #queue-req: 0, "
WINDOW = "INFO 11-02 09:00:{:02d} [loggers.py:111] Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg generation " \
         "throughput: {} tokens/s, Running: {} reqs, Waiting: 0 reqs, GPU KV cache usage: 1.0%, " \
         "Prefix cache hit rate: 0.0%"
OUT_OF_MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.94 GiB. GPU 0 has a total " \
                "capacity of 95.0 GiB of which 2.80 GiB is free."


def alarms(*lines):
    """Return kind and line number of every alarm."""
    found = Watcher(max_cpu_frac=0, _credit_s=0.0).take("".join(f"{line}\n" for line in lines).encode())
    return [(c.values["alarm"], c.values["line_no"]) for c in found if c.change == "alarm"]


def test_an_argument_dump_raises_no_alarm_whatever_words_it_holds():
    server, client = (getattr(synth.presets.get("field_case_a", levels_req=[1], n_prompts=[1]), n)
                      for n in ("server", "client"))
    lines = synth.simulate(server, client, seed=1).lines()
    dump = next(line for line in lines if "server_args=" in line)
    assert "out of memory" in dump
    assert "SIGQUIT" in dump
    assert "Scheduler hit an exception" in dump
    assert alarms(*lines) == []
    # the same words outside the dump are alarms
    assert alarms(dump, OUT_OF_MEMORY, "[2026-11-02 09:00:01] Scheduler hit an exception: Traceback") == [
        ("out_of_memory", 2), ("crash", 3),
    ]


@pytest.mark.parametrize("line", [
    "[2026-11-02 09:00:01] Receive: obj=GenerateReqInput(text='CUDA out of memory. Tried to allocate 1.00 GiB')",
    "INFO 11-02 09:00:01 [logger.py:40] Received request cmpl-1: prompt: 'Scheduler hit an exception', params: x",
    "[2026-11-02 09:00:01] You can lower mem-fraction-static to avoid CUDA out of memory errors.",
    "out of memory",
])
def test_a_quoted_prompt_or_a_hint_raises_no_alarm(line):
    assert alarms(line) == []


def test_the_first_of_many_lines_of_a_crash_is_the_alarm():
    crash = "[2026-11-02 09:00:01 TP{}] Scheduler hit an exception: Traceback (most recent call last):"
    assert alarms(*(crash.format(rank) for rank in range(8))) == [("crash", 1)]


def test_a_child_that_dies_after_a_stop_was_asked_for_is_no_crash():
    lines = ["[2026-11-02 09:00:01] SIGTERM received. signum=15 frame=None. Draining requests and shutting down...",
             "[2026-11-02 09:00:02] SIGQUIT received. signum=3, frame=None. It usually means one child failed."]
    assert alarms(*lines) == []
    assert alarms(*lines[::-1]) == [("crash", 1)]


def test_retraction_and_preemption_are_one_alarm_until_the_load_ends():
    retraction = "[2026-11-02 09:00:03] KV cache pool is full. Retract requests. #retracted_reqs: 1, " \
                 "#new_tokens_gained: 62"
    tick = TICK.format(1, 4, 100, True, 100.0)
    assert alarms(tick, retraction, tick, retraction) == [("retraction", 2)]


def test_a_batch_beyond_the_captured_sizes_is_an_alarm_at_its_first_line():
    captured = "[2026-11-02 09:00:00] Capture cuda graph bs [1, 2, 4, 8, 16, 32]"
    lines = [captured, TICK.format(1, 32, 1000, True, 400.0), TICK.format(2, 33, 2000, False, 300.0),
             TICK.format(3, 33, 3000, False, 300.0)]
    assert alarms(*lines) == [("left_graphs", 3)]


def test_eager_lines_below_the_captured_sizes_count_only_when_they_stay():
    """In a data-parallel group another rank's prefill takes the graph away for a line."""
    with_graph, eager = TICK.format(1, 8, 1000, True, 400.0), TICK.format(2, 8, 2000, False, 300.0)
    assert alarms(with_graph, eager, with_graph, eager, eager, with_graph) == []
    assert alarms(with_graph, eager, eager, eager) == [("left_graphs", 4)]
    assert alarms(eager, eager, eager, eager) == []  # a server without graphs has none to leave


def test_requests_without_tokens_in_two_windows_are_a_stall():
    busy, stuck, empty = WINDOW.format(1, 80.0, 4), WINDOW.format(2, 0.0, 4), WINDOW.format(3, 0.0, 0)
    assert alarms(busy, stuck, busy, stuck) == []
    assert alarms(busy, stuck, stuck) == [("stall", 3)]
    assert alarms(busy, empty, empty, empty) == []


def test_a_line_far_slower_than_steady_is_a_stall():
    lines = [TICK.format(n, 4, 1000 + 160 * n, True, 80.0) for n in range(5)]  # 4 requests, 50 ms a step
    assert alarms(*lines, TICK.format(9, 4, 1800, True, 45.0)) == []  # 89 ms: less than twice as slow
    assert alarms(*lines, TICK.format(9, 4, 1800, True, 35.0)) == [("stall", 6)]  # 114 ms


def test_a_watchdog_is_a_stall():
    assert alarms("[2026-11-02 09:05:00 TP0] Watchdog timeout (self.watchdog_timeout=300)") == [("stall", 1)]


def test_a_real_server_whose_worker_was_killed(shared):
    """vLLM 0.32, 16 requests; the worker got SIGKILL (shared/logs/own): one crash, steady before it, no false alarm."""
    data = (shared / "logs/own/vllm-worker-killed/server.log").read_bytes().splitlines(keepends=True)
    watcher = Watcher(max_cpu_frac=0, _credit_s=0.0)
    changes = [c for first in range(0, len(data), 40) for c in watcher.take(b"".join(data[first : first + 40]))]
    assert [(c.values["alarm"], c.values["line_no"]) for c in changes if c.change == "alarm"] == [("crash", 209)]
    assert watcher.state.ended == "crash"
    steady = next(c.values for c in changes if c.values["phase"] == "steady")
    # windows of 1 s at 13:26:59, 13:27:00 and 13:27:01 are the first three without a prompt
    assert (steady["line_no"], steady["level_req"], steady["ts"]) == (145, 16.0, "11-29 13:27:01")
