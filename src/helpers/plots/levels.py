"""Figures of levels and laws: throughput and step time over running requests, and how good a law is."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from helpers import schema
from helpers.display import level_key, requests, show
from helpers.plots import style
from helpers.schema import Fits, LawFit

LINE_POINTS = 120
"""Points of a drawn law: smooth at 900 px."""

TOLERANCE_FRAC = 0.03
"""Band of the residual figure: what levels deviate from a good law through padding and routing (1 to 4 %)."""

CANDIDATE_DASHES = ("dash", "dot", "dashdot", "longdash", "longdashdot")


def throughput_vs_running_req(
    intervals: pd.DataFrame, levels: pd.DataFrame, *, title: str = "", subtitle: str = ""
) -> go.Figure:
    """Draw the printed rate of every interval over running requests, and the estimate of each level.

    Parameters
    ----------
    intervals : DataFrame, schema INTERVALS
        Clean ones are drawn filled, rejected ones hollow and light.
    levels : DataFrame, schema LEVELS
        Whiskers are the interval of the level's step time, turned into throughput.
    title, subtitle : str
        Finding and run; the title is computed if empty.

    Returns
    -------
    Figure
        Rates are those of one rank's line; under lockstep ranks the level is one rank's share, too.
    """
    schema.check(intervals, schema.INTERVALS)
    schema.check(levels, schema.LEVELS)
    figure = go.Figure()
    notes = []
    own_req = intervals["step_s"] * intervals["decode_tok_per_s"] / intervals["accept_len"].fillna(1.0)
    table = intervals.assign(own_req=own_req.fillna(intervals["running_req_printed"].astype(float)))
    for is_clean, part in table.groupby("clean"):
        drawn, note = style.thin(part)
        notes += [note] if note else []
        figure.add_trace(
            go.Scattergl(
                x=drawn["own_req"], y=drawn["decode_tok_per_s"], mode="markers",
                name="clean interval" if is_clean else "rejected interval",
                marker={"color": style.STEADY, "size": 6, "opacity": 0.5} if is_clean
                else {"color": style.PREFILL, "symbol": "circle-open", "size": 6, "opacity": 0.6},
                customdata=np.column_stack([drawn["why"].map(style.safe), drawn["line_no"]]).astype(object),
                hovertemplate="%{x:.4g} req<br>%{y:.4g} tok/s<br>%{customdata[0]}<br>line %{customdata[1]}"
                              "<extra>%{fullData.name}</extra>",
            )
        )
    used = levels[levels["population"].eq(0) & levels["step_s"].notna()].sort_values("running_req")
    req, step_s = used["running_req"].to_numpy(float), used["step_s"].to_numpy(float)
    tokens = req * used["accept_len"].fillna(1.0).to_numpy(float)
    lo, hi = tokens / used["step_s_hi"].to_numpy(float), tokens / used["step_s_lo"].to_numpy(float)
    figure.add_trace(
        go.Scatter(
            x=req, y=tokens / step_s, mode="markers", name="level: tokens / time",
            marker={"color": "#000000", "symbol": "diamond", "size": 10, "line": {"color": "#FFFFFF", "width": 1}},
            error_y=style.whiskers(tokens / step_s, lo, hi, "#000000"), customdata=_level_facts(used),
            hovertemplate="%{x:.4g} req<br>%{y:.4g} tok/s<br>%{customdata[1]} clean intervals"
                          "<br>%{customdata[2]}<extra>level</extra>",
        )
    )
    n_clean = int(intervals["clean"].sum())
    notes.insert(0, f"{len(intervals) - n_clean} of {len(intervals)} intervals rejected (hollow)")
    per_rank = " per rank" if intervals["rank"].nunique() > 1 else ""
    figure.update_xaxes(style.request_axis(f"running requests{per_rank}"))
    figure.update_yaxes(style.rate_axis(f"decode throughput{per_rank}"))
    return style.finish(figure, title or _throughput_finding(used), subtitle, notes)


def _level_facts(levels: pd.DataFrame) -> np.ndarray:
    n_clean = levels["n_clean"].where(levels["method"].ne("table"), 1)
    return np.column_stack(
        [levels["running_req"].map(level_key), n_clean, levels["note"].fillna("").map(style.safe)]
    ).astype(object)


def _throughput_finding(levels: pd.DataFrame) -> str:
    if levels.empty:
        return "No level has clean decode"
    first, last = levels.iloc[0], levels.iloc[-1]
    if len(levels) == 1:
        rate = show(last["decode_tok_per_s"], "tok/s")
        return f"At {requests(last['running_req'])} the server decodes {rate}"
    more_req = last["running_req"] / first["running_req"]
    more_tok = last["decode_tok_per_s"] / first["decode_tok_per_s"]
    return (
        f"{show(more_req)} times the running requests bring {show(more_tok)} times the decode throughput "
        f"({show(last['decode_tok_per_s'], 'tok/s')} at {level_key(last['running_req'])})"
    )


def level_blocks(intervals: pd.DataFrame, levels: pd.DataFrame, *, title: str = "", subtitle: str = "") -> go.Figure:
    """Draw every clean interval's step against its level's estimate: scatter, drift and second populations show."""
    schema.check(intervals, schema.INTERVALS)
    schema.check(levels, schema.LEVELS)
    used = levels[levels["population"].eq(0) & levels["step_s"].notna()]
    clean = intervals[intervals["clean"] & intervals["step_s"].notna()]
    keys = ["server_life", "rank_group", "running_req"]
    estimates = used.assign(running_req=used["running_req"].round(6), level_step_s=used["step_s"])
    table = clean.assign(running_req=clean["running_req"].round(6)).merge(estimates[[*keys, "level_step_s"]], on=keys)
    if table.empty:
        return style.nothing_to_draw(title or "No level with clean intervals", "Nothing to compare.", subtitle)
    deviation = table["step_s"] / table["level_step_s"] - 1
    drawn, note = style.thin(table.assign(deviation=deviation))
    figure = go.Figure(
        go.Scattergl(
            x=drawn["running_req"].map(level_key), y=drawn["deviation"], mode="markers", name="clean interval",
            marker={"color": drawn["t_s"], "colorscale": [[0, "#CFE3F1"], [1, style.STEADY]], "size": 7,
                    "colorbar": {"title": {"text": "time [s]"}, "thickness": 12}},
            customdata=np.column_stack([drawn["step_s"] * 1e3, drawn["line_no"]]),
            hovertemplate="%{x} req<br>step %{customdata[0]:.4g} ms (%{y:+.1%})<br>line %{customdata[1]:.0f}"
                          "<extra></extra>",
        )
    )
    figure.add_hline(y=0, line={"color": style.BOUND, "width": 1})
    figure.update_xaxes(title={"text": "running requests [req]"}, type="category")
    figure.update_yaxes(style.percent_axis("step over its level's estimate"))
    by_level = table.assign(deviation=deviation).groupby("running_req")["deviation"].agg(lambda d: d.abs().median())
    worst = float(str(by_level.idxmax()))
    finding = (
        f"Clean intervals scatter most at {requests(worst)}: "
        f"half of them within ±{100 * by_level.max():.2g} % of the level"
    )
    return style.finish(figure, title or finding, subtitle, [note] if note else [])


def step_vs_running_req(
    levels: pd.DataFrame,
    fits: Fits | None,
    *,
    band: pd.DataFrame | None = None,
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
    notes = []
    if law is not None and fits is not None:
        if show_candidates:
            _add_candidates(figure, fits, law)
        if band is not None and len(band):
            _add_band(figure, band)
            notes.append(f"band and whiskers: {100 * law.confidence:g} % intervals")
        else:
            notes.append(f"whiskers: {100 * law.confidence:g} % intervals of the levels")
        _add_law(figure, law, up_to_req)
    notes += _add_levels(figure, levels)
    figure.update_xaxes(style.request_axis())
    figure.update_yaxes(style.seconds_axis("step time"))
    return style.finish(figure, title or law_finding(fits), subtitle, notes)


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
                customdata=np.column_stack([_level_facts(part), 1e3 * step_s, 1e3 * lo, 1e3 * hi]),
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
    finding = f"Shown all levels but one, {best.law} predicts an inner one best ({100 * best.loo_error_frac:.2g} % off)"
    return style.finish(figure, title or finding, subtitle)


def naive_over_level(rates: pd.DataFrame, *, title: str = "", subtitle: str = "") -> go.Figure:
    """Draw the mean of the printed rates of each level over the level's tokens per time.

    Parameters
    ----------
    rates : DataFrame
        From ``readings.naive_rates``.
    title, subtitle : str
        Finding and run; the title is computed if empty.
    """
    if rates.empty:
        reason = "No level has both a mean and an estimate."
        return style.nothing_to_draw(title or "No level to compare", reason, subtitle)
    keys = [level_key(value) for value in rates["running_req"]]
    off = rates["naive_over_level"].to_numpy(float) - 1
    figure = go.Figure(
        go.Bar(
            x=keys, y=off, name="mean of printed rates over level", marker={"color": style.PREFILL},
            text=[f"{100 * value:+.2g} %" for value in off], textposition="outside", cliponaxis=False,
            customdata=rates[["naive_tok_per_s", "decode_tok_per_s", "n_lines"]].to_numpy(float),
            hovertemplate="%{x} req<br>mean of %{customdata[2]:.0f} lines %{customdata[0]:.4g} tok/s"
                          "<br>tokens over time %{customdata[1]:.4g} tok/s<extra></extra>",
        )
    )
    figure.add_hrect(y0=-TOLERANCE_FRAC, y1=TOLERANCE_FRAC, fillcolor=style.BASELINE, opacity=0.15, line={"width": 0},
                     layer="below")
    figure.add_hline(y=0, line={"color": style.BOUND, "width": 1})
    figure.update_xaxes(title={"text": "running requests [req]"}, type="category")
    figure.update_yaxes(style.percent_axis("mean of printed rates over level"))
    worst = int(np.argmax(np.abs(off)))
    where = requests(rates["running_req"].iloc[worst])
    finding = f"The mean of the printed rates is off by up to {100 * off[worst]:+.2g} % (at {where})"
    return style.finish(figure, title or finding, subtitle, [f"grey band: ±{100 * TOLERANCE_FRAC:g} %"])
