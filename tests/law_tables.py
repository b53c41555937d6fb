"""LEVELS and INTERVALS tables for the tests of laws: from numbers, or drawn from a server of known truth."""

import numpy as np
import pandas as pd

from helpers import schema


def levels_table(running_req, step_s, **columns):
    """A LEVELS table of fitted levels measured well; any column can be replaced."""
    running_req, step_s = np.asarray(running_req, float), np.asarray(step_s, float)
    table = {
        "server_life": 0, "rank_group": "all", "population": 0, "running_req": running_req,
        "running_req_total": running_req, "n_clean": 12, "clean_s": 200.0, "step_s": step_s,
        "decode_tok_per_s": running_req / step_s, "method": "median_of_blocks", "cv_frac": 0.02, "is_fitted": True,
        "n_rejected": "{}",
    }
    return schema.conform(pd.DataFrame(table | columns), schema.LEVELS)


def typed_table(running_req, tok_per_s, half_digit_tok_per_s):
    """A LEVELS table as read from a hand-typed CSV: rates known to half a unit of their last digit."""
    running_req, rate, half = (np.asarray(v, float) for v in (running_req, tok_per_s, half_digit_tok_per_s))
    return levels_table(
        running_req, running_req / rate, step_s_lo=running_req / (rate + half), step_s_hi=running_req / (rate - half),
        method="table", n_clean=1, clean_s=np.nan, cv_frac=np.nan, running_req_total=np.nan,
    )


def noisy_levels(rng, law, running_req, noise_frac):
    """Levels of a true law, each off by its own relative deviation."""
    running_req = np.asarray(running_req, float)
    return levels_table(running_req, law(running_req) * np.exp(noise_frac * rng.standard_normal(len(running_req))))


def intervals_table(
    rng, running_req, *, intercept_s, slope_s_per_req, context_s_per_tok=0.0, prefill_s_per_tok=0.0,
    prefill_tok=None, context_tok=(300, 800), engine="sglang", ticks=40, level_frac=0.02, tick_frac=0.02,
):
    """INTERVALS of a true line with level deviations and autocorrelated ticks.

    SGLang: 40 steps an interval, of any length. vLLM: windows of 10 s, holding as many steps as fit.
    prefill_tok(rng, N) draws the prompt tokens of one interval; context_tok is the range each request grows through.
    """
    rows, t_s = [], 0.0
    for n in running_req:
        deviation, noise = 1 + level_frac * rng.standard_normal(), 0.0
        for tick in range(ticks):
            noise = 0.6 * noise + 0.8 * tick_frac * rng.standard_normal()
            context = context_tok[0] + (context_tok[1] - context_tok[0]) * (tick % 10) / 10
            decode_s = (intercept_s + slope_s_per_req * n + context_s_per_tok * n * context) * deviation * (1 + noise)
            prompt = float(prefill_tok(rng, n)) if prefill_tok else 0.0
            steps = 40.0 if engine == "sglang" else (10 - prefill_s_per_tok * prompt) / decode_s
            interval_s = steps * decode_s + prefill_s_per_tok * prompt
            t_s += interval_s
            rows.append({
                "file": "server.log", "line_no": len(rows) + 1, "t_s": t_s, "engine": engine, "server_life": 0,
                "rank_group": "all", "running_req_printed": int(n), "running_req": float(n),
                "running_req_total": float(n), "context_tok": context, "decode_tok_per_s": n * steps / interval_s,
                "n_steps": steps, "interval_s": interval_s, "idle_s": 0.0, "step_s": interval_s / steps,
                "prefill_tok": prompt, "episode": 0, "label": "mixed" if prompt else "steady", "clean": prompt == 0,
                "why": "drawn",
            })
    return schema.conform(pd.DataFrame(rows), schema.INTERVALS)
