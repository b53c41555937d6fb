"""What LightLLM prints: one line per finished request, and a periodic triple of token rates."""

from __future__ import annotations

import polars as pl

from helpers.ingest.dialect import HOLE, Dialect, Family, Key, Reading

REQUEST = Family(
    engine="lightllm",
    kind="request",
    literal="lightllm_req_id:",
    keys={
        "prompt_token_num": Key("new_tok"),
        "prompt_cache_len": Key("cached_tok"),
        "gpu_prompt_cache_len": Key("cached_tok"),
        "mtp_avg_token_per_step": Key("accept_len", "rate"),
        "out_token_counter": Key("out_tok"),
    },
    required=(
        ("first_token_cost",), ("total_cost_time",), ("out_token_counter",), ("mean_per_token_cost_time",),
        ("prompt_token_num",),
    ),
    is_key=True,
    units=frozenset(("", " ms")),
    rewrite=((r" ([a-z_]+(?: [a-z]+)*:)", ", ${1}"), (r"ms,([a-z])", "ms, ${1}"), (r"([0-9])ms\b", "${1} ms")),
)

_RATES = ("tokens(prompt+generate)", "prompt tokens", "generate tokens")
_COLUMNS = {"prompt tokens": "prefill_tok_per_s", "generate tokens": "decode_tok_per_s"}

PERIODIC = tuple(
    Family(
        engine="lightllm",
        kind="aux",
        literal=f"Avg {what} throughput:",
        keys={f"Avg {what} throughput": Key(_COLUMNS[what], "rate", " tokens/s")} if what in _COLUMNS else {},
        required=((f"Avg {what} throughput",),),
        head=rf"(?= *{HOLE} tokens/s *$)",
        is_key=True,
        units=frozenset((" tokens/s",)),
    )
    for what in _RATES
)

READS = (
    Reading(
        source="lightllm_req_id: ... first_token_cost: ... mean_per_token_cost_time",
        kind="request",
        versions="2024 to 2026",
        gives={
            "span_s": "total_cost_time - first_token_cost: from the first token to the last, as the HTTP server saw it",
            "out_tok": "tokens in that span: out_token_counter less the first, which the prefill made",
            "decode_tok_per_s": "out_tok / span_s of this request alone",
            "new_tok": "prompt tokens, cached ones included (cached_tok of them came from the prefix cache)",
            "accept_len": "mtp_avg_token_per_step, where printed: tokens per verify step of this request",
            "n_steps": "steps in the span: out_tok, over accept_len under speculation",
        },
        traps=(
            "mean_per_token_cost_time divides by all tokens, the first included: too low by (n - 1) / n; kept in extra",
            "health probes print the same line, with a negative request id and one token",
            "prefills of other requests inside the span cannot be seen",
        ),
    ),
    Reading(
        source="Avg generate tokens throughput",
        kind="aux",
        versions="2023 to 2025, with log statistics on",
        gives={"decode_tok_per_s": "tokens generated per second since the triple before; no count of requests with it"},
        traps=("no running requests are printed, so no law rests on it",),
    ),
)


def finish(samples: pl.DataFrame) -> pl.DataFrame:
    """Turn the two times since arrival into the decode span, and leave the first token to the prefill."""
    mine = (pl.col("engine") == "lightllm") & (pl.col("kind") == "request")
    first, total = (
        pl.col("extra").str.json_path_match(f"$['{name} (ms)']").cast(pl.Float64, strict=False) / 1000
        for name in ("first_token_cost", "total_cost_time")
    )
    span_s = total - first
    out_tok = (pl.col("out_tok") - 1).clip(0)
    return samples.with_columns(
        span_s=pl.when(mine).then(pl.when(span_s >= 0).then(span_s)).otherwise("span_s"),
        out_tok=pl.when(mine).then(out_tok).otherwise("out_tok"),
        n_steps=pl.when(mine).then(out_tok / pl.col("accept_len").fill_null(1.0).clip(1.0)).otherwise("n_steps"),
        decode_tok_per_s=pl.when(mine).then(pl.when((span_s > 0) & (out_tok > 0)).then(out_tok / span_s))
        .otherwise("decode_tok_per_s"),
    )


DIALECT = Dialect("lightllm", (REQUEST, *PERIODIC), (), READS, finish)
