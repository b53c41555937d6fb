"""What KTransformers prints: one line per finished request, and the balance server's time of each forward."""

from __future__ import annotations

import polars as pl

from helpers.ingest.dialect import HOLE, Dialect, Family, Key, Reading

_N = r"([0-9.e+-]+|nan|inf)"

REQUEST = Family(
    engine="ktransformers",
    kind="request",
    literal="Performance(T/s):",
    keys={
        "prefill rate": Key("prefill_tok_per_s", "rate"),
        "decode rate": Key("decode_tok_per_s", "rate"),
        "decode_s": Key("span_s", "rate"),
    },
    required=(("prefill rate",), ("decode rate",), ("prompt_s",), ("decode_s",)),
    begins=("prefill rate: ",),
    rewrite=(
        (
            rf"^ *prefill {_N}, decode {_N}\. Time\(s\): tokenize {_N}, prefill {_N}, decode {_N}",
            "prefill rate: ${1}, decode rate: ${2}, tokenize_s: ${3}, prompt_s: ${4}, decode_s: ${5}",
        ),
    ),
)

FORWARD = Family(
    engine="ktransformers",
    kind="aux",
    literal="Model execution time (GPU):",
    keys={"forward_s": Key("span_s", "rate")},
    required=(("forward_s",),),
    head=rf"(?=forward_s: {HOLE}(?:, forwards per second: {HOLE})?$)",
    begins=("forward_s: ",),
    rewrite=(
        (r"^ *([0-9.]+) ms", "forward_s: ${1}e-3"),
        (r", ([0-9.]+) tokens/s", ", forwards per second: ${1}"),
    ),
)

READS = (
    Reading(
        source="Performance(T/s)",
        kind="request",
        versions="0.2 and later, both the local chat backend and the balance server",
        gives={
            "decode_tok_per_s": "decode steps of the request over their time: its own rate, single stream",
            "span_s": "time of its decode steps (Time(s): decode)",
            "out_tok": "rate x time, as the line prints no count (rounding of the printed rate is in it)",
            "new_tok": "prompt tokens, prefill rate x prefill time, rounded",
            "prompt_s": "in extra: time of its prefill",
        },
        traps=(
            "one stream: with several at once the balance server's timers overlap; their sum is not its rate",
            "the first decode of a process holds graph capture and compilation",
        ),
    ),
    Reading(
        source="Model execution time (GPU)",
        kind="aux",
        versions="balance server of 2025",
        gives={"span_s": "device time of one forward pass of the batch, prefill or decode: it does not say which"},
        traps=(
            "its `tokens/s` is 1000 / ms, forwards per second: it counts one token per forward whatever the batch",
            "no batch size is printed, so no law rests on it",
        ),
    ),
)


def finish(samples: pl.DataFrame) -> pl.DataFrame:
    """Add the token counts that the line gives as rate and time."""
    mine = (pl.col("engine") == "ktransformers") & (pl.col("kind") == "request")
    prompt_s = pl.col("extra").str.json_path_match("$.prompt_s").cast(pl.Float64, strict=False)
    new_tok = pl.col("prefill_tok_per_s") * prompt_s
    out_tok = pl.col("decode_tok_per_s") * pl.col("span_s")
    return samples.with_columns(
        out_tok=pl.when(mine).then(pl.when(out_tok.is_finite()).then(out_tok)).otherwise("out_tok"),
        new_tok=pl.when(mine & new_tok.is_finite()).then(new_tok.round().cast(pl.Int64, strict=False))
        .otherwise("new_tok"),
    )


DIALECT = Dialect("ktransformers", (REQUEST, FORWARD), (), READS, finish)
