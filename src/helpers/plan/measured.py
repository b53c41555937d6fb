"""Prompts as the log shows them: how long they are, and how fast they are computed."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pandas as pd

SEQUENCES = {"prefill": "#new-seq", "iteration": "context requests"}
"""Kind of record -> key of its `extra` that counts the requests whose prompts it computes (SGLang, vLLM)."""

TEST_PROMPT_TOK = 16
"""Shorter prompts are those of warm-up and health checks, not of a load [tok]."""

SAME_LENGTH_FRAC = 0.05
"""Prompts that differ by less are of one length: clients draw random text that tokenises to a few tokens more."""

MIN_RATES = 3
"""Fewer rates are not taken for one: the first prefills of a server compile and warm up."""


PROMPT_COLUMNS = ("new_tok", "cached_tok", "out_tok", "extra")


def prompts_of(samples: pd.DataFrame, *, chunk_tok: float | None = None) -> dict[str, float]:
    """Return what the prefill records of a log say about its prompts.

    Parameters
    ----------
    samples : DataFrame, schema SAMPLES
        Of the server lives in question.
    chunk_tok : float, optional
        Most prompt tokens computed at once (``chunked_prefill_size``; vLLM's ``max_num_batched_tokens``) [tok]. A
        record as large as that ends within a prompt, whose request is counted again in the next.

    Returns
    -------
    dict
        ``prompt_tokens`` : length of a prompt, cached tokens included [tok]; the median request, or the mean where
        prompts were cut into chunks. ``prefill_tok_per_s`` : prompt tokens computed per second while nothing else
        ran [tok/s]. Each only where the log tells: vLLM's statistics lines and Prometheus counters do not.
    """
    found = {"prompt_tokens": _prompt_tok(samples, chunk_tok), "prefill_tok_per_s": _rate(samples)}
    return {name: value for name, value in found.items() if np.isfinite(value) and value > 0}


def _prompt_tok(samples: pd.DataFrame, chunk_tok: float | None) -> float:
    """Return the length of a prompt [tok]; NaN where no record tells."""
    for kind, key in SEQUENCES.items():
        records = samples.loc[samples["kind"].eq(kind) & samples["new_tok"].gt(0), list(PROMPT_COLUMNS)]
        # Most records share their text with others: each text is read once.
        places, texts = pd.factorize(records["extra"])
        n_requests = np.array([*(_number(text, key) for text in texts), np.nan])[places]
        records, n_requests = records[n_requests > 0], n_requests[n_requests > 0]
        if records.empty:
            continue
        tok = (records["new_tok"].astype(float) + records["cached_tok"].astype(float).fillna(0.0)).to_numpy()
        counts = n_requests
        budget_tok = records["new_tok"].astype(float) + records["out_tok"].astype(float).fillna(0.0)  # vLLM counts both
        is_cut = budget_tok.ge(chunk_tok or np.inf).to_numpy()
        usual_tok = _weighted_quantile((tok / counts)[~is_cut], counts[~is_cut], 0.5, TEST_PROMPT_TOK)
        # several whole prompts can fill the budget exactly
        is_cut = is_cut & ~((counts > 1) & (np.abs(tok / counts / usual_tok - 1) < SAME_LENGTH_FRAC))
        if is_cut.any():
            n_prompts = counts.sum() - is_cut.sum()
            return float(tok.sum() / n_prompts) if n_prompts >= 1 else np.nan
        return _weighted_quantile(tok / counts, counts, 0.5, TEST_PROMPT_TOK)
    requests = samples[samples["kind"].eq("request") & samples["new_tok"].gt(0)]
    lengths = requests["new_tok"].astype(float).to_numpy()
    return _weighted_quantile(lengths, np.ones(len(lengths)), 0.5, TEST_PROMPT_TOK)


def _rate(samples: pd.DataFrame) -> float:
    """Return prompt tokens per second of prefill [tok/s]; NaN where no record tells.

    SGLang divides by the time since the prefill before, which is what that one took, unless decode or idle time lies
    between. So only a prefill directly behind one of the same size counts, among requests that wait to decode.
    """
    if samples.loc[samples["kind"].eq("prefill"), "rank"].nunique() > 1:
        return np.nan  # ranks compute prompts side by side: none prints the rate of all
    is_prefill, new_tok = samples["kind"].eq("prefill"), samples["new_tok"]
    behind = is_prefill & is_prefill.shift(fill_value=False) & samples["running_req"].gt(0)
    kept = behind & new_tok.eq(new_tok.shift()) & new_tok.ge(TEST_PROMPT_TOK) & samples["prefill_tok_per_s"].gt(0)
    rows = samples.loc[kept, ["prefill_tok_per_s", "new_tok"]]
    if len(rows) >= MIN_RATES:
        rates, tok = (rows[name].astype(float).to_numpy() for name in ("prefill_tok_per_s", "new_tok"))
        return _weighted_quantile(rates, tok, 0.5)
    only = samples["new_tok"].gt(0) & samples["out_tok"].eq(0) & samples["span_s"].gt(0)
    steps = samples[samples["kind"].eq("iteration") & only]
    if len(steps) < MIN_RATES:
        return np.nan
    tok, span_s = (steps[name].astype(float).to_numpy() for name in ("new_tok", "span_s"))
    return _weighted_quantile(tok / span_s, tok, 0.5)


def _weighted_quantile(values: np.ndarray, weights: np.ndarray, share: float, least: float = 0.0) -> float:
    """Return the value below which a share of the weight lies, values under ``least`` left out; NaN without any."""
    kept = values >= least
    values, weights = values[kept], weights[kept]
    if not len(values):
        return np.nan
    order = np.argsort(values, kind="stable")
    at = np.searchsorted(np.cumsum(weights[order]), share * weights.sum())
    return float(values[order][min(at, len(values) - 1)])


def _number(text: Any, key: str) -> float:
    """Return a number of `extra`; NaN where it is not there."""
    if not isinstance(text, str) or key not in text:
        return np.nan
    value = json.loads(text).get(key)
    return float(value) if isinstance(value, int | float) else np.nan
