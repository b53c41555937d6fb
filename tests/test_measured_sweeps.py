"""How far off are the laws on sweeps that others measured? Left-out errors over public client-side sweeps.

Step time stands in as the client's TPOT (mean, prefill interference included), running_req as its concurrency. A series
is one model on one system, engine, precision, workload, parallelism and configuration, one point per concurrency
(median of repeats), aggregated serving; the bars are those of design.md 9. Alone, with the table:
pytest -s tests/test_measured_sweeps.py
"""

import numpy as np
import pandas as pd
import pytest

from helpers import laws
from law_tables import levels_table

WORKLOAD = ["model_path", "system", "backend", "precision", "isl", "osl", "config_id"]
PARALLELISM = ["tp_size", "pp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size"]
WORKERS = [f"{role}_{name}" for role in ("prefill", "decode") for name in ("num_workers", *PARALLELISM)]
DENSE = ("Llama-3.1-70B", "Llama-3.1-8B", "Qwen3-32B")
MIN_LEVELS = 5


def sweeps(path, mode):
    """(is dense, concurrency, TPOT [s]) of every series with enough levels."""
    points = pd.read_csv(path)
    for name in ("silicon_concurrency", "config_id"):
        points[name] = points["silicon_data_source"].str.extract(rf"{name}=([^;]+)")
    points["silicon_concurrency"] = points["silicon_concurrency"].astype(float)
    points = points[(points["mode"] == mode) & points["silicon_concurrency"].gt(0) & points["silicon_tpot_ms"].gt(0)]
    keys = WORKLOAD + PARALLELISM + (WORKERS if mode == "disagg" else [])
    found = []
    for key, series in points.groupby(keys, dropna=False):
        tpot_s = series.groupby("silicon_concurrency")["silicon_tpot_ms"].median() / 1e3
        if len(tpot_s) >= MIN_LEVELS:
            is_dense = any(name in key[0] for name in DENSE)
            found.append((is_dense, tpot_s.index.to_numpy(float), tpot_s.to_numpy(float)))
    return found


def left_out_errors(series):
    """One row per series: left-out errors of the straight line, the selected law and the prediction rule."""
    rows = []
    for is_dense, concurrency, tpot_s in series:
        fits = laws.fit_laws(levels_table(concurrency, tpot_s))
        line = next(fit for fit in fits.candidates if fit.law == "linear")
        rows.append({"is_dense": is_dense, "n_levels": len(tpot_s), "selected": fits.selected.law} | {
            f"{name}_{where}": value
            for name, fit in (("line", line), ("selected", fits.selected), ("prediction", fits.prediction))
            for where, value in (("inside", fit.loo_error_frac), ("top", fit.loo_error_top_frac))
        })
    return pd.DataFrame(rows)


def show(title, errors):
    """Print median errors in per cent, all series, dense and mixture-of-experts apart."""
    print(f"\n{title}: {len(errors)} series, {errors['n_levels'].sum()} points")
    print(f"{'median left-out error [%]':28}" + "".join(f"{name:>22}" for name in ("line", "selected", "prediction")))
    for name, part in (("all", errors), ("dense", errors[errors.is_dense]), ("MoE", errors[~errors.is_dense])):
        for where in ("inside", "top"):
            medians = [100 * part[f"{law}_{where}"].median() for law in ("line", "selected", "prediction")]
            print(f"{name:8}{len(part):4} {where:15}" + "".join(f"{value:22.1f}" for value in medians))
    print("selected:", errors["selected"].value_counts().to_dict())


@pytest.mark.slow
def test_left_out_error_on_measured_sweeps(shared):
    path = shared / "reference" / "measured_sweeps.csv"
    errors = left_out_errors(sweeps(path, "agg"))
    show("aggregated serving", errors)
    assert len(errors) > 400
    median = errors.drop(columns="selected").median()
    # The straight line, as others scored it: 4.2 % inside, 15 % at the top level.
    assert 0.035 < median["line_inside"] < 0.05 and 0.12 < median["line_top"] < 0.17
    # Bars: inside 2.5 %, top 7 % for the selected law; top 5 % for the prediction of an unseen level.
    assert median["selected_inside"] <= 0.025 and median["selected_top"] <= 0.07
    assert median["prediction_inside"] <= 0.025 and median["prediction_top"] <= 0.05
    assert np.isfinite(errors["prediction_top"]).all()


@pytest.mark.slow
def test_prediction_beats_the_line_where_it_was_not_tuned(shared):
    """Disaggregated series took no part in choosing the concave law: erratic ones, where no law is good (17 %).

    The prediction still misses the top level by less than half of what the line does, and no level by more.
    """
    errors = left_out_errors(sweeps(shared / "reference" / "measured_sweeps.csv", "disagg"))
    show("disaggregated serving", errors)
    median = errors.drop(columns="selected").median()
    assert len(errors) > 30
    assert median["prediction_top"] < 0.5 * median["line_top"]
    assert median["prediction_inside"] < median["line_inside"]
