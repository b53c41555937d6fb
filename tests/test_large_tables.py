"""What a large log costs after reading: the bootstrap that skips most picks, and how much memory the labels take."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from helpers import segment
from helpers.diagnose.of_log import _data_rank
from helpers.ingest import read_log
from helpers.levels import bootstrap
from helpers.levels.bootstrap import bootstrap_interval
from helpers.segment.spans import first_holding
from helpers.synth import presets

RNG = np.random.default_rng(3)

N = bootstrap.FEW_VALUES + 1

VALUES = {
    "noise": lambda n: RNG.normal(10e-3, 1e-3, n),
    "printed": lambda n: np.round(RNG.normal(10e-3, 1e-3, n), 4),
    "one value": lambda n: np.full(n, 10e-3),
    "drift": lambda n: np.linspace(10e-3, 20e-3, n),
    "two modes": lambda n: RNG.choice([10e-3, 20e-3], n),
}


def all_picks(step_s: np.ndarray, confidence: float) -> tuple[float, float]:
    """Take every pick of every resample and its median: the definition of the moving-block bootstrap of a median."""
    n, length = len(step_s), bootstrap.BOOTSTRAP_BLOCK
    rng = np.random.default_rng(n)
    draws = []
    at_once = bootstrap.MAX_PICKS // n
    for first in range(0, bootstrap.RESAMPLES, at_once):
        size = min(at_once, bootstrap.RESAMPLES - first), -(-n // length)
        for starts in rng.integers(0, n - length + 1, size=size):
            draws.append(np.median(step_s[[start + k for start in starts for k in range(length)][:n]]))
    tail, centre = (1 - confidence) / 2, np.median(step_s)
    widen = stats.t.ppf(1 - tail, n / length - 1) / stats.norm.ppf(1 - tail)
    low, high = np.quantile(draws, [tail, 1 - tail])
    return max(0.0, centre + widen * (low - centre)), centre + widen * (high - centre)


@pytest.mark.parametrize("window_sds", [bootstrap.WINDOW_SDS, 0.1], ids=["usual window", "window that is missed"])
@pytest.mark.parametrize("kind", VALUES)
def test_the_counted_medians_are_those_of_all_picks(kind, window_sds, monkeypatch):
    monkeypatch.setattr(bootstrap, "WINDOW_SDS", window_sds)
    monkeypatch.setattr(bootstrap, "RESAMPLES", 40)
    for n in (N, N + 1, N + 2):  # the last block of picks is cut to each length, and n is odd and even
        step_s = VALUES[kind](n)
        assert bootstrap_interval(step_s * 40, np.full(n, 40.0), True, 0.95) == all_picks(step_s * 40 / 40, 0.95)


def test_the_first_reason_that_holds_is_named():
    masks = [pd.Series([True, False, False, False]), pd.Series([True, pd.NA, True, False], dtype="boolean")]
    named = first_holding([(masks[0], "first"), (masks[1], "second")], "none")
    assert named.tolist() == ["first", "none", "second", "none"] and named.dtype == "str"


def test_a_data_rank_is_read_once_per_tag():
    rank = pd.Series(["DP0 TP0", None, "TP1", "TP2 DP13", ""], index=[3, 5, 7, 9, 11], dtype="str")
    found = _data_rank(rank)
    assert found.index.equals(rank.index) and found.dtype == "str"
    assert found.fillna("-").tolist() == ["DP0", "-", "-", "DP13", "-"]


MOST_BYTES_PER_RECORD = 430
"""Peak of labelling beside the records themselves [bytes]: 381 measured; with all columns carried along it was 912."""


def test_labels_of_a_large_log_take_little_memory(tmp_path):
    path = tmp_path / "server.log"
    path.write_text("\n".join(presets.get("one_line_per_step").simulate().lines()) + "\n", encoding="utf-8")
    log = read_log(path)
    later_s = log.samples["t_s"].max() + 60
    samples = pd.concat([log.samples.assign(t_s=log.samples["t_s"] + k * later_s) for k in range(4)], ignore_index=True)
    tracemalloc.start()
    try:
        intervals = segment.label_intervals(samples, log.events, facts=log.facts)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(intervals) > 20_000
    assert peak_bytes < MOST_BYTES_PER_RECORD * len(samples)
