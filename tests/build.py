"""Build SAMPLES tables by hand: one tuple per line, in file order."""

import pandas as pd

from helpers import schema


def decode(n, rate, *, t=None, used=None, queue=0, rank=None, accept=None, graph=True, life=0):
    """Return a SGLang decode record: running_req, rate [tok/s], stamp [s], used_tok, ..."""
    return dict(kind="decode", engine="sglang", running_req=n, decode_tok_per_s=rate, t_s=t, used_tok=used,
                queue_req=queue, rank=rank, accept_len=accept, graph=graph, server_life=life)


def prefill(new, *, t=None, running=0, cached=0, queue=0, rank=None, life=0):
    """Return a SGLang prefill record: tokens computed, stamp [s], requests decoding, tokens from the cache."""
    return dict(kind="prefill", engine="sglang", new_tok=new, cached_tok=cached, running_req=running, t_s=t,
                queue_req=queue, rank=rank, server_life=life)


def window(n, rate, *, t, prompt=0.0, waiting=0, kv=None, accept=None, rank="DP0", life=0):
    """Return a vLLM periodic record: Running, rate [tok/s], stamp [s], prompt rate [tok/s], KV usage [1]."""
    return dict(kind="stats", engine="vllm", running_req=n, decode_tok_per_s=rate, t_s=t, prefill_tok_per_s=prompt,
                queue_req=waiting, kv_used_frac=kv, accept_len=accept, rank=rank, server_life=life)


def samples(*records):
    """Return the records as a SAMPLES table, one per line of one file."""
    table = pd.DataFrame([{"file": "hand.log", "line_no": i + 1, **record} for i, record in enumerate(records)])
    return schema.conform(table, schema.SAMPLES)


def no_events():
    """Return an empty EVENTS table."""
    return schema.EVENTS.empty()
