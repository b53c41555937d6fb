"""What TGI (text-generation-inference) prints: one span per finished request, with durations as Rust writes them."""

from __future__ import annotations

import polars as pl

from helpers.ingest.dialect import HOLE, Dialect, EventRule, Family, Reading

_TIMES = ("total_time", "validation_time", "queue_time", "inference_time", "time_per_token")

REQUEST = Family(
    engine="tgi",
    kind="request",
    literal='total_time="',
    keys={},  # none of the times is a decode time: the prefill is in all of them
    required=tuple((f"{name}_s",) for name in _TIMES),
    head=rf"(?=total_time_s: {HOLE}, )",
    begins=("total_time_s: ",),
    # durations carry their unit (ns, µs, ms, s): turned into seconds by an exponent, digits as printed
    rewrite=(
        (r'"? seed="[^"]*"\}: text_generation_router(?s:.*)$', '"'),
        (r"^([0-9])", "total_time_s: ${1}"),
        (r'" (\w+)="', ', ${1}_s: "'),
        (r"([0-9])ns\b", "${1}e-9"),
        (r"([0-9])(?:µ|μ|u)s", "${1}e-6"),
        (r"([0-9])ms\b", "${1}e-3"),
        (r"([0-9])s\b", "${1}"),
        ('"', ""),
    ),
)

EVENTS = (
    EventRule("ready", ": Connected", r"text_generation_router\S*: \S*: Connected$"),
    EventRule(
        "args", "text_generation_launcher: Args {", r"launcher: Args \{(?: *model_id: \"(?P<model_path>[^\"]*)\")?"
    ),
    EventRule("weights_loaded", "Shard ready in", r"Shard ready in (?P<elapsed_s>[\d.]+)s"),
    EventRule("kv_allocated", "Setting max batch total tokens to", r"total tokens to (?P<tokens>\d+)"),
    EventRule(
        "graphs_captured", "Cuda Graphs are enabled for sizes",
        r"Cuda Graphs are enabled for sizes \[(?P<batch_sizes>[\d, ]+)\]",
    ),
)

READS = (
    Reading(
        source='total_time="..." inference_time="..." time_per_token="..."',
        kind="request",
        versions="0.9 to 3.x (text form of the log; with --json-output the spans are not read)",
        gives={
            "out_tok": "generated tokens, inference_time / time_per_token (the log prints no count)",
            "inference_time_s": "in extra: from leaving the queue to the last token, its own prefill included",
            "time_per_token_s": "in extra: inference_time / generated tokens, so an upper bound of the mean step",
        },
        traps=(
            "no decode time is printed: span_s stays empty and no law is fitted; scrape tgi_batch_* metrics for that",
            "while a request decodes, prefills of other requests stop it; the line cannot tell",
            "stamps are UTC and mark the end of the request",
        ),
    ),
)


def finish(samples: pl.DataFrame) -> pl.DataFrame:
    """Add the number of generated tokens, which TGI leaves to division."""
    inference_s, per_token_s = (
        pl.col("extra").str.json_path_match(f"$.{name}").cast(pl.Float64, strict=False)
        for name in ("inference_time_s", "time_per_token_s")
    )
    # the quotient is exact but for the whole nanoseconds that both are printed in
    out_tok = pl.when((inference_s >= 0) & (per_token_s > 0)).then((inference_s / per_token_s).round())
    mine = (pl.col("engine") == "tgi") & out_tok.is_finite()
    return samples.with_columns(out_tok=pl.when(mine).then(out_tok).otherwise("out_tok"))


DIALECT = Dialect("tgi", (REQUEST,), EVENTS, READS, finish)
