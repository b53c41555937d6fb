"""What really happened in a simulation: the numbers that an analysis of its log must find again."""

from __future__ import annotations

from typing import Any

from helpers.synth.client import client_results, phase_times
from helpers.synth.trace import Forward, Trace

TRUTH_VERSION = 1
"""Version of truth.json."""


def describe(trace: Trace, seed: int) -> dict[str, Any]:
    """Return the truth of a simulation as a JSON-safe mapping.

    Keys: ``server`` and ``client`` (the whole description), ``law``, ``seed``; ``levels``, a row per batch size that
    was ever decoded alone; ``phases``, a row per load with the times of ramp, steady and drain; ``client_results``, a
    row per load; ``ranks``; ``events``; ``duration_s``.
    """
    server = trace.server
    return {
        "truth_version": TRUTH_VERSION, "seed": seed, "server": server.as_dict(),
        "client": trace.loop.client.as_dict(), "law": server.law.as_dict(), "duration_s": trace.end_s,
        "levels": level_truth(trace), "phases": [phase_times(load) for load in trace.loop.loads],
        "client_results": [
            {"name": load.name, "running_req": load.running_req, "is_warmup": load.is_warmup,
             "server_life": load.server_life, **client_results(load)}
            for load in trace.loop.loads
        ],
        "ranks": _rank_truth(trace.forwards), "events": trace.events,
    }


def level_truth(trace: Trace) -> list[dict[str, Any]]:
    """Return the true step of every batch size, over forwards in which every rank only decoded.

    ``step_s`` is law x deviation without noise (the mean over the contexts that occurred), ``realised_step_s`` what
    the simulated clock showed; they differ by the noise of n_steps steps. ``running_req`` is what set the step: the
    largest rank in lockstep, all micro-batches under PP, requests that overshoot included.
    """
    server = trace.server
    sums: dict[tuple[int, int, bool], list[float]] = {}
    counted_s = -1.0
    for f in trace.forwards:
        if not (f.is_pure and f.is_ready and f.step_req) or f.start_s == counted_s:
            continue
        counted_s = f.start_s  # one row per rank shares a forward
        req = f.total_req if server.pp_size > 1 else f.step_req
        entry = sums.setdefault((f.life, req, f.is_identical), [0.0] * 6)
        length_s = f.end_s - f.start_s
        entry[0] += 1
        entry[1] += f.expected_s
        entry[2] += length_s / f.launch_share
        entry[3] += length_s
        entry[4] += f.context_tok / max(f.batch_req, 1)
        entry[5] += f.decoded_tok / max(f.batch_req, 1)
    levels = []
    for (life, req, is_identical), (n, expected_s, realised_s, total_s, context_tok, tokens) in sorted(sums.items()):
        levels.append({
            "server_life": life, "running_req": req, "is_identical": is_identical, "n_steps": int(n),
            "step_s": expected_s / n, "realised_step_s": realised_s / n, "decode_s": total_s,
            "context_tok": context_tok / n, "accept_len": tokens / n if server.speculation else None,
            "graph": bool(server.cuda_graph and req <= server.captured_batch_sizes[-1]),
        })
    return levels


def _rank_truth(forwards: list[Forward]) -> list[dict[str, Any]]:
    """Return what each rank or micro-batch did."""
    ranks: dict[int, dict[str, Any]] = {}
    for f in forwards:
        rank = ranks.setdefault(f.group, {"group": f.group, "decode_forwards": 0, "prefill_forwards": 0,
                                          "decoded_tok": 0, "prefill_tok": 0})
        rank["decode_forwards"] += f.batch_req > 0
        rank["prefill_forwards"] += f.new_tok > 0
        rank["decoded_tok"] += f.decoded_tok
        rank["prefill_tok"] += f.new_tok
    return [ranks[group] for group in sorted(ranks)]
