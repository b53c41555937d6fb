"""Do the 95 % intervals of the law cover the truth? 300 simulated sweeps per scenario, from log records to law.

Truth is the simulator's law; every level deviates from it by a fixed 2 % (lack of fit), as real levels do. The naive
fit (least squares over all printed lines) of the same logs is judged beside it. Deterministic: fixed seeds.
Ranges: 92 to 98 % is what 300 runs of a true 95 % interval give within 2.4 standard errors.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd
import pytest

from helpers import laws, levels, schema, segment, synth
from helpers.synth import Client, Lengths, Noise, Server, StepLaw

RUNS, BATCH = 300, 25
LAW = StepLaw(intercept_s=0.020, slope_s_per_req=0.0004)  # the healthy server of physics.md 6.2 C: 20 + 0.4 N ms


@dataclass(frozen=True)
class Scenario:
    name: str
    first_seed: int
    server: Server
    client: Client
    bias_limit_frac: float
    naive_bias_frac: float  # at least


def scenario(name, first_seed, noise, prefill_fixed_s, bias_limit_frac, naive_bias_frac, **client):
    server = Server(law=LAW, level_deviation_frac=0.02, noise=noise, prefill_fixed_s=prefill_fixed_s,
                    prefill_s_per_tok=2e-5)
    return Scenario(name, first_seed, server, Client(**client), bias_limit_frac, naive_bias_frac)


SCENARIOS = [
    scenario("clean", 0, Noise(sigma_frac=0.02, block_steps=40), 0.005, 0.01, 0.0, levels_req=(1, 4, 16, 32, 64)),
    scenario("autocorrelated", 1000, Noise(sigma_frac=0.03, ar1=0.7, block_steps=40), 0.005, 0.01, 0.0,
             levels_req=(1, 4, 16, 32, 64)),
    # physics.md 6.2: prefill inflates naive slopes of healthy servers by 12 to 90 %
    scenario("prefill", 2000, Noise(sigma_frac=0.02, ar1=0.5, block_steps=40), 0.05, 0.03, 0.12,
             levels_req=(1, 2, 4, 8, 16, 32), prompts_per_req=3.0, prompt=Lengths(mean_tok=1024),
             output=Lengths(kind="uniform", mean_tok=512, spread_frac=0.5)),
]


def study(scenario):
    """Return one row per run: fitted and naive parameters, whether the intervals cover, why refused."""
    rows = []
    for first in range(0, RUNS, BATCH):
        logs = [synth.simulate(scenario.server, scenario.client, seed=scenario.first_seed + first + i).samples()
                for i in range(BATCH)]
        # every run becomes one server life of a long log: the stages never look across lives
        table = pd.concat([log.assign(server_life=i) for i, log in enumerate(logs)], ignore_index=True)
        facts = [{"decode_log_interval": 40, "page_size": 1}] * BATCH
        intervals = segment.label_intervals(table, schema.EVENTS.empty(), facts=facts)
        found = levels.summarise_levels(intervals)
        for i in range(BATCH):
            rows.append(judge(intervals[intervals["server_life"].eq(i)], found[found["server_life"].eq(i)]))
    return pd.DataFrame(rows)


def judge(intervals, found):
    fit = laws.fit_laws(found).linear
    lines = intervals[intervals["decode_tok_per_s"].gt(0)]
    naive_b, naive_a = np.polyfit(lines["running_req_printed"].astype(float),
                                  (lines["running_req_printed"] / lines["decode_tok_per_s"]).astype(float), 1)
    row = {"naive_a": naive_a, "naive_b": naive_b, "refused": fit.refused or ""}
    if not fit.refused:
        a, b = fit["intercept_s"], fit["slope_s_per_req"]
        row |= {"a": a.value, "b": b.value, "covers_a": a.lo <= LAW.intercept_s <= a.hi,
                "covers_b": b.lo <= LAW.slope_s_per_req <= b.hi}
    return row


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s.name)
def test_intervals_cover_and_slopes_are_unbiased(scenario):
    runs = study(scenario)
    fitted = runs[runs["refused"].eq("")]
    cover_a, cover_b = fitted["covers_a"].mean(), fitted["covers_b"].mean()
    bias_b = fitted["b"].mean() / LAW.slope_s_per_req - 1
    naive_bias_b = runs["naive_b"].mean() / LAW.slope_s_per_req - 1
    print(f"\n{scenario.name}: {len(runs)} runs, {len(runs) - len(fitted)} refused; 95 % intervals cover intercept "
          f"{100 * cover_a:.1f} %, slope {100 * cover_b:.1f} %; slope bias {100 * bias_b:+.2f} %, "
          f"naive slope bias {100 * naive_bias_b:+.1f} %")
    assert len(fitted) >= 0.9 * RUNS
    assert 0.92 <= cover_a <= 0.98
    assert 0.92 <= cover_b <= 0.98
    assert abs(bias_b) < scenario.bias_limit_frac
    assert naive_bias_b >= scenario.naive_bias_frac
