"""Observations from the intervals and levels: what moves the step at one number of requests, and what interrupts it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import isfinite, nan
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from helpers.diagnose.observations import Observation
from helpers.display import level_key, show
from helpers.schema import INTERVALS, LEVELS, check, kept_rows

FEWEST = 6
"""Clean intervals of a level below which nothing is said about how its step moves."""

PREFILL_BOUND_SPEAKS = 0.10
FEWEST_PREFILLS = 10
"""Prefills behind one another from which their printed rates tell how fast prompts are computed."""

LOADED = ("ramp", "steady", "mixed", "drain")
"""Labels of the time in which requests decode or wait for their first token."""

LEAST_SPREAD = 0.3
"""Spread of the context at one level, relative to its median, that can show what context costs."""

RESET_FRAC = 0.2
"""Fall of the context between two intervals of one level from which another request began."""

SAME_CONTEXT = 0.1
"""Spread of the context up to which a drift in time is none of context."""

MUCH_SLOWER = 0.2
"""A printed rate below this share of the level's clean rate holds idle time, whatever else it holds."""

FEW_PROMPT_TOK = 256
"""Prompt tokens in an interval up to which their prefill is a step or two, and no reason for a slow line [tok]."""

FEW_CLEAN = 3
STEADY_CV = 0.05
"""Scatter of the clean steps up to which a level is steady, whatever single lines say."""

SAME_STEP = 0.02
OTHER_STEP = 0.04
"""Levels within 2 % are one step of a staircase; a straight line through it would differ by more than 4 %."""

Growth = Callable[[float, float], float]
"""(running_req, context_tok) -> relative growth of the bytes of a step per token of context [1/tok]."""


def observe(
    intervals: pd.DataFrame, levels: pd.DataFrame, samples: pd.DataFrame, facts: Mapping[str, Any], lives: list[int],
    growth: Growth | None = None, prefill_s_per_tok: float = nan,
) -> Iterator[Observation]:
    """Yield what the intervals of the given server lives say.

    Parameters
    ----------
    intervals : DataFrame, schema INTERVALS
    levels : DataFrame, schema LEVELS
    samples : DataFrame, schema SAMPLES
        For the speed of prefills.
    facts : mapping
        Of the deployment.
    lives : list of int
        Server lives that the answer rests on.
    growth : callable, optional
        What the bytes of a step grow by with the context, where the model is known. Needs no hardware.
    prefill_s_per_tok : float
        What a prompt token costs good kernels on this hardware [s/tok]; NaN where unknown.
    """
    check(intervals, INTERVALS)
    check(levels, LEVELS)
    of_lives = kept_rows(intervals[list(READ)], intervals["server_life"].isin(lives))
    used = levels[levels["server_life"].isin(lives) & levels["population"].eq(0)]
    clean = of_lives.loc[of_lives["clean"], list(READ_OF_CLEAN)]
    yield from _context(clean, growth)
    yield from _drift(clean)
    del clean
    prefills = kept_rows(samples[["rank", "kind", "prefill_tok_per_s"]], samples["server_life"].isin(lives))
    yield from _prefill(of_lives, used, prefills, prefill_s_per_tok)
    yield from _first_lines(of_lives, used)
    yield from _staircase(used, facts)
    yield from _told_rates(of_lives, facts)


READ = ("server_life", "rank_group", "rank", "line_no", "t_s", "kind", "label", "why", "clean", "running_req",
        "n_steps", "interval_s", "idle_s", "step_s", "context_tok", "prefill_tok", "decode_tok_per_s")
"""Columns of INTERVALS that are read here: every cut of the table would copy the others."""

READ_OF_CLEAN = ("server_life", "rank_group", "rank", "line_no", "t_s", "running_req", "step_s", "context_tok")


def _levels_of(clean: pd.DataFrame) -> Iterator[tuple[float, pd.DataFrame]]:
    """Yield the clean intervals of each level with enough of them, in order of time."""
    known = kept_rows(clean, clean["step_s"].gt(0))
    by_level = known.groupby(["server_life", "rank_group", "running_req"]).indices
    for _, places in sorted(by_level.items()):
        if len(places) >= FEWEST:
            rows = known.iloc[places]
            yield float(rows["running_req"].iloc[0]), rows.sort_values(["rank", "t_s", "line_no"], kind="stable")


def _context(clean: pd.DataFrame, growth: Growth | None) -> Iterator[Observation]:
    """Say how the step grows with the context at one number of requests: the level where it grows most."""
    found = []
    for n, rows in _levels_of(clean):
        rows = rows[rows["context_tok"].gt(0)]
        if len(rows) < FEWEST:
            continue
        context, step = rows["context_tok"].to_numpy(float), rows["step_s"].to_numpy(float)
        lo, mid, hi = np.quantile(context, (0.05, 0.5, 0.95))
        if (hi - lo) / mid < LEAST_SPREAD:
            continue
        slope, half_width = _slope(context, step)
        span, median = hi - lo, float(np.median(step))
        resets = int((np.diff(context) < -RESET_FRAC * context[:-1]).sum())
        found.append((slope * span / median, (slope + half_width) * span / median, slope > half_width, n, lo, hi,
                      resets, slope / median, mid, (slope - half_width) / median))
    if not found:
        return
    frac, most, is_certain, n, lo, hi, resets, per_tok, mid, least_per_tok = max(found, key=lambda item: item[0])
    where = f"at N={level_key(n)} the step grows by {frac:.0%} from {show(lo)} to {show(hi, 'tok')} of context"
    if is_certain:
        yield _of("context_growth_frac", frac, where)
        if resets:
            yield _of("context_growth_with_resets", frac,
                      f"{where}, and falls back with each new request ({resets} times)")
    elif all(item[1] <= SAME_STEP for item in found):
        yield _of("context_growth_frac", max(most, 0.0),
                  f"at N={level_key(n)} the step grows by less than {max(most, 0.0):.1%} from {show(lo)} to "
                  f"{show(hi, 'tok')} of context")
    if growth is None or not is_certain:
        return
    own = growth(n, mid)
    if not own > 0:
        return
    yield _of("context_cost_share_frac", per_tok * mid,
              f"{per_tok * mid:.0%} of the step at N={level_key(n)} grows with the actual context")
    ratio, least = per_tok / own, least_per_tok / own
    says = (f"{where}: {show(ratio)} times as fast as the bytes it reads (at least {show(max(least, 0.0))} times)")
    yield _of("context_cost_over_kv", ratio, says)
    if least > BEYOND_KV and frac >= LEAST_GROWTH:
        yield _of("context_cost_beyond_kv", 1.0, says)


BEYOND_KV = 2.0
"""Growth of the step over that of its bytes from which context costs more than reading it."""

LEAST_GROWTH = 0.08
"""Growth of the step with context that matters."""


def _slope(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Return the slope of y over x and the half width of its 95 % interval, for residuals that follow one another."""
    fit = stats.linregress(x, y)
    residual = y - fit.intercept - fit.slope * x
    spread = float(residual.std())
    follow = float(np.corrcoef(residual[:-1], residual[1:])[0, 1]) if spread > 0 and len(x) > 3 else 0.0
    follow = min(max(follow, 0.0), 0.95)
    n_independent = max(len(x) * (1 - follow) / (1 + follow), 3.0)
    widen = np.sqrt(len(x) / n_independent)
    return float(fit.slope), float(stats.t.ppf(0.975, n_independent - 1) * fit.stderr * widen)


def _drift(clean: pd.DataFrame) -> Iterator[Observation]:
    """Say whether the step drifts with time where the context does not."""
    found = []
    for n, rows in _levels_of(clean):
        context = rows["context_tok"].to_numpy(float)
        known = np.isfinite(context).all()
        if known and (np.quantile(context, 0.95) - np.quantile(context, 0.05)) > SAME_CONTEXT * np.median(context):
            continue
        time = rows["t_s"].to_numpy(float)
        if not np.isfinite(time).all() or np.ptp(time) <= 0:
            continue
        slope, half_width = _slope(time, rows["step_s"].to_numpy(float))
        if slope > half_width:
            found.append((slope * float(np.ptp(time)) / float(rows["step_s"].median()), n, float(np.ptp(time))))
    if found:
        frac, n, span_s = max(found)
        yield _of("step_drift_frac", frac, f"at N={level_key(n)} the step grows by {frac:.0%} within "
                  f"{show(span_s, 'duration')} at the same context")


def _prefill(
    intervals: pd.DataFrame, levels: pd.DataFrame, samples: pd.DataFrame, s_per_tok: float
) -> Iterator[Observation]:
    """Say what share of the loaded time went into prompts."""
    is_loaded = (intervals["label"].isin(LOADED) & intervals["running_req"].gt(0)
                 & intervals["interval_s"].gt(0) & ~intervals["why"].str.startswith("first line"))
    loaded = intervals.loc[is_loaded, ["server_life", "rank", "clean", "running_req", "n_steps", "interval_s", "idle_s",
                                       "prefill_tok"]]
    if loaded.empty:
        return
    loaded = loaded.assign(busy_s=(loaded["interval_s"] - loaded["idle_s"]).clip(lower=0))
    total_s = float(loaded["busy_s"].sum())
    if not total_s > 0:
        return
    steps = levels[levels["step_s"].notna()]
    if len(steps) and loaded["n_steps"].gt(0).any():
        order = steps.sort_values("running_req")
        step_s = np.interp(loaded["running_req"], order["running_req"], order["step_s"])
        # A prefill right behind a line has delayed it, and so has a prompt that is credited later: what an interval
        # with steps takes beyond them went into prompts, wherever these are printed.
        is_held = ~loaded["clean"] & loaded["n_steps"].gt(0)
        own_s = (loaded["n_steps"] * step_s).where(is_held, loaded["busy_s"])
        over_s = (loaded["busy_s"] - own_s).clip(lower=0).fillna(0)
        # Time that no prompt at hand can have taken is idle time which the log does not show.
        later_tok = loaded.groupby(["server_life", "rank"], dropna=False)["prefill_tok"].shift(-1).fillna(0)
        prompt_tok = loaded["prefill_tok"].clip(lower=later_tok)
        slowest_s = SLOW_PREFILL * prompt_tok * _prompt_s_per_tok(samples, s_per_tok)
        over_s = over_s if slowest_s.isna().all() else over_s.clip(upper=slowest_s)
        frac = float(over_s.sum()) / total_s
        how = "by the clean steps at the same counts"
    else:
        # Only a prefill right behind another prints a rate without decode steps in it.
        behind = samples["kind"].eq("prefill") & samples.groupby("rank", dropna=False)["kind"].shift().eq("prefill")
        speed = samples.loc[behind & samples["prefill_tok_per_s"].gt(0), "prefill_tok_per_s"]
        is_told = len(speed) >= FEWEST_PREFILLS and len(speed) >= MANY_ODD_FRAC * samples["kind"].eq("prefill").sum()
        if not is_told and not isfinite(s_per_tok):
            return
        # The fastest printed rates hold least decode and idle time: this is the least that the prompts can have taken.
        fast = float(speed.quantile(0.9)) if is_told else 1 / s_per_tok
        frac = min(float(loaded["prefill_tok"].sum()) / fast / total_s, 1.0)
        how = f"at {show(fast, 'tok/s')}, " + ("the fastest prefills of the log" if is_told else
                                               "what good kernels reach: at least so much")
        if not is_told and frac < PREFILL_BOUND_SPEAKS:
            return  # a lower bound says nothing where it is low
    yield _of("prefill_time_frac", frac, f"prompts take {frac:.0%} of the time in which requests decode ({how})")


SLOW_PREFILL = 4.0
"""How many times longer than the fastest a prefill may take: short chunks, other prompts in the same forward."""


def _prompt_s_per_tok(samples: pd.DataFrame, s_per_tok: float) -> float:
    """Return what a prompt token costs the fastest prefills of the log [s/tok], else good kernels; NaN if unknown."""
    speed = samples.loc[samples["kind"].eq("prefill") & samples["prefill_tok_per_s"].gt(0), "prefill_tok_per_s"]
    return 1 / float(speed.quantile(0.9)) if len(speed) >= FEWEST else s_per_tok


def _first_lines(intervals: pd.DataFrame, levels: pd.DataFrame) -> Iterator[Observation]:
    """Find rates that hold idle time, and what they do to an average of the printed rates."""
    steady = levels[levels["n_clean"].ge(FEW_CLEAN) & levels["cv_frac"].le(STEADY_CV)]
    is_printed = intervals["decode_tok_per_s"].gt(0) & intervals["kind"].isin(("decode", "stats"))
    keys = ["server_life", "rank_group", "running_req"]
    printed = intervals.loc[is_printed, [*keys, "line_no", "clean", "why", "prefill_tok", "decode_tok_per_s"]]
    n_printed, n_odd, worst = len(printed), 0, (0.0, "")
    places = printed.groupby(keys).indices
    for row in steady.to_dict("records"):
        same = printed.iloc[places.get(tuple(row[name] for name in keys), [])]
        rate = float(same.loc[same["clean"], "decode_tok_per_s"].median()) if same["clean"].any() else float("nan")
        # A line that holds a prefill, or was delayed by the next one, is slow for that reason.
        is_prompt = same["prefill_tok"].gt(FEW_PROMPT_TOK) | same["why"].str.startswith(("prefill is", "prompt"))
        odd = same[~same["clean"] & ~is_prompt & same["decode_tok_per_s"].lt(MUCH_SLOWER * rate)]
        n_odd += len(odd)
        if len(odd):
            error = float(1 - same["decode_tok_per_s"].mean() / rate)
            least = odd.sort_values("decode_tok_per_s").iloc[0]
            says = (f"line {int(least['line_no'])} prints {show(float(least['decode_tok_per_s']), 'tok/s')} over a "
                    f"span that holds idle time; the steady lines at the same count print {show(rate, 'tok/s')}, and "
                    f"the mean of all is {error:.0%} too low")
            worst = max(worst, (error, says))
    if n_odd and n_odd >= MANY_ODD_FRAC * n_printed:
        yield _of("first_line_error_frac", worst[0], worst[1])


MANY_ODD_FRAC = 0.15
"""Share of the lines from which odd ones are what a reader of the log sees, not an exception."""


def _staircase(levels: pd.DataFrame, facts: Mapping[str, Any]) -> Iterator[Observation]:
    """Count levels that share the step of one captured size although a line through all would tell them apart."""
    sizes = np.sort(np.array([float(size) for size in facts.get("captured_batch_sizes") or [] if size]))
    known = levels[levels["is_fitted"] & levels["step_s"].gt(0)].sort_values("running_req")
    known = known[known["running_req"].le(sizes.max())] if len(sizes) else known.iloc[:0]
    if known["running_req"].nunique() < 4:
        return
    n, step = known["running_req"].to_numpy(float), known["step_s"].to_numpy(float)
    padded = sizes[np.searchsorted(sizes, n)]
    line = np.poly1d(np.polyfit(n, step, 1, w=1 / step))
    n_shared, names = 0, []
    for size in np.unique(padded):
        group = padded == size
        if group.sum() < 2:
            continue
        is_flat = np.ptp(step[group]) <= SAME_STEP * step[group].mean()
        would_differ = abs(np.ptp(line(n[group]))) > OTHER_STEP * step[group].mean()
        if is_flat and would_differ:
            n_shared += int(group.sum())
            names.append(f"{level_key(n[group].min())} to {level_key(n[group].max())} take the step of {size:g}")
    if names:
        yield _of("staircase_levels", float(n_shared), "levels " + ", ".join(names))


def _told_rates(intervals: pd.DataFrame, facts: Mapping[str, Any]) -> Iterator[Observation]:
    """Hold the rate at the highest load against one that the user knows from another run."""
    is_loaded = (intervals["running_req"].gt(0) & intervals["interval_s"].gt(0)
                 & intervals["label"].isin(("steady", "mixed")))
    loaded = intervals.loc[is_loaded, ["running_req", "interval_s", "decode_tok_per_s"]]
    if loaded.empty:
        return
    top = loaded[loaded["running_req"].ge(0.75 * loaded["running_req"].max())]
    rate = float((top["decode_tok_per_s"] * top["interval_s"]).sum() / top["interval_s"].sum())
    plain = facts.get("no_speculation_total_tok_per_s")
    if plain:
        yield Observation(
            "slower_than_without_drafts", float(rate < plain), "baseline",
            f"the server gives {show(rate, 'tok/s')} at its highest load, {show(float(plain), 'tok/s')} without drafts "
            "by what the user says", "--context")
    elsewhere = facts.get("same_build_elsewhere_tok_per_s")
    if elsewhere and rate > 0:
        yield Observation(
            "same_build_elsewhere_over_here", float(elsewhere) / rate, "told",
            f"the same build gives {show(float(elsewhere), 'tok/s')} on another machine, {show(rate, 'tok/s')} here: "
            "the platform differs, not the kernels", "--context")


def _of(name: str, value: float, says: str) -> Observation:
    return Observation(name, value, "step", says, "intervals")
