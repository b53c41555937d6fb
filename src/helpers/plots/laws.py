"""Figures of laws: step time over running requests, what a law misses, and how it predicts levels it was not shown."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from helpers import schema
from helpers.display import level_key, requests, show
from helpers.plots import style
from helpers.plots.levels import TOLERANCE_FRAC, level_facts
from helpers.schema import Fits, LawFit

LINE_POINTS = 120
"""Points of a drawn law: smooth at 900 px."""

CANDIDATE_DASHES = ("dash", "dot", "dashdot", "longdash", "longdashdot")


def step_vs_running_req(
    levels: pd.DataFrame,
    fits: Fits | None,
    *,
    band: pd.DataFrame | None = None,
    bounds: pd.DataFrame | None = None,
    up_to_req: float = 0.0,
    show_candidates: bool = True,
    title: str = "",
    subtitle: str = "",
) -> go.Figure:
    """Draw the step time of each level, the selected law with its band, and the other candidates faintly.

    Parameters
    ----------
    levels : DataFrame, schema LEVELS
        Levels that are not fitted are hollow.
    fits : Fits or None
        None, or a refused law, draws the levels alone.
    band : DataFrame, optional
        running_req [req], step_s_lo, step_s_hi [s]: band of the selected law.
    bounds : DataFrame, optional
        ``Roofline.to_frame()``: the strict and the target step at the levels, drawn dashed.
    up_to_req : float
        Draw the law dotted beyond the data up to here [req]; 0 = no further than the data. Below the data it is
        always dotted, down to 0.
    show_candidates : bool
        Draw the other laws, too.
    title, subtitle : str
        Finding and run; the title is computed if empty.
    """
    schema.check(levels, schema.LEVELS)
    levels = levels[levels["step_s"].notna()]
    if levels.empty:
        return style.nothing_to_draw(title or "No level has clean decode", "There is no step time to draw.", subtitle)
    figure = go.Figure()
    law = None if fits is None or fits.selected.refused or fits.selected.predict_step_s is None else fits.selected
    has_band = law is not None and band is not None and len(band) > 0
    notes = _caption(levels, fits, has_band)
    if law is not None and fits is not None:
        if show_candidates:
            _add_candidates(figure, fits, law)
        if band is not None and has_band:
            _add_band(figure, band)
        _add_law(figure, law, up_to_req)
    if bounds is not None:
        _add_bounds(figure, bounds)
    notes += _add_levels(figure, levels)
    figure.update_xaxes(style.request_axis())
    figure.update_yaxes(style.seconds_axis("step time"))
    return style.finish(figure, title or law_finding(fits), subtitle, notes)


def _caption(levels: pd.DataFrame, fits: Fits | None, has_band: bool) -> list[str]:
    """Say what band and whiskers are; those of a hand-typed table are its rounding, no interval of confidence."""
    interval = f"{100 * fits.selected.confidence:g} % intervals" if fits is not None else "intervals"
    if levels["method"].eq("table").all():
        return [*([f"band: {interval}"] if has_band else []), "whiskers: half a unit of the last printed digit"]
    return [f"{'band and whiskers' if has_band else 'whiskers'}: {interval}"]


def _add_bounds(figure: go.Figure, bounds: pd.DataFrame) -> None:
    """Add what the hardware allows at the levels, named at the end of each line."""
    table = bounds.sort_values("running_req")
    for name, dash, shift in (("strict", "dash", -7), ("target", "dot", 7)):
        known = table[table[f"{name}_step_s"].notna()]
        if known.empty:
            continue
        step_s = known[f"{name}_step_s"]
        figure.add_trace(
            go.Scatter(
                x=known["running_req"], y=step_s, mode="lines", name=name, showlegend=False,
                line={"color": style.BOUND, "width": 2, "dash": dash},
                hovertemplate="%{x:.4g} req<br>%{y:.4s}s<extra>" + name + "</extra>",
            )
        )
        style.end_label(figure, known["running_req"].iloc[-1], step_s.iloc[-1], name, style.BOUND, yshift=shift)


def _add_levels(figure: go.Figure, levels: pd.DataFrame) -> list[str]:
    """Add the levels with whiskers; return notes about those not fitted."""
    main = levels["is_fitted"] & levels["population"].eq(0)
    for is_fitted, part in levels.groupby(main):
        step_s, lo, hi = (part[name].to_numpy(float) for name in ("step_s", "step_s_lo", "step_s_hi"))
        colour = style.STEADY if is_fitted else style.BASELINE
        figure.add_trace(
            go.Scatter(
                x=part["running_req"], y=step_s, mode="markers",
                name="level" if is_fitted else "level, not fitted",
                marker={"color": colour, "symbol": "circle" if is_fitted else "circle-open", "size": 9},
                error_y=style.whiskers(step_s, lo, hi, colour),
                customdata=np.column_stack([level_facts(part), 1e3 * step_s, 1e3 * lo, 1e3 * hi]),
                hovertemplate="%{x:.4g} req<br>step %{customdata[3]:.4g} ms [%{customdata[4]:.4g}, "
                              "%{customdata[5]:.4g}]<br>%{customdata[1]} clean intervals<br>%{customdata[2]}"
                              "<extra>%{fullData.name}</extra>",
            )
        )
    n_out = int((~main).sum())
    return [f"{n_out} of {len(levels)} levels not fitted (hollow)"] if n_out else []


def _add_law(figure: go.Figure, law: LawFit, up_to_req: float) -> None:
    """Add the selected law: solid inside the data, dotted outside, named at its end."""
    assert law.predict_step_s is not None
    inside = np.linspace(law.running_req_min, law.running_req_max, LINE_POINTS)
    pieces = [(inside, "solid", f"{law.law} law")]
    pieces.append((np.linspace(0.0, law.running_req_min, 20), "dot", f"{law.law} law, extrapolated"))
    if up_to_req > law.running_req_max:
        pieces.append((np.linspace(law.running_req_max, up_to_req, 40), "dot", f"{law.law} law, extrapolated"))
    for req, dash, name in pieces:
        figure.add_trace(
            go.Scatter(
                x=req, y=law.predict_step_s(req), mode="lines", name=name, showlegend=False,
                line={"color": style.STEADY, "width": 2, "dash": dash},
                hovertemplate="%{x:.4g} req<br>%{y:.4s}s<extra>" + name + "</extra>",
            )
        )
    last = pieces[-1][0][-1] if up_to_req > law.running_req_max else law.running_req_max
    style.end_label(figure, last, float(law.predict_step_s(np.array([last]))[0]), law.law, style.STEADY)


def _add_band(figure: go.Figure, band: pd.DataFrame) -> None:
    figure.add_trace(
        go.Scatter(
            x=np.concatenate([band["running_req"], band["running_req"][::-1]]),
            y=np.concatenate([band["step_s_hi"], band["step_s_lo"][::-1]]),
            fill="toself", mode="lines", line={"width": 0}, fillcolor=style.rgba(style.STEADY, style.BAND_OPACITY),
            name="band", showlegend=False, hoverinfo="skip",
        )
    )


def _add_candidates(figure: go.Figure, fits: Fits, law: LawFit) -> None:
    others = [c for c in fits.candidates if c.law != law.law and c.predict_step_s is not None and not c.refused]
    for index, other in enumerate(others):
        assert other.predict_step_s is not None
        req = np.linspace(other.running_req_min, other.running_req_max, LINE_POINTS)
        figure.add_trace(
            go.Scatter(
                x=req, y=other.predict_step_s(req), mode="lines", name=f"{other.law} (not selected)",
                opacity=style.FAINT_OPACITY,
                line={"color": style.BASELINE, "width": 1.5, "dash": CANDIDATE_DASHES[index % len(CANDIDATE_DASHES)]},
                hovertemplate="%{x:.4g} req<br>%{y:.4s}s<extra>" + other.law + "</extra>",
            )
        )


def law_finding(fits: Fits | None) -> str:
    """Say the law in a sentence, or that none is claimed."""
    if fits is None or fits.selected.refused:
        return "Step time is measured, a law is not claimed"
    selected = fits.selected
    if selected.law == "linear":
        a, b = selected["intercept_s"], selected["slope_s_per_req"]
        return f"A step takes {show(a.value, 's')} and {show(b.value, 's')} more per running request"
    if selected.law == "constant":
        return "A step takes the same time at every level"
    return f"Step time follows the {selected.law} law better than a straight line"


def residuals(levels: pd.DataFrame, fits: Fits, *, title: str = "", subtitle: str = "") -> go.Figure:
    """Draw each level's step over what the selected law says, with the level's whisker; other laws faintly."""
    schema.check(levels, schema.LEVELS)
    law = fits.selected
    used = levels[levels["is_fitted"] & levels["population"].eq(0)].sort_values("running_req")
    if law.refused or law.predict_step_s is None or used.empty:
        return style.nothing_to_draw(title or "No residuals: no law is claimed", law.refused or "No law.", subtitle)
    figure = go.Figure()
    req, step_s = used["running_req"].to_numpy(float), used["step_s"].to_numpy(float)
    keys = [level_key(value) for value in req]
    for index, other in enumerate(c for c in fits.candidates if c.law != law.law and c.predict_step_s is not None):
        assert other.predict_step_s is not None
        figure.add_trace(
            go.Scatter(
                x=keys, y=step_s / other.predict_step_s(req) - 1, mode="lines", name=f"{other.law} (not selected)",
                opacity=style.FAINT_OPACITY,
                line={"color": style.BASELINE, "width": 1.5, "dash": CANDIDATE_DASHES[index % len(CANDIDATE_DASHES)]},
                hovertemplate="%{x} req<br>%{y:+.2%}<extra>" + other.law + "</extra>",
            )
        )
    model = law.predict_step_s(req)
    off = step_s / model - 1
    lo, hi = used["step_s_lo"].to_numpy(float) / model - 1, used["step_s_hi"].to_numpy(float) / model - 1
    figure.add_trace(
        go.Scatter(
            x=keys, y=off, mode="markers", name=f"{law.law} law", marker={"color": style.STEADY, "size": 9},
            error_y=style.whiskers(off, lo, hi, style.STEADY),
            hovertemplate="%{x} req<br>%{y:+.2%}<extra>measured over law</extra>",
        )
    )
    figure.add_hrect(y0=-TOLERANCE_FRAC, y1=TOLERANCE_FRAC, fillcolor=style.BASELINE, opacity=0.15, line={"width": 0},
                     layer="below")
    figure.add_hline(y=0, line={"color": style.BOUND, "width": 1})
    figure.update_xaxes(title={"text": "running requests [req]"}, type="category")
    figure.update_yaxes(style.percent_axis("measured over law"))
    # The axis holds the selected law and its whiskers; rivals that are far off leave it.
    reach = max(2 * TOLERANCE_FRAC, 1.25 * float(np.nanmax(np.abs([off, lo, hi]))))
    figure.update_yaxes(range=[-reach, reach])
    worst = int(np.argmax(np.abs(off)))
    where = requests(req[worst])
    finding = f"The {law.law} law misses no level by more than {100 * abs(off[worst]):.2g} % (at {where})"
    return style.finish(figure, title or finding, subtitle, [f"grey band: ±{100 * TOLERANCE_FRAC:g} %"])


def loo_errors(fits: Fits, *, title: str = "", subtitle: str = "") -> go.Figure:
    """Draw the error of each law at a level that it was not shown: inside the range, and at the top."""
    laws = [c for c in fits.candidates if np.isfinite(c.loo_error_frac) or np.isfinite(c.loo_error_top_frac)]
    if not laws:
        return style.nothing_to_draw(
            title or "Too few levels to test a law on a level it was not shown",
            "Leave-one-level-out errors need four levels.", subtitle,
        )
    laws = sorted(laws, key=lambda c: np.nan_to_num(c.loo_error_frac, nan=np.inf))
    names = [f"{c.law}{' (selected)' if c.law == fits.selected.law else ''}" for c in laws]
    figure = go.Figure()
    marks = (
        ("inner level (median)", [c.loo_error_frac for c in laws], style.STEADY, "circle"),
        ("top level, from those below", [c.loo_error_top_frac for c in laws], style.REGRESSION, "triangle-right"),
    )
    for name, values, colour, symbol in marks:
        figure.add_trace(
            go.Scatter(
                x=values, y=names, mode="markers", name=name, marker={"color": colour, "symbol": symbol, "size": 11},
                hovertemplate="%{y}<br>%{x:.2%}<extra>" + name + "</extra>",
            )
        )
    figure.update_xaxes(title={"text": "error of the predicted step [%]"}, tickformat=".3~%", rangemode="tozero")
    figure.update_yaxes(type="category", autorange="reversed", automargin=True)
    figure.update_layout(height=max(320, 180 + 34 * len(laws)))
    best = laws[0]
    finding = f"Shown all levels but the top one, {best.law} is {100 * best.loo_error_top_frac:.2g} % off there"
    if np.isfinite(best.loo_error_frac):
        off = f"{100 * best.loo_error_frac:.2g} %"
        finding = f"Shown all levels but one, {best.law} predicts an inner one best ({off} off)"
    return style.finish(figure, title or finding, subtitle)
