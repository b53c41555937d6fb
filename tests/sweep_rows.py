"""Public sweeps as inputs of the a-priori prediction: which rows, which model, which ranks.

The table holds client-side means (TPOT in ms) against concurrency. Left out, each with its reason (`in_scope`):
nothing here looks at how well a prediction does.
"""

from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd

from helpers.physics.model.formats import FORMATS, KV_FORMATS
from helpers.physics.reading.quantisation import LEVER_ROLES
from helpers.physics.steps.demand import Parallel

NODE_RANKS = 8
HARDWARE = {
    "h100_sxm": "H100 SXM 80GB", "h200_sxm": "H200 SXM 141GB", "b200_sxm": "B200 SXM (HGX)",
    "b300_sxm": "B300 SXM (HGX)", "gb200": "GB200 (per GPU)",
}

MAY_SPECULATE = "DeepSeek-R1|DeepSeek-V3|Qwen3.5|GLM-5"
"""Models whose checkpoints bring draft layers, and which the same public runs serve with and without them."""


@dataclass(frozen=True)
class Served:
    """The checkpoint behind a row: a catalogue name, and formats where the catalogue has another precision."""

    name: str
    formats: dict = field(default_factory=dict)  # role -> format
    kv: str = ""

    def of(self, spec):
        """Return the model with these formats."""
        return replace(
            spec, formats=dict(spec.formats) | {role: FORMATS[name] for role, name in self.formats.items()},
            kv=KV_FORMATS[self.kv] if self.kv else spec.kv,
        )


def _all(name):
    return dict.fromkeys(LEVER_ROLES, name)


_EXPERTS_ONLY = {**_all("bf16"), "routed_experts": "nvfp4"}  # of vendors' NVFP4 checkpoints of these models
SERVED = {
    # (part of model_path, precision; bf16 where none is printed): checkpoint
    ("Llama-3.1-70B", "fp8"): Served("Llama-3.1-70B-Instruct-FP8"),
    ("Llama-3.1-70B", "fp4"): Served("Meta-Llama-3.1-70B", _all("nvfp4"), "fp8"),
    ("Llama-3.1-8B", "bf16"): Served("Meta-Llama-3.1-8B"),
    ("Llama-3.1-8B", "fp8"): Served("Llama-3.1-8B-Instruct-FP8"),
    ("Qwen3-32B", "bf16"): Served("Qwen3-32B"),
    ("Qwen3-32B", "fp8"): Served("Qwen3-32B", _all("fp8")),
    ("Qwen3-32B", "fp4"): Served("Qwen3-32B-NVFP4"),
    ("Qwen3-235B", "fp8"): Served("Qwen3-235B-A22B-FP8"),
    ("DeepSeek", "fp8"): Served("DeepSeek-V3"),
    ("DeepSeek", "fp4"): Served("DeepSeek-R1-NVFP4"),
    ("Kimi-K2.5", "int4"): Served("Kimi-K2.5"),
    ("Kimi-K2.5", "fp4"): Served("Kimi-K2.5", _EXPERTS_ONLY, "fp8"),
    ("MiniMax-M2.5", "fp8"): Served("MiniMax-M2.5"),
    ("MiniMax-M2.5", "fp4"): Served("MiniMax-M2.5", _EXPERTS_ONLY, "fp8"),
    ("Qwen3.5-397B", "bf16"): Served("Qwen3.5-397B-A17B"),
    ("Qwen3.5-397B", "fp8"): Served("Qwen3.5-397B-A17B", _all("fp8_block128")),
    ("Qwen3.5-397B", "fp4"): Served("Qwen3.5-397B-A17B", _EXPERTS_ONLY),
    ("gpt-oss-120b", "fp4"): Served("gpt-oss-120b"),
    ("gpt-oss-120b", "fp8"): Served("gpt-oss-120b"),  # there is one checkpoint; the word is for its cache
    ("GLM-5", "fp8"): Served("GLM-5-FP8"),
    ("GLM-5", "fp4"): Served("GLM-5", _EXPERTS_ONLY),
}


def model_of(path):
    """Return the model of a row, whatever its precision; None where it is not known."""
    return next((model for model, _ in SERVED if model in path), None)


def parallel_of(row):
    """Return the ranks of a row; None where the columns do not say.

    Two conventions are in the table, as rows with the same measurement show: ranks of the node as they are
    (tp 8, 1 x 8 experts), and the degrees of tensor and expert parallelism multiplied (tp 64, 8 x 8, on the same
    eight). Ranks with tp and dp above 1 fit both and are not used. Without a column for data-parallel attention it
    follows from the ranks that the experts span.
    """
    tp, dp, moe_tp, ep = row.tp_size, row.attention_dp_size, row.moe_tp_size, row.moe_ep_size
    if tp < 1 or dp == 0 or (row.is_moe and moe_tp * ep < 1) or (tp > 1 and dp > 1):
        return None
    if not row.is_moe:
        return Parallel(tp=int(tp))
    is_multiplied = row.collection != "gap" and moe_tp == ep > 1
    n_ranks = ep if is_multiplied else moe_tp * ep
    dp = n_ranks / tp if pd.isna(dp) else n_ranks if dp > 1 else 1
    if n_ranks > NODE_RANKS or dp < 1:
        return None
    return Parallel(tp=int(n_ranks), dp=int(dp), ep=int(ep), dp_attention=dp > 1)


def read(path):
    """Return the aggregated rows with concurrency, time per output token [s] and the source of the measurement."""
    rows = pd.read_csv(path)
    rows = rows[rows["mode"] == "agg"].reset_index(drop=True)
    source = rows["silicon_data_source"]
    rows["concurrency_req"] = source.str.extract(r"silicon_concurrency=([^;]+)")[0].astype(float)
    rows["tpot_s"] = rows["silicon_tpot_ms"] / 1e3
    rows["collection"] = source.str.extract(r"^(db-dump|source_file=/|source_file)")[0].map(
        {"db-dump": "plain", "source_file=/": "gap", "source_file": "mixed"})
    rows["precision"] = rows["precision"].fillna("bf16")
    rows["is_moe"] = ~rows["model_path"].str.contains("Llama|Qwen3-32B")
    rows["model"] = rows["model_path"].map(model_of)
    rows["checkpoint"] = [SERVED.get((row.model, row.precision)) for row in rows.itertuples()]
    rows["parallel"] = [parallel_of(row) for row in rows.itertuples()]
    return rows


def in_scope(rows):
    """Return the rows to predict, and how many were left out for which reason.

    The ``mixed`` collection holds the ``plain`` one again, and beside it the same servers with speculation, not
    marked as such (DeepSeek-R1 on H200 and TensorRT-LLM at 4 requests: 13.8 ms in both, and 8.6 ms). Of the models
    that may speculate only what is in ``plain`` counts.
    """
    point = ["system", "backend", "isl", "osl", "concurrency_req", "silicon_tpot_ms"]
    measurement = rows.round({"silicon_tpot_ms": 6}).groupby(point, dropna=False).ngroup()
    is_plain = measurement.isin(measurement[rows["collection"] == "plain"])
    may_speculate = rows["model_path"].str.contains(MAY_SPECULATE)
    reasons = {
        "concurrency or time not stated": rows["concurrency_req"].isna() | ~rows["tpot_s"].gt(0),
        "speculation cannot be excluded": (rows["collection"] == "mixed") & may_speculate & ~is_plain,
        "ranks not stated, or beyond a node": rows["parallel"].isna(),
        "checkpoint not known": rows["checkpoint"].isna(),
    }
    left_out, keep = {}, pd.Series(True, index=rows.index)
    for reason, is_hit in reasons.items():
        left_out[reason] = int((keep & is_hit).sum())
        keep &= ~is_hit
    again = measurement[keep].duplicated()
    return rows[keep][~again], left_out | {"the same measurement again": int(again.sum())}


def fits(model, hardware, running_req, context_tok):
    """Tell whether one rank's memory holds its weights and the caches of all its requests at their mean length.

    Where it does not, requests wait for a place and the concurrency is not what runs.
    """
    spec, parallel, context = model.spec, model.parallel, np.array([context_tok])
    weights = sum(
        count * part.per_rank(parallel.expert_ranks if part.role == "routed_experts" else parallel.attention_tp)
        * spec.formats[part.role].bytes_per_param for part, count in spec.stack()
    )
    ends = 2 * spec.hidden * spec.vocab * spec.formats["head"].bytes_per_param / parallel.tp
    per_req = sum(layer.count * float(layer.mixer.kv_bytes(context, parallel.attention_tp, spec.kv)[0])
                  for layer in spec.layers if layer.mixer)
    return weights + ends + running_req * per_req <= hardware.mem_bytes
